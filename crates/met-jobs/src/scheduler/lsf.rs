//! LSF: `bjobs` in JSON.
//!
//! `bjobs -a` also lists what ended within the last hour (CLEAN_PERIOD), and single jobs for as
//! long: asked more often than that, nothing is left for `bhist`, which has no form for programs.
//!
//! No field of `bjobs -o` has `bsub -x`. `bhosts -l` says of a host that an exclusive job runs on it.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use jiff::civil::DateTime;
use met_core::hostlist::NODES_MAX;
use met_core::job::{Resources, State};
use met_core::managers;

use super::command::{Programs, Trouble};
use super::json::{Reader, Value};
use super::text::{SECOND_NS, filled, hosts, local_ns, month_of, size, span_ns, time_ns, word, zone};
use super::{Answer, Kind, Recorded, Scheduler, Window, add, retain_on};
use crate::identity::variables::Variables;
use crate::identity::{Identity, Question};

const MANAGER: &str = managers::Scheduler::Lsf.name();

pub(super) static KIND: Kind = Kind {
    environment: &[("LSB_DISPLAY_YEAR", "Y")],
    passed_on: &["LSF_ENVDIR", "LSF_BINDIR", "LSF_LIBDIR", "LSF_SERVERDIR"],
    #[cfg(any(test, feature = "fuzzing"))]
    parsers: &[|answer| parse(answer, super::fuzz::NOW_S).recorded],
    ..Kind::new(|node| Box::new(Lsf::new(node)), job_id, read_variables)
};

const FIELDS: &str = "jobid jobindex stat user queue job_name proj_name exec_host submit_time start_time \
                      finish_time exit_code exit_reason nalloc_slot nreq_slot effective_resreq memlimit runtimelimit \
                      cpu_used max_mem pend_reason";
const IDS_MAX: usize = 200;
/// Hosts that one round asks about; the other jobs' turn comes later.
const HOSTS_MAX: usize = 200;
const KNOWN_MAX: usize = 10_000;
/// "The host is currently running an exclusive job", in the long format.
const EXCLUSIVE: &str = "closed_Excl";
/// States of a host that runs no exclusive job. The others, such as `unreach`, say nothing of it.
const SHARED: &[&str] = &["ok", "closed_Full", "closed_Busy"];
/// Rounds without a question after one that failed.
pub(super) const PAUSE_ROUNDS: u32 = 10;

pub struct Lsf {
    node: Option<String>,
    /// Of live jobs: whether a host of theirs is in exclusive mode. It is for as long as they run.
    exclusive: HashMap<String, bool>,
    /// Rounds until `bhosts` is asked again, after it failed.
    pause: u32,
}

impl Lsf {
    pub fn new(node: Option<String>) -> Lsf {
        Lsf { node, exclusive: HashMap::new(), pause: 0 }
    }

    /// Asks about each job until the state of its host says it. After a failure it pauses; the jobs are known all the same.
    fn learn_exclusive(&mut self, programs: &mut Programs, recorded: &[Recorded]) {
        self.pause = self.pause.saturating_sub(1);
        let mut asked = alone(recorded);
        asked.retain(|id, _| !self.exclusive.contains_key(*id));
        let mut asked: Vec<(&str, &str)> = asked.into_iter().take(HOSTS_MAX).collect();
        asked.sort_unstable();
        if asked.is_empty() || self.pause > 0 {
            return;
        }
        let hosts = asked.iter().map(|(_, host)| (*host).to_owned());
        let arguments: Vec<String> = ["-l".to_owned()].into_iter().chain(hosts).collect();
        let Ok(answer) = programs.ask("bhosts", &arguments) else {
            self.pause = PAUSE_ROUNDS;
            return;
        };
        let states = host_states(&answer);
        for (id, host) in asked {
            match states.get(host).map(String::as_str) {
                Some(EXCLUSIVE) => drop(self.exclusive.insert(id.to_owned(), true)),
                Some(state) if SHARED.contains(&state) => drop(self.exclusive.insert(id.to_owned(), false)),
                _ => {}
            }
        }
    }

    fn add_exclusive(&self, recorded: &mut [Recorded]) {
        for job in recorded {
            job.scheduling.exclusive = self.exclusive.get(&job.id).filter(|&&exclusive| exclusive).copied();
        }
    }

    fn answer(&self, programs: &mut Programs, which: &[&str]) -> Result<Vec<Recorded>, Trouble> {
        let mut arguments: Vec<String> = ["-json", "-o", FIELDS].map(String::from).into();
        arguments.extend(which.iter().map(|&argument| argument.to_owned()));
        let answer = match programs.ask("bjobs", &arguments) {
            Err(Trouble::Failed { message, .. }) if is_nothing(&message) => Vec::new(),
            answer => answer?,
        };
        parse(&answer, Timestamp::now().as_second()).whole("bjobs")
    }
}

fn is_nothing(message: &str) -> bool {
    ["No job found", "No unfinished job found", "is not found"].iter().any(|words| message.contains(words))
}

impl Scheduler for Lsf {
    fn manager(&self) -> &'static str {
        MANAGER
    }

    fn ask(&mut self, programs: &mut Programs, window: Window) -> Result<Vec<Recorded>, Trouble> {
        // It cannot select a time: it lists all that it remembers.
        if window.until_s < window.now_s {
            return Ok(Vec::new());
        }
        let mut answer = retain_on(self.node.as_deref(), self.answer(programs, &["-a", "-u", "all"]));
        if let Ok(recorded) = &mut answer {
            let live: HashSet<&str> = live(recorded).map(|job| job.id.as_str()).collect();
            self.exclusive.retain(|id, _| live.contains(id.as_str()));
            self.learn_exclusive(programs, recorded);
            self.add_exclusive(recorded);
        }
        answer
    }

    fn ask_about(&mut self, programs: &mut Programs, ids: &[String]) -> Result<Vec<Recorded>, Trouble> {
        let is_id = |id: &&str| id.bytes().all(|byte| byte.is_ascii_digit() || b"[]".contains(&byte));
        let ids: Vec<&str> = ids.iter().map(String::as_str).filter(is_id).collect();
        let mut found = Vec::new();
        for ids in ids.chunks(IDS_MAX) {
            let mut which = vec!["-a", "-u", "all"];
            which.extend_from_slice(ids);
            add(&mut found, self.answer(programs, &which))?;
        }
        // Which of them have ended is not in the answer.
        if self.exclusive.len() > KNOWN_MAX {
            self.exclusive.clear();
        }
        self.learn_exclusive(programs, &found);
        self.add_exclusive(&mut found);
        Ok(found)
    }
}

/// `now_s` gives the year of times that are written without one.
pub(super) fn parse(answer: &[u8], now_s: i64) -> Answer {
    let mut recorded = Vec::new();
    // What can be read before the text makes no sense is true all the same.
    let mut reader = Reader::new(answer);
    let read = reader.each_entry(|name, reader| {
        match name.as_str() {
            "RECORDS" => reader.each_item(|reader| {
                recorded.extend(job(&reader.value()?, now_s));
                Some(())
            })?,
            _ => drop(reader.value()?),
        }
        Some(())
    });
    Answer { recorded, is_cut_short: reader.is_cut_short(read) }
}

fn job(reply: &Value, now_s: i64) -> Option<Recorded> {
    let text = |key: &str| reply.text_at(key).and_then(filled).map(|text| word(text.as_bytes()));
    let time = |key: &str| calendar_ns(reply.text_at(key)?, now_s);
    let id = text("JOBID").filter(|id| id.bytes().all(|byte| byte.is_ascii_digit()))?;
    let index = reply.number("JOBINDEX").filter(|&index| index > 0);
    let mut job = Recorded::new(MANAGER, index.map_or(id.clone(), |index| format!("{id}[{index}]")));
    job.cluster = text("CLUSTER_NAME");
    job.name = text("JOB_NAME").unwrap_or_default();
    job.user = text("USER");
    job.account = text("PROJ_NAME").filter(|project| project != "default");
    job.manager_state = text("STAT");
    (job.start_ns, job.end_ns) = (time("START_TIME"), time("FINISH_TIME"));
    job.nodes = exec_hosts(reply.text_at("EXEC_HOST").unwrap_or(""));
    // Above 128 a signal ended it, as in shells.
    (job.exit_code, job.signal) = match reply.number("EXIT_CODE") {
        Some(code @ 129..=192) => (None, Some((code - 128) as i32)),
        Some(code @ 0..=255) => (Some(code as i32), None),
        _ => (None, None),
    };
    job.state = state(reply);
    if job.state == State::Finished {
        job.exit_code = Some(job.exit_code.unwrap_or(0));
    }
    let scheduling = &mut job.scheduling;
    scheduling.array_id = index.map(|_| id);
    scheduling.array_index = index;
    scheduling.partition = text("QUEUE");
    scheduling.reason = text("EXIT_REASON").or_else(|| text("PEND_REASON"));
    scheduling.submit_ns = time("SUBMIT_TIME");
    scheduling.cpu_ns = reply.text_at("CPU_USED").and_then(seconds_ns);
    scheduling.memory_peak_bytes = reply.text_at("MAX_MEM").and_then(|mem| Some(size(mem, 1 << 20)?.0));
    job.requested = Resources {
        cpus: reply.number("NREQ_SLOT"),
        memory_bytes: reply.text_at("MEMLIMIT").and_then(|limit| Some(size(limit, 1 << 10)?.0)),
        gpus: reply.number("GPU_NUM"),
        time_limit_ns: reply.text_at("RUNTIMELIMIT").and_then(|limit| span_ns(limit, 60 * SECOND_NS)),
        ..Resources::default()
    };
    if let Some(wanted) = text("EFFECTIVE_RESREQ") {
        job.requested.other.insert("resreq".to_owned(), wanted);
    }
    if !job.nodes.is_empty() {
        job.allocated.nodes = Some(job.nodes.len() as i64);
        job.allocated.cpus = reply.number("NALLOC_SLOT");
        job.allocated.gpus = job.requested.gpus;
    }
    job.forget_plans();
    Some(job)
}

fn state(reply: &Value) -> State {
    let reason = reply.text_at("EXIT_REASON").unwrap_or("");
    match reply.text_at("STAT") {
        Some("RUN" | "WAIT" | "PROV") => State::Running,
        Some("USUSP" | "SSUSP") => State::Suspended,
        Some("DONE") => State::Finished,
        Some("EXIT") => match reason.split(':').next().unwrap_or("") {
            "TERM_RUNLIMIT" | "TERM_DEADLINE" | "TERM_CPULIMIT" => State::Timeout,
            "TERM_MEMLIMIT" | "TERM_SWAP" => State::OutOfMemory,
            kind if kind.starts_with("TERM_") => State::Cancelled,
            _ => State::Failed,
        },
        Some("ZOMBI" | "UNKWN") => State::Lost,
        _ => State::Pending,
    }
}

fn live(recorded: &[Recorded]) -> impl Iterator<Item = &Recorded> {
    recorded.iter().filter(|job| matches!(job.state, State::Running | State::Suspended))
}

/// Running jobs that no other job shares a host with, by id, and this host: where others are, no job is exclusive, or
/// an administrator has forced them in.
fn alone(recorded: &[Recorded]) -> HashMap<&str, &str> {
    let mut jobs_on: HashMap<&str, usize> = HashMap::new();
    for node in live(recorded).flat_map(|job| &job.nodes) {
        *jobs_on.entry(node).or_default() += 1;
    }
    let running = live(recorded).filter(|job| job.state == State::Running);
    let own = |job: &'_ Recorded| job.nodes.iter().position(|node| jobs_on[node.as_str()] == 1);
    running.filter_map(|job| Some((job.id.as_str(), job.nodes[own(job)?].as_str()))).collect()
}

/// Of `bhosts -l`: a line `HOST  node1`, a line of headings, and one that begins with the state.
pub(super) fn host_states(answer: &[u8]) -> HashMap<String, String> {
    let text = String::from_utf8_lossy(answer);
    let (mut states, mut host, mut is_next) = (HashMap::new(), None, false);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("HOST"), Some(name)) => (host, is_next) = (Some(name.to_owned()), false),
            (Some("STATUS"), Some("CPUF")) => is_next = true,
            (Some(state), _) if std::mem::take(&mut is_next) => {
                states.extend(host.take().map(|host| (host, state.to_owned())));
            }
            _ => {}
        }
    }
    states
}

/// `4*node1:node2`.
fn exec_hosts(text: &str) -> Vec<String> {
    let parts = filled(text).into_iter().flat_map(|text| text.split([':', ' ']));
    let mut nodes: Vec<String> = parts.filter_map(|part| part.rsplit('*').next()).flat_map(hosts).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// `12.5 second(s)`.
fn seconds_ns(text: &str) -> Option<i64> {
    span_ns(text.split_whitespace().next()?, SECOND_NS)
}

/// `Nov 15 05:52`, with seconds or a year in some versions, and `L`, `E` or `X` behind an estimate or a limit.
fn calendar_ns(text: &str, now_s: i64) -> Option<i64> {
    if let Some(time_ns) = time_ns(text) {
        return Some(time_ns);
    }
    let mut words = text.split_whitespace().filter(|word| !matches!(*word, "L" | "E" | "X"));
    let (month, day, clock) = (month_of(words.next()?)?, words.next()?.parse().ok()?, words.next()?);
    let mut clock = clock.split(':').map(|part| part.parse::<i8>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next().flatten().unwrap_or(0));
    let at = |year: i16| local_ns(DateTime::new(year, month, day, hour, minute, second, 0).ok()?);
    match words.next() {
        Some(year) => at(year.parse().ok()?),
        None => {
            let now = Timestamp::from_second(now_s).ok()?.to_zoned(zone());
            // The latest year in which it is past: nothing is read of plans.
            let latest_ns = now_s.saturating_add(86_400).saturating_mul(SECOND_NS);
            at(now.year()).filter(|&time_ns| time_ns <= latest_ns).or_else(|| at(now.year() - 1))
        }
    }
}

fn job_id(variables: Variables<'_>, asked: &str) -> Option<String> {
    let number = asked.split(['[', '.', '_']).next().unwrap_or_default();
    variables.digits("LSB_JOBID").filter(|found| found == number)
}

fn read_variables(variables: Variables<'_>, _: &Question<'_>, identity: &mut Identity) {
    identity.name = variables.text("LSB_JOBNAME");
    identity.account = variables.text("LSB_PROJECT_NAME");
    identity.scheduling.partition = variables.text("LSB_QUEUE");
    identity.scheduling.folder = variables.text("LS_SUBCWD");
    // 0 is no element of an array.
    if let (Some(array), Some(index)) = (variables.digits("LSB_JOBID"), variables.positive("LSB_JOBINDEX")) {
        identity.scheduling.alias = Some(format!("{array}[{index}]"));
        (identity.scheduling.array_id, identity.scheduling.array_index) = (Some(array), Some(index));
    }
    identity.allocated.cpus = variables.positive("LSB_DJOB_NUMPROC");
    // `hostA 4 hostB 2`: each node with its CPUs.
    if let Some(hosts) = variables.text("LSB_MCPU_HOSTS") {
        identity.nodes = hosts.split_whitespace().step_by(2).take(NODES_MAX).map(str::to_owned).collect();
        identity.allocated.nodes = i64::try_from(identity.nodes.len()).ok().filter(|&count| count > 0);
    }
}
