//! `met show`: the report of one job, of this machine, a server or a file.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use met_core::job::Record;
use met_core::series::{Columns, Series};
use met_core::{Table, event};
use met_insight::answers::{self, Beside, Known, ReadRun};
use met_insight::report::Machine;
use met_insight::resample;
use met_insight::rules::Rules;

use super::{export, import};
use crate::cli::ShowArgs;
use crate::managers;
use crate::output;
use crate::view::{self, text};
use met_config::Failure;
use met_jobs::processes;
use met_query::jobs::{self, AllJobs, Meant};
use met_query::setting::Setting;
use met_query::systems;
use met_web::pages;

/// More plots than this are for a program.
const GPUS_PLOTTED: usize = 4;
const EVENTS_PLOTTED: usize = 8;

pub fn show(setting: &Setting, args: &ShowArgs) -> Result<i32> {
    if import::is_imported(&args.job) || import::is_file(&args.job) {
        let job = import::one(setting, &args.job, args.in_file.as_deref())?;
        let shown = Shown {
            machine: Machine { cpus: job.cpus },
            now_ns: job.exported_ns,
            whole: true,
            record: job.record.clone(),
            earlier: job.earlier.clone(),
            beside: job.beside,
        };
        // Processes and files of that machine are not looked for here.
        // A file has the samples of its own job.
        let of_file = |run: &Record, table: &'static Table, part: &str| match run.key == job.record.key {
            true => job.series(table, part),
            false => Series::new(table),
        };
        return print(setting, args, &shown, &mut |run, table, part, _| Ok(of_file(run, table, part)));
    }
    if let Some(wanted) = &args.in_file {
        let job = &args.job;
        return Err(Failure::usage(format!("one job at a time; to compare: met compare {job} {wanted}")));
    }
    if args.web {
        return super::web::link_to(setting, &args.job);
    }
    let mut all = AllJobs::open(setting)?;
    let not_there = |error| match Path::new(&args.job).is_file() {
        true => Failure::usage(format!("{}: only .jsonl and .h5 files hold whole jobs", args.job)),
        false if export::holds_jobs(Path::new(&args.job)) => {
            Failure::usage(format!("{}: no such file, and no job of that name; run `met list`", args.job))
        }
        false => error,
    };
    let (record, whole) = match all.find_or_step(&args.job).map_err(not_there)? {
        Meant::Job(record) => (record, true),
        Meant::Step(record) => (record, false),
    };
    let earlier = if whole { all.earlier_runs(&record)? } else { Vec::new() };
    let machine = super::machine(setting, &record);
    let beside = match whole {
        true => all.beside_if_asked(Rules::built_in(), &record, machine, &earlier)?,
        false => None,
    };
    let shown = Shown { machine, now_ns: jobs::now_ns(), whole, record, earlier, beside };
    let record = &shown.record;
    let series = &mut |run: &Record, table: &'static Table, part: &str, wanted: Columns| {
        all.some_series(run, table, part, wanted)
    };
    print(setting, args, &shown, series)?;
    if !args.json && args.html.is_none() && whole {
        print_alive(setting, record)?;
    }
    Ok(0)
}

/// A job and what it is compared with.
struct Shown {
    record: Record,
    machine: Machine,
    now_ns: i64,
    /// Not a step: the series and the processes are the whole job's.
    whole: bool,
    /// Runs of its lineage before it, newest first.
    earlier: Vec<Record>,
    /// What other jobs on its node did, if a rule asks for it.
    beside: Option<Beside>,
}

fn print(
    setting: &Setting,
    args: &ShowArgs,
    Shown { record, machine, now_ns, whole, earlier, beside }: &Shown,
    read: &mut ReadRun<'_, anyhow::Error>,
) -> Result<i32> {
    let interval = setting.config.sampling.shortest();
    let mut read_own = |table: &'static Table, part: &str| read(record, table, part, Columns::ALL);
    // Samples and earlier runs are the whole job's, and say nothing of a step.
    let known = match whole {
        true => Some(Known::read(interval, record, *machine, &mut read_own)?),
        false => None,
    };
    let known = known.map(|known| {
        let known = known.beside(*beside).among(&systems::of(&setting.config).into());
        known.after(interval, record, earlier, *now_ns, read)
    });
    let mut read_own = |table: &'static Table, part: &str| read(record, table, part, Columns::ALL);
    let answers = known.as_ref().map(|known| known.answers(record, earlier, *now_ns));
    if let Some(path) = &args.html {
        let (charts, span) = match &known {
            Some(known) => {
                pages::charts_of(record, *now_ns, |table, part| match known.series(table, part) {
                    Some(series) => Ok(series.clone()),
                    None => read_own(table, part),
                })?
            }
            None => (Vec::new(), None),
        };
        let shown = pages::Shown { record, machine: *machine, charts, span, answers };
        return write_html(path, &pages::file(&shown, *now_ns, view::local_zone()).into_string());
    }
    let mut stdout = output::stdout();
    if args.json {
        let mut object = met_insight::json::object(record, *now_ns);
        if let Some(answers) = &answers {
            object["answers"] = answers::object(answers);
        }
        if let Some(known) = known.as_ref().filter(|_| !record.work.is_empty()) {
            object["work"] = met_insight::work::object_of(record, known, *now_ns);
        }
        writeln!(stdout, "{object}")?;
        return Ok(0);
    }
    let style = stdout.style();
    let mut report = met_insight::report::report(record, *machine, *now_ns);
    report.answers = answers;
    stdout.write_all(view::report::render(&report, &style).as_bytes())?;
    let Some(Known { series, gpus, .. }) = known else { return Ok(0) };
    let start_ms = record.start_ns.map(|start_ns| start_ns / 1_000_000);
    let gaps = |series: &Series| resample::gaps(series, setting.config.sampling.shortest(), start_ms);
    let totals = view::plot::Known::of(record, *now_ns);
    let mut plots = vec![view::plot::series(&series, gaps(&series), &totals, &style)];
    for (gpu, (_, series)) in record.gpus.iter().zip(&gpus).take(GPUS_PLOTTED) {
        plots.push(view::plot::gpu(series, &gpu.index, gaps(series), &style));
    }
    for counted in record.events.iter().take(EVENTS_PLOTTED) {
        // An older daemon has no such series.
        let series = read_own(&event::TABLE, &counted.name).unwrap_or_else(|_| Series::new(&event::TABLE));
        plots.push(view::plot::event(&series, &counted.name, gaps(&series), &style));
    }
    for plot in plots.iter().filter(|plot| !plot.is_empty()) {
        write!(stdout, "\n{plot}")?;
    }
    Ok(0)
}

fn write_html(path: &Path, page: &str) -> Result<i32> {
    if path.as_os_str() == "-" {
        output::stdout().write_all(page.as_bytes())?;
        return Ok(0);
    }
    std::fs::write(path, page)
        .map_err(|error| Failure::usage(format!("--html {}: {error}", path.display())))?;
    Ok(0)
}

/// The processes that a finished job left.
fn print_alive(setting: &Setting, record: &Record) -> Result<()> {
    if record.state.is_live() || managers::is_foreign(record) {
        return Ok(());
    }
    let alive = processes::of_job(&setting.host, record);
    if !alive.is_empty() {
        let named =
            alive.iter().map(|process| format!("{} ({})", process.id.pid, text::escape(&process.name)));
        let list = named.collect::<Vec<_>>().join(", ");
        let id = &record.key.id;
        writeln!(output::stdout(), "\nStill alive: {list}\nEnd them with: met cancel {id}")?;
    }
    Ok(())
}
