//! One question to the controller and its answer, by the kernel's device.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

pub(super) const SENSOR_EVENT: u8 = 0x04;
pub(super) const SENSOR_READING: u8 = 0x2d;
pub(super) const STORAGE: u8 = 0x0a;
pub(super) const RESERVE_SDR: u8 = 0x22;
pub(super) const GET_SDR: u8 = 0x23;
pub(super) const GROUP_EXTENSION: u8 = 0x2c;
pub(super) const POWER_READING: u8 = 0x02;
/// The group that DCMI has among the group extensions.
pub(super) const DCMI: u8 = 0xdc;

/// No answer is longer.
const ANSWER_BYTES: usize = 272;
const TIMEOUT: Duration = Duration::from_secs(15);

/// What a controller made of a question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Completion<'a> {
    /// What follows the code.
    Done(&'a [u8]),
    /// It could not just now, and may the next time.
    Later(u8),
    /// It does not know the question, or will not answer it.
    Never(u8),
}

/// Distinguishes the completion codes of IPMI (specification 2.0, table 5-2). One without a code is an answer that was
/// cut off on its way.
pub(super) fn complete(reply: &[u8]) -> Completion<'_> {
    const CUT_OFF: u8 = 0xff;
    match reply {
        [0, answer @ ..] => Completion::Done(answer),
        // Busy, took too long, no room, reservation lost, no answer or the same question at the moment, being
        // updated, starting, a device behind it absent, not in the present state, no reason given.
        [code @ (0xc0 | 0xc3 | 0xc4 | 0xc5 | 0xce..=0xd3 | 0xd5 | 0xff), ..] => Completion::Later(*code),
        [code, ..] => Completion::Never(*code),
        [] => Completion::Later(CUT_OFF),
    }
}

pub(super) fn not_now(code: u8) -> io::Error {
    let why = match code {
        0xc0 => "the controller is busy",
        0xc3 => "the controller took too long",
        0xd0..=0xd2 => "the controller is starting or being updated",
        0xd5 => "the controller cannot do this in its present state",
        _ => "the controller did not answer this time",
    };
    io::Error::new(io::ErrorKind::WouldBlock, format!("{why} (code {code:#04x})"))
}

pub(super) trait Ask: Send {
    /// The answer, beginning with its completion code.
    fn ask(&mut self, function: u8, command: u8, data: &[u8]) -> io::Result<Vec<u8>>;
}

pub(super) struct Device {
    fd: OwnedFd,
    message_id: libc::c_long,
}

impl Device {
    pub(super) fn open(path: &Path) -> io::Result<Device> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(Device { fd: rustix::fs::open(path, flags, Mode::empty())?, message_id: 0 })
    }
}

#[repr(C)]
struct SystemInterfaceAddress {
    kind: libc::c_int,
    channel: libc::c_short,
    lun: libc::c_uchar,
}

#[repr(C)]
struct Message {
    function: libc::c_uchar,
    command: libc::c_uchar,
    data_length: libc::c_ushort,
    data: *mut libc::c_uchar,
}

#[repr(C)]
struct Request {
    address: *mut libc::c_uchar,
    address_length: libc::c_uint,
    message_id: libc::c_long,
    message: Message,
}

#[repr(C)]
struct Received {
    kind: libc::c_int,
    address: *mut libc::c_uchar,
    address_length: libc::c_uint,
    message_id: libc::c_long,
    message: Message,
}

const SYSTEM_INTERFACE: libc::c_int = 0x0c;
const BMC_CHANNEL: libc::c_short = 0x0f;
const IS_RESPONSE: libc::c_int = 1;

/// The numbers of ioctls as <asm-generic/ioctl.h> makes them: direction, size, letter, number.
const fn request_number(direction: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | (b'i' as u64) << 8 | number
}
const READ: u64 = 2;
const READ_WRITE: u64 = 3;
const SEND_COMMAND: u64 = request_number(READ, 13, size_of::<Request>());
const RECEIVE_TRUNCATED: u64 = request_number(READ_WRITE, 11, size_of::<Received>());

impl Ask for Device {
    fn ask(&mut self, function: u8, command: u8, data: &[u8]) -> io::Result<Vec<u8>> {
        self.message_id += 1;
        self.send(function, command, data)?;
        loop {
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, Timespec::try_from(TIMEOUT).ok().as_ref()) {
                Ok(0) => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the controller does not answer"));
                }
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            // The answer to an earlier question may come late.
            if let Some(answer) = self.receive()? {
                return Ok(answer);
            }
        }
    }
}

impl Device {
    fn send(&mut self, function: u8, command: u8, data: &[u8]) -> io::Result<()> {
        let mut data = data.to_vec();
        let mut address = SystemInterfaceAddress { kind: SYSTEM_INTERFACE, channel: BMC_CHANNEL, lun: 0 };
        let mut request = Request {
            address: (&raw mut address).cast(),
            address_length: size_of::<SystemInterfaceAddress>() as libc::c_uint,
            message_id: self.message_id,
            message: Message {
                function,
                command,
                data_length: data.len() as libc::c_ushort,
                data: data.as_mut_ptr(),
            },
        };
        // SAFETY: the request and what it points to are valid and outlive the call, with their true lengths.
        let code = unsafe { libc::ioctl(self.fd.as_raw_fd(), SEND_COMMAND as _, &raw mut request) };
        if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut data = vec![0; ANSWER_BYTES];
        let mut address = [0u8; 64];
        let mut received = Received {
            kind: 0,
            address: address.as_mut_ptr(),
            address_length: address.len() as libc::c_uint,
            message_id: 0,
            message: Message {
                function: 0,
                command: 0,
                data_length: ANSWER_BYTES as libc::c_ushort,
                data: data.as_mut_ptr(),
            },
        };
        // SAFETY: as above; the kernel writes at most the given lengths.
        let code = unsafe { libc::ioctl(self.fd.as_raw_fd(), RECEIVE_TRUNCATED as _, &raw mut received) };
        if code < 0 {
            let error = io::Error::last_os_error();
            let later = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if later { Ok(None) } else { Err(error) };
        }
        if received.kind != IS_RESPONSE || received.message_id != self.message_id {
            return Ok(None);
        }
        data.truncate(usize::from(received.message.data_length));
        Ok(Some(data))
    }
}
