//! The cards of a machine and what each job did with them: who uses them, who holds them, whose energy
//! it was.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::attribute::JobMap;
use crate::card_ledger::{CardLedger, Claim, Line, Look};
use crate::gpu::{self, card, card::label, process};
use crate::holding::{Holding, Named};
use crate::idle_power::{IdlePower, IdleRules};
use crate::job::{GpuUse, QualityKind};
use crate::job_table::*;
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
    holdings: HashMap<u32, Holding>,
    uses: BTreeMap<(u32, usize), Use>,
    /// Processes that were on a card in the last minutes: the dear figures may name one that has ended.
    subjects: HashMap<Subject, Known>,
    /// Processes of jobs that left: their last figures may still be told, and are nobody's any more.
    ended: HashMap<Subject, i64>,
    /// When the last look was.
    looked_ns: i64,
    /// Jobs that came since the last look, and when.
    joined: Vec<(u32, i64)>,
    /// A longer time between two looks is a gap.
    gap_ns: Option<i64>,
    /// The job around each job that is inside another one.
    outer: HashMap<u32, u32>,
    /// What jobs that left were charged, for the job around them: slot and whole card.
    inherited: HashMap<(u32, usize), Line>,
    /// Cards that processes of a job have had open.
    opened: BTreeSet<(u32, usize)>,
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

/// A card as it is now, for `met gpus`.
#[derive(Clone, Debug)]
pub struct CardNow<'a> {
    pub labels: &'a [String],
    pub cells: &'a [i64],
    pub processes: Vec<(Subject, Option<u32>, i64, i64)>,
    pub holders: Vec<(u32, &'a GpuUseSince)>,
}

/// Since when a job holds a card, and since when it does nothing with it. Unix nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuUseSince {
    pub held_ns: i64,
    pub idle_ns: Option<i64>,
}

/// What one job did with one card so far.
#[derive(Default)]
struct Use {
    held_by: &'static str,
    since: GpuUseSince,
    /// Since when nothing was computed, for however short a time.
    quiet_since_ns: Option<i64>,
    last_ns: Option<i64>,
    held_ns: i64,
    used_ns: i64,
    utilization: Mean,
    card_utilization: Mean,
    encoder: Mean,
    decoder: Mean,
    copy: Mean,
    memory: Mean,
    memory_peak: i64,
    power: Mean,
    clock: Mean,
    clock_max: i64,
    temperature_max: i64,
    throttle_bits: i64,
    throttled_ns: Option<i64>,
    pcie_received: Mean,
    pcie_sent: Mean,
    ecc_corrected: Growth,
    ecc_uncorrected: Growth,
    faults: Growth,
    fault_last: i64,
    processes: i64,
    /// What the job has of the card now.
    now_utilization: i64,
    now_memory: i64,
    now_power: i64,
    present: bool,
    line: Option<Line>,
}

#[derive(Clone, Copy, Default)]
struct Mean {
    weighted: f64,
    covered_ns: i64,
}

impl Mean {
    fn add(&mut self, cell: i64, span_ns: i64) {
        if cell != MISSING && span_ns > 0 {
            self.weighted += cell as f64 * span_ns as f64;
            self.covered_ns += span_ns;
        }
    }

    fn get(self) -> Option<f64> {
        (self.covered_ns > 0).then(|| self.weighted / self.covered_ns as f64)
    }
}

/// How far a counter of the card rose while the job had it.
#[derive(Clone, Copy, Default)]
struct Growth {
    first: Option<i64>,
    last: i64,
}

impl Growth {
    fn add(&mut self, cell: i64) {
        if cell != MISSING {
            let first = *self.first.get_or_insert(cell);
            // The driver was loaded anew: what it counted before is over.
            if cell < self.last {
                self.first = Some(first - self.last);
            }
            self.last = cell;
        }
    }

    fn get(self) -> Option<i64> {
        Some(self.last - self.first?)
    }
}

/// Longer than any pause between two dear readings.
const REMEMBERED_NS: i64 = 180_000_000_000;
/// Of more cards and parts than this those that are gone are forgotten.
const KNOWN_USUAL: usize = 64;
/// Use is read more often: a process of whom nothing is known for longer is one that does not tell.
const YOUNG_NS: i64 = 30_000_000_000;
/// A longer span between two looks is a gap, not a time in which a level held.
const GAP_NS: i64 = 60_000_000_000;
/// A job that has not computed for so long idles.
const IDLE_AFTER_NS: i64 = 10_000_000_000;

impl Cards {
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What a job was given. `None`: nobody says, so it holds what it has open.
    pub fn hold(&mut self, slot: u32, holding: Option<Holding>) {
        match holding {
            Some(holding) => drop(self.holdings.insert(slot, holding)),
            None => drop(self.holdings.remove(&slot)),
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
        let card = &self.known[index];
        // What is cut into parts is held by its parts.
        let holding = self.holdings.get(&slot).filter(|_| !card.has_parts)?;
        let named = || holding.includes(card.named(), self.numbered_vendor());
        if !holding.is_doubtful() || !self.models_differ || card.labels[label::VENDOR] != "nvidia" {
            return named().then_some(holding.source);
        }
        // Which card a number means is known when the job has opened it.
        if self.opened.range((slot, 0)..=(slot, usize::MAX)).next().is_some() {
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

    /// Splits the card's energy among those who use and hold it, or who use and hold its parts.
    fn charge(&mut self, index: usize, map: &JobMap, at_ns: i64) {
        if self.known[index].parent.is_some() {
            return;
        }
        let mut claims = std::mem::take(&mut self.known[index].claims);
        claims.clear();
        let parts: Vec<usize> = (0..self.known.len())
            .filter(|&part| self.known[part].parent == Some(index) && self.known[part].seen_ns == at_ns)
            .collect();
        let mut unseen = false;
        if parts.is_empty() {
            self.claim(index, map, &mut claims);
            unseen = self.known[index].claim_unseen(&mut claims);
        }
        for part in parts {
            let first = claims.len();
            self.claim(part, map, &mut claims);
            share_slices(&mut claims[first..], self.known[part].cells[card::SLICES].max(1) as u64);
        }
        let (joined, gap_ns) = (std::mem::take(&mut self.joined), self.gap_ns());
        let card = &mut self.known[index];
        let read_ns = |column: usize| (card.cells[column] != MISSING).then(|| at_ns - card.cells[column]);
        let (pass_ns, use_ns) = (read_ns(card::PASS_AGE), read_ns(card::USE_AGE));
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

    /// What jobs and others claim of one card or part.
    fn claim(&self, index: usize, map: &JobMap, claims: &mut Vec<Claim>) {
        let card = &self.known[index];
        // In the order of who: who is looked for later is found at once.
        let mut by_who: BTreeMap<Option<u32>, Claim> = BTreeMap::new();
        let mut put = |who: Option<u32>, active: u64, held: u64| {
            let claim = by_who.entry(who).or_insert(Claim { who, active: 0, held: 0 });
            claim.active += active;
            claim.held = claim.held.max(held);
        };
        for presence in &card.present {
            let open = presence.cells[process::OPEN] != 0;
            put(presence.slot, card.activity(presence), if open { 1 } else { 0 });
        }
        let given: Vec<u32> =
            map.slots().iter().copied().filter(|&slot| self.given(slot, index).is_some()).collect();
        for &slot in &given {
            // A job inside another one holds for both.
            let inside = |&inner: &u32| inner != slot && self.is_within(Some(inner), slot);
            if self.outer.is_empty() || !given.iter().any(inside) {
                put(Some(slot), 0, 1);
            }
        }
        claims.extend(by_who.into_values());
    }

    fn follow(&mut self, index: usize, map: &JobMap, at_ns: i64, unix_offset_ns: i64) {
        let cells = self.cells_of(index).into_owned();
        for &slot in map.slots() {
            let Some((held_by, seen)) = self.seen(slot, index, at_ns, unix_offset_ns) else {
                if let Some(usage) = self.uses.get_mut(&(slot, index)) {
                    (usage.present, usage.last_ns) = (false, None);
                }
                continue;
            };
            let (power, gap_ns) = (self.power_share(slot, index), self.gap_ns());
            let usage = self.uses.entry((slot, index)).or_insert_with(|| Use {
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
        // A driver that does not say who is on the card does not say that nobody is.
        let knows_who = card.labels[label::VENDOR] != "nvidia"
            || card.parent.is_some()
            || card.cells[card::PROCESSES] != MISSING;
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
            memory: sum(process::MEMORY).unwrap_or(if open || !knows_who { MISSING } else { 0 }),
            processes: own().filter(|presence| presence.cells[process::OPEN] != 0).count() as i64,
        };
        Some((held_by.unwrap_or("open"), seen))
    }

    /// The job's part of the card's power at this moment.
    fn power_share(&self, slot: u32, index: usize) -> i64 {
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

    /// Writes the job's sums over its cards into its row. A job without a card has none.
    pub fn fill(&self, slot: u32, cells: &mut [i64]) {
        let mut energy: Option<Line> = None;
        let (mut cards, mut idle, mut power) = (0, 0, MISSING);
        let (mut utilization, mut memory, mut temperature) = (MISSING, MISSING, MISSING);
        let add = |sum: &mut i64, cell: i64| {
            if cell != MISSING {
                *sum = if *sum == MISSING { cell } else { sum.saturating_add(cell) };
            }
        };
        let mut any = false;
        for (index, usage) in self.of_slot(slot) {
            any = true;
            if self.owns_line(slot, index) {
                let line = self.line(slot, index);
                let sum = energy.get_or_insert_default();
                sum.active_uj += line.active_uj;
                sum.idle_uj += line.idle_uj;
            }
            if usage.present {
                cards += 1;
                idle += i64::from(usage.since.idle_ns.is_some());
                add(&mut utilization, usage.now_utilization);
                add(&mut memory, usage.now_memory);
                // Parts of one card have the job's part of it each.
                if self.is_first_present(slot, index) {
                    add(&mut power, usage.now_power);
                }
                temperature = temperature.max(self.cells_of(index)[card::TEMPERATURE]);
            }
        }
        if !any {
            return;
        }
        (cells[GPUS], cells[GPUS_IDLE]) = (cards, idle);
        (cells[GPU_UTILIZATION], cells[GPU_MEMORY]) = (utilization, memory);
        (cells[GPU_POWER], cells[GPU_TEMPERATURE]) = (power, temperature);
        if let Some(energy) = energy {
            cells[GPU_ENERGY] = energy.total_uj() as i64;
            cells[GPU_ENERGY_IDLE] = energy.idle_uj as i64;
        }
    }

    fn is_first_present(&self, slot: u32, index: usize) -> bool {
        let whole = |index: usize| self.known[index].parent.unwrap_or(index);
        let mut present =
            self.of_slot(slot).filter(|(other, usage)| usage.present && whole(*other) == whole(index));
        present.next().is_some_and(|(first, _)| first == index)
    }

    /// What a job is charged of a card is told once, with the first of what it has of it: the card, a part.
    fn owns_line(&self, slot: u32, index: usize) -> bool {
        let whole = |index: usize| self.known[index].parent.unwrap_or(index);
        self.of_slot(slot)
            .find(|(other, _)| whole(*other) == whole(index))
            .is_some_and(|(first, _)| first == index)
    }

    /// What the job, and the jobs inside it, were charged of a card, or of the card this is a part of.
    fn line(&self, slot: u32, index: usize) -> Line {
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

    /// What the job did with each card so far, in the order of the cards.
    pub fn uses_of(&self, slot: u32) -> Vec<GpuUse> {
        self.of_slot(slot).map(|(index, _)| self.report(slot, index)).collect()
    }

    fn report(&self, slot: u32, index: usize) -> GpuUse {
        let card = &self.known[index];
        let usage = &self.uses[&(slot, index)];
        // The parts of one card that a job holds are charged together, to the first of them.
        let line = match self.owns_line(slot, index) {
            true => self.line(slot, index),
            false => Line::default(),
        };
        let idle = self.known[card.parent.unwrap_or(index)].ledger.idle.get();
        let known = |cell: i64| (cell != MISSING).then_some(cell);
        let ratio = |mean: Mean| mean.get().map(|mean| mean / 1000.0);
        let counted = line.counted_uj > 0 && line.counted_uj / 9 >= line.total_uj() / 10;
        GpuUse {
            uuid: card.labels[label::UUID].clone(),
            index: card.labels[label::INDEX].clone(),
            name: card.labels[label::NAME].clone(),
            vendor: card.labels[label::VENDOR].clone(),
            parent: Some(card.labels[label::PARENT].clone()).filter(|parent| !parent.is_empty()),
            held_by: usage.held_by.to_owned(),
            held_since_ns: Some(usage.since.held_ns),
            idle_since_ns: usage.since.idle_ns,
            lost_since_ns: (card.seen_ns < self.looked_ns).then_some(card.seen_unix_ns),
            held_ns: usage.held_ns,
            used_ns: usage.used_ns,
            utilization: ratio(usage.utilization),
            card_utilization: ratio(usage.card_utilization),
            encoder: ratio(usage.encoder),
            decoder: ratio(usage.decoder),
            copy: ratio(usage.copy),
            memory_mean_bytes: usage.memory.get(),
            memory_peak_bytes: known(usage.memory_peak),
            memory_total_bytes: card.cells.get(card::MEMORY_TOTAL).copied().and_then(known),
            energy_active_uj: line.active_uj as i64,
            energy_idle_uj: line.idle_uj as i64,
            energy_kind: (line.total_uj() > 0).then_some(match (line.shared, counted) {
                _ if line.estimated => QualityKind::Estimated,
                (true, _) => QualityKind::Attributed,
                (false, true) => QualityKind::Measured,
                (false, false) => QualityKind::Sampled,
            }),
            energy_source: (line.total_uj() > 0).then(|| energy_source(&line)),
            idle_power_mw: idle.map(|(idle_mw, _)| idle_mw),
            idle_power_source: idle.map(|(_, source)| source.name().to_owned()),
            card_power_mw: usage.power.get(),
            temperature_max_mc: known(usage.temperature_max),
            clock_mean_mhz: usage.clock.get(),
            clock_max_mhz: known(usage.clock_max),
            throttled: gpu::throttle_words(usage.throttle_bits).into_iter().map(str::to_owned).collect(),
            throttled_ns: usage.throttled_ns,
            ecc_corrected: usage.ecc_corrected.get(),
            ecc_uncorrected: usage.ecc_uncorrected.get(),
            faults: usage.faults.get(),
            fault_last: known(usage.fault_last),
            pcie_received_rate: usage.pcie_received.get(),
            pcie_sent_rate: usage.pcie_sent.get(),
            processes: usage.processes,
        }
    }

    /// Who was charged what on all cards together, in windows that are closed.
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
        self.opened.retain(|(owner, _)| *owner != slot);
    }

    /// What is known of the idle power of each whole card, to be told again after a restart: its uuid, what
    /// was learned, and the lowest power seen.
    pub fn idle_powers(&self) -> impl Iterator<Item = (&[String], Option<i64>, Option<i64>)> {
        self.known.iter().filter(|card| card.parent.is_none()).map(|card| {
            let IdlePower { learned_mw, lowest_mw, .. } = card.ledger.idle;
            (card.labels.as_slice(), learned_mw, lowest_mw)
        })
    }

    /// The cards that somebody holds or uses, as read at the last look.
    pub fn in_use(&self) -> impl Iterator<Item = (&[String], &[i64])> {
        let latest_ns = self.looked_ns;
        self.known.iter().enumerate().filter_map(move |(index, card)| {
            let is_used = || self.uses.iter().any(|((_, used), usage)| *used == index && usage.present);
            (card.seen_ns == latest_ns && is_used())
                .then_some((card.labels.as_slice(), card.cells.as_slice()))
        })
    }

    /// The cards as last looked at.
    pub fn now(&self) -> impl Iterator<Item = CardNow<'_>> {
        let latest_ns = self.looked_ns;
        self.known.iter().enumerate().filter(move |(_, card)| card.seen_ns == latest_ns).map(
            |(index, card)| {
                let process = |presence: &Presence| {
                    let cells = &presence.cells;
                    (presence.subject, presence.slot, cells[process::MEMORY], cells[process::UTILIZATION])
                };
                let open = card.present.iter().filter(|presence| presence.cells[process::OPEN] != 0);
                let holders = self.uses.iter().filter(|((_, card), usage)| *card == index && usage.present);
                CardNow {
                    labels: &card.labels,
                    cells: &card.cells,
                    processes: open.map(process).collect(),
                    holders: holders.map(|((slot, _), usage)| (*slot, &usage.since)).collect(),
                }
            },
        )
    }
}

fn put_active(claims: &mut Vec<Claim>, who: Option<u32>, active: u64) {
    match claims.iter_mut().find(|claim| claim.who == who) {
        Some(claim) => claim.active += active,
        None => {
            let at = claims.partition_point(|claim| claim.who < who);
            claims.insert(at, Claim { who, active, held: 0 });
        }
    }
}

/// A slice in the units in which parts are shared.
const SLICE: u64 = 5040;

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

fn energy_source(line: &Line) -> String {
    match line.counted_uj {
        0 => "integral of power".to_owned(),
        counted if counted == line.total_uj() => "energy counter".to_owned(),
        counted => {
            let percent = (counted as f64 / line.total_uj() as f64 * 100.0).floor();
            format!("energy counter ({percent}%), integral of power")
        }
    }
}

/// What a card may seem to compute by chance: of what nobody is known to do, less is nobody's.
const NOISE_THOUSANDTHS: u64 = 50;

impl Card {
    /// The card computes, and not by those of whom it is known: the energy is not that of who only holds it.
    /// Says whether nobody at all is known who could have.
    fn claim_unseen(&self, claims: &mut Vec<Claim>) -> bool {
        let Ok(busy) = u64::try_from(self.cells[card::UTILIZATION]) else { return false };
        let active: u64 = claims.iter().map(|claim| claim.active).sum();
        let open = || self.present.iter().filter(|presence| presence.cells[process::OPEN] != 0);
        let all_known = || open().all(|presence| presence.cells[process::UTILIZATION] != MISSING);
        // Of these only the processes of jobs are looked at.
        let hides_others = self.labels[label::VENDOR] != "nvidia";
        if hides_others && all_known() {
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

    /// Some cards count their energy and do not tell their power.
    fn derive_power(&mut self, at_ns: i64) {
        let energy_uj = self.cells[card::ENERGY];
        if self.cells[card::POWER] != MISSING || energy_uj == MISSING || self.cells[card::PASS_AGE] != MISSING
        {
            return;
        }
        if let Some((before_ns, before_uj)) = self.energy_before.replace((at_ns, energy_uj)) {
            let power_mw = rate::power_mw(before_uj, energy_uj, at_ns - before_ns);
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
        }
    }

    /// How much a process computed, compared with the others on the card.
    fn activity(&self, presence: &Presence) -> u64 {
        let open = presence.cells[process::OPEN] != 0;
        let known = self.present.iter().map(|other| other.cells[process::UTILIZATION]);
        let known = known.filter(|&utilization| utilization != MISSING);
        let (sum, count) =
            known.fold((0i64, 0i64), |(sum, count), used| (sum.saturating_add(used), count + 1));
        match presence.cells[process::UTILIZATION] {
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

/// What one job has of one card at a look.
struct Seen {
    at_ns: i64,
    unix_ns: i64,
    utilization: i64,
    encoder: i64,
    decoder: i64,
    copy: i64,
    memory: i64,
    processes: i64,
}

impl Use {
    fn see(&mut self, seen: &Seen, cells: &[i64], gap_ns: i64) {
        let span_ns = self.last_ns.map_or(0, |last_ns| seen.at_ns - last_ns);
        let span_ns = if span_ns > gap_ns { 0 } else { span_ns };
        self.held_ns += span_ns;
        let works = seen.utilization > 0;
        self.used_ns += if works { span_ns } else { 0 };
        self.quiet_since_ns = match self.quiet_since_ns {
            _ if works || seen.utilization == MISSING => None,
            Some(since_ns) => Some(since_ns),
            None => Some(seen.unix_ns),
        };
        // A pause between two batches is not idleness, unless there was never anything but that.
        let lasts = |since_ns: &i64| self.used_ns == 0 || seen.unix_ns - since_ns >= IDLE_AFTER_NS;
        self.since.idle_ns = self.quiet_since_ns.filter(lasts);
        for (mean, cell) in [
            (&mut self.utilization, seen.utilization),
            (&mut self.card_utilization, cells[card::UTILIZATION]),
            (&mut self.encoder, seen.encoder),
            (&mut self.decoder, seen.decoder),
            (&mut self.copy, seen.copy),
            (&mut self.memory, seen.memory),
            (&mut self.power, cells[card::POWER]),
            (&mut self.clock, cells[card::CLOCK]),
            (&mut self.pcie_received, cells[card::PCIE_RECEIVED]),
            (&mut self.pcie_sent, cells[card::PCIE_SENT]),
        ] {
            mean.add(cell, span_ns);
        }
        self.memory_peak = self.memory_peak.max(seen.memory);
        self.clock_max = self.clock_max.max(cells[card::CLOCK]);
        self.temperature_max = self.temperature_max.max(cells[card::TEMPERATURE]);
        let bits = cells[card::THROTTLE];
        if bits != MISSING {
            let throttled = !gpu::throttle_words(bits).is_empty();
            self.throttle_bits |= if throttled { bits } else { 0 };
            *self.throttled_ns.get_or_insert(0) += if throttled { span_ns } else { 0 };
        }
        self.ecc_corrected.add(cells[card::ECC_CORRECTED]);
        self.ecc_uncorrected.add(cells[card::ECC_UNCORRECTED]);
        self.faults.add(cells[card::FAULTS]);
        // The number of an error of before is not this job's.
        if self.faults.get().is_some_and(|faults| faults > 0) {
            self.fault_last = cells[card::FAULT_LAST];
        }
        self.processes = self.processes.max(seen.processes);
        (self.now_utilization, self.now_memory) = (seen.utilization, seen.memory);
        (self.present, self.last_ns) = (true, Some(seen.at_ns));
    }
}

#[cfg(test)]
#[path = "cards_tests.rs"]
mod tests;
