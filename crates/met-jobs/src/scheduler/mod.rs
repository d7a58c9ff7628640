//! What schedulers have recorded of jobs: asked for by their own commands, parsed, and joined with what was
//! measured.
//!
//! The parsers are pure functions of bytes. Whatever a user may choose (a job's name, its command, its
//! variables) reaches only the fields of his own job.

mod command;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod join;
mod json;
mod lsf;
mod oar;
mod pbs;
mod slurm;
mod sync;
#[cfg(test)]
mod tests;
mod text;

use met_core::job::{Part, Resources, Scheduling, State};
use met_core::managers;

use crate::identity::variables::Variables;
use crate::identity::{Identity, Question};

pub use command::{Programs, Trouble};
pub use sync::{Cursor, Sync, Update};

/// One run of a job, as its scheduler tells it. A job that was requeued has several.
#[derive(Clone, Debug, PartialEq)]
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
        Recorded {
            cluster: None,
            manager,
            id,
            name: String::new(),
            user: None,
            uid: None,
            account: None,
            command: Vec::new(),
            state: State::Pending,
            manager_state: None,
            exit_code: None,
            signal: None,
            start_ns: None,
            end_ns: None,
            nodes: Vec::new(),
            requested: Resources::default(),
            allocated: Resources::default(),
            scheduling: Scheduling::default(),
            parts: Vec::new(),
        }
    }

    /// What is only planned did not happen: schedulers tell when a waiting job will probably start and end.
    fn forget_plans(&mut self) {
        if self.state == State::Pending {
            (self.start_ns, self.end_ns) = (None, None);
            self.nodes.clear();
            self.allocated = Resources::default();
        } else if self.state.is_live() {
            self.end_ns = None;
        } else if self.nodes.is_empty() && self.state == State::Cancelled {
            // Some say that a job which was cancelled while it waited began when it was cancelled.
            self.start_ns = None;
            self.allocated = Resources::default();
        }
        let was_ended = matches!(self.state, State::Cancelled | State::Timeout | State::OutOfMemory);
        // What was ended from outside did not exit.
        self.exit_code = self.exit_code.filter(|&code| code != 0 || !was_ended);
        if self.state.is_live() {
            (self.exit_code, self.signal) = (None, None);
        }
    }
}

/// From when on a scheduler is asked, and until when; both in unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub since_s: i64,
    pub until_s: i64,
    pub now_s: i64,
}

/// Somebody who records jobs.
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
    /// The id in the environment of a job's process, if it is the one that is looked for.
    pub(crate) job_id: fn(Variables<'_>, &str) -> Option<String>,
    /// What else the environment says of the job.
    pub(crate) read: fn(Variables<'_>, &Question<'_>, &mut Identity),
}

/// `node`: only the jobs of this node are of interest.
pub fn open(scheduler: managers::Scheduler, node: Option<String>) -> Box<dyn Scheduler> {
    (kind(scheduler).make)(node)
}

fn kind(scheduler: managers::Scheduler) -> &'static Kind {
    match scheduler {
        managers::Scheduler::Slurm => &slurm::KIND,
        managers::Scheduler::Oar => &oar::KIND,
        managers::Scheduler::Pbs => &pbs::KIND,
        managers::Scheduler::Lsf => &lsf::KIND,
    }
}

pub(crate) fn named(manager: &str) -> Option<&'static Kind> {
    let query = managers::find(manager)?.query.as_ref()?;
    Some(kind(query.scheduler))
}

/// What was read of a command's answer.
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

/// Adds another answer to those before it, which are not lost if this one is cut short.
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

/// Where a scheduler cannot select by node, its answer is. Whoever asks about a job knows it already, and hears
/// of its end wherever that was.
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
