//! Readers: on a file system that is read-only, where everything that was committed is read and nothing is written; and
//! many of them beside a writer.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use met_core::JOB;
use met_core::job::Record;
use met_core::job_table::CPU;
use met_core::sample::{self, SECOND_NS};
use met_core::series::Series;
use met_store::{Filter, Reader, Writer};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

/// A second, read-only name of a folder.
struct ReadOnly(tempfile::TempDir);

impl ReadOnly {
    fn of(folder: &Path) -> Option<ReadOnly> {
        let mount = tempfile::tempdir().unwrap();
        if let Err(error) = mount_bind(folder, mount.path()) {
            met_core::skipped::skipped(format!("nothing can be mounted: {error}"));
            return None;
        }
        let mount = ReadOnly(mount);
        mount_remount(mount.0.path(), MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
        Some(mount)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

fn names_below(folder: &Path, names: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names_below(&path, names);
        }
        names.push(path);
    }
    names.sort();
}

/// Of all files but the shared memory, in which readers say what they read.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut names = Vec::new();
    names_below(folder, &mut names);
    let is_kept = |path: &PathBuf| path.is_file() && !path.to_string_lossy().ends_with("-shm");
    names.into_iter().filter(is_kept).map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn finished(id: u32) -> Record {
    let mut record = sample::full(id, "train");
    record.start_ns = Some(sample::START_NS + i64::from(id) * SECOND_NS);
    record
}

fn series() -> Series {
    let mut series = Series::new(&JOB);
    let mut cells = vec![met_core::MISSING; JOB.columns.len()];
    for second in 0..100 {
        cells[CPU] = second * SECOND_NS;
        series.push(sample::START_NS / 1_000_000 + second * 1000, &cells);
    }
    series
}

fn write(writer: &mut Writer, ids: std::ops::Range<u32>) {
    for record in ids.map(finished) {
        writer.append_series(&record.key, &series()).unwrap();
        writer.put(&record).unwrap();
    }
}

/// Every question is answered as from a store that can be written.
fn reads_all(state: &Path, ids: std::ops::Range<u32>) {
    let before = content(state);
    let reader = Reader::open_checked(state).unwrap();
    let mut listed: Vec<String> =
        reader.jobs(&Filter::default()).unwrap().into_iter().map(|job| job.key.id).collect();
    listed.sort_by_key(|id| id.parse::<u32>().unwrap());
    assert_eq!(listed, ids.clone().map(|id| id.to_string()).collect::<Vec<_>>());
    for record in ids.map(finished) {
        let found = reader.get(&record.key).unwrap().unwrap();
        assert_eq!(found.totals, record.totals);
        assert_eq!(reader.series(&record.key).unwrap().len(), 100, "samples of {}", record.key.id);
    }
    assert_eq!(reader.take_unreadable(), Vec::<String>::new());
    assert!(reader.newest_change().unwrap() > 0);
    assert!(reader.allocations(&finished(1).key).is_ok());
    assert!(reader.factors().is_ok());
    assert!(reader.node_parts_between(0, i64::MAX).unwrap().is_empty());
    drop(reader);
    assert!(before == content(state), "a question wrote something");
}

#[test]
fn what_a_living_writer_commits_is_read_through_a_read_only_mount() {
    let state = tempfile::tempdir().unwrap();
    let Some(mount) = ReadOnly::of(state.path()) else { return };
    let mut writer = Writer::open(state.path()).unwrap();
    write(&mut writer, 1..20);
    reads_all(mount.0.path(), 1..20);
    write(&mut writer, 20..25);
    reads_all(mount.0.path(), 1..25);
    // One that was closed has no log.
    drop(writer);
    assert!(!state.path().join("store.db-wal").exists());
    reads_all(mount.0.path(), 1..25);
}

/// What a killed machine leaves: a log, and no shared memory that would say what is in it.
#[test]
fn what_is_in_a_log_without_shared_memory_is_read_through_a_read_only_mount() {
    let (state, left) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut writer = Writer::open(state.path()).unwrap();
    write(&mut writer, 1..20);
    fs::create_dir(left.path().join("series")).unwrap();
    let mut names = Vec::new();
    names_below(state.path(), &mut names);
    for path in names.iter().filter(|path| path.is_file() && !path.to_str().unwrap().ends_with("-shm")) {
        fs::copy(path, left.path().join(path.strip_prefix(state.path()).unwrap())).unwrap();
    }
    let logs = |folder: &Path| fs::metadata(folder.join("store.db-wal")).map(|log| log.len()).unwrap_or(0);
    assert!(logs(left.path()) > 0, "everything is in the database: the test would show nothing");
    let Some(mount) = ReadOnly::of(left.path()) else { return };
    reads_all(mount.0.path(), 1..20);
}

#[test]
fn eight_readers_beside_a_writer_see_every_job_that_was_committed_before_they_asked() {
    let state = tempfile::tempdir().unwrap();
    let committed = AtomicU32::new(0);
    let is_over = AtomicBool::new(false);
    let mut writer = Writer::open(state.path()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut answers = 0;
                while !is_over.load(Ordering::SeqCst) || answers == 0 {
                    let before = committed.load(Ordering::SeqCst);
                    let reader = Reader::open(state.path()).unwrap();
                    let jobs = reader.jobs(&Filter::default()).unwrap();
                    let after = committed.load(Ordering::SeqCst);
                    assert_eq!(reader.take_unreadable(), Vec::<String>::new());
                    // One may be committed and not counted yet.
                    let count = jobs.len() as u32;
                    assert!((before..=after + 1).contains(&count), "{before} <= {count} <= {after} + 1");
                    assert!(jobs.iter().all(|job| job.totals == finished(1).totals));
                    answers += 1;
                }
            });
        }
        for id in 1..=300 {
            write(&mut writer, id..id + 1);
            committed.store(id, Ordering::SeqCst);
        }
        is_over.store(true, Ordering::SeqCst);
    });
}
