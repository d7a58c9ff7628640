//! What people mean by words that are no commands or options.

use met_core::managers::Scheduler;

const LIST: &str = "met list";

/// Words that people type and the command that does it.
pub const MEANT: &[(&[&str], &str)] = &[
    (&["kill", "stop", "abort", "scancel", "terminate"], "met cancel JOB"),
    (&["status", "state"], "met list, met show JOB or met daemon --status"),
    (&["log", "output", "cat", "tail"], "met logs JOB (-f to follow)"),
    (&["top", "htop", "watch"], "met list --watch, or met ps JOB for the processes of a job"),
    (&["jobs", "queue", "history", "squeue"], LIST),
    (&["info", "report", "describe", "stats", "stat"], "met show JOB"),
    (&["start", "exec", "submit", "launch", "sbatch"], "met run -- CMD"),
    (&["delete", "remove", "del"], "met rm JOB"),
    (&["gpu", "nvidia-smi"], "met gpus"),
    (&["host", "machine"], "met node"),
    (&["hosts", "cluster"], "met nodes"),
    (&["settings"], "met config, or met configure for a running daemon"),
    (&["diagnose"], "met doctor"),
    (&["version"], "met --version"),
];

/// The same after a command, and its options.
pub const MEANT_AFTER: &[(&str, &[&str], &str)] = &[
    ("met daemon", &["status", "state", "info"], "met daemon --status"),
    ("met daemon", &["stop", "kill", "quit"], "met daemon --stop"),
    ("met daemon", &["start", "run"], "met daemon"),
    ("met daemon", &["restart"], "met daemon --stop, then met daemon"),
    ("met server", &["status", "state", "info"], "met --server URL nodes; met server has enroll and expel"),
    (
        "met server",
        &["stop", "kill", "quit"],
        "Ctrl-C or its service manager; met server has enroll and expel",
    ),
    ("met server", &["start", "run"], "met server"),
    ("met configure", &["--events"], "met configure --perf EVENTS"),
    ("met configure", &["--interval"], "met configure --period TIME"),
    ("met cancel", &["--force", "--kill"], "met cancel --signal KILL JOB"),
    ("met list", &["--format", "--output"], "met list --json or met list --csv"),
];

/// What to type instead of a word that is no command.
pub fn meant(word: &str) -> Option<String> {
    let lower = word.to_ascii_lowercase();
    let is_list = Scheduler::ALL.iter().any(|scheduler| scheduler.row().1.program == lower);
    let meant = MEANT.iter().find(|(words, _)| words.contains(&lower.as_str()));
    let command = meant.map(|(_, command)| *command).or(is_list.then_some(LIST))?;
    Some(format!("there is no command {word:?}; use {command}"))
}

/// What to type instead of a word after a command.
pub fn meant_after(command: &str, word: &str) -> Option<String> {
    let is_meant = |(of, words, _): &&(&str, &[&str], &str)| *of == command && words.contains(&word);
    let (.., advice) = MEANT_AFTER.iter().find(is_meant)?;
    Some(format!("{command} has no {word:?}; use {advice}"))
}

/// Whether `typed` may be a typing error for `meant`: they begin alike, or two letters differ at most.
pub fn is_mistyped(typed: &str, meant: &str) -> bool {
    const BEGINNING: usize = 2;
    let [typed, meant] = [typed, meant].map(|word| word.trim_start_matches('-').to_lowercase());
    let alike = typed.chars().zip(meant.chars()).take_while(|(one, other)| one == other).count();
    alike >= BEGINNING || strsim::damerau_levenshtein(&typed, &meant) <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_shares_little_with_another_was_not_meant() {
        for (typed, meant) in
            [("--stat", "--state"), ("shwo", "show"), ("--jsno", "--json"), ("docter", "doctor")]
        {
            assert!(is_mistyped(typed, meant), "{typed} {meant}");
        }
        for (typed, meant) in
            [("--events", "--reset"), ("--force", "--grace"), ("--format", "--sort"), ("monitor", "doctor")]
        {
            assert!(!is_mistyped(typed, meant), "{typed} {meant}");
        }
    }
}
