//! Events as lines on standard output: JSON objects, or CSV with one value in each line.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use met_insight::csv::{self, Cell};
use serde_json::Value;

use crate::event::{Event, Kind};
use crate::event_json;
use crate::sink::{Interest, Options, Sink, SinkError, SinkOption, SinkSpec, one_of};

const EVENTS: [(&str, Kind); 4] = [
    ("started", Kind::Started),
    ("ended", Kind::Ended),
    ("interim", Kind::Interim),
    ("samples", Kind::Samples),
];
/// How often the rest of a line is tried again, on a full disk for instance.
const FINISH_EVERY: Duration = Duration::from_millis(100);
const CSV_HEAD: &str = "time,event,table,node,manager,job,part,name,value\n";

pub static SPEC: SinkSpec = SinkSpec {
    name: "stdout",
    help: "lines on standard output, which is the journal for a service; a daemon that `met run` starts has none",
    options: &[
        SinkOption {
            name: "format",
            values: "`json` or `csv`",
            default: "json",
            many: false,
            help: "`json`: an object in each line; a job as in `met show --json`. `csv`: a value in each line",
            check: |value, _| one_of(value, &["json", "csv"]),
        },
        SinkOption {
            name: "events",
            values: "`started`, `ended`, `interim`, `samples`",
            default: "started, ended, samples",
            many: true,
            help: "which events to write; `interim` has the figures of running jobs, `samples` come when they are stored",
            check: |value, _| one_of(value, &EVENTS.map(|(name, _)| name)),
        },
        SinkOption {
            name: "tables",
            values: "names of tables (`met metrics`)",
            default: "",
            many: true,
            help: "tables whose rows to write at every tick, also without jobs; a server has none",
            check: |value, tables| one_of(value, &tables.iter().map(|table| table.name).collect::<Vec<_>>()),
        },
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
    lines: Vec<u8>,
}

impl<W: Write + Send> Stdout<W> {
    pub(crate) fn new(to: W, options: &Options) -> Stdout<W> {
        let csv = options.word("format") == Some("csv");
        Stdout { to, csv, lines: if csv { CSV_HEAD.as_bytes().to_vec() } else { Vec::new() } }
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
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i64);
        let (csv, lines) = (self.csv, &mut self.lines);
        event_json::objects(event, now_ns, |object| match csv {
            true => write_csv(&object, lines),
            false => lines.extend(format!("{object}\n").bytes()),
        });
        let written = self.write_lines();
        self.lines.clear();
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => SinkError::Failed("standard output is closed".to_owned()),
            _ => SinkError::Lost(format!("cannot write to standard output: {error}")),
        })
    }
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
