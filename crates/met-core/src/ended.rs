//! What processes did that are gone: exit records, whose they were, and who has taken them over already.
//!
//! A parent that waits for its child takes over the child's figures, and shows them as its own from then
//! on. So a process that ended is added to its job only if no living process of the job shows it: the
//! figures follow the tree upwards until they meet somebody who is not of the job, or who waits for nobody.

use std::collections::HashMap;

use crate::job_table::*;

/// Figures that a parent takes over from the children it waits for. Numbers of calls are not among them:
/// exit records round them down to multiples of 1024.
pub const INHERITED: [usize; 9] =
    [CPU, CPU_USER, CPU_SYSTEM, READ, WRITTEN, READ_CALL, WRITE_CALL, PAGE_FAULTS_MINOR, PAGE_FAULTS_MAJOR];

/// Figures that stay with the process that made them and end with it.
pub const OWN: [usize; 5] =
    [RUN_QUEUE_WAIT, SWITCHES_VOLUNTARY, SWITCHES_INVOLUNTARY, DELAY_IO, DELAY_MEMORY];

/// A process that is over: all its threads together, nothing of its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    pub pid: u32,
    /// Who was to wait for it when it ended.
    pub parent_pid: u32,
    pub uid: u32,
    /// Unix seconds.
    pub begin_s: i64,
    pub elapsed_ns: i64,
    pub exit_code: u32,
    pub name: [u8; 16],
    /// In the order of [`INHERITED`] and [`OWN`]; 0 where nothing is known.
    pub inherited: [i64; INHERITED.len()],
    pub own: [i64; OWN.len()],
    /// By how much its CPU time may be too small: the kernel updates it at each tick only.
    pub cpu_doubt_ns: i64,
    /// A wait of it is not known.
    pub lacks_delays: bool,
    pub resident_peak_bytes: i64,
    pub virtual_peak_bytes: i64,
}

impl Exit {
    /// Adds another thread of the same process.
    pub fn add_thread(&mut self, thread: &Exit) {
        add(&mut self.inherited, &thread.inherited);
        add(&mut self.own, &thread.own);
        self.cpu_doubt_ns = self.cpu_doubt_ns.saturating_add(thread.cpu_doubt_ns);
        self.lacks_delays |= thread.lacks_delays;
        self.elapsed_ns = self.elapsed_ns.max(thread.elapsed_ns);
        self.resident_peak_bytes = self.resident_peak_bytes.max(thread.resident_peak_bytes);
        self.virtual_peak_bytes = self.virtual_peak_bytes.max(thread.virtual_peak_bytes);
    }
}

fn add<const N: usize>(sum: &mut [i64; N], more: &[i64; N]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

/// What is known of the living while exits are looked at.
pub trait Living {
    /// The job of a process at the last look at the machine, its supervisor included.
    fn job_of(&self, pid: u32) -> Option<u32>;
    /// Whether the process is still read, though it may have ended since: a zombie shows all it did.
    fn is_listed(&self, pid: u32) -> bool;
    /// A supervisor: what it does itself is not the job's.
    fn is_keeper(&self, pid: u32) -> bool;
    fn outer(&self, job: u32) -> Option<u32>;
    /// Whether it waits for its children: one that ignores SIGCHLD does not, and nobody takes them over.
    fn reaps(&mut self, pid: u32) -> bool;
}

/// What a job's ended processes did, as far as nobody alive shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    pub inherited: [i64; INHERITED.len()],
    pub own: [i64; OWN.len()],
    pub processes: u64,
    /// Those that no look at the machine had seen.
    pub unseen: u64,
    pub cpu_doubt_ns: i64,
    pub lacks_delays: bool,
}

/// The books: one page per job.
#[derive(Debug, Default)]
pub struct Ledger {
    jobs: HashMap<u32, Gone>,
    /// The job of processes that were born since the last look at the machine.
    born: HashMap<u32, u32>,
    /// What living processes took over, to be passed on when they end.
    taken_over: HashMap<u32, [i64; INHERITED.len()]>,
    /// Ended, but still listed.
    listed: Vec<Exit>,
}

impl Ledger {
    pub fn open_page(&mut self, job: u32) {
        self.jobs.insert(job, Gone::default());
    }

    pub fn close_page(&mut self, job: u32) -> Option<Gone> {
        self.born.retain(|_, owner| *owner != job);
        self.jobs.remove(&job)
    }

    pub fn page(&self, job: u32) -> Option<&Gone> {
        self.jobs.get(&job)
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether somebody ended who was still listed at the last call.
    pub fn is_waiting(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Enters births and deaths since the last call, births in their order. `ended` is told of each process
    /// of a job that is no longer shown, and of those that were nobody's.
    pub fn enter(
        &mut self,
        births: &[(u32, u32)],
        deaths: &[Exit],
        living: &mut impl Living,
        mut ended: impl FnMut(Option<u32>, &Exit),
    ) {
        for &(parent, child) in births {
            if let Some(job) = self.job_of(parent, living) {
                self.born.insert(child, job);
            }
        }
        let before = std::mem::take(&mut self.listed);
        for exit in before.iter().chain(deaths) {
            if living.is_listed(exit.pid) {
                self.listed.push(*exit);
                continue;
            }
            ended(self.settle(exit, living), exit);
        }
    }

    fn job_of(&self, pid: u32, living: &impl Living) -> Option<u32> {
        living.job_of(pid).or_else(|| self.born.get(&pid).copied())
    }

    fn settle(&mut self, exit: &Exit, living: &mut impl Living) -> Option<u32> {
        let mut whole = self.taken_over.remove(&exit.pid).unwrap_or_default();
        let parent_job = self.job_of(exit.parent_pid, living);
        let seen = living.job_of(exit.pid);
        let born = self.born.remove(&exit.pid);
        // Nobody told of its birth: its parent says whose it is, if it is not a supervisor.
        let job = seen.or(born).or(parent_job)?;
        if living.is_keeper(exit.pid) {
            return None;
        }
        add(&mut whole, &exit.inherited);
        let taken_by = parent_job.filter(|_| living.reaps(exit.parent_pid));
        let mut shown = false;
        for slot in around(job, living) {
            let is_shown = taken_by.is_some_and(|parent| around(parent, living).any(|one| one == slot));
            shown |= is_shown;
            let Some(gone) = self.jobs.get_mut(&slot) else { continue };
            add(&mut gone.own, &exit.own);
            gone.processes += 1;
            gone.lacks_delays |= exit.lacks_delays;
            gone.unseen += u64::from(seen.is_none());
            if !is_shown {
                add(&mut gone.inherited, &whole);
                gone.cpu_doubt_ns = gone.cpu_doubt_ns.saturating_add(exit.cpu_doubt_ns);
            }
        }
        if shown {
            add(self.taken_over.entry(exit.parent_pid).or_default(), &whole);
        }
        Some(job)
    }
}

/// The job, the job around it, and so on.
fn around(job: u32, living: &impl Living) -> impl Iterator<Item = u32> {
    const DEPTH_LIMIT: usize = 64;
    std::iter::successors(Some(job), |&inner| living.outer(inner)).take(DEPTH_LIMIT)
}

#[cfg(test)]
#[path = "ended_tests.rs"]
mod tests;
