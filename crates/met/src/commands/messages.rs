//! `met check --send`: findings as one message per user, to the program or address of the configuration. What was sent
//! is kept, so that no user gets the same within a week.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

use anyhow::{Context, Result};
use met_core::job::Record;
use met_core::{text, units};
use met_insight::finding::Finding;
use met_insight::messages;

use super::notify;
use crate::output;
use met_config::Failure;
use met_query::jobs::AllJobs;
use met_query::setting::Setting;

/// Sends what is new to each user. With a summary, as of a dry run, prints both instead.
pub fn send(
    setting: &Setting,
    all: &mut AllJobs,
    records: &[Record],
    findings: Vec<Finding>,
    summary: Option<&str>,
) -> Result<i32> {
    let mut by_user: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for finding in findings {
        if let Some(user) = finding.user.clone() {
            by_user.entry(user).or_default().push(finding);
        }
    }
    let mut stdout = output::stdout();
    if let Some(summary) = summary {
        for (user, found) in &by_user {
            let message = messages::of_findings(user, found);
            writeln!(stdout, "To: {}\nSubject: {}\n\n{}", text::escape(user), message.title, message.body)?;
        }
        writeln!(stdout, "{summary}{}; nothing was sent", units::counted(by_user.len(), "message"))?;
        return Ok(0);
    }
    check_configured(setting)?;
    let (mut sent, mut failed) = (0, 0);
    for (user, found) in &by_user {
        match notify::send_all(setting, user, &messages::of_findings(user, found)) {
            Ok(incomplete) => (sent, failed) = (sent + 1, failed + i32::from(incomplete)),
            Err(why) => {
                failed += 1;
                tracing::error!("cannot send to {}: {}", text::escape(user), text::escape(&why));
                continue;
            }
        }
        for change in messages::sent(records, found) {
            if let Err(error) = all.react(&change) {
                failed += 1;
                tracing::error!("{}: the message is not noted as sent: {error:#}", text::escape(user));
            }
        }
    }
    writeln!(stdout, "{} sent", units::counted(sent, "message"))?;
    Ok(i32::from(failed > 0))
}

/// Held while messages are sent, from before it is read which were: another command waits, and finds them sent.
pub fn lock(setting: &Setting) -> Result<File> {
    let path = setting.user.state.join("send.lock");
    let locked = std::fs::create_dir_all(&setting.user.state)
        .and_then(|()| File::options().create(true).append(true).open(&path))
        .and_then(|file| file.lock().map(|()| file));
    locked.with_context(|| format!("cannot lock {}", path.display()))
}

fn check_configured(setting: &Setting) -> Result<()> {
    let config = &setting.config.notify;
    if config.command.is_none() && config.webhook.is_none() {
        return Err(Failure::usage("nothing to send by; set notify.command or notify.webhook"));
    }
    setting.check_notify().map_err(Failure::usage)
}
