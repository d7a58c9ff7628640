//! The signals a supervisor cares about, as readable events instead of handlers.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// By this signal `met cancel` informs the supervisor that the job's end is a cancellation.
pub fn cancel_signal() -> i32 {
    libc::SIGRTMIN() + 5
}

/// Everything a supervisor reacts to; whatever else arrives keeps its default action.
fn watched_signals() -> [i32; 8] {
    [
        libc::SIGCHLD,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGUSR1,
        libc::SIGUSR2,
        cancel_signal(),
    ]
}

/// Blocked signals, read from a descriptor.
pub struct Signals {
    fd: OwnedFd,
    /// What there was before, for the job to inherit.
    pub inherited: Inherited,
}

#[derive(Clone, Copy)]
pub struct Inherited {
    pub mask: libc::sigset_t,
    /// The caller ignores SIGCHLD. The job inherits that; we must not, or no child could be waited for.
    pub ignores_children: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Signal {
    pub number: i32,
    /// Sent by the kernel, as a terminal does: every process of the foreground group got it too.
    pub from_kernel: bool,
}

impl Signals {
    /// Also where the parent of this process ignores hang-ups, as nohup does: an ignored signal is never read.
    pub fn hear_hangups(&self) {
        // SAFETY: blocked, it is read from the descriptor; no handler is installed.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
    }

    pub fn block() -> io::Result<Signals> {
        // SAFETY: plain calls on sets that live on this stack.
        unsafe {
            let mut watched: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut watched);
            for signal in watched_signals() {
                libc::sigaddset(&mut watched, signal);
            }
            let ignores_children = libc::signal(libc::SIGCHLD, libc::SIG_DFL) == libc::SIG_IGN;
            if libc::sigprocmask(libc::SIG_BLOCK, &watched, &mut before) < 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &watched, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals {
                fd: OwnedFd::from_raw_fd(fd),
                inherited: Inherited { mask: before, ignores_children },
            })
        }
    }

    /// Undoes the blocking, in a child that makes its own arrangements.
    pub fn release(self) {
        // SAFETY: plain call on a set that was filled by `block`.
        unsafe {
            if self.inherited.ignores_children {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &self.inherited.mask, std::ptr::null_mut());
        }
    }

    /// The next signal that arrived, if any.
    pub fn next(&self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has the size of one record, which the kernel writes whole or not at all.
        let info = unsafe {
            if libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) != size as isize {
                return None;
            }
            info.assume_init()
        };
        Some(Signal { number: info.ssi_signo as i32, from_kernel: info.ssi_code == libc::SI_KERNEL })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const NAMES: [(&str, i32); 31] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STKFLT", libc::SIGSTKFLT),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

/// A signal by name (`TERM`, `SIGTERM`, any case) or number.
pub fn parse_signal(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES.iter().find(|(known, _)| *known == name).map(|&(_, number)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_go_by_name_and_number() {
        assert_eq!(parse_signal("TERM"), Some(15));
        assert_eq!(parse_signal("sigkill"), Some(9));
        assert_eq!(parse_signal("2"), Some(2));
        assert_eq!(parse_signal("0"), None);
        assert_eq!(parse_signal("TERMINATE"), None);
    }
}
