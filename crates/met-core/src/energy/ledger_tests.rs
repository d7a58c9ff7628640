use proptest::prelude::*;

use super::*;
use crate::energy::meters::MeterId;
use crate::energy::{MeteredBy, Scope};
use crate::job::QualityKind;

const SECOND: i64 = 1_000_000_000;
const TIMEOUT: i64 = 30 * SECOND;

fn ledger(idle_to: IdleTo, idle_w: Option<u64>) -> EnergyLedger {
    EnergyLedger::new(Policy { idle_to, idle_mw: idle_w.map(|watts| watts * 1000) })
}

fn node(ledger: &mut EnergyLedger) -> MeterId {
    let scope = Scope::Node { rank: 0, with_gpus: true };
    ledger.meters.meter("bmc", scope, QualityKind::Measured, TIMEOUT)
}

/// One second of a machine with four CPUs of which `busy` CPU seconds (in thousandths) were used.
fn second(ledger: &mut EnergyLedger, busy: u64) {
    ledger.weigh_node(Weights { cpu: busy * 1_000_000, memory: 0, held: 4 * SECOND as u64 });
}

fn joules(uj: impl TryInto<i64>) -> i64 {
    uj.try_into().unwrap_or(i64::MAX) / 1_000_000
}

#[test]
fn a_job_asleep_alone_is_charged_no_active_energy_and_idle_shows_as_idle() {
    let mut ledger = ledger(IdleTo::Unassigned, None);
    let meter = node(&mut ledger);
    ledger.meters.read_power(meter, 0, 200_000);
    ledger.close(0);
    ledger.meters.read_power(meter, SECOND, 200_000);
    ledger.weigh_job(1, Weights { cpu: 0, memory: 0, held: SECOND as u64 });
    second(&mut ledger, 10);
    let closed = ledger.close(SECOND).unwrap();
    assert_eq!(closed.lines.get(&Who::Job(1)), None);
    assert_eq!(joules(closed.lines[&Who::Idle].total_uj()), 200);
    assert_eq!(joules(closed.whole_uj), 200);
}

#[test]
fn holders_are_charged_idle_as_a_line_of_its_own() {
    let mut ledger = ledger(IdleTo::Holders, Some(100));
    let meter = node(&mut ledger);
    ledger.meters.read_power(meter, 0, 200_000);
    ledger.close(0);
    ledger.meters.read_power(meter, SECOND, 200_000);
    ledger.weigh_job(1, Weights { cpu: 3_000_000_000, memory: 0, held: 3 * SECOND as u64 });
    second(&mut ledger, 4000);
    let closed = ledger.close(SECOND).unwrap();
    let job = closed.lines[&Who::Job(1)];
    // Three of four busy CPUs and three of four held ones: 75 of 100 W active, 75 of 100 W idle.
    assert_eq!((joules(job.active_uj.iter().sum::<i64>()), joules(job.idle_total_uj())), (75, 75));
    assert_eq!(joules(closed.lines[&Who::System].total_uj()), 25);
    assert_eq!(joules(closed.lines[&Who::Idle].total_uj()), 25);
}

#[test]
fn a_meter_that_is_read_more_rarely_than_before_is_still_believed() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let scope = Scope::Node { rank: 0, with_gpus: true };
    let mut closed_uj = Vec::new();
    for (at_s, timeout_s) in [(0, 3), (1, 3), (2, 3), (7, 15), (12, 15)] {
        let meter = ledger.meters.meter("bmc", scope, QualityKind::Measured, timeout_s * SECOND);
        ledger.meters.read_counter(meter, at_s * SECOND, at_s * 100);
        closed_uj.extend(ledger.close(at_s * SECOND).map(|closed| closed.whole_uj));
    }
    assert_eq!(closed_uj, [100, 100, 500, 500]);
}

#[test]
fn two_jobs_add_up_and_the_busier_one_pays_more() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let meter = node(&mut ledger);
    ledger.meters.read_counter(meter, 0, 5);
    ledger.close(0);
    ledger.meters.read_counter(meter, SECOND, 300_000_005);
    ledger.weigh_job(1, Weights { cpu: 2000, ..Weights::default() });
    ledger.weigh_job(2, Weights { cpu: 1000, ..Weights::default() });
    ledger.weigh_node(Weights { cpu: 3000, memory: 0, held: 4000 });
    let closed = ledger.close(SECOND).unwrap();
    assert_eq!(closed.lines[&Who::Job(1)].total_uj(), 200_000_000);
    assert_eq!(closed.lines[&Who::Job(2)].total_uj(), 100_000_000);
}

#[test]
fn gpus_inside_the_node_meter_are_not_counted_twice() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let meter = node(&mut ledger);
    let package = ledger.meters.meter("rapl", Scope::Package, QualityKind::Measured, TIMEOUT);
    for (at_ns, node_uj, cpu_uj) in [(0, 0, 0), (SECOND, 500_000_000, 100_000_000)] {
        ledger.meters.read_counter(meter, at_ns, node_uj);
        ledger.meters.read_counter(package, at_ns, cpu_uj);
        if at_ns == 0 {
            ledger.close(0);
        }
    }
    ledger.charge_gpus(Who::Job(1), 250_000_000, 50_000_000);
    ledger.weigh_job(1, Weights { cpu: 10, ..Weights::default() });
    ledger.weigh_node(Weights { cpu: 10, ..Weights::default() });
    let closed = ledger.close(SECOND).unwrap();
    assert_eq!(closed.whole_uj, 500_000_000);
    let job = closed.lines[&Who::Job(1)];
    assert_eq!((job.active_uj[GPUS], job.idle_uj[GPUS]), (250_000_000, 50_000_000));
    assert_eq!((job.active_uj[CPU], job.active_uj[REST]), (100_000_000, 100_000_000));
}

#[test]
fn what_gpus_turn_out_to_have_used_is_made_good_by_later_windows() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let meter = ledger.meters.meter("rapl", Scope::Package, QualityKind::Measured, TIMEOUT);
    ledger.meters.read_counter(meter, 0, 0);
    ledger.close(0);
    let mut at_ns = 0;
    let mut close = |ledger: &mut EnergyLedger| {
        at_ns += SECOND;
        ledger.meters.read_counter(meter, at_ns, 0);
        ledger.close(at_ns).unwrap()
    };
    let gpus = |closed: &Closed, who: Who| {
        closed.lines.get(&who).map_or((0, 0), |line| (line.active_uj[GPUS], line.idle_uj[GPUS]))
    };
    ledger.charge_gpus(Who::Job(1), 100, 0);
    assert_eq!(close(&mut ledger).whole_uj, 100);
    // Some of it was idle, and some was the other's: the sum is the same, and so nothing is new.
    ledger.charge_gpus(Who::Job(1), 20, 40);
    ledger.charge_gpus(Who::Job(2), 40, 0);
    let closed = close(&mut ledger);
    assert_eq!(closed.whole_uj, 0);
    assert_eq!((gpus(&closed, Who::Job(1)), gpus(&closed, Who::Job(2))), ((-80, 40), (40, 0)));
    ledger.charge_gpus(Who::Job(1), 20, 140);
    ledger.charge_gpus(Who::Job(2), 90, 0);
    let closed = close(&mut ledger);
    assert_eq!(closed.whole_uj, 150);
    assert_eq!((gpus(&closed, Who::Job(1)), gpus(&closed, Who::Job(2))), ((0, 100), (50, 0)));
    // It leaves with less than windows took: the others' next shares pay for that.
    ledger.charge_gpus(Who::Job(2), 70, 0);
    ledger.leave(2);
    assert_eq!(close(&mut ledger).whole_uj, 0);
    ledger.charge_gpus(Who::Job(1), 20, 190);
    assert_eq!(close(&mut ledger).whole_uj, 30);
}

#[test]
fn the_better_meter_is_believed_and_a_lost_one_replaced() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let meter = node(&mut ledger);
    let package = ledger.meters.meter("rapl", Scope::Package, QualityKind::Measured, TIMEOUT);
    for step in 0..4 {
        if step < 2 {
            ledger.meters.read_counter(meter, step * SECOND, step * 500);
        }
        ledger.meters.read_counter(package, step * SECOND, step * 100);
        let closed = ledger.close(step * SECOND);
        if step == 1 {
            assert_eq!(closed.unwrap().source, MeteredBy::Node("bmc".into()));
        }
    }
    // While the slower meter may still answer it is waited for; then the window goes on without it.
    let late = 70 * SECOND;
    for at_ns in [13 * SECOND, 30 * SECOND, 60 * SECOND, late] {
        ledger.meters.read_counter(package, at_ns, at_ns / SECOND * 100);
    }
    let closed = ledger.close(late).unwrap();
    assert_eq!(
        (closed.source.clone(), closed.begin_ns, closed.end_ns),
        (MeteredBy::Processors, SECOND, late)
    );
    assert_eq!(
        (closed.whole_uj, closed.kind),
        (6900, QualityKind::LowerBound),
        "the meter of the node is away"
    );
    // It comes back: what it counted meanwhile beyond the processors is unassigned.
    for second in 71..=72 {
        ledger.meters.read_counter(meter, second * SECOND, second * 500);
        ledger.meters.read_counter(package, second * SECOND, second * 100);
    }
    let closed = ledger.close(72 * SECOND).unwrap();
    assert_eq!((closed.source.clone(), closed.fault), (MeteredBy::Node("bmc".into()), Fault::Lost));
    assert_eq!(closed.whole_uj, 71 * 500 - 6900);
    assert!(closed.lines[&Who::Unassigned].total_uj() >= 69 * 500 - 6900, "{closed:?}");
}

/// A meter and a job that is all there is, read at these times; the counter has 100 W.
fn read_at(seconds: &[i64]) -> Vec<Closed> {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let meter = node(&mut ledger);
    let mut before = 0;
    let mut found = Vec::new();
    for &second in seconds {
        ledger.weigh_job(1, Weights { cpu: (second - before) as u64, ..Weights::default() });
        ledger.weigh_node(Weights { cpu: (second - before) as u64, ..Weights::default() });
        before = second;
        ledger.meters.read_counter(meter, second * SECOND, second * 100);
        found.extend(ledger.close(second * SECOND));
    }
    found
}

#[test]
fn what_was_counted_in_a_gap_is_shared_by_what_jobs_did_in_it() {
    let found = read_at(&[0, 1, 46, 47]);
    let uj: Vec<(u64, i64, Fault)> =
        found.iter().map(|c| (c.whole_uj, c.lines[&Who::Job(1)].total_uj(), c.fault)).collect();
    assert_eq!(uj, [(100, 100, Fault::None), (4500, 4500, Fault::Bridged), (100, 100, Fault::None)]);
}

#[test]
fn what_was_counted_in_a_long_gap_is_unassigned_and_marked() {
    let found = read_at(&[0, 1, 121, 122]);
    let whole: Vec<(u64, Fault)> = found.iter().map(|closed| (closed.whole_uj, closed.fault)).collect();
    assert_eq!(whole, [(100, Fault::None), (12_000, Fault::Lost), (100, Fault::None)]);
    assert_eq!(found[1].lines[&Who::Unassigned].total_uj(), 12_000);
    assert_eq!(found[2].lines[&Who::Job(1)].total_uj(), 100);
}

#[test]
fn meters_that_are_away_in_turn_do_not_keep_a_window_open() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let meter = node(&mut ledger);
    let package = ledger.meters.meter("rapl", Scope::Package, QualityKind::Measured, TIMEOUT);
    let mut ends_s = Vec::new();
    for step in 0..40 {
        // Each is read every 50 s, and in the middle of the other one's gap.
        let at_ns = step * 25 * SECOND;
        let (id, counter_uj) = if step % 2 == 0 { (meter, 200) } else { (package, 100) };
        ledger.meters.read_counter(id, at_ns, counter_uj * step);
        ends_s.extend(ledger.close(at_ns).map(|closed| closed.end_ns / SECOND));
    }
    assert!(ends_s.len() >= 5 && ends_s.windows(2).all(|ends| ends[1] - ends[0] <= 200), "{ends_s:?}");
}

#[test]
fn a_window_does_not_wait_for_the_next_tick_where_the_node_is_read_last() {
    for (period_s, after_ns) in [(1, SECOND / 100), (5, SECOND / 100), (1, SECOND / 2)] {
        let mut ledger = ledger(IdleTo::Unassigned, Some(0));
        let meter = node(&mut ledger);
        let package = ledger.meters.meter("rapl", Scope::Package, QualityKind::Measured, TIMEOUT);
        for second in 0..=20 {
            let at_ns = second * SECOND;
            ledger.meters.read_counter(package, at_ns, second * 100);
            if second % period_s == 0 {
                ledger.meters.read_counter(meter, at_ns + after_ns, second * 200);
            }
            ledger.weigh_job(1, Weights { cpu: 1000, ..Weights::default() });
            if second == 20 {
                ledger.leave(1);
            }
            let end_ns = ledger.close(at_ns + after_ns).map(|closed| (closed.end_ns, closed.settled));
            if second % period_s == 0 && second > 0 {
                let settled = if second == 20 { vec![1] } else { vec![] };
                assert_eq!(end_ns, Some((at_ns, settled)), "read every {period_s} s");
            }
        }
    }
}

#[test]
fn after_a_time_without_meters_no_window_reaches_back_into_it() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let meter = node(&mut ledger);
    let package = ledger.meters.meter("rapl", Scope::Package, QualityKind::Measured, TIMEOUT);
    let mut ends_ns = Vec::new();
    for second in (0..4).chain(70..80).chain(100..104) {
        let at_ns = second * SECOND;
        if !(4..100).contains(&second) {
            // The processors are read a little before the node.
            ledger.meters.read_counter(package, at_ns - SECOND / 4, second * 100);
            ledger.meters.read_counter(meter, at_ns, second * 200);
        }
        if let Some(closed) = ledger.close(at_ns) {
            let before_ns = ends_ns.last().copied().unwrap_or(closed.begin_ns);
            assert!(before_ns <= closed.begin_ns && closed.begin_ns < closed.end_ns, "{closed:?}");
            ends_ns.push(closed.end_ns);
        }
    }
    assert!(ends_ns.last().is_some_and(|end_ns| *end_ns >= 102 * SECOND), "{ends_ns:?}");
}

#[test]
fn a_meter_of_the_node_that_lags_pays_for_gpus_when_it_shows_them() {
    const LAG: i64 = 8;
    let mut ledger = ledger(IdleTo::Unassigned, Some(100));
    let meter = node(&mut ledger);
    let mut sums: BTreeMap<Who, i64> = BTreeMap::new();
    let (mut gpus_uj, mut whole_uj, mut settled_s) = (0, 0, None);
    for second in 0..80 {
        // A GPU draws 300 W for its job from second 10 to 40; the controller shows it 8 s later.
        let busy = |second: i64| (11..=40).contains(&second);
        let shown_w = if busy(second - LAG) { 400 } else { 100 };
        ledger.meters.read_power(meter, second * SECOND, shown_w * 1000);
        if busy(second) {
            gpus_uj += 300_000_000;
            ledger.charge_gpus(Who::Job(1), gpus_uj, 0);
        }
        self::second(&mut ledger, 10);
        if second == 40 {
            ledger.leave(1);
        }
        if let Some(closed) = ledger.close(second * SECOND) {
            whole_uj += closed.whole_uj as i64;
            assert!(closed.short_uj.is_empty());
            closed.lines.iter().for_each(|(who, line)| *sums.entry(*who).or_default() += line.total_uj());
            settled_s = settled_s.or(closed.settled.contains(&1).then_some(second));
        }
    }
    assert_eq!(sums.values().sum::<i64>(), whole_uj);
    assert_eq!(sums[&Who::Job(1)], 30 * 300_000_000, "not added twice, and not lost");
    assert_eq!(sums[&Who::Idle], 79 * 100_000_000);
    assert!(settled_s.is_some_and(|second| second <= 40 + LAG + 1), "{settled_s:?}");
}

#[test]
fn gpus_that_the_node_meter_never_shows_are_missing_and_marked() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let meter = node(&mut ledger);
    let (mut paid_uj, mut short_uj, mut settled) = (0, 0, false);
    for second in 0..200 {
        ledger.meters.read_power(meter, second * SECOND, 100_000);
        if second <= 50 {
            ledger.charge_gpus(Who::Job(1), second as u64 * 300_000_000, 0);
        }
        if second == 50 {
            ledger.leave(1);
        }
        if let Some(closed) = ledger.close(second * SECOND) {
            paid_uj += closed.lines.get(&Who::Job(1)).map_or(0, Line::total_uj);
            short_uj += closed.short_uj.get(&Who::Job(1)).map_or(0, |&uj| uj as i64);
            settled |= closed.settled.contains(&1);
        }
    }
    assert!(settled && short_uj > 0);
    assert_eq!(paid_uj + short_uj, 50 * 300_000_000);
}

#[test]
fn a_job_that_ends_is_settled_by_the_window_it_ended_in() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let meter = node(&mut ledger);
    ledger.meters.read_counter(meter, 0, 0);
    ledger.close(0);
    ledger.weigh_job(7, Weights { cpu: 5, ..Weights::default() });
    ledger.weigh_node(Weights { cpu: 5, ..Weights::default() });
    ledger.leave(7);
    assert_eq!(ledger.close(SECOND), None, "the meter has not been read since");
    ledger.meters.read_counter(meter, 2 * SECOND, 90);
    let closed = ledger.close(2 * SECOND).unwrap();
    assert_eq!((closed.settled, closed.lines[&Who::Job(7)].total_uj()), (vec![7], 90));
}

#[test]
fn idle_power_is_learned_from_two_loads_where_the_machine_never_rests() {
    let mut ledger = ledger(IdleTo::Unassigned, None);
    let meter = node(&mut ledger);
    let mut energy_uj = 0;
    // 100 W at rest and 50 W for each busy CPU.
    let loads = [1000, 4000, 2000].into_iter().flat_map(|busy| std::iter::repeat_n(busy, 5));
    for (step, busy) in (0..).zip(std::iter::once(0).chain(loads)) {
        energy_uj += if step == 0 { 0 } else { 100_000_000 + 50_000 * busy as i64 };
        ledger.meters.read_counter(meter, step * SECOND, energy_uj);
        second(&mut ledger, busy);
        ledger.close(step * SECOND);
    }
    assert_eq!(idle_mw(&ledger), [("bmc".to_owned(), 100_000)]);
}

/// What was learned in all, by meters.
fn idle_mw(ledger: &EnergyLedger) -> Vec<(String, u64)> {
    ledger.machine_idle.learned().map(|learned| (learned.meters.clone(), learned.total_mw())).collect()
}

#[test]
fn a_package_that_is_not_read_makes_the_whole_a_lower_bound() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let meter = |ledger: &mut EnergyLedger, name: &str| {
        ledger.meters.meter(name, Scope::Package, QualityKind::Measured, 2 * SECOND)
    };
    let (mut kinds, mut whole_uj) = (Vec::new(), 0);
    for second in 0..100 {
        let one = meter(&mut ledger, "package-0");
        ledger.meters.read_counter(one, second * SECOND, second * 100);
        // The other one cannot be read for longer than it is waited for.
        if !(3..90).contains(&second) {
            let other = meter(&mut ledger, "package-1");
            ledger.meters.read_counter(other, second * SECOND, second * 300);
        }
        if let Some(closed) = ledger.close(second * SECOND) {
            let seconds = (closed.end_ns - closed.begin_ns) / SECOND;
            let unassigned_uj = closed.lines.get(&Who::Unassigned).map_or(0, Line::total_uj);
            whole_uj += closed.whole_uj;
            if unassigned_uj == 0 {
                kinds.push((closed.kind, closed.whole_uj as i64 / seconds));
            }
        }
    }
    let bound = kinds.iter().filter(|(kind, _)| *kind == QualityKind::LowerBound);
    assert!(bound.clone().count() > 0 && bound.clone().all(|(_, power)| *power == 100), "{kinds:?}");
    let whole = kinds.iter().filter(|(kind, _)| *kind == QualityKind::Measured);
    assert!(whole.clone().count() >= 4 && whole.clone().all(|(_, power)| *power == 400), "{kinds:?}");
    assert_eq!(kinds.last().unwrap().0, QualityKind::Measured, "it is read again");
    assert_eq!(whole_uj, 99 * 400, "and what it counted meanwhile is in the sum");
}

#[test]
fn under_a_meter_of_the_node_a_part_that_is_known_in_part_is_in_the_rest() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let outer = node(&mut ledger);
    let one = ledger.meters.meter("package-0", Scope::Package, QualityKind::Measured, TIMEOUT);
    ledger.meters.meter("package-1", Scope::Package, QualityKind::Measured, TIMEOUT);
    for (at_ns, node_uj, cpu_uj) in [(0, 0, 0), (SECOND, 500, 100)] {
        ledger.meters.read_counter(outer, at_ns, node_uj);
        ledger.meters.read_counter(one, at_ns, cpu_uj);
        ledger.weigh_job(1, Weights { cpu: 10, ..Weights::default() });
        ledger.weigh_node(Weights { cpu: 10, ..Weights::default() });
        let Some(closed) = ledger.close(at_ns) else { continue };
        assert_eq!((closed.whole_uj, closed.kind), (500, QualityKind::Measured));
        assert_eq!(closed.metered, [false, false, true, true]);
        let job = closed.lines[&Who::Job(1)];
        assert_eq!((job.active_uj[CPU], job.active_uj[REST]), (0, 500));
    }
}

#[test]
fn an_estimate_is_not_added_to_what_was_measured() {
    let mut ledger = ledger(IdleTo::Unassigned, Some(0));
    let guess = ledger.meters.meter("estimate", Scope::Package, QualityKind::Estimated, TIMEOUT);
    let package = ledger.meters.meter("package-0", Scope::Package, QualityKind::Measured, TIMEOUT);
    for second in 0..2 {
        ledger.meters.read_counter(guess, second * SECOND, second * 70);
        ledger.meters.read_counter(package, second * SECOND, second * 100);
        let closed = ledger.close(second * SECOND);
        assert_eq!(
            closed.map(|closed| (closed.whole_uj, closed.kind)),
            match second {
                0 => None,
                _ => Some((100, QualityKind::Measured)),
            }
        );
    }
}

/// Seconds of a machine with a meter of its own, 120 W at rest, of which the processors show 40 W.
fn rest(ledger: &mut EnergyLedger, seconds: std::ops::Range<i64>, with_bmc: bool) {
    for second in seconds {
        if with_bmc {
            let meter = node(ledger);
            ledger.meters.read_counter(meter, second * SECOND, second * 120_000_000);
        }
        let package = ledger.meters.meter("rapl", Scope::Package, QualityKind::Measured, 2 * SECOND);
        ledger.meters.read_counter(package, second * SECOND, second * 40_000_000);
        self::second(ledger, 10);
        ledger.close(second * SECOND);
    }
}

#[test]
fn idle_power_is_learned_for_each_set_of_meters() {
    let mut ledger = ledger(IdleTo::Unassigned, None);
    // The controller answers later than the processors: what these showed alone is not all there is.
    rest(&mut ledger, 0..7, false);
    rest(&mut ledger, 7..14, true);
    let expected = [("bmc, processors".to_owned(), 120_000), ("processors".to_owned(), 40_000)];
    assert_eq!(idle_mw(&ledger), expected);
}

#[test]
fn what_was_learned_before_holds_from_the_first_window_on() {
    let mut before = ledger(IdleTo::Unassigned, None);
    rest(&mut before, 0..7, true);
    let mut after = ledger(IdleTo::Unassigned, None);
    before.machine_idle.learned().for_each(|learned| after.machine_idle.recall(learned));
    assert!(!after.machine_idle.is_unknown());
    // The first thing that it sees is a busy machine.
    let busy = |ledger: &mut EnergyLedger| {
        let meter = node(ledger);
        let package = ledger.meters.meter("rapl", Scope::Package, QualityKind::Measured, TIMEOUT);
        for (at_ns, node_uj, cpu_uj) in [(0, 0, 0), (SECOND, 300_000_000, 200_000_000)] {
            ledger.meters.read_counter(meter, at_ns, node_uj);
            ledger.meters.read_counter(package, at_ns, cpu_uj);
            ledger.weigh_job(1, Weights { cpu: 4_000_000_000, ..Weights::default() });
            self::second(ledger, 4000);
            ledger.close(at_ns).into_iter().for_each(|closed| {
                assert!(!closed.idle_assumed);
                assert_eq!(joules(closed.lines[&Who::Idle].total_uj()), 120);
                assert_eq!(joules(closed.lines[&Who::Job(1)].total_uj()), 180);
            });
        }
    };
    busy(&mut after);
    assert_eq!(idle_mw(&after), [("bmc, processors".to_owned(), 120_000)]);
}

#[test]
fn until_idle_power_is_known_it_is_marked_as_estimated() {
    let mut ledger = ledger(IdleTo::Unassigned, None);
    assert!(ledger.machine_idle.is_unknown());
    ledger.machine_idle.assume(30_000, 10_000);
    let meter = node(&mut ledger);
    for (at_ns, node_uj) in [(0, 0), (SECOND, 300_000_000)] {
        ledger.meters.read_counter(meter, at_ns, node_uj);
        ledger.weigh_job(1, Weights { cpu: 4_000_000_000, ..Weights::default() });
        second(&mut ledger, 4000);
        let Some(closed) = ledger.close(at_ns) else { continue };
        assert!(closed.idle_assumed);
        // Nothing but the node has a meter: processors and memory are in the rest.
        assert_eq!(closed.lines[&Who::Idle].idle_uj, [0, 0, 0, 40_000_000]);
        assert_eq!(joules(closed.lines[&Who::Job(1)].total_uj()), 260);
    }
}

#[test]
fn a_job_that_all_but_sleeps_pays_little_also_before_idle_power_is_known() {
    let mut ledger = ledger(IdleTo::Unassigned, None);
    ledger.machine_idle.assume(10_000, 0);
    let meter = node(&mut ledger);
    for at_ns in [0, SECOND] {
        ledger.meters.read_power(meter, at_ns, 210_000);
        // A fortieth of the machine, and all of that is the job: too much for a quiet window.
        ledger.weigh_job(1, Weights { cpu: 100_000_000, ..Weights::default() });
        second(&mut ledger, 100);
        let Some(closed) = ledger.close(at_ns) else { continue };
        assert!(closed.idle_assumed);
        assert_eq!(joules(closed.lines[&Who::Job(1)].total_uj()), 5);
        assert_eq!(joules(closed.lines[&Who::Idle].total_uj()), 205);
    }
}

#[test]
fn without_a_meter_nothing_is_charged() {
    let mut ledger = ledger(IdleTo::Holders, Some(100));
    ledger.weigh_job(1, Weights { cpu: 5, memory: 5, held: 5 });
    assert_eq!(ledger.close(SECOND), None);
}

/// What may happen to a machine in one tick.
#[derive(Clone, Debug)]
enum Event {
    Weigh(u32, u64, u64),
    Node(u64),
    Gpus(u32, u64, u64),
    Leave(u32),
    Read { meter: usize, grown_uj: u64 },
    Restart(usize),
    Pass(i64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..4u32, 0..5_000_000_000u64, 0..1u64 << 50).prop_map(|(slot, cpu, memory)| Event::Weigh(slot, cpu, memory)),
        2 => (0..9_000_000_000u64).prop_map(Event::Node),
        2 => (0..4u32, 0..900_000_000u64, 0..900_000_000u64).prop_map(|(slot, a, i)| Event::Gpus(slot, a, i)),
        1 => (0..4u32).prop_map(Event::Leave),
        6 => (0..5usize, 0..900_000_000u64).prop_map(|(meter, grown_uj)| Event::Read { meter, grown_uj }),
        1 => (0..5usize).prop_map(Event::Restart),
        6 => (1..20_000_000_000i64).prop_map(Event::Pass),
    ]
}

proptest! {
    /// Whatever meters and jobs do: every window's lines add up to its meter, and windows of a counter that
    /// was read throughout add up to the counter's growth.
    #[test]
    fn jobs_system_and_idle_are_what_the_meter_says(
        events in prop::collection::vec(event(), 1..200),
        idle_w in prop::option::of(0..400u64),
        holders in any::<bool>(),
        with_gpus in any::<bool>(),
    ) {
        let mut ledger = ledger(if holders { IdleTo::Holders } else { IdleTo::Unassigned }, idle_w);
        let scopes = [
            Scope::Node { rank: 1, with_gpus }, Scope::Board, Scope::Package, Scope::Package, Scope::Memory,
        ];
        let meters: Vec<MeterId> = (0..5)
            .map(|index| ledger.meters.meter(&format!("meter {index}"), scopes[index], QualityKind::Measured, TIMEOUT))
            .collect();
        let mut counters = [0i64; 5];
        let mut gpus = [(0u64, 0u64); 4];
        let mut now_ns = 0;
        let mut last_end_ns = i64::MIN;
        for event in events {
            match event {
                Event::Weigh(slot, cpu, memory) => ledger.weigh_job(slot, Weights { cpu, memory, held: cpu / 2 }),
                Event::Node(cpu) => ledger.weigh_node(Weights { cpu, memory: cpu, held: cpu.saturating_mul(2) }),
                Event::Gpus(slot, active, idle) => {
                    let line = &mut gpus[slot as usize];
                    *line = (line.0 + active, line.1 + idle);
                    ledger.charge_gpus(Who::Job(slot), line.0, line.1);
                }
                Event::Leave(slot) => {
                    ledger.leave(slot);
                    gpus[slot as usize] = (0, 0);
                }
                Event::Read { meter, grown_uj } => {
                    counters[meter] += grown_uj as i64;
                    ledger.meters.read_counter(meters[meter], now_ns, counters[meter]);
                }
                Event::Restart(meter) => counters[meter] = 0,
                Event::Pass(elapsed_ns) => now_ns += elapsed_ns,
            }
            if let Some(closed) = ledger.close(now_ns) {
                let sum: i64 = closed.lines.values().map(Line::total_uj).sum();
                prop_assert_eq!(sum, closed.whole_uj as i64);
                prop_assert!(closed.begin_ns >= last_end_ns && closed.end_ns > closed.begin_ns);
                last_end_ns = closed.end_ns;
            }
        }
    }

    #[test]
    fn windows_one_after_the_other_add_up_to_the_counter(
        steps in prop::collection::vec((1..5_000_000_000i64, 0..900_000_000i64, 1..4usize), 2..60),
    ) {
        let mut ledger = ledger(IdleTo::Unassigned, Some(50));
        let fast = ledger.meters.meter("fast", Scope::Package, QualityKind::Measured, TIMEOUT);
        let slow = ledger.meters.meter("slow", Scope::Memory, QualityKind::Measured, TIMEOUT);
        let (mut now_ns, mut counter_uj, mut sum) = (0, 0, 0u64);
        let mut closed_to = None;
        let mut at_time = vec![];
        for (index, (elapsed_ns, grown_uj, every)) in steps.into_iter().enumerate() {
            now_ns += elapsed_ns;
            counter_uj += grown_uj;
            ledger.meters.read_counter(fast, now_ns, counter_uj);
            at_time.push((now_ns, counter_uj));
            if index % every == 0 {
                ledger.meters.read_counter(slow, now_ns, 0);
            }
            if let Some(closed) = ledger.close(now_ns) {
                sum += closed.whole_uj;
                closed_to.get_or_insert(closed.begin_ns);
                let begin = at_time.iter().find(|(at, _)| Some(*at) == closed_to);
                let end = at_time.iter().find(|(at, _)| *at == closed.end_ns);
                if let (Some((_, begin_uj)), Some((_, end_uj))) = (begin, end) {
                    prop_assert_eq!(sum as i64, end_uj - begin_uj);
                }
            }
        }
    }
}
