//! Where met keeps things: state that lasts, and the runtime directory of a daemon's socket.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use met_core::lossless_path;
use serde::{Deserialize, Serialize};

use crate::address;
use crate::failure::Failure;
use crate::{Config, StorageName};
use met_host::trusted;

const LOCK: &str = "daemon.lock";

/// The two directories of one daemon, a user's or the system's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    #[serde(with = "lossless_path")]
    pub state: PathBuf,
    #[serde(with = "lossless_path")]
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

    /// That of the system daemon, for all users.
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
        self.runtime.join(LOCK)
    }

    /// Where a user's daemon says at which socket it serves; a system daemon's place is configured.
    pub fn address(&self) -> Option<PathBuf> {
        (!self.system).then(|| address::file(&self.state))
    }

    pub fn log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }

    /// Whether only root controls both directories; matters to root only.
    pub fn check_own(&self) -> Result<()> {
        for folder in [&self.state, &self.runtime] {
            trusted::check_own(folder).map_err(|error| {
                let home = if self.system { "" } else { "use `sudo -H`, or " };
                let remedy = self.remedy(folder);
                Failure::usage(format!("{}: {error}; as root, {home}{remedy}", folder.display()))
            })?;
        }
        Ok(())
    }

    /// Makes both directories; other users may not read the state.
    pub fn create(&self) -> Result<()> {
        create_private(&self.state).map_err(|error| self.cannot_keep("anything", &error))?;
        // All users may connect to a system daemon's socket; the daemon checks the peer.
        let runtime_mode = if self.system { 0o755 } else { 0o700 };
        create_with_mode(&self.runtime, runtime_mode).map_err(|error| {
            refusal(format!("cannot create {}", self.runtime.display()), &error, self.remedy(&self.runtime))
        })
    }

    /// Why `what` cannot be kept in the state, and what would help.
    pub fn cannot_keep(&self, what: &str, error: &io::Error) -> anyhow::Error {
        let claim = format!("cannot store {what} in {}", self.state.display());
        refusal(claim, error, self.remedy(&self.state))
    }

    /// Who decides where a folder lies.
    fn remedy(&self, folder: &Path) -> &'static str {
        // A store in memory is beside the socket.
        match (self.system, folder.starts_with(&self.runtime)) {
            (false, false) => "set XDG_STATE_HOME to a folder you own",
            (false, true) => "set XDG_RUNTIME_DIR to a folder you own",
            (true, false) => "set a writable folder in met.yaml: system.state",
            (true, true) => "set a writable folder in met.yaml: system.runtime",
        }
    }
}

/// A folder of the wrong kind is for the caller to change; a full or broken disk or a limit is not a usage error.
fn refusal(claim: String, error: &io::Error, remedy: &str) -> anyhow::Error {
    match (error.kind(), error.raw_os_error()) {
        (kind, _) if is_full(kind) => {
            Failure::with_code(1, format!("{claim}: {error}; free space there, or {remedy}"))
        }
        (_, Some(libc::EMFILE | libc::ENFILE)) => {
            Failure::with_code(1, format!("{claim}: {error}; `ulimit -n` shows the limit of open files"))
        }
        (kind, number) if is_unfit(kind) || number == Some(libc::ELOOP) => {
            Failure::usage(format!("{claim}: {error}; {remedy}"))
        }
        _ => Failure::with_code(1, format!("{claim}: {error}; {remedy}")),
    }
}

/// Whether there was no room for what was to be written.
pub fn is_full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Whether the place itself was given wrongly.
fn is_unfit(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{
        AlreadyExists, InvalidFilename, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
    };
    matches!(
        kind,
        AlreadyExists | InvalidFilename | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem
    )
}

/// The process that holds the lock beside a daemon's socket, as it wrote there itself.
pub fn daemon_pid(socket: &Path) -> Option<u32> {
    let mut text = String::new();
    // Bounded: the folder may be anything that a configuration names.
    fs::File::open(socket.with_file_name(LOCK)).ok()?.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok().filter(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

pub fn create_private(folder: &Path) -> io::Result<()> {
    create_with_mode(folder, 0o700)
}

fn create_with_mode(folder: &Path, mode: u32) -> io::Result<()> {
    trusted::check_own(folder)?;
    if let Ok(found) = fs::metadata(folder)
        && found.is_dir()
    {
        // Its creator could read or replace its content.
        return match found.uid() == rustix::process::getuid().as_raw() {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user")),
        };
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // The umask may have taken bits away, which an explicit change ignores.
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))
}

fn user_state_home() -> Result<PathBuf> {
    if let Some(home) = absolute_variable("XDG_STATE_HOME") {
        return Ok(home);
    }
    let home =
        absolute_variable("HOME").or_else(|| met_host::users::home_of(rustix::process::getuid().as_raw()));
    Ok(home.context("no home directory; set HOME or XDG_STATE_HOME")?.join(".local/state"))
}

/// The first of $XDG_RUNTIME_DIR and /run/user/UID that is really ours, else inside the state. Never /tmp.
fn user_runtime(state: &Path) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    let candidates = [absolute_variable("XDG_RUNTIME_DIR"), Some(PathBuf::from(format!("/run/user/{uid}")))];
    for candidate in candidates.into_iter().flatten() {
        let is_private =
            |found: fs::Metadata| found.is_dir() && found.uid() == uid && found.mode() & 0o022 == 0;
        if fs::metadata(&candidate).is_ok_and(is_private) && trusted::check_own(&candidate).is_ok() {
            return candidate.join("met");
        }
    }
    state.join("run")
}

fn absolute_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal_of(system: bool, state: &str, error: impl Into<io::Error>) -> (i32, String) {
        let place = Place { state: state.into(), runtime: "/r/met".into(), system };
        let refusal = place.cannot_keep("anything", &error.into());
        let failure = refusal.downcast_ref::<Failure>().unwrap();
        (failure.code, failure.message.clone())
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_refused_with_what_decides_where_it_is() {
        let denied = io::ErrorKind::PermissionDenied;
        let (code, words) = refusal_of(false, "/s", denied);
        let expected =
            "cannot store anything in /s: permission denied; set XDG_STATE_HOME to a folder you own";
        assert_eq!((code, words.as_str()), (2, expected));
        assert!(refusal_of(true, "/s", denied).1.ends_with("met.yaml: system.state"));
        assert!(refusal_of(true, "/r/met/state", denied).1.ends_with("met.yaml: system.runtime"));
        assert!(refusal_of(false, "/r/met/state", denied).1.contains("XDG_RUNTIME_DIR"));
    }

    #[test]
    fn a_full_disk_is_no_mistake_of_the_caller() {
        let (code, words) = refusal_of(false, "/s", io::ErrorKind::StorageFull);
        assert_eq!(code, 1);
        assert!(words.contains("free space there, or set XDG_STATE_HOME"), "{words}");
    }

    #[test]
    fn neither_is_a_broken_disk_or_a_limit() {
        let (code, words) = refusal_of(false, "/s", io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(code, 1);
        assert!(!words.contains("free space") && words.ends_with("a folder you own"), "{words}");
        let (code, words) = refusal_of(false, "/s", io::Error::from_raw_os_error(libc::EMFILE));
        assert!(code == 1 && words.contains("ulimit -n"), "{code} {words}");
        assert_eq!(refusal_of(false, "/s", io::Error::from_raw_os_error(libc::ELOOP)).0, 2);
    }
}
