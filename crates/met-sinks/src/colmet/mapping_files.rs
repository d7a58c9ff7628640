//! The files by which Colmet says what its numbered counters are.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use met_wire::colmet::{Backend, EVENTS, PACKAGES, THERMAL_ZONES, ZONES};

/// Writes those of the kinds that have any, each with the time in its name; returns their paths.
pub fn write(folder: &Path, backends: &[Backend], events: &[String]) -> io::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
    for backend in backends {
        let (name, text) = match backend {
            Backend::Perfhw => ("perfhw_mapping", events_text(events)),
            Backend::Rapl => ("RAPL_mapping", zones_text(Path::new("/sys/class/powercap"))),
            Backend::Temperature => {
                ("temperature_mapping", temperatures_text(Path::new("/sys/class/thermal")))
            }
            _ => continue,
        };
        let path = folder.join(format!("{name}.{now_s}.csv"));
        fs::write(&path, text)?;
        written.push(path);
    }
    Ok(written)
}

fn events_text(events: &[String]) -> String {
    (0..EVENTS).fold(String::new(), |mut text, index| {
        let name = events.get(index).map_or("no_counter", String::as_str);
        let _ = writeln!(text, "counter{},{name}", index + 1);
        text
    })
}

fn line_of(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Packages that there are have all their zones, those that the processor does not count as unsupported.
fn zones_text(powercap: &Path) -> String {
    let mut text = String::new();
    for package in 0..PACKAGES {
        let folder = powercap.join(format!("intel-rapl:{package}"));
        let name = line_of(&folder.join("name"));
        let inner: Vec<String> = (0..8)
            .filter_map(|zone| {
                let name = format!("intel-rapl:{package}:{zone}/name");
                line_of(&folder.join(&name)).or_else(|| line_of(&powercap.join(name)))
            })
            .collect();
        for (zone, zone_name) in ZONES.iter().enumerate() {
            let first = 2 * (package * ZONES.len() + zone) + 1;
            let is_there = zone == 0 || inner.iter().any(|inner| inner == zone_name);
            for (number, kind) in [(first, "energy_microjoule"), (first + 1, "max_energy_range_microjoule")] {
                let _ = match &name {
                    Some(name) if is_there => {
                        writeln!(text, "counter_{number},{kind},{name},zone_{zone_name}")
                    }
                    Some(_) => writeln!(text, "counter_{number},counter_not_supported_by_hardware,,"),
                    None => writeln!(text, "counter_{number},no_counter,,"),
                };
            }
        }
    }
    text
}

fn temperatures_text(thermal: &Path) -> String {
    (0..THERMAL_ZONES).fold(String::new(), |mut text, zone| {
        let kind = line_of(&thermal.join(format!("thermal_zone{zone}/type")));
        let _ = match kind {
            Some(kind) => writeln!(text, "counter_{}, {kind}_{zone}", zone + 1),
            None => writeln!(text, "counter_{}, no counter ", zone + 1),
        };
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_counters_are_named() {
        let events = ["instructions", "page_faults"].map(str::to_owned);
        let unused = "counter3,no_counter\ncounter4,no_counter\ncounter5,no_counter\n";
        assert_eq!(events_text(&events), format!("counter1,instructions\ncounter2,page_faults\n{unused}"));
        let root = tempfile::tempdir().unwrap();
        for (path, name) in [("intel-rapl:0", "package-0"), ("intel-rapl:0/intel-rapl:0:1", "dram")] {
            fs::create_dir_all(root.path().join(path)).unwrap();
            fs::write(root.path().join(path).join("name"), format!("{name}\n")).unwrap();
        }
        let text = zones_text(root.path());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 24);
        assert_eq!(lines[0], "counter_1,energy_microjoule,package-0,zone_package");
        assert_eq!(lines[2], "counter_3,counter_not_supported_by_hardware,,");
        assert_eq!(lines[5], "counter_6,max_energy_range_microjoule,package-0,zone_dram");
        assert_eq!(lines[6], "counter_7,no_counter,,");
        fs::create_dir(root.path().join("thermal_zone1")).unwrap();
        fs::write(root.path().join("thermal_zone1/type"), "x86_pkg_temp\n").unwrap();
        assert!(
            temperatures_text(root.path()).contains("counter_2, x86_pkg_temp_1\ncounter_3, no counter \n")
        );
    }
}
