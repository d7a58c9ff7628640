//! The list `sinks`: where events and samples go, beside the store.

use met_sinks::sink::{Options, SinkOption};
use met_sinks::{Configured, SINKS, SinkSpec};

use super::form::texts;
use super::tree::{Complaint, Entry, Node, refuse_duplicates, unknown};

const EXAMPLE: &str = "write for example \"sinks: [stdout: {format: json}]\"";

pub fn apply(section: &Entry, sinks: &mut Vec<Configured>) -> Result<(), Complaint> {
    let items = match &section.value {
        Node::Null => return Ok(()),
        Node::List(items) => items,
        Node::Map(_) | Node::Scalar(_) => {
            let message = format!("sinks: a list; {EXAMPLE}");
            return Err(Complaint { line: section.value_line, message });
        }
    };
    for (item, line) in items {
        let alone;
        let entries = match item {
            Node::Map(entries) => &entries[..],
            Node::Scalar(name) => {
                alone = [Entry { key: name.clone(), line: *line, value: Node::Null, value_line: *line }];
                &alone[..]
            }
            Node::List(_) | Node::Null => {
                return Err(Complaint { line: *line, message: format!("sinks: no sink; {EXAMPLE}") });
            }
        };
        for entry in entries {
            // Two of one kind would write the same lines to the same place.
            if sinks.iter().any(|sink| sink.spec.name == entry.key) {
                let message = format!("sinks: {} is given twice", entry.key);
                return Err(Complaint { line: entry.line, message });
            }
            sinks.push(sink(entry)?);
        }
    }
    Ok(())
}

fn sink(entry: &Entry) -> Result<Configured, Complaint> {
    let names: Vec<&str> = SINKS.iter().filter(|spec| !spec.has_section).map(|spec| spec.name).collect();
    let spec: &'static SinkSpec =
        SINKS.iter().find(|spec| spec.name == entry.key).ok_or_else(|| unknown(entry, "sinks.", &names))?;
    if spec.has_section {
        let message = format!("sinks.{0}: configure it in the section \"{0}\"", spec.name);
        return Err(Complaint { line: entry.line, message });
    }
    let mut options = Options::default();
    let entries = match &entry.value {
        Node::Null => &[][..],
        Node::Map(entries) => entries,
        Node::List(_) | Node::Scalar(_) => {
            let known = spec.options.iter().map(|option| option.name).collect::<Vec<_>>().join(", ");
            let message = format!("sinks.{}: options are needed, not a value; they are {known}", spec.name);
            return Err(Complaint { line: entry.value_line, message });
        }
    };
    let prefix = format!("sinks.{}.", spec.name);
    refuse_duplicates(entries, &prefix)?;
    for entry in entries {
        let known: Vec<&str> = spec.options.iter().map(|option| option.name).collect();
        let option = spec.options.iter().find(|option| option.name == entry.key);
        let option = option.ok_or_else(|| unknown(entry, &prefix, &known))?;
        let values = values(option, &entry.value).map_err(|message| Complaint {
            line: entry.value_line,
            message: format!("{prefix}{}: {message}", option.name),
        })?;
        options.set(option.name, values);
    }
    Ok(Configured { spec, options })
}

fn values(option: &SinkOption, value: &Node) -> Result<Vec<String>, String> {
    let given: Option<Vec<&str>> = match value {
        Node::Scalar(text) if option.many => Some(text.split(',').map(str::trim).collect()),
        Node::Scalar(text) => Some(vec![text]),
        Node::List(items) if option.many => texts(items),
        _ => None,
    };
    let given = given.ok_or_else(|| format!("write {}", option.values.replace('`', "")))?;
    let tables = met_sources::catalogue();
    // YAML reads a bare yes as true.
    let word = |value: &'_ str| match value {
        "true" if (option.check)(value, &tables).is_err() => "yes".to_owned(),
        "false" if (option.check)(value, &tables).is_err() => "no".to_owned(),
        _ => value.to_owned(),
    };
    let given: Vec<String> = given.into_iter().map(word).collect();
    given.iter().try_for_each(|value| (option.check)(value, &tables))?;
    Ok(given)
}

/// This section of docs/config.md.
pub fn reference() -> String {
    let mut text = String::from(
        "\n## `sinks`\n\nA list of outputs beside the store, for a daemon and for a server alike: `sinks: [stdout: {format: \
         csv}]`. A sink that is\nslow or fails delays nothing: events that find no room in its queue are dropped and counted, \
         which `met doctor` and\n`met daemon --status` show. A user's own daemon ignores this section in `/etc/met/met.yaml`.\n\n\
         | key | what | default | meaning |\n| --- | --- | --- | --- |\n",
    );
    for spec in SINKS.iter().filter(|spec| !spec.has_section) {
        text.push_str(&format!("| `sinks.{}` | options | none | {} |\n", spec.name, spec.help));
        for SinkOption { name, values, default, help, .. } in spec.options {
            let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
            text.push_str(&format!("| `sinks.{}.{name}` | {values} | {default} | {help} |\n", spec.name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use expect_test::{Expect, expect};

    use super::super::Config;
    use super::*;

    fn check_error(yaml: &str, expected: Expect) {
        let error = Config::parse(yaml, Path::new("met.yaml")).unwrap_err();
        expected.assert_eq(&error.to_string());
    }

    #[test]
    fn sinks_and_their_options_are_read() {
        let parse = |yaml: &str| Config::parse(yaml, Path::new("met.yaml")).unwrap().sinks;
        assert!(parse("sampling: {interval: 1s}").is_empty() && parse("sinks:").is_empty());
        let sinks =
            parse("sinks:\n  - stdout: {format: csv, tables: [node, cpufreq], events: 'started, ended'}\n");
        assert_eq!((sinks.len(), sinks[0].spec.name), (1, "stdout"));
        let options = &sinks[0].options;
        assert_eq!(options.word("format"), Some("csv"));
        assert_eq!(options.list("tables").unwrap(), ["node", "cpufreq"]);
        assert_eq!(options.list("events").unwrap(), ["started", "ended"]);
        assert_eq!(parse("sinks: [stdout]")[0].options, Options::default());
        for yes in ["yes", "true", "\"yes\""] {
            let sinks = parse(&format!("sinks:\n  - otlp: {{plain: {yes}, users: no}}\n"));
            assert_eq!(
                (sinks[0].options.word("plain"), sinks[0].options.word("users")),
                (Some("yes"), Some("no"))
            );
        }
        assert_eq!(parse("sinks:\n- stdout:\n"), parse("sinks: [stdout]"));
    }

    #[test]
    fn what_is_no_sink_option_or_value_is_named_with_its_line() {
        check_error(
            "sinks:\n  - stdot: {}\n",
            expect![[r#"met.yaml:2: unknown key "sinks.stdot"; did you mean "sinks.stdout"?"#]],
        );
        let refused = |yaml: &str| Config::parse(yaml, Path::new("met.yaml")).unwrap_err().to_string();
        let names: Vec<&str> = SINKS.iter().filter(|spec| !spec.has_section).map(|spec| spec.name).collect();
        let error =
            format!(r#"met.yaml:2: unknown key "sinks.kafka"; the keys here are {}"#, names.join(", "));
        assert_eq!(refused("sinks:\n  - kafka: {}\n"), error);
        check_error(
            "sinks:\n  - stdout:\n      formt: csv\n",
            expect![[r#"met.yaml:3: unknown key "sinks.stdout.formt"; did you mean "sinks.stdout.format"?"#]],
        );
        check_error(
            "sinks:\n  - stdout:\n      format: xml\n",
            expect![[r#"met.yaml:3: sinks.stdout.format: "xml" is not one of json, csv, colmet"#]],
        );
        check_error(
            "sinks:\n  - stdout:\n      format: [json]\n",
            expect!["met.yaml:3: sinks.stdout.format: write json, csv or colmet"],
        );
        let tables: Vec<&str> = met_sources::catalogue().iter().map(|table| table.name).collect();
        let yaml = "sinks:\n  - stdout:\n      tables: [nodes]\n";
        let error = Config::parse(yaml, Path::new("met.yaml")).unwrap_err().to_string();
        let why = r#"met.yaml:3: sinks.stdout.tables: "nodes" is not one of"#;
        assert_eq!(error, format!("{why} {}", tables.join(", ")));
        check_error(
            "sinks:\n  - stdout: json\n",
            expect![
                "met.yaml:2: sinks.stdout: options are needed, not a value; they are format, events, tables"
            ],
        );
        check_error(
            "sinks:\n  - stdout\n  - stdout: {format: csv}\n",
            expect!["met.yaml:3: sinks: stdout is given twice"],
        );
        check_error(
            "sinks:\n  - forward\n",
            expect![[r#"met.yaml:2: sinks.forward: configure it in the section "forward""#]],
        );
        check_error(
            "sinks: {stdout: {}}\n",
            expect![[r#"met.yaml:1: sinks: a list; write for example "sinks: [stdout: {format: json}]""#]],
        );
        check_error(
            "sinks:\n  -\n",
            expect![[r#"met.yaml:2: sinks: no sink; write for example "sinks: [stdout: {format: json}]""#]],
        );
    }
}
