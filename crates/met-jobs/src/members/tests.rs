use super::*;
use proptest::prelude::*;

/// A machine of `stat` files that a test rewrites as processes come, move and go.
struct Machine {
    root: tempfile::TempDir,
    host: Host,
    members: Members,
}

const SUPERVISOR: ProcessId = ProcessId { pid: 10, start_ticks: 100 };
const INNER_SUPERVISOR: ProcessId = ProcessId { pid: 20, start_ticks: 200 };

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let host = Host::at(root.path()).unwrap();
        let machine = Machine { root, host, members: Members::new() };
        machine.process(1, 0, 1);
        machine
    }

    fn process(&self, pid: u32, parent_pid: u32, start_ticks: u64) {
        let dir = self.root.path().join(format!("proc/{pid}"));
        std::fs::create_dir_all(&dir).unwrap();
        let zeros = "0 ".repeat(17);
        std::fs::write(dir.join("stat"), format!("{pid} (x) S {parent_pid} {zeros}{start_ticks} 0")).unwrap();
    }

    fn end(&self, pid: u32) {
        std::fs::remove_dir_all(self.root.path().join(format!("proc/{pid}"))).unwrap();
    }

    fn cgroup(&self, path: &str, procs: &str) -> CgroupPaths {
        let dir = self.root.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("cgroup.procs"), procs).unwrap();
        CgroupPaths { unified: Some(path.into()), ..CgroupPaths::default() }
    }

    fn add(&mut self, slot: u32, supervisor: ProcessId) {
        self.members.add(JobSpec { slot, supervisor: Some(supervisor), ..JobSpec::default() });
    }

    /// Pids by job after a refresh, each with its job's number.
    fn refresh(&mut self) -> Vec<(u32, u32)> {
        self.members.refresh(&self.host).unwrap();
        let mut living: Vec<_> =
            self.members.living.iter().map(|(process, slot)| (process.pid, *slot)).collect();
        living.sort_unstable();
        living
    }
}

/// Two levels below the supervisor, and an unrelated process.
fn one_job() -> Machine {
    let mut machine = Machine::new();
    for (pid, parent_pid, start_ticks) in [(10, 1, 100), (11, 10, 110), (12, 11, 120), (99, 1, 130)] {
        machine.process(pid, parent_pid, start_ticks);
    }
    machine.add(1, SUPERVISOR);
    machine
}

/// In the job above, pid 12 started another one.
fn nested_jobs() -> Machine {
    let mut machine = one_job();
    machine.process(20, 12, 200);
    machine.process(21, 20, 210);
    machine.add(2, INNER_SUPERVISOR);
    machine
}

#[test]
fn a_process_that_cannot_be_identified_is_counted() {
    let mut machine = one_job();
    machine.refresh();
    assert_eq!(machine.members.unparsed().count, 0);
    std::fs::create_dir(machine.root.path().join("proc/8")).unwrap();
    machine.process(9, 10, 90);
    std::fs::write(machine.root.path().join("proc/9/stat"), "9: sleep").unwrap();
    assert_eq!(machine.refresh(), [(11, 1), (12, 1)]);
    let expected = "1 reading could not be parsed (first: /proc/9/stat)";
    assert_eq!(machine.members.unparsed().to_string(), expected, "8 has ended, which is no fault");
}

#[test]
fn descendants_of_the_supervisor_are_members_and_it_is_not() {
    let mut machine = one_job();
    assert_eq!(machine.refresh(), [(11, 1), (12, 1)]);
    let (mut targets, mut map) = (Targets::default(), JobMap::default());
    machine.members.fill(&mut targets, &mut map);
    let roles: Vec<_> = targets.tasks.iter().map(|task| (task.pid, task.role)).collect();
    assert_eq!(roles[0], (10, TaskRole::Supervisor));
    assert!(roles[1..].iter().all(|(_, role)| *role == TaskRole::Member) && roles.len() == 3);
    assert_eq!(map.owner(Subject::Task { pid: 10, start_ticks: 100 }), Some(1));
    assert_eq!(map.owner(Subject::Task { pid: 99, start_ticks: 130 }), None);
}

#[test]
fn a_process_attached_to_is_a_member_with_what_it_starts() {
    let mut machine = one_job();
    machine.members = Members::new();
    machine.refresh();
    let roots = vec![ProcessId { pid: 11, start_ticks: 110 }];
    machine.members.add(JobSpec { slot: 7, roots, ..JobSpec::default() });
    assert_eq!(machine.refresh(), [(11, 7), (12, 7)]);
    machine.members.add_root(7, ProcessId { pid: 99, start_ticks: 130 });
    assert_eq!(machine.refresh(), [(11, 7), (12, 7), (99, 7)]);
}

#[test]
fn once_a_member_always_a_member() {
    let mut machine = one_job();
    machine.refresh();
    machine.end(10);
    machine.process(11, 1, 110);
    machine.process(12, 1, 120);
    for _ in 0..=VERIFY_REFRESHES {
        assert_eq!(machine.refresh(), [(11, 1), (12, 1)]);
    }
    machine.process(13, 12, 300);
    assert_eq!(machine.refresh(), [(11, 1), (12, 1), (13, 1)], "the supervisor is gone, its tree is not");
}

#[test]
fn a_child_whose_parent_ended_before_it_was_seen_is_found_when_it_has_a_new_one() {
    let mut machine = one_job();
    machine.process(14, 13, 140);
    assert_eq!(machine.refresh(), [(11, 1), (12, 1)]);
    machine.process(14, 10, 140);
    assert_eq!(machine.refresh(), [(11, 1), (12, 1), (14, 1)]);
}

#[test]
fn a_reused_pid_is_another_process() {
    let mut machine = one_job();
    machine.refresh();
    machine.process(12, 1, 500);
    machine.process(99, 11, 510);
    for _ in 0..VERIFY_REFRESHES {
        machine.refresh();
    }
    assert_eq!(machine.refresh(), [(11, 1), (99, 1)]);
    assert_eq!(machine.members.processes_seen(1), 3, "the first 12, 11 and the second 99");
}

#[test]
fn a_process_belongs_to_the_innermost_job() {
    let mut machine = nested_jobs();
    assert_eq!(machine.refresh(), [(11, 1), (12, 1), (21, 2)]);
    assert_eq!((machine.members.outer(1), machine.members.outer(2)), (None, Some(1)));
    assert_eq!((machine.members.processes_seen(1), machine.members.processes_seen(2)), (3, 1));
    assert_eq!(machine.members.processes_of(1).count(), 3);
}

#[test]
fn a_nested_job_that_is_taken_up_later_takes_its_processes_over() {
    let mut machine = nested_jobs();
    machine.members.remove(2);
    assert_eq!(machine.refresh(), [(11, 1), (12, 1), (20, 1), (21, 1)]);
    machine.add(2, INNER_SUPERVISOR);
    assert_eq!(machine.refresh(), [(11, 1), (12, 1), (21, 2)]);
    assert_eq!(machine.members.processes_seen(1), 4, "counted once, though it moved");
    machine.end(20);
    machine.process(21, 10, 210);
    assert_eq!(machine.refresh(), [(11, 1), (12, 1), (21, 2)], "reparented, and still of the inner job");
}

#[test]
fn what_is_left_of_a_nested_job_belongs_to_the_outer_one() {
    let mut machine = nested_jobs();
    machine.refresh();
    machine.members.remove(2);
    assert_eq!(machine.refresh(), [(11, 1), (12, 1), (20, 1), (21, 1)]);
    machine.members.remove(1);
    assert_eq!(machine.refresh(), []);
}

#[test]
fn membership_comes_from_the_cgroup_and_not_from_the_tree() {
    let mut machine = one_job();
    machine.members = Members::new();
    let cgroup = machine.cgroup("/cg/job", "11\n");
    machine.cgroup("/cg/job/below/it", "99\n0\n");
    machine.cgroup("/cg/job/below", "");
    machine.members.add(JobSpec { slot: 3, supervisor: Some(SUPERVISOR), cgroup, ..JobSpec::default() });
    assert_eq!(machine.refresh(), [(11, 3), (99, 3)], "12 left the cgroup");
    machine.process(50, 1, 500);
    machine.members.add(JobSpec { slot: 4, supervisor: None, ..JobSpec::default() });
    assert_eq!(machine.refresh(), [(11, 3), (99, 3)], "the same when processes are listed for another job");
    let (mut targets, mut map) = (Targets::default(), JobMap::default());
    machine.members.fill(&mut targets, &mut map);
    assert_eq!(map.owner(Subject::Cgroup(targets.cgroups[0].dirs.id)), Some(3));
}

#[test]
fn a_job_has_the_processes_of_all_its_directories() {
    let mut machine = one_job();
    machine.members = Members::new();
    let (one, other) = (machine.cgroup("/cg/n1/job", "11\n"), machine.cgroup("/cg/n2/job", "12\n"));
    let inner = machine.cgroup("/cg/n2/job/inner", "99\n");
    machine.members.add(JobSpec { slot: 3, cgroup: one.clone(), ..JobSpec::default() });
    assert_eq!(machine.refresh(), [(11, 3)]);
    machine.members.add_cgroup(3, other.clone());
    machine.members.add_cgroup(3, other.clone());
    machine.members.add(JobSpec { slot: 4, cgroup: inner, ..JobSpec::default() });
    machine.process(99, 1, 500);
    assert_eq!(machine.refresh(), [(11, 3), (12, 3), (99, 4)]);
    assert_eq!(machine.members.outer(4), Some(3));
    let (mut targets, mut map) = (Targets::default(), JobMap::default());
    machine.members.fill(&mut targets, &mut map);
    let owners: Vec<_> =
        targets.cgroups.iter().map(|target| map.owner(Subject::Cgroup(target.dirs.id))).collect();
    assert_eq!(owners, [Some(3), Some(3), Some(4)]);
    let ids = [one, other].map(|paths| machine.members.cgroup_id(3, &paths));
    assert_eq!(ids, [0, 1].map(|at: usize| Some(targets.cgroups[at].dirs.id)));
}

#[test]
fn jobs_in_cgroups_nest_by_their_paths_and_with_trees() {
    let mut machine = nested_jobs();
    machine.members = Members::new();
    let outer = machine.cgroup("/cg/job", "11\n12\n20\n");
    let inner = machine.cgroup("/cg/job/inner", "21\n");
    machine.members.add(JobSpec { slot: 2, cgroup: inner, ..JobSpec::default() });
    machine.members.add(JobSpec { slot: 1, cgroup: outer.clone(), ..JobSpec::default() });
    assert_eq!(machine.refresh(), [(11, 1), (12, 1), (20, 1), (21, 2)]);
    assert_eq!(machine.members.outer(2), Some(1));
    machine.members.remove(2);
    machine.add(5, INNER_SUPERVISOR);
    assert_eq!(machine.refresh(), [(11, 1), (12, 1), (21, 5)], "a tree inside a cgroup is more specific");
    assert_eq!(machine.members.outer(5), Some(1));
}

#[test]
fn a_job_that_was_read_in_full_is_not_young_any_more() {
    let mut machine = one_job();
    let young = |machine: &Machine| {
        let (mut targets, mut map) = (Targets::default(), JobMap::default());
        machine.members.fill(&mut targets, &mut map);
        targets.tasks.iter().any(|task| task.young)
    };
    machine.refresh();
    assert!(young(&machine));
    machine.members.was_read_in_full(1);
    machine.refresh();
    assert!(!young(&machine));
}

#[test]
fn nested_jobs_are_young_together() {
    let mut machine = one_job();
    let young = |machine: &Machine| {
        let (mut targets, mut map) = (Targets::default(), JobMap::default());
        machine.members.fill(&mut targets, &mut map);
        targets.tasks.iter().map(|task| task.young).collect::<Vec<_>>()
    };
    machine.refresh();
    assert_eq!(young(&machine), [true; 3]);
    for _ in 0..YOUNG_REFRESHES {
        machine.refresh();
    }
    assert_eq!(young(&machine), [false; 3]);
    machine.process(20, 12, 200);
    machine.add(2, INNER_SUPERVISOR);
    machine.refresh();
    assert_eq!(young(&machine), [true; 4]);
}

/// What may happen to a machine between two refreshes.
#[derive(Clone, Debug)]
enum Event {
    Fork { parent: usize },
    Exit { process: usize },
    AddJob { supervisor: usize },
    RemoveJob { job: usize },
}

fn events() -> impl Strategy<Value = Vec<Vec<Event>>> {
    let event = prop_oneof![
        4 => any::<usize>().prop_map(|parent| Event::Fork { parent }),
        2 => any::<usize>().prop_map(|process| Event::Exit { process }),
        1 => any::<usize>().prop_map(|supervisor| Event::AddJob { supervisor }),
        1 => any::<usize>().prop_map(|job| Event::RemoveJob { job }),
    ];
    prop::collection::vec(prop::collection::vec(event, 0..5), 1..25)
}

/// Processes as (pid, parent, start), of which the first is init.
struct Model {
    processes: Vec<(u32, u32, u64)>,
    jobs: Vec<u32>,
    clock: u64,
}

impl Model {
    fn apply(&mut self, event: &Event, machine: &mut Machine) {
        self.clock += 1;
        let clock = u32::try_from(self.clock).unwrap();
        match *event {
            Event::Fork { parent } => {
                let parent_pid = self.processes[parent % self.processes.len()].0;
                self.processes.push((clock, parent_pid, self.clock));
                machine.process(clock, parent_pid, self.clock);
            }
            Event::Exit { process } if self.processes.len() > 1 => {
                let (pid, ..) = self.processes.remove(1 + process % (self.processes.len() - 1));
                machine.end(pid);
                for child in self.processes.iter_mut().filter(|child| child.1 == pid) {
                    child.1 = 1;
                    machine.process(child.0, 1, child.2);
                }
            }
            Event::AddJob { supervisor } => {
                let (pid, _, start_ticks) = self.processes[supervisor % self.processes.len()];
                let supervisor = ProcessId { pid, start_ticks };
                if pid != 1 && !machine.members.supervisors.contains_key(&supervisor) {
                    machine.add(clock, supervisor);
                    self.jobs.push(clock);
                }
            }
            Event::RemoveJob { job } if !self.jobs.is_empty() => {
                machine.members.remove(self.jobs.swap_remove(job % self.jobs.len()));
            }
            _ => {}
        }
    }
}

proptest! {
    // Every step makes files: with the usual 256 cases it would be the slowest test of all.
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn whatever_happens_a_process_has_one_job_and_keeps_one(rounds in events()) {
        let mut machine = Machine::new();
        let mut model = Model { processes: vec![(1, 0, 1)], jobs: Vec::new(), clock: 1 };
        let mut before: Vec<(u32, u32)> = Vec::new();
        for round in rounds {
            let removes = round.iter().any(|event| matches!(event, Event::RemoveJob { .. }));
            round.iter().for_each(|event| model.apply(event, &mut machine));
            let now = machine.refresh();
            let is_supervisor = |pid: u32| machine.members.supervisors.keys().any(|supervisor| supervisor.pid == pid);
            prop_assert!(now.windows(2).all(|pair| pair[0].0 < pair[1].0), "twice: {now:?}");
            prop_assert!(now.iter().all(|(_, slot)| model.jobs.contains(slot)));
            prop_assert!(now.iter().all(|&(pid, _)| !is_supervisor(pid)));
            for &(pid, slot) in before.iter().filter(|_| !removes) {
                let alive = model.processes.iter().any(|process| process.0 == pid);
                let kept = now.iter().any(|&(other, inner)| {
                    other == pid && machine.members.is_inside(inner, slot)
                });
                prop_assert!(!alive || kept || is_supervisor(pid), "{pid} left job {slot}");
            }
            for &(pid, parent_pid, _) in &model.processes {
                let member = now.iter().any(|&(other, _)| other == pid);
                prop_assert!(member || is_supervisor(pid) || !is_supervisor(parent_pid), "{pid} was not found");
            }
            before = now;
        }
    }
}

#[test]
fn the_processes_of_a_job_that_is_not_refreshed_stay_as_they_were() {
    let mut machine = Machine::new();
    for pid in 30..34 {
        machine.process(pid, 1, u64::from(pid));
    }
    for (slot, path, procs) in [(1, "/cg/a", "30\n"), (2, "/cg/b", "31\n")] {
        let cgroup = machine.cgroup(path, procs);
        machine.members.add(JobSpec { slot, cgroup, ..JobSpec::default() });
    }
    assert_eq!(machine.refresh(), [(30, 1), (31, 2)]);
    machine.cgroup("/cg/a", "32\n");
    machine.cgroup("/cg/b", "33\n");
    let some = |machine: &mut Machine, due: u32| {
        machine.members.refresh_some(&machine.host, |slot| slot == due).unwrap();
        let mut living: Vec<_> =
            machine.members.living.iter().map(|(process, slot)| (process.pid, *slot)).collect();
        living.sort_unstable();
        living
    };
    assert_eq!(some(&mut machine, 1), [(31, 2), (32, 1)]);
    assert_eq!(some(&mut machine, 1), [(31, 2), (32, 1)]);
    assert_eq!(some(&mut machine, 2), [(32, 1), (33, 2)]);
    let seen = |slot| machine.members.processes_seen(slot);
    assert_eq!((seen(1), seen(2)), (2, 2));
    // Where all processes are listed, an end shows.
    machine.members.add(JobSpec { slot: 3, supervisor: Some(SUPERVISOR), ..JobSpec::default() });
    machine.end(32);
    assert_eq!(some(&mut machine, 2), [(33, 2)]);
}
