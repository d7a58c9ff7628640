//! Jobs in whose cgroups next to nothing ran since they were last read in full.

use met_core::attribute::JobMap;
use met_core::{Batch, FastMap, JOB, Kind, MISSING, Subject};
use met_host::{Look, Targets};
use met_sources::cgroup;

use super::tracked::{Jobs, Tracked};

/// So many looks in a row at which such a job would be read in full its processes are not read, then they are in any
/// case.
const SKIPPED_MAX: u32 = 9;
/// In this much CPU time between two looks a job writes some tens of megabytes at most. If it read no more from disks
/// either, because all of them together moved little, its I/O has not changed sharply.
const LITTLE_NS: i64 = 10_000_000;
/// In all, since its processes were last read, it may have run for so long.
const LITTLE_IN_ALL_NS: i64 = 100_000_000;

/// A job as it was last read in full.
#[derive(Default)]
pub(super) struct Idle {
    /// CPU time of its cgroups then, and now.
    then_ns: Option<i64>,
    now_ns: Option<i64>,
    /// The same at the look before this one, whatever was read by it.
    before_ns: Option<i64>,
    /// Its row as it was read then.
    cells: Vec<i64>,
    skipped: u32,
    /// Whether its processes are left out by this tick.
    left_out: bool,
}

/// What decides, beside the job itself, whether processes are left out.
pub(super) struct Around {
    /// Whether disks moved little, and no client asks for the jobs.
    pub may_wait: bool,
    /// Whether exit records are received. Otherwise what a process did since it was last read is lost with it.
    pub hears_ends: bool,
    /// Whether the processes of jobs that are read at every tick are read by this one, and are many.
    pub reads_many: bool,
}

impl Idle {
    fn is_same(&self) -> bool {
        let is_quiet = |(then_ns, now_ns)| cgroup::is_quiet(then_ns, now_ns);
        self.then_ns.zip(self.now_ns).is_some_and(is_quiet) && self.skipped < SKIPPED_MAX
    }

    /// Whether it ran for a moment only since the look before.
    fn ran_little(&self) -> bool {
        is_within(self.before_ns, self.now_ns, LITTLE_NS)
    }

    /// Whether it ran for moments only since its processes were last read, which was some looks ago at most.
    fn ran_little_in_all(&self) -> bool {
        self.skipped < SKIPPED_MAX && is_within(self.then_ns, self.now_ns, LITTLE_IN_ALL_NS)
    }

    /// Whether its processes are left out though they may have done a little.
    pub(super) fn is_unread(&self) -> bool {
        self.left_out && !self.is_same()
    }

    /// One of its processes has ended: levels are not what they were.
    pub(super) fn read_next_time(&mut self) {
        self.then_ns = None;
    }

    pub(super) fn is_left_out(&self) -> bool {
        self.left_out
    }

    /// Whether what would be read can have changed little: I/O alone, or all of its processes soon after they were read.
    fn changed_little(&self, look: Look, around: &Around) -> bool {
        let can_wait = match look {
            Look::Cheap => true,
            Look::Whole => around.hears_ends && self.ran_little_in_all(),
            Look::No | Look::Usual => false,
        };
        can_wait && around.may_wait && self.ran_little()
    }

    /// Completes the row of a job that did next to nothing, and keeps that of one that was read in full.
    pub(super) fn complete(&mut self, look: Look, cells: &mut [i64]) {
        match look {
            Look::Cheap if self.is_same() => self.repeat_levels(cells),
            Look::Whole if self.left_out => {
                self.repeat_levels(cells);
                self.skipped += 1;
            }
            Look::Whole => {
                self.cells.clear();
                self.cells.extend_from_slice(cells);
                (self.then_ns, self.skipped) = (self.now_ns, 0);
            }
            Look::No | Look::Cheap | Look::Usual => {}
        }
    }

    /// Levels are what they were; counters that were not read are not known.
    fn repeat_levels(&self, cells: &mut [i64]) {
        for ((cell, then), column) in cells.iter_mut().zip(&self.cells).zip(JOB.columns) {
            if *cell == MISSING && column.kind == Kind::Gauge {
                *cell = *then;
            }
        }
    }
}

/// Whether it ran for so long at most. CPU time that falls is of a cgroup that is gone.
fn is_within(then_ns: Option<i64>, now_ns: Option<i64>, most_ns: i64) -> bool {
    then_ns.zip(now_ns).is_some_and(|(then_ns, now_ns)| (0..=most_ns).contains(&(now_ns - then_ns)))
}

/// Takes in what was read of cgroups, and finds the jobs whose processes are left out: those that did nothing, and those
/// in which little can have changed.
pub(super) fn find(batches: &[Batch], map: &JobMap, jobs: &mut Jobs, around: &Around) {
    for idle in jobs.values_mut().map(|job| &mut job.counts.idle) {
        idle.before_ns = idle.now_ns.take().or(idle.before_ns);
    }
    for (slot, cpu_ns) in cpu_of_cgroups(batches, map) {
        let Some(job) = jobs.get_mut(&slot).filter(|job| job.profile.counts_cpu) else { continue };
        let sum_ns = job.counts.idle.now_ns.unwrap_or(0);
        job.counts.idle.now_ns = Some(sum_ns.saturating_add(cpu_ns));
    }
    let has_nested = map.has_nested();
    for job in jobs.values_mut() {
        let (idle, look) = (&mut job.counts.idle, job.age.pacing.look);
        let is_counted = job.profile.counts_cpu && job.profile.counts_memory;
        let may_be_left_out = (look != Look::Usual || around.reads_many) && idle.is_same();
        // Sums of the outer one of nested jobs are over the processes of all.
        idle.left_out = !has_nested && (may_be_left_out || is_counted && idle.changed_little(look, around));
    }
}

/// The CPU time of each cgroup that was read, with the job it is of.
fn cpu_of_cgroups(batches: &[Batch], map: &JobMap) -> impl Iterator<Item = (u32, i64)> {
    let of_cgroups = batches.iter().filter(|batch| std::ptr::eq(batch.table, &cgroup::TABLE));
    let rows = of_cgroups.flat_map(Batch::rows).filter(|(_, cells)| cells[cgroup::CPU] != MISSING);
    rows.filter_map(|(row, cells)| Some((map.owner(row.owner)?, cells[cgroup::CPU])))
}

/// For a reading that is not kept: leaves out the processes of jobs that did nothing since they were last read in full.
pub(super) fn leave_out_now(targets: &mut Targets, batches: &[Batch], map: &JobMap, jobs: &Jobs) {
    let mut now_ns = FastMap::<u32, i64>::default();
    for (slot, cpu_ns) in cpu_of_cgroups(batches, map) {
        *now_ns.entry(slot).or_default() += cpu_ns;
    }
    let is_quiet = |slot: u32, job: &Tracked| {
        let times = job.counts.idle.then_ns.zip(now_ns.get(&slot).copied());
        job.profile.counts_cpu && times.is_some_and(|(then_ns, now_ns)| cgroup::is_quiet(then_ns, now_ns))
    };
    leave_out_processes(targets, map, jobs, is_quiet);
}

/// Leaves out the processes of these jobs.
pub(super) fn leave_out(targets: &mut Targets, map: &JobMap, jobs: &Jobs) {
    leave_out_processes(targets, map, jobs, |_, job| job.counts.idle.left_out);
}

fn leave_out_processes(
    targets: &mut Targets,
    map: &JobMap,
    jobs: &Jobs,
    is_idle: impl Fn(u32, &Tracked) -> bool,
) {
    if map.has_nested() {
        return;
    }
    for target in &mut targets.tasks {
        let subject = Subject::Task { pid: target.pid, start_ticks: target.start_ticks };
        let job = map.owner(subject).and_then(|slot| Some((slot, jobs.get(&slot)?)));
        if job.is_some_and(|(slot, job)| is_idle(slot, job)) {
            target.look = Look::No;
        }
    }
}

#[cfg(test)]
mod tests {
    use met_core::attribute::JobMap;
    use met_core::job_table::{READ_CALL, THREADS_RUNNING};
    use met_host::{TaskRole, TaskTarget};

    use super::*;
    use crate::sampler::tracked::tests::tracked;

    const TASK: Subject = Subject::Task { pid: 7, start_ticks: 1 };

    const ONE_MAY_WAIT: Around = Around { may_wait: true, hears_ends: true, reads_many: false };

    /// A job with a cgroup that was read in full when it had used 5 ns of CPU time.
    fn read_job(has_cgroup: bool) -> Tracked {
        let mut job = tracked();
        (job.profile.counts_cpu, job.profile.counts_memory) = (true, has_cgroup);
        job.counts.idle.now_ns = Some(5);
        job.counts.idle.complete(Look::Whole, &mut vec![MISSING; JOB.columns.len()]);
        job
    }

    /// How its process is read by such a look when it has used so much.
    fn look_at(job: Tracked, look: Look, used_ns: i64, around: &Around) -> (Look, Tracked) {
        let mut job = job;
        job.age.pacing.look = look;
        let mut map = JobMap::default();
        map.add_job(1, None);
        map.assign(TASK, 1);
        map.assign(Subject::Cgroup(3), 1);
        let mut jobs = Jobs::default();
        jobs.insert(1, Box::new(job));
        let mut targets = Targets::default();
        targets.tasks.push(TaskTarget { look, ..TaskTarget::new(7, 1, TaskRole::Member, false) });
        let mut batch = Batch::new(&cgroup::TABLE);
        batch.push(Subject::Cgroup(3))[cgroup::CPU] = 5 + used_ns;
        find(&[batch], &map, &mut jobs, around);
        leave_out(&mut targets, &map, &jobs);
        (targets.tasks[0].look, *jobs.remove(&1).unwrap())
    }

    fn look_after(look: Look, used_ns: i64, around: &Around) -> Look {
        look_at(read_job(true), look, used_ns, around).0
    }

    #[test]
    fn processes_are_not_read_where_little_can_have_changed() {
        let may_wait = &ONE_MAY_WAIT;
        assert_eq!(look_after(Look::Cheap, LITTLE_NS, may_wait), Look::No);
        assert_eq!(look_after(Look::Cheap, LITTLE_NS + 1, may_wait), Look::Cheap, "it may have written");
        let moved = &Around { may_wait: false, ..ONE_MAY_WAIT };
        assert_eq!(look_after(Look::Cheap, LITTLE_NS, moved), Look::Cheap, "it may have read");
        let by_processes = look_at(read_job(false), Look::Cheap, LITTLE_NS, may_wait).0;
        assert_eq!(by_processes, Look::Cheap, "only they show its memory");
        assert_eq!(look_after(Look::Whole, LITTLE_NS, may_wait), Look::No);
        assert_eq!(look_after(Look::Whole, LITTLE_NS + 1, may_wait), Look::Whole);
        assert_eq!(look_after(Look::Usual, 0, may_wait), Look::Usual);
        let many = &Around { reads_many: true, ..ONE_MAY_WAIT };
        assert_eq!(look_after(Look::Usual, cgroup::QUIET_NS, many), Look::No);
        assert_eq!(look_after(Look::Usual, cgroup::QUIET_NS + 1, many), Look::Usual);
        assert_eq!(look_after(Look::Whole, -1, may_wait), Look::Whole, "one of its cgroups is gone");
        let deaf = &Around { hears_ends: false, ..ONE_MAY_WAIT };
        assert_eq!(look_after(Look::Whole, LITTLE_NS, deaf), Look::Whole, "what it did may end with it");
    }

    /// Which of the looks after the first, each to read all, does so, if it ran for so long between two of them.
    fn first_read(each_ns: i64) -> Option<i64> {
        let mut job = read_job(true);
        for number in 1..20 {
            let (look, mut after) = look_at(job, Look::Whole, number * each_ns, &ONE_MAY_WAIT);
            if look == Look::Whole {
                return Some(number);
            }
            after.counts.idle.complete(Look::Whole, &mut vec![MISSING; JOB.columns.len()]);
            job = after;
        }
        None
    }

    #[test]
    fn processes_are_read_at_every_tenth_look_and_after_some_time_that_they_ran() {
        assert_eq!(first_read(0), Some(10));
        assert_eq!(first_read(LITTLE_NS / 2), Some(10));
        assert_eq!(first_read(LITTLE_IN_ALL_NS / 4), Some(1), "too much at once");
        assert_eq!(first_read(LITTLE_NS), Some(10));
        let mut job = read_job(true);
        job.counts.idle.before_ns = Some(LITTLE_IN_ALL_NS);
        let (look, _) = look_at(job, Look::Whole, LITTLE_IN_ALL_NS + 1, &ONE_MAY_WAIT);
        assert_eq!(look, Look::Whole, "little since the look before, but not since it was read");
    }

    #[test]
    fn levels_that_were_not_read_are_repeated_and_counters_are_not() {
        let mut job = read_job(true);
        let mut cells = vec![MISSING; JOB.columns.len()];
        (cells[THREADS_RUNNING], cells[READ_CALL]) = (3, 8);
        job.counts.idle.complete(Look::Whole, &mut cells);
        let (_, mut job) = look_at(job, Look::Whole, LITTLE_NS, &ONE_MAY_WAIT);
        let mut unread = vec![MISSING; JOB.columns.len()];
        job.counts.idle.complete(Look::Whole, &mut unread);
        assert_eq!((unread[THREADS_RUNNING], unread[READ_CALL]), (3, MISSING));
        job.counts.idle.read_next_time();
        assert_eq!(look_at(job, Look::Whole, LITTLE_NS, &ONE_MAY_WAIT).0, Look::Whole, "a process has ended");
    }
}
