//! What is done with the files of a user now and then, by commands that write anyway: jobs that ended are imported, old
//! ones removed, and empty cgroups taken away. No command that only reads does any of it.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use met_config::Storage;
use met_core::job::{CgroupPaths, Origin, Record, State};
use met_host::Host;
use met_store::inbox::JobDir;
use met_store::{Import, Retained, Retention, StoreError, Thinning, Writer, inbox};

use super::completing::complete_by_samples;
use super::forgetting::forget_reactions;
use super::leftovers::{note_cgroup, remove_left_cgroups};
use super::liveness::{remove_empty_cgroups, settle};
use super::now_ns;
use crate::protocol::{self, Request, TIMED_SAMPLES_MAX, WireSeries};
use crate::setting::Setting;

const RETAIN_EVERY: Duration = Duration::from_secs(86_400);
/// What asks meanwhile waits.
const THIN_FOR: Duration = Duration::from_millis(100);
/// All that a command does after its own work, for which its user waits. What is left is done by the next command, and
/// readers show it where it is.
const TIDY_FOR: Duration = Duration::from_millis(50);
/// Of the upgrade of a store, by a command that has done its work.
const UPGRADE_FOR: Duration = Duration::from_millis(10);
/// How long one waits for another writer of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// A shorter job is imported together with others: an import would take as long as the job did.
const SHORT_NS: i64 = 100_000_000;
/// So many short jobs wait for their import at most: each makes a list a little slower.
const PENDING_MAX: usize = 16;

/// After a command that left a job in the inbox, where no daemon imports it. Best effort.
pub fn tidy(setting: &Setting, ended: &Record) {
    let state = &setting.user.state;
    if setting.user.check_own().is_err() {
        return;
    }
    remove_left_cgroups(state);
    let is_short = ended.wall_ns(now_ns()).is_none_or(|wall_ns| wall_ns < SHORT_NS);
    let pending = inbox::pending_ends(state, &HashSet::new());
    // A system daemon has all of them.
    let has_nothing = pending == 0 && !met_store::has_catalogue(state);
    if has_nothing || is_short && pending < PENDING_MAX {
        return;
    }
    let until = Instant::now() + TIDY_FOR;
    let Some(mut writer) = import_until(state, &setting.host, Some(until)) else { return };
    retain_daily(&mut writer, state, &setting.config.storage);
    let left = until.saturating_duration_since(Instant::now()).min(UPGRADE_FOR);
    if !left.is_zero()
        && let Err(error) = writer.complete_lists(left)
    {
        tracing::warn!("the upgrade of the store continues later: {error}");
    }
}

/// Takes what is in the inbox into the store. Who writes is a daemon, or does the same: it is not waited for.
pub fn import_unless_locked(state: &Path, host: &Host) -> Option<Writer> {
    import_until(state, host, None)
}

/// The same until this time, and at least one job.
fn import_until(state: &Path, host: &Host, until: Option<Instant>) -> Option<Writer> {
    let mut writer = Writer::open(state).ok()?;
    match import_some(&mut writer, state, host, &HashSet::new(), until) {
        Ok(imported) => imported.left.iter().for_each(|cgroup| note_cgroup(state, cgroup)),
        Err(error) => tracing::warn!("{error:#}"),
    }
    Some(writer)
}

/// How long a system daemon that refuses an end is asked to take it.
const UNREPORTED_NS_MAX: i64 = 30 * 86_400 * 1_000_000_000;

/// Sends the system daemon the ends that it does not have: of its own jobs, which ended while it was down, and of jobs
/// that were started while it could not be asked for an id.
pub fn hand_over_ends(setting: &Setting) {
    // Without a system daemon nothing is searched, and without an end none is connected to.
    if !setting.system.socket().exists() || setting.user.check_own().is_err() {
        return;
    }
    let pending = inbox::pending(&setting.user.state).unwrap_or_default();
    let pending: Vec<JobDir> = pending.into_iter().filter(JobDir::may_be_unreported).collect();
    if pending.is_empty() {
        return;
    }
    let Some(mut system) = setting.system_daemon() else { return };
    for folder in pending {
        let Some(end) = folder.read_unreported() else { continue };
        let is_old = end.end_ns.is_some_and(|end_ns| now_ns() - end_ns > UNREPORTED_NS_MAX);
        let request = match end.local.as_ref().map(|local| local.origin) {
            // A job that got its id from the user's own files is the user's own.
            Some(Origin::Time) if !folder.is_unreported() => continue,
            Some(Origin::Time) => {
                let series = folder.read_series().0.map(|series| series.at_most(TIMED_SAMPLES_MAX));
                let series = series.as_ref().map(WireSeries::of).unwrap_or_default();
                Request::Timed { record: Box::new(end), series }
            }
            Some(_) => Request::Ended(Box::new(end)),
            None => continue,
        };
        // Samples are worth less than the end.
        let request = match request {
            Request::Timed { record, .. } if !protocol::fits(&request) => {
                Request::Timed { record, series: WireSeries::default() }
            }
            request => request,
        };
        if !protocol::fits(&request) {
            continue;
        }
        match system.call(&request) {
            Ok(_) => drop(folder.reported()),
            // It is of an older version: the job stays in the user's store.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => drop(folder.forget_unreported()),
            // It keeps refusing.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_old => {
                let _ = folder.forget_unreported();
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            // It is gone, or hangs.
            Err(_) => return,
        }
    }
}

/// Opens the store for writing; a command may hold it for a moment.
pub fn open_writer(state: &Path) -> Result<Writer, StoreError> {
    let begin = Instant::now();
    loop {
        match Writer::open(state) {
            Err(StoreError::Locked { .. }) if begin.elapsed() < STORE_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// Old jobs and samples, once a day and however long it takes: on a machine without a daemon nothing else bounds them.
fn retain_daily(writer: &mut Writer, state: &Path, storage: &Storage) {
    let mark = state.join("retained");
    let age =
        std::fs::metadata(&mark).and_then(|mark| mark.modified()).ok().and_then(|time| time.elapsed().ok());
    if age.is_some_and(|age| age < RETAIN_EVERY) {
        return;
    }
    let result = writer.retain(&retention(storage), now_ns()).map_err(anyhow::Error::from);
    let result = result.and_then(|retained| {
        log_removed(&retained);
        if retained.jobs_removed > 0 {
            forget_reactions(writer, now_ns())?;
        }
        Ok(thin(writer, storage).map(drop)?)
    });
    if let Err(error) = result.and_then(|()| Ok(std::fs::write(&mark, "")?)) {
        tracing::warn!("old jobs could not be removed: {error:#}");
    }
}

pub fn retention(storage: &Storage) -> Retention {
    Retention { max_age_ns: i64::try_from(storage.keep.as_nanos()).ok(), max_bytes: Some(storage.max_bytes) }
}

pub fn thinning(storage: &Storage) -> [Thinning; 2] {
    [
        Thinning { after: storage.thin_after, step: storage.thin_to },
        Thinning { after: storage.thin_more_after, step: storage.thin_more_to },
    ]
}

/// Thins old samples for a moment; true when something is left to do.
pub fn thin(writer: &mut Writer, storage: &Storage) -> Result<bool, StoreError> {
    met_store::thin(writer, &thinning(storage), &met_sources::catalogue(), now_ns(), THIN_FOR)
}

/// Logs what was removed, and whose it was.
pub fn log_removed(retained: &Retained) {
    retained.lines().iter().for_each(|line| tracing::info!("{line}"));
}

/// What an import found.
pub struct Imported {
    pub ended: Vec<Record>,
    /// Cgroups of these in which processes are left.
    pub left: Vec<CgroupPaths>,
    /// The time was over before all were looked at.
    pub has_more: bool,
}

/// Whether the inbox holds a job that is not `followed` and that no process waits for: its supervisor is gone and
/// has written no end.
pub fn has_lost(state: &Path, host: &Host, followed: &HashSet<u64>) -> bool {
    let pending = inbox::pending(state).unwrap_or_default();
    let is_open = |folder: &&JobDir| !followed.contains(&folder.id()) && !folder.has_end();
    pending.iter().filter(is_open).any(|folder| {
        let Some(mut record) = folder.read().start else { return false };
        settle(host, &mut record);
        record.state == State::Lost
    })
}

/// Says where a file of samples is that could not be read.
pub fn log_moved_aside(writer: &mut Writer) {
    if let Some(aside) = writer.moved_aside.take() {
        tracing::warn!("samples of a day were damaged; the file was moved to {}", aside.display());
    }
}

/// Takes what is in the inbox into the store. Jobs whose supervisor is gone are lost.
pub fn import(writer: &mut Writer, state: &Path, host: &Host) -> Result<Imported> {
    import_some(writer, state, host, &HashSet::new(), None)
}

/// The same without the jobs that are `followed`, and until this time.
pub fn import_some(
    writer: &mut Writer,
    state: &Path,
    host: &Host,
    followed: &HashSet<u64>,
    until: Option<Instant>,
) -> Result<Imported> {
    if let Some(salvage) = writer.salvaged.take() {
        writer.moved_aside = None;
        // Every list says so as long as the damaged file is there.
        tracing::error!("{}", salvage.sentence());
    }
    log_moved_aside(writer);
    let how = Import { complete: &complete_by_samples, followed, until };
    let imported = writer.import_with(&how)?;
    for problem in &imported.problems {
        tracing::warn!("{problem}");
    }
    let (mut ended, mut ended_meanwhile, mut has_more) = (imported.ended, false, imported.has_more);
    for mut record in imported.live {
        settle(host, &mut record);
        let Some(folder) = record.key.id.parse().ok().map(|id| JobDir::open(state, id)) else {
            continue;
        };
        if record.state != State::Lost {
            continue;
        }
        // Between the listing and the look at its supervisor it may have written its end and gone. A
        // supervisor that is dead now writes no more.
        match folder.read() {
            entry if entry.end.is_some() => ended_meanwhile = true,
            entry if entry.end_is_absent => {
                if let Some(series) = writer.series(&record.key).ok().filter(|series| !series.is_empty()) {
                    complete_by_samples(&mut record, &series);
                }
                writer.put(&record)?;
                folder.remove()?;
                ended.push(record);
                if until.is_some_and(|until| Instant::now() >= until) {
                    has_more = true;
                    break;
                }
            }
            // It stays where it is until it can be read.
            entry => entry.problems.iter().for_each(|problem| tracing::warn!("{problem}")),
        }
    }
    if ended_meanwhile {
        let imported = writer.import_with(&how)?;
        imported.problems.iter().for_each(|problem| tracing::warn!("{problem}"));
        has_more |= imported.has_more;
        ended.extend(imported.ended);
    }
    let left = remove_empty_cgroups(host, &ended);
    Ok(Imported { ended, left, has_more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_imports_what_fits_and_at_least_one_job_and_old_jobs_go_all_the_same() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let (host, state) = (Host::at(root.path()).unwrap(), root.path().join("state"));
        std::fs::create_dir(&state).unwrap();
        for number in 1..=3 {
            let mut end = met_core::sample::full(number, "x");
            end.end_ns = Some(now_ns() - i64::from(number == 1) * 3_600_000_000_000);
            JobDir::claim(&state, u64::from(number)).unwrap().write_end(&end).unwrap();
        }
        let import = |until: Option<Instant>| import_until(&state, &host, until).unwrap();
        let pending = || inbox::pending_ends(&state, &HashSet::new());
        let mut writer = import(Some(Instant::now()));
        assert_eq!(pending(), 2);
        let storage = Storage { keep: Duration::from_secs(60), ..Storage::default() };
        let stored = |writer: &Writer| writer.jobs(&met_store::Filter::default()).unwrap().len();
        assert_eq!(stored(&writer), 3, "those in the inbox, too");
        retain_daily(&mut writer, &state, &storage);
        assert_eq!((stored(&writer), pending()), (2, 2));
        retain_daily(&mut writer, &state, &Storage { keep: Duration::ZERO, ..storage });
        assert_eq!(stored(&writer), 2, "once a day");
        drop(writer);
        import(None);
        assert_eq!(pending(), 0);
    }
}
