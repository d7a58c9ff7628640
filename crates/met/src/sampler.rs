//! Samples jobs: which processes they have, what these show, what that means for each job.
//!
//! Used by the daemon for every job of a node, by `met time` for its own one, and once at the end of a
//! job for its counters. Samples give the course over time and never make a total that a counter has.

mod now;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use met_core::attribute::{Fold, JobMap};
use met_core::cards::{CardNow, Cards, Rows};
use met_core::course::Course;
use met_core::ended::{Gone, INHERITED, OWN};
use met_core::gpu::card::{self, label};
use met_core::gpu_use;
use met_core::job::QualityKind::{Estimated, LowerBound, Measured, Sampled as SampledKind};
use met_core::job::{
    CgroupPaths, Emission, EventCount, GpuUse, JobKey, Local, Origin, ProcessId, QualityKind, Record, Totals,
};
use met_core::job_table::*;
use met_core::node::{Freshness, NodeRow, NodeRows};
use met_core::{Batch, JOB, Kind, MISSING, Subject, Table, gpu};
use met_host::cgroup::CgroupDirs;
use met_host::{CgroupTarget, Host, Targets, TaskRole, TaskTarget, clock};
use met_jobs::{Members, enclosure};
use met_sources::{NewError, Options, Runner, SOURCES, SourceSpec, TickInfo, Unavailable, perf, self_cost};
use met_store::Device;

use crate::config::{Config, Weight};
use crate::departures::{Beginning, Departures, OwnFigures, Watch};
use crate::node_energy::{self, Charged, NodeEnergy};
use crate::node_series::{NodeCourse, NodeSeries};
use crate::processes;
use crate::running::Running;
pub use now::NodeNow;

/// A job younger than this is read more often than the period: a short one would not be seen at all.
const EARLY_MS: [i64; 6] = [20, 50, 100, 200, 400, 800];
/// Beyond so many jobs the extra readings would cost more than they tell.
const EARLY_JOBS_MAX: usize = 16;
/// What is dear to read is read at every tenth tick.
const SLOW_EVERY: u64 = 10;
/// So few processes and cgroups may be read in full each time: a quarter of a millisecond.
const FEW_TARGETS: usize = 32;
/// What counts for a job that is read once; its cards are followed or not known.
const COUNTERS: &[&str] = &["cgroup", "process"];
/// For one job in the foreground: its own figures and the meters of the machine.
const WITH_ENERGY: &[&str] =
    &["cgroup", "process", "nvidia", "drm", "node", "rapl", "cray", "ipmi", "redfish", "hwmon"];
const OF_NETWORK: [usize; 2] = [NETWORK_RECEIVED, NETWORK_SENT];
/// Kernel memory and the code of a process are in the peak and not in what is needed.
const UNEXPLAINED_BYTES: i64 = 12 << 20;
/// Ticks may be late by as much before the cards' figures have a gap.
const CARD_GAP_NS: i64 = 2_000_000_000;
/// A card is sampled no more often than this for its own course.
const CARD_SAMPLES_MS: i64 = 900;
/// Bounds what a daemon that cannot write holds of each card: more than an hour.
const CARD_SAMPLES_MAX: usize = 4096;
/// More names tell no more.
const NAMED_MAX: usize = 5;
/// A peak of cores is one that lasted.
const PEAK_SPAN_MS: i64 = 500;

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

struct Tracked {
    key: JobKey,
    profile: Profile,
    born_ns: i64,
    early_taken: usize,
    /// Unix time minus boot time when the job began: its samples stay in line if the clock is set.
    unix_offset_ns: i64,
    course: Course,
    running: Running,
    own: OwnFigures,
    watch: Watch,
    /// What was counted in directories that are gone, while it has others.
    left: Vec<i64>,
    /// The highest reading of each counter.
    floors: Vec<i64>,
    /// Its first process, until its environment has been read for the last time.
    main: Option<ProcessId>,
    /// Energy of cards, and its idle part, that an earlier daemon saw.
    gpu_before_uj: (i64, i64),
    /// What the job had done with its cards when an earlier daemon last wrote it down.
    gpus_before: Vec<GpuUse>,
    /// At its end none of its processes was left.
    all_ended: bool,
    /// Counted in its cgroup, where no supervisor counts.
    events: Vec<EventCount>,
}

impl Tracked {
    /// Of the energy that an earlier daemon saw, what is in its samples and not in what it wrote of the cards.
    fn gpu_untold_uj(&self) -> (i64, i64) {
        let told = |energy_uj: fn(&GpuUse) -> i64| self.gpus_before.iter().map(energy_uj).sum::<i64>();
        let (all_uj, idle_uj) = self.gpu_before_uj;
        ((all_uj - told(GpuUse::energy_uj)).max(0), (idle_uj - told(|gpu| gpu.energy_idle_uj)).max(0))
    }

    /// Adds what no living process shows.
    fn add_gone(&self, gone: Option<&Gone>, cells: &mut [i64]) {
        let nothing = Gone::default();
        let gone = gone.unwrap_or(&nothing);
        for (index, &column) in INHERITED.iter().enumerate() {
            let by_cgroup = self.profile.counts_cpu && matches!(column, CPU | CPU_USER | CPU_SYSTEM);
            if cells[column] != MISSING && !by_cgroup {
                cells[column] = cells[column].saturating_add(gone.inherited[index]);
            }
        }
        for (index, &column) in OWN.iter().enumerate() {
            if cells[column] != MISSING {
                cells[column] = self.own.total(index).saturating_add(gone.own[index]);
            }
        }
        cells[PROCESSES] = cells[PROCESSES].saturating_add(gone.unseen as i64);
    }

    /// Keeps what was counted in a directory that is gone; `cpu_ns` is better than its last reading.
    fn leave(&mut self, table: &'static Table, cells: &[i64], cpu_ns: Option<i64>) {
        for (column, &cell) in table.columns.iter().zip(cells) {
            let to = column.feeds.and_then(|feeds| JOB.column(feeds));
            let Some(to) = to.filter(|_| column.kind == Kind::Counter) else { continue };
            let cell = cpu_ns.filter(|_| to == CPU).unwrap_or(cell);
            if cell != MISSING {
                self.left[to] = self.left[to].saturating_add(cell);
            }
        }
    }

    fn add_left(&self, cells: &mut [i64]) {
        for (cell, left) in cells.iter_mut().zip(&self.left).filter(|(_, left)| **left > 0) {
            *cell = if *cell == MISSING { *left } else { cell.saturating_add(*left) };
        }
    }

    /// A child that ends between the listing and the reading is missing from one sum and back, by its
    /// parent, in the next: not a restart, and not a peak.
    fn hold_counters(&mut self, cells: &mut [i64]) {
        for ((floor, cell), column) in self.floors.iter_mut().zip(cells).zip(JOB.columns) {
            if *cell != MISSING && column.kind == Kind::Counter {
                *floor = (*floor).max(*cell);
                *cell = *floor;
            }
        }
    }
}

/// Which events are counted in which jobs.
#[derive(Clone, Debug, Default)]
pub struct EventsAsked {
    for_all: Option<Arc<[String]>>,
    /// Since when, where this was asked for while jobs ran: their supervisors do not know of it.
    since_ns: Option<i64>,
    of_jobs: Vec<(JobKey, Arc<[String]>)>,
}

impl EventsAsked {
    pub fn of_file(events: &[String]) -> EventsAsked {
        EventsAsked { for_all: shared(events), ..EventsAsked::default() }
    }

    /// Of all jobs, also of those that run since before `since_ns` with a supervisor.
    pub fn live(events: &[String], since_ns: i64) -> EventsAsked {
        EventsAsked { since_ns: Some(since_ns), ..EventsAsked::of_file(events) }
    }

    /// In this job these are counted instead.
    pub fn instead(&mut self, key: JobKey, events: &[String]) {
        self.of_jobs.push((key, events.into()));
    }

    fn of_job(&self, key: &JobKey, born_ns: i64, has_supervisor: bool) -> Option<Arc<[String]>> {
        if let Some((_, events)) = self.of_jobs.iter().rev().find(|(known, _)| known == key) {
            return Some(events.clone());
        }
        let by_supervisor = has_supervisor && self.since_ns.is_none_or(|since_ns| born_ns > since_ns);
        self.for_all.clone().filter(|_| !by_supervisor)
    }
}

/// The events that are asked for, and one that is needed besides.
fn with(asked: Option<Arc<[String]>>, event: &str) -> Arc<[String]> {
    let asked = asked.unwrap_or_default();
    match asked.iter().any(|name| name == event) {
        true => asked,
        false => asked.iter().cloned().chain([event.to_owned()]).collect(),
    }
}

fn shared(events: &[String]) -> Option<Arc<[String]>> {
    (!events.is_empty()).then(|| events.into())
}

/// What decides how good a job's samples are.
#[derive(Clone, Copy)]
struct Profile {
    /// Counters have a history before the job began.
    attached: bool,
    counts_cpu: bool,
    counts_memory: bool,
    /// A supervisor reaps its processes.
    kept: bool,
}

impl Profile {
    fn of(local: &Local) -> Profile {
        let has_controller = |unified: &PathBuf| unified.join("memory.stat").exists();
        Profile {
            attached: local.origin == Origin::Attach,
            counts_cpu: enclosure::counts_cpu(&local.cgroup),
            counts_memory: local.cgroup.memory.is_some()
                || local.cgroup.unified.as_ref().is_some_and(has_controller),
            kept: matches!(local.origin, Origin::Run | Origin::Time),
        }
    }
}

/// What is known of a job at its end, beside its samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    pub cpu_ns: Option<i64>,
    pub uid: Option<u32>,
}

impl Known {
    pub fn of(record: &Record) -> Known {
        Known { cpu_ns: record.totals.get(CPU), uid: record.uid }
    }
}

/// What samples know of a job at its end.
pub struct Sampled {
    /// Samples that were not taken out before.
    pub course: Course,
    totals: Totals,
    gpus: Vec<GpuUse>,
    events: Vec<EventCount>,
    emission: Option<Emission>,
    attached: bool,
    ends: Ends,
    /// The longest time between two samples that was no gap while the job ran.
    gap_ms: i64,
}

/// How well the ends of a job's processes are known.
#[derive(Clone, Copy, Default)]
struct Ends {
    /// All of them were heard, from the first process on.
    complete: bool,
    cpu_doubt_ns: i64,
    lacks_delays: bool,
    /// Of a supervised job: what processes did whom nobody waited for.
    unwaited: Option<[i64; INHERITED.len()]>,
}

impl Ends {
    /// How good a counter is that samples and exit records make together.
    fn quality(self, column: usize, value: i64) -> QualityKind {
        let counted = INHERITED.contains(&column) || OWN.contains(&column);
        let is_cpu = matches!(column, CPU | CPU_USER | CPU_SYSTEM);
        // Of each thread up to a kilobyte of calls is not told; storage is written by whole pages.
        let rounded = matches!(column, READ_CALL | WRITE_CALL);
        let unknown_wait = self.lacks_delays && matches!(column, DELAY_IO | DELAY_MEMORY);
        let doubtful = rounded || unknown_wait || is_cpu && self.cpu_doubt_ns > value / 50;
        if self.complete && counted && !doubtful { Measured } else { LowerBound }
    }

    /// A supervisor counts whom it and its descendants waited for; the others are in exit records alone.
    fn add_unwaited(self, totals: &mut Totals) {
        let Some(unwaited) = self.unwaited else { return };
        for (&column, more) in INHERITED.iter().zip(unwaited).filter(|&(_, more)| more > 0) {
            let Some(figure) = totals.figure(column).cloned() else { continue };
            // A cgroup counts everybody's CPU time, and so does a clock even where it was disturbed.
            let by_clock = figure.kind != LowerBound || figure.source.starts_with("perf");
            if matches!(column, CPU | CPU_USER | CPU_SYSTEM) && by_clock {
                continue;
            }
            let value = figure.value.saturating_add(more);
            let source = format!("{} and taskstats", figure.source);
            totals.set(column, value, self.quality(column, value), source);
        }
    }
}

impl Default for Sampled {
    fn default() -> Sampled {
        Sampled {
            course: Course::new(&JOB),
            totals: Totals::default(),
            gpus: Vec::new(),
            emission: None,
            events: Vec::new(),
            attached: false,
            ends: Ends::default(),
            gap_ms: 0,
        }
    }
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
            members: Members::default(),
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
                profile: Profile::of(local),
                born_ns: now_ns,
                early_taken: 0,
                unix_offset_ns: clock::realtime_ns() - now_ns,
                course: Course::new(&JOB),
                running: Running::new(self.gap_ms(), PEAK_SPAN_MS),
                own: OwnFigures::default(),
                watch: self.departures.open(&self.host, slot, beginning, is_unused),
                left: vec![0; JOB.columns.len()],
                floors: vec![MISSING; JOB.columns.len()],
                main: local.main,
                gpu_before_uj: (0, 0),
                gpus_before: record.gpus.clone(),
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
        self.energy.recall(slot, &job.floors);
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
        self.members.remove(slot);
        let cards_uj = self.cards.own_uj(slot);
        let gpus = gpu_use::together(&job.gpus_before, self.cards.leave(slot));
        let mut totals = totals(&job.running, job.profile);
        set_gpu_energy(&mut totals, &gpus, job.gpu_untold_uj());
        let charged = self.energy.charged(slot);
        let emission = charged.and_then(Charged::emission);
        charged.into_iter().for_each(|charged| charged.put(&mut totals));
        let cpu_ns = known.cpu_ns.filter(|_| !job.profile.attached);
        self.energy.leave(slot, cpu_ns, cards_uj, clock::boottime_ns());
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
        Some(Sampled { totals, gpus, events, emission, course, attached, ends, gap_ms })
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

    /// Takes in what its processes did since the last tick and left to nobody who is read.
    fn look_a_last_time(&mut self, slot: u32) {
        if !self.departures.is_listening() {
            return;
        }
        self.departures.hear(&self.targets, &self.map);
        self.follow_departures(Some(slot));
        let kept = self.jobs.get(&slot).is_some_and(|job| job.profile.kept);
        // With a supervisor, it has the totals of all that was reaped.
        let all_ended = kept || {
            let _ = self.members.refresh(&self.host);
            self.refreshed_ns = i64::MIN;
            self.members.processes_of(slot).next().is_none()
        };
        let (Some(job), Some(gone)) = (self.jobs.get_mut(&slot), self.departures.gone(slot)) else { return };
        job.all_ended = all_ended;
        let mut cells = vec![MISSING; JOB.columns.len()];
        let delays = self.departures.accounts_delays();
        for (index, &column) in OWN.iter().enumerate() {
            if delays || !matches!(column, DELAY_IO | DELAY_MEMORY) {
                cells[column] = job.own.total(index).saturating_add(gone.own[index]);
            }
        }
        for (index, &column) in INHERITED.iter().enumerate().filter(|_| all_ended && !kept) {
            if !(job.profile.counts_cpu && matches!(column, CPU | CPU_USER | CPU_SYSTEM)) {
                cells[column] = gone.inherited[index];
            }
        }
        cells[PROCESSES] = self.members.processes_seen(slot) as i64 + gone.unseen as i64;
        job.hold_counters(&mut cells);
        let time_ms = (clock::boottime_ns() + job.unix_offset_ns) / 1_000_000;
        job.running.push(time_ms, &cells);
        // The end of a supervised job's course is what its supervisor counted.
        if !kept {
            job.course.push(time_ms, &cells);
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

    /// Counts other events from now on. `options` has all their names. What cannot be counted is told.
    pub fn set_events(&mut self, asked: EventsAsked, options: &Options) -> Option<String> {
        self.asked = asked;
        if self.refreshed_ns == i64::MIN {
            self.refresh_members(clock::boottime_ns());
        }
        if options.events.is_empty() {
            self.ask_for_events();
            return None;
        }
        if !self.runner.is_open("perf") {
            self.runner.reopen("perf", &self.host, options);
        }
        self.ask_for_events();
        self.runner.read_again("perf", &self.targets, &TickInfo::default());
        self.follow_events();
        let unavailable = self.runner.unavailable().iter().find(|(spec, _)| spec.name == "perf");
        let shortfall = self.runner.shortfalls().find(|(name, _)| *name == "perf");
        let reason = unavailable.map(|(_, reason)| reason.to_string());
        reason.or(shortfall.map(|(_, short)| short.detail)).or_else(|| self.without_cgroup())
    }

    /// Jobs in which events cannot be counted from now on: they are their processes, and these are counted by a
    /// supervisor that knew of it when the job began.
    fn without_cgroup(&self) -> Option<String> {
        let counted: HashSet<u32> = (self.targets.cgroups.iter())
            .filter_map(|target| self.map.owner(Subject::Cgroup(target.dirs.id)))
            .collect();
        let is_left_out = |(slot, job): &(&u32, &Tracked)| {
            self.asked.of_job(&job.key, job.born_ns, job.profile.kept).is_some() && !counted.contains(slot)
        };
        let mut names: Vec<String> = (self.jobs.iter())
            .filter(is_left_out)
            .map(|(_, job)| format!("{}:{}", job.key.manager, job.key.id))
            .collect();
        names.sort();
        let more = names.len().saturating_sub(NAMED_MAX);
        names.truncate(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!names.is_empty()).then(|| {
            format!(
                "not counted in {}{more}: no cgroup to count in; perf.events counts jobs from their start",
                names.join(", ")
            )
        })
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
        for name in before.sources.changed(&config.sources) {
            self.runner.reopen(name, &self.host, &options);
        }
    }

    fn ask_for_events(&mut self) {
        for target in &mut self.targets.cgroups {
            let slot = self.map.owner(Subject::Cgroup(target.dirs.id));
            let job = slot.and_then(|slot| self.jobs.get(&slot));
            let asked = job.and_then(|job| self.asked.of_job(&job.key, job.born_ns, target.counted));
            target.events = match self.weight.event().filter(|_| job.is_some()) {
                Some(event) => Some(with(asked, event)),
                None => asked,
            };
        }
    }

    /// How long one may sleep before the next tick.
    pub fn until_next_tick(&self) -> Duration {
        let now_ns = clock::boottime_ns();
        Duration::from_nanos((self.due_ns() - now_ns).max(0) as u64)
    }

    pub fn tick_if_due(&mut self) -> bool {
        let now_ns = clock::boottime_ns();
        if now_ns < self.due_ns() {
            return false;
        }
        let regular = now_ns >= self.next_tick_ns;
        self.tick(now_ns, regular);
        if regular {
            self.next_tick_ns = next_boundary(clock::boottime_ns(), self.interval_ns);
        }
        true
    }

    fn due_ns(&self) -> i64 {
        if self.jobs.len() > EARLY_JOBS_MAX {
            return self.next_tick_ns;
        }
        let early = |job: &Tracked| EARLY_MS.get(job.early_taken).map(|ms| job.born_ns + ms * 1_000_000);
        self.jobs.values().filter_map(early).min().map_or(self.next_tick_ns, |due| due.min(self.next_tick_ns))
    }

    fn tick(&mut self, now_ns: i64, regular: bool) {
        let due = regular && self.ticks.is_multiple_of(SLOW_EVERY);
        let cgroups_only = !due && self.cgroups_suffice(now_ns);
        self.departures.hear(&self.targets, &self.map);
        if now_ns - self.membership_every_ns >= self.refreshed_ns && !cgroups_only {
            self.refresh_members(now_ns);
        }
        self.follow_departures(None);
        let slow = due || regular && self.target_count() <= FEW_TARGETS;
        self.ticks += u64::from(regular);
        self.runner.read(&self.targets, &TickInfo { slow, cgroups_only });
        if self.meets_strangers() && self.refreshed_ns < now_ns {
            self.refresh_members(now_ns);
        }
        self.fold.jobs(self.runner.batches(), &self.map, &mut self.out);
        self.follow_own();
        self.follow_events();
        self.follow_cards(now_ns);
        self.follow_node(now_ns);
        self.energy.follow(now_ns, self.runner.node(), &self.out, &self.cards, &self.map);
        for (row, cells) in self.out.rows_mut() {
            let Subject::Job(slot) = row.owner else { continue };
            let Some(job) = self.jobs.get_mut(&slot) else { continue };
            while EARLY_MS.get(job.early_taken).is_some_and(|ms| job.born_ns + ms * 1_000_000 <= now_ns) {
                job.early_taken += 1;
            }
            cells[PROCESSES] = self.members.processes_seen(slot) as i64;
            job.add_gone(self.departures.gone(slot), cells);
            job.add_left(cells);
            // A process holds some memory: the kernel counts in batches, and has not counted it yet.
            if cells[MEMORY_NEEDED] == 0 {
                cells[MEMORY_NEEDED] = MISSING;
            }
            self.cards.fill(slot, cells);
            for (column, before_uj) in
                [(GPU_ENERGY, job.gpu_before_uj.0), (GPU_ENERGY_IDLE, job.gpu_before_uj.1)]
            {
                cells[column] = if cells[column] == MISSING { MISSING } else { cells[column] + before_uj };
            }
            self.energy.fill(slot, cells);
            job.hold_counters(cells);
            let time_ms = (now_ns + job.unix_offset_ns) / 1_000_000;
            job.course.push(time_ms, cells);
            job.running.push(time_ms, cells);
        }
    }

    fn refresh_members(&mut self, now_ns: i64) {
        // A /proc that cannot be listed leaves the members as they were.
        let _ = self.members.refresh(&self.host);
        self.refreshed_ns = now_ns;
        self.targets.clear();
        self.map.clear();
        self.members.fill(&mut self.targets, &mut self.map);
        self.ask_for_events();
    }

    /// Whether a living process is on a card that was not there before and is nobody's. On a busy node it may
    /// be a job's, whose processes were last listed some ticks ago.
    fn meets_strangers(&mut self) -> bool {
        let of_cards = |batch: &&Batch| std::ptr::eq(batch.table, &gpu::process::TABLE);
        let mut strangers = HashSet::new();
        for (row, _) in self.runner.batches().iter().filter(of_cards).flat_map(Batch::rows) {
            let lives = matches!(row.owner, Subject::Task { start_ticks, .. } if start_ticks != 0);
            if lives && self.map.owner(row.owner).is_none() {
                strangers.insert(row.owner);
            }
        }
        let has_new = strangers.iter().any(|stranger| !self.card_strangers.contains(stranger));
        self.card_strangers = strangers;
        has_new
    }

    fn target_count(&self) -> usize {
        self.targets.tasks.len() + self.targets.cgroups.len()
    }

    /// Between slow ticks a CPU file and a memory file of each job tell enough, unless processes are all
    /// there is of a job, or it is new, or they are few.
    fn cgroups_suffice(&self, now_ns: i64) -> bool {
        let is_old = |job: &Tracked| now_ns - job.born_ns > self.interval_ns * SLOW_EVERY as i64;
        let suffices = |job: &Tracked| job.profile.counts_cpu && is_old(job);
        self.target_count() > FEW_TARGETS && self.jobs.values().all(suffices)
    }

    /// Reads into the books of each job what ends with its processes.
    fn follow_own(&mut self) {
        for batch in self.runner.batches() {
            for (index, &column) in OWN.iter().enumerate() {
                let feeds = Some(JOB.columns[column].name);
                let fed = |(_, from): &(usize, &met_core::Column)| from.feeds == feeds;
                let sources: Vec<usize> =
                    batch.table.columns.iter().enumerate().filter(fed).map(|(from, _)| from).collect();
                if sources.is_empty() {
                    continue;
                }
                for (row, cells) in batch.rows() {
                    let Subject::Task { pid, start_ticks } = row.owner else { continue };
                    let known = sources.iter().map(|&from| cells[from]).filter(|&cell| cell != MISSING);
                    let Some(sum) = known.reduce(i64::saturating_add) else { continue };
                    for slot in self.map.owners(row.owner) {
                        if let Some(job) = self.jobs.get_mut(&slot) {
                            job.own.see(pid, start_ticks, index, sum);
                        }
                    }
                }
            }
        }
        let (map, told) = (&self.map, self.departures.is_listening());
        for job in self.jobs.values_mut() {
            job.own.depart(told, |subject| map.owner(subject).is_some());
        }
    }

    fn follow_events(&mut self) {
        let mut fresh: Vec<(u32, EventCount)> = Vec::new();
        for (batches, labels) in self.runner.labelled() {
            let [batch] = batches else { continue };
            if !std::ptr::eq(batch.table, &perf::TABLE) {
                continue;
            }
            for (row, cells) in batch.rows() {
                let label = labels.get(row.part as usize).and_then(|label| label.first());
                let (Some(slot), Some(label)) = (self.map.owner(row.owner), label) else { continue };
                let Some(count) = perf::count_of(label, cells) else { continue };
                // Several directories are of one job where several of its nodes are this machine.
                match fresh.iter_mut().find(|(of, event)| *of == slot && event.name == count.name) {
                    Some((_, event)) => event.count = event.count.saturating_add(count.count),
                    None => fresh.push((slot, count)),
                }
            }
        }
        for (slot, count) in fresh {
            self.energy.count(slot, &count.name, count.count);
            let Some(job) = self.jobs.get_mut(&slot) else { continue };
            match job.events.iter_mut().find(|event| event.name == count.name) {
                Some(known) => *known = count,
                None => job.events.push(count),
            }
        }
    }

    /// Enters the ends that were heard of; `leaving` is a job that is not read any more.
    fn follow_departures(&mut self, leaving: Option<u32>) {
        let Sampler { departures, host, targets, map, jobs, .. } = self;
        departures.enter(host, targets, map, leaving, |slot, exit| {
            for slot in std::iter::successors(Some(slot), |&inner| map.outer(inner)) {
                if let Some(job) = jobs.get_mut(&slot) {
                    job.own.end(exit.pid);
                }
            }
        });
    }

    fn follow_cards(&mut self, now_ns: i64) {
        let mut rows = Vec::new();
        for (batches, labels) in self.runner.labelled() {
            if let [cards, processes] = batches
                && std::ptr::eq(cards.table, &gpu::card::TABLE)
            {
                rows.push(Rows { cards, processes, labels });
            }
        }
        if rows.is_empty() {
            return;
        }
        for (&slot, job) in &mut self.jobs {
            // Between fork and exec a process still has its parent's environment, so a young job is asked again.
            if let Some(main) = job.main {
                let known = processes::holding(&self.host, main);
                if known.is_some() || job.early_taken == 0 {
                    self.cards.hold(slot, known);
                }
                if job.early_taken >= EARLY_MS.len() {
                    job.main = None;
                }
            }
        }
        let unix_offset_ns = clock::unix_offset_ns();
        self.cards.look(&rows, &self.map, now_ns, unix_offset_ns);
        self.keep_card_samples((now_ns + unix_offset_ns) / 1_000_000);
    }

    /// A card's own course is kept once, whoever uses it; what nobody holds, nobody asks for.
    fn keep_card_samples(&mut self, time_ms: i64) {
        const KEPT: [usize; 5] =
            [card::UTILIZATION, card::MEMORY_USED, card::POWER, card::TEMPERATURE, card::CLOCK];
        for (labels, cells) in self.cards.in_use() {
            let uuid = &labels[label::UUID];
            if !self.card_courses.contains_key(uuid) {
                self.card_courses.insert(uuid.clone(), Course::new(&card::TABLE));
            }
            let Some(course) = self.card_courses.get_mut(uuid) else { continue };
            let mut kept = [MISSING; card::TABLE.columns.len()];
            for column in KEPT {
                kept[column] = cells[column];
            }
            // Early looks at a young job, and a clock that was set back, add nothing to a card's course.
            let last_ms = course.times_ms.last().copied().unwrap_or(i64::MIN);
            if course.len() < CARD_SAMPLES_MAX && time_ms.saturating_sub(CARD_SAMPLES_MS) >= last_ms {
                course.push(time_ms, &kept);
            }
        }
    }

    /// The samples of cards taken since the last call, by uuid.
    pub fn drain_cards(&mut self) -> Vec<(String, Course)> {
        self.card_courses.drain().filter(|(_, course)| !course.is_empty()).collect()
    }

    /// What is known of cards and outlives this process.
    pub fn devices(&self) -> Vec<Device> {
        let device = |(labels, idle_mw, lowest_mw): (&[String], Option<i64>, Option<i64>)| Device {
            uuid: labels[label::UUID].clone(),
            name: labels[label::NAME].clone(),
            vendor: labels[label::VENDOR].clone(),
            idle_mw,
            lowest_mw,
        };
        self.cards.idle_powers().map(device).collect()
    }

    /// Tells what an earlier process learned about cards.
    pub fn recall_devices(&mut self, devices: Vec<Device>) {
        for device in devices {
            self.cards.recall_idle(device.uuid, device.idle_mw, device.lowest_mw);
        }
    }

    /// Whether the course of the machine is kept from now on.
    pub fn keep_node(&mut self, keep: bool) {
        self.node_series =
            if keep { self.node_series.take().or_else(|| Some(NodeSeries::default())) } else { None };
    }

    /// The samples of the machine taken since the last call.
    pub fn drain_node(&mut self) -> Vec<NodeCourse> {
        self.node_series.as_mut().map(NodeSeries::drain).unwrap_or_default()
    }

    fn follow_node(&mut self, now_ns: i64) {
        let unix_offset_ns = clock::unix_offset_ns();
        for source in self.runner.node() {
            // What a tick reads is as old as the last tick, however short its own period.
            let period_ns = source.period_ns.max(self.interval_ns);
            for batch in source.batches {
                self.node.take(source.name, batch, source.labels, period_ns);
                if let Some(series) = &mut self.node_series {
                    series.take(batch, source.labels, unix_offset_ns);
                }
            }
        }
        self.node.forget_old(now_ns);
    }

    /// What is known of the machine at this moment, and how fresh it is.
    pub fn node_rows(&self) -> impl Iterator<Item = (&NodeRow, Freshness)> {
        self.node.known(clock::boottime_ns())
    }

    /// Waits for what slow sources are reading.
    pub fn wait(&mut self, patience: Duration) {
        self.runner.wait(patience);
    }

    /// Looks at once, whenever the next tick is.
    pub fn look(&mut self) {
        self.tick(clock::boottime_ns(), true);
    }

    /// What went wrong with cards that should be here.
    pub fn card_troubles(&mut self) -> Vec<String> {
        let of_cards = |name: &str| {
            let spec = SOURCES.iter().find(|spec| spec.name == name);
            spec.is_some_and(|spec| spec.tables.iter().any(|table| std::ptr::eq(*table, &card::TABLE)))
        };
        let errors = self.runner.take_new_errors().into_iter().filter(|error| of_cards(error.source));
        let mut troubles: Vec<String> = errors.map(|error| error.message).collect();
        // A machine without cards of some maker is no trouble.
        let silent = self.runner.unavailable().iter().map(|(_, why)| why.to_string());
        troubles.extend(silent.filter(|why| why.contains(met_sources::NO_ANSWER)));
        troubles
    }

    pub fn has_cards(&self) -> bool {
        self.runner
            .labelled()
            .any(|(batches, _)| batches.iter().any(|batch| std::ptr::eq(batch.table, &gpu::card::TABLE)))
    }

    /// The cards as last seen, with the jobs by their keys.
    pub fn cards(&self) -> Vec<(CardNow<'_>, HashMap<u32, JobKey>)> {
        let keys = |card: &CardNow<'_>| {
            let users = card.processes.iter().filter_map(|&(_, slot, _, _)| slot);
            let slots = users.chain(card.holders.iter().map(|&(slot, _)| slot));
            slots.filter_map(|slot| Some((slot, self.jobs.get(&slot)?.key.clone()))).collect()
        };
        self.cards.now().map(|card| (card.clone(), keys(&card))).collect()
    }

    /// The samples taken since the last call, by job.
    pub fn drain(&mut self) -> Vec<(JobKey, Course)> {
        let drained = self.jobs.values_mut().filter(|job| !job.course.is_empty());
        drained.map(|job| (job.key.clone(), std::mem::replace(&mut job.course, Course::new(&JOB)))).collect()
    }

    /// What is known of each job so far.
    pub fn live(&self) -> Vec<(JobKey, Live)> {
        let live = |(&slot, job): (&u32, &Tracked)| {
            let mut live = Live::of(&job.running, job.profile);
            live.gpus = gpu_use::together(&job.gpus_before, self.cards.uses_of(slot));
            live.events.clone_from(&job.events);
            set_gpu_energy(&mut live.totals, &live.gpus, job.gpu_untold_uj());
            if let Some(charged) = self.energy.charged(slot) {
                charged.put(&mut live.totals);
                live.emission = charged.emission();
            }
            (job.key.clone(), live)
        };
        self.jobs.iter().map(live).collect()
    }

    /// What each source has cost so far.
    pub fn costs(&self) -> Vec<Cost> {
        let period_of = |part: u32| {
            let name = SOURCES.get(part as usize).map(|spec| spec.name);
            self.runner.periods().find(|(spec, _)| Some(spec.name) == name).and_then(|(_, period)| period)
        };
        let cost = |(row, cells): (met_core::Row, &[i64])| {
            let source = SOURCES.get(row.part as usize).map_or("?", |spec| spec.name);
            // Exit records are heard by a thread of their own, and entered at ticks.
            let (heard_ns, entered_ns) = match source {
                "taskstats" => (self.departures.listening_cpu_ns(), self.departures.cpu_ns()),
                _ => (0, 0),
            };
            Cost {
                source,
                read_ns: cells[self_cost::READ_CPU] + entered_ns,
                background_ns: cells[self_cost::BACKGROUND_CPU] + heard_ns,
                errors: cells[self_cost::ERRORS],
                readings: cells[self_cost::READINGS],
                rows: cells[self_cost::ROWS],
                period: period_of(row.part),
            }
        };
        self.runner.costs().rows().map(cost).collect()
    }

    pub fn take_new_errors(&mut self) -> Vec<NewError> {
        self.runner.take_new_errors()
    }
}

/// The price of one source.
#[derive(Clone, Debug)]
pub struct Cost {
    pub source: &'static str,
    pub read_ns: i64,
    /// By its own threads.
    pub background_ns: i64,
    pub errors: i64,
    pub readings: i64,
    pub rows: i64,
    /// `None`: it is read at every tick.
    pub period: Option<Duration>,
}

/// Figures of a job that still runs.
#[derive(Clone, Debug, Default)]
pub struct Live {
    pub totals: Totals,
    pub summaries: met_core::job::Summaries,
    pub gpus: Vec<GpuUse>,
    pub events: Vec<EventCount>,
    pub emission: Option<Emission>,
}

impl Live {
    fn of(running: &Running, profile: Profile) -> Live {
        Live { totals: totals(running, profile), summaries: running.summaries(), ..Live::default() }
    }

    /// Of a job that nobody samples: what its counters and levels are at this moment.
    pub fn now(host: &Host, record: &Record) -> Live {
        let Some(local) = &record.local else { return Live::default() };
        let reading = Reading::of_job(host, record);
        let first_known =
            |(cgroup, processes): (&i64, &i64)| if *cgroup == MISSING { *processes } else { *cgroup };
        let cells: Vec<i64> = reading.cgroup.iter().zip(&reading.processes).map(first_known).collect();
        let mut running = Running::new(i64::MAX, PEAK_SPAN_MS);
        running.push(0, &cells);
        Live::of(&running, Profile::of(local))
    }
}

/// What samples say: counters as last read, levels at their highest.
fn totals(running: &Running, profile: Profile) -> Totals {
    let mut totals = Totals::default();
    let counters = if profile.counts_cpu { "cgroup" } else { "/proc" };
    for (column, value) in running.counters(profile.attached) {
        let source = match column {
            SWITCHES_VOLUNTARY | SWITCHES_INVOLUNTARY | DELAY_IO | DELAY_MEMORY => "taskstats",
            CPU | CPU_USER | CPU_SYSTEM => counters,
            _ if INHERITED.contains(&column) || OWN.contains(&column) => "/proc",
            _ => counters,
        };
        totals.set(column, value, SampledKind, source);
    }
    // A network may be older than the job: what it did since it was first looked at is the job's at least.
    for (column, value) in running.counters(true).filter(|(column, _)| OF_NETWORK.contains(column)) {
        totals.set(column, value, LowerBound, "/proc/PID/net/dev");
    }
    if let Some(peak) = running.maximum(MEMORY_NEEDED) {
        match profile.counts_memory {
            true => totals.set(MEMORY_NEEDED_PEAK, peak, SampledKind, "cgroup"),
            false => totals.set(MEMORY_NEEDED_PEAK, peak, Estimated, "/proc/PID/statm"),
        }
    }
    // The kernel's own peak is read at slow ticks only; meanwhile the samples may know better.
    if let Some(peak) = running.maximum(MEMORY_PEAK) {
        let peak = peak.max(running.maximum(MEMORY_NEEDED).unwrap_or(0));
        totals.set(MEMORY_PEAK, peak, SampledKind, "cgroup");
    }
    for (level, peak) in [(PROCESSES_RUNNING, PROCESSES_PEAK), (THREADS_RUNNING, THREADS_PEAK)] {
        if let Some(value) = running.maximum(level) {
            totals.set(peak, value, SampledKind, "/proc");
        }
    }
    if let Some(cores) = running.peak_cores() {
        totals.set(CORES_PEAK, (cores * 1000.0).round() as i64, SampledKind, counters);
    }
    if let Some(peak) = running.maximum(GPU_MEMORY) {
        totals.set(GPU_MEMORY_PEAK, peak, SampledKind, "cards");
    }
    totals
}

/// The ledger of the cards knows better than samples what a job is charged.
fn set_gpu_energy(totals: &mut Totals, gpus: &[GpuUse], before_uj: (i64, i64)) {
    totals.remove(GPU_ENERGY);
    totals.remove(GPU_ENERGY_IDLE);
    let Some(worst) = gpus.iter().filter_map(|gpu| gpu.energy_kind).max_by_key(|kind| rank(*kind)) else {
        // No card any more, for whatever reason: what it was charged before, it was charged.
        if before_uj.0 > 0 {
            totals.set(GPU_ENERGY, before_uj.0, LowerBound, "samples");
            totals.set(GPU_ENERGY_IDLE, before_uj.1, LowerBound, "samples");
        }
        return;
    };
    // Few texts: which part of it each card's counter stands for is said with the card.
    let says =
        |words: &str| gpus.iter().filter_map(|gpu| gpu.energy_source.as_deref()).any(|s| s.contains(words));
    let source = match (says("counter"), says("integral")) {
        (true, true) => "energy counter, integral of power",
        (true, false) => "energy counter",
        (false, _) => "integral of power",
    };
    let energy_uj: i64 = gpus.iter().map(GpuUse::energy_uj).sum();
    let idle_uj: i64 = gpus.iter().map(|gpu| gpu.energy_idle_uj).sum();
    totals.set(GPU_ENERGY, before_uj.0 + energy_uj, worst, source);
    totals.set(GPU_ENERGY_IDLE, before_uj.1 + idle_uj, worst, source);
}

fn rank(kind: QualityKind) -> Option<usize> {
    QualityKind::ALL.iter().position(|&known| known == kind)
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

impl Sampled {
    /// Of a job that is gone, by what was stored of its course.
    pub fn of_course(course: &Course, record: &Record) -> Sampled {
        let Some(local) = &record.local else { return Sampled::default() };
        let mut running = Running::new(i64::MAX, PEAK_SPAN_MS);
        let mut cells = vec![MISSING; JOB.columns.len()];
        for (index, &time_ms) in course.times_ms.iter().enumerate() {
            for (cell, column) in cells.iter_mut().zip(&course.columns) {
                *cell = column[index];
            }
            running.push(time_ms, &cells);
        }
        Sampled { totals: totals(&running, Profile::of(local)), ..Sampled::default() }
    }

    /// Adds the totals that are not known otherwise. Of a counter the last sample is not its end.
    pub fn fill(&self, record: &mut Record) {
        for (column, figure) in self.totals.iter() {
            if record.totals.get(column).is_none() {
                let counter = JOB.columns[column].kind == Kind::Counter;
                // Of cards nothing is left to be counted: what a job was charged when it left is all there is.
                let final_already =
                    matches!(column, GPU_ENERGY | GPU_ENERGY_IDLE) || node_energy::COLUMNS.contains(&column);
                // The last sample of a counter is not its end, unless the ends of its processes were heard.
                let kind = match counter && !final_already {
                    true => self.ends.quality(column, figure.value),
                    false => figure.kind,
                };
                let source = if kind == Measured { "taskstats".into() } else { figure.source.clone() };
                record.totals.set(column, figure.value, kind, source);
            }
        }
    }

    /// A sample may be later than the last reading of a job whose end nobody could wait for.
    fn raise_peaks(&self, record: &mut Record) {
        for column in [MEMORY_PEAK, OOM_KILLS] {
            if let (Some(known), Some(seen)) = (record.totals.get(column), self.totals.figure(column))
                && seen.value > known
            {
                record.totals.set(column, seen.value, seen.kind, seen.source.clone());
            }
        }
    }

    /// Ends the course with the counters as they were at the end of the job: they are exact, and the last
    /// slow tick may be long ago.
    pub fn close_course(&mut self, record: &Record) {
        let Some(end_ms) = record.end_ns.map(|end_ns| end_ns / 1_000_000) else { return };
        let never_sampled = self.totals.iter().next().is_none();
        if self.attached
            || never_sampled
            || self.course.times_ms.last().is_some_and(|&last_ms| last_ms >= end_ms)
        {
            return;
        }
        let mut cells = vec![MISSING; JOB.columns.len()];
        for (column, figure) in record.totals.iter() {
            if JOB.columns[column].kind == Kind::Counter && column != WALL && column != PROCESSES {
                cells[column] = figure.value;
            }
        }
        self.course.push(end_ms, &cells);
    }

    /// Adds to the record of a job that is over what only samples know. `course` is the whole of it.
    pub fn complete(&self, record: &mut Record, course: &Course, interval: Duration) {
        if !course.is_empty() {
            record.summaries = course.summaries(gap_ms(interval).max(self.gap_ms));
        }
        let seen = self.totals.get(PROCESSES).max(record.totals.get(PROCESSES));
        self.fill(record);
        self.raise_peaks(record);
        self.ends.add_unwaited(&mut record.totals);
        // What a supervisor counts, it counts from the beginning.
        for event in &self.events {
            if !record.events.iter().any(|known| known.name == event.name) {
                record.events.push(event.clone());
            }
        }
        if !self.gpus.is_empty() {
            record.gpus = self.gpus.clone();
        }
        record.emission = record.emission.take().or_else(|| self.emission.clone());
        if let Some(seen) = seen {
            record.totals.set(PROCESSES, seen, LowerBound, "/proc");
        }
        doubt_needed_memory(&mut record.totals, course);
        if let (Some(cpu_ns), Some(wall_ns)) = (record.totals.get(CPU), record.totals.get(WALL))
            && wall_ns > 0
        {
            // Spans do not cover the job from end to end, and a short one has none: its mean is a peak, too.
            let average = (cpu_ns as f64 / wall_ns as f64 * 1000.0).round() as i64;
            if record.totals.get(CORES_PEAK).is_none_or(|peak| peak < average) {
                record.totals.set(CORES_PEAK, average, LowerBound, "cpu / wall");
            }
        }
    }
}

/// Needed memory is only sampled. Where the kernel saw clearly more held at once than any sample explains,
/// the highest came between two of them.
fn doubt_needed_memory(totals: &mut Totals, course: &Course) {
    let cache = course.maximum(MEMORY_CACHE).unwrap_or(0);
    let (Some(peak), Some(needed)) = (totals.get(MEMORY_PEAK), totals.figure(MEMORY_NEEDED_PEAK).cloned())
    else {
        return;
    };
    if peak > needed.value + cache + peak / 10 + UNEXPLAINED_BYTES {
        totals.set(MEMORY_NEEDED_PEAK, needed.value, LowerBound, needed.source);
    }
}

/// The first multiple of the interval after `now_ns`: ticks do not drift, and nodes tick together.
fn next_boundary(now_ns: i64, interval_ns: i64) -> i64 {
    (now_ns / interval_ns + 1) * interval_ns
}

/// The counters of one job, read once. What is not known is missing.
pub struct Reading {
    pub cgroup: Vec<i64>,
    pub processes: Vec<i64>,
}

impl Reading {
    /// Of a job with living processes.
    pub fn of_job(host: &Host, record: &Record) -> Reading {
        let Some(spec) = processes::spec(host, record, 0) else { return Reading::nothing() };
        let mut members = Members::default();
        members.add(spec);
        if members.refresh(host).is_err() {
            return Reading::nothing();
        }
        let (mut targets, mut map) = (Targets::default(), JobMap::default());
        members.fill(&mut targets, &mut map);
        Reading::of_targets(host, &targets, &map)
    }

    /// Of a job whose last process was reaped: its cgroup and its supervisor hold all there is.
    pub fn after_end(host: &Host, record: &Record) -> Reading {
        let Some(spec) = processes::spec(host, record, 0) else { return Reading::nothing() };
        let (mut targets, mut map) = (Targets::default(), JobMap::default());
        map.add_job(spec.slot, None);
        if let Ok(dirs) = CgroupDirs::open(host, &spec.cgroup) {
            map.assign(Subject::Cgroup(dirs.id), spec.slot);
            let dirs = Arc::new(dirs);
            targets.cgroups.push(CgroupTarget {
                dirs,
                counted: true,
                counted_in: None,
                events: None,
                young: true,
            });
        }
        if let Some(ProcessId { pid, start_ticks }) = spec.keeper {
            map.assign(Subject::Task { pid, start_ticks }, spec.slot);
            targets.tasks.push(TaskTarget { pid, start_ticks, role: TaskRole::Keeper, young: true });
        }
        Reading::of_targets(host, &targets, &map)
    }

    fn of_targets(host: &Host, targets: &Targets, map: &JobMap) -> Reading {
        let mut runner = Runner::open(host, &Options { only: Some(COUNTERS), ..Options::default() });
        runner.read(targets, &TickInfo { slow: true, cgroups_only: false });
        let mut reading = Reading::nothing();
        let mut out = Batch::new(&JOB);
        for batch in runner.batches() {
            Fold::new().jobs(std::slice::from_ref(batch), map, &mut out);
            let Some((_, cells)) = out.rows().next() else { continue };
            match batch.table.name {
                "cgroup" => reading.cgroup = cells.to_vec(),
                _ => reading.processes = cells.to_vec(),
            }
        }
        reading
    }

    fn nothing() -> Reading {
        let cells = vec![MISSING; JOB.columns.len()];
        Reading { cgroup: cells.clone(), processes: cells }
    }
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
