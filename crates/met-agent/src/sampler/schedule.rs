//! When ticks are due. How often a job is sampled by its age and interest: `met_core::cadence`, `pacing.rs`.

use met_core::cadence::Cadence;
use met_host::clock;

use super::pacing::Pacing;

/// A job younger than this is read more often than the period: a short one would not be seen at all.
const EARLY_MS: [i64; 6] = [20, 50, 100, 200, 400, 800];
/// What is expensive to read is read at every tenth tick,
const SLOW_EVERY: i64 = 10;
/// or once in this time, if ticks are further apart than a second.
const SLOW_NS: i64 = 10_000_000_000;

/// The regular ticks.
pub(super) struct Schedule {
    pub(super) cadence: Cadence,
    /// The shortest time between two ticks.
    pub(super) interval_ns: i64,
    pub(super) next_ns: i64,
    pub(super) ticks: u64,
    /// When a tick last read all jobs.
    pub(super) all_read_ns: i64,
    /// Ticks also without jobs: the machine itself is watched.
    pub(super) watches_node: bool,
    /// When the largest processes are looked for again.
    pub(super) list_ns: i64,
    /// When all jobs and the machine are read again.
    together_ns: i64,
    /// How far apart two ticks were planned that read all jobs.
    apart_ns: i64,
    /// When all that is expensive is read again of the jobs that are read at every tick.
    slow_ns: i64,
    /// When it is checked again whether many ends of processes wait.
    pub(super) receive_ns: i64,
}

impl Schedule {
    pub(super) fn new(cadence: Cadence) -> Schedule {
        let mut schedule = Schedule {
            interval_ns: cadence.shortest_ns(),
            cadence,
            next_ns: 0,
            ticks: 0,
            all_read_ns: 0,
            watches_node: false,
            list_ns: 0,
            together_ns: 0,
            apart_ns: 0,
            slow_ns: 0,
            receive_ns: 0,
        };
        schedule.hasten();
        schedule
    }

    pub(super) fn set_cadence(&mut self, cadence: Cadence) {
        (self.interval_ns, self.together_ns, self.slow_ns) = (cadence.shortest_ns(), 0, 0);
        self.cadence = cadence;
        self.next_ns = self.multiple(self.interval_ns);
    }

    fn multiple(&self, interval_ns: i64) -> i64 {
        (clock::boottime_ns() / interval_ns + 1) * interval_ns
    }

    /// Ticks at the next multiple of the shortest interval: there is something new to read.
    pub(super) fn hasten(&mut self) {
        let soon_ns = self.multiple(self.interval_ns);
        self.next_ns = if self.next_ns == 0 { soon_ns } else { self.next_ns.min(soon_ns) };
    }

    /// At the next multiple of an interval: ticks do not drift, and nodes tick together. `jobs` are those there are.
    pub(super) fn plan_next<'p>(&mut self, jobs: impl Iterator<Item = &'p Pacing>) {
        let soon_ns = self.multiple(self.interval_ns);
        let first_ns = jobs.map(Pacing::next_ns).min().unwrap_or(i64::MAX);
        self.next_ns = first_ns.min(self.together_ns).max(soon_ns);
    }

    /// Whether all jobs are read at a regular tick, if little of each.
    pub(super) fn is_together_due(&self, now_ns: i64) -> bool {
        now_ns >= self.together_ns
    }

    pub(super) fn plan_together(&mut self) {
        self.together_ns = self.multiple(self.cadence.together_ns());
    }

    /// All jobs are read now; `are_fast`: and at every tick from now on. How long ago that may have been planned: a
    /// longer time without a reading is a gap.
    pub(super) fn plan_apart(&mut self, are_fast: bool) -> i64 {
        let apart_ns = if are_fast { self.interval_ns } else { self.cadence.together_ns() };
        std::mem::replace(&mut self.apart_ns, apart_ns).max(apart_ns)
    }

    /// Whether a regular tick reads all that is expensive.
    pub(super) fn is_slow_due(&self, now_ns: i64) -> bool {
        now_ns >= self.slow_ns
    }

    pub(super) fn plan_slow(&mut self, now_ns: i64) {
        // Ticks may come a little early or late.
        self.slow_ns = now_ns + self.slow_every_ns() - self.interval_ns / 2;
    }

    /// Whether a job of this age has had a slow tick.
    pub(super) fn is_old(&self, age: &Age, now_ns: i64) -> bool {
        now_ns - age.born_ns > self.slow_every_ns()
    }

    /// Whether jobs with this interval have all that is expensive read each time.
    pub(super) fn is_slow(&self, interval_ns: i64) -> bool {
        interval_ns >= self.slow_every_ns()
    }

    fn slow_every_ns(&self) -> i64 {
        (self.interval_ns * SLOW_EVERY).min(SLOW_NS).max(self.interval_ns)
    }
}

/// When a job began, which of its early ticks it had, and its pace since then.
pub(super) struct Age {
    pub(super) born_ns: i64,
    /// When it started, in unix time.
    pub(super) start_ms: Option<i64>,
    early_taken: usize,
    /// Unix time minus boot time when the job began: its samples stay in line if the clock is set.
    unix_offset_ns: i64,
    pub(super) pacing: Pacing,
}

impl Age {
    /// `start_ns`: when the job started, in unix time, if that is known.
    pub(super) fn new(born_ns: i64, start_ns: Option<i64>) -> Age {
        let unix_offset_ns = clock::realtime_ns() - born_ns;
        let started_ns = start_ns.map_or(born_ns, |start_ns| start_ns - unix_offset_ns).min(born_ns);
        let start_ms = start_ns.map(|start_ns| start_ns / 1_000_000);
        Age { born_ns, start_ms, early_taken: 0, unix_offset_ns, pacing: Pacing::new(started_ns) }
    }

    /// When its next early tick is due.
    pub(super) fn early_ns(&self) -> Option<i64> {
        EARLY_MS.get(self.early_taken).map(|ms| self.born_ns + ms * 1_000_000)
    }

    pub(super) fn pass_early(&mut self, now_ns: i64) {
        while self.early_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.early_taken += 1;
        }
    }

    /// The time of a sample.
    pub(super) fn unix_ms(&self, now_ns: i64) -> i64 {
        (now_ns + self.unix_offset_ns) / 1_000_000
    }
}
