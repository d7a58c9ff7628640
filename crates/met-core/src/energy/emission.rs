//! Emissions: energy times what a kilowatt hour emits where and when it was used.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Emission factors by country: average of the grid over a year.
static COUNTRIES: &str = include_str!("../../data/emission-factors.csv");

/// Where no country is known: the world's average (IEA, 2019).
pub const WORLD_MG_PER_KWH: i64 = 475_000;

pub const UJ_PER_KWH: i128 = 3_600_000_000_000;

/// What a kilowatt hour emits from a time on, and the source of the value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Factor {
    pub mg_per_kwh: i64,
    pub source: FactorSource,
    /// Unix nanoseconds: the provider's measurement time, where it has one.
    pub since_ns: i64,
}

/// Where a factor comes from. Files and messages hold its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum FactorSource {
    /// A constant in the configuration.
    Configured,
    World,
    /// Of a country in a year: `France 2022`.
    Average(String),
    ByHand,
    /// `rte eco2mix`, `electricity maps FR`.
    Provider(String),
}

const CONFIGURED: &str = "configured";
const AVERAGE: &str = "average of ";
const WORLD: &str = "world average, 2019";
const BY_HAND: &str = "set by hand";

impl From<&str> for FactorSource {
    fn from(text: &str) -> FactorSource {
        match (text, text.strip_prefix(AVERAGE)) {
            (CONFIGURED, _) => FactorSource::Configured,
            (WORLD, _) => FactorSource::World,
            (BY_HAND, _) => FactorSource::ByHand,
            (_, Some(of)) => FactorSource::Average(of.to_owned()),
            (_, None) => FactorSource::Provider(text.to_owned()),
        }
    }
}

impl From<String> for FactorSource {
    fn from(text: String) -> FactorSource {
        text.as_str().into()
    }
}

impl From<FactorSource> for String {
    fn from(source: FactorSource) -> String {
        source.to_string()
    }
}

impl fmt::Display for FactorSource {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FactorSource::Configured => to.write_str(CONFIGURED),
            FactorSource::World => to.write_str(WORLD),
            FactorSource::Average(of) => write!(to, "{AVERAGE}{of}"),
            FactorSource::ByHand => to.write_str(BY_HAND),
            FactorSource::Provider(name) => to.write_str(name),
        }
    }
}

impl Factor {
    /// Whether it is a constant or an average of a year, not measured at its time.
    pub fn is_fixed(&self) -> bool {
        matches!(self.source, FactorSource::Configured | FactorSource::World | FactorSource::Average(_))
    }
}

/// The series of the factor. What holds at a time is the last that began before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Factors {
    by_time: BTreeMap<i64, Factor>,
}

impl Factors {
    pub fn put(&mut self, factor: Factor) {
        self.by_time.insert(factor.since_ns, factor);
    }

    pub fn at(&self, time_ns: i64) -> Option<&Factor> {
        self.by_time.range(..=time_ns).next_back().map(|(_, factor)| factor)
    }

    /// Milligrams per kilowatt hour, the mean over a span by the factors that held in it.
    pub fn mean_mg_per_kwh(&self, begin_ns: i64, end_ns: i64) -> Option<f64> {
        let first = self.at(begin_ns)?;
        if end_ns <= begin_ns {
            return Some(first.mg_per_kwh as f64);
        }
        let changes = self.by_time.range(begin_ns + 1..end_ns.max(begin_ns + 1));
        let bounds = changes.map(|(&at_ns, factor)| (at_ns, factor.mg_per_kwh));
        let (mut from_ns, mut holds, mut weighted) = (begin_ns, first.mg_per_kwh, 0.0);
        for (at_ns, next) in bounds.chain([(end_ns, 0)]) {
            weighted += (at_ns - from_ns) as f64 * holds as f64;
            (from_ns, holds) = (at_ns, next);
        }
        Some(weighted / (end_ns - begin_ns) as f64)
    }

    /// Grams times 10⁻⁶ for energy used evenly over a span, by the factors that held in it.
    pub fn emitted_ug(&self, energy_uj: u64, begin_ns: i64, end_ns: i64) -> Option<i64> {
        let first = self.at(begin_ns)?;
        let span_ns = i128::from(end_ns) - i128::from(begin_ns);
        if span_ns <= 0 {
            return Some(to_ug(i128::from(energy_uj) * i128::from(first.mg_per_kwh)));
        }
        let changes = self.by_time.range(begin_ns + 1..end_ns.max(begin_ns + 1));
        let bounds = changes.map(|(&at_ns, factor)| (at_ns, factor.mg_per_kwh));
        let mut weighted: i128 = 0;
        let (mut from_ns, mut holds) = (begin_ns, first.mg_per_kwh);
        for (at_ns, next) in bounds.chain([(end_ns, 0)]) {
            weighted += i128::from(at_ns - from_ns) * i128::from(holds);
            (from_ns, holds) = (at_ns, next);
        }
        Some(to_ug(i128::from(energy_uj) * (weighted / span_ns)))
    }
}

/// µJ × mg/kWh to µg.
fn to_ug(product: i128) -> i64 {
    i64::try_from(product * 1000 / UJ_PER_KWH).unwrap_or(i64::MAX)
}

/// The yearly average of a country by its ISO code (three or two letters are not mixed: three) or name.
pub fn of_country(country: &str) -> Option<Factor> {
    let wanted = country.trim();
    COUNTRIES.lines().skip(1).find_map(|line| {
        let mut fields = line.rsplitn(3, ',');
        let (factor, year, names) = (fields.next()?, fields.next()?, fields.next()?);
        let (code, name) = names.split_once(',')?;
        let name = name.trim_matches('"');
        if !wanted.eq_ignore_ascii_case(code) && !wanted.eq_ignore_ascii_case(name) {
            return None;
        }
        let grams: f64 = factor.parse().ok()?;
        let source = FactorSource::Average(format!("{name} {year}"));
        Some(Factor { mg_per_kwh: (grams * 1000.0).round() as i64, source, since_ns: i64::MIN })
    })
}

pub fn of_the_world() -> Factor {
    Factor { mg_per_kwh: WORLD_MG_PER_KWH, source: FactorSource::World, since_ns: i64::MIN }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factor(since_ns: i64, grams: i64) -> Factor {
        Factor { mg_per_kwh: grams * 1000, source: "test".into(), since_ns }
    }

    #[test]
    fn the_source_of_a_factor_is_read_and_written_unchanged() {
        let texts =
            ["configured", "world average, 2019", "average of France 2022", "set by hand", "rte eco2mix", ""];
        for (text, is_fixed) in texts.into_iter().zip([true, true, true, false, false, false]) {
            let read = Factor { source: text.into(), ..factor(0, 5) };
            assert_eq!((read.source.to_string().as_str(), read.is_fixed()), (text, is_fixed));
            let json = serde_json::to_string(&read.source).unwrap();
            assert_eq!(json, serde_json::to_string(text).unwrap());
            assert_eq!(serde_json::from_str::<FactorSource>(&json).unwrap(), read.source);
        }
    }

    #[test]
    fn a_country_is_found_by_code_and_by_name() {
        assert_eq!(of_country("fra").unwrap().source, of_country("France").unwrap().source);
        assert!(of_country("Atlantis").is_none());
        assert!(of_country("fra").unwrap().is_fixed() && of_the_world().is_fixed());
        assert!(!factor(0, 5).is_fixed());
        for line in COUNTRIES.lines().skip(1) {
            let code = line.split(',').next().unwrap();
            assert!(of_country(code).unwrap().mg_per_kwh >= 0, "{line}");
        }
    }

    #[test]
    fn a_kilowatt_hour_emits_the_factor() {
        let mut factors = Factors::default();
        factors.put(factor(0, 50));
        assert_eq!(factors.emitted_ug(3_600_000_000_000, 0, 100), Some(50_000_000));
        assert_eq!(factors.emitted_ug(1, -5, 100), None, "what held before is not known");
    }

    #[test]
    fn a_factor_that_changes_in_between_counts_for_its_time() {
        let mut factors = Factors::default();
        factors.put(factor(0, 40));
        factors.put(factor(75, 80));
        assert_eq!(factors.emitted_ug(3_600_000_000_000, 0, 100), Some(50_000_000));
        assert_eq!(factors.emitted_ug(3_600_000_000_000, 75, 100), Some(80_000_000));
        assert_eq!(factors.mean_mg_per_kwh(0, 100), Some(50_000.0));
        assert_eq!(factors.mean_mg_per_kwh(80, 80), Some(80_000.0));
        factors.put(factor(75, 40));
        assert_eq!(factors.emitted_ug(3_600_000_000_000, 0, 100), Some(40_000_000), "a corrected factor");
    }
}
