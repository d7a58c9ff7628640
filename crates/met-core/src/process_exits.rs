//! What processes did that are gone: exit records, whose they were, and who has taken them over already.
//!
//! A parent that waits for its child takes over the child's figures, and shows them as its own from then
//! on. So a process that ended is added to its job only if no living process of the job shows it: the
//! figures follow the tree upwards to a process that is not of the job, or does not wait for its children.
//!
//! Numbers of processes are given again, and an end may be lost. So what is known of a number is of a process
//! that began before it was noted, and of none that began later.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::detail_table as detail;
use crate::job_table::*;

/// Figures that a parent takes over from the children it waits for. Numbers of calls are not among them:
/// exit records round them down to multiples of 1024.
pub const INHERITED: [usize; 10] = [
    CPU,
    CPU_USER,
    CPU_SYSTEM,
    READ,
    WRITTEN,
    WRITE_CANCELLED,
    READ_CALL,
    WRITE_CALL,
    PAGE_FAULTS_MINOR,
    PAGE_FAULTS_MAJOR,
];

/// Figures that stay with the process that made them and end with it.
pub const OWN: [usize; 5] =
    [RUN_QUEUE_WAIT, SWITCHES_VOLUNTARY, SWITCHES_INVOLUNTARY, DELAY_IO, DELAY_MEMORY];

/// The same among details.
pub const OWN_DETAILS: [usize; 13] = [
    detail::CPU_RUNS,
    detail::CPU_REAL,
    detail::CPU_VIRTUAL,
    detail::CPU_SCALED,
    detail::CPU_USER_SCALED,
    detail::CPU_SYSTEM_SCALED,
    detail::IO_WAITS,
    detail::SWAP_WAITS,
    detail::DELAY_SWAP,
    detail::RECLAIM_WAITS,
    detail::DELAY_RECLAIM,
    detail::MEMORY_TIME,
    detail::VIRTUAL_TIME,
];

/// The start of a process is reported to the second, and rounded.
const BEGIN_DOUBT_S: i64 = 2;

/// Processes of which something is noted, and ends of those that are still listed: so many are more than run
/// on one machine.
const NOTED_MAX: usize = 1 << 18;

/// A process that is over: all its threads together, nothing of its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    pub pid: u32,
    /// Who was to wait for it when it ended.
    pub parent_pid: u32,
    pub uid: u32,
    /// Unix seconds.
    pub begin_s: i64,
    /// Unix nanoseconds, where its birth was reported.
    pub begin_ns: Option<i64>,
    /// Unix nanoseconds when its end was received, a little after it.
    pub received_ns: Option<i64>,
    pub elapsed_ns: i64,
    pub exit_code: u32,
    pub name: [u8; 16],
    /// In the order of [`INHERITED`] and [`OWN`]; 0 where nothing is known.
    pub inherited: [i64; INHERITED.len()],
    pub own: [i64; OWN.len()],
    /// In the order of [`OWN_DETAILS`].
    pub details: [i64; OWN_DETAILS.len()],
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
        add(&mut self.details, &thread.details);
        self.cpu_doubt_ns = self.cpu_doubt_ns.saturating_add(thread.cpu_doubt_ns);
        self.lacks_delays |= thread.lacks_delays;
        // The first of them began when the process did.
        self.begin_s = self.begin_s.min(thread.begin_s);
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
    /// Whether the process is still read, though it may have ended since: a zombie shows all it did. One that
    /// began later is another one.
    fn is_listed(&self, exit: &Exit) -> bool;
    /// Seconds on a clock that cannot be set,
    fn now_s(&self) -> i64;
    /// and when a process began on it.
    fn begin_s(&self, exit: &Exit) -> i64;
    /// The same of one that is over, and not of another that has its number since.
    fn job_of_ended(&self, exit: &Exit) -> Option<u32>;
    /// A supervisor: what it did itself is not the job's.
    fn is_supervisor(&self, exit: &Exit) -> bool;
    fn outer(&self, job: u32) -> Option<u32>;
    /// Whether it waits for its children: one that ignores SIGCHLD does not, and no process takes over their figures.
    fn reaps(&mut self, pid: u32) -> bool;
}

/// What a job's ended processes did, as far as no living process shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    pub inherited: [i64; INHERITED.len()],
    /// What each of them did itself, whether or not a process alive shows it too.
    pub ended: [i64; INHERITED.len()],
    pub own: [i64; OWN.len()],
    pub details: [i64; OWN_DETAILS.len()],
    pub processes: u64,
    /// Those that no look at the machine had seen.
    pub unseen: u64,
    pub cpu_doubt_ns: i64,
    pub lacks_delays: bool,
}

/// What is known of the process that has a number.
#[derive(Clone, Copy, Debug)]
struct Noted<T> {
    what: T,
    at_s: i64,
}

impl<T> Noted<T> {
    /// Whether it may be of a process that began then.
    fn fits(&self, begin_s: i64) -> bool {
        begin_s <= self.at_s.saturating_add(BEGIN_DOUBT_S)
    }
}

/// The books: one page per job.
#[derive(Debug, Default)]
pub struct ExitLedger {
    jobs: HashMap<u32, Gone>,
    /// The job of processes that were born since the last look at the machine.
    born: HashMap<u32, Noted<u32>>,
    /// What living processes took over, to be passed on when they end.
    taken_over: HashMap<u32, Noted<[i64; INHERITED.len()]>>,
    /// Ended, but still listed: they show all they did.
    listed: Vec<Exit>,
    /// How often there was no room to note something, or the end of what was noted was not reported.
    losses: u64,
}

impl ExitLedger {
    pub fn open_page(&mut self, job: u32) {
        self.jobs.insert(job, Gone::default());
    }

    pub fn close_page(&mut self, job: u32) -> Option<Gone> {
        self.born.retain(|_, owner| owner.what != job);
        let page = self.jobs.remove(&job);
        if self.jobs.is_empty() {
            // Ends are not listened to any more, so that these would stay.
            *self = ExitLedger { losses: self.losses, ..ExitLedger::default() };
        }
        page
    }

    pub fn page(&self, job: u32) -> Option<&Gone> {
        self.jobs.get(&job)
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether a process ended that was still listed at the last call.
    pub fn is_waiting(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Grows whenever something is not in the books that should be.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Forgets those whose end was not reported, after some ends were lost.
    pub fn forget_dead(&mut self, mut is_alive: impl FnMut(u32) -> bool) {
        self.born.retain(|&pid, _| is_alive(pid));
        self.taken_over.retain(|&pid, _| is_alive(pid));
    }

    /// Enters births and deaths since the last call, births in their order. `ended` is called with each process
    /// of a job that is no longer shown, and with those that were of no job.
    pub fn enter(
        &mut self,
        births: &[(u32, u32)],
        deaths: &[Exit],
        living: &mut impl Living,
        mut ended: impl FnMut(Option<u32>, &Exit),
    ) {
        let mut round = Round::new(deaths);
        for exit in std::mem::take(&mut self.listed) {
            self.enter_end(&exit, &mut round, living, &mut ended);
        }
        for &(parent, child) in births {
            // Its number was another's, whose end is entered first, unless it was lost.
            if let Some(at_s) = self.noted_at_s(child) {
                let is_its = |exit: &Exit| living.begin_s(exit) <= at_s.saturating_add(BEGIN_DOUBT_S);
                if let Some(exit) = round.take_end_of(child, is_its) {
                    self.enter_end(exit, &mut round, living, &mut ended);
                }
                self.forget_number(child);
            }
            if let Some(job) = self.job_of(parent, living) {
                self.note_birth(child, job, living.now_s());
            }
        }
        for (index, exit) in deaths.iter().enumerate() {
            if !round.taken.contains(&index) {
                self.enter_end(exit, &mut round, living, &mut ended);
            }
        }
    }

    fn enter_end(
        &mut self,
        exit: &Exit,
        round: &mut Round<'_>,
        living: &mut impl Living,
        ended: &mut impl FnMut(Option<u32>, &Exit),
    ) {
        if living.is_listed(exit) {
            // One that is shown is not in the books as well, though its end will be missing there.
            match self.listed.len() < NOTED_MAX {
                true => self.listed.push(*exit),
                false => self.losses += 1,
            }
            return;
        }
        let is_first = round.ended.insert(exit.pid);
        ended(self.settle(exit, is_first, living), exit);
    }

    fn note_birth(&mut self, pid: u32, job: u32, at_s: i64) {
        if self.born.len() < NOTED_MAX {
            self.born.insert(pid, Noted { what: job, at_s });
        } else {
            self.losses += 1;
        }
    }

    /// When something was last noted of the process that has this number.
    fn noted_at_s(&self, pid: u32) -> Option<i64> {
        let born = self.born.get(&pid).map(|born| born.at_s);
        born.max(self.taken_over.get(&pid).map(|taken_over| taken_over.at_s))
    }

    /// A number was given again, and the end of the process that had it before was not reported.
    fn forget_number(&mut self, pid: u32) {
        let was_noted = [self.born.remove(&pid).is_some(), self.taken_over.remove(&pid).is_some()];
        self.losses += u64::from(was_noted.contains(&true));
    }

    fn job_of(&self, pid: u32, living: &impl Living) -> Option<u32> {
        living.job_of(pid).or_else(|| self.born.get(&pid).map(|born| born.what))
    }

    /// `is_first`: no other process with its number ended since the last look at the machine.
    fn settle(&mut self, exit: &Exit, is_first: bool, living: &mut impl Living) -> Option<u32> {
        let begin_s = living.begin_s(exit);
        let taken_over = self.taken_over.remove(&exit.pid).filter(|noted| noted.fits(begin_s));
        let mut whole = taken_over.map_or([0; INHERITED.len()], |noted| noted.what);
        let parent_job = self.job_of(exit.parent_pid, living);
        let seen = living.job_of_ended(exit).filter(|_| is_first);
        let born = self.born.remove(&exit.pid).filter(|noted| noted.fits(begin_s)).map(|noted| noted.what);
        // Its fork was not reported: its parent says whose it is, if it is not a supervisor.
        let job = seen.or(born).or(parent_job)?;
        if is_first && living.is_supervisor(exit) {
            return None;
        }
        add(&mut whole, &exit.inherited);
        let taken_by = parent_job.filter(|_| living.reaps(exit.parent_pid));
        let mut shown = false;
        for slot in around(job, living) {
            let is_shown = taken_by.is_some_and(|parent| around(parent, living).any(|one| one == slot));
            shown |= is_shown;
            let Some(gone) = self.jobs.get_mut(&slot) else { continue };
            add(&mut gone.ended, &exit.inherited);
            add(&mut gone.own, &exit.own);
            add(&mut gone.details, &exit.details);
            gone.processes += 1;
            gone.lacks_delays |= exit.lacks_delays;
            gone.unseen += u64::from(seen.is_none());
            if !is_shown {
                add(&mut gone.inherited, &whole);
                gone.cpu_doubt_ns = gone.cpu_doubt_ns.saturating_add(exit.cpu_doubt_ns);
            }
        }
        if shown {
            self.hand_over(exit.parent_pid, &whole, living.now_s());
        }
        Some(job)
    }

    fn hand_over(&mut self, parent: u32, whole: &[i64; INHERITED.len()], at_s: i64) {
        if self.taken_over.len() >= NOTED_MAX && !self.taken_over.contains_key(&parent) {
            self.losses += 1;
            return;
        }
        let noted = self.taken_over.entry(parent).or_insert(Noted { what: [0; INHERITED.len()], at_s });
        noted.at_s = at_s;
        add(&mut noted.what, whole);
    }
}

/// The deaths of one call, some of which are entered before their turn.
struct Round<'a> {
    deaths: &'a [Exit],
    /// By their numbers, once that is asked for.
    by_pid: Option<HashMap<u32, VecDeque<usize>>>,
    taken: HashSet<usize>,
    /// Numbers of those that were entered.
    ended: HashSet<u32>,
}

impl<'a> Round<'a> {
    fn new(deaths: &'a [Exit]) -> Round<'a> {
        Round { deaths, by_pid: None, taken: HashSet::new(), ended: HashSet::new() }
    }

    /// The first end of a process with this number that has not had its turn, if it is of the one meant.
    fn take_end_of(&mut self, pid: u32, is_its: impl Fn(&Exit) -> bool) -> Option<&'a Exit> {
        let deaths = self.deaths;
        let by_pid = self.by_pid.get_or_insert_with(|| {
            let mut by_pid: HashMap<u32, VecDeque<usize>> = HashMap::new();
            for (index, exit) in deaths.iter().enumerate() {
                by_pid.entry(exit.pid).or_default().push_back(index);
            }
            by_pid
        });
        let indices = by_pid.get_mut(&pid)?;
        let exit = deaths.get(*indices.front()?).filter(|exit| is_its(exit))?;
        self.taken.extend(indices.pop_front());
        Some(exit)
    }
}

/// The job, the job around it, and so on.
fn around(job: u32, living: &impl Living) -> impl Iterator<Item = u32> {
    const DEPTH_LIMIT: usize = 64;
    std::iter::successors(Some(job), |&inner| living.outer(inner)).take(DEPTH_LIMIT)
}

#[cfg(test)]
#[path = "process_exits_tests.rs"]
mod tests;
