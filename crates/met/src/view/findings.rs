//! Findings of many jobs, and why a rule found something or not.

use met_insight::answers::words::saving;
use met_insight::check::Group;
use met_insight::finding::{self, Evidence};
use met_insight::report::Amount;
use met_insight::rules::{Explanation, Rule, fields};
use serde_json::{Value, json};

use super::{Paint, Style, text};
use met_core::units;
use met_insight::report::words::amount;

const COLUMNS: usize = 80;

fn room(style: &Style) -> usize {
    style.width.unwrap_or(COLUMNS).clamp(40, COLUMNS)
}

pub fn groups(groups: &[Group], jobs: usize, style: &Style) -> String {
    if groups.is_empty() {
        return format!("no findings in {jobs} jobs\n");
    }
    let mut lines = Vec::new();
    for group in groups {
        let who = group.user.as_deref().map_or("-".to_owned(), text::escape);
        let unit = if group.is_sum { "week" } else { "job" };
        let count = match group.count {
            1 => format!("1 {unit}"),
            count => format!("{count} {unit}s"),
        };
        let head = format!("{who}  {}", group.rule);
        let saves = saving(&group.saving).map(|saves| format!(", {saves}")).unwrap_or_default();
        lines.push(format!("{}  {count}{saves}", style.paint(Paint::Bold, &head)));
        for words in [&group.what, &group.how] {
            lines.extend(
                text::wrap(&text::escape(words), room(style) - 2).into_iter().map(|line| format!("  {line}")),
            );
        }
        let named = text::escape(&group.subjects.join(", "));
        let more = if group.count > group.subjects.len() && !group.is_sum { ", …" } else { "" };
        lines.extend(
            text::wrap(&format!("{named}{more}"), room(style) - 2)
                .iter()
                .map(|line| format!("  {}", style.paint(Paint::Dim, line))),
        );
        lines.push(String::new());
    }
    lines.push(format!("{} findings in {jobs} jobs; why: met explain JOB RULE", groups.len()));
    let drawn = lines.join("\n") + "\n";
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

pub fn group(group: &Group) -> Value {
    json!({
        "user": group.user,
        "rule": group.rule,
        "severity": group.severity.name(),
        "count": group.count,
        "saving": finding::saving(&group.saving),
        "subjects": group.subjects,
        "what": group.what,
        "how": group.how,
    })
}

/// The fields that conditions may name.
pub fn fields(style: &Style) -> String {
    let width = fields::FIELDS.iter().map(|field| field.name.len()).max().unwrap_or(0);
    let line = |field: &fields::Field| {
        let of = if field.is_of_users() { "of a user: " } else { "" };
        text::hanging(&format!("{}  {of}{}", text::pad(field.name, width), field.help), width + 2, style)
    };
    fields::FIELDS.iter().map(line).collect()
}

fn written(evidence: &Evidence) -> String {
    let Evidence { value, measure, quality, .. } = *evidence;
    amount(&Amount { value, measure, quality })
}

pub fn explained(rule: &Rule, explanation: &Explanation, style: &Style) -> String {
    let mut lines = vec![String::new(), style.paint(Paint::Bold, &rule.name)];
    for step in &explanation.steps {
        let answer = match step.passed {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        let words = text::wrap(&text::escape(&step.asked), room(style) - 11);
        for (index, line) in words.iter().enumerate() {
            lines.push(format!("  {}  {line}", text::pad(if index == 0 { answer } else { "" }, 7)));
        }
    }
    lines.push(String::new());
    let width = explanation.evidence.iter().map(|evidence| evidence.name.len()).max().unwrap_or(0);
    for evidence in &explanation.evidence {
        let coverage = evidence.coverage.map(|share| format!(", covers {}", units::percent(share)));
        let how = format!("{}{}", evidence.quality.name(), coverage.unwrap_or_default());
        let value = text::pad(&written(evidence), 12);
        lines.push(format!(
            "  {}  {value}  {}",
            text::pad(&evidence.name, width),
            style.paint(Paint::Dim, &how)
        ));
    }
    for name in &explanation.unknown {
        lines.push(format!("  {}  unknown", text::pad(name, width)));
    }
    let result = match &explanation.finding {
        Some(finding) => {
            let saves = saving(&finding.saving).map(|saves| format!("; {saves}")).unwrap_or_default();
            format!("found: {}. {}{saves}", finding.what, finding.how)
        }
        None => "silent".to_owned(),
    };
    lines.push(String::new());
    lines.extend(text::wrap(&text::escape(&result), room(style)));
    let drawn = lines.join("\n") + "\n";
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// One line per rule: found, or the first thing that kept it silent.
pub fn summary(explained: &[(&Rule, Explanation)], style: &Style) -> String {
    let width = explained.iter().map(|(rule, _)| rule.name.len()).max().unwrap_or(0);
    let line = |(rule, explanation): &(&Rule, Explanation)| {
        let why = match explanation.steps.iter().find(|step| step.passed != Some(true)) {
            _ if explanation.finding.is_some() => "found".to_owned(),
            Some(step) if step.passed.is_none() => {
                format!("unknown: {}", explanation.unknown.join(", "))
            }
            Some(step) => format!("no: {}", step.asked),
            None => "silent".to_owned(),
        };
        let line = format!("  {}  {}", text::pad(&rule.name, width), text::escape(&why));
        text::hanging(&line, width + 4, style)
    };
    let drawn: String = explained.iter().map(line).collect();
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

pub fn explanation(rule: &Rule, explanation: &Explanation) -> Value {
    let steps = explanation.steps.iter().map(|step| json!({ "asked": step.asked, "passed": step.passed }));
    let evidence = explanation.evidence.iter().map(|evidence| {
        json!({
            "name": evidence.name,
            "value": evidence.value,
            "quality": evidence.quality.name(),
            "coverage_ratio": evidence.coverage,
        })
    });
    json!({
        "rule": rule.name,
        "steps": steps.collect::<Vec<_>>(),
        "why": evidence.collect::<Vec<_>>(),
        "unknown": explanation.unknown,
        "finding": explanation.finding.as_ref().map(finding::object),
    })
}
