//! Events as JSON objects, for any sink that writes text. The keys are described in docs/json.md.

use met_core::job::{JobKey, Record};
use met_core::{JOB, MISSING, Table, event};
use met_insight::json::{number, object, time};
use met_wire::batch::Subject;
use serde_json::{Map, Value, json};

use crate::event::{Event, Samples};

/// One object for a job, and one for each row of samples and ticks.
pub fn objects(event: &Event, now_ns: i64, mut write: impl FnMut(Value)) {
    match event {
        Event::Started(record) => write(of_record("started", record, record.start_ns, now_ns)),
        Event::Ended(record) => write(of_record("ended", record, record.end_ns, now_ns)),
        Event::Interim(now) => {
            let totals = now.totals.iter().map(|(column, figure)| (&JOB.columns[column], figure.value));
            let totals = totals.map(|(column, cell)| (column.json_name(), number(column, cell)));
            let totals: Map<String, Value> = totals.collect();
            write(json!({
                "event": "interim", "time": time(now_ns), "table": JOB.name, "job": job(&now.key), "totals": totals,
            }));
        }
        Event::Samples(samples) => of_samples(samples, write),
        // They are also samples of jobs and nodes, as this server keeps them.
        Event::Colmet(_) => {}
        // No measurement.
        Event::Sampling(_) | Event::Health(_) => {}
        Event::Tick(tick) => {
            for (row, cells) in tick.rows() {
                let mut object = of_row("tick", tick.time_ns, tick.table, cells.iter().copied());
                object["job"] = json!(row.job.as_ref().map(job));
                let labels = tick.table.labels.iter().zip(&row.labels).filter(|(_, value)| !value.is_empty());
                let labels = labels.map(|(name, value)| ((*name).to_owned(), json!(value)));
                object["labels"] = Value::Object(labels.collect());
                write(object);
            }
        }
    }
}

fn of_record(event: &str, record: &Record, at_ns: Option<i64>, now_ns: i64) -> Value {
    let mut line = object(record, now_ns);
    (line["event"], line["table"]) = (json!(event), json!(JOB.name));
    line["time"] = json!(time(at_ns.unwrap_or(now_ns)));
    line
}

fn of_samples(Samples { node, subject, series }: &Samples, mut write: impl FnMut(Value)) {
    for (index, time_ms) in series.times_ms.iter().enumerate() {
        let cells = series.columns.iter().map(|column| column[index]);
        let mut object = of_row("sample", time_ms.saturating_mul(1_000_000), series.table, cells);
        object["node"] = json!(node);
        match subject {
            Subject::Job(key) => {
                let (key, part) = event::of_series_key(key);
                object["job"] = job(&key);
                if !part.is_empty() {
                    object["part"] = json!(part);
                }
            }
            Subject::Device(uuid) => object["part"] = json!(uuid),
            Subject::Node(part) => object["part"] = json!(part),
        }
        write(object);
    }
}

fn of_row(event: &str, time_ns: i64, table: &Table, cells: impl Iterator<Item = i64>) -> Value {
    let known = table.columns.iter().zip(cells).filter(|(_, cell)| *cell != MISSING);
    let values = known.map(|(column, cell)| (column.json_name(), number(column, cell)));
    let values: Map<String, Value> = values.collect();
    json!({"event": event, "time": time(time_ns), "table": table.name, "values": values})
}

fn job(key: &JobKey) -> Value {
    json!({"raw_id": key.id, "manager": key.manager, "cluster": key.cluster})
}
