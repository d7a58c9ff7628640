//! Threads that ask schedulers what they have recorded of jobs, one for each scheduler there is.
//!
//! Their updates wait in a bounded queue for the thread that writes the store. A scheduler that is slow or down
//! delays nothing else; without one there is no thread.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use met_core::job::{JobKey, Record};
use met_core::managers::Scheduler;
use met_host::Host;
use met_jobs::scheduler::{self, Programs, Sync, Update};
use rustix::event::{EventfdFlags, eventfd};

use super::queue_reader::QueueReader;
use super::scheduler_worker::{Measured, Nudge, SchedulerWorker};
use super::service::{Ended, OnEnd};
use met_config::{Presence, Schedulers as Configured, Scope};
use met_query::protocol::SchedulerStatus;

/// Updates that are queued; a thread with more waits.
const QUEUE: usize = 4;
/// How often a server asks,
pub(super) const SERVER_INTERVAL: Duration = Duration::from_secs(60);
/// and a daemon: there may be thousands of them.
pub(super) const DAEMON_INTERVAL: Duration = Duration::from_secs(600);

/// The other threads' end.
pub struct Schedulers {
    workers: Vec<Worker>,
    queue_readers: Vec<ReaderEnd>,
    news: Receiver<Update>,
    ready_fd: Option<Arc<OwnedFd>>,
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
        let mut schedulers =
            Schedulers { workers: Vec::new(), queue_readers: Vec::new(), news, ready_fd: None };
        let scope = config.scope.unwrap_or(client.scope());
        let node = Some(host.facts().hostname.clone()).filter(|_| scope == Scope::Node);
        let by_id = scope == Scope::Node && matches!(client, SchedulerClient::Daemon { .. });
        let usual = if by_id { DAEMON_INTERVAL } else { SERVER_INTERVAL };
        for (scheduler, _) in wanted(config, client) {
            let manager = scheduler.row().0.name;
            let ready_fd = schedulers.own_ready_fd()?;
            let Before { cursor, live } = before(manager);
            let (nudges, nudged) = mpsc::sync_channel(1);
            let status = SchedulerStatus { manager: manager.to_owned(), ..Default::default() };
            let status = Arc::new(Mutex::new(status));
            let measured = by_id.then(|| Arc::new(Mutex::new(Measured::of(live.clone()))));
            let mut asking = SchedulerWorker {
                measured: measured.clone(),
                sync: Sync::new(scheduler::open(scheduler, node.clone()), cursor, config.lookback, live),
                programs: programs(config),
                interval: config.interval.unwrap_or(usual),
                uids: HashMap::new(),
                sender: sender.clone(),
                ready_fd,
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

    fn own_ready_fd(&mut self) -> io::Result<Arc<OwnedFd>> {
        if let Some(ready_fd) = &self.ready_fd {
            return Ok(Arc::clone(ready_fd));
        }
        let ready_fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Arc::clone(self.ready_fd.insert(ready_fd)))
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
            ready_fd: self.own_ready_fd()?,
            status: Arc::clone(&status),
        };
        let (stop, stopped) = mpsc::sync_channel(0);
        let thread = std::thread::Builder::new().name(format!("{manager}-queue"));
        thread.spawn(move || reader.work(&stopped))?;
        self.queue_readers.push(ReaderEnd { _stop: stop, status });
        Ok(())
    }

    /// Readable when there is news.
    pub fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ready_fd.as_ref().map(|ready_fd| ready_fd.as_fd())
    }

    /// One piece of news; the ready_fd rings on while there is more.
    pub fn take(&self) -> Option<Update> {
        let ready_fd = self.ready_fd.as_ref()?;
        // Silenced before the look: what comes after it rings again.
        let _ = rustix::io::read(ready_fd, &mut [0; 8]);
        let update = self.news.try_recv().ok()?;
        notify(ready_fd);
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

pub(super) fn notify(ready_fd: &OwnedFd) {
    let _ = rustix::io::write(ready_fd, &1_u64.to_ne_bytes());
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut fds = [PollFd::from_borrowed_fd(schedulers.ready_fd().unwrap(), PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        schedulers.take().unwrap()
    }

    #[test]
    fn an_update_of_a_scheduler_makes_its_descriptor_readable() {
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
}
