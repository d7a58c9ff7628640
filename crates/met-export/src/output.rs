//! A file that appears under its name only when it is whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, RenameFlags};

/// Removed unless [`OutputFile::finish`] renames it.
pub struct OutputFile {
    path: PathBuf,
    temporary: PathBuf,
    replace: bool,
}

impl OutputFile {
    /// Creates a temporary file beside `path`; one that exists is replaced only if `replace`.
    pub fn create(path: &Path, replace: bool) -> Result<(OutputFile, File)> {
        if !replace && path.symlink_metadata().is_ok() {
            bail!("{} exists; use --force to replace it", path.display());
        }
        let Some(name) = path.file_name() else { bail!("{} is not a file name", path.display()) };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let file = OpenOptions::new().write(true).read(true).create_new(true).open(&temporary);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok((OutputFile { path: path.to_owned(), temporary, replace }, file))
    }

    /// Gives the file, which was written and flushed, its name.
    pub fn finish(mut self) -> Result<()> {
        let file = File::open(&self.temporary);
        file.and_then(|file| file.sync_all())
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        let renamed = match self.replace {
            true => fs::rename(&self.temporary, &self.path),
            false => rename_new(&self.temporary, &self.path),
        };
        match renamed {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                bail!("{} exists by now; use --force to replace it", self.path.display())
            }
            renamed => renamed.with_context(|| format!("cannot write {}", self.path.display()))?,
        }
        self.temporary = PathBuf::new();
        Ok(())
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

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.temporary.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
