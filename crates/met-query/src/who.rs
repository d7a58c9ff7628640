//! Who uses a machine now: users and processes, inside jobs and outside.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use met_core::MISSING;
use met_core::job::{ProcessId, Record, State};
use met_core::text::prefix;
use met_host::{Host, parse, users};
use met_jobs::{Members, processes};
use serde::Serialize;

use crate::jobs::JobsFilter;
use crate::viewer::Viewer;

/// Over this time the present use of the CPU is measured.
pub const LOOK_FOR: Duration = Duration::from_millis(500);
/// Processes that are shown, the busiest.
const SHOWN: usize = 10;
/// Of a command line.
const COMMAND_BYTES_MAX: usize = 1_000;

/// Those who use most CPU first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct InUse {
    pub users: Vec<UserUse>,
    pub processes: Vec<ProcessUse>,
}

/// What a user has running.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UserUse {
    #[serde(rename = "user")]
    pub name: Option<String>,
    pub processes: u64,
    pub cores: f64,
    /// Resident, as far as it can be read; what processes share is counted in each.
    pub memory_bytes: u64,
    pub jobs: BTreeSet<String>,
    #[serde(rename = "outside_jobs")]
    pub outside: Outside,
}

/// The part of it that belongs to no job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Outside {
    pub cores: f64,
    pub memory_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProcessUse {
    pub pid: u32,
    pub user: Option<String>,
    pub job: Option<String>,
    pub cores: f64,
    pub memory_bytes: Option<u64>,
    pub command: Vec<String>,
    #[serde(skip)]
    start_ticks: u64,
    #[serde(skip)]
    uid: Option<u32>,
}

/// The jobs whose processes are distinguished.
pub fn running() -> JobsFilter {
    JobsFilter { states: vec![State::Running, State::Suspended], ..JobsFilter::default() }
}

/// The first of two looks at all processes.
pub struct FirstLook {
    seen: BTreeMap<Id, Seen>,
    at: Instant,
}

impl FirstLook {
    pub fn take(host: &Host) -> FirstLook {
        FirstLook { seen: scan(host), at: Instant::now() }
    }

    /// The second one, some time later.
    pub fn again(self, host: &Host) -> Look {
        let (after, elapsed_s) = (scan(host), self.at.elapsed().as_secs_f64().max(f64::MIN_POSITIVE));
        let process = |(id, seen): (Id, Seen)| {
            // One that began meanwhile used what it has used.
            let cpu_before = self.seen.get(&id).map_or(0, |seen| seen.cpu_ns);
            Looked {
                id,
                uid: host.owner(process_id(id)),
                cores: (seen.cpu_ns - cpu_before).max(0) as f64 / 1e9 / elapsed_s,
                memory_bytes: seen.memory_bytes,
            }
        };
        Look { processes: after.into_iter().map(process).collect() }
    }
}

/// What the processes of all users did between two looks. Several viewers may share it: each gets by
/// [`Look::in_use`] what they may see.
pub struct Look {
    processes: Vec<Looked>,
}

struct Looked {
    id: Id,
    uid: Option<u32>,
    cores: f64,
    memory_bytes: Option<u64>,
}

impl Look {
    /// A viewer who may not see all jobs sees only their own processes.
    pub fn in_use(&self, host: &Host, viewer: &Viewer, jobs: &[Record]) -> InUse {
        let labels = labels(host, jobs);
        let mut found: Vec<ProcessUse> = Vec::new();
        // A name may come from a directory far away: each user is looked up once.
        let mut names: BTreeMap<u32, Option<String>> = BTreeMap::new();
        for Looked { id, uid, cores, memory_bytes } in &self.processes {
            let name = uid.and_then(|uid| names.entry(uid).or_insert_with(|| users::name_of(uid)).clone());
            if !viewer.sees_owner(*uid, name.as_deref()) {
                continue;
            }
            found.push(ProcessUse {
                pid: id.0,
                user: name.or_else(|| uid.map(|uid| uid.to_string())),
                start_ticks: id.1,
                uid: *uid,
                job: labels.get(id).cloned(),
                cores: *cores,
                memory_bytes: *memory_bytes,
                command: Vec::new(),
            });
        }
        let users = by_user(&found);
        found.sort_by(|one, other| {
            other.cores.total_cmp(&one.cores).then(other.memory_bytes.cmp(&one.memory_bytes))
        });
        found.truncate(SHOWN);
        for process in &mut found {
            process.command = command_of(host, (process.pid, process.start_ticks), process.uid);
        }
        InUse { users, processes: found }
    }
}

/// Looks at all processes twice, with a pause in between.
pub fn look(host: &Host, viewer: &Viewer, jobs: &[Record]) -> InUse {
    let first = FirstLook::take(host);
    std::thread::sleep(LOOK_FOR);
    first.again(host).in_use(host, viewer, jobs)
}

/// The command of a process that was this user's. Its number may be another process's by now, or the process another
/// user's: whose it is, is asked once more after its command was read, and nothing is known of another one.
fn command_of(host: &Host, id: Id, uid: Option<u32>) -> Vec<String> {
    let command = processes::command_of(host, id.0);
    let is_same = uid.is_some() && host.owner(process_id(id)) == uid;
    if is_same { shortened(command) } else { Vec::new() }
}

/// The beginning of a command: its arguments may have megabytes.
fn shortened(mut command: Vec<String>) -> Vec<String> {
    let mut room = COMMAND_BYTES_MAX;
    for word in &mut command {
        if word.len() > room {
            *word = format!("{}…", prefix(word, room));
        }
        room = room.saturating_sub(word.len());
    }
    let count = command.iter().scan(0, |bytes, word| {
        let is_shown = *bytes <= COMMAND_BYTES_MAX;
        *bytes += word.len();
        is_shown.then_some(())
    });
    let count = count.count();
    command.truncate(count);
    command
}

#[derive(Clone, Copy)]
struct Seen {
    cpu_ns: i64,
    memory_bytes: Option<u64>,
}

type Id = (u32, u64);

fn process_id((pid, start_ticks): Id) -> ProcessId {
    ProcessId { pid, start_ticks }
}

/// Every process but the kernel's own threads.
fn scan(host: &Host) -> BTreeMap<Id, Seen> {
    let (mut buffer, mut pids) = (Vec::new(), Vec::new());
    // What cannot be listed cannot be shown.
    let _ = host.proc_dir().list(&mut buffer, |name, _, _| pids.extend(parse::u32(name)));
    let tick_ns = 1_000_000_000 / host.facts().ticks_per_second;
    let mut found = BTreeMap::new();
    for pid in pids {
        // A process that ended since the listing is not an error.
        if host.read_small(format!("/proc/{pid}/stat"), &mut buffer).is_err() {
            continue;
        }
        let Some(stat) = parse::stat(&buffer) else { continue };
        let cpu_ns = parse::scaled(parse::sum(stat.user_ticks, stat.system_ticks), tick_ns);
        let (start_ticks, is_kernels) = (stat.start_ticks, pid == 2 || stat.parent_pid == 2);
        if is_kernels || cpu_ns == MISSING || matches!(stat.state, b'Z' | b'X') {
            continue;
        }
        let is_read = host.read_small(format!("/proc/{pid}/statm"), &mut buffer).is_ok();
        let pages = parse::fields(&buffer).nth(1).and_then(parse::u64).filter(|_| is_read);
        let memory_bytes = pages.map(|pages| pages.saturating_mul(rustix::param::page_size() as u64));
        found.insert((pid, start_ticks), Seen { cpu_ns, memory_bytes });
    }
    found
}

/// The innermost job of each process that is in one.
fn labels(host: &Host, jobs: &[Record]) -> BTreeMap<Id, String> {
    let mut members = Members::default();
    let mut sorted: Vec<&Record> = jobs.iter().collect();
    sorted.sort_by_key(|record| record.start_ns);
    for (slot, record) in (0..).zip(&sorted) {
        if let Some(spec) = processes::spec(host, record, slot) {
            members.add(spec);
        }
    }
    let mut labels = BTreeMap::new();
    if members.refresh(host).is_ok() {
        for (slot, record) in (0..).zip(&sorted) {
            for process in members.processes_of(slot) {
                labels.insert((process.pid, process.start_ticks), record.label());
            }
        }
    }
    labels
}

fn by_user(found: &[ProcessUse]) -> Vec<UserUse> {
    let mut users: BTreeMap<Option<String>, UserUse> = BTreeMap::new();
    for process in found {
        let user = users.entry(process.user.clone()).or_default();
        user.name.clone_from(&process.user);
        user.processes += 1;
        user.cores += process.cores;
        let memory_bytes = process.memory_bytes.unwrap_or(0);
        user.memory_bytes += memory_bytes;
        match &process.job {
            Some(job) => drop(user.jobs.insert(job.clone())),
            None => {
                user.outside.cores += process.cores;
                user.outside.memory_bytes += memory_bytes;
            }
        }
    }
    let mut users: Vec<UserUse> = users.into_values().collect();
    users.sort_by(|one, other| {
        other.cores.total_cmp(&one.cores).then(other.memory_bytes.cmp(&one.memory_bytes))
    });
    users
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_sees_own_processes_and_none_of_others() {
        let host = Host::real().unwrap();
        let own = rustix::process::getuid().as_raw();
        let is_there = |seen: &InUse| seen.users.iter().any(|user| user.processes > 0);
        assert!(is_there(&look(&host, &Viewer::Uid(own), &[])), "this process is there");
        assert_eq!(look(&host, &Viewer::Uid(4_000_000_000), &[]), InUse::default());
        assert_eq!(look(&host, &Viewer::user("nobody-of-that-name"), &[]), InUse::default());
        assert!(is_there(&look(&host, &Viewer::Everything, &[])));
    }

    #[test]
    fn one_look_serves_viewers_each_of_whom_sees_their_own() {
        let host = Host::real().unwrap();
        let own = rustix::process::getuid().as_raw();
        let look = FirstLook::take(&host).again(&host);
        let pids = |viewer: &Viewer| {
            look.in_use(&host, viewer, &[]).users.iter().map(|user| user.processes).sum::<u64>()
        };
        assert!(pids(&Viewer::Uid(own)) > 0 && pids(&Viewer::Everything) >= pids(&Viewer::Uid(own)));
        assert_eq!(pids(&Viewer::Uid(4_000_000_000)), 0);
    }

    #[test]
    fn a_command_is_read_only_of_the_process_that_was_seen_and_of_its_owner() {
        let host = Host::real().unwrap();
        let (pid, own) = (std::process::id(), rustix::process::getuid().as_raw());
        let (&id, _) = scan(&host).iter().find(|(id, _)| id.0 == pid).map(|(id, seen)| (id, *seen)).unwrap();
        assert!(!command_of(&host, id, Some(own)).is_empty(), "this process");
        assert_eq!(command_of(&host, id, Some(own + 1)), [""; 0], "it was another user's");
        assert_eq!(command_of(&host, (pid, id.1 + 1), None), [""; 0], "whose it was is not known");
        assert_eq!(
            command_of(&host, (pid, id.1 + 1), Some(own)),
            [""; 0],
            "another process with this number"
        );
    }

    #[test]
    fn a_long_command_is_cut() {
        let short: Vec<String> = ["python3", "train.py"].map(str::to_owned).into();
        assert_eq!(shortened(short.clone()), short);
        let long = shortened(vec!["x".repeat(5_000_000), "y".repeat(10), "z".to_owned()]);
        assert!(long.iter().map(String::len).sum::<usize>() < 1_100 && long[0].ends_with('…'), "{long:?}");
        let many = shortened(vec!["word".to_owned(); 100_000]);
        assert!(many.len() <= 252, "{}", many.len());
    }

    #[test]
    fn what_belongs_to_no_job_is_summed_beside_the_whole() {
        let process = |job: Option<&str>, cores: f64| ProcessUse {
            user: Some("ada".to_owned()),
            job: job.map(str::to_owned),
            cores,
            memory_bytes: Some(10),
            ..ProcessUse::default()
        };
        let [ada] = &by_user(&[process(Some("1"), 2.0), process(None, 0.5), process(Some("1"), 1.0)])[..]
        else {
            panic!("one user")
        };
        assert_eq!((ada.processes, ada.cores, ada.memory_bytes, ada.jobs.len()), (3, 3.5, 30, 1));
        assert_eq!(ada.outside, Outside { cores: 0.5, memory_bytes: 10 });
    }
}
