//! `pcie_bw` of AMD GPUs: packets that the GPU received and sent in a second. The kernel waits for that second
//! whenever the file is read, so a thread reads it, and only while it is requested.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use met_host::{Dir, clock, parse};

const READ_EVERY_NS: i64 = 10_000_000_000;
/// An older reading is not what is.
const OLD_AFTER_NS: i64 = 3 * READ_EVERY_NS;
pub(super) const FILE: &str = "pcie_bw";

/// Bytes per second, as of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bandwidth {
    pub received: i64,
    pub sent: i64,
}

pub(super) struct PcieReader {
    wake: SyncSender<()>,
    last: Arc<Mutex<Option<(i64, Bandwidth)>>>,
    asked_ns: i64,
}

impl PcieReader {
    /// For a GPU that has the file.
    pub(super) fn start(device: Dir) -> Option<PcieReader> {
        let (wake, woken) = sync_channel(1);
        let last = Arc::new(Mutex::new(None));
        let theirs = Arc::clone(&last);
        let work = move || work(&device, &woken, &theirs);
        std::thread::Builder::new().name("pcie_bw".to_owned()).spawn(work).ok()?;
        Some(PcieReader { wake, last, asked_ns: i64::MIN })
    }

    /// The last reading, if it is recent; the next one is requested when it is due.
    pub(super) fn bandwidth(&mut self, now_ns: i64) -> Option<Bandwidth> {
        if now_ns.saturating_sub(self.asked_ns) >= READ_EVERY_NS {
            self.asked_ns = now_ns;
            // Full: the thread is still at the one before.
            let _ = self.wake.try_send(());
        }
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.filter(|(read_ns, _)| now_ns - read_ns <= OLD_AFTER_NS).map(|(_, bandwidth)| bandwidth)
    }
}

/// Until the reader is dropped.
fn work(device: &Dir, woken: &Receiver<()>, last: &Mutex<Option<(i64, Bandwidth)>>) {
    let mut buffer = Vec::new();
    while woken.recv().is_ok() {
        let read = device.read(FILE, &mut buffer).ok().and_then(|_| parse(&buffer));
        let read = read.map(|bandwidth| (clock::boottime_ns(), bandwidth));
        *last.lock().unwrap_or_else(PoisonError::into_inner) = read;
    }
}

/// `received sent payload`: two counts of packets and the most bytes that one carries.
fn parse(text: &[u8]) -> Option<Bandwidth> {
    let mut numbers = parse::fields(text.trim_ascii()).map(|field| i64::try_from(parse::u64(field)?).ok());
    let (received, sent, payload) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some(Bandwidth { received: received.checked_mul(payload)?, sent: sent.checked_mul(payload)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_times_their_payload() {
        assert_eq!(parse(b"2000 3000 256\n"), Some(Bandwidth { received: 512_000, sent: 768_000 }));
        assert_eq!(parse(b"0 0 256\n"), Some(Bandwidth { received: 0, sent: 0 }));
        for damaged in ["", "1 2", "1 -2 3", "a b c", "9223372036854775807 1 256"] {
            assert_eq!(parse(damaged.as_bytes()), None, "{damaged}");
        }
    }
}
