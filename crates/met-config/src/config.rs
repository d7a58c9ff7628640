//! The configuration: one YAML file, every key optional.

mod apply;
mod current;
mod form;
mod keys;
mod sinks;
mod sources;
mod store;
mod systems;
mod tree;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use current::{Current, current};
pub use form::{events_in, interval};
use met_core::Selection;
use met_core::cadence::{Cadence, Ladder};
use met_core::energy::emission;
use met_core::gpu_idle_power::IdleRules;
use met_core::job::LOCAL;
use met_core::managers::{self, Scheduler};
use met_host::Address;
use met_jobs::cgroup_layouts::Layout;
use met_sinks::shown_jobs::Contents;
pub use systems::KnownSystem;

use met_host::{text_file, trusted};

/// The machine's file.
pub const MACHINE_FILE: &str = "/etc/met/met.yaml";

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub sampling: Sampling,
    pub daemon: Daemon,
    pub storage: Storage,
    pub node: Node,
    pub store: store::Store,
    pub jobs: Jobs,
    pub system: System,
    pub gpu: Gpu,
    pub schedulers: Schedulers,
    pub perf: Perf,
    pub energy: Energy,
    pub emissions: Emissions,
    pub http: Http,
    pub login: Login,
    pub forward: Forward,
    pub server: Server,
    pub colmet: Colmet,
    pub client: Client,
    pub sources: sources::Sources,
    pub sinks: Vec<met_sinks::Configured>,
    pub systems: Vec<KnownSystem>,
    pub notify: Notify,
    /// The older tool's names.
    pub nvidia: Collector,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    /// `sampling.interval` or `cpuCollector.interval`: the same for all jobs, instead of the ladder.
    pub interval: Option<Duration>,
    pub ladder: Ladder,
    /// `sampling.managers`: intervals of the jobs of some resource managers.
    pub managers: Vec<(String, Duration)>,
    /// `cpuCollector.size`: samples buffered before they are flushed, whatever the flush interval.
    pub buffer_samples: Option<u64>,
    /// `state.interval`: how often the processes of a job are looked up again; `None` is every tick.
    pub membership_interval: Option<Duration>,
}

impl Sampling {
    /// How often jobs are sampled.
    pub fn cadence(&self) -> Cadence {
        let ladder = self.interval.map_or_else(|| self.ladder.clone(), Ladder::fixed);
        let managers = self.managers.iter();
        Cadence::new(ladder, managers.map(|(name, interval)| (name.clone(), *interval)))
    }

    /// The shortest time between two samples.
    pub fn shortest(&self) -> Duration {
        self.cadence().shortest()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    pub idle_exit: Duration,
    /// The group whose members may see all users' jobs.
    pub operators: Option<String>,
}

/// Jobs started by other programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    pub discover: Presence,
    /// Tried before those that are built in.
    pub layouts: Vec<Layout>,
    /// The cgroup below which they are looked for; `None` is everywhere.
    pub below: Option<PathBuf>,
    pub plain: Plain,
    /// A group of processes is a job of its own when it has lived for so long,
    pub plain_after: Duration,
    /// or has used so much of a CPU.
    pub plain_cpu: Duration,
    /// A command of our own runs before it is moved into its v1 cgroups.
    pub start_before_cgroup: bool,
}

/// What makes processes a job where no batch system does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plain {
    /// Sessions, by a system daemon, on a machine without a resource manager.
    #[default]
    Auto,
    Off,
    Session,
    Unit,
    Group,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageName {
    #[default]
    Sqlite,
    /// Everything in the runtime directory; nothing survives a reboot.
    Memory,
}

/// Who is notified of the end of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notify {
    pub desktop: bool,
    pub command: Option<PathBuf>,
    pub webhook: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    pub name: StorageName,
    /// `storage.size`: at most this many jobs are kept.
    pub jobs_max: Option<u64>,
    /// `storage.interval`.
    pub flush_interval: Duration,
    pub keep: Duration,
    /// When samples are thinned, and to what step; twice.
    pub thin_after: Duration,
    pub thin_to: Duration,
    pub thin_more_after: Duration,
    pub thin_more_to: Duration,
    pub max_bytes: u64,
    /// Whether series of the machine are stored; `Auto`: by a system daemon.
    pub node_series: Presence,
    /// Whether samples of the table of details are stored.
    pub job_details: bool,
}

/// Series of the machine itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub interval: Option<Duration>,
}

impl Node {
    /// The time between two samples while jobs run.
    pub fn busy(&self) -> Duration {
        self.interval.unwrap_or(Duration::from_secs(10))
    }

    /// The same without jobs.
    pub fn idle(&self) -> Duration {
        self.interval.unwrap_or(Duration::from_secs(60))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct System {
    pub runtime: PathBuf,
    pub state: PathBuf,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// The library of the NVIDIA driver, where it is not found by itself.
    pub nvml: Option<PathBuf>,
    /// Idle power of GPUs.
    pub idle_power: IdleRules,
}

/// Which schedulers are queried, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedulers {
    /// Whether each is queried, in the order of `Scheduler::ALL`.
    pub asked: [Presence; Scheduler::COUNT],
    /// `None`: a server's default, or a daemon's.
    pub interval: Option<Duration>,
    /// How far back the first query reaches.
    pub lookback: Duration,
    pub timeout: Duration,
    /// `None`: a daemon queries jobs of its node, a server all jobs.
    pub scope: Option<Scope>,
    /// Folders of the commands, divided by colons.
    pub path: Option<String>,
    /// Where each counts its queue, in the order of `Scheduler::ALL`.
    pub metrics: [Option<String>; Scheduler::COUNT],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// By a system daemon, where there is something to find.
    #[default]
    Auto,
    Yes,
    No,
}

/// Which jobs are queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Node,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Perf {
    /// Events to count in every job, by name.
    pub events: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Energy {
    pub idle_to_holders: bool,
    pub weight: Weight,
    pub idle_watts: Option<f64>,
    pub pue: f64,
    pub price_per_kwh: Option<f64>,
    pub currency: String,
}

/// What the energy of processors is split by among jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    #[default]
    CpuTime,
    Instructions,
    Cycles,
}

impl Weight {
    /// The event that is counted for it in every job.
    pub fn event(self) -> Option<&'static str> {
        match self {
            Weight::CpuTime => None,
            Weight::Instructions => Some("instructions"),
            Weight::Cycles => Some("cpu_cycles"),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    #[default]
    Country,
    Constant,
    Rte,
    ElectricityMaps,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Emissions {
    pub provider: Provider,
    pub country: Option<String>,
    pub grams_per_kwh: Option<f64>,
    pub zone: Option<String>,
    pub token_file: Option<PathBuf>,
    pub refresh: Duration,
    pub max_age: Duration,
    pub url: Option<String>,
}

/// The HTTP listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Http {
    /// Empty: there is no listener.
    pub listen: Vec<Address>,
    /// A Unix socket, for a reverse proxy on this machine.
    pub socket: Option<PathBuf>,
    pub web_config: Option<PathBuf>,
    /// Users who may read all jobs, whichever way they log in, except by a token.
    pub operators: Vec<String>,
    pub plain: bool,
    pub metrics: Selection,
    pub jobs_max: u64,
    /// Managers whose jobs have series of their own; empty: all.
    pub jobs_managers: Vec<String>,
    pub jobs_after: Option<Duration>,
    pub keep_ended: Duration,
    /// A page with older figures has them read again.
    pub max_age: Duration,
}

impl Http {
    /// What is on the page for Prometheus.
    pub fn contents(&self) -> Contents {
        Contents {
            metrics: self.metrics,
            jobs_max: usize::try_from(self.jobs_max).unwrap_or(usize::MAX),
            managers: self.jobs_managers.clone(),
            after_ns: self.jobs_after.map_or(0, |after| i64::try_from(after.as_nanos()).unwrap_or(i64::MAX)),
        }
    }
}

/// How people log in with a browser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// How long a session lasts.
    pub session: Duration,
    /// The address under which browsers reach the listener.
    pub public_url: Option<String>,
    /// Password users of a daemon with the name of a local user see that user's jobs.
    pub local_users: bool,
    pub proxy_header: String,
    /// The user as which a reverse proxy runs.
    pub proxy_user: Option<String>,
    pub proxy_secret_file: Option<PathBuf>,
    pub oidc_issuer: Option<String>,
    pub oidc_client_id: Option<String>,
    pub oidc_client_secret_file: Option<PathBuf>,
    /// The claim that names the user.
    pub oidc_user_claim: String,
    pub oidc_scopes: String,
    pub oidc_ca_file: Option<PathBuf>,
    /// `None`: in the log.
    pub audit_file: Option<PathBuf>,
}

/// Where the members of accounts are known from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accounts {
    /// From `server.accounts_file`, if there is one.
    #[default]
    File,
    /// Queried hourly.
    Scheduler(Scheduler),
}

/// Settings of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    pub accounts: Accounts,
    pub accounts_file: Option<PathBuf>,
    /// `None`: by where they are moved to.
    pub move_after: Option<Duration>,
    pub lost_after: Duration,
}

/// Where a server takes records of Colmet's nodes, and a daemon its messages of live configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Colmet {
    /// Empty: nowhere.
    pub listen: Vec<Address>,
    /// Addresses and networks that may connect.
    pub allow: Vec<String>,
    /// Names of hosts that they may speak for.
    pub hosts: Vec<String>,
    /// Whose jobs they are.
    pub manager: String,
    /// An endpoint of ZeroMQ.
    pub configure: Option<String>,
}

impl Default for Colmet {
    fn default() -> Colmet {
        Colmet {
            listen: Vec::new(),
            allow: Vec::new(),
            hosts: Vec::new(),
            manager: Scheduler::Oar.name().to_owned(),
            configure: None,
        }
    }
}

/// How `met --server` authenticates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    pub token_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
    pub plain: bool,
}

/// The server that a daemon sends to.
#[derive(Default, Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// `None`: nothing is sent, unless the node was joined by `met daemon --join`.
    pub url: Option<String>,
    pub token_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub plain: bool,
    /// The name of this node, where it is not its host name.
    pub node: Option<String>,
    pub interval: Duration,
    pub spool_bytes: u64,
    pub spool_age: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collector {
    pub interval: Option<Duration>,
    pub size: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub config: Config,
    /// `None`: no file was found, these are the defaults.
    pub path: Option<PathBuf>,
    /// The file as it was read.
    pub text: String,
    /// Why a file that exists was not read.
    pub skipped: Option<String>,
    /// By --config; MET_CONFIG is as usual a place as the others.
    pub is_named: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that was named, or one that exists and cannot be read.
    #[error("cannot read the configuration file {}, {origin}: {error}", path.display())]
    Read { path: PathBuf, origin: &'static str, error: io::Error },
    #[error("{}:{line}: {message}", path.display())]
    Content { path: PathBuf, line: u64, message: String },
}

impl ConfigError {
    fn read(path: &Path, origin: &'static str, error: io::Error) -> ConfigError {
        let error = match error.kind() {
            kind @ io::ErrorKind::InvalidData => io::Error::new(kind, "it is not text in UTF-8"),
            _ => error,
        };
        ConfigError::Read { path: path.to_owned(), origin, error }
    }
}

impl Default for Config {
    /// What the keys give as their defaults: they are written there and nowhere else.
    fn default() -> Config {
        let mut config = Config::blank();
        for key in keys::SECTIONS.iter().flat_map(|section| section.keys) {
            let applied = key.default.is_empty() || key.form.apply(key.default, &mut config).is_ok();
            debug_assert!(applied, "the default of {} does not parse", key.name);
        }
        config
    }
}

impl Config {
    /// Nothing is set. Keys without a default leave it so; the value of the others does not matter.
    fn blank() -> Config {
        Config {
            sampling: Default::default(),
            daemon: Default::default(),
            storage: Default::default(),
            node: Default::default(),
            store: Default::default(),
            jobs: Default::default(),
            system: Default::default(),
            gpu: Default::default(),
            schedulers: Default::default(),
            perf: Default::default(),
            energy: Default::default(),
            emissions: Default::default(),
            http: Default::default(),
            login: Default::default(),
            forward: Default::default(),
            server: Default::default(),
            colmet: Default::default(),
            client: Default::default(),
            sources: Default::default(),
            sinks: Default::default(),
            notify: Default::default(),
            systems: Default::default(),
            nvidia: Default::default(),
        }
    }

    /// Reads the first file there is: `explicit` (`--config`), `$MET_CONFIG`, the user's, the machine's.
    /// The first two must exist if they are named.
    pub fn load(explicit: Option<&Path>) -> Result<Loaded, ConfigError> {
        load_with(explicit, Path::new(MACHINE_FILE), |name| std::env::var_os(name))
    }

    /// The files one of which is read if no other is named, in the order in which they are looked for.
    pub fn usual_files() -> Vec<PathBuf> {
        let user = user_folder().map(|folder| folder.join("met.yaml"));
        user.into_iter().chain([PathBuf::from(MACHINE_FILE)]).collect()
    }

    /// What is written in `yaml`; `path` is what complaints name.
    pub fn parse(yaml: &str, path: &Path) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        let read = tree::parse(yaml).and_then(|root| {
            apply::apply(&root, &mut config)?;
            let refuse = |section: &str, message: String| tree::Complaint {
                line: root.line_of(section).unwrap_or(1),
                message,
            };
            config.check_managers().map_err(|error| refuse("sampling", error))?;
            config.store.check().map_err(|error| refuse("store", error))?;
            config.emissions.check().map_err(|error| refuse("emissions", error))
        });
        read.map(|()| config).map_err(|complaint| ConfigError::Content {
            path: path.to_owned(),
            line: complaint.line,
            message: complaint.message,
        })
    }

    /// Managers that are built in, and those of the file's own layouts.
    fn check_managers(&self) -> Result<(), String> {
        let is_known = |name: &str| {
            let is_own = self.jobs.layouts.iter().any(|layout| layout.manager() == name);
            is_own || name == LOCAL || managers::find(name).is_some()
        };
        match self.sampling.managers.iter().find(|(name, _)| !is_known(name)) {
            Some((name, _)) => Err(format!("sampling.managers: {name:?} is not a resource manager")),
            None => Ok(()),
        }
    }

    /// docs/config.md.
    pub fn reference() -> String {
        let mut text = String::from(REFERENCE_HEAD);
        for section in keys::SECTIONS {
            text.push_str(&format!("\n## `{}`\n\n{}\n\n", section.name, section.help));
            text.push_str("| key | what | default | meaning |\n| --- | --- | --- | --- |\n");
            for key in section.keys {
                let default = match (key.default, key.unset) {
                    ("", "") => "none".to_owned(),
                    ("", in_words) => in_words.to_owned(),
                    (default, _) => format!("`{default}`"),
                };
                let (name, what) = (key.name, key.form.word());
                text.push_str(&format!(
                    "| `{}.{name}` | {what} | {default} | {} |\n",
                    section.name, key.help
                ));
            }
        }
        text + &sources::reference() + &sinks::reference() + &systems::reference()
    }
}

const REFERENCE_HEAD: &str = "\
# The configuration file

Nothing needs to be configured. To change something, write one YAML file; every section and key is
optional. Only the first of these files that exists is read:

1. the one given with `--config FILE`
2. the one named by `$MET_CONFIG`
3. `$XDG_CONFIG_HOME/met/met.yaml`, or `~/.config/met/met.yaml`
4. `/etc/met/met.yaml`

A file named by 1 or 2 must exist. A key that is not in this list, a duplicate key or a value that cannot
be parsed is an error that names the line. `met config --current` shows the values in force and where each
comes from. A running daemon rereads its file when it changes; an invalid file changes nothing. The sections `jobs`, `system`, `http`, `login`, `forward` and `sinks`, `storage.name` and `gpu.nvml` need a
restart: `met daemon --stop` ends the old daemon, and the next `met run` starts one.
`met configure` changes `sampling.interval` and `perf.events` without a file.

An *interval* or *duration* is a number with a unit: `500ms`, `0.5s`, `1m`, `2h`, `90d`; intervals are
between `10ms` and `1h`, those of sources (`every`) between `100ms` and `1h`. A *size* is a number of bytes or has a unit: `2GiB`, `500MB`.

```yaml
sampling:
  ladder: [1s, 10s after 5m, 60s after 1d]
storage:
  keep: 90d
  max_size: 2GiB
```
";

/// Where a user keeps what is the user's own.
pub fn user_folder() -> Option<PathBuf> {
    user_folder_with(&|name| std::env::var_os(name))
}

fn user_folder_with(variable: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let named = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A relative XDG_CONFIG_HOME is to be ignored, by its specification.
    let home = named("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    Some(home.or_else(|| Some(named("HOME")?.join(".config")))?.join("met"))
}

fn load_with(
    explicit: Option<&Path>,
    machine: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Loaded, ConfigError> {
    let named = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let is_named = explicit.is_some();
    let explicit = explicit.map(|path| (path.to_owned(), "which --config names"));
    let by_variable = || named("MET_CONFIG").map(|path| (path, "which the variable MET_CONFIG names"));
    if let Some((path, origin)) = explicit.or_else(by_variable) {
        let yaml = text_file::read(&path).map_err(|error| ConfigError::read(&path, origin, error))?;
        return Ok(Loaded { is_named, ..Loaded::of(yaml, path, None)? });
    }
    let user = user_folder_with(&variable).map(|folder| folder.join("met.yaml"));
    let mut skipped = None;
    for path in user.into_iter().chain([machine.to_owned()]) {
        match trusted::read_own(&path) {
            Ok(yaml) => return Loaded::of(yaml, path, skipped),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            // With sudo, HOME may be that of the user who called it, and on a network root may not even look there.
            Err(error) if path != machine && trusted::is_of_another_user(&error) => {
                if path.symlink_metadata().is_ok() {
                    skipped = Some(format!(
                        "{} is ignored: {error}; name it with --config, or use `sudo -H`",
                        path.display()
                    ));
                }
            }
            Err(error) => {
                let origin = "which is read unless --config or MET_CONFIG name another";
                return Err(ConfigError::read(&path, origin, error));
            }
        }
    }
    Ok(Loaded { config: Config::default(), path: None, text: String::new(), skipped, is_named: false })
}

impl Loaded {
    fn of(text: String, path: PathBuf, skipped: Option<String>) -> Result<Loaded, ConfigError> {
        Ok(Loaded { config: Config::parse(&text, &path)?, path: Some(path), text, skipped, is_named: false })
    }
}

impl Emissions {
    /// What is wrong with the settings, if anything is.
    fn check(&self) -> Result<(), String> {
        if let Some(country) = &self.country
            && emission::of_country(country).is_none()
        {
            return Err(format!(
                "emissions.country: unknown country {country:?}; write its name or three-letter code"
            ));
        }
        match self.provider {
            Provider::Constant if self.grams_per_kwh.is_none() => {
                Err("emissions.factor is needed with provider: constant".to_owned())
            }
            Provider::ElectricityMaps if self.zone.is_none() || self.token_file.is_none() => {
                Err("emissions.zone and emissions.token_file are needed with provider: electricity-maps"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
