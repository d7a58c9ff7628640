use std::io::Cursor;

use anyhow::Result;
use met_core::job::{EventCount, QualityKind, Record, State};
use met_core::series::{Series, Thinner};
use met_core::{JOB, MISSING, event, gpu, job_table, sample};
use met_insight::answers::EVIDENCE_MAX;
use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// Jobs of all kinds, one with every kind of series, one of them thinned.
fn jobs() -> Vec<ExportedJob> {
    let mut first = ExportedJob::new(&sample::full(1, "tr\"ain,\n"), Some(8), sample::NOW_NS);
    let series = sample::series();
    let mut thinner = Thinner::new(&JOB, 60_000);
    thinner.push(&series);
    first.add("", thinner.finish());
    first.record.events = vec![EventCount {
        name: "cycles".to_owned(),
        count: 7,
        counted: 0.75,
        kind: QualityKind::Measured,
        source: "perf".to_owned(),
    }];
    let mut events = Series::new(&event::TABLE);
    for second in 0..3 {
        events.push(sample::START_NS / 1_000_000 + second * 1000, &[second << 50, MISSING, second]);
    }
    first.add("cycles", events);
    let mut gpu = Series::new(&gpu::device::TABLE);
    let mut cells = vec![MISSING; gpu.columns.len()];
    (cells[gpu::device::POWER], cells[gpu::device::CLOCK]) = (71_234, 1_410);
    gpu.push(1, &cells);
    first.add("GPU-1", gpu);
    let mut second = ExportedJob::new(&sample::scheduled(), None, sample::NOW_NS);
    second.add("", series);
    let mut runs: Vec<Record> = (4..50).map(|id| sample::full(id, "train")).collect();
    second.record.state = State::Finished;
    for run in &mut runs {
        (run.state, run.allocated) = (State::Finished, second.record.allocated.clone());
    }
    second.add_earlier(&runs.iter().collect::<Vec<_>>());
    assert!((20..=EVIDENCE_MAX).contains(&second.earlier.len()), "{}", second.earlier.len());
    let mut running = sample::bare(3, "sleep");
    running.state = State::Running;
    second.add_beside(Some(Beside { gpus: Some(8), pressure: Some(1.0 / 3.0), cores: Some(61.7) }));
    first.add_beside(Some(Beside { cores: Some(0.0), ..Beside::default() }));
    vec![first, second, ExportedJob::new(&running, Some(2), sample::NOW_NS)]
}

fn written(format: Format, rows: Rows, jobs: &[ExportedJob]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut to = writer(format, rows, &mut bytes).unwrap();
    jobs.iter().try_for_each(|job| to.job(job)).unwrap();
    to.finish().unwrap();
    bytes
}

fn read_back(format: Format, bytes: &[u8]) -> Result<Vec<ExportedJob>> {
    let mut jobs = Vec::new();
    let mut each = |job| {
        jobs.push(job);
        Ok(())
    };
    match format {
        Format::Jsonl => jsonl::read(Cursor::new(bytes), &mut each)?,
        _ => hdf5::read_bytes(bytes.to_vec(), &mut each)?,
    }
    Ok(jobs)
}

/// All that is in it, as text.
fn text(jobs: &[ExportedJob]) -> Vec<String> {
    let series = |job: &ExportedJob| {
        let one = |PartSeries { part, series }: &PartSeries| {
            format!(
                "{part} {} {:?} {:?} {:?}",
                series.table.name, series.times_ms, series.columns, series.spreads
            )
        };
        job.series.iter().map(one).collect::<Vec<_>>()
    };
    let one = |job: &ExportedJob| {
        let ExportedJob { record, cpus, exported_ns, earlier, beside, .. } = job;
        format!("{record:?} {cpus:?} {exported_ns} {:?} {earlier:?} {beside:?}", series(job))
    };
    jobs.iter().map(one).collect()
}

#[test]
fn jobs_come_back_from_both_formats_as_they_were() {
    let jobs = jobs();
    assert!(jobs[0].series[0].series.spreads.is_some(), "nothing was thinned");
    for format in [Format::Jsonl, Format::Hdf5] {
        let bytes = written(format, Rows::Jobs, &jobs);
        let back = read_back(format, &bytes).unwrap();
        assert_eq!(text(&back), text(&jobs), "{format:?}");
        // And so does what was read.
        assert_eq!(written(format, Rows::Jobs, &back), bytes, "{format:?}");
    }
}

#[test]
fn nothing_leaves_that_means_something_only_on_the_machine_of_the_job() {
    let record = sample::bare(1, "train");
    assert!(record.local.as_ref().is_some_and(|local| local.main.is_some()));
    let job = ExportedJob::new(&record, None, sample::NOW_NS);
    let line = String::from_utf8(written(Format::Jsonl, Rows::Jobs, &[job])).unwrap();
    assert!(!line.contains("3113") && !line.contains("/home/alice"), "{line}");
}

#[test]
fn what_a_file_says_about_this_machine_is_dropped() {
    let record = sample::bare(1, "train");
    let hostile = ExportedJob::of(record, None, sample::NOW_NS);
    for format in [Format::Jsonl, Format::Hdf5] {
        let back = read_back(format, &written(format, Rows::Jobs, std::slice::from_ref(&hostile))).unwrap();
        let local = back[0].record.local.as_ref().unwrap();
        assert_eq!((local.main, local.cwd.as_os_str().is_empty()), (None, true));
    }
}

#[test]
fn a_file_has_the_findings_that_need_neighbours() {
    let mut record =
        Record { state: State::Finished, nodes: vec!["n1".to_owned()], ..sample::bare(1, "hog") };
    let hours_10_ns = 36_000_000_000_000;
    (record.start_ns, record.end_ns) = (Some(hours_10_ns), Some(2 * hours_10_ns));
    record.totals.set(job_table::CPU, 13 * hours_10_ns, QualityKind::Measured, "cgroup");
    let mut job = ExportedJob::new(&record, Some(16), sample::NOW_NS);
    let found = |job: &ExportedJob| {
        let machine = Machine { cpus: job.cpus };
        let known = answers::Known::read(Duration::from_secs(1), &job.record, machine, &mut |table, part| {
            anyhow::Ok(job.series(table, part))
        });
        known.unwrap().beside(job.beside).answers(&job.record, &job.earlier, job.exported_ns).findings
    };
    assert_eq!(found(&job), []);
    job.add_beside(Some(Beside { gpus: None, pressure: Some(0.5), cores: Some(2.5) }));
    let on_its_machine = found(&job);
    assert_eq!(on_its_machine.iter().map(|one| one.rule.as_str()).collect::<Vec<_>>(), ["crowds_others"]);
    for format in [Format::Jsonl, Format::Hdf5] {
        let back = read_back(format, &written(format, Rows::Jobs, std::slice::from_ref(&job))).unwrap();
        assert_eq!(found(&back[0]), on_its_machine, "{format:?}");
    }
}

#[test]
fn neighbours_that_no_node_can_have_are_not_known() {
    let mut hostile = ExportedJob::of(sample::bare(1, "train"), None, sample::NOW_NS);
    let read = |hostile: &ExportedJob, format: Format| {
        read_back(format, &written(format, Rows::Jobs, std::slice::from_ref(hostile))).unwrap()[0].beside
    };
    for format in [Format::Jsonl, Format::Hdf5] {
        hostile.beside = Some(Beside { gpus: Some(u32::MAX), pressure: Some(-0.1), cores: Some(1e300) });
        assert_eq!(read(&hostile, format), None, "{format:?}");
        hostile.beside = Some(Beside { gpus: Some(4), pressure: Some(f64::INFINITY), cores: Some(f64::NAN) });
        assert_eq!(read(&hostile, format), Some(Beside { gpus: Some(4), ..Beside::default() }), "{format:?}");
    }
    let line = String::from_utf8(written(Format::Jsonl, Rows::Jobs, &[hostile])).unwrap();
    for other in [r#"[1,2]"#, r#""x""#, r#"{"gpus":1.5,"pressure":"1","cores":[0]}"#, "null"] {
        let line = line.replace(r#"{"gpus":4,"pressure":null,"cores":null}"#, other);
        assert!(line.contains(&format!("\"beside\":{other}")), "{line}");
        assert_eq!(read_back(Format::Jsonl, line.as_bytes()).unwrap()[0].beside, None, "{other}");
    }
}

#[test]
fn an_earlier_run_takes_little_of_a_file() {
    let bytes = written(Format::Jsonl, Rows::Jobs, &jobs());
    let lines = std::str::from_utf8(&bytes).unwrap().lines();
    let lines = lines.filter(|line| line.starts_with("{\"type\":\"earlier\""));
    let lengths: Vec<usize> = lines.map(str::len).collect();
    let (before, others) = lengths.split_first().unwrap();
    assert!(*before < 9000, "the run before: {before}");
    assert!(others.iter().all(|&length| length < 2000), "{others:?}");
}

#[test]
fn a_file_has_no_more_earlier_runs_than_answers_read() {
    let mut hostile = ExportedJob::of(sample::bare(1, "train"), None, sample::NOW_NS);
    hostile.earlier = (2..).map(|id| sample::bare(id, "train")).take(EVIDENCE_MAX).collect();
    for format in [Format::Jsonl, Format::Hdf5] {
        let back = read_back(format, &written(format, Rows::Jobs, std::slice::from_ref(&hostile))).unwrap();
        let local = back[0].earlier[0].local.as_ref().unwrap();
        assert_eq!((local.main, local.cwd.as_os_str().is_empty()), (None, true), "{format:?}");
    }
    hostile.earlier.push(sample::bare(99, "train"));
    for format in [Format::Jsonl, Format::Hdf5] {
        let bytes = written(format, Rows::Jobs, std::slice::from_ref(&hostile));
        let refused = format!("{:#}", read_back(format, &bytes).unwrap_err());
        assert!(refused.contains("more than"), "{format:?}: {refused}");
    }
}

#[test]
fn a_csv_has_one_line_for_each_row_and_a_header_without_any() {
    let jobs = jobs();
    let lines = |rows, jobs: &[ExportedJob]| {
        let text = String::from_utf8(written(Format::Csv, rows, jobs)).unwrap();
        text.split_terminator("\r\n").map(str::to_owned).collect::<Vec<_>>()
    };
    let all = lines(Rows::Jobs, &jobs);
    assert_eq!(all.len(), 4);
    assert!(all[0].starts_with("cluster,job,incarnation,manager,") && all[0].contains(",cpu_seconds,"));
    assert!(all[1].contains(",\"tr\"\"ain,\\n\","), "{}", all[1]);
    assert_eq!(lines(Rows::Jobs, &[]), all[..1]);
    let samples = lines(Rows::Samples(&event::TABLE), &jobs);
    assert_eq!(samples[0], "cluster,job,incarnation,part,time,count,enabled_seconds,running_seconds");
    assert_eq!(
        (samples.len(), samples[2].contains(",cycles,2026-01-14T16:40:45.000000Z,1125899906842624,,")),
        (4, true)
    );
}

#[test]
fn a_parquet_file_is_whole_with_and_without_rows() {
    for rows in Rows::all() {
        for jobs in [jobs(), Vec::new()] {
            let bytes = written(Format::Parquet, rows, &jobs);
            assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"), "{}", rows.name());
        }
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_without_its_control_characters() {
    let text = String::from_utf8(written(Format::Jsonl, Rows::Jobs, &jobs())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jsonl");
    let state = "\"state\":\"";
    std::fs::write(&path, text.replace(state, &format!("{state}\\u001b]0;x\\u0007\\nall is well"))).unwrap();
    let said = format!("{:#}", crate::read(&path, &mut |_| Ok(())).unwrap_err());
    assert!(said.contains("all is well") && !said.contains(char::is_control), "{said:?}");
    std::fs::write(&path, text).unwrap();
    let refused = crate::read(&path, &mut |_| anyhow::bail!("no more\nof it")).unwrap_err();
    assert!(format!("{refused:#}").ends_with("no more\nof it"), "what the caller says stays: {refused:#}");
}

#[test]
fn what_cannot_be_right_is_refused_with_its_line() {
    let bytes = written(Format::Jsonl, Rows::Jobs, &jobs());
    let text = String::from_utf8(bytes).unwrap();
    let said = |text: &str| format!("{:#}", read_back(Format::Jsonl, text.as_bytes()).unwrap_err());
    assert!(said("").contains("no job in it"));
    assert!(said("{}\n").contains("line 1: the line has no \"type\""));
    assert!(said("[1]\n").contains("line 1: not a JSON object"));
    assert!(said(&"[".repeat(100_000)).contains("line 1: not a JSON object"));
    assert!(said(&" ".repeat(5 << 20)).contains("line 1: longer than 4 MiB"));
    let later = text.replacen("\"start_ns\":1768408844000000000", "\"start_ns\":9223372036854775807", 1);
    assert!(
        said(&later).contains("line 1: start_ns: 9223372036854775807 is out of range"),
        "{}",
        said(&later)
    );
    let sample = text.lines().nth(1).unwrap();
    assert!(said(sample).contains("line 1: a line of a job before the first job"));
    let twice = format!("{}\n{sample}\n{sample}\n", text.lines().next().unwrap());
    assert!(said(&twice).contains("line 3: samples are not in the order of time"));
    let other = twice.replacen(
        "\"type\":\"sample\",\"cluster\":null,\"job\":\"1\"",
        "\"type\":\"sample\",\"job\":\"2\"",
        1,
    );
    assert!(said(&other).contains("line 2: a line of another job"), "{}", said(&other));
    // What a later version adds is passed over.
    let known = format!("{{\"type\":\"note\"}}\n{text}").replacen(
        "\"type\":\"job\"",
        "\"later\":[],\"type\":\"job\"",
        1,
    );
    assert_eq!(read_back(Format::Jsonl, known.as_bytes()).unwrap().len(), 3);
}

#[test]
fn of_a_foreign_record_everything_is_bounded() {
    let mut record: Record = sample::full(1, "train");
    record.name = "x".repeat(1 << 20);
    record.command = vec!["y".repeat(1 << 20)];
    let job = ExportedJob::of(record, None, sample::NOW_NS);
    let bytes = written(Format::Hdf5, Rows::Jobs, &[job]);
    let back = read_back(Format::Hdf5, &bytes).unwrap();
    assert!(back[0].record.name.len() < 2000 && back[0].record.command[0].len() < 5000);
}

#[test]
fn an_imported_job_is_kept_beside_all_others_and_removed() {
    let state = tempfile::tempdir().unwrap();
    let imported = imported::Imported::of(state.path());
    assert!(imported.numbers().unwrap().is_empty());
    let jobs = jobs();
    let numbers: Vec<u32> = jobs.iter().map(|job| imported.add(job).unwrap()).collect();
    assert_eq!((&numbers, imported.numbers().unwrap()), (&vec![1, 2, 3], vec![1, 2, 3]));
    assert_eq!(text(&[imported.get(2).unwrap()]), text(&jobs[1..2]));
    imported.remove(2).unwrap();
    assert!(imported.get(2).unwrap_err().to_string().contains("no job imported:2"));
    assert_eq!(imported.numbers().unwrap(), [1, 3]);
    assert_eq!((imported::number_in("imported:3"), imported::number_in("slurm:3")), (Some(3), None));
}

#[test]
fn a_file_appears_only_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.csv");
    let count = || std::fs::read_dir(folder.path()).unwrap().count();
    let output = OutputFile::create(&path, false).unwrap();
    assert!(!path.exists());
    drop(output);
    assert_eq!(count(), 0, "a file that was not finished stays");
    let output = OutputFile::create(&path, false).unwrap();
    // Another program is faster.
    std::fs::write(&path, "mine").unwrap();
    assert!(format!("{:#}", output.finish().unwrap_err()).contains("--force"));
    assert!(OutputFile::create(&path, false).is_err());
    OutputFile::create(&path, true).unwrap().finish().unwrap();
    assert_eq!((std::fs::read(&path).unwrap().len(), count()), (0, 1));
    assert!(OutputFile::create(folder.path(), true).is_err(), "a folder is replaced");
    assert!(OutputFile::create(std::path::Path::new("/dev/null"), true).is_err(), "a device is replaced");
}

#[test]
fn files_of_earlier_versions_are_read() {
    let fixture = |name: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/exports/");
        std::fs::read(format!("{path}{name}")).unwrap()
    };
    let from_lines = read_back(Format::Jsonl, &fixture("1.jsonl")).unwrap();
    assert_eq!(text(&read_back(Format::Hdf5, &fixture("1.h5")).unwrap()), text(&from_lines));
    let [first, second, third] = &from_lines[..] else { panic!("{}", from_lines.len()) };
    assert_eq!((first.record.name.as_str(), first.cpus), ("tr\"ain,\n", Some(8)));
    assert_eq!(first.record.totals.get(met_core::job_table::CPU), Some(256_900_000_000));
    assert_eq!((first.series.len(), first.series[0].series.spreads.is_some()), (3, true));
    assert_eq!(first.series(&event::TABLE, "cycles").columns[0], [0, 1 << 50, 2 << 50]);
    assert_eq!((second.record.label().as_str(), second.series.len()), ("slurm:1234_7", 1));
    assert_eq!((third.record.state, third.exported_ns), (State::Running, sample::NOW_NS));
}

/// The file, changed at some places: bytes of another value, or a piece that is cut out.
fn damaged(
    bytes: &[u8],
    changes: &[(prop::sample::Index, u8)],
    cut: Option<(prop::sample::Index, u16)>,
) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    for (place, value) in changes {
        let at = place.index(damaged.len());
        damaged[at] = *value;
    }
    if let Some((place, length)) = cut {
        let begin = place.index(damaged.len());
        let end = (begin + usize::from(length)).min(damaged.len());
        damaged.drain(begin..end);
    }
    damaged
}

/// What was read is shown, and written again.
fn show(jobs: &[ExportedJob]) -> Vec<Value> {
    written(Format::Jsonl, Rows::Jobs, jobs);
    written(Format::Csv, Rows::Samples(&JOB), jobs);
    jobs.iter().map(|job| met_insight::json::object(&job.record, job.exported_ns)).collect()
}

proptest! {
    #[test]
    fn a_damaged_file_is_refused_or_shown(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of((any::<prop::sample::Index>(), any::<u16>())),
        is_hdf5 in any::<bool>(),
    ) {
        use std::sync::LazyLock;
        static JSONL: LazyLock<Vec<u8>> = LazyLock::new(|| written(Format::Jsonl, Rows::Jobs, &jobs()));
        static HDF5: LazyLock<Vec<u8>> = LazyLock::new(|| written(Format::Hdf5, Rows::Jobs, &jobs()));
        let (format, bytes) = if is_hdf5 { (Format::Hdf5, &HDF5) } else { (Format::Jsonl, &JSONL) };
        if let Ok(jobs) = read_back(format, &damaged(bytes, &changes, cut)) {
            show(&jobs);
        }
    }

    #[test]
    fn bytes_that_are_no_file_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(read_back(Format::Jsonl, &bytes).is_err());
        prop_assert!(read_back(Format::Hdf5, &bytes).is_err());
    }
}
