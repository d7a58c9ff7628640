//! What a server replies to a batch that it has.

use met_core::job::JobKey;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Watched jobs of one node in a reply. More fit no screen, and a server cannot have all jobs of a node sampled more
/// often.
pub const WATCHED_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// Of the batch.
    pub sequence: u64,
    /// Unix time by the server's clock.
    pub now_ns: i64,
    /// Jobs of the node that clients of the server watch, as the node names them. Earlier servers send none, and earlier
    /// nodes ignore it.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "readable")]
    pub watched: Vec<JobKey>,
}

/// A job whose name cannot be read is not watched. The batch is acknowledged in any case.
fn readable<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<JobKey>, D::Error> {
    let Value::Array(all) = Value::deserialize(from)? else { return Ok(Vec::new()) };
    Ok(all.into_iter().take(WATCHED_MAX).filter_map(|one| serde_json::from_value(one).ok()).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(id: usize) -> JobKey {
        JobKey { cluster: None, manager: "slurm".to_owned(), id: id.to_string(), incarnation: 0 }
    }

    #[test]
    fn without_watched_jobs_a_reply_is_what_it_always_was() {
        let plain = Acknowledgement { sequence: 7, now_ns: 9, watched: Vec::new() };
        assert_eq!(serde_json::to_string(&plain).unwrap(), r#"{"sequence":7,"now_ns":9}"#);
        assert_eq!(serde_json::from_str::<Acknowledgement>(r#"{"sequence":7,"now_ns":9}"#).unwrap(), plain);
    }

    #[test]
    fn watched_jobs_are_read_again_and_a_node_takes_no_more_than_it_may() {
        let of =
            |count: usize| Acknowledgement { sequence: 1, now_ns: 2, watched: (0..count).map(key).collect() };
        let read = |all: &Acknowledgement| {
            serde_json::from_str::<Acknowledgement>(&serde_json::to_string(all).unwrap()).unwrap()
        };
        assert_eq!(read(&of(WATCHED_MAX)), of(WATCHED_MAX));
        assert_eq!(read(&of(10 * WATCHED_MAX)), of(WATCHED_MAX));
    }

    /// Any JSON, as deep as a few levels.
    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
            (0..9usize).prop_map(|id| serde_json::to_value(key(id)).unwrap()),
        ];
        leaf.prop_recursive(3, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map("watched|manager|id|incarnation|.{0,3}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_is_watched_the_batch_is_acknowledged(watched in json(), sequence in any::<u64>(), now_ns in any::<i64>()) {
            let reply = serde_json::json!({ "sequence": sequence, "now_ns": now_ns, "watched": watched, "later": 1 });
            let read: Acknowledgement = serde_json::from_str(&reply.to_string()).unwrap();
            prop_assert_eq!((read.sequence, read.now_ns), (sequence, now_ns));
            prop_assert!(read.watched.len() <= WATCHED_MAX);
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = serde_json::from_slice::<Acknowledgement>(&bytes);
        }
    }
}
