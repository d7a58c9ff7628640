//! What a job asked for, was given, and what its scheduler reports of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Takes over these fields from another value where they are `None` here.
macro_rules! fill {
    ($own:ident, $other:ident: $($field:ident),*) => {
        $(if $own.$field.is_none() {
            $own.$field.clone_from(&$other.$field);
        })*
    };
}

/// What a job asked for or was given, in all. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub nodes: Option<i64>,
    pub cpus: Option<i64>,
    /// Processes that its CPUs are divided among, where the manager has such: `--ntasks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub gpus: Option<i64>,
    pub time_limit_ns: Option<i64>,
    /// The rest by the manager's own names: `gres/gpu:a100`, `license/x`, `billing`.
    pub other: BTreeMap<String, String>,
}

impl Resources {
    pub fn is_empty(&self) -> bool {
        *self == Resources::default()
    }

    /// Takes over what `other` knows and this does not.
    pub fn fill_from(&mut self, other: &Resources) {
        fill!(self, other: nodes, cpus, tasks, memory_bytes, gpus, time_limit_ns);
        for (name, value) in &other.other {
            self.other.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// What only a resource manager knows of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scheduling {
    /// The id that its users know, where it is not the one that cgroups are named by: `1234_7`, `1234+1`.
    pub alias: Option<String>,
    /// As the scheduler names it; the key of a job that was found on its node has none.
    pub cluster: Option<String>,
    pub array_id: Option<String>,
    pub array_index: Option<i64>,
    /// The job of several components that this is one of, and which.
    pub het_id: Option<String>,
    pub het_offset: Option<i64>,
    /// How often it was restarted before this run.
    pub restarts: Option<i64>,
    pub partition: Option<String>,
    pub qos: Option<String>,
    /// The folder that it was submitted from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// What its own environment calls its runs: `MET_LINEAGE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// Whether it had its nodes for itself, whatever it asked for of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<bool>,
    /// Why it waits, or why it ended as it did.
    pub reason: Option<String>,
    pub submit_ns: Option<i64>,
    /// From when on it might have started.
    pub eligible_ns: Option<i64>,
    /// The manager's own account, beside what was measured here.
    pub cpu_ns: Option<i64>,
    pub memory_peak_bytes: Option<i64>,
    /// Unix time at which the manager was asked; `None` if it never was.
    pub asked_ns: Option<i64>,
    /// Whether the job waited at that time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub waited: bool,
    /// What the job had and asked for before that was changed while it ran, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<EarlierRequest>,
}

/// What held until a change was seen. Only amounts are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EarlierRequest {
    /// Unix time of the first answer that had something else.
    pub until_ns: i64,
    #[serde(skip_serializing_if = "Resources::is_empty")]
    pub requested: Resources,
    #[serde(skip_serializing_if = "Resources::is_empty")]
    pub allocated: Resources,
}

impl Scheduling {
    pub fn is_empty(&self) -> bool {
        *self == Scheduling::default()
    }

    /// Takes over what `other` knows and this does not.
    pub fn fill_from(&mut self, other: &Scheduling) {
        fill!(self, other: alias, cluster, array_id, array_index, het_id, het_offset, restarts, partition, qos);
        fill!(self, other: folder, lineage, exclusive, reason, submit_ns, eligible_ns, cpu_ns, memory_peak_bytes, asked_ns);
    }
}
