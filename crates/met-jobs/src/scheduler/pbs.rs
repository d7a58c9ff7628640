//! PBS: `qstat` in JSON, and `qselect` for what ended meanwhile.

use jiff::civil::DateTime;
use met_core::job::{Resources, State};
use met_core::managers;

use super::command::{Programs, Trouble};
use super::json::{Reader, Value};
use super::text::{SECOND_NS, hosts, local_ns, month_of, size, span_ns, time_ns, word, zone};
use super::{Answer, Kind, Recorded, Scheduler, Window, add, retain_on};
use crate::identity::variables::Variables;
use crate::identity::{Identity, Question};

const MANAGER: &str = managers::Scheduler::Pbs.name();

pub(super) static KIND: Kind = Kind {
    folders: &["/opt/pbs/bin"],
    passed_on: &["PBS_CONF_FILE", "PBS_EXEC"],
    #[cfg(any(test, feature = "fuzzing"))]
    parsers: &[|answer| parse(answer).recorded],
    ..Kind::new(|node| Box::new(Pbs::new(node)), job_id, read_variables)
};

/// Ids in one query: they are long.
const IDS_MAX: usize = 200;
/// Calls for one question, whatever it does not know.
const CALLS_MAX: usize = 32;
const OTHER_MAX: usize = 32;

pub struct Pbs {
    node: Option<String>,
}

impl Pbs {
    pub fn new(node: Option<String>) -> Pbs {
        Pbs { node }
    }

    /// Parts of arrays, too, which are jobs of their own.
    fn status(&self, programs: &mut Programs, more: &[&str]) -> Result<Vec<Recorded>, Trouble> {
        let mut arguments: Vec<String> = ["-t", "-f", "-F", "json"].map(String::from).into();
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        match programs.ask("qstat", &arguments) {
            // A job that it forgot meanwhile is an error message; the others are listed.
            Err(Trouble::Failed { message, .. }) if message.contains("Unknown Job") => Ok(Vec::new()),
            answer => parse(&answer?).whole("qstat"),
        }
    }

    /// One job that it does not know may silence the others: they are asked about in halves.
    fn add_known(
        &mut self,
        programs: &mut Programs,
        ids: &[&str],
        calls: &mut usize,
        found: &mut Vec<Recorded>,
    ) -> Result<(), Trouble> {
        if *calls == 0 {
            return Ok(());
        }
        *calls -= 1;
        let which: Vec<&str> = ["-x"].into_iter().chain(ids.iter().copied()).collect();
        match self.status(programs, &which) {
            Ok(reply) if reply.is_empty() && ids.len() > 1 => {
                let (first, second) = ids.split_at(ids.len() / 2);
                self.add_known(programs, first, calls, found)?;
                self.add_known(programs, second, calls, found)
            }
            reply => add(found, reply),
        }
    }
}

impl Scheduler for Pbs {
    fn manager(&self) -> &'static str {
        MANAGER
    }

    fn ask(&mut self, programs: &mut Programs, window: Window) -> Result<Vec<Recorded>, Trouble> {
        // The history is days long: only jobs that ended in the window are queried.
        let at = |time_s| minute_of(time_s).unwrap_or_default();
        let since = format!("-te.ge.{}", at(window.since_s));
        let until = format!("-te.le.{}", at(window.until_s + 60));
        let ended = match programs.ask("qselect", &["-x".into(), since, until]) {
            // Then the end is not listed, and the node's own record is used.
            Err(Trouble::Failed { message, .. }) if message.contains("job history") => Vec::new(),
            ended => ended?,
        };
        let ended: Vec<String> = String::from_utf8_lossy(&ended).lines().map(str::to_owned).collect();
        let mut answer = self.ask_about(programs, &ended);
        if let (Ok(found), true) = (&mut answer, window.until_s >= window.now_s)
            && let Err(trouble) = add(found, self.status(programs, &[]))
        {
            answer = Err(trouble);
        }
        retain_on(self.node.as_deref(), answer)
    }

    fn ask_about(&mut self, programs: &mut Programs, ids: &[String]) -> Result<Vec<Recorded>, Trouble> {
        let mut found = Vec::new();
        let ids: Vec<&str> = ids.iter().map(|id| id.trim()).filter(|id| is_id(id)).collect();
        let mut calls = CALLS_MAX;
        for ids in ids.chunks(IDS_MAX) {
            self.add_known(programs, ids, &mut calls, &mut found)?;
        }
        Ok(found)
    }
}

/// `12.server`, `12[3].server`.
fn is_id(id: &str) -> bool {
    id.len() < 256
        && id.bytes().next().is_some_and(|first| first.is_ascii_digit())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".[]-_".contains(&byte))
}

/// As `qselect` wants it, in the zone of this machine.
fn minute_of(time_s: i64) -> Option<String> {
    let time = jiff::Timestamp::from_second(time_s).ok()?.to_zoned(zone());
    Some(time.strftime("%Y%m%d%H%M").to_string())
}

pub(super) fn parse(answer: &[u8]) -> Answer {
    let mut found = Vec::new();
    let mut server = None;
    // What can be read before the text makes no sense is true all the same.
    let mut reader = Reader::new(answer);
    let read = reader.each_entry(|name, reader| {
        match name.as_str() {
            "Jobs" => reader.each_entry(|id, reader| {
                found.extend(job(&id, &reader.value()?));
                Some(())
            })?,
            "pbs_server" => server = reader.value()?.text().map(|text| word(text.as_bytes())),
            _ => drop(reader.value()?),
        }
        Some(())
    });
    for job in &mut found {
        job.cluster.clone_from(&server);
    }
    Answer { recorded: found, is_cut_short: reader.is_cut_short(read) }
}

fn job(id: &str, reply: &Value) -> Option<Recorded> {
    if !is_id(id) {
        return None;
    }
    let text = |key: &str| reply.text_at(key).map(|text| word(text.as_bytes()));
    let mut job = Recorded::new(MANAGER, id.to_owned());
    job.name = text("Job_Name").unwrap_or_default();
    job.user = text("euser").or_else(|| text("Job_Owner")?.split('@').next().map(str::to_owned));
    job.account = text("project").filter(|project| project != "_pbs_project_default");
    job.account = text("Account_Name").or(job.account);
    job.manager_state = text("job_state");
    job.start_ns = reply.text_at("stime").and_then(calendar_ns);
    job.nodes = exec_hosts(reply.text_at("exec_host").unwrap_or(""));
    (job.exit_code, job.signal) = reply.number("Exit_status").map_or((None, None), exit);
    job.end_ns = end_ns(reply, &job);
    job.state = state(reply, &job);
    let scheduling = &mut job.scheduling;
    // Users leave the server away.
    let short = id.split('.').next().unwrap_or(id);
    scheduling.alias = Some(short.to_owned()).filter(|short| short != id);
    if let Some((array, rest)) = short.split_once('[') {
        scheduling.array_id = Some(array.to_owned());
        scheduling.array_index = rest.trim_end_matches(']').parse().ok();
    }
    scheduling.partition = text("queue");
    scheduling.reason = text("comment");
    scheduling.restarts = reply.number("run_count").filter(|&runs| runs > 0).map(|runs| runs - 1);
    scheduling.submit_ns = reply.text_at("ctime").and_then(calendar_ns);
    scheduling.eligible_ns = reply.text_at("etime").and_then(calendar_ns);
    if let Some(used) = reply.get("resources_used") {
        scheduling.cpu_ns = used.text_at("cput").and_then(|cput| span_ns(cput, SECOND_NS));
        scheduling.memory_peak_bytes = used.text_at("mem").and_then(|mem| Some(size(mem, 1)?.0));
        scheduling.memory_peak_bytes = scheduling.memory_peak_bytes.filter(|&bytes| bytes > 0);
    }
    let place = reply.get("Resource_List").and_then(|list| list.text_at("place"));
    scheduling.exclusive = place.and_then(exclusive);
    job.requested = reply.get("Resource_List").map(resources).unwrap_or_default();
    if !job.nodes.is_empty() {
        // The allocation equals the request: PBS gives whole chunks.
        job.allocated = Resources { other: Default::default(), ..job.requested.clone() };
        job.allocated.nodes = Some(job.nodes.len() as i64);
    }
    job.forget_plans();
    Some(job)
}

fn end_ns(reply: &Value, job: &Recorded) -> Option<i64> {
    let over = matches!(reply.text_at("job_state"), Some("F" | "X" | "M" | "C"));
    if !over {
        return None;
    }
    // Newer versions write when it ended; else it is the start and how long it took, else the last change.
    let written = reply.text_at("obittime").and_then(calendar_ns);
    let wall_ns = reply.get("resources_used").and_then(|used| span_ns(used.text_at("walltime")?, SECOND_NS));
    let computed = job.start_ns.and_then(|start_ns| start_ns.checked_add(wall_ns?));
    written.or(computed).or_else(|| reply.text_at("mtime").and_then(calendar_ns))
}

/// `scatter:excl`, `exclhost`. Without such a word the node itself may be exclusive.
fn exclusive(place: &str) -> Option<bool> {
    place.split(':').any(|word| matches!(word, "excl" | "exclhost")).then_some(true)
}

fn resources(list: &Value) -> Resources {
    let mut found = Resources::default();
    for (name, value) in list.entries() {
        let Some(text) = value.text().map(|text| word(text.as_bytes())) else { continue };
        match name.as_str() {
            "ncpus" => found.cpus = text.parse().ok(),
            "nodect" => found.nodes = text.parse().ok(),
            "ngpus" => found.gpus = text.parse().ok(),
            "mem" => found.memory_bytes = size(&text, 1).map(|(bytes, _)| bytes),
            "walltime" => found.time_limit_ns = span_ns(&text, SECOND_NS),
            _ if found.other.len() < OTHER_MAX => {
                found.other.insert(word(name.as_bytes()), text);
            }
            _ => {}
        }
    }
    found
}

/// `node1/0*4+node2/0*4`.
fn exec_hosts(text: &str) -> Vec<String> {
    let names = text.split('+').filter_map(|part| part.split('/').next());
    let mut nodes: Vec<String> = names.flat_map(hosts).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Above 256 it is a signal; below zero the job never came to run its script.
fn exit(status: i64) -> (Option<i32>, Option<i32>) {
    match status {
        0..=255 => (Some(status as i32), None),
        257..=320 => (None, Some((status - 256) as i32)),
        _ => (None, None),
    }
}

/// What PBS writes instead of an exit status for jobs that exceeded a limit.
const OVER_MEMORY: [i64; 2] = [-27, -28];
const OVER_TIME: i64 = -29;

fn state(reply: &Value, job: &Recorded) -> State {
    let status = reply.number("Exit_status");
    match reply.text_at("job_state") {
        Some("R" | "E" | "B") => State::Running,
        Some("S" | "U") => State::Suspended,
        Some("F" | "X" | "C" | "M") => match status {
            Some(OVER_TIME) => State::Timeout,
            Some(status) if OVER_MEMORY.contains(&status) => State::OutOfMemory,
            Some(0) => State::Finished,
            // Deleted jobs end by a signal, as others may: the comment distinguishes them.
            _ if reply.text_at("comment").is_some_and(|comment| comment.contains("terminated")) => {
                State::Cancelled
            }
            None if job.start_ns.is_none() => State::Cancelled,
            // A part of an array that is done has its status in the array.
            None if reply.text_at("job_state") == Some("X") => State::Finished,
            _ => State::Failed,
        },
        _ => State::Pending,
    }
}

/// `Sun Nov 15 05:52:59 2026`, in the zone of this machine; or seconds.
pub(super) fn calendar_ns(text: &str) -> Option<i64> {
    if let Some(time_ns) = time_ns(text) {
        return Some(time_ns);
    }
    let mut words = text.split_whitespace().skip(1);
    let (month, day, clock, year) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let mut clock = clock.split(':').map(|part| part.parse::<i8>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let date =
        DateTime::new(year.parse().ok()?, month_of(month)?, day.parse().ok()?, hour, minute, second, 0);
    local_ns(date.ok()?)
}

fn job_id(variables: Variables<'_>, asked: &str) -> Option<String> {
    let stem = |id: &str| id.split('.').next().unwrap_or_default().to_owned();
    variables.text("PBS_JOBID").filter(|found| stem(found) == stem(asked))
}

fn read_variables(variables: Variables<'_>, _: &Question<'_>, identity: &mut Identity) {
    identity.name = variables.text("PBS_JOBNAME");
    identity.account = variables.text("PBS_ACCOUNT");
    identity.scheduling.partition = variables.text("PBS_QUEUE");
    identity.scheduling.folder = variables.text("PBS_O_WORKDIR");
    // `17[3].server`; its users say 17[3].
    if let Some(id) = variables.text("PBS_JOBID") {
        let stem = id.split('.').next().unwrap_or_default();
        if let Some((array, _)) = stem.split_once('[') {
            identity.scheduling.array_id = Some(array.to_owned());
            identity.scheduling.array_index = variables
                .number("PBS_ARRAY_INDEX")
                .or_else(|| stem.split_once('[')?.1.trim_end_matches(']').parse().ok());
        }
        identity.scheduling.alias = (stem != id).then(|| stem.to_owned());
    }
    identity.allocated.cpus = variables.positive("NCPUS");
}
