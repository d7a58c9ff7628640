//! `met daemon`.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::Path;

use anyhow::{Result, bail};
use met_sinks::forward::SPEC;
use met_sinks::link::{self, Address, Link};

use crate::cli::DaemonArgs;
use crate::commands::doctor;
use crate::output;
use crate::view::{Style, text};
use met_agent::daemon;
use met_config::Failure;
use met_config::Place;
use met_core::units;
use met_query::client::{Client, Unreachable, unanswered};
use met_query::protocol::{ConfigureStatus, HttpStatus, Reply, Request, Status};
use met_query::server_client;
use met_query::setting::Setting;

pub fn daemon(setting: &Setting, args: &DaemonArgs) -> Result<i32> {
    let for_everybody = rustix::process::getuid().is_root() && !args.user;
    if args.stop || args.status {
        return ask_running(setting, args, for_everybody);
    }
    let place = if for_everybody { &setting.system } else { &setting.user };
    if let Some(url) = &args.join {
        return join(setting, args, place, url);
    }
    daemon::run(setting, place, args.auto)?;
    Ok(0)
}

/// Asks the server whether it knows the token, keeps both, and serves.
fn join(setting: &Setting, args: &DaemonArgs, place: &Place, url: &str) -> Result<i32> {
    let usage = |error: link::BadAddress| Failure::usage(error.message("--plain"));
    let token = match &args.token_file {
        Some(path) => link::token_of(path).map_err(usage)?,
        None => token_of_stdin()?,
    };
    let address = Address {
        url: url.to_owned(),
        token: Some(token),
        authority: args.ca_file.as_deref().map(std::path::absolute).transpose()?,
        plain: args.plain,
        ..Address::default()
    };
    let node = args.node.clone().unwrap_or_else(|| setting.host.facts().hostname.clone());
    let answer = Link::open(&address).map_err(usage)?.post("/api/v1/whoami", &[], &[], 64 << 10);
    let answer = answer
        .map_err(|error| server_client::unreachable(url, &error, "give its CA certificate with --ca-file"))?;
    let reply: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    match (answer.status, reply["kind"].as_str(), reply["name"].as_str()) {
        (200, Some("node"), Some(name)) if name == node => {}
        (200, Some("node"), Some(name)) => {
            return Err(Failure::usage(format!(
                "the token belongs to node {name}, and this is {node}; use --node {name} to override"
            )));
        }
        (200, Some(kind), Some(name)) => {
            return Err(Failure::usage(format!("the token belongs to the {kind} {name}, not to a node")));
        }
        (status, ..) => {
            let reason = reply["error"].as_str().map_or_else(|| answer.reason(), str::to_owned);
            // A server that does not know the token says what to do itself.
            let advice = match status == 401 && reply["error"].is_string() {
                true => "",
                false => "; run `met server enroll NODE` there to get a token",
            };
            return Err(Failure::usage(format!("{url} answers {status}: {reason}{advice}")));
        }
    }
    place.create()?;
    daemon::forwarding::join(place, &address, args.node.as_deref())?;
    daemon::forwarding::check(&setting.config, place)?;
    writeln!(output::stdout(), "Joined {url} as {node}")?;
    if Client::connect_to(place).is_ok() {
        writeln!(output::stdout(), "A daemon is running; restart it to start sending: met daemon --stop")?;
        return Ok(0);
    }
    daemon::run(setting, place, args.auto)?;
    Ok(0)
}

fn token_of_stdin() -> Result<String> {
    if io::stdin().is_terminal() {
        writeln!(io::stderr(), "met: paste the token that `met server enroll` printed, and press Enter")?;
    }
    let mut line = String::new();
    let read = io::stdin().lock().take(4096).read_line(&mut line);
    read.map_err(|error| Failure::usage(format!("cannot read the token from standard input: {error}")))?;
    token_in_line(&line)
}

fn token_in_line(line: &str) -> Result<String> {
    let how = "on the server: met server enroll NODE | ssh NODE met daemon --join URL";
    // It may be a token with a typing error, which must not be shown.
    link::token_in(line.as_bytes()).ok_or_else(|| match line.trim().is_empty() {
        true => Failure::usage(format!("no token on standard input; {how}")),
        false => Failure::usage(format!(
            "standard input is not a token (one line of at least 8 letters and digits); {how}"
        )),
    })
}

/// Why none of the daemons that were meant could be asked. One that hangs is not taken for none.
fn none_answers(
    setting: &Setting,
    args: &DaemonArgs,
    own: &[&Place],
    missed: Option<Unreachable>,
) -> anyhow::Error {
    let system = Client::connect(&setting.system.socket());
    if let Some(missed) = missed.or(system.as_ref().err().and_then(Unreachable::again)) {
        let remedy = missed.remedy().unwrap_or_default();
        return Failure::with_code(1, format!("{missed}; {remedy}"));
    }
    if args.stop {
        own.iter().for_each(|place| daemon::remove_dead_socket(place));
    }
    Failure::usage(match system {
        Ok(_) => "a system daemon is running; only root may stop it",
        Err(_) => "no daemon is running; the next `met run` starts one",
    })
}

fn stop(client: &mut Client, place: &Place, socket: &Path, for_everybody: bool) -> Result<i32> {
    client.call(&Request::Stop).map_err(unanswered)?;
    // It has flushed and let go of its files when it closes the connection.
    while client.read_unasked().is_ok() {}
    let which = match place.system {
        true => "the system daemon",
        false if for_everybody => "your own daemon (no system daemon is running)",
        false => "your own daemon",
    };
    writeln!(output::stdout(), "Stopped {which}, which served at {}; jobs keep running", socket.display())?;
    Ok(0)
}

fn ask_running(setting: &Setting, args: &DaemonArgs, for_everybody: bool) -> Result<i32> {
    let own: &[&Place] = match for_everybody || args.status && !args.user {
        true => &[&setting.system, &setting.user],
        false => &[&setting.user],
    };
    let mut missed = None;
    // A socket in another user's directory may be any program's.
    let own: Vec<&Place> = own.iter().copied().filter(|place| place.check_own().is_ok()).collect();
    let answering = own.iter().find_map(|place| match Client::connect_to(place) {
        Ok((client, socket)) => Some((*place, client, socket)),
        Err(error) => {
            missed = missed.take().or(error.again());
            None
        }
    });
    let Some((place, mut client, socket)) = answering else {
        return Err(none_answers(setting, args, &own, missed));
    };
    if let Some(missed) = missed {
        writeln!(io::stderr(), "met: {missed}; trying the next one")?;
    }
    if args.stop {
        return stop(&mut client, place, &socket, for_everybody);
    }
    let mut stdout = output::stdout();
    let reply = client.call(&Request::Status).map_err(unanswered)?;
    let Reply::Status(status) = reply else { bail!("unexpected reply from the daemon: {reply:?}") };
    if args.json {
        writeln!(stdout, "{}", serde_json::to_string(&status)?)?;
        return Ok(0);
    }
    stdout.write_all(status_text(&status, &stdout.style()).as_bytes())?;
    Ok(0)
}

/// One line for each part of a daemon, wrapped to the terminal.
fn status_text(status: &Status, style: &Style) -> String {
    let plural = |count: i64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let whose = if status.system { "all users" } else { "this user" };
    let (version, pid, state) = (&status.version, status.pid, status.state.display());
    let jobs = plural(i64::try_from(status.jobs).unwrap_or(i64::MAX), "running job");
    let fixed = || units::duration(status.interval_ms as f64 / 1e3);
    let every = status.ladder.clone().unwrap_or_else(fixed);
    let mut lines = vec![
        format!("Daemon {version} (pid {pid}) for {whose}, state in {state}"),
        format!("{jobs}, sampled every {every}"),
    ];
    for source in &status.sources {
        let (rows, errors) = (plural(source.rows, "row"), plural(source.errors, "error"));
        let seconds = source.read_ns as f64 / 1e9;
        let mut line = format!("  {:<10} {rows}, {seconds:.3} s CPU, {errors}", source.name);
        if source.background_ns > 0 {
            line += &format!(", {:.3} s CPU in its own thread", source.background_ns as f64 / 1e9);
        }
        if source.unparsed > 0 {
            line += &format!(", {}", source.unparsed());
        }
        line += &source.last_error.as_ref().map(|error| format!(", last: {error}")).unwrap_or_default();
        lines.push(line);
    }
    lines.extend(state_lines(status));
    lines.iter().map(|line| text::hanging(line, 4, style)).collect()
}

/// The ledger, schedulers, the server, the listener and other sinks.
fn state_lines(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(ledger) = &status.ledger {
        lines.push(format!("  ledger: {}", doctor::ledger_words(ledger, &crate::view::local_zone())));
    }
    lines.extend(status.schedulers.iter().map(|status| format!("  {}", doctor::scheduler_words(status))));
    let forward = doctor::sending(status.forward.as_ref(), &status.sinks);
    lines.extend(forward.map(|forward| format!("  {}", doctor::sent_to(&forward))));
    lines.extend(status.http.iter().map(|http| format!("  {}", http_words(http))));
    lines.extend(status.configure.iter().map(|configure| format!("  {}", configure_words(configure))));
    lines.extend(doctor::refused_samples(status).map(|detail| format!("  store: {detail}")));
    let others = status.sinks.iter().filter(|sink| sink.name != SPEC.name);
    lines.extend(others.map(|sink| format!("  sink {}", doctor::sink_words(sink))));
    lines
}

fn http_words(http: &HttpStatus) -> String {
    match &http.refused {
        Some(error) => format!("http: not listening: {error}"),
        None => format!("http: listening on {}", http.listening.join(", ")),
    }
}

fn configure_words(configure: &ConfigureStatus) -> String {
    let ConfigureStatus { endpoint, taken, skipped, refused } = configure;
    match refused {
        Some(error) => format!("configure: not listening at {endpoint}: {error}"),
        None => format!("configure: listening at {endpoint}, messages: {taken} taken, {skipped} skipped"),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use met_query::protocol::SourceStatus;

    use super::*;

    #[test]
    fn the_status_fits_the_terminal_and_breaks_no_word() {
        let status = Status {
            ladder: None,
            pid: 7,
            version: "0.1.0".to_owned(),
            system: false,
            jobs: 1,
            interval_ms: 1000,
            state: "/home/alice/.local/state/met/3d1219c7c4c5404aaa1f6d2a48adfda4".into(),
            sources: vec![SourceStatus { rows: 1, ..SourceStatus::unread("node") }],
            dropped_samples: Some(0),
            schedulers: Vec::new(),
            discovery: None,
            ledger: None,
            idle: Vec::new(),
            forward: None,
            sinks: Vec::new(),
            http: Some(HttpStatus {
                listening: Vec::new(),
                refused: Some("0.0.0.0:1 can be reached by others".into()),
            }),
            configure: Some(ConfigureStatus { endpoint: "ipc:///c".into(), taken: 1, ..Default::default() }),
            samples_refused: 9,
        };
        expect![[r#"
            Daemon 0.1.0 (pid 7) for this user, state in
                /home/alice/.local/state/met/3d1219c7c4c5404aaa1f6d2a48adfda4
            1 running job, sampled every 1s
              node       1 row, 0.000 s CPU, 0 errors
              http: not listening: 0.0.0.0:1 can be reached by others
              configure: listening at ipc:///c, messages: 1 taken, 0
                skipped
              store: the series database rejected 9 samples (lost);
                see the log of the daemon
        "#]]
        .assert_eq(&status_text(&status, &Style { width: Some(60), ..Style::plain() }));
    }

    #[test]
    fn no_token_and_a_bad_one_are_distinguished_and_neither_is_shown() {
        assert_eq!(token_in_line(" node-0123456789abcdef\n").unwrap(), "node-0123456789abcdef");
        assert!(token_in_line("\n").unwrap_err().to_string().starts_with("no token on"));
        let bad = token_in_line("bad\n").unwrap_err().to_string();
        assert!(bad.starts_with("standard input is not a token") && !bad.contains("bad"), "{bad}");
    }
}
