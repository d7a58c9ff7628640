//! The daemon: samples the jobs of a user, or as root of all users, and keeps what becomes of them.
//!
//! One thread serves the socket and writes the store, another samples: a slow disk delays no tick. A third
//! asks the scheduler, where there is one. It never starts a user's process, and jobs go on without it.

mod admission;
mod charging;
mod claims;
mod connections;
mod discovery_thread;
pub mod forwarding;
mod found_jobs;
#[cfg(test)]
mod full_disk_tests;
mod housekeeping;
mod identifying;
pub(crate) mod idle_readings;
pub mod last_tick;
pub mod listening;
mod live_messages;
mod live_settings;
mod memory_release;
mod nesting;
mod node_id;
mod orders;
mod perf_cgroups;
mod permissions;
mod privilege;
mod process_groups;
mod query;
mod queue_reader;
mod quotas;
mod recorder;
mod registry;
mod repairs;
mod requests;
mod reservations;
mod sampler_thread;
mod sampler_view;
mod sampler_worker;
pub mod scheduler_answers;
mod scheduler_worker;
pub mod schedulers;
mod service;
mod sinks;
mod socket;
mod spare_descriptors;
mod supervisors;
mod unflushed_samples;
mod watchdog;
mod write_retries;

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use met_core::job::JobKey;
use met_jobs::job_cgroup;
use met_web::listener::Server;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::passed_counters::PassedCounters;
use crate::supervise::Signals;
use connections::{Connections, Limits, Served};
pub use last_tick::DAEMON;
use last_tick::MetricsCache;
use live_messages::LiveMessages;
use met_config::Failure;
use met_config::Place;
use met_config::address;
use met_query::client::{Client, Unreachable};
use met_query::handshake::{Greeting, UNLINKED_SINCE};
use met_query::protocol::{HttpStatus, Reply, Request};
use met_query::setting::Setting;
use permissions::Caller;
use service::Service;
pub use socket::remove_dead_socket;
use socket::{Claim, Connection, Peer, Post};

/// Accepted between two rounds of answers: a flood of connections does not keep others from being answered.
const ACCEPTED_PER_ROUND: usize = 32;
/// While jobs that are over wait for their last window of energy.
const SETTLE_EVERY: Duration = Duration::from_millis(500);
/// While the sampling thread is blocked, what needs it is tried again this often.
const RETRY_EVERY: Duration = Duration::from_millis(50);
const RETENTION_EVERY: Duration = Duration::from_secs(3600);
/// So long after the last job and question nothing is expected soon.
const REST_AFTER: Duration = Duration::from_secs(5);

/// Serves until stopped, or, if `auto`, until there has been nothing to do for a while.
pub fn run(setting: &Setting, place: &Place, auto: bool) -> Result<()> {
    place.create()?;
    met_host::name_process(c"met-daemon");
    memory_release::share_pools();
    let open_files = met_host::raise_open_file_limit().context("cannot raise the limit of open files")?;
    setting.host.budget().follow_limit();
    let in_terminal = std::io::stdin().is_terminal();
    let signals = Signals::block().context("the daemon cannot listen for signals")?;
    if !in_terminal {
        signals.hear_hangups();
    }
    // One with another runtime directory has the state: its lock would refuse this one.
    let claim = if serves_elsewhere(place) { None } else { Claim::take(place)? };
    let Some(claim) = claim else {
        return match auto {
            true => Ok(()),
            false => Err(Failure::usage(runs_already(place))),
        };
    };
    if place.system {
        privilege::give_up().context("cannot give up rights")?;
    }
    job_cgroup::leave(&setting.host, std::process::id());
    let metrics_cache = metrics_cache(setting, place);
    // Before anything else is begun: a fault in the configuration ends it here.
    let (http, http_status) = listen(setting, place, metrics_cache.as_ref(), auto)?;
    let mut service = Service::open(setting, place, metrics_cache)?;
    service.outputs.http = http_status;
    let messages = LiveMessages::start(setting, place, auto);
    service.outputs.configure = messages.map_err(|error| Failure::usage(format!("{error:#}")))?;
    let post = claim.open_socket(place)?;
    tracing::info!("serving {}, state in {}", place.socket().display(), place.state.display());
    let mut daemon = Daemon {
        service,
        http,
        post,
        signals,
        in_terminal,
        connections: Connections::new(Limits::of(open_files, place.system)),
        // One for all users waits for jobs that others start.
        idle_exit: (auto && !place.system).then_some(setting.config.daemon.idle_exit),
        busy_at: Instant::now(),
        rests: false,
        flushed: None,
        next_retention: Instant::now(),
    };
    daemon.serve()?;
    daemon.leave();
    Ok(())
}

fn serves_elsewhere(place: &Place) -> bool {
    let elsewhere = place.address().and_then(|file| address::elsewhere(&file, &place.socket()));
    match elsewhere.map(|socket| Client::connect(&socket)) {
        Some(Ok(client)) => address::is_own(&client),
        Some(Err(missed)) => missed.again().is_some(),
        None => false,
    }
}

/// Why no second daemon starts, and what to do about the first.
fn runs_already(place: &Place) -> String {
    match Client::connect_to(place) {
        Err(silent @ Unreachable::Silent { .. }) => {
            format!("{silent}; {}", silent.remedy().unwrap_or_default())
        }
        _ => "a daemon is already running; `met daemon --status` shows it, --stop ends it".to_owned(),
    }
}

/// What others may read of it; nothing unless an address is configured.
fn metrics_cache(setting: &Setting, place: &Place) -> Option<Arc<MetricsCache>> {
    let http = &setting.config.http;
    let listens = listening::is_configured(setting, place);
    let metrics_cache = || MetricsCache::new(http.contents(), http.keep_ended).no_older_than(http.max_age);
    listens.then(|| Arc::new(metrics_cache()))
}

/// One that a supervisor started has a job to sample, and does that without a listener if it must.
fn listen(
    setting: &Setting,
    place: &Place,
    metrics_cache: Option<&Arc<MetricsCache>>,
    auto: bool,
) -> Result<(Option<Server>, Option<HttpStatus>)> {
    let Some(metrics_cache) = metrics_cache else { return Ok((None, None)) };
    match listening::listen(setting, place, metrics_cache) {
        Ok(server) => {
            let listening = server.local_addrs().iter().map(ToString::to_string).collect();
            Ok((Some(server), Some(HttpStatus { listening, refused: None })))
        }
        Err(error) if auto => {
            tracing::error!("http: {error}");
            Ok((None, Some(HttpStatus { listening: Vec::new(), refused: Some(error.to_string()) })))
        }
        Err(error) => Err(Failure::usage(format!("http: {error}"))),
    }
}

/// Replies to a peer whose connection is closed afterwards if there is no room for it. An older supervisor does not
/// know why; one whose announcement is not confirmed either tries again ever more rarely, not at once.
fn reply_linked(connection: &mut Connection, reply: &Reply, has_room: bool) {
    let knows_why = connection.protocol >= UNLINKED_SINCE;
    if has_room || knows_why {
        connection.reply(reply);
    }
    if !has_room && knows_why {
        connection.reply(&Reply::Unlinked);
    }
}

struct Daemon {
    service: Service,
    http: Option<Server>,
    post: Post,
    signals: Signals,
    /// It ends when the terminal hangs up in which it was started.
    in_terminal: bool,
    connections: Connections,
    idle_exit: Option<Duration>,
    busy_at: Instant,
    rests: bool,
    flushed: Option<Instant>,
    next_retention: Instant,
}

/// What a poll found.
#[derive(Default)]
struct Ready {
    signalled: bool,
    knocked: bool,
    reported: bool,
    discovered: bool,
    connections: Vec<bool>,
}

impl Daemon {
    fn serve(&mut self) -> Result<()> {
        loop {
            let ready = self.poll();
            if ready.signalled && self.handle_signals() {
                return Ok(());
            }
            // Before requests, so that they are answered with what is known by now.
            if self.service.settings.is_file_changed(Instant::now()) {
                self.reread();
            }
            if ready.discovered {
                self.service.discovered();
            }
            if self.serve_connections(&ready.connections) {
                return Ok(());
            }
            // Afterwards: one that has to make room changes the places of the others.
            if ready.knocked {
                self.let_in();
            }
            self.service.ask_who_is_due();
            self.service.look_at_groups_if_due();
            self.service.look_at_supervisors();
            if ready.reported {
                self.service.take_scheduler_records();
            }
            self.keep_house();
            self.rest_if_due();
            if self.idle_too_long() && self.left_for_good()? {
                return Ok(());
            }
        }
    }

    fn poll(&mut self) -> Ready {
        let mut fds =
            vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.post.listener, PollFlags::IN)];
        let (places, polled): (Vec<usize>, Vec<PollFd<'_>>) = self.connections.poll_fds().unzip();
        fds.extend(polled);
        let (ready_fd, ready_fd_at) = (self.service.ready_fd(), fds.len());
        fds.extend(ready_fd.map(|ready_fd| PollFd::from_borrowed_fd(ready_fd, PollFlags::IN)));
        let is_blocked = self.service.sampling.is_blocked();
        let (finding, finding_at) =
            (self.service.discovery.finding.as_ref().filter(|_| !is_blocked), fds.len());
        fds.extend(finding.map(|finding| PollFd::from_borrowed_fd(finding.as_fd(), PollFlags::IN)));
        let timeout = self.timeout().and_then(|timeout| Timespec::try_from(timeout).ok());
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Ready::default();
        }
        let is_ready = |index: usize| !fds[index].revents().is_empty();
        let mut connections = vec![false; self.connections.len()];
        for (at, &place) in places.iter().enumerate() {
            connections[place] = is_ready(2 + at);
        }
        Ready {
            signalled: is_ready(0),
            knocked: is_ready(1),
            reported: ready_fd.is_some() && is_ready(ready_fd_at),
            discovered: finding.is_some() && is_ready(finding_at),
            connections,
        }
    }

    /// How long nothing needs to be done unless a client asks.
    fn timeout(&self) -> Option<Duration> {
        let is_blocked = self.service.sampling.is_blocked();
        if self.connections.has_waiting(!is_blocked) {
            return Some(Duration::ZERO);
        }
        if is_blocked {
            return Some(RETRY_EVERY);
        }
        let flush = self.service.has_to_flush().then(|| self.next_flush().unwrap_or_else(Instant::now));
        let idle = self.idle_exit.filter(|_| self.is_idle()).map(|idle_exit| self.busy_at + idle_exit);
        let settling = self.service.is_owed().then(|| Instant::now() + SETTLE_EVERY);
        let next_look = self.service.discovery.groups.as_ref().map(|groups| groups.next_look());
        let due =
            flush.into_iter().chain(idle).chain(self.service.discovery.next_question()).chain(next_look);
        let due = due.chain(self.service.next_care()).chain(self.service.registry.next_supervisor_look());
        let due = due.chain(self.connections.next_stall()).chain(self.service.housekeeping.next_removal());
        let due = due.chain(self.service.housekeeping.next_earlier());
        let due = due.chain(self.service.housekeeping.next_thinning());
        let due = due.chain(self.service.housekeeping.next_upgrade());
        let due = due.chain(self.service.housekeeping.next_sum());
        let rest = (!self.rests && self.is_idle()).then_some(self.busy_at + REST_AFTER);
        let import = (!self.service.place.system).then(|| self.service.housekeeping.next_import());
        let next = due.chain(settling).chain(rest).chain(import).chain([self.next_retention]).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// True on a signal to stop. A hang-up asks for the file to be read again, unless a terminal hung up.
    fn handle_signals(&mut self) -> bool {
        let (mut stop, mut reread) = (false, false);
        while let Some(signal) = self.signals.next() {
            let hangup = signal.number == libc::SIGHUP;
            stop |= matches!(signal.number, libc::SIGTERM | libc::SIGINT) || hangup && self.in_terminal;
            reread |= hangup;
        }
        if reread && !stop {
            met_sinks::reopen::request();
            self.reread();
        }
        stop
    }

    fn reread(&mut self) {
        self.service.reread();
        if let Some(http) = &self.http {
            http.reread();
        }
        self.idle_exit = self.idle_exit.map(|_| self.service.settings.config.daemon.idle_exit);
        (self.flushed, self.next_retention) = (None, Instant::now());
    }

    fn let_in(&mut self) {
        for _ in 0..ACCEPTED_PER_ROUND {
            let Some((stream, peer)) = self.post.accept_with(&mut self.service.admission.spare) else {
                return;
            };
            self.admit(Connection::new(stream, peer));
        }
    }

    fn admit(&mut self, connection: Connection) {
        self.busy_at = Instant::now();
        let made_room = self.connections.admit(connection);
        made_room.iter().for_each(|key| self.service.registry.unlinked(key));
    }

    /// Answers who asked, each a request at a time; true after a request to stop.
    fn serve_connections(&mut self, ready: &[bool]) -> bool {
        let mut stop = false;
        // Borrowed apart from the rest of the daemon, which answers.
        let empty = Connections::new(Limits::of(0, false));
        let mut connections = std::mem::replace(&mut self.connections, empty);
        let gone = connections.take_turns(ready, |all, index| {
            self.busy_at = Instant::now();
            self.serve_one(all, index, &mut stop)
        });
        self.connections = connections;
        gone.iter().for_each(|key| self.service.registry.unlinked(key));
        stop
    }

    fn serve_one(&mut self, all: &mut Connections, index: usize, stop: &mut bool) -> Served {
        let connection = all.get(index);
        let peer = connection.peer;
        if connection.is_postponed() && !self.service.sampling.is_ready() {
            return Served::Stays;
        }
        if !connection.wants_to_write() && !connection.receive(&self.service.sampling.counter_budget) {
            return Served::Gone;
        }
        let mut has_room = true;
        match connection.take_request() {
            None => {}
            Some(Err(_)) => return Served::Gone,
            // A supervisor that was killed at once has reported its job; no client waits for other answers.
            Some(Ok(request))
                if connection.is_deaf()
                    && !matches!(
                        request,
                        Request::Started(_) | Request::Ended(_) | Request::Timed { .. }
                    ) => {}
            Some(Ok(request)) if Service::needs_sampler(&request) && !self.service.sampling.is_ready() => {
                if let Err(error) = connection.postpone(&request) {
                    connection.reply(&Reply::error(error.to_string()));
                }
            }
            Some(Ok(Request::Counters { key, in_cgroup, events })) => {
                let is_own = connection.job.as_ref() == Some(&key);
                let received = connection.take_received().filter(|_| is_own);
                let names = self.service.settings.all_events();
                let is_wanted = claims::wanted_events(&self.service.host, &names, peer);
                let passed = received.and_then(|all| PassedCounters::of(in_cgroup, events, all, is_wanted));
                if let Some(passed) = passed {
                    self.service.sampling.count_by(&key, passed);
                }
                connection.reply(&Reply::Done);
            }
            Some(Ok(request)) => {
                let announced = match &request {
                    Request::Started(record) => Some(record.key.clone()),
                    _ => None,
                };
                let (reply, stops) = self.answer(request, peer);
                *stop |= stops;
                if let Reply::Hello { protocol, .. } = &reply {
                    connection.protocol = *protocol;
                }
                if let (Some(key), Reply::Done) = (announced, &reply) {
                    has_room = self.link(all, index, &key);
                }
                reply_linked(all.get(index), &reply, has_room);
            }
        }
        all.get(index).flush();
        match has_room {
            true => Served::Stays,
            false => Served::Gone,
        }
    }

    /// The connection is that of a job's supervisor; false where it has to go for lack of room.
    fn link(&mut self, all: &mut Connections, index: usize, key: &JobKey) -> bool {
        if all.get(index).job.is_some() {
            return true;
        }
        if !all.promote(index, key) {
            return false;
        }
        self.service.registry.linked(key);
        true
    }

    fn answer(&mut self, request: Request, peer: Peer) -> (Reply, bool) {
        let refused = |error: anyhow::Error| Reply::refusal(&error);
        let caller = Caller::new(peer);
        if let Err(error) = self.service.access(&request, &caller) {
            return (refused(error), false);
        }
        match request {
            Request::Hello(hello) => {
                let Greeting { protocol, leaving } = hello.greet(self.service.is_owner(peer));
                if leaving {
                    tracing::info!("leaving: a newer version of met brings its own daemon");
                }
                (Reply::Hello { protocol, pid: std::process::id(), leaving }, leaving)
            }
            Request::Stop => (Reply::Done, true),
            request => (self.service.answer(request, &caller).unwrap_or_else(refused), false),
        }
    }

    fn keep_house(&mut self) {
        let now = Instant::now();
        if self.connections.len() == 0 {
            self.service.recorder.writer.close_files();
        }
        self.service.look_after_sampling();
        self.service.settle_energy();
        self.service.take_factors();
        self.service.tidy(now);
        let flush = self.next_flush().is_none_or(|next| now >= next) && self.service.has_to_flush();
        if flush && self.service.sampling.is_ready() {
            self.service.follow_factor();
            self.service.flush();
            self.service.sweep();
            self.flushed = Some(now);
            // What was written is not held any more, by jobs or by the writer, and its code is not needed for a while.
            memory_release::give_back_free();
            match self.ticks_at_rest() {
                true => memory_release::limit_code(),
                false => memory_release::give_back_code(),
            }
        }
        let retain = now >= self.next_retention || self.service.is_retention_due();
        if retain && self.service.sampling.is_ready() {
            // Without jobs nothing else writes what was learned of the machine meanwhile.
            self.service.flush();
            self.service.retain();
            self.next_retention = now + RETENTION_EVERY;
        }
        if !self.is_idle() {
            self.busy_at = now;
        }
    }

    /// `None`: at once. The first job after a rest does not wait as long as the rest would.
    fn next_flush(&self) -> Option<Instant> {
        self.flushed.map(|flushed| flushed + self.service.flush_every())
    }

    /// Without a job and without a question for a while it holds no more than it needs to wait.
    fn rest_if_due(&mut self) {
        let is_quiet = self.is_idle() && self.busy_at.elapsed() >= REST_AFTER;
        match (is_quiet, self.rests) {
            (false, _) => {}
            (true, false) => {
                memory_release::give_back_free();
                memory_release::give_back_code();
            }
            // Every tick would have to get its pages again.
            (true, true) if self.ticks_at_rest() => memory_release::limit_code(),
            // What was read and kept meanwhile needed some again.
            (true, true) => memory_release::limit_code_at_rest(),
        }
        self.rests = is_quiet;
    }

    fn ticks_at_rest(&self) -> bool {
        self.is_idle() && self.service.sampling.ticks_at_rest
    }

    fn is_idle(&self) -> bool {
        self.service.job_count() == 0 && !self.service.is_owed()
    }

    fn idle_too_long(&self) -> bool {
        self.idle_exit.is_some_and(|idle_exit| self.is_idle() && self.busy_at.elapsed() >= idle_exit)
    }

    /// Closes the socket, and opens it again if a client had connected meanwhile.
    fn left_for_good(&mut self) -> Result<bool> {
        let Some((stream, peer)) = self.post.close_socket() else {
            tracing::info!("leaving: no job for a while");
            return Ok(true);
        };
        self.post.reopen_socket()?;
        self.admit(Connection::new(stream, peer));
        Ok(false)
    }

    /// Ends the daemon; whatever was sampled is kept, jobs run on.
    fn leave(mut self) {
        let mut late = self.post.close_socket();
        while let Some((stream, peer)) = late {
            self.admit(Connection::new(stream, peer));
            late = self.post.accept();
        }
        // The HTTP listener asks this thread, which answers no more: its requests end now and keep no client waiting.
        self.dismiss(|connection| connection.peer.pid == std::process::id());
        if let Some(http) = self.http.take() {
            http.stop();
        }
        self.service.flush();
        self.dismiss(|_| true);
        self.service.close();
    }

    fn dismiss(&mut self, who: impl Fn(&Connection) -> bool) {
        for connection in self.connections.iter_mut().filter(|connection| who(connection)) {
            connection.reply(&Reply::Leaving);
            connection.flush();
        }
    }
}
