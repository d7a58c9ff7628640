//! One meter: its energy as a function of time, known where it was read and straight in between.

use std::collections::VecDeque;

use crate::job::QualityKind;
use crate::meter_checks::{Counter, Grown, Power, Shown, UNLIMITED_MW, Verdict};

/// What a meter sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All of the machine, at the wall or behind its power supplies. Of several the lowest rank is believed.
    Node {
        rank: u8,
        with_gpus: bool,
    },
    /// The board: processors, memory and what is soldered to it, no GPUs.
    Board,
    /// A processor with its cores, caches and memory controller.
    Package,
    Memory,
}

/// What is wrong with the time between two readings, the worst last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    #[default]
    None,
    /// Readings are missing or were doubted; the energy is known, and so are its consumers, by the growth of
    /// their counters.
    Bridged,
    /// The energy is known, but its consumers are not.
    Lost,
    /// Nothing is known: the energy is more than what was counted.
    Unknown,
}

/// The energy between two times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub energy_uj: u64,
    /// Of it, what cannot be charged.
    pub lost_uj: u64,
    pub fault: Fault,
}

/// A point of the energy so far, and what is wrong with the time since the point before.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at_ns: i64,
    energy_uj: u64,
    fault: Fault,
}

/// The energy that a meter has seen since it was first read.
#[derive(Debug)]
pub(super) struct Meter {
    pub name: String,
    pub scope: Scope,
    pub kind: QualityKind,
    /// Readings further apart than this have a gap between them.
    pub timeout_ns: i64,
    pub taken: Taken,
    /// The oldest is not later than the window that is open.
    readings: VecDeque<Reading>,
    /// The time of the last reading, believed or not.
    seen_ns: Option<i64>,
    counter: Counter,
    power: Power,
    /// The last one that was believed.
    power_mw: Option<i64>,
    /// What an integral of power is short of a whole microjoule.
    carry: i128,
}

/// The last window that took a meter up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// What the meter had seen at the end of that window, and what windows took from others since.
    pub so_far_uj: Option<u64>,
    pub others_uj: u64,
    /// There was an unmeasured time since then.
    has_unknown: bool,
}

/// A milliwatt over this many nanoseconds is a microjoule.
const NS_PER_UJ_AT_1_MW: i128 = 1_000_000;
/// Readings kept while a slower meter is waited for.
const READINGS_MAX: usize = 4096;
/// How long to wait for a missing meter and to bridge a gap: after that the consumers are no longer known.
pub(super) const BRIDGE_NS: i64 = 60_000_000_000;
/// The upper limit of an unknown node's power.
const NODE_MOST_MW: i64 = 10_000_000;
/// Power that differs by more before and after a gap does not determine what was in between.
const AGREES_FACTOR: i64 = 2;

impl Meter {
    pub fn new(name: &str, scope: Scope, kind: QualityKind, timeout_ns: i64) -> Meter {
        let mut meter = Meter {
            name: name.to_owned(),
            scope,
            kind,
            timeout_ns,
            taken: Taken::default(),
            readings: VecDeque::new(),
            seen_ns: None,
            counter: Counter::coarse(),
            power: Power::default(),
            power_mw: None,
            carry: 0,
        };
        meter.rate(0);
        meter
    }

    /// Whether it sees the whole machine, or all of its board.
    pub fn is_outer(&self) -> bool {
        matches!(self.scope, Scope::Node { .. } | Scope::Board)
    }

    /// The most that can be drawn, as far as that is known; 0 where it is not.
    pub fn rate(&mut self, rated_mw: i64) {
        let least_mw = if self.is_outer() { NODE_MOST_MW } else { UNLIMITED_MW };
        self.counter.learn(0, rated_mw.max(least_mw));
        self.power.rate(rated_mw.max(least_mw));
    }

    /// Takes its counter, and its power where it reports that, too; `explained_mw` is what parts of the machine are
    /// seen to draw at that time.
    pub fn read_counter(&mut self, at_ns: i64, counter_uj: i64, power_mw: Option<i64>, explained_mw: i64) {
        let Some(shown) = Shown::new(counter_uj, at_ns).filter(|_| !self.is_old_news(at_ns)) else { return };
        let before_ns = self.seen_ns.replace(at_ns);
        let drawn = power_mw.zip(before_ns).map_or(0, |(power_mw, before_ns)| {
            i128::from(power_mw.max(0)) * i128::from(at_ns - before_ns) / NS_PER_UJ_AT_1_MW
        });
        let drawn_uj = u64::try_from(drawn).unwrap_or(0);
        let mut was_in_doubt = self.counter.is_in_doubt();
        let mut grown = self.counter.grown(shown, drawn_uj);
        if let Some(Grown { delta_uj, since_ns, .. }) = grown.filter(|_| self.is_outer()) {
            let mean_mw = i128::from(delta_uj) * NS_PER_UJ_AT_1_MW / i128::from((at_ns - since_ns).max(1));
            match self.power.judge(at_ns, i64::try_from(mean_mw).unwrap_or(i64::MAX), explained_mw) {
                Verdict::Doubted => grown = None,
                // It grew as fast before, and what was doubted is right.
                Verdict::BelievedBoth { .. } | Verdict::Replaced { .. } => was_in_doubt = false,
                Verdict::Believed | Verdict::BelievedWithout => {}
            }
        }
        self.counter.note(Some(shown), grown.is_some(), if grown.is_some() { 0 } else { drawn_uj });
        match grown {
            Some(grown) => {
                if self.last_ns() != Some(grown.since_ns) {
                    // It restarted: what it had counted before that is lost.
                    self.push(grown.since_ns, 0, Fault::Unknown);
                }
                let fault = match self.gap(at_ns) {
                    Fault::None if was_in_doubt => Fault::Bridged,
                    fault => fault,
                };
                self.push(at_ns, grown.delta_uj, fault);
            }
            // The first one, or one confirmed by this many others.
            None if self.counter.trusted_ns() == Some(at_ns) => self.push(at_ns, 0, Fault::Unknown),
            None => {}
        }
    }

    /// Takes in its power; `explained_mw` is what parts of the machine are seen to draw at that time.
    pub fn read_power(&mut self, at_ns: i64, power_mw: i64, explained_mw: i64) {
        if self.is_old_news(at_ns) {
            return;
        }
        self.seen_ns = Some(at_ns);
        match self.power.judge(at_ns, power_mw, explained_mw) {
            Verdict::Doubted => {}
            Verdict::Believed => self.integrate(at_ns, power_mw, Fault::None),
            Verdict::BelievedWithout => self.integrate(at_ns, power_mw, Fault::Bridged),
            Verdict::BelievedBoth { at_ns: before_ns, power_mw: before_mw } => {
                self.integrate(before_ns, before_mw, Fault::None);
                self.integrate(at_ns, power_mw, Fault::None);
            }
            Verdict::Replaced { at_ns: before_ns, power_mw: before_mw } => {
                self.power_mw = None;
                self.integrate(before_ns, before_mw, Fault::Unknown);
                self.integrate(at_ns, power_mw, Fault::None);
            }
        }
    }

    /// Power on a straight line from the last reading to this one.
    fn integrate(&mut self, at_ns: i64, power_mw: i64, fault: Fault) {
        let before = self.power_mw.replace(power_mw).zip(self.last_ns());
        let gap = self.gap(at_ns);
        let Some((before_mw, before_ns)) = before.filter(|_| gap != Fault::Lost) else {
            self.carry = 0;
            return self.push(at_ns, 0, Fault::Unknown);
        };
        let twice = i128::from(before_mw.max(0)) + i128::from(power_mw.max(0));
        let sum = twice * i128::from(at_ns - before_ns) / 2 + self.carry;
        self.carry = sum % NS_PER_UJ_AT_1_MW;
        let (low_mw, high_mw) = (before_mw.min(power_mw), before_mw.max(power_mw));
        let agrees = high_mw <= low_mw.saturating_mul(AGREES_FACTOR);
        let gap = if gap == Fault::Bridged && !agrees { Fault::Lost } else { gap };
        self.push(at_ns, u64::try_from(sum / NS_PER_UJ_AT_1_MW).unwrap_or(0), gap.max(fault));
    }

    /// Whether it reports power only, so that the energy between two readings is a guess: unlike a counter, it
    /// never shows what it missed.
    pub fn is_power(&self) -> bool {
        self.power_mw.is_some()
    }

    /// A slow source hands out its last reading again and again.
    fn is_old_news(&self, at_ns: i64) -> bool {
        self.seen_ns.is_some_and(|seen_ns| at_ns <= seen_ns)
    }

    /// What the time since the last reading is, by its length.
    fn gap(&self, at_ns: i64) -> Fault {
        match self.last_ns().map(|last_ns| at_ns - last_ns) {
            Some(elapsed_ns) if elapsed_ns <= self.timeout_ns => Fault::None,
            Some(elapsed_ns) if elapsed_ns <= self.bridge_ns() => Fault::Bridged,
            _ => Fault::Lost,
        }
    }

    fn bridge_ns(&self) -> i64 {
        self.timeout_ns.max(BRIDGE_NS)
    }

    fn push(&mut self, at_ns: i64, grown_uj: u64, fault: Fault) {
        self.taken.has_unknown |= fault == Fault::Unknown;
        let so_far = self.readings.back().map_or(0, |reading| reading.energy_uj);
        if self.readings.len() == READINGS_MAX {
            let merged = self.readings.remove(1).map_or(Fault::None, |reading| reading.fault);
            self.readings[1].fault = self.readings[1].fault.max(merged);
        }
        self.readings.push_back(Reading { at_ns, energy_uj: so_far.saturating_add(grown_uj), fault });
    }

    /// A window took all that it has seen so far; others have already shown this much more.
    pub fn take_up(&mut self, so_far_uj: u64, ahead_uj: u64) {
        self.taken = Taken { so_far_uj: Some(so_far_uj), others_uj: ahead_uj, has_unknown: false };
    }

    /// Of the time until a window in which others were read in its place: what it counted beyond what they showed,
    /// and what they showed beyond that. Where it does not know all of that time, they may be right.
    pub fn apart(&self, begin_ns: i64) -> (u64, u64) {
        let Some((so_far_uj, taken_uj)) = self.at(begin_ns).zip(self.taken.so_far_uj) else { return (0, 0) };
        let counted_uj = so_far_uj.saturating_sub(taken_uj);
        let ahead_uj =
            if self.taken.has_unknown { 0 } else { self.taken.others_uj.saturating_sub(counted_uj) };
        (counted_uj.saturating_sub(self.taken.others_uj), ahead_uj)
    }

    /// The machine is not measured until the next reading: earlier time is not requested.
    pub fn pause(&mut self) {
        self.readings.clear();
        self.counter.forget();
        (self.power_mw, self.carry) = (None, 0);
        (self.taken.so_far_uj, self.taken.others_uj) = (None, 0);
    }

    /// The oldest reading that is still asked for.
    pub fn first_ns(&self) -> Option<i64> {
        self.readings.front().map(|reading| reading.at_ns)
    }

    pub fn last_ns(&self) -> Option<i64> {
        self.readings.back().map(|reading| reading.at_ns)
    }

    /// The readings before and after a time at which it was not read, and what is wrong with the time between them.
    pub fn around(&self, time_ns: i64) -> Option<(i64, i64, Fault)> {
        let after = self.readings.partition_point(|reading| reading.at_ns < time_ns);
        let &Reading { at_ns, fault, .. } = self.readings.get(after)?;
        let before_ns = self.readings[after.checked_sub(1)?].at_ns;
        (at_ns != time_ns).then_some((before_ns, at_ns, fault))
    }

    /// Whether its next reading is worth waiting for.
    pub fn is_awaited(&self, now_ns: i64) -> bool {
        self.last_ns().is_some_and(|last_ns| now_ns - last_ns <= self.bridge_ns())
    }

    /// The energy between two times, or nothing if it was not read before the first or after the last.
    pub fn between(&self, begin_ns: i64, end_ns: i64) -> Option<Span> {
        let energy_uj = self.at(end_ns)?.checked_sub(self.at(begin_ns)?)?;
        let first = self.readings.partition_point(|reading| reading.at_ns <= begin_ns).max(1);
        let mut span = Span { energy_uj, lost_uj: 0, fault: Fault::None };
        for at in (first..self.readings.len()).take_while(|&at| self.readings[at - 1].at_ns < end_ns) {
            let (before, after) = (self.readings[at - 1], self.readings[at]);
            span.fault = span.fault.max(after.fault);
            if after.fault == Fault::Lost {
                let to_uj = self.at(end_ns.min(after.at_ns)).unwrap_or(0);
                let from_uj = self.at(begin_ns.max(before.at_ns)).unwrap_or(0);
                span.lost_uj += to_uj.saturating_sub(from_uj);
            }
        }
        Some(span)
    }

    /// All that it has seen up to a time. Rounded down at both ends of every window alike, so windows one after the
    /// other add up.
    pub fn at(&self, time_ns: i64) -> Option<u64> {
        let after = self.readings.partition_point(|reading| reading.at_ns < time_ns);
        let &Reading { at_ns: after_ns, energy_uj: after_uj, .. } = self.readings.get(after)?;
        if after_ns == time_ns {
            return Some(after_uj);
        }
        let Reading { at_ns: before_ns, energy_uj: before_uj, .. } = self.readings[after.checked_sub(1)?];
        let (elapsed, whole) = (i128::from(time_ns - before_ns), i128::from(after_ns - before_ns));
        let part = i128::from(after_uj - before_uj) * elapsed / whole;
        Some(before_uj + u64::try_from(part).ok()?)
    }

    /// Readings before this time are not asked for again.
    pub fn forget_before(&mut self, time_ns: i64) {
        while self.readings.len() > 1 && self.readings[1].at_ns <= time_ns {
            self.readings.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const JOULE: i64 = 1_000_000;

    fn meter() -> Meter {
        Meter::new("m", Scope::Node { rank: 0, with_gpus: true }, QualityKind::Measured, 10 * SECOND)
    }

    fn span(meter: &Meter, begin_s: i64, end_s: i64) -> Option<(i64, i64, Fault)> {
        let span = meter.between(begin_s * SECOND, end_s * SECOND)?;
        Some((span.energy_uj as i64, span.lost_uj as i64, span.fault))
    }

    fn counted(readings: &[(i64, i64)]) -> Meter {
        let mut meter = meter();
        readings.iter().for_each(|(second, uj)| meter.read_counter(second * SECOND, *uj, None, 0));
        meter
    }

    fn drawn(readings: &[(i64, i64)]) -> Meter {
        let mut meter = meter();
        readings.iter().for_each(|(second, watts)| meter.read_power(second * SECOND, watts * 1000, 0));
        meter
    }

    #[test]
    fn a_counter_is_straight_between_readings() {
        let meter = counted(&[(1, 100 * JOULE), (2, 110 * JOULE), (4, 150 * JOULE)]);
        assert_eq!(span(&meter, 1, 4), Some((50 * JOULE, 0, Fault::None)));
        assert_eq!(span(&meter, 2, 3), Some((20 * JOULE, 0, Fault::None)));
        assert_eq!(span(&meter, 0, 1), None, "no earlier reading");
        assert_eq!(span(&meter, 4, 5), None, "nor after");
    }

    #[test]
    fn power_is_integrated_without_loss() {
        let mut meter = meter();
        for step in 0..=1000 {
            meter.read_power(step * 7_777_777, 333, 0);
        }
        let exact = 333_i128 * 7_777_777_000 / NS_PER_UJ_AT_1_MW;
        assert_eq!(meter.between(0, 7_777_777_000).map(|span| span.energy_uj), Some(exact as u64));
    }

    #[test]
    fn what_is_counted_over_a_gap_is_known_and_over_a_long_one_unassigned() {
        let meter = counted(&[(0, 0), (1, 100), (30, 3000), (31, 3100), (131, 13_100)]);
        assert_eq!(span(&meter, 0, 1), Some((100, 0, Fault::None)));
        assert_eq!(span(&meter, 1, 30), Some((2900, 0, Fault::Bridged)));
        assert_eq!(span(&meter, 30, 31), Some((100, 0, Fault::None)));
        assert_eq!(span(&meter, 30, 131), Some((10_100, 10_000, Fault::Lost)));
        assert_eq!(span(&meter, 81, 131), Some((5000, 5000, Fault::Lost)));
    }

    #[test]
    fn power_around_a_gap_covers_it_if_it_agrees_and_the_gap_is_short() {
        let meter = drawn(&[(0, 100), (30, 110), (60, 300), (200, 300), (201, 300)]);
        assert_eq!(span(&meter, 0, 30), Some((3150 * JOULE, 0, Fault::Bridged)));
        assert_eq!(span(&meter, 30, 60), Some((6150 * JOULE, 6150 * JOULE, Fault::Lost)));
        assert_eq!(span(&meter, 60, 200), Some((0, 0, Fault::Unknown)));
        assert_eq!(span(&meter, 200, 201), Some((300 * JOULE, 0, Fault::None)));
    }

    #[test]
    fn a_counter_that_begins_again_goes_on_and_what_was_in_between_is_unknown() {
        let readings = [(0, 5000), (1, 5100), (2, 5), (3, 105), (4, 205)];
        let meter = counted(&readings.map(|(second, joules)| (second, joules * JOULE)));
        assert_eq!(span(&meter, 0, 1), Some((100 * JOULE, 0, Fault::None)));
        assert_eq!(span(&meter, 1, 4), Some((200 * JOULE, 0, Fault::Unknown)));
        assert_eq!(span(&meter, 2, 4), Some((200 * JOULE, 0, Fault::Bridged)));
    }

    #[test]
    fn one_wrong_reading_changes_nothing_but_the_mark() {
        for wrong in [0, 9_000_000_000 * JOULE, 50 * JOULE] {
            let meter = counted(&[(0, 100 * JOULE), (1, 200 * JOULE), (2, wrong), (3, 400 * JOULE)]);
            assert_eq!(span(&meter, 0, 3), Some((300 * JOULE, 0, Fault::Bridged)), "{wrong}");
        }
        let meter = drawn(&[(0, 100), (1, 100), (2, 65_535), (3, 100), (4, 100)]);
        assert_eq!(span(&meter, 0, 4), Some((400 * JOULE, 0, Fault::Bridged)));
        assert_eq!(span(&meter, 3, 4), Some((100 * JOULE, 0, Fault::None)));
    }

    #[test]
    fn a_counter_that_leaps_is_believed_when_it_goes_on_like_that() {
        let meter = counted(&[(0, 0), (1, 100 * JOULE), (2, 3100 * JOULE), (3, 6100 * JOULE)]);
        assert_eq!(span(&meter, 0, 3), Some((6100 * JOULE, 0, Fault::None)));
        let meter = counted(&[(0, 0), (1, 100 * JOULE), (2, 3100 * JOULE), (3, 300 * JOULE)]);
        assert_eq!(span(&meter, 0, 3), Some((300 * JOULE, 0, Fault::Bridged)));
    }

    #[test]
    fn a_counter_that_its_power_contradicts_waits_for_its_next_reading() {
        let mut meter = meter();
        for (second, joules) in [(0, 0), (1, 200), (2, 200), (3, 200), (4, 800)] {
            meter.read_counter(second * SECOND, joules * JOULE, Some(200_000), 0);
        }
        assert_eq!(span(&meter, 0, 4), Some((800 * JOULE, 0, Fault::Bridged)));
    }

    #[test]
    fn a_reading_that_is_handed_out_again_changes_nothing() {
        let mut meter = meter();
        for (at_ns, mw) in [(0, 1000), (SECOND, 1000), (SECOND, 1000), (2 * SECOND, 65_535_000)] {
            meter.read_power(at_ns, mw, 0);
            meter.read_power(at_ns, mw, 0);
        }
        assert_eq!(span(&meter, 0, 1), Some((JOULE, 0, Fault::None)));
        assert_eq!(meter.last_ns(), Some(SECOND));
    }
}
