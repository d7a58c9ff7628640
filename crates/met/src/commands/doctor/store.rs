//! Whether jobs can be kept.

use std::io::Write;
use std::path::Path;

use super::{Finding, Health};
use crate::setting::Setting;
use crate::view::units;

pub(super) fn store(setting: &Setting) -> Finding {
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
pub(super) fn served(setting: &Setting) -> Option<Finding> {
    let state = crate::server::state(setting);
    let bytes = met_store::cluster::bytes_in(&state)?;
    let detail = format!("{} of what nodes sent and told in {}", units::bytes(bytes as f64), state.display());
    Some(Finding { what: "cluster", health: Health::Good, detail, remedy: None })
}

/// The servers that `store` in the configuration names, asked for real.
pub(super) fn servers_of_store(setting: &Setting) -> Vec<Finding> {
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
    use super::*;

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
