//! `met usage`: what was used over time. It reads, and writes nothing.

use std::io::Write;

use anyhow::Result;
use met_core::units;
use met_core::usage::{By, Every, UsageAsk};
use met_insight::csv::{self, Cell, write_line};
use met_insight::usage::{self, Report};

use crate::cli::UsageArgs;
use crate::output;
use crate::view;
use met_config::Failure;
use met_host::users;
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;

const SINCE: &str = "30d";

pub fn usage(setting: &Setting, args: &UsageArgs) -> Result<i32> {
    let now_ns = jobs::now_ns();
    super::list::unknown_user(setting, args.user.as_deref())?;
    refuse_empty(args)?;
    let ask = ask(setting, args, now_ns)?;
    if let Some(problem) = ask.problem() {
        return Err(Failure::usage(problem.to_owned()));
    }
    let answer = AllJobs::open(setting)?.usage(&ask)?;
    let report = usage::report(&ask, &answer, now_ns);
    let mut stdout = output::stdout();
    let style = stdout.style();
    let text = if args.json {
        format!("{}\n", usage::object(&report, &ask))
    } else if args.csv {
        as_csv(&report, &ask)
    } else {
        // A server may count in another one.
        let currency = Some(setting.config.energy.currency.as_str()).filter(|_| setting.server.is_none());
        view::usage::text(&report, &ask, currency, &view::local_zone(), &style)
    };
    stdout.write_all(text.as_bytes())?;
    Ok(0)
}

/// An empty name would match no job.
fn refuse_empty(args: &UsageArgs) -> Result<()> {
    let names = [("--account", &args.account), ("--partition", &args.partition), ("--node", &args.node)];
    match names.into_iter().find(|(_, value)| value.as_deref() == Some("")) {
        Some((option, _)) => {
            Err(Failure::usage(format!("{option} is empty; give a name, or leave the option out")))
        }
        None => Ok(()),
    }
}

/// Sums are by name; a user may be given by number, as in lists.
fn user_name(setting: &Setting, user: &str) -> String {
    let uid = user.parse().ok().filter(|_| setting.server.is_none());
    uid.and_then(users::name_of).unwrap_or_else(|| user.to_owned())
}

fn ask(setting: &Setting, args: &UsageArgs, now_ns: i64) -> Result<UsageAsk> {
    let zone = view::local_zone();
    let time = |name: &str, text: &str| {
        units::parse_since(text, now_ns, &zone).map_err(|error| Failure::usage(format!("{name}: {error}")))
    };
    let from_ns = time("--since", args.since.as_deref().unwrap_or(SINCE))?;
    if from_ns > now_ns {
        return Err(Failure::usage(format!(
            "--since {}: in the future",
            args.since.as_deref().unwrap_or(SINCE)
        )));
    }
    // Nothing was used in the future: hours of it would make averages smaller.
    let to_ns = args.until.as_deref().map_or(Ok(now_ns), |until| time("--until", until))?.min(now_ns);
    let (by, every) = match args.heat {
        true => (By::System, Every::HourOfWeek),
        false => {
            // Time alone is of the whole system; without any, users are.
            let usual = if args.every.is_some() { By::System } else { By::User };
            (args.by.unwrap_or(usual), args.every.unwrap_or(Every::All))
        }
    };
    Ok(UsageAsk {
        zone: usage::zone(&zone, from_ns, to_ns),
        user: args.user.as_deref().map(|user| user_name(setting, user)),
        account: args.account.clone(),
        partition: args.partition.clone(),
        node: args.node.clone(),
        ..UsageAsk::new(from_ns, to_ns, by, every)
    })
}

fn as_csv(report: &Report, ask: &UsageAsk) -> String {
    let mut lines = csv::header(usage::COLUMNS);
    for line in &report.lines {
        let object = usage::line_object(line, ask, &report.periods);
        write_line(&mut lines, usage::COLUMNS.iter().map(|name| Cell::from(&object[*name])), csv::CRLF);
    }
    lines
}
