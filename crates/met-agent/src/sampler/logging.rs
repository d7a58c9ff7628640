//! What a round read, for who asked for it by the log level.

use std::sync::atomic::{AtomicU64, Ordering};

use met_core::{Batch, MISSING, Subject};

/// More rows of one round are not written: a log is read by people.
const ROWS_MAX: usize = 1000;

/// At `debug` how much was read, at `trace` every counter, one line for each row.
pub(super) fn round<'b>(batches: impl Iterator<Item = &'b Batch> + Clone) {
    /// A tick is not a round: a young job is read several times before its first.
    static ROUNDS: AtomicU64 = AtomicU64::new(1);
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let number = ROUNDS.fetch_add(1, Ordering::Relaxed);
    tracing::debug!("round {number}: {}", amounts(batches.clone()));
    if !tracing::enabled!(tracing::Level::TRACE) {
        return;
    }
    let all = batches.flat_map(|batch| batch.rows().map(move |(row, cells)| (batch, row.owner, cells)));
    for (batch, owner, cells) in all.take(ROWS_MAX) {
        tracing::trace!("round {number}: {} {}: {}", batch.table.name, words(owner), counters(batch, cells));
    }
}

/// How many rows were read of each table.
fn amounts<'b>(batches: impl Iterator<Item = &'b Batch>) -> String {
    let amount = |batch: &Batch| match batch.rows().count() {
        0 => None,
        1 => Some(format!("1 row of {}", batch.table.name)),
        rows => Some(format!("{rows} rows of {}", batch.table.name)),
    };
    let amounts: Vec<String> = batches.filter_map(amount).collect();
    if amounts.is_empty() { "nothing read".to_owned() } else { amounts.join(", ") }
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
        assert_eq!(amounts([&batch].into_iter()), "1 row of job");
        assert_eq!(amounts([&Batch::new(&met_core::JOB)].into_iter()), "nothing read");
        assert_eq!(
            counters(&batch, cells),
            format!("{}=5", met_core::JOB.columns[met_core::job_table::CPU].name)
        );
    }
}
