//! The parsers of foreign bytes, as fuzz/ calls them: each must end, without a panic, whatever it is given.

use met_core::{Batch, MISSING};
use met_host::netlink;

use crate::taskstats::exits;
use crate::{ipmi, lustre, perf, rapl};

/// A controller that answers with pieces of the bytes, and what a program prints.
pub fn ipmi(bytes: &[u8]) {
    ipmi::fuzz(bytes);
}

/// A zone's range and then its readings, one in a line, as a wrapping counter sees them.
pub fn powercap(bytes: &[u8]) {
    let mut before = None;
    for energy_uj in rapl::fuzz(bytes) {
        // With a range it only ever grows, unless a reading is missing.
        if let (Some(before), Some(now)) = (before, energy_uj) {
            assert!(now >= before, "{before} and then {now}");
        }
        before = energy_uj;
    }
}

pub fn lustre(bytes: &[u8]) {
    let mut batch = Batch::new(lustre::SPEC.tables[0]);
    let cells = batch.push(met_core::Subject::Node);
    lustre::fill(bytes, cells);
    assert!(cells.iter().all(|&cell| cell == MISSING || cell >= 0), "{cells:?}");
}

/// A counter's buffer, lists of CPUs and names of events.
pub fn perf(bytes: &[u8]) {
    perf::fuzz(bytes);
}

/// Datagrams of records, and of births.
pub fn taskstats(bytes: &[u8]) {
    for message in netlink::messages(bytes) {
        let _ = message.error();
        exits::fuzz(message.body);
        message.generic().into_iter().flat_map(netlink::attributes).for_each(|(_, value)| exits::fuzz(value));
    }
    exits::fuzz(bytes);
}
