//! The sum of a user's jobs: many small ones can be a lot together.

use std::collections::BTreeMap;

use met_core::job::{Record, State};
use met_core::job_table as column;

use crate::{average, gpu};

/// Jobs shorter than this cost more to start and record than to run.
const TINY_NS: i64 = 60_000_000_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserSum {
    pub user: String,
    pub jobs: usize,
    pub tiny_jobs: usize,
    /// Held: CPUs given for the time of the job; without an allocation, what it used.
    pub core_seconds: f64,
    /// Of those jobs whose CPU time is known to their end: held and used.
    pub core_seconds_known: f64,
    pub core_seconds_used: f64,
    pub gpu_seconds: f64,
    pub gpu_seconds_known: f64,
    pub gpu_seconds_used: f64,
    pub share_of_all: Option<f64>,
    pub others_pressure: Option<f64>,
    pub others_queued: usize,
    /// From the first start to the last end.
    pub window_ns: (i64, i64),
}

/// Time in which jobs of a user waited for a CPU, and the time that is of.
#[derive(Clone, Copy, Default)]
struct Pressure {
    waited_ns: f64,
    of_ns: f64,
}

/// One sum per user, by name. The order of the jobs does not matter.
pub fn sums<'a>(jobs: impl IntoIterator<Item = &'a Record>, now_ns: i64) -> Vec<UserSum> {
    let mut jobs: Vec<&Record> = jobs.into_iter().collect();
    // A sum of floats depends on its order.
    jobs.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    let mut by_user: BTreeMap<String, (UserSum, Pressure)> = BTreeMap::new();
    for record in jobs {
        let name = record.user.clone().or_else(|| record.uid.map(|uid| uid.to_string()));
        // What ran inside another job is in its figures.
        let Some(user) = name.filter(|_| record.inside.is_none()) else { continue };
        let (sum, pressure) = by_user.entry(user.clone()).or_default();
        sum.user = user;
        add(sum, record, now_ns);
        let wall_ns = average::counted_ns(record, now_ns);
        if let Some((waited, wall_ns)) = record.totals.get(column::PRESSURE_CPU).zip(wall_ns) {
            pressure.waited_ns += waited as f64;
            pressure.of_ns += wall_ns as f64;
        }
    }
    let all_used: f64 = by_user.values().map(|(sum, _)| sum.core_seconds_used).sum();
    let queued: usize = by_user.values().map(|(sum, _)| sum.others_queued).sum();
    let waited_ns: f64 = by_user.values().map(|(_, pressure)| pressure.waited_ns).sum();
    let of_ns: f64 = by_user.values().map(|(_, pressure)| pressure.of_ns).sum();
    let finish = |(mut sum, pressure): (UserSum, Pressure)| {
        sum.share_of_all = (all_used > 0.0).then(|| sum.core_seconds_used / all_used);
        let others_ns = of_ns - pressure.of_ns;
        sum.others_pressure = (others_ns > 0.0).then(|| (waited_ns - pressure.waited_ns) / others_ns);
        sum.others_queued = queued - sum.others_queued;
        sum
    };
    by_user.into_values().map(finish).collect()
}

fn add(sum: &mut UserSum, record: &Record, now_ns: i64) {
    if record.state == State::Pending {
        // The user's own at first; turned into those of others at the end.
        sum.others_queued += 1;
        return;
    }
    let Some(wall_ns) = average::wall_ns(record, now_ns) else { return };
    let wall_s = wall_ns as f64 / 1e9;
    sum.jobs += 1;
    sum.tiny_jobs += usize::from(wall_ns < TINY_NS && !record.state.is_live());
    let cpu_s = average::cores(record, now_ns).map(|cores| cores * wall_s);
    let held = record.allocated.cpus.or(record.requested.cpus).map(|cpus| cpus as f64 * wall_s);
    sum.core_seconds += held.or(cpu_s).unwrap_or(0.0);
    if let Some(cpu_s) = cpu_s {
        sum.core_seconds_known += held.unwrap_or(cpu_s);
        sum.core_seconds_used += cpu_s;
    }
    let gpus = record.allocated.gpus.unwrap_or(record.gpus.len() as i64) as f64;
    sum.gpu_seconds += gpus * wall_s;
    if let Some(ratio) = gpu::ratio(record).filter(|_| record.gpus.len() as f64 >= gpus) {
        sum.gpu_seconds_known += gpus * wall_s;
        sum.gpu_seconds_used += ratio * gpus * wall_s;
    }
    let begin_ns = record.start_ns.unwrap_or(now_ns);
    let end_ns = record.end_ns.unwrap_or(now_ns);
    sum.window_ns = match sum.window_ns {
        (0, 0) => (begin_ns, end_ns),
        (begin, end) => (begin.min(begin_ns), end.max(end_ns)),
    };
}
