//! Jobs that were imported from files: a folder of their own with one file each, named by number. No list, sum or
//! policy of jobs looks into it, and no daemon does.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::{Choice, ExportedJob, Format, Rows, choose, output, writer};

/// What a reference to one begins with.
const PREFIX: &str = "imported:";
/// Files in the folder.
const COUNT_MAX: usize = 10_000;

pub struct Imported {
    folder: PathBuf,
}

/// The number of an imported job in a reference such as `imported:3`.
pub fn number_in(reference: &str) -> Option<u32> {
    reference.strip_prefix(PREFIX)?.parse().ok()
}

pub fn reference(number: u32) -> String {
    format!("{PREFIX}{number}")
}

impl Imported {
    /// The imported jobs of the user whose state folder this is.
    pub fn of(state: &Path) -> Imported {
        Imported { folder: state.join("imported") }
    }

    fn path(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{number}.{}", Format::Jsonl.name()))
    }

    /// The numbers that are taken, ascending.
    pub fn numbers(&self) -> Result<Vec<u32>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("cannot read {}", self.folder.display()))?,
        };
        let number = |name: &str| name.strip_suffix(".jsonl")?.parse::<u32>().ok();
        let mut numbers: Vec<u32> =
            entries.filter_map(|entry| number(entry.ok()?.file_name().to_str()?)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Stores a job durably under the next number.
    pub fn add(&self, job: &ExportedJob) -> Result<u32> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.with_context(|| format!("cannot create {}", self.folder.display()))?;
        let numbers = self.numbers()?;
        ensure!(
            numbers.len() < COUNT_MAX,
            "{COUNT_MAX} jobs are imported; remove some with `met rm imported:N`"
        );
        let temporary = self.folder.join(format!(".{}.tmp", std::process::id()));
        let stored = self.write(job, &temporary, numbers.last().map_or(1, |last| last + 1));
        if stored.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        stored.with_context(|| format!("cannot write to {}", self.folder.display()))
    }

    fn write(&self, job: &ExportedJob, temporary: &Path, mut number: u32) -> Result<u32> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
        let mut jsonl = writer(Format::Jsonl, Rows::Jobs, io::BufWriter::new(&file))?;
        jsonl.job(job)?;
        jsonl.finish()?;
        file.sync_all()?;
        loop {
            match output::rename_new(temporary, &self.path(number)) {
                // Another import took it just now.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                renamed => return Ok(renamed.map(|()| number)?),
            }
        }
    }

    pub fn get(&self, number: u32) -> Result<ExportedJob> {
        let path = self.path(number);
        ensure!(path.exists(), "no job {}; `met import` lists them", reference(number));
        match choose(&path, None)? {
            Choice::One(job) => Ok(*job),
            Choice::Several(..) | Choice::None => bail!("{} was changed", path.display()),
        }
    }

    pub fn remove(&self, number: u32) -> Result<()> {
        let path = self.path(number);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }
}
