//! `met list`, and `met` alone.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use met_core::annotation;
use met_core::conditions::Conditions;
use met_core::job::{LOCAL, State};
use met_core::managers;
use met_host::users;

use crate::cli::{FilterArgs, ListArgs};
use crate::output;
use crate::view::job_list;
use crate::view::{self, Style};
use met_config::Failure;
use met_core::units;
use met_query::jobs::{self, AllJobs, JobOwner, JobTimes, JobsFilter, PageAsk};
use met_query::setting::Setting;

/// A screen holds no more; files and programs get everything.
const LIMIT: usize = 50;
const MORE: &str = "the newest 50; --limit shows more\n";
const MORE_SORTED: &str = "the first 50; --limit shows more\n";
const WATCH_EVERY: Duration = Duration::from_secs(1);

pub fn list(setting: &Setting, args: &ListArgs) -> Result<i32> {
    let filter = filter(args)?;
    let mut stdout = output::stdout();
    if let Some(notice) = setting.unread_system_jobs() {
        tracing::warn!("{notice}");
    }
    if !args.watch {
        let text = text(setting, args, &filter, &stdout.style())?;
        stdout.write_all(text.as_bytes())?;
        return Ok(0);
    }
    stdout.keep_on_screen(WATCH_EVERY, |style| text(setting, args, &filter, style))
}

fn text(setting: &Setting, args: &ListArgs, filter: &JobsFilter, style: &Style) -> Result<String> {
    let records = AllJobs::open(setting)?.jobs(filter)?;
    if records.is_empty() {
        unknown_name(setting, &args.filter)?;
    }
    let now_ns = jobs::now_ns();
    Ok(if args.json {
        let objects: Vec<_> =
            records.iter().map(|record| met_insight::json::object(record, now_ns)).collect();
        format!("{}\n", serde_json::Value::Array(objects))
    } else if args.csv {
        job_list::csv(&records, args.view, now_ns)
    } else if records.is_empty()
        && let Some(words) = nothing_found(args)
    {
        view::text::words(words.trim_end(), style.width.unwrap_or(usize::MAX)).join("\n") + "\n"
    } else {
        let more = match args.limit.is_none() && records.len() == LIMIT {
            true if args.sort.is_some() => MORE_SORTED,
            true => MORE,
            false => "",
        };
        let sort = args.sort.map(|sort| sort.column);
        job_list::list(&records, args.view, sort, now_ns, style) + more
    })
}

/// A mistyped manager or user looks like none of their jobs. What a server's nodes know is not known here.
pub fn unknown_name(setting: &Setting, args: &FilterArgs) -> Result<()> {
    let layouts = &setting.config.jobs.layouts;
    let is_known = |name: &str| {
        name == LOCAL
            || managers::find(name).is_some()
            || layouts.iter().any(|layout| layout.manager() == name)
    };
    if let Some(name) = args.manager.as_deref().filter(|name| setting.server.is_none() && !is_known(name)) {
        let mut known = vec![LOCAL];
        known.extend(managers::MANAGERS.iter().map(|manager| manager.name));
        let known = known.join(", ");
        return Err(Failure::usage(format!("--manager {name}: unknown resource manager; known: {known}")));
    }
    unknown_user(setting, args.user.as_deref())
}

pub fn unknown_user(setting: &Setting, user: Option<&str>) -> Result<()> {
    let is_user = |name: &str| name.parse::<u32>().is_ok() || users::uid_of(name).is_some();
    match user.filter(|name| setting.server.is_none() && !is_user(name)) {
        Some(name) => Err(Failure::usage(format!("--user {name}: no such user"))),
        None => Ok(()),
    }
}

/// Why a list is empty, where that is not because there are no jobs.
fn nothing_found(args: &ListArgs) -> Option<&'static str> {
    match (args.view, is_narrowed(args)) {
        (job_list::View::Gpu, true) => Some("no jobs with a GPU match; `met list gpu` shows all\n"),
        (job_list::View::Gpu, false) => {
            Some("no jobs used a GPU; `met gpus` shows the GPUs, `met list` all jobs\n")
        }
        (_, true) => Some("no jobs match; `met list` shows all\n"),
        (_, false) => None,
    }
}

fn is_narrowed(args: &ListArgs) -> bool {
    is_filtered(&args.filter) || args.limit.is_some()
}

/// Whether options say which jobs.
pub fn is_filtered(args: &FilterArgs) -> bool {
    let FilterArgs { since, state, user, name, manager, account, command, partition, node, .. } = args;
    let FilterArgs { tag, min_duration, min_energy, max_efficiency, .. } = args;
    let texts = [since, user, name, manager, account, command, partition, node, tag];
    texts.into_iter().chain([min_duration, min_energy, max_efficiency]).any(Option::is_some)
        || !state.is_empty()
}

fn filter(args: &ListArgs) -> Result<JobsFilter> {
    let unlimited = args.json || args.csv;
    Ok(JobsFilter {
        // That view is of GPUs: who never had one is not in it.
        with_gpus: args.view == job_list::View::Gpu,
        page: PageAsk {
            limit: args.limit.or(if unlimited { None } else { Some(LIMIT) }),
            sort: args.sort,
            ..filter_of(&args.filter)?.page
        },
        ..filter_of(&args.filter)?
    })
}

/// The jobs that these options choose.
pub fn filter_of(args: &FilterArgs) -> Result<JobsFilter> {
    let since = args.since.as_ref().map(|text| {
        units::parse_since(text, jobs::now_ns(), &view::local_zone())
            .map_err(|error| Failure::usage(format!("--since: {error}")))
    });
    let states =
        args.state.iter().flat_map(|text| text.split(',')).map(parse_state).collect::<Result<_>>()?;
    let filter = JobsFilter {
        states,
        name: args.name.clone(),
        manager: args.manager.clone(),
        conditions: conditions(args)?,
        times: JobTimes { since_ns: since.transpose()?, ..JobTimes::default() },
        owner: JobOwner { account: args.account.clone(), ..JobOwner::default() },
        ..JobsFilter::default()
    };
    Ok(filter.of_user(args.user.as_deref()))
}

fn conditions(args: &FilterArgs) -> Result<Conditions> {
    fn parsed<T>(
        name: &str,
        text: Option<&String>,
        parse: impl Fn(&str) -> Result<T, units::ParseError>,
    ) -> Result<Option<T>> {
        let parse = |text: &String| parse(text).map_err(|error| Failure::usage(format!("{name}: {error}")));
        text.map(parse).transpose()
    }
    let duration = parsed("--min-duration", args.min_duration.as_ref(), units::parse_duration)?;
    if let Some(tag) = &args.tag {
        annotation::check_tag(tag).map_err(|error| Failure::usage(format!("--tag: {error}")))?;
    }
    Ok(Conditions {
        command: args.command.clone(),
        partition: args.partition.clone(),
        node: args.node.clone(),
        tag: args.tag.clone(),
        min_duration_ns: duration.map(|duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)),
        min_energy_uj: parsed("--min-energy", args.min_energy.as_ref(), units::parse_energy)?,
        max_efficiency: parsed("--max-efficiency", args.max_efficiency.as_ref(), units::parse_ratio)?,
    })
}

fn parse_state(text: &str) -> Result<State> {
    State::parse(&text.to_ascii_lowercase()).ok_or_else(|| {
        let names = State::ALL.map(State::name).join(", ");
        Failure::usage(format!("--state {text}: unknown state; write one of {names}"))
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn an_empty_list_says_whether_it_was_narrowed() {
        let said = |words: &[&str]| {
            let cli = Cli::try_parse_from([&["met", "list"], words].concat()).unwrap();
            let Some(Command::List(args)) = cli.command else { panic!("{words:?}") };
            nothing_found(&args)
        };
        assert!(said(&["gpu"]).unwrap().starts_with("no jobs used a GPU;"));
        for narrowed in [["--name", "zzz"], ["--limit", "1"], ["--user", "nobody"]] {
            assert!(
                said(&[&["gpu"][..], &narrowed].concat()).unwrap().starts_with("no jobs with a GPU match;")
            );
            assert!(said(&narrowed).unwrap().starts_with("no jobs match;"));
        }
        assert_eq!(said(&[]), None);
    }
}
