//! Where a listener is to be found on the network.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// A host, a name or nothing (all of them), and a port: `127.0.0.1:9317`, `[::1]:9317`, `:9317`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address with a port; write for example 127.0.0.1:9317")]
pub struct NotAnAddress(String);

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Address, NotAnAddress> {
        let refuse = || NotAnAddress(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(refuse)?;
        let port = port.parse().map_err(|_| refuse())?;
        let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if inside.is_none() && host.contains([':', '[', ']', ' ', '/']) {
            return Err(refuse());
        }
        Ok(Address { host: inside.unwrap_or(host).to_owned(), port })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Address {
    /// Every address that it resolves to.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let host = if self.host.is_empty() { "::" } else { &self.host };
        Ok((host, self.port).to_socket_addrs()?.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for text in ["127.0.0.1:9317", "[::1]:9317", ":9317", "localhost:0"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "9317", "host", "::1:x", "a b:1", "http://x:1", "1.2.3.4:99999"] {
            assert_eq!(text.parse::<Address>().unwrap_err(), NotAnAddress(text.to_owned()), "{text}");
        }
    }
}
