//! Directories for jobs that have none in the hierarchy of perf events, such as those of managers that know v1 alone:
//! events can be counted in these only. They are made while events are asked for, and nothing of them is left when the daemon leaves.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use met_core::job::{JobKey, Record};
use met_host::Host;
use met_jobs::perf_cgroup::PerfCgroup;
use met_store::Writer;

use super::live_settings::LiveSettings;
use super::process_groups;
use super::registry::{Registry, is_found};
use super::sampler_thread::Sampling;
use super::service::{Left, OnEnd};
use met_jobs::processes;

/// Where the store remembers the directories: a daemon that is killed cannot remove them.
const META: &str = "shadows";

#[derive(Default)]
pub(super) struct PerfCgroups {
    by_job: HashMap<JobKey, PerfCgroup>,
    made: u64,
    /// Why a job has none, the last time that happened.
    refused: Option<String>,
}

impl PerfCgroups {
    pub(super) fn count(&self) -> usize {
        self.by_job.len()
    }

    pub(super) fn refused(&self) -> Option<&String> {
        self.refused.as_ref()
    }

    pub(super) fn rename(&mut self, old: &JobKey, new: &JobKey) {
        if let Some(perf_cgroup) = self.by_job.remove(old) {
            self.by_job.insert(new.clone(), perf_cgroup);
        }
    }

    /// Takes away what an earlier daemon left.
    pub(super) fn remove_old(&mut self, writer: &mut Writer) {
        let left = writer.meta(META).ok().flatten();
        let paths: Vec<PathBuf> = left.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        for path in &paths {
            PerfCgroup::remove(path);
        }
        if !paths.is_empty() {
            self.remember(writer);
        }
    }

    /// Brings the directories in line with the jobs that are there and the events that are asked for.
    pub(super) fn follow(
        &mut self,
        host: &Host,
        settings: &LiveSettings,
        registry: &Registry,
        sampling: &Sampling,
        writer: &mut Writer,
    ) {
        // Energy may be split by what the processor counts.
        let for_all = settings.config.energy.weight.event().is_some();
        if self.by_job.is_empty() && !for_all && !settings.asks_for_events() {
            return;
        }
        let asked = |key: &JobKey| for_all || settings.asks_for_events_of(key);
        let wanted = |key: &JobKey| registry.jobs.contains_key(key) && asked(key);
        let before = self.by_job.len();
        let kept = std::mem::take(&mut self.by_job);
        self.by_job = kept.into_iter().filter(|(key, _)| wanted(key)).collect();
        let mut changed = before != self.by_job.len();
        let lacking: Vec<Record> = (registry.jobs.values())
            .map(|kept| &kept.record)
            .filter(|record| lacks_directory(host, record) && asked(&record.key))
            .cloned()
            .collect();
        for record in lacking {
            changed |= self.make(host, &record, sampling);
        }
        if changed {
            self.remember(writer);
        }
    }

    /// Sends all directories to a sampler that knows none of them.
    pub(super) fn send_to(&self, sampling: &Sampling) {
        for (key, perf_cgroup) in &self.by_job {
            sampling.count_in(key, perf_cgroup.path().to_path_buf());
        }
    }

    /// Whether a directory was made for the job; one that has it already takes in who came since.
    fn make(&mut self, host: &Host, record: &Record, sampling: &Sampling) -> bool {
        let members = || processes::of_job(host, record).iter().map(|process| process.id.pid).collect();
        if let Some(perf_cgroup) = self.by_job.get_mut(&record.key) {
            perf_cgroup.take_in(host, members);
            return false;
        }
        let Some(first) = members().first().copied() else { return false };
        self.made += 1;
        let name = format!("{}{}-{}", PerfCgroup::PREFIX, std::process::id(), self.made);
        match PerfCgroup::make(host, &name, first, members) {
            Ok(perf_cgroup) => {
                sampling.count_in(&record.key, perf_cgroup.path().to_path_buf());
                self.by_job.insert(record.key.clone(), perf_cgroup);
                true
            }
            Err(error) => {
                let why = format!("no directory for events can be made: {error}");
                if self.refused.as_ref() != Some(&why) {
                    tracing::warn!("events of job {} are not counted: {why}", record.key.id);
                }
                self.refused = Some(why);
                false
            }
        }
    }

    fn remember(&self, writer: &mut Writer) {
        let paths: Vec<&Path> = self.by_job.values().map(PerfCgroup::path).collect();
        let text = serde_json::to_string(&paths).unwrap_or_default();
        if let Err(error) = writer.set_meta(META, &text) {
            tracing::warn!("directories for events are not remembered: {error}");
        }
    }
}

impl OnEnd for PerfCgroups {
    fn job_left(&mut self, left: &mut Left<'_>) {
        if self.by_job.remove(&left.record.key).is_some() {
            self.remember(&mut left.recorder.writer);
        }
    }
}

/// Whether a job that another program started has cgroups, and none in which events can be counted.
fn lacks_directory(host: &Host, record: &Record) -> bool {
    let local = record.local.as_ref().filter(|_| is_found(record) && !process_groups::is_plain(record));
    let Some(cgroup) = local.map(|local| &local.cgroup).filter(|cgroup| !cgroup.is_empty()) else {
        return false;
    };
    match host.hierarchies().perf_event_v1 {
        Some(_) => {
            let own = host.hierarchies().events_v1_of(cgroup);
            own.is_none_or(|path| host.cgroup_dir(&path).is_err())
        }
        None => cgroup.unified.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::job::{CgroupPaths, Origin};

    #[test]
    fn only_jobs_of_others_on_v1_need_a_directory() {
        let mut record = met_core::sample::full(1, "x");
        record.key.manager = "slurm".to_owned();
        let plain = tempfile::tempdir().unwrap();
        std::fs::create_dir(plain.path().join("proc")).unwrap();
        let host = Host::at(plain.path()).unwrap();
        let lacks = |record: &mut Record, origin, cgroup| {
            let local = record.local.as_mut().unwrap();
            (local.origin, local.cgroup) = (origin, cgroup);
            lacks_directory(&host, record)
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

    #[test]
    fn where_events_are_of_v1_the_jobs_own_directory_there_is_enough() {
        let root = tempfile::tempdir().unwrap();
        let mounts = "33 31 0:30 / /c rw - cgroup cgroup rw,cpuacct\n\
                      34 31 0:31 / /p rw - cgroup cgroup rw,perf_event\n\
                      41 31 0:38 / /u rw - cgroup2 cgroup2 rw\n";
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        std::fs::write(root.path().join("proc/self/mountinfo"), mounts).unwrap();
        let host = Host::at(root.path()).unwrap();
        let mut record = met_core::sample::full(1, "x");
        record.key.manager = "oar".to_owned();
        let local = record.local.as_mut().unwrap();
        local.origin = Origin::Found;
        local.cgroup = CgroupPaths { cpuacct: Some("/c/job".into()), ..CgroupPaths::default() };
        assert!(lacks_directory(&host, &record));
        std::fs::create_dir_all(root.path().join("p/job")).unwrap();
        assert!(!lacks_directory(&host, &record));
        // One of v2 is no use there: the kernel refuses it.
        record.local.as_mut().unwrap().cgroup =
            CgroupPaths { unified: Some("/u/other".into()), ..CgroupPaths::default() };
        assert!(lacks_directory(&host, &record));
    }
}
