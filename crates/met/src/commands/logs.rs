//! `met logs`: what a job wrote.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use met_core::job::{FileId, Origin, Record};
use met_host::Liveness;

use crate::cli::LogsArgs;
use crate::managers;
use crate::output;
use met_agent::earlier_output;
use met_config::Failure;
use met_query::jobs::AllJobs;
use met_query::setting::Setting;
use met_web::api::{Output, Tail};

const LOOK_EVERY: Duration = Duration::from_millis(200);

pub fn logs(setting: &Setting, args: &LogsArgs) -> Result<i32> {
    let record = AllJobs::open(setting)?.find(&args.job)?;
    let local = record.local.as_ref();
    let path = local.and_then(|local| if args.err { local.stderr.as_ref() } else { local.stdout.as_ref() });
    let Some(path) = path else { return Err(unknown(&record)) };
    let id = local.and_then(|local| if args.err { local.stderr_file } else { local.stdout_file });
    let (mut file, path) = earlier_output::open(path, &record.key.id, id)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    // A record written by another user is used for that user's files only.
    let mine = record.uid == Some(rustix::process::getuid().as_raw());
    if !mine && file.metadata().ok().map(|metadata| metadata.uid()) != record.uid {
        return Err(Failure::usage(format!(
            "{} does not belong to the user of job {}",
            path.display(),
            record.key.id
        )));
    }
    let mut stdout = output::stdout();
    loop {
        // Asked before the rest is read: what the job wrote last is not missed.
        let over = !args.follow || is_over(setting, &record);
        io::copy(&mut file, &mut stdout).with_context(|| format!("cannot print {}", path.display()))?;
        stdout.flush()?;
        if over {
            return Ok(0);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Bytes of a file that a page shows.
const TAIL_BYTES: u64 = 16 << 10;

/// What jobs of this user wrote, for the user's own pages.
pub struct OwnOutput;

impl Output for OwnOutput {
    fn tails(&self, record: &Record) -> Vec<Tail> {
        let Some(local) =
            record.local.as_ref().filter(|_| record.uid == Some(rustix::process::getuid().as_raw()))
        else {
            return Vec::new();
        };
        let error = local.stderr.as_ref().filter(|path| local.stdout.as_ref() != Some(path));
        let files = [(local.stdout.as_ref(), local.stdout_file), (error, local.stderr_file)];
        let tails = files.into_iter().filter_map(|(path, id)| tail(path?, &record.key.id, id).ok());
        tails.filter(|tail| !tail.text.is_empty()).collect()
    }
}

/// The end of a file, from the beginning of a line on. A pipe or a device has none.
fn tail(path: &Path, job: &str, id: Option<FileId>) -> io::Result<Tail> {
    let (mut file, path) = earlier_output::open(path, job, id)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let begin = metadata.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let is_cut = begin > 0;
    let line = bytes.iter().position(|&byte| byte == b'\n').filter(|_| is_cut).map_or(0, |at| at + 1);
    let text = String::from_utf8_lossy(&bytes[line..]).into_owned();
    Ok(Tail { path: path.display().to_string(), text, is_cut })
}

fn unknown(record: &Record) -> anyhow::Error {
    let label = record.label();
    Failure::usage(match managers::output_hint(record) {
        _ if record.local.as_ref().is_some_and(|local| local.origin == Origin::Attach) => {
            format!("job {label} was attached while it ran; met does not know where it writes")
        }
        _ if !managers::is_foreign(record) => {
            format!("output of job {label} went to the terminal and was not saved")
        }
        Some(hint) => format!("met does not know where job {label} writes; {hint}"),
        None => format!("met does not know where job {label} writes"),
    })
}

fn is_over(setting: &Setting, record: &Record) -> bool {
    let supervisor = record.local.as_ref().and_then(|local| local.supervisor);
    let is_gone = |supervisor| setting.host.liveness(supervisor) == Liveness::Gone;
    !record.state.is_live() || supervisor.is_none_or(is_gone)
}
