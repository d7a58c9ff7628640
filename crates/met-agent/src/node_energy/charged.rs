//! What a job was charged, and what that means in CO2 and money.

use std::collections::BTreeSet;
use std::sync::Arc;

use met_core::energy::emission::{self, Factor};
use met_core::energy::ledger::{CPU, MEMORY, PARTS, REST};
use met_core::energy::{Closed, Fault, Line};
use met_core::job::{Emission, QualityKind, Totals};
use met_core::job_table as column;
use met_core::provenance::{Caveat, Provenance};

use super::weighing::Weighed;
use met_config::Energy;
use met_core::energy::COLUMNS;

/// Different meters named with a figure.
const SOURCES_NAMED_MAX: usize = 4;

/// What a kilowatt hour of the machine means for its building.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tariff {
    pub(super) pue: f64,
    price_per_kwh: Option<f64>,
    currency: Arc<str>,
}

/// The energy of cards that a job shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CardEnergy {
    energy_uj: i64,
    /// How it is known and from what; nothing where no card is.
    known_by: Option<(QualityKind, String)>,
}

impl CardEnergy {
    pub fn of(totals: &Totals) -> CardEnergy {
        let figure = totals.figure(column::GPU_ENERGY);
        CardEnergy {
            energy_uj: figure.map_or(0, |figure| figure.value),
            known_by: figure.map(|figure| (figure.kind, figure.source.to_string())),
        }
    }
}

/// What a job was charged so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Charged {
    /// Its share of windows: all that it is charged, cards included.
    pub(super) line: Line,
    /// What it used of cards since the last window, of which no meter of the node has told yet.
    pub(super) open: Line,
    /// At its end, what it shows of cards.
    pub(super) cards: CardEnergy,
    /// What the processors' part was split by.
    pub(super) weighed: Weighed,
    /// Microjoules × milligrams per kilowatt hour.
    emitted: i128,
    factor: Option<Factor>,
    meters: BTreeSet<String>,
    /// In a window that was measured, whole or in part.
    measured: bool,
    /// Parts that a meter told apart.
    metered: [bool; PARTS],
    /// What was estimated, what was split by an estimate of idle power, and what came from too few meters.
    estimated_uj: i64,
    idle_assumed_uj: i64,
    lower_bound_uj: i64,
    /// What its parts counted and the meter of the node never showed.
    short_uj: i64,
    /// The time of its windows; in how much of it readings were bridged, and in how much nobody knows who used what.
    windows_ns: i64,
    bridged_ns: i64,
    lost_ns: i64,
    /// Much of what it did nobody saw as its, and so it was charged to others.
    pub(super) unseen: bool,
    /// There was a time in which nobody looked.
    missed: bool,
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
            open: Line::default(),
            cards: CardEnergy::default(),
            weighed: Weighed::default(),
            emitted: 0,
            factor: None,
            meters: BTreeSet::new(),
            measured: false,
            metered: [false; PARTS],
            estimated_uj: 0,
            idle_assumed_uj: 0,
            lower_bound_uj: 0,
            short_uj: 0,
            windows_ns: 0,
            bridged_ns: 0,
            lost_ns: 0,
            unseen: false,
            missed: false,
            tariff,
            before: [0; COLUMNS.len()],
        }
    }

    /// Its line of a window, or that of a job inside it.
    pub(super) fn add(&mut self, line: &Line, window: &Closed, factor: &Factor) {
        self.line.add(line);
        // Cards are known by meters of their own.
        let host_uj = line.total_uj() - line.cards_uj();
        match window.kind {
            QualityKind::Estimated => self.estimated_uj += host_uj,
            QualityKind::LowerBound => self.lower_bound_uj += host_uj,
            _ => {}
        }
        if window.idle_assumed {
            self.idle_assumed_uj += host_uj;
        }
        self.emitted += i128::from(line.total_uj()) * i128::from(factor.mg_per_kwh.max(0));
    }

    /// The meter of the node did not show so much of what it, or a job inside it, used.
    pub(super) fn fall_short(&mut self, short_uj: u64) {
        self.short_uj = self.short_uj.saturating_add_unsigned(short_uj);
    }

    /// A window that the job lived in.
    pub(super) fn note(&mut self, meter: &str, window: &Closed, factor: &Factor) {
        let elapsed_ns = window.end_ns - window.begin_ns;
        self.windows_ns += elapsed_ns;
        match window.fault {
            Fault::None => {}
            Fault::Bridged => self.bridged_ns += elapsed_ns,
            Fault::Lost | Fault::Unknown => self.lost_ns += elapsed_ns,
        }
        if !window.is_measured() {
            return;
        }
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

    /// What an earlier daemon charged, by the job's last cells; `missed` if nobody looked for a while.
    pub(super) fn recall(&mut self, cells: &[i64], missed: bool) {
        self.missed = missed;
        self.before = COLUMNS.map(|column| cells[column].max(0));
        for (column, of_cards) in
            [(column::ENERGY, column::GPU_ENERGY), (column::ENERGY_IDLE, column::GPU_ENERGY_IDLE)]
        {
            if let Some(at) = COLUMNS.iter().position(|&known| known == column) {
                self.before[at] = self.before[at].max(cells[of_cards]);
            }
        }
    }

    /// All that it is charged by now.
    fn now(&self) -> Line {
        let mut now = self.line;
        now.add(&self.open);
        now
    }

    /// Whether it is more than a hundredth of a whole: a controller takes a while to begin with.
    fn matters(part: i64, whole: i64) -> bool {
        part.saturating_mul(100) > whole
    }

    /// What windows lack of it: some was used while nobody knew by whom, or never shown.
    fn lacks(&self) -> Option<Caveat> {
        if Charged::matters(self.lost_ns, self.windows_ns) {
            return Some(Caveat::EnergyUnassigned);
        }
        Charged::matters(self.short_uj, self.line.total_uj()).then_some(Caveat::MeterShort)
    }

    /// How well what the windows say is known, as a part of so much.
    fn kind_of_windows(&self, whole_uj: i64) -> QualityKind {
        let matters = |part_uj: i64| Charged::matters(part_uj, whole_uj);
        let is_all = whole_uj == self.host_uj();
        if self.unseen || self.missed || self.lacks().is_some() {
            QualityKind::LowerBound
        } else if (!self.measured && is_all) || matters(self.estimated_uj) || matters(self.idle_assumed_uj) {
            QualityKind::Estimated
        } else if matters(self.lower_bound_uj) {
            QualityKind::LowerBound
        } else {
            QualityKind::Attributed
        }
    }

    /// The same of all that it was charged: it is known as badly as the worse of its parts that matter.
    fn kind(&self, cards: &CardEnergy) -> QualityKind {
        let (cards_uj, whole_uj) = (self.now().cards_uj(), self.now().total_uj());
        let windows = self.kind_of_windows(whole_uj);
        let kind_of_cards = cards.known_by.as_ref().map(|(kind, _)| *kind);
        // That it was measured, or how it was shared, is what the windows say of the whole, too.
        let doubtful = kind_of_cards.filter(|&kind| kind >= QualityKind::Estimated);
        doubtful.filter(|_| Charged::matters(cards_uj, whole_uj)).map_or(windows, |kind| windows.max(kind))
    }

    fn caveat(&self) -> Option<Caveat> {
        if self.unseen {
            return Some(Caveat::CpuUnseen);
        }
        if self.missed {
            return Some(Caveat::NotWatched);
        }
        if let Some(lacks) = self.lacks() {
            return Some(lacks);
        }
        let matters = |part_uj: i64| Charged::matters(part_uj, self.host_uj());
        let is_bridged = Charged::matters(self.bridged_ns, self.windows_ns);
        match (self.measured && matters(self.idle_assumed_uj), matters(self.lower_bound_uj), is_bridged) {
            (true, ..) => Some(Caveat::IdleEstimated),
            (_, true, _) => Some(Caveat::MeterMissing),
            (.., true) => Some(Caveat::GapBridged),
            _ => None,
        }
    }

    fn host_uj(&self) -> i64 {
        self.line.total_uj() - self.line.cards_uj()
    }

    /// By `COLUMNS`; nothing before the first window.
    pub(super) fn values(&self) -> Option<[Option<i64>; COLUMNS.len()]> {
        if self.meters.is_empty() && self.before == [0; COLUMNS.len()] {
            return None;
        }
        // A part that no meter tells from the others is in the rest, and not 0.
        let part = |part: usize, column: usize| {
            let energy_uj = self.line.active_uj[part] + self.line.idle_uj[part];
            let before = COLUMNS.iter().position(|&known| known == column).map(|at| self.before[at]);
            (self.metered[part] || before.is_some_and(|before| before > 0)).then_some(energy_uj)
        };
        let now = self.now();
        let energy_uj = now.total_uj();
        let factor_mg = self.factor.as_ref().map_or(0, |factor| factor.mg_per_kwh.max(0));
        let emitted = (self.emitted + i128::from(self.open.total_uj()) * i128::from(factor_mg)) as f64;
        let emitted_ug = emitted * 1000.0 / emission::UJ_PER_KWH as f64 * self.tariff.pue;
        let own = [
            Some(energy_uj),
            part(CPU, column::ENERGY_CPU),
            part(MEMORY, column::ENERGY_MEMORY),
            part(REST, column::ENERGY_REST),
            Some(now.idle_total_uj()),
            Some(emitted_ug.round() as i64),
            self.tariff.cost_nano(energy_uj),
        ];
        let mut values = own;
        for (value, before) in values.iter_mut().zip(self.before) {
            *value = value.map(|value| value + before);
        }
        Some(values)
    }

    /// Puts the figures into the totals of a record, in the place of those that samples made. What the totals say of
    /// cards is a part of them; where they say nothing, what the job showed at its end.
    pub fn put(&self, totals: &mut Totals) {
        for column in COLUMNS {
            totals.remove(column);
        }
        let known = CardEnergy::of(totals);
        let cards = if known.known_by.is_some() { &known } else { &self.cards };
        let Some(values) = self.values() else { return };
        let (kind, kind_of_parts) = (self.kind(cards), self.kind_of_windows(self.host_uj()));
        let meters = self.meters.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        let by = self.weighed.words();
        let (by, caveat) = match meters.is_empty() {
            true => (by.to_owned(), None),
            false => (format!("{meters}, {by}"), self.caveat()),
        };
        let of_cards = cards.known_by.as_ref().filter(|_| cards.energy_uj > 0);
        let with_cards = of_cards.map_or(by.clone(), |(_, cards)| format!("{cards} of GPUs; {by}"));
        let [source, with_cards] = [by, with_cards].map(|text| Provenance::from(text).with(caveat));
        for (column, value) in COLUMNS.into_iter().zip(values) {
            let Some(value) = value else { continue };
            let (source, kind) = match (column, &self.factor) {
                (column::ENERGY_MEMORY, _) => {
                    let source = Provenance::from(format!("{meters}, by memory held"));
                    (source.with(self.caveat()), kind_of_parts)
                }
                (column::ENERGY_CPU | column::ENERGY_REST, _) => (source.clone(), kind_of_parts),
                (column::EMISSIONS, Some(factor)) => (factor.source.clone().into(), kind),
                (column::COST, _) => (self.tariff.words().unwrap_or_default().into(), kind),
                _ => (with_cards.clone(), kind),
            };
            totals.set(column, value, kind, source);
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
