//! Jobs in the files of their user, where no daemon runs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use met_core::course::Course;
use met_core::job::{JobKey, Record, State};
use met_host::Host;
use met_store::{NodePart, Queries, Reader, Retained, Retention, StoreError, Writer, inbox};

use super::reference::{self, JobRef};
use super::settling::{overlay, remove_empty_cgroups, settle, settle_or_end};
use super::{FromDaemon, JobSource, JobsFilter, card_course, now_ns, table_named};
use crate::client::{Client, Unreachable};
use crate::live::Live;
use crate::setting::Setting;
use met_config::Failure;
use met_config::Place;
use met_config::Storage;

const RETAIN_EVERY: Duration = Duration::from_secs(86_400);
/// How long one waits for another writer of the store.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// The store as it lies on disk, where no daemon runs.
pub(super) struct FromFiles {
    host: Host,
    state: PathBuf,
    /// Where a daemon would answer.
    daemon: Place,
    store: Files,
    /// Why there is no database to read.
    unread: Option<String>,
}

enum Files {
    /// Nobody else writes: what waits in the inbox is imported.
    Ours(Box<Writer>),
    /// Somebody writes at this moment.
    Theirs(Box<Reader>),
}

impl FromFiles {
    pub(super) fn open(setting: &Setting) -> Result<FromFiles> {
        let state = &setting.user.state;
        let host = setting.host.clone();
        let mut unread = None;
        let store = match Writer::open(state) {
            Ok(mut writer) => {
                retain_daily(&mut writer, setting);
                // What cannot be imported, on a full disk, is read where it lies.
                if let Err(error) = import(&mut writer, state, &host) {
                    tracing::warn!("{error:#}");
                }
                Files::Ours(Box::new(writer))
            }
            Err(StoreError::Locked { .. }) => Files::Theirs(Box::new(Reader::open_checked(state)?)),
            Err(
                error @ (StoreError::Io { .. } | StoreError::Database { .. } | StoreError::Damaged { .. }),
            ) => {
                let reader = Reader::open_checked(state)?;
                match reader.has_database() {
                    true => tracing::warn!("{error}"),
                    false => unread = Some(error.to_string()),
                }
                Files::Theirs(Box::new(reader))
            }
            Err(error) => return Err(Failure::usage(error.to_string())),
        };
        Ok(FromFiles { host, state: state.clone(), daemon: setting.user.clone(), store, unread })
    }

    fn queries(&self) -> &Queries {
        match &self.store {
            Files::Ours(writer) => writer,
            Files::Theirs(reader) => reader,
        }
    }

    /// Who writes is done in a moment, or is a daemon that was just starting: then it is the one to ask.
    fn change(
        &mut self,
        here: impl Fn(&mut Writer) -> Result<(), StoreError>,
        there: impl Fn(&mut FromDaemon) -> Result<()>,
    ) -> Result<()> {
        if let Files::Ours(writer) = &mut self.store {
            return Ok(here(writer)?);
        }
        let begin = Instant::now();
        loop {
            match Writer::open(&self.state) {
                Err(StoreError::Locked { .. }) if begin.elapsed() < STORE_PATIENCE => {}
                opened => return Ok(here(&mut opened?)?),
            }
            match Client::connect_to(&self.daemon) {
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
    fn report_damage(&self) {
        if let Some(warning) = unreadable(&self.queries().take_unreadable()) {
            tracing::warn!("{warning}");
        }
        if let Some(salvage) = self.queries().last_salvage() {
            tracing::warn!("{}", salvage.sentence());
        }
    }

    fn up_to_date(&self, mut jobs: Vec<Record>) -> Vec<Record> {
        for record in jobs.iter_mut().filter(|record| record.state.is_live()) {
            settle_or_end(&self.host, self.queries(), record);
            if record.state.is_live() {
                let live = Live::now(&self.host, record);
                overlay(record, live);
            }
        }
        remove_empty_cgroups(&self.host, &jobs);
        jobs
    }
}

impl JobSource for FromFiles {
    fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>> {
        let jobs = self.queries().jobs(&filter.to_store())?;
        self.report_damage();
        let mut jobs = self.up_to_date(jobs);
        filter.retain(&mut jobs);
        Ok(jobs)
    }

    fn find(&mut self, job: &JobRef) -> Result<Vec<Record>> {
        let jobs = reference::find(self.queries(), job)?;
        self.report_damage();
        Ok(self.up_to_date(jobs))
    }

    fn course(&mut self, key: &JobKey) -> Result<Course> {
        Ok(self.queries().course(key)?)
    }

    fn card_course(&mut self, key: &JobKey, uuid: &str) -> Result<Course> {
        Ok(card_course(self.queries(), key, uuid, i64::MIN)?)
    }

    fn node_courses(&mut self, since_ms: i64) -> Result<Vec<(NodePart, Course)>> {
        let mut courses = Vec::new();
        for part in self.queries().node_parts_between(since_ms, i64::MAX)? {
            let Some(table) = table_named(&part.table) else { continue };
            let course = self.queries().node_course(table, &part.part, since_ms, i64::MAX)?;
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

/// Opens the store for writing; a command that lists jobs holds it for a moment, too.
pub fn open_writer(state: &Path) -> Result<Writer, StoreError> {
    let begin = Instant::now();
    loop {
        match Writer::open(state) {
            Err(StoreError::Locked { .. }) if begin.elapsed() < STORE_PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// Where no daemon runs, whoever lists jobs removes the old ones, once a day.
fn retain_daily(writer: &mut Writer, setting: &Setting) {
    let mark = setting.user.state.join("retained");
    let age =
        std::fs::metadata(&mark).and_then(|mark| mark.modified()).ok().and_then(|time| time.elapsed().ok());
    if age.is_some_and(|age| age < RETAIN_EVERY) {
        return;
    }
    let result = writer.retain(&retention(&setting.config.storage), now_ns()).map_err(anyhow::Error::from);
    let result = result.map(|retained| log_removed(&retained));
    if let Err(error) = result.and_then(|()| Ok(std::fs::write(&mark, "")?)) {
        tracing::warn!("old jobs could not be removed: {error:#}");
    }
}

pub fn retention(storage: &Storage) -> Retention {
    Retention { max_age_ns: i64::try_from(storage.keep.as_nanos()).ok(), max_bytes: Some(storage.max_bytes) }
}

/// Logs what was removed, and whose it was.
pub fn log_removed(retained: &Retained) {
    retained.lines().iter().for_each(|line| tracing::info!("{line}"));
}

/// A warning about what is missing from a list.
pub fn unreadable(names: &[String]) -> Option<String> {
    (!names.is_empty())
        .then(|| format!("the store is damaged; cannot read {}; see `met doctor`", names.join(", ")))
}

/// Takes what lies in the inbox into the store. Jobs whose supervisor is gone are lost. Returns those that ended.
pub fn import(writer: &mut Writer, state: &Path, host: &Host) -> Result<Vec<Record>> {
    match (writer.moved_aside.take(), writer.salvaged.take()) {
        // Every list says so as long as the damaged file is there.
        (_, Some(salvage)) => tracing::error!("{}", salvage.sentence()),
        (Some(aside), None) => {
            tracing::warn!("samples of a day were damaged; the file was moved to {}", aside.display());
        }
        (None, None) => {}
    }
    let imported = writer.import()?;
    for problem in &imported.problems {
        tracing::warn!("{problem}");
    }
    let (mut ended, mut ended_meanwhile) = (imported.ended, false);
    for mut record in imported.live {
        settle(host, &mut record);
        let Some(folder) = record.key.id.parse().ok().map(|id| inbox::JobDir::open(state, id)) else {
            continue;
        };
        if record.state != State::Lost {
            continue;
        }
        // Between the listing and the look at its supervisor it may have written its end and gone. A
        // supervisor that is dead now writes no more.
        match folder.read() {
            entry if entry.end.is_some() => ended_meanwhile = true,
            entry if entry.end_is_absent => {
                writer.put(&record)?;
                folder.remove()?;
                ended.push(record);
            }
            // It stays where it is until it can be read.
            entry => entry.problems.iter().for_each(|problem| tracing::warn!("{problem}")),
        }
    }
    if ended_meanwhile {
        ended.extend(writer.import()?.ended);
    }
    Ok(ended)
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
        let store = Files::Theirs(Box::new(Reader::open(root.path()).unwrap()));
        let host = Host::real().unwrap();
        change(&mut FromFiles { host, state: root.path().to_owned(), daemon, store, unread: None });
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
