//! One node, which makes a batch when it is its turn.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Result, bail};
use met_core::job::{JobKey, Record, State};
use met_core::series::Series;
use met_core::{JOB, Kind, MISSING};
use met_sinks::link::{Address, Link};
use met_wire::batch::{Header, NodeBatch, Piece, Subject};
use met_wire::schema::describe_some;

use crate::Load;

pub const METRICS: usize = 40;
const SAMPLE_EVERY_S: i64 = 10;
pub const BEGIN_S: i64 = 1_794_700_800;

pub struct Node {
    number: u64,
    link: Link,
    pub sequence: u64,
    pub at_s: i64,
    values: Vec<i64>,
    noise: u64,
}

/// What a node measured in the time of a batch, and the batch.
pub struct Made {
    pub node: String,
    pub jobs: Vec<(JobKey, Series)>,
    pub packed: Vec<u8>,
}

pub fn samples_per_batch(load: Load) -> u64 {
    load.jobs * METRICS as u64 * (load.every_s / SAMPLE_EVERY_S) as u64
}

pub fn name(node: u64) -> String {
    format!("n{node:04}")
}

impl Node {
    pub fn open(number: u64, url: String, token: &str, jobs: u64) -> Result<Node> {
        let link = Link::open(&Address { url, token: Some(token.to_owned()), ..Address::default() })?;
        let values = vec![1_000_000; jobs as usize * METRICS];
        Ok(Node { number, link, sequence: 0, at_s: BEGIN_S, values, noise: number + 1 })
    }

    fn random(&mut self) -> u64 {
        self.noise =
            self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.noise >> 33
    }

    /// Counters that grow by much and little, levels that wander, and some that stand still: as jobs are.
    fn step(&mut self, job: u64, metric: usize) -> i64 {
        let random = self.random() as i64;
        let at = job as usize * METRICS + metric;
        let growth = match (metric % 5, JOB.columns[metric].kind) {
            (0, _) => 0,
            (1, Kind::Counter) => 9_000_000_000 + random % 1_000_000_000,
            (2, Kind::Counter) => random % 100_000,
            (3, Kind::Counter) => random % 50,
            (_, Kind::Counter) => (random % 7) * 4096,
            (_, Kind::Gauge) => (random % 3 - 1) * 4096,
        };
        self.values[at] = (self.values[at] + growth).max(0);
        self.values[at]
    }

    fn series(&mut self, load: Load, job: u64) -> Series {
        let mut series = Series::new(&JOB);
        for sample in 0..load.every_s / SAMPLE_EVERY_S {
            let mut cells = vec![MISSING; JOB.columns.len()];
            for (metric, cell) in cells.iter_mut().enumerate().take(METRICS) {
                *cell = self.step(job, metric);
            }
            series.push((self.at_s + sample * SAMPLE_EVERY_S) * 1000, &cells);
        }
        series
    }

    pub fn make(&mut self, load: Load) -> Result<Made> {
        let jobs: Vec<(JobKey, Series)> =
            (0..load.jobs).map(|job| (key(job), self.series(load, job))).collect();
        let piece = |(key, series): &(JobKey, Series)| Piece::of(Subject::Job(key.clone()), series);
        let first = self.sequence == 0;
        let records = if first { jobs.iter().map(|(key, _)| record(key)).collect() } else { Vec::new() };
        self.sequence += 1;
        self.at_s += load.every_s;
        let header = Header {
            node: name(self.number),
            spool: "load".to_owned(),
            sequence: self.sequence,
            version: "load".to_owned(),
            columns: BTreeMap::from([(JOB.name.to_owned(), MEANT[usize::from(first)].clone())]),
            ..Header::default()
        };
        let batch =
            NodeBatch { header, records, pieces: jobs.iter().map(piece).collect(), ..NodeBatch::default() };
        Ok(Made { node: name(self.number), packed: batch.pack()?.bytes, jobs })
    }

    /// Sends until the server takes it; how often it was sent away.
    pub fn send(&self, packed: &[u8]) -> Result<u64> {
        for attempt in 0..10_000 {
            let answer = self.link.post("/api/v1/batches", &[], packed, 64 << 10)?;
            match answer.status {
                200 => return Ok(attempt),
                429 | 503 => std::thread::sleep(Duration::from_millis(20)),
                status => bail!("the server answers {status}: {}", answer.reason()),
            }
        }
        bail!("the server never took it")
    }
}

/// What nodes say of the columns in a batch: of samples alone, and with records.
static MEANT: LazyLock<[String; 2]> =
    LazyLock::new(|| [describe_some(&JOB, |column| column < METRICS), describe_some(&JOB, |_| true)]);

fn key(job: u64) -> JobKey {
    JobKey { cluster: None, manager: "local".to_owned(), id: job.to_string(), incarnation: BEGIN_S }
}

fn record(key: &JobKey) -> Record {
    Record {
        user: Some("ada".to_owned()),
        uid: Some(1000),
        command: ["python", "train.py"].map(str::to_owned).into(),
        start_ns: Some(BEGIN_S * 1_000_000_000),
        node_memory_bytes: Some(1 << 38),
        ..Record::new(key.clone(), "load", State::Running)
    }
}
