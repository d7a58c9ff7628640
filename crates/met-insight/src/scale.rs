//! How a job scales: a model of its time by size, from its runs, and how far it may be believed.
//!
//! | runs | answer |
//! |---|---|
//! | one | bounds from its own samples |
//! | two sizes with repeats | Karp-Flatt with an interval from their noise, up to twice the largest size |
//! | three or four sizes | Amdahl, up to twice |
//! | five sizes, once each | Amdahl or USL, up to twice: which it is cannot be judged |
//! | five or more sizes, six runs | Amdahl or USL, whichever AICc prefers, up to four times |
//!
//! Down to smaller sizes the reach is the same.

mod bootstrap;
mod bounds;
mod ceilings;
mod fit;
mod learned;
mod object;
mod plan;

use std::collections::BTreeMap;

pub use bounds::{Bounds, bounds, size};
pub use ceilings::{CeilingFrom, Ceilings, Headroom};
pub use fit::Model;
pub use learned::{Learned, UNSIZED};
pub use object::object;
pub use plan::{
    Fit, Plan, Power, Prediction, System, Wishes, larger_system, plan, power, run, with_smaller_gpus,
    without_gpus,
};

/// One run: its size (workers, cores, ranks) and its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    pub size: f64,
    pub seconds: f64,
}

/// The share of noise below which runs of one size are taken to agree by chance.
const NOISE_LEAST: f64 = 0.005;
/// The noise of runs that were not repeated, for what contradicts every model.
const NOISE_USUAL: f64 = 0.03;
/// A model whose AICc is larger by less than this is not ruled out.
const PLAUSIBLE: f64 = 6.0;
/// Deviations from which on a difference is none by chance: with few runs their noise is known badly.
const DEVIATIONS: f64 = 4.0;

/// Sizes are predicted up to this multiple of the largest that was run.
const REACH_MOST: f64 = 4.0;
/// Tails of the draws beyond the interval: half of 2.5 % at each end. The quantiles of 400 draws, always the same ones, are
/// off by a third of that at times, and these are outside of the true ones in 19 of 20 cases.
const TAIL: f64 = 0.0125;

/// A serial share below this is none, as far as two sizes can say.
const SHARE_LEAST: f64 = 0.005;

#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    pub model: Model,
    /// The serial share of the work on one worker: Karp-Flatt's, Amdahl's or USL's contention.
    pub serial: Interval,
    /// USL's coherency; 0 for the others.
    pub coherency: Interval,
    /// Sizes that were run, ascending, each with its median time and how many runs it has.
    pub sizes: Vec<(f64, f64, usize)>,
    /// The smallest and largest size that are predicted.
    pub size_min: f64,
    pub size_max: f64,
    /// Of each plausible model.
    draws: Vec<Vec<fit::Parameters>>,
    fitted: fit::Parameters,
}

/// An estimate with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub value: f64,
    pub high: f64,
}

/// Why nothing can be said, and what to run next.
#[derive(Clone, Debug, PartialEq)]
pub struct CannotTell {
    pub why: &'static str,
    pub run_next: Vec<f64>,
}

/// The model of these runs. Runs without a size or a time are left out.
pub fn scaling(runs: &[Run]) -> Result<Scaling, CannotTell> {
    let mut runs: Vec<Run> = runs
        .iter()
        .copied()
        .filter(|run| run.size >= 1.0 && run.seconds > 0.0 && run.seconds.is_finite())
        .collect();
    runs.sort_by(|one, other| (one.size.total_cmp(&other.size)).then(one.seconds.total_cmp(&other.seconds)));
    let by_size = by_size(&runs);
    let (Some(first), Some(last)) = (by_size.first(), by_size.last()) else {
        return Err(CannotTell { why: "no run has a known size and time", run_next: vec![1.0, 2.0] });
    };
    let (smallest, largest) = (first.0, last.0);
    let repeats = by_size.iter().map(|(_, times)| times.len()).min().unwrap_or(0);
    match by_size.len() {
        1 => {
            let why = "all runs have one size: there are bounds only";
            return Err(CannotTell { why, run_next: vec![next_size(smallest), smallest] });
        }
        2 if repeats < 2 => {
            let why = "two sizes without repeats: their noise is not known";
            return Err(CannotTell { why, run_next: vec![smallest, largest] });
        }
        _ => {}
    }
    if let Some(why) = contradicts(&by_size) {
        return Err(CannotTell { why, run_next: Vec::new() });
    }
    let models: &[Model] = match by_size.len() {
        2 => &[Model::KarpFlatt],
        3 | 4 => &[Model::Amdahl],
        _ => &[Model::Amdahl, Model::Usl],
    };
    let noise = noise(&by_size).map(|noise| noise.max(NOISE_LEAST));
    let fits = fitted(models, &runs);
    let Some(&(least, model, fitted)) = fits.first() else {
        return Err(CannotTell { why: "no model fits", run_next: vec![next_size(largest)] });
    };
    // Which model it is may be uncertain itself: what a plausible one says widens the interval. Runs never rule out the
    // universal law, which is Amdahl's where they show no coherency: few runs only make it costly.
    let is_plausible = |(aicc, model, _): &&Fitted| {
        *model == Model::Usl || !(*aicc - least).is_finite() || *aicc - least < PLAUSIBLE
    };
    let plausible = fits.iter().filter(is_plausible);
    let draws: Vec<Vec<fit::Parameters>> =
        plausible.map(|(_, model, fitted)| bootstrap::draws(*model, fitted, &runs, noise)).collect();
    let interval = |read: fn(&fit::Parameters) -> f64| hull(read(&fitted), &draws, read);
    let serial = interval(|parameters| parameters.serial.max(0.0));
    // Whatever was predicted from such a share would be a guess.
    if model == Model::KarpFlatt && serial.low < SHARE_LEAST && serial.high > 1.0 - SHARE_LEAST {
        let why = "two sizes whose noise leaves every serial share possible";
        return Err(CannotTell { why, run_next: vec![smallest, largest, next_size(largest)] });
    }
    let is_judged = fits.iter().all(|(aicc, ..)| aicc.is_finite());
    let reach = if by_size.len() >= 5 && is_judged { REACH_MOST } else { 2.0 };
    Ok(Scaling {
        model,
        serial,
        coherency: interval(|parameters| parameters.coherency),
        sizes: by_size.into_iter().map(|(size, times)| (size, median(times.clone()), times.len())).collect(),
        size_min: (smallest / reach).max(1.0),
        size_max: largest * reach,
        draws,
        fitted,
    })
}

impl Scaling {
    /// The time at a size, unless that is further away than the runs can say.
    pub fn seconds(&self, size: f64) -> Option<Interval> {
        self.is_near(size).then(|| hull(self.fitted.seconds(size), &self.draws, |draw| draw.seconds(size)))
    }

    /// How much faster than with the smallest size that was run.
    pub fn speedup(&self, size: f64) -> Option<Interval> {
        let base = self.size_base();
        // Noise alone makes it faster than by its workers.
        let most = (size / base).max(1.0);
        let of =
            |parameters: &fit::Parameters| (parameters.seconds(base) / parameters.seconds(size)).min(most);
        self.is_near(size).then(|| hull(of(&self.fitted), &self.draws, of))
    }

    /// The smallest size that was run: what speed-up and efficiency are of.
    pub fn size_base(&self) -> f64 {
        self.sizes.first().map_or(1.0, |&(size, ..)| size)
    }

    fn is_near(&self, size: f64) -> bool {
        size >= self.size_min && size <= self.size_max
    }

    /// Whole sizes within what the runs can say.
    fn near_sizes(&self) -> impl Iterator<Item = f64> + use<> {
        (self.size_min.ceil() as u32..=self.size_max.floor().min(1e6) as u32).map(f64::from)
    }

    /// The smallest whole size that reaches a time, within what the runs can say.
    pub fn size_for(&self, seconds: f64) -> Option<f64> {
        self.near_sizes().find(|&size| self.fitted.seconds(size) <= seconds)
    }

    /// The size from which more workers make it no faster, if that is within reach.
    pub fn best_size(&self) -> f64 {
        let of = |size: f64| self.fitted.seconds(size);
        let fastest = self.near_sizes().min_by(|&one, &other| of(one).total_cmp(&of(other)));
        fastest.unwrap_or_else(|| self.size_base())
    }

    /// The largest size at which a core does at least half as much as with the smallest size that was run.
    pub fn efficient_size(&self) -> f64 {
        let base = self.size_base();
        let work = self.fitted.seconds(base) * base;
        let efficient = self.near_sizes().filter(|&size| work / self.fitted.seconds(size) / size >= 0.5);
        efficient.fold(base, f64::max)
    }
}

/// A model by its AICc, and its parameters.
type Fitted = (f64, Model, fit::Parameters);

/// The best model first.
fn fitted(models: &[Model], runs: &[Run]) -> Vec<Fitted> {
    let seen = fit::observed(runs);
    let of_model = |&model: &Model| {
        let fitted = fit::fit(model, &seen);
        (fit::aicc(model, &fitted, runs), model, fitted)
    };
    let mut fits: Vec<Fitted> = models.iter().map(of_model).collect();
    fits.sort_by(|one, other| one.0.total_cmp(&other.0));
    fits
}

/// A size and the times of its runs.
type OfSize = (f64, Vec<f64>);

fn log_median(times: &[f64]) -> f64 {
    median(times.to_vec()).ln()
}

/// What no model here describes. USL, of five sizes or more, knows slow-downs.
fn contradicts(by_size: &[OfSize]) -> Option<&'static str> {
    let noise = noise(by_size).unwrap_or(NOISE_USUAL).max(NOISE_LEAST);
    // By how much, as a logarithm, a measure of the last size exceeds that of an earlier one beyond chance.
    let exceeds = |of: fn(&OfSize) -> f64| {
        let (last, before) = by_size.split_last()?;
        let excess = |one: &OfSize| {
            let spread = (1.0 / one.1.len() as f64 + 1.0 / last.1.len() as f64).sqrt();
            of(last) - of(one) - DEVIATIONS * noise * spread
        };
        before.iter().map(excess).reduce(f64::max)
    };
    if by_size.len() < 5 && exceeds(|(_, times)| log_median(times)).is_some_and(|excess| excess > 0.0) {
        return Some("it becomes slower with more workers");
    }
    let is_superlinear =
        exceeds(|(size, times)| -(log_median(times) + size.ln())).is_some_and(|excess| excess > 0.0);
    is_superlinear
        .then_some("it becomes faster by more than its workers: no model of these runs holds elsewhere")
}

/// A size at which the models differ: twice as large, or one of two.
fn next_size(size: f64) -> f64 {
    if size > 1.0 { (size * 2.0).round() } else { 2.0 }
}

fn by_size(runs: &[Run]) -> Vec<(f64, Vec<f64>)> {
    let mut sizes: BTreeMap<u64, (f64, Vec<f64>)> = BTreeMap::new();
    for run in runs {
        // Positive floats sort like their bits.
        sizes.entry(run.size.to_bits()).or_insert((run.size, Vec::new())).1.push(run.seconds);
    }
    sizes.into_values().collect()
}

/// Relative noise of runs of one size: the pooled deviation of the logarithms of their times.
fn noise(by_size: &[(f64, Vec<f64>)]) -> Option<f64> {
    let (mut squares, mut freedom) = (0.0, 0);
    for (_, times) in by_size.iter().filter(|(_, times)| times.len() >= 2) {
        let logs: Vec<f64> = times.iter().map(|time| time.ln()).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        squares += logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>();
        freedom += logs.len() - 1;
    }
    (freedom > 0).then(|| (squares / freedom as f64).sqrt())
}

fn median(mut values: Vec<f64>) -> f64 {
    crate::answers::median_of(&mut values).unwrap_or(f64::NAN)
}

/// The intervals of all plausible models together.
fn hull(value: f64, draws: &[Vec<fit::Parameters>], read: impl Fn(&fit::Parameters) -> f64) -> Interval {
    let of_model = draws.iter().map(|draws| interval(value, draws.iter().map(&read).collect()));
    of_model.fold(Interval { low: value, value, high: value }, |sum, one| Interval {
        low: sum.low.min(one.low),
        value,
        high: sum.high.max(one.high),
    })
}

/// At least the central 95 % of what could be drawn, around the estimate.
fn interval(value: f64, mut draws: Vec<f64>) -> Interval {
    draws.sort_unstable_by(f64::total_cmp);
    let quantile = |share: f64| {
        let at = share * (draws.len().saturating_sub(1)) as f64;
        let (below, above) = (at.floor() as usize, at.ceil() as usize);
        match (draws.get(below), draws.get(above)) {
            (Some(&low), Some(&high)) => low + (high - low) * (at - at.floor()),
            _ => value,
        }
    };
    Interval { low: quantile(TAIL).min(value), value, high: quantile(1.0 - TAIL).max(value) }
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod tests;
