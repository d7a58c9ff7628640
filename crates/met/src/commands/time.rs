//! `met time`: a job in the foreground, sampled by this very process.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use met_core::gpu_holding;
use met_core::job::{Origin, Record};
use met_core::job_table::OOM_KILLS;
use met_host::{Host, clock};
use met_insight::answers::{Answers, Job};
use met_insight::rules::Rules;
use met_store::inbox::JobDir;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use crate::cli::TimeArgs;
use crate::view::{self, Style};
use met_agent::idle_power_file;
use met_agent::launch::{self, Draft, Supervisor};
use met_agent::sampler::{Known, Sampled, Sampler};
use met_agent::supervise::Notice;
use met_config::Failure;
use met_host::trusted;
use met_query::jobs::{self, AllJobs};
use met_query::protocol;
use met_query::setting::Setting;

pub fn time(setting: &Setting, args: TimeArgs) -> Result<i32> {
    let interval = match &args.interval {
        Some(text) => parse_interval(text)?,
        None => setting.config.sampling.shortest(),
    };
    // A folder that was removed is still a place to run in.
    let cwd = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let program = launch::find_program(&args.command, std::env::var_os("PATH").as_deref(), &cwd)?;
    let output = args.output.as_ref().map(|path| {
        trusted::open(path, OFlags::WRONLY | OFlags::CREATE, Mode::from_raw_mode(0o666))
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))
    });
    let output = output.transpose()?;
    let draft = Draft {
        origin: Origin::Time,
        name: args.name.as_deref(),
        command: launch::shown(&args.command),
        cwd,
        stdout: None,
        stderr: None,
        keep: !args.no_record,
        until_last: args.all,
        pid: None,
        env: Vec::new(),
    };
    let assignment = match launch::assign(setting, draft.clone(), None) {
        // The command matters more than its record.
        Err(error) if draft.keep => {
            let unkept = launch::assign(setting, Draft { keep: false, ..draft }, None)?;
            tracing::warn!("the job will not be recorded: {error:#}");
            unkept
        }
        assigned => assigned?,
    };
    let inbox = assignment.inbox.as_ref().map(|place| place.state.clone());
    let mut supervisor = launch::fork_supervisor(setting.host.clone(), assignment, &program, &args.command)?;
    let watched = watch(setting, &mut supervisor, interval)?;
    let record = finish(watched, &mut supervisor.channel, inbox.as_deref(), interval)?;
    let code = super::exit_code(&record);
    let reported = if args.quiet { Ok(()) } else { report(setting, &args, &record, inbox.is_some(), output) };
    keep_house(setting, inbox.is_some(), &record);
    if let Err(error) = reported {
        let known =
            if inbox.is_some() { format!("; met show {} has it", record.key.id) } else { String::new() };
        let place =
            args.output.map_or_else(|| "standard error".to_owned(), |path| path.display().to_string());
        tracing::error!("cannot write the report to {place}: {error:#}{known}");
        // What the job says of itself is worth more; a success without the report that was asked for is none.
        return Ok(if code == 0 { 1 } else { code });
    }
    Ok(code)
}

/// After the report, which the user waits for.
fn keep_house(setting: &Setting, is_kept: bool, record: &Record) {
    if is_kept {
        jobs::hand_over_ends(setting);
        jobs::tidy(setting, record);
    } else if setting.user.check_own().is_ok() {
        // No other process knows its cgroup.
        jobs::leave_cgroup(&setting.host, &setting.user.state, record);
        jobs::remove_left_cgroups(&setting.user.state);
    }
}

fn parse_interval(text: &str) -> Result<Duration> {
    met_config::interval(text).map_err(|error| Failure::usage(format!("--interval: {error}")))
}

/// The job at its end and what was seen of it on the way.
struct Watched {
    record: Record,
    sampled: Sampled,
}

/// Samples until the supervisor says that the job is over.
fn watch(setting: &Setting, supervisor: &mut Supervisor, interval: Duration) -> Result<Watched> {
    let mut sampling = Sampling::Not;
    loop {
        let timeout = sampling.timeout().and_then(|timeout| Timespec::try_from(timeout).ok());
        let (readable, signalled) = {
            let channel = PollFd::from_borrowed_fd(supervisor.channel.as_fd(), PollFlags::IN);
            let mut fds = [channel, PollFd::new(&supervisor.signals, PollFlags::IN)];
            let _ = poll(&mut fds, timeout.as_ref());
            (!fds[0].revents().is_empty(), !fds[1].revents().is_empty())
        };
        if signalled {
            pass_on_signals(supervisor);
        }
        if !readable {
            sampling.go_on(setting, interval);
            continue;
        }
        match protocol::read_frame(&mut supervisor.channel).context("the supervisor of the job was killed")? {
            Notice::Started(record) => sampling = Sampling::From(Instant::now() + UNSAMPLED, record),
            Notice::NotExecuted { message } => tracing::error!("{message}"),
            Notice::Ended(record) => {
                let mut record = *record;
                let sampled = match sampling {
                    Sampling::By(sampler, slot) => end(&setting.host, *sampler, slot, &mut record),
                    Sampling::Not | Sampling::From(..) => None,
                };
                return Ok(Watched { record, sampled: sampled.unwrap_or_default() });
            }
            Notice::Failed { message } => bail!("cannot start the job: {message}"),
        }
    }
}

/// A job that is over sooner is not sampled: opening the sources would take longer than it did.
const UNSAMPLED: Duration = Duration::from_millis(5);
/// Findings are looked for after this: a few milliseconds more are not felt then.
const FINDINGS_AFTER_NS: i64 = 1_000_000_000;

enum Sampling {
    Not,
    /// When the job is old enough.
    From(Instant, Box<Record>),
    By(Box<Sampler>, u32),
}

impl Sampling {
    fn timeout(&self) -> Option<Duration> {
        match self {
            Sampling::Not => None,
            Sampling::From(at, _) => Some(at.saturating_duration_since(Instant::now())),
            Sampling::By(sampler, _) => Some(sampler.until_next_tick()),
        }
    }

    /// Does what is due.
    fn go_on(&mut self, setting: &Setting, interval: Duration) {
        match self {
            Sampling::From(at, record) if *at <= Instant::now() => {
                let mut sampler = Sampler::of_energy(setting.host.clone(), interval, &setting.config);
                sampler.energy().recall_idle(idle_power_file::known(setting));
                let added = sampler.add(record);
                *self = added.map_or(Sampling::Not, |slot| Sampling::By(Box::new(sampler), slot));
            }
            Sampling::By(sampler, _) => drop(sampler.tick_if_due()),
            Sampling::Not | Sampling::From(..) => {}
        }
    }
}

/// What was sampled, and the energy, for which the meters are read once more.
fn end(host: &Host, mut sampler: Sampler, slot: u32, record: &mut Record) -> Option<Sampled> {
    let troubles = sampler.gpu_troubles();
    let sampled = sampler.remove(slot, Known::of(record));
    if sampled.as_ref().is_some_and(|sampled| !sampled.has_gpus()) {
        miss_gpus(host, &troubles);
    }
    for (_, charged) in sampler.settle_now() {
        charged.put(&mut record.totals);
        record.emission = charged.emission();
    }
    sampled
}

/// Says why there are no figures of GPUs that the job was given; its environment is ours.
fn miss_gpus(host: &Host, troubles: &[String]) {
    if troubles.is_empty() {
        return;
    }
    let mut environ = Vec::new();
    let _ = host.read_small("/proc/self/environ", &mut environ);
    let given = gpu_holding::of_environ(&environ);
    let sources: Vec<&str> = given.iter().map(|holding| holding.source).collect();
    for trouble in troubles.iter().filter(|_| !given.is_empty()) {
        let source = sources.join(", ");
        tracing::warn!("the job was given GPUs ({source}) that cannot be read: {trouble}");
    }
}

/// A terminal signals the whole foreground group; what was sent to us alone is meant for the job.
fn pass_on_signals(supervisor: &Supervisor) {
    while let Some(signal) = supervisor.signals.next() {
        if signal.number != libc::SIGCHLD && !signal.from_kernel {
            // SAFETY: plain system call on our own, not yet reaped child.
            unsafe { libc::kill(supervisor.pid, signal.number) };
        }
    }
}

/// Adds what was sampled to what was counted, and makes it last.
fn finish(
    watched: Watched,
    supervisor: &mut UnixStream,
    inbox: Option<&Path>,
    interval: Duration,
) -> Result<Record> {
    let Watched { mut record, mut sampled } = watched;
    sampled.settle(&mut record);
    sampled.complete(&mut record, &sampled.series, interval);
    let kept = match inbox {
        Some(state) => keep(&JobDir::open(state, record.key.id.parse()?), &record, &sampled),
        None => Ok(()),
    };
    // It keeps what is not kept, and is gone when it has: at best before this process is, around which there may be
    // another job.
    let _ = supervisor.shutdown(Shutdown::Write);
    if let Err(words) = kept {
        tracing::warn!("{words}");
        let _ = supervisor.read(&mut [0]);
    }
    Ok(record)
}

/// Why the end of a job cannot be kept, in words.
fn keep(folder: &JobDir, record: &Record, sampled: &Sampled) -> Result<(), String> {
    // The series is worth less than the end: it comes first, and may fail. One sample is no series.
    if sampled.series.len() > 1 {
        let _ = folder.write_series(&sampled.series);
    }
    folder.write_end(record).map_err(|error| {
        let (id, place) = (&record.key.id, folder.path().display());
        match error.kind() {
            io::ErrorKind::NotFound => format!("job {id} is not recorded: {place} was removed"),
            _ => format!("cannot store the samples of job {id} in {place}: {error}"),
        }
    })
}

fn report(
    setting: &Setting,
    args: &TimeArgs,
    record: &Record,
    kept: bool,
    output: Option<File>,
) -> io::Result<()> {
    let now_ns = clock::realtime_ns();
    let text = if args.json {
        format!("{}\n", met_insight::json::object(record, now_ns))
    } else {
        let style = if output.is_some() { Style::plain() } else { Style::of_stream(&io::stderr()) };
        let machine = super::machine(setting, record);
        let mut report = met_insight::report::report(record, machine, now_ns);
        let job = Job::new(record, machine, now_ns);
        let found = if kept && has_findings(&job) { answers_of_show(setting, &job) } else { None };
        report.answers =
            Some(found.unwrap_or_else(|| met_insight::answers::answers(&job, &Rules::default())));
        if !kept {
            report.id.clear();
        }
        view::report::render(&report, &style)
    };
    match output {
        Some(mut file) => {
            // Emptied only now that there is something to put into it.
            if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
                file.set_len(0)?;
            }
            file.write_all(text.as_bytes())
        }
        None => match io::stderr().write_all(text.as_bytes()) {
            // A reader that closed the output does not want the rest.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        },
    }
}

/// Whether a job may have findings that are worth reading samples and earlier runs for. A short command does not wait for them.
fn has_findings(job: &Job<'_>) -> bool {
    let is_long = job.record.wall_ns(job.now_ns).is_some_and(|lasted_ns| lasted_ns >= FINDINGS_AFTER_NS);
    is_long || job.record.totals.get(OOM_KILLS).is_some_and(|kills| kills > 0)
}

/// What `met show` says of it, findings included.
fn answers_of_show(setting: &Setting, job: &Job<'_>) -> Option<Answers> {
    let (record, machine) = (job.record, job.machine);
    let found = || -> Result<Answers> {
        let mut all = AllJobs::open(setting)?;
        let earlier = all.earlier_runs(record)?;
        let beside = all.beside_if_asked(Rules::built_in(), record, machine, &earlier)?;
        let known = all.known(setting, record, machine)?.beside(beside);
        Ok(known.answers(record, &earlier, job.now_ns))
    };
    found().inspect_err(|error| tracing::warn!("no findings: {error:#}; try `met show`")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::sample;

    /// Ends a job whose supervisor keeps what is not kept, as one does; the end as it is on disk right after that.
    fn end_after(state: &Path) -> Option<Record> {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let folder = JobDir::open(state, 1);
        let (place, supervised) = (state.to_owned(), folder.clone());
        let supervisor = std::thread::spawn(move || {
            assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the line is closed");
            if supervised.read().end.is_none() {
                JobDir::claim(&place, 1).unwrap();
                supervised.write_end(&sample::bare(1, "by its supervisor")).unwrap();
            }
        });
        let watched = Watched { record: sample::bare(1, "x"), sampled: Sampled::default() };
        finish(watched, &mut ours, Some(state), Duration::from_secs(1)).unwrap();
        let end = folder.read().end;
        supervisor.join().unwrap();
        end
    }

    #[test]
    fn an_end_that_could_not_be_written_is_left_to_the_supervisor_and_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let name = |state: &Path| end_after(state).map(|record| record.name);
        assert_eq!(name(root.path()).as_deref(), Some("by its supervisor"), "there was no folder of the job");
        let root = tempfile::tempdir().unwrap();
        JobDir::claim(root.path(), 1).unwrap();
        assert_eq!(name(root.path()).as_deref(), Some("x"));
    }

    #[test]
    fn a_supervisor_that_is_gone_does_not_take_the_report_with_it() {
        let root = tempfile::tempdir().unwrap();
        JobDir::claim(root.path(), 1).unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let watched = Watched { record: sample::bare(1, "x"), sampled: Sampled::default() };
        assert!(finish(watched, &mut ours, Some(root.path()), Duration::from_secs(1)).is_ok());
    }
}
