//! What samples know of a job at its end.

use std::time::Duration;

use met_core::belief::at_end::{self, Ends};
use met_core::belief::{fill_events, fit_cpu_parts, fit_memory_peaks};
use met_core::job::QualityKind::{LowerBound, Measured};
use met_core::job::{JobKey, Record, Totals};
use met_core::job_processes::JobProcess;
use met_core::job_table::*;
use met_core::provenance::{Account, Caveat};
use met_core::series::{PackedSamples, Series};
use met_core::{JOB, Kind, MISSING};

use met_query::live::{Live, PEAK_SPAN_MS};

use super::{gap_ms, largest_processes};
use met_core::running::Running;
use met_core::sampled::Profile;
use met_jobs::containers;

/// Kernel memory and the code of a process are in the peak and not in what is needed.
const UNEXPLAINED_BYTES: i64 = 12 << 20;
/// A shorter job has a sample or two, and often none at its peak.
const HARDLY_SAMPLED_NS: i64 = 1_000_000_000;

/// What is known of a job at its end, beside its samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    pub cpu_ns: Option<i64>,
    pub uid: Option<u32>,
}

impl Known {
    pub fn of(record: &Record) -> Known {
        Known { cpu_ns: record.totals.get(CPU), uid: record.uid }
    }
}

/// What samples know of a job at its end.
pub struct Sampled {
    /// Samples that were not taken out before.
    pub series: Series,
    /// The same of its further series, by their keys.
    pub more: Vec<(JobKey, Series)>,
    /// What was known of it last.
    pub(super) live: Live,
    pub(super) attached: bool,
    pub(super) ends: Ends,
    /// Why some of its containers are in none of its figures.
    pub(super) uncounted: Option<Caveat>,
    /// The longest time between two samples that was no gap while the job ran.
    pub(super) gap_ms: i64,
    /// The largest of its processes.
    pub(super) processes: Vec<JobProcess>,
}

impl Default for Sampled {
    fn default() -> Sampled {
        Sampled {
            series: Series::new(&JOB),
            more: Vec::new(),
            live: Live::default(),
            attached: false,
            ends: Ends::default(),
            uncounted: None,
            gap_ms: 0,
            processes: Vec::new(),
        }
    }
}

impl Sampled {
    /// Adds samples of before, which were taken out and reached no one.
    pub fn put_before(&mut self, earlier: Vec<(JobKey, PackedSamples)>) {
        let mut more = Vec::new();
        for (key, samples) in earlier.into_iter().rev() {
            let mut series = samples.unpack();
            if std::ptr::eq(series.table, &JOB) {
                series.append(&self.series);
                self.series = series;
            } else {
                more.push((key, series));
            }
        }
        more.reverse();
        more.append(&mut self.more);
        self.more = more;
    }

    /// Of a job that is gone, by what was stored of its series.
    pub fn of_series(series: &Series, record: &Record) -> Sampled {
        let Some(local) = &record.local else { return Sampled::default() };
        let mut running = Running::new(i64::MAX, PEAK_SPAN_MS);
        series.each_row(|time_ms, cells| running.push(time_ms, cells));
        // Nobody saw its end.
        let profile = Profile { missed: true, ..met_jobs::job_cgroup::profile(local) };
        Sampled { live: Live::of(&running, profile), ..Sampled::default() }
    }

    /// Whether it had to do with a GPU, as far as could be seen.
    pub fn has_gpus(&self) -> bool {
        !self.live.gpus.is_empty()
    }

    /// Completes the totals by what was sampled last.
    pub fn fill(&self, record: &mut Record) {
        at_end::complete(&mut record.totals, &self.live.totals, self.ends);
    }

    /// Corrects the counters of a job that is over by what samples and exit records know, and ends the series with
    /// them: the last slow tick may be long ago.
    pub fn settle(&mut self, record: &mut Record) {
        self.ends.settle(&mut record.totals, &self.live.totals);
        self.close_series(record);
    }

    fn close_series(&mut self, record: &Record) {
        let Some(end_ms) = record.end_ns.map(|end_ns| end_ns / 1_000_000) else { return };
        let never_sampled = self.live.totals.iter().next().is_none();
        if self.attached
            || never_sampled
            || self.series.times_ms.last().is_some_and(|&last_ms| last_ms >= end_ms)
        {
            return;
        }
        let mut cells = vec![MISSING; JOB.columns.len()];
        for (column, figure) in record.totals.iter() {
            if JOB.columns[column].kind == Kind::Counter && column != WALL && column != PROCESSES {
                // A counter that the samples show a little above its total does not fall.
                let seen = self.live.totals.get(column).unwrap_or(figure.value);
                cells[column] = figure.value.max(seen);
            }
        }
        self.series.push(end_ms, &cells);
    }

    /// Adds to the record of a finished job what only samples know. `series` is complete.
    pub fn complete(&self, record: &mut Record, series: &Series, interval: Duration) {
        if !series.is_empty() {
            record.summaries = series.summaries(gap_ms(interval).max(self.gap_ms));
        }
        let seen = self.live.totals.get(PROCESSES).max(record.totals.get(PROCESSES));
        self.fill(record);
        fit_cpu_parts(&mut record.totals);
        // What a supervisor counts, it counts from the beginning.
        fill_events(record, &self.live.events, &self.live.uncounted_events);
        if !self.live.gpus.is_empty() {
            record.gpus = self.live.gpus.clone();
        }
        if !self.processes.is_empty() {
            record.processes = largest_processes::with_users(self.processes.clone());
            note_end_of_main(record);
        }
        record.emission = record.emission.take().or_else(|| self.live.emission.clone());
        if let Some(seen) = seen {
            self.ends.set_processes(&mut record.totals, seen);
        }
        doubt_needed_memory(&mut record.totals, series);
        bound_by_cgroup(&mut record.totals);
        fit_memory_peaks(&mut record.totals);
        let by_service = containers::is_client(record).then_some(Caveat::NoContainers);
        if let Some(why) = by_service.or(self.uncounted) {
            without_containers(&mut record.totals, why);
        }
        if let (Some(cpu_ns), Some(wall_ns)) = (record.totals.get(CPU), record.totals.get(WALL))
            && wall_ns > 0
        {
            // Spans do not cover the job from end to end, and a short one has none: its mean is a peak, too.
            let average = (cpu_ns as f64 / wall_ns as f64 * 1000.0).round() as i64;
            if record.totals.get(CORES_PEAK).is_none_or(|peak| peak < average) {
                record.totals.set(CORES_PEAK, average, LowerBound, "cpu / wall");
            }
        }
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

/// When the main process ended, as its supervisor saw it: it may have no exit record.
fn note_end_of_main(record: &mut Record) {
    let Some(local) = &record.local else { return };
    let main_pid = local.main.map(|main| main.pid);
    for process in record.processes.iter_mut().filter(|process| Some(process.pid) == main_pid) {
        process.end_seen_ns = local.main_end_ns.filter(|_| process.end_ns.is_none());
    }
}

/// Needed memory is only sampled. Where the kernel saw clearly more held at once than any sample explains,
/// the highest came between two of them, and so it is where the kernel killed processes for lack of memory. Of a job that
/// was hardly sampled the kernel must have seen about as much.
fn doubt_needed_memory(totals: &mut Totals, series: &Series) {
    let Some(needed) = totals.figure(MEMORY_NEEDED_PEAK).cloned() else { return };
    let is_hardly_sampled = totals.get(WALL).is_some_and(|wall_ns| wall_ns < HARDLY_SAMPLED_NS);
    // What was killed for memory wanted more than there was.
    let is_killed = totals.get(OOM_KILLS).is_some_and(|kills| kills > 0);
    let cache = series.maximum(MEMORY_CACHE).unwrap_or(0);
    let unexplained = if is_hardly_sampled { 0 } else { UNEXPLAINED_BYTES };
    // A peak that is itself of samples, or of the largest process alone, confirms nothing.
    let peak = totals.figure(MEMORY_PEAK).filter(|peak| !is_hardly_sampled || peak.kind == Measured);
    let is_beyond = |peak: i64| peak > needed.value + cache + peak / 10 + unexplained;
    let is_exceeded = is_killed || peak.map_or(is_hardly_sampled, |peak| is_beyond(peak.value));
    if is_exceeded {
        totals.set(MEMORY_NEEDED_PEAK, needed.value, LowerBound, needed.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::job::QualityKind;
    use met_core::process_exits::INHERITED;
    use met_core::provenance::Provenance;

    /// A supervised job of which the samples saw this, and whose supervisor counted that.
    fn settled(seen: &[(usize, i64)], counted: &[(usize, i64)], ends: Ends) -> (Record, Series) {
        let mut sampled = Sampled { ends, ..Sampled::default() };
        let mut record = met_core::sample::full(1, "train");
        record.totals = Totals::default();
        let mut cells = vec![MISSING; JOB.columns.len()];
        for &(column, value) in seen {
            sampled.live.totals.set(column, value, QualityKind::Sampled, "/proc");
            cells[column] = value;
        }
        sampled.series.push(record.end_ns.unwrap() / 1_000_000 - 100, &cells);
        for &(column, value) in counted {
            record.totals.set(column, value, LowerBound, Account::Rusage);
        }
        sampled.settle(&mut record);
        (record, sampled.series)
    }

    #[test]
    fn a_counter_never_ends_below_what_was_sampled_and_its_series_does_not_fall() {
        let seen = [(PAGE_FAULTS_MINOR, 589), (SWITCHES_INVOLUNTARY, 642), (READ_CALL, 70), (CPU, 1_000)];
        let counted = [(PAGE_FAULTS_MINOR, 104), (SWITCHES_INVOLUNTARY, 4), (READ_CALL, 80), (CPU, 990)];
        let (record, series) = settled(&seen, &counted, Ends::default());
        let figure = |column| record.totals.figure(column).map(|figure| (figure.value, figure.kind)).unwrap();
        assert_eq!(figure(PAGE_FAULTS_MINOR), (589, LowerBound));
        assert_eq!(figure(SWITCHES_INVOLUNTARY), (642, LowerBound));
        assert_eq!(figure(READ_CALL), (80, LowerBound), "the end knows more");
        for column in [PAGE_FAULTS_MINOR, SWITCHES_INVOLUNTARY, READ_CALL, CPU] {
            let [before, end] = series.columns[column][..] else { panic!("two samples") };
            assert!(before <= end, "{column}: {before} {end}");
        }
    }

    #[test]
    fn processes_are_counted_where_every_end_was_heard() {
        let figure = |complete: bool| {
            let mut sampled = Sampled { ends: Ends { complete, ..Ends::default() }, ..Sampled::default() };
            sampled.live.totals.set(PROCESSES, 40, LowerBound, "/proc");
            let mut record = met_core::sample::full(1, "train");
            record.totals.set(PROCESSES, 38, LowerBound, "wait");
            sampled.complete(&mut record, &Series::new(&JOB), Duration::from_secs(1));
            let figure = record.totals.figure(PROCESSES).unwrap();
            (figure.value, figure.kind, figure.source.to_string())
        };
        assert_eq!(figure(true), (40, Measured, "taskstats".to_owned()));
        assert_eq!(figure(false), (40, LowerBound, "/proc".to_owned()));
    }

    #[test]
    fn exit_records_say_what_a_parent_that_ignores_its_children_did_not_inherit() {
        let position = |wanted| INHERITED.iter().position(|&column| column == wanted).unwrap();
        let mut ended = [0; INHERITED.len()];
        ended[position(PAGE_FAULTS_MINOR)] = 623;
        ended[position(READ_CALL)] = 4096;
        let figures = |complete: bool| {
            // The parent was gone before its signals were looked at: its children pass for waited for.
            let unwaited = Some([0; INHERITED.len()]);
            let ends = Ends { complete, unwaited, ended, ..Ends::default() };
            let counted = [(PAGE_FAULTS_MINOR, 104), (PAGE_FAULTS_MAJOR, 1), (READ_CALL, 5000)];
            let (record, _) = settled(&[(PAGE_FAULTS_MINOR, 589)], &counted, ends);
            [PAGE_FAULTS_MINOR, PAGE_FAULTS_MAJOR, READ_CALL].map(|column| {
                let figure = record.totals.figure(column).unwrap();
                (figure.value, figure.kind, figure.source.to_string())
            })
        };
        let rusage = Provenance::from(Account::Rusage).to_string();
        let [minor, major, calls] = figures(true);
        assert_eq!(minor, (623, Measured, "taskstats".to_owned()));
        assert_eq!((major.1, calls.1), (LowerBound, LowerBound), "sums over the reaped lack somebody");
        assert_eq!((calls.0, calls.2), (5000, rusage));
        assert_eq!(figures(false)[0], (623, LowerBound, "taskstats".to_owned()));
    }

    #[test]
    fn needed_memory_is_a_lower_bound_where_the_kernel_saw_more_or_killed_for_it() {
        const MIB: i64 = 1 << 20;
        let kind = |peak: i64, kills: i64| {
            let mut totals = Totals::default();
            totals.set(MEMORY_PEAK, peak, Measured, Account::Cgroup);
            totals.set(MEMORY_NEEDED_PEAK, 47 * MIB, QualityKind::Sampled, Account::Cgroup);
            totals.set(OOM_KILLS, kills, Measured, Account::Cgroup);
            doubt_needed_memory(&mut totals, &Series::new(&JOB));
            totals.figure(MEMORY_NEEDED_PEAK).map(|figure| figure.kind)
        };
        assert_eq!(kind(60 * MIB, 0), Some(QualityKind::Sampled));
        assert_eq!(kind(60 * MIB, 1), Some(LowerBound));
        assert_eq!(kind(90 * MIB, 0), Some(LowerBound));
    }

    #[test]
    fn needed_memory_of_a_job_of_less_than_a_second_is_a_lower_bound_unless_the_kernel_confirms_it() {
        let kind_of = |wall_ms: i64, peak: Option<i64>, quality: QualityKind| {
            let mut totals = Totals::default();
            totals.set(WALL, wall_ms * 1_000_000, Measured, "clock");
            totals.set(MEMORY_NEEDED_PEAK, 10_000, QualityKind::Sampled, Account::Cgroup);
            peak.into_iter().for_each(|peak| totals.set(MEMORY_PEAK, peak, quality, Account::Cgroup));
            doubt_needed_memory(&mut totals, &Series::new(&JOB));
            totals.figure(MEMORY_NEEDED_PEAK).map(|figure| figure.kind)
        };
        let kind = |wall_ms: i64, peak: Option<i64>| kind_of(wall_ms, peak, Measured);
        assert_eq!(kind_of(400, Some(9_000), LowerBound), Some(LowerBound), "of its largest process alone");
        assert_eq!(kind(400, Some(20_000)), Some(LowerBound));
        assert_eq!(kind(400, None), Some(LowerBound));
        assert_eq!(kind(400, Some(10_500)), Some(QualityKind::Sampled), "the kernel saw no more");
        assert_eq!(kind(4000, Some(20_000)), Some(QualityKind::Sampled), "code and the kernel's own");
        assert_eq!(kind(4000, None), Some(QualityKind::Sampled));
    }
}
