//! Use over time in hours, joules and shares: the figures of `met usage`, the page and the API.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use met_core::units;
use met_core::usage::{By, Every, Period, Sums, Usage, UsageAsk, UsageLine, Zone, figure, machine_figure};
use serde_json::{Map, Value, json};

use crate::json::time;

const HOUR_NS: f64 = 3.6e12;
const HOUR_MS: f64 = 3.6e6;
/// GiB × hours in KiB × ms.
const GIB_HOUR: f64 = 1_048_576.0 * HOUR_MS;
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
/// Drivers take a moment after a boot until they count their GPUs. Of several nodes few may have any, and those of which
/// it is unknown could have all.
const GPUS_KNOWN_ON_NODE: f64 = 0.95;
const GPUS_KNOWN_ON_ALL: f64 = 0.995;
/// Changes of a zone within ten years: two each.
const CHANGES_MAX: usize = 64;

/// The offsets of a zone in a time.
pub fn zone(zone: &TimeZone, from_ns: i64, to_ns: i64) -> Zone {
    let at = |ns: i64| Timestamp::from_nanosecond(i128::from(ns)).unwrap_or_default();
    let name = zone.iana_name().unwrap_or("local time").to_owned();
    let mut offsets = vec![(i64::MIN, i64::from(zone.to_offset(at(from_ns)).seconds()))];
    let changes = zone.following(at(from_ns)).map(|change| (change.timestamp(), change.offset()));
    for (time, offset) in changes.take(CHANGES_MAX) {
        let Ok(time_ns) = i64::try_from(time.as_nanosecond()) else { break };
        if time_ns > to_ns {
            break;
        }
        offsets.push((time_ns, i64::from(offset.seconds())));
    }
    Zone { name, offsets }
}

/// What jobs of one name held and used in one period. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    pub name: Option<String>,
    pub period: usize,
    /// Hours of the period that were asked for.
    pub hours: f64,
    pub jobs: JobCounts,
    pub core_hours: CoreHours,
    pub gpu_hours: Amount,
    pub memory_gib_hours: Amount,
    /// What no job held of the system or the node that the line is of.
    pub free: Free,
    pub energy_joules: Option<f64>,
    pub emissions_grams: Option<f64>,
    pub cost: Option<f64>,
}

/// Jobs that a line counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobCounts {
    pub all: i64,
    /// Jobs of which the CPU time is known.
    pub with_cpu: i64,
    pub with_energy: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreHours {
    pub used: Option<f64>,
    pub held: Option<f64>,
    /// The used part of what was held, of jobs of which both are known.
    pub efficiency: Option<f64>,
    /// CPU time that was spread evenly over the life of its job.
    pub even: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    pub used: Option<f64>,
    pub held: Option<f64>,
}

impl Line {
    fn new(line: &UsageLine, periods: &[Period]) -> Line {
        let sums = &line.sums;
        let held = positive(sums[figure::CORES_HELD_NS], HOUR_NS);
        let gpus = positive(sums[figure::GPUS_HELD_NS], HOUR_NS);
        // No jobs used nothing; what jobs used that say nothing of it is unknown.
        let is_empty = sums.iter().all(|&sum| sum == 0);
        let is_cpu_known = is_empty || sums[figure::CPU_NS] > 0 || sums[figure::JOBS_WITH_CPU] > 0;
        let cpu_hours = |at: usize| is_cpu_known.then(|| sums[at] as f64 / HOUR_NS);
        // Jobs need some memory.
        let memory = positive(sums[figure::MEMORY], GIB_HOUR).or(is_empty.then_some(0.0));
        Line {
            name: line.name.clone(),
            period: line.period,
            hours: periods.get(line.period).map_or(0.0, |period| period.length_ms as f64 / HOUR_MS),
            jobs: JobCounts {
                all: whole(sums[figure::JOBS]),
                with_cpu: whole(sums[figure::JOBS_WITH_CPU]),
                with_energy: whole(sums[figure::JOBS_WITH_ENERGY]),
            },
            core_hours: CoreHours {
                used: cpu_hours(figure::CPU_NS),
                held,
                efficiency: held.zip(cpu_hours(figure::CPU_OF_HELD_NS)).map(|(held, used)| used / held),
                even: cpu_hours(figure::CPU_EVEN_NS),
            },
            gpu_hours: Amount { used: gpus.map(|_| sums[figure::GPU_NS] as f64 / HOUR_NS), held: gpus },
            memory_gib_hours: Amount { used: memory, held: positive(sums[figure::MEMORY_HELD], GIB_HOUR) },
            free: Free::default(),
            energy_joules: positive(sums[figure::ENERGY_UJ], 1e6),
            emissions_grams: positive(sums[figure::EMISSIONS_UG], 1e6),
            cost: positive(sums[figure::COST_NANO], 1e9),
        }
    }

    /// Cores that computed, on average over the period.
    pub fn cores(&self) -> Option<f64> {
        self.core_hours.used.map(|used| if self.hours > 0.0 { used / self.hours } else { 0.0 })
    }

    /// The order of most use first.
    pub fn by_use(&self, other: &Line) -> Ordering {
        let amounts =
            |line: &Line| [line.core_hours.used, line.core_hours.held].map(|hours| hours.unwrap_or(-1.0));
        let order = amounts(other).into_iter().zip(amounts(self)).map(|(one, own)| one.total_cmp(&own));
        order.fold(Ordering::Equal, Ordering::then)
    }

    /// The part of the CPU time that was spread evenly.
    pub fn even_share(&self) -> Option<f64> {
        self.core_hours
            .even
            .zip(self.core_hours.used)
            .filter(|(_, all)| *all > 0.0)
            .map(|(even, all)| even / all)
    }

    /// Says of how many jobs energy and CPU time are unknown.
    pub fn unknown(&self) -> Vec<String> {
        let energy = ("energy", self.jobs.with_energy, self.energy_joules.is_some());
        let cpu = ("CPU time", self.jobs.with_cpu, true);
        let unknown =
            [energy, cpu].into_iter().filter(|(_, known, is_shown)| *is_shown && *known < self.jobs.all);
        unknown
            .map(|(what, known, _)| {
                format!(
                    "{what} of {} of {} is unknown",
                    self.jobs.all - known,
                    units::counted(self.jobs.all as usize, "job")
                )
            })
            .collect()
    }
}

/// What machines had and did in one period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineLine {
    pub name: Option<String>,
    pub period: usize,
    /// Hours of machines: measured, certainly off, and neither.
    pub hours_measured: f64,
    pub hours_down: f64,
    pub hours_unknown: f64,
    pub core_hours: f64,
    pub core_hours_busy: f64,
    pub memory_gib_hours: f64,
    pub memory_gib_hours_used: f64,
    /// Absent where there are none, and where their number is unknown for a while, as in sums of earlier versions.
    pub gpu_hours: Option<f64>,
    pub free: Free,
}

/// What no job held, where jobs hold such things and the machine was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Free {
    pub core_hours: Option<f64>,
    pub memory_gib_hours: Option<f64>,
    pub gpu_hours: Option<f64>,
}

impl Free {
    fn add(self, other: Free) -> Free {
        Free {
            core_hours: known_sum(self.core_hours, other.core_hours),
            memory_gib_hours: known_sum(self.memory_gib_hours, other.memory_gib_hours),
            gpu_hours: known_sum(self.gpu_hours, other.gpu_hours),
        }
    }
}

impl MachineLine {
    pub fn busy(&self) -> Option<f64> {
        (self.core_hours > 0.0).then(|| self.core_hours_busy / self.core_hours)
    }
}

/// An answer, made readable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub lines: Vec<Line>,
    pub machines: Vec<MachineLine>,
    /// Everything that was asked for together.
    pub total: Line,
    pub machine_total: Option<MachineLine>,
    /// By place of a period: the hours in which nothing is known of any machine.
    pub periods: Vec<Period>,
    pub pending: u64,
}

pub fn report(ask: &UsageAsk, usage: &Usage, now_ns: i64) -> Report {
    let mut lines: Vec<Line> = usage.lines.iter().map(|line| Line::new(line, &usage.periods)).collect();
    let mut all: Sums = Default::default();
    for line in &usage.lines {
        all.iter_mut().zip(line.sums).for_each(|(sum, more)| *sum += more);
    }
    let mut total = Line::new(&UsageLine { name: None, period: 0, sums: all }, &[]);
    total.hours = usage.periods.iter().map(|period| period.length_ms as f64 / HOUR_MS).sum();
    let machines = machines(ask, usage, &lines, now_ns);
    let machine_total = machines.iter().cloned().reduce(|one, other| MachineLine {
        name: None,
        period: 0,
        hours_measured: one.hours_measured + other.hours_measured,
        hours_down: one.hours_down + other.hours_down,
        hours_unknown: one.hours_unknown + other.hours_unknown,
        core_hours: one.core_hours + other.core_hours,
        core_hours_busy: one.core_hours_busy + other.core_hours_busy,
        memory_gib_hours: one.memory_gib_hours + other.memory_gib_hours,
        memory_gib_hours_used: one.memory_gib_hours_used + other.memory_gib_hours_used,
        gpu_hours: known_sum(one.gpu_hours, other.gpu_hours),
        free: one.free.add(other.free),
    });
    if matches!(ask.by, By::System | By::Node) {
        let free: HashMap<_, _> =
            machines.iter().map(|machine| ((&machine.name, machine.period), machine.free)).collect();
        for line in &mut lines {
            line.free = free.get(&(&line.name, line.period)).copied().unwrap_or_default();
        }
    }
    Report { lines, machines, total, machine_total, periods: usage.periods.clone(), pending: usage.pending }
}

fn machines(ask: &UsageAsk, usage: &Usage, lines: &[Line], now_ns: i64) -> Vec<MachineLine> {
    let by_node = ask.by == By::Node;
    let expected = expected_ms(ask, usage, now_ns);
    let mut known: BTreeMap<(Option<String>, usize), Sums> = BTreeMap::new();
    for line in &usage.machines {
        known.insert((line.name.clone(), line.period), line.sums);
    }
    // A time without any sample is a line, too: it is unknown, and not idle.
    for key in expected.keys() {
        known.entry(key.clone()).or_default();
    }
    // What the jobs hold that are left out is not free. Where no job holds anything, all would be free while it is used.
    let is_whole =
        !usage.is_partial && ask.user.is_none() && ask.account.is_none() && ask.partition.is_none();
    let lines = if is_whole { lines } else { &[] };
    let is_held = lines.iter().any(|line| line.core_hours.held.is_some());
    let is_memory_held = lines.iter().any(|line| line.memory_gib_hours.held.is_some());
    // A scheduler gives GPUs as it gives cores; without one, jobs hold those that they use.
    let is_gpu_held = is_held || lines.iter().any(|line| line.gpu_hours.held.is_some());
    let held = held(lines, by_node);
    let line = |((name, period), sums): ((Option<String>, usize), Sums)| {
        let hours = |at: usize| sums[at] as f64 / HOUR_MS;
        let expected = expected.get(&(name.clone(), period)).copied().unwrap_or(0) as f64 / HOUR_MS;
        let core_hours = sums[machine_figure::CPU_CAPACITY_NS] as f64 / HOUR_NS;
        let of_node = name.as_deref().filter(|_| by_node);
        let [cores_held, memory_held, gpus_held] = held.get(&(of_node, period)).copied().unwrap_or_default();
        let memory = sums[machine_figure::MEMORY_CAPACITY] as f64 / GIB_HOUR;
        let gpus = gpu_hours(&sums, by_node);
        let free = Free {
            core_hours: (is_held && core_hours > 0.0).then(|| (core_hours - cores_held).max(0.0)),
            memory_gib_hours: (is_memory_held && memory > 0.0).then(|| (memory - memory_held).max(0.0)),
            gpu_hours: gpus.filter(|_| is_gpu_held).map(|gpus| (gpus - gpus_held).max(0.0)),
        };
        let (measured, down) = (hours(machine_figure::MEASURED_MS), hours(machine_figure::DOWN_MS));
        MachineLine {
            hours_measured: measured,
            hours_down: down,
            hours_unknown: (expected - measured - down).max(0.0),
            core_hours,
            core_hours_busy: sums[machine_figure::CPU_BUSY_NS] as f64 / HOUR_NS,
            memory_gib_hours: memory,
            memory_gib_hours_used: sums[machine_figure::MEMORY_USED] as f64 / GIB_HOUR,
            gpu_hours: gpus,
            free,
            name,
            period,
        }
    };
    known.into_iter().map(line).collect()
}

/// What jobs held in each period, of each node or of all: core-hours, hours of a GiB, GPU-hours.
fn held(lines: &[Line], by_node: bool) -> HashMap<(Option<&str>, usize), [f64; 3]> {
    let mut held: HashMap<_, [f64; 3]> = HashMap::new();
    for line in lines {
        let sums = held.entry((line.name.as_deref().filter(|_| by_node), line.period)).or_default();
        let amounts = [line.core_hours.held, line.memory_gib_hours.held, line.gpu_hours.held];
        sums.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount.unwrap_or(0.0));
    }
    held
}

/// The time of all GPUs; `None` without any, and where their number is unknown for more than a little of the time:
/// what jobs held in it would be counted against nothing.
fn gpu_hours(sums: &Sums, by_node: bool) -> Option<f64> {
    let least = if by_node { GPUS_KNOWN_ON_NODE } else { GPUS_KNOWN_ON_ALL };
    let (known, measured) = (sums[machine_figure::GPUS_KNOWN_MS], sums[machine_figure::MEASURED_MS]);
    let is_known = known > 0 && known as f64 >= least * measured as f64;
    positive(sums[machine_figure::GPU_CAPACITY_NS], HOUR_NS).filter(|_| is_known)
}

/// How long each machine was there to be measured, by name and period: since it was first measured, and until now.
fn expected_ms(ask: &UsageAsk, usage: &Usage, now_ns: i64) -> BTreeMap<(Option<String>, usize), i64> {
    let mut by_begin: BTreeMap<i64, Vec<&String>> = BTreeMap::new();
    for (name, since_ns) in &usage.machine_since {
        by_begin.entry((*since_ns).max(ask.from_ns)).or_default().push(name);
    }
    let place_of = |period: &Period| {
        let is_same = |one: &Period| match period.begin_ns {
            Some(begin_ns) => one.begin_ns == Some(begin_ns),
            None => one.number == period.number,
        };
        usage.periods.iter().position(is_same)
    };
    let mut expected = BTreeMap::new();
    for (from_ns, names) in by_begin {
        let to_ns = ask.to_ns.min(now_ns);
        if from_ns >= to_ns {
            continue;
        }
        let part = UsageAsk { from_ns, to_ns, ..ask.clone() };
        let periods = match ask.every {
            // The one period of all times begins where it is asked for.
            Every::All => {
                vec![Period { number: 0, begin_ns: None, length_ms: (to_ns - from_ns) / 1_000_000 }]
            }
            _ => part.calendar().periods,
        };
        for period in periods.iter().filter(|period| period.length_ms > 0) {
            let Some(place) = (if ask.every == Every::All { Some(0) } else { place_of(period) }) else {
                continue;
            };
            for name in &names {
                let name = if ask.by == By::Node { (*name).clone() } else { String::new() };
                *expected.entry((Some(name), place)).or_insert(0) += period.length_ms;
            }
        }
    }
    expected
}

/// Emissions in words: energy by a factor, an estimate in any case.
pub fn emissions(grams: f64) -> String {
    units::marked("~", &units::grams(grams))
}

/// Sums have no quality of their own.
pub const ENERGY_NOTE: &str = "energy and CO2e include estimates; `met list energy` marks each";

/// How a period is called.
pub fn period_name(period: &Period, every: Every, zone: &Zone) -> String {
    let Some(begin_ns) = period.begin_ns else {
        return match every {
            Every::HourOfDay => format!("{:02}:00", period.number),
            Every::Weekday => DAYS[(period.number.rem_euclid(7)) as usize].to_owned(),
            _ => {
                let day = &DAYS[(period.number / 24).rem_euclid(7) as usize][..3];
                format!("{day} {:02}:00", period.number % 24)
            }
        };
    };
    let behind = zone.offsets.partition_point(|(since_ns, _)| *since_ns <= begin_ns);
    let offset_s = zone.offsets.get(behind.saturating_sub(1)).map_or(0, |(_, offset_s)| *offset_s);
    let local = Timestamp::from_nanosecond(i128::from(begin_ns)).unwrap_or_default();
    let local = local.checked_add(SignedDuration::from_secs(offset_s)).unwrap_or_default();
    let text = local.to_zoned(TimeZone::UTC).datetime();
    match every {
        Every::Hour => text.strftime("%Y-%m-%d %H:%M").to_string(),
        Every::Day => text.strftime("%Y-%m-%d %a").to_string(),
        Every::Week => text.strftime("%G-W%V").to_string(),
        Every::Month => text.strftime("%Y-%m").to_string(),
        _ => "all".to_owned(),
    }
}

/// The columns of a line, as JSON and CSV have them.
pub const COLUMNS: [&str; 20] = [
    "name",
    "period",
    "begin",
    "jobs",
    "jobs_with_cpu",
    "jobs_with_energy",
    "core_hours",
    "core_hours_held",
    "cpu_efficiency_ratio",
    "core_hours_spread_evenly",
    "gpu_hours",
    "gpu_hours_held",
    "memory_gib_hours",
    "memory_gib_hours_held",
    "energy_joules",
    "emissions_grams",
    "cost",
    "core_hours_free",
    "memory_gib_hours_free",
    "gpu_hours_free",
];

pub fn line_object(line: &Line, ask: &UsageAsk, periods: &[Period]) -> Value {
    let period = periods.get(line.period);
    let name = line.name.as_deref().map(|name| if ask.by == By::System { "all" } else { name });
    let values = [
        json!(name),
        json!(period.map(|period| period_name(period, ask.every, &ask.zone))),
        json!(period.and_then(|period| period.begin_ns).and_then(time)),
        json!(line.jobs.all),
        json!(line.jobs.with_cpu),
        json!(line.jobs.with_energy),
        json!(line.core_hours.used),
        json!(line.core_hours.held),
        json!(line.core_hours.efficiency),
        json!(line.core_hours.even),
        json!(line.gpu_hours.used),
        json!(line.gpu_hours.held),
        json!(line.memory_gib_hours.used),
        json!(line.memory_gib_hours.held),
        json!(line.energy_joules),
        json!(line.emissions_grams),
        json!(line.cost),
        json!(line.free.core_hours),
        json!(line.free.memory_gib_hours),
        json!(line.free.gpu_hours),
    ];
    let named = COLUMNS.iter().map(|name| (*name).to_owned()).zip(values);
    Value::Object(named.collect::<Map<_, _>>())
}

pub fn machine_object(line: &MachineLine, ask: &UsageAsk, periods: &[Period]) -> Value {
    let period = periods.get(line.period);
    json!({
        "name": line.name.as_deref().map(|name| if ask.by == By::Node { name } else { "all" }),
        "period": period.map(|period| period_name(period, ask.every, &ask.zone)),
        "begin": period.and_then(|period| period.begin_ns).and_then(time),
        "hours_measured": line.hours_measured,
        "hours_down": line.hours_down,
        "hours_unknown": line.hours_unknown,
        "core_hours": line.core_hours,
        "core_hours_busy": line.core_hours_busy,
        "core_hours_idle": (line.core_hours - line.core_hours_busy).max(0.0),
        "core_hours_free": line.free.core_hours,
        "memory_gib_hours": line.memory_gib_hours,
        "memory_gib_hours_used": line.memory_gib_hours_used,
        "memory_gib_hours_free": line.free.memory_gib_hours,
        "gpu_hours": line.gpu_hours,
        "gpu_hours_free": line.free.gpu_hours,
    })
}

pub fn object(report: &Report, ask: &UsageAsk) -> Value {
    let zone = if ask.by == By::Command { "UTC" } else { &ask.zone.name };
    json!({
        "by": ask.by.name(),
        "every": ask.every.name(),
        "since": time(ask.from_ns),
        "until": time(ask.to_ns),
        "time_zone": zone,
        "usage": report.lines.iter().map(|line| line_object(line, ask, &report.periods)).collect::<Vec<_>>(),
        "machines": report.machines.iter().map(|line| machine_object(line, ask, &report.periods)).collect::<Vec<_>>(),
        "jobs_not_summed_yet": report.pending,
    })
}

/// A cell of a heat map.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Heat {
    /// Nothing was measured then.
    #[default]
    Unknown,
    /// How hot from 0 to 1, and what that is: a share of all CPUs, or cores.
    Known { share: f64, value: f64 },
}

/// Use by hour of the week, from Monday on.
pub struct HeatMap {
    pub days: [[Heat; 24]; 7],
    /// What machines did, as a share of their CPUs; else what jobs did, in cores, of which this is the most.
    pub of_machines: bool,
    pub most: f64,
}

/// The heat map of a report of [`Every::HourOfWeek`]: what machines did if they were measured and the
/// request is not limited to some users, else what jobs did.
pub fn heat_map(report: &Report, ask: &UsageAsk) -> HeatMap {
    let is_filtered = [&ask.user, &ask.account, &ask.partition].into_iter().any(Option::is_some);
    let of_machines =
        !is_filtered && report.machine_total.as_ref().is_some_and(|total| total.core_hours > 0.0);
    let mut values: [Option<f64>; 168] = [None; 168];
    if of_machines {
        let mut sums = [(0.0, 0.0); 168];
        for line in report.machines.iter().filter(|line| line.period < 168) {
            sums[line.period].0 += line.core_hours_busy;
            sums[line.period].1 += line.core_hours;
        }
        values = sums.map(|(busy, all)| (all > 0.0).then(|| busy / all));
    } else {
        for line in report.lines.iter().filter(|line| line.period < 168) {
            values[line.period] = known_sum(values[line.period], line.cores());
        }
    }
    let most = values.iter().flatten().copied().fold(0.0, f64::max);
    let whole = if of_machines { 1.0 } else { most };
    let cell = |number: usize| match values[number] {
        Some(value) => Heat::Known { value, share: if whole > 0.0 { (value / whole).min(1.0) } else { 0.0 } },
        None => Heat::Unknown,
    };
    HeatMap {
        days: std::array::from_fn(|day| std::array::from_fn(|hour| cell(day * 24 + hour))),
        of_machines,
        most,
    }
}

/// A time in which nothing was measured adds nothing.
fn known_sum(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(|one, other| one + other)
}

/// Something of nothing is nothing that is known.
fn positive(sum: i128, unit: f64) -> Option<f64> {
    (sum > 0).then_some(sum as f64 / unit)
}

fn whole(sum: i128) -> i64 {
    i64::try_from(sum).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use met_core::usage::FIGURES;

    use super::*;

    fn ask(by: By, every: Every, hours: i64) -> UsageAsk {
        UsageAsk::new(0, hours * 3_600_000_000_000, by, every)
    }

    #[test]
    fn time_without_a_sample_is_unknown_and_not_idle() {
        let ask = ask(By::System, Every::Hour, 4);
        let mut sums = [0; FIGURES];
        sums[machine_figure::MEASURED_MS] = 1_800_000;
        sums[machine_figure::CPU_CAPACITY_NS] = 7_200_000_000_000;
        sums[machine_figure::CPU_BUSY_NS] = 1_800_000_000_000;
        let usage = Usage {
            periods: ask.calendar().periods,
            machines: vec![UsageLine { name: Some(String::new()), period: 1, sums }],
            machine_since: vec![("n1".to_owned(), 3_600_000_000_000)],
            ..Usage::default()
        };
        let report = report(&ask, &usage, 3 * 3_600_000_000_000);
        let shown: Vec<_> = report
            .machines
            .iter()
            .map(|line| (line.period, line.hours_measured, line.hours_unknown))
            .collect();
        assert_eq!(shown, [(1, 0.5, 0.5), (2, 0.0, 1.0)], "since it was first measured, until now");
        assert_eq!(report.machine_total.unwrap().busy(), Some(0.25));
        let object = object(&super::report(&ask, &usage, i64::MAX), &ask);
        assert_eq!(object["machines"][0]["core_hours_idle"], 1.5);
        assert_eq!(object["machines"][0]["period"], "1970-01-01 01:00");
        assert_eq!(object["machines"][0]["core_hours_free"], Value::Null);
    }

    #[test]
    fn what_no_job_knows_is_absent() {
        let ask = ask(By::User, Every::All, 4);
        let mut sums = [0; FIGURES];
        (sums[figure::JOBS], sums[figure::CPU_NS]) = (2, 7_200_000_000_000);
        let line = UsageLine { name: Some("ada".to_owned()), period: 0, sums };
        let usage = Usage { periods: ask.calendar().periods, lines: vec![line], ..Usage::default() };
        let report = report(&ask, &usage, 0);
        assert_eq!((report.total.core_hours.used, report.total.hours), (Some(2.0), 4.0));
        assert_eq!(report.lines[0].cores(), Some(0.5));
        let object = line_object(&report.lines[0], &ask, &report.periods);
        for unknown in ["core_hours_held", "cpu_efficiency_ratio", "energy_joules", "gpu_hours", "cost"] {
            assert_eq!(object[unknown], Value::Null, "{unknown}");
        }
        assert!(report.machines.is_empty());
    }

    #[test]
    fn cpu_time_that_no_job_knows_is_unknown_and_not_0() {
        let ask = ask(By::User, Every::Hour, 4);
        let line = |period, amounts: &[(usize, i64)]| {
            let mut sums = [0; FIGURES];
            amounts.iter().for_each(|&(figure, amount)| sums[figure] = amount.into());
            UsageLine { name: Some("ada".to_owned()), period, sums }
        };
        let of_queue = [(figure::JOBS, 3), (figure::CORES_HELD_NS, 7_200_000_000_000)];
        let idle =
            [(figure::JOBS, 1), (figure::JOBS_WITH_CPU, 1), (figure::CORES_HELD_NS, 3_600_000_000_000)];
        let lines = vec![line(0, &of_queue), line(1, &idle), line(2, &of_queue[1..])];
        let usage = Usage { periods: ask.calendar().periods, lines, ..Usage::default() };
        let whole = report(&ask, &usage, 0);
        let shown: Vec<_> =
            whole.lines.iter().map(|line| (line.core_hours.used, line.core_hours.efficiency)).collect();
        assert_eq!(shown, [(None, None), (Some(0.0), Some(0.0)), (None, None)]);
        assert_eq!(whole.lines[1].memory_gib_hours.used, None);
        let object = line_object(&whole.lines[0], &ask, &whole.periods);
        let unknown = ["core_hours", "core_hours_spread_evenly", "memory_gib_hours", "cpu_efficiency_ratio"];
        for unknown in unknown {
            assert_eq!(object[unknown], Value::Null, "{unknown}");
        }
        assert_eq!((object["jobs"].as_i64(), object["core_hours_held"].as_f64()), (Some(3), Some(2.0)));
        assert_eq!(whole.total.unknown(), ["CPU time of 3 of 4 jobs is unknown"]);
        let none = report(&ask, &Usage { lines: Vec::new(), ..usage }, 0).total;
        assert_eq!(
            (none.core_hours.used, none.memory_gib_hours.used),
            (Some(0.0), Some(0.0)),
            "no jobs used nothing"
        );
        assert!(none.unknown().is_empty());
    }

    #[test]
    fn what_no_job_held_is_free_where_jobs_hold_something() {
        let ask = ask(By::System, Every::All, 4);
        let mut machine = [0; FIGURES];
        machine[machine_figure::MEASURED_MS] = 4 * 3_600_000;
        machine[machine_figure::CPU_CAPACITY_NS] = 8 * 3_600_000_000_000;
        machine[machine_figure::MEMORY_CAPACITY] = 64 * GIB_HOUR as i128;
        let mut sums = [0; FIGURES];
        (sums[figure::JOBS], sums[figure::CORES_HELD_NS]) = (1, 6 * 3_600_000_000_000);
        let line = |sums| UsageLine { name: Some(String::new()), period: 0, sums };
        let free = |machine: Sums, sums: Sums| {
            let usage = Usage {
                periods: ask.calendar().periods,
                lines: vec![line(sums)],
                machines: vec![line(machine)],
                ..Usage::default()
            };
            let total = report(&ask, &usage, i64::MAX).machine_total.unwrap();
            (total.free.core_hours, total.free.memory_gib_hours)
        };
        assert_eq!(free(machine, sums), (Some(2.0), None), "no job said how much memory it held");
        sums[figure::MEMORY_HELD] = 16 * GIB_HOUR as i128;
        assert_eq!(free(machine, sums), (Some(2.0), Some(48.0)));
        assert_eq!(
            free([0; FIGURES], sums),
            (None, None),
            "of a machine that was not measured nothing is known"
        );
        machine[machine_figure::MEMORY_CAPACITY] = 0;
        assert_eq!(free(machine, sums), (Some(2.0), None), "the memory of the machine is not known");
    }

    #[test]
    fn gpus_that_no_job_held_are_free_where_their_number_is_known() {
        let ask = ask(By::Node, Every::Day, 48);
        let hour_ns = 3_600_000_000_000i128;
        let machine = |name: &str, period, known_hours: i128, gpus: i128| {
            let mut sums = [0; FIGURES];
            sums[machine_figure::MEASURED_MS] = 24 * 3_600_000;
            sums[machine_figure::GPUS_KNOWN_MS] = known_hours * 3_600_000;
            sums[machine_figure::GPU_CAPACITY_NS] = known_hours * gpus * hour_ns;
            UsageLine { name: Some(name.to_owned()), period, sums }
        };
        let job = |name: &str, period, gpu_hours: i128| {
            let mut sums = [0; FIGURES];
            (sums[figure::JOBS], sums[figure::GPUS_HELD_NS]) = (1, gpu_hours * hour_ns);
            UsageLine { name: Some(name.to_owned()), period, sums }
        };
        let usage = Usage {
            periods: ask.calendar().periods,
            lines: vec![job("n1", 0, 30), job("n1", 1, 30), job("n2", 1, 0)],
            // The first day was summed by an earlier version, and its last hours by this one; n2 has no GPU.
            machines: vec![
                machine("n1", 0, 3, 4),
                machine("n1", 1, 24, 4),
                machine("n2", 0, 0, 0),
                machine("n2", 1, 24, 0),
                machine("n3", 1, 23, 8),
            ],
            ..Usage::default()
        };
        let report = report(&ask, &usage, i64::MAX);
        let free: Vec<_> = report
            .machines
            .iter()
            .map(|line| (line.name.as_deref().unwrap(), line.period, line.gpu_hours, line.free.gpu_hours))
            .collect();
        assert_eq!(
            free,
            [
                ("n1", 0, None, None),
                ("n1", 1, Some(96.0), Some(66.0)),
                ("n2", 0, None, None),
                ("n2", 1, None, None),
                ("n3", 1, Some(184.0), Some(184.0)),
            ],
            "unknown and none are absent, never 0"
        );
        let total = report.machine_total.as_ref().unwrap();
        assert_eq!((total.gpu_hours, total.free.gpu_hours), (Some(280.0), Some(250.0)));
        let of_lines: Vec<_> = report.lines.iter().map(|line| line.free.gpu_hours).collect();
        assert_eq!(of_lines, [None, Some(66.0), None]);
        let object = line_object(&report.lines[1], &ask, &report.periods);
        assert_eq!(object["gpu_hours_free"], 66.0);
        let none = Usage { lines: Vec::new(), ..usage };
        let total = super::report(&ask, &none, i64::MAX).machine_total.unwrap();
        assert_eq!(total.free.gpu_hours, None, "no job holds anything: others may use them");
    }

    #[test]
    fn the_offsets_of_a_zone_are_those_of_the_time() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        // 2026.
        let (from_ns, to_ns) = (1_767_225_600_000_000_000, 1_798_761_600_000_000_000);
        let zone = zone(&berlin, from_ns, to_ns);
        let spring_and_autumn = [(1_774_746_000_000_000_000, 7_200), (1_792_890_000_000_000_000, 3_600)];
        assert_eq!(zone.offsets[0].1, 3_600);
        assert_eq!(zone.offsets[1..], spring_and_autumn);
        assert_eq!(super::zone(&TimeZone::UTC, from_ns, to_ns), Zone::default());
    }
}
