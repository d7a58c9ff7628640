//! Scheduler records on their way to the store. One piece at a time: as long as it is not written the
//! others wait where they are, and their schedulers with them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use met_core::job::Record;
use met_jobs::scheduler::Update;
use met_store::Writer;
use rustix::event::{EventfdFlags, eventfd};

use met_agent::daemon::scheduler_answers;

/// A store that does not take anything is tried again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Work for the thread that owns the store; returns the records that it wrote.
pub type Work = Box<dyn FnOnce(&mut Writer) -> Vec<Record> + Send>;

/// What became of a piece.
enum Outcome {
    Settled,
    /// It comes back, with the reason.
    Unwritten(Update, anyhow::Error),
    /// It was dropped: the writer has ended.
    Dropped,
}

/// Reports the outcome of a piece, also if the piece is dropped.
struct Reply {
    outcome: Sender<Outcome>,
    done: Arc<OwnedFd>,
    is_said: bool,
}

impl Reply {
    fn say(&mut self, outcome: Outcome) {
        self.is_said = true;
        // When the server ends, there is no receiver.
        let _ = self.outcome.send(outcome);
        let _ = rustix::io::write(&self.done, &1u64.to_ne_bytes());
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_said {
            self.say(Outcome::Dropped);
        }
    }
}

pub struct SchedulerFeed {
    outcome: (Sender<Outcome>, Receiver<Outcome>),
    /// Readable when there is one.
    done: Arc<OwnedFd>,
    /// A piece is with the writer.
    is_busy: bool,
    /// A piece that was not written, and when it is tried again.
    unwritten: Option<(Update, Instant)>,
    /// The last piece could not be written, and that was logged.
    is_failing: bool,
}

impl SchedulerFeed {
    pub fn new() -> std::io::Result<SchedulerFeed> {
        let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(SchedulerFeed {
            outcome: mpsc::channel(),
            done,
            is_busy: false,
            unwritten: None,
            is_failing: false,
        })
    }

    /// Whether there is nothing on its way.
    pub fn is_idle(&self) -> bool {
        !self.is_busy && self.unwritten.is_none()
    }

    /// How long nothing is to be tried again.
    pub fn timeout(&self) -> Option<Duration> {
        self.unwritten.as_ref().map(|(_, again)| again.saturating_duration_since(Instant::now()))
    }

    /// Hands a piece to the writer.
    pub fn keep(&mut self, update: Update, submit: impl FnOnce(Work)) {
        self.is_busy = true;
        let (outcome, done) = (self.outcome.0.clone(), Arc::clone(&self.done));
        let mut reply = Reply { outcome, done, is_said: false };
        submit(Box::new(move |writer| {
            let (outcome, written) = match scheduler_answers::keep(writer, &update) {
                Ok(written) => (Outcome::Settled, written),
                Err(error) if scheduler_answers::is_hopeless(&error) => {
                    tracing::warn!("{}: reported jobs are lost: {error:#}", update.manager);
                    (Outcome::Settled, Vec::new())
                }
                Err(error) => (Outcome::Unwritten(update, error), Vec::new()),
            };
            reply.say(outcome);
            written
        }));
    }

    /// Receives the outcome of the piece being written. An error means that nothing can be written from now on.
    pub fn settle(&mut self) -> Result<()> {
        let _ = rustix::io::read(&self.done, &mut [0; 8]);
        while let Ok(outcome) = self.outcome.1.try_recv() {
            self.is_busy = false;
            let unwritten = match outcome {
                Outcome::Settled => None,
                Outcome::Unwritten(update, error) => Some((update, error)),
                Outcome::Dropped => bail!("the thread that writes to the store has ended"),
            };
            if self.is_news(unwritten.is_some()) {
                match &unwritten {
                    Some((update, error)) => {
                        tracing::warn!("{}: reported jobs are not stored yet: {error:#}", update.manager);
                    }
                    None => tracing::info!("jobs reported by schedulers are stored again"),
                }
            }
            self.unwritten = unwritten.map(|(update, _)| (update, Instant::now() + RETRY_AFTER));
        }
        Ok(())
    }

    /// Whether something is to be said of it that a piece could or could not be written: a store may be away for long.
    fn is_news(&mut self, is_failing: bool) -> bool {
        std::mem::replace(&mut self.is_failing, is_failing) != is_failing
    }

    /// Tries again what was not written, if it is time.
    pub fn retry(&mut self, now: Instant, submit: impl FnOnce(Work)) {
        if let Some((update, _)) = self.unwritten.take_if(|(_, again)| *again <= now) {
            self.keep(update, submit);
        }
    }
}

impl AsFd for SchedulerFeed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use met_jobs::scheduler::Recorded;

    use super::*;
    use met_query::jobs;

    fn update(id: &str, cursor: i64) -> Update {
        let mut recorded = Recorded::new("slurm", id.to_owned());
        recorded.scheduling.submit_ns = Some(1_000_000_000);
        Update { manager: "slurm", recorded: vec![recorded], cursor: Some(cursor), ..Update::default() }
    }

    #[test]
    fn what_a_store_did_not_take_is_tried_again_before_anything_else() {
        let root = tempfile::tempdir().unwrap();
        let mut writer = jobs::open_writer(root.path()).unwrap();
        let other = rusqlite::Connection::open(root.path().join("store.db")).unwrap();
        let full = "CREATE TRIGGER full BEFORE INSERT ON job BEGIN SELECT RAISE(FAIL, 'full'); END;";
        other.execute_batch(full).unwrap();
        let mut scheduler_feed = SchedulerFeed::new().unwrap();
        assert!(scheduler_feed.is_idle() && scheduler_feed.timeout().is_none());
        scheduler_feed.keep(update("7", 5), |work| drop(work(&mut writer)));
        assert!(!scheduler_feed.is_idle());
        scheduler_feed.settle().unwrap();
        assert!(!scheduler_feed.is_idle() && scheduler_feed.timeout().is_some(), "the others wait");
        assert_eq!(scheduler_answers::before(&writer, "slurm").cursor, None, "it will be asked for again");

        let later = Instant::now() + RETRY_AFTER;
        scheduler_feed.retry(Instant::now(), |_| panic!("too early"));
        scheduler_feed.retry(later, |work| drop(work(&mut writer)));
        scheduler_feed.settle().unwrap();
        assert!(!scheduler_feed.is_idle(), "it failed again");

        other.execute_batch("DROP TRIGGER full").unwrap();
        scheduler_feed.retry(later + RETRY_AFTER, |work| drop(work(&mut writer)));
        scheduler_feed.settle().unwrap();
        assert!(scheduler_feed.is_idle());
        assert_eq!(writer.find(Some("slurm"), "7").unwrap().len(), 1);
        assert_eq!(scheduler_answers::before(&writer, "slurm").cursor, Some(5));
    }

    #[test]
    fn a_store_that_is_away_is_reported_once_until_it_is_back() {
        let mut scheduler_feed = SchedulerFeed::new().unwrap();
        let news = [false, true, true, true, false, false, true].map(|fails| scheduler_feed.is_news(fails));
        assert_eq!(news, [false, true, false, false, true, false, true]);
    }

    #[test]
    fn a_writer_that_is_gone_is_not_waited_for() {
        let mut scheduler_feed = SchedulerFeed::new().unwrap();
        scheduler_feed.keep(update("7", 5), drop);
        assert!(scheduler_feed.settle().is_err());
    }
}
