//! Whether jobs can be kept.

use std::io::Write;
use std::path::Path;

use met_server::cluster::SinksFile;
use met_server::colmet::Received;
use met_store::Reader;

use super::{Finding, Health};
use met_core::units;
use met_host::trusted;
use met_query::protocol::Status;
use met_query::setting::Setting;

pub(super) fn store(setting: &Setting) -> Finding {
    let system = super::status_of(setting.system_daemon()).map(|status| status.state);
    let root = rustix::process::geteuid().is_root();
    let finding = looked_at(&setting.user.state, system.as_deref(), root);
    // The machine's is for root to read.
    let readable = if root { system.as_deref().unwrap_or(&setting.user.state) } else { &setting.user.state };
    match finding.health {
        Health::Broken => finding,
        _ => damaged(readable)
            .or_else(|| unreadable_days(readable))
            .or_else(|| renamed_days(readable))
            .unwrap_or(finding),
    }
}

/// Files of samples that cannot be read; the other days can.
fn unreadable_days(state: &Path) -> Option<Finding> {
    let unreadable = met_store::unreadable_days(state);
    let more = unreadable.len().checked_sub(1)?;
    let detail = match more {
        0 => format!("samples of one day cannot be read: {}", unreadable[0]),
        _ => format!("samples of {} days cannot be read: {}; and {more} more", more + 1, unreadable[0]),
    };
    let remedy = "move the file away with its -wal and -shm, or chown it to the user of the daemon";
    Some(of_store(Health::Less, detail).remedied_by(remedy))
}

/// Files of samples that were damaged; days have gaps where they had samples.
fn renamed_days(state: &Path) -> Option<Finding> {
    let renamed = met_store::damaged_days(state);
    let (first, more) = (renamed.first()?.display(), renamed.len() - 1);
    let detail = match more {
        0 => format!("samples of one day were damaged and are not shown: {first}"),
        _ => format!("samples of {} days were damaged and are not shown: {first} and {more} more", more + 1),
    };
    Some(of_store(Health::Less, detail).remedied_by(removal(&renamed[0])))
}

/// How a damaged file is removed with its logs, and no other one whose name begins like it.
fn removal(damaged: &Path) -> String {
    let own = ["", "-wal", "-shm"].map(|log| format!("{}{log}", damaged.display()));
    let there = own.into_iter().enumerate().filter(|(at, path)| *at == 0 || Path::new(path).exists());
    let words: Vec<String> = ["rm".to_owned()].into_iter().chain(there.map(|(_, path)| path)).collect();
    format!("{}    (when it is no longer needed)", met_core::text::command_line(&words))
}

fn of_store(health: Health, detail: String) -> Finding {
    Finding::new("store", health, detail)
}

/// Problems that are named; there may be one for every record.
const PROBLEMS_SHOWN: usize = 3;

/// Whether the store is as it was written, by SQLite's own checks and the checksum of every record.
fn damaged(state: &Path) -> Option<Finding> {
    let checked = match met_store::check(state) {
        Ok(checked) => checked?,
        Err(error) => return Some(of_store(Health::Less, format!("not checked: {error}"))),
    };
    if !checked.problems.is_empty() {
        let shown = checked.problems.iter().take(PROBLEMS_SHOWN).cloned().collect::<Vec<_>>().join("; ");
        let more = checked.problems.len().saturating_sub(PROBLEMS_SHOWN);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let detail = format!("{} is damaged: {shown}{more}", state.join("store.db").display());
        return Some(of_store(Health::Broken, detail).remedied_by(
            "restart the daemon, or run `met daemon --user` if none is running: readable jobs are copied to a new \
             store, and the damaged file is kept",
        ));
    }
    if let Some(count) = Some(checked.unlike_packed.len()).filter(|&count| count > 0) {
        let shown = checked.unlike_packed.iter().take(PROBLEMS_SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let of = units::counted(count, "job");
        let detail =
            format!("packed records of {of} differ from their records ({shown}): `met check` may be wrong");
        let remedy = "nothing: a daemon finds and writes them again, some every hour";
        return Some(of_store(Health::Less, detail).remedied_by(remedy));
    }
    let salvage = Reader::open_checked(state).ok()?.last_salvage()?;
    Some(of_store(Health::Less, salvage.sentence()).remedied_by(removal(&salvage.aside)))
}

/// `system`: the store of the system daemon, which also has the caller's jobs. The caller's own folder only holds those not imported yet.
fn looked_at(user: &Path, system: Option<&Path>, root: bool) -> Finding {
    let own = "export XDG_STATE_HOME=DIR    (a folder you own)";
    let machines = "system: {state: DIR}    (in met.yaml)";
    // Whether the machine's can be written only its owner can try.
    let tried = [(Some(user), own), (system.filter(|_| root), machines)];
    for (folder, remedy) in tried.into_iter().filter_map(|(folder, remedy)| Some((folder?, remedy))) {
        if let Some(why) = unwritable(folder) {
            let detail = format!("{} cannot be written ({why}): jobs are not recorded", folder.display());
            return of_store(Health::Broken, detail).remedied_by(remedy);
        }
    }
    let (state, remedy) = system.map_or((user, own), |system| (system, machines));
    let of = match system {
        Some(_) => format!("{}, of the system daemon", state.display()),
        None => state.display().to_string(),
    };
    match met_store::is_network(state) {
        true => {
            let detail = format!("{of}, is on a network file system: one process at a time reads it");
            let local = remedy.replace("a folder you own", "a folder you own on a local disk");
            of_store(Health::Less, detail).remedied_by(local)
        }
        false => of_store(Health::Good, of),
    }
}

/// What the daemon could not store: in words, if there is something.
pub fn refused_samples(status: &Status) -> Option<String> {
    let count = Some(status.samples_refused).filter(|&count| count > 0)?;
    let samples = units::counted(count as usize, "sample");
    Some(format!("the series database rejected {samples} (lost); see the log of the daemon"))
}

pub(super) fn refused(status: Option<&Status>) -> Option<Finding> {
    Some(Finding::new("series", Health::Less, refused_samples(status?)?))
}

/// What a server on this machine holds of its nodes beside its store: it grows when it cannot get rid of it.
pub(super) fn served(setting: &Setting) -> Option<Finding> {
    let state = crate::server::state(setting);
    let bytes = met_store::cluster::bytes_in(&state)?;
    let data = format!("{} of data from nodes in {}", units::bytes(bytes as f64), state.display());
    let detail = match crate::server::running(setting) {
        Some(server) => {
            format!("server running (pid {}), serving {}; {data}", server.pid, server.listening.join(", "))
        }
        None => format!("no server is running; {data}"),
    };
    Some(Finding::new("cluster", Health::Good, detail))
}

/// What a server on this machine received of nodes of Colmet.
pub(super) fn colmet_of_server(setting: &Setting) -> Option<Finding> {
    let received = crate::server::running(setting)?.colmet;
    let words = |one: &Received| match one.taken {
        0 => format!("{}: {} skipped", one.peer, one.skipped),
        taken => format!("{}: {taken} taken, {} skipped", one.peer, one.skipped),
    };
    let skipped = received.iter().any(|one| one.skipped > 0);
    let health = if skipped { Health::Less } else { Health::Good };
    let (first, used) =
        (received.first()?, received.iter().filter(|one| one.taken + one.skipped > 0).map(words));
    let detail = match used.collect::<Vec<_>>().join("; ") {
        none if none.is_empty() => words(first),
        used => used,
    };
    Some(Finding::new("colmet", health, format!("records since the server started: {detail}")))
}

/// The sinks of a server on this machine, as it last described them.
pub(super) fn sinks_of_server(setting: &Setting) -> Vec<Finding> {
    /// It writes them three times a minute.
    const OLD_NS: i64 = 90_000_000_000;
    let Some(file) = SinksFile::read(&crate::server::state(setting)) else { return Vec::new() };
    let age_ns = met_query::jobs::now_ns() - file.time_ns;
    let finding = |sink| {
        let mut finding = super::daemon::of_sink("server sink", sink);
        if age_ns > OLD_NS {
            finding.health = Health::Less;
            finding.detail += &format!(" (stale: from {} s ago)", age_ns / 1_000_000_000);
        }
        finding
    };
    file.sinks.iter().map(finding).collect()
}

/// The servers that `store` in the configuration names, asked for real.
pub(super) fn servers_of_store(setting: &Setting) -> Vec<Finding> {
    let finding = |(what, probed): (&'static str, Result<String, met_store::StoreError>)| {
        let health = if probed.is_ok() { Health::Good } else { Health::Broken };
        Finding::new(what, health, probed.unwrap_or_else(|error| error.to_string()))
    };
    match setting.config.store.backends() {
        Ok(backends) => backends.probe().into_iter().map(finding).collect(),
        Err(error) => vec![finding(("store", Err(error)))],
    }
}

/// Tried for real, as far up as there is a folder: a store that is not there yet is made by the first job.
/// A full disk or a mount that is read only shows itself by nothing else.
fn unwritable(state: &Path) -> Option<std::io::Error> {
    if let Err(error) = trusted::check_own(state) {
        return Some(error);
    }
    let folder = state.ancestors().find(|folder| folder.exists())?;
    let trial = folder.join(format!(".met-doctor-{}", std::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&trial)
        .and_then(|mut file| file.write_all(&[0; 4096]).and_then(|()| file.sync_all()));
    let _ = std::fs::remove_file(&trial);
    written.err()
}

#[cfg(test)]
mod tests {
    use met_core::job::Record;

    use super::*;

    #[test]
    fn the_store_is_that_of_whoever_keeps_the_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let (user, system) = (folder.path().join("user"), folder.path().join("system"));
        let finding = looked_at(&user, None, true);
        assert_eq!(finding.detail, user.display().to_string());
        let finding = looked_at(&user, Some(&system), false);
        assert_eq!(finding.detail, format!("{}, of the system daemon", system.display()));
        std::fs::write(&system, "").unwrap();
        let below = system.join("state");
        assert!(looked_at(&user, Some(&below), true).remedy.unwrap().contains("system: {state:"));
        assert!(looked_at(&user, Some(&below), false).remedy.is_none(), "only root can try");
    }

    #[test]
    fn a_damaged_store_is_found_out_and_what_became_of_it_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = met_store::Writer::open(folder.path()).unwrap();
        // Too long to be packed: else it would be taken from there.
        let command = vec![format!("cat {}", "x".repeat(5000))];
        let record = |id, name| Record { command: command.clone(), ..met_core::sample::full(id, name) };
        writer.put_all(&[record(1, "first"), record(2, "train"), record(3, "third")]).unwrap();
        drop(writer);
        assert!(damaged(folder.path()).is_none());
        let path = folder.path().join("store.db");
        let mut bytes = std::fs::read(&path).unwrap();
        let is_name = |at: &usize| &bytes[*at..at + 7] == b"\"train\"";
        // A page that is not in use may have it, too.
        let places: Vec<usize> = (0..bytes.len() - 7).filter(is_name).collect();
        assert!(!places.is_empty());
        places.into_iter().for_each(|at| bytes[at + 1] ^= 1);
        std::fs::write(&path, bytes).unwrap();
        let finding = damaged(folder.path()).unwrap();
        assert!(finding.health == Health::Broken && finding.detail.contains("record checksum mismatch"));
        assert!(finding.remedy.unwrap().contains("met daemon --user"));
        drop(met_store::Writer::open(folder.path()).unwrap());
        let finding = damaged(folder.path()).unwrap();
        assert!(
            finding.health == Health::Less
                && finding.detail.contains("2 jobs recovered, 1 job known to be lost: ")
        );
    }

    #[test]
    fn a_file_of_samples_that_was_damaged_and_renamed_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let series = folder.path().join("series");
        std::fs::create_dir(&series).unwrap();
        std::fs::write(series.join("2026-11-16.db"), "").unwrap();
        assert!(renamed_days(folder.path()).is_none());
        for name in ["2026-11-15.db.damaged-1", "2026-11-15.db.damaged-1-wal"] {
            std::fs::write(series.join(name), "").unwrap();
        }
        let finding = renamed_days(folder.path()).unwrap();
        assert!(finding.health == Health::Less, "{}", finding.detail);
        assert!(finding.detail.contains("of one day") && finding.detail.ends_with("2026-11-15.db.damaged-1"));
        assert!(finding.remedy.unwrap().starts_with("rm "));
    }

    #[test]
    fn a_store_that_cannot_be_written_is_found_out() {
        let folder = tempfile::tempdir().unwrap();
        assert!(unwritable(&folder.path().join("not/there/yet")).is_none());
        // A folder cannot be made below a file.
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(unwritable(&folder.path().join("file/met")).is_some());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_damaged_file_is_removed_with_its_logs_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("my.damaged-1 store");
        let series = state.join("series");
        std::fs::create_dir_all(&series).unwrap();
        for name in ["1.db", "1.db.damaged-7", "1.db.damaged-7-wal", "1.db.damaged-7.1"] {
            std::fs::write(series.join(name), "").unwrap();
        }
        let damaged = met_store::damaged_days(&state);
        assert_eq!(damaged, ["1.db.damaged-7", "1.db.damaged-7.1"].map(|name| series.join(name)));
        let file = series.join("1.db.damaged-7");
        let file = file.display();
        assert_eq!(
            removal(&damaged[0]),
            format!("rm '{file}' '{file}-wal'    (when it is no longer needed)")
        );
    }
}
