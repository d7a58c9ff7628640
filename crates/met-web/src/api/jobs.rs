//! Jobs, and the processes of one.

use met_core::job::{Record, State};
use met_core::{Column, JOB};
use met_host::clock;
use met_insight::job_object::{self, WithRow};
use met_insight::{job_columns, json};
use met_query::jobs::Meant;
use serde_json::{Value, json};
use utoipa::openapi::{ObjectBuilder, Schema, Type};

use super::endpoint::{Action, Content, Endpoint, Table, places};
use super::parameters::{self, FORMAT};
use super::schemas::{list, of, optional, time, with_keys};
use super::{Asked, Visible};
use crate::problem::Problem;

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/api/v1/jobs",
        help: "jobs, newest first or in another order",
        answer: "`{\"jobs\": [...], \"next\": cursor or null}`, newest first or by `sort`",
        parameters: parameters::JOBS,
        action: Action::List(jobs),
        table: Table::Rows("jobs", || job_columns::places().collect()),
        schema: jobs_schema,
    },
    Endpoint {
        path: "/api/v1/jobs/{job}",
        help: "one job or step",
        answer: "one job; `{job}` is what commands accept: `12`, `slurm:1234_7`, `12@node7`, a name, `@last`, a \
            step `1234.0`",
        parameters: &[],
        action: Action::Answer(job),
        table: Table::None,
        schema: job_schema,
    },
    Endpoint {
        path: "/api/v1/jobs/{job}/processes",
        help: "the largest processes of a job that are stored",
        answer: "`{\"processes\": [...]}`: its largest processes that are stored",
        parameters: &[FORMAT],
        action: Action::Answer(processes),
        table: Table::Rows("processes", || places(&PROCESS)),
        schema: processes_schema,
    },
];

const PROCESS: [&str; 14] = [
    "pid",
    "ppid",
    "uid",
    "user",
    "command",
    "command_line",
    "node",
    "start",
    "end",
    "quality",
    "cpu_seconds",
    "memory_peak_bytes",
    "read_bytes",
    "written_bytes",
];

fn jobs(visible: &Visible<'_>, asked: &Asked) -> Result<Content, Problem> {
    let filter = parameters::jobs_filter(&asked.given)?;
    let (page, warnings) = visible.jobs(&filter)?;
    let now_ns = clock::realtime_ns();
    let next = page.next.as_ref().and_then(parameters::encode);
    if !asked.csv {
        return Ok(Content::Text {
            json: job_object::list(&page.jobs, next.as_deref(), &warnings, now_ns),
            next,
        });
    }
    let jobs: Vec<Value> = page.jobs.iter().map(|record| job_columns::object(record, now_ns)).collect();
    Ok(Content::Value(json!({ "jobs": jobs, "next": next })))
}

/// The public object of a job, with its figures as a flat row.
pub(super) fn object(record: &Record, now_ns: i64) -> Value {
    WithRow::new(record, now_ns).value()
}

fn job(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let (Meant::Job(record) | Meant::Step(record)) = visible.find(asked.path("job"))?;
    Ok(object(&record, clock::realtime_ns()))
}

/// A job that was asked for, which has more than a step.
pub(super) fn whole_job(visible: &Visible<'_>, text: &str, what: &str) -> Result<Record, Problem> {
    match visible.find(text)? {
        Meant::Job(record) => Ok(record),
        Meant::Step(_) => {
            Err(Problem::field("job", format!("a step has no {what} of its own; ask for its job")))
        }
    }
}

fn processes(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let (Meant::Job(record) | Meant::Step(record)) = visible.find(asked.path("job"))?;
    let processes: Vec<Value> = record.processes.iter().map(json::process).collect();
    Ok(json!({ "processes": processes }))
}

/// Figures by their names in the catalogue, as far as they are known.
fn figures() -> Schema {
    let columns = JOB.columns.iter();
    columns
        .fold(ObjectBuilder::new(), |object, column| object.property(column.json_name(), number(column)))
        .into()
}

pub(super) fn job_schema() -> Schema {
    let states =
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(State::ALL.map(State::name)));
    let identity = with_keys([
        ("id", of(Type::String)),
        ("raw_id", of(Type::String)),
        ("manager", of(Type::String)),
        ("cluster", optional(Type::String)),
        ("name", of(Type::String)),
        ("user", optional(Type::String)),
        ("account", optional(Type::String)),
        ("command", list(of(Type::String))),
        ("state", states.into()),
        ("exit_code", optional(Type::Integer)),
        ("signal", optional(Type::Integer)),
        ("start", time()),
        ("end", time()),
        ("nodes", list(of(Type::String))),
    ]);
    let row = with_keys([("reference", of(Type::String))])
        .property("from_ms", optional(Type::Integer))
        .property("to_ms", optional(Type::Integer));
    with_keys([
        ("version", of(Type::Integer)),
        ("job", identity.into()),
        ("totals", figures()),
        ("average", of(Type::Object)),
        ("quality", of(Type::Object)),
        ("requested", of(Type::Object)),
        ("allocated", of(Type::Object)),
        ("efficiency", of(Type::Object)),
        ("scheduling", of(Type::Object)),
        ("gpus", list(of(Type::Object))),
        ("parts", list(of(Type::Object))),
        ("row", row.into()),
    ])
    .into()
}

fn jobs_schema() -> Schema {
    with_keys([("jobs", list(job_schema())), ("next", optional(Type::String))])
        .property("warnings", list(of(Type::String)))
        .into()
}

fn processes_schema() -> Schema {
    let process = with_keys([("pid", of(Type::Integer)), ("quality", of(Type::String))])
        .property("command", of(Type::String))
        .property("start", time())
        .property("end", time())
        .property("cpu_seconds", of(Type::Number));
    with_keys([("processes", list(process.into()))]).into()
}

fn number(column: &Column) -> Schema {
    ObjectBuilder::new().schema_type(Type::Number).description(Some(column.help)).into()
}
