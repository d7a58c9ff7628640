//! The series of a job in phases, by change points.

use std::cell::{OnceCell, RefCell};

use met_core::MISSING;
use met_core::job::Record;
use met_core::job_table as column;
use met_core::series::{Interval, Series};

use super::Samples;
use crate::gpu;
use crate::resample::{Bin, Bins, Rates};
use crate::rules::quantile;

/// Steps in which phases are looked for: enough for a page, few enough for all partitions.
const STEPS_MAX: usize = 120;
/// Differences below this share of the highest level are noise.
const NOISE: f64 = 0.06;
/// Cores busy in a step that counts as idle, and in one that counts as computing.
const IDLE_CORES: f64 = 0.05;
const BUSY_CORES: f64 = 0.5;
/// The share of time in which tasks waited for storage, from which it is what they did.
const IO_SHARE: f64 = 0.3;
const IO_BYTES_PER_SECOND: f64 = 10.0 * 1_048_576.0;
const GPU_BUSY: f64 = 0.1;
const SUSTAINED_MS: i64 = 300_000;
/// Of the time, or of data that move: below both nothing is going on. Heartbeats and logs are less.
const WAITS_SHARE: f64 = 0.05;
const MOVED_BYTES_PER_SECOND: f64 = 100.0 * 1024.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    StartUp,
    Compute,
    IoWait,
    /// Some work, most of the time none.
    Light,
    Idle,
    IdleTail,
    /// No CPU time, and what it may have waited for was not sampled.
    Unclear,
    /// No samples.
    Unknown,
}

impl PhaseKind {
    pub fn name(self) -> &'static str {
        match self {
            PhaseKind::StartUp => "start-up",
            PhaseKind::Compute => "compute",
            PhaseKind::IoWait => "I/O wait",
            PhaseKind::Light => "light work",
            PhaseKind::Idle => "idle",
            PhaseKind::IdleTail => "idle tail",
            PhaseKind::Unclear => "unknown",
            PhaseKind::Unknown => "no samples",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    pub kind: PhaseKind,
    /// Seconds after the start of the job.
    pub begin_s: f64,
    pub end_s: f64,
    pub cores: Option<f64>,
    pub io_wait: Option<f64>,
    pub gpus: Option<f64>,
}

impl Phase {
    pub fn seconds(&self) -> f64 {
        self.end_s - self.begin_s
    }
}

/// What samples say of a job as a whole. It is worked out when it is asked for: most rules ask for little of it.
pub struct Profile<'a> {
    rates: Rates<'a>,
    has_gpus: bool,
    /// The span that samples may cover, in unix milliseconds: from the start to the end or now; of a lost job,
    /// to its last sample.
    begin_ms: i64,
    end_ms: i64,
    /// Where a warm-up is over.
    warm_ms: i64,
    phases: OnceCell<Vec<Phase>>,
    serial_share: OnceCell<Option<f64>>,
    cores_sustained: OnceCell<Option<f64>>,
    memory_growth: OnceCell<Option<f64>>,
    moments: RefCell<Vec<(usize, Moments)>>,
}

/// What a column came to in the window, in its unit.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    /// How much of the window its spans cover.
    pub covered_ms: i64,
    pub mean: f64,
    pub most: f64,
}

/// How long a job warms up: 5 % of its time, at least a minute, at most ten.
pub fn warm_up_s(wall_s: f64) -> f64 {
    (wall_s * 0.05).clamp(60.0, 600.0)
}

impl<'a> Profile<'a> {
    pub fn of(record: &Record, samples: Samples<'a>, now_ns: i64) -> Option<Profile<'a>> {
        let (begin_ms, until_ms) = span_of(record, now_ns).filter(|_| samples.series.len() >= 2)?;
        // The end of a lost job was not seen: what is known of it ends with its last sample.
        let is_lost = !record.state.is_live() && record.end_ns.is_none();
        let last_ms = samples.series.times_ms.last().copied().filter(|_| is_lost);
        let end_ms = last_ms.map_or(until_ms, |last_ms| last_ms.clamp(begin_ms + 1, until_ms));
        let (phases, serial_share, cores_sustained, memory_growth, moments) = Default::default();
        Some(Profile {
            rates: Rates::new(samples.series, samples.gap_ms),
            has_gpus: gpu::count(record) > 0,
            begin_ms,
            end_ms,
            warm_ms: warm_ms(begin_ms, end_ms),
            phases,
            serial_share,
            cores_sustained,
            memory_growth,
            moments,
        })
    }

    /// Samples of the job.
    pub fn count(&self) -> usize {
        self.rates.series().len()
    }

    pub fn phases(&self) -> &[Phase] {
        self.phases.get_or_init(|| {
            let wall_s = (self.end_ms - self.begin_ms) as f64 / 1e3;
            phases(&steps(&self.rates, self.begin_ms, self.end_ms), wall_s, self.has_gpus)
        })
    }

    /// The share of covered time in which at most one core was busy.
    pub fn serial_share(&self) -> Option<f64> {
        *self.serial_share.get_or_init(|| serial_share(&self.rates, self.begin_ms, self.end_ms))
    }

    /// The share of covered time in which at most one thread ran or waited for a CPU; where waiting was not read, as
    /// [`Profile::serial_share`].
    pub fn runnable_alone_share(&self) -> Option<f64> {
        let mut waiting: Vec<Interval> = Vec::new();
        self.rates.each(column::RUN_QUEUE_WAIT, |span| waiting.push(*span));
        if waiting.is_empty() {
            return self.serial_share();
        }
        let columns = self.rates.series().table.columns;
        let [cpu_scale, wait_scale] = [column::CPU, column::RUN_QUEUE_WAIT].map(|index| columns[index].scale);
        let (mut first, mut alone_ms, mut covered_ms) = (0, 0, 0);
        self.rates.each(column::CPU, |busy| {
            let (begin_ms, end_ms) = (busy.begin_ms.max(self.begin_ms), busy.end_ms.min(self.end_ms));
            // Both are in the order of time, mostly of the same samples.
            first += waiting[first..].iter().take_while(|wait| wait.end_ms <= begin_ms).count();
            for wait in waiting[first..].iter().take_while(|wait| wait.begin_ms < end_ms) {
                let both_ms = (wait.end_ms.min(end_ms) - wait.begin_ms.max(begin_ms)).max(0);
                let runnable = busy.value * cpu_scale + wait.value * wait_scale;
                covered_ms += both_ms;
                alone_ms += if runnable <= ONE_CORE { both_ms } else { 0 };
            }
        });
        (covered_ms > 0).then(|| alone_ms as f64 / covered_ms as f64)
    }

    /// Cores that were busy at least, for so long in all: five minutes, or 5 % of a shorter time. A warm-up counts.
    pub fn cores_sustained(&self) -> Option<f64> {
        *self.cores_sustained.get_or_init(|| cores_sustained(&self.rates, self.begin_ms, self.end_ms))
    }

    /// Growth of needed memory over the second half, in bytes per second; `None` unless it grew steadily.
    pub fn memory_growth(&self) -> Option<f64> {
        *self.memory_growth.get_or_init(|| memory_growth(&self.rates, self.begin_ms, self.end_ms))
    }

    /// The time at the end in which the job did nothing.
    pub fn idle_tail_s(&self) -> Option<f64> {
        let last = self.phases().last()?;
        match last.kind {
            PhaseKind::IdleTail => Some(last.seconds()),
            PhaseKind::Unclear | PhaseKind::Unknown => None,
            _ => Some(0.0),
        }
    }

    /// How much of the window after the warm-up, or of all of a short job, samples of a column cover.
    pub fn coverage(&self, column: usize) -> f64 {
        let (begin_ms, end_ms) = self.window_ms();
        self.moments(column).covered_ms as f64 / (end_ms - begin_ms).max(1) as f64
    }

    /// Calls `each` with the spans of a column that are in the window, and how much of each is.
    pub fn each_inside(&self, column: usize, mut each: impl FnMut(&Interval, i64)) {
        let (begin_ms, end_ms) = self.window_ms();
        self.rates.each(column, |span| {
            let inside_ms = span.end_ms.min(end_ms) - span.begin_ms.max(begin_ms);
            if inside_ms > 0 {
                each(span, inside_ms);
            }
        });
    }

    /// Worked out once: rules ask for the same ones.
    pub fn moments(&self, column: usize) -> Moments {
        let known = self.moments.borrow().iter().find(|(of, _)| *of == column).map(|(_, known)| *known);
        known.unwrap_or_else(|| {
            let found = self.moments_of(column);
            self.moments.borrow_mut().push((column, found));
            found
        })
    }

    fn moments_of(&self, column: usize) -> Moments {
        let scale = self.rates.series().table.columns[column].scale;
        let (mut covered_ms, mut weighted, mut most) = (0, 0.0, f64::MIN);
        self.each_inside(column, |span, inside_ms| {
            covered_ms += inside_ms;
            weighted += span.value * scale * inside_ms as f64;
            most = most.max(span.peak * scale);
        });
        Moments { covered_ms, mean: weighted / covered_ms as f64, most }
    }

    /// The window without the warm-up; all of a job that was too short for one.
    pub fn window_ms(&self) -> (i64, i64) {
        (window_begin_ms(self.begin_ms, self.warm_ms, self.end_ms), self.end_ms)
    }
}

/// The span that samples of a job may cover, in unix milliseconds.
pub fn span_of(record: &Record, now_ns: i64) -> Option<(i64, i64)> {
    let begin_ms = record.start_ns?.div_euclid(1_000_000);
    let until_ns = record.end_ns.or(record.as_of_ns).unwrap_or(now_ns);
    Some((begin_ms, until_ns.div_euclid(1_000_000))).filter(|(begin_ms, end_ms)| begin_ms < end_ms)
}

/// The window of a job, before anything is known of its samples.
pub fn window_of(record: &Record, now_ns: i64) -> Option<(i64, i64)> {
    let (begin_ms, end_ms) = span_of(record, now_ns)?;
    Some((window_begin_ms(begin_ms, warm_ms(begin_ms, end_ms), end_ms), end_ms))
}

fn warm_ms(begin_ms: i64, end_ms: i64) -> i64 {
    begin_ms + (warm_up_s((end_ms - begin_ms) as f64 / 1e3) * 1e3) as i64
}

fn window_begin_ms(begin_ms: i64, warm_ms: i64, end_ms: i64) -> i64 {
    let is_short = end_ms - warm_ms < warm_ms - begin_ms;
    if is_short { begin_ms } else { warm_ms }
}

/// What was known in one step; what was not sampled is `None`.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    cores: Option<f64>,
    io_wait: Option<f64>,
    /// From and to storage.
    io_bytes: Option<f64>,
    /// By read and write calls: files in the page cache or of a network, pipes, sockets. At least, as over the network.
    call_bytes: Option<f64>,
    memory_wait: Option<f64>,
    network_bytes: Option<f64>,
    gpus: Option<f64>,
}

/// What phases are made of.
pub const PHASE_COLUMNS: &[usize; 12] = &[
    column::PRESSURE_IO,
    column::DELAY_IO,
    column::CPU,
    column::READ,
    column::WRITTEN,
    column::GPU_UTILIZATION,
    column::PRESSURE_MEMORY,
    column::DELAY_MEMORY,
    column::NETWORK_RECEIVED,
    column::NETWORK_SENT,
    column::READ_CALL,
    column::WRITE_CALL,
];

fn steps(rates: &Rates<'_>, begin_ms: i64, end_ms: i64) -> Vec<Step> {
    let series = rates.series();
    let count = series.len().clamp(2, STEPS_MAX);
    let of = |index: usize| {
        let bins = binned(rates, index, begin_ms, end_ms, count);
        let scale = series.table.columns[index].scale;
        bins.into_iter().map(|bin| bin.map(|bin| bin.mean * scale)).collect::<Vec<_>>()
    };
    let [pressure, delay, cores, read, written, gpus, memory, memory_delay, received, sent] =
        std::array::from_fn(|at| of(PHASE_COLUMNS[at]));
    // Calls matter where nothing else goes on.
    let is_quiet = cores.iter().flatten().any(|&cores| cores < IDLE_CORES);
    let calls = |index: usize| if is_quiet { of(index) } else { vec![None; count] };
    let (read_call, write_call) = (calls(column::READ_CALL), calls(column::WRITE_CALL));
    let share = |pressure: Option<f64>, delay: Option<f64>| pressure.or(delay).map(|share| share.min(1.0));
    let sum = |one: Option<f64>, other: Option<f64>| one.zip(other).map(|(one, other)| one + other);
    // One alone is the least that moved, which is all that is asked of these.
    let least = |one: Option<f64>, other: Option<f64>| sum(one, other).or(one).or(other);
    let step = |at: usize| Step {
        cores: cores[at],
        io_wait: share(pressure[at], delay[at]),
        io_bytes: sum(read[at], written[at]),
        call_bytes: least(read_call[at], write_call[at]),
        memory_wait: share(memory[at], memory_delay[at]),
        network_bytes: least(received[at], sent[at]),
        gpus: gpus[at],
    };
    (0..count).map(step).collect()
}

fn binned(rates: &Rates<'_>, column: usize, begin_ms: i64, end_ms: i64, count: usize) -> Vec<Option<Bin>> {
    let mut bins = Bins::new(begin_ms, end_ms, count);
    rates.each(column, |interval| bins.add(interval));
    bins.finish()
}

/// The best partition into phases of equal level, each named by what it did.
fn phases(steps: &[Step], wall_s: f64, has_gpus: bool) -> Vec<Phase> {
    let highest = |of: fn(&Step) -> Option<f64>| steps.iter().filter_map(of).fold(0.0, f64::max);
    let most_cores = highest(|step| step.cores);
    let (cores_scale, gpu_scale) = (most_cores.max(BUSY_CORES), highest(|step| step.gpus).max(1.0));
    let levels = |step: &Step| {
        [
            step.cores.map(|cores| cores / cores_scale),
            step.io_wait,
            step.gpus.map(|gpus| gpus / gpu_scale),
            // A time without samples is a phase of its own.
            Some(if step.cores.is_none() && step.gpus.is_none() { 1.0 } else { 0.0 }),
        ]
        .map(|level| level.unwrap_or(0.0))
    };
    let levels: Vec<[f64; 4]> = steps.iter().map(levels).collect();
    let step_s = wall_s / steps.len() as f64;
    let mut found: Vec<Phase> = Vec::new();
    for (begin, end) in change_points(&levels) {
        let mean = |of: fn(&Step) -> Option<f64>| {
            let known: Vec<f64> = steps[begin..end].iter().filter_map(of).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        let of = Step {
            cores: mean(|step| step.cores),
            io_wait: mean(|step| step.io_wait),
            io_bytes: mean(|step| step.io_bytes),
            call_bytes: mean(|step| step.call_bytes),
            memory_wait: mean(|step| step.memory_wait),
            network_bytes: mean(|step| step.network_bytes),
            gpus: mean(|step| step.gpus),
        };
        let kind = kind(&of, most_cores, has_gpus);
        let phase = Phase {
            kind,
            begin_s: begin as f64 * step_s,
            end_s: end as f64 * step_s,
            cores: of.cores,
            io_wait: of.io_wait,
            gpus: of.gpus,
        };
        match found.last_mut().filter(|last| is_same(last, &phase)) {
            Some(last) => *last = merged(last, &phase),
            None => found.push(phase),
        }
    }
    name_ends(&mut found, wall_s);
    found
}

fn kind(of: &Step, most_cores: f64, has_gpus: bool) -> PhaseKind {
    let Some(cores) = of.cores else {
        return match of.gpus {
            Some(gpus) if gpus >= GPU_BUSY => PhaseKind::Compute,
            _ => PhaseKind::Unknown,
        };
    };
    let waits = of.io_wait.is_some_and(|share| share >= IO_SHARE)
        || of.io_wait.is_none() && of.io_bytes.is_some_and(|bytes| bytes >= IO_BYTES_PER_SECOND);
    if of.gpus.is_some_and(|gpus| gpus >= GPU_BUSY) {
        PhaseKind::Compute
    } else if waits && cores < most_cores.max(1.0) * 0.7 {
        PhaseKind::IoWait
    } else if cores >= BUSY_CORES || cores >= 0.5 * most_cores && cores >= 0.2 {
        PhaseKind::Compute
    } else if cores < IDLE_CORES && has_gpus && of.gpus.is_none() {
        // It may have waited for a GPU that computed.
        PhaseKind::Unclear
    } else if cores >= IDLE_CORES || is_held_up(of) {
        PhaseKind::Light
    } else if of.io_wait.is_none() && of.io_bytes.is_none() {
        // It may have waited for storage.
        PhaseKind::Unclear
    } else {
        PhaseKind::Idle
    }
}

/// Little CPU time is not idleness while tasks wait for storage or memory, or data move: a slow copy needs neither a core
/// nor all that a disk can do.
fn is_held_up(of: &Step) -> bool {
    let moved = [of.io_bytes, of.call_bytes, of.network_bytes].into_iter().flatten();
    of.io_wait.into_iter().chain(of.memory_wait).any(|share| share >= WAITS_SHARE)
        || moved.into_iter().any(|bytes| bytes >= MOVED_BYTES_PER_SECOND)
}

/// Computing on one core and on many are two phases.
fn is_same(one: &Phase, next: &Phase) -> bool {
    let near = |one: Option<f64>, next: Option<f64>| {
        let (one, next) = (one.unwrap_or(0.0), next.unwrap_or(0.0));
        (one - next).abs() <= 0.5 * one.max(next)
    };
    one.kind == next.kind
        && (one.kind != PhaseKind::Compute || near(one.cores, next.cores) && near(one.gpus, next.gpus))
}

fn merged(one: &Phase, next: &Phase) -> Phase {
    let (first_s, second_s) = (one.seconds(), next.seconds());
    let mean = |one: Option<f64>, next: Option<f64>| match (one, next) {
        (Some(one), Some(next)) => Some((one * first_s + next * second_s) / (first_s + second_s)),
        (one, next) => one.or(next),
    };
    Phase {
        end_s: next.end_s,
        cores: mean(one.cores, next.cores),
        io_wait: mean(one.io_wait, next.io_wait),
        gpus: mean(one.gpus, next.gpus),
        ..*one
    }
}

/// What comes before the work is a start-up, unless it waits for storage, and idleness after it a tail.
fn name_ends(phases: &mut [Phase], wall_s: f64) {
    let work = |phase: &Phase| phase.cores.unwrap_or(0.0) + phase.gpus.unwrap_or(0.0);
    let most = phases.iter().filter(|phase| phase.kind == PhaseKind::Compute).map(work).fold(0.0, f64::max);
    if let [first, _, ..] = phases
        && most > 0.0
        && first.seconds() < wall_s / 2.0
        && work(first) < 0.6 * most
        && !matches!(first.kind, PhaseKind::Unclear | PhaseKind::Unknown | PhaseKind::IoWait)
    {
        first.kind = PhaseKind::StartUp;
    }
    if let [before @ .., last] = phases
        && last.kind == PhaseKind::Idle
        // Idleness after next to nothing is not a tail.
        && before.iter().any(|phase| matches!(phase.kind, PhaseKind::Compute | PhaseKind::IoWait))
    {
        last.kind = PhaseKind::IdleTail;
    }
}

/// Optimal partition by least squares, with a penalty for each change: all partitions are considered.
fn change_points(levels: &[[f64; 4]]) -> Vec<(usize, usize)> {
    let count = levels.len();
    let mut sums = vec![([0.0; 4], 0.0)];
    for level in levels {
        let (mut sum, mut squares) = sums[sums.len() - 1];
        for (sum, value) in sum.iter_mut().zip(level) {
            *sum += value;
            squares += value * value;
        }
        sums.push((sum, squares));
    }
    let cost = |begin: usize, end: usize| {
        let ((first, first_squares), (last, last_squares)) = (sums[begin], sums[end]);
        let length = (end - begin) as f64;
        let fitted: f64 = first.iter().zip(last).map(|(first, last)| (last - first).powi(2)).sum();
        (last_squares - first_squares - fitted / length).max(0.0)
    };
    let penalty = 4.0 * noise_variance(levels) * (count as f64).ln().max(1.0);
    let mut best = vec![(f64::INFINITY, 0); count + 1];
    best[0] = (-penalty, 0);
    for end in 1..=count {
        for begin in 0..end {
            let total = best[begin].0 + cost(begin, end) + penalty;
            if total < best[end].0 {
                best[end] = (total, begin);
            }
        }
    }
    let mut parts = Vec::new();
    let mut end = count;
    while end > 0 {
        let begin = best[end].1;
        parts.push((begin, end));
        end = begin;
    }
    parts.reverse();
    parts
}

/// From the differences of neighbours, whose median a few changes do not move.
fn noise_variance(levels: &[[f64; 4]]) -> f64 {
    let mut variance = 0.0;
    for at in 0..4 {
        let mut differences: Vec<f64> =
            levels.windows(2).map(|pair| (pair[1][at] - pair[0][at]).abs()).collect();
        let deviation = median(&mut differences).unwrap_or(0.0) / 0.6745 / std::f64::consts::SQRT_2;
        variance += deviation * deviation;
    }
    variance.max(NOISE * NOISE)
}

pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// A thread that never waits uses a little more than a core by the clock of the samples.
const ONE_CORE: f64 = 1.15;

fn serial_share(rates: &Rates<'_>, begin_ms: i64, end_ms: i64) -> Option<f64> {
    let scale = rates.series().table.columns[column::CPU].scale;
    let (mut serial_ms, mut covered_ms) = (0, 0);
    rates.each(column::CPU, |span| {
        let length_ms = (span.end_ms.min(end_ms) - span.begin_ms.max(begin_ms)).max(0);
        covered_ms += length_ms;
        serial_ms += if span.value * scale <= ONE_CORE { length_ms } else { 0 };
    });
    (covered_ms > 0).then(|| serial_ms as f64 / covered_ms as f64)
}

fn cores_sustained(rates: &Rates<'_>, begin_ms: i64, end_ms: i64) -> Option<f64> {
    let scale = rates.series().table.columns[column::CPU].scale;
    let (mut spans, mut covered_ms) = (Vec::new(), 0);
    rates.each(column::CPU, |span| {
        let inside_ms = span.end_ms.min(end_ms) - span.begin_ms.max(begin_ms);
        if inside_ms > 0 {
            // The highest first.
            spans.push((-span.value * scale, inside_ms as f64));
            covered_ms += inside_ms;
        }
    });
    quantile(&mut spans, SUSTAINED_MS.min(covered_ms / 20) as f64).map(|cores| -cores)
}

/// Memory that grows in every eighth of the second half. Growth that stops is a program that fills its tables.
fn memory_growth(rates: &Rates<'_>, begin_ms: i64, end_ms: i64) -> Option<f64> {
    const PARTS: usize = 8;
    let end_ms = before_teardown_ms(rates.series()).unwrap_or(end_ms);
    let half_ms = begin_ms + (end_ms - begin_ms) / 2;
    let bins = binned(rates, column::MEMORY_NEEDED, half_ms, end_ms, PARTS);
    let means: Vec<f64> = bins.into_iter().map(|bin| bin.map(|bin| bin.mean)).collect::<Option<_>>()?;
    let steps: Vec<f64> = means.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let growth = means[PARTS - 1] - means[0];
    // The slowest step is still a third of the mean one: a staircase or a saturating curve is not a leak.
    let steady = steps.iter().all(|&step| step > growth / (PARTS - 1) as f64 / 3.0);
    let seconds = (end_ms - half_ms) as f64 / 1e3 * (PARTS - 1) as f64 / PARTS as f64;
    (steady && growth > 0.05 * means[0] && seconds > 0.0).then(|| growth / seconds)
}

/// When the last level of memory was seen, if a later sample fell into the end of the processes, which free all.
fn before_teardown_ms(series: &Series) -> Option<i64> {
    let levels = series.times_ms.iter().zip(&series.columns[column::MEMORY_NEEDED]);
    let mut known = levels.filter(|(_, level)| **level != MISSING).rev();
    let ((_, last), (time_ms, before)) = (known.next()?, known.next()?);
    (*last < before / 2).then_some(*time_ms)
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
