//! Real processes that come and go between two looks, against their parent's accounting of them.

#![allow(clippy::disallowed_methods, reason = "a test may start processes")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(clippy::print_stdout, reason = "what was found")]

use std::collections::BTreeSet;
use std::ops::Range;
use std::process::{Command, Stdio};

use met_core::job_table::{CPU, PAGE_FAULTS_MINOR, SWITCHES_INVOLUNTARY, SWITCHES_VOLUNTARY, WRITTEN};
use met_core::process_exits::{Exit, INHERITED, OWN};
use met_host::Host;
use met_sources::taskstats::exits::{Exits, News};

/// Eight MiB and the little that the file system writes besides.
const EIGHT_MIB: Range<i64> = 8 << 20..9 << 20;

fn listen() -> Option<Exits> {
    match Exits::listen(&Host::real().unwrap()) {
        Ok(exits) => Some(exits),
        Err(why) => {
            met_core::skipped::skipped(why);
            None
        }
    }
}

/// Runs a script to its end and returns its output, its pid, and the events received meanwhile.
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

/// Whether a test that needs Python can run; reports it if not.
fn python_is_there() -> bool {
    let there = Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !there {
        met_core::skipped::skipped("no python3");
    }
    there
}

/// A thousand processes one after the other, each of five milliseconds by its own CPU clock. Prints what that
/// clock said in all of them just before they ended, and their parent's accounting of them, in nanoseconds,
/// after their pids.
const A_THOUSAND: &str = "import os,resource,struct,time\n\
    reading,writing=os.pipe()\n\
    own=0\n\
    for _ in range(1000):\n\
    \tpid=os.fork()\n\
    \tif pid==0:\n\
    \t\twhile time.process_time_ns()<5000000: pass\n\
    \t\tos.write(writing,struct.pack('q',time.process_time_ns()))\n\
    \t\tos._exit(0)\n\
    \tos.wait()\n\
    \tprint(pid)\n\
    \town+=struct.unpack('q',os.read(reading,8))[0]\n\
    waited=resource.getrusage(resource.RUSAGE_CHILDREN)\n\
    print(own,round((waited.ru_utime+waited.ru_stime)*1e9))";

#[test]
fn a_thousand_processes_of_five_milliseconds_are_counted() {
    let Some(exits) = listen() else { return };
    if !python_is_there() {
        return;
    }
    let (printed, _, news) = run(&exits, &format!("exec python3 -c \"{A_THOUSAND}\""));
    let (pids, clocks) = printed.trim().rsplit_once('\n').unwrap();
    let pids: BTreeSet<u32> = pids.lines().map(|pid| pid.parse().unwrap()).collect();
    let children: Vec<&Exit> = news.ends.iter().filter(|exit| pids.contains(&exit.pid)).collect();
    assert_eq!(news.losses, 0);
    assert_eq!(children.len(), 1000);
    let born = news.births.iter().filter(|(_, child)| pids.contains(child)).count();
    assert!(!exits.knows_births() || born == 1000, "{born} births");
    let (own, waited) = clocks.split_once(' ').unwrap();
    let (own, waited): (f64, f64) = (own.parse().unwrap(), waited.parse().unwrap());
    let found = sum(&children, CPU) as f64;
    println!(
        "1000 processes: {:.3} s of {:.3} s, {:.3} s with their end",
        found / 1e9,
        own / 1e9,
        waited / 1e9
    );
    // Their memory is taken down after the record is written: no clock of theirs has that, only their parent's.
    assert!((found / own - 1.0).abs() < 0.03, "{found} ns, but the truth is {own} ns");
    assert!(found < waited * 1.001, "{found} ns, but the parent's accounting has {waited} ns only");
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
    assert!(EIGHT_MIB.contains(&sum(&dd, WRITTEN)), "{}", sum(&dd, WRITTEN));
    assert!(sum(&dd, PAGE_FAULTS_MINOR) > 50 && dd[0].resident_peak_bytes > 1 << 20);
    assert!(sum(&sleep, SWITCHES_VOLUNTARY) >= 1);
    // It runs for a millisecond in all: what is read from another place of the record is a time or a size.
    let involuntary = sum(&sleep, SWITCHES_INVOLUNTARY);
    assert!((0..1000).contains(&involuntary), "{involuntary}");
    assert!(sleep[0].elapsed_ns >= 50_000_000);
}

#[test]
fn threads_are_added_to_their_process() {
    let Some(exits) = listen() else { return };
    if !python_is_there() {
        return;
    }
    let code = "import threading,os,tempfile\n\
        def work():\n    with tempfile.TemporaryFile(dir='/var/tmp') as file: file.write(bytes(1<<20)); file.flush()\n\
        some=[threading.Thread(target=work) for _ in range(8)]\n[one.start() for one in some]\n[one.join() for one in some]";
    let (_, pid, news) = run(&exits, &format!("exec python3 -c \"{code}\""));
    let processes: Vec<&Exit> = news.ends.iter().filter(|exit| exit.pid == pid).collect();
    assert_eq!(processes.len(), 1, "eight threads are one process");
    let written = sum(&processes, WRITTEN);
    assert!(EIGHT_MIB.contains(&written), "{written}");
}
