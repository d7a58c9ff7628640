//! Programs that a person has configured, such as those that send messages.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use met_core::units;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs a program without a shell, with a text on its standard input, and ends it when it takes too long.
pub fn run(program: &Path, arguments: &[&str], input: Option<&str>, within: Duration) -> Result<(), String> {
    let mut command = Command::new(program);
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
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no end after {}", units::duration(within.as_secs_f64())));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
    drop(writer);
    Ok(())
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
}
