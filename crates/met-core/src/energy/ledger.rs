//! The node's energy ledger: in every window jobs + system + idle is what the meter says, to the microjoule.
//!
//! Meters are read at their own times, jobs at every tick. A window is closed up to the time of the slowest
//! meter's last reading. What was used in it has four parts: processors, memory, cards, and the rest of the
//! machine. Each has an idle share, which the machine would have used doing nothing, and an active one, which
//! is split by what jobs did meanwhile. A job that ended in a window is settled when that window is closed.

use std::collections::BTreeMap;

use super::idle::{IdlePower, LearnedIdle};
use super::meter::{Meter, Scope};
use crate::apportion::apportion;
use crate::job::QualityKind;

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
}

/// Energy in microjoules by part of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub active_uj: [u64; PARTS],
    pub idle_uj: [u64; PARTS],
}

impl Line {
    pub fn total_uj(&self) -> u64 {
        self.active_uj.iter().chain(&self.idle_uj).sum()
    }

    pub fn idle_total_uj(&self) -> u64 {
        self.idle_uj.iter().sum()
    }

    /// Without its cards, whose own ledger knows them better.
    pub fn host(&self) -> Line {
        let mut host = *self;
        (host.active_uj[CARDS], host.idle_uj[CARDS]) = (0, 0);
        host
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
    fn add(&mut self, other: Weights) {
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.memory = self.memory.saturating_add(other.memory);
        self.held = self.held.saturating_add(other.held);
    }

    /// How much of its CPUs a machine used, in thousandths.
    pub(super) fn load_permille(&self) -> Option<u64> {
        let permille = (u128::from(self.cpu) * 1000).checked_div(u128::from(self.held))?;
        Some(permille.min(1000) as u64)
    }

    fn above(self, sum: Weights) -> Weights {
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
    /// The meters that the whole was read from, best first.
    pub source: String,
    /// A lower bound where a meter is missing that the whole is made of.
    pub kind: QualityKind,
    /// By part, whether a meter told it apart from the others.
    pub metered: [bool; PARTS],
    /// Nobody knows what the machine uses doing nothing: that was estimated.
    pub idle_assumed: bool,
    pub lines: BTreeMap<Who, Line>,
    /// Jobs that ended in it, and are settled now.
    pub settled: Vec<u32>,
}

/// A meter, as it is known to the ledger that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterId(usize);

#[derive(Debug)]
pub struct Ledger {
    policy: Policy,
    meters: Vec<Meter>,
    open_ns: Option<i64>,
    weights: BTreeMap<u32, Weights>,
    /// Of the whole machine: all its used CPU time and memory, and all its CPUs as held.
    node: Weights,
    cards: BTreeMap<Who, CardLine>,
    /// Of jobs that left: what they were told to have used on cards beyond what windows took.
    left_cards_uj: i128,
    ended: Vec<u32>,
    idle: IdlePower,
    /// Of a machine whose idle power is known by part.
    known_idle_mw: Option<[u64; PARTS]>,
    /// Of processors and memory, where nothing better is known.
    assumed_idle_mw: Option<[u64; 2]>,
}

/// Of somebody on all cards together, active and idle: what is known of it now, and what windows took of it.
#[derive(Clone, Copy, Debug, Default)]
struct CardLine {
    now_uj: (u64, u64),
    taken_uj: (u64, u64),
}

impl CardLine {
    /// What no window has taken yet. What is active may turn out to be idle: both together only grow.
    fn grown(&self) -> (u64, u64) {
        let (now, taken) = (self.now_uj, self.taken_uj);
        let grown = (now.0 + now.1).saturating_sub(taken.0 + taken.1);
        let active = grown.min(now.0.saturating_sub(taken.0));
        (active, grown - active)
    }

    fn untaken_uj(&self) -> i128 {
        i128::from(self.now_uj.0 + self.now_uj.1) - i128::from(self.taken_uj.0 + self.taken_uj.1)
    }
}

/// Energy of a window by part.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    parts_uj: [u64; PARTS],
    idle_uj: [u64; PARTS],
}

impl Ledger {
    /// Holds from the window on that is closed next.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    pub fn new(policy: Policy) -> Ledger {
        Ledger {
            policy,
            meters: Vec::new(),
            open_ns: None,
            weights: BTreeMap::new(),
            node: Weights::default(),
            cards: BTreeMap::new(),
            left_cards_uj: 0,
            ended: Vec::new(),
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
        self.meters[meter.0].read_counter(at_ns, counter_uj);
    }

    pub fn read_power(&mut self, meter: MeterId, at_ns: i64, power_mw: i64) {
        self.meters[meter.0].read_power(at_ns, power_mw);
    }

    /// What a job did since the last weighing.
    pub fn weigh_job(&mut self, slot: u32, weights: Weights) {
        self.weights.entry(slot).or_default().add(weights);
    }

    /// What all of the machine did meanwhile, jobs included.
    pub fn weigh_node(&mut self, weights: Weights) {
        self.node.add(weights);
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

    /// Closes the window up to where every meter that is read at present has been read.
    pub fn close(&mut self, now_ns: i64) -> Option<Closed> {
        let fresh = self.meters.iter().filter(|meter| meter.is_fresh(now_ns));
        let end_ns = fresh.filter_map(Meter::last_ns).min();
        self.close_at(end_ns)
    }

    /// Closes the window up to the last reading of any meter, without those that are slower: nobody will be
    /// there to take their readings.
    pub fn close_for_good(&mut self, now_ns: i64) -> Option<Closed> {
        let fresh = self.meters.iter().filter(|meter| meter.is_fresh(now_ns));
        let end_ns = fresh.filter_map(Meter::last_ns).max();
        self.close_at(end_ns)
    }

    fn close_at(&mut self, end_ns: Option<i64>) -> Option<Closed> {
        let Some(end_ns) = end_ns else {
            // Nobody has measured what these did.
            self.open_ns = None;
            self.forget_cards();
            self.begin_window();
            return None;
        };
        let Some(begin_ns) = self.open_ns else {
            self.open_ns = Some(end_ns);
            self.forget_cards();
            self.begin_window();
            return None;
        };
        if end_ns <= begin_ns {
            return None;
        }
        let closed = self.split(begin_ns, end_ns);
        if closed.is_none() {
            self.forget_cards();
        }
        self.open_ns = Some(end_ns);
        self.begin_window();
        for meter in &mut self.meters {
            meter.forget_before(end_ns);
        }
        closed
    }

    fn begin_window(&mut self) {
        self.weights.clear();
        self.node = Weights::default();
        for slot in self.ended.drain(..) {
            let left = self.cards.remove(&Who::Job(slot));
            self.left_cards_uj += left.map_or(0, |line| line.untaken_uj());
        }
    }

    /// What cards used so far belongs to no window.
    fn forget_cards(&mut self) {
        self.left_cards_uj = 0;
        for line in self.cards.values_mut() {
            line.taken_uj = line.now_uj;
        }
    }

    /// What cards used that no window has taken, by who it is of. A share that turned out to be too high is made
    /// good by the next ones: windows one after the other add up to what the cards used.
    fn take_cards(&mut self) -> Vec<(Who, (u64, u64))> {
        let due_uj = self.left_cards_uj + self.cards.values().map(CardLine::untaken_uj).sum::<i128>();
        let due_uj = u64::try_from(due_uj.max(0)).unwrap_or(u64::MAX);
        let grown: Vec<(u64, u64)> = self.cards.values().map(CardLine::grown).collect();
        let weights: Vec<u64> = grown.iter().flat_map(|(active, idle)| [*active, *idle]).collect();
        let mut parts = Vec::new();
        apportion(due_uj.min(weights.iter().sum()), &weights, &mut parts);
        let mut taken = Vec::new();
        for ((&who, line), pair) in self.cards.iter_mut().zip(parts.chunks_exact(2)) {
            line.taken_uj = (line.taken_uj.0 + pair[0], line.taken_uj.1 + pair[1]);
            taken.push((who, (pair[0], pair[1])));
        }
        taken
    }

    fn split(&mut self, begin_ns: i64, end_ns: i64) -> Option<Closed> {
        let card_lines = self.take_cards();
        let cards_uj: u64 = card_lines.iter().map(|(_, (active, idle))| active + idle).sum();
        let whole = self.whole(begin_ns, end_ns, cards_uj)?;
        let (idle_uj, idle_assumed) = self.idle_of(&whole, begin_ns, end_ns);
        let Whole { whole_uj, source, kind, parts_uj, metered, .. } = whole;
        let usage = Usage { parts_uj, idle_uj };
        let mut lines = BTreeMap::new();
        share_cards(&card_lines, usage.parts_uj[CARDS], &mut lines);
        self.share_active(&usage, &mut lines);
        self.share_idle(&usage, &mut lines);
        lines.retain(|_, line| *line != Line::default());
        debug_assert_eq!(lines.values().map(Line::total_uj).sum::<u64>(), whole_uj);
        let settled = self.ended.clone();
        Some(Closed { begin_ns, end_ns, whole_uj, source, kind, metered, idle_assumed, lines, settled })
    }

    /// The best figure for all of the machine, and its parts: they add up to it.
    fn whole(&self, begin_ns: i64, end_ns: i64, cards_uj: u64) -> Option<Whole> {
        let cpu = self.inner(Scope::Package, begin_ns, end_ns);
        let memory = self.inner(Scope::Memory, begin_ns, end_ns);
        let outer = (self.meters.iter())
            .filter(|meter| matches!(meter.scope, Scope::Node { .. } | Scope::Board))
            .filter_map(|meter| Some((meter, meter.between(begin_ns, end_ns)?)))
            .min_by_key(|(meter, _)| meter.scope);
        let Some((meter, outer_uj)) = outer else { return Whole::of_inner(cpu, memory, cards_uj) };
        let with_cards = matches!(meter.scope, Scope::Node { with_cards: true, .. });
        let whole_uj = if with_cards { outer_uj } else { outer_uj.saturating_add(cards_uj) };
        // What is known in part alone is not known: the rest of the machine holds it.
        let (cpu_uj, memory_uj) = (cpu.complete_uj(), memory.complete_uj());
        let metered = [cpu_uj.is_some(), memory_uj.is_some(), true, true];
        let parts_uj = fit(whole_uj, [cpu_uj.unwrap_or(0), memory_uj.unwrap_or(0), cards_uj]);
        let has_cards = with_cards && cards_uj > 0;
        let meters = set_of_meters(Some(&meter.name), metered, has_cards);
        Some(Whole { whole_uj, source: meter.name.clone(), kind: meter.kind, parts_uj, metered, meters })
    }

    /// What the meters of processors, or those of memory, say together.
    fn inner(&self, scope: Scope, begin_ns: i64, end_ns: i64) -> Inner {
        let mut inner = Inner::default();
        let (mut estimated_uj, mut is_lacking) = (None, false);
        for meter in self.meters.iter().filter(|meter| meter.scope == scope) {
            let sum_uj = match meter.kind {
                QualityKind::Estimated => &mut estimated_uj,
                _ => &mut inner.energy_uj,
            };
            match meter.between(begin_ns, end_ns) {
                Some(uj) => *sum_uj = Some(sum_uj.unwrap_or(0u64).saturating_add(uj)),
                None => is_lacking |= meter.kind != QualityKind::Estimated,
            }
        }
        // An estimate is one of all of them, and for when none is read.
        if inner.energy_uj.is_none() && estimated_uj.is_some() {
            return Inner { energy_uj: estimated_uj, is_estimated: true, is_lacking: false };
        }
        Inner { is_lacking, ..inner }
    }

    /// What the machine would have used doing nothing, and whether that is an estimate. Of cards it is part of
    /// their lines.
    fn idle_of(&mut self, whole: &Whole, begin_ns: i64, end_ns: i64) -> ([u64; PARTS], bool) {
        let (parts_uj, window_ns) = (&whole.parts_uj, end_ns - begin_ns);
        if whole.kind == QualityKind::Measured {
            self.idle.learn(&whole.meters, parts_uj, &self.node, window_ns, end_ns);
        }
        let host_uj = [parts_uj[CPU], parts_uj[MEMORY], 0, parts_uj[REST]];
        if let Some(idle_mw) = self.policy.idle_mw {
            let idle_uj = energy_uj(idle_mw, window_ns).min(host_uj.iter().sum());
            return (split_by(idle_uj, &host_uj), false);
        }
        let learned = || self.idle.of(&whole.meters).map(|learned| learned.idle_mw);
        let known_mw = self.known_idle_mw.or_else(learned);
        let idle_mw = known_mw.unwrap_or_else(|| self.assumed_by_part(whole.metered));
        // Where it is not known, what is above the estimate is somebody's doing as far as anything was done: else a
        // job that sleeps would pay for a machine that idles at more.
        let resting = match known_mw {
            Some(_) => 0,
            None => 1000 - self.node.load_permille().unwrap_or(1000),
        };
        let idle_uj = |part: usize| {
            let least_uj = energy_uj(idle_mw[part], window_ns).min(host_uj[part]);
            let above_uj = u128::from(host_uj[part] - least_uj) * u128::from(resting) / 1000;
            least_uj + u64::try_from(above_uj).unwrap_or(0)
        };
        (std::array::from_fn(idle_uj), known_mw.is_none())
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

    fn share_active(&self, usage: &Usage, lines: &mut BTreeMap<Who, Line>) {
        let everybody: Vec<Who> =
            self.weights.keys().map(|&slot| Who::Job(slot)).chain([Who::System]).collect();
        let sum = self.weights.values().fold(Weights::default(), |mut sum, weights| {
            sum.add(*weights);
            sum
        });
        let system = self.node.above(sum);
        let active_uj = |part: usize| usage.parts_uj[part] - usage.idle_uj[part];
        let by = |weight: fn(&Weights) -> u64| -> Vec<u64> {
            self.weights.values().chain([&system]).map(weight).collect()
        };
        share(active_uj(CPU), &by(|weights| weights.cpu), &everybody, |line| &mut line.active_uj[CPU], lines);
        share(
            active_uj(MEMORY),
            &by(|weights| weights.memory),
            &everybody,
            |line| &mut line.active_uj[MEMORY],
            lines,
        );
        // Fans, disks and losses of the power supply follow what the rest of the machine does. Where the
        // processors have no meter of their own they are in the rest, and CPU time is what is known of them.
        if usage.parts_uj[CPU] == 0 {
            share(
                active_uj(REST),
                &by(|weights| weights.cpu),
                &everybody,
                |line| &mut line.active_uj[REST],
                lines,
            );
            return;
        }
        let others: Vec<Who> = lines.keys().copied().filter(|who| !everybody.contains(who)).collect();
        let everybody: Vec<Who> = others.into_iter().chain(everybody).collect();
        let active: Vec<u64> = everybody
            .iter()
            .map(|who| lines.get(who).map_or(0, |line| line.active_uj.iter().sum()))
            .collect();
        share(active_uj(REST), &active, &everybody, |line| &mut line.active_uj[REST], lines);
    }

    fn share_idle(&self, usage: &Usage, lines: &mut BTreeMap<Who, Line>) {
        let mut everybody = vec![Who::Idle];
        let mut held = vec![1];
        if self.policy.idle_to == IdleTo::Holders {
            let sum = self.weights.values().fold(0u64, |sum, weights| sum.saturating_add(weights.held));
            everybody = self.weights.keys().map(|&slot| Who::Job(slot)).chain([Who::Idle]).collect();
            held = self.weights.values().map(|weights| weights.held).collect();
            held.push(self.node.held.saturating_sub(sum));
        }
        for part in [CPU, MEMORY, REST] {
            share(usage.idle_uj[part], &held, &everybody, |line| &mut line.idle_uj[part], lines);
        }
    }
}

struct Whole {
    whole_uj: u64,
    source: String,
    kind: QualityKind,
    parts_uj: [u64; PARTS],
    metered: [bool; PARTS],
    /// All meters that had a say: idle power is learned for each set of them.
    meters: String,
}

/// What several meters of one scope say together of a window.
#[derive(Clone, Copy, Default)]
struct Inner {
    energy_uj: Option<u64>,
    is_estimated: bool,
    /// One of them was not read all the while: there is more than this.
    is_lacking: bool,
}

impl Inner {
    fn complete_uj(self) -> Option<u64> {
        self.energy_uj.filter(|_| !self.is_lacking)
    }
}

impl Whole {
    /// Of a machine without a meter for all of it. Where one of the others is missing it is more than this.
    fn of_inner(cpu: Inner, memory: Inner, cards_uj: u64) -> Option<Whole> {
        let source = if cpu.energy_uj.is_some() { "processors" } else { "memory" };
        cpu.energy_uj.or(memory.energy_uj)?;
        let is_lacking = cpu.energy_uj.is_none() || cpu.is_lacking || memory.is_lacking;
        let kind = match is_lacking {
            true => QualityKind::LowerBound,
            false if cpu.is_estimated || memory.is_estimated => QualityKind::Estimated,
            false => QualityKind::Measured,
        };
        let metered = [cpu.energy_uj.is_some(), memory.energy_uj.is_some(), true, false];
        let parts_uj = [cpu.energy_uj.unwrap_or(0), memory.energy_uj.unwrap_or(0), cards_uj, 0];
        let meters = set_of_meters(None, metered, false);
        let whole_uj = parts_uj.iter().sum();
        Some(Whole { whole_uj, source: source.into(), kind, parts_uj, metered, meters })
    }
}

/// As a person would name them. Cards that nobody reads are in what the meter of the node calls the rest.
fn set_of_meters(outer: Option<&str>, metered: [bool; PARTS], has_cards: bool) -> String {
    let inner = [("processors", metered[CPU]), ("memory", metered[MEMORY]), ("cards", has_cards)];
    let inner = inner.into_iter().filter(|(_, is_read)| *is_read).map(|(name, _)| name);
    outer.into_iter().chain(inner).collect::<Vec<_>>().join(", ")
}

/// Parts that fit into the whole. Inner meters that say more than the outer one are cut, cards last: a card's
/// own counter is the better of the two.
fn fit(whole_uj: u64, [cpu_uj, memory_uj, cards_uj]: [u64; 3]) -> [u64; PARTS] {
    let cards_uj = cards_uj.min(whole_uj);
    let left_uj = whole_uj - cards_uj;
    match cpu_uj.saturating_add(memory_uj).cmp(&left_uj) {
        std::cmp::Ordering::Greater => {
            let mut cut = Vec::new();
            apportion(left_uj, &[cpu_uj, memory_uj], &mut cut);
            [cut[0], cut[1], cards_uj, 0]
        }
        _ => [cpu_uj, memory_uj, cards_uj, left_uj - cpu_uj - memory_uj],
    }
}

/// Cards are split by who used and held them already; where the outer meter saw less, all shrink alike.
fn share_cards(claims: &[(Who, (u64, u64))], cards_uj: u64, lines: &mut BTreeMap<Who, Line>) {
    let weights: Vec<u64> = claims.iter().flat_map(|(_, (active, idle))| [*active, *idle]).collect();
    let mut parts = Vec::new();
    apportion(cards_uj, &weights, &mut parts);
    for ((who, _), pair) in claims.iter().zip(parts.chunks_exact(2)) {
        let line = lines.entry(*who).or_default();
        line.active_uj[CARDS] += pair[0];
        line.idle_uj[CARDS] += pair[1];
    }
}

fn share(
    whole_uj: u64,
    weights: &[u64],
    everybody: &[Who],
    cell: impl Fn(&mut Line) -> &mut u64,
    lines: &mut BTreeMap<Who, Line>,
) {
    let mut parts = Vec::new();
    apportion(whole_uj, weights, &mut parts);
    for (&who, part_uj) in everybody.iter().zip(parts) {
        *cell(lines.entry(who).or_default()) += part_uj;
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
