//! Records from foreign files: bounded like a record from a node, and within the range in which no
//! arithmetic on it overflows.

use anyhow::{Context, Result, ensure};
use met_core::job::Record;
use met_core::{Column, bounds};
use met_insight::answers::{Beside, EVIDENCE_MAX};
use serde_json::Value;

/// Values of the samples of one job: 512 MiB.
pub const CELLS_MAX: usize = 64 << 20;
/// Hundreds of events and GPUs.
pub const SERIES_MAX: usize = 4096;
/// The difference of two such numbers is one. As unix nanoseconds: the year 2116.
const NUMBER_MAX: i64 = (1 << 62) - 1;
/// The names of events and uuids of GPUs in a record are as long at most.
const PART_BYTES_MAX: usize = 200;
/// Of one node: more than any has.
const GPUS_MAX: f64 = 65_535.0;
const CORES_MAX: f64 = 1e6;

/// A record as it may be shown.
pub fn record(json: Value) -> Result<Record> {
    check_numbers(&json, "record")?;
    let mut record: Record = serde_json::from_value(json).context("record")?;
    bounds::bound(&mut record);
    // Processes, cgroups and paths of another machine are never looked at here.
    Ok(crate::portable(&record))
}

/// Adds an earlier run of a job.
pub fn add_earlier(earlier: &mut Vec<Record>, json: Value) -> Result<()> {
    ensure!(earlier.len() < EVIDENCE_MAX, "more than {EVIDENCE_MAX} earlier runs of one job");
    earlier.push(record(json)?);
    Ok(())
}

/// What other jobs on a node say of a job. What no node can have is not known; `None` where nothing is.
pub fn beside(gpus: Option<f64>, pressure: Option<f64>, cores: Option<f64>) -> Option<Beside> {
    let within = |number: Option<f64>, most: f64| number.filter(|number| (0.0..=most).contains(number));
    let beside = Beside {
        gpus: within(gpus, GPUS_MAX).filter(|gpus| gpus.fract() == 0.0).map(|gpus| gpus as u32),
        pressure: within(pressure, 1.0),
        cores: within(cores, CORES_MAX),
    };
    Some(beside).filter(|beside| *beside != Beside::default())
}

fn check_numbers(value: &Value, place: &str) -> Result<()> {
    match value {
        Value::Number(number) => {
            let whole = number.as_i64().is_some_and(|number| number.abs() <= NUMBER_MAX);
            let real =
                number.is_f64() && number.as_f64().is_some_and(|number| number.abs() <= NUMBER_MAX as f64);
            ensure!(whole || real, "{place}: {number} is out of range");
            Ok(())
        }
        Value::Array(values) => values.iter().try_for_each(|value| check_numbers(value, place)),
        Value::Object(values) => values
            .iter()
            .try_for_each(|(name, value)| check_numbers(value, if place == "record" { name } else { place })),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

pub fn time_ns(time_ns: i64) -> Result<i64> {
    ensure!((0..=NUMBER_MAX).contains(&time_ns), "the time {time_ns} is out of range");
    Ok(time_ns)
}

pub fn cell(cell: i64) -> Option<i64> {
    Some(cell).filter(|cell| (-NUMBER_MAX..=NUMBER_MAX).contains(cell))
}

/// The cell that a value in the column's unit was made of.
pub fn scaled_cell(column: &Column, value: f64) -> Option<i64> {
    Some(value).filter(|value| value.is_finite()).and_then(|value| column.unscaled(value)).and_then(cell)
}

pub fn part(part: &str) -> String {
    met_core::text::prefix(part, PART_BYTES_MAX).to_owned()
}
