//! Figures of a running job that is not sampled.

use met_core::MISSING;
pub use met_core::belief::Live;
use met_core::job::Record;
use met_core::running::Running;
use met_core::sampled::Profile;
use met_host::Host;
use met_jobs::job_cgroup;

use crate::counters::Reading;

/// A peak of cores is one that lasted.
pub const PEAK_SPAN_MS: i64 = 500;

/// The current counters and levels of a job.
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
