//! Conditions that nothing can meet: a rule with one is a mistake, not a rule that is silent.
//!
//! Only what is certain is refused: each alternative of a condition is a list of comparisons, and is impossible if two of
//! them exclude each other, if a number cannot have such a value, or if it is never known.

use met_core::{JOB, Kind, Unit};

use super::condition::{Compare, Expr, Math};
use super::evaluate::{measure, metric_name};
use super::outlook::{self, Possible};
use super::template::written;
use super::{Gates, Scope, fields};
use crate::report::Measure;

/// Of a condition with more alternatives nothing is said.
const ALTERNATIVES_MAX: usize = 64;

/// Why a condition can never hold.
pub fn reason(when: &Expr, scope: Scope, gates: Option<&Gates>) -> Option<String> {
    let mut first = None;
    for alternative in alternatives(when, false)? {
        let reason = Bounds::of(&alternative, scope, gates).err()?;
        first.get_or_insert(reason);
    }
    first
}

/// A comparison or `known(…)`, as it is or negated.
type Term<'e> = (&'e Expr, bool);

/// `None` if there are too many.
fn alternatives(expr: &Expr, is_negated: bool) -> Option<Vec<Vec<Term<'_>>>> {
    match (expr, is_negated) {
        (Expr::Not(inner), _) => alternatives(inner, !is_negated),
        (Expr::And(left, right), false) | (Expr::Or(left, right), true) => {
            let (left, right) = (alternatives(left, is_negated)?, alternatives(right, is_negated)?);
            let all = left.iter().flat_map(|one| right.iter().map(move |other| [&one[..], other].concat()));
            (left.len() * right.len() <= ALTERNATIVES_MAX).then(|| all.collect())
        }
        (Expr::And(left, right), true) | (Expr::Or(left, right), false) => {
            let mut all = alternatives(left, is_negated)?;
            all.extend(alternatives(right, is_negated)?);
            (all.len() <= ALTERNATIVES_MAX).then_some(all)
        }
        (term, _) => Some(vec![vec![(term, is_negated)]]),
    }
}

/// What comparisons leave of one number, or of the difference of two.
struct Bound<'e> {
    of: &'e Expr,
    /// `None`: what is compared is a number.
    minus: Option<&'e Expr>,
    /// Each with whether it is excluded itself.
    low: (f64, bool),
    high: (f64, bool),
    excluded: Vec<f64>,
}

#[derive(Default)]
struct Bounds<'e> {
    bounds: Vec<Bound<'e>>,
}

impl<'e> Bounds<'e> {
    /// What is left by all terms, or why nothing is.
    fn of(terms: &[Term<'e>], scope: Scope, gates: Option<&Gates>) -> Result<Bounds<'e>, String> {
        let mut bounds = Bounds::default();
        let unknown: Vec<&Expr> = terms.iter().filter_map(|term| unknown(term)).collect();
        for &(term, is_negated) in terms {
            let (compare, left, right) = match (term, is_negated) {
                (Expr::Compare(compare, left, right), false) => (*compare, left, right),
                (Expr::Compare(compare, left, right), true) => (opposite(*compare), left, right),
                (Expr::Known(inner), false) => {
                    is_knowable(inner, scope, &unknown)?;
                    continue;
                }
                _ => continue,
            };
            is_knowable(left, scope, &unknown)?;
            is_knowable(right, scope, &unknown)?;
            bounds.add(compare, left, right, gates.filter(|_| scope == Scope::Job))?;
        }
        Ok(bounds)
    }

    fn add(
        &mut self,
        compare: Compare,
        left: &'e Expr,
        right: &'e Expr,
        gates: Option<&Gates>,
    ) -> Result<(), String> {
        match (constant(left), constant(right)) {
            (Some(one), Some(other)) => {
                let truth = outlook::compared(compare, exactly(one), exactly(other));
                let text = || format!("{} is compared with {}", described(left), described(right));
                truth.may_hold().then_some(()).ok_or_else(text)
            }
            (None, Some(value)) => self.bound(compare, left, None, value, gates),
            (Some(value), None) => self.bound(swapped(compare), right, None, value, gates),
            (None, None) => {
                let is_known = |bound: &Bound<'_>| bound.of == right && bound.minus == Some(left);
                match self.bounds.iter().any(is_known) {
                    true => self.bound(swapped(compare), right, Some(left), 0.0, gates),
                    false => self.bound(compare, left, Some(right), 0.0, gates),
                }
            }
        }
    }

    fn bound(
        &mut self,
        compare: Compare,
        of: &'e Expr,
        minus: Option<&'e Expr>,
        value: f64,
        gates: Option<&Gates>,
    ) -> Result<(), String> {
        let (of, value) = if minus.is_none() { unscaled(of, value) } else { (of, value) };
        let index = match self.bounds.iter().position(|bound| bound.of == of && bound.minus == minus) {
            Some(index) => index,
            None => {
                self.bounds.push(Bound::new(of, minus, gates));
                self.bounds.len() - 1
            }
        };
        let bound = &mut self.bounds[index];
        let before = (bound.low, bound.high);
        match compare {
            Compare::Less => bound.lower((value, true)),
            Compare::LessOrEqual => bound.lower((value, false)),
            Compare::Greater => bound.raise((value, true)),
            Compare::GreaterOrEqual => bound.raise((value, false)),
            Compare::Equal => {
                bound.lower((value, false));
                bound.raise((value, false));
            }
            Compare::NotEqual => bound.excluded.push(value),
        }
        if bound.is_empty() { Err(bound.contradiction(compare, value, before)) } else { Ok(()) }
    }
}

impl<'e> Bound<'e> {
    fn new(of: &'e Expr, minus: Option<&'e Expr>, gates: Option<&Gates>) -> Bound<'e> {
        let range = match minus {
            None => range(of),
            Some(minus) => outlook::calculated(Math::Subtract, range(of), range(minus)),
        };
        let (mut low, high) = range.range().unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
        if let (Expr::Field(field), Some(gates), None) = (of, gates, minus)
            && field.name == fields::WALL
        {
            low = low.max(gates.length_s);
        }
        Bound { of, minus, low: (low, false), high: (high, false), excluded: Vec::new() }
    }

    fn raise(&mut self, (value, is_out): (f64, bool)) {
        if value > self.low.0 || value == self.low.0 && is_out {
            self.low = (value, is_out);
        }
    }

    fn lower(&mut self, (value, is_out): (f64, bool)) {
        if value < self.high.0 || value == self.high.0 && is_out {
            self.high = (value, is_out);
        }
    }

    fn is_empty(&self) -> bool {
        let ((low, low_out), (high, high_out)) = (self.low, self.high);
        low > high || low == high && (low_out || high_out || self.excluded.contains(&low))
    }

    fn contradiction(&self, compare: Compare, value: f64, (low, high): ((f64, bool), (f64, bool))) -> String {
        let name = described(self.of);
        if let Some(minus) = self.minus {
            return format!("two comparisons of {name} and {} exclude each other", described(minus));
        }
        let shown = |value: f64| match measure_of(self.of) {
            Some(measure) => written(value, measure),
            None => format!("{value}"),
        };
        let asked = match compare {
            Compare::Less => format!("below {}", shown(value)),
            Compare::LessOrEqual => format!("at most {}", shown(value)),
            Compare::Greater => format!("above {}", shown(value)),
            Compare::GreaterOrEqual => format!("at least {}", shown(value)),
            Compare::Equal => shown(value),
            Compare::NotEqual => format!("other than {}", shown(value)),
        };
        let above = |(low, is_out): (f64, bool)| match is_out {
            true => format!("above {}", shown(low)),
            false => format!("at least {}", shown(low)),
        };
        let below = |(high, is_out): (f64, bool)| match is_out {
            true => format!("below {}", shown(high)),
            false => format!("at most {}", shown(high)),
        };
        let otherwise = match value < low.0 || value == low.0 && value != high.0 {
            true => above(low),
            false => below(high),
        };
        format!("{name} cannot be {asked} where it is {otherwise}")
    }
}

/// What must be unknown for a term to hold.
fn unknown<'e>(term: &Term<'e>) -> Option<&'e Expr> {
    match term {
        (Expr::Known(inner), true) => Some(inner),
        _ => None,
    }
}

/// A comparison of what is not known is no truth.
fn is_knowable(expr: &Expr, scope: Scope, unknown: &[&Expr]) -> Result<(), String> {
    if unknown.contains(&expr) {
        return Err(format!("{} is compared and must not be known", described(expr)));
    }
    match (expr, scope) {
        (Expr::Math(_, left, right), _) => {
            is_knowable(left, scope, unknown)?;
            is_knowable(right, scope, unknown)
        }
        (Expr::Field(field), Scope::Job) if field.is_of_users() => {
            Err(format!("{} is known of users only (about: user)", field.name))
        }
        (Expr::Field(field), Scope::User) if !field.is_of_users() => {
            Err(format!("{} is known of jobs only, and the rule is about users", field.name))
        }
        (Expr::Metric(..), Scope::User) => {
            Err(format!("{} is known of jobs only, and the rule is about users", described(expr)))
        }
        _ => Ok(()),
    }
}

fn exactly(value: f64) -> Possible {
    Possible::exactly(Some(value).filter(|value| value.is_finite()))
}

/// The value of what has no name in it.
fn constant(expr: &Expr) -> Option<f64> {
    match expr {
        Expr::Number(value) => Some(*value),
        Expr::Math(math, left, right) => Some(math.of(constant(left)?, constant(right)?)),
        _ => None,
    }
}

/// `2 * cores` compared with 8 is `cores` compared with 4.
fn unscaled(expr: &Expr, value: f64) -> (&Expr, f64) {
    let by = |factor: Option<f64>| factor.filter(|factor| *factor > 0.0 && factor.is_finite());
    match expr {
        Expr::Math(Math::Multiply, left, right) => match (by(constant(left)), by(constant(right))) {
            (Some(factor), _) => unscaled(right, value / factor),
            (None, Some(factor)) => unscaled(left, value / factor),
            _ => (expr, value),
        },
        Expr::Math(Math::Divide, left, right) => match by(constant(right)) {
            Some(factor) => unscaled(left, value * factor),
            None => (expr, value),
        },
        _ => (expr, value),
    }
}

/// What a number can be of any job or user.
fn range(expr: &Expr) -> Possible {
    match expr {
        Expr::Number(value) => exactly(*value),
        Expr::Field(field) if field.is_at_most_one => Possible::within(0.0, 1.0),
        Expr::Field(_) => Possible::within(0.0, f64::INFINITY),
        Expr::Metric(_, index) => match JOB.columns[*index] {
            ref level if level.kind == Kind::Gauge && level.unit == Unit::Celsius => Possible::ANY,
            _ => Possible::within(0.0, f64::INFINITY),
        },
        Expr::Math(math, left, right) => outlook::calculated(*math, range(left), range(right)),
        _ => Possible::ANY,
    }
}

fn opposite(compare: Compare) -> Compare {
    match compare {
        Compare::Less => Compare::GreaterOrEqual,
        Compare::LessOrEqual => Compare::Greater,
        Compare::Greater => Compare::LessOrEqual,
        Compare::GreaterOrEqual => Compare::Less,
        Compare::Equal => Compare::NotEqual,
        Compare::NotEqual => Compare::Equal,
    }
}

/// With its sides exchanged.
fn swapped(compare: Compare) -> Compare {
    match compare {
        Compare::Less => Compare::Greater,
        Compare::LessOrEqual => Compare::GreaterOrEqual,
        Compare::Greater => Compare::Less,
        Compare::GreaterOrEqual => Compare::LessOrEqual,
        same => same,
    }
}

fn measure_of(expr: &Expr) -> Option<Measure> {
    match expr {
        Expr::Field(field) => Some(field.shown.0),
        Expr::Metric(stat, index) => Some(measure(*stat, *index)),
        _ => None,
    }
}

fn described(expr: &Expr) -> String {
    match expr {
        Expr::Number(value) => format!("{value}"),
        Expr::Field(field) => field.name.to_owned(),
        Expr::Metric(stat, index) => metric_name(*stat, *index).to_owned(),
        Expr::Math(math, left, right) => {
            let (left, right) = (described(left), described(right));
            match math {
                Math::Add => format!("({left} + {right})"),
                Math::Subtract => format!("({left} - {right})"),
                Math::Multiply => format!("{left} * {right}"),
                Math::Divide => format!("{left} / {right}"),
                Math::Min => format!("min({left}, {right})"),
                Math::Max => format!("max({left}, {right})"),
            }
        }
        _ => "a condition".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::condition::condition;
    use super::*;

    fn said(text: &str, scope: Scope) -> Option<String> {
        reason(&condition(text).unwrap(), scope, Some(&Gates::default()))
    }

    fn of_job(text: &str) -> String {
        said(text, Scope::Job).unwrap_or_else(|| panic!("{text} passes"))
    }

    #[test]
    fn bounds_that_exclude_each_other_are_refused() {
        assert_eq!(of_job("cores > 4 and cores < 2"), "cores cannot be below 2 where it is above 4");
        assert_eq!(of_job("cores >= 4 and cores < 4"), "cores cannot be below 4 where it is at least 4");
        assert_eq!(of_job("gpus == 1 and gpus != 1"), "gpus cannot be other than 1 where it is at most 1");
        assert_eq!(of_job("2 * cores > 8 and 4 > cores"), "cores cannot be below 4 where it is above 4");
        let exclude = "two comparisons of cores and cpus exclude each other";
        assert_eq!(of_job("cores > cpus and not cores >= cpus"), exclude);
        assert_eq!(of_job("cores > cpus and gpus > 0 and cpus > cores"), exclude);
        assert!(of_job("(cores > 4 or cores > 5) and not cores > 3").starts_with("cores cannot be"));
        assert_eq!(of_job("2 > 3"), "2 is compared with 3");
        for possible in [
            "cores >= 4 and cores <= 4",
            "cores > 4 and cpus < 2",
            "cores > 4 or cores < 2",
            "cores > cpus and gpus > cpus",
            "cores >= cpus and cpus >= cores",
            "rate(processes) > 5 / 1s and rate(processes) < 6 / 1s",
        ] {
            assert_eq!(said(possible, Scope::Job), None, "{possible}");
        }
    }

    #[test]
    fn values_that_no_number_has_are_refused() {
        assert_eq!(of_job("gpu_ratio > 150%"), "gpu_ratio cannot be above 150% where it is at most 100%");
        assert_eq!(of_job("gpu_ratio > 100%"), "gpu_ratio cannot be above 100% where it is at most 100%");
        assert!(of_job("cpus < 0").starts_with("cpus cannot be below"));
        assert!(of_job("total(cpu_seconds) < 0s and gpus > 0").starts_with("total(cpu_seconds) cannot be"));
        for possible in ["gpu_power_ratio > 120%", "gpu_ratio >= 100%", "rate(cpu_seconds) > 150%"] {
            assert_eq!(said(possible, Scope::Job), None, "{possible}");
        }
    }

    #[test]
    fn what_its_gates_leave_out_is_refused() {
        assert_eq!(of_job("wall < 5min"), "wall cannot be below 5m0s where it is at least 10m0s");
        let when = condition("wall < 5min").unwrap();
        assert_eq!(reason(&when, Scope::Job, None), None, "more samples are wanted whatever the gates are");
        assert_eq!(reason(&when, Scope::Job, Some(&Gates { length_s: 0.0, ..Gates::default() })), None);
    }

    #[test]
    fn what_is_never_known_is_refused() {
        assert_eq!(of_job("tiny_jobs > 5"), "tiny_jobs is known of users only (about: user)");
        let of_user = |text| said(text, Scope::User).unwrap();
        assert_eq!(of_user("cores < 1"), "cores is known of jobs only, and the rule is about users");
        assert!(of_user("total(cpu_seconds) > 1s").starts_with("total(cpu_seconds) is known of jobs only"));
        assert_eq!(of_job("not known(cpus) and cpus > 2"), "cpus is compared and must not be known");
        assert_eq!(said("not known(cpus) and cores > 2", Scope::Job), None);
        assert_eq!(said("known(cpus) and cpus > 2 or tiny_jobs > 5", Scope::Job), None);
        assert_eq!(said("jobs >= 5 and tiny_jobs > 50% * jobs", Scope::User), None);
    }

    proptest! {
        /// Whatever holds for some numbers is accepted.
        #[test]
        fn a_condition_that_holds_is_not_refused(
            cores in 0_i32..6, cpus in 0_i32..6,
            terms in proptest::collection::vec((0..3_usize, 0..6_usize, 0..6_i32, any::<bool>(), any::<bool>()), 1..6),
        ) {
            let signs = ["<", "<=", ">", ">=", "==", "!="];
            let mut text = String::new();
            let mut truth: Option<bool> = None;
            for (what, sign, number, is_negated, is_or) in terms {
                let (name, left, right) = match what {
                    0 => (format!("cores {} {number}", signs[sign]), cores, number),
                    1 => (format!("cpus {} {number}", signs[sign]), cpus, number),
                    _ => (format!("cores {} cpus", signs[sign]), cores, cpus),
                };
                let holds = match sign {
                    0 => left < right,
                    1 => left <= right,
                    2 => left > right,
                    3 => left >= right,
                    4 => left == right,
                    _ => left != right,
                };
                let holds = holds != is_negated;
                let term = if is_negated { format!("not {name}") } else { name };
                (text, truth) = match truth {
                    None => (term, Some(holds)),
                    Some(before) if is_or => (format!("({text} or {term})"), Some(before || holds)),
                    Some(before) => (format!("({text} and {term})"), Some(before && holds)),
                };
            }
            if truth == Some(true) {
                prop_assert_eq!(said(&text, Scope::Job), None, "{}", text);
            }
        }
    }
}
