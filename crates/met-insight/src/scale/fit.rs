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

/// The mean of the logarithms of the times of all runs of one size: fits need no more of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    pub size: f64,
    pub log_seconds: f64,
    /// How many runs.
    pub weight: f64,
}

/// By size, ascending, of runs that are sorted so.
pub fn observed(runs: &[Run]) -> Vec<Observed> {
    let of_size = |runs: &[Run]| {
        let weight = runs.len() as f64;
        let log_seconds = runs.iter().map(|run| run.seconds.ln()).sum::<f64>() / weight;
        runs.first().map(|run| Observed { size: run.size, log_seconds, weight })
    };
    runs.chunk_by(|one, other| one.size == other.size).filter_map(of_size).collect()
}

/// A serial share and a coherency.
type Shares = (f64, f64);

/// The least squares of logarithms, within 0 ≤ serial ≤ 1 and coherency ≥ 0.
pub fn fit(model: Model, seen: &[Observed]) -> Parameters {
    fit_above(0.0, model, seen, (0.1, 0.001))
}

/// The same with another least serial share, from near what is expected: below 0 the share is what noise makes of a program
/// without a serial part.
pub fn fit_above(least: f64, model: Model, seen: &[Observed], near: Shares) -> Parameters {
    let amdahl = || {
        let (serial, _) = descend((near.0.clamp(least, 1.0), 0.0), [true, false], seen);
        (serial.clamp(least, 1.0), 0.0)
    };
    let (serial, coherency) = match model {
        // Of other than two sizes it is Amdahl's law.
        Model::KarpFlatt => karp_flatt(seen).map_or_else(amdahl, |serial| (serial.clamp(least, 1.0), 0.0)),
        Model::Amdahl => amdahl(),
        Model::Usl => {
            let inside = descend((near.0.clamp(least, 1.0), near.1), [true, true], seen);
            if (least..=1.0).contains(&inside.0) && inside.1 >= 0.0 {
                inside
            } else {
                // Outside: the best one within is on an edge.
                let edge = |serial: f64| {
                    let (_, coherency) = descend((serial, near.1), [false, true], seen);
                    (serial, coherency.max(0.0))
                };
                let cost = |of: &Shares| squares(*of, seen).1;
                let edges = [amdahl(), edge(least), edge(1.0)].into_iter();
                edges.min_by(|one, other| cost(one).total_cmp(&cost(other))).unwrap_or(inside)
            }
        }
    };
    Parameters { one_s: squares((serial, coherency), seen).0.exp(), serial, coherency }
}

/// The serial share that goes through the means of two sizes: no search is needed. None of another number of sizes, or of
/// times that are no numbers.
fn karp_flatt(seen: &[Observed]) -> Option<f64> {
    let [small, large] = seen else { return None };
    let ratio = (large.log_seconds - small.log_seconds).exp();
    let slope = (large.size - 1.0) / large.size - ratio * (small.size - 1.0) / small.size;
    // Times that grow by more than any serial share explains.
    let serial = if slope <= 0.0 { 1.0 } else { (ratio / small.size - 1.0 / large.size) / slope };
    Some(serial).filter(|serial| serial.is_finite())
}

/// The logarithm of the best time on one worker for a shape, and the sum of squares that is left; infinite where there is
/// no such shape.
fn squares((serial, coherency): Shares, seen: &[Observed]) -> (f64, f64) {
    let (mut weight, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for one in seen {
        let shape = shape(serial, coherency, one.size);
        if !shape.is_finite() || shape <= 0.0 {
            return (f64::NAN, f64::INFINITY);
        }
        // By the running mean, so that squares of large numbers do not cancel.
        let rest = one.log_seconds - shape.ln();
        weight += one.weight;
        let off = rest - mean;
        mean += off * one.weight / weight;
        squares += one.weight * off * (rest - mean);
    }
    // The larger one of 0 and no number would be 0, which is a perfect fit.
    if squares.is_finite() { (mean, squares.max(0.0)) } else { (f64::NAN, f64::INFINITY) }
}

/// Levenberg and Marquardt: downhill from near the lowest point, in those of the two directions that are free.
fn descend(from: Shares, free: [bool; 2], seen: &[Observed]) -> Shares {
    const STEPS_MAX: usize = 60;
    let (mut at, mut damping) = (from, 1e-3);
    let (mut base, mut cost) = squares(at, seen);
    for _ in 0..STEPS_MAX {
        let (slopes, curves) = derivatives(at, base, free, seen);
        let [along, across] = [curves[0] * (1.0 + damping), curves[2] * (1.0 + damping)];
        let determinant = along * across - curves[1] * curves[1];
        let step = (
            (slopes[0] * across - slopes[1] * curves[1]) / determinant,
            (slopes[1] * along - slopes[0] * curves[1]) / determinant,
        );
        let next = (at.0 + step.0, at.1 + step.1);
        let (next_base, next_cost) = squares(next, seen);
        if next_cost < cost {
            let is_settled = cost - next_cost <= 1e-12 * cost;
            (at, base, cost, damping) = (next, next_base, next_cost, damping * 0.1);
            if is_settled {
                break;
            }
        } else if damping > 1e6 || step.0.abs() <= 1e-10 && step.1.abs() <= 1e-12 {
            break;
        } else {
            damping *= 10.0;
        }
    }
    at
}

/// Slopes of the squares and their curvature (σσ, σκ, κκ), halved; a direction that is not free has none.
fn derivatives(at: Shares, base: f64, free: [bool; 2], seen: &[Observed]) -> ([f64; 2], [f64; 3]) {
    let (mut weight, mut mean) = (0.0, [0.0; 2]);
    let (mut slopes, mut curves) = ([0.0; 2], [0.0; 3]);
    for one in seen {
        let shape = shape(at.0, at.1, one.size);
        let rest = one.log_seconds - shape.ln() - base;
        let by = [(one.size - 1.0) / one.size / shape, (one.size - 1.0) / shape];
        weight += one.weight;
        for (mean, by) in mean.iter_mut().zip(by) {
            *mean += one.weight * by;
        }
        for (slope, by) in slopes.iter_mut().zip(by) {
            *slope += one.weight * by * rest;
        }
        curves[0] += one.weight * by[0] * by[0];
        curves[1] += one.weight * by[0] * by[1];
        curves[2] += one.weight * by[1] * by[1];
    }
    // What the time on one worker takes up is no slope of the shape.
    curves[0] -= mean[0] * mean[0] / weight;
    curves[1] -= mean[0] * mean[1] / weight;
    curves[2] -= mean[1] * mean[1] / weight;
    match free {
        [true, true] => (slopes, curves),
        [true, false] => ([slopes[0], 0.0], [curves[0], 0.0, 1.0]),
        [false, true] => ([0.0, slopes[1]], [1.0, 0.0, curves[2]]),
        [false, false] => ([0.0; 2], [1.0, 0.0, 1.0]),
    }
}

/// Akaike's criterion, corrected for few runs: lower is better. A model with as many parameters as runs explains nothing.
pub fn aicc(model: Model, fitted: &Parameters, runs: &[Run]) -> f64 {
    let (count, parameters) = (runs.len() as f64, model.parameters() as f64);
    if count <= parameters + 1.0 {
        return f64::INFINITY;
    }
    let squares: f64 = residuals(fitted, runs).iter().map(|rest| rest * rest).sum();
    let fit = count * (squares / count).max(1e-12).ln();
    fit + 2.0 * parameters + 2.0 * parameters * (parameters + 1.0) / (count - parameters - 1.0)
}

/// What the fit leaves of each run, as a logarithm.
pub fn residuals(fitted: &Parameters, runs: &[Run]) -> Vec<f64> {
    runs.iter().map(|run| run.seconds.ln() - fitted.seconds(run.size).ln()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(times: &[(f64, f64)]) -> Vec<Observed> {
        times
            .iter()
            .map(|&(size, seconds)| Observed { size, log_seconds: seconds.ln(), weight: 1.0 })
            .collect()
    }

    #[test]
    fn what_is_no_number_is_no_fit() {
        let times = seen(&[(1.0, 100.0), (2.0, 55.0), (4.0, 32.0)]);
        let left = |shares: Shares, seen: &[Observed]| squares(shares, seen).1;
        assert!(left((0.1, 0.0), &times) < 0.01);
        for shares in
            [(f64::NAN, 0.0), (0.1, f64::NAN), (f64::INFINITY, 0.0), (0.1, f64::INFINITY), (-9.0, 0.0)]
        {
            assert_eq!(left(shares, &times), f64::INFINITY, "{shares:?}");
        }
        for seconds in [f64::NAN, f64::INFINITY, 0.0] {
            assert_eq!(left((0.1, 0.0), &seen(&[(1.0, 100.0), (2.0, seconds)])), f64::INFINITY, "{seconds}");
        }
    }

    #[test]
    fn two_sizes_have_a_serial_share_and_others_none() {
        let share = |times: &[(f64, f64)]| karp_flatt(&seen(times));
        assert!((share(&[(1.0, 100.0), (2.0, 55.0)]).unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(share(&[(2.0, 100.0), (4.0, 900.0)]), Some(1.0), "slower than any share explains");
        assert_eq!(share(&[(1.0, 100.0)]), None);
        assert_eq!(share(&[(1.0, 100.0), (2.0, 55.0), (4.0, 32.0)]), None);
        assert_eq!(share(&[(1.0, 100.0), (2.0, f64::NAN)]), None);
        let three = seen(&[(1.0, 100.0), (2.0, 55.0), (4.0, 32.5)]);
        assert_eq!(fit(Model::KarpFlatt, &three), fit(Model::Amdahl, &three));
    }
}
