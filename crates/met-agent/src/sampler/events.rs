//! Which events are counted, and in which jobs.

use std::collections::HashSet;
use std::sync::Arc;

use met_core::Subject;
use met_core::attribute::JobMap;
use met_core::job::{EventCount, JobKey};
use met_sources::{Runner, perf};

use super::membership::Membership;
use super::tracked::{Jobs, Tracked};

/// More names tell no more.
const NAMED_MAX: usize = 5;

/// Which events are counted in which jobs.
#[derive(Clone, Debug, Default)]
pub struct EventsAsked {
    for_all: Option<Arc<[String]>>,
    /// Since when, where this was asked for while jobs ran: their supervisors do not know of it.
    since_ns: Option<i64>,
    of_jobs: Vec<(JobKey, Arc<[String]>)>,
}

impl EventsAsked {
    pub fn of_file(events: &[String]) -> EventsAsked {
        EventsAsked { for_all: shared(events), ..EventsAsked::default() }
    }

    /// Of all jobs, also of those that run since before `since_ns` with a supervisor.
    pub fn live(events: &[String], since_ns: i64) -> EventsAsked {
        EventsAsked { since_ns: Some(since_ns), ..EventsAsked::of_file(events) }
    }

    /// In this job these are counted instead.
    pub fn instead(&mut self, key: JobKey, events: &[String]) {
        self.of_jobs.push((key, events.into()));
    }

    pub(super) fn of_job(&self, key: &JobKey, born_ns: i64, has_supervisor: bool) -> Option<Arc<[String]>> {
        if let Some((_, events)) = self.of_jobs.iter().rev().find(|(known, _)| known == key) {
            return Some(events.clone());
        }
        let by_supervisor = has_supervisor && self.since_ns.is_none_or(|since_ns| born_ns > since_ns);
        self.for_all.clone().filter(|_| !by_supervisor)
    }

    /// Requests the events of each cgroup, and `needed` in every job.
    pub(super) fn request(&self, membership: &mut Membership, jobs: &Jobs, needed: Option<&str>) {
        for target in &mut membership.targets.cgroups {
            let slot = membership.map.owner(Subject::Cgroup(target.dirs.id));
            let job = slot.and_then(|slot| jobs.get(&slot));
            let asked = job.and_then(|job| self.of_job(&job.key, job.age.born_ns, target.counted));
            target.events = match needed.filter(|_| job.is_some()) {
                Some(event) => Some(with(asked, event)),
                None => asked,
            };
        }
    }

    /// Jobs in which events cannot be counted from now on: they are their processes, and these are counted by a
    /// supervisor that knew of it when the job began.
    pub(super) fn uncounted(&self, membership: &Membership, jobs: &Jobs) -> Option<String> {
        let counted: HashSet<u32> = (membership.targets.cgroups.iter())
            .filter_map(|target| membership.map.owner(Subject::Cgroup(target.dirs.id)))
            .collect();
        let is_left_out = |(slot, job): &(&u32, &Tracked)| {
            self.of_job(&job.key, job.age.born_ns, job.profile.kept).is_some() && !counted.contains(slot)
        };
        let mut names: Vec<String> = (jobs.iter())
            .filter(is_left_out)
            .map(|(_, job)| format!("{}:{}", job.key.manager, job.key.id))
            .collect();
        names.sort();
        let more = names.len().saturating_sub(NAMED_MAX);
        names.truncate(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!names.is_empty()).then(|| {
            format!(
                "not counted in {}{more}: no cgroup to count in; perf.events counts jobs from their start",
                names.join(", ")
            )
        })
    }
}

/// The events that are asked for, and one that is needed besides.
pub(super) fn with(asked: Option<Arc<[String]>>, event: &str) -> Arc<[String]> {
    let asked = asked.unwrap_or_default();
    match asked.iter().any(|name| name == event) {
        true => asked,
        false => asked.iter().cloned().chain([event.to_owned()]).collect(),
    }
}

fn shared(events: &[String]) -> Option<Arc<[String]>> {
    (!events.is_empty()).then(|| events.into())
}

/// What was counted in the cgroups of each job, as last read.
pub(super) fn counts(runner: &Runner, map: &JobMap) -> Vec<(u32, EventCount)> {
    let mut fresh: Vec<(u32, EventCount)> = Vec::new();
    for (batches, labels) in runner.labelled() {
        let [batch] = batches else { continue };
        if !std::ptr::eq(batch.table, &perf::TABLE) {
            continue;
        }
        for (row, cells) in batch.rows() {
            let label = labels.get(row.part as usize).and_then(|label| label.first());
            let (Some(slot), Some(label)) = (map.owner(row.owner), label) else { continue };
            let Some(count) = perf::count_of(label, cells) else { continue };
            // Several directories are of one job where several of its nodes are this machine.
            match fresh.iter_mut().find(|(of, event)| *of == slot && event.name == count.name) {
                Some((_, event)) => event.count = event.count.saturating_add(count.count),
                None => fresh.push((slot, count)),
            }
        }
    }
    fresh
}
