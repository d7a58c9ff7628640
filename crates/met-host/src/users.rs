//! Names of users and groups, as the system's databases know them.

use std::ffi::{CStr, CString, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::parse;

/// Entries are short; a directory service may still need more than one page.
const ENTRY_BYTES: usize = 64 << 10;

pub fn name_of(uid: u32) -> Option<String> {
    // Most users are in this file, and reading it costs a tenth of asking every service there is.
    let local = std::fs::read("/etc/passwd").ok().and_then(|passwd| name_in(&passwd, uid));
    local.or_else(|| name_by_services(uid))
}

fn name_in(passwd: &[u8], uid: u32) -> Option<String> {
    passwd.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        let (name, _password, number) = (fields.next()?, fields.next()?, fields.next()?);
        let is_entry = !name.is_empty() && !matches!(name[0], b'+' | b'-' | b'#');
        (is_entry && parse::u32(number) == Some(uid)).then(|| String::from_utf8_lossy(name).into_owned())
    })
}

fn name_by_services(uid: u32) -> Option<String> {
    with_passwd(uid, |entry| {
        // SAFETY: the entry's strings live in the caller's buffer.
        unsafe { CStr::from_ptr(entry.pw_name) }.to_string_lossy().into_owned()
    })
}

pub fn home_of(uid: u32) -> Option<PathBuf> {
    with_passwd(uid, |entry| {
        // SAFETY: as above.
        PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(entry.pw_dir) }.to_bytes()))
    })
}

/// The name of a user that a person has typed: a name as it is, or that of a uid.
pub fn named(text: &str) -> Option<String> {
    let name = match text.parse() {
        Ok(uid) => name_of(uid),
        Err(_) => Some(text.to_owned()),
    };
    name.filter(|name| !name.trim().is_empty() && !name.contains(char::is_control))
}

pub fn uid_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut buffer = vec![0; ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid for the call; `found` is null or points to `entry`.
    unsafe {
        libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found);
        found.as_ref().map(|entry: &libc::passwd| entry.pw_uid)
    }
}

fn with_passwd<T>(uid: u32, read: impl FnOnce(&libc::passwd) -> T) -> Option<T> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut buffer = vec![0; ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid for the call; `found` is null or points to `entry`.
    unsafe {
        libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found);
        found.as_ref().map(read)
    }
}

/// Whether the system knows a group of this name.
pub fn is_group(name: &str) -> bool {
    let Ok(name) = CString::new(name) else { return false };
    let mut entry = MaybeUninit::<libc::group>::uninit();
    let mut buffer = vec![0; ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid for the call.
    unsafe {
        libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found);
    }
    !found.is_null()
}

/// Whether a user is in a group, as member or by primary group.
pub fn is_in_group(uid: u32, group: &str) -> bool {
    let (Ok(group), Some(user)) = (CString::new(group), name_of(uid)) else { return false };
    let mut entry = MaybeUninit::<libc::group>::uninit();
    let mut buffer = vec![0; ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid for the call; the member list ends with a null pointer.
    unsafe {
        libc::getgrnam_r(group.as_ptr(), entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found);
        let Some(group) = found.as_ref() else { return false };
        let primary = with_passwd(uid, |passwd| passwd.pw_gid);
        let mut member = group.gr_mem;
        while !(*member).is_null() {
            if CStr::from_ptr(*member).to_bytes() == user.as_bytes() {
                return true;
            }
            member = member.add(1);
        }
        primary == Some(group.gr_gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_does_not_exist_is_none() {
        assert!(is_group("root") && !is_group("no-such-group") && !is_group("a\0b"));
    }

    #[test]
    fn the_local_file_is_read_as_the_system_reads_it() {
        let passwd = b"+@netgroup::5:5::\nroot:x:0:0:root:/root:/bin/sh\n#ada:x:7:7::/:/bin/sh\nada:x:7:7::/:\nbad\n:x:9\nb:x:-1:";
        assert_eq!(name_in(passwd, 0).as_deref(), Some("root"));
        assert_eq!(name_in(passwd, 7).as_deref(), Some("ada"));
        assert_eq!((name_in(passwd, 5), name_in(passwd, 9), name_in(passwd, u32::MAX)), (None, None, None));
        assert_eq!(name_in(b"", 0), None);
        assert_eq!(name_by_services(0).as_deref(), Some("root"));
    }

    #[test]
    fn root_is_known_and_no_other_user_is_root() {
        assert_eq!(name_of(0).as_deref(), Some("root"));
        assert_eq!(uid_of("root"), Some(0));
        assert_eq!(uid_of("no-such-user"), None);
        assert!(is_in_group(0, "root"));
        assert!(!is_in_group(65534, "root"));
        assert!(!is_in_group(0, "no-such-group"));
        assert_eq!(name_of(4_000_000_000), None);
        assert_eq!((uid_of("root"), uid_of("no-such-user"), uid_of("a\0b")), (Some(0), None, None));
    }
}
