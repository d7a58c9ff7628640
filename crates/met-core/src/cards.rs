//! The cards of a machine and what each job did with them: who uses them, who holds them, whose energy
//! it was.

mod charging;
mod usage;
mod views;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use self::usage::{Seen, Use};
pub use self::views::CardNow;
use crate::attribute::JobMap;
use crate::card_ledger::{CardLedger, Claim, Line};
use crate::gpu::{card, card::label, process};
use crate::holding::{Holding, Named};
use crate::idle_power::{IdlePower, IdleRules};
use crate::job::GpuUse;
use crate::{Batch, MISSING, Subject, rate};

/// The rows of one source: its two batches and the labels of its cards.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub cards: &'a Batch,
    pub processes: &'a Batch,
    pub labels: &'a [Vec<String>],
}

#[derive(Default)]
pub struct Cards {
    known: Vec<Card>,
    by_uuid: HashMap<String, usize>,
    holdings: HashMap<u32, Vec<Holding>>,
    uses: BTreeMap<(u32, usize), Use>,
    /// Processes that were on a card in the last minutes: the dear figures may name one that has ended.
    subjects: HashMap<Subject, Known>,
    /// Processes of jobs that left: their last figures may still be told, and are nobody's any more.
    ended: HashMap<Subject, i64>,
    /// When the last look was.
    looked_ns: i64,
    /// Jobs that came since the last look, and when.
    joined: Vec<(u32, i64)>,
    /// When each job began.
    began: HashMap<u32, i64>,
    /// A longer time between two looks is a gap.
    gap_ns: Option<i64>,
    /// The job around each job that is inside another one.
    outer: HashMap<u32, u32>,
    /// What jobs that left were charged, for the job around them: slot and whole card.
    inherited: HashMap<(u32, usize), Line>,
    /// Cards that processes of a job have had open.
    opened: BTreeSet<(u32, usize)>,
    /// When a job was last seen to compute on a card, in the last minutes.
    used_ns: BTreeMap<(u32, usize), i64>,
    /// CUDA counts cards by speed where they are not all the same.
    models_differ: bool,
    idle_rules: IdleRules,
    /// What was known of a card before this process began, until it is met.
    idle_before: HashMap<String, IdlePower>,
}

struct Card {
    labels: Vec<String>,
    parent: Option<usize>,
    ledger: CardLedger,
    /// The energy counter of a card that does not tell its power, and when that was read.
    energy_before: Option<(i64, i64)>,
    seen_ns: i64,
    /// The same as unix time.
    seen_unix_ns: i64,
    /// Since when it was not settled, when it was looked at, who is charged what.
    open_since_ns: i64,
    /// Who claimed what of it at the last look, and the sums of what is active and held.
    claims: Vec<Claim>,
    claimed: (u64, u64),
    cells: Vec<i64>,
    /// The processes on it at the last look.
    present: Vec<Presence>,
    has_parts: bool,
}

/// A process that is or was on a card.
#[derive(Clone, Copy, Debug)]
struct Known {
    slot: Option<u32>,
    first_ns: i64,
    seen_ns: i64,
}

#[derive(Clone, Copy, Debug)]
struct Presence {
    subject: Subject,
    slot: Option<u32>,
    /// It may be newer than the last dear reading.
    young: bool,
    cells: [i64; 7],
}

/// Since when a job holds a card, and since when it does nothing with it. Unix nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuUseSince {
    pub held_ns: i64,
    pub idle_ns: Option<i64>,
}

/// Longer than any pause between two dear readings.
const REMEMBERED_NS: i64 = 180_000_000_000;
/// Of more cards and parts than this those that are gone are forgotten.
const KNOWN_USUAL: usize = 64;
/// Use is read more often: a process of whom nothing is known for longer is one that does not tell.
const YOUNG_NS: i64 = 30_000_000_000;
/// A longer span between two looks is a gap, not a time in which a level held.
const GAP_NS: i64 = 60_000_000_000;

impl Cards {
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What a job was given. Nothing: nobody says, so it holds what it has open.
    pub fn hold(&mut self, slot: u32, holdings: Vec<Holding>) {
        if holdings.is_empty() {
            self.holdings.remove(&slot);
        } else {
            self.holdings.insert(slot, holdings);
        }
    }

    /// Looks this far apart do not belong together; by default a minute.
    pub fn set_gap(&mut self, gap_ns: i64) {
        self.gap_ns = Some(gap_ns);
    }

    fn gap_ns(&self) -> i64 {
        self.gap_ns.unwrap_or(GAP_NS)
    }

    /// A job begins: what cards used before is not its.
    pub fn join(&mut self, slot: u32, at_ns: i64) {
        self.joined.push((slot, at_ns));
        self.began.insert(slot, at_ns);
    }

    /// Nobody looks until the next job begins.
    pub fn pause(&mut self) {
        self.known.iter_mut().for_each(|card| card.ledger.pause());
        self.uses.values_mut().for_each(|usage| usage.last_ns = None);
    }

    /// Whether a job has to do with a card.
    pub fn has_any(&self, slot: u32) -> bool {
        self.of_slot(slot).next().is_some()
    }

    fn of_slot(&self, slot: u32) -> impl Iterator<Item = (usize, &Use)> {
        self.uses.range((slot, 0)..=(slot, usize::MAX)).map(|(&(_, index), usage)| (index, usage))
    }

    /// What the configuration says about idle power.
    pub fn set_idle_rules(&mut self, rules: IdleRules) {
        self.idle_rules = rules;
    }

    /// What an earlier process learned about the idle power of a card.
    pub fn recall_idle(&mut self, uuid: String, learned_mw: Option<i64>, lowest_mw: Option<i64>) {
        self.idle_before.insert(uuid, IdlePower::recalled(learned_mw, lowest_mw));
    }

    /// Takes in what was read at `at_ns`; `unix_offset_ns` makes it unix time.
    pub fn look(&mut self, rows: &[Rows<'_>], map: &JobMap, at_ns: i64, unix_offset_ns: i64) {
        self.looked_ns = at_ns;
        for card in &mut self.known {
            card.present.clear();
        }
        for &slot in map.slots() {
            match map.outer(slot) {
                Some(outer) => drop(self.outer.insert(slot, outer)),
                None => drop(self.outer.remove(&slot)),
            }
        }
        for rows in rows {
            self.meet(rows, map, at_ns);
        }
        self.subjects.retain(|_, known| at_ns - known.seen_ns < REMEMBERED_NS);
        self.ended.retain(|_, seen_ns| at_ns - *seen_ns < REMEMBERED_NS);
        self.used_ns.retain(|_, seen_ns| at_ns - *seen_ns < REMEMBERED_NS);
        for index in 0..self.known.len() {
            // A card may be cut into parts, and made whole again, at any time.
            let is_part = |part: &Card| part.parent == Some(index) && part.seen_ns == at_ns;
            self.known[index].has_parts = self.known.iter().any(is_part);
        }
        for index in 0..self.known.len() {
            if self.known[index].seen_ns == at_ns {
                self.known[index].seen_unix_ns = at_ns + unix_offset_ns;
                self.charge(index, map, at_ns);
                self.follow(index, map, at_ns, unix_offset_ns);
            } else {
                // A card that is lost is a gap in the figures of who holds it.
                self.known[index].ledger.pause();
                for (_, usage) in self.uses.iter_mut().filter(|((_, card), _)| *card == index) {
                    usage.lost_it |= usage.present;
                    (usage.present, usage.last_ns) = (false, None);
                }
            }
        }
        self.joined.clear();
    }

    fn meet(&mut self, rows: &Rows<'_>, map: &JobMap, at_ns: i64) {
        let mut positions = vec![None; rows.labels.len()];
        for (row, cells) in rows.cards.rows() {
            let Some(labels) = rows.labels.get(row.part as usize) else { continue };
            let index = self.card(labels, at_ns);
            if card::is_lost(cells) {
                let users = self.uses.iter_mut().filter(|((_, used), _)| *used == index);
                let had_it = users.filter(|(_, usage)| usage.present || usage.lost_it);
                had_it.for_each(|(_, usage)| usage.count_faults(cells));
                continue;
            }
            positions[row.part as usize] = Some(index);
            let card = &mut self.known[index];
            card.seen_ns = at_ns;
            card.cells.clear();
            card.cells.extend_from_slice(cells);
            card.derive_power(at_ns);
        }
        for (row, cells) in rows.processes.rows() {
            let Some(Some(index)) = positions.get(row.part as usize).copied() else { continue };
            let owner = self.known_process(row.owner);
            let slot = match map.owner(owner) {
                Some(slot) => Some(slot),
                None if self.ended.contains_key(&owner) => continue,
                None => self.subjects.get(&owner).and_then(|known| known.slot),
            };
            let known = self.subjects.entry(owner).or_insert(Known { slot, first_ns: at_ns, seen_ns: at_ns });
            (known.slot, known.seen_ns) = (slot, at_ns);
            let young = at_ns - known.first_ns <= YOUNG_NS;
            let Ok(cells): Result<[i64; 7], _> = cells.try_into() else { continue };
            if let Some(slot) = slot.filter(|_| cells[process::UTILIZATION] > 0) {
                self.used_ns.insert((slot, index), at_ns);
            }
            if cells[process::OPEN] == 1 {
                let jobs = std::iter::successors(slot, |slot| self.outer.get(slot).copied());
                self.opened.extend(jobs.map(|slot| (slot, index)));
            }
            self.known[index].present.push(Presence { subject: owner, slot, young, cells });
        }
    }

    /// A driver tells of processes for a while after they ended; then nobody knows when they began. They are
    /// who had their number last.
    fn known_process(&self, told: Subject) -> Subject {
        let Subject::Task { pid, start_ticks: 0 } = told else { return told };
        let is_it = |known: &&Subject| matches!(known, Subject::Task { pid: known, start_ticks } if *known == pid && *start_ticks != 0);
        let last =
            self.subjects.iter().filter(|(known, _)| is_it(known)).max_by_key(|(_, known)| known.seen_ns);
        let ended = || self.ended.keys().find(is_it);
        last.map(|(known, _)| *known).or_else(|| ended().copied()).unwrap_or(told)
    }

    /// The place of a part that is gone for long and that nobody had: parts may be made anew without end.
    fn free_place(&self, at_ns: i64) -> Option<usize> {
        let is_free = |&index: &usize| {
            let card = &self.known[index];
            let is_gone = card.parent.is_some() && at_ns.saturating_sub(card.seen_ns) > REMEMBERED_NS;
            let mut used = self.uses.keys().chain(&self.opened);
            is_gone && !used.any(|&(_, used)| used == index)
        };
        (0..self.known.len()).filter(|_| self.known.len() >= KNOWN_USUAL).find(is_free)
    }

    fn card(&mut self, labels: &[String], at_ns: i64) -> usize {
        let uuid = &labels[label::UUID];
        if let Some(&index) = self.by_uuid.get(uuid) {
            // Cards are numbered anew when one of them is lost or found, and parts when others are made.
            if self.known[index].labels != labels {
                labels.clone_into(&mut self.known[index].labels);
            }
            return index;
        }
        let parent = self.by_uuid.get(&labels[label::PARENT]).copied();
        let index = self.free_place(at_ns).unwrap_or(self.known.len());
        self.by_uuid.insert(uuid.clone(), index);
        let of_cuda =
            |labels: &[String]| labels[label::VENDOR] == "nvidia" && labels[label::PARENT].is_empty();
        self.models_differ |= self.known.iter().any(|card| {
            of_cuda(&card.labels) && of_cuda(labels) && card.labels[label::NAME] != labels[label::NAME]
        });
        let mut ledger = CardLedger::default();
        ledger.idle = self.idle_before.remove(uuid).unwrap_or_default();
        ledger.idle.configured_mw = self.idle_rules.of(uuid, &labels[label::NAME]);
        let card = Card {
            labels: labels.to_vec(),
            parent,
            ledger,
            energy_before: None,
            seen_ns: i64::MIN,
            seen_unix_ns: 0,
            open_since_ns: i64::MAX,
            claims: Vec::new(),
            claimed: (0, 0),
            cells: Vec::new(),
            present: Vec::new(),
            has_parts: false,
        };
        match self.known.get_mut(index) {
            Some(gone) => {
                self.by_uuid.remove(&gone.labels[label::UUID]);
                *gone = card;
            }
            None => self.known.push(card),
        }
        index
    }

    /// Whether the job was given the card, and what says so.
    fn given(&self, slot: u32, index: usize) -> Option<&'static str> {
        // What is cut into parts is held by its parts.
        let holdings = self.holdings.get(&slot).filter(|_| !self.known[index].has_parts)?;
        holdings.iter().find_map(|holding| self.given_by(holding, slot, index))
    }

    fn given_by(&self, holding: &Holding, slot: u32, index: usize) -> Option<&'static str> {
        let card = &self.known[index];
        let named = || holding.includes(card.named(), self.numbered_vendor());
        if !holding.is_doubtful() || !self.models_differ || card.labels[label::VENDOR] != "nvidia" {
            return named().then_some(holding.source);
        }
        // Which card a number means is known when the job has opened it.
        let mut opened = self.opened.range((slot, 0)..=(slot, usize::MAX));
        if opened.any(|&(_, opened)| self.known[opened].labels[label::VENDOR] == "nvidia") {
            return self.opened.contains(&(slot, index)).then_some("CUDA_VISIBLE_DEVICES (as opened)");
        }
        named().then_some("CUDA_VISIBLE_DEVICES (order unknown)")
    }

    /// Whose cards a scheduler numbers, which does not say: those that compute before those that draw.
    fn numbered_vendor(&self) -> &'static str {
        let is_there = |vendor: &&str| self.known.iter().any(|card| card.labels[label::VENDOR] == *vendor);
        ["nvidia", "amd", "intel"].into_iter().find(is_there).unwrap_or("nvidia")
    }

    /// The same, for it or for a job inside it.
    fn held_by(&self, slot: u32, index: usize) -> Option<&'static str> {
        let inside =
            || self.outer.keys().filter(|&&inner| inner != slot && self.is_within(Some(inner), slot));
        self.given(slot, index).or_else(|| inside().find_map(|&inner| self.given(inner, index)))
    }

    /// Whether `inner` is the job or one inside it.
    fn is_within(&self, inner: Option<u32>, slot: u32) -> bool {
        let mut around = std::iter::successors(inner, |slot| self.outer.get(slot).copied());
        around.any(|around| around == slot)
    }

    fn follow(&mut self, index: usize, map: &JobMap, at_ns: i64, unix_offset_ns: i64) {
        let cells = self.cells_of(index).into_owned();
        for &slot in map.slots() {
            let Some((held_by, seen)) = self.seen(slot, index, at_ns, unix_offset_ns) else {
                if let Some(usage) = self.uses.get_mut(&(slot, index)) {
                    (usage.present, usage.lost_it, usage.last_ns) = (false, false, None);
                }
                continue;
            };
            let (power, gap_ns) = (self.power_share(slot, index), self.gap_ns());
            let paid_since_ns = self.paid_since_ns(slot, index);
            let usage = self.uses.entry((slot, index)).or_insert_with(|| Use {
                paid_early_ns: (at_ns - paid_since_ns).max(0),
                since: GpuUseSince { held_ns: seen.unix_ns, idle_ns: None },
                memory_peak: MISSING,
                clock_max: MISSING,
                temperature_max: MISSING,
                fault_last: MISSING,
                ..Use::default()
            });
            (usage.held_by, usage.now_power) = (held_by, power);
            usage.see(&seen, &cells, gap_ns);
        }
    }

    /// What is read of a card, and of a part also what only the whole card can say.
    fn cells_of(&self, index: usize) -> Cow<'_, [i64]> {
        const OF_THE_WHOLE: [usize; 5] =
            [card::POWER, card::TEMPERATURE, card::CLOCK, card::CLOCK_MEMORY, card::THROTTLE];
        let card = &self.known[index];
        let Some(parent) = card.parent else { return Cow::Borrowed(&card.cells) };
        let mut cells = card.cells.clone();
        let whole = &self.known[parent];
        for column in OF_THE_WHOLE.into_iter().filter(|_| whole.seen_ns == card.seen_ns) {
            if cells[column] == MISSING {
                cells[column] = whole.cells[column];
            }
        }
        Cow::Owned(cells)
    }

    /// What a job, with the jobs inside it, has of a card; nothing if it neither holds nor uses it.
    fn seen(&self, slot: u32, index: usize, at_ns: i64, unix_offset_ns: i64) -> Option<(&'static str, Seen)> {
        let card = &self.known[index];
        let held_by = self.held_by(slot, index);
        let own = || card.present.iter().filter(|presence| self.is_within(presence.slot, slot));
        let open = own().any(|presence| presence.cells[process::OPEN] != 0);
        if held_by.is_none() && !open {
            return None;
        }
        let sum = |column: usize| {
            let known = own().map(|presence| presence.cells[column]).filter(|&cell| cell != MISSING);
            known.reduce(i64::saturating_add)
        };
        let holds_unknown = |presence: &Presence| {
            presence.cells[process::OPEN] != 0 && presence.cells[process::MEMORY] == MISSING
        };
        let knows_who = self.knows_who(slot, index, at_ns);
        let utilization = match sum(process::UTILIZATION) {
            Some(utilization) => utilization.min(1000),
            None if !open && !knows_who => MISSING,
            None if !open => 0,
            // Who is alone on a card computes what the card computes.
            None if card.present.iter().all(|presence| self.is_within(presence.slot, slot)) => {
                card.cells[card::UTILIZATION]
            }
            None => MISSING,
        };
        let seen = Seen {
            at_ns,
            unix_ns: at_ns + unix_offset_ns,
            utilization,
            encoder: sum(process::UTILIZATION_ENCODER).unwrap_or(MISSING),
            decoder: sum(process::UTILIZATION_DECODER).unwrap_or(MISSING),
            copy: sum(process::UTILIZATION_COPY).unwrap_or(MISSING),
            memory: match sum(process::MEMORY) {
                // What some of them hold is not what all of them do.
                Some(_) if own().any(holds_unknown) => MISSING,
                Some(memory) => memory,
                None if open || !knows_who => MISSING,
                None => 0,
            },
            processes: own().filter(|presence| presence.cells[process::OPEN] != 0).count() as i64,
        };
        Some((held_by.unwrap_or("open"), seen))
    }

    /// Whether a job of which nobody is listed on the card is known to have nobody there.
    fn knows_who(&self, slot: u32, index: usize, at_ns: i64) -> bool {
        let card = &self.known[index];
        // A driver that does not say who is on the card does not say that nobody is.
        let is_listed = card.labels[label::VENDOR] != "nvidia"
            || card.parent.is_some()
            || card.cells[card::PROCESSES] != MISSING;
        // Nor does a list from before the job began, nor one of nobody while the card computes.
        let age_ns = card.cells[card::LIST_AGE];
        let is_old =
            age_ns != MISSING && self.began.get(&slot).is_some_and(|&began_ns| at_ns - age_ns < began_ns);
        let computes = card.cells[card::UTILIZATION] != MISSING && card.cells[card::UTILIZATION] > 0;
        let is_explained = card.present.iter().any(|presence| presence.cells[process::OPEN] != 0);
        let is_behind = age_ns != MISSING && computes && !is_explained;
        is_listed && !is_old && !is_behind
    }

    /// Ends a job; what it was charged is final.
    pub fn leave(&mut self, slot: u32) -> Vec<GpuUse> {
        for index in 0..self.known.len() {
            if self.known[index].parent.is_some() {
                continue;
            }
            let line = self.known[index].ledger.leave(slot);
            if let Some(&outer) = self.outer.get(&slot) {
                let mut left = self.inherited.get(&(slot, index)).copied().unwrap_or_default();
                left.add(&line);
                self.inherited.entry((outer, index)).or_default().add(&left);
            }
            for (&(owner, card), usage) in &mut self.uses {
                if owner == slot && (card == index || self.known[card].parent == Some(index)) {
                    usage.line = Some(line);
                }
            }
        }
        let report = self.uses_of(slot);
        self.forget(slot);
        self.uses.retain(|(owner, _), _| *owner != slot);
        self.holdings.remove(&slot);
        for (&subject, known) in self.subjects.iter().filter(|(_, known)| known.slot == Some(slot)) {
            self.ended.insert(subject, known.seen_ns);
        }
        self.subjects.retain(|_, known| known.slot != Some(slot));
        report
    }

    /// The jobs inside one that left are inside the one around it.
    fn forget(&mut self, slot: u32) {
        let around = self.outer.remove(&slot);
        for outer in self.outer.values_mut().filter(|outer| **outer == slot) {
            *outer = around.unwrap_or(slot);
        }
        self.outer.retain(|_, outer| *outer != slot);
        self.inherited.retain(|(owner, _), _| *owner != slot);
        self.joined.retain(|(owner, _)| *owner != slot);
        self.began.remove(&slot);
        self.opened.retain(|(owner, _)| *owner != slot);
        self.used_ns.retain(|&(user, _), _| user != slot);
    }
}

impl Card {
    /// Of these only the processes of jobs are looked at, and not each tells what it does.
    fn hides_others(&self) -> bool {
        self.labels[label::VENDOR] != "nvidia"
    }

    /// Some cards count their energy and do not tell their power.
    fn derive_power(&mut self, at_ns: i64) {
        let energy_uj = self.cells[card::ENERGY];
        if self.cells[card::POWER] != MISSING || energy_uj == MISSING || self.cells[card::PASS_AGE] != MISSING
        {
            return;
        }
        if let Some((before_ns, before_uj)) = self.energy_before.replace((at_ns, energy_uj)) {
            let power_mw = rate::power_mw(before_uj, energy_uj, at_ns - before_ns);
            // What no card draws is a wrong reading of its counter.
            let most_mw = self.ledger.most_mw().max(self.cells[card::POWER_LIMIT]);
            let power_mw = power_mw.filter(|power_mw| *power_mw <= most_mw);
            self.cells[card::POWER] = power_mw.unwrap_or(MISSING);
        }
    }

    fn named(&self) -> Named<'_> {
        Named {
            index: &self.labels[label::INDEX],
            uuid: &self.labels[label::UUID],
            vendor: &self.labels[label::VENDOR],
            parent: &self.labels[label::PARENT],
            device: &self.labels[label::DEVICE],
            mig: self.labels.get(label::MIG).map_or("", String::as_str),
        }
    }
}

#[cfg(test)]
#[path = "cards_tests.rs"]
mod tests;
