//! The largest processes of each job: what living ones show at a look, and the records of those that are over.

use met_core::attribute::JobMap;
use met_core::job::ProcessId;
use met_core::job_processes::{JobProcess, Seen, set_command_line};
use met_core::{Batch, MISSING, Subject};
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
            // Of some only the I/O was read.
            if cells[process::CPU] == MISSING {
                continue;
            }
            let start_ns = i64::try_from(start_ticks).unwrap_or(i64::MAX).saturating_mul(tick_ns);
            let seen = Seen {
                cpu_ns: cells[process::CPU],
                memory_bytes: cells[process::MEMORY_RESIDENT],
                read_bytes: cells[process::READ],
                written_bytes: cells[process::WRITTEN],
            };
            let id = ProcessId { pid, start_ticks };
            for slot in map.owners(row.owner) {
                if let Some(job) = jobs.get_mut(&slot).filter(|_| members.supervisor(slot) != Some(id)) {
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
    let command_line = processes::command_of(host, id.pid);
    // After the reading: the number may have become another process's.
    if let Some(found) = processes::look_at(host, id) {
        if !command_line.is_empty() || found.name != process.command {
            set_command_line(process, command_line);
        }
        (process.command, process.ppid) = (found.name, Some(found.parent_pid));
        process.uid = host.owner(id).or(process.uid);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_a_captured_machine_has_the_owner_that_it_has_there() {
        let root = tempfile::tempdir().unwrap();
        // No such pid is on this machine.
        let id = ProcessId { pid: 99_999_999, start_ticks: 77 };
        let folder = root.path().join(format!("proc/{}", id.pid));
        std::fs::create_dir_all(&folder).unwrap();
        let numbers = (4..22).map(|field| if field == 4 { "3" } else { "1" }).collect::<Vec<_>>().join(" ");
        std::fs::write(folder.join("cmdline"), "make\0all\0").unwrap();
        std::fs::write(folder.join("stat"), format!("{} (make) S {numbers} 77 1 1\n", id.pid)).unwrap();
        let host = Host::at(root.path()).unwrap();
        let mut process = JobProcess::default();
        name(&host, id, &mut process);
        assert_eq!((process.command.as_str(), process.ppid), ("make", Some(3)));
        assert_eq!(process.command_line, ["make", "all"]);
        std::fs::write(folder.join("cmdline"), "").unwrap();
        name(&host, id, &mut process);
        assert_eq!(process.command_line, ["make", "all"], "one that has just ended has none any more");
        assert_eq!(process.uid, Some(rustix::process::geteuid().as_raw()));
        let mut later = JobProcess::default();
        name(&host, ProcessId { start_ticks: 78, ..id }, &mut later);
        assert_eq!((later.command.as_str(), later.uid), ("", None), "another process");
    }
}
