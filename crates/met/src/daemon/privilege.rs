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

/// To be called before other threads are started: rights belong to threads.
pub fn give_up() -> io::Result<()> {
    let held = capabilities(None)?;
    let kept = held.permitted.intersection(NEEDED);
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    Ok(set_no_new_privs(true)?)
}
