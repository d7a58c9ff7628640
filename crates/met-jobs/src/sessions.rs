//! Jobs where there is no batch system: processes that a login session, a unit of systemd or a process
//! group holds together.
//!
//! Ids are given again, so a group is known by its first process and the time at which that began, and a
//! process belongs to its group by its own start time. What never grew into a job counts for its user: one
//! aggregate job a day.

mod slice;
mod table;
mod user_work;

use std::collections::{BTreeMap, HashMap, HashSet};

use met_core::apportion::apportion;
use met_core::job::ProcessId;

pub use slice::slice_cpu_ns;
pub use table::{Look, Process, ProcessTable};
pub use user_work::{By, Rules, uid_min, unit_of};

/// A group or an aggregate; a number is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u64);

/// What holds a group together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Session(u32),
    ProcessGroup(u32),
    /// The path of its cgroup.
    Unit(String),
    /// What of a user's work never grew into a job, on one day since 1970.
    Rest {
        uid: u32,
        day: i64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub key: Key,
    pub uid: u32,
    /// The leader, or the first process seen if the leader had ended.
    pub first: Option<ProcessId>,
    /// Whether it is a job by now.
    pub is_job: bool,
    pub members: Vec<ProcessId>,
    /// Used so far by all its processes, those that have ended included.
    pub cpu_ns: u64,
    pub processes_seen: u64,
    /// Of an aggregate: how many groups ended before they became jobs.
    pub groups_seen: u64,
    /// Whether a part of its CPU time was split among several groups that ended together.
    pub attributed: bool,
}

impl Group {
    fn new(key: Key, uid: u32, first: Option<ProcessId>) -> Group {
        Group {
            key,
            uid,
            first,
            is_job: false,
            members: Vec::new(),
            cpu_ns: 0,
            processes_seen: 0,
            groups_seen: 0,
            attributed: false,
        }
    }

    /// Constant for one group while the machine runs: the first process distinguishes it from a later group with
    /// the same number. Unique together with the boot id.
    pub fn id(&self) -> String {
        let start_ticks = self.first.map_or(0, |first| first.start_ticks);
        match &self.key {
            Key::Rest { uid, day } => format!("rest-{uid}-{day}"),
            _ => format!("{}-{start_ticks}", self.short_id()),
        }
    }

    /// What people type.
    pub fn short_id(&self) -> String {
        match &self.key {
            Key::Session(number) | Key::ProcessGroup(number) => number.to_string(),
            Key::Unit(path) => path.rsplit('/').next().unwrap_or(path).to_owned(),
            Key::Rest { uid, .. } => format!("rest-{uid}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A group became a job, or an aggregate began; `group` lists its members.
    Began(GroupId),
    /// Another process of a job.
    Joined(GroupId, ProcessId),
    /// `take_ended` returns the group once more.
    Ended(GroupId),
}

/// When a look was made.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Since the boot.
    pub boot_ns: u64,
    /// Days since 1970, in the time zone in which days are counted.
    pub day: i64,
    pub ticks_per_second: u64,
}

/// CPU time that a process is expected to be given when it waits for children that have gone.
#[derive(Clone, Copy, Default)]
struct Debt {
    ns: u64,
    look: u64,
}

struct Seen {
    start_ticks: u64,
    parent_pid: u32,
    key: Option<Key>,
    group: Option<GroupId>,
    cpu_ns: u64,
    reaped_ns: u64,
    debt: Debt,
    /// It had a child that belongs to no group: its waited-for time may include anything.
    mixed: bool,
}

/// A group or none, and CPU time.
type Share = (Option<GroupId>, u64);

/// What a process is expected to be given for descendants that have gone.
#[derive(Default)]
struct Owed {
    children: Vec<Share>,
    /// The part of those whose own parent has gone as well.
    orphans_ns: u64,
}

/// A vanished child's debt is kept for this many looks: one look may see it gone before its parent waited for it.
const DEBT_LOOKS: u64 = 3;

/// Groups of processes, followed from look to look. It does no I/O.
pub struct Grouping {
    rules: Rules,
    seen: HashMap<u32, Seen>,
    groups: BTreeMap<GroupId, Group>,
    by_key: HashMap<Key, GroupId>,
    ended: Vec<(GroupId, Group)>,
    /// For each user with a slice: its counter and what was counted here, at the first look.
    wholes: HashMap<u32, (u64, u64)>,
    counted: HashMap<u32, u64>,
    next: u64,
    look: u64,
    parts: Vec<u64>,
}

impl Grouping {
    pub fn new(rules: Rules) -> Grouping {
        Grouping {
            rules,
            seen: HashMap::new(),
            groups: BTreeMap::new(),
            by_key: HashMap::new(),
            ended: Vec::new(),
            wholes: HashMap::new(),
            counted: HashMap::new(),
            next: 1,
            look: 0,
            parts: Vec::new(),
        }
    }

    /// Takes in the processes of one look, sorted by the time at which they began, parents before children.
    pub fn look(&mut self, now: Now, table: &[Process], changes: &mut Vec<Change>) {
        self.look += 1;
        let present: HashMap<u32, &Process> = table.iter().map(|process| (process.id.pid, process)).collect();
        self.count_reaped(&present);
        self.forget_gone(&present, now, changes);
        for process in table {
            self.place(process, &present, changes);
        }
        for process in table {
            if self.group_of(process.id).is_none()
                && let Some(parent) = self.seen.get_mut(&process.parent_pid)
            {
                parent.mixed = true;
            }
        }
        self.close_empty(now, changes);
        self.promote(now, changes);
        self.end_old_rests(now, changes);
    }

    /// Takes the exact CPU time of everything that a user runs, where the user's cgroup counts it. What no
    /// process accounts for was used by those too short to be seen.
    pub fn add_slice_total(&mut self, uid: u32, cpu_ns: u64, now: Now, changes: &mut Vec<Change>) {
        let counted = self.counted.get(&uid).copied().unwrap_or(0);
        let (whole_before, counted_before) = *self.wholes.entry(uid).or_insert((cpu_ns, counted));
        let used = cpu_ns.saturating_sub(whole_before);
        let missing = used.saturating_sub(counted - counted_before);
        if missing > 0 {
            let rest = self.rest_of(uid, now, changes);
            self.credit(rest, missing);
        }
    }

    /// Forgets what a user's cgroup had counted: others than the user's groups use it, and their use does not
    /// count.
    pub fn forget_whole(&mut self, uid: u32) {
        self.wholes.remove(&uid);
    }

    /// The users of the groups that are there.
    pub fn users(&self) -> HashSet<u32> {
        self.groups.values().map(|group| group.uid).collect()
    }

    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(&id)
    }

    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter().map(|(&id, group)| (id, group))
    }

    /// The jobs that ended since this was asked last.
    pub fn take_ended(&mut self) -> Vec<(GroupId, Group)> {
        std::mem::take(&mut self.ended)
    }

    /// The processes whose figures are needed: those in a group, and their waiting parents.
    pub fn wanted(&self) -> HashSet<u32> {
        let grouped = self.seen.iter().filter(|(_, seen)| seen.group.is_some());
        grouped.flat_map(|(&pid, seen)| [pid, seen.parent_pid]).collect()
    }

    pub fn group_of(&self, process: ProcessId) -> Option<GroupId> {
        self.seen.get(&process.pid).filter(|seen| seen.start_ticks == process.start_ticks)?.group
    }

    fn is_present(seen: &Seen, pid: u32, present: &HashMap<u32, &Process>) -> bool {
        present.get(&pid).is_some_and(|process| process.id.start_ticks == seen.start_ticks)
    }

    /// The use of ended processes after their last reading, and all use of processes never seen, is in the
    /// counters of the parents that waited for them.
    fn count_reaped(&mut self, present: &HashMap<u32, &Process>) {
        let mut owed = self.owed(present);
        let mut doubtful_ns: HashMap<u32, u64> = HashMap::new();
        // Children before their parents: what a process was not given may have gone to those above it.
        let mut order: Vec<&Process> = present.values().copied().collect();
        order.sort_unstable_by_key(|process| std::cmp::Reverse((process.id.start_ticks, process.id.pid)));
        for process in order {
            let pid = process.id.pid;
            let Owed { children, orphans_ns } = owed.remove(&pid).unwrap_or_default();
            let doubtful = doubtful_ns.remove(&pid).unwrap_or(0);
            let look = self.look;
            let Some(seen) =
                self.seen.get_mut(&pid).filter(|seen| seen.start_ticks == process.id.start_ticks)
            else {
                continue;
            };
            let growth = process.reaped_ns.saturating_sub(seen.reaped_ns);
            let old = if look - seen.debt.look <= DEBT_LOOKS { seen.debt.ns } else { 0 };
            let known = children.iter().fold(doubtful, |sum, (_, ns)| sum.saturating_add(*ns));
            let expected = old.saturating_add(known);
            let left = expected.saturating_sub(growth);
            let fresh = if known > 0 { look } else { seen.debt.look };
            seen.debt = if left > 0 { Debt { ns: left, look: fresh } } else { Debt::default() };
            let (group, known) = (seen.group, seen.group.is_some() || !seen.mixed);
            if known {
                self.pay(group, growth.saturating_sub(expected), &children);
            }
            let doubt = left.min(orphans_ns);
            let mut above = process.parent_pid;
            for _ in (0..present.len()).take_while(|_| doubt > 0) {
                let Some(parent) = present.get(&above) else { break };
                let sum = doubtful_ns.entry(above).or_default();
                *sum = sum.saturating_add(doubt);
                above = parent.parent_pid;
            }
        }
    }

    /// Charges unexplained time to the groups of the children that have gone, or, without any, to that of the
    /// parent.
    fn pay(&mut self, parent: Option<GroupId>, ns: u64, children: &[Share]) {
        match children {
            _ if ns == 0 => {}
            [] => self.credit_known(parent, ns, false),
            [(group, _)] => self.credit_known(*group, ns, false),
            several => {
                let weights: Vec<u64> = several.iter().map(|(_, ns)| ns.saturating_add(1)).collect();
                let mut parts = std::mem::take(&mut self.parts);
                apportion(ns, &weights, &mut parts);
                let split = several.iter().any(|(group, _)| *group != several[0].0);
                for ((group, _), &ns) in several.iter().zip(&parts) {
                    self.credit_known(*group, ns, split);
                }
                self.parts = parts;
            }
        }
    }

    fn credit_known(&mut self, group: Option<GroupId>, ns: u64, split: bool) {
        let Some(id) = group else { return };
        self.credit(id, ns);
        if let Some(group) = self.groups.get_mut(&id) {
            group.attributed |= split;
        }
    }

    /// What each living process will be credited for children that have gone and were counted already. A child
    /// whose parent is gone too was waited for by it, or by an ancestor: where this is unknown, too little is
    /// counted, never too much.
    fn owed(&self, present: &HashMap<u32, &Process>) -> HashMap<u32, Owed> {
        let mut owed: HashMap<u32, Owed> = HashMap::new();
        for (&pid, gone) in &self.seen {
            if Self::is_present(gone, pid, present) {
                continue;
            }
            let ns = gone.cpu_ns.saturating_add(gone.reaped_ns);
            let (mut child, mut orphan) = (gone, false);
            for _ in 0..self.seen.len() {
                let above = child.parent_pid;
                // A parent younger than its child is another process with the parent's pid.
                let parent = self.seen.get(&above).filter(|parent| parent.start_ticks <= child.start_ticks);
                let Some(parent) = parent else { break };
                if Self::is_present(parent, above, present) {
                    let heir = owed.entry(above).or_default();
                    heir.children.push((gone.group, ns));
                    heir.orphans_ns = heir.orphans_ns.saturating_add(if orphan { ns } else { 0 });
                    break;
                }
                (child, orphan) = (parent, true);
            }
        }
        owed
    }

    fn forget_gone(&mut self, present: &HashMap<u32, &Process>, now: Now, changes: &mut Vec<Change>) {
        let groups = &mut self.groups;
        self.seen.retain(|&pid, seen| {
            let stays = Self::is_present(seen, pid, present);
            if let Some(group) = seen.group.filter(|_| !stays).and_then(|id| groups.get_mut(&id)) {
                group.members.retain(|member| member.pid != pid);
            }
            stays
        });
        // Before new processes are placed: an empty group is not continued under its number.
        self.close_empty(now, changes);
    }

    /// Finds the group of a process, and counts what it used.
    fn place(&mut self, process: &Process, present: &HashMap<u32, &Process>, changes: &mut Vec<Change>) {
        let pid = process.id.pid;
        let key = self.rules.key(process);
        let before = self.seen.remove(&pid);
        let known_ns = before.as_ref().map_or(0, |seen| seen.cpu_ns);
        let growth = match before {
            Some(_) => process.cpu_ns.saturating_sub(known_ns),
            // What it has waited for was its group's, too.
            None => process.cpu_ns.saturating_add(process.reaped_ns),
        };
        let prior = before.as_ref().and_then(|seen| seen.group);
        // Once a member, always, unless it makes a session of its own or becomes another's job.
        let stays =
            prior.is_some() && before.as_ref().is_some_and(|seen| seen.key == key) && !process.claimed;
        let group = match (stays, &key) {
            (true, _) => prior,
            (false, Some(key)) if self.is_included(process, key, present) => {
                Some(self.join(process, key, present, changes))
            }
            _ => None,
        };
        if let Some(left) = prior.filter(|_| group != prior).and_then(|prior| self.groups.get_mut(&prior)) {
            left.members.retain(|member| member.pid != pid);
        }
        if let Some(group) = group {
            self.credit(group, growth);
        }
        let seen = Seen {
            start_ticks: process.id.start_ticks,
            parent_pid: process.parent_pid,
            key,
            group,
            cpu_ns: process.cpu_ns.max(known_ns),
            reaped_ns: process.reaped_ns.max(before.as_ref().map_or(0, |seen| seen.reaped_ns)),
            debt: before.as_ref().map_or(Debt::default(), |seen| seen.debt),
            mixed: before.is_some_and(|seen| seen.mixed),
        };
        self.seen.insert(pid, seen);
    }

    /// Whether a process counts as user work: by itself, or because its group already does. A program that leaves
    /// its terminal and has no login record is still its user's.
    fn is_included(&self, process: &Process, key: &Key, present: &HashMap<u32, &Process>) -> bool {
        if self.rules.includes(process) {
            return true;
        }
        if process.kernel || process.claimed {
            return false;
        }
        let parent = present
            .get(&process.parent_pid)
            .filter(|parent| parent.id.start_ticks <= process.id.start_ticks && parent.uid == process.uid);
        let of_parent = || parent.and_then(|parent| self.group_of(parent.id));
        let of_key = || self.current(key, present);
        let group = of_parent().or_else(of_key).and_then(|id| self.groups.get(&id));
        group.is_some_and(|group| group.uid == process.uid)
    }

    /// The process that gave the session or process group its number, if it is still there.
    fn leader<'a>(key: &Key, present: &HashMap<u32, &'a Process>) -> Option<&'a Process> {
        let (number, leads): (u32, fn(&Process) -> bool) = match *key {
            Key::Session(number) => (number, |process| process.session == process.id.pid),
            Key::ProcessGroup(number) => (number, |process| process.process_group == process.id.pid),
            Key::Unit(_) | Key::Rest { .. } => return None,
        };
        present.get(&number).copied().filter(|process| leads(process))
    }

    /// The group that has this key now. One with another leader had it before.
    fn current(&self, key: &Key, present: &HashMap<u32, &Process>) -> Option<GroupId> {
        let id = *self.by_key.get(key)?;
        let group = self.groups.get(&id).filter(|group| !group.members.is_empty())?;
        let leader = Self::leader(key, present);
        leader.is_none_or(|leader| group.first == Some(leader.id)).then_some(id)
    }

    fn join(
        &mut self,
        process: &Process,
        key: &Key,
        present: &HashMap<u32, &Process>,
        changes: &mut Vec<Change>,
    ) -> GroupId {
        let id = self.current(key, present).unwrap_or_else(|| {
            let leader = Self::leader(key, present).filter(|leader| !leader.claimed);
            let first = leader.map_or(process.id, |leader| leader.id);
            let uid = leader.map_or(process.uid, |leader| leader.uid);
            let id = self.begin(Group::new(key.clone(), uid, Some(first)));
            self.by_key.insert(key.clone(), id);
            id
        });
        if let Some(group) = self.groups.get_mut(&id) {
            group.members.push(process.id);
            group.processes_seen += 1;
            if group.is_job {
                changes.push(Change::Joined(id, process.id));
            }
        }
        id
    }

    fn begin(&mut self, group: Group) -> GroupId {
        let id = GroupId(self.next);
        self.next += 1;
        self.groups.insert(id, group);
        id
    }

    fn credit(&mut self, id: GroupId, ns: u64) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.cpu_ns = group.cpu_ns.saturating_add(ns);
            let counted = self.counted.entry(group.uid).or_default();
            *counted = counted.saturating_add(ns);
        }
    }

    /// Empty groups end; those that were not jobs yet are added to the rest of their user.
    fn close_empty(&mut self, now: Now, changes: &mut Vec<Change>) {
        let is_over = |group: &Group| group.members.is_empty() && !matches!(group.key, Key::Rest { .. });
        let over: Vec<GroupId> =
            self.groups.iter().filter(|(_, group)| is_over(group)).map(|(&id, _)| id).collect();
        for id in over {
            let Some(group) = self.groups.remove(&id) else { continue };
            if self.by_key.get(&group.key) == Some(&id) {
                self.by_key.remove(&group.key);
            }
            if group.is_job {
                self.ended.push((id, group));
                changes.push(Change::Ended(id));
                continue;
            }
            let rest = self.rest_of(group.uid, now, changes);
            if let Some(rest) = self.groups.get_mut(&rest) {
                rest.cpu_ns = rest.cpu_ns.saturating_add(group.cpu_ns);
                rest.processes_seen += group.processes_seen;
                rest.groups_seen += 1;
                rest.attributed |= group.attributed;
            }
        }
    }

    /// The aggregate of a user for this day.
    fn rest_of(&mut self, uid: u32, now: Now, changes: &mut Vec<Change>) -> GroupId {
        let key = Key::Rest { uid, day: now.day };
        let current = self.by_key.get(&key).copied();
        current.unwrap_or_else(|| {
            let id = self.begin(Group { is_job: true, ..Group::new(key.clone(), uid, None) });
            self.by_key.insert(key, id);
            changes.push(Change::Began(id));
            id
        })
    }

    fn end_old_rests(&mut self, now: Now, changes: &mut Vec<Change>) {
        let is_old = |group: &Group| matches!(group.key, Key::Rest { day, .. } if day != now.day);
        let old: Vec<GroupId> =
            self.groups.iter().filter(|(_, group)| is_old(group)).map(|(&id, _)| id).collect();
        for id in old {
            if let Some(group) = self.groups.remove(&id) {
                self.by_key.remove(&group.key);
                self.ended.push((id, group));
                changes.push(Change::Ended(id));
            }
        }
    }

    fn promote(&mut self, now: Now, changes: &mut Vec<Change>) {
        let tick_ns = 1_000_000_000 / now.ticks_per_second.max(1);
        for (&id, group) in self.groups.iter_mut().filter(|(_, group)| !group.is_job) {
            let begin_ns = group.first.map_or(0, |first| first.start_ticks.saturating_mul(tick_ns));
            let is_old = now.boot_ns.saturating_sub(begin_ns) >= self.rules.job_after_ns;
            if is_old || group.cpu_ns >= self.rules.job_cpu_ns {
                group.is_job = true;
                changes.push(Change::Began(id));
            }
        }
    }
}

#[cfg(test)]
mod tests;
