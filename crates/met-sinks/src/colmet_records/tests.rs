use std::sync::Arc;

use met_core::job::QualityKind;
use met_core::job_table::{CPU, WALL};
use met_core::sample;
use met_core::series::Series;

use super::*;
use crate::event::TickRow;

const SECOND_NS: i64 = 1_000_000_000;
const T0_NS: i64 = 1_794_703_701 * SECOND_NS;

fn options(node: Option<&str>, backends: &[&str]) -> Chosen {
    let mut options = Options::default();
    options.node = node.map(str::to_owned);
    options.set("backends", backends.iter().map(|&word| word.to_owned()).collect());
    options.set("period", vec!["1s".to_owned()]);
    options.set("events", vec!["page_faults".to_owned(), "instructions".to_owned()]);
    Chosen::of(&options, "")
}

fn oar(id: &str) -> JobKey {
    JobKey { manager: "oar".to_owned(), id: id.to_owned(), ..sample::full(1, "x").key }
}

fn table(name: &str) -> &'static Table {
    met_sources::catalogue().into_iter().find(|table| table.name == name).unwrap()
}

type TestRow<'a> = (Option<JobKey>, &'a [&'a str], &'a [(&'a str, i64)]);

/// A tick with one row for each of `rows`: its job, its labels, its cells by name.
fn tick(second: i64, name: &str, rows: &[TestRow<'_>]) -> Event {
    let table = table(name);
    let mut tick = Tick::new(T0_NS + second * SECOND_NS, table);
    for (job, labels, known) in rows {
        let mut cells = vec![MISSING; table.columns.len()];
        known.iter().for_each(|&(column, cell)| cells[table.column(column).unwrap()] = cell);
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        tick.push(TickRow { job: job.clone(), user: None, labels }, &cells);
    }
    Event::Tick(Arc::new(tick))
}

fn gathered(chosen: Chosen, events: &[Event]) -> Vec<Record> {
    let (mut gatherer, mut out) = (Gatherer::new(chosen), Vec::new());
    events.iter().for_each(|event| gatherer.take(event, &mut out));
    gatherer.idle(Instant::now() + Duration::from_secs(9), &mut out);
    out
}

fn int(record: &Record, name: &str) -> Option<i64> {
    match record.value(name)? {
        Value::Int(value) => Some(value),
        Value::Float(_) => None,
    }
}

#[test]
fn every_column_of_the_mapping_is_in_the_catalogue_with_the_unit_of_its_factor() {
    let catalogue = met_sources::catalogue();
    let mut checked = 0;
    for counter in LAYOUTS.iter().flat_map(|layout| layout.counters) {
        let Meaning::Cell { from, into, factor } = counter.meaning else { continue };
        for at in into.iter().chain([&from]) {
            let table = catalogue.iter().find(|table| table.name == at.table);
            let column = table.and_then(|table| table.columns.get(table.column(at.column)?));
            let column =
                column.unwrap_or_else(|| panic!("{} is not {}.{}", counter.name, at.table, at.column));
            // Kilobytes are cells of bytes, microseconds and ticks are cells of nanoseconds or microseconds.
            let is_fine = match factor {
                1024 | 4096 | 1_048_576 => column.unit == met_core::Unit::Bytes && column.scale >= 1.0,
                10_000_000 | 1_000_000_000 => column.unit == met_core::Unit::Seconds && column.scale < 1e-8,
                1000 => column.scale < 0.01,
                10 => column.unit == met_core::Unit::Ratio,
                factor => factor == 1,
            };
            assert!(is_fine, "{} times {factor} is not {}.{}", counter.name, at.table, at.column);
            checked += 1;
        }
    }
    assert!(checked > 100);
    use met_wire::colmet::{CONTROLLER_POWER, ZONE_RANGE};
    for at in [ZONE_ENERGY, ZONE_RANGE, THERMAL, CONTROLLER_POWER, UPTIME] {
        assert!(table(at.table).column(at.column).is_some(), "{at:?}");
    }
    for id in 1..=36 {
        if let Some(met_wire::colmet::variant::Metric::Cell(at)) = met_wire::colmet::variant::metric(id) {
            assert!(table(at.table).column(at.column).is_some(), "{at:?}");
        }
    }
}

#[test]
fn a_tick_becomes_a_round_of_records() {
    let job = oar("1234");
    let events = [
        tick(
            0,
            "job",
            &[
                (
                    Some(job.clone()),
                    &["", "oar", "1234"],
                    &[("cpu", 2_000_000_000), ("wall", 164 * SECOND_NS), ("read", 4096)],
                ),
                (Some(oar("x")), &["", "oar", "x"], &[("cpu", 1)]),
                (Some(sample::full(7, "x").key), &["", "local", "7"], &[("cpu", 1)]),
            ],
        ),
        tick(
            0,
            "job_detail",
            &[(Some(job.clone()), &["", "oar", "1234"], &[("memory_resident", 13_540 * 1024)])],
        ),
        tick(0, "node", &[(None, &[], &[("memory_total", 2048), ("load_1", 1820)])]),
    ];
    let made = gathered(options(Some("n1"), &["taskstats", "procstats", "jobproc"]), &events);
    let kinds: Vec<_> = made.iter().map(|record| (record.backend, record.job_id, record.timestamp)).collect();
    let time = 1_794_703_701;
    assert_eq!(
        kinds,
        [(Backend::Taskstats, 1234, time), (Backend::Procstats, 0, time), (Backend::Jobproc, 1234, time)]
    );
    assert_eq!(int(&made[0], "cpu_run_real_total"), Some(2_000_000_000));
    assert_eq!(
        (int(&made[0], "ac_btime"), int(&made[0], "ac_etime")),
        (Some(1_794_703_537), Some(164_000_000))
    );
    assert_eq!(int(&made[0], "blkio_delay_total"), None, "what is not known is absent");
    assert_eq!(
        (int(&made[1], "meminfo_memtotal"), made[1].value("loadavg_1min")),
        (Some(2), Some(Value::Float(1.82)))
    );
    assert_eq!(made[1].involved_jobs, [1234]);
    assert_eq!((int(&made[2], "VmRSS"), int(&made[2], "read_bytes")), (Some(13_540), Some(4096)));
}

#[test]
fn rounds_are_a_period_apart_and_events_and_energy_are_what_happened_between() {
    let job = oar("5");
    let at = |second: i64| {
        let row = |name: &str, column: &str, labels: &[&str], cell: i64| {
            tick(second, name, &[(Some(job.clone()), labels, &[(column, cell)])])
        };
        let zone = |zone: &str, cell: i64| -> Event {
            tick(
                second,
                "rapl",
                &[(None, &[zone, "package-0", "p"], &[("energy", cell), ("energy_range", 9)])],
            )
        };
        vec![
            row("job", "cpu", &[], second),
            row("event", "count", &["instructions"], second * second),
            zone("package-0", second * 7),
        ]
    };
    let mut events: Vec<Event> = (0..4).flat_map(at).collect();
    // Half a second later: not due.
    let Event::Tick(early) = tick(3, "job", &[(Some(job.clone()), &[], &[("cpu", 9)])]) else { panic!() };
    let mut early = (*early).clone();
    early.time_ns += SECOND_NS / 2;
    events.push(Event::Tick(Arc::new(early)));
    let made = gathered(options(Some("n1"), &["perfhw", "rapl"]), &events);
    let perf: Vec<_> = made.iter().filter(|record| record.backend == Backend::Perfhw).collect();
    let counts: Vec<_> =
        perf.iter().map(|record| (int(record, "counter_1"), int(record, "counter_2"))).collect();
    assert_eq!(counts, [(None, Some(1)), (None, Some(3)), (None, Some(5))]);
    let energy: Vec<_> = made.iter().filter(|record| record.backend == Backend::Rapl).collect();
    assert_eq!(energy.len(), 3);
    for record in energy {
        assert_eq!((int(record, "counter_1"), int(record, "counter_2")), (Some(7), Some(9)));
        assert_eq!((int(record, "counter_3"), int(record, "counter_7")), (Some(0), None));
    }
}

#[test]
fn slow_sensors_are_in_every_round_and_stale_ones_in_none() {
    let events: Vec<Event> = [
        vec![
            tick(0, "thermal", &[(None, &["0", "x86"], &[("temperature", 45_900)])]),
            tick(
                0,
                "ipmi",
                &[(None, &["node"], &[("power", 250_400)]), (None, &["fan"], &[("power", 9000)])],
            ),
        ],
        (0..90).map(|second| tick(second, "job", &[])).collect(),
    ]
    .concat();
    let made = gathered(options(Some("n1"), &["temperature", "ipmi"]), &events);
    let of = |backend: Backend| made.iter().filter(move |record| record.backend == backend);
    assert_eq!((of(Backend::Temperature).count(), of(Backend::Ipmi).count()), (61, 61));
    assert!(of(Backend::Temperature).all(|record| int(record, "counter_1") == Some(45)));
    assert!(of(Backend::Ipmi).all(|record| int(record, "average_power_consumption") == Some(250)));
}

#[test]
fn the_end_of_a_job_is_a_last_record_with_its_totals_once() {
    let mut record = sample::full(1, "x");
    record.key = oar("9");
    record.end_ns = Some(T0_NS);
    record.start_ns = Some(T0_NS - 3 * SECOND_NS);
    for (column, value) in [(CPU, 2 * SECOND_NS), (WALL, 3 * SECOND_NS)] {
        let source = record.totals.iter().next().unwrap().1.source.clone();
        record.totals.set(column, value, QualityKind::Measured, source);
    }
    let end = Event::Ended(Arc::new(record.clone()));
    let made = gathered(options(Some("n1"), &["taskstats"]), &[end.clone(), end]);
    assert_eq!(made.len(), 1);
    assert_eq!(
        (int(&made[0], "cpu_run_real_total"), made[0].timestamp),
        (Some(2 * SECOND_NS), 1_794_703_701)
    );
}

#[test]
fn a_server_makes_records_of_samples_and_passes_on_those_of_colmet() {
    let mut series = Series::new(&JOB);
    for second in 0..3 {
        let mut cells = vec![MISSING; JOB.columns.len()];
        cells[CPU] = second;
        series.push(T0_NS / 1_000_000 + second * 1000, &cells);
    }
    let (node, subject) = (Some("n7".to_owned()), Subject::Job(oar("3")));
    let samples = Event::Samples(Arc::new(Samples { node, subject, series }));
    let foreign = Record::new(Backend::Nvidia, "n8", 4, 5);
    let made = gathered(options(None, &["all"]), &[samples, Event::Colmet(Arc::new(vec![foreign.clone()]))]);
    let tasks: Vec<_> = made.iter().filter(|record| record.backend == Backend::Taskstats).collect();
    assert_eq!(tasks.len(), 3);
    assert!(tasks.iter().all(|record| record.hostname == "n7" && record.job_id == 3));
    assert_eq!(made.last(), Some(&foreign));
}

#[test]
fn a_job_with_gpus_has_all_counters_of_nvidia_and_one_without_has_no_record() {
    const MIB: i64 = 1 << 20;
    let (job, other) = (oar("12"), oar("13"));
    let events = [
        tick(
            0,
            "job",
            &[
                (
                    Some(job.clone()),
                    &[],
                    &[
                        ("gpu_power", 301_900),
                        ("gpu_temperature", 61_000),
                        ("gpu_utilization", 1_500),
                        ("gpu_memory", 700 * MIB),
                    ],
                ),
                (Some(other), &[], &[("cpu", 1)]),
            ],
        ),
        tick(
            0,
            "job_detail",
            &[(
                Some(job),
                &[],
                &[
                    ("gpu_memory_total", 16_000 * MIB),
                    ("gpu_memory_free", 15_000 * MIB),
                    ("gpu_utilization_memory", 420),
                ],
            )],
        ),
    ];
    let made = gathered(options(Some("n1"), &["nvidia"]), &events);
    let [record] = &made[..] else { panic!("{made:?}") };
    let counters: Vec<_> = record.counters().collect();
    let expected = [
        ("power", 301),
        ("temperature", 61),
        ("utilization-gpu", 150),
        ("utilization-memory", 42),
        ("memory-total", 16_000),
        ("memory-free", 15_000),
        ("memory-used", 700),
    ];
    assert_eq!(counters, expected.map(|(name, value)| (name, Value::Int(value))));
}
