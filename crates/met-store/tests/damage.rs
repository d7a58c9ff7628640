//! Whatever happens to the bytes of a store: what is whole is shown, and what is not is reported.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use met_core::job::{QualityKind, Record, Summary};
use met_core::job_table::{CPU, READ};
use met_store::{Filter, Reader, Writer};

#[path = "../src/samples_tests.rs"]
#[allow(dead_code)]
mod samples;

use samples::{MIDNIGHT_S, finished};

const JOBS: u64 = 30;
const PAGE_BYTES: usize = 4096;

/// Pseudorandom numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

fn record(id: u64) -> Record {
    let mut record = finished(id, MIDNIGHT_S + id as i64);
    record.command = vec!["python".into(), "x".repeat(id as usize * 40)];
    record.totals.set(READ, id as i64 * 1000, QualityKind::Measured, "task_io");
    record.summaries.set(CPU, Summary { mean: 0.5, min: 0.0, max: id as f64, p50: Some(0.25), p95: None });
    record
}

fn store() -> (tempfile::TempDir, Vec<u8>, Vec<Record>) {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    // Written one by one, and some twice, as jobs are.
    for id in 1..=JOBS {
        writer.put(&record(id)).unwrap();
        writer.put(&record(1 + id / 2)).unwrap();
    }
    drop(writer);
    let bytes = fs::read(state.path().join("store.db")).unwrap();
    (state, bytes, (1..=JOBS).rev().map(record).collect())
}

/// What was listed of it, and what was said to be missing.
fn as_writer(state: &Path) -> (Vec<Record>, Vec<String>) {
    let mut writer = Writer::open(state).unwrap();
    let jobs = writer.jobs(&Filter { with_summaries: true, ..Filter::default() }).unwrap();
    let mut reported = writer.take_unreadable();
    if let Some(salvage) = writer.salvaged.take() {
        assert!(salvage.aside.exists(), "the damaged file is kept");
        reported.push(salvage.sentence());
    }
    // It is a store like any other.
    writer.put(&record(99)).unwrap();
    assert_eq!(writer.get(&record(99).key).unwrap(), Some(record(99)));
    (jobs, reported)
}

/// A store with another writer is only read.
fn as_reader(state: &Path) -> (Vec<Record>, Vec<String>) {
    let reader = Reader::open_checked(state).unwrap();
    let jobs = reader.jobs(&Filter { with_summaries: true, ..Filter::default() }).unwrap();
    (jobs, reader.take_unreadable())
}

/// Nothing is listed that was not written, and whatever is missing is reported.
fn hold(what: &str, (jobs, reported): (Vec<Record>, Vec<String>), written: &[Record], missing_max: usize) {
    let is_bare = |job: &Record, whole: &Record| {
        let bare = Record { totals: job.totals.clone(), summaries: job.summaries.clone(), ..whole.clone() };
        *job == bare && job.totals.iter().all(|(column, figure)| whole.totals.figure(column) == Some(figure))
    };
    for job in &jobs {
        let whole = written.iter().find(|whole| whole.key == job.key);
        assert!(whole.is_some_and(|whole| is_bare(job, whole)), "{what}: job {} is wrong", job.key.id);
    }
    assert!(jobs == written || !reported.is_empty(), "{what}: {} of {} silently", jobs.len(), written.len());
    assert!(jobs.len() + missing_max >= written.len(), "{what}: {} listed, {reported:?}", jobs.len());
}

fn damaged(state: &Path, bytes: &[u8], damage: impl FnOnce(&fs::File)) {
    for entry in fs::read_dir(state).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::remove_file(path).unwrap();
        }
    }
    let path = state.join("store.db");
    fs::write(&path, bytes).unwrap();
    damage(&fs::OpenOptions::new().write(true).open(&path).unwrap());
}

#[test]
fn a_byte_that_changed_costs_no_other_job() {
    let (state, bytes, written) = store();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for number in 0..250 {
        let (at, mask) = (random.below(bytes.len()), 1 + random.below(255) as u8);
        let flip = |file: &fs::File| file.write_all_at(&[bytes[at] ^ mask], at as u64).unwrap();
        let what = format!("{number}: byte {at} ^ {mask:#x}");
        damaged(state.path(), &bytes, flip);
        hold(&what, as_reader(state.path()), &written, 8);
        damaged(state.path(), &bytes, flip);
        hold(&what, as_writer(state.path()), &written, 8);
    }
}

#[test]
fn every_byte_of_the_header_may_change() {
    let (state, bytes, written) = store();
    for at in 0..200 {
        let flip = |file: &fs::File| file.write_all_at(&[bytes[at] ^ 0x04], at as u64).unwrap();
        damaged(state.path(), &bytes, flip);
        hold(&format!("byte {at}"), as_writer(state.path()), &written, 0);
    }
}

#[test]
fn a_page_in_the_place_of_another_is_noticed() {
    let (state, bytes, written) = store();
    let pages = bytes.len() / PAGE_BYTES;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let page = |number: usize| &bytes[number * PAGE_BYTES..(number + 1) * PAGE_BYTES];
    for number in 0..200 {
        let (from, to) = (random.below(pages), random.below(pages));
        let copy = |file: &fs::File| file.write_all_at(page(from), (to * PAGE_BYTES) as u64).unwrap();
        let what = format!("{number}: page {from} over {to}");
        if page(from) == page(to) {
            continue;
        }
        damaged(state.path(), &bytes, copy);
        hold(&what, as_reader(state.path()), &written, 8);
        damaged(state.path(), &bytes, copy);
        hold(&what, as_writer(state.path()), &written, 8);
    }
}
