//! Programs that a person has configured, such as those that send messages.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use met_core::units;
use rustix::process::{Pid, Signal};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs a program without a shell, with a text on its standard input, and ends it and what it started when it takes
/// too long.
pub fn run(program: &Path, arguments: &[&str], input: Option<&str>, within: Duration) -> Result<(), String> {
    let mut command = Command::new(program);
    // A group of its own can be ended as one.
    command.process_group(0);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    let (input, pipe) = (input.unwrap_or_default().to_owned(), child.stdin.take());
    // A program that does not read must not keep this one waiting.
    let writer = std::thread::spawn(move || pipe.map(|mut pipe| pipe.write_all(input.as_bytes())));
    let begin = Instant::now();
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => break,
            Some(status) => return Err(status.to_string()),
            None if begin.elapsed() >= within => {
                kill_group(&mut child);
                return Err(format!("no end after {}", units::duration(within.as_secs_f64())));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
    drop(writer);
    Ok(())
}

/// Until the child is waited for, no other group can have its number.
fn kill_group(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_its_input_and_may_fail_or_hang_for_a_while_only() {
        let sh = |script: &str, within| run(Path::new("/bin/sh"), &["-c", script], Some("word"), within);
        let long = Duration::from_secs(60);
        assert_eq!(sh("read -r word; test \"$word\" = word", long), Ok(()));
        assert!(sh("exit 3", long).unwrap_err().contains('3'));
        assert!(sh("sleep 60", Duration::from_millis(50)).unwrap_err().contains("no end after"));
        assert!(run(Path::new("/nonexistent"), &[], None, long).unwrap_err().contains("/nonexistent"));
    }
    #[test]
    fn what_a_program_started_ends_with_it_when_it_takes_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("alive");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let script = format!("exec 3<>{0}; sleep 1000 & sleep 1000", fifo.display());
        let hung = run(Path::new("/bin/sh"), &["-c", &script], None, Duration::from_millis(300));
        assert!(hung.unwrap_err().contains("no end after"));
        // The end of the pipe is read when no process is left that could write to it.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
        let pipe = rustix::fs::open(&fifo, flags, 0.into()).unwrap();
        let is_gone = (0..1000).any(|_| {
            std::thread::sleep(LOOK_EVERY);
            rustix::io::read(&pipe, &mut [0; 1]) == Ok(0)
        });
        assert!(is_gone, "the program in the background is still there");
    }
}
