//! The processes of this machine as grouping needs them, read with as few files as will do.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use met_core::job::ProcessId;
use met_host::{Host, PidPath, parse};

use super::user_work;

/// One process in one look at the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: ProcessId,
    pub parent_pid: u32,
    pub session: u32,
    pub process_group: u32,
    pub uid: u32,
    /// It has a controlling terminal.
    pub terminal: bool,
    /// It belongs to a login session.
    pub login: bool,
    pub kernel: bool,
    /// It is in a job that something else follows.
    pub claimed: bool,
    pub cgroup: Arc<str>,
    /// Its own CPU time, and that of its children that it has waited for.
    pub cpu_ns: u64,
    pub reaped_ns: u64,
}

/// A new process may still change its user or cgroup: values read while it is this young are read again.
const YOUNG_NS: u64 = 5_000_000_000;
/// A listing does not reveal every reused pid: each process is read again once in this many looks.
const VERIFY_LOOKS: u64 = 60;
/// More processes than a machine has.
const PROCESSES_MAX: usize = 1 << 20;

/// What was read, kept from look to look: a process that is not user work is read once.
#[derive(Default)]
pub struct ProcessTable {
    rows: Vec<Process>,
    known: HashMap<u32, Known>,
    looks: u64,
    listed: Vec<(u32, u64)>,
    paths: HashMap<Vec<u8>, (Arc<str>, bool)>,
    buffer: Vec<u8>,
}

struct Known {
    process: Process,
    inode: u64,
    look: u64,
    /// Its user and its cgroup are settled.
    settled: bool,
    /// Whether its figures are of use.
    wanted: bool,
}

/// The table's input from the machine.
pub struct Look<'a> {
    pub host: &'a Host,
    /// Now, since the boot.
    pub now_ns: u64,
    /// Whether a cgroup is in a job of a resource manager or a container.
    pub is_managed: &'a dyn Fn(&Path) -> bool,
    /// Whether a job of our own began with a process; its descendants are in it, too.
    pub is_ours: &'a dyn Fn(&Process) -> bool,
}

impl ProcessTable {
    /// Looks at the machine. Processes that end meanwhile are left out.
    pub fn read(&mut self, look: &Look<'_>) -> io::Result<&[Process]> {
        self.looks += 1;
        let listed = &mut self.listed;
        listed.clear();
        look.host.proc_dir().list(&mut self.buffer, |name, inode, _| {
            if listed.len() < PROCESSES_MAX {
                listed.extend(parse::u32(name).map(|pid| (pid, inode)));
            }
        })?;
        for index in 0..self.listed.len() {
            let (pid, inode) = self.listed[index];
            self.observe(look, pid, inode);
        }
        let looks = self.looks;
        self.known.retain(|_, known| known.look == looks);
        self.paths.retain(|_, (path, _)| Arc::strong_count(path) > 1);
        self.rows.clear();
        self.rows.extend(self.known.values().map(|known| known.process.clone()));
        self.rows.sort_unstable_by_key(|process| (process.id.start_ticks, process.id.pid));
        self.claim(look.is_ours);
        Ok(&self.rows)
    }

    /// Marks the processes of our own jobs. Parents come before their children.
    fn claim(&mut self, is_ours: &dyn Fn(&Process) -> bool) {
        let mut ours: HashSet<u32> = HashSet::new();
        for process in &mut self.rows {
            if is_ours(process) || ours.contains(&process.parent_pid) {
                process.claimed = true;
                ours.insert(process.id.pid);
            }
        }
    }

    /// Marks the processes whose figures are needed. The others are not read again until they are in doubt.
    pub fn want(&mut self, wanted: &HashSet<u32>) {
        for (pid, known) in &mut self.known {
            known.wanted = wanted.contains(pid);
        }
    }

    fn observe(&mut self, look: &Look<'_>, pid: u32, inode: u64) {
        let due = (self.looks + u64::from(pid)).is_multiple_of(VERIFY_LOOKS);
        if let Some(known) = self.known.get_mut(&pid)
            && known.inode == inode
            && known.settled
            && !known.wanted
            && !due
        {
            known.look = self.looks;
            return;
        }
        let folder = look.host.proc_dir();
        if folder.read(PidPath::new(pid, "stat").as_path(), &mut self.buffer).is_err() {
            return;
        }
        let Some(mut row) = row(&self.buffer, look.host.facts().ticks_per_second) else { return };
        let before = self.known.get(&pid).filter(|known| known.process.id == row.id);
        let mut settled = before.is_some_and(|known| known.settled);
        let wanted = before.is_none_or(|known| known.wanted);
        match before.filter(|known| known.settled && !due) {
            Some(known) => {
                let Process { uid, login, kernel, claimed, cgroup, .. } = known.process.clone();
                row = Process { uid, login, kernel, claimed, cgroup, ..row };
            }
            None => {
                if self.read_in_full(look, &mut row).is_none() {
                    return;
                }
                let hertz = u64::try_from(look.host.facts().ticks_per_second).unwrap_or(100);
                let born_ns = row.id.start_ticks.saturating_mul(1_000_000_000 / hertz.max(1));
                settled = look.now_ns.saturating_sub(born_ns) > YOUNG_NS;
            }
        }
        self.known.insert(pid, Known { process: row, inode, look: self.looks, settled, wanted });
    }

    fn read_in_full(&mut self, look: &Look<'_>, row: &mut Process) -> Option<()> {
        let (pid, folder) = (row.id.pid, look.host.proc_dir());
        folder.read(PidPath::new(pid, "status").as_path(), &mut self.buffer).ok()?;
        row.uid = u32::try_from(parse::value_of(&self.buffer, "Uid")).ok()?;
        // A kernel without audit has no such file.
        let login = folder.read(PidPath::new(pid, "loginuid").as_path(), &mut self.buffer);
        row.login = login.is_ok() && user_work::is_login(&self.buffer);
        folder.read(PidPath::new(pid, "cgroup").as_path(), &mut self.buffer).ok()?;
        let (cgroup, managed) = match self.paths.get(&self.buffer) {
            Some(known) => known.clone(),
            None => {
                let read = cgroup_of(&self.buffer, look.is_managed);
                self.paths.insert(self.buffer.clone(), read.clone());
                read
            }
        };
        (row.cgroup, row.claimed) = (cgroup, managed);
        Some(())
    }
}

fn row(text: &[u8], ticks_per_second: i64) -> Option<Process> {
    let stat = parse::stat(text)?;
    let number = |cell: i64| u32::try_from(cell).unwrap_or(0);
    let time = |user: i64, system: i64| {
        let ticks = u64::try_from(parse::sum(user, system)).unwrap_or(0);
        ticks.saturating_mul(1_000_000_000 / u64::try_from(ticks_per_second).unwrap_or(100).max(1))
    };
    const THREADS_OF_THE_KERNEL: &[u8] = b"kthreadd";
    Some(Process {
        id: ProcessId { pid: stat.pid, start_ticks: stat.start_ticks },
        parent_pid: stat.parent_pid,
        session: number(stat.session),
        process_group: number(stat.process_group),
        uid: 0,
        terminal: stat.terminal != 0 && stat.terminal != met_core::MISSING,
        login: false,
        // Inside a container the process with pid 2 may be any process; but threads of the kernel have no
        // session.
        kernel: stat.session == 0 && (stat.name == THREADS_OF_THE_KERNEL || stat.parent_pid == 2),
        claimed: false,
        cgroup: Arc::from(""),
        cpu_ns: time(stat.user_ticks, stat.system_ticks),
        reaped_ns: time(stat.user_reaped_ticks, stat.system_reaped_ticks),
    })
}

/// The cgroup that systemd made, and whether any hierarchy has the process in a manager's job.
fn cgroup_of(text: &[u8], is_managed: &dyn Fn(&Path) -> bool) -> (Arc<str>, bool) {
    let mut named = Vec::new();
    let mut managed = false;
    for line in parse::lines(text) {
        let mut parts = line.splitn(3, |&byte| byte == b':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        managed |= is_managed(Path::new(OsStr::from_bytes(path)));
        // On hybrid hosts both say the same, unless systemd does not use the unified one.
        if controllers == b"name=systemd" || (controllers.is_empty() && path != b"/") {
            named = path.to_vec();
        }
    }
    (Arc::from(String::from_utf8_lossy(&named).as_ref()), managed)
}
