//! Which process belongs to which job: by its cgroup, else by its ancestors, and once a member, always.

pub(crate) mod cgroups;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use met_core::attribute::JobMap;
use met_core::job::{CgroupPaths, ProcessId};
use met_core::{FastMap, Subject, Unparsed};
use met_host::parse::Stat;
use met_host::{CgroupTarget, Dir, Host, Look, PidPath, Targets, TaskRole, TaskTarget, parse};

use cgroups::{Cgroup, main_path};

/// A listing does not reveal every reused pid: each process is read again once in this many refreshes.
const VERIFY_REFRESHES: u64 = 60;
/// For as long a job is young, which covers the time to the first slow tick.
const YOUNG_REFRESHES: u64 = 10;
/// Deeper trees of processes or cgroups are a bug or an attack.
const DEPTH_LIMIT: usize = 1 << 12;

/// Where a job's processes are to be found.
#[derive(Clone, Debug, Default)]
pub struct JobSpec {
    /// The name of the job in the sampler; used once.
    pub slot: u32,
    /// The supervisor: every descendant of it is a member, itself it is not.
    pub supervisor: Option<ProcessId>,
    /// Members to begin with: the main process, a process that was attached to.
    pub roots: Vec<ProcessId>,
    /// If it has any, exactly the processes in it and below are members.
    pub cgroup: CgroupPaths,
    /// The same for its other nodes, where these are one machine.
    pub more_cgroups: Vec<CgroupPaths>,
}

/// The processes of all jobs. `refresh` reads the machine, `fill` writes the result into batches.
#[derive(Default)]
pub struct Members {
    jobs: Vec<Job>,
    /// Positions in `jobs` by slot, slots by supervisor and by root: all are looked up for every process.
    index: FastMap<u32, usize>,
    supervisors: FastMap<ProcessId, u32>,
    roots: FastMap<ProcessId, u32>,
    outer_due: bool,
    known: FastMap<u32, Known>,
    generation: u64,
    living: Vec<(ProcessId, u32)>,
    listed: Vec<(u32, u64)>,
    chain: Vec<u32>,
    reading: Reading,
    /// Names of programs to look for.
    wanted: Option<fn(&[u8]) -> bool>,
}

#[derive(Default)]
struct Reading {
    buffer: Vec<u8>,
    unparsed: Unparsed,
}

impl Reading {
    /// Nothing for a process that has ended, and for a file that is none of a process, which is counted.
    fn stat(&mut self, host: &Host, pid: u32) -> Option<Stat<'_>> {
        host.proc_dir().read(PidPath::new(pid, "stat").as_path(), &mut self.buffer).ok()?;
        let stat = parse::stat(&self.buffer);
        self.unparsed.expect(stat.is_some(), || format!("/proc/{pid}/stat"));
        stat
    }
}

#[derive(Default)]
struct Job {
    spec: JobSpec,
    outer: Option<u32>,
    /// In the order of its paths.
    cgroups: Vec<Option<Cgroup>>,
    /// Where its events are counted, if not in its cgroup.
    counted_in: Option<Arc<Dir>>,
    /// The depth of its cgroup.
    depth: usize,
    added: u64,
    young: bool,
    was_read_in_full: bool,
    processes_seen: u64,
    has_named: bool,
}

#[derive(Default)]
struct Known {
    start_ticks: u64,
    parent_pid: u32,
    /// Of its directory in /proc: a new process has a new one, so most reused pids show in the listing.
    inode: u64,
    seen: u64,
    /// The job by ancestry, and whether the ancestors were all there to decide it.
    tree: Option<u32>,
    decided: bool,
    /// The job by cgroup, as of the refresh in which it was seen there.
    group: Option<u32>,
    grouped: u64,
    /// The job that counted it among its processes.
    counted: Option<u32>,
    /// Has a name that was looked for.
    is_wanted: bool,
    is_seen_again: bool,
}

impl Members {
    pub fn new() -> Members {
        Members::default()
    }

    /// Notes which jobs have a process whose name fits.
    pub fn looking_for(wanted: fn(&[u8]) -> bool) -> Members {
        Members { wanted: Some(wanted), ..Members::default() }
    }

    /// Whether a process of the job, or of one inside it, had a name that was looked for.
    pub fn has_named(&self, slot: u32) -> bool {
        self.jobs.iter().any(|job| job.has_named && self.is_inside(job.spec.slot, slot))
    }

    /// Processes that could not be identified.
    pub fn unparsed(&mut self) -> &mut Unparsed {
        &mut self.reading.unparsed
    }

    /// Takes up a job; `refresh` finds its processes.
    pub fn add(&mut self, spec: JobSpec) {
        let first_start = spec.supervisor.iter().chain(&spec.roots).map(|process| process.start_ticks).min();
        // Processes older than its first one cannot be in it and keep their job. A job that is only a cgroup
        // changes nothing.
        for known in self.known.values_mut().filter(|_| first_start.is_some()) {
            known.decided &= first_start.is_some_and(|start_ticks| known.start_ticks < start_ticks);
        }
        // Jobs come by the hundred: what is known of the others stays as it is.
        let (slot, index) = (spec.slot, self.jobs.len());
        self.index.insert(slot, index);
        self.supervisors.extend(spec.supervisor.map(|supervisor| (supervisor, slot)));
        for &root in &spec.roots {
            self.roots.entry(root).or_insert(slot);
        }
        self.outer_due = true;
        self.jobs.push(Job::new(spec, self.generation));
    }

    /// Adds a process that was found in another way to those the job began with.
    pub fn add_root(&mut self, slot: u32, root: ProcessId) {
        let Some(&index) = self.index.get(&slot) else { return };
        self.jobs[index].spec.roots.push(root);
        self.roots.entry(root).or_insert(slot);
        for known in self.known.values_mut() {
            known.decided &= known.start_ticks < root.start_ticks;
        }
    }

    /// Adds the directories of one more node.
    pub fn add_cgroup(&mut self, slot: u32, paths: CgroupPaths) {
        let Some(&index) = self.index.get(&slot) else { return };
        let job = &mut self.jobs[index];
        if job.spec.cgroup != paths && !job.spec.more_cgroups.contains(&paths) {
            job.spec.more_cgroups.push(paths);
            self.outer_due = true;
        }
    }

    /// Forgets directories that were added.
    pub fn drop_cgroup(&mut self, slot: u32, paths: &CgroupPaths) {
        let Some(&index) = self.index.get(&slot) else { return };
        let job = &mut self.jobs[index];
        if let Some(at) = job.spec.more_cgroups.iter().position(|known| known == paths) {
            job.spec.more_cgroups.remove(at);
            if at + 1 < job.cgroups.len() {
                job.cgroups.remove(at + 1);
            }
        }
    }

    /// Whether these directories are of any job.
    pub fn has_cgroup(&self, paths: &CgroupPaths) -> bool {
        let main = main_path(paths);
        self.jobs.iter().flat_map(Job::paths).any(|known| main.is_some() && main_path(known) == main)
    }

    /// The supervisor of a job.
    pub fn supervisor(&self, slot: u32) -> Option<ProcessId> {
        self.job(slot)?.spec.supervisor
    }

    /// The cgroups of a job that were there when they were first looked for: what they are called in readings.
    pub fn cgroup_id(&self, slot: u32, paths: &CgroupPaths) -> Option<u64> {
        let job = self.job(slot)?;
        let at = job.paths().position(|known| known == paths)?;
        job.cgroups.get(at)?.as_ref().map(|cgroup| cgroup.dirs.id)
    }

    /// Lets the events of a job be counted in another directory than its own.
    pub fn count_in(&mut self, slot: u32, dir: Option<Arc<Dir>>) {
        if let Some(&index) = self.index.get(&slot) {
            self.jobs[index].counted_in = dir;
        }
    }

    /// Forgets a job. What is left of it belongs to the job around it, if there is one.
    pub fn remove(&mut self, slot: u32) {
        let Some(&index) = self.index.get(&slot) else { return };
        let outer = self.jobs.swap_remove(index).outer;
        self.reindex();
        for job in self.jobs.iter_mut().filter(|job| job.outer == Some(slot)) {
            job.outer = outer;
        }
        for known in self.known.values_mut() {
            for belongs in [&mut known.tree, &mut known.group, &mut known.counted] {
                if *belongs == Some(slot) {
                    *belongs = outer;
                }
            }
        }
        self.living.retain_mut(|(_, owner)| {
            *owner = if *owner == slot { outer.unwrap_or(slot) } else { *owner };
            *owner != slot
        });
    }

    /// Reads the machine: which processes live, and which job each belongs to.
    pub fn refresh(&mut self, host: &Host) -> io::Result<()> {
        self.refresh_some(host, |_| true)
    }

    /// The same for some jobs: the cgroups of the others are taken to have the processes that they had. Jobs nested
    /// in each other are refreshed together.
    pub fn refresh_some(&mut self, host: &Host, is_due: impl Fn(u32) -> bool) -> io::Result<()> {
        self.generation += 1;
        let before = std::mem::take(&mut self.living);
        self.listed.clear();
        if self.jobs.is_empty() {
            self.known.clear();
            return Ok(());
        }
        let lists_all = self.jobs.iter().any(|job| job.spec.cgroup.is_empty());
        if lists_all {
            self.list_processes(host)?;
        }
        self.list_cgroups(host, &is_due);
        self.keep_listed(before, |slot| !is_due(slot), lists_all);
        let generation = self.generation;
        self.known.retain(|_, known| known.seen == generation);
        self.find_outer_jobs();
        for index in 0..self.listed.len() {
            self.decide(self.listed[index].0);
        }
        for index in 0..self.listed.len() {
            self.settle(self.listed[index].0);
        }
        self.mark_young();
        Ok(())
    }

    /// A job that was read in full is not young any more, however rarely it is refreshed.
    pub fn was_read_in_full(&mut self, slot: u32) {
        if let Some(&index) = self.index.get(&slot) {
            self.jobs[index].was_read_in_full = true;
        }
    }

    /// Reports what the last refresh saw.
    pub fn fill(&self, targets: &mut Targets, map: &mut JobMap) {
        targets.clear();
        map.clear();
        for job in &self.jobs {
            let (slot, young) = (job.spec.slot, job.young);
            map.add_job(slot, job.outer);
            // It replaces the first; it is not counted twice.
            let mut counted_in = job.counted_in.clone();
            for cgroup in job.cgroups.iter().flatten() {
                let counted = job.spec.supervisor.is_some();
                let (dirs, counted_in) = (Arc::clone(&cgroup.dirs), counted_in.take());
                targets.cgroups.push(CgroupTarget {
                    dirs,
                    counted,
                    counted_in,
                    events: None,
                    young,
                    look: Look::Usual,
                });
                map.assign(Subject::Cgroup(cgroup.dirs.id), slot);
            }
            if let Some(ProcessId { pid, start_ticks }) = job.spec.supervisor {
                targets.tasks.push(TaskTarget::new(pid, start_ticks, TaskRole::Supervisor, young));
                map.assign(Subject::Task { pid, start_ticks }, slot);
            }
        }
        for &(ProcessId { pid, start_ticks }, slot) in &self.living {
            let young = self.job(slot).is_some_and(|job| job.young);
            targets.tasks.push(TaskTarget::new(pid, start_ticks, TaskRole::Member, young));
            map.assign(Subject::Task { pid, start_ticks }, slot);
        }
    }

    /// How many processes the job had so far, as far as refreshes saw them, those of nested jobs included.
    pub fn processes_seen(&self, slot: u32) -> u64 {
        self.job(slot).map_or(0, |job| job.processes_seen)
    }

    /// The processes of a job at the last refresh, those of nested jobs included.
    pub fn processes_of(&self, slot: u32) -> impl Iterator<Item = ProcessId> + '_ {
        self.living.iter().filter(move |(_, owner)| self.is_inside(*owner, slot)).map(|&(process, _)| process)
    }

    /// The job that this one was started in.
    pub fn outer(&self, slot: u32) -> Option<u32> {
        self.job(slot)?.outer
    }

    fn job(&self, slot: u32) -> Option<&Job> {
        self.index.get(&slot).map(|&index| &self.jobs[index])
    }

    /// The job, the job around it, and so on.
    fn around(&self, slot: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(slot), |&inner| self.outer(inner)).take(DEPTH_LIMIT)
    }

    fn is_inside(&self, inner: u32, outer: u32) -> bool {
        self.around(inner).any(|slot| slot == outer)
    }

    fn reindex(&mut self) {
        self.index = self.jobs.iter().enumerate().map(|(index, job)| (job.spec.slot, index)).collect();
        let supervisors = self.jobs.iter().filter_map(|job| Some((job.spec.supervisor?, job.spec.slot)));
        self.supervisors = supervisors.collect();
        self.roots.clear();
        for job in &self.jobs {
            for &root in &job.spec.roots {
                self.roots.entry(root).or_insert(job.spec.slot);
            }
        }
        self.outer_due = true;
    }

    // Jobs nested in each other are young together: the sums of the outer one are over processes of all.
    fn mark_young(&mut self) {
        let is_new = |job: &&Job| self.generation - job.added <= YOUNG_REFRESHES && !job.was_read_in_full;
        let outermost = |job: &Job| self.around(job.spec.slot).last();
        let young: HashSet<_> = self.jobs.iter().filter(is_new).map(outermost).collect();
        for index in 0..self.jobs.len() {
            self.jobs[index].young = young.contains(&self.around(self.jobs[index].spec.slot).last());
        }
    }

    fn list_processes(&mut self, host: &Host) -> io::Result<()> {
        let listed = &mut self.listed;
        host.proc_dir().list(&mut self.reading.buffer, |name, inode, _| {
            listed.extend(parse::u32(name).map(|pid| (pid, inode)));
        })?;
        for index in 0..self.listed.len() {
            let (pid, inode) = self.listed[index];
            self.observe(host, pid, inode);
        }
        Ok(())
    }

    /// Marks a process as seen, and reads its identity if that is uncertain.
    fn observe(&mut self, host: &Host, pid: u32, inode: u64) {
        if let Some(known) = self.known.get_mut(&pid) {
            known.seen = self.generation;
            let due = (self.generation + u64::from(pid)).is_multiple_of(VERIFY_REFRESHES);
            // A cgroup listing has no inode to compare, and its ancestors are not needed.
            let sure = inode == 0 || (known.decided && inode == known.inode);
            // A name is the program's only after its exec.
            let is_named = self.wanted.is_none() || std::mem::replace(&mut known.is_seen_again, true);
            if sure && is_named && !due {
                return;
            }
        }
        // Ended between the listing and here, or unreadable: in neither case part of a job.
        let Some(stat) = self.reading.stat(host, pid) else {
            self.known.remove(&pid);
            return;
        };
        match self.known.get_mut(&pid) {
            Some(known) if known.start_ticks == stat.start_ticks => {
                known.is_wanted |= self.wanted.is_some_and(|wanted| wanted(stat.name));
                known.parent_pid = stat.parent_pid;
                known.inode = if inode == 0 { known.inode } else { inode };
            }
            _ => {
                let known = Known {
                    start_ticks: stat.start_ticks,
                    parent_pid: stat.parent_pid,
                    inode,
                    seen: self.generation,
                    is_wanted: self.wanted.is_some_and(|wanted| wanted(stat.name)),
                    ..Known::default()
                };
                self.known.insert(pid, known);
            }
        }
    }

    /// Marks the processes of jobs whose cgroups are not listed this time as seen where they were. `lists_all`: who is
    /// not among all processes is gone.
    fn keep_listed(&mut self, before: Vec<(ProcessId, u32)>, is_kept: impl Fn(u32) -> bool, lists_all: bool) {
        for (process, _) in before.iter().filter(|(_, slot)| is_kept(*slot)) {
            let known = self.known.get_mut(&process.pid);
            let Some(known) = known.filter(|known| known.start_ticks == process.start_ticks) else {
                continue;
            };
            let is_gone = lists_all && known.seen != self.generation;
            if known.group.is_none() || is_gone {
                continue;
            }
            known.grouped = self.generation;
            if known.seen != self.generation {
                known.seen = self.generation;
                self.listed.push((process.pid, 0));
            }
        }
        self.living = before;
        self.living.clear();
    }

    fn list_cgroups(&mut self, host: &Host, is_due: impl Fn(u32) -> bool) {
        // Outer directories first: the processes of the inner ones are then claimed by the inner job.
        let mut order: Vec<usize> = (0..self.jobs.len()).collect();
        order.retain(|&index| is_due(self.jobs[index].spec.slot));
        order.retain(|&index| self.jobs[index].open_cgroups(host));
        order.sort_by_key(|&index| self.jobs[index].depth);
        let mut pids = Vec::new();
        for index in order {
            pids.clear();
            let job = &self.jobs[index];
            let slot = job.spec.slot;
            job.list_cgroups(&mut self.reading.buffer, &mut pids);
            for &pid in &pids {
                if self.known.get(&pid).is_none_or(|known| known.seen != self.generation) {
                    self.listed.push((pid, 0));
                    self.observe(host, pid, 0);
                }
                if let Some(known) = self.known.get_mut(&pid) {
                    (known.group, known.grouped) = (Some(slot), self.generation);
                }
            }
        }
    }

    /// A job is inside the one that contains its supervisor process or its cgroup.
    fn find_outer_jobs(&mut self) {
        // It changes with the jobs only: with hundreds of them this must not be done at each tick.
        if !std::mem::take(&mut self.outer_due) {
            return;
        }
        let by_path = self.outer_by_path();
        for (index, by_path) in by_path.into_iter().enumerate() {
            if self.jobs[index].outer.is_some() {
                continue;
            }
            let spec = &self.jobs[index].spec;
            let slot = spec.slot;
            let started_by = match (spec.supervisor, spec.roots.first()) {
                (Some(supervisor), _) => self.find(supervisor).map(|_| supervisor.pid),
                (None, Some(&root)) => self.find(root).map(|known| known.parent_pid),
                (None, None) => None,
            };
            let by_tree = started_by.and_then(|pid| self.decide(pid));
            let by_group = started_by.and_then(|pid| self.group_of(pid));
            let outer = by_tree.or(by_group).or(by_path);
            // Two attached jobs may each hold the other's root; the first one stays outside.
            if outer.is_some_and(|outer| !self.is_inside(outer, slot)) {
                self.jobs[index].outer = outer;
            }
            self.outer_due |=
                started_by.and_then(|pid| self.known.get(&pid)).is_some_and(|known| !known.decided);
        }
    }

    /// For each job the one whose cgroup contains its own.
    fn outer_by_path(&self) -> Vec<Option<u32>> {
        let mut slots: HashMap<&Path, u32> = HashMap::new();
        for job in &self.jobs {
            slots.extend(job.paths().filter_map(main_path).map(|path| (path, job.spec.slot)));
        }
        let outer_of = |job: &Job| {
            let path = main_path(&job.spec.cgroup)?;
            path.ancestors().skip(1).find_map(|path| slots.get(path).copied())
        };
        self.jobs.iter().map(outer_of).collect()
    }

    fn find(&self, process: ProcessId) -> Option<&Known> {
        self.known.get(&process.pid).filter(|known| known.start_ticks == process.start_ticks)
    }

    fn group_of(&self, pid: u32) -> Option<u32> {
        self.known.get(&pid).filter(|known| known.grouped == self.generation)?.group
    }

    /// The job of a process by its ancestors: the nearest that is a root, a member or has a supervisor for parent.
    fn decide(&mut self, pid: u32) -> Option<u32> {
        let mut chain = std::mem::take(&mut self.chain);
        chain.clear();
        let (mut found, complete) = self.climb(pid, &mut chain);
        for pid in chain.drain(..).rev() {
            let prior = self.known.get(&pid).and_then(|known| known.tree);
            // A process that was reparented since then stays a member; one that is deeper inside moves there.
            found = match (prior, found) {
                (Some(prior), Some(found)) if self.is_inside(found, prior) => Some(found),
                (Some(prior), _) => Some(prior),
                (None, found) => found,
            };
            if let Some(known) = self.known.get_mut(&pid) {
                known.tree = found;
                known.decided = complete || found.is_some();
            }
        }
        self.chain = chain;
        found
    }

    /// Collects the ancestors that are not decided yet. Returns the job of those above them, and whether all on
    /// the way were known: an unknown parent will soon be gone, and the child will have another.
    fn climb(&self, pid: u32, chain: &mut Vec<u32>) -> (Option<u32>, bool) {
        let mut pid = pid;
        let Some(mut known) = self.known.get(&pid) else { return (None, false) };
        while chain.len() < DEPTH_LIMIT {
            if known.decided {
                return (known.tree, true);
            }
            chain.push(pid);
            let process = ProcessId { pid, start_ticks: known.start_ticks };
            if let Some(&slot) = self.roots.get(&process) {
                return (Some(slot), true);
            }
            if known.parent_pid == 0 {
                return (None, true);
            }
            let parent = self.known.get(&known.parent_pid);
            // A parent younger than its child is another process with the parent's pid.
            let Some(parent) = parent.filter(|parent| parent.start_ticks <= known.start_ticks) else {
                return (None, false);
            };
            let process = ProcessId { pid: known.parent_pid, start_ticks: parent.start_ticks };
            if let Some(&slot) = self.supervisors.get(&process) {
                return (Some(slot), true);
            }
            (pid, known) = (process.pid, parent);
        }
        (None, true)
    }

    /// Settles whose process it is, and counts it once.
    fn settle(&mut self, pid: u32) {
        let Some(known) = self.known.get(&pid) else { return };
        let process = ProcessId { pid, start_ticks: known.start_ticks };
        let group = self.group_of(pid);
        // Of a job with a cgroup only those inside it are members.
        let counts = |slot: &u32| {
            group == Some(*slot) || self.job(*slot).is_some_and(|job| job.spec.cgroup.is_empty())
        };
        let tree = known.tree.and_then(|slot| self.around(slot).find(counts));
        let slot = match (group, tree) {
            (Some(group), Some(tree)) if self.is_inside(tree, group) => tree,
            (Some(slot), _) | (None, Some(slot)) => slot,
            (None, None) => return,
        };
        if self.supervisors.contains_key(&process) {
            return;
        }
        self.living.push((process, slot));
        let (counted, is_wanted) = (known.counted, known.is_wanted);
        if is_wanted && let Some(&index) = self.index.get(&slot) {
            self.jobs[index].has_named = true;
        }
        if counted == Some(slot) {
            return;
        }
        let around: Vec<u32> = self.around(slot).collect();
        for job in around {
            if !counted.is_some_and(|counted| self.is_inside(counted, job))
                && let Some(&index) = self.index.get(&job)
            {
                self.jobs[index].processes_seen += 1;
            }
        }
        if let Some(known) = self.known.get_mut(&pid) {
            known.counted = Some(slot);
        }
    }
}

impl Job {
    fn new(spec: JobSpec, added: u64) -> Job {
        let depth = main_path(&spec.cgroup).map_or(0, |path| path.components().count());
        Job { spec, depth, added, young: true, ..Job::default() }
    }

    fn paths(&self) -> impl Iterator<Item = &CgroupPaths> {
        std::iter::once(&self.spec.cgroup).chain(&self.spec.more_cgroups)
    }

    /// Opens each cgroup when it first appears. A removed one stays open and lists no process.
    fn open_cgroups(&mut self, host: &Host) -> bool {
        let Job { spec, cgroups, .. } = self;
        cgroups.resize_with(1 + spec.more_cgroups.len(), || None);
        for (cgroup, paths) in cgroups.iter_mut().zip(std::iter::once(&spec.cgroup).chain(&spec.more_cgroups))
        {
            if cgroup.is_none() && !paths.is_empty() {
                *cgroup = Cgroup::open(host, paths).ok();
            }
        }
        cgroups.iter().any(Option::is_some)
    }

    fn list_cgroups(&self, buffer: &mut Vec<u8>, pids: &mut Vec<u32>) {
        for cgroup in self.cgroups.iter().flatten() {
            cgroup.list(buffer, pids);
        }
    }
}

#[cfg(test)]
mod tests;
