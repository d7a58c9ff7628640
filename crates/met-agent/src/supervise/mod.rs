//! The supervisor: one small process per job that waits for it and writes its exact end.
//!
//! It is a child subreaper, so no descendant of the job escapes it, and it does nothing but wait: what
//! the kernel adds to it when it reaps (CPU, faults, I/O) belongs to the job alone. It samples
//! nothing; a daemon or `met time` does that from outside.

mod attached;
mod child;
mod events;
mod link;
mod memory;
mod memory_limit;
mod perf;
mod quota;
mod signals;
mod spawn;
mod totals;
mod unreported;

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use met_core::job::Record;
use met_query::setting::DaemonPlace;
use met_store::inbox::JobDir;
use serde::{Deserialize, Serialize};

use link::Link;
use met_config::Place;
use met_query::protocol;
use unreported::Unreported;

pub use attached::supervise_attached;
pub use child::{Preparation, supervise_child};
pub use perf::perf_allowed;
pub use signals::{Signals, cancel_signal, parse_signal};
pub use spawn::{Command, look_up};

/// What a supervisor gets from the command line that forks it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assignment {
    /// The job as far as it is known before its start.
    pub record: Record,
    /// Where its start and end are kept; `None` leaves no trace.
    pub inbox: Option<Place>,
    /// Whether the job leaves the terminal's session and is measured by a daemon.
    pub detached: bool,
    /// Whether the job lasts until its last process ends, or until its main process does.
    pub until_last: bool,
    pub daemon: DaemonPlace,
    /// Whether the command runs before it is moved into its v1 cgroups.
    #[serde(default)]
    pub start_before_cgroup: bool,
    /// Events to count, by name.
    #[serde(default)]
    pub events: Vec<String>,
    /// When its user is notified of the end; empty: never.
    #[serde(default)]
    pub notify: String,
    /// Variables for the command alone, as bytes.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What a supervisor reports to the command line that forked it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// The job exists, on disk too if it can be kept, and its command is about to be executed.
    Started(Box<Record>),
    /// The command could not be executed.
    NotExecuted {
        message: String,
    },
    /// The job is over. A `met time` that reads this keeps the record itself; what it has not kept when it hangs up
    /// its supervisor keeps.
    Ended(Box<Record>),
    Failed {
        message: String,
    },
}

/// The supervisor's line to the process that forked it; that process may be gone.
pub struct Channel {
    stream: Option<UnixStream>,
}

impl Channel {
    pub fn new(stream: UnixStream) -> Channel {
        Channel { stream: Some(stream) }
    }

    fn tell(&mut self, notice: &Notice) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let reported = protocol::write_frame(stream, notice).is_ok();
        if !reported {
            self.stream = None;
        }
        reported
    }

    /// Reports the end and waits until the other side is done with it, or gone.
    fn hand_over(&mut self, record: &Record) {
        use std::io::Read;
        if self.tell(&Notice::Ended(Box::new(record.clone())))
            && let Some(stream) = &mut self.stream
        {
            let _ = stream.read(&mut [0]);
        }
    }

    /// Hangs up when the job is over, and stays while its end is not delivered.
    fn close(mut self, result: io::Result<Option<Unreported>>) {
        match result {
            Ok(unreported) => {
                drop(self);
                unreported.into_iter().for_each(Unreported::stay);
            }
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// The job does not start.
    pub fn fail(&mut self, message: &str) {
        self.tell(&Notice::Failed { message: message.to_owned() });
    }
}

/// The CPUs on which a process may run, as many of them as a quota allows; unknown of one that is gone.
fn usable_cpus(pid: u32, quota: Option<&quota::Quota>) -> Option<u32> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
    let mask = rustix::thread::sched_getaffinity(Some(pid)).ok()?;
    Some(mask.count().min(quota.map_or(u32::MAX, |quota| quota.cpus)))
}

/// The folder of a job that is kept, and who says where it is.
struct Inbox {
    place: Place,
    folder: JobDir,
}

/// The file that the job appends its marks of work to. It is created before the command runs.
pub(crate) fn marks(assignment: &Assignment) -> Option<PathBuf> {
    Some(Inbox::of(assignment).ok()??.folder.marks())
}

impl Inbox {
    fn of(assignment: &Assignment) -> io::Result<Option<Inbox>> {
        let Some(place) = assignment.inbox.clone() else { return Ok(None) };
        let id = assignment.record.key.id.parse().map_err(io::Error::other)?;
        Ok(Some(Inbox { folder: JobDir::open(&place.state, id), place }))
    }

    /// Makes the end durable, then reports it to the daemon, then cleans up.
    fn keep_end(self, record: Record, link: Option<Link>, signals: Signals) -> Option<Unreported> {
        if let Err(error) = self.folder.write_end(&record) {
            let _ = writeln!(io::stderr(), "met: cannot store the end of job {}: {error}", record.key.id);
        }
        self.folder.give_back_room();
        Unreported::or_reported(link, signals, self.folder, record)
    }

    /// Takes back what was reserved of a job whose start cannot be written; why, and what would help.
    fn unkept(&self, error: &io::Error) -> io::Error {
        let _ = self.folder.remove();
        io::Error::new(error.kind(), self.place.cannot_keep("it", error).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_job_cannot_be_kept_is_said_with_what_would_help() {
        let root = tempfile::tempdir().unwrap();
        let place = Place { state: root.path().to_owned(), runtime: root.path().join("run"), system: false };
        let inbox = Inbox { folder: JobDir::claim(root.path(), 1).unwrap(), place };
        let words = |error: io::ErrorKind| inbox.unkept(&error.into()).to_string();
        assert!(words(io::ErrorKind::StorageFull).contains("free space there, or set XDG_STATE_HOME"));
        let denied = words(io::ErrorKind::PermissionDenied);
        assert!(denied.contains("; set XDG_STATE_HOME"), "{denied}");
    }
}
