//! `met check`: findings of many jobs, by user and rule. It reads, and writes nothing unless it sends messages.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use super::{Machines, export, list, messages};
use crate::cli::{CheckArgs, FilterArgs};
use crate::output;
use crate::view;
use anyhow::Result;
use met_config::Failure;
use met_core::job::{LOCAL, Record, State};
use met_core::reaction::Reaction;
use met_core::{job_table, managers};
use met_insight::answers::{FollowUp, follow_ups};
use met_insight::average;
use met_insight::check::{self, Checked};
use met_insight::finding::{self, Finding};
use met_insight::handled::Handled;
use met_insight::lineage::Lineages;
use met_insight::neighbours::Neighbours;
use met_insight::rules::{self, Rules, user};
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;

pub(super) const SINCE: &str = "30d";
/// Runs before a job that are looked at.
const EARLIER: usize = 20;
/// No rule that needs samples speaks of a shorter job.
const SHORTEST_NS: i64 = 60_000_000_000;

pub fn check(setting: &Setting, args: &CheckArgs) -> Result<i32> {
    let mut stdout = output::stdout();
    if args.fields {
        stdout.write_all(view::findings::fields(&stdout.style()).as_bytes())?;
        return Ok(0);
    }
    let rules = rules(args.rules.as_deref())?;
    let since = args.since.clone().unwrap_or_else(|| SINCE.to_owned());
    let filter = FilterArgs { since: Some(since), user: args.user.clone(), ..FilterArgs::default() };
    // The sums of a user are compared with those of others.
    let of_all = FilterArgs { since: filter.since.clone(), ..FilterArgs::default() };
    let mut all = AllJobs::open(setting)?;
    let records = all.jobs(&list::filter_of(&of_all)?)?;
    let asked = list::filter_of(&filter)?;
    let is_wanted = |record: &Record| match (&asked.user, asked.uid) {
        (None, None) => true,
        (user, uid) => user.is_some() && record.user == *user || uid.is_some() && record.uid == uid,
    };
    if !records.iter().any(is_wanted) {
        list::unknown_name(setting, &filter)?;
    }
    let now_ns = jobs::now_ns();
    let is_own_rules = args.rules.is_some();
    let shortest_ns = if is_own_rules { shortest_ns(&rules) } else { SHORTEST_NS };
    let wanted = Wanted { is_wanted: &is_wanted, shortest_ns, now_ns };
    let (mut findings, followed) = of_jobs(setting, &mut all, &rules, &records, &wanted)?;
    let wanted: HashSet<String> =
        records.iter().filter(|record| is_wanted(record)).filter_map(user::owner).collect();
    for sum in user::sums(&records, now_ns).iter().filter(|sum| wanted.contains(&sum.user)) {
        findings.extend(rules::findings_of_user(&rules, sum));
    }
    let is_cluster = records.iter().any(|record| managers::spans_nodes(&record.key.manager));
    let _sending = (args.send && !args.dry_run).then(|| messages::lock(setting)).transpose()?;
    // What must not be sent again has to be known.
    let reactions = all.reactions(args.send)?;
    let handled = Handled::of(&reactions);
    let (hidden, mut findings): (Vec<_>, Vec<_>) = check::worthwhile(findings, is_cluster)
        .into_iter()
        .partition(|finding| handled.hides(finding, now_ns).is_some());
    finding::rank(&mut findings);
    if args.send {
        findings.retain(|finding| !handled.is_sent(finding, now_ns));
        return messages::send(setting, &mut all, &records, findings, args.dry_run);
    }
    let hidden: Vec<(Finding, &Reaction)> = hidden
        .into_iter()
        .filter_map(|finding| handled.hides(&finding, now_ns).map(|reaction| (finding, reaction)))
        .collect();
    let count = records.iter().filter(|record| is_wanted(record)).count();
    let checked = Checked { jobs: count, findings, hidden, followed, with_hidden: args.all };
    if args.json {
        writeln!(stdout, "{}", check::checked_object(&checked))?;
    } else {
        let style = stdout.style();
        stdout.write_all(view::findings::checked(&checked, &style).as_bytes())?;
    }
    Ok(0)
}

/// The length of the shortest job that a rule would speak of.
fn shortest_ns(rules: &Rules) -> i64 {
    let lengths = rules.rules.iter().map(|rule| (rule.gates.length_s * 1e9) as i64);
    lengths.min().unwrap_or(SHORTEST_NS)
}

/// Which jobs are looked at.
struct Wanted<'a> {
    is_wanted: &'a dyn Fn(&Record) -> bool,
    shortest_ns: i64,
    now_ns: i64,
}

/// The rules of a file, or those built in.
pub fn rules(path: Option<&Path>) -> Result<Rules> {
    let Some(path) = path else { return Ok(Rules::built_in().clone()) };
    let shown = path.display();
    let text = met_host::text_file::read(path)
        .map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")))?;
    rules::parse(&text).map_err(|mistake| Failure::usage(format!("{shown}: {mistake}")))
}

fn of_jobs(
    setting: &Setting,
    all: &mut AllJobs,
    rules: &Rules,
    records: &[Record],
    wanted: &Wanted<'_>,
) -> Result<(Vec<Finding>, Vec<FollowUp>)> {
    let now_ns = wanted.now_ns;
    let lineages = Lineages::of(records);
    let machines = Machines::of(setting);
    let neighbours = Neighbours::of(records);
    let (mut findings, mut followed) = (Vec::new(), Vec::new());
    for (index, record) in records.iter().enumerate() {
        if !(wanted.is_wanted)(record) || !is_worth_reading(record, wanted) {
            continue;
        }
        let earlier = lineages.before(index, EARLIER);
        let known = export::known(setting, all, record, machines.of_job(record))?;
        let known = known.beside(&neighbours, record, now_ns);
        known.with_job(record, &earlier, now_ns, |job| {
            findings.extend(rules::findings(rules, job));
            followed.extend(follow_ups(job));
        });
    }
    Ok((findings, followed))
}

/// Series are read of jobs about which something could be said.
fn is_worth_reading(record: &Record, wanted: &Wanted<'_>) -> bool {
    let wall_ns = average::wall_ns(record, wanted.now_ns);
    let is_long = wall_ns.is_some_and(|wall_ns| wall_ns >= wanted.shortest_ns);
    let killed = record.totals.get(job_table::OOM_KILLS).is_some_and(|kills| kills > 0);
    record.state != State::Pending
        && (is_long || killed)
        && (record.inside.is_none() || record.key.manager != LOCAL)
}
