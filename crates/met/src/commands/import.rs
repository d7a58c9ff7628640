//! `met import`: jobs of files, in a namespace of their own.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use anyhow::{Result, anyhow};
use met_export::imported::{self, Imported};
use met_export::{Choice, ExportedJob};

use super::export::holds_jobs;
use crate::cli::ImportArgs;
use crate::output;
use crate::view::text;
use met_config::Failure;
use met_query::setting::Setting;

pub fn import(setting: &Setting, args: &ImportArgs) -> Result<i32> {
    setting.user.check_own()?;
    let stored = Imported::of(&setting.user.state);
    if args.files.is_empty() {
        return list(&stored);
    }
    setting.user.create()?;
    let mut added = Vec::new();
    for path in &args.files {
        let result = read(path, &mut |job| {
            added.push((stored.add(&job)?, job.record.label(), job.record.name));
            Ok(())
        });
        // All or none: a second try would import some of them twice.
        if result.is_err() {
            added.iter().for_each(|(number, ..)| drop(stored.remove(*number)));
            return result.map(|()| 1);
        }
    }
    let mut stdout = output::stdout();
    for (number, label, name) in added {
        let (label, name) = (text::escape(&label), text::escape(&name));
        writeln!(stdout, "Imported job {label} ({name}) as {}", imported::reference(number))?;
    }
    Ok(0)
}

fn list(stored: &Imported) -> Result<i32> {
    let mut stdout = output::stdout();
    let numbers = stored.numbers()?;
    if numbers.is_empty() {
        writeln!(stdout, "no imported jobs; import some with: met import FILE")?;
    }
    for number in numbers {
        let reference = imported::reference(number);
        match stored.get(number) {
            Ok(ExportedJob { record, .. }) => {
                let (label, name) = (text::escape(&record.label()), text::escape(&record.name));
                writeln!(stdout, "{reference}  job {label} ({name}), {}", record.state.name())?;
            }
            Err(error) => writeln!(stdout, "{reference}  unreadable: {error:#}")?,
        }
    }
    Ok(0)
}

/// Whether an argument names an imported job.
pub fn is_imported(name: &str) -> bool {
    imported::number_in(name).is_some()
}

/// Whether an argument names a file of jobs. A job may be called like one: then the file must be there.
pub fn is_file(name: &str) -> bool {
    let path = Path::new(name);
    holds_jobs(path) && (name.contains('/') || path.exists())
}

/// Calls `take` with each job of a file, or with an imported one.
pub fn each(setting: &Setting, name: &str, take: &mut dyn FnMut(ExportedJob) -> Result<()>) -> Result<()> {
    match imported::number_in(name) {
        Some(number) => take(of_number(setting, number)?),
        None => read(Path::new(name), take),
    }
}

/// A file that cannot be read is bad input; what `take` fails with is its own failure.
fn read(path: &Path, take: &mut dyn FnMut(ExportedJob) -> Result<()>) -> Result<()> {
    let mut failure = None;
    let read = met_export::read(path, &mut |job| {
        take(job).map_err(|error| {
            failure = Some(error);
            anyhow!("stopped")
        })
    });
    match failure {
        Some(failure) => Err(failure),
        None => read.map_err(|error| Failure::usage(format!("{error:#}"))),
    }
}

fn of_number(setting: &Setting, number: u32) -> Result<ExportedJob> {
    setting.user.check_own()?;
    Imported::of(&setting.user.state).get(number).map_err(|error| Failure::usage(format!("{error:#}")))
}

/// The one job that an argument means, or the one of the file that `wanted` names.
pub fn one(setting: &Setting, name: &str, wanted: Option<&str>) -> Result<ExportedJob> {
    if let Some(number) = imported::number_in(name) {
        return of_number(setting, number);
    }
    let choice = met_export::choose(Path::new(name), wanted);
    match choice.map_err(|error| Failure::usage(format!("{error:#}")))? {
        Choice::One(job) => Ok(*job),
        Choice::Several(names, count) => {
            let more = match count - names.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let names = text::escape(&names.join(", "));
            let such = if wanted.is_some() { "such jobs" } else { "jobs" };
            Err(Failure::usage(format!(
                "{name} has {count} {such} ({names}{more}); name one: met show {name} JOB, or \
                 import them: met import {name}"
            )))
        }
        Choice::None => {
            let wanted = wanted.unwrap_or_default();
            Err(Failure::usage(format!("{name} has no job named {wanted:?}")))
        }
    }
}

/// Removes imported jobs; all or none.
pub fn remove(setting: &Setting, names: &[&String]) -> Result<()> {
    setting.user.check_own()?;
    let stored = Imported::of(&setting.user.state);
    let known = stored.numbers()?;
    for name in names {
        if imported::number_in(name).is_none_or(|number| !known.contains(&number)) {
            return Err(Failure::usage(format!("no job {name}; `met import` lists them")));
        }
    }
    let numbers: BTreeSet<_> = names.iter().filter_map(|name| imported::number_in(name)).collect();
    for number in numbers {
        stored.remove(number)?;
        writeln!(output::stdout(), "Removed job {}", imported::reference(number))?;
    }
    Ok(())
}
