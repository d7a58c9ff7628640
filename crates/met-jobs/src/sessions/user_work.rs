//! Which processes count as user work, and how they are grouped.

use met_host::{Host, parse};

use super::Process;

/// What makes processes one job where no batch system does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The session of a login, or of a process that called setsid.
    Session,
    /// The unit of systemd: a login's scope, a service of a user's own.
    Unit,
    /// A line typed into a shell.
    ProcessGroup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub by: By,
    /// Users with a lower number are the system's own.
    pub uid_min: u32,
    /// A group becomes a job of its own when it has lived for this long,
    pub job_after_ns: u64,
    /// or has used this much CPU time.
    pub job_cpu_ns: u64,
}

/// The owner of network files whose owner is unknown; not a person.
const NOBODY_UID: u32 = 65534;
/// What a process is without a login: the number that cannot be a user's.
const NO_LOGIN: u32 = u32::MAX;

impl Rules {
    pub fn new(by: By, uid_min: u32) -> Rules {
        Rules { by, uid_min, job_after_ns: 10_000_000_000, job_cpu_ns: 1_000_000_000 }
    }

    /// Whether a process counts as user work by itself: no kernel thread, no daemon, not in another manager's job.
    pub fn includes(&self, process: &Process) -> bool {
        let interactive = process.terminal;
        if process.kernel || process.claimed || process.uid == NOBODY_UID || is_of_init(&process.cgroup) {
            return false;
        }
        if process.uid < self.uid_min {
            // Root at a terminal works; root without one is the system.
            return process.uid == 0 && interactive;
        }
        let of_system = process.cgroup.starts_with("/system.slice/") && !is_made_by_hand(&process.cgroup);
        interactive || (process.login && !of_system)
    }

    /// What the process is held together with others by. Of a process in no unit: nothing.
    pub fn key(&self, process: &Process) -> Option<super::Key> {
        Some(match self.by {
            By::Session => super::Key::Session(process.session),
            By::ProcessGroup => super::Key::ProcessGroup(process.process_group),
            By::Unit => super::Key::Unit(unit_of(&process.cgroup)?.to_owned()),
        })
    }
}

/// A user's own systemd, which starts the user's units and is not one of them.
fn is_of_init(cgroup: &str) -> bool {
    cgroup.split('/').any(|part| part == "init.scope")
}

/// `systemd-run` names what it starts like this, also in the system's slice.
fn is_made_by_hand(cgroup: &str) -> bool {
    cgroup.split('/').any(|part| part.starts_with("run-"))
}

/// The path of the unit that a cgroup is in, where a user made it: `session-3.scope`, units below
/// `user@1000.service`, and units started by hand.
pub fn unit_of(cgroup: &str) -> Option<&str> {
    let is_unit = |part: &str| part.ends_with(".service") || part.ends_with(".scope");
    let manager = |part: &str| part.starts_with("user@") && part.ends_with(".service");
    let mut end = 0;
    for part in cgroup.split('/') {
        end += part.len();
        let wanted = cgroup.starts_with("/user.slice/") || part.starts_with("run-");
        if is_unit(part) && !manager(part) && wanted {
            return cgroup.get(..end);
        }
        // The slash behind it.
        end += 1;
    }
    None
}

/// From which number on users are people, by /etc/login.defs.
pub fn uid_min(host: &Host) -> u32 {
    const USUAL: u32 = 1000;
    let mut text = Vec::new();
    if host.read_small("/etc/login.defs", &mut text).is_err() {
        return USUAL;
    }
    u32::try_from(parse::value_of(&text, "UID_MIN")).unwrap_or(USUAL)
}

/// Whether /proc/PID/loginuid names a login session.
pub fn is_login(text: &[u8]) -> bool {
    parse::u32(text.trim_ascii()).is_some_and(|uid| uid != NO_LOGIN)
}
