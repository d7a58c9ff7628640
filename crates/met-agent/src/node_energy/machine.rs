//! What the machine probably uses where nothing measures its energy.

use std::collections::BTreeSet;

use met_core::energy::estimate::{Estimate, Machine};
use met_host::{Host, parse};

/// What the machine probably uses. A virtual one has some CPUs of a processor, and not all of it.
pub(super) fn estimate_of(host: &Host) -> Estimate {
    let (machine, is_virtual) = machine(host);
    if !is_virtual {
        return Estimate::of(&machine);
    }
    let source = format!("{} virtual CPUs", machine.cores);
    Estimate { source, ..Estimate::of(&Machine { cpu_model: String::new(), ..machine }) }
}

/// What an estimate needs to know, and whether there is a hypervisor below.
pub fn machine(host: &Host) -> (Machine, bool) {
    let mut text = Vec::new();
    let _ = host.read_small("/proc/cpuinfo", &mut text);
    let (mut cpu_model, mut is_virtual) = (String::new(), false);
    let mut sockets = BTreeSet::new();
    for line in parse::lines(&text) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (key, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        match key {
            b"model name" if cpu_model.is_empty() => cpu_model = String::from_utf8_lossy(value).into_owned(),
            b"physical id" => drop(sockets.insert(value.to_vec())),
            b"flags" if !is_virtual => is_virtual = parse::fields(value).any(|flag| flag == b"hypervisor"),
            _ => {}
        }
    }
    let facts = host.facts();
    let machine = Machine {
        cpu_model,
        sockets: sockets.len().max(1) as u64,
        cores: u64::from(facts.cpu_count),
        memory_bytes: facts.memory_total_bytes.unwrap_or(0).max(0) as u64,
    };
    (machine, is_virtual)
}
