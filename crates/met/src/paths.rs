//! Where met keeps things: state that lasts, and the runtime directory of a daemon's socket.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::config::{Config, StorageName};

/// The two directories of one daemon, a user's or the system's.
#[derive(Clone, Debug)]
pub struct Place {
    pub state: PathBuf,
    pub runtime: PathBuf,
    pub system: bool,
}

impl Place {
    /// The caller's own. State is per machine: home directories are shared between the nodes of a cluster.
    pub fn user(config: &Config, machine_id: &str) -> Result<Place> {
        let lasting = user_state_home()?.join("met").join(machine_id);
        let runtime = user_runtime(&lasting);
        let state = match config.storage.name {
            StorageName::Sqlite => lasting,
            StorageName::Memory => runtime.join("state"),
        };
        Ok(Place { state, runtime, system: false })
    }

    /// The one for everybody, of a daemon that root runs.
    pub fn system(config: &Config) -> Place {
        let runtime = config.system.runtime.clone();
        let state = match config.storage.name {
            StorageName::Sqlite => config.system.state.clone(),
            StorageName::Memory => runtime.join("state"),
        };
        Place { state, runtime, system: true }
    }

    pub fn socket(&self) -> PathBuf {
        self.runtime.join("daemon.sock")
    }

    pub fn lock(&self) -> PathBuf {
        self.runtime.join("daemon.lock")
    }

    pub fn log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }

    /// Makes both directories; nobody else may look into the state.
    pub fn create(&self) -> Result<()> {
        create_private(&self.state).with_context(|| {
            format!(
                "cannot keep anything in {}; set XDG_STATE_HOME to a folder of yours",
                self.state.display()
            )
        })?;
        // Everybody may reach a system daemon's socket; the daemon checks who asks.
        let runtime_mode = if self.system { 0o755 } else { 0o700 };
        create_with_mode(&self.runtime, runtime_mode)
            .with_context(|| format!("cannot create {}", self.runtime.display()))
    }
}

pub fn create_private(folder: &Path) -> io::Result<()> {
    create_with_mode(folder, 0o700)
}

fn create_with_mode(folder: &Path, mode: u32) -> io::Result<()> {
    if let Ok(found) = fs::metadata(folder)
        && found.is_dir()
    {
        // Whoever made it first could read, or replace, what we keep in it.
        return match found.uid() == rustix::process::getuid().as_raw() {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user")),
        };
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // The umask may have taken bits away, which an explicit change does not heed.
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))
}

fn user_state_home() -> Result<PathBuf> {
    if let Some(home) = absolute_variable("XDG_STATE_HOME") {
        return Ok(home);
    }
    let home =
        absolute_variable("HOME").or_else(|| crate::users::home_of(rustix::process::getuid().as_raw()));
    Ok(home.context("no home directory; set HOME or XDG_STATE_HOME")?.join(".local/state"))
}

/// The first of $XDG_RUNTIME_DIR and /run/user/UID that is really ours, else inside the state. Never /tmp.
fn user_runtime(state: &Path) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    let candidates = [absolute_variable("XDG_RUNTIME_DIR"), Some(PathBuf::from(format!("/run/user/{uid}")))];
    for candidate in candidates.into_iter().flatten() {
        if fs::metadata(&candidate)
            .is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o022 == 0)
        {
            return candidate.join("met");
        }
    }
    state.join("run")
}

fn absolute_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
