//! A small netlink: sockets that read many answers at once, and messages as total functions on bytes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub const GENERIC: i32 = libc::NETLINK_GENERIC;
pub const CONNECTOR: i32 = libc::NETLINK_CONNECTOR;

const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// The kind of a message that says why a request was refused.
const ERROR: u16 = 2;
/// The generic netlink controller, which resolves families, and its constants.
const CONTROL_FAMILY: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// A socket that never waits.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

impl Socket {
    pub fn open(protocol: i32, groups: u32) -> io::Result<Socket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain system call.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nothing else owns.
        let socket = Socket { fd: unsafe { OwnedFd::from_raw_fd(fd) } };
        // SAFETY: the address is plain data, valid for the call; its port 0 lets the kernel choose one.
        let bound = unsafe {
            let mut address: libc::sockaddr_nl = std::mem::zeroed();
            address.nl_family = libc::AF_NETLINK as u16;
            address.nl_groups = groups;
            let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            libc::bind(fd, (&raw const address).cast(), length)
        };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
    }

    /// Makes room for messages that wait to be read: beyond the usual limit where that is allowed.
    pub fn make_room(&self, bytes: i32) {
        for option in [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF] {
            // SAFETY: the value is valid for the call.
            let set = unsafe {
                let length = size_of::<i32>() as libc::socklen_t;
                libc::setsockopt(
                    self.fd.as_raw_fd(),
                    libc::SOL_SOCKET,
                    option,
                    (&raw const bytes).cast(),
                    length,
                )
            };
            if set == 0 {
                return;
            }
        }
    }

    /// Another descriptor of the same socket.
    pub fn try_clone(&self) -> io::Result<Socket> {
        Ok(Socket { fd: self.fd.try_clone()? })
    }

    /// The bytes that waiting messages take, and those there is room for. `None` before Linux 4.12.
    pub fn waiting_bytes(&self) -> Option<(u32, u32)> {
        const SO_MEMINFO: i32 = 55;
        // Received, room for that, and others that are of no interest here.
        let mut numbers = [0_u32; 9];
        let mut length = size_of_val(&numbers) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes.
        let got = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_MEMINFO,
                numbers.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        (got == 0 && length as usize >= 2 * size_of::<u32>()).then_some((numbers[0], numbers[1]))
    }

    /// Lets the kernel drop every message without this word at this offset, and, where given, those whose words at two
    /// offsets differ: that is cheaper than reading them.
    pub fn only_with(&self, offset: u32, word: u32, equal: Option<[u32; 2]>) -> io::Result<()> {
        const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const IF_SAME: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_X) as u16;
        const COPY: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let step = |code: u16, jf: u8, k: u32| libc::sock_filter { code, jt: 0, jf, k };
        // A filter loads words as the network orders them.
        let to_drop = if equal.is_some() { 5 } else { 1 };
        let mut steps = vec![step(LOAD_WORD, 0, offset), step(IF_EQUAL, to_drop, word.to_be())];
        if let Some([one, other]) = equal {
            steps.extend([step(LOAD_WORD, 0, one), step(COPY, 0, 0), step(LOAD_WORD, 0, other)]);
            steps.push(step(IF_SAME, 1, 0));
        }
        steps.extend([step(RETURN, 0, u32::MAX), step(RETURN, 0, 0)]);
        let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the program is valid for the call; the kernel copies it.
        let set = unsafe {
            let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const filter).cast(),
                length,
            )
        };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub fn send(&self, messages: &[u8]) -> io::Result<()> {
        // SAFETY: the bytes are valid for the call.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), messages.as_ptr().cast(), messages.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads what is waiting, as much as `into` holds, and returns how many datagrams that was.
    pub fn receive(&self, into: &mut Datagrams) -> io::Result<usize> {
        into.count = 0;
        let slots = into.lengths.len();
        let mut parts: [libc::iovec; DATAGRAMS] =
            [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; DATAGRAMS];
        for (part, slot) in parts.iter_mut().zip(into.bytes.chunks_exact_mut(into.each)) {
            *part = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
        }
        // SAFETY: every header names one part, every part one slot of `into`, and all outlive the call.
        let (received, headers) = unsafe {
            let mut headers: [libc::mmsghdr; DATAGRAMS] = std::mem::zeroed();
            for (header, part) in headers.iter_mut().zip(&mut parts) {
                header.msg_hdr.msg_iov = part;
                header.msg_hdr.msg_iovlen = 1;
            }
            let count = slots.min(DATAGRAMS) as u32;
            let flags = libc::MSG_DONTWAIT as _;
            let received =
                libc::recvmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), count, flags, std::ptr::null_mut());
            (received, headers)
        };
        if received < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) };
        }
        into.count = received as usize;
        for (length, header) in into.lengths.iter_mut().zip(&headers[..into.count]) {
            // A message that was cut is none.
            let cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            *length = if cut { 0 } else { (header.msg_len as usize).min(into.each) };
        }
        Ok(into.count)
    }

    /// The number under which the kernel knows a generic family now.
    pub fn family(&self, name: &str) -> io::Result<u16> {
        let mut request = Vec::new();
        let name: Vec<u8> = name.bytes().chain([0]).collect();
        push_generic(&mut request, CONTROL_FAMILY, 0, GET_FAMILY, &[(FAMILY_NAME, &name)]);
        self.send(&request)?;
        let mut answers = Datagrams::new(1, 16 << 10);
        self.receive(&mut answers)?;
        let answer = answers.iter().flat_map(messages).next().ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Some(error) = answer.error() {
            return Err(error);
        }
        let body = answer.generic().ok_or(io::ErrorKind::InvalidData)?;
        let id = attributes(body).find(|(kind, _)| *kind == FAMILY_ID).and_then(|(_, id)| u16_at(id, 0));
        id.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Datagrams read with one call.
pub const DATAGRAMS: usize = 64;

/// Room for datagrams, reused from call to call.
#[derive(Debug)]
pub struct Datagrams {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
    each: usize,
    count: usize,
}

impl Datagrams {
    pub fn new(slots: usize, bytes_each: usize) -> Datagrams {
        let slots = slots.clamp(1, DATAGRAMS);
        Datagrams { bytes: vec![0; slots * bytes_each], lengths: vec![0; slots], each: bytes_each, count: 0 }
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let slots = self.bytes.chunks_exact(self.each).zip(&self.lengths).take(self.count);
        slots.map(|(slot, &length)| &slot[..length.min(slot.len())])
    }
}

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    /// As in the request it answers.
    pub sequence: u32,
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Why the kernel refused, if it did.
    pub fn error(&self) -> Option<io::Error> {
        let code = (self.kind == ERROR).then(|| u32_at(self.body, 0))?.unwrap_or(0) as i32;
        (code != 0).then(|| io::Error::from_raw_os_error(code.checked_neg().unwrap_or(libc::EINVAL)))
    }

    /// The attributes of a message of a generic family.
    pub fn generic(&self) -> Option<&'a [u8]> {
        self.body.get(GENERIC_HEADER_BYTES..).filter(|_| self.kind > ERROR)
    }
}

pub fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32_at(rest, 0)? as usize;
        let message = Message {
            kind: u16_at(rest, 4)?,
            sequence: u32_at(rest, 8)?,
            body: rest.get(HEADER_BYTES..length)?,
        };
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some(message)
    })
}

/// Attributes by their kind, without the bits that mark nesting and byte order.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & 0x3fff;
        let value = rest.get(ATTRIBUTE_HEADER_BYTES..length)?;
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Adds a request of a generic family; several may be sent at once.
pub fn push_generic(to: &mut Vec<u8>, family: u16, sequence: u32, command: u8, attributes: &[(u16, &[u8])]) {
    const REQUEST: u16 = 1;
    const VERSION: u8 = 1;
    let begin = to.len();
    to.extend([0; 4]);
    to.extend(family.to_ne_bytes());
    to.extend(REQUEST.to_ne_bytes());
    to.extend(sequence.to_ne_bytes());
    to.extend([0; 4]);
    to.extend([command, VERSION, 0, 0]);
    for (kind, value) in attributes {
        let length = ATTRIBUTE_HEADER_BYTES + value.len();
        to.extend((length as u16).to_ne_bytes());
        to.extend(kind.to_ne_bytes());
        to.extend(*value);
        to.resize(to.len() + aligned(length) - length, 0);
    }
    let length = (to.len() - begin) as u32;
    to[begin..begin + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Adds a message of any other kind.
pub fn push_message(to: &mut Vec<u8>, kind: u16, body: &[u8]) {
    to.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend([0; 10]);
    to.extend(body);
    to.resize(aligned(to.len()), 0);
}

fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut bytes = Vec::new();
        push_generic(&mut bytes, 31, 7, 1, &[(2, &[1, 2, 3]), (9, b"name\0")]);
        push_generic(&mut bytes, 31, 8, 1, &[]);
        let read: Vec<_> = messages(&bytes).collect();
        assert_eq!(read.iter().map(|message| message.sequence).collect::<Vec<_>>(), [7, 8]);
        let found: Vec<_> = attributes(read[0].generic().unwrap()).collect();
        assert_eq!(found, [(2, &[1, 2, 3][..]), (9, b"name\0")]);
        assert_eq!(attributes(read[1].generic().unwrap()).count(), 0);
    }

    #[test]
    fn a_refusal_is_an_error_and_an_acknowledgement_is_none() {
        let refusal = (-libc::EPERM).to_ne_bytes();
        let error = Message { kind: ERROR, sequence: 0, body: &refusal }.error().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(Message { kind: ERROR, sequence: 0, body: &[0; 4] }.error().is_none());
    }

    #[test]
    fn the_kernel_names_its_families() {
        let socket = Socket::open(GENERIC, 0).unwrap();
        assert_eq!(socket.family("nlctrl").unwrap(), CONTROL_FAMILY);
        assert!(socket.family("no such thing").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_bounded_number_of_messages(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            for message in messages(&bytes) {
                let _ = message.error();
                let inside = message.generic().map_or(0, |body| attributes(body).count());
                prop_assert!(inside <= bytes.len() / ATTRIBUTE_HEADER_BYTES);
            }
            prop_assert!(messages(&bytes).count() <= bytes.len() / HEADER_BYTES + 1);
        }
    }
}
