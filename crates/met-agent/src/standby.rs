//! A supervisor that is forked before its job is known. It prepares while the command line is read, and the program is
//! not started a second time.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use met_core::lossless_path;
use met_host::Host;
use met_jobs::processes;
use met_query::protocol;
use serde::{Deserialize, Serialize};

use crate::launch::{self, Surroundings};
use crate::passing;
use crate::supervise::{self, Assignment, Channel, Preparation};

/// The supervisor as its parent sees it. Dropping this ends it.
pub struct Standby {
    channel: UnixStream,
}

/// What it is to supervise. Standard output and error come with it as descriptors.
#[derive(Serialize, Deserialize)]
struct Order {
    assignment: Assignment,
    #[serde(with = "lossless_path")]
    program: PathBuf,
    #[serde(with = "lossless_path")]
    cwd: PathBuf,
    /// The command is so many of the last arguments of this process: both sides have them.
    argument_count: usize,
}

impl Standby {
    /// Forks it. Only while this process has one thread, and early: the supervisor keeps every page that was written
    /// to. `None` where that fails; then a supervisor is executed.
    pub fn fork(arguments: &[OsString]) -> Option<Standby> {
        let (ours, theirs) = UnixStream::pair().ok()?;
        // SAFETY: one thread; the child goes on as an ordinary single-threaded process.
        match unsafe { libc::fork() } {
            -1 => None,
            0 => {
                drop(ours);
                let failed = supervise(theirs, arguments).is_err();
                // SAFETY: ends the child without running what the parent registered for its own end.
                unsafe { libc::_exit(i32::from(failed)) }
            }
            _ => Some(Standby { channel: ours }),
        }
    }

    /// Whether it has this command: the last arguments of this process, unless the parser left one out (`--`).
    pub fn has(command: &[OsString]) -> bool {
        let arguments: Vec<OsString> = std::env::args_os().collect();
        arguments.ends_with(command)
    }

    /// Starts the job: its command is the last `argument_count` arguments of this process.
    pub fn start(
        mut self,
        assignment: Assignment,
        program: &Path,
        argument_count: usize,
        surroundings: Surroundings,
    ) -> Result<UnixStream> {
        let Surroundings { cwd, stdout, stderr } = surroundings;
        let order = Order { assignment, program: program.to_owned(), cwd, argument_count };
        passing::send_alone(&self.channel, &[stdout.as_fd(), stderr.as_fd()])
            .and_then(|()| protocol::write_frame(&mut self.channel, &order))
            .context(launch::ENDED_AT_ONCE)?;
        Ok(self.channel)
    }
}

/// The life of the supervisor. It is over where its parent has no job for it.
fn supervise(mut channel: UnixStream, arguments: &[OsString]) -> Result<()> {
    met_host::name_process(processes::SUPERVISOR_NAME);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let host = Host::real()?;
    // A job of `met run` is detached.
    let prepared = Preparation::new(&host, true);
    let streams = passing::receive_alone(&channel)?;
    let Ok([stdout, stderr]) = <[OwnedFd; 2]>::try_from(streams) else { return Ok(()) };
    let Order { assignment, program, cwd, argument_count } = protocol::read_frame(&mut channel)?;
    let mut channel = Channel::new(channel);
    if let Err(error) = std::env::set_current_dir(&cwd) {
        channel.fail(&format!("{}: {error}", cwd.display()));
        return Ok(());
    }
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(stderr)?;
    let argv = &arguments[arguments.len().saturating_sub(argument_count)..];
    let command = launch::marked(launch::prepare(program.as_os_str(), argv, &assignment)?, &assignment)?;
    supervise::supervise_child(host, prepared, assignment, command, channel);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn an_order_crosses_the_channel_whole_with_its_streams() {
        use std::os::unix::ffi::OsStringExt;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = rustix::pipe::pipe().map(|(r, w)| (File::from(r), w)).unwrap();
        let place = met_config::Place { state: "/s".into(), runtime: "/r".into(), system: false };
        let odd = PathBuf::from(OsString::from_vec(b"/\xff".to_vec()));
        let daemon = met_query::setting::DaemonPlace {
            socket: "/r/s".into(),
            address: None,
            system: false,
            config: None,
            log: "/log".into(),
        };
        let assignment = Assignment {
            record: met_core::sample::bare(7, "x"),
            inbox: Some(place),
            detached: true,
            until_last: true,
            daemon,
            start_before_cgroup: false,
            events: Vec::new(),
            notify: String::new(),
            // More than a socket takes at once.
            env: vec![(b"K".to_vec(), vec![0xff; 300_000])],
        };
        let standby = Standby { channel: ours };
        let surroundings = Surroundings {
            cwd: odd.clone(),
            stdout: writer.try_clone().unwrap().into(),
            stderr: writer.into(),
        };
        let sender = std::thread::spawn(move || {
            drop(standby.start(assignment, Path::new("/bin/x"), 3, surroundings).unwrap())
        });
        let streams = passing::receive_alone(&theirs).unwrap();
        assert_eq!(streams.len(), 2);
        let order: Order = protocol::read_frame(&mut theirs).unwrap();
        sender.join().unwrap();
        assert_eq!((order.cwd, order.argument_count), (odd, 3));
        assert_eq!(order.assignment.env[0].1.len(), 300_000);
        drop(streams);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "no other copy of the streams is left");
    }

    #[test]
    fn a_supervisor_without_an_order_ends() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(Standby { channel: ours });
        assert!(passing::receive_alone(&theirs).unwrap().is_empty());
    }
}
