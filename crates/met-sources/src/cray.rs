//! Cray pm_counters: the blade's own meters of the node, its processors, memory and GPUs.

use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::energy::Scope;
use met_core::table::{MICRO, MILLI};
use met_core::{Batch, Column, MISSING, Subject, Table, Unit, Unparsed, columns, labels};
use met_host::{Dir, Host, KeptFile, Share, Targets, parse};

use crate::meter::{self, Meter};
use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable, sysfs};

columns! { COLUMNS:
    POWER = Column::gauge("power", Unit::Watts, MILLI, "power drawn").usual(),
    POWER_CAP = Column::gauge("power_cap", Unit::Watts, MILLI, "power cap; 0 if there is none"),
    ENERGY = Column::counter("energy", Unit::Joules, MICRO, "energy used since the blade's controller was started").usual(),
}

labels! { LABELS: COMPONENT = "component" }

pub static TABLE: Table = Table {
    name: "cray",
    subject: "a meter of a Cray blade: the whole node, or a part of it",
    labels: LABELS,
    columns: COLUMNS,
};

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "cray",
    help: "power and energy of a Cray node, its processors, memory and GPUs",
    pace: Pace::Every(Duration::from_secs(1)),
    tables: &[&TABLE],
    charts: &[MachineChart::new("cray-power", ["Power, Cray", "power"], ChartUnit::Watts, &TABLE, &[POWER])],
    options: &[],
    open,
};

pub(crate) static METER: Meter = Meter {
    source: &SPEC,
    name: "Cray pm_counters",
    // GPUs have a ledger of their own.
    scope: |_, labels| match labels.first()?.as_str() {
        "node" => meter::NODE,
        "cpu" => Some(Scope::Package),
        "memory" => Some(Scope::Memory),
        _ => None,
    },
    is_slow: false,
    is_coarse: false,
};

const FOLDER: &str = "/sys/cray/pm_counters";
/// The meters are written ten times a second: readings of one writing belong together.
const TRIES: usize = 3;

struct Cray {
    host: Host,
    dir: Dir,
    meters: Vec<(u32, KeptFile, String, usize)>,
    labels: Vec<Vec<String>>,
    freshness: Option<i64>,
    startup: Option<i64>,
    cells: Vec<i64>,
    buffer: Vec<u8>,
}

fn open(host: &Host, _: &Options) -> Opened {
    let dir = host
        .open_dir(FOLDER)
        .map_err(|_| Unavailable::Absent("no pm_counters: not a Cray node".to_owned()))?;
    let (mut meters, mut labels) = (Vec::new(), Vec::<Vec<String>>::new());
    for name in sysfs::names(host, FOLDER) {
        let Some((component, column)) = meter(&name) else { continue };
        let Ok(file) = dir.open_kept(name.as_bytes(), host.budget(), Share::First) else { continue };
        let known = labels.iter().position(|labels| labels[0] == component);
        let part = known.unwrap_or_else(|| {
            labels.push(vec![component.to_owned()]);
            labels.len() - 1
        });
        meters.push((part as u32, file, name, column));
    }
    if meters.is_empty() {
        let path = FOLDER.to_owned();
        return Err(Unavailable::Denied { path, need: "a kernel of Cray and its blade controller" });
    }
    let cells = vec![MISSING; labels.len() * COLUMNS.len()];
    let host = host.clone();
    Ok(Box::new(Cray {
        host,
        dir,
        meters,
        labels,
        freshness: None,
        startup: None,
        cells,
        buffer: Vec::new(),
    }))
}

/// `power`, `cpu_energy`, `accel0_power_cap`: of what, and which column.
fn meter(name: &str) -> Option<(&str, usize)> {
    for (what, column) in [("power_cap", POWER_CAP), ("power", POWER), ("energy", ENERGY)] {
        if name == what {
            return Some(("node", column));
        }
        if let Some(component) = name.strip_suffix(what).and_then(|rest| rest.strip_suffix('_')) {
            return Some((component, column)).filter(|(component, _)| !component.is_empty());
        }
    }
    None
}

impl Source for Cray {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        let retry = |name: &str, error| ReadError::Retry { path: format!("{FOLDER}/{name}"), error };
        let mut seen = MISSING;
        for _ in 0..TRIES {
            seen = self.number("freshness").map_err(|error| retry("freshness", error))?;
            self.read_meters(&mut batch.unparsed)?;
            if self.number("freshness").map_err(|error| retry("freshness", error))? == seen {
                break;
            }
        }
        // A controller that writes no more leaves its last figures behind for ever.
        if seen != MISSING && self.freshness.replace(seen) == Some(seen) {
            let error = std::io::Error::other("the controller of the blade has written nothing new");
            return Err(retry("freshness", error));
        }
        let startup = self.number("startup").map_err(|error| retry("startup", error))?;
        // Its counters began again, wherever they are now.
        let restarted = self.startup.replace(startup).is_some_and(|before| before != startup);
        for (part, cells) in (0..).zip(self.cells.chunks_exact(COLUMNS.len())) {
            let row = batch.push_part(Subject::Node, part);
            row.copy_from_slice(cells);
            if restarted {
                row[ENERGY] = MISSING;
            }
        }
        Ok(())
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }
}

impl Cray {
    fn number(&mut self, name: &str) -> std::io::Result<i64> {
        sysfs::cell(&self.host, &format!("{FOLDER}/{name}"), &mut self.buffer)
    }

    fn read_meters(&mut self, unparsed: &mut Unparsed) -> Result<(), ReadError> {
        self.cells.fill(MISSING);
        let mut first_error = None;
        for (part, file, name, column) in &self.meters {
            match file.read(&self.dir, name.as_bytes(), &mut self.buffer) {
                Ok(()) => {
                    let cell = reading(&self.buffer, *column);
                    unparsed.expect(cell != MISSING, || format!("{FOLDER}/{name}"));
                    self.cells[*part as usize * COLUMNS.len() + column] = cell;
                }
                Err(error) => {
                    let path = format!("{FOLDER}/{name}");
                    first_error.get_or_insert(ReadError::Retry { path, error });
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }
}

/// `245 W 1700000000123456 us`, `98765 J …`; the time is that of the writing; freshness is more exact.
fn reading(text: &[u8], column: usize) -> i64 {
    let mut fields = parse::fields(text);
    let value = fields.next().map_or(MISSING, parse::cell);
    let (unit, factor) = if column == ENERGY { (&b"J"[..], 1_000_000) } else { (&b"W"[..], 1000) };
    match fields.next() {
        Some(word) if word != unit => MISSING,
        _ => parse::scaled(value, factor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    fn machine() -> Machine {
        Machine::new(include_str!("../../../fixtures/hosts/cray.txt"))
    }

    #[test]
    fn the_node_and_its_parts_are_rows() {
        expect![[r#"
            Node accel0
              power 90000
              power_cap 560000
              energy 500000000000
            Node accel1
              power 91000
              energy 510000000000
            Node cpu
              power 110000
              energy 300000000000
            Node node
              power 412000
              power_cap 0
              energy 1234567000000
            Node memory
              power 35000
              energy 80000000000
        "#]]
        .assert_eq(&machine().read(&SPEC, SLOW));
    }

    #[test]
    fn figures_that_are_not_written_any_more_are_not_reused() {
        let machine = machine();
        let mut source = open(&machine.host, &Options::default()).unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(machine.path(&format!("{FOLDER}/{name}")), text).unwrap();
        let mut look = || {
            let mut batches = [Batch::new(&TABLE)];
            let result = source.read(&Targets::default(), &SLOW, &mut batches);
            let node = source.labels().iter().position(|labels| labels[0] == "node");
            let mut rows = batches[0].rows();
            let energy =
                rows.find(|(row, _)| Some(row.part as usize) == node).map(|(_, cells)| cells[ENERGY]);
            (energy, result.is_ok())
        };
        assert_eq!(look(), (Some(1_234_567_000_000), true));
        assert_eq!(look(), (None, false), "the same freshness: nothing was written");
        write("freshness", "1002\n");
        write("energy", "1234700 J 1700000001123456 us\n");
        assert_eq!(look(), (Some(1_234_700_000_000), true));
        // The controller was restarted, and its counter is higher than before all the same.
        write("freshness", "1003\n");
        write("startup", "1700000002000000\n");
        write("energy", "2000000 J 1700000002123456 us\n");
        assert_eq!(look(), (Some(MISSING), true));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_reading_or_none(text in prop::collection::vec(any::<u8>(), 0..40), name in "[a-z0-9_]{0,16}") {
            let _ = (reading(&text, POWER), reading(&text, ENERGY), meter(&name));
        }

        #[test]
        fn printed_readings_come_back(watts in 0..1i64 << 40) {
            prop_assert_eq!(reading(format!("{watts} W 17 us\n").as_bytes(), POWER), watts * 1000);
            prop_assert_eq!(reading(format!("{watts} J 17 us\n").as_bytes(), POWER), MISSING);
        }
    }
}
