//! Interim totals of running jobs, as far as their samples do not contain them: sent on changes, and now and
//! then.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use met_core::job::{Emission, JobKey, QualityKind};
use met_wire::batch::Interim;

use super::json_bytes;

/// Means change ever more slowly: they are sent again when a job is twice as old, within these bounds. A restarted
/// server has forgotten the rest.
const EVERY_MIN: Duration = Duration::from_secs(60);
const EVERY_MAX: Duration = Duration::from_secs(600);
/// Of all in one batch, as JSON. One that finds no room is offered again.
const HELD_BYTES_MAX: usize = 1 << 20;
/// A job that was not sent for this long is over.
const OVER_AFTER: Duration = Duration::from_secs(1800);

/// Changes of these are sent at once.
type Contents = (Vec<(usize, QualityKind)>, Option<Emission>);

struct Sent {
    /// When it was sent for the first time, and for the last.
    first: Instant,
    last: Instant,
    contents: Contents,
}

impl Sent {
    fn is_due(&self, now: Instant) -> bool {
        let every = (self.last - self.first).clamp(EVERY_MIN, EVERY_MAX);
        now.saturating_duration_since(self.last) >= every
    }
}

#[derive(Default)]
pub struct Interims {
    sent: HashMap<JobKey, Sent>,
    held: HashMap<JobKey, Interim>,
    held_bytes: usize,
}

impl Interims {
    /// Holds it for the next batch, if there is news in it.
    pub fn hold(&mut self, interim: &Interim, now: Instant) {
        let sent = self.sent.get(&interim.key);
        if sent.is_none_or(|sent| sent.is_due(now) || sent.contents != contents(interim)) {
            let bytes = json_bytes(interim);
            if self.held_bytes + bytes <= HELD_BYTES_MAX {
                self.held_bytes += bytes;
                self.held.insert(interim.key.clone(), interim.clone());
            }
        }
    }

    /// What goes with the next batch.
    pub fn held(&self) -> Vec<Interim> {
        self.held.values().cloned().collect()
    }

    /// What was held is in a batch, or comes again.
    pub fn let_go(&mut self, now: Instant) {
        self.sent.retain(|_, sent| now.saturating_duration_since(sent.last) < OVER_AFTER);
        self.held_bytes = 0;
        for (key, interim) in self.held.drain() {
            let first = self.sent.get(&key).map_or(now, |sent| sent.first);
            self.sent.insert(key, Sent { first, last: now, contents: contents(&interim) });
        }
    }
}

fn contents(interim: &Interim) -> Contents {
    let kinds = interim.totals.iter().map(|(column, figure)| (column, figure.kind));
    (kinds.collect(), interim.emission.clone())
}

#[cfg(test)]
mod tests {
    use met_core::job::{LOCAL, Totals};
    use met_core::job_table::ENERGY;

    use super::*;

    fn interim(energy_uj: i64, kind: QualityKind) -> Interim {
        let key = JobKey { cluster: None, manager: LOCAL.to_owned(), id: "1".to_owned(), incarnation: 1 };
        let mut totals = Totals::default();
        totals.set(ENERGY, energy_uj, kind, "RAPL, by CPU time");
        Interim { key, totals, summaries: Default::default(), emission: None }
    }

    #[test]
    fn changes_are_sent_at_once_and_the_rest_ever_more_rarely() {
        let mut interims = Interims::default();
        let begin = Instant::now();
        let mut sent = |energy_uj, kind, seconds| {
            let now = begin + Duration::from_secs(seconds);
            interims.hold(&interim(energy_uj, kind), now);
            let held = interims.held().len();
            interims.let_go(now);
            held
        };
        assert_eq!(sent(1, QualityKind::Estimated, 0), 1);
        assert_eq!(sent(2, QualityKind::Estimated, 10), 0);
        assert_eq!(sent(3, QualityKind::Attributed, 20), 1, "it is known better now");
        assert_eq!(sent(4, QualityKind::Attributed, 79), 0);
        assert_eq!(sent(5, QualityKind::Attributed, 80), 1);
        let again: Vec<u64> =
            (81..4000).filter(|&second| sent(6, QualityKind::Attributed, second) > 0).collect();
        assert_eq!(again, [160, 320, 640, 1240, 1840, 2440, 3040, 3640]);
    }
}
