//! Findings of many jobs, and why a rule found something or not.

use met_core::reaction::Reaction;
use met_insight::answers::FollowUp;
use met_insight::answers::words::{amounts, saving};
use met_insight::check::{self, Checked, Group, Wanted};
use met_insight::finding::{Evidence, Saving};
use met_insight::lineage::Lineage;
use met_insight::report::Amount;
use met_insight::rules::{Explanation, Rule, fields};

use super::{Paint, Style, text};
use met_core::units;
use met_insight::report::words::marked;

const COLUMNS: usize = 80;
/// Jobs that a line names.
const NAMED_MAX: usize = 5;

fn room(style: &Style) -> usize {
    style.width.unwrap_or(COLUMNS).clamp(40, COLUMNS)
}

pub fn checked(checked: &Checked<'_>, style: &Style) -> String {
    let mut drawn = groups(&check::groups(&checked.findings), checked.jobs, style);
    let (taken, not_taken): (Vec<&FollowUp>, Vec<&FollowUp>) =
        checked.followed.iter().partition(|one| one.is_taken);
    if !checked.followed.is_empty() {
        let saved = taken.iter().fold(Saving::default(), |sum, one| sum.plus(&one.saving));
        let saved = amounts(&saved).map(|saved| format!(", saved {saved}")).unwrap_or_default();
        let (yes, no) = (taken.len(), not_taken.len());
        let line = format!("requests of next runs: {yes} as advised{saved}; {no} as before");
        drawn += &(text::wrap(&line, room(style)).join("\n") + "\n");
    }
    if checked.hidden.is_empty() {
        return drawn;
    }
    if !checked.with_hidden {
        let line = format!(
            "{} muted or acknowledged; --all shows them, `met mute` lists them",
            units::counted(checked.hidden.len(), "finding")
        );
        return drawn + &text::wrap(&line, room(style)).join("\n") + "\n";
    }
    drawn += "\nMuted or acknowledged:\n";
    for (finding, reaction) in &checked.hidden {
        let who = finding.user.as_deref().map_or("-".to_owned(), text::escape);
        let line = format!(
            "{who}  {}  {}: {}",
            finding.rule,
            text::escape(&finding.subject),
            reaction_words(reaction)
        );
        drawn += &(text::wrap(&line, room(style)).join("\n  ") + "\n");
    }
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// Jobs that are sampled more often because rules want it.
pub fn watched(watched: &[Wanted<'_>], style: &Style) -> String {
    if watched.is_empty() {
        return String::new();
    }
    let one = |wanted: &Wanted<'_>| {
        let lasting = units::duration_long(wanted.wanted_for.as_secs_f64());
        format!("{} ({}, for {lasting})", text::escape(&wanted.record.label()), wanted.rule)
    };
    let named = watched.iter().take(NAMED_MAX).map(one).collect::<Vec<_>>().join(", ");
    let more = if watched.len() > NAMED_MAX { ", …" } else { "" };
    let line = format!("sampled more often: {}: {named}{more}", units::counted(watched.len(), "job"));
    let drawn = text::wrap(&line, room(style)).join("\n") + "\n";
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// What was done, by whom, when and until when.
fn reaction_words(one: &Reaction) -> String {
    let zone = super::local_zone();
    let until = one.until_ns.map(|ns| format!(" until {}", units::time(ns, &zone))).unwrap_or_default();
    let (kind, at) = (one.kind.name(), units::time(one.at_ns, &zone));
    format!("{kind} by {} on {at}{until}", text::escape(&one.by))
}

/// The list of `met mute`.
pub fn reactions(reactions: &[Reaction], style: &Style) -> String {
    let width = reactions.iter().map(|one| one.rule.len()).max().unwrap_or(0);
    let line = |one: &Reaction| {
        let of = match Lineage::of_key(&one.user, &one.lineage) {
            Some(lineage) => lineage.to_string(),
            None => format!("the jobs of {}", one.user),
        };
        let words =
            format!("{}  {}: {}", text::pad(&one.rule, width), text::escape(&of), reaction_words(one));
        text::hanging(&words, width + 2, style)
    };
    let drawn: String = reactions.iter().map(line).collect();
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

fn groups(groups: &[Group], jobs: usize, style: &Style) -> String {
    if groups.is_empty() {
        return format!("no findings in {}\n", units::counted(jobs, "job"));
    }
    let mut lines = Vec::new();
    for group in groups {
        let who = group.user.as_deref().map_or("-".to_owned(), text::escape);
        let count = units::counted(group.count, if group.is_sum { "week" } else { "job" });
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
    let (findings, jobs) = (units::counted(groups.len(), "finding"), units::counted(jobs, "job"));
    lines.push(format!("{findings} in {jobs}; why: met explain JOB RULE, or --user NAME RULE for weeks"));
    let drawn = lines.join("\n") + "\n";
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
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
    marked(&Amount { value, measure, quality })
}

/// All of one rule, or a line for each.
pub fn explanations(explained: &[(&Rule, Explanation)], is_one: bool, style: &Style) -> String {
    match is_one {
        true => explained.iter().map(|(rule, of)| self::explained(rule, of, style)).collect(),
        false => summary(explained, style),
    }
}

/// Columns below which values do not line up.
const NARROW: usize = 60;

fn explained(rule: &Rule, explanation: &Explanation, style: &Style) -> String {
    let mut lines = vec![String::new(), style.paint(Paint::Bold, &rule.name)];
    for step in explanation.steps.iter().chain(&explanation.watch) {
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
    let evidence = explanation.evidence.iter().map(|evidence| evidence.name);
    let width = evidence.chain(explanation.unknown.iter().copied()).map(str::len).max().unwrap_or(0);
    for evidence in &explanation.evidence {
        let coverage = evidence.coverage.map(|share| format!(", covers {}", units::percent(share)));
        let how = format!("{}{}", evidence.quality.name(), coverage.unwrap_or_default());
        let value = text::pad(&written(evidence), if room(style) < NARROW { 0 } else { 12 });
        lines.push(format!(
            "  {}  {value}  {}",
            text::pad(evidence.name, width),
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
        None => format!("not reported: {}", silence(explanation)),
    };
    lines.push(String::new());
    lines.extend(text::wrap(&text::escape(&result), room(style)));
    let drawn = lines.join("\n") + "\n";
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// The first thing that kept a rule silent.
fn silence(explanation: &Explanation) -> String {
    match explanation.steps.iter().find(|step| step.passed != Some(true)) {
        // A number that is at least so much is known, and still decides nothing.
        Some(step) if step.passed.is_none() && explanation.unknown.is_empty() => {
            format!("cannot be decided: {}", step.asked)
        }
        Some(step) if step.passed.is_none() => format!("unknown: {}", explanation.unknown.join(", ")),
        Some(step) => format!("does not hold: {}", step.asked),
        None => "a number of its message is unknown".to_owned(),
    }
}

/// One line per rule: found, or the first thing that kept it silent.
fn summary(explained: &[(&Rule, Explanation)], style: &Style) -> String {
    let width = explained.iter().map(|(rule, _)| rule.name.len()).max().unwrap_or(0);
    let line = |(rule, explanation): &(&Rule, Explanation)| {
        let is_found = explanation.finding.is_some();
        let why = if is_found { "found".to_owned() } else { silence(explanation) };
        let room = style.width.map_or(usize::MAX, |columns| columns.saturating_sub(width + 4).max(20));
        let names = [rule.name.as_str()].into_iter().chain(std::iter::repeat(""));
        let lines = names.zip(text::words(&text::escape(&why), room));
        lines.map(|(name, line)| format!("  {}  {line}\n", text::pad(name, width))).collect::<String>()
    };
    let drawn: String = explained.iter().map(line).collect();
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}
