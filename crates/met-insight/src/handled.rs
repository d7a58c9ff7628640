//! Which findings are not reported, because a person dealt with them or was informed already.

use std::collections::HashMap;

use met_core::reaction::{Reaction, ReactionKind};
use serde_json::{Value, json};

use crate::finding::Finding;
use crate::json::time;
use crate::lineage::Lineage;

/// What was done about findings, by user, lineage and rule.
pub struct Handled<'a> {
    by_key: HashMap<(String, String, String), Vec<&'a Reaction>>,
}

impl<'a> Handled<'a> {
    pub fn of(reactions: &'a [Reaction]) -> Handled<'a> {
        let mut by_key: HashMap<_, Vec<&Reaction>> = HashMap::new();
        for one in reactions {
            let key = (one.user.clone(), one.lineage.clone(), one.rule.clone());
            by_key.entry(key).or_default().push(one);
        }
        Handled { by_key }
    }

    fn about(&self, finding: &Finding) -> &[&'a Reaction] {
        if self.by_key.is_empty() {
            return &[];
        }
        let lineage = finding.lineage.as_ref();
        let user = lineage.map_or(&finding.user, |lineage| &lineage.user).clone();
        let key = lineage.map(Lineage::key).unwrap_or_default();
        let found = self.by_key.get(&(user.unwrap_or_default(), key, finding.rule.clone()));
        found.map(Vec::as_slice).unwrap_or_default()
    }

    /// Why a finding is left out of reports; the newest reason.
    pub fn hides(&self, finding: &Finding, now_ns: i64) -> Option<&'a Reaction> {
        let hiding = self.about(finding).iter().filter(|one| one.hides(finding.window_ns.0, now_ns));
        hiding.max_by_key(|one| one.at_ns).copied()
    }

    /// Whether a message about it was sent a short while ago.
    pub fn is_sent(&self, finding: &Finding, now_ns: i64) -> bool {
        self.about(finding).iter().any(|one| one.kind == ReactionKind::Sent && one.is_current(now_ns))
    }
}

/// What was done, for a program.
pub fn object(one: &Reaction) -> Value {
    let lineage = Lineage::of_key(&one.user, &one.lineage).map(|lineage| lineage.to_string());
    json!({
        "user": one.user,
        "lineage": lineage,
        "rule": one.rule,
        "kind": one.kind.name(),
        "by": one.by,
        "at": time(one.at_ns),
        "until": one.until_ns.and_then(time),
    })
}

#[cfg(test)]
mod tests {
    use met_core::reaction::REPEATED_AFTER_NS;

    use super::*;
    use crate::finding::{Saving, Severity};
    use crate::lineage::lineage;
    use crate::sample;

    fn finding(rule: &str, began_ns: i64) -> Finding {
        Finding {
            rule: rule.to_owned(),
            severity: Severity::Low,
            subject: "1".to_owned(),
            user: Some("alice".to_owned()),
            lineage: Some(lineage(&sample::finished())),
            window_ns: (began_ns, began_ns + 1),
            what: String::new(),
            why: Vec::new(),
            how: String::new(),
            saving: Saving::default(),
            held_core_hours: None,
            coverage: 1.0,
        }
    }

    fn reaction(finding: &Finding, kind: ReactionKind) -> Reaction {
        let of = finding.lineage.as_ref();
        Reaction {
            user: of.map_or(finding.user.clone(), |of| of.user.clone()).unwrap(),
            uid: None,
            lineage: of.map(Lineage::key).unwrap_or_default(),
            rule: finding.rule.clone(),
            kind,
            by: "root".to_owned(),
            at_ns: 100,
            until_ns: None,
        }
    }

    #[test]
    fn a_finding_is_hidden_by_user_lineage_and_rule_and_by_no_other() {
        let muted = finding("cpu_low", 50);
        let reactions = [reaction(&muted, ReactionKind::Muted)];
        let handled = Handled::of(&reactions);
        assert_eq!(handled.hides(&muted, 200).map(|one| one.by.as_str()), Some("root"));
        assert!(handled.hides(&finding("cpu_low", 150), 200).is_some(), "later runs as well");
        assert!(handled.hides(&finding("memory_excess", 50), 200).is_none());
        let mut other = finding("cpu_low", 50);
        other.lineage.as_mut().unwrap().argument = Some("other.py".to_owned());
        assert!(handled.hides(&other, 200).is_none());
        other = finding("cpu_low", 50);
        other.lineage.as_mut().unwrap().user = Some("bob".to_owned());
        assert!(handled.hides(&other, 200).is_none());
        let sum = Finding { lineage: None, ..finding("cpu_low", 50) };
        assert!(handled.hides(&sum, 200).is_none(), "the sum of the same user");
        let of_sum = [reaction(&sum, ReactionKind::Muted)];
        assert!(Handled::of(&of_sum).hides(&sum, 200).is_some());
    }

    #[test]
    fn a_message_is_not_repeated_within_a_week() {
        let found = finding("cpu_low", 50);
        let reactions = [reaction(&found, ReactionKind::Sent)];
        let handled = Handled::of(&reactions);
        assert!(handled.hides(&found, 200).is_none(), "it is still reported");
        assert!(handled.is_sent(&found, 200) && handled.is_sent(&found, 99 + REPEATED_AFTER_NS));
        assert!(!handled.is_sent(&found, 100 + REPEATED_AFTER_NS));
        assert!(!handled.is_sent(&finding("memory_excess", 50), 200));
    }
}
