//! Jobs in the files of their user, where no daemon runs.

use std::time::{Duration, Instant};

use anyhow::Result;
use met_core::course::Course;
use met_core::job::{JobKey, Record};
use met_host::Host;
use met_store::{NodePart, Reader, StoreError, Writer};

use super::reference::{self, JobRef};
use super::settling::{overlay, settle_or_end};
use super::{FromDaemon, JobSource, JobsFilter, card_course, table_named};
use crate::client::{Client, Unreachable};
use crate::live::Live;
use crate::setting::Setting;
use met_config::Failure;
use met_config::Place;

/// How long one waits for another writer of the store.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// The store as it is on disk, where no daemon runs, and what is not imported yet. Nothing is written.
pub(super) struct FromFiles {
    host: Host,
    /// Where a daemon would answer.
    place: Place,
    /// None while this process writes: a reader keeps writers away.
    store: Option<Reader>,
    /// Why jobs may be missing from answers.
    unread: Option<String>,
}

impl FromFiles {
    pub(super) fn open(setting: &Setting) -> Result<FromFiles> {
        let (host, place) = (setting.host.clone(), setting.user.clone());
        let mut files = FromFiles { host, place, store: None, unread: None };
        files.store()?;
        Ok(files)
    }

    fn store(&mut self) -> Result<&Reader> {
        let store = match self.store.take() {
            Some(store) => store,
            None => Reader::open_checked(&self.place.state).map_err(|error| match error {
                StoreError::Newer { .. } => Failure::usage(error.to_string()),
                error => error.into(),
            })?,
        };
        Ok(self.store.insert(store))
    }

    /// Who writes is done in a moment, or is a daemon that was just starting: then it is the one to ask.
    fn change(
        &mut self,
        here: impl Fn(&mut Writer) -> Result<(), StoreError>,
        there: impl Fn(&mut FromDaemon) -> Result<()>,
    ) -> Result<()> {
        let begin = Instant::now();
        self.store = None;
        loop {
            match Writer::open(&self.place.state) {
                Err(StoreError::Locked { .. }) if begin.elapsed() < STORE_PATIENCE => {}
                opened => return Ok(here(&mut opened?)?),
            }
            match Client::connect_to(&self.place) {
                Ok((client, _)) => return there(&mut FromDaemon::new(client)),
                // It holds the store for as long as it hangs.
                Err(silent @ Unreachable::Silent { .. }) => {
                    let advice = silent.remedy().unwrap_or_default();
                    return Err(Failure::with_code(1, format!("{silent}; {advice}")));
                }
                Err(_) => {}
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Says what could not be read.
    fn report_damage(&mut self) -> Result<()> {
        let store = self.store()?;
        let warning = unreadable(&store.take_unreadable());
        if let Some(salvage) = store.last_salvage() {
            tracing::warn!("{}", salvage.sentence());
        }
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
            let state = self.place.state.display();
            self.unread = Some(format!(
                "no matching job can be read from {state}: the store is damaged; to repair it, run `met daemon --user`"
            ));
        }
        Ok(())
    }

    fn up_to_date(&mut self, mut jobs: Vec<Record>) -> Result<Vec<Record>> {
        let host = self.host.clone();
        self.report_damage()?;
        let store = self.store()?;
        for record in jobs.iter_mut().filter(|record| record.state.is_live()) {
            settle_or_end(&host, store, record);
            if record.state.is_live() {
                let live = Live::now(&host, record);
                overlay(record, live);
            }
        }
        Ok(jobs)
    }
}

impl JobSource for FromFiles {
    fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>> {
        let jobs = self.store()?.jobs(&filter.to_store())?;
        let mut jobs = self.up_to_date(jobs)?;
        filter.retain(&mut jobs);
        Ok(jobs)
    }

    fn find(&mut self, job: &JobRef) -> Result<Vec<Record>> {
        let jobs = reference::find(self.store()?, job)?;
        self.up_to_date(jobs)
    }

    fn course(&mut self, key: &JobKey) -> Result<Course> {
        Ok(self.store()?.course(key)?)
    }

    fn card_course(&mut self, key: &JobKey, uuid: &str) -> Result<Course> {
        Ok(card_course(self.store()?, key, uuid, i64::MIN)?)
    }

    fn node_courses(&mut self, since_ms: i64) -> Result<Vec<(NodePart, Course)>> {
        let mut courses = Vec::new();
        let store = self.store()?;
        for part in store.node_parts_between(since_ms, i64::MAX)? {
            let Some(table) = table_named(&part.table) else { continue };
            let course = store.node_course(table, &part.part, since_ms, i64::MAX)?;
            courses.push((part, course));
        }
        Ok(courses)
    }

    fn remove(&mut self, key: &JobKey) -> Result<()> {
        self.change(|writer| writer.remove(key), |daemon| daemon.remove(key))
    }

    fn close(&mut self, end: &Record) -> Result<()> {
        self.change(|writer| writer.put(end), |daemon| daemon.close(end))
    }
}

/// A warning about what is missing from a list.
pub fn unreadable(names: &[String]) -> Option<String> {
    (!names.is_empty())
        .then(|| format!("the store is damaged; cannot read {}; see `met doctor`", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::handshake::PROTOCOL;
    use crate::protocol::{Reply, Request, read_frame, write_frame};

    /// What a daemon is asked that has the store, and answers as soon as it listens.
    fn asked(change: impl Fn(&mut FromFiles)) -> Request {
        let root = tempfile::tempdir().unwrap();
        let _daemons = Writer::open(root.path()).unwrap();
        let daemon = Place { state: root.path().to_owned(), runtime: root.path().to_owned(), system: false };
        let listener = UnixListener::bind(daemon.socket()).unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _: Request = read_frame(&mut stream).unwrap();
            write_frame(&mut stream, &Reply::Hello { protocol: PROTOCOL, pid: 1, leaving: false }).unwrap();
            let asked: Request = read_frame(&mut stream).unwrap();
            write_frame(&mut stream, &Reply::Done).unwrap();
            asked
        });
        let store = Reader::open(root.path()).unwrap();
        let host = Host::real().unwrap();
        change(&mut FromFiles { host, place: daemon, store: Some(store), unread: None });
        answering.join().unwrap()
    }

    #[test]
    fn what_a_daemon_that_was_just_starting_holds_is_changed_by_it() {
        let record = met_core::sample::full(1, "train");
        let removed = asked(|files| files.remove(&record.key).unwrap());
        assert!(matches!(removed, Request::Remove(key) if key == record.key));
        let closed = asked(|files| files.close(&record).unwrap());
        assert!(matches!(closed, Request::Ended(end) if end.key == record.key));
    }
}
