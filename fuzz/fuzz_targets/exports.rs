#![no_main]

use std::time::Duration;

use met_insight::answers::Known;
use met_insight::report::Machine;
use met_web::pages;

// Files of jobs from untrusted senders: what was read is shown as JSON and as a page with report, answers and charts, and imported.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| met_export::fuzz(bytes, |job| {
    let (record, machine, now_ns) = (&job.record, Machine { cpus: job.cpus }, job.exported_ns);
    let mut series = |table, part: &str| anyhow::Ok(job.series(table, part));
    let known = Known::read(Duration::from_secs(1), record, machine, &mut series).unwrap();
    let (charts, span) = pages::charts_of(record, now_ns, series).unwrap();
    let answers = Some(known.answers(record, &job.earlier, now_ns));
    let shown = pages::Shown { record, machine, charts, span, answers };
    assert!(!pages::file(&shown, now_ns, jiff::tz::TimeZone::UTC).into_string().is_empty());
}));
