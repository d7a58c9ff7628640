//! Who the jobs are that somebody else started: their processes are asked when there are some, and again
//! while those are only the manager's own.

use std::time::{Duration, Instant};

use met_jobs::identity::{self, Question};

use super::keeping::Keeping;
use crate::processes;
use crate::users;

/// How long after its first process a job is asked: at once, and again for those whose user's first process
/// is not there yet, or has not begun its own program.
const ASK_AFTER_MS: [u64; 7] = [0, 50, 150, 400, 1_000, 5_000, 30_000];

/// A job of which it is not known yet who it is.
pub(super) struct Asking {
    job: u64,
    since: Instant,
    asked: usize,
}

impl Asking {
    fn due(&self) -> Option<Instant> {
        ASK_AFTER_MS.get(self.asked).map(|&ms| self.since + Duration::from_millis(ms))
    }
}

impl Keeping {
    /// Somebody is in the job now who can be asked who it is.
    pub(super) fn identify(&mut self, job: u64) {
        self.asking.push(Asking { job, since: Instant::now(), asked: 0 });
        self.ask_who_is_due();
        self.follow_shadows();
    }

    /// When a job is to be asked again.
    pub fn next_question(&self) -> Option<Instant> {
        self.asking.iter().filter_map(Asking::due).min()
    }

    pub fn ask_who_is_due(&mut self) {
        let now = Instant::now();
        for mut asking in std::mem::take(&mut self.asking) {
            let known = match asking.due() {
                None => true,
                Some(due) if due > now => false,
                Some(_) => {
                    asking.asked += 1;
                    self.ask(asking.job)
                }
            };
            if !known {
                self.asking.push(asking);
            }
        }
    }

    /// Asks the processes of a job; true when there is nothing more to ask them.
    fn ask(&mut self, job: u64) -> bool {
        let Some(kept) = self.found.get(&job).and_then(|directory| self.jobs.get_mut(&directory.key)) else {
            return true;
        };
        let record = &mut kept.record;
        let pids: Vec<u32> =
            processes::of_job(&self.host, record).iter().map(|process| process.id.pid).collect();
        let cgroup = record.local.as_ref().map(|local| local.cgroup.clone()).unwrap_or_default();
        // Whom the path names is the owner, whatever runs in it.
        let question = Question {
            manager: &record.key.manager,
            id: &record.key.id,
            uid: record.uid,
            user: record.user.as_deref(),
            cgroup: &cgroup,
            pids: &pids,
        };
        let identity = identity::identify(&self.host, &question);
        let before = record.clone();
        identity.apply(record);
        if record.user.is_none() {
            record.user = record.uid.and_then(users::name_of);
        }
        if *record != before
            && let Err(error) = self.writer.put(record)
        {
            tracing::warn!("job {}: {error}", record.key.id);
        }
        if *record != before {
            self.sampling.allocate(record);
        }
        if *record != before
            && let Some(board) = &self.board
        {
            board.runs(record);
        }
        // Who watches over a container, and knows its name, may come after its first process.
        identity.environment_read && record.name != record.key.id
    }
}
