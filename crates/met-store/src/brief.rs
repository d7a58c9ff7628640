//! Packed records of finished jobs, for queries of many: one row of some hundred bytes each, instead of a
//! record of kilobytes and some thirty rows of figures. They are written with the job, and read as what they were
//! computed from would be; where one is missing, damaged or of another format, that is read instead.

mod packing;

use std::time::Instant;

use met_core::FastMap;
use met_core::job::{BriefRecord, Record, Summary};
use met_core::listing::{Cursor, Order, id_number, sort_ns};

use crate::error::StoreError;
use crate::filter::{Filter, PageBounds, live_states};
use crate::paging::{PAGE_ROWS, Page};
use crate::reading::{self, Names, Parts, Stored, label, named_summary, named_total, names};
use crate::record::{Figures, Terms};
use crate::sql::{self, Row, Sql, Value, in_snapshot, in_transaction};
use crate::sums;
use packing::{Input, Packed, put_number};

type Result<T> = std::result::Result<T, StoreError>;

/// The version from which on there are such rows.
const BRIEF_VERSION: i64 = 8;
/// What the bytes mean. Another number makes all rows be written again.
const FORMAT: i64 = 2;
/// Says in `meta` of which format every job that is over has a row.
const COMPLETE: &str = "brief";
/// Up to which key rows of earlier jobs are written.
const REACHED: &str = "brief_to";
/// Up to which key rows were compared with records.
const COMPARED: &str = "brief_compared_to";
/// Jobs that get theirs in one transaction: a command that opens an old store waits for one of them.
const PIECE: usize = 20;
/// A record with more, as one with a script for its command, is not kept twice.
const BYTES_MAX: usize = 4096;
/// A record in a reply has about so many times the bytes of its row.
const BYTES_IN_REPLY: usize = 5;

/// Writes the row of a job that has this key in the catalogue; one that lives has none. The record is as it would be read.
pub(crate) fn write(sql: &dyn Sql, job: i64, record: &Record, figures: &Figures) -> Result<()> {
    if record.state.is_live() {
        return remove(sql, job);
    }
    let data = pack(record, figures);
    if data.len() > BYTES_MAX {
        return remove(sql, job);
    }
    let statement =
        "INSERT INTO brief (job, format, sum, data) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (job) DO UPDATE
                     SET format = excluded.format, sum = excluded.sum, data = excluded.data";
    let values = [job.into(), FORMAT.into(), sum(job, &data).into(), Value::Bytes(&data)];
    sql.execute(statement, &values).map(drop)
}

/// Of a job that lives again.
pub(crate) fn remove(sql: &dyn Sql, job: i64) -> Result<()> {
    sql.execute("DELETE FROM brief WHERE job = ?1", &[job.into()]).map(drop)
}

/// The record as it is read back from the text that is written of it.
pub(crate) fn as_read(detail: &str) -> Option<Record> {
    #[cfg(test)]
    tests::PARSED.with(|parsed| parsed.set(parsed.get() + 1));
    serde_json::from_str::<BriefRecord>(detail).ok().map(|BriefRecord(record)| record)
}

fn sum(job: i64, data: &[u8]) -> i64 {
    sums::of_row([job.into(), FORMAT.into(), Value::Bytes(data)])
}

fn pack(record: &Record, figures: &Figures) -> Vec<u8> {
    let mut out = Vec::with_capacity(1000);
    record.pack(&mut out);
    put_number(&mut out, figures.totals.len() as u64);
    for &[metric, value, kind, source] in &figures.totals {
        put_number(&mut out, metric as u64);
        value.pack(&mut out);
        put_number(&mut out, kind as u64);
        put_number(&mut out, source as u64);
    }
    put_number(&mut out, figures.summaries.len() as u64);
    for (metric, Summary { mean, min, max, p50, p95 }) in &figures.summaries {
        put_number(&mut out, *metric as u64);
        [mean, min, max].into_iter().for_each(|value| stored(*value).pack(&mut out));
        let known = [p50, p95].into_iter().map(|value| value.filter(|value| !value.is_nan()).map(stored));
        known.for_each(|value| value.pack(&mut out));
    }
    out
}

/// SQLite keeps -0 as 0.
fn stored(value: f64) -> f64 {
    value + 0.0
}

fn unpack(data: &[u8], names: &Names) -> Option<Record> {
    let mut from = Input(data);
    let mut record = Record::unpack(&mut from)?;
    let count = from.count()?;
    record.totals.reserve(count);
    for _ in 0..count {
        let metric = from.number()? as i64;
        let value = i64::unpack(&mut from)?;
        let (kind, source) = (from.number()? as i64, from.number()? as i64);
        if let Some((column, kind, source)) = named_total(names, metric, kind, source)? {
            record.totals.set(column, value, kind, source.clone());
        }
    }
    for _ in 0..from.count()? {
        let metric = from.number()? as i64;
        let mut real = || f64::unpack(&mut from);
        let (mean, min, max) = (real()?, real()?, real()?);
        let (p50, p95) = (Option::unpack(&mut from)?, Option::unpack(&mut from)?);
        if let Some(column) = named_summary(names, metric)? {
            record.summaries.set(column, Summary { mean, min, max, p50, p95 });
        }
    }
    from.0.is_empty().then_some(record)
}

/// Whether every job that is over has got a row of this format.
fn is_complete(sql: &dyn Sql) -> Result<bool> {
    let find = "SELECT value FROM meta WHERE name = ?1";
    let found = sql::first(sql, find, &[COMPLETE.into()], |row| Ok(row.get(0).text()?.to_owned()))?;
    Ok(found.is_some_and(|format| format == FORMAT.to_string()))
}

/// Writes rows of jobs that an earlier version wrote, piece by piece until this time, and at least one piece. True when
/// every job that is over has one. Where one cannot be read it stays so: who asks for it learns that from its record.
pub(crate) fn complete(sql: &dyn Sql, until: Instant) -> Result<bool> {
    if is_complete(sql)? {
        return Ok(true);
    }
    let mut terms = Terms::new();
    loop {
        if in_transaction(sql, false, || write_piece(sql, &mut terms))? {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
    }
}

fn set_meta(sql: &dyn Sql, name: &str, value: i64) -> Result<()> {
    let statement = "INSERT INTO meta (name, value) VALUES (?1, ?2)
                     ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    sql.execute(statement, &[name.into(), (&value.to_string()).into()]).map(drop)
}

/// One piece, from where the last one ended. True if it was the last.
fn write_piece(sql: &dyn Sql, terms: &mut Terms) -> Result<bool> {
    let find = "SELECT value FROM meta WHERE name = ?1";
    let reached = sql::first(sql, find, &[REACHED.into()], |row| Ok(row.get(0).text()?.parse().ok()))?;
    let reached: i64 = reached.flatten().unwrap_or(i64::MIN);
    let behind = format!(
        "WHERE key > ?1 AND state NOT IN ({}) AND NOT EXISTS (SELECT 1 FROM brief WHERE brief.job = job.key AND
         brief.format = {FORMAT}) ORDER BY key",
        live_states()
    );
    let selected = reading::rows(sql, &behind, &[reached.into()], Some(PIECE), Parts::BRIEF)?;
    // A row has a checksum of its own, which would be right for figures that are missing.
    for stored in selected.found.iter().filter(|stored| !stored.is_damaged) {
        let figures = Figures::of(sql, terms, &stored.record)?;
        let bare =
            Record { totals: Default::default(), summaries: Default::default(), ..stored.record.clone() };
        write(sql, stored.key, &bare, &figures)?;
    }
    let is_last = selected.rows < PIECE;
    let (name, value) = match is_last {
        true => (COMPLETE, FORMAT),
        false => (REACHED, selected.last_key),
    };
    set_meta(sql, name, value)?;
    if is_last {
        sql.execute("DELETE FROM meta WHERE name = ?1", &[REACHED.into()])?;
    }
    Ok(is_last)
}

/// What a comparison of rows with their records found.
#[derive(Default)]
pub(crate) struct Compared {
    /// Jobs whose row is not what their record says: damaged, of an earlier write, or of a job that is gone. Each with its
    /// key and name.
    pub differing: Vec<(i64, String)>,
    /// Up to which key it got; `None` at the end.
    pub reached: Option<i64>,
}

/// Compares rows with their records, from a key on and until this time, some at least. Rows of another format are not read,
/// and written again anyway.
pub(crate) fn compare(sql: &dyn Sql, mut after: i64, until: Option<Instant>) -> Result<Compared> {
    let mut compared = Compared::default();
    if sql.version()? < BRIEF_VERSION {
        return Ok(compared);
    }
    loop {
        let reached = in_snapshot(sql, || compare_piece(sql, after, &mut compared.differing))?;
        let Some(key) = reached else { return Ok(compared) };
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(Compared { reached, ..compared });
        }
        after = key;
    }
}

/// The next piece; up to which key it got, if there are more.
fn compare_piece(sql: &dyn Sql, after: i64, differing: &mut Vec<(i64, String)>) -> Result<Option<i64>> {
    let names = names(sql)?;
    let behind = "WHERE key > ?1 ORDER BY key";
    let selected = reading::rows(sql, behind, &[after.into()], Some(PAGE_ROWS), Parts::BRIEF)?;
    let reached = (selected.rows == PAGE_ROWS).then_some(selected.last_key);
    let records: FastMap<i64, Stored> =
        selected.found.into_iter().map(|stored| (stored.key, stored)).collect();
    let find = format!(
        "SELECT job, NULL, NULL, format, sum, data, (SELECT 1 FROM job WHERE job.key = brief.job) FROM brief
         WHERE job > ?1 AND job <= ?2 AND format = {FORMAT}"
    );
    sql.query(&find, &[after.into(), reached.unwrap_or(i64::MAX).into()], &mut |row| {
        let key = row.get(0).integer()?;
        let stored = records.get(&key);
        let has_record = row.get(6).integer().is_ok();
        let is_same = match (stored, read(row, &names)) {
            (Some(stored), _) if stored.is_damaged => true,
            // A record that cannot be read: a repair needs this row.
            (None, _) if has_record => true,
            (Some(stored), Some(packed)) => !packed.state.is_live() && stored.record == packed,
            _ => false,
        };
        if !is_same {
            let name = |stored: &Stored| label(&stored.record.key.manager, &stored.record.key.id);
            differing.push((key, stored.map_or_else(|| format!("row {key}"), name)));
        }
        Ok(())
    })?;
    Ok(reached)
}

/// Goes on with the comparison where the last one ended, until this time. Rows that differ are removed, and [`complete`]
/// writes them again from their records.
pub(crate) fn compare_some(sql: &dyn Sql, until: Instant) -> Result<Vec<(i64, String)>> {
    let find = "SELECT value FROM meta WHERE name = ?1";
    let after = sql::first(sql, find, &[COMPARED.into()], |row| Ok(row.get(0).text()?.parse().ok()))?;
    let Compared { differing, reached } = compare(sql, after.flatten().unwrap_or(i64::MIN), Some(until))?;
    in_transaction(sql, false, || {
        if !differing.is_empty() {
            renew(sql, &differing)?;
        }
        match reached {
            Some(reached) => set_meta(sql, COMPARED, reached),
            None => sql.execute("DELETE FROM meta WHERE name = ?1", &[COMPARED.into()]).map(drop),
        }
    })?;
    Ok(differing)
}

/// Removes the rows of these jobs, so that [`complete`] writes them from their records.
fn renew(sql: &dyn Sql, differing: &[(i64, String)]) -> Result<()> {
    differing.iter().try_for_each(|&(key, _)| remove(sql, key))?;
    let statement = "DELETE FROM meta WHERE name IN (?1, ?2)";
    sql.execute(statement, &[COMPLETE.into(), REACHED.into()]).map(drop)
}

/// The record of a row that is as it was written.
pub(crate) fn unpacked(job: i64, format: i64, written: i64, data: &[u8], names: &Names) -> Option<Record> {
    let is_as_written = format == FORMAT && written == sum(job, data);
    is_as_written.then(|| unpack(data, names)).flatten()
}

/// Whether packed records have what a list needs, and the wide index of jobs says which it needs: newest first, of a
/// time, an owner or a manager.
fn is_enough_for(filter: &Filter) -> bool {
    let needs_more = filter.name.is_some()
        || filter.owner.account.is_some()
        || filter.owner.member.is_some()
        || filter.pid.is_some()
        || filter.with_gpus
        || !filter.states.is_empty();
    filter.is_brief && filter.with_summaries && filter.is_plain() && !needs_more
}

/// A page of at most so many jobs. `None` where packed records do not help.
pub(crate) fn page(sql: &dyn Sql, filter: &Filter, limit: usize) -> Result<Option<Page>> {
    if sql.version()? < BRIEF_VERSION || limit == 0 || !is_enough_for(filter) {
        return Ok(None);
    }
    let (names, order) = (names(sql)?, filter.order());
    let is_asked =
        |record: &Record| filter.page.after.as_ref().is_none_or(|after| order.is_behind(record, after));
    let from_anywhere = Filter { page: PageBounds { after: None, ..filter.page.clone() }, ..filter.clone() };
    // An index may be damaged: by the record it is decided who sees it.
    let fits = |record: &Record| from_anywhere.accepts(record);
    let mut found = Found::default();
    let (statement, values, most) = statement(filter, limit);
    sql.query(&statement, &values, &mut |row| {
        let place = (row.get(1).integer()?, row.get(2).integer()?);
        found.rows += 1;
        let count = found.jobs.len() + found.without.len();
        let is_full = count > 0 && filter.page.max_bytes.is_some_and(|max_bytes| found.bytes >= max_bytes);
        if found.left.is_some() || is_full || count >= limit {
            found.left.get_or_insert(place);
            return Ok(());
        }
        found.last = Some(place);
        match read(row, &names) {
            Some(record) if fits(&record) && place_of(&record) == place => {
                found.jobs.extend(Some(record).filter(is_asked));
            }
            _ => found.without.push((place, row.get(0).integer()?)),
        }
        found.bytes += row.get(5).bytes().map_or(0, <[u8]>::len) * BYTES_IN_REPLY;
        Ok(())
    })?;
    if found.rows == most {
        found.left = found.left.or(found.last);
    }
    found.page(sql, &order, fits, is_asked)
}

/// What was found of a page.
#[derive(Default)]
struct Found {
    rows: usize,
    jobs: Vec<Record>,
    bytes: usize,
    /// Places and keys of jobs without a row that can be read: most of them live.
    without: Vec<(Place, i64)>,
    /// The place of the first job that is left for the next page, and of the last that is not.
    left: Option<Place>,
    last: Option<Place>,
}

/// Start and number of a job, by which the index has them.
type Place = (i64, i64);

fn place_of(record: &Record) -> Place {
    (sort_ns(record), id_number(&record.key.id))
}

impl Found {
    fn page(
        mut self,
        sql: &dyn Sql,
        order: &Order,
        fits: impl Fn(&Record) -> bool,
        is_asked: impl Fn(&Record) -> bool,
    ) -> Result<Option<Page>> {
        // Jobs of one place have an order that the index does not have: they come together.
        if let Some(left) = self.left {
            self.jobs.retain(|record| place_of(record) != left);
            self.without.retain(|&(place, _)| place != left);
        }
        if self.without.len() > PAGE_ROWS {
            return Ok(None);
        }
        if !self.without.is_empty() {
            let keys: Vec<String> = self.without.iter().map(|(_, key)| key.to_string()).collect();
            let behind = format!("WHERE key IN ({})", sql.dialect().numbers);
            let keys = format!("[{}]", keys.join(","));
            let read = reading::rows(sql, &behind, &[Value::Text(&keys)], None, Parts::BRIEF)?;
            for Stored { record, .. } in read.found {
                match fits(&record) {
                    true => self.jobs.extend(Some(record).filter(&is_asked)),
                    false => sql.note_damage("an index that lists a job among others"),
                }
            }
        }
        order.sort(&mut self.jobs);
        let next = self.jobs.last().filter(|_| self.left.is_some()).map(Cursor::of);
        let is_page = self.left.is_none() || next.is_some();
        Ok(is_page.then_some(Page { jobs: self.jobs, next }))
    }
}

/// What finds the rows of a page, and how many at most.
fn statement<'f>(filter: &'f Filter, limit: usize) -> (String, Vec<Value<'f>>, usize) {
    let (mut condition, mut values) = filter.sql_of_columns("1 = 0");
    if let Some(after) = &filter.page.after {
        values.extend([after.start_ns, id_number(&after.key.id)].map(Value::Integer));
        let (first, second) = (values.len() - 1, values.len());
        // The first condition is for the index alone.
        condition += &format!(" AND sort_ns <= ?{first} AND (sort_ns, id_number) <= (?{first}, ?{second})");
    }
    // One more says that the list goes on; a few may be of the page before.
    let most = limit.saturating_add(1 + PIECE).min(i64::MAX as usize);
    let statement = format!(
        "SELECT key, sort_ns, id_number, format, brief.sum, data FROM job LEFT JOIN brief ON brief.job = key
         WHERE {condition} ORDER BY sort_ns DESC, id_number DESC LIMIT {most}"
    );
    (statement, values, most)
}

/// Likewise of an answer.
fn read(row: &dyn Row, names: &Names) -> Option<Record> {
    let [job, format, written] = [0, 3, 4].map(|at| row.get(at).integer().ok());
    unpacked(job?, format?, written?, row.get(5).bytes().ok()?, names)
}

#[cfg(test)]
#[path = "brief_tests.rs"]
mod tests;
