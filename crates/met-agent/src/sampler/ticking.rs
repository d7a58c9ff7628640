//! What is done at a tick.

use std::collections::HashMap;
use std::time::Duration;

use met_core::gpu::card;
use met_core::job_table::*;
use met_core::process_exits::{INHERITED, OWN};
use met_core::{JOB, MISSING, Subject};
use met_host::clock;
use met_query::hidden_io;
use met_sources::TickInfo;

use super::membership::Membership;
use super::tracked::{AsRead, Tracked};
use super::{Sampler, events, largest_processes, logging};

/// Beyond so many jobs the extra readings would cost more than they tell.
const EARLY_JOBS_MAX: usize = 16;
/// So few processes and cgroups may be read in full each time: a quarter of a millisecond.
const FEW_TARGETS: usize = 32;
/// Of more processes the largest are looked for so often.
const LIST_EVERY_NS: i64 = 9_500_000_000;

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
            self.look_at_gpus(now_ns);
            return false;
        }
        let regular = now_ns >= self.schedule.next_ns;
        self.tick(now_ns, regular);
        if regular {
            self.schedule.plan_next();
        }
        true
    }

    /// Looks at once, whenever the next tick is.
    pub fn look(&mut self) {
        self.gpus.pace.hurry();
        self.tick(clock::boottime_ns(), true);
    }

    fn due_ns(&self) -> i64 {
        let of_gpus =
            self.gpus.pace.next_ns().filter(|_| !self.jobs.is_empty() && !self.gpus.cards.is_empty());
        of_gpus.into_iter().chain([self.due_but_for_gpus_ns()]).min().unwrap_or(i64::MAX)
    }

    /// Between two ticks, where the GPUs have a period of their own.
    fn look_at_gpus(&mut self, now_ns: i64) {
        self.runner.read_those_of(&card::TABLE, &self.membership.targets, &TickInfo::default());
        self.gpus.pace.plan_next();
        self.follow_gpus(now_ns);
    }

    fn due_but_for_gpus_ns(&self) -> i64 {
        let few = (self.jobs.len() <= EARLY_JOBS_MAX).then_some(&self.jobs);
        let early = few.into_iter().flat_map(HashMap::values).filter_map(|job| job.age.early_ns());
        early.chain([self.schedule.next_ns]).min().unwrap_or(self.schedule.next_ns)
    }

    fn tick(&mut self, now_ns: i64, regular: bool) {
        let is_slow_due = regular && self.schedule.is_slow_due();
        let cgroups_only = !is_slow_due && self.cgroups_suffice(now_ns);
        self.departures.hear(&self.membership.targets, &self.membership.map);
        self.leave_containers();
        if self.membership.is_due(now_ns) && !cgroups_only {
            self.follow_containers();
            self.list_members(now_ns);
        }
        self.follow_departures(None);
        let slow = is_slow_due || regular && self.membership.target_count() <= FEW_TARGETS;
        self.schedule.ticks += u64::from(regular);
        let gpus_are_due = self.gpus.pace.is_due(now_ns);
        self.runner.hold((!gpus_are_due).then_some(&card::TABLE));
        self.runner.read(&self.membership.targets, &TickInfo { slow, cgroups_only });
        logging::round(self.runner.batches().iter());
        let meets_strangers = self.gpus.meets_strangers(self.runner.batches(), &self.membership.map);
        if meets_strangers && self.membership.listed_ns < now_ns {
            self.list_members(now_ns);
        }
        self.rows.fold(self.runner.batches(), &self.membership.map, slow);
        self.follow_own();
        self.follow_processes(now_ns, slow);
        self.follow_details();
        self.follow_hidden_io(slow);
        self.follow_events();
        if gpus_are_due {
            self.gpus.pace.plan_next();
            self.follow_gpus(now_ns);
        }
        let intervals = self.machine.intervals;
        let series_interval = if self.jobs.is_empty() { intervals.idle() } else { intervals.busy() };
        self.machine.follow(&self.runner, self.schedule.interval_ns, now_ns, series_interval);
        self.follow_energy(now_ns);
        self.sample_jobs(now_ns);
    }

    fn sample_jobs(&mut self, now_ns: i64) {
        let keeps_details = self.rows.keep_details && !self.rows.details.is_empty();
        for (row, cells) in self.rows.jobs.rows_mut() {
            let Subject::Job(slot) = row.owner else { continue };
            let Some(job) = self.jobs.get_mut(&slot) else { continue };
            job.age.pass_early(now_ns);
            let seen = self.membership.members.processes_seen(slot);
            let row = job.add_ended(AsRead(cells), self.departures.gone(slot), seen);
            let row = job.complete_levels(row);
            let row = job.add_shares(row, slot, &self.gpus.cards, &self.energy);
            job.sample(row, now_ns);
            if keeps_details {
                job.counts.details.sample(job.age.unix_ms(now_ns));
            }
        }
    }

    fn follow_details(&mut self) {
        let Sampler { rows, runner, membership, jobs, departures, .. } = self;
        let (batches, told) = (runner.batches(), departures.is_listening());
        rows.follow_details(batches, &membership.map, jobs, told, |slot| departures.gone(slot));
    }

    pub(super) fn list_members(&mut self, now_ns: i64) {
        self.membership.list(&self.host, now_ns);
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
        for job in self.jobs.values_mut() {
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
            &self.gpus.cards,
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

    /// Between slow ticks a CPU file and a memory file of each job tell enough, unless processes are all
    /// there is of a job, or it is new, or they are few.
    fn cgroups_suffice(&self, now_ns: i64) -> bool {
        let suffices = |job: &Tracked| job.profile.counts_cpu && self.schedule.is_old(&job.age, now_ns);
        self.membership.target_count() > FEW_TARGETS && self.jobs.values().all(suffices)
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
                    for slot in self.membership.map.owners(row.owner) {
                        if let Some(job) = self.jobs.get_mut(&slot) {
                            job.counts.own.see(pid, start_ticks, index, sum);
                        }
                    }
                }
            }
        }
        let (map, told) = (&self.membership.map, self.departures.is_listening());
        for job in self.jobs.values_mut() {
            job.counts.own.depart(told, |subject| map.owner(subject).is_some());
        }
    }

    /// Looks for the largest processes: of many every ten seconds, by a tick that has read all of them.
    fn follow_processes(&mut self, now_ns: i64, slow: bool) {
        let are_few = self.membership.target_count() <= FEW_TARGETS;
        if are_few || slow && now_ns >= self.schedule.list_ns {
            self.schedule.list_ns = now_ns + LIST_EVERY_NS;
            let Membership { map, members, .. } = &self.membership;
            largest_processes::look(&self.host, self.runner.batches(), map, members, &mut self.jobs);
        }
    }

    /// Notes which jobs have processes whose I/O cannot be read. Only a slow tick reads that of all.
    fn follow_hidden_io(&mut self, slow: bool) {
        if slow {
            self.jobs.values_mut().for_each(|job| job.profile.hides_io = false);
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
                }
            }
        });
    }

    /// Takes in what its processes did since the last tick and left to nobody who is read.
    pub(super) fn look_a_last_time(&mut self, slot: u32) {
        if !self.departures.is_listening() {
            return;
        }
        self.departures.hear(&self.membership.targets, &self.membership.map);
        self.follow_departures(Some(slot));
        let kept = self.jobs.get(&slot).is_some_and(|job| job.profile.kept);
        // With a supervisor, it has the totals of all that was reaped.
        let all_ended = kept || {
            let members = self.membership.change();
            let _ = members.refresh(&self.host);
            members.processes_of(slot).next().is_none()
        };
        let (Some(job), Some(gone)) = (self.jobs.get_mut(&slot), self.departures.gone(slot)) else { return };
        job.all_ended = all_ended;
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
        // The end of a supervised job's course is what its supervisor counted.
        if !kept {
            job.course.push(time_ms, &cells);
        }
    }
}
