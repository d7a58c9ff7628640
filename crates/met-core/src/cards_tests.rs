use super::*;
use crate::holding;

const SECOND_NS: i64 = 1_000_000_000;

/// A card with one number for each thing the tests care about.
struct Machine {
    cards: Cards,
    map: JobMap,
    at_s: i64,
    labels: Vec<Vec<String>>,
}

impl Machine {
    fn new(jobs: &[(u32, &str)]) -> Machine {
        let mut machine =
            Machine { cards: Cards::default(), map: JobMap::default(), at_s: 0, labels: Vec::new() };
        for &(slot, environ) in jobs {
            machine.map.add_job(slot, None);
            machine.map.assign(task(slot * 100), slot);
            machine.cards.hold(slot, holding::of_environ(environ.as_bytes()));
        }
        machine.label("0", "GPU-a", "");
        machine
    }

    fn label(&mut self, index: &str, uuid: &str, parent: &str) {
        let labels = [index, uuid, "Card", "nvidia", parent, ""];
        self.labels.push(labels.map(str::to_owned).to_vec());
    }

    /// One second passes. Cards: part, power, utilization; processes: pid, part, memory, utilization.
    fn second(&mut self, cards: &[(u32, i64, i64)], processes: &[(u32, u32, i64, i64)]) {
        self.at_s += 1;
        let (mut card_batch, mut process_batch) = (Batch::new(&card::TABLE), Batch::new(&process::TABLE));
        for &(part, power_mw, utilization) in cards {
            let cells = card_batch.push_part(Subject::Node, part);
            (cells[card::POWER], cells[card::UTILIZATION]) = (power_mw, utilization);
            (cells[card::TEMPERATURE], cells[card::THROTTLE]) = (50_000 + power_mw / 100, 4);
            cells[card::SLICES] = if part == 0 { 7 } else { 3 };
        }
        for &(pid, part, memory, utilization) in processes {
            let cells = process_batch.push_part(task(pid), part);
            (cells[process::MEMORY], cells[process::UTILIZATION], cells[process::OPEN]) =
                (memory, utilization, 1);
        }
        let rows = Rows { cards: &card_batch, processes: &process_batch, labels: &self.labels };
        self.cards.look(&[rows], &self.map, self.at_s * SECOND_NS, 0);
    }

    fn cells(&self, slot: u32) -> Vec<i64> {
        let mut cells = vec![MISSING; crate::JOB.columns.len()];
        self.cards.fill(slot, &mut cells);
        cells
    }
}

fn task(pid: u32) -> Subject {
    Subject::Task { pid, start_ticks: 1 }
}

#[test]
fn two_jobs_on_one_card_and_one_that_only_holds_it() {
    let mut machine = Machine::new(&[(1, ""), (2, ""), (3, "CUDA_VISIBLE_DEVICES=0")]);
    for _ in 0..11 {
        machine.second(&[(0, 300_000, 900)], &[(100, 0, 1 << 30, 600), (200, 0, 2 << 30, 300)]);
    }
    let uses: Vec<GpuUse> = [1, 2, 3].map(|slot| machine.cards.uses_of(slot).remove(0)).into();
    assert_eq!([&uses[0].held_by, &uses[2].held_by], ["open", "CUDA_VISIBLE_DEVICES"]);
    assert_eq!(uses[0].utilization, Some(0.6));
    assert_eq!(
        (uses[1].memory_mean_bytes, uses[1].memory_peak_bytes),
        (Some(2.0 * (1u64 << 30) as f64), Some(2 << 30))
    );
    assert_eq!((uses[2].idle_since_ns, uses[0].idle_since_ns), (Some(SECOND_NS), None));
    assert_eq!((uses[0].energy_active_uj, uses[1].energy_active_uj), (2_000_000_000, 1_000_000_000));
    assert_eq!(uses.iter().map(GpuUse::energy_uj).sum::<i64>(), 3_000_000_000);
    assert_eq!(uses[0].throttled, ["power cap"]);
    assert_eq!(machine.cells(1)[GPU_POWER] + machine.cells(2)[GPU_POWER], 300_000);
    assert_eq!(
        (machine.cells(3)[GPUS], machine.cells(3)[GPUS_IDLE], machine.cells(3)[GPU_MEMORY]),
        (1, 1, 0)
    );
}

#[test]
fn a_job_that_holds_an_idle_card_pays_for_it_though_no_process_has_it_open() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=GPU-a")]);
    for _ in 0..11 {
        machine.second(&[(0, 110_000, 0)], &[]);
    }
    let uses = machine.cards.leave(1);
    assert_eq!((uses[0].energy_active_uj, uses[0].energy_idle_uj), (0, 1_100_000_000));
    assert_eq!((uses[0].held_ns, uses[0].used_ns), (10 * SECOND_NS, 0));
    assert_eq!(uses[0].energy_kind, Some(QualityKind::Sampled));
    assert_eq!(uses[0].energy_source.as_deref(), Some("integral of power"));
}

#[test]
fn a_job_without_a_card_has_nothing_of_it() {
    let mut machine = Machine::new(&[(1, "PATH=/bin")]);
    machine.second(&[(0, 110_000, 0)], &[(900, 0, 5, 1000)]);
    assert!(machine.cells(1).iter().all(|&cell| cell == MISSING));
    assert!(machine.cards.leave(1).is_empty());
}

#[test]
fn a_lost_card_is_a_gap_and_no_zero() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0,1")]);
    machine.label("1", "GPU-b", "");
    let busy = [(100, 0, 10, 500), (100, 1, 10, 500)];
    for _ in 0..5 {
        machine.second(&[(0, 200_000, 500), (1, 200_000, 500)], &busy);
    }
    for _ in 0..5 {
        machine.second(&[(0, 200_000, 500)], &busy[..1]);
    }
    let uses = machine.cards.uses_of(1);
    assert_eq!(uses.iter().map(|usage| usage.held_ns / SECOND_NS).collect::<Vec<_>>(), [9, 4]);
    assert_eq!(uses[1].utilization, Some(0.5), "the lost time does not lower the mean");
    assert_eq!(uses[1].energy_uj(), 800_000_000);
    assert_eq!(machine.cells(1)[GPUS], 1);
}

#[test]
fn who_holds_a_part_of_a_card_pays_for_its_slices() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=MIG-1"), (2, "CUDA_VISIBLE_DEVICES=MIG-2")]);
    machine.label("0.0", "MIG-1", "GPU-a");
    machine.label("0.1", "MIG-2", "GPU-a");
    for _ in 0..11 {
        machine.second(&[(0, 70_000, MISSING), (1, MISSING, MISSING), (2, MISSING, MISSING)], &[]);
    }
    let uses = [1, 2].map(|slot| machine.cards.uses_of(slot));
    assert_eq!(uses.each_ref().map(|uses| uses.len()), [1, 1], "each has its part and not the whole");
    assert!(uses.iter().all(|uses| uses[0].energy_idle_uj.abs_diff(300_000_000) < 20));
    // Of two parts alike, the one that computes is charged for what is more than idle.
    for _ in 0..10 {
        machine.second(
            &[(0, 470_000, MISSING), (1, MISSING, MISSING), (2, MISSING, MISSING)],
            &[(100, 1, 5, MISSING)],
        );
    }
    let [one, two] = [1, 2].map(|slot| machine.cards.uses_of(slot).remove(0));
    assert!(one.energy_active_uj > 3_000_000_000 && two.energy_active_uj == 0, "{one:?}");
}

#[test]
fn a_process_that_ended_since_the_last_look_is_still_its_jobs() {
    let mut machine = Machine::new(&[(1, "")]);
    machine.second(&[(0, 300_000, 900)], &[(100, 0, 5, 900)]);
    machine.map.clear();
    machine.map.add_job(1, None);
    machine.second(&[(0, 300_000, 900)], &[(100, 0, MISSING, 900)]);
    assert_eq!(machine.cards.uses_of(1)[0].energy_uj(), 300_000_000);
}

#[test]
fn what_is_still_told_of_a_job_that_left_is_charged_to_nobody_else_but_the_holders() {
    let mut machine = Machine::new(&[(1, ""), (2, "CUDA_VISIBLE_DEVICES=0")]);
    for _ in 0..11 {
        machine.second(&[(0, 300_000, 900)], &[(100, 0, 5, 900)]);
    }
    let left_uj: i64 = machine.cards.leave(1).iter().map(GpuUse::energy_uj).sum();
    machine.map.clear();
    machine.map.add_job(2, None);
    for _ in 0..10 {
        machine.second(&[(0, 100_000, 0)], &[(100, 0, MISSING, 900)]);
    }
    let holder_uj: i64 = machine.cards.leave(2).iter().map(GpuUse::energy_uj).sum();
    assert_eq!(left_uj, 3_000_000_000);
    assert_eq!(holder_uj, 200_000_000 + 900_000_000, "from 300 to 100 W in the first second");
}
