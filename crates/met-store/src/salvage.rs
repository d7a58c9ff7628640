//! What can be saved of a damaged catalogue: the jobs that are still as they were written go to a new file, and the old
//! one is kept aside.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use met_core::job::{JobKey, Record, Summary};
use rusqlite::{Connection, OpenFlags};
use serde::{Deserialize, Serialize};

use crate::brief;
use crate::error::StoreError;
use crate::reading::{Names, Parts, Stored, Tally, Term, label, put_summary, put_total};
use crate::record::{self, Terms};
use crate::schema::{CATALOGUE, beside, move_to, name_aside, open_for_writing, open_frozen};
use crate::sql::{Row, Sql, Value, in_transaction};
use crate::sqlite::Sqlite;
use crate::sqlite_pages::{Cell, Kind, Pages};
use crate::sums;

/// Under this name the new catalogue remembers what became of the old one.
pub(crate) const META: &str = "salvage";
/// The new file, before it takes the place of the old one.
const FRESH: &str = ".salvaged";
/// Names that are remembered.
const NAMES_MAX: usize = 50;
const WHY_CHARS_MAX: usize = 200;
/// Columns of a job's row in the file: how many the first version had, and where those of later ones are.
const JOB_COLUMNS_MIN: usize = 15;
const DETAIL: usize = 14;
const ALIAS: usize = 15;
const CHANGED: usize = 16;
const SUM: usize = 17;
/// No store has made this many changes: a higher number is damage, and counting on from it might overflow.
const CHANGES_MAX: i64 = 1 << 53;
/// How far beyond the jobs a counter that cannot be read may have been: removed jobs had numbers, too.
const CHANGES_UNKNOWN: i64 = 1 << 32;
/// Far more than is remembered beside jobs.
const META_MAX: usize = 1000;

/// What became of a damaged store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Salvage {
    /// The damaged file, as it was.
    #[serde(with = "met_core::lossless_path")]
    pub aside: PathBuf,
    /// Why it was given up.
    pub why: String,
    pub recovered: usize,
    /// Jobs that could not be read, by their ids, as far as these are known; the first of them.
    pub lost: Vec<String>,
    /// Their keys, in the same order; none in a store that an earlier version salvaged.
    #[serde(default)]
    pub lost_keys: Vec<JobKey>,
    /// Lost jobs beyond these.
    #[serde(default)]
    pub more_lost: usize,
    /// What is missing from jobs that could.
    pub incomplete: Vec<String>,
}

impl Salvage {
    pub fn lost_count(&self) -> usize {
        self.lost.len() + self.more_lost
    }

    /// A job that could not be read here and is known all the same, because it is still running or was reported again, is
    /// not lost.
    pub fn found_again(&mut self, key: &JobKey) {
        if let Some(at) = self.lost_keys.iter().position(|lost| lost == key)
            && at < self.lost.len()
        {
            self.lost_keys.remove(at);
            self.lost.remove(at);
        }
    }

    /// In a sentence, for logs and screens.
    pub fn sentence(&self) -> String {
        let more = (self.more_lost > 0).then(|| format!("{} more", self.more_lost));
        let names: Vec<&str> = self.lost.iter().chain(&more).map(String::as_str).collect();
        let lost = match self.lost_count() {
            0 => "no job is known to be lost".to_owned(),
            count => format!("{} known to be lost: {}", jobs(count), names.join(", ")),
        };
        let incomplete = match self.incomplete.is_empty() {
            true => String::new(),
            false => format!("; unreadable parts: {}", self.incomplete.join(", ")),
        };
        format!(
            "the store was damaged ({}): {} recovered, {lost}{incomplete}; the damaged file is kept as {}, remove \
             it when it is no longer needed",
            self.why,
            jobs(self.recovered),
            self.aside.display()
        )
    }
}

fn jobs(count: usize) -> String {
    format!("{count} {}", if count == 1 { "job" } else { "jobs" })
}

/// What was found in a file.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// In the order in which they were written.
    pub records: Vec<Record>,
    pub lost: Vec<JobKey>,
    pub incomplete: Vec<String>,
    /// What was remembered that belongs to no job.
    pub meta: HashMap<String, String>,
    /// No change of the file had a higher number.
    pub last_change: i64,
}

/// Rows as they are in the file.
#[derive(Default)]
struct Raw {
    jobs: HashMap<JobKey, Stored>,
    /// Jobs whose row does not fit its checksum, or whose record cannot be read.
    damaged: HashMap<i64, JobKey>,
    /// By their rowids in the index of keys: which jobs there should be.
    known: HashMap<i64, JobKey>,
    names: Names,
    meta: HashMap<String, String>,
    /// The counter of changes, and the highest number that a job has.
    counter: Option<i64>,
    highest: i64,
    totals: HashMap<i64, HashMap<i64, [i64; 4]>>,
    summaries: HashMap<i64, HashMap<i64, Summary>>,
}

/// Reads every job that is whole, from the pages of the file.
pub(crate) fn scan(path: &Path) -> io::Result<Found> {
    let (mut raw, pages) = (Raw::default(), Pages::open(path)?);
    pages.rows(&mut |kind, cells| raw.take(kind, &cells));
    let lost = raw.lost_rows();
    let mut packed = HashMap::new();
    if !lost.is_empty() {
        pages.rows(&mut |kind, cells| {
            packed.extend(raw.packed(kind, &cells, &lost).map(|record| (record.key.clone(), record)));
        });
    }
    Ok(raw.finish(packed))
}

impl Raw {
    /// Tables are recognised by the shape of their rows.
    fn take(&mut self, kind: Kind, cells: &[Cell]) {
        use Cell::{Integer, Null, Text};
        match (kind, cells) {
            (Kind::Table(rowid), [Null, Text(_), Text(_), Text(_), Integer(_), ..])
                if cells.len() >= JOB_COLUMNS_MIN =>
            {
                self.take_job(rowid, cells);
            }
            (Kind::Table(_), [Integer(last)]) if (0..CHANGES_MAX).contains(last) => {
                self.counter = self.counter.max(Some(*last));
            }
            (Kind::Table(key), [Null, Text(text)]) => drop(self.names.insert(key, Some(Term::new(text)))),
            (Kind::Table(key), [Null, Text(text), sum]) => {
                let fits = *sum == Null || *sum == Integer(sums::of_term(key, text));
                self.names.insert(key, fits.then(|| Term::new(text)));
            }
            (
                Kind::Index,
                [Integer(job), Integer(metric), Integer(value), Integer(kind), Integer(source)],
            ) => {
                self.totals.entry(*job).or_default().insert(*metric, [*metric, *value, *kind, *source]);
            }
            // The version is the new file's own.
            (Kind::Index, [Text(name), Text(value)])
                if name != "schema" && name != META && self.meta.len() < META_MAX =>
            {
                self.meta.insert(name.clone(), value.clone());
            }
            (Kind::Index, [Integer(job), Integer(metric), mean, min, max, p50, p95]) => {
                if let (Some(mean), Some(min), Some(max)) = (real(mean), real(min), real(max)) {
                    let summary = Summary { mean, min, max, p50: real(p50), p95: real(p95) };
                    self.summaries.entry(*job).or_default().insert(*metric, summary);
                }
            }
            (Kind::Index, [Text(id), Text(manager), Integer(incarnation), Text(cluster), Integer(rowid)]) => {
                let cluster = Some(cluster.clone()).filter(|cluster| !cluster.is_empty());
                let (id, manager, incarnation) = (id.clone(), manager.clone(), *incarnation);
                self.known.insert(*rowid, JobKey { cluster, manager, id, incarnation });
            }
            _ => {}
        }
    }

    fn take_job(&mut self, rowid: i64, cells: &[Cell]) {
        let integer = |at: usize| match cells.get(at) {
            Some(Cell::Integer(value)) => Some(*value),
            _ => None,
        };
        let changed = integer(CHANGED).unwrap_or(0);
        if (0..CHANGES_MAX).contains(&changed) {
            self.highest = self.highest.max(changed);
        }
        // In the file `alias` comes behind `detail`.
        let alias = cells.get(ALIAS).unwrap_or(&Cell::Null);
        let summed = cells[1..DETAIL].iter().chain([alias, &cells[DETAIL]]).map(value);
        let fits = integer(SUM).is_none_or(|sum| sum == sums::of_row(summed));
        let Some(record) = record_in(&cells[DETAIL]).filter(|_| fits) else {
            self.damaged.extend(key_in(cells).map(|key| (rowid, key)));
            return;
        };
        let (totals_sum, summaries_sum) = (integer(SUM + 1), integer(SUM + 2));
        let stored = Stored { key: rowid, record, changed, totals_sum, summaries_sum, is_damaged: false };
        // Of two images of one job the later is the job.
        let before = self.jobs.get(&stored.record.key).map(|before| before.changed);
        if before.is_none_or(|before| before < changed) {
            self.jobs.insert(stored.record.key.clone(), stored);
        }
    }

    /// Jobs there should be whose record cannot be read, by their rows. The index knows the key of a damaged row better than
    /// the row.
    fn lost_rows(&self) -> HashMap<i64, JobKey> {
        let keys: HashSet<&JobKey> = self.jobs.keys().collect();
        let rows: HashSet<i64> = self.jobs.values().map(|stored| stored.key).collect();
        let damaged = self.damaged.iter().filter(|(row, _)| !rows.contains(row));
        let named = damaged.chain(&self.known).filter(|(_, key)| !keys.contains(key));
        named.map(|(row, key)| (*row, key.clone())).collect()
    }

    /// The record of a lost job in its packed row. One that outlived its job is of no use: the job was removed.
    fn packed(&self, kind: Kind, cells: &[Cell], lost: &HashMap<i64, JobKey>) -> Option<Record> {
        let (
            Kind::Table(rowid),
            [Cell::Null, Cell::Integer(format), Cell::Integer(written), Cell::Bytes(data)],
        ) = (kind, cells)
        else {
            return None;
        };
        let key = lost.get(&rowid)?;
        brief::unpacked(rowid, *format, *written, data, &self.names).filter(|record| record.key == *key)
    }

    /// `packed`: of jobs whose record cannot be read.
    fn finish(mut self, packed: HashMap<JobKey, Record>) -> Found {
        let lost = self.lost_rows();
        let mut found = Found { meta: std::mem::take(&mut self.meta), ..Found::default() };
        // One that is behind the jobs is damaged as well.
        let counter = self.counter.filter(|&last| last >= self.highest);
        found.last_change = counter.unwrap_or(self.highest + CHANGES_UNKNOWN);
        let mut jobs: Vec<Stored> = std::mem::take(&mut self.jobs).into_values().collect();
        jobs.sort_by_key(|stored| (stored.changed, stored.key));
        let lost: HashSet<JobKey> = lost.into_values().filter(|key| !packed.contains_key(key)).collect();
        found.lost = lost.into_iter().collect();
        // Numbers in their order, before names.
        found.lost.sort_by_cached_key(|key| {
            let name = label(&key.manager, &key.id);
            (name.parse::<u64>().unwrap_or(u64::MAX), name, key.cluster.clone(), key.incarnation)
        });
        for mut stored in jobs {
            let mut tally = Tally::default();
            for (_, total) in self.totals.remove(&stored.key).into_iter().flatten() {
                put_total(&mut stored.record, total, &self.names, &mut tally);
            }
            for (metric, summary) in self.summaries.remove(&stored.key).into_iter().flatten() {
                put_summary(&mut stored.record, metric, summary, &self.names, &mut tally);
            }
            found.incomplete.extend(stored.settle(&tally, Parts::ALL));
            found.records.push(stored.record);
        }
        let mut packed: Vec<Record> = packed.into_values().collect();
        packed.sort_by(|one, other| one.key.cmp(&other.key));
        for record in packed {
            let name = label(&record.key.manager, &record.key.id);
            found
                .incomplete
                .push(format!("processes and marked work of {name} (taken from its packed record)"));
            found.records.push(record);
        }
        found
    }
}

/// What names the job of a row.
fn key_in(cells: &[Cell]) -> Option<JobKey> {
    let [_, Cell::Text(cluster), Cell::Text(manager), Cell::Text(id), Cell::Integer(incarnation), ..] = cells
    else {
        return None;
    };
    let cluster = Some(cluster.clone()).filter(|cluster| !cluster.is_empty());
    Some(JobKey { cluster, manager: manager.clone(), id: id.clone(), incarnation: *incarnation })
}

fn value(cell: &Cell) -> Value<'_> {
    match cell {
        Cell::Null | Cell::Bytes(_) => Value::Null,
        Cell::Integer(value) => Value::Integer(*value),
        Cell::Real(value) => Value::Real(*value),
        Cell::Text(text) => Value::Text(text),
    }
}

/// A real number that is whole is kept as an integer.
fn real(cell: &Cell) -> Option<f64> {
    match cell {
        Cell::Real(value) => Some(*value),
        Cell::Integer(value) => Some(*value as f64),
        _ => None,
    }
}

fn record_in(cell: &Cell) -> Option<Record> {
    match cell {
        Cell::Text(text) => serde_json::from_str(text).ok(),
        _ => None,
    }
}

/// Puts a new catalogue with what can be read into the place of a damaged one, which is renamed. Whatever happens in
/// between, one of the two is there.
pub(crate) fn replace(path: &Path, why: &str) -> Result<Salvage, StoreError> {
    let found = scan(path).map_err(StoreError::io(path))?;
    let fresh = beside(path, FRESH);
    crate::series::unlink(&fresh).map_err(StoreError::io(&fresh))?;
    let cut = |mut names: Vec<String>| {
        let more = names.len().saturating_sub(NAMES_MAX);
        names.truncate(NAMES_MAX);
        names.extend((more > 0).then(|| format!("{more} more")));
        names
    };
    let salvage = Salvage {
        aside: name_aside(path),
        // One line: SQLite may have many findings of one damage.
        why: why.lines().next().unwrap_or_default().chars().take(WHY_CHARS_MAX).collect(),
        recovered: found.records.len(),
        more_lost: found.lost.len().saturating_sub(NAMES_MAX),
        lost: found.lost.iter().take(NAMES_MAX).map(|key| label(&key.manager, &key.id)).collect(),
        lost_keys: found.lost.iter().take(NAMES_MAX).cloned().collect(),
        incomplete: cut(found.incomplete),
    };
    // The only connection to it: it leaves no log when it is closed.
    let sql = Sqlite::new(open_for_writing(&fresh, &CATALOGUE, true)?, &fresh);
    in_transaction(&sql, true, || {
        // A reader that holds a change number of the old file gets everything in the new one.
        sql.execute("UPDATE change SET last = ?1", &[found.last_change.into()])?;
        let mut terms = Terms::new();
        found.records.iter().try_for_each(|record| record::write(&sql, &mut terms, record))?;
        copy_rest(path, &sql);
        let text = serde_json::to_string(&salvage).unwrap_or_default();
        let remember = "INSERT OR REPLACE INTO meta (name, value) VALUES (?1, ?2)";
        for (name, value) in &found.meta {
            sql.execute(remember, &[name.into(), value.into()])?;
        }
        sql.execute(remember, &[META.into(), (&text).into()]).map(drop)
    })?;
    drop(sql);
    move_to(path, &salvage.aside).map_err(StoreError::io(path))?;
    take_over(path)?;
    Ok(salvage)
}

/// What belongs to no job, as far as SQLite can still read it: devices, factors of emissions, reactions. Marks of
/// changes are of the old file.
fn copy_rest(path: &Path, sql: &Sqlite) {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let Ok(old) = Connection::open_with_flags(path, flags) else { return };
    let tables = [
        (
            "SELECT uuid, name, vendor, idle_mw, lowest_mw FROM device",
            // One that a job names is there already, without what was learned of it.
            "INSERT INTO device (uuid, name, vendor, idle_mw, lowest_mw) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (uuid) DO UPDATE SET idle_mw = excluded.idle_mw, lowest_mw = excluded.lowest_mw",
            5,
        ),
        (
            "SELECT since_ns, mg_per_kwh, source FROM factor",
            "INSERT OR REPLACE INTO factor (since_ns, mg_per_kwh, source) VALUES (?1, ?2, ?3)",
            3,
        ),
        (
            "SELECT owner, lineage, rule, kind, uid, actor, at_ns, until_ns FROM reaction",
            "INSERT OR REPLACE INTO reaction (owner, lineage, rule, kind, uid, actor, at_ns, until_ns)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            8,
        ),
    ];
    copy_usage(&old, sql);
    for (select, insert, width) in tables {
        let Ok(mut statement) = old.prepare(select) else { continue };
        let Ok(mut rows) = statement.query([]) else { continue };
        while let Ok(Some(row)) = rows.next() {
            let values: Vec<Value<'_>> = (0..width).map(|at| Row::get(row, at)).collect();
            let _ = sql.execute(insert, &values);
        }
    }
}

/// Sums of use with what each job added to them, all or nothing: without the one, the other would count jobs twice.
fn copy_usage(old: &Connection, sql: &Sqlite) {
    let parts: [(&str, &str, usize); 3] = [
        (
            "SELECT key, kind, text FROM usage_group",
            "INSERT INTO usage_group (key, kind, text) VALUES (?1, ?2, ?3)",
            3,
        ),
        (
            "SELECT kind, day, grp, data FROM usage_row",
            "INSERT INTO usage_row (kind, day, grp, data) VALUES (?1, ?2, ?3, ?4)",
            4,
        ),
        (
            "SELECT data, id, manager, incarnation, cluster FROM usage_job JOIN job ON job = key",
            "INSERT INTO usage_job (job, data) SELECT key, ?1 FROM job
             WHERE id = ?2 AND manager = ?3 AND incarnation = ?4 AND cluster = ?5",
            5,
        ),
    ];
    let copy = || -> Option<()> {
        for (select, insert, width) in parts {
            let mut statement = old.prepare(select).ok()?;
            let mut rows = statement.query([]).ok()?;
            while let Some(row) = rows.next().ok()? {
                let values: Vec<Value<'_>> = (0..width).map(|at| Row::get(row, at)).collect();
                sql.execute(insert, &values).ok()?;
            }
        }
        Some(())
    };
    if copy().is_none() {
        for table in ["usage_job", "usage_row", "usage_group"] {
            let _ = sql.execute(&format!("DELETE FROM {table}"), &[]);
        }
    }
}

/// Ends what a process did not live to do: the damaged file was renamed, and the new one was not.
pub(crate) fn take_over(path: &Path) -> Result<(), StoreError> {
    let fresh = beside(path, FRESH);
    if path.exists() || !fresh.exists() {
        return Ok(());
    }
    // SQLite would replay a log of the damaged file into the new one.
    let aside = aside_of(&fresh);
    for suffix in ["-wal", "-shm"] {
        let left = beside(path, suffix);
        let gone = match &aside {
            Some(aside) => fs::rename(&left, beside(aside, suffix)),
            None => fs::remove_file(&left),
        };
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::io(&left)(error));
            }
            _ => {}
        }
    }
    fs::rename(&fresh, path).map_err(StoreError::io(path))
}

/// The path of the damaged file from which this new one, not open anywhere, was made.
fn aside_of(fresh: &Path) -> Option<PathBuf> {
    let connection = open_frozen(fresh).ok()?;
    let saved: String =
        connection.query_row("SELECT value FROM meta WHERE name = ?1", [META], |row| row.get(0)).ok()?;
    let salvage: Salvage = serde_json::from_str(&saved).ok()?;
    salvage.aside.exists().then_some(salvage.aside)
}
