//! Models of time by size, fitted to the logarithms of times: noise is a share of the time.

use super::Run;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Amdahl's law through two sizes.
    KarpFlatt,
    Amdahl,
    /// Universal scalability law: contention and coherency.
    Usl,
}

impl Model {
    pub fn name(self) -> &'static str {
        match self {
            Model::KarpFlatt => "karp_flatt",
            Model::Amdahl => "amdahl",
            Model::Usl => "usl",
        }
    }

    /// Fitted numbers, the noise included.
    fn parameters(self) -> usize {
        match self {
            Model::KarpFlatt | Model::Amdahl => 3,
            Model::Usl => 4,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// On one worker.
    pub one_s: f64,
    pub serial: f64,
    pub coherency: f64,
}

impl Parameters {
    /// T(n) = T(1) (1 + σ(n − 1) + κ n (n − 1)) / n
    pub fn seconds(&self, size: f64) -> f64 {
        self.one_s * shape(self.serial, self.coherency, size)
    }
}

fn shape(serial: f64, coherency: f64, size: f64) -> f64 {
    (1.0 + serial * (size - 1.0) + coherency * size * (size - 1.0)) / size
}

/// The least squares of logarithms, within 0 ≤ serial ≤ 1 and coherency ≥ 0.
pub fn fit(model: Model, runs: &[Run]) -> Parameters {
    fit_above(0.0, model, runs)
}

/// The same with another least serial share: below 0 it is what noise makes of a program without a serial part.
pub fn fit_above(least: f64, model: Model, runs: &[Run]) -> Parameters {
    if model == Model::KarpFlatt {
        let serial = karp_flatt(runs).clamp(least, 1.0);
        return Parameters { one_s: squares(serial, 0.0, runs).0, serial, coherency: 0.0 };
    }
    let at_serial = |serial: f64| match model {
        Model::KarpFlatt | Model::Amdahl => (serial, 0.0),
        Model::Usl => {
            let coherency = minimum(-12.0, 0.0, |log| squares(serial, 10_f64.powf(log), runs).1);
            // None at all may be better than the least that was tried.
            let found = 10_f64.powf(coherency);
            let none = squares(serial, 0.0, runs).1 <= squares(serial, found, runs).1;
            (serial, if none { 0.0 } else { found })
        }
    };
    let cost = |serial: f64| {
        let (serial, coherency) = at_serial(serial);
        squares(serial, coherency, runs).1
    };
    let inside = minimum(least, 1.0, cost);
    let best = [least, 1.0, inside].into_iter().min_by(|&one, &other| cost(one).total_cmp(&cost(other)));
    let (serial, coherency) = at_serial(best.unwrap_or(inside));
    Parameters { one_s: squares(serial, coherency, runs).0, serial, coherency }
}

/// The serial share that goes through the means of two sizes: no search is needed.
fn karp_flatt(runs: &[Run]) -> f64 {
    let small = runs.iter().map(|run| run.size).fold(f64::INFINITY, f64::min);
    let large = runs.iter().map(|run| run.size).fold(1.0, f64::max);
    let mean = |size: f64| {
        let logs: Vec<f64> = runs.iter().filter(|run| run.size == size).map(|run| run.seconds.ln()).collect();
        logs.iter().sum::<f64>() / logs.len() as f64
    };
    let ratio = (mean(large) - mean(small)).exp();
    let slope = (large - 1.0) / large - ratio * (small - 1.0) / small;
    // Times that grow by more than any serial share explains.
    if slope <= 0.0 { 1.0 } else { (ratio / small - 1.0 / large) / slope }
}

/// The best time on one worker for a shape, and the sum of squares that is left.
fn squares(serial: f64, coherency: f64, runs: &[Run]) -> (f64, f64) {
    // Of the quotient, one logarithm for each run: this is what a fit spends its time on.
    let rest = |run: &Run| (run.seconds / shape(serial, coherency, run.size)).ln();
    let (mut sum, mut squares) = (0.0, 0.0);
    // Around the first, so that squares of large numbers do not cancel.
    let first = runs.first().map_or(0.0, rest);
    for run in runs {
        let rest = rest(run) - first;
        sum += rest;
        squares += rest * rest;
    }
    let count = runs.len() as f64;
    ((first + sum / count).exp(), (squares - sum * sum / count).max(0.0))
}

/// Golden sections, from the best of a grid: the cost may have more than one hollow.
fn minimum(low: f64, high: f64, cost: impl Fn(f64) -> f64) -> f64 {
    const STEPS: usize = 12;
    const SECTIONS: usize = 26;
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let at = |step: usize| low + (high - low) * step as f64 / STEPS as f64;
    let best = (0..=STEPS).min_by(|&one, &other| cost(at(one)).total_cmp(&cost(at(other)))).unwrap_or(0);
    let (mut left, mut right) = (at(best.saturating_sub(1)), at((best + 1).min(STEPS)));
    for _ in 0..SECTIONS {
        let (one, other) = (right - GOLDEN * (right - left), left + GOLDEN * (right - left));
        if cost(one) <= cost(other) {
            right = other;
        } else {
            left = one;
        }
    }
    (left + right) / 2.0
}

/// Akaike's criterion, corrected for few runs: lower is better. A model with as many parameters as runs explains nothing.
pub fn aicc(model: Model, fitted: &Parameters, runs: &[Run]) -> f64 {
    let (count, parameters) = (runs.len() as f64, model.parameters() as f64);
    if count <= parameters + 1.0 {
        return f64::INFINITY;
    }
    let (_, squares) = squares(fitted.serial, fitted.coherency, runs);
    let fit = count * (squares / count).max(1e-12).ln();
    fit + 2.0 * parameters + 2.0 * parameters * (parameters + 1.0) / (count - parameters - 1.0)
}

/// What the fit leaves of each run, as a logarithm.
pub fn residuals(fitted: &Parameters, runs: &[Run]) -> Vec<f64> {
    runs.iter().map(|run| run.seconds.ln() - fitted.seconds(run.size).ln()).collect()
}
