//! Sums of use over time.

use std::time::{Duration, Instant};

use met_core::job::{QualityKind, Record, State};
use met_core::job_table::{CPU, ENERGY};
use met_core::usage::{By, Every, GroupRef, Usage, UsageAsk, figure};
use met_store::{Queries, Retention, Writer};

use super::{DAY_S, Place, SECOND_NS, finished, running};

fn ask(place: &Place, by: By) -> UsageAsk {
    UsageAsk::new(
        (place.start_s - DAY_S) * SECOND_NS,
        (place.start_s + 20 * DAY_S) * SECOND_NS,
        by,
        Every::Day,
    )
}

fn usage(place: &Place, store: &Queries, by: By) -> Usage {
    met_store::usage(store, &ask(place, by), &|_| true, &[], 0).unwrap().unwrap()
}

fn total(usage: &Usage, figure: usize) -> i128 {
    usage.lines.iter().map(|line| line.sums[figure]).sum()
}

/// In steps as short as they can be.
fn sum_all(writer: &mut Writer) -> usize {
    let mut steps = 1;
    while met_store::sum_usage(writer, Instant::now()).unwrap() {
        steps += 1;
    }
    steps
}

/// Jobs of some hours over several days.
fn job(place: &Place, id: u64) -> Record {
    let mut record = finished(id, place.start_s + id as i64 * 10_000);
    record.end_ns = record.start_ns.map(|start_ns| start_ns + (id as i64 * 3_000 + 1) * SECOND_NS);
    record.user = Some(["ada", "bob", "eve"][id as usize % 3].to_owned());
    record.account = Some(["physics", "maths"][id as usize % 2].to_owned());
    record.allocated.cpus = Some(id as i64);
    record.totals.set(CPU, 1_000_000_007 * id as i64, QualityKind::Measured, "cgroup");
    record.totals.set(ENERGY, 1_000_003 * id as i64, QualityKind::Measured, "rapl");
    record
}

pub fn use_is_summed_step_by_step_and_outlives_its_jobs(place: &Place) {
    let mut writer = place.writer();
    let jobs: Vec<Record> = (1..=30).map(|id| job(place, id)).collect();
    writer.put_all(&jobs[..20]).unwrap();
    let before: Vec<Usage> = By::ALL.iter().map(|&by| usage(place, &writer, by)).collect();
    assert!(sum_all(&mut writer) > 10, "a step ends when its time is over");
    assert!(!met_store::is_usage_behind(&writer).unwrap());
    for (&by, before) in By::ALL.iter().zip(&before) {
        assert_eq!(usage(place, &writer, by), *before, "the same whether it is summed or not: {by:?}");
    }
    writer.put_all(&jobs[20..]).unwrap();
    writer.put(&running(99, place.start_s)).unwrap();
    sum_all(&mut writer);
    let whole = usage(place, &place.reader(), By::User);
    assert_eq!(total(&whole, figure::CPU_NS), (1..=30).map(|id| 1_000_000_007 * id).sum::<i128>());
    assert_eq!(total(&whole, figure::ENERGY_UJ), (1..=30).map(|id| 1_000_003 * id).sum::<i128>());
    assert_eq!(total(&whole, figure::JOBS), 30, "one that runs comes with the request");
    let retention = Retention { max_age_ns: Some(1), max_bytes: None };
    let now_ns = (place.start_s + 30 * DAY_S) * SECOND_NS;
    assert_eq!(writer.retain(&retention, now_ns).unwrap().jobs_removed, 30);
    sum_all(&mut writer);
    assert_eq!(usage(place, &writer, By::User), whole, "sums outlive jobs");
}

pub fn a_job_that_changes_is_not_summed_twice(place: &Place) {
    let mut writer = place.writer();
    let (first, second) = (job(place, 1), job(place, 2));
    writer.put_all(&[first.clone(), second.clone()]).unwrap();
    sum_all(&mut writer);
    let before = usage(place, &writer, By::Account);
    writer.put(&first).unwrap();
    assert_eq!(usage(place, &writer, By::Account), before, "written again");
    sum_all(&mut writer);
    assert_eq!(usage(place, &writer, By::Account), before);
    // Believed over, it lives; and it is over again, in another account.
    writer.put_revived(&[running(3, place.start_s)], &[], &[]).unwrap();
    let mut other = job(place, 2);
    other.key.incarnation += 30;
    other.account = Some("chemistry".to_owned());
    writer.put_instead(&[other.clone()], std::slice::from_ref(&second.key)).unwrap();
    for summed in [false, true] {
        let now = usage(place, &writer, By::Account);
        let names: Vec<Option<&str>> = now.lines.iter().map(|line| line.name.as_deref()).collect();
        assert!(
            names.contains(&Some("chemistry")) && !names.contains(&Some("physics")),
            "{summed}: {names:?}"
        );
        assert_eq!(total(&now, figure::CPU_NS), 1_000_000_007 * 3, "{summed}");
        sum_all(&mut writer);
    }
    let mut lost = job(place, 4);
    lost.state = State::Lost;
    writer.put(&lost).unwrap();
    sum_all(&mut writer);
    let live = Record { state: State::Running, end_ns: None, ..lost.clone() };
    writer.put_revived(&[live], &[], &[lost.key]).unwrap();
    for _ in 0..2 {
        assert_eq!(
            total(&usage(place, &writer, By::User), figure::CPU_NS),
            1_000_000_007 * 3,
            "it lives again"
        );
        met_store::sum_usage(&mut writer, Instant::now() + Duration::from_secs(60)).unwrap();
    }
}

pub fn viewers_get_sums_of_what_they_see(place: &Place) {
    let mut writer = place.writer();
    writer.put_all(&(1..=6).map(|id| job(place, id)).collect::<Vec<_>>()).unwrap();
    for _ in 0..2 {
        let sees = |group: GroupRef<'_>| group.user == Some("bob");
        for by in By::ALL {
            let own = met_store::usage(&writer, &ask(place, by), &sees, &[], 0).unwrap().unwrap();
            assert_eq!(total(&own, figure::CPU_NS), 1_000_000_007 * (1 + 4), "{by:?}");
        }
        let filtered = UsageAsk { account: Some("maths".to_owned()), ..ask(place, By::User) };
        let maths = met_store::usage(&writer, &filtered, &|_| true, &[], 0).unwrap().unwrap();
        assert_eq!(total(&maths, figure::CPU_NS), 1_000_000_007 * (1 + 3 + 5));
        sum_all(&mut writer);
    }
}
