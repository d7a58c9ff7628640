//! Who is at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// As the kernel recorded it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    /// 0 if the process is outside this pid namespace.
    pub pid: u32,
}

impl Peer {
    /// By a call of our own: rustix keeps the pid in a type that cannot hold 0.
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: both pointers are valid for the call, and `length` is the size of what the first one points to.
        let got = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        match got {
            0 => Ok(Peer { uid: credentials.uid, pid: u32::try_from(credentials.pid).unwrap_or(0) }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn both_ends_of_a_pair_are_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(Peer::of(&one).unwrap(), Peer { uid, pid: std::process::id() });
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Peer::of(&file).is_err(), "a file has no peer");
    }
}
