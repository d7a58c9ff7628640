//! Findings of many jobs, by user and rule, as `met check` has them.

use std::sync::Arc;
use std::time::Instant;

use met_core::Table;
use met_core::job::Record;
use met_core::managers;
use met_core::reaction::Reaction;
use met_core::series::Columns;
use met_host::clock;
use met_insight::check::{self, Checked, Look, SHORTEST_NS};
use met_insight::finding::{self, Finding};
use met_insight::handled::Handled;
use met_insight::rules::{self, Rules, user};
use met_query::jobs::{JobTimes, JobsFilter, PageAsk};
use met_query::query::{FirstJobs, first_jobs};
use serde_json::Value;
use utoipa::openapi::{Schema, Type};

use super::endpoint::{self, Action, Endpoint, places};
use super::parameters::{FORMAT, Given, Kind, Parameter, parameter};
use super::schemas::{list, of, optional, with_keys};
use super::{Asked, Needs, Visible};
use crate::problem::Problem;
use crate::samples::{self, SAMPLED_EVERY};

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    path: "/api/v1/findings",
    help: "what rules find in many jobs, by user and rule",
    answer: "what the built-in rules find in the jobs since `since` (default: 30 days ago), of `user`, as \
            `met check --json`: `groups` by user and rule, `findings`, `hidden` (muted or acknowledged), \
            `followed`; `more_jobs` if only the newest 50,000 were read; `warnings` where jobs cannot be \
            read. One such answer is made at a time, within 20 s, and logins take turns: of each, one is \
            made and one may wait (429 beyond that). Users get findings about their own jobs and accounts",
    parameters: FINDINGS,
    action: Action::After(Needs::FindingsTurn, findings),
    table: endpoint::Table::Rows("groups", || places(&GROUP)),
    schema,
}];

pub(crate) const FINDINGS: &[Parameter] = &[
    parameter("since", Kind::Time, "jobs that ran at or after this time (default: 30 days ago)"),
    parameter("user", Kind::Text, "only findings about this user"),
    FORMAT,
];
const GROUP: [&str; 6] = ["user", "rule", "severity", "count", "what", "how"];
const USUAL_NS: i64 = 30 * 86_400 * 1_000_000_000;
/// The newest are looked at.
const JOBS_MAX: usize = 50_000;
const PAGE_JOBS: usize = 1_000;

/// What is known of the jobs that were looked at.
pub(crate) struct LookedAt {
    /// There are more; these are the newest.
    pub is_cut: bool,
    /// What cannot be read.
    pub warnings: Vec<String>,
    /// Only these were asked for, and none of the jobs is theirs.
    pub unknown_user: Option<String>,
}

/// What the rules find in the jobs that the viewer sees. The caller waits for the client's turn.
pub(crate) fn found<T>(
    visible: &Visible<'_>,
    given: &Given,
    with: impl FnOnce(&Checked<'_>, &LookedAt) -> T,
) -> Result<T, Problem> {
    let begin = Instant::now();
    let is_in_time = || begin.elapsed() < visible.findings_within;
    let too_long = || Problem::field("since", "these are too many jobs to look at; choose a later time");
    let failed = |error: anyhow::Error| if is_in_time() { Problem::failed(&error) } else { too_long() };
    let now_ns = clock::realtime_ns();
    let since_ns = Some(given.ns("since").unwrap_or(now_ns - USUAL_NS));
    // The sums of a user are compared with those of others.
    let filter = JobsFilter {
        is_brief: true,
        times: JobTimes { since_ns, ..JobTimes::default() },
        page: PageAsk::first(PAGE_JOBS),
        ..JobsFilter::default()
    };
    let first = first_jobs(visible.query, visible.viewer, &filter, JOBS_MAX).map_err(failed)?;
    let FirstJobs { jobs: records, is_cut, warnings } = first;
    if !is_in_time() {
        return Err(too_long());
    }
    let user = given.text("user");
    let is_wanted = |record: &Record| user.is_none() || user::owner(record) == user;
    let machines = visible.machines()?;
    let machine = |record: &Record| machines.of_job(record);
    let rules = &Rules { systems: Arc::clone(visible.systems), ..Rules::built_in().clone() };
    let (is_wanted, shortest_ns, interval): (&(dyn Fn(&Record) -> bool + Sync), _, _) =
        (&is_wanted, SHORTEST_NS, SAMPLED_EVERY);
    let look = Look { rules, is_wanted, machine: &machine, shortest_ns, interval, now_ns };
    let all_ms = (i64::MIN, i64::MAX);
    let mut series = |record: &Record, table: &'static Table, part: &str, _: Columns| {
        anyhow::ensure!(is_in_time(), "it takes too long");
        samples::of_job(visible, record, table, part, all_ms)
    };
    let (mut findings, followed) = check::of_jobs(&look, &records, &mut [&mut series]).map_err(failed)?;
    let queues = visible.query.queues(visible.viewer).map_err(failed)?;
    let is_about = |sum: &&user::UserSum| user.as_ref().is_none_or(|user| sum.user == *user);
    for sum in user::sums(&records, &queues, now_ns).iter().filter(is_about) {
        findings.extend(rules::findings_of_user(rules, sum));
    }
    let is_cluster = records.iter().any(|record| managers::spans_nodes(&record.key.manager));
    let reactions = visible.query.reactions(visible.viewer).map_err(failed)?;
    let handled = Handled::of(&reactions);
    let (mut shown, mut hidden): (Vec<Finding>, Vec<(Finding, &Reaction)>) = Default::default();
    for finding in check::worthwhile(findings, is_cluster) {
        match handled.hides(&finding, now_ns) {
            Some(reaction) => hidden.push((finding, reaction)),
            None => shown.push(finding),
        }
    }
    finding::rank(&mut shown);
    let jobs = records.iter().filter(|record| is_wanted(record)).count();
    let looked_at = LookedAt { is_cut, warnings, unknown_user: user.filter(|_| jobs == 0) };
    Ok(with(&Checked { jobs, findings: shown, hidden, followed, with_hidden: false }, &looked_at))
}

fn findings(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let object = |checked: &Checked<'_>, of: &LookedAt| {
        let mut object = serde_json::to_value(check::checked_object(checked))?;
        object["more_jobs"] = Value::Bool(of.is_cut);
        if !of.warnings.is_empty() {
            object["warnings"] = of.warnings.clone().into();
        }
        Ok::<_, serde_json::Error>(object)
    };
    found(visible, &asked.given, object)?.map_err(|error| Problem::failed(&error.into()))
}

fn schema() -> Schema {
    let group = with_keys([
        ("user", optional(Type::String)),
        ("rule", of(Type::String)),
        ("severity", of(Type::String)),
        ("count", of(Type::Integer)),
        ("what", of(Type::String)),
        ("how", of(Type::String)),
    ]);
    with_keys([
        ("jobs", of(Type::Integer)),
        ("groups", list(group.into())),
        ("findings", list(of(Type::Object))),
        ("hidden", of(Type::Integer)),
        ("followed", of(Type::Object)),
        ("more_jobs", of(Type::Boolean)),
    ])
    .property("warnings", list(of(Type::String)))
    .into()
}
