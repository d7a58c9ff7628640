use met_core::detail_table;
use met_core::job_table::{CPU, CPU_USER, READ_CALL};
use met_wire::colmet::{LAYOUTS, records};

use met_wire::block;

use super::*;

const CAPTURED: &[u8] = include_bytes!("../../../../fixtures/colmet/message.bin");
/// Two rounds of every kind, packed by Colmet's own classes; the second has numbers at the bounds.
const KINDS: &[u8] = include_bytes!("../../../../fixtures/colmet/kinds.bin");
const NOW_NS: i64 = 1_794_703_702 * SECOND_NS;

fn series(batch: &NodeBatch, subject: &Subject, table: &'static Table) -> Series {
    let piece = batch.pieces.iter().find(|piece| piece.subject == *subject && piece.table == table.name);
    block::decode(&piece.unwrap().block, table).unwrap()
}

fn job_key() -> JobKey {
    JobKey { cluster: None, manager: "oar".to_owned(), id: "1234".to_owned(), incarnation: 1_794_703_537 }
}

#[test]
fn every_counter_of_a_real_message_is_a_cell_in_the_unit_of_its_column() {
    let mut importer = Importer::new("oar".to_owned());
    let all: Vec<Record> = records(CAPTURED).map(Result::unwrap).collect();
    all.iter().for_each(|record| importer.take(record, NOW_NS).unwrap());
    importer.end_of_message();
    let batches = importer.batches(NOW_NS);
    let [batch] = &batches[..] else { panic!("{}", batches.len()) };
    assert_eq!((batch.header.node.as_str(), batch.header.sequence), ("vm", 1));
    assert_eq!(batch.header.memory_bytes, Some(24_682_416 * 1024));
    let [record] = &batch.records[..] else { panic!() };
    assert_eq!((&record.key, record.user.as_ref(), record.state), (&job_key(), None, State::Running));
    assert_eq!(record.totals.figure(CPU).unwrap().kind, QualityKind::LowerBound);
    let mut checked = 0;
    for record in &all {
        for (counter, value) in record.values() {
            let (Meaning::Cell { into, factor, .. }, Some(value)) = (counter.meaning, value) else {
                continue;
            };
            for at in into {
                let table = met_sources::table(at.table).unwrap();
                let subject = match at.table {
                    "job" | "job_detail" => Subject::Job(job_key()),
                    "lustre" => Subject::Node("all".to_owned()),
                    _ => Subject::Node(String::new()),
                };
                let cell = series(batch, &subject, table).columns[table.column(at.column).unwrap()][0];
                let is_of_both = record.backend == Backend::Jobproc && at.table == "job";
                assert!(is_of_both || Some(cell) == value.times(factor), "{}", counter.name);
                checked += 1;
            }
        }
    }
    assert!(checked > 100);
    let job = series(batch, &Subject::Job(job_key()), &JOB);
    assert_eq!((job.columns[CPU][0], job.columns[CPU_USER][0]), (1_928_347_945, 1_522_970_000));
    assert_eq!(job.columns[READ_CALL][0], 1_418_240, "of taskstats, not of jobproc");
    let detail = series(batch, &Subject::Job(job_key()), &DETAIL);
    assert_eq!(detail.columns[detail_table::MEMORY_RESIDENT][0], 13_540 * 1024);
    // The same message again adds nothing.
    all.iter().for_each(|record| importer.take(record, NOW_NS).unwrap());
    assert!(importer.batches(NOW_NS).is_empty());
}

fn record(backend: Backend, job_id: u64, second: u64, known: &[(&str, i64)]) -> Record {
    let mut record = Record::new(backend, "n1", job_id, 1_794_703_000 + second);
    for (name, value) in known {
        let index = backend.layout().counters.iter().position(|counter| counter.name == *name).unwrap();
        record.set(index, Some(Value::Int(*value)));
    }
    record
}

#[test]
fn counts_and_energy_of_periods_add_up_to_counters() {
    let mut importer = Importer::new("oar".to_owned());
    for second in 0..3 {
        let events = record(Backend::Perfhw, 5, second, &[("counter_2", 10)]);
        let energy = record(Backend::Rapl, 0, second, &[("counter_5", 7), ("counter_6", 99)]);
        [events, energy].iter().for_each(|record| importer.take(record, NOW_NS).unwrap());
        importer.end_of_message();
    }
    let batch = importer.batches(NOW_NS).remove(0);
    let key = batch.records[0].key.clone();
    let events = series(&batch, &Subject::Job(event::series_key(&key, "counter_2")), &event::TABLE);
    assert_eq!(events.columns[event::COUNT], [10, 20, 30]);
    let table = met_sources::table("rapl").unwrap();
    let energy = series(&batch, &Subject::Node("dram package-0".to_owned()), table);
    assert_eq!(energy.columns[table.column("energy").unwrap()], [7, 14, 21]);
    assert_eq!(energy.columns[table.column("energy_range").unwrap()], [99, 99, 99]);
}

/// Where a counter is stored, and what of it.
fn stored(
    meaning: Meaning,
    value: Value,
    key: Option<&JobKey>,
) -> Vec<(Subject, &'static Table, usize, Option<i64>)> {
    let zone = |zone: Zone, column| {
        let package = format!("package-{}", zone.package);
        let name = if zone.zone == 0 { package.as_str() } else { ZONES[zone.zone] };
        vec![(Subject::Node(format!("{name} {package}")), &rapl::TABLE, column, value.times(1))]
    };
    match meaning {
        Meaning::Cell { into, factor, .. } => into
            .iter()
            .map(|at| {
                let table = met_sources::table(at.table).unwrap();
                let subject = match at.table {
                    "job" | "job_detail" => Subject::Job(key.unwrap().clone()),
                    "lustre" | "infiniband" => Subject::Node("all".to_owned()),
                    "ipmi" => Subject::Node("node".to_owned()),
                    _ => Subject::Node(String::new()),
                };
                (subject, table, table.column(at.column).unwrap(), value.times(factor))
            })
            .collect(),
        Meaning::ZoneEnergy(of) => zone(of, rapl::ENERGY),
        Meaning::ZoneRange(of) => zone(of, rapl::RANGE),
        Meaning::Thermal(number) => {
            let subject = Subject::Node(number.to_string());
            vec![(subject, &thermal::TABLE, thermal::TEMPERATURE, value.times(1000))]
        }
        Meaning::Event(number) => {
            let series = event::series_key(key.unwrap(), &format!("counter_{}", number + 1));
            vec![(Subject::Job(series), &event::TABLE, event::COUNT, value.times(1))]
        }
        Meaning::Start | Meaning::None => Vec::new(),
    }
}

#[test]
fn every_counter_of_every_kind_is_a_cell_in_the_unit_of_its_column() {
    let mut importer = Importer::new("oar".to_owned());
    let all: Vec<Record> = records(KINDS).map(Result::unwrap).collect();
    all.iter().for_each(|record| importer.take(record, NOW_NS).unwrap());
    importer.end_of_message();
    let batch = importer.batches(NOW_NS).remove(0);
    assert_eq!(batch.records.len(), 2, "both jobs");
    let mut checked = std::collections::BTreeMap::new();
    for record in &all {
        let round = usize::from(record.timestamp > all[0].timestamp);
        let is_mine = |job: &&JobRecord| job.key.id == record.job_id.to_string();
        let key = batch.records.iter().find(is_mine).map(|job| &job.key);
        for (counter, value) in record.values() {
            let Some(value) = value else { continue };
            for (subject, table, column, cell) in stored(counter.meaning, value, key) {
                // Counts of a period add up, and taskstats has the same of tasks as jobproc of processes.
                let adds_up = matches!(counter.meaning, Meaning::ZoneEnergy(_) | Meaning::Event(_));
                let is_of_both = record.backend == Backend::Jobproc && table.name == JOB.name;
                if is_of_both || adds_up && round > 0 {
                    continue;
                }
                // A number that no cell holds may be all that a row would have.
                let series = series(&batch, &subject, table);
                let time_ms = record.timestamp as i64 * 1000;
                let row = series.times_ms.iter().position(|&at_ms| at_ms == time_ms);
                let found = row.map_or(MISSING, |row| series.columns[column][row]);
                assert_eq!(found, cell.unwrap_or(MISSING), "{} of round {round}", counter.name);
                *checked.entry(record.backend).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(checked.len(), LAYOUTS.len(), "{checked:?}");
    assert!(checked.values().sum::<usize>() > 300, "{checked:?}");
}

#[test]
fn a_job_that_its_host_no_longer_reports_is_lost() {
    let mut importer = Importer::new("oar".to_owned());
    importer.take(&record(Backend::Jobproc, 5, 0, &[("rchar", 1)]), NOW_NS).unwrap();
    assert_eq!(importer.batches(NOW_NS)[0].records.len(), 1);
    importer.take(&record(Backend::Procstats, 0, 60, &[("uptime_total", 1)]), NOW_NS).unwrap();
    assert!(importer.batches(NOW_NS)[0].records.is_empty());
    importer.take(&record(Backend::Procstats, 0, 121, &[("uptime_total", 1)]), NOW_NS).unwrap();
    let batch = importer.batches(NOW_NS).remove(0);
    assert_eq!(
        (batch.records[0].state, batch.records[0].end_ns),
        (State::Lost, Some(1_794_703_000 * SECOND_NS))
    );
    importer.take(&record(Backend::Procstats, 0, 122, &[("uptime_total", 1)]), NOW_NS).unwrap();
    assert!(importer.batches(NOW_NS)[0].records.is_empty());
}

#[test]
fn what_is_implausible_or_too_much_is_refused_alone() {
    let mut importer = Importer::new("oar".to_owned());
    for timestamp in [0, 1, u64::MAX, 1_794_703_702 + 7200] {
        let mut record = record(Backend::Jobproc, 5, 0, &[("rchar", 1)]);
        record.timestamp = timestamp;
        assert_eq!(importer.take(&record, NOW_NS), Err(Refused::Timestamp), "{timestamp}");
    }
    for id in 1..=JOBS_OF_HOST_MAX as u64 {
        importer.take(&record(Backend::Jobproc, id, 0, &[("rchar", 1)]), NOW_NS).unwrap();
    }
    let more = record(Backend::Jobproc, 9999, 0, &[("rchar", 1)]);
    assert_eq!(importer.take(&more, NOW_NS), Err(Refused::TooManyJobs));
    importer.end_of_message();
    let rounds = (1..).take_while(|second| {
        let refused = (1..=JOBS_OF_HOST_MAX as u64).find_map(|id| {
            importer.take(&record(Backend::Jobproc, id, *second, &[("rchar", 1)]), NOW_NS).err()
        });
        importer.end_of_message();
        refused.is_none()
    });
    assert!(rounds.count() <= SAMPLES_OF_HOST_MAX / JOBS_OF_HOST_MAX);
    // A record of a job about the node, and of the node about a job, says nothing.
    for layout in LAYOUTS {
        let id = if layout.is_of_job { 0 } else { 7 };
        let odd = Record::new(layout.backend, "n2", id, 1_794_703_000);
        importer.take(&odd, NOW_NS).unwrap();
    }
}

#[test]
fn a_message_of_the_variant_becomes_samples_of_its_job() {
    let mut importer = Importer::new("oar".to_owned());
    let metrics = [(1, 4096), (18, 8192), (2, 11), (35, 3), (36, 5), (38, 70)];
    let metrics = metrics.into_iter().map(|(id, value)| (id, Some(value))).collect();
    let sample = Sample { job_id: 1234, hostname: "vm".to_owned(), time_ms: 1_794_703_701_500, metrics };
    importer.take_sample(&sample, NOW_NS).unwrap();
    importer.end_of_message();
    let batch = importer.batches(NOW_NS).remove(0);
    let key = batch.records[0].key.clone();
    let job = series(&batch, &Subject::Job(key.clone()), &JOB);
    assert_eq!(job.times_ms, [1_794_703_701_500]);
    assert_eq!(job.columns[met_core::job_table::MEMORY_CACHE], [8192], "with the cgroups below");
    assert_eq!(job.columns[met_core::job_table::THROTTLED], [5]);
    let events = series(&batch, &Subject::Job(event::series_key(&key, "instructions")), &event::TABLE);
    assert_eq!(events.columns[event::COUNT], [70]);
    let counted = &batch.records[0].events;
    assert_eq!((counted.len(), counted[0].name.as_str(), counted[0].count), (1, "instructions", 70));
}

#[test]
fn a_job_that_ran_when_the_server_was_restarted_keeps_its_key() {
    let start = ("ac_btime", 1_794_702_000);
    let mut importer = Importer::new("oar".to_owned());
    importer.resume("n1", [(5, 1_794_700_000)]);
    for second in 0..2 {
        for id in [5, 6] {
            let taken = record(Backend::Taskstats, id, second, &[start, ("cpu_run_real_total", 7)]);
            importer.take(&taken, NOW_NS).unwrap();
        }
    }
    let batches = importer.batches(NOW_NS);
    let begun = |id: &str| {
        let record = batches[0].records.iter().find(|record| record.key.id == id).unwrap();
        (record.key.incarnation, record.start_ns.unwrap() / SECOND_NS)
    };
    assert_eq!((begun("5"), begun("6")), ((1_794_700_000, 1_794_700_000), (1_794_702_000, 1_794_702_000)));
}
