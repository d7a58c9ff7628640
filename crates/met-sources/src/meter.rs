//! Which sources measure the energy of the machine, and which part of it.

use met_core::energy::Scope;

use crate::{METERS, SourceSpec};

/// What a source says about energy.
#[derive(Debug)]
pub struct Meter {
    pub source: &'static SourceSpec,
    /// Of what measures the whole node or board.
    pub name: &'static str,
    /// What a part measures, by its number and labels; `None` if that is not counted.
    pub scope: fn(u32, &[String]) -> Option<Scope>,
    /// Its figures come late, and are means over seconds.
    pub is_slow: bool,
    /// It counts energy in steps so large that its power is more accurate.
    pub is_coarse: bool,
}

/// All of the node. Its rank is the place of the meter in [`METERS`].
pub(crate) const NODE: Option<Scope> = Some(Scope::Node { rank: 0, with_gpus: true });

/// The meter that is a source, and its rank.
pub fn of(source: &str) -> Option<(u8, &'static Meter)> {
    (0..).zip(METERS.iter().copied()).find(|(_, meter)| meter.source.name == source)
}

impl Meter {
    /// What a part measures and how it is called.
    pub fn part(&self, rank: u8, part: u32, labels: &[String]) -> Option<(String, Scope)> {
        Some(match (self.scope)(part, labels)? {
            Scope::Node { with_gpus, .. } => (self.name.to_owned(), Scope::Node { rank, with_gpus }),
            Scope::Board => (self.name.to_owned(), Scope::Board),
            scope @ (Scope::Package | Scope::Memory) => {
                (format!("{} {}", self.source.name, labels.join(" ")), scope)
            }
        })
    }
}
