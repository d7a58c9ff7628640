//! Rules: what is worth saying of a job or a user, as data.
//!
//! A rule has a condition, counter-evidence, gates, and what to say. The built-in set has the form of a site's own.

pub mod condition;
mod contradiction;
mod evaluate;
pub mod fields;
mod file;
mod idle;
mod outlook;
mod template;
pub mod user;
mod watch;

use std::sync::{Arc, OnceLock};

use met_core::job::Record;
use serde_json::{Value, json};

use crate::answers::Job;
use crate::average;
use crate::finding::{self, Evidence, Finding, Saving, Severity};
use crate::lineage::lineage;
use crate::scale::System;
use condition::Expr;
use evaluate::{Evaluation, Subject};
pub(crate) use evaluate::{Memo, quantile};
pub use file::{Mistake, parse};
use idle::Idle;
pub use outlook::{Needs, ask_neighbours, candidates, watchers};
use template::Template;
use user::UserSum;
pub use watch::{Watch, wanted_for};

const BUILT_IN: &str = include_str!("rules/built_in.yaml");

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    pub rules: Vec<Rule>,
    /// Machines that jobs could move to, which remedies name.
    pub systems: Arc<[System]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Job,
    User,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub name: String,
    pub scope: Scope,
    pub severity: Severity,
    pub when: Expr,
    /// The condition as it was written.
    pub when_text: String,
    pub unless: Vec<Counter>,
    /// Rules that say less about the same: they are silent where this one is not.
    pub replaces: Vec<String>,
    pub gates: Gates,
    /// When more samples of a job that runs are wanted.
    pub watch: Option<Watch>,
    sentences: Sentences,
    saves: Saves,
}

/// What a rule says.
#[derive(Clone, Debug, PartialEq)]
struct Sentences {
    what: Template,
    how: Template,
    /// Where a part of `how` is not known.
    otherwise: Option<Template>,
}

/// The time that would be saved.
#[derive(Clone, Debug, PartialEq)]
struct Saves {
    cores: Option<Expr>,
    gpus: Option<Expr>,
}

impl Sentences {
    fn exprs(&self) -> impl Iterator<Item = &Expr> {
        [&self.what, &self.how].into_iter().chain(&self.otherwise).flat_map(Template::exprs)
    }
}

impl Rule {
    /// Whether its advice is another request for `memory`, `cpus`, `time` or `gpus`.
    pub fn advises(&self, resource: &str) -> bool {
        self.sentences.how.asks_for(resource)
    }

    /// Everything that it calculates.
    fn exprs(&self) -> impl Iterator<Item = &Expr> {
        let conditions = self.unless.iter().map(|counter| &counter.when).chain([&self.when]);
        let saved = self.saves.cores.iter().chain(&self.saves.gpus);
        conditions.chain(saved).chain(self.sentences.exprs())
    }
}

/// Evidence for the other side.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    pub when: Expr,
    pub when_text: String,
    pub because: String,
}

/// What must be given before a rule may speak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gates {
    /// Least share of the window that its numbers cover.
    pub coverage: f64,
    pub length_s: f64,
    pub samples: usize,
    /// Least saving of one job: of a rule that saves core time, or GPU time.
    pub core_hours: f64,
    pub gpu_hours: f64,
}

impl Rules {
    /// The rules that come with met.
    pub fn built_in() -> &'static Rules {
        static RULES: OnceLock<Rules> = OnceLock::new();
        RULES.get_or_init(|| parse(BUILT_IN).unwrap_or_else(|mistake| panic!("built-in rules: {mistake}")))
    }

    pub fn get(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.name == name)
    }

    pub fn about(&self, scope: Scope) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.scope == scope)
    }

    /// The rule of this name, or what is wrong with it.
    pub fn named(&self, name: &str, scope: Scope) -> Result<&Rule, String> {
        match (self.get(name), scope) {
            (Some(rule), _) if rule.scope == scope => Ok(rule),
            (Some(_), Scope::Job) => {
                Err(format!("{name} is about all jobs of a user; name the user with --user"))
            }
            (Some(_), Scope::User) => {
                Err(format!("{name} is about single jobs; name a job instead of --user"))
            }
            (None, _) => {
                let known: Vec<&str> = self.about(scope).map(|rule| rule.name.as_str()).collect();
                Err(format!("no rule named {name:?}; known: {}", known.join(", ")))
            }
        }
    }
}

/// How a rule came to its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub evidence: Vec<Evidence>,
    /// Names that are not known of this subject.
    pub unknown: Vec<&'static str>,
    pub steps: Vec<Step>,
    /// Whether it wants more samples of a job that runs, where it may.
    pub watch: Option<Step>,
    pub finding: Option<Finding>,
}

/// One thing that was asked; without an answer where it is not known.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub asked: String,
    pub passed: Option<bool>,
}

/// All findings of a job, ranked.
pub fn findings(rules: &Rules, job: &Job<'_>) -> Vec<Finding> {
    judge_all(outlook::possible(rules, &job.unread()), job)
}

/// The findings of some rules, ranked: of those that [`candidates`] left, they are those of all.
pub fn judge_all<'r>(rules: impl IntoIterator<Item = &'r Rule>, job: &Job<'_>) -> Vec<Finding> {
    of_subject(rules, Subject::Job(job))
}

pub fn findings_of_user(rules: &Rules, user: &UserSum) -> Vec<Finding> {
    of_subject(rules.about(Scope::User), Subject::User(user, &rules.systems))
}

fn of_subject<'r>(rules: impl IntoIterator<Item = &'r Rule>, subject: Subject<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut replaced: Vec<&str> = Vec::new();
    for rule in rules {
        if let Some(finding) = judged(rule, subject, false).finding {
            replaced.extend(rule.replaces.iter().map(String::as_str));
            found.push(finding);
        }
    }
    found.retain(|finding| !replaced.contains(&finding.rule.as_str()));
    finding::rank(&mut found);
    found
}

/// What becomes of a finding in another run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    Gone,
    Remains,
}

/// `None` where it is not known, or where a gate or counter-evidence keeps the rule silent: that is no advice taken.
pub fn again(rule: &Rule, job: &Job<'_>) -> Option<Again> {
    let subject = Subject::Job(job);
    let mut evaluation = Evaluation::of(subject, false);
    if evaluation.truth(&rule.when)? {
        return judged(rule, subject, false).finding.map(|_| Again::Remains);
    }
    let mut steps = Steps { is_explained: false, shown: Vec::new(), have_passed: true };
    gates(rule, subject, evaluation.coverage(), &mut steps);
    steps.have_passed.then_some(Again::Gone)
}

/// The numbers, gates and counter-evidence of one rule for a job.
pub fn explain(rule: &Rule, job: &Job<'_>) -> Explanation {
    judged(rule, Subject::Job(job), true)
}

/// The same for a week of a user, who could move to one of these machines.
pub fn explain_user(rule: &Rule, user: &UserSum, systems: &[System]) -> Explanation {
    judged(rule, Subject::User(user, systems), true)
}

/// The same for a program.
pub fn explanation_object(rule: &Rule, explanation: &Explanation) -> Value {
    let steps = explanation.steps.iter().map(|step| json!({ "asked": step.asked, "passed": step.passed }));
    let evidence = explanation.evidence.iter().map(crate::finding::evidence_object);
    let mut object = json!({
        "rule": rule.name,
        "steps": steps.collect::<Vec<_>>(),
        "why": evidence.collect::<Vec<_>>(),
        "unknown": explanation.unknown,
        "finding": explanation.finding.as_ref().map(finding::object),
    });
    if let Some(step) = &explanation.watch {
        object["watch"] = json!({ "asked": step.asked, "passed": step.passed });
    }
    object
}

/// What was asked of a rule, one after the other. They are kept for an explanation only; without one nothing is asked after a refusal.
struct Steps {
    is_explained: bool,
    shown: Vec<Step>,
    have_passed: bool,
}

impl Steps {
    fn push(&mut self, passed: Option<bool>, asked: impl FnOnce() -> String) {
        self.have_passed &= passed == Some(true);
        if self.is_explained {
            self.shown.push(Step { asked: asked(), passed });
        }
    }

    /// Whether what follows changes nothing.
    fn are_over(&self) -> bool {
        !self.have_passed && !self.is_explained
    }
}

/// `with_all` looks at numbers of a condition that is false already, for an explanation.
fn judged(rule: &Rule, subject: Subject<'_>, with_all: bool) -> Explanation {
    let mut evaluation = Evaluation::of(subject, with_all);
    let mut steps = Steps { is_explained: with_all, shown: Vec::new(), have_passed: true };
    let holds = evaluation.truth(&rule.when);
    match with_all && holds != Some(true) {
        true => silent_terms(rule, subject, &mut steps),
        false => steps.push(holds, || rule.when_text.clone()),
    }
    if holds == Some(true) {
        gates(rule, subject, evaluation.coverage(), &mut steps);
        for counter in &rule.unless {
            if steps.are_over() {
                break;
            }
            let mut of_counter = Evaluation::of(subject, false);
            let speaks_against = of_counter.truth(&counter.when);
            // What was not looked at well enough does not speak for the rule either.
            let is_covered = of_counter.coverage() >= rule.gates.coverage;
            let passed = speaks_against.map(|against| !against).filter(|&passed| !passed || is_covered);
            steps.push(passed, || format!("not ({}): {}", counter.when_text, counter.because));
            evaluation.take_in(of_counter);
        }
    }
    let mut finding = None;
    if steps.have_passed {
        let saving = saving(rule, subject, &mut evaluation);
        saving_gate(rule, &saving, &mut steps);
        if steps.have_passed {
            finding = reported(rule, subject, &mut evaluation, saving);
        }
    }
    let watch = with_all.then(|| watch::step(rule, subject)).flatten();
    Explanation {
        evidence: evaluation.evidence,
        unknown: evaluation.unknown,
        steps: steps.shown,
        watch,
        finding,
    }
}

/// The terms of a condition that does not hold: first those that are false, then those that are not known.
fn silent_terms(rule: &Rule, subject: Subject<'_>, steps: &mut Steps) {
    let truth = |term: &condition::Expr| Evaluation::of(subject, false).truth(term);
    let terms = condition::terms(&rule.when, &rule.when_text).into_iter();
    let mut terms: Vec<_> = terms.map(|(asked, term)| (asked, truth(term))).collect();
    terms.sort_by_key(|(_, passed)| match passed {
        Some(false) => 0,
        None => 1,
        Some(true) => 2,
    });
    terms.into_iter().for_each(|(asked, passed)| steps.push(passed, || asked.to_owned()));
}

fn gates(rule: &Rule, subject: Subject<'_>, coverage: f64, steps: &mut Steps) {
    let gates = &rule.gates;
    let percent = met_core::units::percent;
    steps.push(Some(coverage >= gates.coverage), || {
        format!("samples cover {} of its time (needs {})", percent(coverage), percent(gates.coverage))
    });
    let Subject::Job(job) = subject else { return };
    let wall_s = average::wall_ns(job.record, job.now_ns).map(|ns| ns as f64 / 1e9);
    steps.push(wall_s.map(|wall_s| wall_s >= gates.length_s), || {
        format!("it ran for at least {}", met_core::units::duration_long(gates.length_s))
    });
    // Totals need no samples: only where there are some, there must be enough.
    if let Some(profile) = job.profile().filter(|_| gates.samples > 0) {
        let passed = Some(profile.count() >= gates.samples);
        steps.push(passed, || format!("at least {} samples", gates.samples));
    }
}

fn saving(rule: &Rule, subject: Subject<'_>, evaluation: &mut Evaluation<'_>) -> Saving {
    let mut hours = |expr: &Option<Expr>| {
        let seconds = evaluation.number(expr.as_ref()?)?;
        Some((seconds / 3600.0).max(0.0))
    };
    let (core_hours, gpu_hours) = (hours(&rule.saves.cores), hours(&rule.saves.gpus));
    let saving = Saving { core_hours, gpu_hours, ..Saving::default() };
    match subject {
        Subject::Job(job) => Idle::of_job(job).with(saving),
        Subject::User(user, _) => user.idle.with(saving),
    }
}

fn saving_gate(rule: &Rule, saving: &Saving, steps: &mut Steps) {
    if rule.saves.cores.is_none() && rule.saves.gpus.is_none() {
        return;
    }
    let enough = [(saving.core_hours, rule.gates.core_hours), (saving.gpu_hours, rule.gates.gpu_hours)];
    let passed = enough.into_iter().any(|(saved, least)| saved.is_some_and(|saved| saved >= least));
    let kinds = [
        (&rule.saves.cores, saving.core_hours, rule.gates.core_hours, "core-hours"),
        (&rule.saves.gpus, saving.gpu_hours, rule.gates.gpu_hours, "GPU-hours"),
    ];
    steps.push(Some(passed), || {
        let words = kinds.into_iter().filter(|(expr, ..)| expr.is_some()).map(|(_, saved, least, unit)| {
            let saved = saved.map_or("an unknown number of".to_owned(), |saved| format!("{saved:.2}"));
            format!("{saved} {unit} (needs {least})")
        });
        format!("it would save {}", words.collect::<Vec<_>>().join(" or "))
    });
}

fn reported(
    rule: &Rule,
    subject: Subject<'_>,
    evaluation: &mut Evaluation<'_>,
    saving: Saving,
) -> Option<Finding> {
    let (name, user, window_ns) = match subject {
        Subject::Job(job) => (job.record.label(), job.record.user.clone(), window_ns(job.record, job.now_ns)),
        Subject::User(user, _) => (user.user.clone(), Some(user.user.clone()), user.window_ns),
    };
    let (held_core_hours, lineage) = match subject {
        Subject::Job(job) => (Some(held_core_hours(job)), Some(lineage(job.record))),
        Subject::User(..) => (None, None),
    };
    let coverage = evaluation.coverage();
    let what = rule.sentences.what.text(subject)?;
    let how =
        rule.sentences.how.text(subject).or_else(|| rule.sentences.otherwise.as_ref()?.text(subject))?;
    Some(Finding {
        rule: rule.name.clone(),
        severity: rule.severity,
        subject: name,
        user,
        lineage,
        window_ns,
        what,
        why: evaluation.evidence.clone(),
        how,
        saving,
        held_core_hours,
        coverage,
    })
}

/// What a job took from others, for the gates of a cluster.
fn held_core_hours(job: &Job<'_>) -> f64 {
    let record = job.record;
    let hours = average::wall_ns(record, job.now_ns).map_or(0.0, |ns| ns as f64 / 3.6e12);
    let cpus = record.allocated.cpus.or(record.requested.cpus).map(|cpus| cpus as f64);
    let cores = cpus.or_else(|| average::cores(record, job.now_ns)).unwrap_or(0.0);
    (cores + finding::GPU_HOUR * crate::gpu::count(record) as f64) * hours
}

fn window_ns(record: &Record, now_ns: i64) -> (i64, i64) {
    let end_ns = record.end_ns.unwrap_or(now_ns);
    (record.start_ns.unwrap_or(end_ns), end_ns)
}

#[cfg(test)]
#[path = "rules/pair_tests.rs"]
mod pair_tests;
#[cfg(test)]
#[path = "rules/tests.rs"]
mod tests;
