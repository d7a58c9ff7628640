//! `met scale`: how a job's time depends on the number of its workers.

use std::io::Write;

use anyhow::Result;
use met_core::job::{Record, State};
use met_insight::scale::{self, Ceilings, Learned, Plan};

use super::{Machines, list};
use crate::cli::{FilterArgs, ScaleArgs};
use crate::output;
use crate::view;
use met_config::Failure;
use met_insight::answers::Known;
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;
use met_query::systems;

/// Jobs on its node that are looked at for the highest rates.
const JOBS_BESIDE: usize = 10_000;

pub fn scale(setting: &Setting, args: &ScaleArgs) -> Result<i32> {
    if !args.sizes.is_empty() && args.sizes.len() != args.jobs.len() {
        let counted = met_core::units::counted;
        let (sizes, jobs) = (counted(args.sizes.len(), "number"), counted(args.jobs.len(), "job"));
        return Err(Failure::usage(format!("--sizes has {sizes} for {jobs}; give one for each")));
    }
    let mut all = AllJobs::open(setting)?;
    let named: Vec<Record> = args.jobs.iter().map(|job| all.find_to_show(job)).collect::<Result<_>>()?;
    if let Some(twice) = super::given_twice(&named) {
        return Err(Failure::usage(format!("job {} is given twice; a run counts once", twice.label())));
    }
    let records = match named.as_slice() {
        [one] if args.sizes.is_empty() => of_lineage(&mut all, one)?,
        _ => named.clone(),
    };
    let now_ns = jobs::now_ns();
    let machines = Machines::of(setting);
    let (newest, systems) = (&records[0], systems::of(&setting.config));
    let ceilings = Ceilings::of(newest, &systems, &beside(&mut all, newest)?, now_ns);
    let mut learned = Learned::default();
    for (index, record) in records.iter().enumerate() {
        let machine = machines.of_job(record);
        let known = Known::read(setting.config.sampling.shortest(), record, machine, &mut |table, part| {
            // Only the newest is looked at more closely: bounds are of one run.
            match index == 0 && part.is_empty() {
                true => all.part_series(record, table, part),
                false => Ok(met_core::series::Series::new(table)),
            }
        })?;
        known.with_job(record, &[], now_ns, |job| {
            learned.add(job, args.sizes.get(index).copied(), &ceilings);
        });
    }
    let wishes = scale::Wishes { sizes: args.at.clone(), target_s: args.target };
    let Learned { runs, powers, bounds, left_out, .. } = learned;
    let plan = scale::plan(&runs, &powers, bounds, newest, &systems, &wishes);
    print(setting, newest, &plan, &left_out, args.json)
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
    filter.page.limit = Some(JOBS_BESIDE);
    all.jobs(&filter)
}

fn print(setting: &Setting, record: &Record, plan: &Plan, left_out: &[String], json: bool) -> Result<i32> {
    let mut stdout = output::stdout();
    if json {
        writeln!(stdout, "{}", scale::object(record, plan, left_out))?;
    } else {
        let style = stdout.style();
        let currency = Some(setting.config.energy.currency.as_str());
        stdout.write_all(view::scale::render(record, plan, left_out, currency, &style).as_bytes())?;
    }
    Ok(0)
}
