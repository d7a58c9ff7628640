//! Records as rows of the catalogue.

use std::collections::HashMap;

use met_core::JOB;
use met_core::annotation::Annotation;
use met_core::belief::{believe, is_outranked, may_live_again};
use met_core::job::{JobKey, Record, State, Summary};
use met_core::listing::{id_number, sort_ns};

use crate::brief;
use crate::device;
use crate::error::StoreError;
use crate::listed;
use crate::reading::{Parts, SUMMED, exact};
use crate::sql::{self, Sql, Value};
use crate::sums;

type Result<T> = std::result::Result<T, StoreError>;

/// What names a job, as parameters of [`EXACT`].
pub(crate) fn key_values(key: &JobKey) -> [Value<'_>; 4] {
    let cluster = key.cluster.as_deref().unwrap_or("");
    [Value::Text(&key.id), Value::Text(&key.manager), Value::Integer(key.incarnation), Value::Text(cluster)]
}

pub(crate) const EXACT: &str = "id = ?1 AND manager = ?2 AND incarnation = ?3 AND cluster = ?4";

pub(crate) fn newest_change(sql: &dyn Sql) -> Result<i64> {
    let last = sql::first(sql, "SELECT last FROM change", &[], |row| row.get(0).integer())?;
    Ok(last.unwrap_or(0))
}

/// Keys of terms already looked up. To be emptied when a transaction is undone.
pub(crate) type Terms = HashMap<String, i64>;

/// Writes what `record` adds to the catalogue. What changes nothing of a job that is known better is not a change.
pub(crate) fn write(sql: &dyn Sql, terms: &mut Terms, record: &Record) -> Result<()> {
    // Only its node has figures of a running job, and its latest are all there are: the older ones are not read.
    let parts = if record.state.is_live() { Parts::NONE } else { Parts::ALL };
    let mut before = exact(sql, &record.key, parts)?;
    if record.state.is_live() && before.as_ref().is_some_and(|before| !before.record.state.is_live()) {
        before = exact(sql, &record.key, Parts::ALL)?;
    }
    let mut merged = None;
    if let Some(before) = &before {
        let believed = believe(&before.record, record);
        if is_outranked(record, &before.record) && believed == before.record {
            return Ok(());
        }
        merged = Some(believed);
    }
    let record = merged.as_ref().unwrap_or(record);
    let figures = Figures::of(sql, terms, record)?;
    let (key, detail) = write_row(sql, record, Some(&figures))?;
    if before.is_some() {
        sql.execute("DELETE FROM total WHERE job = ?1", &[key.into()])?;
        sql.execute("DELETE FROM summary WHERE job = ?1", &[key.into()])?;
    }
    device::allocate(sql, key, record)?;
    listed::write(sql, key, record)?;
    let lived = before.as_ref().is_some_and(|before| before.record.state.is_live());
    let over = Some(&detail).filter(|_| !record.state.is_live());
    match over.and_then(|detail| brief::as_read(detail)) {
        Some(as_read) => brief::write(sql, key, &as_read, &figures)?,
        // One that lived has none.
        None if lived => {}
        None => brief::remove(sql, key)?,
    }
    figures.write(sql, key)
}

/// A job that was called lost, or over before all of it was known, lives: what is written of it next is believed. What
/// its scheduler said of its end stays.
pub(crate) fn revive(sql: &dyn Sql, key: &JobKey) -> Result<()> {
    let Some(stored) = exact(sql, key, Parts::ALL)? else { return Ok(()) };
    if !may_live_again(&stored.record) {
        return Ok(());
    }
    let record = Record { state: State::Running, end_ns: None, ..stored.record };
    let (key, _) = write_row(sql, &record, None)?;
    brief::remove(sql, key)?;
    listed::write(sql, key, &record)
}

/// What people said of a job, if anything.
pub(crate) fn annotation_of(sql: &dyn Sql, key: &JobKey) -> Result<Option<Annotation>> {
    let stored = exact(sql, key, Parts::NONE)?;
    Ok(stored.map(|stored| stored.record.annotation).filter(|annotation| !annotation.is_empty()))
}

/// Removes a job's row with its totals; its samples, if any, stay.
pub(crate) fn delete(sql: &dyn Sql, key: &JobKey) -> Result<u64> {
    sql.execute(&format!("DELETE FROM job WHERE {EXACT}"), &key_values(key))
}

/// The key that a statement with `RETURNING key` gave.
pub(crate) fn returned(sql: &dyn Sql, statement: &str, values: &[Value<'_>]) -> Result<i64> {
    let key = sql::first(sql, statement, values, |row| row.get(0).integer())?;
    Ok(key.unwrap_or_default())
}

/// Writes a job's row, and returns its key and the text of the record. Without figures those that it has stay, and their
/// checksums.
fn write_row(sql: &dyn Sql, record: &Record, figures: Option<&Figures>) -> Result<(i64, String)> {
    let bare = Record { totals: Default::default(), summaries: Default::default(), ..record.clone() };
    let detail = serde_json::to_string(&bare)
        .map_err(|error| StoreError::Refused { at: record.key.id.clone(), error: error.to_string() })?;
    let key = &record.key;
    let changed = next_change(sql)?;
    // In the order of `SUMMED`.
    let mut values: Vec<Value<'_>> = vec![
        key.cluster.as_deref().unwrap_or("").into(),
        (&key.manager).into(),
        (&key.id).into(),
        key.incarnation.into(),
        id_number(&key.id).into(),
        (&record.name).into(),
        record.user.as_ref().into(),
        record.uid.into(),
        record.account.as_ref().into(),
        record.state.name().into(),
        record.start_ns.into(),
        record.end_ns.into(),
        sort_ns(record).into(),
        record.scheduling.alias.as_ref().into(),
        (&detail).into(),
    ];
    let sum = sums::of_row(values.iter().copied());
    values.extend([changed, sum].map(Value::Integer));
    values.extend(
        [figures.map(|figures| figures.totals_sum), figures.map(|figures| figures.summaries_sum)]
            .map(Value::from),
    );
    let marks = (1..=values.len()).map(|number| format!("?{number}")).collect::<Vec<_>>().join(", ");
    let key = returned(
        sql,
        &format!(
            "INSERT INTO job ({SUMMED}, changed, sum, totals_sum, summaries_sum) VALUES ({marks})
             ON CONFLICT (id, manager, incarnation, cluster) DO UPDATE SET
                 name = excluded.name, \"user\" = excluded.\"user\", uid = excluded.uid, account = excluded.account,
                 state = excluded.state, start_ns = excluded.start_ns, end_ns = excluded.end_ns,
                 sort_ns = excluded.sort_ns, detail = excluded.detail, alias = excluded.alias,
                 changed = excluded.changed, sum = excluded.sum,
                 totals_sum = coalesce(excluded.totals_sum, job.totals_sum),
                 summaries_sum = coalesce(excluded.summaries_sum, job.summaries_sum)
             RETURNING key"
        ),
        &values,
    )?;
    Ok((key, detail))
}

/// The number of the next change. A table that lost its row is damage, and not the number 0 for ever.
fn next_change(sql: &dyn Sql) -> Result<i64> {
    let next = "UPDATE change SET last = last + 1 RETURNING last";
    sql::first(sql, next, &[], |row| row.get(0).integer())?
        .ok_or_else(|| sql.damaged("change counter is missing"))
}

/// The totals and summaries of a record, as they are written.
pub(crate) struct Figures {
    /// Metric, value, kind and source.
    pub totals: Vec<[i64; 4]>,
    totals_sum: i64,
    pub summaries: Vec<(i64, Summary)>,
    summaries_sum: i64,
}

impl Figures {
    pub fn of(sql: &dyn Sql, terms: &mut Terms, record: &Record) -> Result<Figures> {
        let (mut totals, mut summaries) = (Vec::new(), Vec::new());
        for (column, figure) in record.totals.iter() {
            let metric = term(sql, terms, JOB.columns[column].name)?;
            let kind = term(sql, terms, figure.kind.name())?;
            let source = term(sql, terms, &figure.source.text())?;
            totals.push([metric, figure.value, kind, source]);
        }
        for (column, summary) in record.summaries.iter() {
            // Not a number is not known, and what is not known is left out.
            if [summary.mean, summary.min, summary.max].iter().all(|value| value.is_finite()) {
                summaries.push((term(sql, terms, JOB.columns[column].name)?, *summary));
            }
        }
        let of_total =
            |&[metric, value, kind, source]: &[i64; 4]| sums::of_total(metric, value, kind, source);
        let sum = |sums: &mut dyn Iterator<Item = i64>| sums.fold(0, i64::wrapping_add);
        let totals_sum = sum(&mut totals.iter().map(of_total));
        let summaries_sum =
            sum(&mut summaries.iter().map(|(metric, summary)| sums::of_summary(*metric, summary)));
        Ok(Figures { totals, totals_sum, summaries, summaries_sum })
    }

    fn write(&self, sql: &dyn Sql, key: i64) -> Result<()> {
        let totals: Vec<Value<'_>> = self
            .totals
            .iter()
            .flat_map(|&[metric, value, kind, source]| [key, metric, value, kind, source])
            .map(Value::Integer)
            .collect();
        sql.insert("total (job, metric, value, kind, source)", 5, &totals)?;
        let mut summaries: Vec<Value<'_>> = Vec::new();
        for (metric, summary) in &self.summaries {
            let Summary { mean, min, max, p50, p95 } = *summary;
            summaries.extend([Value::Integer(key), Value::Integer(*metric)]);
            summaries.extend([mean, min, max].map(Value::Real));
            summaries.extend([p50, p95].map(Value::from));
        }
        sql.insert("summary (job, metric, mean, min, max, p50, p95)", 7, &summaries)
    }
}

/// Far more than there are; a larger number was invented by a client that may announce jobs.
const TERMS_MAX: i64 = 2_000;
const TERM_BYTES_MAX: usize = 200;
/// Replaces every text that found no room.
const OTHER: &str = "other";

fn term(sql: &dyn Sql, terms: &mut Terms, text: &str) -> Result<i64> {
    let text = if text.len() > TERM_BYTES_MAX { OTHER } else { text };
    if let Some(&key) = terms.get(text) {
        return Ok(key);
    }
    let found =
        sql::first(sql, "SELECT key FROM term WHERE text = ?1", &[text.into()], |row| row.get(0).integer())?;
    let key = match found {
        Some(key) => key,
        // A text without room is not remembered either: the table bounds this map.
        None if text != OTHER && term_count(sql)? >= TERMS_MAX => return term(sql, terms, OTHER),
        None => {
            let key = returned(sql, "INSERT INTO term (text) VALUES (?1) RETURNING key", &[text.into()])?;
            let sum = sums::of_term(key, text);
            sql.execute("UPDATE term SET sum = ?1 WHERE key = ?2", &[sum.into(), key.into()])?;
            key
        }
    };
    terms.insert(text.to_string(), key);
    Ok(key)
}

fn term_count(sql: &dyn Sql) -> Result<i64> {
    let count = sql::first(sql, "SELECT count(*) FROM term", &[], |row| row.get(0).integer())?;
    Ok(count.unwrap_or(0))
}
