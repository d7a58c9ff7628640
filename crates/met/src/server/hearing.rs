//! What schedulers tell, on its way to the store. One piece at a time: as long as it is not written the
//! others wait where they are, and their schedulers with them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use met_jobs::scheduler::Told;
use met_store::Writer;
use rustix::event::{EventfdFlags, eventfd};

use crate::daemon::told;

/// A store that does not take anything is tried again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Something to do with the store, by whoever holds it.
pub type Work = Box<dyn FnOnce(&mut Writer) + Send>;

pub struct Hearing {
    /// What became of a piece: it comes back if it could not be written.
    outcome: (Sender<Option<Told>>, Receiver<Option<Told>>),
    /// Readable when there is one.
    done: Arc<OwnedFd>,
    /// A piece is with the writer.
    is_busy: bool,
    /// A piece that was not written, and when it is tried again.
    unwritten: Option<(Told, Instant)>,
}

impl Hearing {
    pub fn new() -> std::io::Result<Hearing> {
        let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Hearing { outcome: mpsc::channel(), done, is_busy: false, unwritten: None })
    }

    /// Whether there is nothing on its way.
    pub fn is_idle(&self) -> bool {
        !self.is_busy && self.unwritten.is_none()
    }

    /// How long nothing is to be tried again.
    pub fn patience(&self) -> Option<Duration> {
        self.unwritten.as_ref().map(|(_, again)| again.saturating_duration_since(Instant::now()))
    }

    /// Hands a piece to the writer.
    pub fn keep(&mut self, told: Told, submit: impl FnOnce(Work)) {
        self.is_busy = true;
        let (outcome, done) = (self.outcome.0.clone(), Arc::clone(&self.done));
        submit(Box::new(move |writer| {
            let unwritten = match told::keep(writer, &told) {
                Ok(_) => None,
                Err(error) if told::is_hopeless(&error) => {
                    tracing::warn!("what {} told is lost: {error:#}", told.manager);
                    None
                }
                Err(error) => {
                    tracing::warn!("what {} told is not written yet: {error:#}", told.manager);
                    Some(told)
                }
            };
            // Nobody is there to hear it when the server ends.
            let _ = outcome.send(unwritten);
            let _ = rustix::io::write(&done, &1u64.to_ne_bytes());
        }));
    }

    /// Hears what became of the piece that is on its way.
    pub fn settle(&mut self) {
        let _ = rustix::io::read(&self.done, &mut [0; 8]);
        while let Ok(unwritten) = self.outcome.1.try_recv() {
            self.is_busy = false;
            self.unwritten = unwritten.map(|told| (told, Instant::now() + RETRY_AFTER));
        }
    }

    /// Tries again what was not written, if it is time.
    pub fn retry(&mut self, now: Instant, submit: impl FnOnce(Work)) {
        if let Some((told, _)) = self.unwritten.take_if(|(_, again)| *again <= now) {
            self.keep(told, submit);
        }
    }
}

impl AsFd for Hearing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use met_jobs::scheduler::Recorded;

    use super::*;
    use crate::jobs;

    fn told(id: &str, cursor: i64) -> Told {
        let mut recorded = Recorded::new("slurm", id.to_owned());
        recorded.scheduling.submit_ns = Some(1_000_000_000);
        Told { manager: "slurm", recorded: vec![recorded], gone: Vec::new(), cursor: Some(cursor) }
    }

    #[test]
    fn what_a_store_did_not_take_is_tried_again_before_anything_else() {
        let root = tempfile::tempdir().unwrap();
        let mut writer = jobs::open_writer(root.path()).unwrap();
        let other = rusqlite::Connection::open(root.path().join("store.db")).unwrap();
        let full = "CREATE TRIGGER full BEFORE INSERT ON job BEGIN SELECT RAISE(FAIL, 'full'); END;";
        other.execute_batch(full).unwrap();
        let mut hearing = Hearing::new().unwrap();
        assert!(hearing.is_idle() && hearing.patience().is_none());
        hearing.keep(told("7", 5), |work| work(&mut writer));
        assert!(!hearing.is_idle());
        hearing.settle();
        assert!(!hearing.is_idle() && hearing.patience().is_some(), "the others wait");
        assert_eq!(told::before(&writer, "slurm").cursor, None, "it will be asked for again");

        let later = Instant::now() + RETRY_AFTER;
        hearing.retry(Instant::now(), |_| panic!("too early"));
        hearing.retry(later, |work| work(&mut writer));
        hearing.settle();
        assert!(!hearing.is_idle(), "it failed again");

        other.execute_batch("DROP TRIGGER full").unwrap();
        hearing.retry(later + RETRY_AFTER, |work| work(&mut writer));
        hearing.settle();
        assert!(hearing.is_idle());
        assert_eq!(writer.find(Some("slurm"), "7").unwrap().len(), 1);
        assert_eq!(told::before(&writer, "slurm").cursor, Some(5));
    }
}
