//! Whether the request for the next run that a job's figures give was made in the next run, and what that saved; and
//! whether what was found in a run is gone in the next one.

use met_core::job::Record;

use super::{Directive, Job, directives};
use crate::average;
use crate::finding::Saving;
use crate::report::Machine;
use crate::rules::{self, Again, Rules};

/// From this share of the advised change on the advice was taken: a round number is as good.
const TAKEN: f64 = 0.5;
/// A request that differs by less is the same again.
const SAME: f64 = 0.01;

/// One request of the run before, and this one's.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowUp {
    /// `memory`, `cpus`, `time`, `gpus`.
    pub resource: &'static str,
    /// The run before.
    pub job: String,
    pub before: f64,
    pub advised: f64,
    pub asked: f64,
    pub is_taken: bool,
    /// Of this run, against the request of the one before.
    pub saving: Saving,
}

/// What a rule found in the run before, judged again in this one.
#[derive(Clone, Debug, PartialEq)]
pub struct Revisited {
    pub rule: String,
    /// The run before, and what was found there.
    pub job: String,
    pub what: String,
    pub is_gone: bool,
}

/// The run before, if this one is comparable with it.
fn before<'a>(job: &Job<'a>) -> Option<Job<'a>> {
    let (&before, earlier) = job.earlier.split_first()?;
    let record = job.record;
    if record.nodes.len() != before.nodes.len() || record.key.manager != before.key.manager {
        return None;
    }
    // Machines of one partition are taken to be alike.
    let machine = match record.scheduling.partition == before.scheduling.partition {
        true => job.machine,
        false => Machine { cpus: None },
    };
    Some(Job::new(before, machine, job.now_ns).after(earlier).among(job.systems))
}

/// Requests that were changed as advised, or not at all; a run of another size is no follow-up.
pub fn follow_ups(job: &Job<'_>) -> Vec<FollowUp> {
    let Some(before) = before(job) else { return Vec::new() };
    let advice = directives::by_records(&before);
    advice.iter().filter_map(|directive| follow_up(job, before.record, directive)).collect()
}

/// The run before a job that ended, whose findings are judged again.
pub(super) fn judged_again<'a>(job: &Job<'a>) -> Option<Job<'a>> {
    before(job).filter(|_| !job.record.state.is_live())
}

/// Findings of the run before that are gone, or still there. Where its samples are not at hand, what only they say is left
/// out, and so is what is not known of this run, or what a follow-up of a request has said.
pub fn revisited(job: &Job<'_>, rules: &Rules, followed: &[FollowUp]) -> Vec<Revisited> {
    let Some(before) = judged_again(job) else { return Vec::new() };
    let before = match job.samples_before {
        Some(samples) => before.sampled(samples),
        None => before,
    };
    let again = |found: crate::finding::Finding| {
        let rule = rules.get(&found.rule)?;
        if followed.iter().any(|one| rule.advises(one.resource)) {
            return None;
        }
        let is_gone = match rules::again(rule, job)? {
            Again::Gone => true,
            Again::Remains => false,
        };
        Some(Revisited { rule: found.rule, job: before.record.label(), what: found.what, is_gone })
    };
    rules::findings(rules, &before).into_iter().filter_map(again).collect()
}

fn follow_up(job: &Job<'_>, earlier: &Record, directive: &Directive) -> Option<FollowUp> {
    let (resource, advised) = (directive.resource, directive.value);
    let before = directive.asked?;
    let asked = directives::asked(job.record, resource)?;
    let is_taken = (asked - before) / (advised - before) >= TAKEN;
    let is_same = (asked - before).abs() <= SAME * before;
    if !is_taken && !is_same {
        return None;
    }
    let hours = average::wall_ns(job.record, job.now_ns).map(|ns| ns as f64 / 3.6e12);
    let saved = hours.filter(|_| is_taken).map(|hours| hours * (before - asked)).filter(|&saved| saved > 0.0);
    let saving = match resource {
        "cpus" => Saving { core_hours: saved, ..Saving::default() },
        "gpus" => Saving { gpu_hours: saved, ..Saving::default() },
        _ => Saving::default(),
    };
    Some(FollowUp { resource, job: earlier.label(), before, advised, asked, is_taken, saving })
}

#[cfg(test)]
mod tests {
    use met_core::job::QualityKind;
    use met_core::job_table as column;

    use super::*;
    use crate::answers::Known;
    use crate::sample;
    use crate::series_tests::{Made, made};

    const GIB: i64 = 1 << 30;

    /// An hour on 16 CPUs and 64 GiB, of which 2 and 8 were needed.
    fn run(id: u64, cpus: i64, memory_gib: i64) -> Record {
        let mut record = sample::finished();
        record.key.manager = "slurm".to_owned();
        record.key.id = id.to_string();
        record.name = "train".to_owned();
        (record.command, record.local) = (Vec::new(), None);
        record.gpus.clear();
        record.nodes = vec!["n1".to_owned()];
        let start_ns = id as i64 * 10_000_000_000_000;
        (record.start_ns, record.end_ns) = (Some(start_ns), Some(start_ns + 3_600_000_000_000));
        for resources in [&mut record.requested, &mut record.allocated] {
            *resources = Default::default();
            (resources.cpus, resources.memory_bytes) = (Some(cpus), Some(memory_gib * GIB));
            (resources.tasks, resources.nodes) = (Some(1), Some(1));
        }
        record.totals.set(column::WALL, 3_600_000_000_000, QualityKind::Measured, "slurm");
        record.totals.set(column::CPU, 7_000_000_000_000, QualityKind::Measured, "cgroup");
        record.totals.set(column::CORES_PEAK, 2_000, QualityKind::Sampled, "cgroup");
        record.totals.set(column::MEMORY_NEEDED_PEAK, 8 * GIB, QualityKind::Sampled, "cgroup");
        record
    }

    fn followed(next: &Record, earlier: &[&Record]) -> Vec<FollowUp> {
        let machine = Machine { cpus: Some(64) };
        follow_ups(&Job::new(next, machine, i64::MAX / 2).after(earlier))
    }

    #[test]
    fn advice_that_was_taken_is_counted_by_what_this_run_held_less() {
        let first = run(1, 16, 64);
        let found = followed(&run(2, 4, 16), &[&first]);
        assert_eq!(found.iter().map(|one| one.resource).collect::<Vec<_>>(), ["memory", "cpus"]);
        assert!(found.iter().all(|one| one.is_taken && one.job == "slurm:1"), "{found:?}");
        assert_eq!(found[0].saving, Saving::default(), "memory is no core time");
        assert_eq!(found[1].saving.core_hours, Some(12.0));
        assert_eq!((found[1].before, found[1].advised, found[1].asked), (16.0, 2.0, 4.0));
    }

    #[test]
    fn the_same_request_again_is_advice_not_taken_and_another_size_is_neither() {
        let first = run(1, 16, 64);
        let again = followed(&run(2, 16, 64), &[&first]);
        assert_eq!(again.len(), 2);
        assert!(again.iter().all(|one| !one.is_taken && one.saving == Saving::default()));
        assert_eq!(followed(&run(2, 32, 128), &[&first]), [], "a larger run");
        let mut wide = run(2, 4, 16);
        wide.nodes.push("n2".to_owned());
        assert_eq!(followed(&wide, &[&first]), [], "on more nodes");
        assert_eq!(followed(&run(2, 4, 16), &[]), [], "the first run");
        assert_eq!(followed(&run(3, 4, 16), &[&run(2, 2, 10)]), [], "a request that was right");
    }

    #[test]
    fn more_memory_after_a_kill_is_advice_that_was_taken() {
        let mut killed = run(1, 2, 8);
        killed.state = met_core::job::State::OutOfMemory;
        let found = followed(&run(2, 2, 12), &[&killed]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].is_taken && found[0].advised > found[0].before);
    }

    fn judged_again(next: &Record, earlier: &[&Record]) -> Vec<(String, bool)> {
        let job = Job::new(next, Machine { cpus: Some(64) }, i64::MAX / 2).after(earlier);
        let found = revisited(&job, Rules::built_in(), &follow_ups(&job));
        assert!(found.iter().all(|one| one.job == "slurm:1" && !one.what.is_empty()), "{found:?}");
        found.into_iter().map(|one| (one.rule, one.is_gone)).collect()
    }

    fn rule(name: &str, is_gone: bool) -> Vec<(String, bool)> {
        vec![(name.to_owned(), is_gone)]
    }

    /// A run of four CPUs that it uses, and little memory.
    fn busy(id: u64) -> Record {
        let mut record = run(id, 4, 10);
        record.totals.set(column::CPU, 14_000_000_000_000, QualityKind::Measured, "cgroup");
        record.totals.set(column::CORES_PEAK, 4_000, QualityKind::Sampled, "cgroup");
        record
    }

    fn with_gpus(id: u64, used: &[Option<f64>]) -> Record {
        let mut record = busy(id);
        let gpu = |(index, &utilization): (usize, &Option<f64>)| met_core::job::GpuUse {
            uuid: format!("GPU-{index}"),
            utilization,
            used_ns: utilization.map_or(0, |used| (used * 3.6e12) as i64),
            held_ns: 3_600_000_000_000,
            known_ns: Some(3_600_000_000_000),
            ..sample::gpu()
        };
        record.gpus = used.iter().enumerate().map(gpu).collect();
        for resources in [&mut record.requested, &mut record.allocated] {
            resources.gpus = Some(used.len() as i64).filter(|&gpus| gpus > 0);
        }
        record
    }

    #[test]
    fn an_idle_gpu_that_is_not_held_or_computes_in_the_next_run_is_advice_taken() {
        let idle = with_gpus(1, &[Some(0.0)]);
        assert_eq!(judged_again(&with_gpus(2, &[]), &[&idle]), rule("gpu_idle", true), "from 1 to 0 GPUs");
        assert_eq!(judged_again(&with_gpus(2, &[Some(0.8)]), &[&idle]), rule("gpu_idle", true));
        assert_eq!(judged_again(&with_gpus(2, &[Some(0.01)]), &[&idle]), rule("gpu_idle", false));
        assert_eq!(judged_again(&with_gpus(2, &[None]), &[&idle]), [], "whether it was used is not known");
        assert_eq!(judged_again(&with_gpus(2, &[]), &[&with_gpus(1, &[Some(0.9)])]), [], "nothing was found");
        assert_eq!(judged_again(&with_gpus(2, &[]), &[]), [], "the first run");
    }

    #[test]
    fn threads_and_quotas_are_judged_again() {
        let with = |id: u64, column: usize, seconds: i64| {
            let mut record = busy(id);
            record.totals.set(column, seconds * 1_000_000_000, QualityKind::Measured, "cgroup");
            record
        };
        for (name, column) in [("oversubscribed", column::RUN_QUEUE_WAIT), ("throttled", column::THROTTLED)] {
            let found = with(1, column, 60_000);
            assert_eq!(judged_again(&with(2, column, 0), &[&found]), rule(name, true));
            assert_eq!(judged_again(&with(2, column, 60_000), &[&found]), rule(name, false));
            assert_eq!(judged_again(&busy(2), &[&found]), [], "{name} was not measured");
            let mut short = with(2, column, 0);
            short.end_ns = short.start_ns.map(|start_ns| start_ns + 30_000_000_000);
            short.totals.set(column::WALL, 30_000_000_000, QualityKind::Measured, "slurm");
            assert_eq!(judged_again(&short, &[&found]), [], "{name}: half a minute says nothing");
            let mut running = with(2, column, 0);
            running.state = met_core::job::State::Running;
            assert_eq!(judged_again(&running, &[&found]), [], "{name}: it may come yet");
        }
    }

    /// An hour on 16 CPUs, all of them busy until a time.
    fn busy_until(id: u64, second: i32) -> Made {
        let mut made = made(3600).computing(|at| if at < second { 15.5 } else { 0.0 });
        let hour = run(id, 16, 10);
        let start_ms = hour.start_ns.unwrap() / 1_000_000;
        for (at, time_ms) in made.series.times_ms.iter_mut().enumerate() {
            *time_ms = start_ms + at as i64 * 1000;
        }
        let totals = std::mem::take(&mut made.record.totals);
        let summaries = std::mem::take(&mut made.record.summaries);
        made.record = Record { totals, summaries, ..hour };
        made
    }

    #[test]
    fn what_samples_say_is_judged_again_where_both_runs_have_them() {
        let judged = |next: &Made, before: &Made, has_samples: bool| {
            let earlier = [&before.record];
            let job = Job::new(&next.record, Machine { cpus: Some(64) }, i64::MAX / 2).after(&earlier);
            let samples_before = has_samples.then(|| before.samples());
            let job = Job { samples_before, ..job }.sampled(next.samples());
            let found = revisited(&job, Rules::built_in(), &[]);
            found.into_iter().map(|one| (one.rule, one.is_gone)).collect::<Vec<_>>()
        };
        let (idle, good) = (busy_until(1, 1800), busy_until(2, 3600));
        assert_eq!(judged(&good, &idle, true), rule("idle_tail", true));
        assert_eq!(judged(&busy_until(2, 1800), &idle, true), rule("idle_tail", false));
        assert_eq!(judged(&good, &idle, false), [], "its samples are not there");
        let gap = busy_until(2, 3600).without(600..3600);
        assert_eq!(judged(&gap, &idle, true), [], "this run was not seen to its end");
        assert_eq!(judged(&good, &busy_until(1, 3600), true), [], "nothing was found");
    }

    #[test]
    fn samples_of_the_run_before_are_read_if_a_rule_needs_them() {
        let (idle, good) = (busy_until(1, 1800), busy_until(2, 3600));
        let interval = std::time::Duration::from_secs(1);
        let machine = Machine { cpus: Some(64) };
        let mut asked = Vec::new();
        let mut known = |next: &Made| {
            let known =
                Known::read(interval, &next.record, machine, &mut |_, _| Ok::<_, ()>(next.series.clone()));
            let earlier = [idle.record.clone()];
            let known =
                known.unwrap().after(interval, &next.record, &earlier, i64::MAX / 2, &mut |run, _, _, _| {
                    asked.push(run.key.id.clone());
                    Ok::<_, ()>(idle.series.clone())
                });
            known.answers(&next.record, &earlier, i64::MAX / 2).revisited
        };
        assert_eq!(known(&good).iter().map(|one| one.rule.as_str()).collect::<Vec<_>>(), ["idle_tail"]);
        let mut running = busy_until(2, 3600);
        running.record.state = met_core::job::State::Running;
        assert_eq!(known(&running), [], "it may come yet");
        assert_eq!(asked, ["1"]);
    }

    #[test]
    fn what_a_request_has_said_is_not_said_again_by_its_rule() {
        let (first, next) = (run(1, 16, 64), run(2, 4, 16));
        assert!(!followed(&next, &[&first]).is_empty());
        assert_eq!(judged_again(&next, &[&first]), []);
    }
}
