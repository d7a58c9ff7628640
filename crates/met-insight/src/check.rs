//! Findings of many jobs together: by user and rule, with the gates of a cluster.

use std::collections::BTreeMap;

use crate::finding::{Finding, Saving, Severity};

const WEEK_NS: i64 = 7 * 86_400_000_000_000;
/// What a user must have wasted by one rule in a week before it is worth a message.
const CLUSTER_CORE_HOURS: f64 = 100.0;
const CLUSTER_GPU_HOURS: f64 = 10.0;
/// Jobs that a group names, the most worthwhile.
const NAMED: usize = 5;

/// One user and rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub user: Option<String>,
    pub rule: String,
    pub severity: Severity,
    pub count: usize,
    pub saving: Saving,
    /// Labels of jobs, or the user where it is about the sum.
    pub subjects: Vec<String>,
    pub what: String,
    pub how: String,
}

/// Groups, the most worthwhile first. On a cluster only those that passed the gate in one week at least; what saves
/// nothing countable has no such gate. The order of findings does not matter.
pub fn groups(findings: &[Finding], is_cluster: bool) -> Vec<Group> {
    let mut ordered: Vec<&Finding> = findings.iter().collect();
    ordered.sort_by(|one, other| {
        let weight = |finding: &Finding| finding.saving.weight();
        weight(other).total_cmp(&weight(one)).then_with(|| one.subject.cmp(&other.subject))
    });
    let mut by_key: BTreeMap<(Option<&str>, &str), Vec<&Finding>> = BTreeMap::new();
    for finding in ordered {
        by_key.entry((finding.user.as_deref(), &finding.rule)).or_default().push(finding);
    }
    let of_group = |found: Vec<&Finding>| {
        let first = found.first()?;
        if is_cluster && !passes(&found) {
            return None;
        }
        let saving = found.iter().fold(Saving::default(), |sum, finding| sum.plus(&finding.saving));
        Some(Group {
            user: first.user.clone(),
            rule: first.rule.clone(),
            severity: first.severity,
            count: found.len(),
            saving,
            subjects: found.iter().take(NAMED).map(|finding| finding.subject.clone()).collect(),
            what: first.what.clone(),
            how: first.how.clone(),
        })
    };
    let mut groups: Vec<Group> = by_key.into_values().filter_map(of_group).collect();
    groups.sort_by(|one, other| {
        (other.saving.weight().total_cmp(&one.saving.weight()))
            .then(other.severity.cmp(&one.severity))
            .then_with(|| (&one.rule, &one.user).cmp(&(&other.rule, &other.user)))
    });
    groups
}

fn passes(found: &[&Finding]) -> bool {
    let mut weeks: BTreeMap<i64, Saving> = BTreeMap::new();
    for finding in found {
        let week = weeks.entry(finding.window_ns.1.div_euclid(WEEK_NS)).or_default();
        *week = week.plus(&finding.saving);
    }
    let saves = |saving: &Saving| saving.core_hours.is_some() || saving.gpu_hours.is_some();
    weeks.values().any(|saving| {
        !saves(saving)
            || saving.core_hours.is_some_and(|hours| hours >= CLUSTER_CORE_HOURS)
            || saving.gpu_hours.is_some_and(|hours| hours >= CLUSTER_GPU_HOURS)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn finding(user: &str, rule: &str, subject: &str, core_hours: f64, week: i64) -> Finding {
        Finding {
            rule: rule.to_owned(),
            severity: Severity::Low,
            subject: subject.to_owned(),
            user: Some(user.to_owned()),
            window_ns: (week * WEEK_NS, week * WEEK_NS + 1),
            what: String::new(),
            why: Vec::new(),
            how: String::new(),
            saving: Saving { core_hours: Some(core_hours), ..Saving::default() },
            coverage: 1.0,
        }
    }

    #[test]
    fn a_cluster_looks_at_a_week_of_a_user() {
        let some = [finding("a", "r", "1", 60.0, 1), finding("a", "r", "2", 60.0, 1)];
        let spread = [finding("a", "r", "1", 60.0, 1), finding("a", "r", "2", 60.0, 2)];
        assert_eq!(groups(&some, true)[0].saving.core_hours, Some(120.0));
        assert_eq!(groups(&spread, true), [], "60 a week are below the gate");
        assert_eq!(groups(&spread, false)[0].count, 2);
    }

    proptest! {
        #[test]
        fn the_order_of_jobs_does_not_matter_and_more_waste_is_never_less_of_a_finding(
            hours in proptest::collection::vec((0usize..3, 1u32..80), 1..20), seed in 0usize..20, more in 0u32..50)
        {
            let made = |extra: u32| hours.iter().enumerate().map(|(index, (user, hours))| {
                finding(&user.to_string(), "r", &index.to_string(), f64::from(hours + extra), 1)
            }).collect::<Vec<_>>();
            let found = made(0);
            let mut turned = found.clone();
            turned.rotate_left(seed % found.len());
            prop_assert_eq!(groups(&found, true), groups(&turned, true));
            let users = |found: &[Finding]| {
                groups(found, true).into_iter().map(|group| group.user).collect::<std::collections::BTreeSet<_>>()
            };
            prop_assert!(users(&found).is_subset(&users(&made(more))));
        }
    }
}
