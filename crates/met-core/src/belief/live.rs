//! Which figures of a running job are believed: those of its record, of its daemon's registry, or of a sample.

use super::{Speaker, figure_rank, fill_events, fill_summaries};
use crate::job::{Emission, EventCount, GpuUse, Record, State, Summaries, Totals, UncountedEvent};
use crate::job_table::{CPU, PROCESSES};
use crate::running::Running;
use crate::sampled::{Profile, totals};

/// What was read of a running job at one moment.
#[derive(Clone, Debug, Default)]
pub struct Live {
    pub totals: Totals,
    pub summaries: Summaries,
    pub gpus: Vec<GpuUse>,
    pub events: Vec<EventCount>,
    pub uncounted_events: Vec<UncountedEvent>,
    pub emission: Option<Emission>,
    /// The time of the sample that these are of, in unix nanoseconds; `None` if they were read just now.
    pub as_of_ns: Option<i64>,
}

impl Live {
    pub fn of(running: &Running, profile: Profile) -> Live {
        let as_of_ns = running.counted_until_ms().map(|time_ms| time_ms.saturating_mul(1_000_000));
        Live { totals: totals(running, profile), summaries: running.summaries(), as_of_ns, ..Live::default() }
    }
}

/// Who is first where a record and a sample have the same figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The record is of the end. A sample adds totals that it lacks.
    Record,
    /// The record was stored while the job ran. It fills what the sample lacks.
    Sample,
}

impl First {
    pub fn of(record: &Record) -> First {
        let is_above = figure_rank(record).1 > Speaker::Sample.rank(super::FIGURES);
        if is_above { First::Record } else { First::Sample }
    }

    /// The two in the order in which a total is looked up.
    pub fn order<T>(self, record: T, sample: T) -> (T, T) {
        match self {
            First::Record => (record, sample),
            First::Sample => (sample, record),
        }
    }
}

/// Adds a sample to the record of a job: over what was stored of it while it ran, and below the figures of its end.
pub fn add_sample(record: &mut Record, mut sample: Live) {
    let first = First::of(record);
    let (mut totals, others) = first.order(std::mem::take(&mut record.totals), sample.totals);
    totals.fill_from(&others);
    record.totals = totals;
    if first == First::Record {
        return;
    }
    fill_summaries(&mut sample.summaries, &record.summaries);
    record.summaries = sample.summaries;
    if !sample.events.is_empty() {
        record.events = sample.events;
    }
    fill_events(record, &[], &sample.uncounted_events);
    if !sample.gpus.is_empty() {
        record.gpus = sample.gpus;
    }
    record.emission = sample.emission.or(record.emission.take());
}

/// The same for a job that is shown: its figures are of the time of the sample.
pub fn overlay(record: &mut Record, live: Live) {
    record.as_of_ns = live.as_of_ns;
    add_sample(record, live);
}

/// The registry of the job's daemon has it: it is not lost, whatever became of its cgroup, and its figures are newer
/// than those in the store.
pub fn add_registered(record: &mut Record, registered: &Totals) {
    record.totals = registered.clone();
    if record.state == State::Lost {
        record.state = State::Running;
    }
}

/// Of a group of processes the registry counts those that came and went between two samples, and a sample what was
/// used since the registry's last look: the higher is believed.
pub fn raise_to_registered(record: &mut Record, registered: &Totals) {
    for column in [CPU, PROCESSES] {
        let higher =
            registered.figure(column).filter(|figure| record.totals.get(column) < Some(figure.value));
        if let Some(figure) = higher {
            record.totals.set(column, figure.value, figure.kind, figure.source.clone());
            // A look is at most two seconds old, and a sample may be older.
            record.as_of_ns = record.as_of_ns.filter(|_| column != CPU);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::QualityKind;
    use crate::sample::bare;

    fn figures(cpu: Option<i64>, processes: Option<i64>) -> Totals {
        let mut totals = Totals::default();
        for (column, value) in [(CPU, cpu), (PROCESSES, processes)] {
            if let Some(value) = value {
                totals.set(column, value, QualityKind::LowerBound, "/proc");
            }
        }
        totals
    }

    #[test]
    fn a_job_in_the_registry_is_not_lost_and_a_suspended_one_stays_suspended() {
        for (state, then) in [(State::Lost, State::Running), (State::Suspended, State::Suspended)] {
            let mut record = bare(1, "train");
            record.state = state;
            add_registered(&mut record, &figures(Some(3), None));
            assert_eq!((record.state, record.totals.get(CPU)), (then, Some(3)));
        }
    }

    #[test]
    fn cpu_time_of_the_registry_is_of_now() {
        let mut record = bare(1, "train");
        (record.totals, record.as_of_ns) = (figures(Some(5), Some(2)), Some(7));
        raise_to_registered(&mut record, &figures(Some(5), Some(3)));
        assert_eq!((record.totals.get(PROCESSES), record.as_of_ns), (Some(3), Some(7)));
        raise_to_registered(&mut record, &figures(Some(6), None));
        assert_eq!((record.totals.get(CPU), record.as_of_ns), (Some(6), None));
    }

    proptest! {
        #[test]
        fn the_higher_of_registry_and_sample_is_believed(
            sampled in prop::option::of(0..99_i64), registered in prop::option::of(0..99_i64),
        ) {
            let raised = |one, other| {
                let mut record = bare(1, "train");
                record.totals = figures(one, one);
                raise_to_registered(&mut record, &figures(other, other));
                let once = record.totals.clone();
                raise_to_registered(&mut record, &figures(other, other));
                (record.totals == once).then_some([once.get(CPU), once.get(PROCESSES)])
            };
            prop_assert_eq!(raised(sampled, registered), Some([sampled.max(registered); 2]));
            prop_assert_eq!(raised(sampled, registered), raised(registered, sampled));
        }
    }
}
