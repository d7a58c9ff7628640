//! Redfish: the power of the chassis from its controller, over HTTPS.
//!
//! Only where the operator gave an address and a file of credentials. These go to that address alone:
//! redirections are not followed, and plain HTTP is refused except to this machine itself.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::table::{MICRO, MILLI};
use met_core::{Across, Batch, Column, MISSING, Subject, Table, Unit, columns, labels};
use met_host::{Host, Targets};
use serde_json::Value;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::meter::{self, Meter};
use crate::row_parts::Parts;
use crate::{
    Opened, Options, Pace, ReadError, Shortfall, Source, SourceOption, SourceSpec, TickInfo, Unavailable,
};

columns! { COLUMNS:
    POWER = Column::gauge("power", Unit::Watts, MILLI, "power drawn").usual(),
    POWER_AVERAGE = Column::gauge("power_average", Unit::Watts, MILLI, "mean power over the controller's own period"),
    POWER_MIN = Column::gauge("power_min", Unit::Watts, MILLI, "lowest power in that period").across(Across::Max),
    POWER_MAX = Column::gauge("power_max", Unit::Watts, MILLI, "highest power in that period").across(Across::Max),
    ENERGY = Column::counter("energy", Unit::Joules, MICRO, "energy used since the controller's counter started").usual(),
}

labels! { LABELS: CHASSIS = "chassis", METER = "meter" }

pub static TABLE: Table = Table {
    name: "redfish",
    subject: "a power meter of a chassis; the first row is used for this machine",
    labels: LABELS,
    columns: COLUMNS,
};

const URL: SourceOption =
    SourceOption::text("url", "the controller of the chassis, as in `https://bmc.example.org`")
        .needs("credentials");
const CREDENTIALS: SourceOption =
    SourceOption::path("credentials", "a file of one line, `user:password`, that only its owner may read");
const CERTIFICATE: SourceOption =
    SourceOption::path("certificate", "CA certificate (PEM) for the controller");
const CHASSIS: SourceOption = SourceOption::text(
    "chassis",
    "the chassis that is this machine, by its name in the controller's list; `all`: all of them together. Without it, the first one with a meter; `met doctor` shows which",
)
.checked(|text| match text.is_empty() {
    true => Err("the name of a chassis, or all".to_owned()),
    false => Ok(()),
});
const VERIFY: SourceOption =
    SourceOption::yes_or_no("verify", "yes", "`no`: accept any certificate; the password can be intercepted");

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "redfish",
    help: "power of the chassis, from its controller over HTTPS",
    pace: Pace::Apart(Duration::from_secs(10)),
    tables: &[&TABLE],
    charts: &[MachineChart::new(
        "redfish-power",
        ["Power, Redfish", "power, Redfish"],
        ChartUnit::Watts,
        &TABLE,
        &[POWER],
    )],
    options: &[URL, CREDENTIALS, CERTIFICATE, CHASSIS, VERIFY],
    open,
};

pub(crate) static METER: Meter = Meter {
    source: &SPEC,
    name: "Redfish",
    // The first meter of the chassis is that of all of it.
    scope: |part, _| meter::NODE.filter(|_| part == 0),
    is_slow: true,
    // Controllers count in steps of a thousandth of a kilowatt hour.
    is_coarse: true,
};

const TIMEOUT: Duration = Duration::from_secs(20);
const BODY_MAX_BYTES: u64 = 1 << 20;
const CHASSIS_MAX: usize = 32;
const METERS_MAX: usize = 32;
const NEED: &str = "a file that only its owner can read: chmod 600";

/// What a user configured.
struct Redfish<'a> {
    url: &'a str,
    /// A file of `user:password` that only its owner may read.
    credentials: &'a Path,
    /// The certificate that signed the controller's own, in PEM; without it, those of the web are trusted.
    certificate: Option<&'a Path>,
    /// Whether it is checked: most controllers sign theirs themselves.
    verify: bool,
    chassis: ChassisChoice,
}

impl<'a> Redfish<'a> {
    fn configured(options: &'a Options) -> Option<Redfish<'a>> {
        Some(Redfish {
            url: options.value(&SPEC, &URL)?,
            credentials: Path::new(options.value(&SPEC, &CREDENTIALS)?),
            certificate: options.value(&SPEC, &CERTIFICATE).map(Path::new),
            verify: options.value(&SPEC, &VERIFY) == Some("yes"),
            chassis: match options.value(&SPEC, &CHASSIS) {
                None => ChassisChoice::First,
                Some("all") => ChassisChoice::Sum,
                Some(name) => ChassisChoice::Named(name.to_owned()),
            },
        })
    }
}

/// Which of a controller's chassis is this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ChassisChoice {
    /// The first in the controller's list that has a meter.
    First,
    /// The one of this name.
    Named(String),
    /// All of them together.
    Sum,
}

struct Chassis {
    agent: ureq::Agent,
    url: String,
    authorization: String,
    choice: ChassisChoice,
    /// Their paths, found at the first reading.
    paths: Vec<String>,
    /// The path of the chassis that is this machine, and the name of its meter: one of several stays chosen,
    /// whichever answers first the next time.
    machine: Option<(String, String)>,
    /// How often it was read before that was known.
    looks: u32,
    /// The names of chassis that were seen with a meter.
    metered: Vec<String>,
    parts: Parts,
}

/// The report of one chassis.
struct Report {
    path: String,
    meters: Vec<(String, Vec<i64>)>,
}

impl Report {
    fn name(&self) -> &str {
        name_of(&self.path)
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or("")
}

fn open(host: &Host, options: &Options) -> Opened {
    let Some(redfish) = Redfish::configured(options) else {
        return Err(Unavailable::Unset {
            what: "no controller configured (sources.redfish.url)",
            enable: "sources: {redfish: {url: https://BMC}}    (in met.yaml)",
        });
    };
    let url = redfish.url.trim_end_matches('/').to_owned();
    if !is_safe(&url) {
        return Err(Unavailable::Absent(format!(
            "{url} is not https: the password would be sent unencrypted"
        )));
    }
    let authorization = authorization(host, redfish.credentials)?;
    let agent = agent(host, &redfish)?;
    Ok(Box::new(Chassis {
        agent,
        url,
        authorization,
        choice: redfish.chassis,
        paths: Vec::new(),
        machine: None,
        looks: 0,
        metered: Vec::new(),
        parts: Parts::default(),
    }))
}

fn is_safe(url: &str) -> bool {
    // A password in the address would be shown with it.
    if url.contains('@') {
        return false;
    }
    let host = |rest: &str| rest.split(['/', ':']).next().unwrap_or("").to_owned();
    url.starts_with("https://")
        || url.strip_prefix("http://").is_some_and(|rest| ["127.0.0.1", "localhost"].contains(&&*host(rest)))
}

/// Only its owner may read the file, which holds `user:password`.
fn authorization(host: &Host, path: &Path) -> Result<String, Unavailable> {
    let denied = || Unavailable::Denied { path: path.display().to_string(), need: NEED };
    let below_root = host.root().join(path.strip_prefix("/").unwrap_or(path));
    let mode = rustix::fs::stat(&below_root).map_err(|_| denied())?.st_mode;
    if mode & 0o077 != 0 {
        return Err(denied());
    }
    let mut text = Vec::new();
    host.read_small(path, &mut text).map_err(|_| denied())?;
    let line = text.trim_ascii();
    if !line.contains(&b':') || line.contains(&b'\n') {
        return Err(Unavailable::Absent(format!("{}: one line of user:password is needed", path.display())));
    }
    Ok(format!("Basic {}", base64(line)))
}

fn agent(host: &Host, redfish: &Redfish) -> Result<ureq::Agent, Unavailable> {
    let mut tls = TlsConfig::builder().disable_verification(!redfish.verify);
    if let Some(path) = redfish.certificate {
        let refuse = |why: &dyn std::fmt::Display| Unavailable::Absent(format!("{}: {why}", path.display()));
        let mut pem = Vec::new();
        host.read_small(path, &mut pem).map_err(|error| refuse(&error))?;
        let certificate = Certificate::from_pem(&pem).map_err(|error| refuse(&error))?;
        tls = tls.root_certs(RootCerts::Specific(Arc::new(vec![certificate])));
    }
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .max_redirects(0)
        .http_status_as_error(false)
        .proxy(None)
        .tls_config(tls.build());
    Ok(config.build().new_agent())
}

impl Source for Chassis {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        if self.paths.is_empty() {
            let list = self.get("/redfish/v1/Chassis")?;
            self.paths = members(&list);
        }
        let (mut reports, mut first_error) = (Vec::new(), None);
        for path in self.paths.clone() {
            match self.meters_of(&path) {
                Ok(meters) => reports.push(Report { path, meters }),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        self.take(&reports, batch);
        let none_chosen = self.machine.is_none() && first_error.is_none();
        if let (true, ChassisChoice::Named(name)) = (none_chosen, &self.choice) {
            let error =
                io::Error::other(format!("no chassis {name:?} with a meter; known: {}", self.names()));
            return Err(ReadError::Retry { path: self.url.clone(), error });
        }
        first_error.map_or(Ok(()), Err)
    }

    fn shortfall(&self) -> Option<Shortfall> {
        let (path, _) = self.machine.as_ref().filter(|_| self.choice == ChassisChoice::First)?;
        let others: Vec<&str> =
            self.metered.iter().map(String::as_str).filter(|name| *name != name_of(path)).collect();
        let detail = format!(
            "the power of chassis {} is used for this machine, but there are also meters of {}",
            name_of(path),
            others.join(", ")
        );
        let remedy = format!(
            "sources: {{redfish: {{chassis: {}}}}}    (in met.yaml; or another, or all)",
            name_of(path)
        );
        (!others.is_empty()).then_some(Shortfall { detail, remedy: Some(remedy) })
    }

    fn labels(&self) -> &[Vec<String>] {
        self.parts.labels()
    }
}

/// The row for the sum of all chassis.
const ALL: &str = "all";
/// About a minute.
const LOOKS_WAITED: u32 = 6;

impl Chassis {
    fn meters_of(&self, path: &str) -> Result<Vec<(String, Vec<i64>)>, ReadError> {
        // Older controllers have the first, newer ones the second.
        for name in ["Power", "EnvironmentMetrics"] {
            match self.get(&format!("{path}/{name}")) {
                Ok(reply) => {
                    let found = meters(&reply);
                    if !found.is_empty() {
                        return Ok(found);
                    }
                }
                Err(ReadError::Retry { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Vec::new())
    }

    fn take(&mut self, reports: &[Report], batch: &mut Batch) {
        self.choose(reports);
        for chassis in reports.iter().filter(|chassis| !chassis.meters.is_empty()) {
            if !self.metered.iter().any(|known| known == chassis.name()) {
                self.metered.push(chassis.name().to_owned());
            }
        }
        // Until then it is unknown which of them is the machine.
        if self.machine.is_some() {
            self.sum(reports, batch);
            self.fill(reports, batch);
        }
    }

    /// Decides once which chassis is this machine, and gives it the first part. Those that might be it instead
    /// must have answered, but are not waited for without end: one may be closed to this user.
    fn choose(&mut self, reports: &[Report]) {
        if self.machine.is_some() {
            return;
        }
        self.looks += 1;
        let waits = self.looks < LOOKS_WAITED;
        let answered = |path: &String| reports.iter().find(|chassis| chassis.path == *path);
        let is_complete = self.paths.iter().all(|path| answered(path).is_some());
        let metered = |chassis: &Report| Some((chassis.path.clone(), chassis.meters.first()?.0.clone()));
        self.machine = match &self.choice {
            ChassisChoice::First => {
                let known = self.paths.iter().map(answered).take_while(|chassis| chassis.is_some() || !waits);
                known.flatten().find_map(metered)
            }
            ChassisChoice::Named(name) => {
                reports.iter().find(|chassis| chassis.name() == *name).and_then(metered)
            }
            ChassisChoice::Sum if is_complete || !waits => {
                reports.iter().find_map(metered).map(|_| (ALL.to_owned(), "sum".to_owned()))
            }
            ChassisChoice::Sum => None,
        };
        if let Some((path, meter)) = self.machine.clone() {
            let _ = self.part(&path, &meter);
        }
    }

    fn part(&mut self, path: &str, meter: &str) -> Option<u32> {
        let labels = || vec![name_of(path).to_owned(), meter.to_owned()];
        self.parts.of(format!("{path}\n{meter}").as_bytes(), labels)
    }

    fn fill(&mut self, reports: &[Report], batch: &mut Batch) {
        for chassis in reports {
            for (name, cells) in &chassis.meters {
                if let Some(part) = self.part(&chassis.path, name) {
                    batch.push_part(Subject::Node, part).copy_from_slice(cells);
                }
            }
        }
    }

    /// What all chassis draw together, if configured and each with a meter has reported.
    fn sum(&self, reports: &[Report], batch: &mut Batch) {
        if self.choice != ChassisChoice::Sum {
            return;
        }
        let power = |name: &String| {
            let chassis = reports.iter().find(|chassis| chassis.name() == *name)?;
            Some(chassis.meters.first()?.1[POWER]).filter(|&power| power != MISSING)
        };
        let powers: Option<Vec<i64>> = self.metered.iter().map(power).collect();
        let sum = powers.map(|powers| powers.into_iter().fold(0, i64::saturating_add));
        if let Some(sum) = sum {
            batch.push_part(Subject::Node, 0)[POWER] = sum;
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.paths.iter().map(|path| name_of(path)).collect();
        names.join(", ")
    }

    fn get(&self, path: &str) -> Result<Value, ReadError> {
        let url = format!("{}{path}", self.url);
        let retry = |error: io::Error| ReadError::Retry { path: url.clone(), error };
        let other = |error: ureq::Error| retry(io::Error::other(error.to_string()));
        let request = self.agent.get(&url).header("Authorization", &self.authorization);
        let mut response = request.header("Accept", "application/json").call().map_err(other)?;
        match response.status().as_u16() {
            200 => {}
            404 => return Err(retry(io::ErrorKind::NotFound.into())),
            status => return Err(retry(io::Error::other(format!("the controller answered {status}")))),
        }
        let body = response.body_mut().with_config().limit(BODY_MAX_BYTES).read_to_vec().map_err(other)?;
        serde_json::from_slice(&body).map_err(|_| retry(io::Error::other("the reply is not JSON")))
    }
}

/// The chassis that a controller lists. A path that leads elsewhere is left out.
fn members(list: &Value) -> Vec<String> {
    let listed = list["Members"].as_array().into_iter().flatten();
    let paths = listed.filter_map(|member| member["@odata.id"].as_str());
    let is_path =
        |path: &&str| path.starts_with("/redfish/") && path.bytes().all(|byte| byte.is_ascii_graphic());
    let paths = paths.map(|path| path.trim_end_matches('/')).filter(is_path);
    paths.take(CHASSIS_MAX).map(str::to_owned).collect()
}

/// The meters of a chassis and their cells, from its Power or its EnvironmentMetrics.
fn meters(reply: &Value) -> Vec<(String, Vec<i64>)> {
    let mut found = Vec::new();
    for (index, control) in
        reply["PowerControl"].as_array().into_iter().flatten().take(METERS_MAX).enumerate()
    {
        let mut cells = vec![MISSING; COLUMNS.len()];
        let metrics = &control["PowerMetrics"];
        cells[POWER] = thousandths(&control["PowerConsumedWatts"]);
        cells[POWER_AVERAGE] = thousandths(&metrics["AverageConsumedWatts"]);
        cells[POWER_MIN] = thousandths(&metrics["MinConsumedWatts"]);
        cells[POWER_MAX] = thousandths(&metrics["MaxConsumedWatts"]);
        let name = control["Name"].as_str().map_or_else(|| index.to_string(), str::to_owned);
        found.push((name, cells));
    }
    if found.is_empty() {
        let mut cells = vec![MISSING; COLUMNS.len()];
        cells[POWER] = thousandths(&reply["PowerWatts"]["Reading"]);
        cells[ENERGY] = scaled(&reply["EnergykWh"]["Reading"], 3.6e12);
        found.push(("EnvironmentMetrics".to_owned(), cells));
    }
    found.retain(|(_, cells)| cells.iter().any(|&cell| cell != MISSING));
    found
}

fn thousandths(value: &Value) -> i64 {
    scaled(value, 1000.0)
}

fn scaled(value: &Value, factor: f64) -> i64 {
    let scaled = value.as_f64().map(|value| (value * factor).round());
    scaled.filter(|value| (0.0..9e18).contains(value)).map_or(MISSING, |value| value as i64)
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
#[path = "redfish/tests.rs"]
mod tests;
