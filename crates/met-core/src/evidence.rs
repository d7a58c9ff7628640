//! What several accounts of the same job prove together: its CPU time, and which of them saw every process.
//!
//! Each account has a blind spot. A cgroup does not count processes that left it. Resource usage lacks children
//! that were not waited for. An inherited perf clock stops when a set-user-ID program is executed, and does not
//! count the end of a process. None of them shows that it missed something, so one alone proves nothing: a
//! total is measured where two agree whose blind spots differ, or where a blind spot is known to be empty.

use crate::job::QualityKind::{self, Attributed, LowerBound, Measured};
use crate::provenance::{Account, Provenance};

/// Differences below this come from reading one account after the other.
const NOISE_NS: i64 = 1_000_000;
/// How much two accounts of the same processes may differ: 1 % and 3 ms.
const SLACK_SHARE: i64 = 100;
const SLACK_NS: i64 = 3_000_000;
/// The same for a claim that no process at all is missing, however little CPU time it used: 0.1 %, 0.3 ms, and for each
/// context switch what a dying thread may run after it was waited for.
const TIGHT_SHARE: i64 = 1_000;
const TIGHT_NS: i64 = 300_000;
const TIGHT_PER_SWITCH_NS: i64 = 3_000;
/// /proc/PID/stat rounds four fields of a living process down to ticks of 10 ms.
const LIVING_NS: i64 = 40_000_000;
/// Stolen time beyond this share leaves too much room for what a clock may have counted besides.
const STOLEN_SHARE: i64 = 50;
/// Page faults of reaped processes that a perf event may not have seen: 5 % and 200.
const FAULTS_SHARE: i64 = 20;
const FAULTS_ROOM: i64 = 200;
/// Up to this share stolen time changes nothing.
const UNDISTURBED_SHARE: i64 = 200;
/// The cost of a process exit: at most this much for each page fault of its life, and at most this much for
/// each context switch (a parent that waits makes one) and a little for each fault.
const END_PER_FAULT_NS: i64 = 3_000;
const END_PER_SWITCH_NS: i64 = 100_000;
const END_PER_FAULT_BESIDES_NS: i64 = 300;

/// CPU time by one account; the split may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    pub ns: i64,
    pub user_ns: Option<i64>,
}

/// An inherited perf task clock on the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    pub ns: i64,
    /// Taken from the machine by a hypervisor meanwhile; the clock counts it for the running process.
    pub stolen_ns: i64,
    /// No process of the job could gain privileges (`no_new_privs`), so the clock never stopped.
    pub sees_all: bool,
    /// Minor page faults of the processes that the clock saw, where they may be counted.
    pub page_faults: Option<i64>,
}

/// All that is known of a job at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    pub cgroup: Option<CpuTime>,
    /// Resource usage of all reaped processes, and the counters of living ones.
    pub reaped: CpuTime,
    /// How many of them were still alive.
    pub living: i64,
    pub clock: Option<Clock>,
    /// Minor ones, of reaped processes.
    pub page_faults: i64,
    pub switches: i64,
    /// The job asked a service outside of its process tree to work for it, such as a container engine.
    pub elsewhere: bool,
}

/// What follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub cpu_ns: i64,
    pub user_ns: i64,
    pub kind: QualityKind,
    pub source: Account,
    pub split_kind: QualityKind,
    pub split_source: Provenance,
    /// How good figures of the cgroup are: measured if every process was in it all the time.
    pub in_cgroup: QualityKind,
    /// How good sums over reaped processes are, such as bytes read: measured if every process was waited for.
    pub in_rusage: QualityKind,
}

/// Decides on the total and its quality. No account is above the total, but for a clock whose excess is small or
/// explained by stolen time.
pub fn weigh(evidence: &Evidence) -> Verdict {
    let Evidence { cgroup, reaped, living, clock, .. } = *evidence;
    let cgroup_ns = cgroup.map(|cgroup| cgroup.ns);
    let counted_ns = cgroup_ns.unwrap_or(0).max(reaped.ns).max(0);
    let excess = evidence.excess_of_clock(counted_ns);
    let cpu_ns = match (clock, excess) {
        (Some(clock), Excess::None | Excess::Process) => clock.least_ns(counted_ns),
        _ => counted_ns,
    };
    let skew_ns = living.max(0).saturating_mul(LIVING_NS);
    let slack_ns = cpu_ns / SLACK_SHARE + SLACK_NS;
    let is_near = |ns: i64, slack_ns: i64| ns.saturating_add(slack_ns) >= cpu_ns;
    let by_cgroup = cgroup_ns.is_some_and(|ns| is_near(ns, slack_ns.saturating_add(skew_ns.min(LIVING_NS))));
    let by_reaping = is_near(reaped.ns, slack_ns.saturating_add(skew_ns));
    let end_ns = evidence.end_of_processes_ns();
    let by_clock = clock.is_some_and(|clock| clock.agrees(cpu_ns, slack_ns, end_ns));
    let agreeing = [by_cgroup, by_reaping, by_clock].into_iter().filter(|&agrees| agrees).count();
    let is_closed = by_clock && clock.is_some_and(|clock| clock.sees_all);
    let is_proven = (agreeing >= 2 || is_closed) && excess != Excess::Doubtful && !evidence.elsewhere;
    let kind = if is_proven { Measured } else { LowerBound };

    let source = match cgroup_ns {
        Some(ns) if is_near(ns, NOISE_NS) => Account::Cgroup,
        _ if is_near(reaped.ns, NOISE_NS) && living == 0 => Account::Rusage,
        _ if is_near(reaped.ns, NOISE_NS) => Account::ProcStat,
        _ => Account::TaskClock,
    };
    let of_source = if source == Account::Cgroup { cgroup.unwrap_or(reaped) } else { reaped };
    let whole = Provenance::from(source.clone());
    let (split_kind, split_source) = match source {
        Account::TaskClock => (Attributed.max(kind), whole.followed_by(", split by rusage")),
        _ => (kind, whole),
    };
    // A child that used next to no CPU time may have written a lot: this needs a closer look.
    let tight_ns = evidence.tight_ns(cpu_ns);
    let all_reaped = is_proven
        && is_near(reaped.ns, tight_ns.saturating_add(skew_ns))
        && clock.is_none_or(|clock| by_cgroup || clock.ns <= cpu_ns.saturating_add(tight_ns))
        && !clock.is_some_and(|clock| evidence.saw_process(clock, tight_ns));
    let or_bound = |complete: bool| if complete { Measured } else { LowerBound };
    Verdict {
        cpu_ns,
        user_ns: of_source.share_of(cpu_ns),
        kind,
        source,
        split_kind,
        split_source,
        in_cgroup: or_bound(by_cgroup && !evidence.elsewhere && is_proven),
        in_rusage: or_bound(all_reaped),
    }
}

impl CpuTime {
    /// The user part of a total that this account divides.
    fn share_of(self, cpu_ns: i64) -> i64 {
        let user_ns = self.user_ns.unwrap_or(self.ns).clamp(0, self.ns.max(0));
        if self.ns <= 0 {
            return cpu_ns;
        }
        (i128::from(cpu_ns) * i128::from(user_ns) / i128::from(self.ns)) as i64
    }
}

impl Clock {
    /// What the clock proves beyond what others counted: without what may have been stolen. It is the least exact of
    /// the three, and a small excess proves nothing.
    fn least_ns(self, counted_ns: i64) -> i64 {
        let is_disturbed = self.stolen_ns > self.ns / UNDISTURBED_SHARE;
        let least_ns = if is_disturbed { self.ns.saturating_sub(self.stolen_ns) } else { self.ns };
        let slack_ns = counted_ns / SLACK_SHARE + SLACK_NS;
        if least_ns > counted_ns.saturating_add(slack_ns) { least_ns } else { counted_ns }
    }

    fn agrees(self, cpu_ns: i64, slack_ns: i64, end_ns: i64) -> bool {
        let stolen_ns = self.stolen_ns.clamp(0, cpu_ns / STOLEN_SHARE);
        let at_most_ns = cpu_ns.saturating_add(slack_ns).saturating_add(stolen_ns);
        let reach_ns = self.ns.saturating_add(slack_ns).saturating_add(end_ns);
        self.ns <= at_most_ns && reach_ns >= cpu_ns
    }
}

/// A clock that counted more than a cgroup and resource usage, which agree: did it see a process that left the cgroup
/// and was not waited for, or was time stolen that the machine does not report?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excess {
    None,
    /// The clock saw page faults that no reaped process had.
    Process,
    /// It saw the page faults of the reaped processes and no more.
    Stolen,
    Doubtful,
}

impl Evidence {
    fn excess_of_clock(&self, counted_ns: i64) -> Excess {
        let (Some(cgroup), Some(clock)) = (self.cgroup, self.clock) else { return Excess::None };
        let tight_ns = self.tight_ns(counted_ns);
        let agree = cgroup.ns.abs_diff(self.reaped.ns) <= tight_ns.unsigned_abs() && self.living <= 0;
        let slack_ns = counted_ns / SLACK_SHARE + SLACK_NS;
        if !agree || clock.ns <= counted_ns.saturating_add(slack_ns) {
            return Excess::None;
        }
        // A few faults are made by the kernel on behalf of a process, and by no instruction of it.
        let room = (self.page_faults / FAULTS_SHARE).saturating_add(FAULTS_ROOM);
        match clock.page_faults {
            Some(faults) if faults > self.page_faults => Excess::Process,
            Some(faults) if faults >= self.page_faults.saturating_sub(room) => Excess::Stolen,
            _ => Excess::Doubtful,
        }
    }

    /// Whether the clock saw page faults that no reaped process had, and time, too: alone, each may be noise.
    fn saw_process(&self, clock: Clock, tight_ns: i64) -> bool {
        clock.page_faults.is_some_and(|faults| faults > self.page_faults)
            && clock.ns > self.reaped.ns.saturating_add(tight_ns)
    }

    fn tight_ns(&self, cpu_ns: i64) -> i64 {
        let dying_ns = self.switches.max(0).saturating_mul(TIGHT_PER_SWITCH_NS);
        (cpu_ns / TIGHT_SHARE + TIGHT_NS).saturating_add(dying_ns)
    }

    /// The most that the ends of its processes took, which the clock does not count (since Linux 6.16).
    fn end_of_processes_ns(&self) -> i64 {
        let by_faults = self.page_faults.saturating_mul(END_PER_FAULT_NS);
        let besides = self.page_faults.saturating_mul(END_PER_FAULT_BESIDES_NS);
        let by_switches = self.switches.saturating_mul(END_PER_SWITCH_NS).saturating_add(besides);
        by_faults.min(by_switches).max(0)
    }
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
