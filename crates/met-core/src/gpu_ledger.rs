//! Whose energy a GPU's energy is. Exact: what the lines hold adds up to what the GPU used.
//!
//! A GPU's energy counter and its use by process are expensive to read. The time between two readings of the
//! counter is a window, whose energy is the growth of the counter, or without a counter the integral of power. Use
//! by process is read more often: each reading covers the stretch since the one before, and splits the GPU's
//! energy above idle in it. A window is split by the sum of its stretches. Until it ends, its energy is the
//! integral of power, and the part not yet covered by a reading is split by who was seen to compute. The charge of
//! a job that leaves in the middle stays as it is, and the rest goes to the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::MISSING;
use crate::apportion::apportion;
use crate::gpu_idle_power::{IdlePower, IdleSource};
use crate::meter_checks::{Counter, Shown};

/// The age of a reading has some jitter; two readings are further apart than this.
const SAME_PASS_NS: i64 = 50_000_000;

/// A user of the GPU: a job by its slot, or all others together.
pub type Who = Option<u32>;

/// What a job does with the GPU at a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub who: Who,
    /// How much of the computing was its own in the time that use by process was last read of.
    pub active: u64,
    /// How many of the GPU's slices it holds; of a GPU in one piece 1.
    pub held: u64,
    pub activity: Activity,
}

/// What the last reading of use by process says about one user of the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// What is active, as far as it can be known.
    #[default]
    Active,
    /// It lives, and computed nothing in that time. What is active is a guess about the time since.
    Idle,
    /// The same of all that live of it, and some have ended.
    IdleButEnded,
}

/// One look at a GPU. Cells may be missing.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    pub at_ns: i64,
    pub power_mw: i64,
    pub power_limit_mw: i64,
    pub utilization: i64,
    /// When the counter was read. `None`: there is none, or it is as new as this look.
    pub pass_ns: Option<i64>,
    /// The energy counter as of the pass.
    pub counter_uj: i64,
    /// When use by process was read. `None`: it is not, or it is as new as this look.
    pub use_ns: Option<i64>,
    pub claims: &'a [Claim],
    /// What others claim is concluded from the GPU's own use alone: it may be of a job whose process is not
    /// listed yet.
    pub unseen: bool,
    /// Slices the GPU has, if it is cut into parts; else 0.
    pub slices: u64,
    /// Jobs that came since the last look, and when: what was before is not theirs.
    pub joined: &'a [(u32, i64)],
    /// Looks further apart than this are unrelated: nothing was read in between.
    pub gap_ns: i64,
}

/// The energy of one holder of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub active_uj: u64,
    pub idle_uj: u64,
    /// How much of both the GPU's counter covers; the rest is an integral of power.
    pub counted_uj: u64,
    /// Another job had a share of the same window.
    pub shared: bool,
    /// The share depends on an estimated idle power.
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
pub struct GpuLedger {
    last: Option<(i64, i64)>,
    window: Window,
    lines: BTreeMap<Who, Line>,
    pub idle: IdlePower,
    /// Charged to jobs that left more than their windows turned out to hold; the next ones pay it back.
    overdraft_uj: u64,
    closed_uj: u64,
    counter: Counter,
    /// When use by process was last read.
    use_ns: i64,
    /// What the open window holds for each, as of the last look.
    open: BTreeMap<Who, Line>,
}

/// The time between two readings of the counter.
#[derive(Debug, Default)]
struct Window {
    begin_ns: i64,
    integral_uj: u64,
    /// Time on the GPU, by holder.
    held_ns: BTreeMap<Who, u64>,
    /// By stretches whose use by process was read.
    computed: Computed,
    /// Since it was last read.
    stretch: Stretch,
    /// Jobs that left, and what they were charged; of that for holding it.
    left: Vec<u32>,
    paid_uj: u64,
    paid_idle_uj: u64,
}

/// Who computed, and how much of the GPU's energy went into that.
#[derive(Clone, Debug, Default)]
struct Computed {
    /// By power, and above idle.
    by_uj: BTreeMap<Who, u64>,
    /// The time in which any did, and the energy of the rest.
    busy_ns: i64,
    quiet_uj: u64,
}

/// The time since use by process was last read.
#[derive(Clone, Debug, Default)]
struct Stretch {
    piece: Piece,
    /// Who was seen to compute, weighted by the energy above idle: the split until use is read.
    seen: BTreeMap<Who, u64>,
    /// An unlisted process computed.
    unseen: bool,
}

/// A piece of time, what the GPU drew in it, and for how much of it that is known.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    span_ns: i64,
    energy_uj: u64,
    covered_ns: i64,
}

impl GpuLedger {
    pub fn look(&mut self, look: &Look<'_>) {
        if self.last.is_some_and(|(at_ns, _)| look.at_ns - at_ns > look.gap_ns || look.at_ns < at_ns) {
            self.pause();
        }
        self.learn_idle(look);
        self.counter.learn(look.power_mw, look.power_limit_mw);
        if self.last.is_none() {
            // A reading from before the first look does not cover the time since.
            self.window.begin_ns = look.at_ns - 2 * SAME_PASS_NS;
            self.use_ns = self.window.begin_ns;
        }
        let new = |read_ns: Option<i64>, before_ns: i64| {
            read_ns.filter(|&ns| ns > before_ns.saturating_add(SAME_PASS_NS) && ns <= look.at_ns)
        };
        let use_ns = new(look.use_ns, self.use_ns);
        let pass_ns = new(look.pass_ns, self.window.begin_ns);
        let is_pass = |ns: i64| pass_ns == Some(ns);
        let mut from_ns = self.last.map_or(look.at_ns, |(at_ns, _)| at_ns);
        let readings: BTreeSet<i64> = use_ns.into_iter().chain(pass_ns).collect();
        for read_ns in readings {
            self.cover(from_ns, read_ns.max(from_ns), look);
            from_ns = read_ns.max(from_ns);
            // Read a moment before or after, it covers the whole stretch.
            if use_ns.is_some() || look.use_ns.is_none() {
                self.settle(look);
            }
            if is_pass(read_ns) {
                self.close(Shown::new(look.counter_uj, read_ns));
                // It may be older than the last look: what the GPU drew since is not in the counter.
                (self.window.begin_ns, from_ns) = (read_ns, read_ns);
            }
        }
        self.use_ns = use_ns.unwrap_or(self.use_ns);
        self.cover(from_ns, look.at_ns, look);
        if look.use_ns.is_none() {
            self.settle(look);
        }
        // No expensive reading to wait for: every look closes its own window.
        if look.pass_ns.is_none() {
            self.close(Shown::new(look.counter_uj, look.at_ns));
            self.window.begin_ns = look.at_ns;
        }
        self.last = Some((look.at_ns, look.power_mw));
        self.open = self.provisional();
    }

    /// Readings pause, or the GPU is unreachable: its energy until the next look is unassigned.
    pub fn pause(&mut self) {
        self.close(None);
        self.last = None;
        self.counter.forget();
        self.open.clear();
    }

    /// A job leaves: what it has been charged so far is final.
    pub fn leave(&mut self, slot: u32) -> Line {
        let who = Some(slot);
        let mut line = self.lines.remove(&who).unwrap_or_default();
        if let Some(open) = self.open.remove(&who) {
            line.add(&open);
            self.window.paid_uj += open.total_uj();
            self.window.paid_idle_uj += open.idle_uj;
        }
        self.window.left.push(slot);
        self.window.held_ns.remove(&who);
        self.window.computed.by_uj.remove(&who);
        // What it has paid for is not for the others.
        let above_uj = self.above_idle(self.window.stretch.piece);
        let (whose, parts) = self.window.stretch.split(above_uj);
        let part_uj = whose.iter().zip(parts).find(|(other, _)| **other == who).map_or(0, |(_, part)| part);
        let Stretch { piece, seen, .. } = &mut self.window.stretch;
        piece.energy_uj = piece.energy_uj.saturating_sub(part_uj);
        seen.remove(&who);
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

    /// Who was charged what and has not left: in closed windows, and besides, provisionally, in the open one.
    pub fn charged(&self) -> impl Iterator<Item = (Who, Line)> {
        self.lines.iter().chain(&self.open).map(|(&who, &line)| (who, line))
    }

    /// All that was charged in closed windows, to whomever: what the GPU used in them.
    pub fn closed_uj(&self) -> u64 {
        self.closed_uj
    }

    pub fn idle_mw(&self) -> Option<i64> {
        self.idle.get().map(|(idle_mw, _)| idle_mw)
    }

    fn learn_idle(&mut self, look: &Look<'_>) {
        // Parts of a GPU do not say how busy they are: then no job on them counts as idle.
        let nothing_runs = look.claims.iter().all(|claim| claim.active == 0);
        self.idle.learn(look.power_mw, look.power_limit_mw, look.utilization <= 0 && nothing_runs);
    }

    fn idle_uj(&self, time_ns: i64) -> u64 {
        let idle_mw = self.idle_mw().and_then(|idle_mw| u64::try_from(idle_mw).ok()).unwrap_or(0);
        let idle_uj = u128::from(idle_mw) * u128::try_from(time_ns).unwrap_or(0) / 1_000_000;
        u64::try_from(idle_uj).unwrap_or(u64::MAX)
    }

    /// Adds a span between the last look and this one; a job that came in it has a share from then on.
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
        let mut piece = Piece { span_ns, energy_uj: 0, covered_ns: 0 };
        if last_mw != MISSING && look.power_mw != MISSING {
            // The power in between is interpolated linearly.
            let at = |ns: i64| {
                let (part, whole) = (i128::from(ns - last_ns), i128::from((look.at_ns - last_ns).max(1)));
                i128::from(last_mw) + i128::from(look.power_mw - last_mw) * part.max(0) / whole
            };
            // mW × ns is pJ.
            let energy_uj = (at(begin_ns) + at(end_ns)) * i128::from(span_ns) / 2 / 1_000_000;
            piece.energy_uj = u64::try_from(energy_uj).unwrap_or(0);
            piece.covered_ns = span_ns;
        }
        let mut claims: Vec<Claim> = look.claims.iter().filter(is_here).copied().collect();
        let above_uj = self.above_idle(piece);
        self.window.integral_uj += piece.energy_uj;
        self.window.hold(span_ns as u64, &claims, look.slices);
        let Window { stretch, left, .. } = &mut self.window;
        stretch.piece.add(piece);
        if look.unseen {
            stretch.unseen = true;
            return;
        }
        claims.retain(|claim| claim.active > 0 && !has_left(left, claim.who));
        let weights = claims.iter().map(|claim| (claim.who, claim.active)).collect();
        share_out(above_uj, weights, &mut stretch.seen);
    }

    /// The energy of computing in a piece. Without known power, time is a rough substitute.
    fn above_idle(&self, piece: Piece) -> u64 {
        let least_uj = u64::try_from(piece.span_ns / 1_000_000).unwrap_or(0).max(1);
        piece.energy_uj.saturating_sub(self.idle_uj(piece.covered_ns)).max(least_uj)
    }

    /// Since when charges are not settled; without an earlier look, from now on.
    pub fn open_since_ns(&self) -> i64 {
        self.last.map_or(i64::MAX, |_| self.window.begin_ns)
    }

    /// When use by process was last read.
    pub fn use_read_ns(&self) -> i64 {
        self.use_ns
    }

    /// Use by process was read for the whole stretch: it names who computed in it. If it names no one, they have
    /// ended since, and those seen to compute are charged; those reported idle only if there are no others.
    fn settle(&mut self, look: &Look<'_>) {
        let Stretch { piece, seen, .. } = std::mem::take(&mut self.window.stretch);
        if piece.span_ns == 0 {
            return;
        }
        let above_uj = self.above_idle(piece);
        let Window { computed, left, .. } = &mut self.window;
        let is_idle =
            |who: Who| look.claims.iter().any(|claim| claim.who == who && claim.activity == Activity::Idle);
        let (seen_idle, seen): (Weights, Weights) = seen.into_iter().partition(|&(who, _)| is_idle(who));
        let now = look.claims.iter().filter(|claim| claim.active > 0 && !has_left(left, claim.who));
        let (active, guessed): (Vec<&Claim>, Vec<&Claim>) =
            now.partition(|claim| claim.activity == Activity::Active);
        let weights = |claims: Vec<&Claim>| claims.iter().map(|claim| (claim.who, claim.active)).collect();
        let who =
            [weights(active), seen, weights(guessed), seen_idle].into_iter().find(|who| !who.is_empty());
        let who: Weights = who.unwrap_or_default();
        computed.count(piece, !who.is_empty());
        share_out(above_uj, who, &mut computed.by_uj);
    }

    /// Ends the window with what the counter shows now, and charges it. A window without a believable counter
    /// reading is charged by its power; the next reading covers both, and settles the difference.
    fn close(&mut self, shown: Option<Shown>) {
        let integral_uj = self.window.integral_uj;
        let grown = shown.and_then(|shown| self.counter.grown(shown, integral_uj));
        let energy_uj = match &grown {
            Some(grown) => {
                let excess_uj = grown.charged_uj.saturating_sub(grown.delta_uj);
                self.closed_uj -= excess_uj.min(self.closed_uj);
                self.overdraft_uj += excess_uj;
                grown.delta_uj.saturating_sub(grown.charged_uj)
            }
            None => integral_uj,
        };
        self.counter.note(shown, grown.is_some(), energy_uj);
        self.closed_uj += energy_uj;
        let owed_uj = self.window.paid_uj + self.overdraft_uj;
        self.overdraft_uj = owed_uj.saturating_sub(energy_uj);
        for (who, line) in self.split(energy_uj.saturating_sub(owed_uj), grown.is_some()) {
            self.lines.entry(who).or_default().add(&line);
        }
        self.window = Window::default();
    }

    /// The most that the GPU can draw, as far as that is known.
    pub fn most_mw(&self) -> i64 {
        self.counter.most_mw()
    }

    fn provisional(&self) -> BTreeMap<Who, Line> {
        let owed_uj = self.window.paid_uj + self.overdraft_uj;
        self.split(self.window.integral_uj.saturating_sub(owed_uj), false)
    }

    fn split(&self, energy_uj: u64, counted: bool) -> BTreeMap<Who, Line> {
        let window = &self.window;
        let mut computed = window.computed.clone();
        let (seen, parts) = window.stretch.split(self.above_idle(window.stretch.piece));
        computed.count(window.stretch.piece, !seen.is_empty());
        for (who, part) in seen.into_iter().zip(parts) {
            *computed.by_uj.entry(who).or_default() += part;
        }
        let jobs = computed.by_uj.keys().chain(window.held_ns.keys()).copied();
        let jobs: BTreeSet<Who> = jobs.filter(Option::is_some).collect();
        let whose: Vec<Who> = jobs.into_iter().chain([None]).collect();
        let idle_uj = match computed.by_uj.is_empty() {
            true => energy_uj,
            false => {
                let idle_uj = computed.quiet_uj.saturating_add(self.idle_uj(computed.busy_ns));
                idle_uj.saturating_sub(window.paid_idle_uj).min(energy_uj)
            }
        };
        let mut lines: BTreeMap<Who, Line> = BTreeMap::new();
        let (mut weights, mut parts) = (Vec::new(), Vec::new());
        for (part, active) in [(energy_uj - idle_uj, true), (idle_uj, false)] {
            let weights_of = if active { &computed.by_uj } else { &window.held_ns };
            weights.clear();
            weights.extend(whose.iter().map(|who| weights_of.get(who).copied().unwrap_or(0)));
            apportion(part, &weights, &mut parts);
            for (who, &part) in whose.iter().zip(&parts) {
                let line = lines.entry(*who).or_default();
                if active {
                    line.active_uj += part;
                } else {
                    line.idle_uj += part;
                }
            }
        }
        let shared = lines.values().filter(|line| line.total_uj() > 0).count() > 1;
        let guessed = !computed.by_uj.is_empty()
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

impl Computed {
    /// Adds a piece of time in which some job computed, or none.
    fn count(&mut self, piece: Piece, busy: bool) {
        if busy {
            self.busy_ns += piece.covered_ns;
        } else {
            self.quiet_uj += piece.energy_uj;
        }
    }
}

impl Piece {
    fn add(&mut self, other: Piece) {
        self.span_ns += other.span_ns;
        self.energy_uj += other.energy_uj;
        self.covered_ns += other.covered_ns;
    }
}

impl Stretch {
    /// Which jobs computed, as far as seen. Computing before any process was listed was most likely done by the
    /// one listed now.
    fn split(&self, above_uj: u64) -> (Vec<Who>, Vec<u64>) {
        let mut whose: Vec<Who> = self.seen.keys().copied().collect();
        let mut weights: Vec<u64> = self.seen.values().copied().collect();
        if whose.is_empty() && self.unseen {
            (whose, weights) = (vec![None], vec![1]);
        }
        let mut parts = Vec::new();
        apportion(above_uj, &weights, &mut parts);
        (whose, parts)
    }
}

/// Who computed, and how much. Parts of one GPU may have the same owner.
type Weights = Vec<(Who, u64)>;

/// Divides energy among those who computed.
fn share_out(energy_uj: u64, computed: Weights, among: &mut BTreeMap<Who, u64>) {
    let weights: Vec<u64> = computed.iter().map(|&(_, weight)| weight).collect();
    let mut parts = Vec::new();
    apportion(energy_uj, &weights, &mut parts);
    for ((who, _), part) in computed.into_iter().zip(parts) {
        *among.entry(who).or_default() += part;
    }
}

impl Window {
    /// Divides a span among those who hold the GPU in it.
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
#[path = "gpu_ledger_tests.rs"]
mod tests;
