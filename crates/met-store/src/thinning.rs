//! Thinning of old samples, a series at a time: each is replaced in one transaction, so an interruption loses nothing,
//! and what is done twice changes nothing.

use std::time::{Duration, Instant};

use met_core::Table;
use met_core::series::{Series, Thinner};
use met_wire::block::{self, BLOCK_SAMPLES_MAX};
use rusqlite::{Connection, OptionalExtension, Result, params};

use crate::day;
use crate::error::StoreError;
use crate::series::insert_block;
use crate::store::Writer;

/// Samples of days that ended so long ago become one in each step, with the lowest, mean and highest in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thinning {
    pub after: Duration,
    pub step: Duration,
}

impl Thinning {
    fn step_ms(&self) -> i64 {
        i64::try_from(self.step.as_millis()).unwrap_or(i64::MAX).max(1)
    }

    /// In the catalogue: the last day that is thinned to this step, with all before it.
    fn mark(&self) -> String {
        format!("thinned to {} ms", self.step_ms())
    }

    /// The first day that is too young.
    fn end(&self, now_ns: i64) -> i64 {
        day::of_ns(now_ns.saturating_sub(i64::try_from(self.after.as_nanos()).unwrap_or(i64::MAX)))
    }
}

/// Where in a day the next series is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    day: i64,
    step_ms: i64,
    subject: i64,
    table: String,
}

/// Thins what is old enough, for about as long as `timeout`; true when something is left to do. Tables that are not
/// known stay as they are, and so does a day whose file cannot be changed. Where an engine keeps the series, it decides.
pub fn thin(
    writer: &mut Writer,
    rules: &[Thinning],
    tables: &[&'static Table],
    now_ns: i64,
    timeout: Duration,
) -> std::result::Result<bool, StoreError> {
    let deadline = Instant::now() + timeout;
    let days: Vec<i64> = writer.queries.series.days()?.into_iter().map(|(day, _)| day).collect();
    if days.is_empty() {
        return Ok(false);
    }
    let mut rules = rules.to_vec();
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.step));
    let mut done = i64::MIN;
    // What is thinned most needs not be thinned less.
    for rule in &rules {
        let marked = writer.queries.meta(&rule.mark())?.and_then(|mark| mark.parse().ok());
        done = done.max(marked.unwrap_or(i64::MIN));
        let end = rule.end(now_ns);
        for &day in days.iter().filter(|&&day| day > done && day < end) {
            match thin_day(writer, day, rule.step_ms(), tables, deadline) {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                // No day can be written then.
                Err(error) if error.is_no_space() => return Err(error),
                // The file of one day, such as one of a newer version, does not keep the others from being thinned.
                Err(error) => tracing::warn!("the samples of {} are not thinned: {error}", day::name(day)),
            }
            writer.set_meta(&rule.mark(), &day.to_string())?;
        }
        done = done.max(end - 1);
    }
    Ok(false)
}

/// Whether all of the day is done before the deadline; at least one series is.
fn thin_day(
    writer: &mut Writer,
    day: i64,
    step_ms: i64,
    tables: &[&'static Table],
    deadline: Instant,
) -> std::result::Result<bool, StoreError> {
    let known = writer.thinning.take().filter(|at| (at.day, at.step_ms) == (day, step_ms));
    let mut at = known.unwrap_or(Position { day, step_ms, ..Position::default() });
    let is_done = writer.queries.series.thin_day(&mut at, tables, deadline)?;
    writer.thinning = (!is_done).then_some(at);
    Ok(is_done)
}

/// The series behind a position.
pub(crate) fn next_series(connection: &Connection, at: &Position) -> Result<Option<(i64, String)>> {
    connection
        .prepare_cached(
            "SELECT subject, table_name FROM block WHERE (subject, table_name) > (?1, ?2)
             ORDER BY subject, table_name LIMIT 1",
        )?
        .query_row(params![at.subject, at.table], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

impl Position {
    pub(crate) fn day(&self) -> i64 {
        self.day
    }

    pub(crate) fn advance(&mut self, (subject, table): (i64, String)) {
        (self.subject, self.table) = (subject, table);
    }

    /// Thins the series here. Runs in the caller's transaction. A block that is damaged stays as it is, and a series
    /// with columns of another version stays whole.
    pub(crate) fn thin(&self, connection: &Connection, table: &'static Table) -> Result<()> {
        let keys: Vec<i64> = connection
            .prepare_cached("SELECT key FROM block WHERE subject = ?1 AND table_name = ?2 ORDER BY first_ms")?
            .query_map(params![self.subject, self.table], |row| row.get(0))?
            .collect::<Result<_>>()?;
        let (mut thinner, mut thinned, mut read) =
            (Thinner::new(table, self.step_ms), Vec::new(), Vec::new());
        let (mut samples, mut left, mut bytes) = (0, 0, 0);
        let mut last_ms = i64::MIN;
        for key in keys {
            let data: Vec<u8> = connection
                .prepare_cached("SELECT data FROM block WHERE key = ?1")?
                .query_row([key], |row| row.get(0))?;
            let Ok(series) = block::decode_known(&data, table) else { continue };
            let Some(series) = series else { return Ok(()) };
            // Blocks of a file that was damaged may overlap.
            if series.times_ms.first().is_none_or(|&first_ms| first_ms <= last_ms) {
                continue;
            }
            last_ms = series.times_ms.last().copied().unwrap_or(last_ms);
            samples += series.len();
            bytes += data.len();
            thinner.push(&series);
            read.push(key);
            if thinner.out_len() >= BLOCK_SAMPLES_MAX {
                left += pack(&thinner.take_out(), &mut thinned);
            }
        }
        left += pack(&thinner.finish(), &mut thinned);
        // The lowest, mean and highest in between take more room than a few samples save.
        let bytes_left: usize = thinned.iter().map(|(_, _, data)| data.len()).sum();
        if left >= samples || bytes_left >= bytes {
            return Ok(());
        }
        for key in read {
            connection.prepare_cached("DELETE FROM block WHERE key = ?1")?.execute([key])?;
        }
        for (span_ms, samples, data) in thinned {
            insert_block(connection, self.subject, table, span_ms, samples, &data)?;
        }
        Ok(())
    }
}

/// A block that is to be written: its times, how many samples it has, and its bytes.
type Packed = ((i64, i64), usize, Vec<u8>);

fn pack(series: &Series, out: &mut Vec<Packed>) -> usize {
    for begin in (0..series.len()).step_by(BLOCK_SAMPLES_MAX) {
        let end = series.len().min(begin + BLOCK_SAMPLES_MAX);
        let mut data = Vec::new();
        block::encode(series, begin..end, &mut data);
        out.push(((series.times_ms[begin], series.times_ms[end - 1]), end - begin, data));
    }
    series.len()
}

#[cfg(test)]
#[path = "thinning_tests.rs"]
mod tests;
