//! `met colmet-collector` and `met colmet-node`: Colmet's own command lines.

use std::net::ToSocketAddrs;
use std::path::Path;

use anyhow::Result;
use met_agent::supervise::Signals;
use met_config::Failure;
use met_jobs::cgroup_layouts::colmet_options;
use met_query::setting::Setting;
use met_server::colmet::collector;
use met_sinks::link::{Address, Link};
use met_sinks::sink::Options;
use met_sinks::zeromq::Endpoint;
use met_sinks::{Configured, SINKS, elasticsearch, hdf5};
use met_sources::{ipmi, perf};

use crate::cli::{ColmetCollectorArgs, ColmetNodeArgs};

/// `verbose`: it logs what it takes, each period.
pub fn collector(setting: &Setting, args: &ColmetCollectorArgs, verbose: u8) -> Result<i32> {
    let sinks = sinks(args)?;
    let uri = &args.zeromq_bind_uri;
    let wrong =
        || Failure::usage(format!("--zeromq-bind-uri: {uri:?} is not an address; write tcp://0.0.0.0:5556"));
    let authority = uri.strip_prefix("tcp://").ok_or_else(wrong)?.replace('*', "0.0.0.0");
    let listen: Vec<_> = authority.to_socket_addrs().map_err(|_| wrong())?.collect();
    for line in ignored(args) {
        tracing::warn!("{line}");
    }
    let signals = Signals::block()?;
    let is_over = || {
        let mut is_over = false;
        while let Some(signal) = signals.next() {
            is_over |= matches!(signal.number, libc::SIGTERM | libc::SIGINT);
            if signal.number == libc::SIGHUP {
                met_sinks::reopen::request();
            }
        }
        is_over
    };
    let round = (verbose > 0).then_some(args.sample_period);
    let state = setting.user.state.join("colmet-collector");
    let collected = collector::collect(&listen, &sinks, &state, round, is_over);
    collected.map_err(|error| Failure::usage(format!("{error:#}")))?;
    Ok(0)
}

/// A daemon whose sink is a collector of Colmet. `verbose`: it prints its records.
pub fn node(mut setting: Setting, args: &ColmetNodeArgs, verbose: u8) -> Result<i32> {
    if let Some(Err(why)) = args.configure_uri.as_deref().map(Endpoint::parse_own) {
        return Err(Failure::usage(format!("--configure-uri: {why}")));
    }
    name_jobs(&mut setting.config.jobs, args)?;
    let (backends, events) = (backends(args), events(&args.perfhw_list)?);
    let sink = sink(
        "colmet",
        &[
            ("endpoint", vec![args.zeromq_uri.clone()]),
            // The sampling interval is the period, also while it is changed live.
            ("period", vec!["interval".to_owned()]),
            ("mapping", vec![std::env::current_dir()?.to_string_lossy().into_owned()]),
            ("backends", backends.iter().map(|&name| name.to_owned()).collect()),
            ("events", events.clone()),
            ("queue", vec![args.zeromq_hwm.clamp(1, 1_000_000).to_string()]),
        ],
    );
    // All others were checked before.
    let sink = sink.map_err(|error| Failure::usage(format!("--zeromq-uri: {error}")))?;
    for line in ignored_by_node(args) {
        tracing::warn!("{line}");
    }
    let command = args.ipmipower_cmd.join(" ");
    if !command.trim().is_empty() {
        let set = setting.config.sources.set(&ipmi::SPEC, &ipmi::COMMAND, &command);
        set.map_err(|error| Failure::usage(format!("--ipmipower-cmd: {error}")))?;
    }
    if args.backends.enable_perfhw {
        setting.config.perf.events = events;
    }
    setting.config.sampling.interval = Some(args.sample_period);
    setting.config.colmet.configure.clone_from(&args.configure_uri);
    setting.config.sinks.retain(|other| other.spec.name != "colmet");
    if verbose > 0 {
        let mut printed = self::sink("stdout", &[("format", vec!["colmet".to_owned()])])?;
        for option in ["period", "backends", "events"] {
            printed.options.set(option, sink.options.list(option).unwrap_or_default().to_vec());
        }
        setting.config.sinks.push(printed);
    }
    setting.config.sinks.push(sink);
    // They are meant for this process, also where the rest is the machine's file.
    setting.config_path = None;
    let is_root = rustix::process::getuid().is_root();
    let place = if is_root { &setting.system } else { &setting.user };
    met_agent::daemon::run(&setting, place, false)?;
    Ok(0)
}

/// As for `perf.events`; Colmet's records have five counters.
fn events(names: &[String]) -> Result<Vec<String>> {
    let mut events = met_config::events_in(&names.join(",")).map_err(|error| {
        let known = perf::listed().collect::<Vec<_>>().join(", ");
        Failure::usage(format!("--perfhw-list: {error}; write some of {known}"))
    })?;
    let left_out = events.split_off(events.len().min(5));
    if !left_out.is_empty() {
        tracing::warn!("--perfhw-list: left out, only five events are counted: {}", left_out.join(", "));
    }
    Ok(events)
}

fn backends(args: &ColmetNodeArgs) -> Vec<&'static str> {
    let chosen = &args.backends;
    let all = [
        ("taskstats", true),
        ("procstats", !chosen.disable_procstats),
        ("infiniband", chosen.enable_infiniband),
        ("lustre", chosen.enable_lustre),
        ("perfhw", chosen.enable_perfhw),
        ("rapl", chosen.enable_rapl),
        ("temperature", chosen.enable_temperature),
        ("jobproc", chosen.enable_jobproc),
        ("ipmi", chosen.enable_ipmipower),
        ("nvidia", chosen.enable_nvidia),
    ];
    all.into_iter().filter(|(_, is_chosen)| *is_chosen).map(|(name, _)| name).collect()
}

/// Adds a layout for jobs that are where these options say. If it could not be used, no job would be found.
fn name_jobs(jobs: &mut met_config::Jobs, args: &ColmetNodeArgs) -> Result<()> {
    let root = args.cpuset_rootpath.as_ref().map(|root| root.to_string_lossy());
    if root.is_none() && args.regex_job_id.is_none() {
        return Ok(());
    }
    let layout = colmet_options::layout(root.as_deref(), args.regex_job_id.as_deref());
    let refused = |why| {
        Failure::usage(format!(
            "--cpuset_rootpath and --regex_job_id cannot be used: {why}; see jobs.layouts"
        ))
    };
    jobs.layouts.insert(0, layout.map_err(refused)?);
    Ok(())
}

fn ignored_by_node(args: &ColmetNodeArgs) -> Vec<String> {
    let given = [
        ("--omnipath", args.omnipath, "Omni-Path is recognised"),
        ("--lustre-prefix", args.lustre_prefix.is_some(), "every Lustre file system is read"),
        ("--zeromq-linger", args.zeromq_linger.is_some(), "what waits at the end is tried once"),
    ];
    let given = given.into_iter().filter(|(_, is_given, _)| *is_given);
    given.map(|(name, _, why)| format!("{name} is ignored: {why}")).collect()
}

/// What an option means nothing for is said once.
fn ignored(args: &ColmetCollectorArgs) -> Vec<String> {
    let given = [
        ("--buffer-size", args.buffer_size.is_some(), "queues are bounded by bytes"),
        ("--zeromq-hwm", args.zeromq_hwm.is_some(), "memory is bounded for each peer"),
        ("--zeromq-linger", args.zeromq_linger.is_some(), "nothing is sent to nodes"),
        ("--hdf5-complib", args.hdf5_complib != "zlib", "zlib is used"),
    ];
    let given = given.into_iter().filter(|(_, is_given, _)| *is_given);
    given.map(|(name, _, why)| format!("{name} is ignored: {why}")).collect()
}

fn sinks(args: &ColmetCollectorArgs) -> Result<Vec<Configured>> {
    let mut sinks = Vec::new();
    if args.enable_stdout_backend {
        sinks.push(sink("stdout", &[("format", vec!["colmet".to_owned()])])?);
    }
    if let Some(path) = &args.hdf5_filepath {
        let path = std::path::absolute(path)?;
        check_place(&path).map_err(|why| Failure::usage(format!("--hdf5-filepath: {why}")))?;
        let path = path.to_string_lossy().into_owned();
        let level = args.hdf5_complevel.to_string();
        // Colmet's collector takes up to `--buffer-size` messages and writes them, once in this time. This one takes them as they
        // come; rows are in the file within this time.
        let flush = format!("{}ms", args.sample_period.as_millis());
        sinks.push(sink("hdf5", &[("path", vec![path]), ("level", vec![level]), ("flush", vec![flush])])?);
    }
    if let Some(host) = &args.elastic_host {
        let url = if host.contains("://") { host.clone() } else { format!("http://{host}") };
        // A password in it is not repeated.
        let address = Address { url: url.clone(), plain: true, ..Address::default() };
        Link::open(&address).map_err(|_| {
            let why =
                "not an address; write HOST:9200 or https://HOST:9200, and a password in the file of -P";
            Failure::usage(format!("--elastic-host: {why}"))
        })?;
        let mut options = vec![
            ("url", vec![url]),
            ("index_prefix", vec![args.elastic_index_prefix.clone()]),
            ("plain", vec!["yes".to_owned()]),
        ];
        if let Some(path) = &args.http_credentials {
            let path = std::path::absolute(path)?.to_string_lossy().into_owned();
            elasticsearch::check_credentials(&path)
                .map_err(|why| Failure::usage(format!("--http-credentials: {why}")))?;
            options.push(("credentials_file", vec![path]));
        }
        if args.no_check_certificates {
            options.push(("check_certificates", vec!["no".to_owned()]));
        }
        sinks.push(sink("elasticsearch", &options)?);
    }
    match sinks.is_empty() {
        true => Err(Failure::usage(
            "no output given; use --hdf5-filepath, --elastic-host or --enable-stdout-backend".to_owned(),
        )),
        false => Ok(sinks),
    }
}

/// A file that can never be written is mostly a mistyped one; the sink would try again and again. Folders that are missing
/// are created.
fn check_place(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Err(format!("{} is a directory; name a file", path.display()));
    }
    let place = path.ancestors().find(|place| place.exists()).unwrap_or(path);
    if place != path && !place.is_dir() {
        return Err(format!("{} is not a directory", place.display()));
    }
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK)
        .map_err(|error| format!("{} cannot be written: {error}", place.display()))?;
    hdf5::check_continues(path).map_err(|error| format!("{}: {error:#}", path.display()))
}

fn sink(name: &str, given: &[(&'static str, Vec<String>)]) -> Result<Configured> {
    let missing = || Failure::usage(format!("this build has no sink {name}"));
    let spec = *SINKS.iter().find(|spec| spec.name == name).ok_or_else(missing)?;
    let mut options = Options::default();
    let tables = met_sources::catalogue();
    for (key, values) in given {
        if let Some(option) = spec.options.iter().find(|option| option.name == *key) {
            values.iter().try_for_each(|value| (option.check)(value, &tables)).map_err(Failure::usage)?;
            options.set(option.name, values.clone());
        }
    }
    Ok(Configured { spec, options })
}
