//! Whether a directory is on a network file system.

use std::path::Path;

/// From linux/magic.h and the file systems' own sources. FUSE counts: behind it may be sshfs, and shared
/// memory over it cannot be relied on.
const NETWORK: [u64; 16] = [
    0x6969,      // nfs
    0x517b,      // smb
    0xff53_4d42, // cifs
    0xfe53_4d42, // smb2
    0x0bd0_0bd0, // lustre
    0x6573_5546, // fuse
    0x00c3_6400, // ceph
    0x5346_414f, // afs
    0x6b41_4653, // kafs
    0x0102_1997, // 9p
    0x4750_4653, // gpfs
    0x1983_0326, // beegfs
    0x7461_636f, // ocfs2
    0x0116_1970, // gfs2
    0x7375_7245, // coda
    0x2003_0528, // orangefs
];

/// Of a directory that does not exist yet the nearest parent decides.
pub fn is_network(path: &Path) -> bool {
    let found = path.ancestors().find_map(|path| rustix::fs::statfs(path).ok());
    // The kernel's type is a signed word on some machines; only the lower 32 bits mean anything.
    found.is_some_and(|found| NETWORK.contains(&(found.f_type as u64 & 0xffff_ffff)))
}
