use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use met_core::job::{GpuUse, QualityKind, Summary};
use met_core::job_table::CPU;
use met_core::listing::{Sort, SortColumn};
use met_core::{MISSING, gpu};
use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::samples::{MIDNIGHT_S, SECOND_NS, finished, running, series};
use crate::{Filter, JobOwner, PROCESS_ROWS, PageBounds, Reader, Retained, Retention, day};

const DAY_S: i64 = 86_400;

fn state() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn ids(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.key.id.as_str()).collect()
}

fn same(left: &Series, right: &Series) -> bool {
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
    let whole = series((MIDNIGHT_S - 1000) * 1000, 1000, 5000);
    let part = |begin: usize, end: usize| whole.part(begin, end);
    for begin in (0..5000).step_by(77) {
        // Each piece overlaps the one before: what is there already is skipped.
        writer.append_series(&record.key, &part(begin.max(5) - 5, 5000.min(begin + 77))).unwrap();
    }
    assert!(same(&writer.series(&record.key).unwrap(), &whole));
    let reader = Reader::open(state.path()).unwrap();
    assert!(same(&reader.series(&record.key).unwrap(), &whole));
    let between =
        reader.series_of_job_between(&record.key, whole.times_ms[900], whole.times_ms[1100]).unwrap();
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
    assert_eq!(blocks.iter().sum::<i64>(), 4000);
    assert!(blocks.len() <= 12 && blocks.iter().all(|&samples| samples <= 1441), "{blocks:?}");
}

#[test]
fn old_jobs_and_days_go_and_live_jobs_stay() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    for day in 0..5 {
        let start_s = MIDNIGHT_S + day * DAY_S;
        let record = finished(day as u64 + 1, start_s);
        writer.put(&record).unwrap();
        writer.append_series(&record.key, &series(start_s * 1000, 10_000, 100)).unwrap();
    }
    writer.put(&running(9, MIDNIGHT_S)).unwrap();
    let now_ns = (MIDNIGHT_S + 4 * DAY_S + 3600) * SECOND_NS;
    let by_age = Retention { max_age_ns: Some(2 * DAY_S * SECOND_NS), max_bytes: None };
    let removed = |retained: Retained| (retained.jobs_removed, retained.days_removed);
    let retained = writer.retain(&by_age, now_ns).unwrap();
    let [of_user, of_days] = &retained.lines()[..] else { panic!("two lines") };
    assert_eq!(of_user, "retention: user ada: removed 3 jobs (1 to 3) and 0 daily series, about 7008 bytes");
    let [first, last] = [0, 1].map(|day| day::name(day::of_ms((MIDNIGHT_S + day * DAY_S) * 1000)));
    let expected = format!("retention: removed all samples of 2 days ({first} to {last}), about ");
    let bytes: Option<u64> =
        of_days.strip_prefix(&*expected).and_then(|rest| rest.strip_suffix(" bytes")?.parse().ok());
    assert!(bytes > Some(1000), "{of_days}");
    assert_eq!(removed(retained), (3, 2));
    assert_eq!(ids(&writer.jobs(&Filter::default()).unwrap()), ["5", "4", "9"]);
    let by_size = Retention { max_age_ns: None, max_bytes: Some(1) };
    assert_eq!(removed(writer.retain(&by_size, now_ns).unwrap()), (2, 2));
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
    writer.append_series(&finished(1, MIDNIGHT_S).key, &series(MIDNIGHT_S * 1000, 1000, 10)).unwrap();
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
fn what_is_whole_of_a_damaged_database_is_in_a_new_one_and_the_old_one_is_kept() {
    let overwrite =
        |path: &Path, bytes: &[u8], at: u64| inbox::create(path).unwrap().write_all_at(bytes, at).unwrap();
    type Damage<'d> = (&'d dyn Fn(&Path), std::ops::RangeInclusive<usize>);
    let damages: [Damage<'_>; 4] = [
        (
            &|path| {
                fs::write(path, b"this is no database, and it is longer than a header needs to be").unwrap()
            },
            0..=0,
        ),
        (&|path| overwrite(path, &[0xa5; 4096], 0), 200..=200),
        // In the middle of a file that opens well.
        (&|path| (4..12).for_each(|page| overwrite(path, &[0xa5; 4096], page * 4096)), 150..=200),
        (&|path| inbox::create(path).unwrap().set_len(20_000).unwrap(), 0..=60),
    ];
    for (damage, expected) in damages {
        let (_state, mut writer) = after_damage(damage);
        let salvage = writer.salvaged.take().unwrap();
        assert_eq!(writer.moved_aside.take().as_ref(), Some(&salvage.aside));
        assert!(salvage.aside.to_str().unwrap().contains("store.db.damaged-") && salvage.aside.exists());
        let jobs = writer.jobs(&Filter::default()).unwrap();
        assert!(expected.contains(&jobs.len()), "{} of {expected:?}", jobs.len());
        assert_eq!(salvage.recovered, jobs.len());
        for job in &jobs {
            // The pages of totals are others than those of jobs.
            let whole = finished(job.key.id.parse().unwrap(), MIDNIGHT_S);
            let is_bare = job.totals.get(CPU).is_none() && !salvage.incomplete.is_empty();
            let expected = if is_bare { Record { totals: Default::default(), ..whole } } else { whole };
            assert_eq!(*job, expected);
        }
        assert_eq!(writer.last_salvage(), Some(salvage));
        writer.put(&finished(999, MIDNIGHT_S)).unwrap();
        assert_eq!(writer.jobs(&Filter::default()).unwrap().len(), jobs.len() + 1);
    }
    let (_state, writer) = after_damage(|_| {});
    assert_eq!(writer.moved_aside, None);
    assert_eq!(writer.jobs(&Filter::default()).unwrap().len(), 200);
}

/// A store of 60 jobs, the first `count` of which are damaged, packed records included, opened again.
fn after_damage_of_records(count: usize) -> (tempfile::TempDir, Writer) {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put_all(&(1..=60).map(|id| finished(id, MIDNIGHT_S)).collect::<Vec<_>>()).unwrap();
    drop(writer);
    let database = Connection::open(state.path().join(CATALOGUE_FILE)).unwrap();
    let sql = "UPDATE job SET detail = replace(detail, 'incarnation', 'incarnatioN') WHERE key <= ?1";
    assert_eq!(database.execute(sql, [count as i64]).unwrap(), count);
    let packed = "UPDATE brief SET data = zeroblob(200) WHERE job <= ?1";
    assert_eq!(database.execute(packed, [count as i64]).unwrap(), count);
    drop(database);
    let mut writer = Writer::open(state.path()).unwrap();
    assert!(!writer.jobs(&Filter::default()).unwrap().is_empty());
    writer.look_after().unwrap();
    (state, writer)
}

#[test]
fn a_job_that_is_known_again_is_not_counted_as_lost() {
    let (_state, mut writer) = after_damage_of_records(2);
    let salvage = writer.salvaged.take().unwrap();
    assert!(
        salvage.sentence().contains("58 jobs recovered, 2 jobs known to be lost: 1, 2;"),
        "{}",
        salvage.sentence()
    );
    // One with its number and another key is another job.
    writer
        .put(&Record {
            key: JobKey { incarnation: 7, ..finished(1, MIDNIGHT_S).key },
            ..finished(1, MIDNIGHT_S)
        })
        .unwrap();
    assert_eq!(writer.last_salvage(), Some(salvage));
    writer.put(&finished(1, MIDNIGHT_S)).unwrap();
    let sentence = writer.last_salvage().unwrap().sentence();
    assert!(sentence.contains("58 jobs recovered, 1 job known to be lost: 2;"), "{sentence}");
    writer.put(&finished(2, MIDNIGHT_S)).unwrap();
    let sentence = writer.last_salvage().unwrap().sentence();
    assert!(sentence.contains("no job is known to be lost"), "{sentence}");
}

#[test]
fn a_job_whose_record_is_damaged_is_taken_from_its_packed_row() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put_all(&(1..=5).map(|id| finished(id, MIDNIGHT_S)).collect::<Vec<_>>()).unwrap();
    drop(writer);
    let database = Connection::open(state.path().join(CATALOGUE_FILE)).unwrap();
    let damage =
        "UPDATE job SET detail = replace(detail, 'incarnation', 'incarnatioN') WHERE id IN ('2', '4');
                  UPDATE brief SET data = zeroblob(9) WHERE job = (SELECT key FROM job WHERE id = '4');
                  INSERT INTO brief SELECT 999, format, sum, data FROM brief LIMIT 1;";
    database.execute_batch(&format!("PRAGMA foreign_keys = OFF; {damage}")).unwrap();
    drop(database);
    let mut writer = Writer::open(state.path()).unwrap();
    let salvage = writer.salvaged.take().unwrap();
    let sentence = salvage.sentence();
    assert!(sentence.contains("4 jobs recovered, 1 job known to be lost: 4;"), "{sentence}");
    let parts = "unreadable parts: processes and marked work of 2 (taken from its packed record)";
    assert!(sentence.contains(parts), "{sentence}");
    for id in [1, 2, 3, 5] {
        let whole = finished(id, MIDNIGHT_S);
        assert_eq!(writer.get(&whole.key).unwrap(), Some(whole));
    }
}

#[test]
fn lost_jobs_beyond_those_that_are_named_are_counted() {
    let (_state, mut writer) = after_damage_of_records(59);
    let salvage = writer.salvaged.take().unwrap();
    assert_eq!((salvage.recovered, salvage.lost.len(), salvage.lost_count()), (1, 50, 59));
    let sentence = salvage.sentence();
    assert!(sentence.contains(": 1 job recovered, 59 jobs known to be lost: 1, 2,"), "{sentence}");
    assert!(sentence.contains(", 50, 9 more;"), "{sentence}");
}

#[test]
fn a_reader_beside_a_writer_sees_no_damage() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put(&finished(1, MIDNIGHT_S)).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for cpu_ns in 0..3_000 {
                let mut record = finished(1, MIDNIGHT_S);
                record.totals.set(CPU, cpu_ns, QualityKind::Measured, "cgroup");
                writer.put(&record).unwrap();
            }
            is_done.store(true, std::sync::atomic::Ordering::Release);
        });
        let reader = Reader::open(state.path()).unwrap();
        while !is_done.load(std::sync::atomic::Ordering::Acquire) {
            assert_eq!(reader.jobs(&Filter::default()).unwrap().len(), 1);
            assert_eq!(reader.take_unreadable(), Vec::<String>::new());
            let checked = crate::check(state.path()).unwrap().unwrap();
            assert_eq!((checked.records, checked.problems), (1, Vec::new()));
        }
    });
}

#[test]
fn a_writer_that_meets_damage_goes_on_in_a_new_file() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put_all(&(1..=200).map(|id| finished(id, MIDNIGHT_S)).collect::<Vec<_>>()).unwrap();
    // Large enough not to be held in memory, and in the file itself.
    let sql = writer.queries.catalogue.get().unwrap();
    sql.give_back().unwrap();
    let path = state.path().join(CATALOGUE_FILE);
    let reader = Reader::open(state.path()).unwrap();
    let database = Connection::open(&path).unwrap();
    database.execute("DELETE FROM change", []).unwrap();
    drop(database);
    assert!(!reader.is_replaced());
    writer.put(&finished(201, MIDNIGHT_S)).unwrap();
    assert!(reader.is_replaced() && !Reader::open(state.path()).unwrap().is_replaced());
    let salvage = writer.salvaged.take().unwrap();
    assert_eq!((salvage.recovered, salvage.lost.len()), (200, 0));
    assert_eq!(writer.jobs(&Filter::default()).unwrap().len(), 201);
}

#[test]
fn a_writer_that_can_neither_repair_nor_open_its_file_accepts_nothing() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put_all(&(1..=200).map(|id| finished(id, MIDNIGHT_S)).collect::<Vec<_>>()).unwrap();
    writer.queries.catalogue.get().unwrap().give_back().unwrap();
    let path = state.path().join(CATALOGUE_FILE);
    // The file that a repair writes cannot be created, and the damaged one cannot be opened.
    let fresh = beside(&path, ".salvaged");
    fs::create_dir(&fresh).unwrap();
    Connection::open(&path).unwrap().execute("DELETE FROM change", []).unwrap();
    inbox::create(&path).unwrap().write_all_at(&[0xa5; 4096], 0).unwrap();
    for _ in 0..2 {
        assert!(writer.put(&finished(201, MIDNIGHT_S)).is_err());
        assert!(writer.set_meta("cursor", "1").is_err());
        assert!(writer.remove(&finished(1, MIDNIGHT_S).key).is_err());
        assert!(writer.look_after().is_err());
        // Neither does a question put a connection that only reads in its place.
        assert!(writer.meta("cursor").is_err());
        assert_eq!(writer.jobs(&Filter::default()).unwrap().len(), 200, "they are read from the pages");
    }
    fs::remove_dir(&fresh).unwrap();
    writer.put(&finished(201, MIDNIGHT_S)).unwrap();
    assert_eq!(writer.salvaged.take().unwrap().recovered, 200);
    drop(writer);
    assert_eq!(Reader::open(state.path()).unwrap().jobs(&Filter::default()).unwrap().len(), 201);
}

#[test]
fn the_process_that_was_replacing_a_file_may_be_killed() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put(&finished(1, MIDNIGHT_S)).unwrap();
    drop(writer);
    let path = state.path().join(CATALOGUE_FILE);
    fs::rename(&path, beside(&path, ".salvaged")).unwrap();
    assert_eq!(Writer::open(state.path()).unwrap().jobs(&Filter::default()).unwrap().len(), 1);
}

#[test]
fn a_new_file_goes_on_with_numbers_and_cursors_of_the_damaged_one() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    (1..=5).for_each(|id| writer.put(&finished(id, MIDNIGHT_S)).unwrap());
    // Its number is the highest, and only the counter knows it.
    writer.remove(&finished(5, MIDNIGHT_S).key).unwrap();
    writer.set_meta("next_local_id", "6").unwrap();
    writer.set_meta("cursor", "1").unwrap();
    let mark = writer.newest_change().unwrap();
    drop(writer);
    inbox::create(&state.path().join(CATALOGUE_FILE)).unwrap().write_all_at(&[0xa5; 100], 0).unwrap();
    let writer = Writer::open(state.path()).unwrap();
    assert_eq!(writer.salvaged.as_ref().map(|salvage| salvage.recovered), Some(4));
    let changed = writer.changed_after(mark, 9).unwrap();
    assert_eq!(changed.iter().map(|(number, _)| number - mark).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let meta = |name: &str| writer.meta(name).unwrap();
    assert_eq!((meta("next_local_id").as_deref(), meta("cursor").as_deref()), (Some("6"), Some("1")));
    assert!(writer.last_salvage().is_some());
}

#[test]
fn the_log_of_a_damaged_file_is_not_replayed_into_the_new_one() {
    for is_reported in [true, false] {
        let state = state();
        let path = state.path().join(CATALOGUE_FILE);
        let mut writer = Writer::open(state.path()).unwrap();
        writer.put(&finished(1, MIDNIGHT_S)).unwrap();
        Connection::open(&path).unwrap().execute("DELETE FROM change", []).unwrap();
        writer.put(&finished(2, MIDNIGHT_S)).unwrap();
        let aside = writer.salvaged.take().unwrap().aside;
        if !is_reported {
            writer.set_meta("salvage", "{").unwrap();
        }
        drop(writer);
        // As after a crash between the two renames: the log has all of another database.
        let other = self::state();
        let mut writer = Writer::open(other.path()).unwrap();
        writer.put(&finished(3, MIDNIGHT_S)).unwrap();
        let log = fs::read(beside(&other.path().join(CATALOGUE_FILE), "-wal")).unwrap();
        assert!(!log.is_empty());
        fs::rename(&path, beside(&path, ".salvaged")).unwrap();
        fs::write(beside(&path, "-wal"), &log).unwrap();
        let writer = Writer::open(state.path()).unwrap();
        assert_eq!(ids(&writer.jobs(&Filter::default()).unwrap()), ["2", "1"]);
        assert_eq!(
            fs::read(beside(&aside, "-wal")).ok() == Some(log),
            is_reported,
            "it is kept with its file"
        );
    }
}

#[test]
fn rows_of_an_earlier_version_get_their_checksums_in_time() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put_all(&[finished(1, MIDNIGHT_S), finished(2, MIDNIGHT_S)]).unwrap();
    let database = Connection::open(state.path().join(CATALOGUE_FILE)).unwrap();
    database
        .execute_batch("UPDATE job SET sum = NULL, totals_sum = NULL; UPDATE term SET sum = NULL")
        .unwrap();
    let unsummed = || crate::check(state.path()).unwrap().unwrap().unsummed;
    assert_eq!(unsummed(), 2);
    writer.retain(&Retention::default(), 0).unwrap();
    assert_eq!(unsummed(), 0);
    assert_eq!(crate::check(state.path()).unwrap().unwrap().problems, Vec::<String>::new());
    database.execute("UPDATE total SET value = value + 1 WHERE job = 2", []).unwrap();
    assert_eq!(crate::check(state.path()).unwrap().unwrap().problems, ["job 2: totals checksum mismatch"]);
    let reader = Reader::open(state.path()).unwrap();
    let jobs = reader.jobs(&Filter::default()).unwrap();
    assert_eq!((jobs.len(), jobs[0].totals.get(CPU), jobs[1].totals.get(CPU)), (2, None, Some(42)));
    assert_eq!(reader.take_unreadable(), ["totals of 2"]);
    assert!(reader.take_unreadable().is_empty());
}

fn of_user(id: u64, user: &str, start_s: i64, bytes: usize) -> Record {
    Record { user: Some(user.to_owned()), command: vec!["x".repeat(bytes)], ..finished(id, start_s) }
}

#[test]
fn a_user_above_the_fair_share_loses_their_own_oldest() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut records: Vec<Record> =
        (1..=40).map(|id| of_user(id, "ada", MIDNIGHT_S + id as i64, 1000)).collect();
    records.extend((101..=500).map(|id| of_user(id, "mallory", MIDNIGHT_S + id as i64, 20_000)));
    writer.put_all(&records).unwrap();
    let now_ns = (MIDNIGHT_S + DAY_S) * SECOND_NS;
    let retention = Retention { max_age_ns: None, max_bytes: Some(3_000_000) };
    let retained = writer.retain(&retention, now_ns).unwrap();
    let kept =
        |user: &str| writer.jobs(&Filter { owner: JobOwner::of_user(user), ..Filter::default() }).unwrap();
    assert_eq!(kept("ada").len(), 40, "the oldest of all are not his");
    let his = kept("mallory");
    assert!((40..200).contains(&his.len()), "{}", his.len());
    assert_eq!(his[0].key.id, "500");
    assert_eq!(retained.of_users.keys().collect::<Vec<_>>(), ["mallory"]);
    let [line] = &retained.lines()[..] else { panic!("one line") };
    assert!(
        line.starts_with("retention: user mallory: removed ") && line.contains(" jobs (101 to "),
        "{line}"
    );
    assert_eq!(writer.retain(&retention, now_ns).unwrap(), Retained::default(), "it fits now");
}

#[test]
fn samples_of_a_user_above_the_share_go_and_those_of_others_stay() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let (ada, mallory) = (of_user(1, "ada", MIDNIGHT_S, 10), of_user(2, "mallory", MIDNIGHT_S, 10));
    writer.put_all(&[ada.clone(), mallory.clone()]).unwrap();
    writer.append_series(&ada.key, &series(MIDNIGHT_S * 1000, 1000, 50)).unwrap();
    for part in 0..50 {
        let mut record = of_user(10 + part, "mallory", MIDNIGHT_S, 10);
        record.uid = Some(1001);
        writer.put(&record).unwrap();
        writer.append_series(&record.key, &series(MIDNIGHT_S * 1000, 777, 20_000)).unwrap();
    }
    let all: u64 = writer.queries.series.days().unwrap().iter().map(|(_, bytes)| bytes).sum();
    let retention = Retention { max_age_ns: None, max_bytes: Some(all / 2 + 100_000) };
    let retained = writer.retain(&retention, (MIDNIGHT_S + 3 * DAY_S) * SECOND_NS).unwrap();
    assert_eq!((retained.jobs_removed, retained.of_users.len()), (0, 1));
    assert!(retained.of_users["mallory"].series > 10);
    assert_eq!(writer.series(&ada.key).unwrap().len(), 50);
    let left: u64 = writer.queries.series.days().unwrap().iter().map(|(_, bytes)| bytes).sum();
    assert!(left < all / 2 + 100_000, "{left} of {all}");
}

#[test]
fn below_the_limit_no_file_of_a_day_is_opened() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let ada = of_user(1, "ada", MIDNIGHT_S, 10);
    writer.put(&ada).unwrap();
    writer.append_series(&ada.key, &series(MIDNIGHT_S * 1000, 1000, 50)).unwrap();
    drop(writer);
    // One that a newer program wrote: it is an error to open it.
    let path = crate::series::path_of(state.path(), crate::day::of_ns(MIDNIGHT_S * SECOND_NS));
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let mut writer = Writer::open(state.path()).unwrap();
    let now_ns = (MIDNIGHT_S + DAY_S) * SECOND_NS;
    let mut retain = |max_bytes| writer.retain(&Retention { max_age_ns: None, max_bytes }, now_ns);
    assert_eq!(retain(Some(100 << 20)).unwrap(), Retained::default());
    assert!(matches!(retain(Some(1)), Err(StoreError::Newer { .. })), "above it they are");
}

#[test]
fn a_count_of_jobs_is_shared_fairly() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut records: Vec<Record> = (1..=5).map(|id| of_user(id, "ada", MIDNIGHT_S + id as i64, 1)).collect();
    records.extend((11..=60).map(|id| of_user(id, "mallory", MIDNIGHT_S + id as i64, 1)));
    records.push(running(70, MIDNIGHT_S));
    writer.put_all(&records).unwrap();
    let retained = writer.retain_count(20).unwrap();
    assert_eq!((retained.jobs_removed, retained.of_users["mallory"].jobs), (35, 35));
    let left = writer.jobs(&Filter::default()).unwrap();
    assert_eq!(left.len(), 21);
    assert_eq!(left.iter().filter(|job| job.user.as_deref() == Some("ada")).count(), 6);
    assert_eq!(writer.retain_count(20).unwrap(), Retained::default());
}

#[test]
fn samples_are_written_to_a_new_file_where_that_of_a_day_was_removed_or_replaced() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let record = finished(1, MIDNIGHT_S + 100);
    writer.put(&record).unwrap();
    let begin_ms = (MIDNIGHT_S + 100) * 1000;
    let append = |writer: &mut Writer, second: i64| {
        writer.append_series(&record.key, &series(begin_ms + second * 1000, 1000, 5)).unwrap();
        let from_outside = Reader::open(state.path()).unwrap().series(&record.key).unwrap();
        assert!(same(&writer.series(&record.key).unwrap(), &from_outside));
        from_outside.len()
    };
    let path = series::path_of(state.path(), day::of_ms(begin_ms));
    assert_eq!(append(&mut writer, 0), 5);
    let kept = state.path().join("kept");
    fs::rename(&path, &kept).unwrap();
    assert_eq!(append(&mut writer, 5), 5, "what was removed is gone, what comes after it is kept");
    series::unlink(&path).unwrap();
    fs::rename(&kept, &path).unwrap();
    assert_eq!(append(&mut writer, 10), 10, "a file that was put back is whole and written on");
    assert_eq!((append(&mut writer, 15), append(&mut writer, 20)), (15, 20));
}

#[test]
fn the_log_of_a_day_that_was_replaced_is_not_replayed_into_the_backup() {
    for (has_reader, restarts) in [(false, false), (true, false), (false, true), (true, true)] {
        let state = state();
        let mut writer = Writer::open(state.path()).unwrap();
        let record = finished(1, MIDNIGHT_S + 100);
        writer.put(&record).unwrap();
        let begin_ms = (MIDNIGHT_S + 100) * 1000;
        let append = |writer: &mut Writer, second: i64, count: i64| {
            writer.append_series(&record.key, &series(begin_ms + second * 1000, 1000, count)).unwrap();
            let from_outside = Reader::open(state.path()).unwrap().series(&record.key).unwrap();
            assert!(same(&writer.series(&record.key).unwrap(), &from_outside));
            from_outside.len()
        };
        let path = series::path_of(state.path(), day::of_ms(begin_ms));
        let intact = |connection: &Connection| {
            connection.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0)).unwrap()
        };
        assert_eq!(append(&mut writer, 0, 5), 5);
        let backup = state.path().join("backup");
        let other = Connection::open(&path).unwrap();
        other.execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
        assert_eq!(append(&mut writer, 5, 2000), 2005);
        // One that reads keeps the log from being emptied.
        let blocks =
            || other.query_row("SELECT count(*) FROM block", [], |row| row.get::<_, i64>(0)).unwrap();
        let snapshot = has_reader.then(|| other.unchecked_transaction().unwrap());
        let seen = snapshot.as_ref().map(|_| blocks());
        assert_eq!(append(&mut writer, 2005, 3000), 5005);
        assert!(fs::metadata(beside(&path, "-wal")).unwrap().len() > 0);
        fs::rename(&backup, &path).unwrap();
        if restarts {
            drop(writer);
            writer = Writer::open(state.path()).unwrap();
        }
        assert_eq!(append(&mut writer, 6000, 7), 12, "reader: {has_reader}, restart: {restarts}");
        assert_eq!(append(&mut writer, 6007, 1000), 1012);
        if let Some(seen) = seen {
            assert_eq!(blocks(), seen, "who began before goes on with the file of then");
        }
        assert_eq!(intact(&other), "ok");
        drop(snapshot);
        drop(other);
        drop(writer);
        assert_eq!(intact(&Connection::open(&path).unwrap()), "ok");
        assert_eq!(Reader::open(state.path()).unwrap().series(&record.key).unwrap().len(), 1012);
    }
}

#[test]
fn a_damaged_day_costs_that_day_only() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let record = running(1, MIDNIGHT_S - 100);
    writer.put(&record).unwrap();
    writer.append_series(&record.key, &series((MIDNIGHT_S - 100) * 1000, 1000, 200)).unwrap();
    drop(writer);
    let path = series::path_of(state.path(), day::of_ms(MIDNIGHT_S * 1000));
    fs::write(&path, b"this is no database, and it is longer than a header needs to be").unwrap();
    assert_eq!(Reader::open(state.path()).unwrap().series(&record.key).unwrap().len(), 100);
    let mut writer = Writer::open(state.path()).unwrap();
    assert!(crate::damaged_days(state.path()).is_empty());
    writer.append_series(&record.key, &series(MIDNIGHT_S * 1000 + 500_000, 1000, 7)).unwrap();
    assert_eq!(crate::damaged_days(state.path()), [writer.moved_aside.clone().unwrap()]);
    assert_eq!(writer.series(&record.key).unwrap().len(), 107);
}

#[test]
fn a_day_whose_file_cannot_be_read_hides_no_other_day_and_is_named() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let record = running(1, MIDNIGHT_S - 100);
    writer.put(&record).unwrap();
    writer.append_series(&record.key, &series((MIDNIGHT_S - 100) * 1000, 1000, 200)).unwrap();
    drop(writer);
    assert!(crate::unreadable_days(state.path()).is_empty());
    let path = series::path_of(state.path(), day::of_ms(MIDNIGHT_S * 1000));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let reader = Reader::open(state.path()).unwrap();
    assert_eq!(reader.series(&record.key).unwrap().len(), 100);
    let [unreadable] = &crate::unreadable_days(state.path())[..] else { panic!("one file") };
    assert!(unreadable.contains("a directory, not a regular file"), "{unreadable}");
    // A file of a newer version.
    fs::remove_dir(&path).unwrap();
    drop(crate::schema::open_for_writing(&path, &crate::schema::SERIES, false).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert_eq!(reader.series(&record.key).unwrap().len(), 100);
}

#[test]
fn a_day_that_is_damaged_in_the_middle_is_named_before_anybody_writes_to_it() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    for id in 1..=40 {
        let record = running(id, MIDNIGHT_S);
        writer.put(&record).unwrap();
        writer.append_series(&record.key, &series(MIDNIGHT_S * 1000, 1000, 300)).unwrap();
    }
    drop(writer);
    let path = series::path_of(state.path(), day::of_ms(MIDNIGHT_S * 1000));
    let folder = || fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert!(crate::unreadable_days(state.path()).is_empty());
    inbox::create(&path).unwrap().write_all_at(&[0xa5; 4096], 4 * 4096).unwrap();
    let (bytes, files) = (fs::read(&path).unwrap(), folder());
    let [unreadable] = &crate::unreadable_days(state.path())[..] else { panic!("one file") };
    assert!(unreadable.contains(": damaged, some of its samples are missing: "), "{unreadable}");
    assert_eq!((fs::read(&path).unwrap(), folder()), (bytes, files), "it is only read");
    assert!(crate::damaged_days(state.path()).is_empty());
}

#[test]
fn a_store_of_a_newer_version_is_left_untouched() {
    let state = state();
    drop(Writer::open(state.path()).unwrap());
    let path = state.path().join(CATALOGUE_FILE);
    let database = Connection::open(&path).unwrap();
    database.pragma_update(None, "user_version", 99).unwrap();
    database.execute("UPDATE meta SET value = '99' WHERE name = 'schema'", []).unwrap();
    drop(database);
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
    writer.append_series(&record.key, &series(MIDNIGHT_S * 1000, 1000, 30)).unwrap();
    let mut gpu = Series::new(&gpu::device::TABLE);
    let mut cells = vec![MISSING; gpu::device::TABLE.columns.len()];
    cells[gpu::device::POWER] = 300_000;
    gpu.push(MIDNIGHT_S * 1000, &cells);
    writer.append_device("GPU-a", &gpu).unwrap();
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

#[test]
fn a_process_is_looked_for_in_a_bounded_number_of_jobs_at_a_time() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut records: Vec<Record> =
        (1..=PROCESS_ROWS as u64 + 9).map(|id| finished(id, MIDNIGHT_S + id as i64)).collect();
    let process = met_core::job_processes::JobProcess { pid: 4711, ..Default::default() };
    records[0].processes = vec![process.clone()];
    records[20].processes = vec![process];
    writer.put_all(&records).unwrap();
    for max_bytes in [None, Some(4 << 20)] {
        let filter = Filter {
            pid: Some(4711),
            page: PageBounds { max_bytes, limit: Some(500), ..PageBounds::default() },
            ..Filter::default()
        };
        let first = writer.page(&filter).unwrap();
        assert_eq!(ids(&first.jobs), ["21"]);
        assert!(first.next.is_some(), "older jobs were not examined");
        let rest =
            writer.page(&Filter { page: PageBounds { after: first.next, ..filter.page }, ..filter }).unwrap();
        assert_eq!(ids(&rest.jobs), ["1"]);
        assert!(rest.next.is_none());
    }
    let filter = Filter { pid: Some(4711), page: PageBounds::first(1), ..Filter::default() };
    assert_eq!(writer.page(&filter).unwrap().jobs.len(), 1);
}

/// A record that is read takes longer than none, and one that cannot be read is noted.
#[test]
fn the_records_of_others_are_not_read_to_find_none() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let job = Record { uid: Some(7), user: Some("ada".to_owned()), ..finished(1, MIDNIGHT_S) };
    writer.put(&job).unwrap();
    drop(writer);
    let find = |whose: &Filter| {
        let reader = Reader::open(state.path()).unwrap();
        let found = reader.find_of(None, "1", whose).unwrap_or_default().len();
        (found, reader.take_unreadable().len())
    };
    let of_uid = |uid: u32| Filter { owner: JobOwner::of_uid(uid), ..Filter::default() };
    let of_user = |user: &str| {
        let member = Some(met_core::member::Member { user: user.to_owned(), accounts: vec!["maths".into()] });
        Filter { owner: JobOwner { member, ..JobOwner::default() }, ..Filter::default() }
    };
    assert_eq!([find(&of_uid(7)), find(&of_user("ada"))], [(1, 0); 2]);
    let database = Connection::open(state.path().join(CATALOGUE_FILE)).unwrap();
    database.execute("UPDATE job SET detail = '{'", []).unwrap();
    assert_eq!([find(&of_uid(8)), find(&of_user("eve"))], [(0, 0); 2]);
    assert!(find(&of_uid(7)).1 > 0 && find(&of_user("ada")).1 > 0, "those of the owner are");
}

#[test]
fn an_old_store_is_upgraded_in_pieces_and_its_lists_are_right_meanwhile() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let jobs: Vec<Record> = (1..=50).map(|id| finished(id, MIDNIGHT_S + id as i64)).collect();
    writer.put_all(&jobs).unwrap();
    drop(writer);
    let database = Connection::open(state.path().join(CATALOGUE_FILE)).unwrap();
    database.execute_batch("DELETE FROM listed; DELETE FROM meta WHERE name = 'listed'").unwrap();
    let rows = || database.query_row("SELECT count(*) FROM listed", [], |row| row.get::<_, i64>(0)).unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    assert_eq!(rows(), 20, "opening writes one piece");
    let filter = Filter {
        page: PageBounds { sort: Some("name:desc".parse().unwrap()), ..PageBounds::default() },
        ..Filter::default()
    };
    let listed = |store: &Queries| {
        let mut found: Vec<String> = store.jobs(&filter).unwrap().into_iter().map(|job| job.key.id).collect();
        found.sort();
        found
    };
    let all = listed(&writer);
    assert_eq!(all.len(), 50);
    writer.put(&finished(51, MIDNIGHT_S)).unwrap();
    assert!(!writer.complete_lists(Duration::ZERO).unwrap());
    assert_eq!((rows(), listed(&writer).len()), (41, 51));
    assert!(writer.complete_lists(Duration::ZERO).unwrap() && writer.complete_lists(Duration::ZERO).unwrap());
    assert_eq!((rows(), listed(&writer).len()), (51, 51));
    drop(writer);
    assert_eq!(listed(&Reader::open(state.path()).unwrap()).len(), 51);
}

#[test]
fn a_damaged_index_shows_no_job_of_another_owner() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let of = |id: u64, uid: u32| Record { uid: Some(uid), ..finished(id, MIDNIGHT_S) };
    writer.put_all(&[of(1, 7), of(2, 8)]).unwrap();
    let database = Connection::open(state.path().join(CATALOGUE_FILE)).unwrap();
    assert_eq!(database.execute("UPDATE listed SET uid = 8", []).unwrap(), 2);
    let sort = Some(Sort { column: SortColumn::Name, descending: false });
    let filter = Filter {
        owner: JobOwner::of_uid(8),
        page: PageBounds { sort, ..PageBounds::default() },
        ..Filter::default()
    };
    let ids: Vec<String> =
        writer.page(&filter).unwrap().jobs.into_iter().map(|record| record.key.id).collect();
    assert_eq!(ids, ["2"]);
}
