//! The list `systems`: machines that jobs could move to.

use super::tree::{Complaint, Entry, Node, refuse_duplicates, unknown};
use met_core::units;

const EXAMPLE: &str =
    "write for example \"systems: [{name: fox, cores: 128, memory: 512GiB, core_hour: 0.01}]\"";
const SYSTEMS_MAX: usize = 100;

/// A machine, or one node of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownSystem {
    pub name: String,
    pub cores: u64,
    pub memory_bytes: Option<u64>,
    pub gpus: u64,
    /// `nvidia`, `amd`, `intel`.
    pub gpu_maker: Option<String>,
    pub gpu_memory_bytes: Option<u64>,
    /// Bytes per second.
    pub storage_rate: Option<u64>,
    pub core_hour: Option<f64>,
    pub gpu_hour: Option<f64>,
}

/// Every key with what it is and what it means.
const KEYS: [(&str, &str, &str); 9] = [
    ("name", "text", "its name"),
    ("cores", "number", "cores of one node"),
    ("memory", "size", "memory of one node"),
    ("gpus", "number", "GPUs of one node (default: none)"),
    ("gpu_maker", "text", "`nvidia`, `amd` or `intel`; a program for another maker needs a port"),
    ("gpu_memory", "size", "memory of each GPU"),
    (
        "storage_rate",
        "size",
        "what one node can read and write per second; `met scale` compares jobs on a node of this name with it",
    ),
    ("core_hour", "number", "price of a core-hour, in `energy.currency`"),
    ("gpu_hour", "number", "price of a GPU-hour"),
];

pub fn apply(section: &Entry, systems: &mut Vec<KnownSystem>) -> Result<(), Complaint> {
    let items = match &section.value {
        Node::Null => return Ok(()),
        Node::List(items) => items,
        Node::Map(_) | Node::Scalar(_) => {
            return Err(Complaint {
                line: section.value_line,
                message: format!("systems: a list; {EXAMPLE}"),
            });
        }
    };
    for (item, line) in items {
        let Node::Map(entries) = item else {
            return Err(Complaint { line: *line, message: format!("systems: keys are needed; {EXAMPLE}") });
        };
        let system = system(entries, *line)?;
        if systems.iter().any(|known| known.name == system.name) {
            let message = format!("systems: {:?} is given twice", system.name);
            return Err(Complaint { line: *line, message });
        }
        systems.push(system);
        if systems.len() > SYSTEMS_MAX {
            return Err(Complaint { line: *line, message: format!("systems: more than {SYSTEMS_MAX}") });
        }
    }
    Ok(())
}

fn system(entries: &[Entry], line: u64) -> Result<KnownSystem, Complaint> {
    refuse_duplicates(entries, "systems.")?;
    let mut system = KnownSystem::default();
    for entry in entries {
        let complain = |message: String| Complaint {
            line: entry.value_line,
            message: format!("systems.{}: {message}", entry.key),
        };
        let Node::Scalar(text) = &entry.value else { return Err(complain("one value is needed".to_owned())) };
        let count = || text.parse::<u64>().map_err(|_| complain(format!("{text:?} is not a whole number")));
        let size = || units::parse_size(text).map_err(|error| complain(error.to_string()));
        let price = || {
            let price = text.parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0);
            price.ok_or_else(|| complain(format!("{text:?} is not a price ≥ 0")))
        };
        match entry.key.as_str() {
            "name" => system.name = text.clone(),
            "cores" => system.cores = count()?,
            "memory" => system.memory_bytes = Some(size()?),
            "gpus" => system.gpus = count()?,
            "gpu_maker" => system.gpu_maker = Some(text.clone()),
            "gpu_memory" => system.gpu_memory_bytes = Some(size()?),
            "storage_rate" => system.storage_rate = Some(size()?),
            "core_hour" => system.core_hour = Some(price()?),
            "gpu_hour" => system.gpu_hour = Some(price()?),
            _ => return Err(unknown(entry, "systems.", &KEYS.map(|(name, ..)| name))),
        }
    }
    match system {
        KnownSystem { ref name, cores, .. } if !name.is_empty() && cores > 0 => Ok(system),
        _ => Err(Complaint { line, message: format!("systems: a system has a name and cores; {EXAMPLE}") }),
    }
}

/// This section of docs/config.md.
pub fn reference() -> String {
    let mut text = String::from(
        "\n## `systems`\n\nA list of machines that jobs could move to, which `met scale` compares, and `met check`, `met explain` and reports \
         name where one fits: `systems: [{name: fox, cores: 128, \
         memory: 512GiB}]`.\n\n| key | what | default | meaning |\n| --- | --- | --- | --- |\n",
    );
    for (name, what, help) in KEYS {
        text.push_str(&format!("| `systems.{name}` | {what} | none | {help} |\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn read(yaml: &str) -> Result<Config, String> {
        Config::parse(yaml, Path::new("met.yaml")).map_err(|error| error.to_string())
    }

    #[test]
    fn systems_are_read_with_their_units_and_mistakes_have_a_line() {
        let yaml = "systems:\n  - {name: fox, cores: 128, memory: 512GiB, core_hour: 0.01}\n  \
                    - {name: ml, cores: 64, gpus: 4, gpu_maker: nvidia, gpu_memory: 80GiB, storage_rate: 2GiB}\n";
        let systems = read(yaml).unwrap().systems;
        assert_eq!((systems.len(), systems[0].memory_bytes, systems[1].gpus), (2, Some(512 << 30), 4));
        assert_eq!((systems[0].storage_rate, systems[1].storage_rate), (None, Some(2 << 30)));
        let complaint = |yaml: &str| read(yaml).unwrap_err();
        assert!(complaint("systems: fox").contains("systems: a list"));
        assert!(
            complaint("systems:\n  - {name: fox}").contains(":2: systems: a system has a name and cores")
        );
        assert!(complaint("systems:\n  - {name: a, cores: x}").contains("\"x\" is not a whole number"));
        assert!(complaint("systems:\n  - {name: a, core: 2}").contains("did you mean \"systems.cores\"?"));
        assert!(complaint("systems: [{name: a, cores: 2}, {name: a, cores: 2}]").contains("is given twice"));
    }
}
