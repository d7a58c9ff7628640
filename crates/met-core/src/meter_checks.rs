//! What a meter says can be doubted: by rated power, by neighbouring readings, by its counter against its power.
//!
//! GPUs and the meters of the node share this. [`Counter`] is for energy that is counted, [`Power`] for power
//! that is read as a level.

use crate::MISSING;
use crate::rate::{self, Step};

// What is honest must never be refused: a job would pay by power what the meter has counted. Samples of power are
// a poor judge of that, since a burst that none of them meets, or that all of them meet, makes their mean wrong by
// any factor. So a reading is doubted only if no machine can do what it says. It fell. It grew by more than twice
// what may be drawn (the limit, or the most that was seen to be drawn), over a time longer by what a counter may be
// late. Or it did not grow at all while power was drawn, which is no reading but the one of before. What is doubted
// costs nothing if it was honest: the next reading is of both windows.

/// A counter is updated in steps, and may be late by this much.
const LATE_NS: i64 = 5_000_000_000;
/// Limits are exceeded for moments, and may have been others before.
const LIMIT_FACTOR: i64 = 2;
/// The power limit of a GPU or a processor with an unknown limit: more than any draws.
pub const UNLIMITED_MW: i64 = 2_000_000;
/// This many readings in a row, over this much time, are right, and the one that they contradict was wrong.
const DOUBTS_MAX: u32 = 3;
const DOUBT_MAX_NS: i64 = 60_000_000_000;

/// What the counter showed, and when.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    uj: i64,
    at_ns: i64,
}

/// A reading, and what was charged by power since then.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    shown: Shown,
    charged_uj: u64,
}

/// Growth that is believed, and what of it is charged already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    pub delta_uj: u64,
    pub charged_uj: u64,
    /// When the reading was taken that it grew since.
    pub since_ns: i64,
}

#[derive(Debug, Default)]
pub struct Counter {
    /// The last reading that was believed.
    trusted: Option<Anchor>,
    /// The last one, if it was not: the counter may go on from either.
    doubted: Option<Anchor>,
    doubts: u32,
    /// The highest limit, and the most that was drawn.
    limit_mw: i64,
    drawn_mw: i64,
    /// A coarse counter may show the same twice; only one that power contradicts is doubted for that.
    may_stand_still: bool,
}

impl Shown {
    pub fn new(uj: i64, at_ns: i64) -> Option<Shown> {
        (uj != MISSING).then_some(Shown { uj, at_ns })
    }
}

impl Anchor {
    fn of(shown: Shown) -> Anchor {
        Anchor { shown, charged_uj: 0 }
    }

    fn age_ns(&self, shown: Shown) -> i64 {
        shown.at_ns.saturating_sub(self.shown.at_ns).max(0)
    }
}

impl Counter {
    /// For a meter that may show the same value twice, unless power says that energy was used.
    pub fn coarse() -> Counter {
        Counter { may_stand_still: true, ..Counter::default() }
    }

    /// Readings were doubted since the last one that was believed.
    pub fn is_in_doubt(&self) -> bool {
        self.doubted.is_some()
    }

    /// When the reading was taken that growth is counted from.
    pub fn trusted_ns(&self) -> Option<i64> {
        self.trusted.map(|anchor| anchor.shown.at_ns)
    }

    pub fn learn(&mut self, power_mw: i64, limit_mw: i64) {
        self.limit_mw = self.limit_mw.max(limit_mw);
        self.drawn_mw = self.drawn_mw.max(power_mw);
    }

    /// Readings pause: a later one does not cover the time until then.
    pub fn forget(&mut self) {
        (self.trusted, self.doubted, self.doubts) = (None, None, 0);
    }

    /// The most that the GPU can draw. One sample of power may be as wrong as one of the counter.
    pub fn most_mw(&self) -> i64 {
        let twice = |mw: i64| mw.saturating_mul(LIMIT_FACTOR);
        match self.limit_mw > 0 {
            true => twice(self.drawn_mw.clamp(self.limit_mw, twice(self.limit_mw))),
            false => twice(self.drawn_mw).max(UNLIMITED_MW),
        }
    }

    /// How far the counter grew since a reading that it goes on from; power says that it drew `integral_uj` in
    /// the window that this one ends.
    pub fn grown(&self, shown: Shown, integral_uj: u64) -> Option<Grown> {
        let since_trusted = self.trusted.and_then(|anchor| self.since(anchor, shown, integral_uj));
        let since_doubted = self.doubted.and_then(|anchor| self.since(anchor, shown, integral_uj));
        let (Some(old), Some(new)) = (since_trusted, since_doubted) else {
            return since_trusted.or(since_doubted);
        };
        let drawn_uj = |grown: &Grown| grown.charged_uj.saturating_add(integral_uj);
        let age_ns = self.trusted.map_or(1, |anchor| anchor.age_ns(shown).max(1));
        let late_uj = i128::from(drawn_uj(&old)) * i128::from(LATE_NS) / i128::from(age_ns);
        let slack_uj = u64::try_from(late_uj).unwrap_or(u64::MAX).max(drawn_uj(&old) / 4);
        let lacks_much = old.delta_uj.saturating_add(slack_uj) < drawn_uj(&old);
        let is_nearer = new.delta_uj.abs_diff(drawn_uj(&new)) < old.delta_uj.abs_diff(drawn_uj(&old));
        // It did not move, and what it did not count is lost: it goes on from its last value.
        Some(if lacks_much && is_nearer { new } else { old })
    }

    fn since(&self, anchor: Anchor, shown: Shown, integral_uj: u64) -> Option<Grown> {
        let Step::Delta(delta) = rate::step(anchor.shown.uj, shown.uj) else { return None };
        let time_ns = anchor.age_ns(shown).saturating_add(LATE_NS);
        let most_uj = i128::from(self.most_mw()) * i128::from(time_ns) / 1_000_000;
        let may_be_0 = self.may_stand_still && integral_uj == 0 && anchor.charged_uj == 0;
        let is_believed = (delta > 0 || may_be_0) && i128::from(delta) <= most_uj;
        let delta_uj = u64::try_from(delta).ok().filter(|_| is_believed)?;
        Some(Grown { delta_uj, charged_uj: anchor.charged_uj, since_ns: anchor.shown.at_ns })
    }

    /// A window was charged, and how.
    pub fn note(&mut self, shown: Option<Shown>, is_believed: bool, charged_uj: u64) {
        for anchor in [&mut self.trusted, &mut self.doubted].into_iter().flatten() {
            anchor.charged_uj += charged_uj;
        }
        let Some(shown) = shown else { return };
        self.doubts = if is_believed { 0 } else { self.doubts + 1 };
        let is_given_up = |anchor: Anchor| self.doubts >= DOUBTS_MAX && anchor.age_ns(shown) > DOUBT_MAX_NS;
        if is_believed || self.trusted.is_none_or(is_given_up) {
            (self.trusted, self.doubted, self.doubts) = (Some(Anchor::of(shown)), None, 0);
        } else {
            self.doubted = Some(Anchor::of(shown));
        }
    }
}

/// Power above this multiple of its neighbours, or below this fraction of them, is doubted until the next
/// reading.
const NEIGHBOUR_FACTOR: i64 = 8;
/// The power of GPUs and processors explains this multiple of it for the whole machine.
const EXPLAINED_FACTOR: i64 = 4;

/// What a reading of power says of itself and of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Believed,
    /// Wait for the next reading; if that contradicts it, it never was.
    Doubted,
    /// It goes on from where the last believed one was; those in between were wrong.
    BelievedWithout,
    /// The doubted reading right before it was right, too.
    BelievedBoth {
        at_ns: i64,
        power_mw: i64,
    },
    /// It and the doubted one agree, and the first reading, which nothing had confirmed, was wrong.
    Replaced {
        at_ns: i64,
        power_mw: i64,
    },
}

/// Readings of power, of which one may be wrong: 65,535 W, or nothing at all for a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Power {
    trusted: Option<(i64, i64)>,
    is_confirmed: bool,
    doubted: Option<(i64, i64)>,
    doubts: u32,
    /// The most that can be drawn; 0 where that is not known.
    most_mw: i64,
}

impl Power {
    /// No machine of this kind draws more.
    pub fn rate(&mut self, most_mw: i64) {
        self.most_mw = most_mw;
    }

    /// Whether a reading waits for the next one.
    pub fn is_in_doubt(&self) -> bool {
        self.doubts > 0
    }

    /// Judges a reading; `explained_mw` is what parts of the machine are seen to draw at the same time.
    pub fn judge(&mut self, at_ns: i64, power_mw: i64, explained_mw: i64) -> Verdict {
        let now = (at_ns, power_mw);
        if power_mw < 0 || self.most_mw > 0 && power_mw > self.most_mw {
            return self.doubt(now, None);
        }
        let agrees = |(_, known_mw): (i64, i64)| {
            let (low, high) = (known_mw.min(power_mw), known_mw.max(power_mw));
            let is_explained = power_mw > known_mw
                && power_mw <= explained_mw.max(0).saturating_add(known_mw).saturating_mul(EXPLAINED_FACTOR);
            high <= low.saturating_mul(NEIGHBOUR_FACTOR) || is_explained
        };
        let Some(trusted) = self.trusted else {
            self.believe(now, false);
            return Verdict::Believed;
        };
        if agrees(trusted) {
            let verdict = if self.doubts > 0 { Verdict::BelievedWithout } else { Verdict::Believed };
            self.believe(now, true);
            return verdict;
        }
        match self.doubted.filter(|&doubted| agrees(doubted)) {
            Some((at_ns, power_mw)) => {
                let verdict = match self.is_confirmed {
                    true => Verdict::BelievedBoth { at_ns, power_mw },
                    false => Verdict::Replaced { at_ns, power_mw },
                };
                self.believe(now, true);
                verdict
            }
            None => self.doubt(now, Some(now)),
        }
    }

    fn believe(&mut self, now: (i64, i64), is_confirmed: bool) {
        (self.trusted, self.is_confirmed, self.doubted, self.doubts) = (Some(now), is_confirmed, None, 0);
    }

    /// Readings that are impossible for long are not: what is known of the machine is wrong.
    fn doubt(&mut self, now: (i64, i64), doubted: Option<(i64, i64)>) -> Verdict {
        self.doubts = self.doubts.saturating_add(1);
        let since_ns = self.trusted.map_or(i64::MAX, |(at_ns, _)| now.0.saturating_sub(at_ns));
        if self.doubts >= DOUBTS_MAX && since_ns > DOUBT_MAX_NS && now.1 >= 0 {
            self.most_mw = if self.most_mw > 0 { self.most_mw.max(now.1.saturating_mul(2)) } else { 0 };
            self.believe(now, false);
            return Verdict::BelievedWithout;
        }
        self.doubted = doubted;
        Verdict::Doubted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// What becomes of readings one second apart, in watts.
    fn verdicts(watts: &[i64]) -> Vec<Verdict> {
        let mut power = Power::default();
        power.rate(10_000_000);
        (1..).zip(watts).map(|(second, watts)| power.judge(second * SECOND, watts * 1000, 0)).collect()
    }

    #[test]
    fn one_reading_that_its_neighbours_contradict_never_was() {
        use Verdict::{Believed, BelievedWithout, Doubted};
        for wrong in [65_535, 9_000, 1, -1] {
            let expected = [Believed, Believed, Doubted, BelievedWithout, Believed];
            assert_eq!(verdicts(&[200, 210, wrong, 205, 200]), expected, "{wrong}");
        }
        // Several in a row, and each another.
        let expected = [Believed, Doubted, Doubted, Doubted, BelievedWithout];
        assert_eq!(verdicts(&[200, 65_535, 9_000, 65_535, 200]), expected);
    }

    #[test]
    fn a_load_that_lasts_is_believed_from_its_first_reading_on() {
        let both = Verdict::BelievedBoth { at_ns: 3 * SECOND, power_mw: 2_000_000 };
        assert_eq!(verdicts(&[100, 100, 2_000, 2_100])[3], both);
        let both = Verdict::BelievedBoth { at_ns: 3 * SECOND, power_mw: 100_000 };
        assert_eq!(verdicts(&[2_000, 2_000, 100, 100])[3], both);
    }

    #[test]
    fn a_burst_that_gpus_explain_is_no_glitch() {
        let mut power = Power::default();
        power.judge(SECOND, 100_000, 50_000);
        assert_eq!(power.judge(2 * SECOND, 2_000_000, 1_500_000), Verdict::Believed);
        assert_eq!(power.judge(3 * SECOND, 100_000_000, 1_500_000), Verdict::Doubted);
    }

    #[test]
    fn a_first_reading_that_all_others_contradict_is_replaced() {
        let replaced = Verdict::Replaced { at_ns: 2 * SECOND, power_mw: 200_000 };
        assert_eq!(verdicts(&[9_000, 200, 210])[2], replaced);
    }

    #[test]
    fn a_machine_that_draws_more_than_any_is_believed_after_a_minute() {
        let readings: Vec<i64> = std::iter::once(5_000).chain([20_000; 70]).collect();
        let found = verdicts(&readings);
        assert_eq!(found[60], Verdict::Doubted);
        assert_eq!(found[61], Verdict::BelievedWithout);
        assert!(found[62..].iter().all(|verdict| *verdict == Verdict::Believed));
    }

    #[test]
    fn a_coarse_counter_may_pause_unless_power_contradicts() {
        let shown = |uj: i64, second: i64| Shown::new(uj, second * SECOND).unwrap();
        let mut counter = Counter::coarse();
        counter.note(Some(shown(7, 0)), false, 0);
        assert_eq!(counter.grown(shown(7, 1), 0).map(|grown| grown.delta_uj), Some(0));
        assert_eq!(counter.grown(shown(7, 1), 200_000_000), None);
        assert_eq!(Counter::default().grown(shown(7, 1), 0), None);
    }
}
