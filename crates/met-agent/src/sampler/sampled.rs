//! What samples know of a job at its end.

use std::time::Duration;

use met_core::belief::{CHARGED, completes, fill_events, fit_cpu_parts, fit_memory_peaks};
use met_core::job::QualityKind::{LowerBound, Measured};
use met_core::job::{JobKey, QualityKind, Record, Totals};
use met_core::job_processes::JobProcess;
use met_core::job_table::*;
use met_core::process_exits::{INHERITED, OWN};
use met_core::provenance::{Account, Caveat};
use met_core::series::{Course, PackedSamples};
use met_core::{JOB, Kind, MISSING};

use met_query::live::{Live, PEAK_SPAN_MS};

use super::{gap_ms, largest_processes};
use met_core::running::Running;
use met_core::sampled::Profile;
use met_jobs::containers;

/// Samples of living processes are rounded to ticks.
const CPU_DOUBT_SHARE: i64 = 50;
const CPU_DOUBT_NS: i64 = 20_000_000;
/// Kernel memory and the code of a process are in the peak and not in what is needed.
const UNEXPLAINED_BYTES: i64 = 12 << 20;

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
    pub course: Course,
    /// The same of its further series, by their keys.
    pub more: Vec<(JobKey, Course)>,
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

/// How well the ends of a job's processes are known.
#[derive(Clone, Copy, Default)]
pub(super) struct Ends {
    /// All of them were heard, from the first process on.
    pub(super) complete: bool,
    pub(super) cpu_doubt_ns: i64,
    pub(super) lacks_delays: bool,
    /// Of a supervised job: what processes did whom nobody waited for.
    pub(super) unwaited: Option<[i64; INHERITED.len()]>,
    /// Of a supervised job: the sum over the exit records of its processes.
    pub(super) ended: [i64; INHERITED.len()],
}

impl Ends {
    /// How good a counter is that samples and exit records make together.
    fn quality(self, column: usize, value: i64) -> QualityKind {
        let counted = INHERITED.contains(&column) || OWN.contains(&column);
        let is_cpu = matches!(column, CPU | CPU_USER | CPU_SYSTEM);
        // Of each thread up to a kilobyte of calls is not told; storage is written by whole pages.
        let rounded = matches!(column, READ_CALL | WRITE_CALL);
        let unknown_wait = self.lacks_delays && matches!(column, DELAY_IO | DELAY_MEMORY);
        let doubtful = rounded || unknown_wait || is_cpu && self.cpu_doubt_ns > value / 50;
        if self.complete && counted && !doubtful { Measured } else { LowerBound }
    }

    /// Where every end was heard and nobody went without being waited for, sums over the reaped lack nobody.
    fn confirm_reaped(self, totals: &mut Totals) {
        let Some(unwaited) = self.unwaited.filter(|_| self.complete) else { return };
        for (&column, _) in INHERITED.iter().zip(unwaited).filter(|&(_, more)| more == 0) {
            let is_cpu = matches!(column, CPU | CPU_USER | CPU_SYSTEM);
            let Some(figure) = totals.figure(column).filter(|figure| !is_cpu && figure.kind == LowerBound)
            else {
                continue;
            };
            let (value, source) = (figure.value, figure.source.followed_by(", taskstats"));
            totals.set(column, value, Measured, source);
        }
    }

    /// A parent that ignores SIGCHLD inherits nothing from its children, and may end before its signals are looked at:
    /// its supervisor's counters then lack processes of which there are exit records. Returns whether they did.
    fn raise_to_exit_records(self, totals: &mut Totals) -> bool {
        let mut is_raised = false;
        for (&column, ended) in INHERITED.iter().zip(self.ended) {
            let is_cpu = matches!(column, CPU | CPU_USER | CPU_SYSTEM);
            if !is_cpu && totals.get(column).is_some_and(|known| known < ended) {
                totals.set(column, ended, self.quality(column, ended), "taskstats");
                is_raised = true;
            }
        }
        is_raised
    }

    /// A supervisor counts whom it and its descendants waited for; the others are in exit records alone.
    fn add_unwaited(self, totals: &mut Totals) {
        let Some(unwaited) = self.unwaited else { return };
        for (&column, more) in INHERITED.iter().zip(unwaited).filter(|&(_, more)| more > 0) {
            let Some(figure) = totals.figure(column).cloned() else { continue };
            // A cgroup counts everybody's CPU time, and so does a clock even where it was disturbed.
            let by_reaping = matches!(figure.source.account, Account::Rusage | Account::ProcStat)
                && figure.kind == LowerBound;
            if matches!(column, CPU | CPU_USER | CPU_SYSTEM) && !by_reaping {
                continue;
            }
            let value = figure.value.saturating_add(more);
            let source = figure.source.followed_by(" and taskstats");
            totals.set(column, value, self.quality(column, value), source);
        }
    }
}

impl Default for Sampled {
    fn default() -> Sampled {
        Sampled {
            course: Course::new(&JOB),
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
            let mut course = samples.unpack();
            if std::ptr::eq(course.table, &JOB) {
                course.append(&self.course);
                self.course = course;
            } else {
                more.push((key, course));
            }
        }
        more.reverse();
        more.append(&mut self.more);
        self.more = more;
    }

    /// Of a job that is gone, by what was stored of its course.
    pub fn of_course(course: &Course, record: &Record) -> Sampled {
        let Some(local) = &record.local else { return Sampled::default() };
        let mut running = Running::new(i64::MAX, PEAK_SPAN_MS);
        course.each_row(|time_ms, cells| running.push(time_ms, cells));
        // Nobody saw its end.
        let profile = Profile { missed: true, ..met_jobs::job_cgroup::profile(local) };
        Sampled { live: Live::of(&running, profile), ..Sampled::default() }
    }

    /// Whether it had to do with a card, as far as could be seen.
    pub fn has_cards(&self) -> bool {
        !self.live.gpus.is_empty()
    }

    /// Adds the totals that are not known otherwise. Of a counter the last sample is not its end.
    pub fn fill(&self, record: &mut Record) {
        for (column, figure) in self.live.totals.iter() {
            // Of cards nothing is left to be counted: what a job was charged when it left is all there is.
            let final_already = CHARGED.contains(&column);
            if completes(column, record.totals.figure(column), figure) {
                let counter = JOB.columns[column].kind == Kind::Counter;
                // The last sample of a counter is not its end, unless the ends of its processes were heard.
                let kind = match counter && !final_already {
                    true => self.ends.quality(column, figure.value),
                    false => figure.kind,
                };
                let source = if kind == Measured { "taskstats".into() } else { figure.source.clone() };
                record.totals.set(column, figure.value, kind, source);
            }
        }
    }

    /// A sample may be later than the last reading of a job whose end nobody could wait for. What lacked somebody
    /// still lacks him.
    fn raise_peaks(&self, record: &mut Record) {
        for column in [MEMORY_PEAK, OOM_KILLS] {
            if let (Some(known), Some(seen)) = (record.totals.figure(column), self.live.totals.figure(column))
                && seen.value > known.value
            {
                let kind = if known.kind == LowerBound { LowerBound } else { seen.kind };
                record.totals.set(column, seen.value, kind, seen.source.clone());
            }
        }
    }

    /// No total is below what a sample saw. The account it is from missed somebody, then, and may have missed more.
    fn raise_cpu(&self, totals: &mut Totals) {
        let (Some(known), Some(seen)) = (totals.figure(CPU), self.live.totals.figure(CPU)) else { return };
        if seen.value > known.value + known.value / CPU_DOUBT_SHARE + CPU_DOUBT_NS {
            totals.set(CPU, seen.value, LowerBound, seen.source.clone());
        }
    }

    /// No counter ends below what a sample saw: what the samples saw and the counters of the end lack is a process for
    /// which nobody waited.
    fn raise_counters(&self, totals: &mut Totals) {
        for column in OF_PROCESSES {
            let (Some(known), Some(seen)) = (totals.figure(column), self.live.totals.figure(column)) else {
                continue;
            };
            if seen.value > known.value {
                // Samples of these include every exit record.
                let kind = match OWN.contains(&column) {
                    true => self.ends.quality(column, seen.value),
                    false => LowerBound,
                };
                totals.set(column, seen.value, kind, seen.source.clone());
            }
        }
    }

    /// Corrects the counters of a job that is over by what samples and exit records know, and ends the course with
    /// them: the last slow tick may be long ago.
    pub fn settle(&mut self, record: &mut Record) {
        self.ends.add_unwaited(&mut record.totals);
        if !self.ends.raise_to_exit_records(&mut record.totals) {
            self.ends.confirm_reaped(&mut record.totals);
        }
        self.raise_counters(&mut record.totals);
        self.raise_cpu(&mut record.totals);
        self.close_course(record);
    }

    fn close_course(&mut self, record: &Record) {
        let Some(end_ms) = record.end_ns.map(|end_ns| end_ns / 1_000_000) else { return };
        let never_sampled = self.live.totals.iter().next().is_none();
        if self.attached
            || never_sampled
            || self.course.times_ms.last().is_some_and(|&last_ms| last_ms >= end_ms)
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
        self.course.push(end_ms, &cells);
    }

    /// Adds to the record of a job that is over what only samples know. `course` is the whole of it.
    pub fn complete(&self, record: &mut Record, course: &Course, interval: Duration) {
        if !course.is_empty() {
            record.summaries = course.summaries(gap_ms(interval).max(self.gap_ms));
        }
        let seen = self.live.totals.get(PROCESSES).max(record.totals.get(PROCESSES));
        self.fill(record);
        self.raise_peaks(record);
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
            // Those that came and went between two samples are known by their ends alone.
            match self.ends.complete {
                true => record.totals.set(PROCESSES, seen, Measured, "taskstats"),
                false => record.totals.set(PROCESSES, seen, LowerBound, "/proc"),
            }
        }
        doubt_needed_memory(&mut record.totals, course);
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
/// the highest came between two of them.
fn doubt_needed_memory(totals: &mut Totals, course: &Course) {
    let cache = course.maximum(MEMORY_CACHE).unwrap_or(0);
    let (Some(peak), Some(needed)) = (totals.get(MEMORY_PEAK), totals.figure(MEMORY_NEEDED_PEAK).cloned())
    else {
        return;
    };
    if peak > needed.value + cache + peak / 10 + UNEXPLAINED_BYTES {
        totals.set(MEMORY_NEEDED_PEAK, needed.value, LowerBound, needed.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::provenance::Provenance;

    #[test]
    fn a_peak_that_a_sample_raises_is_still_without_those_it_lacked() {
        let mut sampled = Sampled::default();
        sampled.live.totals.set(MEMORY_PEAK, 200, QualityKind::Sampled, Account::Cgroup);
        for (known, raised) in [(LowerBound, LowerBound), (Measured, QualityKind::Sampled)] {
            let mut record = met_core::sample::full(1, "train");
            record.totals.set(MEMORY_PEAK, 100, known, Account::Cgroup);
            sampled.raise_peaks(&mut record);
            let peak = record.totals.figure(MEMORY_PEAK).unwrap();
            assert_eq!((peak.value, peak.kind), (200, raised));
        }
    }

    /// A supervised job of which the samples saw this, and whose supervisor counted that.
    fn settled(seen: &[(usize, i64)], counted: &[(usize, i64)], ends: Ends) -> (Record, Course) {
        let mut sampled = Sampled { ends, ..Sampled::default() };
        let mut record = met_core::sample::full(1, "train");
        record.totals = Totals::default();
        let mut cells = vec![MISSING; JOB.columns.len()];
        for &(column, value) in seen {
            sampled.live.totals.set(column, value, QualityKind::Sampled, "/proc");
            cells[column] = value;
        }
        sampled.course.push(record.end_ns.unwrap() / 1_000_000 - 100, &cells);
        for &(column, value) in counted {
            record.totals.set(column, value, LowerBound, Account::Rusage);
        }
        sampled.settle(&mut record);
        (record, sampled.course)
    }

    #[test]
    fn a_counter_never_ends_below_what_was_sampled_and_its_series_does_not_fall() {
        let seen = [(PAGE_FAULTS_MINOR, 589), (SWITCHES_INVOLUNTARY, 642), (READ_CALL, 70), (CPU, 1_000)];
        let counted = [(PAGE_FAULTS_MINOR, 104), (SWITCHES_INVOLUNTARY, 4), (READ_CALL, 80), (CPU, 990)];
        let (record, course) = settled(&seen, &counted, Ends::default());
        let figure = |column| record.totals.figure(column).map(|figure| (figure.value, figure.kind)).unwrap();
        assert_eq!(figure(PAGE_FAULTS_MINOR), (589, LowerBound));
        assert_eq!(figure(SWITCHES_INVOLUNTARY), (642, LowerBound));
        assert_eq!(figure(READ_CALL), (80, LowerBound), "the end knows more");
        for column in [PAGE_FAULTS_MINOR, SWITCHES_INVOLUNTARY, READ_CALL, CPU] {
            let [before, end] = course.columns[column][..] else { panic!("two samples") };
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
            sampled.complete(&mut record, &Course::new(&JOB), Duration::from_secs(1));
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
}
