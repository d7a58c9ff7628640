//! A year of jobs in `met usage`: how long it takes to sum them, to ask for them, and what the sums take on disk.
//! `usage [JOBS]`, 1,000,000 if not given.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints numbers")]

use std::time::{Duration, Instant};

use met_core::job::{JobKey, QualityKind, Record, State};
use met_core::job_table as column;
use met_core::usage::{By, Every, UsageAsk, Zone, figure};
use met_store::{Reader, Writer};

const YEAR_S: i64 = 365 * 86_400;
/// 2026-01-01.
const BEGIN_S: i64 = 1_767_225_600;
const SECOND_NS: i64 = 1_000_000_000;

fn job(id: i64, jobs: i64) -> Record {
    // The same numbers in every run, without a generator.
    let mixed = (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    let pick = |count: u64, shift: u32| (mixed >> shift) % count;
    let start_s = BEGIN_S + id * YEAR_S / jobs;
    // Most are short, a few run for days.
    let length_s =
        [20, 60, 300, 900, 3_600, 3_600, 14_400, 86_400][pick(8, 3) as usize] + pick(600, 9) as i64;
    let key = JobKey { cluster: None, manager: "slurm".into(), id: id.to_string(), incarnation: 0 };
    let mut record = Record::new(key, "train", State::Finished);
    (record.start_ns, record.end_ns) = (Some(start_s * SECOND_NS), Some((start_s + length_s) * SECOND_NS));
    record.user = Some(format!("user{:03}", pick(300, 1)));
    record.account = Some(format!("project{:02}", pick(40, 5)));
    record.scheduling.partition = Some(["cpu", "gpu", "fat"][pick(3, 7) as usize].to_owned());
    record.nodes = vec![format!("n{:04}", pick(500, 11))];
    record.command = vec!["python".into(), format!("run{}.py", pick(50, 13))];
    let cores = 1 << pick(6, 17);
    record.allocated.cpus = Some(cores);
    let cpu = cores * length_s * SECOND_NS / 10 * (1 + pick(9, 19) as i64);
    record.totals.set(column::CPU, cpu, QualityKind::Measured, "cgroup");
    record.totals.set(column::ENERGY, length_s * cores * 10_000_000, QualityKind::Attributed, "rapl");
    record
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let jobs: i64 = std::env::args().nth(1).map_or(1_000_000, |count| count.parse().unwrap());
    let state = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    let begin = Instant::now();
    let mut expected = 0i128;
    for first in (0..jobs).step_by(1_000) {
        let some: Vec<Record> = (first..(first + 1_000).min(jobs)).map(|id| job(id, jobs)).collect();
        expected += some.iter().map(|job| i128::from(job.totals.get(column::CPU).unwrap())).sum::<i128>();
        writer.put_all(&some).unwrap();
    }
    println!("{jobs} jobs written in {:.1} s", begin.elapsed().as_secs_f64());
    let (begin, mut steps, mut longest) = (cpu_time(), 0, Duration::ZERO);
    loop {
        let step = Instant::now();
        let is_left = met_store::sum_usage(&mut writer, step + Duration::from_millis(20)).unwrap();
        (steps, longest) = (steps + 1, longest.max(step.elapsed()));
        if !is_left {
            break;
        }
    }
    let summed = cpu_time() - begin;
    println!(
        "summed in {:.1} s of CPU time, {:.0} µs a job, {steps} steps of at most {:.1} ms",
        summed.as_secs_f64(),
        summed.as_secs_f64() * 1e6 / jobs as f64,
        longest.as_secs_f64() * 1e3
    );
    drop(writer);
    let reader = Reader::open(state.path()).unwrap();
    ask_for_all(&reader, jobs, expected);
    let bytes = std::fs::metadata(state.path().join("store.db")).unwrap().len();
    println!("catalogue {} MB", bytes >> 20);
}

/// What each question costs.
fn ask_for_all(reader: &Reader, jobs: i64, expected: i128) {
    let zone = Zone {
        name: "Europe/Berlin".into(),
        offsets: vec![(i64::MIN, 3_600), (1_774_746_000 * SECOND_NS, 7_200)],
    };
    for (by, every) in [
        (By::User, Every::All),
        (By::System, Every::HourOfWeek),
        (By::Account, Every::Month),
        (By::User, Every::Day),
        (By::Node, Every::All),
        (By::Command, Every::Month),
    ] {
        let (from_ns, to_ns) = (BEGIN_S * SECOND_NS, (BEGIN_S + YEAR_S + 2 * 86_400) * SECOND_NS);
        let ask = UsageAsk { zone: zone.clone(), ..UsageAsk::new(from_ns, to_ns, by, every) };
        let begin = cpu_time();
        let Ok(usage) = met_store::usage(reader, &ask, &|_| true, &[], to_ns).unwrap() else {
            println!("by {} every {}: refused as too long", by.name(), every.name());
            continue;
        };
        let took = cpu_time() - begin;
        let sum: i128 = usage.lines.iter().map(|line| line.sums[figure::CPU_NS]).sum();
        assert!(sum == expected || jobs < 1_000 || by == By::Command, "{sum} of {expected}");
        println!(
            "by {} every {}: {:.3} s, {} lines",
            by.name(),
            every.name(),
            took.as_secs_f64(),
            usage.lines.len()
        );
    }
}
