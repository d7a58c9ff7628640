//! A job in a v1 cgroup alone, as older managers make it, gets a v2 directory in which events are counted.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use met_host::Host;
use met_jobs::perf_cgroup::PerfCgroup;
use met_sources::perf::{self, Begin, Counters};

/// A job of a v1 manager, ended with this value.
struct Job {
    child: Child,
    cgroup: PathBuf,
}

impl Job {
    /// Forks all the time, so that moving it takes more than one round.
    fn start() -> Option<Job> {
        let root = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/freezer"].into_iter().map(Path::new);
        let root = root.into_iter().find(|root| root.join("cgroup.procs").exists())?;
        let cgroup = root.join(format!("met-shadow-{}", std::process::id()));
        fs::create_dir(&cgroup).ok()?;
        let script =
            "for n in 1 2 3 4; do (while :; do (head -c 100000 /dev/zero >/dev/null); done) & done; wait";
        let procs = cgroup.join("cgroup.procs");
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        // SAFETY: writing to a file is what the child of a fork may do.
        unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
        let child = command.spawn().ok()?;
        Some(Job { child, cgroup })
    }

    fn pids(&self) -> BTreeSet<u32> {
        pids(&self.cgroup)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
        let begin = Instant::now();
        while fs::remove_dir(&self.cgroup).is_err() && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn pids(cgroup: &Path) -> BTreeSet<u32> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

#[test]
fn a_job_that_forks_is_moved_as_a_whole_counted_and_left_as_it_was() {
    let Some(job) = Job::start() else {
        met_core::skipped::skipped("no v1 hierarchy in which a cgroup can be made");
        return;
    };
    let begin = Instant::now();
    while job.pids().len() < 5 {
        assert!(begin.elapsed() < Duration::from_secs(20), "the job did not start");
    }
    let host = Host::real().unwrap();
    let name = format!("{}{}", PerfCgroup::PREFIX, std::process::id());
    let made = PerfCgroup::make(&host, &name, job.child.id(), || job.pids().into_iter().collect());
    let perf_cgroup = match made {
        Ok(perf_cgroup) => perf_cgroup,
        Err(error) => {
            met_core::skipped::skipped(format!("no v2 directory can be made: {error}"));
            return;
        }
    };
    assert!(perf_cgroup.is_complete());
    // Both lists change all the time, and an exiting process stays longer in one of them: none may stay outside.
    let mut outside = job.pids();
    let begin = Instant::now();
    while !outside.is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "left outside: {outside:?}");
        let inside = pids(perf_cgroup.path());
        let living = job.pids();
        outside.retain(|pid| living.contains(pid) && !inside.contains(pid));
    }

    let dir = host.cgroup_dir(perf_cgroup.path()).unwrap();
    let events = perf::events(&host, &["page_faults".to_owned()]).unwrap();
    let (counters, refused) = Counters::of_cgroup(
        dir.descriptor().unwrap().as_fd(),
        &perf::online_cpus(&host),
        &events,
        Begin::Now,
    );
    if refused.is_empty() {
        let begin = Instant::now();
        while counters.totals()[0].count < 1000 {
            assert!(begin.elapsed() < Duration::from_secs(20), "nothing is counted");
            std::thread::sleep(Duration::from_millis(5));
        }
    } else {
        met_core::skipped::skipped(format!("the counters of a cgroup are refused: {refused:?}"));
    }

    let path = perf_cgroup.path().to_path_buf();
    // As after a daemon that was killed.
    std::mem::forget(perf_cgroup);
    PerfCgroup::remove(&path);
    let begin = Instant::now();
    while path.exists() {
        assert!(begin.elapsed() < Duration::from_secs(10), "the directory is left behind");
    }
    let count = counters.totals();
    assert!(refused.len() == 1 || count[0].count >= 1000, "counters outlive the directory: {count:?}");
    assert!(!job.pids().is_empty(), "the job runs on");
}
