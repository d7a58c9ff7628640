//! Totals by what was sampled.

use crate::belief::{CHARGED, fit_cpu_parts, fit_memory_peaks};
use crate::job::QualityKind::{Estimated, LowerBound, Sampled as SampledKind};
use crate::job::{QualityKind, Totals};
use crate::job_table::*;
use crate::process_exits::{INHERITED, OWN};
use crate::provenance::{Account, Caveat, Provenance};

use crate::running::Running;
use crate::watched::CLOSE_MS;

/// Of a job with a network namespace of its own.
pub const OF_NETWORK: [usize; 2] = [NETWORK_RECEIVED, NETWORK_SENT];

/// What decides how good a job's samples are.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Counters have a history before the job began.
    pub attached: bool,
    pub counts_cpu: bool,
    pub counts_memory: bool,
    /// A supervisor reaps its processes.
    pub kept: bool,
    /// A living process of it does not show its I/O.
    pub hides_io: bool,
    /// Its processes allocated memory before they were moved into its cgroup.
    pub entered_late: bool,
    /// There was a time in which nothing was read: a peak may have been in it.
    pub missed: bool,
}

/// What comes from `/proc/PID/io` alone.
pub const OF_IO: [usize; 7] =
    [READ, WRITTEN, WRITE_CANCELLED, READ_CALL, WRITE_CALL, READ_CALLS, WRITE_CALLS];

/// Whether the counter of a job with a process that hides its I/O is unknown, though the other processes have a sum.
pub fn is_unknown_io(column: usize, value: i64) -> bool {
    value == 0 && OF_IO.contains(&column)
}

const SECONDS_MS: i64 = 15_000;

/// What a peak of samples comes from, and how short a peak it may lack.
fn of_samples(
    running: &Running,
    profile: Profile,
    column: usize,
    account: impl Into<Provenance>,
) -> Provenance {
    account.into().with(profile.missed.then_some(Caveat::NotWatched)).with(match running.apart_ms(column) {
        apart_ms if apart_ms <= CLOSE_MS => None,
        apart_ms if apart_ms <= SECONDS_MS => Some(Caveat::SecondsApart),
        _ => Some(Caveat::MinuteApart),
    })
}

/// What samples say: counters as last read, levels at their highest.
pub fn totals(running: &Running, profile: Profile) -> Totals {
    let mut totals = Totals::default();
    let of_peaks = if profile.missed { LowerBound } else { SampledKind };
    let counters = if profile.counts_cpu { "cgroup" } else { "/proc" };
    for (column, value) in running.counters(profile.attached) {
        let is_hidden = profile.hides_io && OF_IO.contains(&column);
        if is_hidden && is_unknown_io(column, value) || CHARGED.contains(&column) {
            continue;
        }
        let source = match column {
            SWITCHES_VOLUNTARY | SWITCHES_INVOLUNTARY | DELAY_IO | DELAY_MEMORY => "taskstats",
            CPU | CPU_USER | CPU_SYSTEM => counters,
            _ if INHERITED.contains(&column) || OWN.contains(&column) => "/proc",
            _ => counters,
        };
        // A process may come and go between two samples.
        let is_bound = is_hidden || column == PROCESSES;
        totals.set(column, value, if is_bound { LowerBound } else { SampledKind }, source);
    }
    set_charged(&mut totals, running, of_peaks);
    // A network may be older than the job: what it did since it was first looked at is the job's at least.
    for (column, value) in running.counters(true).filter(|(column, _)| OF_NETWORK.contains(column)) {
        totals.set(column, value, LowerBound, "/proc/PID/net/dev");
    }
    let (in_cgroup, of_cgroup) = match profile.entered_late {
        true => (LowerBound, Provenance::from(Account::Cgroup).with(Caveat::EnteredLate)),
        false => (SampledKind, Account::Cgroup.into()),
    };
    if let Some(peak) = running.maximum(MEMORY_NEEDED) {
        match profile.counts_memory {
            true => {
                let mut source = of_samples(running, profile, MEMORY_NEEDED, Account::Cgroup);
                if profile.entered_late {
                    source = source.with(Caveat::EnteredLate);
                }
                totals.set(MEMORY_NEEDED_PEAK, peak, in_cgroup.max(of_peaks), source);
            }
            false => {
                let source = of_samples(running, profile, MEMORY_NEEDED, Account::Statm);
                totals.set(MEMORY_NEEDED_PEAK, peak, Estimated.max(of_peaks), source);
            }
        }
    }
    // The kernel's own peak is read at slow ticks only; meanwhile the samples may know better.
    if let Some(peak) = running.maximum(MEMORY_PEAK) {
        let peak = peak.max(running.maximum(MEMORY_NEEDED).unwrap_or(0));
        totals.set(MEMORY_PEAK, peak, in_cgroup, of_cgroup);
    }
    for (level, peak) in [(PROCESSES_RUNNING, PROCESSES_PEAK), (THREADS_RUNNING, THREADS_PEAK)] {
        // A look that found no process came after the last one had ended.
        if let Some(value) = running.maximum(level).filter(|&value| value > 0) {
            totals.set(peak, value, of_peaks, of_samples(running, profile, level, "/proc"));
        }
    }
    if let Some(cores) = running.peak_cores() {
        totals.set(
            CORES_PEAK,
            (cores * 1000.0).round() as i64,
            of_peaks,
            of_samples(running, profile, CPU, counters),
        );
    }
    if let Some(peak) = running.maximum(GPU_MEMORY) {
        totals.set(GPU_MEMORY_PEAK, peak, of_peaks, of_samples(running, profile, GPU_MEMORY, "cards"));
    }
    fit_cpu_parts(&mut totals);
    fit_memory_peaks(&mut totals);
    totals
}

/// What a job was charged until its last sample. What emissions and cost were computed with is in no sample.
fn set_charged(totals: &mut Totals, running: &Running, kind: QualityKind) {
    let caveat = (kind == LowerBound).then_some(Caveat::NotWatched);
    for (column, value) in running.counters(false) {
        if CHARGED.contains(&column) && !matches!(column, EMISSIONS | COST) {
            totals.set(column, value, kind, Provenance::from("samples").with(caveat));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JOB, MISSING};

    #[test]
    fn a_peak_that_only_samples_know_says_how_far_apart_they_were() {
        let profile = Profile {
            attached: false,
            counts_cpu: true,
            counts_memory: true,
            kept: false,
            hides_io: false,
            entered_late: false,
            missed: false,
        };
        let sources = |apart_s: i64| {
            let mut running = Running::new(25_000, 500);
            for index in 0..40 {
                let mut cells = vec![MISSING; JOB.columns.len()];
                (cells[CPU], cells[MEMORY_NEEDED]) = (index * 1_000_000, 5);
                if index * 5 % apart_s == 0 {
                    cells[PROCESSES_RUNNING] = 3;
                }
                running.push(index * apart_s.min(5) * 1000, &cells);
            }
            let totals = totals(&running, profile);
            [MEMORY_NEEDED_PEAK, PROCESSES_PEAK]
                .map(|column| totals.figure(column).unwrap().source.to_string())
        };
        assert_eq!(sources(1), ["cgroup", "/proc"]);
        assert_eq!(sources(60), ["cgroup, samples up to 10 s apart", "/proc, samples up to 60 s apart"]);
    }

    #[test]
    fn processes_that_samples_saw_are_at_least_those() {
        let mut cells = vec![MISSING; JOB.columns.len()];
        (cells[CPU], cells[PROCESSES]) = (1_000_000, 40);
        let mut running = Running::new(1_000, 500);
        running.push(0, &cells);
        let profile = Profile {
            attached: false,
            counts_cpu: true,
            counts_memory: true,
            kept: true,
            hides_io: false,
            entered_late: false,
            missed: false,
        };
        let totals = totals(&running, profile);
        assert_eq!(
            [CPU, PROCESSES].map(|column| totals.figure(column).unwrap().kind),
            [SampledKind, LowerBound]
        );
    }

    #[test]
    fn a_look_that_found_no_process_says_nothing_of_how_many_there_were() {
        let peaks = |processes: i64| {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[PROCESSES_RUNNING], cells[THREADS_RUNNING]) = (processes, processes);
            let mut running = Running::new(1_000, 500);
            running.push(0, &cells);
            let profile = Profile {
                attached: false,
                counts_cpu: false,
                counts_memory: false,
                kept: true,
                hides_io: false,
                entered_late: false,
                missed: false,
            };
            let totals = totals(&running, profile);
            (totals.get(PROCESSES_PEAK), totals.get(THREADS_PEAK))
        };
        assert_eq!(peaks(0), (None, None));
        assert_eq!(peaks(2), (Some(2), Some(2)));
    }
}
