//! How jobs that run stand, as far as their samples do not say it: sent when it changes, and now and then.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use met_core::job::{Emission, JobKey, QualityKind};
use met_wire::batch::Standing;

/// Means change slowly, and a server that was started anew has forgotten the rest.
const EVERY: Duration = Duration::from_secs(60);
/// Nothing more comes of a job that was not told of for so long.
const OVER_AFTER: Duration = Duration::from_secs(600);

/// What is told at once when it is another one.
type Said = (Vec<(usize, QualityKind)>, Option<Emission>);

#[derive(Default)]
pub struct Standings {
    sent: HashMap<JobKey, (Instant, Said)>,
    held: HashMap<JobKey, Standing>,
}

impl Standings {
    /// Holds it for the next batch, if there is news in it.
    pub fn hold(&mut self, standing: Standing, now: Instant) {
        let is_known = self.sent.get(&standing.key).is_some_and(|(at, said)| {
            now.saturating_duration_since(*at) < EVERY && *said == said_by(&standing)
        });
        if !is_known {
            self.held.insert(standing.key.clone(), standing);
        }
    }

    /// What goes with the next batch.
    pub fn held(&self) -> Vec<Standing> {
        self.held.values().cloned().collect()
    }

    /// What was held is in a batch, or comes again.
    pub fn let_go(&mut self, now: Instant) {
        self.sent.retain(|_, (at, _)| now.saturating_duration_since(*at) < OVER_AFTER);
        let sent = self.held.drain().map(|(key, standing)| (key, (now, said_by(&standing))));
        self.sent.extend(sent);
    }
}

fn said_by(standing: &Standing) -> Said {
    let kinds = standing.totals.iter().map(|(column, figure)| (column, figure.kind));
    (kinds.collect(), standing.emission.clone())
}

#[cfg(test)]
mod tests {
    use met_core::job::{LOCAL, Totals};
    use met_core::job_table::ENERGY;

    use super::*;

    fn standing(energy_uj: i64, kind: QualityKind) -> Standing {
        let key = JobKey { cluster: None, manager: LOCAL.to_owned(), id: "1".to_owned(), incarnation: 1 };
        let mut totals = Totals::default();
        totals.set(ENERGY, energy_uj, kind, "RAPL, by CPU time");
        Standing { key, totals, summaries: Default::default(), emission: None }
    }

    #[test]
    fn news_are_told_at_once_and_the_rest_once_a_minute() {
        let mut standings = Standings::default();
        let begin = Instant::now();
        let mut told = |energy_uj, kind, seconds| {
            let now = begin + Duration::from_secs(seconds);
            standings.hold(standing(energy_uj, kind), now);
            let held = standings.held().len();
            standings.let_go(now);
            held
        };
        assert_eq!(told(1, QualityKind::Estimated, 0), 1);
        assert_eq!(told(2, QualityKind::Estimated, 10), 0);
        assert_eq!(told(3, QualityKind::Attributed, 20), 1, "it is known better now");
        assert_eq!(told(4, QualityKind::Attributed, 79), 0);
        assert_eq!(told(5, QualityKind::Attributed, 80), 1);
    }
}
