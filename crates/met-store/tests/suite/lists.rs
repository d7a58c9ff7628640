//! Lists in any order, by any condition; what people say of jobs; what jobs are together.

use std::collections::HashMap;
use std::time::Duration;

use met_core::MISSING;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::belief::{Live, add_sample};
use met_core::conditions::{Conditions, OnNodes};
use met_core::grouping::{self, SumBy, SumSpan};
use met_core::job::{GpuUse, JobKey, Part, QualityKind, Record, State, Summary};
use met_core::job_table::{CPU, EMISSIONS, ENERGY, GPU_UTILIZATION, MEMORY_NEEDED_PEAK, WALL};
use met_core::listing::{Cursor, FIGURES, Sort, SortColumn};
use met_core::member::Member;
use met_store::inbox::JobDir;
use met_store::{
    Filter, JobTimes, LiveFigures, LiveJobs, PageBounds, Queries, RunningJobs, StoreError, Writer,
};

use super::{MIDNIGHT_S, Place, SECOND_NS, finished, running, series};

/// Numbers that look random and are the same in every run.
pub struct Dice(pub u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    fn maybe<T>(&mut self, value: T) -> Option<T> {
        (self.below(4) > 0).then_some(value)
    }
}

/// A job whose values many others have, too, and of which much is unknown.
fn job(dice: &mut Dice, id: u64, start_s: i64) -> Record {
    let mut record = finished(id, start_s + dice.below(5) as i64);
    record.state = *dice.one(&State::ALL);
    record.totals = Default::default();
    let run_ns = dice.below(4) as i64 * SECOND_NS;
    let ended_ns = record.start_ns.map(|start_ns| start_ns + run_ns);
    record.end_ns = ended_ns.filter(|_| !record.state.is_live() && record.state != State::Lost);
    if record.state == State::Pending {
        record.start_ns = None;
    }
    for (column, unit) in
        [(CPU, SECOND_NS), (ENERGY, 1_000_000), (EMISSIONS, 7), (MEMORY_NEEDED_PEAK, 1 << 20)]
    {
        if let Some(value) = {
            let value = dice.below(5) as i64;
            dice.maybe(value)
        } {
            record.totals.set(column, value * unit, QualityKind::Measured, "cgroup");
        }
    }
    if dice.below(5) == 0 {
        record.totals.set(WALL, run_ns + 1, QualityKind::Measured, "clock");
    }
    let word = |dice: &mut Dice, words: &[&str]| {
        let word = dice.one(words).to_string();
        dice.maybe(word)
    };
    record.key.manager = dice.one(&["local", "slurm"]).to_string();
    record.key.cluster = word(dice, &["c1", "c2"]);
    record.name = dice.one(&["train", "Train", "ä", "a b"]).to_string();
    record.user = word(dice, &["ada", "bob", "Eve"]);
    record.account = word(dice, &["maths", "physics"]);
    record.scheduling.partition = word(dice, &["gpu", "long"]);
    record.allocated.cpus = {
        let cpus = 1 + dice.below(3) as i64;
        dice.maybe(cpus)
    };
    record.command = vec!["python3".into(), dice.one(&["a.py", "b.py --x=100%_", "c'.py"]).to_string()];
    match dice.below(5) {
        0 => record.command.clear(),
        1 => record.command.push("ä".repeat(dice.below(90) as usize)),
        _ => {}
    }
    record.nodes = (0..dice.below(4)).map(|number| format!("n{}", number + dice.below(3))).collect();
    record.parts = record
        .nodes
        .iter()
        .map(|node| Part { node: node.clone(), totals: record.totals.clone(), ..Part::default() })
        .collect();
    record.scheduling.submit_ns = {
        let submit_ns = (start_s - dice.below(4) as i64) * SECOND_NS;
        dice.maybe(submit_ns)
    };
    (record.exit_code, record.signal) = match dice.below(4) {
        0 => (Some(0), None),
        1 => (Some(7), None),
        2 => (None, Some(9)),
        _ => (None, None),
    };
    record.inside = (dice.below(6) == 0).then(|| "slurm:1".to_owned());
    if dice.below(3) == 0 {
        record.gpus = vec![GpuUse { uuid: format!("GPU-{id}"), ..GpuUse::default() }];
    }
    let add = (0..dice.below(3)).map(|_| dice.one(&["x", "x-1", "good"]).to_string()).collect();
    let change = AnnotationChange { add, ..AnnotationChange::default() };
    record.annotation = change.apply(&Annotation::default(), 1).unwrap();
    record
}

fn conditions(dice: &mut Dice, start_s: i64) -> Filter {
    let text = |text: &str| Some(text.to_owned());
    let mut filter = Filter {
        page: PageBounds { now_ns: (start_s + 3) * SECOND_NS, ..PageBounds::default() },
        ..Filter::default()
    };
    let wanted = &mut filter.conditions;
    match dice.below(16) {
        0 => wanted.command = text(dice.one::<&str>(&["b.py --x=100%_", "a", "%", "_", "'", "PYTHON", ""])),
        1 => wanted.partition = text("gpu"),
        2 => wanted.node = text("n1"),
        3 => wanted.tag = text("x"),
        4 => wanted.min_duration_ns = Some(dice.below(4) as i64 * SECOND_NS),
        5 => wanted.min_energy_uj = Some(dice.below(5) as i64 * 1_000_000),
        6 => wanted.max_efficiency = Some(dice.below(5) as f64 / 4.0),
        7 => filter.with_gpus = true,
        8 => filter.states = vec![State::Running, State::Failed, State::Lost],
        9 => filter.owner.user = text("ada"),
        10 => filter.times.since_ns = Some((start_s + 2) * SECOND_NS),
        11 => filter.owner.member = Some(Member { user: "bob".into(), accounts: vec!["maths".into()] }),
        12 => {
            (wanted.node, wanted.command) = (text("n2"), text("python3 "));
            filter.owner.account = text("physics");
        }
        13 => {
            let nodes = vec![dice.one(&["n1", "n4", "", "n1\nn2"]).to_string(), "n3".to_owned()];
            let since_ns = (start_s + dice.below(4) as i64) * SECOND_NS;
            filter.on_nodes = Some(OnNodes { nodes, since_ns });
        }
        14 => {
            wanted.node = text("n1");
            filter.times.ran_after_ns = Some((start_s + dice.below(4) as i64) * SECOND_NS);
        }
        _ => {}
    }
    filter
}

fn keys(jobs: &[Record]) -> Vec<JobKey> {
    jobs.iter().map(|job| job.key.clone()).collect()
}

/// All pages of a list, each of so many jobs.
fn paged(store: &Queries, filter: &Filter, size: usize) -> Vec<JobKey> {
    let mut page = Filter { page: PageBounds { limit: Some(size), ..filter.page.clone() }, ..filter.clone() };
    let mut found = Vec::new();
    loop {
        let next = store.page(&page).unwrap();
        assert!(next.jobs.len() <= size);
        found.extend(keys(&next.jobs));
        // Time passes while a user turns pages.
        page.page.now_ns += SECOND_NS;
        match next.next {
            Some(next) => page.page.after = Some(next),
            None => return found,
        }
    }
}

/// Every list is what filtering and sorting all jobs gives, however large its pages are.
pub fn check_lists(place: &Place, seed: u64, count: u64, lists: usize) {
    let mut dice = Dice(seed);
    let jobs: Vec<Record> = (1..=count).map(|id| job(&mut dice, id, place.start_s)).collect();
    let mut writer = place.writer();
    writer.put_all(&jobs).unwrap();
    // What is stored, with what the store makes of it.
    let jobs: Vec<Record> = jobs.iter().map(|job| writer.get(&job.key).unwrap().unwrap()).collect();
    let sorts: Vec<Option<Sort>> = SortColumn::ALL
        .into_iter()
        .flat_map(|column| [true, false].map(|descending| Some(Sort { column, descending })))
        .chain([None])
        .collect();
    for number in 0..lists {
        let sort = sorts[number % sorts.len()];
        let filter = Filter {
            page: PageBounds { sort, ..conditions(&mut dice, place.start_s).page },
            ..conditions(&mut dice, place.start_s)
        };
        let mut expected: Vec<Record> = jobs.iter().filter(|job| filter.accepts(job)).cloned().collect();
        filter.order().sort(&mut expected);
        let size = *dice.one(&[2, 7, 500]);
        let (mut found, mut expected) = (paged(&writer, &filter, size), keys(&expected));
        if sort.is_some_and(|sort| sort.column.changes()) {
            // Behind its first page, such a list has another order.
            assert_eq!(found[..size.min(found.len())], expected[..size.min(expected.len())], "{filter:?}");
            [&mut found, &mut expected].into_iter().for_each(|keys| keys.sort());
        }
        assert_eq!(found, expected, "seed {seed}: {filter:?} by {size}");
    }
}

/// Figures grow and jobs end between the pages of a list.
pub fn a_list_by_a_growing_figure_ends_and_shows_each_job_once(place: &Place) {
    let mut dice = Dice(5);
    let mut writer = place.writer();
    let sorts = SortColumn::ALL.into_iter().filter(|column| column.changes());
    let sorts: Vec<Sort> =
        sorts.flat_map(|column| [true, false].map(|descending| Sort { column, descending })).collect();
    for (round, sort) in sorts.into_iter().enumerate() {
        let first = 1000 * (round as u64 + 1);
        // Long ago, so that most of those that ended are settled.
        let started_s = place.start_s + 10_000 * round as i64;
        let mut jobs: Vec<Record> = (first..first + 24)
            .map(|id| match id % 3 {
                0 => finished(id, started_s - 7_000 + dice.below(5) as i64),
                _ => running(id, started_s + dice.below(5) as i64),
            })
            .collect();
        for job in &mut jobs {
            job.totals.set(CPU, dice.below(5) as i64 * SECOND_NS, QualityKind::Measured, "cgroup");
        }
        writer.put_all(&jobs).unwrap();
        let since_ns = Some((started_s - 8_000) * SECOND_NS);
        let until_ns = Some((started_s + 2_000) * SECOND_NS);
        let now_ns = (started_s + 1_000) * SECOND_NS;
        let mut filter = Filter {
            page: PageBounds { sort: Some(sort), now_ns, limit: Some(3), ..PageBounds::default() },
            times: JobTimes { since_ns, until_ns, ..JobTimes::default() },
            ..Filter::default()
        };
        let mut found = Vec::new();
        for pages in 0.. {
            assert!(pages < 12, "{sort:?} does not end");
            let grown = jobs.clone();
            let page = writer.page_with(&filter, |running| {
                let current = |key: &JobKey| grown.iter().find(|job| job.key == *key).cloned();
                running.iter_mut().for_each(|record| *record = current(&record.key).unwrap());
            });
            let page = page.unwrap();
            found.extend(keys(&page.jobs));
            let Some(next) = page.next else { break };
            (filter.page.after, filter.page.now_ns) = (Some(next), filter.page.now_ns + SECOND_NS);
            for job in jobs.iter_mut().filter(|job| job.state == State::Running) {
                let cpu = job.totals.get(CPU).unwrap() + dice.below(9) as i64 * SECOND_NS;
                job.totals.set(CPU, cpu, QualityKind::Measured, "cgroup");
                if dice.below(6) == 0 {
                    (job.state, job.end_ns) = (State::Failed, Some(filter.page.now_ns));
                    writer.put(job).unwrap();
                }
            }
        }
        found.sort();
        let mut expected = keys(&jobs);
        expected.sort();
        assert_eq!(found, expected, "{sort:?}");
        let ended: Vec<Record> = jobs
            .into_iter()
            .map(|job| Record { state: State::Failed, end_ns: Some(filter.page.now_ns), ..job })
            .collect();
        writer.put_all(&ended).unwrap();
    }
}

/// Figures that samples have of some jobs.
#[derive(Default)]
struct Samples(HashMap<JobKey, Live>);

impl Samples {
    fn learn(&mut self, dice: &mut Dice, key: &JobKey) {
        let mut sample = Live::default();
        for column in FIGURES {
            if dice.below(3) > 0 {
                sample.totals.set(
                    column,
                    dice.below(9) as i64 * SECOND_NS,
                    QualityKind::Sampled,
                    "last sample",
                );
            }
        }
        if dice.below(2) == 0 {
            let mean = dice.below(4) as f64 * 250.0;
            let summary = Summary { mean, min: mean, max: mean, p50: None, p95: None };
            sample.summaries.set(GPU_UTILIZATION, summary);
        }
        self.0.insert(key.clone(), sample);
    }
}

impl LiveJobs for Samples {
    /// Some are known under another key.
    fn parts(&self, job: &JobKey) -> Result<Vec<JobKey>, StoreError> {
        let known = JobKey { cluster: Some("n1".to_owned()), ..job.clone() };
        Ok(vec![if job.cluster.is_some() { job.clone() } else { known }])
    }

    fn figures(&self, parts: &[JobKey]) -> LiveFigures {
        let sample = self.0.get(&parts[0]);
        let total = |column: usize| sample?.totals.get(column);
        LiveFigures {
            totals: FIGURES.map(|column| total(column).unwrap_or(MISSING)),
            gpu_utilization: sample.and_then(|sample| Some(sample.summaries.get(GPU_UTILIZATION)?.mean)),
            as_of_ns: sample.map(|_| MIDNIGHT_S * SECOND_NS),
        }
    }

    fn complete(&self, parts: &[JobKey], record: &mut Record) {
        record.as_of_ns = self.figures(parts).as_of_ns;
        let known = self.0.get(&parts[0]);
        let (totals, summaries) =
            known.map(|sample| (sample.totals.clone(), sample.summaries.clone())).unwrap_or_default();
        add_sample(record, Live { totals, summaries, ..Live::default() });
    }
}

impl Samples {
    fn refresh(&self, records: &mut [Record]) {
        for record in records.iter_mut().filter(|record| record.state.is_live()) {
            self.complete(&self.parts(&record.key).unwrap(), record);
        }
    }
}

/// Jobs end, begin, get another owner or go away.
fn change(dice: &mut Dice, writer: &mut Writer, jobs: &mut Vec<Record>, now_ns: i64) {
    if jobs.is_empty() {
        return;
    }
    let at = dice.below(jobs.len() as u64) as usize;
    let state = *dice.one(&[State::Running, State::Running, State::Failed, State::Finished]);
    match dice.below(6) {
        0 => writer.remove(&jobs.swap_remove(at).key).unwrap(),
        1 => {
            let mut begun = jobs[at].clone();
            begun.key.incarnation += 1_000 + dice.below(1 << 30) as i64;
            (begun.state, begun.end_ns) = (State::Running, None);
            writer.put_instead(std::slice::from_ref(&begun), &[jobs.swap_remove(at).key]).unwrap();
            jobs.push(begun);
        }
        2 => {
            jobs[at].user = Some(dice.one(&["ada", "bob"]).to_string());
            writer.put(&jobs[at]).unwrap();
        }
        _ => {
            let end_ns = (!state.is_live()).then(|| now_ns - dice.below(100) as i64 * SECOND_NS);
            (jobs[at].state, jobs[at].end_ns) = (state, end_ns);
            writer.put(&jobs[at]).unwrap();
        }
    }
}

/// Every page from the rows is the page from the records, with the same cursor, whatever happens in between.
/// Returns how many pages there were from rows: some lists need the records, and how many do is up to chance.
fn check_rows(place: &Place, seed: u64, count: u64, lists: usize) -> usize {
    let mut dice = Dice(seed);
    let mut jobs: Vec<Record> = (1..=count).map(|id| job(&mut dice, id, place.start_s)).collect();
    let mut writer = place.writer();
    writer.put_all(&jobs).unwrap();
    let (mut samples, rows) = (Samples::default(), RunningJobs::with_age(Duration::ZERO));
    let mut compared = 0;
    for number in 0..lists {
        for _ in 0..dice.below(3) {
            change(&mut dice, &mut writer, &mut jobs, (place.start_s + 3) * SECOND_NS);
        }
        let sort =
            Sort { column: SortColumn::ALL[number % SortColumn::ALL.len()], descending: dice.below(2) > 0 };
        let sort = Some(sort).filter(|_| dice.below(9) > 0);
        let limit = Some(*dice.one(&[1, 2, 7, 500]));
        let mut filter = Filter {
            with_summaries: true,
            page: PageBounds { sort, limit, ..conditions(&mut dice, place.start_s).page },
            ..conditions(&mut dice, place.start_s)
        };
        loop {
            for job in &jobs {
                if dice.below(3) == 0 {
                    samples.learn(&mut dice, &samples.parts(&job.key).unwrap()[0]);
                }
            }
            let Some(page) = rows.page(&writer, &filter, &samples).unwrap() else {
                let conditions = &filter.conditions;
                let needs_record = conditions.need_record()
                    || filter.on_nodes.is_some()
                    || filter.page.sort.is_some_and(|sort| sort.column.needs_record());
                let changes =
                    filter.needs_figures() || filter.page.sort.is_some_and(|sort| sort.column.changes());
                assert!(needs_record || !changes, "{filter:?}");
                break;
            };
            compared += 1;
            let expected = writer.page_with(&filter, |running| samples.refresh(running)).unwrap();
            assert_eq!(keys(&page.jobs), keys(&expected.jobs), "seed {seed}: {filter:?}");
            assert!(page.jobs == expected.jobs, "figures, seed {seed}: {filter:?}");
            let text = |next: &Option<Cursor>| serde_json::to_string(next).unwrap();
            assert_eq!(text(&page.next), text(&expected.next), "seed {seed}: {filter:?}");
            let Some(next) = page.next else { break };
            (filter.page.after, filter.page.now_ns) = (Some(next), filter.page.now_ns + SECOND_NS);
        }
    }
    compared
}

pub fn lists_from_rows_in_memory_are_those_of_the_records(place: &Place) {
    const LISTS: usize = 130;
    let compared = check_rows(place, 3, 60, LISTS);
    assert!(compared * 3 > LISTS, "{compared} of {LISTS}");
}

/// Their rows are read in pieces of 500: some were read when there were too many.
pub fn rows_of_too_many_running_jobs_answer_nothing_until_all_of_them_fit(place: &Place) {
    let mut writer = place.writer();
    let mut jobs: Vec<Record> = (1..=520).map(|id| running(id, place.start_s)).collect();
    writer.put_all(&jobs).unwrap();
    let samples = Samples::default();
    let rows = RunningJobs::with_age(Duration::ZERO).with_rows_max(499);
    let filter = Filter {
        page: PageBounds {
            sort: Some("cpu:desc".parse().unwrap()),
            limit: Some(1_000),
            ..PageBounds::default()
        },
        ..Filter::default()
    };
    let page = |writer: &Writer| {
        let page = rows.page(writer, &filter, &samples).unwrap();
        let expected = writer.page_with(&filter, |running| samples.refresh(running)).unwrap();
        let page = page.map(|page| keys(&page.jobs));
        page.inspect(|page| assert!(*page == keys(&expected.jobs), "{} jobs", page.len())).is_some()
    };
    let mut end = |writer: &mut Writer, last: usize| {
        let mut ended = jobs.split_off(jobs.len() - last);
        for job in &mut ended {
            (job.state, job.end_ns) = (State::Finished, Some((place.start_s + 5) * SECOND_NS));
        }
        writer.put_all(&ended).unwrap();
    };
    assert!(!page(&writer));
    end(&mut writer, 20);
    assert!(!page(&writer));
    end(&mut writer, 1);
    assert!(page(&writer), "499 jobs run");
    writer.put(&running(600, place.start_s)).unwrap();
    assert!(!page(&writer));
    end(&mut writer, 9);
    assert!(page(&writer));
}

/// With figures of a second ago, and pages that end by their bytes.
pub fn a_list_from_rows_in_memory_shows_each_job_once_while_jobs_change(place: &Place) {
    let mut dice = Dice(9);
    let mut writer = place.writer();
    let (mut samples, rows) = (Samples::default(), RunningJobs::default());
    let mut jobs: Vec<Record> =
        (1..=40).map(|id| running(id, place.start_s + dice.below(5) as i64)).collect();
    for job in jobs.iter_mut().step_by(3) {
        (job.state, job.end_ns) = (State::Failed, Some((place.start_s + 5) * SECOND_NS));
        job.totals.set(CPU, dice.below(9) as i64 * SECOND_NS, QualityKind::Measured, "cgroup");
    }
    writer.put_all(&jobs).unwrap();
    for column in SortColumn::ALL.into_iter().filter(|column| column.changes()) {
        let mut filter = Filter {
            page: PageBounds {
                sort: Some(Sort { column, descending: dice.below(2) > 0 }),
                limit: Some(4),
                max_bytes: Some(*dice.one(&[1, 3000, usize::MAX])),
                now_ns: (place.start_s + 1_000) * SECOND_NS,
                ..PageBounds::default()
            },
            ..Filter::default()
        };
        let mut found = Vec::new();
        loop {
            let page = rows.page(&writer, &filter, &samples).unwrap().unwrap();
            assert!(!page.jobs.is_empty() && page.jobs.len() <= 4);
            found.extend(keys(&page.jobs));
            jobs.iter().for_each(|job| samples.learn(&mut dice, &samples.parts(&job.key).unwrap()[0]));
            let Some(next) = page.next else { break };
            (filter.page.after, filter.page.now_ns) = (Some(next), filter.page.now_ns + SECOND_NS);
        }
        found.sort();
        let mut expected = keys(&jobs);
        expected.sort();
        assert_eq!(found, expected, "{filter:?}");
    }
}

pub fn lists_of_any_order_and_condition_lose_and_repeat_no_job(place: &Place) {
    check_lists(place, 7, 40, 90);
}

pub fn a_sorted_list_shows_inbox_and_store_as_one(place: &Place) {
    let mut writer = place.writer();
    for id in [1, 2, 4] {
        let mut record = finished(id, place.start_s);
        record.name = format!("job-{id}");
        writer.put(&record).unwrap();
    }
    for id in [3, 5] {
        let mut begun = running(id, place.start_s);
        begun.name = format!("job-{id}");
        let (_, dir) = JobDir::reserve(place.path(), id).unwrap();
        dir.write_start(&begun).unwrap();
    }
    let sort = Some("name".parse().unwrap());
    let listed = paged(
        &writer,
        &Filter { page: PageBounds { sort, ..PageBounds::default() }, ..Filter::default() },
        2,
    );
    assert_eq!(listed.iter().map(|key| key.id.as_str()).collect::<Vec<_>>(), ["1", "2", "3", "4", "5"]);
}

pub fn tags_and_a_note_outlive_every_later_statement(place: &Place) {
    let mut writer = place.writer();
    let begun = running(1, place.start_s);
    writer.put(&begun).unwrap();
    let change =
        AnnotationChange { add: vec!["good".into()], note: Some("first try\n".into()), ..Default::default() };
    let said = writer.annotate(&begun.key, &change, 5).unwrap().unwrap().unwrap();
    assert_eq!(writer.get(&begun.key).unwrap().unwrap().annotation, said);
    let end = finished(1, place.start_s);
    writer.put(&end).unwrap();
    let mut by_scheduler = Record { account: Some("maths".into()), local: None, ..end.clone() };
    by_scheduler.scheduling.asked_ns = Some(9);
    writer.put(&by_scheduler).unwrap();
    writer.put_instead(std::slice::from_ref(&end), std::slice::from_ref(&end.key)).unwrap();
    let mut other = end.clone();
    other.key.incarnation += 1;
    writer.put_instead(std::slice::from_ref(&other), std::slice::from_ref(&end.key)).unwrap();
    drop(writer);
    let stored = place.reader().get(&other.key).unwrap().unwrap();
    assert_eq!(stored.annotation, said);
    let tagged = |tag: &str| {
        let conditions = Conditions { tag: Some(tag.to_owned()), ..Conditions::default() };
        place.reader().jobs(&Filter { conditions, ..Filter::default() }).unwrap().len()
    };
    assert_eq!((tagged("good"), tagged("goo")), (1, 0));
    let change = AnnotationChange { add: vec!["best".into()], ..Default::default() };
    place.writer().annotate(&other.key, &change, 6).unwrap().unwrap().unwrap();
    assert_eq!((tagged("best"), tagged("best good")), (1, 0), "two tags are no tag");
    let mut writer = place.writer();
    let bad = AnnotationChange { add: vec!["Not a tag".into()], ..Default::default() };
    assert!(writer.annotate(&other.key, &bad, 6).unwrap().unwrap().unwrap_err().contains("is not a tag"));
    assert!(writer.annotate(&begun.key, &change, 6).unwrap().is_none(), "it was replaced");
}

pub fn a_tag_on_a_job_that_waits_in_the_inbox_leaves_its_samples(place: &Place) {
    // A command that only times its job writes no start.
    for (id, has_start) in [(1, true), (2, false)] {
        let (_, dir) = JobDir::reserve(place.path(), id).unwrap();
        let end = finished(id, place.start_s);
        if has_start {
            dir.write_start(&running(id, place.start_s)).unwrap();
        }
        dir.write_series(&series(place.start_s * 1000, 1000, 9)).unwrap();
        dir.write_end(&end).unwrap();
        let mut writer = place.writer();
        let change = AnnotationChange { add: vec!["good".into()], ..Default::default() };
        let said = writer.annotate(&end.key, &change, 5).unwrap().unwrap().unwrap();
        let shown = place.reader().get(&end.key).unwrap().unwrap();
        assert_eq!(shown, Record { annotation: said.clone(), ..end.clone() }, "until it is imported");
        let imported = writer.import().unwrap();
        assert_eq!(imported.ended.iter().map(|end| &end.key).collect::<Vec<_>>(), [&end.key]);
        assert_eq!(writer.get(&end.key).unwrap().unwrap(), Record { annotation: said, ..end.clone() });
        place.eventually("its samples are kept", || writer.series(&end.key).unwrap().len() == 9);
    }
}

pub fn tags_go_over_to_a_job_of_the_same_cluster_only(place: &Place) {
    let of = |cluster: &str, incarnation: i64| {
        let mut record = running(12, place.start_s);
        record.key.cluster = Some(cluster.to_owned());
        record.key.incarnation += incarnation;
        record
    };
    let mut writer = place.writer();
    writer.put_all(&[of("a", 0), of("b", 0)]).unwrap();
    let change = AnnotationChange { add: vec!["good".into()], ..Default::default() };
    writer.annotate(&of("a", 0).key, &change, 5).unwrap().unwrap().unwrap();
    writer.put_instead(&[of("b", 1), of("a", 1)], &[of("a", 0).key, of("b", 0).key]).unwrap();
    let tags = |cluster: &str| writer.get(&of(cluster, 1).key).unwrap().unwrap().annotation.tags.len();
    assert_eq!((tags("a"), tags("b")), (1, 0));
}

pub fn users_accounts_and_sums_are_of_the_jobs_that_fit(place: &Place) {
    let mut dice = Dice(11);
    let jobs: Vec<Record> = (1..=80).map(|id| job(&mut dice, id, place.start_s)).collect();
    let mut writer = place.writer();
    writer.put_all(&jobs).unwrap();
    let jobs: Vec<Record> = jobs.iter().map(|job| writer.get(&job.key).unwrap().unwrap()).collect();
    for round in 0..30 {
        let filter = conditions(&mut dice, place.start_s);
        let fitting: Vec<&Record> = jobs.iter().filter(|job| filter.accepts(job)).collect();
        let memberships = writer.memberships(&filter).unwrap();
        assert_eq!(memberships, grouping::memberships(fitting.iter().copied()), "{filter:?}");
        let by = SumBy::ALL[round % SumBy::ALL.len()];
        let from_ns = (place.start_s + dice.below(4) as i64) * SECOND_NS;
        let span = SumSpan { by, from_ns, to_ns: from_ns + 3 * SECOND_NS };
        let expected = grouping::sums(fitting.iter().copied(), &span);
        assert_eq!(writer.sums(&filter, &span).unwrap(), expected, "{filter:?} {span:?}");
    }
}

mod of_any_jobs {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn every_page_continues_where_the_last_one_ended(seed: u64, count in 0_u64..25) {
            let place = super::Place::new(Default::default(), super::super::MIDNIGHT_S, true);
            super::check_lists(&place, seed, count, 9);
        }

        #[test]
        fn rows_in_memory_list_what_records_do(seed: u64, count in 8_u64..40) {
            let place = super::Place::new(Default::default(), super::super::MIDNIGHT_S, true);
            super::check_rows(&place, seed, count, 24);
        }
    }
}
