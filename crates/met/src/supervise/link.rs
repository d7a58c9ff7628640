//! A supervisor's connection to the daemon that samples its job. The daemon may die, leave or be
//! replaced at any time; the job does not notice.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use met_core::job::{CgroupPaths, Record};

use super::{DaemonPlace, spawn};
use crate::client::Client;
use crate::protocol::{Reply, Request};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub struct Link {
    place: DaemonPlace,
    client: Option<Client>,
    pause: Duration,
    next_try: Instant,
    /// The daemon left on purpose: nobody starts another for it.
    dismissed: bool,
}

impl Link {
    pub fn new(place: DaemonPlace) -> Link {
        Link { place, client: None, pause: FIRST_PAUSE, next_try: Instant::now(), dismissed: false }
    }

    /// To be polled: readable when the daemon has left or died.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.client.as_ref().map(|client| client.as_fd())
    }

    /// How long a poll may sleep before the next attempt to connect is due.
    pub fn patience(&self) -> Option<Duration> {
        if self.client.is_some() || self.dismissed {
            return None;
        }
        Some(self.next_try.saturating_duration_since(Instant::now()))
    }

    /// Connects, and tells the daemon of the job, if that is due; starts a daemon where there is none.
    pub fn keep_up(&mut self, record: &Record) {
        if self.client.is_some() || self.dismissed || Instant::now() < self.next_try {
            return;
        }
        match self.introduce(record) {
            Ok(client) => {
                self.client = Some(client);
                self.pause = FIRST_PAUSE;
            }
            Err(_) => {
                // Whoever loses the race for the daemon's lock leaves at once; one that could not start is
                // tried again, less and less often.
                if !self.place.system && (self.pause == FIRST_PAUSE || self.pause == LONGEST_PAUSE) {
                    let _ = start_daemon(&self.place);
                }
                self.next_try = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    fn introduce(&self, record: &Record) -> io::Result<Client> {
        let mut client = Client::connect(&self.place.socket)?;
        client.call(&Request::Started(Box::new(record.clone())))?;
        Ok(client)
    }

    /// Reacts to a readable descriptor: nothing is said unasked but a farewell.
    pub fn listen(&mut self) {
        if let Some(client) = &mut self.client
            && let Ok(Reply::Leaving) = client.read_unasked()
        {
            self.dismissed = true;
        }
        self.client = None;
        self.next_try = Instant::now();
    }

    /// A cgroup made by a system daemon for a child that waits at its gate.
    pub fn enclose(&mut self, name: &str, pid: i32) -> io::Result<CgroupPaths> {
        let mut client = Client::connect(&self.place.socket)?;
        match client.call(&Request::Enclose { name: name.to_owned(), pid: pid as u32 })? {
            Reply::Enclosed(paths) => Ok(paths),
            reply => Err(io::Error::other(format!("unexpected reply {reply:?}"))),
        }
    }

    /// Hands the end over; true when the daemon has it on disk.
    pub fn hand_over(&mut self, record: &Record) -> bool {
        let client = match self.client.take() {
            Some(client) => Ok(client),
            None => Client::connect(&self.place.socket),
        };
        client.and_then(|mut client| client.call(&Request::Ended(Box::new(record.clone())))).is_ok()
    }
}

/// Starts a daemon outside the job's process tree.
pub fn start_daemon(place: &DaemonPlace) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let log: OwnedFd = rustix::fs::open(&place.log, flags, Mode::RUSR | Mode::WUSR)?;
    let mut argv = vec![c"met".to_owned(), c"daemon".to_owned(), c"--user".to_owned(), c"--auto".to_owned()];
    if let Some(config) = &place.config {
        argv.push(c"--config".to_owned());
        argv.push(CString::new(config.as_os_str().as_bytes())?);
    }
    spawn::spawn_sibling(&c"/proc/self/exe".to_owned(), &argv, &log)
}
