//! `met logs`: what a job wrote.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result};
use met_core::job::{Origin, Record};
use met_host::Liveness;

use crate::cli::LogsArgs;
use crate::managers;
use crate::output;
use met_agent::earlier_output;
use met_config::Failure;
use met_query::jobs::AllJobs;
use met_query::setting::Setting;

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
