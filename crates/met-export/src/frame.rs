//! Tables of columns: jobs with their totals, and samples. Names and units are those of the catalogue and of
//! `met show --json`.

use met_core::{Column, JOB, MISSING, Table, Unit};
use met_insight::json;
use serde_json::{Value, json as value};

use crate::{ExportedJob, Rows, Series, identity};

/// Cells of one column; what is not known is `None`.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    Text(Vec<Option<String>>),
    Whole(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    /// Unix nanoseconds.
    Time(Vec<Option<i64>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Text,
    Whole,
    Real,
    Time,
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

/// A column of the jobs that is not a total: its name, where it is in the object of a job, type, unit and meaning.
type JobColumn = (&'static str, &'static str, Type, &'static str, &'static str);

const JOB_COLUMNS: &[JobColumn] = &[
    ("cluster", "/identity/cluster", Type::Text, "", "cluster that has it in its accounting"),
    ("job", "/identity/job", Type::Text, "", "how people name the job"),
    ("incarnation", "/identity/incarnation", Type::Whole, "", "distinguishes earlier jobs with the same id"),
    ("manager", "/job/manager", Type::Text, "", "resource manager"),
    ("id", "/job/id", Type::Text, "", "id as its users know it"),
    ("raw_id", "/job/raw_id", Type::Text, "", "id as its cgroups are named"),
    ("name", "/job/name", Type::Text, "", "name of the job"),
    ("user", "/job/user", Type::Text, "", "owner"),
    ("account", "/job/account", Type::Text, "", "account or project"),
    ("command", "/identity/command", Type::Text, "", "command, quoted for a shell"),
    ("state", "/job/state", Type::Text, "", "state of the job"),
    ("manager_state", "/job/manager_state", Type::Text, "", "state in the words of its manager"),
    ("exit_code", "/job/exit_code", Type::Whole, "", "exit code of the command"),
    ("signal", "/job/signal", Type::Whole, "", "signal that ended it"),
    ("start", "/job/start", Type::Time, "", "start of the job"),
    ("end", "/job/end", Type::Time, "", "end of the job"),
    ("nodes", "/identity/nodes", Type::Text, "", "nodes, separated by commas"),
    ("inside", "/job/inside", Type::Text, "", "job that it ran in, whose figures include this one's"),
    ("partition", "/scheduling/partition", Type::Text, "", "partition or queue"),
    ("qos", "/scheduling/qos", Type::Text, "", "quality of service"),
    ("submit", "/scheduling/submit", Type::Time, "", "time of submission"),
    ("queue_wait_seconds", "/scheduling/queue_wait_seconds", Type::Real, "seconds", "time in the queue"),
    ("requested_nodes", "/requested/nodes", Type::Whole, "", "nodes requested"),
    ("requested_cpus", "/requested/cpus", Type::Whole, "", "CPUs requested"),
    ("requested_memory_bytes", "/requested/memory_bytes", Type::Whole, "bytes", "memory requested"),
    ("requested_gpus", "/requested/gpus", Type::Whole, "", "GPUs requested"),
    (
        "requested_time_limit_seconds",
        "/requested/time_limit_seconds",
        Type::Real,
        "seconds",
        "time limit requested",
    ),
    ("allocated_nodes", "/allocated/nodes", Type::Whole, "", "nodes allocated"),
    ("allocated_cpus", "/allocated/cpus", Type::Whole, "", "CPUs allocated"),
    ("allocated_memory_bytes", "/allocated/memory_bytes", Type::Whole, "bytes", "memory allocated"),
    ("allocated_gpus", "/allocated/gpus", Type::Whole, "", "GPUs allocated"),
    ("efficiency_cpu_ratio", "/efficiency/cpu_ratio", Type::Real, "ratio", "share of its CPUs used"),
    ("efficiency_memory_ratio", "/efficiency/memory_ratio", Type::Real, "ratio", "share of its memory used"),
    ("efficiency_gpu_ratio", "/efficiency/gpu_ratio", Type::Real, "ratio", "share of its GPUs used"),
    ("efficiency_time_ratio", "/efficiency/time_ratio", Type::Real, "ratio", "share of its time limit used"),
    ("average_cores", "/average/cores", Type::Real, "", "cores busy on average"),
    (
        "average_memory_needed_bytes",
        "/average/memory_needed_bytes",
        Type::Real,
        "bytes",
        "memory needed on average",
    ),
    ("average_power_watts", "/average/power_watts", Type::Real, "watts", "power on average"),
];

/// The rows of some jobs, all or one table of theirs.
pub fn of(jobs: &[&ExportedJob], rows: Rows) -> Frame {
    match rows {
        Rows::Jobs => of_jobs(jobs),
        Rows::Samples(table) => {
            let mut frame = empty_samples(table);
            for job in jobs {
                for series in job.series.iter().filter(|series| series.course.table.name == table.name) {
                    frame.append_samples(job, series);
                }
            }
            frame
        }
    }
}

fn of_jobs(jobs: &[&ExportedJob]) -> Frame {
    let objects: Vec<Value> = jobs.iter().map(|job| object(job)).collect();
    let named = JOB_COLUMNS.iter().map(|&(name, place, kind, unit, help)| FrameColumn {
        name: name.to_owned(),
        unit,
        help: help.to_owned(),
        cells: kind.cells(objects.iter().map(|object| object.pointer(place))),
    });
    let totals = JOB.columns.iter().map(|column| {
        let name = column.json_name();
        let values = objects.iter().map(|object| object["totals"].get(&name));
        let cells = Type::of(column).cells(values);
        FrameColumn { name, unit: unit_of(column), help: column.help.to_owned(), cells }
    });
    Frame { columns: named.chain(totals).collect() }
}

/// The public object of the job, with what a table needs beside it.
fn object(job: &ExportedJob) -> Value {
    let mut object = json::object(&job.record, job.exported_ns);
    let (cluster, label, incarnation) = identity(&job.record);
    let command = met_core::text::command_line(&job.record.command);
    object["identity"] = value!({
        "cluster": cluster,
        "job": label,
        "incarnation": incarnation,
        "command": command,
        "nodes": job.record.nodes.join(","),
    });
    object
}

/// Names of the columns that identify a sample.
pub const SAMPLE_COLUMNS: [&str; 5] = ["cluster", "job", "incarnation", "part", "time"];

fn empty_samples(table: &Table) -> Frame {
    let column = |name: &str, unit, help: &str, kind: Type| FrameColumn {
        name: name.to_owned(),
        unit,
        help: help.to_owned(),
        cells: kind.cells(std::iter::empty()),
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
        .map(|known| column(&known.json_name(), unit_of(known), known.help, Type::of(known)));
    Frame { columns: first.into_iter().chain(measured).collect() }
}

impl Frame {
    pub fn len(&self) -> usize {
        self.columns.first().map_or(0, |column| column.cells.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn append_samples(&mut self, job: &ExportedJob, series: &Series) {
        let (cluster, label, incarnation) = identity(&job.record);
        let (cluster, course) = (cluster.map(str::to_owned), &series.course);
        let part = Some(series.part.clone()).filter(|part| !part.is_empty());
        let (first, measured) = self.columns.split_at_mut(SAMPLE_COLUMNS.len());
        for (index, time_ms) in course.times_ms.iter().enumerate() {
            first[0].cells.push_text(cluster.clone());
            first[1].cells.push_text(Some(label.clone()));
            first[2].cells.push_whole(Some(incarnation));
            first[3].cells.push_text(part.clone());
            first[4].cells.push_whole(time_ms.checked_mul(1_000_000));
            for ((to, column), cells) in measured.iter_mut().zip(course.table.columns).zip(&course.columns) {
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

impl Type {
    /// As in JSON: bytes and counts are whole, a count with a fraction and seconds are not.
    fn of(column: &Column) -> Type {
        match json::number(column, 0).is_i64() {
            true => Type::Whole,
            false => Type::Real,
        }
    }

    fn cells<'a>(self, values: impl Iterator<Item = Option<&'a Value>>) -> Cells {
        let values = values.map(|value| value.filter(|value| !value.is_null()));
        match self {
            Type::Text => Cells::Text(values.map(|value| value?.as_str().map(str::to_owned)).collect()),
            Type::Whole => Cells::Whole(values.map(|value| value?.as_i64()).collect()),
            Type::Real => Cells::Real(values.map(|value| value?.as_f64()).collect()),
            Type::Time => Cells::Time(values.map(|value| json::parse_time(value?.as_str()?)).collect()),
        }
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
