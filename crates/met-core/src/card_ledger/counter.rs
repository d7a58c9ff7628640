//! What of a card's energy counter can be believed.

use crate::MISSING;
use crate::rate::{self, Step};

// What is honest must never be refused: a job would pay by power what the card has counted. Samples of power are
// a poor judge of that, since a burst that none of them meets, or that all of them meet, makes their mean wrong by
// any factor. So a reading is doubted only if no card can do what it says. It fell. It grew by more than twice
// what the card may draw (its limit, or the most it was seen to draw), over a time longer by what a counter may be
// late. Or it did not grow at all, which is no reading but the one of before. What is doubted costs nothing if it
// was honest: the window is charged by power, and the next reading is of both windows.

/// A counter is updated in steps, and may be late by so much.
const LATE_NS: i64 = 5_000_000_000;
/// Limits are exceeded for moments, and may have been others before.
const LIMIT_FACTOR: i64 = 2;
/// What a card of which no limit is known may draw: more than any does.
const UNLIMITED_MW: i64 = 2_000_000;
/// So many readings in a row, over so long a time, are right, and the one that they contradict was not.
const DOUBTS_MAX: u32 = 3;
const DOUBT_MAX_NS: i64 = 60_000_000_000;

/// What the counter showed, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
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
pub(super) struct Grown {
    pub delta_uj: u64,
    pub charged_uj: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counter {
    /// The last reading that was believed.
    trusted: Option<Anchor>,
    /// The last one, if it was not: the counter may go on from either.
    doubted: Option<Anchor>,
    doubts: u32,
    /// The highest limit, and the most that was drawn.
    limit_mw: i64,
    drawn_mw: i64,
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
    pub fn learn(&mut self, power_mw: i64, limit_mw: i64) {
        self.limit_mw = self.limit_mw.max(limit_mw);
        self.drawn_mw = self.drawn_mw.max(power_mw);
    }

    /// Nobody looks: what is read later says nothing of the time until then.
    pub fn forget(&mut self) {
        (self.trusted, self.doubted, self.doubts) = (None, None, 0);
    }

    /// The most that the card can draw. One sample of power may be as wrong as one of the counter.
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
        let since_trusted = self.trusted.and_then(|anchor| self.since(anchor, shown));
        let since_doubted = self.doubted.and_then(|anchor| self.since(anchor, shown));
        let (Some(old), Some(new)) = (since_trusted, since_doubted) else {
            return since_trusted.or(since_doubted);
        };
        let drawn_uj = |grown: &Grown| grown.charged_uj.saturating_add(integral_uj);
        let age_ns = self.trusted.map_or(1, |anchor| anchor.age_ns(shown).max(1));
        let late_uj = i128::from(drawn_uj(&old)) * i128::from(LATE_NS) / i128::from(age_ns);
        let slack_uj = u64::try_from(late_uj).unwrap_or(u64::MAX).max(drawn_uj(&old) / 4);
        let lacks_much = old.delta_uj.saturating_add(slack_uj) < drawn_uj(&old);
        let is_nearer = new.delta_uj.abs_diff(drawn_uj(&new)) < old.delta_uj.abs_diff(drawn_uj(&old));
        // It stood still, and what it did not count is lost: it goes on from where it stood.
        Some(if lacks_much && is_nearer { new } else { old })
    }

    fn since(&self, anchor: Anchor, shown: Shown) -> Option<Grown> {
        let Step::Delta(delta) = rate::step(anchor.shown.uj, shown.uj) else { return None };
        let time_ns = anchor.age_ns(shown).saturating_add(LATE_NS);
        let most_uj = i128::from(self.most_mw()) * i128::from(time_ns) / 1_000_000;
        let is_believed = delta > 0 && i128::from(delta) <= most_uj;
        let delta_uj = u64::try_from(delta).ok().filter(|_| is_believed)?;
        Some(Grown { delta_uj, charged_uj: anchor.charged_uj })
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
