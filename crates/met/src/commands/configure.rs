//! `met configure`: what a running daemon samples and counts, shown and changed without a restart.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use met_jobs::cgroup_layouts::Layout;

use crate::cli::ConfigureArgs;
use crate::output;
use crate::view::{Style, text};
use met_config::Failure;
use met_query::client::unanswered;
use met_query::jobs::JobRef;
use met_query::protocol::{Change, Held, InForce, Reply, Request, ValueOrigin};
use met_query::setting::Setting;

pub fn configure(setting: &Setting, args: &ConfigureArgs) -> Result<i32> {
    let request = request(args, &setting.config.jobs.layouts)?;
    let mut client = setting.daemon(args.user).map_err(|missed| match missed.remedy() {
        Some(remedy) => Failure::with_code(1, format!("{missed}; {remedy}")),
        None => {
            let hint = "the next one reads the configuration file; `met config` lists its keys";
            Failure::usage(format!("no daemon is running; {hint}"))
        }
    })?;
    let reply = client.call(&request).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::usage(error.to_string()),
        _ => unanswered(error),
    })?;
    let Reply::InForce(held) = reply else { bail!("unexpected reply from the daemon: {reply:?}") };
    setting.warn_of_other_file(&held);
    if let Some(note) = &held.note {
        tracing::warn!("{note}");
    }
    let mut stdout = output::stdout();
    stdout.write_all(shown(&held, &stdout.style()).as_bytes())?;
    Ok(0)
}

/// Checked here, too: who asks for what cannot be learns it without a daemon.
fn request(args: &ConfigureArgs, own: &[Layout]) -> Result<Request> {
    let refuse = |option: &str, error: &dyn fmt::Display| Failure::usage(format!("{option}: {error}"));
    if let Some(text) = &args.period {
        met_config::interval(text).map_err(|error| refuse("--period", &error))?;
    }
    if let Some(text) = &args.perf {
        met_config::events_in(text).map_err(|error| refuse("--perf", &error))?;
    }
    let job = args.job.as_deref().map(|job| JobRef::parse(job, own)).transpose()?;
    let changes = args.period.is_some() || args.perf.is_some() || args.reset;
    if job.is_some() && !changes {
        return Err(Failure::usage("--job: nothing to change; add --period, --perf or --reset"));
    }
    let (period, perf, reset) = (args.period.clone(), args.perf.clone(), args.reset);
    Ok(match changes {
        true => Request::Configure(Change { period, perf, job, reset, until_a_job_ends: false }),
        false => Request::InForce,
    })
}

/// What holds, what will when that ends, and what holds in single jobs; one row for each.
fn shown(held: &InForce, style: &Style) -> String {
    let InForce { intervals, ladder, events, events_in_jobs, note, .. } = held;
    let every = |held: &Held<Duration>| match ladder {
        Some(ladder) if !held.origin.is_temporary() => ladder.clone(),
        _ => interval(held.value),
    };
    let list = |names: &Vec<String>| match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(","),
    };
    let mut rows = vec![
        row("sampling.interval", intervals, every),
        row("perf.events", events, |held| list(&held.value)),
    ];
    for held in events_in_jobs {
        let job = match &held.origin {
            ValueOrigin::Job(Some(job)) => format!("job {job}"),
            _ => "a job".to_owned(),
        };
        // Whether they are counted there is in the note, which comes first.
        let how = if note.is_some() { "requested in" } else { "in" };
        rows.push(["perf.events".to_owned(), list(&held.value), format!("{how} {job}, until it ends")]);
    }
    let width = |column: usize| rows.iter().map(|row| text::width(&row[column])).max().unwrap_or(0);
    let (name, value) = (width(0), width(1));
    let line = |row: &[String; 3]| {
        let line = format!("{:<name$}  {:<value$}  {}", row[0], row[1], row[2]);
        text::hanging(&line, name + 2, style)
    };
    rows.iter().map(line).collect()
}

/// As people write it: 100ms, 1.5s.
pub fn interval(value: Duration) -> String {
    match value.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{}ms", value.as_secs_f64() * 1e3),
        seconds => format!("{seconds}s"),
    }
}

/// A key, its value, and where that comes from and what follows when it ends.
fn row<T>(key: &str, held: &[Held<T>], text: impl Fn(&Held<T>) -> String) -> [String; 3] {
    let mut row = [key.to_owned(), String::new(), String::new()];
    for (index, held) in held.iter().enumerate() {
        if index == 0 {
            (row[1], row[2]) = (text(held), held.origin.to_string());
        } else {
            row[2] += &format!(", then {} ({})", text(held), held.origin);
        }
        // Whatever is below a change that nothing ends is not reached.
        if !matches!(held.origin, ValueOrigin::Job(_)) {
            break;
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn what_holds_is_shown_with_its_source_and_its_end() {
        let by_job = || ValueOrigin::Job(Some("slurm:12".to_owned()));
        let events = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let held = InForce {
            file: None,
            after_restart: Vec::new(),
            factor: None,
            http_refused: None,
            file_refused: None,
            ladder: None,
            intervals: vec![
                Held { value: Duration::from_millis(250), origin: ValueOrigin::Job(None) },
                Held { value: Duration::from_millis(1500), origin: by_job() },
                Held { value: Duration::from_secs(5), origin: ValueOrigin::File("/etc/met/met.yaml".into()) },
            ],
            events: vec![
                Held { value: events(&["cache_ll", "page_faults"]), origin: ValueOrigin::Live },
                Held { value: Vec::new(), origin: ValueOrigin::Default },
            ],
            events_in_jobs: vec![Held { value: events(&["task_clock"]), origin: by_job() }],
            note: None,
        };
        expect![[r"
            sampling.interval  250ms                 temporary until a job ends, then 1.5s (temporary until job slurm:12 ends), then 5s (/etc/met/met.yaml)
            perf.events        cache_ll,page_faults  temporary until the daemon ends
            perf.events        task_clock            in job slurm:12, until it ends
        "]]
        .assert_eq(&shown(&held, &Style::plain()));
        let narrow = shown(&held, &Style { width: Some(60), ..Style::plain() });
        assert!(narrow.lines().all(|line| text::width(line) <= 60), "{narrow}");
    }

    #[test]
    fn intervals_by_age_are_shown_until_one_is_set_for_all() {
        let first_line = |origin: ValueOrigin| {
            let held = InForce {
                file: None,
                after_restart: Vec::new(),
                factor: None,
                http_refused: None,
                file_refused: None,
                ladder: Some("1s, 10s after 5m".to_owned()),
                intervals: vec![
                    Held { value: Duration::from_secs(5), origin },
                    Held { value: Duration::from_secs(1), origin: ValueOrigin::Default },
                ],
                events: vec![Held { value: Vec::new(), origin: ValueOrigin::Default }],
                events_in_jobs: Vec::new(),
                note: None,
            };
            shown(&held, &Style::plain()).lines().next().unwrap_or_default().to_owned()
        };
        assert_eq!(
            first_line(ValueOrigin::Job(None)),
            "sampling.interval  5s    temporary until a job ends, then 1s, 10s after 5m (default)"
        );
        assert_eq!(first_line(ValueOrigin::Default), "sampling.interval  1s, 10s after 5m  default");
    }

    #[test]
    fn a_bad_value_is_refused_in_the_words_of_the_configuration_file() {
        let args = |period: Option<&str>, perf: Option<&str>, job: Option<&str>| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            ConfigureArgs { period: own(period), perf: own(perf), job: own(job), reset: false, user: false }
        };
        let said = |args: &ConfigureArgs| request(args, &[]).unwrap_err().to_string();
        expect![[r#"--period: "1ms" is too short; the shortest is 10ms"#]].assert_eq(&said(&args(
            Some("1ms"),
            None,
            None,
        )));
        expect![[r#"--period: "3" has no unit; write 3s, 3ms or 3m"#]].assert_eq(&said(&args(
            Some("3"),
            None,
            None,
        )));
        expect![[r#"--period: "0" is too short; the shortest is 10ms"#]].assert_eq(&said(&args(
            Some("0"),
            None,
            None,
        )));
        expect![[r#"--perf: "page_fault" is not an event; `met metrics` lists them"#]]
            .assert_eq(&said(&args(None, Some("task_clock,page_fault"), None)));
        expect!["--job: nothing to change; add --period, --perf or --reset"].assert_eq(&said(&args(
            None,
            None,
            Some("12"),
        )));
        assert!(matches!(request(&args(None, None, None), &[]), Ok(Request::InForce)));
    }
}
