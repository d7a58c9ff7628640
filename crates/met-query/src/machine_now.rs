//! What a machine does now, by its last samples.

use met_core::MISSING;
use met_core::node::NodeRow;
use met_core::series::Series;
use met_sources::node::{CPU_BUSY, LOAD_1, MEMORY_AVAILABLE, MEMORY_TOTAL, TABLE};
use serde::{Deserialize, Serialize};

/// What is unknown is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineNow {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_cores: Option<f64>,
    /// Average of the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// Without what the machine could give to programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<f64>,
}

/// Samples further apart than this say nothing of the present.
const RECENT_MS: i64 = 300_000;
/// Readings closer together say little of CPU time, which the kernel counts in hundredths of a second.
const APART_MS: i64 = 400;

/// CPU time of a machine at a sample. How busy it is follows from two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuAt {
    time_ms: i64,
    busy_ns: i64,
}

impl MachineNow {
    /// By a row of the table `node`: levels alone.
    pub fn of_row(cells: &[i64]) -> MachineNow {
        let level = |index: usize| Some(cells[index]).filter(|&cell| cell != MISSING);
        let scaled = |index: usize| level(index).map(|cell| TABLE.columns[index].scaled(cell));
        let used = scaled(MEMORY_TOTAL).zip(scaled(MEMORY_AVAILABLE));
        let memory_used_bytes = used.map(|(total, available)| (total - available).max(0.0));
        MachineNow { busy_cores: None, load: scaled(LOAD_1), memory_used_bytes }
    }

    /// By the last two readings of the table `node`.
    pub fn of_readings(row: &NodeRow) -> MachineNow {
        let elapsed_ms = row.before().map(|(before, _)| (row.window.end_ns - before.end_ns) / 1_000_000);
        let is_recent = elapsed_ms.is_some_and(|elapsed_ms| (APART_MS..=RECENT_MS).contains(&elapsed_ms));
        let busy = || CPU_BUSY.iter().map(|&column| row.rate(column)).sum::<Option<f64>>();
        MachineNow { busy_cores: is_recent.then(busy).flatten(), ..MachineNow::of_row(&row.cells) }
    }

    /// By its samples, and the CPU time before these; with the CPU time at the last one.
    pub fn of(series: &Series, before: Option<CpuAt>) -> (MachineNow, Option<CpuAt>) {
        let (mut now, mut earlier, mut last) = (MachineNow::default(), before, before);
        series.each_row(|time_ms, cells| {
            let busy = CPU_BUSY.iter().map(|&index| cells[index]);
            let busy_ns = busy.reduce(|sum, cell| match sum == MISSING || cell == MISSING {
                true => MISSING,
                false => sum.saturating_add(cell),
            });
            let levels = MachineNow::of_row(cells);
            (now.load, now.memory_used_bytes) =
                (levels.load.or(now.load), levels.memory_used_bytes.or(now.memory_used_bytes));
            if let Some(busy_ns) = busy_ns.filter(|&busy_ns| busy_ns != MISSING) {
                (earlier, last) = (last, Some(CpuAt { time_ms, busy_ns }));
            }
        });
        let is_recent = |one: &CpuAt, other: &CpuAt| (1..=RECENT_MS).contains(&(other.time_ms - one.time_ms));
        let grown =
            earlier.zip(last).filter(|(one, other)| is_recent(one, other) && other.busy_ns >= one.busy_ns);
        now.busy_cores = grown.map(|(one, other)| {
            TABLE.columns[CPU_BUSY[0]].scaled(other.busy_ns - one.busy_ns) * 1e3
                / (other.time_ms - one.time_ms) as f64
        });
        (now, last)
    }
}

#[cfg(test)]
mod tests {
    use met_core::node::NodeRows;
    use met_core::{Batch, Subject, Window};

    use super::*;

    #[test]
    fn how_busy_this_machine_is_follows_from_its_last_two_readings() {
        let mut rows = NodeRows::default();
        let mut read = |at_ms: i64, cpu_ns: i64| {
            let mut batch = Batch::new(&TABLE);
            let cells = batch.push_part(Subject::Node, 0);
            CPU_BUSY.iter().for_each(|&index| cells[index] = 0);
            (cells[CPU_BUSY[0]], cells[MEMORY_TOTAL], cells[MEMORY_AVAILABLE]) = (cpu_ns, 100, 40);
            batch.window = Window { begin_ns: at_ms * 1_000_000, end_ns: at_ms * 1_000_000 };
            rows.take("node", &batch, &[], 10_000_000_000);
            rows.known(at_ms * 1_000_000).map(|(row, _)| MachineNow::of_readings(row)).next().unwrap()
        };
        let first = read(1_000, 5_000_000_000);
        assert_eq!((first.busy_cores, first.memory_used_bytes), (None, Some(60.0)), "unknown is not 0");
        assert_eq!(read(3_000, 8_000_000_000).busy_cores, Some(1.5));
        assert_eq!(read(3_005, 8_030_000_000).busy_cores, None, "a moment says nothing");
        assert_eq!(read(900_000, 8_040_000_000).busy_cores, None, "a pause says nothing of now");
    }

    fn series(rows: &[(i64, i64)]) -> Series {
        let mut series = Series::new(&TABLE);
        for &(time_ms, cpu_ns) in rows {
            let mut cells = vec![MISSING; TABLE.columns.len()];
            CPU_BUSY.iter().for_each(|&index| cells[index] = 0);
            (cells[CPU_BUSY[0]], cells[MEMORY_TOTAL], cells[MEMORY_AVAILABLE]) = (cpu_ns, 100, 40);
            series.push(time_ms, &cells);
        }
        series
    }

    #[test]
    fn how_busy_a_machine_is_follows_from_its_last_two_samples() {
        let second_ns = 1_000_000_000;
        let (now, last) =
            MachineNow::of(&series(&[(1_000, 0), (2_000, 5 * second_ns), (4_000, 8 * second_ns)]), None);
        assert_eq!((now.busy_cores, now.memory_used_bytes, now.load), (Some(1.5), Some(60.0), None));
        // The next batch has one sample.
        let (now, _) = MachineNow::of(&series(&[(6_000, 12 * second_ns)]), last);
        assert_eq!(now.busy_cores, Some(2.0));
        let unknown = |rows: &[(i64, i64)], before| MachineNow::of(&series(rows), before).0.busy_cores;
        assert_eq!(unknown(&[(1_000, 5)], None), None, "one sample says nothing");
        assert_eq!(unknown(&[(6_000, 5)], last), None, "it has been restarted");
        assert_eq!(unknown(&[], last), None);
        assert_eq!(unknown(&[(4_000_000, 900 * second_ns)], last), None, "a pause says nothing of now");
    }
}
