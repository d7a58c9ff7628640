//! What of a machine no job holds.

use std::collections::HashSet;

use anyhow::Result;
use met_core::job::{Record, State};
use met_core::job_table as column;
use met_insight::average;
use serde::{Deserialize, Serialize};

use crate::jobs::JobsFilter;
use crate::protocol::NodeStatus;
use crate::query::{FirstJobs, Query, first_jobs};
use crate::viewer::Viewer;

/// With more running jobs, nothing is said.
const JOBS_MAX: usize = 20_000;
const PAGE_JOBS: usize = 500;

/// What is unknown is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Free {
    #[serde(rename = "free_cores", default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<f64>,
    #[serde(rename = "free_gpus", default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<i64>,
    #[serde(rename = "free_memory_bytes", default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<f64>,
}

impl Free {
    pub fn is_known(&self) -> bool {
        *self != Free::default()
    }
}

/// Says of nodes what is free there. It follows from all jobs: who does not see these does not learn it.
pub fn add(query: &(impl Query + ?Sized), viewer: &Viewer, nodes: &mut [NodeStatus]) -> Result<()> {
    if !viewer.sees_all() {
        return Ok(());
    }
    let states = vec![State::Running, State::Suspended];
    let filter = JobsFilter { states, limit: Some(PAGE_JOBS), is_brief: true, ..JobsFilter::default() };
    let FirstJobs { jobs, is_cut, warnings } = first_jobs(query, viewer, &filter, JOBS_MAX)?;
    // A job that cannot be read holds something, too.
    if !is_cut && warnings.is_empty() {
        put(nodes, &jobs, crate::jobs::now_ns());
    }
    Ok(())
}

fn put(nodes: &mut [NodeStatus], jobs: &[Record], now_ns: i64) {
    let all: Vec<(String, Option<i64>, Option<i64>)> =
        nodes.iter().map(|node| (node.name.clone(), node.cpus, node.memory_bytes)).collect();
    let is_single = all.len() == 1;
    // On a machine of one's own nothing is given to jobs, and others may use it, too.
    let is_given = !is_single || jobs.iter().any(|record| record.allocated.cpus.is_some());
    for node in nodes.iter_mut().filter(|node| !node.late) {
        let is_here =
            |record: &&Record| record.nodes.contains(&node.name) || is_single && record.nodes.is_empty();
        let here: Vec<&Record> = jobs.iter().filter(is_here).collect();
        // What a job inside another one holds is the other's.
        let outer = || here.iter().copied().filter(|record| record.inside.is_none());
        let cpus = outer().map(|record| {
            let used = || average::cores(record, now_ns).unwrap_or(0.0);
            let whole = |of: &(String, Option<i64>, Option<i64>)| of.1;
            held(record, &all, whole, node.cpus, record.allocated.cpus, used)
        });
        let memory = outer().map(|record| {
            let used = || average::level(record, column::MEMORY_NEEDED).unwrap_or(0.0);
            let whole = |of: &(String, Option<i64>, Option<i64>)| of.2;
            held(record, &all, whole, node.memory_bytes, record.allocated.memory_bytes, used)
        });
        let (cpus, memory): (Option<f64>, Option<f64>) = (cpus.sum(), memory.sum());
        node.free = Free {
            cores: left(node.cpus, cpus).filter(|_| is_given),
            gpus: node.health.gpus.zip(gpus(&here)).map(|(gpus, held)| (gpus - held).max(0)),
            memory_bytes: left(node.memory_bytes, memory).filter(|_| is_given),
        };
    }
}

fn left(whole: Option<i64>, held: Option<f64>) -> Option<f64> {
    whole.zip(held).map(|(whole, held)| (whole as f64 - held).max(0.0))
}

/// What a job holds on a node: what it was given there, and if nothing was given to it what it uses. `None` if that is
/// not known: of a job on several nodes only the sum is, which says it where the job has these nodes for itself.
fn held(
    record: &Record,
    nodes: &[(String, Option<i64>, Option<i64>)],
    whole: impl Fn(&(String, Option<i64>, Option<i64>)) -> Option<i64>,
    here: Option<i64>,
    given: Option<i64>,
    used: impl FnOnce() -> f64,
) -> Option<f64> {
    let Some(given) = given else { return (record.nodes.len() <= 1).then(used) };
    if record.nodes.len() <= 1 {
        return Some(given as f64);
    }
    let of_node = |name: &String| nodes.iter().find(|(known, ..)| known == name).and_then(&whole);
    let all: Option<i64> = record.nodes.iter().map(of_node).sum();
    let is_whole = all.is_some_and(|all| given >= all);
    here.filter(|_| is_whole).map(|here| here as f64)
}

/// GPUs that jobs on a node hold; two may hold the same. `None` where one on several nodes holds some.
fn gpus(here: &[&Record]) -> Option<i64> {
    let mut held: HashSet<&str> = HashSet::new();
    for record in here {
        if record.nodes.len() > 1 && !record.gpus.is_empty() {
            return None;
        }
        held.extend(record.gpus.iter().map(|gpu| gpu.uuid.as_str()));
    }
    i64::try_from(held.len()).ok()
}

#[cfg(test)]
mod tests {
    use met_core::job::GpuUse;
    use met_core::node_health::NodeHealth;
    use met_core::sample;

    use super::*;

    fn node(name: &str) -> NodeStatus {
        let health = NodeHealth { gpus: Some(4), ..NodeHealth::default() };
        let (cpus, memory_bytes) = (Some(16), Some(1000));
        NodeStatus { name: name.to_owned(), cpus, memory_bytes, health, ..NodeStatus::default() }
    }

    fn job(nodes: &[&str], cpus: Option<i64>, memory_bytes: Option<i64>, uuids: &[&str]) -> Record {
        let mut record = sample::bare(1, "x");
        let gpu = |uuid: &&str| GpuUse { uuid: (*uuid).to_owned(), ..GpuUse::default() };
        (record.state, record.start_ns) = (State::Running, Some(0));
        record.nodes = nodes.iter().map(|&name| name.to_owned()).collect();
        (record.allocated.cpus, record.allocated.memory_bytes) = (cpus, memory_bytes);
        record.gpus = uuids.iter().map(gpu).collect();
        record
    }

    #[test]
    fn what_jobs_were_given_is_not_free() {
        let mut nodes = [node("n1"), node("n2"), node("n3")];
        nodes[2].late = true;
        let jobs = [
            job(&["n1"], Some(4), Some(300), &["a", "b"]),
            job(&["n1"], Some(2), Some(100), &["b"]),
            job(&["n3"], Some(2), Some(100), &[]),
        ];
        put(&mut nodes, &jobs, 1_000_000_000);
        assert_eq!(nodes[0].free, Free { cores: Some(10.0), gpus: Some(2), memory_bytes: Some(600.0) });
        assert_eq!(nodes[1].free, Free { cores: Some(16.0), gpus: Some(4), memory_bytes: Some(1000.0) });
        assert!(!nodes[2].free.is_known(), "nothing is known of a node that is late");
        let mut inside = job(&["n2"], Some(16), Some(1000), &[]);
        inside.inside = Some("slurm:1".to_owned());
        put(&mut nodes, &[inside], 1_000_000_000);
        assert_eq!(nodes[1].free.cores, Some(16.0), "it is part of another job");
    }

    #[test]
    fn nothing_is_free_on_a_machine_where_nothing_is_given_to_jobs() {
        let mut nodes = [node("n1")];
        put(&mut nodes, &[job(&["n1"], None, None, &["a"])], 1);
        assert_eq!(nodes[0].free, Free { gpus: Some(3), ..Free::default() });
        put(&mut nodes, &[job(&[], Some(2), Some(10), &[]), job(&["n1"], None, None, &[])], 1);
        assert_eq!(nodes[0].free, Free { cores: Some(14.0), gpus: Some(4), memory_bytes: Some(990.0) });
    }

    #[test]
    fn what_a_job_holds_on_one_of_its_nodes_is_unknown_unless_it_holds_them_whole() {
        let mut nodes = [node("n1"), node("n2")];
        put(&mut nodes, &[job(&["n1", "n2"], Some(20), Some(2000), &["a"])], 1);
        let known = Free { cores: None, gpus: None, memory_bytes: Some(0.0) };
        assert_eq!([nodes[0].free, nodes[1].free], [known, known]);
        put(&mut nodes, &[job(&["n1", "elsewhere"], Some(99), None, &[])], 1);
        assert_eq!(
            (nodes[0].free.cores, nodes[0].free.memory_bytes, nodes[0].free.gpus),
            (None, None, Some(4))
        );
    }
}
