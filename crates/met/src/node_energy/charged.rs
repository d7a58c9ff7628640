//! What a job was charged, and what that means in CO2 and money.

use std::collections::BTreeSet;
use std::sync::Arc;

use met_core::energy::emission::{self, Factor};
use met_core::energy::ledger::{CPU, MEMORY, PARTS, REST};
use met_core::energy::{Closed, Line};
use met_core::job::{Emission, QualityKind, Totals};
use met_core::job_table as column;
use met_insight::report::{CPU_UNSEEN, IDLE_ESTIMATED, METER_MISSING};

use super::weighing::Weighed;
use crate::config::Energy;

/// The columns of the job table that are filled here.
pub const COLUMNS: [usize; 7] = [
    column::ENERGY,
    column::ENERGY_CPU,
    column::ENERGY_MEMORY,
    column::ENERGY_REST,
    column::ENERGY_IDLE,
    column::EMISSIONS,
    column::COST,
];

/// Different meters named with a figure.
const SOURCES_NAMED_MAX: usize = 4;

/// What a kilowatt hour of the machine means for its building.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tariff {
    pub(super) pue: f64,
    price_per_kwh: Option<f64>,
    currency: Arc<str>,
}

/// What a job was charged so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Charged {
    pub(super) line: Line,
    /// What the processors' part was split by.
    pub(super) weighed: Weighed,
    /// Microjoules × milligrams per kilowatt hour.
    emitted: u128,
    factor: Option<Factor>,
    meters: BTreeSet<String>,
    /// In a window that was measured, whole or in part.
    measured: bool,
    /// Parts that a meter told apart.
    metered: [bool; PARTS],
    /// What was estimated, what was split by an estimate of idle power, and what came from too few meters.
    estimated_uj: u64,
    idle_assumed_uj: u64,
    lower_bound_uj: u64,
    /// Much of what it did nobody saw as its, and so it was charged to others.
    pub(super) unseen: bool,
    tariff: Tariff,
    /// Of an earlier daemon, by `COLUMNS`.
    pub(super) before: [i64; COLUMNS.len()],
}

impl Tariff {
    pub(super) fn of(energy: &Energy) -> Tariff {
        let Energy { pue, price_per_kwh, ref currency, .. } = *energy;
        Tariff { pue, price_per_kwh, currency: currency.as_str().into() }
    }
}

impl Charged {
    pub(super) fn nothing(tariff: Tariff) -> Charged {
        Charged {
            line: Line::default(),
            weighed: Weighed::default(),
            emitted: 0,
            factor: None,
            meters: BTreeSet::new(),
            measured: false,
            metered: [false; PARTS],
            estimated_uj: 0,
            idle_assumed_uj: 0,
            lower_bound_uj: 0,
            unseen: false,
            tariff,
            before: [0; COLUMNS.len()],
        }
    }

    /// Its line of a window, or that of a job inside it.
    pub(super) fn add(&mut self, line: &Line, window: &Closed, factor: &Factor) {
        let energy_uj = line.total_uj();
        self.line.add(line);
        match window.kind {
            QualityKind::Estimated => self.estimated_uj += energy_uj,
            QualityKind::LowerBound => self.lower_bound_uj += energy_uj,
            _ => {}
        }
        if window.idle_assumed {
            self.idle_assumed_uj += energy_uj;
        }
        self.emitted += u128::from(energy_uj) * factor.mg_per_kwh.max(0) as u128;
    }

    /// A window that the job lived in.
    pub(super) fn note(&mut self, meter: &str, window: &Closed, factor: &Factor) {
        if self.factor.as_ref() != Some(factor) {
            self.factor = Some(factor.clone());
        }
        if self.meters.len() < SOURCES_NAMED_MAX && !self.meters.contains(meter) {
            self.meters.insert(meter.to_owned());
        }
        self.measured |= window.kind != QualityKind::Estimated;
        for (known, metered) in self.metered.iter_mut().zip(window.metered) {
            *known |= metered;
        }
    }

    /// Whether it is more than a hundredth of what was charged: a controller takes a while to begin with.
    fn matters(&self, part_uj: u64) -> bool {
        part_uj.saturating_mul(100) > self.line.total_uj()
    }

    fn kind(&self) -> QualityKind {
        if self.unseen {
            QualityKind::LowerBound
        } else if !self.measured || self.matters(self.estimated_uj) || self.matters(self.idle_assumed_uj) {
            QualityKind::Estimated
        } else if self.matters(self.lower_bound_uj) {
            QualityKind::LowerBound
        } else {
            QualityKind::Attributed
        }
    }

    /// What was wanting, in words.
    fn reservation(&self) -> String {
        if self.unseen {
            return format!(", {CPU_UNSEEN}");
        }
        match (self.measured && self.matters(self.idle_assumed_uj), self.matters(self.lower_bound_uj)) {
            (true, _) => format!(", {IDLE_ESTIMATED}"),
            (false, true) => format!(", {METER_MISSING}"),
            (false, false) => String::new(),
        }
    }

    /// By `COLUMNS`; nothing before the first window.
    pub(super) fn values(&self) -> Option<[Option<i64>; COLUMNS.len()]> {
        if self.meters.is_empty() && self.before == [0; COLUMNS.len()] {
            return None;
        }
        // A part that no meter tells from the others is in the rest, and not 0.
        let part = |part: usize, column: usize| {
            let energy_uj = (self.line.active_uj[part] + self.line.idle_uj[part]) as i64;
            let before = COLUMNS.iter().position(|&known| known == column).map(|at| self.before[at]);
            (self.metered[part] || before.is_some_and(|before| before > 0)).then_some(energy_uj)
        };
        let energy_uj = self.line.total_uj() as i64;
        let emitted_ug = self.emitted as f64 * 1000.0 / emission::UJ_PER_KWH as f64 * self.tariff.pue;
        let own = [
            Some(energy_uj),
            part(CPU, column::ENERGY_CPU),
            part(MEMORY, column::ENERGY_MEMORY),
            part(REST, column::ENERGY_REST),
            Some(self.line.idle_total_uj() as i64),
            Some(emitted_ug.round() as i64),
            self.tariff.cost_nano(energy_uj),
        ];
        let mut values = own;
        for (value, before) in values.iter_mut().zip(self.before) {
            *value = value.map(|value| value + before);
        }
        Some(values)
    }

    /// Puts the figures into the totals of a record, in the place of those that samples made.
    pub fn put(&self, totals: &mut Totals) {
        for column in COLUMNS {
            totals.remove(column);
        }
        let Some(values) = self.values() else { return };
        let kind = self.kind();
        let meters = self.meters.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        let (by, reservation) = (self.weighed.words(), self.reservation());
        let source = if meters.is_empty() { by.to_owned() } else { format!("{meters}, {by}{reservation}") };
        for (column, value) in COLUMNS.into_iter().zip(values) {
            if let Some(value) = value {
                let source = match (column, &self.factor) {
                    (column::ENERGY_MEMORY, _) => format!("{meters}, by memory held{reservation}"),
                    (column::EMISSIONS, Some(factor)) => factor.source.clone(),
                    (column::COST, _) => self.tariff.words().unwrap_or_default(),
                    _ => source.clone(),
                };
                totals.set(column, value, kind, source);
            }
        }
    }

    pub fn emission(&self) -> Option<Emission> {
        self.factor.as_ref().map(|factor| emission_of(factor, self.tariff.pue))
    }
}

/// As it is kept with a figure.
pub fn emission_of(factor: &Factor, pue: f64) -> Emission {
    Emission {
        factor_mg_per_kwh: factor.mg_per_kwh,
        factor_source: factor.source.clone(),
        factor_time_ns: (!factor.is_fixed()).then_some(factor.since_ns),
        pue_millionths: Some((pue * 1e6).round() as i64),
    }
}

impl Tariff {
    /// Its first word is the currency.
    fn words(&self) -> Option<String> {
        let price = self.price_per_kwh?;
        let building = if self.pue == 1.0 { String::new() } else { format!(", PUE {}", self.pue) };
        Some(format!("{} at {price} per kWh{building}", self.currency))
    }

    fn cost_nano(&self, energy_uj: i64) -> Option<i64> {
        let kilowatt_hours = energy_uj as f64 / emission::UJ_PER_KWH as f64 * self.pue;
        Some((kilowatt_hours * self.price_per_kwh? * 1e9).round() as i64)
    }
}
