//! What `met run --notify` does when its job is over, as the user: a desktop message, a program, a webhook. Each has a
//! time limit, none goes through a shell, and none can change what became of the job.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use met_core::job::{Record, State};
use met_core::reaction::{ReactionChange, ReactionStep, ReactionTarget};
use met_core::{text, units};
use met_host::hook;
use met_insight::answers::Answers;
use met_insight::handled::Handled;
use met_insight::messages::{self, Message};
use met_insight::rules::Rules;

use super::Machines;
use crate::cli::{NotifyArgs, When};
use crate::view;
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;

const TIMEOUT: Duration = Duration::from_secs(20);
/// How long the end of the job is waited for: a daemon may be writing it.
const END_WITHIN: Duration = Duration::from_secs(30);
/// Lines of the log beyond this size are dropped, the oldest first.
const LOG_BYTES_MAX: usize = 64 << 10;
const LOG: &str = "notify.log";
/// How a line of the log begins.
const SENT: &str = "ok";
const FAILED: &str = "failed";
const NO_WAY: &str = "nothing to notify by";

pub fn notify(setting: &Setting, args: &NotifyArgs) -> Result<i32> {
    let mut all = AllJobs::open(setting)?;
    let begin = Instant::now();
    let mut record = all.find(&args.ended)?;
    while record.state.is_live() && begin.elapsed() < END_WITHIN {
        std::thread::sleep(Duration::from_millis(100));
        record = all.find(&args.ended)?;
    }
    let mut answers = answers(setting, &mut all, &record);
    if let Some(answers) = &mut answers {
        leave_out_handled(&mut all, answers);
    }
    let findings = answers.as_ref().map_or(0, |answers| answers.findings.len());
    let is_wanted = |when: &When| match when {
        When::End => true,
        When::Failure => record.state != State::Finished,
        When::Finding => findings > 0,
    };
    if !args.when.iter().any(is_wanted) {
        return Ok(0);
    }
    let message = messages::of_job(&record, answers.as_ref(), jobs::now_ns());
    let outcomes = outcomes(setting, &message);
    let is_sent = outcomes.iter().any(|(_, outcome)| outcome.is_ok());
    let rules = answers.iter().flat_map(|answers| &answers.findings).map(|found| found.rule.clone());
    let rules: Vec<String> = rules.collect();
    if is_sent && !rules.is_empty() {
        let target = ReactionTarget::Job(record.key.clone());
        // A message more in the next days is no harm.
        let _ = all.react(&ReactionChange { target, rules, step: ReactionStep::Sent });
    }
    note(setting, &format!("job {}", record.label()), &outcomes);
    Ok(0)
}

/// Writes down what became of a message.
fn note(setting: &Setting, about: &str, outcomes: &Outcomes) {
    let time = units::time(jobs::now_ns(), &view::local_zone());
    let outcome = if outcomes.iter().all(|(_, outcome)| outcome.is_ok()) { SENT } else { FAILED };
    let line = format!("{outcome} {time} {}: {}\n", text::escape(about), in_words(outcomes));
    log(&setting.user.state.join(LOG), &line);
}

fn answers(setting: &Setting, all: &mut AllJobs, record: &Record) -> Option<Answers> {
    let earlier = all.earlier_runs(record).ok()?;
    let machine = Machines::of(setting).of_job(record);
    let beside = all.beside_if_asked(Rules::built_in(), record, machine, &earlier).ok()?;
    let known = all.known(setting, record, machine).ok()?.beside(beside);
    let (interval, now_ns) = (setting.config.sampling.shortest(), jobs::now_ns());
    let known = known.after(interval, record, &earlier, now_ns, &mut |run, table, part, wanted| {
        all.some_series(run, table, part, wanted)
    });
    Some(known.answers(record, &earlier, now_ns))
}

/// Leaves out what was dealt with, or sent a short while ago.
fn leave_out_handled(all: &mut AllJobs, answers: &mut Answers) {
    if answers.findings.is_empty() {
        return;
    }
    let (reactions, now_ns) = (all.reactions(false).unwrap_or_default(), jobs::now_ns());
    let handled = Handled::of(&reactions);
    answers
        .findings
        .retain(|found| handled.hides(found, now_ns).is_none() && !handled.is_sent(found, now_ns));
}

/// What became of each way to notify.
type Outcomes = Vec<(&'static str, Result<(), String>)>;

/// Sends to the configured program and address; not to the desktop of who sends. It is sent if one of them took it;
/// returns whether another did not.
pub(super) fn send_all(setting: &Setting, user: &str, message: &Message) -> Result<bool, String> {
    let outcomes = configured(setting, message);
    note(setting, &format!("findings for {user}"), &outcomes);
    let is_sent = outcomes.iter().any(|(_, outcome)| outcome.is_ok());
    let failed =
        outcomes.into_iter().filter_map(|(what, outcome)| Some(format!("{what} failed: {}", outcome.err()?)));
    let failed = failed.collect::<Vec<_>>().join("; ");
    match is_sent {
        false => Err(failed),
        true if failed.is_empty() => Ok(false),
        true => {
            tracing::error!("{}", text::escape(&failed));
            Ok(true)
        }
    }
}

fn configured(setting: &Setting, message: &Message) -> Outcomes {
    let (config, text) = (&setting.config.notify, message.object.to_string());
    let checked = || setting.check_notify();
    let by_command = config
        .command
        .as_ref()
        .map(|command| ("command", checked().and_then(|()| hook::run(command, &[], Some(&text), TIMEOUT))));
    let by_webhook =
        config.webhook.as_ref().map(|url| ("webhook", checked().and_then(|()| post(url, &text))));
    by_command.into_iter().chain(by_webhook).collect()
}

/// Says so at the start of a job whose notification could not be sent.
pub fn warn_if_no_way(setting: &Setting, wanted: &[When]) {
    let config = &setting.config.notify;
    if !wanted.is_empty() && !uses_desktop(setting) && config.command.is_none() && config.webhook.is_none() {
        tracing::warn!("--notify: {NO_WAY}; set notify.command or notify.webhook");
    }
}

fn uses_desktop(setting: &Setting) -> bool {
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    setting.config.notify.desktop && has_screen
}

fn outcomes(setting: &Setting, message: &Message) -> Outcomes {
    let mut outcomes = Vec::new();
    if uses_desktop(setting) {
        let arguments = ["--app-name=met", "--", &message.title, &message.body];
        outcomes.push(("desktop", hook::run(Path::new("notify-send"), &arguments, None, TIMEOUT)));
    }
    outcomes.extend(configured(setting, message));
    outcomes
}

fn in_words(outcomes: &Outcomes) -> String {
    if outcomes.is_empty() {
        return format!("{NO_WAY}; set notify.command or notify.webhook");
    }
    let words = |(what, outcome): &(&str, Result<(), String>)| match outcome {
        Ok(()) => format!("{what} ok"),
        Err(why) => format!("{what} failed: {}", text::escape(why)),
    };
    outcomes.iter().map(words).collect::<Vec<_>>().join("; ")
}

fn post(url: &str, body: &str) -> Result<(), String> {
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).build().into();
    let sent = agent.post(url).header("Content-Type", "application/json").send(body.as_bytes());
    sent.map(drop).map_err(|error| error.to_string())
}

/// Appends a line; what cannot be written is not worth more.
fn log(path: &Path, line: &str) {
    let before = met_host::text_file::read(path).unwrap_or_default();
    let mut whole = before + line;
    while whole.len() > LOG_BYTES_MAX {
        whole = whole.split_once('\n').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
    }
    let _ = std::fs::write(path, whole);
}

/// The last notification and what became of it, for `met doctor`.
#[derive(Debug, PartialEq)]
pub struct Noted {
    pub has_failed: bool,
    pub line: String,
}

pub fn last_noted(setting: &Setting) -> Option<Noted> {
    let log = met_host::text_file::read(&setting.user.state.join(LOG)).ok()?;
    log.lines().last().map(noted)
}

/// A line of the log. Those of older versions begin with the time, and their outcome is for people alone.
fn noted(line: &str) -> Noted {
    let known = line.split_once(' ').filter(|(outcome, _)| [SENT, FAILED].contains(outcome));
    let (outcome, rest) = known.unwrap_or((SENT, line));
    Noted { has_failed: outcome == FAILED, line: text::escape(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_failed_if_its_line_says_so_whatever_the_job_is_called() {
        let noted = |line: &str| (noted(line).has_failed, noted(line).line);
        let rest = "2026-01-14 16:40 job 7 failed: x: command ok";
        assert_eq!(noted(&format!("ok {rest}")), (false, rest.to_owned()));
        let rest = "2026-01-14 16:40 job 7: command failed: x";
        assert_eq!(noted(&format!("failed {rest}")), (true, rest.to_owned()));
        assert_eq!(noted(rest), (false, rest.to_owned()), "of an older version");
    }
}
