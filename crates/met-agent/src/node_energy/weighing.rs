//! How much of the machine each job used between two looks.

use std::collections::BTreeMap;

use met_core::MISSING;
use met_core::apportion::apportion;
use met_core::energy::Weights;
use met_core::job::{JobKey, Origin, Record};
use met_host::clock;

use super::charged::Charged;
use met_config::Weight;

/// All that a job of this age did is in the window that is open.
const YOUNG_NS: i64 = 2_000_000_000;
/// So much of all is not much.
const UNSEEN_SHARE: i64 = 20;

pub(super) struct Job {
    pub(super) key: JobKey,
    held_cpus: u64,
    cpu_ns: Option<i64>,
    /// CPU time that it was seen to use, nested jobs included.
    seen_ns: u64,
    pub(super) weighed_ns: i64,
    pub(super) outer: Option<u32>,
    /// CPU time of nested jobs that ended: this job's next reading has it, too.
    pub(super) settled_inside_ns: u64,
    /// Events so far, and how many of them are since the last look.
    counted: Option<i64>,
    grown: Option<u64>,
    pub(super) has_left: bool,
    pub(super) charged: Charged,
}

impl Job {
    /// `looked_ns` is when the machine was last read, if it is followed.
    pub(super) fn new(record: &Record, charged: Charged, now_ns: i64, looked_ns: Option<i64>) -> Job {
        let age_ns = record.start_ns.map(|start_ns| clock::realtime_ns() - start_ns);
        // It began in the open window, or has not been read since.
        let young_ns = looked_ns.map_or(YOUNG_NS, |looked_ns| YOUNG_NS.max(now_ns - looked_ns));
        let is_young = age_ns.is_some_and(|age_ns| (0..young_ns).contains(&age_ns));
        let is_attached = record.local.as_ref().is_some_and(|local| local.origin == Origin::Attach);
        Job {
            key: record.key.clone(),
            held_cpus: held_here(record).unwrap_or(0),
            // Counters of an older one, or of one that was attached to, have a history.
            cpu_ns: (is_young && !is_attached).then_some(0),
            seen_ns: 0,
            weighed_ns: now_ns,
            outer: None,
            settled_inside_ns: 0,
            counted: None,
            grown: None,
            has_left: false,
            charged,
        }
    }

    /// Whether all that it did is in the open window.
    pub(super) fn began_in_open_window(&self) -> bool {
        self.cpu_ns == Some(0)
    }

    /// Its allocation becomes known after its start, from its processes or its scheduler.
    pub(super) fn hold(&mut self, record: &Record) {
        self.held_cpus = held_here(record).unwrap_or(self.held_cpus);
    }

    /// The number of events counted by the processor since counting began.
    pub(super) fn count(&mut self, count: i64) {
        let before = self.counted.replace(count);
        let grown = before.and_then(|before| u64::try_from(count.checked_sub(before)?).ok());
        // There may be two readings between two looks.
        self.grown = grown.map(|grown| self.grown.unwrap_or(0).saturating_add(grown));
    }

    /// The events since the last call, where they were counted.
    pub(super) fn take_grown(&mut self) -> Option<u64> {
        self.grown.take()
    }

    /// Whether much of its CPU time was used by processes never seen as its own.
    pub(super) fn was_unseen(&self, cpu_ns: i64) -> bool {
        let unseen_ns = cpu_ns.saturating_sub(i64::try_from(self.seen_ns).unwrap_or(i64::MAX));
        unseen_ns > cpu_ns / UNSEEN_SHARE
    }

    pub(super) fn weigh(&mut self, now_ns: i64, cpu_ns: i64, memory_bytes: i64) -> Weights {
        let elapsed_ns = (now_ns - self.weighed_ns).max(0) as u64;
        self.weighed_ns = now_ns;
        let mut weights = Weights { cpu: 0, memory: 0, held: self.held_cpus.saturating_mul(elapsed_ns) };
        if cpu_ns != MISSING {
            let before_ns = self.cpu_ns.unwrap_or(cpu_ns);
            // A reading may be short of a child that just ended; the next one has it again.
            self.cpu_ns = Some(cpu_ns.max(before_ns));
            let grown_ns = cpu_ns.saturating_sub(before_ns).max(0) as u64;
            self.seen_ns = self.seen_ns.saturating_add(grown_ns);
            weights.cpu = grown_ns.saturating_sub(self.settled_inside_ns);
            self.settled_inside_ns = self.settled_inside_ns.saturating_sub(grown_ns);
        }
        if memory_bytes != MISSING {
            weights.memory = memory_weight(memory_bytes, elapsed_ns);
        }
        weights
    }
}

/// The CPUs that a job holds on this machine, where it is known how many it has on all its nodes.
fn held_here(record: &Record) -> Option<u64> {
    let cpus: u64 = record.allocated.cpus.or(record.requested.cpus)?.try_into().ok()?;
    // Several nodes may be one machine.
    let here = 1 + record.local.as_ref().map_or(0, |local| local.more_cgroups.len()) as u64;
    let nodes = (record.nodes.len() as u64).max(here);
    Some(cpus.saturating_mul(here).div_ceil(nodes))
}

/// Kibibytes times milliseconds: a terabyte for a year still fits.
pub(super) fn memory_weight(bytes: i64, elapsed_ns: u64) -> u64 {
    (bytes.max(0) as u64 / 1024).saturating_mul(elapsed_ns / 1_000_000)
}

/// CPU time that a job was weighed by, as it is or as its share of what was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weighed {
    weight: Weight,
    counted_ns: u64,
    timed_ns: u64,
}

impl Weighed {
    /// Weights by `weight` from now on; what was weighed so far stays.
    pub(super) fn add(&mut self, weight: Weight, cpu_ns: u64, is_counted: bool) {
        let sum = if is_counted { &mut self.counted_ns } else { &mut self.timed_ns };
        *sum = sum.saturating_add(cpu_ns);
        self.weight = if is_counted { weight } else { self.weight };
    }

    /// Of each job the first and the last moments are known by CPU time alone.
    pub(super) fn words(self) -> &'static str {
        let mostly = self.timed_ns <= self.counted_ns / 10;
        match (self.weight, self.counted_ns) {
            (Weight::CpuTime, _) | (_, 0) => "by CPU time",
            (Weight::Instructions, _) if mostly => "by instructions among jobs",
            (Weight::Instructions, _) => "by instructions among jobs, and by CPU time",
            (Weight::Cycles, _) if mostly => "by cycles among jobs",
            (Weight::Cycles, _) => "by cycles among jobs, and by CPU time",
        }
    }
}

/// Gives the CPU time of the jobs for which events were counted to each of them by its events. The sum stays,
/// and so does the CPU time of the others and of the system, for which nothing was counted.
pub(super) fn by_counts(weights: &mut BTreeMap<u32, Weights>, counts: &BTreeMap<u32, u64>) {
    let counted = |slot: &u32| counts.get(slot).copied();
    let (slots, events): (Vec<u32>, Vec<u64>) =
        weights.keys().filter_map(|slot| Some((*slot, counted(slot)?))).unzip();
    let whole_ns = slots.iter().fold(0u64, |sum, slot| sum.saturating_add(weights[slot].cpu));
    if events.iter().all(|&count| count == 0) {
        return;
    }
    let mut parts = Vec::new();
    apportion(whole_ns, &events, &mut parts);
    for (slot, part_ns) in slots.iter().zip(parts) {
        weights.entry(*slot).and_modify(|weights| weights.cpu = part_ns);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn weights(cpu: &[u64]) -> BTreeMap<u32, Weights> {
        (0..).zip(cpu).map(|(slot, &cpu)| (slot, Weights { cpu, memory: 7, held: 3 })).collect()
    }

    #[test]
    fn counted_jobs_share_their_cpu_time_by_their_events() {
        let mut found = weights(&[100, 100, 50]);
        by_counts(&mut found, &BTreeMap::from([(0, 30), (1, 10), (9, 5)]));
        assert_eq!(found.values().map(|weights| weights.cpu).collect::<Vec<_>>(), [150, 50, 50]);
        assert_eq!(found[&0].memory, 7);
        by_counts(&mut found, &BTreeMap::from([(0, 0), (1, 0)]));
        assert_eq!(found[&0].cpu, 150, "nothing was counted");
    }

    #[test]
    fn the_weight_of_a_job_is_named() {
        let mut weighed = Weighed::default();
        assert_eq!(weighed.words(), "by CPU time");
        weighed.add(Weight::Cycles, 10, false);
        weighed.add(Weight::Cycles, 90, true);
        assert_eq!(weighed.words(), "by cycles among jobs, and by CPU time");
        weighed.add(Weight::Cycles, 10, true);
        assert_eq!(weighed.words(), "by cycles among jobs");
    }

    proptest! {
        #[test]
        fn the_sum_stays_and_uncounted_jobs_stay(
            cpu in prop::collection::vec(0..u64::MAX / 64, 1..20),
            counts in prop::collection::btree_map(0..25u32, any::<u64>(), 0..20),
        ) {
            let before = weights(&cpu);
            let mut after = before.clone();
            by_counts(&mut after, &counts);
            let sum = |of: &BTreeMap<u32, Weights>| of.values().map(|weights| weights.cpu).sum::<u64>();
            prop_assert_eq!(sum(&before), sum(&after));
            for slot in before.keys().filter(|slot| !counts.contains_key(slot)) {
                prop_assert_eq!(before[slot], after[slot]);
            }
        }
    }
}
