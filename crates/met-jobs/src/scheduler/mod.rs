//! Scheduler records of jobs: queried by the schedulers' own commands, parsed, and joined with measured jobs.
//!
//! The parsers are pure functions of bytes. What a user may choose (a job's name, its command, its
//! variables) reaches only the fields of that job.

mod command;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod join;
mod json;
pub mod queue_page;
mod sync;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;

use met_core::job::{Part, Resources, Scheduling, State};
use met_core::managers;

use crate::identity::variables::Variables;
use crate::identity::{Identity, Question};

pub use command::{Programs, Trouble};
pub use queue_page::{PageOf, PageReader, QueuePages};
pub use sync::{Cursor, Sync, Update};

/// One run of a job, as its scheduler records it. A requeued job has several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    pub cluster: Option<String>,
    pub manager: &'static str,
    /// The one that cgroups are named by; the users' is `scheduling.alias`.
    pub id: String,
    pub name: String,
    pub user: Option<String>,
    pub uid: Option<u32>,
    pub account: Option<String>,
    pub command: Vec<String>,
    pub state: State,
    pub manager_state: Option<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Unix nanoseconds, as all times.
    pub start_ns: Option<i64>,
    pub end_ns: Option<i64>,
    pub nodes: Vec<String>,
    pub requested: Resources,
    pub allocated: Resources,
    pub scheduling: Scheduling,
    pub parts: Vec<Part>,
}

impl Recorded {
    pub fn new(manager: &'static str, id: String) -> Recorded {
        Recorded { manager, id, ..Recorded::default() }
    }

    /// Plans are not facts: schedulers report when a pending job will probably start and end.
    fn forget_plans(&mut self) {
        if self.state == State::Pending {
            (self.start_ns, self.end_ns) = (None, None);
            self.nodes.clear();
            self.allocated = Resources::default();
        } else if self.state.is_live() {
            self.end_ns = None;
        } else if self.nodes.is_empty() && self.state == State::Cancelled {
            // Some report that a job cancelled while pending started when it was cancelled.
            self.start_ns = None;
            self.allocated = Resources::default();
        }
        let was_ended = matches!(self.state, State::Cancelled | State::Timeout | State::OutOfMemory);
        // A job that was ended from outside has no exit code of its own.
        self.exit_code = self.exit_code.filter(|&code| code != 0 || !was_ended);
        if self.state.is_live() {
            (self.exit_code, self.signal) = (None, None);
        }
    }
}

/// The time that a query covers, in unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub since_s: i64,
    pub until_s: i64,
    pub now_s: i64,
}

/// A batch system that records jobs.
pub trait Scheduler: Send {
    fn manager(&self) -> &'static str;

    /// The runs that lived at some time in the window, and all that live now.
    fn ask(&mut self, programs: &mut Programs, window: Window) -> Result<Vec<Recorded>, Trouble>;

    /// All that is known of these.
    fn ask_about(&mut self, programs: &mut Programs, ids: &[String]) -> Result<Vec<Recorded>, Trouble>;
}

/// What differs between schedulers beside their row in `met_core::managers`. Each file here has one.
pub struct Kind {
    make: fn(Option<String>) -> Box<dyn Scheduler>,
    /// The id in the environment of a job's process, if it matches.
    pub(crate) job_id: fn(Variables<'_>, &str) -> Option<String>,
    /// What else the environment says of the job.
    pub(crate) read: fn(Variables<'_>, &Question<'_>, &mut Identity),
    /// Where its commands are, if not in a folder of the system.
    folders: &'static [&'static str],
    /// The environment that its commands run in.
    environment: &'static [(&'static str, &'static str)],
    /// Variables of our own environment that they need to find their configuration; these override the above.
    passed_on: &'static [&'static str],
    /// The names of cgroups that are not named by the job's id.
    other_name: Option<OtherName>,
    /// The file in which it keeps the list of a job's nodes.
    pub(crate) node_file: Option<fn(Variables<'_>, &Question<'_>) -> Option<PathBuf>>,
    /// Lists the members of accounts: pairs of a user and an account.
    members: Option<Members>,
    /// Where it counts its queue.
    queue_pages: Option<QueuePages>,
    /// All that read its answers, for tests with any bytes.
    #[cfg(any(test, feature = "fuzzing"))]
    parsers: &'static [Parser],
}

#[cfg(any(test, feature = "fuzzing"))]
type Parser = fn(&[u8]) -> Vec<Recorded>;

type Members = fn(&mut Programs) -> Result<Vec<(String, String)>, Trouble>;

/// What else a cgroup may be named by, and the variable of its processes that has the id.
struct OtherName {
    is_one: fn(&str) -> bool,
    variable: &'static str,
}

impl Kind {
    const fn new(
        make: fn(Option<String>) -> Box<dyn Scheduler>,
        job_id: fn(Variables<'_>, &str) -> Option<String>,
        read: fn(Variables<'_>, &Question<'_>, &mut Identity),
    ) -> Kind {
        Kind {
            make,
            job_id,
            read,
            folders: &[],
            environment: &[],
            passed_on: &[],
            other_name: None,
            node_file: None,
            members: None,
            queue_pages: None,
            #[cfg(any(test, feature = "fuzzing"))]
            parsers: &[],
        }
    }
}

// The modules and their kinds are those of the table: a scheduler is a row there and a file here.
macro_rules! modules {
    ($($name:ident: $module:ident),*) => {
        $(mod $module;)*

        fn kind(scheduler: managers::Scheduler) -> &'static Kind {
            match scheduler { $(managers::Scheduler::$name => &$module::KIND),* }
        }
    };
}

met_core::schedulers!(modules);

fn kinds() -> impl Iterator<Item = &'static Kind> {
    managers::Scheduler::ALL.iter().map(|&scheduler| kind(scheduler))
}

/// `node`: only the jobs of this node are of interest.
pub fn open(scheduler: managers::Scheduler, node: Option<String>) -> Box<dyn Scheduler> {
    (kind(scheduler).make)(node)
}

pub(crate) fn named(manager: &str) -> Option<&'static Kind> {
    let query = managers::find(manager)?.query.as_ref()?;
    Some(kind(query.scheduler))
}

/// Whether this name of a manager's cgroup is not the job's id.
pub(crate) fn is_other_name(manager: &str, name: &str) -> bool {
    let other = named(manager).and_then(|kind| kind.other_name.as_ref());
    other.is_some_and(|other| (other.is_one)(name))
}

/// The variable with the id of a job whose cgroup has this other name.
pub(crate) fn id_variable(name: &str) -> Option<&'static str> {
    let mut others = kinds().filter_map(|kind| kind.other_name.as_ref());
    others.find(|other| (other.is_one)(name)).map(|other| other.variable)
}

/// Whether it lists the members of accounts.
pub fn lists_members(scheduler: managers::Scheduler) -> bool {
    kind(scheduler).members.is_some()
}

/// Each member of an account, with the account; none of a scheduler that does not list them.
pub fn members(
    scheduler: managers::Scheduler,
    programs: &mut Programs,
) -> Result<Vec<(String, String)>, Trouble> {
    kind(scheduler).members.map_or(Ok(Vec::new()), |members| members(programs))
}

/// Where it counts its queue, if it does.
pub fn queue_pages(scheduler: managers::Scheduler) -> Option<&'static QueuePages> {
    kind(scheduler).queue_pages.as_ref()
}

/// What was read of a command's output.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) recorded: Vec<Recorded>,
    is_cut_short: bool,
}

impl Answer {
    fn whole(self, program: &'static str) -> Result<Vec<Recorded>, Trouble> {
        match self.is_cut_short {
            true => Err(Trouble::CutShort { program, read: self.recorded }),
            false => Ok(self.recorded),
        }
    }
}

/// Adds another reply to those before it, which are not lost if this one is cut off.
fn add(found: &mut Vec<Recorded>, answer: Result<Vec<Recorded>, Trouble>) -> Result<(), Trouble> {
    match answer {
        Ok(more) => {
            found.extend(more);
            Ok(())
        }
        Err(Trouble::CutShort { program, read }) => {
            let mut all = std::mem::take(found);
            all.extend(read);
            Err(Trouble::CutShort { program, read: all })
        }
        Err(trouble) => Err(trouble),
    }
}

/// Where a scheduler cannot select by node, its reply is filtered. Queries by id are not: the job is known here, and its
/// end matters wherever it was.
fn retain_on(
    node: Option<&str>,
    mut answer: Result<Vec<Recorded>, Trouble>,
) -> Result<Vec<Recorded>, Trouble> {
    if let (Some(node), Ok(recorded) | Err(Trouble::CutShort { read: recorded, .. })) = (node, &mut answer) {
        let short = |name: &str| name.split('.').next() == node.split('.').next();
        recorded.retain(|recorded| recorded.nodes.iter().any(|name| short(name)));
    }
    answer
}
