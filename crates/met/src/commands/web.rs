//! `met web`: the pages of one's own jobs in a browser, on a loopback address.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use met_agent::supervise::Signals;
use met_query::jobs::{AllJobs, OwnJobs};
use met_query::server_client::ServerClient;
use met_query::setting::Setting;
use met_query::systems;
use met_web::api::{Admission, Api, Output};
use met_web::listener::{Options, Server};
use met_web::pages;
use met_web::personal::{self, Personal};
use serde::{Deserialize, Serialize};

use super::logs::OwnOutput;
use crate::cli::WebArgs;
use crate::output;
use met_config::Failure;

/// One that runs in the background ends after so long without a request.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// For an answer of a listener that runs already.
const TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 4096;
/// Each listener has a file of its own: one does not hide another.
const FILES: (&str, &str) = ("web-", ".json");

/// How another command reaches a listener of the same user.
#[derive(Serialize, Deserialize)]
struct Running {
    address: SocketAddr,
    base: String,
    control: String,
    /// The server that it shows, if it is not this machine.
    server: Option<String>,
}

pub fn web(setting: Setting, args: &WebArgs) -> Result<i32> {
    // What is no address is said here, and not on every page.
    setting.server.as_ref().map(ServerClient::open).transpose()?;
    let next = match &args.job {
        Some(job) => job_path(&setting, job)?,
        None => String::new(),
    };
    if args.listen.is_none()
        && !args.background
        && let Some(link) = link_of_running(&setting, &next)
    {
        return say(&link, args);
    }
    // Before the threads of the listener, which would end the program.
    let signals = Signals::block().context("cannot listen for signals")?;
    let (path, server_url) = (file(&setting), setting.server.as_ref().map(|server| server.url.clone()));
    let name = met_host::users::name_of(rustix::process::getuid().as_raw()).unwrap_or_default();
    let personal = Personal::new(&name).context("the machine has no random numbers")?;
    let address = args.listen.clone().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let options = options(&address)?;
    setting.user.create()?;
    let (server, address) = start(setting, &personal, options)?;
    personal.listens_on(address.port());
    let running = Running {
        address,
        base: personal.base.clone(),
        control: personal.control.clone(),
        server: server_url,
    };
    write_private(&path, &serde_json::to_string(&running)?)?;
    let ticket = personal.ticket().context("the machine has no random numbers")?;
    say(&link(&running, &ticket, &next), args)?;
    if !args.background && output::stdout().is_terminal() {
        writeln!(output::stdout(), "The link opens once, in one browser. Ctrl-C ends the page.")?;
    }
    while !is_asked_to_end(&signals) && (!args.background || personal.idle() < IDLE_MAX) {
        std::thread::sleep(LOOK_EVERY);
    }
    server.stop();
    remove_own(&path, &running);
    Ok(0)
}

fn is_asked_to_end(signals: &Signals) -> bool {
    let ends = |number: i32| [libc::SIGTERM, libc::SIGINT, libc::SIGHUP].contains(&number);
    std::iter::from_fn(|| signals.next()).any(|signal| ends(signal.number))
}

/// Unless another listener has written its own meanwhile.
fn remove_own(path: &Path, running: &Running) {
    let known = fs::read_to_string(path).ok().and_then(|text| serde_json::from_str::<Running>(&text).ok());
    if known.is_some_and(|known| known.control == running.control) {
        let _ = fs::remove_file(path);
    }
}

/// Loopback only: the ticket would be readable on its way to anywhere else.
fn options(address: &str) -> Result<Options> {
    let wrong =
        || Failure::usage(format!("--listen {address}: write a loopback address such as 127.0.0.1:8080"));
    let parsed: SocketAddr = address.parse().map_err(|_| wrong())?;
    if !parsed.ip().is_loopback() {
        return Err(wrong());
    }
    let mut options = Options::new(vec![address.parse().map_err(|_| wrong())?]);
    options.background_threads = 4;
    Ok(options)
}

fn start(setting: Setting, personal: &Arc<Personal>, options: Options) -> Result<(Server, SocketAddr)> {
    let layouts = setting.config.jobs.layouts.clone();
    let admission: Arc<dyn Admission> = Arc::<Personal>::clone(personal);
    let host = Some(setting.host.clone()).filter(|_| setting.server.is_none());
    let systems = systems::of(&setting.config).into();
    let currency = setting.config.energy.currency.clone();
    let own = Arc::new(OwnJobs::new(setting));
    let query = Arc::<OwnJobs>::clone(&own);
    let (answers, live) = (Arc::default(), Arc::default());
    let output: Option<Arc<dyn Output>> = Some(Arc::new(OwnOutput));
    let api =
        Api { query, admission, answers, layouts, live, annotates: own, output, host, systems, currency };
    let server = Server::start(options, personal::router(personal, api))
        .map_err(|error| Failure::usage(error.to_string()))?;
    let address = server.local_addrs().first().copied().context("the listener has no address")?;
    Ok((server, address))
}

/// The link on a line of its own; a browser is opened where a person would see it.
fn say(link: &str, args: &WebArgs) -> Result<i32> {
    let mut stdout = output::stdout();
    writeln!(stdout, "{link}")?;
    stdout.flush()?;
    if args.background {
        // The reader of `met show --web` waits until nothing holds its pipes.
        let nothing = fs::OpenOptions::new().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stderr(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
    }
    if !args.no_open && !args.background && has_screen() {
        // Its own output is of no interest, and it may stay.
        let opened = Command::new("xdg-open")
            .arg(link)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        drop(opened);
    }
    Ok(0)
}

fn has_screen() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// `met show JOB --web`: a link to the page of a job, by a listener that runs or is started in the background.
pub fn link_to(setting: &Setting, job: &str) -> Result<i32> {
    let next = job_path(setting, job)?;
    let link = match link_of_running(setting, &next) {
        Some(link) => link,
        None => start_in_background(setting, job)?,
    };
    writeln!(output::stdout(), "{link}")?;
    Ok(0)
}

/// A job that is not there is an error here, and not on the page.
fn job_path(setting: &Setting, job: &str) -> Result<String> {
    use met_query::jobs::Meant;
    let (Meant::Job(record) | Meant::Step(record)) = AllJobs::open(setting)?.find_or_step(job)?;
    Ok(pages::job_path(&record.label()))
}

fn start_in_background(setting: &Setting, job: &str) -> Result<String> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    if let Some(config) = setting.config_path.as_ref().filter(|_| setting.is_config_named) {
        command.arg("--config").arg(config);
    }
    if let Some(server) = &setting.server {
        command.arg("--server").arg(&server.url);
    }
    command.args(["web", "--background", "--"]).arg(job);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).process_group(0);
    let mut child = command.spawn().context("cannot start `met web`")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout.take(ANSWER_BYTES_MAX)).read_line(&mut line)?;
    }
    match line.trim() {
        "" => bail!("`met web` did not start"),
        link => Ok(link.to_owned()),
    }
}

fn file(setting: &Setting) -> PathBuf {
    setting.user.runtime.join(format!("{}{}{}", FILES.0, std::process::id(), FILES.1))
}

/// Those of all listeners, the oldest first.
fn files(setting: &Setting) -> Vec<PathBuf> {
    let entries = fs::read_dir(&setting.user.runtime).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with(FILES.0) && name.ends_with(FILES.1))
        })
        .map(|entry| (entry.metadata().and_then(|file| file.modified()).ok(), entry.path()))
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

fn link(running: &Running, ticket: &str, next: &str) -> String {
    let Running { address, base, .. } = running;
    let next = if next.is_empty() { String::new() } else { format!("?next={}", pages::encoded(next)) };
    format!("http://{address}{base}enter/{ticket}{next}")
}

/// A new link by a listener of this user that runs and shows the same.
fn link_of_running(setting: &Setting, next: &str) -> Option<String> {
    files(setting).iter().find_map(|path| {
        met_host::trusted::check_own(path).ok()?;
        let running: Running = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
        let server = setting.server.as_ref().map(|server| server.url.as_str());
        if running.server.as_deref() != server || !running.address.ip().is_loopback() {
            return None;
        }
        let ticket = ask_for_ticket(&running);
        // One that was killed left its file.
        let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if ticket.as_ref().is_err_and(|error| error.downcast_ref().is_some_and(is_refused)) {
            let _ = fs::remove_file(path);
        }
        Some(link(&running, &ticket.ok()?, next))
    })
}

fn ask_for_ticket(running: &Running) -> Result<String> {
    let Running { address, base, control, .. } = running;
    let mut stream = TcpStream::connect_timeout(address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(
        stream,
        "POST {base}ticket HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {control}\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let is_ticket =
        body.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) && !body.is_empty();
    if !head.starts_with("HTTP/1.1 200 ") || !is_ticket {
        bail!("no ticket");
    }
    Ok(body.to_owned())
}

/// Readable by this user alone, from the first byte on.
fn write_private(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&beside);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&beside, path).with_context(|| format!("cannot write {}", path.display()))
}
