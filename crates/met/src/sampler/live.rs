//! Jobs that still run, as far as is known.

use met_core::course::Course;
use met_core::job::{Emission, EventCount, GpuUse, JobKey, Record, Totals};
use met_core::{JOB, MISSING};
use met_host::Host;

use super::reading::Reading;
use super::totals::{set_gpu_energy, totals};
use super::tracked::{Profile, Tracked};
use super::{PEAK_SPAN_MS, Sampler};
use crate::running::Running;

/// Figures of a job that still runs.
#[derive(Clone, Debug, Default)]
pub struct Live {
    pub totals: Totals,
    pub summaries: met_core::job::Summaries,
    pub gpus: Vec<GpuUse>,
    pub events: Vec<EventCount>,
    pub emission: Option<Emission>,
}

impl Live {
    fn of(running: &Running, profile: Profile) -> Live {
        Live { totals: totals(running, profile), summaries: running.summaries(), ..Live::default() }
    }

    /// Of a job that nobody samples: what its counters and levels are at this moment.
    pub fn now(host: &Host, record: &Record) -> Live {
        let Some(local) = &record.local else { return Live::default() };
        let reading = Reading::of_job(host, record);
        let first_known =
            |(cgroup, processes): (&i64, &i64)| if *cgroup == MISSING { *processes } else { *cgroup };
        let cells: Vec<i64> = reading.cgroup.iter().zip(&reading.processes).map(first_known).collect();
        let mut running = Running::new(i64::MAX, PEAK_SPAN_MS);
        running.push(0, &cells);
        Live::of(&running, Profile { hides_io: reading.hides_io, ..Profile::of(local) })
    }
}

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
}
