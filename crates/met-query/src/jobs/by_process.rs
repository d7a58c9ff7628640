//! Which stored job a process was part of. The numbers of processes are given again.

use met_core::job::{Origin, ProcessId, Record};
use met_host::{Host, clock};

/// Starts of processes are stored as their exit records have them, in seconds of a clock that may be set.
const START_DOUBT_NS: u64 = 3_000_000_000;

/// The process that is looked for.
pub(super) struct Wanted<'a> {
    pub(super) pid: u32,
    pub(super) node: Option<&'a str>,
    /// What has this number now on this machine.
    pub(super) running: Option<Running>,
    /// Who asks, on this machine.
    pub(super) caller: Option<u32>,
}

pub(super) struct Running {
    pub(super) id: ProcessId,
    start_ns: i64,
    boot_id: String,
}

impl Running {
    pub(super) fn of(host: &Host, id: ProcessId) -> Running {
        let facts = host.facts();
        let ticks = i64::try_from(id.start_ticks).unwrap_or(i64::MAX);
        let start_ns = ticks.saturating_mul(1_000_000_000 / facts.ticks_per_second.max(1));
        let start_ns = start_ns.saturating_add(clock::unix_offset_ns());
        Running { id, start_ns, boot_id: facts.boot_id.clone() }
    }

    /// Whether it, and not an earlier process with its number, was part of the job.
    fn is_of(&self, record: &Record) -> bool {
        let local = record.local.as_ref().filter(|local| local.boot_id == self.boot_id);
        let is_it = |start_ns: i64| start_ns.abs_diff(self.start_ns) <= START_DOUBT_NS;
        local.and_then(|local| local.main) == Some(self.id)
            || (record.processes.iter())
                .any(|process| process.pid == self.id.pid && process.start_ns.is_some_and(is_it))
    }
}

impl Wanted<'_> {
    pub(super) fn is_of(&self, record: &Record) -> bool {
        let is_on = self.node.is_none_or(|node| record.nodes.iter().any(|known| known == node));
        is_on
            && record.has_process(self.pid)
            && !self.is_claimed(record)
            && self.running.as_ref().is_none_or(|running| running.is_of(record))
    }

    /// Of a job of another user's `met time` the processes are what this user says.
    fn is_claimed(&self, record: &Record) -> bool {
        let is_timed = record.local.as_ref().is_some_and(|local| local.origin == Origin::Time);
        is_timed && self.caller.is_some_and(|caller| record.uid != Some(caller))
    }
}

#[cfg(test)]
mod tests {
    use met_core::job_processes::JobProcess;
    use met_core::sample;

    use super::*;

    fn job(origin: Origin) -> Record {
        let mut record = sample::full(7, "x");
        record.processes =
            vec![JobProcess { pid: 4711, start_ns: Some(1_000_000_000_000), ..JobProcess::default() }];
        record.uid = Some(33);
        let local = record.local.as_mut().unwrap();
        (local.origin, local.main) = (origin, None);
        record
    }

    fn wanted(start_ns: Option<i64>) -> Wanted<'static> {
        let id = ProcessId { pid: 4711, start_ticks: 5 };
        let running = start_ns.map(|start_ns| Running { id, start_ns, boot_id: "b".to_owned() });
        Wanted { pid: 4711, node: None, running, caller: Some(0) }
    }

    #[test]
    fn a_living_process_is_of_no_job_in_which_its_number_occurred_before() {
        assert!(wanted(None).is_of(&job(Origin::Run)), "it is over");
        assert!(wanted(Some(1_002_000_000_000)).is_of(&job(Origin::Run)), "the same one, left over");
        assert!(!wanted(Some(1_060_000_000_000)).is_of(&job(Origin::Run)), "a later one");
        let mut of_main = job(Origin::Run);
        let local = of_main.local.as_mut().unwrap();
        (local.boot_id, local.main) = ("b".to_owned(), Some(ProcessId { pid: 4711, start_ticks: 5 }));
        assert!(wanted(Some(9_000_000_000_000)).is_of(&of_main));
        of_main.local.as_mut().unwrap().boot_id = "earlier".to_owned();
        assert!(!wanted(Some(9_000_000_000_000)).is_of(&of_main), "the machine was restarted");
    }

    #[test]
    fn another_users_claims_lead_nobody_astray() {
        assert!(!wanted(None).is_of(&job(Origin::Time)));
        assert!(!wanted(Some(1_000_000_000_000)).is_of(&job(Origin::Time)));
        let own = Wanted { caller: Some(33), ..wanted(None) };
        assert!(own.is_of(&job(Origin::Time)));
        assert!(Wanted { caller: None, ..wanted(None) }.is_of(&job(Origin::Time)), "a server's");
        assert!(!Wanted { node: Some("n2"), ..own }.is_of(&job(Origin::Time)));
    }
}
