//! Identifies a job of another manager from its cgroup and the processes in it.
//!
//! Whose job it is comes from the path of the cgroup and from the processes' real user, never from their
//! environment, which users control.

mod limits;
pub(crate) mod variables;

use std::time::Duration;

use met_core::gpu_holding::{self, GpuRef, Holding};
use met_core::job::{CgroupPaths, JobKey, ProcessId, Record, Resources, Scheduling};
use met_core::managers;
use met_host::{Host, PidPath, clock, parse};

use crate::scheduler;
use variables::{ENVIRON_BYTES_MAX, VALUE_BYTES_MAX, Variables};

/// A job found under the name of its directory reveals its number within moments, if at all.
pub const NAMED_WITHIN: Duration = Duration::from_secs(60);

/// Whether a job is known by the name of its directory alone, which is not its id. Sinks get it when its number is known, or after
/// [`NAMED_WITHIN`]: they cannot follow it from one name to another.
pub fn is_unnamed(key: &JobKey) -> bool {
    scheduler::is_other_name(&key.manager, &key.id)
}

/// A job may have thousands of processes; the first ones know all that there is to know.
const PROCESSES_MAX: usize = 256;
/// Environments that are read before it is given up that one is about this job.
const ENVIRONS_MAX: usize = 8;
const ARGUMENTS_MAX: usize = 1024;
const COMMAND_BYTES_MAX: usize = 64 << 10;

/// What is known of a job before its processes are read.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    pub manager: &'a str,
    /// As its cgroup says it.
    pub id: &'a str,
    /// The owner, where the cgroup's path names one.
    pub uid: Option<u32>,
    pub user: Option<&'a str>,
    pub cgroup: &'a CgroupPaths,
    pub pids: &'a [u32],
}

/// What was learned of a job. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity {
    /// The id of a job whose cgroup is not named by it.
    pub id: Option<String>,
    pub uid: Option<u32>,
    /// Only where the cgroup's path names the user; otherwise the user with the uid.
    pub user: Option<String>,
    pub account: Option<String>,
    pub name: Option<String>,
    pub command: Vec<String>,
    pub requested: Resources,
    pub allocated: Resources,
    pub scheduling: Scheduling,
    /// All nodes of the job.
    pub nodes: Vec<String>,
    /// The first process of its user: the one whose environment is about this job, where one could be read.
    pub main: Option<ProcessId>,
    /// The GPUs that its environment names.
    pub holdings: Vec<Holding>,
    /// When the first process of all began, in ticks since the boot.
    pub start_ticks: Option<u64>,
    /// Whether an environment could be read that is about this job. If not, asking again may help.
    pub environment_read: bool,
}

/// Looks at the cgroup and the processes of a job. A few milliseconds at most.
pub fn identify(host: &Host, question: &Question<'_>) -> Identity {
    let processes = processes(host, question);
    let own: Vec<&Process> = processes.iter().filter(|process| !process.of_manager).collect();
    let mut identity = Identity {
        uid: owner(host, question, &own),
        user: question.user.map(|user| printable(user.as_bytes())),
        start_ticks: processes.iter().map(|process| process.id.start_ticks).min(),
        ..Identity::default()
    };
    let of_user: Vec<&Process> =
        own.iter().copied().filter(|process| Some(process.uid) == identity.uid).collect();
    // All of a container is its own; into other jobs root looks in, to prepare them or to wait in them.
    let first = if question.is_container() { own.first() } else { of_user.first() };
    identity.main = first.map(|process| process.id);
    let mut environ = Vec::new();
    for process in of_user.iter().take(ENVIRONS_MAX) {
        if !read_environ(host, process.id, &mut environ) {
            continue;
        }
        let variables = Variables::of(&environ);
        let Some(id) = variables::job_id(variables, question) else { continue };
        variables::read(variables, question, &mut identity);
        let mut text = Vec::new();
        if variables::node_file(variables, question)
            .is_some_and(|path| host.read_small(path, &mut text).is_ok())
        {
            identity.add_nodes(&text);
        }
        identity.id = Some(id).filter(|_| scheduler::is_other_name(question.manager, question.id));
        identity.holdings = gpu_holding::of_environ(&environ);
        identity.environment_read = true;
        if !question.is_container() {
            identity.main = Some(process.id);
        }
        break;
    }
    if let Some(main) = identity.main {
        identity.command = command(host, main);
    }
    if question.manager == "podman" {
        identity.name = identity.main.and_then(|main| conmon_name(host, main, question.id)).or(identity.name);
    }
    identity.add_limits(limits::read(host, question.cgroup), question, host.facts().cpu_count);
    identity
}

impl Question<'_> {
    fn is_container(&self) -> bool {
        managers::find(self.manager).is_some_and(|manager| manager.is_container)
    }
}

impl Identity {
    /// One line for each CPU, with the name of its node.
    fn add_nodes(&mut self, node_file: &[u8]) {
        let mut nodes: Vec<String> = parse::lines(node_file).map(printable).collect();
        let cpus = nodes.len();
        nodes.dedup();
        nodes.sort_unstable();
        nodes.dedup();
        if cpus > 0 {
            self.allocated.cpus = i64::try_from(cpus).ok();
            self.allocated.nodes = i64::try_from(nodes.len()).ok();
            self.nodes = nodes;
        }
    }

    /// What the cgroup says is the kernel's word and beats the environment's, where this node is all there is.
    fn add_limits(&mut self, limits: limits::Limits, question: &Question<'_>, machine_cpus: u32) {
        if self.allocated.nodes.is_some_and(|nodes| nodes > 1) {
            return;
        }
        // A container that was limited to nothing shows all CPUs.
        let cpus = limits.cpus.filter(|&cpus| !question.is_container() || cpus != i64::from(machine_cpus));
        self.allocated.cpus = cpus.or(self.allocated.cpus);
        self.allocated.memory_bytes = limits.memory_bytes;
        self.allocated.gpus = limits.gpus.or_else(|| gpu_count(&self.holdings));
    }

    /// Unix time at which the first process began.
    pub fn start_ns(&self, host: &Host) -> Option<i64> {
        let ticks = i128::from(self.start_ticks?);
        let boot_ns = ticks * 1_000_000_000 / i128::from(host.facts().ticks_per_second);
        i64::try_from(boot_ns + i128::from(clock::unix_offset_ns())).ok()
    }

    /// Fills the gaps of a record: what the manager itself reported takes precedence.
    pub fn apply(&self, record: &mut Record) {
        fill(&mut record.user, &self.user);
        fill(&mut record.uid, &self.uid);
        fill(&mut record.account, &self.account);
        // Until more is known a job is called by its id.
        if (record.name.is_empty() || record.name == record.key.id)
            && let Some(name) = &self.name
        {
            record.name.clone_from(name);
        }
        if record.command.is_empty() {
            record.command.clone_from(&self.command);
        }
        if record.nodes.len() <= 1 && !self.nodes.is_empty() {
            record.nodes.clone_from(&self.nodes);
        }
        record.requested.fill_from(&self.requested);
        record.allocated.fill_from(&self.allocated);
        record.scheduling.fill_from(&self.scheduling);
        // Its users know it by its number, whatever its directory is called.
        fill(&mut record.scheduling.alias, &self.id);
        if let Some(local) = &mut record.local {
            // A process identified by its environment replaces an earlier guess.
            local.main = self.main.filter(|_| self.environment_read).or(local.main).or(self.main);
        }
    }
}

fn fill<T: Clone>(known: &mut Option<T>, learned: &Option<T>) {
    if known.is_none() {
        known.clone_from(learned);
    }
}

/// Foreign bytes as text of a bounded length in which nothing moves a cursor or begins a line.
fn printable(bytes: &[u8]) -> String {
    let kept = &bytes[..bytes.len().min(VALUE_BYTES_MAX)];
    let harmless = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    String::from_utf8_lossy(kept).chars().map(harmless).collect()
}

struct Process {
    id: ProcessId,
    uid: u32,
    of_manager: bool,
}

/// The first processes of the job in the order in which they began. One that ended meanwhile is not there.
fn processes(host: &Host, question: &Question<'_>) -> Vec<Process> {
    let daemon_uid = manager_uid(host, question);
    let watchers = managers::find(question.manager).map_or(&[][..], |manager| manager.watchers);
    let mut buffer = Vec::new();
    let mut found: Vec<Process> = (question.pids.iter().take(PROCESSES_MAX))
        .filter_map(|&pid| {
            let folder = host.proc_dir();
            folder.read(PidPath::new(pid, "stat").as_path(), &mut buffer).ok()?;
            let stat = parse::stat(&buffer).filter(|stat| !matches!(stat.state, b'Z' | b'X'))?;
            let id = ProcessId { pid, start_ticks: stat.start_ticks };
            let watches = watchers.iter().any(|name| stat.name == name.as_bytes());
            folder.read(PidPath::new(pid, "status").as_path(), &mut buffer).ok()?;
            let uid = u32::try_from(parse::value_of(&buffer, "Uid")).ok()?;
            let of_manager = watches || Some(uid) == daemon_uid || waits(host, question, pid, uid);
            Some(Process { id, uid, of_manager })
        })
        .collect();
    found.sort_unstable_by_key(|process| (process.id.start_ticks, process.id.pid));
    found
}

/// Where a manager contains a job from its prolog on, root sleeps in a part of its own for as long as the job
/// lasts, and what prepares the job runs there, too.
fn waits(host: &Host, question: &Question<'_>, pid: u32, uid: u32) -> bool {
    let Some(part) = managers::find(question.manager).and_then(|manager| manager.waits_in) else {
        return false;
    };
    let mut text = Vec::new();
    let is_there = |line: &[u8]| line.split(|&byte| byte == b'/').any(|name| name == part.as_bytes());
    uid == 0
        && host.proc_dir().read(PidPath::new(pid, "cgroup").as_path(), &mut text).is_ok()
        && parse::lines(&text).any(is_there)
}

/// The user as which a manager works inside its jobs, unless that user owns the job.
fn manager_uid(host: &Host, question: &Question<'_>) -> Option<u32> {
    let name = managers::find(question.manager)?.user?;
    if question.user == Some(name) {
        return None;
    }
    uid_of(host, name).filter(|&uid| question.uid != Some(uid))
}

/// Of the users that the machine itself knows; managers' users are among them.
fn uid_of(host: &Host, user: &str) -> Option<u32> {
    let mut text = Vec::new();
    host.read_small("/etc/passwd", &mut text).ok()?;
    parse::lines(&text).find_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        (fields.next()? == user.as_bytes()).then(|| parse::u32(fields.nth(1)?)).flatten()
    })
}

fn owner(host: &Host, question: &Question<'_>, own: &[&Process]) -> Option<u32> {
    let named = question.user.and_then(|user| uid_of(host, user));
    question.uid.or(named).or_else(|| {
        // A daemon of root's prepares a job before its user's first process is there.
        let first = own.iter().find(|process| process.uid != 0).or(own.first());
        first.map(|process| process.uid)
    })
}

/// Reads an environment; without the privilege there is none, nor where another process has the pid now.
fn read_environ(host: &Host, process: ProcessId, environ: &mut Vec<u8>) -> bool {
    let path = PidPath::new(process.pid, "environ");
    host.proc_dir().read_at_most(path.as_path(), ENVIRON_BYTES_MAX, environ).is_ok()
        && !environ.is_empty()
        && host.process(process.pid).is_ok_and(|now| now == process)
}

fn command(host: &Host, process: ProcessId) -> Vec<String> {
    let mut text = Vec::new();
    let path = PidPath::new(process.pid, "cmdline");
    let read = host.proc_dir().read_at_most(path.as_path(), COMMAND_BYTES_MAX, &mut text);
    if read.is_err() || text.is_empty() {
        return Vec::new();
    }
    let arguments = text.strip_suffix(b"\0").unwrap_or(&text).split(|&byte| byte == 0);
    // As given: the views escape control characters.
    let lossy = |argument: &[u8]| String::from_utf8_lossy(argument).into_owned();
    arguments.take(ARGUMENTS_MAX).map(lossy).collect()
}

/// Only the container's monitor, its parent, knows its name.
fn conmon_name(host: &Host, main: ProcessId, container: &str) -> Option<String> {
    let mut text = Vec::new();
    host.proc_dir().read(PidPath::new(main.pid, "stat").as_path(), &mut text).ok()?;
    let parent = host.process(parse::stat(&text)?.parent_pid).ok()?;
    let words = command(host, parent);
    let value = |option: &str| words.iter().skip_while(|word| *word != option).nth(1);
    let is_its_own = words.first()?.ends_with("conmon") && value("-c")? == container;
    value("-n").filter(|name| is_its_own && !name.is_empty()).map(|name| printable(name.as_bytes()))
}

/// How many GPUs are named; `all` is no number. A scheduler that sets the variables of several makers sets
/// them alike, whichever GPUs are there.
fn gpu_count(holdings: &[Holding]) -> Option<i64> {
    let counted = holdings.iter().all(|held| !held.gpus.contains(&GpuRef::All));
    let most = holdings.iter().map(|held| held.gpus.len()).max().filter(|_| counted)?;
    i64::try_from(most).ok()
}

#[cfg(test)]
mod tests;
