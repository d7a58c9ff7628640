//! What the machine uses doing nothing, learned from windows in which it did nothing, or at two different loads.
//!
//! Each set of meters has its own figures: what one of them calls the rest of the machine is the processors'
//! for another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::line::{GPUS, PARTS, Weights};

/// A window is quiet when less than this of the machine's CPU time was used, in thousandths.
const QUIET_PERMILLE: u64 = 20;
/// Two loads this far apart allow an extrapolation to no load, in thousandths.
const APART_PERMILLE: u64 = 200;
/// Shorter spans say little about power, and neither do fewer windows: each has one reading of the slowest meter. Until
/// there was such a span, a single window serves.
const LEARN_NS: i64 = 5_000_000_000;
const LEARN_WINDOWS: u32 = 3;
/// Of a single window.
const WINDOW_NS: i64 = 500_000_000;
/// A controller that once says too little spoils the windows on both sides of its answer: the lowest one after
/// these is believed.
const DOUBTED: usize = 2;
/// A machine has one or two; a name that changes all the time does not fill the memory.
const SETS_MAX: usize = 16;

/// How idle power came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Seen while the machine did nothing.
    Quiet,
    /// The straight line through two loads, where it meets none.
    TwoLoads,
}

/// Idle power by part of the machine, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedIdle {
    /// The meters it was learned from.
    pub meters: String,
    /// In milliwatts; of GPUs it is part of their own lines, and 0 here.
    pub idle_mw: [u64; PARTS],
    pub how: How,
    /// The end of the window it was learned in, by the reader's clock.
    pub at_ns: i64,
}

impl LearnedIdle {
    pub fn total_mw(&self) -> u64 {
        self.idle_mw.iter().fold(0, |sum, &mw| sum.saturating_add(mw))
    }
}

/// All that is known of idle power.
#[derive(Debug, Default)]
pub(super) struct IdlePower {
    by_meters: BTreeMap<String, Seen>,
}

/// What one set of meters has shown.
#[derive(Debug, Default)]
struct Seen {
    /// By an earlier reader.
    recalled: Option<LearnedIdle>,
    /// In spans that are long enough.
    firm: Shown,
    /// In single windows: used for want of something better, and never kept.
    brief: Shown,
    span: Span,
}

/// Windows in a row, all quiet or none.
#[derive(Debug, Default)]
struct Span {
    parts_uj: [u64; PARTS],
    node: Weights,
    windows: u32,
    length_ns: i64,
    end_ns: i64,
    is_quiet: bool,
}

/// Power at some loads.
#[derive(Debug, Default)]
struct Shown {
    /// The lowest quiet windows, the lowest first: power, and when.
    quiet: Vec<([u64; PARTS], i64)>,
    /// Load in thousandths, power, and when: where the load was lowest and highest.
    lowest: Option<(u64, [u64; PARTS], i64)>,
    highest: Option<(u64, [u64; PARTS], i64)>,
}

impl IdlePower {
    /// Takes over what was learned before. It holds until the machine is seen at rest again.
    pub(super) fn recall(&mut self, learned: LearnedIdle) {
        if let Some(seen) = self.seen(&learned.meters.clone()) {
            seen.recalled = Some(learned);
        }
    }

    /// Takes in a window that ended at `end_ns`.
    pub(super) fn learn(
        &mut self,
        meters: &str,
        parts_uj: &[u64; PARTS],
        node: &Weights,
        window_ns: i64,
        end_ns: i64,
    ) {
        let Some(load) = node.load_permille().filter(|_| window_ns > 0) else { return };
        let Some(seen) = self.seen(meters) else { return };
        if window_ns >= WINDOW_NS {
            seen.brief.take(load, power_mw(parts_uj, window_ns), end_ns);
        }
        seen.span.extend(parts_uj, node, load < QUIET_PERMILLE, window_ns, end_ns);
        if seen.span.windows >= LEARN_WINDOWS && seen.span.length_ns >= LEARN_NS {
            let span = std::mem::take(&mut seen.span);
            if let Some(load) = span.node.load_permille() {
                seen.firm.take(load, power_mw(&span.parts_uj, span.length_ns), end_ns);
            }
        }
    }

    /// By part, as far as this set of meters has shown it.
    pub(super) fn of(&self, meters: &str) -> Option<LearnedIdle> {
        let seen = self.by_meters.get(meters)?;
        seen.learned(meters).or_else(|| seen.brief.learned(meters))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = LearnedIdle> {
        self.by_meters.iter().filter_map(|(meters, seen)| seen.learned(meters))
    }

    fn seen(&mut self, meters: &str) -> Option<&mut Seen> {
        if !self.by_meters.contains_key(meters) && self.by_meters.len() < SETS_MAX {
            self.by_meters.insert(meters.to_owned(), Seen::default());
        }
        self.by_meters.get_mut(meters)
    }
}

/// Mean power; that of GPUs is in their own lines.
fn power_mw(parts_uj: &[u64; PARTS], length_ns: i64) -> [u64; PARTS] {
    let length_ns = u128::from(length_ns.unsigned_abs().max(1));
    let power = |uj: u64| u64::try_from(u128::from(uj) * 1_000_000 / length_ns);
    let mut power_mw = parts_uj.map(|uj| power(uj).unwrap_or(u64::MAX));
    power_mw[GPUS] = 0;
    power_mw
}

impl Span {
    fn extend(
        &mut self,
        parts_uj: &[u64; PARTS],
        node: &Weights,
        is_quiet: bool,
        window_ns: i64,
        end_ns: i64,
    ) {
        if self.end_ns != end_ns - window_ns || self.is_quiet != is_quiet {
            *self = Span::default();
        }
        for (sum, uj) in self.parts_uj.iter_mut().zip(parts_uj) {
            *sum = sum.saturating_add(*uj);
        }
        self.node.add(*node);
        (self.windows, self.length_ns) = (self.windows + 1, self.length_ns.saturating_add(window_ns));
        (self.end_ns, self.is_quiet) = (end_ns, is_quiet);
    }
}

impl Seen {
    /// What was seen at rest is better than what two loads make of it, and the newer of two is better.
    fn learned(&self, meters: &str) -> Option<LearnedIdle> {
        let is_quiet = |learned: &LearnedIdle| learned.how == How::Quiet;
        let (firm, recalled) = (self.firm.learned(meters), self.recalled.clone());
        match recalled {
            Some(recalled) if is_quiet(&recalled) && !firm.as_ref().is_some_and(is_quiet) => Some(recalled),
            recalled => firm.or(recalled),
        }
    }
}

impl Shown {
    fn take(&mut self, load: u64, power_mw: [u64; PARTS], end_ns: i64) {
        let total = |power_mw: &[u64; PARTS]| power_mw.iter().fold(0u64, |sum, &mw| sum.saturating_add(mw));
        // Parts of one and the same window: the lowest of each would be a machine that never was.
        if load < QUIET_PERMILLE {
            let place = self.quiet.partition_point(|(known_mw, _)| total(known_mw) <= total(&power_mw));
            self.quiet.insert(place, (power_mw, end_ns));
            self.quiet.truncate(DOUBTED + 1);
        }
        if self.lowest.is_none_or(|(lowest, ..)| load < lowest) {
            self.lowest = Some((load, power_mw, end_ns));
        }
        if self.highest.is_none_or(|(highest, ..)| load > highest) {
            self.highest = Some((load, power_mw, end_ns));
        }
    }

    fn learned(&self, meters: &str) -> Option<LearnedIdle> {
        let learned = |idle_mw, how, at_ns| LearnedIdle { meters: meters.to_owned(), idle_mw, how, at_ns };
        if let Some(&(idle_mw, at_ns)) = self.quiet.last() {
            return Some(learned(idle_mw, How::Quiet, at_ns));
        }
        self.at_no_load().map(|(idle_mw, at_ns)| learned(idle_mw, How::TwoLoads, at_ns))
    }

    fn at_no_load(&self) -> Option<([u64; PARTS], i64)> {
        let ((low, low_mw, low_ns), (high, high_mw, high_ns)) = (self.lowest?, self.highest?);
        if high - low < APART_PERMILLE {
            return None;
        }
        let at_rest = |part: usize| {
            let slope = high_mw[part].saturating_sub(low_mw[part]) / (high - low);
            low_mw[part].saturating_sub(slope.saturating_mul(low))
        };
        Some((std::array::from_fn(at_rest), low_ns.max(high_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_answer_that_is_too_low_is_not_idle_power() {
        let mut seen = Shown::default();
        let mut after = |rest_mw: u64, at_ns: i64| {
            seen.take(3, [0, 0, 0, rest_mw], at_ns);
            seen.learned("bmc").map(|learned| (learned.total_mw(), learned.at_ns, learned.how))
        };
        assert_eq!(after(90_000, 1), Some((90_000, 1, How::Quiet)), "one window is better than none");
        for (at_ns, rest_mw) in [(2, 88_000), (3, 89_000), (4, 7_000), (5, 40_000), (6, 91_000)] {
            after(rest_mw, at_ns);
        }
        assert_eq!(after(95_000, 7), Some((88_000, 2, How::Quiet)), "it answered once with 7 W");
        let mut low = Shown::default();
        (0..4).for_each(|at_ns| low.take(3, [0, 0, 0, 70_000], at_ns));
        assert_eq!(low.learned("bmc").map(|learned| learned.total_mw()), Some(70_000));
    }

    const SECOND: i64 = 1_000_000_000;

    /// What is kept after idle windows of these seconds and joules, one after the other.
    fn kept_after(windows: &[(i64, u64)], pause_ns: i64) -> (Option<u64>, Option<u64>) {
        let (mut idle, mut end_ns) = (IdlePower::default(), 0);
        for &(seconds, joules) in windows {
            end_ns += seconds * SECOND + pause_ns;
            let node = Weights { cpu: 0, memory: 0, held: (4 * seconds * SECOND) as u64 };
            idle.learn("bmc", &[0, 0, 0, joules * 1_000_000], &node, seconds * SECOND, end_ns);
        }
        (idle.all().next().map(|learned| learned.total_mw()), idle.of("bmc").map(|idle| idle.total_mw()))
    }

    #[test]
    fn short_spans_and_few_readings_teach_nothing_that_is_kept() {
        assert_eq!(kept_after(&[(1, 90); 4], 0), (None, Some(90_000)), "four seconds serve for now");
        let uneven = [(1, 60), (1, 140), (1, 100), (1, 90), (1, 110)];
        assert_eq!(kept_after(&uneven, 0), (Some(100_000), Some(100_000)), "the mean of five");
        assert_eq!(kept_after(&[(10, 1000); 2], 0).0, None, "two readings of a slow meter");
        assert_eq!(kept_after(&[(10, 1000); 3], 0).0, Some(100_000));
        assert_eq!(kept_after(&[(1, 90); 9], 1).0, None, "they do not follow each other");
    }

    #[test]
    fn a_span_is_quiet_as_a_whole_or_not_at_all() {
        let mut idle = IdlePower::default();
        for second in 1..=12 {
            // Quiet for four seconds, then busy for two.
            let cpu = if second % 6 < 4 { 0 } else { 4 * SECOND as u64 };
            let node = Weights { cpu, memory: 0, held: 4 * SECOND as u64 };
            idle.learn("bmc", &[0, 0, 0, 90_000_000], &node, SECOND, second * SECOND);
        }
        assert_eq!(idle.all().next(), None);
    }
}
