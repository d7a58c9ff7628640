//! Where a user's daemon serves when its runtime directory is not the caller's. A login by ssh has XDG_RUNTIME_DIR and
//! cron has none, but both have one state directory, which only one daemon can hold: that daemon writes the path of its
//! socket there.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use met_host::{Peer, trusted};
use rustix::fs::{Mode, OFlags};

const FILE: &str = "daemon.address";
/// Far more than a socket's path can have.
const BYTES_MAX: u64 = 4096;

/// The file with the path of the socket, in the state directory of a user.
pub fn file(state: &Path) -> PathBuf {
    state.join(FILE)
}

/// Says where the daemon serves. Only by the daemon that holds the lock of the state directory.
pub fn announce(file: &Path, socket: &Path) -> io::Result<()> {
    let fresh = file.with_extension(std::process::id().to_string());
    let _ = fs::remove_file(&fresh);
    let mut written = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let result = written.write_all(socket.as_os_str().as_bytes()).and_then(|()| fs::rename(&fresh, file));
    if result.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    result
}

/// Removes the file. Only while the lock is still held: a later daemon's file must stay.
pub fn withdraw(file: &Path) {
    let _ = fs::remove_file(file);
}

/// The socket of a daemon that uses this state directory and serves somewhere else than at `own`. A killed daemon
/// leaves the file behind, so its path may be another user's by now.
pub fn elsewhere(file: &Path, own: &Path) -> Option<PathBuf> {
    trusted::check_own(file).ok()?;
    // A FIFO in its place must not block the caller.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut bytes = Vec::new();
    trusted::open(file, flags, Mode::empty()).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let socket = PathBuf::from(OsString::from_vec(bytes));
    let uid = rustix::process::getuid().as_raw();
    let is_ours = || fs::symlink_metadata(&socket).is_ok_and(|found| found.uid() == uid);
    let is_usable = socket.is_absolute() && socket != own && trusted::check_own(&socket).is_ok() && is_ours();
    is_usable.then_some(socket)
}

/// Whether the other end is a process of this user.
pub fn is_own(stream: impl std::os::fd::AsFd) -> bool {
    Peer::of(stream).is_ok_and(|peer| peer.uid == rustix::process::getuid().as_raw())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn what_was_announced_is_found_until_it_is_withdrawn() {
        let root = tempfile::tempdir().unwrap();
        let (file, own) = (file(root.path()), root.path().join("run/daemon.sock"));
        assert_eq!(elsewhere(&file, &own), None);
        let socket = root.path().join(OsString::from_vec(b"not\xffutf-8\n".to_vec()));
        fs::write(&socket, "").unwrap();
        announce(&file, Path::new("/older")).unwrap();
        announce(&file, &socket).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(elsewhere(&file, &own).as_deref(), Some(socket.as_path()));
        assert_eq!(elsewhere(&file, &socket), None, "the caller has tried that one");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "nothing else is left");
        fs::remove_file(&socket).unwrap();
        assert_eq!(elsewhere(&file, &own), None, "its daemon is gone");
        fs::write(&socket, "").unwrap();
        if rustix::process::getuid().is_root() {
            chown(&socket, Some(12_345), None).unwrap();
            assert_eq!(elsewhere(&file, &own), None, "another user took its place");
            chown(&socket, Some(0), None).unwrap();
        }
        withdraw(&file);
        assert_eq!(elsewhere(&file, &own), None);
    }

    #[test]
    fn a_file_that_names_no_socket_is_ignored() {
        let root = tempfile::tempdir().unwrap();
        let (file, own) = (file(root.path()), root.path().join("run/daemon.sock"));
        for content in ["", "relative/daemon.sock"] {
            fs::write(&file, content).unwrap();
            assert_eq!(elsewhere(&file, &own), None, "{content:?}");
        }
        fs::remove_file(&file).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(elsewhere(&file, &own), None, "a FIFO");
    }
}
