//! Samples jobs: which processes they have, what these show, what that means for each job.
//!
//! Used by the daemon for every job of a node, by `met time` for its own one, and once at the end of a
//! job for its counters. Samples give the course over time and never make a total that a counter has.

mod containers;
mod costs;
mod devices;
mod events;
mod live;
mod machine;
mod now;
mod sampled;
mod tick_rows;
mod ticking;
mod tracked;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use met_core::attribute::{Fold, JobMap};
use met_core::cards::Cards;
use met_core::course::Course;
use met_core::gpu::card;
use met_core::job::{CgroupPaths, JobKey, ProcessId, Record};
use met_core::job_table::*;
use met_core::node::NodeRows;
use met_core::provenance::Caveat;
use met_core::{Batch, JOB, MISSING, Subject};
use met_host::{Host, Targets, clock};
use met_jobs::Members;
use met_sources::{NewError, Options, Runner, SourceSpec, TickInfo, Unavailable};

use crate::departures::{Beginning, Departures, OwnFigures};
use crate::node_energy::{CardEnergy, Charged, NodeEnergy};
use crate::node_series::NodeSeries;
pub use costs::Cost;
pub use events::EventsAsked;
use met_config::{Config, Weight};
use met_core::belief::set_gpu_energy;
use met_core::running::Running;
use met_core::sampled::totals;
use met_jobs::containers::is_client_name;
use met_jobs::processes;
use met_query::live::PEAK_SPAN_MS;
pub use now::NodeNow;
use sampled::Ends;
pub use sampled::{Known, Sampled};
use ticking::next_boundary;
use tracked::Tracked;

/// For one job in the foreground: its own figures and the meters of the machine.
const WITH_ENERGY: &[&str] =
    &["cgroup", "process", "nvidia", "drm", "node", "rapl", "cray", "ipmi", "redfish", "hwmon"];
/// What energy is known by; `node` is what everybody does.
pub const METERS: &[&str] = &["node", "rapl", "cray", "ipmi", "redfish", "hwmon"];
/// Ticks may be late by as much before the cards' figures have a gap.
const CARD_GAP_NS: i64 = 2_000_000_000;

/// The longest time between two samples over which a level is still believed: slow ticks are ten periods apart.
pub fn gap_ms(interval: Duration) -> i64 {
    (interval.as_millis() as i64 * 25).max(25_000)
}

/// The same for a course whose period may have been changed meanwhile: what many of its spans are is no gap.
pub fn gap_ms_of(course: &Course, interval: Duration) -> i64 {
    const SPANS_MIN: usize = 20;
    let mut spans: Vec<i64> = course.times_ms.windows(2).map(|pair| pair[1] - pair[0]).collect();
    spans.sort_unstable();
    let usual_ms = spans.get(spans.len() * 9 / 10).filter(|_| spans.len() >= SPANS_MIN);
    gap_ms(interval).max(usual_ms.map_or(0, |usual_ms| usual_ms.saturating_mul(3)))
}

/// A longer time between two looks is one in which nobody looked: at least so much, and more where the looks of
/// most of the time are further apart.
pub fn look_gap_ms(times_ms: &[i64], least_ms: i64) -> i64 {
    let mut spans: Vec<i64> = times_ms.windows(2).map(|pair| pair[1] - pair[0]).collect();
    spans.sort_unstable();
    let usual_ms = spans.get(spans.len() * 9 / 10).copied().unwrap_or(0);
    least_ms.max(usual_ms.saturating_mul(3))
}

pub struct Sampler {
    host: Host,
    interval_ns: i64,
    membership_every_ns: i64,
    members: Members,
    refreshed_ns: i64,
    runner: Runner,
    node: NodeRows,
    /// Where the course of the machine is kept.
    node_series: Option<NodeSeries>,
    asked: EventsAsked,
    /// What energy is split by: counted in every job that can be counted in.
    weight: Weight,
    targets: Targets,
    map: JobMap,
    fold: Fold,
    out: Batch,
    cards: Cards,
    /// Processes on cards that are no job's, as far as is known.
    card_strangers: HashSet<Subject>,
    /// Samples of the cards themselves that were not taken out yet, by uuid.
    card_courses: HashMap<String, Course>,
    departures: Departures,
    energy: NodeEnergy,
    jobs: HashMap<u32, Tracked>,
    next_slot: u32,
    ticks: u64,
    next_tick_ns: i64,
    /// Ticks also while there is no job: somebody wants to know how the machine is.
    watches_node: bool,
}

impl Sampler {
    /// One that waits for slow sources before its first tick: for a single look.
    pub fn patient(host: Host, interval: Duration, config: &Config, patience: Duration) -> Sampler {
        Sampler::with(host, interval, config, &options(config, patience))
    }

    /// One that watches the machine, too.
    pub fn of_node(host: Host, interval: Duration, config: &Config) -> Sampler {
        let options = Options { node: true, ..options(config, Duration::ZERO) };
        Sampler::with(host, interval, config, &options)
    }

    /// One that watches jobs and the meters of the machine.
    pub fn of_energy(host: Host, interval: Duration, config: &Config) -> Sampler {
        let options = Options { node: true, only: Some(WITH_ENERGY), ..options(config, Duration::ZERO) };
        Sampler::with(host, interval, config, &options)
    }

    pub fn with(host: Host, interval: Duration, config: &Config, options: &Options) -> Sampler {
        let interval_ns = interval.as_nanos() as i64;
        let membership = config.sampling.membership_interval.map_or(0, |every| every.as_nanos() as i64);
        let mut cards = Cards::default();
        cards.set_idle_rules(config.gpu.idle_power.clone());
        cards.set_gap(interval_ns * 3 + CARD_GAP_NS);
        let mut runner = Runner::open(&host, options);
        runner.set_interval(interval);
        Sampler {
            runner,
            node: NodeRows::default(),
            node_series: None,
            asked: EventsAsked::of_file(&config.perf.events),
            weight: config.energy.weight,
            energy: NodeEnergy::new(&host, config, interval),
            host,
            interval_ns,
            membership_every_ns: membership,
            members: Members::looking_for(is_client_name),
            refreshed_ns: i64::MIN,
            targets: Targets::default(),
            map: JobMap::default(),
            fold: Fold::new(),
            out: Batch::new(&JOB),
            cards,
            card_strangers: HashSet::new(),
            card_courses: HashMap::new(),
            departures: Departures::default(),
            jobs: HashMap::new(),
            next_slot: 0,
            ticks: 0,
            next_tick_ns: next_boundary(clock::boottime_ns(), interval_ns),
            watches_node: false,
        }
    }

    /// Ticks from now on whether there are jobs or not.
    pub fn watch_node(&mut self) {
        self.watches_node = true;
        self.energy.watch();
    }

    /// Begins to sample a job of this machine. `None` if its processes belong to an earlier boot.
    pub fn add(&mut self, record: &Record) -> Option<u32> {
        let slot = self.next_slot;
        let spec = processes::spec(&self.host, record, slot)?;
        let local = record.local.as_ref()?;
        self.next_slot += 1;
        let now_ns = clock::boottime_ns();
        let first = spec.keeper.iter().chain(&spec.roots).map(|process| process.start_ticks).min();
        let ns_per_tick = 1_000_000_000 / self.host.facts().ticks_per_second;
        let first_ns = first.and_then(|ticks| i64::try_from(ticks).ok()?.checked_mul(ns_per_tick));
        let made_ns = record.start_ns.map(|start_ns| start_ns - clock::unix_offset_ns());
        let beginning = match (first_ns, made_ns) {
            (Some(first_ns), _) => Beginning::Process(first_ns),
            (None, Some(made_ns)) if !local.cgroup.is_empty() => Beginning::Cgroup(made_ns),
            _ => Beginning::Unknown,
        };
        let is_unused = || processes::is_unused(&self.host, &local.cgroup);
        self.jobs.insert(
            slot,
            Tracked {
                key: record.key.clone(),
                profile: met_jobs::enclosure::profile(local),
                born_ns: now_ns,
                early_taken: 0,
                unix_offset_ns: clock::realtime_ns() - now_ns,
                course: Course::new(&JOB),
                running: Running::new(self.gap_ms(), PEAK_SPAN_MS),
                own: OwnFigures::default(),
                watch: self.departures.open(&self.host, slot, beginning, is_unused),
                left: vec![0; JOB.columns.len()],
                hugetlb_bytes: 0,
                containers: Vec::new(),
                lacks_containers: false,
                floors: vec![MISSING; JOB.columns.len()],
                main: local.main.map(|main| (main, now_ns)),
                gpu_before_uj: (0, 0),
                gpus_before: record.gpus.clone(),
                missed: false,
                all_ended: false,
                events: Vec::new(),
            },
        );
        self.energy.begin(slot, record, now_ns);
        self.members.add(spec);
        self.cards.join(slot, now_ns);
        self.refreshed_ns = i64::MIN;
        Some(slot)
    }

    /// Adds a process to a job that is known by its processes.
    pub fn add_root(&mut self, slot: u32, process: ProcessId) {
        self.members.add_root(slot, process);
        self.refreshed_ns = i64::MIN;
    }

    /// Goes on with a job under another name.
    pub fn rename(&mut self, slot: u32, key: &JobKey) {
        if let Some(job) = self.jobs.get_mut(&slot) {
            job.key = key.clone();
            self.energy.rename(slot, key);
        }
    }

    /// Reads one more directory of a job, that of another node on this machine.
    pub fn add_cgroup(&mut self, slot: u32, paths: CgroupPaths) {
        self.members.add_cgroup(slot, paths);
        self.refreshed_ns = i64::MIN;
    }

    /// One directory of a job is gone, and others are left: what was counted in it stays in the sum.
    pub fn leave_cgroup(&mut self, slot: u32, paths: &CgroupPaths, cpu_ns: Option<i64>) {
        let (Some(job), Some(id)) = (self.jobs.get_mut(&slot), self.members.cgroup_id(slot, paths)) else {
            return;
        };
        for batch in self.runner.batches() {
            for (_, cells) in batch.rows().filter(|(row, _)| row.owner == Subject::Cgroup(id)) {
                job.leave(batch.table, cells, cpu_ns);
            }
        }
    }

    /// Counts the events of a job in a directory that was made for that.
    pub fn count_in(&mut self, slot: u32, path: &Path) {
        match self.host.cgroup_dir(path) {
            Ok(dir) => self.members.count_in(slot, Some(Arc::new(dir))),
            Err(error) => tracing::warn!("{}: {error}", path.display()),
        }
        self.refreshed_ns = i64::MIN;
    }

    /// Tells what was sampled before this process began: by an earlier daemon.
    pub fn recall(&mut self, slot: u32, course: &Course) {
        let Some(job) = self.jobs.get_mut(&slot) else { return };
        let mut cells = vec![MISSING; JOB.columns.len()];
        for (index, &time_ms) in course.times_ms.iter().enumerate() {
            for (cell, column) in cells.iter_mut().zip(&course.columns) {
                *cell = column[index];
            }
            job.hold_counters(&mut cells);
            job.running.push(time_ms, &cells);
        }
        let before = |column: usize| job.floors[column].max(0);
        job.gpu_before_uj = (before(GPU_ENERGY), before(GPU_ENERGY_IDLE));
        let now_ms = (clock::boottime_ns() + job.unix_offset_ns) / 1_000_000;
        let looks_ms: Vec<i64> = course.times_ms.iter().copied().chain([now_ms]).collect();
        let gap_ms = look_gap_ms(&course.times_ms, (self.interval_ns * 3 + CARD_GAP_NS) / 1_000_000);
        job.missed = looks_ms.windows(2).any(|pair| pair[1] - pair[0] > gap_ms);
        job.recall_quiet(course);
        self.energy.recall(slot, &job.floors, job.missed);
    }

    /// Ends a job. All of its CPU time, where that is known, decides the last share of energy, which is told
    /// by `take_settled` when the meters have been read again.
    pub fn remove(&mut self, slot: u32, known: Known) -> Option<Sampled> {
        if self.cards.has_any(slot) {
            // What it used since the last tick is its, too.
            let tick = TickInfo { slow: false, cgroups_only: false };
            self.runner.read_those_of(&card::TABLE, &self.targets, &tick);
            self.follow_cards(clock::boottime_ns());
        }
        self.look_a_last_time(slot);
        // Counters outlive the cgroup they count, until they are closed.
        self.runner.read_again("perf", &self.targets, &TickInfo::default());
        self.follow_events();
        let job = self.jobs.remove(&slot)?;
        let complete = self.departures.is_complete(job.watch, known.uid) && !job.profile.attached;
        let gone = self.departures.gone(slot).copied().unwrap_or_default();
        self.departures.close(slot);
        let uncounted = if self.members.has_named(slot) {
            Some(Caveat::NoContainers)
        } else {
            job.lacks_containers.then_some(Caveat::SomeContainers)
        };
        self.members.remove(slot);
        let cards_uj = self.cards.own_uj(slot);
        let gpus = job.gpus(self.cards.leave(slot));
        let mut totals = totals(&job.running, job.profile);
        set_gpu_energy(&mut totals, &gpus, job.gpu_untold_uj());
        if let Some(cpu_ns) = known.cpu_ns.filter(|_| job.profile.attached) {
            self.energy.compare(slot, cpu_ns);
        }
        let cpu_ns = known.cpu_ns.filter(|_| !job.profile.attached);
        self.energy.leave(slot, cpu_ns, cards_uj, CardEnergy::of(&totals), clock::boottime_ns());
        let charged = self.energy.charged(slot);
        let emission = charged.and_then(Charged::emission);
        charged.into_iter().for_each(|charged| charged.put(&mut totals));
        if self.jobs.is_empty() {
            if !self.watches_node {
                self.cards.pause();
            }
            self.let_go();
        }
        let ends = Ends {
            complete: complete && job.all_ended,
            cpu_doubt_ns: gone.cpu_doubt_ns,
            lacks_delays: gone.lacks_delays,
            unwaited: job.profile.kept.then_some(gone.inherited),
        };
        let Tracked { course, events, profile, running, .. } = job;
        let (attached, gap_ms) = (profile.attached, running.gap_ms());
        Some(Sampled { totals, gpus, events, emission, course, attached, ends, uncounted, gap_ms })
    }

    /// Nobody ticks without jobs: what was kept open of the last ones would stay so until there is another.
    fn let_go(&mut self) {
        self.targets.clear();
        self.map.clear();
        self.refreshed_ns = i64::MIN;
        for source in ["cgroup", "process"] {
            self.runner.read_again(source, &self.targets, &TickInfo::default());
        }
    }

    /// Reads the meters once more and settles whoever is owed: nobody will be there to do it later.
    pub fn settle_now(&mut self) -> Vec<(JobKey, Charged)> {
        // Where no tick came in between, no window is open.
        if self.energy.owes() && self.energy.has_begun() {
            self.runner.hurry();
            self.runner.read(&Targets::default(), &TickInfo::default());
            self.out.clear();
            let now_ns = clock::boottime_ns();
            self.energy.follow(now_ns, self.runner.node(), &self.out, &self.cards, &self.map);
        }
        self.energy.close_for_good(clock::boottime_ns());
        self.energy.take_settled()
    }

    /// Reads the meters of a machine without jobs: what it uses now it uses doing nothing. Nothing of it is kept as
    /// the course of the machine. Cards are in what the meter of the node shows, but a driver that has gone to
    /// sleep is not woken for that.
    pub fn look_at_rest(&mut self, with_cards: bool) {
        let now_ns = clock::boottime_ns();
        for source in METERS {
            self.runner.read_again(source, &self.targets, &TickInfo::default());
        }
        if with_cards {
            self.runner.read_those_of(&card::TABLE, &self.targets, &TickInfo::default());
            self.follow_cards(now_ns);
        }
        self.out.clear();
        self.energy.follow(now_ns, self.runner.node(), &self.out, &self.cards, &self.map);
    }

    /// The longest time between two readings of what may be a meter; `None` where a look at rest would teach nothing.
    pub fn slowest_meter(&self) -> Option<Duration> {
        let is_meter = |name: &str| name != "node" && METERS.contains(&name) && self.runner.is_open(name);
        let meters = self.runner.periods().filter(|(spec, _)| is_meter(spec.name));
        meters.filter_map(|(_, period)| period).max().filter(|_| self.energy.learns_idle())
    }

    /// Nobody looks until the next time.
    pub fn end_look_at_rest(&mut self) {
        self.cards.pause();
    }

    /// Jobs that are over and whose energy is known since the last call.
    pub fn take_settled(&mut self) -> Vec<(JobKey, Charged)> {
        self.energy.take_settled()
    }

    /// Whether there is anything to tick for.
    pub fn is_at_work(&self) -> bool {
        self.watches_node || !self.jobs.is_empty() || self.energy.owes()
    }

    /// The sources that this machine does not have or does not show, and why.
    pub fn unavailable(&self) -> &[(&'static SourceSpec, Unavailable)] {
        self.runner.unavailable()
    }

    pub fn energy(&mut self) -> &mut NodeEnergy {
        &mut self.energy
    }

    pub fn gap_ms(&self) -> i64 {
        gap_ms(Duration::from_nanos(self.interval_ns as u64))
    }

    /// Ticks by another period from now on, again at multiples of it.
    pub fn set_interval(&mut self, interval: Duration) {
        self.interval_ns = interval.as_nanos() as i64;
        self.next_tick_ns = next_boundary(clock::boottime_ns(), self.interval_ns);
        self.cards.set_gap(self.interval_ns * 3 + CARD_GAP_NS);
        self.energy.set_interval(interval);
        self.runner.set_interval(interval);
        let gap_ms = self.gap_ms();
        self.jobs.values_mut().for_each(|job| job.running.widen_gap(gap_ms));
    }

    /// Takes up what a file says that was read again, other than period and events.
    pub fn reconfigure(&mut self, before: &Config, config: &Config) {
        let membership = config.sampling.membership_interval.map_or(0, |every| every.as_nanos() as i64);
        self.membership_every_ns = membership;
        self.cards.set_idle_rules(config.gpu.idle_power.clone());
        if before.energy != config.energy {
            self.energy.set_rules(&config.energy);
            self.weight = config.energy.weight;
        }
        let options = Options { node: true, ..options(config, Duration::ZERO) };
        let changed: Vec<&str> = before.sources.changed(&config.sources).collect();
        for name in &changed {
            self.runner.reopen(name, &self.host, &options);
        }
        if !changed.is_empty() {
            self.energy.forget_meters();
        }
    }

    /// Reads a source again that was left out.
    pub fn reopen(&mut self, source: &str, options: &Options) {
        self.runner.forgive(source);
        self.runner.reopen(source, &self.host, options);
        self.energy.forget_meters();
    }

    /// Waits for what slow sources are reading.
    pub fn wait(&mut self, patience: Duration) {
        self.runner.wait(patience);
    }

    pub fn take_new_errors(&mut self) -> Vec<NewError> {
        self.runner.take_new_errors()
    }
}

/// What the configuration says about sources.
pub fn options(config: &Config, patience: Duration) -> Options {
    let mut events = config.perf.events.clone();
    let for_energy = config.energy.weight.event().filter(|&event| !events.iter().any(|name| name == event));
    events.extend(for_energy.map(str::to_owned));
    Options {
        nvml_library: config.gpu.nvml.clone(),
        events,
        patience,
        interval: config.sampling.interval,
        ..config.sources.options()
    }
}

#[cfg(test)]
mod tests;
