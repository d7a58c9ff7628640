//! Metrics for a collector of OpenTelemetry: OTLP over HTTP, as protocol buffers compressed with gzip.
//!
//! The newest row of each series is kept and sent at an interval; the end of a job is sent at once, with its totals.
//! docs/decisions/051-otlp.md says how names and attributes were chosen.

mod conventions;
mod known_jobs;
mod outgoing;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use met_core::job::{JobKey, Record};
use met_core::job_table::WALL;
use met_core::{Column, JOB, MISSING, Selection, Table, Unit};
use met_wire::batch::Subject;
use met_wire::otlp::{Attribute, Attributes, Metric, Number, PATH, Point, Request, Scope};

use crate::clock::now_ns;
use crate::event::{Event, Kind, Samples, Tick, TickRow};
use crate::link::{Address, Link, private_lines};
use crate::prometheus::gzip;
use crate::sink::{Interest, Opened, Options, Report, Sink, SinkError, SinkOption, SinkSpec, one_of};
pub use conventions::CONVENTIONS;
use known_jobs::{Known, KnownJobs};
use outgoing::{Body, Outgoing};

const METRICS: &str = "usual";
const TABLES: &str = "job, node, gpu, block, network";
const ENDPOINT: &str = "http://127.0.0.1:4318";
const TIMEOUT: &str = "10s";
const INTERVAL: &str = "10s";
/// In one request: about a megabyte, of which collectors take 20.
const POINTS_MAX: usize = 8000;
/// Rows that are kept for the next request.
const ROWS_MAX: usize = 50_000;
const NODE: &str = "node";
const UPTIME: &str = "uptime";

pub static SPEC: SinkSpec = SinkSpec {
    name: "otlp",
    help: "metrics for a collector of OpenTelemetry, or a Prometheus that takes them: OTLP over HTTP",
    options: &[
        SinkOption::url(
            "endpoint",
            ENDPOINT,
            "where `/v1/metrics` is; for Prometheus: `http://HOST:9090/api/v1/otlp`",
        ),
        SinkOption {
            name: "headers",
            values: "`NAME=VALUE`",
            default: "",
            many: true,
            help: "headers of each request, such as `X-Scope-OrgID=site`; secrets belong in `headers_file`",
            check: |value, _| pair(value, '=').map(drop),
        },
        SinkOption::path(
            "headers_file",
            "a file that only its owner may read, with a header in each line: `Authorization: Bearer …`",
        ),
        SinkOption::path("ca_file", "CA bundle (PEM; without it: system CAs)"),
        SinkOption::yes_or_no(
            "plain",
            "no",
            "`yes`: allow http:// to other machines; the traffic can be read in transit",
        ),
        SinkOption::duration("timeout", TIMEOUT, "how long a request may take"),
        SinkOption::duration(
            "interval",
            INTERVAL,
            "time between two requests, each with the newest value of every series; the end of a job is sent at once",
        ),
        SinkOption::tables(
            TABLES,
            "what to send; `process` adds series for every process. A server sends `job` and `node`",
        ),
        SinkOption {
            name: "metrics",
            values: "`minimal`, `usual` or `all`",
            default: METRICS,
            many: false,
            help: "which columns, as `http.metrics`; those with a name in the semantic conventions are always sent",
            check: |value, _| one_of(value, Selection::NAMES),
        },
        SinkOption::yes_or_no("users", "yes", "`no`: do not send who owns a job"),
        SinkOption {
            name: "attributes",
            values: "`NAME=VALUE`",
            default: "",
            many: true,
            help: "further attributes of the resource, beside `host.name`, `service.name` and `service.instance.id`",
            check: |value, _| pair(value, '=').map(drop),
        },
    ],
    has_section: false,
    interest,
    open,
};

fn pair(text: &str, by: char) -> Result<(&str, &str), String> {
    let (name, value) = text.split_once(by).ok_or_else(|| format!("{text:?} is not NAME{by}VALUE"))?;
    let (name, value) = (name.trim(), value.trim());
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let fits = !name.is_empty() && name.bytes().all(is_name);
    let clean = !value.chars().any(char::is_control);
    if fits && clean { Ok((name, value)) } else { Err(format!("{text:?} is not NAME{by}VALUE")) }
}

/// A daemon sends what its sampler reads, a server what its nodes sent.
fn interest(options: &Options) -> Interest {
    let (mut kinds, tables) = (vec![Kind::Started, Kind::Ended], options.tables(TABLES));
    match options.node.is_some() {
        true => Interest { kinds, tables, ..Interest::default() },
        false => {
            kinds.push(Kind::Samples);
            Interest { kinds, ..Interest::default() }
        }
    }
}

fn open(options: &Options) -> Opened {
    let failed = |why: String| SinkError::Failed(why);
    let url = options.word("endpoint").unwrap_or(ENDPOINT).trim_end_matches('/');
    let address = Address {
        url: url.strip_suffix(PATH).unwrap_or(url).to_owned(),
        authority: options.word("ca_file").map(Into::into),
        plain: options.word("plain") == Some("yes"),
        ..Address::default()
    };
    let link = Link::open_within(&address, options.duration("timeout", TIMEOUT))
        .map_err(|error| failed(error.message("sinks.otlp.plain: yes")))?;
    let mut headers = Vec::new();
    let mut add = |text: &str, by: char| {
        let (name, value) = pair(text, by).map_err(failed)?;
        headers.push((name.to_owned(), value.to_owned()));
        Ok(())
    };
    options.list("headers").unwrap_or_default().iter().try_for_each(|text| add(text, '='))?;
    if let Some(path) = options.word("headers_file") {
        let lines = private_lines(Path::new(path)).map_err(|error| failed(error.to_string()))?;
        // The line may be a secret, and is not shown.
        let bad = |_| failed(format!("{path}: a line is not NAME: VALUE"));
        lines.iter().try_for_each(|line| add(line, ':').map_err(bad))?;
    }
    Ok(Box::new(Otlp::new(options, Outgoing::new(link, headers))))
}

/// Identifies a row among those of the next request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RowKey {
    table: &'static str,
    node: Option<String>,
    job: Option<JobKey>,
    labels: Vec<String>,
}

/// The newest values of a row.
struct Row {
    table: &'static Table,
    time_ns: i64,
    start_ns: Option<i64>,
    user: Option<Arc<str>>,
    cells: Vec<i64>,
}

struct Otlp {
    outgoing: Outgoing,
    interval: Duration,
    tables: Vec<String>,
    metrics: Selection,
    sends_users: bool,
    node: Option<String>,
    attributes: Attributes,
    /// By job: an end takes away those of its own without a search.
    rows: HashMap<Option<JobKey>, HashMap<RowKey, Row>>,
    row_count: usize,
    jobs: KnownJobs,
    /// When each machine was started.
    booted_ns: HashMap<Option<String>, i64>,
    due: Instant,
}

impl Otlp {
    fn new(options: &Options, outgoing: Outgoing) -> Otlp {
        let mut attributes = Attributes::from([("service.name".into(), "met".into())]);
        for (name, value) in
            options.list("attributes").unwrap_or_default().iter().filter_map(|text| pair(text, '=').ok())
        {
            attributes.insert(Cow::Owned(name.to_owned()), value.into());
        }
        let interval = options.duration("interval", INTERVAL);
        Otlp {
            outgoing,
            interval,
            tables: options.tables(TABLES),
            metrics: options.value("metrics", METRICS, Selection::from_name),
            sends_users: options.word("users") != Some("no"),
            node: options.node.clone(),
            attributes,
            rows: HashMap::new(),
            row_count: 0,
            jobs: KnownJobs::default(),
            booted_ns: HashMap::new(),
            due: Instant::now() + interval,
        }
    }

    fn put(&mut self, key: RowKey, row: Row) {
        let is_new = self.rows.get(&key.job).is_none_or(|rows| !rows.contains_key(&key));
        if is_new && self.row_count >= ROWS_MAX {
            let points = row.cells.iter().filter(|&&cell| cell != MISSING).count() as u64;
            self.outgoing.give_up(points, format!("more than {ROWS_MAX} rows; some are dropped"));
            return;
        }
        self.row_count += usize::from(is_new);
        self.rows.entry(key.job.clone()).or_default().insert(key, row);
    }

    fn tick(&mut self, tick: &Tick) {
        for (row, cells) in tick.rows() {
            let TickRow { job, user, labels } = row;
            let known = job.as_ref().map(|job| {
                let start_ns = start_of(tick.table, tick.time_ns, cells);
                self.jobs.learn(job, start_ns, user.clone())
            });
            let node = self.node.clone();
            let key = RowKey { table: tick.table.name, node, job: job.clone(), labels: labels.clone() };
            self.put_row(key, tick.table, tick.time_ns, cells.to_vec(), known);
        }
    }

    fn put_row(
        &mut self,
        key: RowKey,
        table: &'static Table,
        time_ns: i64,
        cells: Vec<i64>,
        known: Option<Known>,
    ) {
        if let Some(uptime) = (table.name == NODE).then(|| cell_of(table, &cells, UPTIME)).flatten() {
            let booted_ns = time_ns.saturating_sub((uptime.1.scaled(uptime.0) * 1e9) as i64);
            self.booted_ns.entry(key.node.clone()).or_insert(booted_ns);
        }
        // Counters of the machine count since it was started; those of a process at most since its job was.
        let booted_ns = self.booted_ns.get(&key.node).copied();
        let Known { start_ns, user } = known.unwrap_or(Known { start_ns: booted_ns, user: None });
        self.put(key, Row { table, time_ns, start_ns, user, cells });
    }

    /// The last sample of a piece that a node sent.
    fn samples(&mut self, Samples { node, subject, series }: &Samples) {
        let (table, Some(last)) = (series.table, series.len().checked_sub(1)) else { return };
        let cells: Vec<i64> = series.columns.iter().map(|column| column[last]).collect();
        let time_ns = series.times_ms[last].saturating_mul(1_000_000);
        let job = match subject {
            Subject::Job(key) if std::ptr::eq(table, &JOB) => Some(on_server(key, node.as_deref())),
            // Of parts only a text is known here, and not their labels.
            Subject::Node(part) if part.is_empty() && table.labels.is_empty() => None,
            _ => return,
        };
        if !self.tables.iter().any(|name| name == table.name) {
            return;
        }
        let known = job.as_ref().map(|job| self.jobs.learn(job, start_of(table, time_ns, &cells), None));
        let key = RowKey { table: table.name, node: node.clone(), job, labels: Vec::new() };
        self.put_row(key, table, time_ns, cells, known);
    }

    /// The totals of a job that ended. Levels of a moment before are no longer true.
    fn ended(&mut self, record: &Record) {
        let user = record.user.as_deref().map(Arc::from);
        let known = self.jobs.learn(&record.key, record.start_ns, user);
        self.jobs.end(&record.key);
        let mut cells = vec![MISSING; JOB.columns.len()];
        record.totals.iter().for_each(|(column, figure)| cells[column] = figure.value);
        if record.totals.get(WALL).is_none() {
            cells[WALL] = record.wall_ns(now_ns()).filter(|_| record.end_ns.is_some()).unwrap_or(MISSING);
        }
        let before = self.rows.remove(&Some(record.key.clone()));
        self.row_count -= before.map_or(0, |rows| rows.len());
        if !self.tables.iter().any(|name| name == JOB.name) {
            return;
        }
        // On a server the totals are those of all its nodes together.
        let alone = || record.nodes.first().filter(|_| record.nodes.len() == 1).cloned();
        let node = self.node.clone().or_else(alone);
        let key = RowKey { table: JOB.name, node, job: Some(record.key.clone()), labels: Vec::new() };
        // Published again with later figures: each needs a time of its own.
        let time_ns = now_ns().max(record.end_ns.unwrap_or(0));
        self.put(key, Row { table: &JOB, time_ns, start_ns: known.start_ns, user: known.user, cells });
        self.due = Instant::now();
    }

    /// Makes requests of the rows.
    fn pack(&mut self) {
        self.due = Instant::now() + self.interval;
        let mut rows: Vec<(RowKey, Row)> = self.rows.drain().flat_map(|(_, rows)| rows).collect();
        self.row_count = 0;
        rows.sort_by(|(one, _), (other, _)| {
            (&one.node, one.table, &one.job, &one.labels).cmp(&(
                &other.node,
                other.table,
                &other.job,
                &other.labels,
            ))
        });
        let mut request = Request::default();
        for (key, row) in &rows {
            self.each_point(key, row, &mut |resource, metric, point| request.add(resource, metric, point));
            if request.points() >= POINTS_MAX {
                self.push(&std::mem::take(&mut request));
            }
        }
        self.push(&request);
    }

    fn push(&mut self, request: &Request) {
        let points = request.points() as u64;
        if points == 0 {
            return;
        }
        let version = env!("CARGO_PKG_VERSION");
        let scope = Scope { name: "met", version, schema_url: conventions::SCHEMA_URL };
        match gzip(&request.encode(scope)) {
            Ok(bytes) => self.outgoing.push(Body { bytes, points }),
            Err(error) => self.outgoing.give_up(points, format!("cannot compress a request: {error}")),
        }
    }

    fn resource(&self, node: Option<&str>) -> Attributes {
        let mut resource = self.attributes.clone();
        for name in ["host.name", "service.instance.id"] {
            if let Some(node) = node {
                resource.entry(name.into()).or_insert_with(|| node.into());
            }
        }
        resource
    }

    /// The points of a row with their resource and metric.
    fn each_point(&self, key: &RowKey, row: &Row, put: &mut dyn FnMut(&Attributes, &Metric, Point<'_>)) {
        let resource = self.resource(key.node.as_deref());
        let (table, start_ns, time_ns) = (row.table, row.start_ns, row.time_ns);
        let of_job = self.job_attributes(key, row);
        for one in CONVENTIONS.iter().filter(|one| one.table == table.name) {
            let Some(number) = difference(table, &row.cells, one.columns) else { continue };
            let mut attributes = of_job.clone();
            let texts = one.attributes.iter().map(|&(name, value)| (Cow::Borrowed(name), value.into()));
            attributes
                .extend(texts.chain(labels(key, table, |label| conventions::attribute(table.name, label))));
            let (name, help, unit, form) = (one.metric.to_owned(), one.help, one.unit, one.form);
            let point = Point { attributes: &attributes, start_ns, time_ns, number };
            put(&resource, &Metric { name, help, unit, form }, point);
        }
        let mut attributes = of_job;
        attributes.extend(labels(key, table, |label| label));
        for (column, &cell) in table.columns.iter().zip(&row.cells) {
            let is_sent = self.metrics.has(column) || !is_on_page(table);
            if cell == MISSING || !is_sent || conventions::replaces(table.name, column.name) {
                continue;
            }
            let metric = Metric {
                name: conventions::catalogue_name(table, column),
                help: column.help,
                unit: conventions::unit(column.unit),
                form: conventions::form(column),
            };
            let number = number(column, cell);
            put(&resource, &metric, Point { attributes: &attributes, start_ns, time_ns, number });
        }
    }

    /// As the metrics page labels a job.
    fn job_attributes(&self, key: &RowKey, row: &Row) -> Attributes {
        let Some(job) = &key.job else { return Attributes::new() };
        let user = row.user.as_deref().filter(|_| self.sends_users);
        let all = [
            ("cluster", job.cluster.as_deref()),
            ("manager", Some(job.manager.as_str())),
            ("id", Some(job.id.as_str())),
            ("user", user),
        ];
        let known = all.into_iter().filter_map(|(name, value)| Some((name.into(), value?.into())));
        known.collect()
    }

    fn work(&mut self) {
        if Instant::now() >= self.due {
            self.pack();
        }
        self.outgoing.send(Instant::now());
    }
}

impl Sink for Otlp {
    fn take(&mut self, event: &Event) -> Result<(), SinkError> {
        match event {
            Event::Started(record) => {
                self.jobs.learn(&record.key, record.start_ns, record.user.as_deref().map(Arc::from));
            }
            Event::Ended(record) => self.ended(record),
            Event::Tick(tick) => self.tick(tick),
            Event::Samples(samples) => self.samples(samples),
            Event::Interim(_) | Event::Colmet(_) | Event::Sampling(_) | Event::Health(_) => {}
        }
        // Ends that wait in the queue go with this one, unless there is no end of events.
        if Instant::now() >= self.due + self.interval {
            self.work();
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), SinkError> {
        self.work();
        Ok(())
    }

    fn report(&mut self) -> Option<Report> {
        let report = self.outgoing.report();
        let due = (!self.rows.is_empty()).then_some(self.due);
        let wake = report.wake.into_iter().chain(due).min();
        Some(Report { wake, ..report })
    }

    /// What is left is tried once.
    fn close(mut self: Box<Self>) {
        self.pack();
        self.outgoing.send(Instant::now());
    }
}

/// The key that a server has for a job of a node: ids that are the node's own get its name.
fn on_server(key: &JobKey, node: Option<&str>) -> JobKey {
    let mut key = key.clone();
    if !met_core::managers::spans_nodes(&key.manager) {
        key.cluster = key.cluster.or_else(|| node.map(str::to_owned));
    }
    key
}

/// When a job began, by its row.
fn start_of(table: &Table, time_ns: i64, cells: &[i64]) -> Option<i64> {
    let wall_ns = cells.get(WALL).copied().filter(|&cell| std::ptr::eq(table, &JOB) && cell != MISSING)?;
    Some(time_ns.saturating_sub(wall_ns))
}

/// Tables of cgroups and processes are on no metrics page, and have no selection.
fn is_on_page(table: &Table) -> bool {
    table.columns.iter().any(|column| column.selection < Selection::All)
}

fn cell_of(table: &'static Table, cells: &[i64], name: &str) -> Option<(i64, &'static Column)> {
    let index = table.columns.iter().position(|column| column.name == name)?;
    Some((cells[index], &table.columns[index])).filter(|(cell, _)| *cell != MISSING)
}

/// The first column less the others; `None` if one of them is not known.
fn difference(table: &'static Table, cells: &[i64], columns: &[&str]) -> Option<Number> {
    let (first, rest) = columns.split_first()?;
    let (mut value, column) = cell_of(table, cells, first)?;
    for name in rest {
        value = value.checked_sub(cell_of(table, cells, name)?.0)?;
    }
    // Read one after the other: a part can be a moment ahead of the whole.
    Some(number(column, if rest.is_empty() { value } else { value.max(0) }))
}

/// As JSON writes it.
fn number(column: &Column, cell: i64) -> Number {
    match matches!(column.unit, Unit::Bytes | Unit::Count) && column.scale >= 1.0 {
        true => Number::Int(column.scaled(cell) as i64),
        false => Number::Double(column.scaled(cell)),
    }
}

/// The labels of a row that is not a job's own.
fn labels<'a>(
    key: &'a RowKey,
    table: &'static Table,
    name: impl Fn(&'static str) -> &'static str + 'a,
) -> impl Iterator<Item = (Cow<'static, str>, Attribute)> + 'a {
    let is_of_job = table.labels == JOB.labels;
    let known = table.labels.iter().zip(&key.labels).filter(move |(_, text)| !is_of_job && !text.is_empty());
    known.map(move |(&label, text)| {
        let number = if label == "pid" { text.parse().ok().map(Attribute::Int) } else { None };
        (name(label).into(), number.unwrap_or_else(|| text.as_str().into()))
    })
}

#[cfg(test)]
#[path = "otlp/tests.rs"]
mod tests;
