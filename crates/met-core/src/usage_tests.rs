use proptest::prelude::*;

use super::*;
use crate::JOB;
use crate::job::{Part, QualityKind, Record, Totals};
use crate::job_table as column;
use crate::series::Series;

const HOUR_NS: i64 = 3_600_000_000_000;
const DAY_NS: i64 = 24 * HOUR_NS;

fn job(start_ns: i64, length_ns: i64, totals: &[(usize, i64)]) -> Record {
    let mut record = crate::sample::full(1, "train");
    (record.start_ns, record.end_ns) = (Some(start_ns), Some(start_ns + length_ns));
    (record.inside, record.parts, record.gpus) = (None, Vec::new(), Vec::new());
    (record.user, record.account) = (Some("ada".to_owned()), Some("physics".to_owned()));
    record.nodes = vec!["n1".to_owned()];
    (record.totals, record.summaries) = Default::default();
    record.allocated.cpus = Some(4);
    for &(column, value) in totals {
        record.totals.set(column, value, QualityKind::Measured, "cgroup");
    }
    record
}

type Parts = Vec<(Kind, Group, i64, DayRow)>;

fn contribution(record: &Record, series: Option<&Series>, until_ns: i64) -> Parts {
    let mut parts = Parts::new();
    let taken: Result<(), ()> = contribute(record, series, until_ns, &mut |kind, group, day, row| {
        parts.push((kind, group.clone(), day, row.clone()));
        Ok(())
    });
    taken.unwrap();
    parts
}

fn sum(contribution: &Parts, kind: Kind) -> Sums {
    let mut sums = [0; FIGURES];
    for (.., row) in contribution.iter().filter(|(one, ..)| *one == kind) {
        row.buckets.iter().for_each(|amounts| add(&mut sums, amounts));
    }
    sums
}

fn cpu_by_bucket(contribution: &Parts) -> Vec<i64> {
    let rows = contribution.iter().filter(|(kind, ..)| *kind == Kind::Who);
    let buckets = rows.flat_map(|(.., row)| row.buckets.iter());
    buckets.map(|amounts| amounts[figure::CPU_NS]).filter(|&cpu| cpu != 0).collect()
}

#[test]
fn cpu_time_is_where_the_samples_saw_it_and_else_even() {
    let record = job(0, 2 * BUCKET_NS, &[(column::CPU, 1_000)]);
    let even = contribution(&record, None, 0);
    assert_eq!(cpu_by_bucket(&even), [500, 500]);
    assert_eq!(sum(&even, Kind::Who)[figure::CPU_EVEN_NS], 1_000);
    let mut series = Series::new(&JOB);
    let mut cells = vec![crate::MISSING; JOB.columns.len()];
    for (time_ms, cpu) in [(450_000, 0), (900_000, 600), (1_800_000, 800)] {
        cells[column::CPU] = cpu;
        series.push(time_ms, &cells);
    }
    let sampled = contribution(&record, Some(&series), 0);
    assert_eq!(cpu_by_bucket(&sampled), [750, 250], "in the proportion of 600 to 200");
    let sums = sum(&sampled, Kind::Who);
    assert_eq!((sums[figure::CPU_NS], sums[figure::CPU_EVEN_NS]), (1_000, 0));
    assert_eq!(sums[figure::CORES_HELD_NS], 4 * 2 * i128::from(BUCKET_NS));
}

#[test]
fn a_job_inside_another_one_adds_nothing() {
    let mut record = job(0, HOUR_NS, &[(column::CPU, 5)]);
    record.inside = Some("slurm:1".to_owned());
    assert_eq!(contribution(&record, None, 0), []);
    record.inside = None;
    record.start_ns = None;
    assert_eq!(contribution(&record, None, 0), []);
}

#[test]
fn a_job_of_several_nodes_is_divided_by_its_parts_and_the_rest_is_on_no_node() {
    let mut record = job(0, HOUR_NS, &[(column::CPU, 100), (column::ENERGY, 10)]);
    record.nodes = vec!["n1".to_owned(), "n2".to_owned()];
    for (node, cpu) in [("n1", 30), ("n2", 50)] {
        let mut totals = Totals::default();
        totals.set(column::CPU, cpu, QualityKind::Measured, "cgroup");
        record.parts.push(Part { node: node.to_owned(), totals, ..Part::default() });
    }
    let given = contribution(&record, None, 0);
    let on = |name: Option<&str>| {
        let on_node: Parts =
            given.iter().filter(|(_, group, ..)| group.node.as_deref() == name).cloned().collect();
        let sums = sum(&on_node, Kind::Node);
        (sums[figure::JOBS], sums[figure::CPU_NS], sums[figure::ENERGY_UJ])
    };
    assert_eq!([on(Some("n1")), on(Some("n2")), on(None)], [(1, 30, 0), (0, 50, 0), (0, 20, 10)]);
    assert_eq!(sum(&given, Kind::Node), sum(&given, Kind::Who), "nodes add up to the job");
}

proptest! {
    #[test]
    fn the_buckets_of_a_job_add_up_to_its_totals(
        start_ns in 0..100 * DAY_NS,
        length_ns in 0..9 * DAY_NS,
        totals in proptest::array::uniform4(0..i64::MAX / 4),
        samples in proptest::collection::vec((0i64..9 * 86_400_000, 0i64..1 << 50), 0..20),
    ) {
        let [cpu, energy, emissions, cost] = totals;
        let record = job(start_ns, length_ns, &[
            (column::CPU, cpu), (column::ENERGY, energy), (column::EMISSIONS, emissions), (column::COST, cost),
        ]);
        let mut series = Series::new(&JOB);
        let mut samples = samples;
        samples.sort_unstable();
        for (after_ms, value) in samples {
            series.push(start_ns / 1_000_000 + after_ms, &vec![value; JOB.columns.len()]);
        }
        for series in [None, Some(&series)] {
            let given = contribution(&record, series, 0);
            for kind in [Kind::Who, Kind::Node, Kind::Command] {
                let sums = sum(&given, kind);
                prop_assert_eq!(sums[figure::CPU_NS], i128::from(cpu));
                prop_assert_eq!(sums[figure::ENERGY_UJ], i128::from(energy));
                prop_assert_eq!(sums[figure::EMISSIONS_UG], i128::from(emissions));
                prop_assert_eq!(sums[figure::COST_NANO], i128::from(cost));
                prop_assert_eq!(sums[figure::CORES_HELD_NS], 4 * i128::from(length_ns));
                prop_assert_eq!(sums[figure::JOBS], 1);
            }
        }
    }

    #[test]
    fn a_row_comes_back_as_it_was_and_damage_is_noticed(
        cells in proptest::collection::vec((0usize..96, 0usize..FIGURES, any::<i64>()), 0..60),
        at in any::<prop::sample::Index>(),
    ) {
        let mut row = DayRow::default();
        for (bucket, figure, value) in cells {
            row.buckets[bucket][figure] = value;
        }
        let bytes = row.encode();
        prop_assert_eq!(DayRow::decode(&bytes), Some(row.clone()));
        let mut damaged = bytes.clone();
        let at = at.index(bytes.len());
        damaged[at] ^= 0x10;
        prop_assert_eq!(DayRow::decode(&damaged), None);
        prop_assert_eq!(DayRow::decode(&bytes[..at]), None);
        let entries = vec![Entry { kind: 1, group: -7, day: 20_000, row: bytes }];
        prop_assert_eq!(decode_entries(&encode_entries(&entries)), Some(entries));
    }

    #[test]
    fn foreign_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = DayRow::decode(&bytes);
        let _ = decode_entries(&bytes);
    }
}

/// Berlin, with summer time from 2026-03-29 01:00 to 2026-10-25 01:00 UTC.
fn berlin() -> Zone {
    let (spring, autumn) = (1_774_746_000 * 1_000_000_000, 1_792_890_000 * 1_000_000_000);
    let offsets = vec![(i64::MIN, 3_600), (spring, 7_200), (autumn, 3_600)];
    Zone { name: "Europe/Berlin".to_owned(), offsets }
}

fn lengths(from_s: i64, days: i64, every: Every) -> Vec<i64> {
    let from_ns = from_s * 1_000_000_000;
    let calendar = Calendar::new(from_ns, from_ns + days * DAY_NS, &berlin(), every);
    calendar.periods.iter().map(|period| period.length_ms / 900_000).collect()
}

#[test]
fn a_day_has_23_hours_in_spring_and_25_in_autumn() {
    // From midnight in Berlin on, two times 24 hours.
    let (spring, autumn) = (1_774_738_800, 1_792_879_200);
    assert_eq!(lengths(spring, 2, Every::Day), [92, 96, 4]);
    assert_eq!(lengths(autumn, 2, Every::Day), [100, 92]);
    let hours = lengths(spring, 1, Every::HourOfDay);
    assert_eq!(
        (hours[0], hours[1], hours[2], hours[3]),
        (8, 4, 0, 4),
        "02:00 did not exist, and 24 hours end at 01:00"
    );
    assert_eq!(lengths(autumn, 1, Every::HourOfDay)[2], 8, "02:00 came twice");
    assert_eq!(lengths(autumn, 1, Every::Hour).len(), 24, "and these are two hours");
}

#[test]
fn periods_begin_at_the_midnight_of_the_zone() {
    // 2026-11-17 12:00 UTC, a Tuesday.
    let noon_ns = 1_794_916_800 * 1_000_000_000;
    let begin = |every| {
        let calendar = Calendar::new(noon_ns, noon_ns + BUCKET_NS, &berlin(), every);
        (calendar.periods[0].begin_ns.unwrap() - noon_ns) / HOUR_NS
    };
    assert_eq!(begin(Every::Day), -13);
    assert_eq!(begin(Every::Week), -13 - 24);
    assert_eq!(begin(Every::Month), -13 - 16 * 24);
    assert_eq!(begin(Every::Hour), 0);
    let calendar = Calendar::new(noon_ns, noon_ns + BUCKET_NS, &berlin(), Every::HourOfWeek);
    let used: Vec<i64> =
        calendar.periods.iter().filter(|one| one.length_ms > 0).map(|one| one.number).collect();
    assert_eq!(used, [24 + 13]);
    let kathmandu = Zone { name: "Asia/Kathmandu".to_owned(), offsets: vec![(i64::MIN, 20_700)] };
    let calendar = Calendar::new(noon_ns, noon_ns + HOUR_NS, &kathmandu, Every::HourOfDay);
    assert_eq!((calendar.periods[17].length_ms, calendar.periods[18].length_ms), (900_000, 2_700_000));
}

#[test]
fn months_and_leap_days_are_those_of_the_calendar() {
    // 2028 has a 29 February.
    let from_ns = 1_830_297_600 * 1_000_000_000;
    let calendar = Calendar::new(from_ns, from_ns + 366 * DAY_NS, &Zone::default(), Every::Month);
    let days: Vec<i64> = calendar.periods.iter().map(|period| period.length_ms / 86_400_000).collect();
    assert_eq!(days, [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]);
}

#[test]
fn unknown_is_not_idle_and_down_is_neither() {
    let sample = |minute: i64, uptime_minutes: i64, busy_minutes: i64| MachineSample {
        time_ms: minute * 60_000,
        uptime_ms: Some(uptime_minutes * 60_000),
        cpu_ns: Some(2 * uptime_minutes * 60_000_000_000),
        busy_ns: Some(busy_minutes * 60_000_000_000),
        memory_bytes: Some(4 << 20),
        memory_available_bytes: Some(1 << 20),
        gpus: None,
    };
    let mut machine = Machine::default();
    // Measured for 30 minutes, not for 4 hours, measured again; then it was off, and booted 5 minutes before the last.
    let samples = [
        sample(0, 60, 0),
        sample(15, 75, 10),
        sample(30, 90, 20),
        sample(270, 330, 200),
        sample(285, 345, 210),
        sample(345, 5, 2),
    ];
    samples.into_iter().for_each(|sample| machine.take(sample));
    let mut sums = [0; FIGURES];
    machine.days.values().flat_map(|row| row.buckets.iter()).for_each(|amounts| add(&mut sums, amounts));
    let minutes = |figure: usize, unit: i128| sums[figure] / unit;
    assert_eq!(minutes(machine_figure::MEASURED_MS, 60_000), 50);
    assert_eq!(minutes(machine_figure::DOWN_MS, 60_000), 55);
    assert_eq!(minutes(machine_figure::CPU_CAPACITY_NS, 60_000_000_000), 100);
    assert_eq!(minutes(machine_figure::CPU_BUSY_NS, 60_000_000_000), 32);
    assert_eq!(sums[machine_figure::MEMORY_USED] * 4, sums[machine_figure::MEMORY_CAPACITY] * 3);
    assert_eq!(sums[machine_figure::GPUS_KNOWN_MS], 0, "how many GPUs it had is unknown");
}

#[test]
fn gpus_of_a_machine_may_come_and_go_and_be_unknown() {
    let mut machine = Machine::default();
    // Unknown at first, as all samples of earlier versions; four, then one falls off the bus, then the driver fails.
    for (minute, gpus) in
        [None, None, Some(4), Some(4), Some(3), None, Some(0), Some(-1)].into_iter().enumerate()
    {
        let minute = minute as i64;
        machine.take(MachineSample {
            time_ms: minute * 60_000,
            uptime_ms: None,
            cpu_ns: Some(minute * 60_000_000_000),
            busy_ns: None,
            memory_bytes: None,
            memory_available_bytes: None,
            gpus,
        });
    }
    let mut sums = [0; FIGURES];
    machine.days.values().flat_map(|row| row.buckets.iter()).for_each(|amounts| add(&mut sums, amounts));
    assert_eq!(sums[machine_figure::MEASURED_MS], 7 * 60_000);
    assert_eq!(sums[machine_figure::GPUS_KNOWN_MS], 6 * 60_000, "also while there were none");
    assert_eq!(sums[machine_figure::GPU_CAPACITY_NS], (4 + 4 + 3 + 3) * 60_000_000_000);
}

#[test]
fn sums_are_added_by_name_and_period() {
    let ask = UsageAsk::new(0, DAY_NS, By::User, Every::HourOfDay);
    let calendar = ask.calendar();
    let mut table = Table::new(By::User, &calendar);
    let mut row = DayRow::default();
    row.buckets[3][figure::CPU_NS] = 5;
    row.buckets[4][figure::CPU_NS] = 7;
    for (user, day) in [("ada", 0), ("ada", 0), ("eve", 0), ("eve", 1)] {
        let place = table.place(&Group { user: Some(user.to_owned()), ..Group::default() }).unwrap();
        assert!(table.add_encoded(place, day, &row.encode()));
    }
    let place = table.place(&Group { user: Some("eve".to_owned()), ..Group::default() }).unwrap();
    assert!(!table.add_encoded(place, 0, b"damaged"));
    table.add(place, 0, &row, -1);
    let lines: Vec<_> = table
        .finish()
        .into_iter()
        .map(|line| (line.name.unwrap(), line.period, line.sums[figure::CPU_NS]))
        .collect();
    assert_eq!(lines, [("ada".to_owned(), 0, 10), ("ada".to_owned(), 1, 14)], "the day behind is left out");
    let line = UsageLine { name: None, period: 1, sums: [i128::from(i64::MAX) * 9; FIGURES] };
    let text = serde_json::to_string(&line).unwrap();
    assert_eq!(serde_json::from_str::<UsageLine>(&text).unwrap(), line);
}
