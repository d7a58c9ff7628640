//! Messages to people: the end of a job, and what was found about their jobs.

use std::collections::{BTreeMap, HashMap};

use met_core::job::Record;
use met_core::reaction::{ReactionChange, ReactionStep, ReactionTarget};
use met_core::{text, units};
use serde_json::{Value, json};

use crate::answers::{Answers, words};
use crate::average;
use crate::check::{self, Group};
use crate::finding::{self, Finding};
use crate::lineage::lineage;

pub struct Message {
    pub title: String,
    pub body: String,
    /// The same for programs.
    pub object: Value,
}

/// Of the end of a job.
pub fn of_job(record: &Record, answers: Option<&Answers>, now_ns: i64) -> Message {
    let state = record.state.name().replace('_', " ");
    let title = format!("Job {} {} {state}", text::escape(&record.label()), text::escape(&record.name));
    let wall = average::wall_ns(record, now_ns).map(|wall_ns| units::duration(wall_ns as f64 / 1e9));
    let verdict = answers.map(|answers| answers.verdict.clone());
    let findings = answers.map(|answers| answers.findings.as_slice()).unwrap_or_default();
    let mut body = verdict.or(wall.map(|wall| format!("after {wall}"))).unwrap_or_default();
    for found in findings {
        body += &format!("\n{}: {}", found.what, found.how);
    }
    let object = json!({
        "event": "job_ended",
        "title": title,
        "text": body,
        "job": crate::json::object(record, now_ns),
        "findings": findings.iter().map(finding::object).collect::<Vec<_>>(),
    });
    Message { title, body, object }
}

/// Of what was found about the jobs of a user.
pub fn of_findings(user: &str, found: &[Finding]) -> Message {
    let groups = check::groups(found);
    let count = |group: &Group| units::counted(group.count, if group.is_sum { "week" } else { "job" });
    let mut body = String::new();
    for group in &groups {
        let saves = words::saving(&group.saving).map(|saves| format!(", {saves}")).unwrap_or_default();
        let subjects = text::escape(&group.subjects.join(", "));
        body += &format!(
            "{} ({}{saves})\n  {}\n  {}\n  {subjects}\n\n",
            group.rule,
            count(group),
            text::escape(&group.what),
            text::escape(&group.how),
        );
    }
    body += "Why: met explain JOB RULE. Not again: met mute JOB RULE. For weekly findings use --user NAME.\n";
    let title = format!("{} about your jobs", units::counted(groups.len(), "finding"));
    let object = json!({
        "event": "findings",
        "user": user,
        "title": title,
        "text": body,
        "findings": found.iter().map(finding::object).collect::<Vec<_>>(),
    });
    Message { title, body, object }
}

/// What is kept of a message that was sent: each rule once for each lineage.
pub fn sent(records: &[Record], found: &[Finding]) -> Vec<ReactionChange> {
    let mut by_label: HashMap<String, Vec<&Record>> = HashMap::new();
    for record in records {
        by_label.entry(record.label()).or_default().push(record);
    }
    let mut by_lineage: BTreeMap<_, ReactionChange> = BTreeMap::new();
    for finding in found {
        let target = match (&finding.lineage, &finding.user) {
            (Some(of), _) => {
                let known = by_label.get(&finding.subject).into_iter().flatten();
                let mut of_lineage = known.filter(|record| lineage(record) == *of);
                let Some(record) = of_lineage.next() else { continue };
                ReactionTarget::Job(record.key.clone())
            }
            (None, Some(user)) => ReactionTarget::User(user.clone()),
            (None, None) => continue,
        };
        let change = by_lineage.entry(finding.lineage.clone()).or_insert_with(|| ReactionChange {
            target,
            rules: Vec::new(),
            step: ReactionStep::Sent,
        });
        if !change.rules.contains(&finding.rule) {
            change.rules.push(finding.rule.clone());
        }
    }
    by_lineage.into_values().collect()
}
