//! Jobs side by side, as `met compare` has them.

use met_core::job::Record;
use met_host::clock;
use met_insight::answers::{compared, difference_object};
use met_insight::comparison::{self, EARLIER, JOBS_MAX};
use met_insight::lineage;
use met_query::jobs::{JobsFilter, PageAsk};
use serde_json::{Value, json};
use utoipa::openapi::{Schema, Type};

use super::endpoint::{Action, Endpoint, Table};
use super::jobs::{job_schema, object, whole_job};
use super::parameters::{Kind, Parameter, parameter};
use super::schemas::{list, of, optional, with_keys};
use super::{Asked, Visible};
use crate::problem::Problem;

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    path: "/api/v1/jobs/{job}/compare",
    help: "a job beside other jobs or its earlier runs",
    answer: "the job beside those of `with` (at most seven, separated by commas; default: up to three \
            earlier runs of its lineage), as `met compare --json`: `jobs`, `figures` with a value per job, \
            `differences` from earlier runs",
    parameters: &[WITH],
    action: Action::Answer(compare),
    table: Table::None,
    schema,
}];

const WITH: Parameter = parameter(
    "with",
    Kind::List,
    "other jobs, at most seven, separated by commas (default: up to three earlier runs of its lineage)",
);

/// Earlier runs of a job's lineage, of those that the viewer sees, newest first.
pub(crate) fn earlier(visible: &Visible<'_>, record: &Record) -> Result<Vec<Record>, Problem> {
    let Some(filter) = JobsFilter::perhaps_of_lineage(record, record.start_ns) else { return Ok(Vec::new()) };
    let (page, _) = visible.jobs(&JobsFilter { page: PageAsk { paged: true, ..filter.page }, ..filter })?;
    Ok(lineage::earlier(record, &page.jobs).into_iter().cloned().collect())
}

/// The jobs that texts name, each once.
pub(crate) fn named(
    visible: &Visible<'_>,
    field: &'static str,
    names: &[String],
) -> Result<Vec<Record>, Problem> {
    let mut records: Vec<Record> = Vec::new();
    let names: Vec<&str> = names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
    if names.len() > JOBS_MAX {
        return Err(Problem::field(field, format!("at most {JOBS_MAX} jobs can be compared")));
    }
    for name in names {
        let record = whole_job(visible, name, "comparison")?;
        if records.iter().all(|known| known.key != record.key) {
            records.push(record);
        }
    }
    Ok(records)
}

fn compare(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let names: Vec<String> = [asked.path("job").to_owned()]
        .into_iter()
        .chain(asked.given.list("with").into_iter().flatten().cloned())
        .collect();
    let mut records = named(visible, "with", &names)?;
    let first = records.first().ok_or_else(|| Problem::field("job", "name a job"))?.clone();
    let earlier = earlier(visible, &first)?;
    if asked.given.list("with").is_none() {
        records.extend(earlier.iter().take(EARLIER).cloned());
    }
    let now_ns = clock::realtime_ns();
    let runs: Vec<&Record> = earlier.iter().collect();
    let differences = compared::differences(&first, &runs, now_ns);
    Ok(json!({
        "jobs": records.iter().map(|record| object(record, now_ns)).collect::<Vec<_>>(),
        "figures": comparison::object(&comparison::rows(records.iter(), now_ns)),
        "differences": differences.iter().map(difference_object).collect::<Vec<_>>(),
    }))
}

fn schema() -> Schema {
    let figure = with_keys([("metric", of(Type::String)), ("values", list(optional(Type::Number)))]);
    with_keys([
        ("jobs", list(job_schema())),
        ("figures", list(figure.into())),
        ("differences", list(of(Type::Object))),
    ])
    .into()
}
