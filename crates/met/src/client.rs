//! The asking end of a daemon's socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::protocol::{PROTOCOL, Reply, Request, read_frame, write_frame};

/// A daemon that says nothing for this long is as good as gone.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects and greets. A daemon that speaks an older protocol leaves upon our greeting, and this fails.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        let mut client = Client { stream };
        match client.call(&Request::Hello { protocol: PROTOCOL })? {
            Reply::Hello { protocol, .. } if protocol == PROTOCOL => Ok(client),
            Reply::Hello { protocol, .. } => {
                Err(io::Error::other(format!("the daemon speaks protocol {protocol}, this met {PROTOCOL}")))
            }
            reply => Err(io::Error::other(format!("unexpected greeting {reply:?}"))),
        }
    }

    /// Asks and waits for the answer; a refusal is an error.
    pub fn call(&mut self, request: &Request) -> io::Result<Reply> {
        // Nobody who reads "broken pipe" would think of a daemon that hung up.
        write_frame(&mut self.stream, request).map_err(|_| io::ErrorKind::ConnectionReset)?;
        match read_frame(&mut self.stream)? {
            Reply::Error { message } => Err(io::Error::new(io::ErrorKind::PermissionDenied, message)),
            Reply::Leaving => Err(io::ErrorKind::ConnectionReset.into()),
            reply => Ok(reply),
        }
    }

    pub fn read_unasked(&mut self) -> io::Result<Reply> {
        read_frame(&mut self.stream)
    }
}

/// Why a daemon that was there did not do what was asked.
pub fn unanswered(error: io::Error) -> anyhow::Error {
    match error.kind() {
        // Its own words.
        io::ErrorKind::PermissionDenied => anyhow!("{error}"),
        _ => anyhow!("the daemon does not answer: {error}; try again, `met doctor` says how it does"),
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl crate::jobs::Answers for Client {
    fn call(&mut self, request: &Request) -> Result<Reply> {
        Client::call(self, request).map_err(unanswered)
    }

    fn what(&self) -> &'static str {
        "the daemon"
    }
}
