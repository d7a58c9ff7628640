//! The program with a GPU that a script plays, in folders of its own.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

pub const GPU: &str = "card 0 uuid=GPU-a name=Fake power=300000 util=90 memory=30 total=80 temperature=61\n";

pub struct Machine {
    pub folder: tempfile::TempDir,
}

impl Machine {
    /// With more lines of configuration.
    pub fn with(more: &str) -> Machine {
        let folder = tempfile::tempdir().unwrap();
        // Cargo puts a dependency's library beside the test program.
        let library = std::env::current_exe().unwrap().parent().unwrap().join("libnvml_fake.so");
        let copy = folder.path().join("libnvidia-ml.so.1");
        std::fs::copy(library, &copy).unwrap();
        let config = format!(
            "sampling: {{interval: 200ms}}\ndaemon: {{idle_exit: 60s}}\ngpu: {{nvml: {}}}\n{more}",
            copy.display()
        );
        std::fs::write(folder.path().join("met.yaml"), config).unwrap();
        Machine { folder }
    }

    pub fn script(&self, text: &str) {
        // Renamed: the library never reads half a script.
        let fresh = self.folder.path().join("script.new");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, self.folder.path().join("script")).unwrap();
    }

    pub fn met(&self, words: &[&str]) -> String {
        String::from_utf8(self.output(words).stdout).unwrap()
    }

    /// A daemon waits some seconds for a source that hangs before it goes on without it; clients wait for less.
    pub fn output(&self, words: &[&str]) -> Output {
        wait_for("the daemon answers", || {
            let done = self.output_once(words);
            let said = String::from_utf8_lossy(&done.stderr);
            let is_silent = said.contains("the daemon (pid ") && said.contains("does not answer");
            assert!(done.status.success() || is_silent, "{words:?}: {said}");
            done.status.success().then_some(done)
        })
    }

    fn output_once(&self, words: &[&str]) -> Output {
        let here: &Path = self.folder.path();
        Command::new(env!("CARGO_BIN_EXE_met"))
            .args(words)
            .current_dir(here)
            .env("XDG_STATE_HOME", here)
            .env("XDG_RUNTIME_DIR", here)
            .env("XDG_CONFIG_HOME", here)
            .env("MET_CONFIG", here.join("met.yaml"))
            .env("CUDA_VISIBLE_DEVICES", "0")
            .output()
            .unwrap()
    }

    pub fn run(&self, command: &str) -> String {
        self.met(&["run", "--print-id", "--", "sh", "-c", command]).trim().to_owned()
    }

    /// What the system daemon had to say.
    #[allow(dead_code, reason = "not every test reads it")]
    pub fn log(&self) -> String {
        // The state of each machine has a folder of its own.
        let folders = std::fs::read_dir(self.folder.path().join("met")).unwrap();
        let logs = folders.map(|folder| folder.unwrap().path().join("daemon.log"));
        logs.filter_map(|log| std::fs::read_to_string(log).ok()).collect()
    }

    pub fn job(&self, id: &str) -> serde_json::Value {
        serde_json::from_str(&self.met(&["show", "--json", id])).unwrap()
    }
}

pub fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
