//! What is drawn of a machine over time. Each source says it of its own tables.

use crate::node::NodeRow;
use crate::{Kind, Table, units};

/// How values are written; the script of the pages knows the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Cores,
    Bytes,
    BytesPerSecond,
    Percent,
    Watts,
    Celsius,
    Hertz,
    PerSecond,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Cores => "cores",
            Unit::Bytes => "bytes",
            Unit::BytesPerSecond => "bytes_per_second",
            Unit::Percent => "percent",
            Unit::Watts => "watts",
            Unit::Celsius => "celsius",
            Unit::Hertz => "hertz",
            Unit::PerSecond => "per_second",
        }
    }

    pub fn write(self, value: f64) -> String {
        match self {
            Unit::Cores if value > 0.0 && value < 0.01 => units::small(value),
            Unit::Cores => units::cores(value),
            Unit::Bytes => units::bytes(value),
            Unit::BytesPerSecond => units::bytes_per_second(value),
            Unit::Percent => units::percent(value),
            Unit::Watts => units::watts(value),
            Unit::Celsius => units::celsius(value),
            Unit::Hertz => units::hertz(value),
            Unit::PerSecond => units::count_per_second(value),
        }
    }

    /// In the unit that a larger value is written in: an axis has one.
    pub fn write_beside(self, value: f64, larger: f64) -> String {
        let is_scaled = matches!(self, Unit::Bytes | Unit::BytesPerSecond | Unit::PerSecond);
        let (written, mut factor) = (self.write(larger), 1.0);
        while larger / factor >= 999.5 {
            factor *= self.step();
        }
        match written.split_once(' ').filter(|_| is_scaled && factor > 1.0) {
            Some((_, unit)) => format!("{} {unit}", units::three_digits(value / factor)),
            None => self.write(value),
        }
    }

    /// From one unit to the next: KiB to MiB.
    pub fn step(self) -> f64 {
        match self {
            Unit::Bytes | Unit::BytesPerSecond => 1024.0,
            _ => 1000.0,
        }
    }
}

/// The sum of some columns of a table, one line for each of its parts.
#[derive(Clone, Copy, Debug)]
pub struct MachineChart {
    /// Names it in pages: letters, digits and hyphens.
    pub id: &'static str,
    pub title: &'static str,
    /// The title where each part has a plot of its own, before the name of the part.
    pub part_title: &'static str,
    pub unit: Unit,
    pub table: &'static Table,
    pub plus: &'static [usize],
    pub minus: Option<usize>,
    /// Also where there is room for a few.
    pub is_main: bool,
}

impl MachineChart {
    pub const fn new(
        id: &'static str,
        [title, part_title]: [&'static str; 2],
        unit: Unit,
        table: &'static Table,
        plus: &'static [usize],
    ) -> MachineChart {
        MachineChart { id, title, part_title, unit, table, plus, minus: None, is_main: false }
    }

    pub const fn minus(self, column: usize) -> MachineChart {
        MachineChart { minus: Some(column), ..self }
    }

    pub const fn main(self) -> MachineChart {
        MachineChart { is_main: true, ..self }
    }

    /// Its value in a row; `None` if one of its columns is not known.
    pub fn now(&self, row: &NodeRow) -> Option<f64> {
        let value = |&column: &usize| match row.table.columns[column].kind {
            Kind::Counter => row.rate(column),
            Kind::Gauge => row.level(column),
        };
        let sum: f64 = self.plus.iter().map(value).sum::<Option<f64>>()?;
        Some(sum - self.minus.as_ref().map_or(Some(0.0), value)?)
    }

    /// What the machine does, what it draws, what it moves, how hot it is.
    pub fn rank(&self) -> u8 {
        match self.unit {
            Unit::Cores | Unit::Bytes | Unit::Percent | Unit::Hertz => 0,
            Unit::Watts => 1,
            Unit::BytesPerSecond | Unit::PerSecond => 2,
            Unit::Celsius => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_an_axis_differ_also_where_hardly_anything_ran() {
        let labels = |top: f64| [top, top / 2.0, 0.0].map(|value| Unit::Cores.write(value));
        assert_eq!(labels(2.0), ["2", "1", "0"]);
        assert_eq!(labels(0.01), ["0.01", "0.005", "0"]);
        assert_eq!(labels(0.005), ["0.005", "0.0025", "0"]);
        assert_eq!(labels(0.00002), ["0.00002", "0.00001", "0"]);
    }

    #[test]
    fn an_axis_has_one_unit() {
        let mebibyte = 1024.0 * 1024.0;
        assert_eq!(Unit::Bytes.write_beside(0.75 * mebibyte, 1.5 * mebibyte), "0.75 MiB");
        assert_eq!(Unit::BytesPerSecond.write_beside(512.0, 1024.0), "0.50 KiB/s");
        assert_eq!(Unit::Bytes.write_beside(300.0, 600.0), "300 B");
        assert_eq!(Unit::PerSecond.write_beside(750.0, 1500.0), "0.75 k/s");
        assert_eq!(Unit::Watts.write_beside(10.0, 20.0), "10.0 W");
        assert_eq!(Unit::Cores.write_beside(0.5, 1.0), Unit::Cores.write(0.5));
    }
}
