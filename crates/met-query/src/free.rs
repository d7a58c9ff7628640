//! What of a machine no job holds.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use met_core::job::{Record, State};
use met_core::job_table as column;
use met_insight::average;
use serde::{Deserialize, Serialize};

use crate::jobs::{JobsFilter, PageAsk};
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
    let filter =
        JobsFilter { states, is_brief: true, page: PageAsk::first(PAGE_JOBS), ..JobsFilter::default() };
    let FirstJobs { jobs, is_cut, warnings } = first_jobs(query, viewer, &filter, JOBS_MAX)?;
    // A job that cannot be read holds something, too.
    if !is_cut && warnings.is_empty() {
        put(nodes, &jobs, crate::jobs::now_ns());
    }
    Ok(())
}

/// What jobs hold of a node; `None` where that is not known.
#[derive(Clone)]
struct Held<'a> {
    cpus: Option<f64>,
    memory_bytes: Option<f64>,
    /// Two jobs may hold the same.
    gpus: Option<HashSet<&'a str>>,
}

fn put(nodes: &mut [NodeStatus], jobs: &[Record], now_ns: i64) {
    let is_single = nodes.len() == 1;
    let may_be_anywhere =
        |record: &Record| record.nodes.is_empty() && (record.inside.is_none() || !record.gpus.is_empty());
    // It may hold something of any of them.
    if !is_single && jobs.iter().any(may_be_anywhere) {
        return;
    }
    let names: HashMap<&str, usize> =
        nodes.iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
    let none = Held { cpus: Some(0.0), memory_bytes: Some(0.0), gpus: Some(HashSet::new()) };
    let mut held = vec![none; nodes.len()];
    for record in jobs {
        let on: Vec<Option<usize>> = match record.nodes.as_slice() {
            [] => vec![is_single.then_some(0)],
            named => named.iter().map(|name| names.get(name.as_str()).copied()).collect(),
        };
        add_job(&mut held, nodes, record, &on, now_ns);
    }
    // Without a scheduler nothing is given to jobs, and others may use what they do not.
    let is_idle = !is_single && jobs.is_empty();
    let gives_cpus = is_idle || jobs.iter().any(|record| record.allocated.cpus.is_some());
    let gives_memory = is_idle || jobs.iter().any(|record| record.allocated.memory_bytes.is_some());
    for (node, held) in nodes.iter_mut().zip(held).filter(|(node, _)| !node.late) {
        let gpus = held.gpus.and_then(|gpus| i64::try_from(gpus.len()).ok());
        node.free = Free {
            cores: left(node.cpus, held.cpus).filter(|_| gives_cpus),
            gpus: node.health.gpus.zip(gpus).map(|(gpus, held)| (gpus - held).max(0)),
            memory_bytes: left(node.memory_bytes, held.memory_bytes).filter(|_| gives_memory),
        };
    }
}

/// Adds what a job holds on its nodes; a node that is not known has no place.
fn add_job<'a>(
    held: &mut [Held<'a>],
    nodes: &[NodeStatus],
    record: &'a Record,
    on: &[Option<usize>],
    now_ns: i64,
) {
    let is_alone = on.len() == 1;
    let cpus = held_of(
        nodes,
        on,
        record.allocated.cpus,
        |node| node.cpus,
        || average::cores(record, now_ns).unwrap_or(0.0),
    );
    let memory_bytes = held_of(
        nodes,
        on,
        record.allocated.memory_bytes,
        |node| node.memory_bytes,
        || average::level(record, column::MEMORY_NEEDED).unwrap_or(0.0),
    );
    for &at in on.iter().flatten() {
        let held = &mut held[at];
        // What a job inside another one holds is the other's.
        if record.inside.is_none() {
            held.cpus = held.cpus.zip(cpus.on(nodes[at].cpus)).map(|(sum, one)| sum + one);
            held.memory_bytes =
                held.memory_bytes.zip(memory_bytes.on(nodes[at].memory_bytes)).map(|(sum, one)| sum + one);
        }
        // Which of its nodes they are of is not known.
        if !is_alone && !record.gpus.is_empty() {
            held.gpus = None;
        } else if let Some(gpus) = &mut held.gpus {
            gpus.extend(record.gpus.iter().map(|gpu| gpu.uuid.as_str()));
        }
    }
}

fn left(whole: Option<i64>, held: Option<f64>) -> Option<f64> {
    whole.zip(held).map(|(whole, held)| (whole as f64 - held).max(0.0))
}

/// What a job holds on each of its nodes.
enum Share {
    Known(f64),
    Whole,
    Unknown,
}

impl Share {
    fn on(&self, whole: Option<i64>) -> Option<f64> {
        match *self {
            Share::Known(held) => Some(held),
            Share::Whole => whole.map(|whole| whole as f64),
            Share::Unknown => None,
        }
    }
}

/// What a job was given, and if nothing was given to it what it uses. Of a job on several nodes only the sum is known,
/// which says it where the job has these nodes for itself.
fn held_of(
    nodes: &[NodeStatus],
    on: &[Option<usize>],
    given: Option<i64>,
    whole: impl Fn(&NodeStatus) -> Option<i64>,
    used: impl FnOnce() -> f64,
) -> Share {
    if on.len() == 1 {
        return Share::Known(given.map_or_else(used, |given| given as f64));
    }
    let Some(given) = given else { return Share::Unknown };
    let all: Option<i64> = on.iter().map(|at| at.and_then(|at| whole(&nodes[at]))).sum();
    if all.is_some_and(|all| given >= all) { Share::Whole } else { Share::Unknown }
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

    #[test]
    fn nothing_is_free_where_no_scheduler_gives_anything() {
        let mut nodes = [node("n1"), node("n2")];
        put(&mut nodes, &[job(&["n1"], None, None, &["a"])], 1_000_000_000);
        assert_eq!(nodes[0].free, Free { gpus: Some(3), ..Free::default() });
        assert_eq!(nodes[1].free, Free { gpus: Some(4), ..Free::default() });
        put(&mut nodes, &[], 1_000_000_000);
        assert_eq!(nodes[1].free, Free { cores: Some(16.0), gpus: Some(4), memory_bytes: Some(1000.0) });
    }

    #[test]
    fn nothing_is_said_while_a_job_may_be_anywhere() {
        let given = || job(&["n1"], Some(4), Some(300), &[]);
        let mut inside = job(&[], Some(2), None, &[]);
        inside.inside = Some("slurm:1".to_owned());
        let mut nodes = [node("n1"), node("n2")];
        put(&mut nodes, &[given(), job(&[], Some(2), None, &[])], 1);
        assert!(nodes.iter().all(|node| !node.free.is_known()));
        put(&mut nodes, &[given(), inside], 1);
        assert_eq!(nodes[0].free.cores, Some(12.0), "what it holds is the other job's");
    }

    #[test]
    fn a_job_on_many_nodes_holds_each() {
        let names: Vec<String> = (0..2000).map(|number| format!("n{number}")).collect();
        let mut nodes: Vec<NodeStatus> = names.iter().map(|name| node(name)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let jobs =
            [job(&names[..1500], Some(1500 * 16), None, &[]), job(&names[1500..], Some(9), Some(9), &[])];
        put(&mut nodes, &jobs, 1);
        assert!(nodes[..1500].iter().all(|node| node.free.cores == Some(0.0)));
        assert!(nodes.iter().all(|node| node.free.memory_bytes.is_none()));
        assert!(nodes[1500..].iter().all(|node| node.free.cores.is_none() && node.free.gpus == Some(4)));
    }
}
