//! The one line that answers first.

use met_core::job::{Record, State, Totals};
use met_core::job_table as column;
use met_core::units;

use super::{Bottleneck, Job, Limit, directives};
use crate::average;

/// Of a memory limit that counts as reached: the kernel kills before the last page is charged.
const AT_LIMIT: f64 = 0.9;

pub fn verdict(job: &Job<'_>, bottleneck: Option<&Bottleneck>) -> String {
    let record = job.record;
    let wall = average::wall_ns(record, job.now_ns).map(|ns| units::duration_long(ns as f64 / 1e9));
    let after = wall.as_ref().map(|wall| format!(" after {wall}")).unwrap_or_default();
    let limited = bottleneck.map(limited).unwrap_or_default();
    match record.state {
        State::Pending => "waits in the queue".to_owned(),
        State::OutOfMemory => format!("out of memory{after}{}", at_memory(job)),
        State::Timeout => format!("reached its time limit{after}{limited}"),
        State::Failed => format!("failed{after}{limited}"),
        State::Cancelled => format!("cancelled{after}{limited}"),
        State::Lost => format!("its end was not observed{limited}"),
        State::Suspended => format!("suspended{after}"),
        State::Running => {
            let wall = wall.map(|wall| format!(" for {wall}")).unwrap_or_default();
            format!("running{wall}{limited}")
        }
        State::Finished => {
            let wall = wall.map(|wall| format!(" in {wall}")).unwrap_or_default();
            format!("finished{wall}{limited}")
        }
    }
}

fn limited(bottleneck: &Bottleneck) -> String {
    match bottleneck.limit {
        Limit::Waiting => ", mostly waiting".to_owned(),
        Limit::None => ", with no single bottleneck".to_owned(),
        Limit::Memory => ", slowed by swapping or reclaim".to_owned(),
        Limit::SomeCores => {
            let kept = bottleneck.evidence.first().map(|first| format!(", kept {first}")).unwrap_or_default();
            format!("{kept}; more processes or threads might help")
        }
        limit => {
            let shown = bottleneck.evidence.first().map(|first| format!(" ({first})")).unwrap_or_default();
            format!(", limited by {}{shown}", limit.words())
        }
    }
}

fn at_memory(job: &Job<'_>) -> String {
    let needed = job.record.totals.get(column::MEMORY_NEEDED_PEAK);
    let limit = job.record.allocated.memory_bytes.or(job.record.requested.memory_bytes);
    let limit = limit.or(job.record.local.as_ref().and_then(|local| local.memory_limit).map(|it| it.bytes));
    if let Some(full) = limit.and_then(|limit| at_limit(job.record, limit as f64)) {
        return full;
    }
    match (needed, limit) {
        (Some(needed), Some(limit)) => {
            format!(": at least {} of {}", units::bytes(needed as f64), units::bytes(limit as f64))
        }
        (Some(needed), None) => format!(": at least {}", units::bytes(needed as f64)),
        (None, _) => String::new(),
    }
}

/// Samples miss what grows until it is killed; the kernel keeps the peak of all that was charged. Each node has its share
/// of the limit, and the job ends where one of them reaches it.
fn at_limit(record: &Record, limit: f64) -> Option<String> {
    let is_full = |totals: &Totals, limit: f64| {
        totals.get(column::MEMORY_PEAK).is_some_and(|peak| peak as f64 >= AT_LIMIT * limit)
    };
    let nodes = directives::nodes(record);
    if nodes == 1 {
        return is_full(&record.totals, limit).then(|| format!(": at its limit of {}", units::bytes(limit)));
    }
    let limit = limit / nodes as f64;
    let mut by_node = record.parts.iter().filter(|part| directives::is_of_node(part));
    let full = by_node.find(|part| is_full(&part.totals, limit))?;
    Some(format!(": at its limit of {} on {}", units::bytes(limit), full.node))
}

#[cfg(test)]
mod tests {
    use met_core::job::{Part, QualityKind};

    use super::super::bottleneck;
    use super::*;
    use crate::report::Machine;
    use crate::sample;
    use crate::series_tests::{Made, made};

    fn reported(made: &Made) -> String {
        let job = Job::new(&made.record, Machine { cpus: Some(8) }, made.now_ns());
        verdict(&job, bottleneck::bottleneck(&job).as_ref())
    }

    #[test]
    fn the_verdict_says_how_it_ended_and_what_limited_it() {
        let mut busy = made(100).cores(|_| 7.5);
        assert_eq!(reported(&busy), "finished in 1m40s, limited by the CPU (7.50 of 8 cores busy)");
        busy.record.state = State::Failed;
        assert_eq!(reported(&busy), "failed after 1m40s, limited by the CPU (7.50 of 8 cores busy)");
        let some = made(100).cores(|_| 2.0);
        assert_eq!(
            reported(&some),
            "finished in 1m40s, kept 2 of 8 cores busy; more processes or threads might help"
        );
        let sleeps = made(3).cores(|_| 0.0).rate(column::PRESSURE_IO, |_| 0.0);
        assert_eq!(reported(&sleeps), "finished in 3s, mostly waiting");
        let mut killed = made(100).cores(|_| 1.0).level(column::MEMORY_NEEDED, |_| f64::from(1 << 30));
        killed.record.state = State::OutOfMemory;
        killed.record.allocated.memory_bytes = Some(1 << 30);
        assert_eq!(reported(&killed), "out of memory after 1m40s: at least 1.00 GiB of 1.00 GiB");
        killed.record.totals.set(column::MEMORY_PEAK, (1 << 30) - 8192, QualityKind::Measured, "cgroup");
        assert_eq!(reported(&killed), "out of memory after 1m40s: at its limit of 1.00 GiB");
        let mut pending = made(1);
        pending.record.state = State::Pending;
        assert_eq!(reported(&pending), "waits in the queue");
    }

    #[test]
    fn the_memory_of_one_node_is_compared_with_its_share_of_the_limit() {
        let killed = |nodes: [i64; 2]| {
            let mut killed = made(100).cores(|_| 1.0).level(column::MEMORY_NEEDED, |_| f64::from(3 << 29));
            let record = &mut killed.record;
            (record.state, record.allocated.memory_bytes) = (State::OutOfMemory, Some(4 << 30));
            (record.nodes, record.allocated.nodes) = (vec!["n1".to_owned(), "n2".to_owned()], Some(2));
            record.totals.set(column::MEMORY_PEAK, nodes[0] + nodes[1], QualityKind::Measured, "cgroup");
            for (node, peak) in record.nodes.iter().zip(nodes) {
                let (node, step, task) = (node.clone(), String::new(), None);
                let mut part = Part { node, step, task, ..sample::scheduled().parts[0].clone() };
                part.totals.set(column::MEMORY_PEAK, peak, QualityKind::Measured, "cgroup");
                record.parts.push(part);
            }
            reported(&killed)
        };
        assert_eq!(
            killed([1 << 28, 2 << 30]),
            "out of memory after 1m40s: at its limit of 2.00 GiB on n2",
            "though they had half of what both were given"
        );
        assert_eq!(killed([1 << 30, 1 << 30]), "out of memory after 1m40s: at least 1.50 GiB of 4.00 GiB");
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let unknown = made(100);
        assert_eq!(reported(&unknown), "finished in 1m40s");
    }
}
