//! What is said of the job itself, before its figures: who, where, when, and how much of what it was given.

use met_core::job::{LOCAL, QualityKind, Record, Resources};
use met_core::job_table as column;

use super::reader::{Reader, measured};
use super::words;
use super::{Amount, Fact, FactValue, Measure, Meter, ShareLine};
use crate::allocation::{self, Resource, Share};
use crate::gpu;

/// Changes of the request that a page names, the last ones; all are in JSON.
const CHANGES_MAX: usize = 4;

pub(super) fn facts(job: &Reader<'_>) -> Vec<Fact> {
    let record = job.record;
    let mut facts = Vec::new();
    let mut put = |label, value| facts.push(Fact { label, value });
    if !record.command.is_empty() {
        put("command", FactValue::Command(record.command.clone()));
    }
    if record.key.manager != LOCAL {
        let cluster = record.cluster().map(|cluster| format!(" on {cluster}"));
        put("manager", FactValue::Text(record.key.manager.clone() + &cluster.unwrap_or_default()));
    }
    match (&record.user, &record.account) {
        (Some(user), Some(account)) => put("user", FactValue::Text(format!("{user}, account {account}"))),
        (Some(user), None) => put("user", FactValue::Text(user.clone())),
        (None, Some(account)) => put("account", FactValue::Text(account.clone())),
        (None, None) => {}
    }
    if let Some(outer) = &record.inside {
        put("inside", FactValue::Text(outer.clone()));
    }
    for (label, words) in scheduling_facts(record) {
        put(label, FactValue::Text(words));
    }
    if !record.nodes.is_empty() {
        put(if record.nodes.len() == 1 { "node" } else { "nodes" }, nodes(&record.nodes));
    }
    if let Some(state) = record.manager_state.as_ref().filter(|_| record.key.manager != LOCAL) {
        put("manager state", FactValue::Text(state.clone()));
    }
    if let Some(wait_ns) = allocation::queue_wait_ns(record, job.now_ns) {
        put("queued for", FactValue::Amount(measured(wait_ns as f64 / 1e9, Measure::Seconds)));
    }
    if let Some(start_ns) = record.start_ns {
        put("started", FactValue::Times(start_ns, record.end_ns));
    }
    for (words, by_ns) in changes(record) {
        put("changed", FactValue::Change(words, by_ns));
    }
    if let Some(wall) = job.wall() {
        put(if record.state.is_live() { "running for" } else { "duration" }, FactValue::Amount(wall));
    }
    facts
}

pub(super) fn meters(job: &Reader<'_>) -> Vec<Meter> {
    let cpu = || meter("CPU", job.rate(column::CPU, Measure::Cores)?, job.cpus()?, "average");
    let memory = || meter("memory", job.total(column::MEMORY_NEEDED_PEAK)?, job.memory_at_most()?, "peak");
    [cpu(), memory(), gpu_meter(job)].into_iter().flatten().collect()
}

pub(super) fn shares(job: &Reader<'_>) -> Vec<ShareLine> {
    let line = |share: Share| {
        let (label, measure) = match share.resource {
            Resource::Nodes => ("nodes", Measure::Count),
            Resource::Cpus => ("CPUs", Measure::Cores),
            Resource::Memory => ("memory", Measure::Bytes),
            Resource::Gpus => ("GPUs", Measure::Gpus),
            Resource::Time => ("time", Measure::Seconds),
        };
        let amount = |value: f64| measured(value, measure);
        ShareLine {
            label,
            requested: share.requested.map(amount),
            allocated: share.allocated.map(amount),
            used: share.used.map(|value| Amount { value, measure, quality: share.quality }),
            efficiency: share.efficiency(),
        }
    };
    allocation::shares(job.record, job.now_ns).into_iter().map(line).collect()
}

fn gpu_meter(job: &Reader<'_>) -> Option<Meter> {
    let used = gpu::computing(job.record)?;
    let amount = |value, quality| Amount { value, measure: Measure::Gpus, quality };
    let whole = amount(gpu::gpus(job.record), QualityKind::Measured);
    meter("GPU", amount(used, QualityKind::Sampled), whole, "average")
}

/// What a manager says of a job, in words.
fn scheduling_facts(record: &Record) -> Vec<(&'static str, String)> {
    let scheduling = &record.scheduling;
    let mut facts = Vec::new();
    match (&scheduling.partition, &scheduling.qos) {
        (Some(partition), Some(qos)) => facts.push(("partition", format!("{partition}, QOS {qos}"))),
        (Some(partition), None) => facts.push(("partition", partition.clone())),
        (None, Some(qos)) => facts.push(("QOS", qos.clone())),
        (None, None) => {}
    }
    if let (Some(array), Some(index)) = (&scheduling.array_id, scheduling.array_index) {
        facts.push(("array", format!("element {index} of {array}, id {}", record.key.id)));
    }
    if let (Some(whole), Some(offset)) = (&scheduling.het_id, scheduling.het_offset) {
        facts.push(("component", format!("{offset} of {whole}, id {}", record.key.id)));
    }
    if let Some(restarts) = scheduling.restarts.filter(|&restarts| restarts > 0) {
        facts.push(("restarts", restarts.to_string()));
    }
    // Slurm's word for no reason.
    if let Some(reason) = scheduling.reason.as_ref().filter(|reason| *reason != "None") {
        facts.push(("reason", reason.clone()));
    }
    facts
}

/// What changed of the request or the allocation while the job ran, and the time by which it had.
fn changes(record: &Record) -> Vec<(String, i64)> {
    let earlier = &record.scheduling.earlier;
    let now = (&record.requested, &record.allocated);
    let next = earlier.iter().skip(1).map(|one| (&one.requested, &one.allocated)).chain([now]);
    let mut changes = Vec::new();
    for (one, (requested, allocated)) in earlier.iter().zip(next) {
        // An answer that came after the end reports a change before it.
        let by_ns = record.end_ns.map_or(one.until_ns, |end_ns| one.until_ns.min(end_ns));
        let mut words = changed(&one.requested, requested, "");
        // Most managers change both at once.
        if words.is_empty() {
            words = changed(&one.allocated, allocated, "allocated ");
        }
        changes.extend(words.into_iter().map(|words| (words, by_ns)));
    }
    changes.drain(..changes.len().saturating_sub(CHANGES_MAX));
    changes
}

fn changed(before: &Resources, after: &Resources, which: &str) -> Vec<String> {
    let of = |resources: &Resources| {
        let Resources { nodes, cpus, memory_bytes, gpus, time_limit_ns, .. } = *resources;
        [
            ("time limit", time_limit_ns.map(|ns| ns as f64 / 1e9), Measure::Seconds),
            ("CPUs", cpus.map(|cpus| cpus as f64), Measure::Count),
            ("memory", memory_bytes.map(|bytes| bytes as f64), Measure::Bytes),
            ("GPUs", gpus.map(|gpus| gpus as f64), Measure::Count),
            ("nodes", nodes.map(|nodes| nodes as f64), Measure::Count),
        ]
    };
    let words = |((name, before, measure), (_, after, _)): ((&str, Option<f64>, Measure), _)| {
        let (before, after): (f64, f64) = before.zip(after).filter(|(before, after)| before != after)?;
        let verb = if after > before { "raised" } else { "lowered" };
        let amount = |value| words::amount(&measured(value, measure));
        Some(format!("{which}{name} {}, {verb} to {}", amount(before), amount(after)))
    };
    of(before).into_iter().zip(of(after)).filter_map(words).collect()
}

fn meter(label: &'static str, used: Amount, whole: Amount, of: &'static str) -> Option<Meter> {
    Some(Meter { label, share: used.value / whole.value, used, whole, of })
}

fn nodes(nodes: &[String]) -> FactValue {
    FactValue::Text(nodes.join(", "))
}

#[cfg(test)]
mod tests {
    use met_core::job::EarlierRequest;

    use super::*;
    use crate::sample::scheduled;

    #[test]
    fn changes_of_a_request_are_named_with_the_time_by_which_they_were_made() {
        const SECOND_NS: i64 = 1_000_000_000;
        let mut record = scheduled();
        let start_ns = record.start_ns.unwrap();
        record.end_ns = Some(start_ns + 100 * SECOND_NS);
        let held = |until_s: i64, requested: &Resources, allocated: &Resources| EarlierRequest {
            until_ns: start_ns + until_s * SECOND_NS,
            requested: requested.clone(),
            allocated: allocated.clone(),
        };
        let shorter = Resources { time_limit_ns: Some(30 * SECOND_NS), ..record.requested.clone() };
        let wider = Resources { cpus: Some(8), nodes: Some(2), ..record.allocated.clone() };
        record.scheduling.earlier =
            vec![held(10, &shorter, &wider), held(900, &record.requested.clone(), &wider)];
        let reported = changes(&record);
        let by = |seconds: i64| start_ns + seconds * SECOND_NS;
        assert_eq!(
            reported,
            [
                ("time limit 30s, raised to 1h00m00s".to_owned(), by(10)),
                ("allocated CPUs 8, lowered to 4".to_owned(), by(100)),
                ("allocated nodes 2, lowered to 1".to_owned(), by(100)),
            ]
        );
        record.scheduling.earlier.clear();
        assert!(changes(&record).is_empty());
    }
}
