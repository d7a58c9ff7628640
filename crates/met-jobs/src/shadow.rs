//! A v2 directory for a job whose manager knows cgroup v1 alone, so that perf events can be counted in it.
//!
//! Made only when events are asked for. Its v1 cgroups, where the manager counts and limits, stay as they
//! are: a process is in one cgroup of each hierarchy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use met_host::cgroup::Hierarchies;
use met_host::{Host, parse};

/// Rounds of moving until no new process appears: one that forks faster than this is left in part.
const ROUNDS_MAX: usize = 64;

/// The directory, removed with this value if its processes are gone or can be sent back.
#[derive(Debug)]
pub struct Shadow {
    path: PathBuf,
    /// Where the processes were before.
    home: PathBuf,
    /// Whether everybody was in it in the end.
    complete: bool,
}

impl Shadow {
    /// Makes the directory below the v2 cgroup of `first` and moves whoever `members` lists into it, until
    /// it lists nobody new: a process that forks between the listing and its move leaves a child behind.
    pub fn make(
        host: &Host,
        name: &str,
        first: u32,
        mut members: impl FnMut() -> io::Result<Vec<u32>>,
    ) -> io::Result<Shadow> {
        let hierarchies = Hierarchies::read(host)?;
        let home = hierarchies.of_process(host, first)?.unified.ok_or(io::ErrorKind::Unsupported)?;
        let path = home.join(name);
        fs::create_dir(&path)?;
        let mut shadow = Shadow { path, home, complete: false };
        let mut moved = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let new: Vec<u32> = members()?.into_iter().filter(|pid| !moved.contains(pid)).collect();
            if new.is_empty() {
                shadow.complete = true;
                break;
            }
            for pid in new {
                // Only from where the job is: somebody who chose another v2 cgroup keeps it.
                let at_home = hierarchies.of_process(host, pid).ok().and_then(|paths| paths.unified);
                if at_home.as_deref() == Some(&shadow.home) {
                    let _ = move_to(&shadow.path, pid);
                }
                moved.push(pid);
            }
        }
        Ok(shadow)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no process of the job was left outside.
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

/// Nothing of ours stays behind: whoever is still in it goes back to where he came from.
impl Drop for Shadow {
    fn drop(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let text = fs::read(self.path.join("cgroup.procs")).unwrap_or_default();
            for pid in parse::lines(&text).filter_map(parse::u32) {
                let _ = move_to(&self.home, pid);
            }
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                _ => return,
            }
        }
    }
}

/// A process that ended meanwhile needs no place.
fn move_to(cgroup: &Path, pid: u32) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), pid.to_string())
}
