//! Real processes that come and go between two looks, against what their parent was told of them.

#![allow(clippy::disallowed_methods, reason = "a test may start processes")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "why a test was skipped, and what was found")]

use std::process::{Command, Stdio};

use met_core::ended::{Exit, INHERITED, OWN};
use met_core::job_table::{CPU, PAGE_FAULTS_MINOR, SWITCHES_INVOLUNTARY, SWITCHES_VOLUNTARY, WRITTEN};
use met_host::Host;
use met_sources::taskstats::exits::{Exits, News};

fn listen() -> Option<Exits> {
    match Exits::listen(&Host::real().unwrap()) {
        Ok(exits) => Some(exits),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Runs a script to its end and returns what it printed, its pid, and what was heard meanwhile.
fn run(exits: &Exits, script: &str) -> (String, u32, News) {
    exits.take();
    let child =
        Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), pid, exits.take())
}

fn sum(ends: &[&Exit], column: usize) -> i64 {
    match INHERITED.iter().position(|&one| one == column) {
        Some(index) => ends.iter().map(|exit| exit.inherited[index]).sum(),
        None => {
            let index = OWN.iter().position(|&one| one == column).unwrap();
            ends.iter().map(|exit| exit.own[index]).sum()
        }
    }
}

/// `0m1.230s 0m0.040s`, of which the last line of `times` has the children's.
fn children_seconds(times: &str) -> f64 {
    let line = times.lines().last().unwrap();
    let seconds = |field: &str| {
        let (minutes, seconds) = field.trim_end_matches('s').split_once('m').unwrap();
        minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
    };
    line.split_whitespace().map(seconds).sum()
}

#[test]
fn a_thousand_processes_of_five_milliseconds_are_counted() {
    let Some(exits) = listen() else { return };
    // One round trip to find how many rounds of a loop take five milliseconds here.
    let (times, _, _) = run(&exits, "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done); times");
    let rounds = (200_000.0 * 0.005 / children_seconds(&times)).round();
    let script = format!(
        "n=0; while [ $n -lt 1000 ]; do (i=0; while [ $i -lt {rounds} ]; do i=$((i+1)); done); n=$((n+1)); done; times"
    );
    let (times, pid, news) = run(&exits, &script);
    let children: Vec<&Exit> = news.ends.iter().filter(|exit| exit.parent_pid == pid).collect();
    assert_eq!(news.losses, 0);
    assert_eq!(children.len(), 1000);
    let born = news.births.iter().filter(|(parent, _)| *parent == pid).count();
    assert!(!exits.knows_births() || born == 1000, "{born} births");
    let (found, truth) = (sum(&children, CPU) as f64 / 1e9, children_seconds(&times));
    println!("1000 processes, {:.2} ms each: {found:.3} s of {truth:.3} s", truth);
    assert!((found / truth - 1.0).abs() < 0.03, "{found} s, but the truth is {truth} s");
}

#[test]
fn the_record_of_a_process_has_its_memory_faults_and_switches() {
    let Some(exits) = listen() else { return };
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join("written");
    let script = format!("dd if=/dev/zero of={} bs=1M count=8 2>/dev/null; sleep 0.05; true", file.display());
    let (_, pid, news) = run(&exits, &script);
    let of = |name: &[u8]| -> Vec<&Exit> {
        let named = |exit: &&Exit| exit.parent_pid == pid && exit.name.starts_with(name);
        news.ends.iter().filter(named).collect()
    };
    let (dd, sleep) = (of(b"dd\0"), of(b"sleep\0"));
    assert_eq!((dd.len(), sleep.len()), (1, 1));
    assert_eq!(sum(&dd, WRITTEN), 8 << 20);
    assert!(sum(&dd, PAGE_FAULTS_MINOR) > 50 && dd[0].resident_peak_bytes > 1 << 20);
    assert!(sum(&sleep, SWITCHES_VOLUNTARY) >= 1 && sum(&sleep, SWITCHES_INVOLUNTARY) >= 0);
    assert!(sleep[0].elapsed_ns >= 50_000_000);
}

#[test]
fn threads_are_added_to_their_process() {
    let Some(exits) = listen() else { return };
    if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: no python3");
        return;
    }
    let code = "import threading,os,tempfile\n\
        def work():\n    with tempfile.TemporaryFile(dir='/var/tmp') as file: file.write(bytes(1<<20)); file.flush()\n\
        some=[threading.Thread(target=work) for _ in range(8)]\n[one.start() for one in some]\n[one.join() for one in some]";
    let (_, pid, news) = run(&exits, &format!("exec python3 -c \"{code}\""));
    let processes: Vec<&Exit> = news.ends.iter().filter(|exit| exit.pid == pid).collect();
    assert_eq!(processes.len(), 1, "eight threads are one process");
    // The file system writes a little besides.
    let written = sum(&processes, WRITTEN);
    assert!((8 << 20..9 << 20).contains(&written), "{written}");
}
