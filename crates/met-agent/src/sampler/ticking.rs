//! Ticks: when, and what is done at one.

use std::collections::HashSet;
use std::time::Duration;

use met_core::ended::{INHERITED, OWN};
use met_core::job_table::*;
use met_core::{Batch, JOB, MISSING, Subject, gpu};
use met_host::clock;
use met_sources::TickInfo;

use super::Sampler;
use super::tracked::Tracked;
use met_query::hidden_io;

/// A job younger than this is read more often than the period: a short one would not be seen at all.
pub(super) const EARLY_MS: [i64; 6] = [20, 50, 100, 200, 400, 800];
/// Beyond so many jobs the extra readings would cost more than they tell.
const EARLY_JOBS_MAX: usize = 16;
/// What is dear to read is read at every tenth tick.
const SLOW_EVERY: u64 = 10;
/// So few processes and cgroups may be read in full each time: a quarter of a millisecond.
const FEW_TARGETS: usize = 32;

impl Sampler {
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

    /// Looks at once, whenever the next tick is.
    pub fn look(&mut self) {
        self.tick(clock::boottime_ns(), true);
    }

    fn due_ns(&self) -> i64 {
        if self.jobs.len() > EARLY_JOBS_MAX {
            return self.next_tick_ns;
        }
        let early = |job: &Tracked| EARLY_MS.get(job.early_taken).map(|ms| job.born_ns + ms * 1_000_000);
        self.jobs.values().filter_map(early).min().map_or(self.next_tick_ns, |due| due.min(self.next_tick_ns))
    }

    pub(super) fn tick(&mut self, now_ns: i64, regular: bool) {
        let due = regular && self.ticks.is_multiple_of(SLOW_EVERY);
        let cgroups_only = !due && self.cgroups_suffice(now_ns);
        self.departures.hear(&self.targets, &self.map);
        self.leave_containers();
        if now_ns - self.membership_every_ns >= self.refreshed_ns && !cgroups_only {
            self.follow_containers();
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
        self.follow_hidden_io(slow);
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
            if job.profile.hides_io {
                hidden_io::blank(cells);
            }
            job.add_memory(cells);
            // A process holds some memory: the kernel counts in batches, and has not counted it yet.
            if cells[MEMORY_NEEDED] == 0 {
                cells[MEMORY_NEEDED] = MISSING;
            }
            self.cards.fill(slot, cells);
            for (column, before_uj) in
                [(GPU_ENERGY, job.gpu_before_uj.0), (GPU_ENERGY_IDLE, job.gpu_before_uj.1)]
            {
                cells[column] = match cells[column] {
                    // Out of sight, or not met yet: what an earlier daemon saw of it is known all the same.
                    MISSING if before_uj > 0 => before_uj,
                    MISSING => MISSING,
                    since_uj => since_uj + before_uj,
                };
            }
            self.energy.fill(slot, cells);
            job.hold_counters(cells);
            let time_ms = (now_ns + job.unix_offset_ns) / 1_000_000;
            job.course.push(time_ms, cells);
            job.running.push(time_ms, cells);
        }
    }

    pub(super) fn refresh_members(&mut self, now_ns: i64) {
        // A /proc that cannot be listed leaves the members as they were.
        let _ = self.members.refresh(&self.host);
        self.runner.count_unparsed("process", self.members.unparsed());
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
                let fed = |(_, from): &(usize, &met_core::Column)| from.feeds == Some(column);
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

    /// Notes which jobs have processes whose I/O cannot be read. Only a slow tick reads that of all.
    fn follow_hidden_io(&mut self, slow: bool) {
        let Sampler { jobs, runner, map, .. } = self;
        if slow {
            jobs.values_mut().for_each(|job| job.profile.hides_io = false);
        }
        for batch in runner.batches() {
            hidden_io::each_job(batch, map, |slot| {
                if let Some(job) = jobs.get_mut(&slot) {
                    job.profile.hides_io = true;
                }
            });
        }
    }

    /// Enters the ends that were heard of; `leaving` is a job that is not read any more.
    pub(super) fn follow_departures(&mut self, leaving: Option<u32>) {
        let Sampler { departures, host, targets, map, jobs, .. } = self;
        departures.enter(host, targets, map, leaving, |slot, exit| {
            for slot in std::iter::successors(Some(slot), |&inner| map.outer(inner)) {
                if let Some(job) = jobs.get_mut(&slot) {
                    job.own.end(exit.pid);
                }
            }
        });
    }

    /// Takes in what its processes did since the last tick and left to nobody who is read.
    pub(super) fn look_a_last_time(&mut self, slot: u32) {
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
}

/// The first multiple of the interval after `now_ns`: ticks do not drift, and nodes tick together.
pub(super) fn next_boundary(now_ns: i64, interval_ns: i64) -> i64 {
    (now_ns / interval_ns + 1) * interval_ns
}
