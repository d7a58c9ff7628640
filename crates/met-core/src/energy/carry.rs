//! What parts of the machine have counted and the meter of the whole has not shown yet.
//!
//! Processors, memory and cards *claim* what their own meters counted, split by who used it. The meter of the node
//! *pays* for that. One that lags shows the energy later: the claims wait for it, so nothing is paid twice. What
//! it has not shown after a minute it does not see: the claim is dropped, and whoever made it is charged too little.

use std::collections::{BTreeMap, VecDeque};

use super::ledger::{Line, PARTS, Who};
use crate::apportion::apportion;

/// A meter lags by less than this.
const LAG_MAX_NS: i64 = 60_000_000_000;
/// Claims this old are paid before anything is kept for idle power, which may be assumed too high.
const PATIENT_NS: i64 = 20_000_000_000;
/// Windows that are told apart; of more the newest are one.
const AGES_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Carry {
    /// What is to be paid. Negative: a share of a card that was paid turned out to be somebody else's.
    owed: BTreeMap<Who, Line>,
    /// Paid too much to jobs that are settled; the next claims make it good.
    debt_uj: u64,
    /// What is owed by the end of the window that it is from, the oldest first.
    ages: VecDeque<(i64, u64)>,
}

/// What was paid in a window: Σ lines.
pub(super) struct Paid {
    pub lines: BTreeMap<Who, Line>,
    pub sum_uj: u64,
}

impl Carry {
    pub fn claim(&mut self, who: Who, claim: &Line) {
        self.owed.entry(who).or_default().add(claim);
    }

    /// Nothing waits to be paid.
    pub fn is_clear(&self) -> bool {
        self.positive_uj() == 0
    }

    /// Whether claims have waited so long that they go first.
    pub fn is_urgent(&self, now_ns: i64) -> bool {
        self.ages.front().is_some_and(|&(from_ns, _)| now_ns - from_ns > PATIENT_NS)
    }

    fn positive_uj(&self) -> u64 {
        self.owed.values().flat_map(cells).map(|uj| uj.max(0) as u64).sum()
    }

    /// Pays what is owed, `room_uj` at most, in the window that ends at `end_ns`. What goes back from one to another
    /// needs no room.
    pub fn pay(&mut self, room_uj: u64, end_ns: i64) -> Paid {
        let cancelled_uj = self.debt_uj.min(self.positive_uj());
        self.debt_uj -= cancelled_uj;
        self.take(cancelled_uj, true);
        let claimed_uj = self.positive_uj();
        let returned_uj = self.owed.values().flat_map(cells).map(|uj| (-uj).max(0) as u64).sum::<u64>();
        let paid_uj = claimed_uj.min(room_uj.saturating_add(returned_uj));
        let returned_uj = returned_uj.min(paid_uj);
        let mut lines = self.take(paid_uj, true);
        for (who, back) in self.take(returned_uj, false) {
            lines.entry(who).or_default().add(&back);
        }
        self.owed.retain(|_, line| *line != Line::default());
        self.age(claimed_uj, paid_uj, end_ns);
        Paid { lines, sum_uj: paid_uj - returned_uj }
    }

    /// Takes so much out of all positive cells, or brings so much back into all negative ones.
    fn take(&mut self, sum_uj: u64, positive: bool) -> BTreeMap<Who, Line> {
        let mut taken = BTreeMap::new();
        if sum_uj == 0 {
            return taken;
        }
        let sign = if positive { 1 } else { -1 };
        let weights: Vec<u64> =
            self.owed.values().flat_map(cells).map(|uj| (uj * sign).max(0) as u64).collect();
        let mut parts = Vec::new();
        apportion(sum_uj, &weights, &mut parts);
        for ((&who, owed), parts) in self.owed.iter_mut().zip(parts.chunks_exact(2 * PARTS)) {
            let cell = |index: usize| parts[index] as i64 * sign;
            let line = Line {
                active_uj: std::array::from_fn(cell),
                idle_uj: std::array::from_fn(|part| cell(PARTS + part)),
            };
            if line != Line::default() {
                owed.take(&line);
                taken.insert(who, line);
            }
        }
        taken
    }

    /// The oldest is paid first.
    fn age(&mut self, claimed_uj: u64, mut paid_uj: u64, end_ns: i64) {
        let known_uj: u64 = self.ages.iter().map(|&(_, uj)| uj).sum();
        let new_uj = claimed_uj.saturating_sub(known_uj);
        let is_full = self.ages.len() >= AGES_MAX;
        match self.ages.back_mut().filter(|_| is_full) {
            Some((_, newest_uj)) => *newest_uj += new_uj,
            None if new_uj > 0 => self.ages.push_back((end_ns, new_uj)),
            None => {}
        }
        // What was claimed may have been taken back meanwhile: that is the oldest, too.
        paid_uj += known_uj.saturating_sub(claimed_uj);
        while let Some((_, oldest_uj)) = self.ages.front_mut() {
            let part_uj = paid_uj.min(*oldest_uj);
            (*oldest_uj, paid_uj) = (*oldest_uj - part_uj, paid_uj - part_uj);
            if *oldest_uj > 0 {
                break;
            }
            self.ages.pop_front();
        }
    }

    /// Drops what has waited for too long. By who, what is missing in their lines.
    pub fn expire(&mut self, end_ns: i64) -> BTreeMap<Who, u64> {
        let mut old_uj = 0;
        while let Some(&(_, uj)) = self.ages.front().filter(|(from_ns, _)| end_ns - from_ns > LAG_MAX_NS) {
            old_uj += uj;
            self.ages.pop_front();
        }
        let dropped = self.take(old_uj.min(self.positive_uj()), true);
        dropped.into_iter().map(|(who, line)| (who, line.total_uj() as u64)).collect()
    }

    /// Whether the meter still has to show something of what a job used.
    pub fn owes(&self, who: Who) -> bool {
        self.owed.get(&who).is_some_and(|line| cells(line).any(|uj| uj > 0))
    }

    /// The job is settled with what it was paid. What is missing in it, which is 0 for one that was owed nothing.
    pub fn close(&mut self, who: Who) -> u64 {
        let Some(line) = self.owed.remove(&who) else { return 0 };
        let owed_uj: u64 = cells(&line).map(|uj| uj.max(0) as u64).sum();
        let back_uj: u64 = cells(&line).map(|uj| (-uj).max(0) as u64).sum();
        self.debt_uj += back_uj.saturating_sub(owed_uj);
        owed_uj.saturating_sub(back_uj)
    }
}

fn cells(line: &Line) -> impl Iterator<Item = i64> {
    line.active_uj.into_iter().chain(line.idle_uj)
}
