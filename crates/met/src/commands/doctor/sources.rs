//! What the sources of measurements find on this machine, and what energy is known by.

use std::time::Duration;

use met_core::energy::idle::{How, LearnedIdle};
use met_core::gpu::{device, vendor};
use met_core::{Batch, Unparsed};
use met_host::Targets;
use met_sources::{NVIDIA, Options, Runner, SOURCES, Shortfall, SourceSpec, TickInfo, Unavailable, rapl};

use super::{Finding, Health};
use met_agent::idle_power_file;
use met_agent::node_energy;
use met_agent::sampler::{self, METERS, Sampler};
use met_core::units;
use met_query::jobs;
use met_query::protocol::{Status, failing_sources};
use met_query::setting::Setting;

/// A driver without its daemon takes seconds to wake a GPU up.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn sources(setting: &Setting, status: Option<&Status>) -> Vec<Finding> {
    let report = status.map(DaemonReport::of).unwrap_or_default();
    // A source that blocks the daemon would block us, too.
    let left_out = report.left_out.clone();
    let options = Options { node: true, left_out, ..sampler::options(&setting.config, TIMEOUT) };
    let mut runner = Runner::open(&setting.host, &options);
    runner.read(&Targets::default(), &TickInfo::of(true));
    let errors = runner.take_new_errors();
    let shortfalls: Vec<(&'static str, Shortfall)> = runner.shortfalls().collect();
    let finding = |spec: &&'static SourceSpec| {
        let of_source = |(name, _): &&(&'static str, Shortfall)| *name == spec.name;
        if let Some((_, shortfall)) = shortfalls.iter().find(of_source) {
            let (detail, remedy) = (shortfall.detail.clone(), shortfall.remedy.clone());
            return Finding { remedy, ..Finding::new(spec.name, Health::Less, detail) };
        }
        let reason = runner.unavailable().iter().find(|(missing, _)| missing.name == spec.name);
        if let Some(unparsed) = report.unparsed(spec).or_else(|| unparsed_by(&runner, spec)) {
            return unparsed_finding(spec, &unparsed);
        }
        let error = errors.iter().find(|error| error.source == spec.name);
        match (reason, error) {
            (Some((_, reason)), _) => unavailable(spec, reason, &report),
            (None, Some(error)) => {
                failed(spec, &error.message, is_read(&runner, spec), &unread_gpus(&runner, spec))
            }
            (None, None) => report.finding(spec),
        }
    };
    SOURCES.iter().map(finding).collect()
}

fn unparsed_by(runner: &Runner, spec: &SourceSpec) -> Option<Unparsed> {
    runner.unparsed().find(|(name, _)| *name == spec.name).map(|(_, unparsed)| unparsed.clone())
}

/// The kernel prints something else than this program expects.
fn unparsed_finding(spec: &SourceSpec, unparsed: &Unparsed) -> Finding {
    Finding::new(spec.name, Health::Less, format!("{}, but {unparsed}", spec.help))
}

/// Whether anything was read of a source, whatever else went wrong.
fn is_read(runner: &Runner, spec: &SourceSpec) -> bool {
    let is_its = |batch: &Batch| spec.tables.iter().any(|table| std::ptr::eq(*table, batch.table));
    // Two sources fill the GPU tables; the vendor says which it was.
    let is_its_gpu = |labels: &[Vec<String>], part: u32| {
        let maker = labels.get(part as usize).map(|labels| labels[device::label::VENDOR].as_str());
        maker.is_some_and(|maker| (maker == vendor::NVIDIA) == std::ptr::eq(spec, &NVIDIA))
    };
    if spec.tables.iter().any(|table| std::ptr::eq(*table, &device::TABLE)) {
        return runner.labelled().any(|(batches, labels)| {
            let gpus = batches.iter().filter(|batch| std::ptr::eq(batch.table, &device::TABLE));
            gpus.flat_map(Batch::rows).any(|(row, _)| is_its_gpu(labels, row.part))
        });
    }
    runner.batches().iter().any(|batch| is_its(batch) && !batch.is_empty())
}

/// The numbers of NVIDIA's GPUs that cannot be read.
fn unread_gpus(runner: &Runner, spec: &SourceSpec) -> Vec<String> {
    let unread = runner.unread(&device::TABLE).into_iter().map(|unread| unread.labels);
    let of_nvidia = unread
        .filter(|labels| std::ptr::eq(spec, &NVIDIA) && labels[device::label::VENDOR] == vendor::NVIDIA);
    of_nvidia.map(|labels| labels[device::label::INDEX].clone()).collect()
}

/// A source of which a reading went wrong: one GPU of several is less than all, and not nothing.
fn failed(spec: &SourceSpec, message: &str, is_read: bool, gpus: &[String]) -> Finding {
    let health = if is_read { Health::Less } else { Health::Broken };
    let remedy = (!gpus.is_empty()).then(|| {
        let numbers = gpus.join(",");
        format!("sudo nvidia-smi --gpu-reset -i {numbers}    (while the GPU is not in use; otherwise reboot)")
    });
    Finding { remedy, ..Finding::new(spec.name, health, format!("{}, but: {message}", spec.help)) }
}

/// A source that this machine does not have, or does not show.
fn unavailable(spec: &SourceSpec, reason: &Unavailable, report: &DaemonReport) -> Finding {
    let finding = |health, detail: &str| Finding::new(spec.name, health, detail);
    match reason {
        Unavailable::Broken(why) => finding(Health::Broken, why),
        Unavailable::Absent(why) => finding(Health::Absent, why),
        Unavailable::Unset { what, enable } => finding(Health::Unset, what).remedied_by(*enable),
        Unavailable::Denied { .. } if report.reads(spec.name) => report.finding_of_its_own(spec),
        Unavailable::Denied { path, need } => {
            finding(Health::Denied, &format!("no permission to read {path}")).remedied_by(*need)
        }
        Unavailable::Hangs => Finding {
            remedy: report.try_again.clone(),
            ..finding(Health::Broken, &format!("{}, but: {reason}", spec.help))
        },
    }
}

/// What the daemon that runs says of its sources.
#[derive(Default)]
struct DaemonReport {
    /// What went wrong last in each of them.
    errors: Vec<(String, String)>,
    unparsed: Vec<(String, Unparsed)>,
    /// Those that it no longer reads, because they blocked it.
    left_out: Vec<&'static str>,
    /// The command that makes it try these again.
    try_again: Option<String>,
    /// Those that it has opened.
    opened: Vec<String>,
}

impl DaemonReport {
    fn unparsed(&self, spec: &SourceSpec) -> Option<Unparsed> {
        self.unparsed.iter().find(|(name, _)| name == spec.name).map(|(_, unparsed)| unparsed.clone())
    }

    /// Of a source that we could read ourselves.
    fn finding(&self, spec: &SourceSpec) -> Finding {
        let error = self.errors.iter().find(|(name, _)| name == spec.name);
        match error {
            Some((_, error)) => {
                Finding::new(spec.name, Health::Less, format!("{}; the daemon reports: {error}", spec.help))
            }
            None => Finding::new(spec.name, Health::Good, spec.help),
        }
    }

    /// Whether the daemon reads a source, with its permissions.
    fn reads(&self, name: &str) -> bool {
        self.opened.iter().any(|opened| opened == name) && !self.left_out.contains(&name)
    }

    /// Of a source that only the daemon may read.
    fn finding_of_its_own(&self, spec: &SourceSpec) -> Finding {
        let finding = self.finding(spec);
        Finding { detail: format!("{} (read by the daemon)", finding.detail), ..finding }
    }

    fn of(status: &Status) -> DaemonReport {
        let is_left_out =
            |name: &str| status.sources.iter().any(|source| source.left_out && source.name == name);
        let sudo = if status.system { "sudo " } else { "" };
        DaemonReport {
            left_out: SOURCES.iter().map(|spec| spec.name).filter(|name| is_left_out(name)).collect(),
            opened: status.sources.iter().map(|source| source.name.clone()).collect(),
            try_again: Some(format!("{sudo}kill -HUP {}    (once it answers again)", status.pid)),
            unparsed: (status.sources.iter())
                .filter(|source| source.unparsed > 0)
                .map(|source| (source.name.clone(), source.unparsed()))
                .collect(),
            errors: (failing_sources(&status.sources).into_iter())
                .map(|failing| (failing.source.clone(), failing.what(jobs::now_ns())))
                .collect(),
        }
    }
}

/// What jobs are charged energy by: a meter, or an estimate and what would give a meter.
pub(super) fn energy(setting: &Setting, status: Option<&Status>) -> Vec<Finding> {
    let report = status.map(DaemonReport::of).unwrap_or_default();
    let left_out = report.left_out.clone();
    let only = Some(&METERS[..]);
    let options = Options { node: true, only, left_out, ..sampler::options(&setting.config, TIMEOUT) };
    let mut sampler = Sampler::with(setting.host.clone(), Duration::from_secs(1), &setting.config, &options);
    sampler.look();
    let meters = sampler.energy().meters();
    if !meters.is_empty() {
        let detail = format!("job energy is derived from {}", meters.join(", "));
        return vec![Finding::new("energy", Health::Good, detail), idle_power(setting, status)];
    }
    let is_denied = |reason: &Unavailable| matches!(reason, Unavailable::Denied { .. });
    let of_daemon: Vec<&str> = (sampler.unavailable().iter())
        .filter(|(spec, reason)| is_denied(reason) && report.reads(spec.name))
        .map(|(spec, _)| spec.name)
        .collect();
    if !of_daemon.is_empty() {
        let detail = format!("job energy is derived from {}, read by the daemon", of_daemon.join(", "));
        return vec![Finding::new("energy", Health::Good, detail), idle_power(setting, status)];
    }
    let denied = sampler.unavailable().iter().find_map(|(spec, reason)| match reason {
        Unavailable::Denied { path, .. } if std::ptr::eq(*spec, &rapl::SPEC) => Some(path),
        _ => None,
    });
    let remedy = match denied {
        Some(_) => "sudo chmod a+r /sys/class/powercap/*/energy_uj",
        None if node_energy::machine(&setting.host).1 => {
            "a virtual machine has no meter: name its host's controller in met.yaml, sources.redfish.url"
        }
        None => "sudo modprobe intel_rapl_msr; sudo modprobe -a ipmi_si ipmi_devintf",
    };
    let detail = format!("no meter: estimated from load, {} and memory", sampler.energy().estimated_by());
    vec![Finding::new("energy", Health::Less, detail).remedied_by(remedy)]
}

/// Idle power: configured, learned, or not known yet.
fn idle_power(setting: &Setting, status: Option<&Status>) -> Finding {
    let reported = status.map(|status| status.idle.clone()).filter(|idle| !idle.is_empty());
    let learned = reported.unwrap_or_else(|| idle_power_file::known(setting));
    idle_finding(setting.config.energy.idle_watts, &learned, jobs::now_ns())
}

fn idle_finding(configured_watts: Option<f64>, learned: &[LearnedIdle], now_ns: i64) -> Finding {
    let finding = |health, detail| Finding::new("idle power", health, detail);
    if let Some(watts) = configured_watts {
        return finding(Health::Good, format!("{}, configured", units::watts(watts)));
    }
    if learned.is_empty() {
        let detail = "unknown, so it is estimated; a daemon learns it while no job runs".to_owned();
        return finding(Health::Less, detail).remedied_by("energy: {idle_power: WATTS}    (in met.yaml)");
    }
    let words = |learned: &LearnedIdle| {
        let how = match learned.how {
            How::Quiet => "seen at rest",
            How::TwoLoads => "by two loads",
        };
        let ago = units::duration((now_ns - learned.at_ns).max(0) as f64 / 1e9);
        format!("{} by {}, {how} {ago} ago", units::watts(learned.total_mw() as f64 / 1e3), learned.meters)
    };
    finding(Health::Good, learned.iter().map(words).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::node_health::FailingSource;
    use met_query::protocol::SourceStatus;

    #[test]
    fn what_keeps_the_daemon_is_left_out_here_and_said_with_what_to_do() {
        let hung = SourceStatus {
            left_out: true,
            last_error: Some("hangs".to_owned()),
            ..SourceStatus::unread("rapl")
        };
        let failing = FailingSource { problem: "no card".to_owned(), ..FailingSource::of("drm") };
        let failed = SourceStatus { failing: Some(failing), ..SourceStatus::unread("drm") };
        let status = |system: bool| Status {
            pid: 7,
            version: String::new(),
            system,
            jobs: 0,
            interval_ms: 1000,
            ladder: None,
            state: "/".into(),
            sources: vec![hung.clone(), failed.clone()],
            dropped_samples: Some(0),
            schedulers: Vec::new(),
            discovery: None,
            ledger: None,
            idle: Vec::new(),
            forward: None,
            sinks: Vec::new(),
            http: None,
            configure: None,
            samples_refused: 0,
        };
        let report = DaemonReport::of(&status(true));
        assert_eq!(report.left_out, ["rapl"]);
        let of = |name: &str| *SOURCES.iter().find(|spec| spec.name == name).unwrap();
        let rapl = unavailable(of("rapl"), &Unavailable::Hangs, &report);
        assert_eq!((rapl.health.name(), rapl.health.cause()), ("no", Some("broken")));
        assert!(rapl.detail.ends_with("reading it did not return; source disabled"), "{}", rapl.detail);
        assert!(rapl.remedy.unwrap().starts_with("sudo kill -HUP 7 "));
        assert!(DaemonReport::of(&status(false)).try_again.unwrap().starts_with("kill -HUP 7 "));
        assert!(report.finding(of("drm")).detail.ends_with("the daemon reports: no card"));
        // What only the daemon may read needs no other daemon.
        let denied = || Unavailable::Denied { path: "x".to_owned(), need: "sudo met daemon" };
        let drm = unavailable(of("drm"), &denied(), &report);
        assert_eq!((drm.health.name(), drm.remedy), ("less", None));
        assert!(drm.detail.ends_with("no card (read by the daemon)"), "{}", drm.detail);
        let denied_to_both =
            [unavailable(of("rapl"), &denied(), &report), unavailable(of("ipmi"), &denied(), &report)];
        assert!(denied_to_both.iter().all(|finding| finding.remedy.as_deref() == Some("sudo met daemon")));
    }

    #[test]
    fn readings_that_cannot_be_parsed_are_counted_and_the_first_is_named() {
        let root = tempfile::tempdir().unwrap();
        let zone = root.path().join("sys/class/powercap/intel-rapl:0");
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        std::fs::create_dir_all(&zone).unwrap();
        std::fs::write(zone.join("name"), "package-0\n").unwrap();
        std::fs::write(zone.join("energy_uj"), "12 J\n").unwrap();
        let options = Options { node: true, only: Some(&["rapl"]), ..Options::default() };
        let mut runner = Runner::open(&met_host::Host::at(root.path()).unwrap(), &options);
        runner.read(&Targets::default(), &TickInfo::default());
        let rapl = *SOURCES.iter().find(|spec| spec.name == "rapl").unwrap();
        let finding = unparsed_finding(rapl, &unparsed_by(&runner, rapl).unwrap());
        let first = "/sys/class/powercap/intel-rapl:0/energy_uj";
        let end = format!(", but 1 reading could not be parsed (first: {first})");
        assert_eq!(finding.health.name(), "less");
        assert!(finding.detail.ends_with(&end), "{}", finding.detail);
    }

    #[test]
    fn a_source_that_is_read_in_part_is_less_and_not_nothing() {
        let of = |name: &str| *SOURCES.iter().find(|spec| spec.name == name).unwrap();
        let message = "NVML, GPU 1: device fell off the bus";
        let part = failed(of("nvidia"), message, true, &["1".to_owned()]);
        assert_eq!(part.health.name(), "less");
        assert!(part.detail.ends_with(&format!(", but: {message}")), "{}", part.detail);
        assert!(part.remedy.unwrap().starts_with("sudo nvidia-smi --gpu-reset -i 1 "));
        assert_eq!(failed(of("nvidia"), "no memory", true, &[]).remedy, None, "a reset does not help");
        let none = failed(of("ipmi"), "no answer", false, &[]);
        assert_eq!((none.health.name(), none.health.cause(), none.remedy), ("no", Some("broken"), None));
    }

    #[test]
    fn what_is_known_of_idle_power_is_said() {
        let second = 1_000_000_000;
        let learned = LearnedIdle {
            meters: "IPMI, processors".into(),
            idle_mw: [40_000, 0, 0, 80_000],
            how: How::Quiet,
            at_ns: 0,
        };
        let said = |configured, learned: &[LearnedIdle]| {
            let finding = idle_finding(configured, learned, 7200 * second);
            (finding.health.name(), finding.detail, finding.remedy.is_some())
        };
        let known = "120 W by IPMI, processors, seen at rest 2h00m ago".to_owned();
        assert_eq!(said(None, std::slice::from_ref(&learned)), ("ok", known, false));
        assert_eq!(said(Some(90.0), &[learned]), ("ok", "90.0 W, configured".to_owned(), false));
        let (health, detail, has_remedy) = said(None, &[]);
        assert!(health == "less" && detail.contains("unknown, so it is estimated") && has_remedy);
    }
}
