//! A system daemon keeps the rights its work needs and gives up all others for good.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

/// Files and cgroups of others, what only a tracer may read of their processes (I/O, environment), the
/// kernel's records of processes that end, and their events, where these are asked for.
const NEEDED: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::PERFMON);

/// The capabilities of a thread that serves the network: it reads certificates again when they change.
const NEEDED_WHILE_SERVING: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// Of one thread, and of those that it starts.
pub fn drop_privileges_before_serving() -> io::Result<()> {
    keep(NEEDED_WHILE_SERVING)
}

/// To be called before other threads are started: rights belong to threads.
pub fn give_up() -> io::Result<()> {
    keep(NEEDED)?;
    Ok(set_no_new_privs(true)?)
}

fn keep(needed: CapabilitySet) -> io::Result<()> {
    let kept = capabilities(None)?.permitted.intersection(needed);
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}
