//! What the environment of a job's process says of the job. Its user wrote it: it is believed for the
//! fields of this very job, and never for whose job it is.

use std::path::PathBuf;

use super::{Identity, Question};
use crate::scheduler;

/// An environment is as long as its user likes; the rest is not read.
pub const ENVIRON_BYTES_MAX: usize = 256 << 10;
/// A longer value is cut.
pub const VALUE_BYTES_MAX: usize = 4 << 10;

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

/// The list of the job's nodes, where its manager keeps one.
pub fn node_file(variables: Variables<'_>, question: &Question<'_>) -> Option<PathBuf> {
    scheduler::named(question.manager)?.node_file?(variables, question)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_without_its_end_is_not_believed() {
        let variables = Variables::of(b"SLURM_JOB_ID=12\0SLURM_JOB_NAME=half");
        assert_eq!(variables.text("SLURM_JOB_ID").as_deref(), Some("12"));
        assert_eq!(variables.text("SLURM_JOB_NAME"), None);
    }
}
