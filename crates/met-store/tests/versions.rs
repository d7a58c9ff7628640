//! Every store version ever released still opens: one folder for each in `fixtures/store`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use met_core::MISSING;
use met_core::job::State;
use met_core::job_table::{CPU, MEMORY_NEEDED};
use met_store::{Filter, Reader, Writer};

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
    let state = restore("v1");
    for round in 0..2 {
        let (jobs, course) = if round == 0 {
            let reader = Reader::open(state.path()).unwrap();
            let jobs = reader.jobs(&Filter { with_summaries: true, ..Filter::default() }).unwrap();
            let course = reader.course(&jobs[1].key).unwrap();
            assert_eq!(reader.find(None, "1").unwrap().len(), 1);
            assert_eq!(reader.meta("cursor").unwrap(), None);
            (jobs, course)
        } else {
            let writer = Writer::open(state.path()).unwrap();
            assert_eq!(writer.moved_aside, None);
            let jobs = writer.jobs(&Filter { with_summaries: true, ..Filter::default() }).unwrap();
            let course = writer.course(&jobs[1].key).unwrap();
            assert_eq!(writer.find(None, "1").unwrap().len(), 1);
            (jobs, course)
        };
        assert_eq!(jobs.iter().map(|job| job.state).collect::<Vec<_>>(), [State::Running, State::Finished]);
        let ended = &jobs[1];
        assert_eq!((ended.name.as_str(), ended.key.id.as_str(), ended.exit_code), ("job-1", "1", Some(0)));
        assert_eq!(ended.totals.get(CPU), Some(42));
        assert_eq!(ended.totals.figure(CPU).unwrap().source, "cgroup");
        assert_eq!(ended.summaries.get(CPU).unwrap().p95, Some(1.5));
        assert_eq!(ended.local.as_ref().unwrap().boot_id, "b");
        assert_eq!(course.len(), 30);
        assert_eq!(course.columns[CPU][29], 29_000_000);
        assert_eq!(course.columns[MEMORY_NEEDED][..3], [MISSING, 4096, 8192]);
    }
}
