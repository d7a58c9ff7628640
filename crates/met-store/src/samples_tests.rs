//! Records and series for tests.

use met_core::job::{JobKey, LOCAL, Local, Origin, QualityKind, Record, State};
use met_core::job_table::{CPU, MEMORY_NEEDED};
use met_core::series::Series;
use met_core::{JOB, MISSING};

pub(crate) const SECOND_NS: i64 = 1_000_000_000;
/// 2026-11-15 00:00:00 UTC.
pub(crate) const MIDNIGHT_S: i64 = 1_794_700_800;

pub(crate) fn running(id: u64, start_s: i64) -> Record {
    Record {
        user: Some("ada".into()),
        uid: Some(1000),
        command: vec!["sleep".into(), "1".into()],
        start_ns: Some(start_s * SECOND_NS),
        nodes: vec!["node1".into()],
        node_memory_bytes: Some(1 << 34),
        local: Some(Local::new("b", Origin::Run, "/")),
        ..Record::new(
            JobKey { cluster: None, manager: LOCAL.into(), id: id.to_string(), incarnation: start_s },
            format!("job-{id}"),
            State::Running,
        )
    }
}

pub(crate) fn finished(id: u64, start_s: i64) -> Record {
    let mut record = running(id, start_s);
    record.state = State::Finished;
    record.exit_code = Some(0);
    record.end_ns = Some((start_s + 60) * SECOND_NS);
    record.totals.set(CPU, 42, QualityKind::Measured, "cgroup");
    record
}

/// `count` samples, one every `step_ms`.
pub(crate) fn series(begin_ms: i64, step_ms: i64, count: i64) -> Series {
    let mut series = Series::new(&JOB);
    let mut cells = vec![MISSING; JOB.columns.len()];
    for index in 0..count {
        cells[CPU] = index * 1_000_000;
        cells[MEMORY_NEEDED] = if index % 7 == 0 { MISSING } else { (index % 50) * 4096 };
        series.push(begin_ms + index * step_ms, &cells);
    }
    series
}
