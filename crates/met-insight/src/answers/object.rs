//! Answers for programs: the key `answers` of `met show --json`.

use serde_json::{Map, Value, json};

use super::compared::{Difference, Kind};
use super::{Answers, Directive, FollowUp, Phase, Revisited};
use crate::finding;
use crate::json::time;

pub fn object(answers: &Answers) -> Value {
    let mut object = json!({
        "verdict": answers.verdict,
        "bottleneck": answers.bottleneck.as_ref().map(|bottleneck| json!({
            "limit": bottleneck.limit.name(),
            "evidence": bottleneck.evidence,
        })),
    });
    let lists = [
        ("phases", answers.phases.iter().map(phase).collect::<Vec<_>>()),
        ("imbalance", answers.imbalance.iter().map(|words| json!(words)).collect()),
        ("findings", answers.findings.iter().map(finding::object).collect()),
        ("directives", answers.directives.iter().map(directive).collect()),
        ("differences", answers.differences.iter().map(difference).collect()),
        ("followed", answers.followed.iter().map(followed).collect()),
        ("followed_findings", answers.revisited.iter().map(revisited).collect()),
    ];
    for (name, list) in lists {
        object[name] = Value::Array(list);
    }
    object
}

fn phase(phase: &Phase) -> Value {
    let known = [("cores", phase.cores), ("io_wait_ratio", phase.io_wait), ("gpus", phase.gpus)];
    let mut object = Map::from_iter([
        ("kind".to_owned(), json!(phase.kind.name())),
        ("begin_seconds".to_owned(), json!(phase.begin_s)),
        ("end_seconds".to_owned(), json!(phase.end_s)),
    ]);
    let known = known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?))));
    object.extend(known);
    Value::Object(object)
}

fn directive(directive: &Directive) -> Value {
    json!({
        "resource": directive.resource,
        "text": directive.text,
        "value": directive.value,
        "requested": directive.asked,
        "runs": directive.runs,
    })
}

fn followed(one: &FollowUp) -> Value {
    json!({
        "resource": one.resource,
        "job": one.job,
        "before": one.before,
        "advised": one.advised,
        "requested": one.asked,
        "taken": one.is_taken,
        "saving": finding::saving(&one.saving),
    })
}

fn revisited(one: &Revisited) -> Value {
    json!({ "rule": one.rule, "job": one.job, "what": one.what, "taken": one.is_gone })
}

pub fn difference(difference: &Difference) -> Value {
    let (kind, since) = match &difference.kind {
        Kind::Normal => ("normal", None),
        Kind::Outlier => ("outlier", None),
        Kind::Since(label, start_ns) => {
            ("changed", Some(json!({ "job": label, "start": start_ns.and_then(time) })))
        }
    };
    json!({
        "metric": difference.key,
        "value": difference.value,
        "median": difference.median,
        "low": difference.low,
        "high": difference.high,
        "runs": difference.runs,
        "kind": kind,
        "since": since,
    })
}
