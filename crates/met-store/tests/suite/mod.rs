//! What every kind of store must do: the same claims, whatever it lies on.

use std::fs;
use std::path::Path;
use std::time::Duration;

use met_core::energy::emission::Factor;
use met_core::gpu::device;
use met_core::job::{GpuUse, JobKey, Part, ProcessId, QualityKind, Record, State, Summary};
use met_core::job_processes::JobProcess;
use met_core::job_table::{CPU, MEMORY_NEEDED, MEMORY_NEEDED_PEAK, READ};
use met_core::member::Member;
use met_core::series::Series;
use met_core::table::{MILLI, ONE};
use met_core::work::{Mark, Work};
use met_core::{Column, JOB, MISSING, Table, Unit};
use met_store::inbox::JobDir;
use met_store::{
    Backends, Device, Filter, JobOwner, JobTimes, PageBounds, Reader, Retention, StoreError, Thinning,
    Writer, device_on, node_on,
};
use tempfile::TempDir;

mod lists;
mod reactions;
#[path = "../../src/samples_tests.rs"]
mod samples;
mod usage;

use lists::*;
use reactions::*;
pub(crate) use samples::{MIDNIGHT_S, SECOND_NS, finished, running, series};
use usage::*;

const DAY_S: i64 = 86_400;

/// A new store.
pub struct Place {
    state: TempDir,
    pub backends: Backends,
    /// Jobs begin then. No two places have the same, for engines that all of them share.
    pub start_s: i64,
    /// Whether a sample comes back to the last digit that a float has.
    pub exact: bool,
}

impl Place {
    pub fn new(backends: Backends, start_s: i64, exact: bool) -> Place {
        Place { state: tempfile::tempdir().unwrap(), backends, start_s, exact }
    }

    pub fn path(&self) -> &Path {
        self.state.path()
    }

    pub fn writer(&self) -> Writer {
        Writer::open_with(self.path(), &self.backends).unwrap()
    }

    pub fn reader(&self) -> Reader {
        Reader::open_with(self.path(), &self.backends).unwrap()
    }

    /// Looks until it is so: engines show samples a moment after they took them.
    fn eventually(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..600 {
            if is_so() {
                return;
            }
            assert!(self.backends.series.is_some(), "{what}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("never: {what}");
    }
}

pub type Claim = (&'static str, fn(&Place));

macro_rules! claims {
    ($($list:ident: $($name:ident,)*;)*) => {
        $(pub const $list: &[Claim] = &[$((stringify!($name), $name)),*];)*
        /// Each as a test of its own, on files.
        mod on_files {
            $($(
                #[test]
                fn $name() {
                    super::$name(&super::Place::new(Default::default(), super::MIDNIGHT_S, true));
                }
            )*)*
        }
    };
}

claims! {
    CATALOGUE:
        a_job_comes_back_whole,
        a_brief_record_that_is_written_takes_nothing_from_the_whole_one,
        an_end_is_not_overwritten_by_a_late_live_record,
        a_job_that_was_only_believed_lost_lives_again,
        a_node_and_a_scheduler_tell_of_one_job_in_any_order,
        statements_that_arrive_again_change_nothing,
        the_word_of_a_scheduler_outlives_what_a_node_writes_later,
        a_job_is_found_by_the_id_its_users_know,
        one_record_takes_the_place_of_another,
        what_belongs_to_no_job_is_remembered,
        lists_are_newest_first_and_filtered,
        a_job_that_has_yet_to_start_is_the_newest,
        a_member_sees_own_jobs_and_those_of_accounts_page_by_page,
        jobs_are_found_by_one_of_their_processes,
        five_thousand_jobs_of_one_instant_are_listed_page_by_page,
        a_page_is_bounded_by_bytes,
        lists_of_any_order_and_condition_lose_and_repeat_no_job,
        a_list_by_a_growing_figure_ends_and_shows_each_job_once,
        lists_from_rows_in_memory_are_those_of_the_records,
        rows_of_too_many_running_jobs_answer_nothing_until_all_of_them_fit,
        a_list_from_rows_in_memory_shows_each_job_once_while_jobs_change,
        a_sorted_list_shows_inbox_and_store_as_one,
        tags_and_a_note_outlive_every_later_statement,
        a_tag_on_a_job_that_waits_in_the_inbox_leaves_its_samples,
        tags_go_over_to_a_job_of_the_same_cluster_only,
        users_accounts_and_sums_are_of_the_jobs_that_fit,
        use_is_summed_step_by_step_and_outlives_its_jobs,
        a_job_that_changes_is_not_summed_twice,
        viewers_get_sums_of_what_they_see,
        reactions_are_replaced_taken_back_and_forgotten_in_time,
        store_and_inbox_are_shown_as_one,
        changes_come_in_the_order_of_writing_and_the_last_word_on_a_job_is_the_last,
        what_waits_in_the_inbox_is_a_change_when_it_is_imported,
        old_jobs_go_and_live_jobs_stay,
        any_text_is_kept,
        what_was_learned_of_a_device_stays_until_more_is_known,
        a_job_has_its_devices_while_it_runs_and_afterwards,
        factors_are_kept_replaced_and_forgotten,
        there_is_nothing_before_there_is_a_store,
        there_is_one_writer_of_a_state_directory,
    ;
    SERIES:
        ended_jobs_are_imported_once_and_bad_entries_left_alone,
        samples_come_back_as_they_were,
        old_samples_are_thinned_where_the_series_are_files,
        many_series_are_appended_at_once,
        large_counters_come_back,
        removing_a_job_removes_its_samples,
        the_series_of_a_device_is_stored_once_and_cut_for_each_job,
        a_server_has_the_parts_of_each_node,
    ;
}

fn ids(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.key.id.as_str()).collect()
}

fn same(left: &Series, right: &Series) -> bool {
    left.times_ms == right.times_ms && left.columns == right.columns
}

/// A job of a scheduler, as its node reports it and as the two were joined.
fn reported(node: &Record, state: State, asked_ns: i64) -> Record {
    let mut record = node.clone();
    record.state = state;
    record.manager_state = Some(state.name().to_uppercase());
    record.exit_code = None;
    record.account = Some("chem".into());
    record.requested.cpus = Some(4);
    record.scheduling.asked_ns = Some(asked_ns);
    record.scheduling.alias = Some("10_2".into());
    record.parts =
        vec![Part { node: "n1".into(), step: "batch".into(), exit_code: Some(1), ..Part::default() }];
    record
}

pub fn a_job_comes_back_whole(place: &Place) {
    let mut writer = place.writer();
    let mut record = finished(1, place.start_s);
    record.key.cluster = Some("alpha".into());
    record.totals.set(READ, i64::MAX, QualityKind::LowerBound, "task_io");
    record.summaries.set(CPU, Summary { mean: 0.5, min: 0.0, max: 2.0, p50: Some(0.25), p95: Some(1.5) });
    writer.put(&record).unwrap();
    writer.put(&record).unwrap();
    assert_eq!(writer.find(None, "1").unwrap(), [record.clone()]);
    assert_eq!(place.reader().get(&record.key).unwrap(), Some(record.clone()));
    assert_eq!(writer.jobs(&of_name("job-1")).unwrap(), [record]);
    assert_eq!(writer.find(Some("slurm"), "1").unwrap(), []);
    assert_eq!(writer.next_local_id().unwrap(), 2);
    writer.put(&finished(1_001_000_000_001, place.start_s)).unwrap();
    assert_eq!(writer.next_local_id().unwrap(), 2, "the ids that a user gives himself are not followed");
    assert_eq!(writer.local_ids(1..100).unwrap(), [1].into());
    assert_eq!(writer.local_ids(2..u64::MAX).unwrap(), [1_001_000_000_001].into());
}

pub fn a_brief_record_that_is_written_takes_nothing_from_the_whole_one(place: &Place) {
    let mut writer = place.writer();
    for (id, state) in (1..).zip(State::ALL) {
        let mut whole = Record { state, ..met_core::sample::full(id, "train") };
        whole.processes =
            vec![JobProcess { pid: 12, command: "python3".to_owned(), ..JobProcess::default() }];
        let [first, last] = [1.0, 9.0].map(|value| Mark { value, time_ns: None });
        let work = Work {
            name: "step".to_owned(),
            marks: 9,
            first,
            last,
            counts: true,
            points: Vec::new(),
            others_left_out: false,
        };
        whole.work = vec![work];
        writer.put(&whole).unwrap();
        let whole = writer.get(&whole.key).unwrap().unwrap();
        let brief = Filter { is_brief: true, with_summaries: true, ..Filter::default() };
        let briefs = writer.jobs(&brief).unwrap();
        let mut brief = briefs.into_iter().find(|job| job.key == whole.key).unwrap();
        assert!(brief.processes.is_empty() && brief.work.is_empty());
        brief.name = "renamed".to_owned();
        writer.put(&brief).unwrap();
        let expected = Record { name: "renamed".to_owned(), ..whole };
        assert_eq!(writer.get(&expected.key).unwrap(), Some(expected), "{state:?}");
    }
}

pub fn an_end_is_not_overwritten_by_a_late_live_record(place: &Place) {
    let mut writer = place.writer();
    let mut lost = running(1, place.start_s);
    lost.state = State::Lost;
    lost.totals.set(MEMORY_NEEDED_PEAK, 7, QualityKind::Sampled, "cgroup");
    writer.put(&running(1, place.start_s)).unwrap();
    writer.put(&lost).unwrap();
    writer.put(&running(1, place.start_s)).unwrap();
    assert_eq!(writer.newest().unwrap().unwrap().state, State::Lost);
    writer.put(&finished(1, place.start_s)).unwrap();
    writer.put(&lost).unwrap();
    let end = writer.newest().unwrap().unwrap();
    assert_eq!(end.state, State::Finished);
    assert_eq!(end.totals.get(CPU), Some(42));
    assert_eq!(end.totals.get(MEMORY_NEEDED_PEAK), Some(7), "what was sampled before the end is kept");
}

pub fn a_node_and_a_scheduler_tell_of_one_job_in_any_order(place: &Place) {
    let end = finished(1, place.start_s);
    let begin = running(1, place.start_s);
    let mut measured = end.clone();
    measured.parts = vec![Part { node: "n1".into(), step: "batch".into(), ..Part::default() }];
    measured.parts[0].totals.set(CPU, 7, QualityKind::Measured, "cgroup");
    let orders = [
        vec![
            begin.clone(),
            reported(&begin, State::Running, 1),
            reported(&begin, State::Timeout, 2),
            measured.clone(),
        ],
        vec![
            begin.clone(),
            reported(&begin, State::Running, 1),
            measured.clone(),
            reported(&measured, State::Timeout, 2),
        ],
        vec![measured.clone(), reported(&measured, State::Timeout, 2), begin.clone()],
    ];
    for (number, order) in orders.iter().enumerate() {
        let mut writer = place.writer();
        for record in order {
            writer.put(record).unwrap();
        }
        let record = writer.newest().unwrap().unwrap();
        assert_eq!(
            (record.state, record.exit_code),
            (State::Timeout, None),
            "{number}: the scheduler decides"
        );
        assert_eq!(record.manager_state.as_deref(), Some("TIMEOUT"));
        assert_eq!(record.totals.get(CPU), Some(42), "{number}: what was measured stays");
        assert_eq!((record.account.as_deref(), record.requested.cpus), (Some("chem"), Some(4)));
        assert_eq!(record.scheduling.asked_ns, Some(2));
        let [part] = &record.parts[..] else { panic!("{number}: {:?}", record.parts) };
        assert_eq!((part.exit_code, part.totals.get(CPU)), (Some(1), Some(7)));
    }
}

pub fn statements_that_arrive_again_change_nothing(place: &Place) {
    let mut writer = place.writer();
    let mut lost = running(1, place.start_s);
    lost.state = State::Lost;
    lost.totals.set(MEMORY_NEEDED_PEAK, 7, QualityKind::Sampled, "cgroup");
    let said = [running(1, place.start_s), lost, finished(1, place.start_s)];
    said.iter().for_each(|record| writer.put(record).unwrap());
    let once = writer.newest().unwrap().unwrap();
    assert_eq!(once.totals.get(MEMORY_NEEDED_PEAK), Some(7));
    drop(writer);
    let mut writer = place.writer();
    said.iter().for_each(|record| writer.put(record).unwrap());
    assert_eq!(writer.newest().unwrap().unwrap(), once);
    // In the other order, as by a server that hears the end first.
    writer.remove(&once.key).unwrap();
    said.iter().rev().for_each(|record| writer.put(record).unwrap());
    assert_eq!(writer.newest().unwrap().unwrap(), once);
}

pub fn the_word_of_a_scheduler_outlives_what_a_node_writes_later(place: &Place) {
    let mut writer = place.writer();
    let begin = running(1, place.start_s);
    let mut suspended = reported(&begin, State::Suspended, 1);
    suspended.parts[0].node = "n[1-2]".into();
    writer.put(&begin).unwrap();
    writer.put(&suspended).unwrap();
    let mut now = begin.clone();
    now.parts = vec![Part { node: "n1".into(), step: "batch".into(), ..Part::default() }];
    now.parts[0].totals.set(CPU, 7, QualityKind::Sampled, "cgroup");
    writer.put(&now).unwrap();
    let known = writer.newest().unwrap().unwrap();
    assert_eq!((known.state, known.manager_state.as_deref()), (State::Suspended, Some("SUSPENDED")));
    let [part] = &known.parts[..] else { panic!("a step is there twice: {:?}", known.parts) };
    assert_eq!((part.node.as_str(), part.exit_code), ("n1", Some(1)));
}

pub fn a_job_is_found_by_the_id_its_users_know(place: &Place) {
    let mut writer = place.writer();
    let mut record = reported(&finished(12, place.start_s), State::Failed, 1);
    record.key.manager = "slurm".into();
    writer.put_all(&[record, finished(10, place.start_s)]).unwrap();
    assert_eq!(ids(&writer.find(None, "10_2").unwrap()), ["12"]);
    assert_eq!(ids(&writer.find(Some("slurm"), "12").unwrap()), ["12"]);
    assert_eq!(ids(&writer.find(Some("oar"), "10_2").unwrap()), Vec::<&str>::new());
}

pub fn one_record_takes_the_place_of_another(place: &Place) {
    let mut writer = place.writer();
    let waiting = Record { state: State::Pending, start_ns: None, ..running(1, place.start_s) };
    writer.put(&waiting).unwrap();
    let mut begun = running(1, place.start_s);
    begun.key.incarnation += 30;
    writer.put_instead(&[begun.clone()], std::slice::from_ref(&waiting.key)).unwrap();
    assert_eq!(writer.jobs(&Filter::default()).unwrap(), [begun]);
}

pub fn what_belongs_to_no_job_is_remembered(place: &Place) {
    let mut writer = place.writer();
    assert_eq!(writer.meta("cursor").unwrap(), None);
    writer.set_meta("cursor", "1").unwrap();
    writer.set_meta("cursor", "2").unwrap();
    drop(writer);
    assert_eq!(place.reader().meta("cursor").unwrap().as_deref(), Some("2"));
}

pub fn lists_are_newest_first_and_filtered(place: &Place) {
    let mut writer = place.writer();
    for id in 1..=12 {
        // 9 to 12 begin in the same second: the number decides.
        let mut record = finished(id, place.start_s + (id as i64).min(9));
        record.state = if id % 2 == 0 { State::Failed } else { State::Finished };
        record.uid = Some(id as u32 % 3);
        writer.put(&record).unwrap();
    }
    let list = |filter: Filter| writer.jobs(&filter).unwrap();
    assert_eq!(
        ids(&list(Filter { page: PageBounds::first(5), ..Default::default() })),
        ["12", "11", "10", "9", "8"]
    );
    let failed = Filter { states: vec![State::Failed], owner: JobOwner::of_uid(0), ..Default::default() };
    assert_eq!(ids(&list(failed)), ["12", "6"]);
    let span = Filter {
        manager: Some("local".into()),
        times: JobTimes {
            since_ns: Some((place.start_s + 2) * SECOND_NS),
            until_ns: Some((place.start_s + 4) * SECOND_NS),
            ..JobTimes::default()
        },
        owner: JobOwner::of_user("ada"),
        ..Default::default()
    };
    assert_eq!(ids(&list(span)), ["3", "2"]);
    assert!(list(Filter { name: Some("nobody".into()), ..Default::default() }).is_empty());
}

pub fn a_member_sees_own_jobs_and_those_of_accounts_page_by_page(place: &Place) {
    let mut writer = place.writer();
    for id in 1..=12 {
        let mut record = finished(id, place.start_s + id as i64);
        let (user, account) =
            [("ada", "physics"), ("bob", "physics"), ("eve", "art"), ("", "")][id as usize % 4];
        record.user = (!user.is_empty()).then(|| user.to_owned());
        record.account = (!account.is_empty()).then(|| account.to_owned());
        writer.put(&record).unwrap();
    }
    let of = |user: &str, accounts: &[&str]| {
        let accounts = accounts.iter().map(|&account| account.to_owned()).collect();
        let member = Some(Member { user: user.to_owned(), accounts });
        let whole = Filter {
            owner: JobOwner { member: member.clone(), ..JobOwner::default() },
            ..Default::default()
        };
        let owned = |jobs: &[Record]| ids(jobs).into_iter().map(str::to_owned).collect::<Vec<_>>();
        let all = owned(&writer.jobs(&whole).unwrap());
        let mut page = Filter { page: PageBounds { limit: Some(1), ..whole.page }, ..whole };
        let mut paged = Vec::new();
        loop {
            let next = writer.page(&page).unwrap();
            paged.extend(owned(&next.jobs));
            match next.next {
                Some(after) => page.page.after = Some(after),
                None => break,
            }
        }
        assert_eq!(paged, all, "{user}");
        all.join(" ")
    };
    assert_eq!(of("ada", &[]), "12 8 4");
    assert_eq!(of("ada", &["physics"]), "12 9 8 5 4 1");
    assert_eq!(of("eve", &["physics", "nosuch"]), "12 10 9 8 6 5 4 2 1");
    assert_eq!(of("eve", &["Physics", "phys%", "' OR 1=1 --"]), "10 6 2");
    assert_eq!((of("", &[""]), of("zoe", &[])), (String::new(), String::new()));
}

pub fn jobs_are_found_by_one_of_their_processes(place: &Place) {
    let mut writer = place.writer();
    for id in 1..=4 {
        let mut record = finished(id, place.start_s + id as i64);
        let process = |pid| JobProcess { pid, command: "make".into(), ..JobProcess::default() };
        record.processes = vec![process(10 + id as u32), process(if id % 2 == 0 { 700 } else { 70 })];
        let local = record.local.as_mut().unwrap();
        local.main = Some(ProcessId { pid: 90 + id as u32, start_ticks: 1 });
        // Not one of the job's processes.
        local.supervisor = Some(ProcessId { pid: 7, start_ticks: 1 });
        writer.put(&record).unwrap();
    }
    let of = |pid| ids(&writer.jobs(&Filter { pid: Some(pid), ..Default::default() }).unwrap()).join(" ");
    assert_eq!([12, 70, 700, 7, 93].map(of), ["2", "3 1", "4 2", "", "3"]);
}

pub fn old_samples_are_thinned_where_the_series_are_files(place: &Place) {
    let mut writer = place.writer();
    let record = finished(1, place.start_s);
    writer.put(&record).unwrap();
    let mut whole = series(place.start_s * 1000, 1000, 600);
    // Uneven: what grows evenly is smaller than its sums.
    for (second, cell) in (0..).zip(&mut whole.columns[CPU]) {
        *cell += second * second * 7919 % 100_003;
    }
    writer.append_series(&record.key, &whole).unwrap();
    place.eventually("all samples are there", || writer.series(&record.key).unwrap().len() == 600);
    let rule = Thinning { after: Duration::from_secs(DAY_S as u64), step: Duration::from_secs(60) };
    let now_ns = (place.start_s + 3 * DAY_S) * SECOND_NS;
    assert!(!met_store::thin(&mut writer, &[rule], &[&JOB], now_ns, Duration::from_secs(60)).unwrap());
    let left = writer.series(&record.key).unwrap();
    match place.backends.series {
        Some(_) => assert_eq!(left.len(), 600, "an engine decides itself"),
        None => {
            assert!(left.len() < 60, "{}", left.len());
            assert_eq!(left.maximum(MEMORY_NEEDED), whole.maximum(MEMORY_NEEDED));
        }
    }
}

pub fn a_job_that_has_yet_to_start_is_the_newest(place: &Place) {
    let mut writer = place.writer();
    let mut pending = running(1, place.start_s);
    (pending.state, pending.start_ns) = (State::Pending, None);
    writer.put_all(&[pending, finished(2, place.start_s)]).unwrap();
    assert_eq!(ids(&writer.jobs(&Filter::default()).unwrap()), ["1", "2"]);
}

/// All pages, one after the other.
fn paged(reader: &Reader, filter: &Filter) -> (Vec<Record>, usize) {
    let (mut filter, mut jobs, mut pages) = (filter.clone(), Vec::new(), 0);
    loop {
        let page = reader.page(&filter).unwrap();
        pages += 1;
        assert!(page.jobs.len() <= filter.page.limit.unwrap_or(usize::MAX));
        jobs.extend(page.jobs);
        let Some(next) = page.next else { return (jobs, pages) };
        assert!(filter.page.after.as_ref().is_none_or(|after| next < *after), "it gets on");
        filter.page.after = Some(next);
    }
}

/// Ids with the same number, of several managers, with letters of other languages, and runs of one id.
fn of_name(name: &str) -> Filter {
    Filter { name: Some(name.into()), with_summaries: true, page: PageBounds::first(1), ..Filter::default() }
}

fn of_one_instant(number: i64, start_s: i64) -> Record {
    let mut record = finished(number as u64 / 2 + 1, start_s);
    record.key.manager = ["local", "slurm", "Slurm", "ärger"][number as usize % 4].to_owned();
    match number % 5 {
        0 => record.key.id = format!("job-{number}"),
        1 => record.key.id = format!("7_{number}"),
        _ => record.key.incarnation += number,
    }
    record
}

pub fn five_thousand_jobs_of_one_instant_are_listed_page_by_page(place: &Place) {
    let mut writer = place.writer();
    let records: Vec<Record> = (0..5000).map(|number| of_one_instant(number, place.start_s)).collect();
    writer.put_all(&records).unwrap();
    let dir = JobDir::claim(place.path(), 77).unwrap();
    dir.write_end(&finished(77, place.start_s)).unwrap();
    let reader = place.reader();
    for (limit, max_bytes) in [(Some(1000), None), (Some(333), Some(100_000)), (None, Some(1 << 20))] {
        let (jobs, pages) = paged(
            &reader,
            &Filter { page: PageBounds { limit, max_bytes, ..PageBounds::default() }, ..Filter::default() },
        );
        assert!(pages >= 3, "{pages} pages");
        assert_eq!(jobs.len(), 5001, "{limit:?} {max_bytes:?}");
        let keys: std::collections::HashSet<&JobKey> = jobs.iter().map(|job| &job.key).collect();
        assert_eq!(keys.len(), 5001);
        assert!(jobs == reader.jobs(&Filter::default()).unwrap(), "in the same order as all at once");
    }
}

pub fn a_page_is_bounded_by_bytes(place: &Place) {
    let mut writer = place.writer();
    for id in 1..=300 {
        let mut record = finished(id, place.start_s + (id as i64) % 7);
        record.command = vec!["x".repeat(50_000)];
        writer.put(&record).unwrap();
    }
    let reader = place.reader();
    let filter = Filter {
        page: PageBounds { max_bytes: Some(1_000_000), ..PageBounds::default() },
        ..Filter::default()
    };
    let page = reader.page(&filter).unwrap();
    assert!((1..=100).contains(&page.jobs.len()), "{} jobs", page.jobs.len());
    assert_eq!(paged(&reader, &filter).0.len(), 300);
    let one = Filter {
        page: PageBounds { max_bytes: Some(1), limit: Some(1), ..PageBounds::default() },
        ..Filter::default()
    };
    assert_eq!(paged(&reader, &one).0.len(), 300);
}

pub fn store_and_inbox_are_shown_as_one(place: &Place) {
    let reader = place.reader();
    let dir = JobDir::claim(place.path(), 1).unwrap();
    dir.write_start(&running(1, place.start_s)).unwrap();
    assert_eq!(reader.newest().unwrap(), Some(running(1, place.start_s)), "there is no database yet");

    let mut writer = place.writer();
    let mut sampled = running(1, place.start_s);
    sampled.totals.set(MEMORY_NEEDED_PEAK, 7, QualityKind::Sampled, "cgroup");
    writer.put(&sampled).unwrap();
    assert_eq!(reader.jobs(&Filter::default()).unwrap(), [sampled]);

    dir.write_end(&finished(1, place.start_s)).unwrap();
    let live = Filter { states: vec![State::Running], ..Default::default() };
    assert!(reader.jobs(&live).unwrap().is_empty(), "the end in the inbox is news");
    let ended = reader.newest().unwrap().unwrap();
    assert_eq!(ended.state, State::Finished);
    assert_eq!(reader.find(None, "1").unwrap(), std::slice::from_ref(&ended));

    // It ended here with what was sampled of it, and the supervisor has not taken his own word away yet.
    let mut whole = ended.clone();
    whole.totals.set(MEMORY_NEEDED_PEAK, 7, QualityKind::Sampled, "cgroup");
    writer.put(&whole).unwrap();
    writer.import().unwrap();
    assert_eq!(reader.find(None, "1").unwrap(), std::slice::from_ref(&whole));
    assert!(!dir.path().join("end").exists());

    // A job that was given up for lost has an end after all.
    whole.state = State::Lost;
    writer.put(&whole).unwrap();
    dir.write_end(&finished(1, place.start_s)).unwrap();
    writer.import().unwrap();
    assert_eq!(reader.newest().unwrap().unwrap().state, State::Finished);
}

pub fn ended_jobs_are_imported_once_and_bad_entries_left_alone(place: &Place) {
    let samples = series(place.start_s * 1000, 1000, 500);
    for id in 1..=4 {
        let dir = JobDir::claim(place.path(), id).unwrap();
        dir.write_start(&running(id, place.start_s)).unwrap();
        if id <= 2 {
            dir.write_series(&samples).unwrap();
            dir.write_end(&finished(id, place.start_s)).unwrap();
        }
    }
    let bad = JobDir::open(place.path(), 4).path().join("end");
    fs::write(&bad, b"\0\0\0").unwrap();
    let mut writer = place.writer();
    let imported = writer.import().unwrap();
    assert_eq!(ids(&imported.ended), ["1", "2"]);
    assert_eq!(ids(&imported.live), ["3"]);
    assert_eq!(imported.problems.len(), 1);
    assert!(bad.exists());
    assert!(!JobDir::open(place.path(), 1).path().exists());
    place.eventually("the course is kept", || {
        same(&writer.series(&finished(2, place.start_s).key).unwrap(), &samples)
    });
    assert!(writer.import().unwrap().ended.is_empty());
    assert_eq!(JobDir::reserve(place.path(), 1).unwrap().0, 5);
}

pub fn changes_come_in_the_order_of_writing_and_the_last_word_on_a_job_is_the_last(place: &Place) {
    assert_eq!(place.reader().newest_change().unwrap(), 0, "there is no database yet");
    let mut writer = place.writer();
    let reported = |writer: &Writer, mark: i64, limit: usize| -> Vec<(i64, String, State)> {
        let changes = writer.changed_after(mark, limit).unwrap();
        changes.into_iter().map(|(number, job)| (number, job.key.id, job.state)).collect()
    };
    let change = |number: i64, id: &str, state: State| (number, id.to_string(), state);
    writer
        .put_all(&[running(1, place.start_s), running(2, place.start_s), running(3, place.start_s)])
        .unwrap();
    assert_eq!(reported(&writer, 0, 2), [change(1, "1", State::Running), change(2, "2", State::Running)]);
    assert_eq!(reported(&writer, 2, 2), [change(3, "3", State::Running)]);

    writer.put(&finished(1, place.start_s)).unwrap();
    let since = |start_ns: i64| writer.changed_since(0, Some(start_ns), 9).unwrap().len();
    let start_ns = finished(1, place.start_s).start_ns.unwrap();
    assert_eq!((since(start_ns), since(start_ns + 1)), (3, 0), "only those that started then or later");
    let (number, end) = writer.changed_after(3, 9).unwrap().remove(0);
    assert_eq!((number, &end), (4, &finished(1, place.start_s)), "with its totals");
    let all = [(2, "2", State::Running), (3, "3", State::Running), (4, "1", State::Finished)];
    assert_eq!(reported(&writer, 0, 9), all.map(|(number, id, state)| change(number, id, state)));
    writer.put(&running(1, place.start_s)).unwrap();
    assert_eq!(writer.newest_change().unwrap(), 4, "what comes late and changes nothing is no change");

    // The number of a removed job is never used again.
    writer.remove(&end.key).unwrap();
    writer.put_instead(&[finished(2, place.start_s)], &[running(3, place.start_s).key]).unwrap();
    assert_eq!(reported(&writer, 0, 9), [change(5, "2", State::Finished)]);
    assert_eq!(writer.newest_change().unwrap(), 5);
}

pub fn what_waits_in_the_inbox_is_a_change_when_it_is_imported(place: &Place) {
    let dir = JobDir::claim(place.path(), 1).unwrap();
    dir.write_start(&running(1, place.start_s)).unwrap();
    dir.write_end(&finished(1, place.start_s)).unwrap();
    let mut writer = place.writer();
    assert_eq!(writer.changed_after(0, 9).unwrap(), []);
    writer.import().unwrap();
    assert_eq!(writer.changed_after(0, 9).unwrap(), [(1, finished(1, place.start_s))]);
}

pub fn removing_a_job_removes_its_samples(place: &Place) {
    let mut writer = place.writer();
    let (gone, kept) = (finished(1, place.start_s), finished(2, place.start_s));
    for record in [&gone, &kept] {
        writer.put(record).unwrap();
        writer.append_series(&record.key, &series(place.start_s * 1000, 1000, 10)).unwrap();
    }
    place.eventually("its samples are there", || writer.series(&gone.key).unwrap().len() == 10);
    writer.remove(&gone.key).unwrap();
    assert_eq!(writer.get(&gone.key).unwrap(), None);
    place.eventually("its samples are gone", || writer.series(&gone.key).unwrap().is_empty());
    place.eventually("the other's are not", || writer.series(&kept.key).unwrap().len() == 10);
}

pub fn old_jobs_go_and_live_jobs_stay(place: &Place) {
    let mut writer = place.writer();
    for day in 0..5 {
        writer.put(&finished(day as u64 + 1, place.start_s + day * DAY_S)).unwrap();
    }
    writer.put(&running(9, place.start_s)).unwrap();
    let now_ns = (place.start_s + 4 * DAY_S + 3600) * SECOND_NS;
    let by_age = Retention { max_age_ns: Some(2 * DAY_S * SECOND_NS), max_bytes: None };
    assert_eq!(writer.retain(&by_age, now_ns).unwrap().jobs_removed, 3);
    assert_eq!(ids(&writer.jobs(&Filter::default()).unwrap()), ["5", "4", "9"]);
    assert_eq!(writer.retain(&Retention::default(), now_ns).unwrap().jobs_removed, 0);
}

pub fn any_text_is_kept(place: &Place) {
    let mut writer = place.writer();
    let mut record = finished(1, place.start_s);
    record.name = "a\0b'\"\\ \u{1f980}".into();
    record.user = Some("?1 $1 %".into());
    record.account = Some(String::new());
    record.command = vec!["\0".into(), "\"gpus\":[{".into(), "\u{ffff}\n\t\u{1}".into()];
    record.totals.set(CPU, -1, QualityKind::Estimated, "x".repeat(1000));
    writer.put(&record).unwrap();
    let kept = writer.get(&record.key).unwrap().unwrap();
    assert_eq!((&kept.name, &kept.user, &kept.account), (&record.name, &record.user, &record.account));
    assert_eq!(kept.command, record.command);
    assert_eq!(kept.totals.figure(CPU).unwrap().source, "other");
    assert_eq!(writer.jobs(&of_name(&record.name)).unwrap(), [kept]);
    let by_user =
        Filter { owner: JobOwner { user: record.user.clone(), ..JobOwner::default() }, ..Filter::default() };
    assert_eq!(writer.jobs(&by_user).unwrap().len(), 1);
    let with_gpus = Filter { with_gpus: true, ..Filter::default() };
    assert_eq!(writer.jobs(&with_gpus).unwrap(), [], "a command that looks like one is no card");
}

pub fn there_is_nothing_before_there_is_a_store(place: &Place) {
    let reader = place.reader();
    assert_eq!(reader.jobs(&Filter::default()).unwrap(), []);
    assert_eq!(reader.factors().unwrap(), []);
    assert_eq!(reader.devices().unwrap(), []);
    assert_eq!((reader.next_local_id().unwrap(), reader.newest_change().unwrap()), (1, 0));
}

pub fn there_is_one_writer_of_a_state_directory(place: &Place) {
    let first = place.writer();
    let second = Writer::open_with(place.path(), &place.backends);
    assert!(matches!(second, Err(StoreError::Locked { .. })));
    drop(first);
    place.writer();
}

pub fn samples_come_back_as_they_were(place: &Place) {
    let mut writer = place.writer();
    let record = running(1, place.start_s);
    writer.put(&record).unwrap();
    let whole = series(place.start_s * 1000 + 7, 1000, 1000);
    let part = |begin: usize, end: usize| whole.part(begin, end);
    for begin in (0..1000).step_by(77) {
        // Each piece overlaps the one before: what is there already is skipped.
        writer.append_series(&record.key, &part(begin.max(5) - 5, 1000.min(begin + 77))).unwrap();
    }
    place.eventually("all samples are there", || same(&writer.series(&record.key).unwrap(), &whole));
    let reader = place.reader();
    assert!(same(&reader.series(&record.key).unwrap(), &whole));
    let between =
        reader.series_of_job_between(&record.key, whole.times_ms[900], whole.times_ms[950]).unwrap();
    assert!(same(&between, &part(900, 951)), "both ends are in it");
    let mut later = record.key.clone();
    later.incarnation += 1;
    assert!(reader.series(&later).unwrap().is_empty(), "a requeued job is another one");
    assert_eq!(writer.samples_refused(), 0);
}

pub fn many_series_are_appended_at_once(place: &Place) {
    let mut writer = place.writer();
    let jobs: Vec<Record> = (1..=40).map(|id| running(id, place.start_s)).collect();
    writer.put_all(&jobs).unwrap();
    let all_series: Vec<Series> = (0..40).map(|id| series(place.start_s * 1000 + id, 1000, 60)).collect();
    let both: Vec<(&JobKey, &Series)> = jobs.iter().map(|job| &job.key).zip(&all_series).collect();
    writer.append_all(&both).unwrap();
    // The same once more, as after an answer that was lost.
    writer.append_all(&both).unwrap();
    for (key, series) in both {
        place.eventually("all samples are there", || same(&writer.series(key).unwrap(), series));
    }
    assert_eq!(writer.samples_refused(), 0);
}

pub fn large_counters_come_back(place: &Place) {
    let mut writer = place.writer();
    let record = running(1, place.start_s);
    writer.put(&record).unwrap();
    let mut whole = Series::new(&JOB);
    let mut cells = vec![MISSING; JOB.columns.len()];
    for row in 0..53 {
        // Nanoseconds with every digit in use, and bytes.
        cells[CPU] = (1 << row) + (1 << row) / 3 + row;
        cells[READ] = (1 << row) - 1;
        cells[MEMORY_NEEDED] = if row == 7 { 0 } else { MISSING };
        whole.push((place.start_s + row) * 1000, &cells);
    }
    let limit = 1 << 52;
    writer.append_series(&record.key, &whole).unwrap();
    place.eventually("all samples are there", || writer.series(&record.key).unwrap().len() == whole.len());
    let back = writer.series(&record.key).unwrap();
    assert_eq!(back.columns[READ], whole.columns[READ], "whole numbers are exact in every engine");
    assert_eq!(back.columns[MEMORY_NEEDED], whole.columns[MEMORY_NEEDED], "0 is not missing");
    for (&found, &cell) in back.columns[CPU].iter().zip(&whole.columns[CPU]) {
        // What lies in files is what was given; a float has 53 bits; one engine keeps 12 digits.
        let tolerance = match (&place.backends.series, place.exact) {
            (None, _) => 0.0,
            (Some(_), true) if cell <= limit => 0.0,
            (Some(_), true) => cell as f64 * f64::EPSILON,
            (Some(_), false) => (cell as f64 * 1e-12).ceil(),
        };
        assert!((found - cell).abs() as f64 <= tolerance, "{cell} came back as {found}");
    }
}

fn device(idle_mw: Option<i64>) -> Device {
    Device {
        uuid: "GPU-a".into(),
        name: "NVIDIA H200".into(),
        vendor: "nvidia".into(),
        idle_mw,
        lowest_mw: Some(70),
    }
}

fn with_gpu(mut record: Record) -> Record {
    let held_since_ns = record.start_ns.map(|start_ns| start_ns + SECOND_NS);
    let held_by = "CUDA_VISIBLE_DEVICES".to_owned();
    record.gpus =
        vec![GpuUse { uuid: "GPU-a".into(), held_since_ns, held_by: held_by.into(), ..GpuUse::default() }];
    record
}

pub fn what_was_learned_of_a_device_stays_until_more_is_known(place: &Place) {
    let mut writer = place.writer();
    assert_eq!(writer.devices().unwrap(), []);
    writer.put_devices(&[device(Some(80))]).unwrap();
    writer.put_devices(&[Device { lowest_mw: Some(60), ..device(None) }]).unwrap();
    assert_eq!(writer.devices().unwrap(), [Device { lowest_mw: Some(60), ..device(Some(80)) }]);
}

pub fn a_job_has_its_devices_while_it_runs_and_afterwards(place: &Place) {
    let mut writer = place.writer();
    let key = running(1, place.start_s).key;
    writer.put(&with_gpu(running(1, place.start_s))).unwrap();
    let during = writer.allocations(&key).unwrap();
    assert_eq!((during[0].begin_ns, during[0].end_ns), ((place.start_s + 1) * SECOND_NS, None));
    writer.put(&with_gpu(finished(1, place.start_s))).unwrap();
    let after = writer.allocations(&key).unwrap();
    assert_eq!((after.len(), after[0].end_ns), (1, Some((place.start_s + 60) * SECOND_NS)));
    writer.put(&finished(2, place.start_s)).unwrap();
    let filter = Filter { with_gpus: true, ..Filter::default() };
    assert_eq!(writer.jobs(&filter).unwrap().len(), 1, "the others have no card");
    writer.remove(&key).unwrap();
    assert_eq!(writer.allocations(&key).unwrap(), []);
    assert_eq!(writer.devices().unwrap().len(), 1, "a card outlives its jobs");
}

pub fn the_series_of_a_device_is_stored_once_and_cut_for_each_job(place: &Place) {
    let mut writer = place.writer();
    let uuid = format!("GPU-{}", place.start_s);
    let mut series = Series::new(&device::TABLE);
    let mut cells = vec![MISSING; device::TABLE.columns.len()];
    // Over midnight: two files.
    for second in -10..10 {
        cells[device::POWER] = 300_000 + second;
        series.push((place.start_s + second) * 1000, &cells);
    }
    writer.append_device(&uuid, &series).unwrap();
    let from = |begin_s: i64, end_s: i64| {
        let series =
            writer.device_series(&uuid, (place.start_s + begin_s) * 1000, (place.start_s + end_s) * 1000);
        series.unwrap().columns[device::POWER].clone()
    };
    place.eventually("all samples are there", || from(-100, 100).len() == 20);
    assert_eq!(from(-2, 1), [299_998, 299_999, 300_000, 300_001]);
    assert_eq!(writer.device_series("GPU-b", 0, i64::MAX).unwrap().len(), 0);
}

fn factor(since_ns: i64, mg_per_kwh: i64) -> Factor {
    Factor { since_ns, mg_per_kwh, source: "test".into() }
}

pub fn factors_are_kept_replaced_and_forgotten(place: &Place) {
    let mut writer = place.writer();
    for since_ns in [10, 20, 30] {
        writer.put_factor(&factor(since_ns, since_ns)).unwrap();
    }
    writer.put_factor(&factor(20, 25)).unwrap();
    let reported = || -> Vec<(i64, i64)> {
        let factors = place.reader().factors().unwrap();
        factors.into_iter().map(|factor| (factor.since_ns, factor.mg_per_kwh)).collect()
    };
    assert_eq!(reported(), [(10, 10), (20, 25), (30, 30)]);
    writer.put_factors(15, 30, &[factor(15, 99)]).unwrap();
    assert_eq!(reported(), [(10, 10), (15, 99), (30, 30)]);
    writer.retain(&Retention { max_age_ns: Some(10), max_bytes: None }, 35).unwrap();
    assert_eq!(reported(), [(15, 99), (30, 30)], "what held 10 ns ago began before");
}

pub fn a_job_that_was_only_believed_lost_lives_again(place: &Place) {
    let mut writer = place.writer();
    let lives = running(1, place.start_s);
    let lost = Record { state: State::Lost, end_ns: Some(place.start_s * SECOND_NS + 1), ..lives.clone() };
    writer.put(&lost).unwrap();
    writer.put(&lives).unwrap();
    assert_eq!(writer.get(&lives.key).unwrap().unwrap().state, State::Lost, "that it lived is old news");
    let ended = reported(&running(2, place.start_s), State::Finished, 7);
    writer.put(&ended).unwrap();
    let keys = [lives.key.clone(), ended.key];
    writer.put_revived(std::slice::from_ref(&lives), &[], &keys).unwrap();
    let again = writer.get(&lives.key).unwrap().unwrap();
    assert_eq!((again.state, again.end_ns), (State::Running, None));
    assert_eq!(
        writer.get(&keys[1]).unwrap().unwrap().state,
        State::Finished,
        "what its scheduler says has ended"
    );
}

static POWER: &[Column] = &[Column::gauge("power", Unit::Watts, MILLI, "")];
static METER: Table = Table { name: "meter", subject: "", labels: &["name"], columns: POWER };
static LOAD: &[Column] = &[Column::gauge("load", Unit::Count, ONE, "")];
static MACHINE: Table = Table { name: "node", subject: "", labels: &[], columns: LOAD };

pub fn a_server_has_the_parts_of_each_node(place: &Place) {
    let mut writer = place.writer();
    // Engines are shared by places.
    let (one, other) = (format!("n{}", place.start_s), format!("m{}", place.start_s));
    let series = |table: &'static Table, from: i64| {
        let mut series = Series::new(table);
        (from..from + 3).for_each(|at| series.push((place.start_s + at) * 1000, &[at * 1000]));
        series
    };
    let of_meter = (node_on(&one, "psu 1"), series(&METER, 0));
    let of_node = (node_on(&one, ""), series(&MACHINE, 10));
    let elsewhere = (node_on(&other, ""), series(&MACHINE, 20));
    let gpu = (device_on(&one, "GPU-a"), series(&METER, 30));
    let all = [&of_meter, &of_node, &elsewhere, &gpu].map(|(key, series)| (key, series));
    writer.append_all(&all).unwrap();
    let span = ((place.start_s - 60) * 1000, (place.start_s + 60) * 1000);
    let parts = |node: &str| -> Vec<(String, String)> {
        let parts = place.reader().node_parts_on(node, &[&METER, &MACHINE], span.0, span.1).unwrap();
        parts.into_iter().map(|part| (part.table, part.part)).collect()
    };
    let expected = [("meter".to_owned(), "psu 1".to_owned()), ("node".to_owned(), String::new())];
    place.eventually("its parts are listed", || parts(&one) == expected);
    place.eventually("those of the other, too", || parts(&other) == expected[1..]);
    let reader = place.reader();
    let read =
        |table, part: &str| reader.series_between(&node_on(&one, part), table, span.0, span.1).unwrap();
    place.eventually("samples come back", || same(&read(&METER, "psu 1"), &of_meter.1));
    place.eventually("of the machine as a whole", || same(&read(&MACHINE, ""), &of_node.1));
    // Found across years without any, and not beyond the last.
    let began = |node: &str, from_s: i64| {
        reader.node_begin_on(node, &[&METER, &MACHINE], from_s * 1000, i64::MAX).unwrap()
    };
    let (day_s, ten_years_s) = (86_400, 3650 * 86_400);
    let midnight_s = place.start_s.div_euclid(day_s) * day_s;
    assert_eq!(began(&one, place.start_s - ten_years_s), Some(midnight_s * 1000));
    assert_eq!(began(&one, place.start_s), Some(place.start_s * 1000));
    assert_eq!(began(&one, midnight_s + 2 * day_s), None);
    assert_eq!(began("nobody", 0), None);
}
