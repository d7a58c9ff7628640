//! The machines that reports and rules compare jobs with.

use met_core::job::Record;
use met_insight::report::Machine;

use crate::jobs::Answers;
use crate::protocol::{NodeStatus, Reply, Request};
use crate::setting::Setting;

/// By name, with their CPUs as far as they are known.
pub struct Machines(Vec<(String, Option<i64>)>);

impl Machines {
    /// Those of the server that a command queries, or this one.
    pub fn of(setting: &Setting) -> Machines {
        if let Ok(Some(mut server)) = setting.server_client() {
            let Ok(Reply::Nodes(nodes)) = server.call(&Request::Nodes) else { return Machines(Vec::new()) };
            return Machines::of_nodes(nodes);
        }
        let facts = setting.host.facts();
        Machines(vec![(facts.hostname.clone(), Some(i64::from(facts.cpu_count)))])
    }

    pub fn of_nodes(nodes: Vec<NodeStatus>) -> Machines {
        Machines(nodes.into_iter().map(|node| (node.name, node.cpus)).collect())
    }

    /// All nodes of a job together; of some of them it would be too few.
    pub fn of_job(&self, record: &Record) -> Machine {
        let cpus = |name: &String| self.0.iter().find(|(known, _)| known == name)?.1;
        let all = record.nodes.iter().map(cpus).sum::<Option<i64>>();
        Machine { cpus: all.and_then(|all| u32::try_from(all).ok()).filter(|&all| all > 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_cpus_of_its_nodes_if_all_are_known() {
        let node = |name: &str, cpus| NodeStatus { name: name.to_owned(), cpus, ..NodeStatus::default() };
        let nodes = Machines::of_nodes(vec![node("n1", Some(2)), node("n2", Some(4)), node("n3", None)]);
        let on = |names: &[&str]| {
            let nodes_of = names.iter().map(|&name| name.to_owned()).collect();
            nodes.of_job(&Record { nodes: nodes_of, ..met_core::sample::bare(1, "job") }).cpus
        };
        assert_eq!((on(&["n1"]), on(&["n1", "n2"])), (Some(2), Some(6)));
        assert_eq!((on(&["n1", "n3"]), on(&["gone"]), on(&[])), (None, None, None));
    }
}
