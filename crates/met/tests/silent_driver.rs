//! A driver that does not answer keeps neither ticks nor jobs nor the end of the daemon.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const CARD: &str = "card 0 uuid=GPU-a name=Fake power=300000 util=90 memory=30 total=80 temperature=61\n";

struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let folder = tempfile::tempdir().unwrap();
        // Cargo puts a dependency's library beside the test program.
        let library = std::env::current_exe().unwrap().parent().unwrap().join("libnvml_fake.so");
        let copy = folder.path().join("libnvidia-ml.so.1");
        std::fs::copy(library, &copy).unwrap();
        let config = format!(
            "sampling: {{interval: 200ms}}\ndaemon: {{idle_exit: 60s}}\ngpu: {{nvml: {}}}\n",
            copy.display()
        );
        std::fs::write(folder.path().join("met.yaml"), config).unwrap();
        Machine { folder }
    }

    fn script(&self, text: &str) {
        let fresh = self.folder.path().join("script.new");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, self.folder.path().join("script")).unwrap();
    }

    fn met(&self, words: &[&str]) -> String {
        let here: &Path = self.folder.path();
        let done = Command::new(env!("CARGO_BIN_EXE_met"))
            .args(words)
            .current_dir(here)
            .env("XDG_STATE_HOME", here)
            .env("XDG_RUNTIME_DIR", here)
            .env("XDG_CONFIG_HOME", here)
            .env("MET_CONFIG", here.join("met.yaml"))
            .env("CUDA_VISIBLE_DEVICES", "0")
            .output()
            .unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    fn run(&self, command: &str) -> String {
        self.met(&["run", "--print-id", "--", "sh", "-c", command]).trim().to_owned()
    }

    fn job(&self, id: &str) -> serde_json::Value {
        serde_json::from_str(&self.met(&["show", "--json", id])).unwrap()
    }
}

fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn ticks_jobs_and_the_end_of_the_daemon_do_not_wait_for_a_driver() {
    let machine = Machine::new();
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
