//! A machine: its root, its directory of processes, and what does not change while it runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use met_core::job::ProcessId;

use crate::budget::Budget;
use crate::cgroup::Hierarchies;
use crate::file::{Dir, PidPath};
use crate::parse;

/// Cheap to clone: every source keeps one.
#[derive(Clone, Debug)]
pub struct Host {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    root_dir: Dir,
    proc: Dir,
    facts: Facts,
    budget: Arc<Budget>,
    hierarchies: OnceLock<Hierarchies>,
}

/// What does not change while a machine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub boot_id: String,
    pub machine_id: String,
    pub hostname: String,
    pub memory_total_bytes: Option<i64>,
    pub cpu_count: u32,
    pub page_size_bytes: i64,
    pub ticks_per_second: i64,
}

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    Alive,
    /// Proven: the pid is free, another process has it, or its process is a zombie.
    Gone,
    /// Neither could be found out, for example for lack of descriptors.
    Unknown,
}

/// The boot id of a machine that has none.
const UNKNOWN_BOOT: &str = "unknown";

impl Facts {
    /// Whether what was noted with this boot id belongs to an earlier boot, as far as the present one is known.
    pub fn is_other_boot(&self, boot_id: &str) -> bool {
        self.boot_id != UNKNOWN_BOOT && self.boot_id != boot_id
    }
}

impl Host {
    /// The machine this program runs on. Its budget of open files follows the limit of this moment;
    /// [`Budget::follow_limit`] adapts it to one that is raised later.
    pub fn real() -> io::Result<Host> {
        let ticks = i64::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100);
        let page_size = i64::try_from(rustix::param::page_size()).unwrap_or(4096);
        Host::open(Path::new("/"), page_size, ticks)
    }

    /// A captured tree. It does not say its page size and tick: they are those of nearly every machine.
    pub fn at(root: &Path) -> io::Result<Host> {
        if root == Path::new("/") { Host::real() } else { Host::open(root, 4096, 100) }
    }

    fn open(root: &Path, page_size_bytes: i64, ticks_per_second: i64) -> io::Result<Host> {
        let root_dir = Dir::open(root)?;
        let proc = root_dir.open_dir("proc")?;
        let facts = read_facts(&root_dir, page_size_bytes, ticks_per_second.max(1));
        let (root, budget) = (root.to_path_buf(), Budget::of_process());
        let inner = Inner { root, root_dir, proc, facts, budget, hierarchies: OnceLock::new() };
        Ok(Host { inner: Arc::new(inner) })
    }

    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    pub fn proc_dir(&self) -> &Dir {
        &self.inner.proc
    }

    pub fn facts(&self) -> &Facts {
        &self.inner.facts
    }

    pub fn budget(&self) -> &Arc<Budget> {
        &self.inner.budget
    }

    /// Where cgroups were mounted when this was first asked: enough for a question about one of many jobs.
    pub fn hierarchies(&self) -> &Hierarchies {
        self.inner.hierarchies.get_or_init(|| Hierarchies::read(self).unwrap_or_default())
    }

    /// Reads a whole small file by its path on the machine, such as `/proc/meminfo`.
    pub fn read_small(&self, path: impl AsRef<Path>, buffer: &mut Vec<u8>) -> io::Result<()> {
        self.inner.root_dir.read(below_root(path.as_ref()), buffer)
    }

    /// Opens a directory by its path on the machine.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> io::Result<Dir> {
        self.inner.root_dir.open_dir(below_root(path.as_ref()))
    }

    /// The process that has this pid now.
    pub fn process(&self, pid: u32) -> io::Result<ProcessId> {
        let mut text = Vec::new();
        self.proc_dir().read(PidPath::new(pid, "stat").as_path(), &mut text)?;
        let stat = parse::stat(&text).ok_or(io::ErrorKind::InvalidData)?;
        Ok(ProcessId { pid, start_ticks: stat.start_ticks })
    }

    /// What the process calls itself, for people: bytes that are not UTF-8 are shown as U+FFFD.
    pub fn process_name(&self, process: ProcessId) -> Option<String> {
        let mut text = Vec::new();
        self.proc_dir().read(PidPath::new(process.pid, "stat").as_path(), &mut text).ok()?;
        let stat = parse::stat(&text).filter(|stat| stat.start_ticks == process.start_ticks)?;
        Some(String::from_utf8_lossy(stat.name).into_owned())
    }

    /// The user a process belongs to. Root, where the kernel protects the process from its user.
    pub fn owner(&self, process: ProcessId) -> Option<u32> {
        let uid = self.proc_dir().owner_of(process.pid.to_string()).ok()?;
        // Afterwards: the pid was that of no other process while this one is there.
        self.process(process.pid).is_ok_and(|found| found == process).then_some(uid)
    }

    /// Whether it is known to run: a pid that was given to another process does not count, nor does a zombie.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.liveness(process) == Liveness::Alive
    }

    /// Whether the process runs. A failed check is not taken for its end.
    pub fn liveness(&self, process: ProcessId) -> Liveness {
        let mut text = Vec::new();
        match self.proc_dir().read(PidPath::new(process.pid, "stat").as_path(), &mut text) {
            Ok(()) => match parse::stat(&text) {
                Some(stat) if stat.start_ticks != process.start_ticks => Liveness::Gone,
                Some(stat) if matches!(stat.state, b'Z' | b'X') => Liveness::Gone,
                Some(_) => Liveness::Alive,
                None => Liveness::Unknown,
            },
            Err(error) if is_absent(&error) => Liveness::Gone,
            // Needs no descriptor, and detects a free pid.
            Err(_) if self.is_absent(format!("/proc/{}", process.pid)) => Liveness::Gone,
            Err(_) => Liveness::Unknown,
        }
    }

    /// Whether there is certainly nothing at a path on the machine. Needs no descriptor.
    pub fn is_absent(&self, path: impl AsRef<Path>) -> bool {
        let found = self.inner.root_dir.look_at(below_root(path.as_ref()));
        found.is_err_and(|error| is_absent(&error))
    }
}

/// An open file of a process that ended is there and says that there is no such process.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::ENOTDIR))
}

fn below_root(path: &Path) -> &Path {
    let below = path.strip_prefix("/").unwrap_or(path);
    if below.as_os_str().is_empty() { Path::new(".") } else { below }
}

fn read_facts(root: &Dir, page_size_bytes: i64, ticks_per_second: i64) -> Facts {
    let mut buffer = Vec::new();
    let mut line = |path: &str| -> Option<String> {
        root.read(path, &mut buffer).ok()?;
        let text = String::from_utf8_lossy(buffer.trim_ascii()).into_owned();
        (!text.is_empty()).then_some(text)
    };
    let hostname = line("proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".to_owned());
    let machine_id = line("etc/machine-id").or_else(|| line("var/lib/dbus/machine-id"));
    let boot_id = line("proc/sys/kernel/random/boot_id").unwrap_or_else(|| UNKNOWN_BOOT.to_owned());
    Facts {
        boot_id,
        machine_id: machine_id.filter(|id| is_file_name(id)).unwrap_or_else(|| id_from_hostname(&hostname)),
        hostname,
        memory_total_bytes: memory_total_bytes(root, &mut buffer),
        cpu_count: cpu_count(root, &mut buffer),
        page_size_bytes,
        ticks_per_second,
    }
}

// The id names a directory of the state. `uninitialized` is what an image says before its first boot.
fn is_file_name(id: &str) -> bool {
    id != "uninitialized" && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

// The same after a reboot, and unlike that of another host with the same home directory.
fn id_from_hostname(hostname: &str) -> String {
    let safe = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    format!("host-{}", hostname.chars().map(safe).collect::<String>())
}

fn memory_total_bytes(root: &Dir, buffer: &mut Vec<u8>) -> Option<i64> {
    // Its first line says it; asked for more, the kernel would add everything up once more.
    root.read_at_most("proc/meminfo", 1 << 10, buffer).ok()?;
    let bytes = parse::scaled(parse::value_of(buffer, "MemTotal"), 1024);
    (bytes >= 0).then_some(bytes)
}

fn cpu_count(root: &Dir, buffer: &mut Vec<u8>) -> u32 {
    if root.read("sys/devices/system/cpu/online", buffer).is_ok()
        && let Some(count) = parse::cpu_list_count(buffer)
    {
        return count;
    }
    let is_cpu = |line: &&[u8]| line.starts_with(b"cpu") && line.get(3).is_some_and(u8::is_ascii_digit);
    match root.read("proc/stat", buffer) {
        Ok(()) => u32::try_from(parse::lines(buffer).filter(is_cpu).count()).unwrap_or(u32::MAX).max(1),
        Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_an_identity() {
        let host = Host::real().unwrap();
        let facts = host.facts();
        assert!(facts.boot_id.len() == 36 && !facts.machine_id.is_empty() && !facts.hostname.is_empty());
        assert!(facts.memory_total_bytes.unwrap() > 1 << 20 && facts.cpu_count >= 1);
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let host = Host::real().unwrap();
        let me = host.process(std::process::id()).unwrap();
        assert!(host.is_alive(me) && host.process_name(me).is_some());
        let other = ProcessId { start_ticks: me.start_ticks + 1, ..me };
        assert!(!host.is_alive(other) && host.owner(other).is_none());
        assert_eq!(host.owner(me), Some(rustix::process::geteuid().as_raw()));
        assert!(!host.is_alive(ProcessId { pid: u32::MAX, start_ticks: 0 }));
    }

    #[test]
    fn an_unreadable_process_is_no_proof_of_its_end() {
        let root = tempfile::tempdir().unwrap();
        for pid in ["7", "8", "9"] {
            std::fs::create_dir_all(root.path().join("proc").join(pid)).unwrap();
        }
        // Opening a socket fails even for root, as any open does without descriptors.
        let _socket = std::os::unix::net::UnixListener::bind(root.path().join("proc/7/stat")).unwrap();
        std::fs::write(root.path().join("proc/9/stat"), "9 (x").unwrap();
        let host = Host::at(root.path()).unwrap();
        let of = |pid| host.liveness(ProcessId { pid, start_ticks: 1 });
        assert_eq!([of(7), of(8), of(9), of(10)], {
            use Liveness::{Gone, Unknown};
            [Unknown, Gone, Unknown, Gone]
        });
        assert!(!host.facts().is_other_boot("before"), "this machine does not say which boot it is");
        assert!(Host::real().unwrap().facts().is_other_boot("before"));
    }

    #[test]
    fn a_captured_tree_is_a_machine() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/sys/kernel/hostname", "node 7\n"),
            ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\n"),
            ("proc/stat", "cpu 1 2\ncpu0 1\ncpu1 1\ncpu7 1\nintr 5\n"),
        ] {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let facts = Host::at(root.path()).unwrap().facts().clone();
        assert_eq!((facts.machine_id.as_str(), facts.boot_id.as_str()), ("host-node-7", "unknown"));
        assert_eq!((facts.memory_total_bytes, facts.cpu_count), (Some(1_024_000), 3));
        assert_eq!((facts.page_size_bytes, facts.ticks_per_second), (4096, 100));
    }
}
