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

/// How much a page for Prometheus shows. Each selection has all columns of those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selection {
    /// Enough to see that a job works, and what it costs.
    Minimal,
    /// What is plotted, and what the alerts and recording rules need.
    #[default]
    Usual,
    All,
}

impl Selection {
    pub const NAMES: &'static [&'static str] = &["minimal", "usual", "all"];

    pub fn name(self) -> &'static str {
        Selection::NAMES[self as usize]
    }

    pub fn from_name(name: &str) -> Option<Selection> {
        [Selection::Minimal, Selection::Usual, Selection::All].into_iter().find(|one| one.name() == name)
    }

    pub fn has(self, column: &Column) -> bool {
        column.selection <= self
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
    pub feeds: Option<usize>,
    /// The same of the table of details.
    pub details: Option<usize>,
    /// The smallest selection that has it.
    pub selection: Selection,
}

pub const NANO: f64 = 1e-9;
pub const MICRO: f64 = 1e-6;
pub const MILLI: f64 = 1e-3;
pub const ONE: f64 = 1.0;
pub const MEGA: f64 = 1e6;

impl Column {
    pub const fn counter(name: &'static str, unit: Unit, scale: f64, help: &'static str) -> Column {
        Column {
            name,
            kind: Kind::Counter,
            unit,
            scale,
            across: Across::Sum,
            help,
            feeds: None,
            details: None,
            selection: Selection::All,
        }
    }

    pub const fn gauge(name: &'static str, unit: Unit, scale: f64, help: &'static str) -> Column {
        Column { kind: Kind::Gauge, ..Column::counter(name, unit, scale, help) }
    }

    pub const fn across(self, across: Across) -> Column {
        Column { across, ..self }
    }

    /// `job_column` is a constant of `job_table`.
    pub const fn feeds(self, job_column: usize) -> Column {
        Column { feeds: Some(job_column), ..self }
    }

    /// `detail` is a constant of `detail_table`.
    pub const fn details(self, detail: usize) -> Column {
        Column { details: Some(detail), ..self }
    }

    pub const fn usual(self) -> Column {
        Column { selection: Selection::Usual, ..self }
    }

    pub const fn minimal(self) -> Column {
        Column { selection: Selection::Minimal, ..self }
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

    /// The cell that [`Column::scaled`] made this of; `None` if no cell is. The same integer comes back as
    /// long as no two share one float: up to 2^52 of any sub-unit, up to 2^53 of whole units. Beyond, it is the
    /// nearest that a float can say, wrong by at most one part in 2^52.
    pub fn unscaled(&self, value: f64) -> Option<i64> {
        let cell = if self.scale < 1.0 {
            let factor = (1.0 / self.scale).round();
            // The product and what rounding took from it: near 2^53 one alone is off by one.
            let product = value * factor;
            let rest = value.mul_add(factor, -product);
            let whole = product.round();
            whole + ((product - whole) + rest).round()
        } else {
            (value / self.scale).round()
        };
        // The lowest i64 means missing, and 2^63 is the first float that is none.
        (cell > i64::MIN as f64 && cell < i64::MAX as f64).then_some(cell as i64)
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
    /// For names that were read from a file or a message; code uses the constants of [`columns!`].
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The first column of this kind and unit: what a meter reads, before its means and limits.
    pub fn reading(&self, kind: Kind, unit: Unit) -> Option<usize> {
        self.columns.iter().position(|column| column.kind == kind && column.unit == unit)
    }

    /// Whether its rows are parts of jobs, such as processes, and on no page: jobs have their sums.
    pub fn is_part_of_jobs(&self) -> bool {
        self.labels.iter().any(|label| matches!(*label, "pid" | "cgroup"))
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

/// Declares the labels of a table together with the constants that index them, in a module `label`.
#[macro_export]
macro_rules! labels {
    ($list:ident: $($(#[$doc:meta])* $index:ident = $name:literal),* $(,)?) => {
        pub static $list: &[&str] = &[$($name),*];
        pub mod label {
            #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
            enum LabelIndex { $($index),* }
            $($(#[$doc])* #[allow(dead_code)] pub const $index: usize = LabelIndex::$index as usize;)*
        }
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

    #[test]
    fn what_is_no_cell_is_none() {
        let bytes = Column::gauge("memory", Unit::Bytes, ONE, "");
        for value in [f64::NAN, f64::INFINITY, 1e19, -1e19, i64::MIN as f64, i64::MAX as f64] {
            assert_eq!(bytes.unscaled(value), None, "{value}");
        }
        assert_eq!(bytes.unscaled(-0.0), Some(0));
    }

    #[test]
    fn beyond_what_a_float_can_say_the_nearest_comes_back() {
        let seconds = Column::counter("cpu", Unit::Seconds, NANO, "");
        for cell in [(1 << 53) - 1, (1 << 53) + 1, 1 << 60, i64::MAX - 1_000_000] {
            let back = seconds.unscaled(seconds.scaled(cell)).unwrap();
            assert!((back - cell).abs() as f64 <= cell as f64 * f64::EPSILON, "{cell} {back}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_cell_comes_back_from_its_float(
            cell in -(1i64 << 53)..=1 << 53,
            scale in proptest::sample::select(vec![NANO, MICRO, MILLI, ONE, MEGA]),
        ) {
            let column = Column::counter("any", Unit::Count, scale, "");
            // Thousandths of 2^53 lie closer together than floats of that size.
            let bound = if scale < ONE { 1 << 52 } else { (1 << 53) / scale as i64 };
            let cell = cell % (bound + 1);
            proptest::prop_assert_eq!(column.unscaled(column.scaled(cell)), Some(cell));
        }
    }
}
