//! The events of a job, counted from its first instruction to its last.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use met_core::job::{CgroupPaths, EventCount, JobKey};
use met_host::Host;
use met_query::protocol::{PassedEvent, Request};
use met_sources::perf::{self, Begin, Counters, Passed};

use crate::passing;

/// One counter for each event and CPU of a cgroup; beyond so many the process tree is counted instead,
/// which takes one for each event.
const COUNTERS_MAX: usize = 512;
/// How often it is looked whether somebody else needs the processor's counters.
const YIELD_EVERY: Duration = Duration::from_secs(10);

/// What a supervisor counts; mostly nothing.
#[derive(Default)]
pub struct Events {
    counters: Option<Counters>,
}

impl Events {
    /// For a command that waits at its gate: in its cgroup if it may be, else in the process and all it forks.
    pub fn of_child(host: &Host, names: &[String], pid: i32, cgroup: &CgroupPaths) -> Events {
        let Some(events) = asked_for(host, names) else { return Events::default() };
        let cpus = perf::online_cpus(host);
        let fits = cpus.len() * events.len() <= COUNTERS_MAX;
        let dir = cgroup.unified.as_ref().filter(|_| fits).and_then(|path| host.cgroup_dir(path).ok());
        let in_cgroup = dir.as_ref().and_then(|dir| dir.descriptor().ok()).map(|dir| {
            let (counters, refused) = Counters::of_cgroup(dir.as_fd(), &cpus, &events, Begin::Later);
            (counters, refused.len())
        });
        let counters = match in_cgroup {
            Some((counters, 0)) => counters,
            // A user may not count in a cgroup; his own processes he may.
            other => {
                let (tree, refused) = Counters::of_tree(&[pid], &events, Begin::AtExec);
                match other {
                    Some((in_cgroup, more)) if more <= refused.len() => in_cgroup,
                    _ => tree,
                }
            }
        };
        Events { counters: Some(counters) }
    }

    /// For processes that run already.
    pub fn of_threads(host: &Host, names: &[String], tids: &[i32]) -> Events {
        let Some(events) = asked_for(host, names) else { return Events::default() };
        Events { counters: Some(Counters::of_tree(tids, &events, Begin::Now).0) }
    }

    /// The command is about to be executed.
    pub fn begin(&self) {
        if let Some(counters) = &self.counters {
            counters.begin();
        }
    }

    /// Requests that pass the counters on, each with its descriptors. An event with more of them than one message
    /// carries is left out.
    pub fn to_pass(&self, key: &JobKey) -> Vec<(Request, Vec<BorrowedFd<'_>>)> {
        let mut requests: Vec<(Vec<PassedEvent>, Vec<BorrowedFd<'_>>)> = Vec::new();
        let Some(counters) = &self.counters else { return Vec::new() };
        for (Passed { name, software, user_only }, descriptors) in counters.to_pass() {
            let count = descriptors.len();
            if count > passing::DESCRIPTORS_MAX {
                continue;
            }
            if requests.last().is_none_or(|(_, held)| held.len() + count > passing::DESCRIPTORS_MAX) {
                requests.push(Default::default());
            }
            if let Some((events, held)) = requests.last_mut() {
                events.push(PassedEvent { name, counters: count, software, user_only });
                held.extend(descriptors);
            }
        }
        let in_cgroup = counters.is_in_cgroup();
        let request = |(events, held)| (Request::Counters { key: key.clone(), in_cgroup, events }, held);
        requests.into_iter().map(request).collect()
    }

    /// How long one may sleep before somebody else's need is looked at.
    pub fn patience(&self) -> Option<Duration> {
        self.counters.as_ref().filter(|counters| counters.has_hardware()).map(|_| YIELD_EVERY)
    }

    pub fn yield_to_others(&mut self) {
        if let Some(counters) = &mut self.counters {
            counters.yield_if_crowded();
        }
    }

    /// What was counted in all. The counters are closed.
    pub fn close(&mut self) -> Vec<EventCount> {
        self.counters.take().map(|counters| counters.totals()).unwrap_or_default()
    }
}

fn asked_for(host: &Host, names: &[String]) -> Option<Vec<perf::Event>> {
    if names.is_empty() {
        return None;
    }
    perf::events(host, names).ok().filter(|events| !events.is_empty())
}
