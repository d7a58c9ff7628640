//! What holds in a running daemon: its file, and on top of that what was changed live, for good or for a job.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use met_core::cadence::Ladder;
use met_core::job::JobKey;
use met_host::clock;
use met_sinks::event;
use met_sources::Options;

use super::sampler_thread::Sampling;
use super::service::{Left, OnEnd};
use crate::sampler::{self, EventsAsked};
use met_config::{Config, Presence};
use met_query::protocol::{ConfigFile, Held, InForce, ValueOrigin};
use met_query::setting::Setting;

/// Between two looks at the file.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// A file that was written this recently may be incomplete.
const SETTLED_AFTER: Duration = Duration::from_millis(200);

pub struct LiveSettings {
    /// As it holds: the file's, and live changes.
    pub(super) config: Config,
    file: Config,
    read: ConfigFile,
    /// Every user may read that file.
    is_public: bool,
    /// What of that file a new daemon will follow.
    after_restart: Vec<&'static str>,
    /// What is wrong with the file since it was last read.
    refused: Option<String>,
    watch: FileWatch,
    /// When the events of the file were changed under running jobs, in nanoseconds of CLOCK_BOOTTIME.
    file_events_since_ns: Option<i64>,
    /// The last one holds.
    intervals: Vec<(Reach, Duration)>,
    /// Those for a job hold in that job alone; of the others the last one holds.
    events: Vec<LiveEvents>,
}

/// How long a live change holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Daemon,
    /// Until any job ends.
    NextEnd,
    Job(JobKey),
}

impl Reach {
    fn job(&self) -> Option<&JobKey> {
        match self {
            Reach::Job(key) => Some(key),
            Reach::Daemon | Reach::NextEnd => None,
        }
    }
}

struct LiveEvents {
    reach: Reach,
    names: Vec<String>,
    /// Nanoseconds of CLOCK_BOOTTIME.
    since_ns: i64,
}

impl LiveSettings {
    pub fn of(setting: &Setting) -> LiveSettings {
        let (path, text) = (setting.config_path.clone(), setting.config_text.clone());
        LiveSettings::of_file(setting.config.clone(), ConfigFile { path, text })
    }

    fn of_file(file: Config, read: ConfigFile) -> LiveSettings {
        LiveSettings {
            config: file.clone(),
            file,
            watch: FileWatch::of(read.path.as_deref()),
            is_public: is_public(read.path.as_deref()),
            read,
            after_restart: Vec::new(),
            refused: None,
            file_events_since_ns: None,
            intervals: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Whether the file was changed since it was read, or one was written where there was none.
    pub(super) fn is_file_changed(&mut self, now: Instant) -> bool {
        self.watch.is_changed(self.read.path.as_deref(), now)
    }

    /// A later change of the same reach replaces an earlier one.
    pub(super) fn hold(&mut self, reach: &Reach, interval: Option<Duration>, events: Option<Vec<String>>) {
        if let Some(interval) = interval {
            self.intervals.retain(|(known, _)| known != reach);
            self.intervals.push((reach.clone(), interval));
        }
        if let Some(names) = events {
            self.events.retain(|known| known.reach != *reach);
            self.events.push(LiveEvents { reach: reach.clone(), names, since_ns: clock::boottime_ns() });
        }
    }

    /// Takes back what was changed: for a job, or without one all of it. Whether there was anything.
    pub(super) fn revert(&mut self, job: Option<&JobKey>) -> bool {
        self.keep(|reach| job.is_some() && reach.job() != job)
    }

    /// Takes back what was changed until this job, or any, ends. Whether there was anything.
    fn revert_until_end(&mut self, key: &JobKey) -> bool {
        self.keep(|reach| *reach != Reach::NextEnd && reach.job() != Some(key))
    }

    /// Whether anything was taken back.
    fn keep(&mut self, stays: impl Fn(&Reach) -> bool) -> bool {
        let before = self.intervals.len() + self.events.len();
        self.intervals.retain(|(reach, _)| stays(reach));
        self.events.retain(|known| stays(&known.reach));
        before != self.intervals.len() + self.events.len()
    }

    /// How jobs are sampled: by the file, or all by the interval that was set last.
    fn sampling(&self) -> met_config::Sampling {
        let file = self.file.sampling.clone();
        match self.intervals.last() {
            Some(&(_, interval)) => {
                met_config::Sampling { interval: Some(interval), managers: Vec::new(), ..file }
            }
            None => file,
        }
    }

    fn events_for_all(&self) -> &[String] {
        self.live_for_all().map_or(&self.file.perf.events, |live| &live.names)
    }

    fn live_for_all(&self) -> Option<&LiveEvents> {
        self.events.iter().rev().find(|live| live.reach.job().is_none())
    }

    fn asked(&self) -> EventsAsked {
        let mut asked = match self.live_for_all() {
            Some(live) => EventsAsked::live(&live.names, live.since_ns),
            None => match self.file_events_since_ns {
                Some(since_ns) => EventsAsked::live(&self.file.perf.events, since_ns),
                None => EventsAsked::of_file(&self.file.perf.events),
            },
        };
        for live in &self.events {
            if let Some(key) = live.reach.job() {
                asked.instead(key.clone(), &live.names);
            }
        }
        asked
    }

    /// What holds for all jobs.
    pub(super) fn for_sinks(&self) -> event::Sampling {
        let interval = self.config.sampling.shortest();
        event::Sampling { interval, events: self.events_for_all().to_vec() }
    }

    pub(super) fn asks_for_events(&self) -> bool {
        !self.all_events().is_empty()
    }

    /// Whether events are to be counted in a job.
    pub(super) fn asks_for_events_of(&self, key: &JobKey) -> bool {
        match self.events.iter().find(|live| live.reach.job() == Some(key)) {
            Some(live) => !live.names.is_empty(),
            None => !self.events_for_all().is_empty(),
        }
    }

    /// Every event that is to be counted somewhere.
    pub(super) fn all_events(&self) -> Vec<String> {
        let of_jobs =
            self.events.iter().filter(|live| live.reach.job().is_some()).flat_map(|live| &live.names);
        let mut all: Vec<String> = self.events_for_all().iter().chain(of_jobs).cloned().collect();
        all.sort();
        all.dedup();
        all
    }

    fn by_file<T: PartialEq>(&self, of: fn(&Config) -> T) -> Held<T> {
        let (value, default) = (of(&self.file), of(&Config::default()));
        let origin = match &self.read.path {
            Some(path) if value != default => ValueOrigin::File(path.clone()),
            _ => ValueOrigin::Default,
        };
        Held { value, origin }
    }

    fn interval_by_file(&self) -> Held<Duration> {
        let by_file = self.by_file(|config| config.sampling.cadence());
        Held { value: by_file.value.shortest(), origin: by_file.origin }
    }

    /// The current values and those that follow. Clients that may not see all jobs do not get their ids.
    pub(super) fn in_force(&self, shows_jobs: bool) -> InForce {
        let origin = |reach: &Reach| match reach {
            Reach::Daemon => ValueOrigin::Live,
            Reach::NextEnd => ValueOrigin::Job(None),
            Reach::Job(key) => ValueOrigin::Job(shows_jobs.then(|| format!("{}:{}", key.manager, key.id))),
        };
        let held = |(reach, value): &(Reach, Duration)| Held { value: *value, origin: origin(reach) };
        let intervals = self.intervals.iter().rev().map(held);
        let live = |live: &LiveEvents| Held { value: live.names.clone(), origin: origin(&live.reach) };
        let (in_jobs, for_all): (Vec<_>, Vec<_>) =
            self.events.iter().partition(|live| live.reach.job().is_some());
        let file_events = Some(self.by_file(|config| config.perf.events.clone()));
        InForce {
            intervals: intervals.chain([self.interval_by_file()]).collect(),
            ladder: Some(self.file.sampling.cadence().ladder())
                .filter(|ladder| !ladder.is_fixed())
                .map(Ladder::to_string),
            events: for_all.into_iter().rev().map(live).chain(file_events).collect(),
            events_in_jobs: in_jobs.into_iter().map(live).collect(),
            note: None,
            file: None,
            after_restart: self.after_restart.iter().map(|&name| name.to_owned()).collect(),
            factor: None,
            http_refused: None,
            file_refused: None,
        }
    }

    pub(super) fn file(&self) -> ConfigFile {
        self.read.clone()
    }

    /// Why the file is not followed as it is now.
    pub(super) fn refused(&self) -> Option<String> {
        self.refused.clone()
    }

    pub(super) fn is_file_public(&self) -> bool {
        self.is_public
    }

    /// Updates the interval of the sampler; `set_events` updates the events.
    pub(super) fn settle(&mut self, sampling: &Sampling) {
        let before = self.config.sampling.cadence();
        self.config.sampling = self.sampling();
        let cadence = self.config.sampling.cadence();
        if cadence != before {
            sampling.set_cadence(cadence);
        }
        self.config.perf.events = self.events_for_all().to_vec();
    }

    /// Brings the events of the sampler in line; says what cannot be counted.
    pub(super) fn set_events(&self, sampling: &Sampling) -> Option<String> {
        sampling.set_events(self.asked(), self.options_of_events())
    }

    /// Sends it to a sampler that knows only what holds for all.
    pub(super) fn send_events(&self, sampling: &Sampling) {
        sampling.send_events(self.asked(), self.options_of_events());
    }

    fn options_of_events(&self) -> Options {
        let mut options = Options { node: true, ..sampler::options(&self.config, Duration::ZERO) };
        options.events.extend(self.all_events());
        options.events.sort();
        options.events.dedup();
        options
    }

    /// Reads the file again, and returns its name and what held before. A bad one changes nothing.
    pub(super) fn reread(&mut self, sampling: &Sampling) -> Option<(String, Config)> {
        // A file that was not named may be removed: the next one holds, or the defaults do.
        let usual = Config::usual_files();
        let named = self.read.path.as_deref().filter(|path| !usual.iter().any(|one| one == path));
        // Before it is read: a change meanwhile is found by the next look.
        let watched = watched(named);
        self.watch = FileWatch::seen(watched.iter().map(|(_, stamp)| *stamp).collect());
        let loaded = match Config::load(named) {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::error!("the configuration is not changed: {error}");
                self.refused = Some(error.to_string());
                return None;
            }
        };
        let name = loaded.path.as_ref().map_or("no file".to_owned(), |path| path.display().to_string());
        if let Some(found) = &loaded.path {
            let stamp = watched.into_iter().find(|(path, _)| path == found).and_then(|(_, stamp)| stamp);
            self.watch = FileWatch::seen(vec![stamp]);
        }
        let (config, fixed) = changeable(&self.file, loaded.config);
        if !fixed.is_empty() {
            let fixed = fixed.join(", ");
            tracing::warn!("{name}: {fixed}: a new daemon takes this up; `met daemon --stop` ends this one");
        }
        (self.after_restart, self.refused) = (fixed, None);
        self.is_public = is_public(loaded.path.as_deref());
        self.read = ConfigFile { path: loaded.path, text: loaded.text };
        let before = self.replace_file(config.clone());
        let (sampled, events) = (self.config.sampling.clone(), self.config.perf.events.clone());
        self.config = config;
        // Until they are settled, the sampler has these.
        let met_config::Sampling { interval, ladder, managers, .. } = sampled;
        let own = &mut self.config.sampling;
        (own.interval, own.ladder, own.managers) = (interval, ladder, managers);
        self.config.perf.events = events;
        sampling.reconfigure(before.clone(), self.config.clone());
        Some((name, before))
    }

    /// Supervisors of running jobs count the events of the file as it was when their job began.
    fn replace_file(&mut self, file: Config) -> Config {
        if file.perf.events != self.file.perf.events {
            self.file_events_since_ns = Some(clock::boottime_ns());
        }
        std::mem::replace(&mut self.file, file)
    }

    /// Whether the series of the machine is kept.
    pub(super) fn keeps_node(&self, system: bool) -> bool {
        match self.config.storage.node_series {
            Presence::Auto => system,
            Presence::Yes => true,
            Presence::No => false,
        }
    }

    /// Samples go to disk this often: a killed daemon loses no more. `within`: how long sinks wait at most.
    pub(super) fn flush_every(&self, within: Option<Duration>) -> Duration {
        let sampling = &self.config.sampling;
        let by_size = sampling
            .buffer_samples
            .map(|samples| sampling.shortest().saturating_mul(samples.min(100_000) as u32));
        let nvidia = &self.config.nvidia;
        let of_gpus = nvidia.size.map(|samples| {
            nvidia.interval.unwrap_or(sampling.shortest()).saturating_mul(samples.min(100_000) as u32)
        });
        let by_size = by_size.into_iter().chain(of_gpus).min();
        let every = self.config.storage.flush_interval;
        let every = within.map_or(every, |within| every.min(within));
        by_size.map_or(every, |by_size| every.min(by_size)).max(Duration::from_millis(100))
    }
}

/// Notices that a file was changed, replaced, written or removed.
struct FileWatch {
    seen: Vec<Option<Stamp>>,
    looked: Instant,
}

/// Inode, size and time of the last change.
type Stamp = (u64, u64, i64, i64);

impl FileWatch {
    fn of(path: Option<&Path>) -> FileWatch {
        FileWatch::seen(stamps(path))
    }

    fn seen(seen: Vec<Option<Stamp>>) -> FileWatch {
        FileWatch { seen, looked: Instant::now() }
    }

    /// Looks at most once a second, and waits until the file is no longer being written.
    fn is_changed(&mut self, path: Option<&Path>, now: Instant) -> bool {
        if now < self.looked + WATCH_EVERY {
            return false;
        }
        let stamps = stamps(path);
        let settled_ns = clock::realtime_ns() - SETTLED_AFTER.as_nanos() as i64;
        let is_fresh = |(_, _, s, ns): &Stamp| {
            let written_ns = s.saturating_mul(1_000_000_000).saturating_add(*ns);
            (settled_ns..settled_ns + 2 * SETTLED_AFTER.as_nanos() as i64).contains(&written_ns)
        };
        if stamps.iter().flatten().any(is_fresh) {
            return false;
        }
        self.looked = now;
        stamps != self.seen
    }
}

/// Whether every user may read a file; there is nothing to hide where there is none.
fn is_public(path: Option<&Path>) -> bool {
    const OTHERS_READ: u32 = 0o004;
    const OTHERS_SEARCH: u32 = 0o001;
    let Some(path) = path.map(|path| path.canonicalize()) else { return true };
    let may = |path: &Path, bit: u32| path.metadata().is_ok_and(|found| found.mode() & bit != 0);
    path.is_ok_and(|path| {
        may(&path, OTHERS_READ) && path.ancestors().skip(1).all(|folder| may(folder, OTHERS_SEARCH))
    })
}

/// The file, or those that would be read if they were there.
fn watched(path: Option<&Path>) -> Vec<(PathBuf, Option<Stamp>)> {
    let stamp = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
    };
    let files = path.map_or_else(Config::usual_files, |path| vec![path.to_owned()]);
    files.into_iter().map(|path| (path.clone(), stamp(&path))).collect()
}

fn stamps(path: Option<&Path>) -> Vec<Option<Stamp>> {
    watched(path).into_iter().map(|(_, stamp)| stamp).collect()
}

/// The new file as far as a running daemon can follow it, and the names of the rest.
fn changeable(before: &Config, mut new: Config) -> (Config, Vec<&'static str>) {
    let mut fixed = Vec::new();
    let mut keep = |differs: bool, name: &'static str| fixed.extend(differs.then_some(name));
    keep(new.jobs != before.jobs, "jobs");
    keep(new.system != before.system, "system");
    keep(new.storage.name != before.storage.name, "storage.name");
    keep(new.gpu.nvml != before.gpu.nvml, "gpu.nvml");
    keep(new.http != before.http, "http");
    keep(new.login != before.login, "login");
    keep(new.forward != before.forward, "forward");
    keep(new.sinks != before.sinks, "sinks");
    keep(new.colmet.configure != before.colmet.configure, "colmet.configure");
    new.jobs = before.jobs.clone();
    new.system = before.system.clone();
    new.storage.name = before.storage.name;
    new.gpu.nvml.clone_from(&before.gpu.nvml);
    new.http = before.http.clone();
    new.login = before.login.clone();
    new.forward = before.forward.clone();
    new.sinks.clone_from(&before.sinks);
    new.colmet.configure.clone_from(&before.colmet.configure);
    (new, fixed)
}

impl OnEnd for LiveSettings {
    fn job_left(&mut self, left: &mut Left<'_>) {
        let key = &left.record.key;
        left.follows.settings_reverted = self.revert_until_end(key);
        if left.follows.settings_reverted {
            tracing::info!("job {} has ended; temporary settings are removed", key.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(yaml: &str) -> LiveSettings {
        let path = PathBuf::from("met.yaml");
        let file = Config::parse(yaml, &path).unwrap();
        LiveSettings::of_file(file, ConfigFile { path: Some(path), text: yaml.to_owned() })
    }

    fn key(id: &str) -> JobKey {
        JobKey { cluster: None, manager: "slurm".to_owned(), id: id.to_owned(), incarnation: 0 }
    }

    fn names(names: &[&str]) -> Option<Vec<String>> {
        Some(names.iter().map(|&name| name.to_owned()).collect())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn samples_are_written_before_more_of_them_are_buffered_than_were_chosen() {
        let every = |yaml: &str| overrides(yaml).flush_every(None);
        assert_eq!(every("storage: {interval: 1m}\n"), 60 * SECOND);
        assert_eq!(every("storage: {interval: 1m}\ncpuCollector: {interval: 2s, size: 10}\n"), 20 * SECOND);
        let of_gpus = "storage: {interval: 1m}\nnvidiaCollector: {interval: 0.5s, size: 10}\n";
        assert_eq!(every(of_gpus), 5 * SECOND);
        let both = format!("{of_gpus}cpuCollector: {{interval: 1s, size: 3}}\n");
        assert_eq!(every(&both), 3 * SECOND);
    }

    #[test]
    fn what_holds_until_a_job_ends_is_taken_back_at_the_first_end() {
        let mut overrides = overrides("sampling: {interval: 5s}\n");
        overrides.hold(&Reach::Daemon, None, names(&["task_clock"]));
        overrides.hold(&Reach::NextEnd, Some(SECOND), names(&["page_faults", "cpu_clock"]));
        assert_eq!(overrides.sampling().interval, Some(SECOND));
        assert_eq!(overrides.events_for_all(), ["page_faults", "cpu_clock"]);
        let held = overrides.in_force(true);
        assert_eq!(
            (&held.intervals[0].origin, &held.events[0].origin),
            (&ValueOrigin::Job(None), &ValueOrigin::Job(None))
        );
        assert!(held.events_in_jobs.is_empty());
        assert!(!overrides.revert(Some(&key("12"))), "it is no change of that job");
        assert!(overrides.revert_until_end(&key("12")));
        assert_eq!(overrides.sampling().interval, Some(5 * SECOND));
        assert_eq!(overrides.events_for_all(), ["task_clock"]);
        assert!(!overrides.revert_until_end(&key("13")));
    }

    #[test]
    fn what_was_changed_for_a_job_ends_with_it_and_uncovers_what_was_before() {
        let mut overrides = overrides("sampling: {interval: 5s}\n");
        overrides.hold(&Reach::Daemon, Some(4 * SECOND), None);
        overrides.hold(&Reach::Job(key("12")), Some(SECOND), names(&["page_faults"]));
        overrides.hold(&Reach::Job(key("13")), Some(2 * SECOND), None);
        assert_eq!(overrides.sampling().shortest(), 2 * SECOND);
        assert!(overrides.revert(Some(&key("13"))));
        assert_eq!(overrides.sampling().shortest(), SECOND);
        assert_eq!(overrides.all_events(), ["page_faults"]);
        assert!(overrides.events_for_all().is_empty(), "only in its job");
        assert!(overrides.revert(Some(&key("12"))));
        assert_eq!((overrides.sampling().shortest(), overrides.all_events()), (4 * SECOND, Vec::new()));
        assert!(!overrides.revert(Some(&key("12"))), "nothing is left of it");
        assert!(overrides.revert(None));
        assert_eq!(overrides.sampling().shortest(), 5 * SECOND);
    }

    #[test]
    fn events_alone_leave_a_jobs_period_in_force() {
        let mut overrides = overrides("perf: {events: task_clock}\n");
        overrides.hold(&Reach::Daemon, Some(3 * SECOND), None);
        overrides.hold(&Reach::Job(key("12")), Some(2 * SECOND), None);
        overrides.hold(&Reach::Daemon, None, names(&["page_faults", "context_switches"]));
        assert_eq!(overrides.sampling().shortest(), 2 * SECOND);
        assert_eq!(overrides.events_for_all(), ["page_faults", "context_switches"]);
        overrides.hold(&Reach::Daemon, None, names(&[]));
        assert!(overrides.events_for_all().is_empty(), "nothing is asked for, whatever the file says");
        overrides.revert(None);
        assert_eq!(overrides.events_for_all(), ["task_clock"]);
    }

    #[test]
    fn events_of_a_changed_file_are_asked_for_in_jobs_that_run_with_a_supervisor() {
        let mut overrides = overrides("sampling: {interval: 5s}\n");
        let born_ns = clock::boottime_ns();
        let in_running = |overrides: &LiveSettings, born_ns: i64| {
            overrides.asked().of_job(&key("12"), born_ns, true).map(|names| names.to_vec())
        };
        assert_eq!(in_running(&overrides, born_ns), None);
        let parse = |yaml: &str| Config::parse(yaml, Path::new("met.yaml")).unwrap();
        overrides.replace_file(parse("sampling: {interval: 2s}\nperf: {events: [page_faults]}\n"));
        assert_eq!(in_running(&overrides, born_ns), names(&["page_faults"]));
        assert_eq!(
            in_running(&overrides, i64::MAX),
            None,
            "the supervisor of a later job counts them itself"
        );
        overrides.replace_file(parse("sampling: {interval: 1s}\nperf: {events: [page_faults]}\n"));
        assert_eq!(in_running(&overrides, born_ns), names(&["page_faults"]), "unchanged: still asked for");
    }

    #[test]
    fn settings_have_their_origin_and_until_when_they_apply() {
        let mut overrides = overrides("sampling: {interval: 5s}\n");
        overrides.hold(&Reach::Job(key("12")), Some(SECOND), names(&["page_faults"]));
        let in_force = overrides.in_force(true);
        let file = ValueOrigin::File(PathBuf::from("met.yaml"));
        let by_job = ValueOrigin::Job(Some("slurm:12".to_owned()));
        let intervals: Vec<_> =
            in_force.intervals.into_iter().map(|held| (held.value, held.origin)).collect();
        assert_eq!(intervals, [(SECOND, by_job.clone()), (5 * SECOND, file)]);
        assert_eq!(in_force.events, [Held { value: Vec::new(), origin: ValueOrigin::Default }]);
        assert_eq!(in_force.events_in_jobs, [Held { value: vec!["page_faults".to_owned()], origin: by_job }]);
        assert_eq!(
            overrides.in_force(false).intervals[0].origin,
            ValueOrigin::Job(None),
            "not for everybody"
        );
    }

    #[test]
    fn what_only_a_new_daemon_takes_up_is_named_and_kept() {
        let before = Config::default();
        let yaml = "sampling: {interval: 2s}\nstorage: {name: memory, keep: 7d}\njobs: {discover: false}\n\
            forward: {url: \"https://server:9200\"}\nsinks: [stdout: {format: csv}]\n";
        let new = Config::parse(yaml, Path::new("met.yaml")).unwrap();
        let (config, fixed) = changeable(&before, new);
        assert_eq!(fixed, ["jobs", "storage.name", "forward", "sinks"]);
        assert!(config.sinks.is_empty(), "the bus that runs has none");
        assert_eq!((config.jobs, config.storage.name), (before.jobs, before.storage.name));
        assert_eq!(config.sampling.interval, Some(2 * SECOND));
        assert_eq!(config.storage.keep, Duration::from_secs(7 * 86_400));
    }
}
