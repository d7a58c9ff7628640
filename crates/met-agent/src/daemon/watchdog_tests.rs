//! A file that never answers is a pipe into which no process writes.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use met_core::job::{CgroupPaths, JobKey, Origin, State};
use met_core::job_table::{CPU, MEMORY_NEEDED_PEAK};
use met_core::{JOB, MISSING};

use super::super::connections::{Connections, Limits};
use super::super::service::Service;
use super::super::socket::{Connection, Peer};
use super::super::write_retries::tests::keeping_by;
use super::*;
use met_core::sample;
use met_query::handshake::Hello;
use met_query::jobs::JobsFilter;
use met_query::protocol::{Change, Reply, Request, write_frame};

const METER: &str = "sys/cray/pm_counters/freshness";
const CPU_FILE: &str = "sys/fs/cgroup/job/cpu.stat";
const MEMORY_FILE: &str = "sys/fs/cgroup/job/memory.stat";

/// A machine with a job in a cgroup, and with a meter that may fall silent.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine { root: tempfile::tempdir().unwrap() };
        machine.put(METER, "1\n");
        machine.put("sys/cray/pm_counters/startup", "5\n");
        machine.put("sys/cray/pm_counters/power", "300 W 1 us\n");
        machine.put(CPU_FILE, "usage_usec 1000000\nuser_usec 1000000\nsystem_usec 0\n");
        machine.put(MEMORY_FILE, "anon 1000\nfile 0\nshmem 0\n");
        machine.put("sys/fs/cgroup/job/cgroup.procs", "");
        machine.put("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // In place: some files are kept open.
        std::fs::write(path, text).unwrap();
    }

    fn hang(&self, name: &str) {
        let pipe = self.path("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        std::fs::rename(pipe, self.path(name)).unwrap();
    }

    /// Who waits for the pipe is answered, and so are all after it.
    fn answer(&self, name: &str, text: &str) {
        std::fs::rename(self.path(name), self.path("pipe")).unwrap();
        self.put(name, text);
        std::fs::write(self.path("pipe"), text).unwrap();
    }

    fn service(&self) -> Service {
        let yaml = "sampling: {interval: 20ms}\nsources: {cray: {every: 100ms}}\n";
        keeping_by(self.root.path(), Config::parse(yaml, Path::new("met.yaml")).unwrap())
    }

    fn job(&self, service: &mut Service) -> Record {
        let mut record = sample::bare(7, "x");
        record.key.manager = "slurm".to_owned();
        let local = record.local.as_mut().unwrap();
        (local.origin, local.main) = (Origin::Found, None);
        local.boot_id.clone_from(&service.host.facts().boot_id);
        let unified = Some(PathBuf::from("/sys/fs/cgroup/job"));
        local.cgroup = CgroupPaths { unified, ..CgroupPaths::default() };
        service.recorder.writer.put(&record).unwrap();
        service.watch(record.clone());
        record
    }
}

/// Does what a daemon does all the time until there is enough.
fn until(service: &mut Service, what: &str, enough: impl Fn(&mut Service) -> bool) {
    let begin = Instant::now();
    while !enough(service) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
        service.look_after_sampling();
    }
}

fn total(service: &Service, key: &JobKey, column: usize) -> Option<i64> {
    service.sampling.live().get(key).and_then(|live| live.totals.get(column))
}

fn left_out(service: &mut Service) -> Vec<String> {
    let sources = service.sampling.costs().unwrap();
    sources.into_iter().filter(|source| source.left_out).map(|source| source.name).collect()
}

/// The job needs much memory for a while, and that is sampled.
fn reach_peak(machine: &Machine, service: &mut Service, key: &JobKey) {
    machine.put(MEMORY_FILE, "anon 500000000\nfile 0\nshmem 0\n");
    until(service, "a peak", |service| {
        total(service, key, MEMORY_NEEDED_PEAK) == Some(500_000_000) && total(service, key, CPU).is_some()
    });
}

#[test]
fn another_thread_goes_on_without_what_does_not_answer_until_it_does() {
    let machine = Machine::new();
    let mut service = machine.service();
    let mut record = machine.job(&mut service);
    let key = record.key.clone();
    reach_peak(&machine, &mut service, &key);
    machine.put(MEMORY_FILE, "anon 1000\nfile 0\nshmem 0\n");
    service.flush();

    machine.hang(METER);
    until(&mut service, "another thread", |service| service.sampling.watchdog.replaced == 1);
    assert_eq!(left_out(&mut service), ["cray"]);
    machine.put(CPU_FILE, "usage_usec 7000000\nuser_usec 7000000\nsystem_usec 0\n");
    until(&mut service, "the job goes on", |service| total(service, &key, CPU) == Some(7_000_000_000));

    machine.answer(METER, "2\n");
    until(&mut service, "it is read again", |service| left_out(service).is_empty());
    let is_read = |service: &mut Service| {
        let sources = service.sampling.costs().unwrap();
        sources.iter().any(|source| source.name == "cray" && source.read_ns > 0)
    };
    until(&mut service, "it has a price", is_read);

    record.end_ns = Some(met_query::jobs::now_ns());
    service.close_found(record);
    let end = service.recorder.writer.get(&key).unwrap().unwrap();
    assert_eq!(end.state, State::Finished);
    assert_eq!(end.totals.get(CPU), Some(7_000_000_000));
    assert_eq!(end.totals.get(MEMORY_NEEDED_PEAK), Some(500_000_000), "seen by the thread before");
    let series = service.recorder.writer.series(&key).unwrap();
    let gap_ms = series.times_ms.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(gap_ms >= Some(KEPT_AFTER_MIN.as_millis() as i64), "nobody looked: {gap_ms:?}");
    let cpu = &series.columns[JOB.column("cpu").unwrap()];
    assert!(cpu.iter().all(|&cell| cell == MISSING || cell >= 1_000_000_000), "{cpu:?}");
    service.close();
}

#[test]
fn a_job_that_ends_while_the_thread_is_kept_has_all_its_samples() {
    let machine = Machine::new();
    let mut service = machine.service();
    let mut record = machine.job(&mut service);
    let key = record.key.clone();
    reach_peak(&machine, &mut service, &key);
    service.flush();
    machine.hang(METER);
    let kept = |service: &mut Service| {
        service.sampling.watchdog.heartbeat.at().and_then(|at| at.source) == Some("cray")
    };
    until(&mut service, "the thread is kept", kept);
    record.end_ns = Some(met_query::jobs::now_ns());
    service.close_found(record);
    assert_eq!(service.sampling.watchdog.replaced, 1);
    let end = service.recorder.writer.get(&key).unwrap().unwrap();
    assert_eq!(end.totals.get(MEMORY_NEEDED_PEAK), Some(500_000_000));
    machine.answer(METER, "2\n");
    service.close();
}

/// A daemon around it that is driven by hand, and clients of it.
pub(in crate::daemon) fn daemon_of(service: Service) -> super::super::Daemon {
    use super::super::*;
    service.place.create().unwrap();
    let claim = Claim::take(&service.place).unwrap().unwrap();
    Daemon {
        http: None,
        post: claim.open_socket(&service.place).unwrap(),
        signals: Signals::block().unwrap(),
        in_terminal: false,
        connections: Connections::new(Limits::of(1024, false)),
        idle_exit: None,
        busy_at: Instant::now(),
        rests: false,
        flushed: None,
        next_retention: Instant::now(),
        service,
    }
}

fn client_of(daemon: &mut super::super::Daemon, request: &Request) -> UnixStream {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let uid = rustix::process::getuid().as_raw();
    daemon.admit(Connection::new(ours, Peer { uid, pid: std::process::id() }));
    write_frame(&mut theirs, request).unwrap();
    theirs
}

fn is_answered(client: &UnixStream) -> bool {
    rustix::io::ioctl_fionread(client).unwrap() > 0
}

#[test]
fn what_needs_no_sampler_is_answered_while_the_thread_is_kept() {
    let machine = Machine::new();
    let mut service = machine.service();
    let key = machine.job(&mut service).key;
    until(&mut service, "the job is sampled", |service| {
        service.sampling.look_at_jobs();
        service.sampling.last_known(&key).is_some_and(|live| live.totals.get(CPU).is_some())
    });
    let mut daemon = daemon_of(service);
    machine.hang(METER);
    let kept = |service: &mut Service| {
        service.sampling.watchdog.heartbeat.at().and_then(|at| at.source) == Some("cray")
    };
    until(&mut daemon.service, "the thread is kept", kept);

    let change = Request::Configure(Change { reset: true, ..Change::default() });
    let changed = client_of(&mut daemon, &change);
    let gone = client_of(&mut daemon, &change);
    let factors = client_of(&mut daemon, &Request::Factors);
    let reads = [
        client_of(&mut daemon, &Request::Jobs(JobsFilter::default())),
        client_of(&mut daemon, &Request::Series { key: key.clone(), after_ms: i64::MIN }),
        client_of(&mut daemon, &Request::NodeParts { since_ms: 0 }),
        client_of(&mut daemon, &Request::Energy),
        client_of(&mut daemon, &Request::Status),
    ];
    // A request of each connection.
    daemon.serve_connections(&[true; 8]);
    assert!(is_answered(&factors) && !is_answered(&changed) && !is_answered(&gone));
    assert!(reads.iter().all(is_answered), "reading waits for no tick");
    let [mut jobs, ..] = reads;
    let Ok(Reply::Jobs(jobs)) = met_query::protocol::read_frame(&mut jobs) else { panic!("no jobs") };
    assert!(jobs[0].totals.get(CPU).is_some(), "as last known: {:?}", jobs[0]);
    drop(gone);
    // No thread spins until the sampler answers.
    assert!(daemon.service.sampling.is_blocked());
    assert_eq!(daemon.timeout(), Some(super::super::RETRY_EVERY));
    assert_eq!(daemon.poll().connections[..2], [false, false], "a hang-up is seen to later");
    assert_eq!(daemon.service.sampling.watchdog.replaced, 0, "nobody waited so long");

    let begin = Instant::now();
    while !is_answered(&changed) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the next thread answers");
        let ready = daemon.poll().connections;
        daemon.serve_connections(&ready);
        daemon.keep_house();
    }
    assert_eq!(daemon.service.sampling.watchdog.replaced, 1);
    machine.answer(METER, "2\n");
    daemon.leave();
}

#[test]
fn a_status_shows_the_last_figures_and_replaces_no_thread() {
    let machine = Machine::new();
    let mut service = machine.service();
    machine.job(&mut service);
    let is_read = |service: &mut Service| {
        service.sampling.costs().unwrap().iter().any(|source| source.name == "cray" && source.read_ns > 0)
    };
    until(&mut service, "the meter is read", is_read);
    let mut daemon = daemon_of(service);
    machine.hang(METER);
    let watchdog = &daemon.service.sampling.watchdog;
    while watchdog.heartbeat.at().and_then(|at| at.source) != Some("cray") {
        std::thread::sleep(Duration::from_millis(10));
    }
    watchdog.kept_after.set(Duration::ZERO);
    assert!(!watchdog.is_kept(), "seen once");
    let (at, seen) = watchdog.suspicion.get().unwrap();
    watchdog.suspicion.set(Some((at, seen.checked_sub(SURE_AFTER).unwrap())));
    assert!(watchdog.is_kept(), "another thread could go on");

    let mut status = client_of(&mut daemon, &Request::Status);
    daemon.serve_connections(&[true]);
    let Ok(Reply::Status(status)) = met_query::protocol::read_frame(&mut status) else { panic!("no status") };
    assert!(status.sources.iter().any(|source| source.name == "cray" && source.read_ns > 0));
    assert_eq!(daemon.service.sampling.watchdog.replaced, 0);
    machine.answer(METER, "2\n");
    daemon.leave();
}

#[test]
fn a_supervisor_without_room_hears_why_only_in_a_protocol_that_has_it() {
    let answers = |hello: Option<Hello>| {
        let machine = Machine::new();
        let mut daemon = daemon_of(machine.service());
        daemon.connections = Connections::new(Limits::without_supervisors());
        let start = Request::Started(Box::new(sample::bare(7, "x")));
        let hello = hello.map(Request::Hello);
        let mut client = client_of(&mut daemon, hello.as_ref().unwrap_or(&start));
        if hello.is_some() {
            write_frame(&mut client, &start).unwrap();
        }
        // A hello, the announcement, and the end of the connection.
        for _ in 0..3 {
            let ready = vec![true; daemon.connections.len()];
            daemon.serve_connections(&ready);
        }
        assert_eq!(daemon.connections.len(), 0, "it is closed");
        daemon.leave();
        let mut arrived = Vec::new();
        std::io::Read::read_to_end(&mut client, &mut arrived).unwrap();
        let mut replies = Vec::new();
        while let Some(reply) = met_query::protocol::take_frame::<Reply>(&mut arrived).unwrap() {
            replies.push(match reply {
                Reply::Hello { .. } => "hello",
                Reply::Done => "done",
                Reply::Unlinked => "unlinked",
                _ => "other",
            });
        }
        replies
    };
    let of_version = |version| Some(Hello { protocol: 1, newest: Some(version), replace: false });
    assert_eq!(answers(of_version(4)), ["hello", "done", "unlinked"]);
    assert_eq!(answers(of_version(3)), ["hello"]);
    assert_eq!(answers(None), [""; 0], "who did not introduce himself may be of any version");
}

#[test]
fn what_is_opened_may_hang_too_and_a_changed_file_is_a_reason_to_try_again() {
    let machine = Machine::new();
    machine.hang("sys/cray/pm_counters/power");
    let mut service = machine.service();
    machine.job(&mut service);
    until(&mut service, "another thread", |service| service.sampling.watchdog.replaced == 1);
    assert_eq!(left_out(&mut service), ["cray"]);
    service.sampling.forgive_sources(&service.settings.config);
    assert_eq!(service.sampling.watchdog.replaced, 0);
    until(&mut service, "it hangs again", |service| service.sampling.watchdog.replaced == 1);
    assert_eq!(left_out(&mut service), ["cray"]);
    service.close();
}

#[test]
fn who_takes_his_time_is_not_given_up_and_after_some_nobody_is() {
    let mut watchdog = Watchdog::new(Duration::from_secs(3600));
    assert_eq!(watchdog.kept_after.get(), KEPT_AFTER_MAX, "no longer than somebody waits for an answer");
    watchdog.kept_after.set(Duration::ZERO);
    assert!(!watchdog.is_kept(), "he has nothing to do");
    watchdog.heartbeat.begin();
    assert!(!watchdog.is_kept(), "seen once");
    let long_ago = |watchdog: &Watchdog| {
        let (at, seen) = watchdog.suspicion.get().unwrap();
        watchdog.suspicion.set(Some((at, seen.checked_sub(SURE_AFTER).unwrap())));
    };
    long_ago(&watchdog);
    assert!(watchdog.is_kept());
    watchdog.heartbeat.begin();
    assert!(!watchdog.is_kept(), "he is at something else");
    for replaced in 1..=REPLACED_MAX {
        watchdog.heartbeat.begin();
        let before = Arc::clone(&watchdog.heartbeat);
        assert!(!watchdog.is_kept());
        long_ago(&watchdog);
        assert!(watchdog.is_kept());
        assert_eq!(watchdog.give_up(None), None);
        assert!(before.is_given_up() && !watchdog.heartbeat.is_given_up());
        assert_eq!(watchdog.replaced, replaced);
    }
    watchdog.heartbeat.begin();
    assert!(!watchdog.is_kept());
    assert!(watchdog.suspicion.get().is_none() && !watchdog.may_replace());
}

#[test]
fn another_thread_goes_on_where_one_has_failed() {
    let machine = Machine::new();
    let mut service = machine.service();
    let key = machine.job(&mut service).key;
    until(&mut service, "the job is sampled", |service| total(service, &key, CPU).is_some());
    service.sampling.thread = Some(std::thread::spawn(|| {}));
    until(&mut service, "another thread", |service| service.sampling.watchdog.replaced == 1);
    assert!(left_out(&mut service).is_empty());
    machine.put(CPU_FILE, "usage_usec 7000000\nuser_usec 7000000\nsystem_usec 0\n");
    until(&mut service, "the job goes on", |service| total(service, &key, CPU) == Some(7_000_000_000));
    service.close();
}
