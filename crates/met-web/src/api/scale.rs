//! How a job would run with more or fewer workers, as `met scale` says it.

use met_core::job::{Record, State};
use met_core::series::Series;
use met_host::clock;
use met_insight::answers::Known;
use met_insight::lineage;
use met_insight::scale::{self, Ceilings, Learned, Plan, Wishes};
use met_query::jobs::{JobsFilter, PageAsk};
use met_query::query::{FirstJobs, first_jobs};
use serde_json::Value;
use utoipa::openapi::{Schema, Type};

use super::endpoint::{Action, Endpoint, Table};
use super::jobs::whole_job;
use super::parameters::{Given, Kind, Parameter, parameter};
use super::schemas::{list, of, optional, with_keys};
use super::{Asked, Visible};
use crate::problem::Problem;
use crate::samples::{self, SAMPLED_EVERY};

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    path: "/api/v1/jobs/{job}/scale",
    help: "how a job would run with more or fewer workers, from the runs of its lineage",
    answer: "how the job would run with more or fewer workers, from the runs of its lineage that the viewer \
            sees, as `met scale --json`; `at`: sizes to predict, separated by commas; `target`: a time to \
            reach",
    parameters: SCALE,
    action: Action::Answer(scale),
    table: Table::None,
    schema,
}];

pub(crate) const SCALE: &[Parameter] = &[
    parameter("at", Kind::List, "sizes to predict, separated by commas"),
    parameter("target", Kind::Duration, "the time that is to be reached"),
];
/// Jobs on its node that are looked at for the highest rates.
const JOBS_BESIDE: usize = 10_000;
const PAGE_JOBS: usize = 1_000;
const SIZES_MAX: usize = 32;

/// How a job would run.
pub(crate) struct Planned {
    pub record: Record,
    pub plan: Plan,
    /// The jobs that say nothing.
    pub left_out: Vec<String>,
    /// What cannot be read.
    pub warnings: Vec<String>,
}

/// The plan for a job from the runs of its lineage that the viewer sees.
pub(crate) fn planned(visible: &Visible<'_>, name: &str, given: &Given) -> Result<Planned, Problem> {
    let failed = |error: anyhow::Error| Problem::failed(&error);
    let record = whole_job(visible, name, "prediction")?;
    let wishes = wishes(given)?;
    let now_ns = clock::realtime_ns();
    let beside = match record.nodes.as_slice() {
        [node] => {
            let mut filter =
                JobsFilter { is_brief: true, page: PageAsk::first(PAGE_JOBS), ..JobsFilter::default() };
            filter.conditions.node = Some(node.clone());
            first_jobs(visible.query, visible.viewer, &filter, JOBS_BESIDE).map_err(failed)?
        }
        _ => FirstJobs::default(),
    };
    let FirstJobs { jobs: beside, mut warnings, .. } = beside;
    let ceilings = Ceilings::of(&record, visible.systems, &beside, now_ns);
    let (mut learned, machines) = (Learned::default(), visible.machines()?);
    let all_ms = (i64::MIN, i64::MAX);
    let runs_of_lineage = runs(visible, &record)?;
    warnings.extend(runs_of_lineage.warnings);
    // The same store was read twice.
    warnings.dedup();
    for (index, run) in runs_of_lineage.jobs.iter().enumerate() {
        let known = Known::read(SAMPLED_EVERY, run, machines.of_job(run), &mut |table, part| {
            // Only the job itself is looked at more closely.
            match index == 0 && part.is_empty() {
                true => samples::of_job(visible, run, table, part, all_ms),
                false => Ok(Series::new(table)),
            }
        })
        .map_err(failed)?;
        known.with_job(run, &[], now_ns, |job| learned.add(job, None, &ceilings));
    }
    let Learned { runs, powers, bounds, left_out, .. } = learned;
    let plan = scale::plan(&runs, &powers, bounds, &record, visible.systems, &wishes);
    Ok(Planned { record, plan, left_out, warnings })
}

/// The job, and the runs of its lineage that finished.
fn runs(visible: &Visible<'_>, record: &Record) -> Result<FirstJobs, Problem> {
    const RUNS_MAX: usize = 1_000;
    let mut runs = FirstJobs { jobs: vec![record.clone()], ..FirstJobs::default() };
    let Some(filter) = JobsFilter::perhaps_of_lineage(record, None) else { return Ok(runs) };
    let found = first_jobs(visible.query, visible.viewer, &filter, RUNS_MAX);
    let found = found.map_err(|error| Problem::failed(&error))?;
    let own = lineage::lineage(record);
    runs.warnings = found.warnings;
    runs.jobs.extend(
        found.jobs.into_iter().filter(|run| {
            run.key != record.key && run.state == State::Finished && lineage::lineage(run) == own
        }),
    );
    Ok(runs)
}

fn wishes(given: &Given) -> Result<Wishes, Problem> {
    let size = |text: &String| {
        let size = text.trim().parse::<f64>().ok().filter(|size| (0.001..=1e9).contains(size));
        size.ok_or_else(|| {
            Problem::field("at", format!("{text:?} is not a number of workers from 0.001 to 1000000000"))
        })
    };
    let sizes = given.list("at").unwrap_or_default();
    if sizes.len() > SIZES_MAX {
        return Err(Problem::field("at", format!("at most {SIZES_MAX} sizes")));
    }
    let sizes = sizes.iter().map(size).collect::<Result<_, _>>()?;
    let target_s = given.ns("target").map(|ns| ns as f64 / 1e9);
    if target_s == Some(0.0) {
        return Err(Problem::field("target", "write a time > 0, such as 10m"));
    }
    Ok(Wishes { sizes, target_s })
}

fn scale(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let Planned { record, plan, left_out, warnings } = planned(visible, asked.path("job"), &asked.given)?;
    let mut object = scale::object(&record, &plan, &left_out);
    if !warnings.is_empty() {
        object["warnings"] = warnings.into();
    }
    Ok(object)
}

fn schema() -> Schema {
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
    .property("warnings", list(of(Type::String)))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_that_nothing_can_fulfil_are_refused() {
        let asked = |name: &str, value: &str| {
            let given = Given::of(&[(name.to_owned(), value.to_owned())], SCALE)?;
            wishes(&given).map(|wishes| wishes.target_s)
        };
        assert_eq!(asked("target", "10m").ok(), Some(Some(600.0)));
        for value in ["0", "0s"] {
            assert_eq!(asked("target", value).unwrap_err().reason, "target: write a time > 0, such as 10m");
        }
        let reason = asked("at", "1e300").unwrap_err().reason;
        assert!(reason.ends_with("from 0.001 to 1000000000"), "{reason}");
    }
}
