//! `met mark`: a unit of work done, written down from inside a job. It waits for nothing and disturbs no job.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::Result;
use met_core::work::{self, MARKS_BYTES_MAX};
use met_host::clock;
use met_jobs::processes::MARKS;

use crate::cli::MarkArgs;
use crate::output;
use met_config::Failure;

/// The module for Python, as `met python` prints it.
const PYTHON: &str = include_str!("jobmet.py");

pub fn mark(args: &MarkArgs) -> Result<i32> {
    let mut line = format!("@{}", clock::realtime_ns());
    for word in &args.pairs {
        let Some((name, value)) = work::parse_pair(word) else {
            return Err(Failure::usage(format!("{word:?} is not a mark; write NAME=NUMBER, as in step=100")));
        };
        // Writing to a string cannot fail.
        write!(line, " {name}={value}").unwrap_or_default();
    }
    line.push('\n');
    let Some(path) = std::env::var_os(MARKS).filter(|path| !path.is_empty()) else {
        return Err(Failure::usage(
            "not inside a job of met: MET_MARKS is not set; start it with `met run` or `met time`",
        ));
    };
    // It may have been removed with its job: then there is nothing to write down any more.
    let opened =
        OpenOptions::new().append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(&path);
    let Ok(mut file) = opened else {
        tracing::warn!("cannot write the marks of this job; it has ended");
        return Ok(0);
    };
    let is_full = file.metadata().map_or(true, |known| {
        !known.is_file() || known.len().saturating_add(line.len() as u64) > MARKS_BYTES_MAX
    });
    if is_full {
        tracing::warn!("this job has written all the marks it may, 4 MiB; mark less often");
        return Ok(0);
    }
    // One write: lines of several processes do not mix.
    file.write_all(line.as_bytes())?;
    Ok(0)
}

pub fn python() -> Result<i32> {
    output::stdout().write_all(PYTHON.as_bytes())?;
    Ok(0)
}
