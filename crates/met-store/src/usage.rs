//! Use over time: sums that the writer keeps current from the changes of jobs, and answers from them. What each job added
//! is kept, so that a job that is written again is taken back first: the order and the number of writes do not matter.

mod queries;

pub use queries::{Sees, joined, usage as answer};

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use met_core::job::{JobKey, Record};
use met_core::usage::{
    self, BUCKETS_PER_DAY, DayRow, Entry, Group, Kind, Machine, bucket_of, day_of, decode_entries,
    encode_entries,
};

use crate::error::StoreError;
use crate::query::Queries;
use crate::reading::{self, Parts, Stored};
use crate::record;
use crate::sql::{self, Sql, in_transaction};
use crate::store::Writer;

type Result<T> = std::result::Result<T, StoreError>;

/// The version from which on there are sums.
pub(crate) const USAGE_VERSION: i64 = 6;
/// Under this name: all changes of jobs up to this number are in the sums.
const MARK: &str = "usage";
/// The same for the samples of a node, in unix milliseconds.
const MACHINE_MARK: &str = "usage-machine:";
/// Jobs that are read together.
const PIECE: usize = 50;
/// Rows that are held before they are written.
const ROWS_MAX: usize = 1_000;
/// Groups of one kind and day; those beyond it are summed by user alone.
const GROUPS_PER_DAY: i64 = 20_000;
const OTHER: &str = "(other)";

/// What jobs and samples are added to, until it is written.
struct Sheet<'s> {
    sql: &'s dyn Sql,
    groups: HashMap<(Kind, Group), i64>,
    rows: BTreeMap<(i64, i64, i64), DayRow>,
    counts: HashMap<(i64, i64), i64>,
}

impl<'s> Sheet<'s> {
    fn new(sql: &'s dyn Sql) -> Sheet<'s> {
        Sheet { sql, groups: HashMap::new(), rows: BTreeMap::new(), counts: HashMap::new() }
    }

    /// The number of a group; a new one is written.
    fn group(&mut self, kind: Kind, group: &Group) -> Result<i64> {
        let key = (kind, group.clone());
        if let Some(&number) = self.groups.get(&key) {
            return Ok(number);
        }
        let text = serde_json::to_string(group).unwrap_or_default();
        let values = [kind.number().into(), (&text).into()];
        let find = "SELECT key FROM usage_group WHERE kind = ?1 AND text = ?2";
        let number = match sql::first(self.sql, find, &values, |row| row.get(0).integer())? {
            Some(number) => number,
            None => {
                let add = "INSERT INTO usage_group (kind, text) VALUES (?1, ?2) RETURNING key";
                record::returned(self.sql, add, &values)?
            }
        };
        self.groups.insert(key, number);
        Ok(number)
    }

    /// The number of a group for a day that may have too many of them.
    fn group_on(&mut self, kind: Kind, group: &Group, day: i64) -> Result<i64> {
        let number = self.group(kind, group)?;
        if self.rows.contains_key(&(kind.number(), day, number))
            || self.load(kind.number(), day, number)?.is_some()
        {
            return Ok(number);
        }
        let place = (kind.number(), day);
        if !self.counts.contains_key(&place) {
            let count = "SELECT count(*) FROM usage_row WHERE kind = ?1 AND day = ?2";
            let values = [place.0.into(), place.1.into()];
            let count = sql::first(self.sql, count, &values, |row| row.get(0).integer())?;
            self.counts.insert(place, count.unwrap_or(0));
        }
        let count = self.counts.entry(place).or_default();
        if *count < GROUPS_PER_DAY {
            *count += 1;
            return Ok(number);
        }
        let command = group.command.as_ref().map(|_| OTHER.to_owned());
        self.group(kind, &Group { user: group.user.clone(), uid: group.uid, command, ..Group::default() })
    }

    fn load(&self, kind: i64, day: i64, group: i64) -> Result<Option<DayRow>> {
        let find = "SELECT data FROM usage_row WHERE kind = ?1 AND day = ?2 AND grp = ?3";
        let values = [kind.into(), day.into(), group.into()];
        let found = sql::first(self.sql, find, &values, |row| Ok(DayRow::decode(row.get(0).bytes()?)))?;
        // A damaged row begins again: what was in it cannot be known.
        Ok(found.map(|row| row.unwrap_or_default()))
    }

    fn row(&mut self, kind: i64, day: i64, group: i64) -> Result<&mut DayRow> {
        let key = (kind, day, group);
        if !self.rows.contains_key(&key) {
            if self.rows.len() >= ROWS_MAX {
                self.write()?;
            }
            let row = self.load(kind, day, group)?.unwrap_or_default();
            self.rows.insert(key, row);
        }
        Ok(self.rows.entry(key).or_default())
    }

    fn add(&mut self, entry: &Entry) -> Result<()> {
        let row = DayRow::decode(&entry.row).unwrap_or_default();
        self.row(entry.kind, entry.day, entry.group)?.add(&row);
        Ok(())
    }

    fn take_back(&mut self, entries: &[Entry]) -> Result<()> {
        for entry in entries {
            let row = DayRow::decode(&entry.row).unwrap_or_default();
            self.row(entry.kind, entry.day, entry.group)?.subtract(&row);
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        for ((kind, day, group), row) in std::mem::take(&mut self.rows) {
            let key = [kind.into(), day.into(), group.into()];
            if row.is_empty() {
                let remove = "DELETE FROM usage_row WHERE kind = ?1 AND day = ?2 AND grp = ?3";
                self.sql.execute(remove, &key)?;
                continue;
            }
            let bytes = row.encode();
            let put = "INSERT INTO usage_row (kind, day, grp, data) VALUES (?1, ?2, ?3, ?4)
                       ON CONFLICT (kind, day, grp) DO UPDATE SET data = excluded.data";
            let [kind, day, group] = key;
            self.sql.execute(put, &[kind, day, group, sql::Value::Bytes(&bytes)])?;
        }
        Ok(())
    }

    /// Adds a job in the place of what it added before.
    fn put(&mut self, queries: &Queries, stored: &Stored) -> Result<()> {
        let record = &stored.record;
        let before = added(self.sql, stored.key)?;
        let mut entries = Vec::new();
        if !record.state.is_live() && record.end_ns.is_some() {
            let series = series_of(queries, record)?;
            usage::contribute(record, series.as_ref(), i64::MIN, &mut |kind, group, day, row| {
                let group = self.group_on(kind, group, day)?;
                entries.push(Entry { kind: kind.number(), group, day, row: row.encode() });
                Ok::<(), StoreError>(())
            })?;
        }
        if before == entries {
            return Ok(());
        }
        self.take_back(&before)?;
        for entry in &entries {
            self.add(entry)?;
        }
        self.sql.execute("DELETE FROM usage_job WHERE job = ?1", &[stored.key.into()])?;
        if !entries.is_empty() {
            let bytes = encode_entries(&entries);
            let put = "INSERT INTO usage_job (job, data) VALUES (?1, ?2)";
            self.sql.execute(put, &[stored.key.into(), sql::Value::Bytes(&bytes)])?;
        }
        Ok(())
    }
}

/// The samples of a job, where they say more than its record. Where they cannot be read it is divided evenly.
fn series_of(queries: &Queries, record: &Record) -> Result<Option<met_core::series::Series>> {
    if !usage::needs_series(record) {
        return Ok(None);
    }
    match queries.series(&record.key) {
        Err(error @ StoreError::Unreachable { .. }) => Err(error),
        series => Ok(series.ok().filter(|series| !series.is_empty())),
    }
}

/// What a job added.
fn added(sql: &dyn Sql, job: i64) -> Result<Vec<Entry>> {
    let find = "SELECT data FROM usage_job WHERE job = ?1";
    let found = sql::first(sql, find, &[job.into()], |row| Ok(decode_entries(row.get(0).bytes()?)))?;
    Ok(found.flatten().unwrap_or_default())
}

fn mark(sql: &dyn Sql, name: &str) -> Result<Option<i64>> {
    let find = "SELECT value FROM meta WHERE name = ?1";
    let value = sql::first(sql, find, &[name.into()], |row| Ok(row.get(0).text()?.to_owned()))?;
    Ok(value.and_then(|value| value.parse().ok()))
}

fn set_mark(sql: &dyn Sql, name: &str, mark: i64) -> Result<()> {
    let put = "INSERT INTO meta (name, value) VALUES (?1, ?2)
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    sql.execute(put, &[name.into(), (&mark.to_string()).into()]).map(drop)
}

/// Takes back what a job added, before another record takes its place.
pub(crate) fn withdraw(sql: &dyn Sql, key: &JobKey) -> Result<()> {
    let Some(stored) = reading::exact(sql, key, Parts::NONE)? else { return Ok(()) };
    let before = added(sql, stored.key)?;
    if before.is_empty() {
        return Ok(());
    }
    let mut sheet = Sheet::new(sql);
    sheet.take_back(&before)?;
    sheet.write()
}

/// Whether jobs changed that are not in the sums yet.
pub fn is_usage_behind(writer: &Writer) -> Result<bool> {
    writer.queries.ask(USAGE_VERSION, |sql| Ok(mark(sql, MARK)?.unwrap_or(0) < record::newest_change(sql)?))
}

/// Adds jobs that changed to the sums, until a time; true if some are left.
pub fn sum_usage(writer: &mut Writer, deadline: Instant) -> Result<bool> {
    if !is_usage_behind(writer)? {
        return Ok(false);
    }
    let queries = &writer.queries;
    let sql = queries.opened()?;
    in_transaction(sql, false, || {
        let mut sheet = Sheet::new(sql);
        let mut last = mark(sql, MARK)?.unwrap_or(0);
        let is_left = loop {
            let behind = "WHERE changed > ?1 ORDER BY changed";
            let selected = reading::rows(sql, behind, &[last.into()], Some(PIECE), Parts::ALL)?;
            if selected.rows == 0 {
                break false;
            }
            let mut is_over = false;
            for stored in &selected.found {
                sheet.put(queries, stored)?;
                last = stored.changed;
                is_over = Instant::now() >= deadline;
                if is_over {
                    break;
                }
            }
            if is_over {
                break true;
            }
            // Those that cannot be read are passed over.
            last = last.max(selected.last_changed);
        };
        sheet.write()?;
        set_mark(sql, MARK, last)?;
        Ok(is_left)
    })
}

/// Up to when the samples of a node are in the sums, in unix milliseconds: those from the begin of its quarter of an
/// hour on are to be given again.
pub fn machine_mark(writer: &Writer, node: &str) -> Result<Option<i64>> {
    writer.queries.ask(USAGE_VERSION, |sql| mark(sql, &format!("{MACHINE_MARK}{node}")))
}

/// Puts sums of a node in the place of those from the quarter of an hour of `from_ms` on, where they have any. The
/// samples behind them go to `to_ms`.
pub fn put_machine(
    writer: &mut Writer,
    node: &str,
    machine: &Machine,
    from_ms: i64,
    to_ms: i64,
) -> Result<()> {
    let first = bucket_of(from_ms.saturating_mul(1_000_000));
    writer.in_catalogue(|sql| {
        let mut sheet = Sheet::new(sql);
        let group = Group { node: Some(node.to_owned()), ..Group::default() };
        let group = sheet.group(Kind::Machine, &group)?;
        for (&day, new) in &machine.days {
            let row = sheet.row(Kind::Machine.number(), day, group)?;
            let begin = match day_of(first) {
                (first_day, place) if first_day == day => place,
                (first_day, _) if first_day > day => BUCKETS_PER_DAY,
                _ => 0,
            };
            row.buckets[begin..].copy_from_slice(&new.buckets[begin..]);
        }
        sheet.write()?;
        set_mark(sql, &format!("{MACHINE_MARK}{node}"), to_ms)
    })
}
