//! A job as one flat row, for readers that take columns one by one, such as Grafana's JSON data sources: they would put
//! values into the wrong rows where a key is absent, so here every key is always there, and null if unknown.

use met_core::JOB;
use met_core::job::Record;
use met_core::job_table::{
    CPU, EMISSIONS, ENERGY, GPU_ENERGY, GPUS, MEMORY_NEEDED_PEAK, OOM_KILLS, READ, WRITTEN,
};
use serde_json::{Map, Value, json};

const TOTALS: [usize; 9] =
    [CPU, MEMORY_NEEDED_PEAK, READ, WRITTEN, OOM_KILLS, GPUS, GPU_ENERGY, ENERGY, EMISSIONS];

/// `object` is the job's own, from which the figures are taken.
pub(super) fn row(record: &Record, object: &Value, now_ns: i64) -> Value {
    let mut row = Map::new();
    for name in ["id", "raw_id", "manager", "cluster", "name", "user", "account", "state", "start", "end"] {
        row.insert(name.to_owned(), object["job"][name].clone());
    }
    row.insert("reference".to_owned(), json!(record.label()));
    row.insert("nodes".to_owned(), json!(record.nodes.join(",")));
    row.insert("partition".to_owned(), json!(record.scheduling.partition));
    row.insert("wall_seconds".to_owned(), object["totals"]["wall_seconds"].clone());
    for name in TOTALS.map(|column| JOB.columns[column].json_name()) {
        row.insert(name.clone(), object["totals"][&name].clone());
    }
    for name in ["cpu_ratio", "memory_ratio", "gpu_ratio", "time_ratio"] {
        row.insert(name.to_owned(), object["efficiency"][name].clone());
    }
    let [from_ms, to_ms] = window_ms(record, now_ns);
    row.insert("from_ms".to_owned(), json!(from_ms));
    row.insert("to_ms".to_owned(), json!(to_ms));
    Value::Object(row)
}

/// The time window of a dashboard that shows all of the job, in unix milliseconds. A job that runs goes on until now;
/// one that waits has none.
fn window_ms(record: &Record, now_ns: i64) -> [Option<i64>; 2] {
    let Some(start_ns) = record.start_ns else { return [None, None] };
    let end_ns = record.end_ns.unwrap_or(now_ns).max(start_ns);
    [Some(start_ns.div_euclid(1_000_000)), Some(end_ns.div_euclid(1_000_000) + 1)]
}

#[cfg(test)]
mod tests {
    use met_core::job::State;
    use met_core::sample;
    use met_insight::json;

    use super::*;

    #[test]
    fn rows_have_the_same_keys_whatever_is_known() {
        let full = sample::full(7, "x");
        let mut bare = Record::new(full.key.clone(), "y", State::Pending);
        bare.start_ns = None;
        let now_ns = full.end_ns.unwrap() + 5_000_000_000;
        let rows = [&full, &bare].map(|record| row(record, &json::object(record, now_ns), now_ns));
        let keys = rows.each_ref().map(|row| row.as_object().unwrap().keys().cloned().collect::<Vec<_>>());
        assert_eq!(keys[0], keys[1]);
        assert_eq!(rows[0]["cpu_seconds"], json::object(&full, now_ns)["totals"]["cpu_seconds"]);
        assert!(rows[1]["cpu_seconds"].is_null() && rows[1]["from_ms"].is_null());
    }

    #[test]
    fn the_window_holds_the_whole_job() {
        let mut record = sample::full(7, "x");
        (record.start_ns, record.end_ns) = (Some(1_999_999), Some(5_000_001));
        assert_eq!(window_ms(&record, 9_000_000), [Some(1), Some(6)]);
        record.end_ns = None;
        assert_eq!(window_ms(&record, 9_000_000), [Some(1), Some(10)]);
    }
}
