#![no_main]

use met_wire::colmet::records;
use met_wire::zmtp::{Decoder, Error, Input, Socket};

const BYTES_MAX: usize = 128 << 10;

// What a peer of a ZeroMQ socket sends: any bytes are read or refused, in pieces as in one go, within bounded memory. The
// first byte says how they are cut and which side reads.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let socket = if first & 1 == 1 { Socket::Pull } else { Socket::Push };
    let whole = read(socket, bytes, bytes.len().max(1));
    assert_eq!(whole, read(socket, bytes, usize::from(first >> 1) * 37 + 1));
    for record in whole.0.iter().flat_map(|message| records(message)) {
        let _ = record;
    }
});

/// All messages and replies, and why no more came.
fn read(socket: Socket, bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, Result<bool, Error>) {
    let mut decoder = Decoder::new(socket, BYTES_MAX);
    let mut found = Vec::new();
    for piece in bytes.chunks(piece) {
        decoder.push(piece);
        assert!(decoder.held() <= decoder.buffer_bytes());
        loop {
            match decoder.next_input() {
                Ok(Some(Input::Message(message))) => {
                    assert!(message.len() <= BYTES_MAX);
                    found.push(message.to_vec());
                }
                Ok(Some(Input::Ping(reply))) => found.push(reply),
                Ok(Some(Input::Ready)) => {}
                Ok(None) => break,
                Err(error) => return (found, Err(error)),
            }
        }
        // What is not read yet is the beginning of one frame, or of the greeting.
        assert!(decoder.held() <= BYTES_MAX + 9);
    }
    (found, Ok(decoder.is_ready()))
}
