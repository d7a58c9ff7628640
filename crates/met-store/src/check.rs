//! Whether a catalogue is as it was written: by the database's own checks, and by the checksum of every record.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use met_core::job::Summary;

use crate::brief;
use crate::error::StoreError;
use crate::query::{CATALOGUE_FILE, keep_writers_away};
use crate::reading::{self, SUM_VERSION, Tally};
use crate::schema::{CATALOGUE, Sharing, open_shared_or_alone};
use crate::sql::{self, Sql};
use crate::sqlite::Sqlite;
use crate::sums;

/// Rows checked in one statement.
const CHUNK: usize = 500;
/// More problems than these say nothing new.
const PROBLEMS_MAX: usize = 20;

/// What a check found.
#[derive(Debug, Default)]
pub struct Checked {
    pub records: u64,
    /// Written by an earlier version, and without a checksum as yet.
    pub unsummed: u64,
    pub problems: Vec<String>,
    /// Jobs whose packed record is not what their record says.
    pub unlike_packed: Vec<String>,
}

/// Checks the catalogue in a state directory, also while it is written. `None` where there is none.
pub fn check(state: &Path) -> Result<Option<Checked>, StoreError> {
    let path = state.join(CATALOGUE_FILE);
    // Without a writer it is opened so that nothing is written, not even shared memory.
    let guard = keep_writers_away(state);
    let sharing = if guard.is_some() { Sharing::Alone } else { Sharing::Shared };
    match open_shared_or_alone(&path, &CATALOGUE, sharing) {
        Ok(Some(connection)) => {
            let sql = Sqlite::new(connection, &path);
            let mut checked = look(&sql)?;
            if checked.problems.is_empty() {
                let compared = brief::compare(&sql, i64::MIN, Some(Instant::now() + COMPARE_FOR))?;
                checked.unlike_packed = compared.differing.into_iter().map(|(_, name)| name).collect();
            }
            Ok(Some(checked))
        }
        Ok(None) => Ok(None),
        Err(StoreError::Damaged { what, .. }) => {
            Ok(Some(Checked { problems: vec![what], ..Checked::default() }))
        }
        Err(error) => Err(error),
    }
}

/// How long packed records are compared with their records. A million takes minutes, and a daemon compares all in time.
const COMPARE_FOR: Duration = Duration::from_secs(10);

type Part = fn(&dyn Sql, &mut Checked) -> Result<(), StoreError>;

/// Looks through all of it. What cannot be read is a problem, not an error.
pub(crate) fn look(sql: &dyn Sql) -> Result<Checked, StoreError> {
    let mut checked = Checked::default();
    let parts: [Part; 3] = [integrity, changes, records];
    for part in parts {
        // What is written meanwhile is no damage.
        match sql::in_snapshot(sql, || part(sql, &mut checked)) {
            Err(StoreError::Damaged { what, .. }) => checked.problems.push(what),
            result => result?,
        }
    }
    checked.problems.dedup();
    checked.problems.truncate(PROBLEMS_MAX);
    Ok(checked)
}

fn integrity(sql: &dyn Sql, checked: &mut Checked) -> Result<(), StoreError> {
    checked.problems.extend(sql.integrity()?);
    Ok(())
}

/// Numbers of changes are never given twice.
fn changes(sql: &dyn Sql, checked: &mut Checked) -> Result<(), StoreError> {
    if sql.version()? < 3 {
        return Ok(());
    }
    let counts = sql::first(sql, "SELECT count(*), max(last) FROM change", &[], |row| {
        Ok((row.get(0).integer()?, row.get(1).integer().ok()))
    })?;
    let highest = sql::first(sql, "SELECT max(changed) FROM job", &[], |row| Ok(row.get(0).integer().ok()))?;
    let (rows, last) = counts.unwrap_or((0, None));
    if rows != 1 || last < highest.flatten() {
        checked.problems.push("change counter is wrong".to_owned());
    }
    Ok(())
}

fn records(sql: &dyn Sql, checked: &mut Checked) -> Result<(), StoreError> {
    let names = reading::names(sql)?;
    for (key, _) in names.iter().filter(|(_, name)| name.is_none()) {
        checked.problems.push(format!("term {key}: checksum mismatch"));
    }
    let tallies = tallies(sql)?;
    let version = sql.version()?;
    let columns = reading::columns(version);
    let statement = format!("SELECT {columns} FROM job WHERE key > ?1 ORDER BY key LIMIT {CHUNK}");
    let mut after = i64::MIN;
    loop {
        let mut rows = 0;
        sql.query(&statement, &[after.into()], &mut |row| {
            rows += 1;
            after = row.get(0).integer()?;
            checked.records += 1;
            let tally = tallies.get(&after).copied().unwrap_or_default();
            let [totals, summaries] = reading::figure_sums(row);
            let differs = |sum: Option<i64>, found: i64| sum.is_some_and(|sum| sum != found);
            if !reading::has_sum(row) {
                checked.unsummed += 1;
            }
            let name = || reading::name_of(row);
            if !reading::is_as_written(row) {
                checked.problems.push(format!("job {}: record checksum mismatch", name()));
            } else if differs(totals, tally.totals) || differs(summaries, tally.summaries) {
                checked.problems.push(format!("job {}: totals checksum mismatch", name()));
            }
            Ok(())
        })?;
        if rows < CHUNK {
            break;
        }
    }
    if version < SUM_VERSION {
        checked.unsummed = checked.records;
    }
    Ok(())
}

/// The sums of the figures of every job, by its row.
pub(crate) fn tallies(sql: &dyn Sql) -> Result<HashMap<i64, Tally>, StoreError> {
    let mut tallies: HashMap<i64, Tally> = HashMap::new();
    sql.query("SELECT job, metric, value, kind, source FROM total", &[], &mut |row| {
        let [job, metric, value, kind, source] = [0, 1, 2, 3, 4].map(|at| row.get(at).integer());
        let tally = tallies.entry(job?).or_default();
        tally.totals = tally.totals.wrapping_add(sums::of_total(metric?, value?, kind?, source?));
        Ok(())
    })?;
    sql.query("SELECT job, metric, mean, min, max, p50, p95 FROM summary", &[], &mut |row| {
        let [mean, min, max] = [2, 3, 4].map(|at| row.get(at).real());
        let [p50, p95] = [5, 6].map(|at| row.get(at).real().ok());
        let summary = Summary { mean: mean?, min: min?, max: max?, p50, p95 };
        let tally = tallies.entry(row.get(0).integer()?).or_default();
        tally.summaries = tally.summaries.wrapping_add(sums::of_summary(row.get(1).integer()?, &summary));
        Ok(())
    })?;
    Ok(tallies)
}

/// Gives rows that an earlier version wrote their checksums, and the names of figures theirs. True when none is left.
pub(crate) fn sum_older(sql: &dyn Sql, most: usize) -> Result<bool, StoreError> {
    let terms = sql::all(sql, "SELECT key, text FROM term WHERE sum IS NULL", &[], |row| {
        Ok((row.get(0).integer()?, row.get(1).text()?.to_owned()))
    })?;
    for (key, text) in terms {
        let sum = sums::of_term(key, &text);
        sql.execute("UPDATE term SET sum = ?1 WHERE key = ?2", &[sum.into(), key.into()])?;
    }
    let columns = reading::columns(SUM_VERSION);
    let statement = format!("SELECT {columns} FROM job WHERE sum IS NULL ORDER BY key LIMIT {most}");
    let mut rows = Vec::new();
    sql.query(&statement, &[], &mut |row| {
        rows.push((row.get(0).integer()?, reading::row_sum(row)));
        Ok(())
    })?;
    let is_last = rows.len() < most;
    if rows.is_empty() {
        return Ok(true);
    }
    let tallies = tallies(sql)?;
    for (key, sum) in rows {
        let tally = tallies.get(&key).copied().unwrap_or_default();
        let values = [sum.into(), tally.totals.into(), tally.summaries.into(), key.into()];
        sql.execute("UPDATE job SET sum = ?1, totals_sum = ?2, summaries_sum = ?3 WHERE key = ?4", &values)?;
    }
    Ok(is_last)
}
