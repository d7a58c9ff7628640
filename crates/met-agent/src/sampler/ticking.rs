//! What is done at a tick.

use std::time::Duration;

use met_core::gpu::device;
use met_core::job_table::*;
use met_core::process_exits::{INHERITED, OWN};
use met_core::{JOB, MISSING, Subject, Table};
use met_host::{Look, clock};
use met_query::hidden_io;
use met_sources::TickInfo;

use super::idling::Around;
use super::membership::Membership;
use super::tracked::{AsRead, Jobs, Tracked};
use super::{Sampler, events, idling, largest_processes, logging, nesting};

/// Beyond so many jobs the extra readings would cost more than they are worth.
const EARLY_JOBS_MAX: usize = 16;
/// So few processes and cgroups may be read in full each time: a quarter of a millisecond.
const FEW_TARGETS: usize = 32;
/// Of more processes the largest are looked for so often.
const LIST_EVERY_NS: i64 = 9_500_000_000;
/// Between ticks it is checked so often whether many ends of processes wait.
const RECEIVE_EVERY_NS: i64 = 1_000_000_000;

/// Why there is a tick.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// Some jobs are due.
    Regular,
    /// A job has just begun.
    Early,
    /// All jobs are to be read in full.
    Asked,
}

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
        if now_ns < self.due_but_for_gpus_ns() {
            self.look_between(now_ns);
            return false;
        }
        let regular = now_ns >= self.schedule.next_ns;
        self.tick(now_ns, if regular { Occasion::Regular } else { Occasion::Early });
        if regular {
            self.schedule.plan_next(self.jobs.values().map(|job| &job.age.pacing));
        }
        true
    }

    /// Looks at once, whenever the next tick is.
    pub fn look(&mut self) {
        self.gpus.pace.hurry();
        self.tick(clock::boottime_ns(), Occasion::Asked);
    }

    fn due_ns(&self) -> i64 {
        let ends_ns = self.listens_between().then_some(self.schedule.receive_ns);
        let others = self.gpus_due_ns().into_iter().chain(ends_ns);
        others.chain([self.due_but_for_gpus_ns()]).min().unwrap_or(i64::MAX)
    }

    fn gpus_due_ns(&self) -> Option<i64> {
        self.gpus.pace.next_ns().filter(|_| !self.jobs.is_empty() && !self.gpus.gpus.is_empty())
    }

    /// Whether ends of processes come in between ticks that may be far apart.
    fn listens_between(&self) -> bool {
        self.departures.is_listening() && self.schedule.cadence.together_ns() > RECEIVE_EVERY_NS
    }

    /// What cannot wait for the next tick: GPUs with a period of their own, and more ends of processes than are kept.
    fn look_between(&mut self, now_ns: i64) {
        if self.gpus_due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.look_at_gpus(now_ns);
        }
        if now_ns >= self.schedule.receive_ns {
            self.schedule.receive_ns = now_ns + RECEIVE_EVERY_NS;
            if self.departures.is_crowded() {
                self.departures.receive(&self.membership.targets, &self.membership.map);
                self.follow_departures(None);
            }
        }
    }

    fn look_at_gpus(&mut self, now_ns: i64) {
        self.runner.read_those_of(&device::TABLE, &self.membership.targets, &TickInfo::default());
        self.gpus.pace.plan_next();
        self.follow_gpus(now_ns);
    }

    fn due_but_for_gpus_ns(&self) -> i64 {
        let few = (self.jobs.len() <= EARLY_JOBS_MAX).then_some(&self.jobs);
        let early = few.into_iter().flat_map(Jobs::values).filter_map(|job| job.age.early_ns());
        early.chain([self.schedule.next_ns]).min().unwrap_or(self.schedule.next_ns)
    }

    fn tick(&mut self, now_ns: i64, occasion: Occasion) {
        let regular = occasion != Occasion::Early;
        let reads_all = self.plan_looks(now_ns, occasion);
        let is_slow_due = regular && self.schedule.is_slow_due(now_ns);
        if is_slow_due {
            self.schedule.plan_slow(now_ns);
        }
        let cgroups_only = !is_slow_due && self.cgroups_suffice(now_ns);
        self.departures.receive(&self.membership.targets, &self.membership.map);
        self.leave_containers();
        if self.membership.is_due(now_ns) && !cgroups_only && self.lists_any() {
            self.follow_containers();
            self.list_some_members(now_ns);
        }
        self.follow_departures(None);
        let slow = is_slow_due || regular && self.membership.target_count() <= FEW_TARGETS;
        self.schedule.ticks += u64::from(regular);
        let gpus_are_due = self.gpus.pace.is_due(now_ns);
        self.runner.hold((!gpus_are_due).then_some(&device::TABLE));
        let gpus = self.gpu_count();
        let reads_many = slow && self.membership.target_count() > FEW_TARGETS;
        self.read(&TickInfo { slow, cgroups_only, partial: !reads_all, gpus }, occasion, reads_many);
        logging::round(self.runner.batches().iter());
        let meets_strangers = self.gpus.meets_strangers(self.runner.batches(), &self.membership.map);
        if meets_strangers && self.membership.listed_ns < now_ns {
            self.list_members(now_ns);
        }
        self.rows.fold(self.runner.batches(), &self.membership.map, slow, &self.jobs);
        self.follow_own();
        self.follow_processes(now_ns, slow);
        self.follow_hidden_io(slow);
        self.follow_events();
        if gpus_are_due {
            self.gpus.pace.plan_next();
            self.follow_gpus(now_ns);
        }
        self.follow_details();
        if reads_all {
            self.schedule.all_read_ns = now_ns;
            self.follow_machine(now_ns);
            self.expect_reading(now_ns);
            self.follow_energy(now_ns);
        }
        if reads_all && regular {
            self.schedule.plan_together();
        }
        self.sample_jobs(now_ns, reads_many);
        self.schedule.receive_ns = now_ns + RECEIVE_EVERY_NS;
    }

    /// Decides how each job is read now. Whether all of them are read, if little of some.
    fn plan_looks(&mut self, now_ns: i64, occasion: Occasion) -> bool {
        let Sampler { jobs, schedule, membership, .. } = self;
        let is_together = occasion != Occasion::Early && schedule.is_together_due(now_ns);
        for job in jobs.values_mut() {
            let ladder = schedule.cadence.of(&job.key.manager);
            let interval_ns = job.age.pacing.interval_ns(ladder, now_ns);
            let is_early = || job.age.early_ns().is_some_and(|due_ns| due_ns <= now_ns);
            let is_due = match occasion {
                Occasion::Asked => true,
                Occasion::Regular => now_ns >= job.age.pacing.next_ns(),
                Occasion::Early => interval_ns <= schedule.interval_ns || is_early(),
            };
            job.age.pacing.look = match (is_due, is_together) {
                (true, _) if schedule.is_slow(interval_ns) => Look::Whole,
                (true, _) => Look::Usual,
                (false, true) => Look::Cheap,
                (false, false) => Look::No,
            };
        }
        nesting::read_together(&membership.map, jobs);
        jobs.values().all(|job| job.age.pacing.look != Look::No)
    }

    /// Meters and GPUs that are not read for longer than was planned have a gap.
    fn expect_reading(&mut self, now_ns: i64) {
        let (cadence, shortest_ns) = (&self.schedule.cadence, self.schedule.interval_ns);
        let is_fast =
            |job: &Tracked| job.age.pacing.interval_ns(cadence.of(&job.key.manager), now_ns) <= shortest_ns;
        let are_fast = !self.jobs.is_empty() && self.jobs.values().all(|job| is_fast(job));
        let apart_ns = self.schedule.plan_apart(are_fast);
        self.energy.set_interval(Duration::from_nanos(apart_ns as u64));
        self.gpus.set_tick(apart_ns);
    }

    fn follow_machine(&mut self, now_ns: i64) {
        let intervals = self.machine.intervals;
        let series_interval = if self.jobs.is_empty() { intervals.idle() } else { intervals.busy() };
        self.machine.follow(&self.runner, self.schedule.cadence.together_ns(), now_ns, series_interval);
    }

    /// Reads what the looks of the jobs ask for. A job in whose cgroups nothing ran since it was last read in full shows
    /// what it showed then, and its processes are not read.
    fn read(&mut self, tick: &TickInfo, occasion: Occasion, reads_many: bool) {
        self.membership.mark(&self.jobs);
        if !reads_many && self.jobs.values().all(|job| job.age.pacing.look == Look::Usual) {
            self.runner.read(&self.membership.targets, tick);
            return;
        }
        let hears_ends = self.departures.is_listening();
        let Sampler { runner, membership, jobs, machine, .. } = self;
        let Membership { targets, map, is_marked, .. } = membership;
        // Some may be left out: the next tick decides for all of them again.
        *is_marked = true;
        runner.read_cgroups_first(targets, tick, |batches, targets| {
            // Who asks gets what is there now.
            let may_wait = machine.disks_moved_little(batches) && occasion != Occasion::Asked;
            idling::find(batches, map, jobs, &Around { may_wait, hears_ends, reads_many });
            idling::leave_out(targets, map, jobs);
        });
    }

    fn sample_jobs(&mut self, now_ns: i64, reads_many: bool) {
        let keeps_details = self.rows.keep_details && !self.rows.details.is_empty();
        let cadence = &self.schedule.cadence;
        let mut dropped = 0;
        for (row, cells) in self.rows.jobs.rows_mut() {
            let Subject::Job(slot) = row.owner else { continue };
            let Some(job) = self.jobs.get_mut(&slot) else { continue };
            job.age.pass_early(now_ns);
            let is_unread = job.counts.idle.is_unread();
            if job.age.pacing.look == Look::Whole && !is_unread {
                self.membership.members.was_read_in_full(slot);
            }
            let look = job.age.pacing.look;
            let is_in_full = look == Look::Usual && reads_many;
            job.counts.idle.complete(if is_in_full { Look::Whole } else { look }, cells);
            job.age.pacing.compare(now_ns, cells);
            job.age.pacing.plan(cadence.of(&job.key.manager), now_ns);
            let seen = self.membership.members.processes_seen(slot);
            let row = job.add_ended(AsRead(cells), self.departures.gone(slot), seen);
            let row = job.complete_levels(row);
            let row = job.add_shares(row, slot, &self.gpus.gpus, &self.energy);
            dropped += u64::from(!job.sample(row, now_ns));
            if keeps_details && job.age.pacing.look >= Look::Usual && !is_unread {
                job.counts.details.sample(job.age.unix_ms(now_ns));
            }
        }
        self.rows.dropped_samples += dropped;
    }

    fn follow_details(&mut self) {
        let Sampler { rows, runner, membership, jobs, departures, gpus, .. } = self;
        let (batches, reported) = (runner.batches(), departures.is_listening());
        rows.follow_details(batches, &membership.map, jobs, &gpus.gpus, reported, |slot| {
            departures.gone(slot)
        });
    }

    /// Whether some job's processes are to be listed: those of a job that is not read in full are where they were,
    /// unless its figures are those of its processes.
    fn lists_any(&self) -> bool {
        self.membership.listed_ns == i64::MIN || self.jobs.values().any(|job| job.is_listed())
    }

    fn list_some_members(&mut self, now_ns: i64) {
        let jobs = &self.jobs;
        let is_due = |slot: u32| jobs.get(&slot).is_none_or(|job| job.is_listed());
        self.membership.list_some(&self.host, now_ns, is_due);
        self.after_listing();
    }

    pub(super) fn list_members(&mut self, now_ns: i64) {
        self.membership.list_some(&self.host, now_ns, |_| true);
        self.after_listing();
    }

    fn after_listing(&mut self) {
        self.runner.count_unparsed("process", self.membership.members.unparsed());
        self.request_events();
    }

    pub(super) fn request_events(&mut self) {
        self.asked.request(&mut self.membership, &self.jobs, self.energy.weight().event());
    }

    pub(super) fn follow_events(&mut self) {
        let now_ns = clock::boottime_ns();
        for (slot, count) in events::counts(&self.runner, &self.membership.map) {
            self.energy.count(slot, &count.name, count.count);
            if let Some(job) = self.jobs.get_mut(&slot).filter(|job| !job.events.counts_itself(&count.name)) {
                let time_ms = job.age.unix_ms(now_ns);
                job.events.take(count, time_ms);
            }
        }
        let mut early = if self.schedule.watches_node { events::READ_EARLY_MAX } else { 0 };
        for job in self.jobs.values_mut().filter(|job| job.age.pacing.look >= Look::Usual) {
            let time_ms = job.age.unix_ms(now_ns);
            job.events.read_passed_if_due(time_ms, &mut early);
        }
    }

    pub(super) fn follow_gpus(&mut self, now_ns: i64) {
        self.gpus.follow(&self.runner, &self.host, &mut self.jobs, &self.membership.map, now_ns);
    }

    pub(super) fn follow_energy(&mut self, now_ns: i64) {
        self.energy.follow(
            now_ns,
            self.runner.node(),
            &self.rows.jobs,
            &self.gpus.gpus,
            &self.membership.map,
        );
    }

    /// Begins to read containers that were started since the last look.
    fn follow_containers(&mut self) {
        for (&slot, job) in self.jobs.iter_mut().filter(|(_, job)| job.profile.kept && job.profile.counts_cpu)
        {
            job.containers.follow(&self.host, &mut self.membership.members, slot);
        }
    }

    /// Keeps what was counted in cgroups of containers that are gone.
    fn leave_containers(&mut self) {
        for (&slot, job) in &mut self.jobs {
            for paths in job.containers.take_gone(&self.host) {
                if let Some(id) = self.membership.members.cgroup_id(slot, &paths) {
                    job.leave_cgroup(id, self.runner.batches(), None);
                }
                self.membership.members.drop_cgroup(slot, &paths);
            }
        }
    }

    /// Between slow ticks a CPU file and a memory file of each job are enough, unless processes are all
    /// there is of a job, or it is new, or they are few.
    fn cgroups_suffice(&self, now_ns: i64) -> bool {
        let suffices = |job: &Tracked| match job.age.pacing.look {
            Look::No => true,
            Look::Usual => job.profile.counts_cpu && self.schedule.is_old(&job.age, now_ns),
            Look::Cheap | Look::Whole => false,
        };
        self.membership.target_count() > FEW_TARGETS && self.jobs.values().all(|job| suffices(job))
    }

    /// Reads into the books of each job what ends with its processes.
    fn follow_own(&mut self) {
        for batch in self.runner.batches().iter().filter(|batch| feeds_own(batch.table)) {
            for (row, cells) in batch.rows() {
                let Subject::Task { pid, start_ticks } = row.owner else { continue };
                let sums = own_sums(batch.table, cells);
                for slot in self.membership.map.owners(row.owner) {
                    let Some(job) = self.jobs.get_mut(&slot) else { continue };
                    for (index, &sum) in sums.iter().enumerate() {
                        job.counts.own.see(pid, start_ticks, index, sum);
                    }
                }
            }
        }
        let (map, reported) = (&self.membership.map, self.departures.is_listening());
        for job in self.jobs.values_mut().filter(|job| job.age.pacing.look >= Look::Usual) {
            job.counts.own.depart(reported, |subject| map.owner(subject).is_some());
        }
    }

    /// Looks for the largest processes: of many every ten seconds, by a tick that has read all of them, and of old jobs
    /// whenever these are read in full.
    fn follow_processes(&mut self, now_ns: i64, slow: bool) {
        let are_few = self.membership.target_count() <= FEW_TARGETS;
        let is_any_whole = || self.jobs.values().any(|job| job.age.pacing.look == Look::Whole);
        if are_few || (slow || is_any_whole()) && now_ns >= self.schedule.list_ns {
            self.schedule.list_ns = now_ns + LIST_EVERY_NS;
            let Membership { map, members, .. } = &self.membership;
            largest_processes::look(&self.host, self.runner.batches(), map, members, &mut self.jobs);
        }
    }

    /// Notes which jobs have processes whose I/O cannot be read. Only a slow tick reads that of all.
    fn follow_hidden_io(&mut self, slow: bool) {
        for job in self.jobs.values_mut().filter(|job| job.is_read_whole(slow)) {
            job.profile.hides_io = false;
        }
        for batch in self.runner.batches() {
            hidden_io::each_job(batch, &self.membership.map, |slot| {
                if let Some(job) = self.jobs.get_mut(&slot) {
                    job.profile.hides_io = true;
                }
            });
        }
    }

    /// Enters the ends that were heard of; `leaving` is a job that is not read any more.
    fn follow_departures(&mut self, leaving: Option<u32>) {
        let (targets, map) = (&self.membership.targets, &self.membership.map);
        self.departures.enter(&self.host, targets, map, leaving, |slot, exit| {
            for slot in std::iter::successors(Some(slot), |&inner| map.outer(inner)) {
                if let Some(job) = self.jobs.get_mut(&slot) {
                    job.counts.own.end(exit.pid);
                    job.counts.processes.end(exit);
                    job.counts.details.own.end(exit.pid);
                    job.counts.idle.read_next_time();
                }
            }
        });
    }

    /// Takes in what its processes did since the last tick and left to no process that is read.
    pub(super) fn look_a_last_time(&mut self, slot: u32) {
        if !self.departures.is_listening() {
            return;
        }
        self.departures.receive(&self.membership.targets, &self.membership.map);
        self.follow_departures(Some(slot));
        let kept = self.jobs.get(&slot).is_some_and(|job| job.profile.kept);
        // With a supervisor, it has the totals of all that was reaped.
        let all_ended = kept || {
            let members = self.membership.change();
            let _ = members.refresh(&self.host);
            members.processes_of(slot).next().is_none()
        };
        let (Some(job), Some(gone)) = (self.jobs.get_mut(&slot), self.departures.gone(slot)) else { return };
        job.counts.all_ended = all_ended;
        let mut cells = vec![MISSING; JOB.columns.len()];
        let delays = self.departures.accounts_delays();
        for (index, &column) in OWN.iter().enumerate() {
            if delays || !matches!(column, DELAY_IO | DELAY_MEMORY) {
                cells[column] = job.counts.own.total(index).saturating_add(gone.own[index]);
            }
        }
        for (index, &column) in INHERITED.iter().enumerate().filter(|_| all_ended && !kept) {
            if !(job.profile.counts_cpu && matches!(column, CPU | CPU_USER | CPU_SYSTEM)) {
                cells[column] = gone.inherited[index];
            }
        }
        cells[PROCESSES] = self.membership.members.processes_seen(slot) as i64 + gone.unseen as i64;
        job.counts.hold(&mut cells);
        let time_ms = job.age.unix_ms(clock::boottime_ns());
        job.running.push(time_ms, &cells);
        // The end of a supervised job's series is what its supervisor counted.
        if !kept {
            job.samples.push(time_ms, &cells);
        }
    }
}

fn feeds_own(table: &Table) -> bool {
    table.columns.iter().any(|column| column.feeds.is_some_and(|fed| OWN.contains(&fed)))
}

/// The figures of a process that end with it, in the order of `OWN`.
fn own_sums(table: &Table, cells: &[i64]) -> [i64; OWN.len()] {
    let mut sums = [MISSING; OWN.len()];
    for (column, &cell) in table.columns.iter().zip(cells).filter(|(_, cell)| **cell != MISSING) {
        if let Some(index) = column.feeds.and_then(|fed| OWN.iter().position(|&own| own == fed)) {
            sums[index] = if sums[index] == MISSING { cell } else { sums[index].saturating_add(cell) };
        }
    }
    sums
}
