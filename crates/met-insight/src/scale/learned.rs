//! What runs of a job say about how it scales, taken in run by run.

use met_core::job::State;

use super::{Bounds, Ceilings, Power, Run, bounds, power, run, size};
use crate::answers::Job;

/// How the words for a job without a size end.
pub const UNSIZED: &str = "its size is not known";

#[derive(Debug, Default)]
pub struct Learned {
    pub runs: Vec<Run>,
    pub powers: Vec<Power>,
    /// Of the first run alone.
    pub bounds: Option<Bounds>,
    /// Jobs that are no run to learn from, in words.
    pub left_out: Vec<String>,
    is_begun: bool,
}

impl Learned {
    /// Takes in a run of this size, or of the size that it says itself.
    pub fn add(&mut self, job: &Job<'_>, given: Option<f64>, ceilings: &Ceilings) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.bounds = bounds(job, ceilings);
        }
        let record = job.record;
        match given.or_else(|| size(job)) {
            _ if record.state != State::Finished => {
                self.left_out.push(format!("job {}: {}", record.label(), record.state.name()));
            }
            None => self.left_out.push(format!("job {}: {UNSIZED}", record.label())),
            Some(size) => {
                self.runs.extend(run(job, size));
                self.powers.extend(power(job, size));
            }
        }
    }
}
