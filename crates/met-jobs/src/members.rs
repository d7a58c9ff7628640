//! Which process belongs to which job: by its cgroup, else by its ancestors, and once a member, always.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use met_core::Subject;
use met_core::attribute::JobMap;
use met_core::job::{CgroupPaths, ProcessId};
use met_host::cgroup::CgroupDirs;
use met_host::{
    CgroupTarget, Dir, FileType, Host, KeptFile, PidPath, Share, Targets, TaskRole, TaskTarget, parse,
};

/// A listing cannot tell every reused pid: each is looked at again once in this many refreshes.
const VERIFY_REFRESHES: u64 = 60;
/// For as long a job is young, which covers the time to the first slow tick.
const YOUNG_REFRESHES: u64 = 10;
/// Deeper trees of processes or cgroups are a fault of ours or somebody's joke.
const DEPTH_LIMIT: usize = 1 << 12;

/// Where a job's processes are to be found.
#[derive(Clone, Debug, Default)]
pub struct JobSpec {
    /// The name of the job in the sampler; used once.
    pub slot: u32,
    /// The supervisor: every descendant of it is a member, itself it is not.
    pub keeper: Option<ProcessId>,
    /// Members to begin with: the main process, a process that was attached to.
    pub roots: Vec<ProcessId>,
    /// If it has any, exactly the processes in it and below are members.
    pub cgroup: CgroupPaths,
    /// The same for its other nodes, where these are one machine.
    pub more_cgroups: Vec<CgroupPaths>,
}

/// The processes of all jobs. `refresh` looks at the machine, `fill` tells what it saw.
#[derive(Default)]
pub struct Members {
    jobs: Vec<Job>,
    /// Positions in `jobs` by slot, slots by keeper and by root: all are asked for every process.
    index: HashMap<u32, usize>,
    keepers: HashMap<ProcessId, u32>,
    roots: HashMap<ProcessId, u32>,
    outer_due: bool,
    known: HashMap<u32, Known>,
    generation: u64,
    living: Vec<(ProcessId, u32)>,
    listed: Vec<(u32, u64)>,
    chain: Vec<u32>,
    buffer: Vec<u8>,
}

struct Job {
    spec: JobSpec,
    outer: Option<u32>,
    /// In the order of its paths.
    cgroups: Vec<Option<Cgroup>>,
    /// Where its events are counted, if not in its cgroup.
    counted_in: Option<Arc<Dir>>,
    /// How deep its cgroup lies.
    depth: usize,
    added: u64,
    young: bool,
    processes_seen: u64,
}

struct Cgroup {
    dirs: Arc<CgroupDirs>,
    procs: KeptFile,
}

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
}

impl Members {
    pub fn new() -> Members {
        Members::default()
    }

    /// Takes up a job; `refresh` finds its processes.
    pub fn add(&mut self, spec: JobSpec) {
        let first_start = spec.keeper.iter().chain(&spec.roots).map(|process| process.start_ticks).min();
        // Nobody older than its first process can be in it: the others stay as they are.
        // A job that is nothing but a cgroup has no say in it.
        for known in self.known.values_mut().filter(|_| first_start.is_some()) {
            known.decided &= first_start.is_some_and(|start_ticks| known.start_ticks < start_ticks);
        }
        // Jobs come by the hundred: what is known of the others stays as it is.
        let (slot, index) = (spec.slot, self.jobs.len());
        self.index.insert(slot, index);
        self.keepers.extend(spec.keeper.map(|keeper| (keeper, slot)));
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

    /// Looks at the machine: who is alive, and whose is it.
    pub fn refresh(&mut self, host: &Host) -> io::Result<()> {
        self.generation += 1;
        self.living.clear();
        self.listed.clear();
        if self.jobs.is_empty() {
            self.known.clear();
            return Ok(());
        }
        if self.jobs.iter().any(|job| job.spec.cgroup.is_empty()) {
            self.list_processes(host)?;
        }
        self.list_cgroups(host);
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

    /// Tells what the last refresh saw.
    pub fn fill(&self, targets: &mut Targets, map: &mut JobMap) {
        targets.clear();
        map.clear();
        for job in &self.jobs {
            let (slot, young) = (job.spec.slot, job.young);
            map.add_job(slot, job.outer);
            // It stands in for the first: there are not two of it.
            let mut counted_in = job.counted_in.clone();
            for cgroup in job.cgroups.iter().flatten() {
                let counted = job.spec.keeper.is_some();
                let (dirs, counted_in) = (Arc::clone(&cgroup.dirs), counted_in.take());
                targets.cgroups.push(CgroupTarget { dirs, counted, counted_in, events: None, young });
                map.assign(Subject::Cgroup(cgroup.dirs.id), slot);
            }
            if let Some(ProcessId { pid, start_ticks }) = job.spec.keeper {
                targets.tasks.push(TaskTarget { pid, start_ticks, role: TaskRole::Keeper, young });
                map.assign(Subject::Task { pid, start_ticks }, slot);
            }
        }
        for &(ProcessId { pid, start_ticks }, slot) in &self.living {
            let young = self.job(slot).is_some_and(|job| job.young);
            targets.tasks.push(TaskTarget { pid, start_ticks, role: TaskRole::Member, young });
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
        let keepers = self.jobs.iter().filter_map(|job| Some((job.spec.keeper?, job.spec.slot)));
        self.keepers = keepers.collect();
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
        let is_new = |job: &&Job| self.generation - job.added <= YOUNG_REFRESHES;
        let outermost = |job: &Job| self.around(job.spec.slot).last();
        let young: HashSet<_> = self.jobs.iter().filter(is_new).map(outermost).collect();
        for index in 0..self.jobs.len() {
            self.jobs[index].young = young.contains(&self.around(self.jobs[index].spec.slot).last());
        }
    }

    fn list_processes(&mut self, host: &Host) -> io::Result<()> {
        let listed = &mut self.listed;
        host.proc_dir().list(&mut self.buffer, |name, inode, _| {
            listed.extend(parse::u32(name).map(|pid| (pid, inode)));
        })?;
        for index in 0..self.listed.len() {
            let (pid, inode) = self.listed[index];
            self.observe(host, pid, inode);
        }
        Ok(())
    }

    /// Marks a process as seen, and reads who it is if that is not known for certain.
    fn observe(&mut self, host: &Host, pid: u32, inode: u64) {
        if let Some(known) = self.known.get_mut(&pid) {
            known.seen = self.generation;
            let due = (self.generation + u64::from(pid)).is_multiple_of(VERIFY_REFRESHES);
            // In a listing of a cgroup there is no inode to compare, and nobody asks for its ancestors.
            let sure = inode == 0 || (known.decided && inode == known.inode);
            if sure && !due {
                return;
            }
        }
        let read = host.proc_dir().read(PidPath::new(pid, "stat").as_path(), &mut self.buffer);
        let stat = read.ok().and_then(|()| parse::stat(&self.buffer));
        // Ended between the listing and here, or unreadable: in neither case anybody's process.
        let Some(stat) = stat else {
            self.known.remove(&pid);
            return;
        };
        match self.known.get_mut(&pid) {
            Some(known) if known.start_ticks == stat.start_ticks => {
                known.parent_pid = stat.parent_pid;
                known.inode = if inode == 0 { known.inode } else { inode };
            }
            _ => {
                let known = Known::new(&stat, inode, self.generation);
                self.known.insert(pid, known);
            }
        }
    }

    fn list_cgroups(&mut self, host: &Host) {
        // Outer directories first: the processes of the inner ones are then claimed by the inner job.
        let mut order: Vec<usize> = (0..self.jobs.len()).collect();
        order.retain(|&index| self.jobs[index].open_cgroups(host));
        order.sort_by_key(|&index| self.jobs[index].depth);
        let mut pids = Vec::new();
        for index in order {
            pids.clear();
            let job = &self.jobs[index];
            let slot = job.spec.slot;
            job.list_cgroups(&mut self.buffer, &mut pids);
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

    /// A job is inside the one whose process its keeper is, or in whose cgroup its own lies.
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
            let started_by = match (spec.keeper, spec.roots.first()) {
                (Some(keeper), _) => self.find(keeper).map(|_| keeper.pid),
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

    /// For each job the one in whose cgroup its own lies.
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

    /// The job of a process by its ancestors: the nearest that is a root, a member or has a keeper for parent.
    fn decide(&mut self, pid: u32) -> Option<u32> {
        let mut chain = std::mem::take(&mut self.chain);
        chain.clear();
        let (mut found, complete) = self.climb(pid, &mut chain);
        for pid in chain.drain(..).rev() {
            let prior = self.known.get(&pid).and_then(|known| known.tree);
            // Who was reparented since then stays a member; who turns out to be deeper inside, moves there.
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

    /// Collects the ancestors that are not decided yet. Returns the job of those above them, and whether
    /// everybody on the way was known: a parent that is not will be gone, and the child have another, soon.
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
            if let Some(&slot) = self.keepers.get(&process) {
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
        if self.keepers.contains_key(&process) {
            return;
        }
        self.living.push((process, slot));
        let counted = known.counted;
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

impl Known {
    fn new(stat: &parse::Stat<'_>, inode: u64, seen: u64) -> Known {
        Known {
            start_ticks: stat.start_ticks,
            parent_pid: stat.parent_pid,
            inode,
            seen,
            tree: None,
            decided: false,
            group: None,
            grouped: 0,
            counted: None,
        }
    }
}

impl Job {
    fn new(spec: JobSpec, added: u64) -> Job {
        let depth = main_path(&spec.cgroup).map_or(0, |path| path.components().count());
        Job {
            spec,
            outer: None,
            cgroups: Vec::new(),
            counted_in: None,
            depth,
            added,
            young: true,
            processes_seen: 0,
        }
    }

    fn paths(&self) -> impl Iterator<Item = &CgroupPaths> {
        std::iter::once(&self.spec.cgroup).chain(&self.spec.more_cgroups)
    }

    /// Opens each cgroup when it first appears. One that is gone again stays open and lists nobody.
    fn open_cgroups(&mut self, host: &Host) -> bool {
        let Job { spec, cgroups, .. } = self;
        cgroups.resize_with(1 + spec.more_cgroups.len(), || None);
        for (cgroup, paths) in cgroups.iter_mut().zip(std::iter::once(&spec.cgroup).chain(&spec.more_cgroups)) {
            if cgroup.is_none() && !paths.is_empty() {
                *cgroup = Cgroup::open(host, paths).ok();
            }
        }
        cgroups.iter().any(Option::is_some)
    }

    fn list_cgroups(&self, buffer: &mut Vec<u8>, pids: &mut Vec<u32>) {
        for cgroup in self.cgroups.iter().flatten() {
            let Some(dir) = cgroup.dir() else { continue };
            if cgroup.procs.read_list(dir, PROCS, buffer).is_ok() {
                push_pids(buffer, pids);
            }
            list_below(dir, 0, buffer, pids);
        }
    }
}

/// The directory by which a cgroup goes.
fn main_path(paths: &CgroupPaths) -> Option<&Path> {
    paths.unified.as_deref().or(paths.memory.as_deref()).or(paths.cpuacct.as_deref())
}

const PROCS: &[u8] = b"cgroup.procs";

impl Cgroup {
    fn open(host: &Host, paths: &CgroupPaths) -> io::Result<Cgroup> {
        let dirs = Arc::new(CgroupDirs::open(host, paths)?);
        let dir = dirs.unified.as_ref().or(dirs.memory.as_ref()).or(dirs.cpuacct.as_ref());
        let procs = dir.ok_or(io::ErrorKind::NotFound)?.open_kept(PROCS, host.budget(), Share::First)?;
        Ok(Cgroup { dirs, procs })
    }

    fn dir(&self) -> Option<&Dir> {
        self.dirs.unified.as_ref().or(self.dirs.memory.as_ref()).or(self.dirs.cpuacct.as_ref())
    }
}

/// The processes of the cgroups below `dir`. One that is removed meanwhile has none.
fn list_below(dir: &Dir, depth: usize, buffer: &mut Vec<u8>, pids: &mut Vec<u32>) {
    const CGROUP_DEPTH_LIMIT: usize = 64;
    if depth == CGROUP_DEPTH_LIMIT || !dir.may_have_dirs().unwrap_or(false) {
        return;
    }
    let mut names = Vec::new();
    let listing = dir.list(buffer, |name, _, kind| {
        if kind == FileType::Directory {
            names.push(OsString::from(OsStr::from_bytes(name)));
        }
    });
    if listing.is_err() {
        return;
    }
    for name in names {
        let Ok(below) = dir.open_dir(&name) else { continue };
        if below.read(OsStr::from_bytes(PROCS), buffer).is_ok() {
            push_pids(buffer, pids);
        }
        list_below(&below, depth + 1, buffer, pids);
    }
}

fn push_pids(text: &[u8], pids: &mut Vec<u32>) {
    // 0 stands for a process outside this pid namespace.
    pids.extend(parse::lines(text).filter_map(parse::u32).filter(|&pid| pid != 0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A machine of `stat` files that a test rewrites as processes come, move and go.
    struct Machine {
        root: tempfile::TempDir,
        host: Host,
        members: Members,
    }

    const KEEPER: ProcessId = ProcessId { pid: 10, start_ticks: 100 };
    const INNER_KEEPER: ProcessId = ProcessId { pid: 20, start_ticks: 200 };

    impl Machine {
        fn new() -> Machine {
            let root = tempfile::tempdir().unwrap();
            std::fs::create_dir(root.path().join("proc")).unwrap();
            let host = Host::at(root.path()).unwrap();
            let machine = Machine { root, host, members: Members::new() };
            machine.process(1, 0, 1);
            machine
        }

        fn process(&self, pid: u32, parent_pid: u32, start_ticks: u64) {
            let dir = self.root.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&dir).unwrap();
            let zeros = "0 ".repeat(17);
            std::fs::write(dir.join("stat"), format!("{pid} (x) S {parent_pid} {zeros}{start_ticks} 0"))
                .unwrap();
        }

        fn end(&self, pid: u32) {
            std::fs::remove_dir_all(self.root.path().join(format!("proc/{pid}"))).unwrap();
        }

        fn cgroup(&self, path: &str, procs: &str) -> CgroupPaths {
            let dir = self.root.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cgroup.procs"), procs).unwrap();
            CgroupPaths { unified: Some(path.into()), ..CgroupPaths::default() }
        }

        fn add(&mut self, slot: u32, keeper: ProcessId) {
            self.members.add(JobSpec { slot, keeper: Some(keeper), ..JobSpec::default() });
        }

        /// Pids by job after a refresh, each with its job's number.
        fn refresh(&mut self) -> Vec<(u32, u32)> {
            self.members.refresh(&self.host).unwrap();
            let mut living: Vec<_> =
                self.members.living.iter().map(|(process, slot)| (process.pid, *slot)).collect();
            living.sort_unstable();
            living
        }
    }

    /// Two levels below the keeper, and somebody else.
    fn one_job() -> Machine {
        let mut machine = Machine::new();
        for (pid, parent_pid, start_ticks) in [(10, 1, 100), (11, 10, 110), (12, 11, 120), (99, 1, 130)] {
            machine.process(pid, parent_pid, start_ticks);
        }
        machine.add(1, KEEPER);
        machine
    }

    /// In the job above, pid 12 started another one.
    fn nested_jobs() -> Machine {
        let mut machine = one_job();
        machine.process(20, 12, 200);
        machine.process(21, 20, 210);
        machine.add(2, INNER_KEEPER);
        machine
    }

    #[test]
    fn descendants_of_the_keeper_are_members_and_it_is_not() {
        let mut machine = one_job();
        assert_eq!(machine.refresh(), [(11, 1), (12, 1)]);
        let (mut targets, mut map) = (Targets::default(), JobMap::default());
        machine.members.fill(&mut targets, &mut map);
        let roles: Vec<_> = targets.tasks.iter().map(|task| (task.pid, task.role)).collect();
        assert_eq!(roles[0], (10, TaskRole::Keeper));
        assert!(roles[1..].iter().all(|(_, role)| *role == TaskRole::Member) && roles.len() == 3);
        assert_eq!(map.owner(Subject::Task { pid: 10, start_ticks: 100 }), Some(1));
        assert_eq!(map.owner(Subject::Task { pid: 99, start_ticks: 130 }), None);
    }

    #[test]
    fn a_process_attached_to_is_a_member_with_what_it_starts() {
        let mut machine = one_job();
        machine.members = Members::new();
        machine.refresh();
        let roots = vec![ProcessId { pid: 11, start_ticks: 110 }];
        machine.members.add(JobSpec { slot: 7, roots, ..JobSpec::default() });
        assert_eq!(machine.refresh(), [(11, 7), (12, 7)]);
        machine.members.add_root(7, ProcessId { pid: 99, start_ticks: 130 });
        assert_eq!(machine.refresh(), [(11, 7), (12, 7), (99, 7)]);
    }

    #[test]
    fn once_a_member_always_a_member() {
        let mut machine = one_job();
        machine.refresh();
        machine.end(10);
        machine.process(11, 1, 110);
        machine.process(12, 1, 120);
        for _ in 0..=VERIFY_REFRESHES {
            assert_eq!(machine.refresh(), [(11, 1), (12, 1)]);
        }
        machine.process(13, 12, 300);
        assert_eq!(machine.refresh(), [(11, 1), (12, 1), (13, 1)], "the keeper is gone, its tree is not");
    }

    #[test]
    fn a_child_whose_parent_ended_before_it_was_seen_is_found_when_it_has_a_new_one() {
        let mut machine = one_job();
        machine.process(14, 13, 140);
        assert_eq!(machine.refresh(), [(11, 1), (12, 1)]);
        machine.process(14, 10, 140);
        assert_eq!(machine.refresh(), [(11, 1), (12, 1), (14, 1)]);
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let mut machine = one_job();
        machine.refresh();
        machine.process(12, 1, 500);
        machine.process(99, 11, 510);
        for _ in 0..VERIFY_REFRESHES {
            machine.refresh();
        }
        assert_eq!(machine.refresh(), [(11, 1), (99, 1)]);
        assert_eq!(machine.members.processes_seen(1), 3, "the first 12, 11 and the second 99");
    }

    #[test]
    fn a_process_belongs_to_the_innermost_job() {
        let mut machine = nested_jobs();
        assert_eq!(machine.refresh(), [(11, 1), (12, 1), (21, 2)]);
        assert_eq!((machine.members.outer(1), machine.members.outer(2)), (None, Some(1)));
        assert_eq!((machine.members.processes_seen(1), machine.members.processes_seen(2)), (3, 1));
        assert_eq!(machine.members.processes_of(1).count(), 3);
    }

    #[test]
    fn a_nested_job_that_is_taken_up_later_takes_its_processes_over() {
        let mut machine = nested_jobs();
        machine.members.remove(2);
        assert_eq!(machine.refresh(), [(11, 1), (12, 1), (20, 1), (21, 1)]);
        machine.add(2, INNER_KEEPER);
        assert_eq!(machine.refresh(), [(11, 1), (12, 1), (21, 2)]);
        assert_eq!(machine.members.processes_seen(1), 4, "counted once, though it moved");
        machine.end(20);
        machine.process(21, 10, 210);
        assert_eq!(machine.refresh(), [(11, 1), (12, 1), (21, 2)], "reparented, and still of the inner job");
    }

    #[test]
    fn what_is_left_of_a_nested_job_belongs_to_the_outer_one() {
        let mut machine = nested_jobs();
        machine.refresh();
        machine.members.remove(2);
        assert_eq!(machine.refresh(), [(11, 1), (12, 1), (20, 1), (21, 1)]);
        machine.members.remove(1);
        assert_eq!(machine.refresh(), []);
    }

    #[test]
    fn a_cgroup_says_who_is_in_a_job_and_the_tree_does_not() {
        let mut machine = one_job();
        machine.members = Members::new();
        let cgroup = machine.cgroup("/cg/job", "11\n");
        machine.cgroup("/cg/job/below/it", "99\n0\n");
        machine.cgroup("/cg/job/below", "");
        machine.members.add(JobSpec { slot: 3, keeper: Some(KEEPER), cgroup, ..JobSpec::default() });
        assert_eq!(machine.refresh(), [(11, 3), (99, 3)], "12 left the cgroup");
        machine.process(50, 1, 500);
        machine.members.add(JobSpec { slot: 4, keeper: None, ..JobSpec::default() });
        assert_eq!(
            machine.refresh(),
            [(11, 3), (99, 3)],
            "the same when processes are listed for another job"
        );
        let (mut targets, mut map) = (Targets::default(), JobMap::default());
        machine.members.fill(&mut targets, &mut map);
        assert_eq!(map.owner(Subject::Cgroup(targets.cgroups[0].dirs.id)), Some(3));
    }

    #[test]
    fn a_job_has_the_processes_of_all_its_directories() {
        let mut machine = one_job();
        machine.members = Members::new();
        let (one, other) = (machine.cgroup("/cg/n1/job", "11\n"), machine.cgroup("/cg/n2/job", "12\n"));
        let inner = machine.cgroup("/cg/n2/job/inner", "99\n");
        machine.members.add(JobSpec { slot: 3, cgroup: one.clone(), ..JobSpec::default() });
        assert_eq!(machine.refresh(), [(11, 3)]);
        machine.members.add_cgroup(3, other.clone());
        machine.members.add_cgroup(3, other.clone());
        machine.members.add(JobSpec { slot: 4, cgroup: inner, ..JobSpec::default() });
        machine.process(99, 1, 500);
        assert_eq!(machine.refresh(), [(11, 3), (12, 3), (99, 4)]);
        assert_eq!(machine.members.outer(4), Some(3));
        let (mut targets, mut map) = (Targets::default(), JobMap::default());
        machine.members.fill(&mut targets, &mut map);
        let owners: Vec<_> =
            targets.cgroups.iter().map(|target| map.owner(Subject::Cgroup(target.dirs.id))).collect();
        assert_eq!(owners, [Some(3), Some(3), Some(4)]);
        let ids = [one, other].map(|paths| machine.members.cgroup_id(3, &paths));
        assert_eq!(ids, [0, 1].map(|at: usize| Some(targets.cgroups[at].dirs.id)));
    }

    #[test]
    fn jobs_in_cgroups_nest_by_their_paths_and_with_trees() {
        let mut machine = nested_jobs();
        machine.members = Members::new();
        let outer = machine.cgroup("/cg/job", "11\n12\n20\n");
        let inner = machine.cgroup("/cg/job/inner", "21\n");
        machine.members.add(JobSpec { slot: 2, cgroup: inner, ..JobSpec::default() });
        machine.members.add(JobSpec { slot: 1, cgroup: outer.clone(), ..JobSpec::default() });
        assert_eq!(machine.refresh(), [(11, 1), (12, 1), (20, 1), (21, 2)]);
        assert_eq!(machine.members.outer(2), Some(1));
        machine.members.remove(2);
        machine.add(5, INNER_KEEPER);
        assert_eq!(machine.refresh(), [(11, 1), (12, 1), (21, 5)], "a tree inside a cgroup is more specific");
        assert_eq!(machine.members.outer(5), Some(1));
    }

    #[test]
    fn nested_jobs_are_young_together() {
        let mut machine = one_job();
        let young = |machine: &Machine| {
            let (mut targets, mut map) = (Targets::default(), JobMap::default());
            machine.members.fill(&mut targets, &mut map);
            targets.tasks.iter().map(|task| task.young).collect::<Vec<_>>()
        };
        machine.refresh();
        assert_eq!(young(&machine), [true; 3]);
        for _ in 0..YOUNG_REFRESHES {
            machine.refresh();
        }
        assert_eq!(young(&machine), [false; 3]);
        machine.process(20, 12, 200);
        machine.add(2, INNER_KEEPER);
        machine.refresh();
        assert_eq!(young(&machine), [true; 4]);
    }

    /// What may happen to a machine between two refreshes.
    #[derive(Clone, Debug)]
    enum Event {
        Fork { parent: usize },
        Exit { process: usize },
        AddJob { keeper: usize },
        RemoveJob { job: usize },
    }

    fn events() -> impl Strategy<Value = Vec<Vec<Event>>> {
        let event = prop_oneof![
            4 => any::<usize>().prop_map(|parent| Event::Fork { parent }),
            2 => any::<usize>().prop_map(|process| Event::Exit { process }),
            1 => any::<usize>().prop_map(|keeper| Event::AddJob { keeper }),
            1 => any::<usize>().prop_map(|job| Event::RemoveJob { job }),
        ];
        prop::collection::vec(prop::collection::vec(event, 0..5), 1..25)
    }

    /// Processes as (pid, parent, start), of which the first is init.
    struct Model {
        processes: Vec<(u32, u32, u64)>,
        jobs: Vec<u32>,
        clock: u64,
    }

    impl Model {
        fn apply(&mut self, event: &Event, machine: &mut Machine) {
            self.clock += 1;
            let clock = u32::try_from(self.clock).unwrap();
            match *event {
                Event::Fork { parent } => {
                    let parent_pid = self.processes[parent % self.processes.len()].0;
                    self.processes.push((clock, parent_pid, self.clock));
                    machine.process(clock, parent_pid, self.clock);
                }
                Event::Exit { process } if self.processes.len() > 1 => {
                    let (pid, ..) = self.processes.remove(1 + process % (self.processes.len() - 1));
                    machine.end(pid);
                    for child in self.processes.iter_mut().filter(|child| child.1 == pid) {
                        child.1 = 1;
                        machine.process(child.0, 1, child.2);
                    }
                }
                Event::AddJob { keeper } => {
                    let (pid, _, start_ticks) = self.processes[keeper % self.processes.len()];
                    let keeper = ProcessId { pid, start_ticks };
                    if pid != 1 && !machine.members.keepers.contains_key(&keeper) {
                        machine.add(clock, keeper);
                        self.jobs.push(clock);
                    }
                }
                Event::RemoveJob { job } if !self.jobs.is_empty() => {
                    machine.members.remove(self.jobs.swap_remove(job % self.jobs.len()));
                }
                _ => {}
            }
        }
    }

    proptest! {
        // Every step makes files: with the usual 256 cases it would be the slowest test of all.
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn whatever_happens_a_process_has_one_job_and_keeps_one(rounds in events()) {
            let mut machine = Machine::new();
            let mut model = Model { processes: vec![(1, 0, 1)], jobs: Vec::new(), clock: 1 };
            let mut before: Vec<(u32, u32)> = Vec::new();
            for round in rounds {
                let removes = round.iter().any(|event| matches!(event, Event::RemoveJob { .. }));
                round.iter().for_each(|event| model.apply(event, &mut machine));
                let now = machine.refresh();
                let is_keeper = |pid: u32| machine.members.keepers.keys().any(|keeper| keeper.pid == pid);
                prop_assert!(now.windows(2).all(|pair| pair[0].0 < pair[1].0), "twice: {now:?}");
                prop_assert!(now.iter().all(|(_, slot)| model.jobs.contains(slot)));
                prop_assert!(now.iter().all(|&(pid, _)| !is_keeper(pid)));
                for &(pid, slot) in before.iter().filter(|_| !removes) {
                    let alive = model.processes.iter().any(|process| process.0 == pid);
                    let kept = now.iter().any(|&(other, inner)| {
                        other == pid && machine.members.is_inside(inner, slot)
                    });
                    prop_assert!(!alive || kept || is_keeper(pid), "{pid} left job {slot}");
                }
                for &(pid, parent_pid, _) in &model.processes {
                    let member = now.iter().any(|&(other, _)| other == pid);
                    prop_assert!(member || is_keeper(pid) || !is_keeper(parent_pid), "{pid} was not found");
                }
                before = now;
            }
        }
    }
}
