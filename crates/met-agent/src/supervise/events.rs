//! The events of a job, counted from its first instruction to its last.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use met_core::job::{CgroupPaths, JobKey, Record, UncountedEvent};
use met_host::Host;
use met_query::protocol::{PassedEvent, Request};
use met_sources::perf::{self, Begin, Counters, Passed};

use crate::passing;

/// One counter for each event and CPU of a cgroup; beyond so many the process tree is counted instead,
/// which takes one for each event.
const COUNTERS_MAX: usize = 512;
/// How often it checks whether other programs need the processor's counters.
const YIELD_EVERY: Duration = Duration::from_secs(10);

/// What a supervisor counts; mostly nothing.
#[derive(Default)]
pub struct Events {
    counters: Option<Counters>,
    uncounted: Vec<UncountedEvent>,
}

/// Why an event whose counters could be opened has no count.
const NEVER_COUNTED: &str = "its counters were used by other programs all the time, or could not be read";

impl Events {
    /// For a command that waits at its gate: in its cgroup if it may be, else in the process and all it forks.
    pub fn of_child(host: &Host, names: &[String], pid: i32, cgroup: &CgroupPaths) -> Events {
        let (events, unknown) = asked_for(host, names);
        if events.is_empty() {
            return Events { counters: None, uncounted: unknown };
        }
        let cpus = perf::online_cpus(host);
        let fits = cpus.len() * events.len() <= COUNTERS_MAX;
        let dir = cgroup.unified.as_ref().filter(|_| fits).and_then(|path| host.cgroup_dir(path).ok());
        let in_cgroup = dir
            .as_ref()
            .and_then(|dir| dir.descriptor().ok())
            .map(|dir| Counters::of_cgroup(dir.as_fd(), &cpus, &events, Begin::Later));
        let (counters, refused) = match in_cgroup {
            Some((counters, refused)) if refused.is_empty() => (counters, refused),
            // A user may not count in a cgroup; his own processes he may.
            other => {
                let (tree, refused) = Counters::of_tree(&[pid], &events, Begin::AtExec);
                match other {
                    Some((in_cgroup, more)) if more.len() <= refused.len() => (in_cgroup, more),
                    _ => (tree, refused),
                }
            }
        };
        Events { counters: Some(counters), uncounted: [unknown, refused].concat() }
    }

    /// For processes that run already.
    pub fn of_threads(host: &Host, names: &[String], tids: &[i32]) -> Events {
        let (events, unknown) = asked_for(host, names);
        if events.is_empty() {
            return Events { counters: None, uncounted: unknown };
        }
        let (counters, refused) = Counters::of_tree(tids, &events, Begin::Now);
        Events { counters: Some(counters), uncounted: [unknown, refused].concat() }
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

    /// How long one may sleep before the next check whether other programs need the counters.
    pub fn timeout(&self) -> Option<Duration> {
        self.counters.as_ref().filter(|counters| counters.has_hardware()).map(|_| YIELD_EVERY)
    }

    pub fn yield_to_others(&mut self) {
        if let Some(counters) = &mut self.counters {
            counters.yield_if_crowded();
        }
    }

    /// What cannot be counted is known before the job runs.
    pub fn explain(&self, record: &mut Record) {
        record.uncounted_events.clone_from(&self.uncounted);
    }

    /// Adds what was counted in all to the record. The counters are closed.
    pub fn close(&mut self, record: &mut Record) {
        self.explain(record);
        let Some(counters) = self.counters.take() else { return };
        record.events = counters.totals();
        let is_counted = |name: &&str| record.events.iter().any(|event| event.name == *name);
        let never = counters.names().filter(|name| !is_counted(name));
        let never = never.map(|name| UncountedEvent { name: name.into(), reason: NEVER_COUNTED.into() });
        record.uncounted_events.extend(never);
    }
}

/// The events by these names, and the names that mean nothing on this machine.
fn asked_for(host: &Host, names: &[String]) -> (Vec<perf::Event>, Vec<UncountedEvent>) {
    match names {
        // The processor is not looked up for nothing.
        [] => (Vec::new(), Vec::new()),
        _ => perf::known_events(host, names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_why_an_event_is_not_counted() {
        let host = Host::real().unwrap();
        let mut record = met_core::sample::bare(1, "x");
        // A number that no processor has, and a name that only an older version knew.
        let names = ["rffffffffffffffff", "nonsense"].map(str::to_owned);
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let mut events = Events::of_threads(&host, &names, &[own]);
        events.close(&mut record);
        assert_eq!(record.events, []);
        let reasons: Vec<_> =
            record.uncounted_events.iter().map(|one| (one.name.as_str(), one.reason.as_str())).collect();
        let [(unknown, no_event), (refused, why)] = reasons[..] else { panic!("{reasons:?}") };
        assert_eq!((unknown, refused), ("nonsense", "rffffffffffffffff"));
        assert!(no_event.contains("nonsense"), "{no_event}");
        assert!(why.contains("does not count it") || why.contains("not allowed"), "{why}");
        Events::default().close(&mut record);
        assert_eq!(record.uncounted_events, [], "none were asked for");
    }
}
