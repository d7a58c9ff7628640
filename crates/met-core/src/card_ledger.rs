//! Whose energy a card's energy is. Exact: what the lines hold adds up to what the card used.
//!
//! A card's use by process and its energy counter are dear to read and known a few seconds apart. Between
//! two such passes lies a window. Its energy is the growth of the counter, or where there is none the
//! integral of power; it is split when the pass that ends it says who computed in it. Until then the split
//! is provisional. What a job that leaves in the middle is charged stays as it is, and the rest of the
//! window is for the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::MISSING;
use crate::apportion::apportion;
use crate::idle_power::{IdlePower, IdleSource};
use crate::rate::{self, Step};

/// The age of a pass is told with some jitter; two passes are further apart than this.
const SAME_PASS_NS: i64 = 50_000_000;

/// Somebody on the card: a job by its slot, or all others together.
pub type Who = Option<u32>;

/// What somebody has to do with the card at a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub who: Who,
    /// How much of the computing was its own since the last pass.
    pub active: u64,
    /// How many of the card's slices it holds; of a card in one piece 1.
    pub held: u64,
}

/// One look at a card. Cells may be missing.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    pub at_ns: i64,
    pub power_mw: i64,
    pub power_limit_mw: i64,
    pub utilization: i64,
    /// When the dear figures were read. `None`: there are none, or they are as new as this look.
    pub pass_ns: Option<i64>,
    /// The energy counter as of the pass.
    pub counter_uj: i64,
    pub claims: &'a [Claim],
    /// Slices the card has, if it is cut into parts; else 0.
    pub slices: u64,
    /// Jobs that came since the last look, and when: what was before is not theirs.
    pub joined: &'a [(u32, i64)],
    /// Looks further apart than this have nothing to do with each other: nobody looked in between.
    pub gap_ns: i64,
}

/// The energy of one holder of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub active_uj: u64,
    pub idle_uj: u64,
    /// How much of both the card's counter stands for; the rest is an integral of power.
    pub counted_uj: u64,
    /// Somebody else had a share of the same window.
    pub shared: bool,
    /// The share depends on an idle power that nobody knows for certain.
    pub estimated: bool,
}

impl Line {
    pub fn total_uj(&self) -> u64 {
        self.active_uj + self.idle_uj
    }

    pub fn add(&mut self, other: &Line) {
        self.active_uj += other.active_uj;
        self.idle_uj += other.idle_uj;
        self.counted_uj += other.counted_uj;
        self.shared |= other.shared;
        self.estimated |= other.estimated;
    }
}

#[derive(Debug, Default)]
pub struct CardLedger {
    last: Option<(i64, i64)>,
    window: Window,
    lines: BTreeMap<Who, Line>,
    pub idle: IdlePower,
    /// Charged to jobs that left more than their windows turned out to hold; the next ones pay it back.
    overdraft_uj: u64,
    closed_uj: u64,
    /// The counter when it was last read, and what was charged since then without it.
    anchor_uj: Option<i64>,
    unanchored_uj: u64,
    /// What the open window holds for each, as of the last look.
    open: BTreeMap<Who, Line>,
    weights: Vec<u64>,
    parts: Vec<u64>,
}

#[derive(Debug, Default)]
struct Window {
    begin_ns: i64,
    integral_uj: u64,
    covered_ns: i64,
    /// Time on the card, by holder.
    held_ns: BTreeMap<Who, u64>,
    /// As last claimed: a pass that ends a window tells of the whole of it.
    active: BTreeMap<Who, u64>,
    /// Claims so far, weighted by time: who computes no more has computed.
    claimed: BTreeMap<Who, u128>,
    /// Jobs that left, and what they were charged.
    left: Vec<u32>,
    paid_uj: u64,
}

impl CardLedger {
    pub fn look(&mut self, look: &Look<'_>) {
        if self.last.is_some_and(|(at_ns, _)| look.at_ns - at_ns > look.gap_ns || look.at_ns < at_ns) {
            self.pause();
        }
        self.learn_idle(look);
        if self.last.is_none() {
            // What was read before anybody looked says nothing about the time since.
            self.window.begin_ns = look.at_ns - 2 * SAME_PASS_NS;
        }
        let pass_ns = look.pass_ns.filter(|&pass_ns| {
            pass_ns > self.window.begin_ns.saturating_add(SAME_PASS_NS) && pass_ns <= look.at_ns
        });
        let begin_ns = self.last.map_or(look.at_ns, |(at_ns, _)| at_ns);
        match (look.pass_ns, pass_ns) {
            // Nothing dear to wait for: every look closes its own window.
            (None, _) => {
                self.cover(begin_ns, look.at_ns, look);
                self.claim(look);
                self.close((look.counter_uj != MISSING).then_some(look.counter_uj));
                self.window.begin_ns = look.at_ns;
            }
            (Some(_), Some(pass_ns)) => {
                self.cover(begin_ns, pass_ns.max(begin_ns), look);
                self.claim(look);
                self.close((look.counter_uj != MISSING).then_some(look.counter_uj));
                self.window.begin_ns = pass_ns;
                self.cover(pass_ns.max(begin_ns), look.at_ns, look);
                self.claim(look);
            }
            (Some(_), None) => {
                self.cover(begin_ns, look.at_ns, look);
                self.claim(look);
            }
        }
        self.last = Some((look.at_ns, look.power_mw));
        self.open = self.provisional();
    }

    /// Nobody looks for a while, or the card is out of sight: what it uses until the next look is nobody's.
    pub fn pause(&mut self) {
        self.close(None);
        (self.last, self.anchor_uj, self.unanchored_uj) = (None, None, 0);
        self.open.clear();
    }

    /// A job leaves: what it has been charged so far is final.
    pub fn leave(&mut self, slot: u32) -> Line {
        let mut line = self.lines.remove(&Some(slot)).unwrap_or_default();
        if let Some(open) = self.open.remove(&Some(slot)) {
            line.add(&open);
            self.window.paid_uj += open.total_uj();
        }
        self.window.left.push(slot);
        self.window.held_ns.remove(&Some(slot));
        self.window.active.remove(&Some(slot));
        self.window.claimed.remove(&Some(slot));
        self.open = self.provisional();
        line
    }

    /// What a job has been charged up to now, the open window included.
    pub fn line(&self, who: Who) -> Line {
        let mut line = self.lines.get(&who).copied().unwrap_or_default();
        if let Some(open) = self.open.get(&who) {
            line.add(open);
        }
        line
    }

    /// Who was charged what in closed windows, and has not left: final, and only ever more.
    pub fn charged(&self) -> impl Iterator<Item = (Who, Line)> {
        self.lines.iter().map(|(&who, &line)| (who, line))
    }

    /// All that was charged in closed windows, to whomever: what the card used in them.
    pub fn closed_uj(&self) -> u64 {
        self.closed_uj
    }

    pub fn idle_mw(&self) -> Option<i64> {
        self.idle.get().map(|(idle_mw, _)| idle_mw)
    }

    fn learn_idle(&mut self, look: &Look<'_>) {
        // Parts of a card do not say how busy they are: then nobody on them is idle enough.
        let nothing_runs = look.claims.iter().all(|claim| claim.active == 0);
        self.idle.learn(look.power_mw, look.power_limit_mw, look.utilization <= 0 && nothing_runs);
    }

    /// Adds a span, which lies between the last look and this one; who came in it has a share from then on.
    fn cover(&mut self, begin_ns: i64, end_ns: i64, look: &Look<'_>) {
        let inside =
            look.joined.iter().map(|&(_, at_ns)| at_ns).filter(|&at_ns| at_ns > begin_ns && at_ns < end_ns);
        let cuts: BTreeSet<i64> = inside.chain([end_ns]).collect();
        let mut piece_ns = begin_ns;
        for cut_ns in cuts {
            self.cover_piece(piece_ns, cut_ns, look);
            piece_ns = cut_ns;
        }
    }

    fn cover_piece(&mut self, begin_ns: i64, end_ns: i64, look: &Look<'_>) {
        let is_here = |claim: &&Claim| {
            let joined = look.joined.iter().find(|(slot, _)| claim.who == Some(*slot));
            joined.is_none_or(|&(_, at_ns)| at_ns <= begin_ns)
        };
        let span_ns = end_ns - begin_ns;
        let Some((last_ns, last_mw)) = self.last.filter(|_| span_ns > 0) else { return };
        if last_mw != MISSING && look.power_mw != MISSING {
            // The power in between is taken to lie on a straight line.
            let at = |ns: i64| {
                let (part, whole) = (i128::from(ns - last_ns), i128::from((look.at_ns - last_ns).max(1)));
                i128::from(last_mw) + i128::from(look.power_mw - last_mw) * part / whole
            };
            // mW × ns is pJ.
            let energy_uj = (at(begin_ns) + at(end_ns)) * i128::from(span_ns) / 2 / 1_000_000;
            self.window.integral_uj += u64::try_from(energy_uj).unwrap_or(0);
            self.window.covered_ns += span_ns;
        }
        let claims: Vec<Claim> = look.claims.iter().filter(is_here).copied().collect();
        self.window.hold(span_ns as u64, &claims, look.slices);
        for claim in claims.iter().filter(|claim| !has_left(&self.window.left, claim.who)) {
            *self.window.claimed.entry(claim.who).or_default() += u128::from(claim.active) * span_ns as u128;
        }
    }

    fn claim(&mut self, look: &Look<'_>) {
        let Window { active, left, .. } = &mut self.window;
        active.clear();
        for claim in look.claims.iter().filter(|claim| claim.active > 0 && !has_left(left, claim.who)) {
            *active.entry(claim.who).or_default() += claim.active;
        }
    }

    /// Ends the window with what the counter shows now, and charges it. A window of which the counter was not
    /// read is charged by its power; the next reading is of both, and settles the difference.
    fn close(&mut self, counter_uj: Option<i64>) {
        let grown = match (self.anchor_uj, counter_uj) {
            (Some(before), Some(now)) => rate::step(before, now),
            _ => Step::Gap,
        };
        let (energy_uj, counted) = match grown {
            Step::Delta(delta) => {
                let delta_uj = u64::try_from(delta).unwrap_or(0);
                let excess_uj = self.unanchored_uj.saturating_sub(delta_uj);
                self.closed_uj -= excess_uj.min(self.closed_uj);
                self.overdraft_uj += excess_uj;
                (delta_uj.saturating_sub(self.unanchored_uj), true)
            }
            Step::Restarted | Step::Gap => (self.window.integral_uj, false),
        };
        match counter_uj {
            Some(now) => (self.anchor_uj, self.unanchored_uj) = (Some(now), 0),
            None => self.unanchored_uj += energy_uj,
        }
        self.closed_uj += energy_uj;
        let owed_uj = self.window.paid_uj + self.overdraft_uj;
        self.overdraft_uj = owed_uj.saturating_sub(energy_uj);
        for (who, line) in self.split(energy_uj.saturating_sub(owed_uj), counted) {
            self.lines.entry(who).or_default().add(&line);
        }
        self.window = Window::default();
    }

    fn provisional(&self) -> BTreeMap<Who, Line> {
        let owed_uj = self.window.paid_uj + self.overdraft_uj;
        let mut scratch = CardLedger { idle: self.idle, ..CardLedger::default() };
        scratch.window.covered_ns = self.window.covered_ns;
        scratch.window.held_ns = self.window.held_ns.clone();
        scratch.window.active = self.window.active_so_far();
        scratch.split(self.window.integral_uj.saturating_sub(owed_uj), false)
    }

    fn split(&mut self, energy_uj: u64, counted: bool) -> BTreeMap<Who, Line> {
        let jobs = self.window.active.keys().chain(self.window.held_ns.keys()).copied();
        let jobs: BTreeSet<Who> = jobs.filter(Option::is_some).collect();
        let whose: Vec<Who> = jobs.into_iter().chain([None]).collect();
        let idle_uj = match self.window.active.is_empty() {
            true => energy_uj,
            false => {
                let idle_mw = self.idle_mw().and_then(|idle_mw| u64::try_from(idle_mw).ok()).unwrap_or(0);
                let covered_ns = u64::try_from(self.window.covered_ns).unwrap_or(0);
                let idle_uj = u128::from(idle_mw) * u128::from(covered_ns) / 1_000_000;
                u64::try_from(idle_uj).unwrap_or(u64::MAX).min(energy_uj)
            }
        };
        let mut lines: BTreeMap<Who, Line> = BTreeMap::new();
        for (part, active) in [(energy_uj - idle_uj, true), (idle_uj, false)] {
            let weights_of = if active { &self.window.active } else { &self.window.held_ns };
            self.weights.clear();
            self.weights.extend(whose.iter().map(|who| weights_of.get(who).copied().unwrap_or(0)));
            apportion(part, &self.weights, &mut self.parts);
            for (who, &part) in whose.iter().zip(&self.parts) {
                let line = lines.entry(*who).or_default();
                if active {
                    line.active_uj += part;
                } else {
                    line.idle_uj += part;
                }
            }
        }
        let shared = lines.values().filter(|line| line.total_uj() > 0).count() > 1;
        let guessed = !self.window.active.is_empty()
            && self.idle.get().is_some_and(|(_, source)| source == IdleSource::Bound);
        for line in lines.values_mut() {
            line.shared = shared && line.total_uj() > 0;
            line.estimated = line.shared && guessed;
            line.counted_uj = if counted { line.total_uj() } else { 0 };
        }
        lines.retain(|_, line| line.total_uj() > 0);
        lines
    }
}

impl Window {
    /// Who computed how much in the part of the window that has passed.
    fn active_so_far(&self) -> BTreeMap<Who, u64> {
        let covered_ns = u128::try_from(self.covered_ns.max(1)).unwrap_or(1);
        // In thousandths: a short use of a long window counts for something.
        let mean = |(&who, &sum): (&Who, &u128)| {
            (who, u64::try_from(sum * 1000 / covered_ns).unwrap_or(u64::MAX / 64))
        };
        self.claimed.iter().map(mean).filter(|&(_, active)| active > 0).collect()
    }

    /// Divides a span among those who hold the card in it.
    fn hold(&mut self, span_ns: u64, claims: &[Claim], slices: u64) {
        let present = || claims.iter().filter(|claim| claim.held > 0);
        let held: u64 = present().map(|claim| claim.held).sum();
        let whole = held.max(slices).max(1);
        for claim in present().filter(|claim| !has_left(&self.left, claim.who)) {
            *self.held_ns.entry(claim.who).or_default() += share_of(span_ns, claim.held, whole);
        }
        if held < whole {
            *self.held_ns.entry(None).or_default() += share_of(span_ns, whole - held, whole);
        }
    }
}

fn has_left(left: &[u32], who: Who) -> bool {
    who.is_some_and(|slot| left.contains(&slot))
}

fn share_of(span_ns: u64, part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(span_ns) * u128::from(part) / u128::from(whole.max(1))).unwrap_or(span_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND_NS: i64 = 1_000_000_000;

    fn claim(slot: u32, active: u64) -> Claim {
        Claim { who: Some(slot), active, held: 1 }
    }

    fn without_idle_power() -> CardLedger {
        let mut ledger = CardLedger::default();
        ledger.idle.configured_mw = Some(0);
        ledger
    }

    fn look(at_s: i64, power_mw: i64, claims: &[Claim]) -> Look<'_> {
        let utilization = if claims.iter().any(|claim| claim.active > 0) { 1000 } else { 0 };
        Look {
            at_ns: at_s * SECOND_NS,
            power_mw,
            power_limit_mw: MISSING,
            utilization,
            pass_ns: None,
            counter_uj: MISSING,
            claims,
            slices: 0,
            joined: &[],
            gap_ns: 60 * SECOND_NS,
        }
    }

    #[test]
    fn two_jobs_on_a_300_watt_card_add_up_to_300_watts() {
        let mut ledger = without_idle_power();
        for at_s in 0..=10 {
            ledger.look(&look(at_s, 300_000, &[claim(1, 600), claim(2, 300)]));
        }
        let (one, two) = (ledger.line(Some(1)), ledger.line(Some(2)));
        assert_eq!((one.active_uj, two.active_uj), (2_000_000_000, 1_000_000_000));
        assert_eq!(one.total_uj() + two.total_uj(), 3_000_000_000);
        assert!(one.shared && one.counted_uj == 0);
    }

    #[test]
    fn who_holds_an_idle_card_is_charged_all_of_it_as_idle() {
        let mut ledger = CardLedger::default();
        for at_s in 0..=10 {
            ledger.look(&look(at_s, 110_000, &[claim(7, 0)]));
        }
        let line = ledger.line(Some(7));
        assert_eq!((line.active_uj, line.idle_uj), (0, 1_100_000_000));
        assert!(!line.shared);
    }

    #[test]
    fn a_card_that_nobody_holds_costs_nobody() {
        let mut ledger = CardLedger::default();
        for at_s in 0..=10 {
            ledger.look(&look(at_s, 70_000, &[]));
        }
        assert_eq!(ledger.line(None).idle_uj, 700_000_000);
        assert_eq!(ledger.idle_mw(), Some(70_000));
    }

    #[test]
    fn the_idle_part_of_a_busy_card_goes_to_the_holders() {
        let mut ledger = CardLedger::default();
        ledger.look(&look(0, 100_000, &[]));
        ledger.look(&look(1, 100_000, &[]));
        for at_s in 1..=11 {
            ledger.look(&look(at_s, 400_000, &[claim(1, 500), claim(2, 0)]));
        }
        let (busy, holder) = (ledger.line(Some(1)), ledger.line(Some(2)));
        // The first second of the ten leads from 100 to 100 W: a look at the same moment adds nothing.
        assert_eq!(holder.active_uj, 0);
        assert_eq!(holder.idle_uj, busy.idle_uj);
        assert_eq!(busy.idle_uj + holder.idle_uj, 1_000_000_000);
        assert_eq!(busy.total_uj() + holder.total_uj() + ledger.line(None).total_uj(), ledger.closed_uj());
    }

    #[test]
    fn the_counter_corrects_the_integral_and_a_pass_decides_whose_it_was() {
        let mut ledger = without_idle_power();
        let at = |at_s: i64, pass_s: i64, counter_uj: i64, claims: &'static [Claim]| Look {
            pass_ns: Some(pass_s * SECOND_NS),
            counter_uj,
            ..look(at_s, 300_000, claims)
        };
        static BEFORE: [Claim; 2] =
            [Claim { who: Some(1), active: 500, held: 1 }, Claim { who: Some(2), active: 500, held: 1 }];
        static AFTER: [Claim; 2] =
            [Claim { who: Some(1), active: 900, held: 1 }, Claim { who: Some(2), active: 300, held: 1 }];
        ledger.look(&at(1, 1, 0, &BEFORE));
        for at_s in 2..=5 {
            ledger.look(&at(at_s, 1, 0, &BEFORE));
        }
        assert_eq!(ledger.line(Some(1)).total_uj(), 600_000_000, "until the pass, half of 300 W for 4 s");
        ledger.look(&at(6, 6, 1_600_000_000, &AFTER));
        assert_eq!(ledger.line(Some(1)).total_uj(), 1_200_000_000);
        assert_eq!(ledger.line(Some(2)).total_uj(), 400_000_000);
        assert_eq!(ledger.line(Some(1)).counted_uj, 1_200_000_000);
        // A driver that was loaded anew begins at 0: the window is known by its power alone.
        ledger.look(&at(7, 7, 10, &AFTER));
        assert_eq!(ledger.line(Some(1)).total_uj(), 1_200_000_000 + 225_000_000);
    }

    #[test]
    fn a_job_that_leaves_after_its_process_ended_has_paid_for_it() {
        let mut ledger = CardLedger::default();
        let busy = [Claim { who: Some(1), active: 90, held: 1 }, Claim { who: Some(2), active: 0, held: 1 }];
        let over = [Claim { who: Some(1), active: 0, held: 1 }, Claim { who: Some(2), active: 0, held: 1 }];
        // One pass at the first second, and none since.
        let pass_ns = Some(SECOND_NS);
        for at_s in 1..=10 {
            ledger.look(&Look { pass_ns, ..look(at_s, 300_000, &busy) });
        }
        ledger.look(&Look { pass_ns, ..look(11, 100_000, &over) });
        let line = ledger.leave(1);
        // Nine seconds of 300 W and one that falls to 100 W, of which 100 W are idle all the time.
        assert!(line.active_uj > 1_850_000_000, "{} of 1,900 J", line.active_uj / 1_000_000);
    }

    #[test]
    fn a_gap_is_not_bridged() {
        let mut ledger = CardLedger::default();
        ledger.look(&look(0, 100_000, &[claim(1, 0)]));
        ledger.look(&look(3600, 100_000, &[claim(1, 0)]));
        ledger.look(&look(3601, MISSING, &[claim(1, 0)]));
        ledger.look(&look(3602, 100_000, &[claim(1, 0)]));
        ledger.look(&look(3603, 100_000, &[claim(1, 0)]));
        assert_eq!(ledger.line(Some(1)).idle_uj, 100_000_000);
    }

    #[test]
    fn parts_of_a_card_pay_by_their_slices() {
        let mut ledger = CardLedger::default();
        let claims = [Claim { who: Some(1), active: 3, held: 3 }, Claim { who: Some(2), active: 0, held: 1 }];
        for at_s in 0..=7 {
            ledger.look(&Look { slices: 7, utilization: 0, ..look(at_s, 70_000, &[]) });
        }
        for at_s in 7..=17 {
            ledger.look(&Look { slices: 7, ..look(at_s, 70_000, &claims) });
        }
        let (one, two) = (ledger.line(Some(1)), ledger.line(Some(2)));
        // A window's last microjoule goes to somebody.
        assert!(one.idle_uj.abs_diff(300_000_000) < 20 && two.idle_uj.abs_diff(100_000_000) < 20);
        let nobodys = ledger.line(None).total_uj();
        assert_eq!(one.total_uj() + two.total_uj() + nobodys, ledger.closed_uj());
    }

    #[derive(Clone, Debug)]
    enum Event {
        Look { after_ms: i64, power_mw: i64, pass: Option<Pass>, active: Vec<u64>, held: Vec<bool> },
        Leave(u32),
        Pause,
    }

    /// A dear reading: how much the counter grew since the one before, if it could be read.
    #[derive(Clone, Copy, Debug)]
    struct Pass {
        grown_uj: i64,
        is_read: bool,
        is_new_driver: bool,
    }

    fn event() -> impl Strategy<Value = Event> {
        let pass = (0i64..2_000_000_000, prop::bool::weighted(0.8), prop::bool::weighted(0.05))
            .prop_map(|(grown_uj, is_read, is_new_driver)| Pass { grown_uj, is_read, is_new_driver });
        let look = (
            20i64..70_000,
            prop_oneof![9 => 0i64..700_000, 1 => Just(MISSING)],
            prop::option::of(pass),
            prop::collection::vec(0u64..1000, 4),
            prop::collection::vec(any::<bool>(), 4),
        )
            .prop_map(|(after_ms, power_mw, pass, active, held)| Event::Look {
                after_ms,
                power_mw,
                pass,
                active,
                held,
            });
        prop_oneof![12 => look, 1 => (0u32..4).prop_map(Event::Leave), 1 => Just(Event::Pause)]
    }

    /// What the card used while it was looked at: by its counter between two readings of it, else by its
    /// power. Knows nothing of who used it.
    #[derive(Default)]
    struct Truth {
        /// All that is over: up to the last reading of the counter, or the last pause.
        settled_uj: i64,
        counter_uj: Option<i64>,
        /// By power since then: in windows that are over, and in the open one.
        closed_uj: i64,
        open_uj: i64,
        last: Option<(i64, i64)>,
    }

    impl Truth {
        fn power(&mut self, at_ns: i64, power_mw: i64, pass_ns: Option<(i64, Option<i64>)>) {
            let mut after_pass_uj = 0;
            if let Some((last_ns, last_mw)) =
                self.last.filter(|&(_, mw)| mw != MISSING && power_mw != MISSING)
            {
                let energy = |from_ns: i64, to_ns: i64| {
                    let at = |ns: i64| {
                        last_mw as f64
                            + (power_mw - last_mw) as f64 * (ns - last_ns) as f64 / (at_ns - last_ns) as f64
                    };
                    ((at(from_ns) + at(to_ns)) / 2.0 * (to_ns - from_ns) as f64 / 1e6) as i64
                };
                let cut_ns = pass_ns.map_or(at_ns, |(pass_ns, _)| pass_ns.max(last_ns));
                self.open_uj += energy(last_ns, cut_ns);
                after_pass_uj = energy(cut_ns, at_ns);
            }
            if let Some((_, counter_uj)) = pass_ns {
                self.read(counter_uj);
                self.open_uj = after_pass_uj;
            }
            self.last = Some((at_ns, power_mw));
        }

        fn read(&mut self, counter_uj: Option<i64>) {
            self.closed_uj += self.open_uj;
            if let Some(now_uj) = counter_uj {
                self.settled_uj += match self.counter_uj {
                    Some(before_uj) if now_uj >= before_uj => now_uj - before_uj,
                    _ => self.closed_uj,
                };
                (self.counter_uj, self.closed_uj) = (Some(now_uj), 0);
            }
            self.open_uj = 0;
        }

        fn pause(&mut self) {
            self.settled_uj += self.closed_uj + self.open_uj;
            *self = Truth { settled_uj: self.settled_uj, ..Truth::default() };
        }
    }

    proptest! {
        #[test]
        fn what_is_charged_is_what_the_card_used(events in prop::collection::vec(event(), 1..60)) {
            let mut ledger = CardLedger::default();
            let mut truth = Truth::default();
            let (mut at_ns, mut pass_ns, mut counter_uj, mut told_uj) = (1, 1, 0i64, MISSING);
            let (mut left_uj, mut gone) = (0u64, Vec::new());
            for event in events {
                match event {
                    Event::Look { after_ms, power_mw, pass, active, held } => {
                        at_ns += after_ms * 1_000_000;
                        if after_ms > 60_000 {
                            truth.pause();
                        }
                        let mut passed = None;
                        if let Some(pass) = pass.filter(|_| after_ms * 700_000 > SAME_PASS_NS) {
                            pass_ns = at_ns - after_ms * 300_000;
                            counter_uj = if pass.is_new_driver { 0 } else { counter_uj + pass.grown_uj };
                            told_uj = if pass.is_read { counter_uj } else { MISSING };
                            passed = Some((pass_ns, pass.is_read.then_some(counter_uj)));
                        }
                        // What was read before the first look is not about what is looked at.
                        let is_first = truth.last.is_none();
                        truth.power(at_ns, power_mw, passed.filter(|_| !is_first || at_ns - pass_ns < SAME_PASS_NS));
                        let claims: Vec<Claim> = (0u32..4)
                            .filter(|slot| !gone.contains(slot))
                            .map(|slot| Claim {
                                who: (slot < 3).then_some(slot),
                                active: active[slot as usize],
                                held: u64::from(held[slot as usize]),
                            })
                            .collect();
                        ledger.look(&Look {
                            utilization: 5,
                            pass_ns: Some(pass_ns),
                            counter_uj: told_uj,
                            at_ns,
                            ..look(0, power_mw, &claims)
                        });
                    }
                    Event::Leave(slot) if slot < 3 && !gone.contains(&slot) => {
                        left_uj += ledger.leave(slot).total_uj();
                        gone.push(slot);
                    }
                    Event::Leave(_) => {}
                    Event::Pause => {
                        ledger.pause();
                        truth.pause();
                    }
                }
                let lines: u64 = ledger.lines.values().map(Line::total_uj).sum();
                // Those who left in the open window have paid in advance, or more than there was.
                prop_assert_eq!(
                    lines + left_uj,
                    ledger.closed_uj() + ledger.window.paid_uj + ledger.overdraft_uj
                );
                // Whole milliwatts in the middle of a span: each look may be wrong by one of them for its time.
                let closed_uj = ledger.closed_uj() as i64;
                prop_assert!(closed_uj.abs_diff(truth.settled_uj + truth.closed_uj) < 5_000_000,
                    "charged {} of {}", closed_uj, truth.settled_uj + truth.closed_uj);
                let open: u64 = ledger.provisional().values().map(Line::total_uj).sum();
                prop_assert_eq!(open, ledger.window.integral_uj.saturating_sub(ledger.window.paid_uj + ledger.overdraft_uj));
            }
        }
    }

    #[test]
    fn a_counter_that_could_not_be_read_once_is_not_counted_twice() {
        let mut ledger = without_idle_power();
        let claims = [claim(1, 500)];
        let at = |at_s: i64, counter_uj: i64| Look {
            pass_ns: Some(at_s * SECOND_NS),
            counter_uj,
            ..look(at_s, 300_000, &claims)
        };
        for (at_s, counter_uj) in [(1, 0), (2, 310_000_000), (3, MISSING), (4, 930_000_000)] {
            ledger.look(&at(at_s, counter_uj));
        }
        assert_eq!(ledger.line(Some(1)).total_uj(), 930_000_000);
    }

    #[test]
    fn a_job_pays_from_when_it_came() {
        let mut ledger = CardLedger::default();
        ledger.look(&look(1, 100_000, &[claim(1, 0)]));
        let joined = [(2, 3 * SECOND_NS)];
        ledger.look(&Look { joined: &joined, ..look(5, 100_000, &[claim(1, 0), claim(2, 0)]) });
        let (first, second) = (ledger.line(Some(1)).idle_uj, ledger.line(Some(2)).idle_uj);
        assert_eq!((first, second), (300_000_000, 100_000_000), "two seconds alone, two by halves");
        ledger.pause();
        ledger.look(&look(45, 100_000, &[claim(3, 0)]));
        ledger.look(&look(46, 100_000, &[claim(3, 0)]));
        assert_eq!(ledger.line(Some(3)).idle_uj, 100_000_000, "the pause is nobody's");
    }
}
