//! Conditions on the jobs of a list that need more than who, when and how it ended.

use serde::{Deserialize, Serialize};

use crate::bounds::COMMAND_BYTES_MAX;
use crate::job::Record;
use crate::job_table::ENERGY;
use crate::listing::{MILLION, duration_ns, efficiency_millionths};

/// The command line as it is searched: its words joined by spaces, as much of them as a record usually holds.
pub fn searched_command(record: &Record) -> String {
    let mut command = record.command.join(" ");
    command.truncate(command.floor_char_boundary(COMMAND_BYTES_MAX));
    command
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
        let at_least =
            |least: Option<i64>, value: Option<i64>| least.is_none_or(|least| value >= Some(least));
        let partition = record.scheduling.partition.as_ref();
        self.command.as_ref().is_none_or(|part| searched_command(record).contains(part))
            && self.partition.as_ref().is_none_or(|wanted| partition == Some(wanted))
            && self.node.as_ref().is_none_or(|node| record.nodes.contains(node))
            && self.tag.as_ref().is_none_or(|tag| record.annotation.tags.contains(tag))
            && at_least(self.min_duration_ns, duration_ns(record, now_ns))
            && at_least(self.min_energy_uj, record.totals.get(ENERGY))
            && self.max_efficiency_millionths().is_none_or(|most| {
                efficiency_millionths(record, now_ns).is_some_and(|efficiency| efficiency <= most)
            })
    }
}
