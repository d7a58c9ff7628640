//! A driver that does not answer keeps neither ticks nor jobs nor the end of the daemon.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fake_card;

use std::path::Path;

use fake_card::{CARD, Machine, wait_for};

#[test]
fn ticks_jobs_and_the_end_of_the_daemon_do_not_wait_for_a_driver() {
    let machine = Machine::with("");
    machine.script(CARD);
    let first = machine.run("sleep 600");
    wait_for("the card is held", || machine.job(&first)["gpus"][0]["held_seconds"].as_f64());
    machine.script(&format!("{CARD}delay * 0 3600000\ndelay nvmlShutdown 0 3600000\n"));
    wait_for("a tick has noticed", || {
        machine.met(&["daemon", "--status"]).contains("the NVIDIA driver does not answer").then_some(())
    });
    // What only samples know of a job that began when the driver hung already.
    let second = machine.run("x=$(seq 200000); sleep 1");
    machine.met(&["wait", &second]);
    let record = machine.job(&second);
    assert!(record["totals"]["memory_needed_peak_bytes"].as_f64().is_some(), "{record:#}");
    let pid: i32 = wait_for("the daemon's number", || {
        let status = machine.met(&["daemon", "--status"]);
        status.split("(pid ").nth(1)?.split(')').next()?.parse().ok()
    });
    assert!(machine.met(&["daemon", "--stop"]).contains("Stopped"));
    wait_for("the daemon is gone", || (!Path::new(&format!("/proc/{pid}/stat")).exists()).then_some(()));
    machine.met(&["cancel", &first]);
}
