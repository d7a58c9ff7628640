//! The thread that queries one scheduler: about what, and when.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use met_host::{clock, users};
use met_jobs::scheduler::{Programs, Recorded, Sync, Update};
use met_query::jobs;
use met_query::protocol::SchedulerStatus;

use super::schedulers::{lock, notify};

/// After an answer of more runs than this memory is released.
const LONG_ANSWER_RUNS: u64 = 5_000;
/// A scheduler learns of an end after the node.
const NUDGE_DELAY: Duration = Duration::from_secs(2);
/// And may record it later still.
const NUDGE_AGAIN: Duration = Duration::from_secs(15);
/// Between two questions, whatever happens.
const GAP_MIN: Duration = Duration::from_secs(5);
/// They spread over the time between two questions.
const JITTER: f64 = 0.2;
/// Jobs about which a daemon asks; of more than these only those that users look at.
const MEASURED_MAX: usize = 10_000;
/// A job that its scheduler did not know so often is asked about no more.
const UNKNOWN_MAX: u32 = 3;
const BACKOFF_MAX: Duration = Duration::from_secs(3600);
/// The least time between two questions, as a multiple of what one takes.
const COST_SHARE: u32 = 20;

/// Why a scheduler is to be asked sooner.
pub(super) enum Nudge {
    /// A job has ended here.
    Ended,
    /// A user looks at this job, of which the scheduler has said nothing.
    Shown(String),
}

/// The jobs about which a daemon asks.
#[derive(Default)]
pub(super) struct Measured {
    /// With how often their scheduler did not know them.
    pub(super) jobs: BTreeMap<String, u32>,
    /// Those that users have looked at.
    pub(super) shown: BTreeSet<String>,
}

impl Measured {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn of(ids: Vec<String>) -> Measured {
        Measured { jobs: ids.into_iter().map(|id| (id, 0)).collect(), shown: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, id: &str) {
        if self.jobs.len() < MEASURED_MAX {
            self.jobs.entry(id.to_owned()).or_default();
        }
    }

    pub(super) fn note_shown(&mut self, id: &str) {
        if self.shown.len() >= MEASURED_MAX {
            self.shown.clear();
        }
        self.shown.insert(id.to_owned());
    }

    /// What was asked about, and which jobs of that the scheduler knows; `true`: it is over.
    fn answered(&mut self, asked: &[String], known: &BTreeMap<String, bool>) {
        for id in asked {
            match known.get(id) {
                Some(false) => {}
                Some(true) => drop(self.jobs.remove(id)),
                None => {
                    let times = self.jobs.get_mut(id).map(|times| {
                        *times += 1;
                        *times
                    });
                    if times.is_some_and(|times| times >= UNKNOWN_MAX) {
                        self.jobs.remove(id);
                    }
                }
            }
        }
    }
}

pub(super) struct SchedulerWorker {
    /// `None`: all jobs are asked for.
    pub(super) measured: Option<Arc<Mutex<Measured>>>,
    pub(super) sync: Sync,
    pub(super) programs: Programs,
    pub(super) interval: Duration,
    /// Some schedulers know users by name alone.
    pub(super) uids: HashMap<String, Option<u32>>,
    pub(super) sender: SyncSender<Update>,
    pub(super) ready_fd: Arc<OwnedFd>,
    pub(super) status: Arc<Mutex<SchedulerStatus>>,
    pub(super) failures: u32,
}

impl SchedulerWorker {
    /// Until the daemon leaves.
    pub(super) fn work(&mut self, nudged: &Receiver<Nudge>) {
        // The daemons of a cluster that starts do not ask all at once.
        let first =
            if self.measured.is_some() { self.interval.mul_f64(random_share()) } else { Duration::ZERO };
        let mut schedule = Schedule { due: Instant::now() + first, asked: None, again: None };
        loop {
            match nudged.recv_timeout(schedule.due.saturating_duration_since(Instant::now())) {
                Ok(Nudge::Ended) => schedule.nudge(Instant::now()),
                Ok(Nudge::Shown(id)) => {
                    self.ask(Some(id));
                    std::thread::sleep(GAP_MIN);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let begin = Instant::now();
                    self.ask(None);
                    let pause = self.pause(begin.elapsed());
                    schedule.asked(Instant::now(), pause);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn pause(&self, took: Duration) -> Duration {
        pause(self.interval, self.failures, took, self.measured.as_ref().map(|_| random_share()))
    }

    /// The jobs to ask about: one that is shown, or all that were measured. `None`: whatever has changed.
    fn ids(&self, shown: Option<String>) -> Option<Vec<String>> {
        let measured = self.measured.as_ref()?;
        Some(shown.map_or_else(|| lock(measured).jobs.keys().cloned().collect(), |id| vec![id]))
    }

    fn ask(&mut self, shown: Option<String>) {
        let ids = self.ids(shown);
        if ids.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        let begin = Instant::now();
        lock(&self.status).asking = true;
        let (mut runs, uids, channel, ready_fd) = (0, &mut self.uids, &self.sender, &self.ready_fd);
        let mut report = |mut update: Update| {
            runs += update.recorded.len() as u64;
            update.recorded.iter_mut().for_each(|recorded| name_owner(recorded, uids));
            // The receiver is gone when the daemon stops.
            if channel.send(update).is_ok() {
                notify(ready_fd);
            }
        };
        let result = match (&ids, &self.measured) {
            (Some(ids), Some(measured)) => self
                .sync
                .about(&mut self.programs, ids, &mut report)
                .map(|known| lock(measured).answered(ids, &known)),
            _ => self.sync.round(&mut self.programs, jobs::now_ns() / 1_000_000_000, &mut report),
        };
        if runs > LONG_ANSWER_RUNS {
            super::memory_release::give_back_free();
        }
        let mut status = lock(&self.status);
        status.asking = false;
        status.reported += runs;
        status.took_ms = i64::try_from(begin.elapsed().as_millis()).ok();
        match result {
            Ok(()) => {
                if self.failures > 0 {
                    tracing::info!("{} answers again", status.manager);
                }
                self.failures = 0;
                status.answered_ns = Some(clock::realtime_ns());
                status.last_error = None;
            }
            Err(trouble) => {
                // Once, and not every minute.
                if self.failures == 0 {
                    tracing::warn!("{}: query failed: {trouble}", status.manager);
                }
                self.failures = self.failures.saturating_add(1);
                status.last_error = Some(trouble.to_string());
            }
        }
    }
}

fn name_owner(recorded: &mut Recorded, uids: &mut HashMap<String, Option<u32>>) {
    if let (None, Some(user)) = (recorded.uid, &recorded.user) {
        recorded.uid = *uids.entry(user.clone()).or_insert_with(|| users::uid_of(user));
    }
}

/// From 0 to 1.
pub(super) fn random_share() -> f64 {
    // The standard library's hash maps are seeded from the system's random numbers.
    let random = RandomState::new().build_hasher().finish();
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

/// When to ask next.
pub(super) struct Schedule {
    due: Instant,
    asked: Option<Instant>,
    again: Option<Instant>,
}

impl Schedule {
    fn nudge(&mut self, now: Instant) {
        let soon = now + NUDGE_DELAY;
        let soon = self.asked.map_or(soon, |asked| soon.max(asked + GAP_MIN));
        self.due = self.due.min(soon);
        self.again = Some(now + NUDGE_AGAIN);
    }

    fn asked(&mut self, now: Instant, pause: Duration) {
        self.due = now + pause;
        if let Some(again) = self.again.take().filter(|again| *again > now) {
            self.due = self.due.min(again.max(now + GAP_MIN));
        }
        self.asked = Some(now);
    }
}

/// Until the next query. `spread`: by which share of the jitter those of many daemons are apart.
pub(super) fn pause(interval: Duration, failures: u32, took: Duration, spread: Option<f64>) -> Duration {
    let backoff = interval.saturating_mul(1 << failures.min(12));
    let pause = backoff.min(BACKOFF_MAX).max(interval).max(took * COST_SHARE);
    spread.map_or(pause, |share| pause.mul_f64(1.0 + JITTER * share))
}

#[cfg(test)]
mod tests {
    use super::super::schedulers::{DAEMON_INTERVAL, SERVER_INTERVAL};
    use super::*;

    #[test]
    fn two_thousand_daemons_query_less_than_four_times_a_second() {
        let shortest = pause(DAEMON_INTERVAL, 0, Duration::ZERO, Some(0.0));
        let longest = pause(DAEMON_INTERVAL, 0, Duration::ZERO, Some(1.0));
        assert!(shortest >= Duration::from_secs(600) && longest > shortest, "{shortest:?} {longest:?}");
        assert!(2000.0 / shortest.as_secs_f64() < 4.0);
        // One that fails or is slow is asked less often, never more.
        assert!(pause(DAEMON_INTERVAL, 3, Duration::ZERO, Some(0.0)) >= shortest);
        assert!(pause(SERVER_INTERVAL, 0, Duration::from_secs(60), None) > SERVER_INTERVAL);
    }

    #[test]
    fn a_job_that_its_scheduler_does_not_know_is_given_up() {
        let mut measured = Measured::of(vec!["1".to_owned(), "2".to_owned(), "3".to_owned()]);
        let asked = ["1", "2", "3"].map(str::to_owned);
        let known = [("1".to_owned(), true), ("2".to_owned(), false)].into();
        for times in 1..=UNKNOWN_MAX {
            measured.answered(&asked, &known);
            assert_eq!(measured.jobs.contains_key("3"), times < UNKNOWN_MAX);
        }
        assert_eq!(measured.jobs.keys().collect::<Vec<_>>(), ["2"], "that which still runs");
    }

    #[test]
    fn many_ends_are_one_question_soon_and_one_later() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut schedule = Schedule { due: at(60), asked: Some(at(0)), again: None };
        schedule.nudge(at(1));
        assert_eq!(schedule.due, at(5), "not sooner than that after the last question");
        schedule.nudge(at(4));
        assert_eq!(schedule.due, at(5));
        schedule.asked(at(5), Duration::from_secs(60));
        assert_eq!(schedule.due, at(19), "what was not recorded then may be now");
        schedule.asked(at(19), Duration::from_secs(60));
        assert_eq!(schedule.due, at(79));
    }
}
