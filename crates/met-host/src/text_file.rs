//! Small text files that people write: read whole, within a bound, and never waiting for a writer.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

/// Far more than is written by hand.
pub const BYTES_MAX: u64 = 1 << 20;

/// The text of a regular file. A pipe would block, a device may never end, and to open one may change it.
pub fn read(path: &Path) -> io::Result<String> {
    check_kind(rustix::fs::stat(path)?.st_mode)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file: File = rustix::fs::open(path, flags, Mode::empty())?.into();
    // It may have been replaced in between.
    check_kind(rustix::fs::fstat(&file)?.st_mode)?;
    let mut text = String::new();
    match file.take(BYTES_MAX + 1).read_to_string(&mut text)? as u64 > BYTES_MAX {
        true => Err(refused(format!("it is larger than {} MiB", BYTES_MAX >> 20))),
        false => Ok(text),
    }
}

fn check_kind(mode: u32) -> io::Result<()> {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => return Err(rustix::io::Errno::ISDIR.into()),
        FileType::Fifo => "a named pipe",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Socket => "a socket",
        _ => "something else",
    };
    Err(refused(format!("it is {kind}; use a regular file")))
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_a_device_and_an_endless_file_are_refused_at_once() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let words = |path: &Path| read(path).unwrap_err().to_string();
        assert_eq!(words(&pipe), "it is a named pipe; use a regular file");
        assert_eq!(words(Path::new("/dev/zero")), "it is a device; use a regular file");
        let large = root.path().join("large");
        File::create(&large).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(words(&large), "it is larger than 1 MiB");
        assert_eq!(read(root.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn a_regular_file_is_read_up_to_the_bound() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("met.yaml");
        for length in [0, 5, BYTES_MAX as usize] {
            std::fs::write(&path, "x".repeat(length)).unwrap();
            assert_eq!(read(&path).unwrap().len(), length);
        }
        std::fs::write(&path, "x".repeat(BYTES_MAX as usize + 1)).unwrap();
        assert!(read(&path).is_err());
        assert_eq!(read(&root.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
