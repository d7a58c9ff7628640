use super::*;
use proptest::prelude::*;

/// A record of the given version, every word its own number.
pub fn bytes(version: u16, words: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..words as u64).flat_map(|index| (index * 1000).to_ne_bytes()).collect();
    bytes[..2].copy_from_slice(&version.to_ne_bytes());
    bytes[8] = FLAG_LAST_OF_GROUP;
    bytes
}

#[test]
fn fields_stand_where_the_version_says() {
    let new = Record::parse(&bytes(16, 70)).unwrap();
    assert_eq!((new.cpu_wait_ns, new.cpu_run_ns, new.voluntary), (3_000, 9_000, 34_000));
    assert_eq!((new.reclaim_wait_ns, new.compact_wait_ns), (40_000, 45_000));
    assert_eq!((new.cpu_runs, new.cpu_real_ns, new.cpu_scaled_ns), (2_000, 8_000, 38_000));
    assert_eq!((new.io_waits, new.swap_waits, new.reclaim_waits), (4_000, 6_000, 39_000));
    assert_eq!((new.memory_time, new.virtual_time, new.write_cancelled), (23_000, 24_000, 33_000));
    assert_eq!((new.user_scaled_us, new.system_scaled_us), (36_000, 37_000));
    assert_eq!((new.last_of_group, new.pid), (Some(true), Some(46_000)));
    let old = Record::parse(&bytes(8, 41)).unwrap();
    assert_eq!((old.reclaim_wait_ns, old.compact_wait_ns, old.pid), (40_000, MISSING, None));
    assert_eq!(old.last_of_group, None);
}

#[test]
fn a_layout_nobody_knows_is_refused() {
    assert!(check(&bytes(16, 70)).is_ok());
    for (version, words) in [(15, 70), (7, 70), (16, 40), (16, 2)] {
        assert!(check(&bytes(version, words)).is_err(), "{version} {words}");
        assert_eq!(Record::parse(&bytes(version, words)), None);
    }
}

#[test]
fn a_wait_that_lasted_since_boot_is_not_believed() {
    assert_eq!(believed(5_000, 4_000, 20), 5_000);
    assert_eq!(believed(15_050_000_000_000, 15_049_000_000_000, 20_000_000), MISSING);
    assert_eq!(believed(15_050_000_000_000, MISSING, 1_000_000), MISSING);
    assert_eq!(believed(40_000_000_000, MISSING, 20_000_000), 40_000_000_000, "two threads");
}

/// As a 6.18 kernel sent it: a child that ran for five milliseconds and wrote nothing.
#[test]
fn a_captured_record_reads_as_it_should() {
    let words: [u64; 70] = {
        let mut words = [0; 70];
        words[..10].copy_from_slice(&[16, 33, 1, 24521, 0, 0, 0, 0, 4_000_000, 1_946_981]);
        words[10] = 1_935_960_427;
        words[16] = 15_255_723_838_948;
        words[17..27].copy_from_slice(&[1_794_722_183, 5300, 4000, 0, 16, 0, 0, 9156, 304, 2344]);
        (words[46], words[47]) = (3556, 5300);
        words
    };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let record = Record::parse(&bytes).unwrap();
    assert_eq!((record.tid, record.parent_pid, record.pid), (3556, 3552, Some(3556)));
    assert_eq!(&record.name[..5], b"kids\0");
    assert_eq!((record.elapsed_us, record.cpu_wait_ns, record.cpu_run_ns), (5300, 24_521, 1_946_981));
    assert_eq!((record.cpu_runs, record.cpu_real_ns, record.virtual_time), (1, 4_000_000, 9156));
    assert_eq!((record.resident_peak_kb, record.last_of_group), (304, Some(true)));
}

proptest! {
    #[test]
    fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        let parsed = Record::parse(&bytes);
        prop_assert_eq!(parsed.is_some(), check(&bytes).is_ok());
        prop_assert!(parsed.is_none() || bytes.len() >= 328);
    }
}
