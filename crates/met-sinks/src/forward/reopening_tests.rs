//! A forwarder that is opened again, and what it knows then.

use super::*;

#[test]
fn drops_of_earlier_daemons_are_no_news_and_the_count_never_falls() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut earlier = Spool::open(folder.path()).unwrap();
    earlier.count_dropped(100);
    let plan = plan(folder.path(), &listener);
    earlier.put(&mut NodeBatch { header: plan.header.clone(), ..NodeBatch::default() }, 0).unwrap();
    let uplink = uplink(plan, Duration::from_secs(3600), Records::default);
    let reported = |forward: &mut Forward| forward.report().unwrap().dropped;
    let mut forward = Forward::open(&uplink).unwrap();
    assert_eq!((reported(&mut forward), uplink.monitor.status().dropped_samples), (0, 100));
    forward.missed(7);
    for subject in [Subject::Job(key("1")), Subject::Node(String::new())] {
        assert!(forward.take(&Event::Samples(offered(subject, series(0, 1)))).is_ok());
    }
    drop(forward);
    // No batch knows of the seven, nor of what was held.
    let lost = 7 + 2 * JOB.columns.len() as u64;
    let mut forward = Forward::open(&uplink).unwrap();
    assert_eq!((reported(&mut forward), uplink.monitor.status().dropped_samples), (lost, 100 + lost));
    forward.missed(1);
    assert_eq!((reported(&mut forward), uplink.monitor.status().dropped_samples), (1, 101 + lost));
}

#[test]
fn what_cannot_be_spooled_at_the_end_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spool = folder.path().join("spool");
    let uplink = uplink(plan(&spool, &listener), Duration::from_secs(3600), Records::default);
    let mut forward = Forward::open(&uplink).unwrap();
    forward.take(&Event::Samples(offered(Subject::Job(key("1")), series(0, 1)))).unwrap();
    std::fs::remove_dir_all(&spool).unwrap();
    std::fs::write(&spool, "").unwrap();
    Box::new(forward).close();
    assert_eq!(uplink.monitor.status().dropped_samples, JOB.columns.len() as u64);
}

#[test]
fn what_an_abandoned_sender_hears_is_not_said_of_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (plan, (asked, is_asked), (reply, replies)) =
        (plan(folder.path(), &listener), std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    serve(listener, move |_| {
        asked.send(()).unwrap();
        let _ = replies.recv();
        (409, r#"{"error": "a state folder was copied"}"#.to_owned())
    });
    let uplink = uplink(plan, Duration::from_secs(3600), Records::default);
    let mut forward = Forward::open(&uplink).unwrap();
    forward.idle().unwrap();
    is_asked.recv_timeout(Duration::from_secs(60)).unwrap();
    let sending = Arc::clone(&forward.shared);
    drop(forward);
    drop(reply);
    until("its thread has ended", || Arc::strong_count(&sending) == 1);
    assert_eq!(uplink.monitor.status().last_error, None);
    assert!(uplink.monitor.report(Instant::now()).is_retrying, "it is to be opened again");
}

#[test]
fn settings_that_were_right_once_are_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (plan, wrong) = (plan(folder.path(), &listener), Arc::new(Mutex::new(true)));
    let is_wrong = Arc::clone(&wrong);
    let prepare: Box<dyn Fn() -> Prepared + Send + Sync> =
        Box::new(move || match *is_wrong.lock().unwrap() {
            true => Err(SinkError::Failed("no token".to_owned())),
            false => Ok((plan.clone(), Box::new(Records::default()))),
        });
    let mut options = Options::default();
    let every = Duration::from_secs(3600);
    options.context = Context::new(Uplink { every, monitor: Monitor::default(), prepare });
    assert!(matches!(open(&options), Err(SinkError::Failed(_))));
    *wrong.lock().unwrap() = false;
    drop(open(&options).expect("it is opened"));
    *wrong.lock().unwrap() = true;
    assert!(matches!(open(&options), Err(SinkError::Retry(_))));
}

#[test]
fn a_spool_that_cannot_be_opened_is_opened_later() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spool = folder.path().join("spool");
    std::fs::write(&spool, "in the way").unwrap();
    let plan = plan(&spool, &listener);
    serve(listener, |batch| acknowledge(&batch));
    let records = Records::default();
    records.all.lock().unwrap().push(record("one"));
    let forward = Forwarding::open(uplink(plan, Duration::from_millis(50), move || records.clone()));
    until("it is reported", || forward.sink_status().state == bus::State::Retrying);
    assert!(forward.status().spool_error.is_some_and(|error| error.contains("spool")));
    assert_eq!(forward.monitor.rows().iter().count(), 0, "nothing is known of it");
    std::fs::remove_file(&spool).unwrap();
    until("the record arrives", || forward.status().acknowledged_ns.is_some());
    until("it is well", || forward.sink_status().state == bus::State::Running);
    assert!(forward.status().last_error.is_none() && forward.status().spool_error.is_none());
}

#[test]
fn after_a_panic_it_is_opened_again_and_no_record_is_lost() {
    struct Panics(Records, Arc<std::sync::atomic::AtomicUsize>);
    impl Outbox for Panics {
        fn changed_after(&mut self, mark: i64, limit: usize) -> io::Result<Changed> {
            assert!(self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed) != 2, "on purpose");
            self.0.changed_after(mark, limit)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan(folder.path(), &listener);
    let arrived: Arc<Mutex<Vec<NodeBatch>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    serve(listener, move |batch| {
        let answer = acknowledge(&batch);
        kept.lock().unwrap().push(batch);
        answer
    });
    let (records, asked) = (Records::default(), Arc::default());
    records.all.lock().unwrap().push(record("one"));
    let from = records.clone();
    let forward = Forwarding::open(uplink(plan, Duration::from_millis(50), move || {
        Panics(from.clone(), Arc::clone(&asked))
    }));
    let health = NodeHealth { gpus: Some(4), ..NodeHealth::default() };
    forward.publish(Event::Health(Arc::new(health.clone())));
    until("it panics", || forward.sink_status().failed > 0);
    assert!(forward.sink_status().last_error.is_some_and(|error| error.contains("on purpose")));
    records.all.lock().unwrap().push(record("two"));
    until("both arrive", || {
        let arrived = arrived.lock().unwrap();
        let records = arrived.iter().flat_map(|batch| &batch.records);
        records.map(|record| record.name.as_str()).collect::<std::collections::BTreeSet<_>>().len() == 2
    });
    until("nothing waits", || forward.status().batches_waiting == 0);
    assert_eq!(arrived.lock().unwrap().last().unwrap().header.health, health, "it is known as before");
    assert_eq!(forward.status().quarantined_batches, 0, "the files are those of one spool at a time");
}
