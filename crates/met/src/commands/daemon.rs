//! `met daemon`.

use std::io::{self, Write};

use anyhow::{Result, bail};

use crate::cli::DaemonArgs;
use crate::client::Client;
use crate::commands::doctor;
use crate::daemon;
use crate::failure::Failure;
use crate::paths::Place;
use crate::protocol::{Reply, Request};
use crate::setting::Setting;

pub fn daemon(setting: &Setting, args: &DaemonArgs) -> Result<i32> {
    let for_everybody = rustix::process::getuid().is_root() && !args.user;
    if args.stop || args.status {
        return ask_running(setting, args, for_everybody);
    }
    let place = if for_everybody { &setting.system } else { &setting.user };
    daemon::run(setting, place, args.auto)?;
    Ok(0)
}

fn ask_running(setting: &Setting, args: &DaemonArgs, for_everybody: bool) -> Result<i32> {
    let own: &[&Place] = match for_everybody || args.status && !args.user {
        true => &[&setting.system, &setting.user],
        false => &[&setting.user],
    };
    let Some(mut client) = own.iter().find_map(|place| Client::connect(&place.socket()).ok()) else {
        if args.stop {
            own.iter().for_each(|place| daemon::remove_dead_socket(place));
        }
        return Err(Failure::usage(match setting.system_daemon() {
            Some(_) => "a system daemon runs, which only root may stop",
            None => "no daemon runs; the next `met run` starts one",
        }));
    };
    let mut stdout = io::stdout().lock();
    if args.stop {
        client.call(&Request::Stop)?;
        // It has flushed and let go of its files when it closes the connection.
        while client.read_unasked().is_ok() {}
        writeln!(stdout, "Stopped; jobs run on")?;
        return Ok(0);
    }
    let Reply::Status(status) = client.call(&Request::Status)? else { bail!("the daemon did not answer") };
    let whose = if status.system { "everybody" } else { "this user" };
    writeln!(
        stdout,
        "Daemon {} (pid {}) for {whose}, state in {}",
        status.version,
        status.pid,
        status.state.display()
    )?;
    let plural = if status.jobs == 1 { "" } else { "s" };
    writeln!(stdout, "{} running job{plural}, sampled every {} ms", status.jobs, status.interval_ms)?;
    for source in status.sources {
        let seconds = source.read_ns as f64 / 1e9;
        write!(
            stdout,
            "  {:<10} {} rows, {seconds:.3} s CPU, {} errors",
            source.name, source.rows, source.errors
        )?;
        if source.background_ns > 0 {
            write!(stdout, ", {:.3} s CPU in its own thread", source.background_ns as f64 / 1e9)?;
        }
        writeln!(
            stdout,
            "{}",
            source.last_error.map(|error| format!(", last: {error}")).unwrap_or_default()
        )?;
    }
    for status in &status.schedulers {
        writeln!(stdout, "  {}", doctor::heard_of(status))?;
    }
    Ok(0)
}
