//! The section `sources`: which of them are read, how often, and what some of them need to know.

use std::collections::HashMap;
use std::time::Duration;

use met_sources::{Choice, Options, Pace, SOURCES, SourceOption, SourceSpec, cgroup, process};

use super::tree::{Complaint, Entry, Node, refuse_duplicates, unknown};
use met_core::units;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    choices: HashMap<&'static str, Choice>,
}

impl Sources {
    /// What the sources need to know of it.
    pub fn options(&self) -> Options {
        Options { choices: self.choices.clone(), ..Options::default() }
    }

    /// Chooses a value for an option of one source.
    pub fn set(&mut self, spec: &SourceSpec, option: &SourceOption, text: &str) -> Result<(), String> {
        let choice = self.choices.entry(spec.name).or_default();
        let set = choice.set(option, text);
        // A default that is written out changes nothing.
        if *choice == Choice::default() {
            self.choices.remove(spec.name);
        }
        set
    }

    /// The sources whose settings differ in these.
    pub fn changed<'a>(&'a self, others: &'a Sources) -> impl Iterator<Item = &'static str> + 'a {
        let names = SOURCES.iter().map(|spec| spec.name);
        names.filter(move |name| self.choices.get(name) != others.choices.get(name))
    }

    /// An option that is set without the one it needs.
    fn unusable(&self) -> Option<String> {
        let options = self.options();
        SOURCES.iter().find_map(|spec| {
            let is_set = |option: &SourceOption| options.value(spec, option).is_some();
            spec.options.iter().filter(|option| is_set(option)).find_map(|option| {
                let needed = spec.options.iter().find(|other| option.needs == Some(other.name))?;
                let (source, name, needed_name) = (spec.name, option.name, needed.name);
                let message = || format!("sources.{source}.{name} needs sources.{source}.{needed_name}");
                (!is_set(needed)).then(message)
            })
        })
    }
}

/// Without these no job can be measured.
const NEEDED: [&str; 2] = [cgroup::SPEC.name, process::SPEC.name];
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
    match sources.unusable() {
        Some(message) => Err(Complaint { line: section.value_line, message }),
        None => Ok(()),
    }
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
    std::iter::once("every").chain(spec.options.iter().map(|option| option.name)).collect()
}

/// `None`: there is no such key.
fn set_key(spec: &SourceSpec, key: &str, text: &str, sources: &mut Sources) -> Option<Result<(), String>> {
    if key == "every" {
        return Some(period(spec, text).map(|period| {
            sources.choices.entry(spec.name).or_default().period = Some(period);
        }));
    }
    let option = spec.options.iter().find(|option| option.name == key)?;
    Some(sources.set(spec, option, text))
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
        for SourceOption { name, values, default, help, .. } in spec.options {
            let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
            text.push_str(&format!("| `sources.{}.{name}` | {values} | {default} | {help} |\n", spec.name));
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
        let slow = &options.choices["numa"];
        assert_eq!((slow.off, slow.period), (false, Some(Duration::from_secs(30))));
    }

    #[test]
    fn programs_and_controllers_are_read() {
        let options = parse(
            "sources:\n  ipmi: {command: ipmitool dcmi power reading, every: 20s}\n  redfish:\n    url: https://bmc\n    credentials: /etc/met/bmc\n    verify: false\n    chassis: Blade2\n",
        );
        let of = |source: &str, option: &str| {
            let spec = SOURCES.iter().find(|spec| spec.name == source).unwrap();
            let option = spec.options.iter().find(|other| other.name == option).unwrap();
            options.value(spec, option).map(str::to_owned)
        };
        assert_eq!(of("ipmi", "command").as_deref(), Some("ipmitool dcmi power reading"));
        assert_eq!(of("redfish", "url").as_deref(), Some("https://bmc"));
        assert_eq!(of("redfish", "verify").as_deref(), Some("no"));
        assert_eq!(of("redfish", "credentials").as_deref(), Some("/etc/met/bmc"));
        assert_eq!(of("redfish", "chassis").as_deref(), Some("Blade2"));
        assert_eq!(of("redfish", "certificate"), None);
    }

    #[test]
    fn a_changed_option_is_a_change_of_its_source_alone() {
        let read = |yaml: &str| Config::parse(yaml, Path::new("met.yaml")).unwrap().sources;
        let changed = |one: &str, other: &str| {
            let (one, other) = (read(one), read(other));
            one.changed(&other).collect::<Vec<_>>()
        };
        let (none, slow) = ("sources: {ipmi: auto}", "sources: {ipmi: {every: 20s}}");
        assert_eq!(changed(none, slow), ["ipmi"]);
        assert_eq!(changed(none, "sources: {ipmi: {command: power}}"), ["ipmi"]);
        assert_eq!(changed(none, "sources: {redfish: {chassis: all}}"), ["redfish"]);
        let default = "sources: {redfish: {verify: true}}";
        assert!(changed(none, default).is_empty() && changed(none, none).is_empty());
    }

    #[test]
    fn every_option_of_a_source_is_documented_and_its_default_parses() {
        let reference = reference();
        for spec in SOURCES {
            for option in spec.options {
                let row = format!("| `sources.{}.{}` | {} |", spec.name, option.name, option.values);
                assert!(reference.contains(&row), "{row}");
                assert!(option.default.is_empty() || (option.check)(option.default).is_ok(), "{row}");
                let known = |needed| spec.options.iter().any(|other| other.name == needed);
                assert!(option.needs.is_none_or(known), "{row}");
            }
        }
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
            "sources:\n  redfish: {credentials: bmc}\n",
            expect![[
                r#"met.yaml:2: sources.redfish.credentials: "bmc" is not an absolute path; begin it with /"#
            ]],
        );
        check_error(
            "sources:\n  redfish: {verify: maybe}\n",
            expect![[r#"met.yaml:2: sources.redfish.verify: "maybe" is not yes or no"#]],
        );
        check_error(
            "sources:\n  ipmi: {command: ''}\n",
            expect!["met.yaml:2: sources.ipmi.command: a program is needed"],
        );
        check_error(
            "sources: off\n",
            expect![[
                r#"met.yaml:1: sources: a section, not a value; write for example "sources: {rapl: off}""#
            ]],
        );
    }
}
