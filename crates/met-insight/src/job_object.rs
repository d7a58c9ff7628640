//! The public object of a job, as it is written. A tree of values would have 400 of them for each job, and take most of
//! the time of a list.

use std::borrow::Cow;
use std::sync::LazyLock;

use met_core::job::{Figure, QualityKind, Record};
use met_core::job_table::{
    CPU, EMISSIONS, ENERGY, GPU_ENERGY, GPU_MEMORY, GPU_POWER, GPU_UTILIZATION, GPUS, MEMORY_CACHE,
    MEMORY_NEEDED, MEMORY_NEEDED_PEAK, OOM_KILLS, PROCESSES_RUNNING, READ, READ_CALL, THREADS_RUNNING, WALL,
    WRITE_CALL, WRITTEN,
};
use met_core::provenance::Provenance;
use met_core::{JOB, Unit};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::json::{self, time};
use crate::{average, events, gpu, work};

/// The names of all columns.
static NAMES: LazyLock<Vec<String>> =
    LazyLock::new(|| JOB.columns.iter().map(|column| column.json_name()).collect());
const RATES: [usize; 4] = [READ, WRITTEN, READ_CALL, WRITE_CALL];
static RATE_NAMES: LazyLock<[String; 4]> =
    LazyLock::new(|| RATES.map(|column| format!("{}_per_second", NAMES[column])));

/// A job with what several of its sections need.
pub struct JobObject<'r> {
    record: &'r Record,
    now_ns: i64,
    identity: Identity<'r>,
    figures: Vec<(usize, Cow<'r, Figure>)>,
    efficiency: Value,
}

#[derive(Serialize)]
struct Identity<'r> {
    id: &'r str,
    raw_id: &'r str,
    manager: &'r str,
    cluster: Option<&'r str>,
    name: &'r str,
    user: Option<&'r str>,
    account: Option<&'r str>,
    command: &'r [String],
    state: &'static str,
    manager_state: Option<&'r str>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    start: Option<String>,
    end: Option<String>,
    nodes: &'r [String],
    as_of: Option<String>,
    inside: Option<&'r str>,
}

impl<'r> JobObject<'r> {
    pub fn new(record: &'r Record, now_ns: i64) -> JobObject<'r> {
        JobObject {
            record,
            now_ns,
            identity: identity(record),
            figures: figures(record, now_ns),
            efficiency: json::efficiency(record, now_ns),
        }
    }

    fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let JobObject { record, now_ns, .. } = *self;
        map.serialize_entry("version", &json::VERSION)?;
        map.serialize_entry("job", &self.identity)?;
        map.serialize_entry("requested", &json::resources(&record.requested))?;
        map.serialize_entry("totals", &Totals(&self.figures))?;
        map.serialize_entry("average", &Averages(averages(record, now_ns)))?;
        map.serialize_entry("quality", &Qualities(&self.figures))?;
        map.serialize_entry("gpus", &record.gpus.iter().map(gpu::object).collect::<Vec<_>>())?;
        map.serialize_entry("allocated", &json::resources(&record.allocated))?;
        map.serialize_entry("efficiency", &self.efficiency)?;
        map.serialize_entry("scheduling", &json::scheduling(record, now_ns))?;
        map.serialize_entry("parts", &record.parts.iter().map(json::part).collect::<Vec<_>>())?;
        map.serialize_entry("emission", &record.emission.as_ref().map(json::emission))?;
        if !record.work.is_empty() {
            map.serialize_entry("work", &work::object(record, now_ns))?;
        }
        // Without configured events there is no such section.
        if !record.events.is_empty() || !record.uncounted_events.is_empty() {
            map.serialize_entry("events", &events::object(record, now_ns))?;
        }
        if !record.annotation.tags.is_empty() {
            map.serialize_entry("tags", &record.annotation.tags)?;
        }
        if let Some(note) = &record.annotation.note {
            map.serialize_entry("note", note)?;
        }
        if !record.processes.is_empty() {
            map.serialize_entry(
                "processes",
                &record.processes.iter().map(json::process).collect::<Vec<_>>(),
            )?;
        }
        Ok(())
    }

    fn total(&self, column: usize) -> Option<Total> {
        let found = self.figures.iter().find(|(known, _)| *known == column);
        found.map(|(_, figure)| Total(column, figure.value))
    }
}

impl Serialize for JobObject<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        self.write(&mut map)?;
        map.end()
    }
}

fn identity(record: &Record) -> Identity<'_> {
    Identity {
        id: record.shown_id(),
        raw_id: &record.key.id,
        manager: &record.key.manager,
        cluster: record.cluster(),
        name: &record.name,
        user: record.user.as_deref(),
        account: record.account.as_deref(),
        command: &record.command,
        state: record.state.name(),
        manager_state: record.manager_state.as_deref(),
        // The kernel gives one or the other; a shell's 128 + signal is neither.
        exit_code: record.exit_code.filter(|_| record.signal.is_none()),
        signal: record.signal,
        start: record.start_ns.and_then(time),
        end: record.end_ns.and_then(time),
        nodes: &record.nodes,
        as_of: record.as_of_ns.filter(|_| record.state.is_live()).and_then(time),
        inside: record.inside.as_deref(),
    }
}

/// The known totals in the order of the job table, with the wall time of a job that still runs.
fn figures(record: &Record, now_ns: i64) -> Vec<(usize, Cow<'_, Figure>)> {
    let mut figures: Vec<(usize, Cow<'_, Figure>)> = (record.totals.iter())
        .filter(|&(column, _)| column != WALL)
        .map(|(column, figure)| (column, Cow::Borrowed(figure)))
        .collect();
    if let Some(value) = average::wall_ns(record, now_ns) {
        let known = record.totals.figure(WALL).filter(|figure| figure.value == value).map(Cow::Borrowed);
        let clock = || Cow::Owned(Figure { value, kind: QualityKind::Measured, source: "clock".into() });
        figures.push((WALL, known.unwrap_or_else(clock)));
    }
    figures.sort_by_key(|&(column, _)| column);
    figures
}

/// A cell of a column, as [`json::number`] has it.
#[derive(Clone, Copy)]
struct Total(usize, i64);

impl Serialize for Total {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let column = &JOB.columns[self.0];
        let whole = matches!(column.unit, Unit::Bytes | Unit::Count) && column.scale >= 1.0;
        let value = column.scaled(self.1);
        if whole { to.serialize_i64(value as i64) } else { to.serialize_f64(value) }
    }
}

struct Totals<'o>(&'o [(usize, Cow<'o, Figure>)]);

impl Serialize for Totals<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(column, figure)| (&NAMES[*column], Total(*column, figure.value))))
    }
}

struct Qualities<'o>(&'o [(usize, Cow<'o, Figure>)]);

#[derive(Serialize)]
struct Quality<'o> {
    kind: &'static str,
    source: &'o Provenance,
}

impl Serialize for Qualities<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(column, figure)| {
            (&NAMES[*column], Quality { kind: figure.kind.name(), source: &figure.source })
        }))
    }
}

struct Averages(Vec<(&'static str, f64)>);

impl Serialize for Averages {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().copied())
    }
}

fn averages(record: &Record, now_ns: i64) -> Vec<(&'static str, f64)> {
    let mut averages = Vec::new();
    let mut put = |name: &'static str, value: Option<f64>| {
        averages.extend(value.filter(|value| value.is_finite()).map(|value| (name, value)));
    };
    put("cores", average::cores(record, now_ns));
    for (column, name) in RATES.into_iter().zip(RATE_NAMES.iter()) {
        put(name, average::per_second(record, column, now_ns));
    }
    let levels = [MEMORY_NEEDED, MEMORY_CACHE, PROCESSES_RUNNING, THREADS_RUNNING];
    for column in levels.into_iter().chain([GPU_POWER]) {
        put(&NAMES[column], average::level(record, column));
    }
    put(&NAMES[GPU_UTILIZATION], average::gpus(record));
    put(&NAMES[GPU_MEMORY], average::gpu_memory_bytes(record));
    put("gpu_ratio", gpu::ratio(record));
    put("power_watts", average::per_second(record, ENERGY, now_ns));
    put("memory_ratio", average::memory_ratio(record));
    averages
}

/// The object of a job with its figures as one flat row, for readers that take columns one by one, such as Grafana's JSON
/// data sources: they would put values into the wrong rows where a key is absent, so there every key is always there, and
/// null if unknown.
pub struct WithRow<'r>(JobObject<'r>);

impl<'r> WithRow<'r> {
    pub fn new(record: &'r Record, now_ns: i64) -> WithRow<'r> {
        WithRow(JobObject::new(record, now_ns))
    }

    pub fn value(&self) -> Value {
        // Its keys are texts and its numbers are finite or null, so that cannot fail.
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl Serialize for WithRow<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        self.0.write(&mut map)?;
        map.serialize_entry("row", &Row(&self.0))?;
        map.end()
    }
}

struct Row<'o, 'r>(&'o JobObject<'r>);

const ROW_TOTALS: [usize; 10] =
    [WALL, CPU, MEMORY_NEEDED_PEAK, READ, WRITTEN, OOM_KILLS, GPUS, GPU_ENERGY, ENERGY, EMISSIONS];

impl Serialize for Row<'_, '_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let JobObject { record, now_ns, identity, efficiency, .. } = self.0;
        let mut row = to.serialize_map(None)?;
        row.serialize_entry("id", identity.id)?;
        row.serialize_entry("raw_id", identity.raw_id)?;
        row.serialize_entry("manager", identity.manager)?;
        row.serialize_entry("cluster", &identity.cluster)?;
        row.serialize_entry("name", identity.name)?;
        row.serialize_entry("user", &identity.user)?;
        row.serialize_entry("account", &identity.account)?;
        row.serialize_entry("state", identity.state)?;
        row.serialize_entry("start", &identity.start)?;
        row.serialize_entry("end", &identity.end)?;
        row.serialize_entry("reference", &record.label())?;
        row.serialize_entry("nodes", &record.nodes.join(","))?;
        row.serialize_entry("partition", &record.scheduling.partition)?;
        for column in ROW_TOTALS {
            row.serialize_entry(&NAMES[column], &self.0.total(column))?;
        }
        for name in ["cpu_ratio", "memory_ratio", "gpu_ratio", "time_ratio"] {
            row.serialize_entry(name, &efficiency[name])?;
        }
        let [from_ms, to_ms] = window_ms(record, *now_ns);
        row.serialize_entry("from_ms", &from_ms)?;
        row.serialize_entry("to_ms", &to_ms)?;
        row.end()
    }
}

/// The time window of a dashboard that shows all of the job, in unix milliseconds. A job that runs goes on until now;
/// one that waits has none.
fn window_ms(record: &Record, now_ns: i64) -> [Option<i64>; 2] {
    let Some(start_ns) = record.start_ns else { return [None, None] };
    let end_ns = record.end_ns.unwrap_or(now_ns).max(start_ns);
    [Some(start_ns.div_euclid(1_000_000)), Some(end_ns.div_euclid(1_000_000) + 1)]
}

/// A page of a list as JSON. Here and not where it is sent, since this crate is compiled for speed.
pub fn list(records: &[Record], next: Option<&str>, warnings: &[String], now_ns: i64) -> String {
    #[derive(Serialize)]
    struct List<'l> {
        jobs: Jobs<'l>,
        next: Option<&'l str>,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        warnings: &'l [String],
    }
    let jobs = Jobs { records, now_ns };
    serde_json::to_string(&List { jobs, next, warnings }).unwrap_or_default()
}

struct Jobs<'l> {
    records: &'l [Record],
    now_ns: i64,
}

impl Serialize for Jobs<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.records.iter().map(|record| WithRow::new(record, self.now_ns)))
    }
}

#[cfg(test)]
mod tests {
    use met_core::job::State;

    use super::*;
    use crate::sample;

    #[test]
    fn rows_have_the_same_keys_whatever_is_known() {
        let full = sample::finished();
        let mut bare = Record::new(full.key.clone(), "y", State::Pending);
        bare.start_ns = None;
        let now_ns = full.end_ns.unwrap() + 5_000_000_000;
        let rows = [&full, &bare].map(|record| WithRow::new(record, now_ns).value()["row"].clone());
        let keys = rows.each_ref().map(|row| row.as_object().unwrap().keys().cloned().collect::<Vec<_>>());
        assert_eq!(keys[0], keys[1]);
        assert_eq!(rows[0]["cpu_seconds"], json::object(&full, now_ns)["totals"]["cpu_seconds"]);
        assert!(rows[1]["cpu_seconds"].is_null() && rows[1]["from_ms"].is_null());
    }

    #[test]
    fn the_window_holds_the_whole_job() {
        let mut record = sample::finished();
        (record.start_ns, record.end_ns) = (Some(1_999_999), Some(5_000_001));
        assert_eq!(window_ms(&record, 9_000_000), [Some(1), Some(6)]);
        record.end_ns = None;
        assert_eq!(window_ms(&record, 9_000_000), [Some(1), Some(10)]);
    }

    #[test]
    fn a_list_is_what_its_objects_are() {
        let records = [sample::finished(), sample::scheduled()];
        let now_ns = sample::NOW_NS;
        let rows: Vec<Value> = records.iter().map(|record| WithRow::new(record, now_ns).value()).collect();
        for (record, row) in records.iter().zip(&rows) {
            let mut object = json::object(record, now_ns);
            object["row"] = row["row"].clone();
            assert_eq!(object.to_string(), row.to_string());
        }
        let next = Some("abc");
        assert_eq!(
            list(&records, next, &[], now_ns),
            serde_json::json!({ "jobs": rows, "next": next }).to_string()
        );
        let warnings = ["a job is missing".to_owned()];
        assert_eq!(
            list(&records[..1], None, &warnings, now_ns),
            serde_json::json!({ "jobs": [rows[0]], "next": null, "warnings": warnings }).to_string()
        );
    }
}
