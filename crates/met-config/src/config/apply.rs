//! Puts what a file says where it belongs, or complains.

use super::form::{Form, addresses, events, interval, layouts, power_mw, texts};
use super::keys::{Key, SAMPLING_INTERVAL, SECTIONS, SINKS, SOURCES, SYSTEMS, Section};
use super::tree::{Complaint, Entry, Node, refuse_duplicates, unknown};
use super::{Config, sinks, sources, systems};
use met_core::units::{self, ParseError};

/// Puts everything in the file into `config`, or complains about the first thing that cannot be.
pub fn apply(root: &Node, config: &mut Config) -> Result<(), Complaint> {
    let entries = match root {
        Node::Null => return Ok(()),
        Node::Map(entries) => entries,
        Node::List(_) | Node::Scalar(_) => {
            let message = "the file has no sections; write for example \"sampling:\"".to_owned();
            return Err(Complaint { line: 1, message });
        }
    };
    refuse_duplicates(entries, "")?;
    for entry in entries {
        if entry.key == SOURCES {
            sources::apply(entry, &mut config.sources)?;
            continue;
        }
        if entry.key == SINKS {
            sinks::apply(entry, &mut config.sinks)?;
            continue;
        }
        if entry.key == SYSTEMS {
            systems::apply(entry, &mut config.systems)?;
            continue;
        }
        let section = SECTIONS.iter().find(|section| section.name == entry.key);
        let section = section.ok_or_else(|| {
            let names = SECTIONS.iter().map(|section| section.name).chain([SOURCES, SINKS, SYSTEMS]);
            unknown(entry, "", &names.collect::<Vec<_>>())
        })?;
        apply_section(section, entry, config)?;
    }
    refuse_contradiction(entries)
}

fn apply_section(section: &Section, entry: &Entry, config: &mut Config) -> Result<(), Complaint> {
    let names: Vec<&str> = section.keys.iter().map(|key| key.name).collect();
    let entries = match &entry.value {
        Node::Null => return Ok(()),
        Node::Map(entries) => entries,
        Node::List(_) | Node::Scalar(_) => {
            let keys = names.join(", ");
            let message = format!("{}: a section, not a value; its keys are {keys}", section.name);
            return Err(Complaint { line: entry.value_line, message });
        }
    };
    let prefix = format!("{}.", section.name);
    refuse_duplicates(entries, &prefix)?;
    for entry in entries {
        let key = section.keys.iter().find(|key| key.name == entry.key);
        let key = key.ok_or_else(|| unknown(entry, &prefix, &names))?;
        let complain = |message: String| Complaint {
            line: entry.value_line,
            message: format!("{prefix}{}: {message}", key.name),
        };
        if let (Form::Layouts(set), Node::List(items)) = (&key.form, &entry.value) {
            let read = layouts(items).map_err(|Complaint { line, message }| Complaint {
                line,
                message: format!("{prefix}{}: {message}", key.name),
            })?;
            set(config, read);
            continue;
        }
        if let (Form::Events(set), Node::List(items)) = (&key.form, &entry.value)
            && let Some(names) = texts(items)
        {
            set(config, events(names.into_iter()).map_err(|error| complain(error.to_string()))?);
            continue;
        }
        if let (Form::Addresses(set), Node::List(items)) = (&key.form, &entry.value)
            && let Some(texts) = texts(items)
        {
            set(config, addresses(texts.into_iter()).map_err(|error| complain(error.to_string()))?);
            continue;
        }
        if let (Form::Ladder(_) | Form::Texts(_), Node::List(items)) = (&key.form, &entry.value)
            && let Some(steps) = texts(items)
        {
            key.form.apply(&steps.join(","), config).map_err(|error| complain(error.to_string()))?;
            continue;
        }
        let text = match &entry.value {
            Node::Map(managers) if matches!(key.form, Form::Managers(_)) => {
                apply_managers(&prefix, key, managers, config)?;
                continue;
            }
            Node::Map(gpus) if matches!(key.form, Form::Power(_)) => {
                apply_powers(&prefix, key, gpus, config)?;
                continue;
            }
            Node::Scalar(text) => text,
            Node::Null => return Err(complain(format!("no value; write {}", example(key)))),
            Node::Map(_) | Node::List(_) => {
                return Err(complain(format!("one value is needed; write {}", example(key))));
            }
        };
        let advice = |error: ParseError| in_the_unit_of(key, text).unwrap_or_else(|| error.to_string());
        key.form.apply(text, config).map_err(|error| complain(advice(error)))?;
    }
    Ok(())
}

/// The name that means all others.
const ALL_OTHERS: &str = "default";

fn apply_powers(prefix: &str, key: &Key, gpus: &[Entry], config: &mut Config) -> Result<(), Complaint> {
    let Form::Power(set) = key.form else { return Ok(()) };
    refuse_duplicates(gpus, &format!("{prefix}{}.", key.name))?;
    for gpu in gpus {
        let complain = |message: String| Complaint {
            line: gpu.value_line,
            message: format!("{prefix}{}: {message}", key.name),
        };
        let Node::Scalar(text) = &gpu.value else {
            return Err(complain(format!("{:?} has no value in watts; write {}", gpu.key, example(key))));
        };
        let power_mw = power_mw(text).map_err(|error| complain(error.to_string()))?;
        set(config, Some(gpu.key.as_str()).filter(|name| *name != ALL_OTHERS), power_mw);
    }
    Ok(())
}

fn apply_managers(prefix: &str, key: &Key, managers: &[Entry], config: &mut Config) -> Result<(), Complaint> {
    let Form::Managers(set) = key.form else { return Ok(()) };
    refuse_duplicates(managers, &format!("{prefix}{}.", key.name))?;
    for manager in managers {
        let complain = |message: String| Complaint {
            line: manager.value_line,
            message: format!("{prefix}{}: {message}", key.name),
        };
        let Node::Scalar(text) = &manager.value else {
            return Err(complain(format!("{:?} has no interval; write {}", manager.key, example(key))));
        };
        let interval = interval(text).map_err(|error| complain(error.to_string()))?;
        set(config, manager.key.clone(), interval);
    }
    Ok(())
}

fn example(key: &Key) -> &'static str {
    match key.form {
        _ if !key.default.is_empty() => key.default,
        Form::Interval(_) | Form::Duration(_) => "1s",
        Form::Count(_) => "100",
        Form::Size(_) => "2GiB",
        Form::Number(_) | Form::Ratio(_) => "1.5",
        Form::Power(_) => "75W",
        Form::Events(_) => "page_faults",
        Form::Texts(_) => "[a, b]",
        Form::Addresses(_) => "127.0.0.1:9317",
        Form::Ladder(_) => "[1s, 10s after 5m]",
        Form::Managers(_) => "{slurm: 1s}",
        Form::Text(_) | Form::Path(_) => "a name",
        Form::Address(..) | Form::Metrics(_) => "an address",
        Form::Storage(_)
        | Form::Word(..)
        | Form::Presence(_)
        | Form::Scheduler(_)
        | Form::Scope(_)
        | Form::Accounts(_)
        | Form::Plain(_) => "one of its words",
        Form::Layouts(_) => "a list of layouts",
    }
}

fn refuse_contradiction(entries: &[Entry]) -> Result<(), Complaint> {
    let given = SAMPLING_INTERVAL.map(|(section, key)| {
        let section = entries.iter().find(|entry| entry.key == section)?;
        let Node::Map(keys) = &section.value else { return None };
        let entry = keys.iter().find(|entry| entry.key == key)?;
        let Node::Scalar(text) = &entry.value else { return None };
        Some((entry.value_line, units::parse_duration(text).ok()?))
    });
    let [Some(new), Some(old)] = given else { return Ok(()) };
    if new.1 == old.1 {
        return Ok(());
    }
    let line = new.0.max(old.0);
    let other = new.0.min(old.0);
    let message = format!(
        "sampling.interval and cpuCollector.interval are the same setting, and line {other} has another \
         value; keep one"
    );
    Err(Complaint { line, message })
}

/// Who writes how long something is kept without a unit means days, if its default is in days.
fn in_the_unit_of(key: &Key, text: &str) -> Option<String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let unit = key.default.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    let is_long = matches!(key.form, Form::Duration(_)) && matches!(unit, "d" | "h");
    (is_number && is_long).then(|| format!("{text:?} has no unit; write {text}{unit}"))
}
