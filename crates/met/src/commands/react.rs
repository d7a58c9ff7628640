//! `met ack`, `met mute` and `met unmute`: what a person does about findings.

use std::io::Write;

use anyhow::Result;
use met_core::job::Record;
use met_core::reaction::{Reaction, ReactionChange, ReactionKind, ReactionStep, ReactionTarget};
use met_insight::handled;
use met_insight::lineage::lineage;
use met_insight::rules::{self, Rules, Scope};
use serde_json::json;

use super::check;
use crate::cli::{MuteArgs, ReactArgs};
use crate::output;
use crate::view;
use met_config::Failure;
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;

pub fn acknowledge(setting: &Setting, args: &ReactArgs) -> Result<i32> {
    change(setting, args, ReactionStep::Acknowledge)
}

pub fn unmute(setting: &Setting, args: &ReactArgs) -> Result<i32> {
    change(setting, args, ReactionStep::Unmute)
}

/// Without a job: the list of what is muted.
pub fn mute(setting: &Setting, args: &MuteArgs) -> Result<i32> {
    if args.about.words.is_empty() && args.about.user.is_none() {
        return list(setting, args.json);
    }
    let until_ns = args.time.as_deref().map(until_ns).transpose()?;
    change(setting, &args.about, ReactionStep::Mute { until_ns })
}

/// `30d` is so long from now, as `--since 30d` is so long ago.
fn until_ns(text: &str) -> Result<i64> {
    let now_ns = jobs::now_ns();
    let duration =
        met_core::units::parse_duration(text).map_err(|error| Failure::usage(format!("--for: {error}")))?;
    Ok(now_ns.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
}

fn change(setting: &Setting, args: &ReactArgs, step: ReactionStep) -> Result<i32> {
    let known_rules = check::rules(setting, args.rules.as_deref())?;
    let mut all = AllJobs::open(setting)?;
    let (target, named, about) = match &args.user {
        Some(user) => {
            let user = met_host::users::named(user)
                .ok_or_else(|| Failure::usage(format!("--user: no user {user:?}")))?;
            let mut named = args.words.clone();
            if named.is_empty() && step == ReactionStep::Unmute {
                named = muted(&mut all, &user, "")?;
            }
            let about = format!("the jobs of {user}");
            (ReactionTarget::User(user), named, about)
        }
        None => {
            let (job, named) = args.words.split_first().ok_or_else(|| Failure::usage("name a job"))?;
            let record = all.find_to_show(job)?;
            let about = lineage(&record).to_string();
            let named = match (named, step) {
                ([], ReactionStep::Acknowledge) => found(setting, &mut all, &record, &known_rules)?,
                (named, ReactionStep::Unmute) => {
                    let of = lineage(&record);
                    let mut muted = muted(&mut all, of.user.as_deref().unwrap_or_default(), &of.key())?;
                    muted.retain(|rule| named.is_empty() || named.contains(rule));
                    muted
                }
                (named, _) => named.to_vec(),
            };
            (ReactionTarget::Job(record.key), named, about)
        }
    };
    let code = keep(&mut all, target, &named, step, &known_rules, &about)?;
    if let Some(url) = setting.forwards_to().filter(|_| setting.server.is_none()) {
        writeln!(output::stdout(), "Changed on this node only; on the server run: met --server {url} …")?;
    }
    Ok(code)
}

fn keep(
    all: &mut AllJobs,
    target: ReactionTarget,
    named: &[String],
    step: ReactionStep,
    known: &Rules,
    about: &str,
) -> Result<i32> {
    if named.is_empty() {
        let words = match step {
            ReactionStep::Acknowledge => "nothing to acknowledge; `met check` lists findings",
            ReactionStep::Unmute => "none of these findings is muted or acknowledged",
            _ => "name a rule; `met explain JOB` lists them",
        };
        return Err(Failure::usage(words));
    }
    let is_job = matches!(target, ReactionTarget::Job(_));
    let scope = if is_job { Scope::Job } else { Scope::User };
    for rule in named {
        // What is muted may be a rule of a file, or of another version.
        if step != ReactionStep::Unmute || known.get(rule).is_some() {
            known.named(rule, scope).map_err(Failure::usage)?;
        }
    }
    let about = view::text::escape(about);
    let change = ReactionChange { target, rules: named.to_vec(), step };
    // Checked here as well, for a message without the name of a daemon.
    change.check(jobs::now_ns()).map_err(Failure::usage)?;
    all.react(&change)?;
    let done = match step {
        ReactionStep::Acknowledge if is_job => "Acknowledged until the next run",
        ReactionStep::Acknowledge => "Acknowledged",
        ReactionStep::Mute { until_ns: None } => "Muted",
        ReactionStep::Mute { until_ns: Some(until_ns) } => {
            let until = met_core::units::time(until_ns, &view::local_zone());
            writeln!(output::stdout(), "Muted until {until}: {}, {}", named.join(", "), about)?;
            return Ok(0);
        }
        ReactionStep::Unmute | ReactionStep::Sent => "Reported again",
    };
    writeln!(output::stdout(), "{done}: {}, {}", named.join(", "), about)?;
    Ok(0)
}

/// The rules that found something in a job.
fn found(setting: &Setting, all: &mut AllJobs, record: &Record, rules: &Rules) -> Result<Vec<String>> {
    let earlier = all.earlier_runs(record)?;
    let machine = super::machine(setting, record);
    let beside = all.beside_if_asked(rules, record, machine, &earlier)?;
    let earlier: Vec<&Record> = earlier.iter().collect();
    let known = all.known(setting, record, machine)?.beside(beside);
    let found = known.with_job(record, &earlier, jobs::now_ns(), |job| rules::findings(rules, job));
    Ok(found.into_iter().map(|finding| finding.rule).collect())
}

/// The rules that are muted or acknowledged in a lineage of a user.
fn muted(all: &mut AllJobs, user: &str, lineage: &str) -> Result<Vec<String>> {
    let now_ns = jobs::now_ns();
    let is_of = |one: &Reaction| {
        one.kind != ReactionKind::Sent && one.is_current(now_ns) && one.user == user && one.lineage == lineage
    };
    let mut rules: Vec<String> =
        all.reactions(false)?.into_iter().filter(is_of).map(|one| one.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    Ok(rules)
}

fn list(setting: &Setting, as_json: bool) -> Result<i32> {
    let now_ns = jobs::now_ns();
    let mut reactions = AllJobs::open(setting)?.reactions(false)?;
    reactions.retain(|one| one.kind != ReactionKind::Sent && one.is_current(now_ns));
    let mut stdout = output::stdout();
    if as_json {
        writeln!(
            stdout,
            "{}",
            json!({ "muted": reactions.iter().map(handled::object).collect::<Vec<_>>() })
        )?;
    } else if reactions.is_empty() {
        writeln!(stdout, "no findings are muted or acknowledged")?;
    } else {
        let style = stdout.style();
        stdout.write_all(view::findings::reactions(&reactions, &style).as_bytes())?;
    }
    Ok(0)
}
