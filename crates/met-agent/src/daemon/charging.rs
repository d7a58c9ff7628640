//! What energy jobs are charged after their end, and what a kilowatt hour emits.

use std::slice::from_ref;

use anyhow::Result;
use met_core::energy::emission::{Factor, FactorSource};
use met_core::job::JobKey;
use met_store::Writer;

use super::recorder::Recorder;
use super::sampler_thread::Sampling;
use super::sinks::Outputs;
use crate::emissions;
use crate::node_energy::Charged;
use met_config::Config;
use met_query::jobs;

/// What a kilowatt hour emits.
#[derive(Default)]
pub(super) struct Emitting {
    asking: Option<emissions::Asking>,
    pub(super) reported: Vec<Factor>,
    holds: Option<Factor>,
}

impl Emitting {
    /// Applies the answers of the provider.
    pub(super) fn take_factors(&mut self, writer: &mut Writer, config: &Config, sampling: &Sampling) {
        let answers = self.asking.as_ref().map(emissions::Asking::answers).unwrap_or_default();
        for answer in answers {
            match answer {
                Ok(factors) => {
                    self.keep_factors(factors, writer);
                    self.follow(config, sampling);
                }
                Err(error) => tracing::warn!("no emission factor: {error}"),
            }
        }
    }

    fn keep_factors(&mut self, factors: Vec<Factor>, writer: &mut Writer) {
        if factors.len() > 1 {
            let count = factors.len();
            tracing::info!(
                "{count} emission factors of the past; `met emissions recompute` applies them to jobs"
            );
        }
        for factor in factors {
            if let Err(error) = writer.put_factor(&factor) {
                tracing::warn!("an emission factor is not kept: {error}");
            }
            // A provider repeats a value until its next measurement, and may correct it.
            self.reported.retain(|known| known.since_ns != factor.since_ns);
            self.reported.push(factor);
        }
        self.reported.sort_by_key(|factor| factor.since_ns);
    }

    pub(super) fn factor_at(&self, config: &Config, at_ns: i64) -> Option<Factor> {
        emissions::series(&config.emissions, &self.reported).at(at_ns).cloned()
    }

    /// Starts to query the configured provider, for values newer than its last.
    pub(super) fn ask(&mut self, config: &Config) -> Result<()> {
        let by_provider = self.reported.iter().filter(|factor| factor.source != FactorSource::ByHand);
        let newest_ns = by_provider.map(|factor| factor.since_ns).max();
        self.asking = emissions::Asking::start(&config.emissions, newest_ns)?;
        Ok(())
    }

    /// Sends the current factor to a new sampler.
    pub(super) fn send_factor(&mut self, config: &Config, sampling: &Sampling) {
        self.holds = None;
        self.follow(config, sampling);
    }

    /// Sends the current factor to the sampler if it changed.
    pub(super) fn follow(&mut self, config: &Config, sampling: &Sampling) {
        let factors = emissions::series(&config.emissions, &self.reported);
        let holds = factors.at(jobs::now_ns()).cloned();
        if let Some(factor) = holds.clone().filter(|_| holds != self.holds) {
            sampling.set_factor(factor);
            self.holds = holds;
        }
    }
}

impl Recorder {
    /// Adds to jobs that are over what their last window of energy came to.
    pub(super) fn put_energy(&mut self, settled: Vec<(JobKey, Charged)>, outputs: &mut Outputs) {
        for (key, charged) in settled {
            if let Some(end) = self.unwritten.records.iter_mut().find(|end| end.key == key) {
                charged.put(&mut end.totals);
                end.emission = charged.emission();
                continue;
            }
            let Ok(Some(mut record)) = self.writer.get(&key) else { continue };
            charged.put(&mut record.totals);
            record.emission = charged.emission();
            // In its place: a charge may take figures back, and a report does not remove any.
            match self.writer.put_instead(from_ref(&record), from_ref(&key)) {
                Ok(()) => outputs.publish_end(&record),
                Err(error) => tracing::warn!("job {}: its last share of energy is lost: {error}", key.id),
            }
            outputs.on_metrics_cache(|metrics_cache| metrics_cache.knows(&record));
        }
    }
}
