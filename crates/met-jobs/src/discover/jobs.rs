//! The jobs that were found: when they are announced, read and closed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::PathBuf;

use met_core::MISSING;
use met_core::job::{Figure, Part, QualityKind, Totals};
use met_core::job_table::{CPU, MEMORY_PEAK};
use met_host::clock;

use super::files::{Files, Memory};
use super::job::{Job, Parts, Progress, figure};
use super::ledger::{Certainty, Closed};
use super::oom_events::{Bell, Ear};
use super::remnants::Remnants;
use super::tree::{Role, Tree};
use super::{Ended, Event, Found};
use crate::cgroup_layouts::Captures;
use crate::scheduler;

pub(super) struct Jobs {
    node_name: String,
    pub(super) ear: Ear,
    /// By node. Boxed: a map keeps room for twice as many as there are.
    by_node: HashMap<u32, Box<Job>>,
    next_number: u64,
    /// Jobs that change the hierarchy in which they are followed.
    moving: HashMap<PathBuf, Box<Job>>,
    pub(super) remnants: Remnants,
    due: BinaryHeap<Reverse<(i64, u32)>>,
    pub(super) events: Vec<Event>,
}

impl Jobs {
    pub(super) fn new(node_name: String, ear: Ear) -> Jobs {
        Jobs {
            node_name,
            ear,
            by_node: HashMap::new(),
            next_number: 1,
            moving: HashMap::new(),
            remnants: Remnants::default(),
            due: BinaryHeap::new(),
            events: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    pub(super) fn has_parts(&self) -> bool {
        self.by_node.values().any(|job| !job.parts.living.is_empty())
    }

    pub(super) fn next_due_ns(&self) -> Option<i64> {
        self.due.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// The next job that is due.
    pub(super) fn take_due(&mut self, now_ns: i64) -> Option<u32> {
        self.next_due_ns().filter(|due_ns| *due_ns <= now_ns)?;
        self.due.pop().map(|Reverse((_, id))| id)
    }

    pub(super) fn add(
        &mut self,
        tree: &Tree,
        id: u32,
        route: usize,
        mut captures: Captures,
        existed: bool,
        now_ns: i64,
    ) {
        let Some(node) = tree.nodes.get(&id) else { return };
        let cgroup = tree.files.path_in(node.hierarchy, &node.path);
        let bell = if tree.files.has_memory_v1() { Bell::new(&self.ear, id) } else { None };
        self.due.push(Reverse((now_ns, id)));
        if let Some(mut job) = self.moving.remove(&node.path) {
            (job.cgroup, job.bell, job.progress.is_remnant) = (cgroup, bell, false);
            job.parts.living.clear();
            self.by_node.insert(id, job);
            return;
        }
        captures.node.get_or_insert_with(|| self.node_name.clone());
        let job = Job {
            number: self.next_number,
            route,
            captures,
            cgroup,
            progress: Progress::new(now_ns, existed, self.remnants.is_one(node, now_ns)),
            memory: Memory::UNKNOWN,
            deserted: false,
            bell,
            out_of_memory: false,
            cpu_ns: None,
            parts: Parts::default(),
        };
        self.next_number += 1;
        self.by_node.insert(id, Box::new(job));
    }

    pub(super) fn add_part(&mut self, id: u32, job: u32, now_ns: i64) {
        if let Some(job) = self.by_node.get_mut(&job) {
            let start_ns = if job.progress.existed { job.progress.found_ns } else { now_ns };
            job.parts.add(id, start_ns);
        }
    }

    /// A job is no longer followed where it was; it may be in a better hierarchy.
    pub(super) fn leave(&mut self, id: u32, path: PathBuf) {
        if let Some(job) = self.by_node.remove(&id) {
            self.moving.insert(path, job);
        }
    }

    /// Jobs that were in the hierarchy that was left and are not in the better one.
    pub(super) fn end_unmoved(&mut self, now_ns: i64) {
        let unmoved: Vec<Box<Job>> = self.moving.drain().map(|(_, job)| job).collect();
        for job in unmoved {
            self.end(job, None, now_ns);
        }
    }

    /// Announces a job whose time has come, and reads it while it is young.
    pub(super) fn look_at(&mut self, tree: &mut Tree, id: u32, now_ns: i64) {
        let Some(job) = self.by_node.get_mut(&id) else { return };
        let reads = job.progress.is_readable(now_ns);
        // A job that used no CPU time has no process; reading its counter costs a tenth of listing it. It is listed
        // now and then for processes that have not run yet.
        if !job.progress.counter_suffices() || tree.counter_ns(id) != Some(0) {
            self.announce(tree, id, now_ns, false);
            self.look_for_name(tree, id);
            if reads {
                self.read(tree, id, false, now_ns);
            }
        }
        let reports_processes = tree.watches.reports_processes(id);
        let job = self.by_node.get_mut(&id);
        if let Some(next_ns) = job.and_then(|job| job.progress.next_due_ns(reports_processes, now_ns)) {
            self.due.push(Reverse((next_ns, id)));
        }
    }

    /// Announces a job when it is known what there is of it. `now_or_never`: it is gone.
    fn announce(&mut self, tree: &Tree, id: u32, now_ns: i64, now_or_never: bool) {
        let (Some(node), Some(job)) = (tree.nodes.get(&id), self.by_node.get_mut(&id)) else { return };
        if job.progress.announced {
            return;
        }
        let files = &tree.files;
        let (mut cgroup, complete) = files.paths_of(&node.path);
        let may_wait = job.progress.may_be_incomplete(now_ns) && !now_or_never;
        if !complete && may_wait {
            return;
        }
        let pids = files.pids(node.hierarchy, &node.path);
        if job.progress.is_remnant && pids.is_empty() {
            return;
        }
        // Processes that know its id may come later: a job is not held back for that.
        let Some((name, nameless)) = id_of(files, &job.captures, &pids, !may_wait) else { return };
        let found_ns = job.progress.found_ns;
        let start_ns = match files.earliest_start_ns(&pids) {
            Some(first_ns) if job.progress.existed => first_ns.min(found_ns),
            _ => found_ns,
        };
        job.progress.nameless = nameless;
        job.progress.announced = true;
        job.progress.inhabited |= !pids.is_empty();
        if cgroup.is_empty() {
            cgroup = job.cgroup.clone();
        }
        self.events.push(Event::Found(Box::new(Found {
            job: job.number,
            manager: tree.routes[job.route].manager.clone(),
            id: name,
            captures: job.captures.clone(),
            cgroup,
            start_ns: start_ns + clock::unix_offset_ns(),
            pids,
        })));
    }

    /// A job that was announced by the name of its directory gets its manager's id, once that is known.
    fn look_for_name(&mut self, tree: &Tree, id: u32) {
        let (Some(node), Some(job)) = (tree.nodes.get(&id), self.by_node.get_mut(&id)) else { return };
        if !job.progress.nameless {
            return;
        }
        let pids = tree.files.pids(node.hierarchy, &node.path);
        let other_name = job.captures.sluid.as_deref();
        if let Some(name) = other_name.and_then(|name| id_in_environ(&tree.files, name, &pids)) {
            job.progress.nameless = false;
            self.events.push(Event::Named(job.number, name));
        }
    }

    /// Before the notices: the cgroup in which a process was killed is gone soon.
    pub(super) fn take_alarms(&mut self, files: &Files) {
        for id in self.ear.rung() {
            if let Some(job) = self.by_node.get_mut(&id) {
                job.take_alarm(files);
            }
        }
    }

    /// Reads a job that something happened to: what is not read now may be gone in a moment.
    pub(super) fn read_stirred(&mut self, tree: &mut Tree, id: u32, now_ns: i64) {
        self.read(tree, id, true, now_ns);
        self.announce(tree, id, now_ns, false);
        self.look_for_name(tree, id);
    }

    /// Reads everything about a job and its parts. `stirred`: also checks whether it is empty.
    fn read(&mut self, tree: &mut Tree, id: u32, stirred: bool, now_ns: i64) {
        let counter_ns = tree.counter_ns(id);
        let (Some(node), Some(job)) = (tree.nodes.get(&id), self.by_node.get_mut(&id)) else { return };
        job.memory.raise(tree.files.memory_of(&node.path));
        job.hang_bell(&tree.files, id, &node.path);
        let mut deserted = false;
        let progress = &mut job.progress;
        if stirred || !progress.inhabited {
            let populated = tree.files.is_populated(node.hierarchy, &node.path);
            deserted = stirred && populated == Some(false);
            if populated == Some(true)
                && !std::mem::replace(&mut progress.inhabited, true)
                && progress.announced
            {
                self.events.push(Event::Inhabited(job.number));
            }
        }
        job.deserted = deserted;
        if let Some(counter_ns) = counter_ns {
            job.cpu_ns = Some(counter_ns);
            tree.ledger.note(id, counter_ns, deserted, now_ns);
        }
        read_parts(tree, job, now_ns);
    }

    /// Reads the parts of all jobs, which nothing else does.
    pub(super) fn read_parts(&mut self, tree: &mut Tree, now_ns: i64) {
        for job in self.by_node.values_mut().filter(|job| !job.parts.living.is_empty()) {
            read_parts(tree, job, now_ns);
            if job.progress.announced && job.parts.take_news() {
                let parts = job.parts.so_far(|id| part(tree, job, id, None, None));
                self.events.push(Event::Parts(job.number, parts));
            }
        }
    }

    pub(super) fn read_counters(&mut self, tree: &mut Tree, now_ns: i64) {
        for &id in self.by_node.keys() {
            tree.note_counter(id, false, now_ns);
        }
    }

    /// A directory is gone: ends the job that it was, or the part of one.
    pub(super) fn close(&mut self, tree: &Tree, id: u32, closed: Option<&Closed>, now_ns: i64) {
        self.announce(tree, id, now_ns, true);
        let Some(node) = tree.nodes.get(&id) else { return };
        if let Some(job) = self.by_node.remove(&id) {
            self.remnants.remember(&tree.files, node, now_ns);
            self.end(job, closed, now_ns);
        }
        if let Role::Part { job, .. } = &node.role
            && let Some(job) = self.by_node.get_mut(job)
            && let Some(part) = part(tree, job, id, closed, Some(now_ns))
        {
            job.end_part(id, part);
        }
    }

    /// Reports the end of a job whose directory is gone.
    fn end(&mut self, job: Box<Job>, closed: Option<&Closed>, now_ns: i64) {
        if !job.progress.announced {
            return;
        }
        let last = || Some(figure(i64::try_from(job.cpu_ns?).ok()?, QualityKind::LowerBound, "cgroup"));
        // Unless the last look was after its last process, it may have grown since.
        let kind = if job.deserted { QualityKind::Measured } else { QualityKind::Sampled };
        let known = |value: i64| (value != MISSING).then(|| figure(value, kind, "cgroup"));
        self.events.push(Event::Ended(Box::new(Ended {
            job: job.number,
            end_ns: now_ns + clock::unix_offset_ns(),
            cpu: closed.map(cpu_figure).or_else(last),
            memory_peak: known(job.memory.peak_bytes),
            oom_kills: job.oom_kills(),
            parts: job.parts.into_ended(),
        })));
    }
}

fn read_parts(tree: &mut Tree, job: &mut Job, now_ns: i64) {
    let parts: Vec<u32> = job.parts.living.keys().copied().collect();
    for part in parts {
        let before_ns = tree.ledger.last_ns(part);
        let counter_ns = tree.note_counter(part, false, now_ns);
        let Some(node) = tree.nodes.get(&part) else { continue };
        // What did not run since the last look holds as much memory as then.
        if counter_ns.is_some() && counter_ns == before_ns && job.parts.is_read(part) {
            continue;
        }
        job.parts.has_news = true;
        let memory = tree.files.memory_of(&node.path);
        job.hang_bell(&tree.files, part, &node.path);
        // On v1 each cgroup counts the kills in itself alone.
        job.memory.oom_kills = job.memory.oom_kills.max(memory.oom_kills);
        if let Some(living) = job.parts.living.get_mut(&part) {
            living.memory.raise(memory);
        }
    }
}

fn part(tree: &Tree, job: &Job, id: u32, closed: Option<&Closed>, end_ns: Option<i64>) -> Option<Part> {
    let Role::Part { captures, is_part: true, .. } = &tree.nodes.get(&id)?.role else { return None };
    let living = job.parts.living.get(&id)?;
    let offset_ns = clock::unix_offset_ns();
    let mut totals = Totals::default();
    let so_far = tree.ledger.last_ns(id).and_then(|last_ns| i64::try_from(last_ns).ok());
    let cpu = closed.map(cpu_figure).or(so_far.map(|cpu_ns| figure(cpu_ns, QualityKind::Sampled, "cgroup")));
    if let Some(Figure { value, kind, source }) = cpu {
        totals.set(CPU, value, kind, source);
    }
    if living.memory.peak_bytes != MISSING {
        // It may have grown between the last reading and its end.
        totals.set(MEMORY_PEAK, living.memory.peak_bytes, QualityKind::Sampled, "cgroup");
    }
    Some(Part {
        node: job.captures.node.clone().unwrap_or_default(),
        step: captures.step.clone().unwrap_or_default(),
        task: captures.task.clone(),
        start_ns: Some(living.start_ns + offset_ns),
        end_ns: end_ns.map(|end_ns| end_ns + offset_ns),
        totals,
        ..Part::default()
    })
}

/// What its manager calls a job, and whether that is still to be found out. A SLUID is not what users ask for, so
/// the environments of its processes are read; as long as they do not name the job it is all there is.
fn id_of(files: &Files, captures: &Captures, pids: &[u32], waited: bool) -> Option<(String, bool)> {
    match (captures.job_id(), &captures.sluid) {
        (Some(id), _) => Some((id, false)),
        (None, Some(sluid)) => match id_in_environ(files, sluid, pids) {
            Some(id) => Some((id, false)),
            None => waited.then(|| (sluid.clone(), true)),
        },
        (None, None) => None,
    }
}

fn id_in_environ(files: &Files, name: &str, pids: &[u32]) -> Option<String> {
    files.number_in_environ(pids, scheduler::id_variable(name)?)
}

fn cpu_figure(closed: &Closed) -> Figure {
    let value = i64::try_from(closed.cpu_ns).unwrap_or(i64::MAX);
    match closed.certainty {
        Certainty::Exact => figure(value, QualityKind::Measured, "cgroup ancestor"),
        Certainty::Shared => figure(value, QualityKind::Attributed, "cgroup ancestor"),
        Certainty::AtLeast => figure(value, QualityKind::LowerBound, "cgroup"),
    }
}
