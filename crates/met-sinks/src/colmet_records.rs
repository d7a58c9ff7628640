//! Colmet's records from the events of the bus, for every sink that writes them in some form.
//!
//! A daemon makes a round of records at most every period, from the rows of one tick. A server makes them from the samples
//! that its nodes sent, and passes on those that Colmet's own nodes sent, as they came.

mod node_state;
mod text;

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use met_core::detail_table::DETAIL;
use met_core::job::{JobKey, Record as JobRecord};
use met_core::job_table::WALL;
use met_core::{JOB, MISSING, Table, event as perf};
use met_wire::batch::Subject;
use met_wire::colmet::{At, Backend, EVENTS as EVENTS_MAX, LAYOUTS, Layout, Meaning, Record, Value};
use met_wire::colmet::{THERMAL, UPTIME, ZONE_ENERGY};

use crate::event::{Event, Kind, Samples, Sampling, Tick};
use crate::sink::{Interest, Options, SinkOption, one_of};
use node_state::NodeState;
pub use text::write_text;

/// Jobs and nodes that are remembered; beyond, those not seen for the longest time are forgotten.
const JOBS_MAX: usize = 50_000;
/// The rows of a tick arrive within this time.
const ROUND_WITHIN: Duration = Duration::from_millis(300);
/// Ticks are not exact: a round that is this much early is due.
const EARLY_NS: i64 = 100_000_000;
const PERIOD_DEFAULT: &str = "5s";
const ALL: &str = "all";
/// As often as a daemon samples.
const INTERVAL: &str = "interval";

/// How often records are made.
pub const PERIOD: SinkOption = SinkOption {
    name: "period",
    values: "a duration or `interval`",
    default: PERIOD_DEFAULT,
    many: false,
    help: "time between two records of a job or node; the sampling interval is the least. `interval` follows it, and `events` follow `perf.events`, also while `met configure` or `colmet.configure` changes them",
    check: |value, tables| match value {
        INTERVAL => Ok(()),
        _ => (DURATION.check)(value, tables),
    },
};
const DURATION: SinkOption = SinkOption::duration("period", PERIOD_DEFAULT, "");

/// Which kinds of records are made; their default differs from sink to sink.
pub const fn backends(default: &'static str) -> SinkOption {
    SinkOption {
        name: "backends",
        values: "`taskstats`, `procstats`, `infiniband`, `lustre`, `perfhw`, `rapl`, `temperature`, `jobproc`, `ipmi`, `nvidia` or `all`",
        default,
        many: true,
        help: "which kinds of records; a kind of which nothing is measured here has none",
        check: |value, _| {
            one_of(value, &NAMES.map(|(name, _)| name))
                .or_else(|why| if value == ALL { Ok(()) } else { Err(why) })
        },
    }
}

/// The events of `perfhw` records.
pub const EVENTS: SinkOption = SinkOption {
    name: "events",
    values: "names of events (`perf.events`), five at most",
    default: "instructions, cache_misses, page_faults, cpu_cycles, cache_references",
    many: true,
    help: "which events are `counter_1` to `counter_5` of `perfhw` records, in this order; `perf.events` must have them",
    check: |_, _| Ok(()),
};

/// Whose jobs become records.
pub const MANAGERS: SinkOption = SinkOption {
    name: "managers",
    values: "names of resource managers, such as `oar`, `slurm` or `local`",
    default: "",
    many: true,
    help: "whose jobs have records; without it: those of batch systems. Only jobs with a number as id have any",
    check: |_, _| Ok(()),
};

const NAMES: [(&str, Backend); 10] = [
    ("taskstats", Backend::Taskstats),
    ("procstats", Backend::Procstats),
    ("infiniband", Backend::Infiniband),
    ("lustre", Backend::Lustre),
    ("perfhw", Backend::Perfhw),
    ("rapl", Backend::Rapl),
    ("temperature", Backend::Temperature),
    ("jobproc", Backend::Jobproc),
    ("ipmi", Backend::Ipmi),
    ("nvidia", Backend::Nvidia),
];

/// What records are made of.
#[derive(Clone, Debug)]
pub struct Chosen {
    pub backends: Vec<Backend>,
    pub events: Vec<String>,
    pub period: Duration,
    /// Period and events follow those of the daemon.
    follows: bool,
    managers: Vec<String>,
    /// The node whose daemon this is; none on a server.
    node: Option<String>,
}

impl Chosen {
    /// From the options that this module declares; `backends` is the sink's own default.
    pub fn of(options: &Options, backends: &str) -> Chosen {
        let list = |name: &str, default: &str| match options.list(name) {
            Some(list) => list.to_vec(),
            None => default.split(", ").filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        };
        let words = list("backends", backends);
        let is_chosen = |name: &str| words.iter().any(|word| word == name || word == ALL);
        let mut events = list("events", EVENTS.default);
        events.truncate(EVENTS_MAX);
        Chosen {
            backends: NAMES.iter().filter(|(name, _)| is_chosen(name)).map(|&(_, backend)| backend).collect(),
            events,
            period: options.duration("period", PERIOD_DEFAULT),
            follows: options.word("period") == Some(INTERVAL),
            managers: list("managers", ""),
            node: options.node.clone(),
        }
    }

    /// A daemon takes what its sampler reads, a server what its nodes sent.
    pub fn interest(&self) -> Interest {
        let (tables, further) = match self.node.is_some() {
            true => (self.tables(), &[Kind::Sampling][..]),
            false => (Vec::new(), &[Kind::Samples, Kind::Colmet][..]),
        };
        Interest { kinds: [&[Kind::Started, Kind::Ended], further].concat(), tables, ..Interest::default() }
    }

    fn tables(&self) -> Vec<String> {
        let mut tables: Vec<String> = Vec::new();
        for layout in self.layouts() {
            // Without rows of jobs it is not known which are there.
            let named = layout.counters.iter().filter_map(|counter| table_of(counter.meaning));
            for table in named.chain([JOB.name]) {
                if !tables.iter().any(|known| known == table) {
                    tables.push(table.to_owned());
                }
            }
        }
        tables
    }

    fn layouts(&self) -> impl Iterator<Item = &'static Layout> + '_ {
        LAYOUTS.iter().filter(|layout| self.backends.contains(&layout.backend))
    }

    /// The number of a job that has records.
    fn job_id(&self, key: &JobKey) -> Option<u64> {
        let is_chosen = match self.managers.is_empty() {
            true => met_core::managers::spans_nodes(&key.manager),
            false => self.managers.contains(&key.manager),
        };
        is_chosen.then(|| key.id.parse().ok()).flatten().filter(|&id| id > 0)
    }
}

fn table_of(meaning: Meaning) -> Option<&'static str> {
    match meaning {
        Meaning::Cell { from, .. } => Some(from.table),
        Meaning::Start => Some(JOB.name),
        Meaning::Event(_) => Some(perf::TABLE.name),
        Meaning::ZoneEnergy(_) | Meaning::ZoneRange(_) => Some(ZONE_ENERGY.table),
        Meaning::Thermal(_) => Some(THERMAL.table),
        Meaning::None => None,
    }
}

/// A column of what is known of a job.
#[derive(Clone, Copy)]
enum Place {
    Job(usize),
    Detail(usize),
}

/// Where the counters of each layout are, looked for by name once.
static PLACES: LazyLock<Vec<Vec<Option<Place>>>> = LazyLock::new(|| {
    let place = |at: At| match at.table {
        table if table == JOB.name => JOB.column(at.column).map(Place::Job),
        table if table == DETAIL.name => DETAIL.column(at.column).map(Place::Detail),
        _ => None,
    };
    let of_counter = |meaning| match meaning {
        Meaning::Cell { from, .. } => place(from),
        _ => None,
    };
    let of_layout =
        |layout: &Layout| layout.counters.iter().map(|counter| of_counter(counter.meaning)).collect();
    LAYOUTS.iter().map(of_layout).collect()
});

/// What is known of a job on a node.
struct JobState {
    id: u64,
    time_ns: i64,
    job: Vec<i64>,
    detail: Vec<i64>,
    /// Of each chosen event: all occurrences, and those of the last record.
    events: Vec<(i64, i64)>,
    /// Read since the last record.
    is_fresh: bool,
    sent_ns: i64,
}

impl JobState {
    fn new(id: u64, events: usize) -> JobState {
        JobState {
            id,
            time_ns: 0,
            job: vec![MISSING; JOB.columns.len()],
            detail: vec![MISSING; DETAIL.columns.len()],
            events: vec![(MISSING, MISSING); events],
            is_fresh: false,
            sent_ns: i64::MIN,
        }
    }

    fn cell(&self, place: Place) -> Option<i64> {
        let cell = match place {
            Place::Job(column) => self.job[column],
            Place::Detail(column) => self.detail[column],
        };
        (cell != MISSING).then_some(cell)
    }

    /// A record, if anything of it is known.
    fn record(&self, layout: &'static Layout, hostname: &str) -> Option<Record> {
        let mut record = Record::new(layout.backend, hostname, self.id, seconds(self.time_ns));
        let places = &PLACES[layout.backend as usize];
        record.set_all(|index, counter| match counter.meaning {
            Meaning::Cell { factor, .. } => {
                let cell = places[index].and_then(|place| self.cell(place));
                cell.map(|cell| Value::of_cell(counter.kind, cell, factor))
            }
            Meaning::Start => {
                let wall_ns = Some(self.job[WALL]).filter(|&wall_ns| wall_ns != MISSING);
                wall_ns.map(|wall_ns| Value::Int((self.time_ns - wall_ns) / 1_000_000_000))
            }
            Meaning::Event(index) => self.events.get(index).and_then(|&(now, before)| {
                let is_known = now != MISSING && before != MISSING && now >= before;
                is_known.then(|| Value::Int(now - before))
            }),
            _ => None,
        });
        let is_known = match layout.backend {
            // A job without a GPU has no memory of one.
            Backend::Nvidia => record.value("memory-used").is_some() || record.value("power").is_some(),
            _ => record.counters().next().is_some(),
        };
        is_known.then_some(record)
    }

    fn is_due(&self, period: Duration) -> bool {
        self.is_fresh && self.time_ns.saturating_sub(self.sent_ns) >= least_ns(period)
    }

    fn sent(&mut self) {
        (self.is_fresh, self.sent_ns) = (false, self.time_ns);
        self.events.iter_mut().for_each(|(now, before)| *before = *now);
    }
}

/// The least time between two records. At least half of the period: new jobs have ticks of their own in between.
fn least_ns(period: Duration) -> i64 {
    let period_ns = period.as_nanos() as i64;
    (period_ns - EARLY_NS).max(period_ns / 2)
}

pub(crate) fn seconds(time_ns: i64) -> u64 {
    u64::try_from(time_ns / 1_000_000_000).unwrap_or(0)
}

/// Makes records of events.
pub struct Gatherer {
    chosen: Chosen,
    jobs: HashMap<(String, JobKey), JobState>,
    nodes: HashMap<String, NodeState>,
    /// Hosts whose records came as they are: their samples are the same figures.
    foreign: HashSet<String, RandomState>,
    /// The tick whose rows arrive, and since when they do.
    round: Option<(i64, Instant)>,
    sent_ns: i64,
    /// The last records of ended jobs: an end is published again when its record changes.
    ended: HashMap<JobKey, Vec<Record>>,
}

impl Gatherer {
    pub fn new(chosen: Chosen) -> Gatherer {
        Gatherer {
            chosen,
            jobs: HashMap::new(),
            nodes: HashMap::new(),
            foreign: HashSet::default(),
            round: None,
            sent_ns: i64::MIN,
            ended: HashMap::new(),
        }
    }

    /// Appends the records that are complete with this event.
    pub fn take(&mut self, event: &Event, out: &mut Vec<Record>) {
        match event {
            Event::Colmet(records) => self.pass_on(records, out),
            Event::Tick(tick) => {
                if self.round.is_some_and(|(time_ns, _)| time_ns != tick.time_ns) {
                    self.finish(out);
                }
                self.round.get_or_insert_with(|| (tick.time_ns, Instant::now()));
                self.tick(tick);
            }
            Event::Samples(samples) => self.samples(samples, out),
            Event::Started(record) => {
                if let Some(node) = self.chosen.node.clone() {
                    self.job(&node, &record.key);
                }
            }
            Event::Ended(record) => self.ended(record, out),
            Event::Sampling(sampling) if self.chosen.follows => self.follow(sampling),
            Event::Interim(_) | Event::Sampling(_) | Event::Health(_) => {}
        }
    }

    /// Counts of events that are still wanted go on.
    fn follow(&mut self, sampling: &Sampling) {
        self.chosen.period = sampling.interval;
        if sampling.events.is_empty() || sampling.events == self.chosen.events {
            return;
        }
        let mut events = sampling.events.clone();
        events.truncate(EVENTS_MAX);
        let before = std::mem::replace(&mut self.chosen.events, events);
        for job in self.jobs.values_mut() {
            let kept = |name: &String| before.iter().position(|other| other == name);
            let count = |name| kept(name).map_or((MISSING, MISSING), |index| job.events[index]);
            job.events = self.chosen.events.iter().map(count).collect();
        }
    }

    /// Whether such records are made.
    pub fn has(&self, backend: Backend) -> bool {
        self.chosen.backends.contains(&backend)
    }

    /// Which events are numbered, in their order.
    pub fn events(&self) -> &[String] {
        &self.chosen.events
    }

    /// Which kinds of records are made.
    pub fn backends(&self) -> &[Backend] {
        &self.chosen.backends
    }

    fn pass_on(&mut self, records: &[Record], out: &mut Vec<Record>) {
        self.note_foreign(records);
        out.extend(records.iter().filter(|record| self.has(record.backend)).cloned());
    }

    /// These came as they are; a sink that does not need its own copies of them calls only this.
    pub fn note_foreign(&mut self, records: &[Record]) {
        let mut before = None;
        for record in records {
            // Those of one host come together.
            if before.replace(&record.hostname) == Some(&record.hostname) {
                continue;
            }
            if !self.foreign.contains(&record.hostname) && self.foreign.len() < JOBS_MAX {
                self.foreign.insert(record.hostname.clone());
            }
        }
    }

    /// When the rows of the current tick are complete, if no other tick follows.
    pub fn due(&self) -> Option<Instant> {
        self.round.map(|(_, since)| since + ROUND_WITHIN)
    }

    /// Appends the records of a tick whose rows have arrived.
    pub fn idle(&mut self, now: Instant, out: &mut Vec<Record>) {
        if self.due().is_some_and(|due| now >= due) {
            self.finish(out);
        }
    }

    fn job(&mut self, node: &str, key: &JobKey) -> Option<&mut JobState> {
        let id = self.chosen.job_id(key)?;
        let events = self.chosen.events.len();
        let known = (node.to_owned(), key.clone());
        if self.jobs.len() >= JOBS_MAX && !self.jobs.contains_key(&known) {
            let oldest = self.jobs.iter().min_by_key(|(_, job)| job.time_ns).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.jobs.remove(&oldest));
        }
        Some(self.jobs.entry(known).or_insert_with(|| JobState::new(id, events)))
    }

    fn tick(&mut self, tick: &Tick) {
        let Some(node) = self.chosen.node.clone() else { return };
        let is_of_job = std::ptr::eq(tick.table, &JOB) || std::ptr::eq(tick.table, &DETAIL);
        if std::ptr::eq(tick.table, &perf::TABLE) {
            self.tick_of_events(&node, tick);
            return;
        }
        for (row, cells) in tick.rows() {
            match &row.job {
                Some(key) if is_of_job => self.job_row(&node, key, tick.table, tick.time_ns, cells),
                Some(_) => {}
                None => {
                    let state = self.nodes.entry(node.clone()).or_default();
                    state.put(tick.table, &row.labels, tick.time_ns, cells);
                }
            }
        }
    }

    fn job_row(&mut self, node: &str, key: &JobKey, table: &'static Table, time_ns: i64, cells: &[i64]) {
        let Some(job) = self.job(node, key) else { return };
        if std::ptr::eq(table, &JOB) {
            // What this tick did not read holds: counters only grow, and levels are as they were last seen.
            let known = cells.iter().zip(&mut job.job).filter(|(cell, _)| **cell != MISSING);
            known.for_each(|(&cell, kept)| *kept = cell);
            (job.time_ns, job.is_fresh) = (time_ns, true);
        } else {
            job.detail.copy_from_slice(cells);
        }
    }

    /// An event may be counted in several cgroups of a job.
    fn tick_of_events(&mut self, node: &str, tick: &Tick) {
        let mut sums: HashMap<(&JobKey, usize), i64> = HashMap::new();
        for (row, cells) in tick.rows() {
            let (Some(key), Some(name)) = (&row.job, row.labels.first()) else { continue };
            let Some(index) = self.chosen.events.iter().position(|event| event == name) else { continue };
            if cells[perf::COUNT] != MISSING {
                let sum = sums.entry((key, index)).or_insert(0);
                *sum = sum.saturating_add(cells[perf::COUNT]);
            }
        }
        for ((key, index), count) in sums {
            if let Some(job) = self.job(node, key) {
                job.events[index].0 = count;
            }
        }
    }

    /// The records of one tick, in the order of Colmet's messages.
    fn finish(&mut self, out: &mut Vec<Record>) {
        let Some((time_ns, _)) = self.round.take() else { return };
        let Some(node) = self.chosen.node.clone() else { return };
        if time_ns.saturating_sub(self.sent_ns) < least_ns(self.chosen.period) {
            return;
        }
        self.sent_ns = time_ns;
        let involved = self.running(&node);
        for layout in self.chosen.layouts() {
            if layout.is_of_job {
                let mut fresh: Vec<&JobState> = self.jobs.values().filter(|job| job.is_fresh).collect();
                fresh.sort_by_key(|job| job.id);
                out.extend(fresh.iter().filter_map(|job| job.record(layout, &node)));
            } else if let Some(state) = self.nodes.get_mut(&node) {
                out.extend(state.record(layout, &node, time_ns, self.chosen.period, &involved));
            }
        }
        self.jobs.values_mut().filter(|job| job.is_fresh).for_each(JobState::sent);
    }

    /// The ids of the jobs of a node.
    fn running(&self, node: &str) -> Vec<u64> {
        let of_node = self.jobs.iter().filter(|((of, _), _)| of == node);
        let mut ids: Vec<u64> = of_node.map(|(_, job)| job.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Samples that a node sent to this server.
    fn samples(&mut self, Samples { node, subject, series }: &Samples, out: &mut Vec<Record>) {
        let Some(node) = node.as_ref().filter(|node| !self.foreign.contains(*node)) else { return };
        match subject {
            Subject::Job(key) => {
                let (key, part) = perf::of_series_key(key);
                let event = self.chosen.events.iter().position(|event| event == part);
                series.each_row(|time_ms, cells| match event {
                    Some(index) if std::ptr::eq(series.table, &perf::TABLE) => {
                        if let Some(job) = self.job(node, &key) {
                            job.events[index].0 = cells[perf::COUNT];
                        }
                    }
                    _ if !part.is_empty() => {}
                    _ => {
                        self.job_row(node, &key, series.table, time_ms.saturating_mul(1_000_000), cells);
                        self.finish_job(node, &key, out);
                    }
                });
            }
            Subject::Node(part) => {
                // A part is the text of its labels.
                let labels: Vec<String> = part.split_whitespace().map(str::to_owned).collect();
                let involved = self.running(node);
                let state = self.nodes.entry(node.clone()).or_default();
                series.each_row(|time_ms, cells| {
                    let time_ns = time_ms.saturating_mul(1_000_000);
                    state.put(series.table, &labels, time_ns, cells);
                    if series.table.name == UPTIME.table && state.is_due(time_ns, self.chosen.period) {
                        let made = self.chosen.layouts().filter(|layout| !layout.is_of_job);
                        out.extend(made.filter_map(|layout| {
                            state.record(layout, node, time_ns, self.chosen.period, &involved)
                        }));
                    }
                });
            }
            Subject::Device(_) => {}
        }
    }

    fn finish_job(&mut self, node: &str, key: &JobKey, out: &mut Vec<Record>) {
        let (layouts, period) = (self.chosen.layouts().filter(|layout| layout.is_of_job), self.chosen.period);
        let Some(job) = self.jobs.get_mut(&(node.to_owned(), key.clone())) else { return };
        if job.is_due(period) {
            out.extend(layouts.filter_map(|layout| job.record(layout, node)));
            job.sent();
        }
    }

    /// A last record with the totals of a job, which have what happened since its last sample. On a server they are those of
    /// all its nodes together, and no node's.
    fn ended(&mut self, record: &JobRecord, out: &mut Vec<Record>) {
        let Some(node) = self.chosen.node.clone() else {
            self.jobs.retain(|(_, key), _| *key != record.key);
            return;
        };
        let Some(job) = self.job(&node, &record.key) else { return };
        record.totals.iter().for_each(|(column, figure)| job.job[column] = figure.value);
        let Some(end_ns) = record.end_ns else { return };
        if record.totals.get(WALL).is_none() {
            job.job[WALL] = record.wall_ns(end_ns).unwrap_or(MISSING);
        }
        job.time_ns = end_ns;
        let layouts = self.chosen.layouts().filter(|layout| layout.is_of_job);
        let job = self.jobs.remove(&(node.clone(), record.key.clone()));
        let Some(job) = job else { return };
        let made: Vec<Record> = layouts.filter_map(|layout| job.record(layout, &node)).collect();
        if self.ended.get(&record.key) == Some(&made) {
            return;
        }
        const ENDED_MAX: usize = 1024;
        if self.ended.len() >= ENDED_MAX {
            self.ended.clear();
        }
        out.extend(made.iter().cloned());
        self.ended.insert(record.key.clone(), made);
    }
}

#[cfg(test)]
#[path = "colmet_records/tests.rs"]
mod tests;
