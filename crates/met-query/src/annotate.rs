//! Tags and notes of jobs, the one thing that people write about them.

use anyhow::Result;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::job::JobKey;

use crate::viewer::Viewer;

pub use met_config::Failure;

/// Keeps what people say of jobs: a daemon, a server, or whoever has the files.
pub trait Annotates {
    /// Changes tags and note of a job that the viewer sees, and returns them as they are then. A change that is
    /// malformed, or a job that the viewer does not see, is a usage error ([`Failure`]).
    fn annotate(&self, viewer: &Viewer, key: &JobKey, change: &AnnotationChange) -> Result<Annotation>;
}

/// The same words whether there is none or it is not visible.
pub fn no_such_job() -> anyhow::Error {
    Failure::usage("no such job, or it belongs to another user")
}
