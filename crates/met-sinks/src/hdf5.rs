//! Colmet's records in HDF5 files, in the layout of its collector: `/job_ID/metric_backend`, one table for all hosts.
//!
//! Rows are collected, and written when there are many, at an interval and when the file is closed. Readers may open the file at
//! any time: rows become visible last, and a killed process leaves all rows that it wrote.

mod disk;
mod group;
mod index;
mod table;
mod tables;
mod unsaved;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use met_wire::colmet::Record;

use crate::clock::now_ns;
use crate::colmet_records::{self, Chosen, Gatherer};
use crate::event::Event;
use crate::reopen;
use crate::sink::{Interest, Opened, Options, Report, Sink, SinkError, SinkOption, SinkSpec, one_of};
use disk::{CANNOT_CONTINUE, Disk};
use group::Group;
use tables::Tables;

const BACKENDS: &str = "all";
/// Compression of new tables: none.
const LEVEL: &str = "0";
const FLUSH: &str = "60s";
const ENDING: &str = ".hdf5";
/// Between attempts to open the file again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

pub static SPEC: SinkSpec = SinkSpec {
    name: "hdf5",
    help: "records as colmet-collector stores them, in HDF5 files that its tools, PyTables and h5py read",
    options: &[
        SinkOption {
            name: "path",
            values: "a path",
            default: "",
            many: false,
            help: "required. One that ends in `.hdf5` is appended to; any other becomes `PATH.SECONDS.hdf5`, a new file at start and at every SIGHUP",
            check: |value, _| match value.starts_with('/') {
                true => Ok(()),
                false => Err(format!("{value:?} is not an absolute path")),
            },
        },
        SinkOption {
            name: "level",
            values: "0 to 9",
            default: LEVEL,
            many: false,
            help: "compression of new tables: shuffle and deflate; 0: none",
            check: |value, _| one_of(value, &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]),
        },
        SinkOption::duration(
            "flush",
            FLUSH,
            "after this time rows are in the file, even if they fill no chunk of it",
        ),
        SinkOption::yes_or_no(
            "sync",
            "yes",
            "`yes`: fsync after every flush. Flushed rows survive a kill either way; a loss of power during a flush can damage the file",
        ),
        colmet_records::PERIOD,
        colmet_records::backends(BACKENDS),
        colmet_records::EVENTS,
        colmet_records::MANAGERS,
    ],
    has_section: false,
    interest,
    open,
};

fn interest(options: &Options) -> Interest {
    Chosen::of(options, BACKENDS).interest()
}

fn open(options: &Options) -> Opened {
    let path =
        options.word("path").ok_or_else(|| SinkError::Failed("sinks.hdf5.path is required".to_owned()))?;
    let syncs = options.word("sync") != Some("no");
    let naming = Naming { path: PathBuf::from(path), level: level(options), past_cache: syncs };
    let file = naming.open()?;
    let flush_every = options.duration("flush", FLUSH);
    Ok(Box::new(Hdf5 {
        gatherer: Gatherer::new(Chosen::of(options, BACKENDS)),
        naming,
        file,
        syncs,
        flush_every,
        flush_at: Instant::now() + flush_every,
        requests: reopen::requests(),
        rotates: false,
        failed: None,
    }))
}

/// Whether a sink would append to this file, for a program that must end otherwise. Nothing is written.
pub fn check_continues(path: &Path) -> anyhow::Result<()> {
    if !path.to_string_lossy().ends_with(ENDING) || !path.is_file() {
        return Ok(());
    }
    let (disk, root) = Disk::open(File::open(path)?)?;
    Group::open(&disk, root).map(drop).context(CANNOT_CONTINUE)
}

fn level(options: &Options) -> u32 {
    options.value("level", LEVEL, |level| level.parse().ok())
}

struct Naming {
    path: PathBuf,
    level: u32,
    /// Rows go past the page cache: a flush waits for the disk anyway.
    past_cache: bool,
}

impl Naming {
    fn is_one_file(&self) -> bool {
        self.path.to_string_lossy().ends_with(ENDING)
    }

    /// The file that is written from now on.
    fn file(&self, now_s: i64) -> PathBuf {
        match self.is_one_file() {
            true => self.path.clone(),
            false => {
                let mut name = self.path.clone().into_os_string();
                name.push(format!(".{now_s}{ENDING}"));
                name.into()
            }
        }
    }

    fn open(&self) -> Result<Tables, SinkError> {
        let path = self.file(now_ns() / 1_000_000_000);
        let mut file = Tables::open(&path, self.level).map_err(|error| failed(&path, &error))?;
        self.prepare(&mut file);
        Ok(file)
    }

    fn prepare(&self, file: &mut Tables) {
        if self.past_cache {
            file.write_past_cache();
        }
    }
}

fn failed(path: &Path, error: &anyhow::Error) -> SinkError {
    // Most reasons go away: a full disk, a folder that is not mounted yet.
    SinkError::Lost(format!("{}: {error:#}", path.display()))
}

struct Hdf5 {
    gatherer: Gatherer,
    naming: Naming,
    file: Tables,
    syncs: bool,
    flush_every: Duration,
    flush_at: Instant,
    requests: u64,
    /// Another file was asked for and is not open yet.
    rotates: bool,
    /// While the file cannot be written.
    failed: Option<Failed>,
}

/// Rows wait, and the file is tried again.
struct Failed {
    /// Why, until it was reported.
    error: Option<String>,
    pause: Duration,
    at: Instant,
}

impl Hdf5 {
    fn write<'a>(&mut self, records: impl IntoIterator<Item = &'a Record>) {
        self.rotate();
        for record in records {
            let added = self.file.add(record);
            self.note(added);
        }
        let (now, retry_at) = (Instant::now(), self.failed.as_ref().map(|failed| failed.at));
        if now >= retry_at.unwrap_or(self.flush_at) {
            self.flush();
        }
    }

    /// Writes all rows; also those that wait since an error.
    fn flush(&mut self) {
        self.flush_at = Instant::now() + self.flush_every;
        let opened = match self.failed {
            None => Ok(()),
            Some(_) => self.file.reopen().map(|()| self.naming.prepare(&mut self.file)),
        };
        let flushed = opened.and_then(|()| self.file.flush(self.syncs));
        if flushed.is_ok() {
            self.failed = None;
        }
        self.note(flushed);
    }

    /// After an error, as one of a full disk, rows wait in memory, and the file is opened again after a pause.
    fn note(&mut self, done: anyhow::Result<()>) {
        if let Err(error) = done {
            let pause = self.failed.as_ref().map(|failed| failed.pause);
            self.fail(&error, pause);
        }
    }

    /// `pause`: that of the attempt before, if it failed.
    fn fail(&mut self, error: &anyhow::Error, pause: Option<Duration>) {
        self.file.break_off();
        let error = format!("{error:#} ({} rows wait)", self.file.waiting_rows());
        let error = failed(&self.file.path, &anyhow::anyhow!(error)).to_string();
        let pause = pause.map_or(PAUSE_MIN, |pause| (2 * pause).min(PAUSE_MAX));
        self.failed = Some(Failed { error: Some(error), pause, at: Instant::now() + pause });
    }

    /// A new file after a SIGHUP; the same one is opened again if it was moved away. While that fails, rows go to the old one,
    /// and it is tried again after a pause.
    fn rotate(&mut self) {
        let requests = reopen::requests();
        let is_asked = std::mem::replace(&mut self.requests, requests) != requests;
        self.rotates |= is_asked;
        let is_due = is_asked || self.failed.as_ref().is_none_or(|failed| Instant::now() >= failed.at);
        if !self.rotates || !is_due {
            return;
        }
        let pause = self.failed.as_ref().map(|failed| failed.pause);
        self.flush();
        // Within one second the name is the same, and so is the file.
        if !self.naming.is_one_file() && self.naming.file(now_ns() / 1_000_000_000) == self.file.path {
            self.rotates = false;
            return;
        }
        self.file.release();
        match self.naming.open() {
            Ok(mut file) => {
                let taken = file.take_over(&mut self.file);
                (self.file, self.failed, self.rotates) = (file, None, false);
                self.note(taken);
            }
            Err(error) => self.fail(&error.into(), pause),
        }
    }
}

impl Sink for Hdf5 {
    fn take(&mut self, event: &Event) -> Result<(), SinkError> {
        if let Event::Colmet(records) = event {
            self.gatherer.note_foreign(records);
            let backends = self.gatherer.backends().to_vec();
            self.write(records.iter().filter(|record| backends.contains(&record.backend)));
            return Ok(());
        }
        let mut records = Vec::new();
        self.gatherer.take(event, &mut records);
        self.write(&records);
        Ok(())
    }

    fn idle(&mut self) -> Result<(), SinkError> {
        let mut records = Vec::new();
        self.gatherer.idle(Instant::now(), &mut records);
        self.write(&records);
        Ok(())
    }

    fn report(&mut self) -> Option<Report> {
        let retry = self.failed.as_ref().map(|failed| failed.at);
        let flush = retry.or(self.file.has_rows().then_some(self.flush_at));
        let wake = self.gatherer.due().into_iter().chain(flush).min();
        let (dropped, refused) = self.file.refused();
        let failure = self.failed.as_mut().and_then(|failed| failed.error.take()).or(refused);
        Some(Report { dropped, failure, is_retrying: self.failed.is_some(), is_logged: false, wake })
    }

    fn close(mut self: Box<Self>) {
        let mut records = Vec::new();
        self.gatherer.idle(Instant::now() + Duration::from_secs(60), &mut records);
        self.write(&records);
        self.flush();
        if let Some(Failed { error: Some(error), .. }) = self.failed {
            tracing::warn!("sink hdf5: {error}; they are lost");
        }
    }
}

#[cfg(test)]
#[path = "hdf5/tests.rs"]
mod tests;
