//! The form of answers, for the OpenAPI document. Figures have the names of the catalogue.

use met_core::job::State;
use met_core::{Column, JOB};
use utoipa::openapi::schema::{AdditionalProperties, SchemaType};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};

use super::people;

fn of(kind: Type) -> Schema {
    ObjectBuilder::new().schema_type(kind).into()
}

/// Of this type, or null where it is unknown.
fn optional(kind: Type) -> Schema {
    ObjectBuilder::new().schema_type(SchemaType::Array(vec![kind, Type::Null])).into()
}

fn time() -> Schema {
    let format = Some(SchemaFormat::Custom("date-time".to_owned()));
    ObjectBuilder::new().schema_type(SchemaType::Array(vec![Type::String, Type::Null])).format(format).into()
}

fn list(of: Schema) -> Schema {
    ArrayBuilder::new().items(RefOr::T(of)).into()
}

/// These keys are always there; there may be others.
fn object<const N: usize>(required: [(&str, Schema); N]) -> ObjectBuilder {
    required
        .into_iter()
        .fold(ObjectBuilder::new(), |object, (name, schema)| object.property(name, schema).required(name))
}

fn number(column: &Column) -> Schema {
    ObjectBuilder::new().schema_type(Type::Number).description(Some(column.help)).into()
}

/// Figures by their names in the catalogue, as far as they are known.
fn figures() -> Schema {
    let columns = JOB.columns.iter();
    columns
        .fold(ObjectBuilder::new(), |object, column| object.property(column.json_name(), number(column)))
        .into()
}

pub fn any() -> Schema {
    of(Type::Object)
}

pub fn job() -> Schema {
    let states =
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(State::ALL.map(State::name)));
    let identity = object([
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
    let row = object([("reference", of(Type::String))])
        .property("from_ms", optional(Type::Integer))
        .property("to_ms", optional(Type::Integer));
    object([
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

pub fn jobs() -> Schema {
    object([("jobs", list(job())), ("next", optional(Type::String))])
        .property("warnings", list(of(Type::String)))
        .into()
}

fn columns(of: Schema) -> Schema {
    ObjectBuilder::new().additional_properties(Some(AdditionalProperties::RefOr(of.into()))).into()
}

/// As they were taken: a list of values by column. Reduced: an object of lists by column.
pub fn series() -> Schema {
    object([
        ("times", list(of(Type::String))),
        ("columns", of(Type::Object)),
        ("table", of(Type::String)),
        ("part", of(Type::String)),
        ("next", time()),
    ])
    .property("span_seconds", of(Type::Number))
    .into()
}

fn spans() -> Schema {
    let values = || list(optional(Type::Number));
    object([("per_second", of(Type::Boolean)), ("min", values()), ("mean", values()), ("max", values())])
        .into()
}

pub fn node_series() -> Schema {
    let one = object([
        ("table", of(Type::String)),
        ("part", of(Type::String)),
        ("times", list(of(Type::String))),
        ("span_seconds", of(Type::Number)),
        ("columns", columns(spans())),
    ]);
    object([("node", of(Type::String)), ("series", list(one.into()))]).into()
}

pub fn processes() -> Schema {
    let process = object([("pid", of(Type::Integer)), ("quality", of(Type::String))])
        .property("command", of(Type::String))
        .property("start", time())
        .property("end", time())
        .property("cpu_seconds", of(Type::Number));
    object([("processes", list(process.into()))]).into()
}

fn node_status() -> Schema {
    object([
        ("name", of(Type::String)),
        ("jobs", of(Type::Integer)),
        ("late", of(Type::Boolean)),
        ("seen", time()),
        ("version", optional(Type::String)),
        ("cpus", optional(Type::Integer)),
        ("memory_bytes", optional(Type::Integer)),
    ])
    .into()
}

pub fn nodes() -> Schema {
    object([("nodes", list(node_status()))]).into()
}

pub fn node() -> Schema {
    object([("node", node_status()), ("jobs", list(job()))]).into()
}

fn group(of_name: &str) -> Schema {
    object([
        ("name", of(Type::String)),
        ("jobs", of(Type::Integer)),
        ("first_start", time()),
        ("last_start", time()),
        (of_name, list(of(Type::String))),
    ])
    .into()
}

pub fn users() -> Schema {
    object([("users", list(group("accounts")))]).into()
}

pub fn accounts() -> Schema {
    object([("accounts", list(group("users")))]).into()
}

fn sums(what: &str, [name, jobs, known, figure]: [&str; 4]) -> Schema {
    let sum = object([
        (name, optional(Type::String)),
        (jobs, of(Type::Integer)),
        (known, of(Type::Integer)),
        (figure, optional(Type::Number)),
    ]);
    object([("by", of(Type::String)), ("since", time()), ("until", time()), (what, list(sum.into()))]).into()
}

pub fn energy() -> Schema {
    sums("energy", people::ENERGY)
}

pub fn emissions() -> Schema {
    sums("emissions", people::EMISSIONS)
}

pub fn usage() -> Schema {
    let column = |name: &'static str| match name {
        "name" | "period" => (name, optional(Type::String)),
        "begin" => (name, time()),
        name if name.starts_with("jobs") => (name, of(Type::Integer)),
        name => (name, optional(Type::Number)),
    };
    let line = object(met_insight::usage::COLUMNS.map(column));
    let machine = object([
        ("name", optional(Type::String)),
        ("period", optional(Type::String)),
        ("begin", time()),
        ("hours_measured", of(Type::Number)),
        ("hours_down", of(Type::Number)),
        ("hours_unknown", of(Type::Number)),
        ("core_hours", of(Type::Number)),
        ("core_hours_busy", of(Type::Number)),
        ("core_hours_idle", of(Type::Number)),
        ("core_hours_free", optional(Type::Number)),
        ("memory_gib_hours", of(Type::Number)),
        ("memory_gib_hours_used", of(Type::Number)),
    ]);
    object([
        ("by", of(Type::String)),
        ("every", of(Type::String)),
        ("since", time()),
        ("until", time()),
        ("time_zone", of(Type::String)),
        ("usage", list(line.into())),
        ("machines", list(machine.into())),
        ("jobs_not_summed_yet", of(Type::Integer)),
    ])
    .into()
}

pub fn catalogue() -> Schema {
    let text = || of(Type::String);
    let table = object([("name", text()), ("subject", text()), ("labels", list(text()))]);
    let column =
        object([("table", text()), ("column", text()), ("name", text()), ("kind", text()), ("unit", text())]);
    object([("tables", list(table.into())), ("columns", list(column.into()))]).into()
}

pub fn health() -> Schema {
    let status = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["ok", "degraded"]));
    object([
        ("status", status.into()),
        ("version", of(Type::String)),
        ("nodes", of(Type::Integer)),
        ("nodes_late", of(Type::Integer)),
        ("problems", list(of(Type::String))),
    ])
    .into()
}

pub fn problem() -> Schema {
    object([
        ("type", of(Type::String)),
        ("title", of(Type::String)),
        ("status", of(Type::Integer)),
        ("detail", of(Type::String)),
        ("error", of(Type::String)),
    ])
    .property("field", of(Type::String))
    .into()
}
