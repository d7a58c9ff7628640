//! A collector as Colmet's: takes records of any node and hands them to sinks. It stores nothing by itself.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use met_sinks::event::Event;
use met_sinks::{Bus, Configured};
use met_wire::colmet::{Record, records};

use super::Complaints;
use super::pull::Pull;

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Collects until `is_over`, which is asked several times a second. Spools of sinks are in the state folder. As with Colmet's own collector, every node is taken.
pub fn collect(
    listen: &[SocketAddr],
    sinks: &[Configured],
    state: &Path,
    mut is_over: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    let mut pull = Pull::bind(listen)?;
    for address in pull.addresses()? {
        tracing::info!(
            "taking records of Colmet at {address}; any host can send, so keep others out by a firewall"
        );
    }
    let mut bus = Bus::open(sinks, None, state);
    let mut complaints = Complaints::default();
    while !is_over() {
        for message in pull.wait(LOOK_EVERY, |_| true) {
            let bytes = match message.received {
                Ok(bytes) => bytes,
                Err(why) => {
                    complaints.refuse(message.peer, "connection closed", &format!(": {why}"));
                    continue;
                }
            };
            let mut taken: Vec<Record> = Vec::new();
            for record in records(&bytes) {
                match record {
                    Ok(record) => taken.push(record),
                    Err(bad) => complaints.refuse(message.peer, bad.text(), ""),
                }
            }
            complaints.taken += taken.len() as u64;
            if !taken.is_empty() {
                bus.publish(&Event::Colmet(Arc::new(taken)));
            }
        }
    }
    // Sinks write what they have.
    drop(bus);
    tracing::info!("{} records taken, {} skipped", complaints.taken, complaints.refused);
    Ok(())
}
