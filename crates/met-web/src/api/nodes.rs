//! Nodes, and how they are.

use axum::http::StatusCode;
use met_core::job::State;
use met_host::clock;
use met_insight::json;
use met_query::jobs::JobsFilter;
use met_query::protocol::NodeStatus;
use serde_json::{Value, json};
use utoipa::openapi::{ObjectBuilder, Schema, Type};

use super::endpoints::{job_schema, object};
use super::schemas::{list, of, optional, time, with_keys};
use super::{Asked, Visible};
use crate::problem::Problem;

pub(super) const NODE: [&str; 11] = [
    "name",
    "jobs",
    "late",
    "seen",
    "version",
    "cpus",
    "memory_bytes",
    "clock_offset_ns",
    "dropped_samples",
    "problem",
    "seen_ns",
];
/// Jobs in the answer about one node.
const JOBS_MAX: usize = 500;

pub(super) fn nodes(visible: &Visible<'_>, _: &Asked) -> Result<Value, Problem> {
    Ok(json!({ "nodes": visible.nodes()?.iter().map(status).collect::<Vec<_>>() }))
}

fn status(node: &NodeStatus) -> Value {
    let mut object = json!(node);
    object["seen"] = json!(node.seen_ns.and_then(json::time));
    object
}

/// The status of a node; one that does not exist is refused.
pub(super) fn find(visible: &Visible<'_>, name: &str) -> Result<NodeStatus, Problem> {
    let found = visible.nodes()?.into_iter().find(|node| node.name == name);
    found.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, format!("no node named {name:?}")))
}

pub(super) fn node(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let found = find(visible, asked.path("node"))?;
    let mut filter = JobsFilter {
        states: vec![State::Running, State::Suspended],
        limit: Some(JOBS_MAX),
        paged: true,
        ..JobsFilter::default()
    };
    filter.conditions.node = Some(found.name.clone());
    let (page, _) = visible.jobs(&filter)?;
    let now_ns = clock::realtime_ns();
    let jobs: Vec<Value> = page.jobs.iter().map(|record| object(record, now_ns)).collect();
    Ok(json!({ "node": status(&found), "jobs": jobs }))
}

pub(super) fn health(visible: &Visible<'_>, _: &Asked) -> Result<Value, Problem> {
    let nodes = visible.nodes()?;
    let one = JobsFilter { limit: Some(1), paged: true, ..JobsFilter::default() };
    let (_, mut problems) = visible.jobs(&one)?;
    let late = nodes.iter().filter(|node| node.late).count();
    let of_nodes = nodes.iter().filter_map(|node| Some(format!("{}: {}", node.name, node.problem.as_ref()?)));
    problems.extend(of_nodes);
    let is_well = problems.is_empty() && late == 0;
    Ok(json!({
        "status": if is_well { "ok" } else { "degraded" },
        "version": env!("CARGO_PKG_VERSION"),
        "nodes": nodes.len(),
        "nodes_late": late,
        "problems": problems,
    }))
}

fn node_status() -> Schema {
    with_keys([
        ("name", of(Type::String)),
        ("jobs", of(Type::Integer)),
        ("late", of(Type::Boolean)),
        ("seen", time()),
        ("version", optional(Type::String)),
        ("cpus", optional(Type::Integer)),
        ("memory_bytes", optional(Type::Integer)),
    ])
    .into()
}

pub(super) fn nodes_schema() -> Schema {
    with_keys([("nodes", list(node_status()))]).into()
}

pub(super) fn node_schema() -> Schema {
    with_keys([("node", node_status()), ("jobs", list(job_schema()))]).into()
}

pub(super) fn health_schema() -> Schema {
    let status = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["ok", "degraded"]));
    with_keys([
        ("status", status.into()),
        ("version", of(Type::String)),
        ("nodes", of(Type::Integer)),
        ("nodes_late", of(Type::Integer)),
        ("problems", list(of(Type::String))),
    ])
    .into()
}
