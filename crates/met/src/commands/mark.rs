//! `met mark`: a unit of work done, written down from inside a job. It waits for nothing and disturbs no job.

use std::io::{self, Write};

use anyhow::Result;
use met_agent::marking::{self, Marks, Pattern, Written};
use met_host::clock;

use crate::cli::MarkArgs;
use crate::output;
use met_config::Failure;

/// The module for Python, as `met python` prints it.
const PYTHON: &str = include_str!("jobmet.py");

pub fn mark(args: &MarkArgs) -> Result<i32> {
    if let Some(pattern) = &args.regex {
        let pattern = Pattern::parse(pattern)
            .map_err(|error| Failure::usage(format!("--regex {pattern:?}: {error}")))?;
        if !args.command.is_empty() {
            marking::exec(&pattern, &args.command)?;
        }
        let marks = Marks::of_job().unwrap_or_else(|error| {
            tracing::warn!("{error}");
            None
        });
        marking::filter(&pattern, marks, &mut io::stdin().lock(), &mut output::stdout(), &mut io::stderr())?;
        return Ok(0);
    }
    let pairs = marking::pairs(&args.pairs)?;
    // It may have been removed with its job: then there is nothing to write down any more.
    let Some(mut marks) = Marks::of_job()? else {
        tracing::warn!("this job has no file of marks: it has ended, or there was no space for one");
        return Ok(0);
    };
    if marks.write(clock::realtime_ns(), &pairs)? == Written::Full {
        tracing::warn!("this job has written all the marks it may, 4 MiB; mark less often");
    }
    Ok(0)
}

pub fn python() -> Result<i32> {
    output::stdout().write_all(PYTHON.as_bytes())?;
    Ok(0)
}
