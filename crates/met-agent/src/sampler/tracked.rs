//! A job while it is sampled.

use met_core::course::Course;
use met_core::ended::{Gone, INHERITED, OWN};
use met_core::job::{CgroupPaths, EventCount, GpuUse, JobKey, ProcessId, QualityKind};
use met_core::job_table::*;
use met_core::sampled::Profile;
use met_core::{JOB, Kind, MISSING, Table, gpu_use};

use crate::departures::{OwnFigures, Watch};
use met_core::running::Running;

pub(super) struct Tracked {
    pub(super) key: JobKey,
    pub(super) profile: Profile,
    pub(super) born_ns: i64,
    pub(super) early_taken: usize,
    /// Unix time minus boot time when the job began: its samples stay in line if the clock is set.
    pub(super) unix_offset_ns: i64,
    pub(super) course: Course,
    pub(super) running: Running,
    pub(super) own: OwnFigures,
    pub(super) watch: Watch,
    /// What was counted in directories that are gone, while it has others.
    pub(super) left: Vec<i64>,
    /// Cgroups of containers that it started and that are still there.
    pub(super) containers: Vec<CgroupPaths>,
    /// There were more at once than are followed.
    pub(super) lacks_containers: bool,
    /// Huge pages when they were last read, which is not at every tick.
    pub(super) hugetlb_bytes: i64,
    /// The highest reading of each counter.
    pub(super) floors: Vec<i64>,
    /// Its first process and since when that is known, until its environment has been read for the last time.
    pub(super) main: Option<(ProcessId, i64)>,
    /// Energy of cards, and its idle part, that an earlier daemon saw.
    pub(super) gpu_before_uj: (i64, i64),
    /// What the job had done with its cards when an earlier daemon last wrote it down.
    pub(super) gpus_before: Vec<GpuUse>,
    /// Since it was first sampled there was a time in which nobody looked.
    pub(super) missed: bool,
    /// At its end none of its processes was left.
    pub(super) all_ended: bool,
    /// Counted in its cgroup, where no supervisor counts.
    pub(super) events: Vec<EventCount>,
}

impl Tracked {
    /// Of the energy that an earlier daemon saw, what is in its samples and not in what it wrote of the cards.
    pub(super) fn gpu_untold_uj(&self) -> (i64, i64) {
        let told = |energy_uj: fn(&GpuUse) -> i64| self.gpus_before.iter().map(energy_uj).sum::<i64>();
        let (all_uj, idle_uj) = self.gpu_before_uj;
        ((all_uj - told(GpuUse::energy_uj)).max(0), (idle_uj - told(|gpu| gpu.energy_idle_uj)).max(0))
    }

    /// What it did with its cards, by what an earlier daemon wrote and what is known since. What a card used while
    /// nobody looked is in no figure.
    pub(super) fn gpus(&self, now: Vec<GpuUse>) -> Vec<GpuUse> {
        let mut gpus = gpu_use::together(&self.gpus_before, now);
        let had = |gpu: &GpuUse| self.gpus_before.iter().any(|before| before.uuid == gpu.uuid);
        for gpu in gpus.iter_mut().filter(|gpu| self.missed && had(gpu)) {
            gpu.energy_kind = gpu.energy_kind.map(|_| QualityKind::LowerBound);
        }
        gpus
    }

    /// Cards that were quiet when an earlier daemon last looked, and that it did not call idle yet, are idle since
    /// then if they are found so.
    pub(super) fn recall_quiet(&mut self, course: &Course) {
        let used = &course.columns[GPU_UTILIZATION];
        let quiet = used.iter().rev().take_while(|&&cell| cell == 0).count();
        let Some(&since_ms) = course.times_ms.get(used.len() - quiet).filter(|_| quiet > 0) else { return };
        for gpu in self.gpus_before.iter_mut().filter(|gpu| gpu.idle_since_ns.is_none()) {
            gpu.idle_since_ns = Some(since_ms * 1_000_000);
        }
    }

    /// Adds what no living process shows.
    pub(super) fn add_gone(&self, gone: Option<&Gone>, cells: &mut [i64]) {
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

    /// Completes the needed memory: no counter of a cgroup has huge pages in it, and what is private to each
    /// process has no shared memory in it.
    pub(super) fn add_memory(&mut self, cells: &mut [i64]) {
        if cells[MEMORY_HUGETLB] != MISSING {
            self.hugetlb_bytes = cells[MEMORY_HUGETLB];
        }
        if cells[MEMORY_NEEDED] == MISSING {
            return;
        }
        let shared =
            Some(cells[MEMORY_SHARED]).filter(|&shared| shared != MISSING && !self.profile.counts_memory);
        let more = self.hugetlb_bytes.saturating_add(shared.unwrap_or(0));
        cells[MEMORY_NEEDED] = cells[MEMORY_NEEDED].saturating_add(more);
    }

    /// Keeps what was counted in a directory that is gone; `cpu_ns` is better than its last reading.
    pub(super) fn leave(&mut self, table: &'static Table, cells: &[i64], cpu_ns: Option<i64>) {
        for (column, &cell) in table.columns.iter().zip(cells) {
            let Some(to) = column.feeds.filter(|_| column.kind == Kind::Counter) else { continue };
            let cell = cpu_ns.filter(|_| to == CPU).unwrap_or(cell);
            if cell != MISSING {
                self.left[to] = self.left[to].saturating_add(cell);
            }
        }
    }

    pub(super) fn add_left(&self, cells: &mut [i64]) {
        for (cell, left) in cells.iter_mut().zip(&self.left).filter(|(_, left)| **left > 0) {
            *cell = if *cell == MISSING { *left } else { cell.saturating_add(*left) };
        }
    }

    /// A child that ends between the listing and the reading is missing from one sum and back, by its
    /// parent, in the next: not a restart, and not a peak.
    pub(super) fn hold_counters(&mut self, cells: &mut [i64]) {
        for ((floor, cell), column) in self.floors.iter_mut().zip(cells).zip(JOB.columns) {
            if *cell != MISSING && column.kind == Kind::Counter {
                *floor = (*floor).max(*cell);
                *cell = *floor;
            }
        }
    }
}
