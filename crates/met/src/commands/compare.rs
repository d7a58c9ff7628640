//! `met compare`: jobs side by side, aligned at their start.

use std::io::Write;

use anyhow::Result;
use met_core::job::Record;
use met_insight::answers::{compared, difference_object};
use met_insight::comparison::{self, EARLIER, JOBS_MAX};
use met_insight::resample;
use serde_json::json;

use crate::cli::CompareArgs;
use crate::output;
use crate::view::compare::{self, Compared};
use met_config::Failure;
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;

pub fn compare(setting: &Setting, args: &CompareArgs) -> Result<i32> {
    if args.jobs.len() > JOBS_MAX {
        return Err(Failure::usage(format!(
            "at most {JOBS_MAX} jobs can be compared; {} are given",
            args.jobs.len()
        )));
    }
    let mut all = AllJobs::open(setting)?;
    let mut records: Vec<Record> =
        args.jobs.iter().map(|job| all.find_to_show(job)).collect::<Result<_>>()?;
    if let Some(twice) = super::given_twice(&records) {
        return Err(Failure::usage(format!("job {} is given twice; name different jobs", twice.label())));
    }
    let first = records[0].clone();
    let runs = all.earlier_runs(&first)?;
    if records.len() == 1 {
        records.extend(runs.iter().take(EARLIER).cloned());
    }
    if records.len() < 2 {
        let job = first.label();
        return Err(Failure::usage(format!(
            "job {job} has no earlier run; name another job: met compare {job} JOB"
        )));
    }
    let now_ns = jobs::now_ns();
    let mut stdout = output::stdout();
    if args.json {
        let runs: Vec<&Record> = runs.iter().collect();
        let differences = compared::differences(&first, &runs, now_ns);
        let objects: Vec<_> =
            records.iter().map(|record| met_insight::json::object(record, now_ns)).collect();
        let differences: Vec<_> = differences.iter().map(difference_object).collect();
        let figures = comparison::object(&comparison::rows(records.iter(), now_ns));
        writeln!(stdout, "{}", json!({ "jobs": objects, "figures": figures, "differences": differences }))?;
        return Ok(0);
    }
    let mut compared = Vec::new();
    for record in records {
        let series = all.series(&record)?;
        let start_ms = record.start_ns.map(|start_ns| start_ns / 1_000_000);
        let gaps = resample::gaps(&series, setting.config.sampling.shortest(), start_ms);
        compared.push(Compared { record, series, gaps });
    }
    let style = stdout.style();
    stdout.write_all(compare::render(&compared, now_ns, &style).as_bytes())?;
    Ok(0)
}
