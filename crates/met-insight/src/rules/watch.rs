//! Rules that want more samples of jobs that run: the shortest interval of their node for a while.

use std::time::Duration;

use met_core::job::State;
use met_core::units;

use super::condition::Expr;
use super::evaluate::{Evaluation, Subject};
use super::{Rule, Step};
use crate::answers::Job;

/// What a rule says under `watch`.
#[derive(Clone, Debug, PartialEq)]
pub struct Watch {
    /// The condition, as it was written; without one, that of the rule.
    pub when: Option<(Expr, String)>,
    pub wanted_for: Duration,
}

impl Rule {
    /// The condition under which more samples are wanted.
    pub(super) fn watched_when(&self) -> Option<&Expr> {
        let watch = self.watch.as_ref()?;
        Some(watch.when.as_ref().map_or(&self.when, |(when, _)| when))
    }
}

/// For how long a rule wants more samples of a job: if its condition holds, or cannot be judged for lack of samples. What no
/// sample could show is not a reason.
pub fn wanted_for(rule: &Rule, job: &Job<'_>) -> Option<Duration> {
    (truth(rule, job)? == Some(true)).then_some(rule.watch.as_ref()?.wanted_for)
}

/// `None` if it is nothing that a rule may want; unknown is unknown.
fn truth(rule: &Rule, job: &Job<'_>) -> Option<Option<bool>> {
    let when = rule.watched_when()?;
    if job.record.state != State::Running {
        return None;
    }
    let truth = Evaluation::of(Subject::Job(job), false).truth(when);
    let has_few = || job.profile().is_none_or(|profile| profile.count() < rule.gates.samples);
    Some(truth.or_else(|| (job.is_whole() && has_few()).then_some(true)))
}

/// The same for an explanation.
pub(super) fn step(rule: &Rule, subject: Subject<'_>) -> Option<Step> {
    let Subject::Job(job) = subject else { return None };
    let passed = truth(rule, job)?;
    let watch = rule.watch.as_ref()?;
    let lasting = units::duration_long(watch.wanted_for.as_secs_f64());
    let when = watch.when.as_ref().map_or(rule.when_text.as_str(), |(_, text)| text);
    Some(Step { asked: format!("more samples for {lasting}: {when}, or too few samples to know"), passed })
}
