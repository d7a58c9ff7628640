//! Follows the ends of processes for the sampler: what they did that no sample saw, and for which job.

use std::collections::HashMap;

use met_core::attribute::JobMap;
use met_core::process_exits::{Exit, ExitLedger, Gone, Living};
use met_core::{FastMap, MISSING, Subject};
use met_host::{Host, Targets, TaskRole, TaskTarget, clock, parse};
use met_sources::taskstats::exits::{Exits, News};

/// Processes of which no end was reported are remembered up to this many, then added up.
const DEPARTED_MAX: usize = 4096;

/// Users whose processes ended outside jobs are distinguished up to this many.
const STRANGERS_MAX: usize = 4096;

/// After an end was lost, so much later is looked for those that are gone and still in the books.
const FORGET_AFTER_NS: i64 = 10_000_000_000;

/// The start of a process is reported to the second, and rounded.
const BEGIN_DOUBT_NS: i64 = 2_000_000_000;

/// Processes whose dealing with children is looked up at one tick; each costs about 20 µs.
const ASKED_MAX: usize = 32;

/// The listener and its books. Without permission, or if it is off, everything here is empty.
#[derive(Default)]
pub struct Departures {
    exits: Option<Exits>,
    refused: bool,
    /// By configuration.
    off: bool,
    /// Losses of listeners that are no more, and times that none listened while there were jobs.
    gaps: u64,
    ledger: ExitLedger,
    /// Whose the processes were before the last look at the machine.
    before: FastMap<u32, Member>,
    news: News,
    reaping: Reaping,
    strangers: Strangers,
    /// When those are looked for whose end was lost.
    forget_at_ns: Option<i64>,
    /// CPU time of this, and of listeners that are no more.
    spent_ns: i64,
    spent_listening_ns: i64,
}

#[derive(Clone, Copy)]
struct Member {
    slot: u32,
    supervisor: bool,
    start_ticks: u64,
}

/// How far the ends of a job's processes can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    losses: u64,
    complete: bool,
    /// Boot time since when processes may have entered the job that no process of it started.
    entered_since_ns: Option<i64>,
}

/// From when on the ends of a job's processes must have been received, in nanoseconds of the boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// Its first process began then, and all others descend from that.
    Process(i64),
    /// Its cgroup was made then, and any process may be moved into it.
    Cgroup(i64),
    Unknown,
}

impl Departures {
    pub fn new(off: bool) -> Departures {
        Departures { off, ..Departures::default() }
    }

    /// Stops the listener, or starts it again if there are jobs. Exits in between are lost.
    pub fn set_off(&mut self, host: &Host, off: bool) {
        if std::mem::replace(&mut self.off, off) == off {
            return;
        }
        if off {
            self.gaps += self.news.losses + 1;
            self.stop();
        } else if !self.ledger.is_empty() {
            self.listen(host);
            self.forget_at_ns = Some(clock::boottime_ns());
        }
    }

    fn listen(&mut self, host: &Host) {
        if self.exits.is_none() && !self.refused && !self.off {
            self.exits = Exits::listen(host).ok();
            self.refused = self.exits.is_none();
        }
    }

    fn stop(&mut self) {
        self.spent_listening_ns = self.listening_cpu_ns();
        self.exits = None;
        self.news = News::default();
        self.reaping = Reaping::default();
        self.before = FastMap::default();
        self.forget_at_ns = None;
    }

    /// Opens the books for a job. `is_unused` says that nothing has run in its cgroup yet.
    pub fn open(
        &mut self,
        host: &Host,
        slot: u32,
        beginning: Beginning,
        is_unused: impl FnOnce() -> bool,
    ) -> Watch {
        self.listen(host);
        self.ledger.open_page(slot);
        let exits = self.exits.as_ref().filter(|exits| exits.knows_births());
        let heard_since = |begin_ns: i64| exits.is_some_and(|exits| exits.since_ns() <= begin_ns);
        let (complete, entered_since_ns) = match beginning {
            Beginning::Process(begin_ns) => {
                (heard_since(begin_ns) && !self.strangers.ended_since(begin_ns, None), None)
            }
            Beginning::Cgroup(begin_ns) => {
                (heard_since(begin_ns) || exits.is_some() && is_unused(), Some(begin_ns))
            }
            Beginning::Unknown => (false, None),
        };
        Watch { losses: self.losses(), complete, entered_since_ns }
    }

    /// Closes the books of a job, and stops listening with the last of them.
    pub fn close(&mut self, slot: u32) {
        self.ledger.close_page(slot);
        if self.ledger.is_empty() {
            self.gaps = 0;
            self.stop();
        }
    }

    /// How often something was lost that should be in the books.
    fn losses(&self) -> u64 {
        self.gaps + self.news.losses + self.ledger.losses()
    }

    /// CPU time spent in entering what was received.
    pub fn cpu_ns(&self) -> i64 {
        self.spent_ns
    }

    /// CPU time of the thread that listens.
    pub fn listening_cpu_ns(&self) -> i64 {
        self.spent_listening_ns + self.exits.as_ref().map_or(0, Exits::cpu_ns)
    }

    pub fn is_listening(&self) -> bool {
        self.exits.is_some()
    }

    /// Whether so much waits that some may be lost before the next tick.
    pub fn is_crowded(&self) -> bool {
        self.exits.as_ref().is_some_and(Exits::is_crowded)
    }

    pub fn accounts_delays(&self) -> bool {
        self.exits.as_ref().is_some_and(Exits::accounts_delays)
    }

    /// Whether every end of the processes of a job was received, and known to be its. One that was put into a
    /// cgroup and ended before any look is of no known job, so no such process of the job's owner may have ended.
    pub fn is_complete(&self, watch: Watch, owner_uid: Option<u32>) -> bool {
        let doubtful = |since_ns| self.strangers.ended_since(since_ns, owner_uid);
        self.is_listening()
            && watch.complete
            && watch.losses == self.losses()
            && !watch.entered_since_ns.is_some_and(doubtful)
    }

    pub fn gone(&self, slot: u32) -> Option<&Gone> {
        self.ledger.page(slot).filter(|_| self.is_listening() || self.gaps > 0)
    }

    /// Receives what happened up to now. Called before the machine is read: a process that is reported here and
    /// still found there is a zombie: no process counts twice.
    pub fn receive(&mut self, targets: &Targets, map: &JobMap) {
        let Some(exits) = &self.exits else { return };
        let begin_ns = clock::thread_cpu_ns();
        let losses = self.news.losses;
        self.news = exits.take();
        if self.news.losses > losses {
            self.forget_at_ns.get_or_insert(clock::boottime_ns() + FORGET_AFTER_NS);
        }
        self.before = match self.news.is_empty() {
            true => FastMap::default(),
            false => members(targets, map),
        };
        self.spent_ns += clock::thread_cpu_ns() - begin_ns;
    }

    /// Enters what was received. `leaving` is a job of which nothing is read any more; `ended` is called with every
    /// process of a job that is over, and of its innermost job.
    pub fn enter(
        &mut self,
        host: &Host,
        targets: &Targets,
        map: &JobMap,
        leaving: Option<u32>,
        mut ended: impl FnMut(u32, &Exit),
    ) {
        self.forget_dead_if_due(host);
        if self.exits.is_none() || (self.news.is_empty() && !self.ledger.is_waiting()) {
            return;
        }
        let begin_ns = clock::thread_cpu_ns();
        let mut living = View {
            before: &self.before,
            now: members(targets, map),
            map,
            host,
            leaving,
            reaping: &mut self.reaping,
            clocks: Clocks::now(host),
        };
        let (strangers, now_ns) = (&mut self.strangers, clock::boottime_ns());
        self.ledger.enter(&self.news.births, &self.news.ends, &mut living, |job, exit| match job {
            Some(job) => ended(job, exit),
            None => strangers.note(exit.uid, now_ns),
        });
        living.reaping.forget(|pid| living.now.contains_key(&pid));
        self.news.births.clear();
        self.news.ends.clear();
        self.spent_ns += clock::thread_cpu_ns() - begin_ns;
    }

    fn forget_dead_if_due(&mut self, host: &Host) {
        if self.forget_at_ns.is_some_and(|due_ns| due_ns <= clock::boottime_ns()) {
            self.forget_at_ns = None;
            self.ledger.forget_dead(|pid| host.proc_dir().look_at(pid.to_string()).is_ok());
        }
    }
}

/// The clocks by which processes begin, at one moment.
#[derive(Clone, Copy)]
struct Clocks {
    monotonic_ns: i64,
    boot_ns: i64,
    unix_ns: i64,
    tick_ns: i64,
}

impl Clocks {
    fn now(host: &Host) -> Clocks {
        Clocks {
            monotonic_ns: clock::monotonic_ns(),
            boot_ns: clock::boottime_ns(),
            unix_ns: clock::realtime_ns(),
            tick_ns: 1_000_000_000 / host.facts().ticks_per_second.max(1),
        }
    }

    /// The kernel reports the beginning by how long a process lived while the machine was awake, and by the
    /// clock as it was set at its end.
    fn monotonic_begin_s(&self, exit: &Exit) -> i64 {
        exit.begin_s - (self.unix_ns - self.monotonic_ns) / 1_000_000_000
    }

    /// Whether a process that is listed is a later one than that which ended. If the machine has slept since
    /// then, that is unknown.
    fn is_later(&self, start_ticks: u64, exit: &Exit) -> bool {
        let start_ns = i64::try_from(start_ticks).unwrap_or(i64::MAX).saturating_mul(self.tick_ns);
        let begin_ns = exit.begin_s.saturating_mul(1_000_000_000).saturating_sub(self.unix_ns - self.boot_ns);
        start_ns.saturating_sub(begin_ns) > BEGIN_DOUBT_NS
    }
}

/// When a process last ended that was of no known job, and may have been of a job not known yet: by user.
#[derive(Default)]
struct Strangers {
    last_ns: HashMap<u32, i64>,
    /// Of users beyond those.
    others_ns: Option<i64>,
}

impl Strangers {
    fn note(&mut self, uid: u32, now_ns: i64) {
        if self.last_ns.len() < STRANGERS_MAX || self.last_ns.contains_key(&uid) {
            self.last_ns.insert(uid, now_ns);
        } else {
            self.others_ns = Some(now_ns);
        }
    }

    /// `uid`: of this user alone.
    fn ended_since(&self, since_ns: i64, uid: Option<u32>) -> bool {
        let of_users = match uid {
            Some(uid) => self.last_ns.get(&uid).copied(),
            None => self.last_ns.values().max().copied(),
        };
        of_users.max(self.others_ns).is_some_and(|last_ns| last_ns >= since_ns)
    }
}

fn members(targets: &Targets, map: &JobMap) -> FastMap<u32, Member> {
    let member = |&TaskTarget { pid, start_ticks, role, .. }: &TaskTarget| {
        let slot = map.owner(Subject::Task { pid, start_ticks })?;
        Some((pid, Member { slot, supervisor: role == TaskRole::Supervisor, start_ticks }))
    };
    targets.tasks.iter().filter_map(member).collect()
}

struct View<'a> {
    before: &'a FastMap<u32, Member>,
    now: FastMap<u32, Member>,
    map: &'a JobMap,
    host: &'a Host,
    leaving: Option<u32>,
    reaping: &'a mut Reaping,
    clocks: Clocks,
}

impl View<'_> {
    fn member(&self, pid: u32) -> Option<Member> {
        self.now.get(&pid).or_else(|| self.before.get(&pid)).copied()
    }

    /// Not another one that has its number since.
    fn ended_member(&self, exit: &Exit) -> Option<Member> {
        let looks = [&self.now, self.before];
        let mut found = looks.into_iter().filter_map(|look| look.get(&exit.pid)).copied();
        found.find(|member| !self.clocks.is_later(member.start_ticks, exit))
    }
}

impl Living for View<'_> {
    fn job_of(&self, pid: u32) -> Option<u32> {
        self.member(pid).map(|member| member.slot)
    }

    fn job_of_ended(&self, exit: &Exit) -> Option<u32> {
        self.ended_member(exit).map(|member| member.slot)
    }

    fn is_listed(&self, exit: &Exit) -> bool {
        self.now.get(&exit.pid).is_some_and(|member| {
            Some(member.slot) != self.leaving && !self.clocks.is_later(member.start_ticks, exit)
        })
    }

    fn is_supervisor(&self, exit: &Exit) -> bool {
        self.ended_member(exit).is_some_and(|member| member.supervisor)
    }

    fn now_s(&self) -> i64 {
        self.clocks.monotonic_ns / 1_000_000_000
    }

    fn begin_s(&self, exit: &Exit) -> i64 {
        self.clocks.monotonic_begin_s(exit)
    }

    fn outer(&self, job: u32) -> Option<u32> {
        self.map.outer(job)
    }

    fn reaps(&mut self, pid: u32) -> bool {
        if self.member(pid).is_some_and(|member| member.supervisor) {
            return true;
        }
        self.reaping.ask(self.host, pid)
    }
}

/// Who waits for its children, as last seen.
#[derive(Default)]
struct Reaping {
    known: HashMap<u32, (u64, bool)>,
    round: u64,
    asked: usize,
}

impl Reaping {
    /// Looks again in each round, since a process may change its mind; beyond some, what was seen holds.
    fn ask(&mut self, host: &Host, pid: u32) -> bool {
        if let Some(&(round, reaps)) = self.known.get(&pid)
            && (round == self.round || self.asked >= ASKED_MAX)
        {
            return reaps;
        }
        self.asked += 1;
        // Who is gone as well was what it last was; most wait.
        let before = self.known.get(&pid).is_none_or(|&(_, reaps)| reaps);
        let reaps = ignores_children(host, pid).map_or(before, |ignores| !ignores);
        self.known.insert(pid, (self.round, reaps));
        reaps
    }

    fn forget(&mut self, is_alive: impl Fn(u32) -> bool) {
        self.known.retain(|&pid, _| is_alive(pid));
        self.round += 1;
        self.asked = 0;
    }
}

/// Whether a process ignores SIGCHLD: the kernel then drops what its children did.
fn ignores_children(host: &Host, pid: u32) -> Option<bool> {
    const SIGCHLD_BIT: u32 = libc::SIGCHLD as u32 - 1;
    let mut text = Vec::new();
    host.read_small(format!("/proc/{pid}/status"), &mut text).ok()?;
    let (_, mask) = parse::key_values(&text).find(|(key, _)| *key == b"SigIgn")?;
    let mask = u64::from_str_radix(std::str::from_utf8(mask).ok()?, 16).ok()?;
    Some(mask >> SIGCHLD_BIT & 1 == 1)
}

/// Figures that end with their process: those of the living as last read, and of the gone.
pub struct OwnFigures<const COUNT: usize> {
    living: FastMap<u32, Seen<COUNT>>,
    /// Gone from the list, and no record of their end yet.
    departed: FastMap<u32, Seen<COUNT>>,
    ended: [i64; COUNT],
}

#[derive(Clone, Copy)]
struct Seen<const COUNT: usize> {
    start_ticks: u64,
    cells: [i64; COUNT],
}

impl<const COUNT: usize> Default for OwnFigures<COUNT> {
    fn default() -> OwnFigures<COUNT> {
        OwnFigures { living: FastMap::default(), departed: FastMap::default(), ended: [0; COUNT] }
    }
}

impl<const COUNT: usize> OwnFigures<COUNT> {
    /// A reading of one process; a thread that ended takes its figures out of some of them.
    pub fn see(&mut self, pid: u32, start_ticks: u64, index: usize, cell: i64) {
        if cell == MISSING {
            return;
        }
        let fresh = Seen { start_ticks, cells: [0; COUNT] };
        let seen = self.living.entry(pid).or_insert(fresh);
        if seen.start_ticks != start_ticks {
            // The number is another's by now, and the end of the first was lost.
            let lost = std::mem::replace(seen, fresh);
            add_cells(&mut self.ended, &lost);
        }
        seen.cells[index] = seen.cells[index].max(cell);
    }

    /// Its end was reported, with figures better than these.
    pub fn end(&mut self, pid: u32) {
        if self.living.remove(&pid).is_none() {
            self.departed.remove(&pid);
        }
    }

    /// Puts those aside that are no longer listed; `reported` says whether their ends are.
    pub fn depart(&mut self, reported: bool, is_listed: impl Fn(Subject) -> bool) {
        let OwnFigures { living, departed, ended } = self;
        living.retain(|&pid, seen| {
            let listed = is_listed(Subject::Task { pid, start_ticks: seen.start_ticks });
            if !listed && let Some(lost) = departed.insert(pid, *seen) {
                add_cells(ended, &lost);
            }
            listed
        });
        if !reported || self.departed.len() > DEPARTED_MAX {
            self.departed.drain().for_each(|(_, seen)| add_cells(&mut self.ended, &seen));
        }
    }

    pub fn total(&self, index: usize) -> i64 {
        let sum = |seen: &FastMap<u32, Seen<COUNT>>| seen.values().map(|seen| seen.cells[index]).sum::<i64>();
        self.ended[index] + sum(&self.living) + sum(&self.departed)
    }
}

fn add_cells<const COUNT: usize>(sums: &mut [i64; COUNT], seen: &Seen<COUNT>) {
    for (sum, cell) in sums.iter_mut().zip(seen.cells) {
        *sum = sum.saturating_add(cell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_did_whose_end_was_lost_stays_when_its_number_is_given_again() {
        let mut own = OwnFigures::<1>::default();
        own.see(7, 1, 0, 10);
        own.see(7, 90, 0, 4);
        assert_eq!(own.total(0), 14);
        own.depart(true, |_| false);
        own.see(7, 95, 0, 1);
        own.depart(true, |_| false);
        assert_eq!(own.total(0), 15);
        own.end(7);
        assert_eq!(own.total(0), 14, "the end of the last one was reported");
    }

    #[test]
    fn a_process_that_has_the_number_of_another_is_distinguished_from_it() {
        const SECOND_NS: i64 = 1_000_000_000;
        // Booted at 1000, up for 500 seconds of which it slept 100.
        let clocks = Clocks {
            monotonic_ns: 400 * SECOND_NS,
            boot_ns: 500 * SECOND_NS,
            unix_ns: 1500 * SECOND_NS,
            tick_ns: SECOND_NS / 100,
        };
        let exit = Exit { begin_s: 1450, ..Exit::default() };
        assert_eq!(clocks.monotonic_begin_s(&exit), 350);
        assert_eq!(
            [45_000, 45_100, 49_000, 100].map(|ticks| clocks.is_later(ticks, &exit)),
            [false, false, true, false]
        );
    }

    #[test]
    fn a_process_that_vanished_counts_as_last_seen_until_its_end_is_reported() {
        let mut own = OwnFigures::<1>::default();
        own.see(7, 1, 0, 10);
        own.see(7, 1, 0, 8);
        own.see(8, 1, 0, 5);
        assert_eq!(own.total(0), 15);
        own.depart(true, |subject| subject == Subject::Task { pid: 8, start_ticks: 1 });
        assert_eq!(own.total(0), 15);
        own.end(7);
        assert_eq!(own.total(0), 5, "the record of its end has the rest");
        own.depart(false, |_| false);
        own.end(8);
        assert_eq!(own.total(0), 5, "without records the last reading is all there is");
    }

    #[test]
    fn a_listener_that_is_off_receives_nothing_and_a_job_of_that_time_is_not_complete() {
        let host = Host::real().unwrap();
        let mut departures = Departures::new(true);
        let begin = || Beginning::Process(clock::boottime_ns());
        departures.open(&host, 1, begin(), || false);
        assert!(!departures.is_listening(), "it is off");
        departures.set_off(&host, false);
        if !departures.is_listening() {
            met_core::skipped::skipped("no exit records here");
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        let watch = departures.open(&host, 2, begin(), || false);
        let complete = departures.is_complete(watch, None);
        departures.set_off(&host, true);
        assert!(!departures.is_listening() && !departures.is_complete(watch, None));
        departures.set_off(&host, false);
        assert!(departures.is_listening());
        assert!(complete && !departures.is_complete(watch, None), "exits in between are lost");
        departures.close(1);
        departures.close(2);
        assert!(!departures.is_listening(), "no job needs it");
    }

    #[test]
    fn strangers_cast_doubt_on_their_own_users_jobs() {
        let mut strangers = Strangers::default();
        assert!(!strangers.ended_since(0, None));
        strangers.note(1000, 50);
        let seen = [(50, Some(1000)), (51, Some(1000)), (50, Some(1001)), (50, None)];
        assert_eq!(
            seen.map(|(since_ns, uid)| strangers.ended_since(since_ns, uid)),
            [true, false, false, true]
        );
        for uid in 0..2 * STRANGERS_MAX as u32 {
            strangers.note(uid, 60);
        }
        assert!(strangers.ended_since(60, Some(4_000_000)), "beyond so many everybody is in doubt");
    }

    #[test]
    fn who_ignores_its_children_is_known() {
        let root = tempfile::tempdir().unwrap();
        for (pid, mask) in [(5, "0000000000010000"), (6, "0000000000001000")] {
            let folder = root.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("status"), format!("Name:\tx\nSigIgn:\t{mask}\n")).unwrap();
        }
        let host = Host::at(root.path()).unwrap();
        let seen = [5, 6, 7].map(|pid| ignores_children(&host, pid));
        assert_eq!(seen, [Some(true), Some(false), None]);
    }
}
