//! The jobs that run, and what is known of them.

use std::collections::{HashMap, HashSet};

use met_core::job::{JobKey, Record};

use super::found::Gone;
use super::nesting::Outer;
use super::supervisors::Watch;

#[derive(Default)]
pub(super) struct Registry {
    pub(super) jobs: HashMap<JobKey, Kept>,
    /// Jobs of ours inside jobs that the discovery follows.
    pub(super) outers: HashMap<JobKey, Outer>,
    /// Those that an earlier daemon followed, until they are found again or known to be gone.
    pub(super) resumable: Vec<Record>,
    /// Jobs that are over, and whose last share of energy is not known yet.
    pub(super) owed: HashSet<JobKey>,
}

pub(super) struct Kept {
    pub(super) record: Record,
    pub(super) watch: Watch,
    /// What it did in directories that are gone, while it has others.
    pub(super) gone: Vec<Gone>,
}
