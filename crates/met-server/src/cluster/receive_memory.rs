//! Memory for batches on their way in: taken as their bytes arrive, so that a slow sender holds no more than
//! what it has sent, and limited for each node.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use met_wire::batch::unpacked_max;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Batches of one node at once. A node sends one; the others are those of connections that broke.
const BODIES_PER_NODE: usize = 4;
/// A body of this size is always read: every connection has a buffer of this size anyway.
const SMALL_BYTES: usize = 64 << 10;
/// Bytes of larger bodies that have arrived, of all nodes together.
const RECEIVED_BYTES_MAX: usize = 64 << 20;
/// The time for a body, plus its size at the rate below.
const BODY_WITHIN: Duration = Duration::from_secs(10);
const BODY_BYTES_PER_S: usize = 256 << 10;
/// Batches being unpacked and made durable, by what they may unpack to.
const UNIT_BYTES: usize = 64 << 10;
const UNITS: usize = 1024;
/// How long a batch that has arrived waits for others to be unpacked.
const UNPACK_WITHIN: Duration = Duration::from_secs(10);

pub struct ReceiveMemory {
    nodes: Arc<Mutex<HashMap<String, usize>>>,
    received: Arc<Semaphore>,
    /// One body more than fits: where all wait for each other, one of them gets through.
    extra: Arc<Semaphore>,
    units: Arc<Semaphore>,
    body_within: Duration,
}

impl Default for ReceiveMemory {
    fn default() -> ReceiveMemory {
        ReceiveMemory {
            nodes: Arc::default(),
            received: Arc::new(Semaphore::new(RECEIVED_BYTES_MAX)),
            extra: Arc::new(Semaphore::new(1)),
            units: Arc::new(Semaphore::new(UNITS)),
            body_within: BODY_WITHIN,
        }
    }
}

/// One of the batches that a node may send at once.
pub struct Place {
    node: String,
    nodes: Arc<Mutex<HashMap<String, usize>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = lock(&self.nodes).entry(std::mem::take(&mut self.node)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

fn lock(nodes: &Mutex<HashMap<String, usize>>) -> MutexGuard<'_, HashMap<String, usize>> {
    nodes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A body that is here, and the memory it takes.
pub struct Received {
    pub bytes: Vec<u8>,
    permits: Vec<OwnedSemaphorePermit>,
}

/// Why a body is not here.
#[derive(Debug, thiserror::Error)]
pub enum NotReceived {
    #[error("the batch did not arrive within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the batch was cut off: {0}")]
    CutOff(axum::Error),
    #[error("the batch is longer than its Content-Length")]
    TooLong,
}

impl ReceiveMemory {
    /// `None` if the node is sending as many as it may.
    pub fn enter(&self, node: &str) -> Option<Place> {
        let mut nodes = lock(&self.nodes);
        let count = nodes.entry(node.to_owned()).or_default();
        if *count == BODIES_PER_NODE {
            return None;
        }
        *count += 1;
        Some(Place { node: node.to_owned(), nodes: Arc::clone(&self.nodes) })
    }

    /// Reads a body of which `length` bytes were announced.
    pub async fn receive(&self, body: Body, length: usize) -> Result<Received, NotReceived> {
        let within = self.body_within + Duration::from_secs((length / BODY_BYTES_PER_S) as u64);
        let received = tokio::time::timeout(within, self.read(body, length)).await;
        received.map_err(|_| NotReceived::Late(within))?
    }

    async fn read(&self, mut body: Body, length: usize) -> Result<Received, NotReceived> {
        let mut received = Received { bytes: Vec::new(), permits: Vec::new() };
        let mut is_free = length <= SMALL_BYTES;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(NotReceived::CutOff)?.into_data() else { continue };
            if received.bytes.len() + data.len() > length {
                return Err(NotReceived::TooLong);
            }
            if !is_free {
                let wanted = u32::try_from(data.len()).unwrap_or(u32::MAX);
                let permit = match Arc::clone(&self.received).try_acquire_many_owned(wanted) {
                    Ok(permit) => Some(permit),
                    Err(_) => {
                        is_free = true;
                        Arc::clone(&self.extra).acquire_owned().await.ok()
                    }
                };
                hold(&mut received.permits, permit);
            }
            received.bytes.extend_from_slice(&data);
        }
        Ok(received)
    }

    /// Room for what a batch may become, for as long as it is held. A batch of any size gets it where no other has
    /// it; `None` if too many were before it.
    pub async fn unpack(&self, packed_bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = unpacked_max(packed_bytes).div_ceil(UNIT_BYTES).clamp(1, UNITS);
        let acquire = Arc::clone(&self.units).acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX));
        tokio::time::timeout(UNPACK_WITHIN, acquire).await.ok()?.ok()
    }
}

/// Adds a permit to those of the same semaphore.
fn hold(permits: &mut Vec<OwnedSemaphorePermit>, permit: Option<OwnedSemaphorePermit>) {
    let Some(permit) = permit else { return };
    match permits.first_mut() {
        Some(first) if Arc::ptr_eq(first.semaphore(), permit.semaphore()) => first.merge(permit),
        _ => permits.push(permit),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::body::Bytes;
    use hyper::body::Frame;
    use met_wire::batch::PACKED_BYTES_MAX;
    use proptest::prelude::*;

    use super::*;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    /// Sends this, and then neither more nor an end.
    struct Stalling(Option<Bytes>);

    impl hyper::body::Body for Stalling {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
        }
    }

    fn stalling(bytes: usize) -> Body {
        Body::new(Stalling(Some(Bytes::from(vec![0; bytes]))))
    }

    proptest! {
        #[test]
        fn a_server_with_nothing_to_do_has_room_for_a_batch_of_any_size(bytes in 0..=PACKED_BYTES_MAX) {
            block_on(async {
                let room = ReceiveMemory::default();
                let place = room.enter("n1");
                let received = room.receive(Body::from(vec![0; bytes]), bytes).await.unwrap();
                prop_assert_eq!(received.bytes.len(), bytes);
                prop_assert!(place.is_some() && room.unpack(bytes).await.is_some());
                Ok(())
            })?;
        }
    }

    #[test]
    fn a_slow_sender_holds_what_arrived_and_is_dropped_after_a_while() {
        block_on(async {
            let room = ReceiveMemory { body_within: Duration::from_millis(50), ..ReceiveMemory::default() };
            let mut slow = Box::pin(room.receive(stalling(100_000), 200_000));
            std::future::poll_fn(|context| {
                assert!(slow.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            assert_eq!(room.received.available_permits(), RECEIVED_BYTES_MAX - 100_000);
            assert!(room.unpack(PACKED_BYTES_MAX).await.is_some(), "others are not in its way");
            assert!(matches!(slow.await, Err(NotReceived::Late(_))));
            assert_eq!(room.received.available_permits(), RECEIVED_BYTES_MAX);
        });
    }

    #[test]
    fn one_body_gets_through_though_others_that_stall_hold_all_room() {
        block_on(async {
            let room = ReceiveMemory::default();
            let stalled = RECEIVED_BYTES_MAX / (PACKED_BYTES_MAX - 1);
            let all = (0..=stalled).map(|_| room.receive(stalling(PACKED_BYTES_MAX - 1), PACKED_BYTES_MAX));
            let mut all: Vec<_> = all.map(Box::pin).collect();
            std::future::poll_fn(|context| {
                all.iter_mut().for_each(|body| assert!(body.as_mut().poll(context).is_pending()));
                Poll::Ready(())
            })
            .await;
            drop(all.pop());
            let small = room.receive(Body::from(vec![0; SMALL_BYTES]), SMALL_BYTES).await;
            assert!(small.is_ok(), "a small one needs none");
            let large = room.receive(Body::from(vec![0; PACKED_BYTES_MAX]), PACKED_BYTES_MAX).await;
            assert_eq!(large.unwrap().bytes.len(), PACKED_BYTES_MAX);
        });
    }

    #[test]
    fn a_node_sends_a_few_at_once_and_others_are_not_counted_with_it() {
        let room = ReceiveMemory::default();
        let places: Vec<Place> = (0..BODIES_PER_NODE).filter_map(|_| room.enter("n1")).collect();
        assert!(places.len() == BODIES_PER_NODE && room.enter("n1").is_none() && room.enter("n2").is_some());
        drop(places);
        assert!(room.enter("n1").is_some() && lock(&room.nodes).is_empty());
    }
}
