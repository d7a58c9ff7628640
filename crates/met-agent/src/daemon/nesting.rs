//! Jobs of our own inside jobs that others started: `met run` in a Slurm job is a part of it.

use std::collections::HashMap;

use met_core::job::{CgroupPaths, JobKey, Origin, Part, Record, Totals};
use met_core::job_table::{CPU, MEMORY_NEEDED_PEAK, MEMORY_PEAK};
use met_host::Host;
use met_host::cgroup::Hierarchies;

use super::found_jobs::Discovery;
use super::recorder::Recorder;
use super::registry::Jobs;
use super::socket::Peer;

/// Steps of this name are jobs of ours.
const STEP: &str = "met:";
/// A job may start any number of ours; the list shows all of them.
const INNER_MAX: usize = 200;

/// The job around another one, and the node it is on there.
#[derive(Clone, Debug, PartialEq)]
struct Outer {
    key: JobKey,
    node: String,
}

/// Jobs of ours inside jobs that the discovery follows.
#[derive(Default)]
pub(super) struct Nesting {
    outers: HashMap<JobKey, Outer>,
}

impl Nesting {
    /// Finds the job in which an announced job runs, from the directories of its processes, whatever its owner
    /// says.
    pub(super) fn place(
        &mut self,
        host: &Host,
        discovery: &Discovery,
        record: &mut Record,
        known: Option<&Record>,
        peer: Peer,
    ) {
        let pid = process_of(host, record, peer);
        let outer = pid.and_then(|pid| outer_of(host, discovery, pid));
        record.inside = match (&outer, known) {
            (Some(outer), _) => Some(format!("{}:{}", outer.key.manager, outer.key.id)),
            (None, Some(known)) => known.inside.clone(),
            (None, None) => pid.and_then(|pid| discovery.layouts.job_around(host, pid)),
        };
        if let Some(outer) = outer {
            self.outers.insert(record.key.clone(), outer);
        }
    }

    /// The job around others is called otherwise from now on.
    pub(super) fn rename(&mut self, old: &JobKey, new: &JobKey, jobs: &mut Jobs, recorder: &mut Recorder) {
        for (inner, outer) in self.outers.iter_mut().filter(|(_, outer)| outer.key == *old) {
            outer.key = new.clone();
            if let Some(kept) = jobs.get_mut(inner) {
                kept.record.inside = Some(format!("{}:{}", new.manager, new.id));
                recorder.keep(&kept.record);
            }
        }
    }

    /// Makes a job of ours a part of the one it runs in, or brings that part up to date.
    pub(super) fn note(&self, inner: &Record, jobs: &mut Jobs, recorder: &mut Recorder) {
        let Some(outer) = self.outers.get(&inner.key) else { return };
        let part = part_of(inner, &outer.node);
        if let Some(kept) = jobs.get_mut(&outer.key) {
            put_part(&mut kept.record.parts, part);
            recorder.keep(&kept.record);
        } else if let Ok(Some(mut record)) = recorder.writer.get(&outer.key) {
            put_part(&mut record.parts, part);
            recorder.keep(&record);
        }
    }

    pub(super) fn forget(&mut self, inner: &JobKey) {
        self.outers.remove(inner);
    }
}

fn outer_of(host: &Host, discovery: &Discovery, pid: u32) -> Option<Outer> {
    if discovery.found.is_empty() {
        return None;
    }
    let paths = Hierarchies::read(host).ok()?.of_process(host, pid).ok()?;
    let directory = discovery.found.values().find(|directory| holds(&directory.cgroup, &paths))?;
    Some(Outer { key: directory.key.clone(), node: directory.node.clone() })
}

/// A process of the job, or its waiting parent in the same cgroup.
fn process_of(host: &Host, record: &Record, peer: Peer) -> Option<u32> {
    let local = record.local.as_ref()?;
    let main = local.main.filter(|main| host.is_alive(*main)).map(|main| main.pid);
    // A client may attach to a process from anywhere.
    main.or((local.origin != Origin::Attach).then_some(peer.pid))
}

fn holds(outer: &CgroupPaths, inner: &CgroupPaths) -> bool {
    let pairs =
        [(&outer.unified, &inner.unified), (&outer.memory, &inner.memory), (&outer.cpuacct, &inner.cpuacct)];
    pairs.iter().any(
        |(outer, inner)| matches!((outer, inner), (Some(outer), Some(inner)) if inner.starts_with(outer)),
    )
}

fn part_of(inner: &Record, node: &str) -> Part {
    let mut totals = Totals::default();
    for column in [CPU, MEMORY_PEAK, MEMORY_NEEDED_PEAK] {
        if let Some(figure) = inner.totals.figure(column) {
            totals.set(column, figure.value, figure.kind, figure.source.clone());
        }
    }
    Part {
        node: node.to_owned(),
        step: format!("{STEP}{}", inner.key.id),
        name: Some(inner.name.clone()),
        start_ns: inner.start_ns,
        end_ns: inner.end_ns,
        exit_code: inner.exit_code,
        totals,
        ..Part::default()
    }
}

fn put_part(parts: &mut Vec<Part>, part: Part) {
    let inner = parts.iter().filter(|part| part.step.starts_with(STEP)).count();
    match parts.iter_mut().find(|known| known.step == part.step && known.node == part.node) {
        Some(known) => *known = part,
        None if inner >= INNER_MAX => {}
        None => parts.push(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::sample;

    #[test]
    fn a_cgroup_holds_what_is_below_it_in_any_hierarchy() {
        let paths = |memory: &str, cpuacct: &str| CgroupPaths {
            unified: None,
            memory: Some(memory.into()),
            cpuacct: Some(cpuacct.into()),
        };
        let outer = paths("/m/slurm/job_1", "/c/slurm/job_1");
        assert!(holds(&outer, &paths("/m/slurm/job_1/step_0", "/c/slurm/job_1/step_0")));
        assert!(holds(&outer, &paths("/m", "/c/slurm/job_1")));
        assert!(!holds(&outer, &paths("/m/slurm/job_12", "/c/slurm/job_12/step_0")));
        assert!(!holds(&CgroupPaths::default(), &CgroupPaths::default()));
    }

    #[test]
    fn a_job_is_one_part_from_its_start_to_its_end_and_there_are_not_too_many() {
        let mut inner = sample::full(7, "inner");
        let mut parts = vec![Part { node: "n1".to_owned(), step: "batch".to_owned(), ..Part::default() }];
        put_part(&mut parts, Part { end_ns: None, ..part_of(&inner, "n1") });
        put_part(&mut parts, part_of(&inner, "n1"));
        assert_eq!(parts.len(), 2);
        assert_eq!((parts[1].step.as_str(), parts[1].end_ns), ("met:7", inner.end_ns));
        assert_eq!(parts[1].totals.get(CPU), inner.totals.get(CPU));
        for id in 100..100 + 2 * INNER_MAX {
            inner.key.id = id.to_string();
            put_part(&mut parts, part_of(&inner, "n1"));
        }
        assert_eq!(parts.len(), 1 + INNER_MAX);
    }
}
