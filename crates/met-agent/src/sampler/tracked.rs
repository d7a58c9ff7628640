//! A job while it is sampled.

use std::sync::Arc;

use met_core::belief::set_gpu_totals;
use met_core::event;
use met_core::gpus::Gpus;
use met_core::job::{GpuUse, JobKey, Local, ProcessId, QualityKind, Record};
use met_core::job_processes::LargestProcesses;
use met_core::job_table::*;
use met_core::process_exits::{Gone, INHERITED, OWN};
use met_core::running::Running;
use met_core::sampled::Profile;
use met_core::series::{PackedSamples, Series};
use met_core::watched::Watched;
use met_core::{Batch, FastMap, JOB, Kind, MISSING, Subject, gpu_use};
use met_host::Look;
use met_query::hidden_io;
use met_query::live::{Live, PEAK_SPAN_MS};

use super::containers::Containers;
use super::details::Details;
use super::events::JobEvents;
use super::idling::Idle;
use super::look_gap_ms;
use super::schedule::Age;
use crate::exits::{OwnFigures, Watch};
use crate::node_energy::NodeEnergy;

/// Samples of a job that wait to be taken out: a day at ten seconds.
const SAMPLES_MAX: usize = 8640;

/// The jobs that are sampled, by slot. Boxed: a map keeps room for twice as many as there are.
pub(super) type Jobs = FastMap<u32, Box<Tracked>>;

pub(super) struct Tracked {
    pub(super) key: JobKey,
    pub(super) user: Option<Arc<str>>,
    pub(super) profile: Profile,
    pub(super) age: Age,
    /// Samples that were not taken out yet.
    pub(super) samples: PackedSamples,
    pub(super) running: Running,
    pub(super) counts: Counts,
    pub(super) containers: Containers,
    pub(super) earlier: Earlier,
    pub(super) watch: Watch,
    /// Its first process and since when that is known, until its environment has been read for the last time.
    pub(super) main: Option<(ProcessId, i64)>,
    pub(super) events: JobEvents,
}

/// A job's row with what was read of its living processes and its cgroups. Each step on the way to a sample takes the
/// row of the step before, so that no other order is possible.
pub(super) struct AsRead<'r>(pub(super) &'r mut [i64]);

/// With what those did that are gone: the counters are complete.
pub(super) struct Counted<'r>(&'r mut [i64]);

/// With complete levels, and without what cannot be known.
pub(super) struct Levelled<'r>(&'r mut [i64]);

impl<'r> Levelled<'r> {
    pub(super) fn into_cells(self) -> &'r mut [i64] {
        self.0
    }
}

/// With the job's shares of GPUs and energy.
pub(super) struct Shared<'r>(&'r mut [i64]);

impl Tracked {
    pub(super) fn new(record: &Record, local: &Local, now_ns: i64, gap_ms: i64, watch: Watch) -> Tracked {
        let age = Age::new(now_ns, record.start_ns);
        let watched = Watched::late(age.start_ms, age.unix_ms(now_ns));
        let profile = met_jobs::job_cgroup::profile(local);
        Tracked {
            key: record.key.clone(),
            user: record.user.as_deref().map(Arc::from),
            profile: Profile { missed: watched.has_missed_peak, ..profile },
            age,
            samples: PackedSamples::new(&JOB),
            running: Running::new(gap_ms, PEAK_SPAN_MS),
            counts: Counts::default(),
            containers: Containers::default(),
            earlier: Earlier { gpus: record.gpus.clone(), watched, ..Earlier::default() },
            watch,
            main: local.main.map(|main| (main, now_ns)),
            events: JobEvents::default(),
        }
    }

    /// Whether its processes are listed before this tick.
    pub(super) fn is_listed(&self) -> bool {
        match self.age.pacing.look {
            Look::No => false,
            Look::Cheap => !self.profile.counts_cpu,
            Look::Usual | Look::Whole => true,
        }
    }

    /// Whether this tick has read all of it; `slow`: whether it read all of those that are read at every tick.
    pub(super) fn is_read_whole(&self, slow: bool) -> bool {
        self.age.pacing.is_whole(slow) && !self.counts.idle.is_unread()
    }

    pub(super) fn add_ended<'r>(&self, row: AsRead<'r>, gone: Option<&Gone>, seen: u64) -> Counted<'r> {
        let AsRead(cells) = row;
        cells[PROCESSES] = seen as i64;
        self.counts.add_gone(gone.unwrap_or(&Gone::default()), self.profile.counts_cpu, cells);
        self.counts.add_left(cells);
        Counted(cells)
    }

    pub(super) fn complete_levels<'r>(&mut self, row: Counted<'r>) -> Levelled<'r> {
        let Counted(cells) = row;
        if self.profile.hides_io {
            hidden_io::blank(cells);
        }
        self.counts.add_memory(self.profile.counts_memory, cells);
        // A process holds some memory: the kernel counts in batches, and has not counted it yet.
        if cells[MEMORY_NEEDED] == 0 {
            cells[MEMORY_NEEDED] = MISSING;
        }
        Levelled(cells)
    }

    pub(super) fn add_shares<'r>(
        &self,
        row: Levelled<'r>,
        slot: u32,
        gpus: &Gpus,
        energy: &NodeEnergy,
    ) -> Shared<'r> {
        let Levelled(cells) = row;
        gpus.fill(slot, cells);
        self.earlier.add_energy(cells);
        energy.fill(slot, cells);
        Shared(cells)
    }

    /// Makes a sample of its row. False if there is no room for it among those that wait.
    pub(super) fn sample(&mut self, row: Shared<'_>, now_ns: i64) -> bool {
        let Shared(cells) = row;
        if self.counts.idle.is_left_out() && !self.profile.hides_io {
            self.counts.repeat_io(cells);
        }
        self.counts.hold(cells);
        let time_ms = self.age.unix_ms(now_ns);
        // They are not taken out: the totals go on, and what cannot be kept is a gap.
        let has_room = self.samples.len() < SAMPLES_MAX;
        if has_room {
            self.samples.push(time_ms, cells);
        }
        self.running.push(time_ms, cells);
        has_room
    }

    /// Keeps what was counted in a cgroup that is gone; `cpu_ns` is better than its last reading.
    pub(super) fn leave_cgroup(&mut self, id: u64, batches: &[Batch], cpu_ns: Option<i64>) {
        for batch in batches {
            for (_, cells) in batch.rows().filter(|(row, _)| row.owner == Subject::Cgroup(id)) {
                self.counts.leave(batch, cells, cpu_ns);
            }
        }
    }

    /// Takes over the samples of an earlier daemon; `least_ms` without any is a gap.
    pub(super) fn recall(&mut self, series: &Series, now_ns: i64, least_ms: i64) {
        series.each_row(|time_ms, cells| {
            self.counts.hold(cells);
            self.running.push(time_ms, cells);
        });
        self.running.recall_thinned(series);
        let gap_ms = look_gap_ms(series.spans_ms(), least_ms);
        self.earlier.watched = Watched::of(series, self.age.start_ms, self.age.unix_ms(now_ns), gap_ms);
        self.profile.missed = self.earlier.watched.has_missed_peak;
        self.earlier.recall(&self.counts.floors, series);
    }

    /// Its samples since the last call, each with the key of its series.
    pub(super) fn take_series(&mut self) -> Vec<(JobKey, PackedSamples)> {
        let own = (!self.samples.is_empty()).then(|| self.samples.take());
        let details = self.counts.details.series.take();
        let key = &self.key;
        let of_events = self.events.drain().map(|(name, samples)| (event::series_key(key, name), samples));
        own.into_iter().chain(details).map(|samples| (key.clone(), samples)).chain(of_events).collect()
    }

    /// What is known of it so far, but for its energy. `gpus` is since it was added.
    pub(super) fn live(&self, gpus: Vec<GpuUse>) -> Live {
        let mut live = Live::of(&self.running, self.profile);
        live.gpus = self.earlier.together(gpus);
        live.events.clone_from(&self.events.counts);
        set_gpu_totals(&mut live.totals, &live.gpus, self.earlier.unwritten_uj());
        live
    }
}

/// What the counters of a job's living processes and cgroups do not show.
pub(super) struct Counts {
    /// At the end of the job none of its processes was left.
    pub(super) all_ended: bool,
    pub(super) own: OwnFigures<{ OWN.len() }>,
    pub(super) details: Details,
    /// What was counted in directories that are gone, while it has others.
    left: Vec<i64>,
    /// Huge pages when they were last read, which is not at every tick.
    hugetlb_bytes: i64,
    /// The highest reading of each counter.
    pub(super) floors: Vec<i64>,
    pub(super) processes: LargestProcesses,
    pub(super) idle: Idle,
}

impl Default for Counts {
    fn default() -> Counts {
        let (left, floors) = (vec![0; JOB.columns.len()], vec![MISSING; JOB.columns.len()]);
        let (own, details, processes, idle) = Default::default();
        Counts { all_ended: false, own, details, left, hugetlb_bytes: 0, floors, processes, idle }
    }
}

impl Counts {
    /// Adds what no living process shows.
    fn add_gone(&self, gone: &Gone, counts_cpu: bool, cells: &mut [i64]) {
        for (index, &column) in INHERITED.iter().enumerate() {
            let by_cgroup = counts_cpu && matches!(column, CPU | CPU_USER | CPU_SYSTEM);
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

    fn leave(&mut self, batch: &Batch, cells: &[i64], cpu_ns: Option<i64>) {
        for (column, &cell) in batch.table.columns.iter().zip(cells) {
            let Some(to) = column.feeds.filter(|_| column.kind == Kind::Counter) else { continue };
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

    /// Completes the needed memory: no counter of a cgroup has huge pages in it, and what is private to each
    /// process has no shared memory in it.
    fn add_memory(&mut self, counts_memory: bool, cells: &mut [i64]) {
        if cells[MEMORY_HUGETLB] != MISSING {
            self.hugetlb_bytes = cells[MEMORY_HUGETLB];
        }
        if cells[MEMORY_NEEDED] == MISSING {
            return;
        }
        let shared = Some(cells[MEMORY_SHARED]).filter(|&shared| shared != MISSING && !counts_memory);
        let more = self.hugetlb_bytes.saturating_add(shared.unwrap_or(0));
        cells[MEMORY_NEEDED] = cells[MEMORY_NEEDED].saturating_add(more);
    }

    /// I/O that was not read, because it can have changed little, is what it was: what a job does later is not spread
    /// over the time before.
    fn repeat_io(&self, cells: &mut [i64]) {
        for column in [READ, WRITTEN, WRITE_CANCELLED] {
            if cells[column] == MISSING {
                cells[column] = self.floors[column];
            }
        }
    }

    /// A child that ends between the listing and the reading is missing from one sum and back, by its
    /// parent, in the next: not a restart, and not a peak.
    pub(super) fn hold(&mut self, cells: &mut [i64]) {
        for ((floor, cell), column) in self.floors.iter_mut().zip(cells).zip(JOB.columns) {
            if *cell != MISSING && column.kind == Kind::Counter {
                *floor = (*floor).max(*cell);
                *cell = *floor;
            }
        }
    }
}

/// What an earlier daemon saw of a job's GPUs.
#[derive(Default)]
pub(super) struct Earlier {
    energy_uj: i64,
    idle_uj: i64,
    /// As it last wrote them.
    gpus: Vec<GpuUse>,
    /// For how much of the job's life until now nothing was read.
    pub(super) watched: Watched,
}

impl Earlier {
    fn recall(&mut self, counters: &[i64], series: &Series) {
        (self.energy_uj, self.idle_uj) = (counters[GPU_ENERGY].max(0), counters[GPU_ENERGY_IDLE].max(0));
        // GPUs that were quiet at the last look, and not called idle yet, are idle since then if they are found so.
        let used = &series.columns[GPU_UTILIZATION];
        let quiet = used.iter().rev().take_while(|&&cell| cell == 0).count();
        let Some(&since_ms) = series.times_ms.get(used.len() - quiet).filter(|_| quiet > 0) else { return };
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.idle_since_ns.is_none()) {
            gpu.idle_since_ns = Some(since_ms * 1_000_000);
        }
    }

    fn add_energy(&self, cells: &mut [i64]) {
        for (column, before_uj) in [(GPU_ENERGY, self.energy_uj), (GPU_ENERGY_IDLE, self.idle_uj)] {
            cells[column] = match cells[column] {
                // Out of sight, or not met yet: what an earlier daemon saw of it is known all the same.
                MISSING if before_uj > 0 => before_uj,
                MISSING => MISSING,
                since_uj => since_uj + before_uj,
            };
        }
    }

    /// Energy, and its idle part, that is in the samples and not in what was written of the GPUs.
    fn unwritten_uj(&self) -> (i64, i64) {
        let written = |energy_uj: fn(&GpuUse) -> i64| self.gpus.iter().map(energy_uj).sum::<i64>();
        let idle_uj = self.idle_uj - written(|gpu| gpu.energy_idle_uj);
        ((self.energy_uj - written(GpuUse::energy_uj)).max(0), idle_uj.max(0))
    }

    /// What the job did with its GPUs before and `now`. What one used while nothing was read is in no figure.
    fn together(&self, now: Vec<GpuUse>) -> Vec<GpuUse> {
        let mut gpus = gpu_use::together(&self.gpus, now);
        let had = |gpu: &GpuUse| self.gpus.iter().any(|before| before.uuid == gpu.uuid);
        for gpu in gpus.iter_mut().filter(|gpu| self.watched.missed_ms > 0 && had(gpu)) {
            gpu.energy_kind = gpu.energy_kind.map(|_| QualityKind::LowerBound);
        }
        gpus
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::sampler) fn tracked() -> Tracked {
        let record = met_core::sample::bare(1, "x");
        let local = record.local.as_ref().unwrap();
        let mut departures = crate::exits::Departures::default();
        let host = met_host::Host::real().unwrap();
        let watch = departures.open(&host, 0, crate::exits::Beginning::Unknown, || false);
        Tracked::new(&record, local, 0, 1000, watch)
    }

    #[test]
    fn io_that_was_not_read_is_repeated_and_other_counters_are_not() {
        let mut job = tracked();
        let mut row = vec![MISSING; JOB.columns.len()];
        (row[READ], row[WRITTEN], row[READ_CALL]) = (5, 6, 7);
        job.sample(Shared(&mut row.clone()), 0);
        let mut unread = vec![MISSING; JOB.columns.len()];
        job.counts.repeat_io(&mut unread);
        assert_eq!((unread[READ], unread[WRITTEN], unread[READ_CALL]), (5, 6, MISSING));
        row[READ] = 9;
        job.counts.repeat_io(&mut row);
        assert_eq!(row[READ], 9);
    }

    #[test]
    fn samples_without_room_are_dropped_and_said_to_be() {
        let mut job = tracked();
        let mut cells = vec![MISSING; JOB.columns.len()];
        let kept = (0..SAMPLES_MAX as i64 + 3).filter(|second| {
            cells[CPU] = *second;
            job.sample(Shared(&mut cells), second * 1_000_000_000)
        });
        assert_eq!(kept.count(), SAMPLES_MAX);
        assert_eq!(job.running.maximum(CPU), Some(SAMPLES_MAX as i64 + 2), "totals go on");
    }

    #[test]
    fn a_row_becomes_a_sample_by_its_own_and_by_what_is_gone() {
        let mut job = tracked();
        job.profile = Profile { counts_cpu: true, counts_memory: false, hides_io: true, ..job.profile };
        job.counts.left[CPU] = 5;
        let gone = Gone { unseen: 3, ..Gone::default() };
        let mut sample = |values: &[(usize, i64)]| {
            let mut cells = vec![MISSING; JOB.columns.len()];
            values.iter().for_each(|&(column, value)| cells[column] = value);
            let row = job.add_ended(AsRead(&mut cells), Some(&gone), 2);
            let Levelled(cells) = job.complete_levels(row);
            job.sample(Shared(cells), 0);
            [CPU, PROCESSES, READ, MEMORY_NEEDED]
                .map(|column| job.running.maximum(column).map_or(MISSING, |_| cells[column]))
        };
        let first =
            sample(&[(CPU, 10), (READ, 0), (MEMORY_NEEDED, 100), (MEMORY_HUGETLB, 40), (MEMORY_SHARED, 2)]);
        assert_eq!(first, [15, 5, MISSING, 142]);
        // Huge pages are not read at every tick, and no counter falls.
        assert_eq!(sample(&[(CPU, 8), (MEMORY_NEEDED, 100)]), [15, 5, MISSING, 140]);
    }
}
