//! Conditions against jobs and users. What is not known is neither true nor false.

use std::cell::{OnceCell, RefCell};
use std::sync::OnceLock;

use met_core::job::QualityKind;
use met_core::job_table as column;
use met_core::{JOB, Kind, Unit};

use super::condition::{Compare, Expr, Stat};
use super::fields::{self, Fact, Field};
use super::outlook::{self, Possible};
use super::user::UserSum;
use crate::answers::{Job, Moments};
use crate::average;
use crate::finding::Evidence;
use crate::report::Measure;
use crate::scale::System;

/// What a rule is about.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    Job(&'a Job<'a>),
    /// With the machines that the user could move to.
    User(&'a UserSum, &'a [System]),
}

impl Subject<'_> {
    fn field(&self, field: &Field) -> Option<Fact> {
        match self {
            Subject::Job(job) => field.of_job(job),
            Subject::User(user, _) => field.of_user(user),
        }
    }

    pub(super) fn metric(&self, stat: Stat, index: usize) -> Option<Fact> {
        let Subject::Job(job) = self else { return None };
        let fact = match stat {
            Stat::Total => return fields::total(job, index),
            Stat::Rate => of_samples(job, Stat::Mean, index).or_else(|| rate(job, index)),
            stat => of_samples(job, stat, index),
        };
        let is_bound = index == column::PROCESSES && !counts_all_processes(job);
        fact.map(|fact| if is_bound { Fact { quality: QualityKind::LowerBound, ..fact } } else { fact })
    }
}

/// Whether exit records counted the processes that began and ended between two samples.
fn counts_all_processes(job: &Job<'_>) -> bool {
    job.record.totals.figure(column::PROCESSES).is_some_and(|figure| figure.kind == QualityKind::Measured)
}

/// Whether a number may be a lower bound that has samples: one without does not pass the gates.
fn may_be_bound(expr: &Expr) -> bool {
    match expr {
        Expr::Metric(stat, index) => *stat != Stat::Total && *index == column::PROCESSES,
        Expr::Math(_, left, right) => may_be_bound(left) || may_be_bound(right),
        _ => false,
    }
}

/// The growth of a counter over the job's time, where there are no samples.
fn rate(job: &Job<'_>, index: usize) -> Option<Fact> {
    let total = fields::total(job, index)?;
    let value = average::per_second(job.record, index, job.now_ns)?;
    Some(Fact { value, ..total })
}

/// A statistic of a column.
type Of = (Stat, usize);

/// What was worked out once of a job. There are few statistics: they are found faster one after the other than by a hash.
#[derive(Default)]
pub struct Memo {
    of_samples: RefCell<Vec<(Of, Option<Fact>)>>,
    /// The runs that requests are made from: 0 is the job, 1 the run before.
    pub runs: OnceCell<Vec<usize>>,
}

/// A statistic of samples after the warm-up.
pub fn of_samples(job: &Job<'_>, stat: Stat, index: usize) -> Option<Fact> {
    // Most jobs are judged without samples.
    job.profile()?;
    let known =
        job.memo.of_samples.borrow().iter().find(|(of, _)| *of == (stat, index)).map(|(_, fact)| *fact);
    known.unwrap_or_else(|| {
        let fact = computed(job, stat, index);
        job.memo.of_samples.borrow_mut().push(((stat, index), fact));
        fact
    })
}

fn computed(job: &Job<'_>, stat: Stat, index: usize) -> Option<Fact> {
    let profile = job.profile()?;
    let Moments { covered_ms, mean, most } = profile.moments(index);
    if covered_ms <= 0 {
        return None;
    }
    let value = match stat {
        Stat::Mean | Stat::Rate | Stat::Total => mean,
        Stat::Max => {
            // The peak that reports show is of at least half a second.
            let peak =
                job.record.totals.get(column::CORES_PEAK).filter(|&peak| index == column::CPU && peak > 0);
            peak.map_or(most, |thousandths| most.min(thousandths as f64 / 1e3))
        }
        Stat::P95 => {
            let scale = JOB.columns[index].scale;
            let mut spans = Vec::with_capacity(profile.count());
            profile.each_inside(index, |span, inside_ms| spans.push((span.value * scale, inside_ms as f64)));
            quantile(&mut spans, 0.95 * covered_ms as f64)?
        }
    };
    let coverage = Some(profile.coverage(index).min(1.0));
    Some(Fact { value, quality: QualityKind::Sampled, coverage })
}

/// The value of the span in which the lengths of all, from the lowest value on, come to so much: each step halves what is
/// left, where to sort all of them would take several times as long. Lengths are whole, so that their sums are exact in
/// any order.
pub(crate) fn quantile(spans: &mut [(f64, f64)], mut left: f64) -> Option<f64> {
    let (mut begin, mut end) = (0, spans.len());
    while end - begin > 1 {
        let middle = (end - begin) / 2;
        spans[begin..end].select_nth_unstable_by(middle, |one, other| one.0.total_cmp(&other.0));
        let below: f64 = spans[begin..begin + middle].iter().map(|&(_, length)| length).sum();
        if left - below <= 0.0 {
            end = begin + middle;
        } else {
            (left, begin) = (left - below, begin + middle);
        }
    }
    spans.get(begin).map(|&(value, _)| value)
}

/// Evaluates, and keeps each number that was looked at.
pub struct Evaluation<'a> {
    subject: Subject<'a>,
    /// Looks at what cannot change the result, too.
    with_all: bool,
    pub evidence: Vec<Evidence>,
    /// Names that were looked at and are not known.
    pub unknown: Vec<&'static str>,
}

impl<'a> Evaluation<'a> {
    pub fn of(subject: Subject<'a>, with_all: bool) -> Evaluation<'a> {
        Evaluation { subject, with_all, evidence: Vec::new(), unknown: Vec::new() }
    }

    pub fn truth(&mut self, expr: &Expr) -> Option<bool> {
        match expr {
            Expr::Not(inner) => self.truth(inner).map(|truth| !truth),
            Expr::And(left, right) => match self.truth(left) {
                Some(false) if !self.with_all => Some(false),
                left => match (left, self.truth(right)) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    _ => None,
                },
            },
            Expr::Or(left, right) => match (self.truth(left), self.truth(right)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Expr::Known(inner) => {
                let unknown = self.unknown.len();
                let is_known = self.number(inner).is_some();
                // To ask whether it is known is no gap.
                self.unknown.truncate(unknown);
                Some(is_known)
            }
            Expr::Compare(compare, left, right) => {
                let known = (self.number(left), self.number(right));
                if may_be_bound(left) || may_be_bound(right) {
                    return outlook::compared(*compare, self.possible(left), self.possible(right)).proven();
                }
                let (left, right) = (known.0?, known.1?);
                Some(match compare {
                    Compare::Less => left < right,
                    Compare::LessOrEqual => left <= right,
                    Compare::Greater => left > right,
                    Compare::GreaterOrEqual => left >= right,
                    Compare::Equal => left == right,
                    Compare::NotEqual => left != right,
                })
            }
            _ => None,
        }
    }

    pub fn number(&mut self, expr: &Expr) -> Option<f64> {
        let value = match expr {
            Expr::Number(value) => *value,
            Expr::Field(field) => {
                let fact = self.subject.field(field);
                self.note(field.name, field.shown.0, fact)?
            }
            Expr::Metric(stat, index) => {
                let fact = self.subject.metric(*stat, *index);
                self.note(metric_name(*stat, *index), measure(*stat, *index), fact)?
            }
            Expr::Math(math, left, right) => {
                let (left, right) = (self.number(left), self.number(right));
                let (left, right) = (left?, right?);
                math.of(left, right)
            }
            _ => return None,
        };
        Some(value).filter(|value| value.is_finite())
    }

    /// What a number is, where a lower bound may be any larger one.
    fn possible(&mut self, expr: &Expr) -> Possible {
        match expr {
            Expr::Metric(stat, index) => match self.subject.metric(*stat, *index) {
                Some(fact) if fact.quality == QualityKind::LowerBound => Possible::at_least(fact.value),
                fact => Possible::exactly(fact.map(|fact| fact.value)),
            },
            Expr::Math(math, left, right) => {
                outlook::calculated(*math, self.possible(left), self.possible(right))
            }
            other => Possible::exactly(self.number(other)),
        }
    }

    fn note(&mut self, name: &'static str, measure: Measure, fact: Option<Fact>) -> Option<f64> {
        let Some(Fact { value, quality, coverage }) = fact else {
            if !self.unknown.contains(&name) {
                self.unknown.push(name);
            }
            return None;
        };
        if self.evidence.iter().all(|known| known.name != name) {
            self.evidence.push(Evidence { name, value, measure, quality, coverage });
        }
        Some(value)
    }

    /// Adds what another one of the same subject looked at.
    pub fn take_in(&mut self, other: Evaluation<'_>) {
        for evidence in other.evidence {
            if self.evidence.iter().all(|known| known.name != evidence.name) {
                self.evidence.push(evidence);
            }
        }
        for name in other.unknown {
            if !self.unknown.contains(&name) {
                self.unknown.push(name);
            }
        }
    }

    /// The least coverage of the numbers that were looked at.
    pub fn coverage(&self) -> f64 {
        self.evidence.iter().filter_map(|evidence| evidence.coverage).fold(1.0, f64::min)
    }
}

/// As a condition has it: `mean(cpu_seconds)`.
pub(super) fn metric_name(stat: Stat, index: usize) -> &'static str {
    static NAMES: OnceLock<Vec<[String; Stat::NAMES.len()]>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let of = |column: String| Stat::NAMES.map(|(stat, _)| format!("{stat}({column})"));
        JOB.columns.iter().map(|column| of(column.json_name())).collect()
    });
    &names[index][stat as usize]
}

/// How a number of the catalogue is written.
pub fn measure(stat: Stat, index: usize) -> Measure {
    let column = &JOB.columns[index];
    let per_second = column.kind == Kind::Counter && stat != Stat::Total;
    match (column.unit, per_second) {
        (Unit::Bytes, true) => Measure::BytesPerSecond,
        (Unit::Bytes, false) => Measure::Bytes,
        (Unit::Seconds, true) => Measure::Share,
        (Unit::Seconds, false) => Measure::Seconds,
        (Unit::Joules, true) | (Unit::Watts, _) => Measure::Watts,
        (Unit::Joules, false) => Measure::Joules,
        (Unit::Ratio, _) => Measure::Share,
        (Unit::Grams, _) => Measure::Grams,
        (Unit::Money, _) => Measure::Money,
        (Unit::Celsius, _) => Measure::Celsius,
        _ => Measure::Count,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_quantile_is_the_one_of_sorted_spans(
            spans in proptest::collection::vec((0i32..40, 1i64..50_000), 1..60), share in 0.0f64..=1.0)
        {
            let mut spans: Vec<(f64, f64)> =
                spans.into_iter().map(|(value, length)| (f64::from(value), length as f64)).collect();
            let covered: f64 = spans.iter().map(|&(_, length)| length).sum();
            let mut sorted = spans.clone();
            sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
            let mut left = share * covered;
            let found = sorted.iter().find(|&&(_, length)| {
                left -= length;
                left <= 0.0
            });
            let expected = found.or(sorted.last()).map(|&(value, _)| value);
            prop_assert_eq!(quantile(&mut spans, share * covered), expected);
        }
    }
}
