//! Rows of any table, as they were just read, for sinks that want them.

use met_core::attribute::JobMap;
use met_core::gpu::{self, device};
use met_core::{Batch, JOB, Row, Subject, Table};
use met_jobs::identity::{NAMED_WITHIN, is_unnamed};
use met_sinks::bus::Ticker;
use met_sinks::event::{Tick, TickRow};
use met_sources::{Runner, self_cost};

use super::tracked::{Jobs, Tracked};

/// What a tick has read, and whose it is.
pub(super) struct TickRows<'a> {
    pub(super) time_ns: i64,
    pub(super) runner: &'a Runner,
    pub(super) job_rows: &'a Batch,
    pub(super) details: &'a Batch,
    pub(super) jobs: &'a Jobs,
    pub(super) map: &'a JobMap,
}

impl TickRows<'_> {
    /// Publishes the rows that sinks want. Sources that are read less often have rows only when they were.
    pub(super) fn publish(&self, ticker: &Ticker) {
        for rows in [self.job_rows, self.details] {
            let is_wanted = std::ptr::eq(rows.table, &JOB) || !rows.is_empty();
            if is_wanted && ticker.wants(rows.table) {
                ticker.publish(self.of_jobs(rows));
            }
        }
        if ticker.wants(&self_cost::TABLE) {
            let mut tick = Tick::new(self.time_ns, &self_cost::TABLE);
            for (source, cells) in self.runner.named_costs() {
                tick.push(TickRow { job: None, user: None, labels: vec![source.to_owned()] }, cells);
            }
            ticker.publish(tick);
        }
        for (batches, labels) in self.runner.labelled() {
            for batch in batches.iter().filter(|batch| !batch.is_empty() && ticker.wants(batch.table)) {
                ticker.publish(self.of_source(batch, labels));
            }
        }
    }

    fn of_jobs(&self, rows: &Batch) -> Tick {
        let mut tick = Tick::new(self.time_ns, rows.table);
        for (row, cells) in rows.rows() {
            if let Some(Tracked { key, user, .. }) = self.job_of(row.owner) {
                let labels =
                    vec![key.cluster.clone().unwrap_or_default(), key.manager.clone(), key.id.clone()];
                tick.push(TickRow { job: Some(key.clone()), user: user.clone(), labels }, cells);
            }
        }
        tick
    }

    fn of_source(&self, batch: &Batch, known: &[Vec<String>]) -> Tick {
        let mut tick = Tick::new(self.time_ns, batch.table);
        for (row, cells) in batch.rows() {
            let labels = labels_of(batch.table, row, known);
            let job = self.job_of(row.owner);
            let (job, user) = (job.map(|job| job.key.clone()), job.and_then(|job| job.user.clone()));
            tick.push(TickRow { job, user, labels }, cells);
        }
        tick
    }

    /// The innermost job that a row belongs to. One that may get another name has no rows yet, and its processes have no
    /// job.
    fn job_of(&self, owner: Subject) -> Option<&Tracked> {
        let slot = match owner {
            Subject::Job(slot) => slot,
            Subject::Node => return None,
            Subject::Cgroup(_) | Subject::Task { .. } => self.map.owner(owner)?,
        };
        let job = self.jobs.get(&slot)?;
        let born_ms = job.age.unix_ms(job.age.born_ns);
        let is_young = self.time_ns / 1_000_000 - born_ms < NAMED_WITHIN.as_millis() as i64;
        (!is_young || !is_unnamed(&job.key)).then_some(job)
    }
}

/// Processes and cgroups are labelled by their numbers; other parts have the labels of their source.
fn labels_of(table: &'static Table, row: Row, known: &[Vec<String>]) -> Vec<String> {
    let part = known.get(row.part as usize);
    let of_part = |index: usize| part.and_then(|part| part.get(index)).cloned().unwrap_or_default();
    let is_gpu_process = std::ptr::eq(table, &gpu::process::TABLE);
    let label = |(index, &name): (usize, &&str)| match (name, row.owner) {
        ("pid", Subject::Task { pid, .. }) => pid.to_string(),
        ("cgroup", Subject::Cgroup(id)) => id.to_string(),
        // Its source has the labels of GPUs.
        ("uuid", _) if is_gpu_process => of_part(device::label::UUID),
        _ => of_part(index),
    };
    table.labels.iter().enumerate().map(label).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use met_core::MISSING;
    use met_core::job::Record;
    use met_host::Host;
    use met_sinks::Bus;
    use met_sinks::event::Event;
    use met_sinks::sink::{Interest, Sink, SinkError};

    use super::*;
    use crate::sampler::Sampler;
    use met_config::Config;

    struct Collects(mpsc::Sender<Event>);

    impl Sink for Collects {
        fn take(&mut self, event: &Event) -> Result<(), SinkError> {
            self.0.send(event.clone()).map_err(|error| SinkError::Failed(error.to_string()))
        }
    }

    /// The tables of a tick of this machine, with its own process as a job, and their rows.
    fn ticked(tables: &[&str]) -> Vec<(&'static str, Vec<TickRow>)> {
        ticked_with(met_core::sample::bare(1, "x"), tables)
    }

    fn ticked_with(mut record: Record, tables: &[&str]) -> Vec<(&'static str, Vec<TickRow>)> {
        let host = Host::real().unwrap();
        let local = record.local.as_mut().unwrap();
        local.boot_id.clone_from(&host.facts().boot_id);
        local.cgroup = Default::default();
        let own = host.process(std::process::id()).unwrap();
        local.main = Some(own);
        local.supervisor = None;
        let mut sampler = Sampler::of_node(host, Duration::from_secs(1), &Config::default());
        let slot = sampler.add(&record).unwrap();
        sampler.add_root(slot, own);
        sampler.look();
        let (sender, received) = mpsc::channel();
        let mut bus = Bus::default();
        let tables = tables.iter().map(|&name| name.to_owned()).collect();
        let interest = Interest { tables, ..Interest::default() };
        bus.add("collects", interest, move || Ok(Box::new(Collects(sender.clone()))));
        sampler.publish_tick(&bus.ticker().unwrap());
        bus.close();
        let tick = |event: Event| match event {
            Event::Tick(tick) => {
                let has_cells = |cells: &[i64]| cells.iter().any(|&cell| cell != MISSING);
                assert!(tick.rows().all(|(_, cells)| has_cells(cells)), "{}", tick.table.name);
                (tick.table.name, tick.rows().map(|(row, _)| row.clone()).collect())
            }
            other => panic!("{other:?}"),
        };
        received.try_iter().map(tick).collect()
    }

    #[test]
    fn rows_of_every_table_that_was_read_have_a_way_out() {
        let ticked = ticked(&["job", "process", "node", "source"]);
        let rows = |name: &str| &ticked.iter().find(|(table, _)| *table == name).unwrap().1;
        assert_eq!(rows("job")[0].labels, ["", "local", "1"]);
        let pid = std::process::id().to_string();
        let own = rows("process").iter().find(|row| row.labels[0] == pid).unwrap();
        assert_eq!(own.job.as_ref().unwrap().id, "1");
        assert!(rows("node")[0].job.is_none());
    }

    #[test]
    fn a_job_that_will_have_another_name_is_in_no_row() {
        let mut record = met_core::sample::bare(1, "x");
        (record.key.manager, record.key.id) = ("slurm".to_owned(), "s7XK2M9PQ4RTVW".to_owned());
        let ticked = ticked_with(record, &["job", "process"]);
        assert_eq!(ticked.iter().map(|(table, _)| *table).collect::<Vec<_>>(), ["process"]);
        assert!(ticked[0].1.iter().all(|row| row.job.is_none()));
    }

    #[test]
    fn tables_that_no_sink_wants_are_not_published() {
        let ticked = ticked(&["node"]);
        assert_eq!(ticked.iter().map(|(table, _)| *table).collect::<Vec<_>>(), ["node"]);
    }
}
