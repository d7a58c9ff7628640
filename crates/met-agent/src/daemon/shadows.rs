//! Directories in the v2 hierarchy for jobs of managers that know v1 alone: perf events can be counted in these
//! only. They are made while events are asked for, and nothing of them is left when the daemon leaves.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use met_core::job::{JobKey, Record};
use met_jobs::shadow::Shadow;

use super::keeping::Keeping;
use super::plain;
use met_jobs::processes;

/// Where the store remembers the directories: a daemon that is killed cannot remove them.
const META: &str = "shadows";

#[derive(Default)]
pub(super) struct Shadows {
    by_job: HashMap<JobKey, Shadow>,
    made: u64,
    /// Why a job has none, the last time that happened.
    refused: Option<String>,
}

impl Shadows {
    pub(super) fn count(&self) -> usize {
        self.by_job.len()
    }

    pub(super) fn refused(&self) -> Option<&String> {
        self.refused.as_ref()
    }

    pub(super) fn rename(&mut self, old: &JobKey, new: &JobKey) {
        if let Some(shadow) = self.by_job.remove(old) {
            self.by_job.insert(new.clone(), shadow);
        }
    }
}

impl Keeping {
    /// Takes away what an earlier daemon left.
    pub(super) fn remove_old_shadows(&mut self) {
        let left = self.recorder.writer.meta(META).ok().flatten();
        let paths: Vec<PathBuf> = left.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        for path in &paths {
            Shadow::remove(path);
        }
        if !paths.is_empty() {
            self.remember_shadows();
        }
    }

    /// Brings the directories in line with the jobs that are there and the events that are asked for.
    pub(super) fn follow_shadows(&mut self) {
        // Energy may be split by what the processor counts.
        let for_all = self.standing.config.energy.weight.event().is_some();
        if self.discovery.shadows.by_job.is_empty() && !for_all && !self.standing.asks_for_events() {
            return;
        }
        let asked = |key: &JobKey| for_all || self.standing.asks_for_events_of(key);
        let wanted = |key: &JobKey| self.registry.jobs.contains_key(key) && asked(key);
        let before = self.discovery.shadows.by_job.len();
        let kept = std::mem::take(&mut self.discovery.shadows.by_job);
        self.discovery.shadows.by_job = kept.into_iter().filter(|(key, _)| wanted(key)).collect();
        let mut changed = before != self.discovery.shadows.by_job.len();
        let lacking: Vec<Record> = (self.registry.jobs.values())
            .map(|kept| &kept.record)
            .filter(|record| lacks_directory(record) && asked(&record.key))
            .cloned()
            .collect();
        for record in lacking {
            changed |= self.shadow(&record);
        }
        if changed {
            self.remember_shadows();
        }
    }

    /// Tells a sampler that knows of none of the directories.
    pub(super) fn tell_shadows(&self) {
        for (key, shadow) in &self.discovery.shadows.by_job {
            self.sampling.count_in(key, shadow.path().to_path_buf());
        }
    }

    /// Whether a directory was made for the job; one that has it already takes in who came since.
    fn shadow(&mut self, record: &Record) -> bool {
        let host = &self.host;
        let members = || processes::of_job(host, record).iter().map(|process| process.id.pid).collect();
        if let Some(shadow) = self.discovery.shadows.by_job.get_mut(&record.key) {
            shadow.take_in(host, members);
            return false;
        }
        let Some(first) = members().first().copied() else { return false };
        self.discovery.shadows.made += 1;
        let name = format!("{}{}-{}", Shadow::PREFIX, std::process::id(), self.discovery.shadows.made);
        match Shadow::make(host, &name, first, members) {
            Ok(shadow) => {
                self.sampling.count_in(&record.key, shadow.path().to_path_buf());
                self.discovery.shadows.by_job.insert(record.key.clone(), shadow);
                true
            }
            Err(error) => {
                let why = format!("no v2 directory can be made: {error}");
                if self.discovery.shadows.refused.as_ref() != Some(&why) {
                    tracing::warn!("events of job {} are not counted: {why}", record.key.id);
                }
                self.discovery.shadows.refused = Some(why);
                false
            }
        }
    }

    fn remember_shadows(&mut self) {
        let paths: Vec<&Path> = self.discovery.shadows.by_job.values().map(Shadow::path).collect();
        let text = serde_json::to_string(&paths).unwrap_or_default();
        if let Err(error) = self.recorder.writer.set_meta(META, &text) {
            tracing::warn!("directories for events are not remembered: {error}");
        }
    }
}

/// Whether a job that somebody else started has cgroups of v1 alone.
fn lacks_directory(record: &Record) -> bool {
    let local = record.local.as_ref().filter(|_| Keeping::is_found(record) && !plain::is_plain(record));
    local.is_some_and(|local| !local.cgroup.is_empty() && local.cgroup.unified.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::job::{CgroupPaths, Origin};

    #[test]
    fn only_jobs_of_others_on_v1_need_a_directory() {
        let mut record = met_core::sample::full(1, "x");
        record.key.manager = "slurm".to_owned();
        let lacks = |record: &mut Record, origin, cgroup| {
            let local = record.local.as_mut().unwrap();
            (local.origin, local.cgroup) = (origin, cgroup);
            lacks_directory(record)
        };
        let v1 = CgroupPaths { cpuacct: Some("/c/job".into()), ..CgroupPaths::default() };
        let v2 = CgroupPaths { unified: Some("/u/job".into()), ..CgroupPaths::default() };
        assert!(lacks(&mut record, Origin::Found, v1.clone()));
        assert!(!lacks(&mut record, Origin::Run, v1.clone()));
        assert!(!lacks(&mut record, Origin::Found, v2));
        assert!(!lacks(&mut record, Origin::Found, CgroupPaths::default()));
        record.key.manager = "session".to_owned();
        assert!(!lacks(&mut record, Origin::Found, v1));
    }
}
