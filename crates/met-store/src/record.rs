//! Records as rows of the catalogue.

use std::collections::HashMap;

use met_core::JOB;
use met_core::job::{JobKey, Part, QualityKind, Record, State, Summary, finer};

use crate::device;
use crate::error::StoreError;
use crate::sql::{self, Mismatch, Row, Sql, Value};

type Result<T> = std::result::Result<T, StoreError>;

/// A job and its key in the catalogue.
pub(crate) struct Stored {
    pub key: i64,
    pub record: Record,
}

/// What to read of a job besides its row.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    pub totals: bool,
    pub summaries: bool,
}

impl Parts {
    pub const ALL: Parts = Parts { totals: true, summaries: true };
    pub const NONE: Parts = Parts { totals: false, summaries: false };
}

/// Where a job without a known start stands: it has yet to start, so it is the newest.
pub(crate) fn sort_ns(record: &Record) -> i64 {
    record.start_ns.or(record.end_ns).unwrap_or(i64::MAX)
}

/// The digits an id begins with: `12` sorts after `9`, and `12_3` beside `12`.
pub(crate) fn id_number(id: &str) -> i64 {
    let digits = id.bytes().take_while(u8::is_ascii_digit).take(18);
    digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// What names a job, as parameters of [`EXACT`].
pub(crate) fn key_values(key: &JobKey) -> [Value<'_>; 4] {
    let cluster = key.cluster.as_deref().unwrap_or("");
    [Value::Text(&key.id), Value::Text(&key.manager), Value::Integer(key.incarnation), Value::Text(cluster)]
}

pub(crate) const EXACT: &str = "id = ?1 AND manager = ?2 AND incarnation = ?3 AND cluster = ?4";

/// Jobs that pass `condition`, newest first. The condition is SQL of this crate, never of a user.
pub(crate) fn select(
    sql: &dyn Sql,
    condition: &str,
    values: &[Value<'_>],
    limit: Option<usize>,
    parts: Parts,
) -> Result<Vec<Stored>> {
    let limit = limit.map_or(String::new(), |limit| format!(" LIMIT {}", limit.min(i64::MAX as usize)));
    let statement =
        format!("SELECT key, detail FROM job WHERE {condition} ORDER BY sort_ns DESC, id_number DESC{limit}");
    let mut found = Vec::new();
    sql.query(&statement, values, &mut |row| {
        // A record that cannot be read is one job less, not a list that cannot be shown.
        if let Some(record) = read(row.get(1).text()?) {
            found.push(Stored { key: row.get(0).integer()?, record });
        }
        Ok(())
    })?;
    fill(sql, &mut found, parts)?;
    Ok(found)
}

fn read(detail: &str) -> Option<Record> {
    serde_json::from_str(detail).ok()
}

pub(crate) fn exact(sql: &dyn Sql, key: &JobKey, parts: Parts) -> Result<Option<Stored>> {
    Ok(select(sql, EXACT, &key_values(key), Some(1), parts)?.pop())
}

/// Jobs written after the change `mark`, in the order of their writing, with the number of each.
pub(crate) fn changed_after(
    sql: &dyn Sql,
    mut mark: i64,
    since_ns: Option<i64>,
    limit: usize,
) -> Result<Vec<(i64, Record)>> {
    let since = since_ns.map_or(String::new(), |since_ns| format!("AND sort_ns >= {since_ns}"));
    let statement = format!(
        "SELECT changed, key, detail FROM job WHERE changed > ?1 {since} ORDER BY changed LIMIT {}",
        limit.min(i64::MAX as usize)
    );
    loop {
        let (mut rows, mut numbers, mut found) = (0, Vec::new(), Vec::new());
        sql.query(&statement, &[mark.into()], &mut |row| {
            rows += 1;
            mark = row.get(0).integer()?;
            if let Some(record) = read(row.get(2).text()?) {
                numbers.push(mark);
                found.push(Stored { key: row.get(1).integer()?, record });
            }
            Ok(())
        })?;
        // An answer without any looks like the end, so those that cannot be read are passed over.
        if found.is_empty() && rows > 0 {
            continue;
        }
        fill(sql, &mut found, Parts::ALL)?;
        return Ok(numbers.into_iter().zip(found.into_iter().map(|stored| stored.record)).collect());
    }
}

pub(crate) fn newest_change(sql: &dyn Sql) -> Result<i64> {
    let last = sql::first(sql, "SELECT last FROM change", &[], |row| row.get(0).integer())?;
    Ok(last.unwrap_or(0))
}

/// Jobs whose figures are asked for at once.
const FILL_CHUNK: usize = 500;

fn fill(sql: &dyn Sql, found: &mut [Stored], parts: Parts) -> Result<()> {
    for jobs in found.chunks_mut(FILL_CHUNK) {
        let keys = jobs.iter().map(|stored| stored.key.to_string()).collect::<Vec<_>>().join(",");
        let keys = format!("[{keys}]");
        let places: HashMap<i64, usize> =
            jobs.iter().enumerate().map(|(place, stored)| (stored.key, place)).collect();
        let numbers = sql.dialect().numbers;
        if parts.totals {
            let statement = format!(
                "SELECT job, metric.text, value, kind.text, source.text FROM total
                 JOIN term AS metric ON metric.key = total.metric JOIN term AS kind ON kind.key = total.kind
                 JOIN term AS source ON source.key = total.source WHERE job IN ({numbers})"
            );
            sql.query(&statement, &[Value::Text(&keys)], &mut |row| {
                let place = places.get(&row.get(0).integer()?).ok_or(Mismatch)?;
                set_total(&mut jobs[*place].record, row)
            })?;
        }
        if parts.summaries {
            let statement = format!(
                "SELECT job, text, mean, min, max, p50, p95 FROM summary JOIN term ON term.key = metric
                 WHERE job IN ({numbers})"
            );
            sql.query(&statement, &[Value::Text(&keys)], &mut |row| {
                let place = places.get(&row.get(0).integer()?).ok_or(Mismatch)?;
                set_summary(&mut jobs[*place].record, row)
            })?;
        }
    }
    Ok(())
}

fn set_total(record: &mut Record, row: &dyn Row) -> std::result::Result<(), Mismatch> {
    // A metric that this version does not know came from a newer one.
    let column = JOB.column(row.get(1).text()?);
    let kind = QualityKind::parse(row.get(3).text()?);
    if let (Some(column), Some(kind)) = (column, kind) {
        record.totals.set(column, row.get(2).integer()?, kind, row.get(4).text()?.to_owned());
    }
    Ok(())
}

fn set_summary(record: &mut Record, row: &dyn Row) -> std::result::Result<(), Mismatch> {
    if let Some(column) = JOB.column(row.get(1).text()?) {
        let summary = Summary {
            mean: row.get(2).real()?,
            min: row.get(3).real()?,
            max: row.get(4).real()?,
            p50: row.get(5).known().map(Value::real).transpose()?,
            p95: row.get(6).known().map(Value::real).transpose()?,
        };
        record.summaries.set(column, summary);
    }
    Ok(())
}

/// Keys of terms already looked up. To be emptied when a transaction is undone.
pub(crate) type Terms = HashMap<String, i64>;

/// Writes what `record` adds to the catalogue. A job that ended stays ended: a live record that arrives
/// late changes nothing, and neither does `lost` after a real end.
pub(crate) fn write(sql: &dyn Sql, terms: &mut Terms, record: &Record) -> Result<()> {
    let parts = if record.state.is_live() { Parts::NONE } else { Parts::ALL };
    let before = exact(sql, &record.key, parts)?;
    let mut merged = None;
    if let Some(before) = &before {
        if !supersedes(record, &before.record) {
            return Ok(());
        }
        merged = Some(with_what_was_known(record, &before.record));
    }
    let record = merged.as_ref().unwrap_or(record);
    let key = write_row(sql, record)?;
    if before.is_some() {
        sql.execute("DELETE FROM total WHERE job = ?1", &[key.into()])?;
        sql.execute("DELETE FROM summary WHERE job = ?1", &[key.into()])?;
    }
    device::allocate(sql, key, record)?;
    write_figures(sql, terms, key, record)
}

/// A job that was called lost, or over before all of it was known, lives: what is written of it next is believed. What
/// its scheduler said of its end stays.
pub(crate) fn revive(sql: &dyn Sql, key: &JobKey) -> Result<()> {
    let Some(stored) = exact(sql, key, Parts::NONE)? else { return Ok(()) };
    if stored.record.state.is_live() || is_ended_by_scheduler(&stored.record) {
        return Ok(());
    }
    write_row(sql, &Record { state: State::Running, end_ns: None, ..stored.record }).map(drop)
}

/// Removes a job's row with its totals; its samples, if any, stay.
pub(crate) fn delete(sql: &dyn Sql, key: &JobKey) -> Result<u64> {
    sql.execute(&format!("DELETE FROM job WHERE {EXACT}"), &key_values(key))
}

/// Whether `new` says more of a job than `old`.
pub(crate) fn supersedes(new: &Record, old: &Record) -> bool {
    let rank = |state: State| match state {
        state if state.is_live() => 0,
        State::Lost => 1,
        _ => 2,
    };
    rank(new.state) >= rank(old.state)
}

/// Whether the end of a job is still to come, or was only guessed.
pub(crate) fn is_unsettled(record: &Record) -> bool {
    record.state.is_live() || record.state == State::Lost
}

/// Whether a scheduler said that it ended, and not only a node. That one was asked says nothing: it may have answered
/// that the job runs, before its end or on another node. His word on the state is dropped where a node's end goes beyond
/// it, so an ended job that has one has it for its end.
fn is_ended_by_scheduler(record: &Record) -> bool {
    !is_unsettled(record) && record.scheduling.asked_ns.is_some() && record.manager_state.is_some()
}

/// A job is told of by the node it runs on and by its scheduler, in any order; and its end is written by who
/// saw it end. Nothing that one of them knows is to be lost by what another one says.
pub(crate) fn with_what_was_known(new: &Record, old: &Record) -> Record {
    let mut record = new.clone();
    let was_told = old.scheduling.asked_ns.is_some();
    if record.gpus.is_empty() && (is_unsettled(old) || was_told) {
        record.gpus.clone_from(&old.gpus);
    }
    if !new.state.is_live() && (is_unsettled(old) || was_told) {
        record.totals.fill_from(&old.totals);
        if record.events.is_empty() {
            record.events.clone_from(&old.events);
        }
        for (column, summary) in old.summaries.iter() {
            if record.summaries.get(column).is_none() {
                record.summaries.set(column, *summary);
            }
        }
    }
    // Who was asked later has heard of the earlier answer.
    if new.scheduling.asked_ns < old.scheduling.asked_ns {
        keep_the_schedulers_word(&mut record, old);
    }
    record.requested.fill_from(&old.requested);
    record.allocated.fill_from(&old.allocated);
    record.scheduling.fill_from(&old.scheduling);
    keep_parts(&mut record.parts, &old.parts);
    record
}

/// What a scheduler said of a job beats what its node says of the same things.
fn keep_the_schedulers_word(record: &mut Record, old: &Record) {
    let mut told = (old.requested.clone(), old.allocated.clone(), old.scheduling.clone());
    told.0.fill_from(&record.requested);
    told.1.fill_from(&record.allocated);
    told.2.fill_from(&record.scheduling);
    (record.requested, record.allocated, record.scheduling) = told;
    record.account = old.account.clone().or(record.account.take());
    record.start_ns = finer(record.start_ns, old.start_ns);
    if !old.name.is_empty() {
        record.name.clone_from(&old.name);
    }
    if !old.nodes.is_empty() {
        record.nodes.clone_from(&old.nodes);
    }
    if !is_unsettled(old) {
        record.state = old.state;
        record.manager_state.clone_from(&old.manager_state);
        (record.exit_code, record.signal) = (old.exit_code, old.signal);
        record.end_ns = finer(record.end_ns, old.end_ns);
    }
}

fn keep_parts(parts: &mut Vec<Part>, old: &[Part]) {
    for old in old {
        let is_it =
            |part: &&mut Part| (&part.node, &part.step, &part.task) == (&old.node, &old.step, &old.task);
        match parts.iter_mut().find(is_it) {
            Some(part) => {
                part.name = part.name.take().or_else(|| old.name.clone());
                part.start_ns = part.start_ns.or(old.start_ns);
                part.end_ns = part.end_ns.or(old.end_ns);
                part.exit_code = part.exit_code.or(old.exit_code);
                part.totals.fill_from(&old.totals);
            }
            None => parts.push(old.clone()),
        }
    }
}

/// The key that a statement with `RETURNING key` gave.
pub(crate) fn returned(sql: &dyn Sql, statement: &str, values: &[Value<'_>]) -> Result<i64> {
    let key = sql::first(sql, statement, values, |row| row.get(0).integer())?;
    Ok(key.unwrap_or_default())
}

fn write_row(sql: &dyn Sql, record: &Record) -> Result<i64> {
    let bare = Record { totals: Default::default(), summaries: Default::default(), ..record.clone() };
    let detail = serde_json::to_string(&bare)
        .map_err(|error| StoreError::Refused { at: record.key.id.clone(), error: error.to_string() })?;
    let key = &record.key;
    let changed = returned(sql, "UPDATE change SET last = last + 1 RETURNING last", &[])?;
    returned(
        sql,
        "INSERT INTO job (cluster, manager, id, incarnation, id_number, name, \"user\", uid, account, state,
                          start_ns, end_ns, sort_ns, detail, alias, changed)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
         ON CONFLICT (id, manager, incarnation, cluster) DO UPDATE SET
             name = excluded.name, \"user\" = excluded.\"user\", uid = excluded.uid, account = excluded.account,
             state = excluded.state, start_ns = excluded.start_ns, end_ns = excluded.end_ns,
             sort_ns = excluded.sort_ns, detail = excluded.detail, alias = excluded.alias,
             changed = excluded.changed
         RETURNING key",
        &[
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
            (&detail).into(),
            record.scheduling.alias.as_ref().into(),
            changed.into(),
        ],
    )
}

fn write_figures(sql: &dyn Sql, terms: &mut Terms, key: i64, record: &Record) -> Result<()> {
    let mut totals: Vec<Value<'_>> = Vec::new();
    for (column, figure) in record.totals.iter() {
        let metric = term(sql, terms, JOB.columns[column].name)?;
        let kind = term(sql, terms, figure.kind.name())?;
        let source = term(sql, terms, &figure.source)?;
        totals.extend([key, metric, figure.value, kind, source].map(Value::Integer));
    }
    sql.insert("total (job, metric, value, kind, source)", 5, &totals)?;
    let mut summaries: Vec<Value<'_>> = Vec::new();
    for (column, summary) in record.summaries.iter() {
        let Summary { mean, min, max, p50, p95 } = *summary;
        // Not a number is not known, and what is not known is left out.
        if [mean, min, max].iter().all(|value| value.is_finite()) {
            let metric = term(sql, terms, JOB.columns[column].name)?;
            summaries.extend([Value::Integer(key), Value::Integer(metric)]);
            summaries.extend([mean, min, max].map(Value::Real));
            summaries.extend([p50, p95].map(Value::from));
        }
    }
    sql.insert("summary (job, metric, mean, min, max, p50, p95)", 7, &summaries)
}

/// Far more than there are; what is beyond was made up by somebody who may announce jobs.
const TERMS_MAX: i64 = 2_000;
const TERM_BYTES_MAX: usize = 200;
/// Stands for every text that found no room.
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
        None => returned(sql, "INSERT INTO term (text) VALUES (?1) RETURNING key", &[text.into()])?,
    };
    terms.insert(text.to_string(), key);
    Ok(key)
}

fn term_count(sql: &dyn Sql) -> Result<i64> {
    let count = sql::first(sql, "SELECT count(*) FROM term", &[], |row| row.get(0).integer())?;
    Ok(count.unwrap_or(0))
}
