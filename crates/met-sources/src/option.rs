//! Options of single sources: each source declares its own, as the configuration file and its documentation show them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::{Options, SourceSpec};

/// An option of one source: the key `sources.SOURCE.NAME` of the configuration file.
#[derive(Debug)]
pub struct SourceOption {
    pub name: &'static str,
    /// What may be written, for the documentation.
    pub values: &'static str,
    /// As it would be written; empty where there is none.
    pub default: &'static str,
    pub help: &'static str,
    /// Other ways to write a value, each with the one that is kept.
    spellings: &'static [(&'static str, &'static str)],
    /// Another option of this source without which it cannot be used.
    pub needs: Option<&'static str>,
    pub check: fn(&str) -> Result<(), String>,
}

impl SourceOption {
    pub(crate) const fn text(name: &'static str, help: &'static str) -> SourceOption {
        SourceOption {
            name,
            values: "text",
            default: "",
            help,
            spellings: &[],
            needs: None,
            check: |_| Ok(()),
        }
    }

    pub(crate) const fn path(name: &'static str, help: &'static str) -> SourceOption {
        let check = |text: &str| match Path::new(text).is_absolute() {
            true => Ok(()),
            false => Err(format!("{text:?} is not an absolute path; begin it with /")),
        };
        SourceOption { values: "path", check, ..SourceOption::text(name, help) }
    }

    pub(crate) const fn yes_or_no(
        name: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> SourceOption {
        let check = |text: &str| match text {
            "yes" | "true" | "no" | "false" => Ok(()),
            _ => Err(format!("{text:?} is not yes or no")),
        };
        // YAML reads a bare yes as true.
        let spellings = &[("true", "yes"), ("false", "no")];
        let values = "`yes` or `no`";
        SourceOption { values, default, spellings, check, ..SourceOption::text(name, help) }
    }

    pub(crate) const fn checked(self, check: fn(&str) -> Result<(), String>) -> SourceOption {
        SourceOption { check, ..self }
    }

    pub(crate) const fn needs(self, other: &'static str) -> SourceOption {
        SourceOption { needs: Some(other), ..self }
    }
}

/// What a user chose about one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    pub off: bool,
    /// Instead of the source's own period.
    pub period: Option<Duration>,
    /// Its options by name, where they differ from their defaults.
    values: BTreeMap<&'static str, String>,
}

impl Choice {
    pub const OFF: Choice = Choice { off: true, period: None, values: BTreeMap::new() };

    /// Sets an option of the source.
    pub fn set(&mut self, option: &SourceOption, text: &str) -> Result<(), String> {
        (option.check)(text)?;
        let kept = option.spellings.iter().find(|(written, _)| *written == text);
        let text = kept.map_or(text, |(_, kept)| kept);
        match text == option.default {
            true => self.values.remove(option.name),
            false => self.values.insert(option.name, text.to_owned()),
        };
        Ok(())
    }
}

impl Options {
    /// The value of an option of a source: what was chosen, or its default, if it has one.
    pub fn value<'a>(&'a self, spec: &SourceSpec, option: &'a SourceOption) -> Option<&'a str> {
        let chosen = self.choices.get(spec.name).and_then(|choice| choice.values.get(option.name));
        chosen.map(String::as_str).or(Some(option.default)).filter(|text| !text.is_empty())
    }
}
