//! Directories and files by descriptor: opened once, read often, into buffers that the caller owns.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags, RawDir};

use crate::budget::{Budget, Share};

/// No file read here is as large; what is longer is cut, and its last line dropped by the parsers.
const FILE_LIMIT_BYTES: usize = 4 << 20;
/// More than a memory.stat, so that one call reads a whole file.
const READ_BYTES: usize = 8 << 10;
const LISTING_BYTES: usize = 64 << 10;
/// Lists such as cgroup.procs are handed out by the page, as many lines as fit. No line of those read here is as long.
const LIST_PAGE_BYTES: usize = 4 << 10;
const LIST_LINE_BYTES_MAX: usize = 1 << 10;

/// A directory: files are found below it even if something above is renamed or mounted over.
#[derive(Debug)]
pub struct Dir {
    held: Held,
}

#[derive(Debug)]
enum Held {
    Open(OwnedFd),
    /// Open, and counted.
    Kept(OwnedFd, Arc<Budget>),
    /// Beyond the budget: opened for each use. By its inode number another one of the same name is noticed.
    Closed {
        path: PathBuf,
        inode: u64,
    },
}

/// The descriptor of a directory for one use of it.
pub enum Descriptor<'a> {
    Kept(BorrowedFd<'a>),
    Opened(OwnedFd),
}

impl AsFd for Descriptor<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Descriptor::Kept(fd) => *fd,
            Descriptor::Opened(fd) => fd.as_fd(),
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if let Held::Kept(_, budget) = &self.held {
            budget.give_back();
        }
    }
}

impl Dir {
    pub fn open(path: &Path) -> io::Result<Dir> {
        Ok(Dir { held: Held::Open(rustix::fs::open(path, DIR_FLAGS, Mode::empty())?) })
    }

    /// Opens one of many directories. Without room in the budget it is opened for each use.
    pub fn open_budgeted(path: &Path, budget: &Arc<Budget>) -> io::Result<Dir> {
        let fd = rustix::fs::open(path, DIR_FLAGS, Mode::empty())?;
        let held = match budget.take(Share::First) {
            true => Held::Kept(fd, Arc::clone(budget)),
            false => Held::Closed { path: path.to_owned(), inode: rustix::fs::fstat(&fd)?.st_ino },
        };
        Ok(Dir { held })
    }

    pub fn open_dir(&self, path: impl AsRef<Path>) -> io::Result<Dir> {
        let below = rustix::fs::openat(&self.descriptor()?, path.as_ref(), DIR_FLAGS, Mode::empty())?;
        Ok(Dir { held: Held::Open(below) })
    }

    /// For what names a cgroup by its directory.
    pub fn descriptor(&self) -> io::Result<Descriptor<'_>> {
        match &self.held {
            Held::Open(fd) | Held::Kept(fd, _) => Ok(Descriptor::Kept(fd.as_fd())),
            Held::Closed { path, inode } => {
                let fd = rustix::fs::open(path, DIR_FLAGS, Mode::empty())?;
                // As the kernel says it of a cgroup that was removed while it was open.
                match rustix::fs::fstat(&fd)?.st_ino == *inode {
                    true => Ok(Descriptor::Opened(fd)),
                    false => Err(rustix::io::Errno::NODEV.into()),
                }
            }
        }
    }

    /// Opens a file for a reading or for many. Without room in the budget it is opened for each of them.
    pub fn open_kept(&self, name: &[u8], budget: &Arc<Budget>, share: Share) -> io::Result<KeptFile> {
        let fd = self.open_file(name)?;
        // Opened in any case: whether the file exists and may be read is learned here and not at a reading.
        Ok(KeptFile { fd: budget.take(share).then_some(fd), budget: Arc::clone(budget) })
    }

    /// Reads the whole file into `buffer`, which is emptied first.
    pub fn read(&self, name: impl AsRef<Path>, buffer: &mut Vec<u8>) -> io::Result<()> {
        self.read_at_most(name, FILE_LIMIT_BYTES, buffer)
    }

    /// Where a link leads, without following it.
    pub fn read_link(&self, name: impl AsRef<Path>, buffer: &mut Vec<u8>) -> io::Result<()> {
        let target = rustix::fs::readlinkat(&self.descriptor()?, name.as_ref(), std::mem::take(buffer))?;
        *buffer = target.into_bytes();
        Ok(())
    }

    /// As `read`, for a file whose length another user controls. At most the limit is read.
    pub fn read_at_most(
        &self,
        name: impl AsRef<Path>,
        limit_bytes: usize,
        buffer: &mut Vec<u8>,
    ) -> io::Result<()> {
        let fd = self.open_file(name.as_ref().as_os_str().as_bytes())?;
        buffer.clear();
        loop {
            buffer.reserve(READ_BYTES);
            let count = rustix::io::retry_on_intr(|| rustix::io::read(&fd, spare_capacity(buffer)))?;
            if count == 0 || buffer.len() >= limit_bytes {
                buffer.truncate(limit_bytes);
                return Ok(());
            }
        }
    }

    /// The inode number; of a cgroup directory it is the cgroup's id.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.descriptor()?)?.st_ino)
    }

    /// The inode number and the link count of a directory below this one, without opening it.
    pub fn look_at(&self, path: impl AsRef<Path>) -> io::Result<(u64, u64)> {
        let stat =
            rustix::fs::statat(&self.descriptor()?, path.as_ref(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((stat.st_ino, u64::from(stat.st_nlink as u32)))
    }

    /// The user a file or directory below this one belongs to.
    pub fn owner_of(&self, path: impl AsRef<Path>) -> io::Result<u32> {
        let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::statat(&self.descriptor()?, path.as_ref(), nofollow)?.st_uid)
    }

    /// The inode number of what a name leads to; of a file of /proc/PID/ns it is the namespace's.
    pub fn inode_of(&self, name: impl AsRef<Path>) -> io::Result<u64> {
        Ok(rustix::fs::statat(&self.descriptor()?, name.as_ref(), rustix::fs::AtFlags::empty())?.st_ino)
    }

    /// Whether there may be a directory below this one. Cgroups say it by their link count, without a listing.
    pub fn may_have_dirs(&self) -> io::Result<bool> {
        // Two links, its name and its `.`, are those of a directory without another one in it; file systems
        // that do not count this way say 1.
        Ok(rustix::fs::fstat(&self.descriptor()?)?.st_nlink != 2)
    }

    /// Calls `visit` with name, inode number and type of every entry but `.` and `..`. The buffer is reused.
    pub fn list(&self, buffer: &mut Vec<u8>, mut visit: impl FnMut(&[u8], u64, FileType)) -> io::Result<()> {
        // A descriptor of its own: concurrent listings share the position of a shared one.
        let fd = rustix::fs::openat(&self.descriptor()?, ".", DIR_FLAGS, Mode::empty())?;
        buffer.clear();
        buffer.reserve(LISTING_BYTES);
        let spare: &mut [MaybeUninit<u8>] = buffer.spare_capacity_mut();
        let mut entries = RawDir::new(&fd, spare);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                visit(name, entry.ino(), entry.file_type());
            }
        }
        Ok(())
    }

    fn open_file(&self, name: &[u8]) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(&self.descriptor()?, OsStr::from_bytes(name), FILE_FLAGS, Mode::empty())?)
    }
}

const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const FILE_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// A file that is read again and again. Open all the time while the budget of descriptors allows it.
#[derive(Debug)]
pub struct KeptFile {
    fd: Option<OwnedFd>,
    budget: Arc<Budget>,
}

impl KeptFile {
    /// Reads the file into `buffer`, which is emptied first. `dir` and `name` are those it was opened with.
    ///
    /// One call where the file fits: the kernel prints the small files of processes and cgroups in one piece.
    pub fn read(&self, dir: &Dir, name: &[u8], buffer: &mut Vec<u8>) -> io::Result<()> {
        let opened = self.open_if_closed(dir, name)?;
        let Some(fd) = self.fd.as_ref().or(opened.as_ref()) else { return Ok(()) };
        let mut capacity = READ_BYTES;
        loop {
            buffer.clear();
            buffer.reserve(capacity);
            let room = buffer.capacity();
            let count = rustix::io::retry_on_intr(|| rustix::io::pread(fd, spare_capacity(buffer), 0))?;
            if count < room || room >= FILE_LIMIT_BYTES {
                return Ok(());
            }
            capacity = room.saturating_mul(2);
        }
    }

    /// As `read`, for lists such as cgroup.procs, which the kernel hands out a page at a time.
    pub fn read_list(&self, dir: &Dir, name: &[u8], buffer: &mut Vec<u8>) -> io::Result<()> {
        let opened = self.open_if_closed(dir, name)?;
        let Some(fd) = self.fd.as_ref().or(opened.as_ref()) else { return Ok(()) };
        buffer.clear();
        loop {
            buffer.reserve(READ_BYTES);
            let offset = buffer.len() as u64;
            let count = rustix::io::retry_on_intr(|| rustix::io::pread(fd, spare_capacity(buffer), offset))?;
            // A line more would have found room in the page.
            let is_end = count + LIST_LINE_BYTES_MAX < LIST_PAGE_BYTES;
            if is_end || buffer.len() >= FILE_LIMIT_BYTES {
                return Ok(());
            }
        }
    }

    fn open_if_closed(&self, dir: &Dir, name: &[u8]) -> io::Result<Option<OwnedFd>> {
        if self.fd.is_some() { Ok(None) } else { dir.open_file(name).map(Some) }
    }

    pub fn is_open(&self) -> bool {
        self.fd.is_some()
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        if self.fd.is_some() {
            self.budget.give_back();
        }
    }
}

/// A path below /proc/PID on the stack: made for every reading, so it must not allocate.
#[derive(Clone, Copy, Debug)]
pub struct PidPath {
    bytes: [u8; PidPath::LIMIT_BYTES],
    length: usize,
}

impl PidPath {
    // Two pids of ten digits, "/task/" and the longest file name used, with room.
    const LIMIT_BYTES: usize = 48;

    pub fn new(pid: u32, name: &str) -> PidPath {
        let mut path = PidPath { bytes: [0; PidPath::LIMIT_BYTES], length: 0 };
        path.push_number(pid);
        path.push(b"/");
        path.push(name.as_bytes());
        path
    }

    /// A file of the main thread alone.
    pub fn of_main_thread(pid: u32, name: &str) -> PidPath {
        PidPath::of_thread(pid, pid, name)
    }

    pub fn of_thread(pid: u32, tid: u32, name: &str) -> PidPath {
        let mut path = PidPath::new(pid, "task/");
        path.push_number(tid);
        path.push(b"/");
        path.push(name.as_bytes());
        path
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.as_bytes()))
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        debug_assert!(end <= PidPath::LIMIT_BYTES, "names are constants of this program");
        if let Some(room) = self.bytes.get_mut(self.length..end) {
            room.copy_from_slice(bytes);
            self.length = end;
        }
    }

    fn push_number(&mut self, mut number: u32) {
        let mut digits = [0; 10];
        let mut begin = digits.len();
        loop {
            begin -= 1;
            digits[begin] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[begin..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_path_is_what_format_would_print() {
        for pid in [0, 7, 4_194_304, u32::MAX] {
            assert_eq!(PidPath::new(pid, "stat").as_bytes(), format!("{pid}/stat").as_bytes());
            let thread = format!("{pid}/task/{pid}/schedstat");
            assert_eq!(PidPath::of_main_thread(pid, "schedstat").as_bytes(), thread.as_bytes());
        }
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole() {
        let root = tempfile::tempdir().unwrap();
        let text = "x".repeat(3 * READ_BYTES + 1);
        std::fs::write(root.path().join("long"), &text).unwrap();
        let dir = Dir::open(root.path()).unwrap();
        let mut buffer = Vec::new();
        let kept = dir.open_kept(b"long", &Budget::of(10), Share::First).unwrap();
        kept.read(&dir, b"long", &mut buffer).unwrap();
        assert_eq!(buffer.len(), text.len());
        dir.read("long", &mut buffer).unwrap();
        assert_eq!(buffer.len(), text.len());
    }

    #[test]
    fn beyond_the_budget_a_directory_is_opened_for_each_use_and_never_another_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("job");
        let make = |text: &str| {
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("cpu.stat"), text).unwrap();
        };
        make("first");
        let budget = Budget::of(1);
        let kept = Dir::open_budgeted(&path, &budget).unwrap();
        let poor = Dir::open_budgeted(&path, &budget).unwrap();
        assert_eq!(budget.kept(), 1);
        let mut buffer = Vec::new();
        poor.read("cpu.stat", &mut buffer).unwrap();
        assert_eq!((buffer.as_slice(), poor.inode().unwrap()), (&b"first"[..], kept.inode().unwrap()));
        std::fs::rename(&path, root.path().join("gone")).unwrap();
        assert_eq!(poor.inode().unwrap_err().kind(), io::ErrorKind::NotFound);
        make("second");
        let other = poor.read("cpu.stat", &mut buffer).unwrap_err();
        assert_eq!(other.raw_os_error(), Some(libc::ENODEV), "a new directory of the same name");
        drop(kept);
        assert_eq!(budget.kept(), 0);
    }

    #[test]
    fn beyond_the_budget_a_file_is_opened_for_each_reading() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("a"), "first").unwrap();
        let dir = Dir::open(root.path()).unwrap();
        let budget = Budget::of(1);
        let mut buffer = Vec::new();
        let kept = dir.open_kept(b"a", &budget, Share::First).unwrap();
        let poor = dir.open_kept(b"a", &budget, Share::First).unwrap();
        assert!(kept.is_open() && !poor.is_open());
        drop(kept);
        std::fs::write(root.path().join("a"), "second").unwrap();
        poor.read(&dir, b"a", &mut buffer).unwrap();
        assert_eq!(buffer, b"second");
        assert!(
            dir.open_kept(b"a", &budget, Share::First).unwrap().is_open(),
            "what is closed is given back"
        );
    }
}
