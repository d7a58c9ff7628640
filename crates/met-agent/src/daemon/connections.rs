//! The clients of a daemon: how many there may be, whose turn it is, and what may be held for them.
//!
//! Every connection is answered one request at a time; the next one is read when the reply has been taken. Users
//! take turns, so that a busy client does not make others wait; the memory held for one user is bounded.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use met_core::job::JobKey;
use met_host::percent;
use rustix::event::{PollFd, PollFlags};

use super::socket::Connection;
use met_query::protocol::Reply;

/// Of one user in one round; then it is others' turn.
const TURN: Duration = Duration::from_millis(10);
/// When no other client waits: a round has a cost of its own.
const TURN_ALONE: Duration = Duration::from_millis(100);
/// Replies that one user has not taken and requests that are not complete; beyond it no further request is taken.
const USER_BYTES_MAX: usize = 16 << 20;
/// A peer that neither takes its reply nor completes its request for this long is gone, whatever its process
/// does.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// Without free places, a connection idle for this long is closed.
const IDLE_AFTER: Duration = Duration::from_secs(2);

/// How many connections there may be, by the limit on descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of supervisors of running jobs, and of one user.
    supervisors: usize,
    supervisors_of_user: usize,
    /// All others.
    clients: usize,
    clients_of_user: usize,
    /// Of these, places reserved for root: a user who fills all others cannot keep root from stopping the
    /// daemon.
    clients_of_root: usize,
}

impl Limits {
    pub fn of(open_files: u64, system: bool) -> Limits {
        let part = |percent: u64, most: usize| {
            usize::try_from(open_files.saturating_mul(percent) / 100).unwrap_or(most).clamp(8, most)
        };
        let (supervisors, clients) = (part(percent::SUPERVISORS, 32_768), part(percent::CLIENTS, 8192));
        match system {
            true => Limits {
                supervisors,
                supervisors_of_user: supervisors / 10 * 9,
                clients,
                clients_of_user: clients / 3 * 2,
                clients_of_root: (clients / 16).clamp(2, 32),
            },
            // They are all of one user.
            false => Limits {
                supervisors,
                supervisors_of_user: supervisors,
                clients,
                clients_of_user: clients,
                clients_of_root: 0,
            },
        }
    }
}

#[cfg(test)]
impl Limits {
    pub fn without_supervisors() -> Limits {
        Limits { supervisors: 0, ..Limits::of(1024, false) }
    }
}

/// What became of a connection that was answered.
pub enum Served {
    Stays,
    Gone,
}

pub struct Connections {
    all: Vec<Connection>,
    limits: Limits,
    /// Whose turn it is first.
    first: usize,
    /// What is held for each user, in bytes.
    held: HashMap<u32, usize>,
}

impl Connections {
    pub fn new(limits: Limits) -> Connections {
        Connections { all: Vec::new(), limits, first: 0, held: HashMap::new() }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn get(&mut self, index: usize) -> &mut Connection {
        &mut self.all[index]
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.all.iter_mut()
    }

    /// What to wait for, with the places of the connections. One whose request is postponed is not waited for: if
    /// its peer hung up, that would be reported without end.
    pub fn poll_fds(&self) -> impl Iterator<Item = (usize, PollFd<'_>)> {
        let awaited = self.all.iter().enumerate().filter(|(_, connection)| !connection.is_postponed());
        awaited.map(|(index, connection)| {
            let flags = match connection {
                // No further requests are read from a client that does not take its replies.
                connection if connection.wants_to_write() => PollFlags::OUT,
                connection if self.is_crowded(connection) => PollFlags::empty(),
                _ => PollFlags::IN,
            };
            (index, PollFd::from_borrowed_fd(connection.as_fd(), flags))
        })
    }

    fn is_crowded(&self, connection: &Connection) -> bool {
        self.held.get(&connection.peer.uid).is_some_and(|&bytes| bytes > USER_BYTES_MAX)
    }

    /// Whether a request that has arrived waits for its turn. Those that are postponed do so only if `with_postponed`.
    pub fn has_waiting(&self, with_postponed: bool) -> bool {
        let counts = |connection: &&Connection| with_postponed || !connection.is_postponed();
        self.all.iter().filter(counts).any(|connection| self.is_waiting(connection))
    }

    fn is_waiting(&self, connection: &Connection) -> bool {
        connection.has_request() && !connection.wants_to_write() && !self.is_crowded(connection)
    }

    /// When the first of those that hang is given up.
    pub fn next_stall(&self) -> Option<Instant> {
        self.all.iter().filter_map(Connection::stalled_since).min().map(|since| since + STALLED_AFTER)
    }

    /// Accepts a connection, or says why not, upon which clients retry later. Without room for a user, that user's
    /// idlest connection is closed.
    pub fn admit(&mut self, mut connection: Connection) -> Vec<JobKey> {
        let uid = connection.peer.uid;
        let clients = self.all.iter().filter(|other| other.job.is_none());
        let (count, of_user) =
            clients.fold((0, 0), |(all, his), other| (all + 1, his + usize::from(other.peer.uid == uid)));
        let owner = uid == 0 || uid == rustix::process::getuid().as_raw();
        let kept = if owner { 0 } else { self.limits.clients_of_root };
        let is_full = count + kept >= self.limits.clients;
        let mut gone = Vec::new();
        if is_full || of_user >= self.limits.clients_of_user && !owner {
            let whose = (!is_full).then_some(uid);
            match self.idlest(whose) {
                Some(index) => gone.extend(self.remove(&[index])),
                None => {
                    connection.reply(&Reply::error("too many connections"));
                    connection.flush();
                    return gone;
                }
            }
        }
        self.all.push(connection);
        gone
    }

    fn idlest(&self, uid: Option<u32>) -> Option<usize> {
        let candidates = self.all.iter().enumerate().filter(|(_, connection)| {
            connection.job.is_none()
                && !connection.wants_to_write()
                && uid.is_none_or(|uid| uid == connection.peer.uid)
                && connection.quiet_since().elapsed() >= IDLE_AFTER
                // What has not been read yet waits for its turn.
                && !connection.has_unread()
        });
        candidates.min_by_key(|(_, connection)| connection.quiet_since()).map(|(index, _)| index)
    }

    /// Notes that a connection is that of the supervisor of a job; false where there is no room for another one.
    pub fn promote(&mut self, index: usize, key: &JobKey) -> bool {
        let uid = self.all[index].peer.uid;
        let supervisors = self.all.iter().filter(|other| other.job.is_some());
        let (count, of_user) =
            supervisors.fold((0, 0), |(all, his), other| (all + 1, his + usize::from(other.peer.uid == uid)));
        let has_room = count < self.limits.supervisors && of_user < self.limits.supervisors_of_user;
        if has_room {
            self.all[index].job = Some(key.clone());
        }
        has_room
    }

    /// Those to serve in this round: the ready ones and those with a request that waits, each user for one turn at most.
    /// `serve` answers one request of a connection. The jobs whose supervisor's connection is gone.
    pub fn take_turns(
        &mut self,
        ready: &[bool],
        mut serve: impl FnMut(&mut Connections, usize) -> Served,
    ) -> Vec<JobKey> {
        let count = self.all.len().min(ready.len());
        let (mut spent, mut gone) = (HashMap::<u32, Duration>::new(), Vec::new());
        let crowded_before: Vec<bool> =
            self.all.iter().map(|connection| self.is_crowded(connection)).collect();
        self.first = if count == 0 { 0 } else { (self.first + 1) % count };
        let turn = self.turn(ready);
        // A greeting costs little and is waited for for a second only: new ones come first.
        let mut order: Vec<usize> = (self.first..count).chain(0..self.first).collect();
        order.sort_by_key(|&index| !self.all[index].is_new);
        for index in order {
            if !ready[index] && !self.is_waiting(&self.all[index]) {
                continue;
            }
            let uid = self.all[index].peer.uid;
            let spent = spent.entry(uid).or_default();
            if !self.all[index].wants_to_write() && self.is_crowded(&self.all[index]) {
                // Nothing but a hang-up was waited for.
                gone.extend((ready[index] && crowded_before[index]).then_some(index));
                continue;
            }
            if *spent > turn {
                continue;
            }
            let (begin, before) = (Instant::now(), self.all[index].held_bytes());
            if let Served::Gone = serve(self, index) {
                gone.push(index);
            }
            self.all[index].is_new = false;
            *spent += begin.elapsed();
            self.count_held(uid, before, self.all[index].held_bytes());
        }
        let now = Instant::now();
        let hangs = |connection: &Connection| {
            connection.stalled_since().is_some_and(|since| now.duration_since(since) >= STALLED_AFTER)
        };
        gone.extend((0..self.all.len()).filter(|&index| hangs(&self.all[index])));
        gone.sort_unstable();
        gone.dedup();
        self.remove(&gone)
    }

    fn turn(&self, ready: &[bool]) -> Duration {
        let wants = |(connection, ready): &(&Connection, &bool)| **ready || self.is_waiting(connection);
        let mut users = self.all.iter().zip(ready).filter(wants).map(|(connection, _)| connection.peer.uid);
        let first = users.next();
        if users.all(|uid| Some(uid) == first) { TURN_ALONE } else { TURN }
    }

    fn count_held(&mut self, uid: u32, before: usize, after: usize) {
        let held = self.held.entry(uid).or_default();
        *held = (*held + after).saturating_sub(before);
        if *held == 0 {
            self.held.remove(&uid);
        }
    }

    /// Removes connections by their places in rising order.
    fn remove(&mut self, places: &[usize]) -> Vec<JobKey> {
        let mut jobs = Vec::new();
        for &index in places.iter().rev() {
            let gone = self.all.swap_remove(index);
            self.count_held(gone.peer.uid, gone.held_bytes(), 0);
            jobs.extend(gone.job);
        }
        jobs
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::super::socket::Peer;
    use super::*;
    use crate::passed_counters::Budget;
    use met_query::protocol::{Request, write_frame};

    fn client(uid: u32) -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Connection::new(ours, Peer { uid, pid: 1 }), theirs)
    }

    fn big() -> Reply {
        Reply::error("x".repeat(4 << 20))
    }

    /// Serves rounds; how many requests of each user were answered.
    fn rounds(all: &mut Connections, count: usize, reply: &Reply, pause: Duration) -> HashMap<u32, usize> {
        let (mut answered, budget) = (HashMap::new(), Budget::of_process());
        for _ in 0..count {
            let mut fds: Vec<PollFd<'_>> = all.poll_fds().map(|(_, fd)| fd).collect();
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&now)).unwrap();
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            all.take_turns(&ready, |all, index| {
                let uid = all.get(index).peer.uid;
                let connection = all.get(index);
                if !connection.wants_to_write() && !connection.receive(&budget) {
                    return Served::Gone;
                }
                if let Some(request) = connection.take_request() {
                    request.unwrap();
                    *answered.entry(uid).or_insert(0) += 1;
                    std::thread::sleep(pause);
                    connection.reply(reply);
                }
                connection.flush();
                Served::Stays
            });
        }
        answered
    }

    fn say(stream: &mut UnixStream, count: usize) {
        let mut said = Vec::new();
        (0..count).for_each(|_| write_frame(&mut said, &Request::Status).unwrap());
        stream.write_all(&said).unwrap();
    }

    #[test]
    fn a_client_that_does_not_read_is_answered_once() {
        let mut all = Connections::new(Limits::of(20_000, true));
        let (connection, mut greedy) = client(7);
        all.admit(connection);
        say(&mut greedy, 1000);
        assert_eq!(rounds(&mut all, 50, &big(), Duration::ZERO).remove(&7), Some(1));
        assert!(all.get(0).held_bytes() < 5 << 20, "{}", all.get(0).held_bytes());
        // A client that reads goes on, reply by reply.
        let mut reply = vec![0; 4 << 20];
        let mut taken = 0;
        for _ in 0..10_000 {
            taken += greedy.read(&mut reply).unwrap_or(0);
            rounds(&mut all, 1, &big(), Duration::ZERO);
            if taken > 9 << 20 {
                break;
            }
        }
        assert!(taken > 9 << 20, "{taken}");
        assert!(all.get(0).held_bytes() < 5 << 20);
    }

    #[test]
    fn what_is_held_for_one_user_is_bounded_and_others_are_served() {
        let mut all = Connections::new(Limits::of(20_000, true));
        let mut peers: Vec<UnixStream> = Vec::new();
        for _ in 0..100 {
            let (connection, mut peer) = client(7);
            all.admit(connection);
            say(&mut peer, 3);
            peers.push(peer);
        }
        let answered = rounds(&mut all, 20, &big(), Duration::ZERO)[&7];
        assert!((4..=6).contains(&answered), "{answered} replies of 4 MiB");
        let (connection, mut other) = client(8);
        all.admit(connection);
        say(&mut other, 1);
        assert_eq!(rounds(&mut all, 2, &Reply::Done, Duration::ZERO).get(&8), Some(&1));
        // A closed connection frees its place after its requests were read.
        drop(peers);
        rounds(&mut all, 10, &Reply::Done, Duration::ZERO);
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn a_waiting_client_is_not_closed() {
        let mut all = Connections::new(Limits { clients: 2, clients_of_root: 0, ..Limits::of(0, true) });
        let (idle, _idle) = client(70_000);
        let (waiting, mut peer) = client(70_000);
        all.admit(idle);
        all.admit(waiting);
        say(&mut peer, 1);
        std::thread::sleep(IDLE_AFTER);
        let newcomers: Vec<_> = (0..2).map(|_| client(70_001)).collect();
        let peers: Vec<UnixStream> = newcomers
            .into_iter()
            .map(|(connection, peer)| {
                all.admit(connection);
                peer
            })
            .collect();
        let mut left: Vec<u32> = all.iter_mut().map(|connection| connection.peer.uid).collect();
        left.sort_unstable();
        assert_eq!((left, peers.len()), (vec![70_000, 70_001], 2), "the idle one went, then none");
    }

    #[test]
    fn users_who_take_all_places_leave_some_to_root() {
        let limits = Limits::of(1024, true);
        let mut all = Connections::new(limits);
        let mut peers = Vec::new();
        // All of them have just sent something: none is idle.
        for uid in (70_000..70_004).flat_map(|uid| std::iter::repeat_n(uid, limits.clients)) {
            let (connection, mut peer) = client(uid);
            say(&mut peer, 1);
            all.admit(connection);
            peers.push(peer);
        }
        assert_eq!(all.len(), limits.clients - limits.clients_of_root);
        let (connection, _peer) = client(0);
        all.admit(connection);
        assert!(all.iter_mut().any(|connection| connection.peer.uid == 0), "root finds a place");
        assert!(Limits::of(0, true).clients_of_root >= 2);
    }

    #[test]
    fn what_a_client_sent_before_it_hung_up_is_read() {
        let mut all = Connections::new(Limits::of(20_000, true));
        let (connection, mut peer) = client(7);
        all.admit(connection);
        say(&mut peer, 3);
        drop(peer);
        let answered = rounds(&mut all, 5, &Reply::Done, Duration::ZERO);
        assert_eq!((answered.get(&7), all.len()), (Some(&3), 0));
    }

    #[test]
    fn users_take_turns() {
        let mut all = Connections::new(Limits::of(20_000, true));
        let mut peers = Vec::new();
        for uid in std::iter::repeat_n(7, 50).chain([8]) {
            let (connection, mut peer) = client(uid);
            all.admit(connection);
            say(&mut peer, 20);
            peers.push(peer);
        }
        let answered = rounds(&mut all, 10, &Reply::Done, Duration::from_millis(6));
        assert_eq!(answered[&8], 10, "one in each round");
        assert!(answered[&7] <= 30, "{} in ten rounds", answered[&7]);
    }

    #[test]
    fn a_new_client_is_greeted_before_others_are_answered() {
        let mut all = Connections::new(Limits::of(20_000, true));
        let mut peers = Vec::new();
        for _ in 0..50 {
            let (connection, mut peer) = client(7);
            all.admit(connection);
            say(&mut peer, 3);
            peers.push(peer);
        }
        rounds(&mut all, 1, &Reply::Done, Duration::ZERO);
        // Each of the others takes all of a turn.
        for _ in 0..3 {
            let (connection, mut peer) = client(7);
            all.admit(connection);
            say(&mut peer, 1);
            rounds(&mut all, 1, &Reply::Done, TURN_ALONE * 2);
            peer.set_nonblocking(true).unwrap();
            assert!(peer.read(&mut [0; 64]).unwrap() > 0, "answered in the first round");
            peers.push(peer);
        }
    }

    #[test]
    fn connections_are_bounded_and_those_of_supervisors_counted_apart() {
        let limits = Limits::of(1024, true);
        assert_eq!((limits.supervisors, limits.clients), (256, 102));
        let mut all = Connections::new(limits);
        let key = JobKey { cluster: None, manager: "local".to_owned(), id: "1".to_owned(), incarnation: 1 };
        let mut peers = Vec::new();
        let mut linked = 0;
        for _ in 0..600 {
            let (connection, peer) = client(70_000);
            all.admit(connection);
            let last = all.len() - 1;
            linked += usize::from(all.promote(last, &key));
            if all.get(last).job.is_none() {
                all.remove(&[last]);
            }
            peers.push(peer);
        }
        assert_eq!((linked, all.len()), (limits.supervisors_of_user, limits.supervisors_of_user));
        for _ in 0..300 {
            let (connection, peer) = client(70_000);
            all.admit(connection);
            peers.push(peer);
        }
        assert_eq!(all.len(), limits.supervisors_of_user + limits.clients_of_user);
        let mut refusal = [0; 200];
        let length = peers.last_mut().unwrap().read(&mut refusal).unwrap();
        assert!(String::from_utf8_lossy(&refusal[..length]).contains("too many connections"));
        // Others find room.
        let (connection, _peer) = client(70_001);
        let before = all.len();
        all.admit(connection);
        assert_eq!(all.len(), before + 1);
        assert!(Limits::of(20_000, true).supervisors_of_user >= 2_000);
    }
}
