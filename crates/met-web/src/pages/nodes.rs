//! The machines: a map in which those stand out that need a look, and a list.

use maud::{Markup, html};
use met_core::node_health::Spool;
use met_core::text::escape;
use met_core::units;
use met_query::free::Free;
use met_query::protocol::NodeStatus;

use super::layout::{self, Site, Tab};
use super::{Asked, Made};
use crate::api::Visible;
use crate::problem::Problem;

const EVERY_S: u32 = 10;
/// A clock this far off makes series of several nodes hard to compare.
const CLOCK_OFF_NS: i64 = 2_000_000_000;

pub(super) fn page(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    let unknown = asked.search.iter().find(|(name, _)| !["name", "show"].contains(&name.as_str()));
    if let Some((name, _)) = unknown {
        return Err(Problem::asked(format!("unknown parameter {name:?}; known: name, show")));
    }
    let all = visible.nodes_with_free()?;
    let (wanted, show) = (asked.get("name").unwrap_or(""), asked.get("show").unwrap_or(""));
    let is_wanted = |node: &&NodeStatus| node.name.contains(wanted) && fits(node, show);
    let mut nodes: Vec<&NodeStatus> = all.iter().filter(is_wanted).collect();
    nodes.sort_by_key(|node| natural(&node.name));
    let content = html! {
        div.head {
            h1 { "Nodes" }
            nav.quick aria-label="Quick filters" {
                @for (label, value) in [("All", ""), ("Late or broken", "bad"), ("Free", "free"), ("Busy", "busy")] {
                    @let search = layout::search([("name", wanted), ("show", value)].into_iter().filter(|(_, value)| !value.is_empty()));
                    a href=(site.to(&format!("nodes{}{search}", if search.is_empty() { "" } else { "?" }))) aria-current=[(show == value).then_some("true")] { (label) }
                }
            }
        }
        search {
            form.filter method="get" action=(site.to("nodes")) {
                div.fields {
                    div.field {
                        label for="f-name" { "Name contains" }
                        input id="f-name" type="search" name="name" value=(wanted) autocomplete="off" spellcheck="false" autocapitalize="none";
                    }
                    @if !show.is_empty() { input type="hidden" name="show" value=(show); }
                    button type="submit" { "Show" }
                }
            }
        }
        div id="nodes" data-live {
            @if nodes.is_empty() { p.empty { "No nodes match." } }
            @if nodes.len() > 1 { (map(site, &nodes)) }
            @if !nodes.is_empty() { (list(site, &nodes)) }
        }
    };
    Ok(Made::Page(layout::page(site, Some(Tab::Nodes), "Nodes", Some(EVERY_S), &content)))
}

fn fits(node: &NodeStatus, show: &str) -> bool {
    match show {
        "bad" => is_bad(node),
        "free" => node.jobs == 0 && !is_bad(node),
        "busy" => node.jobs > 0,
        _ => true,
    }
}

fn is_bad(node: &NodeStatus) -> bool {
    node.late || has_problem(node)
}

/// What a late node said last need not be so any more.
fn has_problem(node: &NodeStatus) -> bool {
    node.problem.is_some() || !node.late && !node.health.failing_sources.is_empty()
}

/// `n2` before `n10`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (words, after) = rest.split_at(digits);
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        parts.push((words.to_owned(), after[..end].parse().unwrap_or(u64::MAX)));
        rest = &after[end..];
    }
    parts
}

/// In words, and as a class.
fn condition(node: &NodeStatus) -> (&'static str, &'static str) {
    match node {
        node if has_problem(node) => ("problem", "bad"),
        node if node.late => ("late", "bad"),
        node if node.jobs > 0 => ("busy", "run"),
        _ => ("free", "ok"),
    }
}

fn map(site: &Site, nodes: &[&NodeStatus]) -> Markup {
    html! {
        section aria-labelledby="map-title" {
            h2.hidden id="map-title" { "Map" }
            ul.map {
                @for node in nodes {
                    @let (word, kind) = condition(node);
                    li { a.(kind) href=(site.node_path(&node.name)) title={ (escape(&node.name)) ": " (word) ", " (node.jobs) " jobs" } {
                        span.hidden { (escape(&node.name)) ": " (word) }
                    } }
                }
            }
            ul.legend {
                @for (word, kind) in [("free", "ok"), ("busy", "run"), ("late or problem", "bad")] {
                    li { span.square.(kind) {} (word) " " (nodes.iter().filter(|node| condition(node).1 == kind).count()) }
                }
            }
        }
    }
}

fn list(site: &Site, nodes: &[&NodeStatus]) -> Markup {
    // What no node has needs no column.
    let has_clock = nodes.iter().any(|node| node.clock_offset_ns.is_some());
    let has_dropped = nodes.iter().any(|node| node.dropped_samples > 0);
    let has_gpus = nodes.iter().any(|node| node.health.gpus.is_some());
    let has_free = nodes.iter().any(|node| node.free.is_known());
    let has_spool = nodes.iter().any(|node| node.spool.is_some_and(|spool| spool.batches > 0));
    let shown = Columns { has_gpus, has_free, has_clock, has_spool, has_dropped };
    let heads = [
        ("Node", "t", true),
        ("State", "t", true),
        ("Jobs", "n", true),
        ("CPUs in use", "n eff", true),
        ("Memory in use", "n eff", true),
        ("GPUs", "n", has_gpus),
        (NOT_GIVEN, "t", has_free),
        ("Last seen", "n", true),
        ("Clock off by", "n", has_clock),
        ("Not delivered", "n", has_spool),
        ("Dropped", "n", has_dropped),
        ("Version", "t", true),
    ];
    html! {
        div.scroll tabindex="0" role="group" aria-label="Nodes" {
            table.list.nodes role="table" {
                thead role="rowgroup" { tr role="row" {
                    @for (head, class, is_shown) in heads {
                        @if is_shown { th class=(class) scope="col" role="columnheader" { (head) } }
                    }
                } }
                tbody role="rowgroup" { @for node in nodes { (row(site, node, shown)) } }
            }
        }
    }
}

/// How much of a machine is used, as far as it is known.
pub(super) fn in_use(used: Option<f64>, whole: Option<i64>, write: fn(f64) -> String) -> Markup {
    let whole = whole.map(|whole| whole as f64).filter(|&whole| whole > 0.0);
    html! {
        @if let Some((used, whole)) = used.zip(whole) { (layout::bar(used / whole, "plain")) }
        span {
            @if let Some(used) = used { (write(used)) } @else { span.unknown { "–" } }
            @if let Some(whole) = whole { span.dim { " of " (write(whole)) } }
        }
    }
}

/// Columns that some node needs.
#[derive(Clone, Copy)]
struct Columns {
    has_gpus: bool,
    has_free: bool,
    has_clock: bool,
    has_spool: bool,
    has_dropped: bool,
}

fn row(site: &Site, node: &NodeStatus, columns: Columns) -> Markup {
    let Columns { has_gpus, has_free, has_clock, has_spool, has_dropped } = columns;
    let (word, kind) = condition(node);
    html! {
        tr role="row" {
            td.t.c-name role="cell" data-head="Node" { a href=(site.node_path(&node.name)) { (escape(&node.name)) } }
            td.t.c-state role="cell" data-head="State" {
                span.state.(kind) { (word) }
                @if has_problem(node) {
                    @for problem in node.problems(site.now_ns) { " " span.dim { (layout::said(&problem)) } }
                }
            }
            td.n role="cell" data-head="Jobs" { (node.jobs) }
            td.n.eff role="cell" data-head="CPUs in use" { (in_use(node.now.busy_cores, node.cpus, units::cores)) }
            td.n.eff role="cell" data-head="Memory in use" { (in_use(node.now.memory_used_bytes, node.memory_bytes, units::bytes)) }
            @if has_gpus { td.n role="cell" data-head="GPUs" { @if let Some(gpus) = node.health.gpus { (gpus) } } }
            @if has_free { td.t.c-free role="cell" data-head=(NOT_GIVEN) { (free(node)) } }
            td.n role="cell" data-head="Last seen" { (seen(site, node)) }
            @if has_clock { td.n role="cell" data-head="Clock off by" { (clock(node)) } }
            @if has_spool { td.n role="cell" data-head="Not delivered" { @if node.spool != Some(Spool::default()) { (spool(node)) } } }
            @if has_dropped { td.n role="cell" data-head="Samples dropped" title="Samples that were given up" { @if node.dropped_samples > 0 { span.flag { (units::count(node.dropped_samples as f64)) } } } }
            td.t role="cell" data-head="Version" { @if let Some(version) = &node.version { (escape(version)) } }
        }
    }
}

pub(super) fn seen(site: &Site, node: &NodeStatus) -> Markup {
    html! { @if let Some(seen_ns) = node.seen_ns { (site.ago(seen_ns)) } @else { "never" } }
}

/// What no job holds may be in use all the same.
const NOT_GIVEN: &str = "Not given to jobs";

/// What no job holds, as far as it is known.
pub(super) fn free(node: &NodeStatus) -> Markup {
    let Free { cores, memory_bytes, gpus } = node.free;
    let words = [
        cores.map(|cores| format!("{} cores", units::cores(cores))),
        memory_bytes.map(units::bytes),
        gpus.filter(|_| node.health.gpus.is_some_and(|gpus| gpus > 0)).map(|gpus| match gpus {
            1 => "1 GPU".to_owned(),
            gpus => format!("{gpus} GPUs"),
        }),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    html! { @if words.is_empty() { span.unknown { "–" } } @else { (words.join(", ")) } }
}

/// What it has not delivered to the server; a batch or two are on their way.
pub(super) fn spool(node: &NodeStatus) -> Markup {
    const ON_THEIR_WAY: u64 = 2;
    let Some(Spool { batches, bytes }) = node.spool else { return html! { span.unknown { "–" } } };
    let noun = if batches == 1 { "batch" } else { "batches" };
    let words = format!("{} {noun}, {}", units::count(batches as f64), units::bytes(bytes as f64));
    html! {
        @if batches == 0 { span.dim { "nothing" } }
        @else if batches > ON_THEIR_WAY { span.flag { (words) } }
        @else { (words) }
    }
}

/// How far its clock is off.
pub(super) fn clock(node: &NodeStatus) -> Markup {
    let Some(offset_ns) = node.clock_offset_ns else { return html! {} };
    let words = units::duration(offset_ns.unsigned_abs() as f64 / 1e9);
    let side = if offset_ns > 0 { "behind" } else { "ahead" };
    html! {
        @if offset_ns.abs() > CLOCK_OFF_NS { span.flag { (words) " " (side) } }
        @else { span.dim { (words) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_sorted_as_people_count() {
        let mut names = ["n10", "n2", "gpu1", "n1", "n1-2", "n"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["gpu1", "n1", "n1-2", "n2", "n10", "n"]);
    }
}
