//! `met doctor`: what can be measured here, what not, why, and what would enable it.

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
use crate::view::{Paint, Style, text};
pub use daemon::{scheduler_words, sent_to, sink_words};
pub use ledger::words as ledger_words;
use met_query::client::Client;
use met_query::protocol::{Reply, Request, Status};
use met_query::setting::Setting;

/// One thing looked at.
struct Finding {
    what: &'static str,
    health: Health,
    detail: String,
    /// The exact command that would make it better.
    remedy: Option<String>,
}

impl Finding {
    fn new(what: &'static str, health: Health, detail: impl Into<String>) -> Finding {
        Finding { what, health, detail: detail.into(), remedy: None }
    }

    fn remedied_by(self, command: impl Into<String>) -> Finding {
        Finding { remedy: Some(command.into()), ..self }
    }
}

/// What the daemon that is used here says of itself.
fn status_of(client: Option<Client>) -> Option<Box<Status>> {
    match client?.call(&Request::Status) {
        Ok(Reply::Status(status)) => Some(status),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// Works in part, or with less precision.
    Less,
    /// The machine has no such thing, or it is not configured: nothing is wrong.
    Absent,
    /// It could be had, and is not allowed or not switched on.
    Denied,
    /// It is there, or was asked for, and does not work.
    Broken,
}

impl Health {
    fn name(self) -> &'static str {
        match self {
            Health::Good => "ok",
            Health::Less => "less",
            Health::Absent | Health::Denied | Health::Broken => "no",
        }
    }

    /// As the screen shows it.
    fn word(self) -> &'static str {
        if self == Health::Less { "part" } else { self.name() }
    }

    /// Why there is nothing.
    fn cause(self) -> Option<&'static str> {
        match self {
            Health::Good | Health::Less => None,
            Health::Absent => Some("absent"),
            Health::Denied => Some("denied"),
            Health::Broken => Some("broken"),
        }
    }

    fn paint(self) -> Paint {
        match self {
            Health::Good => Paint::Green,
            Health::Less | Health::Denied => Paint::Yellow,
            Health::Absent => Paint::Dim,
            Health::Broken => Paint::Red,
        }
    }
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
    findings.extend([
        kernel::cgroups(setting),
        kernel::job_cgroup(setting),
        kernel::perf(),
        kernel::pressure(),
        kernel::open_files(),
        daemon::running_daemon(setting),
        daemon::found_jobs(status),
        store::store(setting),
        daemon::listener(setting),
    ]);
    findings.extend(store::servers_of_store(setting));
    findings.extend(daemon::schedulers(setting));
    findings.extend(daemon::sinks(status));
    findings.extend(store::served(setting));
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
    stdout.write_all(lines(&findings, &stdout.style()).as_bytes())?;
    Ok(0)
}

/// One line for each, and one for what would make it better. What the machine does not have is not looked for.
fn lines(findings: &[Finding], style: &Style) -> String {
    let mut all = String::new();
    for finding in findings {
        let paint = finding.health.paint();
        let health = style.paint(paint, &format!("{:<4}", finding.health.word()));
        // Names of cgroups and of what a controller calls its parts are others' words.
        let line = format!("{:<14} {}", finding.what, text::escape(&finding.detail));
        let line = if paint == Paint::Dim { style.paint(paint, &line) } else { line };
        all += &format!("{health} {line}\n");
        if let Some(remedy) = &finding.remedy {
            let enable = style.paint(Paint::Dim, "enable:");
            all += &format!("{:>11} {enable} {}\n", "", text::escape(remedy));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn on_a_terminal_only_what_does_not_work_is_red() {
        let finding = |what, health, detail: &str, remedy: Option<&str>| Finding {
            remedy: remedy.map(str::to_owned),
            ..Finding::new(what, health, detail)
        };
        let findings = [
            finding("node", Health::Good, "CPU, memory and load", None),
            finding("job cgroup", Health::Less, "memory is estimated", Some("sudo met daemon")),
            finding("infiniband", Health::Absent, "no InfiniBand device", None),
            finding("rapl", Health::Denied, "energy_uj may not be read", Some("run as root")),
            finding("ipmi", Health::Broken, "power, but: no answer", None),
        ];
        let style = Style { color: true, ..Style::plain() };
        expect![[r#"
            ^[32mok  ^[0m node           CPU, memory and load
            ^[33mpart^[0m job cgroup     memory is estimated
                        ^[2menable:^[0m sudo met daemon
            ^[2mno  ^[0m ^[2minfiniband     no InfiniBand device^[0m
            ^[33mno  ^[0m rapl           energy_uj may not be read
                        ^[2menable:^[0m run as root
            ^[31mno  ^[0m ipmi           power, but: no answer
        "#]]
        .assert_eq(&lines(&findings, &style).replace('\x1b', "^"));
        expect![[r#"
            ok   node           CPU, memory and load
            part job cgroup     memory is estimated
                        enable: sudo met daemon
            no   infiniband     no InfiniBand device
            no   rapl           energy_uj may not be read
                        enable: run as root
            no   ipmi           power, but: no answer
        "#]]
        .assert_eq(&lines(&findings, &Style::plain()));
        let odd = finding("redfish", Health::Less, "\x1b[2Jchassis\n", Some("chassis: \x1b]0;x\x07"));
        expect![[r#"
            part redfish        \x1b[2Jchassis\n
                        enable: chassis: \x1b]0;x\x07
        "#]]
        .assert_eq(&lines(&[odd], &Style::plain()));
        let causes = findings.map(|finding| finding.health.cause());
        assert_eq!(causes, [None, None, Some("absent"), Some("denied"), Some("broken")]);
    }
}
