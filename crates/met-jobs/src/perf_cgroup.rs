//! A directory for a job that has none in the hierarchy of perf events, so that these can be counted in it. That is v2
//! unless the controller is mounted as v1; then the kernel refuses to count in v2.
//!
//! Made only when events are asked for. Its v1 cgroups, where the manager counts and limits, stay as they
//! are: a process is in one cgroup of each hierarchy.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use met_host::cgroup::Hierarchies;
use met_host::{Host, parse};

/// Rounds of moving until no new process appears: one that forks faster than this is left in part.
const ROUNDS_MAX: usize = 64;
/// Between two tries to take a directory away.
const SETTLE: Duration = Duration::from_millis(1);

/// The directory, removed with this value if its processes are gone or can be sent back.
#[derive(Debug)]
pub struct PerfCgroup {
    path: PathBuf,
    /// Where the processes were before.
    home: PathBuf,
    hierarchies: Hierarchies,
    /// Whether all processes were in it in the end.
    complete: bool,
}

impl PerfCgroup {
    /// How the names begin of directories that are ours to remove.
    pub const PREFIX: &str = "met-events-";

    /// Makes the directory below the cgroup of `first` in that hierarchy and moves the processes that `members` lists into it,
    /// until it lists no new one: a process that forks between the listing and its move leaves a child behind.
    pub fn make(
        host: &Host,
        name: &str,
        first: u32,
        mut members: impl FnMut() -> Vec<u32>,
    ) -> io::Result<PerfCgroup> {
        let hierarchies = Hierarchies::read(host)?;
        let home = hierarchies.events_of_process(host, first).ok_or(io::ErrorKind::Unsupported)?;
        let path = home.join(name);
        fs::create_dir(&path)?;
        let mut perf_cgroup = PerfCgroup { path, home, hierarchies, complete: false };
        perf_cgroup.take_in(host, &mut members);
        Ok(perf_cgroup)
    }

    /// Moves the processes that came since, in as many rounds as are needed.
    pub fn take_in(&mut self, host: &Host, mut members: impl FnMut() -> Vec<u32>) {
        let mut moved = HashSet::new();
        self.complete = false;
        for _ in 0..ROUNDS_MAX {
            let new: Vec<u32> = members().into_iter().filter(|pid| !moved.contains(pid)).collect();
            if new.is_empty() {
                self.complete = true;
                return;
            }
            for pid in new {
                // Only from the job's cgroup: a process that chose another one keeps it.
                let at_home = self.hierarchies.events_of_process(host, pid);
                if at_home.as_deref() == Some(&self.home) {
                    let _ = move_to(&self.path, pid);
                }
                moved.insert(pid);
            }
        }
    }

    /// Removes a directory that an earlier daemon could not remove. Directories of others stay.
    pub fn remove(path: &Path) {
        let is_ours =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(Self::PREFIX.as_bytes()));
        if let Some(home) = path.parent().filter(|_| is_ours && path.join("cgroup.procs").exists()) {
            send_back(path, home);
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no process of the job was left outside.
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

/// Removes the directory: processes that are still in it go back to their former cgroup.
impl Drop for PerfCgroup {
    fn drop(&mut self) {
        send_back(&self.path, &self.home);
    }
}

fn send_back(path: &Path, home: &Path) {
    for _ in 0..ROUNDS_MAX {
        let text = fs::read(path.join("cgroup.procs")).unwrap_or_default();
        for pid in parse::lines(&text).filter_map(parse::u32) {
            let _ = move_to(home, pid);
        }
        match fs::remove_dir(path) {
            // A process forked meanwhile, or is not quite dead yet, which takes the kernel a moment.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(SETTLE),
            _ => return,
        }
    }
}

/// A process that ended meanwhile needs no place.
fn move_to(cgroup: &Path, pid: u32) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), pid.to_string())
}
