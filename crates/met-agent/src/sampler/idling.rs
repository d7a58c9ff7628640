//! Jobs in whose cgroups next to nothing ran since they were last read in full.

use met_core::attribute::JobMap;
use met_core::{Batch, FastMap, JOB, Kind, MISSING, Subject};
use met_host::{Look, Targets};
use met_sources::cgroup;

use super::tracked::{Jobs, Tracked};

/// So often in a row the processes of such a job are not read, then they are in any case.
const SKIPPED_MAX: u32 = 10;
/// In this much CPU time between two looks a job writes some tens of megabytes at most. If it read no more from disks
/// either, because all of them together moved little, its I/O has not changed sharply.
const LITTLE_NS: i64 = 10_000_000;
/// The processes of a job that runs so little are read once a minute, less a moment for ticks that are early.
const READ_WITHIN_NS: i64 = 55_000_000_000;

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
    /// Boot time when its processes were last read in full.
    read_ns: Option<i64>,
    /// Whether its processes are left out by this tick.
    left_out: bool,
}

/// What decides, beside the job itself, whether processes are left out.
pub(super) struct Around {
    pub now_ns: i64,
    /// Whether disks moved little, and nobody asks for the jobs.
    pub may_wait: bool,
}

impl Idle {
    fn is_same(&self) -> bool {
        let is_quiet = |(then_ns, now_ns)| cgroup::is_quiet(then_ns, now_ns);
        self.then_ns.zip(self.now_ns).is_some_and(is_quiet) && self.skipped <= SKIPPED_MAX
    }

    /// Whether it ran for a moment only since the look before.
    fn ran_little(&self) -> bool {
        self.before_ns
            .zip(self.now_ns)
            .is_some_and(|(before_ns, now_ns)| (0..=LITTLE_NS).contains(&(now_ns - before_ns)))
    }

    /// Whether its processes are left out though they may have done a little.
    pub(super) fn is_unread(&self) -> bool {
        self.left_out && !self.is_same()
    }

    pub(super) fn is_left_out(&self) -> bool {
        self.left_out
    }

    /// Whether what would be read can have changed little: I/O alone, or all of its processes soon after they were read.
    fn changed_little(&self, look: Look, around: &Around) -> bool {
        let is_recent = || self.read_ns.is_some_and(|read_ns| around.now_ns - read_ns < READ_WITHIN_NS);
        let can_wait = match look {
            Look::Cheap => true,
            Look::Whole => is_recent(),
            Look::No | Look::Usual => false,
        };
        can_wait && around.may_wait && self.ran_little()
    }

    /// Completes the row of a job that did nothing, and keeps that of one that was read in full.
    pub(super) fn complete(&mut self, look: Look, cells: &mut [i64], now_ns: i64) {
        match look {
            Look::Cheap | Look::Whole if self.is_same() => {
                // Levels are what they were; counters that were not read are not known.
                for ((cell, then), column) in cells.iter_mut().zip(&self.cells).zip(JOB.columns) {
                    if *cell == MISSING && column.kind == Kind::Gauge {
                        *cell = *then;
                    }
                }
            }
            Look::Whole if self.left_out => {}
            Look::Whole => {
                self.read_ns = Some(now_ns);
                self.cells.clear();
                self.cells.extend_from_slice(cells);
                (self.then_ns, self.skipped) = (self.now_ns, 0);
            }
            Look::No | Look::Cheap => {}
            // The next one that is read in full is not compared with one that was read long ago.
            Look::Usual => self.then_ns = None,
        }
    }
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
    for job in jobs.values_mut() {
        let (idle, look) = (&mut job.counts.idle, job.age.pacing.look);
        let is_counted = job.profile.counts_cpu && job.profile.counts_memory;
        idle.skipped = if idle.is_same() { idle.skipped + 1 } else { idle.skipped };
        idle.left_out =
            look != Look::Usual && idle.is_same() || is_counted && idle.changed_little(look, around);
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
    use met_host::{TaskRole, TaskTarget};

    use super::*;
    use crate::sampler::tracked::tests::tracked;

    const TASK: Subject = Subject::Task { pid: 7, start_ticks: 1 };

    /// How the process of a job is read that used so much CPU time since the look before, 30 s after it was read in full.
    fn look_after(look: Look, used_ns: i64, may_wait: bool, has_cgroup: bool) -> Look {
        look_at(30_000_000_000, look, used_ns, may_wait, has_cgroup)
    }

    fn look_at(now_ns: i64, look: Look, used_ns: i64, may_wait: bool, has_cgroup: bool) -> Look {
        let mut job = tracked();
        (job.profile.counts_cpu, job.profile.counts_memory) = (true, has_cgroup);
        job.age.pacing.look = look;
        job.counts.idle.read_ns = Some(0);
        job.counts.idle.now_ns = Some(5);
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
        find(&[batch], &map, &mut jobs, &Around { now_ns, may_wait });
        leave_out(&mut targets, &map, &jobs);
        targets.tasks[0].look
    }

    #[test]
    fn processes_are_not_read_where_little_can_have_changed() {
        assert_eq!(look_after(Look::Cheap, LITTLE_NS, true, true), Look::No);
        assert_eq!(look_after(Look::Cheap, LITTLE_NS + 1, true, true), Look::Cheap, "it may have written");
        assert_eq!(look_after(Look::Cheap, LITTLE_NS, false, true), Look::Cheap, "it may have read");
        assert_eq!(look_after(Look::Cheap, LITTLE_NS, true, false), Look::Cheap, "only they show its memory");
        assert_eq!(look_after(Look::Whole, LITTLE_NS, true, true), Look::No);
        assert_eq!(look_after(Look::Whole, LITTLE_NS + 1, true, true), Look::Whole);
        assert_eq!(look_after(Look::Usual, 0, true, true), Look::Usual);
        assert_eq!(look_after(Look::Whole, -1, true, true), Look::Whole, "one of its cgroups is gone");
    }

    #[test]
    fn processes_are_read_once_a_minute_in_any_case() {
        assert_eq!(look_at(READ_WITHIN_NS, Look::Whole, LITTLE_NS, true, true), Look::Whole);
    }
}
