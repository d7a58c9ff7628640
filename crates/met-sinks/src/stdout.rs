//! Events as lines on standard output: JSON objects, CSV with one value in each line, or records as Colmet prints them.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use met_insight::csv::{self, Cell};
use met_wire::colmet::{self, Record};
use serde_json::Value;

use crate::colmet_records::{Chosen, Gatherer};
use crate::event::{Event, Kind};
use crate::event_json;
use crate::sink::{Interest, Options, Report, Sink, SinkError, SinkOption, SinkSpec, one_of};

const EVENTS: [(&str, Kind); 4] = [
    ("started", Kind::Started),
    ("ended", Kind::Ended),
    ("interim", Kind::Interim),
    ("samples", Kind::Samples),
];
/// How often the rest of a line is tried again, on a full disk for instance.
const FINISH_EVERY: Duration = Duration::from_millis(100);
const COLMET: &str = "colmet";
const CSV_HEAD: &str = "time,event,table,node,manager,job,part,name,value\n";

pub static SPEC: SinkSpec = SinkSpec {
    name: "stdout",
    help: "lines on standard output, which is the journal for a service; a daemon that `met run` starts has none",
    options: &[
        SinkOption {
            name: "format",
            values: "`json`, `csv` or `colmet`",
            default: "json",
            many: false,
            help: "`json`: an object in each line; a job as in `met show --json`. `csv`: a value in each line. `colmet`: records as colmet-collector prints them, with exact numbers, of all kinds and every 5 s",
            check: |value, _| one_of(value, &["json", "csv", COLMET]),
        },
        SinkOption {
            name: "events",
            values: "`started`, `ended`, `interim`, `samples`",
            default: "started, ended, samples",
            many: true,
            help: "which events to write; `interim` has the figures of running jobs, `samples` come when they are stored",
            check: |value, _| one_of(value, &EVENTS.map(|(name, _)| name)),
        },
        SinkOption::tables(
            "",
            "tables whose rows to write at every tick, also without jobs; a server has none",
        ),
    ],
    interest,
    open: Some(|options| {
        // Without the buffer and the lock of the library: a line is written at once, or blocks only this sink.
        let file = io::stdout().as_fd().try_clone_to_owned();
        let file = file.map_err(|error| SinkError::Lost(format!("cannot open standard output: {error}")))?;
        Ok(Box::new(Stdout::new(File::from(file), options)))
    }),
};

fn interest(options: &Options) -> Interest {
    if options.word("format") == Some(COLMET) {
        return Chosen::of(options, "all").interest();
    }
    let is_wanted = |name: &str| match options.list("events") {
        Some(chosen) => chosen.iter().any(|word| word == name),
        None => name != "interim",
    };
    let kinds = EVENTS.iter().filter(|(name, _)| is_wanted(name)).map(|(_, kind)| *kind).collect();
    Interest { kinds, tables: options.list("tables").unwrap_or_default().to_vec(), within: None }
}

pub(crate) struct Stdout<W> {
    to: W,
    csv: bool,
    /// Makes the records that are printed instead of events.
    colmet: Option<Gatherer>,
    lines: Vec<u8>,
}

impl<W: Write + Send> Stdout<W> {
    pub(crate) fn new(to: W, options: &Options) -> Stdout<W> {
        let csv = options.word("format") == Some("csv");
        let is_colmet = options.word("format") == Some(COLMET);
        let colmet = is_colmet.then(|| Gatherer::new(Chosen::of(options, "all")));
        Stdout { to, csv, colmet, lines: if csv { CSV_HEAD.as_bytes().to_vec() } else { Vec::new() } }
    }

    fn print(&mut self, records: &[Record]) -> Result<(), SinkError> {
        records.iter().for_each(|record| write_record(record, &mut self.lines));
        self.write_out()
    }

    fn write_out(&mut self) -> Result<(), SinkError> {
        let written = self.write_lines();
        self.lines.clear();
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => SinkError::Failed("standard output is closed".to_owned()),
            _ => SinkError::Lost(format!("cannot write to standard output: {error}")),
        })
    }

    /// A line that was begun is finished first, however long that takes: another one would continue it.
    fn write_lines(&mut self) -> io::Result<()> {
        let mut written = 0;
        while written < self.lines.len() {
            match self.to.write(&self.lines[written..]) {
                Ok(count @ 1..) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == io::ErrorKind::BrokenPipe
                        || written.checked_sub(1).is_none_or(|last| self.lines[last] == b'\n') =>
                {
                    return Err(error);
                }
                _ => std::thread::sleep(FINISH_EVERY),
            }
        }
        Ok(())
    }
}

impl<W: Write + Send> Sink for Stdout<W> {
    fn take(&mut self, event: &Event) -> Result<(), SinkError> {
        if let Some(colmet) = &mut self.colmet {
            let mut records = Vec::new();
            colmet.take(event, &mut records);
            return self.print(&records);
        }
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i64);
        let (csv, lines) = (self.csv, &mut self.lines);
        event_json::objects(event, now_ns, |object| match csv {
            true => write_csv(&object, lines),
            false => lines.extend(format!("{object}\n").bytes()),
        });
        self.write_out()
    }

    fn idle(&mut self) -> Result<(), SinkError> {
        let Some(colmet) = &mut self.colmet else { return Ok(()) };
        let mut records = Vec::new();
        colmet.idle(Instant::now(), &mut records);
        self.print(&records)
    }

    fn report(&mut self) -> Option<Report> {
        let colmet = self.colmet.as_ref()?;
        Some(Report { wake: colmet.due(), ..Report::default() })
    }
}

/// As Colmet prints a record, but for its rounding.
fn write_record(record: &Record, lines: &mut Vec<u8>) {
    let Record { timestamp, job_id, hostname, .. } = record;
    let mut text =
        format!("{timestamp}  Job({job_id})/ {} -> Host({hostname}) -> {{\n", record.backend.name());
    let layout = record.backend.layout();
    let jobs = layout.has_involved_jobs.then_some("involved_jobs");
    let width = layout.counters.iter().map(|counter| counter.name.len()).chain(jobs.map(str::len)).max();
    let width = width.unwrap_or(0);
    for (name, value) in record.counters() {
        text.push_str(&match value {
            colmet::Value::Int(value) => format!("\t{name:>width$} : {value}\n"),
            colmet::Value::Float(value) => format!("\t{name:>width$} : {value}\n"),
        });
    }
    if let Some(name) = jobs {
        text.push_str(&format!("\t{name:>width$} : {}\n", record.involved_jobs_json()));
    }
    text.push_str("}\n");
    lines.extend(text.into_bytes());
}

/// A line for each value.
fn write_csv(object: &Value, lines: &mut Vec<u8>) {
    let job = &object["job"];
    let labels = object["labels"].as_object().into_iter().flat_map(|labels| labels.values());
    let part = object["part"].as_str().into_iter().chain(labels.filter_map(Value::as_str));
    let part = Value::from(part.collect::<Vec<_>>().join(" "));
    let head = ["time", "event", "table", "node"].map(|key| &object[key]);
    let head: Vec<&Value> = head.into_iter().chain([&job["manager"], &job["raw_id"], &part]).collect();
    let state = [("state", &job["state"])].into_iter().filter(|(_, value)| !value.is_null());
    let figures = [&object["values"], &object["totals"]].into_iter().filter_map(Value::as_object).flatten();
    let mut text = String::new();
    for (name, value) in state.chain(figures.map(|(name, value)| (name.as_str(), value))) {
        let cells = head.iter().map(|value| Cell::from(*value));
        csv::write_line(&mut text, cells.chain([Cell::Plain(name), Cell::from(value)]), "\n");
    }
    lines.extend(text.into_bytes());
}

#[cfg(test)]
#[path = "stdout_tests.rs"]
mod tests;
