use expect_test::expect;
use met_core::job::JobKey;
use met_core::job_table::{CPU, MEMORY_NEEDED};
use met_core::table::{MICRO, ONE};
use met_core::{Unit, columns};
use proptest::prelude::*;

use super::*;
use crate::snapshot::{HeldCard, JobInfo, Rows};

columns! { COLUMNS:
    ENERGY = Column::counter("energy", Unit::Joules, MICRO, "energy \\ used"),
    CLOCK = Column::gauge("clock", Unit::Hertz, ONE, "clock now"),
}
static ZONE: Table = Table { name: "zone", subject: "", labels: &["zone", "kind"], columns: COLUMNS };

fn job(id: &str, cpu: i64, memory: i64) -> Job {
    let mut cells = vec![MISSING; JOB.columns.len()];
    (cells[CPU], cells[MEMORY_NEEDED]) = (cpu, memory);
    let info = JobInfo {
        shown_id: id.into(),
        name: "a \"name\"\n".into(),
        user: "ann".into(),
        account: String::new(),
        state: "running",
    };
    let key = JobKey { cluster: None, manager: "slurm".into(), id: id.into(), incarnation: 1 };
    Job { key, info, cells, cards: Vec::new() }
}

fn snapshot() -> Snapshot {
    let mut rows = Rows::new(&ZONE);
    rows.push(&["package-0".into(), "cpu".into()], &[1_500_000, MISSING]);
    rows.push(&["dram".into()], &[2, 7]);
    let mut jobs = vec![job("1", 1_500_000_000, 4096), job("2", 250_000_000, MISSING), job("3", 1, 1)];
    jobs[0].cards.push(HeldCard { index: "0".into(), uuid: "GPU-1".into(), ..HeldCard::default() });
    Snapshot { node: "n1".into(), time_ms: 0, tables: vec![rows], jobs }
}

fn text(format: Format, disclosure: Disclosure) -> String {
    let mut out = Vec::new();
    page(snapshot(), format, disclosure, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn the_page_names_units_and_leaves_out_what_is_missing() {
    expect![[r#"
        # HELP met_build_info the program that wrote this, and where it runs
        # TYPE met_build_info gauge
        met_build_info{version="0.1.0",node="n1"} 1
        # HELP met_zone_energy_joules_total energy \\ used
        # TYPE met_zone_energy_joules_total counter
        met_zone_energy_joules_total{zone="package-0",kind="cpu"} 1.5
        met_zone_energy_joules_total{zone="dram"} 0.000002
        # HELP met_zone_clock_hertz clock now
        # TYPE met_zone_clock_hertz gauge
        met_zone_clock_hertz{zone="dram"} 7
        # HELP met_job_cpu_seconds_total CPU time, user and system, of every process of the job
        # TYPE met_job_cpu_seconds_total counter
        met_job_cpu_seconds_total{manager="slurm",id="1"} 1.5
        met_job_cpu_seconds_total{manager="slurm",id="2"} 0.25
        met_job_cpu_seconds_total{manager="slurm",id="3"} 0.000000001
        # HELP met_job_memory_needed_bytes memory that cannot be dropped: anonymous and shared
        # TYPE met_job_memory_needed_bytes gauge
        met_job_memory_needed_bytes{manager="slurm",id="1"} 4096
        met_job_memory_needed_bytes{manager="slurm",id="3"} 1
        # HELP met_job_gpu_info which job holds which card; index and uuid as in the series of other exporters
        # TYPE met_job_gpu_info gauge
        met_job_gpu_info{manager="slurm",id="1",gpu="0",UUID="GPU-1"} 1
    "#]]
    .assert_eq(&text(Format::Text, Disclosure { people: false, jobs_max: 10 }));
}

#[test]
fn open_metrics_differs_in_heads_and_its_end() {
    let text = text(Format::OpenMetrics, Disclosure { people: false, jobs_max: 10 });
    assert!(text.contains("# TYPE met_zone_energy_joules counter\n# UNIT met_zone_energy_joules joules\n"));
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn people_are_named_only_where_they_may_be() {
    let told = text(Format::Text, Disclosure { people: true, jobs_max: 10 });
    assert!(told.contains(
        r#"met_job_info{manager="slurm",id="1",shown_id="1",name="a \"name\"\n",user="ann",state="running"} 1"#
    ));
    assert!(!text(Format::Text, Disclosure { people: false, jobs_max: 10 }).contains("user="));
}

#[test]
fn jobs_beyond_the_cap_are_added_up_and_counted() {
    let text = text(Format::Text, Disclosure { people: true, jobs_max: 1 });
    assert!(text.contains("met_jobs_not_shown 2\n"), "{text}");
    assert!(text.contains("met_jobs_not_shown_cpu_seconds_total 0.250000001\n"), "{text}");
    assert_eq!(text.matches("met_job_cpu_seconds_total{").count(), 1);
}

proptest! {
    /// Whatever a job is called, a line of the page is one sample or one comment.
    #[test]
    fn no_name_breaks_out_of_its_label(name in ".{0,40}", user in "[\\x00-\\x7f]{0,20}") {
        let mut snapshot = snapshot();
        (snapshot.jobs[0].info.name, snapshot.jobs[0].info.user) = (name, user);
        let mut out = Vec::new();
        page(snapshot, Format::Text, Disclosure { people: true, jobs_max: 10 }, &mut out);
        let text = String::from_utf8(out).unwrap();
        for line in text.split('\n').filter(|line| !line.is_empty()) {
            prop_assert!(line.starts_with("# ") || line.starts_with("met_"), "{line:?}");
        }
    }
}
