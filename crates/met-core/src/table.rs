//! Tables: the schema of everything measured.

/// How a cell moves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while its subject lives; totals are differences.
    Counter,
    /// A level; it has a mean, a minimum and a maximum, and no total.
    Gauge,
}

/// How the rows of one job combine, and how old samples are thinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    Sum,
    Max,
    Mean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Celsius,
    Count,
    Grams,
    GramsPerKilowattHour,
    Hertz,
    Joules,
    Money,
    Ratio,
    Seconds,
    Watts,
}

impl Unit {
    /// The part of a metric's name that says its unit, with the underscore.
    pub fn suffix(self) -> &'static str {
        match self {
            Unit::Bytes => "_bytes",
            Unit::Celsius => "_celsius",
            Unit::Count => "",
            Unit::Grams => "_grams",
            Unit::GramsPerKilowattHour => "_grams_per_kilowatt_hour",
            Unit::Hertz => "_hertz",
            Unit::Joules => "_joules",
            Unit::Money => "_money",
            Unit::Ratio => "_ratio",
            Unit::Seconds => "_seconds",
            Unit::Watts => "_watts",
        }
    }
}

/// One measured quantity. Cells are integers in a fixed sub-unit; `scale` turns them into `unit`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub scale: f64,
    pub across: Across,
    pub help: &'static str,
    /// The column of the job table this one contributes to, if any.
    pub feeds: Option<&'static str>,
}

pub const NANO: f64 = 1e-9;
pub const MICRO: f64 = 1e-6;
pub const MILLI: f64 = 1e-3;
pub const ONE: f64 = 1.0;
pub const MEGA: f64 = 1e6;

impl Column {
    pub const fn counter(name: &'static str, unit: Unit, scale: f64, help: &'static str) -> Column {
        Column { name, kind: Kind::Counter, unit, scale, across: Across::Sum, help, feeds: None }
    }

    pub const fn gauge(name: &'static str, unit: Unit, scale: f64, help: &'static str) -> Column {
        Column { name, kind: Kind::Gauge, unit, scale, across: Across::Sum, help, feeds: None }
    }

    pub const fn across(self, across: Across) -> Column {
        Column { across, ..self }
    }

    pub const fn feeds(self, job_column: &'static str) -> Column {
        Column { feeds: Some(job_column), ..self }
    }

    /// The name in JSON: the Prometheus name without its prefix and `_total`.
    pub fn json_name(&self) -> String {
        format!("{}{}", self.name, self.unit.suffix())
    }

    /// The cell in the column's unit, as people and other programs read it.
    pub fn scaled(&self, cell: i64) -> f64 {
        // Dividing by the exact power of ten prints 0.7 where multiplying by 1e-9 prints 0.7000000000000001.
        if self.scale < 1.0 { cell as f64 / (1.0 / self.scale).round() } else { cell as f64 * self.scale }
    }
}

/// A family of rows with the same columns.
#[derive(Debug)]
pub struct Table {
    pub name: &'static str,
    /// What one row is, in words.
    pub subject: &'static str,
    pub labels: &'static [&'static str],
    pub columns: &'static [Column],
}

impl Table {
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    pub fn prometheus_name(&self, column: &Column) -> String {
        let total = match column.kind {
            Kind::Counter => "_total",
            Kind::Gauge => "",
        };
        format!("met_{}_{}{}{}", self.name, column.name, column.unit.suffix(), total)
    }
}

/// Declares the columns of a table together with the constants that index them, so that neither a
/// name nor a position is written twice.
#[macro_export]
macro_rules! columns {
    ($list:ident: $($index:ident = $column:expr,)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum ColumnIndex { $($index),* }
        $(#[allow(dead_code)] pub const $index: usize = ColumnIndex::$index as usize;)*
        pub static $list: &[$crate::Column] = &[$($column),*];
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    static COLUMNS: &[Column] = &[
        Column::counter("read", Unit::Bytes, ONE, "bytes read"),
        Column::gauge("memory", Unit::Bytes, ONE, "memory held"),
        Column::counter("processes", Unit::Count, ONE, "processes seen"),
    ];
    static TABLE: Table = Table { name: "job", subject: "a job", labels: &[], columns: COLUMNS };

    #[test]
    fn names_are_derived_from_the_table() {
        let names: Vec<_> = TABLE.columns.iter().map(|column| TABLE.prometheus_name(column)).collect();
        assert_eq!(names, ["met_job_read_bytes_total", "met_job_memory_bytes", "met_job_processes_total"]);
        assert_eq!(TABLE.columns[2].json_name(), "processes");
    }

    #[test]
    fn scaling_does_not_add_digits() {
        let seconds = Column::counter("cpu", Unit::Seconds, NANO, "");
        assert_eq!(seconds.scaled(700_000_000).to_string(), "0.7");
        assert_eq!(Column::gauge("cores", Unit::Count, MILLI, "").scaled(1).to_string(), "0.001");
    }
}
