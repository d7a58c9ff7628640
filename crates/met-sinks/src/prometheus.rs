//! The Prometheus text format and OpenMetrics, written straight from the tables.

use met_core::{Column, JOB, Kind, MISSING, Table};

use crate::decimal;
use crate::snapshot::{Job, Rest, Snapshot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// What a scraper that sends this `Accept` wants.
    pub fn accepted(accept: &str) -> Format {
        if accept.contains("application/openmetrics-text") { Format::OpenMetrics } else { Format::Text }
    }
}

/// What may be told to whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disclosure {
    /// Users, accounts and names: every local user can read a page without a login.
    pub people: bool,
    /// Jobs with series of their own; the others are added up.
    pub jobs_max: usize,
}

/// The whole page of one machine.
pub fn page(mut snapshot: Snapshot, format: Format, disclosure: Disclosure, out: &mut Vec<u8>) {
    let rest = snapshot.cap_jobs(disclosure.jobs_max);
    let mut page = Page { format, out };
    page.info(&snapshot.node);
    for rows in &snapshot.tables {
        for (index, column) in rows.table.columns.iter().enumerate() {
            let mut family = page.family(rows.table, column);
            for (labels, cells) in rows.iter() {
                if cells[index] != MISSING {
                    let named = rows.table.labels.iter().copied().zip(labels.iter().map(String::as_str));
                    family.sample(named, |out| decimal::write(column, cells[index], out));
                }
            }
        }
    }
    page.jobs(&snapshot.jobs, rest.as_ref());
    if disclosure.people {
        page.people(&snapshot.jobs);
    }
    page.held_cards(&snapshot.jobs);
    if format == Format::OpenMetrics {
        page.out.extend_from_slice(b"# EOF\n");
    }
}

struct Page<'a> {
    format: Format,
    out: &'a mut Vec<u8>,
}

/// Samples of one metric; its head is written with the first.
struct Family<'p, 'a> {
    page: &'p mut Page<'a>,
    name: String,
    kind: &'static str,
    unit: &'static str,
    help: &'p str,
    begun: bool,
}

impl<'a> Page<'a> {
    fn family<'p>(&'p mut self, table: &Table, column: &'p Column) -> Family<'p, 'a> {
        let kind = match column.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
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

    fn gauge<'p>(&'p mut self, name: &str, help: &'p str) -> Family<'p, 'a> {
        Family { name: name.to_owned(), kind: "gauge", unit: "", help, page: self, begun: false }
    }

    fn info(&mut self, node: &str) {
        let mut family = self.gauge("met_build_info", "the program that wrote this, and where it runs");
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("node", node)];
        family.sample(labels.into_iter(), |out| out.push(b'1'));
    }

    fn jobs(&mut self, jobs: &[Job], rest: Option<&Rest>) {
        for (index, column) in JOB.columns.iter().enumerate() {
            let mut family = self.family(&JOB, column);
            for job in jobs.iter().filter(|job| job.cells[index] != MISSING) {
                family.sample(key_labels(job), |out| decimal::write(column, job.cells[index], out));
            }
        }
        let Some(rest) = rest else { return };
        let help = "running jobs that have no series of their own, because they are too many";
        let mut family = self.gauge("met_jobs_not_shown", help);
        family.sample([].into_iter(), |out| out.extend_from_slice(rest.jobs.to_string().as_bytes()));
        for (column, &cell) in JOB.columns.iter().zip(&rest.cells).filter(|(_, cell)| **cell != MISSING) {
            let name = JOB.prometheus_name(column).replacen("met_job_", "met_jobs_not_shown_", 1);
            let mut family = self.family(&JOB, column);
            family.name = name;
            family.sample([].into_iter(), |out| decimal::write(column, cell, out));
        }
    }

    fn people(&mut self, jobs: &[Job]) {
        let mut family = self.gauge("met_job_info", "who a job belongs to; join it by manager and id");
        for job in jobs {
            let info = &job.info;
            let own = [
                ("shown_id", info.shown_id.as_str()),
                ("name", &info.name),
                ("user", &info.user),
                ("account", &info.account),
                ("state", info.state),
            ];
            family.sample(key_labels(job).chain(own), |out| out.push(b'1'));
        }
    }

    fn held_cards(&mut self, jobs: &[Job]) {
        let help = "which job holds which card; index and uuid as in the series of other exporters";
        let mut family = self.gauge("met_job_gpu_info", help);
        for job in jobs {
            for card in &job.cards {
                let own = [
                    ("gpu", card.index.as_str()),
                    ("UUID", &card.uuid),
                    ("parent", &card.parent),
                    ("vendor", &card.vendor),
                ];
                family.sample(key_labels(job).chain(own), |out| out.push(b'1'));
            }
        }
    }
}

fn key_labels(job: &Job) -> impl Iterator<Item = (&str, &str)> {
    let key = &job.key;
    [("cluster", key.cluster.as_deref().unwrap_or("")), ("manager", &key.manager), ("id", &key.id)]
        .into_iter()
}

impl Family<'_, '_> {
    fn sample<'l>(
        &mut self,
        labels: impl Iterator<Item = (&'l str, &'l str)>,
        value: impl FnOnce(&mut Vec<u8>),
    ) {
        if !self.begun {
            self.head();
            self.begun = true;
        }
        let out = &mut *self.page.out;
        out.extend_from_slice(self.name.as_bytes());
        let mut opened = false;
        // An empty label is the same as none.
        for (name, text) in labels.filter(|(_, text)| !text.is_empty()) {
            out.push(if opened { b',' } else { b'{' });
            opened = true;
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"=\"");
            escape(text, true, out);
            out.push(b'"');
        }
        if opened {
            out.push(b'}');
        }
        out.push(b' ');
        value(out);
        out.push(b'\n');
    }

    fn head(&mut self) {
        // In OpenMetrics a counter's family has no `_total`.
        let open = self.page.format == Format::OpenMetrics;
        let family = if open { self.name.trim_end_matches("_total") } else { &self.name };
        let out = &mut *self.page.out;
        let mut line = |what: &str, text: &str| {
            for part in ["# ", what, " ", family, " "] {
                out.extend_from_slice(part.as_bytes());
            }
            escape(text, false, out);
            out.push(b'\n');
        };
        line("HELP", self.help);
        line("TYPE", self.kind);
        if open && !self.unit.is_empty() && family.ends_with(self.unit) {
            line("UNIT", self.unit);
        }
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
