//! Runs the sources and measures what each of them costs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use met_core::{Batch, Subject, Table, Unparsed, Window};
use met_host::{Host, Targets, clock};

use crate::background::Background;
use crate::cgroup;
use crate::node;
use crate::self_cost::{BACKGROUND_CPU, ERRORS, READ_CPU, READINGS, ROWS, SUCCESS, TABLE, UNPARSED};
use crate::{
    DriverCalls, Heartbeat, Options, Pace, ReadError, SOURCES, Shortfall, Source, SourceSpec, TickInfo,
    Unavailable, Unread,
};

mod faults;

use faults::Faults;
pub use faults::{Fault, Wrong};

/// The opened sources and their batches. It logs nothing: the caller asks for what is new.
pub struct Runner {
    sources: Vec<Running>,
    batches: Vec<Batch>,
    costs: Batch,
    unavailable: Vec<(&'static SourceSpec, Unavailable)>,
    new_errors: Vec<NewError>,
    /// As it was opened with: sources that are opened later are opened the same way.
    driver_calls: DriverCalls,
    left_out: Vec<&'static str>,
    /// By the configuration: what these would read may be there.
    switched_off: Vec<&'static str>,
    /// Sources that fill this table are not read by a tick, and what they read last stays.
    held: Option<&'static Table>,
    heartbeat: Arc<Heartbeat>,
}

struct Running {
    spec: &'static SourceSpec,
    /// Position in `SOURCES`, which labels the row of its cost.
    part: u32,
    source: Option<Box<dyn Source>>,
    /// Of what is not read at every tick: how often it is, and when a tick reads it next.
    period: Option<Duration>,
    due_ns: i64,
    read_cpu_ns: i64,
    readings: i64,
    rows: i64,
    faults: Faults,
}

/// What a source about the machine has read.
#[derive(Clone, Copy, Debug)]
pub struct NodeSource<'a> {
    pub name: &'static str,
    pub period_ns: i64,
    pub batches: &'a [Batch],
    pub labels: &'a [Vec<String>],
}

fn switched_off(options: &Options) -> Vec<&'static str> {
    options.choices.iter().filter(|(_, choice)| choice.off).map(|(name, _)| *name).collect()
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
        let wanted = |spec: &SourceSpec| {
            options.only.is_none_or(|names| names.contains(&spec.name))
                && (options.node || spec.pace == Pace::Tick)
        };
        for (part, &spec) in (0..).zip(specs).filter(|(_, spec)| wanted(spec)) {
            match Running::open(spec, part, host, options) {
                Ok(running) => {
                    batches.extend(spec.tables.iter().copied().map(Batch::new));
                    sources.push(running);
                }
                Err(reason) => unavailable.push((spec, reason)),
            }
        }
        let mut runner = Runner {
            sources,
            batches,
            costs: Batch::new(&TABLE),
            unavailable,
            new_errors: Vec::new(),
            driver_calls: options.driver_calls,
            left_out: options.left_out.clone(),
            switched_off: switched_off(options),
            held: None,
            heartbeat: Arc::clone(&options.heartbeat),
        };
        runner.wait(options.timeout);
        runner
    }

    /// Reopens a source, as other options ask for it; it may come, stay or go. The others are not disturbed.
    pub fn reopen(&mut self, name: &str, host: &Host, options: &Options) {
        let Some((part, &spec)) = (0..).zip(SOURCES).find(|(_, spec)| spec.name == name) else { return };
        let options = &Options {
            driver_calls: self.driver_calls,
            left_out: self.left_out.clone(),
            heartbeat: Arc::clone(&self.heartbeat),
            ..options.clone()
        };
        self.unavailable.retain(|(known, _)| known.name != name);
        self.switched_off.retain(|known| *known != name);
        self.switched_off.extend(switched_off(options).into_iter().filter(|known| *known == name));
        let at = self.sources.partition_point(|running| running.part < part);
        let first: usize = self.sources[..at].iter().map(|running| running.spec.tables.len()).sum();
        if self.sources.get(at).is_some_and(|running| running.part == part) {
            self.sources.remove(at);
            self.batches.drain(first..first + spec.tables.len());
        }
        match Running::open(spec, part, host, options) {
            Ok(running) => {
                self.sources.insert(at, running);
                self.batches.splice(first..first, spec.tables.iter().copied().map(Batch::new));
            }
            Err(reason) => self.unavailable.push((spec, reason)),
        }
    }

    /// A source that was left out may be opened again.
    pub fn forgive(&mut self, name: &str) {
        self.left_out.retain(|left_out| *left_out != name);
    }

    pub fn is_open(&self, name: &str) -> bool {
        self.sources.iter().any(|running| running.spec.name == name && running.source.is_some())
    }

    /// Whether the machine certainly has nothing that would fill a table: all sources of it say so.
    pub fn lacks(&self, table: &'static Table) -> bool {
        let fills = |spec: &&&SourceSpec| spec.tables.iter().any(|own| std::ptr::eq(*own, table));
        let is_absent = |spec: &&SourceSpec| {
            let mut reasons = self.unavailable.iter().filter(|(known, _)| known.name == spec.name);
            reasons.any(|(_, reason)| matches!(reason, Unavailable::Absent(_)))
                && !self.switched_off.contains(&spec.name)
        };
        SOURCES.iter().filter(fills).all(is_absent)
    }

    /// What is there and could not be read last time, of the sources that fill a table.
    pub fn unread(&self, table: &'static Table) -> Vec<Unread> {
        let of_table = |running: &&Running| running.spec.tables.iter().any(|own| std::ptr::eq(*own, table));
        let sources = self.sources.iter().filter(of_table).filter_map(|running| running.source.as_ref());
        sources.flat_map(|source| source.unread()).collect()
    }

    /// As [`Runner::wait`], without the sources that fill a table.
    pub fn wait_but_for(&mut self, table: &'static Table, timeout: Duration) {
        self.wait_for(timeout, |spec| !spec.tables.iter().any(|own| std::ptr::eq(*own, table)));
    }

    /// Waits for the readings that sources have under way on threads of their own.
    pub fn wait(&mut self, timeout: Duration) {
        self.wait_for(timeout, |_| true);
    }

    fn wait_for(&mut self, timeout: Duration, is_wanted: impl Fn(&SourceSpec) -> bool) {
        if timeout.is_zero() {
            return;
        }
        let deadline = Instant::now() + timeout;
        let running = self.sources.iter_mut().filter(|running| is_wanted(running.spec));
        let mut sources: Vec<_> = running.filter_map(|running| running.source.as_mut()).collect();
        // All are asked before any is waited for: they answer side by side.
        sources.iter_mut().for_each(|source| source.wait(Duration::ZERO));
        for source in sources {
            source.wait(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// Ticks come by another period from now on.
    pub fn set_interval(&mut self, interval: Duration) {
        let sources = self.sources.iter_mut().filter_map(|running| running.source.as_mut());
        sources.for_each(|source| source.set_interval(interval));
    }

    /// Whether ticks leave out the sources that fill a table; their owner reads them when they are due.
    pub fn hold(&mut self, table: Option<&'static Table>) {
        self.held = table;
    }

    /// Whatever a tick reads now and then is read by the next one: there will be no other.
    pub fn hurry(&mut self) {
        for running in &mut self.sources {
            running.due_ns = i64::MIN;
        }
    }

    /// Reads all sources once, or by a partial tick those of jobs. One that fails affects only itself.
    pub fn read(&mut self, targets: &Targets, tick: &TickInfo) {
        let mut reading = self.begin(tick);
        self.read_due(|_| true, targets, tick, &mut reading);
        self.finish(&reading);
    }

    /// The same, with a look at what was read of cgroups and of the machine as a whole before anything else is: it may
    /// change what is read of processes.
    pub fn read_cgroups_first(
        &mut self,
        targets: &mut Targets,
        tick: &TickInfo,
        between: impl FnOnce(&[Batch], &mut Targets),
    ) {
        let mut reading = self.begin(tick);
        let is_first =
            |spec: &SourceSpec| [&cgroup::SPEC, &node::SPEC].iter().any(|first| std::ptr::eq(*first, spec));
        self.read_due(is_first, targets, tick, &mut reading);
        between(&self.batches, targets);
        self.read_due(|spec| !is_first(spec), targets, tick, &mut reading);
        self.finish(&reading);
    }

    fn begin(&mut self, tick: &TickInfo) -> Reading {
        let mut reading = Reading { begin_ns: clock::boottime_ns(), spent_ns: clock::thread_cpu_ns() };
        let held = self.held;
        for running in self.sources.iter_mut().filter(|running| running.is_wanted(held, tick)) {
            if running.source.as_mut().is_some_and(|source| source.begin()) {
                running.count_cpu(&mut reading.spent_ns);
            }
        }
        reading
    }

    fn read_due(
        &mut self,
        is_due: impl Fn(&SourceSpec) -> bool,
        targets: &Targets,
        tick: &TickInfo,
        reading: &mut Reading,
    ) {
        let held = self.held;
        let mut rest = &mut self.batches[..];
        for running in &mut self.sources {
            let (out, tail) = rest.split_at_mut(running.spec.tables.len());
            rest = tail;
            if !is_due(running.spec) {
                continue;
            }
            if running.is_wanted(held, tick) {
                let spent_ns = &mut reading.spent_ns;
                running.read_if_due(targets, tick, out, &mut self.new_errors, spent_ns, &self.heartbeat);
            } else if !running.is_held(held) {
                // What was read of the machine before is no news.
                out.iter_mut().for_each(Batch::clear);
            }
        }
    }

    fn finish(&mut self, reading: &Reading) {
        self.costs.clear();
        for running in &self.sources {
            let cells = self.costs.push_part(Subject::Node, running.part);
            let errands_ns = running.source.as_ref().map_or(0, |source| source.errand_cpu_ns());
            cells[READ_CPU] = running.read_cpu_ns + errands_ns;
            cells[BACKGROUND_CPU] = running.source.as_ref().map_or(0, |source| source.background_cpu_ns());
            cells[ERRORS] = running.faults.errors;
            cells[READINGS] = running.readings;
            cells[ROWS] = running.rows;
            cells[UNPARSED] = running.faults.unparsed.count;
            cells[SUCCESS] = i64::from(!running.faults.is_failing());
        }
        // One that is left out costs nothing and fails all the same.
        for (part, _) in (0..).zip(SOURCES).filter(|(_, spec)| self.left_out.contains(&spec.name)) {
            let cells = self.costs.push_part(Subject::Node, part);
            cells.fill(0);
            cells[ERRORS] = 1;
        }
        self.costs.window = Window { begin_ns: reading.begin_ns, end_ns: clock::boottime_ns() };
    }

    /// Reads only the sources that fill a table; what the others read last stays.
    pub fn read_those_of(&mut self, table: &'static Table, targets: &Targets, tick: &TickInfo) {
        self.read_some(|spec| spec.tables.iter().any(|own| std::ptr::eq(*own, table)), targets, tick);
    }

    /// Reads one source once more, between two ticks.
    pub fn read_again(&mut self, name: &str, targets: &Targets, tick: &TickInfo) {
        self.read_some(|spec| spec.name == name, targets, tick);
    }

    /// Reads what is about the machine itself, between two ticks.
    pub fn read_node(&mut self, targets: &Targets, tick: &TickInfo) {
        self.read_some(|spec| spec.pace != Pace::Tick, targets, tick);
    }

    fn read_some(&mut self, is_wanted: impl Fn(&SourceSpec) -> bool, targets: &Targets, tick: &TickInfo) {
        let mut rest = &mut self.batches[..];
        for running in &mut self.sources {
            let (out, tail) = rest.split_at_mut(running.spec.tables.len());
            rest = tail;
            if is_wanted(running.spec) {
                let spent_ns = &mut clock::thread_cpu_ns();
                running.read(targets, tick, out, &mut self.new_errors, spent_ns, &self.heartbeat);
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

    /// What sources about the machine have read since the last call of `read`.
    pub fn node(&self) -> impl Iterator<Item = NodeSource<'_>> {
        let mut rest = &self.batches[..];
        self.sources.iter().filter_map(move |running| {
            let (batches, tail) = rest.split_at(running.spec.tables.len());
            rest = tail;
            let period_ns = i64::try_from(running.period?.as_nanos()).unwrap_or(i64::MAX);
            let labels = running.source.as_ref().map_or(&[][..], |source| source.labels());
            Some(NodeSource { name: running.spec.name, period_ns, batches, labels })
        })
    }

    /// How often each opened source is read; nothing for those read at every tick.
    pub fn periods(&self) -> impl Iterator<Item = (&'static SourceSpec, Option<Duration>)> {
        self.sources.iter().map(|running| (running.spec, running.period))
    }

    /// A row of the table `source` for each opened source; `part` is its position in `SOURCES`.
    pub fn costs(&self) -> &Batch {
        &self.costs
    }

    /// The same by the names of the sources.
    pub fn named_costs(&self) -> impl Iterator<Item = (&'static str, &[i64])> {
        let name = |part: u32| SOURCES.get(part as usize).map_or("?", |spec| spec.name);
        self.costs.rows().map(move |(row, cells)| (name(row.part), cells))
    }

    /// The sources that this machine does not have or does not show, and why.
    pub fn unavailable(&self) -> &[(&'static SourceSpec, Unavailable)] {
        &self.unavailable
    }

    /// The sources that work and measure less than they might.
    pub fn shortfalls(&self) -> impl Iterator<Item = (&'static str, Shortfall)> {
        let shortfall = |running: &Running| Some((running.spec.name, running.source.as_ref()?.shortfall()?));
        self.sources.iter().filter_map(shortfall)
    }

    /// Labels for which a source can have no rows, each with the reason.
    pub fn missing(&self, source: &str) -> Vec<(&str, &str)> {
        let running = self.sources.iter().find(|running| running.spec.name == source);
        running.and_then(|running| running.source.as_ref()).map(|source| source.missing()).unwrap_or_default()
    }

    /// Counts what was met outside of a source's own reading, such as a process that could not be identified.
    pub fn count_unparsed(&mut self, name: &str, more: &mut Unparsed) {
        if let Some(running) = self.sources.iter_mut().find(|running| running.spec.name == name) {
            running.faults.take_outside(running.spec.name, more, &mut self.new_errors);
        }
    }

    /// The sources of which some readings could not be parsed.
    pub fn unparsed(&self) -> impl Iterator<Item = (&'static str, &Unparsed)> {
        let found = self.sources.iter().map(|running| (running.spec.name, &running.faults.unparsed));
        found.filter(|(_, unparsed)| unparsed.count > 0)
    }

    /// What is wrong with a source as of its last reading.
    pub fn fault(&self, source: &str) -> Option<Fault> {
        self.sources.iter().find(|running| running.spec.name == source)?.faults.now()
    }

    /// Errors that were not there before, each of them once.
    pub fn take_new_errors(&mut self) -> Vec<NewError> {
        std::mem::take(&mut self.new_errors)
    }
}

/// A reading that is under way.
struct Reading {
    begin_ns: i64,
    /// CPU time of this thread when it was last looked at.
    spent_ns: i64,
}

impl Running {
    fn is_held(&self, held: Option<&'static Table>) -> bool {
        held.is_some_and(|held| self.spec.tables.iter().any(|own| std::ptr::eq(*own, held)))
    }

    /// Whether a tick reads it, `held` sources left out.
    fn is_wanted(&self, held: Option<&'static Table>, tick: &TickInfo) -> bool {
        !self.is_held(held) && (!tick.partial || self.spec.pace == Pace::Tick)
    }

    fn open(
        spec: &'static SourceSpec,
        part: u32,
        host: &Host,
        options: &Options,
    ) -> Result<Running, Unavailable> {
        let choice = options.choices.get(spec.name).cloned().unwrap_or_default();
        if choice.off {
            return Err(Unavailable::Absent(format!("switched off by sources.{}", spec.name)));
        }
        if options.left_out.contains(&spec.name) {
            return Err(Unavailable::Hangs);
        }
        let shorten = |period: Duration| options.period_max.map_or(period, |most| period.min(most));
        let period = spec.pace.period().map(|usual| shorten(choice.period.unwrap_or(usual)));
        options.heartbeat.enter(part);
        let opened = (spec.open)(host, options);
        options.heartbeat.leave();
        let opened = opened?;
        let source = match (spec.pace, period) {
            (Pace::Apart(_), Some(period)) => {
                let source = Background::start(opened, spec, period)
                    .map_err(|error| Unavailable::Absent(format!("cannot start a thread for it: {error}")))?;
                Box::new(source)
            }
            _ => opened,
        };
        Ok(Running {
            spec,
            part,
            source: Some(source),
            period,
            due_ns: i64::MIN,
            read_cpu_ns: 0,
            readings: 0,
            rows: 0,
            faults: Faults::default(),
        })
    }

    /// What is not due has no rows: the last ones are no news.
    fn read_if_due(
        &mut self,
        targets: &Targets,
        tick: &TickInfo,
        out: &mut [Batch],
        new: &mut Vec<NewError>,
        spent_ns: &mut i64,
        heartbeat: &Heartbeat,
    ) {
        let now_ns = clock::boottime_ns();
        if now_ns < self.due_ns {
            for batch in out {
                batch.clear();
            }
            return;
        }
        // On multiples of the period, as ticks are: a tick that is late by a moment is not a period late.
        if let (Pace::Every(_), Some(period)) = (self.spec.pace, self.period) {
            let period_ns = i64::try_from(period.as_nanos()).unwrap_or(i64::MAX).max(1);
            self.due_ns = (now_ns / period_ns + 1).saturating_mul(period_ns);
        }
        self.read(targets, tick, out, new, spent_ns, heartbeat);
        let rows = out.iter().map(Batch::len).sum::<usize>();
        // Between two readings of a thread there is nothing to take over.
        if rows > 0 || !matches!(self.spec.pace, Pace::Apart(_)) {
            self.rows = i64::try_from(rows).unwrap_or(i64::MAX);
            self.readings += 1;
        }
    }

    /// Counts what this thread has spent since `spent_ns`, and brings that up to date: one look at the clock for
    /// each source, which in a virtual machine costs as much as reading a small file.
    fn count_cpu(&mut self, spent_ns: &mut i64) {
        let now_ns = clock::thread_cpu_ns();
        self.read_cpu_ns += now_ns - std::mem::replace(spent_ns, now_ns);
    }

    fn read(
        &mut self,
        targets: &Targets,
        tick: &TickInfo,
        out: &mut [Batch],
        new: &mut Vec<NewError>,
        spent_ns: &mut i64,
        heartbeat: &Heartbeat,
    ) {
        for batch in &mut *out {
            batch.clear();
            batch.window = Window::default();
        }
        let Some(source) = &mut self.source else { return };
        let begin_ns = clock::boottime_ns();
        heartbeat.enter(self.part);
        let result = source.read(targets, tick, out);
        heartbeat.leave();
        self.count_cpu(spent_ns);
        let window = Window { begin_ns, end_ns: clock::boottime_ns() };
        // What a thread has read has its own window.
        for batch in out.iter_mut().filter(|batch| batch.window == Window::default()) {
            batch.window = window;
        }
        // Between two readings of a thread nothing is news, not even that all is well.
        if self.source.as_ref().is_some_and(|source| source.has_read()) {
            self.faults.take(self.spec.name, result.as_ref().err(), out, new);
        }
        if matches!(result, Err(ReadError::Gone { .. })) {
            self.source = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Choice, Opened};
    use std::collections::HashMap;
    use std::io;

    static FAILING: SourceSpec = SourceSpec {
        name: "failing",
        help: "",
        pace: Pace::Tick,
        tables: &[&TABLE],
        charts: &[],
        options: &[],
        open: open_failing,
    };
    static ABSENT: SourceSpec = SourceSpec {
        name: "absent",
        help: "",
        pace: Pace::Tick,
        tables: &[&TABLE],
        charts: &[],
        options: &[],
        open: open_absent,
    };

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
                _ => ReadError::Gone { why: "unplugged".into() },
            })
        }
    }

    #[test]
    fn a_failing_source_affects_only_itself_and_is_named_once_for_each_error() {
        let host = Host::real().unwrap();
        let mut runner = Runner::open_those(&[&FAILING, &ABSENT, SOURCES[1]], &host, &Options::default());
        assert_eq!(runner.unavailable()[0].0.name, "absent");
        let mut reported = Vec::new();
        for _ in 0..6 {
            runner.read(&Targets::default(), &TickInfo::default());
            reported.extend(runner.take_new_errors().into_iter().map(|error| error.message));
        }
        assert_eq!(reported, ["/a: other error", "/b: other error", "given up: unplugged"]);
        assert_eq!(runner.batches().len(), 2);
        let costs: Vec<_> = runner.costs().rows().map(|(row, cells)| (row.part, cells[ERRORS])).collect();
        assert_eq!(costs, [(0, 4), (2, 0)]);
        assert!(runner.batches()[0].is_empty(), "a source that is gone has no rows");
        let gone = runner.fault("failing").map(|fault| fault.what);
        assert_eq!(gone, Some(Wrong::Error("given up: unplugged".to_owned())));
        assert_eq!(runner.fault("process"), None);
    }

    #[test]
    fn readings_that_cannot_be_parsed_are_counted_and_reported_once() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/loadavg"), "low\n").unwrap();
        let host = Host::at(root.path()).unwrap();
        let only = Some(&["node"][..]);
        let period_max = Some(Duration::from_nanos(1));
        let mut runner = Runner::open(&host, &Options { node: true, only, period_max, ..Options::default() });
        let mut reported = Vec::new();
        for count in 1..=3 {
            runner.read(&Targets::default(), &TickInfo::default());
            reported.extend(runner.take_new_errors().into_iter().map(|error| error.message));
            let (_, cells) = runner.costs().rows().next().unwrap();
            assert_eq!((cells[UNPARSED], cells[ERRORS]), (count, 0));
        }
        assert_eq!(
            reported,
            ["cannot parse /proc/loadavg: its values are missing; `met doctor` counts them"]
        );
        let (name, unparsed) = runner.unparsed().next().unwrap();
        assert_eq!(
            (name, unparsed.to_string().as_str()),
            ("node", "3 readings could not be parsed (first: /proc/loadavg)")
        );
    }

    #[test]
    fn a_source_that_is_opened_anew_leaves_the_others_as_they_are() {
        let host = Host::real().unwrap();
        let mut runner = Runner::open(&host, &Options { node: true, ..Options::default() });
        let open = |runner: &Runner| runner.periods().map(|(spec, _)| spec.name).collect::<Vec<_>>();
        let tables =
            |runner: &Runner| runner.batches().iter().map(|batch| batch.table.name).collect::<Vec<_>>();
        let (before, tables_before) = (open(&runner), tables(&runner));
        assert!(before.contains(&"node"));
        let off = Choice::OFF;
        let choices = HashMap::from([("node", off)]);
        runner.reopen("node", &host, &Options { node: true, choices, ..Options::default() });
        assert!(!runner.is_open("node"));
        assert!(runner.unavailable().iter().any(|(spec, _)| spec.name == "node"));
        let others: Vec<_> = before.iter().copied().filter(|&name| name != "node").collect();
        assert_eq!(open(&runner), others);
        runner.read(&Targets::default(), &TickInfo::default());
        runner.reopen("node", &host, &Options { node: true, ..Options::default() });
        assert_eq!((open(&runner), tables(&runner)), (before, tables_before));
        assert!(!runner.unavailable().iter().any(|(spec, _)| spec.name == "node"));
    }

    #[test]
    fn only_a_machine_whose_sources_all_say_so_has_no_gpu() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let host = Host::at(root.path()).unwrap();
        let gpus = &met_core::gpu::device::TABLE;
        let opened = |options: &Options| Runner::open(&host, options);
        assert!(opened(&Options::default()).lacks(gpus));
        let off = HashMap::from([("nvidia", Choice::OFF)]);
        assert!(!opened(&Options { choices: off, ..Options::default() }).lacks(gpus), "nobody looked");
        assert!(!opened(&Options { only: Some(&["drm"]), ..Options::default() }).lacks(gpus));
        assert!(!opened(&Options { left_out: vec!["nvidia"], ..Options::default() }).lacks(gpus));
    }

    #[test]
    fn a_source_that_is_left_out_is_not_opened_and_fails_until_it_is_forgiven() {
        let host = Host::real().unwrap();
        let all = Options { node: true, ..Options::default() };
        let mut runner = Runner::open(&host, &Options { left_out: vec!["node"], ..all.clone() });
        assert!(!runner.is_open("node"));
        assert!(runner.unavailable().iter().any(|(_, why)| *why == Unavailable::Hangs));
        let part = SOURCES.iter().position(|spec| spec.name == "node").unwrap() as u32;
        let costs = |runner: &mut Runner| {
            runner.read(&Targets::default(), &TickInfo::default());
            let of_node = |row: &(met_core::Row, &[i64])| row.0.part == part;
            let rows: Vec<_> = runner.costs().rows().filter(of_node).collect();
            assert_eq!(rows.len(), 1);
            (rows[0].1[READINGS], rows[0].1[SUCCESS])
        };
        assert_eq!(costs(&mut runner), (0, 0));
        runner.reopen("node", &host, &all);
        assert!(!runner.is_open("node"), "other options do not change that");
        runner.forgive("node");
        runner.reopen("node", &host, &all);
        assert_eq!(costs(&mut runner), (1, 1));
    }

    #[test]
    fn reading_a_process_has_a_price_and_a_row() {
        let host = Host::real().unwrap();
        let me = host.process(std::process::id()).unwrap();
        let target = met_host::TaskTarget::new(me.pid, me.start_ticks, met_host::TaskRole::Member, false);
        let targets = Targets { tasks: vec![target], ..Targets::default() };
        let mut runner = Runner::open_those(&[SOURCES[1]], &host, &Options::default());
        runner.read(&targets, &TickInfo::of(true));
        let (_, cells) = runner.costs().rows().next().unwrap();
        assert!(cells[READ_CPU] > 0);
        assert_eq!((cells[ERRORS], cells[ROWS]), (0, 1));
        let window = runner.batches()[0].window;
        assert!(window.begin_ns < window.end_ns);
    }

    static RARE: SourceSpec = SourceSpec {
        name: "rare",
        help: "",
        pace: Pace::Every(Duration::from_secs(1000 * 3600)),
        tables: &[&TABLE],
        charts: &[],
        options: &[],
        open: open_counting,
    };
    static APART: SourceSpec = SourceSpec {
        name: "apart",
        help: "",
        pace: Pace::Apart(Duration::from_secs(1000 * 3600)),
        tables: &[&TABLE],
        charts: &[],
        options: &[],
        open: open_counting,
    };

    /// Its row says how often it was read.
    struct Counting(i64, Vec<Vec<String>>);

    fn open_counting(_: &Host, _: &Options) -> Opened {
        Ok(Box::new(Counting(0, Vec::new())))
    }

    impl Source for Counting {
        fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
            self.0 += 1;
            self.1 = vec![vec!["label".to_owned()]];
            out[0].push(Subject::Node)[ROWS] = self.0;
            if self.0 < 3 { Ok(()) } else { Err(ReadError::Gone { why: "unplugged".into() }) }
        }

        fn labels(&self) -> &[Vec<String>] {
            &self.1
        }
    }

    fn of_node(spec: &'static SourceSpec, period_max: Option<Duration>) -> Runner {
        let timeout = Duration::from_secs(60);
        let options = Options { node: true, timeout, period_max, ..Options::default() };
        Runner::open_those(&[spec], &Host::real().unwrap(), &options)
    }

    fn seen(runner: &mut Runner) -> Vec<i64> {
        runner.read(&Targets::default(), &TickInfo::default());
        runner.batches()[0].rows().map(|(_, cells)| cells[ROWS]).collect()
    }

    fn readings(runner: &Runner) -> i64 {
        runner.costs().rows().next().unwrap().1[READINGS]
    }

    #[test]
    fn a_source_with_a_period_is_read_once_in_it_and_has_no_rows_in_between() {
        let mut runner = of_node(&RARE, None);
        assert_eq!([seen(&mut runner), seen(&mut runner), seen(&mut runner)], [vec![1], vec![], vec![]]);
        assert_eq!(readings(&runner), 1);
        let mut runner = of_node(&RARE, Some(Duration::from_nanos(1)));
        assert_eq!([seen(&mut runner), seen(&mut runner)], [vec![1], vec![2]]);
        assert_eq!(readings(&runner), 2);
    }

    #[test]
    fn a_table_that_is_held_keeps_what_was_read_last() {
        let mut runner = of_node(&RARE, Some(Duration::from_nanos(1)));
        assert_eq!(seen(&mut runner), [1]);
        runner.hold(RARE.tables.first().copied());
        assert_eq!([seen(&mut runner), seen(&mut runner)], [vec![1], vec![1]]);
        runner.hold(None);
        assert_eq!(seen(&mut runner), [2]);
    }

    #[test]
    fn a_reading_of_a_thread_is_handed_over_once_with_its_own_window() {
        let mut runner = of_node(&APART, None);
        let before_ns = clock::boottime_ns();
        assert_eq!(seen(&mut runner), [1]);
        let source = runner.node().next().unwrap();
        assert!(source.batches[0].window.end_ns <= before_ns, "it was read before it was taken over");
        assert_eq!(source.labels, [["label"]]);
        assert!(seen(&mut runner).is_empty() && seen(&mut runner).is_empty(), "an old reading is no news");
        assert_eq!(readings(&runner), 1);
        let (_, cells) = runner.costs().rows().next().unwrap();
        assert!(cells[BACKGROUND_CPU] > 0 && cells[ROWS] == 1);
    }

    #[test]
    fn a_thread_whose_source_is_gone_ends_and_so_does_the_source() {
        let mut runner = of_node(&APART, Some(Duration::from_nanos(1)));
        let mut rows = Vec::new();
        while runner.new_errors.is_empty() {
            runner.wait(Duration::from_secs(60));
            rows.extend(seen(&mut runner));
        }
        // What came with the error is the last of it.
        assert_eq!(rows.last(), Some(&3));
        assert!(seen(&mut runner).is_empty());
        assert_eq!(runner.take_new_errors()[0].message, "given up: unplugged");
        assert!(seen(&mut runner).is_empty() && runner.fault("apart").is_some(), "no news is not good news");
    }

    #[test]
    fn what_is_switched_off_or_not_asked_for_is_not_opened() {
        let host = Host::real().unwrap();
        let off = HashMap::from([("rare", Choice::OFF)]);
        let options = Options { node: true, choices: off, ..Options::default() };
        let runner = Runner::open_those(&[&RARE], &host, &options);
        assert_eq!(runner.unavailable()[0].1.to_string(), "switched off by sources.rare");
        let runner = Runner::open_those(&[&RARE, &APART], &host, &Options::default());
        assert!(runner.batches().is_empty() && runner.unavailable().is_empty());
    }
}
