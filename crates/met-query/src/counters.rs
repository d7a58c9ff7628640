//! The counters of a job, read once.

use std::sync::Arc;

use met_core::attribute::{Fold, JobMap};
use met_core::job::{CgroupPaths, ProcessId, Record};
use met_core::{Batch, JOB, MISSING, Subject};
use met_host::cgroup::CgroupDirs;
use met_host::{CgroupTarget, Host, Look, Targets, TaskRole, TaskTarget};
use met_jobs::{JobSpec, Members, processes};
use met_sources::{Options, Runner, TickInfo, cgroup, process};

use crate::hidden_io;

/// What counts for a job that is read once; its GPUs are followed or not known.
const COUNTERS: &[&str] = &[cgroup::SPEC.name, process::SPEC.name];
const COUNTERS_OF_PROCESSES: &[&str] = &[process::SPEC.name];

/// The counters of one job, read once. What is not known is missing.
pub struct Reading {
    pub cgroup: Vec<i64>,
    pub processes: Vec<i64>,
    /// A living process does not show its I/O: that of the others is a lower bound.
    pub hides_io: bool,
}

impl Reading {
    /// Of a job with living processes.
    pub fn of_job(host: &Host, record: &Record) -> Reading {
        let Some(spec) = processes::spec(host, record, 0) else { return Reading::nothing() };
        // A process that left the cgroup of a supervised job is still below its supervisor.
        if spec.supervisor.is_none() || spec.cgroup.is_empty() {
            return Reading::of_members(host, spec);
        }
        let by_tree = JobSpec { cgroup: CgroupPaths::default(), ..spec };
        let by_tree = Reading::of_members(host, by_tree);
        Reading { cgroup: Reading::after_end(host, record).cgroup, ..by_tree }
    }

    fn of_members(host: &Host, spec: JobSpec) -> Reading {
        let mut members = Members::default();
        members.add(spec);
        if members.refresh(host).is_err() {
            return Reading::nothing();
        }
        let (mut targets, mut map) = (Targets::default(), JobMap::default());
        members.fill(&mut targets, &mut map);
        // A daemon that was started inside the job is not part of it.
        targets
            .tasks
            .retain(|task| task.role == TaskRole::Supervisor || !processes::is_daemon(host, task.pid));
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
                look: Look::Usual,
            });
        }
        if let Some(ProcessId { pid, start_ticks }) = spec.supervisor {
            map.assign(Subject::Task { pid, start_ticks }, spec.slot);
            targets.tasks.push(TaskTarget::new(pid, start_ticks, TaskRole::Supervisor, true));
        }
        Reading::of_targets(host, &targets, &map)
    }

    fn of_targets(host: &Host, targets: &Targets, map: &JobMap) -> Reading {
        let only = if targets.cgroups.is_empty() { COUNTERS_OF_PROCESSES } else { COUNTERS };
        let mut runner = Runner::open(host, &Options { only: Some(only), ..Options::default() });
        runner.read(targets, &TickInfo::of(true));
        let mut reading = Reading::nothing();
        let mut out = Batch::new(&JOB);
        for batch in runner.batches() {
            Fold::new().jobs(std::slice::from_ref(batch), map, &mut out);
            let Some((_, cells)) = out.rows().next() else { continue };
            match std::ptr::eq(batch.table, &met_sources::cgroup::TABLE) {
                true => reading.cgroup = cells.to_vec(),
                false => reading.processes = cells.to_vec(),
            }
            hidden_io::each_job(batch, map, |_| reading.hides_io = true);
        }
        if reading.hides_io {
            hidden_io::blank(&mut reading.processes);
        }
        reading
    }

    fn nothing() -> Reading {
        let cells = vec![MISSING; JOB.columns.len()];
        Reading { cgroup: cells.clone(), processes: cells, hides_io: false }
    }
}
