//! What a sink is, and how it is configured.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use met_core::Table;
use met_core::units::parse_duration;

use crate::event::{Event, Kind};

/// Events that wait for a sink.
pub(crate) const QUEUE: usize = 1024;
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Takes events, each sink in a thread of its own.
pub trait Sink: Send {
    /// May block: only this sink waits.
    fn take(&mut self, event: &Event) -> Result<(), SinkError>;

    /// No event is queued: whatever is buffered can be written.
    fn idle(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Samples that were lost before they reached it: its queue was full, or it was not open.
    fn missed(&mut self, _samples: u64) {}

    /// What happened since it was last asked, for a sink that buffers and retries by itself.
    fn report(&mut self) -> Option<Report> {
        None
    }

    fn close(self: Box<Self>) {}
}

/// How a sink that buffers and retries by itself gets on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Samples that it gave up since the last report.
    pub dropped: u64,
    /// An attempt that failed since the last report.
    pub failure: Option<String>,
    /// It will try again.
    pub is_retrying: bool,
    /// It has logged that by itself.
    pub is_logged: bool,
    /// When it has something to do, even if no event comes.
    pub wake: Option<Instant>,
}

/// Which events a sink wants.
#[derive(Clone, Debug)]
pub struct Interest {
    pub kinds: Vec<Kind>,
    /// Tables whose rows it wants at every tick.
    pub tables: Vec<String>,
    /// How long it waits for samples at most; the store decides if not given.
    pub within: Option<Duration>,
    /// How many events may wait for it.
    pub queue: usize,
    /// It has work to do without any event, so after an error it is opened again without one.
    pub is_timed: bool,
    /// It reads records of jobs elsewhere: starts and ends only hurry it, and none is lost with them.
    pub has_records: bool,
    /// One that is not closed by then is not waited for any longer when the process ends.
    pub close_within: Duration,
}

impl Default for Interest {
    fn default() -> Interest {
        Interest {
            kinds: Vec::new(),
            tables: Vec::new(),
            within: None,
            queue: QUEUE,
            is_timed: false,
            has_records: false,
            close_within: CLOSE_WITHIN,
        }
    }
}

impl Interest {
    pub fn wants(&self, event: &Event) -> bool {
        match event {
            Event::Tick(tick) => self.wants_table(tick.table.name),
            event => self.kinds.contains(&event.kind()),
        }
    }

    pub(crate) fn wants_table(&self, name: &str) -> bool {
        self.tables.iter().any(|table| table == name)
    }
}

/// What goes on after an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// This event is lost. The sink is opened again after a pause, and gets the next one.
    #[error("{0}")]
    Lost(String),
    /// The same, but it gets this event again, some times.
    #[error("{0}")]
    Retry(String),
    /// It takes nothing until the process is restarted.
    #[error("{0}")]
    Failed(String),
}

pub type Opened = Result<Box<dyn Sink>, SinkError>;

/// What can be said of a sink before it is opened.
#[derive(Debug)]
pub struct SinkSpec {
    pub name: &'static str,
    pub help: &'static str,
    pub options: &'static [SinkOption],
    /// It is configured in a section of its name, and not in the list `sinks`.
    pub has_section: bool,
    /// Known before it is opened: what a sink misses until then is counted.
    pub interest: fn(&Options) -> Interest,
    /// In the thread of the sink, and again after an error.
    pub open: fn(&Options) -> Opened,
}

#[derive(Debug)]
pub struct SinkOption {
    pub name: &'static str,
    /// What may be written, for the reference.
    pub values: &'static str,
    pub default: &'static str,
    /// Whether a list may be given.
    pub many: bool,
    pub help: &'static str,
    /// Says what is wrong with a value; the tables are all there are.
    pub check: fn(&str, &[&'static Table]) -> Result<(), String>,
}

/// Options that several sinks have.
impl SinkOption {
    pub(crate) const fn url(name: &'static str, default: &'static str, help: &'static str) -> SinkOption {
        let check = |value: &str, _: &[&'static Table]| match value.starts_with("http://")
            || value.starts_with("https://")
        {
            true => Ok(()),
            false => Err(format!("{value:?} is not a URL, which begins with http:// or https://")),
        };
        SinkOption { name, values: "a URL", default, many: false, help, check }
    }

    pub(crate) const fn path(name: &'static str, help: &'static str) -> SinkOption {
        SinkOption { name, values: "a path", default: "", many: false, help, check: |_, _| Ok(()) }
    }

    pub(crate) const fn yes_or_no(
        name: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> SinkOption {
        let check = |value: &str, _: &[&'static Table]| one_of(value, &["yes", "no"]);
        SinkOption { name, values: "`yes` or `no`", default, many: false, help, check }
    }

    pub(crate) const fn duration(
        name: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> SinkOption {
        let check = |value: &str, _: &[&'static Table]| match parse_duration(value) {
            Ok(duration) if duration >= Duration::from_millis(100) => Ok(()),
            Ok(_) => Err(format!("{value:?} is too short; the least is 100ms")),
            Err(error) => Err(error.to_string()),
        };
        SinkOption { name, values: "a duration", default, many: false, help, check }
    }

    pub(crate) const fn tables(default: &'static str, help: &'static str) -> SinkOption {
        let check = |value: &str, tables: &[&'static Table]| {
            one_of(value, &tables.iter().map(|table| table.name).collect::<Vec<_>>())
        };
        let values = "names of tables (`met metrics`)";
        SinkOption { name: "tables", values, default, many: true, help, check }
    }
}

/// The options of one sink, checked, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    values: BTreeMap<&'static str, Vec<String>>,
    /// The node whose daemon opens the sink; `None` on a server. Known when it is opened.
    pub node: Option<String>,
    /// Where it may keep files, if it has any; below the state of daemon or server. Known when it is opened.
    pub folder: Option<PathBuf>,
    pub context: Context,
}

/// What a process hands to a sink beside options, of the type that this sink knows.
#[derive(Clone, Default)]
pub struct Context(Option<Arc<dyn Any + Send + Sync>>);

impl Context {
    pub fn new(content: impl Any + Send + Sync) -> Context {
        Context(Some(Arc::new(content)))
    }

    pub(crate) fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(if self.0.is_some() { "Context(..)" } else { "Context" })
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Context) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for Context {}

impl Options {
    pub fn set(&mut self, name: &'static str, values: Vec<String>) {
        self.values.insert(name, values);
    }

    pub fn list(&self, name: &str) -> Option<&[String]> {
        self.values.get(name).map(Vec::as_slice)
    }

    pub fn word(&self, name: &str) -> Option<&str> {
        self.list(name)?.first().map(String::as_str)
    }

    /// The given value, else the default of the option, which has this form.
    pub(crate) fn value<T>(&self, name: &str, default: &'static str, parse: impl Fn(&str) -> Option<T>) -> T {
        self.word(name).and_then(&parse).or_else(|| parse(default)).expect("a constant")
    }

    pub(crate) fn duration(&self, name: &str, default: &'static str) -> Duration {
        self.value(name, default, |text| parse_duration(text).ok())
    }

    /// A list; the default is separated by commas.
    pub(crate) fn words(&self, name: &str, default: &'static str) -> Vec<String> {
        let chosen = self.list(name).map(<[String]>::to_vec);
        chosen.unwrap_or_else(|| default.split(", ").map(str::to_owned).collect())
    }

    /// The names of tables.
    pub(crate) fn tables(&self, default: &'static str) -> Vec<String> {
        self.words("tables", default)
    }
}

/// A sink that the configuration names.
#[derive(Clone, Debug)]
pub struct Configured {
    pub spec: &'static SinkSpec,
    pub options: Options,
}

impl PartialEq for Configured {
    fn eq(&self, other: &Configured) -> bool {
        (self.spec.name, &self.options) == (other.spec.name, &other.options)
    }
}

/// A check for one of some words.
pub fn one_of(value: &str, words: &[&str]) -> Result<(), String> {
    match words.contains(&value) {
        true => Ok(()),
        false => Err(format!("{value:?} is not one of {}", words.join(", "))),
    }
}
