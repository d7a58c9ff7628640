//! A server without space on its disk: it answers questions, refuses batches with the reason, and tries again.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use met_store::StoreError;

use super::{Latest, Order, Plan, Refusal, WithWriter, Work};

const RETRY_EVERY: Duration = Duration::from_secs(5);

/// Does nothing but say why, until the store can be opened for writing; then it works as ever.
pub(super) fn run(plan: &Plan, latest: &Latest, mut why: StoreError, orders: &Receiver<Order>) {
    tracing::error!("no space for the store; the server is read-only and tries again: {why}");
    // Scheduler records come one piece at a time, and wait.
    let mut waiting: Vec<WithWriter> = Vec::new();
    let mut next_try = Instant::now() + RETRY_EVERY;
    loop {
        match orders.recv_timeout(next_try.saturating_duration_since(Instant::now())) {
            Ok(Order::Batch(incoming)) => {
                let _ = incoming.reply.send(Err(Refusal::ReadOnly(why.to_string())));
            }
            Ok(Order::Saw(..) | Order::Colmet(_)) => {}
            Ok(Order::Work(work)) => waiting.push(work),
            Ok(Order::MoveAll(done)) => _ = done.send(()),
            Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if Instant::now() < next_try {
            continue;
        }
        match Work::open(plan.clone(), latest.clone()) {
            Ok(mut work) => {
                tracing::info!("the store can be written again");
                for waited in waiting {
                    work.with_writer(waited);
                }
                return work.run(orders);
            }
            Err(error) => why = error,
        }
        next_try = Instant::now() + RETRY_EVERY;
    }
}
