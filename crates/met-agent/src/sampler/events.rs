//! Which events are counted, and in which jobs.

use std::collections::HashSet;
use std::sync::Arc;

use met_core::attribute::JobMap;
use met_core::event;
use met_core::job::{EventCount, JobKey, UncountedEvent};
use met_core::series::PackedSamples;
use met_core::{MISSING, Subject};
use met_sources::Runner;
use met_sources::perf;

use super::details::{self, Spaced};
use super::membership::Membership;
use super::tracked::{Jobs, Tracked};
use crate::passed_counters::PassedCounters;

/// More names add nothing.
const NAMED_MAX: usize = 5;

/// Events of one job with series of their own, and of its supervisor.
const SERIES_MAX: usize = 64;

/// Requests with counters of one supervisor.
const PASSED_MAX: usize = 16;
/// Counters of supervisors that are read at a tick before a sample of them is due, for those who follow each tick. Every
/// one costs a system call and, if it counts on another CPU, an interrupt there.
pub(super) const READ_EARLY_MAX: usize = 128;

/// What was counted in a job.
#[derive(Default)]
pub(super) struct JobEvents {
    pub(super) counts: Vec<EventCount>,
    series: Vec<(String, Spaced)>,
    /// Opened by the supervisor, which counts from the first instruction on.
    passed: Vec<PassedCounters>,
    /// When these were last read; never since more of them came.
    read_ms: Option<i64>,
}

impl JobEvents {
    /// Takes a reading. An event that is counted no longer has no further samples.
    pub(super) fn take(&mut self, count: EventCount, time_ms: i64) {
        if let Some(series) = self.series_of(&count.name) {
            series.push(time_ms, &cells_of(&count));
        }
        match self.counts.iter_mut().find(|known| known.name == count.name) {
            Some(known) => *known = count,
            None => self.counts.push(count),
        }
    }

    /// Takes over counters.
    pub(super) fn count_by(&mut self, passed: PassedCounters) {
        // Of a supervisor that connects again: the same counters.
        self.passed.retain(|known| !passed.counters.names().any(|name| known.counters.has(name)));
        let count = |one: &PassedCounters| one.counters.names().count();
        let held: usize = self.passed.iter().map(count).sum();
        if self.passed.len() < PASSED_MAX && held + count(&passed) <= SERIES_MAX {
            self.passed.push(passed);
            self.read_ms = None;
        }
    }

    /// Whether the supervisor counts it: better than a counter opened later.
    pub(super) fn counts_itself(&self, name: &str) -> bool {
        self.passed.iter().any(|passed| passed.counters.has(name))
    }

    /// Reads the supervisor's counters if samples of them are due. So many `more` may be read at this tick.
    pub(super) fn read_passed_if_due(&mut self, time_ms: i64, more: &mut usize) {
        if self.passed.is_empty() {
            return;
        }
        if !details::are_apart(self.read_ms, time_ms) {
            let count = self.passed.iter().map(|one| one.counters.descriptors()).sum();
            let Some(left) = more.checked_sub(count) else { return };
            *more = left;
        }
        self.read_passed(time_ms);
    }

    /// Reads the supervisor's counters, and lets them go where another reader needs them.
    pub(super) fn read_passed(&mut self, time_ms: i64) {
        let mut passed = std::mem::take(&mut self.passed);
        for one in &mut passed {
            one.counters.totals_yielding().into_iter().for_each(|count| self.take(count, time_ms));
            one.release_closed();
        }
        (self.passed, self.read_ms) = (passed, Some(time_ms));
    }

    /// The series of an event, a new one if there is room.
    fn series_of(&mut self, name: &str) -> Option<&mut Spaced> {
        let index = match self.series.iter().position(|(known, _)| known == name) {
            Some(index) => index,
            None if self.series.len() < SERIES_MAX => {
                self.series.push((name.to_owned(), Spaced::new(&event::TABLE)));
                self.series.len() - 1
            }
            None => return None,
        };
        Some(&mut self.series[index].1)
    }

    /// Ends the series with the last readings, however soon these came.
    pub(super) fn close(&mut self, time_ms: i64) {
        for count in std::mem::take(&mut self.counts) {
            if let Some(series) = self.series_of(&count.name) {
                series.push_last(time_ms, &cells_of(&count));
            }
            self.counts.push(count);
        }
    }

    pub(super) fn undrained(&self, name: &str) -> Option<&PackedSamples> {
        self.series.iter().find(|(known, _)| known == name).map(|(_, series)| series.samples())
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = (&str, PackedSamples)> {
        self.series.iter_mut().filter_map(|(name, series)| Some((name.as_str(), series.take()?)))
    }
}

/// How often it happened; how long it was counted is not stored.
fn cells_of(count: &EventCount) -> [i64; event::COLUMNS.len()] {
    let mut cells = [MISSING; event::COLUMNS.len()];
    cells[event::COUNT] = count.count;
    cells
}

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

    pub(crate) fn of_job(&self, key: &JobKey, born_ns: i64, has_supervisor: bool) -> Option<Arc<[String]>> {
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

    /// Why events of jobs are not counted; see [`Reasons::of`].
    pub(super) fn reasons<'a>(&'a self, runner: &'a Runner) -> Reasons<'a> {
        Reasons { asked: self, runner, known: Vec::new() }
    }

    /// Jobs in which events cannot be counted from now on: they are their processes, and these are counted by a
    /// supervisor that knew of it when the job began.
    pub(super) fn uncounted(&self, membership: &Membership, jobs: &Jobs) -> Option<String> {
        let counted: HashSet<u32> = (membership.targets.cgroups.iter())
            .filter_map(|target| membership.map.owner(Subject::Cgroup(target.dirs.id)))
            .collect();
        let is_left_out = |slot: &u32, job: &Tracked| {
            self.of_job(&job.key, job.age.born_ns, job.profile.kept).is_some() && !counted.contains(slot)
        };
        let mut names: Vec<String> = (jobs.iter())
            .filter(|(slot, job)| is_left_out(slot, job))
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

/// Why events are not counted, found out once for all jobs in which the same ones are asked for.
pub(super) struct Reasons<'a> {
    asked: &'a EventsAsked,
    runner: &'a Runner,
    known: Vec<(Arc<[String]>, Vec<UncountedEvent>)>,
}

impl Reasons<'_> {
    /// Of a job in which no supervisor counts, as far as that is known.
    pub(super) fn of(&mut self, job: &Tracked) -> Vec<UncountedEvent> {
        let asked = self.asked.of_job(&job.key, job.age.born_ns, job.profile.kept).unwrap_or_default();
        if asked.is_empty() {
            return Vec::new();
        }
        if let Some((_, reason)) =
            self.runner.unavailable().iter().find(|(spec, _)| spec.name == perf::SPEC.name)
        {
            let uncounted = |name: &String| UncountedEvent { name: name.clone(), reason: reason.to_string() };
            return asked.iter().map(uncounted).collect();
        }
        let is_counted = |name: &str| job.events.counts.iter().any(|count| count.name == name);
        let reasons = self.of_list(&asked).iter();
        reasons.filter(|uncounted| !is_counted(&uncounted.name)).cloned().collect()
    }

    /// Those of a list that cannot be counted here.
    fn of_list(&mut self, asked: &Arc<[String]>) -> &[UncountedEvent] {
        let at = self.known.iter().position(|(list, _)| Arc::ptr_eq(list, asked)).unwrap_or_else(|| {
            let is_asked = |name: &str| asked.iter().any(|word| perf::means(word, name));
            let missing = self.runner.missing(perf::SPEC.name).into_iter().filter(|(name, _)| is_asked(name));
            let uncounted =
                |(name, why): (&str, &str)| UncountedEvent { name: name.to_owned(), reason: why.to_owned() };
            self.known.push((Arc::clone(asked), missing.map(uncounted).collect()));
            self.known.len() - 1
        });
        &self.known[at].1
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

#[cfg(test)]
mod tests {
    use met_core::job::QualityKind;

    use met_core::series::Series;

    use super::*;

    fn count(name: &str, count: i64) -> EventCount {
        let (name, source) = (name.to_owned(), "perf".to_owned());
        EventCount { name, count, counted: 1.0, kind: QualityKind::Measured, source }
    }

    #[test]
    fn each_event_has_a_series_of_its_own_which_ends_with_it() {
        let mut events = JobEvents::default();
        for second in 0..=25 {
            events.take(count("instructions", second * 10), second * 1000);
            // Counted in the first seconds only.
            if second < 12 {
                events.take(count("page_faults", second), second * 1000);
            }
        }
        events.close(25_500);
        let drained: Vec<(String, Series)> =
            events.drain().map(|(name, samples)| (name.to_owned(), samples.unpack())).collect();
        let of = |name: &str| &drained.iter().find(|(known, _)| known == name).unwrap().1;
        assert_eq!(of("instructions").times_ms, [0, 10_000, 20_000, 25_500]);
        assert_eq!(of("instructions").columns[event::COUNT], [0, 100, 200, 250]);
        assert_eq!(of("page_faults").columns[event::COUNT], [0, 10, 11]);
        assert_eq!(events.drain().count(), 0);
    }

    #[test]
    fn passed_counters_are_read_when_a_sample_is_due_or_somebody_follows_the_ticks() {
        let Some(passed) = PassedCounters::of_this_thread("task_clock") else { return };
        let mut events = JobEvents::default();
        events.count_by(passed);
        let mut at = |time_ms: i64, mut more: usize| {
            // The clock that is counted moves on.
            let begin = std::time::Instant::now();
            while begin.elapsed().as_micros() < 200 {}
            events.read_passed_if_due(time_ms, &mut more);
            (events.counts[0].count, more)
        };
        let (first, _) = at(1_000, 0);
        assert!(first > 0, "at once");
        assert_eq!(at(2_000, 0).0, first);
        let (second, left) = at(3_000, 5);
        assert!(second > first && left == 4);
        assert_eq!(at(12_000, 0).0, second, "read nine seconds ago");
        assert!(at(13_000, 0).0 > second);
    }

    #[test]
    fn events_beyond_the_bound_are_counted_without_a_series() {
        let mut events = JobEvents::default();
        (0..SERIES_MAX as i64 + 3).for_each(|number| events.take(count(&format!("r{number}"), 1), 0));
        assert_eq!((events.counts.len(), events.drain().count()), (SERIES_MAX + 3, SERIES_MAX));
    }
}
