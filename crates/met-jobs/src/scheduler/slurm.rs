//! SLURM: `sacct`, and `squeue` where nothing is accounted.

use std::collections::{HashMap, HashSet};

use met_core::hostlist::{self, NODES_MAX};
use met_core::job::{Part, Resources, State};
use met_core::managers;

use super::command::{Programs, Trouble};
use super::text::{SECOND_NS, exit_of_status, filled, hosts, size, span_ns, time_ns, word};
use super::{Kind, OtherName, PageOf, QueuePages, Recorded, Scheduler, Window};
use crate::identity::variables::Variables;
use crate::identity::{Identity, Question};

const MANAGER: &str = managers::Scheduler::Slurm.name();

pub(super) static KIND: Kind = Kind {
    other_name: Some(OtherName { is_one: is_sluid, variable: JOB_ID }),
    members: Some(members),
    // From 25.11 on, at the port of slurmctld. A job of several partitions counts in the first that is tried.
    queue_pages: Some(QueuePages {
        by_partition: PageOf {
            path: "/metrics/partitions",
            label: "partition",
            pending: "slurm_partition_jobs_pending",
            held: "slurm_partition_jobs_hold",
        },
        by_user: PageOf {
            path: "/metrics/jobs-users-accts",
            label: "username",
            pending: "slurm_user_jobs_pending",
            held: "slurm_user_jobs_hold",
        },
        remedy: "it needs Slurm 25.11 or newer and MetricsType=metrics/openmetrics in slurm.conf",
    }),
    folders: &["/opt/slurm/bin", "/opt/slurm/current/bin"],
    // Unix seconds: a time without its zone is ambiguous for an hour each autumn.
    environment: &[("SLURM_TIME_FORMAT", "%s")],
    passed_on: &["SLURM_CONF"],
    #[cfg(any(test, feature = "fuzzing"))]
    parsers: &[
        |answer| parse_sacct(answer, super::fuzz::DELIMITER),
        |answer| parse_squeue(answer, super::fuzz::DELIMITER),
        super::queue_page::fuzzed,
    ],
    ..Kind::new(|node| Box::new(Slurm::new(node)), job_id, read_variables)
};

/// The name last: a line that continues it has no other fields.
const FIELDS: &[&str] = &[
    "Cluster",
    "JobIDRaw",
    "JobID",
    "UID",
    "User",
    "Account",
    "Partition",
    "QOS",
    "State",
    "ExitCode",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "Timelimit",
    "Reason",
    "NNodes",
    "NodeList",
    "ReqTRES",
    "AllocTRES",
    "ReqMem",
    "ReqCPUS",
    "ReqNodes",
    "TotalCPU",
    "MaxRSS",
    "Restarts",
    "JobName",
];
/// What `squeue` calls the same, and how long it is: it cuts and it pads, so that less is more jobs.
const QUEUE_FIELDS: &[(&str, &str, u32)] = &[
    ("Cluster", "Cluster", 32),
    ("JobID", "JobIDRaw", 12),
    ("JobArrayID", "JobID", 64),
    ("UserID", "UID", 12),
    ("UserName", "User", 32),
    ("Account", "Account", 32),
    ("Partition", "Partition", 64),
    ("QOS", "QOS", 32),
    ("State", "State", 20),
    ("exit_code", "Status", 8),
    ("SubmitTime", "Submit", 20),
    ("EligibleTime", "Eligible", 20),
    ("StartTime", "Start", 20),
    ("EndTime", "End", 20),
    ("TimeLimit", "Timelimit", 16),
    ("Reason", "Reason", 48),
    ("NumNodes", "NNodes", 8),
    ("NodeList", "NodeList", 1024),
    ("tres-alloc", "TRES", 256),
    ("MinMemory", "ReqMem", 16),
    ("NumCPUs", "ReqCPUS", 8),
    ("RestartCnt", "Restarts", 6),
    ("OverSubscribe", "OverSubscribe", 6),
    ("Name", "JobName", 256),
];
/// Steps beyond that have one line together.
const PARTS_MAX: usize = 256;
/// Names of resources that are kept.
const OTHER_MAX: usize = 32;
const MEGABYTE: i64 = 1 << 20;
/// The variable with the id of a job.
const JOB_ID: &str = "SLURM_JOB_ID";
/// Pairs of a user and an account.
const MEMBERS_MAX: usize = 1_000_000;
/// Ids in one question.
const IDS_MAX: usize = 500;

pub struct Slurm {
    node: Option<String>,
    /// Fields that this version does not know.
    unknown: Vec<String>,
}

impl Slurm {
    /// A node is called by the first part of its host name, unless its site names it otherwise.
    pub fn new(node: Option<String>) -> Slurm {
        let short = |name: String| name.split('.').next().unwrap_or_default().to_owned();
        Slurm { node: node.map(short), unknown: Vec::new() }
    }

    fn account(&mut self, programs: &mut Programs, which: &[String]) -> Result<Vec<Recorded>, Trouble> {
        loop {
            let delimiter = unguessable();
            let fields: Vec<&str> = FIELDS
                .iter()
                .copied()
                .filter(|field| !self.unknown.iter().any(|name| name == field))
                .collect();
            let mut arguments: Vec<String> =
                ["--duplicates", "--allusers", "--noconvert", "--parsable2"].map(String::from).into();
            arguments.push(format!("--delimiter={delimiter}"));
            arguments.push(format!("--format={}", fields.join(",")));
            arguments.extend_from_slice(which);
            match programs.ask("sacct", &arguments) {
                Ok(answer) => return Ok(parse_sacct(&answer, &delimiter)),
                Err(Trouble::Failed { message, .. }) if self.learn_unknown(&message) => {}
                Err(trouble) => return Err(trouble),
            }
        }
    }

    /// `Invalid field requested: "Restarts"`: an older version is queried again without it.
    fn learn_unknown(&mut self, message: &str) -> bool {
        let Some(named) = message.split("Invalid field requested: ").nth(1) else { return false };
        let named = named.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
        let is_ours = FIELDS.contains(&named) && !self.unknown.iter().any(|known| known == named);
        if is_ours {
            self.unknown.push(named.to_owned());
        }
        is_ours
    }

    /// With all states: those that live and those that ended minutes ago.
    fn queue(
        &self,
        programs: &mut Programs,
        states: &str,
        node: Option<&str>,
    ) -> Result<Vec<Recorded>, Trouble> {
        let delimiter = unguessable();
        let field = |&(name, _, length): &(&str, &str, u32)| match name {
            // Pending jobs have no nodes, and there may be many.
            "NodeList" if states == "PENDING" => format!("{name}:1{delimiter}"),
            _ => format!("{name}:{length}{delimiter}"),
        };
        let format: Vec<String> = QUEUE_FIELDS.iter().map(field).collect();
        let mut arguments: Vec<String> = ["--all", "--noheader"].map(String::from).into();
        arguments.push(format!("--states={states}"));
        arguments.push(format!("--Format={}", format.join(",")));
        arguments.extend(node.iter().map(|node| format!("--nodelist={node}")));
        Ok(parse_squeue(&programs.ask("squeue", &arguments)?, &delimiter))
    }
}

impl Scheduler for Slurm {
    fn manager(&self) -> &'static str {
        MANAGER
    }

    fn ask(&mut self, programs: &mut Programs, window: Window) -> Result<Vec<Recorded>, Trouble> {
        // Counted from now, a time is the same in every zone.
        let ago = |time_s: i64| format!("now-{}", (window.now_s - time_s).max(0));
        let mut which = vec![format!("--starttime={}", ago(window.since_s))];
        if window.until_s < window.now_s {
            which.push(format!("--endtime={}", ago(window.until_s)));
        }
        which.extend(self.node.iter().map(|node| format!("--nodelist={node}")));
        match self.account(programs, &which) {
            Err(Trouble::Failed { message, .. }) if is_without_accounting(&message) => {
                self.queue(programs, "all", self.node.as_deref())
            }
            answer => {
                let mut recorded = answer?;
                if self.node.is_none() && window.until_s >= window.now_s {
                    // Accounting lists neither jobs that are held or begin later, nor why one waits. If
                    // the controller does not answer, they are enough.
                    let waiting = self.queue(programs, "PENDING", None).unwrap_or_default();
                    add_waiting(&mut recorded, waiting);
                }
                Ok(recorded)
            }
        }
    }

    fn ask_about(&mut self, programs: &mut Programs, ids: &[String]) -> Result<Vec<Recorded>, Trouble> {
        let mut found = Vec::new();
        let ids: Vec<&str> = ids.iter().map(String::as_str).filter(|id| is_number(id)).collect();
        let wanted: HashSet<&str> = ids.iter().copied().collect();
        for ids in ids.chunks(IDS_MAX) {
            let which = format!("--jobs={}", ids.join(","));
            match self.account(programs, &[which]) {
                Err(Trouble::Failed { message, .. }) if is_without_accounting(&message) => {
                    // It forgets a job minutes after its end, and complains about one it does not know.
                    let mut known = self.queue(programs, "all", None)?;
                    known.retain(|known| wanted.contains(known.id.as_str()));
                    return Ok(known);
                }
                answer => found.extend(answer?),
            }
        }
        Ok(found)
    }
}

/// The queue, which was queried last, knows best which jobs wait.
fn add_waiting(recorded: &mut Vec<Recorded>, waiting: Vec<Recorded>) {
    let waits: HashSet<&str> = waiting.iter().map(|job| job.id.as_str()).collect();
    recorded.retain(|job| job.state != State::Pending || !waits.contains(job.id.as_str()));
    recorded.extend(waiting.into_iter().filter(|job| job.state == State::Pending));
}

fn is_without_accounting(message: &str) -> bool {
    message.contains("accounting storage is disabled")
        || message.contains("not running a supported accounting")
}

fn is_number(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())
}

/// Between two fields. It is random, so no job name can contain it and begin a field or a job.
fn unguessable() -> String {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hash maps are seeded from the system's random numbers.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("~{:012x}~", random >> 16)
}

/// The lines of a table with the given number of columns, one at a time. A line that has not all of them
/// continues the one before: the last column is a name, and names may hold newlines.
fn each_row(answer: &[u8], delimiter: &str, columns: usize, mut each: impl FnMut(&[String])) {
    let mut row: Vec<String> = Vec::new();
    for line in answer.split(|&byte| byte == b'\n') {
        let fields = split(line, delimiter.as_bytes());
        if fields.len() >= columns {
            let before = std::mem::replace(&mut row, fields.into_iter().take(columns).map(word).collect());
            if !before.is_empty() {
                each(&before);
            }
        } else if let Some(name) = row.last_mut()
            && !line.is_empty()
        {
            let longer = format!("{}\u{fffd}{}", name.trim_end(), word(&fields.concat()));
            *name = word(longer.as_bytes());
        }
    }
    if !row.is_empty() {
        each(&row);
    }
}

fn split<'a>(line: &'a [u8], delimiter: &[u8]) -> Vec<&'a [u8]> {
    let mut fields = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.windows(delimiter.len().max(1)).position(|window| window == delimiter) {
        fields.push(&rest[..at]);
        rest = &rest[at + delimiter.len()..];
    }
    fields.push(rest);
    fields
}

/// A row by the names of its columns.
struct Row<'a> {
    columns: &'a HashMap<&'a str, usize>,
    fields: &'a [String],
}

impl Row<'_> {
    fn raw(&self, name: &str) -> &str {
        self.columns.get(name).and_then(|&at| self.fields.get(at)).map_or("", |field| field.trim())
    }

    fn text_at(&self, name: &str) -> Option<&str> {
        filled(self.raw(name))
    }

    fn owned(&self, name: &str) -> Option<String> {
        self.text_at(name).map(str::to_owned)
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.text_at(name)?.parse().ok()
    }

    fn time(&self, name: &str) -> Option<i64> {
        time_ns(self.raw(name))
    }
}

pub(super) fn parse_sacct(answer: &[u8], delimiter: &str) -> Vec<Recorded> {
    let header_end = answer.iter().position(|&byte| byte == b'\n').unwrap_or(answer.len());
    let (header, table) = answer.split_at(header_end);
    let names: Vec<String> = split(header, delimiter.as_bytes()).into_iter().map(word).collect();
    let columns = names.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
    let mut found: Vec<Recorded> = Vec::new();
    each_row(table, delimiter, names.len(), |fields| {
        let row = Row { columns: &columns, fields };
        match row.raw("JobIDRaw").split_once('.') {
            None => found.extend(job(&row).map(|mut job| {
                // The accounts keep why it waited, long after it did.
                job.scheduling.reason = job.scheduling.reason.filter(|_| job.start_ns.is_none());
                job
            })),
            Some((id, step)) => {
                // The steps of each run follow it.
                if let Some(job) = found.last_mut().filter(|job| job.id == id) {
                    add_step(job, step, &row);
                }
            }
        }
    });
    found.iter_mut().for_each(Recorded::forget_plans);
    found
}

pub(super) fn parse_squeue(answer: &[u8], delimiter: &str) -> Vec<Recorded> {
    let columns = QUEUE_FIELDS.iter().enumerate().map(|(at, (_, name, _))| (*name, at)).collect();
    let mut found: Vec<Recorded> = Vec::new();
    each_row(answer, delimiter, QUEUE_FIELDS.len(), |fields| {
        found.extend(job(&Row { columns: &columns, fields }));
    });
    found.iter_mut().for_each(Recorded::forget_plans);
    found
}

fn job(row: &Row) -> Option<Recorded> {
    let id = row.raw("JobIDRaw");
    if !is_number(id) {
        return None;
    }
    let mut job = Recorded::new(MANAGER, id.to_owned());
    job.cluster = row.owned("Cluster");
    job.name = row.raw("JobName").to_owned();
    job.user = row.owned("User");
    // Where accounting has a step before its job, the job has no owner and no request yet.
    let is_filled_in = |uid: &u32| *uid != 0 || job.user.as_deref().is_none_or(|user| user == "root");
    job.uid = row.text_at("UID").and_then(|uid| uid.parse().ok()).filter(is_filled_in);
    job.account = row.owned("Account");
    (job.start_ns, job.end_ns) = (row.time("Start"), row.time("End"));
    job.nodes = hosts(row.raw("NodeList"));
    let word = row.raw("State");
    job.manager_state = filled(word).map(str::to_owned);
    job.state = state(word).unwrap_or(match (job.start_ns, job.end_ns) {
        (_, Some(_)) => State::Failed,
        (Some(_), None) => State::Running,
        (None, None) => State::Pending,
    });
    (job.exit_code, job.signal) = match row.number("Status") {
        Some(status) => exit_of_status(status),
        None => exit(row.raw("ExitCode")),
    };
    ids(&mut job, row.raw("JobID"));
    job.scheduling.partition = row.owned("Partition");
    job.scheduling.qos = row.owned("QOS");
    job.scheduling.reason = row.owned("Reason");
    job.scheduling.submit_ns = row.time("Submit");
    job.scheduling.eligible_ns = row.time("Eligible");
    job.scheduling.restarts = row.number("Restarts");
    // Only the queue says it: the job, or its partition, takes whole nodes.
    job.scheduling.exclusive = (row.raw("OverSubscribe") == "NO").then_some(true);
    asked_for(&mut job, row);
    Some(job)
}

/// `1234_7`, `1234_[5-9%2]`, `1234+1`.
fn ids(job: &mut Recorded, shown: &str) {
    let scheduling = &mut job.scheduling;
    if let Some((array, index)) = shown.split_once('_') {
        scheduling.array_id = Some(array.to_owned());
        scheduling.array_index = index.parse().ok();
    } else if let Some((het, offset)) = shown.split_once('+') {
        scheduling.het_id = Some(het.to_owned());
        scheduling.het_offset = offset.parse().ok();
    }
    scheduling.alias = filled(shown).filter(|shown| *shown != job.id).map(str::to_owned);
}

fn asked_for(job: &mut Recorded, row: &Row) {
    job.requested = resources(row.raw("ReqTRES"));
    job.allocated = resources(row.raw("AllocTRES"));
    if let Some(tres) = row.text_at("TRES") {
        // The queue knows one list: what is wanted until the job runs, and then what it has.
        job.requested = resources(tres);
        job.allocated = resources(tres);
    }
    job.requested.time_limit_ns = span_ns(row.raw("Timelimit"), 60 * SECOND_NS);
    let requested = &mut job.requested;
    let wanted = |name: &str| row.number(name).filter(|&wanted| wanted > 0);
    requested.cpus = requested.cpus.or_else(|| wanted("ReqCPUS"));
    requested.nodes = requested.nodes.or_else(|| wanted("ReqNodes")).or_else(|| wanted("NNodes"));
    if requested.memory_bytes.is_none() {
        requested.memory_bytes = size(row.raw("ReqMem"), MEGABYTE).and_then(|(bytes, per)| {
            let times = match per {
                Some('c') => requested.cpus?,
                Some(_) => requested.nodes?,
                None => 1,
            };
            bytes.checked_mul(times)
        });
    }
}

/// `cpu=4,mem=250.5G,node=1,gres/gpu=2,gres/gpu:a100=2`.
fn resources(tres: &str) -> Resources {
    let mut found = Resources::default();
    let mut typed_gpus = None;
    for (name, value) in tres.split(',').filter_map(|entry| entry.split_once('=')) {
        match name {
            "cpu" => found.cpus = value.parse().ok(),
            "node" => found.nodes = value.parse().ok(),
            "mem" => found.memory_bytes = size(value, MEGABYTE).map(|(bytes, _)| bytes),
            "gres/gpu" => found.gpus = value.parse().ok(),
            _ => {
                if name.starts_with("gres/gpu:") {
                    typed_gpus = value.parse().ok().and_then(|n: i64| n.checked_add(typed_gpus.unwrap_or(0)));
                }
                if found.other.len() < OTHER_MAX {
                    found.other.insert(name.to_owned(), value.to_owned());
                }
            }
        }
    }
    found.gpus = found.gpus.or(typed_gpus);
    found
}

fn add_step(job: &mut Recorded, step: &str, row: &Row) {
    let scheduling = &mut job.scheduling;
    let end_ns = row.time("End");
    // Before the end it is 0, which is not a measurement.
    let cpu_ns = span_ns(row.raw("TotalCPU"), SECOND_NS).filter(|_| end_ns.is_some());
    if let Some(cpu_ns) = cpu_ns {
        scheduling.cpu_ns = Some(scheduling.cpu_ns.unwrap_or(0).saturating_add(cpu_ns));
    }
    // Without a unit these are bytes. A step that was not sampled has none, and that is not 0.
    let peak = size(row.raw("MaxRSS"), 1).map(|(bytes, _)| bytes).filter(|&bytes| bytes > 0);
    scheduling.memory_peak_bytes = scheduling.memory_peak_bytes.max(peak);
    let (exit_code, signal) = exit(row.raw("ExitCode"));
    // A job that was ended from outside did not exit by itself; this is how its script ended.
    if step == "batch" && matches!(job.exit_code, None | Some(0)) && job.signal.is_none() {
        job.signal = signal;
    }
    put_step(
        &mut job.parts,
        Part {
            node: row.owned("NodeList").unwrap_or_default(),
            step: step.to_owned(),
            name: row.owned("JobName").filter(|name| name != step),
            start_ns: row.time("Start"),
            end_ns,
            exit_code: exit_code.filter(|_| end_ns.is_some()),
            ..Part::default()
        },
    );
}

/// The first ones have a line each, and the last line sums all others.
fn put_step(parts: &mut Vec<Part>, step: Part) {
    if parts.len() < PARTS_MAX {
        parts.push(step);
        return;
    }
    if parts.len() == PARTS_MAX {
        parts.push(Part::others(step.node.clone(), false));
    }
    if let Some(others) = parts.last_mut() {
        if others.node != step.node {
            // They are on no one node.
            others.node.clear();
        }
        others.take_in(&step);
    }
}

/// `3:0` is an exit, `0:9` a signal.
fn exit(text: &str) -> (Option<i32>, Option<i32>) {
    let Some((code, signal)) = text.split_once(':') else { return (None, None) };
    match (code.parse().ok(), signal.parse().ok()) {
        (code, Some(0)) => (code, None),
        (code, signal) => {
            // Numbers that no signal has mean something within Slurm: 125 is lack of memory.
            (code.filter(|&code| code != 0), signal.filter(|signal| (1..=64).contains(signal)))
        }
    }
}

fn state(word: &str) -> Option<State> {
    Some(match word.split_whitespace().next()?.trim_end_matches('+') {
        "PENDING" | "REQUEUE_HOLD" | "REQUEUE_FED" | "RESV_DEL_HOLD" | "SPECIAL_EXIT" | "EXPEDITING" => {
            State::Pending
        }
        "RUNNING" | "COMPLETING" | "CONFIGURING" | "RESIZING" | "SIGNALING" | "STAGE_OUT" => State::Running,
        "SUSPENDED" | "STOPPED" => State::Suspended,
        "COMPLETED" => State::Finished,
        "FAILED" | "NODE_FAIL" | "BOOT_FAIL" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => State::Failed,
        // The run was ended from outside.
        "CANCELLED" | "REVOKED" | "PREEMPTED" | "REQUEUED" => State::Cancelled,
        "TIMEOUT" | "DEADLINE" => State::Timeout,
        "OUT_OF_MEMORY" => State::OutOfMemory,
        _ => return None,
    })
}

/// Each member of an account, with the account. Lines without a user are accounts.
fn members(programs: &mut Programs) -> Result<Vec<(String, String)>, Trouble> {
    let arguments =
        ["--noheader", "--parsable2", "--readonly", "show", "associations", "format=Account,User"];
    let printed = programs.ask("sacctmgr", &arguments.map(str::to_owned))?;
    Ok(in_associations(&printed))
}

fn in_associations(text: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(text);
    let pair = |line: &str| {
        let mut fields = line.split('|');
        let (account, user) = (fields.next()?, fields.next()?);
        (!account.is_empty() && !user.is_empty()).then(|| (user.to_owned(), account.to_owned()))
    };
    text.lines().filter_map(pair).take(MEMBERS_MAX).collect()
}

fn job_id(variables: Variables<'_>, asked: &str) -> Option<String> {
    let found = variables.digits(JOB_ID).or_else(|| variables.digits("SLURM_JOBID"))?;
    (is_sluid(asked) || found == asked).then_some(found)
}

/// `s` and thirteen characters of Crockford's base 32: what Slurm calls the directory of a job from 26.05 on.
fn is_sluid(id: &str) -> bool {
    let crockford =
        |byte: u8| byte.is_ascii_digit() || (byte.is_ascii_alphabetic() && !b"iloILOuU".contains(&byte));
    id.strip_prefix('s').is_some_and(|rest| rest.len() == 13 && rest.bytes().all(crockford))
}

fn read_variables(variables: Variables<'_>, _: &Question<'_>, identity: &mut Identity) {
    identity.name = variables.text("SLURM_JOB_NAME");
    identity.account = variables.text("SLURM_JOB_ACCOUNT");
    identity.nodes = variables.text("SLURM_JOB_NODELIST").map(|list| nodes_in(&list)).unwrap_or_default();
    let scheduling = &mut identity.scheduling;
    scheduling.partition = variables.text("SLURM_JOB_PARTITION");
    scheduling.qos = variables.text("SLURM_JOB_QOS");
    scheduling.folder = variables.text("SLURM_SUBMIT_DIR");
    scheduling.restarts = variables.number("SLURM_RESTART_COUNT");
    if let (Some(array), Some(index)) =
        (variables.digits("SLURM_ARRAY_JOB_ID"), variables.number("SLURM_ARRAY_TASK_ID"))
    {
        scheduling.alias = Some(format!("{array}_{index}"));
        (scheduling.array_id, scheduling.array_index) = (Some(array), Some(index));
    }
    if let (Some(whole), Some(offset)) =
        (variables.digits("SLURM_HET_JOB_ID"), variables.number("SLURM_HET_JOB_OFFSET"))
    {
        scheduling.alias = Some(format!("{whole}+{offset}"));
        (scheduling.het_id, scheduling.het_offset) = (Some(whole), Some(offset));
    }
    let nodes = variables.positive("SLURM_JOB_NUM_NODES").or_else(|| variables.positive("SLURM_NNODES"));
    let here = variables.positive("SLURM_CPUS_ON_NODE").filter(|_| nodes == Some(1));
    let everywhere = variables.text("SLURM_JOB_CPUS_PER_NODE").and_then(|text| cpus_per_node(&text));
    identity.allocated.nodes = nodes;
    identity.allocated.cpus = everywhere.or(here);
    identity.requested = request_in(variables, nodes, identity.allocated.cpus);
}

fn request_in(variables: Variables<'_>, nodes: Option<i64>, cpus: Option<i64>) -> Resources {
    let tasks = variables.positive("SLURM_NTASKS");
    let per_task = variables.positive("SLURM_CPUS_PER_TASK");
    // 0 means all the memory of a node.
    let of_nodes = || variables.positive("SLURM_MEM_PER_NODE")?.checked_mul(nodes?)?.checked_mul(MEGABYTE);
    let of_cpus = || variables.positive("SLURM_MEM_PER_CPU")?.checked_mul(cpus?)?.checked_mul(MEGABYTE);
    let limit_seconds = || {
        let (start, end) =
            (variables.positive("SLURM_JOB_START_TIME")?, variables.positive("SLURM_JOB_END_TIME")?);
        end.checked_sub(start).filter(|&seconds| seconds > 0)
    };
    Resources {
        nodes: None,
        // A job that requests neither gets one task of one CPU, by a site default that is not visible here.
        cpus: tasks.or(per_task).and_then(|_| tasks.unwrap_or(1).checked_mul(per_task.unwrap_or(1))),
        // Without a number of tasks, CPUs per task are those of one.
        tasks: tasks
            .or_else(|| per_task.filter(|_| variables.text("SLURM_NTASKS_PER_NODE").is_none()).map(|_| 1)),
        memory_bytes: of_nodes().or_else(of_cpus),
        gpus: variables.text("SLURM_GPUS").and_then(|text| count_of_gpus(&text)),
        time_limit_ns: limit_seconds().and_then(|seconds| seconds.checked_mul(SECOND_NS)),
        ..Resources::default()
    }
}

/// `4(x2),3`: four on each of two nodes and three on another.
fn cpus_per_node(text: &str) -> Option<i64> {
    text.split(',')
        .try_fold(0_i64, |sum, group| {
            let (cpus, nodes) = match group.split_once("(x") {
                Some((cpus, nodes)) => (cpus, nodes.strip_suffix(')')?),
                None => (group, "1"),
            };
            let cpus: u32 = cpus.parse().ok()?;
            let nodes: u32 = nodes.parse().ok()?;
            sum.checked_add(i64::from(cpus).checked_mul(i64::from(nodes))?)
        })
        .filter(|&cpus| cpus > 0)
}

/// `2`, `a100:2`, or several of them.
fn count_of_gpus(text: &str) -> Option<i64> {
    text.split(',')
        .try_fold(0_i64, |sum, kind| {
            let count: u32 = kind.rsplit(':').next()?.parse().ok()?;
            sum.checked_add(i64::from(count))
        })
        .filter(|&gpus| gpus > 0)
}

/// The names in `n[01-03,7],login`; nothing where a user has written something else, or more than there are nodes.
fn nodes_in(list: &str) -> Vec<String> {
    let hosts = hostlist::hosts(list);
    let is_list = hosts.len() < NODES_MAX && !hosts.iter().any(|host| host.contains('['));
    if is_list { hosts } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn associations_are_pairs_of_a_user_and_an_account() {
        let pairs = in_associations(b"root|\nroot|root\nphysics|\nphysics|ada\nchem|ada\nbad\n|eve\n");
        let pairs: Vec<(&str, &str)> =
            pairs.iter().map(|(user, account)| (user.as_str(), account.as_str())).collect();
        assert_eq!(pairs, [("root", "root"), ("ada", "physics"), ("ada", "chem")]);
    }

    #[test]
    fn lists_of_hosts_are_names() {
        assert_eq!(nodes_in("n[08-10,3],login"), ["n08", "n09", "n10", "n3", "login"]);
        for nothing in ["", "n[", "n[1-", "n[1-99999999999]", "[[[["] {
            assert!(nodes_in(nothing).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn counts_are_summed_over_nodes_and_kinds() {
        assert_eq!(cpus_per_node("4(x2),3"), Some(11));
        assert_eq!(cpus_per_node("72"), Some(72));
        assert_eq!((cpus_per_node(""), cpus_per_node("4(x")), (None, None));
        assert_eq!(
            (count_of_gpus("2"), count_of_gpus("a100:2,v100:1"), count_of_gpus("all")),
            (Some(2), Some(3), None)
        );
    }

    #[test]
    fn a_sluid_is_neither_a_number_nor_a_name() {
        assert!(is_sluid("s7XK2M9PQ4RTVW"));
        for other in ["1234", "system", "s7XK2M9PQ4RTV", "sUXK2M9PQ4RTVW", "slurmstepd.scope"] {
            assert!(!is_sluid(other), "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_lists(text in "[n0-9\\[\\],x()-]{0,40}") {
            prop_assert!(nodes_in(&text).len() < NODES_MAX);
            let _ = cpus_per_node(&text);
            let _ = count_of_gpus(&text);
        }
    }
}
