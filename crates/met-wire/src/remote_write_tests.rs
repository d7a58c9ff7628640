use proptest::prelude::*;

use super::*;

/// A reader of protocol buffers that knows nothing of the writer: any message is a list of fields.
enum Field<'a> {
    Varint(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (&first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    unreachable!()
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Varint(varint(&mut bytes)),
            1 => {
                let (value, rest) = bytes.split_at(8);
                bytes = rest;
                Field::Fixed(u64::from_le_bytes(value.try_into().unwrap()))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(value)
            }
            other => panic!("wire type {other}"),
        };
        found.push((tag >> 3, field));
    }
    found
}

type Decoded = Vec<(Vec<(String, String)>, Vec<(i64, u64)>)>;

fn decode(body: &[u8]) -> Decoded {
    let bytes = snap::raw::Decoder::new().decompress_vec(body).unwrap();
    let series = fields(&bytes).into_iter().map(|(number, field)| {
        let Field::Bytes(series) = field else { panic!() };
        assert_eq!(number, 1);
        let (mut labels, mut samples) = (Vec::new(), Vec::new());
        for (number, field) in fields(series) {
            let Field::Bytes(inner) = field else { panic!() };
            let inner = fields(inner);
            match (number, &inner[..]) {
                (1, [(1, Field::Bytes(name)), (2, Field::Bytes(value))]) => {
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    labels.push((text(name), text(value)));
                }
                (2, [(1, Field::Fixed(value)), (2, Field::Varint(time))]) => {
                    samples.push((*time as i64, *value));
                }
                _ => panic!("field {number}"),
            }
        }
        (labels, samples)
    });
    series.collect()
}

#[test]
fn a_request_is_the_bytes_that_the_format_says() {
    let mut request = Request::new();
    request.add(&mut [("id", "7"), ("__name__", "up"), ("cluster", "")], [(1, 1.0)]);
    let expected = b"\x0a\x26\x0a\x0e\x0a\x08__name__\x12\x02up\x0a\x07\x0a\x02id\x12\x017\
                     \x12\x0b\x09\0\0\0\0\0\0\xf0\x3f\x10\x01";
    assert_eq!(request.bytes, expected);
    assert_eq!((request.samples(), request.bytes()), (1, expected.len()));
}

#[test]
fn a_series_without_samples_is_left_out() {
    let mut request = Request::new();
    request.add(&mut [("__name__", "up")], []);
    assert_eq!((request.samples(), request.bytes()), (0, 0));
    request.add(&mut [("__name__", "up")], [(5, 0.0)]);
    request.clear();
    assert_eq!(decode(&request.body().unwrap()), []);
}

proptest! {
    #[test]
    fn an_independent_reader_finds_what_was_written(
        series in prop::collection::vec(
            (
                prop::collection::btree_map("[a-z_]{1,12}", ".{0,200}", 0..6),
                prop::collection::vec((any::<i64>(), any::<f64>()), 0..20),
            ),
            0..8,
        ),
    ) {
        let mut request = Request::new();
        for (labels, samples) in &series {
            let mut labels: Vec<(&str, &str)> =
                labels.iter().rev().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            request.add(&mut labels, samples.iter().copied());
        }
        let expected: Decoded = series
            .iter()
            .filter(|(_, samples)| !samples.is_empty())
            .map(|(labels, samples)| {
                let labels = labels.iter().filter(|(_, value)| !value.is_empty());
                let samples = samples.iter().map(|&(time, value)| (time, value.to_bits()));
                (labels.map(|(name, value)| (name.clone(), value.clone())).collect(), samples.collect())
            })
            .collect();
        prop_assert_eq!(decode(&request.body().unwrap()), expected);
    }
}
