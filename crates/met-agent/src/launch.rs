//! What `met run`, `met time` and `met attach` share: a reserved job and a supervisor of its own.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use met_core::job::{JobKey, LOCAL, Local, Origin, Record, State};
use met_host::{Host, clock};
use met_jobs::cgroup_layouts::Layout;
use met_store::inbox::{JobDir, SHARED_IDS_END};

use crate::daemon::listening;
use crate::supervise::{self, Assignment, Channel, Command, Preparation, look_up};
use met_config::Failure;
use met_jobs::processes;
use met_query::client::{BegunGreeting, Client, Unreachable};
use met_query::jobs::is_free_as_name;
use met_query::protocol::{self, Reply, Request};
use met_query::setting::Setting;

/// The hidden first argument of a supervisor's command line.
pub const SUPERVISE: &str = "__supervise";

/// Where a limit of processes, of open files or of memory is reached.
const NO_SUPERVISOR: &str =
    "cannot start a supervisor for the job (`ulimit -a` shows the limits of this user)";

pub(crate) const ENDED_AT_ONCE: &str = "the supervisor ended at once; try again";

/// What a record keeps of a command line.
const COMMAND_BYTES_MAX: usize = 64 << 10;

/// The descriptor at which an executed supervisor finds the command line that started it.
const CHANNEL_FD: i32 = 3;

/// A job that does not run yet.
#[derive(Clone)]
pub struct Draft<'a> {
    pub origin: Origin,
    pub name: Option<&'a str>,
    pub command: Vec<String>,
    pub cwd: PathBuf,
    pub stdout: Option<PathBuf>,
    pub stderr: Option<PathBuf>,
    /// Whether it is to be remembered.
    pub keep: bool,
    pub until_last: bool,
    /// The process that the job is, where there is one already.
    pub pid: Option<u32>,
    /// Variables to set for the command.
    pub env: Vec<(OsString, OsString)>,
}

/// The daemons that a detached job may belong to, greeted before it is put together: to wake one up takes longer than what
/// it does.
pub struct AskedDaemons {
    system: Result<BegunGreeting, Unreachable>,
    /// Asked at once where there is no system daemon.
    own: Option<Result<BegunGreeting, Unreachable>>,
}

impl AskedDaemons {
    pub fn ask(setting: &Setting) -> AskedDaemons {
        let system = setting.greet_system_daemon();
        let own = (!is_for_system(&system)).then(|| setting.greet_user_daemon(&Request::InForce));
        AskedDaemons { system, own }
    }
}

/// Gives the draft an identity, on disk if it is to be kept. `asked`: for a detached job, if that was done before.
pub fn assign(setting: &Setting, draft: Draft, asked: Option<AskedDaemons>) -> Result<Assignment> {
    let name = job_name(draft.name, &draft.command, &setting.config.jobs.layouts)?;
    let detached = draft.origin != Origin::Time;
    let (mut system, own) = match asked.or_else(|| detached.then(|| AskedDaemons::ask(setting))) {
        Some(AskedDaemons { system, own }) => {
            let system = setting.greeted_system_daemon(system);
            let late = || (!is_for_system(&system)).then(|| setting.greet_user_daemon(&Request::InForce));
            let own = own.or_else(late);
            (system, own)
        }
        None if draft.keep => (setting.system_daemon_for_start(), None),
        None => (Err(Unreachable::Absent), None),
    };
    let id = if draft.keep { reserve(setting, !detached, &mut system)? } else { 0 };
    let now_ns = clock::realtime_ns();
    let uid = rustix::process::getuid().as_raw();
    let facts = setting.host.facts();
    // Jobs of two users may get one number while no daemon assigns them, hardly in one microsecond.
    let incarnation = now_ns / 1_000;
    let record = Record {
        user: met_host::users::name_of(uid),
        uid: Some(uid),
        command: draft.command,
        start_ns: Some(now_ns),
        nodes: vec![facts.hostname.clone()],
        node_memory_bytes: facts.memory_total_bytes,
        inside: setting.layouts().job_around(&setting.host, draft.pid.unwrap_or(std::process::id())),
        local: Some(Local {
            stdout: draft.stdout,
            stderr: draft.stderr,
            ..Local::new(&facts.boot_id, draft.origin, draft.cwd)
        }),
        ..Record::new(
            JobKey { cluster: None, manager: LOCAL.to_owned(), id: id.to_string(), incarnation },
            name,
            State::Pending,
        )
    };
    // The supervisor of a detached job reserves the space itself before the command runs.
    if draft.keep && !detached {
        make_room(setting, id, &record)?;
    }
    let events = if detached { events_of_daemon(setting, &mut system, own) } else { None };
    Ok(Assignment {
        record,
        inbox: draft.keep.then(|| setting.user.clone()),
        detached,
        until_last: draft.until_last,
        // A job in a terminal needs the system daemon for its id alone.
        daemon: setting.daemon_place(detached && is_for_system(&system)),
        start_before_cgroup: setting.config.jobs.start_before_cgroup,
        events: events.unwrap_or_else(|| setting.config.perf.events.clone()),
        notify: String::new(),
        env: draft
            .env
            .iter()
            .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect(),
    })
}

/// A system daemon that hangs or is busy now can take the job up later; one of another version cannot.
fn is_for_system<T>(system: &Result<T, Unreachable>) -> bool {
    matches!(system, Ok(_) | Err(Unreachable::Silent { .. } | Unreachable::Busy { .. }))
}

/// On a full disk a job is refused before anything of it runs, and nothing of it stays.
fn make_room(setting: &Setting, id: u64, record: &Record) -> Result<()> {
    let folder = JobDir::open(&setting.user.state, id);
    folder.make_room(record).map_err(|error| {
        let _ = folder.remove();
        setting.user.cannot_keep("a job", &error)
    })
}

/// The events that the daemon counts in jobs; its file may be another one than that of this command. The user's own daemon
/// was asked before, while other things were done, if the job is not the system daemon's.
fn events_of_daemon(
    setting: &Setting,
    system: &mut Result<Client, Unreachable>,
    own: Option<Result<BegunGreeting, Unreachable>>,
) -> Option<Vec<String>> {
    let reply = match own {
        None => system.as_mut().ok().and_then(|system| system.call(&Request::InForce).ok()),
        Some(Err(Unreachable::Absent)) => {
            // The daemon that is about to start has no terminal to say it on.
            if let Some(error) = listening::refusal(setting, &setting.user) {
                tracing::warn!("the daemon will not listen: http: {error}");
            }
            None
        }
        Some(begun) => setting.user_daemon_answer(begun),
    };
    let Some(Reply::InForce(held)) = reply else { return None };
    setting.warn_of_other_file(&held);
    if let Some(error) = &held.http_refused {
        tracing::warn!("the daemon does not listen: http: {error}");
    }
    held.events.into_iter().next().map(|held| held.value)
}

/// An id that neither this user nor, where there is one, the system daemon has given away. If a system daemon runs and
/// cannot be asked, an id of the user's own range, under which it accepts the job later; also if one ran before.
fn reserve(setting: &Setting, timed: bool, system: &mut Result<Client, Unreachable>) -> Result<u64> {
    setting.user.create()?;
    let state = &setting.user.state;
    let unkept = |error: io::Error| setting.user.cannot_keep("a job", &error);
    let reserve_own = || JobDir::reserve_own(state, rustix::process::getuid().as_raw()).map_err(unkept);
    let reserve_for_system = || -> Result<u64> {
        let (id, dir) = reserve_own()?;
        dir.mark_of_system();
        Ok(id)
    };
    let client = match system {
        Ok(client) => client,
        Err(Unreachable::Silent { .. } | Unreachable::Busy { .. } | Unreachable::Foreign { .. }) => {
            return reserve_for_system();
        }
        // A daemon that is stopped has given shared ids, which no other process knows now.
        Err(Unreachable::Absent | Unreachable::Failed(_)) if setting.system.state.is_dir() => {
            return Ok(reserve_own()?.0);
        }
        Err(Unreachable::Absent | Unreachable::Failed(_)) => {
            return Ok(JobDir::reserve(state, 1).map_err(unkept)?.0);
        }
    };
    let (mut own_id, mut own_dir) = JobDir::reserve(state, 1).map_err(unkept)?;
    loop {
        let id = match client.call(&Request::Reserve { at_least: own_id, timed }) {
            Ok(Reply::Reserved { id }) => id,
            Ok(reply) => bail!("unexpected reply from the system daemon: {reply:?}"),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let _ = own_dir.remove();
                return Err(error).context("the system daemon assigns no job id; see `met doctor`");
            }
            // It stopped answering after the greeting.
            Err(error) => {
                let _ = own_dir.remove();
                tracing::warn!("{error}; continuing without it");
                *system = Err(Unreachable::Silent { pid: None });
                return reserve_for_system();
            }
        };
        if id == own_id {
            own_dir.mark_of_system();
            return Ok(id);
        }
        // It assigns no shared id now.
        if id >= SHARED_IDS_END {
            own_dir.remove().map_err(unkept)?;
            return reserve_for_system();
        }
        let claimed = JobDir::claim(state, id);
        own_dir.remove().map_err(unkept)?;
        match claimed {
            Ok(dir) => {
                dir.mark_of_system();
                return Ok(id);
            }
            // Another command of this user has it for its own; further up both agree.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (own_id, own_dir) = JobDir::reserve(state, id + 1).map_err(unkept)?;
            }
            Err(error) => return Err(unkept(error)),
        }
    }
}

fn job_name(given: Option<&str>, command: &[String], own: &[Layout]) -> Result<String> {
    if given.is_some_and(|name| name.trim().is_empty()) {
        return Err(Failure::usage("--name is empty; give the job a name, or leave the option out"));
    }
    if let Some(name) = given
        && !is_free_as_name(name, own)
    {
        return Err(Failure::usage(format!(
            "--name {name}: this is the form of a job id; choose another name"
        )));
    }
    let base =
        |command: &String| Path::new(command).file_name().map(|name| name.to_string_lossy().into_owned());
    let default = || command.first().and_then(base).unwrap_or_else(|| "job".to_owned());
    Ok(given.map_or_else(default, str::to_owned))
}

/// The command line as text, for records and screens. A very long one is cut: it is kept with every record.
pub fn shown(command: &[OsString]) -> Vec<String> {
    let mut room = COMMAND_BYTES_MAX;
    let mut shown = Vec::new();
    for argument in command {
        let text = argument.to_string_lossy();
        if text.len() > room {
            shown.push("…".to_owned());
            break;
        }
        room = room.saturating_sub(text.len() + 1);
        shown.push(text.into_owned());
    }
    shown
}

/// Finds the program before anything is reserved or started.
pub fn find_program(command: &[OsString], path: Option<&OsStr>, cwd: &Path) -> Result<PathBuf> {
    let Some(name) = command.first() else {
        return Err(Failure::usage("no command given; put it after --, as in: met run -- python train.py"));
    };
    look_up(name, path, cwd).map_err(|error| Failure::with_code(error.exit_code(), error.to_string()))
}

/// The command with this process's environment, what the job sets on top, and the variables by which a job
/// is recognised, but for the one that names its supervisor.
pub(crate) fn prepare(program: &OsStr, argv: &[OsString], assignment: &Assignment) -> Result<Command> {
    let string = |text: &[u8]| CString::new(text).context("a NUL byte in the command");
    let mut variables: BTreeMap<Vec<u8>, Vec<u8>> = std::env::vars_os()
        .map(|(key, value)| (key.into_encoded_bytes(), value.into_encoded_bytes()))
        .chain(assignment.env.iter().cloned())
        .collect();
    variables.remove(processes::MARKER.as_bytes());
    variables.remove(processes::MARKS.as_bytes());
    variables.insert(processes::JOB_ID.into(), assignment.record.key.id.clone().into());
    let envp = variables
        .iter()
        .map(|(key, value)| string(&[key.as_slice(), value].join(&b'=')))
        .collect::<Result<_>>()?;
    let argv = argv.iter().map(|argument| string(argument.as_bytes())).collect::<Result<_>>()?;
    Ok(Command { program: string(program.as_bytes())?, argv, envp })
}

/// The command with everything, in the supervisor.
pub(crate) fn marked(mut command: Command, assignment: &Assignment) -> Result<Command> {
    let marker = processes::marker(&assignment.record, std::process::id());
    command.envp.push(CString::new(format!("{}={marker}", processes::MARKER))?);
    // Without a folder a job has no marks; it runs all the same.
    if let Some(path) = supervise::marks(assignment) {
        let variable = [processes::MARKS.as_bytes(), b"=", path.as_os_str().as_bytes()].concat();
        command.envp.push(CString::new(variable)?);
    }
    Ok(command)
}

/// Forks a supervisor that stays in the terminal's foreground. Only while this process has one thread.
pub fn fork_supervisor(
    host: Host,
    assignment: Assignment,
    program: &Path,
    argv: &[OsString],
) -> Result<Supervisor> {
    // Before the fork: a page that the child writes to is copied for it.
    let command = prepare(program.as_os_str(), argv, &assignment)?;
    let (ours, theirs) = UnixStream::pair().context(NO_SUPERVISOR)?;
    let signals = supervise::Signals::block().context(NO_SUPERVISOR)?;
    // SAFETY: one thread; the child goes on as an ordinary single-threaded process.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context(NO_SUPERVISOR),
        0 => {
            drop(ours);
            signals.release();
            met_host::name_process(processes::SUPERVISOR_NAME);
            if let Ok(command) = marked(command, &assignment) {
                let prepared = Preparation::new(&host, assignment.detached);
                supervise::supervise_child(host, prepared, assignment, command, Channel::new(theirs));
            }
            // SAFETY: ends the child without running what the parent registered for its own end.
            unsafe { libc::_exit(0) }
        }
        pid => Ok(Supervisor { channel: ours, pid, signals }),
    }
}

/// A supervisor as its parent sees it.
pub struct Supervisor {
    pub channel: UnixStream,
    pub pid: i32,
    pub signals: supervise::Signals,
}

/// Where a detached job's streams go and where it runs.
pub struct Surroundings {
    pub cwd: PathBuf,
    pub stdout: File,
    pub stderr: File,
}

/// Executes a supervisor of its own: it keeps nothing of this process's memory.
pub fn exec_supervisor(
    assignment: &Assignment,
    program: &OsStr,
    argv: &[OsString],
    surroundings: Surroundings,
) -> Result<UnixStream> {
    let arguments: Vec<&OsStr> =
        std::iter::once(program).chain(argv.iter().map(OsString::as_os_str)).collect();
    let Surroundings { cwd, stdout, stderr } = surroundings;
    exec(assignment, &arguments, &cwd, [stdout.into(), stderr.into()])
}

/// Executes a supervisor for a process that runs already.
pub fn exec_watcher(assignment: &Assignment) -> Result<UnixStream> {
    exec(assignment, &[], Path::new("/"), [Stdio::null(), Stdio::null()])
}

fn exec(
    assignment: &Assignment,
    arguments: &[&OsStr],
    cwd: &Path,
    [stdout, stderr]: [Stdio; 2],
) -> Result<UnixStream> {
    let (mut ours, theirs) = UnixStream::pair().context(NO_SUPERVISOR)?;
    let theirs_fd = theirs.as_raw_fd();
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("met").arg(SUPERVISE).args(arguments);
    command.current_dir(cwd);
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    // SAFETY: dup2 and fcntl are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            // dup2 onto itself would leave close-on-exec set.
            let done = match theirs_fd == CHANNEL_FD {
                true => libc::fcntl(CHANNEL_FD, libc::F_SETFD, 0),
                false => libc::dup2(theirs_fd, CHANNEL_FD),
            };
            if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    command.spawn().context(NO_SUPERVISOR)?;
    drop(theirs);
    protocol::write_frame(&mut ours, assignment).context(ENDED_AT_ONCE)?;
    Ok(ours)
}

/// The life of an executed supervisor. `arguments`: the program and its argument vector.
pub fn run_as_supervisor(arguments: &[OsString]) -> Result<()> {
    use std::os::fd::FromRawFd;
    // SAFETY: the parent passed a socket there, for us alone.
    let mut channel = unsafe { UnixStream::from_raw_fd(CHANNEL_FD) };
    rustix::io::fcntl_setfd(&channel, rustix::io::FdFlags::CLOEXEC)?;
    let assignment: Assignment = protocol::read_frame(&mut channel)?;
    let channel = Channel::new(channel);
    match arguments.split_first() {
        Some((program, argv)) => {
            let command = marked(prepare(program, argv, &assignment)?, &assignment)?;
            let host = Host::real()?;
            let prepared = Preparation::new(&host, assignment.detached);
            supervise::supervise_child(host, prepared, assignment, command, channel);
        }
        None => supervise::supervise_attached(assignment, channel),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use met_store::inbox::own_ids;

    use super::*;
    use met_config::Place;

    #[test]
    fn a_job_that_starts_while_the_system_daemon_cannot_be_asked_gets_an_id_of_the_users_own() {
        let root = tempfile::tempdir().unwrap();
        let place =
            Place { state: root.path().join("state"), runtime: root.path().join("run"), system: false };
        let system =
            Place { state: root.path().join("sys"), runtime: root.path().join("sys-run"), system: true };
        let setting = Setting {
            host: Host::real().unwrap(),
            config: Default::default(),
            config_path: None,
            config_text: String::new(),
            is_config_named: false,
            user: place,
            system: system.clone(),
            server: None,
            reach: Default::default(),
        };
        let own = own_ids(rustix::process::getuid().as_raw());
        let is_marked = |id: u64| {
            let dir = JobDir::open(&setting.user.state, id);
            dir.write_end(&met_core::sample::bare(1, "x")).unwrap();
            dir.is_unreported()
        };
        for busy in
            [Unreachable::Busy { pid: None, reason: String::new() }, Unreachable::Silent { pid: None }]
        {
            let mut system = Err(busy);
            let id = reserve(&setting, false, &mut system).unwrap();
            assert!(own.contains(&id) && is_for_system(&system));
            assert!(is_marked(id), "the daemon is to have its end");
        }
        let absent = || reserve(&setting, false, &mut Err(Unreachable::Absent)).unwrap();
        assert!(absent() < SHARED_IDS_END);
        // One that is stopped has given shared ids to others.
        std::fs::create_dir(&system.state).unwrap();
        let id = absent();
        assert!(own.contains(&id) && !is_marked(id));
    }
}
