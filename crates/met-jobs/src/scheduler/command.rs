//! Runs a scheduler's command: no shell, a known environment, limits on its time and its output.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::{Recorded, kinds};

/// Where commands are searched for; the caller's search path is not trusted.
const FOLDERS: &[&str] = &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// The zone in which they write times.
const TIME_ZONE: &str = "TZ";
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(25);
const ANSWER_BYTES_MAX: usize = 64 << 20;
const COMPLAINT_BYTES_MAX: usize = 4 << 10;
/// How long a killed command is waited for before it is left to be reaped by a later run.
const DYING: Duration = Duration::from_secs(2);

/// Why a query failed, one variant for each reaction.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Trouble {
    /// There is nothing to query.
    #[error("{program} is not installed")]
    Absent { program: &'static str },
    /// Query a shorter window.
    #[error("{program} printed more than {} MiB", ANSWER_BYTES_MAX >> 20)]
    TooMuch { program: &'static str },
    /// Query again later; what was read is valid.
    #[error("{program}: output is cut off")]
    CutShort { program: &'static str, read: Vec<Recorded> },
    /// Query again later.
    #[error("{program}: {message}")]
    Failed { program: &'static str, message: String },
}

/// The commands of this machine's schedulers.
#[derive(Debug)]
pub struct Programs {
    folders: Vec<PathBuf>,
    timeout: Duration,
    answer_bytes_max: usize,
    /// Killed and not reaped yet: a process that waits for a dead file server cannot end.
    dying: Vec<Child>,
}

impl Programs {
    /// `folders` come before the system's own.
    pub fn new(folders: impl IntoIterator<Item = PathBuf>, timeout: Duration) -> Programs {
        let own = kinds().flat_map(|kind| kind.folders);
        let system = FOLDERS.iter().chain(own).map(PathBuf::from);
        let folders = folders.into_iter().filter(|folder| folder.is_absolute()).chain(system).collect();
        Programs { folders, timeout, answer_bytes_max: ANSWER_BYTES_MAX, dying: Vec::new() }
    }

    /// In these folders alone.
    #[cfg(test)]
    pub fn only(folder: &Path, timeout: Duration, answer_bytes_max: usize) -> Programs {
        Programs { folders: vec![folder.to_owned()], timeout, answer_bytes_max, dying: Vec::new() }
    }

    pub fn find(&self, program: &str) -> Option<PathBuf> {
        let candidates = self.folders.iter().map(|folder| folder.join(program));
        candidates.into_iter().find(|path| is_executable(path))
    }

    /// What the command writes to its standard output, if it ends well and in time.
    pub fn ask(&mut self, program: &'static str, arguments: &[String]) -> Result<Vec<u8>, Trouble> {
        let path = self.find(program).ok_or(Trouble::Absent { program })?;
        self.ask_at(program, &path, arguments)
    }

    /// A program that is being replaced at this moment is there in the next.
    fn spawn(&self, path: &Path, arguments: &[String]) -> io::Result<Child> {
        for _ in 0..BUSY_TRIES {
            match self.command(path, arguments).spawn() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(BUSY_PAUSE);
                }
                spawned => return spawned,
            }
        }
        self.command(path, arguments).spawn()
    }

    pub fn ask_at(
        &mut self,
        program: &'static str,
        path: &Path,
        arguments: &[String],
    ) -> Result<Vec<u8>, Trouble> {
        self.dying.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        let failed = |message: String| Trouble::Failed { program, message };
        let mut child = self.spawn(path, arguments).map_err(|error| failed(error.to_string()))?;
        let deadline = Instant::now() + self.timeout;
        let mut answer = Bounded::new(child.stdout.take(), self.answer_bytes_max);
        let mut complaint = Bounded::new(child.stderr.take(), COMPLAINT_BYTES_MAX);
        let listened = listen(&mut answer, &mut complaint, deadline);
        let status = listened.is_ok().then(|| wait_until(&mut child, deadline)).flatten();
        let Some(status) = status else {
            self.kill(child);
            return Err(match listened {
                Err(Interruption::TooMuch) => Trouble::TooMuch { program },
                Err(Interruption::Error(error)) => failed(error.to_string()),
                Ok(()) | Err(Interruption::TooLate) => {
                    failed(format!("no answer within {} s", self.timeout.as_secs_f32()))
                }
            });
        };
        match status.success() {
            true => Ok(answer.bytes),
            false => Err(failed(first_line(&complaint.bytes, program).unwrap_or_else(|| status.to_string()))),
        }
    }

    fn command(&self, path: &Path, arguments: &[String]) -> Command {
        let mut command = Command::new(path);
        command.args(arguments).current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_clear().env("LC_ALL", "C").env("HOME", "/");
        command.envs(kinds().flat_map(|kind| kind.environment).copied());
        command.env("PATH", std::env::join_paths(&self.folders).unwrap_or_default());
        let passed_on = kinds().flat_map(|kind| kind.passed_on).chain([&TIME_ZONE]);
        command.envs(passed_on.filter_map(|name| Some((name, std::env::var_os(name)?))));
        command
    }

    /// The whole group: a wrapper script's children would keep the pipes open.
    fn kill(&mut self, mut child: Child) {
        if let Some(group) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if wait_until(&mut child, Instant::now() + DYING).is_none() {
            self.dying.push(child);
        }
    }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// A stream and as much of it as is wanted.
struct Bounded<T> {
    stream: Option<T>,
    bytes: Vec<u8>,
    bytes_max: usize,
    overflowed: bool,
}

impl<T: Read + AsFd> Bounded<T> {
    fn new(stream: Option<T>, bytes_max: usize) -> Bounded<T> {
        Bounded { stream, bytes: Vec::new(), bytes_max, overflowed: false }
    }

    fn read(&mut self) -> std::io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let mut chunk = [0; 16 << 10];
        let length = match stream.read(&mut chunk) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(()),
            length => length?,
        };
        if length == 0 {
            self.stream = None;
        }
        let room = self.bytes_max - self.bytes.len();
        self.overflowed |= length > room;
        self.bytes.extend_from_slice(&chunk[..length.min(room)]);
        Ok(())
    }
}

enum Interruption {
    TooLate,
    TooMuch,
    Error(std::io::Error),
}

/// Reads both streams to their ends; what is too much of a complaint is read and dropped.
fn listen<A: Read + AsFd, C: Read + AsFd>(
    answer: &mut Bounded<A>,
    complaint: &mut Bounded<C>,
    deadline: Instant,
) -> Result<(), Interruption> {
    while answer.stream.is_some() || complaint.stream.is_some() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Interruption::TooLate);
        }
        let mut fds = Vec::with_capacity(2);
        fds.extend(answer.stream.as_ref().map(|stream| PollFd::new(stream, PollFlags::IN)));
        fds.extend(complaint.stream.as_ref().map(|stream| PollFd::new(stream, PollFlags::IN)));
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Interruption::Error(error.into())),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let answers = answer.stream.is_some();
        if answers && ready[0] {
            answer.read().map_err(Interruption::Error)?;
        }
        if ready.get(usize::from(answers)).is_some_and(|&ready| ready) {
            complaint.read().map_err(Interruption::Error)?;
        }
        if answer.overflowed {
            return Err(Interruption::TooMuch);
        }
    }
    Ok(())
}

/// A command that has closed its output ends within moments, so looking again soon costs next to nothing.
fn wait_until(child: &mut Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    let mut pause = Duration::from_micros(200);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// What a command complained about, fit for one line of a log.
fn first_line(complaint: &[u8], program: &str) -> Option<String> {
    let text = String::from_utf8_lossy(complaint);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    // The program is named anyway.
    let line = line.strip_prefix(program).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(line);
    let line = line.strip_prefix("error: ").unwrap_or(line);
    Some(line.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).take(200).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn programs(script: &str, timeout: Duration) -> (tempfile::TempDir, Programs) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sacct");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let programs = Programs::only(folder.path(), timeout, 1 << 20);
        (folder, programs)
    }

    const LONG: Duration = Duration::from_secs(60);

    fn ask(script: &str) -> Result<String, Trouble> {
        let (_folder, mut programs) = programs(script, LONG);
        programs.ask("sacct", &["$(id)".into()]).map(|answer| String::from_utf8(answer).unwrap())
    }

    #[test]
    fn arguments_reach_the_command_as_they_are_and_the_environment_is_known() {
        assert_eq!(ask("printf %s \"$1\"").unwrap(), "$(id)");
        assert_eq!(ask("echo $SLURM_TIME_FORMAT $LC_ALL $CARGO_MANIFEST_DIR; pwd").unwrap(), "%s C\n/\n");
        assert_eq!(ask("cat; echo end").unwrap(), "end\n", "there is no input");
    }

    #[test]
    fn a_failure_contains_the_message_of_the_command() {
        let failed = |message: &str| Trouble::Failed { program: "sacct", message: message.into() };
        assert_eq!(ask("echo oh >&2; exit 1").unwrap_err(), failed("oh"));
        assert_eq!(ask("echo sacct: error: oh >&2; exit 1").unwrap_err(), failed("oh"));
        assert_eq!(ask("exit 3").unwrap_err(), failed("exit status: 3"));
        let long = "i=0; while [ $i -lt 3000 ]; do echo aaaaaaaaaa >&2; i=$((i+1)); done; exit 1";
        assert_eq!(ask(long).unwrap_err(), failed("aaaaaaaaaa"), "all of it is read, so that it can end");
        let mut none = Programs::only(Path::new("/nonexistent"), LONG, 1);
        assert_eq!(none.ask("sacct", &[]).unwrap_err(), Trouble::Absent { program: "sacct" });
    }

    #[test]
    fn a_command_with_too_much_output_or_none_is_killed_with_its_children() {
        let (_folder, mut noisy) = programs("while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done", LONG);
        assert_eq!(noisy.ask("sacct", &[]).unwrap_err(), Trouble::TooMuch { program: "sacct" });
        assert!(noisy.dying.is_empty());

        let (folder, mut silent) =
            programs("/bin/sleep 1000 & echo $! > ${0%/*}/child; wait", Duration::from_secs(1));
        let error = silent.ask("sacct", &[]).unwrap_err();
        assert_eq!(error.to_string(), "sacct: no answer within 1 s");
        assert!(silent.dying.is_empty());
        let child = fs::read_to_string(folder.path().join("child")).unwrap();
        // It was killed with the others and dies when the kernel comes to it.
        let is_dead = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        while !is_dead() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
