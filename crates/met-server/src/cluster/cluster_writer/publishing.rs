//! What a server publishes to its sinks, after it is durable: jobs, their figures and samples.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use met_core::belief;
use met_core::job::Record;
use met_sinks::bus::{self, Bus};
use met_sinks::event::{Event, Kind, Samples};
use met_store::Writer;
use met_wire::batch::Interim;
use serde::{Deserialize, Serialize};

use super::moving::readable;
use super::wholes::series_key;
use super::{Plan, Received, now_ns};

/// The state of a server's sinks, for readers of its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SinksFile {
    pub time_ns: i64,
    pub sinks: Vec<bus::Status>,
}

impl SinksFile {
    fn path(state: &Path) -> PathBuf {
        state.join("sinks.json")
    }

    /// `None`: no server has sinks.
    pub fn read(state: &Path) -> Option<SinksFile> {
        serde_json::from_slice(&std::fs::read(SinksFile::path(state)).ok()?).ok()
    }

    fn write(&self, state: &Path) -> std::io::Result<()> {
        let (path, beside) = (SinksFile::path(state), state.join("sinks.json.new"));
        std::fs::write(&beside, serde_json::to_vec(self)?)?;
        std::fs::rename(beside, path)
    }
}

/// Publishes to the sinks of a server.
pub(super) struct Publisher {
    pub(super) bus: Bus,
    state: PathBuf,
    /// Published after the samples that came with them.
    ends: Vec<Record>,
}

impl Publisher {
    pub(super) fn open(plan: &Plan) -> Publisher {
        let mut bus = Bus::open(&plan.sinks, None, &plan.state);
        bus.attach(Arc::clone(&plan.hub));
        Publisher { bus, state: plan.state.clone(), ends: Vec::new() }
    }

    /// What the store has of jobs that are about to be written; nothing if no sink wants to know.
    pub(super) fn before(&self, writer: &Writer, write: &[Record]) -> Vec<Option<Record>> {
        match self.bus.wants(Kind::Started) || self.bus.wants(Kind::Ended) {
            true => write.iter().map(|record| writer.get(&record.key).ok().flatten()).collect(),
            false => Vec::new(),
        }
    }

    /// Jobs that are new, or have ended, or whose end has changed. A job written again unchanged is not an
    /// event; one known only from its scheduler before is new.
    pub(super) fn written(&mut self, writer: &Writer, before: Vec<Option<Record>>, written: &[Record]) {
        for (before, record) in before.into_iter().zip(written) {
            // As it is stored: with what its scheduler said of it, for instance.
            let Ok(Some(now)) = writer.get(&record.key) else { continue };
            if before.as_ref() == Some(&now) {
                continue;
            }
            if !now.state.is_live() {
                self.ends.push(now);
            } else if before.is_none_or(|before| !before.state.is_live() || !belief::is_measured(&before)) {
                self.bus.publish(&Event::Started(Arc::new(now)));
            }
        }
    }

    /// The ends among what was written last.
    pub(super) fn ends(&mut self) {
        for ended in self.ends.drain(..) {
            self.bus.publish(&Event::Ended(Arc::new(ended)));
        }
    }

    /// Finished jobs among what a scheduler said.
    pub(super) fn scheduler_records(&mut self, written: Vec<Record>) {
        if self.bus.wants(Kind::Ended) {
            let ended = written.into_iter().filter(|record| !record.state.is_live());
            ended.for_each(|record| self.bus.publish(&Event::Ended(Arc::new(record))));
        }
    }

    /// Figures and samples of new batches.
    pub(super) fn batches(&mut self, group: &[Received]) {
        for Received { node, batch, .. } in group {
            let interims = if self.bus.wants(Kind::Interim) { &batch.interims[..] } else { &[] };
            for interim in interims {
                let key = series_key(node, &interim.key);
                self.bus.publish(&Event::Interim(Arc::new(Interim { key, ..interim.clone() })));
            }
            let pieces = if self.bus.wants(Kind::Samples) { &batch.pieces[..] } else { &[] };
            for piece in pieces {
                let table = met_sources::table(&piece.table);
                if let Some(series) = table.and_then(|table| readable(piece, table)) {
                    let (node, subject) = (Some(node.clone()), piece.subject.clone());
                    self.bus.publish(&Event::Samples(Arc::new(Samples { node, subject, series })));
                }
            }
        }
    }

    pub(super) fn colmet(&mut self, records: Vec<met_wire::colmet::Record>) {
        if self.bus.wants(Kind::Colmet) {
            self.bus.publish(&Event::Colmet(Arc::new(records)));
        }
    }

    pub(super) fn write_status(&self) {
        if self.bus.is_empty() {
            return;
        }
        let file = SinksFile { time_ns: now_ns(), sinks: self.bus.status() };
        if let Err(error) = file.write(&self.state) {
            tracing::warn!("cannot write the state of sinks: {error}");
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.ends();
        let has_sinks = !self.bus.is_empty();
        Bus::close(std::mem::take(&mut self.bus));
        if has_sinks {
            let _ = std::fs::remove_file(SinksFile::path(&self.state));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use met_core::job::{LOCAL, State};
    use met_sinks::sink::{Configured, Interest, Options, Sink, SinkError, SinkSpec};
    use met_store::cluster::{Log, TokenOwner};

    use super::super::ClusterWriter;
    use super::super::tests::{START_S, piece, plan, record, send};
    use super::*;

    static TO_FILE: SinkSpec = SinkSpec {
        name: "file",
        help: "",
        options: &[],
        has_section: false,
        interest: |_| Interest {
            kinds: vec![Kind::Started, Kind::Ended, Kind::Samples],
            ..Interest::default()
        },
        open: |options| Ok(Box::new(ToFile(options.word("path").unwrap_or_default().into()))),
    };

    /// A line for each event: what, which job, where.
    struct ToFile(PathBuf);

    impl Sink for ToFile {
        fn take(&mut self, event: &Event) -> Result<(), SinkError> {
            let line = match event {
                Event::Started(record) => format!("started {}", record.key.id),
                Event::Ended(record) => format!("ended {} {}", record.key.id, record.state.name()),
                Event::Samples(samples) => {
                    format!("{} samples of {}", samples.series.len(), samples.node.as_deref().unwrap_or("?"))
                }
                other => format!("{other:?}"),
            };
            let file = std::fs::OpenOptions::new().create(true).append(true).open(&self.0);
            let written = file.and_then(|mut file| writeln!(file, "{line}"));
            written.map_err(|error| SinkError::Failed(error.to_string()))
        }
    }

    /// A server with one node and a sink that writes to a file.
    fn enrolled(state: &Path) -> (Vec<Configured>, PathBuf) {
        let mut log = Log::open(state).unwrap();
        log.enroll(&TokenOwner::Node("n1".to_owned()), b"n1", 1, false).unwrap();
        let path = state.join("events");
        let mut options = Options::default();
        options.set("path", vec![path.display().to_string()]);
        (vec![Configured { spec: &TO_FILE, options }], path)
    }

    #[test]
    fn starts_ends_and_samples_are_published_once_and_after_a_restart_only_what_is_new() {
        let state = tempfile::tempdir().unwrap();
        let (sinks, path) = enrolled(state.path());
        let begin = || {
            ClusterWriter::start(super::super::Plan { sinks: sinks.clone(), ..plan(state.path()) }).unwrap()
        };

        let cluster_writer = begin();
        let running = record(LOCAL, "1", START_S, State::Running, 0);
        for _ in 0..2 {
            let pieces = vec![piece(&running.key, START_S, 10)];
            send(&cluster_writer, "n1", 1, vec![running.clone()], pieces).unwrap();
        }
        // A record that comes again as it was is no event, nor is one that still runs.
        send(&cluster_writer, "n1", 2, vec![running.clone()], Vec::new()).unwrap();
        assert_eq!(SinksFile::read(state.path()).unwrap().sinks[0].name, "file");
        cluster_writer.stop();
        assert!(SinksFile::read(state.path()).is_none(), "of a server that has ended");
        let cluster_writer = begin();
        let ended = record(LOCAL, "1", START_S, State::Finished, 20);
        send(&cluster_writer, "n1", 3, vec![ended.clone()], Vec::new()).unwrap();
        send(&cluster_writer, "n1", 4, vec![ended], Vec::new()).unwrap();
        cluster_writer.stop();
        let published = std::fs::read_to_string(path).unwrap();
        assert_eq!(published, "started 1\n10 samples of n1\nended 1 finished\n");
    }

    #[test]
    fn a_short_job_is_published_as_its_samples_and_then_its_end() {
        let state = tempfile::tempdir().unwrap();
        let (sinks, path) = enrolled(state.path());
        let cluster_writer =
            ClusterWriter::start(super::super::Plan { sinks, ..plan(state.path()) }).unwrap();
        let ended = record(LOCAL, "1", START_S, State::Finished, 20);
        let pieces = vec![piece(&ended.key, START_S, 10)];
        send(&cluster_writer, "n1", 1, vec![ended], pieces).unwrap();
        cluster_writer.stop();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "10 samples of n1\nended 1 finished\n");
    }

    #[test]
    fn a_job_that_its_scheduler_announced_starts_when_a_node_measures_it() {
        let state = tempfile::tempdir().unwrap();
        let (sinks, path) = enrolled(state.path());
        let cluster_writer =
            ClusterWriter::start(super::super::Plan { sinks, ..plan(state.path()) }).unwrap();
        let running = record("slurm", "7", START_S, State::Running, 0);
        let announced = Record::new(running.key.clone(), "job", running.state);
        cluster_writer.with_writer(move |writer| {
            writer.put(&announced).unwrap();
            vec![announced]
        });
        send(&cluster_writer, "n1", 1, vec![running], Vec::new()).unwrap();
        cluster_writer.stop();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "started 7\n");
    }
    static CLOSED: SinkSpec =
        SinkSpec { name: "closed", open: |_| Err(SinkError::Failed("closed".to_owned())), ..TO_FILE };

    #[test]
    fn what_a_sink_of_a_server_does_not_take_is_counted() {
        let state = tempfile::tempdir().unwrap();
        enrolled(state.path());
        let sinks = vec![Configured { spec: &CLOSED, options: Options::default() }];
        let cluster_writer =
            ClusterWriter::start(super::super::Plan { sinks, ..plan(state.path()) }).unwrap();
        let ended = |id: u64| record(LOCAL, &id.to_string(), START_S, State::Finished, 20);
        // Its state is written with each batch, and counts those before at the latest.
        let mut sent = 0;
        let counted = loop {
            sent += 1;
            send(&cluster_writer, "n1", sent, vec![ended(sent)], Vec::new()).unwrap();
            let status = SinksFile::read(state.path()).unwrap().sinks.remove(0);
            if status.dropped_ends > 0 {
                break status;
            }
            assert!(sent < 1000, "{status:?}");
        };
        assert!(counted.dropped_ends <= sent && counted.delivered == 0, "{counted:?}");
        assert_eq!((counted.failed, counted.last_error.as_deref()), (1, Some("closed")));
        cluster_writer.stop();
    }
}
