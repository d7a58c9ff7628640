//! Makes batches of what hosts of Colmet sent, as their daemons would: samples of jobs and of the machine.
//!
//! Such data are the least believed (`unproven`): nodes with a token and schedulers win over all that they say. Figures are
//! lower bounds, and a job that a host no longer reports is `lost`. No owner is known; a scheduler's record names it.

use std::collections::{BTreeMap, HashMap};

use met_core::detail_table::DETAIL;
use met_core::job::{EventCount, JobKey, QualityKind, Record as JobRecord, State, Totals};
use met_core::job_table::WALL;
use met_core::series::Series;
use met_core::{JOB, Kind, MISSING, Table, event};
use met_sources::{infiniband, ipmi, lustre, node, rapl, thermal};
use met_wire::batch::{Header, Interim, NodeBatch, Piece, Subject};
use met_wire::colmet::variant::{self, Metric, Sample};
use met_wire::colmet::{At, Backend, Meaning, Record, Value, ZONES, Zone};
use met_wire::schema;

const SECOND_NS: i64 = 1_000_000_000;
/// Identifies the sender among those of a node's name.
pub const IDENTITY: &str = "colmet";
const SOURCE: &str = "colmet";
const HOSTS_MAX: usize = 10_000;
const JOBS_OF_HOST_MAX: usize = 1000;
/// Samples of a host that wait to be written.
const SAMPLES_OF_HOST_MAX: usize = 20_000;
/// Samples of all hosts that are written without waiting longer.
const SAMPLES_FULL: usize = 50_000;
/// A host that sends and does not report a job for so long has lost it.
const LOST_AFTER_MS: i64 = 120_000;
/// 2000-01-01: before it no clock is right.
const EARLIEST_NS: i64 = 946_684_800 * SECOND_NS;
/// How far clocks may be ahead.
const AHEAD_NS: i64 = 3600 * SECOND_NS;

/// Why a record was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Timestamp,
    TooManyHosts,
    TooManyJobs,
    TooManySamples,
}

impl Refused {
    pub fn text(self) -> &'static str {
        match self {
            Refused::Timestamp => "implausible timestamp",
            Refused::TooManyHosts => "too many hosts",
            Refused::TooManyJobs => "too many jobs",
            Refused::TooManySamples => "too many records at once",
        }
    }
}

/// A row that records of one message fill together.
struct Row {
    time_ms: i64,
    cells: Vec<i64>,
}

struct Job {
    key: JobKey,
    start_ns: i64,
    seen_ms: i64,
    /// Its last figures.
    last: Vec<i64>,
    /// Events since the host was first seen, in the order in which they came.
    events: Vec<(String, i64)>,
    is_new: bool,
}

#[derive(Default)]
struct Host {
    sequence: u64,
    jobs: BTreeMap<u64, Job>,
    /// Jobs that ran here when an earlier server ended, by their ids: when they began for it, in unix seconds.
    earlier: HashMap<u64, i64>,
    rows: HashMap<(Subject, &'static str), Row>,
    series: BTreeMap<(Subject, &'static str), Series>,
    samples: usize,
    /// The time of the last sample of each series, which outlives the samples.
    written_ms: HashMap<(Subject, &'static str), i64>,
    energy_uj: HashMap<Zone, i64>,
    memory_bytes: Option<i64>,
    seen_ms: i64,
}

pub struct Importer {
    manager: String,
    spool: String,
    hosts: BTreeMap<String, Host>,
}

impl Importer {
    pub fn new(manager: String) -> Importer {
        // Numbers of batches start again with each server.
        let spool = format!("colmet-{}", met_query::jobs::now_ns());
        Importer { manager, spool, hosts: BTreeMap::new() }
    }

    /// Goes on with jobs that a host had when an earlier server ended, by their ids and the seconds in which they began: each
    /// is one job, though its first living task may be another one now.
    pub fn resume(&mut self, host: &str, jobs: impl IntoIterator<Item = (u64, i64)>) {
        let jobs: HashMap<u64, i64> = jobs.into_iter().take(JOBS_OF_HOST_MAX).collect();
        if !jobs.is_empty() && (self.hosts.len() < HOSTS_MAX || self.hosts.contains_key(host)) {
            self.hosts.entry(host.to_owned()).or_default().earlier = jobs;
        }
    }

    /// Whether there is so much that it should be written.
    pub fn is_full(&self) -> bool {
        self.hosts.values().map(|host| host.samples).sum::<usize>() >= SAMPLES_FULL
    }

    fn host(&mut self, name: &str, time_ns: i64, now_ns: i64) -> Result<&mut Host, Refused> {
        if !(EARLIEST_NS..=now_ns.saturating_add(AHEAD_NS)).contains(&time_ns) {
            return Err(Refused::Timestamp);
        }
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(name) {
            return Err(Refused::TooManyHosts);
        }
        let host = self.hosts.entry(name.to_owned()).or_default();
        if host.samples >= SAMPLES_OF_HOST_MAX {
            return Err(Refused::TooManySamples);
        }
        host.seen_ms = host.seen_ms.max(time_ns / 1_000_000);
        Ok(host)
    }

    pub fn take(&mut self, record: &Record, now_ns: i64) -> Result<(), Refused> {
        let time_ns = i64::try_from(record.timestamp).ok().and_then(|time| time.checked_mul(SECOND_NS));
        let time_ns = time_ns.ok_or(Refused::Timestamp)?;
        let manager = self.manager.clone();
        let host = self.host(&record.hostname, time_ns, now_ns)?;
        let key = match record.job_id {
            0 => None,
            id => Some(host.job(id, &manager, time_ns, start_ns(record))?.key.clone()),
        };
        for (counter, value) in record.values().filter_map(|(counter, value)| Some((counter, value?))) {
            match counter.meaning {
                Meaning::Cell { into, factor, .. } => {
                    let Some(cell) = value.times(factor) else { continue };
                    // The counters of taskstats are those of tasks; jobproc counts a process once for each thread.
                    let keeps = record.backend == Backend::Jobproc;
                    into.iter().for_each(|at| host.put(*at, key.as_ref(), time_ns, cell, keeps));
                }
                Meaning::ZoneEnergy(zone) => {
                    let Value::Int(grown_uj) = value else { continue };
                    let whole_uj = host.energy_uj.entry(zone).or_insert(0);
                    *whole_uj = whole_uj.saturating_add(grown_uj.max(0));
                    let whole_uj = *whole_uj;
                    host.put_zone(zone, rapl::ENERGY, time_ns, whole_uj);
                }
                Meaning::ZoneRange(zone) => {
                    if let Value::Int(range_uj @ 1..) = value {
                        host.put_zone(zone, rapl::RANGE, time_ns, range_uj);
                    }
                }
                Meaning::Thermal(number) => {
                    if let Some(cell) = value.times(1000) {
                        let subject = Subject::Node(number.to_string());
                        host.put_part(subject, &thermal::TABLE, thermal::TEMPERATURE, time_ns, cell);
                    }
                }
                Meaning::Event(number) => {
                    if let (Value::Int(count), Some(key)) = (value, &key) {
                        host.put_event(
                            record.job_id,
                            key,
                            &format!("counter_{}", number + 1),
                            time_ns,
                            count,
                        );
                    }
                }
                Meaning::Start | Meaning::None => {}
            }
        }
        Ok(())
    }

    pub fn take_sample(&mut self, sample: &Sample, now_ns: i64) -> Result<(), Refused> {
        let time_ns = sample.time_ms.checked_mul(1_000_000).ok_or(Refused::Timestamp)?;
        let manager = self.manager.clone();
        let host = self.host(&sample.hostname, time_ns, now_ns)?;
        if sample.job_id == 0 {
            return Ok(());
        }
        let key = host.job(sample.job_id, &manager, time_ns, None)?.key.clone();
        let has_total = |id: u64| {
            id <= 17 && sample.metrics.iter().any(|&(other, value)| other == id + 17 && value.is_some())
        };
        let known = sample.metrics.iter().filter_map(|&(id, value)| Some((id, value?)));
        for (id, value) in known {
            match variant::metric(id) {
                // A cgroup with those below it is the job.
                Some(Metric::Cell(_)) if !variant::is_total(id) && has_total(id) => {}
                Some(Metric::Cell(at)) => host.put(at, Some(&key), time_ns, value, false),
                Some(Metric::Event(name)) => host.put_event(sample.job_id, &key, name, time_ns, value),
                None => {}
            }
        }
        Ok(())
    }

    /// The records of one period came together: their rows are complete.
    pub fn end_of_message(&mut self) {
        self.hosts.values_mut().for_each(Host::finish_rows);
    }

    /// One batch for each host that has something new.
    pub fn batches(&mut self, now_ns: i64) -> Vec<NodeBatch> {
        let spool = &self.spool;
        let batches = self.hosts.iter_mut().filter_map(|(name, host)| host.batch(name, spool, now_ns));
        batches.collect()
    }
}

/// When the first living task of the job began.
fn start_ns(record: &Record) -> Option<i64> {
    match record.value("ac_btime")? {
        Value::Int(seconds @ 1..) => seconds.checked_mul(SECOND_NS),
        _ => None,
    }
}

impl Host {
    fn job(
        &mut self,
        id: u64,
        manager: &str,
        time_ns: i64,
        start_ns: Option<i64>,
    ) -> Result<&mut Job, Refused> {
        if self.jobs.len() >= JOBS_OF_HOST_MAX && !self.jobs.contains_key(&id) {
            return Err(Refused::TooManyJobs);
        }
        // A start after the record is none.
        let start_ns = start_ns.filter(|&start_ns| start_ns <= time_ns).unwrap_or(time_ns);
        let start_ns = self.earlier.remove(&id).map_or(start_ns, |start_s| start_s.saturating_mul(SECOND_NS));
        let job = self.jobs.entry(id).or_insert_with(|| Job {
            key: JobKey {
                cluster: None,
                manager: manager.to_owned(),
                id: id.to_string(),
                incarnation: start_ns / SECOND_NS,
            },
            start_ns,
            seen_ms: 0,
            last: vec![MISSING; JOB.columns.len()],
            events: Vec::new(),
            is_new: true,
        });
        job.seen_ms = job.seen_ms.max(time_ns / 1_000_000);
        Ok(job)
    }

    fn put(&mut self, at: At, job: Option<&JobKey>, time_ns: i64, cell: i64, keeps: bool) {
        let Some(table) = met_sources::table(at.table) else { return };
        let Some(column) = table.column(at.column) else { return };
        let is = |other: &'static Table| std::ptr::eq(table, other);
        let part = match () {
            // One line for all devices.
            () if is(&infiniband::TABLE) || is(&lustre::TABLE) => "all",
            () if is(&ipmi::TABLE) => "node",
            () => "",
        };
        let is_of_job = is(&JOB) || is(&DETAIL);
        let subject = match job {
            Some(key) if is_of_job => Subject::Job(key.clone()),
            None if !is_of_job => Subject::Node(part.to_owned()),
            // A record of a job about the node, or the other way round.
            _ => return,
        };
        if is(&node::TABLE) && column == node::MEMORY_TOTAL {
            self.memory_bytes = Some(cell);
        }
        let row = self.row(subject, table, time_ns / 1_000_000);
        if !keeps || row.cells[column] == MISSING {
            row.cells[column] = cell;
        }
    }

    fn put_part(&mut self, subject: Subject, table: &'static Table, column: usize, time_ns: i64, cell: i64) {
        self.row(subject, table, time_ns / 1_000_000).cells[column] = cell;
    }

    fn put_zone(&mut self, zone: Zone, column: usize, time_ns: i64, cell: i64) {
        let package = format!("package-{}", zone.package);
        let name = if zone.zone == 0 { package.as_str() } else { ZONES[zone.zone] };
        self.put_part(Subject::Node(format!("{name} {package}")), &rapl::TABLE, column, time_ns, cell);
    }

    /// Counts of a period add up to a counter.
    fn put_event(&mut self, id: u64, key: &JobKey, name: &str, time_ns: i64, count: i64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let index = job.events.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            job.events.push((name.to_owned(), 0));
            job.events.len() - 1
        });
        let whole = &mut job.events[index].1;
        *whole = whole.saturating_add(count.max(0));
        let (whole, subject) = (*whole, Subject::Job(event::series_key(key, name)));
        self.row(subject, &event::TABLE, time_ns / 1_000_000).cells[event::COUNT] = whole;
    }

    fn row(&mut self, subject: Subject, table: &'static Table, time_ms: i64) -> &mut Row {
        let key = (subject, table.name);
        if self.rows.get(&key).is_some_and(|row| row.time_ms != time_ms) {
            self.finish_rows();
        }
        self.rows.entry(key).or_insert_with(|| Row { time_ms, cells: vec![MISSING; table.columns.len()] })
    }

    fn finish_rows(&mut self) {
        for ((subject, name), row) in self.rows.drain() {
            let Some(table) = met_sources::table(name) else { continue };
            let key = (subject, name);
            // Samples only ever follow each other.
            if self.written_ms.get(&key).is_some_and(|&written_ms| row.time_ms <= written_ms) {
                continue;
            }
            if let (Subject::Job(job), true) = (&key.0, std::ptr::eq(table, &JOB))
                && let Some(job) = self.jobs.values_mut().find(|known| known.key == *job)
            {
                job.last.copy_from_slice(&row.cells);
            }
            self.written_ms.insert(key.clone(), row.time_ms);
            let series = self.series.entry(key).or_insert_with(|| Series::new(table));
            series.push(row.time_ms, &row.cells);
            self.samples += 1;
        }
    }

    fn batch(&mut self, name: &str, spool: &str, now_ns: i64) -> Option<NodeBatch> {
        self.finish_rows();
        let lost_before_ms = self.seen_ms - LOST_AFTER_MS;
        let is_lost = |job: &Job| job.seen_ms < lost_before_ms;
        if self.samples == 0 && !self.jobs.values().any(is_lost) {
            return None;
        }
        let mut batch = NodeBatch { header: self.header(name, spool, now_ns), ..NodeBatch::default() };
        for job in self.jobs.values_mut() {
            let record = job.record(name, self.memory_bytes, is_lost(job));
            let is_due = job.is_new || is_lost(job);
            job.is_new = false;
            let interim = || Interim {
                key: job.key.clone(),
                totals: record.totals.clone(),
                summaries: Default::default(),
                emission: None,
            };
            match is_due {
                true => batch.records.push(record),
                false => batch.interims.push(interim()),
            }
        }
        let lost: Vec<JobKey> =
            self.jobs.values().filter(|job| is_lost(job)).map(|job| job.key.clone()).collect();
        self.jobs.retain(|_, job| !is_lost(job));
        self.written_ms.retain(|(subject, _), _| match subject {
            Subject::Job(key) => !lost.contains(&event::of_series_key(key).0),
            _ => true,
        });
        for ((subject, table), series) in std::mem::take(&mut self.series) {
            batch.header.columns.entry(table.to_owned()).or_insert_with(|| schema::describe(series.table));
            batch.pieces.push(Piece::of(subject, &series));
        }
        self.samples = 0;
        Some(batch)
    }

    fn header(&mut self, name: &str, spool: &str, now_ns: i64) -> Header {
        self.sequence += 1;
        Header {
            node: name.to_owned(),
            spool: spool.to_owned(),
            sequence: self.sequence,
            id: IDENTITY.to_owned(),
            made_ns: now_ns,
            version: "colmet".to_owned(),
            memory_bytes: self.memory_bytes,
            ..Header::default()
        }
    }
}

impl Job {
    fn record(&self, node: &str, memory_bytes: Option<i64>, is_lost: bool) -> JobRecord {
        let state = if is_lost { State::Lost } else { State::Running };
        let mut record = JobRecord::new(self.key.clone(), self.key.id.clone(), state);
        record.start_ns = Some(self.start_ns);
        record.end_ns = is_lost.then_some(self.seen_ms.saturating_mul(1_000_000));
        record.nodes = vec![node.to_owned()];
        record.node_memory_bytes = memory_bytes;
        record.totals = self.totals();
        record.events = self.events.iter().map(|(name, count)| counted(name, *count)).collect();
        record.unproven = true;
        record
    }

    /// Tasks that ended between two records are in none of them.
    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for (column, &cell) in self.last.iter().enumerate() {
            if cell != MISSING && JOB.columns[column].kind == Kind::Counter && column != WALL {
                totals.set(column, cell, QualityKind::LowerBound, SOURCE);
            }
        }
        totals
    }
}

fn counted(name: &str, count: i64) -> EventCount {
    let (kind, source) = (QualityKind::LowerBound, SOURCE.to_owned());
    EventCount { name: name.to_owned(), count, counted: 1.0, kind, source }
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
