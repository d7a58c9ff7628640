use met_core::job::QualityKind;
use met_core::job_table::CPU;
use rusqlite::Connection;

use super::*;
use crate::query::CATALOGUE_FILE;
use crate::samples::{MIDNIGHT_S, SECOND_NS, running};
use crate::{PageBounds, Reader, Writer};

/// Nothing is known besides the records.
struct Nothing;

impl LiveJobs for Nothing {
    fn parts(&self, job: &JobKey) -> Result<Vec<JobKey>> {
        Ok(vec![job.clone()])
    }

    fn figures(&self, _: &[JobKey]) -> LiveFigures {
        LiveFigures { totals: [MISSING; FIGURES.len()], gpu_utilization: None, as_of_ns: None }
    }

    fn complete(&self, _: &[JobKey], _: &mut Record) {}
}

/// Asks for the first of three jobs, where the last one of them is damaged.
fn check_damage(damage: &str, is_read_before: bool) {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut jobs: Vec<Record> = (1..=3).map(|id| running(id, MIDNIGHT_S + id as i64)).collect();
    for (job, cpu_ns) in jobs.iter_mut().zip(1..) {
        job.totals.set(CPU, cpu_ns, QualityKind::Measured, "cgroup");
    }
    writer.put_all(&jobs).unwrap();
    let filter = Filter {
        page: PageBounds {
            sort: Some("cpu:desc".parse().unwrap()),
            limit: Some(1),
            now_ns: (MIDNIGHT_S + 1_000) * SECOND_NS,
            ..PageBounds::default()
        },
        ..Filter::default()
    };
    let rows = RunningJobs::default();
    let is_from_rows = || {
        let reader = Reader::open(state.path()).unwrap();
        rows.page(&reader, &filter, &Nothing).unwrap().is_some()
    };
    if is_read_before {
        assert!(is_from_rows());
    }
    writer.put(&Record { name: "changed".to_owned(), ..jobs[0].clone() }).unwrap();
    let database = Connection::open(state.path().join(CATALOGUE_FILE)).unwrap();
    assert!(database.execute(damage, []).unwrap() > 0, "{damage}");
    for time in 1..=3 {
        assert!(!is_from_rows(), "{damage}, {time}");
    }
}

#[test]
fn damage_is_met_by_every_list_and_not_only_by_the_first() {
    for is_read_before in [false, true] {
        check_damage("UPDATE job SET detail = 'no record' WHERE id = '1'", is_read_before);
        check_damage(
            "UPDATE total SET value = value + 1 WHERE job IN (SELECT key FROM job WHERE id = '1')",
            is_read_before,
        );
    }
}
