//! All meters of a machine.

use super::line::MeteredBy;
use super::meter::{BRIDGE_NS, Fault, Meter, Scope};
use super::whole::{Inner, Outer, Whole};
use crate::job::QualityKind;

/// A meter of the node that was read within this time and is not now is missing, and not gone.
const AWAY_NS: i64 = 600_000_000_000;

/// A window that is longer is closed although a meter was away at its end.
const WINDOW_MAX_NS: i64 = 2 * BRIDGE_NS;

/// Meters that are read one after the other in a tick differ by less: a window does not wait for the next tick.
const SAME_TICK_NS: i64 = 1_000_000_000;

/// A meter, as it is known to those that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterId(usize);

#[derive(Debug, Default)]
pub struct Meters {
    all: Vec<Meter>,
    /// What GPUs and processors draw at present, as far as it is seen.
    explained_mw: i64,
}

impl Meters {
    /// Starts over with all meters, since sources may have changed.
    pub fn forget(&mut self) {
        self.all.clear();
    }

    /// Whether the window that is open begins with an estimate: no meter was read before it.
    pub(super) fn needs_estimates(&self, open_ns: Option<i64>) -> bool {
        let is_estimate = |meter: &&Meter| meter.kind == QualityKind::Estimated;
        let is_covered = |open_ns: i64| {
            let mut first = self.all.iter().filter(|meter| !is_estimate(meter)).filter_map(Meter::first_ns);
            first.any(|first_ns| first_ns <= open_ns)
        };
        self.all.iter().any(|meter| is_estimate(&meter)) && !open_ns.is_some_and(is_covered)
    }

    /// A meter is read now: windows do not wait for estimates any more.
    pub fn forget_estimates(&mut self) {
        self.all.retain(|meter| meter.kind != QualityKind::Estimated);
    }

    /// Takes up a meter, which is read at least as often as `timeout_ns` from now on; one that is known stays
    /// as it is otherwise.
    pub fn meter(&mut self, name: &str, scope: Scope, kind: QualityKind, timeout_ns: i64) -> MeterId {
        let known = self.all.iter().position(|meter| meter.name == name);
        let at = known.unwrap_or_else(|| {
            self.all.push(Meter::new(name, scope, kind, timeout_ns));
            self.all.len() - 1
        });
        self.all[at].timeout_ns = timeout_ns;
        MeterId(at)
    }

    /// All meters that were ever read, by name.
    pub fn names(&self) -> impl Iterator<Item = (&str, QualityKind)> {
        let read = self.all.iter().filter(|meter| meter.last_ns().is_some());
        read.map(|meter| (meter.name.as_str(), meter.kind))
    }

    pub fn read_counter(&mut self, meter: MeterId, at_ns: i64, counter_uj: i64) {
        self.all[meter.0].read_counter(at_ns, counter_uj, None, self.explained_mw);
    }

    /// A counter whose meter also reports power: each is checked against the other.
    pub fn read_both(&mut self, meter: MeterId, at_ns: i64, counter_uj: i64, power_mw: i64) {
        self.all[meter.0].read_counter(at_ns, counter_uj, Some(power_mw), self.explained_mw);
    }

    pub fn read_power(&mut self, meter: MeterId, at_ns: i64, power_mw: i64) {
        self.all[meter.0].read_power(at_ns, power_mw, self.explained_mw);
    }

    /// The most that the whole machine can draw, and what its parts draw now: what is beyond is doubted.
    pub fn rate(&mut self, rated_mw: i64, explained_mw: i64) {
        self.explained_mw = explained_mw;
        self.all.iter_mut().filter(|meter| meter.is_outer()).for_each(|meter| meter.rate(rated_mw));
    }

    pub(super) fn pause(&mut self) {
        self.all.iter_mut().for_each(Meter::pause);
    }

    pub(super) fn forget_before(&mut self, end_ns: i64) {
        self.all.iter_mut().for_each(|meter| meter.forget_before(end_ns));
    }

    fn awaited(&self, now_ns: i64) -> impl Iterator<Item = &Meter> {
        self.all.iter().filter(move |meter| meter.is_awaited(now_ns))
    }

    /// The last readings of those that are awaited.
    pub(super) fn last_ns(&self, now_ns: i64) -> impl Iterator<Item = i64> {
        self.awaited(now_ns).filter_map(Meter::last_ns)
    }

    /// The readings of a meter around a time.
    pub(super) fn around(&self, outer: &Outer, time_ns: i64) -> Option<(i64, i64, Fault)> {
        self.all.get(outer.index)?.around(time_ns)
    }

    /// The last time up to this one that is in no gap of a meter, and not well before a reading of the node's.
    /// Elsewhere what was counted between two readings is cut by time alone, and a job is charged for what another one
    /// used before or after it.
    pub(super) fn clean_cut(&self, open_ns: Option<i64>, end_ns: i64, now_ns: i64) -> i64 {
        // The first window begins no earlier than it has to: time before it may be in others already. And meters that
        // are away in turn do not keep a window open for ever.
        if open_ns.is_none_or(|open_ns| end_ns - open_ns > WINDOW_MAX_NS) {
            return end_ns;
        }
        let awaited = || self.awaited(now_ns);
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

    /// What the meter of the machine counted since a window was last made of it, by nothing but its counter; GPUs that
    /// it does not see are beside that.
    pub(super) fn counted(&self, whole: &Whole, end_ns: i64) -> Option<u64> {
        let outer = whole.outer.as_ref()?;
        let meter = self.all.get(outer.index)?;
        let others_were_read = meter.taken.others_uj > 0 || outer.ahead_uj > 0;
        let taken_uj = meter.taken.so_far_uj.filter(|_| !others_were_read)?;
        let gpus_uj = if outer.with_gpus { 0 } else { whole.gpus_uj };
        Some(meter.at(end_ns)?.saturating_sub(taken_uj).saturating_add(gpus_uj))
    }

    /// Notes which meters the window was made of: what they count while others are read in their place is theirs.
    pub(super) fn take_up(&mut self, whole: &Whole, end_ns: i64, whole_uj: u64) {
        let chosen = whole.outer.as_ref();
        let ahead_uj = chosen.map_or(0, |outer| outer.ahead_uj);
        for (index, meter) in self.all.iter_mut().enumerate() {
            let is_taken = !meter.is_outer() || chosen.is_some_and(|outer| outer.index == index);
            match meter.at(end_ns).filter(|_| is_taken) {
                Some(so_far_uj) => meter.take_up(so_far_uj, ahead_uj),
                None => meter.taken.others_uj = meter.taken.others_uj.saturating_add(whole_uj),
            }
        }
    }

    /// The best figure for all of the machine, and the parts that are known by meters of their own.
    pub(super) fn whole(&self, begin_ns: i64, end_ns: i64) -> Option<Whole> {
        let cpu = self.inner(Scope::Package, begin_ns, end_ns);
        let memory = self.inner(Scope::Memory, begin_ns, end_ns);
        let has_inner = cpu.energy_uj.is_some() && !cpu.is_estimated;
        let outer = (self.all.iter().enumerate())
            .filter(|(_, meter)| meter.is_outer())
            .filter_map(|(index, meter)| Some((index, meter, meter.between(begin_ns, end_ns)?)))
            // One that knows nothing of this time is worth less than the processors' own.
            .filter(|(.., span)| span.fault != Fault::Unknown || !has_inner)
            .min_by_key(|(_, meter, _)| meter.scope);
        let Some((index, meter, span)) = outer else {
            let is_away = |meter: &Meter| {
                let last_ns = meter.last_ns().filter(|_| meter.is_outer() && meter.taken.so_far_uj.is_some());
                last_ns.is_some_and(|last_ns| end_ns - last_ns < AWAY_NS)
            };
            return Whole::of_inner(cpu, memory, self.all.iter().any(is_away));
        };
        let (missed_uj, ahead_uj) = meter.apart(begin_ns);
        // What is known in part alone is not known: the rest of the machine holds it.
        let (cpu, memory) = (cpu.complete(), memory.complete());
        let fault = span.fault.max(cpu.fault).max(memory.fault);
        let outer = Outer {
            index,
            // Without what others that were read in its place have shown already.
            energy_uj: span.energy_uj.saturating_sub(ahead_uj),
            lost_uj: span.lost_uj,
            is_guess: meter.is_power() && span.fault != Fault::None,
            ahead_uj: ahead_uj.saturating_sub(span.energy_uj),
            with_gpus: matches!(meter.scope, Scope::Node { with_gpus: true, .. }),
        };
        Some(Whole {
            outer: Some(outer),
            caught_up_uj: missed_uj,
            source: MeteredBy::Node(meter.name.clone()),
            kind: if span.fault == Fault::Unknown { QualityKind::LowerBound } else { meter.kind },
            fault: if missed_uj > 0 { fault.max(Fault::Lost) } else { fault },
            metered: [cpu.energy_uj.is_some(), memory.energy_uj.is_some(), true, true],
            gpus_uj: 0,
            agrees: true,
            meters: String::new(),
            cpu,
            memory,
        })
    }

    /// What the meters of processors, or those of memory, say together.
    fn inner(&self, scope: Scope, begin_ns: i64, end_ns: i64) -> Inner {
        let (mut measured, mut estimated) = (Inner::default(), Inner::default());
        for meter in self.all.iter().filter(|meter| meter.scope == scope) {
            let is_estimate = meter.kind == QualityKind::Estimated;
            let inner = if is_estimate { &mut estimated } else { &mut measured };
            match meter.between(begin_ns, end_ns) {
                Some(span) => {
                    inner.add(span);
                    let before = meter.at(begin_ns).zip(meter.taken.so_far_uj);
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
}
