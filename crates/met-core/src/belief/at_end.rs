//! Which figure of a job that has ended is believed: the one that was counted at its end, or the last sample. Every
//! closer of a job (a daemon, `met time`, a command that imports its samples) calls [`close`].

use super::{CHARGED, SAMPLED_PEAKS, fit_cpu_parts, fit_memory_peaks};
use crate::job::QualityKind::{LowerBound, Measured};
use crate::job::{Figure, QualityKind, Totals};
use crate::job_table::*;
use crate::process_exits::{INHERITED, OWN};
use crate::provenance::{Account, Caveat};
use crate::{JOB, Kind};

/// Kernel memory and the code of a process are in the peak and not in what is needed.
const UNEXPLAINED_BYTES: i64 = 12 << 20;
/// A shorter job has a sample or two, and often none at its peak.
const HARDLY_SAMPLED_NS: i64 = 1_000_000_000;

/// Samples of living processes are rounded to ticks.
const CPU_DOUBT_SHARE: i64 = 50;
const CPU_DOUBT_NS: i64 = 20_000_000;

/// Counters that both the supervisor and the samples have as a sum over processes.
const OF_PROCESSES: [usize; 11] = [
    READ,
    WRITTEN,
    WRITE_CANCELLED,
    READ_CALL,
    WRITE_CALL,
    READ_CALLS,
    WRITE_CALLS,
    PAGE_FAULTS_MINOR,
    PAGE_FAULTS_MAJOR,
    SWITCHES_VOLUNTARY,
    SWITCHES_INVOLUNTARY,
];

/// How well the ends of a job's processes are known. Stored samples know of none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// All of them were observed, from the first process on.
    pub complete: bool,
    pub cpu_doubt_ns: i64,
    pub lacks_delays: bool,
    /// Of a supervised job: what processes did that no parent waited for.
    pub unwaited: Option<[i64; INHERITED.len()]>,
    /// Of a supervised job: the sum over the exit records of its processes.
    pub ended: [i64; INHERITED.len()],
}

/// What takes the place of a known figure by the last sample of the job; `None` if the known one stays. It is never
/// lower.
pub fn at_end(column: usize, known: Option<&Figure>, seen: &Figure, ends: Ends) -> Option<Figure> {
    let is_counted = JOB.columns[column].kind == Kind::Counter && !CHARGED.contains(&column);
    let Some(known) = known else {
        // The last sample of a counter is not its end, unless the ends of its processes were observed.
        let kind = if is_counted { ends.quality(column, seen.value) } else { seen.kind };
        let is_of_exits = is_counted && kind == Measured;
        let source = if is_of_exits { "taskstats".into() } else { seen.source.clone() };
        return Some(Figure { value: seen.value, kind, source });
    };
    if CHARGED.contains(&column) || SAMPLED_PEAKS.contains(&column) {
        return so_far(known, seen);
    }
    let doubt_ns = if is_cpu(column) { known.value / CPU_DOUBT_SHARE + CPU_DOUBT_NS } else { 0 };
    if seen.value <= known.value.saturating_add(doubt_ns) {
        return None;
    }
    let kind = match column {
        // A sample may be later than the last reading. A peak that lacked a process still lacks it.
        MEMORY_PEAK | OOM_KILLS if known.kind != LowerBound => seen.kind,
        // Samples of these include every exit record.
        SWITCHES_VOLUNTARY | SWITCHES_INVOLUNTARY => ends.quality(column, seen.value),
        // The account missed a process, and may have missed more.
        _ => LowerBound,
    };
    let may_miss = matches!(column, CPU | MEMORY_PEAK | OOM_KILLS) || OF_PROCESSES.contains(&column);
    let gives_way = may_miss || known.kind == LowerBound;
    gives_way.then(|| Figure { value: seen.value, kind, source: seen.source.clone() })
}

/// What was charged and the peaks so far, as an earlier daemon wrote them, give way to what includes them.
fn so_far(known: &Figure, seen: &Figure) -> Option<Figure> {
    if known.kind != LowerBound || seen.value < known.value {
        return None;
    }
    if seen.value > known.value || seen.kind != LowerBound {
        return Some(seen.clone());
    }
    // Both know the same. Stored samples do not know the account.
    let source = known.source.clone().with_caveats_of(&seen.source);
    (source != known.source).then(|| Figure { source, ..known.clone() })
}

fn is_cpu(column: usize) -> bool {
    matches!(column, CPU | CPU_USER | CPU_SYSTEM)
}

/// What is known of a job that has ended beside its totals.
#[derive(Clone, Copy, Debug)]
pub struct Closing<'a> {
    /// The last sample.
    pub seen: &'a Totals,
    pub ends: Ends,
    /// There was a time in which nothing was read.
    pub missed: bool,
    /// The most page cache in a sample.
    pub cache_bytes: Option<i64>,
    /// Why some of its containers are in none of its figures.
    pub uncounted: Option<Caveat>,
}

/// Closes a job: its totals from what was counted and what was sampled, each as good as both together are.
pub fn close(totals: &mut Totals, closing: &Closing<'_>) {
    let processes = closing.seen.get(PROCESSES).max(totals.get(PROCESSES));
    complete(totals, closing.seen, closing.ends);
    if closing.missed {
        note_missed(totals);
    }
    fit_cpu_parts(totals);
    if let Some(processes) = processes {
        closing.ends.set_processes(totals, processes);
    }
    doubt_needed_memory(totals, closing.cache_bytes.unwrap_or(0));
    bound_by_cgroup(totals);
    fit_memory_peaks(totals);
    if let Some(why) = closing.uncounted {
        without_containers(totals, why);
    }
    raise_peak_to_mean(totals);
}

/// What the samples alone know may have been more while nothing was read.
fn note_missed(totals: &mut Totals) {
    for column in CHARGED.into_iter().chain(SAMPLED_PEAKS) {
        let figure = totals.figure(column).filter(|figure| figure.kind == LowerBound);
        let Some(Figure { value, source, .. }) = figure.cloned() else { continue };
        // The first word of a cost's source is its currency, and emissions name their factor.
        let caveat = (!matches!(column, EMISSIONS | COST)).then_some(Caveat::NotWatched);
        totals.set(column, value, LowerBound, source.with(caveat));
    }
}

/// Needed memory is only sampled. Where the kernel saw clearly more held at once than any sample explains,
/// the highest came between two of them, and so it is where the kernel killed processes for lack of memory. Of a job that
/// was hardly sampled the kernel must have seen about as much.
fn doubt_needed_memory(totals: &mut Totals, cache_bytes: i64) {
    let Some(needed) = totals.figure(MEMORY_NEEDED_PEAK).cloned() else { return };
    let is_hardly_sampled = totals.get(WALL).is_some_and(|wall_ns| wall_ns < HARDLY_SAMPLED_NS);
    // What was killed for memory wanted more than there was.
    let is_killed = totals.get(OOM_KILLS).is_some_and(|kills| kills > 0);
    let unexplained = if is_hardly_sampled { 0 } else { UNEXPLAINED_BYTES };
    // A peak that is itself of samples, or of the largest process alone, confirms nothing.
    let peak = totals.figure(MEMORY_PEAK).filter(|peak| !is_hardly_sampled || peak.kind == Measured);
    let is_beyond = |peak: i64| peak > needed.value + cache_bytes + peak / 10 + unexplained;
    let is_exceeded = is_killed || peak.map_or(is_hardly_sampled, |peak| is_beyond(peak.value));
    if is_exceeded {
        totals.set(MEMORY_NEEDED_PEAK, needed.value, LowerBound, needed.source);
    }
}

/// Where processes left the cgroup, what it shows of memory lacks theirs: at its peak and in every sample.
fn bound_by_cgroup(totals: &mut Totals) {
    let is_bound = totals
        .figure(MEMORY_PEAK)
        .is_some_and(|peak| peak.kind == LowerBound && peak.source.account == Account::Cgroup);
    let needed = totals
        .figure(MEMORY_NEEDED_PEAK)
        .filter(|needed| is_bound && needed.source.account == Account::Cgroup);
    if let Some(value) = needed.map(|needed| needed.value) {
        totals.set(MEMORY_NEEDED_PEAK, value, LowerBound, Account::Cgroup);
    }
}

/// What some containers did for the job is in none of its figures.
fn without_containers(totals: &mut Totals, why: Caveat) {
    for column in [CPU, CPU_USER, CPU_SYSTEM, MEMORY_PEAK, MEMORY_NEEDED_PEAK, READ, WRITTEN] {
        if let Some(figure) = totals.figure(column).filter(|figure| !figure.source.has(why)) {
            let (value, source) = (figure.value, figure.source.clone().with(why));
            totals.set(column, value, LowerBound, source);
        }
    }
}

/// Spans do not cover a job from end to end, and a short one has none: the mean of its cores is a peak, too.
fn raise_peak_to_mean(totals: &mut Totals) {
    let (Some(cpu_ns), Some(wall_ns)) = (totals.get(CPU), totals.get(WALL)) else { return };
    if wall_ns <= 0 {
        return;
    }
    let mean = (cpu_ns as f64 / wall_ns as f64 * 1000.0).round() as i64;
    if totals.get(CORES_PEAK).is_none_or(|peak| peak < mean) {
        totals.set(CORES_PEAK, mean, LowerBound, "cpu / wall");
    }
}

/// Completes what is known of a job that has ended by its last sample.
pub fn complete(totals: &mut Totals, seen: &Totals, ends: Ends) {
    for (column, figure) in seen.iter() {
        if let Some(Figure { value, kind, source }) = at_end(column, totals.figure(column), figure, ends) {
            totals.set(column, value, kind, source);
        }
    }
}

impl Ends {
    /// Corrects the counters of a job that has ended by exit records and by its last sample.
    pub fn settle(self, totals: &mut Totals, seen: &Totals) {
        self.add_unwaited(totals);
        if !self.raise_to_exit_records(totals) {
            self.confirm_reaped(totals);
        }
        for (column, figure) in seen.iter() {
            let known = totals.figure(column);
            let better = known.and_then(|known| at_end(column, Some(known), figure, self));
            if let Some(Figure { value, kind, source }) = better {
                totals.set(column, value, kind, source);
            }
        }
    }

    /// The processes that were counted. Those that came and went between two samples are known by their ends alone.
    pub fn set_processes(self, totals: &mut Totals, seen: i64) {
        match self.complete {
            true => totals.set(PROCESSES, seen, Measured, "taskstats"),
            false => totals.set(PROCESSES, seen, LowerBound, "/proc"),
        }
    }

    /// How good a counter is that samples and exit records make together.
    fn quality(self, column: usize, value: i64) -> QualityKind {
        let counted = INHERITED.contains(&column) || OWN.contains(&column);
        // Exit records lack up to a kilobyte of calls of each thread; storage is written by whole pages.
        let rounded = matches!(column, READ_CALL | WRITE_CALL);
        let unknown_wait = self.lacks_delays && matches!(column, DELAY_IO | DELAY_MEMORY);
        let doubtful =
            rounded || unknown_wait || is_cpu(column) && self.cpu_doubt_ns > value / CPU_DOUBT_SHARE;
        if self.complete && counted && !doubtful { Measured } else { LowerBound }
    }

    /// Where every end was observed and every process was waited for, sums over the reaped lack none.
    fn confirm_reaped(self, totals: &mut Totals) {
        let Some(unwaited) = self.unwaited.filter(|_| self.complete) else { return };
        for (&column, _) in INHERITED.iter().zip(unwaited).filter(|&(_, more)| more == 0) {
            let bound = |figure: &&Figure| !is_cpu(column) && figure.kind == LowerBound;
            let Some(figure) = totals.figure(column).filter(bound) else { continue };
            let (value, source) = (figure.value, figure.source.followed_by(", taskstats"));
            totals.set(column, value, Measured, source);
        }
    }

    /// A parent that ignores SIGCHLD inherits nothing from its children, and may end before its signals are read:
    /// its supervisor's counters then lack processes of which there are exit records. Returns whether they did.
    fn raise_to_exit_records(self, totals: &mut Totals) -> bool {
        let mut is_raised = false;
        for (&column, ended) in INHERITED.iter().zip(self.ended) {
            if !is_cpu(column) && totals.get(column).is_some_and(|known| known < ended) {
                totals.set(column, ended, self.quality(column, ended), "taskstats");
                is_raised = true;
            }
        }
        is_raised
    }

    /// A supervisor counts the processes that it and its descendants waited for; the others are in exit records alone.
    fn add_unwaited(self, totals: &mut Totals) {
        let Some(unwaited) = self.unwaited else { return };
        for (&column, more) in INHERITED.iter().zip(unwaited).filter(|&(_, more)| more > 0) {
            let Some(figure) = totals.figure(column).cloned() else { continue };
            // A cgroup counts the CPU time of all, and so does a clock even where it was disturbed.
            let by_reaping = matches!(figure.source.account, Account::Rusage | Account::ProcStat)
                && figure.kind == LowerBound;
            if is_cpu(column) && !by_reaping {
                continue;
            }
            let value = figure.value.saturating_add(more);
            let source = figure.source.followed_by(" and taskstats");
            totals.set(column, value, self.quality(column, value), source);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::QualityKind::{Attributed, Sampled};
    use crate::provenance::{Caveat, Provenance};

    fn figure(value: i64, kind: QualityKind, source: &'static str) -> Figure {
        Figure { value, kind, source: source.into() }
    }

    fn after(column: usize, known: Option<Figure>, seen: &Figure, ends: Ends) -> Option<Figure> {
        at_end(column, known.as_ref(), seen, ends).or(known)
    }

    #[test]
    fn a_peak_that_an_earlier_daemon_wrote_gives_way_to_a_higher_one() {
        let before = figure(10, LowerBound, "cgroup");
        let better = |value| {
            at_end(MEMORY_NEEDED_PEAK, Some(&before), &figure(value, Sampled, "cgroup"), Ends::default())
        };
        assert_eq!(better(30), Some(figure(30, Sampled, "cgroup")));
        assert_eq!(better(10), Some(figure(10, Sampled, "cgroup")), "it includes what was known");
        assert_eq!(better(5), None);
    }

    #[test]
    fn of_two_lower_bounds_that_are_equal_the_known_account_stays_with_the_caveats_of_both() {
        let known = figure(410, LowerBound, "RAPL, by CPU time");
        let seen = Figure {
            source: Provenance::from("samples").with(Caveat::NotWatched),
            ..figure(410, LowerBound, "")
        };
        let better = at_end(ENERGY, Some(&known), &seen, Ends::default()).unwrap();
        assert_eq!(better.source, "RAPL, by CPU time, not watched all the time");
        assert_eq!(at_end(ENERGY, Some(&better), &seen, Ends::default()), None);
    }

    #[test]
    fn counters_that_were_measured_stay_and_lower_bounds_are_raised() {
        let seen = figure(1_000_000_000, Sampled, "/proc");
        let at_end = |column, value, kind| {
            at_end(column, Some(&figure(value, kind, "cgroup")), &seen, Ends::default())
        };
        let raised = Some(figure(1_000_000_000, LowerBound, "/proc"));
        assert_eq!(at_end(CPU_USER, 10, Measured), None);
        assert_eq!(at_end(CPU_USER, 10, LowerBound), raised);
        assert_eq!(at_end(CPU, 10, Measured), raised, "the cgroup missed a process");
        assert_eq!(at_end(CPU, 999_000_000, LowerBound), None, "ticks are rounded");
        assert_eq!(at_end(READ, 10, Measured), raised);
    }

    #[test]
    fn a_peak_that_a_sample_raises_is_still_without_those_it_lacked() {
        for (known, raised) in [(LowerBound, LowerBound), (Measured, Sampled)] {
            let known = figure(100, known, "cgroup");
            let seen = figure(200, Sampled, "cgroup");
            assert_eq!(
                at_end(MEMORY_PEAK, Some(&known), &seen, Ends::default()),
                Some(figure(200, raised, "cgroup"))
            );
        }
    }

    #[test]
    fn energy_that_was_measured_does_not_come_from_exit_records() {
        let seen = figure(7, Measured, "energy counter");
        assert_eq!(at_end(GPU_ENERGY, None, &seen, Ends::default()), Some(seen.clone()));
        let received = Ends { complete: true, ..Ends::default() };
        let read = at_end(READ, None, &figure(7, Sampled, "/proc"), received);
        assert_eq!(read, Some(figure(7, Measured, "taskstats")));
    }

    #[test]
    fn needed_memory_is_a_lower_bound_where_the_kernel_saw_more_or_killed_for_it() {
        const MIB: i64 = 1 << 20;
        let kind = |peak: i64, kills: i64| {
            let mut totals = Totals::default();
            totals.set(MEMORY_PEAK, peak, Measured, Account::Cgroup);
            totals.set(MEMORY_NEEDED_PEAK, 47 * MIB, Sampled, Account::Cgroup);
            totals.set(OOM_KILLS, kills, Measured, Account::Cgroup);
            doubt_needed_memory(&mut totals, 0);
            totals.figure(MEMORY_NEEDED_PEAK).map(|figure| figure.kind)
        };
        assert_eq!(kind(60 * MIB, 0), Some(Sampled));
        assert_eq!(kind(60 * MIB, 1), Some(LowerBound));
        assert_eq!(kind(90 * MIB, 0), Some(LowerBound));
    }

    #[test]
    fn needed_memory_of_a_job_of_less_than_a_second_is_a_lower_bound_unless_the_kernel_confirms_it() {
        let kind_of = |wall_ms: i64, peak: Option<i64>, quality: QualityKind| {
            let mut totals = Totals::default();
            totals.set(WALL, wall_ms * 1_000_000, Measured, "clock");
            totals.set(MEMORY_NEEDED_PEAK, 10_000, Sampled, Account::Cgroup);
            peak.into_iter().for_each(|peak| totals.set(MEMORY_PEAK, peak, quality, Account::Cgroup));
            doubt_needed_memory(&mut totals, 0);
            totals.figure(MEMORY_NEEDED_PEAK).map(|figure| figure.kind)
        };
        let kind = |wall_ms: i64, peak: Option<i64>| kind_of(wall_ms, peak, Measured);
        assert_eq!(kind_of(400, Some(9_000), LowerBound), Some(LowerBound), "of its largest process alone");
        assert_eq!(kind(400, Some(20_000)), Some(LowerBound));
        assert_eq!(kind(400, None), Some(LowerBound));
        assert_eq!(kind(400, Some(10_500)), Some(Sampled), "the kernel saw no more");
        assert_eq!(kind(4000, Some(20_000)), Some(Sampled), "code and the kernel's own");
        assert_eq!(kind(4000, None), Some(Sampled));
    }

    #[test]
    fn a_mean_is_a_peak_until_a_higher_one_is_known() {
        let mut totals = Totals::default();
        totals.set(CPU, 4_000_000_000, Measured, Account::Cgroup);
        totals.set(WALL, 10_000_000_000, Measured, "clock");
        let closed = |totals: &mut Totals, seen: Option<i64>| {
            let mut sample = Totals::default();
            seen.into_iter().for_each(|peak| sample.set(CORES_PEAK, peak, Sampled, "cgroup"));
            let closing = Closing {
                seen: &sample,
                ends: Ends::default(),
                missed: false,
                cache_bytes: None,
                uncounted: None,
            };
            close(totals, &closing);
            totals.figure(CORES_PEAK).map(|peak| (peak.value, peak.kind))
        };
        assert_eq!(closed(&mut totals, None), Some((400, LowerBound)));
        assert_eq!(closed(&mut totals, Some(300)), Some((400, LowerBound)));
        assert_eq!(closed(&mut totals, Some(3_000)), Some((3_000, Sampled)), "what was sampled comes late");
        assert_eq!(closed(&mut totals, None), Some((3_000, Sampled)));
    }

    prop_compose! {
        fn any_figure()(value in 0..200_i64, kind in 0..QualityKind::ALL.len(), is_watched: bool) -> Figure {
            let source = Provenance::from("cgroup").with((!is_watched).then_some(Caveat::NotWatched));
            Figure { value: value * 1_000_000, kind: QualityKind::ALL[kind], source }
        }
    }

    prop_compose! {
        fn any_ends()(complete: bool, lacks_delays: bool, cpu_doubt_ns in 0..100_000_000_i64) -> Ends {
            Ends { complete, lacks_delays, cpu_doubt_ns, ..Ends::default() }
        }
    }

    proptest! {
        #[test]
        fn no_total_is_lowered_and_a_sample_that_comes_again_changes_nothing(
            column in 0..JOB.columns.len(), known in prop::option::of(any_figure()), seen in any_figure(),
            ends in any_ends(),
        ) {
            let once = after(column, known.clone(), &seen, ends).unwrap();
            prop_assert!(known.is_none_or(|known| known.value <= once.value));
            prop_assert_eq!(after(column, Some(once.clone()), &seen, ends), Some(once));
        }

        #[test]
        fn the_order_of_two_samples_does_not_matter(
            column in 0..JOB.columns.len(), known in any_figure(), one in any_figure(), other in any_figure(),
            ends in any_ends(),
        ) {
            // Ticks are rounded: what differs by less is the same CPU time.
            prop_assume!(!is_cpu(column));
            let least = |figure: Figure| Figure { kind: LowerBound, ..figure };
            let (one, other) = (least(one), least(other));
            let both = |first: &Figure, then: &Figure| {
                let believed = after(column, after(column, Some(known.clone()), first, ends), then, ends).unwrap();
                (believed.value, believed.kind)
            };
            prop_assert_eq!(both(&one, &other), both(&other, &one));
        }

        #[test]
        fn a_charge_that_includes_the_known_one_decides_its_quality(
            known in any_figure(), more in 0..9_i64,
        ) {
            let known = Figure { kind: LowerBound, ..known };
            let seen = Figure { value: known.value + more, kind: Attributed, source: "RAPL".into() };
            prop_assert_eq!(at_end(ENERGY, Some(&known), &seen, Ends::default()), Some(seen));
        }
    }
}
