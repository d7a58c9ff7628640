//! A supervisor's connection to the daemon that samples its job. The daemon may die, leave, hang or be
//! replaced at any time; the job does not notice: nothing here waits while the job runs.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use met_core::job::{CgroupPaths, JobKey, Record};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use met_query::setting::DaemonPlace;

use super::events::Events;
use super::spawn;
use crate::passing;
use met_config::address;
use met_query::client::{Client, Unreachable};
use met_query::handshake::{self, Hello, PROTOCOL};
use met_query::protocol::{self, Reply, Request};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Attempts further apart than this start another daemon; quicker ones wait for the one just started.
const START_AGAIN: Duration = Duration::from_secs(2);
/// A daemon without a descriptor for this connection is asked again so much later.
const UNLINKED_PAUSE: Duration = Duration::from_secs(60);
/// After a failed pass of counters, the job is announced again so much later.
const UNPASSED_PAUSE: Duration = Duration::from_secs(1);
/// A log that has grown beyond this is begun again.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// What became of an end that was to be reported to a daemon.
pub enum HandedOver {
    /// The daemon has it, too.
    Taken,
    /// It does not want it; asking again is no use.
    Refused,
    Away,
}

pub struct Link {
    place: DaemonPlace,
    stream: Option<UnixStream>,
    arrived: Vec<u8>,
    /// The daemon has the job on its list.
    known: bool,
    pause: Duration,
    next_try: Instant,
    /// The daemon left on purpose: no other is started for it.
    dismissed: bool,
    /// An older one has made room for a daemon of this version.
    has_room: bool,
    /// The version that was agreed on.
    protocol: u32,
    /// The pid of the daemon that answered last.
    daemon: u32,
    passing: Passing,
}

/// What became of the job's counters.
#[derive(Default)]
struct Passing {
    /// The daemon has them, too.
    done: bool,
    /// There are some to pass to each daemon,
    counts: bool,
    /// but not to this one, by its pid: that failed.
    failed_for: Option<u32>,
}

impl Link {
    pub fn new(place: DaemonPlace) -> Link {
        Link {
            place,
            stream: None,
            arrived: Vec::new(),
            known: false,
            pause: FIRST_PAUSE,
            next_try: Instant::now(),
            dismissed: false,
            has_room: false,
            protocol: 0,
            daemon: 0,
            passing: Passing::default(),
        }
    }

    /// Passes the counters of the job to a daemon that samples it, once. One that does not take them has no series of
    /// the events; their totals are the supervisor's.
    pub fn pass(&mut self, key: &JobKey, events: &Events) {
        let takes_them = self.protocol >= handshake::COUNTERS && self.passing.failed_for != Some(self.daemon);
        if !self.known || !takes_them || std::mem::replace(&mut self.passing.done, true) {
            return;
        }
        let Some(stream) = &self.stream else { return };
        for (request, descriptors) in events.to_pass(key) {
            self.passing.counts = true;
            if passing::send(stream, &request, &descriptors).is_err() {
                // Half a frame may have been sent: announce the job again, without them.
                self.passing.failed_for = Some(self.daemon);
                self.lose();
                self.next_try = Instant::now() + UNPASSED_PAUSE;
                return;
            }
        }
    }

    /// To be polled: readable when the daemon has answered, left or died.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(|stream| stream.as_fd())
    }

    /// Whether the daemon has said that it samples the job.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// How long a poll may sleep before the next attempt to connect is due.
    pub fn timeout(&self) -> Option<Duration> {
        if self.stream.is_some() || self.dismissed {
            return None;
        }
        Some(self.next_try.saturating_duration_since(Instant::now()))
    }

    /// Connects, and reports the job to the daemon, if that is due; starts a daemon where there is none.
    pub fn keep_up(&mut self, record: &Record) {
        if self.stream.is_some() || self.dismissed || Instant::now() < self.next_try {
            return;
        }
        match introduce(&self.place, record) {
            Ok(stream) => self.stream = Some(stream),
            Err(_) => {
                // A daemon that loses the race for the lock leaves at once; one that could not start is
                // tried again, less and less often.
                if !self.place.system && (self.pause == FIRST_PAUSE || self.pause > START_AGAIN) {
                    let _ = start_daemon(&self.place);
                }
                self.next_try = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Reads what the daemon has said: two answers after the introduction, then nothing but a farewell.
    pub fn listen(&mut self) {
        let mut chunk = [0; 4096];
        let Some(stream) = &mut self.stream else { return };
        match stream.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(length @ 1..) => self.arrived.extend_from_slice(&chunk[..length]),
            _ => return self.lose(),
        }
        loop {
            match protocol::take_frame(&mut self.arrived) {
                Ok(Some(Reply::Hello { leaving: true, .. })) => return self.succeed(),
                Ok(Some(Reply::Hello { protocol, pid, .. })) if handshake::is_supported(protocol) => {
                    (self.protocol, self.daemon) = (protocol, pid);
                }
                Ok(Some(Reply::Hello { protocol, .. })) => {
                    // An older daemon of the same user leaves upon our hello. Asking any other again does not help.
                    self.dismissed = self.place.system || protocol > PROTOCOL;
                    return self.lose();
                }
                Ok(Some(Reply::Done)) => {
                    self.known = true;
                    self.pause = FIRST_PAUSE;
                }
                Ok(Some(Reply::Leaving)) => {
                    // The next daemon of the machine knows the job, and gets its counters from here alone.
                    self.dismissed = !(self.place.system && self.passing.counts);
                    return self.lose();
                }
                Ok(Some(Reply::Unlinked)) => {
                    self.lose();
                    self.next_try = Instant::now() + UNLINKED_PAUSE;
                    return;
                }
                Ok(None) => return,
                // A refusal, or a malformed reply: the next daemon may accept the job.
                _ => return self.lose(),
            }
        }
    }

    /// The daemon makes room: one of this version is started, once.
    fn succeed(&mut self) {
        self.lose();
        if !std::mem::replace(&mut self.has_room, true) {
            (self.next_try, self.pause) = (Instant::now() + FIRST_PAUSE, FIRST_PAUSE);
        }
    }

    fn lose(&mut self) {
        // A daemon that knew the job is replaced at once; one that did not is left time.
        self.next_try = Instant::now() + if self.known { Duration::ZERO } else { self.pause };
        self.pause = if self.known { FIRST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        (self.known, self.passing.done) = (false, false);
        self.stream = None;
        self.arrived.clear();
    }

    /// A cgroup made by a system daemon for a child that waits at its gate.
    pub fn enclose(&mut self, name: &str, pid: i32) -> io::Result<CgroupPaths> {
        let mut client = Client::connect_for_start(&self.place.socket).map_err(io::Error::other)?;
        match client.call(&Request::Enclose { name: name.to_owned(), pid: pid as u32 })? {
            Reply::Enclosed(paths) => Ok(paths),
            reply => Err(io::Error::other(format!("unexpected reply {reply:?}"))),
        }
    }

    /// Whether the daemon is that of the machine.
    pub fn is_to_system(&self) -> bool {
        self.place.system
    }

    /// Hands the end over when the job is over and its end on disk.
    pub fn hand_over(&self, record: &Record) -> HandedOver {
        let DaemonPlace { socket, address, .. } = &self.place;
        let mut client = match Client::connect_or_elsewhere(socket, address.as_deref(), Client::connect) {
            Ok((client, _)) => client,
            // Asking again does not help. The end stays in the inbox for a command of the daemon's version.
            Err(Unreachable::Foreign { .. }) => return HandedOver::Refused,
            // Also one that is busy: it takes the end later.
            Err(_) => return HandedOver::Away,
        };
        match client.call(&Request::Ended(Box::new(record.clone()))) {
            Ok(_) => HandedOver::Taken,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => HandedOver::Refused,
            Err(_) => HandedOver::Away,
        }
    }
}

/// Connects and says who we are, without waiting for an answer.
fn introduce(place: &DaemonPlace, record: &Record) -> io::Result<UnixStream> {
    let mut stream = knock(place)?;
    let mut said = Vec::new();
    protocol::write_frame(&mut said, &Request::Hello(Hello::ours(true)))?;
    protocol::write_frame(&mut said, &Request::Started(Box::new(record.clone())))?;
    // A fresh socket takes a record whole; where it does not, the next attempt may.
    stream.write_all(&said)?;
    Ok(stream)
}

/// Connects at the place's own socket or, if no daemon serves there, where the user's daemon says that it does.
fn knock(place: &DaemonPlace) -> io::Result<UnixStream> {
    let missed = match connect(&place.socket) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            error
        }
        reached => return reached,
    };
    let elsewhere = place.address.as_deref().and_then(|file| address::elsewhere(file, &place.socket));
    let stream = connect(&elsewhere.ok_or(missed)?)?;
    match address::is_own(&stream) {
        true => Ok(stream),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket.as_os_str())?)?;
    Ok(UnixStream::from(fd))
}

/// Starts a daemon outside the job's process tree.
fn start_daemon(place: &DaemonPlace) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let log: OwnedFd = rustix::fs::open(&place.log, flags, Mode::RUSR | Mode::WUSR)?;
    if rustix::fs::fstat(&log)?.st_size as u64 > LOG_BYTES_MAX {
        rustix::fs::ftruncate(&log, 0)?;
    }
    let mut argv = vec![c"met".to_owned(), c"daemon".to_owned(), c"--user".to_owned(), c"--auto".to_owned()];
    if let Some(config) = &place.config {
        argv.push(c"--config".to_owned());
        argv.push(CString::new(config.as_os_str().as_bytes())?);
    }
    spawn::spawn_sibling(&c"/proc/self/exe".to_owned(), &argv, &log)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use met_core::sample;

    /// What becomes of an end if the daemon sends these replies, the first one perhaps before it is greeted.
    fn handed_over(replies: Vec<Reply>, reads_first: bool) -> HandedOver {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("daemon.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for reply in replies {
                if reads_first {
                    protocol::read_frame::<Request>(&mut stream).unwrap();
                }
                protocol::write_frame(&mut stream, &reply).unwrap();
            }
        });
        let place =
            DaemonPlace { socket, address: None, system: true, config: None, log: root.path().join("log") };
        let outcome = Link::new(place).hand_over(&sample::bare(1, "x"));
        daemon.join().unwrap();
        outcome
    }

    #[test]
    fn a_daemon_that_takes_no_counters_hears_of_the_job_later_and_without_them() {
        let host = met_host::Host::real().unwrap();
        let events = Events::of_threads(&host, &["task_clock".to_owned()], &[0]);
        let record = sample::bare(1, "x");
        if events.to_pass(&record.key).is_empty() {
            return met_core::skipped::skipped("perf events are not allowed");
        }
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("daemon.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = std::thread::spawn(move || {
            let serve = |_| {
                let (mut stream, _) = listener.accept().unwrap();
                (0..2).for_each(|_| drop(protocol::read_frame::<Request>(&mut stream).unwrap()));
                // What is sent from now on fails.
                stream.shutdown(std::net::Shutdown::Read).unwrap();
                let hello = Reply::Hello { protocol: PROTOCOL, pid: 7, leaving: false };
                [hello, Reply::Done]
                    .iter()
                    .for_each(|reply| protocol::write_frame(&mut stream, reply).unwrap());
                stream
            };
            (0..2).map(serve).collect::<Vec<UnixStream>>()
        });
        let log = root.path().join("log");
        let mut link = Link::new(DaemonPlace { socket, address: None, system: true, config: None, log });
        let reach = |link: &mut Link| {
            link.next_try = Instant::now();
            while !link.is_known() {
                link.keep_up(&record);
                link.listen();
                std::thread::yield_now();
            }
        };
        reach(&mut link);
        let before = Instant::now();
        link.pass(&record.key, &events);
        assert!(link.stream.is_none() && link.next_try >= before + UNPASSED_PAUSE);
        reach(&mut link);
        link.pass(&record.key, &events);
        assert!(link.stream.is_some() && link.is_known(), "the connection is kept without them");
        link.daemon = 8;
        link.pass(&record.key, &events);
        assert!(link.stream.is_none(), "another daemon is tried");
        daemon.join().unwrap();
    }

    #[test]
    fn an_end_is_kept_for_a_busy_daemon_and_not_for_one_that_refuses_it() {
        let error = || Reply::error("no");
        let hello = || Reply::Hello { protocol: PROTOCOL, pid: 1, leaving: false };
        assert!(matches!(handed_over(vec![error()], true), HandedOver::Away));
        assert!(matches!(handed_over(vec![error()], false), HandedOver::Away), "refused before the greeting");
        assert!(matches!(handed_over(vec![hello(), error()], true), HandedOver::Refused));
        assert!(matches!(handed_over(vec![hello(), Reply::Done], true), HandedOver::Taken));
    }
}
