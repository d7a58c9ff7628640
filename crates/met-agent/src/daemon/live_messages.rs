//! Messages of live configuration, as Colmet's variant in Rust takes them: a PULL socket of ZeroMQ in a thread of its own,
//! which exists only if `colmet.configure` names an endpoint. Each becomes the request that `met configure` sends.

use std::collections::HashSet;
use std::fs;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use met_config::Place;
use met_query::client::Client;
use met_query::protocol::{Change, ConfigureStatus, Reply, Request};
use met_query::setting::Setting;
use met_sinks::zeromq::{Endpoint, Pull};
use met_wire::colmet::variant;

/// Each takes a descriptor of the daemon.
const PEERS_MAX: usize = 8;
/// Twenty-eight names and a number are far shorter.
const MESSAGE_BYTES_MAX: usize = 16 << 10;
const PERIOD_MIN: Duration = Duration::from_millis(100);

/// Why a message changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wrong {
    Connection,
    Malformed,
    Period,
    Event,
    Refused,
}

impl Wrong {
    fn text(self) -> &'static str {
        match self {
            Wrong::Connection => "connection closed",
            Wrong::Malformed => "not a MessagePack map of perfhw_metrics and sample_period",
            Wrong::Period => "sample_period is not a number of seconds, 0.1 or more",
            Wrong::Event => "perfhw_metrics has an unknown event",
            Wrong::Refused => "the daemon refused the change",
        }
    }
}

#[derive(Default)]
struct Counts {
    taken: AtomicU64,
    skipped: AtomicU64,
}

/// The socket while it is open.
pub struct LiveMessages {
    endpoint: String,
    counts: Arc<Counts>,
    refused: Option<String>,
    /// A file to remove at the end.
    file: Option<PathBuf>,
}

impl LiveMessages {
    /// `None` if no endpoint is configured. As with `http`, the machine's file is meant for the machine's daemon.
    pub fn start(setting: &Setting, place: &Place, auto: bool) -> Result<Option<LiveMessages>> {
        let is_machines = setting.config_path.as_deref() == Some(Path::new(met_config::MACHINE_FILE));
        let Some(endpoint) = setting.config.colmet.configure.clone().filter(|_| place.system || !is_machines)
        else {
            return Ok(None);
        };
        let mut messages = LiveMessages { endpoint, counts: Arc::default(), refused: None, file: None };
        match messages.listen(place) {
            Ok(()) => Ok(Some(messages)),
            // One that a supervisor started has a job to sample.
            Err(error) if auto => {
                tracing::error!("colmet.configure: {error:#}");
                messages.refused = Some(format!("{error:#}"));
                Ok(Some(messages))
            }
            Err(error) => Err(error.context("colmet.configure")),
        }
    }

    fn listen(&mut self, place: &Place) -> Result<()> {
        let endpoint = Endpoint::parse_own(&self.endpoint).map_err(anyhow::Error::msg)?;
        let pull = match &endpoint {
            Endpoint::Ipc(path) => Pull::bind_file(path, MESSAGE_BYTES_MAX)?,
            Endpoint::Tcp(authority) => {
                let addresses: Vec<_> = authority.to_socket_addrs().context("unknown address")?.collect();
                // On a loopback address that is every user of the machine.
                tracing::warn!(
                    "colmet.configure: any client that reaches {authority} can change period and events"
                );
                Pull::bind(&addresses, MESSAGE_BYTES_MAX)?
            }
        };
        if let Endpoint::Ipc(path) = endpoint {
            self.file = Some(path);
        }
        let mut work =
            Work { place: place.clone(), counts: Arc::clone(&self.counts), logged: HashSet::new() };
        let pull = pull.at_most(PEERS_MAX);
        // It ends with the process: nothing of it is written.
        std::thread::Builder::new().name("configure".to_owned()).spawn(move || work.run(pull))?;
        tracing::info!("taking live configuration at {}", self.endpoint);
        Ok(())
    }

    pub fn status(&self) -> ConfigureStatus {
        ConfigureStatus {
            endpoint: self.endpoint.clone(),
            taken: self.counts.taken.load(Ordering::Relaxed),
            skipped: self.counts.skipped.load(Ordering::Relaxed),
            refused: self.refused.clone(),
        }
    }
}

impl Drop for LiveMessages {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
            let _ = fs::remove_file(path);
        }
    }
}

struct Work {
    place: Place,
    counts: Arc<Counts>,
    logged: HashSet<Wrong>,
}

impl Work {
    fn run(&mut self, mut pull: Pull) {
        loop {
            for message in pull.wait(None, |_| true) {
                let done = match message.received {
                    Ok(bytes) => change(&bytes).and_then(|change| self.request(change)),
                    Err(why) => Err((Wrong::Connection, why)),
                };
                match done {
                    Ok(()) => drop(self.counts.taken.fetch_add(1, Ordering::Relaxed)),
                    Err((wrong, about)) => self.skip(wrong, &about),
                }
            }
        }
    }

    /// As another client of the daemon: its thread has the settings.
    fn request(&mut self, change: Change) -> Result<(), (Wrong, String)> {
        let refused = |error: &dyn std::fmt::Display| (Wrong::Refused, error.to_string());
        let (mut client, _) = Client::connect_to(&self.place).map_err(|error| refused(&error))?;
        match client.call(&Request::Configure(change)).map_err(|error| refused(&error))? {
            Reply::InForce(held) => {
                held.note.iter().for_each(|note| tracing::warn!("colmet.configure: {note}"));
                Ok(())
            }
            other => Err(refused(&format!("{other:?}"))),
        }
    }

    fn skip(&mut self, wrong: Wrong, about: &str) {
        self.counts.skipped.fetch_add(1, Ordering::Relaxed);
        if self.logged.insert(wrong) {
            let colon = if about.is_empty() { "" } else { ": " };
            let text = wrong.text();
            tracing::warn!("colmet.configure: {text}{colon}{about}; skipped, further ones are only counted");
        }
    }
}

/// What a message asks for, all of it or nothing.
fn change(message: &[u8]) -> Result<Change, (Wrong, String)> {
    let malformed = || (Wrong::Malformed, String::new());
    let variant::Settings { perfhw_metrics, sample_period } =
        variant::settings(message).map_err(|_| malformed())?;
    if perfhw_metrics.is_none() && sample_period.is_none() {
        return Err(malformed());
    }
    if let Some(unknown) =
        perfhw_metrics.iter().flatten().find(|name| !variant::EVENTS.contains(&name.as_str()))
    {
        return Err((Wrong::Event, format!("{unknown:?}")));
    }
    let period = sample_period.map(|text| period(&text).ok_or((Wrong::Period, format!("{text:?}"))));
    Ok(Change {
        period: period.transpose()?,
        perf: perfhw_metrics.map(|names| names.join(",")),
        until_a_job_ends: true,
        ..Change::default()
    })
}

/// Seconds without a unit, as the configuration file has them.
fn period(seconds: &str) -> Option<String> {
    let period = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    let text = format!("{}ms", period.as_millis());
    (period >= PERIOD_MIN && met_config::interval(&text).is_ok()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map of short texts in MessagePack.
    fn message(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = vec![0x80 | pairs.len() as u8];
        for text in pairs.iter().flat_map(|(key, value)| [key, value]) {
            bytes.extend([0xd9, text.len() as u8]);
            bytes.extend(text.as_bytes());
        }
        bytes
    }

    #[test]
    fn a_message_is_a_change_until_a_job_ends() {
        let both = [("perfhw_metrics", "cache_ll,emulation_faults"), ("sample_period", "1.5")];
        let asked = change(&message(&both)).unwrap();
        assert_eq!(asked.period.as_deref(), Some("1500ms"));
        assert_eq!(asked.perf.as_deref(), Some("cache_ll,emulation_faults"));
        assert!(asked.until_a_job_ends && asked.job.is_none() && !asked.reset);
        assert_eq!(change(&message(&both[1..])).unwrap().perf, None);
        assert_eq!(change(&message(&[("sample_period", "0.1")])).unwrap().period.as_deref(), Some("100ms"));
    }

    #[test]
    fn every_event_of_the_variant_can_be_named() {
        for name in variant::EVENTS {
            let asked = change(&message(&[("perfhw_metrics", name)])).unwrap();
            assert!(met_config::events_in(&asked.perf.unwrap()).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_wrong_message_changes_nothing() {
        let wrong = |pairs: &[(&str, &str)]| change(&message(pairs)).unwrap_err().0;
        for period in ["0.09", "0", "-1", "nan", "inf", "1s", "", "1e9"] {
            let both = [("perfhw_metrics", "cache_ll"), ("sample_period", period)];
            assert_eq!(wrong(&both), Wrong::Period, "{period:?}");
        }
        for events in ["nosuch", "cache_ll,nosuch", "cycles:u", "cache_ll;page_faults"] {
            assert_eq!(wrong(&[("sample_period", "2"), ("perfhw_metrics", events)]), Wrong::Event);
        }
        assert_eq!(wrong(&[]), Wrong::Malformed);
        assert_eq!(wrong(&[("other", "1")]), Wrong::Malformed);
        for bytes in [&b""[..], b"\xff", b"{\"sample_period\": \"1\"}", b"\x81\xa1x"] {
            assert_eq!(change(bytes).unwrap_err().0, Wrong::Malformed);
        }
    }
}
