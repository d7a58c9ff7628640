//! The public object of a job: what `--json` prints. Its keys are a promise, written in docs/json.md.

use jiff::Timestamp;
use met_core::job::{Figure, QualityKind, Record};
use met_core::job_table::{
    MEMORY_CACHE, MEMORY_NEEDED, PROCESSES_RUNNING, READ, READ_CALL, THREADS_RUNNING, WALL, WRITE_CALL,
    WRITTEN,
};
use met_core::{Column, JOB, Unit};
use serde_json::{Map, Value, json};

use crate::average;

/// Raised when a key changes its meaning or goes away; a new key does not raise it.
pub const VERSION: u32 = 1;

pub fn object(record: &Record, now_ns: i64) -> Value {
    let figures = figures(record, now_ns);
    json!({
        "version": VERSION,
        "job": job(record),
        // Nothing is asked for when a job is started here; a scheduler's request is put in here.
        "requested": {},
        "totals": by_name(&figures, |column, figure| number(column, figure.value)),
        "average": averages(record, now_ns),
        "quality": by_name(&figures, |_, figure| json!({
            "kind": figure.kind.name(),
            "source": figure.source,
        })),
    })
}

fn job(record: &Record) -> Value {
    json!({
        "id": record.key.id,
        "manager": record.key.manager,
        "cluster": record.key.cluster,
        "name": record.name,
        "user": record.user,
        "account": record.account,
        "command": record.command,
        "state": record.state.name(),
        "manager_state": record.manager_state,
        // The kernel gives one or the other; a shell's 128 + signal is neither.
        "exit_code": record.exit_code.filter(|_| record.signal.is_none()),
        "signal": record.signal,
        "start": record.start_ns.and_then(time),
        "end": record.end_ns.and_then(time),
        "nodes": record.nodes,
    })
}

/// The known totals in the order of the job table, with the wall time of a job that still runs.
fn figures(record: &Record, now_ns: i64) -> Vec<(usize, Figure)> {
    let mut figures: Vec<(usize, Figure)> = (record.totals.iter())
        .filter(|&(column, _)| column != WALL)
        .map(|(column, figure)| (column, figure.clone()))
        .collect();
    if let Some(value) = average::wall_ns(record, now_ns) {
        let known = record.totals.figure(WALL).filter(|figure| figure.value == value).cloned();
        let clock = Figure { value, kind: QualityKind::Measured, source: "clock".into() };
        figures.push((WALL, known.unwrap_or(clock)));
    }
    figures.sort_by_key(|&(column, _)| column);
    figures
}

fn by_name(figures: &[(usize, Figure)], value: impl Fn(&Column, &Figure) -> Value) -> Value {
    let named = figures.iter().map(|(column, figure)| {
        let column = &JOB.columns[*column];
        (column.json_name(), value(column, figure))
    });
    Value::Object(named.collect())
}

fn averages(record: &Record, now_ns: i64) -> Value {
    let mut averages = Map::new();
    let mut put = |name: &str, value: Option<f64>| {
        if let Some(value) = value.and_then(serde_json::Number::from_f64) {
            averages.insert(name.to_owned(), Value::Number(value));
        }
    };
    put("cores", average::cores(record, now_ns));
    for column in [READ, WRITTEN, READ_CALL, WRITE_CALL] {
        let name = format!("{}_per_second", JOB.columns[column].json_name());
        put(&name, average::per_second(record, column, now_ns));
    }
    for column in [MEMORY_NEEDED, MEMORY_CACHE, PROCESSES_RUNNING, THREADS_RUNNING] {
        put(&JOB.columns[column].json_name(), average::level(record, column));
    }
    put("memory_ratio", average::memory_ratio(record));
    Value::Object(averages)
}

/// Bytes and counts are whole; a count with a fraction (cores) and seconds are not.
pub fn number(column: &Column, cell: i64) -> Value {
    let whole = matches!(column.unit, Unit::Bytes | Unit::Count) && column.scale >= 1.0;
    if whole { json!(column.scaled(cell) as i64) } else { json!(column.scaled(cell)) }
}

/// RFC 3339 in UTC, with as many digits of the second as are not 0.
pub fn time(unix_ns: i64) -> Option<String> {
    Timestamp::from_nanosecond(unix_ns.into()).ok().map(|time| time.to_string())
}
