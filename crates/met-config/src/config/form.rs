//! What a value may look like, and how it is read.

use std::path::PathBuf;
use std::time::Duration;

use met_core::cadence::Ladder;
use met_core::managers::Scheduler;
use met_host::Address;
use met_jobs::cgroup_layouts::Layout;
use met_jobs::scheduler;

use super::tree::{Complaint, Node, refuse_duplicates, unknown};
use super::{Accounts, Config, Plain, Presence, Scope, StorageName};
use met_core::units::{self, ParseError};

/// The form of a value, and where it goes.
#[derive(Clone, Copy)]
pub enum Form {
    /// From 10 ms to 1 h: shorter is all overhead, longer is not a series.
    Interval(fn(&mut Config, Duration)),
    Duration(fn(&mut Config, Duration)),
    Count(fn(&mut Config, u64)),
    Size(fn(&mut Config, u64)),
    Text(fn(&mut Config, String)),
    Path(fn(&mut Config, PathBuf)),
    /// What is wrong with it, and where it goes.
    Address(fn(&str) -> Result<(), String>, fn(&mut Config, String)),
    Storage(fn(&mut Config, StorageName)),
    /// A number that is not negative, with a fraction.
    Number(fn(&mut Config, f64)),
    /// The same, of a whole to a part of it: 1 or more.
    Ratio(fn(&mut Config, f64)),
    /// One of these words.
    Word(&'static [&'static str], fn(&mut Config, &str)),
    /// One for all, or one for each name; the name is `None` for all the others.
    Power(fn(&mut Config, Option<&str>, i64)),
    Presence(fn(&mut Config, Presence)),
    /// Whether it is queried.
    Scheduler(Scheduler),
    /// Where it counts its queue.
    Metrics(Scheduler),
    Scope(fn(&mut Config, Scope)),
    Accounts(fn(&mut Config, Accounts)),
    Layouts(fn(&mut Config, Vec<Layout>)),
    Plain(fn(&mut Config, Plain)),
    /// A list, or one text with commas.
    Events(fn(&mut Config, Vec<String>)),
    /// The same of any texts.
    Texts(fn(&mut Config, Vec<String>)),
    /// The same of addresses with ports.
    Addresses(fn(&mut Config, Vec<Address>)),
    /// The same of intervals by age.
    Ladder(fn(&mut Config, Ladder)),
    /// An interval for each of some resource managers.
    Managers(fn(&mut Config, String, Duration)),
}

/// A bound and how it is written.
type Bound = (Duration, &'static str);

const INTERVAL_MIN: Bound = (Duration::from_millis(10), "10ms");
const INTERVAL_MAX: Bound = (Duration::from_secs(3600), "1h");
const DURATION_MIN: Bound = (Duration::from_secs(1), "1s");
/// A hundred years: more is a mistake, and sums of times stay far from overflow.
const DURATION_MAX: Bound = (Duration::from_secs(36_500 * 86_400), "36500d");
const COUNT_MAX: u64 = 1_000_000_000;

impl Form {
    /// The word in the reference.
    pub fn word(&self) -> &'static str {
        match self {
            Form::Interval(_) => "interval",
            Form::Duration(_) => "duration",
            Form::Count(_) => "number",
            Form::Size(_) => "size",
            Form::Text(_) => "text",
            Form::Path(_) => "path",
            Form::Address(..) | Form::Metrics(_) => "address",
            Form::Storage(_) => "`sqlite` or `memory`",
            Form::Number(_) => "number",
            Form::Ratio(_) => "number ≥ 1",
            Form::Word(..) | Form::Accounts(_) => "word",
            Form::Power(_) => "power, or one for each",
            Form::Presence(_) | Form::Scheduler(_) => "`auto`, `yes` or `no`",
            Form::Scope(_) => "`cluster` or `node`",
            Form::Layouts(_) => "list",
            Form::Plain(_) => "`auto`, `off`, `session`, `unit` or `group`",
            Form::Events(_) => "events",
            Form::Texts(_) => "list",
            Form::Addresses(_) => "addresses",
            Form::Ladder(_) => "list of intervals",
            Form::Managers(_) => "an interval for each",
        }
    }

    /// Reads the text and puts it where it belongs; says what is wrong with it otherwise.
    pub fn apply(&self, text: &str, config: &mut Config) -> Result<(), ParseError> {
        match self {
            Form::Interval(set) => set(config, interval(text)?),
            Form::Duration(set) => set(config, bounded(text, DURATION_MIN, DURATION_MAX)?),
            Form::Count(set) => set(config, count(text)?),
            Form::Size(set) => set(config, size(text)?),
            Form::Text(set) => set(config, text.to_owned()),
            Form::Path(set) => set(config, path(text)?),
            Form::Address(check, set) => {
                check(text).map_err(ParseError)?;
                set(config, text.to_owned());
            }
            Form::Storage(set) => set(config, storage(text)?),
            Form::Number(set) => set(config, number(text)?),
            Form::Ratio(set) => set(config, ratio(text)?),
            Form::Word(words, set) => set(config, word(text, words)?),
            Form::Power(set) => set(config, None, power_mw(text)?),
            Form::Presence(set) => set(config, presence(text)?),
            Form::Scheduler(which) => config.schedulers.asked[*which as usize] = presence(text)?,
            Form::Metrics(which) => config.schedulers.metrics[*which as usize] = Some(web_address(text)?),
            Form::Scope(set) => set(config, scope(text)?),
            Form::Accounts(set) => set(config, accounts(text)?),
            Form::Plain(set) => set(config, plain(text)?),
            Form::Layouts(_) => return Err(ParseError(format!("{text:?} is not a list; {LAYOUT_EXAMPLE}"))),
            Form::Events(set) => set(config, events_in(text)?),
            Form::Texts(set) => set(config, texts_in(text)),
            Form::Addresses(set) => set(config, addresses(text.split(','))?),
            Form::Ladder(set) => set(config, Ladder::parse(text.split(','))?),
            Form::Managers(_) => {
                return Err(ParseError(format!("{text:?} names no manager; write {{slurm: 1s}}")));
            }
        }
        Ok(())
    }
}

/// Commas in brackets separate nothing: `node-[1,2]` is one text.
fn texts_in(text: &str) -> Vec<String> {
    let mut depth = 0_i32;
    let texts = text.split(move |letter| {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        letter == ',' && depth <= 0
    });
    texts.map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect()
}

/// As for `sampling.interval`.
pub fn interval(text: &str) -> Result<Duration, ParseError> {
    bounded(text, INTERVAL_MIN, INTERVAL_MAX)
}

/// As for `perf.events`, in one text.
pub fn events_in(text: &str) -> Result<Vec<String>, ParseError> {
    events(text.split(','))
}

fn bounded(text: &str, least: Bound, most: Bound) -> Result<Duration, ParseError> {
    // No unit helps a 0.
    let is_zero = text.trim().parse() == Ok(0.0);
    let value = if is_zero { Duration::ZERO } else { units::parse_duration(text)? };
    if value < least.0 {
        return Err(ParseError(format!("{text:?} is too short; the shortest is {}", least.1)));
    }
    if value > most.0 {
        return Err(ParseError(format!("{text:?} is too long; the longest is {}", most.1)));
    }
    Ok(value)
}

fn count(text: &str) -> Result<u64, ParseError> {
    let value = text.parse::<u64>().ok().filter(|value| (1..=COUNT_MAX).contains(value));
    value.ok_or_else(|| ParseError(format!("{text:?} is not a number from 1 to {COUNT_MAX}")))
}

fn number(text: &str) -> Result<f64, ParseError> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=COUNT_MAX as f64).contains(value));
    value.ok_or_else(|| ParseError(format!("{text:?} is not a number from 0 to {COUNT_MAX}")))
}

fn ratio(text: &str) -> Result<f64, ParseError> {
    let value = text.parse::<f64>().ok().filter(|value| (1.0..=COUNT_MAX as f64).contains(value));
    value.ok_or_else(|| ParseError(format!("{text:?} is not a number ≥ 1")))
}

fn word<'t>(text: &'t str, words: &[&str]) -> Result<&'t str, ParseError> {
    match words.contains(&text) {
        true => Ok(text),
        false => Err(ParseError(format!("{text:?} is not one of {}", words.join(", ")))),
    }
}

/// A file, or a scheduler that lists the members of accounts.
fn accounts(text: &str) -> Result<Accounts, ParseError> {
    let mut known: Vec<(&str, Accounts)> = vec![("file", Accounts::File)];
    let listing = Scheduler::ALL.iter().filter(|scheduler| scheduler::lists_members(**scheduler));
    known.extend(listing.map(|&scheduler| (scheduler.name(), Accounts::Scheduler(scheduler))));
    let words: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let name = word(text, &words)?;
    Ok(known.into_iter().find(|(known, _)| *known == name).map_or(Accounts::File, |(_, accounts)| accounts))
}

fn size(text: &str) -> Result<u64, ParseError> {
    let bytes = units::parse_size(text)?;
    match bytes >= 1 << 20 {
        true => Ok(bytes),
        false => Err(ParseError(format!("{text:?} is too small; the smallest is 1MiB"))),
    }
}

fn path(text: &str) -> Result<PathBuf, ParseError> {
    match text.starts_with('/') {
        true => Ok(PathBuf::from(text)),
        false => Err(ParseError(format!("{text:?} is not an absolute path; begin it with /"))),
    }
}

/// More than any GPU draws.
const POWER_MAX_WATTS: f64 = 100_000.0;

pub(super) fn power_mw(text: &str) -> Result<i64, ParseError> {
    let number = text.strip_suffix('W').unwrap_or(text).trim_end();
    let watts = number.parse::<f64>().ok().filter(|watts| (0.0..=POWER_MAX_WATTS).contains(watts));
    let watts = watts.ok_or_else(|| ParseError(format!("{text:?} is not a power; write for example 75W")))?;
    Ok((watts * 1e3).round() as i64)
}

pub(super) fn events<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<String>, ParseError> {
    let names = names.map(str::trim).filter(|name| !name.is_empty());
    let checked = |name: &str| met_sources::perf::check(name).map(|()| name.to_owned()).map_err(ParseError);
    names.map(checked).collect()
}

pub(super) fn addresses<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<Address>, ParseError> {
    let read = |text: &str| text.trim().parse::<Address>().map_err(|error| ParseError(error.to_string()));
    texts.map(read).collect()
}

/// The texts of a list; nothing if something else is in it.
pub(super) fn texts<'a>(items: &'a [(Node, u64)]) -> Option<Vec<&'a str>> {
    let text = |(node, _): &'a (Node, u64)| match node {
        Node::Scalar(text) => Some(text.as_str()),
        _ => None,
    };
    items.iter().map(text).collect()
}

fn storage(text: &str) -> Result<StorageName, ParseError> {
    match text {
        "sqlite" => Ok(StorageName::Sqlite),
        "memory" => Ok(StorageName::Memory),
        _ => Err(ParseError(format!("{text:?} is not a storage; write sqlite or memory"))),
    }
}

/// A host and a port, without a path: that is the program's.
fn web_address(text: &str) -> Result<String, ParseError> {
    let refuse = || ParseError(format!("{text:?} is not an address; write for example http://ctl:6817"));
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).ok_or_else(refuse)?;
    let host = rest.strip_suffix('/').unwrap_or(rest);
    // Where another port is meant than that of the web, none would be a mistake.
    let (name, port) = host.rsplit_once(':').ok_or_else(refuse)?;
    let is_name = if let Some(address) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        address.parse::<std::net::Ipv6Addr>().is_ok()
    } else {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !name.is_empty() && name.bytes().all(is_letter)
    };
    let is_port =
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    if is_name && is_port { Ok(text.trim_end_matches('/').to_owned()) } else { Err(refuse()) }
}

fn presence(text: &str) -> Result<Presence, ParseError> {
    match text {
        "auto" => Ok(Presence::Auto),
        "true" | "yes" => Ok(Presence::Yes),
        "false" | "no" => Ok(Presence::No),
        _ => Err(ParseError(format!("{text:?} is neither auto, yes nor no"))),
    }
}

fn scope(text: &str) -> Result<Scope, ParseError> {
    match text {
        "cluster" => Ok(Scope::Cluster),
        "node" => Ok(Scope::Node),
        _ => Err(ParseError(format!("{text:?} is not a scope; write cluster or node"))),
    }
}

fn plain(text: &str) -> Result<Plain, ParseError> {
    match text {
        "auto" => Ok(Plain::Auto),
        // How YAML reads the word `off` is handled by its reader.
        "off" | "no" | "false" => Ok(Plain::Off),
        "session" => Ok(Plain::Session),
        "unit" => Ok(Plain::Unit),
        "group" => Ok(Plain::Group),
        _ => Err(ParseError(format!("{text:?} is not auto, off, session, unit or group"))),
    }
}

const LAYOUT_EXAMPLE: &str = "write - {manager: mysched, path: \"mysched/job-{id}\"}";

/// The layouts in a list of mappings; a complaint knows the line it is about.
pub(super) fn layouts(items: &[(Node, u64)]) -> Result<Vec<Layout>, Complaint> {
    let layout = |(item, line): &(Node, u64)| {
        let complain = |message: String| Complaint { line: *line, message };
        let Node::Map(entries) = item else { return Err(complain(LAYOUT_EXAMPLE.to_owned())) };
        refuse_duplicates(entries, "jobs.layouts.")?;
        let names = ["manager", "path", "parts"];
        if let Some(entry) = entries.iter().find(|entry| !names.contains(&entry.key.as_str())) {
            return Err(unknown(entry, "jobs.layouts.", &names));
        }
        let text = |name: &str| {
            entries.iter().find(|entry| entry.key == name).and_then(|entry| match &entry.value {
                Node::Scalar(text) => Some(text.as_str()),
                _ => None,
            })
        };
        match (text("manager"), text("path")) {
            (Some(manager), Some(path)) => {
                Layout::parse(manager, path, text("parts").unwrap_or_default()).map_err(complain)
            }
            _ => Err(complain(format!("a layout has a manager and a path; {LAYOUT_EXAMPLE}"))),
        }
    };
    items.iter().map(layout).collect()
}
