//! What one run says of other sizes: bounds, and what limits first.

use met_core::job_table as column;
use met_core::units::{self, cores};

use super::ceilings::{self, Ceilings, Headroom};
use crate::answers::Job;
use crate::rules::fields;
use crate::{allocation, average, gpu};

/// From which the wait for storage, or the use of GPUs, explains that a CPU had nothing to do.
const STORAGE_WAIT: f64 = 0.2;
const GPUS_BUSY: f64 = 0.1;
/// A smaller share of time with one runnable thread counts as none.
const ALONE_LEAST: f64 = 0.005;
/// Cores that a job uses at most that mostly sleeps.
const ASLEEP_CORES: f64 = 0.5;

#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// Workers that the run had.
    pub size: f64,
    /// Busy cores on average, and exceeded for 5 % of the time.
    pub cores: f64,
    pub cores_p95: Option<f64>,
    /// The share of the time in which at most one thread was runnable: on a core, or waiting for one.
    pub serial_time: Option<f64>,
    /// The most that can be serial of the work on one core.
    pub serial_high: Option<f64>,
    /// What limits its speed-up with any number of cores is at least this.
    pub speedup_limit_min: Option<f64>,
    /// How far it used what its machine has only so much of.
    pub headroom: Vec<Headroom>,
    /// The share of the time in which it waited for storage.
    pub storage_wait: Option<f64>,
    /// Storage or a GPU did the work, or may have: that few threads were runnable says nothing of more workers.
    pub is_busy_elsewhere: bool,
}

impl Bounds {
    /// What more workers run out of first, if its use grows with them.
    pub fn first_limit(&self) -> Option<&Headroom> {
        ceilings::first_limit(&self.headroom)
    }

    /// In words, a line each.
    pub fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = self.headroom.iter().map(Headroom::words).collect();
        words.extend(self.over_time());
        let wait = self.storage_wait.map(units::percent);
        words.extend(wait.map(|share| format!("storage: waited for it {share} of the time")));
        if let Some(first) = self.first_limit() {
            let often = format!("{:.1} times as many workers", 1.0 / first.share());
            words.push(format!("limits first: {}, with {often} if its use grows with them", first.resource));
        }
        words
    }

    /// How much of its work can be serial, at most. A bound of all its work says nothing. What more workers can gain is
    /// of this run, as in [`Bounds::words`], and said once.
    pub fn serial_words(&self) -> Option<String> {
        let serial = self.serial_high.filter(|serial| *serial < 0.995)?;
        let is_said = self.is_busy_elsewhere || self.serial_time.is_some_and(|share| share >= ALONE_LEAST);
        let gain =
            self.speedup_limit_min.map(|limit| limit / self.cores).filter(|gain| !is_said && *gain >= 1.1);
        let gain = gain.map(|gain| {
            format!("; if more workers share the rest, they can make it {gain:.1} times as fast or more")
        });
        Some(format!("at most {} of its work is serial{}", units::percent(serial), gain.unwrap_or_default()))
    }

    /// How many cores it really used over time, and what that leaves to gain.
    fn over_time(&self) -> Vec<String> {
        let peak = self.cores_p95.map(|peak| {
            format!("cores over time: {} on average, {} or more for 5% of it", cores(self.cores), cores(peak))
        });
        let serial = self.serial_time.map(|share| {
            // What is shorter than the time between two samples is not seen in them.
            let often = match share {
                0.0 => "in no sample".to_owned(),
                share => format!("{} of the time", units::percent(share)),
            };
            let gain = match share {
                _ if self.is_busy_elsewhere => String::new(),
                share if share < ALONE_LEAST => String::new(),
                share if share > 0.995 => "; more workers need a program that starts them".to_owned(),
                share => {
                    format!("; if that stays, more workers make it at most {:.1} times as fast", 1.0 / share)
                }
            };
            format!("at most one thread runnable: {often}{gain}")
        });
        peak.into_iter().chain(serial).collect()
    }
}

/// From the cores that were really used. If all of them work in the parallel part, the mean of busy cores says how long
/// only one can have been; samples may show more. As a share of the work it bounds the serial fraction from above.
pub fn bounds(job: &Job<'_>, ceilings: &Ceilings) -> Option<Bounds> {
    let size = allocation::usable_cpus(job.record, job.machine, job.now_ns)?;
    if !job.is_whole() {
        return None;
    }
    let cores = average::cores(job.record, job.now_ns).filter(|&cores| cores > 0.0)?;
    let serial_time = job.profile().and_then(|profile| profile.runnable_alone_share());
    // On one core all of the run is serial by necessity.
    let serial_high = serial_time
        .filter(|_| size > 1.0)
        .map(|share| (share.max(alone_most(job, cores, size)) / cores).min(1.0));
    let speedup_limit_min = serial_high.filter(|&serial| serial > 0.01).map(|serial| 1.0 / serial);
    let storage_wait = average::waited(job.record, column::PRESSURE_IO, column::DELAY_IO, job.now_ns);
    Some(Bounds {
        size,
        cores,
        cores_p95: fields::find("cores_p95")?.of_job(job).map(|fact| fact.value),
        serial_time,
        serial_high,
        speedup_limit_min,
        headroom: ceilings::headroom(job, cores, size, ceilings),
        storage_wait,
        is_busy_elsewhere: is_busy_elsewhere(job, cores, storage_wait),
    })
}

/// A job whose tasks mostly sleep waits for something, even if its wait for storage is known: a network file system is not
/// in it.
fn is_busy_elsewhere(job: &Job<'_>, cores: f64, storage_wait: Option<f64>) -> bool {
    let waits = cores < ASLEEP_CORES || storage_wait.is_some_and(|share| share > STORAGE_WAIT);
    let has_gpus = gpu::count(job.record) > 0;
    waits || has_gpus && average::gpus(job.record).is_none_or(|computing| computing > GPUS_BUSY)
}

/// The largest share of the time that can have had one runnable thread only: all of them were runnable in the rest. Of
/// threads that waited for a CPU there may be more than CPUs, which bounds nothing unless it is known how many.
fn alone_most(job: &Job<'_>, cores: f64, size: f64) -> f64 {
    let share = |mean: f64, most: f64| ((most - mean) / (most - 1.0)).clamp(0.0, 1.0);
    let by_cores = share(cores, size);
    let waiting = average::per_second(job.record, column::RUN_QUEUE_WAIT, job.now_ns);
    let threads = job.record.totals.get(column::THREADS_PEAK).map(|threads| threads as f64);
    let by_threads = waiting.zip(threads).map(|(waiting, threads)| share(cores + waiting, size.max(threads)));
    by_threads.map_or(by_cores, |by_threads| by_threads.min(by_cores))
}

/// Cores that are busy by the clock of the samples, beyond a whole number.
const CLOCK: f64 = 0.15;

/// The workers of a run: the CPUs or tasks that it was given; without any, its threads, if as many of them were busy at
/// once. What was busy alone is no size: it differs between runs of one size.
pub fn size(job: &Job<'_>) -> Option<f64> {
    let (allocated, requested) = (&job.record.allocated, &job.record.requested);
    let given = allocated.cpus.or(requested.cpus).or(allocated.tasks).or(requested.tasks);
    match given {
        Some(given) => Some(given as f64),
        None => threads(job).filter(|_| job.is_whole()),
    }
}

fn threads(job: &Job<'_>) -> Option<f64> {
    let record = job.record;
    let threads = record.totals.get(column::THREADS_PEAK).filter(|&threads| threads > 0)? as f64;
    if threads == 1.0 {
        return Some(1.0);
    }
    let busy = (average::cores_peak(record)? - CLOCK).ceil().max(1.0);
    let usable = record.local.as_ref().and_then(|local| local.cpus_usable).map(f64::from);
    // More threads than CPUs take turns.
    if let Some(usable) = usable.filter(|&usable| busy >= usable) {
        return Some(usable);
    }
    let rate = |index: usize| average::per_second(record, index, job.now_ns);
    // One thread often only waits for the others. If threads waited for a CPU, fewer were busy than there were.
    let is_free = || Some(rate(column::CPU)? + rate(column::RUN_QUEUE_WAIT)? <= busy + CLOCK);
    let agrees = busy == threads || busy == threads - 1.0 && is_free() == Some(true);
    agrees.then_some(busy)
}

#[cfg(test)]
mod tests {
    use met_core::job::{Part, QualityKind};

    use super::*;
    use crate::report::Machine;
    use crate::sample;
    use crate::series_tests::{Made, made};

    fn serial_high(made: &Made) -> f64 {
        let job = Job::new(&made.record, Machine { cpus: Some(4) }, made.now_ns()).sampled(made.samples());
        bounds(&job, &Ceilings::default()).unwrap().serial_high.unwrap()
    }

    #[test]
    fn what_alternates_between_samples_is_within_the_bound() {
        // On one core and on four by turns, a fifth of the work serial: samples see 2.5 cores busy.
        let high = serial_high(&made(100).cores(|_| 2.5));
        assert!((high - 0.2).abs() < 0.01, "{high}");
        let phases = serial_high(&made(100).cores(|second| if second < 50 { 1.0 } else { 4.0 }));
        assert!((phases - 0.2).abs() < 0.01, "{phases}");
        assert!(serial_high(&made(100).cores(|_| 4.0)) < 0.01);
    }

    #[test]
    fn one_run_says_how_many_cores_it_used_and_what_is_left_to_gain() {
        let made = made(100).cores(|second| if second < 25 { 1.0 } else { 4.0 });
        let job = Job::new(&made.record, Machine { cpus: Some(4) }, made.now_ns()).sampled(made.samples());
        let words = bounds(&job, &Ceilings::default()).unwrap().words();
        let over_time = [
            "cores over time: 3.25 on average, 4 or more for 5% of it",
            "at most one thread runnable: 25% of the time; if that stays, more workers make it at most 4.0 times as fast",
        ];
        assert!(over_time.iter().all(|line| words.iter().any(|word| word == line)), "{words:#?}");
    }

    #[test]
    fn what_more_workers_gain_is_of_this_run_and_said_once() {
        let words = |made: &Made| {
            let job =
                Job::new(&made.record, Machine { cpus: Some(2) }, made.now_ns()).sampled(made.samples());
            let bounds = bounds(&job, &Ceilings::default()).unwrap();
            bounds.words().into_iter().chain(bounds.serial_words()).collect::<Vec<_>>()
        };
        let gains =
            |made: &Made| words(made).into_iter().filter(|line| line.contains(" fast")).collect::<Vec<_>>();
        // Two processes, one of which ends early.
        let unequal = made(100).cores(|second| if second < 63 { 2.0 } else { 1.0 });
        let most = "at most one thread runnable: 37% of the time; if that stays, more workers make it at most 2.7 times as fast";
        assert_eq!(gains(&unequal), [most]);
        assert_eq!(words(&unequal).last().unwrap(), "at most 23% of its work is serial");
        let mixed = "at most 25% of its work is serial; if more workers share the rest, they can make it 2.5 times as fast or more";
        assert_eq!(gains(&made(100).cores(|_| 1.6)), [mixed]);
        assert_eq!(gains(&made(100).cores(|_| 1.6).rate(column::PRESSURE_IO, |_| 0.4)), [""; 0]);
    }

    #[test]
    fn nothing_is_said_of_more_workers_where_storage_or_a_gpu_did_the_work() {
        let runnable = |made: &Made| {
            let job =
                Job::new(&made.record, Machine { cpus: Some(4) }, made.now_ns()).sampled(made.samples());
            let words = bounds(&job, &Ceilings::default()).unwrap().words();
            words.into_iter().find(|line| line.contains("thread")).unwrap()
        };
        let all = "at most one thread runnable: 100% of the time";
        let with_advice = format!("{all}; more workers need a program that starts them");
        assert_eq!(runnable(&made(100).cores(|_| 1.0)), with_advice);
        assert_eq!(runnable(&made(100).computing(|_| 1.0)), with_advice);
        // 64 processes that sleep.
        let asleep = || made(100).cores(|_| 0.02);
        assert_eq!(runnable(&asleep()), all, "what they waited for is not known");
        assert_eq!(runnable(&asleep().rate(column::PRESSURE_IO, |_| 0.0)), all, "not for a local disk");
        assert_eq!(runnable(&asleep().rate(column::PRESSURE_IO, |_| 0.9)), all);
        assert_eq!(runnable(&made(100).cores(|_| 1.0).rate(column::DELAY_IO, |_| 0.9)), all);
        let mut beside = made(100).computing(|_| 1.0);
        beside.record.gpus = vec![sample::gpu()];
        assert_eq!(runnable(&beside), all, "60 % of a GPU");
        beside.record.gpus[0].utilization = Some(0.0);
        assert_eq!(runnable(&beside), with_advice, "the GPU did nothing");
        beside.record.gpus[0].utilization = None;
        assert_eq!(runnable(&beside), all, "what the GPU did is not known");
        let part = made(100).cores(|second| if second < 50 { 1.0 } else { 4.0 });
        assert_eq!(
            runnable(&part.rate(column::PRESSURE_IO, |_| 0.4)),
            "at most one thread runnable: 50% of the time"
        );
        assert_eq!(runnable(&made(100).cores(|_| 4.0)), "at most one thread runnable: in no sample");
    }

    #[test]
    fn the_wait_for_storage_is_the_mean_of_nodes_and_may_be_of_delays() {
        let wait = |made: &Made| {
            let job =
                Job::new(&made.record, Machine { cpus: Some(4) }, made.now_ns()).sampled(made.samples());
            bounds(&job, &Ceilings::default()).unwrap().storage_wait
        };
        let mut waited = made(100).cores(|_| 2.0).rate(column::DELAY_IO, |_| 0.5);
        waited.record.allocated.cpus = Some(8);
        assert_eq!(wait(&waited), Some(0.5), "by delays");
        let mut waited = waited.rate(column::PRESSURE_IO, |_| 0.6);
        assert_eq!(wait(&waited), Some(0.6));
        waited.record.nodes = vec!["n1".to_owned(), "n2".to_owned()];
        for node in ["n1", "n2"] {
            waited.record.parts.push(Part { node: node.to_owned(), ..sample::scheduled().parts[0].clone() });
        }
        assert_eq!(wait(&waited), Some(0.3), "0.3 on each of two nodes");
    }

    #[test]
    fn threads_that_wait_for_a_cpu_are_not_serial() {
        let mut crowded = made(100).cores(|_| 1.0).rate(column::RUN_QUEUE_WAIT, |_| 3.0);
        assert_eq!(serial_high(&crowded), 1.0, "any number of threads may have waited for short times");
        crowded.record.totals.set(column::THREADS_PEAK, 4, QualityKind::Sampled, "proc");
        let job = Job::new(&crowded.record, Machine { cpus: Some(4) }, crowded.now_ns());
        let bounds = bounds(&job.sampled(crowded.samples()), &Ceilings::default()).unwrap();
        assert_eq!((bounds.serial_time, bounds.serial_high), (Some(0.0), Some(0.0)));
    }

    #[test]
    fn more_threads_than_cpus_by_turns_with_one_are_within_the_bound() {
        // Eight threads on four CPUs, and one alone, by turns between samples: a fifth of the work is serial.
        let mut turns = made(100).cores(|_| 2.5).rate(column::RUN_QUEUE_WAIT, |_| 2.0);
        let unknown = serial_high(&turns);
        turns.record.totals.set(column::THREADS_PEAK, 8, QualityKind::Sampled, "proc");
        for high in [unknown, serial_high(&turns)] {
            assert!((high - 0.2).abs() < 0.01, "{high}");
        }
        // Seven of eight runnable on average, on two CPUs that others left them.
        let mut crowded = made(100).cores(|_| 2.0).rate(column::RUN_QUEUE_WAIT, |_| 5.0);
        crowded.record.totals.set(column::THREADS_PEAK, 8, QualityKind::Sampled, "proc");
        let high = serial_high(&crowded);
        assert!((high - 1.0 / 7.0 / 2.0).abs() < 0.01, "{high}");
    }

    #[test]
    fn what_was_busy_is_no_size() {
        let mut made = made(100).cores(|_| 7.4);
        made.record.totals.set(column::CORES_PEAK, 7_400, QualityKind::Sampled, "proc");
        let of = |made: &Made| size(&Job::new(&made.record, Machine { cpus: Some(8) }, made.now_ns()));
        assert_eq!(of(&made), None);
        made.record.allocated.cpus = Some(8);
        assert_eq!(of(&made), Some(8.0));
    }

    /// A plain `met run` on a machine of 8 CPUs: threads at most, cores busy at once at most and on average, threads
    /// waiting for a CPU.
    fn plain(threads: i64, peak: f64, cores: f64, waiting: f64) -> Made {
        use met_core::job::{Local, Origin};
        let mut made = made(100).cores(move |_| cores).rate(column::RUN_QUEUE_WAIT, move |_| waiting);
        made.record.totals.set(column::THREADS_PEAK, threads, QualityKind::Sampled, "proc");
        made.record.totals.set(column::CORES_PEAK, (peak * 1e3) as i64, QualityKind::Sampled, "proc");
        made.record.local = Some(Local { cpus_usable: Some(8), ..Local::new("", Origin::Run, "/") });
        made
    }

    #[test]
    fn a_run_without_an_allocation_has_the_size_of_its_busy_threads() {
        let of = |made: &Made| size(&Job::new(&made.record, Machine { cpus: Some(8) }, made.now_ns()));
        assert_eq!(of(&plain(1, 0.6, 0.5, 0.0)), Some(1.0), "one thread is one worker");
        assert_eq!(of(&plain(4, 4.02, 3.5, 0.1)), Some(4.0));
        assert_eq!(of(&plain(5, 3.98, 3.5, 0.1)), Some(4.0), "one waits for four");
        assert_eq!(of(&plain(32, 7.9, 7.5, 20.0)), Some(8.0), "more threads than CPUs");
        assert_eq!(of(&plain(2, 1.0, 0.9, 0.8)), None, "two that took turns on a crowded machine");
        assert_eq!(of(&plain(9, 3.0, 2.0, 0.0)), None, "most of its threads slept");
        let mut ranks = plain(9, 3.0, 2.0, 0.0);
        ranks.record.requested.tasks = Some(4);
        assert_eq!(of(&ranks), Some(4.0), "ranks that were asked for");
        let mut one_core = plain(8, 1.0, 1.0, 7.0);
        one_core.record.local.as_mut().unwrap().cpus_usable = Some(1);
        assert_eq!(of(&one_core), Some(1.0), "on one core");
    }
}
