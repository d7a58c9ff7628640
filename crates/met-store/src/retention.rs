//! Retention by age and by size. When the store is too large, users above their fair share lose their own oldest samples
//! and jobs; users below it lose nothing.

use std::collections::{BTreeMap, HashMap};

use met_core::event;
use met_core::job::JobKey;

use crate::check::sum_older;
use crate::day;
use crate::error::StoreError;
use crate::factors;
use crate::filter::live_states;
use crate::reading::{self, label};
use crate::series::Usage;
use crate::sql::{self, Mismatch, Row, Sql, Value};
use crate::store::Writer;

/// Jobs deleted in one transaction: other statements get their turn in between.
const REMOVE_CHUNK: usize = 500;
/// Rows of earlier versions that get a checksum in one run.
const SUM_CHUNK: usize = 5_000;
/// Remembered when no row is without a checksum.
const SUMMED: &str = "summed";
/// How often the sizes are measured again: what is estimated is not what a file gives back.
const ROUNDS_MAX: usize = 8;
/// The owner of a job: the user's name, or the uid if there is none. Series of devices and nodes have no owner.
const OWNER: &str = "coalesce(\"user\", CAST(uid AS TEXT), '')";

/// How long and how much to keep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retention {
    pub max_age_ns: Option<i64>,
    pub max_bytes: Option<u64>,
}

/// What [`Writer::retain`] removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    pub jobs_removed: u64,
    pub days_removed: u64,
    /// The same per user; the empty name means series of devices and nodes.
    pub of_users: BTreeMap<String, Removed>,
    /// Samples that were removed by whole days, without a look at whose they were.
    pub days: Option<RemovedDays>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedDays {
    first: i64,
    last: i64,
    count: u64,
    bytes: u64,
}

/// What was removed of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub jobs: u64,
    /// The first and the last of these, by their ids.
    pub first: String,
    pub last: String,
    /// Series of jobs, each of one day.
    pub series: u64,
    pub bytes: u64,
}

impl Retained {
    /// One line for each user, and one for the days of samples that were removed as a whole, for a log.
    pub fn lines(&self) -> Vec<String> {
        let line = |(user, removed): (&String, &Removed)| {
            let Removed { jobs, first, last, series, bytes } = removed;
            let whose = if user.is_empty() { "no user".to_owned() } else { format!("user {user}") };
            let which = match jobs {
                0 => String::new(),
                1 => format!(" ({first})"),
                _ => format!(" ({first} to {last})"),
            };
            format!(
                "retention: {whose}: removed {jobs} jobs{which} and {series} daily series, about {bytes} bytes"
            )
        };
        let days = self.days.map(|RemovedDays { first, last, count, bytes }| {
            let which = match count {
                1 => format!("1 day ({})", day::name(first)),
                _ => format!("{count} days ({} to {})", day::name(first), day::name(last)),
            };
            format!("retention: removed all samples of {which}, about {bytes} bytes")
        });
        self.of_users.iter().map(line).chain(days).collect()
    }

    fn note_day(&mut self, day: i64, bytes: u64) {
        self.days_removed += 1;
        let days = self.days.get_or_insert(RemovedDays { first: day, last: day, count: 0, bytes: 0 });
        (days.first, days.last) = (days.first.min(day), days.last.max(day));
        (days.count, days.bytes) = (days.count + 1, days.bytes.saturating_add(bytes));
    }

    fn of(&mut self, user: &str) -> &mut Removed {
        self.of_users.entry(user.to_owned()).or_default()
    }

    fn note(&mut self, gone: &[Gone]) {
        for Gone { key, owner, bytes } in gone {
            self.jobs_removed += 1;
            let removed = self.of(owner);
            let name = label(&key.manager, &key.id);
            if removed.jobs == 0 {
                removed.first.clone_from(&name);
            }
            (removed.jobs, removed.last, removed.bytes) = (removed.jobs + 1, name, removed.bytes + bytes);
        }
    }
}

/// Called with the jobs that are about to be removed.
pub type Goes<'g> = &'g mut dyn FnMut(&[JobKey]) -> Result<(), StoreError>;

/// A job that was removed.
struct Gone {
    key: JobKey,
    owner: String,
    bytes: u64,
}

/// The largest share so that all users together stay within `total`; what small users do not need goes to the others.
fn fair_share(mut needs: Vec<u64>, total: u64) -> u64 {
    needs.sort_unstable();
    let mut left = total;
    for (number, &need) in needs.iter().enumerate() {
        let share = left / (needs.len() - number) as u64;
        if need > share {
            return share;
        }
        left -= need;
    }
    u64::MAX
}

impl Writer {
    /// Removes what is too old, then what users have above their fair share. Running jobs stay.
    pub fn retain(&mut self, retention: &Retention, now_ns: i64) -> Result<Retained, StoreError> {
        self.retain_with(retention, now_ns, &mut |_| Ok(()))
    }

    /// As [`Writer::retain`], with a callback before each removal; if it fails, those jobs stay.
    pub fn retain_with(
        &mut self,
        retention: &Retention,
        now_ns: i64,
        goes: Goes<'_>,
    ) -> Result<Retained, StoreError> {
        self.sum_older()?;
        let mut retained = Retained::default();
        if let Some(max_age_ns) = retention.max_age_ns {
            let oldest_ns = now_ns.saturating_sub(max_age_ns);
            loop {
                let gone = self.remove_oldest(oldest_ns, None, REMOVE_CHUNK, goes)?;
                if gone.is_empty() {
                    break;
                }
                retained.note(&gone);
            }
            self.in_catalogue(|sql| factors::forget(sql, oldest_ns))?;
            let oldest_day = day::of_ns(oldest_ns);
            for (day, bytes) in self.queries.series.days()? {
                if day < oldest_day {
                    self.queries.series.remove_day(day)?;
                    retained.note_day(day, bytes);
                }
            }
        }
        if let Some(max_bytes) = retention.max_bytes {
            self.shrink(max_bytes, now_ns, goes, &mut retained)?;
        }
        if retained.jobs_removed > 0
            && let Some(sql) = self.queries.catalogue.get()
        {
            sql.give_back()?;
        }
        Ok(retained)
    }

    /// Keeps at most so many ended jobs; users above their fair share lose their oldest.
    pub fn retain_count(&mut self, jobs_max: u64) -> Result<Retained, StoreError> {
        let mut retained = Retained::default();
        let statement =
            format!("SELECT {OWNER}, count(*) FROM job WHERE state NOT IN ({}) GROUP BY 1", live_states());
        let counts = self.queries.ask(1, |sql| {
            sql::all(sql, &statement, &[], |row| {
                Ok((row.get(0).text()?.to_owned(), row.get(1).integer()?.max(0) as u64))
            })
        })?;
        if counts.iter().map(|(_, count)| count).sum::<u64>() <= jobs_max {
            return Ok(retained);
        }
        let share = fair_share(counts.iter().map(|(_, count)| *count).collect(), jobs_max);
        let kept = counts.iter().map(|(_, count)| (*count).min(share)).sum();
        let mut rest = jobs_max.saturating_sub(kept);
        for (owner, count) in counts.into_iter().filter(|(_, count)| *count > share) {
            // What does not divide evenly goes to the first of them.
            let one_more = rest.min(1);
            rest -= one_more;
            let mut surplus = (count - share - one_more) as usize;
            while surplus > 0 {
                let some = surplus.min(REMOVE_CHUNK);
                let gone = self.remove_oldest(i64::MAX, Some(&owner), some, &mut |_| Ok(()))?;
                for gone in &gone {
                    self.queries.series.remove(&gone.key)?;
                }
                retained.note(&gone);
                surplus = if gone.is_empty() { 0 } else { surplus - gone.len() };
            }
        }
        Ok(retained)
    }

    /// Samples go before totals: they are larger, and a job without its series is still a job.
    fn shrink(
        &mut self,
        max_bytes: u64,
        now_ns: i64,
        goes: Goes<'_>,
        retained: &mut Retained,
    ) -> Result<(), StoreError> {
        for _ in 0..ROUNDS_MAX {
            // Who has how much is asked only where there is too much: that reads every job and every file.
            if self.total_bytes()? <= max_bytes {
                return Ok(());
            }
            let sizes = self.sizes()?;
            let today = day::of_ns(now_ns);
            if sizes.total() > max_bytes {
                for &(day, bytes) in sizes.unreadable.iter().filter(|(day, _)| *day < today) {
                    self.queries.series.remove_day(day)?;
                    retained.note_day(day, bytes);
                }
            }
            if sizes.total() <= max_bytes {
                return Ok(());
            }
            let before = (retained.jobs_removed, retained.days_removed, series_removed(retained));
            // A little more than needed, so that it is not needed again at once.
            let aim = max_bytes - max_bytes / 20;
            let share = fair_share(sizes.needs(), aim);
            let mut surplus = sizes.surplus(share);
            self.remove_samples(&sizes.series, &mut surplus, today, retained)?;
            for (owner, bytes) in surplus {
                self.remove_jobs(&owner, bytes, goes, retained)?;
            }
            if let Some(sql) = self.queries.catalogue.get() {
                sql.give_back()?;
            }
            if before == (retained.jobs_removed, retained.days_removed, series_removed(retained)) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Removes the oldest samples of users with a surplus, but none of today.
    fn remove_samples(
        &mut self,
        series: &[OwnedSeries],
        surplus: &mut BTreeMap<String, u64>,
        today: i64,
        retained: &mut Retained,
    ) -> Result<(), StoreError> {
        for of_day in series.chunk_by(|one, next| one.day == next.day).take_while(|some| some[0].day < today)
        {
            let mut gone = Vec::new();
            for piece in of_day {
                let Some(surplus) = surplus.get_mut(&piece.owner).filter(|surplus| **surplus > 0) else {
                    continue;
                };
                *surplus = surplus.saturating_sub(piece.bytes);
                let removed = retained.of(&piece.owner);
                (removed.series, removed.bytes) = (removed.series + 1, removed.bytes + piece.bytes);
                gone.push(piece.key.clone());
            }
            if gone.len() == of_day.len() {
                self.queries.series.remove_day(of_day[0].day)?;
                retained.days_removed += 1;
            } else if !gone.is_empty() {
                self.queries.series.remove_of_day(of_day[0].day, &gone)?;
            }
        }
        surplus.retain(|_, bytes| *bytes > 0);
        Ok(())
    }

    fn remove_jobs(
        &mut self,
        owner: &str,
        mut surplus: u64,
        goes: Goes<'_>,
        retained: &mut Retained,
    ) -> Result<(), StoreError> {
        // Few at a time: they may be large.
        let mut most = REMOVE_CHUNK / 10;
        while surplus > 0 && self.catalogue_bytes()?.is_some() {
            let gone = self.remove_oldest(i64::MAX, Some(owner), most, goes)?;
            if gone.is_empty() {
                break;
            }
            let bytes: u64 = gone.iter().map(|gone| gone.bytes).sum();
            surplus = surplus.saturating_sub(bytes);
            let each = (bytes / gone.len() as u64).max(1);
            most = most.min(usize::try_from(surplus / each + 1).unwrap_or(most));
            retained.note(&gone);
        }
        Ok(())
    }

    /// Removes some of the jobs that ended before `before_ns`, of this owner or of all, oldest first.
    fn remove_oldest(
        &mut self,
        before_ns: i64,
        owner: Option<&str>,
        most: usize,
        goes: Goes<'_>,
    ) -> Result<Vec<Gone>, StoreError> {
        let of_owner = owner.map_or(String::new(), |_| format!("AND {OWNER} = ?2"));
        let statement = format!(
            "DELETE FROM job WHERE key IN (SELECT key FROM job WHERE sort_ns < ?1 AND state NOT IN ({})
             AND coalesce(end_ns, sort_ns) < ?1 {of_owner} ORDER BY sort_ns, id_number LIMIT {most})
             RETURNING cluster, manager, id, incarnation, {OWNER}, {ROW_BYTES}, sort_ns",
            live_states()
        );
        let values: Vec<Value<'_>> =
            std::iter::once(before_ns.into()).chain(owner.map(Value::Text)).collect();
        self.in_catalogue(|sql| {
            let mut gone = sql::all(sql, &statement, &values, |row| Ok((row.get(6).integer()?, gone(row)?)))?;
            gone.sort_by_key(|(sort_ns, _)| *sort_ns);
            let gone: Vec<Gone> = gone.into_iter().map(|(_, gone)| gone).collect();
            let keys: Vec<JobKey> = gone.iter().map(|gone| gone.key.clone()).collect();
            goes(&keys)?;
            Ok(gone)
        })
    }

    fn catalogue_bytes(&self) -> Result<Option<u64>, StoreError> {
        self.queries.catalogue.get().map_or(Ok(None), |sql| sql.bytes())
    }

    /// What the files have, which is known without a look into them.
    fn total_bytes(&self) -> Result<u64, StoreError> {
        let series: u64 = self.queries.series.days()?.iter().map(|(_, bytes)| bytes).sum();
        Ok(self.catalogue_bytes()?.unwrap_or(0).saturating_add(series))
    }

    /// What each user needs.
    fn sizes(&self) -> Result<Sizes, StoreError> {
        let mut sizes = Sizes::default();
        let Some(sql) = self.queries.catalogue.get() else { return Ok(sizes) };
        if let Some(bytes) = sql.bytes()? {
            sizes.catalogue_bytes = bytes;
            let statement = format!("SELECT {OWNER}, sum({ROW_BYTES}) FROM job GROUP BY 1");
            let rows = sql::all(&**sql, &statement, &[], |row| {
                Ok((row.get(0).text()?.to_owned(), row.get(1).integer()?.max(0) as u64))
            })?;
            let counted = rows.iter().map(|(_, bytes)| bytes).sum();
            sizes.catalogue =
                rows.into_iter().map(|(owner, part)| (owner, scaled(part, bytes, counted))).collect();
        }
        for (day, bytes) in self.queries.series.days()? {
            sizes.series_bytes += bytes;
            let usage = self.queries.series.usage(day)?;
            let counted = usage.iter().map(|usage| usage.bytes).sum();
            if usage.is_empty() {
                sizes.unreadable.push((day, bytes));
            }
            for Usage { key, bytes: part } in usage {
                let owner = owner_of(&**sql, &key, &mut sizes.owners)?;
                sizes.series.push(OwnedSeries { day, owner, bytes: scaled(part, bytes, counted), key });
            }
        }
        Ok(sizes)
    }

    /// Gives jobs that an earlier version wrote their checksums, some at a time.
    fn sum_older(&mut self) -> Result<(), StoreError> {
        if self.queries.meta(SUMMED)?.is_some() || !self.in_catalogue(|sql| sum_older(sql, SUM_CHUNK))? {
            return Ok(());
        }
        self.set_meta(SUMMED, "yes")
    }
}

/// What a job takes: its record, its figures, its narrow row, its packed one, and its entries in the indexes.
const ROW_BYTES: &str = "CAST(length(detail) AS BIGINT) + 1800";

#[derive(Default)]
struct Sizes {
    catalogue_bytes: u64,
    catalogue: Vec<(String, u64)>,
    series_bytes: u64,
    /// By day, oldest first.
    series: Vec<OwnedSeries>,
    owners: HashMap<JobKey, String>,
    /// Days that hold nothing, or nothing that can be read, and their sizes.
    unreadable: Vec<(i64, u64)>,
}

/// What the samples of something take in the file of one day.
struct OwnedSeries {
    day: i64,
    key: JobKey,
    owner: String,
    bytes: u64,
}

impl Sizes {
    fn total(&self) -> u64 {
        self.catalogue_bytes + self.series_bytes
    }

    fn by_owner(&self) -> BTreeMap<String, u64> {
        let mut by_owner: BTreeMap<String, u64> = BTreeMap::new();
        let series = self.series.iter().map(|piece| (&piece.owner, piece.bytes));
        for (owner, bytes) in self.catalogue.iter().map(|(owner, bytes)| (owner, *bytes)).chain(series) {
            *by_owner.entry(owner.clone()).or_default() += bytes;
        }
        by_owner
    }

    fn needs(&self) -> Vec<u64> {
        self.by_owner().into_values().collect()
    }

    /// What each has beyond the share.
    fn surplus(&self, share: u64) -> BTreeMap<String, u64> {
        let beyond = self.by_owner().into_iter().map(|(owner, bytes)| (owner, bytes.saturating_sub(share)));
        beyond.filter(|(_, surplus)| *surplus > 0).collect()
    }
}

fn scaled(part: u64, whole: u64, counted: u64) -> u64 {
    (u128::from(part) * u128::from(whole) / u128::from(counted.max(1))) as u64
}

fn series_removed(retained: &Retained) -> u64 {
    retained.of_users.values().map(|removed| removed.series).sum()
}

fn gone(row: &dyn Row) -> Result<Gone, Mismatch> {
    let (owner, bytes) = (row.get(4).text()?.to_owned(), row.get(5).integer()?.max(0) as u64);
    Ok(Gone { key: reading::key_at(row, 0)?, owner, bytes })
}

/// The owner of a series. On a server the series of a node's part have the node's name in their key.
fn owner_of(sql: &dyn Sql, key: &JobKey, known: &mut HashMap<JobKey, String>) -> Result<String, StoreError> {
    // The series of an event are those of its job's owner.
    let (job, _) = event::of_series_key(key);
    let key = job.as_ref();
    if let Some(owner) = known.get(key) {
        return Ok(owner.clone());
    }
    let statement = format!(
        "SELECT {OWNER} FROM job WHERE id = ?1 AND manager = ?2 ORDER BY abs(incarnation - ?3) LIMIT 1"
    );
    let values = [Value::Text(&key.id), Value::Text(&key.manager), key.incarnation.into()];
    let owner = sql::first(sql, &statement, &values, |row| Ok(row.get(0).text()?.to_owned()))?;
    let owner = owner.unwrap_or_default();
    known.insert(key.clone(), owner.clone());
    Ok(owner)
}

#[cfg(test)]
mod tests {
    use super::fair_share;

    #[test]
    fn what_small_users_do_not_need_goes_to_the_others() {
        assert_eq!(fair_share(vec![10, 20, 1000], 100), 70);
        assert_eq!(fair_share(vec![50, 50], 100), u64::MAX);
        assert_eq!(fair_share(vec![60, 60], 100), 50);
        assert_eq!(fair_share(vec![5, 60, 60], 100), 47);
        assert_eq!(fair_share(vec![], 100), u64::MAX);
        assert_eq!(fair_share(vec![7], 0), 0);
    }
}
