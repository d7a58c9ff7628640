//! What a job was charged, and what that means in CO2e and money.

use std::collections::BTreeSet;
use std::sync::Arc;

use met_core::energy::emission::{self, Factor};
use met_core::energy::line::{CPU, MEMORY, PARTS, REST};
use met_core::energy::{Closed, Fault, Line};
use met_core::job::{Emission, QualityKind, Totals};
use met_core::job_table as column;
use met_core::provenance::{Caveat, Provenance};
use met_core::watched::Watched;

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

/// The energy of GPUs that a job shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuEnergy {
    energy_uj: i64,
    /// How it is known and from what; nothing where no GPU is.
    known_by: Option<(QualityKind, String)>,
}

impl GpuEnergy {
    pub fn of(totals: &Totals) -> GpuEnergy {
        let figure = totals.figure(column::GPU_ENERGY);
        GpuEnergy {
            energy_uj: figure.map_or(0, |figure| figure.value),
            known_by: figure.map(|figure| (figure.kind, figure.source.to_string())),
        }
    }
}

/// What a job was charged so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Charged {
    /// Its share of windows: all that it is charged, GPUs included.
    pub(super) line: Line,
    /// What it used of GPUs since the last window, not yet covered by a meter of the node.
    pub(super) open: Line,
    /// At its end, what it shows of GPUs.
    pub(super) gpus: GpuEnergy,
    /// What the processors' part was split by.
    pub(super) weighed: Weighed,
    /// Microjoules × milligrams per kilowatt hour.
    emitted: i128,
    factor: Option<Factor>,
    metered: Metered,
    pub(super) doubts: Doubts,
    tariff: Tariff,
    /// Of an earlier daemon, by `COLUMNS`.
    pub(super) before: [i64; COLUMNS.len()],
}

/// What measured the windows of a job.
#[derive(Clone, Debug, Default, PartialEq)]
struct Metered {
    names: BTreeSet<String>,
    /// Not all of them estimates.
    measured: bool,
    /// Parts that a meter measured separately.
    parts: [bool; PARTS],
}

/// Why the energy of a job is not known better.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Doubts {
    /// What was estimated, what was split by an estimate of idle power, and what came from too few meters.
    estimated_uj: i64,
    idle_assumed_uj: i64,
    lower_bound_uj: i64,
    /// What its parts counted and the meter of the node never showed.
    short_uj: i64,
    /// The time of its windows; in how much of it readings were bridged, and in how much the users are unknown.
    windows_ns: i64,
    bridged_ns: i64,
    lost_ns: i64,
    /// Much of what it did was not seen as its, and so it was charged to others.
    pub(super) unseen: bool,
    /// Its life before its first window here, of which a part may not have been measured.
    watched: Watched,
}

/// Whether it is more than a hundredth of a whole: a controller takes a while to begin with.
fn matters(part: i64, whole: i64) -> bool {
    part.saturating_mul(100) > whole
}

impl Doubts {
    /// Its line of a window, of which this is beside its GPUs: these are known by meters of their own.
    fn add(&mut self, host_uj: i64, window: &Closed) {
        match window.kind {
            QualityKind::Estimated => self.estimated_uj += host_uj,
            QualityKind::LowerBound => self.lower_bound_uj += host_uj,
            _ => {}
        }
        if window.idle_assumed {
            self.idle_assumed_uj += host_uj;
        }
    }

    /// A window that the job lived in.
    fn note(&mut self, window: &Closed) {
        let elapsed_ns = window.end_ns - window.begin_ns;
        self.windows_ns += elapsed_ns;
        match window.fault {
            Fault::None => {}
            Fault::Bridged => self.bridged_ns += elapsed_ns,
            Fault::Lost | Fault::Unknown => self.lost_ns += elapsed_ns,
        }
    }

    /// Whether nothing was read for a part of its life that matters.
    fn is_missed(&self) -> bool {
        let Watched { lived_ms, missed_ms, .. } = self.watched;
        matters(missed_ms, lived_ms.saturating_add(self.windows_ns / 1_000_000))
    }

    /// Why the figure, of `line_uj` in windows, is too small for certain.
    fn lacks(&self, line_uj: i64) -> Option<Caveat> {
        [
            (self.unseen, Caveat::CpuUnseen),
            (self.is_missed(), Caveat::NotWatched),
            (matters(self.lost_ns, self.windows_ns), Caveat::EnergyUnassigned),
            (matters(self.short_uj, line_uj), Caveat::MeterShort),
        ]
        .into_iter()
        .find_map(|(is_so, why)| is_so.then_some(why))
    }

    /// The quality of what the windows say, as a part of a total.
    fn kind(&self, whole_uj: i64, line_uj: i64, is_measured: bool) -> QualityKind {
        let matters = |part_uj: i64| matters(part_uj, whole_uj);
        if self.lacks(line_uj).is_some() {
            QualityKind::LowerBound
        } else if !is_measured || matters(self.estimated_uj) || matters(self.idle_assumed_uj) {
            QualityKind::Estimated
        } else if matters(self.lower_bound_uj) {
            QualityKind::LowerBound
        } else {
            QualityKind::Attributed
        }
    }

    /// What is missing or estimated.
    fn caveat(&self, host_uj: i64, line_uj: i64, is_measured: bool) -> Option<Caveat> {
        let matters_here = |part_uj: i64| matters(part_uj, host_uj);
        let why = match (is_measured && matters_here(self.idle_assumed_uj), matters_here(self.lower_bound_uj))
        {
            (true, _) => Some(Caveat::IdleEstimated),
            (_, true) => Some(Caveat::MeterMissing),
            _ => matters(self.bridged_ns, self.windows_ns).then_some(Caveat::GapBridged),
        };
        self.lacks(line_uj).or(why)
    }
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
            gpus: GpuEnergy::default(),
            weighed: Weighed::default(),
            emitted: 0,
            factor: None,
            metered: Metered::default(),
            doubts: Doubts::default(),
            tariff,
            before: [0; COLUMNS.len()],
        }
    }

    /// Its line of a window, or that of a job inside it.
    pub(super) fn add(&mut self, line: &Line, window: &Closed, factor: &Factor) {
        self.line.add(line);
        self.doubts.add(line.total_uj() - line.gpus_uj(), window);
        self.emitted += i128::from(line.total_uj()) * i128::from(factor.mg_per_kwh.max(0));
    }

    /// What the meter of the node did not show of the use of it, or of a job inside it.
    pub(super) fn fall_short(&mut self, short_uj: u64) {
        self.doubts.short_uj = self.doubts.short_uj.saturating_add_unsigned(short_uj);
    }

    /// A window that the job lived in.
    pub(super) fn note(&mut self, meter: &str, window: &Closed, factor: &Factor) {
        self.doubts.note(window);
        if !window.is_measured() {
            return;
        }
        if self.factor.as_ref() != Some(factor) {
            self.factor = Some(factor.clone());
        }
        let Metered { names, measured, parts } = &mut self.metered;
        if names.len() < SOURCES_NAMED_MAX && !names.contains(meter) {
            names.insert(meter.to_owned());
        }
        *measured |= window.kind != QualityKind::Estimated;
        for (known, metered) in parts.iter_mut().zip(window.metered) {
            *known |= metered;
        }
    }

    /// It began before it was measured.
    pub(super) fn begin_late(&mut self, watched: Watched) {
        self.doubts.watched = watched;
    }

    /// What an earlier daemon charged, by the job's last cells, and for how much of its life it was not measured.
    pub(super) fn recall(&mut self, cells: &[i64], watched: Watched) {
        self.doubts.watched = watched;
        self.before = COLUMNS.map(|column| cells[column].max(0));
        for (column, of_gpus) in
            [(column::ENERGY, column::GPU_ENERGY), (column::ENERGY_IDLE, column::GPU_ENERGY_IDLE)]
        {
            if let Some(at) = COLUMNS.iter().position(|&known| known == column) {
                self.before[at] = self.before[at].max(cells[of_gpus]);
            }
        }
    }

    /// All that it is charged by now.
    fn now(&self) -> Line {
        let mut now = self.line;
        now.add(&self.open);
        now
    }

    /// The quality of what the windows say, as a part of a total.
    fn kind_of_windows(&self, whole_uj: i64) -> QualityKind {
        let is_measured = self.metered.measured || whole_uj != self.host_uj();
        self.doubts.kind(whole_uj, self.line.total_uj(), is_measured)
    }

    /// The same of all that it was charged: it is known as badly as the worse of its parts that matter.
    fn kind(&self, gpus: &GpuEnergy) -> QualityKind {
        let (gpus_uj, whole_uj) = (self.now().gpus_uj(), self.now().total_uj());
        let windows = self.kind_of_windows(whole_uj);
        let kind_of_gpus = gpus.known_by.as_ref().map(|(kind, _)| *kind);
        // That it was measured, or how it was shared, is what the windows say of the whole, too.
        let doubtful = kind_of_gpus.filter(|&kind| kind >= QualityKind::Estimated);
        doubtful.filter(|_| matters(gpus_uj, whole_uj)).map_or(windows, |kind| windows.max(kind))
    }

    /// What is missing or estimated.
    fn caveat(&self) -> Option<Caveat> {
        self.doubts.caveat(self.host_uj(), self.line.total_uj(), self.metered.measured)
    }

    fn host_uj(&self) -> i64 {
        self.line.total_uj() - self.line.gpus_uj()
    }

    /// By `COLUMNS`; nothing before the first window.
    pub(super) fn values(&self) -> Option<[Option<i64>; COLUMNS.len()]> {
        if self.metered.names.is_empty() && self.before == [0; COLUMNS.len()] {
            return None;
        }
        // A part that no meter measures separately is in the rest, and not 0.
        let part = |part: usize, column: usize| {
            let energy_uj = self.line.active_uj[part] + self.line.idle_uj[part];
            let before = COLUMNS.iter().position(|&known| known == column).map(|at| self.before[at]);
            (self.metered.parts[part] || before.is_some_and(|before| before > 0)).then_some(energy_uj)
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
    /// GPUs is a part of them; where they say nothing, what the job showed at its end.
    pub fn put(&self, totals: &mut Totals) {
        for column in COLUMNS {
            totals.remove(column);
        }
        let known = GpuEnergy::of(totals);
        let gpus = if known.known_by.is_some() { &known } else { &self.gpus };
        let Some(values) = self.values() else { return };
        let (kind, kind_of_parts) = (self.kind(gpus), self.kind_of_windows(self.host_uj()));
        let meters = self.metered.names.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        let by = self.weighed.words();
        let (by, caveat) = match meters.is_empty() {
            true => (by.to_owned(), None),
            false => (format!("{meters}, {by}"), self.caveat()),
        };
        let of_gpus = gpus.known_by.as_ref().filter(|_| gpus.energy_uj > 0);
        let with_gpus = of_gpus.map_or(by.clone(), |(_, gpus)| format!("{gpus} of GPUs; {by}"));
        let [source, with_gpus] = [by, with_gpus].map(|text| Provenance::from(text).with(caveat));
        for (column, value) in COLUMNS.into_iter().zip(values) {
            let Some(value) = value else { continue };
            let (source, kind) = match (column, &self.factor) {
                (column::ENERGY_MEMORY, _) => {
                    let source = Provenance::from(format!("{meters}, by memory held"));
                    (source.with(self.caveat()), kind_of_parts)
                }
                (column::ENERGY_CPU | column::ENERGY_REST, _) => (source.clone(), kind_of_parts),
                (column::EMISSIONS, Some(factor)) => (factor.source.to_string().into(), kind),
                (column::COST, _) => (self.tariff.words().unwrap_or_default().into(), kind),
                _ => (with_gpus.clone(), kind),
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
        factor_source: factor.source.to_string(),
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
