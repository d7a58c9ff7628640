//! Conditions on the jobs of a list that need more than who, when and how it ended.

use serde::{Deserialize, Serialize};

use crate::bounds::COMMAND_BYTES_MAX;
use crate::job::Record;
use crate::job_table::ENERGY;
use crate::listing::{Listed, MILLION, duration_ns, efficiency_millionths};
use crate::text::prefix;

/// The command line as it is searched: its words joined by spaces, as much of them as a record usually holds.
pub fn searched_command(record: &Record) -> String {
    prefix(&record.command.join(" "), COMMAND_BYTES_MAX).to_owned()
}

/// All of these must hold. A job of which the figure is unknown passes no condition on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Is somewhere in the command line ([`searched_command`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// One of its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// One of its tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Of a running job: until now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_duration_ns: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_energy_uj: Option<i64>,
    /// CPU time used of the CPU time given: 1.0 is all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_efficiency: Option<f64>,
}

/// Jobs on any of some nodes that run, or ended after a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnNodes {
    pub nodes: Vec<String>,
    pub since_ns: i64,
}

impl OnNodes {
    pub fn accept(&self, record: &Record) -> bool {
        record.end_ns.is_none_or(|end_ns| end_ns > self.since_ns)
            && self.nodes.iter().any(|node| record.nodes.contains(node))
    }
}

impl Conditions {
    pub fn is_empty(&self) -> bool {
        *self == Conditions::default()
    }

    /// Whether they depend on figures that grow while a job runs.
    pub fn need_figures(&self) -> bool {
        self.min_energy_uj.is_some() || self.max_efficiency.is_some()
    }

    /// These without those that depend on such figures.
    pub fn without_figures(&self) -> Conditions {
        Conditions { min_energy_uj: None, max_efficiency: None, ..self.clone() }
    }

    pub fn max_efficiency_millionths(&self) -> Option<i64> {
        self.max_efficiency.map(|ratio| (ratio * MILLION as f64).round() as i64)
    }

    /// Whether a job fulfils them, which has run until `now_ns` if it runs.
    pub fn accept(&self, record: &Record, now_ns: i64) -> bool {
        self.accept_record(record) && self.accept_listed(record, now_ns)
    }

    /// Whether some of them need more than what is [`Listed`].
    pub fn need_record(&self) -> bool {
        self.command.is_some() || self.node.is_some() || self.tag.is_some()
    }

    /// Whether a job fulfils these.
    pub fn accept_record(&self, record: &Record) -> bool {
        self.command.as_ref().is_none_or(|part| searched_command(record).contains(part))
            && self.node.as_ref().is_none_or(|node| record.nodes.contains(node))
            && self.tag.as_ref().is_none_or(|tag| record.annotation.tags.contains(tag))
    }

    /// Whether a job fulfils the others.
    pub fn accept_listed(&self, job: &impl Listed, now_ns: i64) -> bool {
        let at_least = |least: Option<i64>, value: &dyn Fn() -> Option<i64>| {
            least.is_none_or(|least| value() >= Some(least))
        };
        self.partition.as_ref().is_none_or(|wanted| job.partition() == Some(wanted))
            && at_least(self.min_duration_ns, &|| duration_ns(job, now_ns))
            && at_least(self.min_energy_uj, &|| job.total(ENERGY))
            && self.max_efficiency_millionths().is_none_or(|most| {
                efficiency_millionths(job, now_ns).is_some_and(|efficiency| efficiency <= most)
            })
    }
}
