//! Output files of earlier jobs: they give way to the next job of the same name, and are found again.
//!
//! A record holds which files its job wrote, not only their names. So a rename is the only step: a file that was moved
//! is found by its identity, whatever happens after the rename.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use met_core::job::FileId;
use met_host::trusted;
use rustix::fs::{Mode, OFlags, XattrFlags};

/// The output of an earlier job under its new name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    from: PathBuf,
    to: PathBuf,
}

impl Moved {
    /// The job was not started after all.
    pub fn undo(&self) {
        if let Some(name) = self.from.file_name() {
            let _ = trusted::rename_new(&self.to, name);
        }
    }
}

/// Which job a file was made for, and which file it was: a copy with the same attribute is another file.
const MARK: &str = "user.met.job";

/// Says on an output file itself whose it is. On a file system without attributes it stays where it is, later.
pub fn mark(file: &File, id: &str) {
    if let Some(text) = trusted::file_of(file).and_then(|found| serde_json::to_vec(&(id, found)).ok()) {
        let _ = rustix::fs::fsetxattr(file, MARK, &text, XattrFlags::empty());
    }
}

/// The job of ours that a file was made for.
fn job_of(file: &File) -> Option<(String, FileId)> {
    let mine = file.metadata().ok()?.uid() == rustix::process::getuid().as_raw();
    let mut text = [0; 256];
    let length = rustix::fs::fgetxattr(file, MARK, &mut text[..]).ok().filter(|_| mine)?;
    let (id, marked): (String, FileId) = serde_json::from_slice(text.get(..length)?).ok()?;
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    (is_id && trusted::file_of(file) == Some(marked)).then_some((id, marked))
}

/// Moves what earlier jobs wrote out of the way of a new one. All of it or nothing: what no job of ours wrote stays,
/// and then so does the rest.
pub fn move_aside(paths: &[&Path]) -> Vec<Moved> {
    let mut moved: Vec<Moved> = Vec::new();
    for path in paths {
        let result = match trusted::open_as_it_is(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Ok(file) => job_of(&file).and_then(|(id, file)| move_one(path, file, &id)),
            Err(_) => None,
        };
        match result {
            Some(one) => moved.push(one),
            None => {
                moved.iter().for_each(Moved::undo);
                return Vec::new();
            }
        }
    }
    moved
}

fn move_one(path: &Path, file: FileId, id: &str) -> Option<Moved> {
    let to = aside(path, id)?;
    trusted::rename_new(path, to.file_name()?).ok()?;
    let moved = Moved { from: path.to_owned(), to };
    // Another process may have put something else there meanwhile.
    if trusted::file_at(&moved.to).ok().flatten() == Some(file) {
        return Some(moved);
    }
    moved.undo();
    None
}

/// `train.out` of job 17 becomes `train.17.out`.
fn aside(path: &Path, id: &str) -> Option<PathBuf> {
    let mut name = OsString::from(path.file_stem()?);
    name.push(format!(".{id}."));
    name.push(path.extension()?);
    Some(path.with_file_name(name))
}

/// Opens what a job wrote, to read it, under whichever name it has now. Without waiting: what another user put there
/// may be a pipe.
pub fn open(path: &Path, id: &str, file: Option<FileId>) -> io::Result<(File, PathBuf)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = |path: &Path| trusted::open(path, flags, Mode::empty());
    let is_it = |opened: &File| file.is_none_or(|file| trusted::file_of(opened) == Some(file));
    let here = open(path);
    if let Some(aside) = aside(path, id)
        && !here.as_ref().is_ok_and(is_it)
        && let Ok(moved) = open(&aside)
        && is_it(&moved)
    {
        return Ok((moved, aside));
    }
    let opened = here?;
    if !is_it(&opened) {
        return Err(io::Error::other("another file has this name now; the output was moved or deleted"));
    }
    Ok((opened, path.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use met_core::job::{Local, Origin, Record};

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Folder {
            Folder(tempfile::tempdir_in("/var/tmp").unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// A job that wrote `x.out` and `x.err`.
        fn job(&self, id: u32, text: &str) -> Record {
            let mut record = met_core::sample::bare(id, "x");
            record.uid = Some(rustix::process::getuid().as_raw());
            let mut local = Local::new("", Origin::Run, self.0.path());
            let write = |name: &str| {
                fs::write(self.path(name), text).unwrap();
                mark(&File::open(self.path(name)).unwrap(), &id.to_string());
                (Some(self.path(name)), trusted::file_at(&self.path(name)).unwrap())
            };
            (local.stdout, local.stdout_file) = write("x.out");
            (local.stderr, local.stderr_file) = write("x.err");
            record.local = Some(local);
            record
        }

        fn move_aside(&self) -> Vec<Moved> {
            move_aside(&[&self.path("x.out"), &self.path("x.err")])
        }

        fn names(&self) -> Vec<String> {
            let names = fs::read_dir(self.0.path()).unwrap();
            let mut names: Vec<String> =
                names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    fn read(record: &Record) -> io::Result<String> {
        let local = record.local.as_ref().unwrap();
        let (file, _) = open(local.stdout.as_ref().unwrap(), &record.key.id, local.stdout_file)?;
        io::read_to_string(file)
    }

    #[test]
    fn the_output_of_an_earlier_job_gives_way_and_is_found() {
        let folder = Folder::new();
        let first = folder.job(7, "first");
        let moved = folder.move_aside();
        assert_eq!(folder.names(), ["x.7.err", "x.7.out"]);
        // Also if nothing comes after the rename, and if another job has the name by now.
        assert_eq!(read(&first).unwrap(), "first");
        let second = folder.job(8, "second");
        assert_eq!((read(&first).unwrap(), read(&second).unwrap()), ("first".into(), "second".into()));
        fs::remove_file(folder.path("x.out")).unwrap();
        fs::remove_file(folder.path("x.err")).unwrap();
        moved.iter().for_each(Moved::undo);
        assert_eq!(folder.names(), ["x.err", "x.out"]);
        assert_eq!(read(&first).unwrap(), "first");
    }

    #[test]
    fn a_file_that_no_job_wrote_is_not_moved_nor_is_the_one_beside_it() {
        let folder = Folder::new();
        let job = folder.job(7, "first");
        // The same name, and another file.
        fs::write(folder.path("new"), "mine").unwrap();
        fs::rename(folder.path("new"), folder.path("x.err")).unwrap();
        assert!(folder.move_aside().is_empty());
        assert_eq!(folder.names(), ["x.err", "x.out"]);
        fs::remove_file(folder.path("x.out")).unwrap();
        assert!(read(&job).is_err(), "its output is gone");
        fs::write(folder.path("x.out"), "not of the job").unwrap();
        let inode = trusted::file_at(&folder.path("x.out")).unwrap().unwrap();
        if Some(inode) != job.local.as_ref().unwrap().stdout_file {
            assert!(read(&job).unwrap_err().to_string().contains("another file has this name now"));
        }
    }

    #[test]
    fn neither_a_link_nor_a_copy_is_moved_and_nothing_is_replaced() {
        let folder = Folder::new();
        folder.job(7, "first");
        fs::rename(folder.path("x.out"), folder.path("elsewhere")).unwrap();
        symlink(folder.path("elsewhere"), folder.path("x.out")).unwrap();
        assert!(folder.move_aside().is_empty());
        fs::rename(folder.path("elsewhere"), folder.path("x.out")).unwrap();
        fs::write(folder.path("x.7.err"), "something else").unwrap();
        assert!(folder.move_aside().is_empty());
        assert_eq!(folder.names(), ["x.7.err", "x.err", "x.out"]);
        fs::remove_file(folder.path("x.7.err")).unwrap();
        // The attribute of another file.
        let text = serde_json::to_vec(&("7", FileId { inode: 1, birth_ns: None })).unwrap();
        let file = File::open(folder.path("x.err")).unwrap();
        rustix::fs::fsetxattr(&file, MARK, &text, XattrFlags::empty()).unwrap();
        assert!(folder.move_aside().is_empty());
    }
}
