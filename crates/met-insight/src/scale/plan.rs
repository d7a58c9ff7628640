//! What to do with a model: times, energy and cost at other sizes, and the machines that fit.

use met_core::job::{QualityKind, Record, State};
use met_core::job_table as column;

use super::{Bounds, CannotTell, Interval, Run, Scaling, scaling};
use crate::answers::Job;
use crate::average;
use crate::rules::user::UserSum;

/// A machine that jobs could move to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct System {
    pub name: String,
    pub cores: u64,
    pub memory_bytes: Option<u64>,
    pub gpus: u64,
    /// `nvidia`, `amd`, `intel`.
    pub gpu_maker: Option<String>,
    pub gpu_memory_bytes: Option<u64>,
    /// Bytes per second from and to storage.
    pub storage_rate: Option<f64>,
    pub core_hour: Option<f64>,
    pub gpu_hour: Option<f64>,
}

/// The mean power of one run, and what a joule of it emitted and cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    pub size: f64,
    pub watts: f64,
    pub grams_per_joule: Option<f64>,
    pub money_per_joule: Option<f64>,
}

/// Runs whose power is further from the line than this have no common one.
const POWER_OFF: f64 = 0.2;

/// Power by size, as a line through what the runs drew: a part of it does not depend on the workers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PowerLine {
    base_watts: f64,
    worker_watts: f64,
}

impl PowerLine {
    /// `None` of one size, and where the runs are not on a line.
    fn of(powers: &[Power]) -> Option<PowerLine> {
        let count = powers.len() as f64;
        let mean = |of: fn(&Power) -> f64| powers.iter().map(of).sum::<f64>() / count;
        let (size, watts) = (mean(|power| power.size), mean(|power| power.watts));
        let squares: f64 = powers.iter().map(|power| (power.size - size).powi(2)).sum();
        let products: f64 = powers.iter().map(|power| (power.size - size) * (power.watts - watts)).sum();
        if squares <= 0.0 {
            return None;
        }
        // Neither part is below nothing.
        let slope = (products / squares).clamp(0.0, watts / size);
        let line = PowerLine { base_watts: watts - slope * size, worker_watts: slope };
        let is_near = |power: &Power| (line.watts(power.size) / power.watts - 1.0).abs() <= POWER_OFF;
        powers.iter().all(is_near).then_some(line)
    }

    fn watts(&self, size: f64) -> f64 {
        self.base_watts + self.worker_watts * size
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    pub sizes: Vec<f64>,
    pub target_s: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub scaling: Result<Scaling, CannotTell>,
    pub bounds: Option<Bounds>,
    pub predictions: Vec<Prediction>,
    /// The wanted time, and the size that reaches it.
    pub target: Option<(f64, Option<f64>)>,
    pub systems: Vec<Fit>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub size: f64,
    /// `None`: further away than the runs can say.
    pub seconds: Option<Interval>,
    pub speedup: Option<Interval>,
    pub joules: Option<f64>,
    pub grams: Option<f64>,
    pub money: Option<f64>,
}

/// Whether a machine is one for the job, and why not.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    pub name: String,
    pub fits: bool,
    pub notes: Vec<String>,
    /// At its best size there: the size, its time and price.
    pub size: Option<f64>,
    pub seconds: Option<Interval>,
    pub price: Option<f64>,
}

/// A run of this size that finished: the time of another is not that of the work.
pub fn run(job: &Job<'_>, size: f64) -> Option<Run> {
    let is_finished = job.record.state == State::Finished;
    let seconds = average::wall_ns(job.record, job.now_ns).filter(|_| is_finished)? as f64 / 1e9;
    Some(Run { size, seconds })
}

/// Of a run that finished and whose energy is known to its end.
pub fn power(job: &Job<'_>, size: f64) -> Option<Power> {
    let run = run(job, size).filter(|run| run.seconds > 0.0 && job.is_whole())?;
    let energy = job.record.totals.figure(column::ENERGY)?;
    let joules = met_core::JOB.columns[column::ENERGY].scaled(energy.value);
    if energy.kind == QualityKind::LowerBound || joules <= 0.0 {
        return None;
    }
    let per_joule =
        |index: usize| Some(met_core::JOB.columns[index].scaled(job.record.totals.get(index)?) / joules);
    Some(Power {
        size,
        watts: joules / run.seconds,
        grams_per_joule: per_joule(column::EMISSIONS),
        money_per_joule: per_joule(column::COST),
    })
}

pub fn plan(
    runs: &[Run],
    powers: &[Power],
    bounds: Option<Bounds>,
    record: &Record,
    systems: &[System],
    wishes: &Wishes,
) -> Plan {
    let scaling = scaling(runs);
    let mut predictions = Vec::new();
    let mut target = None;
    if let Ok(model) = &scaling {
        let sizes = if wishes.sizes.is_empty() { usual_sizes(model) } else { wishes.sizes.clone() };
        predictions = sizes.into_iter().map(|size| predicted(model, powers, size)).collect();
        target = wishes.target_s.map(|seconds| (seconds, model.size_for(seconds)));
    }
    let systems = systems.iter().map(|system| fit(system, record, scaling.as_ref().ok())).collect();
    Plan { scaling, bounds, predictions, target, systems }
}

/// The sizes that were run, and doublings up to what can be said.
fn usual_sizes(model: &Scaling) -> Vec<f64> {
    let mut sizes: Vec<f64> = model.sizes.iter().map(|&(size, ..)| size).collect();
    let mut next = sizes.last().copied().unwrap_or(1.0) * 2.0;
    while next <= model.size_max {
        sizes.push(next);
        next *= 2.0;
    }
    sizes
}

fn predicted(model: &Scaling, powers: &[Power], size: f64) -> Prediction {
    let seconds = model.seconds(size);
    let joules = PowerLine::of(powers).zip(seconds).map(|(line, seconds)| line.watts(size) * seconds.value);
    let middle = |read: fn(&Power) -> Option<f64>| {
        let mut known: Vec<f64> = powers.iter().filter_map(read).collect();
        Some(crate::answers::median_of(&mut known)? * joules?)
    };
    Prediction {
        size,
        seconds,
        speedup: model.speedup(size),
        joules,
        grams: middle(|power| power.grams_per_joule),
        money: middle(|power| power.money_per_joule),
    }
}

fn fit(system: &System, record: &Record, model: Option<&Scaling>) -> Fit {
    let mut notes = Vec::new();
    let mut fits = true;
    let mut refuse = |note: String| {
        fits = false;
        notes.push(note);
    };
    let needed = record.totals.get(column::MEMORY_NEEDED_PEAK).map(|bytes| bytes as f64);
    if let Some((needed, has)) = needed.zip(system.memory_bytes).filter(|(needed, has)| *needed > *has as f64)
    {
        let [needed, has] = [needed, has as f64].map(met_core::units::bytes);
        refuse(format!("needs {needed} of memory, it has {has}"));
    }
    let used = record.gpus.iter().filter(|gpu| gpu.used_ns > 0).count() as u64;
    if used > system.gpus {
        refuse(format!("uses {used} GPUs, it has {}", system.gpus));
    }
    let most_gpu = record.gpus.iter().filter_map(|gpu| gpu.memory_peak_bytes).max();
    if let Some((needed, has)) = most_gpu.zip(system.gpu_memory_bytes).filter(|(one, has)| *one > *has as i64)
    {
        let [needed, has] = [needed as f64, has as f64].map(met_core::units::bytes);
        refuse(format!("needs {needed} of GPU memory, its GPUs have {has}"));
    }
    let maker = record.gpus.first().map(|gpu| gpu.vendor.to_lowercase());
    if let (Some(maker), Some(other)) = (maker.filter(|_| used > 0), &system.gpu_maker)
        && maker != other.to_lowercase()
    {
        notes.push(format!("its GPUs are {other}: the program needs a port"));
    }
    // More cores than do useful work cost money and hardly time.
    let size = model.map(|model| model.efficient_size().min(system.cores as f64));
    let seconds = size.zip(model).and_then(|(size, model)| model.seconds(size));
    let hours = seconds.map(|seconds| seconds.value / 3600.0);
    let of_cores = system.core_hour.zip(size).zip(hours).map(|((price, size), hours)| price * size * hours);
    let of_gpus = if used > 0 {
        system.gpu_hour.zip(hours).map(|(price, hours)| price * used as f64 * hours)
    } else {
        Some(0.0)
    };
    let price = of_cores.zip(of_gpus).map(|(cores, gpus)| cores + gpus).filter(|_| fits);
    Fit {
        name: system.name.clone(),
        fits,
        notes,
        size: size.filter(|_| fits),
        seconds: seconds.filter(|_| fits),
        price,
    }
}

/// The cheapest, and of equal ones the smallest, of some machines.
fn cheapest<'s>(
    systems: impl Iterator<Item = &'s System>,
    price: impl Fn(&System) -> (Option<f64>, u64),
) -> Option<&'s System> {
    let of = |system: &System| {
        let (hour, size) = price(system);
        (hour.unwrap_or(f64::INFINITY), size)
    };
    systems.min_by(|one, other| {
        let (one_of, other_of) = (of(one), of(other));
        (one_of.0.total_cmp(&other_of.0)).then(one_of.1.cmp(&other_of.1)).then(one.name.cmp(&other.name))
    })
}

/// Room above the memory that a run needed.
const MEMORY_ROOM: f64 = 1.2;

/// A machine without GPUs that has the cores and the memory that a run used, if it used no GPU.
pub fn without_gpus<'s>(record: &Record, systems: &'s [System]) -> Option<&'s System> {
    let cores = average::cores_peak(record).or(record.allocated.cpus.map(|cpus| cpus as f64))?;
    let needed = average::memory_needed_peak(record)? * MEMORY_ROOM;
    let has_memory = |system: &System| system.memory_bytes.is_some_and(|has| has as f64 >= needed);
    let is_free = |system: &&System| system.gpus == 0 && system.cores as f64 >= cores && has_memory(system);
    let fitting = systems.iter().filter(is_free).filter(|system| fit(system, record, None).fits);
    cheapest(fitting, |system| (system.core_hour, system.cores))
}

/// A machine whose GPUs have less memory than those of a run and enough for it, of the same maker.
pub fn with_smaller_gpus<'s>(record: &Record, systems: &'s [System]) -> Option<&'s System> {
    let has = record.gpus.iter().map(|gpu| gpu.memory_total_bytes).min()??;
    let peaks: Option<Vec<i64>> = record.gpus.iter().map(|gpu| gpu.memory_peak_bytes).collect();
    let needed = peaks?.into_iter().max()? as f64 * MEMORY_ROOM;
    let is_smaller = |system: &&System| {
        let memory = system.gpu_memory_bytes.map(|bytes| bytes as f64);
        memory.is_some_and(|memory| memory >= needed && memory < 0.9 * has as f64)
            && system.gpu_maker.is_some()
            && system.gpus > 0
    };
    // A note says that the program needs a port.
    let fits = |system: &&System| {
        let fit = fit(system, record, None);
        fit.fits && fit.notes.is_empty()
    };
    let fitting = systems.iter().filter(is_smaller).filter(fits);
    cheapest(fitting, |system| (system.gpu_hour, system.gpu_memory_bytes.unwrap_or(u64::MAX)))
}

/// A machine for the jobs of a user: larger than each of those that they ran on, as far as these are known, with the cores
/// and the memory that one of them used at most. Which GPUs they need is not known.
pub fn larger_system<'s>(user: &UserSum, systems: &'s [System]) -> Option<&'s System> {
    let needed = user.memory_most_bytes.filter(|_| user.gpu_seconds == 0.0)? * MEMORY_ROOM;
    let is_node = |system: &&System| {
        user.nodes
            .iter()
            .any(|node| [Some(node.as_str()), node.split('.').next()].contains(&Some(&system.name)))
    };
    let cores_now = systems.iter().filter(is_node).map(|system| system.cores).max().unwrap_or(0);
    let fits = |system: &&System| {
        system.gpus == 0
            && system.cores > cores_now
            && system.cores as f64 >= user.cores_most
            && system.memory_bytes.is_some_and(|has| has as f64 >= needed)
    };
    let fitting = systems.iter().filter(|system| !is_node(system)).filter(fits);
    cheapest(fitting, |system| (system.core_hour, system.cores))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn runs() -> Vec<Run> {
        let times = [(1.0, 1000.0), (2.0, 550.0), (4.0, 325.0), (1.0, 1001.0), (2.0, 551.0), (4.0, 326.0)];
        times.map(|(size, seconds)| Run { size, seconds }).into()
    }

    #[test]
    fn machines_are_compared_by_what_the_job_needs() {
        let mut record = sample::finished();
        record.gpus = vec![sample::gpu()];
        let system = |name: &str, gpus, maker: &str| System {
            name: name.to_owned(),
            cores: 4,
            memory_bytes: Some(1 << 30),
            gpus,
            gpu_maker: Some(maker.to_owned()),
            core_hour: Some(0.01),
            gpu_hour: Some(2.0),
            ..System::default()
        };
        let small = System { memory_bytes: Some(1 << 20), ..system("small", 1, "nvidia") };
        let systems = [system("ml", 4, "nvidia"), system("lumi", 8, "AMD"), system("fox", 0, ""), small];
        let plan = plan(&runs(), &[], None, &record, &systems, &Wishes::default());
        let reported: Vec<(bool, String)> =
            plan.systems.iter().map(|fit| (fit.fits, fit.notes.join("; "))).collect();
        assert_eq!(reported[0], (true, String::new()));
        assert_eq!(reported[1], (true, "its GPUs are AMD: the program needs a port".to_owned()));
        assert!(reported[2].1.starts_with("uses 1 GPUs, it has 0") && !reported[2].0);
        assert_eq!(reported[3], (false, "needs 3.00 MiB of memory, it has 1.00 MiB".to_owned()));
        assert!(plan.systems[0].price.is_some_and(|price| price > 0.0) && plan.systems[3].price.is_none());
    }

    #[test]
    fn energy_is_that_of_the_runs_and_on_their_line_elsewhere() {
        // 30 W of the machine, and 10 W for each worker.
        let drawn = |size: f64| Power {
            size,
            watts: 30.0 + 10.0 * size,
            grams_per_joule: Some(0.1),
            money_per_joule: None,
        };
        let powers: Vec<Power> = runs().iter().map(|run| drawn(run.size)).collect();
        let wishes = Wishes { sizes: vec![1.0, 2.0, 8.0, 16.0], target_s: Some(400.0) };
        let plan_of = |powers: &[Power]| plan(&runs(), powers, None, &sample::finished(), &[], &wishes);
        let planned = plan_of(&powers);
        let [one, two, eight, far] = &planned.predictions[..] else { panic!("{:?}", planned.predictions) };
        for (prediction, joules) in [(one, 40.0 * 1000.0), (two, 50.0 * 550.0), (eight, 110.0 * 212.5)] {
            let share = prediction.joules.unwrap() / joules;
            assert!((share - 1.0).abs() < 0.01, "{prediction:?}");
            assert_eq!(prediction.grams, prediction.joules.map(|joules| joules * 0.1));
        }
        assert_eq!((far.seconds, far.joules), (None, None), "five sizes would be needed");
        assert_eq!(planned.target, Some((400.0, Some(4.0))));
        let energy = |powers: &[Power]| plan_of(powers).predictions[0].joules;
        assert_eq!(energy(&powers[..1]), None, "of one size there is no line");
        let odd = Power { watts: 200.0, ..powers[0] };
        assert_eq!(energy(&[&powers[..], &[odd]].concat()), None, "what is on no line is left out");
    }

    #[test]
    fn a_user_is_moved_to_a_larger_machine_on_which_every_job_fits() {
        let system = |name: &str, cores, gib: u64, gpus| System {
            name: name.to_owned(),
            cores,
            memory_bytes: Some(gib << 30),
            gpus,
            ..System::default()
        };
        let systems = [system("n1", 16, 64, 0), system("n2", 16, 512, 0), system("ml", 128, 512, 4)];
        let larger = [system("fox", 64, 256, 0), system("bear", 128, 512, 0)];
        let all = [&systems[..], &larger[..]].concat();
        let mut user = UserSum {
            cores_most: 12.0,
            memory_most_bytes: Some(30.0 * (1_u64 << 30) as f64),
            nodes: ["n1.site.org".to_owned()].into(),
            ..UserSum::default()
        };
        let name =
            |user: &UserSum, systems: &[System]| larger_system(user, systems).map(|it| it.name.clone());
        assert_eq!(name(&user, &all), Some("fox".to_owned()));
        assert_eq!(name(&user, &systems), None, "one is as large, and one has GPUs");
        user.memory_most_bytes = Some(250.0 * (1_u64 << 30) as f64);
        assert_eq!(name(&user, &all), Some("bear".to_owned()), "with room for its memory");
        user.gpu_seconds = 1.0;
        assert_eq!(name(&user, &all), None, "which GPUs it needs is not known");
        (user.gpu_seconds, user.memory_most_bytes) = (0.0, None);
        assert_eq!(name(&user, &all), None, "what it needs is not known");
    }

    #[test]
    fn a_job_is_moved_to_the_cheapest_machine_that_fits() {
        let mut record = sample::finished();
        let system = |name: &str, cores, gib: u64, price| System {
            name: name.to_owned(),
            cores,
            memory_bytes: Some(gib << 30),
            core_hour: Some(price),
            ..System::default()
        };
        let with_gpus = |name: &str, maker: &str, gib: u64| System {
            gpus: 4,
            gpu_maker: Some(maker.to_owned()),
            gpu_memory_bytes: Some(gib << 30),
            ..system(name, 64, 512, 0.1)
        };
        let systems = [
            system("dear", 64, 64, 0.02),
            system("fox", 64, 64, 0.01),
            system("tiny", 1, 64, 0.001),
            with_gpus("ml", "nvidia", 80),
            with_gpus("small", "nvidia", 24),
            with_gpus("lumi", "amd", 16),
        ];
        let name = |found: Option<&System>| found.map(|system| system.name.clone());
        assert_eq!(name(without_gpus(&record, &systems)), Some("fox".to_owned()), "1.9 cores were busy");
        assert_eq!(name(with_smaller_gpus(&record, &systems)), None, "it has no GPU");
        record.gpus = vec![sample::gpu()];
        assert_eq!(name(without_gpus(&record, &systems)), None, "it uses its GPU");
        assert_eq!(name(with_smaller_gpus(&record, &systems)), Some("small".to_owned()), "2 of 150 GB");
        record.gpus[0].memory_peak_bytes = Some(40 << 30);
        assert_eq!(name(with_smaller_gpus(&record, &systems)), Some("ml".to_owned()));
        record.gpus[0].memory_total_bytes = Some(80 << 30);
        assert_eq!(name(with_smaller_gpus(&record, &systems)), None, "it is not smaller");
        record.totals.remove(column::MEMORY_NEEDED_PEAK);
        record.gpus.clear();
        assert_eq!(name(without_gpus(&record, &systems)), None, "what it needs is not known");
    }

    #[test]
    fn only_a_run_that_finished_has_a_time() {
        let mut record = sample::finished();
        let of = |record: &Record| run(&Job::new(record, Default::default(), sample::NOW_NS), 2.0);
        assert_eq!(of(&record), Some(Run { size: 2.0, seconds: 4.0 }));
        for state in [State::Failed, State::Cancelled, State::Timeout, State::Running] {
            record.state = state;
            assert_eq!(of(&record), None);
        }
    }

    #[test]
    fn a_system_is_priced_at_a_size_that_is_worth_its_cores() {
        let half = |size: f64| Run { size, seconds: 1000.0 * (0.4 + 0.6 / size) };
        let runs: Vec<Run> =
            [1.0, 2.0, 4.0, 8.0, 16.0].into_iter().flat_map(|size| [half(size); 2]).collect();
        let system = System { name: "big".to_owned(), cores: 128, ..System::default() };
        let plan = plan(&runs, &[], None, &sample::finished(), &[system], &Wishes::default());
        assert_eq!(plan.systems[0].size, Some(3.0), "from there on more than half of each core is lost");
    }

    #[test]
    fn without_a_model_there_is_no_number() {
        let plan = plan(&runs()[..1], &[], None, &sample::finished(), &[], &Wishes::default());
        assert!(plan.scaling.is_err() && plan.predictions.is_empty() && plan.target.is_none());
    }
}
