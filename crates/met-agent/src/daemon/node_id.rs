//! Which node this is, whatever it is called: a random id kept in the state folder.

use std::fs;
use std::io;
use std::path::Path;

use met_sinks::spool::random_text;
use serde::{Deserialize, Serialize};

use super::forwarding::write_private;

const FILE: &str = "identity.json";

#[derive(Debug, Serialize, Deserialize)]
struct Identity {
    id: String,
    /// Where it was drawn: a folder that is found on another machine was copied.
    machine: String,
}

/// The id in this folder, drawn there if there is none, or if it is that of another machine. One that cannot be kept
/// holds for this daemon alone.
pub fn of(folder: &Path, machine: &str) -> io::Result<String> {
    let path = folder.join(FILE);
    match read(&path) {
        Ok(Some(known)) if known.machine == machine && is_proper(&known.id) => return Ok(known.id),
        Ok(Some(_)) => tracing::warn!(
            "{} is of another machine: this one gets an identity of its own, and needs a name and a token of its own",
            path.display()
        ),
        Ok(None) => {}
        Err(error) => tracing::warn!("{}: {error}; a new identity is drawn", path.display()),
    }
    let drawn = Identity { id: random_text()?, machine: machine.to_owned() };
    let kept =
        serde_json::to_vec_pretty(&drawn).map_err(Into::into).and_then(|text| write_private(&path, &text));
    if let Err(error) = kept {
        tracing::warn!("{error:#}; the next daemon will look like another node to the server");
    }
    Ok(drawn.id)
}

fn read(path: &Path) -> io::Result<Option<Identity>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_proper(id: &str) -> bool {
    (16..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_kept_and_that_of_another_machine_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let first = of(folder.path(), "machine-1").unwrap();
        assert!(is_proper(&first), "{first}");
        assert_eq!(of(folder.path(), "machine-1").unwrap(), first);
        let copy = of(folder.path(), "machine-2").unwrap();
        assert_ne!(copy, first);
        assert_eq!(of(folder.path(), "machine-2").unwrap(), copy);
        for damaged in ["", "{", r#"{"id": "x", "machine": "machine-2"}"#] {
            fs::write(folder.path().join(FILE), damaged).unwrap();
            let again = of(folder.path(), "machine-2").unwrap();
            assert!(is_proper(&again) && again != copy);
            assert_eq!(of(folder.path(), "machine-2").unwrap(), again);
        }
    }

    #[test]
    fn without_a_folder_there_is_an_identity_for_now() {
        let folder = tempfile::tempdir().unwrap();
        assert!(of(&folder.path().join("none"), "machine-1").is_ok());
    }
}
