//! Watches the sampling thread. A thread blocked by a driver or a file system that does not answer is given up,
//! and another replaces it as after a start of the daemon: with the records of the jobs and their stored
//! series. The blocking source is excluded, or read in another way.
//!
//! There is no timer per tick: the sampler records what it is doing, and threads that wake up anyway check it.

use std::cell::Cell;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use met_core::job::Record;
use met_core::node_health::FailingSource;
use met_host::{Host, clock};
use met_sources::{At, DriverCalls, Heartbeat, Options, Unavailable};

use super::recorder::Recorder;
use super::sampler_thread::Sampling;
use super::sinks::Outputs;
use crate::sampler;
use met_config::Config;
use met_query::protocol::SourceStatus;

/// A tick takes milliseconds. One that has lasted for two periods and this long is stuck, and a request to the
/// thread waits no longer than that.
const KEPT_AFTER_MIN: Duration = Duration::from_secs(2);
const KEPT_AFTER_MAX: Duration = Duration::from_secs(3);
/// It made no progress for this long while other threads ran: a daemon that was stopped and continued is not
/// stuck, nor is a slow one.
pub(super) const SURE_AFTER: Duration = Duration::from_secs(1);
/// During a tick it is checked this often, even if nothing else wakes up.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// Then it is not replaced for a while: the cause is not a source that can be excluded.
const REPLACED_MAX: usize = 4;
const REPLACED_AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// The source that another thread of its own can ask.
const ASKED_APART: &str = "nvidia";

/// What other threads know of the sampling thread.
pub(super) struct Watchdog {
    pub(super) heartbeat: Arc<Heartbeat>,
    driver_calls: DriverCalls,
    kept_after: Cell<Duration>,
    /// Where it was when it had been busy for too long, and when that was seen.
    suspicion: Cell<Option<(At, Instant)>>,
    looked: Cell<Instant>,
    /// How often another thread has gone on.
    pub(super) replaced: usize,
    replaced_at: Instant,
    given_up: Vec<GivenUp>,
}

/// A thread that was kept, and goes home when it gets away; none if it had failed.
struct GivenUp {
    thread: Option<JoinHandle<()>>,
    source: Option<&'static str>,
    /// The blocking source is no longer read; otherwise another thread reads it.
    is_left_out: bool,
    /// Unix time.
    since_ns: i64,
}

impl Watchdog {
    pub(super) fn new(interval: Duration) -> Watchdog {
        let watchdog = Watchdog {
            heartbeat: Arc::default(),
            driver_calls: DriverCalls::Direct,
            kept_after: Cell::new(KEPT_AFTER_MIN),
            suspicion: Cell::new(None),
            looked: Cell::new(Instant::now()),
            replaced: 0,
            replaced_at: Instant::now(),
            given_up: Vec::new(),
        };
        watchdog.set_interval(interval);
        watchdog
    }

    pub(super) fn set_interval(&self, interval: Duration) {
        let periods = interval.saturating_mul(2);
        self.kept_after.set(periods.clamp(KEPT_AFTER_MIN, KEPT_AFTER_MAX));
    }

    /// How the thread reads the sources.
    pub(super) fn options(&self, config: &Config) -> Options {
        Options {
            node: true,
            driver_calls: self.driver_calls,
            left_out: self.left_out().collect(),
            heartbeat: Arc::clone(&self.heartbeat),
            ..sampler::options(config, Duration::ZERO)
        }
    }

    fn left_out(&self) -> impl Iterator<Item = &'static str> {
        self.given_up.iter().filter(|given_up| given_up.is_left_out).filter_map(|given_up| given_up.source)
    }

    /// Whether another thread may go on.
    pub(super) fn may_replace(&self) -> bool {
        self.replaced < REPLACED_MAX || self.replaced_at.elapsed() > REPLACED_AGAIN_AFTER
    }

    /// Whether the thread is kept for certain, and another one may go on.
    pub(super) fn is_kept(&self) -> bool {
        self.looked.set(Instant::now());
        let kept_after_ns = self.kept_after.get().as_nanos() as i64;
        let is_late = |at: &At| clock::monotonic_ns() - at.since_ns >= kept_after_ns;
        let Some(at) = self.heartbeat.at().filter(is_late).filter(|_| self.may_replace()) else {
            self.suspicion.set(None);
            return false;
        };
        match self.suspicion.get() {
            Some((known, seen)) if known == at => seen.elapsed() >= SURE_AFTER,
            _ => {
                self.suspicion.set(Some((at, Instant::now())));
                false
            }
        }
    }

    /// Ends the time of a thread, and says what kept it. The next one asks in another way, or leaves it out.
    fn give_up(&mut self, thread: Option<JoinHandle<()>>) -> Option<&'static str> {
        let source = self.heartbeat.at().and_then(|at| at.source);
        self.heartbeat.give_up();
        self.heartbeat = Arc::default();
        self.suspicion.set(None);
        self.replaced = if self.replaced_at.elapsed() > REPLACED_AGAIN_AFTER { 1 } else { self.replaced + 1 };
        self.replaced_at = Instant::now();
        let is_asked_apart = source == Some(ASKED_APART) && self.driver_calls == DriverCalls::Direct;
        self.driver_calls = DriverCalls::Apart;
        self.given_up.push(GivenUp {
            thread,
            source,
            is_left_out: !is_asked_apart,
            since_ns: clock::realtime_ns(),
        });
        source
    }

    /// Sources that have answered after all: their blocked threads have exited.
    fn take_answered(&mut self) -> Vec<&'static str> {
        let has_gone = |given_up: &GivenUp| given_up.thread.as_ref().is_some_and(JoinHandle::is_finished);
        let gone: Vec<GivenUp> = self.given_up.extract_if(.., |given_up| has_gone(given_up)).collect();
        let mut answered: Vec<&'static str> = gone
            .iter()
            .filter(|given_up| given_up.is_left_out)
            .filter_map(|given_up| given_up.source)
            .collect();
        // A source that blocks another reader, too, has not answered it.
        answered.retain(|source| !self.left_out().any(|left_out| left_out == *source));
        answered
    }

    /// All excluded sources are tried again: the configuration changed.
    fn take_all(&mut self) -> Vec<&'static str> {
        let sources = self.left_out().collect();
        self.given_up.iter_mut().for_each(|given_up| given_up.is_left_out = false);
        self.replaced = 0;
        sources
    }

    /// Adds what the thread that reads now does not know: which sources kept those before it.
    pub(super) fn add_kept_by(&self, sources: &mut Vec<SourceStatus>) {
        for given_up in &self.given_up {
            let (name, why) = match given_up.source {
                Some(name) if given_up.is_left_out => (name, Unavailable::Hangs.to_string()),
                Some(name) if name == ASKED_APART => (name, met_sources::NO_ANSWER.to_owned()),
                _ => continue,
            };
            let known = sources.iter().position(|source| source.name == name);
            let at = known.unwrap_or_else(|| {
                sources.push(SourceStatus::unread(name));
                sources.len() - 1
            });
            let source = &mut sources[at];
            source.left_out |= given_up.is_left_out;
            let problem = match given_up.is_left_out {
                true => "blocked and no longer read".to_owned(),
                false => format!("reading fails: {why}"),
            };
            let since_ns = Some(given_up.since_ns);
            source.failing = Some(FailingSource { problem, since_ns, ..FailingSource::of(name) });
            source.last_error.get_or_insert(why);
        }
    }
}

impl Sampling {
    /// When to look after the sampling thread; `ticks`: whether it has something to do.
    pub(super) fn next_care(&self, ticks: bool) -> Option<Instant> {
        if let Some((_, seen)) = self.watchdog.suspicion.get() {
            return Some(seen + SURE_AFTER);
        }
        ticks.then(|| self.watchdog.looked.get() + LOOK_EVERY)
    }

    /// Reads sources again that have answered after all.
    pub(super) fn take_up_answered(&mut self, config: &Config) {
        for source in self.watchdog.take_answered() {
            tracing::info!("source {source} has answered after all, and is read again");
            self.reopen(source, self.watchdog.options(config));
        }
    }

    /// Tries again what was left out.
    pub(super) fn forgive_sources(&mut self, config: &Config) {
        for source in self.watchdog.take_all() {
            self.reopen(source, self.watchdog.options(config));
        }
    }

    /// Gives up the thread; whether another one goes on, which knows nothing yet.
    pub(super) fn replace(&mut self, host: &Host, config: &Config, outputs: &Outputs) -> bool {
        let thread = self.thread.take().filter(|thread| !thread.is_finished());
        let happened = if thread.is_some() { "is stuck in" } else { "failed in" };
        let source = self.watchdog.give_up(thread);
        let what = source.map_or("an unknown source".to_owned(), |source| format!("source {source}"));
        let instead = match source {
            Some(source) if self.watchdog.left_out().any(|left_out| left_out == source) => {
                "; the source is disabled until it answers, the configuration is reloaded or the daemon restarts"
            }
            Some(_) => "; the source now has its own thread",
            None => "",
        };
        tracing::error!("the sampling thread {happened} {what}; thread replaced{instead}");
        let begun = self.begin(host.clone(), config, outputs.metrics_cache.clone(), outputs.bus.ticker());
        if let Err(error) = &begun {
            tracing::error!("cannot start another sampling thread: {error}");
        }
        begun.is_ok()
    }

    /// Announces a job to the next thread, as the next daemon would.
    pub(super) fn send_job(&self, record: &Record, recorder: &Recorder) {
        let before = recorder.series_before(&record.key);
        match recorder.writer.get(&record.key) {
            Ok(Some(stored)) => {
                self.add(&Record { gpus: stored.gpus.clone(), ..record.clone() }, before);
                self.allocate(&stored);
            }
            _ => self.add(record, before),
        }
    }
}

#[cfg(test)]
#[path = "watchdog_tests.rs"]
pub(super) mod tests;
