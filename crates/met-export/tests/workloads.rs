//! Recorded programs whose bottleneck is known: the answers that they get, and those that they should.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use met_core::JOB;
use met_core::gpu::device;
use met_core::series::Series;
use met_export::ExportedJob;
use met_insight::answers::PhaseKind::{self, Compute, Idle, IdleTail, Light, StartUp};
use met_insight::answers::{Job, Limit, Samples, answers};
use met_insight::report::Machine;
use met_insight::rules::{Gates, Rules};

/// A program, what limits it, the rules that must speak with two cores given (no other may), and phases that it must
/// have in this order, among others.
type Workload = (&'static str, Limit, &'static [&'static str], &'static [PhaseKind]);

/// As `scripts/workloads` recorded them, on two cores of a quiet machine with an H200; `slow_link`, which needs `ip` and
/// `tc`, on a machine of two cores.
const WORKLOADS: &[Workload] = &[
    ("serial", Limit::OneCore, &["serial_on_many"], &[Compute]),
    ("both_cores", Limit::Cpu, &[], &[Compute]),
    ("oversubscribed", Limit::Cpu, &["oversubscribed"], &[Compute]),
    ("unequal", Limit::OneCore, &[], &[Compute]),
    ("sleeping", Limit::Waiting, &["cpu_low"], &[Idle]),
    ("pipe", Limit::Waiting, &["cpu_low"], &[Idle]),
    ("lock", Limit::Waiting, &["cpu_low"], &[Idle]),
    ("polling", Limit::Waiting, &["cpu_low"], &[Idle]),
    ("synced_writes", Limit::Io, &[], &[]),
    ("uncached_reads", Limit::Io, &[], &[]),
    ("cached_reads", Limit::OneCore, &["serial_on_many"], &[Compute]),
    ("leaking", Limit::Waiting, &["cpu_low", "memory_leak"], &[]),
    ("table", Limit::OneCore, &["serial_on_many"], &[Compute]),
    ("bursty", Limit::None, &["serial_on_many"], &[Compute, Light, Compute]),
    ("start_up", Limit::Cpu, &[], &[StartUp, Compute]),
    ("idle_tail", Limit::None, &["idle_tail", "serial_on_many"], &[Compute, IdleTail]),
    // Eight children at once, on two cores.
    ("tiny_children", Limit::Cpu, &["many_children"], &[Compute]),
    ("small_calls", Limit::OneCore, &["serial_on_many", "small_io"], &[Compute]),
    ("failing", Limit::OneCore, &["serial_on_many"], &[Compute]),
    ("many_files", Limit::OneCore, &["kernel_calls", "serial_on_many"], &[Compute]),
    ("spinning", Limit::OneCore, &["serial_on_many"], &[Compute]),
    ("memory_copies", Limit::Cpu, &[], &[Compute]),
    ("buffered_writes", Limit::OneCore, &["serial_on_many"], &[Compute]),
    ("two_phases", Limit::Cpu, &[], &[Compute]),
    ("messages", Limit::Waiting, &["cpu_low"], &[]),
    // Too short for any note.
    ("short", Limit::OneCore, &[], &[]),
    ("throttled", Limit::Quota, &["throttled"], &[]),
    ("reclaiming", Limit::Memory, &["memory_pressure"], &[]),
    // It would read most of its file from storage with the pages that are dropped, too.
    ("larger_than_limit", Limit::Io, &[], &[]),
    ("held_at_limit", Limit::Memory, &["memory_pressure"], &[]),
    ("killed", Limit::OneCore, &["out_of_memory", "serial_on_many"], &[Compute]),
    // The kernel copies what they send and receive, and one of them always waits for the other.
    ("loopback", Limit::Cpu, &["kernel_calls"], &[Compute]),
    // Whose bytes cross a network that jobs share is not counted: nothing is said of a network.
    ("paced_socket", Limit::Waiting, &["cpu_low"], &[Idle]),
    ("slow_link", Limit::Network, &["cpu_low"], &[]),
    ("stress_matrix", Limit::Cpu, &[], &[Compute]),
    ("stress_vm", Limit::Cpu, &[], &[Compute]),
    // Two processes that wake one another: neither is busy all the time, and one core is enough for both.
    ("stress_switch", Limit::None, &["serial_on_many", "small_io"], &[Compute]),
    ("stress_hdd", Limit::Io, &[], &[]),
    ("gpu_full", Limit::Gpu, &[], &[]),
    // The core that starts the kernels is busy all the time, and the GPU for 18 % of it, on a thousandth of its units.
    ("gpu_launch_bound", Limit::OneCore, &["gpu_too_large", "serial_on_many"], &[]),
    // Busy all the time, on a hundredth of its units.
    ("gpu_small_kernels", Limit::Gpu, &["gpu_too_large"], &[]),
    ("gpu_idle", Limit::Waiting, &["cpu_low", "gpu_idle"], &[]),
    ("gpu_holds_model", Limit::Waiting, &["cpu_low"], &[]),
    ("gpu_low", Limit::Waiting, &["cpu_low", "gpu_low"], &[]),
    ("gpu_waits_for_cpu", Limit::Cpu, &["gpu_waits_for_cpu"], &[]),
    ("gpu_tail", Limit::None, &[], &[]),
];

/// What gets another answer than it was written for, which the table shows: what is said of the recording, and why.
const OTHERWISE: &[(&str, Limit, &str)] = &[
    ("gpu_holds_model", Limit::None, "its start on one core is a fifth of the recording"),
    ("gpu_low", Limit::None, "it slept for two thirds of the time; the GPU computed for a sixth"),
];

/// What is judged without its start, in seconds, as jobs are that run long enough for a warm-up; and why.
const WITHOUT_START: &[(&str, i64, &str)] =
    &[("gpu_waits_for_cpu", 5, "its start, on one core, is four of 24 seconds")];

const CPUS: u32 = 2;
/// The recordings last seconds, not hours.
const GATES: Gates = Gates { coverage: 0.9, length_s: 5.0, samples: 10, core_hours: 0.0, gpu_hours: 0.0 };

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn recorded(name: &str) -> ExportedJob {
    let path = root().join(format!("fixtures/workloads/{name}.jsonl"));
    let mut jobs = Vec::new();
    met_export::read(&path, &mut |job| {
        jobs.push(job);
        Ok(())
    })
    .unwrap_or_else(|error| panic!("{name}: {error:#}"));
    jobs.pop().unwrap()
}

/// The rules as they come, with the gates of a test; thresholds in time and bytes are as much smaller.
fn rules() -> Rules {
    let yaml = fs::read_to_string(root().join("crates/met-insight/src/rules/built_in.yaml")).unwrap();
    let smaller = [
        ("idle_tail > 10min", "idle_tail > 3s"),
        ("memory_growth * wall > 1GiB", "memory_growth * wall > 100MiB"),
    ];
    let small = smaller.into_iter().fold(yaml, |yaml, (from, to)| {
        assert!(yaml.contains(from), "{from}");
        yaml.replace(from, to)
    });
    let mut rules = met_insight::rules::parse(&small).unwrap();
    rules.rules.iter_mut().for_each(|rule| rule.gates = GATES);
    rules
}

fn reported(name: &str, rules: &Rules) -> (Option<Limit>, Vec<String>, Vec<PhaseKind>) {
    let mut job = recorded(name);
    job.record.allocated.cpus = Some(CPUS.into());
    job.record.allocated.nodes = Some(1);
    let mut series = job.series(&JOB, "");
    if let Some((_, seconds, _)) = WITHOUT_START.iter().find(|(of, ..)| *of == name) {
        let begin_ms = job.record.start_ns.unwrap() / 1_000_000 + seconds * 1000;
        job.record.start_ns = Some(begin_ms * 1_000_000);
        series = since(&series, begin_ms);
    }
    let uuids: Vec<String> = job.record.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let gpus: Vec<_> =
        uuids.into_iter().map(|uuid| (uuid.clone(), job.series(&device::TABLE, &uuid))).collect();
    let samples = Samples { series: &series, gap_ms: 5000, gpus: &gpus };
    let of = Job::new(&job.record, Machine { cpus: Some(CPUS) }, job.exported_ns).sampled(samples);
    let answers = answers(&of, rules);
    let mut found: Vec<String> = answers.findings.into_iter().map(|finding| finding.rule).collect();
    found.sort();
    let phases = answers.phases.into_iter().map(|phase| phase.kind).collect();
    (answers.bottleneck.map(|bottleneck| bottleneck.limit), found, phases)
}

/// The samples from a time on.
fn since(series: &Series, begin_ms: i64) -> Series {
    let mut rest = Series::new(series.table);
    for index in series.times_ms.partition_point(|&time_ms| time_ms < begin_ms)..series.len() {
        let cells: Vec<i64> = series.columns.iter().map(|cells| cells[index]).collect();
        rest.push(series.times_ms[index], &cells);
    }
    rest
}

/// Whether these phases occur in this order, others in between.
fn occur(wanted: &[PhaseKind], phases: &[PhaseKind]) -> bool {
    let mut rest = phases.iter();
    wanted.iter().all(|wanted| rest.any(|phase| phase == wanted))
}

#[test]
fn every_recording_has_its_expectation() {
    let files = fs::read_dir(root().join("fixtures/workloads")).unwrap();
    let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut files: Vec<String> = files.map(|entry| stem(entry.unwrap().path())).collect();
    files.sort();
    let mut names: Vec<&str> = WORKLOADS.iter().map(|&(name, ..)| name).collect();
    names.sort_unstable();
    assert_eq!(files, names);
}

#[test]
fn recorded_work_gets_the_right_answers() {
    let rules = rules();
    let mut wrong = Vec::new();
    let mut confusion: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut notes: Vec<Notes> = Vec::new();
    for &(name, limit, expected, phases) in WORKLOADS {
        let (answered, found, seen) = reported(name, &rules);
        let answered = answered.map_or("unknown", Limit::name);
        confusion.entry((limit.name(), answered)).or_default().push(name);
        let known = OTHERWISE.iter().find(|(of, ..)| *of == name).map_or(limit, |&(_, known, _)| known);
        if answered != known.name() {
            wrong.push(format!("{name}: limited by {answered}, not {}", known.name()));
        }
        if found != expected {
            wrong.push(format!("{name}: notes {found:?}, not {expected:?}"));
        }
        notes.push((name, expected, found));
        if !occur(phases, &seen) {
            wrong.push(format!("{name}: phases {seen:?}, not {phases:?}"));
        }
    }
    check_page("confusion", &limits_table(&confusion));
    check_page("notes", &notes_table(&notes));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A program, the notes that it should get, and those that it gets.
type Notes = (&'static str, &'static [&'static str], Vec<String>);

fn limits_table(confusion: &BTreeMap<(&str, &str), Vec<&str>>) -> String {
    let mut table = String::from("\n| limited by | answered | programs |\n| --- | --- | --- |\n");
    for ((truth, answered), names) in confusion {
        table.push_str(&format!("| `{truth}` | `{answered}` | {} |\n", names.join(", ")));
    }
    for (name, _, why) in OTHERWISE {
        table.push_str(&format!("\n- {name}: {why}"));
    }
    table + "\n"
}

/// Each program with the notes that it should get and those that it gets.
fn notes_table(notes: &[Notes]) -> String {
    let mut table = String::from("\n| program | should get | gets |\n| --- | --- | --- |\n");
    let listed = |names: Vec<&str>| match names.is_empty() {
        true => "–".to_owned(),
        false => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    };
    for (name, expected, found) in notes {
        let found = listed(found.iter().map(String::as_str).collect());
        table.push_str(&format!("| {name} | {} | {found} |\n", listed(expected.to_vec())));
    }
    for (name, seconds, why) in WITHOUT_START {
        table.push_str(&format!("\n- {name}: judged without its first {seconds} seconds; {why}\n"));
    }
    table
}

/// docs/answers.md has the table as it is; UPDATE_EXPECT=1 writes it.
fn check_page(what: &str, table: &str) {
    let (begin, end) = (format!("<!-- generated: {what} -->\n"), "<!-- end -->\n");
    let path = root().join("docs/answers.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(&begin).unwrap();
    let (_, tail) = rest.split_once(end).unwrap();
    let now = format!("{head}{begin}{table}\n{end}{tail}");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &now).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        now,
        "docs/answers.md is stale; UPDATE_EXPECT=1 writes it"
    );
}
