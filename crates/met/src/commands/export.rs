//! `met export`: jobs and their series as a file.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use met_core::Table;
use met_core::job::Record;
use met_export::{ExportedJob, Format, JobWriter, OutputFile, Rows};
use met_insight::rules::Rules;

use super::{Machines, import, list};
use crate::cli::ExportArgs;
use crate::output;
use met_config::Failure;
use met_query::jobs::{self, AllJobs, EarlierRuns, JobsFilter, PageAsk};
use met_query::setting::Setting;

/// Who waits longer than this wants to know how far it is.
const SILENT_FOR: Duration = Duration::from_secs(1);
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

pub fn export(setting: &Setting, args: &ExportArgs) -> Result<i32> {
    if args.js1 {
        return summaries(setting, args);
    }
    let output = args.output.as_deref().unwrap_or(Path::new("-"));
    let to_stdout = output.as_os_str() == "-";
    let format = format(args, output, to_stdout)?;
    let rows = rows(args, format)?;
    if !args.jobs.is_empty() && (list::is_filtered(&args.filter) || args.limit.is_some()) {
        return Err(Failure::usage("name jobs, or choose them by options, not both"));
    }
    let chosen = choose(setting, args)?;
    if to_stdout {
        let mut stdout = output::stdout();
        let mut writer = met_export::text_writer(format, rows, &mut stdout)?;
        write_all(setting, chosen, format, rows, writer.as_mut())?;
        writer.finish()?;
        return Ok(0);
    }
    let file =
        OutputFile::create(output, args.force).map_err(|error| Failure::usage(format!("{error:#}")))?;
    let written = met_export::writer(format, rows, BufWriter::new(file.file())).and_then(|mut writer| {
        write_all(setting, chosen, format, rows, writer.as_mut())?;
        writer.finish()
    });
    written.and_then(|()| file.finish()).map_err(|error| naming_file(error, output))?;
    Ok(0)
}

/// Writers of files repeat the error of a full disk, and do not know the name of the file: both are put right.
fn naming_file(error: anyhow::Error, output: &Path) -> anyhow::Error {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match error.root_cause().downcast_ref::<io::Error>() {
        Some(cause) if matches!(cause.kind(), StorageFull | QuotaExceeded | FileTooLarge) => {
            Failure::with_code(1, format!("cannot write {}: {cause}", output.display()))
        }
        _ => error,
    }
}

/// A line for each job that is named.
fn summaries(setting: &Setting, args: &ExportArgs) -> Result<i32> {
    if args.jobs.is_empty() {
        return Err(Failure::usage("--js1 needs a job, as in: met export --js1 slurm:1234"));
    }
    let mut all = AllJobs::open(setting)?;
    let mut stdout = output::stdout();
    let mut print = |record: &Record, now_ns: i64| -> Result<()> {
        Ok(writeln!(stdout, "{}", met_export::js1::js1(record, now_ns)?)?)
    };
    for job in &args.jobs {
        match import::is_imported(job) || import::is_file(job) {
            true => import::each(setting, job, &mut |job| print(&job.record, job.exported_ns))?,
            false => print(&all.find(job)?, jobs::now_ns())?,
        }
    }
    Ok(0)
}

fn format(args: &ExportArgs, output: &Path, to_stdout: bool) -> Result<Format> {
    let known = Format::ALL.map(Format::name).join(", ");
    let named = args.format.as_ref().map(|name| {
        Format::parse(name)
            .ok_or_else(|| Failure::usage(format!("--format {name}: unknown format; write one of {known}")))
    });
    let by_name = || match to_stdout {
        true => Ok(Format::Jsonl),
        false => Format::of(output).ok_or_else(|| {
            let name = output.display();
            Failure::usage(format!("{name}: its ending names no format; use one of {known}, or --format"))
        }),
    };
    let format = named.unwrap_or_else(by_name)?;
    if to_stdout && !matches!(format, Format::Csv | Format::Jsonl) {
        let name = format.name();
        return Err(Failure::usage(format!("{name} cannot be written to standard output; use csv or jsonl")));
    }
    Ok(format)
}

fn rows(args: &ExportArgs, format: Format) -> Result<Rows> {
    let rows = Rows::parse(&args.table).ok_or_else(|| {
        let known = Rows::all().map(Rows::name).collect::<Vec<_>>().join(", ");
        Failure::usage(format!("--table {}: unknown table; write one of {known}", args.table))
    })?;
    if format.is_whole() && !matches!(rows, Rows::Jobs) {
        let name = format.name();
        return Err(Failure::usage(format!("{name} files hold all tables; --table is for csv and parquet")));
    }
    Ok(rows)
}

/// What is written: jobs that are known here, and imported ones or those of files, by name.
enum Chosen {
    Known(Box<Record>),
    InFile(String),
}

fn choose(setting: &Setting, args: &ExportArgs) -> Result<(AllJobs, Vec<Chosen>)> {
    let mut all = AllJobs::open(setting)?;
    let known = |record| Chosen::Known(Box::new(record));
    if args.jobs.is_empty() {
        if let Some(notice) = setting.unread_system_jobs() {
            tracing::warn!("{notice}");
        }
        let filter = JobsFilter {
            page: PageAsk { limit: args.limit, ..list::filter_of(&args.filter)?.page },
            ..list::filter_of(&args.filter)?
        };
        let jobs: Vec<Chosen> = all.jobs(&filter)?.into_iter().map(known).collect();
        if jobs.is_empty() {
            list::unknown_name(setting, &args.filter)?;
            return Err(Failure::with_code(1, "no jobs match; nothing was written"));
        }
        return Ok((all, jobs));
    }
    let chosen = args.jobs.iter().map(|name| match import::is_imported(name) || import::is_file(name) {
        true => Ok(Chosen::InFile(name.clone())),
        false => all.find_to_show(name).map(known),
    });
    let chosen = chosen.collect::<Result<_>>()?;
    Ok((all, chosen))
}

fn write_all(
    setting: &Setting,
    (mut all, chosen): (AllJobs, Vec<Chosen>),
    format: Format,
    rows: Rows,
    writer: &mut dyn JobWriter,
) -> Result<()> {
    let (machines, now_ns) = (Machines::of(setting), jobs::now_ns());
    let is_wanted = |table: &Table| {
        format.is_whole() || matches!(rows, Rows::Samples(wanted) if wanted.name == table.name)
    };
    let mut earlier_runs = EarlierRuns::default();
    let mut progress = ExportProgress::new(chosen.len());
    for (done, chosen) in chosen.into_iter().enumerate() {
        progress.show(done);
        match chosen {
            Chosen::InFile(name) => import::each(setting, &name, &mut |job| writer.job(&job))?,
            Chosen::Known(record) => {
                let machine = machines.of_job(&record);
                let mut job = ExportedJob::new(&record, machine.cpus, now_ns);
                if format.is_whole() {
                    let earlier = earlier_runs.of(&mut all, &record)?;
                    job.add_beside(all.beside_if_asked(Rules::built_in(), &record, machine, &earlier)?);
                    job.add_earlier(&earlier);
                }
                for (table, part) in met_export::parts(&record).filter(|(table, _)| is_wanted(table)) {
                    job.add(part, all.part_series(&record, table, part)?);
                }
                writer.job(&job)?;
            }
        }
    }
    Ok(())
}

/// A line on a terminal that says how far it is.
struct ExportProgress {
    jobs: usize,
    begun: Instant,
    shown: Option<Instant>,
}

impl ExportProgress {
    fn new(jobs: usize) -> ExportProgress {
        ExportProgress { jobs, begun: Instant::now(), shown: None }
    }

    fn show(&mut self, done: usize) {
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_EVERY);
        if self.begun.elapsed() < SILENT_FOR || !is_due || !io::stderr().is_terminal() {
            return;
        }
        let _ = write!(io::stderr(), "\rexporting: {done} of {} jobs\x1b[K", self.jobs);
        self.shown = Some(Instant::now());
    }
}

impl Drop for ExportProgress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Whether a name is that of a file that holds whole jobs.
pub fn holds_jobs(path: &Path) -> bool {
    Format::of(path).is_some_and(Format::is_whole)
}
