//! Gathers what counters say of a job at its end.

use met_core::evidence::{self, Clock, CpuTime, Evidence};
use met_core::job::QualityKind::{self, LowerBound, Measured};
use met_core::job::{Record, Totals};
use met_core::job_table::*;
use met_core::provenance::{Account, Caveat, Provenance};
use met_core::{JOB, MISSING};
use met_host::{Host, clock};

use super::perf::Clocks;
use met_jobs::containers;
use met_query::counters::Reading;

/// Where the reaped children of this process are added up.
struct ChildUsage {
    user_ns: i64,
    system_ns: i64,
    max_rss_bytes: i64,
    minor_faults: i64,
    major_faults: i64,
    voluntary: i64,
    involuntary: i64,
}

/// How the processes of a job are accounted for when it is over.
#[derive(Default)]
pub struct Remains {
    /// Processes that are still alive, wherever they are.
    pub living: usize,
    /// CPU time of daemons of ours that were started inside the job: the clock counts them, and they are not its.
    pub daemons_ns: i64,
}

/// When the job began and when it was seen to be over, in nanoseconds since boot.
#[derive(Clone, Copy)]
pub struct Life {
    pub begin_ns: i64,
    pub end_ns: i64,
}

/// Everything that counters say about the job, and how long it took. What they prove together is decided in
/// `met_core::evidence`.
pub fn exact(
    host: &Host,
    record: &Record,
    clocks: Option<&Clocks>,
    life: Life,
    remains: &Remains,
) -> (Totals, i64) {
    let usage = children();
    let survivors = remains.living > 0;
    let reading = match survivors {
        true => Reading::of_job(host, record),
        false => Reading::after_end(host, record),
    };
    // Counters of living processes have grown since the end: so has the time they are divided by.
    let evidence = gather(record, &usage, &reading, clocks, remains);
    let end_ns = if survivors { clock::boottime_ns() } else { life.end_ns };
    let wall_ns = end_ns - life.begin_ns;
    let verdict = evidence::weigh(&evidence);
    let mut totals = Totals::default();
    totals.set(WALL, wall_ns, Measured, "clock");
    totals.set(CPU, verdict.cpu_ns, verdict.kind, verdict.source);
    totals.set(CPU_USER, verdict.user_ns, verdict.split_kind, verdict.split_source.clone());
    totals.set(CPU_SYSTEM, verdict.cpu_ns - verdict.user_ns, verdict.split_kind, verdict.split_source);
    set_of_processes(&mut totals, &usage, &reading, verdict.in_rusage, survivors);
    set_of_cgroup(&mut totals, &reading, verdict.in_cgroup, wall_ns);
    if record.local.as_ref().is_some_and(|local| local.entered_late) {
        bound_memory(&mut totals, &usage);
    }
    if reading.cgroup[MEMORY_PEAK] == MISSING {
        // The largest process alone; the job as a whole held at least that.
        totals.set(MEMORY_PEAK, usage.max_rss_bytes, LowerBound, Account::Rusage);
    }
    (totals, wall_ns)
}

fn gather(
    record: &Record,
    usage: &ChildUsage,
    reading: &Reading,
    clocks: Option<&Clocks>,
    remains: &Remains,
) -> Evidence {
    let known = |cells: &[i64], column: usize| Some(cells[column]).filter(|&cell| cell != MISSING);
    let by_rusage = CpuTime { ns: usage.user_ns + usage.system_ns, user_ns: Some(usage.user_ns) };
    let by_stat = known(&reading.processes, CPU).filter(|_| remains.living > 0);
    let by_stat = by_stat.map(|ns| CpuTime { ns, user_ns: known(&reading.processes, CPU_USER) });
    let reaped = by_stat.filter(|stat| stat.ns >= by_rusage.ns).unwrap_or(by_rusage);
    Evidence {
        cgroup: known(&reading.cgroup, CPU)
            .map(|ns| CpuTime { ns, user_ns: known(&reading.cgroup, CPU_USER) }),
        reaped,
        living: remains.living as i64,
        clock: clocks
            .and_then(Clocks::read)
            .map(|clock| Clock { ns: (clock.ns - remains.daemons_ns).max(0), ..clock }),
        page_faults: usage.minor_faults,
        switches: usage.voluntary + usage.involuntary,
        elsewhere: containers::is_client(record),
    }
}

/// Sums over processes, which lack those without a parent that waited for them.
fn set_of_processes(
    totals: &mut Totals,
    usage: &ChildUsage,
    reading: &Reading,
    kind: QualityKind,
    survivors: bool,
) {
    let of_io = if reading.hides_io { LowerBound } else { kind };
    for column in [READ, WRITTEN, WRITE_CANCELLED, READ_CALL, WRITE_CALL, READ_CALLS, WRITE_CALLS] {
        set_known(totals, column, reading.processes[column], of_io, "/proc/PID/io");
    }
    for (column, reaped) in [(PAGE_FAULTS_MINOR, usage.minor_faults), (PAGE_FAULTS_MAJOR, usage.major_faults)]
    {
        match survivors {
            true => set_known(totals, column, reading.processes[column], kind, Account::ProcStat),
            false => totals.set(column, reaped, kind, Account::Rusage),
        }
    }
    let switches = if survivors { LowerBound } else { kind };
    totals.set(SWITCHES_VOLUNTARY, usage.voluntary, switches, Account::Rusage);
    totals.set(SWITCHES_INVOLUNTARY, usage.involuntary, switches, Account::Rusage);
}

/// What the cgroup counted, which lacks processes that left it.
fn set_of_cgroup(totals: &mut Totals, reading: &Reading, kind: QualityKind, wall_ns: i64) {
    let pressures = [PRESSURE_CPU, PRESSURE_MEMORY, PRESSURE_IO, PRESSURE_MEMORY_FULL, PRESSURE_IO_FULL];
    // The cgroup is a little older than the job: what was waited for before the start is not the job's.
    for column in pressures {
        let cell = reading.cgroup[column];
        set_known(
            totals,
            column,
            if cell == MISSING { MISSING } else { cell.min(wall_ns) },
            kind,
            Account::Cgroup,
        );
    }
    for column in [OOM_KILLS, MEMORY_PEAK, THROTTLED, THROTTLES] {
        set_known(totals, column, reading.cgroup[column], kind, Account::Cgroup);
    }
}

/// Memory that was allocated before the cgroup was entered is not counted there.
fn bound_memory(totals: &mut Totals, usage: &ChildUsage) {
    let Some(peak) = totals.get(MEMORY_PEAK) else { return };
    let account = if usage.max_rss_bytes > peak { Account::Rusage } else { Account::Cgroup };
    let source = Provenance::from(account).with(Caveat::EnteredLate);
    totals.set(MEMORY_PEAK, peak.max(usage.max_rss_bytes), LowerBound, source);
}

fn set_known(
    totals: &mut Totals,
    column: usize,
    cell: i64,
    kind: QualityKind,
    source: impl Into<Provenance>,
) {
    debug_assert!(column < JOB.columns.len());
    if cell != MISSING {
        totals.set(column, cell, kind, source);
    }
}

fn children() -> ChildUsage {
    // SAFETY: rusage is plain data that the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec * 1_000_000_000 + time.tv_usec * 1_000;
    ChildUsage {
        user_ns: ns(usage.ru_utime),
        system_ns: ns(usage.ru_stime),
        max_rss_bytes: usage.ru_maxrss * 1024,
        minor_faults: usage.ru_minflt,
        major_faults: usage.ru_majflt,
        voluntary: usage.ru_nvcsw,
        involuntary: usage.ru_nivcsw,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_lower_bound_where_the_command_ran_before_it_entered_its_cgroup() {
        let usage = ChildUsage { max_rss_bytes: 500, ..children() };
        let bounded = |peak: i64| {
            let mut totals = Totals::default();
            totals.set(MEMORY_PEAK, peak, Measured, Account::Cgroup);
            bound_memory(&mut totals, &usage);
            totals.figure(MEMORY_PEAK).cloned().unwrap()
        };
        let (of_cgroup, of_process) = (bounded(900), bounded(100));
        assert_eq!((of_cgroup.value, of_cgroup.kind), (900, LowerBound));
        assert_eq!((of_process.value, of_process.kind), (500, LowerBound));
        assert!(of_cgroup.source.has(Caveat::EnteredLate) && of_process.source.has(Caveat::EnteredLate));
    }

    #[test]
    fn a_job_that_leaves_processes_behind_lasts_until_their_counters_are_read() {
        let (host, record) = (Host::real().unwrap(), met_core::sample::bare(1, "x"));
        let wall_ns = |living: usize| {
            let life = Life { begin_ns: 1000, end_ns: 3000 };
            let remains = Remains { living, daemons_ns: 0 };
            let (totals, wall_ns) = exact(&host, &record, None, life, &remains);
            assert_eq!(totals.get(WALL), Some(wall_ns));
            wall_ns
        };
        assert_eq!(wall_ns(0), 2000);
        let before_ns = clock::boottime_ns();
        assert!(wall_ns(1) >= before_ns - 1000);
    }
}
