//! Descriptors on a socket: a supervisor passes its counters to a daemon, and a command line passes a supervisor the
//! streams of its job.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use met_query::protocol::{self, Request};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// The kernel carries no more with one message.
pub const DESCRIPTORS_MAX: usize = 253;

/// Sends a request with its descriptors, whole and without waiting.
pub fn send(stream: &UnixStream, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut frame = Vec::new();
    protocol::write_frame(&mut frame, request)?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match send_bytes(stream, &frame, descriptors, flags)? {
        sent if sent == frame.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Sends descriptors in a message of their own.
pub fn send_alone(stream: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_bytes(stream, b"d", descriptors, SendFlags::NOSIGNAL).map(drop)
}

/// Waits for descriptors that are sent by [`send_alone`]; none if the other end is closed.
pub fn receive_alone(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut descriptors = Vec::new();
    receive_bytes(stream, &mut [0], &mut descriptors, RecvFlags::empty())?;
    Ok(descriptors)
}

fn send_bytes(
    stream: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Reads some bytes and the descriptors that came with them.
pub fn receive(stream: &UnixStream, chunk: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    receive_bytes(stream, chunk, descriptors, RecvFlags::DONTWAIT)
}

fn receive_bytes(
    stream: &UnixStream,
    chunk: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    flags: RecvFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(stream, &mut [IoSliceMut::new(chunk)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use met_core::job::JobKey;

    use super::*;

    #[test]
    fn a_request_arrives_with_its_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let key = JobKey { cluster: None, manager: "local".to_owned(), id: "1".to_owned(), incarnation: 0 };
        let request = Request::Counters { key, in_cgroup: true, events: Vec::new() };
        let (one, other) = rustix::pipe::pipe().unwrap();
        send(&ours, &request, &[one.as_fd(), other.as_fd()]).unwrap();
        let (mut chunk, mut descriptors) = ([0; 4096], Vec::new());
        let length = receive(&theirs, &mut chunk, &mut descriptors).unwrap();
        let mut arrived = chunk[..length].to_vec();
        let taken: Option<Request> = protocol::take_frame(&mut arrived).unwrap();
        assert!(matches!(taken, Some(Request::Counters { in_cgroup: true, .. })));
        assert_eq!(descriptors.len(), 2);
        let wait = receive(&theirs, &mut chunk, &mut descriptors).unwrap_err();
        assert_eq!(wait.kind(), io::ErrorKind::WouldBlock);
    }
}
