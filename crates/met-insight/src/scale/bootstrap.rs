//! Intervals by bootstrap: the same runs with noise drawn again, always the same way.

use super::Run;
use super::fit::{self, Model, Parameters};

const DRAWS: usize = 400;
/// Of two sizes: with two degrees of freedom the ends of an interval are far out, where few of 400 draws are. A fit of
/// them is no search.
const DRAWS_OF_TWO: usize = 4000;
/// An answer must not change from one call to the next.
const SEED: u64 = 0x6d65_7420_7363_616c;

/// SplitMix64: small, well distributed, and its own.
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Above 0, at most 1.
    pub fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let (one, other) = (self.uniform(), self.uniform());
        (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
    }

    /// χ² with so many degrees of freedom: two of them are exponential.
    fn chi_squared(&mut self, freedom: usize) -> f64 {
        let pairs: f64 = (0..freedom / 2).map(|_| -2.0 * self.uniform().ln()).sum();
        pairs + if freedom % 2 == 1 { self.normal().powi(2) } else { 0.0 }
    }
}

/// Parameters fitted to runs whose noise was drawn again. Noise is normal in logarithms; its size is itself uncertain
/// with few runs, and is drawn, too: otherwise intervals are too narrow.
pub fn draws(model: Model, fitted: &Parameters, runs: &[Run], pure_noise: Option<f64>) -> Vec<Parameters> {
    let left = fit::residuals(fitted, runs);
    let (free, count) = match model {
        Model::KarpFlatt => (2, DRAWS_OF_TWO),
        Model::Amdahl => (2, DRAWS),
        Model::Usl => (3, DRAWS),
    };
    let freedom = runs.len().saturating_sub(free).max(1);
    let of_fit = (left.iter().map(|rest| rest * rest).sum::<f64>() / freedom as f64).sqrt();
    // What the model does not explain is uncertainty, too.
    let noise = of_fit.max(pure_noise.unwrap_or(0.0) * 0.5).max(super::NOISE_LEAST);
    // Noise goes both ways around a program without a serial part: fits that end at 0 would leave out the shorter times.
    // Half of what would make a time within the reach 0 is enough for that.
    let largest = runs.iter().map(|run| run.size).fold(1.0, f64::max);
    let least = -0.5 / (super::REACH_MOST * largest - 1.0).max(1.0);
    let mut seen = fit::observed(runs);
    let times: Vec<f64> = seen.iter().map(|one| fitted.seconds(one.size).ln()).collect();
    let near = (fitted.serial, fitted.coherency);
    let mut random = Random::new(SEED);
    let mut drawn = Vec::with_capacity(count);
    for _ in 0..count {
        let spread = noise * (freedom as f64 / random.chi_squared(freedom).max(1e-3)).sqrt();
        for (one, time) in seen.iter_mut().zip(&times) {
            one.log_seconds = time + spread / one.weight.sqrt() * random.normal();
        }
        drawn.push(fit::fit_above(least, model, &seen, near));
    }
    drawn
}
