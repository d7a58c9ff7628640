use hdf5_pure::File;
use met_wire::colmet::{Backend, LAYOUTS, Record, Value, records};

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
                    tables.add(&Record { timestamp, ..record.clone() }).unwrap();
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
    let naming = |path: &str| Naming { path: path.into(), level: 0 }.file(1_794_703_701);
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
        record.values[0] = Some(Value::Int(42));
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
