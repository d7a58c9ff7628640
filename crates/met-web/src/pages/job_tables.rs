//! The tables of a job's page: steps and tasks, nodes compared, processes, other jobs on its nodes.

use maud::{Markup, html};
use met_core::JOB;
use met_core::conditions::{Conditions, OnNodes};
use met_core::job::{QualityKind, Record};
use met_core::job_processes::is_complete;
use met_core::job_table as column;
use met_core::text::{command_line, escape};
use met_core::units;
use met_insight::report::PartLine;
use met_query::jobs::{JobTimes, JobsFilter, PageAsk};

use super::jobs;
use super::layout::{self, Site, amount, quality_mark};
use super::list_columns::{COLUMNS, ListColumn};
use crate::api::{Tail, Visible};
use crate::problem::Problem;

/// More lines are for a program: the JSON has them all.
const PARTS_MAX: usize = 200;
const NODES_MAX: usize = 64;
const PROCESSES_MAX: usize = 12;
const NEIGHBOURS_MAX: usize = 10;
/// Nodes of the job on which others are looked for, and how many are looked at for each.
const NEIGHBOUR_NODES_MAX: usize = 4;
const SCANNED: usize = 100;
const NEIGHBOUR_COLUMNS: &[&str] = &[
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
/// A node that used less than this part of the median CPU time stays behind.
const BEHIND: f64 = 0.5;

/// A table in a frame that scrolls by itself, by keyboard too.
fn table(id: &str, title: &str, content: &Markup) -> Markup {
    html! {
        section id=(id) data-live aria-labelledby={ (id) "-title" } {
            h2 id={ (id) "-title" } { (title) }
            div.scroll tabindex="0" role="group" aria-label=(title) { table { (content) } }
        }
    }
}

pub(super) fn parts(parts: &[PartLine]) -> Markup {
    // Lines of whole nodes without figures repeat what the head says.
    let says_something = |part: &PartLine| {
        !part.step.is_empty() || part.task.is_some() || part.cpu.is_some() || part.memory.is_some()
    };
    if !parts.iter().any(says_something) {
        return html! {};
    }
    let several = parts.iter().any(|part| part.node != parts[0].node);
    let content = html! {
        thead { tr {
            @if several { th scope="col" { "Node" } }
            th scope="col" { "Step" } th scope="col" { "Task" } th scope="col" { "Name" }
            th.n scope="col" { "CPU time" } th.n scope="col" { "Memory peak" }
            th.n scope="col" { "Duration" } th.n scope="col" { "Exit" }
        } }
        tbody {
            @for part in parts.iter().take(PARTS_MAX) {
                tr {
                    @if several { td { (escape(&part.node)) } }
                    th scope="row" { (escape(if part.step.is_empty() { "all" } else { &part.step })) }
                    td { (escape(part.task.as_deref().unwrap_or(""))) }
                    td {
                        (escape(part.name.as_deref().unwrap_or("")))
                        @if let Some(count) = part.folded { span.dim { (units::count(count as f64)) " together" } }
                    }
                    td.n { @if let Some(cpu) = &part.cpu { (amount(cpu)) } }
                    td.n { @if let Some(memory) = &part.memory { (amount(memory)) } }
                    td.n { @if let Some(duration) = &part.duration { (amount(duration)) } }
                    td.n { @if let Some(code) = part.exit_code { (code) } }
                }
            }
        }
        @if parts.len() > PARTS_MAX {
            tfoot { tr { td colspan="8" { (parts.len() - PARTS_MAX) " more in the JSON" } } }
        }
    };
    table("parts", "Steps and tasks", &content)
}

/// What a job did on each of its nodes, the least first: who waits for whom shows there.
pub(super) fn stragglers(record: &Record) -> Markup {
    let mut nodes: Vec<(&str, f64, QualityKind)> = Vec::new();
    for part in record.parts.iter().filter(|part| part.step.is_empty() && part.task.is_none()) {
        if let Some(figure) = part.totals.figure(column::CPU) {
            nodes.push((&part.node, JOB.columns[column::CPU].scaled(figure.value), figure.kind));
        }
    }
    if nodes.len() < 2 {
        return html! {};
    }
    nodes.sort_by(|one, other| one.1.total_cmp(&other.1).then(one.0.cmp(other.0)));
    let (median, most) = (nodes[nodes.len() / 2].1, nodes[nodes.len() - 1].1.max(f64::MIN_POSITIVE));
    let count = nodes.len();
    let content = html! {
        thead { tr { th scope="col" { "Node" } th.n scope="col" { "CPU time" } th scope="col" { "Of the busiest" } } }
        tbody {
            @for (node, seconds, kind) in nodes.iter().take(NODES_MAX) {
                tr {
                    th scope="row" { (escape(node)) }
                    td.n { (quality_mark(*kind)) (units::duration_long(*seconds)) }
                    td.eff {
                        (layout::bar(seconds / most, if *seconds < median * BEHIND { "low" } else { "good" }))
                        span.share { (units::percent(seconds / most)) }
                        @if *seconds < median * BEHIND { " " span.flag { "behind the others" } }
                    }
                }
            }
        }
        @if count > NODES_MAX { tfoot { tr { td colspan="3" { (count - NODES_MAX) " more, all busier" } } } }
    };
    table("by-node", "Nodes compared", &content)
}

pub(super) fn processes(site: &Site, record: &Record) -> Markup {
    if record.processes.is_empty() {
        return html! {};
    }
    let mut processes: Vec<_> = record.processes.iter().collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.cpu_ns));
    let more = processes.len().saturating_sub(PROCESSES_MAX);
    let content = html! {
        thead { tr {
            th scope="col" { "Process" } th scope="col" { "Command" } th.n scope="col" { "CPU time" }
            th.n scope="col" { "Memory peak" } th.n scope="col" { "Read" } th.n scope="col" { "Written" }
            th.n scope="col" { "Started" }
        } }
        tbody {
            @for process in processes.iter().take(PROCESSES_MAX) {
                @let kind = if is_complete(process) { QualityKind::Measured } else { QualityKind::LowerBound };
                @let words = command_line(&process.command_line);
                tr {
                    th scope="row" { (process.pid) }
                    td.cmd title=(words) {
                        code { (if words.is_empty() { escape(&process.command) } else { words.clone() }) }
                    }
                    td.n {
                        @if let Some(ns) = process.cpu_ns { (quality_mark(kind)) (units::duration_long(ns as f64 / 1e9)) }
                    }
                    @for value in [process.memory_peak_bytes, process.read_bytes, process.written_bytes] {
                        td.n { @if let Some(bytes) = value { (quality_mark(kind)) (units::bytes(bytes as f64)) } }
                    }
                    td.n { @if let Some(start_ns) = process.start_ns { (site.time(start_ns)) } }
                }
            }
        }
    };
    let content = html! {
        (content)
        @if more > 0 { tfoot { tr { td colspan="7" { (more) " more in the JSON" } } } }
    };
    table("processes", "Largest processes", &content)
}

/// The jobs on a node, running ones first, of those that the viewer may see.
pub(super) fn on_node(visible: &Visible<'_>, node: &str, count: usize) -> Result<Vec<Record>, Problem> {
    let conditions = Conditions { node: Some(node.to_owned()), ..Conditions::default() };
    let filter = JobsFilter {
        conditions,
        page: PageAsk { limit: Some(count), paged: true, ..PageAsk::default() },
        ..JobsFilter::default()
    };
    let mut jobs = visible.jobs(&filter)?.0.jobs;
    jobs.sort_by_key(|record| !record.state.is_live());
    Ok(jobs)
}

/// Other jobs on the same nodes at the time, of those that the viewer may see.
pub(super) fn neighbours(
    site: &Site,
    visible: &Visible<'_>,
    record: &Record,
) -> Result<Option<Markup>, Problem> {
    let (Some(start_ns), Some(node)) = (record.start_ns, record.nodes.first()) else { return Ok(None) };
    let end_ns = record.end_ns.unwrap_or(i64::MAX);
    let nodes: Vec<String> = record.nodes.iter().take(NEIGHBOUR_NODES_MAX).cloned().collect();
    let filter = JobsFilter {
        on_nodes: Some(OnNodes { nodes: nodes.clone(), since_ns: start_ns }),
        times: JobTimes { until_ns: Some(end_ns), ..JobTimes::default() },
        page: PageAsk { limit: Some(SCANNED * nodes.len()), paged: true, ..PageAsk::default() },
        ..JobsFilter::default()
    };
    let mut jobs = visible.jobs(&filter)?.0.jobs;
    let mut known = std::collections::HashSet::from([record.key.clone()]);
    jobs.retain(|other| {
        other.start_ns.is_some_and(|start_ns| start_ns < end_ns)
            && other.end_ns.is_none_or(|end_ns| end_ns > start_ns)
            && known.insert(other.key.clone())
    });
    // Those of its first node come first, the newest of each.
    jobs.sort_by_key(|other| nodes.iter().position(|node| other.nodes.contains(node)));
    if jobs.is_empty() {
        return Ok(None);
    }
    let columns: Vec<&ListColumn> =
        COLUMNS.iter().filter(|column| NEIGHBOUR_COLUMNS.contains(&column.name())).collect();
    let title = if record.nodes.len() == 1 {
        format!("Other jobs on {node} at the time")
    } else {
        "Other jobs on its nodes at the time".to_owned()
    };
    Ok(Some(html! {
        section id="neighbours" data-live aria-labelledby="neighbours-title" {
            h2 id="neighbours-title" { (escape(&title)) }
            (jobs::plain_table(site, &columns, &jobs[..jobs.len().min(NEIGHBOURS_MAX)], "Other jobs at the time"))
            @if jobs.len() > NEIGHBOURS_MAX { p.dim { (jobs.len() - NEIGHBOURS_MAX) " more" } }
        }
    }))
}

/// The end of what the job wrote; the frame begins at its end, too.
pub fn output(tails: &[Tail]) -> Markup {
    html! {
        @if !tails.is_empty() {
            section id="output" data-live aria-labelledby="output-title" {
                h2 id="output-title" { "Output" }
                @for tail in tails {
                    p.dim { @if tail.is_cut { "the end of " } code { (escape(&tail.path)) } }
                    div.log tabindex="0" role="group" aria-label="Output" {
                        pre { @for line in tail.text.lines() { (escape(line)) "\n" } }
                    }
                }
            }
        }
    }
}
