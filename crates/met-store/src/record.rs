//! Records as rows of the catalogue.

use std::collections::HashMap;

use met_core::JOB;
use met_core::job::{JobKey, Part, QualityKind, Record, State, Summary, finer};
use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, Result, params};

use crate::device;

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

/// Jobs that pass `condition`, newest first. The condition is SQL of this crate, never of a user.
pub(crate) fn select(
    connection: &Connection,
    condition: &str,
    values: &[&dyn ToSql],
    limit: i64,
    parts: Parts,
) -> Result<Vec<Stored>> {
    let sql = format!(
        "SELECT key, detail FROM job WHERE {condition} ORDER BY sort_ns DESC, id_number DESC LIMIT {limit}"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(values)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let key = row.get(0)?;
        // A record that cannot be read is one job less, not a list that cannot be shown.
        let Ok(record) = serde_json::from_str::<Record>(row.get_ref(1)?.as_str()?) else { continue };
        found.push(Stored { key, record });
    }
    for stored in &mut found {
        fill(connection, stored, parts)?;
    }
    Ok(found)
}

pub(crate) fn exact(connection: &Connection, key: &JobKey, parts: Parts) -> Result<Option<Stored>> {
    let cluster = key.cluster.as_deref().unwrap_or("");
    let condition = "id = ?1 AND manager = ?2 AND incarnation = ?3 AND cluster = ?4";
    let values: [&dyn ToSql; 4] = [&key.id, &key.manager, &key.incarnation, &cluster];
    Ok(select(connection, condition, &values, 1, parts)?.pop())
}

/// Jobs written after the change `mark`, in the order of their writing, with the number of each.
pub(crate) fn changed_after(connection: &Connection, mark: i64, limit: usize) -> Result<Vec<(i64, Record)>> {
    let sql = "SELECT changed, key, detail FROM job WHERE changed > ?1 ORDER BY changed";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([mark])?;
    let mut found = Vec::new();
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        // One that cannot be read takes nobody's place: an answer without any would look like the end.
        let Ok(record) = serde_json::from_str::<Record>(row.get_ref(2)?.as_str()?) else { continue };
        let mut stored = Stored { key: row.get(1)?, record };
        fill(connection, &mut stored, Parts::ALL)?;
        found.push((row.get(0)?, stored.record));
    }
    Ok(found)
}

pub(crate) fn newest_change(connection: &Connection) -> Result<i64> {
    connection.prepare_cached("SELECT last FROM change")?.query_row([], |row| row.get(0))
}

fn fill(connection: &Connection, stored: &mut Stored, parts: Parts) -> Result<()> {
    if parts.totals {
        let mut statement = connection.prepare_cached(
            "SELECT metric.text, value, kind.text, source.text FROM total
             JOIN term AS metric ON metric.key = metric JOIN term AS kind ON kind.key = kind
             JOIN term AS source ON source.key = source WHERE job = ?1",
        )?;
        let mut rows = statement.query([stored.key])?;
        while let Some(row) = rows.next()? {
            // A metric that this version does not know came from a newer one.
            let column = JOB.column(row.get_ref(0)?.as_str()?);
            let kind = QualityKind::parse(row.get_ref(2)?.as_str()?);
            if let (Some(column), Some(kind)) = (column, kind) {
                stored.record.totals.set(column, row.get(1)?, kind, row.get::<_, String>(3)?);
            }
        }
    }
    if parts.summaries {
        let mut statement = connection.prepare_cached(
            "SELECT text, mean, min, max, p50, p95 FROM summary JOIN term ON term.key = metric WHERE job = ?1",
        )?;
        let mut rows = statement.query([stored.key])?;
        while let Some(row) = rows.next()? {
            if let Some(column) = JOB.column(row.get_ref(0)?.as_str()?) {
                let summary = Summary {
                    mean: row.get(1)?,
                    min: row.get(2)?,
                    max: row.get(3)?,
                    p50: row.get(4)?,
                    p95: row.get(5)?,
                };
                stored.record.summaries.set(column, summary);
            }
        }
    }
    Ok(())
}

/// Keys of terms already looked up. To be emptied when a transaction is undone.
pub(crate) type Terms = HashMap<String, i64>;

/// Writes what `record` adds to the catalogue. A job that ended stays ended: a live record that arrives
/// late changes nothing, and neither does `lost` after a real end.
pub(crate) fn write(connection: &Connection, terms: &mut Terms, record: &Record) -> Result<()> {
    let parts = if record.state.is_live() { Parts::NONE } else { Parts::ALL };
    let before = exact(connection, &record.key, parts)?;
    let mut merged = None;
    if let Some(before) = &before {
        if !supersedes(record, &before.record) {
            return Ok(());
        }
        merged = Some(with_what_was_known(record, &before.record));
    }
    let record = merged.as_ref().unwrap_or(record);
    let key = write_row(connection, record)?;
    if before.is_some() {
        connection.prepare_cached("DELETE FROM total WHERE job = ?1")?.execute([key])?;
        connection.prepare_cached("DELETE FROM summary WHERE job = ?1")?.execute([key])?;
    }
    device::allocate(connection, key, record)?;
    write_figures(connection, terms, key, record)
}

/// Removes a job's row with its totals; its samples, if any, stay.
pub(crate) fn delete(connection: &Connection, key: &JobKey) -> Result<usize> {
    let cluster = key.cluster.as_deref().unwrap_or("");
    connection
        .prepare_cached(
            "DELETE FROM job WHERE id = ?1 AND manager = ?2 AND incarnation = ?3 AND cluster = ?4",
        )?
        .execute(params![key.id, key.manager, key.incarnation, cluster])
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

fn write_row(connection: &Connection, record: &Record) -> Result<i64> {
    let bare = Record { totals: Default::default(), summaries: Default::default(), ..record.clone() };
    let detail = serde_json::to_string(&bare)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let key = &record.key;
    let changed: i64 = connection
        .prepare_cached("UPDATE change SET last = last + 1 RETURNING last")?
        .query_row([], |row| row.get(0))?;
    connection
        .prepare_cached(
            "INSERT INTO job (cluster, manager, id, incarnation, id_number, name, user, uid, account, state,
                              start_ns, end_ns, sort_ns, detail, alias, changed)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
             ON CONFLICT (id, manager, incarnation, cluster) DO UPDATE SET
                 name = excluded.name, user = excluded.user, uid = excluded.uid, account = excluded.account,
                 state = excluded.state, start_ns = excluded.start_ns, end_ns = excluded.end_ns,
                 sort_ns = excluded.sort_ns, detail = excluded.detail, alias = excluded.alias,
                 changed = excluded.changed
             RETURNING key",
        )?
        .query_row(
            params![
                key.cluster.as_deref().unwrap_or(""),
                key.manager,
                key.id,
                key.incarnation,
                id_number(&key.id),
                record.name,
                record.user,
                record.uid,
                record.account,
                record.state.name(),
                record.start_ns,
                record.end_ns,
                sort_ns(record),
                detail,
                record.scheduling.alias,
                changed
            ],
            |row| row.get(0),
        )
}

fn write_figures(connection: &Connection, terms: &mut Terms, key: i64, record: &Record) -> Result<()> {
    let mut total = connection
        .prepare_cached("INSERT INTO total (job, metric, value, kind, source) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for (column, figure) in record.totals.iter() {
        let metric = term(connection, terms, JOB.columns[column].name)?;
        let kind = term(connection, terms, figure.kind.name())?;
        let source = term(connection, terms, &figure.source)?;
        total.execute([key, metric, figure.value, kind, source])?;
    }
    let mut insert = connection.prepare_cached(
        "INSERT INTO summary (job, metric, mean, min, max, p50, p95) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for (column, summary) in record.summaries.iter() {
        let Summary { mean, min, max, p50, p95 } = *summary;
        // Not a number is not known, and what is not known is left out.
        if [mean, min, max].iter().all(|value| value.is_finite()) {
            let metric = term(connection, terms, JOB.columns[column].name)?;
            insert.execute(params![key, metric, mean, min, max, p50, p95])?;
        }
    }
    Ok(())
}

/// Far more than there are; what is beyond was made up by somebody who may announce jobs.
const TERMS_MAX: i64 = 2_000;
const TERM_BYTES_MAX: usize = 200;
/// Stands for every text that found no room.
const OTHER: &str = "other";

fn term(connection: &Connection, terms: &mut Terms, text: &str) -> Result<i64> {
    let text = if text.len() > TERM_BYTES_MAX { OTHER } else { text };
    if let Some(&key) = terms.get(text) {
        return Ok(key);
    }
    let find = "SELECT key FROM term WHERE text = ?1";
    let found = connection.prepare_cached(find)?.query_row([text], |row| row.get(0)).optional()?;
    let key = match found {
        Some(key) => key,
        None if text != OTHER && term_count(connection)? >= TERMS_MAX => term(connection, terms, OTHER)?,
        None => {
            connection.prepare_cached("INSERT INTO term (text) VALUES (?1)")?.execute([text])?;
            connection.last_insert_rowid()
        }
    };
    // A text without room is not remembered either: the table bounds this map.
    if term_of(connection, key)? == text {
        terms.insert(text.to_string(), key);
    }
    Ok(key)
}

fn term_count(connection: &Connection) -> Result<i64> {
    connection.prepare_cached("SELECT count(*) FROM term")?.query_row([], |row| row.get(0))
}

fn term_of(connection: &Connection, key: i64) -> Result<String> {
    connection.prepare_cached("SELECT text FROM term WHERE key = ?1")?.query_row([key], |row| row.get(0))
}
