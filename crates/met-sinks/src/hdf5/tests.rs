use std::fs::OpenOptions;

use hdf5_pure::File;
use met_wire::colmet::{Backend, LAYOUTS, Record, Value, records};
use met_wire::hdf5::{
    ChildOfGroup, GROUP_CHILDREN_MAX, GROUP_NODE_BYTES, chunk_entry_at, group_node, read_chunk_node,
    read_group, read_group_node, read_superblock,
};

use super::group::Group;
use super::*;

const CAPTURED: &[u8] = include_bytes!("../../../../fixtures/colmet/message.bin");

fn rows(path: &Path, table: &str) -> (u64, Vec<u8>) {
    let file = File::open(path).unwrap();
    let dataset = file.dataset(table).unwrap();
    (dataset.shape().unwrap()[0], dataset.read_raw().unwrap())
}

/// `timestamp` comes before `virtmem`, `write_bytes`, `write_char` and `write_syscalls`.
fn time_of(row: &[u8]) -> u64 {
    let at = row.len() - 5 * 8;
    u64::from_le_bytes(row[at..at + 8].try_into().unwrap())
}

#[test]
fn rows_are_in_the_file_when_they_were_flushed_and_a_file_is_continued() {
    for level in [0, 9] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/x.hdf5");
        let all: Vec<Record> = records(CAPTURED).map(Result::unwrap).collect();
        for round in 0..3 {
            let mut tables = Tables::open(&path, level).unwrap();
            for second in 0..50 {
                for record in &all {
                    let timestamp = record.timestamp + round * 50 + second;
                    let mut next = record.clone();
                    next.timestamp = timestamp;
                    tables.add(&next).unwrap();
                }
            }
            tables.flush(false).unwrap();
            // Another process reads it, though it is open.
            let (count, bytes) = rows(&path, "job_1234/taskstats_default");
            assert_eq!(count, (round + 1) * 50);
            let row_bytes = bytes.len() / count as usize;
            let times: Vec<u64> = bytes.chunks(row_bytes).map(time_of).collect();
            assert_eq!(times, (0..count).map(|second| all[0].timestamp + second).collect::<Vec<_>>());
            assert_eq!(rows(&path, "job_0/procstats_default").0, count);
            assert_eq!(rows(&path, "job_0/temperaturestats_default").0, count);
        }
    }
}

#[test]
fn a_file_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    let mut tables = Tables::open(&path, 0).unwrap();
    let refused = Tables::open(&path, 0).err().map(|error| error.to_string());
    assert_eq!(refused.as_deref(), Some("another process writes it"));
    tables.release();
    assert!(Tables::open(&path, 0).is_ok());
}

#[test]
fn files_are_named_as_colmet_names_them() {
    let naming = |path: &str| Naming { path: path.into(), level: 0, past_cache: false }.file(1_794_703_701);
    assert_eq!(naming("/a/b.hdf5"), Path::new("/a/b.hdf5"));
    assert_eq!(naming("/a/b"), Path::new("/a/b.1794703701.hdf5"));
    assert_eq!(naming("/a/b.h5"), Path::new("/a/b.h5.1794703701.hdf5"));
}

#[test]
fn every_kind_of_record_has_a_table_and_what_is_unknown_is_minus_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    let mut tables = Tables::open(&path, 1).unwrap();
    for layout in LAYOUTS {
        let mut record = Record::new(layout.backend, "n1", 5, 7);
        record.set(0, Some(Value::Int(42)));
        tables.add(&record).unwrap();
    }
    tables.flush(true).unwrap();
    let (count, bytes) = rows(&path, "job_5/jobprocstats_default");
    let column = |index: usize| i64::from_le_bytes(bytes[index * 8..][..8].try_into().unwrap());
    // RssShmem, VmRSS, VmSize, cancelled_write_bytes come first: capitals sort before small letters.
    assert_eq!((count, column(0), column(3)), (1, -1, -1));
    for layout in LAYOUTS {
        assert_eq!(rows(&path, &format!("job_5/{}", layout.name)).0, 1, "{}", layout.name);
    }
    assert_eq!(Backend::Nvidia.name(), "nvidiastats_default");
}

fn taskstats(job: u64, second: u64) -> Record {
    let mut record = Record::new(Backend::Taskstats, "n1", job, 1_700_000_000 + second);
    record.set(0, Some(Value::Int(second as i64)));
    record
}

/// The times of a table's rows.
fn times(path: &Path, table: &str) -> Vec<u64> {
    let (count, bytes) = rows(path, table);
    let row_bytes = bytes.len().checked_div(count as usize).unwrap_or(1);
    bytes.chunks(row_bytes).map(|row| time_of(row) - 1_700_000_000).collect()
}

#[test]
fn thousands_of_jobs_are_found_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    // Neither their numbers nor their names are in order.
    let jobs: Vec<u64> = (0..1500).map(|index| index * 7919 % 10_007 + 1).collect();
    for part in jobs.chunks(500) {
        let mut tables = Tables::open(&path, 0).unwrap();
        part.iter().for_each(|&job| tables.add(&taskstats(job, job)).unwrap());
        tables.flush(false).unwrap();
    }
    let file = File::open(&path).unwrap();
    let mut names = file.root().groups().unwrap();
    let mut expected: Vec<String> = jobs.iter().map(|job| format!("job_{job}")).collect();
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
    for job in jobs.iter().step_by(97) {
        assert_eq!(times(&path, &format!("job_{job}/taskstats_default")), [*job]);
    }
}

#[test]
fn a_table_has_more_chunks_than_fit_into_a_node() {
    // So many that nodes of nodes are full, too: 64 · 64 chunks of 21 rows, 64 of 85 rows.
    for (level, count) in [(0, 64 * 64 * 21 + 100), (1, 64 * 85 + 100)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.hdf5");
        let mut tables = Tables::open(&path, level).unwrap();
        for second in 0..count {
            tables.add(&taskstats(7, second)).unwrap();
            if second % 4000 == 0 {
                tables.flush(false).unwrap();
            }
        }
        tables.flush(true).unwrap();
        assert_eq!(times(&path, "job_7/taskstats_default"), (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn a_flush_after_every_row_does_not_make_a_file_long() {
    for (level, most) in [(0, 120 << 10), (9, 60 << 10)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.hdf5");
        let mut tables = Tables::open(&path, level).unwrap();
        for second in 0..100 {
            tables.add(&taskstats(7, second)).unwrap();
            tables.flush(false).unwrap();
            assert_eq!(times(&path, "job_7/taskstats_default"), (0..=second).collect::<Vec<_>>());
        }
        drop(tables);
        let length = std::fs::metadata(&path).unwrap().len();
        assert!(length < most, "level {level}: {length} bytes for 100 rows");
        assert_eq!(read_superblock(&std::fs::read(&path).unwrap()).unwrap().1, length);
    }
}

#[test]
fn more_compressed_tables_than_fit_into_memory_do_not_make_a_file_long() {
    const JOBS: u64 = 12;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    let mut tables = Tables::open(&path, 3).unwrap();
    let mut before = 0;
    for second in 0..70 {
        (1..=JOBS).for_each(|job| tables.add(&taskstats(job, second)).unwrap());
        tables.flush(false).unwrap();
        if second == 49 {
            before = tables.disk.end();
        }
    }
    for job in 1..=JOBS {
        let found = times(&path, &format!("job_{job}/taskstats_default"));
        assert_eq!(found, (0..70).collect::<Vec<_>>());
    }
    let grown = (tables.disk.end() - before) / JOBS;
    assert!(grown < 2000, "{grown} bytes a table for 20 rows");
}

/// A process can be killed between any two writes: its file is one of these.
#[test]
fn a_file_is_whole_after_any_write_and_is_continued() {
    for level in [0, 6] {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("x.hdf5"), folder.path().join("copy.hdf5"));
        let mut tables = Tables::open(&path, level).unwrap();
        let mut before = 0;
        for second in [1, 2, 60, 200, 202] {
            tables.disk.record();
            (before..second).for_each(|second| tables.add(&taskstats(7, second)).unwrap());
            tables.add(&taskstats(100 + second, 0)).unwrap();
            tables.flush(false).unwrap();
            for killed in tables.disk.recorded() {
                std::fs::write(&copy, killed.bytes).unwrap();
                OpenOptions::new().write(true).open(&copy).unwrap().set_len(killed.length).unwrap();
                let found = match File::open(&copy).unwrap().dataset("job_7/taskstats_default") {
                    Ok(_) => times(&copy, "job_7/taskstats_default"),
                    Err(_) => Vec::new(),
                };
                assert!(
                    (before..=second).contains(&(found.len() as u64)),
                    "{before} to {second}: {}",
                    found.len()
                );
                assert_eq!(found, (0..found.len() as u64).collect::<Vec<_>>());
                let mut tables = Tables::open(&copy, level).unwrap();
                (found.len() as u64..210).for_each(|second| tables.add(&taskstats(7, second)).unwrap());
                tables.flush(false).unwrap();
                assert_eq!(times(&copy, "job_7/taskstats_default"), (0..210).collect::<Vec<_>>());
            }
            before = second;
        }
    }
}

#[test]
fn other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    drop(Tables::open(&path, 0).unwrap());
    let own = std::fs::read(&path).unwrap();
    // h5py begins files of the same version, whose names have a list of free space.
    let heap_at = own.windows(5).position(|bytes| bytes == b"HEAP\0").unwrap();
    let mut foreign = own.clone();
    foreign[heap_at + 16..][..8].copy_from_slice(&8_u64.to_le_bytes());
    for bytes in [&b""[..], b"\x89HDF\r\n\x1a\n", &[0; 200], &own[..own.len() - 1], &foreign] {
        std::fs::write(&path, bytes).unwrap();
        let refused = Tables::open(&path, 0).err().map(|error| error.to_string());
        assert_eq!(
            refused.as_deref(),
            Some("not an HDF5 file that this version can continue; move it away, or choose another path")
        );
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn links_beside_a_file_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("x.hdf5"), folder.path().join("other"));
    let link = |name: &str| std::os::unix::fs::symlink(&other, folder.path().join(name)).unwrap();
    std::fs::write(&other, "other").unwrap();
    link("x.hdf5.part");
    drop(Tables::open(&path, 0).unwrap());
    assert!(path.symlink_metadata().unwrap().is_file());
    assert_eq!(std::fs::read(&other).unwrap(), b"other");

    std::fs::remove_file(folder.path().join("x.hdf5.lock")).unwrap();
    link("x.hdf5.lock");
    assert!(Tables::open(&path, 0).is_err());

    std::fs::remove_file(&other).unwrap();
    link("y.hdf5");
    assert!(Tables::open(&folder.path().join("y.hdf5"), 0).is_err());
    assert!(folder.path().join("y.hdf5").is_symlink() && !other.exists());
}

fn check_refused(damage: impl Fn(&mut [u8], usize), expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    let mut tables = Tables::open(&path, 6).unwrap();
    for job in [7, 8] {
        tables.add(&taskstats(job, 0)).unwrap();
        tables.flush(false).unwrap();
    }
    drop(tables);
    // The first node of chunks is that of job 7.
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(5).position(|bytes| bytes == b"TREE\x01").unwrap();
    damage(&mut bytes, at);
    std::fs::write(&path, bytes).unwrap();

    let mut tables = Tables::open(&path, 6).unwrap();
    for second in 1..3 {
        [8, 7, 9].iter().for_each(|&job| tables.add(&taskstats(job, second)).unwrap());
    }
    tables.flush(false).unwrap();
    let (count, reason) = tables.refused();
    let expected = format!("{}: job_7/taskstats_default: the file is damaged: {expected}", path.display());
    assert_eq!((count, reason), (2, Some(expected)));
    assert_eq!(tables.refused(), (0, None));
    assert_eq!(times(&path, "job_8/taskstats_default"), [0, 1, 2]);
    assert_eq!(times(&path, "job_9/taskstats_default"), [1, 2]);
}

#[test]
fn rows_that_cannot_be_written_still_wait() {
    for level in [0, 6] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.hdf5");
        let mut tables = Tables::open(&path, level).unwrap();
        (0..5).for_each(|second| tables.add(&taskstats(7, second)).unwrap());
        tables.flush(false).unwrap();
        tables.disk.refuse_writes(&path);
        tables.add(&taskstats(7, 5)).unwrap();
        assert!(tables.flush(false).is_err());
        tables.add(&taskstats(7, 6)).unwrap();
        // A new table cannot be written; this is no reason to drop its record alone.
        assert!(tables.add(&taskstats(8, 6)).is_err());
        assert!(tables.has_rows() && tables.refused() == (0, None));
        assert_eq!(tables.waiting_rows(), 3);
        assert_eq!(times(&path, "job_7/taskstats_default"), [0, 1, 2, 3, 4]);
        // They are written when that can be done, and so is what came in between.
        tables.break_off();
        (7..9).for_each(|second| tables.add(&taskstats(7, second)).unwrap());
        tables.add(&taskstats(9, 8)).unwrap();
        assert_eq!(tables.waiting_rows(), 6);
        tables.reopen().unwrap();
        tables.flush(false).unwrap();
        assert_eq!(times(&path, "job_7/taskstats_default"), (0..9).collect::<Vec<_>>());
        assert_eq!(times(&path, "job_8/taskstats_default"), [6]);
        assert_eq!(times(&path, "job_9/taskstats_default"), [8]);
        assert!(!tables.has_rows() && tables.refused() == (0, None));
    }
}

#[test]
fn what_an_attempt_wrote_before_it_failed_is_not_written_again() {
    let rows = super::unsaved::Rows { bytes: b"aabbccdd".to_vec(), before: Some(5) };
    assert_eq!(rows.behind(5, 2), b"aabbccdd");
    assert_eq!(rows.behind(7, 2), b"ccdd");
    assert_eq!(rows.behind(20, 2), b"");
    // Another file.
    assert_eq!(rows.behind(0, 2), b"aabbccdd");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    let mut tables = Tables::open(&path, 0).unwrap();
    // One table is written, another one is not: which comes first is chance.
    (1..5).for_each(|job| tables.add(&taskstats(job, 0)).unwrap());
    tables.flush(false).unwrap();
    for job in 1..5 {
        (1..5).for_each(|second| tables.add(&taskstats(job, second)).unwrap());
    }
    tables.disk.refuse_writes_after(&path, 3);
    assert!(tables.flush(false).is_err());
    tables.break_off();
    assert!((1..16).contains(&tables.waiting_rows()), "{}", tables.waiting_rows());
    tables.reopen().unwrap();
    tables.flush(false).unwrap();
    for job in 1..5 {
        assert_eq!(times(&path, &format!("job_{job}/taskstats_default")), [0, 1, 2, 3, 4]);
    }
}

fn sink(path: &Path) -> Hdf5 {
    let mut options = Options::default();
    options.set("path", vec![path.to_string_lossy().into_owned()]);
    let naming = Naming { path: path.to_owned(), level: 0, past_cache: true };
    Hdf5 {
        gatherer: Gatherer::new(Chosen::of(&options, BACKENDS)),
        file: naming.open().unwrap(),
        naming,
        syncs: true,
        flush_every: Duration::from_secs(3600),
        flush_at: Instant::now() + Duration::from_secs(3600),
        requests: reopen::requests(),
        rotates: false,
        failed: None,
    }
}

#[test]
fn a_sink_keeps_rows_while_the_disk_is_full_and_counts_those_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    let mut sink = sink(&path);
    let event = |times: std::ops::Range<u64>| {
        Event::Colmet(std::sync::Arc::new(times.map(|second| taskstats(7, second)).collect()))
    };
    sink.take(&event(0..10)).unwrap();
    sink.file.disk.refuse_writes(&path);
    sink.flush();
    let report = sink.report().unwrap();
    let failure = report.failure.unwrap();
    assert!(failure.contains("cannot write") && failure.ends_with("(10 rows wait)"), "{failure}");
    assert!(report.is_retrying && report.dropped == 0 && report.wake.is_some());
    // More than may wait.
    sink.take(&event(10..3000)).unwrap();
    let (report, waiting) = (sink.report().unwrap(), sink.file.waiting_rows() as u64);
    assert!(report.is_retrying && report.failure.is_none());
    assert_eq!(report.dropped + waiting, 3000);
    assert!((1000..2000).contains(&waiting), "{waiting} rows wait");
    sink.flush();
    let report = sink.report().unwrap();
    assert!(!report.is_retrying && report.failure.is_none() && report.dropped == 0);
    assert_eq!(times(&path, "job_7/taskstats_default"), (0..waiting).collect::<Vec<_>>());
}

#[test]
fn a_file_that_was_not_moved_away_goes_on_after_a_request_for_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    let mut sink = sink(&path);
    for second in 0..20 {
        sink.take(&Event::Colmet(std::sync::Arc::new(vec![taskstats(second, second)]))).unwrap();
        // As after a SIGHUP.
        sink.requests = sink.requests.wrapping_sub(1);
    }
    assert!(sink.report().unwrap().failure.is_none());
    Box::new(sink).close();
    (0..20).for_each(|second| {
        assert_eq!(times(&path, &format!("job_{second}/taskstats_default")), [second]);
    });
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(read_superblock(&bytes).unwrap().1, bytes.len() as u64);
}

#[test]
fn another_file_that_cannot_be_opened_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut sink, blocked) = (sink(&folder.path().join("x")), folder.path().join("blocked"));
    let first = sink.file.path.clone();
    let mut second = 0;
    let mut take = |sink: &mut Hdf5| {
        sink.take(&Event::Colmet(std::sync::Arc::new(vec![taskstats(7, second)]))).unwrap();
        second += 1;
    };
    take(&mut sink);
    // No folder can be created there.
    std::fs::write(&blocked, "").unwrap();
    sink.naming.path = blocked.join("x");
    // As after a SIGHUP.
    sink.requests = sink.requests.wrapping_sub(1);
    for pause_s in [1, 2, 4] {
        take(&mut sink);
        let report = sink.report().unwrap();
        let failure = report.failure.unwrap();
        assert!(report.is_retrying && failure.contains("blocked"), "{failure}");
        let failed = sink.failed.as_mut().unwrap();
        assert_eq!(failed.pause, Duration::from_secs(pause_s));
        // Not before the pause is over.
        failed.at = Instant::now() + Duration::from_secs(3600);
        take(&mut sink);
        assert!(sink.report().unwrap().failure.is_none());
        sink.failed.as_mut().unwrap().at = Instant::now();
    }
    // What waited was written to the old file at each attempt.
    assert_eq!(times(&first, "job_7/taskstats_default"), (0..5).collect::<Vec<_>>());
    std::fs::remove_file(&blocked).unwrap();
    take(&mut sink);
    assert!(!sink.report().unwrap().is_retrying && sink.file.path.starts_with(&blocked));
    let next = sink.file.path.clone();
    take(&mut sink);
    Box::new(sink).close();
    assert_eq!(times(&first, "job_7/taskstats_default"), (0..7).collect::<Vec<_>>());
    assert_eq!(times(&next, "job_7/taskstats_default"), [7, 8]);
}

#[test]
fn rows_past_the_page_cache_are_the_same() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let paths = ["cached.hdf5", "direct.hdf5"].map(|name| folder.path().join(name));
    let past_cache = paths.each_ref().map(|path| {
        let mut tables = Tables::open(path, 0).unwrap();
        if path.ends_with("direct.hdf5") {
            tables.write_past_cache();
        }
        for second in 0..700 {
            let mut record = Record::new(Backend::Procstats, &format!("n{}", second % 13), 0, second);
            record.set_all(|_, _| Some(Value::Int(second as i64 * 7919)));
            record.involved_jobs = (0..second % 40).collect();
            tables.add(&record).unwrap();
            (0..4).for_each(|part| tables.add(&taskstats(7, 4 * second + part)).unwrap());
            if second % 250 == 100 {
                tables.flush(true).unwrap();
            }
        }
        tables.flush(true).unwrap();
        tables.disk.past_cache_bytes()
    });
    match past_cache {
        [None, Some(bytes)] => assert!(bytes > 1 << 20, "{bytes} bytes went past the page cache"),
        [None, None] => return met_core::skipped::skipped("/var/tmp has no writes past the page cache"),
        [Some(_), _] => panic!("past the page cache without a request"),
    }
    let found = |name: &str| paths.each_ref().map(|path| rows(path, name));
    let [cached, direct] = found("job_0/procstats_default");
    assert!(cached.0 == 700 && cached == direct);
    let [cached, direct] = found("job_7/taskstats_default");
    assert!(cached.0 == 2800 && cached == direct);
}

/// A reader asks for the length of the file, reads its end from the superblock, and then follows addresses.
#[test]
fn a_reader_that_opened_the_file_finds_tables_that_are_added_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    let mut tables = Tables::open(&path, 0).unwrap();
    let look = || {
        let length = std::fs::metadata(&path).unwrap().len();
        let mut superblock = [0; 96];
        std::io::Read::read_exact(&mut std::fs::File::open(&path).unwrap(), &mut superblock).unwrap();
        (length, read_superblock(&superblock).unwrap().1)
    };
    let (mut opened, mut looked, mut failed) = (Vec::new(), 0, 0);
    for job in 1..=500 {
        opened.push(look());
        tables.add(&taskstats(job, 0)).unwrap();
        tables.flush(false).unwrap();
        let end_now = look().1;
        for &(length, end) in opened.iter().rev().take(10) {
            looked += 1;
            // An end behind the length, and an address behind the end, are errors to it.
            failed += u32::from(end_now > length || tables.disk.end() > end);
        }
    }
    assert!(failed * 50 < looked, "{failed} of {looked} readers fail");
}

#[test]
fn a_damaged_table_refuses_its_records_alone() {
    let stream = |bytes: &mut [u8], node: usize| {
        let at = read_chunk_node(&bytes[node..]).unwrap().1[0].at as usize;
        bytes[at..at + 20].fill(0xff);
    };
    check_refused(stream, "a chunk cannot be decompressed");
    let length = |bytes: &mut [u8], node: usize| {
        bytes[node + chunk_entry_at(0) as usize..][..4].fill(0xff);
    };
    check_refused(length, "a chunk is too long");
}

#[test]
fn a_group_that_leads_to_the_same_names_again_and_again_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    let mut tables = Tables::open(&path, 0).unwrap();
    (1..9).for_each(|job| tables.add(&taskstats(job, 0)).unwrap());
    tables.flush(false).unwrap();
    drop(tables);
    let mut bytes = std::fs::read(&path).unwrap();
    let root = read_superblock(&bytes).unwrap().0 as usize;
    let tree = read_group(&bytes[root..]).unwrap().tree as usize;
    let leaf = read_group_node(&bytes[tree..]).unwrap().1[0];
    let children = [ChildOfGroup { at: leaf, last_name: 8 }; GROUP_CHILDREN_MAX];
    bytes[tree..][..GROUP_NODE_BYTES].copy_from_slice(&group_node(0, 0, &children));
    std::fs::write(&path, bytes).unwrap();
    let refused = Tables::open(&path, 0).err().map(|error| error.root_cause().to_string());
    assert_eq!(refused.as_deref(), Some("the file is damaged: a group cannot be read"));
}

#[test]
fn a_group_takes_no_more_names_than_can_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hdf5");
    let mut tables = Tables::open(&path, 0).unwrap();
    let mut group = Group::create(&mut tables.disk, &[]).unwrap();
    // With NUL 4 MiB; the empty name takes some, too.
    let name = |index: u32| format!("{index:03}{}", "x".repeat((4 << 20) - 4));
    (0..15).for_each(|index| group.insert(&mut tables.disk, &name(index), 96).unwrap());
    assert!(!group.has_room(&name(15)) && group.insert(&mut tables.disk, &name(15), 96).is_err());
    let again = Group::open(&tables.disk, group.header).unwrap();
    assert_eq!((again.find(&name(14)), again.find(&name(15))), (Some(96), None));
}
