//! Which rules may speak of a job, by its record alone: most jobs are judged without reading a sample.
//!
//! Every number of a rule is a range here: what samples may say it is. A rule is left out only if no number within
//! these ranges would let it speak.

use met_core::belief::CHARGED;
use met_core::job_table as column;
use met_core::series::Columns;
use met_core::{JOB, Kind};

use super::condition::{Compare, Expr, Math, Stat};
use super::evaluate::Subject;
use super::fields;
use super::{Rule, Rules, Scope};
use crate::answers::{self, Job};
use crate::average;

/// Samples may see more of a counter than its total says, where the two were read from different accounts.
const DOUBT: f64 = 2.0;

/// What a number may be once everything is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Possible {
    range: Option<(f64, f64)>,
    may_be_unknown: bool,
}

impl Possible {
    const UNKNOWN: Possible = Possible { range: None, may_be_unknown: true };
    pub(super) const ANY: Possible = Possible::within(f64::NEG_INFINITY, f64::INFINITY);

    /// A number that no sample changes.
    pub fn exactly(value: Option<f64>) -> Possible {
        Possible { range: value.map(|value| (value, value)), may_be_unknown: value.is_none() }
    }

    /// Unknown, or in this range.
    pub const fn within(low: f64, high: f64) -> Possible {
        Possible { range: Some((low, high)), may_be_unknown: true }
    }

    pub fn range(self) -> Option<(f64, f64)> {
        self.range
    }

    pub const fn at_least(low: f64) -> Possible {
        Possible { range: Some((low, f64::INFINITY)), may_be_unknown: false }
    }

    pub fn or(self, value: Option<f64>) -> Possible {
        let range = match (self.range, value) {
            (Some((low, high)), Some(value)) => Some((low.min(value), high.max(value))),
            (range, value) => range.or(value.map(|value| (value, value))),
        };
        Possible { range, ..self }
    }
}

/// What has to be read before a rule can be judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Of the job itself.
    pub samples: bool,
    pub gpu_samples: bool,
    /// What other jobs on its node felt.
    pub neighbours: bool,
    /// Of the samples of the job.
    pub columns: Columns,
}

impl Needs {
    pub const NONE: Needs =
        Needs { samples: false, gpu_samples: false, neighbours: false, columns: Columns::NONE };
    pub const GPU_SAMPLES: Needs = Needs { samples: true, gpu_samples: true, ..Needs::NONE };
    pub const NEIGHBOURS: Needs = Needs { neighbours: true, ..Needs::NONE };
    pub const ALL: Needs =
        Needs { samples: true, gpu_samples: true, neighbours: true, columns: Columns::ALL };

    /// Samples with these columns; how many there are is known without one.
    pub const fn samples(columns: &[usize]) -> Needs {
        Needs { samples: true, columns: Columns::of(columns), ..Needs::NONE }
    }

    /// Nothing by itself; where there are samples, these columns of them.
    pub const fn if_sampled(columns: &[usize]) -> Needs {
        Needs { columns: Columns::of(columns), ..Needs::NONE }
    }

    fn and(self, other: Needs) -> Needs {
        Needs {
            samples: self.samples || other.samples,
            gpu_samples: self.gpu_samples || other.gpu_samples,
            neighbours: self.neighbours || other.neighbours,
            columns: self.columns.and(other.columns),
        }
    }

    /// Samples of one node of several say nothing of the job.
    fn of_whole(self, job: &Job<'_>) -> Needs {
        let is_whole = job.is_whole();
        Needs { samples: self.samples && is_whole, gpu_samples: self.gpu_samples && is_whole, ..self }
    }
}

/// The rules that may speak of a job of which nothing but records was read, whatever its samples are.
pub fn possible<'r>(rules: &'r Rules, job: &Job<'_>) -> Vec<&'r Rule> {
    let may_speak = |rule: &&Rule| Outlook { job, rule, coverage: 0.0 }.may_speak();
    rules.about(Scope::Job).filter(may_speak).collect()
}

/// The same where samples go with the totals of the record, and what to read for them.
pub fn candidates<'r>(rules: &'r Rules, job: &Job<'_>) -> (Vec<&'r Rule>, Needs) {
    let may_speak = |rule: &&Rule| Outlook { job, rule, coverage: rule.gates.coverage }.may_speak();
    let found: Vec<&Rule> = rules.about(Scope::Job).filter(may_speak).collect();
    // Sentences have requests in them that depend on samples.
    let of_sentences = Needs::samples(&[column::MEMORY_NEEDED]);
    let first = if found.is_empty() { Needs::NONE } else { of_sentences };
    let needs =
        found.iter().fold(first, |needs, rule| rule.exprs().fold(needs, |needs, expr| needs.and(of(expr))));
    (found, needs.of_whole(job))
}

/// Whether what other jobs on its node did may decide what a rule says of a job.
pub fn ask_neighbours(rules: &Rules, job: &Job<'_>) -> bool {
    candidates(rules, job).1.neighbours
}

/// The rules that may want more samples of a job that runs, and what to read to find out.
pub fn watchers<'r>(rules: &'r Rules, job: &Job<'_>) -> (Vec<&'r Rule>, Needs) {
    let is_asked = |rule: &&Rule| {
        let truth = rule.watched_when().map(|when| Outlook { job, rule, coverage: 0.0 }.truth(when));
        truth.is_some_and(|truth| truth.may_hold || truth.may_be_unknown)
    };
    let found: Vec<&Rule> = rules.about(Scope::Job).filter(is_asked).collect();
    if found.is_empty() {
        return (found, Needs::NONE);
    }
    // How many samples there are matters in any case.
    let conditions = found.iter().filter_map(|rule| rule.watched_when());
    let needs = conditions.map(of).fold(Needs::samples(&[]), Needs::and);
    (found, needs.of_whole(job))
}

fn of(expr: &Expr) -> Needs {
    match expr {
        Expr::Number(_) => Needs::NONE,
        // How much of its time a total covers is known from samples.
        Expr::Metric(_, index) => Needs::if_sampled(&[*index, fields::sampled_as(*index)]),
        Expr::Field(field) => field.needs(),
        Expr::Known(inner) | Expr::Not(inner) => of(inner),
        Expr::And(left, right)
        | Expr::Or(left, right)
        | Expr::Compare(_, left, right)
        | Expr::Math(_, left, right) => of(left).and(of(right)),
    }
}

/// What a condition may turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truth {
    may_hold: bool,
    may_fail: bool,
    may_be_unknown: bool,
}

impl Truth {
    pub(super) fn may_hold(self) -> bool {
        self.may_hold
    }

    /// What it is whatever the numbers are.
    pub(super) fn proven(self) -> Option<bool> {
        match self {
            Truth { may_hold: true, may_fail: false, may_be_unknown: false } => Some(true),
            Truth { may_hold: false, may_fail: true, may_be_unknown: false } => Some(false),
            _ => None,
        }
    }
}

struct Outlook<'a> {
    job: &'a Job<'a>,
    rule: &'a Rule,
    /// What numbers that let it speak cover; 0: nothing is known of samples.
    coverage: f64,
}

impl Outlook<'_> {
    fn may_speak(&self) -> bool {
        let (gates, job) = (&self.rule.gates, self.job);
        let wall_ns = average::wall_ns(job.record, job.now_ns);
        wall_ns.is_some_and(|ns| ns as f64 / 1e9 >= gates.length_s)
            && self.may_hold(&self.rule.when)
            && self.rule.unless.iter().all(|counter| self.may_fail(&counter.when))
            && self.may_save()
    }

    fn may_save(&self) -> bool {
        let (rule, gates) = (self.rule, &self.rule.gates);
        let kinds = [(&rule.saves.cores, gates.core_hours), (&rule.saves.gpus, gates.gpu_hours)];
        let is_enough = |(expr, least): (&Option<Expr>, f64)| {
            // Nothing is asked of the coverage of what is only in the saving.
            let seconds = expr.as_ref().and_then(|expr| self.number(expr, 0.0).range);
            seconds.is_some_and(|(_, most)| (most / 3600.0).max(0.0) >= least)
        };
        kinds.iter().all(|(expr, _)| expr.is_none()) || kinds.into_iter().any(is_enough)
    }

    /// As [`Outlook::truth`] says, which looks at every term.
    fn may_hold(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Not(inner) => self.may_fail(inner),
            Expr::And(left, right) => self.may_hold(left) && self.may_hold(right),
            Expr::Or(left, right) => self.may_hold(left) || self.may_hold(right),
            _ => self.truth(expr).may_hold,
        }
    }

    fn may_fail(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Not(inner) => self.may_hold(inner),
            Expr::And(left, right) => self.may_fail(left) || self.may_fail(right),
            Expr::Or(left, right) => self.may_fail(left) && self.may_fail(right),
            _ => self.truth(expr).may_fail,
        }
    }

    fn truth(&self, expr: &Expr) -> Truth {
        match expr {
            Expr::Not(inner) => {
                let Truth { may_hold, may_fail, may_be_unknown } = self.truth(inner);
                Truth { may_hold: may_fail, may_fail: may_hold, may_be_unknown }
            }
            Expr::And(left, right) => {
                let (left, right) = (self.truth(left), self.truth(right));
                Truth {
                    may_hold: left.may_hold && right.may_hold,
                    may_fail: left.may_fail || right.may_fail,
                    may_be_unknown: left.may_be_unknown || right.may_be_unknown,
                }
            }
            Expr::Or(left, right) => {
                let (left, right) = (self.truth(left), self.truth(right));
                Truth {
                    may_hold: left.may_hold || right.may_hold,
                    may_fail: left.may_fail && right.may_fail,
                    may_be_unknown: left.may_be_unknown || right.may_be_unknown,
                }
            }
            Expr::Known(inner) => {
                let number = self.number(inner, self.coverage);
                let (may_hold, may_fail) = (number.range.is_some(), number.may_be_unknown);
                Truth { may_hold, may_fail, may_be_unknown: false }
            }
            Expr::Compare(how, left, right) => {
                compared(*how, self.number(left, self.coverage), self.number(right, self.coverage))
            }
            _ => Truth { may_hold: false, may_fail: false, may_be_unknown: true },
        }
    }

    fn number(&self, expr: &Expr, coverage: f64) -> Possible {
        match expr {
            Expr::Number(value) => Possible::exactly(Some(*value)),
            Expr::Field(field) => field.possible(self.job, coverage),
            Expr::Metric(stat, index) => self.metric(*stat, *index, coverage),
            Expr::Math(math, left, right) => {
                calculated(*math, self.number(left, coverage), self.number(right, coverage))
            }
            _ => Possible::UNKNOWN,
        }
    }

    fn metric(&self, stat: Stat, index: usize, coverage: f64) -> Possible {
        let job = self.job;
        let without_samples = Subject::Job(job).metric(stat, index).map(|fact| fact.value);
        if stat == Stat::Total || !job.is_whole() {
            return Possible::exactly(without_samples);
        }
        let growth = growth(job, index, coverage);
        match stat {
            Stat::P95 | Stat::Max if growth.range.is_some() => match JOB.columns[index].kind {
                Kind::Counter => Possible::within(0.0, f64::INFINITY),
                Kind::Gauge => Possible::ANY,
            },
            _ => growth.or(without_samples),
        }
    }
}

/// What samples that cover at least this share of the window may say of the growth of a counter per second: no more than
/// its total, and nothing where neither a total nor a mean is known. A level may be anything.
pub fn growth(job: &Job<'_>, index: usize, coverage: f64) -> Possible {
    let record = job.record;
    if JOB.columns[index].kind != Kind::Counter {
        return Possible::ANY;
    }
    let Some((begin_ms, end_ms)) = answers::window_of(record, job.now_ns) else { return Possible::UNKNOWN };
    // The totals of a job that runs may be older than its samples; those of a damaged record are all missing. An end
    // without means was not completed by its samples. Samples of a lost job may end long before now.
    let is_settled = !record.state.is_live()
        && record.end_ns.is_some()
        && !record.summaries.is_empty()
        && !record.totals.is_empty()
        && !CHARGED.contains(&index);
    match record.totals.get(index) {
        _ if !is_settled || coverage <= 0.0 => Possible::within(0.0, f64::INFINITY),
        None if record.summaries.get(index).is_some() => Possible::within(0.0, f64::INFINITY),
        None => Possible::UNKNOWN,
        Some(total) => {
            let covered_s = (end_ms - begin_ms) as f64 / 1e3 * coverage;
            let most = DOUBT * JOB.columns[index].scaled(total).max(0.0) / covered_s;
            Possible::within(0.0, if most.is_nan() { f64::INFINITY } else { most })
        }
    }
}

pub(super) fn compared(how: Compare, left: Possible, right: Possible) -> Truth {
    let may_be_unknown = left.may_be_unknown || right.may_be_unknown;
    let (Some(left), Some(right)) = (left.range, right.range) else {
        return Truth { may_hold: false, may_fail: false, may_be_unknown };
    };
    let less = left.0 < right.1;
    let not_more = left.0 <= right.1;
    let more = left.1 > right.0;
    let not_less = left.1 >= right.0;
    let same = not_more && not_less;
    let differs = less || more;
    let (may_hold, may_fail) = match how {
        Compare::Less => (less, not_less),
        Compare::LessOrEqual => (not_more, more),
        Compare::Greater => (more, not_more),
        Compare::GreaterOrEqual => (not_less, less),
        Compare::Equal => (same, differs),
        Compare::NotEqual => (differs, same),
    };
    Truth { may_hold, may_fail, may_be_unknown }
}

/// The range of all results: that of a sum, product or quotient is between those of the ends.
pub(super) fn calculated(math: Math, left: Possible, right: Possible) -> Possible {
    let (Some(one), Some(other)) = (left.range, right.range) else { return Possible::UNKNOWN };
    let of = |left: f64, right: f64| math.of(left, right);
    let may_be_unknown = left.may_be_unknown || right.may_be_unknown;
    if one.0 == one.1 && other.0 == other.1 {
        let value = Some(of(one.0, other.0)).filter(|value| value.is_finite());
        return Possible { may_be_unknown: may_be_unknown || value.is_none(), ..Possible::exactly(value) };
    }
    let ends = [of(one.0, other.0), of(one.0, other.1), of(one.1, other.0), of(one.1, other.1)];
    let has_pole = math == Math::Divide && other.0 <= 0.0 && other.1 >= 0.0;
    if has_pole || ends.iter().any(|end| end.is_nan()) {
        return Possible::ANY;
    }
    let [low, high] = [f64::min, f64::max].map(|of| ends.into_iter().reduce(of).unwrap_or(f64::NAN));
    Possible { range: Some((low, high)), may_be_unknown }
}
