#![no_main]

// What a collector answers: the messages are bounded and printable whatever it sends.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let messages = [met_wire::otlp::rejected(bytes).message, met_wire::otlp::error_message(bytes)];
    assert!(messages.iter().all(|text| text.chars().count() <= 300 && !text.contains(char::is_control)));
});
