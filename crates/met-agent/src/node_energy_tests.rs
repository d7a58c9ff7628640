use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use met_core::job::{ProcessId, Totals};
use met_core::{JOB, Table, Window};
use met_sources::Options;
use proptest::prelude::*;

use super::machine::estimate_of;
use super::*;
use crate::sampler::{Known, Sampler};
use met_core::sample;

const SECOND: i64 = 1_000_000_000;
const WATT_SECOND: i64 = 1_000_000;

fn table(name: &str) -> &'static Table {
    met_sources::catalogue().into_iter().find(|table| table.name == name).unwrap()
}

type Reading<'a> = (&'a [&'a str], &'a [(&'a str, i64)]);

/// A machine of four CPUs at a time of the test's choosing.
struct Bench {
    energy: NodeEnergy,
    map: JobMap,
    now_ns: i64,
    labels: HashMap<&'static str, Vec<Vec<String>>>,
    batches: Vec<(&'static str, i64, Batch)>,
    rows: Batch,
    windows: Vec<EnergyWindow>,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Config)) -> Bench {
        let root = tempfile::tempdir().unwrap();
        let cpus: String = (0..4).map(|cpu| format!("cpu{cpu} 0 0 0 0\n")).collect();
        write(root.path(), "proc/stat", &format!("cpu 0 0 0 0\n{cpus}"));
        write(root.path(), "proc/meminfo", "MemTotal: 8000000 kB\n");
        let mut config = Config::default();
        change(&mut config);
        let energy = NodeEnergy::new(&Host::at(root.path()).unwrap(), &config, Duration::from_secs(1));
        Bench {
            energy,
            map: JobMap::default(),
            now_ns: 100 * SECOND,
            labels: HashMap::new(),
            batches: Vec::new(),
            rows: Batch::new(&JOB),
            windows: Vec::new(),
        }
    }

    fn begin(&mut self, slot: u32, cpus: Option<i64>) {
        let mut record = sample::bare(slot, "job");
        record.allocated.cpus = cpus;
        self.map.add_job(slot, None);
        self.energy.begin(slot, &record, self.now_ns, Watched::default());
    }

    /// A source's rows: their labels and their cells.
    fn read(&mut self, source: &'static str, every_ns: i64, rows: &[Reading<'_>]) {
        let table = table(source);
        let mut batch = Batch::new(table);
        batch.window = Window { begin_ns: self.now_ns - 1000, end_ns: self.now_ns };
        let labels = rows.iter().map(|(labels, _)| labels.iter().map(|&label| label.to_owned()).collect());
        self.labels.insert(source, labels.collect());
        for (part, (_, cells)) in (0..).zip(rows) {
            let row = batch.push_part(Subject::Node, part);
            for (column, cell) in *cells {
                row[table.column(column).unwrap()] = *cell;
            }
        }
        self.batches.push((source, every_ns, batch));
    }

    fn package(&mut self, energy_uj: i64) {
        self.read("rapl", SECOND, &[(&["package-0", "package-0", "x"], &[("energy", energy_uj)])]);
    }

    /// CPU time of the whole machine so far.
    fn node(&mut self, busy_ns: i64) {
        let zero = ["cpu_nice", "cpu_system", "cpu_interrupt", "cpu_soft_interrupt"].map(|name| (name, 0));
        let memory = [("memory_total", 8 << 30), ("memory_available", 4 << 30)];
        let cells: Vec<(&str, i64)> = zero.into_iter().chain(memory).chain([("cpu_user", busy_ns)]).collect();
        self.read("node", SECOND, &[(&[], &cells)]);
    }

    fn job(&mut self, slot: u32, cpu_ns: i64) {
        let cells = self.rows.push(Subject::Job(slot));
        cells[column::CPU] = cpu_ns;
        cells[column::MEMORY_NEEDED] = 1 << 30;
    }

    /// Takes in what was read, and moves on by a second. Whatever is closed must add up.
    fn tick(&mut self) {
        let before = self.energy.last_window().cloned();
        let sources = self.batches.iter().map(|(name, period_ns, batch)| NodeSource {
            name,
            period_ns: *period_ns,
            batches: std::slice::from_ref(batch),
            labels: &self.labels[name],
        });
        self.energy.follow(self.now_ns, sources, &self.rows, &Gpus::default(), &self.map);
        if let Some(window) = self.energy.last_window().filter(|&window| Some(window) != before.as_ref()) {
            let shares_uj = window.jobs_uj + window.system_uj + window.idle_uj + window.unassigned_uj;
            assert_eq!(shares_uj, window.whole_uj);
            self.windows.push(window.clone());
        }
        assert_eq!(self.energy.windows.balance.off_uj(), 0);
        self.batches.clear();
        self.rows.clear();
        self.now_ns += SECOND;
    }

    fn value(&self, slot: u32, column: usize) -> Option<i64> {
        let mut cells = vec![MISSING; JOB.columns.len()];
        self.energy.fill(slot, &mut cells);
        Some(cells[column]).filter(|&cell| cell != MISSING)
    }

    fn whole_uj(&self) -> i64 {
        self.windows.iter().map(|window| window.whole_uj).sum()
    }
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_job_asleep_alone_on_a_200_w_node_pays_nothing_and_idle_shows_as_idle() {
    let mut bench = Bench::new(|_| {});
    bench.begin(1, None);
    for second in 0..41 {
        if second % 10 == 0 {
            bench.read("ipmi", 10 * SECOND, &[(&["node"], &[("power", 200_000)])]);
        }
        bench.node(second * SECOND / 100);
        bench.job(1, 0);
        bench.tick();
    }
    // Until the controller has answered twice there are estimates, and they are marked.
    let measured: Vec<&EnergyWindow> =
        bench.windows.iter().filter(|window| window.kind == QualityKind::Measured).collect();
    assert!(measured.iter().map(|window| window.whole_uj).sum::<i64>() >= 30 * 200 * WATT_SECOND);
    for window in measured {
        assert_eq!((window.meter.as_str(), window.jobs_uj, window.system_uj), ("IPMI", 0, 0));
        assert_eq!(window.watts(window.idle_uj).round(), 200.0);
    }
    assert_eq!(bench.value(1, column::ENERGY), Some(0));
    assert_eq!(bench.value(1, column::ENERGY_CPU), None, "no meter separates it from the rest");
}

#[test]
fn a_holder_of_cpus_is_charged_idle_separately() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(40.0));
    bench.begin(1, Some(3));
    for second in 0..11 {
        bench.package(second * 100 * WATT_SECOND);
        bench.node(second * 2 * SECOND);
        bench.job(1, second * SECOND);
        bench.tick();
    }
    // 10 s at 100 W: 40 W idle, of which three of four CPUs; half of the 60 W above.
    assert_eq!(bench.value(1, column::ENERGY_IDLE), Some(300 * WATT_SECOND));
    assert_eq!(bench.value(1, column::ENERGY), Some(600 * WATT_SECOND));
    assert_eq!(bench.whole_uj(), 1000 * WATT_SECOND);
}

#[test]
fn a_job_whose_allocation_is_known_late_is_charged_idle_from_then_on() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(40.0));
    bench.begin(1, None);
    for second in 0..11 {
        if second == 6 {
            let mut record = sample::bare(1, "job");
            bench.energy.hold(1, &record);
            record.allocated.cpus = Some(4);
            record.nodes = vec!["here".into(), "there".into()];
            bench.energy.hold(1, &record);
            // A ledger that does not know it takes nothing back.
            record.allocated.cpus = None;
            bench.energy.hold(1, &record);
        }
        bench.package(second * 100 * WATT_SECOND);
        bench.node(second * 2 * SECOND);
        bench.job(1, second * SECOND);
        bench.tick();
    }
    // Half of what it was given is on another node: two of four CPUs for 5 s.
    assert_eq!(bench.value(1, column::ENERGY_IDLE), Some(100 * WATT_SECOND));
}

#[test]
fn a_longer_interval_does_not_stop_the_energy() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    let mut at_s = 0;
    for tick in 0..8 {
        bench.package(at_s * 50 * WATT_SECOND);
        bench.node(at_s * SECOND);
        bench.job(1, at_s * SECOND);
        bench.tick();
        if tick == 3 {
            bench.energy.set_interval(Duration::from_secs(10));
        }
        let step_s = if tick < 3 { 1 } else { 10 };
        bench.now_ns += (step_s - 1) * SECOND;
        at_s += step_s;
    }
    assert_eq!(bench.value(1, column::ENERGY), Some(43 * 50 * WATT_SECOND));
}

/// A job that has half of a machine of 100 W, whose counter is unreadable in some seconds; in others it is not
/// read.
fn with_faults(unreadable: std::ops::Range<i64>, stopped: std::ops::Range<i64>) -> Bench {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    for second in 0..200 {
        if stopped.contains(&second) {
            bench.now_ns += SECOND;
            continue;
        }
        // The counter goes on while it is unreadable.
        if !unreadable.contains(&second) {
            bench.package(second * 100 * WATT_SECOND);
        }
        bench.node(second * 2 * SECOND);
        bench.job(1, second * SECOND);
        bench.tick();
    }
    bench
}

fn energy_of(bench: &Bench, slot: u32) -> met_core::job::Figure {
    let mut totals = Totals::default();
    bench.energy.charged(slot).unwrap().put(&mut totals);
    totals.figure(column::ENERGY).unwrap().clone()
}

#[test]
fn what_a_meter_counts_while_it_cannot_be_read_is_shared_by_what_jobs_did() {
    for bench in [with_faults(10..35, 0..0), with_faults(0..0, 10..35)] {
        assert!(bench.windows.iter().all(|window| window.watts(window.whole_uj).round() == 100.0));
        assert_eq!(bench.whole_uj(), 199 * 100 * WATT_SECOND);
        let energy = energy_of(&bench, 1);
        assert_eq!((energy.value, energy.kind), (199 * 50 * WATT_SECOND, QualityKind::Attributed));
        assert_eq!(energy.source, "RAPL, by CPU time, across missing readings");
    }
}

#[test]
fn what_is_counted_in_a_long_gap_is_unassigned_and_jobs_are_lower_bounds() {
    let bench = with_faults(0..0, 10..110);
    assert_eq!(bench.whole_uj(), 199 * 100 * WATT_SECOND);
    let unassigned_uj: i64 = bench.windows.iter().map(|window| window.unassigned_uj).sum();
    assert_eq!(unassigned_uj, 101 * 100 * WATT_SECOND);
    let energy = energy_of(&bench, 1);
    assert_eq!((energy.value, energy.kind), (98 * 50 * WATT_SECOND, QualityKind::LowerBound));
    assert_eq!(energy.source, "RAPL, by CPU time, part of it unassigned");
}

#[test]
fn one_glitch_of_a_controller_is_no_energy() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    for second in 0..31 {
        let power = if second == 15 { 65_535_000 } else { 10_000 };
        bench.read("ipmi", SECOND, &[(&["node"], &[("power", power)])]);
        bench.node(second * SECOND);
        bench.job(1, second * SECOND);
        bench.tick();
    }
    assert_eq!(bench.whole_uj(), 300 * WATT_SECOND);
    let energy = energy_of(&bench, 1);
    assert_eq!((energy.value, energy.kind), (300 * WATT_SECOND, QualityKind::Attributed));
    assert_eq!(energy.source, "IPMI, by CPU time, across missing readings");
}

#[test]
fn a_job_that_began_unobserved_has_its_share_of_that_time() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    for second in 0..40 {
        if (5..30).contains(&second) {
            bench.now_ns += SECOND;
            continue;
        }
        if second == 30 {
            let mut record = sample::bare(2, "late");
            record.start_ns = Some(clock::realtime_ns() - 20 * SECOND);
            bench.map.add_job(2, None);
            bench.energy.begin(2, &record, bench.now_ns, Watched::default());
        }
        bench.package(second * 100 * WATT_SECOND);
        bench.node(second * SECOND);
        let late_ns = (second - 10).max(0) * SECOND / 2;
        bench.job(1, second * SECOND - late_ns);
        if second >= 30 {
            bench.job(2, late_ns);
        }
        bench.tick();
    }
    let joules = |slot: u32| bench.value(slot, column::ENERGY).unwrap() / WATT_SECOND;
    assert_eq!((joules(1), joules(2)), (2450, 1450));
}

#[test]
fn without_one_of_its_packages_the_whole_is_a_lower_bound() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    let labels: [&[&str]; 2] = [&["package-0", "package-0", "x"], &["package-1", "package-1", "y"]];
    for second in 0..6 {
        // The second one is there and cannot be read.
        bench.read("rapl", SECOND, &[(labels[0], &[("energy", second * 50 * WATT_SECOND)])]);
        let names = labels.map(|labels| labels.iter().map(|&label| label.to_owned()).collect());
        bench.labels.insert("rapl", names.to_vec());
        bench.node(second * SECOND);
        bench.job(1, second * SECOND);
        bench.tick();
    }
    assert_eq!(bench.windows.len(), 5);
    assert!(bench.windows.iter().all(|window| window.kind == QualityKind::LowerBound));
    let mut totals = Totals::default();
    bench.energy.charged(1).unwrap().put(&mut totals);
    let energy = totals.figure(column::ENERGY).unwrap();
    assert_eq!((energy.value, energy.kind), (250 * WATT_SECOND, QualityKind::LowerBound));
    assert_eq!(energy.source, "RAPL, by CPU time, a meter missing");
}

/// A machine of four CPUs with a controller, 100 W at rest and 50 W for each busy CPU: its first job is busy.
fn first_job_is_busy(bench: &mut Bench) -> Totals {
    bench.begin(1, None);
    for second in 0..31 {
        if second % 10 == 0 {
            bench.read("ipmi", 10 * SECOND, &[(&["node"], &[("power", 300_000)])]);
        }
        bench.node(second * 4 * SECOND);
        bench.job(1, second * 4 * SECOND);
        bench.tick();
    }
    let mut totals = Totals::default();
    bench.energy.charged(1).unwrap().put(&mut totals);
    totals
}

#[test]
fn until_idle_power_is_known_the_split_is_marked_as_an_estimate() {
    let mut bench = Bench::new(|_| {});
    let totals = first_job_is_busy(&mut bench);
    let energy = totals.figure(column::ENERGY).unwrap();
    assert_eq!(energy.kind, QualityKind::Estimated);
    assert_eq!(energy.source, "IPMI, by CPU time, idle power estimated");
    // Four unknown cores at 6 W, of which a third is idle power, and 8 GB of memory at 3 W.
    assert_eq!(bench.windows.last().unwrap().watts(bench.windows.last().unwrap().idle_uj).round(), 10.0);
    assert_eq!(totals.get(column::ENERGY_CPU), None, "no meter separates it from the rest");
}

#[test]
fn a_controller_that_answers_soon_is_not_kept_waiting_by_estimates() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    for second in 0..4 {
        if second > 0 {
            bench.read("ipmi", SECOND, &[(&["node"], &[("power", 100_000)])]);
        }
        bench.node(second * SECOND);
        bench.job(1, second * SECOND);
        bench.tick();
    }
    let kinds: Vec<QualityKind> = bench.windows.iter().map(|window| window.kind).collect();
    use QualityKind::{Estimated, Measured};
    assert_eq!(kinds, [Estimated, Measured, Measured], "one for each second between two answers");
    let measured_uj: i64 = bench.windows[1..].iter().map(|window| window.jobs_uj).sum();
    assert_eq!(measured_uj, 200 * WATT_SECOND);
}

#[test]
fn a_controller_that_always_reports_0_is_not_a_meter() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    for second in 0..4 {
        bench.read("redfish", SECOND, &[(&["1", "PowerControl"], &[("power", 0)])]);
        bench.package(second * 60 * WATT_SECOND);
        bench.node(second * SECOND);
        bench.job(1, second * SECOND);
        bench.tick();
    }
    assert!(bench.windows.iter().all(|window| window.meter == "RAPL"));
    assert_eq!(bench.value(1, column::ENERGY), Some(180 * WATT_SECOND));
}

#[test]
fn readings_as_far_apart_as_those_at_rest_teach_idle_power() {
    let mut bench = Bench::new(|_| {});
    for reading in 0..4 {
        bench.package(reading * 2 * 70 * WATT_SECOND);
        bench.node(reading * SECOND / 100);
        bench.tick();
        bench.now_ns += crate::daemon::idle_readings::APART_NS - SECOND;
    }
    let learned = bench.energy.learned_idle();
    assert_eq!(learned.iter().map(LearnedIdle::total_mw).collect::<Vec<_>>(), [70_000]);
}

#[test]
fn what_an_earlier_daemon_learned_holds_for_the_first_job() {
    let mut bench = Bench::new(|_| {});
    for second in 0..31 {
        if second % 10 == 0 {
            bench.read("ipmi", 10 * SECOND, &[(&["node"], &[("power", 100_000)])]);
        }
        bench.node(second * SECOND / 100);
        bench.tick();
    }
    let learned = bench.energy.learned_idle();
    assert_eq!(learned.iter().map(LearnedIdle::total_mw).collect::<Vec<_>>(), [100_000]);
    let mut next = Bench::new(|_| {});
    next.energy.recall_idle(learned.clone());
    let totals = first_job_is_busy(&mut next);
    let energy = totals.figure(column::ENERGY).unwrap();
    assert_eq!((energy.value, energy.kind), (30 * 200 * WATT_SECOND, QualityKind::Attributed));
    assert_eq!(energy.source, "IPMI, by CPU time");
    assert!(next.windows.iter().all(|window| window.watts(window.idle_uj).round() == 100.0));
}

#[test]
fn two_jobs_and_the_system_add_up_to_the_meter() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    bench.begin(2, None);
    for second in 0..6 {
        bench.package(second * 80 * WATT_SECOND);
        bench.node(second * 4 * SECOND);
        bench.job(1, second * 2 * SECOND);
        bench.job(2, second * SECOND);
        bench.tick();
    }
    let joules = |slot: u32| bench.value(slot, column::ENERGY).unwrap() / WATT_SECOND;
    assert_eq!((joules(1), joules(2)), (200, 100));
    assert_eq!(bench.windows.iter().map(|window| window.system_uj).sum::<i64>(), 100 * WATT_SECOND);
}

fn source_of(bench: &Bench, slot: u32) -> String {
    let mut totals = Totals::default();
    bench.energy.charged(slot).unwrap().put(&mut totals);
    totals.figure(column::ENERGY_CPU).unwrap().source.to_string()
}

#[test]
fn jobs_with_equal_cpu_time_are_charged_by_their_instructions() {
    let mut bench = Bench::new(|config| {
        (config.energy.idle_watts, config.energy.weight) = (Some(0.0), Weight::Instructions);
    });
    (1..=3).for_each(|slot| bench.begin(slot, None));
    for second in 0..31 {
        bench.package(second * 80 * WATT_SECOND);
        bench.node(second * 4 * SECOND);
        (1..=3).for_each(|slot| bench.job(slot, second * SECOND));
        // Of the third nothing is counted, as where it has no cgroup; cycles are not what was asked for.
        bench.energy.count(1, "instructions", 7_000 + second * 3_000_000);
        bench.energy.count(2, "instructions", 9_000 + second * 1_000_000);
        bench.energy.count(3, "cpu_cycles", second * 9_000_000);
        bench.tick();
    }
    let joules = |slot: u32| bench.value(slot, column::ENERGY).unwrap() / WATT_SECOND;
    // A quarter of the CPU time each; the first two share theirs 3 : 1.
    assert_eq!((joules(1), joules(2), joules(3)), (900, 300, 600));
    assert_eq!(bench.windows.iter().map(|window| window.system_uj).sum::<i64>(), 600 * WATT_SECOND);
    assert_eq!(source_of(&bench, 1), "RAPL, by instructions among jobs");
    assert_eq!(source_of(&bench, 3), "RAPL, by CPU time");
}

#[test]
fn a_counter_that_does_not_move_is_not_believed() {
    let mut bench = Bench::new(|config| {
        (config.energy.idle_watts, config.energy.weight) = (Some(0.0), Weight::Cycles);
    });
    bench.begin(1, None);
    bench.begin(2, None);
    for second in 0..11 {
        bench.package(second * 100 * WATT_SECOND);
        bench.node(second * 2 * SECOND);
        bench.job(1, second * SECOND);
        bench.job(2, second * SECOND);
        bench.energy.count(1, "cpu_cycles", 5_000);
        bench.energy.count(2, "cpu_cycles", second * 1_000_000);
        bench.tick();
    }
    assert_eq!(bench.value(1, column::ENERGY), Some(500 * WATT_SECOND));
    assert_eq!(source_of(&bench, 1), "RAPL, by CPU time");
}

#[test]
fn instructions_of_a_nested_job_are_not_those_of_the_one_around_it() {
    let mut bench = Bench::new(|config| {
        (config.energy.idle_watts, config.energy.weight) = (Some(0.0), Weight::Instructions);
    });
    (1..=3).for_each(|slot| bench.begin(slot, None));
    bench.map.clear();
    bench.map.add_job(1, None);
    bench.map.add_job(2, Some(1));
    bench.map.add_job(3, None);
    for second in 0..11 {
        bench.package(second * 120 * WATT_SECOND);
        bench.node(second * 3 * SECOND);
        bench.job(1, second * 2 * SECOND);
        bench.job(2, second * SECOND);
        bench.job(3, second * SECOND);
        // 1, 1 and 2 million of their own.
        for (slot, millions) in [(1, 2), (2, 1), (3, 2)] {
            bench.energy.count(slot, "instructions", second * millions * 1_000_000);
        }
        bench.tick();
    }
    let joules = |slot: u32| bench.value(slot, column::ENERGY).unwrap() / WATT_SECOND;
    assert_eq!((joules(1), joules(2), joules(3)), (600, 300, 600));
}

#[test]
fn a_controller_that_takes_four_seconds_delays_no_window_of_the_others_until_it_is_there() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    for second in 0..40 {
        bench.package(second * 60 * WATT_SECOND);
        bench.node(second * SECOND);
        bench.job(1, second * SECOND);
        // Asked every ten seconds, and each answer takes four.
        if second >= 4 && second % 10 == 4 {
            bench.read("ipmi", 10 * SECOND, &[(&["node"], &[("power", 150_000)])]);
        }
        bench.tick();
    }
    let before: Vec<_> = bench.windows.iter().take_while(|window| window.meter == "RAPL").collect();
    assert_eq!(before.len(), 4, "one each second while the controller has not answered");
    let after = &bench.windows[before.len()..];
    assert!(
        after.iter().all(|window| window.meter == "IPMI" && window.watts(window.whole_uj).round() == 150.0)
    );
    // The processors are a part of the node, and not added to it.
    let line = (bench.value(1, column::ENERGY_CPU).unwrap(), bench.value(1, column::ENERGY_REST).unwrap());
    assert_eq!(line, (34 * 60 * WATT_SECOND, 30 * 90 * WATT_SECOND));
}

#[test]
fn cores_lie_in_their_package_and_a_second_interface_is_not_added() {
    let scope = |source: &str, part: u32, label: &str| {
        let (rank, meter) = meter::of(source).unwrap();
        meter.part(rank, part, &[label.to_owned()]).map(|(_, scope)| scope)
    };
    let zones = |label: &str| scope("rapl", 0, label);
    assert_eq!(zones("package-1"), Some(Scope::Package));
    assert_eq!(zones("dram"), Some(Scope::Memory));
    assert_eq!(zones("psys"), Some(Scope::Board));
    assert_eq!((zones("core"), zones("uncore")), (None, None));
    assert_eq!(scope("cray", 1, "cpu"), Some(Scope::Package));
    assert_eq!(scope("cray", 1, "accel0"), None, "cards have a ledger of their own");
    let rank = |source: &str, label: &str| match scope(source, 0, label) {
        Some(Scope::Node { rank, with_gpus: true }) => rank,
        other => panic!("{other:?}"),
    };
    let ranks =
        [rank("cray", "node"), rank("ipmi", "node"), rank("redfish", "1"), rank("hwmon", "power_meter")];
    assert!(ranks.is_sorted() && scope("hwmon", 0, "coretemp").is_none());

    let labels = |names: &[&str]| names.iter().map(|name| vec![(*name).to_owned()]).collect::<Vec<_>>();
    let (cray, rapl, psys) = (labels(&["node", "cpu"]), labels(&["package-0"]), labels(&["psys"]));
    let source = |name, labels| NodeSource { name, period_ns: 0, batches: &[], labels };
    let split_by = |sources: &[NodeSource<'_>]| {
        first_split(sources).map(|rank| met_sources::METERS[rank as usize].source.name)
    };
    assert_eq!(split_by(&[source("cray", &cray), source("rapl", &rapl)]), Some("rapl"));
    assert_eq!(
        split_by(&[source("cray", &cray), source("rapl", &psys)]),
        Some("cray"),
        "the board is no part"
    );
    assert_eq!(split_by(&[source("cray", &cray)]), Some("cray"));
}

#[test]
fn a_nested_job_is_a_part_of_the_one_around_it() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    bench.begin(2, None);
    bench.map.clear();
    bench.map.add_job(1, None);
    bench.map.add_job(2, Some(1));
    for second in 0..11 {
        bench.package(second * 100 * WATT_SECOND);
        bench.node(second * 2 * SECOND);
        // The outer one's figures hold those of the inner one.
        bench.job(1, second * 2 * SECOND);
        bench.job(2, second * SECOND);
        bench.tick();
    }
    assert_eq!(bench.value(2, column::ENERGY), Some(500 * WATT_SECOND));
    assert_eq!(bench.value(1, column::ENERGY), Some(1000 * WATT_SECOND));
    assert_eq!(bench.windows.iter().map(|window| window.jobs_uj).sum::<i64>(), 1000 * WATT_SECOND);
    // It ends with a second of CPU time that only its end reports; the outer one's next figures include it, too.
    bench.energy.leave(2, Some(11 * SECOND), (0, 0), GpuEnergy::default(), bench.now_ns);
    bench.package(1100 * WATT_SECOND);
    bench.node(22 * SECOND);
    bench.job(1, 22 * SECOND);
    bench.tick();
    let settled = bench.energy.take_settled();
    assert_eq!(settled[0].1.line.total_uj(), 550 * WATT_SECOND);
    assert_eq!(bench.value(1, column::ENERGY), Some(1100 * WATT_SECOND));
}

#[test]
fn an_attached_job_whose_processes_left_its_tree_is_charged_a_lower_bound() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    let mut record = sample::bare(1, "job");
    record.start_ns = Some(clock::realtime_ns());
    record.local.as_mut().unwrap().origin = met_core::job::Origin::Attach;
    for slot in [1, 2] {
        bench.map.add_job(slot, None);
        bench.energy.begin(slot, &record, bench.now_ns, Watched::default());
    }
    for second in 0..11 {
        bench.package(second * 100 * WATT_SECOND);
        bench.node(second * 2 * SECOND);
        // What they did before the attachment is not charged.
        bench.job(1, 1000 * SECOND + second * SECOND);
        bench.job(2, 1000 * SECOND + second * SECOND / 10);
        bench.tick();
    }
    assert_eq!(bench.value(1, column::ENERGY), Some(500 * WATT_SECOND));
    // The clocks of both have counted ten seconds.
    let figures = [1, 2].map(|slot| {
        bench.energy.compare(slot, 10 * SECOND);
        let mut totals = Totals::default();
        bench.energy.charged(slot).unwrap().put(&mut totals);
        totals.figure(column::ENERGY).unwrap().clone()
    });
    assert_eq!(
        (figures[0].kind, figures[0].source.text().as_ref()),
        (QualityKind::Attributed, "RAPL, by CPU time")
    );
    assert_eq!((figures[1].value, figures[1].kind), (50 * WATT_SECOND, QualityKind::LowerBound));
    assert_eq!(figures[1].source, "RAPL, by CPU time, without processes that left its tree");
}

#[test]
fn a_job_that_ends_is_settled_when_its_meter_is_read_again() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    for second in 0..3 {
        bench.package(second * 100 * WATT_SECOND);
        bench.node(second * SECOND);
        bench.job(1, second * SECOND);
        bench.tick();
    }
    bench.energy.leave(1, Some(3 * SECOND), (0, 0), GpuEnergy::default(), bench.now_ns);
    assert!(bench.energy.owes() && bench.energy.take_settled().is_empty());
    bench.package(300 * WATT_SECOND);
    bench.node(4 * SECOND);
    bench.tick();
    assert!(!bench.energy.owes());
    let (_, charged) = &bench.energy.take_settled()[0];
    let mut totals = Totals::default();
    charged.put(&mut totals);
    // Two windows alone, and half of the third.
    let energy = totals.figure(column::ENERGY).unwrap();
    assert_eq!((energy.value, energy.kind), (250 * WATT_SECOND, QualityKind::Attributed));
    assert_eq!(energy.source, "RAPL, by CPU time");
    assert_eq!(totals.get(column::COST), None, "no price is known");
}

#[test]
fn the_building_and_the_price_are_in_emissions_and_cost_and_not_in_energy() {
    let mut bench = Bench::new(|config| {
        config.energy.idle_watts = Some(0.0);
        (config.energy.pue, config.energy.price_per_kwh) = (1.5, Some(0.2));
        (config.emissions.provider, config.emissions.grams_per_kwh) =
            (met_config::Provider::Constant, Some(100.0));
    });
    bench.begin(1, None);
    for second in 0..2 {
        bench.package(second * 3600 * WATT_SECOND);
        bench.node(second * SECOND);
        bench.job(1, second * SECOND);
        bench.tick();
    }
    bench.energy.set_factor(Factor { mg_per_kwh: 300_000, source: "rte eco2mix".into(), since_ns: 5 });
    bench.package(2 * 3600 * WATT_SECOND);
    bench.node(2 * SECOND);
    bench.job(1, 2 * SECOND);
    bench.tick();
    // One watt hour at 100 g/kWh, one at 300, half as much again for the building.
    assert_eq!(bench.value(1, column::EMISSIONS), Some(600_000));
    assert_eq!(bench.value(1, column::COST), Some(600_000));
    let emission = bench.energy.charged(1).unwrap().emission().unwrap();
    assert_eq!((emission.factor_source.as_str(), emission.factor_time_ns), ("rte eco2mix", Some(5)));
}

#[test]
fn without_a_meter_there_is_a_marked_estimate() {
    let mut bench = Bench::new(|_| {});
    bench.begin(1, None);
    for second in 0..11 {
        bench.node(second * 4 * SECOND);
        bench.job(1, second * 4 * SECOND);
        bench.tick();
    }
    // Four unknown cores at 6 W, of which a third is idle power, and 8 GB of memory at 3 W.
    assert_eq!(bench.value(1, column::ENERGY_CPU), Some(168 * WATT_SECOND));
    let mut totals = Totals::default();
    bench.energy.charged(1).unwrap().put(&mut totals);
    let energy = totals.figure(column::ENERGY_CPU).unwrap();
    assert_eq!(energy.kind, QualityKind::Estimated);
    assert_eq!(energy.source, "4 cores of an unknown model, by CPU time");
    assert!(bench.energy.meters().is_empty());
}

#[test]
fn a_virtual_machine_is_not_charged_a_whole_processor() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "proc/stat", "cpu 0\ncpu0 0\ncpu1 0\n");
    let cpu = "model name\t: AMD EPYC 7742 64-Core Processor\nphysical id\t: 0\nflags\t\t: fpu sse";
    write(root.path(), "proc/cpuinfo", &format!("{cpu}\n"));
    let estimate = || estimate_of(&Host::at(root.path()).unwrap());
    assert_eq!(
        (estimate().cpu_full_mw, &*estimate().source),
        (225_000, "thermal design power of AMD EPYC 7742")
    );
    write(root.path(), "proc/cpuinfo", &format!("{cpu} hypervisor\n"));
    assert_eq!((estimate().cpu_full_mw, &*estimate().source), (12_000, "2 virtual CPUs"));
}

#[test]
fn ticks_that_are_rare_leave_no_gap() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.energy.looks.interval_ns = 300 * SECOND;
    bench.begin(1, None);
    for tick in 0..4 {
        bench.package(tick * 300 * 50 * WATT_SECOND);
        bench.node(tick * 300 * SECOND);
        bench.job(1, tick * 300 * SECOND);
        bench.tick();
        bench.now_ns += 299 * SECOND;
    }
    assert_eq!(bench.value(1, column::ENERGY), Some(900 * 50 * WATT_SECOND));
}

#[test]
fn what_an_earlier_daemon_charged_is_added() {
    let mut bench = Bench::new(|config| config.energy.idle_watts = Some(0.0));
    bench.begin(1, None);
    let mut cells = vec![MISSING; JOB.columns.len()];
    cells[column::ENERGY] = 7 * WATT_SECOND;
    bench.energy.recall(1, &cells, Watched { lived_ms: 60_000, ..Watched::default() });
    assert_eq!(bench.value(1, column::ENERGY), Some(7 * WATT_SECOND));
    for second in 0..2 {
        bench.package(second * WATT_SECOND);
        bench.node(second * SECOND);
        bench.job(1, second * SECOND);
        bench.tick();
    }
    assert_eq!(bench.value(1, column::ENERGY), Some(8 * WATT_SECOND));
    let energy = |bench: &Bench| {
        let mut totals = Totals::default();
        bench.energy.charged(1).unwrap().put(&mut totals);
        totals.figure(column::ENERGY).unwrap().clone()
    };
    assert_eq!(energy(&bench).kind, QualityKind::Attributed);
    // Nothing was measured in between, so its use then is unknown.
    bench.energy.recall(1, &cells, Watched { lived_ms: 60_000, missed_ms: 5_000, ..Watched::default() });
    let bound = energy(&bench);
    assert_eq!((bound.value, bound.kind), (8 * WATT_SECOND, QualityKind::LowerBound));
    assert_eq!(bound.source, "RAPL, by CPU time, not watched all the time");
}

/// A captured machine of two sockets with memory, whose counters go on as the test says.
struct Captured(tempfile::TempDir);

const ZONES: [(&str, &str); 3] =
    [("intel-rapl:0", "package-0"), ("intel-rapl:1", "package-1"), ("intel-rapl:0:0", "dram")];

impl Captured {
    fn new() -> Captured {
        let machine = Captured(tempfile::tempdir().unwrap());
        machine.put("proc/sys/kernel/random/boot_id", "b\n");
        machine.put("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n");
        machine.put("proc/self/mountinfo", "24 29 0:22 / /proc rw,nosuid - proc proc rw\n");
        machine.put("proc/3113/statm", "1305 480 400 5 0 116 0\n");
        for (path, name) in ZONES {
            machine.put(&format!("sys/class/powercap/{path}/name"), &format!("{name}\n"));
            machine.put(&format!("sys/class/powercap/{path}/max_energy_range_uj"), "262143328850\n");
        }
        machine.advance(0, 0);
        machine
    }

    fn put(&self, path: &str, text: &str) {
        write(self.0.path(), path, text);
    }

    /// So many steps of energy, and of ticks of CPU time that were used, half of them by a process.
    fn advance(&self, step: i64, busy_ticks: i64) {
        for (index, (path, _)) in (1..).zip(ZONES) {
            let energy_uj = 1_000_000 + step * index * 777_777;
            self.put(&format!("sys/class/powercap/{path}/energy_uj"), &format!("{energy_uj}\n"));
        }
        self.put("proc/stat", &format!("cpu {busy_ticks} 0 0 900 0 0 0 0 0 0\ncpu0 0 0 0 0\n"));
        let ticks = busy_ticks / 2;
        self.put(
            "proc/3113/stat",
            &format!("3113 (x) R 1 3113 3113 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 7 0 0\n"),
        );
    }

    fn sampler(&self, config: &Config) -> Sampler {
        let only: &[&str] = &["process", "node", "rapl"];
        let options = Options {
            node: true,
            only: Some(only),
            period_max: Some(Duration::from_millis(1)),
            ..Options::default()
        };
        let host = Host::at(self.0.path()).unwrap();
        Sampler::with(host, Duration::from_secs(1), config, &options)
    }
}

#[test]
fn the_idle_power_of_a_machine_without_jobs_is_learned() {
    let machine = Captured::new();
    let mut sampler = machine.sampler(&Config::default());
    assert!(!sampler.is_at_work() && sampler.slowest_meter().is_some());
    let configured =
        Config { energy: Energy { idle_watts: Some(9.0), ..Config::default().energy }, ..Config::default() };
    assert_eq!(machine.sampler(&configured).slowest_meter(), None, "there is nothing to learn");
    for step in 0..4 {
        machine.advance(step, 0);
        sampler.look_at_rest(true);
        // A span of less than five seconds says little about power.
        std::thread::sleep(Duration::from_millis(1750));
    }
    sampler.end_look_at_rest();
    let learned = sampler.energy().learned_idle();
    let meters: Vec<&str> = learned.iter().map(|learned| learned.meters.as_str()).collect();
    assert_eq!(meters, ["processors, memory"]);
    assert!(learned[0].idle_mw[0] > 0 && learned[0].idle_mw[1] > 0, "{learned:?}");
    assert!(sampler.machine.drain().is_empty() && !sampler.is_at_work());
}

#[test]
fn a_sampler_on_a_captured_machine_charges_what_its_counters_show() {
    let machine = Captured::new();
    let mut config = Config::default();
    config.energy.idle_watts = Some(0.0);
    let mut sampler = machine.sampler(&config);
    let mut record = sample::bare(1, "x");
    record.local.as_mut().unwrap().main = Some(ProcessId { pid: 3113, start_ticks: 7 });
    let slot = sampler.add(&record).unwrap();
    sampler.look();
    let mut whole_uj = 0;
    for step in 1..=5 {
        std::thread::sleep(Duration::from_millis(2));
        machine.advance(step, step * 10);
        sampler.look();
        let window = sampler.energy().last_window().unwrap();
        assert_eq!(window.jobs_uj + window.system_uj + window.idle_uj, window.whole_uj);
        assert_eq!(window.meter, "RAPL");
        whole_uj += window.whole_uj;
    }
    assert_eq!(whole_uj, 5 * (1 + 2 + 3) * 777_777);
    assert!(sampler.remove(slot, Known::default()).is_some());
    let settled = sampler.settle_now();
    let mut totals = Totals::default();
    settled[0].1.put(&mut totals);
    // Half of the CPU time was its own.
    let cpu_uj = totals.get(column::ENERGY_CPU).unwrap();
    assert!((cpu_uj - 5 * 3 * 777_777 / 2).abs() <= 5, "{cpu_uj}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_jobs_are_charged_what_the_windows_say(
        steps in prop::collection::vec((0..4i64, prop::array::uniform3(0..900_000_000i64), any::<bool>(), any::<bool>()), 2..40),
    ) {
        let mut bench = Bench::new(|_| {});
        for slot in 0..3 {
            bench.begin(slot, Some(1));
        }
        let (mut busy_ns, mut energy_uj, mut cpu_ns) = (0, 0, [0; 3]);
        for (wait, grown, readable, bmc) in steps {
            bench.now_ns += wait * SECOND;
            busy_ns += grown.iter().sum::<i64>() + 5_000_000;
            energy_uj += grown[0] / 7;
            if readable {
                bench.package(energy_uj);
            }
            if bmc {
                bench.read("ipmi", 10 * SECOND, &[(&["node"], &[("power", 90_000 + grown[1] / 10_000)])]);
            }
            bench.node(busy_ns);
            for slot in 0..3 {
                cpu_ns[slot] += grown[slot];
                bench.job(slot as u32, cpu_ns[slot]);
            }
            bench.tick();
        }
        let charged: i64 = (0..3).filter_map(|slot| bench.value(slot, column::ENERGY)).sum();
        let lines: i64 = bench.windows.iter().map(|window| window.jobs_uj).sum();
        prop_assert_eq!(charged, lines);
    }
}

#[test]
fn energy_that_is_nearly_all_of_gpus_is_as_well_known_as_theirs() {
    let mut bench = Bench::new(|_| {});
    bench.begin(1, None);
    for second in 0..11 {
        bench.node(second * 4 * SECOND);
        bench.job(1, second * 4 * SECOND);
        bench.tick();
    }
    let mut energy = |gpus_uj: i64, kind: QualityKind| {
        let mut totals = Totals::default();
        totals.set(column::GPU_ENERGY, gpus_uj, kind, "energy counter");
        bench.energy.ledger.charge_gpus(Who::Job(1), gpus_uj as u64, 0);
        bench.energy.follow_open_gpus();
        bench.energy.charged(1).unwrap().put(&mut totals);
        assert_eq!(totals.figure(column::ENERGY_CPU).unwrap().kind, QualityKind::Estimated);
        totals.figure(column::ENERGY).unwrap().clone()
    };
    // Processors and memory are estimated, less than 200 J of them.
    let most = energy(40_000 * WATT_SECOND, QualityKind::Measured);
    assert!((40_168..40_200).contains(&(most.value / WATT_SECOND)), "{most:?}");
    assert_eq!(most.kind, QualityKind::Attributed);
    assert_eq!(most.source, "energy counter of GPUs; 4 cores of an unknown model, by CPU time");
    assert_eq!(energy(40_000 * WATT_SECOND, QualityKind::Estimated).kind, QualityKind::Estimated);
    assert_eq!(energy(40_000 * WATT_SECOND, QualityKind::LowerBound).kind, QualityKind::LowerBound);
    assert_eq!(energy(400 * WATT_SECOND, QualityKind::Measured).kind, QualityKind::Estimated);
}

#[test]
fn power_now_is_a_mean_over_a_time_in_which_gpus_are_known() {
    let window = |second: i64, gpus_w: i64| EnergyWindow {
        begin_ns: second * SECOND,
        end_ns: (second + 1) * SECOND,
        meter: "RAPL".to_owned(),
        kind: QualityKind::Measured,
        whole_uj: (20 + gpus_w) * WATT_SECOND,
        jobs_uj: gpus_w * WATT_SECOND,
        system_uj: 5 * WATT_SECOND,
        idle_uj: 15 * WATT_SECOND,
        unassigned_uj: 0,
        gpus_uj: gpus_w * WATT_SECOND,
        idle_estimated: false,
    };
    let watts = |bench: &Bench| {
        let now = bench.energy.now().unwrap();
        assert_eq!(now.jobs_uj + now.system_uj + now.idle_uj, now.whole_uj);
        (
            (now.end_ns - now.begin_ns) / SECOND,
            now.watts(now.whole_uj).round(),
            now.watts(now.gpus_uj).round(),
        )
    };
    let mut bench = Bench::new(|_| {});
    assert_eq!(bench.energy.now(), None);
    for second in 0..40 {
        // Once in ten seconds their counters say more than their power did, and are right.
        bench.energy.windows.keep(window(second, if second % 10 == 0 { 580 } else { 480 }));
    }
    assert_eq!(watts(&bench), (20, 510.0, 490.0));
    assert!(bench.energy.windows.recent.len() <= 21, "{}", bench.energy.windows.recent.len());
    // Beyond a gap nothing is known.
    bench.energy.windows.keep(window(45, 480));
    assert_eq!(watts(&bench), (1, 500.0, 480.0));
    // Without GPUs the last window says what is now.
    let mut bench = Bench::new(|_| {});
    (0..5).for_each(|second| bench.energy.windows.keep(window(second, 0)));
    assert_eq!(watts(&bench), (1, 20.0, 0.0));
}
