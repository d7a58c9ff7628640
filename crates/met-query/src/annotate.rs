//! Tags and notes of jobs, the one thing that people write about them.

use anyhow::Result;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::job::{JobKey, Record};

use crate::viewer::Viewer;

pub use met_config::Failure;

/// Keeps what people say of jobs: a daemon, a server, or all that has a person's own jobs.
pub trait Annotates {
    /// Changes tags and note of a job of the viewer, or of any job for an operator, and returns them as they are
    /// then. A malformed change, and a job that the viewer may not annotate, are usage errors ([`Failure`]).
    fn annotate(&self, viewer: &Viewer, key: &JobKey, change: &AnnotationChange) -> Result<Annotation>;
}

/// An error unless the viewer may annotate this job, if there is one.
pub fn permit(viewer: &Viewer, job: Option<&Record>) -> Result<()> {
    match job {
        Some(record) if viewer.may_annotate(record) => Ok(()),
        Some(record) if viewer.sees(record) => {
            Err(Failure::usage("only its owner or an operator may annotate this job"))
        }
        // Not all users may know whether there is one.
        _ => Err(no_such_job()),
    }
}

/// The same words whether there is none or it is not visible.
pub fn no_such_job() -> anyhow::Error {
    Failure::usage("no such job, or it belongs to another user")
}
