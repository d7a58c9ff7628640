//! `met check`: findings of many jobs, by user and rule. It reads, and writes nothing unless it sends messages; jobs of
//! which rules want more samples are sampled more often for a while.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use super::{Machines, list, messages};
use crate::cli::{CheckArgs, FilterArgs};
use crate::output;
use crate::view;
use anyhow::Result;
use met_config::Failure;
use met_core::by_threads::both;
use met_core::job::{JobKey, Record};
use met_core::managers;
use met_core::reaction::Reaction;
use met_core::{JOB, Table};
use met_insight::answers::FollowUp;
use met_insight::check::{self, Checked, Look, ReadSeries, SHORTEST_NS, Wanted};
use met_insight::finding::{self, Finding};
use met_insight::handled::Handled;
use met_insight::impact::{self, Impact};
use met_insight::rules::{self, Rules, user};
use met_query::jobs::{self, AllJobs, JobsFilter, Together};
use met_query::setting::Setting;
use met_query::systems;

pub(super) const SINCE: &str = "30d";

pub fn check(setting: &Setting, args: &CheckArgs) -> Result<i32> {
    if args.fields {
        let mut stdout = output::stdout();
        stdout.write_all(view::findings::fields(&stdout.style()).as_bytes())?;
        return Ok(0);
    }
    let rules = rules(setting, args.rules.as_deref())?;
    let since = args.since.clone().unwrap_or_else(|| SINCE.to_owned());
    let filter = FilterArgs { since: Some(since), user: args.user.clone(), ..FilterArgs::default() };
    // The sums of a user are compared with those of others.
    let of_all = FilterArgs { since: filter.since.clone(), ..FilterArgs::default() };
    let mut all = Together::open(setting)?;
    let records = all.jobs(&JobsFilter { is_brief: true, ..list::filter_of(&of_all)? })?;
    let asked = list::filter_of(&filter)?;
    let is_wanted = |record: &Record| match (&asked.owner.user, asked.owner.uid) {
        (None, None) => true,
        (user, uid) => user.is_some() && record.user == *user || uid.is_some() && record.uid == uid,
    };
    if !records.iter().any(is_wanted) {
        list::unknown_name(setting, &filter)?;
    }
    let now_ns = jobs::now_ns();
    let shortest_ns = if args.rules.is_some() { shortest_ns(&rules) } else { SHORTEST_NS };
    let machines = Machines::of(setting);
    let look = Look {
        rules: &rules,
        is_wanted: &is_wanted,
        machine: &|record| machines.of_job(record),
        shortest_ns,
        interval: setting.config.sampling.shortest(),
        now_ns,
    };
    let queues = all.first().queues();
    let sums = || user::sums(&records, &queues, now_ns);
    let (sums, found) = both(all.readers().len() > 1, sums, || of_jobs(&look, &records, &mut all));
    let (mut findings, followed) = found?;
    let watched = if args.dry_run { Vec::new() } else { watch(&look, &records, all.first())? };
    let wanted: Option<HashSet<String>> = (asked.owner.user.is_some() || asked.owner.uid.is_some())
        .then(|| records.iter().filter(|record| is_wanted(record)).filter_map(user::owner).collect());
    for sum in sums.iter().filter(|sum| wanted.as_ref().is_none_or(|wanted| wanted.contains(&sum.user))) {
        findings.extend(rules::findings_of_user(&rules, sum));
    }
    let count = records.iter().filter(|record| is_wanted(record)).count();
    let is_cluster = records.iter().any(|record| managers::spans_nodes(&record.key.manager));
    let _sending = (args.send && !args.dry_run).then(|| messages::lock(setting)).transpose()?;
    // What must not be sent again has to be known.
    let reactions = all.first().reactions(args.send)?;
    let handled = Handled::of(&reactions);
    let (hidden, mut findings): (Vec<_>, Vec<_>) = check::worthwhile(findings, is_cluster)
        .into_iter()
        .partition(|finding| handled.hides(finding, now_ns).is_some());
    finding::rank(&mut findings);
    if args.send {
        findings.retain(|finding| !handled.is_sent(finding, now_ns));
    }
    let impact = args.dry_run.then(|| impact::impact(&findings));
    if args.send {
        let summary = impact.map(|impact| impact::words(&impact, count));
        return messages::send(setting, all.first(), &records, findings, summary.as_deref());
    }
    let hidden: Vec<(Finding, &Reaction)> = hidden
        .into_iter()
        .filter_map(|finding| handled.hides(&finding, now_ns).map(|reaction| (finding, reaction)))
        .collect();
    let checked = Checked { jobs: count, findings, hidden, followed, with_hidden: args.all };
    print(&checked, impact.as_ref(), &watched, args.json)?;
    // The process ends: to free each of many takes longer than that.
    std::mem::forget((checked, records));
    Ok(0)
}

/// With what a dry run says, where it is one.
fn print(
    checked: &Checked<'_>,
    impact: Option<&Impact>,
    watched: &[Wanted<'_>],
    is_json: bool,
) -> Result<()> {
    let mut stdout = output::stdout();
    if is_json {
        let mut object = check::checked_object(checked);
        object.watched = watched.iter().map(Wanted::object).collect();
        object.dry_run = impact.map(impact::object);
        return Ok(check::write_checked(&object, &mut stdout)?);
    }
    let text = match impact {
        Some(impact) => impact::words(impact, checked.jobs),
        None => {
            view::findings::checked(checked, &stdout.style())
                + &view::findings::watched(watched, &stdout.style())
        }
    };
    Ok(stdout.write_all(text.as_bytes())?)
}

/// Has running jobs sampled more often of which rules want more samples, and returns those that are.
fn watch<'r>(look: &Look<'r>, records: &'r [Record], all: &mut AllJobs) -> Result<Vec<Wanted<'r>>> {
    let series = &mut |record: &Record, table, part: &str, _| all.part_series(record, table, part);
    let mut wanted = check::wanted(look, records, series)?;
    wanted.sort_by_key(|one| one.wanted_for);
    let of_one_time = wanted.chunk_by(|one, other| one.wanted_for == other.wanted_for);
    let watched: HashSet<JobKey> = of_one_time
        .flat_map(|some| {
            let keys: Vec<JobKey> = some.iter().map(|one| one.record.key.clone()).collect();
            all.sample_more(&keys, some[0].wanted_for)
        })
        .collect();
    wanted.retain(|one| watched.contains(&one.record.key));
    Ok(wanted)
}

fn of_jobs(look: &Look<'_>, records: &[Record], all: &mut Together) -> Result<(Vec<Finding>, Vec<FollowUp>)> {
    let readers = all.readers().iter_mut();
    let mut readers: Vec<_> = readers
        .map(|all| {
            move |record: &Record, table: &'static Table, part: &str, wanted| match table.name == JOB.name {
                true => all.columns(record, wanted),
                false => all.part_series(record, table, part),
            }
        })
        .collect();
    let mut readers: Vec<&mut ReadSeries<'_, _>> = readers.iter_mut().map(|read| read as _).collect();
    check::of_jobs(look, records, &mut readers)
}

/// The length of the shortest job that a rule would speak of.
fn shortest_ns(rules: &Rules) -> i64 {
    let lengths = rules.rules.iter().map(|rule| (rule.gates.length_s * 1e9) as i64);
    lengths.min().unwrap_or(SHORTEST_NS)
}

/// The rules of a file, or those built in, with the machines of the configuration.
pub fn rules(setting: &Setting, path: Option<&Path>) -> Result<Rules> {
    let rules = path.map_or_else(|| Ok(Rules::built_in().clone()), of_file)?;
    Ok(Rules { systems: systems::of(&setting.config).into(), ..rules })
}

fn of_file(path: &Path) -> Result<Rules> {
    let shown = path.display();
    let text = met_host::text_file::read(path)
        .map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")))?;
    rules::parse(&text).map_err(|mistake| Failure::usage(format!("{shown}: {mistake}")))
}
