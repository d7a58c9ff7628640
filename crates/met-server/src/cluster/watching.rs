//! Which jobs clients watch, by node: nodes learn of them with the reply to their batches. In memory only, and for a while.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use met_core::cadence::{Asked, WANTED_FOR_MAX};
use met_core::job::JobKey;
use met_query::viewer::Viewer;
use met_wire::acknowledgement::WATCHED_MAX;

/// A job that is no longer asked for is watched for this long: nodes with a long interval hear of it, too.
const WATCHED_FOR: Duration = Duration::from_secs(30);
/// The nodes of a watched job are looked up this often.
const LOOKED_UP_EVERY: Duration = Duration::from_secs(10);
/// Jobs that one viewer asks for at a time, some screens full; all operators are one viewer.
const JOBS_PER_VIEWER: usize = 256;
const VIEWERS_MAX: usize = 256;
/// Of a job on more nodes, as many learn of it: the others send what they always send.
const NODES_PER_JOB: usize = 256;
/// Parts of jobs on nodes that are watched at a time; rules may want as many.
const PARTS_MAX: usize = 4096;
/// Of the jobs of a node, what one viewer may look at: the rest is for others.
const LOOKED_AT_ON_NODE_PER_VIEWER: usize = WATCHED_MAX / 2;
/// Of these and of the jobs of a node, what the rules of one viewer may want: they want it for up to an hour.
const WANTED_PARTS_PER_VIEWER: usize = PARTS_MAX / 4;
const WANTED_ON_NODE_PER_VIEWER: usize = WATCHED_MAX / 4;

#[derive(Clone, Default)]
pub struct Watching {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    /// A batch costs one load while nothing is watched.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What each viewer asks for.
    asked: HashMap<String, HashMap<JobKey, Request>>,
    /// Until when jobs of a node are watched, as the node names them.
    nodes: HashMap<String, HashMap<JobKey, Wanted>>,
    /// What rules want of them. A node gets these where those that a client looks at leave room.
    wanted: HashMap<String, HashMap<JobKey, Wanted>>,
    /// Nothing is watched for longer.
    last: Option<Instant>,
}

struct Wanted {
    /// Who looked at it first, or whose rules want it for the longest.
    viewer: String,
    until: Instant,
}

struct Request {
    at: Instant,
    looked_up: Option<Instant>,
}

impl Watching {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A viewer asks for a job that runs and that it sees. True if it watches the job, and its nodes are to be looked up and
    /// passed to [`Watching::watch`].
    pub fn ask(&self, viewer: &Viewer, job: &JobKey, now: Instant) -> bool {
        let state = &mut *self.lock();
        let name = name(viewer);
        if !state.asked.contains_key(&name) && state.asked.len() >= VIEWERS_MAX {
            state.asked.values_mut().for_each(|jobs| forget_old(jobs, now));
            state.asked.retain(|_, jobs| !jobs.is_empty());
            if state.asked.len() >= VIEWERS_MAX {
                return false;
            }
        }
        let jobs = state.asked.entry(name).or_default();
        let Some(request) = jobs.get_mut(job) else {
            if jobs.len() >= JOBS_PER_VIEWER {
                forget_old(jobs, now);
            }
            if jobs.len() < JOBS_PER_VIEWER {
                jobs.insert(job.clone(), Request { at: now, looked_up: None });
            }
            return false;
        };
        let asked = Asked::after(Some(now.saturating_duration_since(request.at)));
        if asked != Asked::Same {
            request.at = now;
        }
        let is_due = |at: Instant| now.saturating_duration_since(at) >= LOOKED_UP_EVERY;
        let is_watched = asked == Asked::Again && request.looked_up.is_none_or(is_due);
        if is_watched {
            request.looked_up = Some(now);
        }
        is_watched
    }

    /// A viewer watches a job, for a while. `parts`: the keys of its series, which have the names of nodes.
    pub fn watch(&self, viewer: &Viewer, parts: &[JobKey], now: Instant) {
        let state = &mut *self.lock();
        state.expire(now);
        let viewer = name(viewer);
        let mut count: usize = state.nodes.values().map(HashMap::len).sum();
        let until = now + WATCHED_FOR;
        for (node, key) in on_nodes(parts) {
            let jobs = state.nodes.entry(node.to_owned()).or_default();
            let own = jobs.values().filter(|look| look.viewer == viewer).count();
            let has_room =
                own < LOOKED_AT_ON_NODE_PER_VIEWER && jobs.len() < WATCHED_MAX && count < PARTS_MAX;
            if let Some(known) = jobs.get_mut(&key) {
                // It stays with who has it: another's share is not spent by looking at the same.
                known.until = known.until.max(until);
            } else if has_room {
                jobs.insert(key, Wanted { viewer: viewer.clone(), until });
                count += 1;
            }
        }
        self.watched_until(state, until);
    }

    /// The rules of a viewer want a job to be watched for so long, within bounds. Whether they get that on any node.
    pub fn watch_for(&self, viewer: &Viewer, parts: &[JobKey], wanted_for: Duration, now: Instant) -> bool {
        let state = &mut *self.lock();
        state.expire(now);
        let viewer = name(viewer);
        let is_own = |wanted: &&Wanted| wanted.viewer == viewer;
        let all = || state.wanted.values().flat_map(HashMap::values);
        let (mut count, mut own) = (all().count(), all().filter(is_own).count());
        let until = now + wanted_for.min(WANTED_FOR_MAX);
        let mut is_taken = false;
        for (node, key) in on_nodes(parts) {
            let jobs = state.wanted.entry(node.to_owned()).or_default();
            let has_share = own < WANTED_PARTS_PER_VIEWER
                && jobs.values().filter(is_own).count() < WANTED_ON_NODE_PER_VIEWER;
            let has_room = jobs.len() < WATCHED_MAX && count < PARTS_MAX;
            let wanted = Wanted { viewer: viewer.clone(), until };
            match jobs.get_mut(&key) {
                Some(known) if known.viewer == viewer => known.until = known.until.max(until),
                // It counts for who wants it for longer.
                Some(known) if known.until < until && has_share => {
                    *known = wanted;
                    own += 1;
                }
                Some(_) => {}
                None if has_share && has_room => {
                    jobs.insert(key, wanted);
                    (count, own) = (count + 1, own + 1);
                }
                None => continue,
            }
            is_taken = true;
        }
        self.watched_until(state, until);
        is_taken
    }

    fn watched_until(&self, state: &mut State, until: Instant) {
        state.remove_empty();
        let is_any = !state.nodes.is_empty() || !state.wanted.is_empty();
        state.last = state.last.max(Some(until)).filter(|_| is_any);
        self.inner.any.store(is_any, Ordering::Relaxed);
    }

    /// A node said that these jobs are over: others have their room.
    pub fn ended<'k>(&self, node: &str, jobs: impl IntoIterator<Item = &'k JobKey>) {
        if !self.inner.any.load(Ordering::Relaxed) {
            return;
        }
        let state = &mut *self.lock();
        for job in jobs {
            let key = JobKey { cluster: None, ..job.clone() };
            state.nodes.get_mut(node).and_then(|jobs| jobs.remove(&key));
            state.wanted.get_mut(node).and_then(|jobs| jobs.remove(&key));
        }
        state.remove_empty();
    }

    /// The watched jobs of a node, for the reply to its batch.
    pub fn of(&self, node: &str, now: Instant) -> Vec<JobKey> {
        if !self.inner.any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let state = &mut *self.lock();
        if state.last.is_none_or(|last| now >= last) {
            *state = State { asked: std::mem::take(&mut state.asked), ..State::default() };
            self.inner.any.store(false, Ordering::Relaxed);
        }
        let looked_at = state.nodes.get(node);
        let jobs = looked_at.into_iter().flatten().filter(|(_, look)| now < look.until);
        let mut jobs: Vec<JobKey> = jobs.map(|(key, _)| key.clone()).collect();
        let wanted = state.wanted.get(node).into_iter().flatten();
        for (key, _) in wanted.filter(|(_, wanted)| now < wanted.until) {
            if jobs.len() < WATCHED_MAX && !jobs.contains(key) {
                jobs.push(key.clone());
            }
        }
        jobs
    }
}

impl State {
    fn expire(&mut self, now: Instant) {
        for jobs in self.nodes.values_mut() {
            jobs.retain(|_, look| now < look.until);
        }
        for jobs in self.wanted.values_mut() {
            jobs.retain(|_, wanted| now < wanted.until);
        }
        self.remove_empty();
    }

    fn remove_empty(&mut self) {
        self.nodes.retain(|_, jobs| !jobs.is_empty());
        self.wanted.retain(|_, jobs| !jobs.is_empty());
    }
}

/// The nodes of a job that learn of it, and its key as they name it.
fn on_nodes(parts: &[JobKey]) -> impl Iterator<Item = (&str, JobKey)> {
    let named = |part: &JobKey| JobKey { cluster: None, ..part.clone() };
    parts.iter().take(NODES_PER_JOB).filter_map(move |part| Some((part.cluster.as_deref()?, named(part))))
}

fn forget_old(jobs: &mut HashMap<JobKey, Request>, now: Instant) {
    jobs.retain(|_, request| Asked::after(Some(now.saturating_duration_since(request.at))) != Asked::Once);
}

fn name(viewer: &Viewer) -> String {
    match viewer {
        Viewer::Everything => String::new(),
        Viewer::Uid(uid) => format!("uid {uid}"),
        Viewer::User { name, .. } => format!("user {name}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(node: &str, id: usize) -> JobKey {
        let (manager, id) = ("slurm".to_owned(), id.to_string());
        JobKey { cluster: Some(node.to_owned()), manager, id, incarnation: 0 }
    }

    fn ids(watching: &Watching, node: &str, now: Instant) -> Vec<usize> {
        let mut ids: Vec<usize> = watching.of(node, now).iter().map(|key| key.id.parse().unwrap()).collect();
        ids.sort_unstable();
        ids
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn who_asks_again_and_again_watches_and_nodes_are_looked_up_now_and_then() {
        let (watching, begin) = (Watching::default(), Instant::now());
        let (ada, job) = (Viewer::user("ada"), part("n1", 1));
        let asked = |at_s: u64| watching.ask(&ada, &job, begin + seconds(at_s));
        assert!(!asked(0), "one look is not watching");
        assert!(!watching.ask(&ada, &job, begin + Duration::from_millis(100)), "nor are the parts of a page");
        assert!(!watching.ask(&Viewer::user("bob"), &job, begin + seconds(1)), "nor is another's look");
        let looked_up: Vec<u64> = (1..30).step_by(3).filter(|&at_s| asked(at_s)).collect();
        assert_eq!(looked_up, [1, 13, 25]);
        assert!(!asked(60), "long ago");
    }

    #[test]
    fn nodes_learn_of_their_own_jobs_for_a_while() {
        let (watching, begin) = (Watching::default(), Instant::now());
        assert!(watching.of("n1", begin).is_empty());
        watching.watch(&Viewer::Everything, &[part("n1", 1), part("n2", 1)], begin);
        watching.watch(&Viewer::Everything, &[part("n2", 2)], begin + seconds(20));
        assert_eq!(watching.of("n1", begin), [JobKey { cluster: None, ..part("n1", 1) }], "as it names them");
        assert_eq!(ids(&watching, "n2", begin + seconds(29)), [1, 2]);
        assert_eq!(ids(&watching, "n2", begin + seconds(31)), [2]);
        assert!(watching.of("n3", begin + seconds(31)).is_empty());
        assert!(watching.inner.any.load(Ordering::Relaxed));
        assert!(watching.of("n1", begin + seconds(51)).is_empty());
        assert!(!watching.inner.any.load(Ordering::Relaxed) && watching.lock().nodes.is_empty());
        watching.watch_for(&Viewer::Uid(1), &[part("n1", 3)], seconds(600), begin);
        watching.watch(&Viewer::Everything, &[part("n1", 3)], begin + seconds(60));
        assert_eq!(ids(&watching, "n1", begin + seconds(599)), [3], "a look does not end what a rule wants");
        watching.watch_for(&Viewer::Uid(1), &[part("n1", 4)], Duration::MAX, begin);
        assert!(watching.of("n1", begin + WANTED_FOR_MAX).is_empty());
    }

    #[test]
    fn a_viewer_with_thousands_of_jobs_leaves_room_for_others() {
        let (watching, begin) = (Watching::default(), Instant::now());
        let (mallory, ada) = (Viewer::user("mallory"), Viewer::user("ada"));
        let ask = |viewer: &Viewer, jobs: usize, at: Instant| {
            (0..jobs).filter(|&id| watching.ask(viewer, &part("n1", id), at)).count()
        };
        ask(&mallory, 5000, begin);
        assert_eq!(ask(&mallory, 5000, begin + seconds(2)), JOBS_PER_VIEWER);
        ask(&ada, 3, begin + seconds(2));
        assert_eq!(ask(&ada, 3, begin + seconds(4)), 3);
        for number in 0..1000 {
            ask(&Viewer::Uid(number), 1, begin + seconds(4));
        }
        assert_eq!(watching.lock().asked.len(), VIEWERS_MAX);
        ask(&Viewer::user("bob"), 1, begin + seconds(60));
        assert_eq!(ask(&Viewer::user("bob"), 1, begin + seconds(62)), 1, "those who have gone make room");
    }

    #[test]
    fn looks_of_one_viewer_leave_room_on_a_node_for_those_of_others() {
        let (watching, begin) = (Watching::default(), Instant::now());
        let (mallory, ada) = (Viewer::user("mallory"), Viewer::user("ada"));
        for id in 0..WATCHED_MAX {
            watching.watch(&mallory, &[part("n1", id)], begin);
        }
        watching.watch(&ada, &[part("n1", 1000)], begin);
        watching.watch(&ada, &[part("n1", 0)], begin + seconds(20));
        let reported = ids(&watching, "n1", begin);
        assert_eq!(reported.len(), LOOKED_AT_ON_NODE_PER_VIEWER + 1);
        assert!(reported.contains(&1000), "{reported:?}");
        assert_eq!(ids(&watching, "n1", begin + seconds(40)), [0], "a look at the same lasts");
    }

    #[test]
    fn rules_of_a_viewer_have_a_share_and_leave_the_rest_to_others() {
        let (watching, begin) = (Watching::default(), Instant::now());
        let (mallory, ada) = (Viewer::user("mallory"), Viewer::user("ada"));
        let want = |viewer: &Viewer, node: &str, id: usize| {
            watching.watch_for(viewer, &[part(node, id)], seconds(3600), begin)
        };
        let taken: Vec<usize> = (0..500).filter(|&id| want(&mallory, "n1", id)).collect();
        assert_eq!(taken, (0..WANTED_ON_NODE_PER_VIEWER).collect::<Vec<_>>());
        assert_eq!(ids(&watching, "n1", begin), taken, "what is said to be taken is");
        let elsewhere = (0..PARTS_MAX).filter(|id| want(&mallory, &format!("m{id}"), *id)).count();
        assert_eq!(elsewhere, WANTED_PARTS_PER_VIEWER - taken.len());
        assert!(want(&ada, "n1", 1000) && want(&ada, "n1", 3), "also what is wanted already");
        assert!(!watching.watch_for(&ada, &[], seconds(60), begin), "it is nowhere");
    }

    #[test]
    fn what_somebody_looks_at_comes_before_what_rules_want() {
        let (watching, begin) = (Watching::default(), Instant::now());
        for id in 0..WATCHED_MAX {
            watching.watch_for(&Viewer::Uid(id as u32 / 16), &[part("n1", id)], seconds(3600), begin);
        }
        assert_eq!(ids(&watching, "n1", begin).len(), WATCHED_MAX);
        watching.watch(&Viewer::Everything, &[part("n1", 1000)], begin);
        watching.watch(&Viewer::Everything, &[part("n1", 0)], begin);
        let reported = ids(&watching, "n1", begin);
        assert_eq!(reported.len(), WATCHED_MAX);
        assert!(reported.contains(&1000) && reported.contains(&0), "{reported:?}");
        assert_eq!(ids(&watching, "n1", begin + WATCHED_FOR), (0..WATCHED_MAX).collect::<Vec<_>>());
    }

    #[test]
    fn jobs_that_are_over_give_their_room_back() {
        let (watching, begin) = (Watching::default(), Instant::now());
        let want = |id: usize| watching.watch_for(&Viewer::Uid(1), &[part("n1", id)], seconds(3600), begin);
        assert_eq!((0..100).filter(|&id| want(id)).count(), WANTED_ON_NODE_PER_VIEWER);
        watching.watch(&Viewer::Everything, &[part("n1", 1), part("n2", 1)], begin);
        watching.ended("n1", &[JobKey { cluster: None, ..part("n1", 1) }]);
        assert!(!ids(&watching, "n1", begin).contains(&1));
        assert_eq!(ids(&watching, "n2", begin), [1], "it goes on there");
        assert!(want(99) && !want(98));
    }

    proptest! {
        #[test]
        fn whatever_is_watched_there_is_a_bound(
            asks in prop::collection::vec((0..6000usize, 0..400usize, 0..200u64, 0..100_000u64, 0..20u32), 1..40),
        ) {
            let (watching, begin) = (Watching::default(), Instant::now());
            for (id, nodes, at_s, for_s, uid) in asks {
                let parts: Vec<JobKey> = (0..nodes).map(|node| part(&format!("n{}", node % 300), id + node)).collect();
                let now = begin + seconds(at_s);
                match uid {
                    0 => watching.watch(&Viewer::Uid(id as u32 % 3), &parts, now),
                    _ => drop(watching.watch_for(&Viewer::Uid(uid), &parts, seconds(for_s), now)),
                }
                prop_assert!(watching.of("n1", now).len() <= WATCHED_MAX);
                let state = watching.lock();
                prop_assert!(state.nodes.values().map(HashMap::len).sum::<usize>() <= PARTS_MAX);
                prop_assert!(state.nodes.values().all(|jobs| (1..=WATCHED_MAX).contains(&jobs.len())));
                prop_assert!(state.wanted.values().map(HashMap::len).sum::<usize>() <= PARTS_MAX);
                prop_assert!(state.wanted.values().all(|jobs| (1..=WATCHED_MAX).contains(&jobs.len())));
                let own = name(&Viewer::Uid(uid));
                let of_viewer = |jobs: &HashMap<JobKey, Wanted>| jobs.values().filter(|one| one.viewer == own).count();
                prop_assert!(state.wanted.values().map(of_viewer).sum::<usize>() <= WANTED_PARTS_PER_VIEWER);
                prop_assert!(state.wanted.values().all(|jobs| of_viewer(jobs) <= WANTED_ON_NODE_PER_VIEWER));
                let furthest = begin + seconds(200) + WANTED_FOR_MAX;
                prop_assert!(state.nodes.values().flatten().all(|(_, look)| look.until <= furthest));
                prop_assert!(state.wanted.values().flatten().all(|(_, one)| one.until <= furthest));
            }
            prop_assert!(watching.of("n1", begin + seconds(200) + WANTED_FOR_MAX).is_empty());
        }
    }
}
