//! The node's energy ledger: in every window jobs + system + idle + unassigned is what the meter says, to the
//! microjoule.
//!
//! Meters are read at their own times, jobs at every tick. A window is closed up to the time of the slowest
//! meter's last reading, where the meter of the node was read. What was used in it has four parts: processors,
//! memory, cards, and the rest of the machine. Each has an idle share, which the machine would have used doing
//! nothing, and an active one, which is split by what jobs did meanwhile. Inner parts that a meter of the node has
//! not shown yet are carried to later windows (`carry`). A job that ended in a window is settled when that window is
//! closed and it is owed nothing.
//!
//! A meter that is away for a moment is waited for, and the window is longer. What it counted in a longer gap is
//! unassigned, and jobs of that time are charged too little.

use std::collections::BTreeMap;

use super::carry::Carry;
use super::idle::{IdlePower, LearnedIdle};
use super::meter::{BRIDGE_NS, Fault, Meter, Scope, Span};
use super::ticks::{Done, Ticks};
use crate::apportion::apportion;
use crate::job::QualityKind;

/// A meter of the node that was read within this time and is not now is missing, and not gone.
const AWAY_NS: i64 = 600_000_000_000;

/// A window that is longer is closed although a meter was away at its end.
const WINDOW_MAX_NS: i64 = 2 * BRIDGE_NS;

/// Meters that are read one after the other in a tick differ by less: a window does not wait for the next tick.
const SAME_TICK_NS: i64 = 1_000_000_000;

/// The parts of a machine that use energy.
pub const PARTS: usize = 4;
pub const CPU: usize = 0;
pub const MEMORY: usize = 1;
pub const CARDS: usize = 2;
pub const REST: usize = 3;

/// Whose energy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    Job(u32),
    /// Processes of no job.
    System,
    /// What the machine uses doing nothing, as far as no job is charged for it.
    Idle,
    /// What a meter counted while nobody saw who used it.
    Unassigned,
}

/// Energy in microjoules by part of the machine. In a window a part of cards may be negative: a share that was
/// provisional went to somebody else. Windows one after the other never add up to less than 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub active_uj: [i64; PARTS],
    pub idle_uj: [i64; PARTS],
}

impl Line {
    pub fn total_uj(&self) -> i64 {
        self.active_uj.iter().chain(&self.idle_uj).sum()
    }

    pub fn idle_total_uj(&self) -> i64 {
        self.idle_uj.iter().sum()
    }

    pub fn cards_uj(&self) -> i64 {
        self.active_uj[CARDS] + self.idle_uj[CARDS]
    }

    pub(super) fn take(&mut self, other: &Line) {
        for (sum, less) in self.active_uj.iter_mut().zip(other.active_uj) {
            *sum -= less;
        }
        for (sum, less) in self.idle_uj.iter_mut().zip(other.idle_uj) {
            *sum -= less;
        }
    }

    pub fn add(&mut self, other: &Line) {
        for (sum, more) in self.active_uj.iter_mut().zip(other.active_uj) {
            *sum += more;
        }
        for (sum, more) in self.idle_uj.iter_mut().zip(other.idle_uj) {
            *sum += more;
        }
    }
}

/// Who is charged for what the machine uses doing nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleTo {
    /// Jobs, by the CPUs they hold; what nobody holds is nobody's.
    Holders,
    Nobody,
}

#[derive(Clone, Copy, Debug)]
pub struct Policy {
    pub idle_to: IdleTo,
    /// Of the whole machine without its cards, where it is known; else it is learned.
    pub idle_mw: Option<u64>,
}

/// What somebody did since the last weighing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// CPU time, or instructions: whatever is the same for all.
    pub cpu: u64,
    /// Memory held, times time.
    pub memory: u64,
    /// CPUs held, times time.
    pub held: u64,
}

impl Weights {
    pub(super) fn add(&mut self, other: Weights) {
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.memory = self.memory.saturating_add(other.memory);
        self.held = self.held.saturating_add(other.held);
    }

    /// How much of its CPUs a machine used, in thousandths.
    pub(super) fn load_permille(&self) -> Option<u64> {
        let permille = (u128::from(self.cpu) * 1000).checked_div(u128::from(self.held))?;
        Some(permille.min(1000) as u64)
    }

    pub(super) fn above(self, sum: Weights) -> Weights {
        Weights {
            cpu: self.cpu.saturating_sub(sum.cpu),
            memory: self.memory.saturating_sub(sum.memory),
            held: self.held.saturating_sub(sum.held),
        }
    }
}

/// A window that was closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    pub begin_ns: i64,
    pub end_ns: i64,
    /// What the meter says: the sum of all lines.
    pub whole_uj: u64,
    /// The growth of the meter's own counter since the last window that was made of it: the same as the whole, or
    /// something was charged twice or not at all. Where other meters were read in between there is only the whole.
    pub counted_uj: u64,
    /// The meters that the whole was read from, best first.
    pub source: String,
    /// A lower bound where a meter is missing that the whole is made of.
    pub kind: QualityKind,
    /// By part, whether a meter told it apart from the others.
    pub metered: [bool; PARTS],
    /// Nobody knows what the machine uses doing nothing: that was estimated.
    pub idle_assumed: bool,
    /// What was wrong with the meters in it: whoever lived in it has figures that are touched by that.
    pub fault: Fault,
    pub lines: BTreeMap<Who, Line>,
    /// What is missing in a line for good: its part was counted, and the meter of the node never showed it.
    pub short_uj: BTreeMap<Who, u64>,
    /// Jobs that ended in it or before, and are settled now.
    pub settled: Vec<u32>,
}

impl Closed {
    /// Nothing was measured in all this time.
    fn unmeasured(begin_ns: i64, end_ns: i64, settled: Vec<u32>) -> Closed {
        Closed {
            begin_ns,
            end_ns,
            whole_uj: 0,
            counted_uj: 0,
            source: String::new(),
            kind: QualityKind::LowerBound,
            metered: [false; PARTS],
            idle_assumed: false,
            fault: Fault::Unknown,
            lines: BTreeMap::new(),
            short_uj: BTreeMap::new(),
            settled,
        }
    }

    /// Whether any meter was read in it.
    pub fn is_measured(&self) -> bool {
        !self.source.is_empty()
    }
}

/// A meter, as it is known to the ledger that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterId(usize);

#[derive(Debug)]
pub struct EnergyLedger {
    policy: Policy,
    meters: Vec<Meter>,
    open_ns: Option<i64>,
    /// While no meter is read, up to when that is said.
    unmeasured_ns: Option<i64>,
    ticks: Ticks,
    /// What was done in the window that is closed now.
    done: Done,
    cards: BTreeMap<Who, CardLine>,
    carry: Carry,
    /// The meter of the node shows as much as its parts, or is behind by as much as before.
    is_steady: bool,
    /// The parts of the machine in the last window in which its meters agreed.
    usual_uj: Option<[u64; PARTS]>,
    /// What cards and processors draw at present, as far as it is seen.
    explained_mw: i64,
    ended: Vec<u32>,
    /// Since when each of them is over; not known before the next look.
    ended_ns: BTreeMap<u32, i64>,
    idle: IdlePower,
    /// Of a machine whose idle power is known by part.
    known_idle_mw: Option<[u64; PARTS]>,
    /// Of processors and memory, where nothing better is known.
    assumed_idle_mw: Option<[u64; 2]>,
}

/// Of somebody on all cards together, active and idle: what is known of it now, and what was at the last look.
#[derive(Clone, Copy, Debug, Default)]
struct CardLine {
    now_uj: (u64, u64),
    looked_uj: (u64, u64),
}

impl CardLine {
    /// Since the last look. Less than 0: what it had then turned out to be somebody else's.
    fn grown(&self) -> Line {
        let mut line = Line::default();
        line.active_uj[CARDS] = self.now_uj.0 as i64 - self.looked_uj.0 as i64;
        line.idle_uj[CARDS] = self.now_uj.1 as i64 - self.looked_uj.1 as i64;
        line
    }
}

impl EnergyLedger {
    /// Holds from the window on that is closed next.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    pub fn new(policy: Policy) -> EnergyLedger {
        EnergyLedger {
            policy,
            meters: Vec::new(),
            open_ns: None,
            unmeasured_ns: None,
            ticks: Ticks::default(),
            done: Done::default(),
            cards: BTreeMap::new(),
            carry: Carry::default(),
            is_steady: true,
            usual_uj: None,
            explained_mw: 0,
            ended: Vec::new(),
            ended_ns: BTreeMap::new(),
            idle: IdlePower::default(),
            known_idle_mw: None,
            assumed_idle_mw: None,
        }
    }

    /// What the machine uses doing nothing, by part, where that need not be learned.
    pub fn know_idle(&mut self, idle_mw: Option<[u64; PARTS]>) {
        self.known_idle_mw = idle_mw;
    }

    /// What processors and memory probably use doing nothing, until it is known.
    pub fn assume_idle(&mut self, cpu_mw: u64, memory_mw: u64) {
        self.assumed_idle_mw = Some([cpu_mw, memory_mw]);
    }

    /// Whether it should be told that, before anything is learned.
    pub fn lacks_idle(&self) -> bool {
        let is_known = self.policy.idle_mw.is_some() || self.known_idle_mw.is_some();
        !is_known && self.assumed_idle_mw.is_none() && self.idle.all().next().is_none()
    }

    pub fn learns_idle(&self) -> bool {
        self.policy.idle_mw.is_none()
    }

    /// What was learned of idle power before this ledger began.
    pub fn recall_idle(&mut self, learned: LearnedIdle) {
        self.idle.recall(learned);
    }

    /// What is known of idle power, by the meters that told it.
    pub fn learned_idle(&self) -> impl Iterator<Item = LearnedIdle> {
        self.idle.all()
    }

    /// Jobs that have left and wait for their last window.
    pub fn unsettled(&self) -> &[u32] {
        &self.ended
    }

    /// Begins anew with all meters, for sources may have changed.
    pub fn forget_meters(&mut self) {
        self.meters.clear();
    }

    /// Whether the window that is open begins with an estimate: no meter was read before it.
    pub fn needs_estimates(&self) -> bool {
        let is_estimate = |meter: &&Meter| meter.kind == QualityKind::Estimated;
        let is_covered = |open_ns: i64| {
            let mut first =
                self.meters.iter().filter(|meter| !is_estimate(meter)).filter_map(Meter::first_ns);
            first.any(|first_ns| first_ns <= open_ns)
        };
        self.meters.iter().any(|meter| is_estimate(&meter)) && !self.open_ns.is_some_and(is_covered)
    }

    /// A meter is read now: windows do not wait for estimates any more.
    pub fn forget_estimates(&mut self) {
        self.meters.retain(|meter| meter.kind != QualityKind::Estimated);
    }

    /// Takes up a meter, which is read at least as often as `patience_ns` from now on; one that is known stays
    /// as it is otherwise.
    pub fn meter(&mut self, name: &str, scope: Scope, kind: QualityKind, patience_ns: i64) -> MeterId {
        let known = self.meters.iter().position(|meter| meter.name == name);
        let at = known.unwrap_or_else(|| {
            self.meters.push(Meter::new(name, scope, kind, patience_ns));
            self.meters.len() - 1
        });
        self.meters[at].patience_ns = patience_ns;
        MeterId(at)
    }

    /// All meters that were ever read, by name.
    pub fn meters(&self) -> impl Iterator<Item = (&str, QualityKind)> {
        let read = self.meters.iter().filter(|meter| meter.last_ns().is_some());
        read.map(|meter| (meter.name.as_str(), meter.kind))
    }

    pub fn read_counter(&mut self, meter: MeterId, at_ns: i64, counter_uj: i64) {
        self.meters[meter.0].read_counter(at_ns, counter_uj, None, self.explained_mw);
    }

    /// A counter whose meter tells its power, too: each is held against the other.
    pub fn read_both(&mut self, meter: MeterId, at_ns: i64, counter_uj: i64, power_mw: i64) {
        self.meters[meter.0].read_counter(at_ns, counter_uj, Some(power_mw), self.explained_mw);
    }

    pub fn read_power(&mut self, meter: MeterId, at_ns: i64, power_mw: i64) {
        self.meters[meter.0].read_power(at_ns, power_mw, self.explained_mw);
    }

    /// The most that the whole machine can draw, and what its parts draw now: what is beyond is doubted.
    pub fn rate(&mut self, rated_mw: i64, explained_mw: i64) {
        self.explained_mw = explained_mw;
        self.meters.iter_mut().filter(|meter| meter.is_outer()).for_each(|meter| meter.rate(rated_mw));
    }

    /// Nobody follows the machine for a while: what it uses until the next reading is in no window.
    pub fn pause(&mut self) {
        (self.open_ns, self.unmeasured_ns) = (None, None);
        self.cards.values_mut().for_each(|line| line.looked_uj = line.now_uj);
        self.ticks.clear();
        self.meters.iter_mut().for_each(Meter::pause);
    }

    /// What a job did since the last weighing.
    pub fn weigh_job(&mut self, slot: u32, weights: Weights) {
        self.ticks.current.jobs.entry(slot).or_default().add(weights);
    }

    /// What all of the machine did meanwhile, jobs included.
    pub fn weigh_node(&mut self, weights: Weights) {
        self.ticks.current.node.add(weights);
    }

    /// What somebody's use of cards has come to, active and idle, by what is known now. Until a card's counter
    /// is read that is provisional, and may turn out to be less or somebody else's.
    pub fn charge_cards(&mut self, who: Who, active_uj: u64, idle_uj: u64) {
        // Most jobs have no card.
        if (active_uj, idle_uj) != (0, 0) || self.cards.contains_key(&who) {
            self.cards.entry(who).or_default().now_uj = (active_uj, idle_uj);
        }
    }

    /// The job is over; its last window will settle it.
    pub fn leave(&mut self, slot: u32) {
        self.ended.push(slot);
    }

    /// Whether anybody was ever charged for a card.
    pub fn has_cards(&self) -> bool {
        !self.cards.is_empty()
    }

    /// What somebody has used of cards since the last window, of which no meter has told yet.
    pub fn open_cards(&self, who: Who) -> Line {
        let mut line = self.cards.get(&who).map(CardLine::grown).unwrap_or_default();
        line.add(&self.ticks.cards_of(who));
        line
    }

    /// Closes the window up to where every meter that is awaited has been read.
    pub fn close(&mut self, now_ns: i64) -> Option<Closed> {
        self.look(now_ns);
        let awaited = self.meters.iter().filter(|meter| meter.is_awaited(now_ns));
        let end_ns = awaited.filter_map(Meter::last_ns).min();
        self.close_at(end_ns.map(|end_ns| self.clean_cut(end_ns, now_ns)), now_ns)
    }

    /// The last time up to this one that is in no gap of a meter, and not well before a reading of the node's.
    /// Elsewhere what was counted between two readings is cut by time alone, and a job is charged for what another one
    /// used before or after it.
    fn clean_cut(&self, end_ns: i64, now_ns: i64) -> i64 {
        // The first window begins no earlier than it has to: time before it may be in others already. And meters that
        // are away in turn do not keep a window open for ever.
        if self.open_ns.is_none_or(|open_ns| end_ns - open_ns > WINDOW_MAX_NS) {
            return end_ns;
        }
        let awaited = || self.meters.iter().filter(|meter| meter.is_awaited(now_ns));
        let node = awaited().filter(|meter| meter.is_outer()).min_by_key(|meter| meter.scope);
        let gaps = |cut_ns: i64| {
            let lines = awaited().filter_map(move |meter| meter.around(cut_ns));
            lines.filter(|(.., fault)| *fault == Fault::Bridged)
        };
        let early = |cut_ns: i64| {
            let line = node.and_then(|meter| meter.around(cut_ns));
            line.filter(|(_, after_ns, _)| after_ns - cut_ns >= SAME_TICK_NS)
        };
        let mut cut_ns = end_ns;
        while let Some((before_ns, ..)) = gaps(cut_ns).chain(early(cut_ns)).min() {
            cut_ns = before_ns;
        }
        cut_ns
    }

    /// Closes the window up to the last reading of any meter, without those that are slower: nobody will be
    /// there to take their readings.
    pub fn close_for_good(&mut self, now_ns: i64) -> Option<Closed> {
        self.look(now_ns);
        let awaited = self.meters.iter().filter(|meter| meter.is_awaited(now_ns));
        let end_ns = awaited.filter_map(Meter::last_ns).max();
        let mut closed = self.close_at(end_ns, now_ns);
        for slot in std::mem::take(&mut self.ended) {
            let short_uj = self.let_go(slot);
            let Some(closed) = &mut closed else { continue };
            closed.settled.push(slot);
            if short_uj > 0 {
                *closed.short_uj.entry(Who::Job(slot)).or_default() += short_uj;
            }
        }
        closed
    }

    /// What was done up to now is known.
    fn look(&mut self, now_ns: i64) {
        for (&who, line) in &mut self.cards {
            let grown = line.grown();
            line.looked_uj = line.now_uj;
            if grown != Line::default() {
                self.ticks.current.cards.entry(who).or_default().add(&grown);
            }
        }
        self.ticks.look(now_ns);
        let since_ns = self.ticks.last_begin_ns().unwrap_or(now_ns);
        for &slot in &self.ended {
            self.ended_ns.entry(slot).or_insert(since_ns);
        }
    }

    fn close_at(&mut self, end_ns: Option<i64>, now_ns: i64) -> Option<Closed> {
        let Some(end_ns) = end_ns else {
            // Nobody has measured what these did.
            let since_ns = self.open_ns.take().or(self.unmeasured_ns);
            self.unmeasured_ns = since_ns.map(|since_ns| since_ns.max(now_ns));
            return self.leave_out(since_ns, now_ns);
        };
        let Some(begin_ns) = self.open_ns else {
            self.open_ns = Some(end_ns);
            let since_ns = self.unmeasured_ns.take();
            return self.leave_out(since_ns, end_ns);
        };
        if end_ns <= begin_ns {
            return None;
        }
        self.done = self.ticks.take_until(end_ns, &self.ended);
        let closed = self.split(begin_ns, end_ns);
        let mut closed = closed.unwrap_or_else(|| Closed::unmeasured(begin_ns, end_ns, Vec::new()));
        self.open_ns = Some(end_ns);
        closed.settled = self.begin_window(end_ns);
        for meter in &mut self.meters {
            meter.forget_before(end_ns);
        }
        Some(closed)
    }

    /// What was used until now is in no window.
    fn leave_out(&mut self, since_ns: Option<i64>, until_ns: i64) -> Option<Closed> {
        let done = self.ticks.take_until(until_ns, &self.ended);
        if since_ns.is_none() {
            // The first window begins: cards count what they use in any case.
            self.ticks.put_back(done.cards);
        }
        let settled = self.begin_window(until_ns);
        let since_ns = since_ns.filter(|&since_ns| since_ns < until_ns);
        since_ns.map(|since_ns| Closed::unmeasured(since_ns, until_ns, settled))
    }

    /// Jobs that ended and are owed nothing are settled.
    fn begin_window(&mut self, end_ns: i64) -> Vec<u32> {
        let is_in_it = |slot: &u32| self.ended_ns.get(slot).is_some_and(|&ended_ns| ended_ns <= end_ns);
        let is_due = |slot: &u32| is_in_it(slot) && !self.carry.owes(Who::Job(*slot));
        let (settled, waiting): (Vec<u32>, Vec<u32>) =
            std::mem::take(&mut self.ended).into_iter().partition(is_due);
        self.ended = waiting;
        for &slot in &settled {
            self.let_go(slot);
        }
        settled
    }

    /// Forgets a job; what is missing in its lines.
    fn let_go(&mut self, slot: u32) -> u64 {
        self.ended_ns.remove(&slot);
        self.cards.remove(&Who::Job(slot));
        self.carry.close(Who::Job(slot))
    }

    /// Claims what cards used in the window; how much that is in all.
    fn claim_cards(&mut self, end_ns: i64) -> u64 {
        let mut sum_uj = 0;
        for (&who, used) in &self.done.cards {
            sum_uj += used.total_uj();
            self.carry.claim(who, used, end_ns);
        }
        u64::try_from(sum_uj).unwrap_or(0)
    }

    fn split(&mut self, begin_ns: i64, end_ns: i64) -> Option<Closed> {
        let mut whole = self.whole(begin_ns, end_ns)?;
        let was_steady = self.is_steady;
        let backlog_uj = self.carry.claimed_uj();
        let cards_uj = self.claim_cards(end_ns);
        whole.add_cards(cards_uj);
        whole.agrees &= was_steady && whole.fault == Fault::None;
        // One that is behind may show late what was used before: only if it is as far behind afterwards, it did not.
        let is_behind = backlog_uj > whole.outer_uj.unwrap_or(0) / 100;
        if whole.agrees && !is_behind {
            self.learn(&whole, end_ns - begin_ns, end_ns);
        }
        let idle = self.idle_of(&whole, end_ns - begin_ns);
        let mut claims = BTreeMap::new();
        self.claim_inner(&whole, &idle, &mut claims);
        for (who, line) in &claims {
            self.carry.claim(*who, line, end_ns);
        }
        self.settle_gap(&mut whole, &idle, backlog_uj, (begin_ns, end_ns));
        let kept_uj = if whole.fault >= Fault::Lost { 0 } else { idle.rest_uj };
        // What is not shown later is paid now or never, and what has waited for long is paid now, before anything is
        // kept for idle power. Newer claims are not: after a long window a meter that lags is still behind.
        let never_later_uj = self.carry.claimed_uj().saturating_sub(whole.shown_later_uj(backlog_uj));
        let due_uj = never_later_uj.max(self.carry.overdue_uj(end_ns));
        let room_uj = |outer_uj: u64| outer_uj.saturating_sub(kept_uj).max(due_uj.min(outer_uj));
        let room_uj = whole.outer_uj.map_or(u64::MAX, room_uj);
        // A counter that lags is behind by as much after a long gap as before it.
        let is_lost = whole.fault == Fault::Lost && whole.outer.is_some() && !whole.is_guess;
        let most_uj = self.carry.claimed_uj().saturating_sub(backlog_uj);
        let room_uj = if is_lost { room_uj.min(most_uj) } else { room_uj };
        let paid = self.carry.pay(room_uj);
        // What nobody used nobody is owed.
        self.carry.close(Who::Unassigned);
        let rest_uj = whole.outer_uj.map_or(0, |outer_uj| outer_uj - paid.sum_uj);
        let mut lines = paid.lines;
        self.share_rest(&whole, &idle, rest_uj, &mut lines);
        put(&mut lines, Who::Unassigned, |line| &mut line.active_uj[REST], whole.caught_up_uj);
        lines.retain(|_, line| *line != Line::default());
        if lines.contains_key(&Who::Unassigned) {
            whole.fault = whole.fault.max(Fault::Lost);
        }
        let whole_uj = paid.sum_uj + rest_uj + whole.caught_up_uj;
        // One that lags by the same time at the same load shows as much as its parts.
        self.is_steady = self.carry.claimed_uj().abs_diff(backlog_uj) <= whole_uj / 100;
        if whole.agrees && is_behind && self.is_steady {
            self.learn(&whole, end_ns - begin_ns, end_ns);
        }
        debug_assert_eq!(lines.values().map(Line::total_uj).sum::<i64>(), whole_uj as i64);
        let short_uj = self.carry.expire(end_ns, whole.shown_later_uj(backlog_uj));
        let counted_uj = self.counted(&whole, end_ns).unwrap_or(whole_uj);
        self.take_up(&whole, end_ns, whole_uj);
        let Whole { source, kind, metered, fault, .. } = whole;
        let (idle_assumed, settled) = (idle.is_assumed, Vec::new());
        Some(Closed {
            begin_ns,
            end_ns,
            whole_uj,
            counted_uj,
            source,
            kind,
            metered,
            idle_assumed,
            fault,
            lines,
            short_uj,
            settled,
        })
    }

    /// A counter tells the energy of a long gap, and not when it was used. Where others were read until the gap ends in
    /// this window, what parts used in the window beyond the mean of the gap is in what was caught up, and the meter is
    /// not behind by that. It is where less than the idle energy of the gap would be left.
    fn settle_gap(&self, whole: &mut Whole, idle: &Idle, backlog_uj: u64, (begin_ns, end_ns): (i64, i64)) {
        let gap = whole.outer.and_then(|index| self.meters.get(index)?.around(begin_ns));
        let (Some((gap_ns, _, Fault::Lost)), Some(outer_uj)) = (gap, &mut whole.outer_uj) else { return };
        let idle_uj = i128::from(idle.rest_uj) * i128::from(end_ns - gap_ns) / i128::from(end_ns - begin_ns);
        let idle_uj = u64::try_from(idle_uj).unwrap_or(u64::MAX);
        let room_uj = outer_uj.saturating_add(whole.caught_up_uj).saturating_sub(idle_uj);
        let claims_uj = self.carry.claimed_uj().saturating_sub(backlog_uj);
        let moved_uj = claims_uj.min(room_uj).saturating_sub(*outer_uj);
        *outer_uj += moved_uj;
        whole.caught_up_uj -= moved_uj;
    }

    /// What the meter of the machine counted since a window was last made of it, by nothing but its counter; cards that
    /// it does not see are beside that.
    fn counted(&self, whole: &Whole, end_ns: i64) -> Option<u64> {
        let meter = self.meters.get(whole.outer?)?;
        let others_were_read = meter.others_uj > 0 || whole.ahead_uj > 0;
        let taken_uj = meter.taken_uj.filter(|_| !others_were_read)?;
        let cards_uj = if whole.with_cards { 0 } else { whole.cards_uj };
        Some(meter.at(end_ns)?.saturating_sub(taken_uj).saturating_add(cards_uj))
    }

    /// Notes which meters the window was made of: what they count while others are read in their place is theirs.
    fn take_up(&mut self, whole: &Whole, end_ns: i64, whole_uj: u64) {
        let chosen = whole.outer;
        for (index, meter) in self.meters.iter_mut().enumerate() {
            let is_taken = if meter.is_outer() { chosen == Some(index) } else { true };
            match meter.at(end_ns).filter(|_| is_taken) {
                Some(so_far_uj) => meter.take_up(so_far_uj, whole.ahead_uj),
                None => meter.others_uj = meter.others_uj.saturating_add(whole_uj),
            }
        }
    }

    /// The best figure for all of the machine, and the parts that are known by meters of their own.
    fn whole(&self, begin_ns: i64, end_ns: i64) -> Option<Whole> {
        let cpu = self.inner(Scope::Package, begin_ns, end_ns);
        let memory = self.inner(Scope::Memory, begin_ns, end_ns);
        let has_inner = cpu.energy_uj.is_some() && !cpu.is_estimated;
        let outer = (self.meters.iter().enumerate())
            .filter(|(_, meter)| meter.is_outer())
            .filter_map(|(index, meter)| Some((index, meter, meter.between(begin_ns, end_ns)?)))
            // One that knows nothing of this time is worth less than the processors' own.
            .filter(|(.., span)| span.fault != Fault::Unknown || !has_inner)
            .min_by_key(|(_, meter, _)| meter.scope);
        let Some((index, meter, span)) = outer else {
            let is_away = |meter: &Meter| {
                let last_ns = meter.last_ns().filter(|_| meter.is_outer() && meter.taken_uj.is_some());
                last_ns.is_some_and(|last_ns| end_ns - last_ns < AWAY_NS)
            };
            return Whole::of_inner(cpu, memory, self.meters.iter().any(is_away));
        };
        let (missed_uj, ahead_uj) = meter.apart(begin_ns);
        // What is known in part alone is not known: the rest of the machine holds it.
        let (cpu, memory) = (cpu.complete(), memory.complete());
        let fault = span.fault.max(cpu.fault).max(memory.fault);
        Some(Whole {
            outer: Some(index),
            // What others that were read in its place have shown already.
            outer_uj: Some(span.energy_uj.saturating_sub(ahead_uj)),
            ahead_uj: ahead_uj.saturating_sub(span.energy_uj),
            is_guess: meter.is_power() && span.fault != Fault::None,
            outer_lost_uj: span.lost_uj,
            caught_up_uj: missed_uj,
            with_cards: matches!(meter.scope, Scope::Node { with_cards: true, .. }),
            source: meter.name.clone(),
            kind: if span.fault == Fault::Unknown { QualityKind::LowerBound } else { meter.kind },
            fault: if missed_uj > 0 { fault.max(Fault::Lost) } else { fault },
            metered: [cpu.energy_uj.is_some(), memory.energy_uj.is_some(), true, true],
            cards_uj: 0,
            agrees: true,
            meters: String::new(),
            cpu,
            memory,
        })
    }

    /// What the meters of processors, or those of memory, say together.
    fn inner(&self, scope: Scope, begin_ns: i64, end_ns: i64) -> Inner {
        let (mut measured, mut estimated) = (Inner::default(), Inner::default());
        for meter in self.meters.iter().filter(|meter| meter.scope == scope) {
            let is_estimate = meter.kind == QualityKind::Estimated;
            let inner = if is_estimate { &mut estimated } else { &mut measured };
            match meter.between(begin_ns, end_ns) {
                Some(span) => {
                    inner.add(span);
                    let before = meter.at(begin_ns).zip(meter.taken_uj);
                    inner.caught_up_uj += before.map_or(0, |(so_far, taken)| so_far.saturating_sub(taken));
                }
                None => inner.is_lacking |= !is_estimate,
            }
        }
        // An estimate is one of all of them, and for when none is read.
        if measured.energy_uj.is_none() && estimated.energy_uj.is_some() {
            return Inner { is_estimated: true, ..estimated };
        }
        measured
    }

    /// A window in which all meters agree tells what the machine uses at such a load.
    fn learn(&mut self, whole: &Whole, window_ns: i64, end_ns: i64) {
        self.usual_uj = Some(whole.host_uj());
        if whole.kind == QualityKind::Measured {
            self.idle.learn(&whole.meters, &whole.host_uj(), &self.done.node, window_ns, end_ns);
        }
    }

    /// What the machine would have used doing nothing. Of cards it is part of their lines.
    fn idle_of(&self, whole: &Whole, window_ns: i64) -> Idle {
        let (host_uj, outer_uj) = (whole.host_uj(), whole.outer_uj.unwrap_or(0));
        let learned = || self.learned_by_part(whole);
        if let Some(idle_mw) = self.policy.idle_mw {
            let all_uj = energy_uj(idle_mw, window_ns);
            // As much of it is of each part as was seen at rest. Before that, by what each part uses; while meters do
            // not agree, by what it used when they last did.
            let usual = learned().or(self.usual_uj.filter(|_| !whole.agrees));
            let split = match usual {
                Some(usual) => {
                    let mut parts = Vec::new();
                    apportion(all_uj, &usual, &mut parts);
                    std::array::from_fn(|part| parts[part].min(host_uj[part]))
                }
                None => split_by(all_uj.min(host_uj.iter().sum()), &host_uj),
            };
            // What a meter that lags does not show yet is not what the machine has at rest.
            let rest_uj = (all_uj - split[CPU] - split[MEMORY]).min(outer_uj);
            let (cpu_uj, memory_uj) = (split[CPU], split[MEMORY]);
            return Idle { cpu_uj, memory_uj, rest_uj, resting_permille: 0, is_assumed: false };
        }
        let known_mw = self.known_idle_mw.or_else(learned);
        let idle_mw = known_mw.unwrap_or_else(|| self.assumed_by_part(whole.metered));
        // Where it is not known, what is above the estimate is somebody's doing as far as anything was done: else a
        // job that sleeps would pay for a machine that idles at more.
        let resting_permille = match known_mw {
            Some(_) => 0,
            None => 1000 - self.done.node.load_permille().unwrap_or(1000),
        };
        let mut idle = Idle { resting_permille, is_assumed: known_mw.is_none(), ..Idle::default() };
        let least_uj = |part: usize| energy_uj(idle_mw[part], window_ns);
        idle.cpu_uj = idle.above(least_uj(CPU), host_uj[CPU]);
        idle.memory_uj = idle.above(least_uj(MEMORY), host_uj[MEMORY]);
        idle.rest_uj = least_uj(REST).min(outer_uj);
        idle
    }

    /// What these meters have shown. Where they have not, what the same meter of the node has shown together with those
    /// of processors or memory that are away now: these are in the rest meanwhile.
    fn learned_by_part(&self, whole: &Whole) -> Option<[u64; PARTS]> {
        let of = |meters: &str| self.idle.of(meters).map(|learned| learned.idle_mw);
        let with = |parts: &[usize]| {
            let mut metered = whole.metered;
            parts.iter().for_each(|&part| metered[part] = true);
            let mut idle_mw = of(&whole.set_of_meters(metered)).filter(|_| whole.outer.is_some())?;
            for part in [CPU, MEMORY].into_iter().filter(|&part| !whole.metered[part]) {
                idle_mw[REST] = idle_mw[REST].saturating_add(std::mem::take(&mut idle_mw[part]));
            }
            Some(idle_mw)
        };
        of(&whole.meters).or_else(|| [&[CPU, MEMORY][..], &[CPU], &[MEMORY]].into_iter().find_map(with))
    }

    /// Processors and memory without meters of their own are in the rest, if there is one for that.
    fn assumed_by_part(&self, metered: [bool; PARTS]) -> [u64; PARTS] {
        let mut idle_mw = [0; PARTS];
        let assumed_mw = self.assumed_idle_mw.unwrap_or_default();
        for (part, mw) in [CPU, MEMORY].into_iter().zip(assumed_mw) {
            idle_mw[if metered[part] { part } else { REST }] += mw;
        }
        idle_mw
    }

    /// Jobs and the system, as they are weighed.
    fn weighed(&self) -> (Vec<Who>, Vec<Weights>) {
        let mut sum = Weights::default();
        self.done.jobs.values().for_each(|weights| sum.add(*weights));
        let everybody = self.done.jobs.keys().map(|&slot| Who::Job(slot)).chain([Who::System]).collect();
        (everybody, self.done.jobs.values().copied().chain([self.done.node.above(sum)]).collect())
    }

    /// What processors and memory used, by who used it.
    fn claim_inner(&self, whole: &Whole, idle: &Idle, claims: &mut BTreeMap<Who, Line>) {
        let (everybody, weights) = self.weighed();
        for (part, inner, idle_uj) in
            [(CPU, &whole.cpu, idle.cpu_uj), (MEMORY, &whole.memory, idle.memory_uj)]
        {
            let by = |weights: &Weights| if part == CPU { weights.cpu } else { weights.memory };
            let active_uj = inner.shared_uj() - idle_uj;
            let by: Vec<u64> = weights.iter().map(by).collect();
            share(active_uj, &by, &everybody, |line| &mut line.active_uj[part], claims);
            self.share_idle(idle_uj, part, claims);
            put(claims, Who::Unassigned, |line| &mut line.active_uj[part], inner.lost_uj);
        }
    }

    /// Fans, disks and losses of the power supply follow what the rest of the machine does. Where the processors
    /// have no meter of their own they are in the rest, and CPU time is what is known of them.
    fn share_rest(&self, whole: &Whole, idle: &Idle, rest_uj: u64, lines: &mut BTreeMap<Who, Line>) {
        let lost_uj = whole.outer_lost_uj.min(rest_uj);
        put(lines, Who::Unassigned, |line| &mut line.active_uj[REST], lost_uj);
        let rest_uj = rest_uj - lost_uj;
        let idle_uj = idle.above(idle.rest_uj, rest_uj);
        let (mut everybody, weights) = self.weighed();
        let mut by: Vec<u64> = weights.iter().map(|weights| weights.cpu).collect();
        if whole.cpu.shown_uj() > 0 {
            let active = |who: &Who| lines.get(who).map_or(0, |line| line.active_uj.iter().sum::<i64>());
            let others = lines.keys().copied().filter(|who| *who != Who::Unassigned);
            let others: Vec<Who> = others.filter(|who| !everybody.contains(who)).collect();
            everybody = others.into_iter().chain(everybody).collect();
            by = everybody.iter().map(|who| active(who).max(0) as u64).collect();
        }
        share(rest_uj - idle_uj, &by, &everybody, |line| &mut line.active_uj[REST], lines);
        self.share_idle(idle_uj, REST, lines);
    }

    fn share_idle(&self, idle_uj: u64, part: usize, lines: &mut BTreeMap<Who, Line>) {
        let mut everybody = vec![Who::Idle];
        let mut held = vec![1];
        if self.policy.idle_to == IdleTo::Holders {
            let sum = self.done.jobs.values().fold(0u64, |sum, weights| sum.saturating_add(weights.held));
            everybody = self.done.jobs.keys().map(|&slot| Who::Job(slot)).chain([Who::Idle]).collect();
            held = self.done.jobs.values().map(|weights| weights.held).collect();
            held.push(self.done.node.held.saturating_sub(sum));
        }
        share(idle_uj, &held, &everybody, |line| &mut line.idle_uj[part], lines);
    }
}

/// What a machine uses doing nothing, in one window.
#[derive(Clone, Copy, Default)]
struct Idle {
    cpu_uj: u64,
    memory_uj: u64,
    rest_uj: u64,
    /// How much of what is above it counts as idle, too.
    resting_permille: u64,
    is_assumed: bool,
}

impl Idle {
    /// The idle part of so much, if at least so much is idle.
    fn above(&self, least_uj: u64, all_uj: u64) -> u64 {
        let least_uj = least_uj.min(all_uj);
        let above_uj = u128::from(all_uj - least_uj) * u128::from(self.resting_permille) / 1000;
        least_uj + u64::try_from(above_uj).unwrap_or(0)
    }
}

struct Whole {
    /// The meter of all of the machine, what it shows, and what of that nobody can be charged for.
    outer: Option<usize>,
    outer_uj: Option<u64>,
    outer_lost_uj: u64,
    /// Readings of its power are missing, and what it shows is a line between the others.
    is_guess: bool,
    /// What others have shown beyond what it has counted by the end of this window.
    ahead_uj: u64,
    /// What meters counted before this window, of which no window has told.
    caught_up_uj: u64,
    with_cards: bool,
    cpu: Inner,
    memory: Inner,
    /// What cards claim in it.
    cards_uj: u64,
    /// No meter says more than one that it is a part of.
    agrees: bool,
    source: String,
    kind: QualityKind,
    fault: Fault,
    metered: [bool; PARTS],
    /// All meters that had a say: idle power is learned for each set of them.
    meters: String,
}

/// What several meters of one scope say together of a window.
#[derive(Clone, Copy, Default)]
struct Inner {
    energy_uj: Option<u64>,
    lost_uj: u64,
    /// Counted before the window, while others were not read.
    caught_up_uj: u64,
    fault: Fault,
    is_estimated: bool,
    /// One of them was not read all the while: there is more than this.
    is_lacking: bool,
}

impl Inner {
    fn add(&mut self, span: Span) {
        self.energy_uj = Some(self.energy_uj.unwrap_or(0).saturating_add(span.energy_uj));
        self.lost_uj += span.lost_uj;
        self.fault = self.fault.max(span.fault);
    }

    fn complete(self) -> Inner {
        if self.is_lacking { Inner::default() } else { self }
    }

    fn shown_uj(&self) -> u64 {
        self.energy_uj.unwrap_or(0)
    }

    /// What can be charged to somebody.
    fn shared_uj(&self) -> u64 {
        self.shown_uj().saturating_sub(self.lost_uj)
    }
}

impl Whole {
    /// Of a machine without a meter for all of it. Where one of the others is missing it is more than this.
    fn of_inner(cpu: Inner, memory: Inner, is_away: bool) -> Option<Whole> {
        let source = if cpu.energy_uj.is_some() { "processors" } else { "memory" };
        cpu.energy_uj.or(memory.energy_uj)?;
        let caught_up_uj = cpu.caught_up_uj + memory.caught_up_uj;
        let fault = cpu.fault.max(memory.fault).max(if caught_up_uj > 0 { Fault::Lost } else { Fault::None });
        let is_lacking = cpu.energy_uj.is_none() || cpu.is_lacking || memory.is_lacking || is_away;
        let kind = match is_lacking || fault == Fault::Unknown {
            true => QualityKind::LowerBound,
            false if cpu.is_estimated || memory.is_estimated => QualityKind::Estimated,
            false => QualityKind::Measured,
        };
        Some(Whole {
            outer: None,
            outer_uj: None,
            ahead_uj: 0,
            is_guess: false,
            outer_lost_uj: 0,
            caught_up_uj,
            with_cards: false,
            metered: [cpu.energy_uj.is_some(), memory.energy_uj.is_some(), true, false],
            cpu,
            memory,
            cards_uj: 0,
            agrees: true,
            source: source.into(),
            kind,
            fault,
            meters: String::new(),
        })
    }

    /// How much of the claims the meter may show in later windows, if it was behind by `backlog_uj` before this one.
    fn shown_later_uj(&self, backlog_uj: u64) -> u64 {
        match self.fault {
            // What a meter did not count it does not show later, either.
            Fault::Unknown => 0,
            // Nor the power that was not read. One that lags is still behind by as much as before.
            _ if self.is_guess => backlog_uj,
            _ => u64::MAX,
        }
    }

    fn inner_uj(&self) -> u64 {
        let host_uj = self.cpu.shared_uj().saturating_add(self.memory.shared_uj());
        host_uj.saturating_add(self.cards_uj)
    }

    /// By part, without cards, if the meters agree.
    fn host_uj(&self) -> [u64; PARTS] {
        let rest_uj = self.outer_uj.map_or(0, |outer_uj| outer_uj.saturating_sub(self.inner_uj()));
        [self.cpu.shared_uj(), self.memory.shared_uj(), 0, rest_uj]
    }

    /// Cards are within a meter that sees them, and beside any other.
    fn add_cards(&mut self, cards_uj: u64) {
        self.cards_uj = cards_uj;
        if !self.with_cards {
            self.outer_uj = self.outer_uj.map(|outer_uj| outer_uj.saturating_add(cards_uj));
        }
        self.agrees = self.outer_uj.is_none_or(|outer_uj| self.inner_uj() <= outer_uj);
        self.meters = self.set_of_meters(self.metered);
    }

    /// Its meters, if those of these parts were read.
    fn set_of_meters(&self, metered: [bool; PARTS]) -> String {
        let outer = self.outer.map(|_| self.source.as_str());
        set_of_meters(outer, metered, self.with_cards && self.cards_uj > 0)
    }
}

/// As a person would name them. Cards that nobody reads are in what the meter of the node calls the rest.
fn set_of_meters(outer: Option<&str>, metered: [bool; PARTS], has_cards: bool) -> String {
    let inner = [("processors", metered[CPU]), ("memory", metered[MEMORY]), ("cards", has_cards)];
    let inner = inner.into_iter().filter(|(_, is_read)| *is_read).map(|(name, _)| name);
    outer.into_iter().chain(inner).collect::<Vec<_>>().join(", ")
}

fn put(lines: &mut BTreeMap<Who, Line>, who: Who, cell: impl Fn(&mut Line) -> &mut i64, energy_uj: u64) {
    if energy_uj > 0 {
        *cell(lines.entry(who).or_default()) += energy_uj as i64;
    }
}

fn share(
    whole_uj: u64,
    weights: &[u64],
    everybody: &[Who],
    cell: impl Fn(&mut Line) -> &mut i64,
    lines: &mut BTreeMap<Who, Line>,
) {
    let mut parts = Vec::new();
    apportion(whole_uj, weights, &mut parts);
    for (&who, part_uj) in everybody.iter().zip(parts) {
        put(lines, who, &cell, part_uj);
    }
}

fn split_by(whole_uj: u64, weights: &[u64; PARTS]) -> [u64; PARTS] {
    let mut parts = Vec::new();
    apportion(whole_uj, weights, &mut parts);
    std::array::from_fn(|part| parts[part].min(weights[part]))
}

fn energy_uj(power_mw: u64, window_ns: i64) -> u64 {
    let uj = u128::from(power_mw) * u128::from(window_ns.unsigned_abs()) / 1_000_000;
    u64::try_from(uj).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod simulation;
