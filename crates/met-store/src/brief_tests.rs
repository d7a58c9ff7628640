use std::time::Duration;

use met_core::bounds::checksum;
use met_core::job::{GpuUse, QualityKind, State};
use met_core::job_processes::JobProcess;
use met_core::job_table::{CPU, MEMORY_NEEDED};
use proptest::prelude::*;
use rusqlite::Connection;

use super::*;
use crate::query::CATALOGUE_FILE;
use crate::samples::{MIDNIGHT_S, SECOND_NS, finished, running};
use crate::{JobOwner, JobTimes, Queries, Reader, Writer};

thread_local! {
    /// How often this thread has read back what it wrote of a job.
    pub(super) static PARSED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[test]
fn a_write_of_a_live_job_does_not_parse_its_record() {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    let parsed = |work: &mut dyn FnMut()| {
        let before = PARSED.get();
        work();
        PARSED.get() - before
    };
    let mut live = running(1, MIDNIGHT_S);
    assert_eq!(parsed(&mut || writer.put(&live).unwrap()), 0);
    for cpu in 1..10 {
        live.totals.set(CPU, cpu, QualityKind::Sampled, "cgroup");
        assert_eq!(parsed(&mut || writer.put(&live).unwrap()), 0, "an update");
    }
    assert_eq!(rows(state.path()), 0);
    assert_eq!(parsed(&mut || writer.put(&finished(1, MIDNIGHT_S)).unwrap()), 1, "its end is packed");
    assert_eq!(rows(state.path()), 1);
}

/// A job with something in every part of it, over or alive.
fn job(id: u64, start_s: i64) -> Record {
    let mut record = met_core::sample::full(id as u32, "train");
    let plain = if id.is_multiple_of(5) { running(id, start_s) } else { finished(id, start_s) };
    (record.key, record.state) = (plain.key, plain.state);
    (record.start_ns, record.end_ns) = (plain.start_ns, plain.end_ns);
    record.processes = vec![JobProcess { pid: 7, ..JobProcess::default() }];
    if id.is_multiple_of(3) {
        record.gpus = vec![GpuUse {
            uuid: format!("GPU-{id}"),
            utilization: Some(0.1 + 0.2),
            energy_kind: Some(QualityKind::Estimated),
            throttled: vec!["heat".to_owned()],
            ..GpuUse::default()
        }];
        record.annotation.tags = ["lineage.night".to_owned(), "é\u{0}".to_owned()].into();
        record.requested.other = [("gres/gpu".to_owned(), "2".to_owned())].into();
    }
    record.totals.set(CPU, -(id as i64), QualityKind::LowerBound, "somewhere, not watched all the time");
    let summary = Summary { mean: -0.0, min: 0.1, max: 1e300, p50: Some(f64::NAN), p95: None };
    record.summaries.set(MEMORY_NEEDED, summary);
    record
}

fn brief() -> Filter {
    Filter { is_brief: true, with_summaries: true, ..Filter::default() }
}

fn packed(store: &Queries, filter: &Filter) -> Option<Vec<Record>> {
    let sql = store.catalogue().unwrap().unwrap();
    page(sql, filter, filter.page.limit.unwrap_or(usize::MAX)).unwrap().map(|page| page.jobs)
}

fn rows(state: &std::path::Path) -> i64 {
    database(state).query_row("SELECT count(*) FROM brief", [], |row| row.get(0)).unwrap()
}

/// All jobs, page by page.
fn pages(store: &Queries, filter: &Filter) -> Vec<Record> {
    let (mut jobs, mut page) = (Vec::new(), filter.clone());
    loop {
        let found = store.page(&page).unwrap();
        jobs.extend(found.jobs);
        match found.next {
            Some(next) => page.page.after = Some(next),
            None => return jobs,
        }
    }
}

fn database(state: &std::path::Path) -> Connection {
    Connection::open(state.join(CATALOGUE_FILE)).unwrap()
}

#[test]
fn packed_records_are_those_that_are_stored_page_by_page() {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    // Many of one instant, some of them with one number.
    let mut jobs: Vec<Record> = (1..=300).map(|id| job(id, MIDNIGHT_S + (id / 40) as i64)).collect();
    jobs.iter_mut().filter(|job| job.key.id.starts_with('7')).for_each(|job| job.key.id.insert(1, '_'));
    writer.put_all(&jobs).unwrap();
    drop(writer);
    let times = [None, Some((MIDNIGHT_S + 2) * SECOND_NS), Some((MIDNIGHT_S + 6) * SECOND_NS)];
    let mut filters = Vec::new();
    for (since_ns, until_ns) in times.into_iter().flat_map(|since| times.map(|until| (since, until))) {
        for (limit, max_bytes) in [(None, None), (Some(500), Some(40_000)), (Some(50), None), (Some(2), None)]
        {
            filters.push(Filter {
                times: JobTimes { since_ns, until_ns, ..JobTimes::default() },
                page: PageBounds { limit, max_bytes, ..PageBounds::default() },
                ..brief()
            });
        }
    }
    let user = Some("alice".to_owned());
    filters.push(Filter {
        manager: Some("local".to_owned()),
        owner: JobOwner { user: user.clone(), ..JobOwner::default() },
        page: PageBounds { limit: Some(30), ..PageBounds::default() },
        ..brief()
    });
    filters.push(Filter { owner: JobOwner::of_uid(7), ..brief() });
    let reader = Reader::open(state.path()).unwrap();
    let fast: Vec<Vec<Record>> = filters.iter().map(|filter| pages(&reader, filter)).collect();
    assert_eq!(fast[0].len(), 300);
    // Some have none, and then none has one.
    for left in ["job % 7 = 0", "1 = 0"] {
        database(state.path()).execute(&format!("DELETE FROM brief WHERE NOT ({left})"), []).unwrap();
        for (filter, fast) in filters.iter().zip(&fast) {
            assert_eq!(*fast, pages(&reader, filter), "{filter:?}");
        }
    }
    assert!(packed(&reader, &brief()).is_none(), "records are read");
    assert!(reader.take_unreadable().is_empty());
}

#[test]
fn who_asks_for_more_does_not_get_packed_ones() {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put(&job(1, MIDNIGHT_S)).unwrap();
    let more = [
        Filter { name: Some("x".to_owned()), ..brief() },
        Filter { states: vec![State::Finished], ..brief() },
        Filter { with_gpus: true, ..brief() },
        Filter { is_brief: false, ..brief() },
        Filter { with_summaries: false, ..brief() },
        Filter {
            page: PageBounds { sort: Some("name:desc".parse().unwrap()), ..PageBounds::default() },
            ..brief()
        },
    ];
    assert!(more.iter().all(|filter| packed(&writer, filter).is_none()));
    assert_eq!(packed(&writer, &brief()).map(|jobs| jobs.len()), Some(1));
}

/// A row of `job` holds the whole record.
#[test]
fn the_wide_index_says_which_rows_are_read() {
    let state = tempfile::tempdir().unwrap();
    let writer = Writer::open(state.path()).unwrap();
    let sql = writer.catalogue().unwrap().unwrap();
    let after = Some(Cursor::of(&job(1, MIDNIGHT_S)));
    let user = Some("alice".to_owned());
    for filter in [
        brief(),
        Filter { page: PageBounds { after, ..PageBounds::default() }, ..brief() },
        Filter { owner: JobOwner { user, uid: Some(7), ..JobOwner::default() }, ..brief() },
    ] {
        let (statement, values, _) = statement(&filter, 100);
        let mut steps = Vec::new();
        sql.query(&format!("EXPLAIN QUERY PLAN {statement}"), &values, &mut |row| {
            steps.push(row.get(3).text()?.to_owned());
            Ok(())
        })
        .unwrap();
        assert!(steps[0].contains("job USING COVERING INDEX job_by_start"), "{steps:?}");
        assert!(steps.iter().all(|step| !step.contains("B-TREE")), "{steps:?}");
    }
}

#[test]
fn a_damaged_row_is_read_from_the_record() {
    let state = tempfile::tempdir().unwrap();
    Writer::open(state.path()).unwrap().put_all(&[job(1, MIDNIGHT_S), job(2, MIDNIGHT_S)]).unwrap();
    let reader = Reader::open(state.path()).unwrap();
    let whole = reader.jobs(&brief()).unwrap();
    for damage in [
        "UPDATE brief SET data = zeroblob(300) WHERE job = 1",
        "UPDATE brief SET sum = 9 WHERE job = 1",
        "UPDATE brief SET data = substr(data, 1, 20) WHERE job = 2",
        "UPDATE term SET text = 'other' WHERE text = 'cpu'",
    ] {
        database(state.path()).execute(damage, []).unwrap();
        assert_eq!(reader.jobs(&brief()).unwrap().len(), whole.len());
        if !damage.contains("term") {
            assert_eq!(reader.jobs(&brief()).unwrap(), whole, "{damage}");
            assert!(reader.take_unreadable().is_empty(), "nothing is lost");
        }
    }
    assert!(!reader.take_unreadable().is_empty(), "a total without a name is");
}

#[test]
fn a_row_that_is_not_what_its_record_says_is_found_and_written_again() {
    for (damage, named) in [
        // As a write that was lost leaves it: whole, and of another time.
        ("UPDATE brief SET (data, sum) = (SELECT data, sum FROM earlier) WHERE job = 1", &["1"][..]),
        ("UPDATE brief SET data = zeroblob(300) WHERE job = 2", &["2"]),
        (
            "PRAGMA foreign_keys = OFF; INSERT INTO brief SELECT 999, format, sum, data FROM brief WHERE job = 1",
            &["row 999"],
        ),
    ] {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        writer.put_all(&[job(1, MIDNIGHT_S), job(2, MIDNIGHT_S)]).unwrap();
        database(state.path())
            .execute_batch("CREATE TABLE earlier AS SELECT data, sum FROM brief WHERE job = 1")
            .unwrap();
        let mut later = job(1, MIDNIGHT_S);
        later.end_ns = later.end_ns.map(|end_ns| end_ns + 5_000_000_000);
        later.totals.set(CPU, 77, QualityKind::Measured, "cgroup");
        writer.put(&later).unwrap();
        drop(writer);
        let checked = || crate::check(state.path()).unwrap().unwrap();
        assert_eq!((checked().problems.len(), checked().unlike_packed.len()), (0, 0));
        let whole = Reader::open(state.path()).unwrap().jobs(&brief()).unwrap();
        database(state.path()).execute_batch(damage).unwrap();
        assert_eq!(
            (checked().problems, checked().unlike_packed),
            (Vec::<String>::new(), named.iter().map(|name| (*name).to_owned()).collect()),
            "{damage}"
        );
        let mut writer = Writer::open(state.path()).unwrap();
        assert!(writer.salvaged.take().is_none(), "records are whole");
        assert_eq!(writer.jobs(&brief()).unwrap(), whole, "{damage}");
        drop(writer);
        assert_eq!(checked().unlike_packed, Vec::<String>::new(), "{damage}");
        let rows = "SELECT count(*) FROM brief";
        let rows: i64 = database(state.path()).query_row(rows, [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 2, "{damage}");
    }
}

#[test]
fn a_large_store_is_compared_piece_by_piece() {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    let jobs: Vec<Record> = (1..=PAGE_ROWS as u64 + 20).map(|id| finished(id, MIDNIGHT_S)).collect();
    writer.put_all(&jobs).unwrap();
    let last = jobs.len() as i64;
    let damage = format!("UPDATE brief SET sum = 9 WHERE job IN (1, {last})");
    database(state.path()).execute(&damage, []).unwrap();
    let sql = writer.catalogue().unwrap().unwrap();
    let some = || -> Vec<i64> {
        compare_some(sql, Instant::now()).unwrap().into_iter().map(|(key, _)| key).collect()
    };
    assert_eq!((some(), some(), some()), (vec![1], vec![last], vec![]), "and from the beginning again");
    assert_eq!(rows(state.path()), last - 2);
    assert!(complete(sql, Instant::now()).unwrap());
    assert_eq!((rows(state.path()), some(), some()), (last, vec![], vec![]));
}

#[test]
fn an_emptied_record_is_not_packed() {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put_all(&[job(1, MIDNIGHT_S), job(2, MIDNIGHT_S)]).unwrap();
    let damage =
        "DELETE FROM brief; DELETE FROM meta WHERE name = 'brief'; UPDATE total SET value = 9 WHERE job = 1";
    database(state.path()).execute_batch(damage).unwrap();
    assert!(complete(writer.catalogue().unwrap().unwrap(), Instant::now()).unwrap());
    let packed = "SELECT group_concat(job) FROM brief";
    let packed: String = database(state.path()).query_row(packed, [], |row| row.get(0)).unwrap();
    assert_eq!(packed, "2");
    let reader = Reader::open(state.path()).unwrap();
    reader.jobs(&brief()).unwrap();
    assert_eq!(reader.take_unreadable().len(), 1, "it is still reported");
}

/// The columns say that the job is of another user than it is.
#[test]
fn who_sees_a_job_is_said_by_its_record() {
    let state = tempfile::tempdir().unwrap();
    let (own, other) = (job(1, MIDNIGHT_S), job(2, MIDNIGHT_S));
    let jobs = [Record { uid: Some(7), ..own }, Record { uid: Some(8), ..other }];
    Writer::open(state.path()).unwrap().put_all(&jobs).unwrap();
    let ids = |filter: &Filter| -> Vec<String> {
        let reader = Reader::open(state.path()).unwrap();
        reader.jobs(filter).unwrap().into_iter().map(|job| job.key.id).collect()
    };
    let of_user = Filter { owner: JobOwner::of_uid(7), ..brief() };
    assert_eq!(ids(&of_user), ["1"]);
    database(state.path()).execute("UPDATE job SET uid = 7 WHERE id = '2'", []).unwrap();
    assert_eq!(ids(&of_user), ["1"]);
    // Also where the row has no checksum.
    database(state.path()).execute("UPDATE job SET sum = NULL WHERE id = '2'", []).unwrap();
    assert_eq!(ids(&of_user), ["1"]);
}

#[test]
fn a_table_that_cannot_be_read_costs_nothing() {
    let state = tempfile::tempdir().unwrap();
    let jobs: Vec<Record> = (1..=50).map(|id| job(id, MIDNIGHT_S + id as i64)).collect();
    Writer::open(state.path()).unwrap().put_all(&jobs).unwrap();
    let all = Reader::open(state.path()).unwrap().jobs(&brief()).unwrap();
    let (page, bytes): (i64, i64) = {
        let database = database(state.path());
        database.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let root = "SELECT rootpage FROM sqlite_master WHERE name = 'brief'";
        let bytes = database.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
        (database.query_row(root, [], |row| row.get(0)).unwrap(), bytes)
    };
    let file = std::fs::OpenOptions::new().write(true).open(state.path().join(CATALOGUE_FILE)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 100], ((page - 1) * bytes) as u64).unwrap();
    let reader = Reader::open(state.path()).unwrap();
    let sql = reader.catalogue().unwrap().unwrap();
    assert!(page_of(sql).is_err(), "it is damaged");
    assert_eq!(reader.jobs(&brief()).unwrap(), all);
    assert!(reader.take_unreadable().is_empty());
}

fn page_of(sql: &dyn Sql) -> Result<Option<Page>> {
    page(sql, &brief(), usize::MAX)
}

#[test]
fn a_row_follows_its_job() {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    let first = job(1, MIDNIGHT_S);
    writer.put(&first).unwrap();
    let found = |writer: &Writer| packed(writer, &brief()).unwrap();
    let rows = || rows(state.path());
    let mut tagged = first.clone();
    tagged.annotation.note = Some("later".to_owned());
    tagged.annotation.written_ns = Some(MIDNIGHT_S * SECOND_NS);
    writer.put(&tagged).unwrap();
    assert_eq!(found(&writer)[0].annotation.note.as_deref(), Some("later"));
    let mut lost = Record { state: State::Lost, ..job(2, MIDNIGHT_S) };
    lost.end_ns = None;
    writer.put(&lost).unwrap();
    assert_eq!(rows(), 2);
    writer.put_revived(&[], &[], &[lost.key.clone()]).unwrap();
    assert_eq!(rows(), 1, "it lives");
    writer.put(&Record { state: State::Running, ..lost.clone() }).unwrap();
    assert_eq!(rows(), 1, "and goes on");
    assert_eq!(found(&writer).iter().filter(|job| job.state == State::Running).count(), 1);
    writer.remove(&first.key).unwrap();
    assert_eq!((rows(), found(&writer).len()), (0, 1));
}

#[test]
fn an_old_store_gets_its_rows_in_pieces() {
    let state = tempfile::tempdir().unwrap();
    let jobs: Vec<Record> = (1..=50).map(|id| job(id, MIDNIGHT_S + id as i64)).collect();
    Writer::open(state.path()).unwrap().put_all(&jobs).unwrap();
    let all = Reader::open(state.path()).unwrap().jobs(&brief()).unwrap();
    // As an earlier format, and as an earlier version of the file.
    for damage in [
        "UPDATE brief SET format = 0; UPDATE meta SET value = '0' WHERE name = 'brief'",
        "DELETE FROM brief; DELETE FROM meta WHERE name = 'brief'",
    ] {
        database(state.path()).execute_batch(damage).unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        let written = || -> i64 {
            let count = format!("SELECT count(*) FROM brief WHERE format = {FORMAT}");
            database(state.path()).query_row(&count, [], |row| row.get(0)).unwrap()
        };
        assert_eq!(
            (written(), writer.jobs(&brief()).unwrap()),
            (20, all.clone()),
            "opening writes one piece"
        );
        writer.put(&job(51, MIDNIGHT_S + 51)).unwrap();
        assert!(!writer.complete_lists(Duration::ZERO).unwrap());
        assert!(
            writer.complete_lists(Duration::ZERO).unwrap() && writer.complete_lists(Duration::ZERO).unwrap()
        );
        assert_eq!(written(), 41, "those that live have none");
        writer.remove(&job(51, MIDNIGHT_S + 51).key).unwrap();
        assert_eq!(writer.jobs(&brief()).unwrap(), all);
    }
}

/// Rows of an earlier version would be read as something else: with other bytes, `FORMAT` has to be another one.
#[test]
fn the_bytes_are_those_of_the_format() {
    let mut bytes = Vec::new();
    job(3, MIDNIGHT_S).pack(&mut bytes);
    assert_eq!((FORMAT, bytes.len(), checksum(&bytes)), (2, 286, 4_761_905_281_585_479_354));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..400) {
        let names = Names::default();
        let _ = unpack(&bytes, &names);
        let mut whole = Vec::new();
        job(3, MIDNIGHT_S).pack(&mut whole);
        whole.extend([0, 0]);
        prop_assert!(unpack(&whole, &names).is_some());
        whole.truncate(cut.min(whole.len() - 1));
        prop_assert!(unpack(&whole, &names).is_none());
    }

    #[test]
    fn numbers_are_read_as_they_were_written(signed in any::<i64>(), unsigned in any::<u64>(), real in any::<f64>(),
        text in ".{0,20}")
    {
        let mut bytes = Vec::new();
        signed.pack(&mut bytes);
        unsigned.pack(&mut bytes);
        Some(real).pack(&mut bytes);
        text.pack(&mut bytes);
        let mut from = Input(&bytes);
        prop_assert_eq!(i64::unpack(&mut from), Some(signed));
        prop_assert_eq!(u64::unpack(&mut from), Some(unsigned));
        let back = Option::<f64>::unpack(&mut from).flatten();
        prop_assert_eq!(back.map(f64::to_bits), Some(real.to_bits()));
        prop_assert_eq!(String::unpack(&mut from), Some(text));
        prop_assert!(from.0.is_empty());
    }
}

#[test]
fn the_row_of_a_record_that_cannot_be_read_stays_for_a_repair() {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    writer.put_all(&[job(1, MIDNIGHT_S), job(2, MIDNIGHT_S)]).unwrap();
    let damage = "UPDATE job SET detail = replace(detail, 'incarnation', 'incarnatioN') WHERE key = 1";
    assert_eq!(database(state.path()).execute(damage, []).unwrap(), 1);
    let sql = writer.catalogue().unwrap().unwrap();
    assert_eq!(compare_some(sql, Instant::now()).unwrap(), []);
    assert_eq!(rows(state.path()), 2);
}
