use proptest::prelude::*;

use super::variant::{self, Metric, Sample, Settings};
use super::*;

/// A whole message of a real node.
const CAPTURED: &[u8] = include_bytes!("../../../../fixtures/colmet/message.bin");
/// Two rounds of every kind, packed by Colmet's own classes; the second has numbers at the bounds.
const KINDS: &[u8] = include_bytes!("../../../../fixtures/colmet/kinds.bin");

fn int(record: &Record, name: &str) -> Option<i64> {
    match record.value(name)? {
        Value::Int(value) => Some(value),
        Value::Float(_) => None,
    }
}

#[test]
fn records_have_the_lengths_of_the_protocol() {
    let lengths: Vec<usize> = LAYOUTS.iter().map(Layout::bytes).collect();
    assert_eq!(lengths, [762, 9202, 8750, 8750, 566, 8910, 574, 606, 8726, 582]);
    for (index, layout) in LAYOUTS.iter().enumerate() {
        assert_eq!(layout.backend as usize, index);
        assert_eq!(Backend::from_name(layout.name), Some(layout.backend));
    }
}

#[test]
fn a_real_message_is_read_and_written_again_byte_by_byte() {
    let read: Vec<Record> = records(CAPTURED).map(Result::unwrap).collect();
    let kinds: Vec<Backend> = read.iter().map(|record| record.backend).collect();
    assert_eq!(
        kinds,
        [Backend::Taskstats, Backend::Procstats, Backend::Lustre, Backend::Temperature, Backend::Jobproc]
    );
    let tasks = &read[0];
    assert_eq!((tasks.job_id, tasks.hostname.as_str(), tasks.timestamp), (1234, "vm", 1_794_703_701));
    assert_eq!(int(tasks, "cpu_run_virtual_total"), Some(1_928_347_945));
    assert_eq!((int(tasks, "ac_btime"), int(tasks, "nivcsw")), (Some(1_794_703_537), Some(108)));
    let node = &read[1];
    assert_eq!((node.job_id, &node.involved_jobs), (0, &vec![1234]));
    assert_eq!(int(node, "meminfo_memtotal"), Some(24_682_416));
    assert_eq!(node.value("loadavg_1min"), Some(Value::Float(1.82)));
    assert!(read[3].counters().next().is_none(), "zones that do not exist are unknown");
    assert_eq!((int(&read[4], "VmRSS"), int(&read[4], "VmSize")), (Some(13_540), Some(16_572)));
    let mut again = Vec::new();
    read.iter().for_each(|record| record.encode(&mut again));
    assert_eq!(again, CAPTURED);
}

#[test]
fn every_kind_that_colmet_packs_is_read_and_written_again_byte_by_byte() {
    let (first, second) = KINDS.split_at(KINDS.len() / 2);
    let read: Vec<Record> = records(first).map(Result::unwrap).collect();
    let mut again = Vec::new();
    read.iter().for_each(|record| record.encode(&mut again));
    assert_eq!(again, first);
    let mut kinds: Vec<Backend> = read.iter().map(|record| record.backend).collect();
    kinds.dedup();
    assert_eq!(kinds, LAYOUTS.iter().map(|layout| layout.backend).collect::<Vec<_>>());
    assert!(read.iter().all(|record| record.counters().count() == record.values().count()));
    let at_bounds: Vec<Record> = records(second).map(Result::unwrap).collect();
    let tasks = &at_bounds[0];
    assert_eq!((int(tasks, "cpu_count"), int(tasks, "cpu_delay_total")), (None, Some(i64::MAX)));
    assert_eq!(int(tasks, "ac_btime"), Some(i64::from(u32::MAX)));
}

#[test]
fn bad_bytes_are_skipped_and_the_records_around_them_are_read() {
    let mut message = Vec::new();
    let good = Record::new(Backend::Jobproc, "n1", 7, 1);
    good.encode(&mut message);
    message.extend_from_slice(&[b'x'; 700]);
    good.encode(&mut message);
    Record::new(Backend::Jobproc, "bad name", 7, 1).encode(&mut message);
    Record::new(Backend::Procstats, "n1", 0, 1).encode(&mut message);
    let jobs = message.len() - JOBS_BYTES;
    message[jobs..jobs + 4].copy_from_slice(b"[1,]");
    good.encode(&mut message);
    message.truncate(message.len() - 1);
    let read: Vec<_> = records(&message).collect();
    let good = Ok(good);
    let expected = [
        good.clone(),
        Err(Bad::UnknownBackend),
        good,
        Err(Bad::Hostname),
        Err(Bad::InvolvedJobs),
        Err(Bad::Truncated),
    ];
    assert_eq!(read, expected);
}

#[test]
fn a_message_beyond_the_bound_is_not_read() {
    let message = vec![b'x'; MESSAGE_BYTES_MAX + 1];
    assert_eq!(records(&message).collect::<Vec<_>>(), [Err(Bad::TooLong)]);
}

#[test]
fn numbers_that_no_collector_stores_are_unknown() {
    let mut message = Vec::new();
    Record::new(Backend::Taskstats, "n1", 7, 1).encode(&mut message);
    message[COUNTERS..COUNTERS + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let record = records(&message).next().unwrap().unwrap();
    assert_eq!((record.value("cpu_count"), int(&record, "blkio_count")), (None, Some(0)));
}

#[test]
fn as_many_involved_jobs_are_written_as_fit() {
    let mut record = Record::new(Backend::Ipmi, "n1", 0, 1);
    record.involved_jobs = (0..5000).map(|id| 1_000_000 + id).collect();
    let mut message = Vec::new();
    record.encode(&mut message);
    assert_eq!((message.len(), message.last()), (8726, Some(&0)));
    let read = records(&message).next().unwrap().unwrap();
    assert!(read.involved_jobs.len() > 900);
    assert_eq!(read.involved_jobs, record.involved_jobs[..read.involved_jobs.len()]);
}

#[test]
fn cells_become_counters_and_back() {
    assert_eq!(Value::of_cell(Type::U64, 40_720 * 10_000_000 + 9, 10_000_000), Value::Int(40_720));
    assert_eq!(Value::Int(40_720).times(10_000_000), Some(407_200_000_000));
    assert_eq!(Value::of_cell(Type::I64, -5500, 1000), Value::Int(-5), "as Colmet rounds degrees");
    assert_eq!(Value::of_cell(Type::F32, 1820, 1000), Value::Float(1.82));
    assert_eq!(Value::Float(1.82).times(1000), Some(1820));
    assert_eq!(Value::Int(i64::MAX).times(1024), None);
    assert_eq!(Value::Float(f32::MAX).times(1000), None);
}

/// The message of the variant's own documentation.
fn variant_message() -> Vec<u8> {
    let mut message = b"\x81\xcd\x04\xd2\x93\xa2vm\xcf\x00\x00\x01\xa1\xdc\xad\x34\x83\x93".to_vec();
    message.extend_from_slice(b"\x93\xa6Memory\x92\x01\x02\x92\xcd\x10\x00\xce\x07\x5b\xcd\x15");
    message.extend_from_slice(b"\x93\xa3Cpu\x93\x22\x23\x24\x93\x00\x00\x00");
    message.extend_from_slice(b"\x93\xa6Perfhw\x93\x26\x28\x38\x93\xcf\x00\x00\x00\x01\x2a\x05\xf2\x00");
    message.extend_from_slice(b"\xce\x00\x01\x11\x70\xff");
    message
}

#[test]
fn a_message_of_the_variant_is_read() {
    let message = variant_message();
    assert_eq!(message.len(), 79);
    assert!(variant::is_variant(&message) && !variant::is_variant(CAPTURED));
    let known = [(1, 4096), (2, 123_456_789), (34, 0), (35, 0), (36, 0), (38, 5_000_000_000), (40, 70_000)];
    let mut metrics: Vec<_> = known.into_iter().map(|(id, value)| (id, Some(value))).collect();
    metrics.push((56, None));
    let mut sample = Sample { job_id: 1234, hostname: "vm".to_owned(), time_ms: 0x01a1_dcad_3483, metrics };
    assert_eq!(variant::samples(&message), Ok(vec![sample.clone()]), "-1 is unknown");
    // Its events are numbered as they come, also those that are unknown.
    sample.metrics.insert(0, (37, None));
    let record = sample.record().unwrap();
    let counts = [None, Some(Value::Int(5_000_000_000)), Some(Value::Int(70_000)), None, None];
    assert_eq!((record.job_id, record.hostname.as_str(), record.timestamp), (1234, "vm", 1_794_703_701));
    let values: Vec<_> = record.values().map(|(_, value)| value).collect();
    assert_eq!((record.backend, &values[..]), (Backend::Perfhw, &counts[..]));
    sample.metrics.truncate(4);
    assert_eq!(sample.record(), None, "no event is known");
    assert_eq!(variant::metric(38), Some(Metric::Event("instructions")));
    assert_eq!(variant::metric(40), Some(Metric::Event("cache_misses")));
    assert_eq!(variant::metric(18), variant::metric(1));
    assert_eq!((variant::metric(0), variant::metric(65)), (None, None));
    assert_eq!(variant::metric(64), Some(Metric::Event("bpf_output")));
}

#[test]
fn a_message_of_live_configuration_is_read() {
    let message = b"\x82\xaeperfhw_metrics\xb9cache_ll,emulation_faults\xadsample_period\xa31.5";
    let settings = Settings {
        perfhw_metrics: Some(vec!["cache_ll".to_owned(), "emulation_faults".to_owned()]),
        sample_period: Some("1.5".to_owned()),
    };
    assert_eq!(variant::settings(message), Ok(settings));
    assert_eq!(variant::settings(b"\x81\xa4kind\xa1x"), Err(Bad::MessagePack));
    assert_eq!(variant::settings(&message[..20]), Err(Bad::MessagePack));
}

fn any_record() -> impl Strategy<Value = Record> {
    let backend = (0..LAYOUTS.len()).prop_map(|index| LAYOUTS[index].backend);
    let values = prop::collection::vec(any::<u64>(), 64);
    let jobs = prop::collection::vec(any::<u64>(), 0..20);
    (backend, "[a-z][a-z0-9.-]{0,40}", any::<u64>(), any::<u64>(), values, jobs).prop_map(
        |(backend, hostname, job_id, timestamp, random, jobs)| {
            let layout = backend.layout();
            let mut record = Record::new(backend, &hostname, job_id, timestamp);
            record.set_all(|index, counter| match (counter.kind, random[index]) {
                (Type::U32, random) => Some(Value::Int(i64::from(random as u32))),
                (Type::U64, random) => Some(Value::Int((random >> 1) as i64)),
                (Type::I64, random) => Some(Value::Int((random >> 1) as i64)).filter(|_| random % 5 > 0),
                (Type::F32, random) => Some(Value::Float(random as u32 as f32)),
            });
            record.involved_jobs = if layout.has_involved_jobs { jobs } else { Vec::new() };
            record
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(all in prop::collection::vec(any_record(), 0..5)) {
        let mut message = Vec::new();
        all.iter().for_each(|record| record.encode(&mut message));
        let read: Vec<Record> = records(&message).map(Result::unwrap).collect();
        prop_assert_eq!(read, all);
    }

    #[test]
    fn damaged_messages_are_read_to_their_end(
        at in 0..CAPTURED.len(), with in any::<u8>(), cut in 0..CAPTURED.len(),
    ) {
        let mut message = CAPTURED.to_vec();
        message[at] = with;
        prop_assert!(records(&message[..cut]).count() <= 10);
    }

    #[test]
    fn any_messagepack_is_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut message = variant_message();
        let at = bytes.len() % message.len();
        message.splice(at.., bytes.iter().copied());
        let _ = (variant::samples(&message), variant::settings(&bytes), variant::samples(&bytes));
    }
}
