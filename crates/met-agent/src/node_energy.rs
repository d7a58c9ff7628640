//! Whose energy it is: feeds the ledger of the node with meters and with what jobs do, and keeps what each
//! job was charged.
//!
//! A job's last window is closed after its end, when its meters have been read again. Until then the job is
//! owed, and what was charged so far is provisional.

mod charged;
mod estimator;
mod machine;
mod used;
mod weighing;
mod windows;

use std::collections::BTreeMap;
use std::time::Duration;

use met_core::attribute::JobMap;
use met_core::energy::emission::Factor;
use met_core::energy::idle::LearnedIdle;
use met_core::energy::{
    Balance, COLUMNS, Closed, EnergyLedger, EnergyWindow, IdleTo, Line, MeteredBy, Policy, Scope, Weights,
    Who,
};
use met_core::gpus::Gpus;
use met_core::job::{JobKey, QualityKind, Record};
use met_core::job_table as column;
use met_core::watched::Watched;
use met_core::{Batch, Kind, MISSING, Subject, Unit, rate};
use met_host::{Host, clock};
use met_query::live::Live;
use met_sinks::snapshot::Rows;
use met_sources::{NodeSource, meter, node};

use crate::emissions;
use charged::Tariff;
use estimator::Estimator;
use met_config::{Config, Energy, Weight};
pub use used::{EMISSION, ENERGY};
use weighing::{Job, by_counts, memory_weight};
use windows::Windows;

pub use charged::{Charged, GpuEnergy, emission_of};
pub use machine::machine;

/// A meter that was not read for this many of its periods is gone.
const TIMEOUT_PERIODS: i64 = 3;
const TIMEOUT_MIN_NS: i64 = 2_500_000_000;
/// A controller may take longer to answer than the time between two questions.
const TIMEOUT_MIN_SLOW_NS: i64 = 15_000_000_000;
/// The least time without a look that is a gap.
const GAP_NS: i64 = 60_000_000_000;
/// A machine without jobs that was not read for this long was not followed.
const REST_NS: i64 = 15_000_000_000;
/// What a machine draws beside its GPUs: less.
const RATED_MW: i64 = 10_000_000;

pub struct NodeEnergy {
    ledger: EnergyLedger,
    /// Large: half of the places in a node of the tree are empty.
    jobs: BTreeMap<u32, Box<Job>>,
    looks: Looks,
    estimator: Estimator,
    tariff: Tariff,
    weight: Weight,
    factor: Factor,
    windows: Windows,
    settled: Vec<(JobKey, Charged)>,
}

/// When the machine was read, and how often it is.
#[derive(Default)]
struct Looks {
    /// Between ticks; no meter is read more often.
    interval_ns: i64,
    /// When the machine was last read, and whether that was an idle reading.
    followed_ns: Option<i64>,
    is_watched: bool,
    /// When a meter was last read.
    metered_ns: Option<i64>,
    weighed: Option<NodeSeen>,
}

impl Looks {
    fn timeout_ns(&self, period_ns: i64) -> i64 {
        period_ns.max(self.interval_ns).saturating_mul(TIMEOUT_PERIODS)
    }

    /// Weighings further apart have nothing to do with each other: nothing was read in between.
    fn gap_ns(&self) -> i64 {
        self.timeout_ns(GAP_NS / TIMEOUT_PERIODS)
    }

    fn is_metered(&self, now_ns: i64) -> bool {
        self.metered_ns.is_some_and(|metered_ns| now_ns - metered_ns < self.gap_ns())
    }

    /// Notes how busy the machine was; the weighing before, if it was not long ago.
    fn weigh(&mut self, at_ns: i64, busy_ns: i64) -> Option<NodeSeen> {
        let gap_ns = self.gap_ns();
        let before = self.weighed.replace(NodeSeen { at_ns, busy_ns });
        before.filter(|before| (1..gap_ns).contains(&(at_ns - before.at_ns)))
    }
}

/// The machine when it was last weighed.
#[derive(Clone, Copy)]
struct NodeSeen {
    at_ns: i64,
    busy_ns: i64,
}

fn policy(energy: &Energy) -> Policy {
    let idle_to = if energy.idle_to_holders { IdleTo::Holders } else { IdleTo::Unassigned };
    Policy { idle_to, idle_mw: energy.idle_watts.map(|watts| (watts * 1000.0).round() as u64) }
}

fn ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl NodeEnergy {
    pub fn new(host: &Host, config: &Config, interval: Duration) -> NodeEnergy {
        NodeEnergy {
            ledger: EnergyLedger::new(policy(&config.energy)),
            jobs: BTreeMap::new(),
            looks: Looks { interval_ns: ns(interval), ..Looks::default() },
            estimator: Estimator::new(host),
            tariff: Tariff::of(&config.energy),
            weight: config.energy.weight,
            factor: emissions::fixed(&config.emissions),
            windows: Windows::default(),
            settled: Vec::new(),
        }
    }

    /// The machine is followed for its own sake, with jobs or without.
    pub fn watch(&mut self) {
        self.looks.is_watched = true;
    }

    /// Whether all that meters counted is booked, with times of the unix clock; nothing before the first window.
    pub fn balance(&self) -> Option<Balance> {
        let balance = &self.windows.balance;
        Some(balance.shifted(clock::unix_offset_ns())).filter(|_| balance.until_ns != 0)
    }

    /// What the machine used so far, and the factor that holds.
    pub fn tables(&self) -> [Rows; 2] {
        [self.windows.used.rows(), used::factor_rows(&self.factor)]
    }

    pub fn set_interval(&mut self, interval: Duration) {
        self.looks.interval_ns = ns(interval);
    }

    /// Idle power by the new rules from now on; running jobs keep the tariff that they began with.
    pub fn set_rules(&mut self, energy: &Energy) {
        self.ledger.set_policy(policy(energy));
        self.tariff = Tariff::of(energy);
        self.weight = energy.weight;
    }

    /// Takes over what was learned of idle power, with times of the unix clock.
    pub fn recall_idle(&mut self, learned: Vec<LearnedIdle>) {
        let offset_ns = clock::unix_offset_ns();
        for learned in learned {
            let at_ns = learned.at_ns.saturating_sub(offset_ns);
            self.ledger.machine_idle.recall(LearnedIdle { at_ns, ..learned });
        }
    }

    /// Whether it is of any use: what was configured is not learned.
    pub fn learns_idle(&self) -> bool {
        self.ledger.machine_idle.learns()
    }

    /// What is known of idle power: by which meters, how and when it was learned.
    pub fn learned_idle(&self) -> Vec<LearnedIdle> {
        let offset_ns = clock::unix_offset_ns();
        let by_unix =
            |learned: LearnedIdle| LearnedIdle { at_ns: learned.at_ns.saturating_add(offset_ns), ..learned };
        self.ledger.machine_idle.learned().map(by_unix).collect()
    }

    /// Sources were switched on or off: one that is no longer read is not missing.
    pub fn forget_meters(&mut self) {
        self.ledger.meters.forget();
    }

    pub fn set_factor(&mut self, factor: Factor) {
        self.factor = factor;
    }

    /// `watched` says for how much of its life so far it was not measured.
    pub fn begin(&mut self, slot: u32, record: &Record, now_ns: i64, watched: Watched) {
        let charged = Charged::nothing(self.tariff.clone());
        let looked_ns = self.looks.followed_ns.filter(|_| !self.was_at_rest(now_ns));
        let mut job = Job::new(record, charged, now_ns, looked_ns);
        if !job.began_in_open_window() {
            job.charged.begin_late(watched);
        }
        self.jobs.insert(slot, Box::new(job));
    }

    /// Takes up what a job holds, if that is known now.
    pub fn hold(&mut self, slot: u32, record: &Record) {
        if let Some(job) = self.jobs.get_mut(&slot) {
            job.hold(record);
        }
    }

    /// Goes on with a job under another name.
    pub fn rename(&mut self, slot: u32, key: &JobKey) {
        if let Some(job) = self.jobs.get_mut(&slot) {
            job.key = key.clone();
        }
    }

    /// What an earlier daemon charged, by the job's last cells, and for how much of its life it was not measured.
    pub fn recall(&mut self, slot: u32, cells: &[i64], watched: Watched) {
        if let Some(job) = self.jobs.get_mut(&slot) {
            job.charged.recall(cells, watched);
        }
    }

    /// How many events the processor has counted for a job, where energy is split by them.
    pub fn count(&mut self, slot: u32, event: &str, count: i64) {
        if self.weight.event() == Some(event)
            && let Some(job) = self.jobs.get_mut(&slot)
        {
            job.count(count);
        }
    }

    /// Takes in what a tick has read: of the node, of its jobs, of its GPUs.
    pub fn follow<'a>(
        &mut self,
        now_ns: i64,
        node: impl Iterator<Item = NodeSource<'a>>,
        rows: &Batch,
        gpus: &Gpus,
        map: &JobMap,
    ) {
        if self.was_at_rest(now_ns) {
            self.ledger.pause();
        }
        self.looks.followed_ns = Some(now_ns);
        self.weigh_jobs(now_ns, rows, map);
        self.charge_gpus(gpus);
        let (drawn_mw, limit_mw) = gpus.power_mw();
        self.ledger.meters.rate(limit_mw.saturating_mul(2).saturating_add(RATED_MW), drawn_mw);
        let mut has_meter = false;
        let sources: Vec<NodeSource<'_>> = node.collect();
        let split_by = first_split(&sources);
        for source in &sources {
            for batch in source.batches.iter().filter(|batch| !batch.is_empty()) {
                has_meter |= self.read_meters(source, batch, split_by);
            }
        }
        // What was estimated up to the first reading of a meter is needed for the time until then.
        let is_metered = (has_meter || self.looks.is_metered(now_ns)) && !self.ledger.needs_estimates();
        let batches = sources.iter().flat_map(|source| source.batches);
        for batch in batches.filter(|batch| std::ptr::eq(batch.table, &node::TABLE)) {
            self.weigh_node(batch, is_metered);
        }
        if has_meter {
            self.looks.metered_ns = Some(now_ns);
        }
        if has_meter && self.ledger.machine_idle.is_unknown() {
            let estimate = self.estimator.get();
            self.ledger.machine_idle.assume(estimate.cpu_idle_mw, estimate.memory_mw);
        }
        let closed = self.ledger.close(now_ns);
        self.take(closed);
        self.follow_open_gpus();
    }

    /// Whether nothing was read for a while because there were no jobs.
    fn was_at_rest(&self, now_ns: i64) -> bool {
        let has_old = || self.jobs.values().any(|job| job.weighed_ns < now_ns - REST_NS);
        let is_followed = self.looks.is_watched || has_old();
        !is_followed && self.looks.followed_ns.is_some_and(|followed_ns| now_ns - followed_ns > REST_NS)
    }

    /// What jobs used of GPUs since the last window: it is theirs, whichever meter will measure it.
    fn follow_open_gpus(&mut self) {
        if !self.ledger.has_gpus() {
            return;
        }
        let own: Vec<(u32, Line)> =
            self.jobs.keys().map(|&slot| (slot, self.ledger.open_gpus(Who::Job(slot)))).collect();
        self.jobs.values_mut().for_each(|job| job.charged.open = Line::default());
        for (slot, open) in own {
            self.with_those_around(slot, |job| job.charged.open.add(&open));
        }
    }

    /// A job and those that it is inside of.
    fn with_those_around(&mut self, slot: u32, mut each: impl FnMut(&mut Job)) -> bool {
        let (mut next, mut any) = (Some(slot), false);
        while let Some(slot) = next {
            let Some(job) = self.jobs.get_mut(&slot) else { break };
            each(job);
            (next, any) = (job.outer.filter(|&outer| outer != slot), true);
        }
        any
    }

    /// The meters that were read so far.
    pub fn meters(&self) -> Vec<&str> {
        (self.ledger.meters.names())
            .filter(|(_, kind)| *kind == QualityKind::Measured)
            .map(|(name, _)| name)
            .collect()
    }

    /// What an estimate of the processors rests on.
    pub fn estimated_by(&self) -> &str {
        &self.estimator.get().source
    }

    /// The last time in which every part of the machine is known.
    pub fn now(&self) -> Option<EnergyWindow> {
        self.windows.now()
    }

    /// The window that was closed last.
    #[cfg(test)]
    pub fn last_window(&self) -> Option<&EnergyWindow> {
        self.windows.recent.back()
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
        let counts = self.counts(&weights);
        for (slot, own) in &weights {
            if let Some(job) = self.jobs.get_mut(slot) {
                job.charged.weighed.add(self.weight, own.cpu, counts.contains_key(slot));
            }
        }
        by_counts(&mut weights, &counts);
        for (slot, weights) in weights {
            self.ledger.weigh_job(slot, weights);
        }
    }

    /// What was counted for each job's own processes since the last look.
    fn counts(&mut self, weights: &BTreeMap<u32, Weights>) -> BTreeMap<u32, u64> {
        let grown = |(slot, job): (&u32, &mut Box<Job>)| Some((*slot, job.take_grown()?));
        let mut counts: BTreeMap<u32, u64> = self.jobs.iter_mut().filter_map(grown).collect();
        let all = counts.clone();
        for (slot, own) in weights {
            let Some(outer) = self.jobs.get(slot).and_then(|job| job.outer) else { continue };
            match (all.get(slot), counts.get_mut(&outer)) {
                (Some(inner), Some(sum)) => *sum = sum.saturating_sub(*inner),
                // Its share of the outer one's is unknown.
                (None, Some(_)) if own.cpu > 0 => drop(counts.remove(&outer)),
                _ => {}
            }
        }
        // A job that ran on a CPU executed something: a counter that does not move was reassigned.
        counts.retain(|slot, &mut count| count > 0 || weights.get(slot).is_none_or(|own| own.cpu == 0));
        counts
    }

    fn charge_gpus(&mut self, gpus: &Gpus) {
        let charged = gpus.charged();
        let uj = |who: Option<u32>| charged.get(&who).copied().unwrap_or_default();
        for (&slot, _) in self.jobs.iter().filter(|(_, job)| !job.has_left) {
            let (active_uj, idle_uj) = uj(Some(slot));
            self.ledger.charge_gpus(Who::Job(slot), active_uj, idle_uj);
        }
        // GPUs that no job holds are idle; computation on one without a job is the system's.
        let (active_uj, idle_uj) = uj(None);
        self.ledger.charge_gpus(Who::System, active_uj, 0);
        self.ledger.charge_gpus(Who::Idle, 0, idle_uj);
    }

    /// Whether there was a reading among them.
    fn read_meters(&mut self, source: &NodeSource<'_>, batch: &Batch, split_by: Option<u8>) -> bool {
        let Some((rank, kind)) = meter::of(source.name) else { return false };
        let part_of = |part: u32, labels: &[String]| {
            let measured = kind.part(rank, part, labels)?;
            (!is_split(measured.1) || split_by == Some(rank)).then_some(measured)
        };
        let least_ns = if kind.is_slow { TIMEOUT_MIN_SLOW_NS } else { TIMEOUT_MIN_NS };
        let timeout_ns = self.looks.timeout_ns(source.period_ns).max(least_ns);
        let energy = batch.table.reading(Kind::Counter, Unit::Joules);
        let power = batch.table.reading(Kind::Gauge, Unit::Watts);
        let mut any = false;
        // One that is there and has no row could not be read: a whole without it is not the whole.
        let has_row = |part: u32| batch.rows().any(|(row, _)| row.part == part);
        for (part, labels) in (0..).zip(source.labels).filter(|(part, _)| !has_row(*part)) {
            if let Some((name, scope)) = part_of(part, labels) {
                self.ledger.meters.meter(&name, scope, QualityKind::Measured, timeout_ns);
            }
        }
        for (row, cells) in batch.rows() {
            let Some(labels) = source.labels.get(row.part as usize) else { continue };
            let Some((name, scope)) = part_of(row.part, labels) else { continue };
            let known = |index: Option<usize>| index.filter(|&index| cells[index] != MISSING);
            let at_ns = batch.window.end_ns;
            let counter = known(energy).filter(|_| !kind.is_coarse);
            // A machine that runs draws power: 0 is a controller without a meter.
            let of_node = matches!(scope, Scope::Node { .. });
            let drawn = known(power).filter(|&index| cells[index] > 0 || !of_node);
            let meter = match (counter, drawn) {
                (None, None) => continue,
                _ => self.ledger.meters.meter(&name, scope, QualityKind::Measured, timeout_ns),
            };
            any = true;
            match (counter, drawn) {
                (Some(index), None) => self.ledger.meters.read_counter(meter, at_ns, cells[index]),
                (Some(index), Some(power)) => {
                    self.ledger.meters.read_both(meter, at_ns, cells[index], milliwatts(batch, power, cells))
                }
                (None, Some(index)) => {
                    self.ledger.meters.read_power(meter, at_ns, milliwatts(batch, index, cells));
                }
                (None, None) => {}
            }
        }
        any
    }

    fn weigh_node(&mut self, batch: &Batch, is_metered: bool) {
        let Some((_, cells)) = batch.rows().next() else { return };
        let cell = |column: usize| Some(cells[column]).filter(|&cell| cell != MISSING);
        let modes =
            [node::CPU_USER, node::CPU_NICE, node::CPU_SYSTEM, node::CPU_INTERRUPT, node::CPU_SOFT_INTERRUPT];
        let Some(busy_ns) = modes.into_iter().filter_map(cell).reduce(|sum, more| sum + more) else { return };
        let at_ns = batch.window.end_ns;
        let Some(before) = self.looks.weigh(at_ns, busy_ns) else {
            self.estimate_energy(at_ns, is_metered, None);
            return;
        };
        let rate::Step::Delta(grown_ns) = rate::step(before.busy_ns, busy_ns) else { return };
        let elapsed_ns = (at_ns - before.at_ns) as u64;
        let used_bytes =
            cell(node::MEMORY_TOTAL).zip(cell(node::MEMORY_AVAILABLE)).map(|(total, free)| total - free);
        let held = self.estimator.cpu_count().saturating_mul(elapsed_ns);
        let cpu = grown_ns as u64;
        let memory = memory_weight(used_bytes.unwrap_or(0), elapsed_ns);
        self.ledger.weigh_node(Weights { cpu, memory, held });
        self.estimate_energy(at_ns, is_metered, Some((cpu, held, elapsed_ns)));
    }

    /// Where no meter is read, what the machine probably used since the last look.
    fn estimate_energy(&mut self, at_ns: i64, is_metered: bool, load: Option<(u64, u64, u64)>) {
        if is_metered {
            self.ledger.machine_idle.know(None);
            self.ledger.meters.forget_estimates();
            return;
        }
        if let Some((busy_ns, held_ns, elapsed_ns)) = load {
            self.estimator.add(busy_ns, held_ns, elapsed_ns);
        }
        self.ledger.machine_idle.know(Some([self.estimator.get().cpu_idle_mw, 0, 0, 0]));
        // Of the length of a few looks: a meter that begins to answer does not have to wait for an estimate.
        let timeout_ns = self.looks.interval_ns.saturating_mul(2).max(TIMEOUT_MIN_NS);
        for (name, scope, counter_uj) in self.estimator.counters() {
            let meter = self.ledger.meters.meter(name, scope, QualityKind::Estimated, timeout_ns);
            self.ledger.meters.read_counter(meter, at_ns, counter_uj as i64);
        }
    }

    /// What samples see of an attached job is its tree of processes. All its CPU time shows whether some left it, and
    /// then what they used was charged to the system; that is not taken back, so that the windows still add up.
    pub fn compare(&mut self, slot: u32, cpu_ns: i64) {
        if let Some(job) = self.jobs.get_mut(&slot) {
            let by_one_daemon = job.charged.before == [0; COLUMNS.len()];
            job.charged.doubts.unseen = by_one_daemon && job.was_unseen(cpu_ns);
        }
    }

    /// The job is over. `cpu_ns` is all the CPU time it had, where that is known, `gpus_uj` what it was itself
    /// charged on GPUs, active and idle, and `gpus` all that it shows of them.
    pub fn leave(
        &mut self,
        slot: u32,
        cpu_ns: Option<i64>,
        gpus_uj: (u64, u64),
        gpus: GpuEnergy,
        now_ns: i64,
    ) {
        let Some(job) = self.jobs.get_mut(&slot).filter(|job| !job.has_left) else { return };
        job.has_left = true;
        job.charged.gpus = gpus;
        let weights = job.weigh(now_ns, cpu_ns.unwrap_or(MISSING), MISSING);
        job.charged.weighed.add(self.weight, weights.cpu, false);
        self.ledger.weigh_job(slot, weights);
        if let Some(outer) = job.outer.and_then(|outer| self.jobs.get_mut(&outer)) {
            outer.settled_inside_ns += weights.cpu;
        }
        if gpus_uj != (0, 0) {
            self.ledger.charge_gpus(Who::Job(slot), gpus_uj.0, gpus_uj.1);
        }
        self.ledger.leave(slot);
        self.follow_open_gpus();
    }

    /// Whether a window is or was open.
    pub fn has_begun(&self) -> bool {
        self.looks.weighed.is_some()
    }

    /// Whether jobs that are over wait for their last window.
    pub fn owes(&self) -> bool {
        self.jobs.values().any(|job| job.has_left)
    }

    /// Closes the last window with what there is: no meter will be read again.
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
        let is_measured = closed.as_ref().is_some_and(Closed::is_measured);
        if let Some(closed) = closed {
            let is_estimated = closed.kind == QualityKind::Estimated;
            let meter = match &closed.source {
                MeteredBy::None => String::new(),
                MeteredBy::Processors | MeteredBy::Memory if is_estimated => {
                    self.estimator.get().source.clone()
                }
                MeteredBy::Processors | MeteredBy::Memory => "RAPL".to_owned(),
                MeteredBy::Node(name) => name.clone(),
            };
            let booked_uj = self.book(&closed);
            // A job that did nothing in a window used nothing in it: that is known, and not missing.
            for job in self.jobs.values_mut() {
                job.charged.note(&meter, &closed, &self.factor);
            }
            if closed.is_measured() {
                self.windows.add(&closed, &meter, booked_uj, (&self.factor, self.tariff.pue));
            }
        }
        let waiting = self.ledger.unsettled();
        let is_settled = |(slot, job): (&u32, &Job)| job.has_left && !waiting.contains(slot);
        let done: Vec<u32> =
            self.jobs.iter().filter(|&(slot, job)| is_settled((slot, job))).map(|(&slot, _)| slot).collect();
        for mut job in done.into_iter().filter_map(|slot| self.jobs.remove(&slot)) {
            // Its last window has what it used of GPUs.
            if is_measured {
                job.charged.open = Line::default();
            }
            self.settled.push((job.key, job.charged));
        }
    }

    /// Adds the lines of a window to their owners; returns what was really added.
    fn book(&mut self, closed: &Closed) -> i64 {
        let factor = self.factor.clone();
        let mut booked_uj = 0;
        for (who, line) in &closed.lines {
            let is_booked = match who {
                Who::Job(slot) => self.with_those_around(*slot, |job| job.charged.add(line, closed, &factor)),
                Who::System | Who::Idle | Who::Unassigned => true,
            };
            booked_uj += if is_booked { line.total_uj() } else { 0 };
        }
        for (who, &short_uj) in &closed.short_uj {
            if let Who::Job(slot) = who {
                self.with_those_around(*slot, |job| job.charged.fall_short(short_uj));
            }
        }
        booked_uj
    }

    /// Writes what the job was charged so far into its row.
    pub fn fill(&self, slot: u32, cells: &mut [i64]) {
        let Some(values) = self.jobs.get(&slot).and_then(|job| job.charged.values()) else { return };
        for (column, value) in COLUMNS.into_iter().zip(values) {
            cells[column] = value.unwrap_or(MISSING);
        }
    }

    /// Adds the job's energy and emissions so far.
    pub fn complete(&self, slot: u32, live: &mut Live) {
        if let Some(job) = self.jobs.get(&slot) {
            job.charged.put(&mut live.totals);
            live.emission = job.charged.emission();
        }
    }

    #[cfg(test)]
    fn charged(&self, slot: u32) -> Option<&Charged> {
        self.jobs.get(&slot).map(|job| &job.charged)
    }

    /// What energy is split by.
    pub fn weight(&self) -> Weight {
        self.weight
    }
}

fn is_split(scope: Scope) -> bool {
    matches!(scope, Scope::Package | Scope::Memory)
}

/// The meter of processors and memory. One is enough: a second one sees the same energy again.
fn first_split(sources: &[NodeSource<'_>]) -> Option<u8> {
    let splits = |source: &NodeSource<'_>| {
        let (rank, kind) = meter::of(source.name)?;
        let parts = (0..).zip(source.labels);
        let mut scopes = parts.filter_map(|(part, labels)| (kind.scope)(part, labels));
        scopes.any(is_split).then_some(rank)
    };
    sources.iter().filter_map(splits).min()
}

fn milliwatts(batch: &Batch, column: usize, cells: &[i64]) -> i64 {
    (batch.table.columns[column].scaled(cells[column]) * 1000.0).round() as i64
}

#[cfg(test)]
#[path = "node_energy_tests.rs"]
mod tests;
