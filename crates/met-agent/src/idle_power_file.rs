//! What this machine uses doing nothing, kept for the next daemon: a small file in the state folder.
//!
//! It belongs to the machine that it was learned on. A folder moved to another machine, or a board with other
//! processors, starts over.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use met_core::energy::idle::LearnedIdle;
use met_host::Host;
use serde::{Deserialize, Serialize};

use crate::node_energy;
use met_host::trusted;
use met_query::setting::Setting;

const FILE: &str = "idle-power.json";
/// Written by ourselves, some hundred bytes.
const BYTES_MAX: u64 = 64 * 1024;

#[derive(Serialize, Deserialize)]
struct Kept {
    machine: String,
    learned: Vec<LearnedIdle>,
}

/// The file of one state folder, and what it says.
pub struct IdleFile {
    path: PathBuf,
    machine: String,
    written: Vec<LearnedIdle>,
}

impl IdleFile {
    /// Nothing is known where there is no file, or none that is of this machine.
    pub fn open(state: &Path, host: &Host) -> IdleFile {
        let (path, machine) = (state.join(FILE), identity(host));
        let written = read(&path).filter(|kept| kept.machine == machine).map(|kept| kept.learned);
        IdleFile { path, machine, written: written.unwrap_or_default() }
    }

    pub fn learned(&self) -> &[LearnedIdle] {
        &self.written
    }

    /// Writes it if anything is new. Times alone are nothing new: a busy daemon would write for ever.
    pub fn keep(&mut self, learned: Vec<LearnedIdle>) -> io::Result<()> {
        let figures = |all: &[LearnedIdle]| -> Vec<_> {
            all.iter().map(|one| (one.meters.clone(), one.idle_mw, one.how)).collect()
        };
        if learned.is_empty() || figures(&learned) == figures(&self.written) {
            return Ok(());
        }
        let kept = Kept { machine: self.machine.clone(), learned };
        let new = self.path.with_extension("new");
        fs::write(&new, serde_json::to_vec(&kept)?)?;
        fs::rename(&new, &self.path)?;
        self.written = kept.learned;
        Ok(())
    }
}

/// What a daemon has learned, the user's own or the machine's, whose folder is closed to most.
pub fn known(setting: &Setting) -> Vec<LearnedIdle> {
    let states = [&setting.user.state, &setting.system.state];
    let is_usable = |state: &&&PathBuf| {
        let file = state.join(FILE);
        trusted::check_own(&file).is_ok() && fs::File::open(file).is_ok()
    };
    // Identifying the machine takes longer than checking for the file.
    let learned = states.iter().filter(is_usable).map(|state| IdleFile::open(state, &setting.host).written);
    learned.into_iter().find(|learned| !learned.is_empty()).unwrap_or_default()
}

fn read(path: &Path) -> Option<Kept> {
    use io::Read;
    let mut text = Vec::new();
    fs::File::open(path).ok()?.take(BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// What decides about idle power and does not change by itself: the board, its processors and its memory.
fn identity(host: &Host) -> String {
    let (machine, _) = node_energy::machine(host);
    let dmi = |name: &str| {
        let mut text = Vec::new();
        let _ = host.read_small(format!("/sys/class/dmi/id/{name}"), &mut text);
        String::from_utf8_lossy(text.trim_ascii()).into_owned()
    };
    // The kernel keeps some memory to itself, not the same in every version.
    let gibibytes = (machine.memory_bytes + (1 << 29)) >> 30;
    format!(
        "{} {} {}; {} of {}, {} CPUs, {gibibytes} GiB",
        dmi("sys_vendor"),
        dmi("product_name"),
        dmi("board_name"),
        machine.sockets,
        machine.cpu_model,
        machine.cores,
    )
}

#[cfg(test)]
mod tests {
    use met_core::energy::idle::How;

    use super::*;

    fn host(root: &Path, model: &str) -> Host {
        fs::create_dir_all(root.join("proc")).unwrap();
        fs::write(root.join("proc/stat"), "cpu 0\ncpu0 0\n").unwrap();
        fs::write(root.join("proc/cpuinfo"), format!("model name\t: {model}\nphysical id\t: 0\n")).unwrap();
        Host::at(root).unwrap()
    }

    fn learned(watts: u64, at_ns: i64) -> Vec<LearnedIdle> {
        let idle_mw = [0, 0, 0, watts * 1000];
        vec![LearnedIdle { meters: "IPMI".into(), idle_mw, how: How::Quiet, at_ns }]
    }

    #[test]
    fn what_was_learned_is_there_for_the_next_one_on_the_same_machine_alone() {
        let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut file = IdleFile::open(state.path(), &host(root.path(), "AMD EPYC 7742"));
        assert_eq!(file.learned(), []);
        file.keep(Vec::new()).unwrap();
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0, "nothing is known, nothing is written");
        file.keep(learned(200, 5)).unwrap();
        file.keep(learned(200, 7)).unwrap();
        let again = IdleFile::open(state.path(), &host(root.path(), "AMD EPYC 7742"));
        assert_eq!(again.learned(), learned(200, 5), "a later time is not written");
        assert_eq!(IdleFile::open(state.path(), &host(root.path(), "AMD EPYC 9654")).learned(), []);
    }

    #[test]
    fn a_file_that_is_none_is_nothing_known() {
        let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for text in ["", "{", "{\"machine\": 3}", "[]"] {
            fs::write(state.path().join(FILE), text).unwrap();
            assert_eq!(IdleFile::open(state.path(), &host(root.path(), "x")).learned(), [], "{text}");
        }
    }
}
