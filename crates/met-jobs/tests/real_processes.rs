//! Members of jobs among real processes. The test is the supervisor of its jobs, as a supervisor is.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use met_core::attribute::{Fold, JobMap};
use met_core::job::{CgroupPaths, ProcessId};
use met_core::job_table::{CPU, PROCESSES_RUNNING, WRITE_CALL};
use met_core::{Batch, JOB, MISSING};
use met_host::cgroup::Hierarchies;
use met_host::{Host, Targets};
use met_jobs::{JobSpec, Members};
use met_sources::{Options, Runner, TickInfo};

/// One job at a time: the tests share this process, and with it the supervisor.
static ALONE: Mutex<()> = Mutex::new(());

struct Bench {
    _alone: MutexGuard<'static, ()>,
    host: Host,
    members: Members,
}

impl Bench {
    fn new() -> Bench {
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let host = Host::real().unwrap();
        let supervisor = Some(host.process(std::process::id()).unwrap());
        let mut members = Members::new();
        members.add(JobSpec { slot: 1, supervisor, ..JobSpec::default() });
        Bench { _alone: alone, host, members }
    }

    fn sh(&self, script: &str) -> u32 {
        Command::new("sh").args(["-c", script]).spawn().unwrap().id()
    }

    /// Refreshes until the job has processes with these names, no more and no less.
    fn wait_for(&mut self, expected: &[&str]) -> Vec<ProcessId> {
        let begin = Instant::now();
        loop {
            reap_all();
            self.members.refresh(&self.host).unwrap();
            let processes: Vec<ProcessId> = self.members.processes_of(1).collect();
            let mut names: Vec<String> =
                processes.iter().filter_map(|process| self.host.process_name(*process)).collect();
            names.sort();
            if names == expected {
                return processes;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{names:?} instead of {expected:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn sample(&self) -> Vec<i64> {
        let (mut targets, mut map) = (Targets::default(), JobMap::default());
        self.members.fill(&mut targets, &mut map);
        let mut runner = Runner::open(&self.host, &Options::default());
        runner.read(&targets, &TickInfo::of(true));
        assert_eq!(runner.take_new_errors(), []);
        let mut jobs = Batch::new(&JOB);
        Fold::new().jobs(runner.batches(), &map, &mut jobs);
        jobs.rows().next().unwrap().1.to_vec()
    }

    fn kill(&self, process: ProcessId) {
        if self.host.is_alive(process) {
            let pid = rustix::process::Pid::from_raw(i32::try_from(process.pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.members.refresh(&self.host);
        for process in self.members.processes_of(1).collect::<Vec<_>>() {
            self.kill(process);
        }
        std::thread::sleep(Duration::from_millis(50));
        reap_all();
    }
}

fn reap_all() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

#[test]
fn no_descendant_escapes_by_forking_twice_or_with_a_session_of_its_own() {
    let mut bench = Bench::new();
    let shell = bench.sh("setsid sh -c 'sleep 600 & sleep 601 &' & sleep 602; true");
    let processes = bench.wait_for(&["sh", "sleep", "sleep", "sleep"]);
    let shell = processes.iter().copied().find(|process| process.pid == shell).unwrap();
    bench.kill(shell);
    bench.wait_for(&["sleep", "sleep", "sleep"]);
    assert!(bench.members.processes_seen(1) >= 4);
    assert_eq!(bench.sample()[PROCESSES_RUNNING], 3);
}

#[test]
fn what_ended_orphans_did_is_with_their_supervisor() {
    let mut bench = Bench::new();
    bench.wait_for(&[]);
    let before = bench.sample();
    let file = tempfile::NamedTempFile::new().unwrap();
    let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let write = format!("dd if=/dev/zero of={} bs=1M count=8 2>/dev/null", file.path().display());
    bench.sh(&format!("setsid sh -c '({burn}; {write}) &'"));
    std::thread::sleep(Duration::from_millis(20));
    bench.wait_for(&[]);
    let after = bench.sample();
    assert_eq!(after[PROCESSES_RUNNING], MISSING, "no process is left to ask");
    assert!(after[CPU] - before[CPU] >= 50_000_000, "{} ns", after[CPU] - before[CPU]);
    assert!(after[WRITE_CALL] - before[WRITE_CALL] >= 8 << 20);
}

/// Cgroup directories, removed with this value, the inner ones first.
struct Cgroups(Vec<PathBuf>);

impl Drop for Cgroups {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            let begin = Instant::now();
            while std::fs::remove_dir(path).is_err() && begin.elapsed() < Duration::from_secs(5) {
                reap_all();
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// On this machine, if it lets us make a cgroup.
#[test]
fn the_processes_of_a_cgroup_and_of_those_below_it_are_members() {
    let host = Host::real().unwrap();
    let Some(mount) = Hierarchies::read(&host).unwrap().unified else {
        met_core::skipped::skipped("no unified cgroup hierarchy");
        return;
    };
    let outer = mount.point.join(format!("met-members-{}", std::process::id()));
    let inner = outer.join("inner");
    if let Err(error) = std::fs::create_dir(&outer) {
        met_core::skipped::skipped(format!("no cgroup can be made: {error}"));
        return;
    }
    // Dropped after the bench, which ends the processes.
    let _cgroups = Cgroups(vec![outer.clone(), inner.clone()]);
    std::fs::create_dir(&inner).unwrap();
    let mut bench = Bench::new();
    let cgroup = CgroupPaths { unified: Some(outer.clone()), ..CgroupPaths::default() };
    bench.members = Members::new();
    bench.members.add(JobSpec { slot: 1, cgroup, ..JobSpec::default() });
    for path in [&outer, &inner] {
        bench.sh(&format!("echo $$ > {}/cgroup.procs; exec sleep 600", path.display()));
    }
    bench.wait_for(&["sleep", "sleep"]);
    let sample = bench.sample();
    assert_eq!(sample[PROCESSES_RUNNING], 2);
    assert!(sample[CPU] > 0, "the cgroup counted the start of both");
}
