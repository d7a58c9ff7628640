//! A file that appears under its name only when it is whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags};

/// Gone unless [`OutputFile::finish`] gives it its name.
pub struct OutputFile {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    /// While it has its temporary name.
    is_named: bool,
    replace: bool,
}

impl OutputFile {
    /// Creates a file without a name in the folder of `path`; one that exists is replaced only if `replace`.
    pub fn create(path: &Path, replace: bool) -> Result<OutputFile> {
        if let Ok(about) = path.symlink_metadata() {
            let link_or_file = about.is_file() || about.is_symlink();
            match (replace, link_or_file) {
                (_, false) => bail!("{} is not a plain file", path.display()),
                (false, true) => bail!("{} exists; use --force to replace it", path.display()),
                (true, true) => {}
            }
        }
        let Some(name) = path.file_name() else { bail!("{} is not a file name", path.display()) };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let (file, is_named) =
            open(&temporary).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(OutputFile { path: path.to_owned(), temporary, file, is_named, replace })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file, which was written and flushed, its name.
    pub fn finish(mut self) -> Result<()> {
        self.rename().with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn rename(&mut self) -> Result<()> {
        self.file.sync_all()?;
        if !self.is_named {
            let open = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            rustix::fs::linkat(CWD, open, CWD, &self.temporary, AtFlags::SYMLINK_FOLLOW)?;
            self.is_named = true;
        }
        let renamed = match self.replace {
            true => fs::rename(&self.temporary, &self.path),
            false => rename_new(&self.temporary, &self.path),
        };
        match renamed {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                bail!("another file has that name by now; use --force to replace it")
            }
            renamed => renamed?,
        }
        self.is_named = false;
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_named {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// A file without a name, of which nothing stays if the program is killed; or with one, where the file system has none
/// such.
fn open(temporary: &Path) -> io::Result<(File, bool)> {
    let folder = temporary.parent().filter(|folder| !folder.as_os_str().is_empty());
    let flags = (OFlags::TMPFILE | OFlags::CLOEXEC).bits() as i32;
    let unnamed = OpenOptions::new().write(true).custom_flags(flags).open(folder.unwrap_or(Path::new(".")));
    match unnamed {
        Ok(file) => Ok((file, false)),
        Err(_) => Ok((OpenOptions::new().write(true).create_new(true).open(temporary)?, true)),
    }
}

/// Renames to a name that is free.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every network file system knows that.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        renamed => Ok(renamed?),
    }
}
