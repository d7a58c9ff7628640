//! Jobs that still run, as far as is known.

use met_core::JOB;
use met_core::belief::set_gpu_energy;
use met_core::course::Course;
use met_core::job::JobKey;
use met_query::live::Live;

use super::Sampler;
use super::tracked::Tracked;

impl Sampler {
    /// What is known of each job so far.
    pub fn live(&self) -> Vec<(JobKey, Live)> {
        let live = |(&slot, job): (&u32, &Tracked)| {
            let mut live = Live::of(&job.running, job.profile);
            live.gpus = job.gpus(self.cards.uses_of(slot));
            live.events.clone_from(&job.events);
            set_gpu_energy(&mut live.totals, &live.gpus, job.gpu_untold_uj());
            if let Some(charged) = self.energy.charged(slot) {
                charged.put(&mut live.totals);
                live.emission = charged.emission();
            }
            (job.key.clone(), live)
        };
        self.jobs.iter().map(live).collect()
    }

    /// The samples taken since the last call, by job.
    pub fn drain(&mut self) -> Vec<(JobKey, Course)> {
        let drained = self.jobs.values_mut().filter(|job| !job.course.is_empty());
        drained.map(|job| (job.key.clone(), std::mem::replace(&mut job.course, Course::new(&JOB)))).collect()
    }

    /// The samples of a job that are not drained yet.
    pub fn undrained(&self, slot: u32) -> Option<&Course> {
        self.jobs.get(&slot).map(|job| &job.course)
    }
}
