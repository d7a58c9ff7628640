use std::io::Read;
use std::sync::Arc;

use expect_test::expect;
use met_core::job::{JobKey, Resources};
use met_core::job_table::{CPU, MEMORY_NEEDED};
use met_core::table::{MICRO, ONE};
use met_core::{Unit, columns};
use proptest::prelude::*;

use super::*;
use crate::snapshot::{About, Person, allocated};

columns! { COLUMNS:
    ENERGY = Column::counter("energy", Unit::Joules, MICRO, "energy \\ \"used\""),
    CLOCK = Column::gauge("clock", Unit::Hertz, ONE, "clock now"),
}
static ZONE: Table = Table { name: "zone", subject: "", labels: &["zone", "kind"], columns: COLUMNS };

fn job_of(id: &str, cpu: i64, memory: i64, person: Person) -> Job {
    let mut cells = vec![MISSING; JOB.columns.len()];
    (cells[CPU], cells[MEMORY_NEEDED]) = (cpu, memory);
    let resources = Resources { cpus: (id == "1").then_some(8), ..Resources::default() };
    let about = About {
        key: JobKey { cluster: Some("c1".into()), manager: "slurm".into(), id: id.into(), incarnation: 1 },
        shown_id: id.into(),
        state: "running",
        partition: String::new(),
        inside: String::new(),
        start_ns: None,
        end_ns: None,
        allocated: allocated(&resources),
        person,
    };
    Job { about: Arc::new(about), cells, details: Vec::new(), events: Vec::new(), gpus: Vec::new() }
}

fn job(id: &str, cpu: i64, memory: i64) -> Job {
    job_of(
        id,
        cpu,
        memory,
        Person { name: "a \"name\"\n".into(), user: "ann".into(), account: String::new() },
    )
}

fn snapshot() -> Snapshot {
    let mut rows = Rows::new(&ZONE);
    rows.push(&["package-0".into(), "cpu".into()], &[1_500_000, MISSING]);
    rows.push(&["dram".into()], &[2, 7]);
    rows.push(&["dram".into()], &[3, 8]);
    let mut jobs = vec![job("1", 1_500_000_000, 4096), job("2", 250_000_000, MISSING), job("3", 1, 1)];
    let part = HeldGpu {
        index: "0.1".into(),
        uuid: "MIG-a".into(),
        parent: "GPU-1".into(),
        mig: "5/0".into(),
        ..HeldGpu::default()
    };
    jobs[0].gpus.push(HeldGpu { index: "0".into(), uuid: "GPU-1".into(), ..HeldGpu::default() });
    jobs[1].gpus.push(part);
    Snapshot { tables: vec![rows], jobs }
}

fn page_of(snapshot: &Snapshot, format: Format, contents: &Contents, people: bool) -> String {
    let mut out = Vec::new();
    page(snapshot, format, contents, people, &mut out);
    String::from_utf8(out).unwrap()
}

fn text(format: Format, contents: &Contents) -> String {
    page_of(&snapshot(), format, contents, false)
}

fn all() -> Contents {
    Contents { metrics: Selection::All, jobs_max: 10, ..Contents::default() }
}

#[test]
fn the_page_names_units_and_leaves_out_what_is_missing() {
    expect![[r##"
        # HELP met_build_info the program that wrote this page
        # TYPE met_build_info gauge
        met_build_info{version="0.1.0"} 1
        # HELP met_zone_energy_joules_total energy \\ "used"
        # TYPE met_zone_energy_joules_total counter
        met_zone_energy_joules_total{zone="package-0",kind="cpu"} 1.5
        met_zone_energy_joules_total{zone="dram"} 0.000002
        # HELP met_zone_clock_hertz clock now
        # TYPE met_zone_clock_hertz gauge
        met_zone_clock_hertz{zone="dram"} 7
        # HELP met_job_cpu_seconds_total CPU time, user and system, of every process of the job
        # TYPE met_job_cpu_seconds_total counter
        met_job_cpu_seconds_total{cluster="c1",manager="slurm",id="1"} 1.5
        met_job_cpu_seconds_total{cluster="c1",manager="slurm",id="2"} 0.25
        met_job_cpu_seconds_total{cluster="c1",manager="slurm",id="3"} 0.000000001
        # HELP met_job_memory_needed_bytes memory that cannot be dropped: anonymous, shared and huge pages
        # TYPE met_job_memory_needed_bytes gauge
        met_job_memory_needed_bytes{cluster="c1",manager="slurm",id="1"} 4096
        met_job_memory_needed_bytes{cluster="c1",manager="slurm",id="3"} 1
        # HELP met_job_allocated_cpus CPUs that the job was given, in all
        # TYPE met_job_allocated_cpus gauge
        met_job_allocated_cpus{cluster="c1",manager="slurm",id="1"} 8
        # HELP met_jobs_not_shown jobs without series of their own, by the key of `http` that excludes them; met_jobs_not_shown_* are their sums
        # TYPE met_jobs_not_shown gauge
        met_jobs_not_shown{by="jobs_max"} 0
        # HELP met_job_info properties of a job; join them by cluster, manager and id; owner labels require authentication
        # TYPE met_job_info gauge
        met_job_info{cluster="c1",manager="slurm",id="1",shown_id="1",state="running"} 1
        met_job_info{cluster="c1",manager="slurm",id="2",shown_id="2",state="running"} 1
        met_job_info{cluster="c1",manager="slurm",id="3",shown_id="3",state="running"} 1
        # HELP met_job_gpu_info which job holds which GPU: uuid as in met_gpu metrics, gpu, UUID and GPU_I_ID as DCGM exporter names it
        # TYPE met_job_gpu_info gauge
        met_job_gpu_info{cluster="c1",manager="slurm",id="1",gpu="0",UUID="GPU-1",index="0",uuid="GPU-1"} 1
        met_job_gpu_info{cluster="c1",manager="slurm",id="2",gpu="0",UUID="GPU-1",GPU_I_ID="5",index="0.1",uuid="MIG-a"} 1
    "##]].assert_eq(&text(Format::Text, &all()));
}

#[test]
fn open_metrics_differs_in_heads_and_its_end() {
    let text = text(Format::OpenMetrics, &all());
    let head = "# HELP met_zone_energy_joules energy \\\\ \\\"used\\\"\n# TYPE met_zone_energy_joules counter\n# UNIT met_zone_energy_joules joules\nmet_zone_energy_joules_total{";
    assert!(text.contains(head), "{text}");
    assert!(text.contains("# TYPE met_job info\nmet_job_info{"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn people_are_named_only_where_they_may_be() {
    let reported = page_of(&snapshot(), Format::Text, &all(), true);
    assert!(
        reported.contains(
            r#"met_job_info{cluster="c1",manager="slurm",id="1",shown_id="1",state="running",name="a \"name\"\n",user="ann"} 1"#
        ),
        "{reported}"
    );
    let reported = text(Format::Text, &all());
    for word in ["user=", "name=", "account=", "\"ann\""] {
        assert!(!reported.contains(word), "{word}: {reported}");
    }
}

#[test]
fn a_selection_has_what_its_columns_say_and_no_digit_beyond_thousandths() {
    let names = |metrics: Selection| {
        let mut snapshot = snapshot();
        snapshot.jobs.iter_mut().for_each(|job| job.cells.fill(1_234_567_891));
        let text = page_of(&snapshot, Format::Text, &Contents { metrics, ..all() }, false);
        let cpu = text.lines().find(|line| line.starts_with("met_job_cpu_seconds_total{")).unwrap();
        let value = cpu.rsplit(' ').next().unwrap().to_owned();
        let of_job = text.lines().filter(|line| line.starts_with("met_job_") && line.contains("id=\"1\""));
        (of_job.count(), value, text)
    };
    let (of_all, exact, all) = names(Selection::All);
    let (of_usual, cut, usual) = names(Selection::Usual);
    let (of_minimal, _, minimal) = names(Selection::Minimal);
    assert_eq!((exact.as_str(), cut.as_str()), ("1.234567891", "1.234"));
    assert!(of_all > 3 * of_usual && of_usual > 2 * of_minimal, "{of_all} {of_usual} {of_minimal}");
    for (name, in_usual, in_minimal) in [
        ("met_job_cpu_seconds_total{", true, true),
        ("met_job_info{", true, true),
        ("met_job_memory_needed_peak_bytes{", true, false),
        ("met_job_allocated_cpus{", true, false),
        ("met_job_cpu_user_seconds_total{", false, false),
        ("met_zone_energy_joules_total{", false, false),
    ] {
        assert!(all.contains(name), "{name}");
        assert_eq!((usual.contains(name), minimal.contains(name)), (in_usual, in_minimal), "{name}");
    }
}

#[test]
fn a_job_without_gpus_and_network_namespace_has_about_twelve_usual_series() {
    let rare = |name: &str| name.starts_with("gpu") || name.starts_with("network");
    let usual = |table: &Table| {
        let columns =
            table.columns.iter().filter(|column| Selection::Usual.has(column) && !rare(column.name));
        columns.count()
    };
    // With met_job_info.
    let series = usual(&JOB) + usual(&DETAIL) + usual(&ALLOCATED) + 1;
    assert!((10..=13).contains(&series), "{series}");
}

/// Jobs of a resource manager with figures as long as real ones are.
fn busy_jobs(count: u64) -> Vec<Job> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: i64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) as i64 % below
    };
    let mut job = |number: u64| {
        let mut one = job_of(&(4_000_000 + number).to_string(), 0, 0, Person::default());
        let given = Resources { cpus: Some(16), memory_bytes: Some(64 << 30), ..Resources::default() };
        let about = Arc::make_mut(&mut one.about);
        about.key.cluster = None;
        about.shown_id.clone_from(&about.key.id);
        (about.partition, about.allocated) = ("compute".to_owned(), allocated(&given));
        about.person = Person {
            name: format!("simulation-{}", number % 100),
            user: format!("user{}", number % 40),
            account: format!("project{}", number % 12),
        };
        for (cell, column) in one.cells.iter_mut().zip(JOB.columns) {
            *cell = match (column.unit, column.kind) {
                _ if column.name.starts_with("gpu") || column.name.starts_with("network") => MISSING,
                // A third of the jobs reads nothing, or writes nothing.
                (Unit::Bytes, Kind::Counter) if random(3) == 0 => 0,
                (Unit::Bytes, _) => random(1 << 24) * 4096,
                (Unit::Count, Kind::Counter) => 0,
                (Unit::Count, _) => 1 + random(60),
                (Unit::Grams, _) => random(1 << 32),
                _ => random(1 << 48),
            };
        }
        one
    };
    (0..count).map(&mut job).collect()
}

#[test]
fn the_default_page_of_500_jobs_is_small() {
    let snapshot = Snapshot { tables: Vec::new(), jobs: busy_jobs(500) };
    let packed = |metrics: Selection| {
        let contents = Contents { metrics, jobs_max: 500, ..Contents::default() };
        let page = page_of(&snapshot, Format::Text, &contents, false);
        (page.lines().filter(|line| line.starts_with("met_")).count(), gzip(page.as_bytes()).unwrap().len())
    };
    let (series, bytes) = packed(Selection::default());
    // The machine itself takes 3 kB.
    assert!(bytes <= 37_000, "{bytes} bytes, {series} series");
    assert!((5_000..=6_600).contains(&series), "{series}");
    let (_, all) = packed(Selection::All);
    assert!(all > 3 * bytes, "{all}");
}

#[test]
fn jobs_are_left_out_by_manager_and_age_and_said_so() {
    let mut snapshot = snapshot();
    for (job, wall_s) in snapshot.jobs.iter_mut().zip([5, 50, 500]) {
        job.cells[met_core::job_table::WALL] = wall_s * 1_000_000_000;
    }
    let shown = |contents: Contents| {
        let text = page_of(&snapshot, Format::Text, &contents, false);
        let not_shown: Vec<String> =
            text.lines().filter(|line| line.starts_with("met_jobs_not_shown{")).map(str::to_owned).collect();
        (text.matches("met_job_cpu_seconds_total{").count(), not_shown)
    };
    let (jobs, not_shown) = shown(Contents { after_ns: 60_000_000_000, ..all() });
    assert_eq!(jobs, 1);
    assert_eq!(
        not_shown,
        ["met_jobs_not_shown{by=\"jobs_max\"} 0", "met_jobs_not_shown{by=\"jobs_after\"} 2"]
    );
    let (jobs, not_shown) = shown(Contents { managers: vec!["oar".into(), "local".into()], ..all() });
    assert_eq!(jobs, 0);
    assert_eq!(not_shown[1], "met_jobs_not_shown{by=\"jobs_managers\"} 3");
    let (jobs, not_shown) = shown(Contents { managers: vec!["slurm".into()], jobs_max: 2, ..all() });
    assert_eq!((jobs, not_shown[0].as_str()), (2, "met_jobs_not_shown{by=\"jobs_max\"} 1"));
}

#[test]
fn jobs_beyond_the_cap_are_added_up_and_counted() {
    let text = text(Format::Text, &Contents { jobs_max: 1, ..all() });
    assert!(text.contains("\nmet_jobs_not_shown{by=\"jobs_max\"} 2\n"), "{text}");
    assert!(
        text.contains(
            "# TYPE met_jobs_not_shown_cpu_seconds gauge\nmet_jobs_not_shown_cpu_seconds 0.250000001\n"
        ),
        "{text}"
    );
    assert_eq!(text.matches("met_job_cpu_seconds_total{").count(), 1);
}

#[test]
fn of_two_runs_of_one_job_the_newest_is_shown() {
    let again = Snapshot { jobs: vec![job("1", 5_000_000_000, 1), job("1", 7, 1)], ..Snapshot::default() };
    let text = page_of(&again, Format::Text, &all(), false);
    assert_eq!(text.matches("met_job_cpu_seconds_total{").count(), 1);
    assert!(text.contains(r#"id="1"} 5"#));
}

#[test]
fn a_scraper_gets_what_it_prefers() {
    for (accept, format) in [
        ("", Format::Text),
        ("*/*", Format::Text),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", Format::OpenMetrics),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
            Format::OpenMetrics,
        ),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.3", Format::Text),
        ("application/openmetrics-text;q=0", Format::Text),
        ("application/openmetrics-text;q=x", Format::Text),
    ] {
        assert_eq!(Format::accepted(accept), format, "{accept}");
    }
    assert!(accepts_gzip("deflate, gzip;q=0.5") && !accepts_gzip("gzip;q=0") && !accepts_gzip("br"));
}

#[test]
fn a_compressed_page_is_the_same_page() {
    let page = text(Format::Text, &all());
    let mut read = String::new();
    flate2::read::GzDecoder::new(&gzip(page.as_bytes()).unwrap()[..]).read_to_string(&mut read).unwrap();
    assert_eq!(read, page);
}

proptest! {
    /// Whatever a job is called, a line of the page is one sample or one comment.
    #[test]
    fn no_name_breaks_out_of_its_label(name in ".{0,40}", user in "[\\x00-\\x7f]{0,20}") {
        let mut snapshot = snapshot();
        snapshot.jobs.push(job_of("4", 1, 1, Person { name, user, account: String::new() }));
        let text = page_of(&snapshot, Format::Text, &all(), true);
        for line in text.split('\n').filter(|line| !line.is_empty()) {
            prop_assert!(line.starts_with("# ") || line.starts_with("met_"), "{line:?}");
        }
    }

    #[test]
    fn any_header_is_read(accept in ".{0,60}") {
        let _ = (Format::accepted(&accept), accepts_gzip(&accept));
    }
}
