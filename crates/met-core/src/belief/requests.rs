//! Requests that changed while their job ran.
//!
//! A scheduler states what holds when it is asked, so a change is known by the first answer that has it. Answers given
//! while the job waited do not count: what a job asks for before it starts is not what it had.

use crate::job::{EarlierRequest, Record, Resources, State};

/// Of more changes the last ones are kept.
pub const EARLIER_MAX: usize = 16;

/// What held from a time on.
struct Held {
    since_ns: i64,
    requested: Resources,
    allocated: Resources,
}

/// What held before, by two records of one job. `word` has the later answer.
pub(super) fn earlier(word: &Record, no_word: &Record) -> Vec<EarlierRequest> {
    if no_word.scheduling.asked_ns.is_none() {
        return word.scheduling.earlier.clone();
    }
    let mut held = answers(word);
    held.extend(answers(no_word));
    // What came before a full list is unknown.
    let full = [word, no_word].map(|record| &record.scheduling.earlier).into_iter();
    let begin_ns =
        full.filter(|earlier| earlier.len() >= EARLIER_MAX).map(|earlier| earlier[0].until_ns).max();
    held.retain(|held| {
        held.since_ns == i64::MIN || begin_ns.is_none_or(|begin_ns| held.since_ns >= begin_ns)
    });
    // Stable: of two at one time the later answer is believed.
    held.sort_by_key(|held| held.since_ns);
    let mut kept: Vec<Held> = Vec::with_capacity(held.len());
    for next in held {
        match kept.last_mut() {
            Some(last) if last.since_ns == next.since_ns || !last.differs(&next) => last.fill_from(&next),
            _ => kept.push(next),
        }
    }
    let until = kept.iter().skip(1).map(|next| next.since_ns).collect::<Vec<_>>();
    let earlier = kept.into_iter().zip(until).map(|(Held { requested, allocated, .. }, until_ns)| {
        EarlierRequest { until_ns, requested, allocated }
    });
    let mut earlier: Vec<EarlierRequest> = earlier.collect();
    earlier.drain(..earlier.len().saturating_sub(EARLIER_MAX));
    earlier
}

/// What a scheduler said of the job while it ran or when it was over, the oldest first.
fn answers(record: &Record) -> Vec<Held> {
    let scheduling = &record.scheduling;
    let mut held = Vec::new();
    let mut since_ns = i64::MIN;
    for EarlierRequest { until_ns, requested, allocated } in &scheduling.earlier {
        held.push(Held { since_ns, requested: requested.clone(), allocated: allocated.clone() });
        since_ns = *until_ns;
    }
    let waited = scheduling.waited || record.state == State::Pending;
    let Some(asked_ns) = scheduling.asked_ns.filter(|_| !waited) else { return held };
    let now = |since_ns| Held {
        since_ns,
        requested: amounts(&record.requested),
        allocated: amounts(&record.allocated),
    };
    if !held.is_empty() {
        held.push(now(since_ns));
    }
    held.push(now(asked_ns));
    held
}

/// Without what has no amount that can be compared.
fn amounts(resources: &Resources) -> Resources {
    let Resources { nodes, cpus, memory_bytes, gpus, time_limit_ns, .. } = *resources;
    Resources { nodes, cpus, memory_bytes, gpus, time_limit_ns, ..Resources::default() }
}

impl Held {
    fn differs(&self, other: &Held) -> bool {
        differ(&self.requested, &other.requested) || differ(&self.allocated, &other.allocated)
    }

    fn fill_from(&mut self, other: &Held) {
        self.requested.fill_from(&other.requested);
        self.allocated.fill_from(&other.allocated);
    }
}

/// What only one of them knows is no difference.
fn differ(one: &Resources, other: &Resources) -> bool {
    let of = |resources: &Resources| {
        let Resources { nodes, cpus, memory_bytes, gpus, time_limit_ns, .. } = *resources;
        [nodes, cpus, memory_bytes, gpus, time_limit_ns]
    };
    of(one)
        .into_iter()
        .zip(of(other))
        .any(|(one, other)| one.zip(other).is_some_and(|(one, other)| one != other))
}

/// What a job held on average until `end_ns`: the amount that it had or asked for, weighted by how long. Where nothing
/// changed, that is the amount.
pub fn held(record: &Record, end_ns: i64, amount: fn(&Resources) -> Option<i64>) -> Option<f64> {
    let of = |requested: &Resources, allocated: &Resources| amount(allocated).or(amount(requested));
    let last = of(&record.requested, &record.allocated)?;
    let earlier = &record.scheduling.earlier;
    let Some(start_ns) = record.start_ns.filter(|&start_ns| start_ns < end_ns && !earlier.is_empty()) else {
        return Some(last as f64);
    };
    let (mut sum, mut since_ns) = (0.0, start_ns);
    for one in earlier {
        let until_ns = one.until_ns.clamp(since_ns, end_ns);
        sum += of(&one.requested, &one.allocated).unwrap_or(last) as f64 * (until_ns - since_ns) as f64;
        since_ns = until_ns;
    }
    Some((sum + last as f64 * (end_ns - since_ns) as f64) / (end_ns - start_ns) as f64)
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
