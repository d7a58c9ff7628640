//! How a job ended, in words.

use met_core::job::{LOCAL, Record, State};

/// How the job ended, in words, or its state while it has not.
pub fn outcome(record: &Record) -> String {
    let ending = match (record.signal, record.exit_code) {
        (Some(signal), _) => {
            let name = signal_name(signal).map_or(String::new(), |name| format!(" ({name})"));
            Some(format!("killed by signal {signal}{name}"))
        }
        (None, Some(code)) => Some(format!("exit code {code}")),
        // Of a job of our own: `detached`.
        (None, None) => record.manager_state.clone().filter(|_| record.key.manager == LOCAL),
    };
    let state = match record.state {
        State::OutOfMemory => "out of memory",
        state => state.name(),
    };
    // A scheduler's reason may be older than the end.
    let is_ours = record.state == State::Lost && record.scheduling.asked_ns.is_none();
    match (ending, record.scheduling.reason.as_deref().filter(|_| is_ours)) {
        (None, Some(reason)) => format!("{state}, {reason}"),
        (Some(ending), _) if !record.state.is_live() => format!("{state}, {ending}"),
        _ => state.to_owned(),
    }
}

/// What a failed job failed of, for lists: `KILL`, `7`.
pub fn cause(record: &Record) -> Option<String> {
    match (record.signal, record.exit_code) {
        _ if record.state != State::Failed => None,
        (Some(signal), _) => Some(match signal_name(signal) {
            Some(name) => name.trim_start_matches("SIG").to_owned(),
            None => format!("signal {signal}"),
        }),
        (None, code) => code.filter(|&code| code != 0).map(|code| code.to_string()),
    }
}

pub fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        16 => "SIGSTKFLT",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}
