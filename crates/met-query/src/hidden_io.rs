//! I/O that the kernel does not show: a daemon of a user may not read `/proc/PID/io` of a set-user-ID program.
//!
//! What such a process did is in its parent's counters once it was waited for. Until then a sum over the other
//! processes is a lower bound, and a sum of 0 is meaningless.

use met_core::attribute::JobMap;
use met_core::sampled::{OF_IO, is_unknown_io};
use met_core::{Batch, MISSING};
use met_sources::process;

/// Calls `found` with each job that has such a process, jobs around it included, if the batch is one of processes.
pub fn each_job(batch: &Batch, map: &JobMap, mut found: impl FnMut(u32)) {
    if !std::ptr::eq(batch.table, &process::TABLE) {
        return;
    }
    for (row, _) in batch.rows().filter(|(_, cells)| is_hidden(cells)) {
        map.owners(row.owner).for_each(&mut found);
    }
}

/// A living process whose memory was read this time, and its I/O was not.
fn is_hidden(cells: &[i64]) -> bool {
    cells[process::ALIVE] == 1
        && cells[process::MEMORY_RESIDENT] != MISSING
        && cells[process::READ_CALL] == MISSING
}

/// Removes what is unknown from the row of a job that has such a process.
pub fn blank(cells: &mut [i64]) {
    for column in OF_IO {
        if is_unknown_io(column, cells[column]) {
            cells[column] = MISSING;
        }
    }
}

#[cfg(test)]
mod tests {
    use met_core::Subject;
    use met_core::job_table::{CPU, READ, WRITTEN};

    use super::*;

    fn row(alive: i64, resident: i64, read_call: i64) -> Batch {
        let mut batch = Batch::new(&process::TABLE);
        let cells = batch.push(Subject::Task { pid: 7, start_ticks: 1 });
        cells[process::ALIVE] = alive;
        cells[process::MEMORY_RESIDENT] = resident;
        cells[process::READ_CALL] = read_call;
        batch
    }

    #[test]
    fn only_a_living_process_that_was_read_in_full_hides_its_io() {
        let mut map = JobMap::default();
        map.add_job(1, Some(2));
        map.add_job(2, None);
        map.assign(Subject::Task { pid: 7, start_ticks: 1 }, 1);
        let jobs_of = |batch: Batch| {
            let mut jobs = Vec::new();
            each_job(&batch, &map, |slot| jobs.push(slot));
            jobs
        };
        assert_eq!(jobs_of(row(1, 4096, MISSING)), [1, 2], "of its job and of the job around it");
        assert!(jobs_of(row(1, 4096, 0)).is_empty());
        assert!(jobs_of(row(1, MISSING, MISSING)).is_empty(), "not read at this tick");
        assert!(jobs_of(row(0, 0, MISSING)).is_empty(), "a zombie");
    }

    #[test]
    fn what_others_did_stays() {
        let mut cells = vec![0; met_core::JOB.columns.len()];
        cells[WRITTEN] = 4096;
        blank(&mut cells);
        assert_eq!((cells[READ], cells[WRITTEN], cells[CPU]), (MISSING, 4096, 0));
    }
}
