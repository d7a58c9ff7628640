//! `met emissions`: what a kilowatt hour emits, and corrections of that.

use std::io::{self, Write};

use anyhow::{Result, bail};
use met_core::energy::emission::Factor;
use met_store::Reader;

use crate::cli::{EmissionsArgs, EmissionsCommand, EmissionsUnsetArgs};
use crate::output;
use crate::view;
use met_agent::emissions;
use met_config::Failure;
use met_core::units;
use met_query::client::{Client, unanswered};
use met_query::jobs;
use met_query::protocol::{Corrected, Correction};
use met_query::protocol::{Reply, Request};
use met_query::setting::Setting;

/// A screen of them; the store has all.
const SHOWN: usize = 24;
/// How far back a provider is queried by default.
const HISTORY_NS: i64 = 30 * 86_400 * 1_000_000_000;
/// A question to a daemon is bounded.
const FACTORS_AT_ONCE: usize = 1000;

/// What is still to be done after a change.
const APPLY: &str = "`met emissions recompute` applies it to finished jobs.";

pub fn emissions(setting: &Setting, args: &EmissionsArgs) -> Result<i32> {
    match &args.command {
        None => show(setting),
        Some(EmissionsCommand::Set(set)) => {
            let (from_ns, to_ns) = (time("--since", &set.since)?, opt_time("--until", &set.until)?);
            if to_ns.is_some_and(|to_ns| to_ns <= from_ns) {
                return Err(Failure::usage("--until must be later than --since"));
            }
            let is_root = rustix::process::geteuid().is_root();
            if !is_root && !set.user && setting.system_daemon().is_some() {
                return Err(Failure::usage(
                    "only root may change the factors of the system daemon, which stores your jobs; --user \
                     changes those of your own store (`met time`)",
                ));
            }
            let mg_per_kwh = emissions::mg(set.grams);
            correct(setting, set.user, Correction::Set { mg_per_kwh, from_ns, to_ns })?;
            writeln!(output::stdout(), "Saved. {APPLY}")?;
            Ok(0)
        }
        Some(EmissionsCommand::Unset(unset)) => take_back(setting, unset),
        Some(EmissionsCommand::Recompute { since }) => {
            let since_ns = opt_time("--since", since)?;
            learn_history(setting, since_ns)?;
            let corrected = correct(setting, false, Correction::Recompute { since_ns })?;
            output::stdout().write_all(words(corrected).as_bytes())?;
            Ok(0)
        }
    }
}

fn take_back(setting: &Setting, unset: &EmissionsUnsetArgs) -> Result<i32> {
    let from_ns = opt_time("--since", &unset.since)?.unwrap_or(i64::MIN);
    let to_ns = opt_time("--until", &unset.until)?.unwrap_or(i64::MAX);
    if to_ns <= from_ns {
        return Err(Failure::usage("--until must be later than --since"));
    }
    let before = stored_factors(setting)?;
    correct(setting, false, Correction::Unset { from_ns, to_ns })?;
    let words = match before == stored_factors(setting)? {
        true => "Nothing was set for that time.".to_owned(),
        false => format!("Removed. {APPLY}"),
    };
    writeln!(output::stdout(), "{words}")?;
    Ok(0)
}

fn time(option: &str, text: &str) -> Result<i64> {
    units::parse_since(text, jobs::now_ns(), &view::local_zone())
        .map_err(|error| Failure::usage(format!("{option}: {error}")))
}

fn opt_time(option: &str, text: &Option<String>) -> Result<Option<i64>> {
    text.as_deref().map(|text| time(option, text)).transpose()
}

/// Asks a real-time provider for what it knows now of that time: of an outage, and what it has corrected since.
fn learn_history(setting: &Setting, since_ns: Option<i64>) -> Result<()> {
    let since_ns = since_ns.unwrap_or_else(|| jobs::now_ns() - HISTORY_NS);
    match emissions::history(&setting.config.emissions, since_ns) {
        Ok(factors) => {
            for some in factors.chunks(FACTORS_AT_ONCE) {
                correct(setting, false, Correction::Reported { factors: some.to_vec() })?;
            }
        }
        Err(error) => writeln!(io::stderr(), "met: the provider has no past values: {error:#}")?,
    }
    Ok(())
}

/// The writer of the store: for root the system daemon, if one runs and --user is not given.
fn daemon(setting: &Setting, own: bool) -> Result<Option<Client>> {
    let is_root = rustix::process::geteuid().is_root();
    match setting.daemon(!is_root || own) {
        Ok(client) => Ok(Some(client)),
        // It holds the store, and the files of the user are not meant.
        Err(missed) => match missed.remedy() {
            Some(remedy) => Err(Failure::with_code(1, format!("{missed}; {remedy}"))),
            None => Ok(None),
        },
    }
}

fn words(Corrected { jobs, without_pue }: Corrected) -> String {
    let plural = if jobs == 1 { "job" } else { "jobs" };
    let changed = format!("emissions of {jobs} {plural} updated\n");
    let (were, their) = if without_pue == 1 { ("job was", "its") } else { ("jobs were", "their") };
    let left = format!(
        "{without_pue} {were} not updated: {their} emissions were computed before PUE was recorded, and today's PUE \
         may differ from that of {their} time\n"
    );
    if without_pue == 0 { changed } else { changed + &left }
}

fn correct(setting: &Setting, own: bool, correction: Correction) -> Result<Corrected> {
    if let Some(mut client) = daemon(setting, own)? {
        return match client.call(&Request::Correct(correction)).map_err(unanswered)? {
            Reply::Corrected(corrected) => Ok(corrected),
            Reply::Error { message, .. } => bail!("{message}"),
            reply => bail!("unexpected reply from the daemon: {reply:?}"),
        };
    }
    setting.user.check_own()?;
    let mut writer = jobs::open_writer(&setting.user.state)?;
    jobs::import(&mut writer, &setting.user.state, &setting.host)?;
    emissions::correct(&correction, &mut writer, &setting.config)
}

fn stored_factors(setting: &Setting) -> Result<Vec<Factor>> {
    if let Some(mut client) = daemon(setting, false)? {
        return match client.call(&Request::Factors).map_err(unanswered)? {
            Reply::Factors(factors) => Ok(factors),
            reply => bail!("unexpected reply from the daemon: {reply:?}"),
        };
    }
    setting.user.check_own()?;
    Ok(Reader::open_checked(&setting.user.state)?.factors()?)
}

fn show(setting: &Setting) -> Result<i32> {
    let stored = stored_factors(setting)?;
    // The file of the daemon that books them may be another one than that of this command.
    let own = || emissions::series(&setting.config.emissions, &stored).at(jobs::now_ns()).cloned();
    let mut stdout = output::stdout();
    if let Some(now) = setting.in_force(false).and_then(|held| held.factor).or_else(own) {
        writeln!(stdout, "{}  now, {}", units::grams_per_kwh(now.mg_per_kwh as f64 / 1e3), now.source)?;
    }
    let zone = view::local_zone();
    let is_root = rustix::process::geteuid().is_root();
    if !is_root && !stored.is_empty() && setting.system_daemon().is_some() {
        writeln!(stdout, "In your own store, which counts while no system daemon runs:")?;
    }
    for factor in stored.iter().rev().take(SHOWN) {
        let since = units::time(factor.since_ns, &zone);
        let grams = units::grams_per_kwh(factor.mg_per_kwh as f64 / 1e3);
        writeln!(stdout, "{grams}  since {since}, {}", factor.source)?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_left_as_before_is_counted_with_the_reason() {
        let said = |jobs, without_pue| words(Corrected { jobs, without_pue });
        assert_eq!(said(1, 0), "emissions of 1 job updated\n");
        assert_eq!(
            said(0, 2),
            "emissions of 0 jobs updated\n2 jobs were not updated: their emissions were computed before PUE was \
             recorded, and today's PUE may differ from that of their time\n"
        );
        assert!(said(3, 1).contains("\n1 job was not updated: its emissions"));
    }
}
