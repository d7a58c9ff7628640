//! The exact totals of a job at its end, and how good each of them is.

use met_core::job::QualityKind::{Attributed, LowerBound, Measured};
use met_core::job::{Record, Totals};
use met_core::job_table::*;
use met_core::{JOB, MISSING};
use met_host::Host;

use super::perf::TaskClock;
use crate::sampler::Reading;

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

/// Everything that counters say about the job. `survivors`: processes of it are still alive.
pub fn exact(
    host: &Host,
    record: &Record,
    clock: Option<&TaskClock>,
    wall_ns: i64,
    survivors: bool,
) -> Totals {
    let usage = children();
    let reading = match survivors {
        true => Reading::of_job(host, record),
        false => Reading::after_end(host, record),
    };
    let mut totals = Totals::default();
    totals.set(WALL, wall_ns, Measured, "clock");
    set_cpu(&mut totals, &usage, &reading, clock, survivors);
    // Children of a process that ignores SIGCHLD are added to nobody: seen as CPU time that no one reaped.
    let cpu_ns = totals.get(CPU).unwrap_or(0);
    let accounted_ns = match survivors {
        true => reading.processes[CPU],
        false => usage.user_ns + usage.system_ns,
    };
    let unreaped = accounted_ns != MISSING && cpu_ns - accounted_ns > cpu_ns / 50 + 20_000_000;
    let kind = if unreaped { LowerBound } else { Measured };
    for column in [READ, WRITTEN, READ_CALL, WRITE_CALL, READ_CALLS, WRITE_CALLS] {
        set_known(&mut totals, column, reading.processes[column], kind, "/proc/PID/io");
    }
    if survivors {
        set_known(
            &mut totals,
            PAGE_FAULTS_MINOR,
            reading.processes[PAGE_FAULTS_MINOR],
            kind,
            "/proc/PID/stat",
        );
        set_known(
            &mut totals,
            PAGE_FAULTS_MAJOR,
            reading.processes[PAGE_FAULTS_MAJOR],
            kind,
            "/proc/PID/stat",
        );
    } else {
        totals.set(PAGE_FAULTS_MINOR, usage.minor_faults, kind, "rusage");
        totals.set(PAGE_FAULTS_MAJOR, usage.major_faults, kind, "rusage");
    }
    let switches = if survivors { LowerBound } else { kind };
    totals.set(SWITCHES_VOLUNTARY, usage.voluntary, switches, "rusage");
    totals.set(SWITCHES_INVOLUNTARY, usage.involuntary, switches, "rusage");
    let pressures = [PRESSURE_CPU, PRESSURE_MEMORY, PRESSURE_IO, PRESSURE_MEMORY_FULL, PRESSURE_IO_FULL];
    for column in pressures.into_iter().chain([OOM_KILLS]) {
        set_known(&mut totals, column, reading.cgroup[column], Measured, "cgroup");
    }
    // The cgroup is a little older than the job: what was waited for before the start is not the job's.
    for column in pressures {
        if totals.get(column).is_some_and(|pressure_ns| pressure_ns > wall_ns) {
            totals.set(column, wall_ns, Measured, "cgroup");
        }
    }
    match reading.cgroup[MEMORY_PEAK] {
        // The largest process alone; the job as a whole held at least that.
        MISSING => totals.set(MEMORY_PEAK, usage.max_rss_bytes, LowerBound, "rusage"),
        peak => totals.set(MEMORY_PEAK, peak, Measured, "cgroup"),
    }
    totals
}

fn set_cpu(
    totals: &mut Totals,
    usage: &ChildUsage,
    reading: &Reading,
    clock: Option<&TaskClock>,
    survivors: bool,
) {
    if reading.cgroup[CPU] != MISSING {
        totals.set(CPU, reading.cgroup[CPU], Measured, "cgroup");
        set_known(totals, CPU_USER, reading.cgroup[CPU_USER], Measured, "cgroup");
        set_known(totals, CPU_SYSTEM, reading.cgroup[CPU_SYSTEM], Measured, "cgroup");
        return;
    }
    let (user_ns, system_ns) = match survivors && reading.processes[CPU] != MISSING {
        true => (reading.processes[CPU_USER], reading.processes[CPU_SYSTEM]),
        false => (usage.user_ns, usage.system_ns),
    };
    let reaped_ns = user_ns + system_ns;
    let source = if survivors { "/proc/PID/stat" } else { "rusage" };
    let clock_ns = clock.and_then(|clock| clock.read_ns().ok()).filter(|&clock_ns| clock_ns > 0);
    let (Some(clock), Some(clock_ns)) = (clock, clock_ns) else {
        totals.set(CPU, reaped_ns, LowerBound, source);
        totals.set(CPU_USER, user_ns, LowerBound, source);
        totals.set(CPU_SYSTEM, system_ns, LowerBound, source);
        return;
    };
    let stolen_ns = clock.stolen_ns();
    let is_disturbed = stolen_ns > clock_ns / 200;
    if is_disturbed && clock_ns - reaped_ns <= stolen_ns + clock_ns / 200 {
        // What the clock has more was stolen: nobody was left unreaped.
        totals.set(CPU, reaped_ns, Measured, source);
        totals.set(CPU_USER, user_ns, Measured, source);
        totals.set(CPU_SYSTEM, system_ns, Measured, source);
        return;
    }
    let (cpu_ns, kind) = match is_disturbed {
        true => (reaped_ns.max(clock_ns - stolen_ns), LowerBound),
        false => (clock_ns, Measured),
    };
    totals.set(CPU, cpu_ns, kind, "perf task-clock");
    // The event counts the sum; who was reaped tells how it divides.
    let user_share = if reaped_ns > 0 { user_ns as f64 / reaped_ns as f64 } else { 1.0 };
    let user_ns = (cpu_ns as f64 * user_share) as i64;
    totals.set(CPU_USER, user_ns, Attributed, "perf task-clock, split by rusage");
    totals.set(CPU_SYSTEM, cpu_ns - user_ns, Attributed, "perf task-clock, split by rusage");
}

fn set_known(
    totals: &mut Totals,
    column: usize,
    cell: i64,
    kind: met_core::job::QualityKind,
    source: &'static str,
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
