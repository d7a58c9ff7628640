//! Figures of a running job that is not sampled.

use met_core::MISSING;
use met_core::job::{Emission, EventCount, GpuUse, Record, Summaries, Totals, UncountedEvent};
use met_core::running::Running;
use met_core::sampled::{Profile, totals};
use met_host::Host;
use met_jobs::job_cgroup;

use crate::counters::Reading;

/// A peak of cores is one that lasted.
pub const PEAK_SPAN_MS: i64 = 500;

/// Figures of a job that still runs.
#[derive(Clone, Debug, Default)]
pub struct Live {
    pub totals: Totals,
    pub summaries: Summaries,
    pub gpus: Vec<GpuUse>,
    pub events: Vec<EventCount>,
    pub uncounted_events: Vec<UncountedEvent>,
    pub emission: Option<Emission>,
    /// The time of the sample that these are of, in unix nanoseconds; `None` if they were read just now.
    pub as_of_ns: Option<i64>,
}

impl Live {
    pub fn of(running: &Running, profile: Profile) -> Live {
        let as_of_ns = running.counted_until_ms().map(|time_ms| time_ms.saturating_mul(1_000_000));
        Live { totals: totals(running, profile), summaries: running.summaries(), as_of_ns, ..Live::default() }
    }

    /// For a job that is not sampled: its current counters and levels.
    pub fn now(host: &Host, record: &Record) -> Live {
        let Some(local) = &record.local else { return Live::default() };
        let reading = Reading::of_job(host, record);
        let first_known =
            |(cgroup, processes): (&i64, &i64)| if *cgroup == MISSING { *processes } else { *cgroup };
        let cells: Vec<i64> = reading.cgroup.iter().zip(&reading.processes).map(first_known).collect();
        let mut running = Running::new(i64::MAX, PEAK_SPAN_MS);
        running.push(0, &cells);
        let live = Live::of(&running, Profile { hides_io: reading.hides_io, ..job_cgroup::profile(local) });
        Live { as_of_ns: None, ..live }
    }
}
