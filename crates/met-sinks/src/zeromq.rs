//! Sockets of ZeroMQ: one that pushes and one that pulls, over TCP or a file. docs/decisions/053-zeromq.md.

pub mod pull;
pub(crate) mod push;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

pub use pull::{Message, Pull, Received};

/// Where a socket connects to, or where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host and a port.
    Tcp(String),
    Ipc(PathBuf),
}

impl Endpoint {
    /// To connect to.
    pub(crate) fn parse(text: &str) -> Result<Endpoint, String> {
        Endpoint::of(text, &['/', ' ', '*'])
    }

    /// To listen at, where `*` is every address.
    pub fn parse_own(text: &str) -> Result<Endpoint, String> {
        match Endpoint::of(text, &['/', ' '])? {
            Endpoint::Tcp(authority) => Ok(Endpoint::Tcp(authority.replace('*', "0.0.0.0"))),
            ipc => Ok(ipc),
        }
    }

    fn of(text: &str, not_in_host: &[char]) -> Result<Endpoint, String> {
        let wrong = || format!("{text:?} is not an endpoint; write tcp://HOST:PORT or ipc://PATH");
        if let Some(path) = text.strip_prefix("ipc://").filter(|path| path.starts_with('/')) {
            return Ok(Endpoint::Ipc(path.into()));
        }
        let authority = text.strip_prefix("tcp://").ok_or_else(wrong)?;
        let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        let is_host = !host.is_empty() && !host.contains(not_in_host);
        if is_port && is_host { Ok(Endpoint::Tcp(authority.to_owned())) } else { Err(wrong()) }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(bytes),
            Stream::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_with_a_port_or_a_file() {
        let tcp = |authority: &str| Ok(Endpoint::Tcp(authority.to_owned()));
        assert_eq!(Endpoint::parse("tcp://collector:5556"), tcp("collector:5556"));
        assert_eq!(Endpoint::parse("tcp://[::1]:5556"), tcp("[::1]:5556"));
        assert_eq!(Endpoint::parse("ipc:///run/c"), Ok(Endpoint::Ipc("/run/c".into())));
        assert_eq!(Endpoint::parse_own("tcp://*:5557"), tcp("0.0.0.0:5557"));
        for wrong in
            ["", "collector:5556", "tcp://collector", "tcp://:1", "tcp://a b:1", "ipc://run", "tcp://*:0"]
        {
            assert!(Endpoint::parse(wrong).is_err() && Endpoint::parse_own(wrong).is_err(), "{wrong:?}");
        }
        assert!(Endpoint::parse("tcp://*:5556").is_err(), "not an address to connect to");
    }
}
