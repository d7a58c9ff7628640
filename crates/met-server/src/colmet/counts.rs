//! What came from which kind of peer, for status and pages.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use met_core::table::ONE;
use met_core::{Column, MISSING, Table, Unit, columns};
use met_sinks::snapshot::Rows;
use serde::{Deserialize, Serialize};

/// Complaints that are remembered; beyond, no more are logged.
const COMPLAINTS_MAX: usize = 4096;

columns! { COLUMNS:
    TAKEN = Column::counter("taken", Unit::Count, ONE, "records that were taken").usual(),
    SKIPPED = Column::counter("skipped", Unit::Count, ONE, "records that were not taken, or connections that were closed").usual(),
}

pub static RECEIVED: Table = Table {
    name: "colmet",
    subject: "a kind of peer that sends records of Colmet to a server: `colmet-node`, its variant `rust`, or `connection` before it is known",
    labels: &["peer"],
    columns: COLUMNS,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ColmetNode,
    Rust,
    Connection,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::ColmetNode, Kind::Rust, Kind::Connection];

    fn name(self) -> &'static str {
        match self {
            Kind::ColmetNode => "colmet-node",
            Kind::Rust => "rust",
            Kind::Connection => "connection",
        }
    }
}

/// Read by other threads.
#[derive(Debug, Default)]
pub struct Counts {
    taken: [AtomicU64; Kind::ALL.len()],
    skipped: [AtomicU64; Kind::ALL.len()],
}

/// What came from one kind of peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    pub peer: String,
    pub taken: u64,
    pub skipped: u64,
}

impl Counts {
    pub(super) fn take(&self, kind: Kind, records: u64) {
        self.taken[kind as usize].fetch_add(records, Ordering::Relaxed);
    }

    pub fn received(&self) -> Vec<Received> {
        let read = |counts: &[AtomicU64], kind: Kind| counts[kind as usize].load(Ordering::Relaxed);
        let of_kind = |kind: Kind| Received {
            peer: kind.name().to_owned(),
            taken: read(&self.taken, kind),
            skipped: read(&self.skipped, kind),
        };
        Kind::ALL.into_iter().map(of_kind).collect()
    }

    /// All that was taken, and all that was skipped.
    pub fn sums(&self) -> (u64, u64) {
        let received = self.received();
        (received.iter().map(|one| one.taken).sum(), received.iter().map(|one| one.skipped).sum())
    }

    pub fn rows(&self) -> Rows {
        let mut rows = Rows::new(&RECEIVED);
        for Received { peer, taken, skipped } in self.received() {
            let mut cells = [MISSING; COLUMNS.len()];
            // A connection has no records yet.
            if peer != Kind::Connection.name() {
                cells[TAKEN] = i64::try_from(taken).unwrap_or(i64::MAX);
            }
            cells[SKIPPED] = i64::try_from(skipped).unwrap_or(i64::MAX);
            rows.push(&[peer], &cells);
        }
        rows
    }
}

/// What is logged once for each peer and reason, and counted.
pub(super) struct Complaints {
    logged: HashSet<(IpAddr, &'static str)>,
    pub(super) counts: Arc<Counts>,
}

impl Complaints {
    pub(super) fn new(counts: Arc<Counts>) -> Complaints {
        Complaints { logged: HashSet::new(), counts }
    }

    pub(super) fn refuse(&mut self, kind: Kind, peer: IpAddr, what: &'static str, about: &str) {
        self.counts.skipped[kind as usize].fetch_add(1, Ordering::Relaxed);
        if self.logged.len() < COMPLAINTS_MAX && self.logged.insert((peer, what)) {
            tracing::warn!("colmet: {peer}: {what}{about}; skipped, further ones are only counted");
        }
    }
}
