use std::io::{Read, Write};
use std::net::TcpListener;

use met_wire::colmet::{Backend, records};
use met_wire::zmtp::{self, Decoder, Input, Socket};

use super::*;

/// Takes messages on one connection until it ends.
fn collect(listener: &TcpListener) -> Vec<Vec<u8>> {
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&zmtp::opening(Socket::Pull)).unwrap();
    let (mut decoder, mut messages, mut bytes) = (Decoder::new(Socket::Pull, 1 << 20), Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut bytes) {
            Ok(count @ 1..) => decoder.push(&bytes[..count]),
            _ => return messages,
        }
        while let Some(input) = decoder.next_input().unwrap() {
            if let Input::Message(message) = input {
                messages.push(message.to_vec());
            }
        }
    }
}

fn sink(endpoint: &str, queue: &str) -> Colmet {
    let mut push = Push::new(Endpoint::parse(endpoint).unwrap());
    push.finish();
    Colmet {
        gatherer: Gatherer::new(Chosen::of(&Options::default(), BACKENDS)),
        mapping: None,
        mapped: VecDeque::new(),
        queue: Queue::new(queue.parse().unwrap()),
        push,
        pause: PAUSE_MIN,
        retry_at: None,
        failure: None,
    }
}

fn record(timestamp: u64) -> Record {
    Record::new(Backend::Jobproc, "n1", 1, timestamp)
}

#[test]
fn messages_wait_for_a_collector_and_the_oldest_are_dropped() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut sink = sink(&format!("tcp://{address}"), "2");
    for timestamp in 1..=3 {
        sink.queue.push(&[record(timestamp), record(timestamp)]);
        sink.send();
    }
    let report = sink.report().unwrap();
    assert!(report.is_retrying && report.wake.is_some() && report.failure.is_some());
    assert_eq!(report.dropped, 2);
    let listener = TcpListener::bind(address).unwrap();
    let collector = std::thread::spawn(move || collect(&listener));
    Box::new(sink).close();
    let messages = collector.join().unwrap();
    let times: Vec<Vec<u64>> = messages
        .iter()
        .map(|message| records(message).map(|record| record.unwrap().timestamp).collect())
        .collect();
    assert_eq!(times, [[2, 2], [3, 3]]);
}

#[test]
fn a_peer_that_does_not_use_zeromq_is_reported_and_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sink = sink(&format!("tcp://{}", listener.local_addr().unwrap()), "2");
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    sink.queue.push(&[record(1)]);
    sink.send();
    peer.join().unwrap();
    let report = sink.report().unwrap();
    assert_eq!(report.failure.as_deref(), Some("the peer does not use ZeroMQ (ZMTP 3)"));
    assert!(report.is_retrying);
}

#[test]
fn a_long_round_is_several_messages() {
    let mut queue = Queue::new(1000);
    let long: Vec<Record> = (0..500).map(|time| Record::new(Backend::Procstats, "n1", 0, time)).collect();
    queue.push(&long);
    assert_eq!(queue.messages.len(), 2);
    assert_eq!(queue.messages.iter().map(|(_, count)| count).sum::<u64>(), 500);
    assert!(queue.messages.iter().all(|(message, _)| message.len() <= MESSAGE_BYTES_MAX));
}

#[test]
fn mapping_files_are_bounded_and_the_newest_stay() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = Colmet { mapping: Some(folder.path().to_owned()), ..sink("tcp://127.0.0.1:1", "2") };
    let mut written = Vec::new();
    for _ in 0..MAPPINGS_MAX + 20 {
        sink.write_mapping(&[Backend::Perfhw]);
        written.push(sink.mapped.back().unwrap().clone());
    }
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort_unstable();
    let mut newest = written.split_off(20);
    newest.sort_unstable();
    assert_eq!((found.len(), found), (MAPPINGS_MAX, newest));
}
