//! What a daemon does with its files and cgroups in its own rhythm: no request causes it, and no answer waits for it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use met_core::job::{CgroupPaths, LOCAL, Record};
use met_core::listing::Cursor;
use met_host::Host;
use met_jobs::job_cgroup;
use met_query::jobs::{self, Imported};
use met_store::{Filter, PageBounds, Writer, inbox};

use super::memory_release;
use super::registry::{Registry, is_found};
use super::service::{Left, OnEnd};
use met_config::{Place, Storage};

/// Between two looks at the inbox.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// When so many jobs wait they are imported: each makes a list a little slower.
const PENDING_MAX: usize = 16;
/// Fewer wait for so long: the server of a cluster has them within ten seconds of their end.
const IMPORT_EVERY: Duration = Duration::from_secs(5);
/// In one go: each end is a write that is waited for, and clients wait for a greeting for a second at most.
pub(super) const IMPORT_FOR: Duration = Duration::from_millis(100);
/// How long jobs are added to the sums of use in one go, with the pause after it, and how often samples of the machine
/// are.
const SUM_FOR: Duration = Duration::from_millis(20);
const SUM_PAUSE: Duration = Duration::from_millis(200);
const MACHINE_EVERY: Duration = Duration::from_secs(60);
/// From the first try to remove a cgroup in which there are processes, to the longest time between two.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Of the upgrade of a store, in one go.
const UPGRADE_FOR: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Cgroups that are remembered; of more, the last ones.
const CGROUPS_MAX: usize = 1024;
/// Jobs of earlier daemons whose cgroups are looked at in one go: requests wait meanwhile, and records may be large.
const EARLIER_JOBS: usize = 8;

pub(super) struct Housekeeping {
    looked: Instant,
    /// Or found that there was nothing to import.
    imported: Instant,
    /// More is known to be left to import.
    is_import_left: bool,
    /// Of jobs that are over, with processes that are not.
    cgroups: Vec<CgroupPaths>,
    pause: Duration,
    next_removal: Instant,
    earlier: Earlier,
    /// When more old samples are thinned; `None` until the next retention.
    next_thinning: Option<Instant>,
    /// When the upgrade of an old store goes on; `None` when it is done.
    next_upgrade: Option<Instant>,
    /// When more jobs, and samples of the machine, are added to the sums of use.
    next_sum: Instant,
    next_machine_sum: Instant,
    /// More is known to be left to add.
    is_sum_left: bool,
}

/// How far the jobs of earlier daemons are looked through, newest first.
enum Earlier {
    /// All before this one are left, or all if there is none.
    Before(Option<Cursor>),
    Done,
}

impl Housekeeping {
    pub(super) fn begin() -> Housekeeping {
        let now = Instant::now();
        Housekeeping {
            looked: now,
            imported: now,
            is_import_left: false,
            cgroups: Vec::new(),
            pause: FIRST_PAUSE,
            next_removal: now,
            earlier: Earlier::Before(None),
            next_thinning: None,
            next_upgrade: Some(now),
            next_sum: now,
            next_machine_sum: now,
            is_sum_left: false,
        }
    }

    /// Old samples may have become old enough.
    pub(super) fn begin_thinning(&mut self, now: Instant) {
        self.next_thinning = Some(now);
    }

    pub(super) fn next_thinning(&self) -> Option<Instant> {
        self.next_thinning
    }

    pub(super) fn next_upgrade(&self) -> Option<Instant> {
        self.next_upgrade
    }

    /// Upgrades some of an old store: requests wait meanwhile.
    pub(super) fn upgrade(&mut self, now: Instant, writer: &mut Writer) {
        if self.next_upgrade.is_none_or(|next| now < next) {
            return;
        }
        self.next_upgrade = match writer.complete_lists(UPGRADE_FOR) {
            Ok(true) => None,
            Ok(false) => Some(now + UPGRADE_FOR * 4),
            Err(error) => {
                tracing::warn!("the upgrade of the store continues later: {error}");
                Some(now + LONGEST_PAUSE)
            }
        };
    }

    /// Thins some of the old samples if that is due: requests wait meanwhile.
    pub(super) fn thin(&mut self, now: Instant, writer: &mut Writer, storage: &Storage) {
        if self.next_thinning.is_none_or(|next| now < next) {
            return;
        }
        let left = jobs::thin(writer, storage).unwrap_or_else(|error| {
            tracing::warn!("old samples could not be thinned: {error}");
            false
        });
        self.next_thinning = left.then_some(now + LOOK_EVERY);
        if !left {
            memory_release::give_back_free();
        }
    }

    /// When more is added to the sums of use though nothing else is to do.
    pub(super) fn next_sum(&self) -> Option<Instant> {
        self.is_sum_left.then_some(self.next_sum)
    }

    /// Adds some of what is new to the sums of use: requests wait meanwhile.
    pub(super) fn sum(&mut self, now: Instant, writer: &mut Writer, node: &str) {
        if now < self.next_sum {
            return;
        }
        let mut is_left = jobs::sum_jobs(writer, SUM_FOR);
        if now >= self.next_machine_sum && !matches!(is_left, Ok(true) | Err(_)) {
            is_left = jobs::sum_machine(writer, node, "", jobs::now_ns() / 1_000_000);
            self.next_machine_sum = now + if matches!(is_left, Ok(true)) { SUM_PAUSE } else { MACHINE_EVERY };
        }
        self.is_sum_left = matches!(is_left, Ok(true));
        self.next_sum = now
            + match is_left {
                Ok(true) => SUM_PAUSE,
                Ok(false) => LOOK_EVERY,
                // On a full disk, trying again at once would only write more.
                Err(error) => {
                    tracing::debug!("use could not be summed: {error}");
                    MACHINE_EVERY
                }
            };
    }

    /// These are tried again until they are empty.
    pub(super) fn leave(&mut self, cgroups: impl IntoIterator<Item = CgroupPaths>) {
        let before = self.cgroups.len();
        self.cgroups.extend(cgroups);
        if self.cgroups.len() > before {
            self.pause = FIRST_PAUSE;
            self.next_removal = Instant::now() + FIRST_PAUSE;
        }
        let excess = self.cgroups.len().saturating_sub(CGROUPS_MAX);
        self.cgroups.drain(..excess);
    }

    /// When the inbox is looked at though nothing else is to do.
    pub(super) fn next_import(&self) -> Instant {
        match self.is_import_left {
            true => self.imported,
            false => self.looked.max(self.imported) + IMPORT_EVERY,
        }
    }

    /// When more jobs of earlier daemons are looked at.
    pub(super) fn next_earlier(&self) -> Option<Instant> {
        matches!(self.earlier, Earlier::Before(_)).then(|| self.looked + LOOK_EVERY)
    }

    /// When cgroups are tried again.
    pub(super) fn next_removal(&self) -> Option<Instant> {
        (!self.cgroups.is_empty()).then_some(self.next_removal)
    }

    pub(super) fn remove_cgroups_now(&mut self) {
        self.cgroups.retain(|cgroup| !job_cgroup::remove(cgroup));
    }

    pub(super) fn remove_cgroups(&mut self, now: Instant) {
        if self.next_removal().is_none_or(|next| now < next) {
            return;
        }
        self.remove_cgroups_now();
        self.next_removal = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Looks at what others left, if that is due; whether the inbox is to be imported.
    pub(super) fn look(
        &mut self,
        now: Instant,
        host: &Host,
        place: &Place,
        writer: &Writer,
        registry: &Registry,
    ) -> bool {
        if self.is_import_left {
            return true;
        }
        if now < self.looked + LOOK_EVERY {
            return false;
        }
        self.looked = now;
        self.remove_earlier_cgroups(host, writer);
        // Jobs of a system daemon are announced to it, and it reads no files of users.
        if place.system {
            return false;
        }
        jobs::remove_left_cgroups(&place.state);
        let followed = followed(registry);
        let pending = inbox::pending_ends(&place.state, &followed);
        if pending >= PENDING_MAX {
            return true;
        }
        if now < self.imported + IMPORT_EVERY {
            return false;
        }
        self.imported = now;
        pending > 0 || jobs::has_lost(&place.state, host, &followed)
    }

    /// The ends that were imported, of jobs that nothing else here ends. What cannot be imported, on a full disk, is read
    /// where it is.
    pub(super) fn import(
        &mut self,
        host: &Host,
        place: &Place,
        writer: &mut Writer,
        registry: &Registry,
        within: Option<Duration>,
    ) -> Vec<Record> {
        self.imported = Instant::now();
        self.is_import_left = false;
        let until = within.map(|within| self.imported + within);
        match jobs::import_some(writer, &place.state, host, &followed(registry), until) {
            Ok(Imported { ended, left, has_more }) => {
                self.is_import_left = has_more;
                self.leave(left);
                ended
            }
            Err(error) => {
                tracing::warn!("{error:#}");
                Vec::new()
            }
        }
    }

    /// Of jobs that ended while there was no daemon, or before it could remove them: some of them at a time.
    pub(super) fn remove_earlier_cgroups(&mut self, host: &Host, writer: &Writer) {
        let Earlier::Before(after) = &self.earlier else { return };
        let some = Filter {
            page: PageBounds { limit: Some(EARLIER_JOBS), after: after.clone(), ..PageBounds::default() },
            ..Filter::default()
        };
        let Ok(page) = writer.page(&some) else { return };
        let boot_id = &host.facts().boot_id;
        let is_of_another_boot =
            |job: &Record| job.local.as_ref().is_some_and(|local| local.boot_id != *boot_id);
        // Cgroups do not outlive the machine.
        let is_last = page.next.is_none() || page.jobs.iter().any(is_of_another_boot);
        self.earlier = if is_last { Earlier::Done } else { Earlier::Before(page.next) };
        self.leave(jobs::remove_empty_cgroups(host, &page.jobs));
    }

    /// Of a job that is over.
    pub(super) fn remove_cgroup(&mut self, host: &Host, record: &Record) {
        self.leave(jobs::remove_empty_cgroups(host, std::slice::from_ref(record)));
    }
}

impl OnEnd for Housekeeping {
    /// Removes the cgroup of a job of ours. What it counted has been read: a daemon that is killed before the end is stored
    /// would leave it for good. A resource manager removes its cgroups itself.
    fn job_left(&mut self, left: &mut Left<'_>) {
        if left.record.local.is_some() && !is_found(left.record) {
            self.remove_cgroup(left.host, left.record);
        }
    }
}

/// The numbers of jobs whose ends come another way.
fn followed(registry: &Registry) -> HashSet<u64> {
    let own = registry.jobs.keys().filter(|key| key.manager == LOCAL);
    own.filter_map(|key| key.id.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_that_are_in_use_are_tried_again_ever_more_rarely() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = |name: &str| CgroupPaths { unified: Some(root.path().join(name)), ..Default::default() };
        // A directory with something in it cannot be removed, as a cgroup with processes.
        std::fs::create_dir_all(root.path().join("busy/process")).unwrap();
        std::fs::create_dir(root.path().join("empty")).unwrap();
        let mut housekeeping = Housekeeping::begin();
        assert_eq!(housekeeping.next_removal(), None, "nothing wakes the daemon");
        housekeeping.leave([cgroup("busy"), cgroup("empty"), cgroup("gone")]);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let due = housekeeping.next_removal().unwrap();
            housekeeping.remove_cgroups(due - Duration::from_millis(1));
            assert_eq!(housekeeping.next_removal(), Some(due), "not before it is due");
            housekeeping.remove_cgroups(due);
            pauses.push(housekeeping.next_removal().unwrap() - due);
        }
        assert!(!root.path().join("empty").exists());
        assert_eq!((pauses[0], pauses[1], pauses[11]), (FIRST_PAUSE, FIRST_PAUSE * 2, LONGEST_PAUSE));
        std::fs::remove_dir(root.path().join("busy/process")).unwrap();
        let due = housekeeping.next_removal().unwrap();
        housekeeping.remove_cgroups(due);
        assert!(!root.path().join("busy").exists());
        assert_eq!(housekeeping.next_removal(), None);
    }

    #[test]
    fn cgroups_that_nobody_leaves_are_bounded() {
        let mut housekeeping = Housekeeping::begin();
        let cgroup =
            |number| CgroupPaths { unified: Some(format!("/{number}").into()), ..Default::default() };
        housekeeping.leave((0..CGROUPS_MAX + 5).map(cgroup));
        assert_eq!(housekeeping.cgroups.len(), CGROUPS_MAX);
        assert_eq!(housekeeping.cgroups[0], cgroup(5));
    }
}
