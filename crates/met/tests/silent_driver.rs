//! A driver that does not answer keeps neither ticks nor jobs nor the end of the daemon.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fake_gpu;

use std::path::Path;

use fake_gpu::{GPU, Machine, wait_for};

#[test]
fn ticks_jobs_and_the_end_of_the_daemon_do_not_wait_for_a_driver() {
    let machine = Machine::with("");
    machine.script(GPU);
    let first = machine.run("sleep 600");
    wait_for("the card is held", || machine.job(&first)["gpus"][0]["held_seconds"].as_f64());
    machine.script(&format!("{GPU}delay * 0 3600000\ndelay nvmlShutdown 0 3600000\n"));
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

#[test]
fn met_time_says_why_it_knows_nothing_of_gpus_that_were_given() {
    let machine = Machine::with("");
    machine.script(&format!("{GPU}error nvmlInit 0 18\n"));
    // On a busy machine it takes a while until the library was tried.
    let report = machine.output(&["time", "--", "sleep", "6"]).stderr;
    let report = String::from_utf8(report).unwrap();
    let words = "the job was given GPUs (CUDA_VISIBLE_DEVICES) that cannot be read";
    assert!(report.contains(words) && report.contains("different versions"), "{report}");
    machine.script(GPU);
    let report = String::from_utf8(machine.output(&["time", "--", "sleep", "1"]).stderr).unwrap();
    assert!(!report.contains("nothing is known"), "{report}");
}

const TWO_GPUS: &str = "card 0 uuid=GPU-a name=Fake power=300000 util=90 memory=30 total=80 temperature=61\n\
    card 1 uuid=GPU-b name=Fake power=70000 util=0 memory=0 total=80 temperature=30\n";

fn energy_joules(machine: &Machine, job: &str) -> Option<f64> {
    machine.job(job)["totals"]["gpu_energy_joules"].as_f64()
}

#[test]
fn doctor_calls_gpus_of_which_one_is_lost_less_and_not_missing() {
    let machine = Machine::with("");
    machine.script(&format!("{TWO_GPUS}error * 1 15\n"));
    let doctor = machine.met(&["doctor"]);
    let at = doctor.lines().position(|line| line.contains(" nvidia ")).unwrap();
    let lines: Vec<&str> = doctor.lines().skip(at).take(2).collect();
    assert!(lines[0].starts_with("part ") && lines[0].contains("GPU 1"), "{doctor}");
    assert!(lines[1].trim_start().starts_with("enable: sudo nvidia-smi --gpu-reset"), "{doctor}");
}

#[test]
fn a_gpu_that_hangs_under_a_daemon_that_asks_it_itself_costs_a_gap_and_no_total() {
    let machine = Machine::with("storage: {interval: 500ms}\n");
    machine.script(TWO_GPUS);
    // It needs some memory, and no more of it when the GPU hangs.
    let peak = "x=$(head -c 40000000 /dev/zero | tr '\\0' a); sleep 2; unset x";
    let job = machine.run(&format!("{peak}; while [ ! -e go ]; do sleep 0.1; done"));
    let before =
        wait_for("the card is charged", || energy_joules(&machine, &job).filter(|&joules| joules > 500.0));
    // What was charged is written every half second: seconds later this much is in the store.
    wait_for("more is charged", || energy_joules(&machine, &job).filter(|&joules| joules > before + 1500.0));
    let samples = |machine: &Machine| machine.job(&job)["totals"]["memory_needed_peak_bytes"].as_f64();
    wait_for("a peak", || samples(&machine).filter(|&bytes| bytes > 4e7));
    let peak_bytes = samples(&machine).unwrap();
    // One call of one GPU: the library itself answers.
    let hung = format!("{TWO_GPUS}delay nvmlDeviceGetPowerUsage 0 3600000\n");
    machine.script(&hung);
    wait_for("the daemon has noticed", || {
        machine.met(&["daemon", "--status"]).contains("the NVIDIA driver does not answer").then_some(())
    });
    assert!(machine.log().contains("the sampling thread is stuck in source nvidia"), "{}", machine.log());
    // The other GPU, and all other sources, go on.
    machine.script(&hung.replace("power=70000 util=0", "power=80000 util=40"));
    let live = |machine: &Machine| machine.job(&job)["totals"]["cpu_seconds"].as_f64();
    let then = live(&machine).unwrap();
    wait_for("the job is sampled", || live(&machine).filter(|&cpu| cpu > then));
    let doctor = machine.met(&["doctor"]);
    let line = doctor.lines().find(|line| line.contains(" nvidia ")).unwrap();
    assert!(line.contains("does not answer"), "{line}");
    std::fs::write(machine.folder.path().join("go"), "").unwrap();
    machine.met(&["wait", &job]);
    let record = machine.job(&job);
    let totals = &record["totals"];
    assert_eq!(totals["memory_needed_peak_bytes"].as_f64(), Some(peak_bytes), "{record:#}");
    assert!(totals["gpu_energy_joules"].as_f64().unwrap() >= before, "{record:#}");
    // The last share comes when the meters are read again, after the end.
    let of_gpu = totals["gpu_energy_joules"].as_f64().unwrap();
    let all = || machine.job(&job)["totals"]["energy_joules"].as_f64();
    wait_for("its energy is settled", || all().filter(|&all| all >= of_gpu));
    assert!(totals["cpu_seconds"].as_f64().unwrap() >= then, "{record:#}");
    machine.script(TWO_GPUS);
    machine.met(&["daemon", "--stop"]);
}
