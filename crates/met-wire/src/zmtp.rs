//! ZMTP 3.1 with the mechanism NULL, as far as PUSH and PULL sockets need it: the protocol of ZeroMQ.
//!
//! ```text
//! greeting: FF 00{8} 7F, version 03 01, mechanism "NULL" padded to 20 bytes, as-server 00, 31 bytes of padding
//! frame:    flags (1 more, 2 long, 4 command), length (1 byte, or 8 big-endian), body
//! command:  length of name, name, data; READY has properties: length, name, length (4 bytes big-endian), value
//! ```
//! docs/decisions/053-zeromq.md says why this is not a library.

const SIGNATURE_BYTES: usize = 10;
const GREETING_BYTES: usize = 64;
const MECHANISM: std::ops::Range<usize> = 12..32;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// Commands are small: a few properties.
const COMMAND_BYTES_MAX: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    Push,
    Pull,
}

impl Socket {
    fn name(self) -> &'static str {
        match self {
            Socket::Push => "PUSH",
            Socket::Pull => "PULL",
        }
    }

    fn peer(self) -> Socket {
        match self {
            Socket::Push => Socket::Pull,
            Socket::Pull => Socket::Push,
        }
    }
}

/// What is sent first: the greeting and READY. A peer needs not be waited for.
pub fn opening(socket: Socket) -> Vec<u8> {
    let mut bytes = vec![0; GREETING_BYTES];
    (bytes[0], bytes[9], bytes[10], bytes[11]) = (0xff, 0x7f, 3, 1);
    bytes[MECHANISM.start..MECHANISM.start + 4].copy_from_slice(b"NULL");
    let mut ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x04".to_vec();
    ready.extend_from_slice(socket.name().as_bytes());
    put_frame(&mut bytes, COMMAND, &ready);
    bytes
}

/// Appends a message of one part.
pub fn put_message(out: &mut Vec<u8>, message: &[u8]) {
    put_frame(out, 0, message);
}

fn put_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => out.extend_from_slice(&[flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// What a peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The handshake is over.
    Ready,
    /// One part of a message: each is a message of its own here.
    Message(&'a [u8]),
    /// It asks for these bytes in return.
    Ping(Vec<u8>),
}

/// Why a peer is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the peer does not use ZeroMQ (ZMTP 3)")]
    NotZmtp,
    #[error("the peer requires authentication that this protocol does not have here")]
    Mechanism,
    #[error("the peer is not a {0} socket")]
    Socket(&'static str),
    #[error("the peer refused the connection")]
    Refused,
    #[error("malformed command")]
    Command,
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Handshake,
    Traffic,
}

/// Reads what a peer sends. It holds at most one message of `bytes_max`.
#[derive(Debug)]
pub struct Decoder {
    socket: Socket,
    stage: Stage,
    bytes_max: usize,
    /// What was received is from `read` to `filled`.
    buffer: Vec<u8>,
    read: usize,
    filled: usize,
}

impl Decoder {
    /// For a socket of this kind.
    pub fn new(socket: Socket, bytes_max: usize) -> Decoder {
        Decoder { socket, stage: Stage::Greeting, bytes_max, buffer: Vec::new(), read: 0, filled: 0 }
    }

    /// Whether messages may be sent.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Traffic
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        self.filled - self.read
    }

    /// The memory that it takes: what is held, and room.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.fill(bytes.len());
    }

    /// Where to put what is received next: at least so many bytes. `fill` says how many there are.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        self.buffer.copy_within(self.read..self.filled, 0);
        (self.read, self.filled) = (0, self.held());
        if self.buffer.len() < self.filled + least {
            self.buffer.resize(self.filled + least, 0);
        }
        &mut self.buffer[self.filled..]
    }

    pub fn fill(&mut self, count: usize) {
        self.filled = (self.filled + count).min(self.buffer.len());
    }

    /// Moves what is held into another buffer, which must not be shorter than it needs to be; returns the one it was in.
    pub fn move_into(&mut self, mut buffer: Vec<u8>) -> Vec<u8> {
        let held = self.held();
        buffer.resize(buffer.len().max(held), 0);
        buffer[..held].copy_from_slice(&self.buffer[self.read..self.filled]);
        (self.read, self.filled) = (0, held);
        std::mem::replace(&mut self.buffer, buffer)
    }

    /// What was received, until more bytes are needed.
    pub fn next_input(&mut self) -> Result<Option<Input<'_>>, Error> {
        loop {
            if self.stage == Stage::Greeting {
                if !self.greeting()? {
                    return Ok(None);
                }
                continue;
            }
            let Some((flags, start, end)) = self.frame()? else { return Ok(None) };
            self.read = end;
            if flags & COMMAND == 0 {
                return match self.stage {
                    Stage::Traffic => Ok(Some(Input::Message(&self.buffer[start..end]))),
                    _ => Err(Error::Command),
                };
            }
            if let Some(input) = self.command(start, end)? {
                return Ok(Some(input));
            }
        }
    }

    fn greeting(&mut self) -> Result<bool, Error> {
        let received = &self.buffer[self.read..self.filled];
        // Another protocol is recognised by its first bytes, before so many have come.
        let is_signature = received.first().is_none_or(|&first| first == 0xff)
            && received.get(SIGNATURE_BYTES - 1).is_none_or(|byte| byte & 1 == 1);
        let is_version = received.get(SIGNATURE_BYTES).is_none_or(|&major| major >= 3);
        if !is_signature || !is_version {
            return Err(Error::NotZmtp);
        }
        let Some(greeting) = received.get(..GREETING_BYTES) else { return Ok(false) };
        if greeting[MECHANISM].split(|&byte| byte == 0).next() != Some(b"NULL") {
            return Err(Error::Mechanism);
        }
        self.read += GREETING_BYTES;
        self.stage = Stage::Handshake;
        Ok(true)
    }

    /// The flags of the next frame, and where its body is.
    fn frame(&self) -> Result<Option<(u8, usize, usize)>, Error> {
        let received = &self.buffer[self.read..self.filled];
        let Some(&flags) = received.first() else { return Ok(None) };
        let (length, head) = match flags & LONG > 0 {
            false => (received.get(1).map(|&length| u64::from(length)), 2),
            true => {
                let eight = received.get(1..9).and_then(|eight| eight.try_into().ok());
                (eight.map(u64::from_be_bytes), 9)
            }
        };
        let Some(length) = length else { return Ok(None) };
        let most = if flags & COMMAND > 0 { COMMAND_BYTES_MAX } else { self.bytes_max as u64 };
        if length > most {
            return Err(Error::TooLong(most as usize));
        }
        let start = self.read + head;
        let end = start + length as usize;
        Ok((end <= self.filled).then_some((flags, start, end)))
    }

    fn command(&mut self, start: usize, end: usize) -> Result<Option<Input<'static>>, Error> {
        let body = &self.buffer[start..end];
        let (&length, rest) = body.split_first().ok_or(Error::Command)?;
        let (name, data) = rest.split_at_checked(usize::from(length)).ok_or(Error::Command)?;
        match (name, self.stage) {
            (b"READY", Stage::Handshake) => {
                let peer = self.socket.peer().name();
                if property(data, b"Socket-Type") != Some(peer.as_bytes()) {
                    return Err(Error::Socket(peer));
                }
                self.stage = Stage::Traffic;
                Ok(Some(Input::Ready))
            }
            (b"ERROR", _) => Err(Error::Refused),
            (b"PING", Stage::Traffic) => {
                // Two bytes say how long the peer waits; the rest comes back.
                let mut pong = b"\x04PONG".to_vec();
                pong.extend_from_slice(data.get(2..).unwrap_or_default());
                let mut reply = Vec::new();
                put_frame(&mut reply, COMMAND, &pong);
                Ok(Some(Input::Ping(reply)))
            }
            // Commands of later versions.
            (_, Stage::Traffic) => Ok(None),
            _ => Err(Error::Command),
        }
    }
}

/// A property of READY; names are compared without case.
fn property<'a>(mut data: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (&length, rest) = data.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(length))?;
        let (length, rest) = rest.split_at_checked(4)?;
        let length = u32::from_be_bytes(length.try_into().ok()?);
        let (value, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        data = rest;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What has come, as text that shows every byte.
    fn all(decoder: &mut Decoder) -> Result<Vec<String>, Error> {
        let mut inputs = Vec::new();
        while let Some(input) = decoder.next_input()? {
            inputs.push(format!("{input:?}"));
        }
        Ok(inputs)
    }

    #[test]
    fn messages_arrive_in_pieces_of_any_size() {
        let mut bytes = opening(Socket::Push);
        let long = vec![7; 70_000];
        put_message(&mut bytes, b"short");
        put_message(&mut bytes, &long);
        put_message(&mut bytes, b"");
        let inputs = [Input::Ready, Input::Message(b"short"), Input::Message(&long), Input::Message(b"")];
        let expected = inputs.map(|input| format!("{input:?}"));
        for piece in [1, 3, 64, 1000, bytes.len()] {
            let mut decoder = Decoder::new(Socket::Pull, 100_000);
            let mut inputs = Vec::new();
            for chunk in bytes.chunks(piece) {
                decoder.push(chunk);
                inputs.extend(all(&mut decoder).unwrap());
            }
            assert_eq!(inputs, expected);
            // The same, with a buffer that several decoders use in turn.
            let mut decoder = Decoder::new(Socket::Pull, 100_000);
            let (mut inputs, mut shared) = (Vec::new(), vec![0; 1000]);
            for chunk in bytes.chunks(piece) {
                decoder.move_into(std::mem::take(&mut shared));
                decoder.push(chunk);
                inputs.extend(all(&mut decoder).unwrap());
                shared = decoder.move_into(Vec::new());
                shared.fill(0xee);
            }
            assert_eq!((inputs, decoder.held()), (expected.to_vec(), 0));
        }
    }

    #[test]
    fn peers_that_do_not_fit_are_refused_at_once() {
        let error = |bytes: &[u8]| {
            let mut decoder = Decoder::new(Socket::Pull, 1000);
            decoder.push(bytes);
            all(&mut decoder).unwrap_err()
        };
        assert_eq!(error(b"GET / HTTP/1.1\r\n"), Error::NotZmtp);
        assert_eq!(error(&opening(Socket::Pull)), Error::Socket("PUSH"));
        let mut plain = opening(Socket::Push);
        plain[MECHANISM.start..MECHANISM.start + 5].copy_from_slice(b"CURVE");
        assert_eq!(error(&plain), Error::Mechanism);
        let mut old = opening(Socket::Push);
        old[10] = 1;
        assert_eq!(error(&old), Error::NotZmtp);
        let mut long = opening(Socket::Push);
        put_message(&mut long, &[0; 1001]);
        assert_eq!(error(&long[..long.len() - 900]), Error::TooLong(1000), "before it has come");
        let mut unready = opening(Socket::Push)[..GREETING_BYTES].to_vec();
        put_message(&mut unready, b"x");
        assert_eq!(error(&unready), Error::Command);
    }

    #[test]
    fn a_ping_is_answered_with_its_own_bytes() {
        let mut bytes = opening(Socket::Push);
        put_frame(&mut bytes, COMMAND, b"\x04PING\x00\x0ahello");
        put_frame(&mut bytes, COMMAND, b"\x05OTHERx");
        let mut decoder = Decoder::new(Socket::Pull, 1000);
        decoder.push(&bytes);
        let expected = [Input::Ready, Input::Ping(b"\x04\x0a\x04PONGhello".to_vec())];
        assert_eq!(all(&mut decoder), Ok(expected.map(|input| format!("{input:?}")).to_vec()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), ready in any::<bool>()) {
            let mut decoder = Decoder::new(Socket::Pull, 100);
            if ready {
                decoder.push(&opening(Socket::Push));
            }
            decoder.push(&bytes);
            let _ = all(&mut decoder);
        }
    }
}
