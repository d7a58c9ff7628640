//! What could not be written, on a full disk or while a store does not answer, and is tried again.

use std::collections::VecDeque;

use met_core::job::{JobKey, Record};
use met_jobs::scheduler::Update;
use met_store::StoreError;

/// Records that are kept in memory; of more than these the oldest are lost.
const RECORDS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Unwritten {
    /// The newest of each job, of its start or its end.
    pub(super) records: VecDeque<Record>,
    /// As long as there is one no further news is taken: its scheduler waits with the rest.
    pub(super) reported: Option<Update>,
}

impl Unwritten {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.reported.is_none()
    }

    /// Keeps the start or the end of a job in the place of what was known of it.
    pub(super) fn keep(&mut self, record: Record) {
        self.forget(&record.key);
        if self.records.len() == RECORDS_MAX
            && let Some(lost) = self.records.pop_front()
        {
            tracing::error!("job {}: its {} is lost", lost.key.id, part(&lost));
        }
        self.records.push_back(record);
    }

    pub(super) fn forget(&mut self, key: &JobKey) {
        self.records.retain(|kept| kept.key != *key);
    }

    pub(super) fn record_of(&self, key: &JobKey) -> Option<&Record> {
        self.records.iter().find(|record| record.key == *key)
    }

    /// Writes the records, oldest first, until it fails again. Returns those that were written.
    pub(super) fn write_records(
        &mut self,
        mut write: impl FnMut(&Record) -> Result<(), StoreError>,
    ) -> Vec<Record> {
        let mut written = Vec::new();
        while let Some(record) = self.records.pop_front() {
            match write(&record) {
                Err(error) if !is_hopeless(&error) => {
                    self.records.push_front(record);
                    break;
                }
                Err(error) => {
                    tracing::error!("job {}: its {} is lost: {error}", record.key.id, part(&record));
                }
                Ok(()) => written.push(record),
            }
        }
        written
    }
}

fn part(record: &Record) -> &'static str {
    if record.state.is_live() { "start" } else { "end" }
}

/// The same again will not do.
pub(super) fn is_hopeless(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { .. })
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::time::Duration;

    use met_core::job::{Origin, State};
    use met_host::Host;
    use met_jobs::scheduler::Recorded;

    use super::super::live_settings::Reach;
    use super::super::permissions::Caller;
    use super::super::service::Service;
    use super::super::socket::Peer;
    use super::*;
    use met_config::Config;
    use met_config::Place;
    use met_core::sample;
    use met_query::jobs::JobsFilter;
    use met_query::protocol::{Reply, Request};
    use met_query::setting::Setting;

    fn full() -> StoreError {
        StoreError::Unreachable { at: "store".to_owned(), error: "disk full".to_owned() }
    }

    #[test]
    fn an_end_is_tried_again_until_it_is_written() {
        let mut unwritten = Unwritten::default();
        for number in 1..=3 {
            unwritten.keep(sample::bare(number, "x"));
        }
        let mut written = Vec::new();
        unwritten.write_records(|_| Err(full()));
        assert!(unwritten.record_of(&sample::bare(1, "x").key).is_some());
        unwritten.write_records(|record| match written.len() {
            0 => {
                written.push(record.key.id.clone());
                Ok(())
            }
            _ => Err(full()),
        });
        assert_eq!(written, ["1"]);
        assert!(unwritten.record_of(&sample::bare(1, "x").key).is_none() && !unwritten.is_empty());
        unwritten.write_records(|record| {
            written.push(record.key.id.clone());
            Ok(())
        });
        assert_eq!(written, ["1", "2", "3"]);
        assert!(unwritten.is_empty());
    }

    /// A daemon's parts, of a machine without anything.
    pub(in crate::daemon) fn service(root: &Path) -> Service {
        keeping_by(root, Config::default())
    }

    pub(in crate::daemon) fn keeping_by(root: &Path, config: Config) -> Service {
        std::fs::create_dir_all(root.join("proc")).unwrap();
        std::fs::write(root.join("proc/stat"), "cpu 0 0 0 0\ncpu0 0 0 0 0\n").unwrap();
        std::fs::write(root.join("proc/meminfo"), "MemTotal: 8000000 kB\n").unwrap();
        let place = Place { state: root.join("state"), runtime: root.join("run"), system: false };
        let setting = Setting {
            host: Host::at(root).unwrap(),
            config,
            config_path: None,
            config_text: String::new(),
            is_config_named: false,
            user: place.clone(),
            system: place.clone(),
            server: None,
            reach: Default::default(),
        };
        Service::open(&setting, &place, None).unwrap()
    }

    fn of_slurm(number: u32) -> Record {
        let mut record = sample::full(number, "x");
        record.key.manager = "slurm".to_owned();
        (record.state, record.end_ns, record.inside) = (State::Running, None, None);
        if let Some(local) = &mut record.local {
            (local.origin, local.supervisor) = (Origin::Found, None);
        }
        record
    }

    #[test]
    fn a_store_that_fails_for_a_while_loses_no_end_and_no_news() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        let record = of_slurm(7);
        service.recorder.writer.put(&record).unwrap();
        service.watch(record.clone());
        let other = rusqlite::Connection::open(root.path().join("state/store.db")).unwrap();
        let full = |when: &str| {
            format!("CREATE TRIGGER full_{when} BEFORE {when} ON job BEGIN SELECT RAISE(FAIL, 'full'); END;")
        };
        other.execute_batch(&(full("INSERT") + &full("UPDATE") + &full("DELETE"))).unwrap();

        service.settings.hold(&Reach::Job(record.key.clone()), Some(Duration::from_secs(4)), None);
        service.close_found(record.clone());
        assert!(!service.settings.revert(None), "what held until its end is taken back, written or not");
        let peer = Peer { uid: rustix::process::getuid().as_raw(), pid: std::process::id() };
        for states in [Vec::new(), vec![State::Finished]] {
            let filter = JobsFilter { states, ..JobsFilter::default() };
            let Ok(Reply::Jobs(shown)) = service.answer(Request::Jobs(filter), &Caller::new(peer)) else {
                panic!("no jobs");
            };
            assert_eq!(shown.iter().map(|record| record.state).collect::<Vec<_>>(), [State::Finished]);
        }
        assert_eq!((service.job_count(), service.has_to_flush()), (0, true));
        let mut run = Recorded::new("slurm", "8".to_owned());
        run.scheduling.submit_ns = Some(1_000_000_000);
        service.recorder.unwritten.reported =
            Some(Update { manager: "slurm", recorded: vec![run], cursor: Some(5), ..Update::default() });
        service.flush();
        assert!(
            service.recorder.unwritten.reported.is_some()
                && service.recorder.unwritten.record_of(&record.key).is_some()
        );

        other
            .execute_batch("DROP TRIGGER full_INSERT; DROP TRIGGER full_UPDATE; DROP TRIGGER full_DELETE")
            .unwrap();
        service.flush();
        assert!(service.recorder.unwritten.is_empty());
        assert_eq!(service.recorder.writer.get(&record.key).unwrap().unwrap().state, State::Finished);
        assert_eq!(service.recorder.writer.find(Some("slurm"), "8").unwrap().len(), 1);
        service.close();
    }

    #[test]
    fn an_end_is_stored_though_older_jobs_cannot_be_removed() {
        let root = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.storage.jobs_max = Some(1);
        let mut service = keeping_by(root.path(), config);
        service.recorder.writer.put(&sample::full(1, "x")).unwrap();
        let other = rusqlite::Connection::open(root.path().join("state/store.db")).unwrap();
        let fails = "CREATE TRIGGER kept BEFORE DELETE ON job BEGIN SELECT RAISE(FAIL, 'broken'); END;";
        other.execute_batch(fails).unwrap();
        let end = sample::full(2, "x");
        service.close_job(end.clone()).unwrap();
        assert_eq!(service.recorder.writer.get(&end.key).unwrap().unwrap().state, end.state);

        other.execute_batch("DROP TRIGGER kept").unwrap();
        service.close_job(sample::full(3, "x")).unwrap();
        assert!(service.recorder.writer.get(&end.key).unwrap().is_none(), "the next end removes them");
        service.close();
    }

    #[test]
    fn a_refused_write_does_not_block_others() {
        let mut unwritten = Unwritten::default();
        unwritten.keep(sample::bare(1, "x"));
        unwritten.write_records(|_| {
            Err(StoreError::Refused { at: "store".to_owned(), error: "too long".to_owned() })
        });
        assert!(unwritten.is_empty());
    }

    #[test]
    fn memory_is_bounded_and_a_job_has_one_end() {
        let mut unwritten = Unwritten::default();
        for number in 0..RECORDS_MAX as u32 + 2 {
            unwritten.keep(sample::bare(number, "x"));
            unwritten.keep(sample::bare(number, "y"));
        }
        assert_eq!(unwritten.records.len(), RECORDS_MAX);
        assert!(unwritten.record_of(&sample::bare(1, "x").key).is_none(), "the oldest is gone");
        assert_eq!(unwritten.record_of(&sample::bare(2, "x").key).unwrap().name, "y");
    }
}
