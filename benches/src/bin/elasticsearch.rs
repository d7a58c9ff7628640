//! What the sink `elasticsearch` does with Colmet's records of 1,000 hosts (taskstats and procstats): documents in a
//! second and CPU time of each, into a receiver that only acknowledges, and into a real engine if
//! `ENGINE=http://127.0.0.1:9200` names one. Documents go through the spool on disk, as always.
//!
//! Run it with `cargo run --release -p met-benches --bin elasticsearch`. The receiver is this program again, as a process
//! of its own, so that its time is not counted.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use met_benches::colmet_round::{HOSTS, cpu_s, round};
use met_benches::say;
use met_sinks::sink::Options;
use met_sinks::{Event, SINKS};

const ROUNDS: u64 = 100;
const RECEIVER: &str = "--receiver";
/// Ten times what Colmet does.
const LIMIT_PER_S: f64 = 60_700.0;

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some(RECEIVER) {
        return receive();
    }
    let mut receiver = Receiver::start()?;
    let per_s = measure(&receiver.url, "a receiver that only acknowledges", ROUNDS)?;
    receiver.process.kill()?;
    receiver.process.wait()?;
    if let Ok(url) = std::env::var("ENGINE") {
        measure(&url, "a real engine", ROUNDS / 10)?;
    }
    ensure!(per_s >= LIMIT_PER_S, "{per_s:.0} documents/s are fewer than {LIMIT_PER_S}");
    Ok(())
}

fn measure(url: &str, what: &str, rounds: u64) -> Result<f64> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let mut options = Options::default();
    options.folder = Some(folder.path().to_path_buf());
    options.set("url", vec![url.to_owned()]);
    let spec = SINKS.iter().find(|spec| spec.name == "elasticsearch").context("no such sink")?;
    let mut sink = (spec.open)(&options)?;
    let events: Vec<Event> = (0..rounds).map(|number| round(number, |host| 1000 + host)).collect();
    let (begin, cpu_begin_s) = (Instant::now(), cpu_s());
    for event in &events {
        sink.take(event)?;
        // As the bus does: its queue bounds what is ahead of the sender.
        while waiting(folder.path())? > 64 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // It is due after its interval; until then nothing but the last body is left.
    while waiting(folder.path())? > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (took_s, cpu_took_s) = (begin.elapsed().as_secs_f64(), cpu_s() - cpu_begin_s);
    let report = sink.report().context("it reports")?;
    ensure!(report.dropped == 0, "{} documents dropped: {:?}", report.dropped, report.failure);
    sink.close();
    let documents = (rounds * HOSTS * 2) as f64;
    let per_s = documents / took_s;
    say(&format!(
        "into {what}: {documents:.0} documents in {took_s:.2} s, {per_s:.0} documents/s, {:.2} µs CPU time each",
        cpu_took_s / documents * 1e6
    ));
    Ok(per_s)
}

/// Bodies on disk that were not sent yet.
fn waiting(folder: &std::path::Path) -> Result<usize> {
    let names = std::fs::read_dir(folder)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.ends_with(".batch") || name.ends_with(".unfinished")).count())
}

struct Receiver {
    process: Child,
    url: String,
}

impl Receiver {
    fn start() -> Result<Receiver> {
        let mut process =
            Command::new(std::env::current_exe()?).arg(RECEIVER).stdout(Stdio::piped()).spawn()?;
        let mut url = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut url)?;
        Ok(Receiver { process, url: url.trim().to_owned() })
    }
}

fn receive() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    say(&format!("http://{}", listener.local_addr()?));
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || while acknowledge(&stream).is_some() {});
    }
    Ok(())
}

/// Answers one request; `None` at the end of the connection.
fn acknowledge(mut stream: &TcpStream) -> Option<()> {
    let mut reader = BufReader::with_capacity(1 << 20, stream);
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).ok().filter(|&bytes| bytes > 0)?;
        let lower = line.to_ascii_lowercase();
        length =
            lower.strip_prefix("content-length:").map_or(Some(length), |text| text.trim().parse().ok())?;
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink()).ok()?;
    let answer = b"{\"errors\":false,\"items\":[]}";
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
    stream.write_all(&[head.as_bytes(), answer].concat()).ok()
}
