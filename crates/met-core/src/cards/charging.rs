//! Whose the energy of a card is: what each job claims of it at a look, and what it was charged.

use std::collections::BTreeMap;

use super::{Card, Cards, Presence};
use crate::MISSING;
use crate::attribute::JobMap;
use crate::card_ledger::{Activity, Claim, Line, Look};
use crate::gpu::{card, process};

/// A slice in the units in which parts are shared.
const SLICE: u64 = 5040;
/// What a card may seem to compute by chance: of what nobody is known to do, less is nobody's.
const NOISE_THOUSANDTHS: u64 = 50;

impl Cards {
    /// Splits the card's energy among those who use and hold it, or who use and hold its parts.
    pub(super) fn charge(&mut self, index: usize, map: &JobMap, at_ns: i64) {
        if self.known[index].parent.is_some() {
            return;
        }
        self.known[index].open_since_ns = self.known[index].ledger.open_since_ns();
        let mut claims = std::mem::take(&mut self.known[index].claims);
        claims.clear();
        let parts: Vec<usize> = (0..self.known.len())
            .filter(|&part| self.known[part].parent == Some(index) && self.known[part].seen_ns == at_ns)
            .collect();
        let mut unseen = false;
        if parts.is_empty() {
            self.claim(index, map, &mut claims);
            unseen = self.known[index].claim_unseen(&mut claims) && !self.adopt_unseen(index, &mut claims);
        }
        for part in parts {
            let first = claims.len();
            self.claim(part, map, &mut claims);
            share_slices(&mut claims[first..], self.known[part].cells[card::SLICES].max(1) as u64);
        }
        let cells = &self.known[index].cells;
        let read_ns = |column: usize| (cells[column] != MISSING).then(|| at_ns - cells[column]);
        let (pass_ns, use_ns) = (read_ns(card::PASS_AGE), read_ns(card::USE_AGE));
        let use_before_ns = self.known[index].ledger.use_read_ns();
        if use_ns.is_some_and(|use_ns| use_ns > use_before_ns) {
            self.doubt_idle(use_before_ns, at_ns, &mut claims);
        }
        let (joined, gap_ns) = (std::mem::take(&mut self.joined), self.gap_ns());
        let card = &mut self.known[index];
        card.ledger.look(&Look {
            at_ns,
            power_mw: card.cells[card::POWER],
            power_limit_mw: card.cells[card::POWER_LIMIT],
            utilization: card.cells[card::UTILIZATION],
            pass_ns,
            counter_uj: card.cells[card::ENERGY],
            use_ns,
            claims: &claims,
            unseen,
            slices: if card.has_parts { card.cells[card::SLICES].max(0) as u64 * SLICE } else { 0 },
            joined: &joined,
            gap_ns,
        });
        let sum = |of: fn(&Claim) -> u64| claims.iter().map(of).sum::<u64>();
        card.claimed = (sum(|claim| claim.active), sum(|claim| claim.held));
        card.claims = claims;
        self.joined = joined;
    }

    /// Of somebody who had a process since the reading before that is gone now, what the others did is not all.
    fn doubt_idle(&self, since_ns: i64, at_ns: i64, claims: &mut [Claim]) {
        for claim in claims.iter_mut().filter(|claim| claim.activity == Activity::Idle) {
            let mut own = self.subjects.values().filter(|known| known.slot == claim.who);
            if own.any(|known| known.seen_ns >= since_ns && known.seen_ns < at_ns) {
                claim.activity = Activity::IdleButEnded;
            }
        }
    }

    /// What a card computes while nobody has it open is of who alone holds it and computed there lately: of
    /// processes that come and go between two lists. Whether there is such a job.
    fn adopt_unseen(&self, index: usize, claims: &mut Vec<Claim>) -> bool {
        let mut holders = claims.iter().filter(|claim| claim.held > 0).filter_map(|claim| claim.who);
        let Some(holder) = holders.next().filter(|_| holders.next().is_none()) else { return false };
        let Some(unseen) = claims.iter().position(|claim| claim.who.is_none()) else { return false };
        if !self.used_ns.contains_key(&(holder, index)) {
            return false;
        }
        let active = claims.remove(unseen).active;
        put_active(claims, Some(holder), active);
        true
    }

    /// What jobs and others claim of one card or part.
    fn claim(&self, index: usize, map: &JobMap, claims: &mut Vec<Claim>) {
        let card = &self.known[index];
        // In the order of who: who is looked for later is found at once.
        let mut by_who: BTreeMap<Option<u32>, Claim> = BTreeMap::new();
        let put =
            |by_who: &mut BTreeMap<_, _>, who: Option<u32>, active: u64, held: u64, activity: Activity| {
                let claim: &mut Claim =
                    by_who.entry(who).or_insert(Claim { who, active: 0, held: 0, activity });
                claim.active += active;
                claim.held = claim.held.max(held);
                if activity == Activity::Active {
                    claim.activity = activity;
                }
            };
        for presence in &card.present {
            let open = presence.cells[process::OPEN] != 0;
            let is_idle = open && presence.cells[process::UTILIZATION] == 0;
            let activity = if is_idle { Activity::Idle } else { Activity::Active };
            put(&mut by_who, presence.slot, card.activity(presence), u64::from(open), activity);
        }
        let given: Vec<u32> =
            map.slots().iter().copied().filter(|&slot| self.given(slot, index).is_some()).collect();
        for &slot in &given {
            // A job inside another one holds for both.
            let inside = |&inner: &u32| inner != slot && self.is_within(Some(inner), slot);
            if self.outer.is_empty() || !given.iter().any(inside) {
                // Nothing is known of a job without a process here.
                let activity = by_who.get(&Some(slot)).map_or(Activity::Active, |claim| claim.activity);
                put(&mut by_who, Some(slot), 0, 1, activity);
            }
        }
        claims.extend(by_who.into_values());
    }

    /// Since when a job that is first seen with a card now is charged for it: it had it before it was seen.
    pub(super) fn paid_since_ns(&self, slot: u32, index: usize) -> i64 {
        let whole = self.known[index].parent.unwrap_or(index);
        let began_ns = self.began.get(&slot).copied().unwrap_or(i64::MAX);
        self.known[whole].open_since_ns.max(began_ns)
    }

    /// The job's part of the card's power at this moment.
    pub(super) fn power_share(&self, slot: u32, index: usize) -> i64 {
        let whole = self.known[index].parent.unwrap_or(index);
        let card = &self.known[whole];
        let power_mw = card.cells[card::POWER];
        if power_mw == MISSING {
            return MISSING;
        }
        // Most jobs have one claim at most.
        let claims = &card.claims;
        let alone = self.outer.is_empty() && !card.has_parts;
        let found = claims.binary_search_by_key(&Some(slot), |claim| claim.who).ok().filter(|_| alone);
        let mine = match (alone, found) {
            (true, found) => found.map_or(&[][..], |at| &claims[at..=at]),
            (false, _) => claims,
        };
        let own = |of: fn(&Claim) -> u64| {
            mine.iter().filter(|claim| self.is_within(claim.who, slot)).map(of).sum::<u64>() as f64
        };
        let (active, held) = (card.claimed.0 as f64, card.claimed.1.max(1) as f64);
        let power = power_mw as f64;
        let idle = if active > 0.0 { card.ledger.idle_mw().unwrap_or(0) as f64 } else { power }.min(power);
        let busy = if active > 0.0 { (power - idle) * own(|claim| claim.active) / active } else { 0.0 };
        let slices =
            if card.has_parts { (card.cells[card::SLICES].max(1) * SLICE as i64) as f64 } else { held };
        (busy + idle * own(|claim| claim.held) / slices.max(held)).round() as i64
    }

    pub(super) fn is_first_present(&self, slot: u32, index: usize) -> bool {
        let whole = |index: usize| self.known[index].parent.unwrap_or(index);
        let mut present =
            self.of_slot(slot).filter(|(other, usage)| usage.present && whole(*other) == whole(index));
        present.next().is_some_and(|(first, _)| first == index)
    }

    /// What a job is charged for a card is reported once, with the first of what it has of it: the card, a part.
    pub(super) fn owns_line(&self, slot: u32, index: usize) -> bool {
        let whole = |index: usize| self.known[index].parent.unwrap_or(index);
        self.of_slot(slot)
            .find(|(other, _)| whole(*other) == whole(index))
            .is_some_and(|(first, _)| first == index)
    }

    /// What the job, and the jobs inside it, were charged of a card, or of the card this is a part of.
    pub(super) fn line(&self, slot: u32, index: usize) -> Line {
        let whole = self.known[index].parent.unwrap_or(index);
        let mut line = match self.uses.get(&(slot, index)).and_then(|usage| usage.line) {
            Some(line) => line,
            None => self.known[whole].ledger.line(Some(slot)),
        };
        let inside = self.outer.keys().filter(|&&inner| inner != slot && self.is_within(Some(inner), slot));
        for &inner in inside {
            line.add(&self.known[whole].ledger.line(Some(inner)));
            line.add(&self.inherited.get(&(inner, whole)).copied().unwrap_or_default());
        }
        line.add(&self.inherited.get(&(slot, whole)).copied().unwrap_or_default());
        line
    }

    /// Who was charged what on all cards together up to now, provisionally in windows that are open.
    pub fn charged(&self) -> BTreeMap<Option<u32>, (u64, u64)> {
        let mut sums = BTreeMap::<Option<u32>, (u64, u64)>::new();
        for (who, line) in self.known.iter().flat_map(|card| card.ledger.charged()) {
            let (active_uj, idle_uj) = sums.entry(who).or_default();
            *active_uj += line.active_uj;
            *idle_uj += line.idle_uj;
        }
        sums
    }

    /// What a job was charged up to now, active and idle, without the jobs inside it: final if it leaves now.
    pub fn own_uj(&self, slot: u32) -> (u64, u64) {
        let lines = self.known.iter().map(|card| card.ledger.line(Some(slot)));
        lines.fold((0, 0), |sum, line| (sum.0 + line.active_uj, sum.1 + line.idle_uj))
    }
}

impl Card {
    /// The card computes, and not by those of whom it is known: the energy is not that of who only holds it.
    /// Says whether nobody at all is known who could have.
    fn claim_unseen(&self, claims: &mut Vec<Claim>) -> bool {
        let Ok(busy) = u64::try_from(self.cells[card::UTILIZATION]) else { return false };
        let active: u64 = claims.iter().map(|claim| claim.active).sum();
        let open = || self.present.iter().filter(|presence| presence.cells[process::OPEN] != 0);
        let all_known = || open().all(|presence| presence.cells[process::UTILIZATION] != MISSING);
        if self.hides_others() && all_known() {
            if busy > active + NOISE_THOUSANDTHS {
                put_active(claims, None, busy - active);
            }
        } else if busy > 0 && active == 0 {
            if open().next().is_none() {
                put_active(claims, None, busy);
                return true;
            }
            open().for_each(|presence| put_active(claims, presence.slot, 1));
        }
        false
    }

    /// How much a process computed, compared with the others on the card.
    fn activity(&self, presence: &Presence) -> u64 {
        let open = presence.cells[process::OPEN] != 0;
        let known = self.present.iter().map(|other| other.cells[process::UTILIZATION]);
        let known = known.filter(|&utilization| utilization != MISSING);
        let (sum, count) =
            known.fold((0i64, 0i64), |(sum, count), used| (sum.saturating_add(used), count + 1));
        let is_unknown = |presence: &&Presence| {
            presence.cells[process::OPEN] != 0 && presence.cells[process::UTILIZATION] == MISSING
        };
        match presence.cells[process::UTILIZATION] {
            // Here it does not depend on when they came: what others do not tell of is theirs.
            MISSING
                if count > 0 && open && self.hides_others() && self.cells[card::UTILIZATION] != MISSING =>
            {
                let rest = self.cells[card::UTILIZATION].saturating_sub(sum);
                let unknown = self.present.iter().filter(is_unknown).count().max(1) as i64;
                return u64::try_from(rest / unknown).unwrap_or(0);
            }
            MISSING if count > 0 && open && presence.young => {
                // Newer than the last dear reading: until the next it is taken to be like the others.
                return u64::try_from(sum / count).unwrap_or(0);
            }
            MISSING if count > 0 => return 0,
            MISSING => {}
            used => return u64::try_from(used).unwrap_or(0),
        }
        // Nobody tells them apart: if the card computes, or does not say, they share what it does.
        u64::from(open && self.cells[card::UTILIZATION] != 0)
    }
}

fn put_active(claims: &mut Vec<Claim>, who: Option<u32>, active: u64) {
    match claims.iter_mut().find(|claim| claim.who == who) {
        Some(claim) => claim.active += active,
        None => {
            let at = claims.partition_point(|claim| claim.who < who);
            claims.insert(at, Claim { who, active, held: 0, activity: Activity::Active });
        }
    }
}

/// A part counts by its slices, however many processes are on it: who computes on it and who holds it divide
/// them.
fn share_slices(claims: &mut [Claim], slices: u64) {
    let active: u64 = claims.iter().map(|claim| claim.active).sum();
    let holders = claims.iter().filter(|claim| claim.held > 0).count() as u64;
    for claim in claims {
        if claim.active > 0 {
            let share = u128::from(claim.active) * u128::from(slices * SLICE) / u128::from(active);
            claim.active = u64::try_from(share).unwrap_or(u64::MAX).max(1);
        }
        claim.held = if claim.held > 0 { slices * SLICE / holders } else { 0 };
    }
}
