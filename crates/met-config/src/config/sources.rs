//! The section `sources`: which of them are read, how often, and what some of them need to know.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use met_sources::{ChassisChoice, Choice, Options, Pace, Redfish, SOURCES, SourceSpec};

use super::tree::{Complaint, Entry, Node, refuse_duplicates, unknown};
use met_core::units;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    choices: HashMap<&'static str, Choice>,
    ipmi_command: Vec<String>,
    redfish_url: Option<String>,
    redfish_credentials: Option<PathBuf>,
    redfish_certificate: Option<PathBuf>,
    redfish_verify: bool,
    redfish_chassis: ChassisChoice,
}

impl Default for Sources {
    fn default() -> Sources {
        let mut sources = Sources {
            choices: HashMap::new(),
            ipmi_command: Vec::new(),
            redfish_url: None,
            redfish_credentials: None,
            redfish_certificate: None,
            redfish_verify: true,
            redfish_chassis: ChassisChoice::First,
        };
        for extra in EXTRAS.iter().filter(|extra| !extra.default.is_empty()) {
            let applied = (extra.set)(&mut sources, extra.default).is_ok();
            debug_assert!(applied, "the default of {} does not parse", extra.key);
        }
        sources
    }
}

impl Sources {
    /// What the sources are to know of it.
    pub fn options(&self) -> Options {
        let redfish = self.redfish_url.clone().zip(self.redfish_credentials.clone());
        Options {
            choices: self.choices.clone(),
            ipmi_command: self.ipmi_command.clone(),
            redfish: redfish.map(|(url, credentials)| Redfish {
                url,
                credentials,
                certificate: self.redfish_certificate.clone(),
                verify: self.redfish_verify,
                chassis: self.redfish_chassis.clone(),
            }),
            ..Options::default()
        }
    }

    /// A program that prints the power of the node, with its arguments.
    pub fn set_ipmi_command(&mut self, words: Vec<String>) {
        self.ipmi_command = words;
    }

    /// The sources of which these say something else.
    pub fn changed<'a>(&'a self, others: &'a Sources) -> impl Iterator<Item = &'static str> + 'a {
        let (own, other) = (self.options(), others.options());
        SOURCES.iter().map(|spec| spec.name).filter(move |name| {
            own.choices.get(name) != other.choices.get(name)
                || *name == "ipmi" && own.ipmi_command != other.ipmi_command
                || *name == "redfish" && own.redfish != other.redfish
        })
    }
}

/// What only one source needs.
struct Extra {
    source: &'static str,
    key: &'static str,
    /// As it would be written; empty where there is none.
    default: &'static str,
    help: &'static str,
    set: fn(&mut Sources, &str) -> Result<(), String>,
}

static EXTRAS: &[Extra] = &[
    Extra {
        source: "ipmi",
        key: "command",
        default: "",
        help: "a program that prints the power of the node, with its arguments, instead of the IPMI device: `ipmi-dcmi --get-system-power-statistics`, `ipmitool dcmi power reading`, a script; run without a shell",
        set: |sources, text| {
            sources.ipmi_command = text.split_whitespace().map(str::to_owned).collect();
            if sources.ipmi_command.is_empty() { Err("a program is needed".to_owned()) } else { Ok(()) }
        },
    },
    Extra {
        source: "redfish",
        key: "url",
        default: "",
        help: "the controller of the chassis, as in `https://bmc.example.org`",
        set: |sources, text| {
            sources.redfish_url = Some(text.to_owned());
            Ok(())
        },
    },
    Extra {
        source: "redfish",
        key: "credentials",
        default: "",
        help: "a file of one line, `user:password`, that only its owner may read",
        set: |sources, text| path(text).map(|path| sources.redfish_credentials = Some(path)),
    },
    Extra {
        source: "redfish",
        key: "certificate",
        default: "",
        help: "CA certificate (PEM) for the controller",
        set: |sources, text| path(text).map(|path| sources.redfish_certificate = Some(path)),
    },
    Extra {
        source: "redfish",
        key: "chassis",
        default: "",
        help: "the chassis that is this machine, by its name in the controller's list; `all`: all of them together. Without it, the first one with a meter; `met doctor` shows which",
        set: |sources, text| {
            sources.redfish_chassis = match text {
                "" => return Err("the name of a chassis, or all".to_owned()),
                "all" => ChassisChoice::Sum,
                name => ChassisChoice::Named(name.to_owned()),
            };
            Ok(())
        },
    },
    Extra {
        source: "redfish",
        key: "verify",
        default: "yes",
        help: "`no`: accept any certificate; the password can be intercepted",
        set: |sources, text| {
            sources.redfish_verify = match text {
                "yes" | "true" => true,
                "no" | "false" => false,
                _ => return Err(format!("{text:?} is not yes or no")),
            };
            Ok(())
        },
    },
];

fn path(text: &str) -> Result<PathBuf, String> {
    match text.starts_with('/') {
        true => Ok(PathBuf::from(text)),
        false => Err(format!("{text:?} is not an absolute path; begin it with /")),
    }
}

/// Without these no job can be measured.
const NEEDED: [&str; 2] = ["cgroup", "process"];
const PERIOD_MIN: Duration = Duration::from_millis(100);
const PERIOD_MAX: Duration = Duration::from_secs(3600);

pub fn apply(section: &Entry, sources: &mut Sources) -> Result<(), Complaint> {
    let entries = match &section.value {
        Node::Null => return Ok(()),
        Node::Map(entries) => entries,
        Node::List(_) | Node::Scalar(_) => {
            let message =
                "sources: a section, not a value; write for example \"sources: {rapl: off}\"".to_owned();
            return Err(Complaint { line: section.value_line, message });
        }
    };
    refuse_duplicates(entries, "sources.")?;
    for entry in entries {
        let names: Vec<&str> = SOURCES.iter().map(|spec| spec.name).collect();
        let spec = SOURCES.iter().find(|spec| spec.name == entry.key);
        let spec = spec.ok_or_else(|| unknown(entry, "sources.", &names))?;
        apply_source(spec, entry, sources)?;
    }
    if sources.redfish_url.is_some() && sources.redfish_credentials.is_none() {
        let message = "sources.redfish.url needs sources.redfish.credentials".to_owned();
        return Err(Complaint { line: section.value_line, message });
    }
    Ok(())
}

fn apply_source(spec: &'static SourceSpec, entry: &Entry, sources: &mut Sources) -> Result<(), Complaint> {
    let prefix = format!("sources.{}", spec.name);
    let complain = |line: u64, key: &str, message: String| Complaint {
        line,
        message: format!("{prefix}{}{key}: {message}", if key.is_empty() { "" } else { "." }),
    };
    match &entry.value {
        Node::Scalar(text) if text == "auto" => Ok(()),
        // YAML 1.1 reads a plain `off` as false.
        Node::Scalar(text) if matches!(text.as_str(), "off" | "no" | "false") => {
            if NEEDED.contains(&spec.name) {
                let message = "no job can be measured without it".to_owned();
                return Err(complain(entry.value_line, "", message));
            }
            sources.choices.entry(spec.name).or_default().off = true;
            Ok(())
        }
        Node::Map(entries) => {
            refuse_duplicates(entries, &format!("{prefix}."))?;
            entries.iter().try_for_each(|entry| {
                let Node::Scalar(text) = &entry.value else {
                    return Err(complain(entry.value_line, &entry.key, "one value is needed".to_owned()));
                };
                set_key(spec, &entry.key, text, sources)
                    .ok_or_else(|| unknown(entry, &format!("{prefix}."), &keys_of(spec)))?
                    .map_err(|message| complain(entry.value_line, &entry.key, message))
            })
        }
        Node::Scalar(_) | Node::List(_) | Node::Null => {
            let message = format!("write auto, off, or a section of {}", keys_of(spec).join(", "));
            Err(complain(entry.value_line, "", message))
        }
    }
}

fn keys_of(spec: &SourceSpec) -> Vec<&'static str> {
    let extras = EXTRAS.iter().filter(|extra| extra.source == spec.name).map(|extra| extra.key);
    std::iter::once("every").chain(extras).collect()
}

/// `None`: there is no such key.
fn set_key(spec: &SourceSpec, key: &str, text: &str, sources: &mut Sources) -> Option<Result<(), String>> {
    if key == "every" {
        return Some(period(spec, text).map(|period| {
            sources.choices.entry(spec.name).or_default().period = Some(period);
        }));
    }
    let extra = EXTRAS.iter().find(|extra| extra.source == spec.name && extra.key == key)?;
    Some((extra.set)(sources, text))
}

fn period(spec: &SourceSpec, text: &str) -> Result<Duration, String> {
    if spec.pace == Pace::Tick {
        return Err("this source is read with every sample; set sampling.interval".to_owned());
    }
    let period = units::parse_duration(text).map_err(|error| error.to_string())?;
    match (PERIOD_MIN..=PERIOD_MAX).contains(&period) {
        true => Ok(period),
        false => Err(format!("{text:?} is not between 100ms and 1h")),
    }
}

/// This section of docs/config.md.
pub fn reference() -> String {
    let mut text = String::from(
        "\n## `sources`\n\nWhat is read from the machine. Each source is detected automatically (`auto`), \
         can be switched `off`, or can be given\na period: `sources: {thermal: off, rapl: {every: 10s}}`. \
         A reading that is older than its period is \
         marked, and\none older than two periods is not shown. `met doctor` shows what each of them found, \
         `met doctor --cost` what it\ncosts.\n\n| key | what | default | meaning |\n| --- | --- | --- | --- \
         |\n",
    );
    for spec in SOURCES.iter().filter(|spec| !NEEDED.contains(&spec.name)) {
        text.push_str(&format!("| `sources.{}` | `auto` or `off` | `auto` | {} |\n", spec.name, spec.help));
        if let Some(period) = spec.pace.period() {
            let (name, period) = (spec.name, units::duration(period.as_secs_f64()));
            text.push_str(&format!(
                "| `sources.{name}.every` | interval | `{period}` | time between two readings |\n"
            ));
        }
        for extra in EXTRAS.iter().filter(|extra| extra.source == spec.name) {
            let default = match extra.default {
                "" => "none".to_owned(),
                default => format!("`{default}`"),
            };
            let what = match extra.key {
                "credentials" | "certificate" => "path",
                "verify" => "`yes` or `no`",
                _ => "text",
            };
            let (source, key, help) = (extra.source, extra.key, extra.help);
            text.push_str(&format!("| `sources.{source}.{key}` | {what} | {default} | {help} |\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;
    use super::*;
    use expect_test::{Expect, expect};

    fn parse(yaml: &str) -> Options {
        Config::parse(yaml, Path::new("met.yaml")).unwrap().sources.options()
    }

    fn check_error(yaml: &str, expected: Expect) {
        let error = Config::parse(yaml, Path::new("met.yaml")).unwrap_err();
        expected.assert_eq(&error.to_string());
    }

    #[test]
    fn sources_are_switched_off_and_slowed_down() {
        let options = parse("sources:\n  thermal: off\n  nfs: \"off\"\n  rapl: auto\n  numa: {every: 30s}\n");
        assert!(options.choices["thermal"].off && options.choices["nfs"].off);
        assert!(!options.choices.contains_key("rapl"));
        assert_eq!(options.choices["numa"], Choice { off: false, period: Some(Duration::from_secs(30)) });
    }

    #[test]
    fn programs_and_controllers_are_read() {
        let options = parse(
            "sources:\n  ipmi: {command: ipmitool dcmi power reading, every: 20s}\n  redfish:\n    url: https://bmc\n    credentials: /etc/met/bmc\n    verify: false\n    chassis: Blade2\n",
        );
        assert_eq!(options.ipmi_command, ["ipmitool", "dcmi", "power", "reading"]);
        let redfish = options.redfish.unwrap();
        assert_eq!((redfish.url.as_str(), redfish.verify), ("https://bmc", false));
        assert_eq!(redfish.credentials, Path::new("/etc/met/bmc"));
        assert_eq!(redfish.chassis, ChassisChoice::Named("Blade2".into()));
    }

    #[test]
    fn what_is_no_source_or_no_key_is_reported() {
        check_error(
            "sources:\n  thermals: off\n",
            expect![[r#"met.yaml:2: unknown key "sources.thermals"; did you mean "sources.thermal"?"#]],
        );
        check_error(
            "sources:\n  rapl: {evry: 1s}\n",
            expect![[r#"met.yaml:2: unknown key "sources.rapl.evry"; did you mean "sources.rapl.every"?"#]],
        );
        check_error(
            "sources:\n  rapl: maybe\n",
            expect!["met.yaml:2: sources.rapl: write auto, off, or a section of every"],
        );
        check_error(
            "sources:\n  cgroup: off\n",
            expect!["met.yaml:2: sources.cgroup: no job can be measured without it"],
        );
        check_error(
            "sources:\n  drm: {every: 5s}\n",
            expect![
                "met.yaml:2: sources.drm.every: this source is read with every sample; set \
                sampling.interval"
            ],
        );
        check_error(
            "sources:\n  rapl: {every: 1ms}\n",
            expect![[r#"met.yaml:2: sources.rapl.every: "1ms" is not between 100ms and 1h"#]],
        );
        check_error(
            "sources:\n  redfish: {url: 'https://bmc'}\n",
            expect!["met.yaml:2: sources.redfish.url needs sources.redfish.credentials"],
        );
        check_error(
            "sources: off\n",
            expect![[
                r#"met.yaml:1: sources: a section, not a value; write for example "sources: {rapl: off}""#
            ]],
        );
    }
}
