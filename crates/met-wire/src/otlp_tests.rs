use proptest::prelude::*;

use super::*;

const SCOPE: Scope<'_> = Scope { name: "met", version: "1", schema_url: "u" };

/// A message as a tree, by a reader that knows only which fields are messages.
fn inner(bytes: &[u8], number: u64) -> Vec<&[u8]> {
    let of = protobuf::fields(bytes).filter(|(field, _)| *field == number);
    of.map(|(_, field)| if let Field::Bytes(bytes) = field { bytes } else { panic!("{field:?}") }).collect()
}

fn text(bytes: &[u8], number: u64) -> String {
    String::from_utf8(inner(bytes, number)[0].to_vec()).unwrap()
}

fn attributes(bytes: &[u8], number: u64) -> Vec<(String, Attribute)> {
    let value = |pair: &[u8]| match protobuf::fields(inner(pair, 2)[0]).next().unwrap() {
        (1, Field::Bytes(text)) => Attribute::Text(String::from_utf8(text.to_vec()).unwrap()),
        (3, Field::Varint(number)) => Attribute::Int(number as i64),
        other => panic!("{other:?}"),
    };
    inner(bytes, number).into_iter().map(|pair| (text(pair, 1), value(pair))).collect()
}

fn fixed(bytes: &[u8], number: u64) -> Option<u64> {
    protobuf::fields(bytes).find(|(field, _)| *field == number).map(|(_, field)| match field {
        Field::Fixed64(value) => value,
        other => panic!("{other:?}"),
    })
}

fn metric(name: &str, form: Form) -> Metric {
    Metric { name: name.to_owned(), help: "h", unit: "s", form }
}

#[test]
fn a_request_is_the_bytes_that_the_format_says() {
    let mut request = Request::default();
    let resource = Attributes::from([("host.name".into(), "n1".into())]);
    let attributes = Attributes::from([("id".into(), Attribute::Int(7))]);
    let point = Point { attributes: &attributes, start_ns: Some(1), time_ns: 2, number: Number::Int(3) };
    request.add(&resource, &metric("c", Form::Counter), point);
    let expected = b"\x0a\x5c\x0a\x13\x0a\x11\x0a\x09host.name\x12\x04\x0a\x02n1\
        \x12\x42\x0a\x08\x0a\x03met\x12\x011\x12\x36\x0a\x01c\x12\x01h\x1a\x01s\x3a\x2b\
        \x0a\x25\x11\x01\0\0\0\0\0\0\0\x19\x02\0\0\0\0\0\0\0\x31\x03\0\0\0\0\0\0\0\x3a\x08\x0a\x02id\x12\x02\x18\x07\
        \x10\x02\x18\x01\x1a\x01u";
    assert_eq!(request.encode(SCOPE), expected);
    assert_eq!(request.points(), 1);
}

#[test]
fn only_sums_have_a_start_and_only_counters_are_monotonic() {
    let none = Attributes::new();
    let mut request = Request::default();
    for (name, form) in [("a", Form::Counter), ("b", Form::Gauge), ("c", Form::UpDownCounter)] {
        let point = Point { attributes: &none, start_ns: Some(9), time_ns: 5, number: Number::Double(0.5) };
        request.add(&none, &metric(name, form), point);
    }
    let encoded = request.encode(SCOPE);
    let scope = inner(inner(&encoded, 1)[0], 2)[0];
    let metrics = inner(scope, 2);
    let start = |index: usize, field: u64| fixed(inner(inner(metrics[index], field)[0], 1)[0], 2);
    // The clock was set back: a sum cannot begin after its time.
    assert_eq!((start(0, 7), start(1, 5), start(2, 7)), (Some(5), None, Some(5)));
    let is_monotonic =
        |index: usize| protobuf::fields(inner(metrics[index], 7)[0]).any(|(field, _)| field == 3);
    assert_eq!((is_monotonic(0), is_monotonic(2)), (true, false));
}

#[test]
fn what_a_receiver_rejects_is_counted_with_its_message() {
    let mut partial = vec![tag(1, VARINT), 5];
    put_text(&mut partial, 2, "too\nold");
    let mut body = Vec::new();
    put_bytes(&mut body, 1, &partial);
    assert_eq!(rejected(&body), Rejected { points: 5, message: "too old".to_owned() });
    assert_eq!((rejected(b""), rejected(b"{}")), (Rejected::default(), Rejected::default()));
    let mut status = vec![tag(1, VARINT), 3];
    put_text(&mut status, 2, "no such tenant");
    assert_eq!(error_message(&status), "no such tenant");
    assert_eq!(error_message(b"<html>Bad Gateway"), "<html>Bad Gateway");
}

fn any_number() -> impl Strategy<Value = Number> {
    prop_oneof![any::<i64>().prop_map(Number::Int), any::<f64>().prop_map(Number::Double)]
}

proptest! {
    #[test]
    fn an_independent_reader_finds_what_was_written(
        points in prop::collection::vec((0..3usize, 0..3usize, ".{0,40}", any_number(), 0..i64::MAX), 1..30),
    ) {
        let mut request = Request::default();
        let hosts = ["n1", "n2", "n3"].map(|name| Attributes::from([("host.name".into(), name.into())]));
        let metrics = ["a", "b", "c"].map(|name| metric(name, Form::Counter));
        for (host, metric, label, number, time_ns) in &points {
            let attributes = Attributes::from([("id".into(), label.as_str().into())]);
            let point = Point { attributes: &attributes, start_ns: None, time_ns: *time_ns, number: *number };
            request.add(&hosts[*host], &metrics[*metric], point);
        }
        prop_assert_eq!(request.points(), points.len());
        let encoded = request.encode(SCOPE);
        let mut found = Vec::new();
        for resource in inner(&encoded, 1) {
            let host = attributes(inner(resource, 1)[0], 1).remove(0).1;
            for metric in inner(inner(resource, 2)[0], 2) {
                for point in inner(inner(metric, 7)[0], 1) {
                    let number = (fixed(point, 4), fixed(point, 6));
                    let label = attributes(point, 7).remove(0).1;
                    found.push((host.clone(), text(metric, 1), label, number, fixed(point, 3).unwrap()));
                }
            }
        }
        let expected = points.iter().map(|(host, metric, label, number, time_ns)| {
            let number = match number {
                Number::Double(value) => (Some(value.to_bits()), None),
                Number::Int(value) => (None, Some(*value as u64)),
            };
            let host = hosts[*host]["host.name"].clone();
            (host, metrics[*metric].name.clone(), Attribute::Text(label.clone()), number, *time_ns as u64)
        });
        let mut expected: Vec<_> = expected.collect();
        expected.sort();
        found.sort();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_answer_is_read_within_bounds(body in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(rejected(&body).message.chars().count() <= MESSAGE_CHARS_MAX);
        prop_assert!(error_message(&body).chars().count() <= MESSAGE_CHARS_MAX);
    }
}
