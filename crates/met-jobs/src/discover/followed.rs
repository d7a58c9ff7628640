//! The jobs that were found: when they are told, read and closed.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;

use met_core::MISSING;
use met_core::job::{CgroupPaths, Figure, Part, QualityKind, Totals};
use met_core::job_table::{CPU, MEMORY_PEAK};
use met_host::clock;

use super::alarm::Bell;
use super::files::{Files, Memory};
use super::ledger::{Certainty, Closed};
use super::tree::Role;
use super::{Discovery, EARLY_MS, Ended, Event, Found};
use crate::layouts::{Captures, SLURM_JOB_ID};

/// A manager makes the directories of a job one after the other: so long is waited for the rest of them.
const COMPLETE_AFTER_NS: i64 = 100_000_000;
const LOOK_AGAIN_NS: i64 = 20_000_000;
/// One look in so many is a full one, as long as nothing ran in a job.
const FULL_LOOKS: u32 = 16;
/// A job that nobody can name yet is looked at again this often.
const NAMELESS_NS: i64 = 1_000_000_000;

/// So many parts of a job have a line of their own, the first ones; the others have one together.
pub(super) const LINES_MAX: usize = 256;

/// A part that is there.
#[derive(Clone, Copy)]
struct Living {
    start_ns: i64,
    /// The highest.
    memory: Memory,
    has_line: bool,
}

/// A job whose directory is there.
pub(super) struct Job {
    pub(super) number: u64,
    pub(super) route: usize,
    captures: Captures,
    /// As they were, or would have been, when it was found.
    cgroup: CgroupPaths,
    found_ns: i64,
    existed: bool,
    /// A job at the same path has ended in a better hierarchy: without processes this is what remains of it.
    is_remnant: bool,
    told: bool,
    /// Told by the name of its directory, which is not what its manager calls it.
    nameless: bool,
    early_taken: usize,
    /// Looks for a first process since then.
    looks: u32,
    inhabited: bool,
    memory: Memory,
    /// Whether the last reading of it was after its last process.
    deserted: bool,
    /// Rings when it runs out of memory; on v2 its own files tell that.
    bell: Option<Bell>,
    out_of_memory: bool,
    cpu_ns: Option<u64>,
    /// Of parts that are there, by node.
    parts: HashMap<u32, Living>,
    /// Those that had a line of their own.
    ended: Vec<Part>,
    /// Steps without one, and tasks, that have ended.
    other_steps: Option<Part>,
    other_tasks: Option<Part>,
    /// Lines given so far.
    lines: usize,
}

impl Job {
    /// How many were killed for want of memory; at least one if there was an alarm.
    fn oom_kills(&self) -> Option<Figure> {
        match self.memory.oom_kills {
            MISSING | 0 if self.out_of_memory => Some(figure(1, QualityKind::LowerBound, "cgroup")),
            MISSING => None,
            kills => Some(figure(kills, QualityKind::Measured, "cgroup")),
        }
    }

    pub(super) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    fn end_part(&mut self, id: u32, part: Part) {
        let Some(living) = self.parts.remove(&id) else { return };
        if let Some(bell) = &mut self.bell {
            bell.take_down(id);
        }
        match living.has_line {
            true => self.ended.push(part),
            false => {
                fold(if part.task.is_some() { &mut self.other_tasks } else { &mut self.other_steps }, &part);
            }
        }
    }
}

impl Discovery {
    pub(super) fn add_job(&mut self, id: u32, route: usize, captures: Captures, existed: bool, now_ns: i64) {
        let Some(node) = self.nodes.get(&id) else { return };
        let cgroup = self.files.path_in(node.hierarchy, &node.path);
        self.due.push(Reverse((now_ns, id)));
        if let Some(mut job) = self.moving.remove(&node.path) {
            (job.cgroup, job.parts, job.is_remnant) = (cgroup, HashMap::new(), false);
            job.bell = if self.files.has_memory_v1() { Bell::new(&self.ear, id) } else { None };
            self.jobs.insert(id, job);
            return;
        }
        let is_remnant = self.is_remnant(id, now_ns);
        let number = self.next_job;
        self.next_job += 1;
        let job = Job {
            cgroup,
            number,
            route,
            captures,
            found_ns: now_ns,
            existed,
            is_remnant,
            told: false,
            nameless: false,
            early_taken: 0,
            looks: 0,
            inhabited: false,
            memory: Memory::UNKNOWN,
            deserted: false,
            bell: if self.files.has_memory_v1() { Bell::new(&self.ear, id) } else { None },
            out_of_memory: false,
            cpu_ns: None,
            parts: HashMap::new(),
            ended: Vec::new(),
            other_steps: None,
            other_tasks: None,
            lines: 0,
        };
        self.jobs.insert(id, job);
    }

    /// Tells of jobs whose time has come, and reads the young ones.
    pub(super) fn announce_due(&mut self, now_ns: i64) {
        while let Some(&Reverse((due_ns, id))) = self.due.peek() {
            if due_ns > now_ns {
                return;
            }
            self.due.pop();
            self.act_on_notices(now_ns);
            let Some(job) = self.jobs.get(&id) else { continue };
            // There is nothing to read yet of one that was made this very moment.
            let reads = job.existed || job.told || job.found_ns < now_ns;
            if self.is_unused(id, now_ns) {
                continue;
            }
            self.tell(id, now_ns, false);
            self.ask_for_name(id);
            if reads {
                self.read_job(id, false, now_ns);
            }
            if let Some(next_ns) = self.next_due_ns(id, now_ns) {
                self.due.push(Reverse((next_ns, id)));
            }
        }
    }

    /// Whether nobody has run yet in a job that has been looked at often: its counter says so for a tenth of
    /// the price of a look. It is looked at again later, and in full now and then, for who came in asleep.
    fn is_unused(&mut self, id: u32, now_ns: i64) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else { return false };
        let is_waiting = job.told && !job.inhabited && !job.nameless && job.early_taken == EARLY_MS.len();
        job.looks += u32::from(is_waiting);
        if !is_waiting || job.looks.is_multiple_of(FULL_LOOKS) || self.counter_ns(id) != Some(0) {
            return false;
        }
        if let Some(next_ns) = self.next_due_ns(id, now_ns) {
            self.due.push(Reverse((next_ns, id)));
        }
        true
    }

    fn next_due_ns(&mut self, id: u32, now_ns: i64) -> Option<i64> {
        let is_told_of = self.is_told_of_processes(id);
        let job = self.jobs.get_mut(&id)?;
        while EARLY_MS.get(job.early_taken).is_some_and(|ms| job.found_ns + ms * 1_000_000 <= now_ns) {
            job.early_taken += 1;
        }
        let early = EARLY_MS.get(job.early_taken).map(|ms| job.found_ns + ms * 1_000_000);
        let young = now_ns - job.found_ns < COMPLETE_AFTER_NS;
        match (job.told && job.inhabited && !job.nameless, early) {
            (true, early) => early,
            (false, Some(early)) if job.told || !young => Some(early),
            (false, _) if young => Some(now_ns + LOOK_AGAIN_NS),
            (false, _) if is_told_of && job.told && !job.nameless => None,
            // Nobody is in it yet, which may stay so for hours: looked at ever more rarely.
            (false, _) => Some(now_ns + (now_ns - job.found_ns).max(NAMELESS_NS)),
        }
    }

    /// Tells that a job was found, when it is known what there is of it. `now_or_never`: it is gone.
    fn tell(&mut self, id: u32, now_ns: i64, now_or_never: bool) {
        let (Some(node), Some(job)) = (self.nodes.get(&id), self.jobs.get(&id)) else { return };
        if job.told {
            return;
        }
        let (mut cgroup, complete) = self.files.paths_of(&node.path);
        let waits = !complete && now_ns - job.found_ns < COMPLETE_AFTER_NS;
        if waits && !job.existed && !now_or_never {
            return;
        }
        let pids = self.files.pids(node.hierarchy, &node.path, &mut self.buffer);
        if job.is_remnant && pids.is_empty() {
            return;
        }
        // Processes that can be asked may come later: a job is not kept back for that.
        let waited = job.existed || now_or_never || now_ns - job.found_ns >= COMPLETE_AFTER_NS;
        let Some((name, nameless)) = id_of(&self.files, job, &pids, waited, &mut self.buffer) else { return };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.nameless = nameless;
        let start_ns = match self.files.earliest_start_ns(&pids) {
            Some(first_ns) if job.existed => first_ns.min(job.found_ns),
            _ => job.found_ns,
        };
        job.told = true;
        job.inhabited |= !pids.is_empty();
        if cgroup.is_empty() {
            cgroup = job.cgroup.clone();
        }
        let number = job.number;
        let mut captures = job.captures.clone();
        captures.node.get_or_insert_with(|| self.node_name.clone());
        self.events.push(Event::Found(Box::new(Found {
            job: number,
            manager: self.routes[job.route].manager.clone(),
            id: name,
            captures,
            cgroup,
            start_ns: start_ns + clock::unix_offset_ns(),
            pids,
        })));
    }

    /// A job that was told by the name of its directory is told by that of its manager, once it is known.
    fn ask_for_name(&mut self, id: u32) {
        let (Some(node), Some(job)) = (self.nodes.get(&id), self.jobs.get_mut(&id)) else { return };
        if !job.nameless {
            return;
        }
        let pids = self.files.pids(node.hierarchy, &node.path, &mut self.buffer);
        if let Some(name) = self.files.number_in_environ(&pids, SLURM_JOB_ID, &mut self.buffer) {
            job.nameless = false;
            self.events.push(Event::Named(job.number, name));
        }
    }

    /// Before the notices: the cgroup in which somebody was killed is gone soon.
    pub(super) fn hear_alarms(&mut self) {
        for id in self.ear.rung() {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let alarm =
                job.bell.as_mut().is_some_and(|bell| bell.is_alarm(|path| self.files.has_memory_of(path)));
            job.out_of_memory |= alarm;
        }
    }

    /// Reads the jobs that something happened to: what is not read now may be gone in a moment.
    pub(super) fn read_stirred(&mut self, now_ns: i64) {
        for id in std::mem::take(&mut self.stirred) {
            self.act_on_notices(now_ns);
            if !self.removed.contains(&id) {
                self.read_job(id, true, now_ns);
                self.tell(id, now_ns, false);
                self.ask_for_name(id);
            }
        }
    }

    /// Reads all there is to know of a job and its parts. `stirred`: whether anybody is left is looked up, too.
    fn read_job(&mut self, id: u32, stirred: bool, now_ns: i64) {
        let counter_ns = self.counter_ns(id);
        let (Some(node), Some(job)) = (self.nodes.get(&id), self.jobs.get_mut(&id)) else { return };
        job.memory.raise(self.files.memory_of(&node.path, &mut self.buffer));
        hang(&self.files, job, id, &node.path);
        let mut deserted = false;
        if stirred || !job.inhabited {
            let populated = self.files.is_populated(node.hierarchy, &node.path, &mut self.buffer);
            deserted = stirred && populated == Some(false);
            if populated == Some(true) && !std::mem::replace(&mut job.inhabited, true) && job.told {
                self.events.push(Event::Inhabited(job.number));
            }
        }
        job.deserted = deserted;
        if let Some(counter_ns) = counter_ns {
            job.cpu_ns = Some(counter_ns);
            self.ledger.note(id, counter_ns, deserted, now_ns);
        }
        self.read_parts_of(id, now_ns);
    }

    fn read_parts_of(&mut self, id: u32, now_ns: i64) {
        let Some(job) = self.jobs.get(&id) else { return };
        let parts: Vec<u32> = job.parts.keys().copied().collect();
        for part in parts {
            if let Some(counter_ns) = self.counter_ns(part) {
                self.ledger.note(part, counter_ns, false, now_ns);
            }
            let (Some(node), Some(job)) = (self.nodes.get(&part), self.jobs.get_mut(&id)) else { continue };
            let memory = self.files.memory_of(&node.path, &mut self.buffer);
            hang(&self.files, job, part, &node.path);
            // On v1 each cgroup counts the kills in itself alone.
            job.memory.oom_kills = job.memory.oom_kills.max(memory.oom_kills);
            if let Some(living) = job.parts.get_mut(&part) {
                living.memory.raise(memory);
            }
        }
    }

    /// The parts of all jobs, which nobody else reads.
    pub(super) fn read_parts(&mut self, now_ns: i64) {
        let ids: Vec<u32> = self.jobs.iter().filter(|(_, job)| job.has_parts()).map(|(id, _)| *id).collect();
        for id in ids {
            self.read_parts_of(id, now_ns);
            let Some(job) = self.jobs.get(&id).filter(|job| job.told) else { continue };
            let parts = self.parts_so_far(job);
            self.events.push(Event::Parts(job.number, parts));
        }
    }

    /// Parts that have ended and those that are there, each with its own line or among the others of its kind:
    /// those that have ended have an end.
    fn parts_so_far(&self, job: &Job) -> Vec<Part> {
        let mut parts = job.ended.clone();
        parts.extend(job.other_steps.iter().chain(&job.other_tasks).cloned());
        let (mut steps, mut tasks) = (None, None);
        for (&id, living) in &job.parts {
            let Some(part) = self.part(job, id, None, None) else { continue };
            match living.has_line {
                true => parts.push(part),
                false => fold(if part.task.is_some() { &mut tasks } else { &mut steps }, &part),
            }
        }
        parts.extend(steps.into_iter().chain(tasks));
        parts
    }

    pub(super) fn read_all(&mut self, now_ns: i64) {
        let ids: Vec<u32> = self.jobs.keys().copied().collect();
        for id in ids {
            if let Some(counter_ns) = self.counter_ns(id) {
                self.ledger.note(id, counter_ns, false, now_ns);
            }
        }
        self.rebase_inhabited(now_ns);
    }

    pub(super) fn add_part(&mut self, id: u32, job: u32, now_ns: i64) {
        if let Some(job) = self.jobs.get_mut(&job) {
            let start_ns = if job.existed { job.found_ns } else { now_ns };
            let has_line = job.lines < LINES_MAX;
            job.lines += usize::from(has_line);
            job.parts.insert(id, Living { start_ns, memory: Memory::UNKNOWN, has_line });
        }
    }

    /// Closes all that is gone since the last time.
    pub(super) fn close_removed(&mut self, now_ns: i64) {
        if self.removed.is_empty() {
            return;
        }
        // One that came meanwhile and is not known yet would be charged to those that went.
        self.act_on_notices(now_ns);
        let removed = std::mem::take(&mut self.removed);
        let closed = self.with_counters(|ledger, read| ledger.close(&removed, read, now_ns));
        let finals: HashMap<u32, Closed> = closed.iter().map(|closed| (closed.id, *closed)).collect();
        // Some were found to be gone by reading them, before any notice.
        for id in removed.into_iter().chain(closed.iter().map(|closed| closed.id)) {
            for id in self.subtree(id) {
                self.forget_node(id, &finals, now_ns);
            }
        }
        self.rebase_inhabited(now_ns);
    }

    fn forget_node(&mut self, id: u32, finals: &HashMap<u32, Closed>, now_ns: i64) {
        let closed = finals.get(&id);
        if let Some(job) = self.jobs.get(&id) {
            if !job.told {
                self.tell(id, now_ns, true);
            }
            if let Some(job) = self.jobs.remove(&id) {
                self.remember_end(id, now_ns);
                self.end_job(job, closed, now_ns);
            }
        }
        let Some(node) = self.nodes.get(&id) else { return };
        if let Role::Part { job: owner, .. } = &node.role
            && let Some(job) = self.jobs.get(owner)
            && let Some(part) = self.part(job, id, closed, Some(now_ns))
            && let Some(job) = self.jobs.get_mut(&owner.clone())
        {
            job.end_part(id, part);
        }
        let parent =
            self.nodes.get(&id).and_then(|node| Some((node.parent?, node.path.file_name()?.to_owned())));
        let still_known = parent
            .filter(|(parent, name)| self.nodes.get(parent).is_some_and(|parent| parent.holds(name, id)));
        let Some(node) = self.drop_node(id) else { return };
        if let Some((parent, name)) = still_known {
            self.await_notice(parent, &name);
        }
        if matches!(node.role, Role::Way(_)) {
            let is_below_home = node.parent.is_some_and(|parent| self.ledger.follows(parent));
            if node.unexplored && is_below_home {
                self.unseen.directories += 1;
                self.unseen.cpu_ns += closed.map_or(0, |closed| closed.cpu_ns);
            }
            self.lose_home(node.hierarchy, &node.path, now_ns);
        }
        self.ledger.forget(id);
    }

    /// Tells the end of a job whose directory is gone.
    pub(super) fn end_job(&mut self, job: Job, closed: Option<&Closed>, now_ns: i64) {
        if !job.told {
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
            parts: job.ended.into_iter().chain(job.other_steps).chain(job.other_tasks).collect(),
        })));
    }

    fn part(&self, job: &Job, id: u32, closed: Option<&Closed>, end_ns: Option<i64>) -> Option<Part> {
        let Role::Part { captures, is_part: true, .. } = &self.nodes.get(&id)?.role else { return None };
        let Living { start_ns, memory, .. } = *job.parts.get(&id)?;
        let offset_ns = clock::unix_offset_ns();
        let mut totals = Totals::default();
        let so_far = self.ledger.last_ns(id).and_then(|last_ns| i64::try_from(last_ns).ok());
        match (closed, so_far) {
            (Some(closed), _) => {
                let Figure { value, kind, source } = cpu_figure(closed);
                totals.set(CPU, value, kind, source);
            }
            (None, Some(last_ns)) => totals.set(CPU, last_ns, QualityKind::Sampled, "cgroup"),
            (None, None) => {}
        }
        if memory.peak_bytes != MISSING {
            // It may have grown between the last reading and its end.
            totals.set(MEMORY_PEAK, memory.peak_bytes, QualityKind::Sampled, "cgroup");
        }
        Some(Part {
            node: job.captures.node.clone().unwrap_or_else(|| self.node_name.clone()),
            step: captures.step.clone().unwrap_or_default(),
            task: captures.task.clone(),
            start_ns: Some(start_ns + offset_ns),
            end_ns: end_ns.map(|end_ns| end_ns + offset_ns),
            totals,
            ..Part::default()
        })
    }
}

/// Adds a part to those that have a line together.
fn fold(others: &mut Option<Part>, part: &Part) {
    others.get_or_insert_with(|| Part::others(part.node.clone(), part.task.is_some())).take_in(part);
}

/// Lets a cgroup ring the bell of its job, once it is there.
fn hang(files: &Files, job: &mut Job, id: u32, path: &Path) {
    if let Some(bell) = job.bell.as_mut().filter(|bell| !bell.hung.contains_key(&id))
        && files.alarm_at_oom(path, bell.fd())
    {
        bell.hung.insert(id, path.to_path_buf());
    }
}

/// What its manager calls a job, and whether that is still to be found out. A SLUID is not what anybody asks
/// for, so its processes are asked; as long as they say nothing it is all there is.
fn id_of(
    files: &Files,
    job: &Job,
    pids: &[u32],
    waited: bool,
    buffer: &mut Vec<u8>,
) -> Option<(String, bool)> {
    match (job.captures.job_id(), &job.captures.sluid) {
        (Some(id), _) => Some((id, false)),
        (None, Some(sluid)) => match files.number_in_environ(pids, SLURM_JOB_ID, buffer) {
            Some(id) => Some((id, false)),
            None => waited.then(|| (sluid.clone(), true)),
        },
        (None, None) => None,
    }
}

fn cpu_figure(closed: &Closed) -> Figure {
    let value = i64::try_from(closed.cpu_ns).unwrap_or(i64::MAX);
    match closed.certainty {
        Certainty::Exact => figure(value, QualityKind::Measured, "cgroup ancestor"),
        Certainty::Shared => figure(value, QualityKind::Attributed, "cgroup ancestor"),
        Certainty::AtLeast => figure(value, QualityKind::LowerBound, "cgroup"),
    }
}

fn figure(value: i64, kind: QualityKind, source: &'static str) -> Figure {
    Figure { value, kind, source: source.into() }
}
