//! met-jobs
