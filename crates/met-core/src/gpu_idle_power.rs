//! What a GPU draws while it does nothing: the part of its energy that is its holders' and not its users'.

use crate::MISSING;

/// Of a GPU that was never seen idle, no more than this share of its limit (or of the most it was seen to
/// draw) is taken for idle: a GPU that computes all the time would else seem to idle at full power.
const SHARE_MAX_PERCENT: i64 = 15;

/// What is known of one GPU. Milliwatts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdlePower {
    /// What the configuration says: it decides.
    pub configured_mw: Option<i64>,
    /// The lowest seen while nothing ran.
    pub learned_mw: Option<i64>,
    /// The lowest seen at all: the GPU idles at no more.
    pub lowest_mw: Option<i64>,
    /// Its power limit, or where there is none the most it was seen to draw.
    most_mw: Option<i64>,
}

/// Where a figure of idle power comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleSource {
    Configured,
    Learned,
    /// An upper bound: the GPU was never seen idle.
    Bound,
}

impl IdleSource {
    pub fn name(self) -> &'static str {
        match self {
            IdleSource::Configured => "configured",
            IdleSource::Learned => "learned",
            IdleSource::Bound => "bound",
        }
    }
}

impl IdlePower {
    /// What an earlier process knew.
    pub fn recalled(learned_mw: Option<i64>, lowest_mw: Option<i64>) -> IdlePower {
        IdlePower { learned_mw, lowest_mw, ..IdlePower::default() }
    }

    /// Takes in one reading. Cells may be missing.
    pub fn learn(&mut self, power_mw: i64, limit_mw: i64, is_idle: bool) {
        if power_mw == MISSING {
            return;
        }
        let lower = |known: Option<i64>| Some(known.map_or(power_mw, |known| known.min(power_mw)));
        self.lowest_mw = lower(self.lowest_mw);
        if is_idle {
            self.learned_mw = lower(self.learned_mw);
        }
        self.most_mw = match limit_mw {
            MISSING => Some(self.most_mw.map_or(power_mw, |most_mw| most_mw.max(power_mw))),
            limit_mw => Some(limit_mw),
        };
    }

    pub fn get(&self) -> Option<(i64, IdleSource)> {
        if let Some(configured_mw) = self.configured_mw {
            return Some((configured_mw, IdleSource::Configured));
        }
        if let Some(learned_mw) = self.learned_mw {
            return Some((learned_mw, IdleSource::Learned));
        }
        let bound_mw = self.lowest_mw?.min(self.most_mw?.saturating_mul(SHARE_MAX_PERCENT) / 100);
        Some((bound_mw.max(0), IdleSource::Bound))
    }
}

/// What the configuration says about idle power: for all GPUs, and for those of a model or uuid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleRules {
    pub all_mw: Option<i64>,
    pub by_gpu: Vec<(String, i64)>,
}

impl IdleRules {
    /// What is said of a GPU: by its uuid, else by its model, else for all.
    pub fn of(&self, uuid: &str, name: &str) -> Option<i64> {
        let said = |what: &str| self.by_gpu.iter().find(|(gpu, _)| gpu == what).map(|&(_, mw)| mw);
        said(uuid).or_else(|| said(name)).or(self.all_mw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_configured_beats_what_is_learned_and_that_a_bound() {
        let mut power = IdlePower::default();
        assert_eq!(power.get(), None);
        power.learn(MISSING, 700_000, true);
        assert_eq!(power.get(), None);
        power.learn(600_000, 700_000, false);
        assert_eq!(power.get(), Some((105_000, IdleSource::Bound)), "a busy card does not idle at 600 W");
        power.learn(80_000, 700_000, false);
        assert_eq!(power.get(), Some((80_000, IdleSource::Bound)), "it idles at no more than was seen");
        power.learn(120_000, 700_000, true);
        power.learn(110_000, 700_000, true);
        power.learn(115_000, 700_000, true);
        assert_eq!(power.get(), Some((110_000, IdleSource::Learned)));
        power.configured_mw = Some(90_000);
        assert_eq!(power.get(), Some((90_000, IdleSource::Configured)));
    }

    #[test]
    fn a_gpu_is_configured_by_uuid_model_or_not_at_all() {
        let rules =
            IdleRules { all_mw: Some(3), by_gpu: vec![("NVIDIA H200".into(), 2), ("GPU-a".into(), 1)] };
        assert_eq!(rules.of("GPU-a", "NVIDIA H200"), Some(1));
        assert_eq!(rules.of("GPU-b", "NVIDIA H200"), Some(2));
        assert_eq!(rules.of("GPU-b", "NVIDIA T4"), Some(3));
        assert_eq!(IdleRules::default().of("GPU-b", "NVIDIA T4"), None);
    }
}
