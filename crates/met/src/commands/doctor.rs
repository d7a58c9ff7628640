//! `met doctor`: what can be measured here, what not, why, and what would enable it.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use met_core::job::State;
use met_host::Targets;
use met_host::cgroup::{Hierarchies, Kind};
use met_jobs::enclosure::{Enable, Enclosure};
use met_jobs::scheduler;
use met_sinks::forward;
use met_sources::{Options, Runner, SOURCES, TickInfo, Unavailable};
use serde_json::json;

use crate::cli::DoctorArgs;
use crate::daemon;
use crate::jobs::{self, AllJobs, JobsFilter};
use crate::node_energy;
use crate::protocol::{DiscoveryStatus, Reply, Request, SchedulerStatus};
use crate::sampler::{self, Cost, Sampler};
use crate::setting::Setting;
use crate::supervise::perf_allowed;
use crate::view::{Paint, Style, units};

/// A driver without its daemon takes seconds to wake a card up.
const PATIENCE: Duration = Duration::from_secs(20);

/// One thing looked at.
struct Finding {
    what: &'static str,
    health: Health,
    detail: String,
    /// The exact command that would make it better.
    remedy: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// Works in part, or with less precision.
    Less,
    /// The machine has no such thing, or nobody asked for it: nothing is wrong.
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
        return cost(setting, args);
    }
    let mut findings = sources(setting);
    findings.extend([
        energy(setting),
        cgroups(setting),
        job_cgroup(setting),
        perf(),
        pressure(),
        open_files(),
        running_daemon(setting),
        found_jobs(setting),
        store(setting),
        listener(setting),
    ]);
    findings.extend(servers_of_store(setting));
    findings.extend(schedulers(setting));
    findings.extend(forwarding(setting));
    findings.extend(served(setting));
    let mut stdout = io::stdout().lock();
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
    stdout.write_all(lines(&findings, &Style::of_stream(&stdout)).as_bytes())?;
    Ok(0)
}

/// One line for each, and one for what would make it better. What the machine does not have is not looked for.
fn lines(findings: &[Finding], style: &Style) -> String {
    let mut text = String::new();
    for finding in findings {
        let paint = finding.health.paint();
        let health = style.paint(paint, &format!("{:<4}", finding.health.name()));
        let line = format!("{:<14} {}", finding.what, finding.detail);
        let line = if paint == Paint::Dim { style.paint(paint, &line) } else { line };
        text += &format!("{health} {line}\n");
        if let Some(remedy) = &finding.remedy {
            text += &format!("{:>11} {} {remedy}\n", "", style.paint(Paint::Dim, "enable:"));
        }
    }
    text
}

/// Looks a second apart, as a daemon does: in a loop everything would be in a cache, and look cheap.
const COST_LOOKS: u32 = 5;

/// What each source costs with the jobs that run now.
fn cost(setting: &Setting, args: &DoctorArgs) -> Result<i32> {
    let interval = setting.config.sampling.interval;
    let mut sampler = Sampler::of_node(setting.host.clone(), interval, &setting.config);
    let running = JobsFilter { states: vec![State::Running, State::Suspended], ..JobsFilter::default() };
    for record in AllJobs::open(setting)?.jobs(&running)? {
        sampler.add(&record);
    }
    let terminal = io::stderr().is_terminal();
    sampler.look();
    for look in 1..=COST_LOOKS {
        if terminal {
            let _ = write!(io::stderr(), "\rlooking {look} of {COST_LOOKS}\x1b[K");
        }
        std::thread::sleep(Duration::from_secs(1));
        sampler.look();
    }
    if terminal {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    let lines: Vec<CostLine> = sampler.costs().iter().map(|cost| CostLine::of(cost, interval)).collect();
    let mut stdout = io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", serde_json::Value::Array(lines.iter().map(CostLine::object).collect()))?;
        return Ok(0);
    }
    let head =
        format!("{:<12} {:>7} {:>6} {:>12} {:>10}", "SOURCE", "EVERY", "ROWS", "PER READING", "OF A CORE");
    writeln!(stdout, "{}", Style::of_stream(&stdout).paint(Paint::Bold, &head))?;
    for line in &lines {
        writeln!(
            stdout,
            "{:<12} {:>7} {:>6} {:>12} {:>10}",
            line.source,
            units::duration(line.every.as_secs_f64()),
            line.rows,
            line.each_ns.map_or("-".to_owned(), |ns| units::duration(ns / 1e9)),
            line.core_ratio().map_or("-".to_owned(), |ratio| format!("{:.3}%", ratio * 100.0)),
        )?;
    }
    let total: f64 = lines.iter().filter_map(CostLine::core_ratio).sum();
    writeln!(stdout, "{:<12} {:>38.3}%", "together", total * 100.0)?;
    Ok(0)
}

/// One source and its price.
struct CostLine {
    source: &'static str,
    every: Duration,
    rows: i64,
    /// Own threads included; nothing for what has not been read yet.
    each_ns: Option<f64>,
}

impl CostLine {
    fn of(cost: &Cost, interval: Duration) -> CostLine {
        let spent_ns = (cost.read_ns + cost.background_ns) as f64;
        CostLine {
            source: cost.source,
            every: cost.period.unwrap_or(interval),
            rows: cost.rows,
            each_ns: (cost.readings > 0).then(|| spent_ns / cost.readings as f64),
        }
    }

    fn core_ratio(&self) -> Option<f64> {
        Some(self.each_ns? / 1e9 / self.every.as_secs_f64())
    }

    fn object(&self) -> serde_json::Value {
        json!({
            "source": self.source,
            "every_seconds": self.every.as_secs_f64(),
            "rows": self.rows,
            "reading_seconds": self.each_ns.map(|ns| ns / 1e9),
            "core_ratio": self.core_ratio(),
        })
    }
}

fn sources(setting: &Setting) -> Vec<Finding> {
    let options = Options { node: true, ..sampler::options(&setting.config, PATIENCE) };
    let mut runner = Runner::open(&setting.host, &options);
    runner.read(&Targets::default(), &TickInfo { slow: true, cgroups_only: false });
    let errors = runner.take_new_errors();
    let failing = daemon_errors(setting);
    let shortfalls: HashMap<_, _> = runner.shortfalls().collect();
    let finding = |spec: &&'static met_sources::SourceSpec| {
        if let Some(shortfall) = shortfalls.get(spec.name) {
            let (detail, remedy) = (shortfall.detail.clone(), shortfall.remedy.clone());
            return Finding { what: spec.name, health: Health::Less, detail, remedy };
        }
        let reason = runner.unavailable().iter().find(|(missing, _)| missing.name == spec.name);
        let error = errors.iter().find(|error| error.source == spec.name);
        let (health, detail, remedy) = match reason {
            None if error.is_some() => {
                let message = error.map(|error| error.message.clone()).unwrap_or_default();
                (Health::Broken, format!("{}, but: {message}", spec.help), None)
            }
            None => match failing.iter().find(|(name, _)| name == spec.name) {
                Some((_, error)) => (Health::Less, format!("{}; the daemon met: {error}", spec.help), None),
                None => (Health::Good, spec.help.to_owned(), None),
            },
            Some((_, Unavailable::Absent(why))) if why.contains(met_sources::NO_ANSWER) => {
                (Health::Broken, why.clone(), None)
            }
            Some((_, Unavailable::Absent(why))) => (Health::Absent, why.clone(), None),
            Some((_, Unavailable::Denied { path, need })) => {
                (Health::Denied, format!("{path} may not be read"), Some((*need).to_owned()))
            }
        };
        Finding { what: spec.name, health, detail, remedy }
    };
    SOURCES.iter().map(finding).collect()
}

/// What jobs are charged energy by: a meter, or an estimate and what would give a meter.
fn energy(setting: &Setting) -> Finding {
    let options = Options { node: true, only: Some(METERS), ..sampler::options(&setting.config, PATIENCE) };
    let mut sampler = Sampler::with(setting.host.clone(), Duration::from_secs(1), &setting.config, &options);
    sampler.look();
    let meters = sampler.energy().meters();
    if !meters.is_empty() {
        let detail = format!("jobs are charged what is measured by {}", meters.join(", "));
        return Finding { what: "energy", health: Health::Good, detail, remedy: None };
    }
    let denied = sampler.unavailable().iter().find_map(|(spec, reason)| match reason {
        Unavailable::Denied { path, .. } if spec.name == "rapl" => Some(path),
        _ => None,
    });
    let remedy = match denied {
        Some(_) => "sudo chmod a+r /sys/class/powercap/*/energy_uj".to_owned(),
        None if node_energy::machine(&setting.host).1 => {
            "a virtual machine has no meter: name its host's controller in met.yaml, sources.redfish.url"
                .to_owned()
        }
        None => "sudo modprobe intel_rapl_msr; sudo modprobe -a ipmi_si ipmi_devintf".to_owned(),
    };
    let detail = format!("no meter: estimated by load, {} and memory", sampler.energy().estimated_by());
    Finding { what: "energy", health: Health::Less, detail, remedy: Some(remedy) }
}

/// Meters that are read at once; `node` is what everybody does.
const METERS: &[&str] = &["node", "rapl", "cray", "ipmi", "redfish", "hwmon"];

/// The page for Prometheus: whether it is asked for, whether its file is in order, whether somebody answers.
fn listener(setting: &Setting) -> Finding {
    const WAIT: Duration = Duration::from_secs(1);
    let http = &setting.config.http;
    let finding = |health: Health, detail: String, remedy: Option<&str>| Finding {
        what: "http",
        health,
        detail,
        remedy: remedy.map(str::to_owned),
    };
    let Some(address) = http.listen.first() else {
        let remedy = "http: {listen: 127.0.0.1:9317}    (in met.yaml)";
        return finding(Health::Good, "no listener: nothing is asked for".to_owned(), Some(remedy));
    };
    let web = http.web_config.as_deref().map(met_server::http::WebConfig::load).transpose();
    let web = match web {
        Ok(web) => Some(web.unwrap_or_default()),
        // It has passwords in it, and is the daemon's to read.
        Err(met_server::http::Error::Read { error, .. })
            if error.kind() == io::ErrorKind::PermissionDenied =>
        {
            None
        }
        Err(error) => return finding(Health::Broken, error.to_string(), None),
    };
    let found = address.resolve().unwrap_or_default();
    let answers = found.iter().any(|found| std::net::TcpStream::connect_timeout(found, WAIT).is_ok());
    if !answers {
        let detail = format!("nobody listens on {address}");
        return finding(
            Health::Broken,
            detail,
            Some("met daemon    (one that runs takes up a new address when it is started anew)"),
        );
    }
    let Some(web) = web else {
        let detail = format!("/metrics on {address}; its web_config is for the daemon's eyes alone");
        return finding(Health::Good, detail, None);
    };
    let how = if web.has_tls() { "TLS" } else { "no encryption" };
    let who = match web.knows_clients() {
        true => "users and names of jobs are told to those who log in",
        false => "users and names of jobs are not told, because nobody logs in",
    };
    finding(Health::Good, format!("/metrics on {address}, {how}; {who}"), None)
}

/// What went wrong last in each source of the daemon that runs.
fn daemon_errors(setting: &Setting) -> Vec<(String, String)> {
    let daemon = setting.system_daemon().or_else(|| setting.user_daemon().ok());
    match daemon.and_then(|mut client| client.call(&Request::Status).ok()) {
        Some(Reply::Status(status)) => {
            status.sources.into_iter().filter_map(|source| Some((source.name, source.last_error?))).collect()
        }
        _ => Vec::new(),
    }
}

fn cgroups(setting: &Setting) -> Finding {
    let kind = Hierarchies::read(&setting.host).map_or(Kind::None, |hierarchies| hierarchies.kind());
    let (health, detail) = match kind {
        Kind::V2 => (Health::Good, "cgroup v2"),
        Kind::Hybrid => (Health::Good, "cgroup v1 with a v2 hierarchy beside it"),
        Kind::V1 => (Health::Less, "cgroup v1 alone: no pressure figures"),
        Kind::None => {
            (Health::Denied, "no cgroup file system is mounted: jobs are followed by their process tree")
        }
    };
    let remedy = (kind == Kind::None).then(|| "mount -t cgroup2 none /sys/fs/cgroup".to_owned());
    Finding { what: "cgroups", health, detail: detail.to_owned(), remedy }
}

/// Tried for real: whether it works depends on who asks from where.
fn job_cgroup(setting: &Setting) -> Finding {
    let name = format!("met-doctor-{}", std::process::id());
    let tried = Enclosure::create(&setting.host, std::process::id(), &name, Enable::No);
    let (paths, counts_cpu) = (tried.paths.clone(), tried.counts_cpu());
    drop(tried);
    let memory = paths.memory.is_some()
        || paths.unified.as_ref().and_then(|path| path.parent()).is_some_and(|parent| {
            std::fs::read_to_string(parent.join("cgroup.subtree_control"))
                .is_ok_and(|text| text.contains("memory"))
        });
    let system = setting.system_daemon().is_some();
    let (health, detail) = match (counts_cpu, memory) {
        (true, true) => (Health::Good, "a job gets a cgroup of its own: CPU, memory and pressure are exact"),
        (true, false) => {
            (Health::Less, "a job gets a cgroup without the memory controller: memory is estimated")
        }
        _ if system => (Health::Good, "the system daemon makes a cgroup for each job"),
        _ => {
            (Health::Less, "no cgroup may be made here: CPU stays exact by other means, memory is estimated")
        }
    };
    let remedy =
        (health == Health::Less && !counts_cpu).then(|| "sudo met daemon    (serves everybody)".to_owned());
    Finding { what: "job cgroup", health, detail: detail.to_owned(), remedy }
}

fn perf() -> Finding {
    if perf_allowed() {
        let detail = "CPU of every descendant, also where there is no cgroup";
        return Finding { what: "task clock", health: Health::Good, detail: detail.to_owned(), remedy: None };
    }
    Finding {
        what: "task clock",
        health: Health::Less,
        detail: "perf events are not allowed: without a cgroup, CPU of unreaped children is missed"
            .to_owned(),
        remedy: Some("sudo sysctl kernel.perf_event_paranoid=2".to_owned()),
    }
}

fn pressure() -> Finding {
    if Path::new("/proc/pressure/cpu").exists() {
        return Finding {
            what: "pressure",
            health: Health::Good,
            detail: "time lost waiting for CPU, memory and I/O".to_owned(),
            remedy: None,
        };
    }
    Finding {
        what: "pressure",
        health: Health::Denied,
        detail: "the kernel does not account pressure".to_owned(),
        remedy: Some("boot with psi=1 on the kernel command line".to_owned()),
    }
}

fn open_files() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let enough = limit.is_none_or(|limit| limit >= 8192);
    Finding {
        what: "open files",
        health: if enough { Health::Good } else { Health::Less },
        detail: match limit {
            None => "unlimited".to_owned(),
            Some(limit) => format!("at most {limit}; beyond 80 % of that, files are opened for each reading"),
        },
        remedy: (!enough)
            .then(|| "ulimit -Hn 65536    (as root, or in /etc/security/limits.conf)".to_owned()),
    }
}

fn running_daemon(setting: &Setting) -> Finding {
    let (health, detail) = if setting.system_daemon().is_some() {
        (Health::Good, "a system daemon runs and is used".to_owned())
    } else if setting.user_daemon().is_ok() {
        (Health::Good, format!("runs, at {}", setting.user.socket().display()))
    } else {
        (Health::Good, "none runs; the first `met run` starts one".to_owned())
    };
    Finding { what: "daemon", health, detail, remedy: None }
}

/// What the system daemon hears of the schedulers; without one, which of them could be asked.
fn schedulers(setting: &Setting) -> Vec<Finding> {
    let finding = |health, detail: String, remedy: Option<String>| Finding {
        what: "scheduler",
        health,
        detail,
        remedy,
    };
    let mut asked: Vec<SchedulerStatus> = Vec::new();
    let system = setting.system_daemon();
    let runs = system.is_some();
    for mut client in system.into_iter().chain(setting.user_daemon().ok()) {
        if let Ok(Reply::Status(status)) = client.call(&Request::Status) {
            asked.extend(status.schedulers);
        }
    }
    if !asked.is_empty() {
        return asked.iter().map(|status| finding(health_of(status), heard_of(status), None)).collect();
    }
    let there = daemon::schedulers::wanted(&setting.config.schedulers, true);
    if there.is_empty() {
        let detail = "none of sacct, oarstat, qstat and bjobs is here: jobs are known by what is measured";
        return vec![finding(Health::Good, detail.to_owned(), None)];
    }
    let found = |(kind, installed): &(&'static scheduler::Kind, bool)| match installed {
        false => finding(Health::Broken, format!("{}: {} is not here", kind.manager, kind.program), None),
        true if runs => finding(Health::Less, format!("{} is not asked", kind.manager), None),
        true => {
            let detail = format!("{} is here, and asked by a system daemon alone", kind.manager);
            finding(Health::Less, detail, Some("sudo met daemon".to_owned()))
        }
    };
    there.iter().map(found).collect()
}

fn health_of(status: &SchedulerStatus) -> Health {
    match (&status.last_error, status.answered_ns) {
        (Some(_), None) => Health::Broken,
        (Some(_), Some(_)) => Health::Less,
        _ => Health::Good,
    }
}

/// When it last answered, and what went wrong since.
pub fn heard_of(status: &SchedulerStatus) -> String {
    let ago = status.answered_ns.map(|answered_ns| (jobs::now_ns() - answered_ns).max(0) / 1_000_000_000);
    let mut text = match ago {
        Some(ago) => format!("{} answered {ago} s ago", status.manager),
        None if status.last_error.is_some() => format!("{} did not answer", status.manager),
        None => format!("{} is being asked for the first time", status.manager),
    };
    text.push_str(&format!(", {} records", status.told));
    if let Some(took_ms) = status.took_ms {
        text.push_str(&format!(", the last question took {took_ms} ms"));
    }
    if let Some(error) = &status.last_error {
        text.push_str(&format!("; {error}"));
    }
    text
}

/// How batches get to the server.
pub fn sent_to(forward: &forward::Status) -> String {
    let ago = forward.acknowledged_ns.map(|at_ns| (jobs::now_ns() - at_ns).max(0) / 1_000_000_000);
    let mut text = match ago {
        Some(ago) => format!("{} has everything up to {ago} s ago", forward.url),
        None => format!("{} has not answered yet", forward.url),
    };
    if forward.batches_waiting > 0 {
        let bytes = units::bytes(forward.bytes_waiting as f64);
        text.push_str(&format!("; {} batches wait, {bytes}", forward.batches_waiting));
    }
    if forward.dropped_samples > 0 {
        text.push_str(&format!("; {} samples were given up", forward.dropped_samples));
    }
    if forward.refused_batches > 0 {
        text.push_str(&format!("; {} batches were refused and lie aside", forward.refused_batches));
    }
    for error in forward.last_error.iter().chain(&forward.spool_error) {
        text.push_str(&format!("; {error}"));
    }
    text
}

fn forwarding(setting: &Setting) -> Option<Finding> {
    let client = setting.system_daemon().or_else(|| setting.user_daemon().ok());
    let Ok(Reply::Status(status)) = client?.call(&Request::Status) else { return None };
    let forward = status.forward?;
    Some(Finding {
        what: "server",
        health: health_of_sending(&forward),
        detail: sent_to(&forward),
        remedy: None,
    })
}

fn health_of_sending(forward: &forward::Status) -> Health {
    match (&forward.spool_error, &forward.last_error, forward.acknowledged_ns) {
        (Some(_), ..) => Health::Broken,
        (_, Some(_), _) | (_, _, None) => Health::Less,
        _ if forward.refused_batches > 0 => Health::Less,
        _ => Health::Good,
    }
}

/// Jobs of resource managers, as the daemon that looks for them tells it.
fn found_jobs(setting: &Setting) -> Finding {
    let what = "found jobs";
    let client = setting.system_daemon().or_else(|| setting.user_daemon().ok());
    let status = client.and_then(|mut client| match client.call(&Request::Status) {
        Ok(Reply::Status(status)) => status.discovery,
        _ => None,
    });
    let Some(status) = status else {
        return Finding {
            what,
            health: Health::Less,
            detail: "no daemon looks for jobs of resource managers and containers".to_owned(),
            remedy: Some("sudo met daemon    (with jobs.discover: auto or true)".to_owned()),
        };
    };
    let counts: Vec<String> =
        status.jobs.iter().map(|(manager, count)| format!("{count} of {manager}")).collect();
    let jobs = if counts.is_empty() { "none at present".to_owned() } else { counts.join(", ") };
    let (mut health, mut trouble, remedy) = match (&status.refused, status.left_out) {
        (None, 0) => (Health::Good, String::new(), None),
        (Some(why), _) => (
            Health::Less,
            format!("; not every cgroup is watched ({why}): those are looked at every second"),
            Some(
                "sudo sysctl fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=512".to_owned(),
            ),
        ),
        (None, _) => (Health::Less, String::new(), None),
    };
    trouble += &left_out(&status);
    if status.unseen_directories > 0 || status.unseen_cpu_ns > 0 {
        health = Health::Less;
        trouble += &format!(
            "; {} directories of jobs came and went unseen, with {} of CPU time that is nobody's",
            status.unseen_directories,
            units::duration(status.unseen_cpu_ns as f64 / 1e9),
        );
    }
    if status.shadows > 0 {
        trouble += &format!("; events of {} are counted in v2 cgroups of our own", status.shadows);
    }
    if let Some(why) = &status.shadows_refused {
        health = Health::Less;
        trouble += &format!("; events of jobs on cgroup v1 are not counted: {why}");
    }
    Finding { what, health, detail: format!("{jobs}; {} watches{trouble}", status.watches), remedy }
}

/// Where there are more cgroups than are followed.
fn left_out(status: &DiscoveryStatus) -> String {
    const NAMED_MAX: usize = 3;
    if status.left_out == 0 {
        return String::new();
    }
    let mut places: Vec<String> =
        status.crowded.iter().take(NAMED_MAX).map(|place| place.display().to_string()).collect();
    if status.crowded.len() > NAMED_MAX {
        places.push(format!("{} more", status.crowded.len() - NAMED_MAX));
    }
    let places = if places.is_empty() { String::new() } else { format!(" in {}", places.join(", ")) };
    format!("; {} cgroups too many are left out{places}", status.left_out)
}

fn store(setting: &Setting) -> Finding {
    let state = &setting.user.state;
    if let Some(why) = unwritable(state) {
        return Finding {
            what: "store",
            health: Health::Broken,
            detail: format!("{} cannot be written ({why}): no job is kept", state.display()),
            remedy: Some("export XDG_STATE_HOME=DIR    (a folder of yours)".to_owned()),
        };
    }
    let network = met_store::is_network(state);
    Finding {
        what: "store",
        health: if network { Health::Less } else { Health::Good },
        detail: match network {
            true => {
                format!("{} is on a network file system: one process at a time reads it", state.display())
            }
            false => state.display().to_string(),
        },
        remedy: network
            .then(|| "export XDG_STATE_HOME=DIR    (a folder of yours on a local disk)".to_owned()),
    }
}

/// What a server on this machine holds of its nodes beside its store: it grows when it cannot get rid of it.
fn served(setting: &Setting) -> Option<Finding> {
    let state = crate::server::state(setting);
    let bytes = met_store::cluster::bytes_in(&state)?;
    let detail = format!("{} of what nodes sent and told in {}", units::bytes(bytes as f64), state.display());
    Some(Finding { what: "cluster", health: Health::Good, detail, remedy: None })
}

/// The servers that `store` in the configuration names, asked for real.
fn servers_of_store(setting: &Setting) -> Vec<Finding> {
    let finding = |(what, told): (&'static str, Result<String, met_store::StoreError>)| {
        let health = if told.is_ok() { Health::Good } else { Health::Broken };
        Finding { what, health, detail: told.unwrap_or_else(|error| error.to_string()), remedy: None }
    };
    match setting.config.store.backends() {
        Ok(backends) => backends.probe().into_iter().map(finding).collect(),
        Err(error) => vec![finding(("store", Err(error)))],
    }
}

/// Tried for real, as far up as there is a folder: a store that is not there yet is made by the first job.
/// A full disk or a mount that is read only shows itself by nothing else.
fn unwritable(state: &Path) -> Option<std::io::Error> {
    let folder = state.ancestors().find(|folder| folder.exists())?;
    let trial = folder.join(format!(".met-doctor-{}", std::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&trial)
        .and_then(|mut file| file.write_all(&[0; 4096]).and_then(|()| file.sync_all()));
    let _ = std::fs::remove_file(&trial);
    written.err()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn places_with_too_many_cgroups_are_named() {
        let mut status = DiscoveryStatus::default();
        assert_eq!(left_out(&status), "");
        (status.left_out, status.crowded) = (7, vec!["/cg/a".into()]);
        assert_eq!(left_out(&status), "; 7 cgroups too many are left out in /cg/a");
        status.crowded = (0..5).map(|place| place.to_string().into()).collect();
        assert_eq!(left_out(&status), "; 7 cgroups too many are left out in 0, 1, 2, 2 more");
        // A daemon of an earlier version does not tell where.
        status.crowded.clear();
        assert_eq!(left_out(&status), "; 7 cgroups too many are left out");
    }

    #[test]
    fn batches_that_were_refused_are_less_than_good() {
        let well = forward::Status { acknowledged_ns: Some(1), ..forward::Status::default() };
        assert!(health_of_sending(&well) == Health::Good);
        let refused = forward::Status { refused_batches: 1, ..well };
        assert!(health_of_sending(&refused) == Health::Less);
        assert!(sent_to(&refused).contains("1 batches were refused and lie aside"));
    }

    #[test]
    fn on_a_terminal_only_what_does_not_work_is_red() {
        let finding = |what, health, detail: &str, remedy: Option<&str>| Finding {
            what,
            health,
            detail: detail.to_owned(),
            remedy: remedy.map(str::to_owned),
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
            ^[33mless^[0m job cgroup     memory is estimated
                        ^[2menable:^[0m sudo met daemon
            ^[2mno  ^[0m ^[2minfiniband     no InfiniBand device^[0m
            ^[33mno  ^[0m rapl           energy_uj may not be read
                        ^[2menable:^[0m run as root
            ^[31mno  ^[0m ipmi           power, but: no answer
        "#]]
        .assert_eq(&lines(&findings, &style).replace('\x1b', "^"));
        expect![[r#"
            ok   node           CPU, memory and load
            less job cgroup     memory is estimated
                        enable: sudo met daemon
            no   infiniband     no InfiniBand device
            no   rapl           energy_uj may not be read
                        enable: run as root
            no   ipmi           power, but: no answer
        "#]]
        .assert_eq(&lines(&findings, &Style::plain()));
        let causes = findings.map(|finding| finding.health.cause());
        assert_eq!(causes, [None, None, Some("absent"), Some("denied"), Some("broken")]);
    }

    #[test]
    fn a_store_that_cannot_be_written_is_found_out() {
        let folder = tempfile::tempdir().unwrap();
        assert!(unwritable(&folder.path().join("not/there/yet")).is_none());
        // A folder cannot be made below a file.
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(unwritable(&folder.path().join("file/met")).is_some());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
