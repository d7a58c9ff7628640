//! What to do with a model: times, energy and cost at other sizes, and the machines that fit.

use met_core::job::Record;
use met_core::job_table as column;

use super::{Bounds, CannotTell, Interval, Run, Scaling, scaling};
use crate::answers::Job;
use crate::average;

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
    pub core_hour: Option<f64>,
    pub gpu_hour: Option<f64>,
}

/// What one run cost per worker and second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub joules: f64,
    pub grams: Option<f64>,
    pub money: Option<f64>,
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

/// A finished run of this size.
pub fn run(job: &Job<'_>, size: f64) -> Option<Run> {
    let seconds =
        average::wall_ns(job.record, job.now_ns).filter(|_| !job.record.state.is_live())? as f64 / 1e9;
    Some(Run { size, seconds })
}

pub fn cost(job: &Job<'_>, size: f64) -> Option<Cost> {
    let wall_s = average::wall_ns(job.record, job.now_ns).filter(|&ns| ns > 0)? as f64 / 1e9;
    let per = |index: usize| {
        let value = met_core::JOB.columns[index].scaled(job.record.totals.get(index)?);
        Some(value / (size * wall_s))
    };
    Some(Cost { joules: per(column::ENERGY)?, grams: per(column::EMISSIONS), money: per(column::COST) })
}

pub fn plan(
    runs: &[Run],
    costs: &[Cost],
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
        predictions = sizes.into_iter().map(|size| predicted(model, costs, size)).collect();
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

fn predicted(model: &Scaling, costs: &[Cost], size: f64) -> Prediction {
    let seconds = model.seconds(size);
    let middle = |read: fn(&Cost) -> Option<f64>| {
        let mut known: Vec<f64> = costs.iter().filter_map(read).collect();
        Some(crate::answers::median_of(&mut known)? * size * seconds?.value)
    };
    Prediction {
        size,
        seconds,
        speedup: model.speedup(size),
        joules: middle(|cost| Some(cost.joules)),
        grams: middle(|cost| cost.grams),
        money: middle(|cost| cost.money),
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
    let size = model.map(|model| model.best_size().min(system.cores as f64));
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
        let told: Vec<(bool, String)> =
            plan.systems.iter().map(|fit| (fit.fits, fit.notes.join("; "))).collect();
        assert_eq!(told[0], (true, String::new()));
        assert_eq!(told[1], (true, "its GPUs are AMD: the program needs a port".to_owned()));
        assert!(told[2].1.starts_with("uses 1 GPUs, it has 0") && !told[2].0);
        assert_eq!(told[3], (false, "needs 3.00 MiB of memory, it has 1.00 MiB".to_owned()));
        assert!(plan.systems[0].price.is_some_and(|price| price > 0.0) && plan.systems[3].price.is_none());
    }

    #[test]
    fn energy_grows_with_the_work_that_is_lost() {
        let cost = Cost { joules: 10.0, grams: Some(1.0), money: None };
        let wishes = Wishes { sizes: vec![1.0, 8.0, 16.0], target_s: Some(400.0) };
        let plan = plan(&runs(), &[cost], None, &sample::finished(), &[], &wishes);
        let [one, eight, far] = &plan.predictions[..] else { panic!("{:?}", plan.predictions) };
        assert!((one.joules.unwrap() - 10_000.0).abs() < 50.0, "{one:?}");
        assert!(eight.joules > one.joules && eight.money.is_none());
        assert_eq!((far.seconds, far.joules), (None, None), "four sizes would be needed");
        assert_eq!(plan.target, Some((400.0, Some(4.0))));
    }

    #[test]
    fn without_a_model_there_is_no_number() {
        let plan = plan(&runs()[..1], &[], None, &sample::finished(), &[], &Wishes::default());
        assert!(plan.scaling.is_err() && plan.predictions.is_empty() && plan.target.is_none());
    }
}
