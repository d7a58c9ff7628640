//! Identifies jobs of other managers: their processes are read when there are some, and again while those are only
//! the manager's own.

use std::time::{Duration, Instant};

use met_core::job::JobKey;
use met_jobs::identity::{self, Question};

use super::found_jobs::Discovery;
use super::recorder::Recorder;
use super::registry::Registry;
use super::sampler_thread::Sampling;
use super::sinks::Outputs;
use met_host::{Host, users};
use met_jobs::processes;

/// When a job is identified after its first process: at once, and again if its user's first process is not
/// there yet, or has not executed its program.
const ASK_AFTER_MS: [u64; 7] = [0, 50, 150, 400, 1_000, 5_000, 30_000];

/// A job in which there is only its manager for long may have its user's first process at any time.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// While it has the same processes, those are listed so often.
const LIST_EVERY: Duration = Duration::from_secs(60);
/// Processes that were asked so often have executed their programs: they say nothing else.
const ASKED_ENOUGH: u32 = 2;

/// A job that is not identified yet.
pub(super) struct Unidentified {
    job: u64,
    since: Instant,
    asked: usize,
    last: Instant,
    answer: Answer,
    /// The processes that were asked last, and how often in a row.
    pids: Vec<u32>,
    same: u32,
}

/// What the processes of a job revealed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// All there is to know.
    Known,
    /// Some of it; the rest may come.
    Partly,
    /// None of them is its user's.
    NoProcess,
}

impl Unidentified {
    fn due(&self) -> Option<Instant> {
        match ASK_AFTER_MS.get(self.asked) {
            Some(&ms) => Some(self.since + Duration::from_millis(ms)),
            None => (self.answer == Answer::NoProcess).then(|| self.last + self.pause()),
        }
    }

    fn pause(&self) -> Duration {
        if self.same < ASKED_ENOUGH { ASK_EVERY } else { LIST_EVERY }
    }

    /// Whether these processes may say more than before: some are new, or they may not have executed their programs
    /// when they were asked.
    fn may_say_more(&mut self, pids: &[u32]) -> bool {
        self.same = if self.pids == pids { self.same.saturating_add(1) } else { 0 };
        self.pids.clear();
        self.pids.extend_from_slice(pids);
        self.asked <= ASK_AFTER_MS.len() || self.same < ASKED_ENOUGH
    }
}

/// Where the processes are read, and where the results go.
pub(super) struct Asked<'a> {
    pub(super) host: &'a Host,
    pub(super) registry: &'a mut Registry,
    pub(super) recorder: &'a mut Recorder,
    pub(super) sampling: &'a Sampling,
    pub(super) outputs: &'a Outputs,
}

impl Discovery {
    /// The job has a process now by which it can be identified.
    pub(super) fn identify(&mut self, job: u64) {
        let now = Instant::now();
        let (answer, pids, same) = (Answer::NoProcess, Vec::new(), 0);
        self.asking.push(Unidentified { job, since: now, asked: 0, last: now, answer, pids, same });
    }

    /// When a job is to be asked again.
    pub(super) fn next_question(&self) -> Option<Instant> {
        self.asking.iter().filter_map(Unidentified::due).min()
    }

    pub(super) fn ask_who_is_due(&mut self, from: &mut Asked) {
        let now = Instant::now();
        for mut asking in std::mem::take(&mut self.asking) {
            let Some(due) = asking.due() else { continue };
            if due <= now {
                (asking.asked, asking.last) = (asking.asked + 1, now);
                let pids = self.processes_of(asking.job, from);
                if asking.may_say_more(&pids) {
                    asking.answer = self.ask(asking.job, &pids, from);
                }
            }
            if asking.answer != Answer::Known {
                self.asking.push(asking);
            }
        }
    }

    /// Asks jobs whose first process has ended: the next sampling thread cannot read what that said.
    pub(super) fn ask_those_who_are_left(&self, from: &mut Asked) {
        let has_ended = |key: &JobKey| {
            let main = from.registry.jobs.get(key).and_then(|kept| kept.record.local.as_ref()?.main);
            main.is_some_and(|main| !from.host.is_alive(main))
        };
        let left = self.found.iter().filter(|(_, directory)| has_ended(&directory.key));
        for job in left.map(|(&job, _)| job).collect::<Vec<u64>>() {
            self.ask(job, &self.processes_of(job, from), from);
        }
    }

    /// As if all that were asked had been so this long ago.
    #[cfg(test)]
    pub(super) fn pretend_asked(&mut self, ago: Duration) {
        let then = |at: Instant| at.checked_sub(ago).unwrap_or(at);
        for asking in &mut self.asking {
            (asking.since, asking.last) = (then(asking.since), then(asking.last));
        }
    }

    fn processes_of(&self, job: u64, from: &Asked) -> Vec<u32> {
        let kept = self.found.get(&job).and_then(|directory| from.registry.jobs.get(&directory.key));
        kept.map(|kept| processes::pids_of(from.host, &kept.record)).unwrap_or_default()
    }

    /// Identifies a job by its processes.
    fn ask(&self, job: u64, pids: &[u32], from: &mut Asked) -> Answer {
        let Some(kept) =
            self.found.get(&job).and_then(|directory| from.registry.jobs.get_mut(&directory.key))
        else {
            return Answer::Known;
        };
        let record = &mut kept.record;
        let cgroup = record.local.as_ref().map(|local| local.cgroup.clone()).unwrap_or_default();
        // The user in the path is the owner, whatever runs in it.
        let question = Question {
            manager: &record.key.manager,
            id: &record.key.id,
            uid: record.uid,
            user: record.user.as_deref(),
            cgroup: &cgroup,
            pids,
        };
        let identity = identity::identify(from.host, &question);
        let before = record.clone();
        identity.apply(record);
        if record.user.is_none() {
            record.user = record.uid.and_then(users::name_of);
        }
        if *record != before {
            from.recorder.keep(record);
            from.sampling.allocate(record);
        }
        if let Some(main) = identity.main {
            from.sampling.set_main(&record.key, main, identity.holdings);
        }
        if *record != before {
            from.outputs.on_metrics_cache(|metrics_cache| metrics_cache.runs(record));
        }
        // A container's monitor, which knows its name, may come after its first process.
        match identity.main {
            None => Answer::NoProcess,
            Some(_) if identity.environment_read && record.name != record.key.id => Answer::Known,
            Some(_) => Answer::Partly,
        }
    }
}
