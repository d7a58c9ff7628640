//! Jobs where there is no batch system: groups of processes, read every few seconds.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use met_core::job::{CgroupPaths, JobKey, Local, Origin, ProcessId, QualityKind, Record, State};
use met_core::job_table::{CPU, PROCESSES};
use met_host::cgroup::{Hierarchies, Mount};
use met_host::{Host, clock};
use met_jobs::cgroup_layouts::Layouts;
use met_jobs::sessions::{
    self, By, Change, Group, GroupId, Grouping, Key, Look, Now, Process, ProcessTable, Rules,
};

use super::registry::Registry;
use super::sampler_thread::Sampling;
use met_config::Place;
use met_config::{Jobs, Plain};
use met_host::users;
use met_jobs::processes;
use met_query::jobs;
use met_store::Writer;

/// A group is a job after ten seconds; a look at a thousand processes costs two milliseconds. While there
/// are jobs their ends are waited for.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// By then the discovery has seen whether there is a resource manager.
const FIRST_LOOK_AFTER: Duration = Duration::from_secs(1);
const LOOK_EVERY_WITH_JOBS: Duration = Duration::from_secs(2);
/// The groups of this machine and the jobs that they are.
pub(super) struct Groups {
    grouping: Grouping,
    table: ProcessTable,
    layouts: Layouts,
    /// New ones are jobs only while no resource manager is there.
    unless_managed: bool,
    /// Groups that would have been jobs by now, had there been no resource manager.
    passed_over: HashSet<GroupId>,
    jobs: HashMap<GroupId, Followed>,
    /// Jobs that an earlier daemon followed, until the first look.
    resumable: Vec<Record>,
    next: Instant,
    /// Where the slices of users are; `None` where units are jobs, which count by themselves.
    slices: Option<Mount>,
    /// Users who had other jobs since the last look: these are in their slices, too.
    busy: HashSet<u32>,
}

struct Followed {
    key: JobKey,
    /// What an earlier daemon had counted of an aggregate.
    before: (i64, i64),
    counts_by_cgroup: bool,
}

impl Groups {
    /// `discovers`: whether jobs of resource managers are discovered.
    pub(super) fn of(host: &Host, jobs: &Jobs, place: &Place, discovers: bool) -> Option<Groups> {
        let by = match jobs.plain {
            Plain::Off => return None,
            Plain::Auto if !place.system || !discovers => return None,
            Plain::Auto | Plain::Session => By::Session,
            Plain::Unit => By::Unit,
            Plain::Group => By::ProcessGroup,
        };
        let slices = Hierarchies::read(host).ok().and_then(|mounts| mounts.unified);
        let rules = Rules {
            job_after_ns: nanoseconds(jobs.plain_after),
            job_cpu_ns: nanoseconds(jobs.plain_cpu),
            ..Rules::new(by, sessions::uid_min(host))
        };
        Some(Groups {
            grouping: Grouping::new(rules),
            slices: slices.filter(|_| by != By::Unit),
            busy: HashSet::new(),
            table: ProcessTable::default(),
            layouts: Layouts::with(jobs.layouts.clone()),
            unless_managed: jobs.plain == Plain::Auto,
            passed_over: HashSet::new(),
            jobs: HashMap::new(),
            resumable: Vec::new(),
            next: Instant::now() + FIRST_LOOK_AFTER,
        })
    }

    /// Whether a user is followed, or was by an earlier daemon.
    fn has_jobs(&self) -> bool {
        !self.jobs.is_empty() || !self.resumable.is_empty()
    }

    /// Looks at the machine and says what changed; nothing while it cannot be read.
    fn look(&mut self, host: &Host, is_ours: &dyn Fn(&Process) -> bool) -> Vec<Change> {
        let mut changes = Vec::new();
        let now = now(host);
        let layouts = &self.layouts;
        let is_job = |path: &Path| layouts.manager_of(path).is_some_and(|manager| manager != "systemd");
        let look = Look { host, now_ns: now.boot_ns, is_managed: &is_job, is_ours };
        match self.table.read(&look) {
            Ok(rows) => {
                self.grouping.look(now, rows, &mut changes);
                self.add_slices(host, now, &mut changes);
            }
            Err(error) => tracing::warn!("processes cannot be listed: {error}"),
        }
        self.table.want(&self.grouping.wanted());
        changes
    }

    /// CPU time in a user's slice that no known process explains was used by unseen processes.
    fn add_slices(&mut self, host: &Host, now: Now, changes: &mut Vec<Change>) {
        let Some(slices) = &self.slices else { return };
        for uid in self.grouping.users() {
            let counted_ns = sessions::slice_cpu_ns(host, slices, uid).filter(|_| !self.busy.contains(&uid));
            match counted_ns {
                Some(cpu_ns) => self.grouping.add_slice_total(uid, cpu_ns, now, changes),
                None => self.grouping.forget_whole(uid),
            }
        }
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn now(host: &Host) -> Now {
    const DAY_NS: i64 = 86_400 * 1_000_000_000;
    Now {
        boot_ns: u64::try_from(clock::boottime_ns()).unwrap_or(0),
        day: clock::realtime_ns().div_euclid(DAY_NS),
        ticks_per_second: u64::try_from(host.facts().ticks_per_second).unwrap_or(100),
    }
}

/// Whether the record is of a group of processes.
pub(super) fn is_plain(record: &Record) -> bool {
    matches!(record.key.manager.as_str(), "session" | "group" | "systemd")
}

/// What a look at the machine says of jobs.
pub(super) enum News {
    /// With the processes that it is sampled by.
    Began {
        record: Box<Record>,
        is_new: bool,
        roots: Vec<ProcessId>,
    },
    Joined(JobKey, ProcessId),
}

impl Groups {
    /// When the processes of this machine are due to be read again.
    pub(super) fn next_look(&self) -> Instant {
        self.next
    }

    /// Jobs of an earlier daemon; after the first look those that are left are over.
    pub(super) fn resume(&mut self, record: Record) {
        self.resumable.push(record);
    }

    /// A look is over; the jobs of an earlier daemon that are not there any more.
    pub(super) fn looked(&mut self) -> Vec<Record> {
        let every = if self.jobs.is_empty() { LOOK_EVERY } else { LOOK_EVERY_WITH_JOBS };
        self.next = Instant::now() + every;
        std::mem::take(&mut self.resumable)
    }

    /// Whether groups that are not jobs yet may become some; `None` if no user is followed.
    pub(super) fn admits(&self, has_resource_manager: bool) -> Option<bool> {
        let is_managed = self.unless_managed && has_resource_manager;
        // Groups that are jobs already are followed to their end.
        (!is_managed || self.has_jobs()).then_some(!is_managed)
    }

    /// Sends all processes of groups to a sampler that knows none of them.
    pub(super) fn send_to(&self, sampling: &Sampling) {
        for (id, followed) in self.jobs.iter().filter(|(_, followed)| !followed.counts_by_cgroup) {
            let members = self.grouping.group(*id).into_iter().flat_map(|group| &group.members);
            members.for_each(|&member| sampling.add_root(&followed.key, member));
        }
    }

    /// `admits`: whether groups that are no jobs yet may become some.
    pub(super) fn follow(
        &mut self,
        host: &Host,
        registry: &Registry,
        writer: &Writer,
        admits: bool,
    ) -> Vec<News> {
        let ours: Vec<u32> = registry.own_processes().collect();
        let others = registry.jobs.values().map(|kept| &kept.record).filter(|record| !is_plain(record));
        self.busy.extend(others.filter_map(|record| record.uid));
        let changes = self.look(host, &|process| ours.contains(&process.id.pid));
        self.busy.clear();
        let mut news = Vec::new();
        if admits {
            for id in std::mem::take(&mut self.passed_over) {
                news.extend(self.began(host, writer, id, admits));
            }
        }
        for change in changes {
            match change {
                Change::Began(id) => news.extend(self.began(host, writer, id, admits)),
                Change::Joined(id, process) => {
                    let followed = self.jobs.get(&id).filter(|followed| !followed.counts_by_cgroup);
                    news.extend(followed.map(|followed| News::Joined(followed.key.clone(), process)));
                }
                Change::Ended(id) => drop(self.passed_over.remove(&id)),
            }
        }
        news
    }

    /// Counts what the jobs have used, and returns those that are over.
    pub(super) fn take_ended(&mut self, registry: &mut Registry) -> Vec<Record> {
        for (id, followed) in &self.jobs {
            if let (Some(group), Some(kept)) =
                (self.grouping.group(*id), registry.jobs.get_mut(&followed.key))
            {
                count(&mut kept.record, group, followed);
            }
        }
        let mut ended = Vec::new();
        for (id, group) in self.grouping.take_ended() {
            let Some(followed) = self.jobs.remove(&id) else { continue };
            let Some(mut record) = registry.jobs.get(&followed.key).map(|kept| kept.record.clone()) else {
                continue;
            };
            count(&mut record, &group, &followed);
            record.end_ns = Some(jobs::now_ns());
            ended.push(record);
        }
        ended
    }

    fn began(&mut self, host: &Host, writer: &Writer, id: GroupId, admits: bool) -> Option<News> {
        let group = self.grouping.group(id)?;
        let mut record = new_record(host, group);
        let continued = self.resumable.iter().position(|other| other.key == record.key);
        if !admits && continued.is_none() {
            self.passed_over.insert(id);
            return None;
        }
        let known = match continued {
            Some(index) => Some(self.resumable.swap_remove(index)),
            None => writer.get(&record.key).ok().flatten(),
        };
        let (is_new, is_rest) = (known.is_none(), matches!(group.key, Key::Rest { .. }));
        let mut before = (0, 0);
        if let Some(known) = known {
            if is_rest {
                before = (known.totals.get(CPU).unwrap_or(0), known.totals.get(PROCESSES).unwrap_or(0));
            }
            record = Record { state: State::Running, end_ns: None, local: record.local, ..known };
        }
        let counts_by_cgroup = record.local.as_ref().is_some_and(|local| !local.cgroup.is_empty());
        let followed = Followed { key: record.key.clone(), before, counts_by_cgroup };
        count(&mut record, group, &followed);
        let roots = if counts_by_cgroup { Vec::new() } else { group.members.clone() };
        self.jobs.insert(id, followed);
        Some(News::Began { record: Box::new(record), is_new, roots })
    }

    /// A job that is no group began: what it does is in the slice of its user, too.
    pub(super) fn note_other_job(&mut self, record: &Record) {
        if let (Some(uid), false) = (record.uid, is_plain(record)) {
            self.busy.insert(uid);
        }
    }
}

/// Writes down what a group has used. A cgroup counts better than its processes do.
fn count(record: &mut Record, group: &Group, followed: &Followed) {
    let kind = if group.attributed { QualityKind::Attributed } else { QualityKind::LowerBound };
    let total = |counted: u64, before: i64| i64::try_from(counted).unwrap_or(i64::MAX).saturating_add(before);
    let (cpu, processes) =
        (total(group.cpu_ns, followed.before.0), total(group.processes_seen, followed.before.1));
    if !followed.counts_by_cgroup {
        let cpu = cpu.max(record.totals.get(CPU).unwrap_or(0));
        record.totals.set(CPU, cpu, kind, "processes");
    }
    record.totals.set(PROCESSES, processes, QualityKind::LowerBound, "processes");
}

fn new_record(host: &Host, group: &Group) -> Record {
    let facts = host.facts();
    let is_rest = matches!(group.key, Key::Rest { .. });
    let first = group.first.filter(|first| host.is_alive(*first));
    let name = match is_rest {
        true => "short processes".to_owned(),
        false => first.and_then(|first| host.process_name(first)).unwrap_or_else(|| group.short_id()),
    };
    let tick_ns = 1_000_000_000 / facts.ticks_per_second;
    let start_ns = group.first.map(|first| {
        i64::try_from(first.start_ticks)
            .unwrap_or(0)
            .saturating_mul(tick_ns)
            .saturating_add(clock::unix_offset_ns())
    });
    let mut record = Record {
        user: users::name_of(group.uid),
        uid: Some(group.uid),
        command: first.map(|first| processes::command_of(host, first.pid)).unwrap_or_default(),
        start_ns: start_ns.or(Some(jobs::now_ns())),
        nodes: vec![facts.hostname.clone()],
        node_memory_bytes: facts.memory_total_bytes,
        local: Some(Local {
            main: first,
            cgroup: cgroup_of(host, &group.key),
            ..Local::new(&facts.boot_id, Origin::Found, "/")
        }),
        ..Record::new(
            JobKey {
                cluster: None,
                manager: manager(&group.key).to_owned(),
                id: group.id(),
                // The id is unique within one boot; that of a day's aggregate is for good.
                incarnation: if is_rest { 0 } else { boot_number(&facts.boot_id) },
            },
            name,
            State::Running,
        )
    };
    record.scheduling.alias = Some(group.short_id());
    record
}

fn manager(key: &Key) -> &'static str {
    match key {
        Key::Session(_) | Key::Rest { .. } => "session",
        Key::ProcessGroup(_) => "group",
        Key::Unit(_) => "systemd",
    }
}

/// The cgroup of a unit, which counts exactly; a session has none of its own.
fn cgroup_of(host: &Host, key: &Key) -> CgroupPaths {
    let Key::Unit(path) = key else { return CgroupPaths::default() };
    let unified = Hierarchies::read(host).ok().and_then(|mounts| mounts.unified?.dir_of(Path::new(path)));
    CgroupPaths { unified: unified.filter(|path| host.cgroup_dir(path).is_ok()), ..CgroupPaths::default() }
}

/// The same number for as long as the machine runs, and hardly ever again.
fn boot_number(boot_id: &str) -> i64 {
    let hash = boot_id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i64::try_from(hash >> 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::query::DaemonQuery;
    use super::super::service::Service;
    use super::*;

    /// A process of a login that began with the machine and leads its session.
    fn log_in(root: &Path, pid: u32) {
        let folder = root.join(format!("proc/{pid}"));
        std::fs::create_dir_all(&folder).unwrap();
        let stat = format!("{pid} (sh) S 1 {pid} {pid} 34816 {pid} 0 0 0 0 0 500 0 0 0 20 0 1 0 1 0 0 0");
        std::fs::write(folder.join("stat"), stat).unwrap();
        std::fs::write(folder.join("status"), "Name:\tsh\nUid:\t4711\t4711\t4711\t4711\n").unwrap();
        std::fs::write(folder.join("loginuid"), "4711").unwrap();
        std::fs::write(folder.join("cgroup"), "0::/\n").unwrap();
    }

    #[test]
    fn groups_that_are_jobs_are_followed_to_their_end_when_a_resource_manager_comes() {
        let root = tempfile::tempdir().unwrap();
        let mut service = super::super::write_retries::tests::service(root.path());
        let place = Place { system: true, ..service.place.clone() };
        let new = Groups::of(&service.host, &met_config::Config::default().jobs, &place, true).unwrap();
        assert!(new.unless_managed);
        service.discovery.groups = Some(new);
        let has_jobs = |service: &Service| service.discovery.groups.as_ref().unwrap().has_jobs();
        let running = |service: &Service| {
            let ids = service.registry.jobs.keys().map(|key| key.id.split('-').next().unwrap().to_owned());
            ids.collect::<std::collections::BTreeSet<String>>()
        };
        let expected = |pids: &[u32]| pids.iter().map(u32::to_string).collect();
        log_in(root.path(), 70);
        service.look_at_groups(true);
        assert_eq!(running(&service), expected(&[70]));
        // A resource manager is there.
        log_in(root.path(), 80);
        service.look_at_groups(false);
        assert_eq!(running(&service), expected(&[70]), "no other group becomes a job");
        assert!(has_jobs(&service));
        std::fs::remove_dir_all(root.path().join("proc/70")).unwrap();
        service.look_at_groups(false);
        assert_eq!(running(&service), expected(&[]), "its end is noticed");
        assert!(!has_jobs(&service));
        let ended = service.recorder.writer.find(Some("session"), "70").unwrap();
        assert_eq!(ended.iter().map(|record| record.state).collect::<Vec<_>>(), [State::Finished]);
        // It is gone again.
        service.look_at_groups(true);
        assert_eq!(running(&service), expected(&[80]));
        // An earlier daemon's job goes on, though there is a resource manager.
        let record = service.registry.jobs.values().next().unwrap().record.clone();
        let mut later = Groups::of(&service.host, &met_config::Config::default().jobs, &place, true).unwrap();
        later.resume(record);
        log_in(root.path(), 90);
        assert!(later.has_jobs());
        service.discovery.groups = Some(later);
        service.look_at_groups(false);
        let later = service.discovery.groups.as_ref().unwrap();
        assert!(later.resumable.is_empty() && later.jobs.len() == 1, "it is continued");
        assert_eq!(later.passed_over.len(), 1);
        service.close();
    }

    #[test]
    fn what_a_look_counted_is_shown_where_a_sample_knows_of_less() {
        let root = tempfile::tempdir().unwrap();
        let mut service = super::super::write_retries::tests::service(root.path());
        let place = Place { system: true, ..service.place.clone() };
        service.discovery.groups =
            Groups::of(&service.host, &met_config::Config::default().jobs, &place, true);
        log_in(root.path(), 70);
        service.look_at_groups(true);
        let key = service.registry.jobs.keys().next().unwrap().clone();
        let begin = Instant::now();
        while service.sampling.live().get(&key).is_none_or(|live| live.totals.get(CPU).is_none()) {
            assert!(begin.elapsed() < Duration::from_secs(60), "it is sampled");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Others of the group came and went.
        let counted = &mut service.registry.jobs.get_mut(&key).unwrap().record.totals;
        let (cpu, processes) = (counted.get(CPU).unwrap() + 4_000_000_000, 12);
        counted.set(CPU, cpu, QualityKind::LowerBound, "processes");
        counted.set(PROCESSES, processes, QualityKind::LowerBound, "processes");
        let viewer = met_query::viewer::Viewer::Everything;
        let daemon = DaemonQuery::of(&mut service);
        let (page, _) = met_query::query::Query::jobs(&daemon, &viewer, &Default::default()).unwrap();
        let shown = &page.jobs[0].totals;
        assert_eq!((shown.get(CPU), shown.get(PROCESSES)), (Some(cpu), Some(processes)));
        service.close();
    }

    #[test]
    fn a_boot_has_its_own_number() {
        let [one, other] = ["0f1c", "0f1d"].map(boot_number);
        assert!(one != other && one >= 0 && other >= 0);
        assert_eq!(one, boot_number("0f1c"));
    }
}
