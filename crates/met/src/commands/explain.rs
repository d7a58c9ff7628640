//! `met explain`: why a rule found something in a job or in the jobs of a user, or did not.

use std::convert::Infallible;
use std::io::Write;

use anyhow::Result;
use met_core::units;
use met_insight::answers::Known;
use met_insight::json::time;
use met_insight::lineage::lineage;
use met_insight::report::Machine;
use met_insight::rules::{self, Explanation, Rule, Rules, Scope, user};
use serde_json::{Value, json};

use super::{check, import, list};
use crate::cli::{ExplainArgs, FilterArgs};
use crate::output;
use crate::view;
use met_config::Failure;
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;
use met_query::systems;

/// A lineage is shown up to here.
const LINEAGE_COLUMNS: usize = 120;

pub fn explain(setting: &Setting, args: &ExplainArgs) -> Result<i32> {
    let rules = check::rules(setting, args.rules.as_deref())?;
    match (&args.user, &args.job, &args.rule) {
        (Some(_), _, Some(_)) => Err(Failure::usage("name a job or --user, not both")),
        (Some(user), rule, None) => of_user(setting, args, &rules, &chosen(&rules, Scope::User, rule)?, user),
        (None, job, rule) => {
            let job = job.as_deref().unwrap_or_default();
            of_job(setting, args, &chosen(&rules, Scope::Job, rule)?, job)
        }
    }
}

/// The rule that is named, or all of that kind.
fn chosen<'r>(rules: &'r Rules, scope: Scope, name: &Option<String>) -> Result<Vec<&'r Rule>> {
    match name {
        Some(name) => Ok(vec![rules.named(name, scope).map_err(Failure::usage)?]),
        None => Ok(rules.about(scope).collect()),
    }
}

fn of_job(setting: &Setting, args: &ExplainArgs, rules: &[&Rule], job: &str) -> Result<i32> {
    let (record, earlier, known, now_ns) = match import::is_imported(job) || import::is_file(job) {
        true => {
            let job = import::one(setting, job, None)?;
            let known = Known::read(
                setting.config.sampling.shortest(),
                &job.record,
                Machine { cpus: job.cpus },
                &mut |table, part| Ok::<_, Infallible>(job.series(table, part)),
            )?;
            let known = known.beside(job.beside).among(&systems::of(&setting.config).into());
            (job.record, job.earlier, known, job.exported_ns)
        }
        false => {
            let mut all = AllJobs::open(setting)?;
            let record = all.find_to_show(job)?;
            let earlier = all.earlier_runs(&record)?;
            let known = all.known(setting, &record, super::machine(setting, &record))?;
            let known = known.beside(all.beside(&record)?);
            (record, earlier, known, jobs::now_ns())
        }
    };
    let earlier: Vec<_> = earlier.iter().collect();
    let explained = known.with_job(&record, &earlier, now_ns, |job| {
        rules.iter().map(|rule| (*rule, rules::explain(rule, job))).collect::<Vec<_>>()
    });
    let mut stdout = output::stdout();
    let (label, lineage) = (record.label(), lineage(&record).to_string());
    if args.json {
        writeln!(stdout, "{}", json!({ "job": label, "lineage": lineage, "rules": objects(&explained) }))?;
        return Ok(0);
    }
    // The text of a script may be an argument.
    let lineage = view::text::cut(&view::text::escape(&lineage), LINEAGE_COLUMNS, stdout.style().ascii);
    let head = format!("Job {}, a run of {lineage}", view::text::escape(&label));
    stdout.write_all(view::text::hanging(&head, 4, &stdout.style()).as_bytes())?;
    let text = view::findings::explanations(&explained, args.rule.is_some(), &stdout.style());
    stdout.write_all(text.as_bytes())?;
    Ok(0)
}

/// Of each week, the newest first.
fn of_user(
    setting: &Setting,
    args: &ExplainArgs,
    all_rules: &Rules,
    rules: &[&Rule],
    user: &str,
) -> Result<i32> {
    let user = met_host::users::named(user).unwrap_or_else(|| user.to_owned());
    let filter = FilterArgs { since: Some(check::SINCE.to_owned()), ..FilterArgs::default() };
    // Those of others as well: the share of a user is one of all.
    let mut all = AllJobs::open(setting)?;
    let records = all.jobs(&list::filter_of(&filter)?)?;
    let mut weeks = user::sums(&records, &all.queues(), jobs::now_ns());
    weeks.retain(|sum| sum.user == user);
    weeks.sort_by_key(|sum| std::cmp::Reverse(sum.window_ns));
    if weeks.is_empty() {
        return Err(Failure::usage(format!("no jobs of {user:?} in the last {}", check::SINCE)));
    }
    let mut stdout = output::stdout();
    let explained = |sum: &user::UserSum| {
        let of = |rule| rules::explain_user(rule, sum, &all_rules.systems);
        rules.iter().map(|rule| (*rule, of(rule))).collect::<Vec<_>>()
    };
    if args.json {
        let week = |sum: &user::UserSum| {
            let (from, until) = (time(sum.window_ns.0), time(sum.window_ns.1));
            json!({ "from": from, "until": until, "rules": objects(&explained(sum)) })
        };
        writeln!(stdout, "{}", json!({ "user": user, "weeks": weeks.iter().map(week).collect::<Vec<_>>() }))?;
        return Ok(0);
    }
    for sum in &weeks {
        let [from, until] = [sum.window_ns.0, sum.window_ns.1].map(|ns| units::time(ns, &view::local_zone()));
        let count = units::counted(sum.jobs, "job");
        let head = format!("{count} of {}, {from} to {until}", view::text::escape(&user));
        stdout.write_all(view::text::hanging(&head, 4, &stdout.style()).as_bytes())?;
        let text = view::findings::explanations(&explained(sum), args.job.is_some(), &stdout.style());
        stdout.write_all(text.as_bytes())?;
    }
    Ok(0)
}

fn objects(explained: &[(&Rule, Explanation)]) -> Vec<Value> {
    explained.iter().map(|(rule, of)| rules::explanation_object(rule, of)).collect()
}
