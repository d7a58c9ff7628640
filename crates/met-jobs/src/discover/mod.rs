//! Finds the jobs of resource managers by their cgroups, and closes them exactly when these are gone.
//!
//! The directories that lead to jobs are watched in every hierarchy; from the directory that outlives its jobs
//! on (`slurm_n1`, `oar`, `slurmstepd.scope`) in one alone, the best. What is noticed is acted on at once: the
//! directory of a job is gone some milliseconds after its last process, with all it knew. A look at everything
//! from time to time is the safety net.

mod alarm;
mod files;
mod followed;
mod homes;
mod ledger;
mod places;
mod remnants;
mod tree;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use met_core::job::{CgroupPaths, Figure, Part};
use met_host::{Host, clock};

use crate::layouts::{Captures, Layouts, Segment};
use alarm::Ear;
use files::Files;
use followed::Job;
use ledger::CpuLedger;
use places::Places;
use remnants::EndedJob;
use tree::{Node, Route, Watched};
use watch::{Notice, Watch, Watcher};

/// When a job is read that was found a moment ago: one that ends soon is known by these readings.
const EARLY_MS: [i64; 5] = [50, 100, 200, 400, 800];
/// Parts are read this often.
const PARTS_EVERY_NS: i64 = 10_000_000_000;
/// The counters of all jobs: what was used since is divided by guess when several go at once.
const JOBS_EVERY_NS: i64 = 30_000_000_000;
/// What may go wrong between two looks: places that were too busy to listen to, processes beside the jobs.
const MEND_EVERY_NS: i64 = 60_000_000_000;
/// The safety net: from so soon after a look that found what no notice had told, to so late after several that
/// found nothing.
const RESCAN_EVERY_NS: i64 = 60_000_000_000;
const RESCAN_EVERY_MAX_NS: i64 = 8 * RESCAN_EVERY_NS;
/// Where the kernel watches no more for us, looking is all there is.
const UNWATCHED_RESCAN_EVERY_NS: i64 = 1_000_000_000;
/// Other things have to be done, too.
const NOTICE_ROUNDS_MAX: usize = 64;
/// Notices of removals that are waited for: more were lost.
const AWAITED_MAX: usize = 1 << 14;

/// Something that happened to a job. Jobs go by numbers that are used once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Found(Box<Found>),
    /// A process was seen in it for the first time: there is somebody to ask who it is.
    Inhabited(u64),
    /// What its manager calls it is known now; it was told by another name.
    Named(u64, String),
    /// Its steps and tasks so far.
    Parts(u64, Vec<Part>),
    Ended(Box<Ended>),
    /// All that was there at the beginning has been told.
    Looked,
}

/// A job as its path tells it.
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

/// What came and went before anybody could look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Directories on the way to jobs that were gone before a job was seen in them: each had at least one.
    pub directories: u64,
    /// What was used by jobs that nobody saw.
    pub cpu_ns: u64,
}

pub struct Discovery {
    files: Files,
    node_name: String,
    routes: Vec<Route>,
    watcher: Watcher,
    ear: Ear,
    watched: HashMap<Watch, Watched>,
    nodes: HashMap<u32, Node>,
    next_node: u32,
    /// The hierarchies in which a directory that outlives its jobs is there; the first is followed.
    homes: HashMap<PathBuf, BTreeSet<usize>>,
    places: Places,
    ledger: CpuLedger,
    /// By node.
    jobs: HashMap<u32, Job>,
    next_job: u64,
    /// Jobs that change the hierarchy in which they are followed.
    moving: HashMap<PathBuf, Job>,
    /// Jobs that ended, oldest first: their managers may still be removing their other directories.
    ended: VecDeque<EndedJob>,
    /// Gone since the last closing.
    removed: Vec<u32>,
    /// Jobs to be read at once.
    stirred: HashSet<u32>,
    due: BinaryHeap<Reverse<(i64, u32)>>,
    next_parts_ns: i64,
    next_jobs_ns: i64,
    next_mending_ns: i64,
    next_rescan_ns: i64,
    rescan_every_ns: i64,
    rescans: u64,
    /// Whether the look at everything has found what no notice had told.
    found_by_look: bool,
    unseen: Unseen,
    /// Whether there is something new to say about the discovery itself.
    has_news: bool,
    /// Directories that were found to be gone, by their parents: the notice of it is to come.
    awaited: HashSet<(u32, OsString)>,
    buffer: Vec<u8>,
    events: Vec<Event>,
}

impl Discovery {
    /// Looks at what is there; `below` narrows it to one cgroup and those in it.
    pub fn open(host: &Host, layouts: &Layouts, below: Option<&Path>) -> io::Result<Discovery> {
        let files = Files::open(host)?;
        let watcher = Watcher::new();
        let now_ns = clock::boottime_ns();
        let mut discovery = Discovery {
            files,
            node_name: host.facts().hostname.clone(),
            routes: tree::routes(layouts, below),
            ear: Ear::new(watcher.fd())?,
            watcher,
            watched: HashMap::new(),
            nodes: HashMap::new(),
            next_node: 0,
            homes: HashMap::new(),
            places: Places::default(),
            ledger: CpuLedger::default(),
            jobs: HashMap::new(),
            next_job: 1,
            moving: HashMap::new(),
            ended: VecDeque::new(),
            removed: Vec::new(),
            stirred: HashSet::new(),
            due: BinaryHeap::new(),
            next_parts_ns: now_ns + PARTS_EVERY_NS,
            next_jobs_ns: now_ns + JOBS_EVERY_NS,
            next_mending_ns: now_ns + MEND_EVERY_NS,
            next_rescan_ns: now_ns + RESCAN_EVERY_NS,
            rescan_every_ns: RESCAN_EVERY_NS,
            rescans: 0,
            found_by_look: false,
            has_news: true,
            unseen: Unseen::default(),
            awaited: HashSet::new(),
            buffer: Vec::new(),
            events: Vec::new(),
        };
        for hierarchy in 0..discovery.files.hierarchies.len() {
            discovery.add_root(hierarchy, now_ns);
        }
        discovery.rebase_all(now_ns);
        discovery.announce_due(now_ns);
        discovery.events.push(Event::Looked);
        Ok(discovery)
    }

    /// Readable when something was noticed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ear.fd()
    }

    /// How long there is nothing to do unless something is noticed.
    pub fn patience(&self) -> Duration {
        let mut next_ns = self.next_rescan_ns;
        if !self.jobs.is_empty() {
            next_ns = next_ns.min(self.next_jobs_ns);
        }
        if self.places.is_any_flooded() {
            next_ns = next_ns.min(self.next_mending_ns);
        }
        if self.jobs.values().any(|job| job.has_parts()) {
            next_ns = next_ns.min(self.next_parts_ns);
        }
        if let Some(Reverse((due_ns, _))) = self.due.peek() {
            next_ns = next_ns.min(*due_ns);
        }
        Duration::from_nanos((next_ns - clock::boottime_ns()).max(0) as u64)
    }

    /// Does what there is to do, and tells what happened.
    pub fn work(&mut self) -> Vec<Event> {
        let now_ns = clock::boottime_ns();
        self.hear_alarms();
        self.act_on_notices(now_ns);
        self.read_stirred(now_ns);
        self.close_removed(now_ns);
        self.announce_due(now_ns);
        self.do_periodically(now_ns);
        std::mem::take(&mut self.events)
    }

    /// To be done before anything that may take long: whoever makes or removes a cgroup holds locks of the
    /// kernel while he waits for others, and a look into the same directory waits with him.
    fn act_on_notices(&mut self, now_ns: i64) {
        let mut overflow = false;
        // What was done about the first ones took its time, in which there may have come more.
        for _ in 0..NOTICE_ROUNDS_MAX {
            let notices = self.watcher.drain();
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
        match notice {
            Notice::Made { watch, name, ahead } => match self.watched.get(&watch) {
                Some(&Watched::Directory(parent)) => self.appeared(parent, &name, ahead, now_ns),
                _ => ahead.into_iter().for_each(|ahead| self.watcher.remove(ahead)),
            },
            Notice::Removed { watch, name } => {
                if let Some(&Watched::Directory(parent)) = self.watched.get(&watch) {
                    self.noticed_removal(parent, &name, now_ns);
                }
            }
            Notice::Changed { watch } => {
                if let Some(&Watched::Events(node)) = self.watched.get(&watch) {
                    self.stirred.insert(node);
                }
            }
            Notice::Ended { watch } => {
                self.watched.remove(&watch);
            }
            Notice::Overflow => {}
        }
    }

    fn do_periodically(&mut self, now_ns: i64) {
        if now_ns >= self.next_parts_ns {
            self.read_parts(now_ns);
            self.next_parts_ns = now_ns + PARTS_EVERY_NS;
        }
        if now_ns >= self.next_jobs_ns {
            self.read_all(now_ns);
            self.next_jobs_ns = now_ns + JOBS_EVERY_NS;
        }
        if now_ns >= self.next_mending_ns {
            self.mark_own_processes();
            self.listen_again(now_ns);
            self.next_mending_ns = now_ns + MEND_EVERY_NS;
        }
        if self.watcher.refused().is_some() {
            self.next_rescan_ns = self.next_rescan_ns.min(now_ns + UNWATCHED_RESCAN_EVERY_NS);
        }
        if now_ns >= self.next_rescan_ns {
            self.rescan(false, now_ns);
            self.close_removed(now_ns);
            self.announce_due(now_ns);
        }
    }

    /// Looks at everything. In full after notices were lost; else whoever has as many directories as are known
    /// is believed to have those.
    pub fn rescan(&mut self, full: bool, now_ns: i64) {
        self.rescans += 1;
        self.found_by_look = full;
        self.places.begin_look();
        for root in self.roots() {
            self.reconcile(root, full, now_ns);
        }
        self.listen_again(now_ns);
        // Where there was no room there may be some soon.
        self.found_by_look |= self.places.left_out().next().is_some();
        if full {
            // Notices that were lost do not come any more.
            self.awaited.clear();
            // Who came and went unseen is nobody's: not to be charged to the next one that ends.
            self.close_removed(now_ns);
            self.unseen.cpu_ns += self.rebase_all(now_ns);
        }
        self.mark_own_processes();
        self.rescan_every_ns = match self.watcher.refused() {
            Some(_) => UNWATCHED_RESCAN_EVERY_NS,
            None if self.found_by_look => RESCAN_EVERY_NS,
            None => (2 * self.rescan_every_ns).clamp(RESCAN_EVERY_NS, RESCAN_EVERY_MAX_NS),
        };
        self.next_rescan_ns = now_ns + self.rescan_every_ns;
    }

    /// Whether managers came or went, or places became too full, since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    pub fn health(&self) -> Health {
        let mut jobs: HashMap<&str, usize> = HashMap::new();
        for job in self.jobs.values() {
            *jobs.entry(self.routes[job.route].manager.as_str()).or_default() += 1;
        }
        let mut jobs: Vec<(String, usize)> =
            jobs.into_iter().map(|(manager, count)| (manager.to_owned(), count)).collect();
        jobs.sort();
        Health {
            jobs,
            homes: self.home_paths(),
            managers: self.managers_here(),
            watches: self.watched.len(),
            refused: self.watcher.refused().map(|error| error.to_string()),
            left_out: self.crowded_places(),
            unseen: self.unseen,
            rescans: self.rescans,
        }
    }
}

/// The directories named before any layout's, each by its own name.
fn literals(below: &Path) -> Vec<Segment> {
    let names = below.components().filter_map(|part| match part {
        std::path::Component::Normal(name) => Some(Segment::literal(name.as_encoded_bytes())),
        _ => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests;
