//! Counters that supervisors pass to a daemon. Their descriptors count against a budget from their arrival until they
//! are closed, wherever they are meanwhile, so that no user can exhaust those of the daemon.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use met_query::protocol::PassedEvent;
use met_sources::perf::{Counters, Passed};

/// Events of one request, and bytes of a name.
const EVENTS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 128;
/// Descriptors of all supervisors: so many, and a part of those that this process may have.
const DESCRIPTORS_MAX: u64 = 8192;
/// However many users reach their limits.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// How many descriptors each user's supervisors may have passed. A user may hold half of what the others leave, so
/// that there is always room for one more; root and the user of the daemon may hold all of it.
#[derive(Clone, Debug)]
pub struct Budget {
    most: usize,
    usage: Arc<Mutex<Usage>>,
}

#[derive(Debug, Default)]
struct Usage {
    held: HashMap<u32, usize>,
    /// Users whose last attempt failed and was logged.
    refused: HashSet<u32>,
    warned: Option<Instant>,
}

impl Usage {
    fn of(shared: &Mutex<Usage>) -> MutexGuard<'_, Usage> {
        shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&mut self, uid: u32, count: usize) {
        let Some(held) = self.held.get_mut(&uid) else { return };
        *held = held.saturating_sub(count);
        if *held == 0 {
            self.held.remove(&uid);
        }
    }

    /// Whether a refusal is worth a line in the log: the user had room before.
    fn is_news(&mut self, uid: u32) -> bool {
        let is_quiet = self.warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY);
        if !is_quiet || !self.refused.insert(uid) {
            return false;
        }
        self.warned = Some(Instant::now());
        true
    }
}

impl Budget {
    pub fn of_process() -> Budget {
        let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let part = open_files.map_or(DESCRIPTORS_MAX, |files| files / 100 * met_host::percent::COUNTERS);
        Budget::new(part.min(DESCRIPTORS_MAX) as usize)
    }

    fn new(most: usize) -> Budget {
        Budget { most, usage: Arc::default() }
    }

    /// Counts descriptors that have arrived from a user; closes them where these are too many.
    pub fn hold(&self, uid: u32, descriptors: Vec<OwnedFd>) -> Option<Received> {
        if descriptors.is_empty() {
            return None;
        }
        let share = self.take(uid, descriptors.len())?;
        Some(Received { descriptors, share })
    }

    fn take(&self, uid: u32, count: usize) -> Option<Share> {
        let mut usage = Usage::of(&self.usage);
        let own = usage.held.get(&uid).copied().unwrap_or(0);
        let others = usage.held.values().sum::<usize>() - own;
        let left = self.most.saturating_sub(others);
        let is_owner = uid == 0 || uid == rustix::process::getuid().as_raw();
        let limit = if is_owner { left } else { left / 2 };
        if own + count > limit {
            if usage.is_news(uid) {
                tracing::warn!(
                    "user {uid} has {own} event counters open, at most {limit} are allowed: some jobs have no event series"
                );
            }
            return None;
        }
        usage.held.insert(uid, own + count);
        usage.refused.remove(&uid);
        Some(Share { usage: self.usage.clone(), uid, count })
    }

    #[cfg(test)]
    pub fn held(&self) -> usize {
        Usage::of(&self.usage).held.values().sum()
    }
}

/// A part of the budget, given back when it is dropped.
#[derive(Debug)]
struct Share {
    usage: Arc<Mutex<Usage>>,
    uid: u32,
    count: usize,
}

impl Share {
    fn shrink_to(&mut self, count: usize) {
        let freed = self.count.saturating_sub(count);
        if freed > 0 {
            Usage::of(&self.usage).give_back(self.uid, freed);
            self.count -= freed;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Descriptors that came with a request.
#[derive(Debug)]
pub struct Received {
    // Closed before the share is given back.
    descriptors: Vec<OwnedFd>,
    share: Share,
}

/// Open counters of a supervisor.
#[derive(Debug)]
pub struct PassedCounters {
    pub counters: Counters,
    share: Share,
}

impl PassedCounters {
    /// None of them where there are other than the named number of descriptors, or too many events. What is no counter
    /// is closed, and what counts an event that is not wanted.
    pub fn of(
        in_cgroup: bool,
        events: Vec<PassedEvent>,
        received: Received,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Option<PassedCounters> {
        let Received { descriptors, mut share } = received;
        let counters = events.iter().fold(0usize, |sum, event| sum.saturating_add(event.counters));
        let is_too_long = |event: &PassedEvent| event.name.len() > NAME_BYTES_MAX;
        if counters != descriptors.len() || events.len() > EVENTS_MAX || events.iter().any(is_too_long) {
            drop(descriptors);
            return None;
        }
        let mut descriptors = descriptors.into_iter();
        let passed = events.into_iter().map(|PassedEvent { name, counters, software, user_only }| {
            (Passed { name, software, user_only }, descriptors.by_ref().take(counters).collect())
        });
        let mut passed: Vec<(Passed, Vec<OwnedFd>)> = passed.collect();
        passed.retain(|(event, _)| is_wanted(&event.name));
        let counters = Counters::received(in_cgroup, passed);
        share.shrink_to(counters.descriptors());
        (!counters.is_empty()).then_some(PassedCounters { counters, share })
    }

    /// A counter of the thread that calls this; `None` where that is not allowed.
    #[cfg(test)]
    pub fn of_this_thread(event: &str) -> Option<PassedCounters> {
        use met_sources::perf::{Begin, events};
        let events = events(&met_host::Host::real().unwrap(), &[event.to_owned()]).unwrap();
        let (counters, refused) = Counters::of_tree(&[0], &events, Begin::Now);
        if counters.is_empty() {
            met_core::skipped::skipped(format!("{refused:?}"));
            return None;
        }
        let share = Budget::new(1).take(0, 1).unwrap();
        Some(PassedCounters { counters, share })
    }

    /// Gives back the share of counters that were closed for other programs.
    pub fn release_closed(&mut self) {
        self.share.shrink_to(self.counters.descriptors());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u32 = 70_000;
    const BOB: u32 = 70_001;

    fn pipes(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| rustix::pipe::pipe().unwrap().0).collect()
    }

    #[test]
    fn a_user_leaves_room_for_the_others() {
        let budget = Budget::new(100);
        let held: Vec<Share> = (0..100).map_while(|_| budget.take(ALICE, 1)).collect();
        assert_eq!(held.len(), 50);
        assert!(budget.take(BOB, 26).is_none());
        let of_bob = budget.take(BOB, 25).unwrap();
        assert!(budget.take(0, 26).is_none(), "there are no more than 100");
        let of_root = budget.take(0, 25).unwrap();
        assert_eq!(budget.held(), 100);
        drop((held, of_root));
        assert!(budget.take(BOB, 25).is_some(), "half of all, as nobody else has any");
        drop(of_bob);
        assert_eq!((budget.held(), budget.usage.lock().unwrap().held.len()), (0, 0));
    }

    #[test]
    fn a_refusal_is_logged_once() {
        let mut usage = Usage::default();
        assert!(usage.is_news(ALICE) && !usage.is_news(ALICE));
        assert!(!usage.is_news(BOB), "not within a minute");
        usage.warned = None;
        assert!(usage.is_news(BOB) && !usage.is_news(ALICE));
        let budget = Budget::new(4);
        assert!(budget.take(ALICE, 3).is_none() && budget.usage.lock().unwrap().refused.contains(&ALICE));
        let _share = budget.take(ALICE, 2).unwrap();
        assert!(budget.usage.lock().unwrap().refused.is_empty(), "it had room again");
    }

    #[test]
    fn what_is_no_counter_is_closed_at_once() {
        let budget = Budget::new(100);
        let event =
            |counters| PassedEvent { name: "x".to_owned(), counters, software: true, user_only: false };
        let pass = |events: Vec<PassedEvent>, count| {
            PassedCounters::of(false, events, budget.hold(ALICE, pipes(count)).unwrap(), |_| true)
        };
        assert!(pass(vec![event(2)], 2).is_none(), "pipes");
        assert!(pass(vec![event(1)], 2).is_none(), "another number");
        assert!(pass(vec![event(usize::MAX), event(2)], 1).is_none());
        let many = (0..=EVENTS_MAX).map(|_| event(0)).chain([event(1)]).collect();
        assert!(pass(many, 1).is_none(), "too many events");
        assert_eq!(budget.held(), 0);
        // One is enough where this may not be counted: the names decide before the descriptors are looked at.
        let named = |is_wanted: bool| {
            let counter = PassedCounters::of_this_thread("task_clock")?;
            let descriptors = (counter.counters.to_pass())
                .flat_map(|(_, all)| all)
                .map(|one| one.try_clone_to_owned().unwrap())
                .collect::<Vec<_>>();
            let event = event(descriptors.len());
            let received = budget.hold(ALICE, descriptors).unwrap();
            Some(PassedCounters::of(false, vec![event], received, |name| name == "x" && is_wanted).is_some())
        };
        assert!(named(true).is_none_or(|taken| taken) && named(false).is_none_or(|taken| !taken));
        assert_eq!(budget.held(), 0);
        let descriptors = pipes(51);
        assert!(budget.hold(ALICE, descriptors).is_none() && budget.hold(ALICE, Vec::new()).is_none());
    }
}
