//! Arguments of the commands that answer: explain, check, usage, who, mark, scale, compare.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use met_core::usage::{By, Every};

const WORKERS_MAX: u32 = 10_000_000;

fn number_of_workers(text: &str) -> Result<f64, String> {
    let count = text.parse().ok().filter(|count| (1..=WORKERS_MAX).contains(count));
    count.map(f64::from).ok_or_else(|| format!("write a whole number from 1 to {WORKERS_MAX}"))
}

#[cfg(test)]
#[test]
fn wishes_of_met_scale_are_refused_with_what_to_write() {
    for wrong in ["0", "-3", "99999999999", "two", "1.5", ""] {
        assert_eq!(
            number_of_workers(wrong),
            Err("write a whole number from 1 to 10000000".to_owned()),
            "{wrong}"
        );
    }
    assert_eq!((number_of_workers("8"), target("1m30s")), (Ok(8.0), Ok(90.0)));
    assert_eq!(target("0s"), Err("write a time > 0, such as 10m".to_owned()));
    assert_eq!(target("10"), Err("\"10\" has no unit; write 10s, 10ms or 10m".to_owned()));
    for wrong in ["-5m", "soon", ""] {
        let said = target(wrong).unwrap_err();
        assert_eq!(said, format!("{wrong:?} is not a duration; write 1s, 500ms or 2m"));
    }
    assert_eq!(
        target("99999999999999999d"),
        Err("\"99999999999999999d\" is too long; write at most 213503d".to_owned())
    );
}

/// A time that a user may want to wait for.
fn target(text: &str) -> Result<f64, String> {
    // A sign is no part of a duration, and neither is nothing.
    let time = met_core::units::parse_duration(text).map_err(|error| error.to_string())?;
    match time.is_zero() {
        true => Err("write a time > 0, such as 10m".to_owned()),
        false => Ok(time.as_secs_f64()),
    }
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A job: 12, slurm:1234_7, a name (its newest), @last, imported:1, or a .jsonl or .h5 file of `met export`; not
    /// with --user
    #[arg(value_name = "JOB", required_unless_present = "user")]
    pub job: Option<String>,
    /// A rule, as reports and `met check` name it (default: all, a line each)
    #[arg(value_name = "RULE")]
    pub rule: Option<String>,
    /// The sums of this user's jobs, of each of the last weeks, instead of a job
    #[arg(long, value_name = "USER", value_hint = clap::ValueHint::Username)]
    pub user: Option<String>,
    /// Rules of a file instead of those built in
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Jobs started after this time: 2h, 7d, today, 2026-01-14 (default: 30d)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub since: Option<String>,
    /// Findings of this user, by name or uid
    #[arg(long, value_hint = clap::ValueHint::Username)]
    pub user: Option<String>,
    /// Rules of a file instead of those built in
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Show muted and acknowledged findings as well, with who did it and when
    #[arg(long)]
    pub all: bool,
    /// Send each user a message by notify.command or notify.webhook; a finding is not sent again for a week
    #[arg(long, conflicts_with_all = ["json", "all"])]
    pub send: bool,
    /// How many jobs and users would be hit, and what it would save; with --send, print the messages as well
    #[arg(long)]
    pub dry_run: bool,
    /// Print the fields that conditions of rules may name
    #[arg(long, conflicts_with_all = ["json", "rules", "user", "since", "send", "all", "dry_run"])]
    pub fields: bool,
}

#[derive(Debug, Args)]
pub struct ReactArgs {
    /// A job, and rules as `met check` names them
    #[arg(value_name = "JOB RULE")]
    pub words: Vec<String>,
    /// Findings about the sum of this user's jobs instead of a job's; only rules are named
    #[arg(long, value_name = "USER", value_hint = clap::ValueHint::Username)]
    pub user: Option<String>,
    /// Rules of a file instead of those built in
    #[arg(long, value_name = "FILE", requires = "words")]
    pub rules: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct MuteArgs {
    #[command(flatten)]
    pub about: ReactArgs,
    /// For this long, such as 30d (default: until `met unmute`)
    #[arg(long = "for", value_name = "TIME", requires = "words", allow_hyphen_values = true)]
    pub time: Option<String>,
    /// Print the list as a JSON object
    #[arg(long, conflicts_with_all = ["words", "user"])]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct UsageArgs {
    /// Sum by: system, user, account, partition, node or command (default: user)
    #[arg(long, value_name = "WHAT", value_parser = by)]
    pub by: Option<By>,
    /// Divide into: hour, day, week, month, hour-of-day, weekday or hour-of-week
    #[arg(long, value_name = "PERIOD", value_parser = every)]
    pub every: Option<Every>,
    /// Draw a heat map of the hours of the week
    #[arg(long, conflicts_with_all = ["every", "by"])]
    pub heat: bool,
    /// From this time on: 12h, 7d, today, 2026-01-14 (default: 30d)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub since: Option<String>,
    /// Before this time (default: now)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub until: Option<String>,
    /// Jobs of this user
    #[arg(long, value_hint = clap::ValueHint::Username)]
    pub user: Option<String>,
    /// Jobs of this account or project
    #[arg(long)]
    pub account: Option<String>,
    /// Jobs in this partition or queue
    #[arg(long)]
    pub partition: Option<String>,
    /// What was used on this node
    #[arg(long)]
    pub node: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

fn by(text: &str) -> Result<By, String> {
    By::parse(text).ok_or_else(|| format!("write {}", By::ALL.map(By::name).join(", ")))
}

fn every(text: &str) -> Result<Every, String> {
    Every::parse(text).ok_or_else(|| format!("write {}", Every::ALL.map(Every::name).join(", ")))
}

#[derive(Debug, Args)]
pub struct WhoArgs {
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct MarkArgs {
    /// What is done: step=100, epoch=3 loss=0.12
    #[arg(value_name = "NAME=NUMBER", required_unless_present = "regex", allow_hyphen_values = true)]
    pub pairs: Vec<String>,
    /// Mark the numbers of named groups in lines of standard input, which is copied, or of what CMD writes
    #[arg(long, value_name = "PATTERN", conflicts_with = "pairs")]
    pub regex: Option<String>,
    /// The command whose output is searched
    #[arg(last = true, requires = "regex", value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// When a user is notified of the end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    End,
    Failure,
    Finding,
}

impl When {
    pub fn name(self) -> &'static str {
        match self {
            When::End => "end",
            When::Failure => "failure",
            When::Finding => "finding",
        }
    }
}

#[derive(Debug, Args)]
pub struct NotifyArgs {
    /// When to notify
    #[arg(long, value_enum, value_delimiter = ',', required = true)]
    pub when: Vec<When>,
    /// The job
    #[arg(value_name = "NUMBER")]
    pub ended: String,
}

#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// Jobs; one alone means all finished runs of its lineage
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<String>,
    /// Workers of each job, in their order, where allocations do not say it
    #[arg(long, value_name = "N,N,…", allow_hyphen_values = true, value_delimiter = ',', value_parser = number_of_workers)]
    pub sizes: Vec<f64>,
    /// Predict the time on this many workers; may be repeated
    #[arg(long, value_name = "N", value_parser = number_of_workers, allow_hyphen_values = true)]
    pub at: Vec<f64>,
    /// Find the number of workers for this time, such as 10m
    #[arg(long, value_name = "TIME", value_parser = target, allow_hyphen_values = true)]
    pub target: Option<f64>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Two to eight jobs; one alone is compared with the runs of its lineage before it
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}
