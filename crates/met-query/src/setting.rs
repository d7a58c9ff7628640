//! Where a command finds itself: the machine, the configuration, the places of the user and the system.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use met_core::lossless_path;
use met_host::Host;
use met_jobs::cgroup_layouts::Layouts;
use serde::{Deserialize, Serialize};

use crate::client::{BegunGreeting, Client, Unreachable};
use crate::protocol::{InForce, Reply, Request};
use crate::server_client::{self, Asked, ServerClient};
use crate::unusable::{Reach, Report};
use met_config::Config;
use met_config::Failure;
use met_config::Place;
use met_host::trusted;

pub struct Setting {
    pub host: Host,
    pub config: Config,
    pub config_path: Option<PathBuf>,
    /// The file as it was read.
    pub config_text: String,
    /// The file was named by --config.
    pub is_config_named: bool,
    pub user: Place,
    pub system: Place,
    /// The server that is queried instead of this machine.
    pub server: Option<Asked>,
    pub reach: Reach,
}

/// How the daemon of a job is reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonPlace {
    #[serde(with = "lossless_path")]
    pub socket: PathBuf,
    /// The file with the socket of a daemon of this user that serves elsewhere.
    #[serde(default, with = "lossless_path::option")]
    pub address: Option<PathBuf>,
    /// A system daemon is not ours to start.
    pub system: bool,
    #[serde(default, with = "lossless_path::option")]
    pub config: Option<PathBuf>,
    /// Where a daemon that we start writes what it has to say.
    #[serde(with = "lossless_path")]
    pub log: PathBuf,
}

impl Setting {
    pub fn find(config: Option<&Path>) -> Result<Setting> {
        let loaded = Config::load(config).map_err(|error| Failure::usage(error.to_string()))?;
        if let Some(skipped) = &loaded.skipped {
            tracing::warn!("{skipped}");
        }
        let host = Host::real().context("cannot read /proc")?;
        let user = Place::user(&loaded.config, &host.facts().machine_id)?;
        let system = Place::system(&loaded.config);
        // A daemon that is started later runs in another folder.
        let config_path = loaded
            .path
            .map(std::path::absolute)
            .transpose()
            .context("cannot determine the folder of the configuration file")?;
        Ok(Setting {
            host,
            config: loaded.config,
            config_path,
            config_text: loaded.text,
            is_config_named: loaded.is_named,
            user,
            system,
            server: None,
            reach: Reach::default(),
        })
    }

    /// The same, with a server to ask.
    pub fn with_server(mut self, url: Option<String>) -> Setting {
        let client = &self.config.client;
        let own =
            || server_client::own_token().filter(|path| path.exists() && trusted::check_own(path).is_ok());
        self.server = url.map(|url| Asked {
            url,
            token_file: client.token_file.clone().or_else(own),
            ca_file: client.ca_file.clone(),
            plain: client.plain,
        });
        self
    }

    pub fn server_client(&self) -> Result<Option<ServerClient>> {
        self.server.as_ref().map(ServerClient::open).transpose()
    }

    /// How the cgroups of others' jobs are recognised on this machine.
    pub fn layouts(&self) -> Layouts {
        Layouts::with(self.config.jobs.layouts.clone())
    }

    /// What root is not shown because no system daemon runs: only that daemon opens its files.
    pub fn unread_system_jobs(&self) -> Option<String> {
        let state = &self.system.state;
        let is_asked = rustix::process::geteuid().is_root() && self.server.is_none();
        if !is_asked || !met_store::has_catalogue(state) {
            return None;
        }
        let is_absent = matches!(Client::connect(&self.system.socket()), Err(Unreachable::Absent));
        is_absent.then(|| {
            format!(
                "no system daemon is running: jobs recorded in {} are not shown; `met daemon` starts it",
                state.display()
            )
        })
    }

    /// A running system daemon is preferred; `None` where there is none that answers.
    pub fn system_daemon(&self) -> Option<Client> {
        self.reach.system.once(Report::Warn, || Client::connect(&self.system.socket())).ok()
    }

    /// The same to read jobs from.
    pub fn system_daemon_to_read(&self) -> Option<Client> {
        self.reach.system.once(Report::WarnReader, || Client::connect(&self.system.socket())).ok()
    }

    /// The user's own daemon, if it runs.
    pub fn user_daemon(&self) -> Result<Client, Unreachable> {
        self.reach.user.once(Report::Warn, || self.connect_own(Client::connect))
    }

    /// The same for a job that is about to start.
    pub fn system_daemon_for_start(&self) -> Result<Client, Unreachable> {
        self.reach.system.once(Report::Warn, || Client::connect_for_start(&self.system.socket()))
    }

    /// The same without waiting for the answer.
    pub fn greet_system_daemon(&self) -> Result<BegunGreeting, Unreachable> {
        Client::begin_for_start(&self.system.socket(), None)
    }

    /// Its answer.
    pub fn greeted_system_daemon(
        &self,
        begun: Result<BegunGreeting, Unreachable>,
    ) -> Result<Client, Unreachable> {
        let answered = || begun.and_then(BegunGreeting::answered).map(|(client, _)| client);
        self.reach.system.once(Report::Warn, answered)
    }

    /// Asks the user's own daemon for a job that is about to start.
    pub fn greet_user_daemon(&self, first: &Request) -> Result<BegunGreeting, Unreachable> {
        self.connect_own(|socket| Client::begin_for_start(socket, Some(first)))
    }

    /// Its answer.
    pub fn user_daemon_answer(&self, begun: Result<BegunGreeting, Unreachable>) -> Option<Reply> {
        self.reach.user.once(Report::Warn, || begun.and_then(BegunGreeting::answered)).ok()?.1
    }

    /// A socket in another user's directory is not trustworthy.
    fn connect_own<C: AsFd>(
        &self,
        connect: impl Fn(&Path) -> Result<C, Unreachable>,
    ) -> Result<C, Unreachable> {
        self.user.check_own().map_err(|_| Unreachable::Absent)?;
        let (socket, announced) = (self.user.socket(), self.user.address());
        Client::connect_or_elsewhere(&socket, announced.as_deref(), connect).map(|(client, _)| client)
    }

    /// What holds in the daemon that measures the caller's jobs, or that of the caller; `None` without a daemon.
    pub fn in_force(&self, own: bool) -> Option<InForce> {
        match self.daemon(own).ok()?.call(&Request::InForce) {
            Ok(Reply::InForce(held)) => Some(*held),
            _ => None,
        }
    }

    /// The server that this machine sends its jobs to, as far as the caller may know.
    pub fn forwards_to(&self) -> Option<String> {
        let asked = || match self.daemon(false).ok()?.call(&Request::Status) {
            Ok(Reply::Status(status)) => Some(status.forward?.url),
            _ => None,
        };
        self.config.forward.url.clone().or_else(asked)
    }

    /// Where the caller named a file and the daemon follows another one: which one that is.
    pub fn other_file_of(&self, held: &InForce) -> Option<String> {
        let own = self.config_path.as_ref().filter(|_| self.is_config_named)?;
        let resolved = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let Some(file) = &held.file else { return Some("a file that only root may read".to_owned()) };
        match &file.path {
            Some(path) if resolved(path) == resolved(own) => None,
            Some(path) => Some(path.display().to_string()),
            None => Some("no configuration file".to_owned()),
        }
    }

    /// Says so, and that the daemon does not follow its file as it is now.
    pub fn warn_of_other_file(&self, held: &InForce) {
        if let (Some(other), Some(own)) = (self.other_file_of(held), &self.config_path) {
            tracing::warn!("{} is not in force: the running daemon follows {other}", own.display());
        }
        if let Some(error) = &held.file_refused {
            tracing::warn!(
                "the running daemon keeps its earlier configuration until this is corrected: {error}"
            );
        }
    }

    /// With the configuration of that daemon, if the caller may read it and did not name another.
    pub fn of_daemon(self) -> Setting {
        let held = self.in_force(false).filter(|held| self.other_file_of(held).is_none());
        let Some(file) = held.and_then(|held| held.file) else { return self };
        let name = file.path.clone().unwrap_or_default();
        match Config::parse(&file.text, &name) {
            Ok(config) => Setting { config, config_path: file.path, config_text: file.text, ..self },
            // It is of another version, which knows other keys.
            Err(_) => self,
        }
    }

    /// The daemon that a change is for: the system's, unless there is none or the user means his own. One that hangs is
    /// an error, for the caller to report, and not as if there was none.
    pub fn daemon(&self, own: bool) -> Result<Client, Unreachable> {
        let user = || self.reach.user.once(Report::ByCaller, || self.connect_own(Client::connect));
        if own {
            return user();
        }
        match self.reach.system.once(Report::ByCaller, || Client::connect(&self.system.socket())) {
            Err(Unreachable::Absent | Unreachable::Failed(_)) => user(),
            reached => reached,
        }
    }

    /// Before a message is sent by the program or to the address of the configuration: root uses only what no other user
    /// can replace.
    pub fn check_notify(&self) -> Result<(), String> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        for path in self.config_path.iter().chain(&self.config.notify.command) {
            trusted::check_own(path)
                .map_err(|error| format!("{}: {error}; another user could change it", path.display()))?;
        }
        Ok(())
    }

    pub fn daemon_place(&self, system: bool) -> DaemonPlace {
        let place = if system { &self.system } else { &self.user };
        DaemonPlace {
            socket: place.socket(),
            address: place.address(),
            system,
            config: self.config_path.clone(),
            log: self.user.log(),
        }
    }
}
