//! Answers in words, the same on a terminal and on a page.

use met_core::job::QualityKind;
use met_core::text::escape;
use met_core::units;

use super::compared::Kind;
use super::{Answers, Bottleneck, Difference, Directive, FollowUp, Phase, PhaseKind, Revisited};
use crate::finding::Saving;
use crate::report::words::amount;
use crate::report::{Amount, Measure};

/// More phases than this are one that alternates.
const PHASES_MAX: usize = 8;

fn plain(value: f64, measure: Measure) -> String {
    amount(&Amount { value, measure, quality: QualityKind::Measured })
}

/// One phase alone is what the averages say already.
pub fn phases(phases: &[Phase]) -> Vec<String> {
    if phases.len() < 2 {
        return Vec::new();
    }
    let word = |phase: &Phase| {
        let long = units::duration(phase.seconds());
        let counted = |number: f64, what: &str| match units::cores(number) {
            one if one == "1" => format!("1 {what}"),
            several => format!("{several} {what}s"),
        };
        let cores = phase.cores.map(|cores| counted(cores, "core"));
        let gpus = phase.gpus.filter(|&gpus| gpus >= 0.05).map(|gpus| counted(gpus, "GPU"));
        let on = match phase.kind {
            PhaseKind::Compute => cores.into_iter().chain(gpus).collect::<Vec<_>>().join(" and "),
            _ => String::new(),
        };
        let on = if on.is_empty() { on } else { format!(" on {on}") };
        format!("{} {long}{on}", phase.kind.name())
    };
    let mut words: Vec<String> = phases.iter().take(PHASES_MAX).map(word).collect();
    if phases.len() > PHASES_MAX {
        words.push(format!("{} more", phases.len() - PHASES_MAX));
    }
    words
}

/// What limited the job, and what that was concluded from.
pub fn bottleneck(bottleneck: &Bottleneck) -> Vec<String> {
    [bottleneck.limit.words().to_owned()].into_iter().chain(bottleneck.evidence.clone()).collect()
}

/// How a job differs from its earlier runs.
pub fn differences(differences: &[Difference]) -> Vec<String> {
    let Some(first) = differences.first() else { return Vec::new() };
    let word = |difference: &Difference| {
        let value = |value: f64| plain(value, difference.measure);
        let now = format!("{} {}", difference.what, value(difference.value));
        match &difference.kind {
            Kind::Normal => None,
            Kind::Outlier => Some(format!("{now}, usually {}", value(difference.median))),
            Kind::Since(label, _) => {
                Some(format!("{now} since job {}, before {}", escape(label), value(difference.median)))
            }
        }
    };
    let words: Vec<String> = differences.iter().filter_map(word).collect();
    match words.is_empty() {
        true => vec![format!("like the last {}", first.runs)],
        false => words,
    }
}

/// Instead of what, and by which runs a request would have been enough.
pub fn directive(directive: &Directive) -> String {
    let measure = match directive.resource {
        "memory" => Measure::Bytes,
        "time" => Measure::Seconds,
        _ => Measure::Cores,
    };
    let asked = directive.asked.map(|value| format!("instead of {}, ", plain(value, measure)));
    let runs = if directive.runs == 1 { "by this run" } else { "by the last runs" };
    format!("{}{runs}", asked.unwrap_or_default())
}

/// Whether the requests that the run before gave were made, and what that saved.
pub fn followed(answers: &Answers) -> Vec<String> {
    let word = |one: &FollowUp| {
        let written = |value: f64| match one.resource {
            "memory" => format!("{} of memory", plain(value, Measure::Bytes)),
            "time" => format!("a limit of {}", plain(value, Measure::Seconds)),
            "gpus" if value == 1.0 => "1 GPU".to_owned(),
            "gpus" => format!("{value} GPUs"),
            _ if value == 1.0 => "1 CPU".to_owned(),
            _ => format!("{value} CPUs"),
        };
        let job = escape(&one.job);
        let saved = amounts(&one.saving).map(|saved| format!(", saved {saved}")).unwrap_or_default();
        match one.is_taken {
            true => {
                format!("taken: {} after {} in job {job}{saved}", written(one.asked), written(one.before))
            }
            false => format!(
                "not taken: {} again; for job {job}, {} would do",
                written(one.asked),
                written(one.advised)
            ),
        }
    };
    let again = |one: &Revisited| match one.is_gone {
        true => format!("taken: {} of job {} is gone", one.rule, escape(&one.job)),
        false => format!("not taken: {} again, as in job {}", one.rule, escape(&one.job)),
    };
    answers.followed.iter().map(word).chain(answers.revisited.iter().map(again)).collect()
}

/// What following an advice would save.
pub fn saving(saving: &Saving) -> Option<String> {
    amounts(saving).map(|words| format!("saves {words}"))
}

pub fn amounts(saving: &Saving) -> Option<String> {
    let hours = |value: f64| if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.1}") };
    let words: Vec<String> = [
        saving.core_hours.map(|value| format!("{} core-hours", hours(value))),
        saving.gpu_hours.map(|value| format!("{} GPU-hours", hours(value))),
        saving.energy_joules.filter(|&joules| joules > 0.0).map(units::watt_hours),
        saving
            .emissions_grams
            .filter(|&grams| grams > 0.0)
            .map(|grams| format!("{} CO2e", units::grams(grams))),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!words.is_empty()).then(|| words.join(", "))
}
