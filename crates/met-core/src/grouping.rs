//! Jobs counted and summed by user, account, node or manager.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::job::{Record, Totals, named};
use crate::job_table::{CPU, EMISSIONS, ENERGY};

/// The jobs of one user in one account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    pub user: Option<String>,
    pub account: Option<String>,
    pub jobs: u64,
    /// Unix nanoseconds; `None` where no job has started yet.
    pub first_start_ns: Option<i64>,
    pub last_start_ns: Option<i64>,
}

/// A user with its accounts, or an account with its users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub name: String,
    pub jobs: u64,
    pub first_start_ns: Option<i64>,
    pub last_start_ns: Option<i64>,
    /// The accounts of a user, or the users of an account.
    pub of: BTreeSet<String>,
}

impl Group {
    fn add(&mut self, membership: &Membership, other: Option<&String>) {
        self.jobs += membership.jobs;
        self.first_start_ns = earlier(self.first_start_ns, membership.first_start_ns);
        self.last_start_ns = self.last_start_ns.max(membership.last_start_ns);
        self.of.extend(other.cloned());
    }
}

fn earlier(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    one.into_iter().chain(other).min()
}

/// The users, by name. Jobs of an unknown user belong to none.
pub fn users(memberships: &[Membership]) -> Vec<Group> {
    groups(memberships, |membership| (membership.user.as_ref(), membership.account.as_ref()))
}

/// The accounts, by name.
pub fn accounts(memberships: &[Membership]) -> Vec<Group> {
    groups(memberships, |membership| (membership.account.as_ref(), membership.user.as_ref()))
}

fn groups<'m>(
    memberships: &'m [Membership],
    names: impl Fn(&'m Membership) -> (Option<&'m String>, Option<&'m String>),
) -> Vec<Group> {
    let mut groups: BTreeMap<&String, Group> = BTreeMap::new();
    for membership in memberships {
        let (name, other) = names(membership);
        let Some(name) = name else { continue };
        let new = || Group { name: name.clone(), ..Group::default() };
        groups.entry(name).or_insert_with(new).add(membership, other);
    }
    groups.into_values().collect()
}

/// Who had jobs in which account.
pub fn memberships<'r>(records: impl IntoIterator<Item = &'r Record>) -> Vec<Membership> {
    let mut found: BTreeMap<(Option<&String>, Option<&String>), Membership> = BTreeMap::new();
    for record in records {
        let Record { user, account, start_ns, .. } = record;
        let one = found.entry((user.as_ref(), account.as_ref())).or_insert_with(|| Membership {
            user: user.clone(),
            account: account.clone(),
            ..Membership::default()
        });
        one.jobs += 1;
        one.first_start_ns = earlier(one.first_start_ns, *start_ns);
        one.last_start_ns = one.last_start_ns.max(*start_ns);
    }
    found.into_values().collect()
}

/// Those of the same user and account as one.
pub fn joined(memberships: Vec<Membership>) -> Vec<Membership> {
    let mut found: BTreeMap<(Option<String>, Option<String>), Membership> = BTreeMap::new();
    for one in memberships {
        let known = found.entry((one.user.clone(), one.account.clone())).or_default();
        *known = Membership {
            jobs: known.jobs + one.jobs,
            first_start_ns: earlier(known.first_start_ns, one.first_start_ns),
            last_start_ns: known.last_start_ns.max(one.last_start_ns),
            ..one
        };
    }
    found.into_values().collect()
}

named! {
    /// What jobs are summed by.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum SumBy {
        User = "user",
        Account = "account",
        Node = "node",
        Manager = "manager",
    }
}

/// By what, and when the jobs ended: from a time on and before another one, in unix nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumSpan {
    pub by: SumBy,
    pub from_ns: i64,
    pub to_ns: i64,
}

/// What jobs used that ended within a time, of one user, account, node or manager. A job counts with all that it used
/// in the time in which it ended; a job inside another one is left out, because the other one includes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// `None`: not known; by node also what a job of several nodes used without knowing where.
    pub name: Option<String>,
    pub jobs: u64,
    /// Of how many of them the energy is known. It is the sum of these alone.
    pub jobs_with_energy: u64,
    pub energy_uj: i64,
    pub jobs_with_emissions: u64,
    /// In micrograms of CO2 equivalent.
    pub emissions_ug: i64,
    pub jobs_with_cpu: u64,
    pub cpu_ns: i64,
}

impl Sum {
    pub fn add(&mut self, other: &Sum) {
        self.jobs += other.jobs;
        self.jobs_with_energy += other.jobs_with_energy;
        self.energy_uj = self.energy_uj.saturating_add(other.energy_uj);
        self.jobs_with_emissions += other.jobs_with_emissions;
        self.emissions_ug = self.emissions_ug.saturating_add(other.emissions_ug);
        self.jobs_with_cpu += other.jobs_with_cpu;
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
    }

    /// Of one job, or of its part on a node.
    fn of(totals: &Totals) -> Sum {
        let [energy, emissions, cpu] = [ENERGY, EMISSIONS, CPU].map(|column| totals.get(column));
        Sum {
            name: None,
            jobs: 1,
            jobs_with_energy: energy.is_some().into(),
            energy_uj: energy.unwrap_or(0),
            jobs_with_emissions: emissions.is_some().into(),
            emissions_ug: emissions.unwrap_or(0),
            jobs_with_cpu: cpu.is_some().into(),
            cpu_ns: cpu.unwrap_or(0),
        }
    }
}

/// What a job adds to the sums by node: all on its one node, or its parts on several.
pub fn on_nodes(record: &Record) -> Vec<(Option<String>, Sum)> {
    if let [node] = record.nodes.as_slice() {
        return vec![(Some(node.clone()), Sum::of(&record.totals))];
    }
    let parts = record.parts.iter().filter(|part| part.step.is_empty() && part.task.is_none());
    let shares: Vec<(Option<String>, Sum)> =
        parts.map(|part| (Some(part.node.clone()), Sum::of(&part.totals))).collect();
    if shares.is_empty() { vec![(None, Sum::of(&record.totals))] } else { shares }
}

/// The sums of jobs that ended from a time on and before another one, by name.
pub fn sums<'r>(records: impl IntoIterator<Item = &'r Record>, span: &SumSpan) -> Vec<Sum> {
    let SumSpan { by, from_ns, to_ns } = *span;
    let mut sums: BTreeMap<Option<String>, Sum> = BTreeMap::new();
    let counts = |record: &&Record| {
        let ended = record.end_ns.filter(|_| !record.state.is_live());
        ended.is_some_and(|end_ns| (from_ns..to_ns).contains(&end_ns)) && record.inside.is_none()
    };
    for record in records.into_iter().filter(counts) {
        let shares = match by {
            SumBy::Node => on_nodes(record),
            SumBy::User => vec![(record.user.clone(), Sum::of(&record.totals))],
            SumBy::Account => vec![(record.account.clone(), Sum::of(&record.totals))],
            SumBy::Manager => vec![(Some(record.key.manager.clone()), Sum::of(&record.totals))],
        };
        for (name, share) in shares {
            sums.entry(name).or_default().add(&share);
        }
    }
    sums.into_iter().map(|(name, sum)| Sum { name, ..sum }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Part, QualityKind};

    fn job(id: u32, user: &str, account: Option<&str>, start_ns: i64) -> Record {
        let (user, account) = (Some(user.to_owned()), account.map(str::to_owned));
        let end_ns = Some(start_ns + 10);
        Record { user, account, start_ns: Some(start_ns), end_ns, ..crate::sample::full(id, "train") }
    }

    #[test]
    fn a_user_has_its_accounts_and_an_account_its_users() {
        let jobs = [
            job(1, "ada", Some("physics"), 5),
            job(2, "ada", Some("maths"), 3),
            job(3, "eve", Some("maths"), 9),
            job(4, "eve", None, 7),
        ];
        let known = memberships(&jobs);
        let words = |members: Vec<Group>| -> Vec<String> {
            let word = |one: &Group| {
                let of = one.of.iter().cloned().collect::<Vec<_>>().join(",");
                format!(
                    "{} {} {:?}..{:?} {of}",
                    one.name,
                    one.jobs,
                    one.first_start_ns.unwrap(),
                    one.last_start_ns.unwrap()
                )
            };
            members.iter().map(word).collect()
        };
        assert_eq!(words(users(&known)), ["ada 2 3..5 maths,physics", "eve 2 7..9 maths"]);
        assert_eq!(words(accounts(&known)), ["maths 2 3..9 ada,eve", "physics 1 5..5 ada"]);
    }

    #[test]
    fn a_job_counts_where_it_ended_and_not_twice() {
        let energy = |record: &mut Record, energy_uj: i64| {
            record.totals.set(ENERGY, energy_uj, QualityKind::Measured, "rapl");
        };
        let mut jobs = [
            job(1, "ada", None, 0),
            job(2, "ada", None, 10),
            job(3, "eve", None, 10),
            job(4, "eve", None, 5),
        ];
        jobs.iter_mut().zip([1, 20, 300, 4000]).for_each(|(job, amount)| energy(job, amount));
        jobs[3].inside = Some("slurm:1".to_owned());
        let shown = |by, from_ns, to_ns| -> Vec<(Option<String>, u64, i64)> {
            sums(&jobs, &SumSpan { by, from_ns, to_ns })
                .into_iter()
                .map(|sum| (sum.name, sum.jobs, sum.energy_uj))
                .collect()
        };
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(shown(SumBy::User, 0, 100), [(name("ada"), 2, 21), (name("eve"), 1, 300)]);
        assert_eq!(shown(SumBy::User, 11, 20), []);
        assert_eq!(shown(SumBy::Manager, 10, 11), [(name("local"), 1, 1)]);
        assert_eq!(shown(SumBy::Account, 20, 21), [(None, 2, 320)]);
    }

    #[test]
    fn a_job_of_several_nodes_is_divided_by_its_parts() {
        let mut record = job(1, "ada", None, 0);
        record.nodes = vec!["n1".to_owned(), "n2".to_owned()];
        record.totals = Totals::default();
        let by_node = SumSpan { by: SumBy::Node, from_ns: 0, to_ns: 100 };
        assert_eq!(sums([&record], &by_node)[0].name, None, "where it used what is unknown");
        for (node, amount) in [("n1", 7), ("n2", 5)] {
            let mut part = Part { node: node.to_owned(), ..Part::default() };
            part.totals.set(ENERGY, amount, QualityKind::Measured, "rapl");
            record.parts.push(part);
        }
        let by_node = sums([&record], &by_node);
        let shown: Vec<_> =
            by_node.iter().map(|sum| (sum.name.as_deref(), sum.jobs, sum.energy_uj)).collect();
        assert_eq!(shown, [(Some("n1"), 1, 7), (Some("n2"), 1, 5)]);
    }
}
