//! Frequencies of the CPUs and how often heat held them down, summed up for the machine.

use std::collections::HashSet;
use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::node_block::{NodeBlock, NodeLine};
use met_core::table::{NANO, ONE};
use met_core::{Across, Batch, Column, MISSING, Subject, Table, Unit, columns, units};
use met_host::{Host, Targets, parse};

use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable, sysfs};

/// The kernel reports frequencies in kHz.
const KILO: f64 = 1e3;

columns! { COLUMNS:
    FREQUENCY_MEAN = Column::gauge("frequency_mean", Unit::Hertz, KILO, "mean frequency of all CPUs").across(Across::Mean).usual(),
    FREQUENCY_MIN = Column::gauge("frequency_min", Unit::Hertz, KILO, "frequency of the slowest CPU").across(Across::Mean),
    FREQUENCY_MAX = Column::gauge("frequency_max", Unit::Hertz, KILO, "frequency of the fastest CPU").across(Across::Max),
    FREQUENCY_LIMIT = Column::gauge("frequency_limit", Unit::Hertz, KILO, "highest frequency that the policy allows").across(Across::Max),
    THROTTLES_CORE = Column::counter("throttles_core", Unit::Count, ONE, "times a core was throttled because of its temperature"),
    THROTTLES_PACKAGE = Column::counter("throttles_package", Unit::Count, ONE, "times a package was throttled because of its temperature"),
    THROTTLED_CORE = Column::counter("throttled_core", Unit::Seconds, NANO, "time in which cores were throttled, summed over cores"),
    THROTTLED_PACKAGE = Column::counter("throttled_package", Unit::Seconds, NANO, "time in which packages were throttled, summed over packages").usual(),
}

pub static TABLE: Table =
    Table { name: "cpufreq", subject: "all CPUs of the machine", labels: &[], columns: COLUMNS };

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "cpufreq",
    help: "frequencies of the CPUs, and thermal throttling",
    // Reading the frequency wakes up a sleeping CPU on some machines.
    pace: Pace::Apart(Duration::from_secs(10)),
    tables: &[&TABLE],
    charts: &[MachineChart::new(
        "frequency",
        ["Frequency", "frequency"],
        ChartUnit::Hertz,
        &TABLE,
        &[FREQUENCY_MEAN],
    )],
    options: &[],
    open,
};

pub(crate) static BLOCK: NodeBlock = NodeBlock::new("CPU", &TABLE, |row, _| {
    let Some(mean) = row.level(FREQUENCY_MEAN) else { return Vec::new() };
    let range = row.level(FREQUENCY_MIN).zip(row.level(FREQUENCY_MAX));
    let is_throttled = row.rate(THROTTLES_CORE).is_some_and(|rate| rate > 0.0);
    vec![NodeLine::of_machine([
        Some(format!("at {}", units::hertz(mean))),
        range.map(|(slowest, fastest)| format!("{} to {}", units::hertz(slowest), units::hertz(fastest))),
        is_throttled.then(|| "throttled (temperature)".to_owned()),
    ])]
});

const CPUS: &str = "/sys/devices/system/cpu";
const NOW: &str = "scaling_cur_freq";
const LIMIT: &str = "scaling_max_freq";
const NS_PER_MS: i64 = 1_000_000;

struct Cpufreq {
    host: Host,
    /// The folder of each, and the number of CPUs it is for.
    policies: Vec<(String, i64)>,
    /// Of one CPU of each core and of one of each package: the others report the same.
    cores: Vec<String>,
    packages: Vec<String>,
    buffer: Vec<u8>,
}

fn open(host: &Host, _: &Options) -> Opened {
    let mut buffer = Vec::new();
    let mut policies = Vec::new();
    for name in sysfs::names(host, &format!("{CPUS}/cpufreq")) {
        let folder = format!("{CPUS}/cpufreq/{name}");
        let affected = sysfs::text(host, &format!("{folder}/affected_cpus"), &mut buffer).unwrap_or_default();
        let count = i64::try_from(affected.split_whitespace().count()).unwrap_or(1).max(1);
        if sysfs::cell(host, &format!("{folder}/{NOW}"), &mut buffer).is_ok_and(|cell| cell != MISSING) {
            policies.push((folder, count));
        }
    }
    let (mut cores, mut packages, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for name in sysfs::names(host, CPUS) {
        let Some(number) = name.strip_prefix("cpu").and_then(|number| number.parse::<u32>().ok()) else {
            continue;
        };
        let folder = format!("{CPUS}/cpu{number}");
        let mut text = |name: &str| sysfs::text(host, &format!("{folder}/topology/{name}"), &mut buffer);
        let package = text("physical_package_id").unwrap_or_default();
        let core = text("core_id").unwrap_or_default();
        let throttle = format!("{folder}/thermal_throttle");
        if host.open_dir(&throttle).is_err() {
            continue;
        }
        for (key, list) in [(format!("{package}/{core}"), &mut cores), (package, &mut packages)] {
            if seen.insert(key) {
                list.push(throttle.clone());
            }
        }
    }
    if policies.is_empty() && cores.is_empty() {
        return Err(Unavailable::Absent("the kernel does not report CPU frequencies".to_owned()));
    }
    Ok(Box::new(Cpufreq { host: host.clone(), policies, cores, packages, buffer }))
}

impl Source for Cpufreq {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        let mut unparsed = std::mem::take(&mut batch.unparsed);
        let cells = batch.push(Subject::Node);
        let mut frequencies = Vec::with_capacity(self.policies.len());
        let (host, buffer) = (&self.host, &mut self.buffer);
        for (folder, cpus) in &self.policies {
            let mut number = |name: &str| {
                let path = format!("{folder}/{name}");
                sysfs::reading(host, &path, buffer, &mut unparsed).unwrap_or(MISSING)
            };
            frequencies.push((number(NOW), *cpus));
            cells[FREQUENCY_LIMIT] = cells[FREQUENCY_LIMIT].max(number(LIMIT));
        }
        summarise(&frequencies, cells);
        let mut sum = |folders: &[String], name: &str, factor: i64| sum(host, folders, name, factor, buffer);
        cells[THROTTLES_CORE] = sum(&self.cores, "core_throttle_count", 1);
        cells[THROTTLES_PACKAGE] = sum(&self.packages, "package_throttle_count", 1);
        cells[THROTTLED_CORE] = sum(&self.cores, "core_throttle_total_time_ms", NS_PER_MS);
        cells[THROTTLED_PACKAGE] = sum(&self.packages, "package_throttle_total_time_ms", NS_PER_MS);
        batch.unparsed = unparsed;
        Ok(())
    }
}

/// One that cannot be read makes the sum a lower one, so there is none.
fn sum(host: &Host, folders: &[String], name: &str, factor: i64, buffer: &mut Vec<u8>) -> i64 {
    let mut total = if folders.is_empty() { MISSING } else { 0 };
    for folder in folders {
        let cell = sysfs::cell(host, &format!("{folder}/{name}"), buffer);
        total = parse::sum(total, cell.unwrap_or(MISSING));
    }
    parse::scaled(total, factor)
}

fn summarise(frequencies: &[(i64, i64)], cells: &mut [i64]) {
    let known = || frequencies.iter().filter(|(frequency, _)| *frequency > 0);
    let cpus: i128 = known().map(|(_, cpus)| i128::from(*cpus)).sum();
    let total: i128 = known().map(|(frequency, cpus)| i128::from(*frequency) * i128::from(*cpus)).sum();
    if cpus > 0 {
        cells[FREQUENCY_MEAN] = i64::try_from(total / cpus).unwrap_or(MISSING);
        cells[FREQUENCY_MIN] = known().map(|(frequency, _)| *frequency).min().unwrap_or(MISSING);
        cells[FREQUENCY_MAX] = known().map(|(frequency, _)| *frequency).max().unwrap_or(MISSING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    #[test]
    fn frequencies_are_weighed_by_cpus_and_throttles_counted_once_for_each_core_and_package() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/sensors.txt"));
        expect![[r#"
            Node
              frequency_mean 2300000
              frequency_min 800000
              frequency_max 3600000
              frequency_limit 3700000
              throttles_core 12
              throttles_package 9
              throttled_core 120000000
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    proptest! {
        #[test]
        fn the_mean_is_between_the_slowest_and_the_fastest(
            policies in prop::collection::vec((any::<i64>(), 1..256i64), 0..64),
        ) {
            let mut cells = vec![MISSING; COLUMNS.len()];
            summarise(&policies, &mut cells);
            prop_assert!(cells[FREQUENCY_MIN] <= cells[FREQUENCY_MEAN]);
            prop_assert!(cells[FREQUENCY_MEAN] <= cells[FREQUENCY_MAX]);
        }
    }
}
