//! OAR: `oarstat` in JSON.

use std::path::{Path, PathBuf};

use met_core::job::{Resources, State};
use met_core::managers;

use super::command::{Programs, Trouble};
use super::json::{Reader, Value};
use super::text::{SECOND_NS, exit_of_status, word};
use super::{Answer, Kind, Recorded, Scheduler, Window, add, retain_on};
use crate::identity::variables::Variables;
use crate::identity::{Identity, Question};

const MANAGER: &str = managers::Scheduler::Oar.name();

pub(super) static KIND: Kind = Kind {
    node_file: Some(node_file),
    folders: &["/opt/oar/bin"],
    // For OAR's own program, run without the wrapper that sets these.
    environment: &[("OARDIR", "/usr/lib/oar"), ("OARDO_USER", "root"), ("OARCONFFILE", CONFIGURATION)],
    passed_on: &["OARCONFFILE"],
    #[cfg(any(test, feature = "fuzzing"))]
    parsers: &[|answer| parse(answer).recorded],
    ..Kind::new(|node| Box::new(Oar::new(node)), job_id, read_variables)
};

/// What the users' command runs with the rights of OAR's own account.
const DIRECT: &str = "/usr/lib/oar/oarstat";
const CONFIGURATION: &str = "/etc/oar/oar.conf";
/// Ids in one query.
const IDS_MAX: usize = 500;
const NODES_MAX: usize = 16 << 10;

pub struct Oar {
    node: Option<String>,
}

impl Oar {
    pub fn new(node: Option<String>) -> Oar {
        Oar { node }
    }

    fn answer(&self, programs: &mut Programs, condition: String) -> Result<Vec<Recorded>, Trouble> {
        let arguments = ["-f", "-J", "--sql", &condition].map(String::from);
        // A daemon that gave up the right to become another user cannot use the users' command, and needs
        // not: it may read the configuration itself.
        let direct = Path::new(DIRECT);
        let is_users_own = programs.find("oarstat").is_some_and(|path| path.starts_with("/usr/bin"));
        let answer = match is_users_own && direct.exists() && std::fs::File::open(CONFIGURATION).is_ok() {
            true => programs.ask_at("oarstat", direct, &arguments)?,
            false => programs.ask("oarstat", &arguments)?,
        };
        parse(&answer).whole("oarstat")
    }
}

impl Scheduler for Oar {
    fn manager(&self) -> &'static str {
        MANAGER
    }

    fn ask(&mut self, programs: &mut Programs, window: Window) -> Result<Vec<Recorded>, Trouble> {
        let Window { since_s, until_s, now_s } = window;
        let ended = "state IN ('Terminated','Error')";
        let condition = match until_s < now_s {
            true => format!("{ended} AND stop_time >= {since_s} AND stop_time <= {until_s}"),
            false => format!("NOT ({ended}) OR stop_time >= {since_s}"),
        };
        retain_on(self.node.as_deref(), self.answer(programs, condition))
    }

    fn ask_about(&mut self, programs: &mut Programs, ids: &[String]) -> Result<Vec<Recorded>, Trouble> {
        let mut found = Vec::new();
        let ids: Vec<&str> = ids.iter().map(String::as_str).filter(|id| id.parse::<u64>().is_ok()).collect();
        for ids in ids.chunks(IDS_MAX) {
            add(&mut found, self.answer(programs, format!("job_id IN ({})", ids.join(","))))?;
        }
        Ok(found)
    }
}

/// No job at all is no text at all.
pub(super) fn parse(answer: &[u8]) -> Answer {
    let mut recorded = Vec::new();
    // What can be read before the text makes no sense is true all the same.
    let mut reader = Reader::new(answer);
    let read = reader.each_entry(|id, reader| {
        recorded.extend(job(&id, &reader.value()?));
        Some(())
    });
    Answer { recorded, is_cut_short: reader.is_cut_short(read) }
}

fn job(id: &str, reply: &Value) -> Option<Recorded> {
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let text = |key: &str| reply.text_at(key).map(|text| word(text.as_bytes()));
    let seconds = |key: &str| reply.number(key).filter(|&seconds| seconds > 0)?.checked_mul(SECOND_NS);
    let mut job = Recorded::new(MANAGER, id.to_owned());
    job.name = text("name").unwrap_or_default();
    job.user = text("owner");
    job.account = text("project");
    job.command = text("command").into_iter().collect();
    job.manager_state = text("state");
    (job.start_ns, job.end_ns) = (seconds("startTime"), seconds("stopTime"));
    if let Some(status) = reply.number("exit_code") {
        (job.exit_code, job.signal) = exit_of_status(status);
    }
    job.state = state(reply, &job);
    let nodes = reply.list("assigned_network_address").iter().take(NODES_MAX);
    job.nodes = nodes.filter_map(|node| Some(word(node.text()?.as_bytes()))).collect();
    job.nodes.sort_unstable();
    job.nodes.dedup();
    let scheduling = &mut job.scheduling;
    scheduling.partition = text("queue");
    scheduling.submit_ns = seconds("submissionTime");
    // A lone job is an array of one.
    let array_id = reply.number("array_id").map(|array| array.to_string());
    let index = reply.number("array_index");
    let is_array = array_id.as_deref() != Some(id)
        || index.is_some_and(|index| index > 1)
        || reply.text_at("initial_request").is_some_and(|request| request.contains(" --array"));
    (scheduling.array_id, scheduling.array_index) = if is_array { (array_id, index) } else { (None, None) };
    scheduling.restarts = reply.number("resubmit_job_id").filter(|&before| before > 0).map(|_| 1);
    scheduling.reason = reason(reply);
    let walltime_ns = seconds("walltime");
    job.requested = Resources { time_limit_ns: walltime_ns, ..Resources::default() };
    let is_shared =
        reply.list("types").iter().filter_map(Value::text).any(|kind| kind.starts_with("timesharing"));
    scheduling.exclusive = reply.text_at("wanted_resources").filter(|_| !is_shared).and_then(exclusive);
    if let Some(wanted) = text("wanted_resources") {
        job.requested.other.insert("resources".to_owned(), wanted.trim().to_owned());
    }
    let given = reply.list("assigned_resources").len() as i64;
    if given > 0 {
        job.allocated.nodes = Some(job.nodes.len() as i64).filter(|&nodes| nodes > 0);
        job.allocated.time_limit_ns = walltime_ns;
        // What one is, a core or a whole host, is for the site to say.
        job.allocated.other.insert("resources".to_owned(), given.to_string());
    }
    job.forget_plans();
    Some(job)
}

/// `-l "{type = 'default'}/host=2,walltime=1:0:0"`: a request that ends at hosts takes them whole. What is below one,
/// such as `/host=1/core=4`, may be all of it.
fn exclusive(wanted: &str) -> Option<bool> {
    let levels = |group: &str| {
        let (_, path) = group.rsplit_once('}').unwrap_or(("", group));
        let (last, _) = path.rsplit('/').next()?.split_once('=')?;
        Some(matches!(last.trim(), "host" | "nodes" | "network_address"))
    };
    let lists = wanted.split("-l ").map(|list| list.trim().trim_matches('"')).filter(|list| !list.is_empty());
    // Which of several requests was granted is not known: all of them end at hosts.
    let mut groups =
        lists.flat_map(|list| list.split(",walltime").next().unwrap_or_default().split('+')).peekable();
    let is_whole = groups.peek().is_some() && groups.all(|group| levels(group) == Some(true));
    is_whole.then_some(true)
}

fn has_event(reply: &Value, kind: &str) -> bool {
    reply.list("events").iter().any(|event| event.text_at("type") == Some(kind))
}

/// A job that exceeded its time and one that was deleted are both `Error`: the events distinguish them.
fn state(reply: &Value, job: &Recorded) -> State {
    let ended = |otherwise| match () {
        _ if has_event(reply, "WALLTIME") => State::Timeout,
        _ if has_event(reply, "FRAG_JOB_REQUEST") => State::Cancelled,
        _ => otherwise,
    };
    match reply.text_at("state") {
        Some("Running" | "Finishing" | "Launching" | "toError" | "Resuming") => State::Running,
        Some("Suspended") => State::Suspended,
        Some("Terminated") if job.signal.is_some() || job.exit_code.is_some_and(|code| code != 0) => {
            ended(State::Failed)
        }
        Some("Terminated") => ended(State::Finished),
        Some("Error") => ended(State::Failed),
        Some("Waiting" | "Hold" | "toLaunch" | "toAckReservation") => State::Pending,
        _ if job.end_ns.is_some() => State::Failed,
        _ => State::Pending,
    }
}

/// The last thing that went wrong, in OAR's words; while it waits, its message.
fn reason(reply: &Value) -> Option<String> {
    let ordinary = ["SWITCH_INTO_TERMINATE_STATE", "SWITCH_INTO_ERROR_STATE", "SEND_KILL_JOB"];
    let is_unusual = |event: &&Value| event.text_at("type").is_some_and(|kind| !ordinary.contains(&kind));
    let event = reply.list("events").iter().rfind(is_unusual);
    let message = event.and_then(|event| event.text_at("description"));
    let waits = matches!(reply.text_at("state"), Some("Waiting" | "Hold"));
    let message = message.or_else(|| reply.text_at("message").filter(|_| waits))?;
    Some(word(message.as_bytes()))
}

fn job_id(variables: Variables<'_>, asked: &str) -> Option<String> {
    variables.digits("OAR_JOB_ID").filter(|found| found == asked)
}

fn read_variables(variables: Variables<'_>, question: &Question<'_>, identity: &mut Identity) {
    identity.name = variables.text("OAR_JOB_NAME");
    identity.account = variables.text("OAR_PROJECT_NAME");
    identity.scheduling.folder = variables.text("OAR_WORKING_DIRECTORY");
    let array = variables.digits("OAR_ARRAY_ID");
    let index = variables.number("OAR_ARRAY_INDEX");
    // Every job is an array of one; only from the second element on it shows.
    if array.as_deref() != Some(question.id) || index.is_some_and(|index| index > 1) {
        (identity.scheduling.array_id, identity.scheduling.array_index) = (array, index);
    }
    let seconds = variables.positive("OAR_JOB_WALLTIME_SECONDS");
    identity.requested.time_limit_ns = seconds.and_then(|seconds| seconds.checked_mul(SECOND_NS));
}

/// The list of a job's nodes, where OAR itself keeps it: another path may lead anywhere.
fn node_file(variables: Variables<'_>, question: &Question<'_>) -> Option<PathBuf> {
    let id = question.id;
    let path = format!("/var/lib/oar/{id}");
    let is_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    let is_own = is_number && variables.text("OAR_NODE_FILE")? == path;
    is_own.then(|| PathBuf::from(path))
}
