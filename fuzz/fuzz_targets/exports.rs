#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| met_export::fuzz(bytes));
