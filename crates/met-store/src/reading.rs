//! Rows of the catalogue as records, each checked against its checksums. A row that cannot be read is passed over and
//! named; it costs the list no other job.

use met_core::job::{BriefRecord, JobKey, LOCAL, QualityKind, Record, Summary};
use met_core::listing::Cursor;
use met_core::provenance::Provenance;
use met_core::{FastMap, JOB};

use crate::error::StoreError;
use crate::record::{EXACT, key_values};
use crate::sql::{Dialect, Mismatch, Row, Sql, Value, in_snapshot};
use crate::sums;

type Result<T> = std::result::Result<T, StoreError>;

/// The version from which on rows have checksums.
pub(crate) const SUM_VERSION: i64 = 4;

/// What the checksum of a row covers, in this order.
pub(crate) const SUMMED: &str = "cluster, manager, id, incarnation, id_number, name, \"user\", uid, account, state, \
                                 start_ns, end_ns, sort_ns, alias, detail";
/// Where these are in an answer: behind the row's key.
const SUMMED_AT: std::ops::RangeInclusive<usize> = 1..=15;
const CLUSTER: usize = 1;
const MANAGER: usize = 2;
const ID: usize = 3;
const START_NS: usize = 11;
const END_NS: usize = 12;
const SORT_NS: usize = 13;
const DETAIL: usize = 15;
const SUM: usize = 16;
const TOTALS_SUM: usize = 17;
const SUMMARIES_SUM: usize = 18;
const CHANGED: usize = 19;

/// Jobs whose figures are read in one query.
const FILL_CHUNK: usize = 500;

/// A job and its key in the catalogue.
pub(crate) struct Stored {
    pub key: i64,
    pub record: Record,
    /// The number of its last change; 0 in files without numbers.
    pub changed: i64,
    pub totals_sum: Option<i64>,
    pub summaries_sum: Option<i64>,
    /// Some of its figures are damaged, and those left out.
    pub is_damaged: bool,
}

/// What to read of jobs besides their rows.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    pub totals: bool,
    pub summaries: bool,
    /// Nothing at all of jobs without a process of this number.
    pub of_process: Option<u32>,
    /// No processes and no marked work.
    pub is_brief: bool,
}

impl Parts {
    pub const ALL: Parts = Parts { totals: true, summaries: true, of_process: None, is_brief: false };
    pub const NONE: Parts = Parts { totals: false, summaries: false, of_process: None, is_brief: false };
    /// All but processes and marked work.
    pub const BRIEF: Parts = Parts { is_brief: true, ..Parts::ALL };
}

/// What a question found.
#[derive(Default)]
pub(crate) struct Selected {
    pub found: Vec<Stored>,
    /// Those that could not be read included.
    pub rows: usize,
    /// Of the records as they are kept.
    pub bytes: usize,
    /// The position of the last row, and the number of its change.
    pub last: Option<Cursor>,
    pub last_changed: i64,
    pub last_key: i64,
}

/// The columns of an answer, as far as a file of this version has them.
pub(crate) fn columns(version: i64) -> String {
    let summed = if version < 2 { SUMMED.replace("alias", "NULL") } else { SUMMED.to_owned() };
    let sums = if version < SUM_VERSION { "NULL, NULL, NULL" } else { "sum, totals_sum, summaries_sum" };
    let changed = if version < 3 { "NULL" } else { "changed" };
    format!("key, {summed}, {sums}, {changed}")
}

/// Newest first, as [`Cursor`] orders jobs.
pub(crate) fn order(dialect: &Dialect) -> String {
    let bytewise = dialect.bytewise;
    format!(
        "sort_ns DESC, id_number DESC, id{bytewise} DESC, manager{bytewise} DESC, incarnation DESC,
         cluster{bytewise} DESC"
    )
}

/// Jobs that pass `condition`, newest first. The condition is SQL of this crate, never of a user.
pub(crate) fn select(
    sql: &dyn Sql,
    condition: &str,
    values: &[Value<'_>],
    limit: Option<usize>,
    parts: Parts,
) -> Result<Selected> {
    let behind = format!("WHERE {condition} ORDER BY {}", order(sql.dialect()));
    rows(sql, &behind, values, limit, parts)
}

/// Rows of `job` with what is behind its name in the statement.
pub(crate) fn rows(
    sql: &dyn Sql,
    behind: &str,
    values: &[Value<'_>],
    limit: Option<usize>,
    parts: Parts,
) -> Result<Selected> {
    let limit = limit.map_or(String::new(), |limit| format!(" LIMIT {}", limit.min(i64::MAX as usize)));
    let statement = format!("SELECT {} FROM job {behind}{limit}", columns(sql.version()?));
    in_snapshot(sql, || read_rows(sql, &statement, values, parts))
}

fn read_rows(sql: &dyn Sql, statement: &str, values: &[Value<'_>], parts: Parts) -> Result<Selected> {
    let mut selected = Selected::default();
    sql.query(statement, values, &mut |row| {
        selected.rows += 1;
        selected.last = position(row).ok();
        selected.last_key = row.get(0).integer().unwrap_or(selected.last_key);
        selected.last_changed = row.get(CHANGED).integer().unwrap_or(0);
        match read(row, parts.is_brief) {
            Some(stored) if parts.of_process.is_some_and(|pid| !stored.record.has_process(pid)) => {
                return Ok(());
            }
            Some(stored) => selected.found.push(stored),
            None => sql.note_damage(&name_of(row)),
        }
        selected.bytes += row.get(DETAIL).text().map_or(0, str::len);
        Ok(())
    })?;
    fill(sql, &mut selected.found, parts)?;
    Ok(selected)
}

/// The job of a row that is as it was written.
fn read(row: &dyn Row, is_brief: bool) -> Option<Stored> {
    if !is_as_written(row) {
        return None;
    }
    let detail = row.get(DETAIL).text().ok()?;
    let record = match is_brief {
        true => serde_json::from_str::<BriefRecord>(detail).ok()?.0,
        false => serde_json::from_str::<Record>(detail).ok()?,
    };
    // Without a checksum the row must at least be of the job that its record is of.
    if !has_sum(row) && !record.key.id.contains('\0') && position(row).ok()?.key != record.key {
        return None;
    }
    Some(Stored {
        key: row.get(0).integer().ok()?,
        record,
        changed: row.get(CHANGED).integer().unwrap_or(0),
        totals_sum: row.get(TOTALS_SUM).integer().ok(),
        summaries_sum: row.get(SUMMARIES_SUM).integer().ok(),
        is_damaged: false,
    })
}

/// Whether a row fits its checksum, if it has one.
pub(crate) fn is_as_written(row: &dyn Row) -> bool {
    row.get(SUM).integer().map_or(row.get(SUM) == Value::Null, |sum| sum == row_sum(row))
}

pub(crate) fn has_sum(row: &dyn Row) -> bool {
    row.get(SUM) != Value::Null
}

pub(crate) fn row_sum(row: &dyn Row) -> i64 {
    sums::of_row(SUMMED_AT.map(|at| row.get(at)))
}

/// The checksums of its totals and summaries.
pub(crate) fn figure_sums(row: &dyn Row) -> [Option<i64>; 2] {
    [TOTALS_SUM, SUMMARIES_SUM].map(|at| row.get(at).integer().ok())
}

fn position(row: &dyn Row) -> std::result::Result<Cursor, Mismatch> {
    Ok(Cursor::at(row.get(SORT_NS).integer()?, key_at(row, CLUSTER)?))
}

/// The key of a job in four columns from this one on: cluster, manager, id and incarnation.
pub(crate) fn key_at(row: &dyn Row, first: usize) -> std::result::Result<JobKey, Mismatch> {
    let text = |at: usize| row.get(first + at).text().map(str::to_owned);
    let cluster = Some(text(0)?).filter(|cluster| !cluster.is_empty());
    Ok(JobKey { cluster, manager: text(1)?, id: text(2)?, incarnation: row.get(first + 3).integer()? })
}

/// How a row that cannot be read is called.
pub(crate) fn name_of(row: &dyn Row) -> String {
    match (row.get(MANAGER).text(), row.get(ID).text(), row.get(0).integer()) {
        (Ok(manager), Ok(id), _) => label(manager, id),
        (_, _, Ok(key)) => format!("row {key}"),
        _ => "a row".to_owned(),
    }
}

pub(crate) fn label(manager: &str, id: &str) -> String {
    let text = if manager == LOCAL { id.to_owned() } else { format!("{manager}:{id}") };
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).take(80).collect()
}

pub(crate) fn exact(sql: &dyn Sql, key: &JobKey, parts: Parts) -> Result<Option<Stored>> {
    let behind = format!("WHERE {EXACT}");
    Ok(rows(sql, &behind, &key_values(key), Some(1), parts)?.found.pop())
}

/// When a job began and ended, by its row alone: a record takes longer to read. `None` unless a checksum says that the row
/// is as it was written.
pub(crate) fn span(sql: &dyn Sql, key: &JobKey) -> Result<Option<(Option<i64>, Option<i64>)>> {
    let statement = format!("SELECT {} FROM job WHERE {EXACT}", columns(sql.version()?));
    let mut span = None;
    sql.query(&statement, &key_values(key), &mut |row| {
        let time_ns = |at: usize| row.get(at).integer().ok();
        span = (has_sum(row) && is_as_written(row)).then(|| (time_ns(START_NS), time_ns(END_NS)));
        Ok(())
    })?;
    Ok(span)
}

/// Jobs written after the change `mark`, in the order of their writing, with the number of each.
pub(crate) fn changed_after(
    sql: &dyn Sql,
    mut mark: i64,
    since_ns: Option<i64>,
    limit: usize,
) -> Result<Vec<(i64, Record)>> {
    let since = since_ns.map_or(String::new(), |since_ns| format!("AND sort_ns >= {since_ns}"));
    let behind = format!("WHERE changed > ?1 {since} ORDER BY changed");
    loop {
        let selected = rows(sql, &behind, &[mark.into()], Some(limit), Parts::ALL)?;
        // An answer without any looks like the end, so those that cannot be read are passed over.
        if selected.found.is_empty() && selected.rows > 0 && selected.last_changed > mark {
            mark = selected.last_changed;
            continue;
        }
        return Ok(selected.found.into_iter().map(|stored| (stored.changed, stored.record)).collect());
    }
}

/// A metric, a kind or a source, by what it can be: a text is looked up once, and not for each of millions of figures.
pub(crate) struct Term {
    /// None of a metric that this version does not know: it came from a newer one.
    column: Option<usize>,
    kind: Option<QualityKind>,
    source: Provenance,
}

impl Term {
    pub fn new(text: &str) -> Term {
        let (column, kind) = (JOB.column(text), QualityKind::parse(text));
        Term { column, kind, source: text.to_owned().into() }
    }
}

/// Metrics, kinds and sources by their keys; `None` for one that is damaged.
pub(crate) type Names = FastMap<i64, Option<Term>>;

pub(crate) fn names(sql: &dyn Sql) -> Result<Names> {
    let sum = if sql.version()? < SUM_VERSION { "NULL" } else { "sum" };
    let mut names = Names::default();
    sql.query(&format!("SELECT key, text, {sum} FROM term"), &[], &mut |row| {
        if let Ok(key) = row.get(0).integer() {
            let text = row.get(1).text().ok();
            let fits = |text: &&str| row.get(2).integer().map_or(true, |sum| sum == sums::of_term(key, text));
            names.insert(key, text.filter(fits).map(Term::new));
        }
        Ok(())
    })?;
    Ok(names)
}

/// What was read of a job's figures.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub totals: i64,
    pub summaries: i64,
    /// A figure whose name, kind or source is unknown.
    pub nameless: bool,
}

fn fill(sql: &dyn Sql, found: &mut [Stored], parts: Parts) -> Result<()> {
    if found.is_empty() || !(parts.totals || parts.summaries) {
        return Ok(());
    }
    let names = names(sql)?;
    for jobs in found.chunks_mut(FILL_CHUNK) {
        let keys = jobs.iter().map(|stored| stored.key.to_string()).collect::<Vec<_>>().join(",");
        let keys = format!("[{keys}]");
        let places: FastMap<i64, usize> =
            jobs.iter().enumerate().map(|(place, stored)| (stored.key, place)).collect();
        let place_of = |row: &dyn Row| row.get(0).integer().ok().and_then(|key| places.get(&key).copied());
        let mut tallies = vec![Tally::default(); jobs.len()];
        let numbers = sql.dialect().numbers;
        if parts.totals {
            let statement =
                format!("SELECT job, metric, value, kind, source FROM total WHERE job IN ({numbers})");
            sql.query(&statement, &[Value::Text(&keys)], &mut |row| {
                if let Some(place) = place_of(row) {
                    set_total(&mut jobs[place].record, row, &names, &mut tallies[place]);
                }
                Ok(())
            })?;
        }
        if parts.summaries {
            let statement =
                format!("SELECT job, metric, mean, min, max, p50, p95 FROM summary WHERE job IN ({numbers})");
            sql.query(&statement, &[Value::Text(&keys)], &mut |row| {
                if let Some(place) = place_of(row) {
                    set_summary(&mut jobs[place].record, row, &names, &mut tallies[place]);
                }
                Ok(())
            })?;
        }
        for (stored, tally) in jobs.iter_mut().zip(tallies) {
            if let Some(what) = stored.settle(&tally, parts) {
                sql.note_damage(&what);
            }
        }
    }
    Ok(())
}

impl Stored {
    /// Removes figures whose checksum does not match, and returns what was damaged.
    pub(crate) fn settle(&mut self, tally: &Tally, parts: Parts) -> Option<String> {
        let name = || label(&self.record.key.manager, self.record.shown_id());
        let wrong = |expected: Option<i64>, sum: i64| expected.is_some_and(|expected| expected != sum);
        let mut damaged = tally.nameless.then(|| format!("figures of {}", name()));
        if parts.totals && wrong(self.totals_sum, tally.totals) {
            damaged = Some(format!("totals of {}", name()));
            self.record.totals = Default::default();
        }
        if parts.summaries && wrong(self.summaries_sum, tally.summaries) {
            damaged.get_or_insert_with(|| {
                format!("means of {}", label(&self.record.key.manager, &self.record.key.id))
            });
            self.record.summaries = Default::default();
        }
        self.is_damaged = damaged.is_some();
        damaged
    }
}

fn set_total(record: &mut Record, row: &dyn Row, names: &Names, tally: &mut Tally) {
    let numbers = [1, 2, 3, 4].map(|at| row.get(at).integer().ok());
    match numbers {
        [Some(metric), Some(value), Some(kind), Some(source)] => {
            put_total(record, [metric, value, kind, source], names, tally);
        }
        // It fits no sum then.
        _ => tally.totals = tally.totals.wrapping_add(1),
    }
}

/// Adds a total: metric, value, kind and source.
pub(crate) fn put_total(record: &mut Record, total: [i64; 4], names: &Names, tally: &mut Tally) {
    let [metric, value, kind, source] = total;
    tally.totals = tally.totals.wrapping_add(sums::of_total(metric, value, kind, source));
    match named_total(names, metric, kind, source) {
        Some(Some((column, kind, source))) => record.totals.set(column, value, kind, source.clone()),
        Some(None) => {}
        None => tally.nameless = true,
    }
}

/// The column, kind and source of a total by their terms: nothing where this version does not know them, `None` where a
/// term is damaged.
pub(crate) fn named_total(
    names: &Names,
    metric: i64,
    kind: i64,
    source: i64,
) -> Option<Option<(usize, QualityKind, &Provenance)>> {
    let name = |key: i64| names.get(&key).and_then(Option::as_ref);
    let (metric, kind, source) = (name(metric)?, name(kind)?, name(source)?);
    Some(metric.column.zip(kind.kind).map(|(column, kind)| (column, kind, &source.source)))
}

/// The column of a summary, likewise.
pub(crate) fn named_summary(names: &Names, metric: i64) -> Option<Option<usize>> {
    Some(names.get(&metric).and_then(Option::as_ref)?.column)
}

fn set_summary(record: &mut Record, row: &dyn Row, names: &Names, tally: &mut Tally) {
    let [mean, min, max] = [2, 3, 4].map(|at| row.get(at).real().ok());
    let [p50, p95] = [5, 6].map(|at| row.get(at).real().ok());
    match (row.get(1).integer(), mean, min, max) {
        (Ok(metric), Some(mean), Some(min), Some(max)) => {
            put_summary(record, metric, Summary { mean, min, max, p50, p95 }, names, tally);
        }
        _ => tally.summaries = tally.summaries.wrapping_add(1),
    }
}

pub(crate) fn put_summary(
    record: &mut Record,
    metric: i64,
    summary: Summary,
    names: &Names,
    tally: &mut Tally,
) {
    tally.summaries = tally.summaries.wrapping_add(sums::of_summary(metric, &summary));
    match named_summary(names, metric) {
        Some(Some(column)) => record.summaries.set(column, summary),
        Some(None) => {}
        None => tally.nameless = true,
    }
}
