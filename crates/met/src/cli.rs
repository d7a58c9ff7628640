//! The command line: the one definition of which help, man pages and completions are made.

mod answers;
mod colmet;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use answers::{
    CheckArgs, CompareArgs, ExplainArgs, MarkArgs, MuteArgs, NotifyArgs, ReactArgs, ScaleArgs, UsageArgs,
    When, WhoArgs,
};
pub use colmet::{ColmetCollectorArgs, ColmetNodeArgs};

use crate::view::job_list::View;
use met_agent::emissions::GRAMS_MAX;
use met_core::listing::Sort;

/// What every command has comes after its own.
const GLOBAL: &str = "Global options";

#[derive(Debug, Parser)]
#[command(
    name = "met",
    version,
    about = "What did my job do with the machine?",
    long_about = "Runs jobs, measures them with all their children, and reports what they did with the machine: \
                  CPU, memory, I/O, GPUs, energy. No setup, no root, no configuration.\n\nWithout a \
                  command, the jobs are listed.",
    after_help = "Examples:\n  met time -- make -j8          run, watch, report\n  met run -- python train.py    \
                  run in the background\n  met list                      all jobs\n  met show @last                \
                  the newest one"
)]
pub struct Cli {
    /// Configuration file (default: $MET_CONFIG, ~/.config/met/met.yaml, /etc/met/met.yaml)
    #[arg(long, short, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub config: Option<PathBuf>,

    /// Query a cluster server instead of this machine: list, show, explain, check, scale, compare, ack, mute, unmute,
    /// usage, export, tag, note, web, nodes, node NODE (default: $MET_SERVER)
    #[arg(long, global = true, value_name = "URL", help_heading = GLOBAL)]
    pub server: Option<String>,

    /// Log more to stderr: -v how much is read in each round, -vv every counter read (default: $MET_LOG, one of error,
    /// warn, info, debug, trace; else info)
    #[arg(long, short, global = true, action = clap::ArgAction::Count, help_heading = GLOBAL)]
    pub verbose: u8,

    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Cli {
    pub fn of(arguments: &[OsString]) -> Result<Cli, clap::Error> {
        Cli::of_start(arguments).map_or_else(|| Cli::try_parse_from(arguments), Ok)
    }

    /// `met time` and `met run` by their own part of the grammar: to build all of it takes longer than many a command
    /// does. Whatever that part does not understand is for the whole, which says what is wrong.
    fn of_start(arguments: &[OsString]) -> Option<Cli> {
        let words = arguments.get(1..)?;
        let command = match words.first()?.to_str()? {
            "time" => Command::Time(parsed(words)?),
            "run" => Command::Run(parsed(words)?),
            _ => return None,
        };
        Some(Cli { config: None, server: None, verbose: 0, command: Some(command) })
    }
}

fn parsed<T: Args>(words: &[OsString]) -> Option<T> {
    let matches = T::augment_args(clap::Command::new("met")).try_get_matches_from(words).ok()?;
    T::from_arg_matches(&matches).ok()
}

/// Whether these arguments start a job in the background, unless options come before the name of the
/// command.
pub fn starts_job(arguments: &[OsString]) -> bool {
    arguments.len() > 2 && arguments[1] == "run"
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in the foreground and report what it used
    #[command(after_help = "Example:\n  met time -- python train.py --epochs 3")]
    Time(TimeArgs),
    /// Start a command in the background as a job
    #[command(after_help = "Example:\n  met run -n training -- python train.py --epochs 30")]
    Run(RunArgs),
    /// Measure a running process, with its children, until it ends
    #[command(after_help = "Example:\n  met attach 3113 -n server")]
    Attach(AttachArgs),
    /// Stop measuring an attached process; it keeps running
    #[command(after_help = "Example:\n  met detach 12")]
    Detach(DetachArgs),
    /// List the jobs
    #[command(visible_alias = "ls", after_help = "Example:\n  met list cpu --since 2h --state running")]
    List(ListArgs),
    /// Report on one job, running or finished, with charts over time
    #[command(after_help = "Examples:\n  met show 12\n  met show pid:4711    the job of a process")]
    Show(ShowArgs),
    /// Open your jobs in a browser, on this machine only, until it is interrupted
    #[command(after_help = "Examples:\n  met web\n  met web 12            the page of a job\n  \
                            met show 12 --html job.html   the same as a file")]
    Web(WebArgs),
    /// Show why a rule found something in a job, or did not, with each number and its quality
    #[command(
        after_help = "Examples:\n  met explain 12 serial_on_many\n  met explain 12          all rules, a line each\n  \
                      met explain --user ada hog      about all jobs of a user"
    )]
    Explain(ExplainArgs),
    /// Find jobs and users that waste resources, and what that costs
    #[command(after_help = "Examples:\n  met check --since 7d\n  met check --user ada --json\n  \
                            met check --rules my-rules.yaml    try rules on the jobs of the last 30 days")]
    Check(CheckArgs),
    /// Acknowledge findings of a job: `met check` leaves them out until its next run
    #[command(after_help = "Examples:\n  met ack 12              all findings of the job\n  \
                            met ack 12 cpu_low")]
    Ack(ReactArgs),
    /// Leave findings of a job and its later runs out of `met check` and messages; alone: list them
    #[command(after_help = "Examples:\n  met mute 12 cpu_low\n  met mute 12 cpu_low --for 30d\n  \
                            met mute --user ada cores_unused\n  met mute                what is muted")]
    Mute(MuteArgs),
    /// Report muted or acknowledged findings again
    #[command(
        after_help = "Examples:\n  met unmute 12 cpu_low\n  met unmute 12           all that is muted there"
    )]
    Unmute(ReactArgs),
    /// Show what was used over time, by user, account, partition, node or command
    #[command(
        after_help = "Examples:\n  met usage                              by user, the last 30 days\n  \
                            met usage --by account --every month --since 2026-01-01\n  \
                            met usage --heat                       by hour of the week"
    )]
    Usage(UsageArgs),
    /// Show who uses this machine now, by user and process, inside jobs and outside
    #[command(after_help = "Example:\n  met who")]
    Who(WhoArgs),
    /// Write down a unit of work from inside a job, for time, energy and CO2e per unit
    #[command(after_help = "Examples:\n  met mark step=100\n  \
                            met mark epoch=3 loss=0.12\n  \
                            python train.py | met mark --regex 'step (?P<step>\\d+)'\n\n\
                            From a shell, `echo step=100 >> \"$MET_MARKS\"` starts no process; its time is not known then. \
                            `met python` prints a module for Python.")]
    Mark(MarkArgs),
    /// Print a module for Python that marks units of work
    #[command(after_help = "Example:\n  met python > jobmet.py")]
    Python,
    #[command(name = "notify-ended", hide = true)]
    Notify(NotifyArgs),
    /// Predict how long a job takes with more or fewer workers, from its runs; says when they cannot say
    #[command(
        after_help = "Examples:\n  met scale 12                       from all runs of its lineage\n  \
                            met scale 12 13 14 15 --at 16      the time on 16 workers\n  \
                            met scale 12 13 --sizes 1,2        sizes given by hand"
    )]
    Scale(ScaleArgs),
    /// Compare two to eight jobs, aligned at their start
    #[command(
        after_help = "Examples:\n  met compare 12 15\n  met compare 15        with the run of its lineage before it"
    )]
    Compare(CompareArgs),
    /// Write jobs and their series to a file for pandas, Polars, DuckDB or R, or for `met show` elsewhere
    #[command(
        after_help = "Examples:\n  met export 12 -o job.h5                   one job with all its samples\n  \
                      met export --since 7d -o jobs.parquet     a row for each job\n  \
                      met export 12 --table job -o samples.csv  a row for each sample\n  \
                      met export --user ada -o - | jq .totals   JSON lines"
    )]
    Export(ExportArgs),
    /// Import jobs from files of `met export`; they are shown, and never counted, as imported:1, imported:2, …
    #[command(after_help = "Examples:\n  met import job.h5\n  met show imported:1\n  met rm imported:1")]
    Import(ImportArgs),
    /// Show the process tree of a running job, or the largest processes of a finished one
    #[command(after_help = "Example:\n  met ps @last")]
    Ps(PsArgs),
    /// Show the GPUs now: who uses them, who holds them idle
    #[command(after_help = "Example:\n  met gpus")]
    Gpus(GpusArgs),
    /// Show the machine now: load, memory, pressure, disks, networks, power, temperatures
    #[command(
        after_help = "Examples:\n  met node\n  met --server https://met.example:9317 node n1 --since 1h"
    )]
    Node(NodeArgs),
    /// Print what a job wrote
    #[command(after_help = "Example:\n  met logs -f 12")]
    Logs(LogsArgs),
    /// Wait for jobs to end; exits with the job's exit code, with several jobs the highest
    #[command(after_help = "Example:\n  met wait 12 13 && echo both succeeded")]
    Wait(WaitArgs),
    /// End jobs with all their processes
    #[command(after_help = "Example:\n  met cancel 12 --grace 30s")]
    Cancel(CancelArgs),
    /// Remove the records of finished jobs; their output files stay
    #[command(after_help = "Example:\n  met rm 12")]
    Rm(RmArgs),
    /// Show or change the tags of a job
    #[command(after_help = "Examples:\n  met tag 12 +good -draft\n  met list --tag good")]
    Tag(TagArgs),
    /// Show or change the note of a job
    #[command(after_help = "Example:\n  met note 12 'first run with the new data'")]
    Note(NoteArgs),
    /// Measure jobs of one user, or as root of all users; started automatically when needed
    #[command(after_help = "Example:\n  met daemon --stop     stop it; jobs keep running")]
    Daemon(DaemonArgs),
    /// Receive and store what the daemons of a cluster send, and answer queries about all nodes
    #[command(after_help = "Examples:\n  met server                    serve on http.listen (default \
                            127.0.0.1:9317)\n  met server enroll n1 | ssh n1 met daemon --join \
                            https://met.example:9317\n  met server enroll --user ada  a token for queries")]
    Server(ServerArgs),
    /// Take records of colmet-node and write them, with the command line of colmet-collector
    #[command(after_help = "Example:\n  met colmet-collector --hdf5-filepath /var/lib/colmet/counters")]
    ColmetCollector(ColmetCollectorArgs),
    /// Measure jobs as the daemon does and send records of Colmet, with the command line of colmet-node
    #[command(after_help = "Example:\n  met colmet-node --zeromq-uri tcp://collector:5556 --enable-jobproc")]
    ColmetNode(ColmetNodeArgs),
    /// Show the nodes of a cluster: when each last sent data, its clock offset, its running jobs
    #[command(after_help = "Example:\n  met --server https://met.example:9317 nodes")]
    Nodes(NodesArgs),
    /// Print your token, to log in to the web page of a server
    #[command(
        after_help = "It is read from client.token_file (default ~/.config/met/token).\n\nExample:\n  met token"
    )]
    Token,
    /// Show or change how often a running daemon samples and which events it counts, without a restart
    #[command(after_help = "Examples:\n  met configure                                    show the current \
        settings\n  \
                      met configure --period 1.5s --perf page_faults   until the daemon ends\n  \
                      met configure --period 100ms --job slurm:12      while this job runs\n  \
                      met configure --reset                            back to the configuration file")]
    Configure(ConfigureArgs),
    /// Show what can be measured on this machine, what cannot, why, and how to enable it
    #[command(after_help = "Example:\n  met doctor")]
    Doctor(DoctorArgs),
    /// Show the emission factor in g/kWh; set it for a period, or recompute job emissions
    #[command(
        after_help = "Examples:\n  met emissions set 34 --since 2026-01-14\n  met emissions recompute\n  met emissions unset"
    )]
    Emissions(EmissionsArgs),
    /// Print the catalogue of everything measured
    #[command(after_help = "Example:\n  met metrics --markdown")]
    Metrics(MetricsArgs),
    /// Print every configuration key with its default; as Markdown if the output is not a terminal
    #[command(after_help = "Examples:\n  met config | less\n  met config --current | grep -v default")]
    Config(ConfigArgs),
    /// Print shell completions
    #[command(
        after_help = "Example:\n  met completions bash > ~/.local/share/bash-completion/completions/met"
    )]
    Completions(CompletionsArgs),
    /// Write the man pages into a folder
    #[command(after_help = "Example:\n  met man ~/.local/share/man/man1")]
    Man(ManArgs),
}

// Values that are checked by what they mean may begin with a hyphen for the parser: who writes `--limit -1` learns
// what is wrong with the number, and not that there is no option -1.

fn number_of_jobs(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|&count| count > 0);
    let is_large = text.len() > 19 && text.bytes().all(|byte| byte.is_ascii_digit());
    let most = if is_large { format!(" and at most {}", usize::MAX) } else { String::new() };
    count.ok_or_else(|| format!("write a whole number ≥ 1{most}, such as 100"))
}

fn number_of_gpus(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| (1..=1024).contains(count));
    count.ok_or_else(|| "write a whole number from 1 to 1024".to_owned())
}

fn emission_factor(text: &str) -> Result<f64, String> {
    let grams = text.parse().ok().filter(|grams| (0.0..=GRAMS_MAX).contains(grams));
    grams.ok_or_else(|| format!("write grams per kWh from 0 to {GRAMS_MAX}, such as 34.5"))
}

fn process_number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a process id, as `ps -e` shows it".to_owned())
}

impl Command {
    /// Whether it runs until it is stopped, with a log.
    pub fn is_service(&self) -> bool {
        matches!(
            self,
            Command::Daemon(_) | Command::Server(_) | Command::ColmetCollector(_) | Command::ColmetNode(_)
        )
    }

    /// Whether a server can answer it.
    pub fn asks_a_server(&self) -> bool {
        match self {
            Command::List(_) | Command::Show(_) | Command::Export(_) | Command::Nodes(_) => true,
            Command::Tag(_) | Command::Note(_) | Command::Web(_) => true,
            Command::Explain(_) | Command::Check(_) | Command::Scale(_) | Command::Compare(_) => true,
            Command::Usage(_) | Command::Ack(_) | Command::Mute(_) | Command::Unmute(_) => true,
            // Without a name it is about this one.
            Command::Node(args) => args.node.is_some(),
            _ => false,
        }
    }

    /// The job that it reads where the job ran: a server does not have its output or its processes.
    pub fn job_on_its_node(&self) -> Option<&str> {
        match self {
            Command::Logs(args) => Some(&args.job),
            Command::Ps(args) => Some(&args.job),
            _ => None,
        }
    }

    /// The job that it is about, as a server may name it.
    pub fn job(&self) -> Option<&str> {
        match self {
            Command::Cancel(args) => args.jobs.first().map(String::as_str),
            other => other.job_on_its_node(),
        }
    }

    /// As it is written.
    pub fn name(&self) -> String {
        let word = format!("{self:?}");
        word.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or("").to_lowercase()
    }
}

#[derive(Debug, Args)]
pub struct TimeArgs {
    /// Name of the job (default: base name of the command)
    #[arg(long, short)]
    pub name: Option<String>,
    /// Print the report as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Write the report to a file instead of stderr
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print no report
    #[arg(long, short)]
    pub quiet: bool,
    /// Time between samples, e.g. 500ms
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub interval: Option<String>,
    /// Wait for processes that outlive the command
    #[arg(long)]
    pub all: bool,
    /// Do not keep a record of the job
    #[arg(long)]
    pub no_record: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of the job (default: base name of the command)
    #[arg(long, short)]
    pub name: Option<String>,
    /// File for the job's standard output (default: NAME.out; an earlier job's file is kept)
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// File for the job's standard error (default: NAME.err)
    #[arg(long, value_name = "FILE")]
    pub err: Option<PathBuf>,
    /// Folder to run in
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// Set a variable in the job's environment
    #[arg(long, value_name = "KEY=VALUE")]
    pub env: Vec<OsString>,
    /// Name that its runs have in common, in place of command and folder: the tag lineage.NAME
    #[arg(long, value_name = "NAME")]
    pub lineage: Option<String>,
    /// Wait for the job to end and exit with its exit code
    #[arg(long)]
    pub wait: bool,
    /// Report the end of the job: end (default), failure or finding, or several; see `notify` in the configuration
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true, value_delimiter = ',', default_missing_value = "end")]
    pub notify: Vec<When>,
    /// Mark the numbers of named groups in lines of its output, as `met mark` does: 'step (?P<step>\d+)'
    #[arg(long, value_name = "PATTERN")]
    pub mark_regex: Option<String>,
    /// Print only the job's id
    #[arg(long)]
    pub print_id: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    /// Process to measure
    #[arg(value_name = "PID", allow_negative_numbers = true, value_parser = process_number)]
    pub pid: u32,
    /// Name of the job (default: the process's name)
    #[arg(long, short)]
    pub name: Option<String>,
    /// Print only the job's id
    #[arg(long)]
    pub print_id: bool,
}

#[derive(Debug, Default, Args)]
pub struct ListArgs {
    /// Which columns
    #[arg(value_enum, default_value_t, hide_default_value = true)]
    pub view: View,
    /// Print an array of JSON objects
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values in base units
    #[arg(long)]
    pub csv: bool,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Sort by a column: start, end, duration, name, user, cpu, efficiency, memory, energy, …; :desc reverses
    #[arg(long, value_name = "COLUMN[:desc]")]
    pub sort: Option<Sort>,
    /// At most this many jobs, the first (default: 50; all with --json and --csv)
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = number_of_jobs)]
    pub limit: Option<usize>,
    /// Keep the list on the screen and refresh it
    #[arg(long, short, conflicts_with_all = ["json", "csv"])]
    pub watch: bool,
}

/// Which jobs, of all.
#[derive(Debug, Default, Args)]
pub struct FilterArgs {
    /// Jobs started after this time: 2h, 7d, today, 2026-01-14, 2026-01-14T16:40:00Z
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub since: Option<String>,
    /// Jobs in this state; may be repeated
    #[arg(long, value_name = "STATE")]
    pub state: Vec<String>,
    /// Jobs of this user, by name or uid
    #[arg(long, value_hint = clap::ValueHint::Username)]
    pub user: Option<String>,
    /// Jobs of this name
    #[arg(long)]
    pub name: Option<String>,
    /// Jobs of this resource manager: local, slurm, oar, pbs, lsf, docker, …
    #[arg(long)]
    pub manager: Option<String>,
    /// Jobs charged to this account or project
    #[arg(long)]
    pub account: Option<String>,
    /// Jobs with this text in their command line
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub command: Option<String>,
    /// Jobs of this partition or queue
    #[arg(long)]
    pub partition: Option<String>,
    /// Jobs that ran on this node
    #[arg(long)]
    pub node: Option<String>,
    /// Jobs with this tag
    #[arg(long)]
    pub tag: Option<String>,
    /// Jobs that ran at least this long: 90s, 2h
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub min_duration: Option<String>,
    /// Jobs that used at least this energy: 500Wh, 2kWh, 3MJ
    #[arg(long, value_name = "ENERGY", allow_hyphen_values = true)]
    pub min_energy: Option<String>,
    /// Jobs that used at most this part of their CPUs: 0.5, 50%
    #[arg(long, value_name = "RATIO", allow_hyphen_values = true)]
    pub max_efficiency: Option<String>,
}

#[derive(Debug, Args)]
pub struct TagArgs {
    /// A job: 12, slurm:1234_7, a name (its newest), or @last
    #[arg(value_name = "JOB")]
    pub job: String,
    /// +TAG adds one, -TAG removes one (default: print the tags)
    #[arg(value_name = "±TAG", allow_hyphen_values = true, trailing_var_arg = true)]
    pub changes: Vec<String>,
}

#[derive(Debug, Args)]
pub struct NoteArgs {
    /// A job: 12, slurm:1234_7, a name (its newest), or @last
    #[arg(value_name = "JOB")]
    pub job: String,
    /// The note; an empty one removes it (default: print it). One that begins with a hyphen comes after --
    #[arg(value_name = "TEXT")]
    pub text: Option<String>,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Jobs: 12, slurm:1234_7, a name (its newest), @last, imported:1, or a file (default: all that match the options)
    #[arg(value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Where to write; the ending says how: .csv, .jsonl, .parquet or .h5. - is standard output
    #[arg(long, short, value_name = "FILE", required_unless_present = "js1")]
    pub output: Option<PathBuf>,
    /// Print the summary of each job as jobstats stores it with a Slurm job: JS1: and gzipped JSON in base64
    #[arg(long, conflicts_with_all = ["output", "format", "table", "force"])]
    pub js1: bool,
    /// The format, where the name of the file does not say it: csv, jsonl, parquet or h5
    #[arg(long)]
    pub format: Option<String>,
    /// What a .csv or .parquet file has a row for: jobs, or samples of the table job, job_detail, event or gpu
    #[arg(long, default_value = "jobs")]
    pub table: String,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// At most this many jobs, the newest (default: all)
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = number_of_jobs)]
    pub limit: Option<usize>,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// .jsonl and .h5 files of `met export` (default: list what was imported)
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A job: 12, slurm:1234_7, a step of it: slurm:1234.0, a name (its newest), @last, imported:1, or a .jsonl or .h5
    /// file of `met export`
    #[arg(value_name = "JOB", default_value = "@last")]
    pub job: String,
    /// Which job of a file that has several
    #[arg(value_name = "JOB_IN_FILE")]
    pub in_file: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Write the page of the job as one HTML file that needs nothing else, to attach to a ticket
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "web"])]
    pub html: Option<PathBuf>,
    /// Print a link to the page of the job; `met web` is started in the background if it does not run
    #[arg(long, conflicts_with = "json")]
    pub web: bool,
}

#[derive(Debug, Args)]
pub struct WebArgs {
    /// Open the page of this job
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// A loopback address; by default a free port of 127.0.0.1
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Only print the link
    #[arg(long)]
    pub no_open: bool,
    /// End after half an hour without a request
    #[arg(long, hide = true)]
    pub background: bool,
}

#[derive(Debug, Args)]
pub struct PsArgs {
    /// A job: 12, slurm:1234_7, a name (its newest), or @last
    #[arg(value_name = "JOB", default_value = "@last")]
    pub job: String,
}

#[derive(Debug, Args)]
pub struct GpusArgs {
    /// Print an array of JSON objects
    #[arg(long)]
    pub json: bool,
    /// Print the indices of N free GPUs (default 1), separated by commas; exit code 1 if fewer are free
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", conflicts_with = "json",
        allow_negative_numbers = true, value_parser = number_of_gpus)]
    pub free: Option<u32>,
    /// Print UUIDs instead of indices
    #[arg(long, requires = "free")]
    pub uuid: bool,
    /// Keep the GPUs on the screen and refresh them
    #[arg(long, short, conflicts_with_all = ["json", "free"])]
    pub watch: bool,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// A node of the cluster, with --server: charts of the last hour, or since --since
    #[arg(value_name = "NODE")]
    pub node: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Show charts since this time, as stored by a daemon: 2h, 7d, today, 2026-01-14, 2026-01-14T16:40:00Z
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub since: Option<String>,
    /// With --since or NODE: print every value as CSV
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// A job: 12, slurm:1234_7, a name (its newest), or @last
    #[arg(value_name = "JOB", default_value = "@last")]
    pub job: String,
    /// Keep printing until the job ends
    #[arg(long, short)]
    pub follow: bool,
    /// Print standard error instead of standard output
    #[arg(long)]
    pub err: bool,
}

#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Jobs: 12, slurm:1234_7, a name (its newest), or @last
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<String>,
}

#[derive(Debug, Args)]
pub struct CancelArgs {
    /// Jobs: 12, slurm:1234_7, a name (if one job that runs has it), or @last
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<String>,
    /// Signal to send first, by name or number
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", allow_hyphen_values = true)]
    pub signal: String,
    /// How long the job may take to end before it is killed
    #[arg(long, value_name = "TIME", default_value = "10s", allow_hyphen_values = true)]
    pub grace: String,
}

#[derive(Debug, Args)]
pub struct DetachArgs {
    /// A job made by `met attach`
    #[arg(value_name = "JOB")]
    pub job: String,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// Jobs: 12, slurm:1234_7, a name (if one job has it), @last, or imported:1
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<String>,
}

#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Stop the running daemon; jobs keep running
    #[arg(long)]
    pub stop: bool,
    /// Print the status of the running daemon
    #[arg(long, conflicts_with = "stop")]
    pub status: bool,
    /// With --status: print JSON
    #[arg(long, requires = "status")]
    pub json: bool,
    /// As root: measure root's own jobs only, not those of all users
    #[arg(long)]
    pub user: bool,
    /// Send to this server from now on, with a token read from standard input; then run the daemon
    #[arg(long, value_name = "URL", conflicts_with_all = ["stop", "status"])]
    pub join: Option<String>,
    /// With --join: read the token from this file, which only its owner may read
    #[arg(long, value_name = "FILE", requires = "join")]
    pub token_file: Option<PathBuf>,
    /// With --join: CA bundle for the server's certificate (PEM; default: system CAs)
    #[arg(long, value_name = "FILE", requires = "join")]
    pub ca_file: Option<PathBuf>,
    /// With --join: the name of this node as it was enrolled (default: its host name)
    #[arg(long, value_name = "NAME", requires = "join")]
    pub node: Option<String>,
    /// With --join: allow http:// to another machine
    #[arg(long, requires = "join")]
    pub plain: bool,
    /// Exit when there has been no job for a while; used by `met run`
    #[arg(long, hide = true)]
    pub auto: bool,
}

#[derive(Debug, Args)]
pub struct ServerArgs {
    #[command(subcommand)]
    pub action: Option<ServerAction>,
}

#[derive(Debug, Subcommand)]
pub enum ServerAction {
    /// Register a node, or with --user or --operator a user or operator; prints a token, once
    #[command(
        after_help = "Example:\n  met server enroll n1 | ssh n1 met daemon --join https://met.example:9317"
    )]
    Enroll(NewArgs),
    /// Revoke all tokens of a node, user or operator
    #[command(after_help = "Example:\n  met server expel n1")]
    Expel(EnrollArgs),
}

#[derive(Debug, Args)]
pub struct NewArgs {
    #[command(flatten)]
    pub who: EnrollArgs,
    /// Replace a reinstalled node: revoke its tokens, and accept the next machine that uses the new one
    #[arg(long, conflicts_with_all = ["user", "operator"])]
    pub replace: bool,
}

#[derive(Debug, Args)]
pub struct EnrollArgs {
    /// Name of the node (usually its host name) or of the user
    pub name: String,
    /// A user, who may see their own jobs
    #[arg(long)]
    pub user: bool,
    /// An operator, who may see all users' jobs
    #[arg(long, conflicts_with = "user")]
    pub operator: bool,
}

#[derive(Debug, Args)]
pub struct NodesArgs {
    /// Print an array of JSON objects
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Print the values in force, as the running daemon follows them, and where each comes from
    #[arg(long)]
    pub current: bool,
    /// With --current: of this user's own daemon even if a system daemon is running
    #[arg(long, requires = "current")]
    pub user: bool,
}

#[derive(Debug, Args)]
pub struct ConfigureArgs {
    /// Time between samples, as in `sampling.interval`: 1.5s, 100ms
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub period: Option<String>,
    /// Events to count, as in `perf.events`: page_faults,instructions:u; empty string: none
    #[arg(long, value_name = "EVENTS")]
    pub perf: Option<String>,
    /// Only while this job runs; events are counted in this job only: 12, slurm:1234_7, a name, or @last
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Undo earlier changes; with --job those for that job
    #[arg(long)]
    pub reset: bool,
    /// Use this user's own daemon even if a system daemon is running
    #[arg(long)]
    pub user: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// List also what the machine does not have
    #[arg(long)]
    pub all: bool,
    /// Show what reading each source costs; measures for five seconds
    #[arg(long)]
    pub cost: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct EmissionsArgs {
    #[command(subcommand)]
    pub command: Option<EmissionsCommand>,
}

#[derive(Debug, Subcommand)]
pub enum EmissionsCommand {
    /// Set the emission factor for a period
    Set(EmissionsSetArgs),
    /// Remove factors that were set, for a period or all
    Unset(EmissionsUnsetArgs),
    /// Recompute the emissions of finished jobs with the factors known now
    Recompute {
        /// Jobs started after this time: 2h, 7d, today, 2026-01-14 (default: all)
        #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
        since: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct EmissionsSetArgs {
    /// Grams of CO2 equivalent per kilowatt hour
    #[arg(value_name = "GRAMS", allow_negative_numbers = true, value_parser = emission_factor)]
    pub grams: f64,
    /// Start of the period: 2h, 7d, today, 2026-01-14, 2026-01-14T16:40:00Z
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub since: String,
    /// End of the period (default: until another factor is known)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub until: Option<String>,
    /// Use this user's own store (`met time`) even if a system daemon is running
    #[arg(long)]
    pub user: bool,
}

#[derive(Debug, Args)]
pub struct EmissionsUnsetArgs {
    /// Start of the period: 2h, 7d, today, 2026-01-14, 2026-01-14T16:40:00Z (default: all)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub since: Option<String>,
    /// End of the period (default: all)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub until: Option<String>,
}

#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Print the reference as Markdown
    #[arg(long)]
    pub markdown: bool,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for the pages
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Every command with those below it.
    fn all(command: &clap::Command) -> Vec<clap::Command> {
        let below = command.get_subcommands().flat_map(all);
        [command.clone()].into_iter().chain(below).collect()
    }

    #[test]
    fn help_has_single_spaces_in_sentences_and_examples_by_their_number() {
        let mut cli = Cli::command();
        cli.build();
        for mut command in all(&cli) {
            let help = command.render_long_help().to_string();
            let about = help.lines().next().unwrap_or_default();
            assert!(!about.contains("  "), "{about}");
            let Some((_, examples)) = help.split_once("\nExample") else { continue };
            let (head, lines) = examples.split_once('\n').unwrap_or_default();
            let count = lines.lines().take_while(|line| line.starts_with("  met ")).count();
            assert_eq!(head, if count > 1 { "s:" } else { ":" }, "{help}");
        }
        let help = cli.find_subcommand_mut("run").unwrap().render_help().to_string();
        let (own, global) = help.split_once("\nGlobal options:").unwrap();
        assert!(own.contains("--err") && !own.contains("--server"), "{help}");
        assert!(global.contains("--server") && global.contains("--verbose"), "{help}");
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    /// What both ways make of a command line, errors with all their words.
    fn both(line: &str) -> [String; 2] {
        [Cli::of(&words(line)), Cli::try_parse_from(words(line))]
            .map(|parsed| parsed.map_or_else(|error| error.render().to_string(), |cli| format!("{cli:?}")))
    }

    #[test]
    fn a_part_of_the_grammar_says_what_the_whole_says() {
        let lines = [
            "met",
            "met time",
            "met time -- true",
            "met time true -x --json",
            "met time -q --json -n name --interval -1 -o file --all --no-record -- sh -c time",
            "met time --config file -- true",
            "met time -c file true",
            "met time --server url -- true",
            "met -c file time -- true",
            "met time --help",
            "met time --jsn -- true",
            "met time --interval",
            "met help time",
            "met run",
            "met run -- true",
            "met run true -x --wait",
            "met run true -- x",
            "met run -n name --out o --err e --cwd d --env A=b --env C=d --wait --print-id -- sh -c run",
            "met run -c file -- true",
            "met run --help",
            "met run --wiat -- true",
            "met run --name",
            "met list cpu",
        ];
        for line in lines {
            let [part, whole] = both(line);
            assert_eq!(part, whole, "{line}");
        }
        assert!(Cli::of_start(&words("met time --json -- true")).is_some());
        assert!(Cli::of_start(&words("met time -c file -- true")).is_none());
        assert!(Cli::of_start(&words("met run -n x -- time")).is_some());
        assert!(Cli::of_start(&words("met -v run -- time")).is_none());
    }
}
