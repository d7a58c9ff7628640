//! What root opens by a path on which another user has a say: no link of such a user is followed, and nothing that
//! lasts is kept where he could replace it.
//!
//! A link is a user's word on where a path leads. Root takes it from root alone: a link is followed where its
//! directory belongs to root and is closed to others (or sticky, and the link root's own). For all other users the
//! kernel's permissions decide.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use met_core::job::FileId;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, Statx, StatxFlags};

use crate::{text_file, users};

/// As many as the kernel follows.
const LINKS_MAX: usize = 40;
/// In the place of an owner: a directory that all may write to.
const EVERYBODY: u32 = u32::MAX;
const WALK: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Whether what a path leads to has to be looked at: root's rights are others' to gain.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Opens a file that the caller named. As root no link is followed that another user could have put there.
pub fn open(path: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC;
    if !is_root() {
        return Ok(rustix::fs::open(path, flags, mode)?.into());
    }
    // What must be new is not looked for behind a link.
    let last = if flags.contains(OFlags::EXCL) { Last::AsItIs } else { Last::Resolved };
    let place = resolve(path, last)?;
    if place.is_missing {
        return Err(rustix::io::Errno::NOENT.into());
    }
    // What is there already and has another name may be a file of root's under a name of another user's choice.
    let file = rustix::fs::openat(&place.folder, &place.name, flags | OFlags::NOFOLLOW, mode)?;
    let found = rustix::fs::fstat(&file)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if place.foreign.is_some() && is_file && found.st_nlink > 1 && is_ours(found.st_uid) {
        return Err(refused(path, "has several names in a directory of another user"));
    }
    Ok(file.into())
}

/// Reads a small file that is used without being named. As root only if no other user can change it.
pub fn read_own(path: &Path) -> io::Result<String> {
    check_own(path)?;
    text_file::read(path)
}

/// Whether root was kept from a file because another user has a say on it, or owns it on a file system of another
/// machine.
pub fn is_of_another_user(error: &io::Error) -> bool {
    is_root() && error.kind() == io::ErrorKind::PermissionDenied
}

/// Removes a file by the same rules.
pub fn remove(path: &Path) -> io::Result<()> {
    if !is_root() {
        return std::fs::remove_file(path);
    }
    let place = resolve(path, Last::AsItIs)?;
    Ok(rustix::fs::unlinkat(&place.folder, &place.name, AtFlags::empty())?)
}

/// Which regular file is at a path; `None` if it is a link or anything else.
pub fn file_at(path: &Path) -> io::Result<Option<FileId>> {
    let (folder, name) = place_of(path)?;
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::BTIME;
    let found = rustix::fs::statx(&folder, &name, AtFlags::SYMLINK_NOFOLLOW, wanted)?;
    Ok(file_id(&found))
}

/// Which regular file is open.
pub fn file_of(file: &File) -> Option<FileId> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::BTIME;
    file_id(&rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted).ok()?)
}

/// Opens a file to look at it, never behind a link. As root only where no other user can write.
pub fn open_as_it_is(path: &Path) -> io::Result<File> {
    let (folder, name) = place_of(path)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&folder, &name, flags, Mode::empty())?.into())
}

fn file_id(found: &Statx) -> Option<FileId> {
    let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
    let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let birth_ns = || found.stx_btime.tv_sec * 1_000_000_000 + i64::from(found.stx_btime.tv_nsec);
    is_file.then(|| FileId { inode: found.stx_ino, birth_ns: has_birth.then(birth_ns) })
}

/// Gives a file an unused name in its directory. As root only where no other user can write.
pub fn rename_new(path: &Path, name: &OsStr) -> io::Result<()> {
    let (folder, old) = place_of(path)?;
    Ok(rustix::fs::renameat_with(&folder, &old, &folder, name, RenameFlags::NOREPLACE)?)
}

/// The directory of a path and the name in it.
fn place_of(path: &Path) -> io::Result<(OwnedFd, OsString)> {
    if is_root() {
        let place = resolve(path, Last::AsItIs)?;
        return match place.foreign {
            Some((folder, uid)) => Err(refused(&folder, &owner_words(uid))),
            None => Ok((place.folder, place.name)),
        };
    }
    let (folder, name) = (path.parent(), path.file_name());
    let (folder, name) = folder.zip(name).ok_or(io::ErrorKind::InvalidInput)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((rustix::fs::open(folder, flags, Mode::empty())?, name.to_owned()))
}

/// Whether root may keep something at a path for longer: no other user can replace a directory of that path. What does
/// not exist yet is made by us.
pub fn check_own(path: &Path) -> io::Result<()> {
    if !is_root() {
        return Ok(());
    }
    let place = resolve(path, Last::Resolved)?;
    match place.foreign {
        Some((folder, uid)) => Err(refused(&folder, &owner_words(uid))),
        None if place.is_missing => Ok(()),
        None => place.check_last(path),
    }
}

/// What is done with a link at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Resolved,
    AsItIs,
}

/// The directory of the last component of a path, reached without a link of another user.
struct Place {
    folder: OwnedFd,
    name: OsString,
    /// A directory on the way does not exist.
    is_missing: bool,
    /// The first directory on the way in which another user can replace the next component, and whose it is.
    foreign: Option<(PathBuf, u32)>,
}

impl Place {
    /// The last component, if it is there, is ours, too.
    fn check_last(&self, path: &Path) -> io::Result<()> {
        match rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if is_ours(found.st_uid) && !is_open(&found) => Ok(()),
            Ok(found) if is_ours(found.st_uid) => {
                let remedy = format!("{} (`chmod go-w` closes it)", owner_words(EVERYBODY));
                Err(refused(path, &remedy))
            }
            Ok(found) => Err(refused(path, &owner_words(found.st_uid))),
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Walks to the directory of the last component.
fn resolve(path: &Path, last: Last) -> io::Result<Place> {
    let mut rest: Vec<OsString> = parts(&std::path::absolute(path)?);
    rest.reverse();
    let (mut folder, mut walked) = (rustix::fs::open("/", WALK, Mode::empty())?, PathBuf::from("/"));
    let (mut links, mut foreign) = (0, None);
    while let Some(name) = rest.pop() {
        let found = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW);
        let owner = rustix::fs::fstat(&folder)?;
        if foreign.is_none() && !is_closed(&owner, found.as_ref().ok()) {
            let uid = if is_ours(owner.st_uid) { EVERYBODY } else { owner.st_uid };
            foreign = Some((walked.clone(), uid));
        }
        let here = walked.join(&name);
        let is_last = rest.is_empty();
        match found.map(|found| FileType::from_raw_mode(found.st_mode)) {
            Ok(FileType::Symlink) if !is_last || last == Last::Resolved => {
                links += 1;
                if foreign.is_some() || links > LINKS_MAX {
                    return Err(refused(&here, "is a link that another user could have made"));
                }
                let target = rustix::fs::readlinkat(&folder, &name, Vec::new())?.into_bytes();
                let target = PathBuf::from(OsString::from_vec(target));
                if target.is_absolute() {
                    folder = rustix::fs::open("/", WALK, Mode::empty())?;
                    walked = PathBuf::from("/");
                }
                rest.extend(parts(&target).into_iter().rev());
            }
            Err(error) if !is_last && error != rustix::io::Errno::NOENT => return Err(error.into()),
            _ if is_last => return Ok(Place { folder, name, is_missing: false, foreign }),
            Err(_) => return Ok(Place { folder, name, is_missing: true, foreign }),
            Ok(_) => {
                folder = rustix::fs::openat(&folder, &name, WALK, Mode::empty())?;
                walked = here;
            }
        }
    }
    // The root itself, or a link to where it lies.
    Ok(Place { folder, name: OsString::from("."), is_missing: false, foreign })
}

/// The names in a path. `..` is one: what it means is for the directory that was reached by then.
fn parts(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

/// Whether only root decides what this entry of a directory is.
fn is_closed(folder: &Stat, entry: Option<&Stat>) -> bool {
    const OTHERS_WRITE: u32 = 0o002;
    const GROUP_WRITES: u32 = 0o020;
    const STICKY: u32 = 0o1000;
    let is_open =
        folder.st_mode & OTHERS_WRITE != 0 || folder.st_mode & GROUP_WRITES != 0 && folder.st_gid != 0;
    let is_sticky = folder.st_mode & STICKY != 0;
    // In a sticky directory all users create entries, and only the owners replace theirs.
    is_ours(folder.st_uid) && (!is_open || is_sticky && entry.is_none_or(|entry| is_ours(entry.st_uid)))
}

/// Whether others than root decide what is in a directory or file. Permission to write to a socket is permission to
/// connect.
fn is_open(found: &Stat) -> bool {
    let is_own_group = found.st_gid == 0;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => found.st_mode & 0o022 != 0,
        FileType::RegularFile if is_own_group => found.st_mode & 0o002 != 0,
        FileType::RegularFile => found.st_mode & 0o022 != 0,
        _ => false,
    }
}

/// Root's, or of no user in this user namespace: there root is an ordinary user, and `/` belongs to another.
fn is_ours(uid: u32) -> bool {
    const OVERFLOW: u32 = 65_534;
    uid == 0 || uid == OVERFLOW && is_mapped()
}

fn is_mapped() -> bool {
    static MAPPED: OnceLock<bool> = OnceLock::new();
    let is_partial = || {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let fields: Vec<&str> = map.split_ascii_whitespace().collect();
        !fields.is_empty() && fields != ["0", "0", "4294967295"]
    };
    *MAPPED.get_or_init(is_partial)
}

fn owner_words(uid: u32) -> String {
    match users::name_of(uid) {
        _ if uid == EVERYBODY => "can be written by other users".to_owned(),
        Some(name) => format!("belongs to {name}"),
        None => format!("belongs to user {uid}"),
    }
}

fn refused(path: &Path, why: &str) -> io::Error {
    let words = format!("{} {why}; root does not use what another user could replace", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, words)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const ALICE: u32 = 12_345;

    /// A home of alice's, and a directory of root's. Only root can make both.
    fn home() -> Option<(tempfile::TempDir, PathBuf, PathBuf)> {
        if !is_root() {
            met_core::skipped::skipped("root alone is protected in this way");
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let (home, secret) = (root.path().join("alice"), root.path().join("secret"));
        for folder in [&home, &secret] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(secret.join("file"), "root's").unwrap();
        chown(&home, Some(ALICE), Some(ALICE)).unwrap();
        Some((root, home, secret))
    }

    fn write(path: &Path) -> io::Result<File> {
        open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND, Mode::from_raw_mode(0o644))
    }

    #[test]
    fn a_link_that_another_user_planted_is_followed_at_no_level() {
        let Some((_root, home, secret)) = home() else { return };
        symlink(&secret, home.join("folder")).unwrap();
        symlink(secret.join("file"), home.join("log")).unwrap();
        symlink(secret.join("new"), home.join("dangling")).unwrap();
        for path in ["folder/file", "folder/new", "log", "dangling", "folder/../folder/file"] {
            let path = home.join(path);
            let error = write(&path).unwrap_err();
            assert!(error.to_string().contains("is a link that"), "{}: {error}", path.display());
            assert!(check_own(&path).is_err() && remove(&home.join("folder/file")).is_err());
        }
        assert_eq!(fs::read_dir(&secret).unwrap().count(), 1);
        assert_eq!(fs::read(secret.join("file")).unwrap(), b"root's");
        // What is really there may be written, as in any shell.
        write(&home.join("own.log")).unwrap();
        fs::create_dir(home.join("below")).unwrap();
        write(&home.join("below/own.log")).unwrap();
        fs::hard_link(secret.join("file"), home.join("hard")).unwrap();
        assert!(write(&home.join("hard")).unwrap_err().to_string().contains("several names"));
    }

    #[test]
    fn roots_own_links_are_followed() {
        let Some((root, _, secret)) = home() else { return };
        symlink(&secret, root.path().join("link")).unwrap();
        symlink("link", root.path().join("relative")).unwrap();
        for name in ["link", "relative", "relative/../link/."] {
            write(&root.path().join(name).join("new")).unwrap();
        }
        check_own(&root.path().join("relative/state/met")).unwrap();
        symlink("loop", root.path().join("loop")).unwrap();
        assert!(write(&root.path().join("loop")).is_err());
    }

    #[test]
    fn nothing_lasting_is_kept_where_another_user_can_replace_it() {
        let Some((root, home, _)) = home() else { return };
        fs::create_dir(home.join("state")).unwrap();
        let error = check_own(&home.join("state/met")).unwrap_err();
        assert!(error.to_string().contains("belongs to user 12345; root does not"), "{error}");
        assert!(check_own(&home.join("new/met")).is_err());
        let open = root.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(check_own(&open.join("met")).unwrap_err().to_string().contains("by other users"));
        chown(&open, Some(0), Some(ALICE)).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o775)).unwrap();
        assert!(check_own(&open.join("met")).is_err(), "a group may write there");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
        check_own(&open.join("met")).unwrap();
        fs::create_dir(open.join("hers")).unwrap();
        chown(open.join("hers"), Some(ALICE), Some(ALICE)).unwrap();
        assert!(check_own(&open.join("hers")).is_err());
        check_own(&root.path().join("not/there/yet")).unwrap();
        // A directory that is used itself, and a file.
        let state = root.path().join("state");
        fs::create_dir(&state).unwrap();
        fs::write(state.join("file"), "x").unwrap();
        for (mode, is_used) in [(0o700, true), (0o755, true), (0o777, false), (0o770, false), (0o1777, false)]
        {
            fs::set_permissions(&state, fs::Permissions::from_mode(mode)).unwrap();
            let checked = check_own(&state);
            assert_eq!(checked.is_ok(), is_used, "{mode:o}: {checked:?}");
            assert!(is_used || checked.unwrap_err().to_string().contains("`chmod go-w` closes it"));
        }
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
        for (mode, is_used) in [(0o644, true), (0o664, true), (0o666, false)] {
            fs::set_permissions(state.join("file"), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_own(&state.join("file")).is_ok(), is_used, "{mode:o}");
        }
        fs::write(home.join("met.yaml"), "x").unwrap();
        assert!(read_own(&home.join("met.yaml")).is_err());
    }
}
