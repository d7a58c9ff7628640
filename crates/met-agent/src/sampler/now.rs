//! What the last tick knows, copied for others: whoever asks later costs no tick anything.

use std::collections::HashMap;

use met_core::gpu::card::{self, label};
use met_core::job::JobKey;
use met_core::job_table::*;
use met_core::{JOB, MISSING, Table};
use met_host::clock;
use met_sinks::snapshot::{HeldCard, Rows};
use met_sources::{SOURCES, self_cost};

use met_core::sampled::OF_NETWORK;

use super::{Sampler, Tracked};
use met_query::hidden_io;

/// The machine and its jobs at one tick.
#[derive(Clone, Debug, Default)]
pub struct NodeNow {
    /// Unix nanoseconds.
    pub time_ns: i64,
    pub interval_ns: i64,
    pub ticks: u64,
    pub tables: Vec<Rows>,
    /// Each with its row of the job table.
    pub jobs: HashMap<JobKey, Vec<i64>>,
    pub cards: Vec<(JobKey, HeldCard)>,
}

impl Sampler {
    pub fn now(&self) -> NodeNow {
        let now_ns = clock::boottime_ns();
        let mut tables = self.node_tables(now_ns);
        tables.push(self.card_rows());
        tables.push(self.cost_rows());
        tables.extend(self.energy.tables());
        let jobs = self.jobs.iter().map(|(&slot, job)| (job.key.clone(), self.cells_of(slot, job, now_ns)));
        NodeNow {
            time_ns: now_ns + clock::unix_offset_ns(),
            interval_ns: self.interval_ns,
            ticks: self.ticks,
            jobs: jobs.collect(),
            cards: self.held_cards(),
            tables,
        }
    }

    /// Of the machine, without what has grown old: a gap is a gap on a page, too.
    fn node_tables(&self, now_ns: i64) -> Vec<Rows> {
        let mut tables: Vec<Rows> = Vec::new();
        for (row, _) in self.node.known(now_ns) {
            rows_of(&mut tables, row.table).push(&row.labels, &row.cells);
        }
        tables
    }

    fn card_rows(&self) -> Rows {
        let mut rows = Rows::new(&card::TABLE);
        for card in self.cards.now() {
            rows.push(card.labels, card.cells);
        }
        rows
    }

    fn cost_rows(&self) -> Rows {
        let mut rows = Rows::new(&self_cost::TABLE);
        for (row, cells) in self.runner.costs().rows() {
            let name = SOURCES.get(row.part as usize).map_or("?", |spec| spec.name);
            rows.push(&[name.to_owned()], cells);
        }
        rows
    }

    fn held_cards(&self) -> Vec<(JobKey, HeldCard)> {
        let mut held = Vec::new();
        for card in self.cards.now() {
            let text = |index: usize| card.labels.get(index).cloned().unwrap_or_default();
            for (slot, _) in &card.holders {
                let Some(job) = self.jobs.get(slot) else { continue };
                let card = HeldCard {
                    index: text(label::INDEX),
                    uuid: text(label::UUID),
                    parent: text(label::PARENT),
                    vendor: text(label::VENDOR),
                    mig: text(label::MIG),
                };
                held.push((job.key.clone(), card));
            }
        }
        held
    }

    /// The job's row with its counters and levels as last read and its peaks so far, as `live` tells them.
    fn cells_of(&self, slot: u32, job: &Tracked, now_ns: i64) -> Vec<i64> {
        let mut cells = vec![MISSING; JOB.columns.len()];
        let running = &job.running;
        let now_ms = (now_ns + job.unix_offset_ns) / 1_000_000;
        for (column, value) in running.levels(now_ms - running.gap_ms()) {
            cells[column] = value;
        }
        for (column, value) in running.counters(job.profile.attached) {
            cells[column] = value;
        }
        if job.profile.hides_io {
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
        self.energy.fill(slot, &mut cells);
        // A counter on a page does not fall because a card's energy turned out to be another's: that is a restart to
        // whoever reads it.
        for column in met_core::energy::COLUMNS {
            if cells[column] != MISSING {
                cells[column] = cells[column].max(job.floors[column]);
            }
        }
        cells
    }
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
    use met_config::Config;
    use met_core::sample;

    #[test]
    fn the_energy_of_a_job_on_a_page_does_not_fall_when_a_card_is_corrected() {
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
        sampler.energy.recall(slot, &before, false);
        let shown = |sampler: &Sampler| sampler.now().jobs[&record.key][ENERGY];
        assert_eq!(shown(&sampler), 3_000_000);
        // The last tick had more, before a part of it went to another job.
        sampler.jobs.get_mut(&slot).unwrap().floors[ENERGY] = 5_000_000;
        assert_eq!(shown(&sampler), 5_000_000);
    }
}
