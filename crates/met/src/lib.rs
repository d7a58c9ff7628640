//! `met`: what jobs did with the machine.

mod cli;
mod commands;
mod managers;
mod output;
mod server;
mod view;
mod wording;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use cli::{Cli, Command, ListArgs};
use commands::completions;
use met_agent::standby::Standby;
use met_config::Failure;
use met_query::setting::Setting;

/// The program: what it was called with decides what it does.
pub fn main() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Before anything else is touched: a supervisor stays as small as it starts.
    if arguments.get(1).is_some_and(|first| first == met_agent::launch::SUPERVISE) {
        met_host::name_process(met_jobs::processes::SUPERVISOR_NAME);
        let code = i32::from(met_agent::launch::run_as_supervisor(&arguments[2..]).is_err());
        std::process::exit(code);
    }
    if arguments.get(1).is_some_and(|first| first == completions::COMPLETE) {
        completions::complete(&arguments[2..]);
        std::process::exit(0);
    }
    let standby = cli::starts_job(&arguments).then(|| Standby::fork(&arguments)).flatten();
    let cli = Cli::of(&arguments).unwrap_or_else(|error| refuse(error, &arguments));
    let level = log_level(cli.verbose, std::env::var("MET_LOG").ok().as_deref());
    let level = level.unwrap_or_else(|error| std::process::exit(explain(&error)));
    log_to_stderr(level, cli.command.as_ref().is_some_and(Command::is_service));
    let code = run(cli, standby).unwrap_or_else(|error| explain(&error));
    std::process::exit(code);
}

/// What is about this machine is not asked of a server: says on which node it is to be done.
fn refuse_elsewhere(cli: &Cli, server: Option<&str>) -> Result<Option<i32>> {
    let command = cli.command.as_ref().filter(|command| !command.asks_a_server());
    let (Some(command), Some(server)) = (command, server) else { return Ok(None) };
    let setting = || Setting::find(cli.config.as_deref());
    let on_its_node = |setting: Setting, job: &str| {
        commands::on_its_node(&setting.with_server(Some(server.to_owned())), &command.name(), job).map(Some)
    };
    match (cli.server.is_some(), command.job_on_its_node(), command.job()) {
        (true, Some(job), _) => on_its_node(setting()?, job),
        (true, None, _) => Err(Failure::usage(format!(
            "`met {}` works on this machine only; --server is for list, show, explain, check, ack, mute, \
             unmute, usage, scale, compare, web, export, tag, note, nodes and node NODE",
            command.name()
        ))),
        (false, _, Some(job)) if job.contains('@') => {
            let setting = setting()?;
            if commands::is_elsewhere(&setting, job) { on_its_node(setting, job) } else { Ok(None) }
        }
        (false, ..) => Ok(None),
    }
}

fn run(cli: Cli, standby: Option<Standby>) -> Result<i32> {
    let config = cli.config.as_deref();
    let server =
        cli.server.clone().or_else(|| std::env::var("MET_SERVER").ok().filter(|url| !url.is_empty()));
    if let Some(code) = refuse_elsewhere(&cli, server.as_deref())? {
        return Ok(code);
    }
    let setting = || Setting::find(config);
    let asking = || Ok::<_, anyhow::Error>(setting()?.with_server(server.clone()));
    match cli.command {
        None => commands::list::list(&asking()?, &ListArgs::default()),
        Some(Command::Time(args)) => commands::time::time(&setting()?, args),
        Some(Command::Run(args)) => commands::run::run(&setting()?, args, standby),
        Some(Command::Attach(args)) => commands::attach::attach(&setting()?, &args),
        Some(Command::Detach(args)) => commands::attach::detach(&setting()?, &args),
        Some(Command::List(args)) => commands::list::list(&asking()?, &args),
        Some(Command::Show(args)) => commands::show::show(&asking()?, &args),
        Some(Command::Web(args)) => commands::web::web(asking()?, &args),
        Some(Command::Explain(args)) => commands::explain::explain(&asking()?, &args),
        Some(Command::Check(args)) => commands::check::check(&asking()?, &args),
        Some(Command::Ack(args)) => commands::react::acknowledge(&asking()?, &args),
        Some(Command::Mute(args)) => commands::react::mute(&asking()?, &args),
        Some(Command::Unmute(args)) => commands::react::unmute(&asking()?, &args),
        Some(Command::Usage(args)) => commands::usage::usage(&asking()?, &args),
        Some(Command::Who(args)) => commands::who::who(&setting()?, &args),
        Some(Command::Mark(args)) => commands::mark::mark(&args),
        Some(Command::Notify(args)) => commands::notify::notify(&setting()?, &args),
        Some(Command::Python) => commands::mark::python(),
        Some(Command::Scale(args)) => commands::scale::scale(&asking()?, &args),
        Some(Command::Compare(args)) => commands::compare::compare(&asking()?, &args),
        Some(Command::Export(args)) => commands::export::export(&asking()?, &args),
        Some(Command::Import(args)) => commands::import::import(&setting()?, &args),
        Some(Command::Ps(args)) => commands::ps::ps(&setting()?, &args),
        Some(Command::Gpus(args)) => commands::gpus::gpus(&setting()?, &args),
        Some(Command::Node(args)) => {
            // Without a name it is this machine, whichever server is asked for jobs.
            let setting = if args.node.is_some() { asking()? } else { setting()? };
            commands::node::node(&setting, &args)
        }
        Some(Command::Logs(args)) => commands::logs::logs(&setting()?, &args),
        Some(Command::Wait(args)) => commands::wait::wait(&setting()?, &args),
        Some(Command::Cancel(args)) => commands::cancel::cancel(&setting()?, &args),
        Some(Command::Rm(args)) => commands::rm::rm(&setting()?, &args),
        Some(Command::Tag(args)) => commands::annotate::tag(&asking()?, &args),
        Some(Command::Note(args)) => commands::annotate::note(&asking()?, &args),
        Some(Command::Daemon(args)) => commands::daemon::daemon(&setting()?, &args),
        Some(Command::Server(args)) => commands::server::server(&setting()?, &args),
        Some(Command::ColmetCollector(args)) => commands::colmet::collector(&setting()?, &args, cli.verbose),
        Some(Command::ColmetNode(args)) => commands::colmet::node(setting()?, &args, cli.verbose),
        Some(Command::Token) => commands::token::token(&setting()?),
        Some(Command::Nodes(args)) => commands::nodes::nodes(&asking()?, &args),
        Some(Command::Configure(args)) => commands::configure::configure(&setting()?, &args),
        Some(Command::Doctor(args)) => commands::doctor::doctor(&setting()?.of_daemon(), &args),
        Some(Command::Emissions(args)) => commands::emissions::emissions(&setting()?, &args),
        Some(Command::Metrics(args)) => commands::metrics::metrics(&args),
        Some(Command::Config(args)) => commands::config::config(setting, &args),
        Some(Command::Completions(args)) => completions::completions(&args),
        Some(Command::Man(args)) => commands::man::man(&args),
    }
}

/// Help goes to stdout; a mistake gets one line and exit code 2.
fn refuse(error: clap::Error, arguments: &[OsString]) -> ! {
    if !error.use_stderr() {
        let _ = error.print();
        std::process::exit(0);
    }
    let _ = writeln!(io::stderr(), "met: {}", wording::one_line(error, arguments));
    std::process::exit(2);
}

fn explain(error: &anyhow::Error) -> i32 {
    if output::is_reader_gone(error) {
        return 0;
    }
    let _ = writeln!(io::stderr(), "met: {error:#}");
    error.downcast_ref::<Failure>().map_or(1, |failure| failure.code)
}

/// The options count for more than the environment.
fn log_level(verbose: u8, environment: Option<&str>) -> Result<tracing::Level> {
    match (verbose, environment.filter(|level| !level.is_empty())) {
        (0, None) => Ok(tracing::Level::INFO),
        (0, Some(level)) => level.parse().map_err(|_| {
            Failure::usage(format!("MET_LOG={level}: unknown level; write error, warn, info, debug or trace"))
        }),
        (1, _) => Ok(tracing::Level::DEBUG),
        _ => Ok(tracing::Level::TRACE),
    }
}

fn log_to_stderr(level: tracing::Level, daemon: bool) {
    // What a full disk does not take is not said there once more: that would end the program.
    let builder =
        tracing_subscriber::fmt().with_writer(io::stderr).with_target(false).log_internal_errors(false);
    let builder = builder.with_ansi(io::stderr().is_terminal()).with_max_level(level);
    if daemon {
        builder.init();
    } else {
        builder.event_format(Spoken).init();
    }
}

/// What a command says beside its output looks as its failures do.
struct Spoken;

impl<S, N> FormatEvent<S, N> for Spoken
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<S, N>, mut to: Writer, event: &Event) -> fmt::Result {
        to.write_str("met: ")?;
        context.format_fields(to.by_ref(), event)?;
        to.write_char('\n')
    }
}
