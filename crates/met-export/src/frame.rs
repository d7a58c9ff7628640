//! Tables of columns: jobs with their totals, and samples. Names and units are those of the catalogue and of
//! `met show --json`.

use met_core::{Column, JOB, MISSING, Table, Unit};
use met_insight::job_columns::{self, JOB_COLUMNS, Type};
use met_insight::json;
use serde_json::Value;

use crate::{ExportedJob, PartSeries, Rows, identity};

/// Cells of one column; what is not known is `None`.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    Text(Vec<Option<String>>),
    Whole(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    /// Unix nanoseconds.
    Time(Vec<Option<i64>>),
}

#[derive(Clone, Debug)]
pub struct FrameColumn {
    pub name: String,
    /// `seconds`, `bytes`; empty for texts, times and counts.
    pub unit: &'static str,
    pub help: String,
    pub cells: Cells,
}

/// Columns of one length.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    pub columns: Vec<FrameColumn>,
}

/// The rows of some jobs, all or one table of theirs.
pub fn of(jobs: &[&ExportedJob], rows: Rows) -> Frame {
    match rows {
        Rows::Jobs => of_jobs(jobs),
        Rows::Samples(table) => {
            let mut frame = empty_samples(table);
            for job in jobs {
                for series in job.series.iter().filter(|series| series.series.table.name == table.name) {
                    frame.append_samples(job, series);
                }
            }
            frame
        }
    }
}

fn of_jobs(jobs: &[&ExportedJob]) -> Frame {
    let objects: Vec<Value> =
        jobs.iter().map(|job| job_columns::object(&job.record, job.exported_ns)).collect();
    let named = JOB_COLUMNS.iter().map(|&(name, place, kind, unit, help)| FrameColumn {
        name: name.to_owned(),
        unit,
        help: help.to_owned(),
        cells: self::cells(kind, objects.iter().map(|object| object.pointer(place))),
    });
    let totals = JOB.columns.iter().map(|column| {
        let name = column.json_name();
        let values = objects.iter().map(|object| object["totals"].get(&name));
        let cells = self::cells(type_of(column), values);
        FrameColumn { name, unit: unit_of(column), help: column.help.to_owned(), cells }
    });
    Frame { columns: named.chain(totals).collect() }
}

/// Names of the columns that identify a sample.
pub const SAMPLE_COLUMNS: [&str; 5] = ["cluster", "job", "incarnation", "part", "time"];

fn empty_samples(table: &Table) -> Frame {
    let column = |name: &str, unit, help: &str, kind: Type| FrameColumn {
        name: name.to_owned(),
        unit,
        help: help.to_owned(),
        cells: cells(kind, std::iter::empty()),
    };
    let [cluster, job, incarnation, part, time] = SAMPLE_COLUMNS;
    let first = [
        column(cluster, "", "cluster of the job", Type::Text),
        column(job, "", "how people name the job", Type::Text),
        column(incarnation, "", "distinguishes earlier jobs with the same id", Type::Whole),
        column(part, "", "name of the event or uuid of the GPU", Type::Text),
        column(time, "", "time of the sample", Type::Time),
    ];
    let measured = table
        .columns
        .iter()
        .map(|known| column(&known.json_name(), unit_of(known), known.help, type_of(known)));
    Frame { columns: first.into_iter().chain(measured).collect() }
}

impl Frame {
    pub fn len(&self) -> usize {
        self.columns.first().map_or(0, |column| column.cells.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn append_samples(&mut self, job: &ExportedJob, of_part: &PartSeries) {
        let (cluster, label, incarnation) = identity(&job.record);
        let (cluster, series) = (cluster.map(str::to_owned), &of_part.series);
        let part = Some(of_part.part.clone()).filter(|part| !part.is_empty());
        let (first, measured) = self.columns.split_at_mut(SAMPLE_COLUMNS.len());
        for (index, time_ms) in series.times_ms.iter().enumerate() {
            first[0].cells.push_text(cluster.clone());
            first[1].cells.push_text(Some(label.clone()));
            first[2].cells.push_whole(Some(incarnation));
            first[3].cells.push_text(part.clone());
            first[4].cells.push_whole(time_ms.checked_mul(1_000_000));
            for ((to, column), cells) in measured.iter_mut().zip(series.table.columns).zip(&series.columns) {
                to.cells.push_cell(column, cells[index]);
            }
        }
    }
}

impl Cells {
    pub fn len(&self) -> usize {
        match self {
            Cells::Text(cells) => cells.len(),
            Cells::Whole(cells) | Cells::Time(cells) => cells.len(),
            Cells::Real(cells) => cells.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push_text(&mut self, text: Option<String>) {
        if let Cells::Text(cells) = self {
            cells.push(text);
        }
    }

    fn push_whole(&mut self, value: Option<i64>) {
        if let Cells::Whole(cells) | Cells::Time(cells) = self {
            cells.push(value);
        }
    }

    fn push_cell(&mut self, column: &Column, cell: i64) {
        let known = Some(cell).filter(|&cell| cell != MISSING);
        match self {
            Cells::Whole(cells) => cells.push(known.map(|cell| column.scaled(cell) as i64)),
            Cells::Real(cells) => cells.push(known.map(|cell| column.scaled(cell))),
            Cells::Text(_) | Cells::Time(_) => {}
        }
    }
}

/// As in JSON: bytes and counts are whole, a count with a fraction and seconds are not.
fn type_of(column: &Column) -> Type {
    match json::number(column, 0).is_i64() {
        true => Type::Whole,
        false => Type::Real,
    }
}

fn cells<'a>(kind: Type, values: impl Iterator<Item = Option<&'a Value>>) -> Cells {
    let values = values.map(|value| value.filter(|value| !value.is_null()));
    match kind {
        Type::Text => Cells::Text(values.map(|value| value?.as_str().map(str::to_owned)).collect()),
        Type::Whole => Cells::Whole(values.map(|value| value?.as_i64()).collect()),
        Type::Real => Cells::Real(values.map(|value| value?.as_f64()).collect()),
        Type::Time => Cells::Time(values.map(|value| json::parse_time(value?.as_str()?)).collect()),
    }
}

/// The unit in words.
fn unit_of(column: &Column) -> &'static str {
    match column.unit {
        Unit::Count => "",
        unit => unit.suffix().trim_start_matches('_'),
    }
}

#[cfg(test)]
mod tests {
    use met_core::sample;

    use super::*;
    use crate::tables;

    #[test]
    fn no_column_has_the_name_of_another_one_of_its_table() {
        let job = ExportedJob::new(&sample::full(1, "train"), None, sample::NOW_NS);
        for rows in Rows::all() {
            let frame = of(&[&job], rows);
            let mut names: Vec<&str> = frame.columns.iter().map(|column| column.name.as_str()).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{}", rows.name());
        }
        // A line of JSON has these beside the columns of the table.
        for column in tables().iter().flat_map(|table| table.columns) {
            assert!(!["type", "table", "thinned"].contains(&column.json_name().as_str()));
        }
    }

    #[test]
    fn a_row_has_the_figures_of_the_json_object() {
        let job = ExportedJob::new(&sample::full(1, "train"), None, sample::NOW_NS);
        let (frame, object) = (of(&[&job], Rows::Jobs), json::object(&job.record, sample::NOW_NS));
        for (name, total) in object["totals"].as_object().unwrap() {
            let column = frame.columns.iter().find(|column| column.name == *name).unwrap();
            match &column.cells {
                Cells::Whole(cells) => assert_eq!(cells, &[total.as_i64()], "{name}"),
                Cells::Real(cells) => assert_eq!(cells, &[total.as_f64()], "{name}"),
                cells => panic!("{name}: {cells:?}"),
            }
        }
        let start = frame.columns.iter().find(|column| column.name == "start").unwrap();
        assert_eq!(start.cells, Cells::Time(vec![job.record.start_ns]));
    }
}
