//! What jobs did between looks, until the window is closed that it belongs to.
//!
//! A meter may be read long before or after jobs are. Work done between two looks is assumed to be spread evenly
//! over that time, and a window takes its part.

use std::collections::{BTreeMap, VecDeque};

use super::line::{Line, Weights, Who};

/// Looks kept separately; beyond that the oldest are merged.
const TICKS_MAX: usize = 128;

/// What was done in a time.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub jobs: BTreeMap<u32, Weights>,
    /// All of the machine, jobs included.
    pub node: Weights,
    pub gpus: BTreeMap<Who, Line>,
}

#[derive(Debug, Default)]
struct Tick {
    begin_ns: i64,
    end_ns: i64,
    done: Done,
}

#[derive(Debug, Default)]
pub(super) struct Ticks {
    ticks: VecDeque<Tick>,
    /// Since the last look.
    pub current: Done,
    looked_ns: Option<i64>,
}

impl Ticks {
    /// Everything up to now was read.
    pub fn look(&mut self, now_ns: i64) {
        let begin_ns = self.looked_ns.replace(now_ns).unwrap_or(now_ns);
        let done = std::mem::take(&mut self.current);
        self.ticks.push_back(Tick { begin_ns, end_ns: now_ns, done });
        if self.ticks.len() > TICKS_MAX {
            let oldest = self.ticks.pop_front();
            if let (Some(oldest), Some(next)) = (oldest, self.ticks.front_mut()) {
                next.begin_ns = oldest.begin_ns;
                next.done.add(oldest.done);
            }
        }
    }

    /// Takes what was done up to a time. Jobs that are over then did all of it before.
    pub fn take_until(&mut self, end_ns: i64, over: &[u32]) -> Done {
        let mut taken = Done::default();
        while let Some(tick) = self.ticks.pop_front() {
            if tick.end_ns <= end_ns {
                taken.add(tick.done);
                continue;
            }
            let Tick { begin_ns, end_ns: tick_ns, mut done } = tick;
            if begin_ns < end_ns {
                taken.add(done.split(i128::from(end_ns - begin_ns), i128::from(tick_ns - begin_ns), over));
            }
            self.ticks.push_front(Tick { begin_ns: begin_ns.max(end_ns), end_ns: tick_ns, done });
            break;
        }
        taken
    }

    /// What GPUs used is for the next window.
    pub fn put_back(&mut self, gpus: BTreeMap<Who, Line>) {
        for (who, line) in gpus {
            self.current.gpus.entry(who).or_default().add(&line);
        }
    }

    /// The beginning of the look that covers what was done last.
    pub fn last_begin_ns(&self) -> Option<i64> {
        self.ticks.back().map(|tick| tick.begin_ns)
    }

    /// Use of GPUs that no window has taken yet.
    pub fn gpus_of(&self, who: Who) -> Line {
        let mut line = Line::default();
        let done = self.ticks.iter().map(|tick| &tick.done).chain([&self.current]);
        for used in done.filter_map(|done| done.gpus.get(&who)) {
            line.add(used);
        }
        line
    }

    pub fn clear(&mut self) {
        *self = Ticks::default();
    }
}

impl Done {
    /// Jobs and the system, as they are weighed.
    pub fn weighed(&self) -> (Vec<Who>, Vec<Weights>) {
        let mut sum = Weights::default();
        self.jobs.values().for_each(|weights| sum.add(*weights));
        let everybody = self.jobs.keys().map(|&slot| Who::Job(slot)).chain([Who::System]).collect();
        (everybody, self.jobs.values().copied().chain([self.node.above(sum)]).collect())
    }

    fn add(&mut self, other: Done) {
        for (slot, weights) in other.jobs {
            self.jobs.entry(slot).or_default().add(weights);
        }
        self.node.add(other.node);
        for (who, line) in other.gpus {
            self.gpus.entry(who).or_default().add(&line);
        }
    }

    /// Takes a part of it, and all of what jobs did that are over.
    fn split(&mut self, part: i128, whole: i128, over: &[u32]) -> Done {
        let uj = |uj: i64| (i128::from(uj) * part / whole) as i64;
        let weight = |weight: u64| (i128::from(weight) * part / whole) as u64;
        let weights =
            |of: &Weights| Weights { cpu: weight(of.cpu), memory: weight(of.memory), held: weight(of.held) };
        let mut taken = Done::default();
        for (&slot, all) in &mut self.jobs {
            let part = if over.contains(&slot) { *all } else { weights(all) };
            *all = all.above(part);
            taken.jobs.insert(slot, part);
        }
        taken.node = weights(&self.node);
        self.node = self.node.above(taken.node);
        for (&who, all) in &mut self.gpus {
            let is_over = matches!(who, Who::Job(slot) if over.contains(&slot));
            let part = match is_over {
                true => *all,
                false => Line { active_uj: all.active_uj.map(uj), idle_uj: all.idle_uj.map(uj) },
            };
            all.take(&part);
            taken.gpus.insert(who, part);
        }
        taken
    }
}
