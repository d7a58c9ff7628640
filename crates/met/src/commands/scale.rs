//! `met scale`: how a job's time depends on the number of its workers.

use std::io::Write;

use anyhow::Result;
use met_core::job::{Record, State};
use met_core::units;
use met_insight::scale::{self, Bounds, Ceilings, Plan, Power, Run, System};

use super::{Machines, export, list};
use crate::cli::{FilterArgs, ScaleArgs};
use crate::output;
use crate::view;
use met_config::Failure;
use met_insight::answers::Known;
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;

/// Jobs on its node that are looked at for the highest rates.
const JOBS_BESIDE: usize = 10_000;

pub fn scale(setting: &Setting, args: &ScaleArgs) -> Result<i32> {
    if !args.sizes.is_empty() && args.sizes.len() != args.jobs.len() {
        let (sizes, jobs) = (args.sizes.len(), args.jobs.len());
        return Err(Failure::usage(format!(
            "--sizes has {sizes} numbers for {jobs} jobs; give one for each"
        )));
    }
    let target_s = args.target.as_ref().map(|text| {
        let target =
            units::parse_duration(text).map_err(|error| Failure::usage(format!("--target: {error}")))?;
        Ok::<_, anyhow::Error>(target.as_secs_f64())
    });
    let mut all = AllJobs::open(setting)?;
    let named: Vec<Record> = args.jobs.iter().map(|job| all.find_to_show(job)).collect::<Result<_>>()?;
    let records = match named.as_slice() {
        [one] if args.sizes.is_empty() => of_lineage(&mut all, one)?,
        _ => named.clone(),
    };
    let now_ns = jobs::now_ns();
    let machines = Machines::of(setting);
    let (newest, systems) = (&records[0], systems(setting));
    let ceilings = Ceilings::of(newest, &systems, &beside(&mut all, newest)?, now_ns);
    let mut found = Found::default();
    for (index, record) in records.iter().enumerate() {
        let machine = machines.of_job(record);
        // Only the newest is looked at more closely: bounds are of one run.
        let is_first = index == 0;
        let known = Known::read(setting.config.sampling.shortest(), record, machine, &mut |table, part| {
            let wanted = is_first && part.is_empty();
            if wanted {
                export::series(&mut all, record, table, part)
            } else {
                Ok(met_core::series::Course::new(table))
            }
        })?;
        known.with_job(record, &[], now_ns, |job| {
            let size = args.sizes.get(index).copied().or_else(|| scale::size(job));
            found.bounds = found.bounds.take().or_else(|| scale::bounds(job, &ceilings).filter(|_| is_first));
            match size {
                _ if record.state != State::Finished => {
                    found.left_out.push(format!("job {}: {}", record.label(), record.state.name()));
                }
                None => found.left_out.push(format!("job {}: {}", record.label(), view::scale::UNSIZED)),
                Some(size) => {
                    found.runs.extend(scale::run(job, size));
                    found.powers.extend(scale::power(job, size));
                }
            }
        });
    }
    let wishes = scale::Wishes { sizes: args.at.clone(), target_s: target_s.transpose()? };
    let plan = scale::plan(&found.runs, &found.powers, found.bounds, newest, &systems, &wishes);
    print(newest, &plan, &found.left_out, args.json)
}

#[derive(Default)]
struct Found {
    runs: Vec<Run>,
    powers: Vec<Power>,
    bounds: Option<Bounds>,
    /// Jobs that are no run to learn from, in words.
    left_out: Vec<String>,
}

/// The runs of the job's lineage that finished, the job first.
fn of_lineage(all: &mut AllJobs, record: &Record) -> Result<Vec<Record>> {
    let mut runs = vec![record.clone()];
    let others = all.runs_of_lineage(record, None)?.into_iter();
    runs.extend(others.filter(|run| run.key != record.key && run.state == State::Finished));
    Ok(runs)
}

/// Jobs that show what the node of a job can do, the newest.
fn beside(all: &mut AllJobs, record: &Record) -> Result<Vec<Record>> {
    let [node] = record.nodes.as_slice() else { return Ok(Vec::new()) };
    let mut filter = list::filter_of(&FilterArgs { node: Some(node.clone()), ..FilterArgs::default() })?;
    filter.limit = Some(JOBS_BESIDE);
    all.jobs(&filter)
}

/// The machines of the configuration.
pub(super) fn systems(setting: &Setting) -> Vec<System> {
    let configured = setting.config.systems.iter();
    let system = configured.map(|of| System {
        name: of.name.clone(),
        cores: of.cores,
        memory_bytes: of.memory_bytes,
        gpus: of.gpus,
        gpu_maker: of.gpu_maker.clone(),
        gpu_memory_bytes: of.gpu_memory_bytes,
        storage_rate: of.storage_rate.map(|rate| rate as f64),
        core_hour: of.core_hour,
        gpu_hour: of.gpu_hour,
    });
    system.collect()
}

fn print(record: &Record, plan: &Plan, left_out: &[String], json: bool) -> Result<i32> {
    let mut stdout = output::stdout();
    if json {
        writeln!(stdout, "{}", scale::object(record, plan, left_out))?;
    } else {
        let style = stdout.style();
        stdout.write_all(view::scale::render(record, plan, left_out, &style).as_bytes())?;
    }
    Ok(0)
}
