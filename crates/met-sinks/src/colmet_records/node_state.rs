//! What is known of a node, from which its records are made.

use std::collections::HashMap;
use std::time::Duration;

use met_core::{MISSING, Table};
use met_wire::colmet::{
    At, CONTROLLER_POWER, Layout, Meaning, Record, THERMAL, Value, ZONE_ENERGY, ZONE_RANGE, ZONES, Zone,
};

use super::{least_ns, seconds};

/// Rows of devices of a node: a bound for what a server is sent.
const ROWS_MAX: usize = 1024;
/// How old a reading of a slow sensor may be.
const STALE_NS: i64 = 60_000_000_000;
/// The whole machine among the meters of a management controller.
const WHOLE: &str = "node";

struct Row {
    table: &'static Table,
    labels: Vec<String>,
    time_ns: i64,
    cells: Vec<i64>,
}

#[derive(Default)]
pub(super) struct NodeState {
    rows: Vec<Row>,
    /// The energy of each zone at the last record.
    energy_uj: HashMap<Zone, i64>,
    sent_ns: Option<i64>,
}

impl NodeState {
    pub fn put(&mut self, table: &'static Table, labels: &[String], time_ns: i64, cells: &[i64]) {
        let is_it = |row: &Row| std::ptr::eq(row.table, table) && row.labels == labels;
        if let Some(row) = self.rows.iter_mut().find(|row| is_it(row)) {
            row.time_ns = time_ns;
            row.cells.copy_from_slice(cells);
        } else if self.rows.len() < ROWS_MAX {
            let (labels, cells) = (labels.to_vec(), cells.to_vec());
            self.rows.push(Row { table, labels, time_ns, cells });
        }
    }

    pub fn is_due(&mut self, time_ns: i64, period: Duration) -> bool {
        let is_due = self.sent_ns.is_none_or(|sent_ns| time_ns - sent_ns >= least_ns(period));
        if is_due {
            self.sent_ns = Some(time_ns);
        }
        is_due
    }

    /// A record, if anything of it is known. Sensors that are read less often say what they last said.
    pub fn record(
        &mut self,
        layout: &'static Layout,
        hostname: &str,
        time_ns: i64,
        period: Duration,
        involved: &[u64],
    ) -> Option<Record> {
        let oldest_ns = time_ns.saturating_sub(STALE_NS.max(3 * period.as_nanos() as i64));
        let mut record = Record::new(layout.backend, hostname, 0, seconds(time_ns));
        record.set_all(|_, counter| match counter.meaning {
            Meaning::Cell { from, factor, .. } => {
                self.sum(from, oldest_ns).map(|cell| Value::of_cell(counter.kind, cell, factor))
            }
            Meaning::Thermal(number) => {
                let zone = number.to_string();
                let cell = self.of_row(THERMAL, oldest_ns, |labels| labels.first() == Some(&zone));
                cell.map(|cell| Value::of_cell(counter.kind, cell, 1000))
            }
            Meaning::ZoneEnergy(zone) => self.grown_uj(zone, oldest_ns).map(Value::Int),
            Meaning::ZoneRange(zone) => self.zone_cell(zone, ZONE_RANGE, oldest_ns).map(Value::Int),
            Meaning::Start | Meaning::Event(_) | Meaning::None => None,
        });
        let is_known = record.values().any(|(counter, value)| {
            // Where a register starts again says nothing alone.
            value.is_some() && !matches!(counter.meaning, Meaning::ZoneRange(_))
        });
        if !is_known {
            return None;
        }
        self.mark_unsupported_zones(layout, &mut record, oldest_ns);
        if layout.has_involved_jobs {
            record.involved_jobs = involved.to_vec();
        }
        Some(record)
    }

    fn recent<'a>(&'a self, table: &'a str, oldest_ns: i64) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.table.name == table && row.time_ns >= oldest_ns)
    }

    /// Over all devices; of a management controller the one for the whole machine.
    fn sum(&self, at: At, oldest_ns: i64) -> Option<i64> {
        let is_meter = at == CONTROLLER_POWER;
        let rows = self.recent(at.table, oldest_ns);
        let rows = rows.filter(|row| !is_meter || row.labels.first().is_some_and(|label| label == WHOLE));
        let cells = rows.filter_map(|row| cell(row, at.column));
        cells.reduce(i64::saturating_add)
    }

    fn of_row(&self, at: At, oldest_ns: i64, is_it: impl Fn(&[String]) -> bool) -> Option<i64> {
        self.recent(at.table, oldest_ns).find(|row| is_it(&row.labels)).and_then(|row| cell(row, at.column))
    }

    fn zone_cell(&self, zone: Zone, at: At, oldest_ns: i64) -> Option<i64> {
        let package = format!("package-{}", zone.package);
        self.of_row(at, oldest_ns, |labels| {
            // Some processors have dies: `package-0-die-1`.
            let is_of_package = labels.get(1).is_some_and(|label| *label == package);
            let name = labels.first().map_or("", String::as_str);
            is_of_package && (name == ZONES[zone.zone] || zone.zone == 0 && name == package)
        })
    }

    fn grown_uj(&mut self, zone: Zone, oldest_ns: i64) -> Option<i64> {
        let now_uj = self.zone_cell(zone, ZONE_ENERGY, oldest_ns)?;
        let before_uj = self.energy_uj.insert(zone, now_uj)?;
        Some(now_uj - before_uj).filter(|&grown_uj| grown_uj >= 0)
    }

    /// Colmet writes 0 for zones that a package does not have.
    fn mark_unsupported_zones(&self, layout: &'static Layout, record: &mut Record, oldest_ns: i64) {
        for (index, counter) in layout.counters.iter().enumerate() {
            let (Meaning::ZoneEnergy(zone) | Meaning::ZoneRange(zone)) = counter.meaning else { continue };
            let has_package = self.zone_cell(Zone { zone: 0, ..zone }, ZONE_ENERGY, oldest_ns).is_some();
            if has_package && self.zone_cell(zone, ZONE_ENERGY, oldest_ns).is_none() {
                record.set(index, Some(Value::Int(0)));
            }
        }
    }
}

fn cell(row: &Row, column: &str) -> Option<i64> {
    row.cells.get(row.table.column(column)?).copied().filter(|&cell| cell != MISSING)
}
