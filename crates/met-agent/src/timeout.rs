//! Writing to a descriptor that another process may have made non-blocking.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};

/// Waits where a write would block, until the reader has made room.
pub fn patiently<S: AsFd, T>(
    stream: &mut S,
    mut write: impl FnMut(&mut S) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match write(stream) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // Interrupted or not: the result of the write says what happened.
                let _ = poll(&mut [PollFd::new(stream, PollFlags::OUT)], None);
            }
            written => return written,
        }
    }
}

/// A file or pipe whose writes wait.
pub struct BlockingFile(pub File);

impl Write for BlockingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        patiently(&mut self.0, |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn a_write_that_would_block_waits_for_the_reader() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut file = File::from(OwnedFd::from(writer));
        while file.write(&[0; 4096]).is_ok() {}
        let reading = std::thread::spawn(move || io::copy(&mut reader, &mut io::sink()).unwrap());
        let mut writer = BlockingFile(file);
        writer.write_all(&[1; 1 << 20]).unwrap();
        drop(writer);
        assert!(reading.join().unwrap() >= 4096 + (1 << 20));
    }
}
