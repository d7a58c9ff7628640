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
    Job { about: Arc::new(about), cells, details: Vec::new(), events: Vec::new(), cards: Vec::new() }
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
    let part = HeldCard {
        index: "0.1".into(),
        uuid: "MIG-a".into(),
        parent: "GPU-1".into(),
        mig: "5/0".into(),
        ..HeldCard::default()
    };
    jobs[0].cards.push(HeldCard { index: "0".into(), uuid: "GPU-1".into(), ..HeldCard::default() });
    jobs[1].cards.push(part);
    Snapshot { tables: vec![rows], jobs }
}

fn text(format: Format, disclosure: Disclosure) -> String {
    let mut out = Vec::new();
    page(&snapshot(), format, disclosure, &mut out);
    String::from_utf8(out).unwrap()
}

const STRANGER: Disclosure = Disclosure { people: false, jobs_max: 10 };

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
        # HELP met_jobs_not_shown jobs without series of their own, because there are too many; met_jobs_not_shown_* are their sums
        # TYPE met_jobs_not_shown gauge
        met_jobs_not_shown 0
        # HELP met_job_info properties of a job; join them by cluster, manager and id; owner labels require authentication
        # TYPE met_job_info gauge
        met_job_info{cluster="c1",manager="slurm",id="1",shown_id="1",state="running"} 1
        met_job_info{cluster="c1",manager="slurm",id="2",shown_id="2",state="running"} 1
        met_job_info{cluster="c1",manager="slurm",id="3",shown_id="3",state="running"} 1
        # HELP met_job_gpu_info which job holds which GPU: uuid as in met_gpu metrics, gpu, UUID and GPU_I_ID as DCGM exporter names it
        # TYPE met_job_gpu_info gauge
        met_job_gpu_info{cluster="c1",manager="slurm",id="1",gpu="0",UUID="GPU-1",index="0",uuid="GPU-1"} 1
        met_job_gpu_info{cluster="c1",manager="slurm",id="2",gpu="0",UUID="GPU-1",GPU_I_ID="5",index="0.1",uuid="MIG-a"} 1
    "##]].assert_eq(&text(Format::Text, STRANGER));
}

#[test]
fn open_metrics_differs_in_heads_and_its_end() {
    let text = text(Format::OpenMetrics, STRANGER);
    let head = "# HELP met_zone_energy_joules energy \\\\ \\\"used\\\"\n# TYPE met_zone_energy_joules counter\n# UNIT met_zone_energy_joules joules\nmet_zone_energy_joules_total{";
    assert!(text.contains(head), "{text}");
    assert!(text.contains("# TYPE met_job info\nmet_job_info{"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn people_are_named_only_where_they_may_be() {
    let told = text(Format::Text, Disclosure { people: true, ..STRANGER });
    assert!(
        told.contains(
            r#"met_job_info{cluster="c1",manager="slurm",id="1",shown_id="1",state="running",name="a \"name\"\n",user="ann"} 1"#
        ),
        "{told}"
    );
    let told = text(Format::Text, STRANGER);
    for word in ["user=", "name=", "account=", "\"ann\""] {
        assert!(!told.contains(word), "{word}: {told}");
    }
}

#[test]
fn jobs_beyond_the_cap_are_added_up_and_counted() {
    let text = text(Format::Text, Disclosure { jobs_max: 1, ..STRANGER });
    assert!(text.contains("\nmet_jobs_not_shown 2\n"), "{text}");
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
    let mut out = Vec::new();
    page(&again, Format::Text, STRANGER, &mut out);
    let text = String::from_utf8(out).unwrap();
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
    let page = text(Format::Text, STRANGER);
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
        let mut out = Vec::new();
        page(&snapshot, Format::Text, Disclosure { people: true, jobs_max: 10 }, &mut out);
        let text = String::from_utf8(out).unwrap();
        for line in text.split('\n').filter(|line| !line.is_empty()) {
            prop_assert!(line.starts_with("# ") || line.starts_with("met_"), "{line:?}");
        }
    }

    #[test]
    fn any_header_is_read(accept in ".{0,60}") {
        let _ = (Format::accepted(&accept), accepts_gzip(&accept));
    }
}
