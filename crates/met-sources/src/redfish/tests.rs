use super::*;
use crate::fixture::{Machine, SLOW};
use expect_test::expect;
use proptest::prelude::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

const CERTIFICATE: &str = include_str!("../../../../fixtures/redfish/certificate.pem");
const KEY: &[u8] = include_bytes!("../../../../fixtures/redfish/key.pem");

/// A controller with chassis of the older and the newer schema, and one without meters.
fn answer(path: &str) -> (u16, &'static str) {
    match path {
        "/redfish/v1/Chassis" => (
            200,
            r#"{"Members":[{"@odata.id":"/redfish/v1/Chassis/1"},{"@odata.id":"/redfish/v1/Chassis/Blade2/"},
                {"@odata.id":"https://elsewhere/redfish/v1/Chassis/3"},{"@odata.id":7},{"@odata.id":"/redfish/v1/Chassis/4"}]}"#,
        ),
        "/redfish/v1/Chassis/1/Power" => (
            200,
            r#"{"PowerControl":[{"Name":"System Power Control","PowerConsumedWatts":344.5,
                "PowerMetrics":{"IntervalInMin":1,"MinConsumedWatts":271,"MaxConsumedWatts":489,"AverageConsumedWatts":319}},
                {"PowerConsumedWatts":null}]}"#,
        ),
        "/redfish/v1/Chassis/Blade2/EnvironmentMetrics" => {
            (200, r#"{"PowerWatts":{"Reading":374.125},"EnergykWh":{"Reading":325675.5}}"#)
        }
        "/redfish/v1/Chassis/4/Power" => (200, "{}"),
        _ => (404, "{}"),
    }
}

/// Answers one question on a connection, if it comes with the right password.
fn serve(stream: &mut (impl Read + Write)) {
    let mut reader = BufReader::new(&mut *stream);
    let (mut line, mut authorized, mut path) = (String::new(), false, String::new());
    while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
        if let Some(rest) = line.strip_prefix("GET ") {
            path = rest.split(' ').next().unwrap_or("").to_owned();
        }
        authorized |= line.trim().eq_ignore_ascii_case("authorization: Basic b3BlcmF0b3I6czNjcmV0");
        line.clear();
    }
    let (status, body) = if authorized { answer(&path) } else { (401, "no") };
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let _ = stream.write_all((head + body).as_bytes());
    let _ = stream.flush();
}

/// A server that lives as long as the test, and its address.
fn server(tls: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(KEY).unwrap(),
        )
        .unwrap();
    let config = Arc::new(config);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (mut stream, config) = (stream, Arc::clone(&config));
            if tls {
                let connection = rustls::ServerConnection::new(config).unwrap();
                serve(&mut rustls::StreamOwned::new(connection, stream));
            } else {
                serve(&mut stream);
            }
        }
    });
    format!("{}://127.0.0.1:{port}", if tls { "https" } else { "http" })
}

fn machine(credentials: &str, mode: u32) -> Machine {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new(&format!(
        "-- proc/stat --\n-- etc/met/redfish --\n{credentials}\n-- etc/met/certificate.pem --\n{CERTIFICATE}"
    ));
    let path = machine.path("/etc/met/redfish");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    machine
}

fn set(options: &mut Options, option: &SourceOption, text: &str) {
    options.choices.entry(SPEC.name).or_default().set(option, text).unwrap();
}

fn options(url: &str) -> Options {
    let mut options = Options::default();
    set(&mut options, &URL, url);
    set(&mut options, &CREDENTIALS, "/etc/met/redfish");
    set(&mut options, &super::CERTIFICATE, "/etc/met/certificate.pem");
    options
}

fn check(text: &str) {
    expect![[r#"
        Node 1 System Power Control
          power 344500
          power_average 319000
          power_min 271000
          power_max 489000
        Node Blade2 EnvironmentMetrics
          power 374125
          energy 1172431800000000000
    "#]]
    .assert_eq(text);
}

#[test]
fn the_power_of_every_chassis_is_read_over_https() {
    let machine = machine("operator:s3cret", 0o600);
    check(&machine.read_with(&SPEC, SLOW, &options(&server(true))));
}

#[test]
fn an_untrusted_certificate_is_refused_unless_configured_otherwise() {
    let machine = machine("operator:s3cret", 0o600);
    let mut options = Options::default();
    set(&mut options, &URL, &server(true));
    set(&mut options, &CREDENTIALS, "/etc/met/redfish");
    let text = machine.read_with(&SPEC, SLOW, &options);
    assert!(text.starts_with("error: https://127.0.0.1:"), "{text}");
    set(&mut options, &VERIFY, "no");
    check(&machine.read_with(&SPEC, SLOW, &options));
}

/// What is read with this choice, and what falls short.
fn look(choice: Option<&str>) -> (String, Option<Shortfall>) {
    let machine = machine("operator:s3cret", 0o600);
    let mut options = options(&server(false));
    choice.iter().for_each(|choice| set(&mut options, &CHASSIS, choice));
    let mut source = open(&machine.host, &options).unwrap();
    let mut batches = [Batch::new(&TABLE)];
    let result = source.read(&met_host::Targets::default(), &SLOW, &mut batches);
    let mut text = String::new();
    for (row, cells) in batches[0].rows() {
        let labels = source.labels()[row.part as usize].join(" ");
        text += &format!("{} {labels} {}\n", row.part, cells[POWER]);
    }
    if let Err(ReadError::Retry { error, .. }) = result {
        text += &format!("error: {error}\n");
    }
    (text, source.shortfall())
}

#[test]
fn of_several_chassis_the_first_is_the_machine_and_doctor_reports_it() {
    let (text, shortfall) = look(None);
    assert_eq!(text, "0 1 System Power Control 344500\n1 Blade2 EnvironmentMetrics 374125\n");
    let shortfall = shortfall.unwrap();
    assert!(shortfall.detail.contains("chassis 1") && shortfall.detail.contains("Blade2"), "{shortfall:?}");
}

#[test]
fn the_chassis_that_was_named_is_the_machine() {
    let (text, shortfall) = look(Some("Blade2"));
    assert_eq!(text, "1 1 System Power Control 344500\n0 Blade2 EnvironmentMetrics 374125\n");
    assert_eq!(shortfall, None);
    let (text, _) = look(Some("Blade3"));
    assert_eq!(text, "error: no chassis \"Blade3\" with a meter; known: 1, Blade2, 4\n");
}

#[test]
fn all_chassis_are_added_only_if_asked_for() {
    let (text, shortfall) = look(Some("all"));
    let rows = "1 1 System Power Control 344500\n2 Blade2 EnvironmentMetrics 374125\n";
    assert_eq!(text, format!("0 all sum 718625\n{rows}"));
    assert_eq!(shortfall, None);
}

/// The script of a controller, one look after the other: `None` did not answer.
fn chassis_after(looks: &[[Option<i64>; 2]], choice: ChassisChoice) -> Vec<Vec<(u32, i64)>> {
    let machine = machine("operator:s3cret", 0o600);
    let options = options("http://127.0.0.1:1");
    let mut chassis = Chassis {
        agent: agent(&machine.host, &Redfish::configured(&options).unwrap()).unwrap(),
        url: String::new(),
        authorization: String::new(),
        choice,
        paths: vec!["/redfish/a".into(), "/redfish/b".into()],
        machine: None,
        looks: 0,
        metered: Vec::new(),
        parts: Parts::default(),
    };
    let mut seen = Vec::new();
    for look in looks {
        let report = |(path, power): (&String, &Option<i64>)| {
            let mut cells = vec![MISSING; COLUMNS.len()];
            cells[POWER] = (*power)?;
            Some(Report { path: path.clone(), meters: vec![("m".into(), cells)] })
        };
        let reports: Vec<Report> = chassis.paths.iter().zip(look).filter_map(report).collect();
        let mut batch = Batch::new(&TABLE);
        chassis.take(&reports, &mut batch);
        seen.push(batch.rows().map(|(row, cells)| (row.part, cells[POWER])).collect());
    }
    seen
}

#[test]
fn the_chassis_of_the_machine_does_not_depend_on_the_order_of_answers() {
    let looks = [[None, Some(7)], [Some(3), Some(7)], [None, Some(8)]];
    let seen = chassis_after(&looks, ChassisChoice::First);
    assert_eq!(seen, [vec![], vec![(0, 3), (1, 7)], vec![(1, 8)]]);
    let seen = chassis_after(&looks, ChassisChoice::Named("b".into()));
    assert_eq!(seen, [vec![(0, 7)], vec![(1, 3), (0, 7)], vec![(0, 8)]]);
    let seen = chassis_after(&looks, ChassisChoice::Sum);
    assert_eq!(seen[1..], [vec![(0, 10), (1, 3), (2, 7)], vec![(2, 8)]], "a sum without one is none");
    assert!(seen[0].is_empty());
}

#[test]
fn a_chassis_that_never_answers_is_not_waited_for_without_end() {
    let seen = chassis_after(&[[None, Some(7)]; LOOKS_WAITED as usize], ChassisChoice::First);
    assert!(seen[..LOOKS_WAITED as usize - 1].iter().all(Vec::is_empty));
    assert_eq!(seen.last(), Some(&vec![(0, 7)]));
    // One that comes after it in the list does not matter.
    assert_eq!(chassis_after(&[[Some(7), None]], ChassisChoice::First), [vec![(0, 7)]]);
}

#[test]
fn a_wrong_password_is_an_error_and_no_row() {
    let machine = machine("operator:guess", 0o600);
    let url = server(false);
    let text = machine.read_with(&SPEC, SLOW, &options(&url));
    assert_eq!(text, format!("error: {url}/redfish/v1/Chassis: the controller answered 401\n"));
}

#[test]
fn a_password_that_others_can_read_or_that_would_be_sent_openly_is_not_used() {
    let refused = |machine: &Machine, url: &str| open(&machine.host, &options(url)).err();
    let open_to_all = refused(&machine("operator:s3cret", 0o644), "https://bmc");
    assert_eq!(open_to_all, Some(Unavailable::Denied { path: "/etc/met/redfish".into(), need: NEED }));
    let closed = machine("operator:s3cret", 0o600);
    for url in ["http://bmc", "http://localhost.evil.org", "ftp://bmc", "bmc", "https://me:pw@bmc"] {
        assert!(matches!(refused(&closed, url), Some(Unavailable::Absent(_))), "{url}");
    }
    assert!(is_safe("http://127.0.0.1:8000") && is_safe("http://localhost/x") && is_safe("https://bmc"));
    assert!(matches!(refused(&machine("nonsense", 0o600), "https://bmc"), Some(Unavailable::Absent(_))));
}

#[test]
fn letters_of_base64_are_right() {
    let cases = [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foob", "Zm9vYg=="),
        ("\u{ff}?>", "w78/Pg=="),
    ];
    for (text, coded) in cases {
        assert_eq!(base64(text.as_bytes()), coded);
    }
}

proptest! {
    #[test]
    fn any_answer_has_meters_or_none(
        number in any::<f64>(),
        text in "\\PC{0,20}",
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let number = serde_json::json!(number);
        let answers = [
            serde_json::json!({"PowerControl": [{"Name": text, "PowerConsumedWatts": number}, text, {"PowerMetrics": number}]}),
            serde_json::json!({"PowerWatts": {"Reading": number}, "EnergykWh": {"Reading": text}, "PowerControl": {}}),
            serde_json::json!({"Members": [{"@odata.id": text}, number, {"@odata.id": format!("/redfish/{text}")}]}),
            serde_json::from_slice(&body).unwrap_or(Value::Null),
        ];
        for answer in &answers {
            for (_, cells) in meters(answer) {
                prop_assert!(cells.iter().all(|&cell| cell == MISSING || cell >= 0));
            }
            prop_assert!(members(answer).iter().all(|path| path.starts_with("/redfish/")));
        }
    }
}
