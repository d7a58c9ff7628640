//! A Unix socket to listen on. Every local user can connect to it; who did is known from the kernel.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use super::Error;

pub(super) struct Socket {
    path: PathBuf,
    /// The one that was made here: another listener's in its place is not removed.
    inode: u64,
    listener: Option<UnixListener>,
}

impl Socket {
    /// Takes the place of a socket that an earlier listener left behind.
    pub(super) fn bind(path: &Path) -> Result<Socket, Error> {
        let fail = |error| Error::Socket { path: path.to_owned(), error };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                let taken =
                    io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is not a socket");
                return Err(fail(taken));
            }
            _ => {}
        }
        // Under another name until it is ready, so that no client finds it closed.
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        let _ = fs::remove_file(&fresh);
        let made = UnixListener::bind(&fresh).and_then(|listener| {
            listener.set_nonblocking(true)?;
            fs::set_permissions(&fresh, Permissions::from_mode(0o666))?;
            let inode = fs::symlink_metadata(&fresh)?.ino();
            fs::rename(&fresh, path)?;
            Ok(Socket { path: path.to_owned(), inode, listener: Some(listener) })
        });
        made.map_err(|error| {
            let _ = fs::remove_file(&fresh);
            fail(error)
        })
    }

    pub(super) fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_replaces_one_that_was_left_and_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.sock");
        let first = Socket::bind(&path).unwrap();
        let second = Socket::bind(&path).unwrap();
        drop(first);
        assert!(path.exists(), "it is the second one's");
        drop(second);
        assert!(!path.exists());
        fs::write(&path, "kept").unwrap();
        assert!(matches!(Socket::bind(&path), Err(Error::Socket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
