//! What is said of the job itself, before its figures: who, where, when, and how much of what it was given.

use met_core::job::{LOCAL, QualityKind, Record};
use met_core::job_table as column;

use super::reader::{Reader, measured};
use super::{Amount, Fact, FactValue, Measure, Meter, ShareLine};
use crate::allocation::{self, Resource, Share};
use crate::gpu;

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
            Resource::Gpus => ("GPUs", Measure::Cards),
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
    let amount = |value, quality| Amount { value, measure: Measure::Cards, quality };
    let whole = amount(gpu::cards(job.record), QualityKind::Measured);
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

fn meter(label: &'static str, used: Amount, whole: Amount, of: &'static str) -> Option<Meter> {
    Some(Meter { label, share: used.value / whole.value, used, whole, of })
}

fn nodes(nodes: &[String]) -> FactValue {
    FactValue::Text(nodes.join(", "))
}
