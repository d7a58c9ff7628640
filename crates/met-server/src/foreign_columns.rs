//! Columns that OpenTelemetry's conventions and Colmet's records name by text, because their crates do not know the
//! sources: here both are known, and a name that the catalogue does not have does not compile.

use met_sinks::OTLP_CONVENTIONS;
use met_sources::has_column;
use met_wire::colmet::{At, CONTROLLER_POWER, LAYOUTS, Meaning, THERMAL, UPTIME, ZONE_ENERGY, ZONE_RANGE};

const _: () = {
    let mut at = 0;
    while at < OTLP_CONVENTIONS.len() {
        let (table, columns) = (OTLP_CONVENTIONS[at].table, OTLP_CONVENTIONS[at].columns);
        let mut column = 0;
        while column < columns.len() {
            assert!(has_column(table, columns[column]), "a convention names an unknown column");
            column += 1;
        }
        at += 1;
    }
};

const _: () = {
    let mut layout = 0;
    while layout < LAYOUTS.len() {
        let counters = LAYOUTS[layout].counters;
        let mut counter = 0;
        while counter < counters.len() {
            if let Meaning::Cell { from, into, .. } = counters[counter].meaning {
                check(&[from]);
                check(into);
            }
            counter += 1;
        }
        layout += 1;
    }
    check(&[ZONE_ENERGY, ZONE_RANGE, THERMAL, CONTROLLER_POWER, UPTIME]);
};

const fn check(columns: &[At]) {
    let mut at = 0;
    while at < columns.len() {
        assert!(has_column(columns[at].table, columns[at].column), "a counter names an unknown column");
        at += 1;
    }
}
