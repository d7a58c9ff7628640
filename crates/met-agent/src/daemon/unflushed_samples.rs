//! Samples that the sampler holds and that are not written yet: replies add them to what is stored, and write nothing.

use std::collections::HashMap;

use met_core::job::JobKey;
use met_core::series::{PackedSamples, Series};
use met_core::{Table, event};
use met_store::NodePart;

use super::sampler_worker::Drained;
use crate::sampler::Sampler;

/// Whose samples are requested.
pub(super) enum Wanted {
    /// With the table, and the event where it is one of these.
    Job(JobKey, &'static Table, String),
    /// A GPU, by uuid.
    Gpu(String),
    Part(NodePart),
}

/// Copies of the samples, oldest first. `undelivered` was drained for a caller that had given up; `slots` are those of jobs.
pub(super) fn peek(
    wanted: &Wanted,
    sampler: &Sampler,
    slots: &HashMap<JobKey, u32>,
    undelivered: &Drained,
) -> Vec<Series> {
    match wanted {
        Wanted::Job(key, table, part) => {
            let wanted_key = event::series_key(key, part);
            let is_it = |(of, samples): &&(JobKey, PackedSamples)| {
                *of == wanted_key && samples.table.name == table.name
            };
            let earlier = undelivered.jobs.iter().filter(is_it).map(|(_, samples)| samples);
            let held = slots.get(key).and_then(|&slot| sampler.undrained(slot, table, part));
            earlier.chain(held).map(PackedSamples::unpack).collect()
        }
        Wanted::Gpu(uuid) => {
            let earlier = undelivered.gpus.iter().filter(|(of, _)| of == uuid).map(|(_, series)| series);
            earlier.chain(sampler.gpus.undrained(uuid)).cloned().collect()
        }
        Wanted::Part(part) => {
            let is_it =
                |(label, series): &(&str, &Series)| *label == part.part && series.table.name == part.table;
            node(sampler, undelivered).filter(is_it).map(|(_, series)| series.clone()).collect()
        }
    }
}

/// The parts of the machine with samples from `since_ms` on.
pub(super) fn parts(since_ms: i64, sampler: &Sampler, undelivered: &Drained) -> Vec<NodePart> {
    let is_since = |series: &Series| series.times_ms.last().is_some_and(|&last| last >= since_ms);
    node(sampler, undelivered)
        .filter(|(_, series)| is_since(series))
        .map(|(label, series)| NodePart { table: series.table.name.to_owned(), part: label.to_owned() })
        .collect()
}

fn node<'a>(sampler: &'a Sampler, undelivered: &'a Drained) -> impl Iterator<Item = (&'a str, &'a Series)> {
    let earlier = undelivered.node.iter().map(|(_, label, series)| (label.as_str(), series));
    earlier.chain(sampler.machine.undrained())
}

/// Adds to `stored` the samples in `window` (both ends included) that are later than its last one.
pub(super) fn append(stored: &mut Series, unflushed: &[Series], window: (i64, i64)) {
    for series in unflushed {
        let begin = series.times_ms.partition_point(|&time_ms| time_ms < window.0);
        let end = series.times_ms.partition_point(|&time_ms| time_ms <= window.1);
        stored.append(&series.part(begin.min(end), end));
    }
}

#[cfg(test)]
mod tests {
    use met_core::{JOB, MISSING};

    use super::*;

    fn series(times_ms: std::ops::Range<i64>) -> Series {
        let mut series = Series::new(&JOB);
        times_ms.for_each(|time_ms| series.push(time_ms, &vec![MISSING; JOB.columns.len()]));
        series
    }

    fn packed(times_ms: std::ops::Range<i64>) -> PackedSamples {
        let mut packed = PackedSamples::new(&JOB);
        times_ms.for_each(|time_ms| packed.push(time_ms, &vec![MISSING; JOB.columns.len()]));
        packed
    }

    #[test]
    fn what_was_stored_meanwhile_is_not_there_twice_and_a_window_holds() {
        let mut stored = series(0..5);
        append(&mut stored, &[series(3..7), series(7..9)], (i64::MIN, i64::MAX));
        assert_eq!(stored.times_ms, (0..9).collect::<Vec<_>>());
        // A later page, and a GPU that the job no longer holds.
        let mut stored = series(0..0);
        append(&mut stored, &[series(3..7), series(7..9)], (5, 7));
        assert_eq!(stored.times_ms, [5, 6, 7]);
        assert!(stored.columns.iter().all(|column| column.len() == 3));
    }

    #[test]
    fn samples_that_a_caller_gave_up_waiting_for_are_shown_and_stay() {
        let sampler = Sampler::of_node(
            met_host::Host::real().unwrap(),
            std::time::Duration::from_secs(1),
            &met_config::Config::default(),
        );
        let key = met_core::sample::full(1, "train").key;
        let table = met_sources::catalogue()[0];
        let undelivered = Drained {
            jobs: vec![(key.clone(), packed(0..3)), (key.clone(), packed(3..5))],
            node: vec![(table, "sda".to_owned(), Series::new(table))],
            ..Drained::default()
        };
        for _ in 0..2 {
            let seen =
                peek(&Wanted::Job(key.clone(), &JOB, String::new()), &sampler, &HashMap::new(), &undelivered);
            assert_eq!(seen.iter().map(Series::len).collect::<Vec<_>>(), [3, 2]);
        }
        assert!(parts(0, &sampler, &undelivered).is_empty(), "it has no samples");
    }
}
