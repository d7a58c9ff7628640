//! Runs a program that the operator configured and returns what it prints. No shell, a time limit, a limit
//! on its output; never on the thread of a tick.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const OUTPUT_MAX_BYTES: usize = 64 << 10;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What the program printed, if it ended well and in time.
pub(crate) fn output_of(words: &[String], timeout: Duration) -> io::Result<Vec<u8>> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    #[expect(
        clippy::disallowed_methods,
        reason = "chosen by the operator, and run by a thread that may wait"
    )]
    let mut command = std::process::Command::new(program);
    // A group of its own, so that what it starts is ended with it.
    let command = command.args(arguments).process_group(0);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let deadline = Instant::now() + timeout;
    let result = read_all(&mut child, deadline).and_then(|output| {
        let status = wait(&mut child, deadline)?;
        if status.success() { Ok(output) } else { Err(io::Error::other(format!("{program}: {status}"))) }
    });
    if result.is_err() {
        end(&mut child);
    }
    result
}

fn read_all(child: &mut Child, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    let Some(pipe) = &child.stdout else { return Ok(output) };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut fds = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Err(too_slow()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        output.reserve(4 << 10);
        if rustix::io::retry_on_intr(|| rustix::io::read(pipe, spare_capacity(&mut output)))? == 0 {
            return Ok(output);
        }
        if output.len() > OUTPUT_MAX_BYTES {
            return Err(io::Error::other("it printed too much"));
        }
    }
}

/// It may close its output and run on.
fn wait(child: &mut Child, deadline: Instant) -> io::Result<std::process::ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            return Err(too_slow());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn end(child: &mut Child) {
    if let Ok(None) = child.try_wait()
        && let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it took too long and was killed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, timeout: Duration) -> Result<String, String> {
        let words = ["sh", "-c", script].map(str::to_owned);
        let output = output_of(&words, timeout).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(output).unwrap())
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_a_program_prints_is_returned_and_its_failures_are_errors() {
        assert_eq!(run("echo 220 Watts; echo noise >&2", LONG), Ok("220 Watts\n".to_owned()));
        assert_eq!(run("echo 220; exit 3", LONG), Err("sh: exit status: 3".to_owned()));
        assert!(output_of(&["/no/such/program".to_owned()], LONG).is_err());
        assert!(output_of(&[], LONG).is_err());
    }

    #[test]
    fn arguments_are_not_words_of_a_shell() {
        let words = ["echo", "$HOME; rm -rf x", "*"].map(str::to_owned);
        assert_eq!(output_of(&words, LONG).unwrap(), b"$HOME; rm -rf x *\n");
    }

    #[test]
    fn one_that_prints_without_end_or_hangs_is_ended() {
        assert_eq!(run("yes", LONG), Err("it printed too much".to_owned()));
        let slow = Err("it took too long and was killed".to_owned());
        assert_eq!(run("sleep 1000 & sleep 1000", Duration::from_millis(20)), slow);
        assert_eq!(run("exec >&-; sleep 1000", Duration::from_millis(20)), slow);
    }
}
