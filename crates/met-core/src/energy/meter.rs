//! One meter: its energy as a function of time, known where it was read and straight in between.

use std::collections::VecDeque;

use crate::job::QualityKind;
use crate::rate::{self, Step};

/// What a meter sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All of the machine, at the wall or behind its power supplies. Of several the lowest rank is believed.
    Node {
        rank: u8,
        with_cards: bool,
    },
    /// The board: processors, memory and what is soldered to it, no cards.
    Board,
    /// A processor with its cores, caches and memory controller.
    Package,
    Memory,
}

/// The energy that a meter has seen since it was first read.
#[derive(Debug)]
pub(super) struct Meter {
    pub name: String,
    pub scope: Scope,
    pub kind: QualityKind,
    /// Readings further apart than this have nothing to do with each other.
    pub patience_ns: i64,
    /// Time and energy so far; the oldest is not later than the window that is open.
    readings: VecDeque<(i64, u64)>,
    counter_uj: Option<i64>,
    power_mw: Option<i64>,
    /// What an integral of power is short of a whole microjoule.
    carry: i128,
}

/// A milliwatt over so many nanoseconds is a microjoule.
const NS_PER_UJ_AT_1_MW: i128 = 1_000_000;
/// Readings kept while a slower meter is waited for.
const READINGS_MAX: usize = 4096;

impl Meter {
    pub fn new(name: &str, scope: Scope, kind: QualityKind, patience_ns: i64) -> Meter {
        Meter {
            name: name.to_owned(),
            scope,
            kind,
            patience_ns,
            readings: VecDeque::new(),
            counter_uj: None,
            power_mw: None,
            carry: 0,
        }
    }

    pub fn read_counter(&mut self, at_ns: i64, counter_uj: i64) {
        if self.is_old_news(at_ns) {
            return;
        }
        let before = self.counter_uj.replace(counter_uj);
        match before.map(|before| rate::step(before, counter_uj)) {
            Some(Step::Delta(grown_uj)) if self.is_connected(at_ns) => self.push(at_ns, grown_uj as u64),
            _ => self.begin_anew(at_ns),
        }
    }

    pub fn read_power(&mut self, at_ns: i64, power_mw: i64) {
        if self.is_old_news(at_ns) {
            return;
        }
        let before = self.power_mw.replace(power_mw);
        let Some((before_mw, (before_ns, _))) = before.zip(self.readings.back().copied()) else {
            return self.begin_anew(at_ns);
        };
        if !self.is_connected(at_ns) {
            return self.begin_anew(at_ns);
        }
        let twice = i128::from(before_mw.max(0)) + i128::from(power_mw.max(0));
        let sum = twice * i128::from(at_ns - before_ns) / 2 + self.carry;
        self.carry = sum % NS_PER_UJ_AT_1_MW;
        self.push(at_ns, u64::try_from(sum / NS_PER_UJ_AT_1_MW).unwrap_or(0));
    }

    /// A slow source hands out its last reading again and again.
    fn is_old_news(&self, at_ns: i64) -> bool {
        self.last_ns().is_some_and(|last_ns| at_ns <= last_ns)
    }

    fn is_connected(&self, at_ns: i64) -> bool {
        self.last_ns().is_some_and(|last_ns| at_ns - last_ns <= self.patience_ns)
    }

    fn push(&mut self, at_ns: i64, grown_uj: u64) {
        let so_far = self.readings.back().map_or(0, |&(_, energy_uj)| energy_uj);
        if self.readings.len() == READINGS_MAX {
            self.readings.remove(1);
        }
        self.readings.push_back((at_ns, so_far.saturating_add(grown_uj)));
    }

    /// What was used since the last reading is not known, or cannot be placed in time: a gap.
    fn begin_anew(&mut self, at_ns: i64) {
        let so_far = self.readings.back().map_or(0, |&(_, energy_uj)| energy_uj);
        self.readings.clear();
        self.readings.push_back((at_ns, so_far));
        self.carry = 0;
    }

    pub fn last_ns(&self) -> Option<i64> {
        self.readings.back().map(|&(at_ns, _)| at_ns)
    }

    pub fn is_fresh(&self, now_ns: i64) -> bool {
        self.last_ns().is_some_and(|last_ns| now_ns - last_ns <= self.patience_ns)
    }

    /// The energy between two times, or nothing if it was not read all the while.
    pub fn between(&self, begin_ns: i64, end_ns: i64) -> Option<u64> {
        self.at(end_ns)?.checked_sub(self.at(begin_ns)?)
    }

    // Rounded down at both ends of every window alike, so windows one after the other add up.
    fn at(&self, time_ns: i64) -> Option<u64> {
        let after = self.readings.partition_point(|&(at_ns, _)| at_ns < time_ns);
        let &(after_ns, after_uj) = self.readings.get(after)?;
        if after_ns == time_ns {
            return Some(after_uj);
        }
        let (before_ns, before_uj) = self.readings[after.checked_sub(1)?];
        let (elapsed, whole) = (i128::from(time_ns - before_ns), i128::from(after_ns - before_ns));
        let part = i128::from(after_uj - before_uj) * elapsed / whole;
        Some(before_uj + u64::try_from(part).ok()?)
    }

    /// Readings before this time are not asked for again.
    pub fn forget_before(&mut self, time_ns: i64) {
        while self.readings.len() > 1 && self.readings[1].0 <= time_ns {
            self.readings.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn meter() -> Meter {
        Meter::new("m", Scope::Package, QualityKind::Measured, 10 * SECOND)
    }

    #[test]
    fn a_counter_is_straight_between_readings() {
        let mut meter = meter();
        for (second, joules) in [(1, 100), (2, 110), (4, 150)] {
            meter.read_counter(second * SECOND, joules * 1_000_000);
        }
        assert_eq!(meter.between(SECOND, 4 * SECOND), Some(50_000_000));
        assert_eq!(meter.between(2 * SECOND, 3 * SECOND), Some(20_000_000));
        assert_eq!(meter.between(0, SECOND), None, "nobody looked before");
        assert_eq!(meter.between(4 * SECOND, 5 * SECOND), None, "nor after");
    }

    #[test]
    fn power_is_integrated_without_loss() {
        let mut meter = meter();
        for step in 0..=1000 {
            meter.read_power(step * 7_777_777, 333);
        }
        let exact = 333_i128 * 7_777_777_000 / NS_PER_UJ_AT_1_MW;
        assert_eq!(meter.between(0, 7_777_777_000), Some(exact as u64));
    }

    #[test]
    fn a_gap_and_a_restart_are_not_bridged() {
        let mut meter = meter();
        meter.read_counter(0, 0);
        meter.read_counter(60 * SECOND, 9_000_000_000);
        assert_eq!(meter.between(0, 60 * SECOND), None);
        meter.read_counter(61 * SECOND, 5);
        assert_eq!(meter.between(60 * SECOND, 61 * SECOND), None);
        meter.read_counter(62 * SECOND, 105);
        assert_eq!(meter.between(61 * SECOND, 62 * SECOND), Some(100));
    }

    #[test]
    fn a_reading_that_is_handed_out_again_changes_nothing() {
        let mut meter = meter();
        for at_ns in [0, SECOND, SECOND, SECOND] {
            meter.read_power(at_ns, 1000);
        }
        assert_eq!(meter.between(0, SECOND), Some(1_000_000));
        assert_eq!(meter.last_ns(), Some(SECOND));
    }
}
