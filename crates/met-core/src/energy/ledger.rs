//! The node's energy ledger: in every window jobs + system + idle + unassigned is what the meter says, to the
//! microjoule.
//!
//! Meters are read at their own times, jobs at every tick. A window is closed up to the time of the slowest
//! meter's last reading, where the meter of the node was read. What was used in it has four parts: processors,
//! memory, GPUs, and the rest of the machine. Each has an idle share, which the machine would have used doing
//! nothing, and an active one, which is split by what jobs did meanwhile. Inner parts that a meter of the node has
//! not shown yet are carried to later windows (`carry`). A job that ended in a window is settled when that window is
//! closed and it is owed nothing.
//!
//! A meter that is away for a moment is waited for, and the window is longer. What it counted in a longer gap is
//! unassigned, and jobs of that time are charged too little.

use std::collections::BTreeMap;

use super::carry::Carry;
use super::line::{CPU, Closed, GPUS, IdleTo, Line, Lines, MEMORY, Policy, REST, Weights, Who, put, share};
use super::machine_idle::{Idle, MachineIdle};
use super::meter::Fault;
use super::meters::Meters;
use super::ticks::{Done, Ticks};
use super::whole::Whole;

#[derive(Debug)]
pub struct EnergyLedger {
    idle_to: IdleTo,
    pub meters: Meters,
    pub machine_idle: MachineIdle,
    open_ns: Option<i64>,
    /// While no meter is read, up to when that is said.
    unmeasured_ns: Option<i64>,
    ticks: Ticks,
    gpus: BTreeMap<Who, GpuLine>,
    carry: Carry,
    /// The meter of the node shows as much as its parts, or is behind by as much as before.
    is_steady: bool,
    ended: Ended,
}

/// Jobs that are over and wait for their last window.
#[derive(Debug, Default)]
struct Ended {
    slots: Vec<u32>,
    /// Since when each of them is over; not known before the next look.
    since_ns: BTreeMap<u32, i64>,
}

impl Ended {
    fn look(&mut self, since_ns: i64) {
        for &slot in &self.slots {
            self.since_ns.entry(slot).or_insert(since_ns);
        }
    }

    /// Those that were over by then and fulfil this.
    fn take_until(&mut self, end_ns: i64, is_due: impl Fn(u32) -> bool) -> Vec<u32> {
        let Ended { slots, since_ns } = self;
        let was_over = |slot: &u32| since_ns.get(slot).is_some_and(|&since_ns| since_ns <= end_ns);
        slots.extract_if(.., |slot| was_over(slot) && is_due(*slot)).collect()
    }
}

/// One job's use of all GPUs together, active and idle: as known now, and at the last look.
#[derive(Clone, Copy, Debug, Default)]
struct GpuLine {
    now_uj: (u64, u64),
    looked_uj: (u64, u64),
}

impl GpuLine {
    /// Since the last look. Less than 0: what it had then turned out to be another job's.
    fn grown(&self) -> Line {
        let mut line = Line::default();
        line.active_uj[GPUS] = self.now_uj.0 as i64 - self.looked_uj.0 as i64;
        line.idle_uj[GPUS] = self.now_uj.1 as i64 - self.looked_uj.1 as i64;
        line
    }
}

impl EnergyLedger {
    pub fn new(policy: Policy) -> EnergyLedger {
        let mut ledger = EnergyLedger {
            idle_to: policy.idle_to,
            meters: Meters::default(),
            machine_idle: MachineIdle::default(),
            open_ns: None,
            unmeasured_ns: None,
            ticks: Ticks::default(),
            gpus: BTreeMap::new(),
            carry: Carry::default(),
            is_steady: true,
            ended: Ended::default(),
        };
        ledger.set_policy(policy);
        ledger
    }

    /// Holds from the window on that is closed next.
    pub fn set_policy(&mut self, policy: Policy) {
        (self.idle_to, self.machine_idle.configured_mw) = (policy.idle_to, policy.idle_mw);
    }

    /// Jobs that have left and wait for their last window.
    pub fn unsettled(&self) -> &[u32] {
        &self.ended.slots
    }

    /// Whether the window that is open begins with an estimate: no meter was read before it.
    pub fn needs_estimates(&self) -> bool {
        self.meters.needs_estimates(self.open_ns)
    }

    /// The machine is not measured for a while: what it uses until the next reading is in no window.
    pub fn pause(&mut self) {
        (self.open_ns, self.unmeasured_ns) = (None, None);
        self.gpus.values_mut().for_each(|line| line.looked_uj = line.now_uj);
        self.ticks.clear();
        self.meters.pause();
    }

    /// What a job did since the last weighing.
    pub fn weigh_job(&mut self, slot: u32, weights: Weights) {
        self.ticks.current.jobs.entry(slot).or_default().add(weights);
    }

    /// What all of the machine did meanwhile, jobs included.
    pub fn weigh_node(&mut self, weights: Weights) {
        self.ticks.current.node.add(weights);
    }

    /// One job's total use of GPUs, active and idle, as known now. Until a GPU's counter is read it is
    /// provisional, and may turn out to be less or another job's.
    pub fn charge_gpus(&mut self, who: Who, active_uj: u64, idle_uj: u64) {
        // Most jobs have no GPU.
        if (active_uj, idle_uj) != (0, 0) || self.gpus.contains_key(&who) {
            self.gpus.entry(who).or_default().now_uj = (active_uj, idle_uj);
        }
    }

    /// The job is over; its last window will settle it.
    pub fn leave(&mut self, slot: u32) {
        self.ended.slots.push(slot);
    }

    /// Whether any job was ever charged for a GPU.
    pub fn has_gpus(&self) -> bool {
        !self.gpus.is_empty()
    }

    /// A job's use of GPUs since the last window, not yet covered by a meter.
    pub fn open_gpus(&self, who: Who) -> Line {
        let mut line = self.gpus.get(&who).map(GpuLine::grown).unwrap_or_default();
        line.add(&self.ticks.gpus_of(who));
        line
    }

    /// Closes the window up to where every meter that is awaited has been read.
    pub fn close(&mut self, now_ns: i64) -> Option<Closed> {
        self.look(now_ns);
        let end_ns = self.meters.last_ns(now_ns).min();
        let end_ns = end_ns.map(|end_ns| self.meters.clean_cut(self.open_ns, end_ns, now_ns));
        self.close_at(end_ns, now_ns)
    }

    /// Closes the window up to the last reading of any meter, without the slower ones: their next readings will not
    /// be taken.
    pub fn close_for_good(&mut self, now_ns: i64) -> Option<Closed> {
        self.look(now_ns);
        let end_ns = self.meters.last_ns(now_ns).max();
        let mut closed = self.close_at(end_ns, now_ns);
        for slot in std::mem::take(&mut self.ended.slots) {
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
        for (&who, line) in &mut self.gpus {
            let grown = line.grown();
            line.looked_uj = line.now_uj;
            if grown != Line::default() {
                self.ticks.current.gpus.entry(who).or_default().add(&grown);
            }
        }
        self.ticks.look(now_ns);
        self.ended.look(self.ticks.last_begin_ns().unwrap_or(now_ns));
    }

    fn close_at(&mut self, end_ns: Option<i64>, now_ns: i64) -> Option<Closed> {
        let Some(end_ns) = end_ns else {
            // These were not measured.
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
        let done = self.ticks.take_until(end_ns, &self.ended.slots);
        let closed = self.split(&done, begin_ns, end_ns);
        let mut closed = closed.unwrap_or_else(|| Closed::unmeasured(begin_ns, end_ns, Vec::new()));
        self.open_ns = Some(end_ns);
        closed.settled = self.begin_window(end_ns);
        self.meters.forget_before(end_ns);
        Some(closed)
    }

    /// What was used until now is in no window.
    fn leave_out(&mut self, since_ns: Option<i64>, until_ns: i64) -> Option<Closed> {
        let done = self.ticks.take_until(until_ns, &self.ended.slots);
        if since_ns.is_none() {
            // The first window begins: GPUs count what they use in any case.
            self.ticks.put_back(done.gpus);
        }
        let settled = self.begin_window(until_ns);
        let since_ns = since_ns.filter(|&since_ns| since_ns < until_ns);
        since_ns.map(|since_ns| Closed::unmeasured(since_ns, until_ns, settled))
    }

    /// Jobs that ended and are owed nothing are settled.
    fn begin_window(&mut self, end_ns: i64) -> Vec<u32> {
        let settled = self.ended.take_until(end_ns, |slot| !self.carry.owes(Who::Job(slot)));
        for &slot in &settled {
            self.let_go(slot);
        }
        settled
    }

    /// Forgets a job; what is missing in its lines.
    fn let_go(&mut self, slot: u32) -> u64 {
        self.ended.since_ns.remove(&slot);
        self.gpus.remove(&Who::Job(slot));
        self.carry.close(Who::Job(slot))
    }

    /// Claims what GPUs used in the window; how much that is in all.
    fn claim_gpus(&mut self, done: &Done, end_ns: i64) -> u64 {
        let mut sum_uj = 0;
        for (&who, used) in &done.gpus {
            sum_uj += used.total_uj();
            self.carry.claim(who, used, end_ns);
        }
        u64::try_from(sum_uj).unwrap_or(0)
    }

    fn split(&mut self, done: &Done, begin_ns: i64, end_ns: i64) -> Option<Closed> {
        let mut whole = self.meters.whole(begin_ns, end_ns)?;
        let window_ns = end_ns - begin_ns;
        let was_steady = self.is_steady;
        let backlog_uj = self.carry.claimed_uj();
        let gpus_uj = self.claim_gpus(done, end_ns);
        whole.add_gpus(gpus_uj);
        whole.agrees &= was_steady && whole.fault == Fault::None;
        // One that is behind may show late what was used before: only if it is as far behind afterwards, it did not.
        let is_behind = backlog_uj > whole.outer_uj().unwrap_or(0) / 100;
        if whole.agrees && !is_behind {
            self.machine_idle.learn(&whole, &done.node, window_ns, end_ns);
        }
        let idle = self.machine_idle.idle_of(&whole, &done.node, window_ns);
        let mut claims = BTreeMap::new();
        self.claim_inner(done, &whole, &idle, &mut claims);
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
        let room_uj = whole.outer_uj().map_or(u64::MAX, room_uj);
        // A counter that lags is behind by as much after a long gap as before it.
        let is_lost = whole.fault == Fault::Lost && whole.outer.as_ref().is_some_and(|outer| !outer.is_guess);
        let most_uj = self.carry.claimed_uj().saturating_sub(backlog_uj);
        let room_uj = if is_lost { room_uj.min(most_uj) } else { room_uj };
        let paid = self.carry.pay(room_uj);
        // Unused energy is owed to no one.
        self.carry.close(Who::Unassigned);
        let rest_uj = whole.outer_uj().map_or(0, |outer_uj| outer_uj - paid.sum_uj);
        let mut lines = paid.lines;
        self.share_rest(done, &whole, &idle, rest_uj, &mut lines);
        put(&mut lines, Who::Unassigned, |line| &mut line.active_uj[REST], whole.caught_up_uj);
        lines.retain(|_, line| *line != Line::default());
        if lines.contains_key(&Who::Unassigned) {
            whole.fault = whole.fault.max(Fault::Lost);
        }
        let whole_uj = paid.sum_uj + rest_uj + whole.caught_up_uj;
        // One that lags by the same time at the same load shows as much as its parts.
        self.is_steady = self.carry.claimed_uj().abs_diff(backlog_uj) <= whole_uj / 100;
        if whole.agrees && is_behind && self.is_steady {
            self.machine_idle.learn(&whole, &done.node, window_ns, end_ns);
        }
        debug_assert_eq!(lines.values().map(Line::total_uj).sum::<i64>(), whole_uj as i64);
        let short_uj = self.carry.expire(end_ns, whole.shown_later_uj(backlog_uj));
        let counted_uj = self.meters.counted(&whole, end_ns).unwrap_or(whole_uj);
        self.meters.take_up(&whole, end_ns, whole_uj);
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

    /// A counter gives the energy of a long gap, but not when it was used. Where others were read until the gap
    /// ends in this window, what parts used in the window beyond the mean of the gap is in what was caught up, and
    /// the meter is not behind by that. It is where less than the idle energy of the gap would be left.
    fn settle_gap(&self, whole: &mut Whole, idle: &Idle, backlog_uj: u64, (begin_ns, end_ns): (i64, i64)) {
        let Some(outer) = &mut whole.outer else { return };
        let Some((gap_ns, _, Fault::Lost)) = self.meters.around(outer, begin_ns) else { return };
        let idle_uj = i128::from(idle.rest_uj) * i128::from(end_ns - gap_ns) / i128::from(end_ns - begin_ns);
        let idle_uj = u64::try_from(idle_uj).unwrap_or(u64::MAX);
        let room_uj = outer.energy_uj.saturating_add(whole.caught_up_uj).saturating_sub(idle_uj);
        let claims_uj = self.carry.claimed_uj().saturating_sub(backlog_uj);
        let moved_uj = claims_uj.min(room_uj).saturating_sub(outer.energy_uj);
        outer.energy_uj += moved_uj;
        whole.caught_up_uj -= moved_uj;
    }

    /// What processors and memory used, by consumer.
    fn claim_inner(&self, done: &Done, whole: &Whole, idle: &Idle, claims: &mut Lines) {
        let (everybody, weights) = done.weighed();
        for (part, inner, idle_uj) in
            [(CPU, &whole.cpu, idle.cpu_uj), (MEMORY, &whole.memory, idle.memory_uj)]
        {
            let by = |weights: &Weights| if part == CPU { weights.cpu } else { weights.memory };
            let active_uj = inner.shared_uj() - idle_uj;
            let by: Vec<u64> = weights.iter().map(by).collect();
            share(active_uj, &by, &everybody, |line| &mut line.active_uj[part], claims);
            self.share_idle(done, idle_uj, part, claims);
            put(claims, Who::Unassigned, |line| &mut line.active_uj[part], inner.lost_uj);
        }
    }

    /// Fans, disks and losses of the power supply follow what the rest of the machine does. Where the processors
    /// have no meter of their own they are in the rest, and CPU time is what is known of them.
    fn share_rest(&self, done: &Done, whole: &Whole, idle: &Idle, rest_uj: u64, lines: &mut Lines) {
        let lost_uj = whole.outer.as_ref().map_or(0, |outer| outer.lost_uj.min(rest_uj));
        put(lines, Who::Unassigned, |line| &mut line.active_uj[REST], lost_uj);
        let rest_uj = rest_uj - lost_uj;
        let idle_uj = idle.above(idle.rest_uj, rest_uj);
        let (mut everybody, weights) = done.weighed();
        let mut by: Vec<u64> = weights.iter().map(|weights| weights.cpu).collect();
        if whole.cpu.shown_uj() > 0 {
            let active = |who: &Who| lines.get(who).map_or(0, |line| line.active_uj.iter().sum::<i64>());
            let others = lines.keys().copied().filter(|who| *who != Who::Unassigned);
            let others: Vec<Who> = others.filter(|who| !everybody.contains(who)).collect();
            everybody = others.into_iter().chain(everybody).collect();
            by = everybody.iter().map(|who| active(who).max(0) as u64).collect();
        }
        share(rest_uj - idle_uj, &by, &everybody, |line| &mut line.active_uj[REST], lines);
        self.share_idle(done, idle_uj, REST, lines);
    }

    fn share_idle(&self, done: &Done, idle_uj: u64, part: usize, lines: &mut Lines) {
        let mut everybody = vec![Who::Idle];
        let mut held = vec![1];
        if self.idle_to == IdleTo::Holders {
            let sum = done.jobs.values().fold(0u64, |sum, weights| sum.saturating_add(weights.held));
            everybody = done.jobs.keys().map(|&slot| Who::Job(slot)).chain([Who::Idle]).collect();
            held = done.jobs.values().map(|weights| weights.held).collect();
            held.push(done.node.held.saturating_sub(sum));
        }
        share(idle_uj, &held, &everybody, |line| &mut line.idle_uj[part], lines);
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod simulation;
