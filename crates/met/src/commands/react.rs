//! `met ack`, `met mute` and `met unmute`: what a person does about findings.

use std::io::Write;

use anyhow::Result;
use met_core::job::Record;
use met_core::reaction::{Reaction, ReactionChange, ReactionKind, ReactionStep, ReactionTarget};
use met_insight::lineage::lineage;
use met_insight::rules::{self, Rules};
use serde_json::json;

use super::{check, export};
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
    let known_rules = check::rules(args.rules.as_deref())?;
    let mut all = AllJobs::open(setting)?;
    let (target, named, about) = match &args.user {
        Some(user) => {
            (ReactionTarget::User(user.clone()), args.words.as_slice(), format!("the jobs of {user}"))
        }
        None => {
            let (job, named) = args.words.split_first().ok_or_else(|| Failure::usage("name a job"))?;
            let record = all.find_to_show(job)?;
            let about = lineage(&record).to_string();
            let named = match (named, step) {
                ([], ReactionStep::Acknowledge) => found(setting, &mut all, &record, &known_rules)?,
                (named, ReactionStep::Unmute) => {
                    let mut muted = muted(&mut all, &record)?;
                    muted.retain(|rule| named.is_empty() || named.contains(rule));
                    muted
                }
                (named, _) => named.to_vec(),
            };
            return keep(&mut all, ReactionTarget::Job(record.key), &named, step, &known_rules, &about);
        }
    };
    keep(&mut all, target, named, step, &known_rules, &about)
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
    if let Some(rule) = named.iter().find(|rule| known.get(rule).is_none())
        && step != ReactionStep::Unmute
    {
        let names = known.rules.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Failure::usage(format!("no rule named {rule:?}; known: {names}")));
    }
    let is_job = matches!(target, ReactionTarget::Job(_));
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
            writeln!(output::stdout(), "Muted until {until}: {}, {}", named.join(", "), escaped(about))?;
            return Ok(0);
        }
        ReactionStep::Unmute | ReactionStep::Sent => "Reported again",
    };
    writeln!(output::stdout(), "{done}: {}, {}", named.join(", "), escaped(about))?;
    Ok(0)
}

fn escaped(words: &str) -> String {
    view::text::escape(words)
}

/// The rules that found something in a job.
fn found(setting: &Setting, all: &mut AllJobs, record: &Record, rules: &Rules) -> Result<Vec<String>> {
    let earlier = all.earlier_runs(record)?;
    let earlier: Vec<&Record> = earlier.iter().collect();
    let machine = super::machine(setting, record);
    let known = export::known(setting, all, record, machine)?;
    let found = known.with_job(record, &earlier, jobs::now_ns(), |job| rules::findings(rules, job));
    Ok(found.into_iter().map(|finding| finding.rule).collect())
}

/// The rules that are muted or acknowledged in the lineage of a job.
fn muted(all: &mut AllJobs, record: &Record) -> Result<Vec<String>> {
    let of = lineage(record);
    let (user, key) = (of.user.clone().unwrap_or_default(), of.key());
    let is_of = |one: &Reaction| one.kind != ReactionKind::Sent && one.user == user && one.lineage == key;
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
            json!({ "muted": reactions.iter().map(view::findings::reaction).collect::<Vec<_>>() })
        )?;
    } else if reactions.is_empty() {
        writeln!(stdout, "no findings are muted or acknowledged")?;
    } else {
        let style = stdout.style();
        stdout.write_all(view::findings::reactions(&reactions, &style).as_bytes())?;
    }
    Ok(0)
}
