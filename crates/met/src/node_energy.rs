//! Whose energy it is: feeds the ledger of the node with meters and with what jobs do, and keeps what each
//! job was charged.
//!
//! A job's last window is closed after its end, when its meters have been read again. Until then the job is
//! owed, and what was charged so far is provisional.

mod used;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use met_core::attribute::JobMap;
use met_core::cards::Cards;
use met_core::energy::emission::{self, Factor};
use met_core::energy::estimate::{Estimate, Machine};
use met_core::energy::ledger::{CPU, IdleTo, MEMORY, REST};
use met_core::energy::{Closed, Ledger, Line, Policy, Scope, Weights, Who};
use met_core::job::{Emission, JobKey, QualityKind, Record, Totals};
use met_core::job_table as column;
use met_core::{Batch, MISSING, Subject, rate};
use met_host::{Host, clock, parse};
use met_sinks::snapshot::Rows;
use met_sources::NodeSource;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Energy};
use crate::emissions;
use used::Used;
pub use used::{EMISSION, ENERGY};

/// The columns of the job table that are filled here.
pub const COLUMNS: [usize; 7] = [
    column::ENERGY,
    column::ENERGY_CPU,
    column::ENERGY_MEMORY,
    column::ENERGY_REST,
    column::ENERGY_IDLE,
    column::EMISSIONS,
    column::COST,
];

/// Of several meters of the whole node the first is believed: a counter of the blade, then what controllers
/// say, then a sensor.
const NODE_METERS: [&str; 4] = ["cray", "ipmi", "redfish", "hwmon"];
/// The one chip whose power is that of the whole node.
const NODE_CHIP: &str = "power_meter";

/// A meter that was not read for so many of its periods is gone.
const PATIENCE_PERIODS: i64 = 3;
const PATIENCE_MIN_NS: i64 = 2_500_000_000;
/// A controller may take longer to answer than the time between two questions.
const PATIENCE_MIN_SLOW_NS: i64 = 15_000_000_000;
/// The least time without a look that is a gap.
const GAP_NS: i64 = 60_000_000_000;
/// All that a job of this age did is in the window that is open.
const YOUNG_NS: i64 = 2_000_000_000;
/// Different meters named with a figure.
const SOURCES_NAMED_MAX: usize = 4;

pub struct NodeEnergy {
    ledger: Ledger,
    jobs: BTreeMap<u32, Job>,
    node: Option<NodeSeen>,
    cpu_count: u64,
    /// Between ticks; no meter is read more often.
    interval_ns: i64,
    host: Host,
    /// Made when it is needed: a table is searched for it.
    estimate: OnceCell<Estimate>,
    estimated_uj: Estimated,
    /// When a meter was last read.
    metered_ns: Option<i64>,
    tariff: Tariff,
    factor: Factor,
    last: Option<EnergyWindow>,
    settled: Vec<(JobKey, Charged)>,
    used: Used,
}

/// Who used what the meter says in the last window: jobs + system + idle == whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnergyWindow {
    /// Nanoseconds of CLOCK_BOOTTIME.
    pub begin_ns: i64,
    pub end_ns: i64,
    pub meter: String,
    pub kind: QualityKind,
    pub whole_uj: u64,
    pub jobs_uj: u64,
    pub system_uj: u64,
    pub idle_uj: u64,
}

impl EnergyWindow {
    fn of(closed: &Closed, meter: &str) -> EnergyWindow {
        let sum = |of: fn(&Who) -> bool| {
            closed.lines.iter().filter(|(who, _)| of(who)).map(|(_, line)| line.total_uj()).sum()
        };
        EnergyWindow {
            begin_ns: closed.begin_ns,
            end_ns: closed.end_ns,
            meter: meter.to_owned(),
            kind: closed.kind,
            whole_uj: closed.whole_uj,
            jobs_uj: sum(|who| matches!(who, Who::Job(_))),
            system_uj: sum(|who| *who == Who::System),
            idle_uj: sum(|who| *who == Who::Idle),
        }
    }

    /// Mean power in watts.
    pub fn watts(&self, energy_uj: u64) -> f64 {
        energy_uj as f64 * 1e3 / (self.end_ns - self.begin_ns).max(1) as f64
    }
}

struct Job {
    key: JobKey,
    held_cpus: u64,
    cpu_ns: Option<i64>,
    weighed_ns: i64,
    outer: Option<u32>,
    /// CPU time of nested jobs that ended: this job's next reading has it, too.
    settled_inside_ns: u64,
    has_left: bool,
    charged: Charged,
}

/// The machine when it was last weighed.
#[derive(Clone, Copy)]
struct NodeSeen {
    at_ns: i64,
    busy_ns: i64,
}

/// What a machine without a meter has probably used, as counters.
#[derive(Clone, Copy, Default)]
struct Estimated {
    cpu_uj: u64,
    memory_uj: u64,
}

/// What a kilowatt hour of the machine means for its building.
#[derive(Clone, Debug, PartialEq)]
struct Tariff {
    pue: f64,
    price_per_kwh: Option<f64>,
    currency: Arc<str>,
}

/// What a job was charged so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Charged {
    line: Line,
    /// Microjoules × milligrams per kilowatt hour.
    emitted: u128,
    factor: Option<Factor>,
    meters: BTreeSet<String>,
    measured: bool,
    estimated_uj: u64,
    tariff: Tariff,
    /// Of an earlier daemon, by `COLUMNS`.
    before: [i64; COLUMNS.len()],
}

impl Tariff {
    fn of(energy: &Energy) -> Tariff {
        let Energy { pue, price_per_kwh, ref currency, .. } = *energy;
        Tariff { pue, price_per_kwh, currency: currency.as_str().into() }
    }
}

fn policy(energy: &Energy) -> Policy {
    let idle_to = if energy.idle_to_holders { IdleTo::Holders } else { IdleTo::Nobody };
    Policy { idle_to, idle_mw: energy.idle_watts.map(|watts| (watts * 1000.0).round() as u64) }
}

fn ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl NodeEnergy {
    pub fn new(host: &Host, config: &Config, interval: Duration) -> NodeEnergy {
        NodeEnergy {
            ledger: Ledger::new(policy(&config.energy)),
            jobs: BTreeMap::new(),
            node: None,
            cpu_count: u64::from(host.facts().cpu_count),
            interval_ns: ns(interval),
            host: host.clone(),
            estimate: OnceCell::new(),
            estimated_uj: Estimated::default(),
            metered_ns: None,
            tariff: Tariff::of(&config.energy),
            factor: emissions::fixed(&config.emissions),
            last: None,
            settled: Vec::new(),
            used: Used::default(),
        }
    }

    /// What the machine used so far, and the factor that holds.
    pub fn tables(&self) -> [Rows; 2] {
        [self.used.rows(self.tariff.pue), used::factor_rows(&self.factor)]
    }

    pub fn set_interval(&mut self, interval: Duration) {
        self.interval_ns = ns(interval);
    }

    /// Idle power by the new rules from now on; running jobs keep the tariff that they began with.
    pub fn set_rules(&mut self, energy: &Energy) {
        self.ledger.set_policy(policy(energy));
        self.tariff = Tariff::of(energy);
    }

    pub fn set_factor(&mut self, factor: Factor) {
        self.factor = factor;
    }

    pub fn begin(&mut self, slot: u32, record: &Record, now_ns: i64) {
        let held_cpus = record.allocated.cpus.or(record.requested.cpus).and_then(|cpus| cpus.try_into().ok());
        let age_ns = record.start_ns.map(|start_ns| clock::realtime_ns() - start_ns);
        let is_young = age_ns.is_some_and(|age_ns| (0..YOUNG_NS).contains(&age_ns));
        let job = Job {
            key: record.key.clone(),
            held_cpus: held_cpus.unwrap_or(0),
            // Counters of an older one, or of one that was attached to, have a history.
            cpu_ns: is_young.then_some(0),
            weighed_ns: now_ns,
            outer: None,
            settled_inside_ns: 0,
            has_left: false,
            charged: Charged::nothing(self.tariff.clone()),
        };
        self.jobs.insert(slot, job);
    }

    /// What an earlier daemon charged, by the job's last cells.
    pub fn recall(&mut self, slot: u32, cells: &[i64]) {
        if let Some(job) = self.jobs.get_mut(&slot) {
            job.charged.before = COLUMNS.map(|column| cells[column].max(0));
        }
    }

    /// Takes in what a tick has read: of the node, of its jobs, of its cards.
    pub fn follow<'a>(
        &mut self,
        now_ns: i64,
        node: impl Iterator<Item = NodeSource<'a>>,
        rows: &Batch,
        cards: &Cards,
        map: &JobMap,
    ) {
        self.weigh_jobs(now_ns, rows, map);
        self.charge_cards(cards);
        let mut has_meter = false;
        let sources: Vec<NodeSource<'_>> = node.collect();
        // Of processors and memory one interface is enough: a second one sees the same energy again.
        let has_rapl = sources.iter().any(|source| source.name == "rapl");
        for source in &sources {
            for batch in source.batches.iter().filter(|batch| !batch.is_empty()) {
                has_meter |= self.read_meters(source, batch, has_rapl);
            }
        }
        if has_meter {
            self.metered_ns = Some(now_ns);
        }
        for batch in sources.iter().filter(|source| source.name == "node").flat_map(|source| source.batches) {
            self.weigh_node(batch, now_ns);
        }
        let closed = self.ledger.close(now_ns);
        self.take(closed);
    }

    /// The meters that were read so far.
    pub fn meters(&self) -> Vec<&str> {
        self.ledger
            .meters()
            .filter(|(_, kind)| *kind == QualityKind::Measured)
            .map(|(name, _)| name)
            .collect()
    }

    /// What an estimate of the processors rests on.
    pub fn estimated_by(&self) -> &str {
        &self.estimate().source
    }

    fn estimate(&self) -> &Estimate {
        self.estimate.get_or_init(|| estimate_of(&self.host))
    }

    /// The window that was closed last.
    pub fn last_window(&self) -> Option<&EnergyWindow> {
        self.last.as_ref()
    }

    fn weigh_jobs(&mut self, now_ns: i64, rows: &Batch, map: &JobMap) {
        let mut weights: BTreeMap<u32, Weights> = BTreeMap::new();
        for (row, cells) in rows.rows() {
            let Subject::Job(slot) = row.owner else { continue };
            let Some(job) = self.jobs.get_mut(&slot).filter(|job| !job.has_left) else { continue };
            job.outer = map.outer(slot);
            weights.insert(slot, job.weigh(now_ns, cells[column::CPU], cells[column::MEMORY_NEEDED]));
        }
        // A job around others is charged what they are, and beyond that for its own processes.
        let nested: Vec<(u32, Weights)> =
            (weights.iter()).filter_map(|(slot, own)| Some((self.jobs.get(slot)?.outer?, *own))).collect();
        for (outer, inner) in nested {
            if let Some(own) = weights.get_mut(&outer) {
                own.cpu = own.cpu.saturating_sub(inner.cpu);
                own.memory = own.memory.saturating_sub(inner.memory);
                own.held = own.held.saturating_sub(inner.held);
            }
        }
        for (slot, weights) in weights {
            self.ledger.weigh_job(slot, weights);
        }
    }

    fn charge_cards(&mut self, cards: &Cards) {
        for (who, (active_uj, idle_uj)) in cards.charged() {
            match who {
                Some(slot) => self.ledger.charge_cards(Who::Job(slot), active_uj, idle_uj),
                // Cards that nobody holds are idle; what computes on one without a job is the system's.
                None => {
                    self.ledger.charge_cards(Who::System, active_uj, 0);
                    self.ledger.charge_cards(Who::Idle, 0, idle_uj);
                }
            }
        }
    }

    /// Whether there was a reading among them.
    fn read_meters(&mut self, source: &NodeSource<'_>, batch: &Batch, has_rapl: bool) -> bool {
        let is_slow = matches!(source.name, "ipmi" | "redfish" | "hwmon");
        let least_ns = if is_slow { PATIENCE_MIN_SLOW_NS } else { PATIENCE_MIN_NS };
        let patience_ns = self.patience_ns(source.period_ns).max(least_ns);
        let energy = batch.table.column("energy");
        let power = batch.table.column("power");
        let mut any = false;
        for (row, cells) in batch.rows() {
            let Some(labels) = source.labels.get(row.part as usize) else { continue };
            let Some((name, scope)) = meter_of(source.name, row.part, labels, has_rapl) else { continue };
            let known = |index: Option<usize>| index.filter(|&index| cells[index] != MISSING);
            let at_ns = batch.window.end_ns;
            // Controllers count energy in steps of a thousandth of a kilowatt hour: power tells more.
            let counter = known(energy).filter(|_| source.name != "redfish");
            let meter = match (counter, known(power)) {
                (None, None) => continue,
                _ => self.ledger.meter(&name, scope, QualityKind::Measured, patience_ns),
            };
            any = true;
            match (counter, known(power)) {
                (Some(index), _) => self.ledger.read_counter(meter, at_ns, cells[index]),
                (None, Some(index)) => {
                    let milliwatts = batch.table.columns[index].scaled(cells[index]) * 1000.0;
                    self.ledger.read_power(meter, at_ns, milliwatts.round() as i64);
                }
                (None, None) => {}
            }
        }
        any
    }

    fn patience_ns(&self, period_ns: i64) -> i64 {
        period_ns.max(self.interval_ns).saturating_mul(PATIENCE_PERIODS)
    }

    /// Weighings further apart have nothing to do with each other: nobody looked in between.
    fn gap_ns(&self) -> i64 {
        self.patience_ns(GAP_NS / PATIENCE_PERIODS)
    }

    fn weigh_node(&mut self, batch: &Batch, now_ns: i64) {
        let Some((_, cells)) = batch.rows().next() else { return };
        let cell =
            |name: &str| batch.table.column(name).map(|index| cells[index]).filter(|&cell| cell != MISSING);
        let modes = ["cpu_user", "cpu_nice", "cpu_system", "cpu_interrupt", "cpu_soft_interrupt"];
        let Some(busy_ns) = modes.into_iter().filter_map(cell).reduce(|sum, more| sum + more) else { return };
        let at_ns = batch.window.end_ns;
        let before = self.node.replace(NodeSeen { at_ns, busy_ns });
        let Some(NodeSeen { at_ns: before_ns, busy_ns: before_busy_ns }) =
            before.filter(|before| (1..self.gap_ns()).contains(&(at_ns - before.at_ns)))
        else {
            self.estimate_energy(at_ns, now_ns, None);
            return;
        };
        let rate::Step::Delta(grown_ns) = rate::step(before_busy_ns, busy_ns) else { return };
        let elapsed_ns = (at_ns - before_ns) as u64;
        let used_bytes = cell("memory_total").zip(cell("memory_available")).map(|(total, free)| total - free);
        let held = self.cpu_count.saturating_mul(elapsed_ns);
        let cpu = grown_ns as u64;
        let memory = memory_weight(used_bytes.unwrap_or(0), elapsed_ns);
        self.ledger.weigh_node(Weights { cpu, memory, held });
        self.estimate_energy(at_ns, now_ns, Some((cpu, held, elapsed_ns)));
    }

    /// Where no meter is read, what the machine probably used since the last look.
    fn estimate_energy(&mut self, at_ns: i64, now_ns: i64, load: Option<(u64, u64, u64)>) {
        if self.metered_ns.is_some_and(|metered_ns| now_ns - metered_ns < self.gap_ns()) {
            self.ledger.know_idle(None);
            return;
        }
        if let Some((busy_ns, held_ns, elapsed_ns)) = load {
            let permille = u128::from(busy_ns) * 1000 / u128::from(held_ns.max(1));
            let estimate = self.estimate();
            let power_mw = estimate.cpu_mw(u64::try_from(permille).unwrap_or(1000));
            let memory_mw = estimate.memory_mw;
            self.estimated_uj.cpu_uj += energy_uj(power_mw, elapsed_ns);
            self.estimated_uj.memory_uj += energy_uj(memory_mw, elapsed_ns);
        }
        self.ledger.know_idle(Some([self.estimate().cpu_idle_mw, 0, 0, 0]));
        let Estimated { cpu_uj, memory_uj } = self.estimated_uj;
        // Of the length of a few looks: a meter that begins to answer is not kept waiting by an estimate.
        let patience_ns = self.interval_ns.saturating_mul(2).max(PATIENCE_MIN_NS);
        for (name, scope, counter_uj) in
            [(ESTIMATE, Scope::Package, cpu_uj), ("estimate of memory", Scope::Memory, memory_uj)]
        {
            let meter = self.ledger.meter(name, scope, QualityKind::Estimated, patience_ns);
            self.ledger.read_counter(meter, at_ns, counter_uj as i64);
        }
    }

    /// The job is over. `cpu_ns` is all the CPU time it had, where that is known, `cards_uj` what it was
    /// charged on cards, active and idle.
    pub fn leave(&mut self, slot: u32, cpu_ns: Option<i64>, cards_uj: (u64, u64), now_ns: i64) {
        let Some(job) = self.jobs.get_mut(&slot).filter(|job| !job.has_left) else { return };
        job.has_left = true;
        let weights = job.weigh(now_ns, cpu_ns.unwrap_or(MISSING), MISSING);
        self.ledger.weigh_job(slot, weights);
        if let Some(outer) = job.outer.and_then(|outer| self.jobs.get_mut(&outer)) {
            outer.settled_inside_ns += weights.cpu;
        }
        if cards_uj != (0, 0) {
            self.ledger.charge_cards(Who::Job(slot), cards_uj.0, cards_uj.1);
        }
        self.ledger.leave(slot);
    }

    /// Whether a window is or was open.
    pub fn has_begun(&self) -> bool {
        self.node.is_some()
    }

    /// Whether jobs that are over wait for their last window.
    pub fn owes(&self) -> bool {
        self.jobs.values().any(|job| job.has_left)
    }

    /// Closes the last window with what there is: nobody will be there to read a meter again.
    pub fn close_for_good(&mut self, now_ns: i64) {
        let closed = self.ledger.close_for_good(now_ns);
        self.take(closed);
        for (_, job) in std::mem::take(&mut self.jobs).into_iter().filter(|(_, job)| job.has_left) {
            self.settled.push((job.key, job.charged));
        }
    }

    /// Jobs whose last window was closed since the last call.
    pub fn take_settled(&mut self) -> Vec<(JobKey, Charged)> {
        std::mem::take(&mut self.settled)
    }

    fn take(&mut self, closed: Option<Closed>) {
        if let Some(closed) = closed {
            let estimated = closed.kind == QualityKind::Estimated;
            let meter = match closed.source.as_str() {
                "processors" | "memory" if estimated => self.estimate().source.clone(),
                "processors" | "memory" => "RAPL".to_owned(),
                named => named.to_owned(),
            };
            for (who, line) in &closed.lines {
                let Who::Job(slot) = who else { continue };
                let mut charged = Some(*slot);
                while let Some(slot) = charged {
                    let Some(job) = self.jobs.get_mut(&slot) else { break };
                    job.charged.add(line, estimated, &self.factor);
                    charged = job.outer.filter(|&outer| outer != slot);
                }
            }
            // A job that did nothing in a window used nothing in it: that is known, and not missing.
            for job in self.jobs.values_mut() {
                job.charged.note(&meter, estimated, &self.factor);
            }
            let window = EnergyWindow::of(&closed, &meter);
            self.used.add(&window, &self.factor);
            self.last = Some(window);
        }
        let waiting = self.ledger.unsettled();
        let is_settled = |(slot, job): (&u32, &Job)| job.has_left && !waiting.contains(slot);
        let done: Vec<u32> =
            self.jobs.iter().filter(|&(slot, job)| is_settled((slot, job))).map(|(&slot, _)| slot).collect();
        for job in done.into_iter().filter_map(|slot| self.jobs.remove(&slot)) {
            self.settled.push((job.key, job.charged));
        }
    }

    /// Writes what the job was charged so far into its row.
    pub fn fill(&self, slot: u32, cells: &mut [i64]) {
        let Some(values) = self.jobs.get(&slot).and_then(|job| job.charged.values()) else { return };
        for (column, value) in COLUMNS.into_iter().zip(values) {
            cells[column] = value.unwrap_or(MISSING);
        }
    }

    pub fn charged(&self, slot: u32) -> Option<&Charged> {
        self.jobs.get(&slot).map(|job| &job.charged)
    }
}

const ESTIMATE: &str = "estimate of processors";

impl Job {
    fn weigh(&mut self, now_ns: i64, cpu_ns: i64, memory_bytes: i64) -> Weights {
        let elapsed_ns = (now_ns - self.weighed_ns).max(0) as u64;
        self.weighed_ns = now_ns;
        let mut weights = Weights { cpu: 0, memory: 0, held: self.held_cpus.saturating_mul(elapsed_ns) };
        if cpu_ns != MISSING {
            let before_ns = self.cpu_ns.unwrap_or(cpu_ns);
            // A reading may be short of a child that just ended; the next one has it again.
            self.cpu_ns = Some(cpu_ns.max(before_ns));
            let grown_ns = cpu_ns.saturating_sub(before_ns).max(0) as u64;
            weights.cpu = grown_ns.saturating_sub(self.settled_inside_ns);
            self.settled_inside_ns = self.settled_inside_ns.saturating_sub(grown_ns);
        }
        if memory_bytes != MISSING {
            weights.memory = memory_weight(memory_bytes, elapsed_ns);
        }
        weights
    }
}

impl Charged {
    fn nothing(tariff: Tariff) -> Charged {
        Charged {
            line: Line::default(),
            emitted: 0,
            factor: None,
            meters: BTreeSet::new(),
            measured: false,
            estimated_uj: 0,
            tariff,
            before: [0; COLUMNS.len()],
        }
    }

    fn add(&mut self, line: &Line, estimated: bool, factor: &Factor) {
        self.line.add(line);
        self.estimated_uj += if estimated { line.total_uj() } else { 0 };
        self.emitted += u128::from(line.total_uj()) * factor.mg_per_kwh.max(0) as u128;
    }

    /// A window that the job lived in.
    fn note(&mut self, meter: &str, estimated: bool, factor: &Factor) {
        if self.factor.as_ref() != Some(factor) {
            self.factor = Some(factor.clone());
        }
        if self.meters.len() < SOURCES_NAMED_MAX && !self.meters.contains(meter) {
            self.meters.insert(meter.to_owned());
        }
        self.measured |= !estimated;
    }

    /// An estimate unless all but a hundredth of it was measured: a controller takes a while to begin with.
    fn kind(&self) -> QualityKind {
        let total_uj = self.line.total_uj();
        let is_measured = self.measured && self.estimated_uj.saturating_mul(100) <= total_uj;
        if is_measured { QualityKind::Attributed } else { QualityKind::Estimated }
    }

    /// By `COLUMNS`; nothing before the first window.
    fn values(&self) -> Option<[Option<i64>; COLUMNS.len()]> {
        if self.meters.is_empty() && self.before == [0; COLUMNS.len()] {
            return None;
        }
        let part = |part: usize| (self.line.active_uj[part] + self.line.idle_uj[part]) as i64;
        let energy_uj = self.line.total_uj() as i64;
        let emitted_ug = self.emitted as f64 * 1000.0 / emission::UJ_PER_KWH as f64 * self.tariff.pue;
        let own = [
            Some(energy_uj),
            Some(part(CPU)),
            Some(part(MEMORY)),
            Some(part(REST)),
            Some(self.line.idle_total_uj() as i64),
            Some(emitted_ug.round() as i64),
            self.tariff.cost_nano(energy_uj),
        ];
        let mut values = own;
        for (value, before) in values.iter_mut().zip(self.before) {
            *value = value.map(|value| value + before);
        }
        Some(values)
    }

    /// Puts the figures into the totals of a record, in the place of those that samples made.
    pub fn put(&self, totals: &mut Totals) {
        for column in COLUMNS {
            totals.remove(column);
        }
        let Some(values) = self.values() else { return };
        let kind = self.kind();
        let meters = self.meters.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        let source =
            if meters.is_empty() { "by CPU time".to_owned() } else { format!("{meters}, by CPU time") };
        for (column, value) in COLUMNS.into_iter().zip(values) {
            if let Some(value) = value {
                let source = match (column, &self.factor) {
                    (column::ENERGY_MEMORY, _) => format!("{meters}, by memory held"),
                    (column::EMISSIONS, Some(factor)) => factor.source.clone(),
                    (column::COST, _) => self.tariff.words().unwrap_or_default(),
                    _ => source.clone(),
                };
                totals.set(column, value, kind, source);
            }
        }
    }

    pub fn emission(&self) -> Option<Emission> {
        self.factor.as_ref().map(emission_of)
    }
}

/// As it is kept with a figure.
pub fn emission_of(factor: &Factor) -> Emission {
    Emission {
        factor_mg_per_kwh: factor.mg_per_kwh,
        factor_source: factor.source.clone(),
        factor_time_ns: (factor.since_ns != i64::MIN).then_some(factor.since_ns),
    }
}

impl Tariff {
    /// Its first word is the currency.
    fn words(&self) -> Option<String> {
        let price = self.price_per_kwh?;
        let building = if self.pue == 1.0 { String::new() } else { format!(", PUE {}", self.pue) };
        Some(format!("{} at {price} per kWh{building}", self.currency))
    }

    fn cost_nano(&self, energy_uj: i64) -> Option<i64> {
        let kilowatt_hours = energy_uj as f64 / emission::UJ_PER_KWH as f64 * self.pue;
        Some((kilowatt_hours * self.price_per_kwh? * 1e9).round() as i64)
    }
}

/// What a row measures and how it is called, if it is a meter of the ledger.
fn meter_of(source: &str, part: u32, labels: &[String], has_rapl: bool) -> Option<(String, Scope)> {
    let rank = NODE_METERS.iter().position(|&name| name == source).and_then(|rank| u8::try_from(rank).ok());
    let node = rank.map(|rank| Scope::Node { rank, with_cards: true });
    let label = |index: usize| labels.get(index).map_or("", String::as_str);
    let scope = match (source, label(0)) {
        // Cores and the uncore lie within their package.
        ("rapl", zone) if zone.starts_with("package") => Scope::Package,
        ("rapl", "dram") => Scope::Memory,
        ("rapl", "psys") => Scope::Board,
        ("cray" | "ipmi", "node") => node?,
        ("cray", "cpu") if !has_rapl => Scope::Package,
        ("cray", "memory") if !has_rapl => Scope::Memory,
        // The first meter of the chassis is that of all of it.
        ("redfish", _) if part == 0 => node?,
        ("hwmon", NODE_CHIP) => node?,
        _ => return None,
    };
    let name = match scope {
        Scope::Node { .. } => match source {
            "cray" => "Cray pm_counters".to_owned(),
            "ipmi" => "IPMI".to_owned(),
            "redfish" => "Redfish".to_owned(),
            _ => "power meter".to_owned(),
        },
        Scope::Board => "RAPL psys".to_owned(),
        Scope::Package | Scope::Memory => format!("{source} {}", labels.join(" ")),
    };
    Some((name, scope))
}

/// Kibibytes times milliseconds: a terabyte for a year still fits.
fn memory_weight(bytes: i64, elapsed_ns: u64) -> u64 {
    (bytes.max(0) as u64 / 1024).saturating_mul(elapsed_ns / 1_000_000)
}

fn energy_uj(power_mw: u64, elapsed_ns: u64) -> u64 {
    u64::try_from(u128::from(power_mw) * u128::from(elapsed_ns) / 1_000_000).unwrap_or(u64::MAX)
}

/// What the machine probably uses. A virtual one has some CPUs of a processor, and not all of it.
fn estimate_of(host: &Host) -> Estimate {
    let (machine, is_virtual) = machine(host);
    if !is_virtual {
        return Estimate::of(&machine);
    }
    let source = format!("{} CPUs of a virtual machine", machine.cores);
    Estimate { source, ..Estimate::of(&Machine { cpu_model: String::new(), ..machine }) }
}

/// What an estimate needs to know, and whether there is a hypervisor below.
pub fn machine(host: &Host) -> (Machine, bool) {
    let mut text = Vec::new();
    let _ = host.read_small("/proc/cpuinfo", &mut text);
    let (mut cpu_model, mut is_virtual) = (String::new(), false);
    let mut sockets = BTreeSet::new();
    for line in parse::lines(&text) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (key, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        match key {
            b"model name" if cpu_model.is_empty() => cpu_model = String::from_utf8_lossy(value).into_owned(),
            b"physical id" => drop(sockets.insert(value.to_vec())),
            b"flags" if !is_virtual => is_virtual = parse::fields(value).any(|flag| flag == b"hypervisor"),
            _ => {}
        }
    }
    let facts = host.facts();
    let machine = Machine {
        cpu_model,
        sockets: sockets.len().max(1) as u64,
        cores: u64::from(facts.cpu_count),
        memory_bytes: facts.memory_total_bytes.unwrap_or(0).max(0) as u64,
    };
    (machine, is_virtual)
}

#[cfg(test)]
#[path = "node_energy_tests.rs"]
mod tests;
