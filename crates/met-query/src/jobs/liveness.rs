//! What became of a job that its last record calls running.

use met_core::job::{CgroupPaths, Local, Origin, ProcessId, Record, State};
use met_host::{Host, Liveness, parse};
use met_jobs::job_cgroup;
use met_store::Queries;

/// A job without a supervisor is lost, whatever its last record says.
pub fn settle(host: &Host, record: &mut Record) {
    let Some(local) = record.local.as_ref().filter(|_| record.state.is_live()) else { return };
    if local.origin == Origin::Found {
        record.state = found_state(host, local);
        return;
    }
    record.state = match supervision(host, local) {
        Liveness::Gone => State::Lost,
        // A job that could not be checked is unchanged.
        Liveness::Unknown => record.state,
        Liveness::Alive if local.main.is_some_and(|main| is_stopped(host, main)) => State::Suspended,
        Liveness::Alive => State::Running,
    };
}

/// Whether a job of our own still has its supervisor.
pub fn supervision(host: &Host, local: &Local) -> Liveness {
    if host.facts().is_other_boot(&local.boot_id) {
        return Liveness::Gone;
    }
    local.supervisor.or(local.main).map_or(Liveness::Gone, |process| host.liveness(process))
}

/// A job of another manager lives as long as its cgroup, in this boot.
fn found_state(host: &Host, local: &Local) -> State {
    let CgroupPaths { unified, cpuacct, memory } = &local.cgroup;
    let Some(path) = unified.as_ref().or(cpuacct.as_ref()).or(memory.as_ref()) else {
        // One without a cgroup of its own is known by its first process alone.
        let process = local.main.filter(|_| !host.facts().is_other_boot(&local.boot_id));
        let is_gone = process.is_none_or(|main| host.liveness(main) == Liveness::Gone);
        return if is_gone { State::Lost } else { State::Running };
    };
    if host.facts().is_other_boot(&local.boot_id) || host.is_absent(path) {
        return State::Lost;
    }
    let mut text = Vec::new();
    let frozen_v2 = unified.as_ref().is_some_and(|path| {
        host.read_small(path.join("cgroup.events"), &mut text).is_ok()
            && parse::value_of(&text, "frozen") == 1
    });
    let hierarchies = host.hierarchies();
    let freezer = hierarchies.other("freezer").and_then(|freezer| hierarchies.same_in(path, freezer));
    let frozen_v1 = freezer.is_some_and(|path| {
        host.read_small(path.join("freezer.state"), &mut text).is_ok() && text.trim_ascii() == b"FROZEN"
    });
    if frozen_v1 || frozen_v2 { State::Suspended } else { State::Running }
}

/// The same for a record that was read a moment ago: its supervisor may have written the end and gone since.
/// One that is dead writes no more, so a second look is final. A job is lost only if this look finds no end; one that
/// cannot be read is no proof, and the job stays what it was.
pub fn settle_or_end(host: &Host, store: &Queries, record: &mut Record) {
    let before = record.state;
    settle(host, record);
    if record.state != State::Lost {
        return;
    }
    match store.get(&record.key) {
        Ok(Some(now)) if !now.state.is_live() => *record = now,
        Ok(_) if store.has_no_pending_end(&record.key) => {}
        _ => record.state = before,
    }
}

fn is_stopped(host: &Host, process: ProcessId) -> bool {
    let mut text = Vec::new();
    let read = host.read_small(format!("/proc/{}/stat", process.pid), &mut text);
    let stat = parse::stat(&text).filter(|stat| read.is_ok() && stat.start_ticks == process.start_ticks);
    stat.is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// Processes that outlived their job, or a daemon that was just leaving it, kept its cgroup; it goes when they are gone,
/// too. Those that are still there.
pub fn remove_empty_cgroups(host: &Host, jobs: &[Record]) -> Vec<CgroupPaths> {
    let is_ours = |local: &&Local| local.origin != Origin::Found && local.boot_id == host.facts().boot_id;
    let over = jobs.iter().filter(|record| !record.state.is_live());
    let cgroups = over.filter_map(|record| record.local.as_ref()).filter(is_ours).map(|local| &local.cgroup);
    cgroups.filter(|cgroup| !job_cgroup::remove(cgroup)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_an_earlier_boot_or_without_its_supervisor_is_lost() {
        let host = Host::real().unwrap();
        let mut record = met_core::sample::full(1, "train");
        let local = record.local.as_mut().unwrap();
        local.supervisor = host.process(std::process::id()).ok();
        local.boot_id.clone_from(&host.facts().boot_id);
        local.main = None;
        record.state = State::Running;
        let settled = |record: &Record| {
            let mut record = record.clone();
            settle(&host, &mut record);
            record.state
        };
        assert_eq!(settled(&record), State::Running);
        let mut rebooted = record.clone();
        rebooted.local.as_mut().unwrap().boot_id = "before".to_owned();
        assert_eq!(settled(&rebooted), State::Lost);
        let mut reused = record.clone();
        reused.local.as_mut().unwrap().supervisor.as_mut().unwrap().start_ticks += 1;
        assert_eq!(settled(&reused), State::Lost, "the pid was reused");
        record.state = State::Finished;
        assert_eq!(settled(&record), State::Finished);
    }

    #[test]
    fn a_job_that_cannot_be_checked_is_not_lost() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/7")).unwrap();
        // Opening a socket fails even for root, as any open does without descriptors.
        let socket = root.path().join("proc/7/stat");
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let host = Host::at(root.path()).unwrap();
        let mut record = met_core::sample::full(1, "train");
        let local = record.local.as_mut().unwrap();
        (local.supervisor, local.main) = (Some(ProcessId { pid: 7, start_ticks: 5 }), None);
        record.state = State::Running;
        settle(&host, &mut record);
        assert_eq!(record.state, State::Running);

        std::fs::remove_file(&socket).unwrap();
        let store = met_store::Writer::open(&root.path().join("state")).unwrap();
        let folder = met_store::inbox::JobDir::claim(&root.path().join("state"), 1).unwrap();
        std::fs::create_dir(folder.path().join("end")).unwrap();
        settle_or_end(&host, &store, &mut record);
        assert_eq!(record.state, State::Running, "an end that cannot be read is no proof");
        std::fs::remove_dir(folder.path().join("end")).unwrap();
        settle_or_end(&host, &store, &mut record);
        assert_eq!(record.state, State::Lost);
    }

    #[test]
    fn a_job_that_was_found_runs_as_long_as_its_cgroup_or_its_first_process() {
        let host = Host::real().unwrap();
        let mut record = met_core::sample::scheduled();
        record.state = State::Running;
        let local = record.local.as_mut().unwrap();
        (local.origin, local.supervisor, local.main) = (Origin::Found, None, None);
        local.boot_id.clone_from(&host.facts().boot_id);
        let folder = tempfile::tempdir().unwrap();
        local.cgroup.memory = Some(folder.path().to_owned());
        settle(&host, &mut record);
        assert_eq!(record.state, State::Running);
        let path = folder.path().to_owned();
        let mut ended = record.clone();
        ended.state = State::Finished;
        remove_empty_cgroups(&host, &[ended]);
        assert!(path.is_dir(), "the manager cleans up itself");
        folder.close().unwrap();
        let mut gone = record.clone();
        settle(&host, &mut gone);
        assert_eq!(gone.state, State::Lost);
        let local = record.local.as_mut().unwrap();
        (local.cgroup, local.main) = (CgroupPaths::default(), host.process(std::process::id()).ok());
        settle(&host, &mut record);
        assert_eq!(record.state, State::Running);
        record.local.as_mut().unwrap().main = None;
        settle(&host, &mut record);
        assert_eq!(record.state, State::Lost);
    }
}
