//! The cards of a machine and what each job did with them: who uses them, who holds them, whose energy
//! it was.

use std::collections::{BTreeMap, HashMap};

use crate::attribute::JobMap;
use crate::card_ledger::{CardLedger, Claim, Line, Look};
use crate::gpu::{self, card, card::label, process};
use crate::holding::{Holding, Named};
use crate::job::{GpuUse, QualityKind};
use crate::job_table::*;
use crate::{Batch, MISSING, Subject};

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
    uses: HashMap<(u32, usize), Use>,
    /// Processes that were on a card in the last minutes: the dear figures may name one that has ended.
    subjects: HashMap<Subject, (Option<u32>, i64)>,
    /// Processes of jobs that left: their last figures may still be told, and are nobody's any more.
    ended: HashMap<Subject, i64>,
    claims: Vec<Claim>,
}

struct Card {
    labels: Vec<String>,
    parent: Option<usize>,
    ledger: CardLedger,
    seen_ns: i64,
    cells: Vec<i64>,
    /// The processes on it at the last look.
    present: Vec<Presence>,
    has_parts: bool,
}

#[derive(Clone, Copy, Debug)]
struct Presence {
    subject: Subject,
    slot: Option<u32>,
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
    throttled_ns: i64,
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
/// A longer span between two looks is a gap, not a time in which a level held.
const GAP_NS: i64 = 60_000_000_000;

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

    /// Takes in what was read at `at_ns`; `unix_offset_ns` makes it unix time.
    pub fn look(&mut self, rows: &[Rows<'_>], map: &JobMap, at_ns: i64, unix_offset_ns: i64) {
        for card in &mut self.known {
            card.present.clear();
        }
        for rows in rows {
            self.meet(rows, map, at_ns);
        }
        self.subjects.retain(|_, (_, seen_ns)| at_ns - *seen_ns < REMEMBERED_NS);
        self.ended.retain(|_, seen_ns| at_ns - *seen_ns < REMEMBERED_NS);
        for index in 0..self.known.len() {
            if self.known[index].seen_ns == at_ns {
                self.charge(index, map, at_ns);
                self.follow(index, map, at_ns, unix_offset_ns);
            } else {
                // A card that is lost is a gap in the figures of who holds it.
                for (_, usage) in self.uses.iter_mut().filter(|((_, card), _)| *card == index) {
                    (usage.present, usage.last_ns) = (false, None);
                }
            }
        }
    }

    fn meet(&mut self, rows: &Rows<'_>, map: &JobMap, at_ns: i64) {
        let mut positions = vec![None; rows.labels.len()];
        for (row, cells) in rows.cards.rows() {
            let Some(labels) = rows.labels.get(row.part as usize) else { continue };
            let index = self.card(labels);
            positions[row.part as usize] = Some(index);
            let card = &mut self.known[index];
            card.seen_ns = at_ns;
            card.cells.clear();
            card.cells.extend_from_slice(cells);
        }
        for (row, cells) in rows.processes.rows() {
            let Some(Some(index)) = positions.get(row.part as usize).copied() else { continue };
            let slot = match map.owner(row.owner) {
                Some(slot) => Some(slot),
                None if self.ended.contains_key(&row.owner) => continue,
                None => self.subjects.get(&row.owner).and_then(|&(slot, _)| slot),
            };
            self.subjects.insert(row.owner, (slot, at_ns));
            let Ok(cells) = cells.try_into() else { continue };
            self.known[index].present.push(Presence { subject: row.owner, slot, cells });
        }
    }

    fn card(&mut self, labels: &[String]) -> usize {
        let uuid = &labels[label::UUID];
        if let Some(&index) = self.by_uuid.get(uuid) {
            return index;
        }
        let parent = self.by_uuid.get(&labels[label::PARENT]).copied();
        if let Some(parent) = parent {
            self.known[parent].has_parts = true;
        }
        let index = self.known.len();
        self.by_uuid.insert(uuid.clone(), index);
        self.known.push(Card {
            labels: labels.to_vec(),
            parent,
            ledger: CardLedger::default(),
            seen_ns: i64::MIN,
            cells: Vec::new(),
            present: Vec::new(),
            has_parts: false,
        });
        index
    }

    fn holds(&self, slot: u32, card: &Card) -> bool {
        // What is cut into parts is held by its parts.
        !card.has_parts && self.holdings.get(&slot).is_some_and(|holding| holding.includes(card.named()))
    }

    /// Splits the card's energy among those who use and hold it, or who use and hold its parts.
    fn charge(&mut self, index: usize, map: &JobMap, at_ns: i64) {
        if self.known[index].parent.is_some() {
            return;
        }
        let mut claims = std::mem::take(&mut self.claims);
        claims.clear();
        let parts: Vec<usize> = (0..self.known.len())
            .filter(|&part| self.known[part].parent == Some(index) && self.known[part].seen_ns == at_ns)
            .collect();
        if parts.is_empty() {
            self.claim(index, map, 1, 1, &mut claims);
        }
        for part in parts {
            let slices = self.known[part].cells[card::SLICES].max(1) as u64;
            self.claim(part, map, slices, slices, &mut claims);
        }
        let card = &mut self.known[index];
        let age_ns = card.cells[card::PASS_AGE];
        card.ledger.look(&Look {
            at_ns,
            power_mw: card.cells[card::POWER],
            utilization: card.cells[card::UTILIZATION],
            pass_ns: (age_ns != MISSING).then(|| at_ns - age_ns),
            counter_uj: card.cells[card::ENERGY],
            claims: &claims,
            slices: if card.has_parts { card.cells[card::SLICES].max(0) as u64 } else { 0 },
        });
        self.claims = claims;
    }

    /// What jobs and others claim of one card or part.
    fn claim(&self, index: usize, map: &JobMap, scale: u64, held: u64, claims: &mut Vec<Claim>) {
        let card = &self.known[index];
        let first = claims.len();
        let mut put = |who: Option<u32>, active: u64, held: u64| match claims[first..]
            .iter_mut()
            .find(|claim| claim.who == who)
        {
            Some(claim) => {
                claim.active += active;
                claim.held = claim.held.max(held);
            }
            None => claims.push(Claim { who, active, held }),
        };
        for presence in &card.present {
            let open = presence.cells[process::OPEN] != 0;
            put(presence.slot, card.activity(presence).saturating_mul(scale), if open { 1 } else { 0 });
        }
        for &slot in map.slots() {
            if self.holds(slot, card) {
                put(Some(slot), 0, 1);
            }
        }
        // Several holders of one part share it.
        let holders = claims[first..].iter().filter(|claim| claim.held > 0).count() as u64;
        if scale > 1 || held > 1 {
            let (each, mut rest) = (held / holders.max(1), held % holders.max(1));
            for claim in claims[first..].iter_mut().filter(|claim| claim.held > 0) {
                claim.held = each + u64::from(rest > 0);
                rest = rest.saturating_sub(1);
            }
        }
    }

    fn follow(&mut self, index: usize, map: &JobMap, at_ns: i64, unix_offset_ns: i64) {
        for &slot in map.slots() {
            let card = &self.known[index];
            let held = self.holds(slot, card);
            let own = || card.present.iter().filter(|presence| presence.slot == Some(slot));
            let open = own().any(|presence| presence.cells[process::OPEN] != 0);
            if !held && !open {
                if let Some(usage) = self.uses.get_mut(&(slot, index)) {
                    (usage.present, usage.last_ns) = (false, None);
                }
                continue;
            }
            let sum = |column: usize| {
                let known = own().map(|presence| presence.cells[column]).filter(|&cell| cell != MISSING);
                known.reduce(i64::saturating_add)
            };
            let utilization = match sum(process::UTILIZATION) {
                Some(utilization) => utilization.min(1000),
                None if !open => 0,
                // Who is alone on a card computes what the card computes.
                None if card.present.iter().all(|presence| presence.slot == Some(slot)) => {
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
                memory: sum(process::MEMORY).unwrap_or(if open { MISSING } else { 0 }),
                processes: own().filter(|presence| presence.cells[process::OPEN] != 0).count() as i64,
            };
            let held_by = match self.holdings.get(&slot).filter(|_| held) {
                Some(holding) => holding.source,
                None => "open",
            };
            let power = self.power_share(slot, index);
            let usage = self.uses.entry((slot, index)).or_insert_with(|| Use {
                held_by,
                since: GpuUseSince { held_ns: seen.unix_ns, idle_ns: None },
                memory_peak: MISSING,
                clock_max: MISSING,
                temperature_max: MISSING,
                fault_last: MISSING,
                ..Use::default()
            });
            usage.now_power = power;
            usage.see(&seen, &self.known[index].cells);
        }
    }

    /// The job's part of the card's power at this moment.
    fn power_share(&self, slot: u32, index: usize) -> i64 {
        let whole = self.known[index].parent.unwrap_or(index);
        let card = &self.known[whole];
        let power_mw = card.cells[card::POWER];
        if power_mw == MISSING {
            return MISSING;
        }
        let mut claims = Vec::new();
        // The claims of the last look at this very card.
        claims.extend(self.claims.iter().copied());
        let total = |of: fn(&Claim) -> u64| claims.iter().map(of).sum::<u64>() as f64;
        let own = |of: fn(&Claim) -> u64| {
            claims.iter().filter(|claim| claim.who == Some(slot)).map(of).sum::<u64>() as f64
        };
        let (active, held) = (total(|claim| claim.active), total(|claim| claim.held).max(1.0));
        let power = power_mw as f64;
        let idle = if active > 0.0 { card.ledger.idle_mw().unwrap_or(0) as f64 } else { power }.min(power);
        let busy = if active > 0.0 { (power - idle) * own(|claim| claim.active) / active } else { 0.0 };
        let slices = if card.has_parts { card.cells[card::SLICES].max(1) as f64 } else { held };
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
        for (&(_, index), usage) in self.uses.iter().filter(|((owner, _), _)| *owner == slot) {
            any = true;
            if self.known[index].parent.is_none() || self.is_first_part(slot, index) {
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
                if self.known[index].parent.is_none() || self.is_first_part(slot, index) {
                    add(&mut power, usage.now_power);
                }
                temperature = temperature.max(self.known[index].cells[card::TEMPERATURE]);
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

    fn is_first_part(&self, slot: u32, index: usize) -> bool {
        let parent = self.known[index].parent;
        let mut parts =
            self.uses.keys().filter(|(owner, part)| *owner == slot && self.known[*part].parent == parent);
        parts.all(|&(_, part)| part >= index)
    }

    fn line(&self, slot: u32, index: usize) -> Line {
        let whole = self.known[index].parent.unwrap_or(index);
        match self.uses.get(&(slot, index)).and_then(|usage| usage.line) {
            Some(line) => line,
            None => self.known[whole].ledger.line(Some(slot)),
        }
    }

    /// What the job did with each card so far, in the order of the cards.
    pub fn uses_of(&self, slot: u32) -> Vec<GpuUse> {
        let mut indices: Vec<usize> =
            self.uses.keys().filter(|(owner, _)| *owner == slot).map(|&(_, index)| index).collect();
        indices.sort_unstable();
        indices.into_iter().map(|index| self.report(slot, index)).collect()
    }

    fn report(&self, slot: u32, index: usize) -> GpuUse {
        let card = &self.known[index];
        let usage = &self.uses[&(slot, index)];
        // The parts of one card that a job holds are charged together, to the first of them.
        let line = match card.parent.is_none() || self.is_first_part(slot, index) {
            true => self.line(slot, index),
            false => Line::default(),
        };
        let known = |cell: i64| (cell != MISSING).then_some(cell);
        let ratio = |mean: Mean| mean.get().map(|mean| mean / 1000.0);
        let counted = line.counted_uj > 0 && line.counted_uj.saturating_mul(2) >= line.total_uj();
        GpuUse {
            uuid: card.labels[label::UUID].clone(),
            index: card.labels[label::INDEX].clone(),
            name: card.labels[label::NAME].clone(),
            vendor: card.labels[label::VENDOR].clone(),
            parent: Some(card.labels[label::PARENT].clone()).filter(|parent| !parent.is_empty()),
            held_by: usage.held_by.to_owned(),
            held_since_ns: Some(usage.since.held_ns),
            idle_since_ns: usage.since.idle_ns,
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
                (true, _) => QualityKind::Attributed,
                (false, true) => QualityKind::Measured,
                (false, false) => QualityKind::Sampled,
            }),
            energy_source: (line.total_uj() > 0).then(|| energy_source(&line)),
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

    /// Ends a job; what it was charged is final.
    pub fn leave(&mut self, slot: u32) -> Vec<GpuUse> {
        for index in 0..self.known.len() {
            if self.known[index].parent.is_some() {
                continue;
            }
            let line = self.known[index].ledger.leave(slot);
            for (&(owner, card), usage) in &mut self.uses {
                if owner == slot && (card == index || self.known[card].parent == Some(index)) {
                    usage.line = Some(line);
                }
            }
        }
        let report = self.uses_of(slot);
        self.uses.retain(|(owner, _), _| *owner != slot);
        self.holdings.remove(&slot);
        for (&subject, &(_, seen_ns)) in self.subjects.iter().filter(|(_, (owner, _))| *owner == Some(slot)) {
            self.ended.insert(subject, seen_ns);
        }
        self.subjects.retain(|_, (owner, _)| *owner != Some(slot));
        report
    }

    /// The cards as last looked at.
    pub fn now(&self) -> impl Iterator<Item = CardNow<'_>> {
        let latest_ns = self.known.iter().map(|card| card.seen_ns).max().unwrap_or(0);
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

impl Card {
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
            MISSING if count > 0 && open => {
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
    fn see(&mut self, seen: &Seen, cells: &[i64]) {
        let span_ns = self.last_ns.map_or(0, |last_ns| seen.at_ns - last_ns);
        let span_ns = if span_ns > GAP_NS { 0 } else { span_ns };
        self.held_ns += span_ns;
        let works = seen.utilization > 0;
        self.used_ns += if works { span_ns } else { 0 };
        self.since.idle_ns = match self.since.idle_ns {
            _ if works || (seen.utilization == MISSING && seen.processes > 0) => None,
            Some(since_ns) => Some(since_ns),
            None => Some(seen.unix_ns),
        };
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
        self.fault_last = self.fault_last.max(cells[card::FAULT_LAST]);
        let bits = cells[card::THROTTLE];
        if !gpu::throttle_words(bits).is_empty() {
            self.throttle_bits |= bits;
            self.throttled_ns += span_ns;
        }
        self.ecc_corrected.add(cells[card::ECC_CORRECTED]);
        self.ecc_uncorrected.add(cells[card::ECC_UNCORRECTED]);
        self.faults.add(cells[card::FAULTS]);
        self.processes = seen.processes;
        (self.now_utilization, self.now_memory) = (seen.utilization, seen.memory);
        (self.present, self.last_ns) = (true, Some(seen.at_ns));
    }
}

#[cfg(test)]
#[path = "cards_tests.rs"]
mod tests;
