//! Cgroups in which processes are left after the end of their job, where no daemon remembers them: of jobs without a
//! record (`met time --no-record`, `met rm`) and of jobs that a command imported. Each has a note in the state directory
//! until it is empty and can be removed, too.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use met_core::job::{CgroupPaths, Origin, Record};
use met_host::Host;
use met_jobs::job_cgroup;

const FOLDER: &str = "cgroups";
/// Notes that are read at once; the others follow when these are removed.
const NOTES_MAX: usize = 1024;
/// A note is three paths.
const NOTE_BYTES_MAX: u64 = 64 << 10;

/// Removes the cgroup of an ended job without a record, now or when it is empty. Best effort.
pub fn leave_cgroup(host: &Host, state: &Path, record: &Record) {
    let Some(local) = record.local.as_ref() else { return };
    let is_ours = local.origin != Origin::Found && local.boot_id == host.facts().boot_id;
    if is_ours && !job_cgroup::remove(&local.cgroup) {
        note_cgroup(state, &local.cgroup);
    }
}

/// Best effort.
pub(super) fn note_cgroup(state: &Path, cgroup: &CgroupPaths) {
    let _ = note(state, cgroup);
}

fn note(state: &Path, cgroup: &CgroupPaths) -> io::Result<()> {
    let Some(name) = name_of(cgroup) else { return Ok(()) };
    let folder = state.join(FOLDER);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    fs::write(folder.join(name), serde_json::to_vec(cgroup)?)
}

fn name_of(cgroup: &CgroupPaths) -> Option<&str> {
    let path = [&cgroup.unified, &cgroup.memory, &cgroup.cpuacct].into_iter().flatten().next()?;
    path.file_name()?.to_str().filter(|name| job_cgroup::is_valid_name(name))
}

/// Tries again those that were left. Where there are none this costs one system call.
pub fn remove_left_cgroups(state: &Path) {
    let Ok(notes) = fs::read_dir(state.join(FOLDER)) else { return };
    for note in notes.flatten().take(NOTES_MAX).map(|note| note.path()) {
        if read(&note).is_none_or(|cgroup| job_cgroup::remove(&cgroup)) {
            let _ = fs::remove_file(note);
        }
    }
    // Fails while there are others.
    let _ = fs::remove_dir(state.join(FOLDER));
}

/// `None` for what is not a note.
fn read(path: &PathBuf) -> Option<CgroupPaths> {
    let file = fs::symlink_metadata(path).ok()?;
    if !file.is_file() || file.len() > NOTE_BYTES_MAX {
        return None;
    }
    let cgroup: CgroupPaths = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    name_of(&cgroup).is_some().then_some(cgroup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_in_use_is_noted_and_removed_when_it_is_empty() {
        let (state, cgroups) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let host = Host::real().unwrap();
        let busy = cgroups.path().join("met-1-2-3");
        // A directory with something in it cannot be removed, as a cgroup with processes.
        fs::create_dir_all(busy.join("process")).unwrap();
        let mut record = met_core::sample::full(1, "train");
        let local = record.local.as_mut().unwrap();
        local.boot_id.clone_from(&host.facts().boot_id);
        local.cgroup = CgroupPaths { unified: Some(busy.clone()), ..Default::default() };
        leave_cgroup(&host, state.path(), &record);
        fs::write(state.path().join("cgroups/met-1-2-4"), "{}").unwrap();
        remove_left_cgroups(state.path());
        assert!(busy.exists());
        assert!(!state.path().join("cgroups/met-1-2-4").exists(), "it was no note");
        fs::remove_dir(busy.join("process")).unwrap();
        remove_left_cgroups(state.path());
        assert!(!busy.exists() && !state.path().join("cgroups").exists());
        // One that is empty is removed at once.
        fs::create_dir(&busy).unwrap();
        leave_cgroup(&host, state.path(), &record);
        assert!(!busy.exists() && !state.path().join("cgroups").exists());
    }
}
