//! Jobs that somebody else started, from their discovery to their end.

use std::path::PathBuf;

use met_core::job::{JobKey, Local, Origin, QualityKind, Record, State, Summaries, Totals};
use met_core::job_table::{CPU, MEMORY_PEAK, OOM_KILLS, WALL};
use met_host::Host;
use met_jobs::discover::{Ended, Event, Found};
use met_jobs::layouts::Captures;

use super::keeping::Keeping;
use crate::jobs;
use crate::sampler::Sampled;
use crate::users;

impl Keeping {
    /// Whether a job is one that the discovery follows.
    pub(super) fn is_found(record: &Record) -> bool {
        record.local.as_ref().is_some_and(|local| local.origin == Origin::Found)
    }

    /// Takes note of what the discovery has seen since the last call.
    pub fn discovered(&mut self) {
        for event in self.finding.as_ref().map(|finding| finding.take()).unwrap_or_default() {
            match event {
                Event::Found(found) => self.found(*found),
                Event::Inhabited(job) => self.identify(job),
                Event::Parts(job, parts) => {
                    let kept = self.found.get(&job).and_then(|key| self.jobs.get_mut(key));
                    if let Some(kept) = kept {
                        kept.record.parts = parts;
                    }
                }
                Event::Ended(ended) => self.found_ended(*ended),
                Event::Looked => self.close_vanished(),
            }
        }
    }

    fn found(&mut self, found: Found) {
        let continued = self.resumable.iter().position(|record| is_same(&self.host, record, &found));
        let record = match continued.map(|index| self.resumable.swap_remove(index)) {
            Some(record) => record,
            None => self.new_record(&found),
        };
        if let Err(error) = self.writer.put(&record) {
            tracing::warn!("job {}: {error}", record.key.id);
        }
        self.found.insert(found.job, record.key.clone());
        self.watch(record);
        // Whoever is in it already is not told of again.
        if !found.pids.is_empty() {
            self.identify(found.job);
        }
    }

    fn new_record(&self, found: &Found) -> Record {
        let mut key = JobKey {
            cluster: None,
            manager: found.manager.clone(),
            id: found.id.clone(),
            incarnation: found.start_ns.div_euclid(1_000_000_000),
        };
        // Requeued within a second, or on two nodes of one host: still another one.
        while self.jobs.contains_key(&key) || matches!(self.writer.get(&key), Ok(Some(_))) {
            key.incarnation += 1;
        }
        let facts = self.host.facts();
        let mut record = Record {
            name: key.id.clone(),
            key,
            user: None,
            uid: None,
            account: None,
            command: Vec::new(),
            state: State::Running,
            manager_state: None,
            exit_code: None,
            signal: None,
            start_ns: Some(found.start_ns),
            end_ns: None,
            nodes: Vec::new(),
            node_memory_bytes: facts.memory_total_bytes,
            totals: Totals::default(),
            summaries: Summaries::default(),
            gpus: Vec::new(),
            events: Vec::new(),
            requested: Default::default(),
            allocated: Default::default(),
            scheduling: Default::default(),
            parts: Vec::new(),
            emission: None,
            local: Some(Local {
                boot_id: facts.boot_id.clone(),
                origin: Origin::Found,
                supervisor: None,
                main: None,
                cgroup: found.cgroup.clone(),
                cwd: PathBuf::from("/"),
                stdout: None,
                stderr: None,
                left_over: Vec::new(),
            }),
        };
        describe(&found.captures, &mut record);
        record
    }

    fn found_ended(&mut self, ended: Ended) {
        let Some(key) = self.found.remove(&ended.job) else { return };
        let Some(mut record) = self.jobs.get(&key).map(|kept| kept.record.clone()) else { return };
        record.end_ns = Some(ended.end_ns);
        for (column, figure) in
            [(CPU, ended.cpu), (MEMORY_PEAK, ended.memory_peak), (OOM_KILLS, ended.oom_kills)]
        {
            if let Some(figure) = figure {
                record.totals.set(column, figure.value, figure.kind, figure.source);
            }
        }
        record.parts = ended.parts;
        self.close_found(record);
    }

    /// Jobs that an earlier daemon followed and that are gone since: as last known.
    pub(super) fn close_vanished(&mut self) {
        for record in std::mem::take(&mut self.resumable) {
            self.close_as_last_known(record);
        }
    }

    pub(super) fn close_as_last_known(&mut self, mut record: Record) {
        let course =
            self.writer.course(&record.key).unwrap_or_else(|_| met_core::course::Course::new(&met_core::JOB));
        let last_ns = course.times_ms.last().map(|&last_ms| last_ms * 1_000_000);
        record.end_ns = last_ns.max(record.start_ns);
        Sampled::of_course(&course, &record).fill(&mut record);
        self.close_found(record);
    }

    /// How it ended only its manager knows; that it was killed for its memory, the kernel, too.
    pub(super) fn close_found(&mut self, mut record: Record) {
        let killed = record.totals.get(OOM_KILLS).is_some_and(|kills| kills > 0);
        record.state = if killed { State::OutOfMemory } else { State::Finished };
        if let Some(wall_ns) = record.wall_ns(jobs::now_ns()) {
            record.totals.set(WALL, wall_ns, QualityKind::Measured, "cgroup");
        }
        if let Err(error) = self.close_job(record) {
            tracing::error!("cannot keep the end of a job: {error:#}");
        }
    }
}

/// What the path of its cgroup tells of a job.
fn describe(captures: &Captures, record: &mut Record) {
    let Captures { uid, user, node, index, .. } = captures;
    record.uid = uid.or_else(|| users::uid_of(user.as_deref()?));
    record.user = user.clone().or_else(|| users::name_of(record.uid?));
    record.nodes = node.iter().cloned().collect();
    record.scheduling.array_index = index.as_ref().and_then(|index| index.parse().ok());
}

/// A daemon that starts anew finds its jobs again: the same directories, within one boot.
fn is_same(host: &Host, record: &Record, found: &Found) -> bool {
    let Some(local) = &record.local else { return false };
    record.key.manager == found.manager
        && record.key.id == found.id
        && local.boot_id == host.facts().boot_id
        && local.cgroup == found.cgroup
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::job::CgroupPaths;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn a_path_that_is_no_text_survives_the_store() {
        let odd = PathBuf::from(std::ffi::OsString::from_vec(b"/cg/\xff\n".to_vec()));
        let paths = CgroupPaths { unified: Some(odd), memory: Some("/cg/plain".into()), cpuacct: None };
        let text = serde_json::to_string(&paths).unwrap();
        assert_eq!(serde_json::from_str::<CgroupPaths>(&text).unwrap(), paths);
        assert!(text.contains("\"memory\":\"/cg/plain\""), "{text}");
    }

    #[test]
    fn the_owner_is_whom_the_path_names() {
        let mut record = crate::view::sample::full(1, "x");
        describe(&Captures { user: Some("root".to_owned()), ..Captures::default() }, &mut record);
        assert_eq!((record.uid, record.user.as_deref()), (Some(0), Some("root")));
        describe(&Captures { uid: Some(0), node: Some("n1".to_owned()), ..Captures::default() }, &mut record);
        assert_eq!((record.uid, record.user.as_deref()), (Some(0), Some("root")));
        assert_eq!(record.nodes, ["n1"]);
        describe(&Captures::default(), &mut record);
        assert_eq!((record.uid, record.user.as_deref()), (None, None));
    }
}
