use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use met_core::job::{GpuUse, QualityKind, Summary};
use met_core::job_table::CPU;
use met_core::{MISSING, gpu};
use tempfile::TempDir;

use super::*;
use crate::samples::{MIDNIGHT_S, SECOND_NS, course, finished, running};
use crate::{Filter, Reader};

const DAY_S: i64 = 86_400;

fn state() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn ids(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.key.id.as_str()).collect()
}

fn same(left: &Course, right: &Course) -> bool {
    left.times_ms == right.times_ms && left.columns == right.columns
}

#[test]
fn a_change_that_cannot_be_read_hides_none_behind_it() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put_all(&[finished(1, MIDNIGHT_S), finished(2, MIDNIGHT_S), finished(3, MIDNIGHT_S)]).unwrap();
    let database = Connection::open(state.path().join(CATALOGUE_FILE)).unwrap();
    database.execute("UPDATE job SET detail = '{' WHERE id <> '3'", []).unwrap();
    assert_eq!(writer.changed_after(0, 1).unwrap(), [(3, finished(3, MIDNIGHT_S))]);
}

#[test]
fn samples_grow_blocks_across_days_and_appends() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let record = running(1, MIDNIGHT_S - 1000);
    writer.put(&record).unwrap();
    let whole = course((MIDNIGHT_S - 1000) * 1000, 1000, 5000);
    let part = |begin: usize, end: usize| Course {
        table: whole.table,
        times_ms: whole.times_ms[begin..end].to_vec(),
        columns: whole.columns.iter().map(|cells| cells[begin..end].to_vec()).collect(),
    };
    for begin in (0..5000).step_by(77) {
        // Each piece overlaps the one before: what is there already is skipped.
        writer.append_course(&record.key, &part(begin.max(5) - 5, 5000.min(begin + 77))).unwrap();
    }
    assert!(same(&writer.course(&record.key).unwrap(), &whole));
    let reader = Reader::open(state.path()).unwrap();
    assert!(same(&reader.course(&record.key).unwrap(), &whole));
    let between = reader.course_between(&record.key, whole.times_ms[900], whole.times_ms[1100]).unwrap();
    assert!(same(&between, &part(900, 1101)));
    assert_eq!(series::days(state.path()).unwrap().len(), 2);
    let path = series::path_of(state.path(), day::of_ms(MIDNIGHT_S * 1000));
    let blocks: Vec<i64> = Connection::open(path)
        .unwrap()
        .prepare("SELECT samples FROM block ORDER BY first_ms")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(blocks, [1441, 1441, 1118]);
}

#[test]
fn old_jobs_and_days_go_and_live_jobs_stay() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    for day in 0..5 {
        let start_s = MIDNIGHT_S + day * DAY_S;
        let record = finished(day as u64 + 1, start_s);
        writer.put(&record).unwrap();
        writer.append_course(&record.key, &course(start_s * 1000, 10_000, 100)).unwrap();
    }
    writer.put(&running(9, MIDNIGHT_S)).unwrap();
    let now_ns = (MIDNIGHT_S + 4 * DAY_S + 3600) * SECOND_NS;
    let by_age = Retention { max_age_ns: Some(2 * DAY_S * SECOND_NS), max_bytes: None };
    assert_eq!(writer.retain(&by_age, now_ns).unwrap(), Retained { jobs_removed: 3, days_removed: 2 });
    assert_eq!(ids(&writer.jobs(&Filter::default()).unwrap()), ["5", "4", "9"]);
    let by_size = Retention { max_age_ns: None, max_bytes: Some(1) };
    assert_eq!(writer.retain(&by_size, now_ns).unwrap(), Retained { jobs_removed: 2, days_removed: 2 });
    assert_eq!(ids(&writer.jobs(&Filter::default()).unwrap()), ["9"]);
    assert_eq!(writer.retain(&Retention::default(), now_ns).unwrap(), Retained::default());
}

#[test]
fn there_is_one_writer() {
    let state = state();
    let first = Writer::open(state.path()).unwrap();
    assert!(matches!(Writer::open(state.path()), Err(StoreError::Locked { .. })));
    drop(first);
    Writer::open(state.path()).unwrap();
}

#[test]
fn every_file_is_private() {
    let parent = state();
    let state = parent.path().join("met");
    let mut writer = Writer::open(&state).unwrap();
    writer.put(&finished(1, MIDNIGHT_S)).unwrap();
    writer.append_course(&finished(1, MIDNIGHT_S).key, &course(MIDNIGHT_S * 1000, 1000, 10)).unwrap();
    let mut folders = vec![state];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
                files += 1;
            }
        }
    }
    assert!(files >= 7, "two databases with their logs, and the lock");
}

/// Damages a closed store and says what the next writer finds.
fn after_damage(damage: impl FnOnce(&Path)) -> (TempDir, Writer) {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    for id in 1..=200 {
        writer.put(&finished(id, MIDNIGHT_S)).unwrap();
    }
    drop(writer);
    damage(&state.path().join(CATALOGUE_FILE));
    let writer = Writer::open(state.path()).unwrap();
    (state, writer)
}

#[test]
fn a_damaged_database_is_moved_aside_and_a_new_one_begins() {
    let overwrite =
        |path: &Path, bytes: &[u8], at: u64| inbox::create(path).unwrap().write_all_at(bytes, at).unwrap();
    let damages: [&dyn Fn(&Path); 4] = [
        &|path| fs::write(path, b"this is no database, and it is longer than a header needs to be").unwrap(),
        &|path| overwrite(path, &[0xa5; 4096], 0),
        &|path| {
            // In the middle of a file that opens well: found because somebody met it before.
            (4..12).for_each(|page| overwrite(path, &[0xa5; 4096], page * 4096));
            inbox::create(&beside(path, SUSPECT)).unwrap();
        },
        &|path| {
            inbox::create(path).unwrap().set_len(20_000).unwrap();
            inbox::create(&beside(path, SUSPECT)).unwrap();
        },
    ];
    for damage in damages {
        let (_state, mut writer) = after_damage(damage);
        let aside = writer.moved_aside.take().unwrap();
        assert!(aside.to_str().unwrap().contains("store.db.damaged-") && aside.exists());
        assert!(writer.jobs(&Filter::default()).unwrap().is_empty());
        writer.put(&finished(1, MIDNIGHT_S)).unwrap();
        assert_eq!(writer.jobs(&Filter::default()).unwrap().len(), 1);
    }
    let (_state, writer) = after_damage(|_| {});
    assert_eq!(writer.moved_aside, None);
    assert_eq!(writer.jobs(&Filter::default()).unwrap().len(), 200);
}

#[test]
fn damage_met_while_writing_is_found_at_the_next_open() {
    let (state, mut writer) = after_damage(|path| {
        let file = inbox::create(path).unwrap();
        (1..file.metadata().unwrap().len() / 4096)
            .for_each(|page| file.write_all_at(&[0xa5; 4096], page * 4096).unwrap());
    });
    assert!(matches!(writer.put(&finished(1, MIDNIGHT_S)), Err(StoreError::Damaged { .. })));
    drop(writer);
    let mut writer = Writer::open(state.path()).unwrap();
    assert!(writer.moved_aside.is_some());
    writer.put(&finished(1, MIDNIGHT_S)).unwrap();
}

#[test]
fn a_damaged_day_costs_that_day_only() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let record = running(1, MIDNIGHT_S - 100);
    writer.put(&record).unwrap();
    writer.append_course(&record.key, &course((MIDNIGHT_S - 100) * 1000, 1000, 200)).unwrap();
    drop(writer);
    let path = series::path_of(state.path(), day::of_ms(MIDNIGHT_S * 1000));
    fs::write(&path, b"this is no database, and it is longer than a header needs to be").unwrap();
    assert_eq!(Reader::open(state.path()).unwrap().course(&record.key).unwrap().len(), 100);
    let mut writer = Writer::open(state.path()).unwrap();
    writer.append_course(&record.key, &course(MIDNIGHT_S * 1000 + 500_000, 1000, 7)).unwrap();
    assert!(writer.moved_aside.is_some());
    assert_eq!(writer.course(&record.key).unwrap().len(), 107);
}

#[test]
fn a_store_of_a_newer_version_is_left_untouched() {
    let state = state();
    drop(Writer::open(state.path()).unwrap());
    let path = state.path().join(CATALOGUE_FILE);
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(&path).unwrap();
    let Err(error) = Writer::open(state.path()) else { panic!("it was opened") };
    assert!(error.to_string().contains("newer version of met (schema 99"), "{error}");
    assert!(matches!(error, StoreError::Newer { found: 99, .. }));
    assert!(matches!(Reader::open(state.path()), Err(StoreError::Newer { .. })));
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn readers_work_while_a_writer_writes() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let (mut reads, mut seen) = (0, 0);
            while !done.load(Ordering::Relaxed) {
                let now = Reader::open(state.path()).unwrap().jobs(&Filter::default()).unwrap().len();
                assert!(now >= seen, "a job vanished");
                (reads, seen) = (reads + 1, now);
            }
            reads
        });
        for id in 1..=100 {
            let dir = JobDir::claim(state.path(), id).unwrap();
            dir.write_start(&running(id, MIDNIGHT_S)).unwrap();
            dir.write_end(&finished(id, MIDNIGHT_S)).unwrap();
            writer.import().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(reads.join().unwrap() > 1);
    });
    assert_eq!(writer.jobs(&Filter::default()).unwrap().len(), 100);
}

/// Writes the fixture of the current version: `cargo test -p met-store write_fixture -- --ignored`, once,
/// when a version is released; `sqlite3 FILE .dump` and the two pragmas make the text of it.
#[test]
#[ignore = "writes a fixture"]
fn write_fixture() {
    let state =
        PathBuf::from(std::env::var_os("MET_STORE_FIXTURE").expect("MET_STORE_FIXTURE names a folder"));
    let mut writer = Writer::open(&state).unwrap();
    let mut record = finished(1, MIDNIGHT_S);
    record.summaries.set(CPU, Summary { mean: 0.5, min: 0.0, max: 2.0, p50: Some(0.25), p95: Some(1.5) });
    let held_since_ns = record.start_ns;
    let name = "NVIDIA H200".to_owned();
    record.gpus = vec![GpuUse { uuid: "GPU-a".into(), name, held_since_ns, ..GpuUse::default() }];
    writer.put_all(&[record.clone(), running(2, MIDNIGHT_S + 1)]).unwrap();
    writer.append_course(&record.key, &course(MIDNIGHT_S * 1000, 1000, 30)).unwrap();
    let mut card = Course::new(&gpu::card::TABLE);
    let mut cells = vec![MISSING; gpu::card::TABLE.columns.len()];
    cells[gpu::card::POWER] = 300_000;
    card.push(MIDNIGHT_S * 1000, &cells);
    writer.append_device("GPU-a", &card).unwrap();
    let device = writer.devices().unwrap().remove(0);
    writer.put_devices(&[crate::Device { idle_mw: Some(75_000), ..device }]).unwrap();
    writer.put(&record).unwrap();
}

#[test]
fn texts_that_somebody_made_up_do_not_fill_the_store() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut records: Vec<_> = (1..2_500).map(|id| finished(id, MIDNIGHT_S)).collect();
    for (number, record) in records.iter_mut().enumerate() {
        record.totals.set(CPU, 5, QualityKind::Measured, format!("made up {number}"));
    }
    records[0].totals.set(CPU, 5, QualityKind::Measured, "x".repeat(100_000));
    writer.put_all(&records).unwrap();
    let source = |id: u64| {
        let record = writer.get(&finished(id, MIDNIGHT_S).key).unwrap().unwrap();
        record.totals.figure(CPU).unwrap().source.to_string()
    };
    assert_eq!([source(1), source(2), source(2_499)], ["other", "made up 1", "other"]);
    let count = |sql: &str| -> i64 {
        Connection::open(state.path().join(CATALOGUE_FILE))
            .unwrap()
            .query_row(sql, [], |row| row.get(0))
            .unwrap()
    };
    assert!(count("SELECT count(*) FROM term") <= 2_001);
}
