//! What taskstats reports of a workload, against /proc and against its parent's accounting at its end.

#![allow(clippy::disallowed_methods, reason = "a test may start processes")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;
use std::time::{Duration, Instant};

use met_host::{Host, Targets, TaskRole, TaskTarget, parse};
use met_sources::{Options, Runner, TickInfo, taskstats};

fn file(host: &Host, path: String) -> Vec<u8> {
    let mut text = Vec::new();
    host.read_small(path, &mut text).unwrap();
    text
}

/// Reaps the process and returns its CPU time and voluntary switches.
fn reap(pid: u32) -> (i64, i64) {
    // SAFETY: rusage is plain data that the call fills; the status is ours.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let mut status = 0;
        assert_eq!(libc::wait4(pid as i32, &mut status, 0, &mut usage), pid as i32);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec * 1_000_000_000 + time.tv_usec * 1_000;
    (ns(usage.ru_utime) + ns(usage.ru_stime), usage.ru_nvcsw)
}

#[test]
#[allow(clippy::zombie_processes, reason = "wait4 reaps it, and returns more")]
fn a_paused_workload_reads_the_same_everywhere() {
    let host = Host::real().unwrap();
    let mut runner = Runner::open(&host, &Options { only: Some(&["taskstats"]), ..Options::default() });
    if let Some((_, why)) = runner.unavailable().first() {
        met_core::skipped::skipped(why);
        return;
    }
    // Works, sleeps a few times through its children, then stops itself so that nothing changes any more.
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 0.01; sleep 0.01; kill -STOP $$";
    let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
    let pid = child.id();
    let begin = Instant::now();
    while parse::stat(&file(&host, format!("/proc/{pid}/stat"))).unwrap().state != b'T' {
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
    let start_ticks = host.process(pid).unwrap().start_ticks;
    let target = TaskTarget::new(pid, start_ticks, TaskRole::Member, true);
    runner.read(&Targets { tasks: vec![target], ..Targets::default() }, &TickInfo::default());
    let cells = runner.batches()[0].rows().next().unwrap().1.to_vec();

    let schedule = file(&host, format!("/proc/{pid}/schedstat"));
    let schedule: Vec<i64> = parse::fields(&schedule).map(parse::cell).collect();
    assert_eq!((cells[taskstats::CPU], cells[taskstats::RUN_QUEUE_WAIT]), (schedule[0], schedule[1]));
    let status = file(&host, format!("/proc/{pid}/status"));
    let switches = (cells[taskstats::SWITCHES_VOLUNTARY], cells[taskstats::SWITCHES_INVOLUNTARY]);
    let voluntary = parse::value_of(&status, "voluntary_ctxt_switches");
    assert_eq!(switches, (voluntary, parse::value_of(&status, "nonvoluntary_ctxt_switches")));
    assert!(voluntary >= 2, "{voluntary}");

    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let (cpu_ns, switches) = reap(pid);
    // Exiting takes a little more, and its parent's accounting includes its children, too.
    let more_ns = cpu_ns - cells[taskstats::CPU];
    assert!((0..cpu_ns / 50 + 20_000_000).contains(&more_ns), "{more_ns} ns of {cpu_ns} more at the end");
    assert!(switches >= voluntary, "{switches}, {voluntary} before");
}
