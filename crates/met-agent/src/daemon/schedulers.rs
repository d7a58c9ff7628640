//! Threads that ask schedulers what they have recorded of jobs, one for each scheduler there is.
//!
//! Their updates wait in a bounded queue for the thread that writes the store. A scheduler that is slow or down
//! delays nothing else; without one there is no thread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use met_core::job::{JobKey, Record};
use met_core::managers::Scheduler;
use met_host::{Host, clock};
use met_jobs::scheduler::{self, Programs, Recorded, Sync, Update};
use rustix::event::{EventfdFlags, eventfd};

use super::queue_reader::QueueReader;
use super::service::{Ended, OnEnd};
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
/// How often a server asks,
const SERVER_INTERVAL: Duration = Duration::from_secs(60);
/// and a daemon: there may be thousands of them.
const DAEMON_INTERVAL: Duration = Duration::from_secs(600);
/// They spread over the time between two questions.
const JITTER: f64 = 0.2;
/// Jobs about which a daemon asks; of more than these only those that users look at.
const MEASURED_MAX: usize = 10_000;
/// A job that its scheduler did not know so often is asked about no more.
const UNKNOWN_MAX: u32 = 3;
const BACKOFF_MAX: Duration = Duration::from_secs(3600);
/// The least time between two questions, as a multiple of what one takes.
const COST_SHARE: u32 = 20;

/// The other threads' end.
pub struct Schedulers {
    workers: Vec<Worker>,
    queue_readers: Vec<ReaderEnd>,
    news: Receiver<Update>,
    bell: Option<Arc<OwnedFd>>,
}

struct Worker {
    manager: &'static str,
    nudges: SyncSender<Nudge>,
    status: Arc<Mutex<SchedulerStatus>>,
    /// Where only these are asked about.
    measured: Option<Arc<Mutex<Measured>>>,
}

/// A thread that reads a queue: it ends when this is dropped.
struct ReaderEnd {
    _stop: SyncSender<()>,
    status: Arc<Mutex<SchedulerStatus>>,
}

/// Why a scheduler is to be asked sooner.
enum Nudge {
    /// A job has ended here.
    Ended,
    /// A user looks at this job, of which the scheduler has said nothing.
    Shown(String),
}

/// Who asks schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerClient {
    /// For all nodes; those of root ask by default.
    Server { root: bool },
    /// About the jobs that it measured. Where a server asks for all, only if that is configured.
    Daemon { system: bool, forwards: bool },
}

impl SchedulerClient {
    fn asks_by_default(self) -> bool {
        match self {
            SchedulerClient::Server { root } => root,
            SchedulerClient::Daemon { system, forwards } => system && !forwards,
        }
    }

    /// Whether it reads the page on which a scheduler counts its queue. It takes no rights to read it.
    fn reads_queue(self, presence: Presence) -> bool {
        match presence {
            Presence::Auto => matches!(self, SchedulerClient::Server { .. }) || self.asks_by_default(),
            Presence::Yes => true,
            Presence::No => false,
        }
    }

    fn scope(self) -> Scope {
        match self {
            SchedulerClient::Server { .. } => Scope::Cluster,
            SchedulerClient::Daemon { .. } => Scope::Node,
        }
    }
}

/// What a scheduler's thread is to go on from.
#[derive(Default)]
pub struct Before {
    pub cursor: Option<i64>,
    /// Jobs that were said to live.
    pub live: Vec<String>,
}

/// The schedulers that are to be asked, and whether their commands are there.
pub fn wanted(config: &Configured, client: SchedulerClient) -> Vec<(Scheduler, bool)> {
    let programs = programs(config);
    let found = |scheduler: Scheduler| (scheduler, programs.find(scheduler.row().1.program).is_some());
    let is_wanted = |&(scheduler, is_here): &(Scheduler, bool)| match config.asked[scheduler as usize] {
        Presence::Auto => client.asks_by_default() && is_here,
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
    /// One thread for each configured scheduler; `before` returns what is known of each.
    pub fn start(
        host: &Host,
        config: &Configured,
        client: SchedulerClient,
        before: impl Fn(&str) -> Before,
    ) -> io::Result<Schedulers> {
        let (sender, news) = mpsc::sync_channel(QUEUE);
        let mut schedulers = Schedulers { workers: Vec::new(), queue_readers: Vec::new(), news, bell: None };
        let scope = config.scope.unwrap_or(client.scope());
        let node = Some(host.facts().hostname.clone()).filter(|_| scope == Scope::Node);
        let by_id = scope == Scope::Node && matches!(client, SchedulerClient::Daemon { .. });
        let usual = if by_id { DAEMON_INTERVAL } else { SERVER_INTERVAL };
        for (scheduler, _) in wanted(config, client) {
            let manager = scheduler.row().0.name;
            let bell = schedulers.own_bell()?;
            let Before { cursor, live } = before(manager);
            let (nudges, nudged) = mpsc::sync_channel(1);
            let status = SchedulerStatus { manager: manager.to_owned(), ..Default::default() };
            let status = Arc::new(Mutex::new(status));
            let measured = by_id.then(|| Arc::new(Mutex::new(Measured::of(live.clone()))));
            let mut asking = Asking {
                measured: measured.clone(),
                sync: Sync::new(scheduler::open(scheduler, node.clone()), cursor, config.lookback, live),
                programs: programs(config),
                interval: config.interval.unwrap_or(usual),
                uids: HashMap::new(),
                sender: sender.clone(),
                bell,
                status: status.clone(),
                failures: 0,
            };
            std::thread::Builder::new().name(manager.to_owned()).spawn(move || asking.work(&nudged))?;
            schedulers.workers.push(Worker { manager, nudges, status, measured });
        }
        for &scheduler in Scheduler::ALL {
            schedulers.read_queue(scheduler, config, client, &sender)?;
        }
        Ok(schedulers)
    }

    fn own_bell(&mut self) -> io::Result<Arc<OwnedFd>> {
        if let Some(bell) = &self.bell {
            return Ok(Arc::clone(bell));
        }
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Arc::clone(self.bell.insert(bell)))
    }

    /// Starts the thread that reads its queue, where it is configured.
    fn read_queue(
        &mut self,
        scheduler: Scheduler,
        config: &Configured,
        client: SchedulerClient,
        sender: &SyncSender<Update>,
    ) -> io::Result<()> {
        let (index, manager) = (scheduler as usize, scheduler.name());
        let (Some(pages), Some(address)) = (scheduler::queue_pages(scheduler), &config.metrics[index]) else {
            return Ok(());
        };
        if !client.reads_queue(config.asked[index]) {
            return Ok(());
        }
        let page = Some(address.clone());
        let status = SchedulerStatus { manager: manager.to_owned(), page, ..Default::default() };
        let status = Arc::new(Mutex::new(status));
        let worker = self.workers.iter().find(|worker| worker.manager == manager);
        // As its commands are queried; a daemon without these is one of many, too.
        let is_one_of_many = match worker {
            Some(worker) => worker.measured.is_some(),
            None => matches!(client, SchedulerClient::Daemon { .. }),
        };
        let usual = if is_one_of_many { DAEMON_INTERVAL } else { SERVER_INTERVAL };
        let reader = QueueReader {
            scheduler,
            pages,
            address: address.clone(),
            timeout: config.timeout,
            interval: config.interval.unwrap_or(usual),
            measured: worker.and_then(|worker| worker.measured.clone()),
            is_one_of_many,
            sender: sender.clone(),
            bell: self.own_bell()?,
            status: Arc::clone(&status),
        };
        let (stop, stopped) = mpsc::sync_channel(0);
        let thread = std::thread::Builder::new().name(format!("{manager}-queue"));
        thread.spawn(move || reader.work(&stopped))?;
        self.queue_readers.push(ReaderEnd { _stop: stop, status });
        Ok(())
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

    fn worker_of(&self, key: &JobKey) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.manager == key.manager)
    }

    /// A job that is measured here.
    pub fn job_started(&self, key: &JobKey) {
        if let Some(measured) = self.worker_of(key).and_then(|worker| worker.measured.as_ref()) {
            lock(measured).add(&key.id);
        }
    }

    /// The end of a job is stored. A server asks soon, once for many; a daemon at its usual time.
    pub fn end_stored(&self, key: &JobKey) {
        let Some(worker) = self.worker_of(key) else { return };
        match &worker.measured {
            // It may have had another name when it started.
            Some(measured) => lock(measured).add(&key.id),
            // One pending signal is enough.
            None => drop(worker.nudges.try_send(Nudge::Ended)),
        }
    }

    /// A user looks at these jobs: a scheduler that has said nothing of one that is over is asked about it, once.
    pub fn jobs_shown(&self, jobs: &[Record]) {
        let is_unknown = |record: &&Record| !record.state.is_live() && record.scheduling.asked_ns.is_none();
        for record in jobs.iter().filter(is_unknown) {
            let Some(worker) = self.worker_of(&record.key) else { continue };
            let Some(measured) = &worker.measured else { continue };
            let (id, mut measured) = (&record.key.id, lock(measured));
            // A worker that is busy is asked at the next look.
            if !measured.shown.contains(id) && worker.nudges.try_send(Nudge::Shown(id.clone())).is_ok() {
                measured.note_shown(id);
            }
        }
    }

    pub fn status(&self) -> Vec<SchedulerStatus> {
        let of = |worker: &Worker| SchedulerStatus {
            jobs: worker.measured.as_ref().map(|measured| lock(measured).jobs.len()),
            ..lock(&worker.status).clone()
        };
        let of_readers = self.queue_readers.iter().map(|reader| lock(&reader.status).clone());
        self.workers.iter().map(of).chain(of_readers).collect()
    }
}

impl OnEnd for Schedulers {
    fn job_ended(&mut self, ended: &Ended<'_>) {
        self.end_stored(&ended.record.key);
    }
}

pub(super) fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The jobs about which a daemon asks.
#[derive(Default)]
pub(super) struct Measured {
    /// With how often their scheduler did not know them.
    jobs: BTreeMap<String, u32>,
    /// Those that users have looked at.
    shown: BTreeSet<String>,
}

impl Measured {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn of(ids: Vec<String>) -> Measured {
        Measured { jobs: ids.into_iter().map(|id| (id, 0)).collect(), shown: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, id: &str) {
        if self.jobs.len() < MEASURED_MAX {
            self.jobs.entry(id.to_owned()).or_default();
        }
    }

    fn note_shown(&mut self, id: &str) {
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

struct Asking {
    /// `None`: all jobs are asked for.
    measured: Option<Arc<Mutex<Measured>>>,
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
    fn work(&mut self, nudged: &Receiver<Nudge>) {
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
        let (mut runs, uids, channel, bell) = (0, &mut self.uids, &self.sender, &self.bell);
        let mut report = |mut update: Update| {
            runs += update.recorded.len() as u64;
            update.recorded.iter_mut().for_each(|recorded| name_owner(recorded, uids));
            // The receiver is gone when the daemon stops.
            if channel.send(update).is_ok() {
                ring(bell);
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

/// Until the next query. `spread`: by which share of the jitter those of many daemons are apart.
pub(super) fn pause(interval: Duration, failures: u32, took: Duration, spread: Option<f64>) -> Duration {
    let backoff = interval.saturating_mul(1 << failures.min(12));
    let pause = backoff.min(BACKOFF_MAX).max(interval).max(took * COST_SHARE);
    spread.map_or(pause, |share| pause.mul_f64(1.0 + JITTER * share))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use met_config::Config;

    const SERVER: SchedulerClient = SchedulerClient::Server { root: true };

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
        let schedulers = Schedulers::start(&host, &config, SERVER, |_| Before::default()).unwrap();
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
        const DAEMON: SchedulerClient = SchedulerClient::Daemon { system: true, forwards: true };
        let reported = |scope, client| {
            let interval = Some(Duration::from_millis(1));
            let config = Configured { scope, interval, ..configured(folder.path()) };
            let schedulers = Schedulers::start(&host, &config, client, |_| Before::default()).unwrap();
            schedulers.job_started(&JobKey {
                cluster: None,
                manager: "oar".into(),
                id: "7".into(),
                incarnation: 0,
            });
            loop {
                let update = wait_for_news(&schedulers);
                if !update.recorded.is_empty() {
                    break update.recorded.into_iter().map(|recorded| recorded.id).collect::<Vec<_>>();
                }
            }
        };
        assert_eq!(reported(None, SERVER), ["7", "8"]);
        assert_eq!(reported(Some(Scope::Cluster), DAEMON), ["7", "8"]);
        assert_eq!(reported(Some(Scope::Node), SERVER), ["7"]);
        // Asked about one job, the command would answer with that one alone.
        assert!(reported(None, DAEMON).contains(&"7".to_owned()));
    }

    #[test]
    fn a_daemon_asks_about_the_jobs_that_it_measured_and_about_a_shown_one_once() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("asked");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}\necho '{{}}'\n", log.display());
        let path = folder.path().join("oarstat");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let config = configured(folder.path());
        let client = SchedulerClient::Daemon { system: true, forwards: false };
        let schedulers =
            Schedulers::start(&Host::real().unwrap(), &config, client, |_| Before::default()).unwrap();
        let mut record = met_core::sample::scheduled();
        record.key = JobKey { cluster: None, manager: "oar".into(), id: "7".into(), incarnation: 0 };
        (record.state, record.scheduling) = (met_core::job::State::Finished, Default::default());
        schedulers.job_started(&record.key);
        schedulers.end_stored(&record.key);
        for _ in 0..3 {
            schedulers.jobs_shown(std::slice::from_ref(&record));
        }
        while schedulers.status()[0].answered_ns.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        schedulers.jobs_shown(std::slice::from_ref(&record));
        drop(schedulers);
        let asked = fs::read_to_string(log).unwrap();
        assert_eq!(asked.lines().count(), 1, "the usual time is minutes away: {asked}");
        assert!(asked.contains('7'), "{asked}");
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
    fn a_scheduler_that_fails_is_a_line_of_the_status() {
        let folder = commands(&[("oarstat", "echo no database >&2; exit 25")]);
        let host = Host::real().unwrap();
        let config = configured(folder.path());
        let schedulers = Schedulers::start(&host, &config, SERVER, |_| Before::default()).unwrap();
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
    fn a_daemon_without_jobs_of_a_scheduler_reports_that_it_asks_nothing() {
        let folder = commands(&[("oarstat", "echo '{}'")]);
        let (host, config) = (Host::real().unwrap(), configured(folder.path()));
        let client = SchedulerClient::Daemon { system: true, forwards: false };
        let schedulers = Schedulers::start(&host, &config, client, |_| Before::default()).unwrap();
        let jobs = || schedulers.status().remove(0).jobs;
        assert_eq!(jobs(), Some(0));
        let key =
            |id: &str| JobKey { cluster: None, manager: "oar".to_owned(), id: id.to_owned(), incarnation: 1 };
        schedulers.job_started(&key("7"));
        assert_eq!(jobs(), Some(1));
        let server = Schedulers::start(&host, &config, SERVER, |_| Before::default()).unwrap();
        assert_eq!(server.status().remove(0).jobs, None, "a server asks about all");
    }

    #[test]
    fn only_installed_and_wanted_schedulers_are_queried() {
        let folder = commands(&[("bjobs", "true")]);
        let mut config = configured(folder.path());
        config.asked[Scheduler::Oar as usize] = Presence::Auto;
        config.asked[Scheduler::Lsf as usize] = Presence::Auto;
        let names =
            |client| wanted(&config, client).iter().map(|(kind, _)| kind.row().0.name).collect::<Vec<_>>();
        let daemon = |system, forwards| SchedulerClient::Daemon { system, forwards };
        assert!(names(daemon(true, false)).contains(&"lsf") && names(SERVER).contains(&"lsf"));
        assert_eq!(
            names(daemon(false, false)),
            Vec::<&str>::new(),
            "a user's daemon queries none by default"
        );
        assert_eq!(names(daemon(true, true)), Vec::<&str>::new(), "the server queries for all its nodes");
        config.asked[Scheduler::Lsf as usize] = Presence::Yes;
        assert_eq!(
            wanted(&config, daemon(true, true)).len(),
            1,
            "unless the configuration says that this daemon does"
        );
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
