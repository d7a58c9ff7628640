//! What happened with a job, and why rules report it or not, as `met show` and `met explain` have them.

use met_core::job::Record;
use met_host::clock;
use met_insight::answers::{self, Known};
use met_insight::lineage::{self, lineage};
use met_insight::report::Machine;
use met_insight::rules::{self, Rules, Scope};
use met_query::jobs::{self, JobsFilter};
use met_query::query::first_jobs;
use serde_json::{Value, json};
use utoipa::openapi::{Schema, Type};

use super::compare::earlier;
use super::endpoint::{Action, Endpoint, Table};
use super::jobs::whole_job;
use super::parameters::{Kind, Parameter, parameter};
use super::schemas::{list, of, optional, with_keys};
use super::{Asked, Visible};
use crate::problem::Problem;
use crate::samples::{self, SAMPLED_EVERY};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/api/v1/jobs/{job}/answers",
        help: "what happened with a job, what limited it, and what to do",
        answer: "what happened with the job: verdict, phases, bottleneck, findings with their evidence, requests \
            for the next run, differences from earlier runs; `answers` of `met show --json`",
        parameters: &[],
        action: Action::Answer(answers),
        table: Table::None,
        schema: answers_schema,
    },
    Endpoint {
        path: "/api/v1/jobs/{job}/explain",
        help: "why each rule reports a job or not, with its numbers",
        answer: "each rule with its numbers and why it reports the job or not, as `met explain --json`; `rule` \
            chooses one",
        parameters: &[RULE],
        action: Action::Answer(explain),
        table: Table::None,
        schema: explain_schema,
    },
];

const RULE: Parameter = parameter("rule", Kind::Text, "only this rule");

/// The samples that answers are made of.
fn known(visible: &Visible<'_>, record: &Record, machine: Machine) -> Result<Known, Problem> {
    let all_ms = (i64::MIN, i64::MAX);
    Known::read(SAMPLED_EVERY, record, machine, &mut |table, part| {
        samples::of_job(visible, record, table, part, all_ms)
    })
    .map(|known| known.among(visible.systems))
    .map_err(|error| Problem::failed(&error))
}

/// The same with what other jobs on its node did, of those that the viewer sees, where a rule asks for it.
pub(crate) fn known_beside(
    visible: &Visible<'_>,
    record: &Record,
    machine: Machine,
    all_runs: &[Record],
    now_ns: i64,
) -> Result<Known, Problem> {
    let (rules, earlier) = (Rules::built_in(), lineage::earlier(record, all_runs));
    let beside =
        jobs::beside_if_asked(rules, record, machine, &earlier, now_ns, |filter| newest(visible, filter))?;
    let known = known(visible, record, machine)?.beside(beside);
    let all_ms = (i64::MIN, i64::MAX);
    Ok(known.after(SAMPLED_EVERY, record, all_runs, now_ns, &mut |run, table, part, _| {
        samples::of_job(visible, run, table, part, all_ms)
    }))
}

fn newest(visible: &Visible<'_>, filter: &JobsFilter) -> Result<Vec<Record>, Problem> {
    let count = filter.page.limit.unwrap_or(usize::MAX);
    let found = first_jobs(visible.query, visible.viewer, filter, count);
    Ok(found.map_err(|error| Problem::failed(&error))?.jobs)
}

fn answers(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let record = whole_job(visible, asked.path("job"), "answers")?;
    let (runs, now_ns) = (earlier(visible, &record)?, clock::realtime_ns());
    let known = known_beside(visible, &record, visible.machines()?.of_job(&record), &runs, now_ns)?;
    let answers = known.answers(&record, &runs, now_ns);
    let mut object = answers::object(&answers);
    object["job"] = json!(record.label());
    object["lineage"] = json!(lineage(&record).to_string());
    Ok(object)
}

fn explain(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let built_in = Rules::built_in();
    let chosen = match asked.given.text("rule") {
        Some(name) => {
            vec![built_in.named(&name, Scope::Job).map_err(|why| Problem::field("rule", why))?]
        }
        None => built_in.about(Scope::Job).collect(),
    };
    let record = whole_job(visible, asked.path("job"), "explanations")?;
    let runs = earlier(visible, &record)?;
    let runs = lineage::earlier(&record, &runs);
    let now_ns = clock::realtime_ns();
    let beside = jobs::beside(&record, now_ns, |filter| newest(visible, filter))?;
    let known = known(visible, &record, visible.machines()?.of_job(&record))?.beside(beside);
    let explained: Vec<Value> = known.with_job(&record, &runs, now_ns, |job| {
        chosen.iter().map(|rule| rules::explanation_object(rule, &rules::explain(rule, job))).collect()
    });
    Ok(json!({ "job": record.label(), "lineage": lineage(&record).to_string(), "rules": explained }))
}

fn answers_schema() -> Schema {
    let objects = || list(of(Type::Object));
    with_keys([
        ("job", of(Type::String)),
        ("lineage", of(Type::String)),
        ("verdict", of(Type::String)),
        ("bottleneck", optional(Type::Object)),
        ("phases", objects()),
        ("imbalance", list(of(Type::String))),
        ("findings", objects()),
        ("directives", objects()),
        ("differences", objects()),
        ("followed", objects()),
        ("followed_findings", objects()),
    ])
    .into()
}

fn explain_schema() -> Schema {
    with_keys([("job", of(Type::String)), ("lineage", of(Type::String)), ("rules", list(of(Type::Object)))])
        .into()
}
