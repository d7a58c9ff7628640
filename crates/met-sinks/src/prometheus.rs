//! The Prometheus text format and OpenMetrics, written straight from the tables.

use std::collections::HashSet;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use met_core::event;
use met_core::{Column, DETAIL, JOB, Kind, MISSING, Selection, Table};

use crate::decimal;
use crate::shown_jobs::{Contents, Shown};
use crate::snapshot::{ALLOCATED, HeldGpu, Job, Rows, Snapshot};

/// Metrics that are in no table, and what they say.
pub static FAMILIES: &[(&str, &str)] = &[BUILD_INFO, JOB_INFO, JOB_GPU_INFO, NOT_SHOWN];
const BUILD_INFO: (&str, &str) = ("met_build_info", "the program that wrote this page");
const JOB_INFO: (&str, &str) = (
    "met_job_info",
    "properties of a job; join them by cluster, manager and id; owner labels require authentication",
);
const JOB_GPU_INFO: (&str, &str) = (
    "met_job_gpu_info",
    "which job holds which GPU: uuid as in met_gpu metrics, gpu, UUID and GPU_I_ID as DCGM exporter names it",
);
const NOT_SHOWN: (&str, &str) = (
    "met_jobs_not_shown",
    "jobs without series of their own, by the key of `http` that excludes them; met_jobs_not_shown_* are their sums",
);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `text/plain; version=0.0.4`
    Text,
    /// `application/openmetrics-text; version=1.0.0`
    OpenMetrics,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// What a scraper that sends this `Accept` prefers.
    pub fn accepted(accept: &str) -> Format {
        let best = |kind: &str| quality_of(accept, kind).unwrap_or(0);
        let open = best("application/openmetrics-text");
        if open > 0 && open >= best("text/plain") { Format::OpenMetrics } else { Format::Text }
    }
}

/// Whether `Accept-Encoding` allows gzip.
pub fn accepts_gzip(accept: &str) -> bool {
    quality_of(accept, "gzip").is_some_and(|quality| quality > 0)
}

/// In thousandths; the highest of those that are named. `None`: it is not named.
fn quality_of(accept: &str, kind: &str) -> Option<u32> {
    let quality = |item: &str| {
        let mut parts = item.split(';').map(str::trim);
        parts.next().filter(|name| name.eq_ignore_ascii_case(kind))?;
        let given = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        let number =
            given.map_or(Some(1.0), |text| text.parse::<f32>().ok()).filter(|q| (0.0..=1.0).contains(q));
        Some((number.unwrap_or(0.0) * 1000.0) as u32)
    };
    accept.split(',').filter_map(quality).max()
}

/// 36 kB instead of 51 at level 1 for half a millisecond more; level 6 takes twice as long for 0.3 kB.
const GZIP_LEVEL: u32 = 3;
/// A page with all figures of many jobs is several times as long, and its time counts more than its size.
const GZIP_LEVEL_LONG: u32 = 1;
const LONG_BYTES: usize = 1 << 20;

pub fn gzip(page: &[u8]) -> std::io::Result<Vec<u8>> {
    let level = if page.len() > LONG_BYTES { GZIP_LEVEL_LONG } else { GZIP_LEVEL };
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::new(level));
    encoder.write_all(page)?;
    encoder.finish()
}

/// The whole page. `people`: whether the reader may know users, accounts and names of jobs, which are left out of a
/// page without a login, because every local user can read it.
pub fn page(snapshot: &Snapshot, format: Format, contents: &Contents, people: bool, out: &mut Vec<u8>) {
    let write = if contents.metrics == Selection::All { decimal::write } else { decimal::write_thousandths };
    let mut page = Page { format, metrics: contents.metrics, write, out };
    page.build_info();
    snapshot.tables.iter().for_each(|rows| page.table(rows));
    let shown = Shown::of(&snapshot.jobs, contents);
    page.jobs(&shown);
    page.events(&shown);
    page.rest(&shown);
    page.job_info(&shown, people);
    page.held_gpus(&shown);
    if format == Format::OpenMetrics {
        page.out.extend_from_slice(b"# EOF\n");
    }
}

pub(crate) fn labels_of<'l>(labels: impl IntoIterator<Item = (&'l str, &'l str)>) -> String {
    let mut text = Vec::new();
    write_labels(labels.into_iter(), &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

struct Page<'a> {
    format: Format,
    metrics: Selection,
    write: fn(&Column, i64, &mut Vec<u8>),
    out: &'a mut Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Counter,
    Gauge,
    Info,
}

/// Samples of one metric; its head is written with the first.
struct Family<'p, 'a> {
    page: &'p mut Page<'a>,
    name: String,
    kind: Type,
    unit: &'static str,
    help: &'p str,
    begun: bool,
}

impl<'a> Page<'a> {
    fn family<'p>(&'p mut self, table: &Table, column: &'p Column) -> Family<'p, 'a> {
        let kind = match column.kind {
            Kind::Counter => Type::Counter,
            Kind::Gauge => Type::Gauge,
        };
        let unit = column.unit.suffix().trim_start_matches('_');
        Family {
            name: table.prometheus_name(column),
            kind,
            unit,
            help: column.help,
            page: self,
            begun: false,
        }
    }

    fn untabled<'p>(&'p mut self, (name, help): (&str, &'p str), kind: Type) -> Family<'p, 'a> {
        Family { name: name.to_owned(), kind, unit: "", help, page: self, begun: false }
    }

    fn build_info(&mut self) {
        let mut family = self.untabled(BUILD_INFO, Type::Info);
        family.labelled_and("", [("version", env!("CARGO_PKG_VERSION"))].into_iter());
    }

    fn table(&mut self, all: &Rows) {
        let mut seen = HashSet::new();
        let mut rows: Vec<(String, &[i64])> = Vec::new();
        for (values, cells) in all.iter() {
            let labels = labels_of(all.table.labels.iter().copied().zip(values.iter().map(String::as_str)));
            // Two devices with all names alike: the page would be refused in whole for the second.
            if seen.insert(labels.clone()) {
                rows.push((labels, cells));
            }
        }
        for (index, column) in self.selected(all.table) {
            let mut family = self.family(all.table, column);
            rows.iter().for_each(|(labels, cells)| family.cell(labels, column, cells[index]));
        }
    }

    /// The columns that the page has.
    fn selected(&self, table: &Table) -> impl Iterator<Item = (usize, &'static Column)> + use<> {
        let metrics = self.metrics;
        table.columns.iter().enumerate().filter(move |(_, column)| metrics.has(column))
    }

    fn jobs(&mut self, shown: &Shown<'_>) {
        for (index, column) in self.selected(&JOB) {
            let mut family = self.family(&JOB, column);
            shown.jobs.iter().for_each(|(labels, job)| family.cell(labels, column, job.cells[index]));
        }
        for (index, column) in self.selected(&DETAIL) {
            let mut family = self.family(&DETAIL, column);
            let cell = |job: &Job| job.details.get(index).copied().unwrap_or(MISSING);
            shown.jobs.iter().for_each(|(labels, job)| family.cell(labels, column, cell(job)));
        }
        for (index, column) in self.selected(&ALLOCATED) {
            let mut family = self.family(&ALLOCATED, column);
            shown
                .jobs
                .iter()
                .for_each(|(labels, job)| family.cell(labels, column, job.about.allocated[index]));
        }
    }

    fn events(&mut self, shown: &Shown<'_>) {
        let column = &event::COLUMNS[event::COUNT];
        if !self.metrics.has(column) {
            return;
        }
        let mut family = self.family(&event::TABLE, column);
        for (labels, job) in &shown.jobs {
            for one in &job.events {
                let name = labels_of([("event", one.name.as_str())]);
                family.cell(&format!("{labels},{name}"), column, one.count);
            }
        }
    }

    /// A job leaves the rest when there is room for it, so what the rest has counted is a level and no counter.
    fn rest(&mut self, shown: &Shown<'_>) {
        let mut family = self.untabled(NOT_SHOWN, Type::Gauge);
        for (key, jobs) in shown.not_shown() {
            let by = labels_of([("by", key)]);
            family.labelled(&by, |out| out.extend_from_slice(jobs.to_string().as_bytes()));
        }
        let Some(rest) = &shown.rest else { return };
        for (index, column) in self.selected(&JOB) {
            let mut family = self.family(&JOB, column);
            family.name = format!("met_jobs_not_shown_{}", column.json_name());
            family.kind = Type::Gauge;
            family.cell("", column, rest.cells[index]);
        }
    }

    fn job_info(&mut self, shown: &Shown<'_>, people: bool) {
        let mut family = self.untabled(JOB_INFO, Type::Info);
        for (labels, job) in &shown.jobs {
            let (about, person) = (&job.about, &job.about.person);
            let mut own = vec![
                ("shown_id", about.shown_id.as_str()),
                ("partition", &about.partition),
                ("state", about.state),
                ("inside", &about.inside),
            ];
            if people {
                own.extend([
                    ("name", person.name.as_str()),
                    ("user", &person.user),
                    ("account", &person.account),
                ]);
            }
            family.labelled_and(labels, own.into_iter());
        }
    }

    fn held_gpus(&mut self, shown: &Shown<'_>) {
        let mut family = self.untabled(JOB_GPU_INFO, Type::Info);
        for (labels, job) in &shown.jobs {
            for gpu in &job.gpus {
                family.labelled_and(labels, gpu_labels(gpu).into_iter());
            }
        }
    }
}

/// DCGM exporter names a part by the GPU that it is cut from and the number of its instance.
fn gpu_labels(gpu: &HeldGpu) -> [(&str, &str); 6] {
    let whole = if gpu.parent.is_empty() { &gpu.uuid } else { &gpu.parent };
    let index = gpu.index.split('.').next().unwrap_or_default();
    let instance = gpu.mig.split('/').next().unwrap_or_default();
    [
        ("gpu", index),
        ("UUID", whole),
        ("GPU_I_ID", instance),
        ("index", &gpu.index),
        ("uuid", &gpu.uuid),
        ("vendor", &gpu.vendor),
    ]
}

impl Family<'_, '_> {
    /// A fact: these labels, further ones, and 1.
    fn labelled_and<'l>(&mut self, labels: &str, more: impl Iterator<Item = (&'l str, &'l str)>) {
        let mut text = labels.as_bytes().to_vec();
        write_labels(more, &mut text);
        self.labelled(&String::from_utf8_lossy(&text), |out| out.push(b'1'));
    }

    /// Writes a sample, unless the cell is missing.
    fn cell(&mut self, labels: &str, column: &Column, cell: i64) {
        if cell != MISSING {
            let write = self.page.write;
            self.labelled(labels, |out| write(column, cell, out));
        }
    }

    fn labelled(&mut self, labels: &str, value: impl FnOnce(&mut Vec<u8>)) {
        if !self.begun {
            self.head();
            self.begun = true;
        }
        let out = &mut *self.page.out;
        out.extend_from_slice(self.name.as_bytes());
        if !labels.is_empty() {
            out.push(b'{');
            out.extend_from_slice(labels.as_bytes());
            out.push(b'}');
        }
        out.push(b' ');
        value(out);
        out.push(b'\n');
    }

    fn head(&mut self) {
        let open = self.page.format == Format::OpenMetrics;
        let (kind, suffix) = match self.kind {
            Type::Counter => ("counter", "_total"),
            Type::Gauge => ("gauge", ""),
            Type::Info if open => ("info", "_info"),
            Type::Info => ("gauge", ""),
        };
        // In OpenMetrics these endings are not a part of the family's name.
        let family = if open { self.name.strip_suffix(suffix).unwrap_or(&self.name) } else { &self.name };
        let out = &mut *self.page.out;
        let mut line = |what: &str, text: &str| {
            for part in ["# ", what, " ", family, " "] {
                out.extend_from_slice(part.as_bytes());
            }
            escape(text, open, out);
            out.push(b'\n');
        };
        line("HELP", self.help);
        line("TYPE", kind);
        if open && !self.unit.is_empty() && family.ends_with(self.unit) {
            line("UNIT", self.unit);
        }
    }
}

/// Adds labels to those that are there. An empty one is the same as none.
fn write_labels<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>, out: &mut Vec<u8>) {
    for (name, text) in labels.filter(|(_, text)| !text.is_empty()) {
        if !out.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"=\"");
        escape(text, true, out);
        out.push(b'"');
    }
}

fn escape(text: &str, quotes: bool, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'"' if quotes => out.extend_from_slice(b"\\\""),
            byte => out.push(byte),
        }
    }
}

#[cfg(test)]
#[path = "prometheus_tests.rs"]
mod tests;
