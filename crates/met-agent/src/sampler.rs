//! Samples jobs: which processes they have, what these show, what that means for each job.
//!
//! Used by the daemon for every job of a node, by `met time` for its own one, and once at the end of a
//! job for its counters. Samples give the series over time and never make a total that a counter has.

mod containers;
mod costs;
mod details;
mod devices;
mod events;
mod for_page;
mod gpu_pace;
mod idling;
mod largest_processes;
mod logging;
mod machine;
mod membership;
mod nesting;
mod now;
mod pacing;
mod sampled;
mod schedule;
mod tick_rows;
mod ticking;
mod tracked;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use met_core::belief::at_end::Ends;
use met_core::cadence::Cadence;
use met_core::gpu::device;
use met_core::gpu_holding::Holding;
use met_core::gpus::GpuNow;
use met_core::job::{CgroupPaths, JobKey, ProcessId, Record};
use met_core::provenance::Caveat;
use met_core::series::{PackedSamples, Series};
use met_core::{DETAIL, JOB, Table};
use met_host::{Host, Targets, clock};
use met_jobs::processes;
use met_query::live::Live;
use met_sinks::bus::Ticker;
use met_sources::taskstats::exits;
use met_sources::{
    Fault, NewError, Options, Runner, SOURCES, SourceSpec, TickInfo, Unavailable, Unread, meter, perf,
};

use crate::exits::{Beginning, Departures};
use crate::node_energy::{Charged, GpuEnergy, NodeEnergy};
use crate::passed_counters::PassedCounters;
pub use costs::Cost;
use details::JobRows;
pub use devices::SampledGpus;
pub use events::EventsAsked;
pub use machine::Machine;
use membership::Membership;
use met_config::Config;
pub use met_insight::resample::{gap_ms, gap_ms_of, look_gap_ms};
pub use now::{JobNow, NodeNow};
pub use sampled::{Known, Sampled};
use schedule::Schedule;
use tick_rows::TickRows;
use tracked::{Jobs, Tracked};

/// What energy is known by; `node` is what all processes do.
pub static METERS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    ["node"].into_iter().chain(met_sources::METERS.iter().map(|meter| meter.source.name)).collect()
});
/// For one job in the foreground: its own figures and the meters of the machine.
static WITH_ENERGY: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| [&["cgroup", "process", "nvidia", "drm"], &METERS[..]].concat());

/// The same for series of the machine, whose period is longer without jobs.
pub fn node_gap_ms(idle: Duration) -> i64 {
    i64::try_from(idle.as_millis()).unwrap_or(i64::MAX / 5) * 5 / 2
}

pub struct Sampler {
    host: Host,
    schedule: Schedule,
    membership: Membership,
    runner: Runner,
    rows: JobRows,
    asked: EventsAsked,
    departures: Departures,
    pub machine: Machine,
    pub gpus: SampledGpus,
    energy: NodeEnergy,
    jobs: Jobs,
}

impl Sampler {
    /// One that waits for slow sources before its first tick: for a single look.
    pub fn waiting(host: Host, interval: Duration, config: &Config, timeout: Duration) -> Sampler {
        Sampler::with(host, interval, config, &options(config, timeout))
    }

    /// One that watches the machine, too.
    pub fn of_node(host: Host, interval: Duration, config: &Config) -> Sampler {
        let options = Options { node: true, ..options(config, Duration::ZERO) };
        Sampler::with(host, interval, config, &options)
    }

    /// One that watches jobs and the meters of the machine.
    pub fn of_energy(host: Host, interval: Duration, config: &Config) -> Sampler {
        let options = Options { node: true, only: Some(&WITH_ENERGY), ..options(config, Duration::ZERO) };
        Sampler::with(host, interval, config, &options)
    }

    pub fn with(host: Host, interval: Duration, config: &Config, options: &Options) -> Sampler {
        let schedule = Schedule::new(Cadence::fixed(interval));
        let mut runner = Runner::open(&host, options);
        runner.set_interval(interval);
        Sampler {
            gpus: SampledGpus::new(config, schedule.interval_ns),
            energy: NodeEnergy::new(&host, config, interval),
            host,
            schedule,
            membership: Membership::new(config),
            runner,
            rows: JobRows::new(config.storage.job_details),
            asked: EventsAsked::of_file(&config.perf.events),
            departures: Departures::new(exits::is_off(options)),
            machine: Machine::new(config.node),
            jobs: Jobs::default(),
        }
    }

    /// Ticks from now on whether there are jobs or not.
    pub fn watch_node(&mut self) {
        self.schedule.watches_node = true;
        self.energy.watch();
    }

    /// Begins to sample a job of this machine. `None` if its processes belong to an earlier boot.
    pub fn add(&mut self, record: &Record) -> Option<u32> {
        let slot = self.membership.next_slot;
        let spec = processes::spec(&self.host, record, slot)?;
        let local = record.local.as_ref()?;
        self.membership.next_slot += 1;
        let now_ns = clock::boottime_ns();
        let first = spec.supervisor.iter().chain(&spec.roots).map(|process| process.start_ticks).min();
        let ns_per_tick = 1_000_000_000 / self.host.facts().ticks_per_second;
        let first_ns = first.and_then(|ticks| i64::try_from(ticks).ok()?.checked_mul(ns_per_tick));
        let made_ns = record.start_ns.map(|start_ns| start_ns - clock::unix_offset_ns());
        let beginning = match (first_ns, made_ns) {
            (Some(first_ns), _) => Beginning::Process(first_ns),
            (None, Some(made_ns)) if !local.cgroup.is_empty() => Beginning::Cgroup(made_ns),
            _ => Beginning::Unknown,
        };
        let is_unused = || processes::is_unused(&self.host, &local.cgroup);
        let watch = self.departures.open(&self.host, slot, beginning, is_unused);
        let job = Tracked::new(record, local, now_ns, self.gap_ms(), watch);
        self.energy.begin(slot, record, now_ns, job.earlier.watched);
        self.jobs.insert(slot, Box::new(job));
        self.schedule.hasten();
        self.membership.change().add(spec);
        self.gpus.gpus.join(slot, now_ns);
        Some(slot)
    }

    /// Adds a process to a job that is known by its processes.
    pub fn add_root(&mut self, slot: u32, process: ProcessId) {
        self.hurry(slot);
        self.membership.change().add_root(slot, process);
    }

    /// Continues a job under another name.
    pub fn rename(&mut self, slot: u32, key: &JobKey) {
        if let Some(job) = self.jobs.get_mut(&slot) {
            job.key = key.clone();
            self.energy.rename(slot, key);
        }
    }

    /// Reads one more directory of a job, that of another node on this machine.
    pub fn add_cgroup(&mut self, slot: u32, paths: CgroupPaths) {
        self.hurry(slot);
        self.membership.change().add_cgroup(slot, paths);
    }

    /// One directory of a job is gone, and others are left: what was counted in it stays in the sum.
    pub fn leave_cgroup(&mut self, slot: u32, paths: &CgroupPaths, cpu_ns: Option<i64>) {
        let id = self.membership.members.cgroup_id(slot, paths);
        if let (Some(job), Some(id)) = (self.jobs.get_mut(&slot), id) {
            job.leave_cgroup(id, self.runner.batches(), cpu_ns);
        }
    }

    /// What is read of a job has changed: the next tick reads it in full.
    fn hurry(&mut self, slot: u32) {
        if let Some(job) = self.jobs.get_mut(&slot) {
            job.age.pacing.hurry();
            self.schedule.hasten();
        }
    }

    /// A client asks for the figures of a job; a client that does so again and again watches it.
    pub fn note_interest(&mut self, slot: u32) {
        let is_watched = self.jobs.get_mut(&slot).is_some_and(|job| job.age.pacing.ask(clock::boottime_ns()));
        if is_watched {
            self.hurry(slot);
        }
    }

    /// A job is watched elsewhere, or a rule wants more samples of it, for this long. False if it is not sampled.
    pub fn watch(&mut self, slot: u32, for_ns: i64) -> bool {
        let now_ns = clock::boottime_ns();
        let Some(job) = self.jobs.get_mut(&slot) else { return false };
        if job.age.pacing.watch(now_ns, for_ns) {
            self.hurry(slot);
        }
        true
    }

    /// Counts the events of a job in a directory that was made for that.
    pub fn count_in(&mut self, slot: u32, path: &Path) {
        self.hurry(slot);
        match self.host.cgroup_dir(path) {
            Ok(dir) => self.membership.change().count_in(slot, Some(Arc::new(dir))),
            Err(error) => tracing::warn!("{}: {error}", path.display()),
        }
    }

    /// Reads counters that the supervisor of a job has opened.
    pub fn count_by(&mut self, slot: u32, passed: PassedCounters) {
        if let Some(job) = self.jobs.get_mut(&slot) {
            job.events.count_by(passed);
        }
    }

    /// Sets the first process of a job that was found before it had one, and the GPUs that this was given as
    /// far as they are known: it may have ended.
    pub fn set_main(&mut self, slot: u32, main: ProcessId, holdings: Vec<Holding>) {
        let Some(job) = self.jobs.get_mut(&slot) else { return };
        job.main = Some((main, clock::boottime_ns()));
        if !holdings.is_empty() {
            self.gpus.gpus.hold(slot, holdings);
        }
    }

    /// Takes over what was sampled before this process began: by an earlier daemon.
    pub fn recall(&mut self, slot: u32, series: &Series) {
        let Some(job) = self.jobs.get_mut(&slot) else { return };
        job.recall(
            series,
            clock::boottime_ns(),
            devices::gap_ns(self.schedule.cadence.together_ns()) / 1_000_000,
        );
        self.energy.recall(slot, &job.counts.floors, job.earlier.watched);
    }

    /// Ends a job. All of its CPU time, where that is known, decides the last share of energy, which
    /// `take_settled` returns when the meters have been read again.
    pub fn remove(&mut self, slot: u32, known: Known) -> Option<Sampled> {
        self.membership.unmark();
        if self.gpus.gpus.has_any(slot) {
            // What it used since the last tick is its, too.
            let tick = TickInfo::default();
            self.runner.read_those_of(&device::TABLE, &self.membership.targets, &tick);
            self.follow_gpus(clock::boottime_ns());
        }
        self.look_a_last_time(slot);
        // Counters outlive the cgroup they count, until they are closed.
        self.runner.read_again(perf::SPEC.name, &self.membership.targets, &TickInfo::default());
        self.follow_events();
        let mut job = self.jobs.remove(&slot)?;
        let time_ms = job.age.unix_ms(clock::boottime_ns());
        job.events.read_passed(time_ms);
        job.events.close(time_ms);
        let attached = job.profile.attached;
        let complete = self.departures.is_complete(job.watch, known.uid) && !attached;
        let gone = self.departures.gone(slot).copied().unwrap_or_default();
        self.departures.close(slot);
        let uncounted = match self.membership.members.has_named(slot) {
            true => Some(Caveat::NoContainers),
            false => job.containers.are_too_many.then_some(Caveat::SomeContainers),
        };
        self.membership.members.remove(slot);
        let gpus_uj = self.gpus.gpus.own_uj(slot);
        let mut live = job.live(self.gpus.gpus.leave(slot));
        live.uncounted_events = self.asked.reasons(&self.runner).of(&job);
        if let Some(cpu_ns) = known.cpu_ns.filter(|_| attached) {
            self.energy.compare(slot, cpu_ns);
        }
        let cpu_ns = known.cpu_ns.filter(|_| !attached);
        self.energy.leave(slot, cpu_ns, gpus_uj, GpuEnergy::of(&live.totals), clock::boottime_ns());
        self.energy.complete(slot, &mut live);
        if self.jobs.is_empty() {
            self.let_go();
        }
        let ends = Ends {
            complete: complete && job.counts.all_ended,
            cpu_doubt_ns: gone.cpu_doubt_ns,
            lacks_delays: gone.lacks_delays,
            unwaited: job.profile.kept.then_some(gone.inherited),
            ended: if job.profile.kept { gone.ended } else { Default::default() },
        };
        let (gap_ms, processes) = (job.running.gap_ms(), job.counts.processes.list());
        let series = job.samples.take().unpack();
        let more = job.take_series().into_iter().map(|(key, samples)| (key, samples.unpack())).collect();
        Some(Sampled { live, series, more, attached, ends, uncounted, gap_ms, processes })
    }

    /// Without jobs there may be no tick: what is open of the last ones would stay so until there is another.
    fn let_go(&mut self) {
        if !self.schedule.watches_node {
            self.gpus.gpus.pause();
        }
        self.membership.forget();
        for source in ["cgroup", "process"] {
            self.runner.read_again(source, &self.membership.targets, &TickInfo::default());
        }
    }

    /// What is known of each job so far.
    pub fn live(&self) -> Vec<(JobKey, Live)> {
        let mut reasons = self.asked.reasons(&self.runner);
        let mut live = |slot: u32, job: &Tracked| {
            let mut live = job.live(self.gpus.gpus.uses_of(slot));
            live.uncounted_events = reasons.of(job);
            self.energy.complete(slot, &mut live);
            (job.key.clone(), live)
        };
        self.jobs.iter().map(|(&slot, job)| live(slot, job)).collect()
    }

    /// The samples taken since the last call, by job.
    pub fn drain(&mut self) -> Vec<(JobKey, PackedSamples)> {
        self.jobs.values_mut().flat_map(|job| job.take_series()).collect()
    }

    /// The samples of a job that are not drained yet: of itself, its details, or the event that is the `part`.
    pub fn undrained(&self, slot: u32, table: &Table, part: &str) -> Option<&PackedSamples> {
        let job = self.jobs.get(&slot)?;
        match table.name {
            name if name == JOB.name => Some(&job.samples),
            name if name == DETAIL.name => Some(job.counts.details.series.samples()),
            _ => job.events.undrained(part),
        }
    }

    /// When all jobs were last read, in unix time.
    pub fn all_read_ns(&self) -> i64 {
        self.schedule.all_read_ns + clock::unix_offset_ns()
    }

    /// What the last tick knows, of each job with its details if `with_details`.
    pub fn now(&self, with_details: bool) -> NodeNow {
        let now_ns = clock::boottime_ns();
        let mut tables = now::node_tables(&self.machine);
        tables.push(self.gpus.rows());
        tables.push(now::cost_rows(&self.runner));
        tables.extend(self.energy.tables());
        let job_now = |slot: u32, job: &Tracked| JobNow {
            cells: job.cells(slot, &self.energy, now_ns),
            details: if with_details { job.counts.details.cells().to_vec() } else { Vec::new() },
            events: job.events.counts.clone(),
        };
        NodeNow {
            time_ns: self.all_read_ns(),
            interval_ns: self.schedule.interval_ns,
            together_ns: self.schedule.cadence.together_ns(),
            ticks: self.schedule.ticks,
            jobs: self.jobs.iter().map(|(&slot, job)| (job.key.clone(), job_now(slot, job))).collect(),
            gpus: self.gpus.held(&self.jobs),
            tables,
        }
    }

    /// The same as read for a page: it enters no series and no total, and changes no plan.
    pub fn look_for_page(&mut self, with_details: bool) -> NodeNow {
        for_page::look(self, with_details)
    }

    /// Publishes what the last tick has read.
    pub fn publish_tick(&self, ticker: &Ticker) {
        let time_ns = clock::boottime_ns() + clock::unix_offset_ns();
        let Sampler { runner, rows, jobs, membership, .. } = self;
        let (job_rows, details) = (&rows.jobs, &rows.details);
        TickRows { time_ns, runner, job_rows, details, jobs, map: &membership.map }.publish(ticker);
    }

    /// Samples of jobs and GPUs for which there was no room: what waits to be written is bounded.
    pub fn dropped_samples(&self) -> u64 {
        self.rows.dropped_samples + self.gpus.dropped_samples
    }

    /// What each source has cost so far.
    pub fn costs(&self) -> Vec<Cost> {
        Cost::all(&self.runner, &self.departures)
    }

    /// The sources that could be opened, read or not.
    pub fn opened(&self) -> impl Iterator<Item = &'static str> {
        self.runner.periods().map(|(spec, _)| spec.name)
    }

    /// What was wrong with the last reading of a source.
    pub fn fault(&self, source: &str) -> Option<Fault> {
        self.runner.fault(source)
    }

    /// Counts other events from now on. `options` has all their names. Returns what cannot be counted.
    pub fn set_events(&mut self, asked: EventsAsked, options: &Options) -> Option<String> {
        self.asked = asked;
        if self.membership.listed_ns == i64::MIN {
            self.list_members(clock::boottime_ns());
        }
        if !options.events.is_empty() && !self.runner.is_open(perf::SPEC.name) {
            self.runner.reopen(perf::SPEC.name, &self.host, options);
        }
        self.request_events();
        if options.events.is_empty() {
            return None;
        }
        self.runner.read_again(perf::SPEC.name, &self.membership.targets, &TickInfo::default());
        self.follow_events();
        let unavailable = self.runner.unavailable().iter().find(|(spec, _)| spec.name == perf::SPEC.name);
        let shortfall = self.runner.shortfalls().find(|(name, _)| *name == perf::SPEC.name);
        let reason = unavailable.map(|(_, reason)| reason.to_string());
        let reason = reason.or(shortfall.map(|(_, short)| short.detail));
        reason.or_else(|| self.asked.uncounted(&self.membership, &self.jobs))
    }

    /// What went wrong with GPUs that should be here.
    pub fn gpu_troubles(&mut self) -> Vec<String> {
        let of_gpus = |name: &str| {
            let spec = SOURCES.iter().find(|spec| spec.name == name);
            spec.is_some_and(|spec| spec.tables.iter().any(|table| std::ptr::eq(*table, &device::TABLE)))
        };
        let errors = self.runner.take_new_errors().into_iter().filter(|error| of_gpus(error.source));
        let mut troubles: Vec<String> = errors.map(|error| error.message).collect();
        // A machine without GPUs of some vendor is no trouble.
        let missing = self.runner.unavailable().iter().filter(|(spec, _)| of_gpus(spec.name));
        let missing = missing.filter(|(_, why)| !matches!(why, Unavailable::Absent(_)));
        troubles.extend(missing.map(|(_, why)| why.to_string()));
        troubles
    }

    /// GPUs that are there and cannot be read.
    pub fn unread_gpus(&self) -> Vec<Unread> {
        self.runner.unread(&device::TABLE)
    }

    /// Waits for what slow sources are reading, without the GPUs.
    pub fn wait_but_for_gpus(&mut self, timeout: Duration) {
        self.runner.wait_but_for(&device::TABLE, timeout);
    }

    pub fn has_gpus(&self) -> bool {
        self.runner.batches().iter().any(|batch| std::ptr::eq(batch.table, &device::TABLE))
    }

    /// The GPUs as last seen, with the jobs by their keys.
    pub fn gpus(&self) -> Vec<(GpuNow<'_>, HashMap<u32, JobKey>)> {
        let keys = |gpu: &GpuNow<'_>| {
            let users = gpu.processes.iter().filter_map(|&(_, slot, _, _)| slot);
            let slots = users.chain(gpu.holders.iter().map(|&(slot, _)| slot));
            slots.filter_map(|slot| Some((slot, self.jobs.get(&slot)?.key.clone()))).collect()
        };
        self.gpus.gpus.now().map(|gpu| (gpu.clone(), keys(&gpu))).collect()
    }

    /// Reads the meters once more and settles what jobs are owed: no later tick will do it.
    pub fn settle_now(&mut self) -> Vec<(JobKey, Charged)> {
        // Where no tick came in between, no window is open.
        if self.energy.owes() && self.energy.has_begun() {
            self.runner.hurry();
            self.runner.read(&Targets::default(), &TickInfo::default());
            self.rows.jobs.clear();
            self.follow_energy(clock::boottime_ns());
        }
        self.energy.close_for_good(clock::boottime_ns());
        self.energy.take_settled()
    }

    /// Reads the meters of a machine without jobs: what it uses now it uses doing nothing. Nothing of it is kept as
    /// the series of the machine. GPUs are in what the meter of the node shows, but a driver that has gone to
    /// sleep is not woken for that.
    pub fn look_at_rest(&mut self, with_gpus: bool) {
        let now_ns = clock::boottime_ns();
        for source in METERS.iter() {
            self.runner.read_again(source, &self.membership.targets, &TickInfo::default());
        }
        if with_gpus {
            self.runner.read_those_of(&device::TABLE, &self.membership.targets, &TickInfo::default());
            self.follow_gpus(now_ns);
        }
        self.rows.jobs.clear();
        self.follow_energy(now_ns);
    }

    /// Reads what the machine does without jobs, for its series. No driver of a GPU is woken for that, but at first,
    /// since it is to be known how many are free.
    pub fn look_at_node(&mut self) {
        if self.gpus.asks_for_count() {
            self.runner.read_those_of(&device::TABLE, &self.membership.targets, &TickInfo::default());
            self.follow_gpus(clock::boottime_ns());
            self.gpus.gpus.pause();
        }
        let interval = self.machine.intervals.idle();
        let tick = TickInfo { gpus: self.gpu_count(), ..TickInfo::default() };
        self.runner.read_node(&self.membership.targets, &tick);
        let interval_ns = i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX);
        self.machine.follow(&self.runner, interval_ns, clock::boottime_ns(), interval);
    }

    /// How many GPUs jobs can be given; `None` where drivers are there and have not said.
    pub(super) fn gpu_count(&self) -> Option<i64> {
        self.gpus.count().or_else(|| self.runner.lacks(&device::TABLE).then_some(0))
    }

    /// The time between two such readings; `None` where no series of the machine are stored.
    pub fn node_interval(&self) -> Option<Duration> {
        self.machine.keeps_series().then(|| self.machine.intervals.idle())
    }

    /// The longest time between two readings of what may be a meter; `None` where a look at rest would teach nothing.
    pub fn slowest_meter(&self) -> Option<Duration> {
        let is_meter = |name: &str| meter::of(name).is_some() && self.runner.is_open(name);
        let meters = self.runner.periods().filter(|(spec, _)| is_meter(spec.name));
        meters.filter_map(|(_, period)| period).max().filter(|_| self.energy.learns_idle())
    }

    /// No client looks until the next time.
    pub fn end_look_at_rest(&mut self) {
        self.gpus.gpus.pause();
    }

    /// Jobs that are over and whose energy is known since the last call.
    pub fn take_settled(&mut self) -> Vec<(JobKey, Charged)> {
        self.energy.take_settled()
    }

    /// Whether there is anything to tick for.
    pub fn is_at_work(&self) -> bool {
        self.schedule.watches_node || !self.jobs.is_empty() || self.energy.owes()
    }

    /// The sources that this machine does not have or does not show, and why.
    pub fn unavailable(&self) -> &[(&'static SourceSpec, Unavailable)] {
        self.runner.unavailable()
    }

    pub fn energy(&mut self) -> &mut NodeEnergy {
        &mut self.energy
    }

    pub fn gap_ms(&self) -> i64 {
        gap_ms(Duration::from_nanos(self.schedule.interval_ns as u64))
    }

    /// Ticks by another period from now on, again at multiples of it.
    pub fn set_interval(&mut self, interval: Duration) {
        self.set_cadence(Cadence::fixed(interval));
    }

    /// Samples jobs as often as this says from now on.
    pub fn set_cadence(&mut self, cadence: Cadence) {
        let together_ns = cadence.together_ns();
        let longest = Duration::from_nanos(together_ns as u64);
        self.schedule.set_cadence(cadence);
        self.jobs.values_mut().for_each(|job| job.age.pacing.hurry());
        self.gpus.set_tick(together_ns);
        self.energy.set_interval(longest);
        self.runner.set_interval(longest);
        let gap_ms = self.gap_ms();
        self.jobs.values_mut().for_each(|job| job.running.widen_gap(gap_ms));
    }

    /// Takes up what a file says that was read again, other than period and events.
    pub fn reconfigure(&mut self, before: &Config, config: &Config) {
        self.membership.reconfigure(config);
        self.rows.keep_details = config.storage.job_details;
        self.machine.intervals = config.node;
        self.gpus.reconfigure(config, self.schedule.cadence.together_ns());
        if before.energy != config.energy {
            self.energy.set_rules(&config.energy);
        }
        let options = Options { node: true, ..options(config, Duration::ZERO) };
        let changed: Vec<&str> = before.sources.changed(&config.sources).collect();
        for name in &changed {
            self.runner.reopen(name, &self.host, &options);
        }
        self.departures.set_off(&self.host, exits::is_off(&options));
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
    pub fn wait(&mut self, timeout: Duration) {
        self.runner.wait(timeout);
    }

    pub fn take_new_errors(&mut self) -> Vec<NewError> {
        self.runner.take_new_errors()
    }
}

/// What the configuration says about sources.
pub fn options(config: &Config, timeout: Duration) -> Options {
    let mut events = config.perf.events.clone();
    let for_energy = config.energy.weight.event().filter(|&event| !events.iter().any(|name| name == event));
    events.extend(for_energy.map(str::to_owned));
    Options {
        nvml_library: config.gpu.nvml.clone(),
        events,
        timeout,
        interval: config.sampling.shortest(),
        ..config.sources.options()
    }
}

#[cfg(test)]
mod ladder_tests;
#[cfg(test)]
mod tests;
