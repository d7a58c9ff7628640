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

fn board(jobs_max: usize) -> Board {
    Board::new(Contents { jobs_max, ..Contents::default() }, Duration::from_secs(300))
}

fn tick(board: &Board, jobs: &[(&Record, i64)]) {
    let now_ns = clock::realtime_ns();
    let row = |cpu_ns: i64| {
        let mut cells = cells_of(&Totals::default());
        (cells[job_table::CPU], cells[MEMORY_NEEDED]) = (cpu_ns, 4096);
        JobNow { cells, ..JobNow::default() }
    };
    let jobs = jobs.iter().map(|(record, cpu_ns)| (record.key.clone(), row(*cpu_ns))).collect();
    board.post(NodeNow { time_ns: now_ns, interval_ns: SECOND, ticks: 1, jobs, ..NodeNow::default() });
}

fn page(board: &Board, wanted: Wanted) -> String {
    String::from_utf8(board.page(wanted).unwrap().to_vec()).unwrap()
}

#[test]
fn a_job_is_shown_while_it_runs_and_with_its_end_for_a_while() {
    let board = board(10);
    let mut record = record(7, 1_700_000_000);
    board.runs(&record);
    tick(&board, &[(&record, 2 * SECOND)]);
    let running = page(&board, TEXT);
    assert!(running.contains("met_job_cpu_seconds_total{manager=\"local\",id=\"7\"} 2\n"), "{running}");
    assert!(running.contains("met_job_memory_needed_bytes{manager=\"local\",id=\"7\"} 4096\n"));
    assert!(
        running.contains("met_job_info{manager=\"local\",id=\"7\",shown_id=\"7\",state=\"running\"} 1\n")
    );

    record.state = State::Finished;
    record.totals.set(job_table::CPU, 5 * SECOND, QualityKind::Measured, "cgroup");
    board.ended(&record);
    tick(&board, &[]);
    let ended = page(&board, TEXT);
    assert!(ended.contains("met_job_cpu_seconds_total{manager=\"local\",id=\"7\"} 5\n"), "{ended}");
    assert!(ended.contains("state=\"finished\"} 1\n"));
    assert!(!ended.contains("met_job_memory_needed_bytes"), "it holds no memory any more");

    record.totals.set(ENERGY, 3_000_000, QualityKind::Measured, "RAPL");
    board.knows(&record);
    assert!(page(&board, TEXT).contains("met_job_energy_joules_total{manager=\"local\",id=\"7\"} 3\n"));
}

#[test]
fn a_counter_once_shown_stays_while_its_job_is_on_the_page() {
    let board = board(10);
    let mut record = record(7, 1_700_000_000);
    board.runs(&record);
    tick(&board, &[(&record, 2 * SECOND)]);
    let cpu = "met_job_cpu_seconds_total{manager=\"local\",id=\"7\"} 2\n";
    assert!(page(&board, TEXT).contains(cpu));
    // A reading failed.
    tick(&board, &[(&record, MISSING)]);
    assert!(page(&board, TEXT).contains(cpu), "{}", page(&board, TEXT));
    // The record has no total.
    record.state = State::Finished;
    board.ended(&record);
    tick(&board, &[]);
    let ended = page(&board, TEXT);
    assert!(ended.contains(cpu) && ended.contains("state=\"finished\""), "{ended}");
    assert!(!ended.contains("met_job_memory_needed_bytes"), "a level does not stay: {ended}");
}

#[test]
fn what_was_kept_long_enough_is_gone() {
    let board = Board::new(Contents { jobs_max: 10, ..Contents::default() }, Duration::ZERO);
    board.ended(&record(7, 1));
    std::thread::sleep(Duration::from_millis(2));
    assert!(!page(&board, TEXT).contains("id=\"7\""));
}

#[test]
fn no_user_is_named_to_an_unauthenticated_client() {
    let board = board(10);
    let record = record(7, 1_700_000_000);
    board.runs(&record);
    tick(&board, &[(&record, SECOND)]);
    let public = page(&board, TEXT);
    for word in ["ann", "physics", "secret-name"] {
        assert!(!public.contains(&format!("\"{word}")), "{word}");
    }
    let known = page(&board, Wanted { people: true, ..TEXT });
    assert!(known.contains("name=\"secret-name\",user=\"ann\",account=\"physics\"} 1\n"), "{known}");
    assert_eq!(page(&board, TEXT), public, "a page that was kept for one is not given to another");
}

#[test]
fn the_oldest_jobs_keep_their_series() {
    let board = board(2);
    let records = [record(1, 30), record(2, 10), record(3, 20)];
    records.iter().for_each(|record| board.runs(record));
    tick(&board, &[(&records[0], SECOND), (&records[1], SECOND), (&records[2], SECOND)]);
    let text = page(&board, TEXT);
    assert!(
        text.contains("met_jobs_not_shown{by=\"jobs_max\"} 1\n")
            && text.contains("met_jobs_not_shown_cpu_seconds 1\n")
    );
    assert!(!text.contains("id=\"1\"") && text.contains("id=\"2\"") && text.contains("id=\"3\""), "{text}");
}

#[test]
fn a_page_is_written_once_per_tick_and_as_small_as_asked_for() {
    let board = board(10);
    let record = record(7, 1_700_000_000);
    board.runs(&record);
    tick(&board, &[(&record, SECOND)]);
    let (one, other) = (board.page(TEXT).unwrap(), board.page(TEXT).unwrap());
    assert!(Arc::ptr_eq(&one, &other));
    let small = board.page(Wanted { gzip: true, ..TEXT }).unwrap();
    let mut read = Vec::new();
    flate2::read::GzDecoder::new(&small[..]).read_to_end(&mut read).unwrap();
    assert!(read.starts_with(b"# HELP met_build_info") && small.len() < one.len());
    tick(&board, &[(&record, 2 * SECOND)]);
    assert!(!Arc::ptr_eq(&one, &board.page(TEXT).unwrap()));
}

#[test]
fn old_samples_are_not_shown_as_new() {
    let board = board(10);
    let old_ns = clock::realtime_ns() - 60 * SECOND;
    let now = NodeNow { time_ns: old_ns, interval_ns: SECOND, ticks: 1, ..NodeNow::default() };
    board.post(now.clone());
    assert_eq!(board.page(TEXT), Err(Old));
    board.post(NodeNow { together_ns: 30 * SECOND, ..now });
    assert!(board.page(TEXT).is_ok(), "they are not old where samples are that far apart");
}

#[test]
fn a_tick_does_not_wait_for_readers() {
    let board = board(10);
    let reading = board.now.lock().unwrap();
    board.post(NodeNow { ticks: 9, ..NodeNow::default() });
    assert_eq!(reading.ticks, 0, "it went on without waiting");
}

#[test]
fn a_scrape_of_old_figures_has_them_read_once_for_all_who_wait() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let board = Arc::new(board(10).no_older_than(Duration::from_secs(5)));
    let record = record(7, 1_700_000_000);
    board.runs(&record);
    assert!(!board.is_stale(), "there is nothing to be old");
    let old = |board: &Board, age_s: i64| {
        let time_ns = clock::realtime_ns() - age_s * SECOND;
        board.post(NodeNow { time_ns, ticks: 1, ..NodeNow::default() });
    };
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    board.ask_with(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    old(&board, 2);
    board.refresh();
    assert_eq!(asked.load(Ordering::SeqCst), 0, "two seconds are not old");
    old(&board, 20);
    std::thread::scope(|scope| {
        let scrapes: Vec<_> = (0..4).map(|_| scope.spawn(|| board.refresh())).collect();
        while asked.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        tick(&board, &[(&record, 2 * SECOND)]);
        scrapes.into_iter().for_each(|scrape| scrape.join().unwrap());
    });
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert!(page(&board, TEXT).contains("met_job_cpu_seconds_total{manager=\"local\",id=\"7\"} 2\n"));
    // No answer comes: the last figures are served, and no second order is sent.
    old(&board, 20);
    board.refresh();
    board.refresh();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert!(board.page(TEXT).is_ok());
}

#[test]
fn a_tick_copies_nothing_and_the_next_scrape_asks_for_it() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let board = Arc::new(board(10).no_older_than(Duration::from_secs(5)));
    let record = record(7, 1_700_000_000);
    board.runs(&record);
    let (asked, of) = (Arc::new(AtomicUsize::new(0)), Arc::downgrade(&board));
    let counted = Arc::clone(&asked);
    board.ask_with(move || {
        let count = counted.fetch_add(1, Ordering::SeqCst) as i64 + 1;
        // As the sampling thread does, which is another one.
        let board = of.upgrade().unwrap();
        let record = record.clone();
        std::thread::spawn(move || tick(&board, &[(&record, count * SECOND)]));
    });
    for count in 1..=2 {
        board.ticked();
        assert!(board.is_stale());
        while board.is_stale() {
            board.refresh();
        }
        board.refresh();
        assert_eq!(asked.load(Ordering::SeqCst), count, "once after each tick");
        let cpu = format!("met_job_cpu_seconds_total{{manager=\"local\",id=\"7\"}} {count}\n");
        assert!(page(&board, TEXT).contains(&cpu));
    }
    let long_ago_ns = clock::realtime_ns() - 100 * SECOND;
    board.post(NodeNow { time_ns: long_ago_ns, ticks: 1, ..NodeNow::default() });
    assert!(board.page(TEXT).is_ok(), "the sampling thread ticks, and no scrape came");
}
