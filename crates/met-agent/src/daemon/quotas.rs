//! How much users may announce to a system daemon: running jobs, and bytes until the store is cut to its size again.
//!
//! Shared ids are bounded where they are reserved. Ids of a user's own range are not given by the daemon, so what is
//! announced under them is bounded here.

use anyhow::{Result, bail};
use met_core::bounds;
use met_core::job::Record;
use met_core::series::Series;
use met_host::Host;

use super::registry::{Registry, is_found};
use super::socket::Peer;

/// Running jobs of one user. More than a machine runs, and few enough to sample.
const RUNNING_PER_USER_MAX: usize = 8192;
/// This part of `storage.max_size` may be announced before retention runs.
const PART_OF_STORE: u64 = 16;
/// For small stores: retention costs more than the bytes it would remove.
const UNCHECKED_BYTES_MIN: u64 = 1 << 20;

/// Whether a job that is new to this daemon may run: one for each supervisor, and a bounded number for each
/// user.
pub(super) fn check(host: &Host, registry: &Registry, record: &Record, peer: Peer) -> Result<()> {
    if registry.jobs.contains_key(&record.key) {
        return Ok(());
    }
    let announced = || {
        let kept = registry.jobs.values().map(|kept| &kept.record);
        kept.filter(|other| other.uid == Some(peer.uid) && !is_found(other))
    };
    if announced().count() >= RUNNING_PER_USER_MAX {
        bail!(
            "{RUNNING_PER_USER_MAX} jobs of this user are already running; the job is announced again later"
        );
    }
    let supervisors = announced().filter_map(|other| other.local.as_ref()?.supervisor);
    // The pid of one that is gone may be used again.
    if supervisors.filter(|other| other.pid == peer.pid).any(|other| host.is_alive(other)) {
        bail!("this supervisor has a running job already");
    }
    Ok(())
}

/// What users had written to the store since the last retention.
#[derive(Default)]
pub(super) struct Announced {
    bytes: u64,
}

impl Announced {
    pub(super) fn count(&mut self, record: &Record) {
        self.bytes += bounds::bytes(record) as u64;
    }

    /// What a user sends of samples takes at most so much.
    pub(super) fn count_samples(&mut self, series: &Series) {
        self.bytes += (series.len() * series.columns.len() * size_of::<i64>()) as u64;
    }

    /// Whether retention must run at once.
    pub(super) fn is_retention_due(&self, store_bytes_max: u64) -> bool {
        self.bytes > (store_bytes_max / PART_OF_STORE).max(UNCHECKED_BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use met_core::job::{Origin, ProcessId, State};
    use met_store::inbox::own_ids;

    use super::super::permissions::Access;
    use super::super::service::Service;
    use super::super::write_retries::tests::{keeping_by, service};
    use super::*;
    use met_config::Config;
    use met_core::sample;

    const USER: u32 = 70_000;
    const ACCESS: Access = Access { own: true, others: false };

    fn process(root: &std::path::Path, pid: u32) {
        fs::create_dir_all(root.join(format!("proc/{pid}"))).unwrap();
        let zeros = ["0"; 17].join(" ");
        fs::write(root.join(format!("proc/{pid}/stat")), format!("{pid} (met) S 1 {zeros} 5 0 0 0 0\n"))
            .unwrap();
    }

    /// A job with the user's own id that a supervisor with this pid announces.
    fn job(service: &Service, number: u64, pid: u32) -> Record {
        let mut record = sample::full(1, "train");
        (record.state, record.end_ns, record.inside) = (State::Running, None, None);
        (record.key.id, record.uid) = ((own_ids(USER).start + number).to_string(), Some(USER));
        let local = record.local.as_mut().unwrap();
        local.origin = Origin::Run;
        local.boot_id.clone_from(&service.host.facts().boot_id);
        local.supervisor = Some(ProcessId { pid, start_ticks: 5 });
        local.main = Some(ProcessId { pid: 4_000_000, start_ticks: 6 });
        local.cgroup = Default::default();
        record
    }

    #[test]
    fn a_supervisor_has_one_running_job_and_a_user_so_many() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        service.place.system = true;
        (7..10).for_each(|pid| process(root.path(), pid));
        let start = |service: &mut Service, number, pid| {
            let record = job(service, number, pid);
            service.started(record, Peer { uid: USER, pid }, ACCESS).map(drop)
        };
        start(&mut service, 1, 7).unwrap();
        start(&mut service, 1, 7).expect("announced twice");
        assert!(start(&mut service, 2, 7).unwrap_err().to_string().contains("running job already"));
        start(&mut service, 2, 8).expect("another supervisor");
        assert_eq!(service.job_count(), 2);
        // It is gone, and the next one has its pid.
        fs::remove_file(root.path().join("proc/7/stat")).unwrap();
        start(&mut service, 3, 7).unwrap();

        let template = job(&service, 10, 1_000_000);
        for number in 0..RUNNING_PER_USER_MAX as u64 {
            let mut record = template.clone();
            record.key.id = (own_ids(USER).start + 10 + number).to_string();
            let kept = super::super::registry::RegisteredJob {
                record,
                watch: super::super::supervisors::Watch::new(),
                gone: Vec::new(),
            };
            service.registry.jobs.insert(kept.record.key.clone(), Box::new(kept));
        }
        assert!(start(&mut service, 9, 9).unwrap_err().to_string().contains("jobs of this user"));
        let others = job(&service, 9, 9);
        check(&service.host, &service.registry, &others, Peer { uid: USER + 1, pid: 9 })
            .expect("another user");
    }

    #[test]
    fn retention_does_not_wait_while_a_user_fills_the_store() {
        let root = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.storage.max_bytes = 16 << 20;
        let mut service = keeping_by(root.path(), config);
        service.place.system = true;
        let mut ended = 0;
        while !service.is_retention_due() {
            let mut record = job(&service, ended, 7);
            (record.state, record.end_ns) = (State::Finished, record.start_ns);
            record.command = (0..600).map(|number| format!("{number:0>190}")).collect();
            service.ended(record, None, Peer { uid: USER, pid: 7 }, ACCESS).unwrap();
            ended += 1;
            assert!(ended < 1000, "1 MiB is about a hundred of these");
        }
        assert!(ended > 4, "{ended}");
        service.retain();
        assert!(!service.is_retention_due());
    }
}
