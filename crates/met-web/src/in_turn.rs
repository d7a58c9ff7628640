//! Long work is done one at a time, and clients take turns: one with many requests does not block the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Of one client, one is at work or waits for the others, and one waits for that.
const PLACES_PER_CLIENT: usize = 2;
/// Clients that are remembered; those with nothing under way are forgotten beyond it.
const CLIENTS: usize = 256;

pub(crate) struct InTurn {
    clients: Mutex<HashMap<String, Client>>,
    /// Given in the order in which it is asked for.
    one: Arc<Semaphore>,
}

#[derive(Clone)]
struct Client {
    places: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

/// The place of a client whose turn it is, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _held: [OwnedSemaphorePermit; 3],
}

/// Why there is none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The client has as many as it may have.
    TooMany,
    /// Others are before it.
    Busy,
}

impl Default for InTurn {
    fn default() -> InTurn {
        InTurn { clients: Mutex::default(), one: Arc::new(Semaphore::new(1)) }
    }
}

impl InTurn {
    /// Waits until it is this client's turn, and no longer than `latest`. What a client asks for while its own is done
    /// goes behind all who wait by then.
    pub async fn place(&self, client: &str, latest: Instant) -> Result<Place, NoPlace> {
        let Client { places, turn } = {
            let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            if clients.len() >= CLIENTS {
                clients.retain(|_, client| client.places.available_permits() < PLACES_PER_CLIENT);
            }
            let new = || Client {
                places: Arc::new(Semaphore::new(PLACES_PER_CLIENT)),
                turn: Arc::new(Semaphore::new(1)),
            };
            clients.entry(client.to_owned()).or_insert_with(new).clone()
        };
        let place = places.try_acquire_owned().map_err(|_| NoPlace::TooMany)?;
        let both = async {
            Some((turn.acquire_owned().await.ok()?, Arc::clone(&self.one).acquire_owned().await.ok()?))
        };
        let waited = tokio::time::timeout_at(latest, both).await;
        let (turn, one) = waited.ok().flatten().ok_or(NoPlace::Busy)?;
        Ok(Place { _held: [place, turn, one] })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    /// Lets tasks go on until they wait.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn who_asks_again_and_again_comes_behind_those_who_wait() {
        block_on(async {
            let turns = Arc::new(InTurn::default());
            let served = Arc::new(Mutex::new(Vec::new()));
            let first = turns.place("eve", later()).await.unwrap();
            let mut tasks = Vec::new();
            for client in ["eve", "ada", "bob"] {
                let (turns, served) = (Arc::clone(&turns), Arc::clone(&served));
                tasks.push(tokio::spawn(async move {
                    let _place = turns.place(client, later()).await.unwrap();
                    served.lock().unwrap().push(client);
                    settle().await;
                }));
                settle().await;
            }
            assert_eq!(
                turns.place("eve", later()).await.unwrap_err(),
                NoPlace::TooMany,
                "one at work, one that waits"
            );
            assert!(served.lock().unwrap().is_empty(), "one at a time");
            drop(first);
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*served.lock().unwrap(), ["ada", "bob", "eve"]);
            assert!(turns.place("eve", later()).await.is_ok());
        });
    }

    #[test]
    fn a_client_that_goes_away_while_it_waits_leaves_its_place() {
        block_on(async {
            let turns = Arc::new(InTurn::default());
            let first = turns.place("eve", later()).await.unwrap();
            for _ in 0..3 {
                let turns = Arc::clone(&turns);
                let waiting = tokio::spawn(async move { turns.place("ada", later()).await.is_ok() });
                settle().await;
                waiting.abort();
                assert!(waiting.await.unwrap_err().is_cancelled());
            }
            drop(first);
            assert!(turns.place("ada", later()).await.is_ok());
        });
    }

    #[test]
    fn nobody_waits_for_ever() {
        block_on(async {
            let turns = InTurn::default();
            let first = turns.place("eve", later()).await.unwrap();
            assert_eq!(turns.place("ada", Instant::now()).await.unwrap_err(), NoPlace::Busy);
            drop(first);
            assert!(turns.place("ada", later()).await.is_ok());
        });
    }
}
