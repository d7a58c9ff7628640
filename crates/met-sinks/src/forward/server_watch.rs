//! Jobs of this node that clients of the server watch: they are sampled more often, and samples are sent sooner.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use met_core::cadence::WATCHED_FOR_NS;
use met_core::job::JobKey;

/// While a job is watched, samples wait no longer than this: a page that shows it changes every few seconds, and the
/// server is sent two batches instead of one.
pub const WATCHED_EVERY: Duration = Duration::from_secs(5);
/// Without another reply that says so, nothing is watched any more. A server cannot ask for longer.
const HOLDS: Duration = Duration::from_nanos(WATCHED_FOR_NS as u64);

type Tell = Box<dyn Fn(Vec<JobKey>) + Send>;

/// How soon samples are sent.
#[derive(Default)]
pub struct Pace {
    watched_until: Mutex<Option<Instant>>,
}

impl Pace {
    /// A job that is sampled here is watched.
    pub fn hold(&self, now: Instant) {
        *lock(&self.watched_until) = Some(now + HOLDS);
    }

    /// How long samples wait at most; `None` while no job is watched.
    pub fn within(&self, now: Instant) -> Option<Duration> {
        let mut until = lock(&self.watched_until);
        *until = until.filter(|&until| now < until);
        until.map(|_| WATCHED_EVERY)
    }

    /// The next batch after one that was made `made`, and is due: not before the samples of all jobs have come.
    pub(super) fn next(&self, due: Instant, made: Instant, now: Instant, gather: Duration) -> Instant {
        self.within(now).map_or(due, |within| due.min((made + within).max(now + gather)))
    }
}

/// What a server says of the jobs of this node, for the thread that samples them.
#[derive(Clone, Default)]
pub struct ServerWatch {
    pub pace: Arc<Pace>,
    tell: Arc<Mutex<Option<Tell>>>,
}

impl ServerWatch {
    /// Passes watched jobs to this one from now on.
    pub fn tell_with(&self, tell: impl Fn(Vec<JobKey>) + Send + 'static) {
        *lock(&self.tell) = Some(Box::new(tell));
    }

    /// A reply names these jobs. Which of them are sampled here is for the listener to say.
    pub(super) fn received(&self, watched: Vec<JobKey>) {
        if let Some(tell) = lock(&self.tell).as_ref().filter(|_| !watched.is_empty()) {
            tell(watched);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_hastened_for_a_while_and_no_longer() {
        let (pace, now) = (Pace::default(), Instant::now());
        let (usual, gather) = (now + Duration::from_secs(60), Duration::from_millis(300));
        let next = |at_s: u64| pace.next(usual, now, now + Duration::from_secs(at_s), gather);
        assert_eq!((pace.within(now), next(1)), (None, usual));
        pace.hold(now);
        assert_eq!((pace.within(now), next(1)), (Some(WATCHED_EVERY), now + WATCHED_EVERY));
        assert_eq!(next(7), now + Duration::from_secs(7) + gather, "what is late waits for the rest");
        assert_eq!((pace.within(now + HOLDS), next(20)), (None, usual));
        let soon = now + Duration::from_millis(10);
        pace.hold(now);
        assert_eq!(pace.next(soon, now, now, gather), soon, "nothing is sent later than it would be");
    }

    #[test]
    fn only_a_listener_is_called_and_only_with_jobs() {
        let (watch, reported) = (ServerWatch::default(), Arc::new(Mutex::new(Vec::new())));
        let key = |id: &str| JobKey {
            cluster: None,
            manager: "slurm".to_owned(),
            id: id.to_owned(),
            incarnation: 0,
        };
        watch.received(vec![key("1")]);
        let listener = Arc::clone(&reported);
        watch.tell_with(move |keys| lock(&listener).extend(keys));
        watch.received(Vec::new());
        watch.received(vec![key("2")]);
        assert_eq!(*lock(&reported), [key("2")]);
        assert_eq!(watch.pace.within(Instant::now()), None, "the listener may know none of them");
    }
}
