//! Series in files of our own, one for each day.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use met_core::Table;
use met_core::job::JobKey;
use met_core::series::{Columns, Series};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};

use crate::day;
use crate::error::StoreError;
use crate::query::keep_writers_away;
use crate::read_days::ReadDays;
use crate::schema::{ASIDE, SERIES, Sharing, give_back, move_aside, open_for_writing, open_shared_or_alone};
use crate::series::{self, SeriesStore, Usage};
use crate::thinning::{self, Position};
use crate::written_day::WrittenDay;
use met_wire::block::Unpacker;

/// Jobs run over midnight, and the day before may still get samples.
const OPEN_DAYS_MAX: usize = 2;
const FEW_DAYS: i64 = 12;
/// Of the files of samples, for a report that a user waits for: about a second.
const BYTES_LOOKED_THROUGH: u64 = 512 << 20;

pub(crate) struct DayFiles {
    state: PathBuf,
    is_network: bool,
    sharing: Sharing,
    /// Days the writer has open: on a network file system no second connection gets in.
    open_days: RefCell<Vec<WrittenDay>>,
    read_days: RefCell<ReadDays>,
    /// Days whose file cannot be read and for which that was reported.
    reported: RefCell<BTreeSet<i64>>,
}

/// The files of samples that cannot be read, all or in part, each with the reason, oldest first. The latest ones are looked
/// through.
pub fn unreadable_days(state: &Path) -> Vec<String> {
    let guard = keep_writers_away(state);
    let sharing = if guard.is_some() { Sharing::Alone } else { Sharing::Shared };
    let mut left = BYTES_LOOKED_THROUGH;
    let mut unreadable = |day: i64| {
        let path = series::path_of(state, day);
        let why = match open_shared_or_alone(&path, &SERIES, sharing) {
            Ok(opened) => {
                let is_near = Some(series::bytes_of(&path)).filter(|&bytes| bytes <= left);
                left = left.saturating_sub(is_near?);
                let damage = damage_of(&opened?)?;
                format!("damaged, some of its samples are missing: {damage}")
            }
            Err(error) => error.unusable_file()?,
        };
        Some(format!("{}: {why}", path.display()))
    };
    let days = series::days(state).unwrap_or_default();
    let mut found: Vec<String> = days.into_iter().rev().filter_map(&mut unreadable).collect();
    found.reverse();
    found
}

/// What SQLite first finds wrong with a file.
fn damage_of(connection: &Connection) -> Option<String> {
    let checked = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    match checked {
        Ok(found) if found == "ok" => None,
        // There is a heading above it.
        Ok(found) => found.lines().find(|line| !line.starts_with("***")).map(str::to_owned),
        Err(error) => {
            matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
                .then(|| error.to_string())
        }
    }
}

/// Files of samples that were damaged and renamed, oldest first.
pub fn damaged_days(state: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(state.join(series::FOLDER)).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_damaged = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(ASIDE) && !["-wal", "-shm"].iter().any(|log| name.ends_with(log))
    };
    let mut damaged: Vec<PathBuf> = paths.filter(is_damaged).collect();
    damaged.sort_unstable();
    damaged
}

impl DayFiles {
    pub fn new(state: &Path, is_network: bool, sharing: Sharing) -> DayFiles {
        let (open_days, read_days, reported) = Default::default();
        DayFiles { state: state.to_path_buf(), is_network, sharing, open_days, read_days, reported }
    }

    /// Adds what is of one day, in one transaction.
    fn append_day(
        &mut self,
        all_series: &[(&JobKey, &Series)],
        day: i64,
        durable: bool,
    ) -> Result<(), StoreError> {
        let path = series::path_of(&self.state, day);
        self.close_if_replaced(day)?;
        let open_days = self.open_days.get_mut();
        let at = match open_days.iter().position(|open| open.day == day) {
            Some(at) => at,
            None => {
                self.read_days.get_mut().close(day);
                let opened =
                    WrittenDay::open(day, &path, |path| open_for_writing(path, &SERIES, self.is_network))?;
                keep_plans(&opened.connection).map_err(StoreError::database(&path))?;
                if open_days.len() == OPEN_DAYS_MAX {
                    open_days.remove(0);
                }
                open_days.push(opened);
                open_days.len() - 1
            }
        };
        let mut of_day = all_series.iter().filter(|(_, series)| days_of(series).any(|of| of == day));
        in_transaction(&mut open_days[at].connection, durable, |connection| {
            of_day.try_for_each(|(key, series)| series::append(connection, key, series, day))
        })
        .map_err(StoreError::database(&path))
    }

    /// What is written to a file that was removed or replaced meanwhile is lost.
    fn close_if_replaced(&self, day: i64) -> Result<(), StoreError> {
        let mut open_days = self.open_days.borrow_mut();
        if let Some(at) = open_days.iter().position(|open| open.day == day)
            && !open_days[at].is_there()?
        {
            open_days.remove(at);
        }
        Ok(())
    }

    /// Changes the file of a day; nothing can be read from a damaged one, so there is nothing to change.
    fn change_day<T>(
        &mut self,
        day: i64,
        change: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, StoreError> {
        let path = series::path_of(&self.state, day);
        self.read_days.get_mut().close(day);
        self.close_if_replaced(day)?;
        let is_network = self.is_network;
        let open = |path: &Path| open_for_writing(path, &SERIES, is_network);
        let mut opened = None;
        let connection = match self.open_days.get_mut().iter_mut().find(|open| open.day == day) {
            Some(open) => &mut open.connection,
            None => match WrittenDay::open(day, &path, open) {
                Ok(day) => &mut opened.insert(day).connection,
                Err(StoreError::Damaged { .. }) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        match change(connection).map_err(StoreError::database(&path)) {
            Err(StoreError::Damaged { .. }) => Ok(None),
            changed => changed.map(Some),
        }
    }

    /// Removes these from the file of a day.
    fn remove_from_day(&mut self, keys: &[JobKey], day: i64, gives_back: bool) -> Result<(), StoreError> {
        let removed = self.change_day(day, |connection| {
            in_transaction(connection, false, |connection| {
                keys.iter().try_for_each(|key| series::remove(connection, key))
            })?;
            if gives_back { give_back(connection, None).map(drop) } else { Ok(()) }
        });
        removed.map(drop)
    }

    /// Asks the file of a day; one that is damaged or not there has nothing to say.
    fn ask_day(
        &self,
        day: i64,
        ask: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        match self.query_day(day, ask) {
            Err(StoreError::Damaged { .. }) => Ok(()),
            result => result,
        }
    }

    /// Reads samples from the file of a day. One that cannot be read is skipped and reported once: it hides no other
    /// day.
    fn read_day(
        &self,
        day: i64,
        ask: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let Err(error) = self.query_day(day, ask) else { return Ok(()) };
        let Some(why) = error.unusable_file() else { return Err(error) };
        if self.reported.borrow_mut().insert(day) {
            let path = series::path_of(&self.state, day);
            let (day, path) = (day::name(day), path.display());
            tracing::warn!("samples of {day} are skipped: {path}: {why}; see `met doctor`");
        }
        Ok(())
    }

    fn query_day(
        &self,
        day: i64,
        ask: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        // Without a writer, an open file is never replaced.
        if self.sharing == Sharing::Alone
            && let Some(connection) = self.read_days.borrow_mut().opened(day)
        {
            let path = || series::path_of(&self.state, day);
            return ask(connection).map_err(|error| StoreError::database(&path())(error));
        }
        let path = series::path_of(&self.state, day);
        self.close_if_replaced(day)?;
        if let Some(open) = self.open_days.borrow().iter().find(|open| open.day == day) {
            return ask(&open.connection).map_err(StoreError::database(&path));
        }
        let mut read_days = self.read_days.borrow_mut();
        let opened = read_days.get(day, &path, || {
            let connection = open_shared_or_alone(&path, &SERIES, self.sharing)?;
            connection.as_ref().map_or(Ok(()), keep_plans).map_err(StoreError::database(&path))?;
            Ok(connection)
        })?;
        let asked = opened.map_or(Ok(()), ask).map_err(StoreError::database(&path));
        if asked.is_err() || !self.keeps_open() {
            read_days.close(day);
        }
        asked
    }

    /// On a network file system a writer has the file for itself: who reads beside one must not hold it.
    fn keeps_open(&self) -> bool {
        !self.is_network || self.sharing == Sharing::Alone
    }

    /// Those of these days that may have a file.
    fn days_between(&self, (first, last): (i64, i64)) -> Result<Vec<i64>, StoreError> {
        // To look for a few files takes less than to list all.
        if first <= last && last.saturating_sub(first) < FEW_DAYS {
            return Ok((first..=last).collect());
        }
        let mut days = self.file_days()?;
        days.retain(|day| (first..=last).contains(day));
        Ok(days)
    }

    fn file_days(&self) -> Result<Vec<i64>, StoreError> {
        series::days(&self.state).map_err(StoreError::io(&self.state))
    }
}

impl SeriesStore for DayFiles {
    fn append(
        &mut self,
        all_series: &[(&JobKey, &Series)],
        durable: bool,
    ) -> Result<Option<PathBuf>, StoreError> {
        self.read_days.get_mut().close_unused();
        let mut moved_aside = None;
        let days: BTreeSet<i64> = all_series.iter().flat_map(|(_, series)| days_of(series)).collect();
        for day in days {
            match self.append_day(all_series, day, durable) {
                Err(StoreError::Damaged { path, .. }) => {
                    self.open_days.get_mut().retain(|open| open.day != day);
                    moved_aside = Some(move_aside(&path).map_err(StoreError::io(&path))?);
                    self.append_day(all_series, day, durable)?;
                }
                result => result?,
            }
        }
        Ok(moved_aside)
    }

    /// Every block that overlaps the span, from the files of these days.
    fn columns_between(
        &self,
        key: &JobKey,
        table: &'static Table,
        wanted: Columns,
        span_ms: (i64, i64),
        days: (i64, i64),
    ) -> Result<Series, StoreError> {
        let mut unpacker = Unpacker::only(table, wanted);
        for day in self.days_between(days)? {
            self.read_day(day, |connection| {
                series::each_block(connection, key, table, span_ms, |data| {
                    // A damaged one is a gap.
                    let _ = unpacker.push(data);
                })
            })?;
        }
        Ok(unpacker.finish())
    }

    fn node_parts(
        &self,
        node: &str,
        _: &[&'static Table],
        days: (i64, i64),
    ) -> Result<BTreeSet<(String, String)>, StoreError> {
        let mut found = BTreeSet::new();
        for day in self.days_between(days)? {
            self.read_day(day, |connection| series::node_parts(connection, node, &mut found))?;
        }
        Ok(found)
    }

    fn first_node_day(
        &self,
        node: &str,
        tables: &[&'static Table],
        days: (i64, i64),
    ) -> Result<Option<i64>, StoreError> {
        for day in self.days_between(days)? {
            if !self.node_parts(node, tables, (day, day))?.is_empty() {
                return Ok(Some(day));
            }
        }
        Ok(None)
    }

    fn remove(&mut self, key: &JobKey) -> Result<(), StoreError> {
        let keys = std::slice::from_ref(key);
        self.file_days()?.into_iter().try_for_each(|day| self.remove_from_day(keys, day, false))
    }

    fn days(&self) -> Result<Vec<(i64, u64)>, StoreError> {
        let bytes = |day: i64| series::bytes_of(&series::path_of(&self.state, day));
        Ok(self.file_days()?.into_iter().map(|day| (day, bytes(day))).collect())
    }

    fn remove_day(&mut self, day: i64) -> Result<(), StoreError> {
        self.open_days.get_mut().retain(|open| open.day != day);
        self.read_days.get_mut().close(day);
        let path = series::path_of(&self.state, day);
        series::unlink(&path).map_err(StoreError::io(&path))
    }

    fn close_files(&self) {
        self.read_days.borrow_mut().close_all();
    }

    fn usage(&self, day: i64) -> Result<Vec<Usage>, StoreError> {
        let mut usage = Vec::new();
        self.ask_day(day, |connection| series::usage(connection, &mut usage))?;
        Ok(usage)
    }

    fn remove_of_day(&mut self, day: i64, keys: &[JobKey]) -> Result<(), StoreError> {
        self.remove_from_day(keys, day, true)
    }

    fn thin_day(
        &mut self,
        at: &mut Position,
        tables: &[&'static Table],
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let done = self.change_day(at.day(), |connection| {
            while let Some(series) = thinning::next_series(connection, at)? {
                let table = tables.iter().find(|table| table.name == series.1);
                at.advance(series);
                if let Some(table) = table {
                    match in_transaction(connection, false, |connection| at.thin(connection, table)) {
                        // Blocks that overlap, as damage may leave them: these stay.
                        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {}
                        thinned => thinned?,
                    }
                }
                if Instant::now() >= deadline {
                    return Ok(false);
                }
            }
            give_back(connection, Some(deadline))
        })?;
        Ok(done.unwrap_or(true))
    }
}

/// The days that a series has samples of.
fn days_of(series: &Series) -> impl Iterator<Item = i64> + '_ {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let day = day::of_ms(*series.times_ms.get(begin)?);
        begin = series.times_ms.partition_point(|&time| day::of_ms(time) <= day).max(begin + 1);
        Some(day)
    })
}

/// Statements are planned once. Otherwise SQLite plans those again whose values change, which takes longer than to run them:
/// hundreds of series are written in a row.
fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Runs `work` in one transaction, on disk when this returns if it is to be durable.
pub(crate) fn in_transaction<T>(
    connection: &mut Connection,
    durable: bool,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let level = if durable { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
    connection.execute_batch(level)?;
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}
