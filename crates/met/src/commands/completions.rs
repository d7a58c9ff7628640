//! `met completions`, and what its scripts ask while a person types.

use std::ffi::OsString;
use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Result;
use clap::CommandFactory;
use clap::builder::PossibleValuesParser;
use clap_complete::Shell;
use met_core::job::{LOCAL, Record, State};
use met_core::managers;

use crate::cli::{Cli, CompletionsArgs};
use crate::output;
use met_query::jobs::{AllJobs, Answers, JobsFilter, PageAsk};
use met_query::protocol::{Reply, Request};
use met_query::setting::Setting;

/// The hidden first argument of what the scripts call: `met __complete jobs`.
pub const COMPLETE: &str = "__complete";

/// A person waits: what takes longer is not completed.
const TIMEOUT: Duration = Duration::from_secs(1);
const JOBS_MAX: usize = 200;

/// Commands that take a job, for shells that need to know.
const OF_JOBS: &str = "show explain scale compare web export ps logs tag note rm ack mute unmute";

/// Those that take one that has not ended.
const OF_LIVE: &str = "wait cancel detach";

pub fn completions(args: &CompletionsArgs) -> Result<i32> {
    // Written by it directly, an error of standard output would be a panic.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut grammar(), "met", &mut script);
    let script = with_jobs_and_nodes(args.shell, String::from_utf8_lossy(&script).into_owned());
    output::stdout().write_all(script.as_bytes())?;
    Ok(0)
}

/// As it is completed: without hidden commands, which shells offer else, and with states as words of a list, although
/// several may be joined by commas.
fn grammar() -> clap::Command {
    let states = || PossibleValuesParser::new(State::ALL.map(State::name));
    let managers = || {
        let known = managers::MANAGERS.iter().map(|manager| manager.name);
        PossibleValuesParser::new([LOCAL].into_iter().chain(known).collect::<Vec<_>>())
    };
    let cli = Cli::command();
    let offered = cli.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let offered =
        clap::Command::new("met").version("0").args(cli.get_arguments().cloned()).subcommands(offered);
    offered.mut_subcommand("list", |list| {
        let list = list.mut_arg("state", |state| state.value_parser(states()));
        list.mut_arg("manager", |manager| manager.value_parser(managers()))
    })
}

/// The generated script completes what is known beforehand. Jobs and nodes are asked for.
fn with_jobs_and_nodes(shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => {
            script
                + &BASH
                    .replace("@JOBS@", &OF_JOBS.replace(' ', "|"))
                    .replace("@LIVE@", &OF_LIVE.replace(' ', "|"))
        }
        // As generated, nothing is offered after `help`, because that was seen.
        Shell::Fish => {
            script.replace(" help\" -f", "\" -f")
                + &FISH.replace("@JOBS@", OF_JOBS).replace("@LIVE@", OF_LIVE)
        }
        Shell::Zsh => {
            // A command of its own is defined in the lines after its name.
            let mut jobs = "_met_jobs";
            let asked = |line: &str| {
                if let Some(command) = line.trim().strip_prefix('(').and_then(|line| line.strip_suffix(')')) {
                    let is_live = OF_LIVE.split(' ').any(|live| live == command);
                    jobs = if is_live { "_met_live" } else { "_met_jobs" };
                }
                if line.trim_start().starts_with("'--job=") {
                    return line.replace(":_default'", ":_met_live'");
                }
                let place = line.trim_start().trim_start_matches(['\'', ':', '*']);
                match place.split(" -- ").next() {
                    Some("job" | "jobs" | "words") => line.replace(":_default'", &format!(":{jobs}'")),
                    Some("node") => line.replace(":_default'", ":_met_nodes'"),
                    _ => line.to_owned(),
                }
            };
            let script = script.lines().map(asked).collect::<Vec<_>>().join("\n");
            script.replacen("#compdef met\n", &format!("#compdef met\n{ZSH}"), 1) + "\n"
        }
        _ => script,
    }
}

const BASH: &str = r#"
_met_asked() {
    _met "$@"
    local cur="${COMP_WORDS[COMP_CWORD]}" word what=""
    [[ "$cur" == -* ]] && return
    case "${COMP_WORDS[COMP_CWORD-1]}" in
        -c|--config|--server|--signal|--grace|--since|--manager|--state) return ;;
        --user) COMPREPLY=($(compgen -u -- "$cur")); return ;;
        --job) what=live ;;
    esac
    [[ -z "$what" ]] &&
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "$word" in
            @JOBS@) what=jobs; break ;;
            @LIVE@) what=live; break ;;
            node) what=nodes; break ;;
            -*) ;;
            *) break ;;
        esac
    done
    [[ -n "$what" ]] && COMPREPLY=($(compgen -W "$(met __complete "$what" 2>/dev/null)" -- "$cur"))
}
complete -F _met_asked -o nosort -o bashdefault -o default met 2>/dev/null || complete -F _met_asked met
"#;

const ZSH: &str = r#"
_met_jobs() {
    local -a found
    found=(${(f)"$(met __complete jobs 2>/dev/null)"})
    compadd -a found
}
_met_live() {
    local -a found
    found=(${(f)"$(met __complete live 2>/dev/null)"})
    compadd -a found
}
_met_nodes() {
    local -a found
    found=(${(f)"$(met __complete nodes 2>/dev/null)"})
    compadd -a found
}
"#;

const FISH: &str = r#"
complete -c met -n "__fish_seen_subcommand_from @JOBS@" -f -a "(met __complete jobs 2>/dev/null)"
complete -c met -n "__fish_seen_subcommand_from @LIVE@" -f -a "(met __complete live 2>/dev/null)"
complete -c met -n "__fish_seen_subcommand_from configure" -l job -r -f -a "(met __complete live 2>/dev/null)"
complete -c met -n "__fish_seen_subcommand_from node" -f -a "(met __complete nodes 2>/dev/null)"
"#;

/// Prints one word per line, within a second or not at all. No failure is said: a person types.
pub fn complete(arguments: &[OsString]) {
    let what = arguments.first().and_then(|what| what.to_str()).unwrap_or_default().to_owned();
    let (sender, found) = mpsc::channel();
    // A thread that does not answer is left behind: the process ends.
    std::thread::spawn(move || sender.send(words(&what).unwrap_or_default()));
    let words = found.recv_timeout(TIMEOUT).unwrap_or_default();
    let lines: String = words.iter().filter(|word| is_plain(word)).map(|word| format!("{word}\n")).collect();
    let _ = output::stdout().write_all(lines.as_bytes());
}

/// A shell expands what it is given to complete: other people's names must not be commands.
fn is_plain(word: &str) -> bool {
    let is_harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:@+-/".contains(&byte);
    !word.is_empty() && !word.starts_with('-') && word.bytes().all(is_harmless)
}

fn words(what: &str) -> Result<Vec<String>> {
    let setting = Setting::find(None)?;
    match what {
        "jobs" | "live" => {
            let live = State::ALL.into_iter().filter(|state| what == "live" && state.is_live());
            let filter = JobsFilter {
                states: live.collect(),
                page: PageAsk::first(JOBS_MAX),
                ..JobsFilter::default()
            };
            Ok(references(&AllJobs::open(&setting)?.jobs(&filter)?))
        }
        "nodes" => {
            let server = std::env::var("MET_SERVER").ok().filter(|url| !url.is_empty());
            let Some(mut server) = setting.with_server(server).server_client()? else {
                return Ok(Vec::new());
            };
            let Reply::Nodes(nodes) = server.call(&Request::Nodes)? else { return Ok(Vec::new()) };
            Ok(nodes.into_iter().map(|node| node.name).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// What can be typed for these jobs. A number that several of them have would be refused.
fn references(jobs: &[Record]) -> Vec<String> {
    let labels: Vec<String> = jobs.iter().map(Record::label).collect();
    let count = |label: &String| labels.iter().filter(|other| *other == label).count();
    let typed = |(job, label): (&Record, &String)| match &job.user {
        Some(user) if count(label) > 1 => format!("{user}/{label}"),
        _ => label.clone(),
    };
    let mut names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
    names.sort();
    names.dedup();
    let last = (!jobs.is_empty()).then(|| "@last".to_owned());
    jobs.iter().zip(&labels).map(typed).chain(names).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_several_users_have_is_offered_with_the_user() {
        let of = |number, user: &str| Record {
            user: Some(user.to_owned()),
            ..met_core::sample::bare(number, "train")
        };
        let jobs = [of(7, "alice"), of(7, "bob"), of(8, "bob")];
        assert_eq!(references(&jobs), ["alice/7", "bob/7", "8", "train", "@last"]);
        assert_eq!(references(&[]), Vec::<String>::new());
        assert!(is_plain("alice/7"));
    }

    #[test]
    fn a_name_cannot_be_a_command_of_the_shell() {
        for word in ["$(id)", "`id`", "a b", "a;b", "", "-rf", "a'b", "é"] {
            assert!(!is_plain(word), "{word}");
        }
        assert!(["12", "slurm:1234_7", "12@n1", "train-2.1", "@last"].iter().all(|word| is_plain(word)));
    }

    #[test]
    fn scripts_complete_states_and_ask_for_jobs_and_nodes() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut grammar(), "met", &mut script);
            let script = with_jobs_and_nodes(shell, String::from_utf8(script).unwrap());
            assert!(script.contains("out_of_memory"), "{shell}: {script}");
            assert!(!script.contains("notify-ended"), "{shell}: a hidden command is offered");
            assert!(script.contains("--verbose") || script.contains("-l verbose"), "{shell}: {script}");
            assert!(script.contains("--version") || script.contains("-l version"), "{shell}: {script}");
            for asked in ["met __complete jobs", "met __complete live", "met __complete nodes"] {
                let is_there = script.contains(asked) || script.contains("met __complete \"$what\"");
                assert!(is_there, "{shell}: {script}");
            }
            if shell == Shell::Zsh {
                assert!(script.contains(":_met_jobs'") && script.contains(":_met_nodes'"), "{script}");
                let of_cancel = script.split("\n(cancel)\n").nth(1).unwrap();
                let of_cancel = of_cancel.split("\n;;").next().unwrap();
                assert!(
                    of_cancel.contains(":_met_live'") && !of_cancel.contains(":_met_jobs'"),
                    "{of_cancel}"
                );
            }
        }
    }

    #[test]
    fn the_commands_that_take_a_job_are_named() {
        let takes_job = |command: &&clap::Command| {
            let names = ["job", "jobs", "words"];
            command.get_positionals().any(|argument| names.contains(&argument.get_id().as_str()))
        };
        let cli = Cli::command();
        let mut taking: Vec<&str> =
            cli.get_subcommands().filter(takes_job).map(|command| command.get_name()).collect();
        let mut named: Vec<&str> = OF_JOBS.split(' ').chain(OF_LIVE.split(' ')).collect();
        taking.sort_unstable();
        named.sort_unstable();
        assert_eq!(taking, named);
    }
}
