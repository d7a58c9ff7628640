//! Takes records of Colmet's nodes: a PULL socket of ZeroMQ in a thread of its own, which exists only if an address is
//! configured. docs/decisions/053-zeromq.md.
//!
//! The protocol has no authentication. An address must be allowed to connect, and a host must be named; a host that has a
//! token is a node of this server, for which only the token speaks.

mod allowed;
pub mod collector;
mod counts;
mod import;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use met_query::jobs::now_ns;
use met_sinks::zeromq::{Message, Pull};
use met_store::StoreError;
use met_store::cluster::{Log, NodeJob};
use met_wire::batch::NodeBatch;
use met_wire::colmet::{Bad, MESSAGE_BYTES_MAX, Record, records, variant};

use crate::cluster::api::Api;
pub use allowed::Allowed;
use counts::{Complaints, Kind};
pub use counts::{Counts, RECEIVED, Received};
pub(crate) use import::IDENTITY;
use import::{Importer, Refused};

/// How long the thread waits for messages before it looks whether to end.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often what was received becomes durable.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
/// How long it is believed that a host has no token.
const TOKENS_EVERY: Duration = Duration::from_secs(10);

/// What the configuration says.
#[derive(Clone, Debug)]
pub struct Plan {
    pub listen: Vec<SocketAddr>,
    pub allowed: Allowed,
    pub manager: String,
    pub state: PathBuf,
    /// Where it counts what it takes.
    pub counts: Arc<Counts>,
}

pub struct Receiver {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
}

impl Receiver {
    pub fn start(plan: Plan, api: Arc<Api>) -> anyhow::Result<Receiver> {
        let pull = Pull::bind(&plan.listen, MESSAGE_BYTES_MAX).context("colmet.listen")?;
        let (addresses, end) = (pull.addresses()?, Arc::new(AtomicBool::new(false)));
        let mut work = Work {
            hosts: Hosts::open(&plan.state)?,
            importer: Importer::new(plan.manager.clone()),
            manager: plan.manager,
            allowed: plan.allowed,
            complaints: Complaints::new(plan.counts),
            waiting: Vec::new(),
            api,
        };
        let until = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("colmet".to_owned()).spawn(move || {
            work.run(pull, &until);
        })?;
        Ok(Receiver { end, thread: Some(thread), addresses })
    }

    /// Keeps what was received, and ends.
    pub fn stop(mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Which hosts are nodes with a token.
struct Hosts {
    log: Log,
    known: HashMap<String, (bool, Instant)>,
}

impl Hosts {
    fn open(state: &Path) -> Result<Hosts, StoreError> {
        Ok(Hosts { log: Log::open(state)?, known: HashMap::new() })
    }

    fn is_known(&self, host: &str) -> bool {
        self.known.contains_key(host)
    }

    /// The jobs of a host that run as far as it said itself: their ids and the seconds in which they began.
    fn running(&self, host: &str, manager: &str) -> Result<Vec<(u64, i64)>, StoreError> {
        let mut found = Vec::new();
        for key in self.log.unfinished(host, false)?.into_iter().chain(self.log.unfinished(host, true)?) {
            let Some(id) = key.id.parse().ok().filter(|_| key.manager == manager) else { continue };
            let reported = self.log.jobs_on_node(manager, &key.id, host)?;
            let is_it = |job: &NodeJob| job.record.key.incarnation == key.incarnation && job.record.unproven;
            found.extend(reported.iter().any(is_it).then_some((id, key.incarnation)));
        }
        // Of two the later one is the job that runs.
        found.sort_unstable();
        Ok(found)
    }

    /// Registers a host; `false` if only its token may speak for it.
    fn may_speak(&mut self, host: &str) -> Result<bool, StoreError> {
        let now = Instant::now();
        if let Some((may, since)) = self.known.get(host)
            && now.duration_since(*since) < TOKENS_EVERY
        {
            return Ok(*may);
        }
        let may = self.log.register_without_token(host, now_ns())?;
        self.known.insert(host.to_owned(), (may, now));
        Ok(may)
    }
}

struct Work {
    hosts: Hosts,
    importer: Importer,
    manager: String,
    allowed: Allowed,
    complaints: Complaints,
    /// Batches that the writer had no room for.
    waiting: Vec<NodeBatch>,
    api: Arc<Api>,
}

impl Work {
    fn run(&mut self, mut pull: Pull, end: &AtomicBool) {
        let mut flush_at = Instant::now() + FLUSH_EVERY;
        while !end.load(Ordering::Relaxed) {
            let within = flush_at.saturating_duration_since(Instant::now()).min(LOOK_EVERY);
            // While batches wait for the writer, peers do.
            let messages = match self.waiting.is_empty() {
                true => pull.wait(Some(within), |peer| self.allowed.has_address(peer)),
                false => {
                    std::thread::sleep(within.min(Duration::from_millis(50)));
                    Vec::new()
                }
            };
            for message in messages {
                self.take(message);
            }
            if Instant::now() >= flush_at || self.importer.is_full() || !self.waiting.is_empty() {
                self.flush();
                flush_at = Instant::now() + FLUSH_EVERY;
            }
        }
        self.flush();
        let (taken, skipped) = self.complaints.counts.sums();
        tracing::info!("colmet: {taken} records taken, {skipped} skipped");
    }

    fn take(&mut self, message: Message) {
        let peer = message.peer;
        let bytes = match message.received {
            Ok(bytes) => bytes,
            Err(why) => {
                let about = format!(": {why}");
                return self.complaints.refuse(Kind::Connection, peer, "connection closed", &about);
            }
        };
        if variant::is_variant(&bytes) {
            match variant::samples(&bytes) {
                Ok(samples) => {
                    for sample in samples {
                        if self.admit(Kind::Rust, peer, &sample.hostname) {
                            let taken = self.importer.take_sample(&sample, now_ns());
                            self.note(Kind::Rust, peer, &sample.hostname, taken);
                        }
                    }
                }
                Err(bad) => self.complaints.refuse(Kind::Rust, peer, bad.text(), ""),
            }
        } else {
            self.take_records(peer, &bytes);
        }
        self.importer.end_of_message();
    }

    fn take_records(&mut self, peer: IpAddr, bytes: &[u8]) {
        let mut taken: Vec<Record> = Vec::new();
        for record in records(bytes) {
            match record {
                Ok(record) if self.admit(Kind::ColmetNode, peer, &record.hostname) => {
                    let done = self.importer.take(&record, now_ns());
                    if self.note(Kind::ColmetNode, peer, &record.hostname, done) {
                        taken.push(record);
                    }
                }
                Ok(_) => {}
                Err(bad @ Bad::UnknownBackend) => {
                    let about = "; newer versions of Colmet may have others";
                    self.complaints.refuse(Kind::ColmetNode, peer, bad.text(), about);
                }
                Err(bad) => self.complaints.refuse(Kind::ColmetNode, peer, bad.text(), ""),
            }
        }
        if !taken.is_empty() {
            self.api.cluster_writer.publish_colmet(taken);
        }
    }

    fn admit(&mut self, kind: Kind, peer: IpAddr, host: &str) -> bool {
        let (what, about) = if !self.allowed.has_host(host) {
            ("a host that colmet.hosts does not name", format!(": {host}"))
        } else {
            let is_new = !self.hosts.is_known(host);
            match self.hosts.may_speak(host) {
                Ok(true) => {
                    if is_new {
                        self.resume(host);
                    }
                    return true;
                }
                Ok(false) => ("a host with a token is not taken here", format!(": {host}")),
                Err(error) => ("cannot register a host", format!(": {host}: {error}")),
            }
        };
        self.complaints.refuse(kind, peer, what, &about);
        false
    }

    fn resume(&mut self, host: &str) {
        match self.hosts.running(host, &self.manager) {
            Ok(running) => self.importer.resume(host, running),
            Err(error) => tracing::warn!("colmet: running jobs of {host} may be listed twice: {error}"),
        }
    }

    fn note(&mut self, kind: Kind, peer: IpAddr, host: &str, taken: Result<(), Refused>) -> bool {
        match taken {
            Ok(()) => self.complaints.counts.take(kind, 1),
            Err(refused) => self.complaints.refuse(kind, peer, refused.text(), &format!(" of {host}")),
        }
        taken.is_ok()
    }

    /// Hands over what was received, in the order in which it came.
    fn flush(&mut self) {
        if self.waiting.is_empty() {
            self.waiting = self.importer.batches(now_ns());
        }
        while let Some(batch) = self.waiting.first() {
            let packed = match batch.pack() {
                Ok(packed) => packed.bytes,
                Err(error) => {
                    tracing::error!("colmet: a batch of {} cannot be packed: {error}", batch.header.node);
                    self.waiting.remove(0);
                    continue;
                }
            };
            let Ok(kept) = self.api.cluster_writer.keep(batch.clone(), packed, now_ns(), None) else {
                return;
            };
            match kept.blocking_recv() {
                Ok(Ok(())) => {}
                Ok(Err(refusal)) => tracing::warn!("colmet: {}: {refusal}", batch.header.node),
                Err(_) => return,
            }
            self.waiting.remove(0);
        }
    }
}
