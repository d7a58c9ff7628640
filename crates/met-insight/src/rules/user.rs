//! The sum of a user's jobs in one week: many small ones can be a lot together.

use std::collections::{BTreeMap, BTreeSet};

use met_core::job::{Record, State};
use met_core::job_table as column;
use met_core::managers;
use met_core::queue::Queue;

use super::fields;
use super::idle::Idle;
use crate::allocation;
use crate::answers::Job;
use crate::average;
use crate::report::Machine;

/// Jobs shorter than this cost more to start and record than to run.
const TINY_NS: i64 = 60_000_000_000;
/// As for the findings of one job.
const COVERAGE: f64 = 0.95;
/// A job that needs this share of its memory holds its cores for their memory.
const MEMORY_FULL: f64 = 0.7;
/// A job that waited longer for storage is not blamed for idle cores, as by the rules about one job.
const STORAGE_WAIT: f64 = 0.2;
/// A job that moves more may have waited for it.
const STORAGE_BYTES_PER_SECOND: f64 = 1_048_576.0;
/// Sums are of weeks: a little each week is not a lot.
pub const WEEK_NS: i64 = 7 * 86_400_000_000_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserSum {
    pub user: String,
    pub jobs: usize,
    pub tiny_jobs: usize,
    /// Held: CPUs given for the time of the job; without an allocation, what it used.
    pub core_seconds: f64,
    /// Of jobs that were measured to their end, on all nodes, and held cores for computing: neither beside a GPU nor
    /// for their memory, not on nodes of their own, and without waiting for storage as far as that is known. Held and
    /// used.
    pub core_seconds_known: f64,
    pub core_seconds_used: f64,
    pub gpu_seconds: f64,
    pub gpu_seconds_known: f64,
    pub gpu_seconds_used: f64,
    /// CPU time of all its jobs that were measured.
    pub cpu_seconds: f64,
    pub share_of_all: Option<f64>,
    /// The share of the core time of all users whose use was measured.
    pub all_known: f64,
    pub others_pressure: Option<f64>,
    pub others_queued: Option<usize>,
    /// The scheduler counted jobs and did not say why they wait.
    pub is_queue_estimated: bool,
    /// What was held and not needed, as far as energy was read.
    pub idle: Idle,
    /// On one node, of the jobs of which it is known: most cores and most memory.
    pub cores_most: f64,
    pub memory_most_bytes: Option<f64>,
    /// On which its jobs ran.
    pub nodes: BTreeSet<String>,
    /// From the first start to the last end.
    pub window_ns: (i64, i64),
}

/// Time in which jobs waited for a CPU, the time that is of, and held and used core time.
#[derive(Clone, Copy, Default)]
struct Load {
    waited_ns: f64,
    of_ns: f64,
    cpu_s: f64,
    held_s: f64,
    known_s: f64,
}

impl Load {
    fn add(&mut self, other: &Load) {
        self.waited_ns += other.waited_ns;
        self.of_ns += other.of_ns;
        self.cpu_s += other.cpu_s;
        self.held_s += other.held_s;
        self.known_s += other.known_s;
    }
}

#[derive(Default)]
struct Week<'a> {
    sum: UserSum,
    load: Load,
    places: BTreeSet<Place<'a>>,
    nodes: BTreeSet<&'a str>,
}

/// A manager and a partition of it.
type Place<'a> = (&'a str, Option<&'a str>);

/// A job that has not begun, of which is known why.
struct Pending<'a> {
    user: String,
    place: Place<'a>,
    /// It waits because others have what it needs.
    is_waiting: bool,
    since_ns: i64,
}

/// Whose job it is: by name, or else by number.
pub fn owner(record: &Record) -> Option<String> {
    record.user.clone().or_else(|| record.uid.map(|uid| uid.to_string()))
}

/// One sum per user and week, by name and time; a job counts in the week of its end. The order of the jobs does not
/// matter. `queues`: what schedulers counted, which is more than the jobs that are known here.
pub fn sums<'a>(jobs: impl IntoIterator<Item = &'a Record>, queues: &[Queue], now_ns: i64) -> Vec<UserSum> {
    // A sum of floats depends on its order.
    let jobs = by_key(jobs.into_iter().collect());
    let mut weeks: BTreeMap<(String, i64), Week<'_>> = BTreeMap::new();
    let mut queued = Vec::new();
    for record in jobs {
        // What ran inside another job is in its figures.
        let Some(user) = owner(record).filter(|_| record.inside.is_none()) else { continue };
        if record.state == State::Pending {
            queued.extend(pending(record, user));
            continue;
        }
        let Some(wall_ns) = average::wall_ns(record, now_ns) else { continue };
        let end_ns = record.end_ns.unwrap_or(now_ns);
        let week = weeks.entry((user.clone(), end_ns.div_euclid(WEEK_NS))).or_default();
        week.sum.user = user;
        week.places.insert(place(record));
        week.nodes.extend(record.nodes.iter().map(String::as_str));
        add(week, record, wall_ns, now_ns);
    }
    // Who sees the jobs of one user alone, as most do, knows nothing of others.
    let waiting = queued.iter().filter(|pending| pending.is_waiting).map(|pending| &pending.user);
    let users = weeks.keys().map(|(user, _)| user).chain(waiting);
    let knows_others = users.collect::<BTreeSet<_>>().len() > 1;
    let queues: Vec<&Queue> = queues.iter().filter(|queue| queue.is_valid(now_ns)).collect();
    let mut all: BTreeMap<i64, Load> = BTreeMap::new();
    for ((_, number), week) in &weeks {
        all.entry(*number).or_default().add(&week.load);
    }
    let finish = |((_, number), week): ((String, i64), Week<'_>)| {
        let Week { mut sum, load, places, nodes } = week;
        sum.nodes = nodes.into_iter().map(str::to_owned).collect();
        let all = all.get(&number).copied().unwrap_or_default();
        sum.share_of_all = (all.cpu_s > 0.0 && knows_others).then(|| load.cpu_s / all.cpu_s);
        sum.all_known = if all.held_s > 0.0 { all.known_s / all.held_s } else { 0.0 };
        let others_ns = all.of_ns - load.of_ns;
        sum.others_pressure = (others_ns > 0.0).then(|| (all.waited_ns - load.waited_ns) / others_ns);
        if knows_others {
            let (count, is_estimated) = others_queued(&sum, &places, &queued, &queues);
            (sum.others_queued, sum.is_queue_estimated) = (Some(count), is_estimated);
        }
        sum
    };
    weeks.into_iter().map(finish).collect()
}

/// By their keys. What most of them differ in is compared without a look at each record.
fn by_key(jobs: Vec<&Record>) -> impl Iterator<Item = &Record> {
    fn place(record: &Record) -> (Option<&str>, &str) {
        (record.key.cluster.as_deref(), &record.key.manager)
    }
    let places: BTreeSet<_> = jobs.iter().map(|record| place(record)).collect();
    let places: Vec<_> = places.into_iter().collect();
    let begin = |id: &str| {
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(id.bytes()).for_each(|(byte, of_id)| *byte = of_id);
        u128::from_be_bytes(bytes)
    };
    let short = |record: &Record| (places.binary_search(&place(record)), begin(&record.key.id));
    let mut jobs: Vec<_> = jobs.into_iter().map(|record| (short(record), record)).collect();
    jobs.sort_unstable_by(|(short, one), (other_short, other)| {
        short.cmp(other_short).then_with(|| one.key.cmp(&other.key))
    });
    jobs.into_iter().map(|(_, record)| record)
}

/// How many jobs of others wait for what the user's jobs have, and whether that is an estimate. Where jobs of others are
/// recorded as pending, these say why they wait, and no more of them wait than the scheduler counts; without any, its count
/// is all there is.
fn others_queued(
    sum: &UserSum,
    places: &BTreeSet<Place<'_>>,
    queued: &[Pending<'_>],
    queues: &[&Queue],
) -> (usize, bool) {
    let is_others = |pending: &&Pending<'_>| pending.user != sum.user && places.contains(&pending.place);
    let waits = |pending: &&Pending<'_>| pending.is_waiting && pending.since_ns < sum.window_ns.1;
    let (mut count, mut is_estimated, mut counted_by) = (0_usize, false, Vec::new());
    for queue in queues.iter().filter(|queue| queue.is_about(sum.window_ns.1)) {
        let names = places.iter().filter(|place| place.0 == queue.manager).filter_map(|place| place.1);
        let Some((all, of_others)) = queue.waiting(names, &sum.user) else { continue };
        counted_by.push(queue.manager.as_str());
        let here = || queued.iter().filter(is_others).filter(|pending| pending.place.0 == queue.manager);
        let counted = match here().next() {
            Some(_) => all.min(here().filter(waits).count() as u64),
            None => {
                is_estimated |= of_others > 0;
                of_others
            }
        };
        count = count.saturating_add(usize::try_from(counted).unwrap_or(usize::MAX));
    }
    let is_uncounted = |pending: &&Pending<'_>| !counted_by.contains(&pending.place.0);
    let others = queued.iter().filter(is_others).filter(waits).filter(is_uncounted).count();
    (count.saturating_add(others), is_estimated)
}

fn pending(record: &Record, user: String) -> Option<Pending<'_>> {
    let reason = record.scheduling.reason.as_deref()?;
    let is_waiting = managers::waits_for_others(&record.key.manager, reason);
    let since_ns = record.scheduling.eligible_ns.or(record.scheduling.submit_ns)?;
    Some(Pending { user, place: place(record), is_waiting, since_ns })
}

fn place(record: &Record) -> Place<'_> {
    (&record.key.manager, record.scheduling.partition.as_deref())
}

fn add(week: &mut Week<'_>, record: &Record, wall_ns: i64, now_ns: i64) {
    let (sum, load) = (&mut week.sum, &mut week.load);
    let wall_s = wall_ns as f64 / 1e9;
    sum.jobs += 1;
    sum.tiny_jobs += usize::from(wall_ns < TINY_NS && !record.state.is_live());
    let job = Job::new(record, Machine::default(), now_ns);
    let known = |name: &str| {
        let fact = fields::find(name)?.of_job(&job)?;
        fact.coverage.is_none_or(|coverage| coverage >= COVERAGE).then_some(fact.value)
    };
    let cpu_s = known("cores").map(|cores| cores * wall_s);
    let held = allocation::held_cpus(record, now_ns).map(|cpus| cpus * wall_s);
    let held_s = held.or(cpu_s).unwrap_or(0.0);
    sum.core_seconds += held_s;
    load.held_s += held_s;
    let gpus = known("gpus").unwrap_or(0.0);
    if let Some(cpu_s) = cpu_s {
        sum.cpu_seconds += cpu_s;
        load.cpu_s += cpu_s;
        load.known_s += held_s;
        if gpus == 0.0 && !fills_memory(record) && !needs_cores(record, now_ns) {
            sum.core_seconds_known += held_s;
            sum.core_seconds_used += cpu_s;
            sum.idle.add_cores(record, held_s);
        }
    }
    sum.gpu_seconds += gpus * wall_s;
    if let Some(ratio) = known("gpu_ratio") {
        sum.gpu_seconds_known += gpus * wall_s;
        sum.gpu_seconds_used += ratio * gpus * wall_s;
        sum.idle.add_gpus(record, gpus * wall_s);
    }
    sum.idle.add_prices(record);
    add_needs(sum, record);
    if let Some((waited, of_ns)) =
        record.totals.get(column::PRESSURE_CPU).zip(average::counted_ns(record, now_ns))
    {
        load.waited_ns += waited as f64;
        load.of_ns += of_ns as f64;
    }
    let (begin_ns, end_ns) = (record.start_ns.unwrap_or(now_ns), record.end_ns.unwrap_or(now_ns));
    sum.window_ns = match sum.window_ns {
        (0, 0) => (begin_ns, end_ns),
        (begin, end) => (begin.min(begin_ns), end.max(end_ns)),
    };
}

fn add_needs(sum: &mut UserSum, record: &Record) {
    let cores = average::cores_peak(record).or(record.allocated.cpus.map(|cpus| cpus as f64));
    sum.cores_most = sum.cores_most.max(cores.unwrap_or(0.0) / record.nodes.len().max(1) as f64);
    if let Some(bytes) = average::memory_needed_peak(record) {
        sum.memory_most_bytes = Some(sum.memory_most_bytes.map_or(bytes, |most| most.max(bytes)));
    }
}

/// Whether it could not have held fewer cores, or may not: its nodes were its own, or storage held it back. A wait that is
/// known in part is a bound, and above the limit it is proof. Where none is known, little data to and from storage is.
fn needs_cores(record: &Record, now_ns: i64) -> bool {
    if record.scheduling.exclusive == Some(true) {
        return true;
    }
    match average::waited(record, column::PRESSURE_IO, column::DELAY_IO, now_ns) {
        Some(share) => share > STORAGE_WAIT,
        None => {
            let moved = |index: usize| average::per_second(record, index, now_ns);
            let moved = moved(column::READ).zip(moved(column::WRITTEN));
            moved.is_none_or(|(read, written)| read + written > STORAGE_BYTES_PER_SECOND)
        }
    }
}

fn fills_memory(record: &Record) -> bool {
    let held = record.allocated.memory_bytes.or(record.requested.memory_bytes);
    let needed = record.totals.get(column::MEMORY_NEEDED_PEAK).or(record.scheduling.memory_peak_bytes);
    held.zip(needed).is_some_and(|(held, needed)| needed as f64 > MEMORY_FULL * held as f64)
}

#[cfg(test)]
mod tests {
    use met_core::job::JobKey;
    use proptest::prelude::*;

    use super::*;
    use crate::sample;

    proptest! {
        #[test]
        fn jobs_are_in_the_order_of_their_keys(
            keys in proptest::collection::vec(
                (proptest::option::of("[ab]{0,2}"), "[ab]{1,2}", "[a\0é]{0,3}(0000000000000000)?[01]{0,2}", 0i64..3), 0..40)
        ) {
            let jobs: Vec<Record> = keys.into_iter().map(|(cluster, manager, id, incarnation)| Record {
                key: JobKey { cluster, manager, id, incarnation }, ..sample::finished()
            }).collect();
            let mut expected: Vec<&JobKey> = jobs.iter().map(|job| &job.key).collect();
            expected.sort();
            let found: Vec<&JobKey> = by_key(jobs.iter().collect()).map(|job| &job.key).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
