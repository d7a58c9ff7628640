//! Takes records of Colmet's nodes: a PULL socket of ZeroMQ in a thread of its own, which exists only if an address is
//! configured. docs/decisions/053-zeromq.md.
//!
//! The protocol has no authentication. An address must be allowed to connect, and a host must be named; a host that has a
//! token is a node of this server, for which only the token speaks.

mod allowed;
pub mod collector;
mod import;
mod pull;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use met_query::jobs::now_ns;
use met_store::StoreError;
use met_store::cluster::Log;
use met_wire::batch::NodeBatch;
use met_wire::colmet::{Bad, Record, records, variant};

use crate::cluster::api::Api;
pub use allowed::Allowed;
use import::{Importer, Refused};
use pull::{Message, Pull};

/// How long the thread waits for messages before it looks whether to end.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often what was received becomes durable.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
/// Complaints that are remembered; beyond, no more are logged.
const COMPLAINTS_MAX: usize = 4096;
/// How long it is believed that a host has no token.
const TOKENS_EVERY: Duration = Duration::from_secs(10);

/// What the configuration says.
#[derive(Clone, Debug)]
pub struct Plan {
    pub listen: Vec<SocketAddr>,
    pub allowed: Allowed,
    pub manager: String,
    pub state: PathBuf,
}

pub struct Receiver {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
}

impl Receiver {
    pub fn start(plan: Plan, api: Arc<Api>) -> anyhow::Result<Receiver> {
        let pull = Pull::bind(&plan.listen)?;
        let (addresses, end) = (pull.addresses()?, Arc::new(AtomicBool::new(false)));
        let mut work = Work {
            hosts: Hosts::open(&plan.state)?,
            importer: Importer::new(plan.manager),
            allowed: plan.allowed,
            complaints: Complaints::default(),
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

/// What is logged once for each peer and kind, and counted.
#[derive(Default)]
struct Complaints {
    logged: HashSet<(IpAddr, &'static str)>,
    refused: u64,
    taken: u64,
}

impl Complaints {
    fn refuse(&mut self, peer: IpAddr, what: &'static str, about: &str) {
        self.refused += 1;
        if self.logged.len() < COMPLAINTS_MAX && self.logged.insert((peer, what)) {
            tracing::warn!("colmet: {peer}: {what}{about}; skipped, further ones are only counted");
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
                true => pull.wait(within, |peer| self.allowed.has_address(peer)),
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
        let Complaints { taken, refused, .. } = self.complaints;
        tracing::info!("colmet: {taken} records taken, {refused} skipped");
    }

    fn take(&mut self, message: Message) {
        let peer = message.peer;
        let bytes = match message.received {
            Ok(bytes) => bytes,
            Err(why) => return self.complaints.refuse(peer, "connection closed", &format!(": {why}")),
        };
        if variant::is_variant(&bytes) {
            match variant::samples(&bytes) {
                Ok(samples) => {
                    for sample in samples {
                        let host = sample.hostname.clone();
                        if self.admit(peer, &host) {
                            let taken = self.importer.take_sample(&sample, now_ns());
                            self.note(peer, &host, taken);
                        }
                    }
                }
                Err(bad) => self.complaints.refuse(peer, bad.text(), ""),
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
                Ok(record) if self.admit(peer, &record.hostname) => {
                    let done = self.importer.take(&record, now_ns());
                    if self.note(peer, &record.hostname, done) {
                        taken.push(record);
                    }
                }
                Ok(_) => {}
                Err(bad @ Bad::UnknownBackend) => {
                    self.complaints.refuse(peer, bad.text(), "; newer versions of Colmet may have others");
                }
                Err(bad) => self.complaints.refuse(peer, bad.text(), ""),
            }
        }
        if !taken.is_empty() {
            self.api.keeper.publish_colmet(taken);
        }
    }

    fn admit(&mut self, peer: IpAddr, host: &str) -> bool {
        if !self.allowed.has_host(host) {
            self.complaints.refuse(peer, "a host that colmet.hosts does not name", &format!(": {host}"));
            return false;
        }
        match self.hosts.may_speak(host) {
            Ok(true) => true,
            Ok(false) => {
                self.complaints.refuse(peer, "a host with a token is not taken here", &format!(": {host}"));
                false
            }
            Err(error) => {
                self.complaints.refuse(peer, "cannot register a host", &format!(": {host}: {error}"));
                false
            }
        }
    }

    fn note(&mut self, peer: IpAddr, host: &str, taken: Result<(), Refused>) -> bool {
        match taken {
            Ok(()) => self.complaints.taken += 1,
            Err(refused) => self.complaints.refuse(peer, refused.text(), &format!(" of {host}")),
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
            let Ok(kept) = self.api.keeper.keep(batch.clone(), packed, now_ns(), None) else { return };
            match kept.blocking_recv() {
                Ok(Ok(())) => {}
                Ok(Err(refusal)) => tracing::warn!("colmet: {}: {refusal}", batch.header.node),
                Err(_) => return,
            }
            self.waiting.remove(0);
        }
    }
}
