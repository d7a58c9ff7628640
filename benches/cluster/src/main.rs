//! A load generator: many nodes that send to a real `met server` over loopback, as daemons do.
//!
//! `MET=target/release/met cluster [--nodes 2000] [--jobs 10] [--seconds 300] [--every 60] [--connections 8] [--rounds 4]
//! [--lists 0] [--beside-victoria-metrics]`
//!
//! First at the pace of a cluster: every node sends a batch of `--every` seconds, a sample every 10 s of 40
//! metrics for each job, spread evenly. Then `--rounds` batches of up to 500 nodes as fast as the server takes them;
//! 60 of them are an hour, as blocks in the store are. Every batch that was acknowledged must be in its files
//! afterwards, once. Run it as root, with a binary that was built beside it:
//! `cargo build --release -p met -p met-load`.
//!
//! With `--lists 200` people ask for lists of jobs so often in a second while nodes send at the pace of a cluster.
//!
//! With `--beside-victoria-metrics` a VictoriaMetrics of this machine is sent the same samples by remote write,
//! at the same pace and then as fast as it takes them, after the server; the costs of both are printed.

mod node;
mod process;
mod readers;
mod victoria;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use met_server::cluster::{ClusterWriter, Plan, access};
use met_sinks::link::Link;
use met_store::cluster::{Log, TokenOwner};
use met_store::{Backends, Retention};

use node::{BEGIN_S, Made, Node, name, samples_per_batch};
use process::Process;
use victoria::{Body, Victoria};

const ADDRESS: &str = "127.0.0.1:19417";
/// What is sent as fast as possible is later than what was sent at a pace.
const LATER_S: i64 = 86_400;

#[derive(Clone, Copy)]
pub struct Load {
    nodes: u64,
    pub jobs: u64,
    seconds: u64,
    pub every_s: i64,
    connections: u64,
    rounds: u64,
    lists: u64,
    beside: bool,
}

/// Who is loaded.
struct Loaded {
    server: Process,
    victoria: Option<Victoria>,
}

fn main() -> Result<()> {
    let load = load()?;
    let root = tempfile::tempdir()?;
    let tokens = enroll(root.path(), load.nodes)?;
    let victoria = if load.beside { Victoria::start(root.path())? } else { None };
    let loaded = Loaded { server: start_server(root.path())?, victoria };
    let paced = paced(root.path(), &loaded, load, &tokens)?;
    say(&format!("resident at {} nodes: {:.0} MB", load.nodes, loaded.server.resident_bytes()? as f64 / 1e6));
    let fast = flat_out(&loaded, load, &tokens)?;
    let taken_s = loaded.server.cpu_s()?;
    loaded.server.stop()?;
    let moved = account(root.path(), load, paced + fast)?;
    match loaded.victoria {
        Some(victoria) => compare(victoria, taken_s, &moved),
        None => Ok(()),
    }
}

fn load() -> Result<Load> {
    let mut load = Load {
        nodes: 2000,
        jobs: 10,
        seconds: 300,
        every_s: 60,
        connections: 8,
        rounds: 4,
        lists: 0,
        beside: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--beside-victoria-metrics" {
            load.beside = true;
            continue;
        }
        let value: u64 = arguments.next().context("a number is missing")?.parse()?;
        match name.as_str() {
            "--nodes" => load.nodes = value,
            "--jobs" => load.jobs = value,
            "--seconds" => load.seconds = value,
            "--every" => load.every_s = value as i64,
            "--connections" => load.connections = value,
            "--rounds" => load.rounds = value,
            "--lists" => load.lists = value,
            _ => bail!("{name} is no option"),
        }
    }
    Ok(load)
}

/// One line of results.
pub fn say(line: &str) {
    // An unreadable results file is not a failure.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn state(root: &Path) -> PathBuf {
    root.join("state/server")
}

fn enroll(root: &Path, nodes: u64) -> Result<Vec<String>> {
    let config = format!(
        "system: {{state: {0}/state, runtime: {0}/run}}\nhttp: {{listen: '{ADDRESS}'}}\n\
         schedulers: {{slurm: no, oar: no, pbs: no, lsf: no}}\n",
        root.display()
    );
    std::fs::write(root.join("met.yaml"), config)?;
    std::fs::create_dir_all(state(root))?;
    let mut log = Log::open(&state(root))?;
    std::fs::write(
        root.join("operator"),
        access::enroll(&mut log, &TokenOwner::Operator("op".to_owned()), 1, false)?,
    )?;
    (0..nodes).map(|node| Ok(access::enroll(&mut log, &TokenOwner::Node(name(node)), 1, false)?)).collect()
}

fn start_server(root: &Path) -> Result<Process> {
    let met = std::env::var_os("MET").context("set MET to the binary to load, e.g. target/release/met")?;
    let mut command = Command::new(std::path::absolute(met)?);
    command.arg("server").env("MET_CONFIG", root.join("met.yaml")).current_dir(root);
    Process::start(&mut command, ADDRESS)
}

fn open(number: u64, tokens: &[String], load: Load) -> Result<Node> {
    Node::open(number, format!("http://{ADDRESS}"), &tokens[number as usize], load.jobs)
}

/// What workers did at a pace.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    bytes: AtomicU64,
    away: AtomicU64,
}

/// Runs `work` of each number at once.
fn at_once<T: Send>(workers: u64, work: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker")).collect()
    })
}

/// The batches that were taken.
fn paced(root: &Path, loaded: &Loaded, load: Load, tokens: &[String]) -> Result<u64> {
    let before_s = loaded.server.cpu_s()?;
    let begin = Instant::now();
    let counts = Counts::default();
    std::thread::scope(|scope| {
        let readers = scope.spawn(|| ask_for_lists(root, load));
        at_once(load.connections, |worker| pace(loaded, load, tokens, worker, begin, &counts))?;
        readers.join().expect("the readers")
    })?;
    let sent = counts.sent.into_inner();
    let samples = sent as f64 * samples_per_batch(load) as f64;
    let server_s = loaded.server.cpu_s()? - before_s;
    let wall_s = begin.elapsed().as_secs_f64();
    say(&format!(
        "paced: {sent} batches, {:.0} samples/s, {:.1} % of a core, {:.2} bytes per sample on the wire, sent away {} times",
        samples / wall_s,
        server_s / wall_s * 100.0,
        counts.bytes.into_inner() as f64 / samples,
        counts.away.into_inner()
    ));
    if let Some(victoria) = &loaded.victoria {
        say(&format!(
            "VictoriaMetrics at the same pace: {:.1} % of a core, {:.2} bytes per sample on the wire",
            victoria.cpu_s()? / wall_s * 100.0,
            victoria.wire_bytes() as f64 / samples
        ));
    }
    Ok(sent)
}

/// What an operator waits for, if any asks.
fn ask_for_lists(root: &Path, load: Load) -> Result<()> {
    if load.lists == 0 {
        return Ok(());
    }
    let token = std::fs::read_to_string(root.join("operator"))?;
    let took = readers::ask(ADDRESS, &token, load.lists, load.seconds)?;
    let at = |share: f64| took[(took.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    say(&format!(
        "{} lists at {}/s: median {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
        took.len(),
        load.lists,
        at(0.5),
        at(0.99),
        took[took.len() - 1].as_secs_f64() * 1e3
    ));
    Ok(())
}

fn pace(
    loaded: &Loaded,
    load: Load,
    tokens: &[String],
    worker: u64,
    begin: Instant,
    counts: &Counts,
) -> Result<()> {
    let mut nodes = Vec::new();
    for number in (worker..load.nodes).step_by(load.connections as usize) {
        let beside =
            loaded.victoria.as_ref().map(|victoria| Ok::<_, anyhow::Error>((victoria, Victoria::link()?)));
        nodes.push((open(number, tokens, load)?, beside.transpose()?));
    }
    let pause = Duration::from_secs(load.every_s as u64).div_f64(nodes.len().max(1) as f64);
    let mut turn = 0;
    while begin.elapsed() < Duration::from_secs(load.seconds) {
        let count = nodes.len();
        let (node, beside) = &mut nodes[turn % count];
        let made = node.make(load)?;
        counts.bytes.fetch_add(made.packed.len() as u64, Ordering::Relaxed);
        counts.away.fetch_add(node.send(&made.packed)?, Ordering::Relaxed);
        counts.sent.fetch_add(1, Ordering::Relaxed);
        if let Some((victoria, link)) = beside {
            victoria.send(link, &Body::of(&made)?)?;
        }
        turn += 1;
        std::thread::sleep((pause * turn as u32).saturating_sub(begin.elapsed()));
    }
    Ok(())
}

/// Batches made beforehand, sent as fast as they are taken.
fn flat_out(loaded: &Loaded, load: Load, tokens: &[String]) -> Result<u64> {
    let mut work: Vec<Vec<(Node, Vec<Made>)>> = (0..load.connections).map(|_| Vec::new()).collect();
    for number in 0..load.nodes.min(500) {
        let mut node = open(number, tokens, load)?;
        (node.sequence, node.at_s) = (1_000_000, BEGIN_S + LATER_S);
        let made = (0..load.rounds).map(|_| node.make(load)).collect::<Result<_>>()?;
        work[(number % load.connections) as usize].push((node, made));
    }
    let before_s = loaded.server.cpu_s()?;
    let begin = Instant::now();
    let sent = at_once(load.connections, |worker| {
        for round in 0..load.rounds as usize {
            for (node, made) in &work[worker as usize] {
                node.send(&made[round].packed)?;
            }
        }
        Ok(work[worker as usize].len() as u64 * load.rounds)
    })?;
    let sent: u64 = sent.into_iter().sum();
    let server_s = loaded.server.cpu_s()? - before_s;
    say_speed("as fast as possible", sent, sent * samples_per_batch(load), begin.elapsed(), server_s);
    if let Some(victoria) = &loaded.victoria {
        flat_out_beside(victoria, load, &work)?;
    }
    Ok(sent)
}

fn say_speed(what: &str, sent: u64, samples: u64, took: Duration, server_s: f64) {
    say(&format!(
        "{what}: {sent} batches in {:.2} s, {:.2} million samples/s, {:.2} million per core of the server",
        took.as_secs_f64(),
        samples as f64 / took.as_secs_f64() / 1e6,
        samples as f64 / server_s / 1e6
    ));
}

/// The same samples, when the server is at rest.
fn flat_out_beside(victoria: &Victoria, load: Load, work: &[Vec<(Node, Vec<Made>)>]) -> Result<()> {
    let mut bodies: Vec<Vec<(Link, Vec<Body>)>> = Vec::new();
    for nodes in work {
        let body = |(_, made): &(Node, Vec<Made>)| -> Result<(Link, Vec<Body>)> {
            Ok((Victoria::link()?, made.iter().map(Body::of).collect::<Result<_>>()?))
        };
        bodies.push(nodes.iter().map(body).collect::<Result<_>>()?);
    }
    let (before_s, before) = (victoria.cpu_s()?, victoria.sent());
    let begin = Instant::now();
    at_once(load.connections, |worker| {
        for round in 0..load.rounds as usize {
            for (link, bodies) in &bodies[worker as usize] {
                victoria.send(link, &bodies[round])?;
            }
        }
        Ok(())
    })?;
    let requests = bodies.iter().flatten().map(|(_, bodies)| bodies.len() as u64).sum();
    let (samples, cpu_s) = (victoria.sent() - before, victoria.cpu_s()? - before_s);
    say_speed("VictoriaMetrics as fast as possible", requests, samples, begin.elapsed(), cpu_s);
    Ok(())
}

/// What the store took for all samples.
struct Moved {
    samples: u64,
    cpu_s: f64,
    bytes: u64,
}

/// Moves everything to the store and weighs it; counts what arrived.
fn account(root: &Path, load: Load, sent: u64) -> Result<Moved> {
    let state = state(root);
    let waiting: usize = {
        let log = Log::open(&state)?;
        (0..load.nodes).map(|node| Ok(log.waiting(&name(node))?.len())).sum::<Result<usize>>()?
    };
    ensure!(waiting as u64 == sent, "{sent} batches were acknowledged, {waiting} are there");
    let begin = Instant::now();
    let cluster_writer = ClusterWriter::start(Plan {
        state: state.clone(),
        backends: Backends::default(),
        retention: Retention::default(),
        thinning: Vec::new(),
        gap_ms: 60_000,
        move_after: Duration::from_secs(3600),
        lost_after: Duration::from_secs(7 * 86_400),
        sinks: Vec::new(),
        hub: Default::default(),
    })?;
    // A server that runs on does not have to read again what waits.
    let before = own_cpu();
    cluster_writer.move_all();
    let moved_s = begin.elapsed().as_secs_f64();
    cluster_writer.stop();
    let cpu_s = (own_cpu() - before).as_secs_f64();
    let mut bytes = 0;
    for entry in std::fs::read_dir(state.join("series"))? {
        bytes += entry?.metadata()?.len();
    }
    let samples = sent * samples_per_batch(load);
    say(&format!(
        "moved to the store in {moved_s:.1} s: {:.2} bytes per sample on disk; none lost, none twice",
        bytes as f64 / samples as f64
    ));
    Ok(Moved { samples, cpu_s, bytes })
}

/// Of this process, whose writer moves batches as that of a server does.
fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What the same samples took in both.
fn compare(victoria: Victoria, taken_s: f64, moved: &Moved) -> Result<()> {
    ensure!(victoria.sent() == moved.samples, "{} samples here, {} there", moved.samples, victoria.sent());
    let (victoria_s, victoria_bytes) = victoria.stop()?;
    let samples = moved.samples as f64;
    let (per_million, per_sample) =
        (|seconds: f64| seconds / samples * 1e6, |bytes: u64| bytes as f64 / samples);
    say(&format!(
        "the same {:.1} million samples in both, CPU seconds per million: met {:.2} (taken {:.2}, moved to the store \
         {:.2}), VictoriaMetrics {:.2}",
        samples / 1e6,
        per_million(taken_s + moved.cpu_s),
        per_million(taken_s),
        per_million(moved.cpu_s),
        per_million(victoria_s)
    ));
    say(&format!(
        "bytes per sample on disk: met {:.2}, VictoriaMetrics {:.2}",
        per_sample(moved.bytes),
        per_sample(victoria_bytes)
    ));
    Ok(())
}
