//! A collector as Colmet's: takes records of any node and hands them to sinks. It stores nothing by itself.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use met_sinks::event::Event;
use met_sinks::zeromq::{Message, Pull};
use met_sinks::{Bus, Configured};
use met_wire::colmet::variant::{self, Sample};
use met_wire::colmet::{MESSAGE_BYTES_MAX, Record, records};

use super::counts::{Complaints, Kind};

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long it does not read while a sink is behind.
const CROWDED_FOR: Duration = Duration::from_millis(2);
/// How long sinks may take for what waits at the end; a service manager waits longer.
const CLOSED_WITHIN: Duration = Duration::from_secs(60);
/// Some megabytes.
const RECORDS_OF_EVENT: usize = 1000;

/// Collects until `is_over`, which is asked several times a second. Spools of sinks are in the state folder. As with Colmet's
/// own collector, every node is taken. `round`: how often it logs what it has taken, if it does.
pub fn collect(
    listen: &[SocketAddr],
    sinks: &[Configured],
    state: &Path,
    round: Option<Duration>,
    mut is_over: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    let mut pull = Pull::bind(listen, MESSAGE_BYTES_MAX)?;
    for address in pull.addresses()? {
        tracing::info!(
            "taking records of Colmet at {address}; any host can send, so keep others out by a firewall"
        );
    }
    let mut bus = Bus::open(sinks, None, state);
    let mut complaints = Complaints::new(Arc::default());
    let mut round = round.map(|every| Round { every, next: Instant::now() + every, hosts: HashSet::new() });
    while !is_over() {
        // While a sink is behind, nodes wait: nothing that was taken is dropped.
        if bus.is_crowded() {
            std::thread::sleep(CROWDED_FOR);
            continue;
        }
        let messages = pull.wait(Some(LOOK_EVERY), |_| true);
        let mut taken: Vec<Record> = Vec::new();
        messages.into_iter().for_each(|message| taken.append(&mut take(message, &mut complaints)));
        if let Some(round) = &mut round {
            round.hosts.extend(taken.iter().map(|record| record.hostname.clone()));
            round.log(&complaints);
        }
        // Those of many nodes are one event: sinks have room for so many.
        while !taken.is_empty() {
            let rest = taken.split_off(taken.len().min(RECORDS_OF_EVENT));
            bus.publish(&Event::Colmet(Arc::new(std::mem::replace(&mut taken, rest))));
        }
    }
    // Sinks write what they have.
    bus.close_within(CLOSED_WITHIN);
    let (taken, skipped) = complaints.counts.sums();
    tracing::info!("{taken} records taken, {skipped} skipped");
    Ok(())
}

/// The records of a message.
fn take(message: Message, complaints: &mut Complaints) -> Vec<Record> {
    let peer = message.peer;
    let bytes = match message.received {
        Ok(bytes) => bytes,
        Err(why) => {
            complaints.refuse(Kind::Connection, peer, "connection closed", &format!(": {why}"));
            return Vec::new();
        }
    };
    let kind = if variant::is_variant(&bytes) { Kind::Rust } else { Kind::ColmetNode };
    let mut taken = Vec::new();
    if kind == Kind::Rust {
        match variant::samples(&bytes) {
            Ok(samples) => {
                taken.extend(samples.iter().filter_map(Sample::record));
                complaints.counts.take(kind, taken.len() as u64);
                for _ in taken.len()..samples.len() {
                    complaints.refuse(kind, peer, "no event that Colmet's tables have", "");
                }
            }
            Err(bad) => complaints.refuse(kind, peer, bad.text(), ""),
        }
        return taken;
    }
    for record in records(&bytes) {
        match record {
            Ok(record) => taken.push(record),
            Err(bad) => complaints.refuse(kind, peer, bad.text(), ""),
        }
    }
    complaints.counts.take(kind, taken.len() as u64);
    taken
}

/// The log of what was taken.
struct Round {
    every: Duration,
    next: Instant,
    /// Which sent in this round.
    hosts: HashSet<String>,
}

impl Round {
    fn log(&mut self, complaints: &Complaints) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + self.every;
        let ((taken, skipped), hosts) = (complaints.counts.sums(), self.hosts.len());
        tracing::info!(
            "hosts in this round: {hosts}; records since the start: {taken} taken, {skipped} skipped"
        );
        self.hosts.clear();
    }
}
