//! Runs the sources and measures what each of them costs: a monitor must say its own price.

use met_core::table::{NANO, ONE};
use met_core::{Batch, Column, Subject, Table, Unit, Window, columns};
use met_host::{Host, Targets, clock};

use crate::{Options, ReadError, SOURCES, Shortfall, Source, SourceSpec, TickInfo, Unavailable};

columns! { COLUMNS:
    READ_CPU = Column::counter("read", Unit::Seconds, NANO, "CPU time spent in reading the source"),
    BACKGROUND_CPU = Column::counter("background", Unit::Seconds, NANO, "CPU time of the source's own threads, which read what is slow"),
    ERRORS = Column::counter("errors", Unit::Count, ONE, "readings that failed in part or whole"),
    ROWS = Column::gauge("rows", Unit::Count, ONE, "rows of the last reading"),
}

pub static TABLE: Table = Table {
    name: "source",
    subject: "a source of measurements, and what reading it costs",
    labels: &["source"],
    columns: COLUMNS,
};

/// Distinct errors remembered for each source; one that changes its text all the time is not logged for ever.
const ERRORS_REMEMBERED: usize = 16;

/// The opened sources and their batches. It logs nothing: the caller asks for what is new.
pub struct Runner {
    sources: Vec<Running>,
    batches: Vec<Batch>,
    costs: Batch,
    unavailable: Vec<(&'static SourceSpec, Unavailable)>,
    new_errors: Vec<NewError>,
}

struct Running {
    spec: &'static SourceSpec,
    /// Position in `SOURCES`, which labels the row of its cost.
    part: u32,
    source: Option<Box<dyn Source>>,
    read_cpu_ns: i64,
    errors: i64,
    seen_errors: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewError {
    pub source: &'static str,
    pub message: String,
}

impl Runner {
    /// Opens every source that this machine has.
    pub fn open(host: &Host, options: &Options) -> Runner {
        Runner::open_those(SOURCES, host, options)
    }

    fn open_those(specs: &[&'static SourceSpec], host: &Host, options: &Options) -> Runner {
        let (mut sources, mut batches, mut unavailable) = (Vec::new(), Vec::new(), Vec::new());
        let wanted = |spec: &SourceSpec| options.only.is_none_or(|names| names.contains(&spec.name));
        for (part, &spec) in (0..).zip(specs).filter(|(_, spec)| wanted(spec)) {
            match (spec.open)(host, options) {
                Ok(source) => {
                    batches.extend(spec.tables.iter().copied().map(Batch::new));
                    sources.push(Running {
                        spec,
                        part,
                        source: Some(source),
                        read_cpu_ns: 0,
                        errors: 0,
                        seen_errors: Vec::new(),
                    });
                }
                Err(reason) => unavailable.push((spec, reason)),
            }
        }
        Runner { sources, batches, costs: Batch::new(&TABLE), unavailable, new_errors: Vec::new() }
    }

    /// Reads all sources once. One that fails affects only itself.
    pub fn read(&mut self, targets: &Targets, tick: &TickInfo) {
        self.costs.clear();
        let begin_ns = clock::boottime_ns();
        let mut rest = &mut self.batches[..];
        for running in &mut self.sources {
            let (out, tail) = rest.split_at_mut(running.spec.tables.len());
            rest = tail;
            running.read(targets, tick, out, &mut self.new_errors);
            let cells = self.costs.push_part(Subject::Node, running.part);
            cells[READ_CPU] = running.read_cpu_ns;
            cells[BACKGROUND_CPU] = running.source.as_ref().map_or(0, |source| source.background_cpu_ns());
            cells[ERRORS] = running.errors;
            cells[ROWS] = i64::try_from(out.iter().map(Batch::len).sum::<usize>()).unwrap_or(i64::MAX);
        }
        self.costs.window = Window { begin_ns, end_ns: clock::boottime_ns() };
    }

    /// Reads only the sources that fill a table; what the others read last stays.
    pub fn read_those_of(&mut self, table: &'static Table, targets: &Targets, tick: &TickInfo) {
        self.read_some(|spec| spec.tables.iter().any(|own| std::ptr::eq(*own, table)), targets, tick);
    }

    /// Reads one source once more, between two ticks.
    pub fn read_again(&mut self, name: &str, targets: &Targets, tick: &TickInfo) {
        self.read_some(|spec| spec.name == name, targets, tick);
    }

    fn read_some(&mut self, is_wanted: impl Fn(&SourceSpec) -> bool, targets: &Targets, tick: &TickInfo) {
        let mut rest = &mut self.batches[..];
        for running in &mut self.sources {
            let (out, tail) = rest.split_at_mut(running.spec.tables.len());
            rest = tail;
            if is_wanted(running.spec) {
                running.read(targets, tick, out, &mut self.new_errors);
            }
        }
    }

    /// What was read last, in order of precedence.
    pub fn batches(&self) -> &[Batch] {
        &self.batches
    }

    /// The same by source, each with the labels of its parts.
    pub fn labelled(&self) -> impl Iterator<Item = (&[Batch], &[Vec<String>])> {
        let mut rest = &self.batches[..];
        self.sources.iter().map(move |running| {
            let (own, tail) = rest.split_at(running.spec.tables.len());
            rest = tail;
            (own, running.source.as_ref().map_or(&[][..], |source| source.labels()))
        })
    }

    /// A row of the table `source` for each opened source; `part` is its position in `SOURCES`.
    pub fn costs(&self) -> &Batch {
        &self.costs
    }

    /// The sources that this machine does not have or does not show, and why.
    pub fn unavailable(&self) -> &[(&'static SourceSpec, Unavailable)] {
        &self.unavailable
    }

    /// The sources that work and tell less than they might.
    pub fn shortfalls(&self) -> impl Iterator<Item = (&'static str, Shortfall)> {
        let shortfall = |running: &Running| Some((running.spec.name, running.source.as_ref()?.shortfall()?));
        self.sources.iter().filter_map(shortfall)
    }

    /// Errors that were not there before, each of them once.
    pub fn take_new_errors(&mut self) -> Vec<NewError> {
        std::mem::take(&mut self.new_errors)
    }
}

impl Running {
    fn read(&mut self, targets: &Targets, tick: &TickInfo, out: &mut [Batch], new: &mut Vec<NewError>) {
        for batch in &mut *out {
            batch.clear();
        }
        let Some(source) = &mut self.source else { return };
        let (begin_ns, begin_cpu_ns) = (clock::boottime_ns(), clock::thread_cpu_ns());
        let result = source.read(targets, tick, out);
        self.read_cpu_ns += clock::thread_cpu_ns() - begin_cpu_ns;
        let window = Window { begin_ns, end_ns: clock::boottime_ns() };
        for batch in out {
            batch.window = window;
        }
        if let Err(error) = result {
            self.errors += 1;
            self.remember(&error, new);
            if matches!(error, ReadError::Gone) {
                self.source = None;
            }
        }
    }

    fn remember(&mut self, error: &ReadError, new: &mut Vec<NewError>) {
        let message = error.to_string();
        if self.seen_errors.len() < ERRORS_REMEMBERED && !self.seen_errors.contains(&message) {
            self.seen_errors.push(message.clone());
            new.push(NewError { source: self.spec.name, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Opened;
    use std::io;

    static FAILING: SourceSpec =
        SourceSpec { name: "failing", help: "", tables: &[&TABLE], open: open_failing };
    static ABSENT: SourceSpec = SourceSpec { name: "absent", help: "", tables: &[&TABLE], open: open_absent };

    /// Fails in turns: twice alike, once otherwise, then it is gone.
    struct Failing(u32);

    fn open_failing(_: &Host, _: &Options) -> Opened {
        Ok(Box::new(Failing(0)))
    }

    fn open_absent(_: &Host, _: &Options) -> Opened {
        Err(Unavailable::Absent("no such thing".into()))
    }

    impl Source for Failing {
        fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
            self.0 += 1;
            out[0].push(Subject::Node);
            let retry =
                |path: &str| ReadError::Retry { path: path.into(), error: io::ErrorKind::Other.into() };
            Err(match self.0 {
                1 | 2 => retry("/a"),
                3 => retry("/b"),
                _ => ReadError::Gone,
            })
        }
    }

    #[test]
    fn a_failing_source_affects_only_itself_and_is_named_once_for_each_error() {
        let host = Host::real().unwrap();
        let mut runner = Runner::open_those(&[&FAILING, &ABSENT, SOURCES[1]], &host, &Options::default());
        assert_eq!(runner.unavailable()[0].0.name, "absent");
        let mut told = Vec::new();
        for _ in 0..6 {
            runner.read(&Targets::default(), &TickInfo::default());
            told.extend(runner.take_new_errors().into_iter().map(|error| error.message));
        }
        assert_eq!(told, ["/a: other error", "/b: other error", "gone"]);
        assert_eq!(runner.batches().len(), 2);
        let costs: Vec<_> = runner.costs().rows().map(|(row, cells)| (row.part, cells[ERRORS])).collect();
        assert_eq!(costs, [(0, 4), (2, 0)]);
        assert!(runner.batches()[0].is_empty(), "a source that is gone has no rows");
    }

    #[test]
    fn reading_a_process_has_a_price_and_a_row() {
        let host = Host::real().unwrap();
        let me = host.process(std::process::id()).unwrap();
        let target = met_host::TaskTarget {
            pid: me.pid,
            start_ticks: me.start_ticks,
            role: met_host::TaskRole::Member,
            young: false,
        };
        let targets = Targets { tasks: vec![target], ..Targets::default() };
        let mut runner = Runner::open_those(&[SOURCES[1]], &host, &Options::default());
        runner.read(&targets, &TickInfo { slow: true, cgroups_only: false });
        let (_, cells) = runner.costs().rows().next().unwrap();
        assert!(cells[READ_CPU] > 0);
        assert_eq!((cells[ERRORS], cells[ROWS]), (0, 1));
        let window = runner.batches()[0].window;
        assert!(window.begin_ns < window.end_ns);
    }
}
