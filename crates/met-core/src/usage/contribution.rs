//! What one job adds to the sums: its totals, divided over the buckets in which it ran.

use std::collections::BTreeMap;

use super::figure::*;
use super::{Amounts, BUCKET_NS, BUCKETS_PER_DAY, DayRow, FIGURES, Group, Kind, bucket_of, day_of};
use crate::apportion::apportion;
use crate::belief::requests;
use crate::job::{Part, Record, Resources, Totals};
use crate::job_table as column;
use crate::listing;
use crate::series::Series;
use crate::text::prefix;
use crate::{MISSING, rate};

/// Called with each day of each group that a job adds to.
pub type Each<'e, E> = &'e mut dyn FnMut(Kind, &Group, i64, &DayRow) -> Result<(), E>;

/// A job that says to have run for longer is not divided: its clock was wrong.
const BUCKETS_MAX: i64 = 5 * 366 * 96;
const COMMAND_BYTES_MAX: usize = 100;
/// Programs of which the first argument says what runs.
const INTERPRETERS: [&str; 8] = ["python", "python3", "bash", "sh", "perl", "Rscript", "julia", "node"];

/// Whether the samples of a job matter here.
pub fn needs_series(record: &Record) -> bool {
    let buckets = record.start_ns.zip(record.end_ns).map(|(start, end)| (bucket_of(start), bucket_of(end)));
    record.inside.is_none() && buckets.is_some_and(|(first, last)| first < last)
}

/// What a job adds that ran until `until_ns` or its end. Jobs inside others are in these; without a start, nothing is
/// known of when it ran. One group at a time: a job may have many nodes and days.
pub fn contribute<E>(
    record: &Record,
    series: Option<&Series>,
    until_ns: i64,
    each: Each<'_, E>,
) -> Result<(), E> {
    let (Some(start_ns), None) = (record.start_ns, &record.inside) else { return Ok(()) };
    let end_ns = record.end_ns.unwrap_or(until_ns).max(start_ns);
    // The moment of the end belongs to the time before it.
    let (first, last) = (bucket_of(start_ns), bucket_of((end_ns - 1).max(start_ns)));
    if last - first >= BUCKETS_MAX {
        return Ok(());
    }
    let span = Span { start_ns, end_ns, first, count: (last - first + 1) as usize };
    let shapes = Shapes::of(&span, series);
    let whole = amounts(record, end_ns - start_ns, &shapes);
    let owner = Group {
        user: record.user.clone(),
        uid: record.uid,
        account: record.account.clone(),
        ..Group::default()
    };
    let who = Group { partition: record.scheduling.partition.clone(), ..owner.clone() };
    let command = Group { command: Some(command(record)), ..owner.clone() };
    let buckets = shapes.divide(&whole);
    span.each_day(&buckets, |day, row| each(Kind::Who, &who, day, row))?;
    span.each_day(&buckets, |day, row| each(Kind::Command, &command, day, &in_first_bucket(row)))?;
    for (node, share) in on_nodes(record, &whole) {
        let group = Group { node, ..owner.clone() };
        span.each_day(&shapes.divide(&share), |day, row| each(Kind::Node, &group, day, row))?;
    }
    Ok(())
}

/// The command as people know it: the program, and the script of an interpreter.
fn command(record: &Record) -> String {
    let base = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
    let program = record.command.first().map(|word| base(word)).filter(|name| !name.is_empty());
    let Some(program) = program else { return prefix(&record.name, COMMAND_BYTES_MAX).to_owned() };
    let script = record.command.get(1).filter(|word| !word.starts_with('-') && !word.contains(' '));
    let name = match script.filter(|_| INTERPRETERS.contains(&program.as_str())) {
        Some(script) => format!("{program} {}", base(script)),
        None => program,
    };
    prefix(&name, COMMAND_BYTES_MAX).to_owned()
}

/// Everything of a day in its first bucket.
fn in_first_bucket(row: &DayRow) -> DayRow {
    let mut day = DayRow::default();
    for amounts in row.buckets.iter() {
        day.buckets[0].iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount);
    }
    day
}

/// The totals of a job.
fn amounts(record: &Record, wall_ns: i64, shapes: &Shapes) -> Amounts {
    let mut whole = [0; FIGURES];
    let total = |column: usize| record.totals.get(column).filter(|&total| total >= 0);
    let end_ns = record.start_ns.unwrap_or(0).saturating_add(wall_ns);
    let over_time = |count: i64, amount: fn(&Resources) -> Option<i64>| {
        let changed = Some(record).filter(|record| !record.scheduling.earlier.is_empty());
        match changed.and_then(|record| requests::held(record, end_ns, amount)) {
            Some(average) => (average * wall_ns as f64) as i64,
            None => i64::try_from(i128::from(count) * i128::from(wall_ns)).unwrap_or(0),
        }
    };
    let kib_ms = |bytes: f64| (bytes / 1024.0 * (wall_ns as f64 / 1e6)) as i64;
    let cpu = total(column::CPU).or(record.scheduling.cpu_ns.filter(|&cpu| cpu >= 0));
    let held_cores = listing::cpus(record);
    whole[JOBS] = 1;
    whole[JOBS_WITH_CPU] = cpu.is_some().into();
    whole[JOBS_WITH_ENERGY] = total(column::ENERGY).is_some().into();
    whole[CORES_HELD_NS] = held_cores.map_or(0, |cpus| over_time(cpus, |one| one.cpus));
    whole[CPU_NS] = cpu.unwrap_or(0);
    whole[CPU_OF_HELD_NS] = held_cores.and(cpu).unwrap_or(0);
    whole[CPU_EVEN_NS] = cpu.filter(|_| shapes.is_even(column::CPU)).unwrap_or(0);
    let held = record.gpus.iter().filter(|gpu| gpu.held_ns > 0);
    let (held, used) = held.fold((0, 0), |(held, used), gpu| {
        let of_job = gpu.utilization.filter(|used| used.is_finite() && *used >= 0.0).unwrap_or(0.0);
        (held + gpu.held_ns, used + (of_job * gpu.held_ns as f64) as i64)
    });
    let given = record.allocated.gpus.filter(|&gpus| gpus > 0);
    let given = given.map_or(0, |gpus| over_time(gpus, |one| one.gpus));
    (whole[GPUS_HELD_NS], whole[GPU_NS]) = (held.max(given), used);
    let memory = record.allocated.memory_bytes.filter(|&bytes| bytes > 0);
    whole[MEMORY_HELD] = memory.map_or(0, |bytes| kib_ms(bytes as f64));
    let needed = record.summaries.get(column::MEMORY_NEEDED).map(|summary| summary.mean);
    let needed = needed.or(total(column::MEMORY_NEEDED_PEAK).map(|peak| peak as f64));
    whole[MEMORY] = needed.filter(|bytes| bytes.is_finite() && *bytes >= 0.0).map_or(0, kib_ms);
    whole[ENERGY_UJ] = total(column::ENERGY).unwrap_or(0);
    whole[EMISSIONS_UG] = total(column::EMISSIONS).unwrap_or(0);
    whole[COST_NANO] = total(column::COST).unwrap_or(0);
    whole
}

/// What of it was on each node; what is not known of any is on none.
fn on_nodes(record: &Record, whole: &Amounts) -> Vec<(Option<String>, Amounts)> {
    if record.nodes.len() <= 1 {
        return vec![(record.nodes.first().cloned(), *whole)];
    }
    let mut shares: Vec<(Option<String>, Amounts)> =
        record.nodes.iter().map(|node| (Some(node.clone()), [0; FIGURES])).collect();
    let mut left = *whole;
    // What was given is alike on all nodes, as far as is known.
    let even = vec![1; shares.len()];
    for figure in [CORES_HELD_NS, GPUS_HELD_NS, MEMORY_HELD] {
        let mut parts = Vec::new();
        apportion(whole[figure].max(0) as u64, &even, &mut parts);
        shares.iter_mut().zip(&parts).for_each(|((_, share), &part)| share[figure] = part as i64);
        left[figure] = 0;
    }
    let is_node = |part: &&Part| part.step.is_empty() && part.task.is_none();
    for part in record.parts.iter().filter(is_node) {
        let place = shares.iter_mut().find(|(node, _)| node.as_deref() == Some(part.node.as_str()));
        let Some((_, share)) = place else { continue };
        let known = |totals: &Totals, column| totals.get(column).unwrap_or(0).max(0);
        let mut take = |figure: usize, amount: i64| {
            let amount = amount.min(left[figure]).max(0);
            (share[figure], left[figure]) = (share[figure] + amount, left[figure] - amount);
            amount
        };
        let cpu = take(CPU_NS, known(&part.totals, column::CPU));
        take(CPU_OF_HELD_NS, cpu);
        take(CPU_EVEN_NS, cpu);
        take(ENERGY_UJ, known(&part.totals, column::ENERGY));
        take(EMISSIONS_UG, known(&part.totals, column::EMISSIONS));
        take(COST_NANO, known(&part.totals, column::COST));
    }
    // The job counts once, on its first node.
    for figure in [JOBS, JOBS_WITH_CPU, JOBS_WITH_ENERGY] {
        shares[0].1[figure] = std::mem::take(&mut left[figure]);
    }
    if left.iter().any(|&amount| amount != 0) {
        shares.push((None, left));
    }
    shares
}

/// The buckets of a job.
struct Span {
    start_ns: i64,
    end_ns: i64,
    first: i64,
    count: usize,
}

impl Span {
    /// The time of the job in each bucket, in nanoseconds.
    fn overlaps(&self) -> Vec<u64> {
        let overlap = |bucket: i64| {
            let (begin, end) = (bucket * BUCKET_NS, (bucket + 1) * BUCKET_NS);
            (end.min(self.end_ns) - begin.max(self.start_ns)).max(0) as u64
        };
        (self.first..self.first + self.count as i64).map(overlap).collect()
    }

    /// Calls `each` with every day that has something in it.
    fn each_day<E>(
        &self,
        buckets: &[Amounts],
        mut each: impl FnMut(i64, &DayRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = 0;
        while at < buckets.len() {
            let (day, place) = day_of(self.first + at as i64);
            let count = (BUCKETS_PER_DAY - place).min(buckets.len() - at);
            let mut row = DayRow::default();
            row.buckets[place..place + count].copy_from_slice(&buckets[at..at + count]);
            if !row.is_empty() {
                each(day, &row)?;
            }
            at += count;
        }
        Ok(())
    }
}

/// How each figure is divided over the buckets: as it was sampled, or else evenly.
struct Shapes {
    even: Vec<u64>,
    sampled: BTreeMap<usize, Vec<u64>>,
}

impl Shapes {
    fn of(span: &Span, series: Option<&Series>) -> Shapes {
        let mut sampled = BTreeMap::new();
        if let Some(series) = series.filter(|series| span.count > 1 && series.len() > 1) {
            for counter in [column::CPU, column::ENERGY, column::EMISSIONS, column::COST] {
                sampled.extend(growth(span, series, counter).map(|weights| (counter, weights)));
            }
            for gauge in [column::GPU_UTILIZATION, column::MEMORY_NEEDED] {
                sampled.extend(level(span, series, gauge).map(|weights| (gauge, weights)));
            }
        }
        Shapes { even: span.overlaps(), sampled }
    }

    fn is_even(&self, column: usize) -> bool {
        self.even.len() > 1 && !self.sampled.contains_key(&column)
    }

    fn divide(&self, whole: &Amounts) -> Vec<Amounts> {
        let mut buckets = vec![[0; FIGURES]; self.even.len()];
        let sampled = |columns: &[usize]| columns.iter().find_map(|column| self.sampled.get(column));
        let mut parts = Vec::new();
        for (figure, &amount) in whole.iter().enumerate().filter(|(_, amount)| **amount != 0) {
            let shape = match figure {
                // A job begins once.
                JOBS | JOBS_WITH_CPU | JOBS_WITH_ENERGY => {
                    buckets[0][figure] = amount;
                    continue;
                }
                CPU_NS | CPU_OF_HELD_NS => sampled(&[column::CPU]),
                GPU_NS => sampled(&[column::GPU_UTILIZATION]),
                MEMORY => sampled(&[column::MEMORY_NEEDED]),
                ENERGY_UJ => sampled(&[column::ENERGY]),
                EMISSIONS_UG => sampled(&[column::EMISSIONS, column::ENERGY]),
                COST_NANO => sampled(&[column::COST, column::ENERGY]),
                _ => None,
            };
            apportion(amount.max(0) as u64, shape.unwrap_or(&self.even), &mut parts);
            buckets.iter_mut().zip(&parts).for_each(|(bucket, &part)| bucket[figure] = part as i64);
        }
        buckets
    }
}

/// How much a counter grew in each bucket. Between two samples it grows evenly.
fn growth(span: &Span, series: &Series, column: usize) -> Option<Vec<u64>> {
    let samples = series.times_ms.iter().zip(&series.columns[column]).filter(|(_, cell)| **cell != MISSING);
    let mut weights = vec![0; span.count];
    let mut before: Option<(i64, i64)> = None;
    for (&time_ms, &cell) in samples {
        let time_ns = (time_ms.saturating_mul(1_000_000)).clamp(span.start_ns, span.end_ns);
        let (from_ns, grown) = match before {
            // The counter began with the job.
            None => (span.start_ns, cell),
            Some((from_ns, last)) => match rate::step(last, cell) {
                rate::Step::Delta(grown) => (from_ns, grown),
                _ => (from_ns, 0),
            },
        };
        spread(span, &mut weights, (from_ns, time_ns), grown.max(0) as u64);
        before = Some((time_ns, cell));
    }
    weights.iter().any(|&weight| weight > 0).then_some(weights)
}

/// The integral of a level over each bucket, in its unit times a microsecond. A sample holds until the next one.
fn level(span: &Span, series: &Series, column: usize) -> Option<Vec<u64>> {
    let cells = series.times_ms.iter().zip(&series.columns[column]).filter(|(_, cell)| **cell != MISSING);
    let samples: Vec<(i64, i64)> =
        cells.map(|(&time, &cell)| (time.saturating_mul(1_000_000), cell)).collect();
    let mut weights = vec![0; span.count];
    let ends = samples.iter().skip(1).map(|sample| sample.0).chain([span.end_ns]);
    for (number, (&(time_ns, cell), next_ns)) in samples.iter().zip(ends).enumerate() {
        let begin_ns = if number == 0 { span.start_ns } else { time_ns.clamp(span.start_ns, span.end_ns) };
        let end_ns = next_ns.clamp(begin_ns, span.end_ns);
        let amount = i128::from(cell.max(0)) * i128::from(end_ns - begin_ns) / 1_000_000;
        spread(span, &mut weights, (begin_ns, end_ns), u64::try_from(amount).unwrap_or(u64::MAX / 1024));
    }
    weights.iter().any(|&weight| weight > 0).then_some(weights)
}

/// Adds an amount of a time evenly to the buckets of that time.
fn spread(span: &Span, weights: &mut [u64], (from_ns, to_ns): (i64, i64), amount: u64) {
    let last_ns = (to_ns - 1).max(from_ns);
    let place = |time_ns: i64| ((bucket_of(time_ns) - span.first).max(0) as usize).min(weights.len() - 1);
    let (first, last) = (place(from_ns), place(last_ns));
    if first == last {
        weights[first] = weights[first].saturating_add(amount);
        return;
    }
    let overlap = |place: usize| {
        let begin = (span.first + place as i64) * BUCKET_NS;
        ((begin + BUCKET_NS).min(to_ns) - begin.max(from_ns)).max(0) as u64
    };
    let overlaps: Vec<u64> = (first..=last).map(overlap).collect();
    let mut parts = Vec::new();
    apportion(amount, &overlaps, &mut parts);
    for (weight, part) in weights[first..=last].iter_mut().zip(parts) {
        *weight = weight.saturating_add(part);
    }
}
