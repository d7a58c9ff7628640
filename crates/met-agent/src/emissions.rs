//! What a kilowatt hour emits now: asked of a provider in the background, never waited for.
//!
//! The last value of a real-time provider is used for a while when it stops answering; then the country's average
//! replaces it. The origin of a factor is stored wherever the factor is used.

use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use jiff::Timestamp;
use met_core::MISSING;
use met_core::energy::emission::{self, Factor, FactorSource, Factors};
use met_core::job::Record;
use met_core::job_table::{EMISSIONS, ENERGY};
use met_core::series::Series;
use met_query::protocol::{Corrected, Correction};
use met_store::Writer;
use serde_json::Value;

use crate::node_energy;
use met_config::{Config, Emissions, Provider};

const RTE: &str =
    "https://odre.opendatasoft.com/api/explore/v2.1/catalog/datasets/eco2mix-national-tr/records";
const RTE_QUERY: &str =
    "?select=date_heure%2Ctaux_co2&where=taux_co2%20is%20not%20null&order_by=date_heure%20desc&limit=1";
const ELECTRICITY_MAPS: &str = "https://api.electricitymap.org/v3/carbon-intensity/latest";
const ELECTRICITY_MAPS_LATEST: &str = "/latest";
const ELECTRICITY_MAPS_HISTORY: &str = "/history";
const TIMEOUT: Duration = Duration::from_secs(20);
/// As many values as RTE returns at once, and as many answers as make up a history: a hundred days.
const PAGE: usize = 100;
const PAGES_MAX: usize = 100;
/// The newest value of a provider is this old at most while it works: after that its history is fetched, too.
const OUTAGE_NS: i64 = 3 * 3600 * 1_000_000_000;
/// Jobs that are held in memory while all are gone over.
const JOBS_AT_ONCE: usize = 200;
/// An answer is a few hundred bytes.
const ANSWER_MAX: u64 = 1 << 20;
/// More than burning lignite in an old plant: not a factor, a fault.
pub const GRAMS_MAX: f64 = 5000.0;

/// The factor that applies without a provider.
pub fn fixed(config: &Emissions) -> Factor {
    if let (Provider::Constant, Some(grams)) = (config.provider, config.grams_per_kwh) {
        return Factor { mg_per_kwh: mg(grams), source: FactorSource::Configured, since_ns: i64::MIN };
    }
    let country = match config.provider {
        Provider::Rte => Some("FRA"),
        _ => config.country.as_deref(),
    };
    country.and_then(emission::of_country).unwrap_or_else(emission::of_the_world)
}

/// The factor over time: a provider's value while it is fresh, a manual one at any age, else the fixed one.
pub fn series(config: &Emissions, known: &[Factor]) -> Factors {
    let base = Base { fixed: fixed(config), believes_providers: asks_a_provider(config) };
    base.series(config, known)
}

fn asks_a_provider(config: &Emissions) -> bool {
    matches!(config.provider, Provider::Rte | Provider::ElectricityMaps)
}

/// The factor where no value was reported.
#[derive(Clone, PartialEq, Eq)]
struct Base {
    fixed: Factor,
    /// Whether providers' values are used, or this one instead.
    believes_providers: bool,
}

impl Base {
    /// As it was when the job ran, whatever is configured today.
    fn of(record: &Record, config: &Emissions) -> Base {
        let used = record.emission.as_ref().map(|used| Factor {
            mg_per_kwh: used.factor_mg_per_kwh,
            source: used.factor_source.as_str().into(),
            since_ns: i64::MIN,
        });
        let by_provider = |used: &Factor| !used.is_fixed() && used.source != FactorSource::ByHand;
        Base {
            believes_providers: asks_a_provider(config) || used.as_ref().is_some_and(by_provider),
            fixed: used.filter(Factor::is_fixed).unwrap_or_else(|| fixed(config)),
        }
    }

    fn series(&self, config: &Emissions, known: &[Factor]) -> Factors {
        let max_age_ns = i64::try_from(config.max_age.as_nanos()).unwrap_or(i64::MAX);
        let mut factors = Factors::default();
        factors.put(self.fixed.clone());
        for (index, factor) in known.iter().enumerate() {
            let by_hand = factor.source == FactorSource::ByHand;
            // A fixed one among them is what held at the end of a correction, by another configuration.
            if factor.is_fixed() || !by_hand && !self.believes_providers {
                factors.put(Factor { since_ns: factor.since_ns, ..self.fixed.clone() });
                continue;
            }
            factors.put(factor.clone());
            let old_ns = factor.since_ns.saturating_add(max_age_ns);
            let next_ns = known.get(index + 1).map_or(i64::MAX, |next| next.since_ns);
            if !by_hand && old_ns < next_ns {
                factors.put(Factor { since_ns: old_ns, ..self.fixed.clone() });
            }
        }
        factors
    }
}

/// Changes the factors that are kept, or what was computed from them.
pub fn correct(correction: &Correction, writer: &mut Writer, config: &Config) -> Result<Corrected> {
    let factors = series(&config.emissions, &writer.factors()?);
    match *correction {
        Correction::Reported { ref factors } => {
            factors.iter().try_for_each(|factor| writer.put_factor(factor))?;
            Ok(Corrected::default())
        }
        Correction::Set { mg_per_kwh, from_ns, to_ns } => {
            let mut new = vec![Factor { mg_per_kwh, source: FactorSource::ByHand, since_ns: from_ns }];
            // What held at its end goes on to hold from there.
            let after = to_ns.and_then(|to_ns| Some((to_ns, factors.at(to_ns)?)));
            new.extend(after.map(|(to_ns, factor)| Factor { since_ns: to_ns, ..factor.clone() }));
            writer.put_factors(from_ns, to_ns.unwrap_or(i64::MAX), &new)?;
            Ok(Corrected::default())
        }
        Correction::Unset { from_ns, to_ns } => {
            let known = writer.factors()?;
            let left = without_corrections(&known, from_ns, to_ns, &fixed(&config.emissions));
            writer.put_factors(from_ns, to_ns, &left)?;
            Ok(Corrected::default())
        }
        Correction::Recompute { since_ns } => recompute_since(writer, config, since_ns),
    }
}

/// What remains between two times, and holds from the second one on, once values set by hand are removed.
fn without_corrections(known: &[Factor], from_ns: i64, to_ns: i64, fixed: &Factor) -> Vec<Factor> {
    let is_by_hand = |factor: &Factor| factor.source == FactorSource::ByHand;
    let last_before = |time_ns: i64| known.iter().rfind(|factor| factor.since_ns < time_ns);
    // What was set before would go on to hold for ever.
    let ended = last_before(from_ns).filter(|last| is_by_hand(last));
    let mut left: Vec<Factor> =
        ended.map(|_| Factor { since_ns: from_ns, ..fixed.clone() }).into_iter().collect();
    let between = known.iter().filter(|factor| (from_ns..to_ns).contains(&factor.since_ns));
    // One that is fixed only ended a correction.
    left.extend(between.filter(|factor| !is_by_hand(factor) && !factor.is_fixed()).cloned());
    let value_there = known.iter().any(|factor| factor.since_ns == to_ns);
    let after = last_before(to_ns).filter(|last| is_by_hand(last) && to_ns != i64::MAX && !value_there);
    left.extend(after.map(|factor| Factor { since_ns: to_ns, ..factor.clone() }));
    left
}

/// Goes over all jobs, a few at a time: a store may hold more than fit into memory.
fn recompute_since(writer: &mut Writer, config: &Config, since_ns: Option<i64>) -> Result<Corrected> {
    let known = writer.factors()?;
    let mut last: Option<(Base, Factors)> = None;
    // A written record gets a new number, after all present ones.
    let newest = writer.newest_change()?;
    let (mut mark, mut corrected) = (0, Corrected::default());
    while mark < newest {
        let mut changed = Vec::new();
        let some = writer.changed_since(mark, since_ns, JOBS_AT_ONCE)?;
        mark = some.last().map_or(newest, |(number, _)| *number);
        for (_, mut record) in some.into_iter().filter(|(number, _)| *number <= newest) {
            if since_ns.is_some_and(|since_ns| record.start_ns.is_none_or(|start_ns| start_ns < since_ns)) {
                continue;
            }
            let Some(pue) = pue_then(&record, config.energy.pue) else {
                corrected.without_pue += u64::from(!record.state.is_live());
                continue;
            };
            let base = Base::of(&record, &config.emissions);
            let factors = match last.take().filter(|(known, _)| *known == base) {
                Some((_, factors)) => factors,
                None => base.series(&config.emissions, &known),
            };
            let series = writer.series(&record.key)?;
            match recompute(&mut record, &series, &factors, pue) {
                Recomputed::Same => {}
                Recomputed::OtherSource => changed.push(record),
                Recomputed::OtherFigure => {
                    changed.push(record);
                    corrected.jobs += 1;
                }
            }
            last = Some((base, factors));
        }
        writer.put_all(&changed)?;
    }
    Ok(corrected)
}

/// What the building used when a job ran. It is today's where emissions were never computed; unknown where they
/// were computed before it was stored.
fn pue_then(record: &Record, today: f64) -> Option<f64> {
    match &record.emission {
        Some(emission) => emission.pue(),
        None => record.totals.get(EMISSIONS).is_none().then_some(today),
    }
}

/// What became of the emissions of a job.
#[derive(Debug, PartialEq, Eq)]
enum Recomputed {
    Same,
    /// As much as before, by a factor of another time or origin.
    OtherSource,
    OtherFigure,
}

/// Computes the emissions of a job that is over by these factors.
fn recompute(record: &mut Record, series: &Series, factors: &Factors, pue: f64) -> Recomputed {
    let (Some(energy), Some(start_ns), Some(end_ns)) =
        (record.totals.figure(ENERGY).cloned(), record.start_ns, record.end_ns)
    else {
        return Recomputed::Same;
    };
    if record.state.is_live() {
        return Recomputed::Same;
    }
    let mut weighted = 0.0;
    let (mut before_ns, mut before_uj) = (start_ns, 0);
    let samples = series.times_ms.iter().zip(&series.columns[ENERGY]).filter(|&(_, &uj)| uj != MISSING);
    let samples = samples.map(|(&ms, &uj)| (ms.saturating_mul(1_000_000).min(end_ns), uj));
    for (at_ns, energy_uj) in samples.chain([(end_ns, energy.value)]) {
        let Some(mg_per_kwh) = factors.mean_mg_per_kwh(before_ns, at_ns) else { return Recomputed::Same };
        weighted += (energy_uj - before_uj).max(0) as f64 * mg_per_kwh;
        (before_ns, before_uj) = (at_ns, energy_uj.max(before_uj));
    }
    let emitted_ug = (weighted * 1000.0 / emission::UJ_PER_KWH as f64 * pue).round() as i64;
    let Some(factor) = factors.at(end_ns) else { return Recomputed::Same };
    let emission = Some(node_energy::emission_of(factor, pue));
    let same_figure = record.totals.get(EMISSIONS) == Some(emitted_ug);
    if same_figure && record.emission == emission {
        return Recomputed::Same;
    }
    record.totals.set(EMISSIONS, emitted_ug, energy.kind, factor.source.to_string());
    record.emission = emission;
    if same_figure { Recomputed::OtherSource } else { Recomputed::OtherFigure }
}

/// Asks a real-time provider from time to time on a thread of its own.
pub struct Asking {
    answers: Receiver<Result<Vec<Factor>, String>>,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Asking {
    /// `None` without a provider. `newest_ns` is the time of the newest known value.
    pub fn start(config: &Emissions, mut newest_ns: Option<i64>) -> std::io::Result<Option<Asking>> {
        if matches!(config.provider, Provider::Country | Provider::Constant) {
            return Ok(None);
        }
        let (stop, stopped) = sync_channel::<()>(0);
        let (sender, answers) = sync_channel(4);
        let config = config.clone();
        let thread = std::thread::Builder::new().name("emissions".to_owned()).spawn(move || {
            loop {
                let answer = ask_on(&config, newest_ns).map_err(|error| format!("{error:#}"));
                let last_ns = answer.iter().flatten().map(|factor| factor.since_ns).max().max(newest_ns);
                // An answer that cannot be queued is requested again.
                if sender.try_send(answer).is_ok() {
                    newest_ns = last_ns;
                }
                if stopped.recv_timeout(config.refresh) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Some(Asking { answers, stop: Some(stop), thread: Some(thread) }))
    }

    /// The answers since the last call.
    pub fn answers(&self) -> Vec<Result<Vec<Factor>, String>> {
        self.answers.try_iter().collect()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // A request in flight is not waited for: the thread ends with the process.
        self.stop.take();
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
    }
}

/// The newest value, and after an outage those since the last one that is known.
fn ask_on(config: &Emissions, newest_ns: Option<i64>) -> Result<Vec<Factor>> {
    let newest = ask(config)?;
    match newest_ns.filter(|newest_ns| newest.since_ns.saturating_sub(*newest_ns) > OUTAGE_NS) {
        // A provider without a past has its newest value all the same.
        Some(newest_ns) => {
            let mut factors = history(config, newest_ns).unwrap_or_default();
            factors.retain(|factor| factor.since_ns != newest.since_ns);
            factors.push(newest);
            Ok(factors)
        }
        None => Ok(vec![newest]),
    }
}

/// Every value that a real-time provider has since a time, as it knows them now; nothing of the others.
pub fn history(config: &Emissions, since_ns: i64) -> Result<Vec<Factor>> {
    let mut factors = Vec::new();
    match config.provider {
        Provider::Rte => {
            let url = config.url.as_deref().unwrap_or(RTE);
            let since =
                Timestamp::from_nanosecond(i128::from(since_ns))?.strftime("%Y-%m-%dT%H%%3A%M%%3A%SZ");
            for page in 0..PAGES_MAX {
                let query = format!(
                    "?select=date_heure%2Ctaux_co2&where=taux_co2%20is%20not%20null%20and%20date_heure%20%3E%3D%20\
                     date%27{since}%27&order_by=date_heure&limit={PAGE}&offset={}",
                    page * PAGE
                );
                let more = parse_rte_history(&get(&format!("{url}{query}"), None)?)?;
                let is_last = more.len() < PAGE;
                factors.extend(more);
                if is_last {
                    break;
                }
            }
        }
        Provider::ElectricityMaps => {
            let latest = config.url.as_deref().unwrap_or(ELECTRICITY_MAPS);
            let url = latest.strip_suffix(ELECTRICITY_MAPS_LATEST).unwrap_or(latest);
            let (zone, answer) = ask_electricity_maps(config, &format!("{url}{ELECTRICITY_MAPS_HISTORY}"))?;
            factors = parse_electricity_maps_history(&answer, zone)?;
        }
        Provider::Country | Provider::Constant => {}
    }
    factors.retain(|factor| factor.since_ns >= since_ns);
    factors.sort_by_key(|factor| factor.since_ns);
    Ok(factors)
}

fn ask_electricity_maps<'a>(config: &'a Emissions, url: &str) -> Result<(&'a str, Vec<u8>)> {
    let zone = config.zone.as_deref().unwrap_or_default();
    let token = read_token(config.token_file.as_deref().context("no token file")?)?;
    let zone_in_url: String =
        zone.bytes().filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'-').map(char::from).collect();
    Ok((zone, get(&format!("{url}?zone={zone_in_url}"), Some(&token))?))
}

fn ask(config: &Emissions) -> Result<Factor> {
    match config.provider {
        Provider::Rte => {
            let url = config.url.as_deref().unwrap_or(RTE);
            parse_rte(&get(&format!("{url}{RTE_QUERY}"), None)?)
        }
        Provider::ElectricityMaps => {
            let url = config.url.as_deref().unwrap_or(ELECTRICITY_MAPS);
            let (zone, answer) = ask_electricity_maps(config, url)?;
            parse_electricity_maps(&answer, zone)
        }
        Provider::Country | Provider::Constant => Ok(fixed(config)),
    }
}

fn get(url: &str, token: Option<&str>) -> Result<Vec<u8>> {
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).build().into();
    let mut request = agent.get(url);
    if let Some(token) = token {
        request = request.header("auth-token", token);
    }
    // The query string is long and always the same.
    let server = url.split('?').next().unwrap_or(url);
    let mut answer = request.call().map_err(|error| match error {
        ureq::Error::StatusCode(401 | 403) => {
            anyhow!("{server} rejects the token; see emissions.token_file")
        }
        ureq::Error::StatusCode(status) => anyhow!("{server} answers {status}; see emissions.url"),
        error => anyhow!("{server} does not answer ({error}); see emissions.url"),
    })?;
    let mut body = Vec::new();
    let read = answer.body_mut().as_reader().take(ANSWER_MAX).read_to_end(&mut body);
    read.with_context(|| format!("the reply of {server} is cut off"))?;
    Ok(body)
}

/// A token that others can read is no secret.
fn read_token(path: &Path) -> Result<String> {
    use std::os::unix::fs::MetadataExt;
    let unread = || format!("cannot read {} (emissions.token_file)", path.display());
    let metadata = std::fs::metadata(path).with_context(unread)?;
    if metadata.mode() & 0o077 != 0 {
        bail!("{} can be read by others; `chmod 600` it", path.display());
    }
    let text = std::fs::read_to_string(path).with_context(unread)?;
    Ok(text.trim().to_owned())
}

fn parse_rte(answer: &[u8]) -> Result<Factor> {
    let answer: Value = serde_json::from_slice(answer).context("the reply is not JSON")?;
    let record = &answer["results"][0];
    factor(&record["taux_co2"], &record["date_heure"], "rte eco2mix".to_owned())
}

/// What is no value is passed over: RTE has some that it does not know yet.
fn parse_rte_history(answer: &[u8]) -> Result<Vec<Factor>> {
    let answer: Value = serde_json::from_slice(answer).context("the reply is not JSON")?;
    let records = answer["results"].as_array().context("the reply has no values")?;
    let one =
        |record: &Value| factor(&record["taux_co2"], &record["date_heure"], "rte eco2mix".to_owned()).ok();
    Ok(records.iter().filter_map(one).collect())
}

fn parse_electricity_maps_history(answer: &[u8], zone: &str) -> Result<Vec<Factor>> {
    let answer: Value = serde_json::from_slice(answer).context("the reply is not JSON")?;
    let records = answer["history"].as_array().context("the reply has no values")?;
    let one = |record: &Value| {
        factor(&record["carbonIntensity"], &record["datetime"], format!("electricity maps {zone}")).ok()
    };
    Ok(records.iter().filter_map(one).collect())
}

fn parse_electricity_maps(answer: &[u8], zone: &str) -> Result<Factor> {
    let answer: Value = serde_json::from_slice(answer).context("the reply is not JSON")?;
    factor(&answer["carbonIntensity"], &answer["datetime"], format!("electricity maps {zone}"))
}

fn factor(grams: &Value, time: &Value, source: String) -> Result<Factor> {
    let grams = grams
        .as_f64()
        .filter(|grams| (0.0..=GRAMS_MAX).contains(grams))
        .context("the reply has no factor")?;
    let time: Timestamp =
        time.as_str().and_then(|text| text.parse().ok()).context("the reply has no time")?;
    let since_ns = i64::try_from(time.as_nanosecond()).context("the reply has no time")?;
    Ok(Factor { mg_per_kwh: mg(grams), source: FactorSource::Provider(source), since_ns })
}

pub fn mg(grams: f64) -> i64 {
    (grams * 1000.0).round() as i64
}

#[cfg(test)]
#[path = "emissions_tests.rs"]
mod tests;
