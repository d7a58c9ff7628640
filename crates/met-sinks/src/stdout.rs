//! Events as lines on standard output: JSON objects, CSV with one value in each line, or records as Colmet prints them.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use met_wire::colmet::Record;

use crate::clock::now_ns;
use crate::colmet_records::{Chosen, Gatherer, write_text};
use crate::event::{Event, Kind};
use crate::sink::{Interest, Options, Report, Sink, SinkError, SinkOption, SinkSpec, one_of};
use crate::{event_csv, event_json};

const CHOSEN: &str = "started, ended, samples";
const EVENTS: [(&str, Kind); 4] = [
    ("started", Kind::Started),
    ("ended", Kind::Ended),
    ("interim", Kind::Interim),
    ("samples", Kind::Samples),
];
/// How often the rest of a line is tried again, on a full disk for instance.
const FINISH_EVERY: Duration = Duration::from_millis(100);
const COLMET: &str = "colmet";

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
            default: CHOSEN,
            many: true,
            help: "which events to write; `interim` has the figures of running jobs, `samples` come when they are stored",
            check: |value, _| one_of(value, &EVENTS.map(|(name, _)| name)),
        },
        SinkOption::tables(
            "",
            "tables whose rows to write at every tick, also without jobs; a server has none",
        ),
    ],
    has_section: false,
    interest,
    open: |options| {
        // Without the buffer and the lock of the library: a line is written at once, or blocks only this sink.
        let file = io::stdout().as_fd().try_clone_to_owned();
        let file = file.map_err(|error| SinkError::Lost(format!("cannot open standard output: {error}")))?;
        Ok(Box::new(Stdout::new(File::from(file), options)))
    },
};

fn interest(options: &Options) -> Interest {
    if options.word("format") == Some(COLMET) {
        return Chosen::of(options, "all").interest();
    }
    let chosen = options.words("events", CHOSEN);
    let has = |(name, _): &&(&str, Kind)| chosen.iter().any(|one| one == name);
    let kinds = EVENTS.iter().filter(has).map(|(_, kind)| *kind).collect();
    Interest { kinds, tables: options.list("tables").unwrap_or_default().to_vec(), ..Interest::default() }
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
        let colmet =
            (options.word("format") == Some(COLMET)).then(|| Gatherer::new(Chosen::of(options, "all")));
        Stdout { to, csv, colmet, lines: if csv { event_csv::HEAD.as_bytes().to_vec() } else { Vec::new() } }
    }

    fn print(&mut self, records: &[Record]) -> Result<(), SinkError> {
        records.iter().for_each(|record| write_text(record, &mut self.lines));
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
        let (csv, lines) = (self.csv, &mut self.lines);
        let now_ns = now_ns();
        event_json::objects(event, now_ns, |object| match csv {
            true => event_csv::write_lines(&object, lines),
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
        self.colmet.as_ref().map(|colmet| Report { wake: colmet.due(), ..Report::default() })
    }
}

#[cfg(test)]
#[path = "stdout_tests.rs"]
mod tests;
