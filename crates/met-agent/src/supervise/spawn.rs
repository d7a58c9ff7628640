//! Starts a job's command: forked into its cgroup, held at a gate until everything that measures it is
//! in place, then executed with exactly the given bytes.
//!
//! Until then the child reads and writes nothing by the kernel's task accounts, which are the job's: it waits at the
//! gate by `poll` and enters cgroups by `splice`, neither of which they count.

use std::ffi::{CString, OsStr};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use rustix::pipe::{PipeFlags, pipe_with};

use super::signals::Inherited;

/// What is to be executed.
pub struct Command {
    pub program: CString,
    pub argv: Vec<CString>,
    pub envp: Vec<CString>,
}

/// The cgroups the child shall be in: one entered at birth, others by a write of its own.
pub struct Cgroups<'a> {
    pub unified: Option<&'a OwnedFd>,
    pub procs: &'a [OwnedFd],
}

/// A child that waits at the gate. Dropping it without opening the gate ends it.
pub struct AtGate {
    pub pid: i32,
    /// Whether it was born in the unified cgroup it was given.
    pub in_unified: bool,
    gate: OwnedFd,
    outcome: OwnedFd,
}

/// How `execve` went: words until end of file.
pub struct Outcome {
    pipe: std::fs::File,
}

pub struct Executed {
    /// Why the command does not run.
    pub error: Option<io::Error>,
    /// Whether the child is in its v1 cgroups.
    pub in_v1: bool,
}

/// The word for a cgroup that could not be entered; any other word is an error number.
static NOT_ENTERED: i32 = -1;

impl AtGate {
    pub fn open(self) -> io::Result<Outcome> {
        rustix::io::write(&self.gate, b"g")?;
        Ok(Outcome { pipe: std::fs::File::from(self.outcome) })
    }
}

impl Outcome {
    pub fn fd(&self) -> &std::fs::File {
        &self.pipe
    }

    /// Blocks until the command runs or is known not to.
    pub fn wait(mut self) -> Executed {
        let mut executed = Executed { error: None, in_v1: true };
        let mut word = [0u8; 4];
        while self.pipe.read_exact(&mut word).is_ok() {
            match i32::from_ne_bytes(word) {
                word if word == NOT_ENTERED => executed.in_v1 = false,
                errno => executed.error = Some(io::Error::from_raw_os_error(errno)),
            }
        }
        executed
    }
}

/// Forks the child. Must be called while the process has one thread: the child runs between fork and
/// exec, where nothing but system calls is safe.
pub fn fork_to_gate(
    command: &Command,
    cgroups: &Cgroups,
    own_group: bool,
    inherited: &Inherited,
) -> io::Result<AtGate> {
    let (gate_read, gate_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (outcome_read, outcome_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let argv: Vec<*const libc::c_char> = pointers(&command.argv);
    let envp: Vec<*const libc::c_char> = pointers(&command.envp);
    // execve of a script without an interpreter line fails; like execvp, a shell then gets it.
    let mut shell_argv = vec![c"/bin/sh".as_ptr(), command.program.as_ptr()];
    shell_argv.extend_from_slice(&argv[1..]);
    let procs: Vec<RawFd> = cgroups.procs.iter().map(|fd| fd.as_raw_fd()).collect();
    let own_numbers = own_numbers(procs.len())?;
    let child = Child {
        program: command.program.as_ptr(),
        argv: argv.as_ptr(),
        shell_argv: shell_argv.as_ptr(),
        envp: envp.as_ptr(),
        procs: &procs,
        own_numbers: own_numbers.as_ref().map_or(-1, OwnedFd::as_raw_fd),
        gate: gate_read.as_raw_fd(),
        gate_write: gate_write.as_raw_fd(),
        outcome: outcome_write.as_raw_fd(),
        own_group,
        inherited,
    };
    // SAFETY: the child calls only async-signal-safe functions and never returns.
    let (pid, in_unified) = match unsafe { clone_child(cgroups.unified.map(|fd| fd.as_raw_fd()), 0) }? {
        (0, _) => unsafe { child.run() },
        born => born,
    };
    Ok(AtGate { pid, in_unified, gate: gate_write, outcome: outcome_read })
}

/// Executes `program` as a sibling: a child of this process's parent. What a supervisor starts this way
/// (a daemon) is not part of the job it supervises.
pub fn spawn_sibling(program: &CString, argv: &[CString], log: &OwnedFd) -> io::Result<()> {
    let argv_pointers = pointers(argv);
    let null =
        rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC, 0.into())?;
    // SAFETY: as above.
    match unsafe { clone_child(None, libc::CLONE_PARENT as u64) }? {
        (0, _) => unsafe {
            libc::setsid();
            unblock_all_signals();
            libc::chdir(c"/".as_ptr());
            libc::dup2(null.as_raw_fd(), 0);
            libc::dup2(null.as_raw_fd(), 1);
            libc::dup2(log.as_raw_fd(), 2);
            // Nothing of the caller's stays open: a lock he holds by a descriptor would never be free again.
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
            libc::execv(program.as_ptr(), argv_pointers.as_ptr());
            libc::_exit(127)
        },
        _ => Ok(()),
    }
}

/// libc's constant of this name overflows.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Forks, into a cgroup if one is given. Where that is refused the child stays where its parent is.
///
/// # Safety
/// The child must restrict itself to async-signal-safe calls.
unsafe fn clone_child(cgroup: Option<RawFd>, flags: u64) -> io::Result<(i32, bool)> {
    let clone = |cgroup: Option<RawFd>| {
        // SAFETY: an all-zero clone_args is valid.
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.flags = flags;
        // With CLONE_PARENT the kernel takes the parent's own exit signal and refuses another.
        args.exit_signal = if flags & libc::CLONE_PARENT as u64 == 0 { libc::SIGCHLD as u64 } else { 0 };
        if let Some(fd) = cgroup {
            args.flags |= CLONE_INTO_CGROUP;
            args.cgroup = fd as u64;
        }
        // SAFETY: the arguments are valid; without CLONE_VM this is a fork.
        unsafe { libc::syscall(libc::SYS_clone3, &mut args, size_of::<libc::clone_args>()) }
    };
    let mut pid = clone(cgroup);
    let inside = pid >= 0 && cgroup.is_some();
    if pid < 0 && cgroup.is_some() {
        pid = clone(None);
    }
    if pid < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) && flags == 0 {
        // A sandbox without clone3.
        // SAFETY: plain fork.
        pid = i64::from(unsafe { libc::fork() });
    }
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok((pid as i32, inside)) }
}

struct Child<'a> {
    program: *const libc::c_char,
    argv: *const *const libc::c_char,
    shell_argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    procs: &'a [RawFd],
    /// A pipe with a byte for each of these.
    own_numbers: RawFd,
    gate: RawFd,
    gate_write: RawFd,
    outcome: RawFd,
    own_group: bool,
    inherited: &'a Inherited,
}

impl Child<'_> {
    /// Waits at the gate: whether it was opened, and not closed for good.
    ///
    /// # Safety
    /// Only in a freshly forked child.
    unsafe fn is_opened(&self) -> bool {
        let mut gate = libc::pollfd { fd: self.gate, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry. All signals are blocked here, so nothing interrupts it but a stop.
        while unsafe { libc::poll(&mut gate, 1, -1) } < 0 {
            if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return false;
            }
        }
        gate.revents & libc::POLLIN != 0
    }

    /// # Safety
    /// Only in a freshly forked child.
    unsafe fn run(&self) -> ! {
        unsafe {
            // Held open here too, it would never report the parent's death.
            libc::close(self.gate_write);
            if self.own_group {
                libc::setpgid(0, 0);
            }
            for &procs in self.procs {
                let spliced =
                    libc::splice(self.own_numbers, ptr::null_mut(), procs, ptr::null_mut(), 1, 0) == 1;
                // Kernels before 5.10 splice nothing into these files.
                if !spliced && libc::write(procs, SELF.as_ptr().cast(), 1) != 1 {
                    libc::write(self.outcome, (&raw const NOT_ENTERED).cast(), 4);
                }
            }
            if !self.is_opened() {
                libc::_exit(125);
            }
            // The runtime ignores SIGPIPE; a job must not inherit that.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            if self.inherited.ignores_children {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &self.inherited.mask, ptr::null_mut());
            libc::execve(self.program, self.argv, self.envp);
            if *libc::__errno_location() == libc::ENOEXEC {
                libc::execve(c"/bin/sh".as_ptr(), self.shell_argv, self.envp);
            }
            let errno = *libc::__errno_location();
            libc::write(self.outcome, (&raw const errno).cast(), 4);
            libc::_exit(if errno == libc::ENOENT { 127 } else { 126 })
        }
    }
}

/// Means the process that writes it to `cgroup.procs`.
const SELF: &[u8; 1] = b"0";

/// A pipe with so many of these in it.
fn own_numbers(count: usize) -> io::Result<Option<OwnedFd>> {
    if count == 0 {
        return Ok(None);
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::write(&write, &SELF.repeat(count))?;
    Ok(Some(read))
}

/// # Safety
/// Async-signal-safe; changes the mask of the calling thread.
unsafe fn unblock_all_signals() {
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
}

/// Why a command cannot be run, found out before anything is started.
#[derive(Debug)]
pub enum LookupError {
    NotFound(String),
    NotExecutable(String),
}

impl LookupError {
    pub fn exit_code(&self) -> i32 {
        match self {
            LookupError::NotFound(_) => 127,
            LookupError::NotExecutable(_) => 126,
        }
    }
}

impl std::fmt::Display for LookupError {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            LookupError::NotFound(what) | LookupError::NotExecutable(what) => out.write_str(what),
        }
    }
}

/// Finds the program as a shell would: a name with a slash is a path from `cwd`, any other is searched in `path`.
pub fn look_up(name: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Result<PathBuf, LookupError> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        let program = cwd.join(name);
        return match executable(&program) {
            Ok(()) => Ok(PathBuf::from(name)),
            Err(Refusal::Absent) => Err(LookupError::NotFound(format!("{shown}: no such file"))),
            Err(Refusal::Because(why)) => Err(LookupError::NotExecutable(format!("{shown}: {why}"))),
        };
    }
    let path = path.map_or_else(|| OsStr::new("/usr/local/bin:/usr/bin:/bin").to_owned(), OsStr::to_owned);
    let mut refused = None;
    for folder in std::env::split_paths(&path) {
        let program = cwd.join(&folder).join(name);
        match executable(&program) {
            Ok(()) if !name.is_empty() => return Ok(program),
            Err(Refusal::Because(why)) => refused = Some(format!("{}: {why}", program.display())),
            _ => {}
        }
    }
    match refused {
        Some(why) if !name.is_empty() => Err(LookupError::NotExecutable(why)),
        _ if name.is_empty() => Err(LookupError::NotFound("the command is an empty string".to_owned())),
        _ => Err(LookupError::NotFound(format!("{shown}: command not found in PATH"))),
    }
}

enum Refusal {
    Absent,
    Because(&'static str),
}

fn executable(program: &Path) -> Result<(), Refusal> {
    let status = rustix::fs::stat(program).map_err(|_| Refusal::Absent)?;
    let kind = rustix::fs::FileType::from_raw_mode(status.st_mode);
    if kind == rustix::fs::FileType::Directory {
        return Err(Refusal::Because("is a directory"));
    }
    rustix::fs::access(program, rustix::fs::Access::EXEC_OK)
        .map_err(|_| Refusal::Because("is not executable; chmod +x it, or name its interpreter"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        let root = Path::new("/");
        assert!(look_up(OsStr::new("sh"), Some(OsStr::new("/nowhere:/bin")), root).is_ok());
        assert!(look_up(OsStr::new("bin/sh"), None, root).is_ok());
        let missing = look_up(OsStr::new("no-such-command"), Some(OsStr::new("/bin")), root).unwrap_err();
        assert_eq!(
            (missing.exit_code(), missing.to_string()),
            (127, "no-such-command: command not found in PATH".into())
        );
        assert_eq!(look_up(OsStr::new("/etc/passwd"), None, root).unwrap_err().exit_code(), 126);
        assert_eq!(look_up(OsStr::new("/etc"), None, root).unwrap_err().exit_code(), 126);
        assert_eq!(look_up(OsStr::new(""), Some(OsStr::new("/bin")), root).unwrap_err().exit_code(), 127);
    }
}
