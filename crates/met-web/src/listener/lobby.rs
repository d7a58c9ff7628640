//! Connections whose clients have proven nothing: where there are too many, the oldest of these make room for others.
//!
//! Every user of a machine reaches its loopback addresses, from one address. Who holds many connections and says nothing
//! keeps nobody out; who has logged in keeps theirs.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::Notify;

/// What is known of the client of a connection.
#[derive(Clone, Debug, Default)]
pub struct Standing(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    is_proven: AtomicBool,
    requests: AtomicUsize,
    leave: Notify,
}

impl Standing {
    /// A request of this connection was admitted: it stays.
    pub fn prove(&self) {
        self.0.is_proven.store(true, Ordering::Relaxed);
    }

    /// For as long as a request is answered.
    pub(super) fn busy(&self) -> Busy {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    fn is_proven(&self) -> bool {
        self.0.is_proven.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.0.requests.load(Ordering::Relaxed) > 0
    }
}

/// What a client has proven is no part of who it is.
impl PartialEq for Standing {
    fn eq(&self, _: &Standing) -> bool {
        true
    }
}

impl Eq for Standing {}

pub(super) struct Busy(Standing);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct Lobby {
    guests: Mutex<Guests>,
}

/// By the order in which they came.
#[derive(Default)]
struct Guests {
    by_number: BTreeMap<u64, Standing>,
    next: u64,
}

impl Lobby {
    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(self: &Arc<Self>) -> Guest {
        let (mut guests, standing) = (self.guests(), Standing::default());
        let number = guests.next;
        guests.next += 1;
        guests.by_number.insert(number, standing.clone());
        drop(guests);
        Guest { lobby: Arc::clone(self), number, standing }
    }

    /// Ends the oldest connection of a client that has proven nothing, of those that wait for one to say something
    /// first. False if there is none.
    pub(super) fn make_room(&self) -> bool {
        let mut guests = self.guests();
        let unproven = || guests.by_number.iter().filter(|(_, standing)| !standing.is_proven());
        let oldest = unproven().find(|(_, standing)| !standing.is_busy()).or_else(|| unproven().next());
        let Some(number) = oldest.map(|(&number, _)| number) else { return false };
        if let Some(standing) = guests.by_number.remove(&number) {
            standing.0.leave.notify_one();
        }
        true
    }
}

/// A connection, for as long as it is open.
pub(super) struct Guest {
    lobby: Arc<Lobby>,
    number: u64,
    pub(super) standing: Standing,
}

impl Guest {
    /// Serves the connection until it ends or must make room for another.
    pub(super) async fn serve(&self, connection: impl Future<Output = ()>) {
        let (mut connection, mut sent_away) = (pin!(connection), pin!(self.standing.0.leave.notified()));
        poll_fn(|context| match sent_away.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => connection.as_mut().poll(context),
        })
        .await;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.lobby.guests().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_who_said_nothing_goes_first_and_who_proved_something_stays() {
        let lobby = Arc::new(Lobby::default());
        let guests: Vec<Guest> = (0..4).map(|_| lobby.enter()).collect();
        guests[0].standing.prove();
        let busy = guests[1].standing.busy();
        let left = || lobby.guests().by_number.keys().copied().collect::<Vec<_>>();
        assert!(lobby.make_room() && left() == [0, 1, 3]);
        assert!(lobby.make_room() && left() == [0, 1]);
        assert!(lobby.make_room() && left() == [0], "one that is being answered only then");
        assert!(!lobby.make_room());
        drop(busy);
        drop(guests);
        assert!(lobby.guests().by_number.is_empty());
    }
}
