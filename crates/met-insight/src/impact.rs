//! What a policy would do if its messages were sent: whom it hits, and what following it would save.

use std::collections::{BTreeMap, BTreeSet};

use met_core::units;
use serde_json::{Value, json};

use crate::answers::words;
use crate::finding::{self, Finding, Saving};

#[derive(Clone, Debug, PartialEq)]
pub struct Impact {
    /// The most worthwhile rule first.
    pub rules: Vec<OfRule>,
    pub users: usize,
    pub jobs: usize,
    /// In all. Two findings about one job may save the same hours, as may those of jobs and of their user's week: the
    /// larger one counts.
    pub saving: Saving,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OfRule {
    pub rule: String,
    pub users: usize,
    /// Jobs, or weeks of users.
    pub count: usize,
    pub is_sum: bool,
    pub saving: Saving,
}

/// The order of findings does not matter.
pub fn impact(findings: &[Finding]) -> Impact {
    let mut ordered: Vec<&Finding> = findings.iter().collect();
    // A sum of floats depends on its order.
    ordered.sort_by(|one, other| (key(one), &one.rule).cmp(&(key(other), &other.rule)));
    let mut by_rule: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
    for finding in &ordered {
        by_rule.entry(&finding.rule).or_default().push(finding);
    }
    let of_rule = |(rule, found): (&str, Vec<&Finding>)| OfRule {
        rule: rule.to_owned(),
        users: users(&found),
        count: found.len(),
        is_sum: found.iter().all(|finding| is_sum(finding)),
        saving: found.iter().fold(Saving::default(), |sum, finding| sum.plus(&finding.saving)),
    };
    let mut rules: Vec<OfRule> = by_rule.into_iter().map(of_rule).collect();
    rules.sort_by(|one, other| {
        let weight = |of: &OfRule| of.saving.weight();
        weight(other).total_cmp(&weight(one)).then(one.rule.cmp(&other.rule))
    });
    let jobs: BTreeSet<_> =
        ordered.iter().filter(|finding| !is_sum(finding)).map(|finding| key(finding)).collect();
    Impact { rules, users: users(&ordered), jobs: jobs.len(), saving: in_all(&ordered) }
}

/// Which job of whom, or which week of a user.
fn key(finding: &Finding) -> (Option<&str>, &str, (i64, i64)) {
    (finding.user.as_deref(), &finding.subject, finding.window_ns)
}

fn is_sum(finding: &Finding) -> bool {
    finding.held_core_hours.is_none()
}

fn users(found: &[&Finding]) -> usize {
    found.iter().filter_map(|finding| finding.user.as_deref()).collect::<BTreeSet<_>>().len()
}

fn in_all(ordered: &[&Finding]) -> Saving {
    /// Of the jobs of a user, and of the user's weeks.
    type OfUser = [Saving; 2];
    let mut by_subject: BTreeMap<_, (bool, Saving)> = BTreeMap::new();
    for finding in ordered {
        let (_, most) = by_subject.entry(key(finding)).or_insert((is_sum(finding), Saving::default()));
        *most = most.larger(&finding.saving);
    }
    let mut by_user: BTreeMap<Option<&str>, OfUser> = BTreeMap::new();
    for ((user, ..), (is_sum, saving)) in by_subject {
        let of_user = &mut by_user.entry(user).or_default()[usize::from(is_sum)];
        *of_user = of_user.plus(&saving);
    }
    let of_users = by_user.into_values().map(|[jobs, weeks]| jobs.larger(&weeks));
    of_users.fold(Saving::default(), |sum, saving| sum.plus(&saving))
}

/// A table of the rules, and a line about all of them. `jobs` were looked at.
pub fn words(impact: &Impact, jobs: usize) -> String {
    let width = impact.rules.iter().map(|of| of.rule.len()).max().unwrap_or(0);
    let mut text = String::new();
    for of in &impact.rules {
        let users = units::counted(of.users, "user");
        let count = units::counted(of.count, if of.is_sum { "week" } else { "job" });
        let saves = words::saving(&of.saving).map(|saves| format!("  {saves}")).unwrap_or_default();
        text += &format!("{:width$}  {users:>9}  {count:>10}{saves}\n", of.rule);
    }
    let all = units::counted(jobs, "job");
    if impact.rules.is_empty() {
        return format!("would hit no user: no findings in {all}\n");
    }
    let saves = words::amounts(&impact.saving).map(|most| format!("\nwould save up to {most}"));
    let (users, hit) = (units::counted(impact.users, "user"), impact.jobs);
    text + &format!("would hit {users} and {hit} of {all}{}\n", saves.unwrap_or_default())
}

/// The same for a program.
pub fn object(impact: &Impact) -> Value {
    let of_rule = |of: &OfRule| {
        json!({
            "rule": of.rule,
            "users": of.users,
            "count": of.count,
            "is_sum": of.is_sum,
            "saving": finding::saving(&of.saving),
        })
    };
    json!({
        "rules": impact.rules.iter().map(of_rule).collect::<Vec<_>>(),
        "users": impact.users,
        "jobs": impact.jobs,
        "saving": finding::saving(&impact.saving),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    fn finding(user: &str, rule: &str, job: Option<&str>, core_hours: f64) -> Finding {
        Finding {
            rule: rule.to_owned(),
            severity: Severity::Low,
            subject: job.unwrap_or(user).to_owned(),
            user: Some(user.to_owned()),
            lineage: None,
            window_ns: (0, 1),
            what: String::new(),
            why: Vec::new(),
            how: String::new(),
            saving: Saving { core_hours: Some(core_hours), ..Saving::default() },
            held_core_hours: job.map(|_| 100.0),
            coverage: 1.0,
        }
    }

    #[test]
    fn hours_are_saved_once() {
        let found = [
            finding("ada", "cpu_low", Some("1"), 60.0),
            finding("ada", "idle_tail", Some("1"), 20.0),
            finding("ada", "cpu_low", Some("2"), 50.0),
            finding("ada", "cores_unused", None, 100.0),
            finding("bob", "cores_unused", None, 7.0),
        ];
        let all = impact(&found);
        assert_eq!((all.users, all.jobs), (2, 2));
        assert_eq!(all.saving.core_hours, Some(117.0), "60 and 50 of two jobs, and 7 of another user");
        let rows: Vec<_> = all.rules.iter().map(|of| (of.rule.as_str(), of.users, of.count)).collect();
        assert_eq!(rows, [("cpu_low", 1, 2), ("cores_unused", 2, 2), ("idle_tail", 1, 1)]);
        let mut turned = found.clone();
        turned.reverse();
        assert_eq!(impact(&turned), all, "the order does not matter");
        let expected = "cpu_low          1 user      2 jobs  saves 110 core-hours\n\
                        cores_unused    2 users     2 weeks  saves 107 core-hours\n\
                        idle_tail        1 user       1 job  saves 20 core-hours\n\
                        would hit 2 users and 2 of 9 jobs\nwould save up to 117 core-hours\n";
        assert_eq!(words(&all, 9), expected);
        assert_eq!(object(&all)["saving"]["core_hours"], 117.0);
    }

    #[test]
    fn a_policy_that_speaks_of_nobody_says_so() {
        assert_eq!(words(&impact(&[]), 1), "would hit no user: no findings in 1 job\n");
    }
}
