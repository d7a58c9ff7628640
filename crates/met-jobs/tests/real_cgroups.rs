//! Jobs of real cgroups, which count and vanish as only the kernel lets them. Needs root.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use met_core::job::QualityKind;
use met_core::job_table::CPU;
use met_host::cgroup::Hierarchies;
use met_host::{Host, raise_open_file_limit};
use met_jobs::cgroup_layouts::Layouts;
use met_jobs::discover::{Discovery, Ended, Event, Found};

/// A cgroup of this test in each hierarchy that a manager would use, removed with everything in it.
struct Ground {
    tops: Vec<PathBuf>,
    below: PathBuf,
    unified: bool,
}

impl Ground {
    /// In the v2 hierarchy or in those of v1. `None` where none can be made.
    fn new(name: &str, unified: bool) -> Option<Ground> {
        // All tests of this file run at once, and one has a thousand directories.
        raise_open_file_limit().unwrap();
        let hierarchies = Hierarchies::read(&Host::real().unwrap()).unwrap();
        let below = PathBuf::from(format!("mettest-{name}-{}", std::process::id()));
        let mounts = match unified {
            true => hierarchies.unified.map(|mount| vec![mount]),
            false => hierarchies.cpuacct_v1.zip(hierarchies.memory_v1).map(|(cpu, memory)| vec![cpu, memory]),
        };
        let Some(mounts) = mounts else {
            met_core::skipped::skipped("this machine has no such cgroup hierarchy");
            return None;
        };
        let tops: Vec<PathBuf> = mounts.iter().map(|mount| mount.point.join(&below)).collect();
        let ground = Ground { tops, below, unified };
        if let Err(error) = ground.tops.iter().try_for_each(fs::create_dir) {
            met_core::skipped::skipped(format!("no cgroup can be made: {error}"));
            return None;
        }
        Some(ground)
    }

    fn make(&self, path: &str) {
        self.tops.iter().for_each(|top| fs::create_dir_all(top.join(path)).unwrap());
    }

    /// As a manager does it: from the inside out, as soon as it is empty.
    fn remove(&self, path: &str) {
        for top in &self.tops {
            let mut path = top.join(path);
            while path != *top {
                let begin = Instant::now();
                while fs::remove_dir(&path).is_err() && path.exists() {
                    if fs::read_dir(&path).unwrap().any(|entry| entry.unwrap().path().is_dir()) {
                        return;
                    }
                    assert!(begin.elapsed().as_secs() < 20, "{} cannot be removed", path.display());
                }
                path.pop();
            }
        }
    }

    /// Runs a command inside, and returns what it used in nanoseconds.
    fn start(&self, path: &str, script: &str) -> Child {
        let procs: Vec<PathBuf> = self.tops.iter().map(|top| top.join(path).join("cgroup.procs")).collect();
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        // SAFETY: writing a file is all that is done between fork and exec.
        unsafe { command.pre_exec(move || procs.iter().try_for_each(|procs| fs::write(procs, "0"))) };
        command.spawn().unwrap()
    }

    fn counter_ns(&self, path: &Path) -> i64 {
        if self.unified {
            let text = fs::read_to_string(path.join("cpu.stat")).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap();
            return line.parse::<i64>().unwrap() * 1000;
        }
        fs::read_to_string(path.join("cpuacct.usage")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        fn remove(path: &Path) {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    remove(&entry.path());
                }
            }
            let _ = fs::remove_dir(path);
        }
        self.tops.iter().for_each(|top| remove(top));
    }
}

/// The events of a discovery so far.
#[derive(Default)]
struct Seen {
    found: HashMap<u64, Found>,
    ended: HashMap<u64, Ended>,
}

impl Seen {
    fn take(&mut self, discovery: &mut Discovery) {
        for event in discovery.work() {
            match event {
                Event::Found(found) => assert!(self.found.insert(found.job, *found).is_none()),
                Event::Ended(ended) => assert!(self.ended.insert(ended.job, *ended).is_none()),
                _ => {}
            }
        }
    }

    fn until(&mut self, discovery: &mut Discovery, condition: impl Fn(&Seen) -> bool) {
        let begin = Instant::now();
        while !condition(self) {
            assert!(begin.elapsed().as_secs() < 20, "{} found, {} ended", self.found.len(), self.ended.len());
            self.take(discovery);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Spins for some hundredths of a second of CPU time.
const SPIN: &str = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";

fn a_job_is_closed_exactly(name: &str, unified: bool, job: &str, task: &str, home: &str) {
    let Some(ground) = Ground::new(name, unified) else { return };
    ground.make(home);
    ground.make(&format!("{home}/system"));
    let host = Host::real().unwrap();
    let mut discovery = Discovery::open(&host, &Layouts::builtin(), Some(&ground.below)).unwrap();
    let mut seen = Seen::default();
    // Another process in the same directory works all the time.
    let mut sibling = ground.start(&format!("{home}/system"), "while :; do :; done");
    let home_path = ground.tops[0].join(home);
    let task = format!("{job}/{task}");
    ground.make(&task);
    seen.until(&mut discovery, |seen| seen.found.len() == 1);
    let mut child = ground.start(&task, SPIN);
    child.wait().unwrap();
    let truth_ns = ground.counter_ns(&ground.tops[0].join(&task));
    ground.remove(&task);
    seen.until(&mut discovery, |seen| seen.ended.len() == 1);
    sibling.kill().unwrap();
    sibling.wait().unwrap();
    assert!(home_path.exists());

    let ended = &seen.ended[&1];
    let cpu = ended.cpu.as_ref().unwrap();
    assert_eq!(cpu.kind, QualityKind::Measured, "{cpu:?}");
    let off_ns = (cpu.value - truth_ns).abs();
    // The sibling is read a moment before or after the directory they share.
    assert!(off_ns <= truth_ns / 50 + 5_000_000, "{} instead of {truth_ns}", cpu.value);
    assert_eq!(seen.found[&1].id, "5");
    // Where nothing counts memory, nothing is known of it.
    assert!(ended.oom_kills.as_ref().is_none_or(|kills| kills.value == 0), "{:?}", ended.oom_kills);
    assert_eq!(ended.parts.len(), 2, "{:?}", ended.parts);
    assert!(ended.parts.iter().all(|part| part.totals.get(CPU) == Some(cpu.value)), "{:?}", ended.parts);
    assert_eq!(discovery.health().jobs, []);
}

#[test]
fn a_slurm_job_of_v1_is_closed_exactly_though_its_directory_is_gone() {
    a_job_is_closed_exactly("v1", false, "slurm_n1/uid_7/job_5", "step_0/task_0", "slurm_n1");
}

#[test]
fn a_slurm_job_of_v2_is_closed_exactly_though_its_directory_is_gone() {
    let job = "system.slice/slurmstepd.scope/job_5";
    a_job_is_closed_exactly("v2", true, job, "step_0/user/task_0", "system.slice/slurmstepd.scope");
}

#[test]
fn jobs_that_come_and_go_add_up_to_their_ancestor() {
    const JOBS: usize = 40;
    let Some(ground) = Ground::new("sum", false) else { return };
    ground.make("slurm_n1/system");
    let host = Host::real().unwrap();
    let mut discovery = Discovery::open(&host, &Layouts::builtin(), Some(&ground.below)).unwrap();
    let mut seen = Seen::default();
    let before_ns = ground.counter_ns(&ground.tops[0].join("slurm_n1"));
    let task = |job: usize| format!("slurm_n1/uid_{}/job_{job}/step_0/task_0", job % 3);
    let mut running = Vec::new();
    for job in 0..JOBS {
        ground.make(&task(job));
        running.push((job, ground.start(&task(job), SPIN)));
        seen.take(&mut discovery);
        if running.len() == 4 {
            for (job, mut child) in running.drain(..) {
                child.wait().unwrap();
                ground.remove(&task(job));
            }
        }
    }
    seen.until(&mut discovery, |seen| seen.ended.len() == JOBS);
    let grown_ns = ground.counter_ns(&ground.tops[0].join("slurm_n1")) - before_ns;
    let sum_ns: i64 = seen.ended.values().map(|ended| ended.cpu.as_ref().unwrap().value).sum();
    assert_eq!(seen.found.len(), JOBS);
    assert_eq!(sum_ns, grown_ns);
}

#[test]
fn a_thousand_directories_at_once_are_all_seen() {
    const JOBS: usize = 1000;
    let Some(ground) = Ground::new("many", false) else { return };
    ground.make("oar/x");
    let host = Host::real().unwrap();
    let mut discovery = Discovery::open(&host, &Layouts::builtin(), Some(&ground.below)).unwrap();
    let mut seen = Seen::default();
    let before = discovery.health().watches;
    for job in 0..JOBS {
        ground.make(&format!("oar/ann_{job}"));
    }
    for job in 0..JOBS {
        ground.tops.iter().for_each(|top| fs::remove_dir(top.join(format!("oar/ann_{job}"))).unwrap());
    }
    seen.until(&mut discovery, |seen| seen.ended.len() == JOBS);
    assert_eq!(seen.found.len(), JOBS);
    assert_eq!(discovery.health().watches, before, "watches are given back");
    assert!(seen.ended.values().all(|ended| ended.cpu.as_ref().is_some_and(|cpu| cpu.value == 0)));
}

#[test]
fn a_job_that_ran_out_of_memory_is_marked_though_its_step_is_gone() {
    let Some(ground) = Ground::new("oom", false) else { return };
    ground.make("slurm_n1");
    let host = Host::real().unwrap();
    let mut discovery = Discovery::open(&host, &Layouts::builtin(), Some(&ground.below)).unwrap();
    let mut seen = Seen::default();
    let task = "slurm_n1/uid_7/job_5/step_0/task_0";
    ground.make(task);
    let limit = ground.tops[1].join("slurm_n1/uid_7/job_5/step_0/memory.limit_in_bytes");
    fs::write(limit, "16777216").unwrap();
    seen.until(&mut discovery, |seen| seen.found.len() == 1);
    // The early readings set the alarm.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(150) {
        seen.take(&mut discovery);
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut child = ground.start(task, "x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo ${#x}");
    let status = loop {
        seen.take(&mut discovery);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    seen.take(&mut discovery);
    ground.remove(task);
    seen.until(&mut discovery, |seen| seen.ended.len() == 1);
    assert!(!status.success(), "it was not killed");
    let kills = seen.ended[&1].oom_kills.as_ref().unwrap();
    assert!(kills.value >= 1, "{kills:?}");
}
