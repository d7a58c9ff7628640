//! `met server`: the HTTP listener, the writer thread, and threads that query schedulers.

mod accounts;
mod scheduler_feed;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use met_host::Address;
use met_server::cluster::api::{self, Api};
use met_server::cluster::people::People;
use met_server::cluster::{ClusterView, ClusterWriter, Incompatible, Plan};
use met_server::colmet;
use met_server::metrics_page;
use met_server::status_file::{ServerStatus, StatusFile};
use met_store::cluster::Log;
use met_web::api::Admission;
use met_web::listener::{Options, PasswordFile, Server};
use met_web::login::{self, Directory, Logins};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;

use met_agent::daemon::scheduler_answers;
use met_agent::daemon::schedulers::{SchedulerClient, Schedulers};
use met_agent::supervise::Signals;
use met_config::Config;
use met_config::Failure;
use met_config::paths::{Place, create_private};
use met_query::jobs;
use met_query::setting::Setting;
use met_query::systems;
use scheduler_feed::SchedulerFeed;

/// Where a server listens by default: on this machine only.
const LISTEN: &str = "127.0.0.1:9317";
/// A level is used no longer than this in the series of a job on several nodes.
const GAP_MS: i64 = 60_000;
const CONNECTIONS_MAX: usize = 4096;
/// As long as a node waits: its batch may have arrived slowly.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How often what the doctor reads of a server is brought up to date.
const STATUS_EVERY: Duration = Duration::from_secs(20);

/// What a server on this machine last said of itself, if it runs.
pub fn running(setting: &Setting) -> Option<ServerStatus> {
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    ServerStatus::read(&state(setting)).filter(|status| name(status.pid).trim_end() == "met-server")
}

/// Whether a server has kept data on this machine.
pub fn is_here(setting: &Setting) -> bool {
    met_store::cluster::bytes_in(&state(setting)).is_some()
}

/// The state directory of a server: beside that of a daemon on the same machine.
pub fn state(setting: &Setting) -> PathBuf {
    state_in(place(setting))
}

fn state_in(place: &Place) -> PathBuf {
    place.state.join("server")
}

fn place(setting: &Setting) -> &Place {
    if rustix::process::getuid().is_root() { &setting.system } else { &setting.user }
}

fn make_state(place: &Place) -> Result<PathBuf> {
    let state = state_in(place);
    let unkept = |error| Place { state: state.clone(), ..place.clone() }.cannot_keep("anything", &error);
    create_private(&state).map_err(unkept)?;
    Ok(state)
}

/// Serves until a signal ends it.
pub fn serve(setting: &Setting) -> Result<()> {
    met_host::name_process(c"met-server");
    met_host::raise_open_file_limit().context("cannot raise the limit of open files")?;
    let state = make_state(place(setting))?;
    let _only = only_one(&state)?;
    let signals = Signals::block().context("the server cannot listen for signals")?;
    let backends = setting.config.store.backends().map_err(|error| Failure::usage(error.to_string()))?;
    let cluster_writer = ClusterWriter::start(Plan {
        state: state.clone(),
        backends: backends.clone(),
        retention: jobs::retention(&setting.config.storage),
        thinning: jobs::thinning(&setting.config.storage).into(),
        gap_ms: GAP_MS,
        move_after: move_after(&setting.config),
        lost_after: setting.config.server.lost_after,
        sinks: setting.config.sinks.clone(),
        hub: Arc::default(),
    })
    .map_err(|error| Failure::usage(error.to_string()))?;
    let (latest, incompatible) = (cluster_writer.latest().clone(), Incompatible::default());
    let view = ClusterView {
        state: state.clone(),
        backends,
        latest,
        incompatible: incompatible.clone(),
        gap_ms: GAP_MS,
        lists: Arc::default(),
        watching: cluster_writer.watching().clone(),
    };
    let lists = Arc::clone(&view.lists);
    let before =
        |manager: &str| view.ask(|store| Ok(scheduler_answers::before(store, manager))).unwrap_or_default();
    let root = rustix::process::getuid().is_root();
    let queried = &setting.config.schedulers;
    let schedulers = Schedulers::start(&setting.host, queried, SchedulerClient::Server { root }, before)?;
    let query = Arc::new(view.clone());
    let accounts = accounts::start(&setting.config)?;
    let log = Log::open_for_reading(&state)?;
    let people = Arc::new(People::new(log, setting.config.http.operators.clone(), accounts));
    let passwords = Arc::<PasswordFile>::default();
    let logins = logins(setting, &people, &passwords)?;
    let admission: Arc<dyn Admission> = Arc::<Logins>::clone(&logins);
    let api = Arc::new(Api::new(cluster_writer, people, admission, incompatible, query));
    let received =
        Some(Arc::<colmet::Counts>::default()).filter(|_| !setting.config.colmet.listen.is_empty());
    let pages = metrics_page::Pages::new(view, setting.config.http.contents(), received.clone());
    let server = listen(setting, &api, pages, &logins, passwords)?;
    for address in server.local_addrs() {
        tracing::info!("serving {address}, state in {}", state.display());
    }
    let colmet = colmet(setting, &state, &api, received.as_ref())?;
    let listening = server.local_addrs().iter().map(ToString::to_string).collect();
    let status = StatusFile::new(&state, listening);
    let ended = work(&signals, &schedulers, &api, SchedulerFeed::new()?, status, received);
    if let Some(colmet) = colmet {
        colmet.stop();
    }
    server.stop();
    lists.close_files();
    if let Some(api) = Arc::into_inner(api) {
        api.cluster_writer.stop();
    }
    ended
}

/// Files compress better in long pieces; in an engine, recent samples matter.
fn move_after(config: &Config) -> Duration {
    let by_place = if config.store.series.is_some() { 30 } else { 3600 };
    config.server.move_after.unwrap_or(Duration::from_secs(by_place))
}

/// Two servers would acknowledge the same batch twice.
fn only_one(state: &Path) -> Result<std::fs::File> {
    let path = state.join("server.lock");
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => {
            Err(Failure::usage(format!("a server with its state in {} is already running", state.display())))
        }
    }
}

/// How people log in. What the configuration lacks is for its author to change.
fn logins(setting: &Setting, people: &Arc<People>, passwords: &Arc<PasswordFile>) -> Result<Arc<Logins>> {
    let (login, has_socket) = (&setting.config.login, setting.config.http.socket.is_some());
    let directory: Arc<dyn Directory> = Arc::<People>::clone(people);
    let style = Some(format!("/{}", met_web::pages::style_path()));
    let opened = Logins::open(login, has_socket, directory, Arc::clone(passwords), style);
    opened.map(Arc::new).map_err(Failure::usage)
}

fn listen(
    setting: &Setting,
    api: &Arc<Api>,
    pages: metrics_page::Pages,
    logins: &Arc<Logins>,
    passwords: Arc<PasswordFile>,
) -> Result<Server> {
    let http = &setting.config.http;
    let addresses = match http.listen.is_empty() && http.socket.is_none() {
        true => vec![LISTEN.parse::<Address>()?],
        false => http.listen.clone(),
    };
    // The rest is for the store and what is opened for a moment.
    let most = usize::try_from(met_host::open_file_limit() / 4 * 3).unwrap_or(usize::MAX);
    let options = Options {
        socket: http.socket.clone(),
        web_config: http.web_config.clone(),
        passwords,
        plain: http.plain,
        // Each path has a limit of its own, and a reason of its own for what is beyond it.
        body_bytes_max: usize::MAX,
        answer_within: ANSWER_WITHIN,
        connections_max: CONNECTIONS_MAX.min(most),
        own_checks: login::OWN_CHECKS,
        background_threads: 4,
        ..Options::new(addresses)
    };
    let router = api::router(
        Arc::clone(api),
        setting.config.jobs.layouts.clone(),
        systems::of(&setting.config),
        setting.config.energy.currency.clone(),
    );
    let server = Server::start(options, login::guard(logins, router.merge(metrics_page::router(pages, api))));
    server.map_err(|error| Failure::usage(format!("http: {error}")))
}

/// Takes records of Colmet's nodes, if an address is configured.
fn colmet(
    setting: &Setting,
    state: &Path,
    api: &Arc<Api>,
    counts: Option<&Arc<colmet::Counts>>,
) -> Result<Option<colmet::Receiver>> {
    let (config, Some(counts)) = (&setting.config.colmet, counts) else { return Ok(None) };
    let allowed = colmet::Allowed::parse(&config.allow, &config.hosts).map_err(Failure::usage)?;
    let mut listen = Vec::new();
    for address in &config.listen {
        listen.extend(address.resolve().map_err(|error| Failure::usage(format!("colmet.listen: {error}")))?);
    }
    let plan = colmet::Plan {
        listen,
        allowed,
        manager: config.manager.clone(),
        state: state.to_owned(),
        counts: Arc::clone(counts),
    };
    let receiver = colmet::Receiver::start(plan, Arc::clone(api));
    let receiver = receiver.map_err(|error| Failure::usage(format!("{error:#}")))?;
    for address in &receiver.addresses {
        tracing::info!("taking records of Colmet at {address}");
    }
    Ok(Some(receiver))
}

/// Passes scheduler records to the writer until a signal comes. A server that cannot write ends; its service manager
/// restarts it.
fn work(
    signals: &Signals,
    schedulers: &Schedulers,
    api: &Api,
    mut scheduler_feed: SchedulerFeed,
    mut status: StatusFile,
    received: Option<Arc<colmet::Counts>>,
) -> Result<()> {
    let submit = |work: scheduler_feed::Work| api.cluster_writer.with_writer(work);
    loop {
        let ready_fd = schedulers.ready_fd().filter(|_| scheduler_feed.is_idle());
        let mut fds = vec![PollFd::new(signals, PollFlags::IN), PollFd::new(&scheduler_feed, PollFlags::IN)];
        fds.extend(ready_fd.map(|ready_fd| PollFd::from_borrowed_fd(ready_fd, PollFlags::IN)));
        let colmet = received.as_ref().map(|counts| counts.received()).unwrap_or_default();
        status.update(schedulers.status(), colmet);
        let timeout = scheduler_feed.timeout().map_or(STATUS_EVERY, |timeout| timeout.min(STATUS_EVERY));
        let timespec = Timespec::try_from(timeout).ok();
        if poll(&mut fds, timespec.as_ref()).is_err() {
            continue;
        }
        let [signalled, settled, rung] =
            [0, 1, 2].map(|index| fds.get(index).is_some_and(|fd| !fd.revents().is_empty()));
        drop(fds);
        if signalled && ends(signals) {
            return Ok(());
        }
        if settled {
            scheduler_feed.settle()?;
        }
        scheduler_feed.retry(Instant::now(), submit);
        if let Some(update) = rung.then(|| schedulers.take()).flatten() {
            scheduler_feed.keep(update, submit);
        }
    }
}

fn ends(signals: &Signals) -> bool {
    let mut end = false;
    while let Some(signal) = signals.next() {
        end |= matches!(signal.number, libc::SIGTERM | libc::SIGINT);
        if signal.number == libc::SIGHUP {
            met_sinks::reopen::request();
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use met_wire::schema::{Compared, Meaning, describe};

    use super::*;

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let root = tempfile::tempdir().unwrap();
        let taken = root.path().join("server");
        std::fs::write(&taken, "").unwrap();
        let place = Place { state: root.path().to_owned(), runtime: "/r".into(), system: true };
        let refusal = make_state(&place).unwrap_err().to_string();
        assert!(refusal.contains(&format!("in {}: ", taken.display())), "{refusal}");
        assert!(refusal.contains("system.state"), "{refusal}");
    }

    /// A name with a blank in it would be two.
    #[test]
    fn every_table_is_understood_as_it_is_described() {
        for table in met_sources::catalogue() {
            let described = describe(table);
            let names = described.split(';').map(|group| group.split(' ').count() - 1).sum::<usize>();
            assert_eq!(names, table.columns.len(), "{}: {described}", table.name);
            assert_eq!(Meaning::of(table).compare(&described), Compared::Same);
        }
    }
}
