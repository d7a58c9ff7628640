use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct World {
    jobs: HashMap<u32, u32>,
    listed: HashSet<u32>,
    supervisors: HashSet<u32>,
    outer: HashMap<u32, u32>,
    ignoring: HashSet<u32>,
    now_s: i64,
}

impl Living for World {
    fn job_of(&self, pid: u32) -> Option<u32> {
        self.jobs.get(&pid).copied()
    }
    fn job_of_ended(&self, exit: &Exit) -> Option<u32> {
        self.job_of(exit.pid)
    }
    fn is_listed(&self, exit: &Exit) -> bool {
        self.listed.contains(&exit.pid)
    }
    fn is_supervisor(&self, exit: &Exit) -> bool {
        self.supervisors.contains(&exit.pid)
    }
    fn now_s(&self) -> i64 {
        self.now_s
    }
    fn begin_s(&self, exit: &Exit) -> i64 {
        exit.begin_s
    }
    fn outer(&self, job: u32) -> Option<u32> {
        self.outer.get(&job).copied()
    }
    fn reaps(&mut self, pid: u32) -> bool {
        !self.ignoring.contains(&pid)
    }
}

fn exit(pid: u32, parent_pid: u32, amount: i64) -> Exit {
    Exit {
        pid,
        parent_pid,
        inherited: [amount; INHERITED.len()],
        own: [amount; OWN.len()],
        details: [amount; OWN_DETAILS.len()],
        ..Exit::default()
    }
}

/// Job 1 with the processes of `jobs` seen, all of them gone from the list unless given otherwise.
fn world(jobs: &[u32]) -> (ExitLedger, World) {
    let mut ledger = ExitLedger::default();
    ledger.open_page(1);
    (ledger, World { jobs: jobs.iter().map(|&pid| (pid, 1)).collect(), ..World::default() })
}

fn gone(ledger: &ExitLedger, job: u32) -> (i64, i64, u64) {
    let page = ledger.page(job).unwrap();
    assert_eq!(
        page.details[0], page.own[0],
        "details end with their process, as the other figures of its own"
    );
    (page.inherited[0], page.own[0], page.processes)
}

#[test]
fn what_a_living_parent_took_over_is_not_added_again_until_it_ends_itself() {
    let (mut ledger, mut world) = world(&[10]);
    ledger.enter(&[(10, 11), (11, 12)], &[exit(12, 11, 5), exit(11, 10, 7)], &mut world, |_, _| {});
    assert_eq!(gone(&ledger, 1), (0, 12, 2), "10 lives and shows what 11 and 12 did");
    ledger.enter(&[], &[exit(10, 1, 100)], &mut world, |_, _| {});
    assert_eq!(gone(&ledger, 1), (112, 112, 3));
}

#[test]
fn children_of_a_parent_that_waits_for_nobody_are_added_at_once() {
    let (mut ledger, mut world) = world(&[10]);
    world.ignoring.insert(10);
    ledger.enter(&[(10, 11)], &[exit(11, 10, 7)], &mut world, |_, _| {});
    assert_eq!(gone(&ledger, 1), (7, 7, 1));
    assert_eq!(ledger.page(1).unwrap().unseen, 1);
}

#[test]
fn an_orphan_is_the_jobs_though_its_new_parent_is_not() {
    let (mut ledger, mut world) = world(&[10]);
    ledger.enter(&[(10, 11), (11, 12)], &[exit(11, 10, 1), exit(12, 1, 9)], &mut world, |_, _| {});
    assert_eq!(gone(&ledger, 1), (9, 10, 2));
}

#[test]
fn without_news_of_births_the_parent_says_whose_it_was() {
    let (mut ledger, mut world) = world(&[10]);
    world.ignoring.insert(10);
    let mut owners = Vec::new();
    let deaths = [exit(11, 10, 7), exit(12, 99, 7)];
    ledger.enter(&[], &deaths, &mut world, |job, exit| owners.push((exit.pid, job)));
    assert_eq!((gone(&ledger, 1), owners), ((7, 7, 1), vec![(11, Some(1)), (12, None)]));
}

#[test]
fn a_zombie_is_not_counted_beside_what_it_still_shows() {
    let (mut ledger, mut world) = world(&[10]);
    world.listed.insert(10);
    ledger.enter(&[], &[exit(10, 1, 7)], &mut world, |_, _| {});
    assert_eq!(gone(&ledger, 1), (0, 0, 0));
    world.listed.clear();
    let mut reported = Vec::new();
    ledger.enter(&[], &[], &mut world, |job, exit| reported.push((job, exit.pid)));
    assert_eq!((gone(&ledger, 1), reported), ((7, 7, 1), vec![(Some(1), 10)]));
}

#[test]
fn a_supervisor_is_no_process_of_its_job_and_shows_whom_it_reaped() {
    let (mut ledger, mut world) = world(&[9, 10]);
    world.supervisors.insert(9);
    ledger.enter(&[], &[exit(10, 9, 7), exit(9, 1, 50)], &mut world, |_, _| {});
    assert_eq!(gone(&ledger, 1), (0, 7, 1));
}

#[test]
fn a_nested_job_is_part_of_the_outer_one() {
    let (mut ledger, mut world) = world(&[10]);
    ledger.open_page(2);
    world.jobs.insert(20, 2);
    world.outer.insert(2, 1);
    // 10, of the outer job, waits for 20, the root of the inner one.
    ledger.enter(&[], &[exit(20, 10, 7)], &mut world, |_, _| {});
    assert_eq!(gone(&ledger, 2), (7, 7, 1));
    assert_eq!(gone(&ledger, 1), (0, 7, 1), "10 shows it");
    ledger.enter(&[], &[exit(10, 1, 1)], &mut world, |_, _| {});
    assert_eq!(gone(&ledger, 1), (8, 8, 2));
    assert_eq!(gone(&ledger, 2), (7, 7, 1));
}

#[test]
fn a_number_that_is_given_again_is_nobodys_once_an_end_was_lost() {
    let (mut ledger, mut world) = world(&[10]);
    // 11 took over what 12 did, and its own end is lost.
    ledger.enter(&[(10, 11), (11, 12)], &[exit(12, 11, 5)], &mut world, |_, _| {});
    assert_eq!((gone(&ledger, 1), ledger.losses()), ((0, 5, 1), 0));
    let mut reported = Vec::new();
    let later = Exit { begin_s: 50, ..exit(11, 99, 7) };
    ledger.enter(&[(99, 11)], &[later], &mut world, |job, exit| reported.push((job, exit.pid)));
    assert_eq!(reported, [(None, 11)]);
    assert_eq!((gone(&ledger, 1), ledger.losses()), ((0, 5, 1), 1), "the lost one is counted");
}

#[test]
fn who_began_after_it_was_noted_is_another_one() {
    let (mut ledger, mut world) = world(&[10]);
    world.now_s = 100;
    ledger.enter(&[(10, 11), (11, 12)], &[exit(12, 11, 5)], &mut world, |_, _| {});
    // Neither the end of 11 nor the next birth with its number was reported.
    world.now_s = 200;
    let mut reported = Vec::new();
    let later = Exit { begin_s: 150, ..exit(11, 99, 7) };
    ledger.enter(&[], &[later], &mut world, |job, exit| reported.push((job, exit.pid)));
    assert_eq!((reported, gone(&ledger, 1)), (vec![(None, 11)], (0, 5, 1)));
}

#[test]
fn a_number_that_is_given_twice_between_two_looks_is_two_processes() {
    let (mut ledger, mut world) = world(&[10, 11]);
    ledger.enter(&[(11, 12)], &[exit(12, 11, 5)], &mut world, |_, _| {});
    let mut reported = Vec::new();
    let deaths = [exit(11, 10, 7), exit(11, 99, 50)];
    ledger.enter(&[(99, 11)], &deaths, &mut world, |job, exit| reported.push((job, exit.parent_pid)));
    assert_eq!(reported, [(Some(1), 10), (None, 99)]);
    ledger.enter(&[], &[exit(10, 1, 1)], &mut world, |_, _| {});
    assert_eq!((gone(&ledger, 1), ledger.losses()), ((13, 13, 3), 0));
}

#[test]
fn nothing_is_left_in_the_books_of_those_whose_end_was_lost() {
    let (mut ledger, mut world) = world(&[10]);
    let births: Vec<(u32, u32)> = (11..1000).map(|pid| (10, pid)).collect();
    ledger.enter(&births, &[exit(2000, 11, 5)], &mut world, |_, _| {});
    assert_eq!((ledger.born.len(), ledger.taken_over.len()), (989, 1));
    ledger.forget_dead(|pid| pid == 12);
    assert_eq!((ledger.born.len(), ledger.taken_over.len()), (1, 0));
}

#[test]
fn the_books_are_empty_with_the_last_job() {
    let (mut ledger, mut world) = world(&[10]);
    world.listed.insert(10);
    ledger.enter(&[(10, 11)], &[exit(11, 10, 7), exit(10, 1, 1)], &mut world, |_, _| {});
    assert!(ledger.is_waiting() && ledger.taken_over.len() == 1);
    ledger.close_page(1);
    assert!(!ledger.is_waiting() && ledger.taken_over.is_empty() && ledger.born.is_empty());
}

proptest! {
    /// A tree of processes below 10, each of which lives until its children are gone and waits for them:
    /// at any moment the figures of the living, what they took over included, and of the gone are the truth.
    #[test]
    fn the_living_and_the_gone_are_all_there_was(parents in prop::collection::vec(0usize..8, 1..20)) {
        let pid = |index: usize| 10 + index as u32;
        let (mut ledger, mut world) = world(&[10]);
        let births: Vec<_> =
            parents.iter().enumerate().map(|(index, &parent)| (pid(parent.min(index)), pid(index + 1))).collect();
        ledger.enter(&births, &[], &mut world, |_, _| {});
        let parent_of: HashMap<u32, u32> = births.iter().map(|&(parent, child)| (child, parent)).collect();
        let own = |pid: u32| i64::from(pid) * 3;
        let mut shown: HashMap<u32, i64> = (0..=parents.len()).map(|index| (pid(index), own(pid(index)))).collect();
        let truth: i64 = shown.values().sum();
        // Children have larger numbers than their parents.
        for index in (0..=parents.len()).rev() {
            let ending = pid(index);
            let parent = parent_of.get(&ending).copied().unwrap_or(1);
            let took_along = shown.remove(&ending).unwrap();
            if let Some(shows) = shown.get_mut(&parent) {
                *shows += took_along;
            }
            ledger.enter(&[], &[exit(ending, parent, own(ending))], &mut world, |_, _| {});
            let (inherited, own_sum, processes) = gone(&ledger, 1);
            prop_assert_eq!(inherited + shown.values().sum::<i64>(), truth);
            prop_assert_eq!(processes as usize, parents.len() + 1 - index);
            let living: i64 = shown.keys().map(|&pid| own(pid)).sum();
            prop_assert_eq!(own_sum + living, truth);
        }
    }
}

#[test]
fn an_end_that_finds_no_room_while_it_is_shown_is_a_loss_and_is_not_charged() {
    let (mut ledger, mut world) = world(&[10]);
    world.listed.insert(10);
    ledger.listed = vec![exit(10, 1, 0); NOTED_MAX];
    ledger.enter(&[], &[exit(10, 1, 7)], &mut world, |_, _| panic!("it is shown by the living"));
    assert_eq!((gone(&ledger, 1), ledger.losses()), ((0, 0, 0), 1));
    assert_eq!(ledger.listed.len(), NOTED_MAX);
}
