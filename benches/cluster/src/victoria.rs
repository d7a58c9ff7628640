//! VictoriaMetrics beside the server: the same samples by remote write, and what they cost there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use met_core::{JOB, MISSING};
use met_sinks::link::{Address, Link};
use met_wire::remote_write::{HEADERS, Request};

use crate::node::Made;
use crate::process::Process;
use crate::say;

const PROGRAM: &str = "victoria-metrics";
const ADDRESS: &str = "127.0.0.1:19418";
/// Rows that it took by remote write, among the figures of its own page.
const TAKEN: &str = "vm_rows_inserted_total{type=\"promremotewrite\"} ";

pub struct Victoria {
    process: Process,
    data: PathBuf,
    sent: AtomicU64,
    bytes: AtomicU64,
}

impl Victoria {
    /// `None` where it is not installed, which is said.
    pub fn start(root: &Path) -> Result<Option<Victoria>> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&folders).any(|folder| folder.join(PROGRAM).exists()) {
            say("VictoriaMetrics is not here to be compared with: install the package victoria-metrics");
            return Ok(None);
        }
        let data = root.join("victoria-metrics");
        let mut command = Command::new(PROGRAM);
        command
            .arg(format!("-storageDataPath={}", data.display()))
            .arg(format!("-httpListenAddr={ADDRESS}"))
            .args(["-retentionPeriod=100y", "-loggerLevel=ERROR"]);
        let process = Process::start(&mut command, ADDRESS)?;
        Ok(Some(Victoria { process, data, sent: AtomicU64::new(0), bytes: AtomicU64::new(0) }))
    }

    pub fn cpu_s(&self) -> Result<f64> {
        self.process.cpu_s()
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Of the bodies that were sent.
    pub fn wire_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Each node has a connection of its own, as to the server.
    pub fn link() -> Result<Link> {
        Ok(Link::open(&Address { url: format!("http://{ADDRESS}"), ..Address::default() })?)
    }

    pub fn send(&self, link: &Link, body: &Body) -> Result<()> {
        let answer = link.post("/api/v1/write", &HEADERS, &body.bytes, 64 << 10)?;
        ensure!(
            (200..300).contains(&answer.status),
            "VictoriaMetrics answers {}: {}",
            answer.status,
            answer.reason()
        );
        self.sent.fetch_add(body.samples, Ordering::Relaxed);
        self.bytes.fetch_add(body.bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Has everything written, and says what it took: CPU seconds, and bytes on disk.
    pub fn stop(self) -> Result<(f64, u64)> {
        let link = Victoria::link()?;
        link.post("/internal/force_flush", &[], &[], 64 << 10)?;
        let page = link.post("/metrics", &[], &[], 16 << 20)?;
        let page = String::from_utf8_lossy(&page.body).into_owned();
        let taken = page.lines().find_map(|line| line.strip_prefix(TAKEN)).context("no count of rows")?;
        let taken: f64 = taken.trim().parse()?;
        let sent = self.sent();
        if taken != sent as f64 {
            bail!("{sent} samples were sent to VictoriaMetrics, and it has {taken}");
        }
        // It merges for a while after the last sample; what that takes is part of the price.
        std::thread::sleep(Duration::from_secs(5));
        let cpu_s = self.process.cpu_s()?;
        self.process.stop()?;
        Ok((cpu_s, bytes_below(&self.data)?))
    }
}

/// The samples of a batch as remote write has them.
pub struct Body {
    bytes: Vec<u8>,
    samples: u64,
}

impl Body {
    /// With the names and labels that a store of series in an engine gives them.
    pub fn of(made: &Made) -> Result<Body> {
        let mut request = Request::new();
        for (key, series) in &made.jobs {
            let incarnation = key.incarnation.to_string();
            for (column, cells) in JOB.columns.iter().zip(&series.columns) {
                let name = JOB.prometheus_name(column);
                let mut labels = [
                    ("__name__", name.as_str()),
                    ("cluster", made.node.as_str()),
                    ("manager", key.manager.as_str()),
                    ("id", key.id.as_str()),
                    ("incarnation", incarnation.as_str()),
                ];
                let known = series.times_ms.iter().zip(cells).filter(|&(_, &cell)| cell != MISSING);
                request.add(&mut labels, known.map(|(&time_ms, &cell)| (time_ms, column.scaled(cell))));
            }
        }
        Ok(Body { bytes: request.body()?, samples: request.samples() as u64 })
    }
}

fn bytes_below(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => bytes_below(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Load;
    use crate::node::{Node, samples_per_batch};

    #[test]
    fn both_are_sent_the_same_samples() -> Result<()> {
        let load = Load {
            nodes: 1,
            jobs: 3,
            seconds: 0,
            every_s: 60,
            connections: 1,
            rounds: 1,
            lists: 0,
            beside: true,
        };
        let mut node = Node::open(0, "http://127.0.0.1:1".to_owned(), "token", load.jobs)?;
        for _ in 0..2 {
            let made = node.make(load)?;
            let batch = met_wire::batch::NodeBatch::unpack(&made.packed)?;
            let mut samples = 0;
            for (piece, (_, series)) in batch.pieces.iter().zip(&made.jobs) {
                let packed = met_wire::block::decode(&piece.block, &JOB).expect("a whole block");
                assert_eq!((&packed.times_ms, &packed.columns), (&series.times_ms, &series.columns));
                samples += packed.columns.iter().flatten().filter(|&&cell| cell != MISSING).count() as u64;
            }
            assert_eq!(
                (samples, Body::of(&made)?.samples),
                (samples_per_batch(load), samples_per_batch(load))
            );
        }
        Ok(())
    }
}
