use super::*;
use crate::Subject;
use crate::gpu::device::label;
use crate::gpu_holding;
use crate::gpus::devices::KNOWN_USUAL;
use crate::job::{EnergySource, QualityKind};
use crate::job_table::*;

use proptest::prelude::*;

const SECOND_NS: i64 = 1_000_000_000;

/// A GPU with one number for each thing the tests care about.
struct Machine {
    gpus: Gpus,
    map: JobMap,
    at_s: i64,
    labels: Vec<Vec<String>>,
    /// How old the list of processes is, where known.
    list_age_ns: i64,
    /// Of every GPU, all and in use.
    memory: (i64, i64),
}

impl Machine {
    fn new(jobs: &[(u32, &str)]) -> Machine {
        let mut machine = Machine {
            gpus: Gpus::default(),
            map: JobMap::default(),
            at_s: 0,
            labels: Vec::new(),
            list_age_ns: MISSING,
            memory: (MISSING, MISSING),
        };
        for &(slot, environ) in jobs {
            machine.map.add_job(slot, None);
            machine.map.assign(task(slot * 100), slot);
            machine.gpus.hold(slot, gpu_holding::of_environ(environ.as_bytes()));
        }
        machine.label("0", "GPU-a", "");
        machine
    }

    fn label(&mut self, index: &str, uuid: &str, parent: &str) {
        let labels = [index, uuid, "Card", "nvidia", parent, ""];
        self.labels.push(labels.map(str::to_owned).to_vec());
    }

    /// One second passes. GPUs: part, power, utilization; processes: pid, part, memory, utilization.
    fn second(&mut self, gpus: &[(u32, i64, i64)], processes: &[(u32, u32, i64, i64)]) {
        self.at_s += 1;
        let (mut gpu_batch, mut process_batch) = (Batch::new(&device::TABLE), Batch::new(&process::TABLE));
        for &(part, power_mw, utilization) in gpus {
            let cells = gpu_batch.push_part(Subject::Node, part);
            (cells[device::POWER], cells[device::UTILIZATION]) = (power_mw, utilization);
            if power_mw != MISSING {
                (cells[device::TEMPERATURE], cells[device::THROTTLE]) = (50_000 + power_mw / 100, 4);
            }
            cells[device::SLICES] = if part == 0 { 7 } else { 3 };
            cells[device::LIST_AGE] = self.list_age_ns;
            (cells[device::MEMORY_TOTAL], cells[device::MEMORY_USED]) = self.memory;
            cells[device::PROCESSES] = processes.iter().filter(|process| process.1 == part).count() as i64;
        }
        for &(pid, part, memory, utilization) in processes {
            let cells = process_batch.push_part(task(pid), part);
            (cells[process::MEMORY], cells[process::UTILIZATION], cells[process::OPEN]) =
                (memory, utilization, 1);
        }
        let rows = Rows { gpus: &gpu_batch, processes: &process_batch, labels: &self.labels };
        self.gpus.look(&[rows], &self.map, self.at_s * SECOND_NS, 0);
    }

    fn cells(&self, slot: u32) -> Vec<i64> {
        let mut cells = vec![MISSING; crate::JOB.columns.len()];
        self.gpus.fill(slot, &mut cells);
        cells
    }
}

#[test]
fn gpus_that_jobs_can_be_given_are_counted_by_their_parts_where_they_have_any() {
    let mut machine = Machine::new(&[]);
    assert_eq!(machine.gpus.count(), None, "no driver was asked");
    machine.label("1", "GPU-b", "");
    machine.second(&[(0, 1, 0), (1, 1, 0)], &[]);
    assert_eq!(machine.gpus.count(), Some(2));
    machine.label("1.0", "MIG-a", "GPU-b");
    machine.label("1.1", "MIG-b", "GPU-b");
    machine.second(&[(0, 1, 0), (1, 1, 0), (2, MISSING, 0), (3, MISSING, 0)], &[]);
    assert_eq!(machine.gpus.count(), Some(3));
    machine.second(&[(0, 1, 0)], &[]);
    assert_eq!(machine.gpus.count(), Some(1), "a lost one can be given to nobody");
}

#[test]
fn the_memory_of_all_gpus_of_a_job_is_in_its_details() {
    use crate::detail_table::{GPU_MEMORY_FREE, GPU_MEMORY_TOTAL, GPU_UTILIZATION_MEMORY};
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0,1"), (2, "CUDA_VISIBLE_DEVICES=none")]);
    machine.label("1", "GPU-b", "");
    let details = |machine: &Machine, slot: u32| {
        let mut cells = vec![MISSING; crate::DETAIL.columns.len()];
        machine.gpus.fill_details(slot, &mut cells);
        [GPU_MEMORY_TOTAL, GPU_MEMORY_FREE, GPU_UTILIZATION_MEMORY].map(|column| cells[column])
    };
    machine.memory = (8 << 30, 3 << 30);
    machine.second(&[(0, 1, 0), (1, 1, 0)], &[]);
    assert_eq!(details(&machine, 1), [16 << 30, 10 << 30, MISSING]);
    assert_eq!(details(&machine, 2), [MISSING; 3], "a job without a GPU has none");
    machine.memory = (8 << 30, MISSING);
    machine.second(&[(0, 1, 0), (1, 1, 0)], &[]);
    assert_eq!(details(&machine, 1), [16 << 30, MISSING, MISSING], "what is not known is missing");
}

fn task(pid: u32) -> Subject {
    Subject::Task { pid, start_ticks: 1 }
}

#[test]
fn two_jobs_on_one_gpu_and_one_that_only_holds_it() {
    let mut machine = Machine::new(&[(1, ""), (2, ""), (3, "CUDA_VISIBLE_DEVICES=0")]);
    for _ in 0..11 {
        machine.second(&[(0, 300_000, 900)], &[(100, 0, 1 << 30, 600), (200, 0, 2 << 30, 300)]);
    }
    let uses: Vec<GpuUse> = [1, 2, 3].map(|slot| machine.gpus.uses_of(slot).remove(0)).into();
    assert_eq!([uses[0].held_by.text(), uses[2].held_by.text()], ["open", "CUDA_VISIBLE_DEVICES"]);
    assert_eq!(uses[0].utilization, Some(0.6));
    assert_eq!(
        (uses[1].memory_mean_bytes, uses[1].memory_peak_bytes),
        (Some(2.0 * (1u64 << 30) as f64), Some(2 << 30))
    );
    assert_eq!((uses[2].idle_since_ns, uses[0].idle_since_ns), (Some(SECOND_NS), None));
    // It was never seen idle: of the 300 W, 45 are taken for that, and shared by the three.
    assert_eq!(uses.iter().map(|usage| usage.energy_idle_uj).collect::<Vec<_>>(), [150_000_000; 3]);
    assert_eq!((uses[0].energy_active_uj, uses[1].energy_active_uj), (1_700_000_000, 850_000_000));
    assert_eq!(uses.iter().map(GpuUse::energy_uj).sum::<i64>(), 3_000_000_000);
    assert_eq!(uses[2].energy_kind, Some(QualityKind::Estimated));
    assert_eq!(uses[2].idle_power_source.as_deref(), Some("bound"));
    assert_eq!(uses[0].throttled, ["power cap"]);
    assert_eq!([1, 2, 3].map(|slot| machine.cells(slot)[GPU_POWER]).iter().sum::<i64>(), 300_000);
    assert_eq!(
        (machine.cells(3)[GPUS], machine.cells(3)[GPUS_IDLE], machine.cells(3)[GPU_MEMORY]),
        (1, 1, 0)
    );
}

#[test]
fn a_job_that_holds_an_idle_gpu_pays_for_it_though_no_process_has_it_open() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=GPU-a")]);
    for _ in 0..11 {
        machine.second(&[(0, 110_000, 0)], &[]);
    }
    let uses = machine.gpus.leave(1);
    assert_eq!((uses[0].energy_active_uj, uses[0].energy_idle_uj), (0, 1_100_000_000));
    assert_eq!((uses[0].held_ns, uses[0].used_ns), (10 * SECOND_NS, 0));
    assert_eq!(uses[0].energy_kind, Some(QualityKind::Sampled));
    assert_eq!(uses[0].energy_source, Some(EnergySource::Power));
}

#[test]
fn a_job_without_a_gpu_has_nothing_of_it() {
    let mut machine = Machine::new(&[(1, "PATH=/bin")]);
    machine.second(&[(0, 110_000, 0)], &[(900, 0, 5, 1000)]);
    assert!(machine.cells(1).iter().all(|&cell| cell == MISSING));
    assert!(machine.gpus.leave(1).is_empty());
}

#[test]
fn a_lost_gpu_is_a_gap_and_no_zero() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0,1")]);
    machine.label("1", "GPU-b", "");
    let busy = [(100, 0, 10, 500), (100, 1, 10, 500)];
    for _ in 0..5 {
        machine.second(&[(0, 200_000, 500), (1, 200_000, 500)], &busy);
    }
    for _ in 0..5 {
        machine.second(&[(0, 200_000, 500)], &busy[..1]);
    }
    let uses = machine.gpus.uses_of(1);
    assert_eq!(uses.iter().map(|usage| usage.held_ns / SECOND_NS).collect::<Vec<_>>(), [9, 4]);
    assert_eq!(uses[1].utilization, Some(0.5), "the lost time does not lower the mean");
    assert_eq!(uses[1].energy_uj(), 800_000_000);
    assert_eq!(uses.iter().map(|usage| usage.lost_since_ns).collect::<Vec<_>>(), [None, Some(5 * SECOND_NS)]);
    assert_eq!(machine.cells(1)[GPUS], 1);
}

#[test]
fn why_a_gpu_was_lost_is_reported_with_the_job_that_had_it() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    let mut look = |power_mw: i64, faults: i64, fault_last: i64| {
        machine.at_s += 1;
        let (mut gpus, processes) = (Batch::new(&device::TABLE), Batch::new(&process::TABLE));
        let cells = gpus.push_part(Subject::Node, 0);
        (cells[device::POWER], cells[device::FAULTS], cells[device::FAULT_LAST]) =
            (power_mw, faults, fault_last);
        let rows = Rows { gpus: &gpus, processes: &processes, labels: &machine.labels };
        machine.gpus.look(&[rows], &machine.map, machine.at_s * SECOND_NS, 0);
        let usage = machine.gpus.uses_of(1).remove(0);
        (usage.faults, usage.fault_last, usage.lost_since_ns)
    };
    assert_eq!(look(200_000, 0, MISSING), (Some(0), None, None));
    assert_eq!(look(MISSING, 1, 79), (Some(1), Some(79), Some(SECOND_NS)));
    // The driver is reloaded and has no history.
    assert_eq!(look(200_000, 0, MISSING), (Some(1), Some(79), None));
    assert_eq!(machine.gpus.leave(1).remove(0).held_ns, 0, "the time without it is not held");
}

#[test]
fn the_holder_of_a_part_pays_for_its_slices() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=MIG-1"), (2, "CUDA_VISIBLE_DEVICES=MIG-2")]);
    machine.label("0.0", "MIG-1", "GPU-a");
    machine.label("0.1", "MIG-2", "GPU-a");
    for _ in 0..11 {
        machine.second(&[(0, 70_000, MISSING), (1, MISSING, MISSING), (2, MISSING, MISSING)], &[]);
    }
    let uses = [1, 2].map(|slot| machine.gpus.uses_of(slot));
    assert_eq!(uses.each_ref().map(|uses| uses.len()), [1, 1], "each has its part and not the whole");
    assert!(uses.iter().all(|uses| uses[0].energy_idle_uj.abs_diff(300_000_000) < 20));
    // Of two parts alike, the one that computes is charged for what is more than idle.
    for _ in 0..10 {
        machine.second(
            &[(0, 470_000, MISSING), (1, MISSING, MISSING), (2, MISSING, MISSING)],
            &[(100, 1, 5, MISSING)],
        );
    }
    let [one, two] = [1, 2].map(|slot| machine.gpus.uses_of(slot).remove(0));
    assert!(one.energy_active_uj > 3_000_000_000 && two.energy_active_uj == 0, "{one:?}");
}

#[test]
fn a_scheduler_that_counts_parts_charges_each_job_for_its_own() {
    let slurm = [
        (1, "SLURM_JOB_GPUS=0\0CUDA_VISIBLE_DEVICES=MIG-1"),
        (2, "SLURM_JOB_GPUS=1\0CUDA_VISIBLE_DEVICES=MIG-GPU-a/4/0"),
    ];
    let mut machine = Machine::new(&slurm);
    for (index, uuid, mig) in [("0.0", "MIG-1", "3/0"), ("0.1", "MIG-2", "4/0")] {
        machine.label(index, uuid, "GPU-a");
        machine.labels.last_mut().unwrap().push(mig.to_owned());
    }
    for _ in 0..11 {
        machine.second(&[(0, 70_000, 0), (1, MISSING, MISSING), (2, MISSING, MISSING)], &[]);
    }
    let parts = |slot| machine.gpus.uses_of(slot).into_iter().map(|usage| usage.uuid).collect::<Vec<_>>();
    assert_eq!((parts(1), parts(2)), (vec!["MIG-1".to_owned()], vec!["MIG-2".to_owned()]));
    let energy_uj = |slot| machine.gpus.uses_of(slot)[0].energy_uj();
    assert!(energy_uj(1) > 0 && energy_uj(1) == energy_uj(2), "{} and {}", energy_uj(1), energy_uj(2));
}

#[test]
fn a_job_may_hold_gpus_of_two_makers() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0\0ROCR_VISIBLE_DEVICES=0")]);
    machine.label("0", "GPU-amd", "");
    machine.labels[1][label::VENDOR] = "amd".to_owned();
    machine.second(&[(0, 70_000, 0), (1, 40_000, 0)], &[]);
    let held: Vec<_> = machine
        .gpus
        .uses_of(1)
        .into_iter()
        .map(|usage| (usage.uuid, usage.held_by.text().to_owned()))
        .collect();
    let [nvidia, amd] = [("GPU-a", "CUDA_VISIBLE_DEVICES"), ("GPU-amd", "ROCR_VISIBLE_DEVICES")];
    assert_eq!(held, [nvidia, amd].map(|(uuid, by)| (uuid.to_owned(), by.to_owned())));
}

#[test]
fn a_process_that_ended_since_the_last_look_is_still_its_jobs() {
    let mut machine = Machine::new(&[(1, "")]);
    machine.second(&[(0, 300_000, 900)], &[(100, 0, 5, 900)]);
    machine.map.clear();
    machine.map.add_job(1, None);
    machine.second(&[(0, 300_000, 900)], &[(100, 0, MISSING, 900)]);
    assert_eq!(machine.gpus.uses_of(1)[0].energy_uj(), 300_000_000);
}

#[test]
fn late_reports_of_a_job_that_left_are_charged_only_to_the_holders() {
    let mut machine = Machine::new(&[(1, ""), (2, "CUDA_VISIBLE_DEVICES=0")]);
    for _ in 0..11 {
        machine.second(&[(0, 300_000, 900)], &[(100, 0, 5, 900)]);
    }
    let left_uj: i64 = machine.gpus.leave(1).iter().map(GpuUse::energy_uj).sum();
    machine.map.clear();
    machine.map.add_job(2, None);
    for _ in 0..10 {
        machine.second(&[(0, 100_000, 0)], &[(100, 0, MISSING, 900)]);
    }
    let holder_uj: i64 = machine.gpus.leave(2).iter().map(GpuUse::energy_uj).sum();
    // Of 300 W, 45 are taken for idle, and half of that was the holder's.
    assert_eq!(left_uj, 3_000_000_000 - 225_000_000);
    assert_eq!(holder_uj, 225_000_000 + 200_000_000 + 900_000_000, "from 300 to 100 W in the first second");
}

#[test]
fn a_job_that_leaves_a_gpu_that_was_never_idle_pays_for_what_it_held_of_it() {
    let mut machine = Machine::new(&[(1, ""), (2, "CUDA_VISIBLE_DEVICES=0")]);
    machine.gpus.recall_idle("GPU-a".to_owned(), Some(110_000), None);
    for _ in 0..11 {
        machine.second(&[(0, 510_000, 900)], &[(100, 0, 5, 900)]);
    }
    let [busy, holder] = [1, 2].map(|slot| machine.gpus.leave(slot).remove(0));
    assert_eq!((holder.energy_active_uj, holder.energy_idle_uj), (0, 550_000_000), "half of 110 W");
    assert_eq!((busy.energy_active_uj, busy.energy_idle_uj), (4_000_000_000, 550_000_000));
    assert_eq!(busy.energy_kind, Some(QualityKind::Attributed), "what was learned is known");
    assert_eq!((busy.idle_power_mw, busy.idle_power_source.as_deref()), (Some(110_000), Some("learned")));
    let known: Vec<_> = machine.gpus.idle_powers().map(|(_, learned, lowest)| (learned, lowest)).collect();
    assert_eq!(known, [(Some(110_000), Some(510_000))]);
}

#[test]
fn the_configuration_decides_what_idle_power_is() {
    let mut machine = Machine::new(&[(1, ""), (2, "CUDA_VISIBLE_DEVICES=0")]);
    let by_gpu = vec![("Card".to_owned(), 60_000)];
    machine.gpus.set_idle_rules(IdleRules { all_mw: None, by_gpu });
    for _ in 0..11 {
        machine.second(&[(0, 510_000, 900)], &[(100, 0, 5, 900)]);
    }
    let holder = machine.gpus.leave(2).remove(0);
    assert_eq!(
        (holder.energy_idle_uj, holder.idle_power_source.as_deref()),
        (300_000_000, Some("configured"))
    );
}

#[test]
fn a_gpu_that_only_counts_its_energy_has_a_power_and_an_idle_part() {
    let mut machine = Machine::new(&[(1, "ZE_AFFINITY_MASK=0"), (2, "ZE_AFFINITY_MASK=0")]);
    machine.labels[0][label::VENDOR] = "intel".to_owned();
    let mut energy_uj = 500;
    for at_s in 1..=20 {
        let busy = at_s > 10;
        energy_uj += if busy { 150_000_000 } else { 30_000_000 };
        let (mut gpus, mut processes) = (Batch::new(&device::TABLE), Batch::new(&process::TABLE));
        gpus.push_part(Subject::Node, 0)[device::ENERGY] = energy_uj;
        if busy {
            let cells = processes.push_part(task(100), 0);
            (cells[process::OPEN], cells[process::UTILIZATION]) = (1, 800);
        }
        let rows = Rows { gpus: &gpus, processes: &processes, labels: &machine.labels };
        machine.gpus.look(&[rows], &machine.map, at_s * SECOND_NS, 0);
    }
    assert_eq!(machine.gpus.in_use().next().map(|(_, cells)| cells[device::POWER]), Some(150_000));
    let [busy, holder] = [1, 2].map(|slot| machine.gpus.leave(slot).remove(0));
    assert_eq!(busy.energy_uj() + holder.energy_uj(), 9 * 30_000_000 + 10 * 150_000_000);
    assert_eq!((holder.energy_idle_uj, holder.energy_active_uj), (19 * 15_000_000, 0));
    assert_eq!((busy.idle_power_mw, &busy.energy_source), (Some(30_000), &Some(EnergySource::Counter)));
}

#[test]
fn a_wrong_reading_of_a_gpu_that_only_counts_its_energy_is_neither_power_nor_charged() {
    let mut machine = Machine::new(&[(1, "ZE_AFFINITY_MASK=0")]);
    machine.labels[0][label::VENDOR] = "intel".to_owned();
    for at_s in 1..=20 {
        let (mut gpus, processes) = (Batch::new(&device::TABLE), Batch::new(&process::TABLE));
        let right_uj = 5_000_000_000 + at_s * 30_000_000;
        let cells = gpus.push_part(Subject::Node, 0);
        cells[device::ENERGY] = if at_s == 7 { 1_000 * right_uj } else { right_uj };
        let rows = Rows { gpus: &gpus, processes: &processes, labels: &machine.labels };
        machine.gpus.look(&[rows], &machine.map, at_s * SECOND_NS, 0);
        let power_mw = machine.gpus.in_use().next().map_or(MISSING, |(_, cells)| cells[device::POWER]);
        assert_eq!(power_mw, if [1, 7, 8].contains(&at_s) { MISSING } else { 30_000 }, "{at_s}");
    }
    assert_eq!(machine.gpus.leave(1).remove(0).energy_uj(), 19 * 30_000_000);
}

#[test]
fn a_number_means_the_gpu_that_has_it_now() {
    let mut machine = Machine::new(&[]);
    machine.label("1", "GPU-b", "");
    machine.second(&[(0, 100_000, 0), (1, 100_000, 0)], &[]);
    // The first one is lost, and the driver renumbers the others.
    machine.labels[1][label::INDEX] = "0".to_owned();
    machine.map.add_job(1, None);
    machine.gpus.hold(1, gpu_holding::of_environ(b"CUDA_VISIBLE_DEVICES=0"));
    machine.second(&[(1, 100_000, 0)], &[]);
    machine.second(&[(1, 100_000, 0)], &[]);
    let uses = machine.gpus.leave(1);
    assert_eq!((uses.len(), uses[0].uuid.as_str(), uses[0].index.as_str()), (1, "GPU-b", "0"));
}

#[test]
fn where_gpus_differ_a_number_of_cudas_means_what_the_job_opens() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    machine.label("1", "GPU-b", "");
    machine.labels[1][label::NAME] = "Faster card".to_owned();
    let gpus = [(0, 100_000, 0), (1, 100_000, 0)];
    let held = |machine: &Machine| {
        let uses = machine.gpus.uses_of(1).into_iter();
        uses.filter(|usage| usage.held_ns > 0)
            .map(|usage| (usage.index, usage.held_by.text().to_owned()))
            .collect::<Vec<_>>()
    };
    machine.second(&gpus, &[]);
    machine.second(&gpus, &[]);
    assert_eq!(held(&machine), [("0".to_owned(), "CUDA_VISIBLE_DEVICES (order unknown)".to_owned())]);
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    machine.label("1", "GPU-b", "");
    machine.labels[1][label::NAME] = "Faster card".to_owned();
    for processes in [&[(100, 1, 5, 0)][..], &[(100, 1, 5, 0)], &[]] {
        machine.second(&gpus, processes);
    }
    assert_eq!(held(&machine), [("1".to_owned(), "CUDA_VISIBLE_DEVICES (as opened)".to_owned())]);
    assert_eq!(machine.gpus.uses_of(1)[0].held_ns, 2 * SECOND_NS, "it holds it when it has closed it, too");
}

#[test]
fn a_job_inside_another_one_counts_for_both() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0"), (2, "CUDA_VISIBLE_DEVICES=0"), (3, "")]);
    machine.map.clear();
    for (slot, outer) in [(1, None), (2, Some(1)), (3, None)] {
        machine.map.add_job(slot, outer);
        machine.map.assign(task(slot * 100), slot);
    }
    for _ in 0..11 {
        machine.second(&[(0, 300_000, 900)], &[(200, 0, 1 << 20, 600), (300, 0, 5, 300)]);
    }
    let [outer, inner, other] = [1, 2, 3].map(|slot| machine.gpus.uses_of(slot).remove(0));
    assert_eq!((outer.energy_uj(), outer.utilization), (inner.energy_uj(), Some(0.6)));
    assert_eq!((outer.memory_peak_bytes, outer.processes, outer.idle_since_ns), (Some(1 << 20), 1, None));
    assert_eq!(outer.energy_uj() + other.energy_uj(), 3_000_000_000);
    assert_eq!(machine.cells(1)[GPU_POWER], machine.cells(2)[GPU_POWER]);
    let inner_uj = machine.gpus.leave(2)[0].energy_uj();
    assert_eq!(machine.gpus.uses_of(1)[0].energy_uj(), inner_uj, "what it used stays the outer job's");
}

#[derive(Clone, Debug)]
enum Event {
    Second { power_mw: i64, used: Vec<i64> },
    Leave(u32),
}

fn event() -> impl Strategy<Value = Event> {
    let second = (0i64..700_000, prop::collection::vec(prop_oneof![Just(-1i64), 0..1000i64], 6))
        .prop_map(|(power_mw, used)| Event::Second { power_mw, used });
    prop_oneof![8 => second, 1 => (2u32..=5).prop_map(Event::Leave)]
}

proptest! {
    /// Jobs 2 to 5 are inside earlier ones or not, and end at any time before those around them; job 1 holds the
    /// GPU from beginning to end, so none of its energy is unassigned.
    #[test]
    fn top_level_jobs_add_up_to_the_gpu_whatever_is_nested(
        outer in prop::collection::vec(0u32..=4, 4),
        events in prop::collection::vec(event(), 1..40),
    ) {
        let mut machine =
            Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0"), (2, ""), (3, "CUDA_VISIBLE_DEVICES=0"), (4, ""), (5, "")]);
        let around = |slot: u32| match slot {
            1 => None,
            _ => Some(outer[slot as usize - 2]).filter(|&outer| outer > 0 && outer < slot),
        };
        let (mut alive, mut left_uj, mut last_mw, mut whole_uj) = (vec![1u32, 2, 3, 4, 5], 0i64, None, 0i64);
        for event in events {
            match event {
                Event::Second { power_mw, used } => {
                    machine.map.clear();
                    for &slot in &alive {
                        machine.map.add_job(slot, around(slot));
                        machine.map.assign(task(slot * 100), slot);
                    }
                    let processes: Vec<_> = alive.iter()
                        .map(|&slot| (slot * 100, 0, 7, used[slot as usize - 1]))
                        .filter(|&(_, _, _, used)| used >= 0)
                        .collect();
                    let busy: i64 = processes.iter().map(|process| process.3).sum();
                    machine.second(&[(0, power_mw, busy.min(1000))], &processes);
                    whole_uj += last_mw.map_or(0, |last_mw: i64| (last_mw + power_mw) * 1000 / 2);
                    last_mw = Some(power_mw);
                }
                Event::Leave(slot) if alive.contains(&slot) && !alive.iter().any(|&inner| around(inner) == Some(slot)) => {
                    let energy_uj: i64 = machine.gpus.leave(slot).iter().map(GpuUse::energy_uj).sum();
                    left_uj += if around(slot).is_none() { energy_uj } else { 0 };
                    alive.retain(|&living| living != slot);
                }
                Event::Leave(_) => {}
            }
            let living_uj: i64 = alive.iter().filter(|&&slot| around(slot).is_none())
                .map(|&slot| machine.cells(slot)[GPU_ENERGY].max(0)).sum();
            prop_assert_eq!(living_uj + left_uj, whole_uj);
        }
    }
}

#[test]
fn a_process_that_ended_is_reported_without_its_start_and_is_still_its_jobs() {
    let mut machine = Machine::new(&[(1, "")]);
    for _ in 0..3 {
        machine.second(&[(0, 300_000, 900)], &[(100, 0, 5, 900)]);
    }
    machine.map.clear();
    machine.map.add_job(1, None);
    // As a driver does: it knows the number of a process and not when it began.
    for _ in 0..3 {
        machine.at_s += 1;
        let (mut gpus, mut processes) = (Batch::new(&device::TABLE), Batch::new(&process::TABLE));
        let cells = gpus.push_part(Subject::Node, 0);
        (cells[device::POWER], cells[device::UTILIZATION], cells[device::PROCESSES]) = (300_000, 900, 1);
        let cells = processes.push_part(Subject::Task { pid: 100, start_ticks: 0 }, 0);
        (cells[process::OPEN], cells[process::UTILIZATION]) = (1, 900);
        let rows = Rows { gpus: &gpus, processes: &processes, labels: &machine.labels };
        machine.gpus.look(&[rows], &machine.map, machine.at_s * SECOND_NS, 0);
    }
    assert_eq!(machine.gpus.uses_of(1)[0].energy_uj(), 5 * 300_000_000);
}

#[test]
fn a_job_after_a_pause_does_not_pay_for_the_pause() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    for _ in 0..4 {
        machine.second(&[(0, 110_000, 0)], &[]);
    }
    machine.gpus.leave(1);
    machine.gpus.pause();
    machine.map.clear();
    machine.map.add_job(2, None);
    machine.at_s += 40;
    machine.gpus.join(2, machine.at_s * SECOND_NS);
    machine.gpus.hold(2, gpu_holding::of_environ(b"CUDA_VISIBLE_DEVICES=0"));
    for _ in 0..3 {
        machine.second(&[(0, 110_000, 0)], &[]);
    }
    assert_eq!(machine.gpus.leave(2)[0].energy_uj(), 2 * 110_000_000);
}

#[test]
fn what_a_lost_gpu_used_meanwhile_is_unassigned() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    for second in 0..12 {
        let gpus = [(0, 110_000, 0)];
        machine.second(if (4..8).contains(&second) { &[] } else { &gpus }, &[]);
    }
    let usage = machine.gpus.leave(1).remove(0);
    assert_eq!((usage.energy_uj(), usage.held_ns), (6 * 110_000_000, 6 * SECOND_NS));
}

#[test]
fn a_mere_holder_does_not_pay_for_unseen_computing() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    machine.gpus.recall_idle("GPU-a".to_owned(), Some(100_000), None);
    for _ in 0..11 {
        machine.second(&[(0, 300_000, 900)], &[]);
    }
    let usage = machine.gpus.leave(1).remove(0);
    assert_eq!((usage.energy_active_uj, usage.energy_idle_uj), (0, 1_000_000_000));
}

#[test]
fn the_only_holder_pays_for_processes_between_two_lists() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    machine.gpus.recall_idle("GPU-a".to_owned(), Some(100_000), None);
    machine.map.assign(task(100), 1);
    machine.second(&[(0, 300_000, 900)], &[(100, 0, 5, 900)]);
    for _ in 0..10 {
        machine.second(&[(0, 300_000, 900)], &[]);
    }
    let usage = machine.gpus.leave(1).remove(0);
    assert_eq!((usage.energy_active_uj, usage.energy_idle_uj), (2_000_000_000, 1_000_000_000));
}

#[test]
fn computing_on_one_gpu_does_not_pay_for_unseen_computing_on_another() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0,1")]);
    machine.label("1", "GPU-b", "");
    for uuid in ["GPU-a", "GPU-b"] {
        machine.gpus.recall_idle(uuid.to_owned(), Some(100_000), None);
    }
    machine.map.assign(task(100), 1);
    for _ in 0..11 {
        machine.second(&[(0, 300_000, 900), (1, 300_000, 900)], &[(100, 0, 5, 900)]);
    }
    let active: Vec<i64> = machine.gpus.leave(1).iter().map(|usage| usage.energy_active_uj).collect();
    assert_eq!(active, [2_000_000_000, 0]);
}

#[test]
fn a_job_does_not_pay_for_processes_that_the_gpu_does_not_list() {
    let mut machine = Machine::new(&[(1, "ROCR_VISIBLE_DEVICES=0")]);
    machine.labels[0][label::VENDOR] = "amd".to_owned();
    machine.gpus.recall_idle("GPU-a".to_owned(), Some(100_000), None);
    machine.map.assign(task(100), 1);
    for _ in 0..11 {
        machine.second(&[(0, 300_000, 900)], &[(100, 0, 5, 100)]);
    }
    let usage = machine.gpus.leave(1).remove(0);
    // A ninth of what the GPU computed.
    assert!(usage.energy_active_uj.abs_diff(2_000_000_000 / 9) < 100, "{}", usage.energy_active_uj);
}

#[test]
fn the_time_in_which_use_was_read_is_not_the_time_held() {
    let mut machine = Machine::new(&[(1, "")]);
    for second in 0..101 {
        let utilization = if second <= 10 { 0 } else { MISSING };
        machine.second(&[(0, 100_000, utilization)], &[(100, 0, 5, utilization)]);
    }
    let usage = machine.gpus.leave(1).remove(0);
    assert_eq!((usage.utilization, usage.held_ns), (Some(0.0), 100 * SECOND_NS));
    assert_eq!(usage.known_ns, Some(10 * SECOND_NS));
}

#[test]
fn a_process_without_activity_pays_for_what_the_others_did_not() {
    let mut machine = Machine::new(&[(1, ""), (2, "")]);
    machine.labels[0][label::VENDOR] = "amd".to_owned();
    machine.gpus.recall_idle("GPU-a".to_owned(), Some(100_000), None);
    for _ in 0..51 {
        machine.second(&[(0, 500_000, 1000)], &[(100, 0, 5, 50), (200, 0, 5, MISSING)]);
    }
    let [draws, computes] = [1, 2].map(|slot| machine.gpus.leave(slot).remove(0).energy_active_uj);
    assert_eq!((draws, computes), (1_000_000_000, 19_000_000_000), "a twentieth, and the rest");
}

#[test]
fn the_memory_of_a_job_is_that_of_all_its_processes_or_unknown() {
    let mut machine = Machine::new(&[(1, "")]);
    machine.map.assign(task(101), 1);
    machine.second(&[(0, 100_000, 0)], &[(100, 0, 5, 0), (101, 0, 7, 0)]);
    machine.second(&[(0, 100_000, 0)], &[(100, 0, 50, 0), (101, 0, MISSING, 0)]);
    assert_eq!(machine.cells(1)[GPU_MEMORY], MISSING);
    assert_eq!(machine.gpus.uses_of(1)[0].memory_peak_bytes, Some(12));
}

#[test]
fn a_part_counts_by_its_slices_and_not_by_its_processes() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=MIG-1"), (2, "CUDA_VISIBLE_DEVICES=MIG-2")]);
    machine.gpus.recall_idle("GPU-a".to_owned(), Some(70_000), None);
    machine.label("0.0", "MIG-1", "GPU-a");
    machine.label("0.1", "MIG-2", "GPU-a");
    for pid in 101..108 {
        machine.map.assign(task(pid), 1);
    }
    let crowd: Vec<_> = (100..108).map(|pid| (pid, 1, 5, MISSING)).chain([(200, 2, 5, MISSING)]).collect();
    for _ in 0..11 {
        machine.second(&[(0, 470_000, MISSING), (1, MISSING, MISSING), (2, MISSING, MISSING)], &crowd);
    }
    let [one, two] = [1, 2].map(|slot| machine.gpus.uses_of(slot).remove(0));
    assert_eq!((one.energy_active_uj, two.energy_active_uj), (2_000_000_000, 2_000_000_000));
}

#[test]
fn a_gpu_that_is_cut_into_parts_under_a_job_is_charged_once() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    machine.label("0.0", "MIG-1", "GPU-a");
    for _ in 0..6 {
        machine.second(&[(0, 70_000, 0)], &[]);
    }
    for _ in 0..5 {
        machine.second(&[(0, 70_000, MISSING), (1, MISSING, MISSING)], &[]);
    }
    for _ in 0..5 {
        machine.second(&[(0, 70_000, 0)], &[]);
    }
    let uses = machine.gpus.uses_of(1);
    let total_uj: i64 = uses.iter().map(GpuUse::energy_uj).sum();
    assert_eq!((uses.len(), total_uj), (2, machine.cells(1)[GPU_ENERGY]));
    // As a whole for ten seconds, and three of its seven slices for five.
    assert!(total_uj.abs_diff(700_000_000 + 150_000_000) < 100, "{total_uj}");
}

#[test]
fn a_short_pause_is_not_idleness() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    let idle_since = |machine: &Machine| machine.gpus.uses_of(1)[0].idle_since_ns;
    for _ in 0..3 {
        machine.second(&[(0, 300_000, 900)], &[(100, 0, 5, 900)]);
    }
    for _ in 0..9 {
        machine.second(&[(0, 100_000, 0)], &[(100, 0, 5, 0)]);
    }
    assert_eq!(idle_since(&machine), None);
    for _ in 0..3 {
        machine.second(&[(0, 100_000, 0)], &[(100, 0, 5, 0)]);
    }
    assert_eq!(idle_since(&machine), Some(4 * SECOND_NS), "since it stopped, and not since it was noticed");
}

#[test]
fn a_driver_without_a_process_list_does_not_mean_an_empty_gpu() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    for _ in 0..3 {
        machine.at_s += 1;
        let (mut gpus, processes) = (Batch::new(&device::TABLE), Batch::new(&process::TABLE));
        gpus.push_part(Subject::Node, 0)[device::POWER] = 300_000;
        let rows = Rows { gpus: &gpus, processes: &processes, labels: &machine.labels };
        machine.gpus.look(&[rows], &machine.map, machine.at_s * SECOND_NS, 0);
    }
    let usage = machine.gpus.uses_of(1).remove(0);
    assert_eq!((usage.utilization, usage.memory_mean_bytes, usage.idle_since_ns), (None, None, None));
    assert_eq!(usage.held_ns, 2 * SECOND_NS);
}

#[test]
fn a_process_without_activity_is_like_the_others_only_while_it_is_new() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0"), (2, "CUDA_VISIBLE_DEVICES=0")]);
    let processes = [(100, 0, 5, 500), (200, 0, 5, MISSING)];
    for _ in 0..31 {
        machine.second(&[(0, 300_000, 900)], &processes);
    }
    let early = [1, 2].map(|slot| machine.gpus.uses_of(slot)[0].energy_active_uj);
    for _ in 0..31 {
        machine.second(&[(0, 300_000, 900)], &processes);
    }
    let late = [1, 2].map(|slot| machine.gpus.uses_of(slot)[0].energy_active_uj);
    assert_eq!(early[0], early[1]);
    assert!(late[1] - early[1] < (late[0] - early[0]) / 10, "{early:?} {late:?}");
}

#[test]
fn a_part_shows_what_only_the_whole_gpu_can_say() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=MIG-1")]);
    machine.label("0.0", "MIG-1", "GPU-a");
    for _ in 0..3 {
        machine.second(&[(0, 200_000, MISSING), (1, MISSING, MISSING)], &[(100, 1, 5, MISSING)]);
    }
    let uses = machine.gpus.uses_of(1);
    let part = uses.iter().find(|usage| usage.uuid == "MIG-1").unwrap();
    assert_eq!((part.gpu_power_mw, part.temperature_max_mc), (Some(200_000.0), Some(52_000)));
    assert_eq!((part.utilization, part.throttled_ns), (None, Some(2 * SECOND_NS)));
    assert_eq!(part.processes, 1);
}

#[test]
fn a_process_that_computed_before_it_was_listed_is_charged_for_that_while_it_runs() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    // The expensive readings were taken in the first second, with no process there; the list is three seconds late.
    for at_s in 1..=12 {
        machine.at_s = at_s;
        let (mut gpus, mut processes) = (Batch::new(&device::TABLE), Batch::new(&process::TABLE));
        let cells = gpus.push_part(Subject::Node, 0);
        cells[device::POWER] = if at_s > 5 { 700_000 } else { 100_000 };
        cells[device::UTILIZATION] = if at_s > 5 { 950 } else { 0 };
        cells[device::PASS_AGE] = (at_s - 1) * SECOND_NS;
        cells[device::USE_AGE] = cells[device::PASS_AGE];
        cells[device::ENERGY] = 0;
        cells[device::PROCESSES] = i64::from(at_s > 8);
        if at_s > 8 {
            processes.push_part(task(100), 0)[process::OPEN] = 1;
        }
        let rows = Rows { gpus: &gpus, processes: &processes, labels: &machine.labels };
        machine.gpus.look(&[rows], &machine.map, at_s * SECOND_NS, 0);
    }
    let usage = machine.gpus.uses_of(1).remove(0);
    // Four seconds of 100 W, one that leads to 700 W, and six of those: no other process was ever seen.
    assert_eq!(usage.energy_uj(), (400 + 400 + 4200) * 1_000_000);
    assert!(usage.energy_active_uj > 3_500_000_000, "{usage:?}");
}

/// Job 1 lives and computes up to the first reading of use; job 2 computes from then on and ends before the next,
/// which does not name it. What each is charged above idle, and the sum of all.
fn charged_beside_one_that_ends(own_helper: bool) -> (i64, i64, i64) {
    let mut machine = Machine::new(&[(1, ""), (2, "")]);
    machine.gpus.recall_idle("GPU-a".to_owned(), Some(100_000), None);
    machine.map.assign(task(101), 1);
    for at_s in 1..=6 {
        let (mut gpus, mut processes) = (Batch::new(&device::TABLE), Batch::new(&process::TABLE));
        let cells = gpus.push_part(Subject::Node, 0);
        (cells[device::POWER], cells[device::UTILIZATION]) = (700_000, 950);
        cells[device::USE_AGE] = if at_s < 6 { (at_s - 1) * SECOND_NS } else { 0 };
        cells[device::PASS_AGE] = (at_s - 1) * SECOND_NS;
        cells[device::ENERGY] = 0;
        let mut put = |pid: u32, utilization: i64| {
            let cells = processes.push_part(task(pid), 0);
            (cells[process::OPEN], cells[process::UTILIZATION]) = (1, utilization);
        };
        put(100, if at_s < 6 { 900 } else { 0 });
        if (2..=5).contains(&at_s) {
            put(200, MISSING);
        }
        if (2..=5).contains(&at_s) && own_helper {
            put(101, MISSING);
        }
        let rows = Rows { gpus: &gpus, processes: &processes, labels: &machine.labels };
        machine.gpus.look(&[rows], &machine.map, at_s * SECOND_NS, 0);
    }
    let [one, two] = [1, 2].map(|slot| machine.gpus.leave(slot).remove(0));
    (one.energy_active_uj, two.energy_active_uj, one.energy_uj() + two.energy_uj())
}

#[test]
fn a_living_idle_process_does_not_pay_for_an_ended_one() {
    let (one, two, all) = charged_beside_one_that_ends(false);
    assert_eq!((one, two, all), (0, 3_000_000_000, 3_500_000_000));
    // Of a job with a process that has ended, too, it is not known.
    let (one, two, all) = charged_beside_one_that_ends(true);
    assert!(one > 0 && two > 0 && all == 3_500_000_000, "{one} {two} {all}");
}

#[test]
fn endless_new_parts_are_forgotten_except_those_that_a_job_had() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=MIG-0")]);
    for round in 0..400u32 {
        machine.at_s += 200;
        machine.labels.truncate(1);
        machine.label("0.0", &format!("MIG-{round}"), "GPU-a");
        machine.second(&[(0, 70_000, MISSING), (1, MISSING, MISSING)], &[]);
        machine.second(&[(0, 70_000, MISSING), (1, MISSING, MISSING)], &[]);
    }
    assert!(machine.gpus.devices.gpus.len() <= KNOWN_USUAL, "{}", machine.gpus.devices.gpus.len());
    assert_eq!(machine.gpus.uses_of(1).remove(0).uuid, "MIG-0");
}

#[test]
fn a_list_from_before_a_job_began_does_not_cover_it() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    machine.at_s = 10;
    machine.gpus.join(1, 10 * SECOND_NS);
    machine.list_age_ns = 2 * SECOND_NS;
    machine.second(&[(0, 80_000, 0)], &[]);
    let usage = machine.gpus.uses_of(1).remove(0);
    assert_eq!((usage.idle_since_ns, usage.memory_peak_bytes), (None, None), "it may be there by now");
    assert_eq!((machine.cells(1)[GPU_UTILIZATION], machine.cells(1)[GPU_MEMORY]), (MISSING, MISSING));
    machine.list_age_ns = 0;
    machine.second(&[(0, 80_000, 0)], &[]);
    let usage = machine.gpus.uses_of(1).remove(0);
    assert_eq!((usage.utilization, usage.memory_peak_bytes), (Some(0.0), Some(0)));
    assert_eq!(usage.idle_since_ns, Some(12 * SECOND_NS));
}

#[test]
fn while_a_gpu_computes_an_empty_list_is_stale() {
    let mut machine = Machine::new(&[(1, "CUDA_VISIBLE_DEVICES=0")]);
    machine.gpus.join(1, 0);
    machine.list_age_ns = 0;
    machine.second(&[(0, 80_000, 0)], &[]);
    assert!(machine.gpus.uses_of(1)[0].idle_since_ns.is_some());
    machine.second(&[(0, 500_000, 900)], &[]);
    let usage = machine.gpus.uses_of(1).remove(0);
    assert_eq!((usage.idle_since_ns, usage.utilization), (None, None));
    machine.second(&[(0, 500_000, 900)], &[(100, 0, 1 << 30, MISSING)]);
    let usage = machine.gpus.uses_of(1).remove(0);
    assert_eq!((usage.utilization, usage.used_ns), (Some(0.9), SECOND_NS));
}

#[test]
fn the_energy_of_before_a_job_was_seen_with_a_gpu_is_not_that_of_the_time_since() {
    let mut machine = Machine::new(&[(1, "")]);
    machine.second(&[(0, 80_000, 0)], &[]);
    machine.gpus.join(1, SECOND_NS);
    machine.second(&[(0, 500_000, 0)], &[]);
    for _ in 0..3 {
        machine.second(&[(0, 500_000, 900)], &[(100, 0, 1 << 30, 900)]);
    }
    let usage = machine.gpus.leave(1).remove(0);
    assert_eq!((usage.held_ns, usage.paid_ns), (2 * SECOND_NS, 3 * SECOND_NS));
    assert_eq!(usage.energy_uj(), 3 * 500_000_000);
}

#[test]
fn what_befell_a_gpu_that_a_job_had_closed_before_is_not_the_jobs() {
    let mut machine = Machine::new(&[(1, ""), (2, "")]);
    let lost = |machine: &mut Machine, faults: i64| {
        machine.at_s += 1;
        let mut gpus = Batch::new(&device::TABLE);
        gpus.push_part(Subject::Node, 0)[device::FAULTS] = faults;
        let rows = Rows { gpus: &gpus, processes: &Batch::new(&process::TABLE), labels: &machine.labels };
        machine.gpus.look(&[rows], &machine.map, machine.at_s * SECOND_NS, 0);
        [1, 2].map(|slot| machine.gpus.uses_of(slot)[0].faults)
    };
    machine.second(&[(0, 300_000, 900)], &[(100, 0, 1, 500), (200, 0, 1, 400)]);
    machine.second(&[(0, 300_000, 900)], &[(200, 0, 1, 900)]);
    assert_eq!(lost(&mut machine, 1), [None, Some(0)], "what was before is not known of either");
    assert_eq!(lost(&mut machine, 3), [None, Some(2)]);
}
