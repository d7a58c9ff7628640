//! Processes by what their environment says: the trace of a job whose supervisor is gone.

use std::io;

use met_core::job::ProcessId;
use met_host::{Host, PidPath, parse};

/// An environment is searched no further.
const ENVIRON_BYTES_MAX: usize = 1 << 20;

/// The processes started with exactly `variable`, such as `MET_JOB=17`, in their environment.
///
/// Slow: it reads every environment this user may read. The caller is among them if it has the variable.
pub fn find_by_marker(host: &Host, variable: &str) -> io::Result<Vec<ProcessId>> {
    let mut buffer = Vec::new();
    let mut pids = Vec::new();
    host.proc_dir().list(&mut buffer, |name, _, _| pids.extend(parse::u32(name)))?;
    let mut found = Vec::new();
    for pid in pids {
        // Processes that ended meanwhile and those of others cannot be read, and are none of ours.
        if host.proc_dir().read(PidPath::new(pid, "environ").as_path(), &mut buffer).is_ok()
            && has_variable(&buffer, variable.as_bytes())
        {
            found.extend(host.process(pid).ok());
        }
    }
    Ok(found)
}

/// A number that the environment of a process has under this name.
pub(crate) fn number(host: &Host, pid: u32, variable: &str, buffer: &mut Vec<u8>) -> Option<String> {
    host.proc_dir().read(PidPath::new(pid, "environ").as_path(), buffer).ok()?;
    buffer.truncate(ENVIRON_BYTES_MAX);
    let mut entries = buffer.split(|&byte| byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"="))?;
    parse::u64(value).map(|number| number.to_string())
}

fn has_variable(environ: &[u8], variable: &[u8]) -> bool {
    environ.split(|&byte| byte == 0).any(|entry| entry == variable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_variable_is_found_whole_or_not_at_all() {
        let environ = b"A=1\0MET_JOB=17\0B=\xff\0";
        assert!(has_variable(environ, b"MET_JOB=17") && has_variable(environ, b"B=\xff"));
        assert!(!has_variable(environ, b"MET_JOB=1") && !has_variable(environ, b"JOB=17"));
    }

    #[test]
    fn a_running_process_is_found_by_its_environment() {
        let host = Host::real().unwrap();
        let value = format!("met-test-{}", std::process::id());
        let mut child = Command::new("sleep").arg("60").env("MET_TEST_MARKER", &value).spawn().unwrap();
        let find = || find_by_marker(&host, &format!("MET_TEST_MARKER={value}")).unwrap();
        // Between fork and exec a child still shows the environment of this process.
        let begin = std::time::Instant::now();
        while find().is_empty() && begin.elapsed().as_secs() < 5 {
            std::thread::yield_now();
        }
        let found = find();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [child.id()]);
        assert!(find().is_empty());
    }
}
