//! Every store version ever released still opens: one folder for each in `fixtures/store`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use met_core::MISSING;
use met_core::conditions::Conditions;
use met_core::gpu::device;
use met_core::job::State;
use met_core::job_table::{CPU, MEMORY_NEEDED};
use met_core::reaction::ReactionKind;
use met_core::usage::{By, Every, UsageAsk, figure};
use met_store::{Filter, PageBounds, Queries, Reader, Writer};

/// Databases as text: a dump can be reviewed, and only its own version's SQL is in it.
fn restore(version: &str) -> tempfile::TempDir {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/store").join(version);
    let state = tempfile::tempdir().unwrap();
    fs::create_dir(state.path().join("series")).unwrap();
    for (dump, database) in [("store.sql", "store.db"), ("2026-11-15.sql", "series/2026-11-15.db")] {
        let sql = fs::read_to_string(fixture.join(dump)).unwrap();
        rusqlite::Connection::open(state.path().join(database)).unwrap().execute_batch(&sql).unwrap();
    }
    state
}

#[test]
fn version_1_still_opens() {
    opens("v1");
}

#[test]
fn version_2_still_opens_with_its_devices() {
    has_its_devices(&opens("v2"));
}

#[test]
fn version_3_still_opens_with_its_changes() {
    let state = opens("v3");
    has_its_devices(&state);
    let numbers = |mark: i64| -> Vec<(i64, String)> {
        let changes = Reader::open(state.path()).unwrap().changed_after(mark, 9).unwrap();
        changes.into_iter().map(|(number, record)| (number, record.key.id)).collect()
    };
    assert_eq!(numbers(0), [(2, "2".to_string()), (3, "1".to_string())], "job 1 was written twice");
    assert_eq!(numbers(2), [(3, "1".to_string())]);
}

#[test]
fn version_4_still_opens_with_its_checksums() {
    let state = opens("v4");
    has_its_devices(&state);
    let checked = met_store::check(state.path()).unwrap().unwrap();
    assert_eq!((checked.records, checked.unsummed), (2, 0));
    assert_eq!(checked.problems, Vec::<String>::new());
}

#[test]
fn version_5_still_opens_with_its_tags_and_narrow_rows() {
    let state = opens("v5");
    has_its_devices(&state);
    let conditions = Conditions { tag: Some("run-1".into()), ..Conditions::default() };
    let tagged =
        Reader::open(state.path()).unwrap().jobs(&Filter { conditions, ..Filter::default() }).unwrap();
    assert_eq!((tagged.len(), tagged[0].annotation.note.as_deref()), (1, Some("first try")));
}

#[test]
fn version_6_still_opens_with_its_sums_and_earlier_ones_get_them() {
    let cpu = |store: &Queries| -> i128 {
        let ask = UsageAsk::new(0, 2_000_000_000_000_000_000, By::User, Every::All);
        let ask = UsageAsk { from_ns: ask.to_ns - 300_000_000_000_000_000, ..ask };
        let usage = met_store::usage(store, &ask, &|_| true, &[], 0).unwrap().unwrap();
        usage.lines.iter().map(|line| line.sums[figure::CPU_NS]).sum()
    };
    for version in ["v4", "v5", "v6", "v7"] {
        let state = opens(version);
        assert_eq!(cpu(&Reader::open(state.path()).unwrap()), 42, "{version}");
        let mut writer = Writer::open(state.path()).unwrap();
        assert_eq!(
            met_store::is_usage_behind(&writer).unwrap(),
            !["v6", "v7"].contains(&version),
            "{version}"
        );
        met_store::sum_usage(&mut writer, Instant::now() + Duration::from_secs(60)).unwrap();
        assert_eq!(cpu(&writer), 42, "{version}");
    }
}

#[test]
fn version_7_still_opens_with_what_was_muted_and_earlier_ones_can_mute() {
    let state = opens("v7");
    let muted = met_store::reactions(&Reader::open(state.path()).unwrap()).unwrap();
    assert_eq!((muted.len(), muted[0].rule.as_str(), muted[0].kind), (1, "cpu_low", ReactionKind::Muted));
    for version in ["v1", "v4", "v6"] {
        let state = restore(version);
        assert_eq!(
            met_store::reactions(&Reader::open(state.path()).unwrap()).unwrap(),
            [],
            "{version}, not upgraded"
        );
        let mut writer = Writer::open(state.path()).unwrap();
        met_store::put_reactions(&mut writer, &muted, 0).unwrap().unwrap();
        assert_eq!(met_store::reactions(&writer).unwrap(), muted, "{version}");
        drop(writer);
        assert_eq!(met_store::reactions(&Reader::open(state.path()).unwrap()).unwrap(), muted, "{version}");
    }
}

#[test]
fn version_8_still_opens_with_its_packed_records_and_earlier_ones_get_them() {
    let brief = Filter { is_brief: true, with_summaries: true, ..Filter::default() };
    let packed = |state: &Path| -> i64 {
        let database = rusqlite::Connection::open(state.join("store.db")).unwrap();
        database.query_row("SELECT count(*) FROM brief", [], |row| row.get(0)).unwrap()
    };
    let state = opens("v8");
    for version in ["v1", "v4", "v7", "v8"] {
        let state = restore(version);
        let before = Reader::open(state.path()).unwrap().jobs(&brief).unwrap();
        assert_eq!(before.len(), 2, "{version}");
        drop(Writer::open(state.path()).unwrap());
        assert_eq!(packed(state.path()), 1, "{version}: one of the two is over");
        assert_eq!(Reader::open(state.path()).unwrap().jobs(&brief).unwrap(), before, "{version}");
    }
    assert_eq!(packed(state.path()), 1);
    // Without its record a job is listed only by its packed one, which a writer has made one of this format.
    let state = restore("v8");
    drop(Writer::open(state.path()).unwrap());
    let whole = Reader::open(state.path()).unwrap().jobs(&brief).unwrap();
    let database = rusqlite::Connection::open(state.path().join("store.db")).unwrap();
    assert_eq!(database.execute("UPDATE job SET detail = '{' WHERE id = '1'", []).unwrap(), 1);
    assert_eq!(Reader::open(state.path()).unwrap().jobs(&brief).unwrap(), whole);
    assert_eq!(database.execute("DELETE FROM brief", []).unwrap(), 1);
    assert_eq!(Reader::open(state.path()).unwrap().jobs(&brief).unwrap().len(), 1);
}

#[test]
fn an_upgrade_makes_the_tables_of_the_newest_version() {
    let tables = |state: &Path| -> Vec<(String, Option<String>)> {
        let database = rusqlite::Connection::open(state.join("store.db")).unwrap();
        let mut statement = database.prepare("SELECT name, sql FROM sqlite_master ORDER BY name").unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let newest = tables(restore("v8").path());
    for version in ["v1", "v5", "v7"] {
        let state = restore(version);
        drop(Writer::open(state.path()).unwrap());
        assert_eq!(tables(state.path()), newest, "{version}");
    }
}

#[test]
fn jobs_of_every_version_are_sorted_before_and_after_the_upgrade() {
    for version in ["v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8"] {
        let state = restore(version);
        let ids = |store: &Queries, sort: &str| -> Vec<String> {
            let filter = Filter {
                page: PageBounds { sort: Some(sort.parse().unwrap()), ..PageBounds::default() },
                ..Filter::default()
            };
            let mut page = Filter { page: PageBounds { limit: Some(1), ..filter.page }, ..filter };
            let mut found = Vec::new();
            loop {
                let next = store.page(&page).unwrap();
                found.extend(next.jobs.into_iter().map(|job| job.key.id));
                match next.next {
                    Some(next) => page.page.after = Some(next),
                    None => return found,
                }
            }
        };
        for sort in ["name", "cpu:desc", "end"] {
            assert_eq!(ids(&Reader::open(state.path()).unwrap(), sort), ["1", "2"], "{version}: {sort}");
        }
        // The rows of earlier versions do not have these.
        let later = |store: &Queries| ["queued", "exit", "tags", "command:desc"].map(|sort| ids(store, sort));
        let before = later(&Reader::open(state.path()).unwrap());
        drop(Writer::open(state.path()).unwrap());
        let reader = Reader::open(state.path()).unwrap();
        assert_eq!(later(&reader), before, "{version}");
        assert_eq!(ids(&reader, "name:desc"), ["2", "1"], "{version}");
        assert_eq!(reader.memberships(&Filter::default()).unwrap()[0].jobs, 2, "{version}");
    }
}

#[test]
fn records_of_version_3_are_summed_after_the_upgrade() {
    let state = restore("v3");
    assert_eq!(met_store::check(state.path()).unwrap().unwrap().unsummed, 2, "it is read as it is");
    let mut writer = Writer::open(state.path()).unwrap();
    writer.retain(&met_store::Retention::default(), 0).unwrap();
    let checked = met_store::check(state.path()).unwrap().unwrap();
    assert_eq!((checked.records, checked.unsummed, checked.problems.len()), (2, 0, 0));
}

#[test]
fn jobs_of_older_versions_are_changes_in_the_order_they_came() {
    for version in ["v1", "v2"] {
        let state = restore(version);
        let reader = Reader::open(state.path()).unwrap();
        assert_eq!(reader.changed_after(0, 9).unwrap(), [], "a file of that version has no numbers");
        assert_eq!(reader.newest_change().unwrap(), 0);
        drop(reader);
        let mut writer = Writer::open(state.path()).unwrap();
        let changes = writer.changed_after(0, 9).unwrap();
        let numbers = changes.iter().map(|(number, record)| (*number, record.key.id.as_str()));
        assert_eq!(numbers.collect::<Vec<_>>(), [(1, "1"), (2, "2")]);
        writer.put(&changes[0].1).unwrap();
        assert_eq!(writer.newest_change().unwrap(), 3);
    }
}

fn has_its_devices(state: &tempfile::TempDir) {
    let reader = Reader::open(state.path()).unwrap();
    let with_gpus =
        reader.jobs(&Filter { with_gpus: true, states: vec![State::Finished], ..Filter::default() }).unwrap();
    assert_eq!(with_gpus.iter().map(|job| job.key.id.as_str()).collect::<Vec<_>>(), ["1"]);
    let allocations = reader.allocations(&with_gpus[0].key).unwrap();
    assert_eq!((allocations[0].uuid.as_str(), allocations[0].end_ns), ("GPU-a", with_gpus[0].end_ns));
    assert_eq!(reader.devices().unwrap()[0].idle_mw, Some(75_000));
    let series = reader.device_series("GPU-a", i64::MIN, i64::MAX).unwrap();
    assert_eq!(series.columns[device::POWER], [300_000]);
}

#[test]
fn gpus_in_records_of_version_1_become_devices() {
    let state = restore("v1");
    let database = rusqlite::Connection::open(state.path().join("store.db")).unwrap();
    let gpu = r#"{"uuid":"GPU-a","name":"NVIDIA H200","vendor":"nvidia","held_by":"open","held_since_ns":7}"#;
    let sql = "UPDATE job SET detail = json_set(detail, '$.gpus', json(?1)) WHERE id = '1'";
    database.execute(sql, [format!("[{gpu}]")]).unwrap();
    drop(database);
    let reader = Reader::open(state.path()).unwrap();
    assert_eq!(reader.devices().unwrap(), [], "a file of that version has no such table");
    let with_gpus =
        reader.jobs(&Filter { with_gpus: true, states: vec![State::Finished], ..Filter::default() }).unwrap();
    drop(reader);
    let writer = Writer::open(state.path()).unwrap();
    let allocation = writer.allocations(&with_gpus[0].key).unwrap().remove(0);
    assert_eq!((allocation.uuid.as_str(), allocation.begin_ns), ("GPU-a", 7));
    assert_eq!((allocation.end_ns, allocation.held_by.as_str()), (with_gpus[0].end_ns, "open"));
    assert_eq!(writer.devices().unwrap()[0].name, "NVIDIA H200");
}

fn opens(version: &str) -> tempfile::TempDir {
    let state = restore(version);
    for round in 0..2 {
        let (jobs, series) = if round == 0 {
            let reader = Reader::open(state.path()).unwrap();
            let jobs = reader.jobs(&Filter { with_summaries: true, ..Filter::default() }).unwrap();
            let series = reader.series(&jobs[1].key).unwrap();
            assert_eq!(reader.find(None, "1").unwrap().len(), 1);
            assert_eq!(reader.meta("cursor").unwrap(), None);
            (jobs, series)
        } else {
            let writer = Writer::open(state.path()).unwrap();
            assert_eq!(writer.moved_aside, None);
            let jobs = writer.jobs(&Filter { with_summaries: true, ..Filter::default() }).unwrap();
            let series = writer.series(&jobs[1].key).unwrap();
            assert_eq!(writer.find(None, "1").unwrap().len(), 1);
            (jobs, series)
        };
        assert_eq!(jobs.iter().map(|job| job.state).collect::<Vec<_>>(), [State::Running, State::Finished]);
        let ended = &jobs[1];
        assert_eq!((ended.name.as_str(), ended.key.id.as_str(), ended.exit_code), ("job-1", "1", Some(0)));
        assert_eq!(ended.totals.get(CPU), Some(42));
        assert_eq!(ended.totals.figure(CPU).unwrap().source, "cgroup");
        assert_eq!(ended.summaries.get(CPU).unwrap().p95, Some(1.5));
        assert_eq!(ended.local.as_ref().unwrap().boot_id, "b");
        assert_eq!(series.len(), 30);
        assert_eq!(series.columns[CPU][29], 29_000_000);
        assert_eq!(series.columns[MEMORY_NEEDED][..3], [MISSING, 4096, 8192]);
    }
    state
}
