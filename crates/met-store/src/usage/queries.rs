//! Reads the sums and adds what is not in them yet: jobs that run, wait in the inbox or changed a moment ago.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use met_core::FastMap;
use met_core::job::{JobKey, Record};
use met_core::usage::{
    self, BUCKET_NS, By, Calendar, DayRow, Group, GroupRef, Kind, Table, Usage, UsageAsk, UsageLine,
    UsageTooLong, day_of,
};

use super::{MARK, Result, USAGE_VERSION, added, mark, series_of};
use crate::error::StoreError;
use crate::query::{Queries, settle};
use crate::reading::{self, Parts, exact};
use crate::record;
use crate::sql::{self, Sql, in_snapshot};

/// Jobs that are added while a reader waits; the reply says that further ones are missing.
const PENDING_MAX: usize = 2_000;
/// Of these, only so many are read with their samples.
const WITH_SERIES_MAX: usize = 200;
/// Tries to see rows and mark of one moment, where a database has no snapshots.
const TRIES: usize = 3;

/// Who may see the sums of a group.
pub type Sees<'s> = &'s dyn Fn(GroupRef<'_>) -> bool;

enum Failed {
    Store(StoreError),
    TooLong,
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Store(error)
    }
}

impl From<UsageTooLong> for Failed {
    fn from(_: UsageTooLong) -> Failed {
        Failed::TooLong
    }
}

/// Use over time, of the groups that may be seen. `live`: jobs that run, with their figures at `now_ns`.
pub fn usage(
    queries: &Queries,
    ask: &UsageAsk,
    sees: Sees<'_>,
    live: &[Record],
    now_ns: i64,
) -> Result<std::result::Result<Usage, UsageTooLong>> {
    let calendar = ask.calendar();
    let except = ask.except.iter().collect();
    let query = UsageQuery { queries, ask, sees, live, now_ns, calendar: &calendar, except };
    match query.answer() {
        Ok(usage) => Ok(Ok(usage)),
        Err(Failed::TooLong) => Ok(Err(UsageTooLong)),
        Err(Failed::Store(error)) => Err(error),
    }
}

struct UsageQuery<'a> {
    queries: &'a Queries,
    ask: &'a UsageAsk,
    sees: Sees<'a>,
    live: &'a [Record],
    now_ns: i64,
    calendar: &'a Calendar,
    /// Jobs that another source counts.
    except: HashSet<&'a JobKey>,
}

impl UsageQuery<'_> {
    fn answer(&self) -> std::result::Result<Usage, Failed> {
        let mut usage = Usage { periods: self.calendar.periods.clone(), ..Usage::default() };
        let mut table = Table::new(self.ask.by, self.calendar);
        let inbox = self.queries.inbox().unwrap_or_default();
        if let Some(sql) = self.queries.catalogue()? {
            let has_sums = sql.version()? >= USAGE_VERSION;
            for _ in 0..TRIES {
                table = Table::new(self.ask.by, self.calendar);
                let since = if has_sums { mark(sql, MARK)?.unwrap_or(0) } else { 0 };
                usage.pending = self.in_snapshot(sql, || {
                    if has_sums {
                        self.add_rows(sql, &mut table)?;
                        self.take_back_excepted(sql, &mut table)?;
                    }
                    self.add_changed(sql, since, has_sums, &mut table)
                })?;
                if !has_sums || mark(sql, MARK)?.unwrap_or(0) == since {
                    break;
                }
            }
            if has_sums {
                self.machines(sql, &mut usage)?;
            }
            let mut inbox = inbox;
            settle(sql, &mut inbox)?;
            self.add_inbox(Some(sql), &inbox, &mut table)?;
        } else {
            self.add_inbox(None, &inbox, &mut table)?;
        }
        for record in self.live.iter().filter(|record| !self.except.contains(&record.key)) {
            let until_ns = record.as_of_ns.unwrap_or(self.now_ns);
            self.add_record(record, false, until_ns, &mut table)?;
        }
        usage.lines = table.finish();
        Ok(usage)
    }

    fn in_snapshot<T>(
        &self,
        sql: &dyn Sql,
        work: impl FnOnce() -> std::result::Result<T, Failed>,
    ) -> std::result::Result<T, Failed> {
        let mut done = None;
        in_snapshot(sql, || {
            done = Some(work());
            Ok(())
        })?;
        done.unwrap_or(Err(Failed::TooLong))
    }

    /// The UTC days of the time that is asked for.
    fn days(&self) -> (i64, i64) {
        let last = self.calendar.first + (self.calendar.places.len() as i64 - 1).max(0);
        (day_of(self.calendar.first).0, day_of(last).0)
    }

    fn accepts(&self, group: GroupRef<'_>) -> bool {
        self.ask.accepts(group) && (self.sees)(group)
    }

    fn add_rows(&self, sql: &dyn Sql, table: &mut Table<'_>) -> std::result::Result<(), Failed> {
        let kind = self.ask.kind();
        // Groups may be as many as jobs: none is held.
        let (mut places, mut too_long) = (Places::default(), None);
        each_group(sql, kind, |key, group| {
            if self.accepts(group) {
                match table.place(group) {
                    Ok(place) => places.insert(key, place),
                    Err(UsageTooLong) => too_long = Some(Failed::TooLong),
                }
            }
        })?;
        too_long.map_or(Ok(()), Err)?;
        let (first, last) = self.days();
        // In the order of the days, which it has.
        let rows = "SELECT day, grp, data FROM usage_row WHERE kind = ?1 AND day >= ?2 AND day <= ?3";
        let values = [kind.number().into(), first.into(), last.into()];
        sql.query(rows, &values, &mut |row| {
            let (day, group) = (row.get(0).integer()?, row.get(1).integer()?);
            if let Some(place) = places.get(group)
                && !table.add_encoded(place, day, row.get(2).bytes()?)
            {
                sql.note_damage("a sum of use");
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Jobs that changed since the sums were written: what they added before is taken back. How many are missing.
    fn add_changed(
        &self,
        sql: &dyn Sql,
        since: i64,
        has_sums: bool,
        table: &mut Table<'_>,
    ) -> std::result::Result<u64, Failed> {
        if record::newest_change(sql)? <= since {
            return Ok(0);
        }
        let behind = "WHERE changed > ?1 ORDER BY changed";
        let selected = reading::rows(sql, behind, &[since.into()], Some(PENDING_MAX), Parts::ALL)?;
        let known = if has_sums { groups(sql, self.ask.kind())? } else { HashMap::new() };
        let found = selected.found.iter().filter(|stored| !self.except.contains(&stored.record.key));
        for (number, stored) in found.enumerate() {
            let before = if has_sums { added(sql, stored.key)? } else { Vec::new() };
            self.take_back(&before, &known, table)?;
            if !stored.record.state.is_live() && stored.record.end_ns.is_some() {
                self.add_record(&stored.record, number < WITH_SERIES_MAX, self.now_ns, table)?;
            }
        }
        if selected.rows < PENDING_MAX {
            return Ok(0);
        }
        let count = "SELECT count(*) FROM job WHERE changed > ?1";
        let left = sql::first(sql, count, &[selected.last_changed.into()], |row| row.get(0).integer())?;
        Ok(left.unwrap_or(0).max(0) as u64)
    }

    /// What the sums have of jobs that another source counts.
    fn take_back_excepted(&self, sql: &dyn Sql, table: &mut Table<'_>) -> std::result::Result<(), Failed> {
        if self.except.is_empty() {
            return Ok(());
        }
        let known = groups(sql, self.ask.kind())?;
        for key in &self.except {
            if let Some(stored) = exact(sql, key, Parts::NONE)? {
                self.take_back(&added(sql, stored.key)?, &known, table)?;
            }
        }
        Ok(())
    }

    /// Takes back what a job added to the sums.
    fn take_back(
        &self,
        before: &[usage::Entry],
        known: &HashMap<i64, Group>,
        table: &mut Table<'_>,
    ) -> std::result::Result<(), Failed> {
        for usage::Entry { kind, group, day, row } in before {
            let group = known.get(group).filter(|_| *kind == self.ask.kind().number());
            if let Some(group) = group.filter(|&group| self.accepts(group.into())) {
                let place = table.place(group)?;
                table.add(place, *day, &DayRow::decode(row).unwrap_or_default(), -1);
            }
        }
        Ok(())
    }

    /// Ends that wait to be imported.
    fn add_inbox(
        &self,
        sql: Option<&dyn Sql>,
        inbox: &HashMap<JobKey, Record>,
        table: &mut Table<'_>,
    ) -> std::result::Result<(), Failed> {
        let is_counted = |record: &&Record| !record.state.is_live() && !self.except.contains(&record.key);
        for record in inbox.values().filter(is_counted) {
            let stored = match sql {
                Some(sql) => exact(sql, &record.key, Parts::NONE)?,
                None => None,
            };
            if stored.is_none_or(|stored| stored.record.state.is_live()) {
                self.add_record(record, true, self.now_ns, table)?;
            }
        }
        Ok(())
    }

    fn add_record(
        &self,
        record: &Record,
        with_series: bool,
        until_ns: i64,
        table: &mut Table<'_>,
    ) -> std::result::Result<(), Failed> {
        let begins_later = record.start_ns.is_none_or(|start_ns| start_ns >= self.ask.to_ns);
        let ended_before = record.end_ns.is_some_and(|end_ns| end_ns < self.calendar.first * BUCKET_NS);
        if begins_later || ended_before {
            return Ok(());
        }
        let series = if with_series { series_of(self.queries, record).unwrap_or(None) } else { None };
        usage::contribute(record, series.as_ref(), until_ns, &mut |kind, group, day, row| {
            if kind == self.ask.kind() && self.accepts(group.into()) {
                let place = table.place(group)?;
                table.add(place, day, row, 1);
            }
            Ok(())
        })
    }

    /// All users may see what machines did.
    fn machines(&self, sql: &dyn Sql, usage: &mut Usage) -> std::result::Result<(), Failed> {
        let by = if self.ask.by == By::Node { By::Node } else { By::System };
        let mut table = Table::new(by, self.calendar);
        let number = Kind::Machine.number();
        let (first, last) = self.days();
        let mut groups = groups(sql, Kind::Machine)?;
        groups.retain(|_, group| self.ask.node.is_none() || group.node == self.ask.node);
        let rows = "SELECT day, grp, data FROM usage_row WHERE kind = ?1 AND day >= ?2 AND day <= ?3";
        let mut places = HashMap::new();
        for (key, group) in &groups {
            places.insert(*key, table.place(group)?);
        }
        sql.query(rows, &[number.into(), first.into(), last.into()], &mut |row| {
            let (day, group) = (row.get(0).integer()?, row.get(1).integer()?);
            if let Some(&place) = places.get(&group) {
                table.add_encoded(place, day, row.get(2).bytes()?);
            }
            Ok(())
        })?;
        usage.machines = table.finish();
        let begins = "SELECT grp, min(day) FROM usage_row WHERE kind = ?1 GROUP BY grp";
        for (key, day) in
            sql::all(sql, begins, &[number.into()], |row| Ok((row.get(0).integer()?, row.get(1).integer()?)))?
        {
            let name = groups.get(&key).and_then(|group| group.node.clone());
            if let Some(name) = name {
                usage.machine_since.push((name, first_measured_ns(sql, key, day)?));
            }
        }
        usage.machine_since.sort();
        Ok(())
    }
}

/// Where the sums of each group are. Keys are numbers one after the other, and there may be as many as jobs: a map of them
/// takes longer to fill and to ask than all sums.
#[derive(Default)]
struct Places {
    near: Vec<u32>,
    far: FastMap<i64, usize>,
}

impl Places {
    const NEAR_MAX: usize = 1 << 24;
    const NONE: u32 = u32::MAX;

    fn insert(&mut self, key: i64, place: usize) {
        match (usize::try_from(key), u32::try_from(place)) {
            (Ok(at), Ok(place)) if at < Places::NEAR_MAX && place != Places::NONE => {
                if at >= self.near.len() {
                    self.near.resize(at + 1, Places::NONE);
                }
                self.near[at] = place;
            }
            _ => drop(self.far.insert(key, place)),
        }
    }

    fn get(&self, key: i64) -> Option<usize> {
        let near = usize::try_from(key).ok().and_then(|at| self.near.get(at));
        let near = near.filter(|&&place| place != Places::NONE).map(|&place| place as usize);
        near.or_else(|| self.far.get(&key).copied())
    }
}

/// When a machine was first measured, on its first day.
fn first_measured_ns(sql: &dyn Sql, group: i64, day: i64) -> Result<i64> {
    let find = "SELECT data FROM usage_row WHERE kind = ?1 AND day = ?2 AND grp = ?3";
    let values = [Kind::Machine.number().into(), day.into(), group.into()];
    let row = sql::first(sql, find, &values, |row| Ok(DayRow::decode(row.get(0).bytes()?)))?.flatten();
    let is_used = |amounts: &usage::Amounts| amounts.iter().any(|&amount| amount != 0);
    let place = row.and_then(|row| row.buckets.iter().position(is_used)).unwrap_or(0);
    Ok((day * usage::BUCKETS_PER_DAY as i64 + place as i64) * BUCKET_NS)
}

fn groups(sql: &dyn Sql, kind: Kind) -> Result<HashMap<i64, Group>> {
    let mut groups = HashMap::new();
    let find = "SELECT key, text FROM usage_group WHERE kind = ?1";
    sql.query(find, &[kind.number().into()], &mut |row| {
        groups.insert(row.get(0).integer()?, serde_json::from_str(row.get(1).text()?).unwrap_or_default());
        Ok(())
    })?;
    Ok(groups)
}

fn each_group(sql: &dyn Sql, kind: Kind, mut each: impl FnMut(i64, GroupRef<'_>)) -> Result<()> {
    let find = "SELECT key, text FROM usage_group WHERE kind = ?1";
    sql.query(find, &[kind.number().into()], &mut |row| {
        let (key, text) = (row.get(0).integer()?, row.get(1).text()?);
        match serde_json::from_str::<GroupRef<'_>>(text) {
            Ok(group) => each(key, group),
            // A text with an escape in it is not as it is written.
            Err(_) => each(key, (&serde_json::from_str::<Group>(text).unwrap_or_default()).into()),
        }
        Ok(())
    })
}

/// The lines of several stores as one.
pub fn joined(answers: Vec<Usage>) -> Usage {
    let mut answers = answers.into_iter();
    let Some(mut whole) = answers.next() else { return Usage::default() };
    for other in answers {
        add_lines(&mut whole.lines, other.lines);
        // A machine that two daemons measure is one machine.
        if whole.machines.is_empty() || longer(&other.machines, &whole.machines) {
            (whole.machines, whole.machine_since) = (other.machines, other.machine_since);
        }
        whole.pending += other.pending;
        whole.is_partial |= other.is_partial;
    }
    whole
}

fn longer(one: &[UsageLine], other: &[UsageLine]) -> bool {
    let measured = |lines: &[UsageLine]| -> i128 {
        lines.iter().map(|line| line.sums[usage::machine_figure::MEASURED_MS]).sum()
    };
    measured(one) > measured(other)
}

fn add_lines(lines: &mut Vec<UsageLine>, others: Vec<UsageLine>) {
    let mut known: BTreeMap<(Option<String>, usize), UsageLine> = BTreeMap::new();
    for line in std::mem::take(lines).into_iter().chain(others) {
        match known.entry((line.name.clone(), line.period)) {
            Entry::Vacant(place) => drop(place.insert(line)),
            Entry::Occupied(mut known) => {
                known.get_mut().sums.iter_mut().zip(line.sums).for_each(|(sum, more)| *sum += more);
            }
        }
    }
    lines.extend(known.into_values());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_with_any_key_have_their_place() {
        let keys = [3, 1, 0, -7, 1 << 23, 1 << 24, i64::MAX, i64::MIN];
        let mut places = Places::default();
        keys.iter().enumerate().for_each(|(place, &key)| places.insert(key, place));
        for (place, key) in keys.into_iter().enumerate() {
            assert_eq!(places.get(key), Some(place), "{key}");
        }
        assert_eq!([2, 4, -1, i64::MAX - 1].map(|key| places.get(key)), [None; 4]);
    }
}
