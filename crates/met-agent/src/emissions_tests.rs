use std::io::Write;
use std::net::TcpListener;

use super::*;

const BY_HAND: &str = "set by hand";

fn config(provider: Provider) -> Emissions {
    Emissions { provider, ..met_config::Config::default().emissions }
}

/// Answers one request in the form of a provider, and hands over what was asked.
fn serve(body: &'static str) -> (String, JoinHandle<String>) {
    serve_all(vec![body.to_owned()])
}

/// The same for several requests.
fn serve_all(bodies: Vec<String>) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/records", listener.local_addr().unwrap());
    let answer = move |body: String| {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        let mut chunk = [0; 1024];
        while !asked.ends_with(b"\r\n\r\n") {
            let length = stream.read(&mut chunk).unwrap();
            asked.extend_from_slice(&chunk[..length]);
        }
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n";
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        String::from_utf8(asked).unwrap()
    };
    let thread = std::thread::spawn(move || bodies.into_iter().map(answer).collect());
    (url, thread)
}

const DAY: &str = "2026-03-01T";

/// The answer of RTE with values of some quarters of hours; one that it does not know is null.
fn rte(values: impl Iterator<Item = (usize, Option<i64>)>) -> String {
    let record = |(quarter, grams): (usize, Option<i64>)| {
        let time = format!("{DAY}{:02}:{:02}:00+00:00", quarter / 4, quarter % 4 * 15);
        serde_json::json!({ "date_heure": time, "taux_co2": grams })
    };
    serde_json::json!({ "results": values.map(record).collect::<Vec<_>>() }).to_string()
}

fn at(time: &str) -> i64 {
    i64::try_from(format!("{DAY}{time}Z").parse::<Timestamp>().unwrap().as_nanosecond()).unwrap()
}

#[test]
fn after_an_outage_a_provider_is_asked_for_what_was_missed() {
    // Known until one o'clock, and now it is ten; the value of two o'clock is unknown.
    let missed = (4..41).map(|quarter| (quarter, (quarter != 8).then_some(quarter as i64)));
    let (url, thread) = serve_all(vec![rte([(40, Some(40))].into_iter()), rte(missed)]);
    let config = Emissions { url: Some(url), ..config(Provider::Rte) };
    let known = ask_on(&config, Some(at("01:00:00"))).unwrap();
    assert_eq!(known.len(), 36, "every quarter but one");
    assert!(known.is_sorted_by_key(|factor| factor.since_ns));
    assert_eq!(known.last().map(|factor| factor.mg_per_kwh), Some(40_000));
    let asked = thread.join().unwrap();
    assert!(asked.contains("date%272026-03-01T01%3A00%3A00Z%27"), "{asked}");
    // Without an outage the newest is enough.
    let (url, thread) = serve_all(vec![rte([(40, Some(40))].into_iter())]);
    let config = Emissions { url: Some(url), ..config };
    assert_eq!(ask_on(&config, Some(at("09:30:00"))).unwrap().len(), 1);
    thread.join().unwrap();
}

#[test]
fn a_long_past_comes_in_pages() {
    let full = || rte((0..PAGE).map(|value| (value % 96, Some(5))));
    let (url, thread) = serve_all(vec![full(), full(), rte([(7, Some(7))].into_iter())]);
    let known = history(&Emissions { url: Some(url), ..config(Provider::Rte) }, at("00:00:00")).unwrap();
    assert_eq!(known.len(), 2 * PAGE + 1);
    let asked = thread.join().unwrap();
    assert!(asked.contains("offset=0") && asked.contains("offset=200"), "{asked}");
    assert_eq!(history(&config(Provider::Country), 0).unwrap(), []);
}

#[test]
fn electricity_maps_has_its_history_elsewhere() {
    let known = parse_electricity_maps_history(
        br#"{"history":[{"carbonIntensity":301,"datetime":"2026-03-01T10:00:00.000Z"},{"datetime":"x"}]}"#,
        "DE",
    );
    let known = known.unwrap();
    assert_eq!((known.len(), known[0].source.to_string().as_str()), (1, "electricity maps DE"));
    assert!(parse_electricity_maps_history(b"{}", "DE").is_err());
}

#[test]
fn rte_is_asked_for_its_newest_value() {
    let (url, thread) =
        serve(r#"{"total_count":1,"results":[{"date_heure":"2026-03-01T10:15:00+00:00","taux_co2":34}]}"#);
    let answer = ask(&Emissions { url: Some(url), ..config(Provider::Rte) }).unwrap();
    assert_eq!((answer.mg_per_kwh, answer.source.to_string().as_str()), (34_000, "rte eco2mix"));
    assert_eq!(answer.since_ns, 1_772_360_100_000_000_000);
    assert!(thread.join().unwrap().contains("order_by=date_heure%20desc"));
}

#[test]
fn electricity_maps_gets_the_token_from_a_private_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "secret\n").unwrap();
    let (url, thread) =
        serve(r#"{"zone":"DE","carbonIntensity":301.5,"datetime":"2026-03-01T10:00:00.000Z"}"#);
    let config = Emissions {
        url: Some(url),
        zone: Some("DE".into()),
        token_file: Some(path.clone()),
        ..config(Provider::ElectricityMaps)
    };
    let set_mode = |mode| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(0o644);
    assert!(format!("{:#}", ask(&config).unwrap_err()).contains("chmod 600"));
    set_mode(0o600);
    assert_eq!(ask(&config).unwrap().mg_per_kwh, 301_500);
    let asked = thread.join().unwrap();
    assert!(asked.contains("auth-token: secret") && asked.contains("zone=DE"), "{asked}");
}

fn factor(since_ns: i64, grams: i64, source: &str) -> Factor {
    Factor { mg_per_kwh: grams * 1000, source: source.into(), since_ns }
}

const HOUR_NS: i64 = 3600 * 1_000_000_000;

#[test]
fn a_provider_that_is_away_is_believed_for_a_while() {
    let config = config(Provider::Rte);
    let factors = series(&config, &[factor(0, 20, "rte eco2mix"), factor(30 * HOUR_NS, 25, "rte eco2mix")]);
    let source = |at_ns: i64| factors.at(at_ns).unwrap().source.to_string();
    assert_eq!(source(HOUR_NS), "rte eco2mix");
    assert!(source(7 * HOUR_NS).starts_with("average of France"), "its word is too old");
    assert!(source(-1).starts_with("average of France"), "before it was asked");
    assert_eq!(source(31 * HOUR_NS), "rte eco2mix");
}

#[test]
fn another_provider_is_believed_for_all_times_but_not_against_what_was_set() {
    let constant = Emissions { grams_per_kwh: Some(300.0), ..config(Provider::Constant) };
    let factors = series(&constant, &[factor(0, 20, "rte eco2mix"), factor(HOUR_NS, 42, BY_HAND)]);
    let grams = |at_ns: i64| factors.at(at_ns).unwrap().mg_per_kwh / 1000;
    assert_eq!((grams(-1), grams(1), grams(100 * HOUR_NS)), (300, 300, 42));
}

/// A job of two hours that used 1 kWh in the first and 3 kWh in the second.
fn job() -> (Record, Series) {
    let mut record = met_core::sample::full(1, "train");
    (record.start_ns, record.end_ns) = (Some(0), Some(2 * HOUR_NS));
    let kwh = emission::UJ_PER_KWH as i64;
    record.totals.set(ENERGY, 4 * kwh, met_core::job::QualityKind::Attributed, "RAPL, by CPU time");
    let mut series = Series::new(&met_core::JOB);
    let mut cells = vec![MISSING; met_core::JOB.columns.len()];
    for (hours, energy) in [(0, 0), (1, kwh)] {
        cells[ENERGY] = energy;
        series.push(hours * HOUR_NS / 1_000_000, &cells);
    }
    (record, series)
}

#[test]
fn corrected_factors_are_applied_to_the_series_of_the_energy() {
    let (mut record, samples) = job();
    let rte = config(Provider::Rte);
    let known_then = [factor(0, 20, "rte eco2mix"), factor(HOUR_NS, 60, "rte eco2mix")];
    assert_eq!(recompute(&mut record, &samples, &series(&rte, &known_then), 1.0), Recomputed::OtherFigure);
    assert_eq!(record.totals.get(EMISSIONS), Some((20 + 3 * 60) * 1_000_000));
    assert_eq!(record.emission.as_ref().unwrap().factor_time_ns, Some(HOUR_NS));
    assert_eq!(record.emission.as_ref().unwrap().pue(), Some(1.0));
    assert_eq!(recompute(&mut record, &samples, &series(&rte, &known_then), 1.0), Recomputed::Same);
    // The same factors under another name: the record gets the name, the figure stays.
    let renamed: Vec<Factor> =
        known_then.iter().map(|factor| Factor { source: FactorSource::ByHand, ..factor.clone() }).collect();
    assert_eq!(recompute(&mut record, &samples, &series(&rte, &renamed), 1.0), Recomputed::OtherSource);
    assert_eq!(record.emission.as_ref().unwrap().factor_source, BY_HAND);
    let corrected = [factor(0, 20, "rte eco2mix"), factor(HOUR_NS, 50, "rte eco2mix")];
    assert_eq!(recompute(&mut record, &samples, &series(&rte, &corrected), 1.5), Recomputed::OtherFigure);
    assert_eq!(record.totals.get(EMISSIONS), Some((20 + 3 * 50) * 1_500_000));
}

#[test]
fn a_correction_is_kept_for_its_time_and_reaches_the_store() {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    let (record, samples) = job();
    writer.append_series(&record.key, &samples).unwrap();
    writer.put(&record).unwrap();
    let config = Config {
        emissions: Emissions { grams_per_kwh: Some(100.0), ..config(Provider::Constant) },
        ..Config::default()
    };
    let all = Correction::Recompute { since_ns: None };
    assert_eq!(correct(&all, &mut writer, &config).unwrap().jobs, 1);
    let emitted = |writer: &Writer| writer.get(&record.key).unwrap().unwrap().totals.get(EMISSIONS);
    assert_eq!(emitted(&writer), Some(400_000_000));
    let set = Correction::Set { mg_per_kwh: 10_000, from_ns: 0, to_ns: Some(HOUR_NS) };
    correct(&set, &mut writer, &config).unwrap();
    assert_eq!(correct(&all, &mut writer, &config).unwrap().jobs, 1);
    assert_eq!(emitted(&writer), Some(310_000_000));
    assert_eq!(correct(&all, &mut writer, &config).unwrap().jobs, 0);
}

/// A store with jobs of two hours, and what they emitted as it was computed when they ran.
fn store_of(count: u32, used: Option<&Factor>, pue: f64) -> (tempfile::TempDir, Writer, Vec<Record>) {
    let state = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(state.path()).unwrap();
    let mut records = Vec::new();
    for number in 1..=count {
        let (template, samples) = job();
        let key = met_core::job::JobKey { id: number.to_string(), ..template.key.clone() };
        let mut record = Record { key, ..template };
        record.emission = used.map(|used| node_energy::emission_of(used, pue));
        let factors = series(&config(Provider::Country), &[]);
        let mut factors_then = factors.clone();
        used.into_iter().for_each(|used| factors_then.put(used.clone()));
        recompute(&mut record, &samples, &factors_then, pue);
        writer.append_series(&record.key, &samples).unwrap();
        writer.put(&record).unwrap();
        records.push(record);
    }
    (state, writer, records)
}

#[test]
fn what_is_configured_today_does_not_change_the_past() {
    let then = Factor { since_ns: i64::MIN, ..factor(0, 100, "configured") };
    let (_state, mut writer, records) = store_of(1, Some(&then), 1.5);
    assert_eq!(records[0].totals.get(EMISSIONS), Some(600_000_000));
    let mut today = Config {
        emissions: Emissions { grams_per_kwh: Some(50.0), ..config(Provider::Constant) },
        ..Config::default()
    };
    today.energy.pue = 1.1;
    let all = Correction::Recompute { since_ns: None };
    assert_eq!(correct(&all, &mut writer, &today).unwrap().jobs, 0, "another constant and another building");
    // A correction is for its time, in the building as it was.
    let set = Correction::Set { mg_per_kwh: 10_000, from_ns: 0, to_ns: Some(HOUR_NS) };
    correct(&set, &mut writer, &today).unwrap();
    assert_eq!(correct(&all, &mut writer, &today).unwrap().jobs, 1);
    let record = writer.get(&records[0].key).unwrap().unwrap();
    assert_eq!(record.totals.get(EMISSIONS), Some((10 + 3 * 100) * 1_500_000));
    assert_eq!(record.emission.unwrap().pue(), Some(1.5));
}

#[test]
fn jobs_without_a_stored_pue_are_unchanged_and_counted() {
    let then = Factor { since_ns: i64::MIN, ..factor(0, 100, "configured") };
    let (_state, mut writer, records) = store_of(4, Some(&then), 1.5);
    // As older versions wrote them: without the building, and without where the factor came from.
    let mut older = records[0].clone();
    older.emission.as_mut().unwrap().pue_millionths = None;
    let oldest = Record { emission: None, ..records[1].clone() };
    // Of this one nothing was ever computed.
    let mut none = Record { emission: None, ..records[2].clone() };
    none.totals = met_core::job::Totals::default();
    let energy = records[2].totals.figure(ENERGY).unwrap();
    none.totals.set(ENERGY, energy.value, energy.kind, energy.source.clone());
    // In the place of what is stored: a report does not remove figures.
    let stored = [older.clone(), oldest.clone(), none.clone()];
    writer.put_instead(&stored, &stored.clone().map(|record| record.key)).unwrap();
    let mut today = Config { emissions: config(Provider::Country), ..Config::default() };
    today.energy.pue = 1.1;
    let set = Correction::Set { mg_per_kwh: 10_000, from_ns: 0, to_ns: None };
    correct(&set, &mut writer, &today).unwrap();
    let all = Correction::Recompute { since_ns: None };
    assert_eq!(correct(&all, &mut writer, &today).unwrap(), Corrected { jobs: 2, without_pue: 2 });
    let now = |record: &Record| writer.get(&record.key).unwrap().unwrap();
    assert_eq!((now(&older), now(&oldest)), (older.clone(), oldest.clone()));
    assert_eq!(now(&none).emission.unwrap().pue(), Some(1.1));
    assert_eq!(now(&records[3]).emission.unwrap().pue(), Some(1.5));
}

#[test]
fn a_providers_past_values_hold_after_another_one_was_chosen() {
    let then = factor(0, 20, "rte eco2mix");
    let (_state, mut writer, records) = store_of(1, Some(&then), 1.0);
    writer.put_factor(&then).unwrap();
    let today = Config {
        emissions: Emissions { grams_per_kwh: Some(300.0), ..config(Provider::Constant) },
        ..Config::default()
    };
    let all = Correction::Recompute { since_ns: None };
    assert_eq!(correct(&all, &mut writer, &today).unwrap().jobs, 0);
    let record = writer.get(&records[0].key).unwrap().unwrap();
    assert_eq!(record.totals.get(EMISSIONS), Some(80_000_000));
}

#[test]
fn more_jobs_than_fit_in_memory_are_processed_once_each() {
    let count = 2 * JOBS_AT_ONCE as u32 + 3;
    let (_state, mut writer, records) = store_of(count, None, 1.0);
    let set = Correction::Set { mg_per_kwh: 10_000, from_ns: 0, to_ns: None };
    correct(&set, &mut writer, &Config::default()).unwrap();
    let all = Correction::Recompute { since_ns: None };
    assert_eq!(correct(&all, &mut writer, &Config::default()).unwrap().jobs, u64::from(count));
    for record in &records {
        let emitted = writer.get(&record.key).unwrap().unwrap().totals.get(EMISSIONS);
        assert_eq!(emitted, Some(40_000_000), "{}", record.key.id);
    }
    assert_eq!(correct(&all, &mut writer, &Config::default()).unwrap().jobs, 0);
    let later = Correction::Recompute { since_ns: Some(HOUR_NS) };
    assert_eq!(correct(&later, &mut writer, &Config::default()).unwrap().jobs, 0);
}

#[test]
fn nonsense_is_not_a_factor() {
    for answer in ["", "{}", r#"{"results":[]}"#, r#"{"results":[{"taux_co2":null,"date_heure":"x"}]}"#] {
        assert!(parse_rte(answer.as_bytes()).is_err(), "{answer}");
    }
    assert!(
        parse_electricity_maps(br#"{"carbonIntensity":-3,"datetime":"2026-03-01T10:00:00Z"}"#, "X").is_err()
    );
}

#[test]
fn what_was_set_is_taken_back_for_a_time_or_altogether() {
    let (hand, rte) = (BY_HAND, "rte eco2mix");
    let fixed = fixed(&config(Provider::Country));
    let left = |known: &[Factor], from: i64, to: i64| {
        let left = without_corrections(known, from, to, &fixed);
        left.iter().map(|factor| (factor.since_ns, factor.mg_per_kwh / 1000)).collect::<Vec<_>>()
    };
    let world = fixed.mg_per_kwh / 1000;
    let all = (i64::MIN, i64::MAX);
    assert_eq!(left(&[factor(10, 34, hand)], all.0, all.1), []);
    // A provider's values stay, and so do those set at other times.
    let several = [factor(0, 20, rte), factor(10, 34, hand), factor(20, 25, rte), factor(30, 36, hand)];
    assert_eq!(left(&several, all.0, all.1), [(0, 20), (20, 25)]);
    assert_eq!(left(&several, 5, 25), [(20, 25)]);
    // In the midst of a correction it is interrupted, and goes on afterwards.
    assert_eq!(left(&[factor(10, 34, hand)], 20, 30), [(20, world), (30, 34)]);
    // What ended it is not needed any more.
    let ended = [factor(10, 34, hand), Factor { since_ns: 20, ..fixed.clone() }];
    assert_eq!(left(&ended, all.0, all.1), []);
}
