#![no_main]

use met_wire::colmet::{LAYOUTS, Record, records, variant};

// Messages of Colmet's nodes, of its variant, and of live configuration: any bytes are read to their end, and what was read
// is the same when it is written and read again.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let read: Vec<Record> = records(bytes).filter_map(Result::ok).collect();
    assert!(read.len() <= bytes.len() / LAYOUTS.iter().map(|layout| layout.bytes()).min().unwrap());
    let mut message = Vec::new();
    read.iter().for_each(|record| record.encode(&mut message));
    let mut again = Vec::new();
    records(&message).map(Result::unwrap).for_each(|record| record.encode(&mut again));
    assert_eq!(message, again);
    let _ = (variant::samples(bytes), variant::settings(bytes));
});
