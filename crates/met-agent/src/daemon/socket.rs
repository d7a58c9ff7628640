//! The daemon's socket: one instance by a lock, connections with their peers' credentials.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use met_core::job::JobKey;
pub use met_host::Peer;
use rustix::fs::FlockOperation;

use super::spare_descriptors::Spare;
use crate::passed_counters::{Budget, Received};
use crate::passing;
use met_config::Place;
use met_config::address;
use met_query::client::Client;
use met_query::handshake::PROTOCOL_OLDEST;
use met_query::protocol::{self, Reply, Request};

/// How long a starting daemon waits for a leaving one to let go of the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// The lock, held for the life of a daemon, and the socket bound under it.
pub struct Post {
    _lock: File,
    pub listener: UnixListener,
    socket: PathBuf,
    /// The file that names the socket to callers with another runtime directory.
    address: Option<PathBuf>,
    system: bool,
}

/// The right to be the one daemon, before its socket is open.
pub struct Claim {
    lock: File,
}

impl Claim {
    /// Takes the place of the one daemon. `None`: another one serves already.
    pub fn take(place: &Place) -> Result<Option<Claim>> {
        let path = place.lock();
        let lock = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let lock = lock.with_context(|| format!("cannot open {}", path.display()))?;
        let begin = Instant::now();
        while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Client::connect(&place.socket()).is_ok() || begin.elapsed() > LOCK_TIMEOUT {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // For those who cannot ask, because it hangs. Best effort: the lock itself is what counts.
        let pid = std::process::id().to_string();
        let _ = lock.set_len(0).and_then(|()| (&lock).write_all(pid.as_bytes()));
        Ok(Some(Claim { lock }))
    }

    /// Starts to listen: from now on connections are answered.
    pub fn open_socket(self, place: &Place) -> Result<Post> {
        let listener = bind(&place.socket(), place.system)?;
        let post = Post {
            _lock: self.lock,
            listener,
            socket: place.socket(),
            address: place.address(),
            system: place.system,
        };
        post.announce();
        Ok(post)
    }
}

/// Removes the socket that a killed daemon left; one that serves, or is about to, keeps the lock.
pub fn remove_dead_socket(place: &Place) {
    let lock = fs::OpenOptions::new().write(true).open(place.lock());
    if lock.is_ok_and(|lock| rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()) {
        let _ = fs::remove_file(place.socket());
        remove_half_bound(&place.socket());
    }
}

/// Removes sockets of daemons that were killed before they renamed them. The lock is held: no other daemon binds now.
fn remove_half_bound(socket: &Path) {
    let Some(folder) = socket.parent() else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_pid =
            path.extension().and_then(|pid| pid.to_str()).is_some_and(|pid| pid.parse::<u32>().is_ok());
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_pid && is_socket && path.file_stem() == socket.file_stem() {
            let _ = fs::remove_file(path);
        }
    }
}

impl Post {
    /// A full disk is no reason not to serve those who find the socket without it.
    fn announce(&self) {
        let Some(file) = &self.address else { return };
        if let Err(error) = address::announce(file, &self.socket) {
            tracing::warn!("cannot write {}: {error}", file.display());
        }
    }

    /// Removes the socket; one last accept finds clients that had connected by then.
    pub fn close_socket(&mut self) -> Option<(UnixStream, Peer)> {
        self.address.iter().for_each(|file| address::withdraw(file));
        let _ = fs::remove_file(&self.socket);
        self.accept()
    }

    pub fn reopen_socket(&mut self) -> Result<()> {
        self.listener = bind(&self.socket, self.system)?;
        self.announce();
        Ok(())
    }

    pub fn accept(&self) -> Option<(UnixStream, Peer)> {
        self.accept_with(&mut Spare::default())
    }

    /// Without descriptors a client is accepted with a spare one and turned away: it would wait for ever.
    pub fn accept_with(&self, spare: &mut Spare) -> Option<(UnixStream, Peer)> {
        let (stream, _) = match self.listener.accept() {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                let sent_away = spare.try_with(|| self.listener.accept()).is_ok();
                if spare.is_news() {
                    tracing::warn!("no descriptors are left for connections: {error}");
                }
                if !sent_away {
                    // The socket stays readable: a pause is better than a spin.
                    std::thread::sleep(Duration::from_millis(50));
                }
                return None;
            }
            accepted => accepted.ok()?,
        };
        stream.set_nonblocking(true).ok()?;
        let peer = Peer::of(&stream).ok()?;
        Some((stream, peer))
    }
}

/// Bound under another name and renamed: a client finds the old socket, none, or one that answers.
fn bind(socket: &Path, system: bool) -> Result<UnixListener> {
    remove_half_bound(socket);
    let fresh = socket.with_extension(format!("{}", std::process::id()));
    let bound = UnixListener::bind(&fresh).with_context(|| format!("cannot bind {}", fresh.display()))?;
    bound.set_nonblocking(true)?;
    // All users may connect to a system daemon; what it answers depends on who does.
    fs::set_permissions(&fresh, fs::Permissions::from_mode(if system { 0o666 } else { 0o600 }))?;
    fs::rename(&fresh, socket).with_context(|| format!("cannot create {}", socket.display()))?;
    Ok(bound)
}

/// A client and what has not been read or written yet: one request, and one reply.
pub struct Connection {
    stream: UnixStream,
    pub peer: Peer,
    /// The job whose supervisor this is.
    pub job: Option<JobKey>,
    /// The version that was agreed on; of a peer that has not introduced itself, the oldest.
    pub protocol: u32,
    /// Nothing of it was served yet.
    pub is_new: bool,
    arrived: Vec<u8>,
    leaving: Vec<u8>,
    /// How much of it the peer has taken.
    taken: usize,
    /// When something last went either way.
    moved: Instant,
    /// The peer takes no replies any more; its earlier messages may still report a job.
    is_deaf: bool,
    /// The next request cannot be answered yet.
    is_postponed: bool,
    /// Descriptors that a supervisor sent with the next request.
    received: Option<Received>,
}

impl Connection {
    pub fn new(stream: UnixStream, peer: Peer) -> Connection {
        let (arrived, leaving) = (Vec::new(), Vec::new());
        Connection {
            stream,
            peer,
            job: None,
            protocol: PROTOCOL_OLDEST,
            is_new: true,
            arrived,
            leaving,
            taken: 0,
            moved: Instant::now(),
            is_deaf: false,
            is_postponed: false,
            received: None,
        }
    }

    /// The descriptors that came with the request.
    pub fn take_received(&mut self) -> Option<Received> {
        self.received.take()
    }

    pub fn wants_to_write(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether a whole request has arrived, or what is none.
    pub fn has_request(&self) -> bool {
        protocol::has_frame(&self.arrived)
    }

    pub fn held_bytes(&self) -> usize {
        self.arrived.capacity() + self.leaving.capacity()
    }

    /// When something last went either way, where the peer owes the rest of a request or has yet to take a reply.
    pub fn stalled_since(&self) -> Option<Instant> {
        let is_partial = !self.arrived.is_empty() && !self.has_request();
        (is_partial || self.wants_to_write()).then_some(self.moved)
    }

    pub fn is_deaf(&self) -> bool {
        self.is_deaf
    }

    /// Whether something has arrived that was not read yet.
    pub fn has_unread(&self) -> bool {
        self.has_request() || rustix::io::ioctl_fionread(&self.stream).is_ok_and(|bytes| bytes > 0)
    }

    pub fn quiet_since(&self) -> Instant {
        self.moved
    }

    /// Reads some of what is there, unless a request waits already; the rest is there in the next round, after the
    /// others had their turn. False when the peer is gone.
    pub fn receive(&mut self, budget: &Budget) -> bool {
        if self.has_request() {
            return true;
        }
        let mut chunk = [0; 64 << 10];
        // From other users the kernel delivers no descriptors.
        let read = match self.job.is_some() && self.received.is_none() {
            true => {
                let mut descriptors = Vec::new();
                let read = passing::receive(&self.stream, &mut chunk, &mut descriptors);
                self.received = budget.hold(self.peer.uid, descriptors);
                read
            }
            false => self.stream.read(&mut chunk),
        };
        match read {
            Ok(0) => false,
            Ok(length) => {
                self.arrived.extend_from_slice(&chunk[..length]);
                self.moved = Instant::now();
                true
            }
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// The next request, once the last reply has been taken. An error is a peer that speaks nonsense.
    pub fn take_request(&mut self) -> Option<io::Result<Request>> {
        if self.wants_to_write() {
            return None;
        }
        self.is_postponed = false;
        let taken = protocol::take_frame(&mut self.arrived).transpose();
        if self.arrived.is_empty() {
            self.arrived = Vec::new();
        }
        // No other request has descriptors.
        let is_counters = matches!(taken, Some(Ok(Request::Counters { .. })));
        if taken.is_some() && (!is_counters || self.is_deaf) {
            self.received = None;
        }
        taken
    }

    /// Puts a request back, to be taken again when it can be answered.
    pub fn postpone(&mut self, request: &Request) -> io::Result<()> {
        let mut frame = Vec::new();
        protocol::write_frame(&mut frame, request)?;
        frame.append(&mut self.arrived);
        self.arrived = frame;
        self.is_postponed = true;
        Ok(())
    }

    pub fn is_postponed(&self) -> bool {
        self.is_postponed
    }

    /// Queues a reply; `flush` sends it. One that is too large for a frame becomes an error the peer can read.
    pub fn reply(&mut self, reply: &Reply) {
        if let Err(error) = protocol::write_frame(&mut self.leaving, reply) {
            let _ = protocol::write_frame(&mut self.leaving, &Reply::error(error.to_string()));
        }
    }

    /// Sends as much as the peer takes.
    pub fn flush(&mut self) {
        while self.taken < self.leaving.len() && !self.is_deaf {
            match self.stream.write(&self.leaving[self.taken..]) {
                Ok(length @ 1..) => {
                    self.taken += length;
                    self.moved = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => self.is_deaf = true,
            }
        }
        (self.leaving, self.taken) = (Vec::new(), 0);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supervisor(uid: u32) -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut connection = Connection::new(ours, Peer { uid, pid: 1 });
        connection.job = Some(key());
        (connection, theirs)
    }

    fn key() -> JobKey {
        JobKey { cluster: None, manager: "local".to_owned(), id: "1".to_owned(), incarnation: 1 }
    }

    fn send(stream: &UnixStream, request: &Request, count: usize) {
        let pipes: Vec<_> = (0..count).map(|_| rustix::pipe::pipe().unwrap().0).collect();
        let descriptors: Vec<_> = pipes.iter().map(AsFd::as_fd).collect();
        passing::send(stream, request, &descriptors).unwrap();
    }

    #[test]
    fn a_daemon_removes_what_one_left_that_was_killed_while_it_bound() {
        let root = tempfile::tempdir().unwrap();
        let place = Place { state: root.path().join("state"), runtime: root.path().to_owned(), system: true };
        let beside = |name: &str| root.path().join(name);
        for left in ["daemon.4321", "daemon.99", "other.4321", "daemon.x1"] {
            UnixListener::bind(beside(left)).unwrap();
        }
        fs::write(beside("daemon.17"), "a file of somebody").unwrap();
        let post = Claim::take(&place).unwrap().unwrap().open_socket(&place).unwrap();
        let mut names: Vec<String> = fs::read_dir(root.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".lock"))
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["daemon.17", "daemon.sock", "daemon.x1", "other.4321"]);
        drop(post);
    }

    #[test]
    fn descriptors_are_dropped_with_the_request_that_has_none() {
        let budget = Budget::of_process();
        let counters = || Request::Counters { key: key(), in_cgroup: false, events: Vec::new() };
        let (mut connection, peer) = supervisor(0);
        send(&peer, &Request::Status, 2);
        assert!(connection.receive(&budget) && budget.held() == 2, "held and counted");
        assert!(matches!(connection.take_request(), Some(Ok(Request::Status))));
        assert!(connection.received.is_none() && budget.held() == 0);
        // A request that is postponed keeps them.
        send(&peer, &counters(), 3);
        assert!(connection.receive(&budget));
        connection.take_request().unwrap().unwrap();
        connection.postpone(&counters()).unwrap();
        assert!(connection.receive(&budget));
        assert!(matches!(connection.take_request(), Some(Ok(Request::Counters { .. }))));
        assert_eq!(budget.held(), 3);
        drop(connection.take_received());
        assert_eq!(budget.held(), 0);
        // No other request passes any.
        connection.job = None;
        send(&peer, &counters(), 3);
        assert!(connection.receive(&budget) && connection.received.is_none());
    }
}
