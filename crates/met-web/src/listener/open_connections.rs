//! The open connections. Where there are too many, the oldest whose client is not authenticated is closed for a new one.
//!
//! All users of a machine reach its loopback listener from one address, so a limit per address is not enough: a client
//! that opens many idle connections must not lock out the others, and authenticated clients keep theirs.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::Notify;

/// What the listener knows of the client of a connection.
#[derive(Clone, Debug, Default)]
pub struct ConnectionState(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    is_authenticated: AtomicBool,
    requests: AtomicUsize,
    close: Notify,
}

impl ConnectionState {
    /// A request of this connection was admitted: it stays open.
    pub fn mark_authenticated(&self) {
        self.0.is_authenticated.store(true, Ordering::Relaxed);
    }

    /// While a request is in progress.
    pub(super) fn busy(&self) -> Busy {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    fn is_authenticated(&self) -> bool {
        self.0.is_authenticated.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.0.requests.load(Ordering::Relaxed) > 0
    }
}

/// Whether a client is authenticated is no part of its identity.
impl PartialEq for ConnectionState {
    fn eq(&self, _: &ConnectionState) -> bool {
        true
    }
}

impl Eq for ConnectionState {}

pub(super) struct Busy(ConnectionState);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct OpenConnections {
    connections: Mutex<ByAge>,
}

/// By the order in which they came.
#[derive(Default)]
struct ByAge {
    by_number: BTreeMap<u64, ConnectionState>,
    next: u64,
}

impl OpenConnections {
    fn connections(&self) -> MutexGuard<'_, ByAge> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(self: &Arc<Self>) -> OpenConnection {
        let (mut connections, state) = (self.connections(), ConnectionState::default());
        let number = connections.next;
        connections.next += 1;
        connections.by_number.insert(number, state.clone());
        drop(connections);
        OpenConnection { open: Arc::clone(self), number, state }
    }

    /// Closes the oldest connection whose client is not authenticated, preferably one without a request in progress.
    /// False if there is none.
    pub(super) fn make_room(&self) -> bool {
        let mut connections = self.connections();
        let unauthenticated = || connections.by_number.iter().filter(|(_, state)| !state.is_authenticated());
        let oldest =
            unauthenticated().find(|(_, state)| !state.is_busy()).or_else(|| unauthenticated().next());
        let Some(number) = oldest.map(|(&number, _)| number) else { return false };
        if let Some(state) = connections.by_number.remove(&number) {
            state.0.close.notify_one();
        }
        true
    }
}

/// A connection, for as long as it is open.
pub(super) struct OpenConnection {
    open: Arc<OpenConnections>,
    number: u64,
    pub(super) state: ConnectionState,
}

impl OpenConnection {
    /// Serves the connection until it ends or must make room for another.
    pub(super) async fn serve(&self, connection: impl Future<Output = ()>) {
        let (mut connection, mut closed) = (pin!(connection), pin!(self.state.0.close.notified()));
        poll_fn(|context| match closed.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => connection.as_mut().poll(context),
        })
        .await;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.connections().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_idle_connection_is_closed_first_and_authenticated_clients_stay() {
        let open = Arc::new(OpenConnections::default());
        let connections: Vec<OpenConnection> = (0..4).map(|_| open.add()).collect();
        connections[0].state.mark_authenticated();
        let busy = connections[1].state.busy();
        let left = || open.connections().by_number.keys().copied().collect::<Vec<_>>();
        assert!(open.make_room() && left() == [0, 1, 3]);
        assert!(open.make_room() && left() == [0, 1]);
        assert!(open.make_room() && left() == [0], "one with a request in progress goes last");
        assert!(!open.make_room());
        drop(busy);
        drop(connections);
        assert!(open.connections().by_number.is_empty());
    }
}
