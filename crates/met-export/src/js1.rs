//! The summary of a job in the form that jobstats stores with a Slurm job: `JS1:` and gzipped JSON in base64.

use std::io::{self, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use met_core::job::{GpuUse, Part, Record, Totals};
use met_core::job_table as column;
use serde_json::{Map, Value, json};

/// A shorter job has no summary there.
const SHORT_NS: i64 = 60_000_000_000;

/// `JS1:Short` of a job of less than a minute, `JS1:None` of one of which nothing was measured.
pub fn js1(record: &Record, now_ns: i64) -> io::Result<String> {
    if record.wall_ns(now_ns).is_some_and(|wall_ns| wall_ns < SHORT_NS) {
        return Ok("JS1:Short".to_owned());
    }
    let Some(summary) = summary(record, now_ns) else { return Ok("JS1:None".to_owned()) };
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(summary.to_string().as_bytes())?;
    Ok(format!("JS1:{}", BASE64_STANDARD.encode(packed.finish()?)))
}

/// What is not known is absent.
pub fn summary(record: &Record, now_ns: i64) -> Option<Value> {
    let count = record.nodes.len().max(1) as i64;
    let each = |whole: Option<i64>| whole.map(|whole| whole / count);
    let (cpus, memory) = (each(record.allocated.cpus), each(record.allocated.memory_bytes));
    let mut nodes = Map::new();
    if let [node] = record.nodes.as_slice() {
        let mut one = of_node(&record.totals, cpus, memory)?;
        add_gpus(record.gpus.iter(), &mut one);
        nodes.insert(node.clone(), Value::Object(one));
    } else {
        let is_node = |part: &&Part| part.step.is_empty() && part.task.is_none();
        let parts: Vec<&Part> = record.parts.iter().filter(is_node).collect();
        for part in &parts {
            if let Some(mut one) = of_node(&part.totals, cpus, memory) {
                // Where one node of several reports, what it says names no node.
                let is_here = |gpu: &&GpuUse| match &gpu.node {
                    Some(node) => *node == part.node,
                    None => parts.len() == 1,
                };
                add_gpus(record.gpus.iter().filter(is_here), &mut one);
                nodes.insert(part.node.clone(), Value::Object(one));
            }
        }
    }
    if nodes.is_empty() {
        return None;
    }
    let gpus = record.allocated.gpus.unwrap_or(record.gpus.len() as i64);
    let elapsed_s = record.wall_ns(now_ns)? / 1_000_000_000;
    Some(json!({ "gpus": gpus, "nodes": nodes, "total_time": elapsed_s }))
}

fn of_node(totals: &Totals, cpus: Option<i64>, memory: Option<i64>) -> Option<Map<String, Value>> {
    let mut one = Map::new();
    // Tenths of a second, as there.
    let cpu_s = (totals.get(column::CPU)? as f64 / 1e8).round() / 10.0;
    one.insert("total_time".to_owned(), json!(cpu_s));
    let used = totals.get(column::MEMORY_NEEDED_PEAK).or(totals.get(column::MEMORY_PEAK));
    for (name, value) in [("cpus", cpus), ("total_memory", memory), ("used_memory", used)] {
        if let Some(value) = value {
            one.insert(name.to_owned(), json!(value));
        }
    }
    Some(one)
}

/// By the number of each GPU.
fn add_gpus<'a>(gpus: impl Iterator<Item = &'a GpuUse>, one: &mut Map<String, Value>) {
    let mut lists = [Map::new(), Map::new(), Map::new()];
    for gpu in gpus {
        let percent =
            gpu.utilization.or(gpu.gpu_utilization).map(|used| json!((used * 1000.0).round() / 10.0));
        let values = [
            gpu.memory_total_bytes.map(|bytes| json!(bytes)),
            gpu.memory_peak_bytes.map(|bytes| json!(bytes)),
            percent,
        ];
        for (list, value) in lists.iter_mut().zip(values) {
            list.extend(value.map(|value| (gpu.index.clone(), value)));
        }
    }
    for (name, list) in ["gpu_total_memory", "gpu_used_memory", "gpu_utilization"].into_iter().zip(lists) {
        if !list.is_empty() {
            one.insert(name.to_owned(), Value::Object(list));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use met_core::job::QualityKind;

    use super::*;

    fn unpacked(text: &str) -> String {
        let packed = BASE64_STANDARD.decode(text.strip_prefix("JS1:").unwrap()).unwrap();
        let mut json = String::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut json).unwrap();
        json
    }

    #[test]
    fn a_summary_is_what_jobstats_reads() {
        let mut record = met_core::sample::full(1, "train");
        (record.start_ns, record.end_ns) = (Some(0), Some(50_944_000_000_000));
        (record.nodes, record.totals) = (vec!["n1".to_owned()], Totals::default());
        record.totals.set(column::CPU, 57_620_840_000_000, QualityKind::Measured, "cgroup");
        record.totals.set(column::MEMORY_NEEDED_PEAK, 84_683_702_272, QualityKind::Sampled, "cgroup");
        (record.allocated.cpus, record.allocated.memory_bytes) = (Some(12), Some(137_438_953_472));
        record.allocated.gpus = Some(1);
        let gpu = GpuUse { index: "1".to_owned(), utilization: Some(0.986), ..GpuUse::default() };
        record.gpus = vec![GpuUse { memory_total_bytes: Some(85_899_345_920), ..gpu }];
        let text = js1(&record, 0).unwrap();
        let expected = json!({
            "gpus": 1,
            "nodes": {"n1": {
                "cpus": 12, "total_memory": 137_438_953_472_i64, "used_memory": 84_683_702_272_i64, "total_time": 57_620.8,
                "gpu_total_memory": {"1": 85_899_345_920_i64}, "gpu_utilization": {"1": 98.6},
            }},
            "total_time": 50_944,
        });
        assert_eq!(serde_json::from_str::<Value>(&unpacked(&text)).unwrap(), expected);
        record.end_ns = Some(1);
        assert_eq!(js1(&record, 0).unwrap(), "JS1:Short");
        (record.end_ns, record.totals) = (Some(50_944_000_000_000), Totals::default());
        assert_eq!(js1(&record, 0).unwrap(), "JS1:None");
    }

    /// As jobstats reads it: whatever else is there fails.
    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Read {
        nodes: BTreeMap<String, ReadNode>,
        total_time: f64,
        gpus: i64,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ReadNode {
        used_memory: i64,
        total_memory: i64,
        cpus: i64,
        total_time: f64,
        #[serde(default)]
        gpu_utilization: BTreeMap<String, f64>,
        #[serde(default)]
        gpu_used_memory: BTreeMap<String, i64>,
        #[serde(default)]
        gpu_total_memory: BTreeMap<String, i64>,
    }

    fn two_nodes() -> Record {
        let mut record = met_core::sample::full(1, "train");
        (record.start_ns, record.end_ns) = (Some(0), Some(100_000_000_000));
        record.nodes = vec!["n1".to_owned(), "n2".to_owned()];
        (record.allocated.cpus, record.allocated.memory_bytes) = (Some(16), Some(64 << 30));
        record.allocated.gpus = Some(3);
        let part = |node: &str, cpu_s: i64| {
            let mut part = Part { node: node.to_owned(), ..Part::default() };
            part.totals.set(column::CPU, cpu_s * 1_000_000_000, QualityKind::Measured, "cgroup");
            part.totals.set(column::MEMORY_NEEDED_PEAK, cpu_s << 20, QualityKind::Sampled, "cgroup");
            part
        };
        record.parts = vec![part("n1", 300), part("n2", 50)];
        let gpu = |node: &str, index: &str, used: f64| GpuUse {
            node: Some(node.to_owned()),
            index: index.to_owned(),
            utilization: Some(used),
            memory_peak_bytes: Some((used * 1000.0) as i64),
            memory_total_bytes: Some(1000),
            ..GpuUse::default()
        };
        record.gpus = vec![gpu("n1", "0", 0.9), gpu("n2", "0", 0.1), gpu("n2", "1", 0.0)];
        record
    }

    #[test]
    fn each_node_has_its_own_gpus() {
        let record = two_nodes();
        let read: Read = serde_json::from_str(&unpacked(&js1(&record, 0).unwrap())).unwrap();
        let node = |cpu_s: i64, gpus: &[(&str, f64)]| ReadNode {
            used_memory: cpu_s << 20,
            total_memory: 32 << 30,
            cpus: 8,
            total_time: cpu_s as f64,
            gpu_utilization: gpus.iter().map(|(index, used)| ((*index).to_owned(), used * 100.0)).collect(),
            gpu_used_memory: gpus
                .iter()
                .map(|(index, used)| ((*index).to_owned(), (used * 1000.0) as i64))
                .collect(),
            gpu_total_memory: gpus.iter().map(|(index, _)| ((*index).to_owned(), 1000)).collect(),
        };
        let nodes = [("n1", node(300, &[("0", 0.9)])), ("n2", node(50, &[("0", 0.1), ("1", 0.0)]))];
        let nodes = nodes.map(|(name, node)| (name.to_owned(), node)).into();
        assert_eq!(read, Read { nodes, total_time: 100.0, gpus: 3 });
    }

    #[test]
    fn gpus_of_an_unknown_node_are_of_the_only_one_that_reports() {
        let mut record = two_nodes();
        record.gpus.iter_mut().for_each(|gpu| gpu.node = None);
        let read =
            |record: &Record| -> Read { serde_json::from_str(&unpacked(&js1(record, 0).unwrap())).unwrap() };
        assert!(read(&record).nodes.values().all(|node| node.gpu_utilization.is_empty()));
        record.parts.pop();
        record.gpus.truncate(1);
        assert_eq!(read(&record).nodes["n1"].gpu_utilization, [("0".to_owned(), 90.0)].into());
    }
}
