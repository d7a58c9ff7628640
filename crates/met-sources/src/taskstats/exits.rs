//! Listens to the ends of processes, and to their births: who came and went between two samples.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use met_core::process_exits::{Exit, INHERITED, OWN, OWN_DETAILS};
use met_core::{FastMap, MISSING};
use met_host::netlink::{self, Datagrams, Socket, u16_at, u32_at};
use met_host::{Host, clock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::record::Record;
use super::{
    ANSWER_BYTES_MAX, COMMAND_GET, Connected, OF_PROCESS, OF_THREAD, SPEC, accounts_delays, connect,
    statistics,
};
use crate::{Options, Unavailable};

const REGISTER_CPUS: u16 = 3;
/// Tens of thousands of records wait in so much until they are read. It is taken only while they wait.
const ROOM_BYTES: i32 = 16 << 20;
/// While records come it is looked so often whether they need room: waking up costs as much as reading some.
const GATHER: Duration = Duration::from_millis(200);
/// The same while they take next to none of it: 20,000 that come within such a time find room.
const GATHER_FEW: Duration = Duration::from_millis(500);
const FEW_SHARE: u32 = 64;
/// Until they take this part of their room they wait for a tick, which reads them together.
const WAITING_SHARE: u32 = 8;
/// The pause while so many come that they might not find room.
const GATHER_MANY: Duration = Duration::from_millis(20);
const MANY: usize = 500;
/// How soon the thread notices that it is to end.
const LOOK_UP: Duration = Duration::from_secs(1);
/// Records beyond this that are not read between two ticks are dropped, and counted.
const KEPT_MAX: usize = 1 << 15;
/// So many are better taken before the next tick: they take 700 kB.
const CROWD: usize = 1 << 11;

const BIRTHS_GROUP: u32 = 1;
const BIRTH: u32 = 1;
/// Where a connector's message says what happened: behind the headers of netlink and connector.
const EVENT_OFFSET: u32 = 36;
const CHILD_TID_OFFSET: u32 = EVENT_OFFSET + 24;
const CHILD_PID_OFFSET: u32 = EVENT_OFFSET + 28;

/// Whether the configuration turns the source off, and so this listener.
pub fn is_off(options: &Options) -> bool {
    options.choices.get(SPEC.name).is_some_and(|choice| choice.off)
}

/// Births and ends since the last look.
#[derive(Debug, Default)]
pub struct News {
    /// Parent and child, in their order.
    pub births: Vec<(u32, u32)>,
    pub ends: Vec<Exit>,
    /// How often something was lost since the beginning.
    pub losses: u64,
}

impl News {
    pub fn is_empty(&self) -> bool {
        self.births.is_empty() && self.ends.is_empty()
    }
}

/// A thread that listens until this is dropped.
#[derive(Debug)]
pub struct Exits {
    listener: Arc<Mutex<Listener>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    since_ns: i64,
    knows_births: bool,
}

#[derive(Debug)]
struct Listener {
    ends: Socket,
    births: Option<Socket>,
    received: Datagrams,
    /// Reused from one reading to the next.
    ended: Vec<(Record, bool)>,
    threads: Threads,
    tick_ns: i64,
    news: News,
    delays: bool,
    host: Host,
    cpu_ns: i64,
}

impl Exits {
    pub fn listen(host: &Host) -> Result<Exits, Unavailable> {
        let listener = Listener::open(host, ROOM_BYTES)?;
        let knows_births = listener.births.is_some();
        let listener = Arc::new(Mutex::new(listener));
        let ends = Arc::new(AtomicBool::new(false));
        let (their_listener, their_end) = (Arc::clone(&listener), Arc::clone(&ends));
        let thread = std::thread::Builder::new()
            .name("exits".to_owned())
            .spawn(move || listen(&their_listener, &their_end))
            .map_err(absent)?;
        Ok(Exits { listener, ends, thread: Some(thread), since_ns: clock::boottime_ns(), knows_births })
    }

    /// What happened since the last call, up to this moment.
    pub fn take(&self) -> News {
        let mut listener = lock(&self.listener);
        listener.receive();
        listener.delays = accounts_delays(&listener.host.clone(), &mut Vec::new());
        let losses = listener.news.losses;
        std::mem::replace(&mut listener.news, News { losses, ..News::default() })
    }

    /// Whether so many wait that they should be taken.
    pub fn is_crowded(&self) -> bool {
        let listener = lock(&self.listener);
        listener.news.births.len().max(listener.news.ends.len()) > CROWD
    }

    /// Boot time since when nothing is missed.
    pub fn since_ns(&self) -> i64 {
        self.since_ns
    }

    /// Whether forks are reported: otherwise a child of a child that was never seen is of no job.
    pub fn knows_births(&self) -> bool {
        self.knows_births
    }

    pub fn accounts_delays(&self) -> bool {
        lock(&self.listener).delays
    }

    /// CPU time of the thread.
    pub fn cpu_ns(&self) -> i64 {
        lock(&self.listener).cpu_ns
    }
}

impl Drop for Exits {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It ends within a second by itself.
            drop(thread);
        }
    }
}

fn lock(listener: &Mutex<Listener>) -> MutexGuard<'_, Listener> {
    listener.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(listener: &Mutex<Listener>, end: &AtomicBool) {
    let timeout = Timespec::try_from(LOOK_UP).ok();
    // Descriptors of its own: while it waits for records, others can take them.
    let sockets = {
        let listener = lock(listener);
        let births = listener.births.as_ref().map(Socket::try_clone);
        (listener.ends.try_clone(), births)
    };
    let (Ok(ends), births) = sockets else { return };
    let births = births.and_then(Result::ok);
    let mut busy = false;
    while !end.load(Ordering::Relaxed) {
        // While messages come, the thread looks at them now and then instead of waking up for the first of each.
        if busy {
            let waiting = [Some(&ends), births.as_ref()].into_iter().flatten().map(Waiting::of).max();
            let pause = match waiting {
                Some(Waiting::Nothing) | None => {
                    busy = false;
                    continue;
                }
                Some(Waiting::Few) => GATHER_FEW,
                Some(Waiting::Some) => GATHER,
                Some(Waiting::Many) if receive(listener) > MANY => GATHER_MANY,
                Some(Waiting::Many) => GATHER,
            };
            std::thread::park_timeout(pause);
            continue;
        }
        let mut fds = vec![PollFd::new(&ends, PollFlags::IN)];
        fds.extend(births.as_ref().map(|births| PollFd::new(births, PollFlags::IN)));
        if matches!(poll(&mut fds, timeout.as_ref()), Ok(0)) {
            continue;
        }
        busy = true;
        std::thread::park_timeout(GATHER_MANY);
    }
}

fn receive(listener: &Mutex<Listener>) -> usize {
    let mut listener = lock(listener);
    let received = listener.receive();
    listener.cpu_ns = clock::thread_cpu_ns();
    received
}

/// How much waits to be read from a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waiting {
    Nothing,
    /// They take next to none of its room.
    Few,
    /// It has room for much more.
    Some,
    Many,
}

impl Waiting {
    fn of(socket: &Socket) -> Waiting {
        match socket.waiting_bytes() {
            Some((0, _)) => Waiting::Nothing,
            Some((bytes, room)) if bytes < room / FEW_SHARE => Waiting::Few,
            Some((bytes, room)) if bytes < room / WAITING_SHARE => Waiting::Some,
            // A kernel that does not say it has to be asked for all.
            Some(_) | None => Waiting::Many,
        }
    }
}

fn register(host: &Host, socket: &Socket, family: u16) -> io::Result<()> {
    let mut cpus = Vec::new();
    host.read_small("/sys/devices/system/cpu/possible", &mut cpus)?;
    let mask: Vec<u8> = cpus.trim_ascii().iter().copied().chain([0]).collect();
    let mut request = Vec::new();
    netlink::push_generic(&mut request, family, 0, COMMAND_GET, &[(REGISTER_CPUS, &mask)]);
    socket.send(&request)?;
    let mut answers = Datagrams::new(1, ANSWER_BYTES_MAX);
    socket.receive(&mut answers)?;
    let refused = answers.iter().flat_map(netlink::messages).find_map(|answer| answer.error());
    refused.map_or(Ok(()), Err)
}

/// The proc connector: a message for each fork on the machine, and `of_threads` for each new thread.
fn listen_to_births(of_threads: bool) -> io::Result<Socket> {
    const LISTEN: u32 = 1;
    const DONE: u16 = 3;
    let socket = Socket::open(netlink::CONNECTOR, BIRTHS_GROUP)?;
    socket.make_room(ROOM_BYTES);
    let order = |words: &[u32]| {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut body: Vec<u8> = [BIRTHS_GROUP, 1, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        body.extend((payload.len() as u16).to_ne_bytes());
        body.extend([0; 2]);
        body.extend(payload);
        let mut message = Vec::new();
        netlink::push_message(&mut message, DONE, &body);
        message
    };
    // A short process causes about six events, of which one is its birth. The child is a process if its two numbers
    // are the same.
    let of_processes = (!of_threads).then_some([CHILD_TID_OFFSET, CHILD_PID_OFFSET]);
    let _ = socket.only_with(EVENT_OFFSET, BIRTH, of_processes);
    socket.send(&order(&[LISTEN]))?;
    // From Linux 6.6 on they are not even sent; before, this is not understood and does no harm.
    let _ = socket.send(&order(&[LISTEN, BIRTH]));
    Ok(socket)
}

/// Between two ticks the kernel does not look how long a thread has been running.
fn tick_ns() -> i64 {
    let resolution = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    resolution.tv_sec * 1_000_000_000 + resolution.tv_nsec
}

fn absent(error: io::Error) -> Unavailable {
    Unavailable::Absent(format!("no exit records: {error}"))
}

impl Listener {
    fn open(host: &Host, room_bytes: i32) -> Result<Listener, Unavailable> {
        let Connected { socket, family, says_process } = connect(host)?;
        socket.make_room(room_bytes);
        // Before the ends: a child whose end is received was born after this.
        let births = listen_to_births(!says_process).ok();
        register(host, &socket, family).map_err(absent)?;
        Ok(Listener {
            ends: socket,
            births,
            received: Datagrams::new(netlink::DATAGRAMS, ANSWER_BYTES_MAX),
            ended: Vec::new(),
            threads: Threads::default(),
            tick_ns: tick_ns(),
            news: News::default(),
            delays: accounts_delays(host, &mut Vec::new()),
            host: host.clone(),
            cpu_ns: 0,
        })
    }

    /// Reads all waiting messages and returns their number. The ends first: the birth of a process that ended was
    /// sent before.
    fn receive(&mut self) -> usize {
        let mut ended = std::mem::take(&mut self.ended);
        let mut messages = 0;
        loop {
            match self.ends.receive(&mut self.received) {
                Ok(received) => {
                    messages += received;
                    let bodies = self.received.iter().flat_map(netlink::messages);
                    ended.extend(bodies.filter_map(|message| end_of(message.generic()?)));
                    if received < netlink::DATAGRAMS {
                        break;
                    }
                }
                // The kernel had more records than there was room for.
                Err(_) => {
                    self.news.losses += 1;
                    if self.heard_nothing_more() {
                        break;
                    }
                }
            }
        }
        messages += self.hear_births();
        let now = Now { monotonic_ns: clock::monotonic_ns(), unix_ns: clock::realtime_ns() };
        for (record, whole) in &ended {
            self.end(record, *whole, now);
        }
        ended.clear();
        // A burst of ends is no reason to hold memory for the next one.
        ended.shrink_to(CROWD);
        self.ended = ended;
        messages
    }

    fn heard_nothing_more(&self) -> bool {
        let mut fds = [PollFd::new(&self.ends, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
    }

    fn hear_births(&mut self) -> usize {
        let Some(births) = &self.births else { return 0 };
        let mut messages = 0;
        loop {
            match births.receive(&mut self.received) {
                Ok(received) => {
                    messages += received;
                    for birth in
                        self.received.iter().flat_map(netlink::messages).filter_map(|one| birth_of(one.body))
                    {
                        self.news.losses += self.threads.born(&birth);
                        if birth.tid != birth.pid {
                            continue;
                        }
                        if self.news.births.len() < KEPT_MAX {
                            self.news.births.push((birth.parent_pid, birth.pid));
                        } else {
                            self.news.losses += 1;
                        }
                    }
                    if received < netlink::DATAGRAMS {
                        break;
                    }
                }
                Err(_) => {
                    self.news.losses += 1;
                    break;
                }
            }
        }
        messages
    }

    fn end(&mut self, record: &Record, whole: bool, now: Now) {
        let pid = self.threads.process_of(record);
        let mut exit = exit_of(record, pid, self.tick_ns, self.delays);
        let is_last = record.last_of_group.unwrap_or(whole || record.tid == pid);
        let ended = match is_last {
            true => {
                exit = self.threads.whole(exit);
                exit.begin_ns = self.threads.birth_of(&exit, now);
                exit.received_ns = Some(now.unix_ns);
                self.news.ends.len() < KEPT_MAX && {
                    self.news.ends.push(exit);
                    true
                }
            }
            false => self.threads.part(exit),
        };
        self.news.losses += u64::from(!ended);
    }
}

/// One moment on two clocks.
#[derive(Clone, Copy, Debug)]
struct Now {
    monotonic_ns: i64,
    unix_ns: i64,
}

/// What is known of threads until their processes end.
#[derive(Debug, Default)]
struct Threads {
    /// Those that ended of processes that go on, by process.
    parted: FastMap<u32, Exit>,
    /// Processes of threads, for kernels whose records do not say.
    processes: FastMap<u32, u32>,
    records_say_process: bool,
    /// When processes were born, on the monotonic clock.
    births_ns: FastMap<u32, i64>,
}

impl Threads {
    /// A number is given again only after its last owner is gone: the end of what is still known of it was never reported
    /// to have ended. Returns how much was lost.
    fn born(&mut self, birth: &Birth) -> u64 {
        if birth.tid == birth.pid {
            if self.births_ns.len() < KEPT_MAX || self.births_ns.contains_key(&birth.pid) {
                self.births_ns.insert(birth.pid, birth.monotonic_ns);
            }
            let parted = self.parted.remove(&birth.pid).is_some();
            return u64::from(self.processes.remove(&birth.pid).is_some() || parted);
        }
        if self.records_say_process {
            return 0;
        }
        let was_full = self.processes.len() >= KEPT_MAX && !self.processes.contains_key(&birth.tid);
        if !was_full {
            self.processes.insert(birth.tid, birth.pid);
        }
        u64::from(was_full)
    }

    fn process_of(&mut self, record: &Record) -> u32 {
        if record.pid.is_some() && !std::mem::replace(&mut self.records_say_process, true) {
            self.processes = FastMap::default();
        }
        let reported = self.processes.remove(&record.tid);
        record.pid.or(reported).unwrap_or(record.tid)
    }

    /// A thread of a process that goes on; false if there is no room for it.
    fn part(&mut self, thread: Exit) -> bool {
        let has_room = self.parted.len() < KEPT_MAX || self.parted.contains_key(&thread.pid);
        if has_room {
            self.parted.entry(thread.pid).and_modify(|sum| sum.add_thread(&thread)).or_insert(thread);
        }
        has_room
    }

    /// When a process began that is over. A birth after that is of the next process with its number.
    fn birth_of(&mut self, exit: &Exit, now: Now) -> Option<i64> {
        let birth_ns = *self.births_ns.get(&exit.pid)?;
        if birth_ns.saturating_add(exit.elapsed_ns) > now.monotonic_ns {
            return None;
        }
        self.births_ns.remove(&exit.pid);
        Some(birth_ns.saturating_add(now.unix_ns - now.monotonic_ns))
    }

    /// The process whose last thread this is.
    fn whole(&mut self, mut last: Exit) -> Exit {
        if let Some(parted) = self.parted.remove(&last.pid) {
            last.add_thread(&parted);
        }
        last
    }
}

/// The record of a thread, and whether that of its process came with it.
fn end_of(body: &[u8]) -> Option<(Record, bool)> {
    let record = Record::parse(statistics(body, OF_THREAD)?)?;
    Some((record, statistics(body, OF_PROCESS).is_some()))
}

#[derive(Debug, PartialEq, Eq)]
struct Birth {
    parent_pid: u32,
    tid: u32,
    pid: u32,
    monotonic_ns: i64,
}

/// A connector's message: 20 bytes of its own, then the event.
fn birth_of(body: &[u8]) -> Option<Birth> {
    const EVENT: usize = 20;
    let length = usize::from(u16_at(body, 16)?);
    let event = body.get(EVENT..EVENT.checked_add(length)?)?;
    (u32_at(event, 0)? == BIRTH).then_some(())?;
    let time: [u8; 8] = event.get(8..16)?.try_into().ok()?;
    let monotonic_ns = i64::try_from(u64::from_ne_bytes(time)).unwrap_or(i64::MAX);
    let [parent_pid, tid, pid] = [u32_at(event, 20)?, u32_at(event, 24)?, u32_at(event, 28)?];
    Some(Birth { parent_pid, tid, pid, monotonic_ns })
}

/// For fuzz/.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let _ = birth_of(bytes);
    let records = [end_of(bytes).map(|(record, _)| record), Record::parse(bytes)];
    let exits = records.iter().flatten().map(|record| exit_of(record, record.tid, 4_000_000, true));
    if let Some(sum) = exits.reduce(|mut sum, more| {
        sum.add_thread(&more);
        sum
    }) {
        assert!(sum.pid == records.iter().flatten().next().map_or(0, |record| record.tid));
    }
}

fn exit_of(record: &Record, pid: u32, tick_ns: i64, delays: bool) -> Exit {
    let known = |cell: i64| if cell == MISSING { 0 } else { cell };
    let (cpu_ns, cpu_doubt_ns) = cpu_of(record, tick_ns);
    let ticks_us = record.user_us.saturating_add(record.system_us);
    // What ran between two ticks alone was hardly in the kernel.
    let system_ns = match ticks_us > 0 {
        true => (cpu_ns as f64 * record.system_us as f64 / ticks_us as f64) as i64,
        false => 0,
    };
    let memory = [record.swap_wait_ns, record.reclaim_wait_ns, record.compact_wait_ns];
    let memory_ns = memory.map(known).into_iter().fold(0, i64::saturating_add);
    let inherited: [i64; INHERITED.len()] = [
        cpu_ns,
        cpu_ns - system_ns,
        system_ns,
        record.read,
        record.written,
        record.write_cancelled,
        record.read_call,
        record.write_call,
        record.faults_minor,
        record.faults_major,
    ];
    let delay = |cell: i64| if delays { cell } else { 0 };
    let own: [i64; OWN.len()] = [
        record.cpu_wait_ns,
        record.voluntary,
        record.involuntary,
        delay(record.io_wait_ns),
        delay(memory_ns),
    ];
    let details: [i64; OWN_DETAILS.len()] = [
        record.cpu_runs,
        record.cpu_real_ns,
        record.cpu_run_ns,
        record.cpu_scaled_ns,
        record.user_scaled_us,
        record.system_scaled_us,
        delay(record.io_waits),
        delay(record.swap_waits),
        delay(record.swap_wait_ns),
        delay(record.reclaim_waits),
        delay(record.reclaim_wait_ns),
        record.memory_time,
        record.virtual_time,
    ];
    Exit {
        pid,
        parent_pid: record.parent_pid,
        uid: record.uid,
        begin_s: record.begin_s,
        begin_ns: None,
        received_ns: None,
        elapsed_ns: known(record.elapsed_us).saturating_mul(1000),
        exit_code: record.exit_code,
        name: record.name,
        inherited: inherited.map(known),
        own: own.map(known),
        details: details.map(known),
        cpu_doubt_ns,
        lacks_delays: delays && (record.io_wait_ns == MISSING || memory.contains(&MISSING)),
        resident_peak_bytes: known(record.resident_peak_kb).saturating_mul(1024),
        virtual_peak_bytes: known(record.virtual_peak_kb).saturating_mul(1024),
    }
}

/// The CPU time of a thread, and by how much it may be too small.
///
/// The kernel adds up at each tick and each switch, and not once more at the end: of a thread of five
/// milliseconds a third is missing. Of one that never slept, all its time that it did not wait for a CPU
/// was spent on one; of the others no more than a tick can be missing.
fn cpu_of(record: &Record, tick_ns: i64) -> (i64, i64) {
    let counted_ns = record.cpu_run_ns.max(0);
    let awake_ns = record.elapsed_us.saturating_mul(1000).saturating_sub(record.cpu_wait_ns.max(0));
    let most_ns = awake_ns.min(counted_ns.saturating_add(tick_ns)).max(counted_ns);
    match record.voluntary {
        0 => (most_ns, 0),
        _ => (counted_ns, most_ns - counted_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::bytes;
    use super::*;
    use proptest::prelude::*;

    fn record(elapsed_us: i64, wait_ns: i64, counted_ns: i64, voluntary: i64) -> Record {
        let record = Record::parse(&bytes(16, 70)).unwrap();
        Record { elapsed_us, cpu_wait_ns: wait_ns, cpu_run_ns: counted_ns, voluntary, ..record }
    }

    #[test]
    fn threads_whose_process_was_not_heard_to_end_are_no_part_of_the_next_with_its_number() {
        let thread =
            |pid: u32, cpu_ns: i64| Exit { pid, inherited: [cpu_ns; INHERITED.len()], ..Exit::default() };
        let birth = |tid: u32, pid: u32| Birth { parent_pid: 1, tid, pid, monotonic_ns: 0 };
        let mut threads = Threads::default();
        assert!(threads.part(thread(7, 100)) && threads.part(thread(7, 10)));
        assert_eq!(threads.whole(thread(7, 1)).inherited[0], 111);
        // The last thread of 8 is lost.
        assert!(threads.part(thread(8, 100)));
        assert_eq!((threads.born(&birth(8, 8)), threads.born(&birth(8, 8))), (1, 0));
        assert_eq!(threads.whole(thread(8, 1)).inherited[0], 1);
        // Without room, what is missing is counted.
        let kept = (0..KEPT_MAX as u32 + 5).map(|pid| threads.part(thread(pid, 1))).filter(|kept| *kept);
        assert_eq!(kept.count(), KEPT_MAX);
        let lost: u64 = (0..KEPT_MAX as u32 + 5).map(|tid| threads.born(&birth(tid + 10, 1))).sum();
        assert_eq!(lost, 5);
        let record = Record::parse(&bytes(16, 70)).unwrap();
        assert_eq!((threads.process_of(&record), threads.processes.len()), (46_000, 0), "the records say it");
    }

    #[test]
    fn a_process_began_at_its_birth_and_not_at_that_of_the_next_with_its_number() {
        let mut threads = Threads::default();
        let now = Now { monotonic_ns: 1_000, unix_ns: 5_000 };
        let exit = |pid: u32| Exit { pid, elapsed_ns: 300, ..Exit::default() };
        for (pid, monotonic_ns) in [(7, 600), (8, 900)] {
            threads.born(&Birth { parent_pid: 1, tid: pid, pid, monotonic_ns });
        }
        assert_eq!(threads.birth_of(&exit(7), now), Some(4_600));
        assert_eq!(threads.birth_of(&exit(7), now), None, "it is over");
        assert_eq!(threads.birth_of(&exit(8), now), None, "born too late to have lived so long");
        let later = Now { monotonic_ns: 1_500, unix_ns: 5_500 };
        assert_eq!(threads.birth_of(&exit(8), later), Some(4_900));
    }

    #[test]
    fn who_never_slept_was_on_a_cpu_all_the_time_it_did_not_wait_for_one() {
        assert_eq!(cpu_of(&record(5_300, 24_521, 1_946_981, 0), 4_000_000), (5_275_479, 0));
        assert_eq!(cpu_of(&record(20_043, 14_732_312, 3_988_462, 0), 4_000_000), (5_310_688, 0));
        assert_eq!(cpu_of(&record(900_000, 0, 1_000_000, 3), 4_000_000), (1_000_000, 4_000_000));
        assert_eq!(cpu_of(&record(1_000, 0, 1_000_000, 3), 4_000_000), (1_000_000, 0));
    }

    #[test]
    fn a_birth_is_reported_by_its_parents_process() {
        let mut message: Vec<u8> = [1u32, 1, 7, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        message.extend(40u16.to_ne_bytes());
        message.extend([0; 2]);
        for word in [BIRTH, 0, 5, 5, 100, 100, 101, 101, 0, 0] {
            message.extend(word.to_ne_bytes());
        }
        let monotonic_ns = (5 << 32) + 5;
        assert_eq!(birth_of(&message), Some(Birth { parent_pid: 100, tid: 101, pid: 101, monotonic_ns }));
        message[20] = 2;
        assert_eq!(birth_of(&message), None, "an exec is no birth");
    }

    #[test]
    fn records_wait_while_there_is_room_and_a_look_takes_them() {
        let mut listener = match Listener::open(&Host::real().unwrap(), ROOM_BYTES) {
            Ok(listener) => listener,
            Err(why) => {
                met_core::skipped::skipped(why);
                return;
            }
        };
        #[allow(clippy::disallowed_methods, reason = "a test may start processes")]
        let mut sh = std::process::Command::new("sh");
        assert!(sh.args(["-c", "(:)"]).status().unwrap().success());
        assert_ne!(Waiting::of(&listener.ends), Waiting::Nothing);
        assert!(listener.receive() > 0 && !listener.news.ends.is_empty());
        assert_eq!(listener.news.losses, 0);
        // Of others on this machine some may have ended since.
        let (bytes, room) = listener.ends.waiting_bytes().unwrap();
        assert!(bytes < room / WAITING_SHARE && room >= ROOM_BYTES as u32, "{bytes} of {room}");
    }

    #[test]
    fn births_of_threads_are_left_out_where_records_name_the_process() {
        let (births, of_threads) = match (listen_to_births(false), listen_to_births(true)) {
            (Ok(births), Ok(of_threads)) => (births, of_threads),
            (Err(why), _) | (_, Err(why)) => {
                met_core::skipped::skipped(why);
                return;
            }
        };
        std::thread::spawn(|| {}).join().unwrap();
        #[allow(clippy::disallowed_methods, reason = "a test may start processes")]
        let mut sh = std::process::Command::new("sh");
        assert!(sh.args(["-c", "(:)"]).status().unwrap().success());
        let received = |socket: &Socket| {
            let mut found = Vec::new();
            let mut datagrams = Datagrams::new(netlink::DATAGRAMS, ANSWER_BYTES_MAX);
            while socket.receive(&mut datagrams).unwrap() > 0 {
                let messages = datagrams.iter().flat_map(netlink::messages);
                found.extend(messages.filter_map(|message| birth_of(message.body)));
            }
            let threads = found.iter().filter(|birth| birth.tid != birth.pid).count();
            (threads > 0, found.len() > threads)
        };
        assert_eq!(received(&births), (false, true));
        assert_eq!(received(&of_threads), (true, true));
    }

    #[test]
    fn records_that_did_not_fit_are_counted_as_lost() {
        let mut listener = match Listener::open(&Host::real().unwrap(), 4096) {
            Ok(listener) => listener,
            Err(why) => {
                met_core::skipped::skipped(why);
                return;
            }
        };
        #[allow(clippy::disallowed_methods, reason = "a test may start processes")]
        let mut sh = std::process::Command::new("sh");
        let script = "i=0; while [ $i -lt 300 ]; do (:); i=$((i+1)); done";
        assert!(sh.args(["-c", script]).status().unwrap().success());
        listener.receive();
        assert!(
            listener.news.losses > 0 && listener.news.ends.len() < 300,
            "{} received",
            listener.news.ends.len()
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_birth_or_none(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = birth_of(&bytes);
            let _ = end_of(&bytes);
        }

        #[test]
        fn figures_of_a_thread_stay_in_their_bounds(
            elapsed_us in 0..i64::MAX, wait_ns in 0..i64::MAX, counted_ns in 0..i64::MAX / 2, voluntary in 0..3i64,
        ) {
            let record = record(elapsed_us, wait_ns, counted_ns, voluntary);
            let (cpu_ns, doubt_ns) = cpu_of(&record, 4_000_000);
            prop_assert!(cpu_ns >= counted_ns && cpu_ns + doubt_ns <= counted_ns + 4_000_000);
            let exit = exit_of(&record, 1, 4_000_000, false);
            prop_assert_eq!(exit.inherited[0], exit.inherited[1] + exit.inherited[2]);
        }
    }
}
