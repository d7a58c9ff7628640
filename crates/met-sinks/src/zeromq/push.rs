//! A PUSH socket that connects, with blocking calls and time limits: only this sink waits.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use met_wire::zmtp::{self, Decoder, Input, Socket};

use super::{Endpoint, Stream};

/// To connect, for the handshake, and without any progress in sending.
const WITHIN: Duration = Duration::from_secs(5);
/// A collector sends nothing but the handshake and pings.
const INPUT_BYTES_MAX: usize = 4096;

impl Stream {
    fn connect(endpoint: &Endpoint) -> io::Result<Stream> {
        match endpoint {
            Endpoint::Tcp(authority) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in authority.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, WITHIN) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_write_timeout(Some(WITHIN))?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Endpoint::Ipc(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_write_timeout(Some(WITHIN))?;
                Ok(Stream::Unix(stream))
            }
        }
    }

    /// What has come within a time.
    fn read_within(&mut self, bytes: &mut [u8], within: Duration) -> io::Result<usize> {
        // The least that can be set.
        let within = Some(within.max(Duration::from_micros(1)));
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(within)?,
            Stream::Unix(stream) => stream.set_read_timeout(within)?,
        }
        self.read(bytes)
    }

    fn finish(&self) {
        // The kernel delivers what was written; an error means that there is no connection.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}

pub(crate) struct Push {
    endpoint: Endpoint,
    connected: Option<(Stream, Decoder)>,
}

impl Push {
    pub fn new(endpoint: Endpoint) -> Push {
        Push { endpoint, connected: None }
    }

    /// Sends a message, connecting first where that is needed. After an error it may be sent again: a peer drops a message
    /// that breaks off.
    pub fn send(&mut self, message: &[u8]) -> Result<(), String> {
        let sent = self.try_send(message);
        if sent.is_err() {
            self.connected = None;
        }
        sent
    }

    fn try_send(&mut self, message: &[u8]) -> Result<(), String> {
        if self.connected.is_some() {
            // Whether the peer has gone is known by reading only.
            self.receive(Duration::ZERO)?;
        } else {
            let failed = |error: io::Error| format!("cannot connect to the collector: {error}");
            let mut stream = Stream::connect(&self.endpoint).map_err(failed)?;
            stream.write_all(&zmtp::opening(Socket::Push)).map_err(failed)?;
            self.connected = Some((stream, Decoder::new(Socket::Push, INPUT_BYTES_MAX)));
            self.handshake()?;
        }
        let Some((stream, _)) = &mut self.connected else { return Err("not connected".to_owned()) };
        let mut frame = Vec::with_capacity(message.len() + 9);
        zmtp::put_message(&mut frame, message);
        stream.write_all(&frame).map_err(|error| format!("cannot send to the collector: {error}"))
    }

    fn handshake(&mut self) -> Result<(), String> {
        let end = Instant::now() + WITHIN;
        while self.connected.as_ref().is_some_and(|(_, decoder)| !decoder.is_ready()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("the collector does not finish the handshake of ZeroMQ".to_owned());
            }
            self.receive(left)?;
        }
        Ok(())
    }

    /// Takes what the peer sent within a time.
    fn receive(&mut self, within: Duration) -> Result<(), String> {
        let Some((stream, decoder)) = &mut self.connected else { return Ok(()) };
        let mut bytes = [0; 512];
        match stream.read_within(&mut bytes, within) {
            Ok(0) => return Err("the collector closed the connection".to_owned()),
            Ok(count) => decoder.push(&bytes[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("cannot read from the collector: {error}")),
        }
        while let Some(input) = decoder.next_input().map_err(|error| error.to_string())? {
            if let Input::Ping(reply) = input {
                stream.write_all(&reply).map_err(|error| format!("cannot send to the collector: {error}"))?;
            }
        }
        Ok(())
    }

    pub fn finish(&mut self) {
        if let Some((stream, _)) = self.connected.take() {
            stream.finish();
        }
    }
}
