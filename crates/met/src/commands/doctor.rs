//! `met doctor`: what can be measured here, what not, why, and what would enable it.

mod cgroup_entry;
mod cost;
mod daemon;
mod kernel;
mod ledger;
mod sources;
mod store;

use std::io::Write;

use anyhow::Result;
use serde_json::json;

use crate::cli::DoctorArgs;
use crate::output;
use crate::view::doctor::{self, Finding, Health};
pub use daemon::{scheduler_words, sending, sent_to, sink_words};
pub use ledger::words as ledger_words;
use met_query::client::Client;
use met_query::protocol::{Reply, Request, Status};
use met_query::setting::Setting;
pub use store::refused_samples;

/// What the daemon that is used here says of itself.
fn status_of(client: Option<Client>) -> Option<Box<Status>> {
    match client?.call(&Request::Status) {
        Ok(Reply::Status(status)) => Some(status),
        _ => None,
    }
}

/// What became of the last notification; nothing before the first.
fn notifications(setting: &Setting) -> Option<Finding> {
    let last = super::notify::last_noted(setting)?;
    let health = if last.has_failed { Health::Broken } else { Health::Good };
    Some(Finding::new("notifications", health, last.line))
}

pub fn doctor(setting: &Setting, args: &DoctorArgs) -> Result<i32> {
    if args.cost {
        return cost::cost(setting, args);
    }
    let status = status_of(setting.system_daemon().or_else(|| setting.user_daemon().ok()));
    let status = status.as_deref();
    let mut findings = sources::sources(setting, status);
    findings.extend(sources::energy(setting, status));
    findings.extend(ledger::ledger(status));
    findings.extend([kernel::cgroups(setting), kernel::job_cgroup(setting)]);
    findings.extend(cgroup_entry::cgroup_entry(setting));
    findings.extend([
        kernel::perf(),
        kernel::pressure(),
        kernel::open_files(),
        daemon::running_daemon(setting),
        daemon::found_jobs(status),
        store::store(setting),
        daemon::listener(setting, status),
    ]);
    findings.extend(daemon::dropped_samples(status));
    findings.extend(notifications(setting));
    findings.extend(store::servers_of_store(setting));
    findings.extend(store::refused(status));
    findings.extend(daemon::schedulers(setting));
    findings.extend(daemon::sinks(status));
    findings.extend(store::served(setting));
    findings.extend(store::colmet_of_server(setting));
    findings.extend(store::sinks_of_server(setting));
    let mut stdout = output::stdout();
    if args.json {
        let object = |finding: &Finding| {
            json!({
                "what": finding.what,
                "health": finding.health.name(),
                "cause": finding.health.cause(),
                "detail": finding.detail,
                "remedy": finding.remedy,
            })
        };
        let all: Vec<_> = findings.iter().map(object).collect();
        writeln!(stdout, "{}", serde_json::Value::Array(all))?;
        return Ok(0);
    }
    stdout.write_all(doctor::lines(&findings, args.all, &stdout.style()).as_bytes())?;
    Ok(0)
}
