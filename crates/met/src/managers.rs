//! Jobs of other programs: what to type where `met` must not act itself.

use met_core::job::{LOCAL, Record};
use met_core::managers;

/// Whether another program started the job, and ends and cleans up after it.
pub fn is_foreign(record: &Record) -> bool {
    record.key.manager != LOCAL
}

/// The command that ends the job, in the words of its manager; none where there is no one command for it.
pub fn cancel_command(record: &Record) -> Option<String> {
    managers::find(&record.key.manager)?.cancel.map(|command| command(record))
}

/// Where the output of such a job may be found.
pub fn output_hint(record: &Record) -> Option<String> {
    managers::find(&record.key.manager)?.output.map(|hint| hint(record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::sample;

    #[test]
    fn each_manager_has_its_own_command_to_end_a_job() {
        let mut record = sample::scheduled();
        let mut command = |manager: &str, alias: &str| {
            record.key.manager = manager.to_owned();
            record.scheduling.alias = Some(alias.to_owned());
            cancel_command(&record).unwrap_or_default()
        };
        assert_eq!(command("slurm", "1234_7"), "scancel 1234_7");
        assert_eq!(command("oar", "12"), "oardel 12");
        assert_eq!(command("pbs", "17[3]"), "qdel 17[3]");
        assert_eq!(command("lsf", "99[3]"), "bkill \"99[3]\"");
        assert_eq!(command("condor", "5.0"), "condor_rm 5.0");
        assert_eq!(command("kubernetes", "1"), "kubectl delete pod train");
        assert_eq!(command("docker", "c0ffee"), "docker stop c0ffee");
        assert_eq!(command("podman", "c0ffee"), "podman stop c0ffee");
        assert_eq!(command("session", "1"), "");
        assert!(is_foreign(&record) && !is_foreign(&sample::bare(1, "x")));
    }
}
