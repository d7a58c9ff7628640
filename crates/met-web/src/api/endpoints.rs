//! What can be asked for. Lists are bounded and continued by `next`; times are RFC 3339.

use met_core::job::{Record, State};
use met_core::{Column, JOB};
use met_host::clock;
use met_insight::job_object::{self, WithRow};
use met_insight::{job_columns, json};
use met_query::jobs::Meant;
use serde_json::{Value, json};
use utoipa::openapi::{ObjectBuilder, Schema, Type};

use super::parameters::{self, COLUMNS, FORMAT, Kind, POINTS, Parameter, SINCE, UNTIL, parameter};
use super::schemas::{list, of, optional, time, with_keys};
use super::{
    Asked, Needs, Visible, answers, compare, document, findings, nodes, people, scale, schemas, series, usage,
};
use crate::problem::Problem;

/// One endpoint: all that the router, the OpenAPI document and the tests know of it.
pub struct Endpoint {
    pub path: &'static str,
    pub help: &'static str,
    pub parameters: &'static [Parameter],
    pub action: Action,
    pub table: Table,
    pub schema: fn() -> Schema,
}

impl Endpoint {
    /// The answer of one that does not stay open.
    pub(super) fn content(&self, visible: &Visible<'_>, asked: &Asked) -> Result<Content, Problem> {
        match self.action {
            Action::Answer(make) | Action::After(_, make) => make(visible, asked).map(Content::Value),
            Action::List(make) => make(visible, asked),
            Action::Stream => Ok(Content::Value(Value::Null)),
        }
    }

    pub(super) fn needs(&self) -> Needs {
        if let Action::After(needs, _) = self.action { needs } else { Needs::Nothing }
    }
}

#[derive(Clone, Copy)]
pub enum Action {
    /// Makes the answer, in a background thread.
    Answer(fn(&Visible<'_>, &Asked) -> Result<Value, Problem>),
    /// The same, after this was waited for.
    After(Needs, fn(&Visible<'_>, &Asked) -> Result<Value, Problem>),
    /// The same, of one that is so long that it is written at once.
    List(fn(&Visible<'_>, &Asked) -> Result<Content, Problem>),
    /// Stays open and sends events.
    Stream,
}

/// What an answer says.
pub enum Content {
    Value(Value),
    /// JSON, and where the list goes on.
    Text {
        json: String,
        next: Option<String>,
    },
}

/// What of an answer is a table, and can be had as CSV.
#[derive(Clone, Copy)]
pub enum Table {
    None,
    /// The objects below this key; columns by name and place in an object.
    Rows(&'static str, fn() -> Vec<(String, String)>),
    /// Times and columns of one series.
    Series,
    /// Several of them, each with its table and part.
    ManySeries,
}

const RANGE: &[Parameter] = &[
    parameter("by", Kind::Choice(&["user", "account", "node", "manager"]), "what to sum by (default: user)"),
    parameter("since", Kind::Time, "jobs that ended at or after this time (default: 30 days ago)"),
    parameter("until", Kind::Time, "jobs that ended before this time (default: now)"),
    FORMAT,
];

pub const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/api/v1/jobs",
        help: "jobs, newest first or in another order",
        parameters: parameters::JOBS,
        action: Action::List(jobs),
        table: Table::Rows("jobs", || job_columns::places().collect()),
        schema: jobs_schema,
    },
    Endpoint {
        path: "/api/v1/jobs/{job}",
        help: "one job or step",
        parameters: &[],
        action: Action::Answer(job),
        table: Table::None,
        schema: job_schema,
    },
    Endpoint {
        path: "/api/v1/jobs/{job}/series",
        help: "samples of a job, of one of its GPUs or events, or of its details",
        parameters: &[
            parameter("card", Kind::Text, "uuid of a GPU of the job"),
            parameter("event", Kind::Text, "name of a perf event"),
            parameter("details", Kind::Flag, "the details of the job"),
            COLUMNS,
            SINCE,
            UNTIL,
            POINTS,
            parameter(
                "after",
                Kind::Time,
                "without points: samples after this time; `next` of the previous answer",
            ),
            FORMAT,
        ],
        action: Action::Answer(series::of_job),
        table: Table::Series,
        schema: series::series_schema,
    },
    Endpoint {
        path: "/api/v1/jobs/{job}/processes",
        help: "the largest processes of a job that are stored",
        parameters: &[FORMAT],
        action: Action::Answer(processes),
        table: Table::Rows("processes", || places(&PROCESS)),
        schema: processes_schema,
    },
    Endpoint {
        path: "/api/v1/jobs/{job}/answers",
        help: "what happened with a job, what limited it, and what to do",
        parameters: &[],
        action: Action::Answer(answers::answers),
        table: Table::None,
        schema: answers::answers_schema,
    },
    Endpoint {
        path: "/api/v1/jobs/{job}/explain",
        help: "why each rule reports a job or not, with its numbers",
        parameters: &[answers::RULE],
        action: Action::Answer(answers::explain),
        table: Table::None,
        schema: answers::explain_schema,
    },
    Endpoint {
        path: "/api/v1/jobs/{job}/scale",
        help: "how a job would run with more or fewer workers, from the runs of its lineage",
        parameters: scale::SCALE,
        action: Action::Answer(scale::scale),
        table: Table::None,
        schema: scale::schema,
    },
    Endpoint {
        path: "/api/v1/jobs/{job}/compare",
        help: "a job beside other jobs or its earlier runs",
        parameters: &[compare::WITH],
        action: Action::Answer(compare::compare),
        table: Table::None,
        schema: compare::schema,
    },
    Endpoint {
        path: "/api/v1/nodes",
        help: "the nodes of a cluster, or the machine of a daemon",
        parameters: &[FORMAT],
        action: Action::Answer(nodes::nodes),
        table: Table::Rows("nodes", || places(&nodes::NODE)),
        schema: nodes::nodes_schema,
    },
    Endpoint {
        path: "/api/v1/nodes/{node}",
        help: "one node, and the jobs that run on it",
        parameters: &[],
        action: Action::Answer(nodes::node),
        table: Table::None,
        schema: nodes::node_schema,
    },
    Endpoint {
        path: "/api/v1/nodes/{node}/series",
        help: "series of a node, reduced",
        parameters: &[
            parameter("table", Kind::Table, "only this table of the catalogue"),
            parameter("part", Kind::Text, "only this part: a disk, a zone, a sensor"),
            COLUMNS,
            parameter("since", Kind::Time, "from this time on (default: 1 hour ago)"),
            UNTIL,
            POINTS,
            FORMAT,
        ],
        action: Action::Answer(series::of_node),
        table: Table::ManySeries,
        schema: series::node_series_schema,
    },
    Endpoint {
        path: "/api/v1/users",
        help: "users, with their accounts",
        parameters: &[FORMAT],
        action: Action::Answer(people::users),
        table: Table::Rows("users", || places(&people::USER)),
        schema: people::users_schema,
    },
    Endpoint {
        path: "/api/v1/accounts",
        help: "accounts, with their users",
        parameters: &[FORMAT],
        action: Action::Answer(people::accounts),
        table: Table::Rows("accounts", || places(&people::ACCOUNT)),
        schema: people::accounts_schema,
    },
    Endpoint {
        path: "/api/v1/energy",
        help: "energy of the jobs that ended within a time",
        parameters: RANGE,
        action: Action::Answer(people::energy),
        table: Table::Rows("energy", || places(&people::ENERGY)),
        schema: people::energy_schema,
    },
    Endpoint {
        path: "/api/v1/emissions",
        help: "emissions of the jobs that ended within a time",
        parameters: RANGE,
        action: Action::Answer(people::emissions),
        table: Table::Rows("emissions", || places(&people::EMISSIONS)),
        schema: people::emissions_schema,
    },
    Endpoint {
        path: "/api/v1/usage",
        help: "what was used over time, by user or another group, and what machines did",
        parameters: usage::USAGE,
        action: Action::Answer(usage::usage),
        table: Table::Rows("usage", || places(&met_insight::usage::COLUMNS)),
        schema: usage::schema,
    },
    Endpoint {
        path: "/api/v1/findings",
        help: "what rules find in many jobs, by user and rule",
        parameters: findings::FINDINGS,
        action: Action::After(Needs::FindingsTurn, findings::findings),
        table: Table::Rows("groups", || places(&findings::GROUP)),
        schema: findings::schema,
    },
    Endpoint {
        path: "/api/v1/who",
        help: "who uses the machine of a daemon now, by user and process",
        parameters: &[FORMAT],
        action: Action::After(Needs::Processes, |visible, _| {
            serde_json::to_value(visible.who()?).map_err(Problem::asked)
        }),
        table: Table::Rows("users", || places(&USER_NOW)),
        schema: who_schema,
    },
    Endpoint {
        path: "/api/v1/catalogue",
        help: "every table with its columns, units and meanings",
        parameters: &[parameter("table", Kind::Table, "only this table"), FORMAT],
        action: Action::Answer(catalogue),
        table: Table::Rows("columns", || places(&CATALOGUE)),
        schema: catalogue_schema,
    },
    Endpoint {
        path: "/api/v1/health",
        help: "whether jobs can be read, and what is wrong with nodes",
        parameters: &[],
        action: Action::Answer(nodes::health),
        table: Table::None,
        schema: nodes::health_schema,
    },
    Endpoint {
        path: "/api/v1/openapi.json",
        help: "this document",
        parameters: &[],
        action: Action::Answer(|_, _| document::document()),
        table: Table::None,
        schema: schemas::any,
    },
    Endpoint {
        path: "/api/v1/stream",
        help: "starts, ends and figures of jobs as server-sent events",
        parameters: &[parameter("job", Kind::Text, "only this job")],
        action: Action::Stream,
        table: Table::None,
        schema: schemas::any,
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
const USER_NOW: [&str; 4] = ["user", "processes", "cores", "memory_bytes"];
const CATALOGUE: [&str; 8] = ["table", "column", "name", "kind", "unit", "metric", "subject", "help"];

/// Columns that have the names of keys.
fn places(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), format!("/{name}"))).collect()
}

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

fn catalogue(_: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let mut tables = met_sources::catalogue();
    if let Some(name) = asked.given.text("table") {
        tables.retain(|table| table.name == name);
    }
    let mut columns = Vec::new();
    for table in &tables {
        for column in table.columns {
            columns.push(json!({
                "table": table.name,
                "column": column.name,
                "name": column.json_name(),
                "kind": series::kind_of(column),
                "unit": column.unit.suffix().trim_start_matches('_'),
                "metric": table.prometheus_name(column),
                "subject": table.subject,
                "help": column.help,
            }));
        }
    }
    let table = |table: &&'static met_core::Table| json!({ "name": table.name, "subject": table.subject, "labels": table.labels });
    Ok(json!({ "tables": tables.iter().map(table).collect::<Vec<_>>(), "columns": columns }))
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

pub(super) fn jobs_schema() -> Schema {
    with_keys([("jobs", list(job_schema())), ("next", optional(Type::String))])
        .property("warnings", list(of(Type::String)))
        .into()
}

pub(super) fn processes_schema() -> Schema {
    let process = with_keys([("pid", of(Type::Integer)), ("quality", of(Type::String))])
        .property("command", of(Type::String))
        .property("start", time())
        .property("end", time())
        .property("cpu_seconds", of(Type::Number));
    with_keys([("processes", list(process.into()))]).into()
}

pub(super) fn who_schema() -> Schema {
    let outside = with_keys([("cores", of(Type::Number)), ("memory_bytes", of(Type::Integer))]);
    let user = with_keys([
        ("user", optional(Type::String)),
        ("processes", of(Type::Integer)),
        ("cores", of(Type::Number)),
        ("memory_bytes", of(Type::Integer)),
        ("jobs", list(of(Type::String))),
        ("outside_jobs", outside.into()),
    ]);
    let process = with_keys([
        ("pid", of(Type::Integer)),
        ("user", optional(Type::String)),
        ("job", optional(Type::String)),
        ("cores", of(Type::Number)),
        ("memory_bytes", optional(Type::Integer)),
        ("command", list(of(Type::String))),
    ]);
    with_keys([("users", list(user.into())), ("processes", list(process.into()))]).into()
}

pub(super) fn catalogue_schema() -> Schema {
    let text = || of(Type::String);
    let table = with_keys([("name", text()), ("subject", text()), ("labels", list(text()))]);
    let column = with_keys([
        ("table", text()),
        ("column", text()),
        ("name", text()),
        ("kind", text()),
        ("unit", text()),
    ]);
    with_keys([("tables", list(table.into())), ("columns", list(column.into()))]).into()
}

fn number(column: &Column) -> Schema {
    ObjectBuilder::new().schema_type(Type::Number).description(Some(column.help)).into()
}
