//! Job ids that a system daemon reserved and whose start is not known yet.
//!
//! They are only in memory: an unused id leaves nothing behind. They are bounded per user, expire, and are given
//! again. All users share one counter; a user whose own ids are ahead of it gets the next of those, without moving
//! the counter.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use met_core::job::{JobKey, LOCAL, Record};
use met_host::clock;
use met_store::inbox::{self, SHARED_IDS_END};
use met_store::{Queries, Writer};

use super::recorder::Recorder;
use super::registry::Registry;

/// How far a user's own ids may be ahead of the shared counter.
const ID_LEAP_MAX: u64 = 1_000_000;
/// More jobs than one user starts at once.
const PER_USER_MAX: usize = 4096;
const TOTAL_MAX: usize = 65_536;
/// Only a fork happens between a reservation and the start that uses it.
const EXPIRES_AFTER: Duration = Duration::from_secs(15 * 60);
/// A job of `met time` is announced at its end alone.
const TIMED_EXPIRES_AFTER: Duration = Duration::from_secs(7 * 86_400);
/// Expired ids that are remembered; more are skipped.
const FREE_MAX: usize = 65_536;
/// Ids checked in one query of the store.
const CHUNK: u64 = 1024;
/// An id from further ahead is searched in this many chunks, then behind all others.
const CHUNKS_AHEAD_MAX: u64 = 16;
/// Written so far ahead that not every reservation is a write. A restart skips no more than these.
const BLOCK: u64 = 64;
/// In the store: where the next daemon goes on.
const META: &str = "next_local_id";

#[derive(Default)]
pub struct Reservations {
    /// The next shared id; 0 before the store was read.
    next: u64,
    /// Up to here the store knows.
    written: u64,
    by_id: BTreeMap<u64, Reserved>,
    /// Expired, to be given again.
    free: BTreeSet<u64>,
    /// When this daemon began, by the wall clock.
    began_ns: i64,
    /// The store could not be written to at the last attempt.
    is_unwritable: bool,
}

struct Reserved {
    uid: u32,
    at: Instant,
    /// In unix time.
    at_ns: i64,
    expires_after: Duration,
}

/// Which ids are in use.
trait Known {
    fn taken(&self, ids: Range<u64>) -> Result<BTreeSet<u64>>;
    fn highest(&self) -> Result<u64>;
}

impl Reservations {
    pub fn begin(began_ns: i64) -> Reservations {
        Reservations { began_ns, ..Reservations::default() }
    }

    /// Whose a reserved id is.
    pub fn owner(&self, id: u64) -> Option<u32> {
        self.by_id.get(&id).map(|reserved| reserved.uid)
    }

    /// When it was reserved, in unix time.
    pub fn reserved_ns(&self, id: u64) -> Option<i64> {
        self.by_id.get(&id).map(|reserved| reserved.at_ns)
    }

    /// A job with this id is known from now on.
    pub fn used(&mut self, id: u64) {
        self.by_id.remove(&id);
    }

    fn expire(&mut self, now: Instant) {
        let is_old = |reserved: &Reserved| now.duration_since(reserved.at) >= reserved.expires_after;
        let old: Vec<u64> = self.by_id.iter().filter(|(_, one)| is_old(one)).map(|(&id, _)| id).collect();
        for id in old {
            self.by_id.remove(&id);
            if id < self.next {
                self.free.insert(id);
            }
        }
        // A reservation without a start moves the ids of others only until it expires.
        while self.free.last().is_some_and(|&id| id + 1 == self.next) {
            self.free.pop_last();
            self.next -= 1;
        }
        while self.free.len() > FREE_MAX {
            self.free.pop_first();
        }
    }

    fn take_for(
        &mut self,
        at_least: u64,
        uid: u32,
        expires_after: Duration,
        now: Instant,
        known: &dyn Known,
    ) -> Result<u64> {
        if at_least >= SHARED_IDS_END {
            bail!("{at_least} is beyond the job ids that users share");
        }
        // A user's own ids are near the shared ones, unless the user tries to exhaust them.
        if at_least > self.next + ID_LEAP_MAX {
            bail!("job ids are at {}; {at_least} is too far ahead", self.next);
        }
        self.expire(now);
        let of_user = self.by_id.values().filter(|reserved| reserved.uid == uid).count();
        if of_user >= PER_USER_MAX || self.by_id.len() >= TOTAL_MAX {
            bail!("{of_user} job ids are reserved for this user and not used yet; try again later");
        }
        let id = match self.freed(at_least, known)? {
            Some(id) => id,
            None => {
                let is_ahead = at_least > self.next;
                let id = self.fresh(at_least.max(self.next), is_ahead, known)?;
                // An id requested from further ahead does not move the counter.
                if !is_ahead {
                    self.next = id + 1;
                }
                id
            }
        };
        self.by_id.insert(id, Reserved { uid, at: now, at_ns: clock::realtime_ns(), expires_after });
        Ok(id)
    }

    fn freed(&mut self, at_least: u64, known: &dyn Known) -> Result<Option<u64>> {
        while let Some(&id) = self.free.range(at_least..).next() {
            self.free.remove(&id);
            // A client whose reservation expired may have used it all the same.
            if !self.by_id.contains_key(&id) && known.taken(id..id + 1)?.is_empty() {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// The first id from here that is free: others' ids further ahead do not count.
    fn fresh(&self, from: u64, is_ahead: bool, known: &dyn Known) -> Result<u64> {
        for (number, start) in (from..SHARED_IDS_END).step_by(CHUNK as usize).enumerate() {
            // What an ordinary request has stepped over the next one does not look at; this is done each time.
            if is_ahead && number as u64 >= CHUNKS_AHEAD_MAX {
                break;
            }
            let chunk = start..(start + CHUNK).min(SHARED_IDS_END);
            let taken = known.taken(chunk.clone())?;
            let is_free = |id: &u64| !self.by_id.contains_key(id) && !taken.contains(id);
            if let Some(id) = chunk.into_iter().find(is_free) {
                return Ok(id);
            }
        }
        let reserved = self.by_id.last_key_value().map_or(0, |(&id, _)| id);
        let behind = known.highest()?.max(reserved).max(from) + 1;
        if !is_ahead || behind >= SHARED_IDS_END {
            bail!("no job id is left");
        }
        Ok(behind)
    }
}

/// The store, and what is not in it: jobs that run or ended while it could not be written to, and folders.
struct InUse<'a> {
    store: &'a Queries,
    beside: BTreeSet<u64>,
}

impl InUse<'_> {
    fn of<'a>(recorder: &'a Recorder, registry: &Registry, state: &Path) -> InUse<'a> {
        let number = |key: &JobKey| key.id.parse().ok().filter(|_| key.manager == LOCAL);
        let unwritten = recorder.unwritten.records.iter().filter_map(|record| number(&record.key));
        let folders = inbox::pending(state).unwrap_or_default();
        let folders = folders.iter().map(|folder| folder.id());
        let beside = registry.jobs.keys().filter_map(number).chain(unwritten).chain(folders);
        InUse { store: &recorder.writer, beside: beside.filter(|&id| id < SHARED_IDS_END).collect() }
    }
}

impl Known for InUse<'_> {
    fn taken(&self, ids: Range<u64>) -> Result<BTreeSet<u64>> {
        let mut taken = self.store.local_ids(ids.clone())?;
        taken.extend(self.beside.range(ids));
        Ok(taken)
    }

    fn highest(&self) -> Result<u64> {
        let stored = self.store.next_local_id()?.saturating_sub(1);
        Ok(stored.max(self.beside.last().copied().unwrap_or(0)))
    }
}

impl Reservations {
    /// An id for a user's next job. While the store cannot be written to, one that makes the client take an id of
    /// the user's own range: a daemon that is restarted would give a shared one again.
    pub(super) fn reserve(
        &mut self,
        at_least: u64,
        is_timed: bool,
        uid: u32,
        recorder: &mut Recorder,
        registry: &Registry,
        state: &Path,
    ) -> Result<u64> {
        if self.next == 0 {
            self.next = first_id(&recorder.writer, state)?;
        }
        let expires_after = if is_timed { TIMED_EXPIRES_AFTER } else { EXPIRES_AFTER };
        let known = InUse::of(recorder, registry, state);
        let id = self.take_for(at_least, uid, expires_after, Instant::now(), &known)?;
        if self.keep_place(id, &mut recorder.writer) {
            return Ok(id);
        }
        self.by_id.remove(&id);
        if id < self.next {
            self.free.insert(id);
        }
        Ok(inbox::own_ids(uid).start)
    }

    /// Writes where the next daemon goes on, if that is due; whether the id may be given.
    fn keep_place(&mut self, id: u64, writer: &mut Writer) -> bool {
        let written = match self.next > self.written {
            true => (self.next + BLOCK).min(SHARED_IDS_END),
            // An id from further ahead is in no block: only the record of its job makes it known.
            false if id >= self.next => self.written,
            false => return true,
        };
        match writer.set_meta(META, &written.to_string()) {
            Ok(()) => (self.written, self.is_unwritable) = (written, false),
            Err(error) => {
                if !std::mem::replace(&mut self.is_unwritable, true) {
                    tracing::warn!(
                        "{error}; until it can be written to, jobs get ids of their users' own ranges"
                    );
                }
                return false;
            }
        }
        true
    }

    /// Whether an earlier daemon may have given this id for a job that began before this daemon did: reservations
    /// are not on disk, and a job that began then must not be lost. No one else has the id.
    pub fn may_be_of_earlier(&self, id: u64, record: &Record, writer: &Writer, state: &Path) -> bool {
        let next = if self.next > 0 { self.next } else { first_id(writer, state).unwrap_or(1) };
        let end = next.saturating_add(ID_LEAP_MAX).min(SHARED_IDS_END);
        let began_before = record.start_ns.is_some_and(|start_ns| start_ns < self.began_ns);
        began_before && (1..end).contains(&id) && self.owner(id).is_none()
    }
}

fn first_id(writer: &Writer, state: &Path) -> Result<u64> {
    if let Some(next) = writer.meta(META)?.and_then(|next| next.parse().ok()) {
        return Ok(next);
    }
    // Earlier versions kept a folder for each.
    let folders = inbox::pending(state).unwrap_or_default();
    Ok(writer.next_local_id()?.max(folders.last().map_or(0, |folder| folder.id() + 1)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    impl Known for HashSet<u64> {
        fn taken(&self, ids: Range<u64>) -> Result<BTreeSet<u64>> {
            Ok(self.iter().copied().filter(|id| ids.contains(id)).collect())
        }

        fn highest(&self) -> Result<u64> {
            Ok(self.iter().copied().max().unwrap_or(0))
        }
    }

    impl Reservations {
        fn take(&mut self, at_least: u64, uid: u32, now: Instant, known: &dyn Known) -> Result<u64> {
            self.take_for(at_least, uid, EXPIRES_AFTER, now, known)
        }
    }

    fn from(next: u64) -> Reservations {
        Reservations { next, ..Reservations::default() }
    }

    #[test]
    fn a_number_for_met_time_is_kept_as_long_as_its_job_may_run() {
        let (mut all, none, begin) = (from(1), HashSet::new(), Instant::now());
        let timed = all.take_for(1, 7, TIMED_EXPIRES_AFTER, begin, &none).unwrap();
        let announced = all.take(1, 7, begin, &none).unwrap();
        all.expire(begin + EXPIRES_AFTER);
        assert_eq!((all.owner(timed), all.owner(announced)), (Some(7), None));
        assert!(all.reserved_ns(timed).is_some_and(|at_ns| at_ns > 0));
        all.expire(begin + TIMED_EXPIRES_AFTER);
        assert_eq!(all.owner(timed), None);
    }

    #[test]
    fn endless_reservations_are_bounded_and_move_no_ids() {
        let (mut all, none, begin) = (from(1), HashSet::new(), Instant::now());
        let ask = |all: &mut Reservations, uid, now| all.take(1, uid, now, &none).ok();
        for _ in 0..PER_USER_MAX {
            assert!(ask(&mut all, 7, begin).is_some());
        }
        assert_eq!(ask(&mut all, 7, begin), None);
        let next = PER_USER_MAX as u64 + 1;
        assert_eq!(ask(&mut all, 8, begin), Some(next), "others are not held up");
        let later = begin + EXPIRES_AFTER;
        for _ in 0..3 * PER_USER_MAX {
            let Some(id) = ask(&mut all, 7, later) else { break };
            assert!(id <= next, "{id} was never given before");
        }
        assert!(all.next <= next + 1, "{}", all.next);
    }

    #[test]
    fn an_id_from_further_ahead_does_not_move_the_counter() {
        let (mut all, mut taken, now) = (from(5), HashSet::new(), Instant::now());
        assert_eq!(all.take(900_000, 7, now, &taken).unwrap(), 900_000);
        taken.insert(900_000);
        all.used(900_000);
        assert_eq!(all.take(1, 8, now, &taken).unwrap(), 5);
        assert_eq!(all.take(6, 8, now, &taken).unwrap(), 6);
        assert_eq!(all.take(7, 8, now, &taken).unwrap(), 7, "8 asks for what is next");
        assert_eq!(all.take(900_000, 7, now, &taken).unwrap(), 900_001);
        assert!(all.take(5_000_000, 7, now, &taken).is_err());
        assert!(all.take(u64::MAX, 7, now, &taken).is_err());
        assert_eq!((all.owner(5), all.owner(6), all.owner(900_000)), (Some(8), Some(8), None));
    }

    #[test]
    fn ids_that_are_taken_are_stepped_over() {
        let taken: HashSet<u64> = (3..500).collect();
        let mut all = from(3);
        assert_eq!(all.take(1, 7, Instant::now(), &taken).unwrap(), 500, "without asking for each of them");
        assert_eq!(all.take(1, 7, Instant::now(), &HashSet::from([501])).unwrap(), 502);
    }

    #[test]
    fn an_id_that_was_used_late_is_not_given_again() {
        let (mut all, begin) = (from(1), Instant::now());
        assert_eq!(all.take(1, 7, begin, &HashSet::new()).unwrap(), 1);
        assert_eq!(all.take(1, 7, begin + EXPIRES_AFTER, &HashSet::from([1])).unwrap(), 2);
    }

    #[test]
    fn reservations_further_ahead_do_not_make_ids_leap() {
        let (mut all, mut taken, now) = (from(1), HashSet::new(), Instant::now());
        for number in 0..64 {
            assert_eq!(all.take(2, 7, now, &taken).unwrap(), 2 + number);
        }
        assert_eq!(all.take(1 + ID_LEAP_MAX, 7, now, &taken).unwrap(), 1 + ID_LEAP_MAX);
        for id in [1, 66, 67] {
            assert_eq!(all.take(1, 8, now, &taken).unwrap(), id);
        }
        // The same with jobs, and with more of them than one chunk.
        taken.extend((68..68 + 3 * CHUNK).chain([900_000]));
        assert_eq!(all.take(1, 8, now, &taken).unwrap(), 68 + 3 * CHUNK);
        // Of a user ahead a long run is not walked through.
        taken.extend(500_000..500_000 + (CHUNKS_AHEAD_MAX + 1) * CHUNK);
        assert_eq!(all.take(500_000, 7, now, &taken).unwrap(), ID_LEAP_MAX + 2);
        assert_eq!(all.take(1, 8, now, &taken).unwrap(), 69 + 3 * CHUNK);
    }

    #[test]
    fn ids_of_users_own_ranges_are_never_given() {
        let (mut all, none, now) = (from(SHARED_IDS_END - 2), HashSet::new(), Instant::now());
        assert!(all.take(SHARED_IDS_END, 7, now, &none).is_err());
        assert_eq!(all.take(SHARED_IDS_END - 1, 7, now, &none).unwrap(), SHARED_IDS_END - 1);
        assert!(all.take(SHARED_IDS_END - 1, 7, now, &none).is_err());
        assert_eq!(all.take(1, 7, now, &none).unwrap(), SHARED_IDS_END - 2);
        for _ in 0..3 {
            assert!(all.take(1, 7, now, &none).is_err());
        }
        assert_eq!(all.take(1, 7, now + EXPIRES_AFTER, &none).unwrap(), SHARED_IDS_END - 2, "given again");
    }

    #[test]
    fn expired_ids_are_bounded() {
        let (mut all, none, begin) = (from(1), HashSet::new(), Instant::now());
        all.free = (1..2 * FREE_MAX as u64).collect();
        all.next = 4 * FREE_MAX as u64;
        all.take(1, 7, begin, &none).unwrap();
        assert!(all.free.len() <= FREE_MAX);
        // Those at the end are given again without being remembered.
        let next = all.next;
        for _ in 0..100 {
            all.take(all.next, 7, begin, &none).unwrap();
        }
        all.expire(begin + EXPIRES_AFTER);
        assert_eq!(all.next, next);
    }
}
