//! `met explain`: why a rule found something in a job, or did not.

use std::io::Write;

use anyhow::Result;
use met_insight::lineage::lineage;
use met_insight::rules::{self, Scope};
use serde_json::json;

use super::export;
use crate::cli::ExplainArgs;
use crate::output;
use crate::view;
use met_config::Failure;
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;

pub fn explain(setting: &Setting, args: &ExplainArgs) -> Result<i32> {
    let rules = super::check::rules(args.rules.as_deref())?;
    let of_jobs = || rules.rules.iter().filter(|rule| rule.scope == Scope::Job);
    if let Some(name) = &args.rule
        && of_jobs().all(|rule| rule.name != *name)
    {
        let known = of_jobs().map(|rule| rule.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Failure::usage(format!("no rule named {name:?}; known: {known}")));
    }
    let mut all = AllJobs::open(setting)?;
    let record = all.find_to_show(&args.job)?;
    let earlier = all.earlier_runs(&record)?;
    let earlier: Vec<_> = earlier.iter().collect();
    let machine = super::machine(setting, &record);
    let known = export::known(setting, &mut all, &record, machine)?;
    let now_ns = jobs::now_ns();
    let wanted = |rule: &&rules::Rule| args.rule.as_ref().is_none_or(|name| rule.name == *name);
    let explained: Vec<(&rules::Rule, rules::Explanation)> =
        known.with_job(&record, &earlier, now_ns, |job| {
            of_jobs().filter(wanted).map(|rule| (rule, rules::explain(rule, job))).collect()
        });
    let mut stdout = output::stdout();
    if args.json {
        let objects: Vec<_> =
            explained.iter().map(|(rule, of)| view::findings::explanation(rule, of)).collect();
        let lineage = lineage(&record).to_string();
        writeln!(stdout, "{}", json!({ "job": record.label(), "lineage": lineage, "rules": objects }))?;
        return Ok(0);
    }
    let style = stdout.style();
    writeln!(
        stdout,
        "Job {}, a run of {}",
        view::text::escape(&record.label()),
        view::text::escape(&lineage(&record).to_string())
    )?;
    let text = match args.rule {
        Some(_) => explained.iter().map(|(rule, of)| view::findings::explained(rule, of, &style)).collect(),
        None => view::findings::summary(&explained, &style),
    };
    stdout.write_all(text.as_bytes())?;
    Ok(0)
}
