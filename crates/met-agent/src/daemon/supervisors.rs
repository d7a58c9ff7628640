//! Whether the supervisors of jobs still live: seen by their connections, and checked where there is none.
//!
//! A connection costs one descriptor, which a supervisor needs in any case to learn that its daemon is gone;
//! without free descriptors the daemon checks for it from time to time. So a lack of descriptors is never taken for
//! the end of a supervisor.

use std::time::{Duration, Instant};

use met_core::job::{JobKey, Record, State};
use met_host::{Host, Liveness};
use met_store::inbox::{Entry, JobDir};

use super::registry::{RegisteredJob, Registry, is_found};
use super::spare_descriptors::Spare;
use met_config::Place;
use met_query::jobs;

/// A connection closes a moment before its process is gone.
const FIRST_LOOK: Duration = Duration::from_millis(5);
/// How late the end of a supervisor without a connection is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// At once.
pub(super) const LOOK_FOR: Duration = Duration::from_millis(100);
/// An end that cannot be read: there are no descriptors, or the disk fails.
const UNREAD_AGAIN: Duration = Duration::from_secs(5);

/// How the supervisor of a job is watched.
pub(super) struct Watch {
    /// Connections that announced the job.
    links: u32,
    look_at: Instant,
    pause: Duration,
    /// That its end cannot be read was said.
    reported: bool,
}

impl Watch {
    pub(super) fn new() -> Watch {
        Watch { links: 0, look_at: Instant::now() + FIRST_LOOK, pause: FIRST_LOOK, reported: false }
    }

    fn look_again(&mut self, at_most: Duration) {
        self.pause = (self.pause * 2).min(at_most);
        self.look_at = Instant::now() + self.pause;
    }
}

/// What a supervisor that is gone left of its job: its end, or nothing. Its folder goes when that is written.
pub(super) struct Left {
    pub(super) record: Record,
    pub(super) is_end: bool,
    pub(super) folder: Option<JobDir>,
}

impl Registry {
    /// The supervisor of a job holds a connection.
    pub(super) fn linked(&mut self, key: &JobKey) {
        if let Some(kept) = self.jobs.get_mut(key) {
            kept.watch.links += 1;
        }
    }

    /// Such a connection is gone, and its supervisor perhaps with it.
    pub(super) fn unlinked(&mut self, key: &JobKey) {
        if let Some(kept) = self.jobs.get_mut(key) {
            let watch = &mut kept.watch;
            *watch = Watch { links: watch.links.saturating_sub(1), ..Watch::new() };
        }
    }

    fn unlinked_jobs(&self) -> impl Iterator<Item = (&JobKey, &RegisteredJob)> {
        let jobs = self.jobs.iter().map(|(key, kept)| (key, &**kept));
        jobs.filter(|(_, kept)| kept.watch.links == 0 && !is_found(&kept.record))
    }

    pub(super) fn next_supervisor_look(&self) -> Option<Instant> {
        self.unlinked_jobs().map(|(_, kept)| kept.watch.look_at).min()
    }

    /// Jobs whose supervisors have no connection and must be checked.
    pub(super) fn due_supervisors(&self, now: Instant) -> Vec<JobKey> {
        let due = self.unlinked_jobs().filter(|(_, kept)| kept.watch.look_at <= now);
        due.map(|(key, _)| key.clone()).collect()
    }

    /// Whether the supervisor of a job is proven to be gone; the others are checked later.
    pub(super) fn is_orphan(&mut self, key: &JobKey, host: &Host) -> bool {
        let Some(kept) = self.jobs.get_mut(key) else { return false };
        let local = kept.record.local.as_ref();
        let liveness = local.map_or(Liveness::Gone, |local| jobs::supervision(host, local));
        if liveness != Liveness::Gone {
            kept.watch.look_again(LOOK_EVERY);
        }
        liveness == Liveness::Gone
    }

    /// What the supervisor of a job left: the end, or the job is lost. Of an end that cannot be read nothing is
    /// concluded: it is read later.
    pub(super) fn left_by(&mut self, key: &JobKey, place: &Place, spare: &mut Spare) -> Option<Left> {
        let kept = self.jobs.get_mut(key)?;
        // A system daemon reads no inbox of a user.
        let id = key.id.parse().ok().filter(|_| !place.system);
        let Some(folder) = id.map(|id| JobDir::open(&place.state, id)) else {
            return Some(lost(&kept.record, None));
        };
        let entry = spare.read_with(|| folder.read(), is_unread);
        if is_unread(&entry) {
            if !std::mem::replace(&mut kept.watch.reported, true) {
                tracing::error!("job {}: its end cannot be read: {}", key.id, entry.problems.join(", "));
            }
            kept.watch.look_again(UNREAD_AGAIN);
            return None;
        }
        let is_its_folder = entry.start.as_ref().is_none_or(|start| start.key == *key);
        Some(match entry.end {
            Some(record) if record.key == *key => Left { record, is_end: true, folder: Some(folder) },
            // Another job has the number by now.
            Some(_) => lost(&kept.record, None),
            None => lost(&kept.record, Some(folder).filter(|_| is_its_folder)),
        })
    }
}

/// No process waits for the job and none recorded an end.
fn lost(record: &Record, folder: Option<JobDir>) -> Left {
    tracing::warn!("job {}: its supervisor was killed", record.key.id);
    Left { record: Record { state: State::Lost, ..record.clone() }, is_end: false, folder }
}

fn is_unread(entry: &Entry) -> bool {
    entry.end.is_none() && !entry.end_is_absent
}

#[cfg(test)]
mod tests {
    use std::fs;

    use met_core::job::{Origin, ProcessId};

    use super::super::service::Service;
    use super::super::write_retries::tests::service;
    use super::*;
    use met_core::sample;

    /// A running job of ours whose supervisor is pid 7 of a machine on which there is none.
    fn orphan(host: &Host) -> Record {
        let mut record = sample::full(1, "train");
        (record.state, record.end_ns, record.inside) = (State::Running, None, None);
        record.key.id = "1".to_owned();
        let local = record.local.as_mut().unwrap();
        local.origin = Origin::Run;
        local.boot_id.clone_from(&host.facts().boot_id);
        (local.supervisor, local.main) = (Some(ProcessId { pid: 7, start_ticks: 5 }), None);
        local.cgroup = Default::default();
        record
    }

    /// Looks until the job is closed: a busy sampler may put it off.
    fn look_until_closed(service: &mut Service, key: &JobKey) {
        while service.job_count() > 0 {
            service.look_at_supervisor(key);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_registry_alone_says_what_a_supervisor_left() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/stat"), "cpu 0 0 0 0\n").unwrap();
        let host = Host::at(root.path()).unwrap();
        let place =
            Place { state: root.path().join("state"), runtime: root.path().join("run"), system: false };
        let (mut registry, record) = (Registry::default(), orphan(&host));
        registry.insert(record.clone());
        let mut left = || {
            assert!(registry.is_orphan(&record.key, &host));
            let left = registry.left_by(&record.key, &place, &mut Spare::hold()).unwrap();
            (left.is_end, left.record.state)
        };
        let folder = JobDir::claim(&place.state, 1).unwrap();
        folder.write_start(&record).unwrap();
        assert_eq!(left(), (false, State::Lost));
        folder.write_end(&Record { state: State::Failed, ..record.clone() }).unwrap();
        assert_eq!(left(), (true, State::Failed));
    }

    #[test]
    fn an_end_that_cannot_be_read_is_neither_lost_nor_deleted() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        let record = orphan(&service.host);
        let folder = JobDir::claim(&root.path().join("state"), 1).unwrap();
        folder.write_start(&record).unwrap();
        // Like a disk that fails: it is there, and cannot be read.
        let end = folder.path().join("end");
        fs::create_dir(&end).unwrap();
        service.recorder.writer.put(&record).unwrap();
        service.watch(record.clone());
        service.look_at_supervisor(&record.key);
        assert_eq!(service.job_count(), 1);
        assert_eq!(service.recorder.writer.get(&record.key).unwrap().unwrap().state, State::Running);
        assert!(end.exists() && folder.path().join("start").exists());

        fs::remove_dir(&end).unwrap();
        let mut finished = record.clone();
        (finished.state, finished.exit_code, finished.end_ns) = (State::Failed, Some(3), record.start_ns);
        folder.write_end(&finished).unwrap();
        look_until_closed(&mut service, &record.key);
        let kept = service.recorder.writer.get(&record.key).unwrap().unwrap();
        assert_eq!((kept.state, kept.exit_code, service.job_count()), (State::Failed, Some(3), 0));
        assert!(!end.exists(), "committed, and then deleted");
        service.close();
    }

    #[test]
    fn a_supervisor_that_cannot_be_checked_is_not_dead() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        let record = orphan(&service.host);
        fs::create_dir_all(root.path().join("proc/7")).unwrap();
        let stat = root.path().join("proc/7/stat");
        let _socket = std::os::unix::net::UnixListener::bind(&stat).unwrap();
        JobDir::claim(&root.path().join("state"), 1).unwrap().write_start(&record).unwrap();
        service.watch(record.clone());
        service.registry.linked(&record.key);
        assert!(service.registry.next_supervisor_look().is_none(), "who is connected is not looked for");
        service.registry.unlinked(&record.key);
        assert!(service.registry.next_supervisor_look().is_some());
        service.look_at_supervisor(&record.key);
        assert_eq!(service.job_count(), 1);
        fs::remove_file(&stat).unwrap();
        look_until_closed(&mut service, &record.key);
        assert_eq!(service.recorder.writer.get(&record.key).unwrap().unwrap().state, State::Lost);
        service.close();
    }

    #[test]
    fn the_folder_of_another_job_with_the_same_number_stays() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        let record = orphan(&service.host);
        let folder = JobDir::claim(&root.path().join("state"), 1).unwrap();
        let mut other = record.clone();
        other.key.incarnation += 1;
        folder.write_start(&other).unwrap();
        (other.state, other.end_ns) = (State::Finished, other.start_ns);
        folder.write_end(&other).unwrap();
        service.watch(record.clone());
        look_until_closed(&mut service, &record.key);
        assert_eq!(folder.read().end.map(|end| end.key), Some(other.key));
        service.close();
    }
}
