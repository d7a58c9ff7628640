//! `met config`: every configuration key with its default, or with its value in force.

use std::io::Write;

use anyhow::Result;
use met_config::Config;
use met_config::{Current, current};
use met_query::protocol::{ConfigFile, InForce};
use met_query::setting::Setting;

use crate::cli::ConfigArgs;
use crate::commands::configure;
use crate::output;
use crate::view::{Style, manual, text};

pub fn config(setting: impl FnOnce() -> Result<Setting>, args: &ConfigArgs) -> Result<i32> {
    let mut stdout = output::stdout();
    let text = match args.current {
        true => in_force(&setting()?, args.user, &stdout.style()),
        false => {
            let reference = Config::reference();
            // A file gets Markdown, which is what docs/config.md is.
            if stdout.is_terminal() { manual::page(&reference, &stdout.style()) } else { reference }
        }
    };
    stdout.write_all(text.as_bytes())?;
    Ok(0)
}

/// What a running daemon follows, or what the next one would.
fn in_force(setting: &Setting, own: bool, style: &Style) -> String {
    let held = setting.in_force(own);
    if let Some(held) = &held {
        setting.warn_of_other_file(held);
    }
    let file = match &held {
        Some(InForce { file: Some(file), .. }) => file.clone(),
        // The file of a system daemon is root's to read: what it follows live is known all the same.
        _ => ConfigFile { path: setting.config_path.clone(), text: setting.config_text.clone() },
    };
    let is_known = held.as_ref().is_none_or(|held| held.file.is_some());
    let head = match (&held, is_known) {
        (None, _) => "# no daemon is running; the next one will follow this\n",
        (Some(_), true) => "",
        (Some(_), false) => {
            "# the file of the system daemon is readable by root only; this is what your own commands read\n"
        }
    };
    let held = held.filter(|_| is_known);
    let rows: Vec<[String; 3]> =
        current(&file.text).into_iter().map(|current| row(current, &file, held.as_ref())).collect();
    text::hanging_lines(head, 2, style) + &table(&rows, style)
}

/// Longer values push the rest of their line to the right.
const VALUE_WIDTH_MAX: usize = 24;

/// A line that is too long for the terminal has the value and where it comes from below its name.
fn table(rows: &[[String; 3]], style: &Style) -> String {
    let width = |column: usize| rows.iter().map(|row| text::width(&row[column])).max().unwrap_or(0);
    // Most values are short and default.
    let room = style.width.map(|columns| columns.saturating_sub(width(0) + "    default".len()));
    let widths = [width(0), width(1).min(VALUE_WIDTH_MAX).min(room.unwrap_or(VALUE_WIDTH_MAX))];
    let line = |[name, value, origin]: &[String; 3]| {
        let line = format!("{}  {}  {origin}\n", text::pad(name, widths[0]), text::pad(value, widths[1]));
        let below = [value, origin].map(|words| text::hanging(&format!("    {words}"), 6, style));
        let fits = style.width.is_none_or(|width| text::width(line.trim_end()) <= width);
        if fits { line } else { format!("{name}\n{}", below.concat()) }
    };
    rows.iter().map(line).collect()
}

fn row(Current { name, value, line }: Current, file: &ConfigFile, held: Option<&InForce>) -> [String; 3] {
    let path = file.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let mut origin = line.map_or("default".to_owned(), |line| format!("{path}:{line}"));
    let mut value = if value.is_empty() { "-".to_owned() } else { value };
    if let Some(held) = held {
        let live = match name.as_str() {
            "sampling.interval" => {
                held.intervals.first().map(|held| (configure::interval(held.value), held.origin.clone()))
            }
            "perf.events" => held.events.first().map(|held| (held.value.join(","), held.origin.clone())),
            _ => None,
        };
        if let Some((live, source)) = live.filter(|(_, source)| source.is_temporary()) {
            (value, origin) = (live, source.to_string());
        }
        let is_later = |later: &String| name == *later || name.starts_with(&format!("{later}."));
        if held.after_restart.iter().any(is_later) {
            origin += ", after a restart of the daemon";
        }
    }
    [name, value, origin]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use met_query::protocol::{Held, ValueOrigin};

    use super::*;

    #[test]
    fn a_line_that_is_too_long_goes_on_below_its_name() {
        let ladder = "1s, 10s after 5m, 30s after 1h, 1m after 1d";
        let rows = [["daemon.idle_exit", "10m", "default"], ["sampling.ladder", ladder, "default"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        let at = |width: usize| table(&rows, &Style { width: Some(width), ..Style::plain() });
        assert_eq!(at(60).lines().next(), Some("daemon.idle_exit  10m                       default"));
        assert_eq!(at(36).lines().next(), Some("daemon.idle_exit  10m        default"));
        let below = "sampling.ladder\n    1s, 10s after 5m, 30s\n      after 1h, 1m after 1d\n    default\n";
        assert!(at(32).ends_with(below), "{}", at(32));
        assert_eq!(at(200), table(&rows, &Style::plain()));
    }

    #[test]
    fn a_value_says_whether_it_is_temporary_or_of_a_later_daemon() {
        let file = ConfigFile { path: Some("/etc/met/met.yaml".into()), text: String::new() };
        let held = InForce {
            ladder: None,
            intervals: vec![Held { value: Duration::from_millis(250), origin: ValueOrigin::Live }],
            events: vec![Held { value: Vec::new(), origin: ValueOrigin::Default }],
            events_in_jobs: Vec::new(),
            note: None,
            file: Some(file.clone()),
            after_restart: vec!["http".to_owned()],
            factor: None,
            http_refused: None,
            file_refused: None,
        };
        let row = |name: &str, value: &str, line: Option<u64>| {
            let current = Current { name: name.to_owned(), value: value.to_owned(), line };
            super::row(current, &file, Some(&held)).join(" | ")
        };
        assert_eq!(
            row("sampling.interval", "5s", Some(2)),
            "sampling.interval | 250ms | temporary until the daemon ends"
        );
        assert_eq!(row("perf.events", "", None), "perf.events | - | default");
        assert_eq!(
            row("http.listen", "*:9317", Some(7)),
            "http.listen | *:9317 | /etc/met/met.yaml:7, after a restart of the daemon"
        );
        assert_eq!(row("storage.keep", "90d", Some(4)), "storage.keep | 90d | /etc/met/met.yaml:4");
    }
}
