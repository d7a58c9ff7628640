//! A system daemon whose store cannot be written to: ids stay unique, jobs can be named, and no record is lost.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use met_core::annotation::AnnotationChange;
use met_core::job::{CgroupPaths, JobKey, Origin, Record, State};
use met_core::sample;
use met_query::jobs::JobRef;
use met_query::protocol::{Reply, Request};
use met_sinks::prometheus::Format;
use met_sinks::shown_jobs::Contents;
use met_store::inbox::{JobDir, own_ids};
use met_web::scrape::Wanted;

use super::last_tick::MetricsCache;
use super::permissions::Caller;
use super::service::Service;
use super::socket::Peer;
use super::write_retries::tests::service;

const ALICE: u32 = 70_000;
const BOB: u32 = 70_001;

fn system(root: &Path) -> Service {
    let mut service = service(root);
    service.place.system = true;
    service
}

/// Lets writes to a table fail, or succeed again.
fn refuse_writes(root: &Path, table: &str, refuse: bool) {
    let store = rusqlite::Connection::open(root.join("state/store.db")).unwrap();
    for when in ["INSERT", "UPDATE", "DELETE"] {
        let change = match refuse {
            true => format!(
                "CREATE TRIGGER full_{when} BEFORE {when} ON {table} BEGIN SELECT RAISE(FAIL, 'full'); END"
            ),
            false => format!("DROP TRIGGER full_{when}"),
        };
        store.execute_batch(&change).unwrap();
    }
}

fn ask(service: &mut Service, uid: u32, request: Request) -> anyhow::Result<Reply> {
    service.answer(request, &Caller::new(Peer { uid, pid: std::process::id() }))
}

fn reserve(service: &mut Service, uid: u32, at_least: u64) -> u64 {
    match ask(service, uid, Request::Reserve { at_least, timed: false }) {
        Ok(Reply::Reserved { id }) => id,
        other => panic!("{other:?}"),
    }
}

/// A job that ended long before this daemon began.
fn ended(id: u64, uid: u32, name: &str) -> Record {
    let mut record = sample::full(1, name);
    record.key = JobKey { id: id.to_string(), ..record.key };
    (record.uid, record.user, record.state) = (Some(uid), None, State::Finished);
    (record.start_ns, record.end_ns) = (Some(1_000_000_000), Some(2_000_000_000));
    record.local.as_mut().unwrap().origin = Origin::Run;
    record
}

fn report(service: &mut Service, record: &Record) -> bool {
    ask(service, record.uid.unwrap(), Request::Ended(Box::new(record.clone()))).is_ok()
}

fn find(service: &mut Service, uid: u32, text: &str) -> Vec<(u32, String)> {
    let request = Request::Find(JobRef::parse(text, &[]).unwrap());
    let Ok(Reply::Jobs(found)) = ask(service, uid, request) else { panic!("no jobs") };
    found.into_iter().map(|record| (record.uid.unwrap(), record.name)).collect()
}

fn stored(service: &Service, id: u64) -> Vec<Option<u32>> {
    let mut found: Vec<Option<u32>> =
        service.recorder.writer.find(None, &id.to_string()).unwrap().iter().map(|job| job.uid).collect();
    found.sort_unstable();
    found
}

#[test]
fn the_id_of_a_job_that_is_not_written_is_not_given_again() {
    let root = tempfile::tempdir().unwrap();
    let mut service = system(root.path());
    refuse_writes(root.path(), "job", true);
    let first = reserve(&mut service, ALICE, 50);
    assert_eq!(first, 50);
    assert!(!report(&mut service, &ended(first, ALICE, "x")), "it is not on disk");
    let second = reserve(&mut service, BOB, 50);
    assert_eq!(second, 51);
    std::fs::create_dir_all(root.path().join("state/jobs/52")).unwrap();
    assert_eq!(reserve(&mut service, ALICE, 52), 53, "a folder has 52");
    service.close();
}

#[test]
fn parts_react_to_an_end_when_it_is_stored_and_not_before() {
    let root = tempfile::tempdir().unwrap();
    let mut service = system(root.path());
    let metrics_cache = Arc::new(MetricsCache::new(
        Contents { jobs_max: 10, ..Contents::default() },
        Duration::from_secs(300),
    ));
    service.outputs.metrics_cache = Some(Arc::clone(&metrics_cache));
    let page = || {
        let wanted = Wanted { format: Format::Text, gzip: false, people: false };
        String::from_utf8(metrics_cache.page(wanted).unwrap().to_vec()).unwrap()
    };
    let folder = JobDir::claim(&root.path().join("state"), 7).unwrap();
    // An empty directory, which is removed as an empty cgroup is.
    let cgroup = root.path().join("cgroup-of-job");
    std::fs::create_dir(&cgroup).unwrap();
    let mut end = ended(7, ALICE, "x");
    let local = end.local.as_mut().unwrap();
    local.boot_id.clone_from(&service.host.facts().boot_id);
    local.cgroup = CgroupPaths { unified: Some(cgroup.clone()), ..CgroupPaths::default() };
    local.supervisor = None;
    let start = Record { state: State::Running, end_ns: None, ..end.clone() };
    folder.write_start(&start).unwrap();
    let start_file = folder.path().join("start");
    service.recorder.writer.put(&start).unwrap();
    service.registry.insert(start.clone());
    metrics_cache.runs(&start);

    refuse_writes(root.path(), "job", true);
    assert!(service.close_job(end).is_err());
    service.flush();
    service.sweep();
    assert_eq!(service.job_count(), 0, "it runs no more");
    assert_eq!((cgroup.exists(), start_file.exists()), (false, true), "what is stored of it is not removed");
    assert!(!page().contains("id=\"7\""), "neither as running nor as finished: {}", page());

    refuse_writes(root.path(), "job", false);
    service.flush();
    assert!(!start_file.exists());
    assert!(page().contains("id=\"7\",shown_id=\"7\",state=\"finished\"} 1"), "{}", page());
    service.close();
}

#[test]
fn jobs_of_two_users_with_one_key_are_both_kept() {
    let root = tempfile::tempdir().unwrap();
    let mut service = system(root.path());
    refuse_writes(root.path(), "job", true);
    for uid in [ALICE, BOB] {
        assert!(!report(&mut service, &ended(7, uid, "x")));
    }
    refuse_writes(root.path(), "job", false);
    service.flush();
    assert_eq!(stored(&service, 7), [Some(ALICE), Some(BOB)]);
    // Reported again, each is found.
    for uid in [ALICE, BOB, ALICE] {
        assert!(report(&mut service, &ended(7, uid, "x")));
    }
    assert_eq!(stored(&service, 7), [Some(ALICE), Some(BOB)]);
    // Root may change everything, and its own job is another one all the same.
    let own = ended(7, 0, "of root");
    let start = Record { state: State::Running, end_ns: None, ..own.clone() };
    assert!(ask(&mut service, 0, Request::Started(Box::new(start))).is_err());
    assert!(report(&mut service, &own));
    assert_eq!(stored(&service, 7), [Some(0), Some(ALICE), Some(BOB)]);
    service.close();
}

#[test]
fn without_a_place_on_disk_users_take_ids_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let mut service = system(root.path());
    refuse_writes(root.path(), "meta", true);
    for _ in 0..2 {
        assert_eq!(reserve(&mut service, ALICE, 1), own_ids(ALICE).start);
    }
    refuse_writes(root.path(), "meta", false);
    let first = reserve(&mut service, ALICE, 1);
    assert_eq!((first, reserve(&mut service, BOB, 1)), (1, 2));
    refuse_writes(root.path(), "meta", true);
    assert_eq!(reserve(&mut service, BOB, 1), 3, "within what is on disk");
    assert_eq!(reserve(&mut service, BOB, 500), own_ids(BOB).start, "ahead of it");
    service.close();
}

#[test]
fn a_job_that_is_not_written_is_annotated_once_it_can_be() {
    let root = tempfile::tempdir().unwrap();
    let mut service = system(root.path());
    refuse_writes(root.path(), "job", true);
    let job = ended(7, ALICE, "unwritten");
    assert!(!report(&mut service, &job));
    let change = AnnotationChange { add: vec!["good".to_owned()], ..AnnotationChange::default() };
    let mut annotate = |uid: u32| {
        let request = Request::Annotate { key: job.key.clone(), change: change.clone() };
        ask(&mut service, uid, request).map_err(|error| error.to_string())
    };
    assert!(annotate(BOB).unwrap_err().contains("no such job"));
    assert!(annotate(ALICE).unwrap_err().contains("cannot be written now"));
    refuse_writes(root.path(), "job", false);
    assert!(matches!(annotate(ALICE), Ok(Reply::Annotated(said)) if said.tags.contains("good")));
    service.close();
}

#[test]
fn a_job_that_is_not_written_can_be_named_and_removed() {
    let root = tempfile::tempdir().unwrap();
    let mut service = system(root.path());
    assert!(report(&mut service, &ended(7, ALICE, "stored")));
    refuse_writes(root.path(), "job", true);
    assert!(!report(&mut service, &ended(7, BOB, "unwritten")));
    assert!(!report(&mut service, &ended(8, BOB, "unwritten")));
    assert_eq!(find(&mut service, 0, "8"), [(BOB, "unwritten".to_owned())]);
    assert_eq!(find(&mut service, 0, "7").len(), 2, "root gets both");
    assert_eq!(find(&mut service, 0, &format!("{BOB}/7")), [(BOB, "unwritten".to_owned())]);
    assert_eq!(find(&mut service, 0, "unwritten").len(), 1, "the newest of the name");
    assert_eq!(find(&mut service, ALICE, "7"), [(ALICE, "stored".to_owned())]);
    assert_eq!(find(&mut service, ALICE, "8"), [], "it is Bob's");
    assert_eq!(find(&mut service, BOB, "@last"), [(BOB, "unwritten".to_owned())]);
    let key = ended(8, BOB, "").key;
    refuse_writes(root.path(), "job", false);
    assert!(ask(&mut service, ALICE, Request::Remove(key.clone())).is_ok(), "there is none for her");
    assert_eq!(find(&mut service, BOB, "8").len(), 1);
    assert!(ask(&mut service, BOB, Request::Remove(key)).is_ok());
    service.flush();
    assert_eq!(find(&mut service, BOB, "8"), []);
    service.close();
}
