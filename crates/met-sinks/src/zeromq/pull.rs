//! A PULL socket that listens: one thread, any number of peers up to a bound, memory bounded for each and for all.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use met_wire::zmtp::{self, Decoder, Input, Socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Stream;

const PEERS_MAX: usize = 4096;
/// After a connection that could not be taken, as when there are no more descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Of one address: a broken peer that connects again and again takes no place of others.
const PEERS_OF_ADDRESS_MAX: usize = 64;
/// Buffers with unfinished messages, of all peers together.
const HELD_BYTES_MAX: usize = 64 << 20;
/// What one peer may hand over before others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// Peers read into one buffer, in turn. One that holds more of a message than this has a buffer of its own.
const SHARED_HELD_MAX: usize = 64 << 10;
const READ_BYTES: usize = 64 << 10;
/// If so little came in a turn, more is waited for: to wake up for each message, here and in the sinks, took longer than to take
/// it, and so did the system to acknowledge each little reading. Meanwhile messages wait in its buffers, which grow.
const FEW_BYTES: usize = 256 << 10;
const GATHER_FOR: Duration = Duration::from_millis(4);
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Replies to pings that a peer does not read.
const UNSENT_BYTES_MAX: usize = 4096;

/// A message, or why a peer was left.
pub type Received<'a> = Result<&'a [u8], String>;

/// The same with a copy of the message, and who sent it.
pub struct Message {
    /// One that connected by a file has the address of this machine.
    pub peer: IpAddr,
    pub received: Result<Vec<u8>, String>,
}

struct Peer {
    stream: Stream,
    address: IpAddr,
    decoder: Decoder,
    /// What could not be written yet.
    unsent: Vec<u8>,
    since: Instant,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// A file that only this user may open. One that another process serves, or that is no socket, is left alone.
    fn bind_file(path: &Path) -> anyhow::Result<Listener> {
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                bail!("{} exists and is not a socket", path.display());
            }
            if UnixStream::connect(path).is_ok() {
                bail!("another process listens at {}", path.display());
            }
        }
        // Bound under another name and renamed: it has its mode before any process finds it.
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        let failed = || format!("cannot listen at {}", path.display());
        let _ = fs::remove_file(&fresh);
        let listener = UnixListener::bind(&fresh).with_context(failed)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)).with_context(failed)?;
        fs::rename(&fresh, path).with_context(failed)?;
        listener.set_nonblocking(true).with_context(failed)?;
        Ok(Listener::Unix(listener, path.to_owned()))
    }

    fn accept(&self) -> io::Result<(Stream, IpAddr)> {
        match self {
            Listener::Tcp(listener) => {
                listener.accept().map(|(stream, peer)| (Stream::Tcp(stream), peer.ip().to_canonical()))
            }
            Listener::Unix(listener, _) => {
                listener.accept().map(|(stream, _)| (Stream::Unix(stream), Ipv4Addr::LOCALHOST.into()))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

pub struct Pull {
    listeners: Vec<Listener>,
    peers: Vec<Peer>,
    peers_max: usize,
    /// Longer messages are refused.
    message_bytes_max: usize,
    /// What a peer reads into, in its turn.
    shared: Vec<u8>,
    /// Bytes of all peers that came in the last turn.
    received: usize,
}

impl Pull {
    pub fn bind(addresses: &[SocketAddr], message_bytes_max: usize) -> anyhow::Result<Pull> {
        let mut listeners = Vec::new();
        for address in addresses {
            let failed = || format!("cannot listen on {address}");
            let listener = TcpListener::bind(address).with_context(failed)?;
            listener.set_nonblocking(true).with_context(failed)?;
            listeners.push(Listener::Tcp(listener));
        }
        Ok(Pull::of(listeners, message_bytes_max))
    }

    /// At a file that only this user may open.
    pub fn bind_file(path: &Path, message_bytes_max: usize) -> anyhow::Result<Pull> {
        let listeners = vec![Listener::bind_file(path)?];
        Ok(Pull::of(listeners, message_bytes_max))
    }

    fn of(listeners: Vec<Listener>, message_bytes_max: usize) -> Pull {
        Pull {
            listeners,
            peers: Vec::new(),
            peers_max: PEERS_MAX,
            message_bytes_max,
            shared: Vec::new(),
            received: 0,
        }
    }

    /// Takes no more connections than these.
    pub fn at_most(self, peers_max: usize) -> Pull {
        Pull { peers_max, ..self }
    }

    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let tcp = self.listeners.iter().filter_map(|listener| match listener {
            Listener::Tcp(listener) => Some(listener.local_addr()),
            Listener::Unix(..) => None,
        });
        tcp.collect()
    }

    /// Messages that came within a time, without one at any time, of peers that may connect.
    pub fn wait(&mut self, within: Option<Duration>, may_connect: impl Fn(IpAddr) -> bool) -> Vec<Message> {
        let mut messages = Vec::new();
        self.serve(within, may_connect, &mut |peer, received: Received<'_>| {
            messages.push(Message { peer, received: received.map(<[u8]>::to_vec) });
        });
        messages
    }

    /// The same, without copies: `take` gets each message where it was received.
    pub fn serve(
        &mut self,
        within: Option<Duration>,
        may_connect: impl Fn(IpAddr) -> bool,
        take: &mut impl FnMut(IpAddr, Received<'_>),
    ) {
        if (1..FEW_BYTES).contains(&std::mem::take(&mut self.received)) {
            std::thread::sleep(GATHER_FOR);
        }
        let mut fds: Vec<PollFd<'_>> =
            self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
        fds.extend(self.peers.iter().map(|peer| {
            let wanted = if peer.unsent.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            PollFd::new(&peer.stream, wanted)
        }));
        // A peer that does not finish its handshake is left, even if nothing else happens.
        let is_opening = self.peers.iter().any(|peer| !peer.decoder.is_ready());
        let within = within.into_iter().chain(is_opening.then_some(HANDSHAKE_WITHIN)).min();
        let timeout = within.and_then(|within| Timespec::try_from(within).ok());
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return;
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let (of_listeners, of_peers) = is_ready.split_at(self.listeners.len());
        self.receive(of_peers, take);
        for (index, _) in of_listeners.iter().enumerate().filter(|(_, is_ready)| **is_ready) {
            self.accept(index, &may_connect, take);
        }
    }

    fn receive(&mut self, is_ready: &[bool], take: &mut impl FnMut(IpAddr, Received<'_>)) {
        let mut held: usize = self.peers.iter().map(|peer| peer.decoder.buffer_bytes()).sum();
        let (mut flags, shared, received) = (is_ready.iter(), &mut self.shared, &mut self.received);
        self.peers.retain_mut(|peer| {
            let (is_ready, before) = (flags.next().is_some_and(|flag| *flag), peer.decoder.buffer_bytes());
            let done = if is_ready { peer.turn(shared, received, take) } else { Ok(true) };
            held = held - before + peer.decoder.buffer_bytes();
            let late = !peer.decoder.is_ready() && peer.since.elapsed() > HANDSHAKE_WITHIN;
            let why = match done {
                Ok(true) if held > HELD_BYTES_MAX => {
                    held -= peer.decoder.buffer_bytes();
                    Some("too many unfinished messages".to_owned())
                }
                Ok(true) if late => Some("no handshake of ZeroMQ".to_owned()),
                Ok(true) => return true,
                // It ended by itself.
                Ok(false) => None,
                Err(why) => Some(why),
            };
            why.into_iter().for_each(|why| take(peer.address, Err(why)));
            false
        });
    }

    fn accept(
        &mut self,
        index: usize,
        may_connect: &impl Fn(IpAddr) -> bool,
        take: &mut impl FnMut(IpAddr, Received<'_>),
    ) {
        loop {
            let (stream, address) = match self.listeners[index].accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        std::thread::sleep(ACCEPT_AGAIN_AFTER);
                    }
                    return;
                }
            };
            let of_address = self.peers.iter().filter(|peer| peer.address == address).count();
            let refused = if !may_connect(address) {
                Some("an address that colmet.allow does not name")
            } else if self.peers.len() >= self.peers_max || of_address >= PEERS_OF_ADDRESS_MAX {
                Some("too many connections")
            } else {
                None
            };
            if let Some(why) = refused {
                take(address, Err(why.to_owned()));
                continue;
            }
            let mut peer = Peer {
                stream,
                address,
                decoder: Decoder::new(Socket::Pull, self.message_bytes_max),
                unsent: zmtp::opening(Socket::Pull),
                since: Instant::now(),
            };
            // A peer that has gone already needs no word.
            if peer.stream.set_nonblocking().is_ok() && peer.write().is_ok() {
                self.peers.push(peer);
            }
        }
    }
}

impl Peer {
    /// Reads what has come; `false` when there will be no more.
    fn turn(
        &mut self,
        shared: &mut Vec<u8>,
        received: &mut usize,
        take: &mut impl FnMut(IpAddr, Received<'_>),
    ) -> Result<bool, String> {
        let shares = self.decoder.held() <= SHARED_HELD_MAX;
        if shares {
            self.decoder.move_into(std::mem::take(shared));
        }
        let done = self.read(received, take);
        if shares {
            *shared = self.decoder.move_into(Vec::new());
        } else if self.decoder.held() <= SHARED_HELD_MAX || self.has_mostly_room() {
            // A long message is complete. The peer may send nothing more, and would keep its buffer.
            drop(self.decoder.move_into(Vec::new()));
        }
        // A peer that only sends and goes is no error.
        done.map(|is_open| self.write().is_ok() && is_open)
    }

    /// More than a buffer has that grows with what comes.
    fn has_mostly_room(&self) -> bool {
        self.decoder.buffer_bytes() > 4 * self.decoder.held()
    }

    fn read(
        &mut self,
        received: &mut usize,
        take: &mut impl FnMut(IpAddr, Received<'_>),
    ) -> Result<bool, String> {
        let mut left = TURN_BYTES;
        let mut is_open = true;
        while left > 0 && is_open {
            // A buffer of its own grows with what has come.
            let asked = if self.decoder.held() > SHARED_HELD_MAX { READ_BYTES } else { left.max(READ_BYTES) };
            match self.stream.read(&mut self.decoder.room(asked)[..asked]) {
                Ok(0) => is_open = false,
                Ok(count) => {
                    self.decoder.fill(count);
                    *received += count;
                    // Less than there was room for: there is no more.
                    left = if count < asked { 0 } else { left.saturating_sub(count) };
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => is_open = false,
            }
            while let Some(input) = self.decoder.next_input().map_err(|error| error.to_string())? {
                match input {
                    Input::Ready => {}
                    Input::Message(message) => take(self.address, Ok(message)),
                    Input::Ping(reply) if self.unsent.len() < UNSENT_BYTES_MAX => self.unsent.extend(reply),
                    Input::Ping(_) => return Err("it reads no replies".to_owned()),
                }
            }
        }
        Ok(is_open)
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn until<T>(pull: &mut Pull, mut found: impl FnMut(&mut Vec<Message>) -> Option<T>) -> T {
        let (end, mut messages) = (Instant::now() + Duration::from_secs(60), Vec::new());
        while Instant::now() < end {
            messages.extend(pull.wait(Some(Duration::from_millis(20)), |address| address.is_loopback()));
            if let Some(found) = found(&mut messages) {
                return found;
            }
        }
        panic!("nothing came");
    }

    #[test]
    fn messages_of_many_peers_arrive_and_one_that_breaks_off_is_left_alone() {
        let mut pull = Pull::bind(&["127.0.0.1:0".parse().unwrap()], 1 << 20).unwrap();
        let address = pull.addresses().unwrap()[0];
        let send = |bytes: &[u8]| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&zmtp::opening(Socket::Push)).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        };
        let mut framed = Vec::new();
        zmtp::put_message(&mut framed, &[7; 5000]);
        let _unfinished = send(&framed[..4000]);
        let _whole: Vec<TcpStream> = (0..3).map(|_| send(&framed)).collect();
        drop(TcpStream::connect(address).unwrap());
        TcpStream::connect(address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let (good, bad) = until(&mut pull, |messages| {
            let good = messages.iter().filter(|message| message.received.is_ok()).count();
            let bad: Vec<String> =
                messages.iter().filter_map(|message| message.received.clone().err()).collect();
            (good == 3 && bad.len() == 1).then_some((good, bad))
        });
        assert_eq!((good, bad), (3, vec!["the peer does not use ZeroMQ (ZMTP 3)".to_owned()]));
        assert_eq!(pull.peers.len(), 4);
    }

    #[test]
    fn a_buffer_goes_when_its_long_message_is_complete() {
        let mut pull = Pull::bind(&["127.0.0.1:0".parse().unwrap()], 4 << 20).unwrap();
        let address = pull.addresses().unwrap()[0];
        // What has come of the next message: nothing, little, and more than fits into the buffer that peers share.
        for next in [0, 1000, SHARED_HELD_MAX + 1000] {
            let mut bytes = zmtp::opening(Socket::Push);
            zmtp::put_message(&mut bytes, &vec![7; 3 << 20]);
            let mut unfinished = Vec::new();
            zmtp::put_message(&mut unfinished, &vec![8; 1 << 20]);
            bytes.extend_from_slice(&unfinished[..next]);
            let sender = std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(&bytes).unwrap();
                stream
            });
            let message = until(&mut pull, |messages| messages.pop());
            assert_eq!(message.received.map(|message| message.len()), Ok(3 << 20));
            let end = Instant::now() + Duration::from_secs(60);
            while pull.peers[0].decoder.held() < next {
                assert!(Instant::now() < end);
                pull.wait(Some(Duration::from_millis(20)), |_| true);
            }
            let buffer = pull.peers[0].decoder.buffer_bytes();
            assert!((next..=4 * next).contains(&buffer), "{buffer} bytes for {next}");
            drop(sender.join().unwrap());
            pull.peers.clear();
        }
    }

    #[test]
    fn buffers_of_unfinished_messages_are_bounded_for_all_peers_together() {
        let mut pull = Pull::bind(&["127.0.0.1:0".parse().unwrap()], 8 << 20).unwrap();
        let address = pull.addresses().unwrap()[0];
        let mut bytes = zmtp::opening(Socket::Push);
        zmtp::put_message(&mut bytes, &vec![7; 8 << 20]);
        bytes.pop();
        let bytes = std::sync::Arc::new(bytes);
        let send = |_| {
            let bytes = std::sync::Arc::clone(&bytes);
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                // It may be left.
                let _ = stream.write_all(&bytes);
                stream
            })
        };
        let senders: Vec<_> = (0..8).map(send).collect();
        let why = until(&mut pull, |messages| messages.pop());
        assert_eq!(why.received, Err("too many unfinished messages".to_owned()));
        let buffers: usize = pull.peers.iter().map(|peer| peer.decoder.buffer_bytes()).sum();
        assert!((HELD_BYTES_MAX / 2..=HELD_BYTES_MAX).contains(&buffers), "{buffers} bytes");
        drop(pull);
        senders.into_iter().for_each(|sender| drop(sender.join().unwrap()));
    }

    #[test]
    fn a_listener_that_cannot_accept_is_tried_again_after_a_pause_and_others_are_served() {
        let mut pull = Pull::bind(&["127.0.0.1:0".parse().unwrap()], 1 << 20).unwrap();
        // Ready for ever and no listener: as one without descriptors, each attempt fails at once.
        let (broken, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"x").unwrap();
        let broken = UnixListener::from(std::os::fd::OwnedFd::from(broken));
        pull.listeners.push(Listener::Unix(broken, PathBuf::new()));
        let begin = Instant::now();
        pull.wait(None, |_| true);
        assert!(begin.elapsed() >= ACCEPT_AGAIN_AFTER, "it would spin");
        let mut stream = TcpStream::connect(pull.addresses().unwrap()[0]).unwrap();
        stream.write_all(&zmtp::opening(Socket::Push)).unwrap();
        let mut framed = Vec::new();
        zmtp::put_message(&mut framed, b"word");
        stream.write_all(&framed).unwrap();
        let taken = until(&mut pull, |messages| messages.pop()).received;
        assert_eq!(taken.unwrap(), b"word");
    }

    #[test]
    fn an_address_that_is_not_allowed_is_closed_at_once() {
        let mut pull = Pull::bind(&["127.0.0.1:0".parse().unwrap()], 1 << 20).unwrap();
        let mut stream = TcpStream::connect(pull.addresses().unwrap()[0]).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let refused = loop {
            let messages = pull.wait(Some(Duration::from_millis(20)), |_| false);
            if let Some(message) = messages.into_iter().next() {
                break message.received.unwrap_err();
            }
            assert!(Instant::now() < end);
        };
        assert_eq!(refused, "an address that colmet.allow does not name");
        assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0);
    }

    #[test]
    fn a_file_is_private_and_neither_anothers_socket_nor_data_are_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("socket");
        let mut pull = Pull::bind_file(&path, 1000).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut stream = UnixStream::connect(&path).unwrap();
        let mut bytes = zmtp::opening(Socket::Push);
        zmtp::put_message(&mut bytes, b"x");
        stream.write_all(&bytes).unwrap();
        let received = until(&mut pull, |messages| messages.pop().map(|message| message.received));
        assert_eq!(received, Ok(b"x".to_vec()));
        let refused = |path: &Path| Pull::bind_file(path, 1000).err().unwrap().to_string();
        assert!(refused(&path).contains("another process listens"));
        drop(pull);
        assert!(!path.exists());
        // What a killed process left is taken over.
        drop(UnixListener::bind(&path).unwrap());
        drop(Pull::bind_file(&path, 1000).unwrap());
        fs::write(&path, "data").unwrap();
        assert!(refused(&path).contains("not a socket"));
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }
}
