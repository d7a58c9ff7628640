//! The audit log: logins, refusals, writes, and what operators read. One JSON object per line, in ASCII.
//!
//! A line is written by a thread of its own: a slow disk delays no request. Lines that do not fit its queue are counted
//! in the next one that does, and so are refusals of an address that is refused all the time.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use met_host::clock;
use met_insight::json::time;
use serde_json::{Value, json};

use crate::listener::Peer;

const QUEUE: usize = 1024;
const FILE_BYTES_MAX: u64 = 16 << 20;
const TEXT_BYTES_MAX: usize = 512;
/// The same read of the same person is written once in this time: dashboards poll.
const SAME_READ_FOR: Duration = Duration::from_secs(60);
const READS_MAX: usize = 1024;
/// Refusals of one address that are written in a minute; more are counted. So guessing cannot fill the disk.
const REFUSALS_MAX: u32 = 20;
const REFUSALS_WITHIN: Duration = Duration::from_secs(60);
/// Addresses whose refusals are counted apart; the others are counted together.
const REFUSED_MAX: usize = 1024;

pub struct Audit {
    lines: SyncSender<String>,
    dropped: AtomicU64,
    reads: Mutex<HashMap<(String, String), Instant>>,
    refusals: Mutex<HashMap<String, Refusals>>,
}

/// Of one address in its current minute.
struct Refusals {
    since: Instant,
    written: u32,
    /// Since the last line.
    unwritten: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Event<'a> {
    /// `login`, `logout`, `refused`, `read` or `write`.
    pub what: &'static str,
    /// Who; empty if that is not known.
    pub name: &'a str,
    /// How they logged in.
    pub by: &'static str,
    pub request: &'a str,
    /// What a request is about whose path does not say it.
    pub subject: &'a str,
    pub status: Option<u16>,
    pub reason: &'a str,
    /// Refusals before this one that were only counted.
    pub unwritten: u64,
}

impl Audit {
    /// In a file, or else in the log. An error if the file cannot be written.
    pub fn start(file: Option<&Path>) -> io::Result<Audit> {
        let (lines, received) = sync_channel(QUEUE);
        let mut sink = match file {
            Some(path) => Some(AuditFile::open(path)?),
            None => None,
        };
        let write = move || receive(&received, &mut sink);
        std::thread::Builder::new().name("audit".to_owned()).spawn(write)?;
        let (reads, refusals) = (Mutex::default(), Mutex::default());
        Ok(Audit { lines, dropped: AtomicU64::new(0), reads, refusals })
    }

    /// Notes a refusal, unless its address had many a moment ago: then it is counted.
    pub fn note_refusal(&self, peer: &Peer, event: Event<'_>) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut from = from(peer);
        if refusals.len() >= REFUSED_MAX && !refusals.contains_key(&from) {
            let mut lost = 0;
            refusals.retain(|_, known| {
                let is_current = known.since.elapsed() < REFUSALS_WITHIN;
                lost += if is_current { 0 } else { known.unwritten };
                is_current
            });
            self.dropped.fetch_add(lost, Ordering::Relaxed);
            if refusals.len() >= REFUSED_MAX {
                from = String::new();
            }
        }
        let fresh = || Refusals { since: Instant::now(), written: 0, unwritten: 0 };
        let known = refusals.entry(from).or_insert_with(fresh);
        if known.since.elapsed() >= REFUSALS_WITHIN {
            *known = Refusals { unwritten: known.unwritten, ..fresh() };
        }
        if known.written >= REFUSALS_MAX {
            known.unwritten += 1;
            return;
        }
        known.written += 1;
        let unwritten = std::mem::take(&mut known.unwritten);
        drop(refusals);
        self.note(peer, Event { what: "refused", unwritten, ..event });
    }

    pub fn note(&self, peer: &Peer, event: Event<'_>) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if self.lines.try_send(line(peer, event, dropped, clock::realtime_ns())).is_err() {
            self.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
        }
    }

    /// As [`Audit::note`], unless the same was read a moment ago.
    pub fn note_read(&self, peer: &Peer, event: Event<'_>) {
        let key = (event.name.to_owned(), format!("{} {}", event.request, event.subject));
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        if reads.get(&key).is_some_and(|noted| noted.elapsed() < SAME_READ_FOR) {
            return;
        }
        if reads.len() >= READS_MAX {
            reads.retain(|_, noted| noted.elapsed() < SAME_READ_FOR);
        }
        if reads.len() < READS_MAX {
            reads.insert(key, Instant::now());
        }
        drop(reads);
        self.note(peer, event);
    }
}

fn line(peer: &Peer, event: Event<'_>, dropped: u64, now_ns: i64) -> String {
    let mut object = json!({ "time": time(now_ns), "event": event.what });
    let from = from(peer);
    let texts = [("name", event.name), ("by", event.by), ("from", &from), ("request", event.request)];
    for (key, text) in texts.into_iter().chain([("subject", event.subject), ("reason", event.reason)]) {
        if !text.is_empty() {
            object[key] = Value::from(shortened(text));
        }
    }
    if let Some(status) = event.status {
        object["status"] = status.into();
    }
    if dropped > 0 {
        object["dropped"] = dropped.into();
    }
    if event.unwritten > 0 {
        object["unwritten"] = event.unwritten.into();
    }
    ascii(&object.to_string())
}

/// Where a request comes from.
fn from(peer: &Peer) -> String {
    match peer.uid {
        Some(uid) => format!("uid {uid}"),
        None => peer.address.ip().to_canonical().to_string(),
    }
}

fn shortened(text: &str) -> &str {
    met_core::text::prefix(text, TEXT_BYTES_MAX)
}

/// Other letters and control characters as JSON escapes: a terminal that shows the log obeys none of them.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            ' '..='~' => text.push(letter),
            _ => {
                let mut units = [0; 2];
                for unit in letter.encode_utf16(&mut units) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    text
}

fn receive(lines: &Receiver<String>, sink: &mut Option<AuditFile>) {
    let mut has_failed = false;
    for line in lines {
        let Some(file) = sink else {
            tracing::info!(target: "audit", "audit: {line}");
            continue;
        };
        match file.write(&line) {
            Ok(()) => has_failed = false,
            Err(error) => {
                if !has_failed {
                    tracing::error!("{}: {error}; the audit log continues here", file.path.display());
                }
                has_failed = true;
                tracing::info!(target: "audit", "audit: {line}");
            }
        }
    }
}

struct AuditFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl AuditFile {
    fn open(path: &Path) -> io::Result<AuditFile> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(AuditFile { path: path.to_owned(), file, bytes })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.bytes + line.len() as u64 > FILE_BYTES_MAX {
            let mut older = self.path.as_os_str().to_owned();
            older.push(".1");
            std::fs::rename(&self.path, older)?;
            *self = AuditFile::open(&self.path)?;
        }
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer() -> Peer {
        Peer::at(([10, 0, 0, 1], 7).into())
    }

    #[test]
    fn a_line_is_one_object_that_no_terminal_obeys() {
        let event = Event {
            what: "refused",
            name: "a\u{1b}[31m\n\u{202e}\u{9b}<b>",
            by: "password",
            request: "/login",
            subject: "",
            status: Some(401),
            reason: "wrong",
            unwritten: 0,
        };
        let line = line(&peer(), event, 3, 1_794_700_800_000_000_000);
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((read["name"].as_str(), read["dropped"].as_u64()), (Some(event.name), Some(3)));
        assert_eq!((read["from"].as_str(), read["status"].as_u64()), (Some("10.0.0.1"), Some(401)));
    }

    proptest! {
        #[test]
        fn any_text_is_bounded_and_read_back(text in "\\PC{0,600}") {
            let event = Event { what: "login", name: &text, ..Event::default() };
            let read: Value = serde_json::from_str(&line(&peer(), event, 0, 0)).unwrap();
            let name = read["name"].as_str().unwrap_or_default();
            prop_assert!(text.starts_with(name) && name.len() <= TEXT_BYTES_MAX);
        }
    }

    #[test]
    fn a_full_file_gives_way_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let mut file = AuditFile::open(&path).unwrap();
        file.write("first").unwrap();
        file.bytes = FILE_BYTES_MAX;
        file.write("second").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second\n");
        assert_eq!(std::fs::read_to_string(folder.path().join("audit.1")).unwrap(), "first\n");
    }

    #[test]
    fn who_is_refused_all_the_time_is_counted() {
        let (lines, received) = sync_channel(QUEUE);
        let audit = Audit { lines, dropped: 0.into(), reads: Mutex::default(), refusals: Mutex::default() };
        let refuse = |last: u8, count: u32| {
            let peer = Peer::at(([10, 0, 0, last], 7).into());
            (0..count).for_each(|_| audit.note_refusal(&peer, Event::default()));
        };
        let written = || received.try_iter().collect::<Vec<String>>();
        refuse(1, REFUSALS_MAX + 5);
        assert_eq!(written().len(), REFUSALS_MAX as usize);
        refuse(2, 1);
        assert_eq!(written().len(), 1, "another address has its own");
        let of_first = |audit: &Audit| {
            let mut refusals = audit.refusals.lock().unwrap();
            let first = refusals.get_mut("10.0.0.1").unwrap();
            first.since = first.since.checked_sub(REFUSALS_WITHIN).unwrap();
        };
        of_first(&audit);
        refuse(1, 1);
        let line: Value = serde_json::from_str(&written()[0]).unwrap();
        assert_eq!((line["event"].as_str(), line["unwritten"].as_u64()), (Some("refused"), Some(5)));
        for number in 0..REFUSED_MAX as u32 {
            let peer = Peer::at((std::net::Ipv4Addr::from(number + (20 << 24)), 7).into());
            audit.note_refusal(&peer, Event::default());
        }
        assert!(audit.refusals.lock().unwrap().len() <= REFUSED_MAX + 1);
    }

    #[test]
    fn a_poll_is_noted_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let audit = Audit::start(Some(&path)).unwrap();
        for request in ["/api/v1/jobs", "/api/v1/jobs", "/api/v1/jobs/1"] {
            audit.note_read(&peer(), Event { what: "read", name: "op", request, ..Event::default() });
        }
        audit.note(&peer(), Event { what: "logout", name: "op", ..Event::default() });
        let begin = Instant::now();
        let lines = loop {
            let text = std::fs::read_to_string(&path).unwrap();
            if text.contains("logout") {
                break text.lines().count();
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{text}");
            std::thread::yield_now();
        };
        assert_eq!(lines, 3);
    }
}
