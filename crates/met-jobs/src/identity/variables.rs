//! What the environment of a job's process says of the job. Its user wrote it: it is believed for the
//! fields of this very job, and never for whose job it is.

use std::path::PathBuf;

use met_core::hostlist::{self, NODES_MAX};
use met_core::job::Resources;

use super::{Identity, Question};
use crate::scheduler;

/// An environment is as long as its user likes; the rest is not read.
pub const ENVIRON_BYTES_MAX: usize = 256 << 10;
/// A longer value is cut.
pub const VALUE_BYTES_MAX: usize = 4 << 10;
const SECOND_NS: i64 = 1_000_000_000;

/// `NAME=value` entries, each ended by a zero byte.
#[derive(Clone, Copy, Debug)]
pub struct Variables<'a> {
    environ: &'a [u8],
}

impl<'a> Variables<'a> {
    pub fn of(environ: &'a [u8]) -> Variables<'a> {
        // What was cut at the limit may be half a value: only entries with their end count.
        let end = environ.iter().rposition(|&byte| byte == 0).unwrap_or(0);
        Variables { environ: &environ[..end] }
    }

    fn raw(self, name: &str) -> Option<&'a [u8]> {
        self.environ.split(|&byte| byte == 0).find_map(|entry| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            (!value.is_empty()).then_some(value)
        })
    }

    pub fn text(self, name: &str) -> Option<String> {
        self.raw(name).map(super::printable)
    }

    /// Digits and nothing else.
    pub(crate) fn digits(self, name: &str) -> Option<String> {
        let value =
            self.raw(name).filter(|value| value.len() <= 20 && value.iter().all(u8::is_ascii_digit))?;
        Some(super::printable(value))
    }

    pub(crate) fn number(self, name: &str) -> Option<i64> {
        self.digits(name)?.parse().ok()
    }

    pub(crate) fn positive(self, name: &str) -> Option<i64> {
        self.number(name).filter(|&number| number > 0)
    }
}

/// The number of the job whose environment this is, where it is the asked one's: a process that came from
/// elsewhere has an environment that is about another job.
pub fn job_id(variables: Variables<'_>, question: &Question<'_>) -> Option<String> {
    match scheduler::named(question.manager) {
        Some(kind) => (kind.job_id)(variables, question.id),
        // Their environments carry no number to compare.
        None => Some(question.id.to_owned()),
    }
}

pub(crate) fn slurm_id(variables: Variables<'_>, asked: &str) -> Option<String> {
    let found = variables.digits("SLURM_JOB_ID").or_else(|| variables.digits("SLURM_JOBID"))?;
    (is_sluid(asked) || found == asked).then_some(found)
}

pub(crate) fn oar_id(variables: Variables<'_>, asked: &str) -> Option<String> {
    variables.digits("OAR_JOB_ID").filter(|found| found == asked)
}

pub(crate) fn pbs_id(variables: Variables<'_>, asked: &str) -> Option<String> {
    let stem = |id: &str| id.split('.').next().unwrap_or_default().to_owned();
    variables.text("PBS_JOBID").filter(|found| stem(found) == stem(asked))
}

pub(crate) fn lsf_id(variables: Variables<'_>, asked: &str) -> Option<String> {
    let number = asked.split(['[', '.', '_']).next().unwrap_or_default();
    variables.digits("LSB_JOBID").filter(|found| found == number)
}

/// `s` and thirteen characters of Crockford's base 32: what Slurm calls the directory of a job from 26.05 on.
pub fn is_sluid(id: &str) -> bool {
    let crockford =
        |byte: u8| byte.is_ascii_digit() || (byte.is_ascii_alphabetic() && !b"iloILOuU".contains(&byte));
    id.strip_prefix('s').is_some_and(|rest| rest.len() == 13 && rest.bytes().all(crockford))
}

/// Fills in what the variables of the job's manager say.
pub fn read(variables: Variables<'_>, question: &Question<'_>, identity: &mut Identity) {
    identity.scheduling.lineage = variables.text("MET_LINEAGE");
    match scheduler::named(question.manager) {
        Some(kind) => (kind.read)(variables, question, identity),
        None if question.is_container() => {
            // What a container calls its host is its pod's name, or the beginning of its own id.
            let name = variables.text("HOSTNAME");
            identity.name = name.filter(|name| !question.id.starts_with(name.as_str()));
        }
        None => {}
    }
}

pub(crate) fn slurm(variables: Variables<'_>, _: &Question<'_>, identity: &mut Identity) {
    identity.name = variables.text("SLURM_JOB_NAME");
    identity.account = variables.text("SLURM_JOB_ACCOUNT");
    identity.nodes = variables.text("SLURM_JOB_NODELIST").map(|list| nodes_in(&list)).unwrap_or_default();
    let scheduling = &mut identity.scheduling;
    scheduling.partition = variables.text("SLURM_JOB_PARTITION");
    scheduling.qos = variables.text("SLURM_JOB_QOS");
    scheduling.folder = variables.text("SLURM_SUBMIT_DIR");
    scheduling.restarts = variables.number("SLURM_RESTART_COUNT");
    if let (Some(array), Some(index)) =
        (variables.digits("SLURM_ARRAY_JOB_ID"), variables.number("SLURM_ARRAY_TASK_ID"))
    {
        scheduling.alias = Some(format!("{array}_{index}"));
        (scheduling.array_id, scheduling.array_index) = (Some(array), Some(index));
    }
    if let (Some(whole), Some(offset)) =
        (variables.digits("SLURM_HET_JOB_ID"), variables.number("SLURM_HET_JOB_OFFSET"))
    {
        scheduling.alias = Some(format!("{whole}+{offset}"));
        (scheduling.het_id, scheduling.het_offset) = (Some(whole), Some(offset));
    }
    let nodes = variables.positive("SLURM_JOB_NUM_NODES").or_else(|| variables.positive("SLURM_NNODES"));
    let here = variables.positive("SLURM_CPUS_ON_NODE").filter(|_| nodes == Some(1));
    let everywhere = variables.text("SLURM_JOB_CPUS_PER_NODE").and_then(|text| cpus_per_node(&text));
    identity.allocated.nodes = nodes;
    identity.allocated.cpus = everywhere.or(here);
    identity.requested = slurm_request(variables, nodes, identity.allocated.cpus);
}

fn slurm_request(variables: Variables<'_>, nodes: Option<i64>, cpus: Option<i64>) -> Resources {
    const MEGABYTE: i64 = 1 << 20;
    let tasks = variables.positive("SLURM_NTASKS");
    let per_task = variables.positive("SLURM_CPUS_PER_TASK");
    // 0 means all the memory of a node.
    let of_nodes = || variables.positive("SLURM_MEM_PER_NODE")?.checked_mul(nodes?)?.checked_mul(MEGABYTE);
    let of_cpus = || variables.positive("SLURM_MEM_PER_CPU")?.checked_mul(cpus?)?.checked_mul(MEGABYTE);
    let limit_seconds = || {
        let (start, end) =
            (variables.positive("SLURM_JOB_START_TIME")?, variables.positive("SLURM_JOB_END_TIME")?);
        end.checked_sub(start).filter(|&seconds| seconds > 0)
    };
    Resources {
        nodes: None,
        // A job that requests neither gets one task of one CPU, by a site default that is not visible here.
        cpus: tasks.or(per_task).and_then(|_| tasks.unwrap_or(1).checked_mul(per_task.unwrap_or(1))),
        // Without a number of tasks, CPUs per task are those of one.
        tasks: tasks
            .or_else(|| per_task.filter(|_| variables.text("SLURM_NTASKS_PER_NODE").is_none()).map(|_| 1)),
        memory_bytes: of_nodes().or_else(of_cpus),
        gpus: variables.text("SLURM_GPUS").and_then(|text| gpu_count(&text)),
        time_limit_ns: limit_seconds().and_then(|seconds| seconds.checked_mul(SECOND_NS)),
        ..Resources::default()
    }
}

pub(crate) fn oar(variables: Variables<'_>, question: &Question<'_>, identity: &mut Identity) {
    identity.name = variables.text("OAR_JOB_NAME");
    identity.account = variables.text("OAR_PROJECT_NAME");
    identity.scheduling.folder = variables.text("OAR_WORKING_DIRECTORY");
    let array = variables.digits("OAR_ARRAY_ID");
    let index = variables.number("OAR_ARRAY_INDEX");
    // Every job is an array of one; only from the second element on it shows.
    if array.as_deref() != Some(question.id) || index.is_some_and(|index| index > 1) {
        (identity.scheduling.array_id, identity.scheduling.array_index) = (array, index);
    }
    let seconds = variables.positive("OAR_JOB_WALLTIME_SECONDS");
    identity.requested.time_limit_ns = seconds.and_then(|seconds| seconds.checked_mul(SECOND_NS));
}

/// The list of an OAR job's nodes, where the manager itself keeps it: another path may lead anywhere.
pub fn node_file(variables: Variables<'_>, question: &Question<'_>) -> Option<PathBuf> {
    let id = question.id;
    let path = format!("/var/lib/oar/{id}");
    let is_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    let is_own = question.manager == "oar" && is_number && variables.text("OAR_NODE_FILE")? == path;
    is_own.then(|| PathBuf::from(path))
}

pub(crate) fn pbs(variables: Variables<'_>, _: &Question<'_>, identity: &mut Identity) {
    identity.name = variables.text("PBS_JOBNAME");
    identity.account = variables.text("PBS_ACCOUNT");
    identity.scheduling.partition = variables.text("PBS_QUEUE");
    identity.scheduling.folder = variables.text("PBS_O_WORKDIR");
    // `17[3].server`; its users say 17[3].
    if let Some(id) = variables.text("PBS_JOBID") {
        let stem = id.split('.').next().unwrap_or_default();
        if let Some((array, _)) = stem.split_once('[') {
            identity.scheduling.array_id = Some(array.to_owned());
            identity.scheduling.array_index = variables
                .number("PBS_ARRAY_INDEX")
                .or_else(|| stem.split_once('[')?.1.trim_end_matches(']').parse().ok());
        }
        identity.scheduling.alias = (stem != id).then(|| stem.to_owned());
    }
    identity.allocated.cpus = variables.positive("NCPUS");
}

pub(crate) fn lsf(variables: Variables<'_>, _: &Question<'_>, identity: &mut Identity) {
    identity.name = variables.text("LSB_JOBNAME");
    identity.account = variables.text("LSB_PROJECT_NAME");
    identity.scheduling.partition = variables.text("LSB_QUEUE");
    identity.scheduling.folder = variables.text("LS_SUBCWD");
    // 0 is no element of an array.
    if let (Some(array), Some(index)) = (variables.digits("LSB_JOBID"), variables.positive("LSB_JOBINDEX")) {
        identity.scheduling.alias = Some(format!("{array}[{index}]"));
        (identity.scheduling.array_id, identity.scheduling.array_index) = (Some(array), Some(index));
    }
    identity.allocated.cpus = variables.positive("LSB_DJOB_NUMPROC");
    // `hostA 4 hostB 2`: each node with its CPUs.
    if let Some(hosts) = variables.text("LSB_MCPU_HOSTS") {
        identity.nodes = hosts.split_whitespace().step_by(2).take(NODES_MAX).map(str::to_owned).collect();
        identity.allocated.nodes = i64::try_from(identity.nodes.len()).ok().filter(|&count| count > 0);
    }
}

/// `4(x2),3`: four on each of two nodes and three on another.
fn cpus_per_node(text: &str) -> Option<i64> {
    text.split(',')
        .try_fold(0_i64, |sum, group| {
            let (cpus, nodes) = match group.split_once("(x") {
                Some((cpus, nodes)) => (cpus, nodes.strip_suffix(')')?),
                None => (group, "1"),
            };
            let cpus: u32 = cpus.parse().ok()?;
            let nodes: u32 = nodes.parse().ok()?;
            sum.checked_add(i64::from(cpus).checked_mul(i64::from(nodes))?)
        })
        .filter(|&cpus| cpus > 0)
}

/// `2`, `a100:2`, or several of them.
fn gpu_count(text: &str) -> Option<i64> {
    text.split(',')
        .try_fold(0_i64, |sum, kind| {
            let count: u32 = kind.rsplit(':').next()?.parse().ok()?;
            sum.checked_add(i64::from(count))
        })
        .filter(|&gpus| gpus > 0)
}

/// The names in `n[01-03,7],login`; nothing where a user has written something else, or more than there are nodes.
fn nodes_in(list: &str) -> Vec<String> {
    let hosts = hostlist::hosts(list);
    let is_list = hosts.len() < NODES_MAX && !hosts.iter().any(|host| host.contains('['));
    if is_list { hosts } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_of_hosts_are_names() {
        assert_eq!(nodes_in("n[08-10,3],login"), ["n08", "n09", "n10", "n3", "login"]);
        for nothing in ["", "n[", "n[1-", "n[1-99999999999]", "[[[["] {
            assert!(nodes_in(nothing).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn counts_are_summed_over_nodes_and_kinds() {
        assert_eq!(cpus_per_node("4(x2),3"), Some(11));
        assert_eq!(cpus_per_node("72"), Some(72));
        assert_eq!((cpus_per_node(""), cpus_per_node("4(x")), (None, None));
        assert_eq!((gpu_count("2"), gpu_count("a100:2,v100:1"), gpu_count("all")), (Some(2), Some(3), None));
    }

    #[test]
    fn a_sluid_is_neither_a_number_nor_a_name() {
        assert!(is_sluid("s7XK2M9PQ4RTVW"));
        for other in ["1234", "system", "s7XK2M9PQ4RTV", "sUXK2M9PQ4RTVW", "slurmstepd.scope"] {
            assert!(!is_sluid(other), "{other}");
        }
    }

    #[test]
    fn an_entry_without_its_end_is_not_believed() {
        let variables = Variables::of(b"SLURM_JOB_ID=12\0SLURM_JOB_NAME=half");
        assert_eq!(variables.text("SLURM_JOB_ID").as_deref(), Some("12"));
        assert_eq!(variables.text("SLURM_JOB_NAME"), None);
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_lists(text in "[n0-9\\[\\],x()-]{0,40}") {
            prop_assert!(nodes_in(&text).len() < NODES_MAX);
            let _ = cpus_per_node(&text);
            let _ = gpu_count(&text);
        }
    }
}
