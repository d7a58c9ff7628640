//! The machine or the cluster now: what is free, who holds what, and what is wrong.

use std::collections::{BTreeMap, HashSet};

use maud::{Markup, html};
use met_core::job::{Record, State};
use met_core::job_table as column;
use met_core::series::Series;
use met_core::text::escape;
use met_core::units;
use met_insight::average;
use met_query::jobs::{JobsFilter, PageAsk};
use met_query::machine_now::MachineNow;
use met_query::protocol::NodeStatus;
use met_query::query::{FirstJobs, first_jobs};
use met_sources::node as machine_table;

use super::charts::Span;
use super::layout::{self, Site, Tab};
use super::list_columns::{COLUMNS, ListColumn};
use super::{Asked, Made, charts, jobs, node, plot};
use crate::api::Visible;
use crate::problem::Problem;
use crate::samples::{self, Parts};

const EVERY_S: u32 = 5;
/// Running and waiting jobs that are summed up; on a larger cluster the page says so.
const JOBS_MAX: usize = 5_000;
const PAGE_JOBS: usize = 500;
/// Jobs in the lists of this page.
const LISTED: usize = 25;
const ENDED_LISTED: usize = 10;
/// What is drawn of the machine.
const MINUTES: i64 = 30;
/// Samples of a series that are held: all of this time, since the last of them is now.
const SAMPLES_KEPT: usize = 5_000;
const BINS: usize = 90;

/// Columns of the lists here.
const SHOWN: &[&str] = &[
    "job",
    "name",
    "user",
    "state",
    "average_cores",
    "memory_needed_peak_bytes",
    "efficiency_gpu_ratio",
    "wall_seconds",
    "nodes",
];

pub(super) fn page(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    if let Some((name, _)) = asked.search.first() {
        return Err(Problem::asked(format!("unknown parameter {name:?}; this page has none")));
    }
    let nodes = visible.nodes()?;
    let FirstJobs { jobs: live, is_cut, .. } = live_jobs(visible)?;
    let ended = JobsFilter {
        states: State::ALL.into_iter().filter(|state| !state.is_live()).collect(),
        page: PageAsk { limit: Some(ENDED_LISTED), paged: true, ..PageAsk::default() },
        ..JobsFilter::default()
    };
    let (ended, warnings) = visible.jobs(&ended)?;
    let since_ms = site.now_ns / 1_000_000 - MINUTES * 60_000;
    let window_ms = (since_ms, site.now_ns / 1_000_000);
    let parts = samples::own(visible.query, window_ms, SAMPLES_KEPT, node::drawn())?;
    let title = match nodes.as_slice() {
        [node] => escape(&node.name),
        _ => "Cluster".to_owned(),
    };
    let columns: Vec<&ListColumn> = COLUMNS.iter().filter(|column| SHOWN.contains(&column.name())).collect();
    let content = html! {
        div.head {
            div { p.over { "Now" } h1 { (title) } }
            @if visible.host.is_some() { nav.quick aria-label="More" { a href=(site.to("who")) { "Who uses this machine" } } }
        }
        div id="tiles" data-live { (tiles(visible, &nodes, &live, parts.as_ref())) }
        div id="attention" data-live aria-live="polite" {
            @for warning in &warnings { (layout::notice("warn", warning)) }
            @if is_cut { (layout::notice("warn", &format!("more than {JOBS_MAX} running and waiting jobs: sums are of the newest"))) }
            (attention(site, &nodes, &live))
        }
        @if let Some(parts) = &parts { (machine(site, &nodes, parts, since_ms)) }
        div id="holders" data-live { (holders(site, &live)) }
        section id="running" data-live aria-labelledby="running-title" {
            div.bar-line {
                h2 id="running-title" { "Running and waiting" @if live.len() > LISTED { span.dim { " – the newest " (LISTED) " of " (live.len()) } } }
                a href=(site.to("jobs?state=running%2Csuspended%2Cpending")) { "Show in Jobs" }
            }
            @if live.is_empty() { p.empty { "No jobs are running." } }
            @else { (jobs::plain_table(site, &columns, &live[..live.len().min(LISTED)], "Running and waiting jobs")) }
        }
        section id="ended" data-live aria-labelledby="ended-title" {
            h2 id="ended-title" { "Ended last" }
            @if ended.jobs.is_empty() { p.empty { "None yet." } }
            @else { (jobs::plain_table(site, &columns, &ended.jobs, "Jobs that ended last")) }
        }
    };
    Ok(Made::Page(layout::page(site, Some(Tab::Now), "Now", Some(EVERY_S), &content)))
}

/// Running and waiting jobs that the viewer sees, the newest first, and whether there are more.
fn live_jobs(visible: &Visible<'_>) -> Result<FirstJobs, Problem> {
    let states = State::ALL.into_iter().filter(|state| state.is_live()).collect();
    let filter = JobsFilter { states, page: PageAsk::first(PAGE_JOBS), ..JobsFilter::default() };
    first_jobs(visible.query, visible.viewer, &filter, JOBS_MAX).map_err(|error| Problem::failed(&error))
}

/// What jobs hold together.
#[derive(Clone, Copy, Default)]
struct Held {
    running: usize,
    waiting: usize,
    /// What was allocated, and of jobs that asked for nothing what they use.
    cpus: f64,
    memory_bytes: f64,
    /// Running jobs that something was allocated to.
    allocated: usize,
    cores_used: f64,
    memory_used_bytes: f64,
    gpus: usize,
    gpus_idle: usize,
    watts: f64,
}

/// The GPUs of all nodes that say how many they have, and how many of those no job holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FreeGpus {
    free: usize,
    of: usize,
}

impl FreeGpus {
    /// `None` where no node says how many it has.
    fn of(nodes: &[NodeStatus], live: &[Record]) -> Option<FreeGpus> {
        let counted = |node: &&NodeStatus| !node.late && node.health.gpus.is_some();
        let counted: Vec<&NodeStatus> = nodes.iter().filter(counted).collect();
        let of = counted.iter().filter_map(|node| node.health.gpus).fold(0, i64::saturating_add);
        let names: HashSet<&str> = counted.iter().map(|node| node.name.as_str()).collect();
        let of = usize::try_from(of).ok().filter(|&of| of > 0)?;
        // Two jobs may hold the same GPU. What jobs hold on other nodes is not among these.
        let is_there = |record: &&Record| {
            record.state != State::Pending
                && (record.nodes.is_empty() || record.nodes.iter().any(|name| names.contains(name.as_str())))
        };
        let gpus = live.iter().filter(is_there).flat_map(|record| &record.gpus);
        let held: HashSet<&str> = gpus.map(|gpu| gpu.uuid.as_str()).collect();
        Some(FreeGpus { free: of.saturating_sub(held.len()), of })
    }
}

impl Held {
    fn add(&mut self, record: &Record, now_ns: i64) {
        if record.state == State::Pending {
            self.waiting += 1;
            return;
        }
        self.running += 1;
        let cores = average::cores(record, now_ns).unwrap_or(0.0);
        self.cpus += record.allocated.cpus.map_or(cores, |cpus| cpus as f64);
        self.allocated += usize::from(record.allocated.cpus.is_some());
        self.cores_used += cores;
        let used = average::level(record, column::MEMORY_NEEDED).unwrap_or(0.0);
        self.memory_bytes += record.allocated.memory_bytes.map_or(used, |bytes| bytes as f64);
        self.memory_used_bytes += used;
        self.gpus += record.gpus.len();
        self.gpus_idle += record.gpus.iter().filter(|gpu| gpu.idle_since_ns.is_some()).count();
        self.watts += average::per_second(record, column::ENERGY, now_ns).unwrap_or(0.0);
    }

    fn of(live: &[Record], now_ns: i64) -> Held {
        let mut held = Held::default();
        live.iter().for_each(|record| held.add(record, now_ns));
        held
    }
}

/// One figure with what it is of.
fn tile(label: &str, value: &str, more: &str, share: Option<(f64, &str)>) -> Markup {
    html! {
        div.tile {
            dt { (label) }
            dd {
                strong { (value) }
                @if let Some((share, kind)) = share { (layout::bar(share, kind)) }
                @if !more.is_empty() { span.dim { (more) } }
            }
        }
    }
}

fn tiles(visible: &Visible<'_>, nodes: &[NodeStatus], live: &[Record], parts: Option<&Parts>) -> Markup {
    let held = Held::of(live, met_host::clock::realtime_ns());
    let cpus: i64 = nodes.iter().filter(|node| !node.late).filter_map(|node| node.cpus).sum();
    let memory: i64 = nodes.iter().filter(|node| !node.late).filter_map(|node| node.memory_bytes).sum();
    let late = nodes.iter().filter(|node| node.late).count();
    // What is free follows from all jobs only.
    let sees_all = visible.viewer.sees_all();
    let is_idle = nodes.len() > 1 && held.running == 0;
    let is_allocated = sees_all && (held.allocated > 0 || is_idle);
    let machine = machines_now(nodes, parts);
    let free_gpus = FreeGpus::of(nodes, live).filter(|_| sees_all);
    html! {
        dl.tiles {
            @if nodes.len() > 1 {
                (tile("Nodes", &(nodes.len() - late).to_string(), &if late > 0 { format!("{late} late") } else { "all present".to_owned() }, None))
            }
            (tile("Running", &held.running.to_string(), &format!("{} waiting", held.waiting), None))
            @if let Some(busy) = machine.busy_cores {
                @let whole = cpus.max(1) as f64;
                (tile("CPU in use", &units::percent(busy / whole), &format!("{} of {cpus} cores", units::cores(busy)), Some((busy / whole, "plain"))))
            }
            @if is_allocated && cpus > 0 {
                // What jobs without an allocation use is no whole CPU.
                @let free = (cpus as f64 - held.cpus).max(0.0).round();
                (tile("CPUs not given to jobs", &format!("{free:.0}"), &format!("of {cpus}; jobs use {}", units::cores(held.cores_used)), Some((held.cpus / cpus as f64, "plain"))))
            }
            @if let Some(used) = machine.memory_used_bytes.filter(|_| memory > 0) {
                (tile("Memory in use", &units::bytes(used), &format!("of {}", units::bytes(memory as f64)), Some((used / memory as f64, "plain"))))
            }
            @if memory > 0 && (machine.memory_used_bytes.is_none() || is_allocated) {
                @let (label, value, used) = job_memory(&held, memory as f64, is_allocated, parts.is_some());
                (tile(label, &units::bytes(value), &format!("of {}", units::bytes(memory as f64)), Some((used / memory as f64, "plain"))))
            }
            @if let Some(load) = machine.load { (tile("Load", &units::cores(load), "average of the last minute", None)) }
            @if let Some(FreeGpus { free, of }) = free_gpus {
                @let idle = if held.gpus_idle > 0 { format!("; {} held idle", held.gpus_idle) } else { String::new() };
                (tile("Free GPUs", &free.to_string(), &format!("of {of}{idle}"), Some(((of - free) as f64 / of as f64, "plain"))))
            } @else if held.gpus > 0 {
                (tile("GPUs held", &held.gpus.to_string(), &if held.gpus_idle > 0 { format!("{} of them idle", held.gpus_idle) } else { "all in use".to_owned() }, None))
            }
            @if held.watts > 0.0 { (tile("Power of jobs", &units::watts(held.watts), "average since they started", None)) }
        }
    }
}

/// The memory of machines that is shown where their own use of it is not known: free is what no job was given, and where
/// none was given any, only what jobs use is known. With the value, and how much of the whole is taken.
fn job_memory(held: &Held, memory_bytes: f64, is_allocated: bool, of_user: bool) -> (&'static str, f64, f64) {
    let used = held.memory_used_bytes;
    match (is_allocated, of_user) {
        (true, _) => {
            ("Memory not given to jobs", (memory_bytes - held.memory_bytes).max(0.0), held.memory_bytes)
        }
        (false, true) => ("Memory of your jobs", used, used),
        (false, false) => ("Memory of jobs", used, used),
    }
}

/// What the machines do together. One that says nothing leaves the sum unknown; those that are late are left out.
fn machines_now(nodes: &[NodeStatus], parts: Option<&Parts>) -> MachineNow {
    let present: Vec<&NodeStatus> = nodes.iter().filter(|node| !node.late).collect();
    let sum = |of: fn(&MachineNow) -> Option<f64>| {
        let known: Option<Vec<f64>> = present.iter().map(|node| of(&node.now)).collect();
        known.filter(|known| !known.is_empty()).map(|known| known.iter().sum::<f64>())
    };
    let is_sampled = |series: &&Series| std::ptr::eq(series.table, &machine_table::TABLE);
    let own = parts.and_then(|parts| parts.values().find(is_sampled));
    let own = own.map(|series| MachineNow::of(series, None).0).unwrap_or_default();
    MachineNow {
        busy_cores: own.busy_cores.or_else(|| sum(|now| now.busy_cores)),
        memory_used_bytes: own.memory_used_bytes.or_else(|| sum(|now| now.memory_used_bytes)),
        // A sum of loads says nothing.
        load: own.load.or_else(|| sum(|now| now.load).filter(|_| present.len() == 1)),
    }
}

/// What needs attention; nothing where all is well.
fn attention(site: &Site, nodes: &[NodeStatus], live: &[Record]) -> Markup {
    const SAID_MAX: usize = 8;
    let mut said: Vec<Markup> = Vec::new();
    for node in nodes {
        let link = html! { a href=(site.node_path(&node.name)) { (escape(&node.name)) } };
        if node.late && node.problem.is_none() {
            let seen = node
                .seen_ns
                .map_or("never seen".to_owned(), |seen_ns| format!("last seen {}", site.ago(seen_ns)));
            said.push(html! { (link) ": late, " (seen) });
            continue;
        }
        let problems = node.problems(site.now_ns);
        said.extend(problems.iter().map(|problem| html! { (link) ": " (layout::said(problem)) }));
    }
    for record in live {
        let idle = record.gpus.iter().filter(|gpu| gpu.idle_since_ns.is_some()).count();
        let since = record.gpus.iter().filter_map(|gpu| gpu.idle_since_ns).min();
        if let Some(since_ns) = since.filter(|&since_ns| site.now_ns - since_ns > 600_000_000_000) {
            let label = record.label();
            said.push(html! {
                a href=(site.job_path(&label)) { (escape(&label)) } " of " (escape(record.user.as_deref().unwrap_or("an unknown user")))
                ": " (idle) " of " (record.gpus.len()) " GPUs idle for " (units::duration((site.now_ns - since_ns) as f64 / 1e9))
            });
        }
    }
    html! {
        @if !said.is_empty() {
            section.attention aria-labelledby="attention-title" {
                h2 id="attention-title" { "Needs attention" }
                ul { @for one in said.iter().take(SAID_MAX) { li { (one) } } }
                @if said.len() > SAID_MAX { p.dim { (said.len() - SAID_MAX) " more" } }
            }
        }
    }
}

fn machine(site: &Site, nodes: &[NodeStatus], parts: &Parts, since_ms: i64) -> Markup {
    let span = Span { begin_ms: since_ms, end_ms: site.now_ns / 1_000_000, bins: BINS };
    let limits = node::limits(nodes.first());
    let mut drawn = charts::machine(parts, span, node::gap_ms, limits);
    drawn.retain(|chart| chart.is_main);
    html! {
        @if !drawn.is_empty() {
            section.timelines aria-labelledby="machine-title" {
                div.bar-line {
                    h2 id="machine-title" { "The last " (MINUTES) " minutes" }
                    @if let [node] = nodes { a href=(site.node_path(&node.name)) { "All sensors" } }
                }
                div.charts id="charts" data-live { @for chart in &drawn { (plot::figure(chart, span, &site.zone)) } }
                div id="chart-source" data-live { (plot::data(&drawn, span)) }
            }
        }
    }
}

/// Who holds what, and how much of it is used; those who hold most first.
fn holders(site: &Site, live: &[Record]) -> Markup {
    const USERS_MAX: usize = 20;
    let mut by_user: BTreeMap<&str, Held> = BTreeMap::new();
    for record in live {
        by_user.entry(record.user.as_deref().unwrap_or("")).or_default().add(record, site.now_ns);
    }
    let mut users: Vec<(&str, Held)> = by_user.into_iter().collect();
    users.sort_by(|(_, one), (_, other)| {
        let by_cpus = other.cpus.total_cmp(&one.cpus);
        other.gpus.cmp(&one.gpus).then(by_cpus).then(other.running.cmp(&one.running))
    });
    let has_gpus = users.iter().any(|(_, held)| held.gpus > 0);
    html! {
        @if users.len() > 1 || has_gpus {
            section aria-labelledby="holders-title" {
                h2 id="holders-title" { "Who holds what" }
                div.scroll tabindex="0" role="group" aria-label="Who holds what" {
                    table {
                        thead { tr {
                            th scope="col" { "User" } th.n scope="col" { "Running" } th.n scope="col" { "Waiting" }
                            th.n.eff scope="col" { "Cores used" } th.n scope="col" { "Memory used" }
                            @if has_gpus { th.n scope="col" { "GPUs" } th.n scope="col" { "Idle GPUs" } }
                        } }
                        tbody { @for (user, held) in users.iter().take(USERS_MAX) { (holder(site, user, held, has_gpus)) } }
                    }
                }
                @if users.len() > USERS_MAX { p.dim { (users.len() - USERS_MAX) " more users" } }
            }
        }
    }
}

fn holder(site: &Site, user: &str, held: &Held, has_gpus: bool) -> Markup {
    // What some jobs were given says nothing of the others.
    let is_whole = held.allocated == held.running && held.cpus > 0.0;
    let share = held.cores_used / held.cpus.max(f64::MIN_POSITIVE);
    let link = site
        .to(&format!("jobs?{}", layout::search([("user", user), ("state", "running,suspended,pending")])));
    html! {
        tr {
            th scope="row" { @if user.is_empty() { "unknown" } @else { a href=(link) { (escape(user)) } } }
            td.n { (held.running) } td.n { (held.waiting) }
            td.n.eff {
                @if held.running > 0 {
                    @if is_whole { (layout::bar(share, layout::efficiency_kind(share))) }
                    span { (units::cores(held.cores_used)) @if is_whole { span.dim { " of " (format!("{:.0}", held.cpus)) } } }
                }
            }
            td.n { @if held.memory_used_bytes > 0.0 { (units::bytes(held.memory_used_bytes)) } }
            @if has_gpus {
                td.n { @if held.gpus > 0 { (held.gpus) } }
                td.n { @if held.gpus_idle > 0 { span.flag { (held.gpus_idle) } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use met_core::job::GpuUse;
    use met_core::node_health::NodeHealth;
    use met_core::sample;

    use super::*;

    fn node(name: &str, gpus: Option<i64>, late: bool) -> NodeStatus {
        let health = NodeHealth { gpus, ..NodeHealth::default() };
        NodeStatus { name: name.to_owned(), late, health, ..NodeStatus::default() }
    }

    fn holding(node: &str, state: State, uuids: &[&str]) -> Record {
        let gpu = |uuid: &&str| GpuUse { uuid: (*uuid).to_owned(), ..GpuUse::default() };
        let mut record = sample::full(1, "x");
        (record.state, record.nodes) = (state, vec![node.to_owned()]);
        record.gpus = uuids.iter().map(gpu).collect();
        record
    }

    #[test]
    fn what_machines_do_is_their_sum_and_unknown_where_one_says_nothing() {
        let mut nodes = [node("n1", None, false), node("n2", None, false), node("n3", None, true)];
        nodes[0].now = MachineNow { busy_cores: Some(1.5), load: Some(2.0), memory_used_bytes: Some(10.0) };
        assert_eq!(machines_now(&nodes[..1], None), nodes[0].now);
        assert_eq!(machines_now(&nodes, None), MachineNow::default(), "unknown is not 0");
        nodes[1].now = MachineNow { busy_cores: Some(2.0), load: Some(1.0), memory_used_bytes: None };
        let both = MachineNow { busy_cores: Some(3.5), ..MachineNow::default() };
        assert_eq!(machines_now(&nodes, None), both, "the late one is left out");
    }

    #[test]
    fn memory_is_free_only_where_it_is_given_to_jobs() {
        let held = Held { memory_bytes: 300.0, memory_used_bytes: 100.0, ..Held::default() };
        assert_eq!(job_memory(&held, 1000.0, true, false), ("Memory not given to jobs", 700.0, 300.0));
        assert_eq!(job_memory(&held, 1000.0, false, true), ("Memory of your jobs", 100.0, 100.0));
        assert_eq!(job_memory(&held, 1000.0, false, false), ("Memory of jobs", 100.0, 100.0));
    }

    #[test]
    fn free_gpus_are_those_of_nodes_that_say_how_many_they_have_and_unknown_without_any() {
        let nodes = [node("n1", Some(4), false), node("n2", None, false), node("n3", Some(8), true)];
        let live = [
            holding("n1", State::Running, &["a", "b"]),
            holding("n1", State::Running, &["b"]),
            holding("n1", State::Pending, &["c"]),
            holding("n3", State::Running, &["d"]),
        ];
        assert_eq!(FreeGpus::of(&nodes, &live), Some(FreeGpus { free: 2, of: 4 }), "two jobs share one");
        assert_eq!(FreeGpus::of(&nodes[1..], &live), None, "unknown is not 0");
        let many = [holding("n1", State::Running, &["a", "b", "c", "d", "e"])];
        assert_eq!(FreeGpus::of(&nodes, &many), Some(FreeGpus { free: 0, of: 4 }));
    }
}
