use std::io::Read;

use met_core::job::{QualityKind, State, Totals};
use met_core::job_table::{self, ENERGY, MEMORY_NEEDED};

use super::*;
use met_core::sample;
use met_sinks::prometheus::Format;

const TEXT: Wanted = Wanted { format: Format::Text, gzip: false, people: false };
const SECOND: i64 = 1_000_000_000;

fn record(id: u32, start_s: i64) -> Record {
    let mut record = sample::bare(id, "secret-name");
    (record.start_ns, record.state) = (Some(start_s * SECOND), State::Running);
    (record.user, record.account) = (Some("ann".to_owned()), Some("physics".to_owned()));
    record
}

fn metrics_cache(jobs_max: usize) -> MetricsCache {
    MetricsCache::new(Contents { jobs_max, ..Contents::default() }, Duration::from_secs(300))
}

fn tick(metrics_cache: &MetricsCache, jobs: &[(&Record, i64)]) {
    let now_ns = clock::realtime_ns();
    let row = |cpu_ns: i64| {
        let mut cells = cells_of(&Totals::default());
        (cells[job_table::CPU], cells[MEMORY_NEEDED]) = (cpu_ns, 4096);
        JobNow { cells, ..JobNow::default() }
    };
    let jobs = jobs.iter().map(|(record, cpu_ns)| (record.key.clone(), row(*cpu_ns))).collect();
    metrics_cache.post(NodeNow {
        time_ns: now_ns,
        interval_ns: SECOND,
        ticks: 1,
        jobs,
        ..NodeNow::default()
    });
}

fn page(metrics_cache: &MetricsCache, wanted: Wanted) -> String {
    String::from_utf8(metrics_cache.page(wanted).unwrap().to_vec()).unwrap()
}

#[test]
fn a_job_is_shown_while_it_runs_and_with_its_end_for_a_while() {
    let metrics_cache = metrics_cache(10);
    let mut record = record(7, 1_700_000_000);
    metrics_cache.runs(&record);
    tick(&metrics_cache, &[(&record, 2 * SECOND)]);
    let running = page(&metrics_cache, TEXT);
    assert!(running.contains("met_job_cpu_seconds_total{manager=\"local\",id=\"7\"} 2\n"), "{running}");
    assert!(running.contains("met_job_memory_needed_bytes{manager=\"local\",id=\"7\"} 4096\n"));
    assert!(
        running.contains("met_job_info{manager=\"local\",id=\"7\",shown_id=\"7\",state=\"running\"} 1\n")
    );

    record.state = State::Finished;
    record.totals.set(job_table::CPU, 5 * SECOND, QualityKind::Measured, "cgroup");
    metrics_cache.ended(&record);
    tick(&metrics_cache, &[]);
    let ended = page(&metrics_cache, TEXT);
    assert!(ended.contains("met_job_cpu_seconds_total{manager=\"local\",id=\"7\"} 5\n"), "{ended}");
    assert!(ended.contains("state=\"finished\"} 1\n"));
    assert!(!ended.contains("met_job_memory_needed_bytes"), "it holds no memory any more");

    record.totals.set(ENERGY, 3_000_000, QualityKind::Measured, "RAPL");
    metrics_cache.knows(&record);
    assert!(
        page(&metrics_cache, TEXT).contains("met_job_energy_joules_total{manager=\"local\",id=\"7\"} 3\n")
    );
}

#[test]
fn a_counter_once_shown_stays_while_its_job_is_on_the_page() {
    let metrics_cache = metrics_cache(10);
    let mut record = record(7, 1_700_000_000);
    metrics_cache.runs(&record);
    tick(&metrics_cache, &[(&record, 2 * SECOND)]);
    let cpu = "met_job_cpu_seconds_total{manager=\"local\",id=\"7\"} 2\n";
    assert!(page(&metrics_cache, TEXT).contains(cpu));
    // A reading failed.
    tick(&metrics_cache, &[(&record, MISSING)]);
    assert!(page(&metrics_cache, TEXT).contains(cpu), "{}", page(&metrics_cache, TEXT));
    // The record has no total.
    record.state = State::Finished;
    metrics_cache.ended(&record);
    tick(&metrics_cache, &[]);
    let ended = page(&metrics_cache, TEXT);
    assert!(ended.contains(cpu) && ended.contains("state=\"finished\""), "{ended}");
    assert!(!ended.contains("met_job_memory_needed_bytes"), "a level does not stay: {ended}");
}

#[test]
fn what_was_kept_long_enough_is_gone() {
    let metrics_cache = MetricsCache::new(Contents { jobs_max: 10, ..Contents::default() }, Duration::ZERO);
    metrics_cache.ended(&record(7, 1));
    std::thread::sleep(Duration::from_millis(2));
    assert!(!page(&metrics_cache, TEXT).contains("id=\"7\""));
}

#[test]
fn no_user_is_named_to_an_unauthenticated_client() {
    let metrics_cache = metrics_cache(10);
    let record = record(7, 1_700_000_000);
    metrics_cache.runs(&record);
    tick(&metrics_cache, &[(&record, SECOND)]);
    let public = page(&metrics_cache, TEXT);
    for word in ["ann", "physics", "secret-name"] {
        assert!(!public.contains(&format!("\"{word}")), "{word}");
    }
    let known = page(&metrics_cache, Wanted { people: true, ..TEXT });
    assert!(known.contains("name=\"secret-name\",user=\"ann\",account=\"physics\"} 1\n"), "{known}");
    assert_eq!(page(&metrics_cache, TEXT), public, "a page that was kept for one is not given to another");
}

#[test]
fn the_oldest_jobs_keep_their_series() {
    let metrics_cache = metrics_cache(2);
    let records = [record(1, 30), record(2, 10), record(3, 20)];
    records.iter().for_each(|record| metrics_cache.runs(record));
    tick(&metrics_cache, &[(&records[0], SECOND), (&records[1], SECOND), (&records[2], SECOND)]);
    let text = page(&metrics_cache, TEXT);
    assert!(
        text.contains("met_jobs_not_shown{by=\"jobs_max\"} 1\n")
            && text.contains("met_jobs_not_shown_cpu_seconds 1\n")
    );
    assert!(!text.contains("id=\"1\"") && text.contains("id=\"2\"") && text.contains("id=\"3\""), "{text}");
}

#[test]
fn a_page_is_written_once_per_tick_and_as_small_as_asked_for() {
    let metrics_cache = metrics_cache(10);
    let record = record(7, 1_700_000_000);
    metrics_cache.runs(&record);
    tick(&metrics_cache, &[(&record, SECOND)]);
    let (one, other) = (metrics_cache.page(TEXT).unwrap(), metrics_cache.page(TEXT).unwrap());
    assert!(Arc::ptr_eq(&one, &other));
    let small = metrics_cache.page(Wanted { gzip: true, ..TEXT }).unwrap();
    let mut read = Vec::new();
    flate2::read::GzDecoder::new(&small[..]).read_to_end(&mut read).unwrap();
    assert!(read.starts_with(b"# HELP met_build_info") && small.len() < one.len());
    tick(&metrics_cache, &[(&record, 2 * SECOND)]);
    assert!(!Arc::ptr_eq(&one, &metrics_cache.page(TEXT).unwrap()));
}

#[test]
fn old_samples_are_not_shown_as_new() {
    let metrics_cache = metrics_cache(10);
    let old_ns = clock::realtime_ns() - 60 * SECOND;
    let now = NodeNow { time_ns: old_ns, interval_ns: SECOND, ticks: 1, ..NodeNow::default() };
    metrics_cache.post(now.clone());
    assert_eq!(metrics_cache.page(TEXT), Err(Old));
    metrics_cache.post(NodeNow { together_ns: 30 * SECOND, ..now });
    assert!(metrics_cache.page(TEXT).is_ok(), "they are not old where samples are that far apart");
}

#[test]
fn a_tick_does_not_wait_for_readers() {
    let metrics_cache = metrics_cache(10);
    let reading = metrics_cache.now.lock().unwrap();
    metrics_cache.post(NodeNow { ticks: 9, ..NodeNow::default() });
    assert_eq!(reading.ticks, 0, "it went on without waiting");
}

#[test]
fn a_scrape_of_old_figures_has_them_read_once_for_all_who_wait() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let metrics_cache = Arc::new(metrics_cache(10).no_older_than(Duration::from_secs(5)));
    let record = record(7, 1_700_000_000);
    metrics_cache.runs(&record);
    assert!(!metrics_cache.is_stale(), "there is nothing to be old");
    let old = |metrics_cache: &MetricsCache, age_s: i64| {
        let time_ns = clock::realtime_ns() - age_s * SECOND;
        metrics_cache.post(NodeNow { time_ns, ticks: 1, ..NodeNow::default() });
    };
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    metrics_cache.ask_with(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    old(&metrics_cache, 2);
    metrics_cache.refresh();
    assert_eq!(asked.load(Ordering::SeqCst), 0, "two seconds are not old");
    old(&metrics_cache, 20);
    std::thread::scope(|scope| {
        let scrapes: Vec<_> = (0..4).map(|_| scope.spawn(|| metrics_cache.refresh())).collect();
        while asked.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        tick(&metrics_cache, &[(&record, 2 * SECOND)]);
        scrapes.into_iter().for_each(|scrape| scrape.join().unwrap());
    });
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert!(page(&metrics_cache, TEXT).contains("met_job_cpu_seconds_total{manager=\"local\",id=\"7\"} 2\n"));
    // No answer comes: the last figures are served, and no second order is sent.
    old(&metrics_cache, 20);
    metrics_cache.refresh();
    metrics_cache.refresh();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert!(metrics_cache.page(TEXT).is_ok());
}

#[test]
fn a_tick_copies_nothing_and_the_next_scrape_asks_for_it() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let metrics_cache = Arc::new(metrics_cache(10).no_older_than(Duration::from_secs(5)));
    let record = record(7, 1_700_000_000);
    metrics_cache.runs(&record);
    let (asked, of) = (Arc::new(AtomicUsize::new(0)), Arc::downgrade(&metrics_cache));
    let counted = Arc::clone(&asked);
    metrics_cache.ask_with(move || {
        let count = counted.fetch_add(1, Ordering::SeqCst) as i64 + 1;
        // As the sampling thread does, which is another one.
        let metrics_cache = of.upgrade().unwrap();
        let record = record.clone();
        std::thread::spawn(move || tick(&metrics_cache, &[(&record, count * SECOND)]));
    });
    for count in 1..=2 {
        metrics_cache.ticked();
        assert!(metrics_cache.is_stale());
        while metrics_cache.is_stale() {
            metrics_cache.refresh();
        }
        metrics_cache.refresh();
        assert_eq!(asked.load(Ordering::SeqCst), count, "once after each tick");
        let cpu = format!("met_job_cpu_seconds_total{{manager=\"local\",id=\"7\"}} {count}\n");
        assert!(page(&metrics_cache, TEXT).contains(&cpu));
    }
    let long_ago_ns = clock::realtime_ns() - 100 * SECOND;
    metrics_cache.post(NodeNow { time_ns: long_ago_ns, ticks: 1, ..NodeNow::default() });
    assert!(metrics_cache.page(TEXT).is_ok(), "the sampling thread ticks, and no scrape came");
}
