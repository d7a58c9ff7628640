//! What a round read, for who asked for it by the log level.

use met_core::{Batch, MISSING, Subject};

/// More rows of one round are not written: a log is read by people.
const ROWS_MAX: usize = 1000;

/// At `debug` how much was read, at `trace` every counter, one line for each row.
pub(super) fn round<'b>(number: u64, batches: impl Iterator<Item = &'b Batch> + Clone) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let rows: usize = batches.clone().map(|batch| batch.rows().count()).sum();
    tracing::debug!("round {number}: {rows} rows of {} tables", batches.clone().count());
    if !tracing::enabled!(tracing::Level::TRACE) {
        return;
    }
    let all = batches.flat_map(|batch| batch.rows().map(move |(row, cells)| (batch, row.owner, cells)));
    for (batch, owner, cells) in all.take(ROWS_MAX) {
        tracing::trace!("round {number}: {} {}: {}", batch.table.name, words(owner), counters(batch, cells));
    }
}

fn words(owner: Subject) -> String {
    match owner {
        Subject::Task { pid, .. } => format!("pid {pid}"),
        Subject::Cgroup(id) => format!("cgroup {id}"),
        Subject::Job(slot) => format!("job in slot {slot}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Names and values as they were read, without what was not.
fn counters(batch: &Batch, cells: &[i64]) -> String {
    let known = batch.table.columns.iter().zip(cells).filter(|(_, cell)| **cell != MISSING);
    known.map(|(column, cell)| format!("{}={cell}", column.name)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_written_with_what_is_known_of_it() {
        let mut batch = Batch::new(&met_core::JOB);
        let cells = batch.push(Subject::Task { pid: 7, start_ticks: 1 });
        cells[met_core::job_table::CPU] = 5;
        let (row, cells) = batch.rows().next().unwrap();
        assert_eq!(words(row.owner), "pid 7");
        assert_eq!(
            counters(&batch, cells),
            format!("{}=5", met_core::JOB.columns[met_core::job_table::CPU].name)
        );
    }
}
