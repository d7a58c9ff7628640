use met_wire::batch::{Header, Piece, Subject};
use proptest::prelude::*;

use super::*;

const PLENTY: Limits = Limits { bytes_max: u64::MAX, age_max: Duration::MAX };

fn batch(mark: i64, series: bool) -> NodeBatch {
    // Bytes that do not shrink, so that sizes mean something.
    let next = |before: &u64| {
        let mut bits = before ^ (before << 13);
        bits ^= bits >> 7;
        Some(bits ^ (bits << 17))
    };
    let block = std::iter::successors(Some(1), next).take(6000).map(|bits| (bits >> 32) as u8).collect();
    let piece = Piece { subject: Subject::Device("GPU-a".to_owned()), table: "gpu".to_owned(), block };
    NodeBatch {
        header: Header { node: "n1".to_owned(), mark, ..Header::default() },
        records: vec![record()],
        interims: Vec::new(),
        pieces: if series { vec![piece] } else { Vec::new() },
    }
}

fn record() -> met_core::job::Record {
    serde_json::from_value(serde_json::json!({
        "key": {"cluster": null, "manager": "local", "id": "1", "incarnation": 1}, "name": "one", "user": null,
        "uid": null, "account": null, "command": [], "state": "finished", "manager_state": null, "exit_code": 0,
        "signal": null, "start_ns": 1, "end_ns": 2, "nodes": [], "node_memory_bytes": null, "local": null,
    }))
    .unwrap()
}

fn put(spool: &mut Spool, mark: i64) {
    spool.put(&mut batch(mark, true), 10).unwrap();
}

fn oldest(spool: &mut Spool) -> Option<(u64, NodeBatch)> {
    spool.oldest().unwrap().map(|oldest| (oldest.sequence, NodeBatch::unpack(&oldest.bytes).unwrap()))
}

#[test]
fn batches_come_out_in_order_until_they_are_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    assert!(oldest(&mut spool).is_none());
    put(&mut spool, 5);
    put(&mut spool, 6);
    assert_eq!(oldest(&mut spool).unwrap().0, 1);
    assert_eq!(oldest(&mut spool).unwrap().0, 1, "asking does not take it");
    spool.acknowledge(1).unwrap();
    let (sequence, second) = oldest(&mut spool).unwrap();
    assert_eq!((sequence, second.header.sequence, second.header.mark), (2, 2, 6));
    spool.acknowledge(2).unwrap();
    assert!(oldest(&mut spool).is_none());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the newest is kept to know how far we are");
}

#[test]
fn numbers_go_on_after_a_restart_whatever_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    put(&mut spool, 5);
    spool.acknowledge(1).unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    assert_eq!((spool.mark(), spool.batches()), (5, 0));
    put(&mut spool, 8);
    assert_eq!(oldest(&mut spool).unwrap().0, 2);
    drop(spool);
    fs::write(folder.path().join("0000000000000003-9-9.unfinished"), b"half").unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    assert_eq!((spool.mark(), spool.batches()), (8, 1));
}

#[test]
fn what_is_made_after_a_snapshot_was_restored_is_new_to_the_server() {
    let (folder, restored) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut spool = Spool::open(folder.path()).unwrap();
    put(&mut spool, 1);
    let path = &spool.waiting[0].path;
    fs::copy(path, restored.path().join(path.file_name().unwrap())).unwrap();
    put(&mut spool, 2);
    let seen = |batch: &NodeBatch| (batch.header.spool.clone(), batch.header.sequence);
    let first = seen(&oldest(&mut spool).unwrap().1);
    spool.acknowledge(1).unwrap();
    let second = seen(&oldest(&mut spool).unwrap().1);

    let mut spool = Spool::open(restored.path()).unwrap();
    assert_eq!(seen(&oldest(&mut spool).unwrap().1), first, "what was made before stays what it was");
    spool.acknowledge(1).unwrap();
    put(&mut spool, 2);
    let other = seen(&oldest(&mut spool).unwrap().1);
    assert_ne!(other, second);
    assert!(other.1 > first.1, "files stay in order");
}

#[test]
fn a_spool_that_was_lost_is_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let first = Spool::open(folder.path()).unwrap().id;
    let second = Spool::open(folder.path()).unwrap().id;
    assert_ne!(first, second);
}

#[test]
fn when_there_is_no_room_the_oldest_series_go_and_records_stay() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    for mark in 1..=4 {
        put(&mut spool, mark);
    }
    let all = spool.bytes();
    assert_eq!(all, 4 * 8192, "as it is on disk");
    let limits = Limits { bytes_max: all - 2 * 4096, ..PLENTY };
    spool.make_room(&limits, SystemTime::now()).unwrap();
    assert!(spool.bytes() <= limits.bytes_max);
    assert_eq!((spool.batches(), spool.dropped_samples()), (4, 20));
    let (_, first) = oldest(&mut spool).unwrap();
    assert_eq!((first.header.mark, first.pieces.len()), (1, 0));
    spool.acknowledge(2).unwrap();
    assert_eq!(oldest(&mut spool).unwrap().1.pieces.len(), 1, "the newer ones are whole");
    // What was cut is known to be cut after a restart, and counted in what is made next.
    let mut spool = Spool::open(folder.path()).unwrap();
    spool.make_room(&Limits { bytes_max: 0, ..PLENTY }, SystemTime::now()).unwrap();
    assert_eq!(spool.batches(), 2);
    let later = SystemTime::now() + Duration::from_secs(100);
    put(&mut spool, 9);
    spool.make_room(&Limits { age_max: Duration::from_secs(60), ..PLENTY }, later).unwrap();
    assert!(spool.waiting.iter().all(|waiting| !waiting.has_series()));
}

#[test]
fn a_refused_batch_is_quarantined_and_the_next_one_follows() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    put(&mut spool, 1);
    put(&mut spool, 2);
    let aside = spool.refuse(1).unwrap().unwrap();
    assert!(aside.exists());
    assert_eq!(oldest(&mut spool).unwrap().0, 2);
    assert_eq!(spool.refuse(1).unwrap(), None, "that is not the oldest");
    spool.refuse(2).unwrap();
    assert_eq!(Spool::open(folder.path()).unwrap().sequence, 2, "its number is not given again");
}

#[test]
fn a_batch_that_cannot_be_written_leaves_everything_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    put(&mut spool, 1);
    let moved = folder.path().with_extension("moved");
    fs::rename(folder.path(), &moved).unwrap();
    fs::write(folder.path(), "in the way").unwrap();
    assert!(spool.put(&mut batch(2, true), 10).is_err());
    assert_eq!((spool.mark(), spool.batches()), (1, 1));
    fs::remove_file(folder.path()).unwrap();
    fs::rename(&moved, folder.path()).unwrap();
    put(&mut spool, 2);
    assert_eq!((spool.mark(), spool.batches(), spool.sequence), (2, 2, 3), "no number is given twice");
}

#[test]
fn records_of_a_batch_that_is_gone_are_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    for mark in [3, 7, 9] {
        put(&mut spool, mark);
    }
    spool.acknowledge(1).unwrap();
    fs::remove_file(&spool.waiting[0].path).unwrap();
    assert_eq!(oldest(&mut spool).unwrap().0, 3, "the next one goes on");
    assert_eq!((spool.mark(), spool.dropped_samples()), (3, 10));
    put(&mut spool, 9);
    assert_eq!(spool.mark(), 9);
}

#[test]
fn a_batch_that_goes_while_the_next_one_is_made_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    put(&mut spool, 3);
    let _asked_after = spool.mark();
    fs::remove_file(&spool.waiting[0].path).unwrap();
    assert!(oldest(&mut spool).is_none());
    put(&mut spool, 5);
    assert_eq!(oldest(&mut spool).unwrap().1.header.mark, 0, "a restart knows it, too");
    assert_eq!(spool.mark(), 0);
}

#[test]
fn what_an_earlier_daemon_made_and_is_gone_is_sent_from_the_beginning() {
    let folder = tempfile::tempdir().unwrap();
    put(&mut Spool::open(folder.path()).unwrap(), 3);
    let mut spool = Spool::open(folder.path()).unwrap();
    put(&mut spool, 5);
    fs::remove_file(&spool.waiting[0].path).unwrap();
    assert_eq!(oldest(&mut spool).unwrap().0, 2);
    assert_eq!(spool.mark(), 0);
}

/// Neither can be read nor removed, even by root.
fn spoil(path: &Path) {
    fs::remove_file(path).unwrap();
    fs::create_dir(path).unwrap();
    fs::write(path.join("inside"), "").unwrap();
}

#[test]
fn an_unreadable_batch_is_quarantined() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    put(&mut spool, 3);
    put(&mut spool, 7);
    let spoiled = spool.waiting[0].path.clone();
    spoil(&spoiled);
    assert_eq!(oldest(&mut spool).unwrap().0, 2);
    assert!(!spoiled.exists() && spoiled.with_extension(REFUSED).exists());
    assert_eq!(spool.mark(), 0);
}

#[test]
fn a_folder_that_was_removed_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(&folder.path().join("spool")).unwrap();
    put(&mut spool, 3);
    fs::remove_dir_all(folder.path().join("spool")).unwrap();
    put(&mut spool, 7);
    assert_eq!(oldest(&mut spool).unwrap().0, 2);
    assert_eq!(spool.mark(), 0, "what was in it is sent again");
}

#[test]
fn what_is_not_durable_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let failing = |_: &Path| Err(io::Error::other("the disk is ill"));
    assert!(write_durably(folder.path(), "0000000000000001-9-9.batch", b"bytes", failing).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_old_one_that_stays_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    put(&mut spool, 3);
    spool.acknowledge(1).unwrap();
    spoil(spool.sent.as_ref().unwrap());
    put(&mut spool, 7);
    assert_eq!((spool.mark(), spool.batches()), (7, 1));
}

#[test]
fn a_file_that_cannot_be_cut_does_not_keep_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    for mark in 1..=3 {
        put(&mut spool, mark);
    }
    spoil(&spool.waiting[0].path.clone());
    assert!(spool.make_room(&Limits { bytes_max: 0, ..PLENTY }, SystemTime::now()).is_err());
    assert!(spool.waiting.iter().skip(1).all(|waiting| !waiting.has_series()));
}

#[test]
fn nothing_is_kept_of_a_batch_in_which_nothing_is_left_but_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    for mark in 1..=4 {
        let mut batch = batch(mark, mark != 2);
        batch.records.truncate(usize::from(mark == 3));
        spool.put(&mut batch, if mark == 2 { 0 } else { 10 }).unwrap();
    }
    // Batches of an earlier daemon are read.
    let mut spool = Spool::open(folder.path()).unwrap();
    spool.make_room(&Limits { bytes_max: 0, ..PLENTY }, SystemTime::now()).unwrap();
    let left: Vec<u64> = spool.waiting.iter().map(|waiting| waiting.sequence).collect();
    assert_eq!((left, spool.dropped_samples()), (vec![3, 4], 30));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    assert_eq!(Spool::open(folder.path()).unwrap().mark(), 4);
}

#[test]
fn series_are_not_given_up_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    let mut small = batch(1, true);
    small.pieces[0].block.truncate(100);
    spool.put(&mut small, 10).unwrap();
    put(&mut spool, 2);
    spool.make_room(&Limits { bytes_max: 2 * 4096, ..PLENTY }, SystemTime::now()).unwrap();
    assert_eq!((oldest(&mut spool).unwrap().1.pieces.len(), spool.dropped_samples()), (1, 10));
}

#[test]
fn the_quarantine_is_bounded_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    for mark in 1..=3 {
        put(&mut spool, mark);
    }
    spool.refuse(1).unwrap();
    spool.refuse(2).unwrap();
    let mut spool = Spool::open(folder.path()).unwrap();
    spool.make_room(&Limits { bytes_max: 5 * 4096, ..PLENTY }, SystemTime::now()).unwrap();
    assert_eq!(spool.refused.iter().map(Waiting::has_series).collect::<Vec<_>>(), [false, true]);
    assert!(spool.waiting[0].has_series(), "queued batches come after quarantined ones");

    let old = |number: usize| folder.path().join(format!("{number:016}-0-0.refused"));
    (10..10 + REFUSED_MAX).for_each(|number| fs::write(old(number), "x").unwrap());
    let mut spool = Spool::open(folder.path()).unwrap();
    spool.make_room(&PLENTY, SystemTime::now()).unwrap();
    assert_eq!((spool.refused.len(), spool.refused_removed, spool.dropped_samples()), (REFUSED_MAX, 2, 10));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), REFUSED_MAX + 1);
}

/// The sums by a walk over all that waits.
fn walked(spool: &Spool, besides: u64) -> met_core::node_health::Spool {
    let left = || spool.waiting.iter().filter(|waiting| waiting.sequence != besides);
    met_core::node_health::Spool {
        batches: left().count() as u64,
        bytes: left().map(Waiting::disk_bytes).sum(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// 0 and 1: make one, 2: acknowledge, 3: refuse, 4: divide, 5: restart, 6: no room, 7: one is gone.
    #[test]
    fn what_waits_is_counted_whatever_happens(steps in proptest::collection::vec(0..8_u8, 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(folder.path()).unwrap();
        for (mark, step) in (1..).zip(steps) {
            let first = spool.waiting.front().map_or(0, |oldest| oldest.sequence);
            match step {
                0 | 1 => put(&mut spool, mark),
                2 => spool.acknowledge(first).unwrap(),
                3 => drop(spool.refuse(first).unwrap()),
                4 => drop(spool.divide(first, vec![batch(mark, true), batch(mark, false)]).unwrap()),
                5 => spool = Spool::open(folder.path()).unwrap(),
                6 => spool.make_room(&Limits { bytes_max: 9000, ..PLENTY }, SystemTime::now()).unwrap(),
                _ => {
                    if let Some(oldest) = spool.waiting.front() {
                        fs::remove_file(&oldest.path).unwrap();
                    }
                    oldest(&mut spool);
                }
            }
            prop_assert_eq!(spool.bytes(), walked(&spool, 0).bytes);
            for besides in 0..=spool.sequence + 1 {
                prop_assert_eq!(spool.behind(besides), walked(&spool, besides));
            }
        }
    }

    /// 0: make one, 1: acknowledge, 2: restart, 3: no room.
    #[test]
    fn every_mark_is_sent_once_and_in_order(steps in proptest::collection::vec(0..4_u8, 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(folder.path()).unwrap();
        let (mut made, mut sent) = (0, Vec::new());
        for step in steps.into_iter().chain([1; 40]) {
            match step {
                0 => {
                    made += 1;
                    put(&mut spool, made);
                }
                1 => if let Some((sequence, batch)) = oldest(&mut spool) {
                    prop_assert_eq!(sequence, batch.header.sequence);
                    sent.push(batch.header.mark);
                    spool.acknowledge(sequence).unwrap();
                },
                2 => spool = Spool::open(folder.path()).unwrap(),
                _ => spool.make_room(&Limits { bytes_max: 9000, ..PLENTY }, SystemTime::now()).unwrap(),
            }
            prop_assert_eq!(spool.mark(), made);
        }
        prop_assert_eq!(sent, (1..=made).collect::<Vec<_>>());
    }
}
