//! What was done about findings: acknowledged, muted, sent. By the owner of the jobs, their lineage and the rule.

use serde::{Deserialize, Serialize};

use crate::job::JobKey;

pub const RULE_BYTES_MAX: usize = 64;
/// Rules of one change.
pub const RULES_MAX: usize = 64;
pub const LINEAGE_BYTES_MAX: usize = 2 << 10;
/// A message about one lineage and rule is repeated after this time at the earliest.
pub const REPEATED_AFTER_NS: i64 = 7 * DAY_NS;
/// What was acknowledged is forgotten after this time.
pub const FORGOTTEN_AFTER_NS: i64 = 400 * DAY_NS;
const DAY_NS: i64 = 86_400_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReactionKind {
    /// Runs that began before are not reported again; the next one is.
    Acknowledged,
    /// No run is reported, for a time or until it is taken back.
    Muted,
    /// A message was sent.
    Sent,
}

impl ReactionKind {
    pub const ALL: [ReactionKind; 3] = [ReactionKind::Acknowledged, ReactionKind::Muted, ReactionKind::Sent];

    pub fn name(self) -> &'static str {
        match self {
            ReactionKind::Acknowledged => "acknowledged",
            ReactionKind::Muted => "muted",
            ReactionKind::Sent => "sent",
        }
    }

    pub fn parse(text: &str) -> Option<ReactionKind> {
        ReactionKind::ALL.into_iter().find(|kind| kind.name() == text)
    }
}

/// What was done about one rule in one lineage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaction {
    /// The owner of the jobs, by name, or by uid where that is all that is known.
    pub user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// As text; empty for findings about the sum of a user's jobs.
    pub lineage: String,
    pub rule: String,
    pub kind: ReactionKind,
    /// Who did it.
    pub by: String,
    pub at_ns: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<i64>,
}

impl Reaction {
    /// Whether it still has an effect.
    pub fn is_current(&self, now_ns: i64) -> bool {
        let lasts_until_ns = match self.kind {
            ReactionKind::Acknowledged => self.at_ns.saturating_add(FORGOTTEN_AFTER_NS),
            ReactionKind::Muted => self.until_ns.unwrap_or(i64::MAX),
            ReactionKind::Sent => self.at_ns.saturating_add(REPEATED_AFTER_NS),
        };
        now_ns < lasts_until_ns
    }

    /// Whether a finding about something that began at this time is left out of reports.
    pub fn hides(&self, began_ns: i64, now_ns: i64) -> bool {
        match self.kind {
            ReactionKind::Acknowledged => self.is_current(now_ns) && began_ns <= self.at_ns,
            ReactionKind::Muted => self.is_current(now_ns),
            ReactionKind::Sent => false,
        }
    }
}

/// What findings are about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReactionTarget {
    /// The lineage of this job.
    Job(JobKey),
    /// The sum of this user's jobs.
    User(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReactionStep {
    Acknowledge,
    Mute {
        until_ns: Option<i64>,
    },
    /// Takes back what was acknowledged or muted.
    Unmute,
    Sent,
}

/// What is to be done about the findings of some rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReactionChange {
    pub target: ReactionTarget,
    pub rules: Vec<String>,
    pub step: ReactionStep,
}

impl ReactionChange {
    /// What is wrong with it.
    pub fn check(&self, now_ns: i64) -> Result<(), String> {
        if self.rules.is_empty() || self.rules.len() > RULES_MAX {
            return Err(format!("name 1 to {RULES_MAX} rules"));
        }
        if let Some(rule) = self.rules.iter().find(|rule| !is_rule(rule)) {
            let shown: String = rule.chars().take(RULE_BYTES_MAX).collect();
            return Err(format!("{shown:?} is not the name of a rule"));
        }
        match self.step {
            ReactionStep::Mute { until_ns: Some(until_ns) } if until_ns <= now_ns => {
                Err("the time until which it is muted has passed".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Whether a text can be the name of a rule.
fn is_rule(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !name.is_empty() && name.len() <= RULE_BYTES_MAX && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reaction(kind: ReactionKind, until_ns: Option<i64>) -> Reaction {
        Reaction {
            user: "ada".to_owned(),
            uid: Some(7),
            lineage: "x".to_owned(),
            rule: "cpu_low".to_owned(),
            kind,
            by: "ada".to_owned(),
            at_ns: 100,
            until_ns,
        }
    }

    #[test]
    fn an_acknowledged_finding_is_reported_again_for_the_next_run_and_a_muted_one_is_not() {
        let acknowledged = reaction(ReactionKind::Acknowledged, None);
        assert!(acknowledged.hides(50, 200) && acknowledged.hides(100, 200) && !acknowledged.hides(101, 200));
        assert!(!acknowledged.hides(50, 101 + FORGOTTEN_AFTER_NS));
        let muted = reaction(ReactionKind::Muted, None);
        assert!(muted.hides(50, 200) && muted.hides(101, i64::MAX - 1));
        let for_a_time = reaction(ReactionKind::Muted, Some(150));
        assert!(for_a_time.hides(101, 149) && !for_a_time.hides(101, 150));
        let sent = reaction(ReactionKind::Sent, None);
        assert!(!sent.hides(50, 101) && sent.is_current(99 + REPEATED_AFTER_NS));
        assert!(!sent.is_current(100 + REPEATED_AFTER_NS));
    }

    #[test]
    fn a_change_with_no_rule_a_strange_one_or_a_time_that_is_over_is_refused() {
        let change = |rules: &[&str], step: ReactionStep| ReactionChange {
            target: ReactionTarget::User("ada".to_owned()),
            rules: rules.iter().map(|&rule| rule.to_owned()).collect(),
            step,
        };
        let mute = |until_ns| ReactionStep::Mute { until_ns };
        assert!(change(&["cpu_low", "site-rule.2"], mute(Some(11))).check(10).is_ok());
        assert!(change(&["cpu_low"], mute(Some(10))).check(10).unwrap_err().contains("has passed"));
        let long = "x".repeat(RULE_BYTES_MAX + 1);
        for rule in ["", "a b", "a\n", "\u{202e}", "<b>", "a'--", &long] {
            let refused = change(&[rule], ReactionStep::Acknowledge).check(10).unwrap_err();
            assert!(refused.contains("not the name of a rule") && refused.len() < 200, "{rule:?}");
        }
        assert!(change(&[], ReactionStep::Unmute).check(10).is_err());
        assert!(change(&["a"; RULES_MAX + 1], ReactionStep::Unmute).check(10).is_err());
    }
}
