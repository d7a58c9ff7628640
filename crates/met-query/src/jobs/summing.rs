//! Keeps the sums of use current: some of the work at a time, by the process that writes the store.

use std::time::{Duration, Instant};

use met_core::MISSING;
use met_core::series::Series;
use met_core::usage::{BUCKET_NS, Machine, MachineSample};
use met_sources::node::{self, TABLE};
use met_store::{StoreError, Writer};

/// Samples before those that are new: a sum is of the time between two.
const BEFORE_MS: i64 = 2 * BUCKET_NS / 1_000_000;
/// Samples of so much time are added in one step.
const STEP_MS: i64 = 86_400_000;

/// Adds jobs that changed, for at most about so long; true when some are left.
pub fn sum_jobs(writer: &mut Writer, most: Duration) -> Result<bool, StoreError> {
    met_store::sum_usage(writer, Instant::now() + most)
}

/// Adds what a node measured of itself since the last call, or a day of it; true when more is left. `series_of`: under
/// which name its series are, which is none for the machine itself.
pub fn sum_machine(
    writer: &mut Writer,
    name: &str,
    series_of: &str,
    now_ms: i64,
) -> Result<bool, StoreError> {
    let mark_ms = met_store::machine_mark(writer, name)?;
    let begin_ms = mark_ms.map_or(0, |mark_ms| mark_ms + 1);
    let Some(first_ms) = writer.node_begin_on(series_of, &[&TABLE], begin_ms, now_ms)? else {
        return Ok(false);
    };
    let (bucket_ms, end_ms) = (BUCKET_NS / 1_000_000, (first_ms + STEP_MS).min(now_ms));
    let from_ms = mark_ms.unwrap_or(first_ms).div_euclid(bucket_ms) * bucket_ms;
    let series = match series_of {
        "" => writer.node_part_series(&TABLE, "", from_ms - BEFORE_MS, end_ms)?,
        node => writer.series_between(&met_store::node_on(node, ""), &TABLE, from_ms - BEFORE_MS, end_ms)?,
    };
    let last_ms = series.times_ms.last().copied().filter(|last_ms| Some(*last_ms) > mark_ms);
    let Some(last_ms) = last_ms else {
        // The day that is said to have samples has none in this part of it.
        if end_ms < now_ms {
            met_store::put_machine(writer, name, &Machine::default(), end_ms, end_ms)?;
        }
        return Ok(end_ms < now_ms);
    };
    let mut machine = Machine::default();
    samples(&series).for_each(|sample| machine.take(sample));
    met_store::put_machine(writer, name, &machine, from_ms, last_ms)?;
    Ok(end_ms < now_ms)
}

fn samples(series: &Series) -> impl Iterator<Item = MachineSample> + '_ {
    (0..series.len()).map(|index| {
        let cell = |column: usize| Some(series.columns[column][index]).filter(|&cell| cell != MISSING);
        let sum = |columns: &[usize]| columns.iter().filter_map(|&column| cell(column)).sum::<i64>();
        let busy = cell(node::CPU_USER).map(|_| {
            sum(&[
                node::CPU_USER,
                node::CPU_NICE,
                node::CPU_SYSTEM,
                node::CPU_INTERRUPT,
                node::CPU_SOFT_INTERRUPT,
            ])
        });
        let idle = cell(node::CPU_IDLE).map(|idle| idle + cell(node::CPU_IO_WAIT).unwrap_or(0));
        MachineSample {
            time_ms: series.times_ms[index],
            uptime_ms: cell(node::UPTIME).map(|uptime_ns| uptime_ns / 1_000_000),
            cpu_ns: busy.zip(idle).map(|(busy, idle)| busy + idle),
            busy_ns: busy,
            memory_bytes: cell(node::MEMORY_TOTAL),
            memory_available_bytes: cell(node::MEMORY_AVAILABLE),
            gpus: cell(node::GPUS),
        }
    })
}

#[cfg(test)]
mod tests {
    use met_core::usage::{By, Every, UsageAsk, machine_figure};

    use super::*;

    #[test]
    fn a_machine_is_summed_step_by_step_as_in_one_go() {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        // 2026-11-15 00:00 UTC.
        let begin_ms = 1_794_700_800_000i64;
        let mut expected = [0; 2];
        for hour in 0..60i64 {
            let mut series = Series::new(&TABLE);
            for minute in 0..60 {
                let minutes = hour * 60 + minute;
                let mut cells = vec![MISSING; TABLE.columns.len()];
                cells[node::UPTIME] = (1_000_000 + minutes) * 60_000_000_000;
                cells[node::CPU_USER] = minutes * 30_000_000_000;
                cells[node::CPU_IDLE] = minutes * 90_000_000_000;
                // An earlier version did not count GPUs; later one is added.
                cells[node::GPUS] = [MISSING, 2, 3][(hour / 20) as usize];
                series.push(begin_ms + minutes * 60_000, &cells);
            }
            writer.append_node("", &series).unwrap();
            // Now and then, and never when a day is full.
            if hour % 7 == 3 {
                while sum_machine(&mut writer, "n1", "", begin_ms + (hour + 1) * 3_600_000).unwrap() {}
            }
        }
        let now_ms = begin_ms + 60 * 3_600_000;
        while sum_machine(&mut writer, "n1", "", now_ms).unwrap() {}
        assert!(!sum_machine(&mut writer, "n1", "", now_ms).unwrap());
        let ask = UsageAsk::new(begin_ms * 1_000_000, now_ms * 1_000_000, By::Node, Every::All);
        let usage = met_store::usage(&writer, &ask, &|_| true, &[], now_ms * 1_000_000).unwrap().unwrap();
        let sums = usage.machines[0].sums;
        expected[0] = (60 * 60 - 1) * 60_000;
        expected[1] = (60 * 60 - 1) * 30_000_000_000i128;
        assert_eq!(sums[machine_figure::MEASURED_MS], expected[0]);
        assert_eq!(sums[machine_figure::CPU_BUSY_NS], expected[1]);
        assert_eq!(sums[machine_figure::CPU_CAPACITY_NS], 4 * expected[1]);
        let gpu_minutes = (2 + 3) * 20 * 60;
        assert_eq!(sums[machine_figure::GPUS_KNOWN_MS], 40 * 60 * 60_000);
        assert_eq!(sums[machine_figure::GPU_CAPACITY_NS], gpu_minutes * 60_000_000_000i128);
        assert_eq!(usage.machine_since, [("n1".to_owned(), begin_ms * 1_000_000)]);
    }
}
