//! The jobs that run, and what is known of them.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use met_core::job::{JobKey, Origin, Record};
use met_store::{Salvage, Writer};

use super::found_jobs::Gone;
use super::nesting::Nesting;
use super::service::{Left, OnEnd};
use super::supervisors::Watch;

/// Boxed: a map keeps room for twice as many as there are.
pub(super) type Jobs = HashMap<JobKey, Box<RegisteredJob>>;

#[derive(Default)]
pub(super) struct Registry {
    pub(super) jobs: Jobs,
    pub(super) nesting: Nesting,
    /// Those that an earlier daemon followed, until they are found again or known to be gone.
    pub(super) resumable: Vec<Record>,
    /// Jobs that are over, and whose last share of energy is not known yet.
    pub(super) owed: HashSet<JobKey>,
    /// What was sampled of jobs is waited for that ended while the sampler did not answer.
    pub(super) late: Option<Late>,
}

/// Until when, and from when on it is asked for again.
#[derive(Clone, Copy)]
pub(super) struct Late {
    pub(super) until: Instant,
    pub(super) next: Instant,
}

pub(super) struct RegisteredJob {
    pub(super) record: Record,
    pub(super) watch: Watch,
    /// What it did in directories that are gone, while it has others.
    pub(super) gone: Vec<Gone>,
}

impl Registry {
    pub(super) fn insert(&mut self, record: Record) {
        let kept = RegisteredJob { record, watch: Watch::new(), gone: Vec::new() };
        self.jobs.insert(kept.record.key.clone(), Box::new(kept));
    }

    /// Requeued within a second, a job is still another one.
    pub(super) fn free_key(&self, writer: &Writer, mut key: JobKey) -> JobKey {
        while self.jobs.contains_key(&key) || matches!(writer.get(&key), Ok(Some(_))) {
            key.incarnation += 1;
        }
        key
    }

    /// The jobs that this daemon follows are not lost: they are written at their end.
    pub(super) fn without_kept(&self, mut salvage: Salvage) -> Salvage {
        self.jobs.keys().for_each(|key| salvage.found_again(key));
        salvage
    }

    /// The processes by which jobs of our own are known; their descendants are theirs.
    pub(super) fn own_processes(&self) -> impl Iterator<Item = u32> {
        let local = self.jobs.values().filter(|kept| !is_found(&kept.record));
        let own = local.filter_map(|kept| kept.record.local.as_ref());
        let pids = own.flat_map(|local| local.supervisor.into_iter().chain(local.main));
        pids.map(|process| process.pid).chain([std::process::id()])
    }
}

impl OnEnd for Registry {
    fn job_left(&mut self, left: &mut Left<'_>) {
        let key = &left.record.key;
        self.nesting.note(left.record, &mut self.jobs, left.recorder);
        self.nesting.forget(key);
        self.jobs.remove(key);
        left.follows.none_runs = self.jobs.is_empty();
    }
}

/// Whether a job is one that the discovery follows.
pub(super) fn is_found(record: &Record) -> bool {
    record.local.as_ref().is_some_and(|local| local.origin == Origin::Found)
}
