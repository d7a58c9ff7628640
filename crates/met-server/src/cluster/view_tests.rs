use std::time::Duration;

use met_core::job::{LOCAL, State};
use met_core::listing::{Sort, SortColumn};
use met_query::jobs::{JobRef, JobsFilter, PageAsk};
use met_query::query::Query;
use met_query::sample_more::SamplesMore;
use met_query::viewer::Viewer;

use super::*;
use crate::cluster::ClusterWriter;
use crate::cluster::cluster_writer::tests::{START_S, piece, record, send, start};

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Jobs of several owners, on one node or two, that run or have ended.
fn report(dice: &mut Dice, cluster_writer: &ClusterWriter, sequence: &mut u64) {
    for id in 1..=20 {
        let manager = if dice.below(2) == 0 { LOCAL } else { "slurm" };
        let begun_s = START_S + id % 5;
        let state = if dice.below(3) == 0 { State::Finished } else { State::Running };
        let first = dice.below(3) as usize;
        for node in 0..=usize::from(manager != LOCAL && dice.below(2) == 0) {
            let mut job = record(manager, &id.to_string(), begun_s, state, dice.below(9) as i64);
            job.user = Some(["ada", "bob", "eve"][id as usize % 3].to_owned());
            job.account = ["maths", "physics"].get(id as usize % 4).map(|&account| account.to_owned());
            job.allocated.cpus = Some(1 + id % 3);
            let samples = piece(&job.key, START_S + 10 * *sequence as i64, 1 + dice.below(9) as i64);
            *sequence += 1;
            send(cluster_writer, NODES[(first + node) % 3], *sequence, vec![job], vec![samples]).unwrap();
        }
    }
}

fn of_records(view: &ClusterView, filter: &Filter) -> Page {
    let mut page = view.ask(|reader| view.page_of_records(reader, filter)).unwrap();
    if !filter.needs_figures() {
        page.jobs = view.with_figures(page.jobs).unwrap();
    }
    page
}

#[test]
fn lists_from_rows_in_memory_are_those_of_the_records_for_every_viewer() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, mut view) = start(state.path(), &NODES);
    let running = RunningJobs::with_age(Duration::ZERO);
    view.lists = Arc::new(Lists { running, ..Lists::default() });
    let maths = Viewer::User { name: "bob".to_owned(), accounts: vec!["maths".to_owned()] };
    let viewers = [Viewer::Everything, Viewer::user("ada"), maths, Viewer::user("mallory")];
    let (mut dice, mut sequence, mut shown) = (Dice(1), 0, 0);
    for round in 0..3 {
        report(&mut dice, &cluster_writer, &mut sequence);
        for (number, column) in SortColumn::ALL.into_iter().enumerate() {
            let viewer = &viewers[(number + round) % viewers.len()];
            let sort = Some(Sort { column, descending: dice.below(2) == 0 });
            let limit = Some([2, 5, 500][dice.below(3) as usize]);
            let mut asked = JobsFilter {
                page: PageAsk { sort, limit, paged: true, ..PageAsk::default() },
                ..JobsFilter::default()
            };
            if dice.below(4) == 0 {
                asked.conditions.max_efficiency = Some(0.5);
            }
            let mut filter = viewer.restrict(&asked).unwrap().to_store_for_reply();
            loop {
                let (page, unreadable) = view.page(&filter).unwrap();
                let expected = of_records(&view, &filter);
                assert_eq!(page.jobs, expected.jobs, "{viewer:?} {filter:?}");
                let text = |next: &Option<_>| serde_json::to_string(next).unwrap();
                assert_eq!(text(&page.next), text(&expected.next), "{viewer:?} {filter:?}");
                assert!(page.jobs.iter().all(|job| viewer.sees(job)) && unreadable.is_empty());
                shown += page.jobs.len();
                match page.next {
                    Some(next) => filter.page.after = Some(next),
                    None => break,
                }
            }
        }
    }
    assert!(shown > 300, "{shown}");
    cluster_writer.stop();
}

#[test]
fn what_a_job_has_become_is_in_the_next_list() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &NODES);
    let by_cpu = |viewer: &Viewer| {
        let sort = Some("cpu:desc".parse().unwrap());
        let asked = JobsFilter {
            page: PageAsk { sort, limit: Some(50), paged: true, ..PageAsk::default() },
            ..JobsFilter::default()
        };
        let page = view.page(&viewer.restrict(&asked).unwrap().to_store_for_reply()).unwrap().0;
        page.jobs.into_iter().map(|job| (job.key.id, job.state)).collect::<Vec<_>>()
    };
    let (ada, eve) = (Viewer::user("ada"), Viewer::user("eve"));
    let job = |state: State| record(LOCAL, "1", START_S, state, 5);
    send(&cluster_writer, "n1", 1, vec![job(State::Running)], Vec::new()).unwrap();
    assert_eq!((by_cpu(&ada), by_cpu(&eve)), (vec![("1".to_owned(), State::Running)], Vec::new()));
    // Its owner was not known rightly.
    let of_eve = Record { user: Some("eve".to_owned()), ..job(State::Running) };
    send(&cluster_writer, "n1", 2, vec![of_eve], Vec::new()).unwrap();
    assert_eq!((by_cpu(&ada), by_cpu(&eve)), (Vec::new(), vec![("1".to_owned(), State::Running)]));
    let end = Record { user: Some("eve".to_owned()), ..job(State::Finished) };
    send(&cluster_writer, "n1", 3, vec![end], Vec::new()).unwrap();
    assert_eq!(by_cpu(&eve), [("1".to_owned(), State::Finished)]);
    cluster_writer.stop();
}

#[test]
fn nodes_learn_of_the_jobs_that_viewers_watch_who_see_them() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &NODES);
    let running = |manager: &str, id: &str| record(manager, id, START_S, State::Running, 0);
    for (sequence, node) in [(1, "n1"), (2, "n2")] {
        send(&cluster_writer, node, sequence, vec![running("slurm", "7"), running(LOCAL, "1")], Vec::new())
            .unwrap();
    }
    send(&cluster_writer, "n1", 3, vec![record("slurm", "8", START_S, State::Finished, 1)], Vec::new())
        .unwrap();
    let watched = |node: &str| {
        let mut keys = cluster_writer.watching().of(node, Instant::now());
        keys.sort();
        keys.into_iter().map(|key| format!("{}:{}", key.manager, key.id)).collect::<Vec<_>>()
    };
    let ask = |viewer: &Viewer, id: &str| {
        let job = JobRef::Id { manager: Some("slurm".to_owned()), id: id.to_owned(), node: None, user: None };
        let found = view.find(viewer, &job, None).unwrap().jobs;
        found.iter().for_each(|job| drop(view.series(viewer, &job.key, 0).unwrap()));
    };
    let list = |limit: usize| {
        let filter = JobsFilter { page: PageAsk::first(limit), ..JobsFilter::default() };
        view.jobs(&Viewer::Everything, &filter).unwrap()
    };
    let (ada, eve) = (Viewer::user("ada"), Viewer::user("eve"));
    let look = || {
        ask(&eve, "7");
        ask(&ada, "8");
        list(1000);
    };
    look();
    // Requests at once are one; those of a moment later are others.
    std::thread::sleep(Duration::from_millis(600));
    look();
    ask(&ada, "7");
    assert_eq!([watched("n1"), watched("n2")], [Vec::<String>::new(), Vec::new()], "nobody watches a job");
    std::thread::sleep(Duration::from_millis(600));
    ask(&ada, "7");
    assert_eq!([watched("n1"), watched("n2"), watched("n3")], [vec!["slurm:7"], vec!["slurm:7"], vec![]]);
    list(20);
    std::thread::sleep(Duration::from_millis(600));
    list(20);
    assert_eq!(watched("n2"), ["local:1", "slurm:7"], "a screen full of jobs");
    cluster_writer.stop();
}

#[test]
fn rules_may_want_more_samples_of_jobs_that_their_viewer_sees() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &NODES);
    let on_node = |id: &str, state: State| record(LOCAL, id, START_S, state, 1);
    send(
        &cluster_writer,
        "n1",
        1,
        vec![on_node("1", State::Running), on_node("2", State::Finished)],
        Vec::new(),
    )
    .unwrap();
    let keys: Vec<JobKey> =
        view.all_jobs(&Filter::default()).unwrap().into_iter().map(|job| job.key).collect();
    assert_eq!(keys.len(), 2);
    let watch = |viewer: &Viewer| view.sample_more(viewer, &keys, Duration::from_secs(600)).unwrap().len();
    assert_eq!(watch(&Viewer::user("eve")), 0);
    assert!(cluster_writer.watching().of("n1", Instant::now()).is_empty());
    assert_eq!(watch(&Viewer::user("ada")), 1, "one of them is over");
    let reported = |after_s: u64| {
        cluster_writer.watching().of("n1", Instant::now() + Duration::from_secs(after_s)).len()
    };
    assert_eq!((reported(0), reported(500)), (1, 1));
    cluster_writer.stop();
}
