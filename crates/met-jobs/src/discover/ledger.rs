//! Who used the CPU time that a directory of cgroups counted, also those that are gone.
//!
//! A cgroup keeps what its removed children used. So of every directory that is followed
//! `counter = base + Σ finals of removed children + Σ living children`, where the base is what was used before
//! it was followed and by processes in the directory itself. A removed child's final figure is what is missing
//! in that sum. It follows that the children add up to their parent.

use std::collections::{BTreeMap, HashMap, HashSet};

use met_core::apportion::apportion;

/// How good a final figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// It was the only one that can have used what was missing.
    Exact,
    /// Several went at once, or others may have had a part in it.
    Shared,
    /// Nothing that counted it is left: as last read.
    AtLeast,
}

/// A cgroup that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    pub id: u32,
    pub cpu_ns: u64,
    pub certainty: Certainty,
}

/// What came of reading the counter of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    At(u64),
    /// The cgroup is there no more.
    Gone,
    /// Unknown: without memory or descriptors nothing can be read; all are assumed to be there.
    Failed,
}

/// Reads the counter of a cgroup.
pub type Read<'a> = dyn FnMut(u32) -> Reading + 'a;

/// A directory and its children as they were read together.
struct Look {
    counter_ns: u64,
    living_ns: u128,
    gone: Vec<u32>,
    /// Some of the children are as they were last read.
    is_partial: bool,
}

#[derive(Default)]
pub struct CpuLedger {
    accounts: HashMap<u32, Account>,
}

struct Account {
    parent: Option<u32>,
    children: HashSet<u32>,
    last_ns: u64,
    read_at_ns: i64,
    /// It was empty when last read: it will not grow any more.
    deserted: bool,
    /// Processes of its own make it grow beside its children.
    inhabited: bool,
    base_ns: i128,
    finals_ns: u128,
    /// Nothing but a directory of others: what it used is what these used.
    hollow: bool,
}

/// The children of one directory that are to be closed together.
struct Group {
    ids: Vec<u32>,
    /// What the directory counted in all, and how sure that is.
    counter_ns: u64,
    certainty: Certainty,
}

impl CpuLedger {
    /// Follows a cgroup that was made just now: its counter began at zero.
    pub fn begin_new(&mut self, id: u32, parent: Option<u32>, now_ns: i64) {
        self.begin(id, parent, 0, now_ns);
    }

    /// Follows a cgroup that has been there for a while; its parent was followed just before.
    pub fn begin_existing(&mut self, id: u32, parent: Option<u32>, counter_ns: u64, now_ns: i64) {
        self.begin(id, parent, counter_ns, now_ns);
        if let Some(parent) = parent.and_then(|parent| self.accounts.get_mut(&parent)) {
            parent.base_ns -= i128::from(counter_ns);
        }
        if let Some(account) = self.accounts.get_mut(&id) {
            account.base_ns = i128::from(counter_ns);
        }
    }

    fn begin(&mut self, id: u32, parent: Option<u32>, last_ns: u64, read_at_ns: i64) {
        let parent = parent.filter(|parent| self.accounts.contains_key(parent));
        if let Some(parent) = parent.and_then(|parent| self.accounts.get_mut(&parent)) {
            parent.children.insert(id);
            parent.deserted = false;
        }
        let account = Account {
            parent,
            children: HashSet::new(),
            last_ns,
            read_at_ns,
            deserted: false,
            inhabited: false,
            base_ns: 0,
            finals_ns: 0,
            hollow: false,
        };
        self.accounts.insert(id, account);
    }

    /// Says that a cgroup has nothing in it but others. Where its children were given too much or too little,
    /// that is made good by later ones of its parent.
    pub fn set_hollow(&mut self, id: u32) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.hollow = true;
        }
    }

    pub fn follows(&self, id: u32) -> bool {
        self.accounts.contains_key(&id)
    }

    pub fn last_ns(&self, id: u32) -> Option<u64> {
        self.accounts.get(&id).map(|account| account.last_ns)
    }

    /// Whether a cgroup with children has processes of its own.
    pub fn set_inhabited(&mut self, id: u32, inhabited: bool) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.inhabited = inhabited;
        }
    }

    /// Records a reading, and whether a process was left to make it grow.
    pub fn note(&mut self, id: u32, counter_ns: u64, deserted: bool, now_ns: i64) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.last_ns = account.last_ns.max(counter_ns);
            account.read_at_ns = now_ns;
            account.deserted = deserted;
        }
    }

    /// Charges what no child explains to the directory itself. Call it when no child vanished unnoticed: at the
    /// beginning, and when its own processes let it grow. Returns the growth of a directory without processes of
    /// its own: unseen children used it.
    pub fn rebase(&mut self, id: u32, read: &mut Read<'_>, now_ns: i64) -> u64 {
        let Some(account) = self.accounts.get(&id) else { return 0 };
        let children: Vec<u32> = account.children.iter().copied().collect();
        let Some(look) = self.look(id, &children, read, now_ns) else { return 0 };
        let Look { counter_ns, living_ns, gone, is_partial } = look;
        let is_whole = gone.is_empty() && !is_partial;
        let Some(account) = self.accounts.get_mut(&id).filter(|_| is_whole) else { return 0 };
        let before_ns = account.base_ns;
        account.base_ns = i128::from(counter_ns) - account.finals_ns as i128 - living_ns as i128;
        match account.hollow && !account.inhabited {
            true => u64::try_from(account.base_ns - before_ns).unwrap_or(0),
            false => 0,
        }
    }

    pub fn has_own_processes(&self, id: u32) -> bool {
        self.accounts.get(&id).is_some_and(|account| account.inhabited)
    }

    /// Forgets a cgroup and those below it without a word.
    pub fn forget(&mut self, id: u32) {
        let Some(account) = self.accounts.remove(&id) else { return };
        if let Some(parent) = account.parent.and_then(|parent| self.accounts.get_mut(&parent)) {
            parent.children.remove(&id);
        }
        for child in account.children {
            self.forget(child);
        }
    }

    /// Closes cgroups that are gone, with all below them. Others that turn out to be gone, too, are closed with
    /// them. The outer ones come first.
    pub fn close(&mut self, removed: &[u32], read: &mut Read<'_>, now_ns: i64) -> Vec<Closed> {
        let mut gone: HashSet<u32> = removed.iter().copied().filter(|id| self.follows(*id)).collect();
        for id in gone.clone() {
            self.climb(id, read, &mut gone);
        }
        let parent_of =
            |ledger: &CpuLedger, id: u32| ledger.accounts.get(&id).and_then(|account| account.parent);
        let mut groups: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
        for &id in &gone {
            let parent = parent_of(self, id);
            if parent.is_none_or(|parent| !gone.contains(&parent)) {
                groups.entry(parent).or_default().push(id);
            }
        }
        let mut closed = Vec::new();
        for (parent, mut ids) in groups {
            ids.sort_unstable();
            match parent {
                Some(parent) => self.close_below(parent, ids, read, now_ns, &mut closed),
                None => ids.into_iter().for_each(|id| self.close_unaccounted(id, now_ns, &mut closed)),
            }
        }
        closed
    }

    /// A directory goes with its last child: those above that are gone, too, are found by reading them.
    fn climb(&self, id: u32, read: &mut Read<'_>, gone: &mut HashSet<u32>) {
        let mut id = id;
        while let Some(parent) = self.accounts.get(&id).and_then(|account| account.parent) {
            if gone.contains(&parent) || read(parent) != Reading::Gone {
                return;
            }
            gone.insert(parent);
            id = parent;
        }
    }

    /// Closes children of a directory that is still there.
    fn close_below(
        &mut self,
        parent: u32,
        mut ids: Vec<u32>,
        read: &mut Read<'_>,
        now_ns: i64,
        closed: &mut Vec<Closed>,
    ) {
        let Some(account) = self.accounts.get(&parent) else { return };
        let living: Vec<u32> = account.children.iter().copied().filter(|id| !ids.contains(id)).collect();
        let certainty = if account.inhabited { Certainty::Shared } else { Certainty::Exact };
        match self.look(parent, &living, read, now_ns) {
            Some(Look { counter_ns, gone, is_partial, .. }) => {
                ids.extend(gone);
                // What one used that could not be read may be among what is missing.
                let certainty = if is_partial { certainty.max(Certainty::Shared) } else { certainty };
                self.settle(parent, Group { ids, counter_ns, certainty }, now_ns, closed);
            }
            // It went between the look from below and now, or cannot be read: what it had counted is the best
            // there is.
            None => {
                let counter_ns = self.last_ns(parent).unwrap_or(0);
                self.settle(parent, Group { ids, counter_ns, certainty: Certainty::AtLeast }, now_ns, closed);
            }
        }
    }

    fn close_unaccounted(&mut self, id: u32, now_ns: i64, closed: &mut Vec<Closed>) {
        let Some(account) = self.accounts.get(&id) else { return };
        let cpu_ns = account.last_ns;
        let certainty = if account.deserted { Certainty::Exact } else { Certainty::AtLeast };
        let ids = account.children.iter().copied().collect();
        closed.push(Closed { id, cpu_ns, certainty });
        self.settle(id, Group { ids, counter_ns: cpu_ns, certainty }, now_ns, closed);
        self.accounts.remove(&id);
    }

    /// Reads a directory and its living children: its counter, their sum, and those that are gone.
    ///
    /// Counters move meanwhile. The mean of two readings of the directory matches the middle of the time in which
    /// the children were read.
    fn look(&mut self, id: u32, children: &[u32], read: &mut Read<'_>, now_ns: i64) -> Option<Look> {
        let Reading::At(before_ns) = read(id) else { return None };
        let (mut living_ns, mut gone, mut is_partial) = (0u128, Vec::new(), false);
        for &child in children {
            let Some(account) = self.accounts.get_mut(&child) else { continue };
            match read(child) {
                Reading::At(counter_ns) if counter_ns >= account.last_ns => {
                    account.last_ns = counter_ns;
                    account.read_at_ns = now_ns;
                    living_ns += u128::from(counter_ns);
                }
                Reading::Failed => {
                    is_partial = true;
                    living_ns += u128::from(account.last_ns);
                }
                // A counter that restarted belongs to a new directory of the same name.
                Reading::At(_) | Reading::Gone => gone.push(child),
            }
        }
        let after_ns = match read(id) {
            Reading::At(after_ns) => after_ns.max(before_ns),
            Reading::Gone | Reading::Failed => before_ns,
        };
        let counter_ns = before_ns + (after_ns - before_ns) / 2;
        self.note(id, counter_ns, false, now_ns);
        Some(Look { counter_ns, living_ns, gone, is_partial })
    }

    /// Divides what a directory counted and its living children do not explain among those that are gone.
    fn settle(&mut self, parent: u32, group: Group, now_ns: i64, closed: &mut Vec<Closed>) {
        let Some(account) = self.accounts.get(&parent) else { return };
        let last_of = |id: &u32| self.accounts.get(id).map_or(0, |child| u128::from(child.last_ns));
        let living = account.children.iter().filter(|id| !group.ids.contains(id));
        let living_ns: u128 = living.map(last_of).sum();
        let last_ns: u128 = group.ids.iter().map(last_of).sum();
        let explained_ns = account.base_ns + account.finals_ns as i128 + living_ns as i128;
        let missing_ns = i128::from(group.counter_ns) - explained_ns;
        let mut weights: Vec<u64> = group.ids.iter().map(|id| self.weight(*id, now_ns)).collect();
        // Of one alone it is clear whose all of it is, whatever was seen of it.
        if let ([weight @ 0], false) = (&mut weights[..], account.inhabited) {
            *weight = 1;
        }
        let growing = weights.iter().filter(|&&weight| weight > 0).count();
        // A child used at least what was read. Readings are not of one instant: an excess is subtracted at the next
        // closing, so that the sum stays right.
        let extra_ns = if growing == 0 { 0 } else { (missing_ns - last_ns as i128).max(0) };
        let mut shares = Vec::new();
        apportion(u64::try_from(extra_ns).unwrap_or(u64::MAX), &weights, &mut shares);
        let mut given_ns: u128 = 0;
        for ((&id, share), weight) in group.ids.iter().zip(shares).zip(weights) {
            let Some(child) = self.accounts.get(&id) else { continue };
            let cpu_ns = child.last_ns.saturating_add(share);
            let alone = weight == 0 || growing == 1 || extra_ns == 0;
            let certainty = match weight {
                0 => Certainty::Exact,
                _ if alone => group.certainty,
                _ => group.certainty.max(Certainty::Shared),
            };
            let ids: Vec<u32> = child.children.iter().copied().collect();
            closed.push(Closed { id, cpu_ns, certainty });
            self.settle(id, Group { ids, counter_ns: cpu_ns, certainty }, now_ns, closed);
            let Some(child) = self.accounts.remove(&id) else { continue };
            let below_ns = u128::try_from(child.base_ns + child.finals_ns as i128).unwrap_or(0);
            let hollow = child.hollow && !child.inhabited && child.finals_ns > 0;
            given_ns += if hollow { below_ns } else { u128::from(cpu_ns) };
        }
        if let Some(account) = self.accounts.get_mut(&parent) {
            account.finals_ns += given_ns;
            account.children.retain(|child| !group.ids.contains(child));
        }
    }

    /// The longer ago it was read, the more it can have used since.
    fn weight(&self, id: u32, now_ns: i64) -> u64 {
        let Some(account) = self.accounts.get(&id) else { return 0 };
        if account.deserted { 0 } else { (now_ns - account.read_at_ns).max(1) as u64 }
    }

    #[cfg(test)]
    fn sum_of(&self, id: u32) -> i128 {
        let account = &self.accounts[&id];
        let living: i128 =
            account.children.iter().map(|child| i128::from(self.accounts[child].last_ns)).sum();
        account.base_ns + account.finals_ns as i128 + living
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Cgroups as the kernel counts them: what a removed one used stays in those above.
    #[derive(Default)]
    struct Kernel {
        counters: HashMap<u32, u64>,
        parents: HashMap<u32, u32>,
        alive: HashSet<u32>,
    }

    impl Kernel {
        fn make(&mut self, id: u32, parent: Option<u32>) {
            self.counters.insert(id, 0);
            self.parents.extend(parent.map(|parent| (id, parent)));
            self.alive.insert(id);
        }

        fn use_cpu(&mut self, id: u32, amount_ns: u64) {
            let mut at = Some(id);
            while let Some(id) = at {
                *self.counters.get_mut(&id).unwrap() += amount_ns;
                at = self.parents.get(&id).copied();
            }
        }

        fn read(&self, id: u32) -> Reading {
            if self.alive.contains(&id) { Reading::At(self.counters[&id]) } else { Reading::Gone }
        }

        fn below(&self, id: u32) -> Vec<u32> {
            let inside = |mut at: u32| {
                while at != id {
                    match self.parents.get(&at) {
                        Some(&parent) => at = parent,
                        None => return false,
                    }
                }
                true
            };
            self.alive.iter().copied().filter(|&at| inside(at)).collect()
        }
    }

    #[test]
    fn a_job_that_goes_alone_is_closed_exactly_with_the_directory_of_its_user() {
        let (mut kernel, mut ledger) = (Kernel::default(), CpuLedger::default());
        kernel.make(1, None);
        kernel.use_cpu(1, 500);
        ledger.begin_existing(1, None, 500, 0);
        for (id, parent) in [(2, 1), (3, 2), (4, 1), (5, 4)] {
            kernel.make(id, Some(parent));
            ledger.begin_new(id, Some(parent), 0);
        }
        kernel.use_cpu(3, 70);
        ledger.note(3, 70, false, 1);
        kernel.use_cpu(3, 7);
        kernel.use_cpu(5, 1000);
        for id in [2, 3] {
            kernel.alive.remove(&id);
        }
        let closed = ledger.close(&[3], &mut |id| kernel.read(id), 2);
        let exact = |id, cpu_ns| Closed { id, cpu_ns, certainty: Certainty::Exact };
        assert_eq!(closed, [exact(2, 77), exact(3, 77)]);
        assert_eq!(ledger.sum_of(1), 1577);
    }

    #[test]
    fn of_two_that_go_at_once_the_one_that_was_deserted_is_known() {
        let (mut kernel, mut ledger) = (Kernel::default(), CpuLedger::default());
        kernel.make(1, None);
        ledger.begin_existing(1, None, 0, 0);
        for id in [2, 3, 4, 5] {
            kernel.make(id, Some(1));
            ledger.begin_new(id, Some(1), 0);
            kernel.use_cpu(id, 100);
        }
        ledger.note(2, 100, true, 50);
        kernel.use_cpu(3, 11);
        kernel.alive.clear();
        kernel.alive.extend([1, 4, 5]);
        let closed = ledger.close(&[2, 3], &mut |id| kernel.read(id), 100);
        let certainties: Vec<_> = closed.iter().map(|closed| (closed.cpu_ns, closed.certainty)).collect();
        assert_eq!(certainties, [(100, Certainty::Exact), (111, Certainty::Exact)]);
        kernel.use_cpu(4, 10);
        kernel.alive.retain(|&id| id == 1);
        let closed = ledger.close(&[4], &mut |id| kernel.read(id), 200);
        assert_eq!(closed.len(), 2, "the other one is found to be gone, too");
        assert!(closed.iter().all(|closed| closed.certainty == Certainty::Shared));
        assert_eq!(closed.iter().map(|closed| closed.cpu_ns).sum::<u64>(), 210);
    }

    #[test]
    fn without_a_directory_that_remains_the_last_reading_is_a_lower_bound() {
        let mut ledger = CpuLedger::default();
        ledger.begin_existing(1, None, 10, 0);
        ledger.begin_existing(2, Some(1), 4, 0);
        ledger.note(1, 12, false, 1);
        let closed = ledger.close(&[1], &mut |_| Reading::Gone, 2);
        assert_eq!(closed[0], Closed { id: 1, cpu_ns: 12, certainty: Certainty::AtLeast });
        assert_eq!(closed[1], Closed { id: 2, cpu_ns: 6, certainty: Certainty::AtLeast });
        assert!(!ledger.follows(1) && !ledger.follows(2));
    }

    #[test]
    fn one_that_cannot_be_read_is_not_gone() {
        let (mut kernel, mut ledger) = (Kernel::default(), CpuLedger::default());
        kernel.make(1, None);
        ledger.begin_existing(1, None, 0, 0);
        for id in [2, 3] {
            kernel.make(id, Some(1));
            ledger.begin_new(id, Some(1), 0);
            kernel.use_cpu(id, 100);
            ledger.note(id, 100, false, 1);
        }
        kernel.alive.remove(&2);
        let without = |failed: u32| {
            let kernel = &kernel;
            move |id| if id == failed { Reading::Failed } else { kernel.read(id) }
        };
        assert_eq!(ledger.rebase(1, &mut without(3), 2), 0);
        assert_eq!(ledger.accounts[&1].base_ns, 0);
        let closed = ledger.close(&[2], &mut without(3), 2);
        assert_eq!(closed, [Closed { id: 2, cpu_ns: 100, certainty: Certainty::Shared }]);
        assert!(ledger.follows(1) && ledger.follows(3));

        kernel.alive.remove(&3);
        let closed = ledger.close(&[3], &mut |id| if id == 1 { Reading::Failed } else { kernel.read(id) }, 3);
        assert_eq!(closed, [Closed { id: 3, cpu_ns: 100, certainty: Certainty::AtLeast }]);
        assert!(ledger.follows(1), "its directory is still there");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Birth { parent: usize },
        Work { at: usize, amount_ns: u64 },
        Reading { at: usize },
        Death { at: Vec<usize> },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0usize..100).prop_map(|parent| Step::Birth { parent }),
            5 => (0usize..100, 0u64..1_000_000).prop_map(|(at, amount_ns)| Step::Work { at, amount_ns }),
            2 => (0usize..100).prop_map(|at| Step::Reading { at }),
            3 => prop::collection::vec(0usize..100, 1..4).prop_map(|at| Step::Death { at }),
        ];
        prop::collection::vec(step, 1..120)
    }

    /// Runs the steps; work is done in leaves that stay leaves, and `noise` more of it at every reading.
    fn play(steps: Vec<Step>, noise_ns: u64) -> Result<(), TestCaseError> {
        let mut kernel = Kernel::default();
        let mut ledger = CpuLedger::default();
        kernel.make(0, None);
        ledger.begin_existing(0, None, 0, 0);
        let (mut next, mut finals, mut top_finals) = (1u32, HashMap::new(), 0u64);
        let (mut tops, mut workers) = (HashSet::new(), HashSet::new());
        for (now_ns, step) in steps.into_iter().enumerate() {
            let now_ns = now_ns as i64 * 1000;
            let mut living: Vec<u32> = kernel.alive.iter().copied().collect();
            living.sort_unstable();
            let pick = |at: usize| living[at % living.len()];
            match step {
                Step::Birth { parent } if !workers.contains(&pick(parent)) => {
                    kernel.make(next, Some(pick(parent)));
                    ledger.begin_new(next, Some(pick(parent)), now_ns);
                    if pick(parent) == 0 {
                        tops.insert(next);
                    }
                    next += 1;
                }
                Step::Work { at, amount_ns } if kernel.below(pick(at)).len() == 1 && pick(at) != 0 => {
                    kernel.use_cpu(pick(at), amount_ns);
                    workers.insert(pick(at));
                }
                Step::Birth { .. } | Step::Work { .. } => {}
                Step::Reading { at } => ledger.note(pick(at), kernel.counters[&pick(at)], false, now_ns),
                Step::Death { at } => {
                    let victims: HashSet<u32> = at.into_iter().map(pick).filter(|&id| id != 0).collect();
                    let removed: Vec<u32> = victims.iter().flat_map(|&id| kernel.below(id)).collect();
                    kernel.alive.retain(|id| !removed.contains(id));
                    let worker = kernel.alive.iter().copied().filter(|id| workers.contains(id)).max();
                    let mut read = |id| {
                        if let Some(worker) = worker.filter(|_| noise_ns > 0) {
                            kernel.use_cpu(worker, noise_ns);
                        }
                        kernel.read(id)
                    };
                    for closed in ledger.close(&removed, &mut read, now_ns) {
                        prop_assert!(finals.insert(closed.id, closed.cpu_ns).is_none(), "closed twice");
                        top_finals += if tops.remove(&closed.id) { closed.cpu_ns } else { 0 };
                        if noise_ns == 0 && removed.len() == 1 {
                            prop_assert_eq!(closed.certainty, Certainty::Exact);
                            prop_assert_eq!(closed.cpu_ns, kernel.counters[&closed.id]);
                        }
                    }
                    prop_assert!(removed.iter().all(|id| finals.contains_key(id)));
                }
            }
            for &id in &kernel.alive {
                prop_assert!(ledger.follows(id));
            }
        }
        let mut read = |id| kernel.read(id);
        let all: Vec<u32> = ledger.accounts[&0].children.iter().copied().collect();
        let Look { counter_ns, living_ns, .. } = ledger.look(0, &all, &mut read, i64::MAX).unwrap();
        let own_ns = i128::from(counter_ns) - i128::from(top_finals) - living_ns as i128;
        if noise_ns == 0 {
            prop_assert_eq!(own_ns, 0, "the jobs add up to their ancestor");
            prop_assert_eq!(ledger.accounts[&0].base_ns, 0);
        }
        prop_assert_eq!(ledger.accounts[&0].finals_ns, u128::from(top_finals));
        Ok(())
    }

    proptest! {
        #[test]
        fn the_jobs_add_up_to_what_their_ancestor_counted(steps in steps()) {
            play(steps, 0)?;
        }

        #[test]
        fn work_during_the_readings_loses_nothing_and_closes_each_once(steps in steps(), noise_ns in 1u64..5000) {
            play(steps, noise_ns)?;
        }
    }
}
