//! `met check --send`: findings as one message per user, to the program or address of the configuration. What was sent
//! is kept, so that nobody gets the same within a week.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use anyhow::Result;
use met_core::job::Record;
use met_core::reaction::{ReactionChange, ReactionStep, ReactionTarget};
use met_core::text;
use met_insight::answers::words;
use met_insight::check::{self, Group};
use met_insight::finding::{self, Finding};
use met_insight::lineage::lineage;
use serde_json::json;

use super::notify::{self, Message};
use crate::output;
use met_config::Failure;
use met_query::jobs::AllJobs;
use met_query::setting::Setting;

/// Sends what is new to each user; with `is_dry`, prints it instead.
pub fn send(
    setting: &Setting,
    all: &mut AllJobs,
    records: &[Record],
    findings: Vec<Finding>,
    is_dry: bool,
) -> Result<i32> {
    let mut by_user: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for finding in findings {
        if let Some(user) = finding.user.clone() {
            by_user.entry(user).or_default().push(finding);
        }
    }
    let mut stdout = output::stdout();
    if is_dry {
        for (user, found) in &by_user {
            let message = message(user, found);
            writeln!(stdout, "To: {}\nSubject: {}\n\n{}", text::escape(user), message.title, message.body)?;
        }
        writeln!(stdout, "{} messages; nothing was sent", by_user.len())?;
        return Ok(0);
    }
    check_configured(setting)?;
    let (mut sent, mut failed) = (0, 0);
    for (user, found) in &by_user {
        match notify::send_all(setting, &message(user, found)) {
            Ok(()) => sent += 1,
            Err(why) => {
                failed += 1;
                tracing::error!("cannot send to {}: {}", text::escape(user), text::escape(&why));
                continue;
            }
        }
        for change in changes(records, found) {
            all.react(&change)?;
        }
    }
    writeln!(stdout, "{sent} messages sent")?;
    Ok(i32::from(failed > 0))
}

/// Root runs only what nobody else can put into its place.
fn check_configured(setting: &Setting) -> Result<()> {
    let config = &setting.config.notify;
    if config.command.is_none() && config.webhook.is_none() {
        return Err(Failure::usage("nothing to send by; set notify.command or notify.webhook"));
    }
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for path in setting.config_path.iter().chain(&config.command) {
        met_host::trusted::check_own(path).map_err(|error| {
            Failure::usage(format!("{}: {error}; another user could change it", path.display()))
        })?;
    }
    Ok(())
}

fn message(user: &str, found: &[Finding]) -> Message {
    let groups = check::groups(found);
    let count = |group: &Group| match (group.is_sum, group.count) {
        (true, 1) => "1 week".to_owned(),
        (true, count) => format!("{count} weeks"),
        (false, 1) => "1 job".to_owned(),
        (false, count) => format!("{count} jobs"),
    };
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
    body += "Why: met explain JOB RULE. Not again: met mute JOB RULE.\n";
    let title = match groups.len() {
        1 => "1 finding about your jobs".to_owned(),
        count => format!("{count} findings about your jobs"),
    };
    let object = json!({
        "event": "findings",
        "user": user,
        "title": title,
        "text": body,
        "findings": found.iter().map(finding::object).collect::<Vec<_>>(),
    });
    Message { title, body, object }
}

/// What is kept of a message: each rule once for each lineage.
fn changes(records: &[Record], found: &[Finding]) -> Vec<ReactionChange> {
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
