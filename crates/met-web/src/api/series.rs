//! Samples over time, as they were taken or reduced to a number of points.

use std::time::Duration;

use met_core::job::Record;
use met_core::series::Series;
use met_core::{Column, DETAIL, JOB, Kind, MISSING, Table, event, gpu};
use met_host::clock;
use met_insight::reduced::reduced;
use met_insight::{json, resample};
use met_sources::perf;
use met_store::NodePart;
use serde_json::{Map, Value, json};
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::{ObjectBuilder, Schema, Type};

use super::endpoint::{self, Action, Endpoint};
use super::jobs::whole_job;
use super::parameters::{self, COLUMNS, FORMAT, POINTS, Parameter, SINCE, UNTIL, parameter};
use super::schemas::{list, of, optional, time, with_keys};
use super::{Asked, Visible, nodes};
use crate::problem::Problem;
use crate::samples::{self, NODE_VALUES_MAX};

const GPU: Parameter =
    parameter("gpu", parameters::Kind::Text, "uuid of a GPU of the job").renamed_from("card");

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/api/v1/jobs/{job}/series",
        help: "samples of a job, of one of its GPUs or events, or of its details",
        answer: "its samples: `times`, `columns`, `table`, `part`, `next`",
        parameters: &[
            GPU,
            parameter("event", parameters::Kind::Text, "name of a perf event"),
            parameter("details", parameters::Kind::Flag, "the details of the job"),
            COLUMNS,
            SINCE,
            UNTIL,
            POINTS,
            parameter(
                "after",
                parameters::Kind::Time,
                "without points: samples after this time; `next` of the previous answer",
            ),
            FORMAT,
        ],
        action: Action::Answer(of_job),
        table: endpoint::Table::Series,
        schema: series_schema,
    },
    Endpoint {
        path: "/api/v1/nodes/{node}/series",
        help: "series of a node, reduced",
        answer: "`{\"node\": name, \"series\": [...]}`: reduced series by table and part",
        parameters: &[
            parameter("table", parameters::Kind::Table, "only this table of the catalogue"),
            parameter("part", parameters::Kind::Text, "only this part: a disk, a zone, a sensor"),
            COLUMNS,
            parameter("since", parameters::Kind::Time, "from this time on (default: 1 hour ago)"),
            UNTIL,
            POINTS,
            FORMAT,
        ],
        action: Action::Answer(of_node),
        table: endpoint::Table::ManySeries,
        schema: node_series_schema,
    },
];

/// Samples in an answer that is not reduced: some megabytes.
const SAMPLES_MAX: usize = 5_000;
/// Samples of a job's series that are held while it is reduced.
const HELD: usize = 50_000;
/// Samples of a node's series that are held for each point, and at least.
const NODE_HELD_PER_POINT: usize = 2;
const NODE_HELD_MIN: usize = 200;
/// Points of a node's series, and how far back, unless requested otherwise.
const NODE_POINTS: usize = 500;
const NODE_USUAL_MS: i64 = 3_600_000;
/// The usual time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn kind_of(column: &Column) -> &'static str {
    match column.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    }
}

/// The columns that were requested, by their names in the catalogue.
fn chosen(asked: &Asked, table: &Table) -> Result<Vec<usize>, Problem> {
    let Some(names) = asked.given.list("columns") else { return Ok((0..table.columns.len()).collect()) };
    let find = |name: &String| {
        let found = table.columns.iter().position(|column| column.json_name() == *name);
        found.ok_or_else(|| {
            let known: Vec<String> = table.columns.iter().map(Column::json_name).collect();
            let reason = format!("table {} has no column {name:?}; it has {}", table.name, known.join(", "));
            Problem::field("columns", reason)
        })
    };
    names.iter().map(find).collect()
}

/// The time that was requested, in unix milliseconds.
fn window_ms(asked: &Asked) -> Result<(i64, i64), Problem> {
    let ms = |ns: i64| ns.div_euclid(1_000_000);
    let window = (asked.given.ns("since").map_or(i64::MIN, ms), asked.given.ns("until").map_or(i64::MAX, ms));
    match window.0 < window.1 {
        true => Ok(window),
        false => Err(Problem::field("until", "is not after since")),
    }
}

fn of_job(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let given = &asked.given;
    let (gpu, event) = (given.text(GPU.name), given.text("event"));
    let selectors = [gpu.is_some(), event.is_some(), given.flag("details")];
    if selectors.into_iter().filter(|is_given| *is_given).count() > 1 {
        return Err(Problem::asked("one request returns one series; give a single selector"));
    }
    let table: &'static Table = match selectors {
        [true, ..] => &gpu::device::TABLE,
        [_, true, _] => &event::TABLE,
        [_, _, true] => &DETAIL,
        _ => &JOB,
    };
    let part = gpu.or(event).unwrap_or_default();
    let columns = chosen(asked, table)?;
    let window_ms = window_ms(asked)?;
    let record = whole_job(visible, asked.path("job"), "series")?;
    has_part(&record, table, &part)?;
    let (key, start_ns) = (record.key, record.start_ns);
    let page = |after_ms: i64| match table.name {
        name if name == gpu::device::TABLE.name => visible.gpu_series(&key, &part, after_ms),
        name if name == JOB.name => visible.series(&key, after_ms),
        _ => visible.job_series(&key, table, &part, after_ms),
    };
    let mut object = match given.whole("points") {
        Some(points) => {
            let series = samples::whole(table, window_ms, HELD, page)?;
            let start_ms = start_ns.map(|start_ns| start_ns / 1_000_000);
            let gaps = resample::gaps(&series, INTERVAL, start_ms);
            let points = usize::try_from(points).unwrap_or(1);
            reduced(&series, &columns, span(&series, window_ms), points, |_| gaps).object(&series)
        }
        None => as_taken(asked, &columns, window_ms, page)?,
    };
    object.insert("table".to_owned(), table.name.into());
    object.insert("part".to_owned(), part.into());
    object.entry("next").or_insert(Value::Null);
    Ok(Value::Object(object))
}

/// A GPU or an event that the job does not have is a mistake, and no empty series. Events of a running job may have
/// been counted before or be counted later, so that any event can be asked for.
fn has_part(record: &Record, table: &Table, part: &str) -> Result<(), Problem> {
    let unknown = |field: &str, what: &str, known: Vec<&str>| {
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Problem::field(field, format!("the job has no {what} {part:?}; it has {known}")))
    };
    if table.name == gpu::device::TABLE.name && !record.gpus.iter().any(|gpu| gpu.uuid == part) {
        return unknown(GPU.name, "GPU", record.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect());
    }
    let is_counted = |event: &str| record.events.iter().any(|counted| counted.name == event);
    let may_be = record.state.is_live() && perf::check(part).is_ok();
    if table.name == event::TABLE.name && !is_counted(part) && !may_be {
        return unknown(
            "event",
            "event",
            record.events.iter().map(|counted| counted.name.as_str()).collect(),
        );
    }
    Ok(())
}

/// Samples as they were taken, as many as fit an answer.
fn as_taken(
    asked: &Asked,
    columns: &[usize],
    (begin_ms, end_ms): (i64, i64),
    page: impl Fn(i64) -> Result<Series, Problem>,
) -> Result<Map<String, Value>, Problem> {
    let after_ms = asked.given.ns("after").map_or(i64::MIN, |after_ns| after_ns.div_euclid(1_000_000));
    let mut series = page(after_ms.max(begin_ms.saturating_sub(1)))?;
    series.truncate(series.times_ms.partition_point(|&time_ms| time_ms < end_ms).min(SAMPLES_MAX));
    for (index, cells) in series.columns.iter_mut().enumerate() {
        if !columns.contains(&index) {
            cells.fill(MISSING);
        }
    }
    let last_ms = series.times_ms.last().filter(|_| series.len() == SAMPLES_MAX);
    let next = last_ms.and_then(|last_ms| json::time(last_ms * 1_000_000));
    let mut object = json::series(&series);
    object.insert("next".to_owned(), next.into());
    Ok(object)
}

/// The time that is shown: what was requested, as far as it is limited, else from the first to the last sample.
fn span(series: &Series, (begin_ms, end_ms): (i64, i64)) -> (i64, i64) {
    let first_ms = series.times_ms.first().copied().unwrap_or(0);
    let last_ms = series.times_ms.last().copied().unwrap_or(0);
    (
        if begin_ms == i64::MIN { first_ms } else { begin_ms },
        if end_ms == i64::MAX { last_ms } else { end_ms },
    )
}

fn of_node(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let given = &asked.given;
    let now_ms = clock::realtime_ns() / 1_000_000;
    let (begin_ms, end_ms) = window_ms(asked)?;
    let window_ms =
        (if begin_ms == i64::MIN { now_ms - NODE_USUAL_MS } else { begin_ms }, end_ms.min(now_ms));
    let table = given.text("table");
    let known = table.as_deref().and_then(met_sources::table);
    if known.is_none() && given.list("columns").is_some() {
        return Err(Problem::field("columns", "give the table, too"));
    }
    let node = nodes::find(visible, asked.path("node"))?.name;
    let part = given.text("part");
    let columns = known.map(|table| chosen(asked, table)).transpose()?;
    let points = given.whole("points").and_then(|points| usize::try_from(points).ok()).unwrap_or(NODE_POINTS);
    let mut values = 0;
    let is_wanted = |one: &NodePart, of: &'static Table| {
        let is_wanted = table.as_ref().is_none_or(|table| one.table == *table)
            && part.as_ref().is_none_or(|part| one.part == *part);
        if is_wanted {
            values += columns.as_ref().map_or(of.columns.len(), Vec::len) * points;
        }
        if values > NODE_VALUES_MAX { Err(too_many()) } else { Ok(is_wanted) }
    };
    let held = (points * NODE_HELD_PER_POINT).max(NODE_HELD_MIN);
    let parts = samples::of_node(visible.query, &node, window_ms, held, is_wanted)?;
    let mut listed = Vec::new();
    for (part, series) in &parts {
        let columns = columns.clone().unwrap_or_else(|| (0..series.columns.len()).collect());
        let gap_ms = resample::look_gap_ms(series.spans_ms(), resample::gap_ms(INTERVAL));
        let reduced = reduced(series, &columns, window_ms, points, |_| gap_ms.into());
        if !reduced.columns.is_empty() {
            let mut object = reduced.object(series);
            object.insert("table".to_owned(), part.table.as_str().into());
            object.insert("part".to_owned(), part.part.as_str().into());
            listed.push(Value::Object(object));
        }
    }
    Ok(json!({ "node": node, "series": listed }))
}

fn too_many() -> Problem {
    let limit = format!("columns by points are more than {NODE_VALUES_MAX}");
    Problem::asked(format!("{limit}; give the table, its columns, the part, or fewer points"))
}

fn by_column(of: Schema) -> Schema {
    ObjectBuilder::new().additional_properties(Some(AdditionalProperties::RefOr(of.into()))).into()
}

/// As they were taken: a list of values by column. Reduced: an object of lists by column.
fn series_schema() -> Schema {
    with_keys([
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
    with_keys([("per_second", of(Type::Boolean)), ("min", values()), ("mean", values()), ("max", values())])
        .into()
}

fn node_series_schema() -> Schema {
    let one = with_keys([
        ("table", of(Type::String)),
        ("part", of(Type::String)),
        ("times", list(of(Type::String))),
        ("span_seconds", of(Type::Number)),
        ("columns", by_column(spans())),
    ]);
    with_keys([("node", of(Type::String)), ("series", list(one.into()))]).into()
}
