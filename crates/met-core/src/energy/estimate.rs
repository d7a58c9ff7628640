//! What a machine without a meter probably uses: from what its processors are made for, their load, and its
//! memory. An estimate, and marked as one.

/// Thermal design power by model.
static MODELS: &str = include_str!("../../data/cpu-tdp.csv");

/// Where the model is not known: a server core of the last decade.
const MW_PER_UNKNOWN_CORE: u64 = 6_000;
/// A processor that does nothing uses about a third of what it is made for.
const IDLE_PERMILLE: u64 = 300;
/// Modules of memory use about 3 W for 8 GB, whatever is done with them.
const MW_PER_GB: u64 = 375;

/// What is known of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// As /proc/cpuinfo names it.
    pub cpu_model: String,
    pub sockets: u64,
    pub cores: u64,
    pub memory_bytes: u64,
}

/// Power of the processors at rest and at full load, and of the memory, in milliwatts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    pub cpu_idle_mw: u64,
    pub cpu_full_mw: u64,
    pub memory_mw: u64,
    /// What the power of the processors was taken from.
    pub source: String,
}

impl Estimate {
    pub fn of(machine: &Machine) -> Estimate {
        let found = thermal_design_power_mw(&machine.cpu_model);
        let (full_mw, source) = match found {
            Some((model, mw)) => (mw * machine.sockets.max(1), format!("thermal design power of {model}")),
            None => (
                MW_PER_UNKNOWN_CORE * machine.cores.max(1),
                format!("{} cores of an unknown model", machine.cores),
            ),
        };
        Estimate {
            cpu_idle_mw: full_mw * IDLE_PERMILLE / 1000,
            cpu_full_mw: full_mw,
            memory_mw: machine.memory_bytes / 1_000_000 * MW_PER_GB / 1000,
            source,
        }
    }

    /// At a load in thousandths of all CPUs.
    pub fn cpu_mw(&self, load_permille: u64) -> u64 {
        self.cpu_idle_mw + (self.cpu_full_mw - self.cpu_idle_mw) * load_permille.min(1000) / 1000
    }
}

/// The table's model that the name given by the processor contains, the longest one: `Xeon E5-2680 v4` is not
/// the `Xeon E5-2680`.
fn thermal_design_power_mw(cpu_model: &str) -> Option<(&'static str, u64)> {
    let wanted = words(cpu_model);
    let rows = MODELS.lines().skip(1).filter_map(|line| line.rsplit_once(','));
    let fits = rows.filter(|(model, _)| contains(&wanted, &words(model)));
    let (model, watts) = fits.max_by_key(|(model, _)| words(model).len() * 1000 + model.len())?;
    let watts: f64 = watts.trim().parse().ok().filter(|watts| (1.0..2000.0).contains(watts))?;
    Some((model, (watts * 1000.0).round() as u64))
}

/// Without marks and fillers: `Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz` and `Intel Xeon E5-2680 v4` are one.
fn words(name: &str) -> Vec<String> {
    let name = name.split('@').next().unwrap_or(name).to_lowercase();
    let name = name.replace("(r)", " ").replace("(tm)", " ");
    let is_filler = |word: &&str| !matches!(*word, "cpu" | "processor" | "with" | "");
    name.split_whitespace().filter(is_filler).map(str::to_owned).collect()
}

fn contains(whole: &[String], part: &[String]) -> bool {
    // A single word such as `3280` is a model of some maker, and a number in the name of another.
    part.len() > 1 && whole.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(model: &str) -> Option<(&'static str, u64)> {
        thermal_design_power_mw(model)
    }

    #[test]
    fn the_name_a_processor_gives_itself_finds_its_row() {
        assert_eq!(
            found("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"),
            Some(("Intel Xeon E5-2680 v4", 120_000))
        );
        assert_eq!(found("AMD EPYC 7742 64-Core Processor"), Some(("AMD EPYC 7742", 225_000)));
        assert_eq!(
            found("Intel(R) Xeon(R) Platinum 8153 CPU @ 2.00GHz"),
            Some(("Intel Xeon Platinum 8153", 125_000))
        );
        assert_eq!(found("Intel(R) Xeon(R) Processor @ 2.80GHz"), None, "which one of them?");
        assert_eq!(found(""), None);
    }

    #[test]
    fn load_is_between_rest_and_full() {
        let machine = Machine {
            cpu_model: "AMD EPYC 7742 64-Core Processor".into(),
            sockets: 2,
            cores: 128,
            memory_bytes: 512_000_000_000,
        };
        let estimate = Estimate::of(&machine);
        assert_eq!((estimate.cpu_mw(0), estimate.cpu_mw(1000)), (135_000, 450_000));
        assert_eq!(estimate.cpu_mw(500), 292_500);
        assert_eq!(estimate.memory_mw, 192_000);
        assert_eq!(estimate.source, "thermal design power of AMD EPYC 7742");
    }

    #[test]
    fn an_unknown_processor_is_estimated_by_its_cores() {
        let machine =
            Machine { cpu_model: "made up".into(), sockets: 1, cores: 2, memory_bytes: 8_000_000_000 };
        let estimate = Estimate::of(&machine);
        assert_eq!((estimate.cpu_full_mw, estimate.memory_mw), (12_000, 3_000));
        assert_eq!(estimate.source, "2 cores of an unknown model");
    }
}
