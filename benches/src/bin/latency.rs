//! What a user waits for, by stages: until `met time` and `met run` return, and until the first instruction of their
//! command, as root and as an unprivileged user, with and without a daemon; beside `true`, GNU time and, where it is on
//! PATH and its daemon runs, pueue. And `met list` over some hundred jobs. Runs are 100 ms apart, as a person's are, and
//! take turns, so that a busy machine is busy for all of them.
//!
//! `MET=target/release/met cargo run --release -p met-benches --bin latency [OTHER_MET]`: a second binary is measured in
//! turn with the first one.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use met_benches::{met_command, met_path, say};
use rustix::time::{ClockId, clock_gettime};

const RUNS: usize = 60;
const APART: Duration = Duration::from_millis(100);
/// For a command whose first instruction was never reached.
const STAMP_WITHIN: Duration = Duration::from_secs(10);
/// Makes this program the command: it notes when it began.
const STAMP: &str = "__stamp";
const NOBODY: u32 = 65_534;

fn main() -> Result<()> {
    let begin_ns = now_ns();
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, first, file] = &arguments[..]
        && first == STAMP
    {
        return std::fs::write(file, begin_ns.to_string()).context("cannot write the stamp");
    }
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))?;
    let mut mets = vec![copied(&met_path()?, &folder.path().join("met"))?];
    if let Some(other) = arguments.get(1) {
        mets.push(copied(Path::new(other), &folder.path().join("other-met"))?);
    }
    let stamp = copied(&std::env::current_exe()?, &folder.path().join("stamp"))?;
    peers(&stamp, folder.path())?;
    let is_root = rustix::process::getuid().is_root();
    for uid in [None].into_iter().chain(is_root.then_some(Some(NOBODY))) {
        for_user(&mets, &stamp, uid)?;
    }
    Ok(())
}

/// Where another user may execute it.
fn copied(program: &Path, to: &Path) -> Result<PathBuf> {
    std::fs::copy(program, to).with_context(|| program.display().to_string())?;
    Ok(to.to_owned())
}

/// One way to start a command.
struct Way<'a> {
    name: String,
    /// The command line in front of the command.
    start: Box<dyn Fn() -> Command + 'a>,
    /// Done before each run, and not measured.
    before: Box<dyn Fn() + 'a>,
}

impl<'a> Way<'a> {
    fn new(name: impl Into<String>, start: impl Fn() -> Command + 'a) -> Way<'a> {
        Way { name: name.into(), start: Box::new(start), before: Box::new(|| ()) }
    }
}

/// What other programs take for the same.
fn peers(stamp: &Path, folder: &Path) -> Result<()> {
    let mut ways = vec![
        Way::new("directly", || Command::new("env")),
        Way::new("GNU time", || with(Command::new("/usr/bin/time"), &["-o", "/dev/null"])),
    ];
    let has_pueue = with(Command::new("pueue"), &["status"]);
    if quiet(has_pueue).status().is_ok_and(|status| status.success()) {
        ways.push(Way::new("pueue add", || with(Command::new("pueue"), &["add", "--"])));
    }
    ways.retain(|way| quiet(with((way.start)(), &["true"])).status().is_ok_and(|status| status.success()));
    say("peers                                returns  command runs");
    let truth_ms = median_of(|| Command::new("true"))?;
    say(&format!("  {:<32} {truth_ms:6.2} ms", "true"));
    stages(&ways, stamp, &folder.join("stamped"))
}

fn for_user(mets: &[PathBuf], stamp: &Path, uid: Option<u32>) -> Result<()> {
    let state = tempfile::tempdir()?;
    let root = state.path();
    chown(root, uid, uid)?;
    let met = |met: &Path, words: &[&str]| {
        let mut command = with(met_command(met, root), words);
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        command
    };
    let outputs = ["run", "--out", "/dev/null", "--err", "/dev/null"];
    let run = |binary: &Path| with(met(binary, &outputs), &["--"]);
    let stop = |binary: &Path| {
        let _ = quiet(met(binary, &["daemon", "--stop", "--user"])).status();
    };
    let (mut timed, mut alone, mut served) = (Vec::new(), Vec::new(), Vec::new());
    for binary in mets {
        let name = binary.file_name().unwrap_or_default().to_string_lossy();
        let time = move || met(binary, &["time", "--quiet", "--"]);
        timed.push(Way::new(format!("{name} time"), time));
        let before = Box::new(move || stop(binary));
        let name_alone = format!("{name} run, no daemon");
        alone.push(Way { before, ..Way::new(name_alone, move || run(binary)) });
        served.push(Way::new(format!("{name} run, daemon runs"), move || run(binary)));
    }
    let who = uid.map_or("as the caller".to_owned(), |uid| format!("as uid {uid}"));
    say(&format!("{who:<36} returns  command runs"));
    let stamped = root.join("stamped");
    stages(&timed, stamp, &stamped)?;
    stages(&alone, stamp, &stamped)?;
    // A job that lasts keeps the daemon alive while others come and go.
    let first = &mets[0];
    quiet(with(
        met(first, &["run", "-n", "first", "--out", "/dev/null", "--err", "/dev/null"]),
        &["--", "sleep", "600"],
    ))
    .status()?;
    std::thread::sleep(Duration::from_secs(1));
    stages(&served, stamp, &stamped)?;
    let list_ms = median_of(|| met(first, &["list"]))?;
    say(&format!("  {:<32} {list_ms:6.2} ms", "list through the daemon"));
    quiet(met(first, &["cancel", "first"])).status()?;
    stop(first);
    Ok(())
}

fn with(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Measures each way until it returns with `true` as its command, then until the first instruction of a command.
fn stages(ways: &[Way], stamp: &Path, stamped: &Path) -> Result<()> {
    let mut times: Vec<[Vec<f64>; 2]> = ways.iter().map(|_| Default::default()).collect();
    for _ in 0..RUNS {
        for (way, [returns_ms, runs_ms]) in ways.iter().zip(&mut times) {
            (way.before)();
            std::thread::sleep(APART);
            let mut command = quiet(with((way.start)(), &["true"]));
            let begin = Instant::now();
            command.status().with_context(|| way.name.clone())?;
            returns_ms.push(begin.elapsed().as_secs_f64() * 1e3);
            (way.before)();
            std::thread::sleep(APART);
            runs_ms.push(until_first_instruction(way, stamp, stamped)?);
        }
    }
    for (way, [returns_ms, runs_ms]) in ways.iter().zip(times) {
        say(&format!("  {:<32} {:6.2} ms     {:6.2} ms", way.name, median(returns_ms), median(runs_ms)));
    }
    Ok(())
}

fn until_first_instruction(way: &Way, stamp: &Path, stamped: &Path) -> Result<f64> {
    let _ = std::fs::remove_file(stamped);
    let mut command = (way.start)();
    command.arg(stamp).arg(STAMP).arg(stamped);
    let begin_ns = now_ns();
    quiet(command).status().with_context(|| way.name.clone())?;
    let deadline = Instant::now() + STAMP_WITHIN;
    loop {
        let text = std::fs::read_to_string(stamped).unwrap_or_default();
        if let Ok(stamp_ns) = text.parse::<i64>() {
            return Ok((stamp_ns - begin_ns) as f64 / 1e6);
        }
        anyhow::ensure!(Instant::now() < deadline, "{}: the command did not run", way.name);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The same clock in every process.
fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn median_of(command: impl Fn() -> Command) -> Result<f64> {
    let mut times_ms = Vec::new();
    for _ in 0..RUNS {
        std::thread::sleep(APART);
        let mut command = quiet(command());
        let begin = Instant::now();
        command.status().context("cannot run it")?;
        times_ms.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(times_ms))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
