//! What another user says about his job, as far as it may be believed: a system daemon reads, and in the
//! end removes, what a record names with its own rights.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use met_core::MISSING;
use met_core::job::{CgroupPaths, LOCAL, Local, Origin, Record, Resources, Scheduling, Summary};
use met_core::job_processes::JobProcess;
use met_core::series::Series;
use met_host::cgroup::Hierarchies;
use met_host::{Host, clock, parse};
use met_jobs::job_cgroup;
use met_sources::perf;

use super::socket::Peer;
use met_host::users;
use met_query::protocol::TIMED_SAMPLES_MAX;

/// The cgroups made for users who may not make them, by name, and for which supervisor.
#[derive(Default)]
pub struct Made {
    by_name: HashMap<String, (Peer, CgroupPaths)>,
}

impl Made {
    pub fn insert(&mut self, name: &str, peer: Peer, paths: &CgroupPaths) {
        self.by_name.insert(name.to_owned(), (peer, paths.clone()));
    }

    pub fn has_one(&self, peer: Peer) -> bool {
        self.by_name.values().any(|(owner, _)| *owner == peer)
    }

    /// Those whose supervisor is gone and whose job is unknown.
    pub fn abandoned(
        &self,
        is_gone: impl Fn(u32) -> bool,
        in_use: impl Fn(&CgroupPaths) -> bool,
    ) -> Vec<CgroupPaths> {
        let abandoned = self.by_name.values().filter(|(owner, paths)| is_gone(owner.pid) && !in_use(paths));
        abandoned.map(|(_, paths)| paths.clone()).collect()
    }

    pub fn forget(&mut self, paths: &CgroupPaths) {
        self.by_name.retain(|_, (_, made)| made != paths);
    }

    fn for_user(&self, uid: u32, paths: &CgroupPaths) -> bool {
        self.by_name.values().any(|(owner, made)| owner.uid == uid && made == paths)
    }
}

/// Only jobs of this machine that met itself started or attached to are announced; others are found.
pub fn check_kind(record: &Record) -> Result<()> {
    let is_local = record.key.manager == LOCAL && record.key.cluster.is_none() && record.key.incarnation >= 0;
    let is_found = record.local.as_ref().is_some_and(|local| local.origin == Origin::Found);
    if !is_local || is_found {
        bail!("only jobs of `met run`, `met time` and `met attach` are announced");
    }
    Ok(())
}

/// A sample is taken a moment before the start is noted, or after the end.
const SLACK_MS: i64 = 2000;

/// Samples of a job whose number this daemon did not give may be so old; with it, as old as the reservation.
const UNRESERVED_NS_MAX: i64 = 2 * 86_400 * 1_000_000_000;
/// Events of one job.
const EVENTS_MAX: usize = 64;
/// Before the identifiers of GPUs that a user claims to have used.
const UNVERIFIED: &str = "unverified:";

/// Keeps of what a user says only what a supervisor knows: the rest is the daemon's, or a resource manager's, to say.
/// `is_timed`: only `met time` measured this job, and its figures are the user's own claims.
fn confine(record: &mut Record, known: Option<&Record>, is_timed: bool) {
    if is_timed {
        // Who names a GPU may read what is stored of it.
        record.gpus.iter_mut().for_each(|gpu| gpu.uuid.insert_str(0, UNVERIFIED));
        verify_processes(record);
    } else {
        record.gpus = known.map(|known| known.gpus.clone()).unwrap_or_default();
        record.processes = known.map(|known| known.processes.clone()).unwrap_or_default();
        record.emission = None;
    }
    record.parts = known.map(|known| known.parts.clone()).unwrap_or_default();
    (record.account, record.manager_state) = (None, None);
    (record.requested, record.allocated) = (Resources::default(), Resources::default());
    (record.scheduling, record.as_of_ns) = (Scheduling::default(), None);
    let impossible: Vec<usize> = record
        .totals
        .iter()
        .filter(|(_, figure)| is_impossible(figure.value))
        .map(|(column, _)| column)
        .collect();
    impossible.into_iter().for_each(|column| record.totals.remove(column));
    let claimed = std::mem::take(&mut record.summaries);
    let possible = claimed.iter().filter(|(_, summary)| is_possible(summary));
    possible.for_each(|(column, summary)| record.summaries.set(column, *summary));
    if let Some(local) = &mut record.local {
        // These are of jobs that the daemon found: it would open the directories with its own rights.
        local.more_cgroups.clear();
        local.folded.clear();
    }
}

/// Keeps of the processes that a user claims what may be of this job: of its user, this machine and its time.
fn verify_processes(record: &mut Record) {
    let (Some(start_ns), Some(end_ns)) = (record.start_ns, record.end_ns) else {
        return record.processes.clear();
    };
    let span = start_ns.saturating_sub(SLACK_MS * 1_000_000)..=end_ns.saturating_add(SLACK_MS * 1_000_000);
    let is_in = |time_ns: Option<i64>| time_ns.is_none_or(|time_ns| span.contains(&time_ns));
    record.processes.retain(|process| process.start_ns.is_some() && is_in(process.start_ns));
    for process in &mut record.processes {
        (process.uid, process.user, process.node) = (record.uid, record.user.clone(), None);
        for end_ns in [&mut process.end_ns, &mut process.end_seen_ns] {
            *end_ns = end_ns.filter(|&end_ns| is_in(Some(end_ns)));
        }
        let JobProcess { cpu_ns, memory_peak_bytes, read_bytes, written_bytes, .. } = process;
        for figure in [cpu_ns, memory_peak_bytes, read_bytes, written_bytes] {
            *figure = figure.filter(|&value| !is_impossible(value));
        }
    }
}

/// It ran here, whatever its user says.
pub fn verify_place(host: &Host, record: &mut Record, peer: Peer) {
    if !is_ours(peer) {
        record.nodes = vec![host.facts().hostname.clone()];
        record.node_memory_bytes = host.facts().memory_total_bytes;
    }
}

/// The start of a job, announced by its supervisor.
pub fn verify_start(
    host: &Host,
    made: &Made,
    record: &mut Record,
    known: Option<&Record>,
    peer: Peer,
) -> Result<()> {
    if is_ours(peer) {
        return Ok(());
    }
    (record.uid, record.user) = (Some(peer.uid), users::name_of(peer.uid));
    confine(record, known, false);
    let local = record.local.as_mut().context("no process named")?;
    if take_over(local, known) {
        return Ok(());
    }
    // 0: it is in another pid namespace, where its numbers mean other processes.
    if peer.pid == 0 || local.supervisor.map(|supervisor| supervisor.pid) != Some(peer.pid) {
        bail!("only the supervisor of a job may announce it");
    }
    let main = local.main.context("no process named")?;
    if host.is_alive(main) {
        if parent_and_user(host, main.pid)?.1 != peer.uid {
            bail!("process {} is not yours", main.pid);
        }
        check_cgroup(host, main.pid, &local.cgroup)
    } else {
        drop_unknown_cgroup(made, local, peer);
        Ok(())
    }
}

/// The end of a job. Unless it was announced before, nothing it says about cgroups can be checked any more.
pub fn verify_end(made: &Made, record: &mut Record, known: Option<&Record>, peer: Peer, is_timed: bool) {
    if is_ours(peer) {
        return;
    }
    (record.uid, record.user) = match known {
        Some(known) => (known.uid, known.user.clone()),
        None => (Some(peer.uid), users::name_of(peer.uid)),
    };
    confine(record, known, is_timed && known.is_none());
    if let Some(local) = &mut record.local
        && !take_over(local, known)
    {
        drop_unknown_cgroup(made, local, peer);
        // Acting on them would act on processes that were never checked.
        (local.supervisor, local.main) = (None, None);
        local.left_over.clear();
    }
    let now_ns = clock::realtime_ns();
    for time_ns in [&mut record.start_ns, &mut record.end_ns].into_iter().flatten() {
        // A time to come would keep the record for ever.
        *time_ns = (*time_ns).min(now_ns);
    }
}

/// Which events a supervisor may pass: another user's only those that are in force. Of other names there is no end,
/// and each is a series.
pub fn wanted_events(host: &Host, in_force: &[String], peer: Peer) -> impl Fn(&str) -> bool + use<> {
    // Names depend on the processor, and to find out which it is takes a while.
    let events = match in_force {
        [] => Vec::new(),
        _ => perf::events(host, in_force).unwrap_or_default(),
    };
    let names: Vec<String> = events.into_iter().map(|event| event.name).collect();
    move |name: &str| is_ours(peer) || names.iter().any(|known| known == name)
}

/// Keeps of the events that a user counted, or could not count, those that are in force or have a name of their own: the job may have begun
/// when others were.
pub fn verify_events(host: &Host, in_force: &[String], record: &mut Record, peer: Peer) {
    if is_ours(peer) || record.events.is_empty() && record.uncounted_events.is_empty() {
        return;
    }
    let is_wanted = wanted_events(host, in_force, peer);
    let is_known = |name: &str| is_wanted(name) || perf::is_listed(name);
    record.events.retain(|event| is_known(&event.name));
    record.events.truncate(EVENTS_MAX);
    record.uncounted_events.retain(|event| is_known(&event.name));
    record.uncounted_events.truncate(EVENTS_MAX);
}

/// Whether a record is of a job that only `met time` measures.
pub fn is_timed(record: &Record) -> bool {
    record.local.as_ref().is_some_and(|local| local.origin == Origin::Time)
}

/// Keeps of the samples that a user sends with the end of a job those of its time, and of no cell what cannot be.
/// `reserved_ns`: when this daemon gave the number of the job.
pub fn verify_samples(series: Series, record: &Record, reserved_ns: Option<i64>) -> Series {
    let oldest_ns = reserved_ns.unwrap_or_else(|| clock::realtime_ns() - UNRESERVED_NS_MAX);
    let (start_ns, end_ns) = (record.start_ns.unwrap_or(i64::MAX), record.end_ns.unwrap_or(i64::MIN));
    let first_ms = start_ns.max(oldest_ns) / 1_000_000 - SLACK_MS;
    let last_ms = end_ns / 1_000_000 + SLACK_MS;
    if !series.times_ms.is_sorted_by(|earlier, later| earlier < later) {
        return Series::new(series.table);
    }
    let begin = series.times_ms.partition_point(|&time_ms| time_ms < first_ms);
    let end = series.times_ms.partition_point(|&time_ms| time_ms <= last_ms).max(begin);
    let mut kept = series.part(begin, end);
    kept.truncate(TIMED_SAMPLES_MAX);
    let spreads = kept.spreads.iter_mut().flat_map(|spreads| &mut spreads.cells);
    let cells = kept.columns.iter_mut().chain(spreads.flatten()).flatten();
    for cell in cells.filter(|cell| is_impossible(**cell)) {
        *cell = MISSING;
    }
    kept
}

/// No counter is negative, and none of a job is anywhere near the end of its range.
fn is_impossible(value: i64) -> bool {
    !(0..i64::MAX / 4).contains(&value)
}

fn is_possible(summary: &Summary) -> bool {
    let Summary { mean, min, max, p50, p95 } = summary;
    let figures = [Some(mean), Some(min), Some(max), p50.as_ref(), p95.as_ref()];
    figures.into_iter().flatten().all(|figure| (0.0..i64::MAX as f64 / 4.0).contains(figure))
}

/// Whose job it is: the caller's, unless the daemon's own user says otherwise.
pub fn owner(record: &Record, peer: Peer) -> Option<u32> {
    if is_ours(peer) { record.uid } else { Some(peer.uid) }
}

fn is_ours(peer: Peer) -> bool {
    peer.uid == rustix::process::getuid().as_raw()
}

/// What was checked once holds.
fn take_over(local: &mut Local, known: Option<&Record>) -> bool {
    let Some(checked) = known.and_then(|known| known.local.as_ref()) else { return false };
    local.boot_id.clone_from(&checked.boot_id);
    local.cgroup.clone_from(&checked.cgroup);
    (local.supervisor, local.main) = (checked.supervisor, checked.main);
    true
}

fn drop_unknown_cgroup(made: &Made, local: &mut Local, peer: Peer) {
    if !made.for_user(peer.uid, &local.cgroup) {
        local.cgroup = CgroupPaths::default();
    }
}

/// A user cannot enter another user's cgroup: a cgroup with the user's process may be measured.
fn check_cgroup(host: &Host, pid: u32, claimed: &CgroupPaths) -> Result<()> {
    let actual = Hierarchies::read(host)?.of_process(host, pid)?;
    let pairs = [
        (&claimed.unified, &actual.unified),
        (&claimed.memory, &actual.memory),
        (&claimed.cpuacct, &actual.cpuacct),
    ];
    // A cgroup that holds more than the job would be counted to it whole.
    let of_a_job = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(job_cgroup::is_valid_name)
    };
    for (claimed, actual) in pairs {
        if claimed.as_ref().is_some_and(|claimed| Some(claimed) != actual.as_ref() || !of_a_job(claimed)) {
            bail!("the job is not in the cgroup it claims");
        }
    }
    Ok(())
}

pub fn parent_and_user(host: &Host, pid: u32) -> Result<(u32, u32)> {
    let mut text = Vec::new();
    host.read_small(format!("/proc/{pid}/stat"), &mut text)?;
    let parent = parse::stat(&text).context("unreadable process")?.parent_pid;
    let folder = rustix::fs::stat(format!("/proc/{pid}"))?;
    Ok((parent, folder.st_uid))
}

#[cfg(test)]
mod tests {
    use met_core::job::{EventCount, GpuUse, Part, QualityKind};
    use met_core::job_table::{CPU, READ, WRITTEN};

    use super::*;
    use met_core::sample;

    #[test]
    fn a_user_says_nothing_that_only_a_daemon_or_a_manager_knows() {
        let mut record = sample::full(7, "train");
        record.scheduling.alias = Some("5".to_owned());
        record.account = Some("physics".to_owned());
        record.parts = vec![Part::default()];
        record.totals.set(READ, -1, QualityKind::Measured, "x");
        record.totals.set(WRITTEN, i64::MAX, QualityKind::Measured, "x");
        record.totals.set(CPU, 5, QualityKind::Measured, "x");
        let local = record.local.as_mut().unwrap();
        local.more_cgroups =
            vec![CgroupPaths { unified: Some("/home/mallory".into()), ..Default::default() }];
        local.folded = vec![Part::default()];
        confine(&mut record, None, false);
        assert_eq!((record.shown_id(), &record.account, record.parts.len()), ("7", &None, 0));
        let totals = [READ, WRITTEN, CPU].map(|column| record.totals.get(column));
        assert_eq!(totals, [None, None, Some(5)]);
        let local = record.local.unwrap();
        assert!(local.more_cgroups.is_empty() && local.folded.is_empty());
    }

    #[test]
    fn samples_of_a_timed_job_lie_in_its_time() {
        use met_core::series::{Spread, Spreads};
        let mut record = sample::full(7, "train");
        let now_ms = clock::realtime_ns() / 1_000_000;
        let (start_ms, end_ms) = (now_ms - 200_000, now_ms - 100_000);
        (record.start_ns, record.end_ns) = (Some(start_ms * 1_000_000), Some(end_ms * 1_000_000));
        let series = |times_ms: &[i64]| {
            let mut series = Series::new(&met_core::JOB);
            series.times_ms = times_ms.to_vec();
            series.columns.iter_mut().for_each(|cells| cells.resize(times_ms.len(), 1));
            series
        };
        let kept = |times_ms: &[i64], reserved_ns| {
            let kept = verify_samples(series(times_ms), &record, reserved_ns);
            assert!(kept.columns.iter().all(|cells| cells.len() == kept.len()));
            kept.times_ms
        };
        assert_eq!(kept(&[start_ms, end_ms], None), [start_ms, end_ms]);
        let around = [start_ms - 9_000, start_ms, end_ms, end_ms + 9_000];
        assert_eq!(kept(&around, None), [start_ms, end_ms], "of other times");
        let reserved_ns = Some((start_ms + 50_000) * 1_000_000);
        assert_eq!(kept(&[start_ms, end_ms], reserved_ns), [end_ms], "older than its number");
        assert!(kept(&[start_ms, start_ms], None).is_empty(), "twice");
        let many: Vec<i64> = (0..2 * TIMED_SAMPLES_MAX as i64).map(|index| start_ms + index).collect();
        assert_eq!(kept(&many, None).len(), TIMED_SAMPLES_MAX);

        let mut old = record.clone();
        old.start_ns = Some(0);
        let days: Vec<i64> = (0..100).map(|day| now_ms - day * 86_400_000).rev().collect();
        assert!(verify_samples(series(&days), &old, None).len() <= 3, "nobody fills a hundred days");
        let mut absurd = series(&[start_ms, end_ms]);
        absurd.columns[CPU] = vec![-5, i64::MAX - 1];
        absurd.spreads = Some(Box::new(Spreads::new(&met_core::JOB)));
        let mut spread = |index, high| {
            let spread = Spread { low: 1.0, mean: None, high };
            absurd.spreads.as_mut().unwrap().set(CPU, index, spread);
        };
        spread(0, 9e15);
        spread(1, 2.0);
        let vouched = verify_samples(absurd, &record, None);
        assert_eq!(vouched.columns[CPU], [MISSING, MISSING]);
        assert_eq!(vouched.spread(CPU, 0), None);
        assert_eq!(vouched.spread(CPU, 1).unwrap().high, 2.0, "what was thinned keeps its peak");
    }

    #[test]
    fn gpus_that_a_user_claims_give_no_access_to_what_is_stored_of_them() {
        let claim = || {
            let mut record = sample::full(7, "train");
            record.gpus = vec![GpuUse { uuid: "GPU-1".into(), ..GpuUse::default() }];
            record.local.as_mut().unwrap().origin = Origin::Time;
            record
        };
        let mut timed = claim();
        verify_end(&Made::default(), &mut timed, None, other_user(), true);
        assert_eq!(timed.gpus[0].uuid, "unverified:GPU-1");
        // By any other request the origin alone is worth nothing.
        let mut ended = claim();
        verify_end(&Made::default(), &mut ended, None, other_user(), false);
        assert!(ended.gpus.is_empty() && ended.emission.is_none());
    }

    #[test]
    fn processes_that_a_user_claims_are_of_his_job() {
        let mut record = sample::full(7, "train");
        record.local.as_mut().unwrap().origin = Origin::Time;
        let (start_ns, end_ns) = (5_000_000_000_000, 6_000_000_000_000);
        (record.start_ns, record.end_ns) = (Some(start_ns), Some(end_ns));
        let process = |pid, start_ns| JobProcess {
            pid,
            start_ns,
            uid: Some(0),
            user: Some("root".to_owned()),
            node: Some("other".to_owned()),
            end_ns: Some(i64::MAX),
            cpu_ns: Some(1 << 62),
            memory_peak_bytes: Some(-5),
            read_bytes: Some(7),
            ..JobProcess::default()
        };
        record.processes = vec![process(1, Some(start_ns)), process(2, Some(start_ns / 2)), process(3, None)];
        let summary = |mean: f64| Summary { mean, min: 0.0, max: 1.0, p50: None, p95: Some(1.0) };
        record.summaries.set(CPU, summary(f64::NAN));
        record.summaries.set(READ, summary(0.5));
        (record.nodes, record.node_memory_bytes) = (vec!["a\u{1b}[2J".to_owned()], Some(1));
        verify_end(&Made::default(), &mut record, None, other_user(), true);
        let expected = JobProcess {
            pid: 1,
            start_ns: Some(start_ns),
            uid: Some(other_user().uid),
            user: record.user.clone(),
            read_bytes: Some(7),
            ..JobProcess::default()
        };
        assert_eq!(record.processes, [expected]);
        assert!(record.summaries.get(CPU).is_none() && record.summaries.get(READ).is_some());
        let host = Host::real().unwrap();
        verify_place(&host, &mut record, other_user());
        assert_eq!(record.nodes, [host.facts().hostname.clone()]);
        assert_eq!(record.node_memory_bytes, host.facts().memory_total_bytes);
    }

    #[test]
    fn events_of_a_user_are_those_that_were_asked_for() {
        let host = Host::real().unwrap();
        let in_force = ["r1c2".to_owned(), "cycles:u".to_owned()];
        let is_wanted = wanted_events(&host, &in_force, other_user());
        let wanted = ["r1c2", "cpu_cycles:u", "cycles:u", "page_faults", "evil"].map(&is_wanted);
        assert_eq!(wanted, [true, true, false, false, false], "as records name them");
        let own = Peer { uid: rustix::process::getuid().as_raw(), pid: 1 };
        assert!(wanted_events(&host, &in_force, own)("evil"), "his own daemon");
        let event = |name: &str| EventCount {
            name: name.to_owned(),
            count: 1,
            counted: 1.0,
            kind: QualityKind::Measured,
            source: "x".to_owned(),
        };
        let mut record = sample::full(7, "train");
        record.events = ["r1c2", "page_faults:k", "r7", "evil", "\u{1b}[2J"].map(event).into();
        verify_events(&host, &in_force, &mut record, other_user());
        let names: Vec<&str> = record.events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["r1c2", "page_faults:k"], "one that the job may have begun with, too");
        record.events = (0..200).map(|_| event("page_faults")).collect();
        verify_events(&host, &in_force, &mut record, other_user());
        assert_eq!(record.events.len(), EVENTS_MAX);
    }

    #[test]
    fn only_jobs_of_met_itself_are_announced() {
        let record = sample::full(7, "train");
        assert!(check_kind(&record).is_ok());
        let mut found = record.clone();
        found.local.as_mut().unwrap().origin = Origin::Found;
        let mut elsewhere = record.clone();
        elsewhere.key.cluster = Some("evil".to_owned());
        let mut managed = record;
        managed.key.manager = "slurm".to_owned();
        assert!([found, elsewhere, managed].iter().all(|record| check_kind(record).is_err()));
    }

    fn other_user() -> Peer {
        Peer { uid: rustix::process::getuid().as_raw() + 1, pid: 1 }
    }

    fn claim(paths: &CgroupPaths) -> Record {
        let mut record = sample::full(1, "train");
        record.local.as_mut().unwrap().cgroup = paths.clone();
        record
    }

    #[test]
    fn an_unverified_cgroup_is_not_touched() {
        let paths = CgroupPaths { unified: Some("/sys/fs/cgroup/met-1".into()), ..Default::default() };
        let mut record = claim(&paths);
        record.gpus = vec![GpuUse { uuid: "GPU-of-another".into(), ..GpuUse::default() }];
        record.processes = vec![Default::default()];
        verify_end(&Made::default(), &mut record, None, other_user(), false);
        assert!(record.gpus.is_empty() && record.processes.is_empty());
        let local = record.local.as_ref().unwrap();
        assert!(local.cgroup.is_empty() && local.main.is_none() && local.supervisor.is_none());
        assert_eq!(record.uid, Some(other_user().uid), "a record belongs to its sender");

        let mut made = Made::default();
        made.insert("met-1", other_user(), &paths);
        let mut record = claim(&paths);
        verify_end(&made, &mut record, None, other_user(), false);
        assert_eq!(record.local.unwrap().cgroup, paths);
    }

    #[test]
    fn an_end_cannot_change_what_was_checked_at_the_start() {
        let checked =
            claim(&CgroupPaths { unified: Some("/sys/fs/cgroup/met-1".into()), ..Default::default() });
        let mut record = claim(&CgroupPaths { unified: Some("/var/empty".into()), ..Default::default() });
        verify_end(&Made::default(), &mut record, Some(&checked), other_user(), false);
        assert_eq!(record.local, checked.local);
    }

    #[test]
    fn only_the_supervisor_announces_a_job() {
        let host = Host::real().unwrap();
        let mut record = sample::full(1, "train");
        assert!(verify_start(&host, &Made::default(), &mut record, None, other_user()).is_err());
    }
}
