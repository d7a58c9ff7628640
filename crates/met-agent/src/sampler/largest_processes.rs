//! The largest processes of each job: what living ones show at a look, and the records of those that are over.

use met_core::attribute::JobMap;
use met_core::job::ProcessId;
use met_core::job_processes::{JobProcess, Seen};
use met_core::{Batch, Subject};
use met_host::{Host, clock, users};
use met_jobs::{Members, processes};
use met_sources::process;

use super::tracked::Jobs;

/// Looks at the rows of living processes. `members`: supervisors are no processes of their jobs.
pub(super) fn look(host: &Host, batches: &[Batch], map: &JobMap, members: &Members, jobs: &mut Jobs) {
    let tick_ns = 1_000_000_000 / host.facts().ticks_per_second.max(1);
    let unix_offset_ns = clock::unix_offset_ns();
    for batch in batches.iter().filter(|batch| std::ptr::eq(batch.table, &process::TABLE)) {
        for (row, cells) in batch.rows() {
            let Subject::Task { pid, start_ticks } = row.owner else { continue };
            let start_ns = i64::try_from(start_ticks).unwrap_or(i64::MAX).saturating_mul(tick_ns);
            let seen = Seen {
                cpu_ns: cells[process::CPU],
                memory_bytes: cells[process::MEMORY_RESIDENT],
                read_bytes: cells[process::READ],
                written_bytes: cells[process::WRITTEN],
            };
            let id = ProcessId { pid, start_ticks };
            for slot in map.owners(row.owner) {
                if let Some(job) = jobs.get_mut(&slot).filter(|_| members.keeper(slot) != Some(id)) {
                    job.counts.processes.see(id, start_ns.saturating_add(unix_offset_ns), seen);
                }
            }
        }
    }
    for job in jobs.values_mut() {
        for (id, process) in job.counts.processes.unnamed() {
            name(host, id, process);
        }
    }
}

/// What the rows do not have. One that has ended meanwhile keeps what was known of it.
fn name(host: &Host, id: ProcessId, process: &mut JobProcess) {
    if let Some(found) = processes::look_at(host, id) {
        (process.command, process.ppid) = (found.name, Some(found.parent_pid));
        process.uid = processes::owner(id.pid).or(process.uid);
    }
}

/// The names of their users; not in the sampling thread, since the names are in files or on a server.
pub(super) fn with_users(mut list: Vec<JobProcess>) -> Vec<JobProcess> {
    let mut known: Vec<(u32, Option<String>)> = Vec::new();
    for process in &mut list {
        let Some(uid) = process.uid else { continue };
        let at = known.iter().position(|(of, _)| *of == uid).unwrap_or_else(|| {
            known.push((uid, users::name_of(uid)));
            known.len() - 1
        });
        process.user.clone_from(&known[at].1);
    }
    // One that had no name when it was looked at says nothing.
    list.retain(|process| !process.command.is_empty());
    list
}
