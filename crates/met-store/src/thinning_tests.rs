use met_core::job_table::{CPU, MEMORY_NEEDED};
use met_core::{JOB, MISSING};
use tempfile::TempDir;

use super::*;
use crate::samples::{MIDNIGHT_S, SECOND_NS, finished};
use crate::schema::{SERIES, give_back, open_for_writing};
use crate::{Reader, series};

const DAY_S: i64 = 86_400;
const GAP_MS: i64 = 25_000;
const MINUTE: Thinning =
    Thinning { after: Duration::from_secs(7 * DAY_S as u64), step: Duration::from_secs(60) };
const TEN: Thinning =
    Thinning { after: Duration::from_secs(90 * DAY_S as u64), step: Duration::from_secs(600) };

/// Two hours of seconds from before midnight to after it, with a peak and a pause.
fn busy(jobs: &[u64]) -> (TempDir, Writer, Vec<Series>) {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut all_series = Vec::new();
    for &id in jobs {
        let record = finished(id, MIDNIGHT_S - 3600);
        writer.put(&record).unwrap();
        let mut series = Series::new(&JOB);
        let mut cells = vec![MISSING; JOB.columns.len()];
        for second in (0..7200).filter(|second| !(1000..1300).contains(second)) {
            // As uneven as what is measured: a smooth series takes no more room than a thinned one.
            let noise = (second * second * 7919 + second * 104_729) % 999_983;
            cells[CPU] = second * 1_000_000_000 + noise + if second > 5000 { 9_000_000_000 } else { 0 };
            cells[MEMORY_NEEDED] = if second == 4321 { 1 << 40 } else { noise };
            series.push((MIDNIGHT_S - 3600 + second) * 1000, &cells);
        }
        writer.append_series(&record.key, &series).unwrap();
        all_series.push(writer.series(&record.key).unwrap());
    }
    (state, writer, all_series)
}

/// What a reader makes of a series: growth, covered time, mean and peaks.
fn figures(series: &Series) -> [f64; 5] {
    let sum = |column| series.intervals(column, GAP_MS).map(|span| span.value * length(&span)).sum::<f64>();
    let covered: f64 = series.intervals(MEMORY_NEEDED, GAP_MS).map(|span| length(&span)).sum();
    let peak = |column| series.intervals(column, GAP_MS).map(|span| span.peak).fold(0.0, f64::max);
    [sum(CPU), covered, sum(MEMORY_NEEDED) / covered, peak(CPU), peak(MEMORY_NEEDED)]
}

fn length(span: &met_core::series::Interval) -> f64 {
    (span.end_ms - span.begin_ms) as f64
}

fn assert_same_figures(before: &Series, after: &Series) {
    for (before, after) in figures(before).into_iter().zip(figures(after)) {
        assert!((after / before - 1.0).abs() < 1e-4, "{before} {after}");
    }
}

fn in_days(days: i64) -> i64 {
    (MIDNIGHT_S + days * DAY_S + 3600) * SECOND_NS
}

fn bytes(writer: &Writer) -> u64 {
    writer.queries.series.days().unwrap().iter().map(|(_, bytes)| bytes).sum()
}

#[test]
fn old_days_are_thinned_and_read_as_one_with_the_others() {
    let (state, mut writer, all_series) = busy(&[1]);
    let key = finished(1, MIDNIGHT_S - 3600).key;
    let thin_after =
        |writer: &mut Writer, days| thin(writer, &[MINUTE, TEN], &[&JOB], in_days(days), Duration::MAX / 4);
    assert!(!thin_after(&mut writer, 6).unwrap());
    assert_eq!(writer.series(&key).unwrap().len(), all_series[0].len(), "not old enough");
    // A week after the first of the two days, which is half of it.
    let before = bytes(&writer);
    assert!(!thin_after(&mut writer, 7).unwrap());
    let half = writer.series(&key).unwrap();
    assert!((3600..3700).contains(&half.len()), "{}", half.len());
    assert_same_figures(&all_series[0], &half);
    assert!(!thin_after(&mut writer, 8).unwrap());
    let minutes = writer.series(&key).unwrap();
    assert!(minutes.len() < 130, "{}", minutes.len());
    assert_same_figures(&all_series[0], &minutes);
    assert!(bytes(&writer) < before, "{} {before}", bytes(&writer));
    assert!(!thin_after(&mut writer, 100).unwrap());
    drop(writer);
    let tens = Reader::open(state.path()).unwrap().series(&key).unwrap();
    assert!(tens.len() < 20, "{}", tens.len());
    assert_same_figures(&all_series[0], &tens);
    assert_eq!(tens.columns[CPU].last(), all_series[0].columns[CPU].last());
}

#[test]
fn an_interruption_loses_nothing_and_the_rest_is_done_later() {
    let (state, mut writer, all_series) = busy(&[1, 2, 3]);
    let keys = [1, 2, 3].map(|id| finished(id, MIDNIGHT_S - 3600).key);
    let mut rounds = 0;
    // One series at a time, and every time the process is gone afterwards.
    loop {
        let left = thin(&mut writer, &[MINUTE], &[&JOB], in_days(20), Duration::ZERO).unwrap();
        for (key, series) in keys.iter().zip(&all_series) {
            assert_same_figures(series, &writer.series(key).unwrap());
        }
        rounds += 1;
        if !left || rounds > 3 {
            break;
        }
        drop(writer);
        writer = Writer::open(state.path()).unwrap();
    }
    // What was begun again goes on where it was, as long as the process lives.
    while thin(&mut writer, &[MINUTE], &[&JOB], in_days(20), Duration::ZERO).unwrap() {
        rounds += 1;
        assert!(rounds < 20);
    }
    for (key, series) in keys.iter().zip(&all_series) {
        let thinned = writer.series(key).unwrap();
        assert!(thinned.len() < 130);
        assert_same_figures(series, &thinned);
    }
}

#[test]
fn samples_that_come_late_are_added_to_a_thinned_day() {
    let (_state, mut writer, all_series) = busy(&[1]);
    let key = finished(1, MIDNIGHT_S - 3600).key;
    thin(&mut writer, &[MINUTE], &[&JOB], in_days(20), Duration::MAX / 4).unwrap();
    let mut late = Series::new(&JOB);
    let mut cells = vec![MISSING; JOB.columns.len()];
    for second in 7200..7230 {
        (cells[CPU], cells[MEMORY_NEEDED]) = (second * 1_000_000_000 + 9_000_000_000, 5);
        late.push((MIDNIGHT_S - 3600 + second) * 1000, &cells);
    }
    writer.append_series(&key, &late).unwrap();
    let mut whole = all_series[0].clone();
    whole.append(&late);
    let read = writer.series(&key).unwrap();
    assert_eq!(read.times_ms.last(), whole.times_ms.last());
    assert_same_figures(&whole, &read);
    assert!(!thin(&mut writer, &[MINUTE], &[&JOB], in_days(30), Duration::MAX / 4).unwrap());
    assert_eq!(writer.series(&key).unwrap().len(), read.len(), "a day is thinned once");
}

#[test]
fn unknown_tables_and_damaged_days_stay_as_they_are() {
    let (state, mut writer, all_series) = busy(&[1]);
    let key = finished(1, MIDNIGHT_S - 3600).key;
    assert!(!thin(&mut writer, &[MINUTE], &[], in_days(20), Duration::MAX / 4).unwrap());
    assert_eq!(writer.series(&key).unwrap().len(), all_series[0].len());
    drop(writer);
    let day = day::of_ms(MIDNIGHT_S * 1000);
    std::fs::write(series::path_of(state.path(), day), vec![7_u8; 9000]).unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    assert!(!thin(&mut writer, &[TEN], &[&JOB], in_days(200), Duration::MAX / 4).unwrap());
    let left = writer.series(&key).unwrap();
    let last = all_series[0].times_ms.partition_point(|&time_ms| time_ms < MIDNIGHT_S * 1000) - 1;
    assert_eq!(left.columns[CPU].last(), all_series[0].columns[CPU].get(last));
    assert!(left.len() < 20, "{}", left.len());
}

/// Pages of the file of a day that are not in use.
fn free_pages(connection: &Connection) -> i64 {
    connection.query_row("PRAGMA freelist_count", [], |row| row.get(0)).unwrap()
}

#[test]
fn space_is_given_back_in_pieces_until_the_deadline() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("day.db");
    let connection = open_for_writing(&path, &SERIES, false).unwrap();
    connection.execute("INSERT INTO subject VALUES (1, '', 'local', '1', 0)", []).unwrap();
    for first_ms in 0..1500 {
        let span_ms = (first_ms, first_ms);
        insert_block(&connection, 1, &JOB, span_ms, 1, &[7; 4000]).unwrap();
    }
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let before = series::bytes_of(&path);
    connection.execute("DELETE FROM block", []).unwrap();
    let free = free_pages(&connection);
    assert!(free > 1000, "{free}");
    let past = Some(Instant::now());
    let mut calls = 1;
    let mut left = free;
    while !give_back(&connection, past).unwrap() {
        let now = free_pages(&connection);
        assert!(now < left && now > left - 500, "{now} of {left}");
        (left, calls) = (now, calls + 1);
    }
    assert!(calls > 3, "{calls}");
    assert_eq!(free_pages(&connection), 0);
    assert!(series::bytes_of(&path) < before / 20, "{}", series::bytes_of(&path));
}

#[test]
fn thinning_gives_all_space_back_also_while_the_day_is_read() {
    let (state, mut writer, _) = busy(&[1, 2, 3]);
    let day = day::of_ms(MIDNIGHT_S * 1000);
    let path = series::path_of(state.path(), day);
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM block").unwrap();
    while thin(&mut writer, &[MINUTE], &[&JOB], in_days(20), Duration::ZERO).unwrap() {}
    drop(reader);
    assert_eq!(free_pages(&Connection::open(&path).unwrap()), 0);
}

#[test]
fn a_day_that_cannot_be_changed_does_not_keep_later_ones_from_being_thinned() {
    let (state, writer, all_series) = busy(&[1]);
    let key = finished(1, MIDNIGHT_S - 3600).key;
    drop(writer);
    // As a newer program would have written it.
    let first = series::path_of(state.path(), day::of_ms(MIDNIGHT_S * 1000) - 1);
    let set_version = |version: i64| {
        Connection::open(&first).unwrap().pragma_update(None, "user_version", version).unwrap()
    };
    let version: i64 =
        Connection::open(&first).unwrap().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    set_version(99);
    let mut writer = Writer::open(state.path()).unwrap();
    assert!(!thin(&mut writer, &[MINUTE], &[&JOB], in_days(20), Duration::MAX / 4).unwrap());
    drop(writer);
    set_version(version);
    let left = Reader::open(state.path()).unwrap().series(&key).unwrap();
    assert_same_figures(&all_series[0], &left);
    let (before, after) = left.times_ms.split_at(left.times_ms.partition_point(|&ms| ms < MIDNIGHT_S * 1000));
    assert!(before.len() > 3000 && after.len() < 70, "{} {}", before.len(), after.len());
}

#[test]
fn columns_of_another_version_are_not_lost() {
    static COLUMNS: &[met_core::Column] = &[JOB.columns[MEMORY_NEEDED]];
    static SMALL: Table = Table { name: JOB.name, subject: "", labels: &[], columns: COLUMNS };
    let (_state, mut writer, all_series) = busy(&[1]);
    let key = finished(1, MIDNIGHT_S - 3600).key;
    assert!(!thin(&mut writer, &[MINUTE], &[&SMALL], in_days(20), Duration::MAX / 4).unwrap());
    assert_eq!(writer.series(&key).unwrap().columns[CPU], all_series[0].columns[CPU]);
    let mut late = Series::new(&SMALL);
    late.push((MIDNIGHT_S + 4000) * 1000, &[5]);
    writer.append_series(&key, &late).unwrap();
    let read = writer.series(&key).unwrap();
    assert_eq!(read.columns[CPU][..all_series[0].len()], all_series[0].columns[CPU]);
    assert_eq!((read.len(), read.columns[MEMORY_NEEDED].last()), (all_series[0].len() + 1, Some(&5)));
}

#[test]
fn a_series_that_thinning_would_enlarge_stays_as_it_is() {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    let record = finished(1, MIDNIGHT_S);
    writer.put(&record).unwrap();
    // A job of three minutes in which nothing changes much: its columns take next to nothing.
    let mut series = Series::new(&JOB);
    for second in 0..180 {
        let cells: Vec<i64> = (0..JOB.columns.len() as i64).map(|column| column + second / 30).collect();
        series.push((MIDNIGHT_S + second) * 1000, &cells);
    }
    writer.append_series(&record.key, &series).unwrap();
    let bytes = |writer: &Writer| {
        let usage = writer.queries.series.usage(day::of_ms(MIDNIGHT_S * 1000)).unwrap();
        usage.iter().map(|one| one.bytes).sum::<u64>()
    };
    let before = bytes(&writer);
    thin(&mut writer, &[MINUTE], &[&JOB], in_days(20), Duration::MAX / 4).unwrap();
    assert!(bytes(&writer) <= before, "{} {before}", bytes(&writer));
    assert_eq!(writer.series(&record.key).unwrap().len(), 180);
}
