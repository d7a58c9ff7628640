//! The table of what reading each source costs: a monitor must say its own price.

use met_core::table::{NANO, ONE};
use met_core::{Column, Table, Unit, columns};

columns! { COLUMNS:
    READ_CPU = Column::counter("read", Unit::Seconds, NANO, "CPU time spent in reading the source").usual(),
    BACKGROUND_CPU = Column::counter("background", Unit::Seconds, NANO, "CPU time of the source's own threads, which do the slow readings"),
    ERRORS = Column::counter("errors", Unit::Count, ONE, "readings that failed in part or whole").usual(),
    READINGS = Column::counter("readings", Unit::Count, ONE, "times the source was read").usual(),
    ROWS = Column::gauge("rows", Unit::Count, ONE, "rows of the last reading"),
    UNPARSED = Column::counter("unparsed", Unit::Count, ONE, "readings that could not be parsed and are missing"),
    SUCCESS = Column::gauge("success", Unit::Count, ONE, "1 if nothing failed in the last reading, else 0").minimal(),
}

pub static TABLE: Table = Table {
    name: "source",
    subject: "a source of measurements, and what reading it costs",
    labels: &["source"],
    columns: COLUMNS,
};
