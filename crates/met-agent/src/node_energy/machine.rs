//! What of the machine measures energy, and what it probably uses where nothing does.

use std::collections::BTreeSet;

use met_core::energy::Scope;
use met_core::energy::estimate::{Estimate, Machine};
use met_host::{Host, parse};

/// Of several meters of the whole node the first is believed: a counter of the blade, then what controllers
/// say, then a sensor.
const NODE_METERS: [&str; 4] = ["cray", "ipmi", "redfish", "hwmon"];
/// The one chip whose power is that of the whole node.
pub(super) const NODE_CHIP: &str = "power_meter";

/// What a row measures and how it is called, if it is a meter of the ledger.
pub(super) fn meter_of(
    source: &str,
    part: u32,
    labels: &[String],
    has_rapl: bool,
) -> Option<(String, Scope)> {
    let rank = NODE_METERS.iter().position(|&name| name == source).and_then(|rank| u8::try_from(rank).ok());
    let node = rank.map(|rank| Scope::Node { rank, with_cards: true });
    let label = |index: usize| labels.get(index).map_or("", String::as_str);
    let scope = match (source, label(0)) {
        // Cores and the uncore lie within their package.
        ("rapl", zone) if zone.starts_with("package") => Scope::Package,
        ("rapl", "dram") => Scope::Memory,
        ("rapl", "psys") => Scope::Board,
        ("cray" | "ipmi", "node") => node?,
        ("cray", "cpu") if !has_rapl => Scope::Package,
        ("cray", "memory") if !has_rapl => Scope::Memory,
        // The first meter of the chassis is that of all of it.
        ("redfish", _) if part == 0 => node?,
        ("hwmon", NODE_CHIP) => node?,
        _ => return None,
    };
    let name = match scope {
        Scope::Node { .. } => match source {
            "cray" => "Cray pm_counters".to_owned(),
            "ipmi" => "IPMI".to_owned(),
            "redfish" => "Redfish".to_owned(),
            _ => "power meter".to_owned(),
        },
        Scope::Board => "RAPL psys".to_owned(),
        Scope::Package | Scope::Memory => format!("{source} {}", labels.join(" ")),
    };
    Some((name, scope))
}

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
