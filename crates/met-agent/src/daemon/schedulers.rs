//! Threads that ask schedulers what they have recorded of jobs, one for each scheduler there is.
//!
//! Their updates wait in a bounded queue for the thread that writes the store. A scheduler that is slow or down
//! delays nothing else; without one there is no thread.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use met_core::managers::Scheduler;
use met_host::{Host, clock};
use met_jobs::scheduler::{self, Programs, Recorded, Sync, Update};
use rustix::event::{EventfdFlags, eventfd};

use met_config::{Presence, Schedulers as Configured, Scope};
use met_host::users;
use met_query::jobs;
use met_query::protocol::SchedulerStatus;

/// After an answer of more runs than this memory is released.
const LONG_ANSWER_RUNS: u64 = 5_000;
/// Updates that are queued; a thread with more waits.
const QUEUE: usize = 4;
/// A scheduler learns of an end after the node.
const NUDGE_DELAY: Duration = Duration::from_secs(2);
/// And may record it later still.
const NUDGE_AGAIN: Duration = Duration::from_secs(15);
/// Between two questions, whatever happens.
const GAP_MIN: Duration = Duration::from_secs(5);
const BACKOFF_MAX: Duration = Duration::from_secs(3600);
/// The least time between two questions, as a multiple of what one takes.
const COST_SHARE: u32 = 20;

/// The other threads' end.
pub struct Schedulers {
    workers: Vec<Worker>,
    news: Receiver<Update>,
    bell: Option<Arc<OwnedFd>>,
}

struct Worker {
    manager: &'static str,
    nudges: SyncSender<()>,
    status: Arc<Mutex<SchedulerStatus>>,
}

/// What a scheduler's thread is to go on from.
#[derive(Default)]
pub struct Before {
    pub cursor: Option<i64>,
    /// Jobs that were said to live.
    pub live: Vec<String>,
}

/// The schedulers that are to be asked, and whether their commands are there.
pub fn wanted(config: &Configured, system: bool) -> Vec<(Scheduler, bool)> {
    let programs = programs(config);
    let found = |scheduler: Scheduler| (scheduler, programs.find(scheduler.row().1.program).is_some());
    let is_wanted = |&(scheduler, is_here): &(Scheduler, bool)| match config.asked[scheduler as usize] {
        Presence::Auto => system && is_here,
        Presence::Yes => true,
        Presence::No => false,
    };
    Scheduler::ALL.iter().copied().map(found).filter(is_wanted).collect()
}

/// Those that are here and that the configuration says are not to be asked.
pub fn switched_off(config: &Configured) -> Vec<&'static str> {
    let programs = programs(config);
    let is_off = |scheduler: &&Scheduler| {
        config.asked[**scheduler as usize] == Presence::No
            && programs.find(scheduler.row().1.program).is_some()
    };
    Scheduler::ALL.iter().filter(is_off).map(|scheduler| scheduler.row().0.name).collect()
}

fn programs(config: &Configured) -> Programs {
    let folders = config.path.iter().flat_map(|path| path.split(':')).map(PathBuf::from);
    Programs::new(folders, config.timeout)
}

impl Schedulers {
    /// One thread for each configured scheduler; `before` returns what is known of each. `scope` is the default
    /// where the configuration has none.
    pub fn start(
        host: &Host,
        config: &Configured,
        system: bool,
        scope: Scope,
        before: impl Fn(&str) -> Before,
    ) -> io::Result<Schedulers> {
        let (sender, news) = mpsc::sync_channel(QUEUE);
        let mut schedulers = Schedulers { workers: Vec::new(), news, bell: None };
        let scope = config.scope.unwrap_or(scope);
        let node = Some(host.facts().hostname.clone()).filter(|_| scope == Scope::Node);
        for (scheduler, _) in wanted(config, system) {
            let manager = scheduler.row().0.name;
            let bell = match &schedulers.bell {
                Some(bell) => bell.clone(),
                None => Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            };
            schedulers.bell = Some(bell.clone());
            let Before { cursor, live } = before(manager);
            let (nudges, nudged) = mpsc::sync_channel(1);
            let status = SchedulerStatus { manager: manager.to_owned(), ..Default::default() };
            let status = Arc::new(Mutex::new(status));
            let mut asking = Asking {
                sync: Sync::new(scheduler::open(scheduler, node.clone()), cursor, config.lookback, live),
                programs: programs(config),
                interval: config.interval,
                uids: HashMap::new(),
                sender: sender.clone(),
                bell,
                status: status.clone(),
                failures: 0,
            };
            std::thread::Builder::new().name(manager.to_owned()).spawn(move || asking.work(&nudged))?;
            schedulers.workers.push(Worker { manager, nudges, status });
        }
        Ok(schedulers)
    }

    /// Readable when there is news.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.as_fd())
    }

    /// One piece of news; the bell rings on while there is more.
    pub fn take(&self) -> Option<Update> {
        let bell = self.bell.as_ref()?;
        // Silenced before the look: what comes after it rings again.
        let _ = rustix::io::read(bell, &mut [0; 8]);
        let update = self.news.try_recv().ok()?;
        ring(bell);
        Some(update)
    }

    /// A job of this manager has just ended here: its scheduler is queried soon, once for many jobs.
    pub fn nudge(&self, manager: &str) {
        for worker in self.workers.iter().filter(|worker| worker.manager == manager) {
            // One pending signal is enough.
            let _ = worker.nudges.try_send(());
        }
    }

    pub fn status(&self) -> Vec<SchedulerStatus> {
        self.workers.iter().map(|worker| lock(&worker.status).clone()).collect()
    }
}

fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

fn lock(status: &Mutex<SchedulerStatus>) -> MutexGuard<'_, SchedulerStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Asking {
    sync: Sync,
    programs: Programs,
    interval: Duration,
    /// Some schedulers know users by name alone.
    uids: HashMap<String, Option<u32>>,
    sender: SyncSender<Update>,
    bell: Arc<OwnedFd>,
    status: Arc<Mutex<SchedulerStatus>>,
    failures: u32,
}

impl Asking {
    /// Until the daemon leaves.
    fn work(&mut self, nudged: &Receiver<()>) {
        let mut schedule = Schedule { due: Instant::now(), asked: None, again: None };
        loop {
            match nudged.recv_timeout(schedule.due.saturating_duration_since(Instant::now())) {
                Ok(()) => schedule.nudge(Instant::now()),
                Err(RecvTimeoutError::Timeout) => {
                    let begin = Instant::now();
                    self.ask();
                    let took = begin.elapsed();
                    schedule.asked(Instant::now(), self.pause(took));
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn pause(&self, took: Duration) -> Duration {
        let backoff = self.interval.saturating_mul(1 << self.failures.min(12));
        backoff.min(BACKOFF_MAX).max(self.interval).max(took * COST_SHARE)
    }

    fn ask(&mut self) {
        let begin = Instant::now();
        let (mut runs, uids, channel, bell) = (0, &mut self.uids, &self.sender, &self.bell);
        let result =
            self.sync.round(&mut self.programs, jobs::now_ns() / 1_000_000_000, &mut |mut update| {
                runs += update.recorded.len() as u64;
                update.recorded.iter_mut().for_each(|recorded| name_owner(recorded, uids));
                // The receiver is gone when the daemon stops.
                if channel.send(update).is_ok() {
                    ring(bell);
                }
            });
        if runs > LONG_ANSWER_RUNS {
            super::memory_release::give_back_free();
        }
        let mut status = lock(&self.status);
        status.told += runs;
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

/// When to ask next.
struct Schedule {
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use met_config::Config;

    /// A folder with commands that print given text.
    fn commands(scripts: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, script) in scripts {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder
    }

    fn configured(folder: &Path) -> Configured {
        let mut config = Config::default().schedulers;
        config.asked = [Presence::No; Scheduler::COUNT];
        config.asked[Scheduler::Oar as usize] = Presence::Yes;
        config.path = Some(folder.display().to_string());
        config
    }

    fn wait_for_news(schedulers: &Schedulers) -> Update {
        let mut fds = [PollFd::from_borrowed_fd(schedulers.bell().unwrap(), PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        schedulers.take().unwrap()
    }

    #[test]
    fn an_update_of_a_scheduler_rings_the_bell() {
        let answer = r#"echo '{"7": {"state": "Running", "owner": "root", "startTime": 1794722204}}'"#;
        let folder = commands(&[("oarstat", answer)]);
        let host = Host::real().unwrap();
        let config = configured(folder.path());
        let schedulers =
            Schedulers::start(&host, &config, true, Scope::Cluster, |_| Before::default()).unwrap();
        let update = loop {
            // The past day is queried in pieces, and each has the same answer.
            let update = wait_for_news(&schedulers);
            if !update.recorded.is_empty() {
                break update;
            }
        };
        assert_eq!((update.manager, update.recorded[0].id.as_str()), ("oar", "7"));
        assert_eq!(update.recorded[0].uid, Some(0), "a name is resolved where the command gives no number");
    }

    #[test]
    fn the_default_scope_holds_unless_the_file_sets_one() {
        let host = Host::real().unwrap();
        let here = &host.facts().hostname;
        let job = |id: u32, node: &str| {
            format!(
                r#""{id}": {{"state": "Running", "owner": "root", "startTime": 1794722204, "assigned_network_address": ["{node}"]}}"#
            )
        };
        let answer = format!("echo '{{{}, {}}}'", job(7, here), job(8, "not-this-node"));
        let folder = commands(&[("oarstat", &answer)]);
        let reported = |scope, by_default| {
            let config = Configured { scope, ..configured(folder.path()) };
            let schedulers =
                Schedulers::start(&host, &config, true, by_default, |_| Before::default()).unwrap();
            loop {
                let update = wait_for_news(&schedulers);
                if !update.recorded.is_empty() {
                    break update.recorded.into_iter().map(|recorded| recorded.id).collect::<Vec<_>>();
                }
            }
        };
        assert_eq!(reported(None, Scope::Node), ["7"]);
        assert_eq!(reported(None, Scope::Cluster), ["7", "8"]);
        assert_eq!(reported(Some(Scope::Cluster), Scope::Node), ["7", "8"]);
        assert_eq!(reported(Some(Scope::Node), Scope::Cluster), ["7"]);
    }

    #[test]
    fn a_scheduler_that_fails_is_a_line_of_the_status() {
        let folder = commands(&[("oarstat", "echo no database >&2; exit 25")]);
        let host = Host::real().unwrap();
        let config = configured(folder.path());
        let schedulers =
            Schedulers::start(&host, &config, true, Scope::Cluster, |_| Before::default()).unwrap();
        let status = loop {
            let status = schedulers.status().remove(0);
            if status.last_error.is_some() {
                break status;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(status.last_error.as_deref(), Some("oarstat: no database"));
        assert_eq!(status.answered_ns, None);
    }

    #[test]
    fn only_installed_and_wanted_schedulers_are_queried() {
        let folder = commands(&[("bjobs", "true")]);
        let mut config = configured(folder.path());
        config.asked[Scheduler::Oar as usize] = Presence::Auto;
        config.asked[Scheduler::Lsf as usize] = Presence::Auto;
        let names =
            |system| wanted(&config, system).iter().map(|(kind, _)| kind.row().0.name).collect::<Vec<_>>();
        assert!(names(true).contains(&"lsf"));
        assert_eq!(names(false), Vec::<&str>::new(), "a user's daemon queries none by default");
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
