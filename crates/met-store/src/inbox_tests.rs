use std::io::Write;

use super::*;
use crate::samples::{MIDNIGHT_S, finished, running, series};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn ids_count_up_and_are_never_given_twice() {
    let state = tempfile::tempdir().unwrap();
    let (first, dir) = JobDir::reserve(state.path(), 1).unwrap();
    assert_eq!(first, 1);
    dir.remove().unwrap();
    clean(state.path()).unwrap();
    assert_eq!(JobDir::reserve(state.path(), 1).unwrap().0, 2);
    assert_eq!(JobDir::reserve(state.path(), 10).unwrap().0, 10);
    clean(state.path()).unwrap();
    assert!(!dir.path().exists(), "an imported job that is not the highest leaves nothing");
    assert!(JobDir::open(state.path(), 2).path().exists(), "a fresh reservation is not cleaned away");
}

#[test]
fn a_users_own_ids_do_not_collide_with_the_shared_ones() {
    let state = tempfile::tempdir().unwrap();
    let (first, dir) = JobDir::reserve_own(state.path(), 1000).unwrap();
    assert_eq!(first, 1_001_000_000_001);
    assert!(dir.has_own_id() && !JobDir::open(state.path(), 1).has_own_id());
    assert_eq!(JobDir::reserve(state.path(), 1).unwrap().0, 1, "shared ids do not follow");
    assert_eq!(JobDir::reserve_own(state.path(), 1000).unwrap().0, first + 1);
    assert_eq!(JobDir::reserve(state.path(), 1).unwrap().0, 2);
    for id in [1, 2, first, first + 1] {
        JobDir::open(state.path(), id).remove().unwrap();
    }
    clean(state.path()).unwrap();
    assert_eq!(JobDir::reserve(state.path(), 1).unwrap().0, 3, "no shared id is given again");
    assert_eq!(JobDir::reserve_own(state.path(), 1000).unwrap().0, first + 2, "nor one of his own");
    assert!(own_ids(0).start >= SHARED_IDS_END);
    assert_eq!(own_ids(999).end, own_ids(1000).start);
    assert!(i64::try_from(own_ids(u32::MAX).end).is_ok(), "a database holds them");
    assert!(JobDir::reserve(state.path(), SHARED_IDS_END).is_err());
    assert!(JobDir::reserve(state.path(), u64::MAX).is_err());
}

#[test]
fn an_end_for_the_system_daemon_outlives_its_import_elsewhere() {
    let state = tempfile::tempdir().unwrap();
    let (own, unmarked) = JobDir::reserve_own(state.path(), 1000).unwrap();
    unmarked.write_end(&finished(own, MIDNIGHT_S)).unwrap();
    assert!(!unmarked.is_unreported(), "there was no system daemon");
    let (id, dir) = JobDir::reserve_own(state.path(), 1000).unwrap();
    dir.mark_of_system();
    dir.write_end(&finished(id, MIDNIGHT_S)).unwrap();
    dir.remove().unwrap();
    JobDir::reserve_own(state.path(), 1000).unwrap();
    clean(state.path()).unwrap();
    assert_eq!(dir.read().end, None);
    assert_eq!(dir.read_unreported(), Some(finished(id, MIDNIGHT_S)));
    dir.reported().unwrap();
    assert_eq!(dir.read_unreported(), None);
    clean(state.path()).unwrap();
    assert!(!dir.path().exists(), "nothing is left");
}

#[test]
fn records_and_samples_come_back() {
    let state = tempfile::tempdir().unwrap();
    let (id, dir) = JobDir::reserve(state.path(), 1).unwrap();
    dir.write_start(&running(id, MIDNIGHT_S)).unwrap();
    let entry = dir.read();
    assert_eq!(entry.start, Some(running(id, MIDNIGHT_S)));
    assert_eq!(entry.end, None);
    let samples = series(MIDNIGHT_S * 1000, 1000, 3000);
    dir.write_series(&samples).unwrap();
    dir.write_end(&finished(id, MIDNIGHT_S)).unwrap();
    assert_eq!(dir.read().into_record(), Some(finished(id, MIDNIGHT_S)));
    let (read, problem) = dir.read_series();
    assert_eq!((read.unwrap().columns, problem), (samples.columns, None));
    assert!(!dir.path().join(END_RESERVED).exists());
}

#[test]
fn room_that_was_made_before_the_start_is_enough_for_it() {
    let state = tempfile::tempdir().unwrap();
    let (id, dir) = JobDir::reserve(state.path(), 1).unwrap();
    let mut record = running(id, MIDNIGHT_S);
    let main = record.local.as_mut().unwrap().main.take();
    dir.make_room(&record).unwrap();
    let room = || fs::metadata(dir.path().join(END_RESERVED)).unwrap().blocks();
    let made = room();
    assert!(made * STAT_BLOCK_BYTES >= END_GROWTH_BYTES);
    let local = record.local.as_mut().unwrap();
    local.main = main;
    local.cgroup.unified = Some(PathBuf::from(format!("/sys/fs/cgroup/{}", "a".repeat(255))));
    dir.write_start(&record).unwrap();
    assert_eq!(room(), made, "no more was asked for");
}

#[test]
fn an_end_is_there_until_its_folder_is_gone_and_keeps_no_more_room_than_it_needs() {
    let state = tempfile::tempdir().unwrap();
    let (id, dir) = JobDir::reserve(state.path(), 1).unwrap();
    dir.write_start(&running(id, MIDNIGHT_S)).unwrap();
    assert!(!dir.has_end());
    dir.write_end(&finished(id, MIDNIGHT_S)).unwrap();
    let room = || fs::metadata(dir.path().join(END)).unwrap().blocks() * STAT_BLOCK_BYTES;
    let reserved = room();
    dir.give_back_room();
    assert!(dir.has_end() && room() < reserved && reserved >= END_GROWTH_BYTES);
    assert_eq!(dir.read().end, Some(finished(id, MIDNIGHT_S)));
    dir.remove().unwrap();
    assert!(dir.has_end(), "the database has it");
    fs::remove_dir_all(dir.path()).unwrap();
    assert!(dir.has_end());
    dir.give_back_room();
    // A path through a file is unreadable, even for root.
    let file = state.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(!JobDir::open(&file, 1).has_end(), "it may be without one");
}

#[test]
fn files_are_private() {
    let state = tempfile::tempdir().unwrap();
    let (id, dir) = JobDir::reserve(&state.path().join("a/b"), 1).unwrap();
    dir.write_start(&running(id, MIDNIGHT_S)).unwrap();
    assert_eq!(mode(&state.path().join("a")), 0o700);
    assert_eq!(mode(dir.path()), 0o700);
    assert_eq!(mode(&dir.path().join(START)), 0o600);
    assert_eq!(mode(&dir.path().join(END_RESERVED)), 0o600);
}

#[test]
fn a_damaged_file_is_a_problem_of_its_own_only() {
    let state = tempfile::tempdir().unwrap();
    let dir = JobDir::claim(state.path(), 7).unwrap();
    dir.write_end(&finished(7, MIDNIGHT_S)).unwrap();
    fs::write(dir.path().join(START), b"{\"key\":").unwrap();
    let entry = dir.read();
    assert_eq!(entry.problems.len(), 1);
    assert_eq!(entry.into_record(), Some(finished(7, MIDNIGHT_S)));

    dir.write_series(&series(0, 1000, 2000)).unwrap();
    let file = create(&dir.path().join(SERIES)).unwrap();
    file.set_len(file.metadata().unwrap().len() - 9).unwrap();
    let (series, problem) = dir.read_series();
    assert_eq!(series.unwrap().len(), BLOCK_SAMPLES_MAX, "the whole blocks before the damage are kept");
    assert!(problem.is_some());
}

#[test]
fn a_link_and_an_oversized_file_are_refused() {
    let state = tempfile::tempdir().unwrap();
    let dir = JobDir::claim(state.path(), 1).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join(START)).unwrap();
    create(&dir.path().join(END)).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
    assert_eq!(dir.read().problems.len(), 2);
}

#[test]
fn an_interrupted_end_is_no_end() {
    let state = tempfile::tempdir().unwrap();
    let dir = JobDir::claim(state.path(), 1).unwrap();
    dir.write_start(&running(1, MIDNIGHT_S)).unwrap();
    create(&dir.path().join(END_RESERVED)).unwrap().write_all_at(b"{\"key\"", 0).unwrap();
    let entry = dir.read();
    assert!(entry.end.is_none() && entry.problems.is_empty());
}

#[test]
fn a_full_disk_does_not_lose_the_end() {
    let mount = tempfile::tempdir().unwrap();
    let options = c"size=400k";
    if let Err(error) =
        rustix::mount::mount(c"tmpfs", mount.path(), c"tmpfs", rustix::mount::MountFlags::empty(), options)
    {
        met_core::skipped::skipped(format!("a small tmpfs cannot be mounted here: {error}"));
        return;
    }
    let dir = JobDir::claim(mount.path(), 1).unwrap();
    dir.write_start(&running(1, MIDNIGHT_S)).unwrap();
    let mut filler = create(&mount.path().join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    let mut end = finished(1, MIDNIGHT_S);
    // Ordinary, and as long as the space that is reserved.
    end.nodes = (0..4000).map(|number| format!("node{number:05}")).collect();
    let written = dir.write_end(&end);
    let read = dir.read();
    let next = JobDir::claim(mount.path(), 2).unwrap().write_start(&running(2, MIDNIGHT_S));
    rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    written.unwrap();
    assert_eq!(read.end, Some(end));
    assert_eq!(next.unwrap_err().kind(), io::ErrorKind::StorageFull, "the next job fails at its start");
}

#[test]
fn an_end_that_cannot_be_read_is_not_one_that_is_absent() {
    let state = tempfile::tempdir().unwrap();
    let (id, dir) = JobDir::reserve(state.path(), 1).unwrap();
    dir.write_start(&running(id, MIDNIGHT_S)).unwrap();
    assert!(dir.read().end_is_absent);
    // Reading a directory as a file fails even for root, like a file on a failing disk.
    fs::create_dir(dir.path().join(END)).unwrap();
    let entry = dir.read();
    assert!(!entry.end_is_absent && entry.end.is_none() && entry.problems.len() == 1);
    fs::remove_dir(dir.path().join(END)).unwrap();
    dir.write_end(&finished(id, MIDNIGHT_S)).unwrap();
    let entry = dir.read();
    assert!(!entry.end_is_absent && entry.end.is_some());
}

#[test]
fn a_folder_that_was_reserved_and_never_used_goes_with_the_room_in_it() {
    let state = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(24 * 3600);
    let made = |age: Duration, fill: &dyn Fn(&JobDir)| {
        let (_, dir) = JobDir::reserve(state.path(), 1).unwrap();
        fill(&dir);
        File::open(dir.path()).unwrap().set_modified(SystemTime::now() - age).unwrap();
        dir
    };
    let room = |dir: &JobDir| dir.make_room(&running(dir.id(), MIDNIGHT_S)).unwrap();
    let empty = made(2 * day, &|_| {});
    let unstarted = made(8 * day, &room);
    let waiting = made(2 * day, &room);
    let started = made(8 * day, &|dir| dir.write_start(&running(dir.id(), MIDNIGHT_S)).unwrap());
    let _highest = JobDir::reserve(state.path(), 1).unwrap();
    clean(state.path()).unwrap();
    let is_there = [&empty, &unstarted, &waiting, &started].map(|dir| dir.path().exists());
    assert_eq!(is_there, [false, false, true, true]);
}

#[test]
fn a_folder_in_the_place_of_a_file_does_not_keep_a_job() {
    let state = tempfile::tempdir().unwrap();
    let (_, dir) = JobDir::reserve(state.path(), 1).unwrap();
    dir.create_marks().unwrap();
    let marks = dir.marks();
    fs::remove_file(&marks).unwrap();
    fs::create_dir_all(marks.join("inside")).unwrap();
    assert!(dir.read_marks().is_empty());
    dir.remove().unwrap();
    assert!(!marks.exists());
}
