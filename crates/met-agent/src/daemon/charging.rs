//! What energy jobs are charged after their end, and what a kilowatt hour emits.

use std::slice::from_ref;

use met_core::energy::emission::Factor;
use met_core::job::JobKey;

use super::keeping::Keeping;
use crate::emissions;
use crate::node_energy::Charged;
use met_query::jobs;

/// What a kilowatt hour emits.
#[derive(Default)]
pub(super) struct Emitting {
    pub(super) asking: Option<emissions::Asking>,
    pub(super) told: Vec<Factor>,
    holds: Option<Factor>,
}

impl Keeping {
    pub fn is_owed(&self) -> bool {
        !self.registry.owed.is_empty()
    }

    /// Adds to jobs that are over what their last window of energy came to.
    pub fn settle_energy(&mut self) {
        if self.is_owed() && self.sampling.is_ready() {
            let settled = self.sampling.settled();
            self.put_energy(settled);
        }
    }

    pub(super) fn put_energy(&mut self, settled: Vec<(JobKey, Charged)>) {
        for (key, charged) in settled {
            self.registry.owed.remove(&key);
            if let Some(end) = self.recorder.unwritten.end_of(&key) {
                charged.put(&mut end.totals);
                end.emission = charged.emission();
                continue;
            }
            let Ok(Some(mut record)) = self.recorder.writer.get(&key) else { continue };
            charged.put(&mut record.totals);
            record.emission = charged.emission();
            // In its place: a charge may take figures back, and a report does not remove any.
            match self.recorder.writer.put_instead(from_ref(&record), from_ref(&key)) {
                Ok(()) => self.outputs.publish_end(&record),
                Err(error) => tracing::warn!("job {}: its last share of energy is lost: {error}", key.id),
            }
            self.outputs.on_board(|board| board.knows(&record));
        }
    }

    /// Takes up what a provider said.
    pub fn hear_provider(&mut self) {
        let answers =
            self.recorder.emitting.asking.as_ref().map(emissions::Asking::answers).unwrap_or_default();
        for answer in answers {
            match answer {
                Ok(factors) => self.take_factors(factors),
                Err(error) => tracing::warn!("no emission factor: {error}"),
            }
        }
    }

    fn take_factors(&mut self, factors: Vec<Factor>) {
        if factors.len() > 1 {
            let count = factors.len();
            tracing::info!(
                "{count} emission factors of the past; `met emissions recompute` applies them to jobs"
            );
        }
        for factor in factors {
            if let Err(error) = self.recorder.writer.put_factor(&factor) {
                tracing::warn!("an emission factor is not kept: {error}");
            }
            // A provider says the same until it has measured again, and may correct itself.
            self.recorder.emitting.told.retain(|told| told.since_ns != factor.since_ns);
            self.recorder.emitting.told.push(factor);
        }
        self.recorder.emitting.told.sort_by_key(|told| told.since_ns);
        self.follow_factor();
    }

    /// The time of the newest factor that a provider told.
    pub(super) fn told_ns(&self) -> Option<i64> {
        let by_provider = self.recorder.emitting.told.iter().filter(|told| told.source != emissions::BY_HAND);
        by_provider.map(|told| told.since_ns).max()
    }

    /// Tells a sampler that knows of none which factor holds now.
    pub(super) fn tell_factor(&mut self) {
        self.recorder.emitting.holds = None;
        self.follow_factor();
    }

    /// Tells the sampler which factor holds now, if that is another one.
    pub fn follow_factor(&mut self) {
        let factors = emissions::course(&self.standing.config.emissions, &self.recorder.emitting.told);
        let holds = factors.at(jobs::now_ns()).cloned();
        if let Some(factor) = holds.clone().filter(|_| holds != self.recorder.emitting.holds) {
            self.sampling.set_factor(factor);
            self.recorder.emitting.holds = holds;
        }
    }
}
