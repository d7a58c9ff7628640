//! The daemon: discovered jobs, schedulers, the server and the sinks that it sends to, its listener.

use std::io;
use std::time::Duration;

use met_core::managers::Scheduler;
use met_sinks::{bus, forward};

use super::{Finding, Health};
use met_agent::daemon;
use met_agent::daemon::listening;
use met_agent::daemon::schedulers::SchedulerClient;
use met_core::units;
use met_query::client::Client;
use met_query::jobs;
use met_query::protocol::{DiscoveryStatus, SchedulerStatus, Status};
use met_query::setting::Setting;

pub(super) fn running_daemon(setting: &Setting) -> Finding {
    let good = |detail: &str| Finding::new("daemon", Health::Good, detail);
    let held = setting.in_force(false);
    if let Some(other) = held.as_ref().and_then(|held| setting.other_file_of(held)) {
        let own = setting.config_path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        return good(&format!("running with {other}; the rest of this report is about {own}"));
    }
    if let Some(error) = held.as_ref().and_then(|held| held.file_refused.as_ref()) {
        let detail = format!("running with its earlier configuration: {error}");
        return Finding::new("daemon", Health::Less, detail)
            .remedied_by("correct the file; it is then read again");
    }
    let later = held.map(|held| held.after_restart).unwrap_or_default();
    if !later.is_empty() {
        let detail = format!("running; its file has changed, and these need a restart: {}", later.join(", "));
        let remedy = "met daemon --stop    (a service: systemctl restart met)";
        return Finding::new("daemon", Health::Less, detail).remedied_by(remedy);
    }
    if setting.system_daemon().is_some() {
        return good("a system daemon is running and is used");
    }
    match setting.daemon(false) {
        Ok(_) => {
            // Perhaps in another runtime directory than this caller's.
            let socket = Client::connect_to(&setting.user)
                .map_or_else(|_| setting.user.socket(), |(_, socket)| socket);
            good(&format!("running, at {}", socket.display()))
        }
        Err(missed) => match missed.remedy() {
            Some(remedy) => Finding::new("daemon", Health::Broken, missed.to_string()).remedied_by(remedy),
            None => good("not running; the first `met run` starts one"),
        },
    }
}

/// Samples that could not be written in time.
pub(super) fn dropped_samples(status: Option<&Status>) -> Option<Finding> {
    let count = status.and_then(|status| status.dropped_samples).filter(|&count| count > 0)?;
    let detail =
        format!("{} dropped; charts have gaps, totals do not", units::counted(count as usize, "sample"));
    Some(Finding::new("samples", Health::Less, detail).remedied_by("see the line `store`"))
}

/// Jobs of resource managers, as reported by the daemon that discovers them.
pub(super) fn found_jobs(status: Option<&Status>) -> Finding {
    let what = "found jobs";
    let Some(status) = status.and_then(|status| status.discovery.as_ref()) else {
        let detail = "no daemon discovers jobs of resource managers and containers";
        return Finding::new(what, Health::Less, detail)
            .remedied_by("sudo met daemon    (with jobs.discover: auto or true)");
    };
    let counts: Vec<String> =
        status.jobs.iter().map(|(manager, count)| format!("{count} of {manager}")).collect();
    let jobs = if counts.is_empty() { "none now".to_owned() } else { counts.join(", ") };
    let (mut health, mut trouble, remedy) = match (&status.refused, status.left_out) {
        (None, 0) => (Health::Good, String::new(), None),
        (Some(why), _) => (
            Health::Less,
            format!("; not every cgroup is watched ({why}): those are polled every second"),
            Some(
                "sudo sysctl fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=512".to_owned(),
            ),
        ),
        (None, _) => (Health::Less, String::new(), None),
    };
    trouble += &left_out(status);
    if status.unseen_directories > 0 || status.unseen_cpu_ns > 0 {
        health = Health::Less;
        trouble += &format!(
            "; {} job cgroups were created and removed unseen; {} of CPU time are assigned to no job",
            status.unseen_directories,
            units::duration(status.unseen_cpu_ns as f64 / 1e9),
        );
    }
    if status.perf_cgroups > 0 {
        trouble += &format!("; events of {} are counted in additional v2 cgroups", status.perf_cgroups);
    }
    if let Some(why) = &status.perf_cgroups_refused {
        health = Health::Less;
        trouble += &format!("; events of jobs on cgroup v1 are not counted: {why}");
    }
    let detail = format!("{jobs}; {} watches{trouble}", status.watches);
    Finding { remedy, ..Finding::new(what, health, detail) }
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
    format!("; {} cgroups above the limit are not watched{places}", status.left_out)
}

/// The HTTP listener: whether it is configured, whether `web_config` is valid, whether the address accepts connections.
pub(super) fn listener(setting: &Setting, status: Option<&Status>) -> Finding {
    const WAIT: Duration = Duration::from_secs(1);
    const RESTART: &str =
        "met daemon --stop    (after correcting met.yaml; the next `met run` starts a daemon)";
    let http = &setting.config.http;
    // The daemon's listener is not the one that the named file is about.
    let is_other = setting.in_force(false).is_some_and(|held| setting.other_file_of(&held).is_some());
    let finding = |health: Health, detail: &str| Finding::new("http", health, detail);
    let refused = match status {
        Some(status) if !is_other => status.http.as_ref().and_then(|http| http.refused.clone()),
        _ => listening::refusal(setting, &setting.user),
    };
    if let Some(error) = refused {
        return finding(Health::Broken, &format!("not listening: {error}")).remedied_by(RESTART);
    }
    let Some(address) = http.listen.first() else {
        if let Some(path) = &http.socket {
            return finding(Health::Good, &format!("listening on the socket {}", path.display()));
        }
        if let Some(server) = crate::server::running(setting) {
            return finding(Health::Good, &format!("the server listens on {}", server.listening.join(", ")));
        }
        return finding(Health::Unset, "not listening (http.listen is unset)")
            .remedied_by("http: {listen: 127.0.0.1:9317}    (in met.yaml)");
    };
    let web = http.web_config.as_deref().map(met_web::listener::WebConfig::load).transpose();
    let web = match web {
        Ok(web) => Some(web.unwrap_or_default()),
        // It has passwords in it, and is the daemon's to read.
        Err(met_web::listener::Error::Read { error, .. })
            if error.kind() == io::ErrorKind::PermissionDenied =>
        {
            None
        }
        Err(error) => return finding(Health::Broken, &error.to_string()),
    };
    let found = address.resolve().unwrap_or_default();
    let answers = found.iter().any(|found| std::net::TcpStream::connect_timeout(found, WAIT).is_ok());
    if !answers {
        return finding(Health::Broken, &format!("no process listens on {address}"))
            .remedied_by("met daemon    (restart a running one to apply a new address)");
    }
    let Some(web) = web else {
        let detail = format!("/metrics on {address}; its web_config is readable by the daemon only");
        return finding(Health::Good, &detail);
    };
    let how = if web.has_tls() { "TLS" } else { "no encryption" };
    let who = match web.knows_clients() {
        true => "user and job names require authentication",
        false => "user and job names are omitted, because there is no authentication",
    };
    finding(Health::Good, &format!("/metrics on {address}, {how}; {who}"))
}

/// The schedulers that daemons query; without a daemon, those that could be queried.
pub(super) fn schedulers(setting: &Setting) -> Vec<Finding> {
    let finding = |health, detail| Finding::new("scheduler", health, detail);
    let system = setting.system_daemon();
    let runs = system.is_some();
    let daemons = [super::status_of(system), super::status_of(setting.user_daemon().ok())];
    let forwards = daemons.iter().flatten().any(|status| status.forward.is_some());
    let queried: Vec<SchedulerStatus> =
        daemons.into_iter().flatten().flat_map(|status| status.schedulers).collect();
    if let Some(server) = crate::server::running(setting).filter(|server| !server.schedulers.is_empty()) {
        let words = |status: &SchedulerStatus| format!("{} (queried by the server)", scheduler_words(status));
        let of_server = server.schedulers.iter().map(|status| finding(health_of(status), words(status)));
        let of_daemons = queried.iter().map(|status| finding(health_of(status), scheduler_words(status)));
        return of_server.chain(of_daemons).collect();
    }
    if !queried.is_empty() {
        return queried.iter().map(|status| finding(health_of(status), scheduler_words(status))).collect();
    }
    let client = SchedulerClient::Daemon { system: true, forwards: false };
    let there = daemon::schedulers::wanted(&setting.config.schedulers, client);
    if there.is_empty() && crate::server::is_here(setting) {
        let unknown = "requested resources, accounts, waiting times and final states of jobs stay unknown";
        return vec![
            finding(Health::Less, format!("this server can query no scheduler: {unknown}")).remedied_by(
                "install the client commands of the scheduler here (schedulers.path names their folder)",
            ),
        ];
    }
    if there.is_empty() {
        let off = daemon::schedulers::switched_off(&setting.config.schedulers);
        let detail = match off.as_slice() {
            [] => {
                let programs: Vec<&str> = Scheduler::ALL.iter().map(|one| one.row().1.program).collect();
                let (last, others) = programs.split_last().unwrap_or((&"", &[]));
                let programs = format!("{} and {last}", others.join(", "));
                format!("none of {programs} is installed: jobs have measured figures only")
            }
            off => format!("switched off: {}; jobs have measured figures only", off.join(", ")),
        };
        return vec![finding(Health::Good, detail)];
    }
    let found = |(scheduler, installed): &(Scheduler, bool)| {
        let (manager, query) = scheduler.row();
        match installed {
            false => finding(Health::Broken, format!("{}: {} is not installed", manager.name, query.program)),
            true if forwards => {
                let detail = "is queried by the server of the cluster, for all its nodes";
                finding(Health::Good, format!("{} {detail}", manager.name))
            }
            true if runs => finding(Health::Less, format!("{} is not queried", manager.name)),
            true => {
                let detail = format!("{} found; only a system daemon queries it", manager.name);
                finding(Health::Less, detail).remedied_by("sudo met daemon")
            }
        }
    };
    there.iter().map(found).collect()
}

fn health_of(status: &SchedulerStatus) -> Health {
    match (&status.last_error, status.answered_ns) {
        (Some(_), None) if status.page.is_none() => Health::Broken,
        (Some(_), _) => Health::Less,
        _ => Health::Good,
    }
}

/// When it last answered, and what went wrong since.
pub fn scheduler_words(status: &SchedulerStatus) -> String {
    if let Some(words) = status.page_words(jobs::now_ns()) {
        return words;
    }
    let ago = status.answered_ns.map(|answered_ns| (jobs::now_ns() - answered_ns).max(0) / 1_000_000_000);
    let plural = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut text = match (ago, status.jobs) {
        (Some(ago), _) => format!("{} answered {ago} s ago", status.manager),
        (None, _) if status.last_error.is_some() => format!("{} did not answer", status.manager),
        (None, Some(0)) => return format!("{}: no jobs to ask about", status.manager),
        (None, Some(jobs)) if !status.asking => {
            let jobs = plural(jobs as u64, "job");
            return format!("{}: not queried yet; the first query is about {jobs}", status.manager);
        }
        (None, _) => return format!("{}: first query in progress", status.manager),
    };
    text.push_str(&format!(", {}", plural(status.reported, "record")));
    if let Some(took_ms) = status.took_ms {
        text.push_str(&format!(", the last query took {took_ms} ms"));
    }
    if let Some(error) = &status.last_error {
        text.push_str(&format!("; {error}"));
    }
    text
}

/// The server that a daemon sends to, and its other sinks.
pub(super) fn sinks(status: Option<&Status>) -> Vec<Finding> {
    let Some(status) = status else { return Vec::new() };
    let of_server = |forward| Finding::new("server", health_of_sending(&forward), sent_to(&forward));
    let server = sending(status.forward.as_ref(), &status.sinks).map(of_server);
    let others = status.sinks.iter().filter(|sink| sink.name != forward::SPEC.name);
    server.into_iter().chain(others.map(|sink| of_sink("sink", sink))).collect()
}

pub(super) fn of_sink(what: &'static str, sink: &bus::Status) -> Finding {
    let health = match sink.state {
        bus::State::Failed => Health::Broken,
        bus::State::Running if sink.dropped == 0 => Health::Good,
        bus::State::Running | bus::State::Retrying => Health::Less,
    };
    Finding::new(what, health, sink_words(sink))
}

/// What a sink has taken, and what not.
pub fn sink_words(sink: &bus::Status) -> String {
    let state = match sink.state {
        bus::State::Running => "",
        bus::State::Retrying => "retrying, ",
        bus::State::Failed => "failed, ",
    };
    let mut text =
        format!("{}: {state}{} events delivered, {} queued", sink.name, sink.delivered, sink.queued);
    text.push_str(&format!(", {} dropped", sink.dropped));
    if sink.dropped_ends > 0 {
        let jobs = sink.dropped_jobs.join(", ");
        text.push_str(&format!(", among them {} ends of jobs, the last of {jobs}", sink.dropped_ends));
    }
    if let Some(error) = &sink.last_error {
        text.push_str(&format!("; last error: {error}"));
    }
    text
}

/// How forwarding goes. A panic is known only to its lane on the bus.
pub fn sending(forward: Option<&forward::Status>, sinks: &[bus::Status]) -> Option<forward::Status> {
    let mut forward = forward?.clone();
    let is_stopped =
        |sink: &&bus::Status| sink.name == forward::SPEC.name && sink.state != bus::State::Running;
    if forward.last_error.is_none() && forward.spool_error.is_none() {
        forward.last_error = sinks.iter().find(is_stopped).and_then(|lane| lane.last_error.clone());
    }
    Some(forward)
}

/// How batches get to the server.
pub fn sent_to(forward: &forward::Status) -> String {
    let ago = forward.acknowledged_ns.map(|at_ns| (jobs::now_ns() - at_ns).max(0) / 1_000_000_000);
    let mut text = match ago {
        Some(ago) => format!("{} has everything up to {ago} s ago", forward.url),
        None => format!("{} has accepted nothing yet", forward.url),
    };
    if forward.batches_waiting > 0 {
        let bytes = units::bytes(forward.bytes_waiting as f64);
        text.push_str(&format!("; batches queued: {}, {bytes}", forward.batches_waiting));
    }
    if forward.dropped_samples > 0 {
        text.push_str(&format!("; samples dropped: {}", forward.dropped_samples));
    }
    if forward.quarantined_batches > 0 {
        let plural = if forward.quarantined_batches == 1 { "batch is" } else { "batches are" };
        text.push_str(&format!("; {} {plural} quarantined", forward.quarantined_batches));
        if let Some(spool) = &forward.spool {
            text.push_str(&format!(" ({}/*.refused; the daemon's log has the reason)", spool.display()));
        }
    }
    for error in forward.last_error.iter().chain(&forward.spool_error) {
        text.push_str(&format!("; {error}"));
    }
    text
}

fn health_of_sending(forward: &forward::Status) -> Health {
    match (&forward.spool_error, &forward.last_error, forward.acknowledged_ns) {
        (Some(_), ..) => Health::Broken,
        (_, Some(_), _) | (_, _, None) => Health::Less,
        _ if forward.quarantined_batches > 0 => Health::Less,
        _ => Health::Good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_with_too_many_cgroups_are_named() {
        let mut status = DiscoveryStatus::default();
        assert_eq!(left_out(&status), "");
        (status.left_out, status.crowded) = (7, vec!["/cg/a".into()]);
        assert_eq!(left_out(&status), "; 7 cgroups above the limit are not watched in /cg/a");
        status.crowded = (0..5).map(|place| place.to_string().into()).collect();
        assert_eq!(left_out(&status), "; 7 cgroups above the limit are not watched in 0, 1, 2, 2 more");
        // A daemon of an earlier version does not report where.
        status.crowded.clear();
        assert_eq!(left_out(&status), "; 7 cgroups above the limit are not watched");
    }

    #[test]
    fn a_sink_that_drops_is_less_than_good_and_names_what_it_dropped() {
        let mut sink = bus::Status { name: "stdout".into(), delivered: 7, ..bus::Status::default() };
        let reported = |sink: &bus::Status| {
            let finding = of_sink("sink", sink);
            (finding.health.name(), finding.health.cause(), finding.detail)
        };
        assert_eq!(reported(&sink), ("ok", None, "stdout: 7 events delivered, 0 queued, 0 dropped".into()));
        (sink.dropped, sink.dropped_ends, sink.dropped_jobs) = (3, 1, vec!["local:9".into()]);
        let dropped =
            "stdout: 7 events delivered, 0 queued, 3 dropped, among them 1 ends of jobs, the last of local:9";
        assert_eq!(reported(&sink), ("less", None, dropped.into()));
        (sink.state, sink.last_error) = (bus::State::Failed, Some("closed".into()));
        let (health, cause, detail) = reported(&sink);
        assert_eq!((health, cause), ("no", Some("broken")));
        assert!(detail.starts_with("stdout: failed, 7 events") && detail.ends_with("; last error: closed"));
    }

    #[test]
    fn a_scheduler_that_was_not_queried_says_why() {
        let unasked = |jobs| SchedulerStatus { manager: "slurm".to_owned(), jobs, ..Default::default() };
        assert_eq!(scheduler_words(&unasked(Some(0))), "slurm: no jobs to ask about");
        let waiting = scheduler_words(&unasked(Some(1)));
        assert_eq!(waiting, "slurm: not queried yet; the first query is about 1 job");
        let asking = SchedulerStatus { asking: true, ..unasked(Some(2)) };
        assert_eq!(scheduler_words(&asking), "slurm: first query in progress");
        let failed = SchedulerStatus { last_error: Some("down".to_owned()), ..unasked(Some(0)) };
        assert_eq!(scheduler_words(&failed), "slurm did not answer, 0 records; down");
    }

    #[test]
    fn a_forwarder_that_panics_is_not_shown_as_well() {
        let forward = forward::Status { acknowledged_ns: Some(1), ..forward::Status::default() };
        let error = |forward: &forward::Status, state| {
            let last_error = Some("panicked: index out of bounds".to_owned());
            let lane = bus::Status { last_error, state, ..bus::Status::new(forward::SPEC.name) };
            sending(Some(forward), &[lane]).unwrap().last_error
        };
        assert_eq!(error(&forward, bus::State::Running), None, "it has recovered");
        assert_eq!(error(&forward, bus::State::Retrying).unwrap(), "panicked: index out of bounds");
        let away = forward::Status { last_error: Some("away".to_owned()), ..forward };
        assert_eq!(error(&away, bus::State::Retrying).unwrap(), "away");
    }

    #[test]
    fn quarantined_batches_are_less_than_good() {
        let well = forward::Status { acknowledged_ns: Some(1), ..forward::Status::default() };
        assert!(health_of_sending(&well) == Health::Good);
        let refused = forward::Status { quarantined_batches: 1, spool: Some("/s".into()), ..well };
        assert!(health_of_sending(&refused) == Health::Less);
        assert!(
            sent_to(&refused).contains("1 batch is quarantined (/s/*.refused; "),
            "{}",
            sent_to(&refused)
        );
    }
}
