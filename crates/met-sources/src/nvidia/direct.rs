//! Reads power and use in the thread that ticks: a quarter of what it costs to hand the question to another one
//! and wake it up. For whoever is looked after: a driver that does not answer keeps the thread, and somebody
//! else must go on in its place.

use std::sync::Arc;

use met_host::clock;

use super::figures::SlowCard;
use super::library::Lender;
use super::reading::{ASK_EVERY_NS, Answer, Asker, Unknown, read_all};

pub(super) struct Direct {
    lender: Lender,
    unknown: Unknown,
}

impl Direct {
    pub fn new(lender: Lender) -> Direct {
        Direct { lender, unknown: Unknown::new() }
    }

    /// Asks every card, if there can be something new, but those that keep the thread of the dear figures.
    pub fn read(&mut self, now_ns: i64, figures: &[SlowCard], answer: &mut Answer) {
        if answer.at_ns != 0 && now_ns - answer.at_ns < ASK_EVERY_NS {
            return;
        }
        let loaded = self.lender.lent();
        read_all(loaded.as_ref(), &mut Others(figures), &mut self.unknown, answer);
        answer.at_ns = clock::boottime_ns();
    }
}

/// Cards that are known to be silent are left to the thread that they keep.
struct Others<'a>(&'a [SlowCard]);

impl Asker for Others<'_> {
    fn enter(&mut self, card: usize, _: &Arc<str>, _: i64) -> bool {
        !self.0.get(card).is_some_and(|figures| figures.silent)
    }

    fn leave(&mut self, _: &Arc<str>) -> bool {
        true
    }
}
