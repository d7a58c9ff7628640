//! What parts of the machine have counted and the meter of the whole has not shown yet.
//!
//! Processors, memory and GPUs *claim* what their own meters counted, split by who used it. The meter of the node
//! *pays* for that. One that lags shows the energy later: the claims wait for it, so nothing is paid twice. What it
//! has not shown after a minute it does not see: the claim is dropped, and its job is charged too little. The same
//! holds at once for what was used while its power was not read: paid later, it would be taken from others.

use std::collections::{BTreeMap, VecDeque};

use super::line::{Line, PARTS, Who};
use crate::apportion::apportion;

/// A meter lags by less than this.
const LAG_MAX_NS: i64 = 60_000_000_000;
/// Claims this old are paid before anything is kept for idle power, which may be assumed too high.
const PATIENT_NS: i64 = 20_000_000_000;
/// Windows kept separately; beyond that the newest are merged.
const WINDOWS_MAX: usize = 256;

type Lines = BTreeMap<Who, Line>;

#[derive(Debug, Default)]
pub(super) struct Carry {
    /// What is to be paid, by the end of the window that it is from: the oldest is paid first.
    claims: VecDeque<(i64, Lines)>,
    /// Shares of GPUs that were paid and turned out to be another's.
    returns: Lines,
    /// The same of jobs that are settled; the next claims make it good.
    debt_uj: u64,
}

/// What was paid in a window: Σ lines.
pub(super) struct Paid {
    pub lines: Lines,
    pub sum_uj: u64,
}

impl Carry {
    /// Takes in what was counted in the window that ends at `end_ns`. What is negative goes back.
    pub fn claim(&mut self, who: Who, claim: &Line, end_ns: i64) {
        let part = |sign: i64| {
            let cell = |uj: i64| (uj * sign).max(0);
            Line { active_uj: claim.active_uj.map(cell), idle_uj: claim.idle_uj.map(cell) }
        };
        let is_full = self.claims.len() >= WINDOWS_MAX;
        if self.claims.back().is_none_or(|&(from_ns, _)| from_ns != end_ns && !is_full) {
            self.claims.push_back((end_ns, Lines::new()));
        }
        let newest = self.claims.back_mut().map(|(_, lines)| lines);
        for (lines, part) in [(newest, part(1)), (Some(&mut self.returns), part(-1))] {
            if let Some(lines) = lines.filter(|_| part != Line::default()) {
                lines.entry(who).or_default().add(&part);
            }
        }
    }

    /// The oldest waiting claims, which go first.
    pub fn overdue_uj(&self, now_ns: i64) -> u64 {
        let overdue = self.claims.iter().take_while(|(from_ns, _)| now_ns - from_ns > PATIENT_NS);
        overdue.map(|(_, lines)| sum_uj(lines)).sum()
    }

    /// All that waits to be paid.
    pub fn claimed_uj(&self) -> u64 {
        self.claims.iter().map(|(_, lines)| sum_uj(lines)).sum()
    }

    /// Pays what is owed, `room_uj` at most. What goes back from one to another needs no room.
    pub fn pay(&mut self, room_uj: u64) -> Paid {
        let cancelled_uj = self.debt_uj.min(self.claimed_uj());
        self.debt_uj -= cancelled_uj;
        self.take_oldest(cancelled_uj);
        let returned_uj = sum_uj(&self.returns);
        let paid_uj = self.claimed_uj().min(room_uj.saturating_add(returned_uj));
        let returned_uj = returned_uj.min(paid_uj);
        let mut lines = self.take_oldest(paid_uj);
        for (who, back) in take(&mut self.returns, returned_uj) {
            lines.entry(who).or_default().take(&back);
        }
        Paid { lines, sum_uj: paid_uj - returned_uj }
    }

    fn take_oldest(&mut self, mut sum: u64) -> Lines {
        let mut taken = Lines::new();
        while let Some((_, oldest)) = self.claims.front_mut() {
            let part_uj = sum.min(sum_uj(oldest));
            add(&mut taken, take(oldest, part_uj));
            sum -= part_uj;
            if !oldest.is_empty() {
                break;
            }
            self.claims.pop_front();
        }
        taken
    }

    /// Drops what has waited for too long, and the oldest of what is beyond `most_uj`. Returns what is missing
    /// in each line.
    pub fn expire(&mut self, end_ns: i64, most_uj: u64) -> BTreeMap<Who, u64> {
        let mut dropped = self.take_oldest(self.claimed_uj().saturating_sub(most_uj));
        while self.claims.front().is_some_and(|&(from_ns, _)| end_ns - from_ns > LAG_MAX_NS) {
            add(&mut dropped, self.claims.pop_front().map(|(_, lines)| lines).unwrap_or_default());
        }
        let short = dropped.into_iter().map(|(who, line)| (who, line.total_uj() as u64));
        short.filter(|(_, uj)| *uj > 0).collect()
    }

    /// Whether the meter still has to show something of what a job used.
    pub fn owes(&self, who: Who) -> bool {
        self.claims.iter().any(|(_, lines)| lines.contains_key(&who))
    }

    /// The job is settled with what it was paid. What is missing in it, which is 0 for one that was owed nothing.
    pub fn close(&mut self, who: Who) -> u64 {
        let owed = self.claims.iter_mut().filter_map(|(_, lines)| lines.remove(&who));
        let owed_uj = owed.map(|line| line.total_uj() as u64).sum::<u64>();
        self.claims.retain(|(_, lines)| !lines.is_empty());
        let back_uj = self.returns.remove(&who).map_or(0, |line| line.total_uj() as u64);
        self.debt_uj += back_uj.saturating_sub(owed_uj);
        owed_uj.saturating_sub(back_uj)
    }
}

fn sum_uj(lines: &Lines) -> u64 {
    lines.values().map(|line| line.total_uj() as u64).sum()
}

fn add(sums: &mut Lines, lines: Lines) {
    for (who, line) in lines {
        sums.entry(who).or_default().add(&line);
    }
}

/// Subtracts an amount from lines that are not negative, in proportion.
fn take(lines: &mut Lines, sum: u64) -> Lines {
    let all_uj = sum_uj(lines);
    if sum >= all_uj {
        return std::mem::take(lines);
    }
    let cells = |line: &Line| line.active_uj.into_iter().chain(line.idle_uj);
    let weights: Vec<u64> = lines.values().flat_map(cells).map(|uj| uj as u64).collect();
    let mut parts = Vec::new();
    apportion(sum, &weights, &mut parts);
    let mut taken = Lines::new();
    for ((&who, line), parts) in lines.iter_mut().zip(parts.chunks_exact(2 * PARTS)) {
        let part = Line {
            active_uj: std::array::from_fn(|part| parts[part] as i64),
            idle_uj: std::array::from_fn(|part| parts[PARTS + part] as i64),
        };
        line.take(&part);
        taken.insert(who, part);
    }
    lines.retain(|_, line| *line != Line::default());
    taken
}
