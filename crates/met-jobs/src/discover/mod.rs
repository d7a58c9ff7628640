//! Finds the jobs of resource managers by their cgroups, and closes them exactly when these are gone.
//!
//! The directories that lead to jobs are watched in every hierarchy; from the directory that outlives its jobs
//! on (`slurm_n1`, `oar`, `slurmstepd.scope`) in one alone, the best. What is noticed is acted on at once: the
//! directory of a job is gone some milliseconds after its last process, with all it knew. A look at everything
//! from time to time is the safety net.

mod dir_limits;
mod files;
mod job;
mod jobs;
mod ledger;
mod manager_dirs;
mod oom_events;
mod remnants;
mod schedule;
mod tree;
mod watch;
mod watches;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use met_core::job::{CgroupPaths, Figure, Part};
use met_host::{Host, clock};

use crate::cgroup_layouts::{Captures, Layouts};
use files::Files;
use jobs::Jobs;
use ledger::Closed;
use oom_events::Ear;
use schedule::Schedule;
use tree::{Change, Tree};
use watch::{Notice, Watcher};
use watches::Watched;

/// Other things have to be done, too.
const NOTICE_ROUNDS_MAX: usize = 64;

/// Something that happened to a job. Jobs are keyed by numbers that are used once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Found(Box<Found>),
    /// A process was seen in it for the first time: the job can be identified now.
    Inhabited(u64),
    /// Its manager's id is known now; it was reported under another name.
    Named(u64, String),
    /// Its steps and tasks so far.
    Parts(u64, Vec<Part>),
    Ended(Box<Ended>),
    /// Everything present at the beginning has been reported.
    Looked,
}

/// A job as parsed from its path.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub job: u64,
    pub manager: String,
    pub id: String,
    pub captures: Captures,
    pub cgroup: CgroupPaths,
    /// Unix nanoseconds: when its directory was made, or its first process began if that was before.
    pub start_ns: i64,
    /// Some of the processes in it.
    pub pids: Vec<u32>,
}

/// What is known of a job when its directory is gone, beside what was sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub job: u64,
    pub end_ns: i64,
    pub cpu: Option<Figure>,
    pub memory_peak: Option<Figure>,
    pub oom_kills: Option<Figure>,
    pub parts: Vec<Part>,
}

/// What there is to say about the discovery itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Jobs that are followed, by manager.
    pub jobs: Vec<(String, usize)>,
    /// Directories in which managers keep their jobs.
    pub homes: Vec<PathBuf>,
    /// Resource managers whose directories are there, with jobs in them or without.
    pub managers: Vec<String>,
    pub watches: usize,
    /// Why not all is watched.
    pub refused: Option<String>,
    /// Places with more directories than are followed, and how many are not.
    pub left_out: Vec<(PathBuf, u64)>,
    pub unseen: Unseen,
    pub rescans: u64,
}

/// What came and went before it could be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Directories on the way to jobs that were gone before a job was seen in them: each had at least one.
    pub directories: u64,
    /// What unseen jobs used.
    pub cpu_ns: u64,
}

/// Follows the tree of cgroups, and the jobs that are found in it.
pub struct Discovery {
    tree: Tree,
    jobs: Jobs,
    schedule: Schedule,
    /// Jobs to be read at once.
    stirred: HashSet<u32>,
    /// Gone since the last closing.
    removed: Vec<u32>,
    unseen: Unseen,
    rescans: u64,
}

impl Discovery {
    /// Looks at what is there; `below` narrows it to one cgroup and those in it.
    pub fn open(host: &Host, layouts: &Layouts, below: Option<&Path>) -> io::Result<Discovery> {
        let files = Files::open(host)?;
        let watcher = Watcher::new();
        let now_ns = clock::boottime_ns();
        let ear = Ear::new(watcher.fd())?;
        let mut discovery = Discovery {
            tree: Tree::new(files, watcher, layouts, below),
            jobs: Jobs::new(host.facts().hostname.clone(), ear),
            schedule: Schedule::new(now_ns),
            stirred: HashSet::new(),
            removed: Vec::new(),
            unseen: Unseen::default(),
            rescans: 0,
        };
        for hierarchy in 0..discovery.tree.files.hierarchies.len() {
            discovery.tree.add_root(hierarchy, now_ns);
            discovery.apply_changes(now_ns);
        }
        discovery.tree.rebase_all(now_ns);
        discovery.announce_due(now_ns);
        discovery.jobs.events.push(Event::Looked);
        Ok(discovery)
    }

    /// Readable when something was noticed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.jobs.ear.fd()
    }

    /// How long there is nothing to do unless something is noticed.
    pub fn timeout(&self) -> Duration {
        let Schedule { rescan_ns, jobs_ns, upkeep_ns, parts_ns, .. } = self.schedule;
        let next = [
            Some(rescan_ns),
            Some(jobs_ns).filter(|_| !self.jobs.is_empty()),
            Some(upkeep_ns).filter(|_| self.tree.places.is_any_flooded()),
            Some(parts_ns).filter(|_| self.jobs.has_parts()),
            self.jobs.next_due_ns(),
        ];
        let next_ns = next.into_iter().flatten().min().unwrap_or(rescan_ns);
        Duration::from_nanos((next_ns - clock::boottime_ns()).max(0) as u64)
    }

    /// Does what there is to do, and returns what happened.
    pub fn work(&mut self) -> Vec<Event> {
        let now_ns = clock::boottime_ns();
        self.jobs.take_alarms(&self.tree.files);
        self.act_on_notices(now_ns);
        self.read_stirred(now_ns);
        self.close_removed(now_ns);
        self.announce_due(now_ns);
        self.do_periodically(now_ns);
        std::mem::take(&mut self.jobs.events)
    }

    /// To be done before anything that may take long: a process that makes or removes a cgroup holds locks of the
    /// kernel while it waits for others, and a look into the same directory waits with it.
    fn act_on_notices(&mut self, now_ns: i64) {
        let mut overflow = false;
        // Acting on the first ones took its time, in which there may have come more.
        for _ in 0..NOTICE_ROUNDS_MAX {
            let notices = self.tree.watches.watcher.drain();
            if notices.is_empty() {
                break;
            }
            for notice in notices {
                overflow |= notice == Notice::Overflow;
                self.act_on(notice, now_ns);
            }
        }
        if overflow {
            self.rescan(true, now_ns);
        }
    }

    fn act_on(&mut self, notice: Notice, now_ns: i64) {
        let tree = &mut self.tree;
        match notice {
            Notice::Made { watch, name, ahead } => match tree.watches.get(watch) {
                Some(Watched::Directory(parent)) => tree.appeared(parent, &name, ahead, now_ns),
                _ => tree.watches.discard(ahead),
            },
            Notice::Removed { watch, name } => {
                if let Some(Watched::Directory(parent)) = tree.watches.get(watch) {
                    tree.noticed_removal(parent, &name, now_ns);
                }
            }
            Notice::Changed { watch } => {
                if let Some(Watched::Events(node)) = tree.watches.get(watch) {
                    self.stirred.insert(node);
                }
            }
            Notice::Ended { watch } => tree.watches.ended(watch),
            Notice::Overflow => {}
        }
        self.apply_changes(now_ns);
    }

    /// Does for jobs what follows from changes of the tree.
    fn apply_changes(&mut self, now_ns: i64) {
        for change in std::mem::take(&mut self.tree.changes) {
            match change {
                Change::Job { id, route, captures, existed } => {
                    self.jobs.add(&self.tree, id, route, captures, existed, now_ns);
                }
                Change::Part { id, job } => self.jobs.add_part(id, job, now_ns),
                Change::Left { id, path } => self.jobs.leave(id, path),
                Change::Stirred(id) => drop(self.stirred.insert(id)),
                Change::Removed(id) => self.removed.push(id),
            }
        }
        self.jobs.end_unmoved(now_ns);
    }

    fn read_stirred(&mut self, now_ns: i64) {
        for id in std::mem::take(&mut self.stirred) {
            self.act_on_notices(now_ns);
            if !self.removed.contains(&id) {
                self.jobs.read_stirred(&mut self.tree, id, now_ns);
            }
        }
    }

    /// Closes all that is gone since the last time.
    fn close_removed(&mut self, now_ns: i64) {
        if self.removed.is_empty() {
            return;
        }
        // One that came meanwhile and is not known yet would be charged to those that went.
        self.act_on_notices(now_ns);
        let removed = std::mem::take(&mut self.removed);
        let closed = self.tree.close_accounts(&removed, now_ns);
        let finals: HashMap<u32, Closed> = closed.iter().map(|closed| (closed.id, *closed)).collect();
        // Some were found to be gone by reading them, before any notice.
        for id in removed.into_iter().chain(closed.iter().map(|closed| closed.id)) {
            for id in self.tree.subtree(id) {
                let closed = finals.get(&id);
                self.jobs.close(&self.tree, id, closed, now_ns);
                if self.tree.forget(id, now_ns) {
                    self.unseen.directories += 1;
                    self.unseen.cpu_ns += closed.map_or(0, |closed| closed.cpu_ns);
                }
                self.apply_changes(now_ns);
            }
        }
        self.tree.rebase_inhabited(now_ns);
    }

    /// Looks at the jobs whose time has come.
    fn announce_due(&mut self, now_ns: i64) {
        while let Some(id) = self.jobs.take_due(now_ns) {
            self.act_on_notices(now_ns);
            self.jobs.look_at(&mut self.tree, id, now_ns);
        }
    }

    fn do_periodically(&mut self, now_ns: i64) {
        if self.schedule.take_parts(now_ns) {
            self.jobs.read_parts(&mut self.tree, now_ns);
        }
        if self.schedule.take_jobs(now_ns) {
            self.jobs.read_counters(&mut self.tree, now_ns);
            self.tree.rebase_inhabited(now_ns);
        }
        if self.schedule.take_upkeep(now_ns) {
            self.tree.mark_own_processes();
            self.tree.listen_again(now_ns);
            self.apply_changes(now_ns);
        }
        let (is_unwatched, is_crowded) = (self.is_unwatched(), self.tree.places.is_any_crowded());
        if self.schedule.is_rescan_due(is_unwatched, is_crowded, now_ns) {
            self.rescan(false, now_ns);
            self.close_removed(now_ns);
            self.announce_due(now_ns);
        }
    }

    fn is_unwatched(&self) -> bool {
        self.tree.watches.watcher.refused().is_some()
    }

    /// Looks at everything. In full after notices were lost; else a directory that has as many others as are known
    /// is believed to have those.
    pub fn rescan(&mut self, full: bool, now_ns: i64) {
        self.rescans += 1;
        let mut has_found = full;
        self.tree.places.begin_look();
        for root in self.tree.roots() {
            has_found |= self.tree.reconcile(root, full, now_ns);
            self.apply_changes(now_ns);
        }
        has_found |= self.tree.listen_again(now_ns);
        self.apply_changes(now_ns);
        // Where there was no room there may be some soon.
        has_found |= self.tree.places.is_any_crowded();
        if full {
            self.tree.watches.await_nothing();
            // What jobs used that came and went unseen is not to be charged to the next one that ends.
            self.close_removed(now_ns);
            self.unseen.cpu_ns += self.tree.rebase_all(now_ns);
        }
        self.tree.mark_own_processes();
        self.schedule.rescanned(self.is_unwatched(), has_found, now_ns);
    }

    /// Whether managers came or went, or places became too full, since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.tree.has_news)
    }

    pub fn health(&self) -> Health {
        Health {
            jobs: self.tree.job_counts(),
            homes: self.tree.home_paths(),
            managers: self.tree.managers_here(),
            watches: self.tree.watches.count(),
            refused: self.tree.watches.watcher.refused().map(|error| error.to_string()),
            left_out: self.tree.crowded_places(),
            unseen: self.unseen,
            rescans: self.rescans,
        }
    }
}

#[cfg(test)]
mod tests;
