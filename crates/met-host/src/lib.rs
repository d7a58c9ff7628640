//! Access to the machine. Everything is read below one root, so that a captured tree is a machine too.

mod address;
mod budget;
pub mod cgroup;
pub mod cgroup_files;
pub mod clock;
mod file;
pub mod hook;
mod host;
mod listening;
pub mod netlink;
pub mod parse;
mod peer;
mod targets;
pub mod text_file;
pub mod trusted;
pub mod users;

pub use address::{Address, NotAnAddress};
pub use budget::{Budget, Share, open_file_limit, percent, raise_open_file_limit};
pub use file::{Dir, KeptFile, PidPath};
pub use host::{Facts, Host, Liveness};
pub use listening::listener_of;
pub use peer::Peer;
pub use rustix::fs::FileType;
pub use targets::{CgroupTarget, Look, Targets, TaskRole, TaskTarget};

/// What process lists show: executed through /proc/self/exe, it would be "exe".
pub fn name_process(name: &std::ffi::CStr) {
    let _ = rustix::thread::set_name(name);
}
