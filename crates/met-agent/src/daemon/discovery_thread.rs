//! The thread that looks for jobs: it waits for the kernel's notices and reports events to the daemon.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use met_host::Host;
use met_jobs::cgroup_layouts::Layouts;
use met_jobs::discover::{Discovery, Event, Health};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};

use met_config::Jobs;
use met_core::text;

/// Batches of events that wait for the daemon. When it is so far behind, looking for more waits for it.
const QUEUE_BATCHES: usize = 1 << 12;
/// Before nearly all other threads; the limit counts from the lowest priority.
const NICE: i32 = -10;
const NICE_LIMIT: u64 = 30;
/// Places that are complained of: a log is for people.
const COMPLAINTS_MAX: usize = 1000;

/// The daemon's end of the thread.
pub struct Finder {
    events: Receiver<Vec<Event>>,
    /// Readable when there are events.
    ready: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    health: Arc<Mutex<Health>>,
    thread: Option<JoinHandle<()>>,
}

/// The thread's end.
struct Reporter {
    events: SyncSender<Vec<Event>>,
    ready: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    health: Arc<Mutex<Health>>,
}

impl Finder {
    pub fn start(host: &Host, jobs: &Jobs) -> io::Result<Finder> {
        let (sender, events) = mpsc::sync_channel(QUEUE_BATCHES);
        let signal = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new);
        let (ready, stop, health) = (signal()?, signal()?, Arc::new(Mutex::new(Health::default())));
        let reporter = Reporter {
            events: sender,
            ready: Arc::clone(&ready),
            stop: Arc::clone(&stop),
            health: Arc::clone(&health),
        };
        let (host, layouts, below) = (host.clone(), Layouts::with(jobs.layouts.clone()), jobs.below.clone());
        let thread = std::thread::Builder::new()
            .name("finder".to_owned())
            .spawn(move || look(&host, &layouts, below, &reporter))?;
        Ok(Finder { events, ready, stop, health, thread: Some(thread) })
    }

    /// What happened since the last call.
    pub fn take(&self) -> Vec<Event> {
        let mut count = [0; 8];
        // Empty if nothing was signalled.
        let _ = rustix::io::read(&*self.ready, &mut count);
        self.events.try_iter().flatten().collect()
    }

    pub fn health(&self) -> Health {
        self.health.lock().map(|health| health.clone()).unwrap_or_default()
    }

    pub fn stop(mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        let thread = self.thread.take();
        // A thread that waits for room in the queue is let go by this.
        drop(self.events);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl AsFd for Finder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// The directory of a job is gone milliseconds after its last process, on a machine whose cores are all busy:
/// this thread sleeps nearly always, and may not wait for its turn when it does not.
fn hurry() {
    let limit = Rlimit { current: Some(NICE_LIMIT), maximum: Some(NICE_LIMIT) };
    // Without the right to it, jobs of a few milliseconds may be missed on a busy machine.
    let _ = setrlimit(Resource::Nice, limit);
    let _ = setpriority_process(None, NICE);
}

fn look(host: &Host, layouts: &Layouts, below: Option<PathBuf>, reporter: &Reporter) {
    hurry();
    let mut discovery = match Discovery::open(host, layouts, below.as_deref()) {
        Ok(discovery) => discovery,
        Err(error) => {
            tracing::warn!("jobs of resource managers are not looked for: {error}");
            return;
        }
    };
    let mut complaints = Complaints::default();
    loop {
        let events = discovery.work();
        if discovery.take_news() || !events.is_empty() {
            let health = discovery.health();
            for complaint in complaints.about(&health) {
                tracing::warn!("{complaint}");
            }
            if let Ok(mut shown) = reporter.health.lock() {
                *shown = health;
            }
        }
        if !events.is_empty() {
            if reporter.events.send(events).is_err() {
                return;
            }
            let _ = rustix::io::write(&*reporter.ready, &1u64.to_ne_bytes());
        }
        if wait(&discovery, reporter) {
            return;
        }
    }
}

/// What was said about the search for jobs, which is not said again.
#[derive(Default)]
struct Complaints {
    refused: Option<String>,
    crowded: HashSet<PathBuf>,
}

impl Complaints {
    /// What is to be said now.
    fn about(&mut self, health: &Health) -> Vec<String> {
        let mut now = Vec::new();
        if health.refused != self.refused {
            self.refused.clone_from(&health.refused);
            let why = health.refused.as_deref();
            now.extend(why.map(|why| format!("not every cgroup is watched: {why}")));
        }
        for (place, count) in &health.left_out {
            if self.crowded.len() < COMPLAINTS_MAX && self.crowded.insert(place.clone()) {
                let place = text::escape(&place.display().to_string());
                now.push(format!(
                    "{place} has {count} cgroups more than are followed: jobs in it may be missed"
                ));
            }
        }
        now
    }
}

/// Until something is noticed or due; true when `stop` is signalled.
fn wait(discovery: &Discovery, reporter: &Reporter) -> bool {
    let mut fds = vec![PollFd::new(&*reporter.stop, PollFlags::IN)];
    fds.push(PollFd::from_borrowed_fd(discovery.fd(), PollFlags::IN));
    let timeout = Timespec::try_from(discovery.timeout()).ok();
    // An interrupted wait is one that was short.
    poll(&mut fds, timeout.as_ref()).is_ok() && !fds[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_with_too_many_cgroups_is_complained_of_once() {
        let mut complaints = Complaints::default();
        let mut health = Health { left_out: vec![("/cg/a".into(), 5)], ..Health::default() };
        let about_a = "/cg/a has 5 cgroups more than are followed: jobs in it may be missed";
        assert_eq!(complaints.about(&health), [about_a]);
        health.left_out = vec![("/cg/a".into(), 9), ("/cg/b".into(), 1)];
        health.refused = Some("no space".to_owned());
        let now = complaints.about(&health);
        assert_eq!(now.len(), 2, "{now:?}");
        assert!(now[0].contains("no space") && now[1].starts_with("/cg/b has 1 "));
        assert!(complaints.about(&health).is_empty());
        health.left_out = vec![("/cg/\x1b[2J".into(), 1)];
        assert!(complaints.about(&health)[0].starts_with("/cg/\\x1b[2J has"), "it may go to a terminal");
        health.left_out = (0..2 * COMPLAINTS_MAX).map(|place| (place.to_string().into(), 1)).collect();
        assert_eq!(complaints.about(&health).len(), COMPLAINTS_MAX - 3);
    }
}
