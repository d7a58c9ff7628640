//! The columns of the list of jobs, by the names that the CSV has.

use maud::{Markup, html};
use met_core::JOB;
use met_core::job::{QualityKind, Record};
use met_core::job_table as column;
use met_core::text::{command_line, escape};
use met_core::units;
use met_insight::allocation::{self, Resource, Share};
use met_insight::report::{cause, outcome};
use met_insight::{average, gpu};

use super::layout::{self, Site, quality_mark};

pub struct ListColumn {
    /// The first is the column's own name; the others are what else its cells show.
    pub csv: &'static [&'static str],
    pub head: &'static str,
    /// By which a list is sorted.
    pub sort: Option<&'static str>,
    pub kind: Kind,
    /// Left out of lists in which no job has a GPU.
    pub needs_gpus: bool,
    pub cell: fn(&Site, &Record) -> Markup,
}

/// How cells are set, and what stays on a small screen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Number,
    /// A number with a bar.
    Share,
}

impl ListColumn {
    pub fn name(&self) -> &'static str {
        self.csv[0]
    }

    const fn needs_gpus(self) -> ListColumn {
        ListColumn { needs_gpus: true, ..self }
    }

    /// What a row shows. Of a figure that is not known, a dash.
    pub fn shown(&self, site: &Site, record: &Record) -> Markup {
        let cell = (self.cell)(site, record);
        let is_unknown = self.kind != Kind::Text && cell.0.is_empty();
        if is_unknown {
            html! { span.unknown { "–" } }
        } else {
            cell
        }
    }

    pub fn class(&self) -> &'static str {
        match self.kind {
            Kind::Text => "t",
            Kind::Number => "n",
            Kind::Share => "n eff",
        }
    }
}

const fn text(
    csv: &'static [&'static str],
    head: &'static str,
    sort: Option<&'static str>,
    cell: fn(&Site, &Record) -> Markup,
) -> ListColumn {
    ListColumn { csv, head, sort, kind: Kind::Text, needs_gpus: false, cell }
}

const fn number(
    csv: &'static [&'static str],
    head: &'static str,
    sort: Option<&'static str>,
    cell: fn(&Site, &Record) -> Markup,
) -> ListColumn {
    ListColumn { kind: Kind::Number, ..text(csv, head, sort, cell) }
}

const fn share(
    csv: &'static [&'static str],
    head: &'static str,
    sort: Option<&'static str>,
    cell: fn(&Site, &Record) -> Markup,
) -> ListColumn {
    ListColumn { kind: Kind::Share, ..text(csv, head, sort, cell) }
}

/// Shown where nothing else was chosen.
pub const USUAL: &[&str] = &[
    "job",
    "name",
    "user",
    "state",
    "average_cores",
    "memory_needed_peak_bytes",
    "efficiency_gpu_ratio",
    "energy_joules",
    "wall_seconds",
    "start",
];

pub static COLUMNS: &[ListColumn] = &[
    text(&["job"], "Job", Some("job"), |site, record| {
        let label = record.label();
        html! { a href=(site.job_path(&label)) { (escape(&label)) } }
    }),
    text(&["name"], "Name", Some("name"), |site, record| {
        html! { a.name href=(site.job_path(&record.label())) tabindex="-1" { (escape(&record.name)) } }
    }),
    text(&["user"], "User", Some("user"), |_, record| optional(record.user.as_deref())),
    text(&["account"], "Account", Some("account"), |_, record| optional(record.account.as_deref())),
    text(&["state"], "State", Some("state"), |_, record| {
        html! {
            span title=(escape(&outcome(record))) {
                (layout::state(record.state))
                @if let Some(cause) = cause(record) { span.dim { " (" (cause) ")" } }
            }
        }
    }),
    share(
        &["average_cores", "allocated_cpus", "efficiency_cpu_ratio"],
        "Cores",
        Some("cores"),
        |site, record| {
            of_share(
                record,
                site.now_ns,
                Resource::Cpus,
                average::cores(record, site.now_ns),
                column::CPU,
                units::cores,
            )
        },
    ),
    share(
        &["memory_needed_peak_bytes", "allocated_memory_bytes", "efficiency_memory_ratio"],
        "Memory",
        Some("memory"),
        |site, record| {
            let peak = record.totals.get(column::MEMORY_NEEDED_PEAK).map(|bytes| bytes as f64);
            of_share(record, site.now_ns, Resource::Memory, peak, column::MEMORY_NEEDED_PEAK, units::bytes)
        },
    ),
    share(&["efficiency_gpu_ratio", "allocated_gpus"], "GPU", Some("gpu_utilization"), |_, record| {
        html! {
            @if let Some(ratio) = gpu::ratio(record) {
                (layout::bar(ratio, layout::efficiency_kind(ratio)))
                span { (units::percent(ratio)) " of " (record.gpus.len()) }
            } @else if !record.gpus.is_empty() { span { (record.gpus.len()) } }
        }
    })
    .needs_gpus(),
    number(&["energy_joules"], "Energy", Some("energy"), |_, record| {
        total(record, column::ENERGY, units::watt_hours)
    }),
    number(&["emissions_grams"], "CO2e", Some("emissions"), |_, record| {
        total(record, column::EMISSIONS, units::grams)
    }),
    number(&["wall_seconds"], "Duration", Some("duration"), |site, record| {
        let wall_ns = average::wall_ns(record, site.now_ns);
        html! { @if let Some(ns) = wall_ns { (units::duration(ns as f64 / 1e9)) } }
    }),
    number(
        &["start"],
        "Started",
        Some("start"),
        |site, record| html! { @if let Some(start_ns) = record.start_ns { (site.time(start_ns)) } },
    ),
    number(
        &["end"],
        "Ended",
        Some("end"),
        |site, record| html! { @if let Some(end_ns) = record.end_ns { (site.time(end_ns)) } },
    ),
    number(&["queue_wait_seconds"], "Queued", Some("queued"), |site, record| {
        let wait_ns = allocation::queue_wait_ns(record, site.now_ns);
        html! { @if let Some(ns) = wait_ns { (units::duration(ns as f64 / 1e9)) } }
    }),
    number(&["cpu_seconds"], "CPU time", Some("cpu"), |_, record| {
        total(record, column::CPU, units::duration)
    }),
    number(&["read_bytes"], "Read", Some("read"), |_, record| total(record, column::READ, units::bytes)),
    number(&["written_bytes"], "Written", Some("written"), |_, record| {
        total(record, column::WRITTEN, units::bytes)
    }),
    number(&["exit_code", "signal"], "Exit", Some("exit"), |_, record| {
        html! { @if let Some(code) = record.exit_code { (code) } @else if let Some(signal) = record.signal { "signal " (signal) } }
    }),
    text(&["manager"], "Manager", Some("manager"), |_, record| html! { (escape(&record.key.manager)) }),
    text(&["partition"], "Partition", Some("partition"), |_, record| {
        optional(record.scheduling.partition.as_deref())
    }),
    text(&["nodes"], "Nodes", Some("nodes"), |site, record| {
        let more = record.nodes.len().saturating_sub(1);
        html! {
            @if let Some(first) = record.nodes.first() { a href=(site.node_path(first)) { (escape(first)) } }
            @if more > 0 { span.dim title=(escape(&record.nodes.join(", "))) { " and " (more) " more" } }
        }
    }),
    text(&["tags"], "Tags", Some("tags"), |site, record| {
        html! { @for tag in &record.annotation.tags { a.tag href=(site.to(&format!("jobs?{}", layout::search([("tag", tag.as_str())])))) { (escape(tag)) } " " } }
    }),
    text(&["command"], "Command", Some("command"), |_, record| {
        let words = command_line(&record.command);
        html! { code.cmd title=(words) { (words) } }
    }),
];

fn optional(text: Option<&str>) -> Markup {
    html! { @if let Some(text) = text { (escape(text)) } }
}

/// A total with the sign of its quality; empty where it is not known.
fn total(record: &Record, index: usize, write: fn(f64) -> String) -> Markup {
    let Some(figure) = record.totals.figure(index) else { return html! {} };
    html! { (quality_mark(kind_in_list(figure.kind))) (write(JOB.columns[index].scaled(figure.value))) }
}

/// Shares of a meter add up to it and need no sign in a list.
fn kind_in_list(kind: QualityKind) -> QualityKind {
    if kind == QualityKind::Attributed { QualityKind::Measured } else { kind }
}

/// What was used, and a bar where it is known of how much.
fn of_share(
    record: &Record,
    now_ns: i64,
    resource: Resource,
    used: Option<f64>,
    index: usize,
    write: fn(f64) -> String,
) -> Markup {
    let share = allocation::shares(record, now_ns).into_iter().find(|share| share.resource == resource);
    let efficiency = share.as_ref().and_then(Share::efficiency);
    let used = used.or(share.as_ref().and_then(|share| share.used));
    let whole =
        share.as_ref().and_then(|share| share.allocated.or(share.requested)).filter(|_| efficiency.is_some());
    let kind = record.totals.figure(index).map_or(QualityKind::Measured, |figure| kind_in_list(figure.kind));
    let colour = match resource {
        Resource::Memory => layout::closeness_kind,
        _ => layout::efficiency_kind,
    };
    html! {
        @if let Some(efficiency) = efficiency { (layout::bar(efficiency, colour(efficiency))) }
        @if let Some(used) = used {
            span title=[efficiency.map(units::percent)] {
                (quality_mark(kind)) (write(used))
                @if let Some(whole) = whole { span.dim { " of " (write(whole)) } }
            }
        }
    }
}
