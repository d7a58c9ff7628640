//! Jobs that are sampled more often for a while, because rules need it.

use std::time::Duration;

use anyhow::Result;
use met_core::job::JobKey;

use crate::viewer::Viewer;

/// A daemon, or a server that passes it on to daemons.
pub trait SamplesMore {
    /// Has running jobs that the viewer sees sampled at the shortest interval for a while, and says which. Nothing is
    /// written for it. Rules ask for it, where `met check` applies them.
    fn sample_more(&self, viewer: &Viewer, keys: &[JobKey], wanted_for: Duration) -> Result<Vec<JobKey>>;
}
