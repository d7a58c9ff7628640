//! When a job is read, and how much of it.

use std::time::Duration;

use met_core::MISSING;
use met_core::cadence::{Asked, CHANGED_FOR_NS, Interest, Ladder, WATCHED_FOR_NS};
use met_core::job_table::{CPU, MEMORY_NEEDED, READ, WRITTEN};
use met_host::Look;

/// Figures are compared over at least this long: shorter times are noise.
const COMPARED_NS: i64 = 5_000_000_000;
/// A job that changes all the time is sampled at the shortest interval for this part of its time.
const CHANGING_SHARE: i64 = 10;
const CHANGING_MAX_NS: i64 = 10 * CHANGED_FOR_NS;

/// Changes below this, or below a third of the figure, are not sharp: thousandths of a core, bytes, bytes per second.
const CORES_MILLI_MIN: i64 = 50;
const MEMORY_MIN_BYTES: i64 = 64 << 20;
const IO_MIN_BYTES: i64 = 4 << 20;

/// The pace of one job.
pub(super) struct Pacing {
    /// Boot time.
    started_ns: i64,
    /// When it is to be read in full again.
    next_ns: i64,
    /// How it is read by this tick.
    pub(super) look: Look,
    changed_ns: Option<i64>,
    asked_ns: Option<i64>,
    /// The last request of a client that watches it; later than now where it is to be sampled like that for longer.
    watched_ns: Option<i64>,
    compared: Option<Compared>,
    /// For so long it may still be sampled at the shortest interval because of changes.
    allowed_ns: i64,
}

/// Counters when they were last compared, and what they showed then.
#[derive(Clone, Copy)]
struct Compared {
    at_ns: i64,
    cpu_ns: i64,
    io_bytes: i64,
    /// When that was read: not at every look.
    io_at_ns: i64,
    cores_milli: Option<i64>,
    io_per_s: Option<i64>,
    memory_bytes: i64,
}

impl Pacing {
    pub(super) fn new(started_ns: i64) -> Pacing {
        Pacing {
            started_ns,
            next_ns: i64::MIN,
            look: Look::Usual,
            changed_ns: None,
            asked_ns: None,
            watched_ns: None,
            compared: None,
            allowed_ns: 2 * CHANGED_FOR_NS,
        }
    }

    pub(super) fn interval_ns(&self, ladder: &Ladder, now_ns: i64) -> i64 {
        ladder.interval_ns(&Interest {
            age_ns: now_ns - self.started_ns,
            changed_ns: self.changed_ns.map(|at_ns| now_ns - at_ns),
            watched_ns: self.watched_ns.map(|at_ns| now_ns - at_ns),
        })
    }

    /// Whether this tick has read all of it; `slow`: whether it read all of those that are read at every tick.
    pub(super) fn is_whole(&self, slow: bool) -> bool {
        self.look == Look::Whole || self.look == Look::Usual && slow
    }

    pub(super) fn next_ns(&self) -> i64 {
        self.next_ns
    }

    /// Reads it in full at the next tick.
    pub(super) fn hurry(&mut self) {
        self.next_ns = i64::MIN;
    }

    /// After it was read: at the next multiple of its interval, as all jobs of this interval.
    pub(super) fn plan(&mut self, ladder: &Ladder, now_ns: i64) {
        let interval_ns = self.interval_ns(ladder, now_ns);
        let next_ns = (now_ns / interval_ns + 1).saturating_mul(interval_ns);
        self.next_ns = match self.look {
            // What was planned holds unless there is more interest now.
            Look::No | Look::Cheap => self.next_ns.min(next_ns),
            Look::Usual | Look::Whole => next_ns,
        };
    }

    /// A client asked for it. Whether it is watched since then.
    pub(super) fn ask(&mut self, now_ns: i64) -> bool {
        let past_ns = self.asked_ns.map(|before_ns| now_ns.saturating_sub(before_ns).max(0));
        let asked = Asked::after(past_ns.map(|past_ns| Duration::from_nanos(past_ns as u64)));
        if asked != Asked::Same {
            self.asked_ns = Some(now_ns);
        }
        if asked == Asked::Again {
            self.watched_ns = self.watched_ns.max(Some(now_ns));
        }
        asked == Asked::Again
    }

    /// It is watched elsewhere, for this long. Whether it was not before.
    pub(super) fn watch(&mut self, now_ns: i64, for_ns: i64) -> bool {
        let is_new = self.watched_ns.is_none_or(|at_ns| now_ns - at_ns >= WATCHED_FOR_NS);
        let at_ns = now_ns.saturating_add(for_ns.max(0)).saturating_sub(WATCHED_FOR_NS);
        self.watched_ns = self.watched_ns.max(Some(at_ns));
        is_new
    }

    /// Compares what was just read with what was read before.
    pub(super) fn compare(&mut self, now_ns: i64, cells: &[i64]) {
        let is_early = |before: Compared| now_ns - before.at_ns < COMPARED_NS;
        if cells[CPU] == MISSING || self.compared.is_some_and(is_early) {
            return;
        }
        let known = |column: usize| Some(cells[column]).filter(|&cell| cell != MISSING);
        let before = self.compared;
        let read_io = known(READ).zip(known(WRITTEN)).map(|(read, written)| read.saturating_add(written));
        let per_s = |before_cell: i64, cell: i64, elapsed_ns: i64| {
            let is_known = before_cell != MISSING && cell != MISSING;
            let grown = i128::from(cell.saturating_sub(before_cell).max(0)) * 1_000_000_000;
            is_known.then(|| i64::try_from(grown / i128::from(elapsed_ns.max(1))).unwrap_or(i64::MAX))
        };
        let cpu = before.and_then(|before| per_s(before.cpu_ns, cells[CPU], now_ns - before.at_ns));
        // Where I/O was not read, it goes on as it was: it can have changed little.
        let io_per_s = before.and_then(|before| match read_io {
            Some(bytes) => per_s(before.io_bytes, bytes, now_ns - before.io_at_ns),
            None => before.io_per_s,
        });
        let (io_bytes, io_at_ns) = match (read_io, before) {
            (None, Some(before)) => (before.io_bytes, before.io_at_ns),
            _ => (read_io.unwrap_or(MISSING), now_ns),
        };
        let now = Compared {
            at_ns: now_ns,
            cpu_ns: cells[CPU],
            io_bytes,
            io_at_ns,
            cores_milli: cpu.map(|ns_per_s| ns_per_s / 1_000_000),
            io_per_s,
            memory_bytes: cells[MEMORY_NEEDED],
        };
        self.compared = Some(now);
        let Some(before) = before else { return };
        self.allowed_ns = (self.allowed_ns + (now_ns - before.at_ns) / CHANGING_SHARE).min(CHANGING_MAX_NS);
        let memory = |of: Compared| Some(of.memory_bytes).filter(|&bytes| bytes != MISSING);
        let is_sharp = is_sharp(before.cores_milli, now.cores_milli, CORES_MILLI_MIN)
            || is_sharp(before.io_per_s, now.io_per_s, IO_MIN_BYTES)
            || is_sharp(memory(before), memory(now), MEMORY_MIN_BYTES);
        if is_sharp && self.allowed_ns >= CHANGED_FOR_NS {
            let lasted_ns = self.changed_ns.map_or(CHANGED_FOR_NS, |at_ns| now_ns - at_ns);
            self.allowed_ns -= lasted_ns.min(CHANGED_FOR_NS);
            self.changed_ns = Some(now_ns);
        }
    }
}

fn is_sharp(before: Option<i64>, now: Option<i64>, least: i64) -> bool {
    before.zip(now).is_some_and(|(before, now)| (now - before).abs() > least.max(before.min(now) / 3))
}

#[cfg(test)]
mod tests {
    use met_core::JOB;
    use met_core::cadence::TOGETHER_NS;
    use met_core::series::Series;

    use super::*;

    const SECOND_NS: i64 = 1_000_000_000;
    const DAY_S: i64 = 86_400;

    /// What a job has done after so many seconds: its load is in thousandths of a core, and bytes per second.
    fn counters(second: i64, load: &impl Fn(i64) -> (i64, i64), from_s: i64) -> (i64, i64) {
        (from_s..second)
            .map(load)
            .fold((0, 0), |sum, (milli, bytes)| (sum.0 + milli * 1_000_000, sum.1 + bytes))
    }

    /// A job of this age on the default ladder, read by a simulated clock as the sampler does, for some time.
    fn followed(age_s: i64, for_s: i64, load: impl Fn(i64) -> (i64, i64)) -> (Series, usize) {
        let ladder = Ladder::default();
        let (mut pacing, mut series, mut whole) = (Pacing::new(0), Series::new(&JOB), 0);
        for second in age_s..age_s + for_s {
            let now_ns = second * SECOND_NS;
            pacing.look = match (now_ns >= pacing.next_ns(), now_ns % TOGETHER_NS == 0) {
                (true, _) => Look::Whole,
                (false, true) => Look::Cheap,
                (false, false) => continue,
            };
            whole += usize::from(pacing.look == Look::Whole);
            let (cpu_ns, bytes) = counters(second, &load, age_s);
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[READ], cells[WRITTEN], cells[MEMORY_NEEDED]) = (cpu_ns, 0, bytes, 1 << 30);
            series.push(second * 1000, &cells);
            pacing.compare(now_ns, &cells);
            pacing.plan(&ladder, now_ns);
        }
        (series, whole)
    }

    #[test]
    fn a_burst_shows_at_its_height_at_any_age_and_at_any_moment() {
        for age_s in [400, 7200, 2 * DAY_S] {
            for shift_s in [0, 3, 7, 9] {
                let begin_s = age_s + 300 + shift_s;
                let is_burst = |second: i64| (begin_s..begin_s + 30).contains(&second);
                let load = |second: i64| if is_burst(second) { (4000, 200 << 20) } else { (500, 1 << 20) };
                let (series, whole) = followed(age_s, 900, load);
                let peak = |column: usize| {
                    series.intervals(column, 25_000).map(|span| span.peak).fold(0.0, f64::max)
                };
                assert!(peak(CPU) >= 0.8 * 4e9, "{} at {age_s} s", peak(CPU));
                assert!(peak(WRITTEN) >= 0.8 * f64::from(200 << 20), "{} at {age_s} s", peak(WRITTEN));
                let in_burst = series.times_ms.iter().filter(|&&time_ms| is_burst(time_ms / 1000)).count();
                assert!(in_burst >= 15, "it is sampled every second again: {in_burst} at {age_s} s");
                assert!(whole < 250, "and not for ever: {whole} at {age_s} s");
            }
        }
    }

    #[test]
    fn io_that_was_not_read_while_it_was_little_is_seen_to_grow() {
        let mut pacing = Pacing::new(0);
        let mut compare = |second: i64, bytes: i64| {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED], cells[READ], cells[WRITTEN]) =
                (0, 1 << 30, bytes, bytes.min(0));
            pacing.compare(second * SECOND_NS, &cells);
            pacing.changed_ns
        };
        for second in [0, 10, 30] {
            assert_eq!(compare(second, 0), None);
            assert_eq!(compare(second + 5, MISSING), None);
        }
        assert_eq!(compare(50, 500 << 20), Some(50 * SECOND_NS));
    }

    #[test]
    fn steady_io_that_is_read_once_a_minute_is_no_change() {
        let mut pacing = Pacing::new(0);
        for second in (0..600).step_by(10) {
            let bytes = if second % 60 == 0 { second << 20 } else { MISSING };
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED], cells[READ], cells[WRITTEN]) =
                (0, 1 << 30, bytes, bytes.min(0));
            pacing.compare(second * SECOND_NS, &cells);
        }
        assert_eq!(pacing.changed_ns, None);
    }

    #[test]
    fn a_steady_job_is_read_in_full_as_rarely_as_its_ladder_says() {
        for (age_s, interval_s) in [(0, 1), (400, 10), (7200, 30), (2 * DAY_S, 60)] {
            let for_s = if age_s == 0 { 300 } else { 1200 };
            let (series, whole) = followed(age_s, for_s, |_| (1000, 0));
            assert!((whole as i64 - for_s / interval_s).abs() <= 1, "{whole} at {age_s} s");
            let longest_ms = series.spans_ms().into_iter().max();
            assert!(longest_ms <= Some(10_000), "CPU time and memory are read every 10 s: {longest_ms:?}");
        }
    }

    #[test]
    fn a_job_that_changes_all_the_time_is_not_sampled_every_second_all_the_time() {
        let (_, whole) = followed(2 * DAY_S, 3600, |second| (if second / 20 % 2 == 0 { 4000 } else { 0 }, 0));
        assert!((60..900).contains(&whole), "{whole}");
    }

    #[test]
    fn who_asks_again_and_again_watches() {
        let mut pacing = Pacing::new(0);
        let ladder = Ladder::default();
        let now_ns = 2 * DAY_S * SECOND_NS;
        assert!(!pacing.ask(now_ns), "one request is not watching");
        assert_eq!(pacing.interval_ns(&ladder, now_ns), 60 * SECOND_NS);
        assert!(pacing.ask(now_ns + 2 * SECOND_NS));
        assert_eq!(pacing.interval_ns(&ladder, now_ns + 3 * SECOND_NS), SECOND_NS);
        assert_eq!(pacing.interval_ns(&ladder, now_ns + 60 * SECOND_NS), 60 * SECOND_NS);
    }

    #[test]
    fn what_a_command_asks_for_at_once_is_one_request() {
        let mut pacing = Pacing::new(0);
        let now_ns = 2 * DAY_S * SECOND_NS;
        let again_ns: Vec<i64> =
            (0..20).map(|number| now_ns + number * 100_000_000).filter(|&at_ns| pacing.ask(at_ns)).collect();
        let since_ns = |at_ns: &i64| at_ns - now_ns;
        assert_eq!(again_ns.iter().map(since_ns).collect::<Vec<_>>(), [5, 10, 15].map(|at| at * 100_000_000));
        assert!(!pacing.ask(now_ns + 60 * SECOND_NS), "long ago");
    }

    #[test]
    fn a_job_that_is_watched_elsewhere_is_sampled_more_often_for_as_long_as_was_said() {
        let mut pacing = Pacing::new(0);
        let (ladder, now_ns) = (Ladder::default(), 2 * DAY_S * SECOND_NS);
        let interval_s = |pacing: &Pacing, after_s: i64| {
            pacing.interval_ns(&ladder, now_ns + after_s * SECOND_NS) / SECOND_NS
        };
        assert!(pacing.watch(now_ns, 300 * SECOND_NS));
        assert_eq!([0, 299, 300].map(|after_s| interval_s(&pacing, after_s)), [1, 1, 60]);
        assert!(!pacing.watch(now_ns + SECOND_NS, 15 * SECOND_NS), "it is read at once only the first time");
        assert_eq!(interval_s(&pacing, 299), 1, "a shorter time does not end a longer one");
        pacing.ask(now_ns + 2 * SECOND_NS);
        pacing.ask(now_ns + 4 * SECOND_NS);
        assert_eq!(interval_s(&pacing, 299), 1, "nor does a client");
        assert!(pacing.watch(now_ns + 400 * SECOND_NS, 0));
        assert_eq!(interval_s(&pacing, 400), 60);
        assert!(pacing.watch(now_ns + 400 * SECOND_NS, i64::MIN));
        assert_eq!(interval_s(&pacing, 400), 60);
        pacing.watch(now_ns, i64::MAX);
        assert_eq!(interval_s(&pacing, 400), 1);
    }
}
