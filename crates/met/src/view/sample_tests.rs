//! Made-up processes for the tests of views.

use super::ps::ProcessLine;

/// A shell with children, one of them with a hostile command line, and one process without an owner.
pub fn processes() -> Vec<ProcessLine> {
    let process = |pid, ppid, state, cpu_seconds, cpu_percent, memory_bytes, command: &[&str]| ProcessLine {
        pid,
        ppid,
        user: Some("alice".to_owned()),
        state,
        cpu_seconds: Some(cpu_seconds),
        cpu_percent: Some(cpu_percent),
        memory_bytes: Some(memory_bytes),
        threads: Some(1),
        read_bytes: None,
        written_bytes: Some(4096),
        gpu_utilization: None,
        gpu_memory_bytes: None,
        gpus: Vec::new(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
    };
    let mut busy = process(
        3115,
        3114,
        'R',
        243.8,
        376.41,
        1_210_000_000,
        &["python3", "train.py", "--label", "first try"],
    );
    busy.threads = Some(41);
    busy.read_bytes = Some(3_456_789_012);
    vec![
        process(3113, 1, 'S', 0.01, 0.0, 1_900_000, &["sh", "-c", "make all && ./report"]),
        process(3120, 3113, 'S', 0.2, 0.1, 3_100_000, &["tee", "out\x1b[2J\nlog"]),
        process(3114, 3113, 'S', 1.2, 0.4, 12_300_000, &["make", "-j8", "all"]),
        busy,
        process(3116, 3114, 'Z', 12.0, 0.0, 0, &["cc1plus"]),
        process(4000, 77, 'D', 3700.0, 12.5, 900_000_000, &["orphan"]),
    ]
}
