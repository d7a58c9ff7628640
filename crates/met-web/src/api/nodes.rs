//! Nodes, and how they are.

use axum::http::StatusCode;
use met_core::job::State;
use met_host::clock;
use met_insight::json;
use met_query::jobs::{JobsFilter, PageAsk};
use met_query::protocol::NodeStatus;
use serde_json::{Value, json};
use utoipa::openapi::{ObjectBuilder, Schema, Type};

use super::endpoint::{Action, Endpoint, Table, places};
use super::jobs::{job_schema, object};
use super::parameters::FORMAT;
use super::schemas::{list, of, optional, time, with_keys};
use super::{Asked, Visible};
use crate::problem::Problem;

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/api/v1/nodes",
        help: "the nodes of a cluster, or the machine of a daemon",
        answer: "`{\"nodes\": [...]}`: the nodes of a cluster, or the machine of a daemon, with their GPUs, \
            failing sources, what they do, what is free and what they have not delivered, where known \
            ([fields](json.md#the-list-of-met-nodes---json))",
        parameters: &[FORMAT],
        action: Action::Answer(nodes),
        table: Table::Rows("nodes", || places(&NODE)),
        schema: nodes_schema,
    },
    Endpoint {
        path: "/api/v1/nodes/{node}",
        help: "one node, and the jobs that run on it",
        answer: "`{\"node\": {...}, \"jobs\": [...]}`: one of them, and the jobs that run on it",
        parameters: &[],
        action: Action::Answer(node),
        table: Table::None,
        schema: node_schema,
    },
    Endpoint {
        path: "/api/v1/health",
        help: "whether jobs can be read, and what is wrong with nodes",
        answer: "`ok` or `degraded`, late nodes, problems",
        parameters: &[],
        action: Action::Answer(health),
        table: Table::None,
        schema: health_schema,
    },
];

const NODE: [&str; 20] = [
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
    "gpus",
    "busy_cores",
    "load",
    "memory_used_bytes",
    "free_cores",
    "free_memory_bytes",
    "free_gpus",
    "spool_batches",
    "spool_bytes",
];
/// Jobs in the answer about one node.
const JOBS_MAX: usize = 500;

fn nodes(visible: &Visible<'_>, _: &Asked) -> Result<Value, Problem> {
    Ok(json!({ "nodes": visible.nodes_with_free()?.iter().map(status).collect::<Vec<_>>() }))
}

fn status(node: &NodeStatus) -> Value {
    let mut object = json!(node);
    object["seen"] = json!(node.seen_ns.and_then(json::time));
    let failing_sources = object.get_mut("failing_sources").and_then(Value::as_array_mut);
    for failing in failing_sources.into_iter().flatten() {
        failing["since"] = json!(failing["since_ns"].as_i64().and_then(json::time));
    }
    object
}

/// The status of a node; one that does not exist is refused.
pub(super) fn find(visible: &Visible<'_>, name: &str) -> Result<NodeStatus, Problem> {
    named(visible.nodes()?, name)
}

fn named(nodes: Vec<NodeStatus>, name: &str) -> Result<NodeStatus, Problem> {
    let found = nodes.into_iter().find(|node| node.name == name);
    found.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, format!("no node named {name:?}")))
}

fn node(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let nodes = visible.nodes_with_free()?;
    let found = named(nodes, asked.path("node"))?;
    let mut filter = JobsFilter {
        states: vec![State::Running, State::Suspended],
        page: PageAsk { limit: Some(JOBS_MAX), paged: true, ..PageAsk::default() },
        ..JobsFilter::default()
    };
    filter.conditions.node = Some(found.name.clone());
    let (page, _) = visible.jobs(&filter)?;
    let now_ns = clock::realtime_ns();
    let jobs: Vec<Value> = page.jobs.iter().map(|record| object(record, now_ns)).collect();
    Ok(json!({ "node": status(&found), "jobs": jobs }))
}

/// Lines of an answer that is asked for often.
const PROBLEMS_MAX: usize = 50;

fn health(visible: &Visible<'_>, _: &Asked) -> Result<Value, Problem> {
    let nodes = visible.nodes()?;
    let one = JobsFilter {
        page: PageAsk { limit: Some(1), paged: true, ..PageAsk::default() },
        ..JobsFilter::default()
    };
    let (_, mut problems) = visible.jobs(&one)?;
    let late = nodes.iter().filter(|node| node.late).count();
    let now_ns = clock::realtime_ns();
    for node in nodes.iter().filter(|node| !node.late || node.problem.is_some()) {
        problems.extend(node.problems(now_ns).iter().map(|problem| format!("{}: {problem}", node.name)));
    }
    let is_well = problems.is_empty() && late == 0;
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    problems.truncate(PROBLEMS_MAX);
    if more > 0 {
        problems.push(format!("{more} more; see /api/v1/nodes"));
    }
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
    .property("gpus", of(Type::Integer))
    .property("busy_cores", of(Type::Number))
    .property("load", of(Type::Number))
    .property("memory_used_bytes", of(Type::Number))
    .property("free_cores", of(Type::Number))
    .property("free_memory_bytes", of(Type::Number))
    .property("free_gpus", of(Type::Integer))
    .property("spool_batches", of(Type::Integer))
    .property("spool_bytes", of(Type::Integer))
    .property("problem", of(Type::String))
    .property(
        "failing_sources",
        list(
            with_keys([("source", of(Type::String)), ("problem", of(Type::String)), ("since", time())])
                .property("since_ns", of(Type::Integer))
                .into(),
        ),
    )
    .into()
}

fn nodes_schema() -> Schema {
    with_keys([("nodes", list(node_status()))]).into()
}

fn node_schema() -> Schema {
    with_keys([("node", node_status()), ("jobs", list(job_schema()))]).into()
}

fn health_schema() -> Schema {
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
