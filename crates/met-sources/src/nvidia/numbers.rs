//! Maps the pids that the driver reports to processes.
//!
//! In a container with its own pid namespace a driver may report pids of the host: the same number is another
//! process there. A process without an open GPU cannot be meant. A pid that is not ours is unowned, whatever
//! process has its number here.

use std::collections::HashMap;

use met_host::{Host, parse};

use crate::sysfs;

/// The kernel's name of the initial namespace, where pids are those that drivers report.
const FIRST_NAMESPACE: &[u8] = b"pid:[4026531836]";
const GPU_FILES: &[u8] = b"/dev/nvidia";
/// Descriptors of one process that are searched for GPUs.
const DESCRIPTORS_MAX: usize = 4096;

pub(super) struct Numbers {
    /// Numbers may be another namespace's.
    doubtful: bool,
    /// What was found out, by number and beginning.
    known: HashMap<(u32, u64), bool>,
    /// The driver named a process that is not the one with this number here.
    pub met_foreign: bool,
}

impl Numbers {
    pub fn new(host: &Host) -> Numbers {
        let mut link = Vec::new();
        let read = host.open_dir("/proc/self/ns").and_then(|folder| folder.read_link("pid", &mut link));
        // Without the device files no process can be seen to have one open.
        let doubtful = read.is_ok() && link != FIRST_NAMESPACE && sysfs::exists(host, "/dev/nvidiactl");
        Numbers { doubtful, known: HashMap::new(), met_foreign: false }
    }

    /// Whether a pid that the driver reported means the process that has it here.
    pub fn is_ours(&self, pid: u32, start_ticks: u64) -> bool {
        pid != 0 && (!self.doubtful || self.known.get(&(pid, start_ticks)).copied().unwrap_or(true))
    }

    /// Takes a closer look at those that are named for the first time.
    pub fn meet(&mut self, host: &Host, named: impl Iterator<Item = (u32, u64)>) {
        let before = std::mem::take(&mut self.known);
        for (pid, start_ticks) in named {
            // An ended process is known from before, or unowned.
            if self.doubtful && start_ticks != 0 {
                let found = before.get(&(pid, start_ticks)).copied();
                self.known.insert((pid, start_ticks), found.unwrap_or_else(|| may_have_gpu(host, pid)));
            }
            self.met_foreign |= !self.is_ours(pid, start_ticks);
        }
    }
}

/// Whether a process has a GPU open, or may not be read.
fn may_have_gpu(host: &Host, pid: u32) -> bool {
    let Ok(folder) = host.open_dir(format!("/proc/{pid}/fd")) else { return true };
    let (mut numbers, mut link) = (Vec::new(), Vec::new());
    if folder.list(&mut Vec::new(), |name, _, _| numbers.extend(parse::u32(name))).is_err() {
        return true;
    }
    numbers
        .into_iter()
        .take(DESCRIPTORS_MAX)
        .any(|number| folder.read_link(number.to_string(), &mut link).is_ok() && link.starts_with(GPU_FILES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn machine(namespace: &str) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for folder in ["proc/self/ns", "proc/100/fd", "proc/200/fd", "dev"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        symlink(namespace, root.path().join("proc/self/ns/pid")).unwrap();
        symlink("/dev/nvidia0", root.path().join("proc/100/fd/4")).unwrap();
        symlink("/dev/null", root.path().join("proc/200/fd/4")).unwrap();
        std::fs::write(root.path().join("dev/nvidiactl"), "").unwrap();
        let host = Host::at(root.path()).unwrap();
        (root, host)
    }

    #[test]
    fn in_a_pid_namespace_only_processes_with_an_open_gpu_count() {
        let (_root, host) = machine("pid:[4026532999]");
        let mut numbers = Numbers::new(&host);
        numbers.meet(&host, [(100, 7), (200, 7), (300, 0)].into_iter());
        assert!(numbers.is_ours(100, 7) && !numbers.is_ours(200, 7));
        assert!(numbers.is_ours(300, 0), "an ended process is recognised by its pid alone");
        assert!(numbers.met_foreign);
    }

    #[test]
    fn on_the_host_a_number_is_believed_unless_it_is_none() {
        let (_root, host) = machine("pid:[4026531836]");
        let mut numbers = Numbers::new(&host);
        numbers.meet(&host, [(100, 7), (200, 7)].into_iter());
        assert!(numbers.is_ours(200, 7) && !numbers.met_foreign);
        numbers.meet(&host, [(0, 0)].into_iter());
        assert!(!numbers.is_ours(0, 0) && numbers.met_foreign);
    }
}
