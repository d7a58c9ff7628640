//! In which boot each node is, and which parts of jobs ran in an earlier one.

use std::collections::{HashMap, HashSet};

use met_core::job::Record;
use met_store::StoreError;
use met_store::cluster::{Log, NodeJobKey};

use super::senders::is_other_boot;

pub(super) struct Boots {
    /// By the last batch of each node.
    now: HashMap<String, String>,
    /// Nodes whose jobs are to be compared with it.
    changed: HashSet<String>,
}

impl Boots {
    /// An earlier server may have had no time to compare.
    pub fn open(log: &Log) -> Result<Boots, StoreError> {
        Ok(Boots {
            now: log.boots()?.into_iter().collect(),
            changed: log.nodes_with_jobs(false)?.into_iter().collect(),
        })
    }

    /// Notes the boot that a node sends; true if it is not the one before.
    pub fn note_boot(&mut self, node: &str, boot_id: &str) -> bool {
        if self.now.get(node).is_some_and(|known| known == boot_id) {
            return false;
        }
        self.now.insert(node.to_owned(), boot_id.to_owned());
        self.changed.insert(node.to_owned());
        true
    }

    pub fn changed(&self) -> Vec<String> {
        self.changed.iter().cloned().collect()
    }

    pub fn settled(&mut self, node: &str) {
        self.changed.remove(node);
    }

    /// Whether the boot that ran a part is over. An unknown boot proves nothing.
    pub fn is_over(&self, node: &str, record: &Record) -> bool {
        let ran_in = record.local.as_ref().map(|local| local.boot_id.as_str());
        matches!((self.now.get(node), ran_in), (Some(now), Some(ran_in)) if is_other_boot(now, ran_in))
    }

    /// The parts of a node of which this is so, of those that live or of those that were given up.
    pub fn over(&self, log: &Log, node: &str, given_up: bool) -> Result<Vec<NodeJobKey>, StoreError> {
        match self.now.get(node).filter(|now| is_other_boot(now, "another")) {
            Some(now) => log.unfinished_of_other_boots(node, now, given_up),
            None => Ok(Vec::new()),
        }
    }

    /// The others of these, which were given up.
    pub fn without_over(
        &self,
        log: &Log,
        node: &str,
        mut jobs: Vec<NodeJobKey>,
    ) -> Result<Vec<NodeJobKey>, StoreError> {
        let over = self.over(log, node, true)?;
        jobs.retain(|key| !over.contains(key));
        Ok(jobs)
    }
}
