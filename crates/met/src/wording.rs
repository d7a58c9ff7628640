//! What the parser says about a wrong command line, in one line, and what people mean by words that are no commands.

use std::ffi::OsString;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use met_config::mistyped::{is_mistyped, meant, meant_after};

use crate::cli::Cli;

/// What the parser says in several lines, and where to read on.
pub fn one_line(mut error: Error, arguments: &[OsString]) -> String {
    // A value that is wrong comes without the usage.
    let usage = error.remove(ContextKind::Usage).map(|usage| usage.to_string());
    let usage = usage.as_deref().and_then(|usage| usage.strip_prefix("Usage: ")).map(str::to_owned);
    let usage = usage.unwrap_or_else(|| command_in(arguments));
    let words = usage.split(' ').take_while(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()));
    let command = words.collect::<Vec<_>>().join(" ");
    if error.kind() == ErrorKind::MissingRequiredArgument {
        if command == "met mark" {
            return "nothing to mark; as in: met mark step=100, or: met mark --regex 'step (?P<step>[0-9]+)' -- CMD".into();
        }
        if strings(&error, ContextKind::InvalidArg).iter().any(|missing| missing.starts_with("<CMD>")) {
            return format!("no command given; put it after --, as in: {command} -- python train.py");
        }
    }
    let typed = typed(&error);
    if is_unknown(&error) {
        if let Some(meant) = meant_after(&command, &typed) {
            return meant;
        }
        let digits = typed.strip_prefix('-').unwrap_or_default();
        if digits.starts_with(|c: char| c.is_ascii_digit()) {
            return format!(
                "{typed} is neither an option nor a job; jobs are numbered from 1; see {command} --help"
            );
        }
    }
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(meant) = meant(&typed)
    {
        return meant;
    }
    remove_misleading(&mut error, &typed);
    format!("{}; see {command} --help", message(&error))
}

/// The message and the tips in one line. The last paragraph names the help, which is added with the command.
fn message(error: &Error) -> String {
    let text = error.render().to_string();
    let text = text.trim_end().rsplit_once("\n\n").map_or(text.as_str(), |(said, _)| said);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let said = lines.map(|line| match line.strip_prefix("tip: ") {
        Some(tip) => format!("; {tip}"),
        None => format!(" {}", line.strip_prefix("error: ").unwrap_or(line)),
    });
    said.collect::<String>().trim_start().to_owned()
}

/// The word that was not understood.
fn typed(error: &Error) -> String {
    let kinds = [ContextKind::InvalidSubcommand, ContextKind::InvalidValue, ContextKind::InvalidArg];
    let word = kinds.into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(word)) if !word.is_empty() => Some(word.clone()),
        _ => None,
    });
    word.unwrap_or_default()
}

fn strings(error: &Error, kind: ContextKind) -> &[String] {
    match error.get(kind) {
        Some(ContextValue::Strings(words)) => words,
        Some(ContextValue::String(word)) => std::slice::from_ref(word),
        _ => &[],
    }
}

/// Whether there is no such command, option or further argument.
fn is_unknown(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand | ErrorKind::TooManyValues
    )
}

/// The command of a command line that could not be parsed.
fn command_in(arguments: &[OsString]) -> String {
    let (mut grammar, mut words) = (<Cli as clap::CommandFactory>::command(), "met".to_owned());
    for word in arguments.iter().skip(1) {
        if let Some(found) = grammar.find_subcommand(word).cloned() {
            words += &format!(" {}", found.get_name());
            grammar = found;
        }
    }
    words
}

/// Removes tips. Few users want an option as a value: after a typing error they need the list of options. What the
/// parser calls similar may be another word: --verbose does not mean the version, nor --force the --grace.
fn remove_misleading(error: &mut Error, typed: &str) {
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue] {
        let similar = strings(error, kind);
        let is_version = kind == ContextKind::SuggestedArg && similar == ["--version"];
        if is_version || !similar.iter().any(|word| is_mistyped(typed, word)) {
            error.remove(kind);
        }
    }
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        let as_value = format!("-- {typed}");
        tips.retain(|tip| !(typed.starts_with('-') && tip.to_string().contains(&as_value)));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[&str]) -> String {
        let arguments: Vec<std::ffi::OsString> = [&["met"], words].concat().iter().map(Into::into).collect();
        super::one_line(Cli::of(&arguments).unwrap_err(), &arguments)
    }

    #[test]
    fn a_wrong_value_says_what_is_right_and_where_to_read_on() {
        assert_eq!(
            said(&["gpus", "--free", "0"]),
            "invalid value '0' for '--free [<N>]': write a whole number from 1 to 1024; see met gpus --help"
        );
        for (words, right) in [
            (&["gpus", "--free", "x"][..], "from 1 to 1024; see met gpus --help"),
            (&["emissions", "set", "abc"], "such as 34.5; see met emissions set --help"),
            (&["emissions", "set", "-5"], "such as 34.5; see met emissions set --help"),
            (
                &["emissions", "set", "1e300", "--since", "today"],
                "such as 34.5; see met emissions set --help",
            ),
            (&["list", "--limit", "0"], "such as 100; see met list --help"),
            (
                &["list", "--limit", "99999999999999999999999"],
                "at most 18446744073709551615, such as 100; see met list --help",
            ),
            (&["gpus", "--free", "-1"], "from 1 to 1024; see met gpus --help"),
            (&["scale", "1", "--at", "-4"], "from 1 to 10000000; see met scale --help"),
            (&["scale", "1", "--sizes", "-4"], "from 1 to 10000000; see met scale --help"),
            (&["scale", "1", "--target", "-5m"], "write 1s, 500ms or 2m; see met scale --help"),
            (&["show", "-1"], "jobs are numbered from 1; see met show --help"),
            (&["attach", "abc"], "see met attach --help"),
            (&["-c", "x", "list", "foo"], "see met list --help"),
        ] {
            assert!(said(words).ends_with(right), "{}", said(words));
        }
    }

    #[test]
    fn words_that_people_type_point_to_the_command() {
        assert_eq!(said(&["kill", "3"]), "there is no command \"kill\"; use met cancel JOB");
        for (word, command) in [
            ("status", "met daemon --status"),
            ("log", "met logs JOB"),
            ("top", "met list --watch"),
            ("jobs", "met list"),
        ] {
            assert!(said(&[word]).contains(command), "{}", said(&[word]));
        }
    }

    #[test]
    fn words_after_a_command_point_to_its_options() {
        assert_eq!(said(&["daemon", "status"]), "met daemon has no \"status\"; use met daemon --status");
        assert_eq!(said(&["daemon", "stop"]), "met daemon has no \"stop\"; use met daemon --stop");
        let of_server =
            "met server has no \"status\"; use met --server URL nodes; met server has enroll and expel";
        assert_eq!(said(&["server", "status"]), of_server);
        assert!(said(&["configure", "--events", "x"]).ends_with("use met configure --perf EVENTS"));
        assert!(said(&["list", "--format", "json"]).ends_with("use met list --json or met list --csv"));
        for (command, words, advice) in met_config::mistyped::MEANT_AFTER {
            for word in *words {
                let typed: Vec<&str> = command.split(' ').skip(1).chain([*word]).collect();
                assert!(said(&typed).ends_with(advice), "{}", said(&typed));
            }
            let options = advice.split([' ', ',', ';']).filter(|word| word.starts_with("--"));
            for option in options.filter(|option| *option != "--server") {
                let grammar = <Cli as clap::CommandFactory>::command();
                let of = grammar.find_subcommand(command.split(' ').nth(1).unwrap()).unwrap();
                assert!(of.get_arguments().any(|one| one.get_long() == Some(&option[2..])), "{option}");
            }
        }
    }

    #[test]
    fn every_command_that_is_pointed_to_exists() {
        for (words, advice) in met_config::mistyped::MEANT {
            let names = advice.split("met ").skip(1).filter_map(|rest| rest.split([' ', ',']).next());
            for name in names.filter(|name| !name.starts_with('-')) {
                let found = <Cli as clap::CommandFactory>::command().find_subcommand(name).is_some();
                assert!(found, "{words:?}: met {name}");
            }
            for word in *words {
                let found = <Cli as clap::CommandFactory>::command().find_subcommand(word).is_some();
                assert!(!found, "{word} is a command");
            }
        }
    }

    #[test]
    fn a_tip_that_misleads_is_left_out_and_others_stay() {
        for words in
            [&["configure", "--resett"][..], &["list", "--srot", "x"], &["docter"], &["list", "--jsno"]]
        {
            assert!(said(words).contains("similar"), "{}", said(words));
        }
        assert_eq!(
            said(&["rm", "--recurse", "1"]),
            "unexpected argument '--recurse' found; see met rm --help"
        );
        assert_eq!(said(&["monitor"]), "unrecognized subcommand 'monitor'; see met --help");
        assert_eq!(said(&["show", "--logs"]), "unexpected argument '--logs' found; see met show --help");
        assert_eq!(said(&["run", "--foo", "ls"]), "unexpected argument '--foo' found; see met run --help");
        assert_eq!(
            said(&["list", "--stat", "x"]),
            "unexpected argument '--stat' found; a similar argument exists: '--state'; see met list --help"
        );
        assert_eq!(
            said(&["shwo"]),
            "unrecognized subcommand 'shwo'; some similar subcommands exist: 'who', 'show'; see met --help"
        );
    }
}
