//! Sentences with numbers in them: `{cores} of {cpus} cores`, `{wall * 2:seconds}`, `{directive_memory}`.

use met_core::job::QualityKind;
use met_core::units;

use super::condition::{self, Expr, Stat, Type};
use super::evaluate::{Evaluation, Subject};
use super::fields::Shown;
use super::user::UserSum;
use crate::answers::{Job, directives};
use crate::report::Measure;
use crate::report::words::mark;
use crate::scale::System;
use crate::{gpu, scale};

#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Words(String),
    Number(Expr, Measure),
    /// A request as the job's scheduler reads it.
    Directive(String),
}

const DIRECTIVE: &str = "directive_";
/// `one_core` is that of CPUs where it is for one; `smaller_gpu` and `without_gpus` say where it would fit: in a MIG
/// instance or on one of the configured systems, and `larger_system` where the jobs of a user would; `less_gpu` says what
/// less there is, of one GPU and of several.
const DIRECTIVES: [&str; 9] = [
    "memory",
    "cpus",
    "one_core",
    "time",
    "gpus",
    "smaller_gpu",
    "less_gpu",
    "without_gpus",
    "larger_system",
];
const MEASURES: [(&str, Measure); 7] = [
    ("share", Measure::Share),
    ("bytes", Measure::Bytes),
    ("seconds", Measure::Seconds),
    ("cores", Measure::Cores),
    ("count", Measure::Count),
    ("rate", Measure::BytesPerSecond),
    ("watts", Measure::Watts),
];

impl Template {
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((words, after)) = rest.split_once('{') {
            let (inner, behind) =
                after.split_once('}').ok_or_else(|| format!("\"{{\" without \"}}\" in {text:?}"))?;
            parts.push(Part::Words(words.to_owned()));
            parts.push(number(inner)?);
            rest = behind;
        }
        parts.push(Part::Words(rest.to_owned()));
        Ok(Template { parts })
    }

    /// Whether it has a request for this resource.
    pub fn asks_for(&self, resource: &str) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Directive(name) if name == resource))
    }

    /// The numbers in it.
    pub fn exprs(&self) -> impl Iterator<Item = &Expr> {
        self.parts.iter().filter_map(|part| match part {
            Part::Number(expr, _) => Some(expr),
            Part::Words(_) | Part::Directive(_) => None,
        })
    }

    /// `None` if a number of it is not known.
    pub fn text(&self, subject: Subject<'_>) -> Option<String> {
        let mut evaluation = Evaluation::of(subject, false);
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Words(words) => text.push_str(words),
                Part::Number(expr, measure) => {
                    let number = written(evaluation.number(expr)?, *measure);
                    text.push_str(&units::marked(sign(expr, subject), &number));
                }
                Part::Directive(resource) => text.push_str(&match subject {
                    Subject::Job(job) => directive(job, resource)?,
                    Subject::User(user, systems) => of_user(user, systems, resource)?,
                }),
            }
        }
        Some(text)
    }
}

/// Samples may count less than there was.
fn sign(expr: &Expr, subject: Subject<'_>) -> &'static str {
    match expr {
        Expr::Metric(stat, index) if *stat != Stat::Total => {
            let quality = subject.metric(*stat, *index).map(|fact| fact.quality);
            let bound = quality.filter(|&quality| quality == QualityKind::LowerBound);
            bound.and_then(mark).map_or("", |(sign, _)| sign)
        }
        _ => "",
    }
}

fn of_user(user: &UserSum, systems: &[System], resource: &str) -> Option<String> {
    let system = (resource == "larger_system").then(|| scale::larger_system(user, systems))??;
    Some(system.name.clone())
}

fn directive(job: &Job<'_>, resource: &str) -> Option<String> {
    match resource {
        "smaller_gpu" => {
            let system = scale::with_smaller_gpus(job.record, job.systems).map(|system| system.name.clone());
            let part = gpu::part_words(job.record).map(|part| format!("a MIG instance {part}"));
            let places: Vec<String> = part.into_iter().chain(system).collect();
            return (!places.is_empty()).then(|| places.join(", or "));
        }
        "less_gpu" => return gpu::less_words(job.record).map(str::to_owned),
        "without_gpus" => return Some(scale::without_gpus(job.record, job.systems)?.name.clone()),
        _ => {}
    }
    let mut known = directives::directives(job).into_iter();
    let found = known.find(|it| match resource {
        "one_core" => it.resource == "cpus" && it.value == 1.0,
        resource => it.resource == resource,
    })?;
    Some(found.text)
}

fn number(inner: &str) -> Result<Part, String> {
    if let Some(resource) = inner.strip_prefix(DIRECTIVE) {
        return match DIRECTIVES.contains(&resource) {
            true => Ok(Part::Directive(resource.to_owned())),
            false => Err(format!("no directive {resource:?}; known: {}", DIRECTIVES.join(", "))),
        };
    }
    let (text, shown) = inner.split_once(':').map_or((inner, None), |(text, shown)| (text, Some(shown)));
    let (expr, kind) = condition::parse(text)?;
    let measure = match (shown, &expr) {
        (Some(shown), _) => {
            let known = MEASURES.iter().find(|(name, _)| *name == shown);
            let names = MEASURES.map(|(name, _)| name).join(", ");
            known.ok_or_else(|| format!("{shown:?} is not one of {names}"))?.1
        }
        (None, Expr::Field(field)) => field.shown.0,
        (None, Expr::Metric(stat, index)) => super::evaluate::measure(*stat, *index),
        (None, _) => return Err(format!("say how to write {{{text}}}, as in {{{text}:count}}")),
    };
    let fits = match kind {
        Type::Number(dim) => dim == Shown(measure).dim() || matches!(expr, Expr::Metric(..)),
        Type::Truth => false,
    };
    match fits {
        true => Ok(Part::Number(expr, measure)),
        false => Err(format!("{{{inner}}} is {kind}")),
    }
}

/// A number as sentences have it.
pub fn written(value: f64, measure: Measure) -> String {
    match measure {
        Measure::Seconds => units::duration_long(if value >= 60.0 { value.round() } else { value }),
        Measure::Bytes => units::bytes(value),
        Measure::BytesPerSecond => units::bytes_per_second(value),
        Measure::Share => units::percent(value),
        Measure::Joules => units::watt_hours(value),
        Measure::Grams => units::grams(value),
        Measure::Money => units::money(value),
        Measure::Watts => units::watts(value),
        Measure::Celsius => units::celsius(value),
        Measure::Hertz => units::hertz(value),
        Measure::Count | Measure::Number => units::count(value),
        Measure::Cores | Measure::Gpus => units::cores(value),
    }
}
