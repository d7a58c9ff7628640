//! A load generator: many nodes that send to a real `met server` over loopback, as daemons do.
//!
//! `MET=target/release/met cluster [--nodes 2000] [--jobs 10] [--seconds 300] [--every 60] [--connections 8] [--rounds 4]`
//!
//! First at the pace of a cluster: every node sends a batch of `--every` seconds, a sample every 10 s of 40
//! metrics for each job, spread evenly. Then `--rounds` batches of up to 500 nodes as fast as the server takes them;
//! 60 of them are an hour, as blocks in the store are. Every batch that was acknowledged must be in its files
//! afterwards, once. Run it as root, with a binary that was built beside it:
//! `cargo build --release -p met -p met-load`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use met_core::course::Course;
use met_core::job::{JobKey, Record};
use met_core::{JOB, Kind, MISSING};
use met_server::cluster::{Keeper, Plan, access};
use met_sinks::forward::link::{Address, Link};
use met_store::cluster::{Bearer, Log};
use met_store::{Backends, Retention};
use met_wire::batch::{Batch, Header, Piece, Subject};
use met_wire::block;
use met_wire::meaning::describe_some;

const METRICS: usize = 40;
const SAMPLE_EVERY_S: i64 = 10;
const BEGIN_S: i64 = 1_794_700_800;

#[derive(Clone, Copy)]
struct Load {
    nodes: u64,
    jobs: u64,
    seconds: u64,
    every_s: i64,
    connections: u64,
    rounds: u64,
}

fn main() -> Result<()> {
    let load = load()?;
    let root = tempfile::tempdir()?;
    let tokens = enroll(root.path(), load.nodes)?;
    let server = Server::start(root.path())?;
    let paced = paced(&server, load, &tokens)?;
    let (rss, _) = server.cost()?;
    say(&format!("resident at {} nodes: {:.0} MB", load.nodes, rss as f64 / 1e6));
    let fast = flat_out(&server, load, &tokens)?;
    server.stop()?;
    account(root.path(), load, paced + fast)
}

fn load() -> Result<Load> {
    let mut load = Load { nodes: 2000, jobs: 10, seconds: 300, every_s: 60, connections: 8, rounds: 4 };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value: u64 = arguments.next().context("a number is missing")?.parse()?;
        match name.as_str() {
            "--nodes" => load.nodes = value,
            "--jobs" => load.jobs = value,
            "--seconds" => load.seconds = value,
            "--every" => load.every_s = value as i64,
            "--connections" => load.connections = value,
            "--rounds" => load.rounds = value,
            _ => bail!("{name} is no option"),
        }
    }
    Ok(load)
}

/// One line of results.
fn say(line: &str) {
    // Results that nobody can read are no reason to fail.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn state(root: &Path) -> PathBuf {
    root.join("state/server")
}

fn enroll(root: &Path, nodes: u64) -> Result<Vec<String>> {
    let config = format!(
        "system: {{state: {0}/state, runtime: {0}/run}}\nhttp: {{listen: '127.0.0.1:19417'}}\n\
         schedulers: {{slurm: no, oar: no, pbs: no, lsf: no}}\n",
        root.display()
    );
    std::fs::write(root.join("met.yaml"), config)?;
    std::fs::create_dir_all(state(root))?;
    let mut log = Log::open(&state(root))?;
    (0..nodes).map(|node| Ok(access::enroll(&mut log, &Bearer::Node(name(node)), 1)?)).collect()
}

fn name(node: u64) -> String {
    format!("n{node:04}")
}

struct Server {
    process: Child,
}

impl Server {
    fn start(root: &Path) -> Result<Server> {
        let met =
            std::env::var_os("MET").context("set MET to the binary to load, e.g. target/release/met")?;
        let mut command = Command::new(std::path::absolute(met)?);
        command.arg("server").env("MET_CONFIG", root.join("met.yaml")).current_dir(root);
        let process = command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn()?;
        let begin = Instant::now();
        while std::net::TcpStream::connect("127.0.0.1:19417").is_err() {
            ensure!(begin.elapsed() < Duration::from_secs(20), "the server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Server { process })
    }

    /// Resident bytes, and CPU seconds so far.
    fn cost(&self) -> Result<(u64, f64)> {
        let folder = format!("/proc/{}", self.process.id());
        let status = std::fs::read_to_string(format!("{folder}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = resident.split_whitespace().next().context("no VmRSS")?.parse()?;
        let stat = std::fs::read_to_string(format!("{folder}/stat"))?;
        let fields: Vec<&str> = stat.rsplit_once(')').context("no stat")?.1.split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        Ok((kib * 1024, ticks / rustix::param::clock_ticks_per_second() as f64))
    }

    fn stop(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_raw(self.process.id() as i32).context("no pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        ensure!(self.process.wait()?.success(), "the server failed");
        Ok(())
    }
}

/// One node, which makes a batch when it is its turn.
struct Node {
    number: u64,
    link: Arc<Link>,
    sequence: u64,
    at_s: i64,
    values: Vec<i64>,
    noise: u64,
}

impl Node {
    fn open(number: u64, token: &str, jobs: u64) -> Result<Node> {
        let url = "http://127.0.0.1:19417".to_owned();
        let link = Link::open(&Address { url, token: Some(token.to_owned()), ..Address::default() })?;
        let values = vec![1_000_000; jobs as usize * METRICS];
        Ok(Node { number, link: Arc::new(link), sequence: 0, at_s: BEGIN_S, values, noise: number + 1 })
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

    fn batch(&mut self, load: Load) -> Batch {
        let mut pieces = Vec::new();
        for job in 0..load.jobs {
            let mut course = Course::new(&JOB);
            for sample in 0..load.every_s / SAMPLE_EVERY_S {
                let mut cells = vec![MISSING; JOB.columns.len()];
                for (metric, cell) in cells.iter_mut().enumerate().take(METRICS) {
                    *cell = self.step(job, metric);
                }
                course.push((self.at_s + sample * SAMPLE_EVERY_S) * 1000, &cells);
            }
            let mut packed = Vec::new();
            block::encode(&course, 0..course.len(), &mut packed);
            pieces.push(Piece { subject: Subject::Job(key(job)), table: JOB.name.to_owned(), block: packed });
        }
        let first = self.sequence == 0;
        let records = if first { (0..load.jobs).map(|job| record(&key(job))).collect() } else { Vec::new() };
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
        Batch { header, records, pieces }
    }
}

/// What nodes say of the columns in a batch: of samples alone, and with records.
static MEANT: LazyLock<[String; 2]> =
    LazyLock::new(|| [describe_some(&JOB, |column| column < METRICS), describe_some(&JOB, |_| true)]);

fn key(job: u64) -> JobKey {
    JobKey { cluster: None, manager: "local".to_owned(), id: job.to_string(), incarnation: BEGIN_S }
}

fn record(key: &JobKey) -> Record {
    let text = serde_json::json!({
        "key": key, "name": "load", "user": "ada", "uid": 1000, "account": null, "command": ["python", "train.py"],
        "state": "running", "manager_state": null, "exit_code": null, "signal": null,
        "start_ns": BEGIN_S * 1_000_000_000, "end_ns": null, "nodes": [], "node_memory_bytes": 1_u64 << 38,
        "local": null,
    });
    serde_json::from_value(text).expect("a record")
}

/// Sends until the server takes it; how often it was sent away.
fn send(node: &Node, packed: &[u8]) -> Result<u64> {
    for attempt in 0..10_000 {
        let answer = node.link.post("/api/v1/batches", &[], packed, 64 << 10)?;
        match answer.status {
            200 => return Ok(attempt),
            429 | 503 => std::thread::sleep(Duration::from_millis(20)),
            status => bail!("the server answers {status}: {}", answer.reason()),
        }
    }
    bail!("the server never took it")
}

/// The batches that were taken.
fn paced(server: &Server, load: Load, tokens: &[String]) -> Result<u64> {
    let (_, before_s) = server.cost()?;
    let begin = Instant::now();
    let (sent, bytes, away) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..load.connections)
            .map(|worker| {
                scope.spawn({
                    let (sent, bytes, away) = (&sent, &bytes, &away);
                    move || -> Result<()> {
                        let mut nodes = Vec::new();
                        for number in (worker..load.nodes).step_by(load.connections as usize) {
                            nodes.push(Node::open(number, &tokens[number as usize], load.jobs)?);
                        }
                        let pause =
                            Duration::from_secs(load.every_s as u64).div_f64(nodes.len().max(1) as f64);
                        let mut turn = 0;
                        while begin.elapsed() < Duration::from_secs(load.seconds) {
                            let count = nodes.len();
                            let node = &mut nodes[turn % count];
                            let packed = node.batch(load).pack()?.bytes;
                            bytes.fetch_add(packed.len() as u64, Ordering::Relaxed);
                            away.fetch_add(send(node, &packed)?, Ordering::Relaxed);
                            sent.fetch_add(1, Ordering::Relaxed);
                            turn += 1;
                            std::thread::sleep((pause * turn as u32).saturating_sub(begin.elapsed()));
                        }
                        Ok(())
                    }
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker"))
    })?;
    let sent = sent.into_inner();
    let samples = sent as f64 * samples_per_batch(load) as f64;
    let (_, after_s) = server.cost()?;
    let wall_s = begin.elapsed().as_secs_f64();
    say(&format!(
        "paced: {sent} batches, {:.0} samples/s, {:.1} % of a core, {:.2} bytes per sample on the wire, sent away {} times",
        samples / wall_s,
        (after_s - before_s) / wall_s * 100.0,
        bytes.into_inner() as f64 / samples,
        away.into_inner()
    ));
    Ok(sent)
}

fn samples_per_batch(load: Load) -> u64 {
    load.jobs * METRICS as u64 * (load.every_s / SAMPLE_EVERY_S) as u64
}

/// Batches made beforehand, sent as fast as they are taken.
fn flat_out(server: &Server, load: Load, tokens: &[String]) -> Result<u64> {
    let mut work: Vec<Vec<(Node, Vec<Vec<u8>>)>> = (0..load.connections).map(|_| Vec::new()).collect();
    for number in 0..load.nodes.min(500) {
        let mut node = Node::open(number, &tokens[number as usize], load.jobs)?;
        // Behind what was sent at a pace.
        (node.sequence, node.at_s) = (1_000_000, BEGIN_S + 86_400);
        let batches = (0..load.rounds).map(|_| Ok(node.batch(load).pack()?.bytes)).collect::<Result<_>>()?;
        work[(number % load.connections) as usize].push((node, batches));
    }
    let (_, before_s) = server.cost()?;
    let begin = Instant::now();
    let sent: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = work
            .iter()
            .map(|nodes| {
                scope.spawn(move || -> Result<u64> {
                    let mut sent = 0;
                    for round in 0..load.rounds as usize {
                        for (node, batches) in nodes {
                            send(node, &batches[round])?;
                            sent += 1;
                        }
                    }
                    Ok(sent)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).sum::<Result<u64>>()
    })?;
    let (_, after_s) = server.cost()?;
    let samples = (sent * samples_per_batch(load)) as f64;
    say(&format!(
        "as fast as possible: {sent} batches in {:.2} s, {:.2} million samples/s, {:.2} million per core of the server",
        begin.elapsed().as_secs_f64(),
        samples / begin.elapsed().as_secs_f64() / 1e6,
        samples / (after_s - before_s) / 1e6
    ));
    Ok(sent)
}

/// Moves everything to the store and weighs it; counts what arrived.
fn account(root: &Path, load: Load, sent: u64) -> Result<()> {
    let state = state(root);
    let waiting: usize = {
        let log = Log::open(&state)?;
        (0..load.nodes).map(|node| Ok(log.waiting(&name(node), i64::MAX)?.len())).sum::<Result<usize>>()?
    };
    ensure!(waiting as u64 == sent, "{sent} batches were acknowledged, {waiting} are there");
    let begin = Instant::now();
    let keeper = Keeper::start(Plan {
        state: state.clone(),
        backends: Backends::default(),
        retention: Retention::default(),
        table: |name| (name == JOB.name).then_some(&JOB),
        gap_ms: 60_000,
        move_after: Duration::from_secs(3600),
        lost_after: Duration::from_secs(7 * 86_400),
        adopt: |job, _| (vec![job.clone()], Vec::new()),
    })?;
    keeper.move_all();
    let moved_s = begin.elapsed().as_secs_f64();
    keeper.stop();
    let mut bytes = 0;
    for entry in std::fs::read_dir(state.join("series"))? {
        bytes += entry?.metadata()?.len();
    }
    let samples = (sent * samples_per_batch(load)) as f64;
    say(&format!(
        "moved to the store in {moved_s:.1} s: {:.2} bytes per sample on disk; none lost, none twice",
        bytes as f64 / samples
    ));
    Ok(())
}
