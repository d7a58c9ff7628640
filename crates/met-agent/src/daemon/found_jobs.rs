//! Jobs of other managers, from their discovery to their end.

use std::collections::{BTreeSet, HashMap, HashSet};

use met_core::job::Totals;
use met_core::job::{CgroupPaths, Figure, JobKey, Local, Origin, Part, QualityKind, Record, State};
use met_core::job_table::{CPU, MEMORY_PEAK, OOM_KILLS, WALL};
use met_host::Host;
use met_jobs::cgroup_layouts::{Captures, Layouts};
use met_jobs::discover::{Ended, Event, Found};
use met_jobs::identity::{self, Question};
use met_store::Writer;

use super::discovery_thread::Finder;
use super::identifying::Unidentified;
use super::perf_cgroups::PerfCgroups;
use super::process_groups::Groups;
use super::registry::Registry;
use super::sampler_thread::Sampling;
use met_config::{Config, Place, Presence};
use met_host::users;
use met_query::jobs;
use met_query::setting::Setting;

/// Jobs that others start: how they are found, and what is known of them beside their records.
pub(super) struct Discovery {
    pub(super) finding: Option<Finder>,
    /// The jobs that the discovery follows, by its numbers for them.
    pub(super) found: HashMap<u64, Directory>,
    pub(super) layouts: Layouts,
    /// Jobs that are not identified yet.
    pub(super) asking: Vec<Unidentified>,
    /// Groups of processes, where there is no batch system.
    pub(super) groups: Option<Groups>,
    /// Where events of jobs are counted that have no v2 cgroup.
    pub(super) perf_cgroups: PerfCgroups,
}

impl Discovery {
    pub(super) fn of(setting: &Setting, place: &Place) -> Discovery {
        Discovery {
            finding: None,
            found: HashMap::new(),
            layouts: setting.layouts(),
            asking: Vec::new(),
            groups: Groups::of(&setting.host, &setting.config.jobs, place, discovers(&setting.config, place)),
            perf_cgroups: PerfCgroups::default(),
        }
    }

    /// What was seen since the last call.
    pub(super) fn take(&self) -> Vec<Event> {
        self.finding.as_ref().map(|finding| finding.take()).unwrap_or_default()
    }

    pub(super) fn has_resource_manager(&self) -> bool {
        self.finding.as_ref().is_some_and(|finding| !finding.health().managers.is_empty())
    }

    /// Follows a directory of a job, with what an earlier daemon saw end in it.
    pub(super) fn follow(&mut self, found: &Found, record: &Record) {
        let before = record.local.iter().flat_map(|local| &local.folded);
        let folded = before.filter(|part| part.node == node_of(found)).cloned().collect();
        self.found.insert(found.job, Directory { folded, ..Directory::of(found, record.key.clone()) });
    }

    /// Follows a directory of another node on this machine, if a job that runs has it.
    pub(super) fn follow_another_node<'a>(
        &mut self,
        found: &Found,
        registry: &'a mut Registry,
    ) -> Option<&'a Record> {
        let is_it = |key: &JobKey| key.manager == found.manager && key.id == found.id;
        let node = node_of(found);
        let other = self.found.values().find(|other| is_it(&other.key) && other.node != node);
        let key = other.map(|other| other.key.clone())?;
        let kept = registry.jobs.get_mut(&key)?;
        if !kept.record.nodes.contains(&node) {
            kept.record.nodes.push(node);
        }
        if let Some(local) = &mut kept.record.local
            && local.cgroup != found.cgroup
            && !local.more_cgroups.contains(&found.cgroup)
        {
            local.more_cgroups.push(found.cgroup.clone());
        }
        self.found.insert(found.job, Directory::of(found, key));
        Some(&kept.record)
    }

    pub(super) fn put_parts(&self, job: u64, parts: Vec<Part>, registry: &mut Registry) {
        let Some(directory) = self.found.get(&job) else { return };
        if let Some(kept) = registry.jobs.get_mut(&directory.key) {
            directory.put_parts_of(&mut kept.record, parts);
        }
    }

    /// The name by which a job is known, if its manager calls it otherwise.
    pub(super) fn other_name(&self, job: u64, id: &str) -> Option<JobKey> {
        self.found.get(&job).map(|directory| directory.key.clone()).filter(|old| old.id != id)
    }

    pub(super) fn rename(&mut self, old: &JobKey, new: &JobKey) {
        for directory in self.found.values_mut().filter(|directory| directory.key == *old) {
            directory.key = new.clone();
        }
        self.perf_cgroups.rename(old, new);
    }

    /// A directory is gone: the record of its job if that was the last one, added up from all of them.
    pub(super) fn leave(
        &mut self,
        ended: Ended,
        registry: &mut Registry,
        sampling: &Sampling,
    ) -> Option<Record> {
        let directory = self.found.remove(&ended.job)?;
        let kept = registry.jobs.get_mut(&directory.key)?;
        directory.put_parts_of(&mut kept.record, ended.parts.clone());
        let Directory { key, node, start_ns, cgroup, .. } = directory;
        let cpu_ns = ended.cpu.as_ref().map(|cpu| cpu.value);
        kept.gone.push(Gone { node, start_ns, ended });
        if self.found.values().any(|other| other.key == key) {
            sampling.leave_cgroup(&key, cgroup, cpu_ns);
            return None;
        }
        let mut record = kept.record.clone();
        add_up(&mut record, &kept.gone);
        Some(record)
    }
}

/// A system daemon follows the jobs of all users; a user's daemon follows that user's, unless configured otherwise.
pub(super) fn discovers(config: &Config, place: &Place) -> bool {
    match config.jobs.discover {
        Presence::Auto => place.system,
        Presence::Yes => true,
        Presence::No => false,
    }
}

/// The record of a job that was not known, by the name that it has so far.
pub(super) fn new_record(host: &Host, registry: &Registry, writer: &Writer, found: &Found) -> Record {
    let key = JobKey {
        cluster: None,
        manager: found.manager.clone(),
        id: found.id.clone(),
        incarnation: found.start_ns.div_euclid(1_000_000_000),
    };
    let key = registry.free_key(writer, key);
    let (facts, name) = (host.facts(), key.id.clone());
    let mut record = Record {
        start_ns: Some(found.start_ns),
        node_memory_bytes: facts.memory_total_bytes,
        local: Some(Local { cgroup: found.cgroup.clone(), ..Local::new(&facts.boot_id, Origin::Found, "/") }),
        ..Record::new(key, name, State::Running)
    };
    describe(&found.captures, &mut record);
    if found.captures.sluid.is_some() && found.captures.sluid.as_ref() != Some(&found.id) {
        // Its number is what its processes said: whose they are is known before it is joined with another's.
        record.uid = record.uid.or_else(|| user_inside(host, found));
        record.user = record.user.or_else(|| users::name_of(record.uid?));
    }
    record
}

/// How it ended only its manager knows; that it was killed for its memory, the kernel, too.
pub(super) fn end(record: &mut Record) {
    let killed = record.totals.get(OOM_KILLS).is_some_and(|kills| kills > 0);
    record.state = if killed { State::OutOfMemory } else { State::Finished };
    if let Some(wall_ns) = record.wall_ns(jobs::now_ns()) {
        record.totals.set(WALL, wall_ns, QualityKind::Measured, "cgroup");
    }
}

/// A directory that the discovery follows. A job has one on each of its nodes, and several nodes may be one
/// machine.
pub(super) struct Directory {
    pub(super) key: JobKey,
    pub(super) node: String,
    pub(super) cgroup: CgroupPaths,
    start_ns: i64,
    /// Parts without a line of their own that an earlier daemon saw end.
    folded: Vec<Part>,
}

impl Directory {
    fn of(found: &Found, key: JobKey) -> Directory {
        Directory {
            key,
            node: node_of(found),
            cgroup: found.cgroup.clone(),
            start_ns: found.start_ns,
            folded: Vec::new(),
        }
    }

    fn put_parts_of(&self, record: &mut Record, parts: Vec<Part>) {
        let folded = self.put_parts(&mut record.parts, parts);
        if let Some(local) = &mut record.local {
            local.folded.retain(|part| part.node != self.node);
            local.folded.extend(folded);
        }
    }

    /// Brings the parts of a job up to date. The discovery reports all it knows each time; parts an earlier daemon
    /// saw are added, and parts beyond the limit are folded into one line. Those of them that have ended are
    /// returned: the next daemon does not see them.
    fn put_parts(&self, known: &mut Vec<Part>, seen: Vec<Part>) -> Vec<Part> {
        known.retain(|part| part.folded.is_none() || part.node != self.node);
        let lines_before: HashSet<Name> =
            known.iter().filter(|part| part.folded.is_none()).map(name).collect();
        let mut room = LINES_MAX.saturating_sub(lines_before.len());
        let (mut lines, mut others, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for part in seen.iter().chain(&self.folded) {
            let has_line = part.folded.is_none() && (lines_before.contains(&name(part)) || room > 0);
            if has_line {
                room = room.saturating_sub(usize::from(!lines_before.contains(&name(part))));
                lines.push(part.clone());
                continue;
            }
            fold(&mut others, part);
            if part.end_ns.is_some() {
                fold(&mut ended, part);
            }
        }
        lines.extend(others);
        put_parts(known, lines);
        ended
    }
}

/// Adds a part to those of its kind that have a line together.
fn fold(others: &mut Vec<Part>, part: &Part) {
    let of_tasks = part.task.is_some();
    match others.iter_mut().find(|others| others.task.is_some() == of_tasks) {
        Some(others) => others.take_in(part),
        None => {
            let mut fresh = Part::others(part.node.clone(), of_tasks);
            fresh.take_in(part);
            others.push(fresh);
        }
    }
}

/// Parts of a job that have a line of their own. One daemon gives half as many on each node.
const LINES_MAX: usize = 512;

/// What a job did in a directory that is gone.
pub(super) struct Gone {
    node: String,
    start_ns: i64,
    ended: Ended,
}

fn node_of(found: &Found) -> String {
    found.captures.node.clone().unwrap_or_default()
}

/// The user whose processes are in a job; its manager's own are there first.
fn user_inside(host: &Host, found: &Found) -> Option<u32> {
    let question = Question {
        manager: &found.manager,
        id: &found.id,
        uid: None,
        user: None,
        cgroup: &found.cgroup,
        pids: &found.pids,
    };
    identity::identify(host, &question).uid.filter(|&uid| uid != 0)
}

type Name<'a> = (&'a str, &'a str, Option<&'a str>);

fn name(part: &Part) -> Name<'_> {
    (&part.node, &part.step, part.task.as_deref())
}

/// Parts as they are now in the place of what was known of the same ones.
pub(super) fn put_parts(parts: &mut Vec<Part>, now: Vec<Part>) {
    let at: HashMap<Name, usize> = parts.iter().enumerate().map(|(at, part)| (name(part), at)).collect();
    let places: Vec<Option<usize>> = now.iter().map(|part| at.get(&name(part)).copied()).collect();
    for (mut part, place) in now.into_iter().zip(places) {
        match place.and_then(|place| parts.get_mut(place)) {
            Some(known) => {
                part.name = part.name.or(known.name.take());
                part.exit_code = part.exit_code.or(known.exit_code);
                *known = part;
            }
            None => parts.push(part),
        }
    }
}

/// The end of a job from those of its directories: what it did is the sum, and each node has a part of it.
fn add_up(record: &mut Record, gone: &[Gone]) {
    record.end_ns = gone.iter().map(|gone| gone.ended.end_ns).max();
    let ends = || gone.iter().map(|gone| &gone.ended);
    let figures = [
        (CPU, sum(ends().map(|ended| ended.cpu.as_ref()))),
        (MEMORY_PEAK, highest(ends().map(|ended| ended.memory_peak.as_ref()))),
        (OOM_KILLS, sum(ends().map(|ended| ended.oom_kills.as_ref()))),
    ];
    for (column, figure) in figures {
        if let Some(figure) = figure {
            record.totals.set(column, figure.value, figure.kind, figure.source);
        }
    }
    let nodes: BTreeSet<&str> = gone.iter().map(|gone| gone.node.as_str()).collect();
    if nodes.len() > 1 {
        let on_nodes = nodes.into_iter().map(|node| part_on(node, gone)).collect();
        put_parts(&mut record.parts, on_nodes);
    }
}

fn part_on(node: &str, gone: &[Gone]) -> Part {
    let here = || gone.iter().filter(|gone| gone.node == node);
    let mut totals = Totals::default();
    let figures = [
        (CPU, sum(here().map(|gone| gone.ended.cpu.as_ref()))),
        (MEMORY_PEAK, highest(here().map(|gone| gone.ended.memory_peak.as_ref()))),
    ];
    for (column, figure) in figures {
        if let Some(figure) = figure {
            totals.set(column, figure.value, figure.kind, figure.source);
        }
    }
    Part {
        node: node.to_owned(),
        start_ns: here().map(|gone| gone.start_ns).min(),
        end_ns: here().map(|gone| gone.ended.end_ns).max(),
        totals,
        ..Part::default()
    }
}

/// As good as the worst of them; at least this much where one of them is not known.
fn sum<'a>(figures: impl Iterator<Item = Option<&'a Figure>>) -> Option<Figure> {
    let figures: Vec<Option<&Figure>> = figures.collect();
    let known: Vec<&Figure> = figures.iter().flatten().copied().collect();
    let worst =
        [QualityKind::LowerBound, QualityKind::Estimated, QualityKind::Sampled, QualityKind::Attributed];
    let kind = worst.into_iter().find(|kind| known.iter().any(|figure| figure.kind == *kind));
    let kind = match known.len() == figures.len() {
        true => kind.unwrap_or(QualityKind::Measured),
        false => QualityKind::LowerBound,
    };
    let source = known.first()?.source.clone();
    Some(Figure { value: known.iter().map(|figure| figure.value).sum(), kind, source })
}

/// Nodes need not have been at their highest at once: together they had at least as much as one of them.
fn highest<'a>(figures: impl Iterator<Item = Option<&'a Figure>>) -> Option<Figure> {
    let figures: Vec<Option<&Figure>> = figures.collect();
    let highest = figures.iter().flatten().max_by_key(|figure| figure.value)?;
    let kind = if figures.len() == 1 { highest.kind } else { QualityKind::LowerBound };
    Some(Figure { kind, ..(*highest).clone() })
}

/// What the path of its cgroup contains about a job.
fn describe(captures: &Captures, record: &mut Record) {
    let Captures { uid, user, node, cluster, index, .. } = captures;
    record.uid = uid.or_else(|| users::uid_of(user.as_deref()?));
    record.user = user.clone().or_else(|| users::name_of(record.uid?));
    record.nodes = node.iter().cloned().collect();
    record.scheduling.cluster.clone_from(cluster);
    record.scheduling.array_index = index.as_ref().and_then(|index| index.parse().ok());
}

/// A restarted daemon finds its jobs again: the same directories, within one boot.
pub(super) fn is_same(host: &Host, record: &Record, found: &Found) -> bool {
    let Some(local) = &record.local else { return false };
    // Of a job on several nodes of this machine any of them may be found first.
    let on_its_node = record.nodes.len() > 1 && record.nodes.contains(&node_of(found));
    record.key.manager == found.manager
        && local.boot_id == host.facts().boot_id
        && match &found.captures.sluid {
            // What its manager calls it may have been found out before, or now.
            Some(_) => local.cgroup == found.cgroup,
            None => record.key.id == found.id && (local.cgroup == found.cgroup || on_its_node),
        }
}

#[cfg(test)]
#[path = "found_gpu_tests.rs"]
mod gpu_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn a_path_that_is_no_text_survives_the_store() {
        let odd = std::path::PathBuf::from(std::ffi::OsString::from_vec(b"/cg/\xff\n".to_vec()));
        let paths = CgroupPaths { unified: Some(odd), memory: Some("/cg/plain".into()), cpuacct: None };
        let text = serde_json::to_string(&paths).unwrap();
        assert_eq!(serde_json::from_str::<CgroupPaths>(&text).unwrap(), paths);
        assert!(text.contains("\"memory\":\"/cg/plain\""), "{text}");
    }

    fn gone(node: &str, cpu: Option<(i64, QualityKind)>, peak: i64, end_ns: i64) -> Gone {
        let figure = |value, kind| Figure { value, kind, source: "cgroup ancestor".into() };
        let ended = Ended {
            job: 1,
            end_ns,
            cpu: cpu.map(|(value, kind)| figure(value, kind)),
            memory_peak: Some(figure(peak, QualityKind::Measured)),
            oom_kills: None,
            parts: Vec::new(),
        };
        Gone { node: node.to_owned(), start_ns: 5, ended }
    }

    #[test]
    fn a_job_on_two_nodes_of_one_machine_is_the_sum_of_both() {
        use QualityKind::{Attributed, LowerBound, Measured};
        let mut record = met_core::sample::bare(1, "x");
        let one = [gone("n1", Some((7, Measured)), 100, 20)];
        add_up(&mut record, &one);
        assert_eq!((record.totals.get(CPU), record.end_ns), (Some(7), Some(20)));
        assert_eq!(record.totals.figure(MEMORY_PEAK).map(|peak| peak.kind), Some(Measured));
        assert!(record.parts.is_empty(), "one node is the whole job");

        let two = [
            gone("n1", Some((7, Measured)), 100, 20),
            gone("n2", Some((5, Attributed)), 300, 10),
            gone("n2", Some((1, Measured)), 50, 15),
        ];
        add_up(&mut record, &two);
        let cpu = record.totals.figure(CPU).unwrap();
        assert_eq!((cpu.value, cpu.kind, record.end_ns), (13, Attributed, Some(20)));
        let peak = record.totals.figure(MEMORY_PEAK).unwrap();
        assert_eq!((peak.value, peak.kind), (300, LowerBound));
        let parts: Vec<_> =
            record.parts.iter().map(|part| (&*part.node, part.totals.get(CPU), part.end_ns)).collect();
        assert_eq!(parts, [("n1", Some(7), Some(20)), ("n2", Some(6), Some(15))]);

        let unknown = [gone("n1", Some((7, Measured)), 1, 20), gone("n2", None, 1, 20)];
        add_up(&mut record, &unknown);
        assert_eq!(record.totals.figure(CPU).map(|cpu| cpu.kind), Some(LowerBound));
    }

    #[test]
    fn parts_are_brought_up_to_date_and_keep_what_others_reported() {
        let part = |step: &str, name: Option<&str>, end_ns| Part {
            node: "n1".to_owned(),
            step: step.to_owned(),
            name: name.map(str::to_owned),
            end_ns,
            ..Part::default()
        };
        let mut parts = vec![part("0", Some("solve"), None), part("met:7", None, None)];
        put_parts(&mut parts, vec![part("batch", None, None), part("0", None, Some(9))]);
        let expected =
            [part("0", Some("solve"), Some(9)), part("met:7", None, None), part("batch", None, None)];
        assert_eq!(parts, expected);
    }

    fn directory_with(folded: &[Part]) -> Directory {
        Directory {
            key: met_core::sample::bare(1, "x").key,
            node: "n1".to_owned(),
            cgroup: CgroupPaths::default(),
            start_ns: 0,
            folded: folded.to_vec(),
        }
    }

    #[test]
    fn tasks_that_live_through_many_daemons_count_once() {
        let task = |number: usize, end_ns: Option<i64>| {
            let (node, step, task) = ("n1".to_owned(), "0".to_owned(), Some(number.to_string()));
            let mut part = Part { node, step, task, start_ns: Some(1), end_ns, ..Part::default() };
            part.totals.set(CPU, 10, QualityKind::Sampled, "cgroup");
            part
        };
        let others = |count: usize, end_ns: Option<i64>| {
            let mut others = Part::others("n1".to_owned(), true);
            (0..count).for_each(|number| others.take_in(&task(number, end_ns)));
            others
        };
        let mut record = met_core::sample::full(1, "x");
        record.parts.clear();
        let mut ended = 0;
        for daemon in 0..4 {
            let directory = directory_with(&record.local.as_ref().unwrap().folded);
            // 300 live and stay; each daemon sees 5 others end.
            ended += 5;
            for _ in 0..3 {
                let seen = (0..256).map(|number| task(number, None));
                let seen = seen.chain([others(5, Some(9)), others(44, None)]).collect();
                directory.put_parts_of(&mut record, seen);
                let folded = record.parts.iter().filter(|part| part.folded.is_some());
                let folded: Vec<_> = folded.map(|part| (part.folded, part.totals.get(CPU))).collect();
                assert_eq!(folded, [(Some(44 + ended), Some(440 + 10 * ended as i64))], "daemon {daemon}");
                assert_eq!(record.parts.len(), 257);
            }
            // It is the record that the next one reads.
            record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        }
        let directory = directory_with(&record.local.as_ref().unwrap().folded);
        directory.put_parts_of(&mut record, vec![task(7, None)]);
        let others = record.parts.iter().find(|part| part.folded.is_some()).unwrap();
        assert_eq!((others.folded, others.end_ns), (Some(20), Some(9)), "the rest ended unobserved");
    }

    #[test]
    fn parts_of_many_daemons_are_as_few_and_count_all() {
        let part = |step: usize| {
            let mut part = Part {
                node: "n1".to_owned(),
                step: step.to_string(),
                start_ns: Some(step as i64),
                end_ns: Some(step as i64 + 1),
                ..Part::default()
            };
            part.totals.set(CPU, 10, QualityKind::Measured, "cgroup");
            part
        };
        let all = |parts: &[Part]| {
            let counts = parts.iter().map(|part| (part.folded.unwrap_or(1), part.totals.get(CPU).unwrap()));
            counts.fold((0, 0), |sum, (count, cpu)| (sum.0 + count, sum.1 + cpu))
        };
        let mut parts: Vec<Part> = Vec::new();
        let mut folded: Vec<Part> = Vec::new();
        for daemon in 0..4 {
            let begin = daemon * 300;
            let directory = directory_with(&folded);
            let mut others = Part::others("n1".to_owned(), false);
            (begin + 250..begin + 300).for_each(|step| others.take_in(&part(step)));
            for _ in 0..3 {
                let seen = (begin..begin + 250).map(part).chain([others.clone()]).collect();
                folded = directory.put_parts(&mut parts, seen);
                let count = begin as u64 + 300;
                assert_eq!(all(&parts), (count, 10 * count as i64), "however often it is reported");
            }
        }
        assert_eq!(parts.len(), LINES_MAX + 1);
        let others = parts.iter().find(|part| part.folded.is_some()).unwrap();
        assert_eq!((others.folded, others.end_ns), (Some(1200 - LINES_MAX as u64), Some(1200)));
    }

    #[test]
    fn the_user_inside_is_not_the_managers_root() {
        let root = tempfile::tempdir().unwrap();
        for (pid, uid) in [(70, 0), (71, 1000)] {
            let folder = root.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&folder).unwrap();
            let zeros = "0 ".repeat(17);
            std::fs::write(folder.join("stat"), format!("{pid} (x) S 1 {zeros}{pid} 0")).unwrap();
            let status = format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
            std::fs::write(folder.join("status"), status).unwrap();
        }
        std::fs::write(root.path().join("proc/stat"), "cpu 0 0 0 0\n").unwrap();
        std::fs::write(root.path().join("proc/meminfo"), "MemTotal: 8000000 kB\n").unwrap();
        let host = Host::at(root.path()).unwrap();
        let mut found = Found {
            job: 1,
            manager: "slurm".to_owned(),
            id: "12".to_owned(),
            captures: Captures::default(),
            cgroup: CgroupPaths::default(),
            start_ns: 0,
            pids: vec![70, 71],
        };
        assert_eq!(user_inside(&host, &found), Some(1000));
        found.pids.pop();
        assert_eq!(user_inside(&host, &found), None);
    }

    #[test]
    fn the_owner_is_whom_the_path_names() {
        let mut record = met_core::sample::full(1, "x");
        describe(&Captures { user: Some("root".to_owned()), ..Captures::default() }, &mut record);
        assert_eq!((record.uid, record.user.as_deref()), (Some(0), Some("root")));
        describe(&Captures { uid: Some(0), node: Some("n1".to_owned()), ..Captures::default() }, &mut record);
        assert_eq!((record.uid, record.user.as_deref()), (Some(0), Some("root")));
        assert_eq!(record.nodes, ["n1"]);
        describe(&Captures::default(), &mut record);
        assert_eq!((record.uid, record.user.as_deref()), (None, None));
    }
}
