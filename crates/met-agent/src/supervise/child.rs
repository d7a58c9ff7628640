//! Supervising a command of our own.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process;
use std::time::Duration;

use met_core::job::{LeftOver, MemoryLimit, ProcessId, Record, State};
use met_core::job_table::{OOM_KILLS, PROCESSES};
use met_host::{Host, clock};
use met_jobs::job_cgroup::{self, Enable, JobCgroup, Site};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, WaitOptions, WaitStatus};

use super::events::Events;
use super::link::Link;
use super::memory;
use super::memory_limit::{self, OomKills};
use super::perf::{Begin, Clocks, TaskClock};
use super::quota::Quota;
use super::signals::{Signals, cancel_signal};
use super::spawn::{self, Command, Outcome};
use super::unreported::Unreported;
use super::{Assignment, Channel, Inbox, Notice, attached, totals, usable_cpus};
use met_jobs::processes;
use met_query::jobs;

/// What a supervisor can arrange and find out before it knows its job: all that depends on its own process alone. One
/// that is forked early does so while its parent reads the command line.
pub struct Preparation {
    signals: Signals,
    quota: Option<Quota>,
    oom_kills: Option<OomKills>,
    memory_limit: Option<MemoryLimit>,
    site: Option<Site>,
    supervisor: Option<ProcessId>,
}

impl Preparation {
    /// Also makes this process the leader of a session, if its job is `detached` from the terminal.
    pub fn new(host: &Host, detached: bool) -> io::Result<Preparation> {
        let signals = Signals::block()?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        if detached {
            rustix::process::setsid()?;
        }
        let pid = std::process::id();
        Ok(Preparation {
            signals,
            quota: Quota::of(host, pid),
            oom_kills: OomKills::around(host, pid),
            memory_limit: memory_limit::inherited(host, pid),
            site: Site::of(host, pid),
            supervisor: host.process(pid).ok(),
        })
    }
}

/// Runs the command to its end and keeps its record. Called in a process of its own with one thread.
pub fn supervise_child(
    host: Host,
    prepared: io::Result<Preparation>,
    assignment: Assignment,
    command: Command,
    mut channel: Channel,
) {
    // Without a daemon, the supervisor imports the end itself.
    let imports = assignment.detached && !assignment.daemon.system;
    let (place, own_host) = (assignment.inbox.clone().filter(|_| imports), host.clone());
    let (id, when) = (assignment.record.key.id.clone(), assignment.notify.clone());
    let begun =
        prepared.and_then(|prepared| Supervision::begin(host, prepared, assignment, command, &mut channel));
    let result = begun.map(|job| job.finish(&mut channel));
    channel.close(result);
    if let Some(place) = place.filter(|place| place.check_own().is_ok()) {
        drop(jobs::import_unless_locked(&place.state, &own_host));
    }
    if !when.is_empty() {
        notify(&id, &when);
    }
}

/// Starts the notification of the user, which reports its own errors. The supervisor does not wait for it.
fn notify(id: &str, when: &str) {
    let Ok(program) = std::env::current_exe() else { return };
    let mut command = process::Command::new(program);
    command.args(["notify-ended", "--when", when, id]);
    command.stdin(process::Stdio::null()).stdout(process::Stdio::null()).stderr(process::Stdio::null());
    if let Err(error) = command.spawn() {
        let _ = writeln!(io::stderr(), "met: cannot report the end of job {id}: {error}");
    }
}

/// Says that a job has started, if it is a detached one or not. In the foreground the command matters more than its
/// record, and does not wait for it.
fn announce(assignment: &Assignment, detached: bool, inbox: Option<&Inbox>, channel: &mut Channel) {
    if assignment.detached != detached {
        return;
    }
    if let Some(inbox) = inbox {
        let _ = inbox.folder.write_start(&assignment.record);
    }
    channel.tell(&Notice::Started(Box::new(assignment.record.clone())));
}

/// After the announcement, which `met run` waits for. Without space a job has no marks; it runs all the same.
fn create_marks(inbox: Option<&Inbox>) {
    if let Some(inbox) = inbox {
        let _ = inbox.folder.create_marks();
    }
}

struct Supervision {
    host: Host,
    assignment: Assignment,
    inbox: Option<Inbox>,
    signals: Signals,
    link: Option<Link>,
    enclosure: JobCgroup,
    counters: Counters,
    outcome: Option<Outcome>,
    children: Children,
    cancelled: bool,
}

/// What counts for the job beside its cgroup.
struct Counters {
    begin_boot_ns: i64,
    /// `None` until they are due.
    clocks: Option<Option<Clocks>>,
    quota: Option<Quota>,
    oom_kills: Option<OomKills>,
    events: Events,
}

impl Counters {
    /// How long until the clocks of a job in a cgroup are due: a short one needs none.
    fn until_clocks(&self) -> Option<Duration> {
        let age_ns = clock::boottime_ns() - self.begin_boot_ns;
        self.clocks.is_none().then(|| Duration::from_nanos((CLOCKS_AFTER_NS - age_ns).max(0) as u64))
    }

    fn open_late_clocks(&mut self, host: &Host, record: &Record) {
        if self.until_clocks() != Some(Duration::ZERO) {
            return;
        }
        // The grace period is waited for here, and not between the reading of the cgroup and the clocks.
        let _first = TaskClock::open(0, Begin::Now);
        let used_ns = record.local.as_ref().and_then(|local| processes::used_ns(host, &local.cgroup));
        let clocks = attached::open_clocks(host, record, LATE_THREADS_MAX);
        let clocks = clocks.filter(|clocks| !clocks.is_empty());
        self.clocks = Some(used_ns.zip(clocks).map(|(used_ns, clocks)| Clocks::late(clocks, used_ns)));
    }
}

/// The processes of the job: as subreaper we have inherited every descendant.
struct Children {
    main: Pid,
    main_status: Option<WaitStatus>,
    /// Since boot.
    main_end_ns: Option<i64>,
    reaped: i64,
    /// No child is left.
    are_gone: bool,
}

impl Children {
    /// Reaps whatever has ended.
    fn reap(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    self.reaped += 1;
                    if pid == self.main {
                        (self.main_status, self.main_end_ns) = (Some(status), Some(clock::boottime_ns()));
                    }
                }
                Ok(None) => return,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    self.are_gone = true;
                    return;
                }
            }
        }
    }
}

/// How long supervisors of jobs inside a job are waited for: a tenth of a second, in which a disk answers.
const LOOKS_MAX: u32 = 500;
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// A job in a cgroup that lives so long has clocks, too.
const CLOCKS_AFTER_NS: i64 = 50_000_000;
/// Unless it has more threads by then: each is a descriptor.
const LATE_THREADS_MAX: usize = 64;

impl Supervision {
    fn begin(
        host: Host,
        prepared: Preparation,
        mut assignment: Assignment,
        command: Command,
        channel: &mut Channel,
    ) -> io::Result<Supervision> {
        let inbox = Inbox::of(&assignment)?;
        let mut link = assignment.detached.then(|| Link::new(assignment.daemon.clone()));
        let name = cgroup_name(&assignment.record);
        let mut enclosure = JobCgroup::create_at(prepared.site.as_ref(), &name, Enable::Yes);
        let enters_late = assignment.start_before_cgroup && !enclosure.procs().is_empty();
        let procs = if enters_late { &[] } else { enclosure.procs() };
        let cgroups = spawn::Cgroups { unified: enclosure.unified(), procs };
        let child =
            spawn::fork_to_gate(&command, &cgroups, assignment.detached, &prepared.signals.inherited)?;
        if !child.in_unified {
            enclosure.give_up_unified();
        }
        if enclosure.paths.is_empty()
            && assignment.daemon.system
            && let Some(link) = &mut link
        {
            enclosure.paths = link.enclose(&name, child.pid).unwrap_or_default();
        }
        // Beside a cgroup, too: each sees processes that the other may miss. The first clock on a machine waits for a
        // grace period; entering a v1 cgroup waits for the same one; without one the clock is opened later.
        let is_early = !enclosure.counts_cpu() || !enclosure.procs().is_empty();
        let clocks = is_early.then(|| TaskClock::open(child.pid, Begin::AtExec).ok().map(Clocks::early));
        let main = Pid::from_raw(child.pid).ok_or(io::ErrorKind::InvalidData)?;
        complete(&host, &mut assignment.record, child.pid as u32, &enclosure, enters_late, &prepared);
        let events = Events::of_child(&host, &assignment.events, child.pid, &enclosure.paths);
        events.explain(&mut assignment.record);
        if let Some(inbox) = inbox.as_ref().filter(|_| assignment.detached)
            && let Err(error) = inbox.folder.write_start(&assignment.record)
        {
            // Nothing stays of a job that could not be kept. The closed gate ends its child.
            drop(child);
            let _ = rustix::process::waitpid(Some(main), WaitOptions::empty());
            return Err(inbox.unkept(&error));
        }
        // Before the command runs: it could kill its supervisor at once.
        announce(&assignment, true, None, channel);
        create_marks(inbox.as_ref());
        let begin_boot_ns = clock::boottime_ns();
        events.begin();
        let outcome = child.open()?;
        announce(&assignment, false, inbox.as_ref(), channel);
        if enters_late {
            enter_late(&host, &mut enclosure, &mut assignment.record);
        }
        Ok(Supervision {
            host,
            assignment,
            inbox,
            signals: prepared.signals,
            link,
            enclosure,
            counters: Counters {
                begin_boot_ns,
                clocks,
                quota: prepared.quota,
                oom_kills: prepared.oom_kills,
                events,
            },
            outcome: Some(outcome),
            children: Children { main, main_status: None, main_end_ns: None, reaped: 0, are_gone: false },
            cancelled: false,
        })
    }

    /// What is still to report when the job is finished.
    fn finish(mut self, channel: &mut Channel) -> Option<Unreported> {
        self.wait(channel);
        // A child that ended at once may have been reaped before its word was read.
        if let Some(outcome) = self.outcome.take() {
            self.executed(outcome, channel);
        }
        let record = self.close();
        if !self.assignment.detached {
            channel.hand_over(&record);
            return if self.is_kept() { None } else { self.keep(record) };
        }
        let unreported = self.keep(record.clone());
        channel.tell(&Notice::Ended(Box::new(record)));
        unreported
    }

    /// Returns when the job is over.
    fn wait(&mut self, channel: &mut Channel) {
        while !self.reap() {
            if let Some(link) = &mut self.link {
                link.keep_up(&self.assignment.record);
            }
            let [signalled, farewell, executed] = self.poll();
            self.counters.open_late_clocks(&self.host, &self.assignment.record);
            self.counters.events.yield_to_others();
            if executed && let Some(outcome) = self.outcome.take() {
                self.executed(outcome, channel);
            }
            if farewell && let Some(link) = &mut self.link {
                link.listen();
                link.pass(&self.assignment.record.key, &self.counters.events);
            }
            while signalled && let Some(signal) = self.signals.next() {
                self.react(signal);
            }
        }
        // That the job is cancelled may be said while something else is looked at.
        while let Some(signal) = self.signals.next() {
            self.react(signal);
        }
    }

    /// The command runs and the daemon knows: nothing is left to do but to wait.
    fn is_settled(&self) -> bool {
        self.outcome.is_none() && self.link.as_ref().is_some_and(Link::is_known)
    }

    fn poll(&self) -> [bool; 3] {
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let link = self.link.as_ref().and_then(|link| link.fd());
        let outcome = self.outcome.as_ref().map(|outcome| outcome.fd().as_fd());
        fds.extend(link.iter().chain(&outcome).map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        let timeout = self.link.as_ref().and_then(|link| link.timeout());
        let counters = &self.counters;
        let timeout =
            timeout.into_iter().chain(counters.events.timeout()).chain(counters.until_clocks()).min();
        memory::wait(&mut fds, timeout, self.is_settled());
        let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let behind_link = 1 + usize::from(link.is_some());
        [ready(0), link.is_some() && ready(1), outcome.is_some() && ready(behind_link)]
    }

    /// Reaps whatever has ended; true when the job is over.
    fn reap(&mut self) -> bool {
        self.children.reap();
        let over = || !self.assignment.until_last || self.only_daemons_left();
        self.children.are_gone || self.children.main_status.is_some() && over()
    }

    /// A daemon that was started from inside the job serves other jobs too, and outlives this one.
    fn only_daemons_left(&self) -> bool {
        let children = processes::children_of(&self.host, std::process::id());
        !children.is_empty() && children.iter().all(|&pid| processes::is_daemon(&self.host, pid))
    }

    /// The supervisor of a job inside this one is gone a moment after its `met time` is: it is not left over.
    fn see_supervisors_off(&mut self) {
        for _ in 0..LOOKS_MAX {
            let is_leaving = |&pid: &u32| processes::is_supervisor_at_its_end(&self.host, pid);
            // While they change the list of them may lack some.
            if self.children.are_gone
                || !processes::children_of(&self.host, std::process::id()).iter().all(is_leaving)
            {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
            self.reap();
        }
    }

    fn react(&mut self, signal: super::signals::Signal) {
        if signal.number == cancel_signal() {
            self.cancelled = true;
        } else if signal.number != libc::SIGCHLD && !signal.from_kernel && self.children.main_status.is_none()
        {
            // Passed on to the command, which decides; a terminal has signalled its whole group by itself.
            // SAFETY: plain system call.
            unsafe { libc::kill(self.children.main.as_raw_nonzero().get(), signal.number) };
        }
    }

    fn executed(&mut self, outcome: Outcome, channel: &mut Channel) {
        let executed = outcome.wait();
        if !executed.in_v1 {
            give_up_v1(&mut self.enclosure, &mut self.assignment.record);
        }
        if let Some(error) = executed.error {
            self.explain(&error, channel);
        }
    }

    fn explain(&self, error: &io::Error, channel: &mut Channel) {
        let command = self.assignment.record.command.first().map_or("", String::as_str);
        let message = format!("cannot run {command}: {error}");
        channel.tell(&Notice::NotExecuted { message: message.clone() });
        if self.assignment.detached {
            let _ = writeln!(io::stderr(), "met: {message}");
        }
    }

    /// The job's record with its exact end. The cgroup is gone afterwards.
    fn close(&mut self) -> Record {
        let life = totals::Life { begin_ns: self.counters.begin_boot_ns, end_ns: clock::boottime_ns() };
        let mut record = self.assignment.record.clone();
        self.see_supervisors_off();
        let (left_over, daemons_ns) = self.left_over();
        let remains = totals::Remains { living: left_over.len(), daemons_ns };
        self.counters.events.close(&mut record);
        let clocks = self.counters.clocks.as_ref().and_then(Option::as_ref);
        let wall_ns;
        (record.totals, wall_ns) = totals::exact(&self.host, &record, clocks, life, &remains);
        if let Some(quota) = &self.counters.quota {
            quota.tell(&mut record.totals);
        }
        if let Some(kills) = &self.counters.oom_kills {
            kills.add_to(&mut record.totals);
        }
        let seen = self.children.reaped + left_over.len() as i64;
        record.totals.set(PROCESSES, seen, met_core::job::QualityKind::LowerBound, "wait");
        record.end_ns = record.start_ns.map(|start_ns| start_ns + wall_ns);
        if let Some(local) = &mut record.local {
            let main_ns = self.children.main_end_ns.map(|end_ns| end_ns - life.begin_ns);
            local.main_end_ns = record.start_ns.zip(main_ns).map(|(start_ns, main_ns)| start_ns + main_ns);
        }
        match self.children.main_status {
            Some(status) if status.signaled() => record.signal = status.terminating_signal(),
            Some(status) => record.exit_code = status.exit_status(),
            None => {}
        }
        record.state = self.end_state(&record);
        if let Some(inbox) = &self.inbox {
            record.work = inbox.folder.read_marks();
        }
        if let Some(local) = &mut record.local {
            local.left_over = left_over;
        }
        // Processes that are left alone keep their cgroup; housekeeping removes it when it is empty.
        job_cgroup::remove(&self.enclosure.paths);
        record
    }

    fn end_state(&self, record: &Record) -> State {
        let killed = record.signal == Some(libc::SIGKILL) || record.exit_code == Some(128 + libc::SIGKILL);
        if self.cancelled {
            State::Cancelled
        } else if killed && record.totals.get(OOM_KILLS).is_some_and(|kills| kills > 0) {
            State::OutOfMemory
        } else if record.exit_code == Some(0) {
            State::Finished
        } else {
            State::Failed
        }
    }

    /// Who is still alive, in the cgroup or out of it, and the CPU time of daemons of ours among them.
    fn left_over(&self) -> (Vec<LeftOver>, i64) {
        if self.children.are_gone {
            return (Vec::new(), 0);
        }
        let members = processes::of_supervised(&self.host, &self.assignment.record);
        let (daemons, members): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|process| processes::is_daemon(&self.host, process.id.pid));
        let daemons_ns = daemons.iter().filter_map(|daemon| processes::cpu_ns(&self.host, daemon.id)).sum();
        let left_over =
            members.into_iter().map(|process| LeftOver { pid: process.id.pid, name: process.name });
        (left_over.collect(), daemons_ns)
    }

    /// Whether a `met time`, which knew more, has kept the end.
    fn is_kept(&self) -> bool {
        let Some(inbox) = self.inbox.as_ref().filter(|inbox| inbox.folder.has_end()) else { return false };
        inbox.folder.give_back_room();
        true
    }

    fn keep(self, record: Record) -> Option<Unreported> {
        self.inbox?.keep_end(record, self.link, self.signals)
    }
}

/// Unique below any cgroup: the pid of a living supervisor and the second it began.
fn cgroup_name(record: &Record) -> String {
    format!("met-{}-{}-{:x}", record.key.id, std::process::id(), record.key.incarnation)
}

/// Moves a command that runs already, with its descendants, into its v1 cgroups.
fn enter_late(host: &Host, enclosure: &mut JobCgroup, record: &mut Record) {
    let members = || processes::of_tree(host, record).iter().map(|process| process.id.pid).collect();
    if enclosure.move_all_in(members).is_err() {
        give_up_v1(enclosure, record);
    }
}

fn give_up_v1(enclosure: &mut JobCgroup, record: &mut Record) {
    enclosure.give_up_v1();
    if let Some(local) = &mut record.local {
        local.cgroup = enclosure.paths.clone();
        local.entered_late = false;
    }
}

fn complete(
    host: &Host,
    record: &mut Record,
    pid: u32,
    enclosure: &JobCgroup,
    enters_late: bool,
    prepared: &Preparation,
) {
    record.start_ns = Some(clock::realtime_ns());
    record.state = State::Running;
    if let Some(local) = &mut record.local {
        local.supervisor = prepared.supervisor;
        local.main = host.process(pid).ok();
        local.cgroup = enclosure.paths.clone();
        local.memory_limit = prepared.memory_limit;
        local.cpus_usable = usable_cpus(pid, prepared.quota.as_ref());
        local.entered_late = enters_late;
    }
}
