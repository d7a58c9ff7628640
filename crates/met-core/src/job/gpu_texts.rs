//! Who gave a GPU to a job, and what its energy was read from. Both are one text in files, messages and JSON; any text
//! is read and written back unchanged.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

const OPEN: &str = "open";
const COUNTER: &str = "energy counter";
const POWER: &str = "integral of power";

/// What gave a GPU to a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum HeldBy {
    #[default]
    Unknown,
    /// The job just used it.
    Open,
    /// A variable or the devices cgroup.
    Given(Cow<'static, str>),
}

impl HeldBy {
    pub fn text(&self) -> &str {
        match self {
            HeldBy::Unknown => "",
            HeldBy::Open => OPEN,
            HeldBy::Given(by) => by,
        }
    }
}

impl From<String> for HeldBy {
    fn from(text: String) -> HeldBy {
        match text.as_str() {
            "" => HeldBy::Unknown,
            OPEN => HeldBy::Open,
            _ => HeldBy::Given(text.into()),
        }
    }
}

impl From<HeldBy> for String {
    fn from(by: HeldBy) -> String {
        by.text().to_owned()
    }
}

/// What the energy of a GPU was read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum EnergySource {
    Counter,
    Power,
    /// The share of the counter, where it is known.
    Both {
        counted_percent: Option<u8>,
    },
    /// Of another version.
    Other(String),
}

impl EnergySource {
    /// One for the energy that both are of.
    pub fn with(&self, other: &EnergySource) -> EnergySource {
        if self == other { self.clone() } else { EnergySource::Both { counted_percent: None } }
    }

    pub fn has_counter(&self) -> bool {
        matches!(self, EnergySource::Counter | EnergySource::Both { .. })
    }

    pub fn has_power(&self) -> bool {
        matches!(self, EnergySource::Power | EnergySource::Both { .. })
    }

    pub fn text(&self) -> Cow<'_, str> {
        match self {
            EnergySource::Counter => COUNTER.into(),
            EnergySource::Power => POWER.into(),
            EnergySource::Both { counted_percent: None } => format!("{COUNTER}, {POWER}").into(),
            EnergySource::Both { counted_percent: Some(percent) } => {
                format!("{COUNTER} ({percent}%), {POWER}").into()
            }
            EnergySource::Other(text) => text.into(),
        }
    }
}

impl From<String> for EnergySource {
    fn from(text: String) -> EnergySource {
        let share = || text.strip_prefix(COUNTER)?.strip_suffix(POWER)?.strip_suffix(", ");
        let percent = || share()?.strip_prefix(" (")?.strip_suffix("%)")?.parse().ok();
        let read = match text.as_str() {
            COUNTER => EnergySource::Counter,
            POWER => EnergySource::Power,
            _ => EnergySource::Both { counted_percent: percent() },
        };
        // `+7` and `07` are numbers, too.
        if read.text() == text { read } else { EnergySource::Other(text) }
    }
}

impl From<EnergySource> for String {
    fn from(source: EnergySource) -> String {
        source.text().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_gpus_are_read_and_written_unchanged() {
        for text in [
            "",
            "open",
            "CUDA_VISIBLE_DEVICES",
            "energy counter",
            "integral of power",
            "energy counter, integral of power",
            "energy counter (37%), integral of power",
            "energy counter (+7%), integral of power",
            "energy counter (300%), integral of power",
            "of a counter that a newer version reads",
        ] {
            let json = serde_json::to_string(text).unwrap();
            let held_by: HeldBy = serde_json::from_str(&json).unwrap();
            let source: EnergySource = serde_json::from_str(&json).unwrap();
            assert_eq!([held_by.text(), &source.text()], [text; 2]);
            assert_eq!(serde_json::to_string(&held_by).unwrap(), json);
            assert_eq!(serde_json::to_string(&source).unwrap(), json);
        }
    }

    #[test]
    fn what_energy_was_read_from_is_not_guessed_from_words() {
        let source = |text: &str| EnergySource::from(text.to_owned());
        let both = source("energy counter (37%), integral of power");
        assert_eq!(both, EnergySource::Both { counted_percent: Some(37) });
        assert!(both.has_counter() && both.has_power());
        let other = source("no counter");
        assert!(!other.has_counter() && !other.has_power());
    }
}
