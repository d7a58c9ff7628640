//! Thermal zones: the temperatures that the firmware watches.

use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::node_block::Sensor;
use met_core::table::MILLI;
use met_core::{Across, Batch, Column, MISSING, Subject, Table, Unit, Unparsed, columns, labels};
use met_host::{Host, Targets};

use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable, sysfs};

columns! { COLUMNS:
    TEMPERATURE = Column::gauge("temperature", Unit::Celsius, MILLI, "temperature of the zone").across(Across::Max).usual(),
    TEMPERATURE_CRITICAL = Column::gauge("temperature_critical", Unit::Celsius, MILLI, "temperature at which the machine is shut down").across(Across::Max),
}

labels! { LABELS: ZONE = "zone", TYPE = "type" }

pub static TABLE: Table =
    Table { name: "thermal", subject: "a thermal zone", labels: LABELS, columns: COLUMNS };

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "thermal",
    help: "temperatures of thermal zones",
    // A zone may be a program of the firmware, which talks to a slow bus.
    pace: Pace::Apart(Duration::from_secs(5)),
    tables: &[&TABLE],
    charts: &[MachineChart::new(
        "thermal",
        ["Temperature, zones", "temperature, zone"],
        ChartUnit::Celsius,
        &TABLE,
        &[TEMPERATURE],
    )],
    options: &[],
    open,
};

pub(crate) static SENSOR: Sensor = Sensor {
    table: &TABLE,
    name: |row| format!("zone {} {}", row.label(label::ZONE), row.label(label::TYPE)),
    critical: Some(TEMPERATURE_CRITICAL),
};

const FOLDER: &str = "/sys/class/thermal";
const ZONES_MAX: usize = 256;
const TRIPS_MAX: u32 = 12;

struct Thermal {
    host: Host,
    /// The file of each zone, and where it is critical.
    zones: Vec<(String, i64)>,
    labels: Vec<Vec<String>>,
    /// Critical temperatures that could not be parsed.
    unparsed: Unparsed,
    buffer: Vec<u8>,
}

fn open(host: &Host, _: &Options) -> Opened {
    let (mut zones, mut labels, mut buffer) = (Vec::new(), Vec::new(), Vec::new());
    let mut unparsed = Unparsed::default();
    for name in sysfs::names(host, FOLDER) {
        let Some(number) = name.strip_prefix("thermal_zone") else { continue };
        let folder = format!("{FOLDER}/{name}");
        let kind = sysfs::text(host, &format!("{folder}/type"), &mut buffer).unwrap_or_default();
        labels.push(vec![number.to_owned(), kind]);
        zones.push((format!("{folder}/temp"), critical(host, &folder, &mut buffer, &mut unparsed)));
        if zones.len() == ZONES_MAX {
            break;
        }
    }
    match zones.is_empty() {
        true => Err(Unavailable::Absent("no thermal zone".to_owned())),
        false => Ok(Box::new(Thermal { host: host.clone(), zones, labels, unparsed, buffer })),
    }
}

fn critical(host: &Host, folder: &str, buffer: &mut Vec<u8>, unparsed: &mut Unparsed) -> i64 {
    for trip in 0..TRIPS_MAX {
        match sysfs::text(host, &format!("{folder}/trip_point_{trip}_type"), buffer).as_deref() {
            Some("critical") => {
                let path = format!("{folder}/trip_point_{trip}_temp");
                return sysfs::reading(host, &path, buffer, unparsed).unwrap_or(MISSING);
            }
            Some(_) => {}
            None => break,
        }
    }
    MISSING
}

impl Source for Thermal {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        batch.unparsed.take_from(&mut self.unparsed);
        let mut first_error = None;
        for (part, (path, critical)) in (0..).zip(&self.zones) {
            match sysfs::reading(&self.host, path, &mut self.buffer, &mut batch.unparsed) {
                Ok(MISSING) => {}
                Ok(temperature) => {
                    let cells = batch.push_part(Subject::Node, part);
                    (cells[TEMPERATURE], cells[TEMPERATURE_CRITICAL]) = (temperature, *critical);
                }
                // A zone that is switched off refuses to be read.
                Err(error) => {
                    first_error.get_or_insert(ReadError::Retry { path: path.clone(), error });
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    #[test]
    fn eight_zones_are_eight_rows_and_the_one_that_is_switched_off_has_none() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/sensors.txt"));
        expect![[r#"
            Node 0 x86_pkg_temp
              temperature 45000
              temperature_critical 105000
            Node 1 x86_pkg_temp
              temperature 47500
            Node 2 acpitz
              temperature 28000
            Node 3 pch_lewisburg
              temperature 51000
            Node 4 acpitz
              temperature -2000
            Node 6 nvme
              temperature 39850
            Node 7 B0D4
              temperature 44000
            1 reading could not be parsed (first: /sys/class/thermal/thermal_zone5/temp)
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn a_critical_temperature_that_is_no_number_is_counted() {
        let machine = Machine::new(
            "-- proc/stat --\n-- sys/class/thermal/thermal_zone0/temp --\n45000\n\
             -- sys/class/thermal/thermal_zone0/trip_point_0_type --\ncritical\n\
             -- sys/class/thermal/thermal_zone0/trip_point_0_temp --\n105x00\n",
        );
        expect![[r#"
            Node 0 
              temperature 45000
            1 reading could not be parsed (first: /sys/class/thermal/thermal_zone0/trip_point_0_temp)
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    proptest! {
        #[test]
        fn any_text_in_a_zone_is_a_number_or_no_row(text in "\\PC{0,20}") {
            let machine = Machine::new("-- proc/stat --\n-- sys/class/thermal/thermal_zone0/temp --\n");
            std::fs::write(machine.path("/sys/class/thermal/thermal_zone0/temp"), &text).unwrap();
            let mut source = open(&machine.host, &Options::default()).unwrap();
            let mut batches = [Batch::new(&TABLE)];
            prop_assert!(source.read(&Targets::default(), &SLOW, &mut batches).is_ok());
            let number = text.trim().parse::<i64>().ok().filter(|_| !text.trim().starts_with('+'));
            prop_assert_eq!(batches[0].rows().next().map(|(_, cells)| cells[TEMPERATURE]), number);
        }
    }
}
