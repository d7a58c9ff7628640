//! Reading files that hold whole jobs.

use std::fs::{File, OpenOptions};
use std::io::BufReader;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use met_core::text::escape;
use rustix::fs::OFlags;

use crate::{ExportedJob, Format, hdf5, jsonl};

/// A day of samples every second is 60 MB of JSON lines.
pub const FILE_BYTES_MAX: u64 = 4 << 30;

/// Calls `each` with every job of a file, one after the other.
pub fn read(path: &Path, each: &mut dyn FnMut(ExportedJob) -> Result<()>) -> Result<()> {
    let named = || path.display().to_string();
    let mut refused = None;
    let mut each = |job| {
        each(job).map_err(|error| {
            refused = Some(error);
            anyhow!("stopped by the caller")
        })
    };
    let read = match Format::of(path).filter(|format| format.is_whole()) {
        Some(Format::Jsonl) => jsonl::read(BufReader::new(open(path)?), &mut each),
        Some(_) => hdf5::read(open(path)?, &mut each),
        None => bail!("{}: only .jsonl and .h5 files hold whole jobs", named()),
    };
    match refused {
        Some(error) => Err(error).with_context(named),
        // What is wrong may be named in words of the file, which may hold anything.
        None => read.map_err(|error| anyhow!(escape(&causes(&error)))).with_context(named),
    }
}

/// An error with its causes. Some libraries write a cause into the error that it causes as well: it is said once.
fn causes(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !words.ends_with(&cause) {
            words = if words.is_empty() { cause } else { format!("{words}: {cause}") };
        }
    }
    words
}

/// Opens a plain file and nothing that blocks, with the caller's permissions.
fn open(path: &Path) -> Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let about = file.metadata().with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(about.is_file(), "{} is not a plain file", path.display());
    let (bytes, most) = (about.len(), FILE_BYTES_MAX >> 30);
    ensure!(bytes <= FILE_BYTES_MAX, "{} is larger than {most} GiB", path.display());
    Ok(file)
}

/// What of a file is meant.
#[derive(Debug)]
pub enum Choice {
    One(Box<ExportedJob>),
    /// How the jobs are named of which one would have to be chosen, not more than a screen holds, and how many there are.
    Several(Vec<String>, usize),
    None,
}

/// The one job of a file, or the one that is named as people or its manager name it.
pub fn choose(path: &Path, wanted: Option<&str>) -> Result<Choice> {
    const NAMES_MAX: usize = 20;
    let (mut found, mut names, mut count) = (None, Vec::new(), 0);
    read(path, &mut |job| {
        let record = &job.record;
        let known = [&record.label(), record.shown_id(), &record.key.id, &record.name];
        if wanted.is_none_or(|wanted| known.contains(&wanted)) {
            if names.len() < NAMES_MAX {
                names.push(record.label());
            }
            count += 1;
            found = Some(Box::new(job));
        }
        Ok(())
    })?;
    Ok(match found {
        Some(job) if names.len() == 1 => Choice::One(job),
        Some(_) => Choice::Several(names, count),
        None => Choice::None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_an_error_names_itself_is_said_once() {
        let twice = anyhow!("no signature").context("format error: no signature").context("cannot read it");
        assert_eq!(causes(&twice), "cannot read it: format error: no signature");
        assert_eq!(causes(&anyhow!("short").context("line 2")), "line 2: short");
    }
}
