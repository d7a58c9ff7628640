//! Shared pieces of the benchmark programs.

pub mod colmet_round;
pub mod made_up;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The binary to measure: `$MET`.
pub fn met_path() -> Result<PathBuf> {
    let path =
        std::env::var_os("MET").context("set MET to the binary to measure, e.g. target/release/met")?;
    Ok(std::path::absolute(path)?)
}

/// `met` with everything it keeps below `root`, and `root/met.yaml` as its configuration if there is one.
pub fn met_command(met: &Path, root: &Path) -> Command {
    let mut command = Command::new(met);
    command
        .env("XDG_STATE_HOME", root)
        .env("XDG_RUNTIME_DIR", root)
        .env("XDG_CONFIG_HOME", root)
        .current_dir(root);
    let config = root.join("met.yaml");
    if config.exists() {
        command.env("MET_CONFIG", config);
    }
    command
}

/// Where [`met_command`] keeps a user's jobs.
pub fn state_folder(root: &Path) -> Result<PathBuf> {
    let host = met_host::Host::real().context("cannot read /proc")?;
    Ok(root.join("met").join(&host.facts().machine_id))
}

/// One line of results.
pub fn say(line: &str) {
    // An unreadable results file is not a failure.
    let _ = writeln!(io::stdout(), "{line}");
}
