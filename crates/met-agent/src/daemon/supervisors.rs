//! Whether the supervisors of jobs still live: seen at the connection of each, and looked for where there is none.
//!
//! A connection costs one descriptor, which a supervisor needs in any case to learn that its daemon is gone; where
//! there are none left it is looked for from time to time. So the end of a supervisor is never taken from a lack of
//! descriptors.

use std::time::{Duration, Instant};

use met_core::job::{JobKey, State};
use met_host::Liveness;
use met_store::inbox::{Entry, JobDir};

use super::keeping::Keeping;
use super::registry::Kept;
use met_query::jobs;

/// A connection closes a moment before its process is gone.
const FIRST_LOOK: Duration = Duration::from_millis(5);
/// How late the end of a supervisor without a connection is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// At once.
const LOOK_FOR: Duration = Duration::from_millis(100);
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

impl Keeping {
    /// The supervisor of a job holds a connection.
    pub fn linked(&mut self, key: &JobKey) {
        if let Some(kept) = self.registry.jobs.get_mut(key) {
            kept.watch.links += 1;
        }
    }

    /// Such a connection is gone, and its supervisor perhaps with it.
    pub fn unlinked(&mut self, key: &JobKey) {
        if let Some(kept) = self.registry.jobs.get_mut(key) {
            let watch = &mut kept.watch;
            *watch = Watch { links: watch.links.saturating_sub(1), ..Watch::new() };
        }
    }

    fn unlinked_jobs(&self) -> impl Iterator<Item = (&JobKey, &Kept)> {
        self.registry
            .jobs
            .iter()
            .filter(|(_, kept)| kept.watch.links == 0 && !Keeping::is_found(&kept.record))
    }

    pub fn next_supervisor_look(&self) -> Option<Instant> {
        self.unlinked_jobs().map(|(_, kept)| kept.watch.look_at).min()
    }

    /// Looks at the supervisors that hold no connection, where that is due.
    pub fn look_at_supervisors(&mut self) {
        let now = Instant::now();
        let due = self.unlinked_jobs().filter(|(_, kept)| kept.watch.look_at <= now);
        for key in due.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            // Each end is a write: who waits for an answer does not wait for hundreds. The others are still due.
            if now.elapsed() > LOOK_FOR {
                break;
            }
            self.look_at_supervisor(&key);
        }
    }

    /// Ends the job if its supervisor is proven to be gone.
    pub(super) fn look_at_supervisor(&mut self, key: &JobKey) {
        let Some(kept) = self.registry.jobs.get_mut(key) else { return };
        let liveness =
            kept.record.local.as_ref().map_or(Liveness::Gone, |local| jobs::supervision(&self.host, local));
        match liveness {
            // Still due.
            Liveness::Gone if !self.sampling.is_ready() => {}
            Liveness::Gone => self.supervisor_gone(key),
            Liveness::Alive | Liveness::Unknown => kept.watch.look_again(LOOK_EVERY),
        }
    }

    /// The supervisor of a job is gone: it left the end behind, or the job is lost. Of an end that cannot be read
    /// nothing is concluded: it is read later.
    fn supervisor_gone(&mut self, key: &JobKey) {
        // A system daemon reads no inbox of a user.
        let id = key.id.parse().ok().filter(|_| !self.place.system);
        let Some(folder) = id.map(|id| JobDir::open(&self.place.state, id)) else {
            return self.give_up(key, None);
        };
        let entry = self.admission.spare.read_with(|| folder.read(), is_unread);
        if is_unread(&entry) {
            let Some(kept) = self.registry.jobs.get_mut(key) else { return };
            if !std::mem::replace(&mut kept.watch.reported, true) {
                tracing::error!("job {}: its end cannot be read: {}", key.id, entry.problems.join(", "));
            }
            return kept.watch.look_again(UNREAD_AGAIN);
        }
        let is_its_folder = entry.start.as_ref().is_none_or(|start| start.key == *key);
        match entry.end {
            Some(end) if end.key == *key => match self.close_job(end) {
                Ok(()) => drop(folder.remove()),
                // It stays in the inbox, where every reader finds it.
                Err(error) => {
                    tracing::error!("cannot keep the end of job {}: {error:#}", key.id);
                    self.registry.jobs.remove(key);
                    self.outputs.on_board(|board| board.forget(key));
                    self.revert_with(key);
                }
            },
            // Another job has the number by now.
            Some(_) => self.give_up(key, None),
            None => self.give_up(key, Some(folder).filter(|_| is_its_folder)),
        }
    }

    /// Nobody waits for the job and nobody left an end. Its folder goes when that is written.
    fn give_up(&mut self, key: &JobKey, folder: Option<JobDir>) {
        let Some(kept) = self.registry.jobs.get(key) else { return };
        let mut record = kept.record.clone();
        tracing::warn!("job {}: its supervisor was killed", key.id);
        record.state = State::Lost;
        match self.close_job(record) {
            Ok(()) => drop(folder.map(|folder| folder.remove())),
            Err(error) => tracing::error!("cannot keep a lost job: {error:#}"),
        }
    }
}

fn is_unread(entry: &Entry) -> bool {
    entry.end.is_none() && !entry.end_is_absent
}

#[cfg(test)]
mod tests {
    use std::fs;

    use met_core::job::{Origin, ProcessId, Record};

    use super::super::unwritten::tests::keeping;
    use super::*;
    use met_core::sample;

    /// A running job of ours whose supervisor is pid 7 of a machine on which there is none.
    fn orphan(keeping: &Keeping) -> Record {
        let mut record = sample::full(1, "train");
        (record.state, record.end_ns, record.inside) = (State::Running, None, None);
        record.key.id = "1".to_owned();
        let local = record.local.as_mut().unwrap();
        local.origin = Origin::Run;
        local.boot_id.clone_from(&keeping.host.facts().boot_id);
        (local.supervisor, local.main) = (Some(ProcessId { pid: 7, start_ticks: 5 }), None);
        local.cgroup = Default::default();
        record
    }

    #[test]
    fn an_end_that_cannot_be_read_is_neither_lost_nor_deleted() {
        let root = tempfile::tempdir().unwrap();
        let mut keeping = keeping(root.path());
        let record = orphan(&keeping);
        let folder = JobDir::claim(&root.path().join("state"), 1).unwrap();
        folder.write_start(&record).unwrap();
        // Like a disk that fails: it is there, and cannot be read.
        let end = folder.path().join("end");
        fs::create_dir(&end).unwrap();
        keeping.recorder.writer.put(&record).unwrap();
        keeping.watch(record.clone());
        keeping.look_at_supervisor(&record.key);
        assert_eq!(keeping.job_count(), 1);
        assert_eq!(keeping.recorder.writer.get(&record.key).unwrap().unwrap().state, State::Running);
        assert!(end.exists() && folder.path().join("start").exists());

        fs::remove_dir(&end).unwrap();
        let mut finished = record.clone();
        (finished.state, finished.exit_code, finished.end_ns) = (State::Failed, Some(3), record.start_ns);
        folder.write_end(&finished).unwrap();
        keeping.look_at_supervisor(&record.key);
        let kept = keeping.recorder.writer.get(&record.key).unwrap().unwrap();
        assert_eq!((kept.state, kept.exit_code, keeping.job_count()), (State::Failed, Some(3), 0));
        assert!(!end.exists(), "committed, and then deleted");
        keeping.close();
    }

    #[test]
    fn a_supervisor_that_cannot_be_looked_at_is_not_dead() {
        let root = tempfile::tempdir().unwrap();
        let mut keeping = keeping(root.path());
        let record = orphan(&keeping);
        fs::create_dir_all(root.path().join("proc/7")).unwrap();
        let stat = root.path().join("proc/7/stat");
        let _socket = std::os::unix::net::UnixListener::bind(&stat).unwrap();
        JobDir::claim(&root.path().join("state"), 1).unwrap().write_start(&record).unwrap();
        keeping.watch(record.clone());
        keeping.linked(&record.key);
        assert!(keeping.next_supervisor_look().is_none(), "who is connected is not looked for");
        keeping.unlinked(&record.key);
        assert!(keeping.next_supervisor_look().is_some());
        keeping.look_at_supervisor(&record.key);
        assert_eq!(keeping.job_count(), 1);
        fs::remove_file(&stat).unwrap();
        keeping.look_at_supervisor(&record.key);
        assert_eq!(keeping.recorder.writer.get(&record.key).unwrap().unwrap().state, State::Lost);
        keeping.close();
    }

    #[test]
    fn the_folder_of_another_job_with_the_same_number_stays() {
        let root = tempfile::tempdir().unwrap();
        let mut keeping = keeping(root.path());
        let record = orphan(&keeping);
        let folder = JobDir::claim(&root.path().join("state"), 1).unwrap();
        let mut other = record.clone();
        other.key.incarnation += 1;
        folder.write_start(&other).unwrap();
        (other.state, other.end_ns) = (State::Finished, other.start_ns);
        folder.write_end(&other).unwrap();
        keeping.watch(record.clone());
        assert_eq!(keeping.job_count(), 0);
        assert_eq!(folder.read().end.map(|end| end.key), Some(other.key));
        keeping.close();
    }
}
