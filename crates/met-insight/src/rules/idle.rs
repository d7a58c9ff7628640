//! Energy that jobs took without work: what is saved where less is held. Work takes its energy wherever it is done.

use met_core::JOB;
use met_core::job::Record;
use met_core::job_table as column;

use crate::answers::Job;
use crate::average;
use crate::finding::Saving;

/// Of the jobs that are added. Where energy was read of some of them only, it is less than there was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Idle {
    cores: Held,
    gpus: Held,
    grams: Priced,
    money: Priced,
}

/// Time for which something was held, and the idle energy of it, where that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Held {
    seconds: f64,
    joules: Option<f64>,
}

impl Held {
    fn add(&mut self, seconds: f64, joules: Option<f64>) {
        self.seconds += seconds;
        if let Some(joules) = joules {
            *self.joules.get_or_insert(0.0) += joules;
        }
    }

    /// Of the share that would not be held.
    fn saved(&self, hours: Option<f64>) -> Option<f64> {
        let held = (self.seconds > 0.0).then_some(self.seconds / 3600.0)?;
        Some((hours? / held).min(1.0) * self.joules?)
    }
}

/// What energy emitted or cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Priced {
    amount: f64,
    joules: f64,
}

impl Priced {
    fn add(&mut self, record: &Record, index: usize) {
        let Some((amount, joules)) = record.totals.get(index).zip(joules(record, column::ENERGY)) else {
            return;
        };
        self.amount += JOB.columns[index].scaled(amount);
        self.joules += joules;
    }

    fn of(&self, joules: f64) -> Option<f64> {
        (self.joules > 0.0).then(|| self.amount / self.joules * joules)
    }
}

fn joules(record: &Record, index: usize) -> Option<f64> {
    record.totals.get(index).map(|uj| uj as f64 / 1e6)
}

impl Idle {
    /// Of one job, by what it was given.
    pub fn of_job(job: &Job<'_>) -> Idle {
        let (record, mut idle) = (job.record, Idle::default());
        let wall_s = average::wall_ns(record, job.now_ns).map_or(0.0, |ns| ns as f64 / 1e9);
        if let Some(cpus) = record.allocated.cpus {
            idle.add_cores(record, cpus as f64 * wall_s);
        }
        idle.add_gpus(record, record.allocated.gpus.unwrap_or(record.gpus.len() as i64) as f64 * wall_s);
        idle.add_prices(record);
        idle
    }

    pub fn add_cores(&mut self, record: &Record, held_s: f64) {
        let of_gpus = joules(record, column::GPU_ENERGY_IDLE).unwrap_or(0.0);
        let idle = joules(record, column::ENERGY_IDLE).map(|idle| (idle - of_gpus).max(0.0));
        self.cores.add(held_s, idle);
    }

    pub fn add_gpus(&mut self, record: &Record, held_s: f64) {
        self.gpus.add(held_s, joules(record, column::GPU_ENERGY_IDLE));
    }

    pub fn add_prices(&mut self, record: &Record) {
        self.grams.add(record, column::EMISSIONS);
        self.money.add(record, column::COST);
    }

    /// A saving of time with its energy and what that emits and costs.
    pub fn with(&self, saving: Saving) -> Saving {
        let energy_joules = match (self.gpus.saved(saving.gpu_hours), self.cores.saved(saving.core_hours)) {
            (None, None) => return saving,
            (gpus, cores) => gpus.unwrap_or(0.0) + cores.unwrap_or(0.0),
        };
        Saving {
            energy_joules: Some(energy_joules),
            emissions_grams: self.grams.of(energy_joules),
            money: self.money.of(energy_joules),
            ..saving
        }
    }
}

#[cfg(test)]
mod tests {
    use met_core::job::QualityKind;

    use super::*;
    use crate::report::Machine;
    use crate::rules::user;
    use crate::sample;

    /// An hour on 16 cores and 2 GPUs.
    fn hour(figures: &[(usize, i64)]) -> Record {
        let mut record = sample::finished();
        record.end_ns = record.start_ns.map(|start_ns| start_ns + 3_600_000_000_000);
        (record.allocated.cpus, record.allocated.gpus) = (Some(16), Some(2));
        record.totals = Default::default();
        for &(index, value) in figures {
            record.totals.set(index, value, QualityKind::Measured, "rapl");
        }
        record
    }

    const ALL: [(usize, i64); 5] = [
        (column::ENERGY, 8_000_000_000),
        (column::ENERGY_IDLE, 4_000_000_000),
        (column::GPU_ENERGY_IDLE, 1_000_000_000),
        (column::EMISSIONS, 16_000_000),
        (column::COST, 800_000_000),
    ];

    fn saved(record: &Record, core_hours: Option<f64>, gpu_hours: Option<f64>) -> Saving {
        let job = Job::new(record, Machine::default(), sample::NOW_NS);
        Idle::of_job(&job).with(Saving { core_hours, gpu_hours, ..Saving::default() })
    }

    fn figures(saving: Saving) -> [Option<f64>; 3] {
        [saving.energy_joules, saving.emissions_grams, saving.money]
    }

    #[test]
    fn what_is_not_held_saves_its_idle_energy_with_its_emissions_and_cost() {
        let record = hour(&ALL);
        assert_eq!(
            figures(saved(&record, Some(8.0), None)),
            [Some(1500.0), Some(3.0), Some(0.15)],
            "half the cores"
        );
        assert_eq!(
            figures(saved(&record, None, Some(1.0))),
            [Some(500.0), Some(1.0), Some(0.05)],
            "one of two GPUs"
        );
        assert_eq!(figures(saved(&record, Some(8.0), Some(1.0)))[0], Some(2000.0));
        assert_eq!(figures(saved(&record, Some(99.0), None))[0], Some(3000.0), "not more than there was");
        assert_eq!(figures(saved(&record, None, None)), [None; 3]);
    }

    #[test]
    fn energy_that_was_not_read_is_not_saved_and_not_zero() {
        assert_eq!(figures(saved(&hour(&[]), Some(8.0), Some(1.0))), [None; 3]);
        assert_eq!(figures(saved(&hour(&ALL[..3]), Some(8.0), None)), [Some(1500.0), None, None]);
        assert_eq!(
            figures(saved(&hour(&ALL[1..]), Some(8.0), None)),
            [Some(1500.0), None, None],
            "per joule of what?"
        );
    }

    #[test]
    fn the_sum_of_a_user_saves_the_idle_energy_of_its_jobs() {
        let job = |id: &str, figures: &[(usize, i64)]| {
            let mut record = hour(figures);
            (record.key.id, record.allocated.gpus) = (id.to_owned(), None);
            record.totals.set(column::CPU, 3_600_000_000_000, QualityKind::Measured, "cgroup");
            record.totals.set(column::PRESSURE_IO, 0, QualityKind::Measured, "cgroup");
            record
        };
        let without_gpus = [ALL[0], (column::ENERGY_IDLE, 4_000_000_000), ALL[3], ALL[4]];
        let jobs = [job("1", &without_gpus), job("2", &without_gpus)];
        let saving = Saving { core_hours: Some(16.0), ..Saving::default() };
        let of = |jobs: &[Record]| figures(user::sums(jobs, &[], sample::NOW_NS)[0].idle.with(saving));
        assert_eq!(of(&jobs), [Some(4000.0), Some(8.0), Some(0.4)], "half of what two jobs held");
        assert_eq!(
            of(&[job("1", &without_gpus), job("2", &[])])[0],
            Some(2000.0),
            "of one of two it was read"
        );
        assert_eq!(of(&[job("1", &[])]), [None; 3]);
    }
}
