//! A reading for a page that is asked for: nothing of it is kept.

use met_core::attribute::Fold;
use met_core::job_table::*;
use met_core::{Batch, JOB, Kind, MISSING, Subject};
use met_host::{Look, clock};
use met_query::hidden_io;
use met_sources::{TickInfo, cgroup, node, process};

use super::membership::Membership;
use super::tracked::AsRead;
use super::{NodeNow, Sampler, idling};

/// Reads CPU time, memory and I/O of all jobs and what the machine does. It enters no series and no total, and
/// changes no plan.
pub(super) fn look(sampler: &mut Sampler, with_details: bool) -> NodeNow {
    let now_ns = clock::boottime_ns();
    sampler.membership.mark_all(&sampler.jobs, Look::Cheap);
    sampler.runner.read_again("cgroup", &sampler.membership.targets, &TickInfo::default());
    let Membership { targets, map, .. } = &mut sampler.membership;
    idling::leave_out_now(targets, sampler.runner.batches(), map, &sampler.jobs);
    for source in ["process", "node"] {
        sampler.runner.read_again(source, &sampler.membership.targets, &TickInfo::default());
    }
    sampler.membership.unmark();
    let is_of_jobs = |batch: &&Batch| {
        [&cgroup::TABLE, &process::TABLE].iter().any(|table| std::ptr::eq(batch.table, *table))
    };
    let batches: Vec<Batch> = sampler.runner.batches().iter().filter(is_of_jobs).cloned().collect();
    let mut rows = Batch::new(&JOB);
    Fold::new().jobs(&batches, &sampler.membership.map, &mut rows);
    sampler.machine.look(&sampler.runner, node::TABLE.name, sampler.schedule.cadence.together_ns());
    let mut now = sampler.now(with_details);
    now.time_ns = now_ns + clock::unix_offset_ns();
    for (row, cells) in rows.rows_mut() {
        let Subject::Job(slot) = row.owner else { continue };
        let Some(job) = sampler.jobs.get_mut(&slot) else { continue };
        let seen = sampler.membership.members.processes_seen(slot);
        let row = job.add_ended(AsRead(cells), sampler.departures.gone(slot), seen);
        let cells = job.complete_levels(row).into_cells();
        if job.profile.hides_io {
            hidden_io::blank(cells);
        }
        if let Some(shown) = now.jobs.get_mut(&job.key) {
            overlay(&mut shown.cells, cells, job.profile.attached);
        }
    }
    now
}

/// Puts what was just read above what is known. Counters do not fall, and those of an attached job have a history.
fn overlay(shown: &mut [i64], fresh: &[i64], attached: bool) {
    for (index, ((shown, &fresh), column)) in shown.iter_mut().zip(fresh).zip(JOB.columns).enumerate() {
        match column.kind {
            _ if fresh == MISSING => {}
            Kind::Counter if attached => {}
            Kind::Counter => *shown = (*shown).max(fresh),
            // Others may be of some processes only.
            Kind::Gauge if matches!(index, MEMORY_NEEDED | MEMORY_PEAK) => *shown = fresh,
            Kind::Gauge => {}
        }
    }
    if shown[MEMORY_NEEDED] != MISSING {
        shown[MEMORY_NEEDED_PEAK] = shown[MEMORY_NEEDED_PEAK].max(shown[MEMORY_NEEDED]);
    }
}
