//! What samples know of a job at its end.

use std::time::Duration;

use met_core::belief::at_end::{self, Closing, Ends};
use met_core::belief::fill_events;
use met_core::job::{JobKey, Record};
use met_core::job_processes::JobProcess;
use met_core::job_table::*;
use met_core::provenance::Caveat;
use met_core::series::{PackedSamples, Series};
use met_core::{JOB, Kind, MISSING};

use met_query::live::{Live, PEAK_SPAN_MS};

use super::{gap_ms, largest_processes};
use met_core::running::Running;
use met_core::sampled::Profile;
use met_jobs::containers;

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
        // Its end was missed.
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
        let by_service = containers::is_client(record).then_some(Caveat::NoContainers);
        let closing = Closing {
            seen: &self.live.totals,
            ends: self.ends,
            // What was sampled says so itself.
            missed: false,
            cache_bytes: series.maximum(MEMORY_CACHE),
            uncounted: by_service.or(self.uncounted),
        };
        at_end::close(&mut record.totals, &closing);
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

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::job::QualityKind::{LowerBound, Measured};
    use met_core::job::{QualityKind, Totals};
    use met_core::process_exits::INHERITED;
    use met_core::provenance::{Account, Provenance};

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

    /// Samples of a job of this length: each second half a core, the same of memory, and a third of a process.
    fn series_of(record: &Record, seconds: i64) -> Series {
        let mut series = Series::new(&JOB);
        for second in 0..=seconds {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED]) = (second * 500_000_000, 47 << 20);
            (cells[MEMORY_CACHE], cells[PROCESSES]) = (1 << 20, 1 + second / 3);
            series.push(record.start_ns.unwrap() / 1_000_000 + second * 1000, &cells);
        }
        series
    }

    #[test]
    fn who_closes_a_job_does_not_matter() {
        let columns = [CPU, CORES_PEAK, MEMORY_PEAK, MEMORY_NEEDED_PEAK, PROCESSES];
        for (seconds, peak, kills, command) in [
            (10, 60, 0, "train"),
            (10, 90, 0, "train"),
            (10, 60, 1, "train"),
            (0, 50, 0, "docker"),
            (6, 50, 0, "docker"),
        ] {
            let mut ended = met_core::sample::full(1, "train");
            let start_ns = ended.start_ns.unwrap();
            (ended.end_ns, ended.command) =
                (Some(start_ns + seconds * 1_000_000_000), vec![command.to_owned()]);
            ended.totals = Totals::default();
            ended.totals.set(WALL, (seconds * 1_000_000_000).max(400_000_000), Measured, "clock");
            ended.totals.set(CPU, seconds * 700_000_000 + 1, Measured, Account::Cgroup);
            ended.totals.set(MEMORY_PEAK, peak << 20, Measured, Account::Cgroup);
            ended.totals.set(OOM_KILLS, kills, Measured, Account::Cgroup);
            ended.totals.set(PROCESSES, 2, LowerBound, "wait");
            let series = series_of(&ended, seconds);

            let mut imported = ended.clone();
            met_query::jobs::complete_by_samples(&mut imported, &series);
            let mut running = Running::new(i64::MAX, PEAK_SPAN_MS);
            series.each_row(|time_ms, cells| running.push(time_ms, cells));
            let profile = met_jobs::job_cgroup::profile(ended.local.as_ref().unwrap());
            let profile = Profile { counts_memory: true, ..profile };
            let sampled = Sampled { live: Live::of(&running, profile), ..Sampled::default() };
            let mut closed = ended;
            sampled.complete(&mut closed, &series, Duration::from_secs(1));
            for column in columns {
                assert!(closed.totals.figure(column).is_some(), "{}", JOB.columns[column].name);
                assert_eq!(
                    closed.totals.figure(column),
                    imported.totals.figure(column),
                    "{} of {command}, {seconds} s, {peak} MiB, {kills}",
                    JOB.columns[column].name
                );
            }
        }
    }
}
