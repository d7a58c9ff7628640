//! The board's controller (BMC) by IPMI: power by DCMI, and its sensors of power and temperature.
//!
//! Asked through the kernel's device, or by a program that the operator chose. Either may take seconds.

mod bmc;
mod sdr;

use std::io;
use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::table::MILLI;
use met_core::{Across, Batch, Column, MISSING, Subject, Table, Unit, columns, labels};
use met_host::{Host, Targets, parse};

use self::bmc::{Ask, Completion, Device};
use self::sdr::{Quantity, Sensor};
use crate::command;
use crate::meter::{self, Meter};
use crate::{
    Opened, Options, Pace, ReadError, Shortfall, Source, SourceOption, SourceSpec, TickInfo, Unavailable,
    sysfs,
};

columns! { COLUMNS:
    POWER = Column::gauge("power", Unit::Watts, MILLI, "power drawn now").usual(),
    POWER_AVERAGE = Column::gauge("power_average", Unit::Watts, MILLI, "mean power over the controller's own period"),
    POWER_MIN = Column::gauge("power_min", Unit::Watts, MILLI, "lowest power in that period").across(Across::Max),
    POWER_MAX = Column::gauge("power_max", Unit::Watts, MILLI, "highest power in that period").across(Across::Max),
    TEMPERATURE = Column::gauge("temperature", Unit::Celsius, MILLI, "temperature").across(Across::Max).usual(),
}

labels! { LABELS: SENSOR = "sensor" }

pub static TABLE: Table = Table {
    name: "ipmi",
    subject: "a meter of the management controller (BMC): `node` is the whole machine, others are its \
        sensors",
    labels: LABELS,
    columns: COLUMNS,
};

/// Instead of the kernel's device.
pub const COMMAND: SourceOption = SourceOption::text(
    "command",
    "a program that prints the power of the node, with its arguments, instead of the IPMI device: `ipmi-dcmi --get-system-power-statistics`, `ipmitool dcmi power reading`, a script; run without a shell",
)
.checked(|text| match text.trim().is_empty() {
    true => Err("a program is needed".to_owned()),
    false => Ok(()),
});

pub static SPEC: SourceSpec = SourceSpec {
    name: "ipmi",
    help: "power of the node and temperatures, from the management controller (BMC)",
    pace: Pace::Apart(Duration::from_secs(10)),
    tables: &[&TABLE],
    charts: &[
        MachineChart::new("ipmi-power", ["Power, IPMI", "power, IPMI"], ChartUnit::Watts, &TABLE, &[POWER])
            .main(),
        MachineChart::new(
            "ipmi-temperature",
            ["Temperature, IPMI", "temperature, IPMI"],
            ChartUnit::Celsius,
            &TABLE,
            &[TEMPERATURE],
        ),
    ],
    options: &[COMMAND],
    open,
};

pub(crate) static METER: Meter = Meter {
    source: &SPEC,
    name: "IPMI",
    scope: |_, labels| meter::NODE.filter(|_| labels.first().is_some_and(|label| label == "node")),
    is_slow: true,
    is_coarse: false,
};

const DEVICES: [&str; 3] = ["/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0"];
const NEED: &str = "root, or: sources.ipmi.command with a program that has access";
const REMEDY: &str =
    "sources: {ipmi: {command: PROGRAM}}    (in met.yaml: a vendor's program that prints watts)";
/// A list of sensors has hundreds of records: a list that is not complete after this many requests is given up.
const LIST_TRIES: u8 = 20;
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

fn open(host: &Host, options: &Options) -> Opened {
    let labels = vec![vec!["node".to_owned()]];
    if let Some(command) = options.value(&SPEC, &COMMAND) {
        let words = command.split_whitespace().map(str::to_owned).collect();
        return Ok(Box::new(Program { words, labels }));
    }
    let Some(path) = DEVICES.iter().find(|path| sysfs::exists(host, path)) else {
        return Err(Unavailable::Absent("no IPMI device".to_owned()));
    };
    match Device::open(&host.root().join(path.trim_start_matches('/'))) {
        Ok(device) => Ok(Box::new(Controller::new(Box::new(device)))),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Unavailable::Denied { path: (*path).to_owned(), need: NEED })
        }
        Err(error) => Err(Unavailable::Absent(format!("{path}: {error}"))),
    }
}

/// Asked by the kernel's device.
struct Controller {
    ask: Box<dyn Ask>,
    /// The completion code by which it said for good that it does not measure the node's power.
    no_dcmi: Option<u8>,
    /// Found at the first reading, which takes long.
    sensors: Option<Vec<Sensor>>,
    /// How often their list could not be read.
    list_failures: u8,
    labels: Vec<Vec<String>>,
}

impl Controller {
    fn new(ask: Box<dyn Ask>) -> Controller {
        let labels = vec![vec!["node".to_owned()]];
        Controller { ask, no_dcmi: None, sensors: None, list_failures: 0, labels }
    }

    /// The power of the node, unless it does not measure that now, or never.
    fn power(&mut self) -> io::Result<Option<Power>> {
        if self.no_dcmi.is_some() {
            return Ok(None);
        }
        let question = [bmc::DCMI, 1, 0, 0];
        let reply = self.ask.ask(bmc::GROUP_EXTENSION, bmc::POWER_READING, &question)?;
        match bmc::complete(&reply) {
            Completion::Done(answer) => power_reading(answer),
            Completion::Later(code) => Err(bmc::not_now(code)),
            Completion::Never(code) => {
                self.no_dcmi = Some(code);
                Ok(None)
            }
        }
    }
}

impl Source for Controller {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        let retry = |error| ReadError::Retry { path: "IPMI".to_owned(), error };
        // Each on its own: a controller that is too busy for one question may answer the next.
        let mut first_error = None;
        match self.power() {
            Ok(power) => power.into_iter().for_each(|power| power.fill(batch.push_part(Subject::Node, 0))),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(retry(error)),
            Err(error) => first_error = Some(retry(error)),
        }
        if self.sensors.is_none() {
            match sdr::sensors(self.ask.as_mut()) {
                Ok(found) => {
                    self.labels.extend(found.iter().map(|sensor| vec![sensor.name.clone()]));
                    self.sensors = Some(found);
                }
                Err(_) if self.list_failures >= LIST_TRIES => self.sensors = Some(Vec::new()),
                Err(error) => {
                    self.list_failures += 1;
                    return Err(first_error.unwrap_or_else(|| retry(error)));
                }
            }
        }
        for (part, sensor) in (1..).zip(self.sensors.iter().flatten()) {
            let column = if sensor.quantity == Quantity::Watts { POWER } else { TEMPERATURE };
            match self.ask.ask(bmc::SENSOR_EVENT, bmc::SENSOR_READING, &[sensor.number]) {
                Ok(reply) => {
                    if let Some(value) = sensor.value(&reply) {
                        batch.push_part(Subject::Node, part)[column] = value;
                    }
                }
                Err(error) => drop(first_error.get_or_insert(retry(error))),
            }
        }
        if let Some(shortfall) = self.shortfall().filter(|_| self.sensors.as_ref().is_some_and(Vec::is_empty))
        {
            return Err(ReadError::Gone { why: shortfall.detail });
        }
        first_error.map_or(Ok(()), Err)
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }

    fn shortfall(&self) -> Option<Shortfall> {
        let code = self.no_dcmi?;
        let sensors = self.sensors.as_ref().map_or(0, Vec::len);
        let detail = format!(
            "the controller does not report the power of the node (DCMI, code {code:#04x}); sensors of \
             power and \
             temperature: {sensors}"
        );
        Some(Shortfall { detail, remedy: Some(REMEDY.to_owned()) })
    }
}

/// Asked by a program.
struct Program {
    words: Vec<String>,
    labels: Vec<Vec<String>>,
}

impl Source for Program {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        let retry = |error| ReadError::Retry { path: self.words.join(" "), error };
        let output = command::output_of(&self.words, COMMAND_TIMEOUT).map_err(retry)?;
        let power = printed_power(&output);
        if power == Power::UNKNOWN {
            return Err(retry(io::Error::other("it printed no power in watts")));
        }
        power.fill(batch.push_part(Subject::Node, 0));
        Ok(())
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }
}

/// In milliwatts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Power {
    now: i64,
    average: i64,
    min: i64,
    max: i64,
}

impl Power {
    const UNKNOWN: Power = Power { now: MISSING, average: MISSING, min: MISSING, max: MISSING };

    fn fill(self, cells: &mut [i64]) {
        cells[POWER] = self.now;
        cells[POWER_AVERAGE] = self.average;
        cells[POWER_MIN] = self.min;
        cells[POWER_MAX] = self.max;
    }
}

/// The answer to Get Power Reading: group, four powers in watts, a time stamp, the period in milliseconds, and
/// whether it measures at all. Nothing where it does not.
fn power_reading(answer: &[u8]) -> io::Result<Option<Power>> {
    const LENGTH_BYTES: usize = 18;
    const MEASURES: u8 = 0x40;
    let Some(answer) = answer.first_chunk::<LENGTH_BYTES>().filter(|answer| answer[0] == bmc::DCMI) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "malformed reply to the power request"));
    };
    let watts = |index: usize| i64::from(u16::from_le_bytes([answer[index], answer[index + 1]])) * 1000;
    let state = answer[LENGTH_BYTES - 1];
    // A machine that runs draws power: 0 is a controller without a meter.
    let power = Power { now: watts(1), min: watts(3), max: watts(5), average: watts(7) };
    Ok((state & MEASURES != 0 && power.now > 0).then_some(power))
}

/// What ipmi-dcmi, ipmitool, ipmi-oem and scripts print: lines of `Current Power : 220 Watts`, or a number.
fn printed_power(text: &[u8]) -> Power {
    let mut power = Power::UNKNOWN;
    for line in parse::lines(text).take(1000) {
        let text = String::from_utf8_lossy(line).to_ascii_lowercase();
        let (key, value) = text.rsplit_once([':', '|', '=']).unwrap_or(("", &text));
        let mut words = value.split_whitespace();
        let Some(number) = words.next() else { continue };
        let (number, glued) = number.split_at(number.trim_end_matches(char::is_alphabetic).len());
        let unit = if glued.is_empty() { words.next().unwrap_or("") } else { glued };
        // A number without a unit is in watts if it is alone on its line or called a power; `Power supplies: 2` is not.
        let is_power = ["", "power", "watts"].contains(&key.split_whitespace().last().unwrap_or(""));
        let digits = match unit {
            "w" | "watt" | "watts" => 3,
            "kw" | "kilowatt" | "kilowatts" => 6,
            "mw" | "milliwatt" | "milliwatts" => 0,
            "" if is_power => 3,
            _ => continue,
        };
        let milliwatts = crate::node::decimal(number.as_bytes(), digits);
        if milliwatts < 0 {
            continue;
        }
        let slot = if key.contains("average") {
            &mut power.average
        } else if key.contains("minimum") || key.contains("lowest") {
            &mut power.min
        } else if key.contains("maximum") || key.contains("peak") || key.contains("highest") {
            &mut power.max
        } else {
            &mut power.now
        };
        // Of several lines the first is the one for the whole.
        *slot = if *slot == MISSING { milliwatts } else { *slot };
    }
    power
}

/// For fuzz/: each answer is a length and that many bytes; further requests get none.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    struct Script(Vec<u8>);
    impl Ask for Script {
        fn ask(&mut self, _: u8, _: u8, _: &[u8]) -> io::Result<Vec<u8>> {
            let length = usize::from(self.0.pop().ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(self.0.split_off(self.0.len().saturating_sub(length)))
        }
    }
    let _ = printed_power(bytes);
    let ask = Box::new(Script(bytes.to_vec()));
    let mut controller = Controller::new(ask);
    for _ in 0..3 {
        let mut batches = [Batch::new(&TABLE)];
        let _ = controller.read(&Targets::default(), &TickInfo::default(), &mut batches);
        let parts = batches[0].rows().map(|(row, _)| row.part as usize);
        assert!(parts.max().is_none_or(|part| part < controller.labels.len()), "a row without a name");
    }
}

#[cfg(test)]
#[path = "ipmi/tests.rs"]
mod tests;
