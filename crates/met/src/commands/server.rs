//! `met server`, and who may speak to it.

use std::io::{self, Write};

use anyhow::Result;
use met_server::cluster::access;
use met_store::cluster::{Log, TokenOwner};

use crate::cli::{EnrollArgs, NewArgs, ServerAction, ServerArgs};
use crate::output;
use met_config::Failure;
use met_query::jobs;
use met_query::setting::Setting;

pub fn server(setting: &Setting, args: &ServerArgs) -> Result<i32> {
    match &args.action {
        None => crate::server::serve(setting).map(|()| 0),
        Some(ServerAction::Enroll(args)) => enroll(setting, args),
        Some(ServerAction::Expel(args)) => expel(setting, args),
    }
}

fn enroll(setting: &Setting, NewArgs { who: args, replace }: &NewArgs) -> Result<i32> {
    let owner = owner(args)?;
    let mut log = log(setting)?;
    if *replace && !log.is_node(&args.name)? {
        return Err(Failure::usage(format!(
            "no node named {:?} is enrolled; enroll it without --replace, or see `met nodes`",
            args.name
        )));
    }
    let token = access::enroll(&mut log, &owner, jobs::now_ns(), *replace)?;
    let mut stdout = output::stdout();
    writeln!(stdout, "{token}")?;
    // A program that reads the token wants nothing else; a person wants to know what to do with it.
    if stdout.is_terminal() {
        let how = match &owner {
            TokenOwner::Node(_) => {
                "on the node: met daemon --join URL, which reads it from its standard input"
            }
            _ => "store it in ~/.config/met/token (chmod 600), then run: met --server URL list",
        };
        writeln!(io::stderr(), "the token of {}; it is not shown again. {how}", args.name)?;
    }
    Ok(0)
}

fn expel(setting: &Setting, args: &EnrollArgs) -> Result<i32> {
    let owner = owner(args)?;
    if !log(setting)?.expel(&owner)? {
        return Err(Failure::usage(format!(
            "{} is not enrolled here; `met nodes` lists enrolled nodes",
            args.name
        )));
    }
    writeln!(
        output::stdout(),
        "{} is no longer accepted by this server; the data it sent is kept",
        args.name
    )?;
    Ok(0)
}

fn owner(args: &EnrollArgs) -> Result<TokenOwner> {
    if !access::is_node_name(&args.name) {
        return Err(Failure::usage(format!(
            "{:?} is not a valid name; use letters, digits, dots, hyphens and underscores",
            args.name
        )));
    }
    let name = args.name.clone();
    Ok(match (args.user, args.operator) {
        (false, false) => TokenOwner::Node(name),
        (true, _) => TokenOwner::User(name),
        (_, true) => TokenOwner::Operator(name),
    })
}

/// The server's file of who may speak to it. Root's is created when it is first needed. Another user's has to be there:
/// a token in the file of a user who runs no server would give access to nothing.
fn log(setting: &Setting) -> Result<Log> {
    let state = crate::server::state(setting);
    if !rustix::process::getuid().is_root()
        && let Err(error) = Log::open_for_reading(&state)
    {
        return Err(Failure::usage(format!(
            "{error}: this user has no server; run this as root or as the user who runs the server, or \
             start a server with `met server`"
        )));
    }
    Log::open(&state).map_err(|error| {
        Failure::usage(format!(
            "{error}; run this as the user who runs the \
        server"
        ))
    })
}
