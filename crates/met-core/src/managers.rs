//! The resource managers: one row each, from which all their differences derive.
//!
//! A scheduler whose records are queried is also named in [`schedulers!`](crate::schedulers) and has a file in
//! `met-jobs/src/scheduler`; without them it does not compile.

use crate::job::Record;

/// What is known of a manager without querying it.
pub struct Manager {
    pub name: &'static str,
    /// An alias.
    pub alias: Option<&'static str>,
    /// How its records are queried.
    pub query: Option<Query>,
    /// Its jobs run on several nodes under one id. The ids of all others mean something on one node only.
    pub spans_nodes: bool,
    pub is_container: bool,
    /// The programs by which it watches a job from inside the job's cgroup.
    pub watchers: &'static [&'static str],
    /// The user that its processes inside jobs run as.
    pub user: Option<&'static str>,
    /// The command that ends a job.
    pub cancel: Option<fn(&Record) -> String>,
    /// Where the output of a job is found.
    pub output: Option<fn(&Record) -> String>,
    /// How its cgroups are recognised.
    pub layouts: &'static [Pattern],
    /// The part of a job in which root waits for its end and prepares it.
    pub waits_in: Option<&'static str>,
    /// Variables with the numbers of the GPUs that it gave to a job, the job's before those of its steps.
    pub gpu_variables: &'static [&'static str],
    /// Whether a path is that of its copy of a job's script. `has_id`: the job's number is in the path.
    pub is_script_copy: Option<fn(path: &str, has_id: bool) -> bool>,
    /// Words in its reasons why a job waits for what other jobs have, in lower case.
    pub waits_for_others: &'static [&'static str],
    /// The line of a script that requests so much; `None` where it has no such line.
    pub directive: Option<fn(Need) -> Option<String>>,
}

/// What the next run of a job needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A multiple of 1 MiB.
    Memory {
        bytes_per_node: i64,
        nodes: i64,
    },
    /// Of its only task.
    Cpus(i64),
    TimeMinutes(i64),
    /// On its only node.
    Gpus(i64),
}

pub struct Query {
    pub scheduler: Scheduler,
    /// The command whose presence shows that the scheduler is installed.
    pub program: &'static str,
    /// About its key in the configuration.
    pub help: &'static str,
    /// The key for the address at which it counts its queue, and about it.
    pub metrics: Option<(&'static str, &'static str)>,
}

pub struct Pattern {
    pub class: Class,
    /// The directories from the top of a hierarchy down to that of a job; those in parentheses may be
    /// missing. `{name}` matches any characters, `{name:pattern}` those that fit, `*` any.
    pub path: &'static str,
    /// The directories of the parts of a job, below its own.
    pub parts: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A resource manager, which cleans up after its jobs: no cgroup of ours may be made inside.
    Managed,
    /// Jobs, beside which others may make cgroups.
    Plain,
    /// Recognised and not a job by itself.
    Known,
}

/// Hands all schedulers that are queried to a macro: each with its module in `met-jobs/src/scheduler`.
#[macro_export]
macro_rules! schedulers {
    ($to:ident) => {
        $to! { Slurm: slurm, Oar: oar, Pbs: pbs, Lsf: lsf }
    };
}

macro_rules! variants {
    ($($name:ident: $module:ident),*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Scheduler { $($name),* }

        impl Scheduler {
            pub const ALL: &[Scheduler] = &[$(Scheduler::$name),*];
        }
    };
}

schedulers!(variants);

impl Scheduler {
    pub const COUNT: usize = Scheduler::ALL.len();

    pub const fn name(self) -> &'static str {
        self.row().0.name
    }

    /// Its row, and how it is queried.
    pub const fn row(self) -> (&'static Manager, &'static Query) {
        let mut index = 0;
        while index < MANAGERS.len() {
            if let Some(query) = &MANAGERS[index].query
                && query.scheduler as usize == self as usize
            {
                return (&MANAGERS[index], query);
            }
            index += 1;
        }
        panic!("a scheduler has no row in MANAGERS")
    }
}

// A variant without a row does not compile.
const _: () = {
    let mut index = 0;
    while index < Scheduler::COUNT {
        let _ = Scheduler::ALL[index].row();
        index += 1;
    }
};

/// The row of a manager by one of its names.
pub fn find(name: &str) -> Option<&'static Manager> {
    MANAGERS.iter().find(|manager| manager.name == name || manager.alias == Some(name))
}

/// Whether a job that waits for this reason waits for others. One that is held, or waits for another job or a time, does
/// not.
pub fn waits_for_others(manager: &str, reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    find(manager).is_some_and(|manager| manager.waits_for_others.iter().any(|word| reason.contains(word)))
}

pub fn spans_nodes(manager: &str) -> bool {
    find(manager).is_some_and(|manager| manager.spans_nodes)
}

/// `Resources` and `Priority` of Slurm, `Insufficient amount of resource` of PBS, `Resource limits` of LSF.
const BUSY: &[&str] = &["resource", "priority"];

/// A manager known only by name.
const fn named(name: &'static str) -> Manager {
    Manager {
        name,
        alias: None,
        query: None,
        spans_nodes: false,
        is_container: false,
        watchers: &[],
        user: None,
        cancel: None,
        output: None,
        layouts: &[],
        waits_in: None,
        gpu_variables: &[],
        is_script_copy: None,
        waits_for_others: &[],
        directive: None,
    }
}

macro_rules! query {
    ($scheduler:ident, $title:literal, $program:literal) => {
        query!($scheduler, $title, $program, None)
    };
    ($scheduler:ident, $title:literal, $program:literal, $metrics:expr) => {
        Some(Query {
            metrics: $metrics,
            scheduler: Scheduler::$scheduler,
            program: $program,
            help: concat!(
                $title,
                "; `auto`: by a system daemon, where the command is installed: `",
                $program,
                "`"
            ),
        })
    };
}

const fn managed(path: &'static str, parts: &'static str) -> Pattern {
    Pattern { class: Class::Managed, path, parts }
}

const fn plain(path: &'static str, parts: &'static str) -> Pattern {
    Pattern { class: Class::Plain, path, parts }
}

const fn known(path: &'static str) -> Pattern {
    Pattern { class: Class::Known, path, parts: "" }
}

/// Its first process is the runtime's until it begins its own program.
const RUNTIMES: &[&str] =
    &["conmon", "catatonit", "runc:[0:PARENT]", "runc:[1:CHILD]", "runc:[2:INIT]", "runc", "crun"];

const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;

/// The order is that of precedence: of the layouts that fit one directory the first is taken. A directory
/// inside a job is never another job, so the outermost manager wins: a container inside a Slurm job is
/// still the Slurm job, and a pod is one job whatever runs its containers.
#[rustfmt::skip]
pub const MANAGERS: &[Manager] = &[
    Manager {
        query: query!(Slurm, "SLURM", "sacct", Some((
            "slurm_metrics",
            "where slurmctld serves its metrics, for example `http://ctl:6817` (Slurm 25.11 or newer with `MetricsType=metrics/openmetrics`): how many jobs wait is then taken from there, and from `squeue` while it does not answer; read by the server, or by a system daemon that sends to none",
        ))),
        spans_nodes: true,
        watchers: &["slurmstepd"],
        user: Some("slurm"),
        cancel: Some(|job| format!("scancel {}", job.shown_id())),
        output: Some(|job| format!("`scontrol show job {0}` names StdOut and StdErr, mostly slurm-{0}.out", job.shown_id())),
        layouts: &[
            managed("slurm/uid_{uid:#}/job_{id:#}", "step_{step}/task_{task}"),
            managed("slurm_{node}/uid_{uid:#}/job_{id:#}", "step_{step}/task_{task}"),
            managed("(system.slice/)slurmstepd.scope/job_{id:#}", "step_{step}/user/task_{task}"),
            managed("(system.slice/){node}_slurmstepd.scope/job_{id:#}", "step_{step}/user/task_{task}"),
            // From Slurm 26.05 on a job is named by its SLUID; the id is in the environment of its processes.
            managed("(system.slice/)slurmstepd.scope/{sluid:s%}", "step_{step}/user/task_{task}"),
            managed("(system.slice/){node}_slurmstepd.scope/{sluid:s%}", "step_{step}/user/task_{task}"),
        ],
        waits_in: Some("step_extern"),
        gpu_variables: &["SLURM_JOB_GPUS", "SLURM_STEP_GPUS"],
        is_script_copy: Some(|path, _| path.rsplit('/').next() == Some("slurm_script")),
        directive: Some(|need| Some(match need {
            Need::Memory { bytes_per_node, .. } if bytes_per_node % GIB == 0 => format!("#SBATCH --mem={}G", bytes_per_node / GIB),
            Need::Memory { bytes_per_node, .. } => format!("#SBATCH --mem={}M", bytes_per_node / MIB),
            Need::Cpus(cpus) => format!("#SBATCH --cpus-per-task={cpus}"),
            Need::TimeMinutes(minutes) => format!("#SBATCH --time={}:{:02}:00", minutes / 60, minutes % 60),
            Need::Gpus(gpus) => format!("#SBATCH --gres=gpu:{gpus}"),
        })),
        waits_for_others: BUSY,
        ..named("slurm")
    },
    Manager {
        query: query!(Oar, "OAR", "oarstat"),
        spans_nodes: true,
        watchers: &["oarexec", "oarsh_shell", "bipbip"],
        user: Some("oar"),
        cancel: Some(|job| format!("oardel {}", job.shown_id())),
        output: Some(|job| format!("`oarstat -f -j {0}` names the files, mostly OAR.{0}.stdout and .stderr", job.shown_id())),
        // The last underscore divides: names of users may hold one.
        layouts: &[managed("oar/{user}_{id:#}", "")],
        waits_for_others: BUSY,
        ..named("oar")
    },
    Manager {
        query: query!(Pbs, "PBS", "qstat"),
        spans_nodes: true,
        watchers: &["pbs_mom"],
        cancel: Some(|job| format!("qdel {}", job.shown_id())),
        output: Some(|job| format!("`qstat -f {}` names Output_Path and Error_Path", job.shown_id())),
        layouts: &[
            managed("(system.slice/)pbs*.service/jobid/{id}", ""),
            managed("(system.slice/)pbs*.service/jobs/{id}", ""),
            managed("pbs*.slice/pbs*-{id}.slice", ""),
        ],
        directive: Some(|need| match need {
            // Of the whole job, not of a node.
            Need::Memory { bytes_per_node, nodes: 1 } => Some(format!("#PBS -l mem={}mb", bytes_per_node / MIB)),
            _ => None,
        }),
        waits_for_others: BUSY,
        ..named("pbs")
    },
    Manager {
        query: query!(Lsf, "LSF", "bjobs"),
        spans_nodes: true,
        watchers: &["res", "sbatchd"],
        user: Some("lsfadmin"),
        cancel: Some(|job| match job.shown_id() {
            // A shell would take the brackets for a pattern.
            id if id.contains('[') => format!("bkill \"{id}\""),
            id => format!("bkill {id}"),
        }),
        output: Some(|job| format!("`bpeek {}` shows it while the job runs", job.shown_id())),
        layouts: &[
            managed("lsf/{cluster}/job.{id:#}.{index:#}.#.#", ""),
            managed("lsf/{cluster}/job.{id:#}.#.#", ""),
        ],
        is_script_copy: Some(|path, has_id| has_id && path.contains("/.lsbatch/")),
        directive: Some(|need| match need {
            // Of the whole job, not of a node.
            Need::Memory { bytes_per_node, nodes: 1 } => Some(format!("#BSUB -M {}MB", bytes_per_node / MIB)),
            _ => None,
        }),
        waits_for_others: BUSY,
        ..named("lsf")
    },
    Manager {
        alias: Some("condor"),
        watchers: &["condor_starter", "condor_procd"],
        user: Some("condor"),
        cancel: Some(|job| format!("condor_rm {}", job.shown_id())),
        output: Some(|job| format!("`condor_tail {}` shows it while the job runs", job.shown_id())),
        layouts: &[
            managed("htcondor*/condor*{id:slot*}", ""),
            managed("(system.slice/)condor.service/*{id:slot*}", ""),
        ],
        ..named("htcondor")
    },
    Manager {
        is_container: true,
        watchers: &["pause"],
        cancel: Some(|job| format!("kubectl delete pod {}", job.name)),
        output: Some(|job| format!("`kubectl logs {}` shows it", job.name)),
        layouts: &[
            plain("kubepods/pod{id}", "{step}"),
            plain("kubepods/{qos}/pod{id}", "{step}"),
            plain("kubepods.slice/kubepods-pod{id}.slice", "*{step:^}*"),
            plain("kubepods.slice/kubepods-{qos}.slice/kubepods-*-pod{id}.slice", "*{step:^}*"),
        ],
        ..named("kubernetes")
    },
    Manager {
        is_container: true,
        watchers: RUNTIMES,
        cancel: Some(|job| format!("docker stop {}", job.shown_id())),
        output: Some(|job| format!("`docker logs {}` shows it", job.shown_id())),
        layouts: &[plain("docker/{id:^}", ""), plain("(system.slice/)docker-{id:^}.scope", "")],
        ..named("docker")
    },
    Manager {
        is_container: true,
        watchers: RUNTIMES,
        cancel: Some(|job| format!("podman stop {}", job.shown_id())),
        output: Some(|job| format!("`podman logs {}` shows it", job.shown_id())),
        layouts: &[
            plain("(machine.slice/)libpod-{id:^}.scope", ""),
            plain("(machine.slice/machine-libpod_pod_*.slice/)libpod-{id:^}.scope", ""),
            plain("(user.slice/user-{uid:#}.slice/user@#.service/user.slice/)libpod-{id:^}.scope", ""),
            plain("libpod_parent/libpod-{id:^}", ""),
        ],
        ..named("podman")
    },
    Manager {
        cancel: Some(|job| format!("systemctl stop {}", job.shown_id())),
        output: Some(|job| format!("`journalctl -u {}` shows it", job.shown_id())),
        layouts: &[
            known("user.slice/user-{uid:#}.slice/session-{id}.scope"),
            known("user@{uid:#}.service/app.slice/{id}"),
            known("system.slice/{id}.service"),
        ],
        ..named("systemd")
    },
    named("session"),
    named("group"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_job_that_waits_for_what_others_have_waits_for_others() {
        for (manager, reason, waits) in [
            ("slurm", "Resources", true),
            ("slurm", "Priority", true),
            ("slurm", "JobHeldUser", false),
            ("pbs", "Not Running: Insufficient amount of resource: ncpus", true),
            ("local", "Resources", false),
        ] {
            assert_eq!(waits_for_others(manager, reason), waits, "{manager} {reason}");
        }
    }

    #[test]
    fn no_two_managers_share_a_name() {
        let mut names: Vec<&str> =
            MANAGERS.iter().flat_map(|manager| std::iter::once(manager.name).chain(manager.alias)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(!names.contains(&crate::job::LOCAL));
    }

    #[test]
    fn every_scheduler_has_a_row_in_the_order_of_the_rows() {
        let rows: Vec<&str> = Scheduler::ALL.iter().map(|scheduler| scheduler.row().0.name).collect();
        let queried: Vec<&str> =
            MANAGERS.iter().filter(|manager| manager.query.is_some()).map(|manager| manager.name).collect();
        assert_eq!(rows, queried);
        assert!(rows.iter().all(|name| spans_nodes(name)));
        assert!(!spans_nodes("docker") && !spans_nodes("local") && !spans_nodes("mine"));
    }

    #[test]
    fn a_manager_is_found_by_each_of_its_names() {
        for name in ["condor", "htcondor"] {
            assert_eq!(find(name).map(|manager| manager.name), Some("htcondor"));
        }
        assert!(find("Slurm").is_none() && find("").is_none());
    }

    #[test]
    fn needs_are_written_as_each_scheduler_reads_them() {
        let written = |scheduler: Scheduler, need| scheduler.row().0.directive.and_then(|write| write(need));
        let memory = |bytes_per_node, nodes| Need::Memory { bytes_per_node, nodes };
        let of_slurm = |need| written(Scheduler::Slurm, need).unwrap();
        assert_eq!(of_slurm(memory(6 * GIB, 2)), "#SBATCH --mem=6G");
        assert_eq!(of_slurm(memory(GIB + 256 * MIB, 1)), "#SBATCH --mem=1280M");
        assert_eq!(of_slurm(Need::TimeMinutes(125)), "#SBATCH --time=2:05:00");
        assert_eq!(of_slurm(Need::Cpus(6)), "#SBATCH --cpus-per-task=6");
        assert_eq!(of_slurm(Need::Gpus(1)), "#SBATCH --gres=gpu:1");
        assert_eq!(written(Scheduler::Pbs, memory(GIB, 1)).unwrap(), "#PBS -l mem=1024mb");
        assert_eq!(written(Scheduler::Lsf, memory(GIB, 1)).unwrap(), "#BSUB -M 1024MB");
        for scheduler in [Scheduler::Pbs, Scheduler::Lsf, Scheduler::Oar] {
            assert_eq!(written(scheduler, memory(GIB, 2)), None, "of the whole job");
        }
    }
}
