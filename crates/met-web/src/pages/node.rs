//! One machine: how it is, its sensors over time, and the jobs on it.

use maud::{Markup, html};
use met_core::job::State;
use met_core::series::Series;
use met_core::text::escape;
use met_core::{Table, units};
use met_insight::resample;
use met_query::protocol::NodeStatus;
use met_store::NodePart;

use super::charts::{self, Span};
use super::layout::{self, Site, Tab};
use super::list_columns::{COLUMNS, ListColumn};
use super::{Asked, Made, job_tables, jobs, nodes, plot};
use crate::api::Visible;
use crate::problem::Problem;
use crate::samples::{self, NODE_VALUES_MAX};

const EVERY_S: u32 = 15;
const BINS: usize = 360;
/// What can be looked at: a name in the address, and how many hours.
const SPANS: [(&str, i64); 5] = [("1h", 1), ("6h", 6), ("24h", 24), ("7d", 168), ("30d", 720)];
/// Machines are read this often at most without jobs.
const IDLE: std::time::Duration = std::time::Duration::from_secs(60);
const SECOND: std::time::Duration = std::time::Duration::from_secs(1);
/// Samples of one series that are held; more are thinned.
pub(super) const SAMPLES_KEPT: usize = 4 * BINS;
const LISTED: usize = 50;

const SHOWN: &[&str] = &[
    "job",
    "name",
    "user",
    "state",
    "average_cores",
    "memory_needed_peak_bytes",
    "efficiency_gpu_ratio",
    "wall_seconds",
    "start",
];

pub(super) fn page(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    if let Some((name, _)) = asked.search.iter().find(|(name, _)| name != "span") {
        return Err(Problem::asked(format!("unknown parameter {name:?}; known: span")));
    }
    let wanted = asked.get("span").unwrap_or(SPANS[0].0);
    let Some(&(_, hours)) = SPANS.iter().find(|(name, _)| *name == wanted) else {
        let known = SPANS.map(|(name, _)| name).join(", ");
        return Err(Problem::asked(format!("span: {wanted:?} is not one of {known}")));
    };
    let all = visible.nodes_with_free()?;
    let node = all.iter().find(|node| node.name == asked.name).ok_or_else(|| {
        let reason = format!("no node named {:?}", asked.name);
        Problem::new(axum::http::StatusCode::NOT_FOUND, reason)
    })?;
    let end_ms = site.now_ns / 1_000_000;
    let begin_ms = end_ms - hours * 3_600_000;
    let parts = samples::of_node(visible.query, &node.name, (begin_ms, end_ms), SAMPLES_KEPT, drawn())?;
    let span = Span { begin_ms, end_ms, bins: BINS };
    let charts = charts::machine(&parts, span, gap_ms, limits(Some(node)));
    let columns: Vec<&ListColumn> = COLUMNS.iter().filter(|column| SHOWN.contains(&column.name())).collect();
    let on_node = job_tables::on_node(visible, &node.name, LISTED)?;
    // A user's own daemon runs jobs that the daemon of the machine does not count.
    let live = on_node.iter().filter(|record| record.state == State::Running).count();
    let running = node.jobs.max(live);
    let content = html! {
        div.head { div { p.over { "Node" } h1 { (escape(&node.name)) } } }
        div id="node-facts" data-live { (facts(site, node, running)) }
        section.timelines aria-labelledby="sensors-title" {
            div.bar-line {
                h2 id="sensors-title" { "Sensors" }
                nav.zoom aria-label="Time shown" {
                    @for (name, _) in SPANS {
                        a href={ (site.node_path(&node.name)) "?span=" (name) } aria-current=[(name == wanted).then_some("true")] { (name) }
                    }
                }
            }
            @if charts.is_empty() { p.empty { "No samples in this period. A system daemon keeps samples of its machine; a user's daemon does with " code { "storage.node_series: true" } " in its configuration." } }
            div.charts id="charts" data-live { @for chart in &charts { (plot::figure(chart, span, &site.zone)) } }
            div id="chart-source" data-live { (plot::data(&charts, span)) }
        }
        section id="node-jobs" data-live aria-labelledby="node-jobs-title" {
            h2 id="node-jobs-title" { "Jobs on this node, running ones first" }
            @if on_node.is_empty() { p.empty { "None that you may see." } }
            @else { (jobs::plain_table(site, &columns, &on_node, "Jobs on this node")) }
        }
    };
    Ok(Made::Page(layout::page(site, Some(Tab::Nodes), &node.name, Some(EVERY_S), &content)))
}

fn facts(site: &Site, node: &NodeStatus, running: usize) -> Markup {
    let fact = |label: &str, value: Markup| html! { div { dt { (label) } dd { (value) } } };
    html! {
        @for problem in node.problems(site.now_ns) { (layout::notice("bad", &problem)) }
        dl.facts {
            (fact("last seen", html! { (nodes::seen(site, node)) @if node.late { " " span.flag { "late" } } }))
            (fact("jobs", html! { (running) " running" }))
            @if node.cpus.is_some() { (fact("CPUs in use", nodes::in_use(node.now.busy_cores, node.cpus, units::cores))) }
            @if node.memory_bytes.is_some() { (fact("memory in use", nodes::in_use(node.now.memory_used_bytes, node.memory_bytes, units::bytes))) }
            @if let Some(load) = node.now.load { (fact("load", html! { (units::cores(load)) span.dim { ", average of the last minute" } })) }
            @if let Some(gpus) = node.health.gpus { (fact("GPUs", html! { (gpus) })) }
            @if node.free.is_known() { (fact("not given to jobs", nodes::free(node))) }
            @if node.clock_offset_ns.is_some() { (fact("clock off by", nodes::clock(node))) }
            @if node.spool.is_some() { (fact("not delivered yet", nodes::spool(node))) }
            @if node.dropped_samples > 0 { (fact("dropped samples", html! { span.flag { (units::count(node.dropped_samples as f64)) } })) }
            @if let Some(version) = &node.version { (fact("version of met", html! { (escape(version)) })) }
        }
    }
}

/// What charts of a machine are compared with.
pub(super) fn limits(node: Option<&NodeStatus>) -> [(&'static str, Option<f64>); 2] {
    let cpus = node.and_then(|node| node.cpus).map(|cpus| cpus as f64);
    let memory = node.and_then(|node| node.memory_bytes).map(|bytes| bytes as f64);
    [("cpu", cpus), ("memory", memory)]
}

pub(super) fn gap_ms(series: &Series) -> i64 {
    let idle_ms = i64::try_from(IDLE.as_millis()).unwrap_or(i64::MAX / 5) * 5 / 2;
    resample::gap_ms_of(series, SECOND).max(idle_ms)
}

/// Which parts of a machine are read for charts: those that are drawn, as far as they fit an answer.
pub(super) fn drawn() -> impl FnMut(&NodePart, &'static Table) -> Result<bool, Problem> {
    let mut values = 0;
    move |_, table| {
        let more = table.columns.len() * BINS;
        let fits = charts::is_drawn(table) && values + more <= NODE_VALUES_MAX;
        values += if fits { more } else { 0 };
        Ok(fits)
    }
}
