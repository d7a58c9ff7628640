//! A server that is measured: what it costs, and its end.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a server and waits until it listens.
    pub fn start(command: &mut Command, address: &str) -> Result<Process> {
        let process = Process { child: command.stdout(Stdio::null()).spawn()? };
        let begin = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            ensure!(begin.elapsed() < Duration::from_secs(20), "nothing listens on {address}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }

    pub fn resident_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = resident.split_whitespace().next().context("no VmRSS")?.parse()?;
        Ok(kib * 1024)
    }

    /// CPU seconds so far.
    pub fn cpu_s(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit_once(')').context("no stat")?.1.split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
    }

    pub fn stop(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).context("no pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        ensure!(self.child.wait()?.success(), "the server failed");
        Ok(())
    }
}

impl Drop for Process {
    /// Whatever went wrong, no server is left behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
