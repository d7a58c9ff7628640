use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use met_core::job::{GpuUse, Part, QualityKind, State, Summary};
use met_core::job_table::{CPU, MEMORY_NEEDED_PEAK, READ};
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
fn a_job_comes_back_whole() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut record = finished(1, MIDNIGHT_S);
    record.key.cluster = Some("alpha".into());
    record.totals.set(READ, i64::MAX, QualityKind::LowerBound, "task_io");
    record.summaries.set(CPU, Summary { mean: 0.5, min: 0.0, max: 2.0, p50: Some(0.25), p95: Some(1.5) });
    writer.put(&record).unwrap();
    writer.put(&record).unwrap();
    assert_eq!(writer.find(None, "1").unwrap(), [record.clone()]);
    assert_eq!(Reader::open(state.path()).unwrap().get(&record.key).unwrap(), Some(record.clone()));
    assert_eq!(writer.newest_named("job-1").unwrap(), Some(record));
    assert_eq!(writer.find(Some("slurm"), "1").unwrap(), []);
    assert_eq!(writer.next_local_id().unwrap(), 2);
}

#[test]
fn an_end_is_not_overwritten_by_a_late_live_record() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut lost = running(1, MIDNIGHT_S);
    lost.state = State::Lost;
    lost.totals.set(MEMORY_NEEDED_PEAK, 7, QualityKind::Sampled, "cgroup");
    writer.put(&running(1, MIDNIGHT_S)).unwrap();
    writer.put(&lost).unwrap();
    writer.put(&running(1, MIDNIGHT_S)).unwrap();
    assert_eq!(writer.newest().unwrap().unwrap().state, State::Lost);
    writer.put(&finished(1, MIDNIGHT_S)).unwrap();
    writer.put(&lost).unwrap();
    let end = writer.newest().unwrap().unwrap();
    assert_eq!(end.state, State::Finished);
    assert_eq!(end.totals.get(CPU), Some(42));
    assert_eq!(end.totals.get(MEMORY_NEEDED_PEAK), Some(7), "what was sampled before the end is kept");
}

/// A job of a scheduler, as its node tells it and as the two were joined.
fn told(node: &Record, state: State, asked_ns: i64) -> Record {
    let mut record = node.clone();
    record.state = state;
    record.manager_state = Some(state.name().to_uppercase());
    record.exit_code = None;
    record.account = Some("chem".into());
    record.requested.cpus = Some(4);
    record.scheduling.asked_ns = Some(asked_ns);
    record.scheduling.alias = Some("10_2".into());
    record.parts =
        vec![Part { node: "n1".into(), step: "batch".into(), exit_code: Some(1), ..Part::default() }];
    record
}

#[test]
fn a_node_and_a_scheduler_tell_of_one_job_in_any_order() {
    let end = finished(1, MIDNIGHT_S);
    let begin = running(1, MIDNIGHT_S);
    let mut measured = end.clone();
    measured.parts = vec![Part { node: "n1".into(), step: "batch".into(), ..Part::default() }];
    measured.parts[0].totals.set(CPU, 7, QualityKind::Measured, "cgroup");
    let orders = [
        vec![
            begin.clone(),
            told(&begin, State::Running, 1),
            told(&begin, State::Timeout, 2),
            measured.clone(),
        ],
        vec![
            begin.clone(),
            told(&begin, State::Running, 1),
            measured.clone(),
            told(&measured, State::Timeout, 2),
        ],
        vec![measured.clone(), told(&measured, State::Timeout, 2), begin.clone()],
    ];
    for (number, order) in orders.iter().enumerate() {
        let state = state();
        let mut writer = Writer::open(state.path()).unwrap();
        for record in order {
            writer.put(record).unwrap();
        }
        let record = writer.newest().unwrap().unwrap();
        assert_eq!(
            (record.state, record.exit_code),
            (State::Timeout, None),
            "{number}: the scheduler decides"
        );
        assert_eq!(record.manager_state.as_deref(), Some("TIMEOUT"));
        assert_eq!(record.totals.get(CPU), Some(42), "{number}: what was measured stays");
        assert_eq!((record.account.as_deref(), record.requested.cpus), (Some("chem"), Some(4)));
        assert_eq!(record.scheduling.asked_ns, Some(2));
        let [part] = &record.parts[..] else { panic!("{number}: {:?}", record.parts) };
        assert_eq!((part.exit_code, part.totals.get(CPU)), (Some(1), Some(7)));
    }
}

#[test]
fn a_job_is_found_by_the_id_its_users_know() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut record = told(&finished(12, MIDNIGHT_S), State::Failed, 1);
    record.key.manager = "slurm".into();
    writer.put_all(&[record, finished(10, MIDNIGHT_S)]).unwrap();
    assert_eq!(ids(&writer.find(None, "10_2").unwrap()), ["12"]);
    assert_eq!(ids(&writer.find(Some("slurm"), "12").unwrap()), ["12"]);
    assert_eq!(ids(&writer.find(Some("oar"), "10_2").unwrap()), Vec::<&str>::new());
}

#[test]
fn one_record_takes_the_place_of_another() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let waiting = Record { state: State::Pending, start_ns: None, ..running(1, MIDNIGHT_S) };
    writer.put(&waiting).unwrap();
    let mut begun = running(1, MIDNIGHT_S);
    begun.key.incarnation += 30;
    writer.put_instead(&[begun.clone()], std::slice::from_ref(&waiting.key)).unwrap();
    assert_eq!(writer.jobs(&Filter::default()).unwrap(), [begun]);
}

#[test]
fn what_belongs_to_no_job_is_remembered() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    assert_eq!(writer.meta("cursor").unwrap(), None);
    writer.set_meta("cursor", "1").unwrap();
    writer.set_meta("cursor", "2").unwrap();
    drop(writer);
    assert_eq!(Reader::open(state.path()).unwrap().meta("cursor").unwrap().as_deref(), Some("2"));
}

#[test]
fn lists_are_newest_first_and_filtered() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    for id in 1..=12 {
        // 9 to 12 begin in the same second: the number decides.
        let mut record = finished(id, MIDNIGHT_S + (id as i64).min(9));
        record.state = if id % 2 == 0 { State::Failed } else { State::Finished };
        record.uid = Some(id as u32 % 3);
        writer.put(&record).unwrap();
    }
    let list = |filter: Filter| writer.jobs(&filter).unwrap();
    assert_eq!(ids(&list(Filter { limit: Some(5), ..Default::default() })), ["12", "11", "10", "9", "8"]);
    let failed = Filter { states: vec![State::Failed], uid: Some(0), ..Default::default() };
    assert_eq!(ids(&list(failed)), ["12", "6"]);
    let span = Filter {
        since_ns: Some((MIDNIGHT_S + 2) * SECOND_NS),
        until_ns: Some((MIDNIGHT_S + 4) * SECOND_NS),
        user: Some("ada".into()),
        manager: Some("local".into()),
        ..Default::default()
    };
    assert_eq!(ids(&list(span)), ["3", "2"]);
    assert!(list(Filter { name: Some("nobody".into()), ..Default::default() }).is_empty());
}

#[test]
fn a_job_that_has_yet_to_start_is_the_newest() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut pending = running(1, MIDNIGHT_S);
    (pending.state, pending.start_ns) = (State::Pending, None);
    writer.put_all(&[pending, finished(2, MIDNIGHT_S)]).unwrap();
    assert_eq!(ids(&writer.jobs(&Filter::default()).unwrap()), ["1", "2"]);
}

#[test]
fn store_and_inbox_are_shown_as_one() {
    let state = state();
    let reader = Reader::open(state.path()).unwrap();
    let dir = JobDir::claim(state.path(), 1).unwrap();
    dir.write_start(&running(1, MIDNIGHT_S)).unwrap();
    assert_eq!(reader.newest().unwrap(), Some(running(1, MIDNIGHT_S)), "there is no database yet");

    let mut writer = Writer::open(state.path()).unwrap();
    let mut sampled = running(1, MIDNIGHT_S);
    sampled.totals.set(MEMORY_NEEDED_PEAK, 7, QualityKind::Sampled, "cgroup");
    writer.put(&sampled).unwrap();
    assert_eq!(reader.jobs(&Filter::default()).unwrap(), [sampled]);

    dir.write_end(&finished(1, MIDNIGHT_S)).unwrap();
    let live = Filter { states: vec![State::Running], ..Default::default() };
    assert!(reader.jobs(&live).unwrap().is_empty(), "the end in the inbox is news");
    let ended = reader.newest().unwrap().unwrap();
    assert_eq!(ended.state, State::Finished);
    assert_eq!(reader.find(None, "1").unwrap(), std::slice::from_ref(&ended));

    writer.import().unwrap();
    assert_eq!(reader.find(None, "1").unwrap(), [ended]);
}

#[test]
fn ended_jobs_are_imported_once_and_bad_entries_left_alone() {
    let state = state();
    let samples = course(MIDNIGHT_S * 1000 - 500_000, 1000, 1000);
    for id in 1..=4 {
        let dir = JobDir::claim(state.path(), id).unwrap();
        dir.write_start(&running(id, MIDNIGHT_S)).unwrap();
        if id <= 2 {
            dir.write_course(&samples).unwrap();
            dir.write_end(&finished(id, MIDNIGHT_S)).unwrap();
        }
    }
    let bad = JobDir::open(state.path(), 4).path().join("end");
    fs::write(&bad, b"\0\0\0").unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    let imported = writer.import().unwrap();
    assert_eq!(ids(&imported.ended), ["1", "2"]);
    assert_eq!(ids(&imported.live), ["3"]);
    assert_eq!(imported.problems.len(), 1);
    assert!(bad.exists());
    assert!(!JobDir::open(state.path(), 1).path().exists());
    assert!(same(&writer.course(&finished(2, MIDNIGHT_S).key).unwrap(), &samples));
    assert!(writer.import().unwrap().ended.is_empty());
    assert_eq!(JobDir::reserve(state.path(), 1).unwrap().0, 5);
}

#[test]
fn changes_come_in_the_order_of_writing_and_the_last_word_on_a_job_is_the_last() {
    let state = state();
    assert_eq!(Reader::open(state.path()).unwrap().newest_change().unwrap(), 0, "there is no database yet");
    let mut writer = Writer::open(state.path()).unwrap();
    let told = |writer: &Writer, mark: i64, limit: usize| -> Vec<(i64, String, State)> {
        let changes = writer.changed_after(mark, limit).unwrap();
        changes.into_iter().map(|(number, job)| (number, job.key.id, job.state)).collect()
    };
    let change = |number: i64, id: &str, state: State| (number, id.to_string(), state);
    writer.put_all(&[running(1, MIDNIGHT_S), running(2, MIDNIGHT_S), running(3, MIDNIGHT_S)]).unwrap();
    assert_eq!(told(&writer, 0, 2), [change(1, "1", State::Running), change(2, "2", State::Running)]);
    assert_eq!(told(&writer, 2, 2), [change(3, "3", State::Running)]);

    writer.put(&finished(1, MIDNIGHT_S)).unwrap();
    let (number, end) = writer.changed_after(3, 9).unwrap().remove(0);
    assert_eq!((number, &end), (4, &finished(1, MIDNIGHT_S)), "with its totals");
    let all = [(2, "2", State::Running), (3, "3", State::Running), (4, "1", State::Finished)];
    assert_eq!(told(&writer, 0, 9), all.map(|(number, id, state)| change(number, id, state)));
    writer.put(&running(1, MIDNIGHT_S)).unwrap();
    assert_eq!(writer.newest_change().unwrap(), 4, "what comes late and changes nothing is no change");

    // A job that goes takes its number with it, and nobody gets it again.
    writer.remove(&end.key).unwrap();
    writer.put_instead(&[finished(2, MIDNIGHT_S)], &[running(3, MIDNIGHT_S).key]).unwrap();
    assert_eq!(told(&writer, 0, 9), [change(5, "2", State::Finished)]);
    assert_eq!(writer.newest_change().unwrap(), 5);
}

#[test]
fn what_waits_in_the_inbox_is_a_change_when_it_is_imported() {
    let state = state();
    let dir = JobDir::claim(state.path(), 1).unwrap();
    dir.write_start(&running(1, MIDNIGHT_S)).unwrap();
    dir.write_end(&finished(1, MIDNIGHT_S)).unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    assert_eq!(writer.changed_after(0, 9).unwrap(), []);
    writer.import().unwrap();
    assert_eq!(writer.changed_after(0, 9).unwrap(), [(1, finished(1, MIDNIGHT_S))]);
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
fn removing_a_job_removes_its_samples() {
    let state = state();
    let mut writer = Writer::open(state.path()).unwrap();
    let (gone, kept) = (finished(1, MIDNIGHT_S), finished(2, MIDNIGHT_S));
    for record in [&gone, &kept] {
        writer.put(record).unwrap();
        writer.append_course(&record.key, &course(MIDNIGHT_S * 1000, 1000, 10)).unwrap();
    }
    writer.remove(&gone.key).unwrap();
    assert_eq!(writer.get(&gone.key).unwrap(), None);
    assert!(writer.course(&gone.key).unwrap().is_empty());
    assert_eq!(writer.course(&kept.key).unwrap().len(), 10);
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
