use proptest::prelude::*;

use super::*;

const MS: i64 = 1_000_000;

fn cpu(ms: i64) -> CpuTime {
    CpuTime { ns: ms * MS, user_ns: Some(ms * MS / 2) }
}

fn clock(ms: i64) -> Option<Clock> {
    Some(Clock { ns: ms * MS, ..Clock::default() })
}

fn verdict(cgroup: Option<i64>, reaped: i64, clock_ms: Option<i64>) -> (i64, QualityKind, Account) {
    let clock = clock_ms.and_then(clock);
    let evidence = Evidence { cgroup: cgroup.map(cpu), reaped: cpu(reaped), clock, ..Evidence::default() };
    let verdict = weigh(&evidence);
    (verdict.cpu_ns / MS, verdict.kind, verdict.source)
}

#[test]
fn two_accounts_that_agree_measure() {
    assert_eq!(verdict(Some(1000), 1000, None), (1000, Measured, Account::Cgroup));
    assert_eq!(verdict(None, 1000, Some(998)), (1000, Measured, Account::Rusage));
    assert_eq!(verdict(Some(1000), 1000, Some(999)), (1000, Measured, Account::Cgroup));
}

#[test]
fn one_account_alone_is_a_lower_bound() {
    assert_eq!(verdict(None, 1000, None), (1000, LowerBound, Account::Rusage));
    // A child of a process that ignores SIGCHLD, or an unknown process outside: undecidable.
    assert_eq!(verdict(Some(1000), 10, None), (1000, LowerBound, Account::Cgroup));
}

#[test]
fn a_set_user_id_program_that_stopped_the_clock_is_in_resource_usage() {
    assert_eq!(verdict(None, 1500, Some(0)), (1500, LowerBound, Account::Rusage));
}

#[test]
fn children_not_waited_for_are_in_the_cgroup_and_the_clock() {
    assert_eq!(verdict(Some(2000), 3, Some(1995)), (2000, Measured, Account::Cgroup));
    // Without a cgroup nothing confirms the clock.
    assert_eq!(verdict(None, 3, Some(2000)), (2000, LowerBound, Account::TaskClock));
}

#[test]
fn a_clock_that_nothing_can_stop_proves_by_itself() {
    let closed = Some(Clock { ns: 2000 * MS, sees_all: true, ..Clock::default() });
    let mut evidence = Evidence { reaped: cpu(3), clock: closed, ..Evidence::default() };
    let found = weigh(&evidence);
    assert_eq!((found.kind, found.source, found.in_rusage), (Measured, Account::TaskClock, LowerBound));
    assert_eq!(found.split_kind, Attributed);
    // Unless another account saw more than it.
    evidence.reaped = cpu(2100);
    assert_eq!(weigh(&evidence).kind, LowerBound);
}

#[test]
fn a_process_that_left_the_cgroup_is_in_resource_usage_and_its_memory_is_not_in_the_peak() {
    let evidence =
        Evidence { cgroup: Some(cpu(1)), reaped: cpu(1000), clock: clock(999), ..Evidence::default() };
    let found = weigh(&evidence);
    assert_eq!((found.kind, found.source), (Measured, Account::Rusage));
    assert_eq!((found.in_cgroup, found.in_rusage), (LowerBound, Measured));
    assert_eq!(verdict(Some(1), 1000, None), (1000, LowerBound, Account::Rusage));
}

#[test]
fn the_ends_of_many_small_processes_are_not_taken_for_a_clock_that_stopped() {
    let many = Evidence {
        reaped: cpu(600),
        clock: clock(540),
        page_faults: 51_000,
        switches: 1_200,
        ..Evidence::default()
    };
    assert_eq!(weigh(&many).kind, Measured);
    let few = Evidence { page_faults: 1_500, switches: 20, ..many };
    assert_eq!(weigh(&few).kind, LowerBound, "a program without many processes has no such ends");
}

#[test]
fn stolen_time_explains_a_clock_that_counted_more() {
    let stolen = |stolen_ms: i64, clock_ms: i64| {
        let clock = Some(Clock { ns: clock_ms * MS, stolen_ns: stolen_ms * MS, ..Clock::default() });
        let found = weigh(&Evidence { reaped: cpu(1000), clock, ..Evidence::default() });
        (found.cpu_ns / MS, found.kind, found.source)
    };
    assert_eq!(stolen(20, 1019), (1000, Measured, Account::Rusage));
    // So much was stolen that anything may have been counted besides.
    assert_eq!(stolen(200, 1150), (1000, LowerBound, Account::Rusage));
    assert_eq!(stolen(200, 1500), (1300, LowerBound, Account::TaskClock));
}

#[test]
fn page_faults_separate_unreported_stolen_time_from_a_process_that_two_accounts_miss() {
    let evidence = |faults: Option<i64>| Evidence {
        cgroup: Some(cpu(100)),
        reaped: cpu(100),
        clock: Some(Clock { ns: 120 * MS, page_faults: faults, ..Clock::default() }),
        page_faults: 5_000,
        ..Evidence::default()
    };
    let found = |faults| {
        let found = weigh(&evidence(faults));
        (found.cpu_ns / MS, found.kind, found.in_rusage)
    };
    assert_eq!(found(Some(4_990)), (100, Measured, Measured));
    // It left the cgroup and was not waited for.
    assert_eq!(found(Some(5_060)), (120, LowerBound, LowerBound));
    assert_eq!(found(None), (100, LowerBound, LowerBound));
    // A program that gained privileges hides what others did.
    assert_eq!(found(Some(3_000)), (100, LowerBound, LowerBound));
}

#[test]
fn bytes_are_complete_only_if_every_process_was_reaped() {
    let evidence = |reaped: i64| Evidence {
        cgroup: Some(cpu(10_000)),
        reaped: cpu(reaped),
        clock: clock(10_000),
        ..Evidence::default()
    };
    assert_eq!(weigh(&evidence(10_000)).in_rusage, Measured);
    // 30 ms of 10 s is less than 1 %, and time enough to write 100 MB.
    let found = weigh(&evidence(9_970));
    assert_eq!((found.kind, found.in_rusage), (Measured, LowerBound));
}

#[test]
fn work_of_a_container_engine_is_not_in_any_account() {
    let evidence =
        Evidence { cgroup: Some(cpu(50)), reaped: cpu(50), elsewhere: true, ..Evidence::default() };
    let found = weigh(&evidence);
    assert_eq!([found.kind, found.in_cgroup, found.in_rusage], [LowerBound; 3]);
}

/// One process of a simulated job.
#[derive(Clone, Copy, Debug)]
struct Process {
    ns: i64,
    in_cgroup: bool,
    waited_for: bool,
    in_clock: bool,
}

fn process() -> impl Strategy<Value = Process> {
    let flag = || prop::bool::weighted(0.8);
    (MS..1_000 * MS, flag(), flag(), flag()).prop_map(|(ns, in_cgroup, waited_for, in_clock)| Process {
        ns,
        in_cgroup,
        waited_for,
        in_clock,
    })
}

fn seen(processes: &[Process], by: fn(&Process) -> bool) -> i64 {
    processes.iter().filter(|process| by(process)).map(|process| process.ns).sum()
}

fn evidence_of(processes: &[Process], has_cgroup: bool, has_clock: bool) -> Evidence {
    let whole = |ns: i64| CpuTime { ns, user_ns: Some(ns / 3) };
    let faults =
        |by: fn(&Process) -> bool| processes.iter().filter(|process| by(process)).count() as i64 * 100;
    Evidence {
        cgroup: has_cgroup.then(|| whole(seen(processes, |process| process.in_cgroup))),
        reaped: whole(seen(processes, |process| process.waited_for)),
        clock: has_clock.then(|| Clock {
            ns: seen(processes, |process| process.in_clock),
            page_faults: Some(faults(|process| process.in_clock)),
            ..Clock::default()
        }),
        page_faults: faults(|process| process.waited_for),
        ..Evidence::default()
    }
}

/// One that was not waited for and one that left the cgroup hide each other; the clock saw both.
#[test]
fn accounts_that_are_blind_by_the_same_amount_are_not_complete_if_a_clock_saw_more_faults() {
    let process = |ms: i64, in_cgroup: bool, waited_for: bool| Process {
        ns: ms * MS,
        in_cgroup,
        waited_for,
        in_clock: true,
    };
    let blind = [process(18, true, false), process(16, false, true), process(1_982, true, true)];
    assert_eq!(weigh(&evidence_of(&blind, true, true)).in_rusage, LowerBound);
    let complete = [process(18, true, true), process(16, true, true), process(1_982, true, true)];
    assert_eq!(weigh(&evidence_of(&complete, true, true)).in_rusage, Measured);
}

proptest! {
    #[test]
    fn no_account_is_above_the_total_and_the_total_is_not_above_the_truth(
        processes in prop::collection::vec(process(), 1..12), has_cgroup: bool, has_clock: bool,
    ) {
        let evidence = evidence_of(&processes, has_cgroup, has_clock);
        let found = weigh(&evidence);
        let truth_ns = seen(&processes, |_| true);
        prop_assert!(found.cpu_ns <= truth_ns);
        for account in [evidence.cgroup.map(|cgroup| cgroup.ns), Some(evidence.reaped.ns)].into_iter().flatten() {
            prop_assert!(account <= found.cpu_ns);
        }
        // A clock may have counted stolen time; a verdict that does not follow it is marked, unless the difference
        // is small.
        let slack_ns = found.cpu_ns / SLACK_SHARE + SLACK_NS;
        let is_above = evidence.clock.is_some_and(|clock| clock.ns > found.cpu_ns + slack_ns);
        // Page faults of processes that the clock missed and of those that only the clock saw may cancel out.
        let are_explained = evidence.clock.and_then(|clock| clock.page_faults).is_some_and(|faults| {
            faults <= evidence.page_faults && evidence.page_faults - faults <= evidence.page_faults / 20 + 200
        });
        prop_assert!(!is_above || found.kind == LowerBound || are_explained);
        prop_assert!((0..=found.cpu_ns).contains(&found.user_ns));
    }

    /// Where accounts are blind to different processes by the same amount, nothing shows it; so one sees all here.
    #[test]
    fn what_one_account_saw_is_the_total_and_the_others_are_complete_only_if_they_are(
        processes in prop::collection::vec(process(), 1..12), complete in 0..3usize,
    ) {
        let processes: Vec<Process> = processes.into_iter().map(|process| Process {
            in_cgroup: process.in_cgroup || complete == 0,
            waited_for: process.waited_for || complete == 1,
            in_clock: process.in_clock || complete == 2,
            ..process
        }).collect();
        let found = weigh(&evidence_of(&processes, true, true));
        let truth_ns = seen(&processes, |_| true);
        let is_close = truth_ns - found.cpu_ns <= found.cpu_ns / SLACK_SHARE + SLACK_NS;
        prop_assert!(is_close || found.kind == LowerBound);
        if found.in_rusage == Measured {
            let missed_ns = truth_ns - seen(&processes, |process| process.waited_for);
            prop_assert!(missed_ns <= truth_ns / TIGHT_SHARE + TIGHT_NS);
        }
        if found.in_cgroup == Measured {
            let missed_ns = truth_ns - seen(&processes, |process| process.in_cgroup);
            // From the cgroup to the total, and from there to what a clock alone saw.
            prop_assert!(missed_ns <= 2 * (truth_ns / SLACK_SHARE + SLACK_NS));
        }
    }

    /// What at most one account missed is right, whichever two are left.
    #[test]
    fn a_measurement_without_an_account_is_right_or_marked_as_a_bound(
        processes in prop::collection::vec(process(), 1..12), has_cgroup: bool, has_clock: bool,
    ) {
        let one_blind: Vec<Process> = processes
            .into_iter()
            .map(|process| Process { in_clock: true, in_cgroup: true, ..process })
            .collect();
        let found = weigh(&evidence_of(&one_blind, has_cgroup, has_clock));
        let truth_ns = seen(&one_blind, |_| true);
        let is_close = truth_ns - found.cpu_ns <= truth_ns / 33 + SLACK_NS;
        prop_assert!(is_close || found.kind == LowerBound);
    }

    #[test]
    fn a_job_that_everybody_saw_is_measured_wherever_there_are_two_accounts(
        times in prop::collection::vec(1..1_000 * MS, 1..12), has_cgroup: bool, has_clock: bool,
    ) {
        let whole = |ns| Process { ns, in_cgroup: true, waited_for: true, in_clock: true };
        let processes: Vec<Process> = times.into_iter().map(whole).collect();
        let found = weigh(&evidence_of(&processes, has_cgroup, has_clock));
        prop_assert_eq!(found.kind == Measured, has_cgroup || has_clock);
        prop_assert_eq!(found.in_rusage == Measured, has_cgroup || has_clock);
    }

    #[test]
    fn any_numbers_have_a_verdict(numbers in prop::array::uniform8(any::<i64>()), living: i64) {
        let [cgroup, user, reaped, clock, stolen, faults, switches, other] = numbers;
        let evidence = Evidence {
            cgroup: (other % 2 == 0).then_some(CpuTime { ns: cgroup, user_ns: Some(user) }),
            reaped: CpuTime { ns: reaped, user_ns: None },
            living,
            clock: (other % 3 == 0).then_some(Clock {
                ns: clock,
                stolen_ns: stolen,
                sees_all: other % 5 == 0,
                page_faults: (other % 11 == 0).then_some(user),
            }),
            page_faults: faults,
            switches,
            elsewhere: other % 7 == 0,
        };
        let _ = weigh(&evidence);
    }
}
