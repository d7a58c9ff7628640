//! Sends the oldest batch until the server has it, then the next.

use std::io;
use std::time::Duration;

use met_core::backoff::jittered;
use met_core::node_health;
use met_wire::acknowledgement::Acknowledgement;
use met_wire::batch::{self, Header, NodeBatch, PACKED_BYTES_MAX};
use serde::Deserialize;

use super::{Inner, Phase, Shared};
use crate::clock::now_ns;
use crate::link::{Answer, Link};
use crate::spool::{Oldest, Spool};

pub const PATH: &str = "/api/v1/batches";
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// At least a second of it is left by chance.
const REFUSED_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// What it says when it has read a batch and will never take it.
#[derive(Debug, Deserialize)]
struct Never {
    refused: bool,
}

/// What to do after an attempt.
enum Outcome {
    Sent,
    /// It will never be taken as it is.
    Refused(String),
    /// It is not this node's to send.
    Foreign(String),
    Later(String, Option<Duration>),
}

/// `own` is what batches of this daemon say of their sender.
pub(super) fn work(link: &Link, shared: &Shared, own: &Header) {
    let (mut pause, mut waited) = (Duration::ZERO, false);
    loop {
        let oldest = match next(shared, pause) {
            Some(Ok(next)) => next,
            Some(Err(error)) => {
                pause = longer(pause);
                note(shared, &format!("the spool cannot be read: {error}"));
                continue;
            }
            None => return,
        };
        let sequence = oldest.sequence;
        let (outcome, bytes) = match addressed(oldest, own) {
            Ok(bytes) => (attempt(link, shared, sequence, &bytes), bytes),
            Err(foreign) => (Outcome::Foreign(foreign), Vec::new()),
        };
        match outcome {
            Outcome::Sent => {
                pause = Duration::ZERO;
                if is_over(&mut waited, shared.lock().spool.batches()) {
                    tracing::info!("spool drained");
                }
            }
            Outcome::Refused(reason) => {
                pause = after_refusal(pause);
                divide(shared, sequence, &bytes, &reason);
            }
            Outcome::Foreign(reason) => lay_aside(shared, sequence, &reason),
            Outcome::Later(reason, asked) => {
                pause = asked.unwrap_or_default().max(longer(pause)).min(LONGEST_PAUSE * 5);
                waited = true;
                note(shared, &reason);
            }
        }
    }
}

/// The bytes to send. A batch that an earlier daemon made is sent under the name that the node has now: it may have
/// been a wrong one. What was made on another machine, and came here with a copied state folder, is that machine's.
fn addressed(oldest: Oldest, own: &Header) -> Result<Vec<u8>, String> {
    let Oldest { bytes, records_end, is_of_this_start, .. } = oldest;
    if is_of_this_start {
        return Ok(bytes);
    }
    let mut made_by = String::new();
    let readdressed = batch::with_header(&bytes, records_end, |header| {
        header.node.clone_from(&own.node);
        header.boot_id.clone_from(&own.boot_id);
        header.run.clone_from(&own.run);
        made_by = std::mem::replace(&mut header.id, own.id.clone());
    });
    match readdressed {
        Ok(_) if !made_by.is_empty() && !own.id.is_empty() && made_by != own.id => Err(format!(
            "it was made by the node with identity {}, and this one is {}: the state folder was copied",
            short(&made_by),
            short(&own.id)
        )),
        Ok(readdressed) => Ok(readdressed.bytes),
        // The server says what is wrong with it.
        Err(_) => Ok(bytes),
    }
}

/// Enough of a random id to identify it.
pub(super) fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

/// Waits for a batch, after a pause. `None` when there will be none.
fn next(shared: &Shared, pause: Duration) -> Option<io::Result<Oldest>> {
    let mut inner = shared.lock();
    if !pause.is_zero() {
        let is_sending = |inner: &mut Inner| inner.phase == Phase::Sending;
        let waited = shared.changed.wait_timeout_while(inner, jittered(pause), is_sending);
        inner = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
    }
    loop {
        if inner.phase != Phase::Sending {
            return None;
        }
        let oldest = inner.spool.oldest();
        // Unreadable ones were given up.
        shared.monitor.spool_is(&inner.spool);
        match oldest {
            Ok(None) => inner = shared.changed.wait(inner).unwrap_or_else(std::sync::PoisonError::into_inner),
            Ok(Some(oldest)) => return Some(Ok(oldest)),
            Err(error) => return Some(Err(error)),
        }
    }
}

fn attempt(link: &Link, shared: &Shared, sequence: u64, bytes: &[u8]) -> Outcome {
    if bytes.len() > PACKED_BYTES_MAX {
        return Outcome::Refused(format!(
            "it has {} bytes, and a server takes {PACKED_BYTES_MAX}",
            bytes.len()
        ));
    }
    let begin_ns = now_ns();
    let offset = shared.monitor.clock_offset_ns().map(|offset_ns| offset_ns.to_string());
    let left = shared.lock().spool.behind(sequence).to_string();
    let mut headers =
        vec![("Content-Type", "application/x-met-batch"), (node_health::Spool::HEADER, left.as_str())];
    headers.extend(offset.as_deref().map(|offset| ("Met-Clock-Offset-Ns", offset)));
    let answer = match link.post(PATH, &headers, bytes, ANSWER_BYTES_MAX) {
        Ok(answer) => answer,
        Err(error) => return Outcome::Later(error.to_string(), None),
    };
    let outcome = judge(&answer, sequence);
    if let (Outcome::Sent, Ok(acknowledged)) =
        (&outcome, serde_json::from_slice::<Acknowledgement>(&answer.body))
    {
        let end_ns = now_ns();
        // The server read its clock between the two.
        let middle_ns = begin_ns + (end_ns - begin_ns) / 2;
        let offset_ns = acknowledged.now_ns.saturating_sub(middle_ns);
        let changed = change(shared, |spool| {
            shared.monitor.acknowledged(end_ns, offset_ns);
            if let Err(error) = spool.acknowledge(sequence) {
                // It is sent once more, and recognised.
                shared.monitor.failed(&format!("a sent batch cannot be removed: {error}"));
            }
        });
        if changed.is_some() {
            shared.monitor.watch.received(acknowledged.watched);
        }
    }
    outcome
}

fn judge(answer: &Answer, sequence: u64) -> Outcome {
    let reason = || format!("the server answers {}: {}", answer.status, answer.reason());
    match answer.status {
        200 => match serde_json::from_slice::<Acknowledgement>(&answer.body) {
            Ok(acknowledged) if acknowledged.sequence == sequence => Outcome::Sent,
            _ => Outcome::Later(format!("not a met server: {}", answer.reason()), None),
        },
        400..=499 if is_refused(answer) => Outcome::Refused(reason()),
        // A proxy says so, or access will be granted later; nothing is wrong with the batch.
        _ => Outcome::Later(reason(), answer.retry_after),
    }
}

/// A proxy, too, finds a request bad or too large; only our server has read the batch.
fn is_refused(answer: &Answer) -> bool {
    serde_json::from_slice::<Never>(&answer.body).is_ok_and(|never| never.refused)
}

/// Changes the spool and what is known of it, unless another one was opened in its place meanwhile: then the monitor
/// is about that one.
fn change<T>(shared: &Shared, change: impl FnOnce(&mut Spool) -> T) -> Option<T> {
    let mut inner = shared.lock();
    let changed = (inner.phase != Phase::Abandoned).then(|| change(&mut inner.spool))?;
    shared.monitor.spool_is(&inner.spool);
    Some(changed)
}

/// A batch that the server never takes is sent again in parts, until what it refuses is alone.
fn divide(shared: &Shared, sequence: u64, bytes: &[u8], reason: &str) {
    let Ok(Some(parts)) = batch::split(bytes) else { return lay_aside(shared, sequence, reason) };
    let records = parts.iter().map(|part: &NodeBatch| part.records.len()).sum::<usize>();
    match change(shared, |spool| spool.divide(sequence, parts)) {
        Some(Ok(true)) => {
            tracing::warn!(
                "the server refuses a batch with {records} records; sent again in parts: {reason}"
            );
        }
        Some(Ok(false)) | None => {}
        Some(Err(error)) => note(shared, &format!("{reason}; and it cannot be divided: {error}")),
    }
}

fn lay_aside(shared: &Shared, sequence: u64, reason: &str) {
    let refused = change(shared, |spool| {
        spool.refuse(sequence).inspect(|aside| aside.iter().for_each(|_| shared.monitor.refused()))
    });
    match refused {
        Some(Ok(Some(aside))) => tracing::error!("batch quarantined as {}: {reason}", aside.display()),
        // It was given up meanwhile, because there was no room.
        Some(Ok(None)) | None => {}
        Some(Err(error)) => note(shared, &format!("{reason}; and it cannot be quarantined: {error}")),
    }
}

/// One line for each new reason.
fn note(shared: &Shared, reason: &str) {
    if change(shared, |_| shared.monitor.failed(reason)) == Some(true) {
        tracing::warn!("batches wait: {reason}");
    }
}

/// Whether all that waited for a server is with it now: said once.
fn is_over(waited: &mut bool, left: usize) -> bool {
    left == 0 && std::mem::take(waited)
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE)
}

/// If the server is at fault, it does not empty the spool before an operator can look.
fn after_refusal(pause: Duration) -> Duration {
    longer(pause).max(REFUSED_PAUSE)
}

#[cfg(test)]
mod tests {
    use met_wire::acknowledgement::WATCHED_MAX;
    use proptest::prelude::*;

    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer { status, retry_after: None, body: body.as_bytes().to_vec() }
    }

    #[test]
    fn only_the_servers_own_answer_counts() {
        let own = r#"{"sequence": 7, "now_ns": 1}"#;
        assert!(matches!(judge(&answer(200, own), 7), Outcome::Sent));
        assert!(matches!(judge(&answer(200, own), 8), Outcome::Later(..)), "another batch");
        assert!(matches!(judge(&answer(200, "<html>portal</html>"), 7), Outcome::Later(..)));
        for later in [302, 400, 401, 403, 404, 405, 407, 411, 413, 421, 422, 429, 431, 500, 503] {
            for body in ["", "<html>nginx</html>", r#"{"error": "no"}"#, r#"{"refused": false}"#] {
                assert!(matches!(judge(&answer(later, body), 7), Outcome::Later(..)), "{later} {body}");
            }
        }
        let never = r#"{"error": "no", "refused": true}"#;
        for status in [400, 413] {
            assert!(matches!(judge(&answer(status, never), 7), Outcome::Refused(_)), "{status}");
        }
        assert!(matches!(judge(&answer(503, never), 7), Outcome::Later(..)));
    }

    proptest! {
        #[test]
        fn any_reply_is_survived(status in 100..600u16, body in reply(), sequence in 0..3u64) {
            let answer = Answer { status, retry_after: None, body };
            if let Outcome::Sent = judge(&answer, sequence) {
                let acknowledged: Acknowledgement = serde_json::from_slice(&answer.body).unwrap();
                prop_assert_eq!((status, acknowledged.sequence), (200, sequence));
                prop_assert!(acknowledged.watched.len() <= WATCHED_MAX);
            }
        }
    }

    /// Any bytes, and what is almost a reply.
    fn reply() -> impl Strategy<Value = Vec<u8>> {
        let key = r#"{"cluster":null,"manager":"slurm","id":"1","incarnation":0}"#;
        let watched = prop_oneof![
            Just("null".to_owned()),
            ".{0,20}",
            (0..200usize).prop_map(move |count| { format!("[{}]", vec![key; count].join(",")) })
        ];
        let almost = (0..3u64, any::<i64>(), watched).prop_map(|(sequence, now_ns, watched)| {
            format!(r#"{{"sequence":{sequence},"now_ns":{now_ns},"watched":{watched}}}"#).into_bytes()
        });
        prop_oneof![prop::collection::vec(any::<u8>(), 0..200), almost]
    }

    #[test]
    fn the_end_of_waiting_is_reported_once() {
        let mut waited = false;
        assert!(!is_over(&mut waited, 0), "nothing waited");
        waited = true;
        let reports: Vec<bool> = [2, 1, 0, 0].map(|left| is_over(&mut waited, left)).into();
        assert_eq!(reports, [false, false, true, false]);
    }

    #[test]
    fn pauses_grow_and_differ() {
        let mut pause = Duration::ZERO;
        for _ in 0..20 {
            pause = longer(pause);
            let jittered = jittered(pause);
            assert!(jittered >= pause / 2 && jittered <= pause);
        }
        assert_eq!(pause, LONGEST_PAUSE);
        let refused = after_refusal(Duration::ZERO);
        assert!(jittered(refused) >= Duration::from_secs(1) && after_refusal(refused) > refused);
    }
}
