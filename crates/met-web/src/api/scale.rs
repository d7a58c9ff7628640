//! How a job would run with more or fewer workers, as `met scale` says it.

use met_core::job::{Record, State};
use met_core::series::Course;
use met_host::clock;
use met_insight::answers::Known;
use met_insight::lineage;
use met_insight::scale::{self, Ceilings, Learned, Plan, Wishes};
use met_query::jobs::JobsFilter;
use met_query::query::first_jobs;
use serde_json::Value;
use utoipa::openapi::{Schema, Type};

use super::endpoints::whole_job;
use super::parameters::{Given, Kind, Parameter, parameter};
use super::schemas::{list, of, optional, with_keys};
use super::{Asked, Visible};
use crate::problem::Problem;
use crate::samples::{self, SAMPLED_EVERY};

pub(crate) const SCALE: &[Parameter] = &[
    parameter("at", Kind::List, "sizes to predict, separated by commas"),
    parameter("target", Kind::Duration, "the time that is to be reached"),
];
/// Jobs on its node that are looked at for the highest rates.
const JOBS_BESIDE: usize = 10_000;
const PAGE_JOBS: usize = 1_000;
const SIZES_MAX: usize = 32;

/// The plan for a job from the runs of its lineage that the viewer sees, and the jobs that say nothing.
pub(crate) fn planned(
    visible: &Visible<'_>,
    name: &str,
    given: &Given,
) -> Result<(Record, Plan, Vec<String>), Problem> {
    let failed = |error: anyhow::Error| Problem::failed(&error);
    let record = whole_job(visible, name, "prediction")?;
    let wishes = wishes(given)?;
    let now_ns = clock::realtime_ns();
    let beside = match record.nodes.as_slice() {
        [node] => {
            let mut filter = JobsFilter { limit: Some(PAGE_JOBS), is_brief: true, ..JobsFilter::default() };
            filter.conditions.node = Some(node.clone());
            first_jobs(visible.query, visible.viewer, &filter, JOBS_BESIDE).map_err(failed)?.0
        }
        _ => Vec::new(),
    };
    let ceilings = Ceilings::of(&record, visible.systems, &beside, now_ns);
    let (mut learned, machines) = (Learned::default(), visible.machines()?);
    let all_ms = (i64::MIN, i64::MAX);
    for (index, run) in runs(visible, &record)?.iter().enumerate() {
        let known = Known::read(SAMPLED_EVERY, run, machines.of_job(run), &mut |table, part| {
            // Only the job itself is looked at more closely.
            match index == 0 && part.is_empty() {
                true => samples::of_job(visible, run, table, part, all_ms),
                false => Ok(Course::new(table)),
            }
        })
        .map_err(failed)?;
        known.with_job(run, &[], now_ns, |job| learned.add(job, None, &ceilings));
    }
    let Learned { runs, powers, bounds, left_out, .. } = learned;
    let plan = scale::plan(&runs, &powers, bounds, &record, visible.systems, &wishes);
    Ok((record, plan, left_out))
}

/// The job, and the runs of its lineage that finished.
fn runs(visible: &Visible<'_>, record: &Record) -> Result<Vec<Record>, Problem> {
    const RUNS_MAX: usize = 1_000;
    let mut runs = vec![record.clone()];
    let Some(filter) = JobsFilter::perhaps_of_lineage(record, None) else { return Ok(runs) };
    let found = first_jobs(visible.query, visible.viewer, &filter, RUNS_MAX);
    let (found, _) = found.map_err(|error| Problem::failed(&error))?;
    let own = lineage::lineage(record);
    runs.extend(
        found.into_iter().filter(|run| {
            run.key != record.key && run.state == State::Finished && lineage::lineage(run) == own
        }),
    );
    Ok(runs)
}

fn wishes(given: &Given) -> Result<Wishes, Problem> {
    let size = |text: &String| {
        let size = text.trim().parse::<f64>().ok().filter(|size| (0.001..=1e9).contains(size));
        size.ok_or_else(|| Problem::field("at", format!("{text:?} is not a number of workers")))
    };
    let sizes = given.list("at").unwrap_or_default();
    if sizes.len() > SIZES_MAX {
        return Err(Problem::field("at", format!("at most {SIZES_MAX} sizes")));
    }
    let sizes = sizes.iter().map(size).collect::<Result<_, _>>()?;
    Ok(Wishes { sizes, target_s: given.ns("target").map(|ns| ns as f64 / 1e9) })
}

pub(super) fn scale(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let (record, plan, left_out) = planned(visible, asked.path("job"), &asked.given)?;
    Ok(scale::object(&record, &plan, &left_out))
}

pub(super) fn schema() -> Schema {
    with_keys([
        ("job", of(Type::String)),
        ("predictions", list(of(Type::Object))),
        ("left_out", list(of(Type::String))),
        ("systems", list(of(Type::Object))),
    ])
    .property("bounds", optional(Type::Object))
    .property("scaling", optional(Type::Object))
    .property("cannot_tell", optional(Type::Object))
    .property("target", optional(Type::Object))
    .into()
}
