use std::sync::Arc;

use met_host::Host;
use proptest::prelude::*;

use super::*;

const TICK_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;

fn now(seconds: u64) -> Now {
    Now { boot_ns: seconds * SECOND_NS, day: 1, ticks_per_second: 100 }
}

/// A process of user 1000 at a terminal that began at a time in seconds.
fn process(pid: u32, parent_pid: u32, session: u32, start: u64) -> Process {
    Process {
        id: ProcessId { pid, start_ticks: start * 100 },
        parent_pid,
        session,
        process_group: session,
        uid: 1000,
        terminal: true,
        login: true,
        kernel: false,
        claimed: false,
        cgroup: Arc::from("/user.slice/user-1000.slice/session-1.scope"),
        cpu_ns: 0,
        reaped_ns: 0,
    }
}

fn sessions() -> Grouping {
    Grouping::new(Rules::new(By::Session, 1000))
}

fn look(grouping: &mut Grouping, seconds: u64, table: &[Process]) -> Vec<Change> {
    let mut changes = Vec::new();
    grouping.look(now(seconds), table, &mut changes);
    changes
}

#[test]
fn a_session_becomes_a_job_when_it_lasts_or_works() {
    let mut grouping = sessions();
    let shell = process(10, 1, 10, 100);
    assert_eq!(look(&mut grouping, 101, std::slice::from_ref(&shell)), []);
    let busy = Process { cpu_ns: 2 * SECOND_NS, ..process(11, 10, 10, 101) };
    let [began] = look(&mut grouping, 102, &[shell.clone(), busy])[..] else { panic!("one change") };
    let Change::Began(id) = began else { panic!("{began:?}") };
    let group = grouping.group(id).unwrap();
    assert_eq!((group.id().as_str(), group.short_id().as_str(), group.members.len()), ("10-10000", "10", 2));
    let third = process(12, 10, 10, 103);
    assert_eq!(look(&mut grouping, 104, &[shell, third.clone()]), [Change::Joined(id, third.id)]);
    assert_eq!(look(&mut grouping, 105, &[]), [Change::Ended(id)]);
    let ended = grouping.take_ended();
    assert_eq!((ended[0].1.cpu_ns, ended[0].1.processes_seen), (2 * SECOND_NS, 3));
    let mut grouping = sessions();
    let idle = process(10, 1, 10, 100);
    assert!(matches!(look(&mut grouping, 110, &[idle])[..], [Change::Began(_)]), "ten seconds are enough");
}

#[test]
fn what_ends_before_it_is_a_job_is_counted_for_its_user() {
    let mut grouping = sessions();
    let server = Process { uid: 0, terminal: false, login: false, ..process(5, 1, 5, 1) };
    for index in 0..20_u32 {
        let start = 200 + u64::from(index);
        let short = Process { cpu_ns: SECOND_NS / 10, ..process(100 + index, 5, 100 + index, start) };
        let before = Process { reaped_ns: u64::from(index) * SECOND_NS / 5, ..server.clone() };
        look(&mut grouping, start + 1, &[before, short]);
    }
    // Each used as much again after it was seen, as its parent's account shows.
    let after = Process { reaped_ns: 20 * SECOND_NS / 5, ..server };
    look(&mut grouping, 300, &[after]);
    let groups: Vec<&Group> = grouping.groups().map(|(_, group)| group).collect();
    assert_eq!(groups.len(), 1);
    assert_eq!((groups[0].id().as_str(), groups[0].groups_seen), ("rest-1000-1", 20));
    assert_eq!((groups[0].processes_seen, groups[0].cpu_ns), (20, 4 * SECOND_NS));
    let mut changes = Vec::new();
    grouping.look(Now { day: 2, ..now(301) }, &[], &mut changes);
    assert!(matches!(changes[..], [Change::Ended(_)]), "a day has an aggregate of its own");
}

#[test]
fn a_parent_of_system_processes_is_not_counted_for_a_user() {
    let mut grouping = sessions();
    let daemon =
        |pid, parent| Process { uid: 0, terminal: false, login: false, ..process(pid, parent, pid, 1) };
    let shell = Process { cpu_ns: SECOND_NS, ..process(10, 5, 10, 100) };
    look(&mut grouping, 101, &[daemon(5, 1), daemon(6, 5), shell.clone()]);
    // Its own child may have used all of this.
    let after = Process { reaped_ns: 50 * SECOND_NS, ..daemon(5, 1) };
    look(&mut grouping, 102, &[after]);
    assert_eq!(grouping.take_ended()[0].1.cpu_ns, SECOND_NS);
}

#[test]
fn a_slice_counts_unseen_processes() {
    let mut grouping = sessions();
    let mut changes = Vec::new();
    let shell = process(10, 1, 10, 100);
    look(&mut grouping, 120, std::slice::from_ref(&shell));
    grouping.add_slice_total(1000, 50 * SECOND_NS, now(120), &mut changes);
    let worked = Process { cpu_ns: 3 * SECOND_NS, ..shell };
    look(&mut grouping, 121, &[worked]);
    grouping.add_slice_total(1000, 55 * SECOND_NS, now(121), &mut changes);
    grouping.add_slice_total(1000, 55 * SECOND_NS, now(121), &mut changes);
    let rest = grouping.groups().find(|(_, group)| matches!(group.key, Key::Rest { .. })).unwrap();
    assert_eq!(rest.1.cpu_ns, 2 * SECOND_NS);
}

#[test]
fn a_session_whose_leader_has_gone_goes_on() {
    let mut grouping = sessions();
    let leader = process(10, 1, 10, 100);
    let child = process(11, 10, 10, 101);
    look(&mut grouping, 120, &[leader, child.clone()]);
    let id = grouping.group_of(child.id).unwrap();
    let orphan = Process { parent_pid: 1, terminal: false, login: false, ..child.clone() };
    assert_eq!(look(&mut grouping, 121, std::slice::from_ref(&orphan)), []);
    assert_eq!(grouping.group_of(orphan.id), Some(id));
    let grandchild = Process { terminal: false, login: false, ..process(12, 11, 10, 122) };
    assert_eq!(look(&mut grouping, 123, &[orphan, grandchild.clone()]), [Change::Joined(id, grandchild.id)]);
    // The number is a new leader's: its session is another one.
    let unrelated = process(10, 1, 10, 124);
    look(&mut grouping, 125, &[grandchild.clone(), unrelated.clone()]);
    assert_eq!(grouping.group_of(grandchild.id), Some(id));
    assert_ne!(grouping.group_of(unrelated.id), Some(id));
}

#[test]
fn a_process_that_leaves_its_session_takes_its_work_along() {
    let mut grouping = sessions();
    let shell = process(10, 1, 10, 100);
    let child = Process { cpu_ns: SECOND_NS, ..process(11, 10, 10, 101) };
    look(&mut grouping, 120, &[shell.clone(), child.clone()]);
    let before = grouping.group_of(child.id).unwrap();
    let away = Process { session: 11, terminal: false, login: false, cpu_ns: 5 * SECOND_NS, ..child };
    look(&mut grouping, 121, &[shell, away.clone()]);
    let after = grouping.group_of(away.id).unwrap();
    assert_ne!(before, after);
    assert_eq!(grouping.group(before).unwrap().cpu_ns, SECOND_NS);
    assert_eq!(grouping.group(after).unwrap().cpu_ns, 4 * SECOND_NS);
    assert_eq!(grouping.group(before).unwrap().members.len(), 1);
}

#[test]
fn the_system_is_not_user_work() {
    let rules = Rules::new(By::Session, 1000);
    let user = process(10, 1, 10, 100);
    assert!(rules.includes(&user));
    let without = |change: fn(&mut Process)| {
        let mut changed = user.clone();
        change(&mut changed);
        rules.includes(&changed)
    };
    assert!(without(|process| process.terminal = false), "a login goes on without its terminal");
    assert!(without(|process| process.uid = 0), "root at a terminal");
    assert!(!without(|process| (process.uid, process.terminal) = (0, false)));
    assert!(!without(|process| process.uid = 33));
    assert!(!without(|process| process.uid = 65534));
    assert!(!without(|process| process.kernel = true));
    assert!(!without(|process| process.claimed = true));
    assert!(!without(|process| (process.terminal, process.login) = (false, false)));
    let service = |process: &mut Process| process.cgroup = Arc::from("/system.slice/db.service");
    let mut daemon = Process { terminal: false, ..user.clone() };
    service(&mut daemon);
    assert!(!rules.includes(&daemon));
    daemon.cgroup = Arc::from("/system.slice/run-r1.service");
    assert!(rules.includes(&daemon), "a user started it by hand");
}

#[test]
fn units_are_those_that_users_make() {
    let own = "/user.slice/user-1000.slice/user@1000.service";
    assert_eq!(
        unit_of(&format!("{own}/app.slice/train.service/sub")),
        Some(&*format!("{own}/app.slice/train.service"))
    );
    let login = "/user.slice/user-1000.slice/session-3.scope";
    assert_eq!(unit_of(login), Some(login));
    assert_eq!(unit_of("/system.slice/run-u7.scope"), Some("/system.slice/run-u7.scope"));
    for none in ["/system.slice/cron.service", own, "/", ""] {
        assert_eq!(unit_of(none), None, "{none}");
    }
    let mut grouping = Grouping::new(Rules::new(By::Unit, 1000));
    let one = process(10, 1, 10, 100);
    let other = process(20, 1, 20, 100);
    look(&mut grouping, 120, &[one.clone(), other.clone()]);
    assert_eq!(grouping.group_of(one.id), grouping.group_of(other.id));
    assert_eq!(grouping.groups().next().unwrap().1.short_id(), "session-1.scope");
}

#[test]
fn this_machine_can_be_read() {
    let host = Host::real().unwrap();
    let mut table = ProcessTable::default();
    let me = host.process(std::process::id()).unwrap();
    let mut cpu_ns = 0;
    for _ in 0..3 {
        let look = Look {
            host: &host,
            now_ns: u64::try_from(met_host::clock::boottime_ns()).unwrap(),
            is_managed: &|_| false,
            is_ours: &|_| false,
        };
        let rows = table.read(&look).unwrap();
        let mine = rows.iter().find(|process| process.id == me).unwrap();
        // The session may be 0: that of an init that never made one, or one from outside of a container.
        assert!(mine.uid == rustix::process::getuid().as_raw() && !mine.kernel);
        assert!(mine.cpu_ns >= cpu_ns);
        cpu_ns = mine.cpu_ns;
        assert!(rows.is_sorted_by_key(|process| process.id.start_ticks));
    }
    let look = Look { host: &host, now_ns: u64::MAX, is_managed: &|_| true, is_ours: &|_| false };
    let mut table = ProcessTable::default();
    assert!(table.read(&look).unwrap().iter().all(|process| process.claimed));
}

/// A machine in which users log in, fork, work and end; pids are few and given again.
struct Machine {
    rows: Vec<Process>,
    /// Of each process the session it was born in or made, by a number that is used once.
    serials: HashMap<ProcessId, u64>,
    next_serial: u64,
    clock: u64,
    /// All that users' processes have ever used.
    used_ns: u64,
    looked: u64,
}

const SERVER: u32 = 2;
const PIDS: std::ops::Range<u32> = 3..24;

impl Machine {
    fn new() -> Machine {
        let daemon = |pid| Process { uid: 0, terminal: false, login: false, ..process(pid, 0, pid, 0) };
        Machine {
            rows: vec![daemon(1), Process { parent_pid: 1, ..daemon(SERVER) }],
            serials: HashMap::new(),
            next_serial: 0,
            clock: 1,
            used_ns: 0,
            looked: 0,
        }
    }

    fn users(&self) -> Vec<usize> {
        (2..self.rows.len()).collect()
    }

    /// A pid that neither a process nor a living session has.
    fn free_pid(&self) -> Option<u32> {
        PIDS.into_iter().find(|pid| self.rows.iter().all(|row| row.id.pid != *pid && row.session != *pid))
    }

    fn fork(&mut self, parent: usize, new_session: bool) {
        let Some(pid) = self.free_pid() else { return };
        self.clock += 1;
        let of = self.rows[parent].clone();
        let session = if new_session { pid } else { of.session };
        let row = process(pid, of.id.pid, session, self.clock);
        let serial = match new_session {
            true => {
                self.next_serial += 1;
                self.next_serial
            }
            false => self.serials[&of.id],
        };
        self.serials.insert(row.id, serial);
        self.rows.push(row);
    }

    fn work(&mut self, index: usize, ticks: u64) {
        self.rows[index].cpu_ns += ticks * TICK_NS;
        self.used_ns += ticks * TICK_NS;
    }

    /// A child that is born, works and ends between two looks.
    fn flash(&mut self, parent: usize, ticks: u64) {
        self.rows[parent].reaped_ns += ticks * TICK_NS;
        self.used_ns += ticks * TICK_NS;
    }

    fn end(&mut self, index: usize, orphans: bool) {
        let row = self.rows[index].clone();
        // The user of an unseen login is unknown.
        if row.parent_pid == SERVER && row.id.start_ticks > self.looked * 100 {
            return;
        }
        if self.rows.iter().any(|other| other.parent_pid == row.id.pid) {
            if !orphans {
                return;
            }
            self.rows
                .iter_mut()
                .filter(|other| other.parent_pid == row.id.pid)
                .for_each(|other| other.parent_pid = 1);
        }
        self.rows.remove(index);
        let parent = self.rows.iter_mut().find(|other| other.id.pid == row.parent_pid).unwrap();
        parent.reaped_ns += row.cpu_ns + row.reaped_ns;
    }

    fn act(&mut self, action: (u8, usize, u64), orphans: bool) {
        let users = self.users();
        let (kind, which, ticks) = action;
        if users.is_empty() || kind == 0 {
            return self.fork(1, true);
        }
        let index = users[which % users.len()];
        match kind {
            1 => self.fork(index, false),
            2 => self.fork(index, true),
            3 => self.work(index, ticks),
            4 => self.flash(index, ticks),
            _ => self.end(index, orphans),
        }
    }
}

fn accounted(grouping: &Grouping, ended: &[(GroupId, Group)]) -> u64 {
    let living = grouping.groups().map(|(_, group)| group.cpu_ns);
    living.chain(ended.iter().map(|(_, group)| group.cpu_ns)).sum()
}

fn run(looks: Vec<Vec<(u8, usize, u64)>>, orphans: bool) -> Result<(), TestCaseError> {
    let mut machine = Machine::new();
    let mut grouping = sessions();
    let (mut ended, mut serial_of) = (Vec::new(), HashMap::new());
    for actions in looks {
        for action in actions {
            machine.act(action, orphans);
        }
        machine.clock += 1;
        machine.looked = machine.clock;
        let mut changes = Vec::new();
        grouping.look(now(machine.clock), &machine.rows, &mut changes);
        ended.extend(grouping.take_ended());
        // Every user process is in one group, and no other process in any.
        let mut members: Vec<ProcessId> =
            grouping.groups().flat_map(|(_, group)| group.members.clone()).collect();
        let mut present: Vec<ProcessId> = machine.rows[2..].iter().map(|row| row.id).collect();
        members.sort_by_key(|id| (id.start_ticks, id.pid));
        present.sort_by_key(|id| (id.start_ticks, id.pid));
        prop_assert_eq!(&members, &present);
        for (id, group) in grouping.groups() {
            for member in &group.members {
                let serial = *serial_of.entry(id).or_insert(machine.serials[member]);
                prop_assert_eq!(serial, machine.serials[member], "two sessions became one");
            }
        }
        let total = accounted(&grouping, &ended);
        match orphans {
            false => prop_assert_eq!(total, machine.used_ns),
            true => prop_assert!(total <= machine.used_ns),
        }
    }
    Ok(())
}

fn actions() -> impl Strategy<Value = Vec<Vec<(u8, usize, u64)>>> {
    let action = (0..8_u8, 0..32_usize, 1..200_u64);
    proptest::collection::vec(proptest::collection::vec(action, 0..12), 1..30)
}

proptest! {
    #[test]
    fn all_that_was_used_is_counted_once(looks in actions()) {
        run(looks, false)?;
    }

    #[test]
    fn reused_numbers_never_merge_in_any_order_of_death(looks in actions()) {
        run(looks, true)?;
    }
}
