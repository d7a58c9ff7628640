//! The end of a job that could not be reported to the system daemon, because it was away. A daemon for all users
//! reads no user's files, so the supervisor, which knows the end, stays until it is back.

use std::time::{Duration, Instant};

use met_core::job::Record;
use met_store::inbox::JobDir;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use super::link::{HandedOver, Link};
use super::signals::Signals;
use crate::file_pages;
use met_jobs::processes;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Then the end stays in the inbox, and the user's next `met run` or `met time` hands it over.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3600);

pub struct Unreported {
    link: Link,
    signals: Signals,
    inbox: JobDir,
    record: Record,
}

impl Unreported {
    /// Reports to the daemon an end that is on disk; what is left to do later, if it was away.
    pub fn or_reported(
        link: Option<Link>,
        signals: Signals,
        inbox: JobDir,
        record: Record,
    ) -> Option<Unreported> {
        let link = link?;
        match link.hand_over(&record) {
            HandedOver::Taken => {
                let _ = if link.is_to_system() { inbox.reported() } else { inbox.remove() };
                None
            }
            HandedOver::Refused => None,
            HandedOver::Away if !link.is_to_system() || is_inside_another(&record) => None,
            HandedOver::Away => Some(Unreported { link, signals, inbox, record }),
        }
    }

    /// Tries again, less and less often, until the daemon knows or this process is asked to end.
    pub fn stay(self) {
        let_go();
        let begin = Instant::now();
        let mut pause = FIRST_PAUSE;
        while begin.elapsed() < GIVE_UP_AFTER {
            file_pages::give_back();
            let dismissed = self.is_dismissed_within(pause);
            match self.link.hand_over(&self.record) {
                HandedOver::Taken => return self.forget(),
                HandedOver::Refused => return,
                HandedOver::Away if dismissed => return,
                HandedOver::Away => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    fn is_dismissed_within(&self, pause: Duration) -> bool {
        let timeout = Timespec::try_from(pause).ok();
        let _ = poll(&mut [PollFd::new(&self.signals, PollFlags::IN)], timeout.as_ref());
        let mut dismissed = false;
        while let Some(signal) = self.signals.next() {
            dismissed |= signal.number != libc::SIGCHLD;
        }
        dismissed
    }

    fn forget(&self) {
        // A command of the user may have taken the end into his store meanwhile.
        if self.inbox.read_unreported().is_some_and(|end| end.key == self.record.key) {
            let _ = self.inbox.reported();
        }
    }
}

/// A process that stays behind inside another job would be waited for as a part of that job.
fn is_inside_another(record: &Record) -> bool {
    record.inside.is_some() || std::env::var_os(processes::MARKER).is_some()
}

/// Nothing of the job's surroundings is kept: a reader of its output sees the end, its folder may be unmounted, and
/// no process that it left behind stays a zombie.
fn let_go() {
    let _ = rustix::process::chdir("/");
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    // SAFETY: plain system call; no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}
