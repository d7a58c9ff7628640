//! Series: what every store of them must do, and the files of samples, one for each UTC day, so that old samples
//! go by removing a file.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use met_core::job::JobKey;
use met_core::series::{Columns, Series};
use met_core::{Table, event};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Result, params};

use crate::backends::Backends;
use crate::day;
use crate::days::DayFiles;
use crate::device::DEVICE;
use crate::engine::Remote;
use crate::error::StoreError;
use crate::node::NODE;
use crate::schema::{Sharing, beside};
use crate::thinning::Position;
use met_wire::block::{self, BLOCK_SAMPLES_MAX};

/// The bytes of something's blocks.
pub(crate) struct Usage {
    pub key: JobKey,
    pub bytes: u64,
}

/// Keeps samples of jobs and devices.
pub(crate) trait SeriesStore: Send {
    /// Adds samples that are later than those kept. Names a damaged file that was renamed, if one was.
    fn append(
        &mut self,
        all_series: &[(&JobKey, &Series)],
        durable: bool,
    ) -> std::result::Result<Option<PathBuf>, StoreError>;

    /// At least the samples that are in the span and in these days, in order.
    fn between(
        &self,
        key: &JobKey,
        table: &'static Table,
        span_ms: (i64, i64),
        days: (i64, i64),
    ) -> std::result::Result<Series, StoreError> {
        self.columns_between(key, table, Columns::ALL, span_ms, days)
    }

    /// The same, where other columns than these may be left empty.
    fn columns_between(
        &self,
        key: &JobKey,
        table: &'static Table,
        wanted: Columns,
        span_ms: (i64, i64),
        days: (i64, i64),
    ) -> std::result::Result<Series, StoreError>;

    fn remove(&mut self, key: &JobKey) -> std::result::Result<(), StoreError>;

    /// What of a machine has samples on these days, by its table and part: of this one if there is no name. Who cannot
    /// say by himself which table a series is of looks for these.
    fn node_parts(
        &self,
        node: &str,
        tables: &[&'static Table],
        days: (i64, i64),
    ) -> std::result::Result<BTreeSet<(String, String)>, StoreError>;

    /// The first of these days that may have samples of a machine, of the same tables.
    fn first_node_day(
        &self,
        node: &str,
        tables: &[&'static Table],
        days: (i64, i64),
    ) -> std::result::Result<Option<i64>, StoreError>;

    /// The days that are ours to remove, oldest first, with their bytes. None where the engine decides how long it keeps
    /// samples; then none of the next three is called.
    fn days(&self) -> std::result::Result<Vec<(i64, u64)>, StoreError> {
        Ok(Vec::new())
    }

    fn remove_day(&mut self, _day: i64) -> std::result::Result<(), StoreError> {
        Ok(())
    }

    /// What each has in a day that is ours to remove.
    fn usage(&self, _day: i64) -> std::result::Result<Vec<Usage>, StoreError> {
        Ok(Vec::new())
    }

    /// Removes these from a day, and gives their space back.
    fn remove_of_day(&mut self, _day: i64, _keys: &[JobKey]) -> std::result::Result<(), StoreError> {
        Ok(())
    }

    /// Thins the series of a day from a position on; true when it is at the end before the deadline.
    fn thin_day(
        &mut self,
        _at: &mut Position,
        _tables: &[&'static Table],
        _deadline: Instant,
    ) -> std::result::Result<bool, StoreError> {
        Ok(true)
    }

    /// Closes what is open for the next question.
    fn close_files(&self) {}

    /// Samples that were not taken and are lost.
    fn refused(&self) -> u64 {
        0
    }
}

pub(crate) fn open(
    state: &Path,
    is_network: bool,
    backends: &Backends,
    sharing: Sharing,
) -> std::result::Result<Box<dyn SeriesStore>, StoreError> {
    Ok(match &backends.series {
        Some(engine) => Box::new(Remote::new(engine)?),
        None => Box::new(DayFiles::new(state, is_network, sharing)),
    })
}

pub(crate) const FOLDER: &str = "series";
const ENDING: &str = ".db";

pub(crate) fn path_of(state: &Path, day: i64) -> PathBuf {
    state.join(FOLDER).join(format!("{}{ENDING}", day::name(day)))
}

/// The days that have a file, oldest first.
pub(crate) fn days(state: &Path) -> io::Result<Vec<i64>> {
    let entries = match fs::read_dir(state.join(FOLDER)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut days = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        days.extend(name.to_str().and_then(|name| name.strip_suffix(ENDING)).and_then(day::parse));
    }
    days.sort_unstable();
    Ok(days)
}

/// The bytes on disk of a database with its log.
pub(crate) fn bytes_of(path: &Path) -> u64 {
    let size = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    size(path) + size(&beside(path, "-wal"))
}

/// Removes a day with its log.
pub(crate) fn unlink(path: &Path) -> io::Result<()> {
    // The log first: a log without its database would be taken for that of the next one of this name.
    for path in [beside(path, "-wal"), beside(path, "-shm"), path.to_path_buf()] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

struct LastBlock {
    key: i64,
    last_ms: i64,
    samples: i64,
    data: Vec<u8>,
}

/// Adds the samples of this file's day that are later than those it has. Runs in the caller's transaction. The last blocks
/// become one with what is added if they are not much larger: a sample is packed again when its block doubles, and not
/// whenever others follow it.
pub(crate) fn append(connection: &Connection, key: &JobKey, series: &Series, day: i64) -> Result<()> {
    let subject = subject_or_new(connection, key)?;
    let mut last = last_block(connection, subject, series.table)?;
    let after_ms = last.as_ref().map_or(i64::MIN, |last| last.last_ms);
    let begin = series.times_ms.partition_point(|&time| day::of_ms(time) < day || time <= after_ms);
    let end = series.times_ms.partition_point(|&time| day::of_ms(time) <= day).max(begin);
    if begin == end {
        return Ok(());
    }
    let mut fresh = series.part(begin, end);
    while let Some(before) = last.filter(|last| is_merged(last.samples, fresh.len())) {
        // One that is damaged, or has columns of another version, stays as it is, and a new one begins behind it.
        let Ok(Some(mut together)) = block::decode_known(&before.data, series.table) else { break };
        connection.prepare_cached("DELETE FROM block WHERE key = ?1")?.execute([before.key])?;
        together.append(&fresh);
        fresh = together;
        last = last_block(connection, subject, series.table)?;
    }
    let mut data = Vec::new();
    for begin in (0..fresh.len()).step_by(BLOCK_SAMPLES_MAX) {
        let end = fresh.len().min(begin + BLOCK_SAMPLES_MAX);
        data.clear();
        block::encode(&fresh, begin..end, &mut data);
        let span_ms = (fresh.times_ms[begin], fresh.times_ms[end - 1]);
        insert_block(connection, subject, series.table, span_ms, end - begin, &data)?;
    }
    Ok(())
}

/// Whether a block becomes one with so many samples that follow it.
fn is_merged(samples: i64, following: usize) -> bool {
    usize::try_from(samples).is_ok_and(|samples| samples < BLOCK_SAMPLES_MAX.min(2 * following))
}

pub(crate) fn insert_block(
    connection: &Connection,
    subject: i64,
    table: &Table,
    (first_ms, last_ms): (i64, i64),
    samples: usize,
    data: &[u8],
) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO block (subject, table_name, first_ms, last_ms, samples, data)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![subject, table.name, first_ms, last_ms, samples as i64, data])
        .map(drop)
}

fn subject(connection: &Connection, key: &JobKey) -> Result<Option<i64>> {
    connection
        .prepare_cached(
            "SELECT key FROM subject WHERE id = ?1 AND manager = ?2 AND incarnation = ?3 AND cluster = ?4",
        )?
        .query_row(
            params![key.id, key.manager, key.incarnation, key.cluster.as_deref().unwrap_or("")],
            |row| row.get(0),
        )
        .optional()
}

fn subject_or_new(connection: &Connection, key: &JobKey) -> Result<i64> {
    if let Some(subject) = subject(connection, key)? {
        return Ok(subject);
    }
    connection
        .prepare_cached("INSERT INTO subject (id, manager, incarnation, cluster) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![key.id, key.manager, key.incarnation, key.cluster.as_deref().unwrap_or("")])?;
    Ok(connection.last_insert_rowid())
}

fn last_block(connection: &Connection, subject: i64, table: &Table) -> Result<Option<LastBlock>> {
    connection
        .prepare_cached(
            "SELECT key, last_ms, samples, data FROM block WHERE subject = ?1 AND table_name = ?2
             ORDER BY first_ms DESC LIMIT 1",
        )?
        .query_row(params![subject, table.name], |row| {
            Ok(LastBlock { key: row.get(0)?, last_ms: row.get(1)?, samples: row.get(2)?, data: row.get(3)? })
        })
        .optional()
}

/// Calls `each` with the blocks of a series that overlap a span, in order.
pub(crate) fn each_block(
    connection: &Connection,
    key: &JobKey,
    table: &Table,
    span_ms: (i64, i64),
    mut each: impl FnMut(&[u8]),
) -> Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT data FROM block WHERE subject =
             (SELECT key FROM subject WHERE id = ?1 AND manager = ?2 AND incarnation = ?3 AND cluster = ?4)
         AND table_name = ?5 AND first_ms <= ?6 AND last_ms >= ?7 ORDER BY first_ms",
    )?;
    let cluster = key.cluster.as_deref().unwrap_or("");
    let values = params![key.id, key.manager, key.incarnation, cluster, table.name, span_ms.1, span_ms.0];
    let mut rows = statement.query(values)?;
    while let Some(row) = rows.next()? {
        // The table is strict: there is nothing else in it.
        if let ValueRef::Blob(data) = row.get_ref(0)? {
            each(data);
        }
    }
    Ok(())
}

/// Table and part of what has blocks of a machine.
pub(crate) fn node_parts(
    connection: &Connection,
    node: &str,
    out: &mut BTreeSet<(String, String)>,
) -> Result<()> {
    let sql = "SELECT DISTINCT table_name, id FROM subject JOIN block ON subject = subject.key
               WHERE cluster = ?1 AND manager = ?2 AND substr(id, 1, length(?3)) = ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([node, DEVICE, NODE])?;
    while let Some(row) = rows.next()? {
        let id: String = row.get(1)?;
        out.insert((row.get(0)?, id.strip_prefix(NODE).unwrap_or(&id).to_owned()));
    }
    Ok(())
}

/// The bytes of the blocks of each.
pub(crate) fn usage(connection: &Connection, out: &mut Vec<Usage>) -> Result<()> {
    let sql = "SELECT cluster, manager, id, incarnation, coalesce(sum(length(data)), 0) FROM subject
               LEFT JOIN block ON block.subject = subject.key GROUP BY subject.key";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let cluster = Some(row.get::<_, String>(0)?).filter(|cluster| !cluster.is_empty());
        let key = JobKey { cluster, manager: row.get(1)?, id: row.get(2)?, incarnation: row.get(3)? };
        // An entry itself takes space, too.
        out.push(Usage { key, bytes: row.get::<_, i64>(4)?.max(0) as u64 + 100 });
    }
    Ok(())
}

/// A job with the series of its events. As ranges, for which the index of ids is used.
const REMOVE: &str = "DELETE FROM subject WHERE (id = ?1 OR id >= ?5 AND id < ?6)
                      AND manager = ?2 AND incarnation = ?3 AND cluster = ?4";

pub(crate) fn remove(connection: &Connection, key: &JobKey) -> Result<()> {
    let cluster = key.cluster.as_deref().unwrap_or("");
    let (first, end) = (event::series_prefix(key), event::series_end(key));
    let values = params![key.id, key.manager, key.incarnation, cluster, first, end];
    connection.prepare_cached(REMOVE)?.execute(values).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{SERIES, open_for_writing};

    fn key(id: &str) -> JobKey {
        JobKey { cluster: None, manager: "slurm".to_owned(), id: id.to_owned(), incarnation: 1 }
    }

    #[test]
    fn a_sample_is_packed_again_only_when_its_block_doubles() {
        let state = tempfile::tempdir().unwrap();
        let connection = open_for_writing(&state.path().join("day.db"), &SERIES, false).unwrap();
        let (job, flushes, each) = (key("12"), 400, 6);
        let mut packed = 0;
        for flush in 0..flushes {
            let mut series = Series::new(&met_core::JOB);
            // The last sample of before is given again, as after a failure.
            for sample in (flush * each - 1).max(0)..(flush + 1) * each {
                series.push(sample * 10_000, &vec![sample; met_core::JOB.columns.len()]);
            }
            append(&connection, &job, &series, 0).unwrap();
            let newest = "SELECT samples FROM block ORDER BY key DESC LIMIT 1";
            packed += connection.query_row(newest, [], |row| row.get::<_, i64>(0)).unwrap();
        }
        let mut found = Vec::new();
        each_block(&connection, &job, &met_core::JOB, (i64::MIN, i64::MAX), |data| {
            found.push(block::decode(data, &met_core::JOB).unwrap());
        })
        .unwrap();
        let read: Vec<i64> = found.iter().flat_map(|one| one.times_ms.clone()).collect();
        assert_eq!(read, (0..flushes * each).map(|sample| sample * 10_000).collect::<Vec<_>>());
        assert!(found.len() <= 12, "{} blocks", found.len());
        assert!(packed <= 10 * flushes * each, "{packed} samples were packed for {}", flushes * each);
    }

    #[test]
    fn a_job_is_removed_with_its_events_by_the_index() {
        let state = tempfile::tempdir().unwrap();
        let connection = open_for_writing(&state.path().join("day.db"), &SERIES, false).unwrap();
        let job = key("12");
        let cycles = event::series_key(&job, "cycles");
        let others = ["1", "12 ", "12.batch", "123", "12\u{1e}x"].map(key);
        for key in others.iter().chain([&job, &cycles, &event::series_key(&key("123"), "cycles")]) {
            subject_or_new(&connection, key).unwrap();
        }
        remove(&connection, &job).unwrap();
        let left = |key: &JobKey| subject(&connection, key).unwrap().is_some();
        assert!(!left(&job) && !left(&cycles));
        assert!(others.iter().all(left) && left(&event::series_key(&key("123"), "cycles")));
        // Other jobs of the day are not looked at.
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {REMOVE}")).unwrap();
        let values = params!["12", "slurm", 1, "", "12\u{1f}", "12 "];
        let plan = statement.query_map(values, |row| row.get::<_, String>(3)).unwrap();
        let plan: Vec<String> = plan.collect::<Result<_>>().unwrap();
        assert!(plan.iter().any(|step| step.contains("SEARCH")), "{plan:?}");
        assert!(!plan.iter().any(|step| step.contains("SCAN")), "{plan:?}");
    }
}
