//! Jobs in the files of their user, where no daemon runs.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::belief;
use met_core::grouping::{Membership, Sum, SumSpan};
use met_core::job::{JobKey, Record};
use met_core::listing::Cursor;
use met_core::queue::Queue;
use met_core::reaction::{Reaction, ReactionChange, ReactionTarget};
use met_core::series::{Columns, Series};
use met_core::usage::{Usage, UsageAsk};
use met_core::{JOB, Table, gpu};
use met_host::{Host, users};
use met_store::{NodePart, Page, Reader, StoreError, Writer};

use super::liveness::settle_or_end;
use super::{JobRef, JobsFilter, Remote, Source, gpu_series, now_ns, page_of};
use crate::annotate::no_such_job;
use crate::client::{Client, Unreachable};
use crate::live;
use crate::protocol::NodeStatus;
use crate::query::{Query, every_job, find_in, nothing, running, sees, usage_in};
use crate::queues;
use crate::react::{self, Actor};
use crate::setting::Setting;
use crate::viewer::Viewer;
use met_config::Failure;
use met_config::Place;

/// How long one waits for another writer of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The store as it is on disk, where no daemon runs, and what is not imported yet. Nothing is written.
pub(super) struct FromFiles {
    host: Host,
    /// Where a daemon would answer.
    place: Place,
    /// None while this process writes: a reader keeps writers away.
    store: Mutex<Option<Reader>>,
    /// Why jobs may be missing from answers.
    unread: Mutex<Option<String>>,
}

impl FromFiles {
    pub(super) fn open(setting: &Setting) -> Result<FromFiles> {
        FromFiles::of(setting.host.clone(), setting.user.clone())
    }

    pub(super) fn of(host: Host, place: Place) -> Result<FromFiles> {
        let store = Mutex::new(Some(open_store(&place)?));
        Ok(FromFiles { host, place, store, unread: Mutex::default() })
    }

    fn read<T>(&self, query: impl FnOnce(&Reader) -> Result<T>) -> Result<T> {
        let mut held = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let store = match held.take() {
            Some(store) => store,
            None => open_store(&self.place)?,
        };
        query(held.insert(store))
    }

    /// Who writes is done in a moment, or is a daemon that was just starting: then it is the one to ask.
    fn change(
        &mut self,
        here: impl Fn(&mut Writer) -> Result<(), StoreError>,
        there: impl Fn(&mut Remote) -> Result<()>,
    ) -> Result<()> {
        let begin = Instant::now();
        self.store = Mutex::default();
        loop {
            match Writer::open(&self.place.state) {
                Err(StoreError::Locked { .. }) if begin.elapsed() < STORE_TIMEOUT => {}
                opened => return Ok(here(&mut opened?)?),
            }
            match Client::connect_to(&self.place) {
                Ok((client, _)) => return there(&mut Remote::new(client)),
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

    /// What could not be read.
    fn damage(&self, store: &Reader) -> Vec<String> {
        let (warning, state) = (unreadable(&store.take_unreadable()), self.place.state.display());
        if warning.is_some() {
            *self.unread.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!(
                "no matching job can be read from {state}: the store is damaged; to repair it, run `met daemon --user`"
            ));
        }
        let salvage = store.last_salvage().map(|salvage| salvage.sentence());
        warning.into_iter().chain(salvage).collect()
    }

    fn up_to_date(&self, store: &Reader, mut jobs: Vec<Record>) -> Vec<Record> {
        for record in jobs.iter_mut().filter(|record| record.state.is_live()) {
            settle_or_end(&self.host, store, record);
            if record.state.is_live() {
                let live = live::now(&self.host, record);
                belief::overlay(record, live);
            }
        }
        jobs
    }
}

fn open_store(place: &Place) -> Result<Reader> {
    Reader::open_checked(&place.state).map_err(|error| match error {
        StoreError::Newer { .. } => Failure::usage(error.to_string()),
        error => error.into(),
    })
}

/// Only the user reads their files here.
impl Query for FromFiles {
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<(Page, Vec<String>)> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(nothing()) };
        self.read(|store| {
            let stored = filter.to_store();
            let mut page = store.page_with(&stored, |running| {
                *running = self.up_to_date(store, std::mem::take(running));
            })?;
            if !stored.needs_figures() {
                page.jobs = self.up_to_date(store, page.jobs);
            }
            filter.retain(&mut page.jobs);
            Ok((page, self.damage(store)))
        })
    }

    fn find(&self, viewer: &Viewer, job: &JobRef, after: Option<&Cursor>) -> Result<Page> {
        self.read(|store| {
            let (jobs, next) = page_of(find_in(store, viewer, job)?, after);
            self.damage(store).iter().for_each(|warning| tracing::warn!("{warning}"));
            Ok(Page { jobs: self.up_to_date(store, jobs), next })
        })
    }

    fn series(&self, viewer: &Viewer, key: &JobKey, after_ms: i64) -> Result<Series> {
        self.read(|store| match sees(store, viewer, key)? {
            true => Ok(store.series_of_job_between(key, after_ms.saturating_add(1), i64::MAX)?),
            false => Ok(Series::new(&JOB)),
        })
    }

    fn job_series(
        &self,
        viewer: &Viewer,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        after_ms: i64,
    ) -> Result<Series> {
        self.read(|store| match sees(store, viewer, key)? {
            true => Ok(store.job_series_between(key, table, part, after_ms.saturating_add(1), i64::MAX)?),
            false => Ok(Series::new(table)),
        })
    }

    fn gpu_series(&self, viewer: &Viewer, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Series> {
        self.read(|store| match sees(store, viewer, key)? {
            true => Ok(gpu_series(store, key, uuid, after_ms)?),
            false => Ok(Series::new(&gpu::device::TABLE)),
        })
    }

    fn memberships(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<Vec<Membership>> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(Vec::new()) };
        self.read(|store| Ok(store.memberships(&filter.to_store_whole())?))
    }

    fn usage(&self, viewer: &Viewer, ask: &UsageAsk) -> Result<Usage> {
        let live = every_job(self, viewer, &running())?;
        self.read(|store| usage_in(store, viewer, ask, &live))
    }

    fn reactions(&self, viewer: &Viewer) -> Result<Vec<Reaction>> {
        self.read(|store| Ok(react::seen(viewer, met_store::reactions(store)?)))
    }

    fn queues(&self, viewer: &Viewer) -> Result<Vec<Queue>> {
        self.read(|store| Ok(queues::seen(viewer, store)?))
    }

    fn sums(&self, viewer: &Viewer, filter: &JobsFilter, span: &SumSpan) -> Result<Vec<Sum>> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(Vec::new()) };
        self.read(|store| Ok(store.sums(&filter.to_store_whole(), span)?))
    }

    fn nodes(&self, _: &Viewer) -> Result<Vec<NodeStatus>> {
        Ok(Vec::new())
    }

    fn node_parts(&self, since_ms: i64) -> Result<Option<Vec<NodePart>>> {
        self.read(|store| Ok(Some(store.node_parts_between(since_ms, i64::MAX)?)))
    }

    fn node_part_series(&self, table: &'static Table, part: &str, after_ms: i64) -> Result<Option<Series>> {
        let begin_ms = after_ms.saturating_add(1);
        self.read(|store| Ok(Some(store.node_part_series(table, part, begin_ms, i64::MAX)?)))
    }
}

impl Source for FromFiles {
    fn has_whole_series(&self) -> bool {
        true
    }

    fn again(&self) -> Option<Box<dyn Source>> {
        let store = self.read(|store| Ok(store.another()?)).ok()?;
        let (host, place) = (self.host.clone(), self.place.clone());
        Some(Box::new(FromFiles { host, place, store: Mutex::new(Some(store)), unread: Mutex::default() }))
    }

    fn whole_series(&self, record: &Record, wanted: Columns) -> Result<Option<Series>> {
        self.read(|store| Ok(Some(store.series_of(record, wanted)?)))
    }

    fn unread(&self) -> Option<String> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remove(&mut self, key: &JobKey) -> Result<()> {
        self.change(|writer| writer.remove(key), |daemon| daemon.remove(key))
    }

    fn close(&mut self, end: &Record) -> Result<()> {
        self.change(|writer| writer.put(end), |daemon| daemon.close(end))
    }

    fn annotate(&mut self, key: &JobKey, change: &AnnotationChange) -> Result<Annotation> {
        let said = Cell::new(None);
        self.change(
            |writer| {
                said.set(writer.annotate(key, change, now_ns())?);
                Ok(())
            },
            |daemon| {
                said.set(Some(Ok(Source::annotate(daemon, key, change)?)));
                Ok(())
            },
        )?;
        said.take().ok_or_else(no_such_job)?.map_err(Failure::usage)
    }

    fn react(&mut self, change: &ReactionChange) -> Result<()> {
        let refused = Cell::new(None);
        self.change(
            |writer| {
                let job = match &change.target {
                    ReactionTarget::Job(key) => writer.get(key)?,
                    ReactionTarget::User(_) => None,
                };
                let actor = own_actor();
                match react::react(writer, &actor, job.as_ref(), change) {
                    Ok(()) => Ok(()),
                    Err(error) => match error.downcast::<StoreError>() {
                        Ok(error) => Err(error),
                        Err(error) => {
                            refused.set(Some(error));
                            Ok(())
                        }
                    },
                }
            },
            |daemon| Source::react(daemon, change),
        )?;
        refused.take().map_or(Ok(()), Err)
    }
}

/// The owner of the files.
fn own_actor() -> Actor {
    let uid = rustix::process::getuid().as_raw();
    let name = users::name_of(uid).unwrap_or_else(|| uid.to_string());
    Actor { viewer: Viewer::Everything, name, now_ns: now_ns() }
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
        change(&mut FromFiles {
            host,
            place: daemon,
            store: Mutex::new(Some(store)),
            unread: Mutex::default(),
        });
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
