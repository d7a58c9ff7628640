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

impl Host {
    /// The machine this program runs on. Its budget of open files follows the limit of this moment: call
    /// `raise_open_file_limit` before.
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

    /// Whether it still runs: a pid that was given to another process does not count, nor does a zombie.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        let mut text = Vec::new();
        let read = self.proc_dir().read(PidPath::new(process.pid, "stat").as_path(), &mut text);
        read.is_ok()
            && parse::stat(&text).is_some_and(|stat| {
                stat.start_ticks == process.start_ticks && !matches!(stat.state, b'Z' | b'X')
            })
    }
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
    let boot_id = line("proc/sys/kernel/random/boot_id").unwrap_or_else(|| "unknown".to_owned());
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
    fn this_machine_says_who_it_is() {
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
        assert!(!host.is_alive(ProcessId { start_ticks: me.start_ticks + 1, ..me }));
        assert!(!host.is_alive(ProcessId { pid: u32::MAX, start_ticks: 0 }));
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
