//! The asking end of a daemon's socket.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use met_config::{Failure, Place, address};
use met_host::Peer;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::handshake::{self, Hello, PROTOCOL, PROTOCOL_OLDEST};
use crate::protocol::{Reply, Request, read_frame, write_frame};
use met_config::paths;

/// How long a daemon may take to accept a connection and to greet.
const GREETS_WITHIN: Duration = Duration::from_secs(1);
/// The same, where a job waits for it.
const GREETS_START_WITHIN: Duration = Duration::from_millis(200);
/// How long it may then be silent in the middle of a request or a reply.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// Why no daemon could be asked: one variant for each reaction.
#[derive(Debug)]
pub enum Unreachable {
    /// No process listens on the socket.
    Absent,
    /// A process listens and does not answer: it hangs, or is stopped.
    Silent { pid: Option<u32> },
    /// It refuses the connection, for lack of room: later it may not.
    Busy { pid: Option<u32>, reason: String },
    /// It has no version of the protocol in common with this program.
    Foreign { pid: Option<u32>, protocol: u32 },
    /// It closed the connection or is leaving.
    Failed(io::Error),
}

impl Unreachable {
    /// A copy, if a daemon runs but cannot be used.
    pub fn again(&self) -> Option<Unreachable> {
        match self {
            &Unreachable::Silent { pid } => Some(Unreachable::Silent { pid }),
            Unreachable::Busy { pid, reason } => {
                Some(Unreachable::Busy { pid: *pid, reason: reason.clone() })
            }
            &Unreachable::Foreign { pid, protocol } => Some(Unreachable::Foreign { pid, protocol }),
            Unreachable::Absent | Unreachable::Failed(_) => None,
        }
    }

    /// What to do about a daemon that runs but cannot be used.
    pub fn remedy(&self) -> Option<String> {
        match *self {
            Unreachable::Silent { pid: Some(pid) } => Some(format!(
                "`kill -KILL {pid}` ends it; jobs keep running, and the next daemon picks them \
                    up"
            )),
            Unreachable::Silent { pid: None } => {
                Some("end it; jobs keep running, and the next daemon picks them up".to_owned())
            }
            Unreachable::Busy { .. } => Some("try again in a moment".to_owned()),
            Unreachable::Foreign { .. } => {
                Some("restart it with this version of met, or use the version of the daemon".to_owned())
            }
            Unreachable::Absent | Unreachable::Failed(_) => None,
        }
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let daemon = |pid: &Option<u32>| match pid {
            Some(pid) => format!("the daemon (pid {pid})"),
            None => "the daemon".to_owned(),
        };
        match self {
            Unreachable::Absent => out.write_str("no daemon is running"),
            Unreachable::Silent { pid } => write!(out, "{} does not answer", daemon(pid)),
            Unreachable::Busy { pid, reason } => {
                write!(out, "{} refuses the connection: {reason}", daemon(pid))
            }
            Unreachable::Foreign { pid, protocol } => write!(
                out,
                "{} uses protocol {protocol}, this met supports {PROTOCOL_OLDEST} to {PROTOCOL}",
                daemon(pid)
            ),
            Unreachable::Failed(error) => write!(out, "cannot query the daemon: {error}"),
        }
    }
}

impl std::error::Error for Unreachable {}

/// A connection whose greeting was sent and not answered yet.
pub struct BegunGreeting {
    client: Client,
    socket: PathBuf,
    deadline: Instant,
    /// The version that introduced the request that was sent with it, if one was.
    request_since: Option<u32>,
}

pub struct Client {
    stream: UnixStream,
    pid: Option<u32>,
    /// The common protocol version.
    protocol: u32,
}

impl Client {
    /// To the daemon of a place, with the socket at which it serves: its own or, if none runs there, the one that the
    /// daemon which holds the state directory has written down.
    pub fn connect_to(place: &Place) -> Result<(Client, PathBuf), Unreachable> {
        Client::connect_or_elsewhere(&place.socket(), place.address().as_deref(), Client::connect)
    }

    /// The same with another way to connect.
    pub fn connect_or_elsewhere<C: AsFd>(
        own: &Path,
        announced: Option<&Path>,
        connect: impl Fn(&Path) -> Result<C, Unreachable>,
    ) -> Result<(C, PathBuf), Unreachable> {
        let file = match (connect(own), announced) {
            (Err(Unreachable::Absent), Some(file)) => file,
            (reached, _) => return reached.map(|client| (client, own.to_owned())),
        };
        let socket = address::elsewhere(file, own).ok_or(Unreachable::Absent)?;
        let client = connect(&socket)?;
        match address::is_own(&client) {
            true => Ok((client, socket)),
            false => Err(Unreachable::Absent),
        }
    }

    /// Connects and greets, to ask something.
    pub fn connect(socket: &Path) -> Result<Client, Unreachable> {
        Client::greet(socket, GREETS_WITHIN, Hello::ours(false))
    }

    /// The same for a job that is about to start. An older daemon of the same user is replaced.
    pub fn connect_for_start(socket: &Path) -> Result<Client, Unreachable> {
        Client::greet(socket, GREETS_START_WITHIN, Hello::ours(true))
    }

    /// The same without waiting for the answer, and with a first request in the same message: one round trip for both, in
    /// which the caller does something else. Only for the user's own daemon, which is replaced if it has another version:
    /// a system daemon of another version gets nothing but a greeting.
    pub fn begin_for_start(socket: &Path, first: Option<&Request>) -> Result<BegunGreeting, Unreachable> {
        Client::begin(socket, GREETS_START_WITHIN, first)
    }

    fn begin(socket: &Path, within: Duration, first: Option<&Request>) -> Result<BegunGreeting, Unreachable> {
        let deadline = Instant::now() + within;
        let mut client = Client::connect_by(socket, deadline)?;
        let mut said = Vec::new();
        let hello = Request::Hello(Hello::ours(true));
        for request in [Some(&hello), first].into_iter().flatten() {
            write_frame(&mut said, request).map_err(Unreachable::Failed)?;
        }
        // A daemon that refuses the connection may have closed it: its reply says why.
        let _ = client.stream.write_all(&said);
        let request_since = first.map(handshake::introduced);
        Ok(BegunGreeting { client, socket: socket.to_owned(), deadline, request_since })
    }

    fn connect_by(socket: &Path, deadline: Instant) -> Result<Client, Unreachable> {
        let stream = connect_until(socket, deadline).map_err(|error| unconnected(socket, error))?;
        // Unknown if it is outside this pid namespace.
        let pid = Peer::of(&stream).ok().map(|peer| peer.pid).filter(|&pid| pid > 0);
        let client = Client { stream, pid, protocol: PROTOCOL_OLDEST };
        client.set_timeout(left_until(deadline)).map_err(Unreachable::Failed)?;
        Ok(client)
    }

    fn greet(socket: &Path, within: Duration, hello: Hello) -> Result<Client, Unreachable> {
        let mut client = Client::connect_by(socket, Instant::now() + within)?;
        let reply = client.call(&Request::Hello(hello));
        client.greeted(reply)
    }

    fn greeted(mut self, reply: io::Result<Reply>) -> Result<Client, Unreachable> {
        let pid = self.pid;
        self.protocol = match reply {
            Ok(Reply::Hello { leaving: true, .. }) => {
                return Err(Unreachable::Failed(io::Error::other("it is being replaced by a newer one")));
            }
            Ok(Reply::Hello { protocol, .. }) if handshake::is_supported(protocol) => protocol,
            Ok(Reply::Hello { protocol, .. }) => return Err(Unreachable::Foreign { pid, protocol }),
            Ok(_) => return Err(Unreachable::Failed(io::Error::other("malformed greeting"))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Unreachable::Silent { pid });
            }
            // A system daemon refuses greetings only if it has no room.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Unreachable::Busy { pid, reason: error.to_string() });
            }
            Err(error) => return Err(Unreachable::Failed(error)),
        };
        self.set_timeout(ANSWERS_WITHIN).map_err(Unreachable::Failed)?;
        Ok(self)
    }

    /// How long each read and write may take: what comes slowly is waited for, what does not come is not.
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(timeout))
    }

    /// Asks and waits for the answer; a refusal is an error.
    pub fn call(&mut self, request: &Request) -> io::Result<Reply> {
        if handshake::introduced(request) > self.protocol {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the daemon is an older version of met and cannot do this; restart it",
            ));
        }
        let reply = match write_frame(&mut self.stream, request) {
            Ok(()) => return self.reply(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(self.silent(error)),
            // "broken pipe" does not explain why a daemon closed the connection; its last message may.
            Err(_) => read_frame(&mut self.stream).map_err(|_| io::ErrorKind::ConnectionReset)?,
        };
        accepted(reply)
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let reply = read_frame(&mut self.stream).map_err(|error| self.silent(error))?;
        accepted(reply)
    }

    fn silent(&self, error: io::Error) -> io::Error {
        match error.kind() {
            kind @ io::ErrorKind::WouldBlock => io::Error::new(kind, Unreachable::Silent { pid: self.pid }),
            _ => error,
        }
    }

    pub fn read_unasked(&mut self) -> io::Result<Reply> {
        read_frame(&mut self.stream)
    }
}

impl BegunGreeting {
    /// Waits for the greeting and for the answer. The answer is `None` without a request, and from a daemon that refuses it
    /// or is too old to know it.
    pub fn answered(mut self) -> Result<(Client, Option<Reply>), Unreachable> {
        self.client.set_timeout(left_until(self.deadline)).map_err(Unreachable::Failed)?;
        let greeting = self.client.reply();
        let mut client = self.client.greeted(greeting)?;
        let Some(request_since) = self.request_since else { return Ok((client, None)) };
        if request_since > client.protocol {
            // An older daemon hangs up on it.
            return Ok((Client::connect_for_start(&self.socket)?, None));
        }
        match client.reply() {
            Ok(answer) => Ok((client, Some(answer))),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok((client, None)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(Unreachable::Silent { pid: client.pid })
            }
            Err(error) => Err(Unreachable::Failed(error)),
        }
    }
}

impl AsFd for BegunGreeting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }
}

/// A refusal is an error.
fn accepted(reply: Reply) -> io::Result<Reply> {
    match reply.accepted() {
        Ok(Reply::Leaving) => Err(io::ErrorKind::ConnectionReset.into()),
        Ok(reply) => Ok(reply),
        Err(failure) => Err(io::Error::new(io::ErrorKind::PermissionDenied, failure)),
    }
}

/// Connects before the deadline. A plain `connect` blocks while the queue of the socket is full, which it stays if the
/// daemon hangs; the kernel limits this wait to the time limit for sending.
fn connect_until(socket: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket.as_os_str())?;
    let fd: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    loop {
        set_socket_timeout(&fd, Timeout::Send, Some(left_until(deadline)))?;
        match rustix::net::connect(&fd, &address) {
            // Interrupted by a signal: wait for what is left.
            Err(rustix::io::Errno::INTR) if Instant::now() < deadline => {}
            Err(rustix::io::Errno::INTR) => return Err(io::ErrorKind::WouldBlock.into()),
            result => return result.map(|()| UnixStream::from(fd)).map_err(io::Error::from),
        }
    }
}

/// Never zero, which would mean no limit at all.
fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn unconnected(socket: &Path, error: io::Error) -> Unreachable {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory => {
            Unreachable::Absent
        }
        // Its queue is full: without a connection the kernel does not know the peer.
        io::ErrorKind::WouldBlock => Unreachable::Silent { pid: paths::daemon_pid(socket) },
        _ => Unreachable::Failed(error),
    }
}

/// Why a running daemon did not fulfil a request.
pub fn unanswered(error: io::Error) -> anyhow::Error {
    match error.kind() {
        // Its own words.
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => match error.downcast::<Failure>() {
            Ok(failure) => failure.into(),
            Err(error) => anyhow!("{error}"),
        },
        io::ErrorKind::WouldBlock => match error.downcast::<Unreachable>() {
            Ok(silent) => anyhow::Error::new(silent),
            Err(error) => anyhow!("{error}"),
        },
        _ => anyhow!("the daemon does not answer: {error}; try again, or see `met doctor`"),
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn listening(root: &Path) -> (std::path::PathBuf, UnixListener) {
        let socket = root.join("daemon.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        (socket, listener)
    }

    fn greeted_by(reply: Reply) -> Result<Client, Unreachable> {
        let root = tempfile::tempdir().unwrap();
        let (socket, listener) = listening(root.path());
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let hello: Request = read_frame(&mut stream).unwrap();
            assert!(matches!(hello, Request::Hello(hello) if hello.newest == Some(PROTOCOL)));
            write_frame(&mut stream, &reply).unwrap();
            // Kept open until the client has gone.
            let _ = read_frame::<Request>(&mut stream);
        });
        // A generous limit: a slow machine is not a hung daemon.
        let outcome = Client::greet(&socket, ANSWERS_WITHIN, Hello::ours(false));
        if let Ok(client) = &outcome {
            client.stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
        answering.join().unwrap();
        outcome
    }

    fn hello(protocol: u32, leaving: bool) -> Reply {
        Reply::Hello { protocol, pid: 1, leaving }
    }

    #[test]
    fn a_daemon_that_does_not_run_is_absent() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("daemon.sock");
        assert!(matches!(Client::connect(&socket), Err(Unreachable::Absent)));
        drop(UnixListener::bind(&socket).unwrap());
        assert!(matches!(Client::connect(&socket), Err(Unreachable::Absent)), "its socket was left");
        std::fs::write(root.path().join("file"), "").unwrap();
        assert!(matches!(Client::connect(&root.path().join("file/d")), Err(Unreachable::Absent)));
    }

    #[test]
    fn a_daemon_that_does_not_accept_or_answer_is_silent_and_named() {
        let root = tempfile::tempdir().unwrap();
        let (socket, listener) = listening(root.path());
        let ours = Some(std::process::id());
        let silent = || match Client::connect_for_start(&socket) {
            Err(Unreachable::Silent { pid }) => pid,
            other => panic!("{:?}", other.err()),
        };
        assert_eq!(silent(), ours, "the queue takes it, and no greeting comes");
        // SAFETY: plain system call on a descriptor of ours.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 1) }, 0);
        let _waiting: Vec<_> = (0..2)
            .filter_map(|_| connect_until(&socket, Instant::now() + GREETS_START_WITHIN).ok())
            .collect();
        assert_eq!(silent(), None, "the queue is full, and the listener is unknown");
        std::fs::write(root.path().join("daemon.lock"), std::process::id().to_string()).unwrap();
        assert_eq!(silent(), ours, "but for the lock");
        let words = Unreachable::Silent { pid: Some(12) };
        assert_eq!(words.to_string(), "the daemon (pid 12) does not answer");
        assert!(words.remedy().unwrap().contains("kill -KILL 12"));
    }

    /// What a daemon of this version gets and sends if a request comes with the greeting, and what the client has then.
    fn asked_of(protocol: u32, answer: Reply) -> Result<(Client, Option<Reply>), Unreachable> {
        let root = tempfile::tempdir().unwrap();
        let (socket, listener) = listening(root.path());
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Both are there before anything is answered.
            let said = [read_frame(&mut stream).unwrap(), read_frame(&mut stream).unwrap()];
            assert!(matches!(said, [Request::Hello(Hello { replace: true, .. }), Request::InForce]));
            write_frame(&mut stream, &hello(protocol, false)).unwrap();
            if protocol >= 3 {
                write_frame(&mut stream, &answer).unwrap();
                return None;
            }
            let (mut stream, _) = listener.accept().unwrap();
            assert!(matches!(read_frame(&mut stream).unwrap(), Request::Hello(_)));
            write_frame(&mut stream, &hello(protocol, false)).unwrap();
            // Open until the client has read it.
            Some(stream)
        });
        // A generous limit: a slow machine is not a hung daemon.
        let outcome =
            Client::begin(&socket, ANSWERS_WITHIN, Some(&Request::InForce)).and_then(BegunGreeting::answered);
        answering.join().unwrap();
        outcome
    }

    #[test]
    fn a_question_travels_with_the_greeting() {
        let (_, answer) = asked_of(PROTOCOL, Reply::Done).unwrap();
        assert!(matches!(answer, Some(Reply::Done)));
        let refused = Reply::error("not for you");
        assert!(asked_of(PROTOCOL, refused).unwrap().1.is_none(), "the daemon can be used all the same");
        assert!(matches!(asked_of(PROTOCOL, Reply::Leaving), Err(Unreachable::Failed(_))));
        let (older, answer) = asked_of(2, Reply::Done).unwrap();
        assert!(answer.is_none() && older.protocol == 2, "one that hangs up on it is connected to again");
    }

    #[test]
    fn the_highest_common_version_is_used() {
        assert_eq!(greeted_by(hello(PROTOCOL, false)).unwrap().protocol, PROTOCOL);
        let mut older = greeted_by(hello(2, false)).unwrap();
        let refused = older.call(&Request::InForce).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        assert!(unanswered(refused).to_string().contains("older version of met"));
    }

    #[test]
    fn a_daemon_of_another_version_or_one_that_leaves_is_not_asked() {
        for protocol in [0, PROTOCOL + 1] {
            let Err(foreign) = greeted_by(hello(protocol, false)) else { panic!("asked") };
            assert!(foreign.to_string().contains(&format!("uses protocol {protocol}")), "{foreign}");
            assert!(foreign.again().is_some() && foreign.remedy().is_some());
        }
        for reply in [hello(PROTOCOL, true), Reply::Leaving, Reply::Done] {
            let Err(failed) = greeted_by(reply) else { panic!("asked") };
            assert!(matches!(failed, Unreachable::Failed(_)) && failed.again().is_none());
        }
    }

    #[test]
    fn a_daemon_without_room_is_busy_also_if_it_hung_up_before_the_greeting() {
        let full = || Reply::error("too many connections");
        let Err(busy) = greeted_by(full()) else { panic!("asked") };
        assert!(matches!(busy, Unreachable::Busy { .. }), "{busy}");
        assert!(busy.again().is_some() && busy.remedy().is_some());
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        write_frame(&mut theirs, &full()).unwrap();
        drop(theirs);
        let mut client = Client { stream: ours, pid: None, protocol: PROTOCOL };
        let refused = client.call(&Request::Hello(Hello::ours(false))).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn what_a_daemon_refuses_as_wrong_is_wrong_input_here_too() {
        for (error, code) in [(Failure::usage("has passed"), 2), (anyhow!("disk full"), 1)] {
            let (mut theirs, ours) = UnixStream::pair().unwrap();
            write_frame(&mut theirs, &Reply::refusal(&error)).unwrap();
            let mut client = Client { stream: ours, pid: None, protocol: PROTOCOL };
            let refused = unanswered(client.call(&Request::Status).unwrap_err());
            assert_eq!(refused.downcast_ref::<Failure>().map(|failure| failure.code), Some(code));
            assert_eq!(refused.to_string(), error.to_string());
        }
    }
}
