//! The queue of orders to the sampling thread. It is bounded, and no sender waits for room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use super::sampler_worker::Order;

/// Questions and signs of interest, which are repeated: in a longer queue they are dropped. A sampler that is not blocked
/// takes all of them between two ticks.
const REPEATED_MAX: usize = 256;
/// Orders that change what is sampled. Several concern one job, and at a start there may be thousands of jobs.
const ORDERS_MAX: usize = 65_536;

/// The senders' end. The thread ends when it is dropped.
pub(super) struct Orders {
    sender: Sender<Order>,
    waiting: Arc<AtomicUsize>,
    dropped: AtomicU64,
    is_incomplete: AtomicBool,
}

/// The sampling thread's end.
pub(super) struct Taken {
    receiver: Receiver<Order>,
    waiting: Arc<AtomicUsize>,
}

pub(super) fn queue() -> (Arc<Orders>, Taken) {
    let (sender, receiver) = mpsc::channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let (dropped, is_incomplete) = (AtomicU64::new(0), AtomicBool::new(false));
    (
        Arc::new(Orders { sender, waiting: Arc::clone(&waiting), dropped, is_incomplete }),
        Taken { receiver, waiting },
    )
}

impl Orders {
    /// Sends what is repeated if it gets lost; false if it is dropped.
    pub(super) fn offer(&self, order: Order) -> bool {
        let is_sent = self.send_within(REPEATED_MAX, order);
        if !is_sent {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_sent
    }

    /// Sends what must arrive. A thread that takes none of so many orders is replaced, and the next one learns all there
    /// is to sample as after a start.
    pub(super) fn order(&self, order: Order) -> bool {
        let is_sent = self.send_within(ORDERS_MAX, order);
        if !is_sent {
            self.is_incomplete.store(true, Ordering::Relaxed);
        }
        is_sent
    }

    /// Whether the thread misses an order.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Ordering::Relaxed)
    }

    /// How many questions and signs of interest were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn send_within(&self, most: usize, order: Order) -> bool {
        // Several threads send: one may see the place of another taken, and no queue becomes longer than it may.
        if self.waiting.fetch_add(1, Ordering::AcqRel) < most && self.sender.send(order).is_ok() {
            return true;
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        false
    }
}

impl Taken {
    /// The next order, within this time if there is one.
    pub(super) fn next(&self, timeout: Option<Duration>) -> Result<Order, RecvTimeoutError> {
        let order = match timeout {
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(timeout) => self.receiver.recv_timeout(timeout),
        };
        if order.is_ok() {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(taken: &Taken) -> usize {
        std::iter::from_fn(|| taken.next(Some(Duration::ZERO)).ok()).count()
    }

    #[test]
    fn questions_that_are_not_taken_are_dropped_and_orders_still_have_room() {
        let (orders, taken) = queue();
        let sent = (0..10_000).filter(|_| orders.offer(Box::new(|_| {}))).count();
        assert_eq!((sent, orders.dropped()), (REPEATED_MAX, 10_000 - REPEATED_MAX as u64));
        assert!(orders.order(Box::new(|_| {})) && !orders.is_incomplete());
        assert_eq!(waiting(&taken), REPEATED_MAX + 1);
        assert!(orders.offer(Box::new(|_| {})), "there is room again");
    }

    #[test]
    fn a_thread_that_misses_an_order_is_known_to() {
        let (orders, taken) = queue();
        assert!((0..ORDERS_MAX).all(|_| orders.order(Box::new(|_| {}))));
        assert!(!orders.is_incomplete());
        assert!(!orders.order(Box::new(|_| {})) && orders.is_incomplete());
        assert_eq!(waiting(&taken), ORDERS_MAX);
    }

    #[test]
    fn without_senders_the_thread_ends_after_the_last_order() {
        let (orders, taken) = queue();
        orders.order(Box::new(|_| {}));
        drop(orders);
        assert!(taken.next(None).is_ok());
        assert!(matches!(taken.next(None), Err(RecvTimeoutError::Disconnected)));
    }
}
