//! `met run`: a job in the background.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::job::{Origin, Record};
use met_insight::lineage::TAG;
use rustix::fs::{Mode, OFlags};

use crate::cli::RunArgs;
use crate::output;
use met_agent::earlier_output::{self, Moved};
use met_agent::launch::{self, AskedDaemons, Draft, Surroundings};
use met_agent::marking;
use met_agent::standby::Standby;
use met_agent::supervise::{Assignment, Notice};
use met_config::Failure;
use met_host::trusted;
use met_query::jobs;
use met_query::protocol;
use met_query::setting::Setting;

pub fn run(setting: &Setting, args: RunArgs, standby: Option<Standby>) -> Result<i32> {
    let here = match (std::env::current_dir(), &args.cwd) {
        (Ok(here), _) => here,
        (Err(_), Some(cwd)) if cwd.is_absolute() => cwd.clone(),
        (Err(_), _) => return Err(Failure::usage("the current folder is gone; cd somewhere else")),
    };
    let cwd = args.cwd.as_ref().map_or_else(|| here.clone(), |cwd| here.join(cwd));
    if !cwd.is_dir() {
        let why = if cwd.exists() { "not a folder" } else { "no such folder" };
        return Err(Failure::usage(format!("--cwd {}: {why}", cwd.display())));
    }
    let (annotation, env) = (annotation(args.lineage.as_deref())?, parse_env(&args.env)?);
    let path = env.iter().rev().find(|(key, _)| key == "PATH").map(|(_, value)| value.clone());
    let path = path.or_else(|| std::env::var_os("PATH"));
    let program = launch::find_program(&args.command, path.as_deref(), &cwd)?;
    let (program, command) = executed(&args, program)?;
    let asked = AskedDaemons::ask(setting);
    let stem = args.name.clone().unwrap_or_else(|| base_name(&args.command[0]));
    let outputs = Outputs::open(&args, &here, &cwd, &stem)?;
    let draft = Draft {
        origin: Origin::Run,
        name: args.name.as_deref(),
        command: launch::shown(&args.command),
        cwd: cwd.clone(),
        stdout: Some(outputs.out_path.clone()),
        stderr: Some(outputs.err_path.clone()),
        keep: true,
        until_last: true,
        pid: None,
        env,
    };
    let mut assignment =
        launch::assign(setting, draft, Some(asked)).inspect_err(|_| outputs.left.discard())?;
    assignment.record.annotation = annotation;
    super::notify::warn_if_no_way(setting, &args.notify);
    assignment.notify = args.notify.iter().map(|when| when.name()).collect::<Vec<_>>().join(",");
    outputs.name_in(&mut assignment.record);
    let (out_path, err_path) = (outputs.out_path.clone(), outputs.err_path.clone());
    let left = outputs.left.clone();
    let (stdout, stderr) = outputs.into_files()?;
    let surroundings = Surroundings { cwd, stdout, stderr };
    let mut channel = supervise(standby, assignment, &program, &command, surroundings)?;
    let mut started = None;
    loop {
        match protocol::read_frame(&mut channel).with_context(|| died(started.as_deref()))? {
            Notice::Started(record) => {
                started = Some(record.key.id.clone());
                let main = record.local.as_ref().and_then(|local| local.main).map_or(0, |main| main.pid);
                let announced =
                    announce(&args, &record.key.id, &record.name, main, [&out_path, &err_path], &here);
                let not_announced =
                    |error| super::not_announced(&record, &error, args.print_id, "runs", "cancel");
                let code = announced.map_or_else(not_announced, |()| 0);
                // The job runs: there is time for what earlier ones left.
                jobs::hand_over_ends(setting);
                // Whose folder it is was checked when the job got its own in it.
                jobs::remove_left_cgroups(&setting.user.state);
                if !args.wait {
                    return Ok(code);
                }
            }
            Notice::NotExecuted { message } => tracing::error!("{message}"),
            Notice::Ended(record) => return Ok(super::exit_code(&record)),
            Notice::Failed { message } => {
                left.discard();
                bail!("cannot start the job: {message}")
            }
        }
    }
}

/// The command, or what searches the output of it.
fn executed(args: &RunArgs, program: PathBuf) -> Result<(PathBuf, Cow<'_, [OsString]>)> {
    let Some(pattern) = &args.mark_regex else { return Ok((program, Cow::from(&args.command))) };
    let command = marking::searched("--mark-regex", pattern, &args.command)?;
    Ok(("/proc/self/exe".into(), command.into()))
}

/// By the supervisor that was forked in advance, if it has this command.
fn supervise(
    standby: Option<Standby>,
    assignment: Assignment,
    program: &Path,
    command: &[OsString],
    surroundings: Surroundings,
) -> Result<UnixStream> {
    match standby.filter(|_| Standby::has(command)) {
        Some(standby) => standby.start(assignment, program, command.len(), surroundings),
        None => launch::exec_supervisor(&assignment, program.as_os_str(), command, surroundings),
    }
}

fn died(started: Option<&str>) -> String {
    match started {
        Some(id) => {
            format!("the supervisor of job {id} died, so its exit code is unknown; see `met show {id}`")
        }
        None => "the supervisor died before it started the job".to_owned(),
    }
}

fn announce(
    args: &RunArgs,
    id: &str,
    name: &str,
    pid: u32,
    outputs: [&PathBuf; 2],
    here: &Path,
) -> io::Result<()> {
    let mut stdout = output::stdout();
    if args.print_id {
        writeln!(stdout, "{id}")?;
    } else {
        let [out, err] = outputs.map(|path| path.strip_prefix(here).unwrap_or(path).display());
        let name = crate::view::text::escape(name);
        writeln!(stdout, "Started job {id} \"{name}\" (pid {pid}), output in {out} and {err}")?;
    }
    stdout.flush()
}

/// A lineage is a tag, so that it can be given and taken later, too.
fn annotation(lineage: Option<&str>) -> Result<Annotation> {
    let Some(name) = lineage else { return Ok(Annotation::default()) };
    if name.trim().is_empty() {
        return Err(Failure::usage("--lineage is empty; give the runs a name, or leave the option out"));
    }
    let change = AnnotationChange { add: vec![format!("{TAG}{name}")], ..AnnotationChange::default() };
    let applied = change.apply(&Annotation::default(), jobs::now_ns());
    applied.map_err(|error| Failure::usage(format!("--lineage: {error}")))
}

fn parse_env(given: &[OsString]) -> Result<Vec<(OsString, OsString)>> {
    let split = |pair: &OsString| {
        let bytes = pair.as_bytes();
        let equals = bytes.iter().position(|&byte| byte == b'=').filter(|&position| position > 0)?;
        Some((OsString::from_vec(bytes[..equals].to_vec()), OsString::from_vec(bytes[equals + 1..].to_vec())))
    };
    let wrong = |pair: &OsString| Failure::usage(format!("--env {pair:?} is not KEY=VALUE"));
    given.iter().map(|pair| split(pair).ok_or_else(|| wrong(pair))).collect()
}

fn base_name(command: &OsStr) -> String {
    Path::new(command)
        .file_name()
        .map_or_else(|| "job".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Files are named by it, with a number and a suffix; a file system allows 255 bytes.
const STEM_BYTES_MAX: usize = 240;

/// The files a job writes to.
struct Outputs {
    out_path: PathBuf,
    err_path: PathBuf,
    out: File,
    /// `None` where both streams go to one file.
    err: Option<File>,
    left: Left,
}

/// What is undone if the job does not start after all.
#[derive(Clone, Default)]
struct Left {
    /// Files that were not there before.
    created: Vec<PathBuf>,
    /// Output of earlier jobs that gave way.
    moved: Vec<Moved>,
}

impl Left {
    fn discard(&self) {
        for path in &self.created {
            let _ = trusted::remove(path);
        }
        self.moved.iter().for_each(Moved::undo);
    }
}

impl Outputs {
    /// Which files these are is in the record, and whose they are in the files.
    fn name_in(&self, record: &mut Record) {
        if let Some(local) = &mut record.local {
            local.stdout_file = trusted::file_of(&self.out);
            local.stderr_file = self.err.as_ref().map_or(local.stdout_file, trusted::file_of);
        }
        for file in [Some(&self.out), self.err.as_ref()].into_iter().flatten() {
            earlier_output::mark(file, &record.key.id);
        }
    }

    fn open(args: &RunArgs, here: &Path, cwd: &Path, stem: &str) -> Result<Outputs> {
        let stem: String = stem
            .chars()
            .map(|letter| if letter == '/' || letter.is_control() { '_' } else { letter })
            .collect();
        for (option, path) in [("--out", &args.out), ("--err", &args.err)] {
            if path.as_deref() == Some(Path::new("-")) {
                return Err(Failure::usage(format!(
                    "{option} -: a job in the background has no terminal; name a file (such as ./-), or use \
                     met time"
                )));
            }
        }
        let out = args.out.as_ref().map(|path| here.join(path));
        let err = args.err.as_ref().map(|path| here.join(path));
        if let (Some(out), Some(err)) = (&out, &err) {
            return Outputs::named(out, err);
        }
        if stem.len() > STEM_BYTES_MAX {
            return Err(Failure::usage(format!("the name is too long; at most {STEM_BYTES_MAX} bytes")));
        }
        let first = [(&out, "out"), (&err, "err")].into_iter().filter(|(given, _)| given.is_none());
        let first: Vec<PathBuf> = first.map(|(_, suffix)| cwd.join(format!("{stem}.{suffix}"))).collect();
        let first: Vec<&Path> = first.iter().map(PathBuf::as_path).collect();
        let moved = match first.iter().any(|path| path.symlink_metadata().is_ok()) {
            true => earlier_output::move_aside(&first),
            false => Vec::new(),
        };
        for number in 1.. {
            let label = if number == 1 { stem.clone() } else { format!("{stem}.{number}") };
            let default = |suffix: &str| cwd.join(format!("{label}.{suffix}"));
            let (out_default, err_default) = (default("out"), default("err"));
            let opened_out = match &out {
                Some(path) => Some(named(path)?),
                None => fresh(&out_default)?,
            };
            let Some(out_file) = opened_out else { continue };
            let opened_err = match &err {
                Some(path) => Some(named(path)?),
                None => fresh(&err_default)?,
            };
            let Some(err_file) = opened_err else {
                if out.is_none() {
                    Left { created: vec![out_default], moved: Vec::new() }.discard();
                }
                continue;
            };
            let created = [(&out, &out_default), (&err, &err_default)].into_iter();
            let created =
                created.filter(|(given, _)| given.is_none()).map(|(_, path)| path.clone()).collect();
            return Ok(Outputs {
                left: Left { created, moved },
                out_path: out.clone().unwrap_or(out_default),
                err_path: err.clone().unwrap_or(err_default),
                out: out_file,
                err: Some(err_file),
            });
        }
        bail!("no free name for the output files of {stem}")
    }

    fn named(out: &Path, err: &Path) -> Result<Outputs> {
        let out_file = named(out)?;
        let err_file = if out == err { None } else { Some(named(err)?) };
        Ok(Outputs {
            out_path: out.to_path_buf(),
            err_path: err.to_path_buf(),
            out: out_file,
            err: err_file,
            left: Left::default(),
        })
    }

    /// As in a shell, what was in a file that the user named goes; not before everything else is in order.
    fn into_files(self) -> Result<(File, File)> {
        let files = [(Some(&self.out), &self.out_path), (self.err.as_ref(), &self.err_path)];
        for (file, path) in files.into_iter().filter_map(|(file, path)| Some((file?, path))) {
            let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
            if is_file && let Err(error) = file.set_len(0) {
                return Err(cannot_write(path, &error));
            }
        }
        let err = match self.err {
            Some(err) => err,
            None => self.out.try_clone().map_err(|error| cannot_write(&self.err_path, &error))?,
        };
        Ok((self.out, err))
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> anyhow::Error {
    Failure::usage(format!(
        "cannot write {}: {error}; choose another place with --out and --err",
        path.display()
    ))
}

/// A file the user named.
fn named(path: &Path) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    trusted::open(path, flags, Mode::from_raw_mode(0o666)).map_err(|error| cannot_write(path, &error))
}

/// A file of a default name; `None` if an earlier job has it.
fn fresh(path: &Path) -> Result<Option<File>> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
    match trusted::open(path, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(cannot_write(path, &error)),
    }
}
