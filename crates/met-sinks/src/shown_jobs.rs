//! Which jobs have series of their own on a page, and the counters that were shown of them.

use std::collections::{HashMap, HashSet};

use met_core::job::JobKey;
use met_core::job_table::WALL;
use met_core::{JOB, Kind, MISSING, Selection};

use crate::prometheus::labels_of;
use crate::snapshot::{Job, Rest};

/// What a page has, by configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub metrics: Selection,
    /// The first jobs have series of their own; the others are added up.
    pub jobs_max: usize,
    /// Only jobs of these managers have series of their own; empty: all.
    pub managers: Vec<String>,
    /// Jobs younger than this have none.
    pub after_ns: i64,
}

/// Why a job has no series of its own: the key of the configuration.
const MAX: usize = 0;
const MANAGER: usize = 1;
const AGE: usize = 2;
const KEYS: [&str; 3] = ["jobs_max", "jobs_managers", "jobs_after"];

/// Jobs with the labels that all their series have, written once.
pub(crate) struct Shown<'s> {
    pub jobs: Vec<(String, &'s Job)>,
    pub rest: Option<Rest>,
    /// By key; `None` where it is not set.
    not_shown: [Option<usize>; KEYS.len()],
}

impl<'s> Shown<'s> {
    pub fn of(all: &'s [Job], contents: &Contents) -> Shown<'s> {
        let mut seen = HashSet::new();
        let (mut jobs, mut others) = (Vec::new(), Vec::new());
        let by_manager = (!contents.managers.is_empty()).then_some(0);
        let mut not_shown = [Some(0), by_manager, (contents.after_ns > 0).then_some(0)];
        for job in all {
            let key = &job.about.key;
            let cluster = key.cluster.as_deref().unwrap_or_default();
            let labels = labels_of([("cluster", cluster), ("manager", &key.manager), ("id", &key.id)]);
            // A requeued job is another one with the same name: the first is the newest.
            if !seen.insert(labels.clone()) {
                continue;
            }
            match contents.excludes(job).or_else(|| (jobs.len() >= contents.jobs_max).then_some(MAX)) {
                None => jobs.push((labels, job)),
                Some(why) => {
                    not_shown[why] = not_shown[why].map(|count| count + 1);
                    others.push(job);
                }
            }
        }
        Shown { jobs, rest: Rest::of(others.into_iter()), not_shown }
    }

    /// How many jobs each key excludes, of those that are set.
    pub fn not_shown(&self) -> impl Iterator<Item = (&'static str, usize)> {
        KEYS.into_iter().zip(self.not_shown).filter_map(|(key, count)| Some((key, count?)))
    }
}

impl Contents {
    fn excludes(&self, job: &Job) -> Option<usize> {
        if !self.managers.is_empty() && !self.managers.contains(&job.about.key.manager) {
            return Some(MANAGER);
        }
        // Of unknown age: it would never be shown.
        let age_ns = job.cells[WALL];
        (age_ns != MISSING && age_ns < self.after_ns).then_some(AGE)
    }
}

/// The last value of each counter on a page. A counter that was shown stays while its job is: a reading that fails,
/// or a record without it at the end, would be a gap to its readers.
#[derive(Debug, Default)]
pub struct ShownCounters {
    jobs: HashMap<JobKey, Box<[i64]>>,
}

impl ShownCounters {
    /// Fills counters that are missing now, and forgets jobs that are gone.
    pub fn fill(&mut self, jobs: &mut [Job], metrics: Selection) {
        let counts =
            |(_, column): &(usize, &met_core::Column)| column.kind == Kind::Counter && metrics.has(column);
        let columns: Vec<usize> =
            JOB.columns.iter().enumerate().filter(counts).map(|(index, _)| index).collect();
        for job in jobs.iter_mut() {
            let cells = &mut job.cells;
            match self.jobs.get_mut(&job.about.key) {
                Some(shown) => {
                    for (last, &column) in shown.iter_mut().zip(&columns) {
                        match cells[column] {
                            MISSING => cells[column] = *last,
                            cell => *last = cell,
                        }
                    }
                }
                None => {
                    let shown = columns.iter().map(|&column| cells[column]).collect();
                    self.jobs.insert(job.about.key.clone(), shown);
                }
            }
        }
        if self.jobs.len() > jobs.len() {
            let there: HashSet<&JobKey> = jobs.iter().map(|job| &job.about.key).collect();
            self.jobs.retain(|key, _| there.contains(key));
        }
    }
}
