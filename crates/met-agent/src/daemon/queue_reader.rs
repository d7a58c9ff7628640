//! The thread that reads how many jobs wait from the pages on which a scheduler counts them, where an address of these is
//! configured. What is read there is foreign: its size, time and content are bounded, and nothing is followed elsewhere.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use met_core::managers::Scheduler;
use met_core::queue::Queue;
use met_host::clock;
use met_jobs::scheduler::{PageOf, PageReader, QueuePages, Update};
use met_query::protocol::SchedulerStatus;
use ureq::http::StatusCode;

use super::scheduler_worker::{Measured, pause, random_share};
use super::schedulers::{lock, notify};

/// A page is some kilobytes for each partition, and some for each user with jobs.
const PAGE_BYTES_MAX: u64 = 32 << 20;
const LINE_BYTES_MAX: u64 = 4 << 10;
/// A reading holds for so many times the interval, but not less than a minute: the next one may be late.
const VALID_INTERVALS: u32 = 3;
const VALID_MIN: Duration = Duration::from_secs(60);
/// After one that took long, the next one comes after 20 times that.
const VALID_TIMES_TAKEN: u32 = 60;
const TYPES: [&str; 2] = ["text/plain", "application/openmetrics-text"];

/// What it works with.
pub(super) struct QueueReader {
    pub scheduler: Scheduler,
    pub pages: &'static QueuePages,
    pub address: String,
    pub timeout: Duration,
    pub interval: Duration,
    /// Read only if there are some of these.
    pub measured: Option<Arc<Mutex<Measured>>>,
    /// Daemons of a cluster do not all read at the same time.
    pub is_one_of_many: bool,
    pub sender: SyncSender<Update>,
    pub ready_fd: Arc<OwnedFd>,
    pub status: Arc<Mutex<SchedulerStatus>>,
}

impl QueueReader {
    /// Until the other end of `stop` is dropped.
    pub(super) fn work(&self, stop: &Receiver<()>) {
        let agent = agent(self.timeout);
        let mut failures = 0_u32;
        let spread = || self.is_one_of_many.then(random_share);
        let mut wait = spread().map_or(Duration::ZERO, |share| self.interval.mul_f64(share));
        loop {
            if stop.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let begin = Instant::now();
            let has_jobs = self.measured.as_ref().is_none_or(|measured| !lock(measured).is_empty());
            if has_jobs {
                let read = read(&agent, &self.address, self.pages);
                failures = if read.is_ok() { 0 } else { failures.saturating_add(1) };
                self.report(read, failures, begin.elapsed());
            }
            wait = pause(self.interval, failures, begin.elapsed(), spread());
        }
    }

    /// Says once that it fails, and once that it does not any more.
    fn report(&self, read: Result<Counted, String>, failures: u32, took: Duration) {
        let (manager, address) = (self.scheduler.name(), &self.address);
        let was_failing = {
            let mut status = lock(&self.status);
            status.took_ms = i64::try_from(took.as_millis()).ok();
            match &read {
                Ok(counted) => {
                    status.answered_ns = Some(clock::realtime_ns());
                    status.reported = counted.queue.partitions.len() as u64;
                    status.unparsed = counted.unparsed;
                    status.last_error.take().is_some()
                }
                Err(error) => status.last_error.replace(error.clone()).is_some(),
            }
        };
        match &read {
            Ok(_) if was_failing => tracing::info!("{manager}: the queue is read from {address} again"),
            Err(error) if failures == 1 => {
                tracing::warn!(
                    "{manager}: cannot read the queue from {address}: {error}; how many jobs wait is taken from its commands"
                );
            }
            _ => {}
        }
        // What was counted before holds no longer than the answers.
        let queue = match read {
            Ok(counted) => counted.queue,
            Err(_) if failures == 1 => Queue::default(),
            Err(_) => return,
        };
        let read_ns = clock::realtime_ns();
        let valid = (self.interval * VALID_INTERVALS).max(VALID_MIN).max(took * VALID_TIMES_TAKEN);
        let valid_until_ns = read_ns.saturating_add(i64::try_from(valid.as_nanos()).unwrap_or(i64::MAX));
        let queue = Queue { manager: manager.to_owned(), read_ns, valid_until_ns, ..queue };
        // The receiver is gone when the daemon stops.
        if self.sender.send(Update { manager, queue: Some(queue), ..Update::default() }).is_ok() {
            notify(&self.ready_fd);
        }
    }
}

/// What two pages say.
struct Counted {
    queue: Queue,
    unparsed: u64,
}

fn agent(timeout: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .max_redirects(0)
        .max_idle_connections(0)
        .http_status_as_error(false)
        .proxy(None);
    config.build().new_agent()
}

fn read(agent: &ureq::Agent, address: &str, pages: &'static QueuePages) -> Result<Counted, String> {
    let by_partition = page(agent, address, &pages.by_partition, pages.remedy)?;
    let (path, lines, unread) = (pages.by_partition.path, by_partition.lines, by_partition.unparsed);
    let partitions = by_partition.by_partition();
    if partitions.is_empty() && lines == 0 {
        return Err(format!("{path} is empty; {}", pages.remedy));
    }
    if partitions.is_empty() {
        return Err(format!("{path} counts no jobs: {unread} of {lines} lines could not be read"));
    }
    let by_user = page(agent, address, &pages.by_user, pages.remedy)?;
    let unparsed = unread + by_user.unparsed;
    let path = pages.by_user.path;
    let users = by_user.by_user().ok_or_else(|| format!("{path} has lines that could not be read"))?;
    if users.is_empty() && partitions.values().any(|&waiting| waiting > 0) {
        return Err(format!("{path} has no users, and jobs wait"));
    }
    Ok(Counted { queue: Queue { partitions, users, ..Queue::default() }, unparsed })
}

/// Reads one page.
fn page(agent: &ureq::Agent, address: &str, of: &'static PageOf, remedy: &str) -> Result<PageReader, String> {
    let path = of.path;
    let response = agent.get(format!("{address}{path}")).call();
    let mut response = response.map_err(|error| format!("{path}: {}", words(error)))?;
    match response.status() {
        StatusCode::OK => {}
        status if status.is_redirection() => {
            return Err(format!(
                "{path}: it answers {status}; redirects are not followed: name the controller that is active"
            ));
        }
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            return Err(format!(
                "{path}: it answers {status}; pages that require authentication are not read"
            ));
        }
        status => return Err(format!("{path}: it answers {status}; {remedy}")),
    }
    let kind = response.headers().get("Content-Type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if !TYPES.contains(&kind.as_str()) {
        return Err(format!("{path}: its content type is {kind:.100?}, not {}", TYPES[0]));
    }
    let mut reader = PageReader::new(of);
    let body = response.body_mut().as_reader();
    each_line(body, |line| reader.line(line)).map_err(|error| format!("{path}: {}", io_words(error)))?;
    Ok(reader)
}

/// The lines of a page. Those that are longer than any of a scheduler are cut, and are no samples then.
fn each_line(body: impl Read, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut body = BufReader::new(body);
    let (mut line, mut total, mut is_rest) = (Vec::new(), 0_u64, false);
    loop {
        line.clear();
        let count = (&mut body).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? as u64;
        if count == 0 {
            return Ok(());
        }
        total += count;
        if total > PAGE_BYTES_MAX {
            return Err(io::Error::other(format!("it is longer than {} MiB", PAGE_BYTES_MAX >> 20)));
        }
        let is_cut = !line.ends_with(b"\n") && count == LINE_BYTES_MAX;
        if !is_rest {
            each(if is_cut { b"(too long)" } else { &line });
        }
        is_rest = is_cut;
    }
}

/// What happened, without the words of the library around it.
fn words(error: ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => io_words(error),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        ureq::Error::HostNotFound => "no host has this name".to_owned(),
        other => other.to_string(),
    }
}

fn io_words(error: io::Error) -> String {
    let of_library = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
    let is_late = matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock);
    match of_library {
        Some(ureq::Error::Timeout(_)) => "no answer in time".to_owned(),
        _ if is_late => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use met_jobs::scheduler;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// Longer than any answer here takes, and shorter than a test may.
    const TIMEOUT: Duration = Duration::from_secs(60);

    fn pages() -> &'static QueuePages {
        Scheduler::ALL.iter().find_map(|&one| scheduler::queue_pages(one)).unwrap()
    }

    /// A controller that answers each path; `None`: not at all.
    fn controller(answer: impl Fn(&str) -> Option<Vec<u8>> + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let path = asked(&stream);
                match answer(&path) {
                    // A client that has read enough hangs up.
                    Some(bytes) => drop(stream.write_all(&bytes)),
                    None => held.push(stream),
                }
            }
        });
        address
    }

    fn asked(stream: &TcpStream) -> String {
        let mut lines = BufReader::new(stream).lines();
        let first = lines.next().unwrap().unwrap();
        let headers: Vec<String> =
            lines.map(|line| line.unwrap()).take_while(|line| !line.is_empty()).collect();
        assert!(headers.iter().all(|line| !line.to_ascii_lowercase().starts_with("authorization")));
        first.strip_prefix("GET ").unwrap().split(' ').next().unwrap().to_owned()
    }

    fn reply(status: &str, kind: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: Close\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    }

    fn plain(body: &str) -> Vec<u8> {
        reply("200 OK", "text/plain", body.as_bytes())
    }

    fn of_slurm(path: &str) -> String {
        let name = path.rsplit('/').next().unwrap();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/queue-pages/slurm-25.11");
        std::fs::read_to_string(format!("{folder}/{name}.txt")).unwrap()
    }

    fn read_within(address: &str, timeout: Duration) -> Result<Counted, String> {
        read(&agent(timeout), address, pages())
    }

    #[test]
    fn the_pages_of_a_controller_are_counted() {
        let address = controller(|path| Some(plain(&of_slurm(path))));
        let counted = read_within(&address, TIMEOUT).unwrap();
        assert_eq!(counted.unparsed, 0);
        assert_eq!((counted.queue.partitions["main"], counted.queue.partitions["long"]), (7, 0));
        assert_eq!(counted.queue.users["ada"], 3);
        let openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let typed = controller(move |path| Some(reply("200 OK", openmetrics, of_slurm(path).as_bytes())));
        assert!(read_within(&typed, TIMEOUT).is_ok());
    }

    #[test]
    fn what_is_no_such_page_is_refused_with_its_reason() {
        let refused = |answer: Vec<u8>| {
            let address = controller(move |_| Some(answer.clone()));
            read_within(&address, TIMEOUT).err().unwrap()
        };
        let check = |answer: Vec<u8>, part: &str| {
            let error = refused(answer);
            assert!(error.contains(part), "{error}");
        };
        check(reply("404 Not Found", "text/plain", b"no"), "404 Not Found; it needs Slurm 25.11");
        check(reply("403 Forbidden", "text/plain", b"no"), "require authentication");
        check(reply("500 Internal Server Error", "text/plain", b""), "500 Internal");
        let elsewhere =
            "HTTP/1.1 303 See Other\r\nLocation: http://127.0.0.1:1/metrics\r\nContent-Length: 0\r\n\r\n";
        check(elsewhere.as_bytes().to_vec(), "redirects are not followed");
        check(reply("200 OK", "text/html", b"<html>"), "its content type is \"text/html\", not text/plain");
        check(plain(""), "is empty; it needs Slurm 25.11");
        check(plain("garbage\n\u{1b}[2J{}\n"), "counts no jobs: 2 of 2 lines could not be read");
        check(plain("slurm_jobs 3\n"), "counts no jobs: 0 of 1 lines");
        check(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(), "/metrics/partitions: ");
        let short = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 99\r\n\r\nslurm_x 1\n";
        check(short.to_vec(), "/metrics/partitions: ");
        assert!(read_within("http://127.0.0.1:1", TIMEOUT).is_err(), "nothing listens");
    }

    #[test]
    fn a_page_without_end_is_cut_off() {
        let line = "slurm_partition_jobs_pending{partition=\"p\"} 1\n".repeat(1 << 20);
        assert!(line.len() as u64 > PAGE_BYTES_MAX);
        let address = controller(move |_| Some(plain(&line)));
        let error = read_within(&address, TIMEOUT).err().unwrap();
        assert_eq!(error, "/metrics/partitions: it is longer than 32 MiB");
        let mut lines = Vec::new();
        let long = [b"a".repeat(10_000), b"\nb\n".to_vec(), b"c".repeat(4096), b"\nd".to_vec()].concat();
        each_line(&long[..], |line| lines.push(line.to_vec())).unwrap();
        assert_eq!(lines, [&b"(too long)"[..], b"b\n", b"(too long)", b"d"]);
    }

    #[test]
    fn a_controller_that_hangs_is_not_waited_for() {
        let address = controller(|_| None);
        let error = read_within(&address, Duration::from_millis(200)).err().unwrap();
        assert_eq!(error, "/metrics/partitions: no answer in time");
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\nslurm";
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            asked(&stream);
            stream.write_all(head.as_bytes()).unwrap();
            std::thread::park();
        });
        let error = read_within(&address, Duration::from_millis(200)).err().unwrap();
        assert_eq!(error, "/metrics/partitions: no answer in time");
    }

    #[test]
    fn users_are_needed_where_jobs_wait() {
        let with_users = |users: &'static str| {
            let address = controller(move |path| {
                let is_users = path.ends_with("accts");
                Some(plain(&if is_users { users.to_owned() } else { of_slurm(path) }))
            });
            read_within(&address, TIMEOUT)
        };
        assert!(with_users("").err().unwrap().contains("has no users"));
        let bad = "slurm_user_jobs_pending{username=\"ada\"} many\n";
        assert!(with_users(bad).err().unwrap().contains("has lines that could not be read"));
        let odd = "slurm_user_jobs_pending{username=\"ada\"} 1\nodd\n";
        assert_eq!(with_users(odd).unwrap().unparsed, 1);
    }

    #[test]
    fn a_page_that_fails_takes_back_what_was_counted_and_comes_again() {
        let (sender, news) = mpsc::sync_channel(4);
        let works = Arc::new(AtomicBool::new(true));
        let is_working = Arc::clone(&works);
        let reader = QueueReader {
            address: controller(move |path| match is_working.load(Ordering::SeqCst) {
                true => Some(plain(&of_slurm(path))),
                false => Some(reply("404 Not Found", "text/plain", b"")),
            }),
            ..reader(sender, None)
        };
        let next = |is_up: bool, failures: u32| {
            works.store(is_up, Ordering::SeqCst);
            reader.report(read_within(&reader.address, TIMEOUT), failures, Duration::ZERO);
            news.try_recv().ok().map(|update| update.queue.unwrap())
        };
        let first = next(true, 0).unwrap();
        assert_eq!((first.manager.as_str(), first.partitions.len()), ("slurm", 4));
        assert!(first.is_valid(first.read_ns + VALID_MIN.as_nanos() as i64));
        assert!(next(false, 1).unwrap().partitions.is_empty(), "nothing is known any more");
        assert_eq!(next(false, 2), None, "once");
        assert!(lock(&reader.status).last_error.as_ref().unwrap().contains("404"));
        assert_eq!(next(true, 0).unwrap().partitions.len(), 4);
        let status = lock(&reader.status);
        assert_eq!(
            (status.last_error.clone(), status.reported, status.answered_ns.is_some()),
            (None, 4, true)
        );
    }

    fn reader(sender: SyncSender<Update>, measured: Option<Arc<Mutex<Measured>>>) -> QueueReader {
        QueueReader {
            scheduler: Scheduler::Slurm,
            pages: pages(),
            address: String::new(),
            timeout: TIMEOUT,
            interval: Duration::from_millis(1),
            is_one_of_many: measured.is_some(),
            measured,
            sender,
            ready_fd: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()),
            status: Arc::default(),
        }
    }

    #[test]
    fn a_daemon_without_jobs_reads_no_page() {
        let (sender, news) = mpsc::sync_channel(4);
        let measured = Arc::new(Mutex::new(Measured::default()));
        let address = controller(|path| Some(plain(&of_slurm(path))));
        let reader = QueueReader { address, ..reader(sender, Some(Arc::clone(&measured))) };
        let (stop, stopped) = mpsc::sync_channel(0);
        let thread = std::thread::spawn(move || reader.work(&stopped));
        std::thread::sleep(Duration::from_millis(50));
        assert!(news.try_recv().is_err());
        lock(&measured).add("7");
        assert_eq!(news.recv().unwrap().queue.unwrap().partitions.len(), 4);
        drop((stop, news));
        thread.join().unwrap();
    }
}
