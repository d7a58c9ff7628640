use met_core::job::{LOCAL, State};
use proptest::prelude::*;

use super::*;

fn key(id: &str) -> JobKey {
    JobKey { cluster: None, manager: LOCAL.to_owned(), id: id.to_owned(), incarnation: 7 }
}

fn record(id: &str) -> Record {
    let text = serde_json::json!({
        "key": key(id), "name": "a \"job\"\n", "user": "ada", "uid": 1000, "account": null, "command": ["true"],
        "state": State::Finished, "manager_state": null, "exit_code": 0, "signal": null, "start_ns": 1, "end_ns": 2,
        "nodes": ["n1"], "node_memory_bytes": null, "local": null,
    });
    serde_json::from_value(text).unwrap()
}

fn interim() -> Interim {
    let mut totals = Totals::default();
    totals.set(met_core::job_table::ENERGY, 5, met_core::job::QualityKind::Estimated, "2 cores, by CPU time");
    let emission = Some(Emission {
        factor_mg_per_kwh: 1,
        factor_source: "a yearly mean".to_owned(),
        factor_time_ns: None,
        pue_millionths: None,
    });
    Interim { key: key("3"), totals, summaries: Summaries::default(), emission }
}

fn batch() -> NodeBatch {
    NodeBatch {
        header: Header {
            node: "n1".to_owned(),
            spool: "s".to_owned(),
            sequence: 3,
            mark: 9,
            ..Header::default()
        },
        records: vec![record("1"), record("2")],
        interims: vec![interim()],
        pieces: vec![
            Piece { subject: Subject::Job(key("1")), table: "job".to_owned(), block: vec![1, 2, 3] },
            Piece {
                subject: Subject::Device("GPU-a".to_owned()),
                table: "gpu".to_owned(),
                block: Vec::new(),
            },
        ],
    }
}

fn gzipped(plain: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    gzip(plain, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_was_packed_is_unpacked() {
    let packed = batch().pack().unwrap();
    assert_eq!(NodeBatch::unpack(&packed.bytes).unwrap(), batch());
    assert_eq!(header(&packed.bytes).unwrap(), batch().header);
}

/// Servers and nodes of other versions read these bytes: a change of them is a new version of the format.
#[test]
fn the_bytes_of_a_batch_are_frozen() {
    let packed = batch().pack().unwrap();
    let mut plain = Vec::new();
    MultiGzDecoder::new(&packed.bytes[..]).read_to_end(&mut plain).unwrap();
    let frames =
        plain.escape_ascii().to_string().replace("}R", "}\nR").replace("}L", "}\nL").replace("}S", "}\nS");
    expect_test::expect![[r#"
        MET\x02H\x89\x01{\"node\":\"n1\",\"spool\":\"s\",\"sequence\":3,\"mark\":9,\"made_ns\":0,\"boot_id\":\"\",\"version\":\"\",\"cpus\":null,\"memory_bytes\":null,\"dropped_samples\":0}
        R\xbe\x02{\"key\":{\"cluster\":null,\"manager\":\"local\",\"id\":\"1\",\"incarnation\":7},\"name\":\"a \\\"job\\\"\\n\",\"user\":\"ada\",\"uid\":1000,\"account\":null,\"command\":[\"true\"],\"state\":\"finished\",\"manager_state\":null,\"exit_code\":0,\"signal\":null,\"start_ns\":1,\"end_ns\":2,\"nodes\":[\"n1\"],\"node_memory_bytes\":null,\"totals\":{},\"summaries\":{},\"local\":null}
        R\xbe\x02{\"key\":{\"cluster\":null,\"manager\":\"local\",\"id\":\"2\",\"incarnation\":7},\"name\":\"a \\\"job\\\"\\n\",\"user\":\"ada\",\"uid\":1000,\"account\":null,\"command\":[\"true\"],\"state\":\"finished\",\"manager_state\":null,\"exit_code\":0,\"signal\":null,\"start_ns\":1,\"end_ns\":2,\"nodes\":[\"n1\"],\"node_memory_bytes\":null,\"totals\":{},\"summaries\":{},\"local\":null}
        L\xfe\x01{\"key\":{\"cluster\":null,\"manager\":\"local\",\"id\":\"3\",\"incarnation\":7},\"totals\":{\"energy\":{\"value\":5,\"kind\":\"estimated\",\"source\":\"2 cores, by CPU time\"}},\"summaries\":{},\"emission\":{\"factor_mg_per_kwh\":1,\"factor_source\":\"a yearly mean\",\"factor_time_ns\":null}}
        SKC{\"job\":{\"cluster\":null,\"manager\":\"local\",\"id\":\"1\",\"incarnation\":7}}\x03job\x01\x02\x03S\x17\x12{\"device\":\"GPU-a\"}\x03gpu"#]].assert_eq(&frames);
}

#[test]
fn without_its_series_a_batch_is_still_one() {
    let packed = batch().pack().unwrap();
    let cut = NodeBatch::unpack(&packed.bytes[..packed.records_end]).unwrap();
    assert_eq!(cut, NodeBatch { pieces: Vec::new(), interims: Vec::new(), ..batch() });
    for end in (0..packed.records_end).chain(packed.records_end + 1..packed.bytes.len()) {
        assert!(NodeBatch::unpack(&packed.bytes[..end]).is_err(), "cut at {end}");
    }
}

#[test]
fn little_that_unpacks_to_much_is_refused() {
    let bomb = gzipped(&vec![0; UNPACKED_BYTES_MAX + 1]);
    assert!(bomb.len() < 1 << 20);
    assert!(matches!(NodeBatch::unpack(&bomb), Err(BadBatch::TooLarge)));
    assert!(
        matches!(NodeBatch::unpack(&gzipped(&vec![0; 1 << 20])), Err(BadBatch::TooLarge)),
        "no batch shrinks so"
    );
}

#[test]
fn a_malformed_batch_is_refused_with_the_reason() {
    let refusal = |plain: &[u8]| NodeBatch::unpack(&gzipped(plain)).unwrap_err().to_string();
    assert_eq!(refusal(b"hello"), "it is not a batch");
    assert_eq!(refusal(b"MET\x01"), "no header at byte 4");
    assert_eq!(refusal(b"MET\x01H\x7f{}"), "a frame is cut off or too long at byte 4");
    assert_eq!(refusal(b"MET\x01H\xff\xff\xff\xff\xff{}"), "a frame is cut off or too long at byte 4");
    assert!(refusal(b"MET\x01H\x02{}").starts_with("the header cannot be read: missing field"));
    assert!(
        NodeBatch::unpack(b"plain").unwrap_err().to_string().starts_with("it is not compressed with gzip")
    );
}

#[test]
fn a_batch_of_the_first_version_is_read_and_one_of_a_later_named() {
    let mut plain = b"MET\x01".to_vec();
    let tables = BTreeMap::from([("job".to_owned(), "0123abcd".to_owned())]);
    put_json(&mut plain, HEADER, &Header { tables, ..batch().header }).unwrap();
    put_json(&mut plain, RECORD, &record("1")).unwrap();
    let first = NodeBatch::unpack(&gzipped(&plain)).unwrap();
    assert_eq!(first.header.tables["job"], "0123abcd");
    assert_eq!((first.records.len(), header(&gzipped(&plain)).unwrap()), (1, first.header));
    for version in [0, 3, 255] {
        plain[3] = version;
        let refused = NodeBatch::unpack(&gzipped(&plain));
        assert!(matches!(refused, Err(BadBatch::Version(named)) if named == version), "{version}");
    }
}

#[test]
fn frames_of_later_versions_are_passed_over() {
    let mut plain = begin().to_vec();
    put_json(&mut plain, HEADER, &batch().header).unwrap();
    put_frame(&mut plain, b'?', b"news");
    put_json(&mut plain, RECORD, &record("1")).unwrap();
    assert_eq!(NodeBatch::unpack(&gzipped(&plain)).unwrap().records.len(), 1);
    put_json(&mut plain, HEADER, &batch().header).unwrap();
    assert!(NodeBatch::unpack(&gzipped(&plain)).unwrap_err().to_string().starts_with("a second header"));
}

#[test]
fn a_batch_skips_a_malformed_interim() {
    let mut plain = begin().to_vec();
    put_json(&mut plain, HEADER, &batch().header).unwrap();
    put_frame(&mut plain, INTERIM, b"{}");
    let mut long = interim();
    long.key.id = "7".repeat(STANDING_BYTES_MAX);
    put_json(&mut plain, INTERIM, &long).unwrap();
    put_json(&mut plain, INTERIM, &interim()).unwrap();
    assert_eq!(NodeBatch::read_within(&plain, RECORD_BYTES_MAX).unwrap().interims, [interim()]);
}

#[test]
fn whatever_its_records_are_a_receiver_does_not_take_a_batch_for_a_bomb() {
    for letters in [0, 40 << 10, 1 << 20, 4_000_000] {
        let mut long = record("1");
        long.command = vec!["a".repeat(letters)];
        let one = NodeBatch { records: vec![long], ..batch() };
        let packed = one.pack().unwrap();
        assert_eq!(NodeBatch::unpack(&packed.bytes).unwrap(), one, "{letters}");
        assert_eq!(NodeBatch::unpack(&packed.bytes[..packed.records_end]).unwrap().records, one.records);
        assert!(packed.bytes.len() < (64 << 10), "{}", packed.bytes.len());
    }
}

#[test]
fn another_header_changes_nothing_else() {
    let packed = batch().pack().unwrap();
    let renamed =
        with_header(&packed.bytes, packed.records_end, |header| header.node = "n2".to_owned()).unwrap();
    let header = Header { node: "n2".to_owned(), ..batch().header };
    let expected = NodeBatch { header, ..batch() };
    assert_eq!(NodeBatch::unpack(&renamed.bytes).unwrap(), expected);
    let records = NodeBatch { interims: Vec::new(), pieces: Vec::new(), ..expected };
    assert_eq!(NodeBatch::unpack(&renamed.bytes[..renamed.records_end]).unwrap(), records);
}

#[test]
fn a_batch_is_split_until_it_is_one_record() {
    let whole = NodeBatch { records: (0..5).map(|id| record(&id.to_string())).collect(), ..batch() };
    let (mut todo, mut singles, mut series) = (vec![whole.clone()], Vec::new(), 0);
    while let Some(next) = todo.pop() {
        match split(&next.pack().unwrap().bytes).unwrap() {
            Some(parts) => todo.extend(parts),
            None => {
                assert!(next.records.len() + usize::from(!next.pieces.is_empty()) == 1);
                series += next.pieces.len();
                singles.extend(next.records);
            }
        }
    }
    singles.sort_by(|one, other| one.key.cmp(&other.key));
    assert_eq!((singles, series), (whole.records, 2));
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(plain in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = NodeBatch::unpack(&plain);
        let _ = NodeBatch::read_within(&plain, RECORD_BYTES_MAX);
        let _ = NodeBatch::unpack(&gzipped(&[&begin(), &plain[..]].concat()));
    }

    #[test]
    fn a_changed_byte_is_refused_or_read(at in 0_usize..10_000, value in any::<u8>()) {
        let packed = batch().pack().unwrap();
        let mut plain = unpacked_within(&packed.bytes, UNPACKED_BYTES_MAX).unwrap();
        let at = at % plain.len();
        plain[at] = value;
        let _ = NodeBatch::unpack(&gzipped(&plain));
        let mut bytes = packed.bytes;
        let at = at % bytes.len();
        bytes[at] ^= value | 1;
        let _ = NodeBatch::unpack(&bytes);
    }
}
