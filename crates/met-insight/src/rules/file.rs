//! The YAML of rules. What is wrong is named with its line and key.

use std::fmt;
use std::time::Duration;

use met_core::cadence::WANTED_FOR_MAX;
use met_core::reaction::RULE_BYTES_MAX;
use serde::Deserialize;
use serde_saphyr::Spanned;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::condition::{self, Dim, Expr};
use super::template::Template;
use super::{Counter, Gates, Rule, Rules, Saves, Scope, Sentences, Watch, contradiction};
use crate::finding::Severity;

const BYTES_MAX: usize = 1 << 20;
const RULES_MAX: usize = 500;
/// No job has as many: a rule with such a gate would never speak.
const LENGTH_MAX_S: f64 = 3650.0 * 86_400.0;
const SAMPLES_MAX: usize = 1_000_000;
const HOURS_MAX: f64 = 1e9;

/// What is wrong with a file of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub line: u64,
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "line {}: {}", self.line, self.message)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    gates: GatesOf,
    rules: Vec<RuleOf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleOf {
    name: Spanned<String>,
    #[serde(default)]
    about: ScopeOf,
    severity: SeverityOf,
    when: Spanned<String>,
    #[serde(default)]
    unless: Vec<CounterOf>,
    #[serde(default)]
    replaces: Vec<Spanned<String>>,
    #[serde(default)]
    gates: GatesOf,
    watch: Option<WatchOf>,
    what: Spanned<String>,
    how: Spanned<String>,
    otherwise: Option<Spanned<String>>,
    #[serde(default)]
    saves: SavesOf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CounterOf {
    when: Spanned<String>,
    because: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct GatesOf {
    coverage: Option<Spanned<String>>,
    length: Option<Spanned<String>>,
    samples: Option<Spanned<usize>>,
    core_hours: Option<Spanned<f64>>,
    gpu_hours: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchOf {
    when: Option<Spanned<String>>,
    #[serde(rename = "for")]
    wanted_for: Spanned<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavesOf {
    core_time: Option<Spanned<String>>,
    gpu_time: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScopeOf {
    #[default]
    Job,
    User,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum SeverityOf {
    Info,
    Low,
    Medium,
    High,
}

pub fn parse(yaml: &str) -> Result<Rules, Mistake> {
    if yaml.len() > BYTES_MAX {
        return Err(Mistake { line: 1, message: format!("longer than {} MiB", BYTES_MAX >> 20) });
    }
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::Error, with_snippet: false };
    let file: File = serde_saphyr::from_str_with_options(yaml, options).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map_or(1, |location| location.line().max(1));
        let message = error.to_string();
        let first = message.lines().next().unwrap_or(&message);
        let place = first.rfind(" at line ").or_else(|| first.rfind(" (line ")).unwrap_or(first.len());
        Mistake { line, message: first[..place].trim_end_matches([',', ':']).to_owned() }
    })?;
    if file.rules.len() > RULES_MAX {
        return Err(Mistake { line: 1, message: format!("more than {RULES_MAX} rules") });
    }
    let defaults = gates(&file.gates, Gates::default())?;
    let mut rules: Vec<Rule> = Vec::new();
    for of in &file.rules {
        let found = rule(of, defaults)?;
        if rules.iter().any(|known| known.name == found.name) {
            return Err(at(&of.name, format!("a second rule named {:?}", found.name)));
        }
        rules.push(found);
    }
    for replaced in file.rules.iter().flat_map(|of| &of.replaces) {
        if rules.iter().all(|rule| rule.name != replaced.value) {
            return Err(at(replaced, format!("replaces: no rule named {:?}", replaced.value)));
        }
    }
    Ok(Rules { rules, ..Rules::default() })
}

fn at<T>(text: &Spanned<T>, message: String) -> Mistake {
    Mistake { line: text.referenced.line(), message }
}

fn read<T>(
    text: &Spanned<String>,
    key: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, Mistake> {
    read(&text.value).map_err(|message| at(text, format!("{key}: {message}")))
}

fn number(text: &Option<Spanned<String>>, key: &str, dim: Dim) -> Result<Option<Expr>, Mistake> {
    text.as_ref().map(|text| read(text, key, |text| condition::number(text, dim))).transpose()
}

fn rule(of: &RuleOf, defaults: Gates) -> Result<Rule, Mistake> {
    let name = of.name.value.clone();
    let is_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(at(&of.name, format!("name: {name:?} has other characters than a-z, 0-9 and _")));
    }
    if name.len() > RULE_BYTES_MAX {
        return Err(at(&of.name, format!("name: {name:?} is longer than {RULE_BYTES_MAX} characters")));
    }
    let counter = |of: &CounterOf| {
        Ok(Counter {
            when: read(&of.when, "unless.when", condition::condition)?,
            when_text: of.when.value.clone(),
            because: of.because.clone(),
        })
    };
    let template = |text: &Spanned<String>, key: &str| read(text, key, Template::parse);
    let scope = match of.about {
        ScopeOf::Job => Scope::Job,
        ScopeOf::User => Scope::User,
    };
    let gates = gates(&of.gates, defaults)?;
    let watch = of.watch.as_ref().map(|watch| watch_of(watch, of)).transpose()?;
    Ok(Rule {
        scope,
        severity: match of.severity {
            SeverityOf::Info => Severity::Info,
            SeverityOf::Low => Severity::Low,
            SeverityOf::Medium => Severity::Medium,
            SeverityOf::High => Severity::High,
        },
        when: read(&of.when, "when", |text| possible(text, scope, Some(&gates)))?,
        when_text: of.when.value.split_whitespace().collect::<Vec<_>>().join(" "),
        unless: of.unless.iter().map(counter).collect::<Result<_, _>>()?,
        replaces: of.replaces.iter().map(|name| name.value.clone()).collect(),
        gates,
        watch,
        sentences: Sentences {
            what: template(&of.what, "what")?,
            how: template(&of.how, "how")?,
            otherwise: of.otherwise.as_ref().map(|text| template(text, "otherwise")).transpose()?,
        },
        saves: Saves {
            cores: number(&of.saves.core_time, "saves.core_time", Dim::SECONDS)?,
            gpus: number(&of.saves.gpu_time, "saves.gpu_time", Dim::SECONDS)?,
        },
        name,
    })
}

/// A condition that something can meet; `gates`: that must be passed as well.
fn possible(text: &str, scope: Scope, gates: Option<&Gates>) -> Result<Expr, String> {
    let when = condition::condition(text)?;
    match contradiction::reason(&when, scope, gates) {
        None => Ok(when),
        Some(reason) => Err(format!("never holds: {reason}; correct or remove it")),
    }
}

/// As bounded as what daemons and servers grant.
fn watch_of(of: &WatchOf, rule: &RuleOf) -> Result<Watch, Mistake> {
    if matches!(rule.about, ScopeOf::User) {
        return Err(at(&of.wanted_for, "watch: only rules about jobs may have one".to_owned()));
    }
    let text = &of.wanted_for;
    let seconds = literal(text, "watch.for", Dim::SECONDS)?;
    if !(1.0..=WANTED_FOR_MAX.as_secs_f64()).contains(&seconds) {
        return Err(at(text, format!("watch.for: {:?} is not between 1s and 1h", text.value)));
    }
    let when = of.when.as_ref().map(|when| -> Result<_, Mistake> {
        let written = when.value.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok((read(when, "watch.when", |text| possible(text, Scope::Job, None))?, written))
    });
    Ok(Watch { when: when.transpose()?, wanted_for: Duration::from_secs_f64(seconds) })
}

impl Default for Gates {
    fn default() -> Gates {
        Gates { coverage: 0.95, length_s: 600.0, samples: 20, core_hours: 1.0, gpu_hours: 0.1 }
    }
}

fn gates(of: &GatesOf, defaults: Gates) -> Result<Gates, Mistake> {
    let given = |text: &Option<Spanned<String>>, key: &str, dim: Dim, default: f64| {
        text.as_ref().map_or(Ok(default), |text| literal(text, key, dim))
    };
    let coverage = given(&of.coverage, "gates.coverage", Dim::ONE, defaults.coverage)?;
    if let Some(text) = of.coverage.as_ref().filter(|_| coverage > 1.0) {
        let message = format!("gates.coverage: {:?} is more than all of its time; at most 100%", text.value);
        return Err(at(text, message));
    }
    let length_s = given(&of.length, "gates.length", Dim::SECONDS, defaults.length_s)?;
    if let Some(text) = of.length.as_ref().filter(|_| length_s > LENGTH_MAX_S) {
        return Err(at(
            text,
            format!("gates.length: {:?} is longer than any job; at most 3650d", text.value),
        ));
    }
    let hours = |given: &Option<Spanned<f64>>, key: &str, default: f64| match given {
        Some(hours) if !(0.0..=HOURS_MAX).contains(&hours.value) => {
            Err(at(hours, format!("gates.{key}: {} is not between 0 and {HOURS_MAX}", hours.value)))
        }
        given => Ok(given.as_ref().map_or(default, |hours| hours.value)),
    };
    let samples = of.samples.as_ref();
    if let Some(samples) = samples.filter(|samples| samples.value > SAMPLES_MAX) {
        return Err(at(samples, format!("gates.samples: {} is above {SAMPLES_MAX}", samples.value)));
    }
    Ok(Gates {
        coverage,
        length_s,
        samples: samples.map_or(defaults.samples, |samples| samples.value),
        core_hours: hours(&of.core_hours, "core_hours", defaults.core_hours)?,
        gpu_hours: hours(&of.gpu_hours, "gpu_hours", defaults.gpu_hours)?,
    })
}

/// A number that is written as one.
fn literal(text: &Spanned<String>, key: &str, dim: Dim) -> Result<f64, Mistake> {
    match read(text, key, |text| condition::number(text, dim))? {
        Expr::Number(value) => Ok(value),
        _ => Err(at(text, format!("{key}: {:?} is not a number", text.value))),
    }
}
