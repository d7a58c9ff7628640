//! Sensors of the board: power, energy and temperature of whatever has a driver for them.

use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::node_block::Sensor;
use met_core::table::{MICRO, MILLI};
use met_core::{Across, Batch, Column, Subject, Table, Unit, columns, labels};
use met_host::{Host, Targets};

use crate::meter::{self, Meter};
use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable, sysfs};

columns! { COLUMNS:
    POWER = Column::gauge("power", Unit::Watts, MICRO, "power drawn, the mean where the sensor has one").usual(),
    ENERGY = Column::counter("energy", Unit::Joules, MICRO, "energy used since the sensor was started").usual(),
    TEMPERATURE = Column::gauge("temperature", Unit::Celsius, MILLI, "temperature").across(Across::Max).usual(),
    TEMPERATURE_CRITICAL = Column::gauge("temperature_critical", Unit::Celsius, MILLI, "critical temperature of the part").across(Across::Max),
}

labels! { LABELS: CHIP = "chip", SENSOR = "sensor", NAME = "name" }

pub static TABLE: Table = Table {
    name: "hwmon",
    subject: "a sensor of power, energy or temperature",
    labels: LABELS,
    columns: COLUMNS,
};

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "hwmon",
    help: "power, energy and temperature sensors of the board",
    // Some are at the end of a slow bus, some make a disk answer.
    pace: Pace::Apart(Duration::from_secs(5)),
    tables: &[&TABLE],
    charts: &[
        MachineChart::new("hwmon-power", ["Power, sensors", "power"], ChartUnit::Watts, &TABLE, &[POWER]),
        MachineChart::new(
            "temperature",
            ["Temperature", "temperature"],
            ChartUnit::Celsius,
            &TABLE,
            &[TEMPERATURE],
        ),
    ],
    options: &[],
    open,
};

pub(crate) static SENSOR: Sensor = Sensor {
    table: &TABLE,
    name: |row| format!("{} {}", row.label(label::CHIP), row.label(label::NAME)),
    critical: Some(TEMPERATURE_CRITICAL),
};

pub(crate) static METER: Meter = Meter {
    source: &SPEC,
    name: "power meter",
    // The one chip whose power is that of the whole node.
    scope: |_, labels| meter::NODE.filter(|_| labels.first().is_some_and(|chip| chip == "power_meter")),
    is_slow: true,
    is_coarse: false,
};

const FOLDER: &str = "/sys/class/hwmon";
const SENSORS_MAX: usize = 512;
/// GPUs have a source of their own.
const GPUS: [&str; 4] = ["amdgpu", "i915", "xe", "nouveau"];

struct Hwmon {
    host: Host,
    /// The files of each sensor and the columns they fill.
    sensors: Vec<Vec<(String, usize)>>,
    labels: Vec<Vec<String>>,
    buffer: Vec<u8>,
}

fn open(host: &Host, _: &Options) -> Opened {
    let (mut sensors, mut labels, mut buffer) = (Vec::new(), Vec::new(), Vec::new());
    for chip in sysfs::names(host, FOLDER) {
        let path = |file: &str| format!("{FOLDER}/{chip}/{file}");
        let name = sysfs::text(host, &path("name"), &mut buffer).unwrap_or_else(|| chip.clone());
        if GPUS.contains(&name.as_str()) {
            continue;
        }
        for (sensor, files) in sensors_of(&sysfs::names(host, &path(""))) {
            if sensors.len() == SENSORS_MAX {
                break;
            }
            let named = sysfs::text(host, &path(&format!("{sensor}_label")), &mut buffer);
            labels.push(vec![
                name.clone(),
                format!("{chip}/{sensor}"),
                named.unwrap_or_else(|| sensor.clone()),
            ]);
            sensors.push(files.into_iter().map(|(file, column)| (path(&file), column)).collect());
        }
    }
    match sensors.is_empty() {
        true => Err(Unavailable::Absent("no sensors found".to_owned())),
        false => Ok(Box::new(Hwmon { host: host.clone(), sensors, labels, buffer })),
    }
}

/// The sensors of a chip by the names of its files, each with the files that are read.
fn sensors_of(files: &[String]) -> Vec<(String, Vec<(String, usize)>)> {
    let mut found: Vec<(String, Vec<(String, usize)>)> = Vec::new();
    for file in files {
        let Some((sensor, what)) = file.split_once('_') else { continue };
        let column = match (sensor.trim_end_matches(|c: char| c.is_ascii_digit()), what) {
            // A mean over a while says more than a moment.
            ("power", "average") => POWER,
            ("power", "input") if !files.contains(&format!("{sensor}_average")) => POWER,
            ("energy", "input") => ENERGY,
            ("temp", "input") => TEMPERATURE,
            ("temp", "crit") => TEMPERATURE_CRITICAL,
            _ => continue,
        };
        match found.iter_mut().find(|(known, _)| known == sensor) {
            Some((_, known)) => known.push((file.clone(), column)),
            None => found.push((sensor.to_owned(), vec![(file.clone(), column)])),
        }
    }
    // A limit without a reading is no sensor.
    found.retain(|(_, files)| files.iter().any(|(_, column)| *column != TEMPERATURE_CRITICAL));
    found
}

impl Source for Hwmon {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        let mut first_error = None;
        let mut unparsed = std::mem::take(&mut batch.unparsed);
        for (part, files) in (0..).zip(&self.sensors) {
            let cells = batch.push_part(Subject::Node, part);
            for (path, column) in files {
                match sysfs::reading(&self.host, path, &mut self.buffer, &mut unparsed) {
                    Ok(cell) => cells[*column] = cell,
                    // A sensor without its device (an empty slot) refuses to be read, and the others do not.
                    Err(error) => {
                        first_error.get_or_insert(ReadError::Retry { path: path.clone(), error });
                    }
                }
            }
            if cells.iter().all(|&cell| cell == met_core::MISSING) {
                batch.pop();
            }
        }
        batch.unparsed = unparsed;
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
    fn sensors_of_power_energy_and_temperature_are_rows_and_gpus_are_not() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/sensors.txt"));
        expect![[r#"
            Node coretemp hwmon0/temp1 Package id 0
              temperature 46000
              temperature_critical 100000
            Node coretemp hwmon0/temp2 Core 0
              temperature 44000
            Node power_meter hwmon1/power1 power1
              power 231000000
            Node amd_energy hwmon2/energy1 Esocket0
              energy 123456789
            Node ina226 hwmon10/power1 power1
              power 12500000
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn a_sensor_with_invalid_values_has_no_row() {
        let machine = Machine::new(
            "-- proc/stat --\n-- sys/class/hwmon/hwmon0/temp1_input --\nhot\n-- sys/class/hwmon/hwmon0/temp2_input --\n-5000\n",
        );
        expect![[r#"
            Node hwmon0 hwmon0/temp2 temp2
              temperature -5000
            1 reading could not be parsed (first: /sys/class/hwmon/hwmon0/temp1_input)
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    proptest! {
        #[test]
        fn any_names_are_sensors_or_none(names in prop::collection::vec("[a-z0-9_]{0,12}", 0..20)) {
            prop_assert!(sensors_of(&names).iter().all(|(_, files)| !files.is_empty()));
        }
    }
}
