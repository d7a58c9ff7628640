//! What the last tick knows, copied for others: later requests cost no tick anything.

use std::collections::HashMap;

use met_core::job::{EventCount, JobKey};
use met_core::job_table::*;
use met_core::sampled::OF_NETWORK;
use met_core::{JOB, MISSING, Table};
use met_query::hidden_io;
use met_sinks::snapshot::{HeldGpu, Rows};
use met_sources::{Runner, self_cost};

use super::machine::Machine;
use super::tracked::Tracked;
use crate::node_energy::NodeEnergy;

/// The machine and its jobs at one tick.
#[derive(Clone, Debug, Default)]
pub struct NodeNow {
    /// Unix nanoseconds.
    pub time_ns: i64,
    /// The shortest time between two ticks, and the longest.
    pub interval_ns: i64,
    pub together_ns: i64,
    pub ticks: u64,
    pub tables: Vec<Rows>,
    pub jobs: HashMap<JobKey, JobNow>,
    pub gpus: Vec<(JobKey, HeldGpu)>,
}

/// One job at that tick.
#[derive(Clone, Debug, Default)]
pub struct JobNow {
    /// Its row of the job table.
    pub cells: Vec<i64>,
    /// Its row of the table of details; empty where these were not asked for.
    pub details: Vec<i64>,
    pub events: Vec<EventCount>,
}

impl Tracked {
    /// The job's row with its counters and levels as last read and its peaks so far, as [`Tracked::live`] has them.
    pub(super) fn cells(&self, slot: u32, energy: &NodeEnergy, now_ns: i64) -> Vec<i64> {
        let mut cells = vec![MISSING; JOB.columns.len()];
        let running = &self.running;
        for (column, value) in running.levels(self.age.unix_ms(now_ns) - running.sparse_ms()) {
            cells[column] = value;
        }
        for (column, value) in running.counters(self.profile.attached) {
            cells[column] = value;
        }
        if self.profile.hides_io {
            hidden_io::blank(&mut cells);
        }
        for (column, value) in running.counters(true).filter(|(column, _)| OF_NETWORK.contains(column)) {
            cells[column] = value;
        }
        let peaks = [
            (MEMORY_NEEDED, MEMORY_NEEDED_PEAK),
            (PROCESSES_RUNNING, PROCESSES_PEAK),
            (THREADS_RUNNING, THREADS_PEAK),
            (GPU_MEMORY, GPU_MEMORY_PEAK),
        ];
        for (level, peak) in peaks {
            cells[peak] = running.maximum(level).unwrap_or(MISSING);
        }
        // The kernel's own peak is read at slow ticks only; meanwhile the samples may know better.
        if let Some(peak) = running.maximum(MEMORY_PEAK) {
            cells[MEMORY_PEAK] = peak.max(running.maximum(MEMORY_NEEDED).unwrap_or(0));
        }
        if let Some(cores) = running.peak_cores() {
            cells[CORES_PEAK] = (cores * 1000.0).round() as i64;
        }
        energy.fill(slot, &mut cells);
        // A counter on a page does not fall because a GPU's energy turned out to be another's: that is a restart to
        // its readers.
        for column in met_core::energy::COLUMNS {
            if cells[column] != MISSING {
                cells[column] = cells[column].max(self.counts.floors[column]);
            }
        }
        cells
    }
}

/// Of the machine, without what has grown old: a gap is a gap on a page, too.
pub(super) fn node_tables(machine: &Machine) -> Vec<Rows> {
    let mut tables: Vec<Rows> = Vec::new();
    for (row, _) in machine.rows() {
        rows_of(&mut tables, row.table).push(&row.labels, &row.cells);
    }
    tables
}

pub(super) fn cost_rows(runner: &Runner) -> Rows {
    let mut rows = Rows::new(&self_cost::TABLE);
    for (source, cells) in runner.named_costs() {
        rows.push(&[source.to_owned()], cells);
    }
    rows
}

fn rows_of<'t>(tables: &'t mut Vec<Rows>, table: &'static Table) -> &'t mut Rows {
    let index = match tables.iter().position(|rows| std::ptr::eq(rows.table, table)) {
        Some(index) => index,
        None => {
            tables.push(Rows::new(table));
            tables.len() - 1
        }
    };
    &mut tables[index]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use met_host::Host;

    use super::*;
    use crate::sampler::Sampler;
    use met_config::Config;
    use met_core::sample;

    #[test]
    fn the_energy_of_a_job_on_a_page_does_not_fall_when_a_gpu_is_corrected() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/stat"), "cpu 0 0 0 0\n").unwrap();
        let host = Host::at(root.path()).unwrap();
        let mut record = sample::bare(1, "x");
        record.local.as_mut().unwrap().boot_id.clone_from(&host.facts().boot_id);
        let mut sampler = Sampler::of_node(host, Duration::from_secs(1), &Config::default());
        let slot = sampler.add(&record).unwrap();
        let mut before = vec![MISSING; JOB.columns.len()];
        before[ENERGY] = 3_000_000;
        sampler.energy.recall(slot, &before, Default::default());
        let shown = |sampler: &Sampler| sampler.now(false).jobs[&record.key].cells[ENERGY];
        assert_eq!(shown(&sampler), 3_000_000);
        // The last tick had more, before a part of it went to another job.
        sampler.jobs.get_mut(&slot).unwrap().counts.floors[ENERGY] = 5_000_000;
        assert_eq!(shown(&sampler), 5_000_000);
    }
}
