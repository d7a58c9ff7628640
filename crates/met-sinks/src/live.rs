//! Starts and ends of jobs for those who watch live. Without a listener an event is not even made.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::event::{Event, Kind};

/// Takes an event without waiting; `false` if it takes no more.
pub type Deliver = Box<dyn Fn(&Event) -> bool + Send>;

/// Where listeners come and go while a bus publishes.
#[derive(Default)]
pub struct Hub {
    listeners: Mutex<Vec<(usize, Deliver)>>,
    /// How many there are: looked at for every event, without the lock.
    count: AtomicUsize,
    next: AtomicUsize,
}

/// Listens until it is dropped.
pub struct Listening {
    hub: Arc<Hub>,
    number: usize,
}

impl Hub {
    pub fn listen(self: &Arc<Hub>, deliver: Deliver) -> Listening {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.change(|listeners| listeners.push((number, deliver)));
        Listening { hub: Arc::clone(self), number }
    }

    pub fn wants(&self, kind: Kind) -> bool {
        matches!(kind, Kind::Started | Kind::Ended) && self.count.load(Ordering::Relaxed) > 0
    }

    pub fn publish(&self, event: &Event) {
        if self.wants(event.kind()) {
            self.change(|listeners| listeners.retain(|(_, deliver)| deliver(event)));
        }
    }

    /// Ends all: the holder of the other end of a `Deliver` notices.
    pub fn close(&self) {
        self.change(Vec::clear);
    }

    fn change(&self, change: impl FnOnce(&mut Vec<(usize, Deliver)>)) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut listeners);
        self.count.store(listeners.len(), Ordering::Relaxed);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.hub.change(|listeners| listeners.retain(|(number, _)| *number != self.number));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn started(id: u32) -> Event {
        Event::Started(Arc::new(met_core::sample::full(id, "train")))
    }

    #[test]
    fn without_listeners_nothing_is_wanted() {
        let hub = Arc::new(Hub::default());
        assert!(!hub.wants(Kind::Started));
        let (sender, received) = sync_channel(2);
        let listening = hub.listen(Box::new(move |event| sender.try_send(event.clone()).is_ok()));
        assert!(hub.wants(Kind::Started) && hub.wants(Kind::Ended) && !hub.wants(Kind::Samples));
        hub.publish(&started(1));
        assert!(received.try_recv().is_ok());
        drop(listening);
        assert!(!hub.wants(Kind::Started));
    }

    #[test]
    fn a_listener_that_takes_no_more_is_dropped_and_others_stay() {
        let hub = Arc::new(Hub::default());
        let (slow, _unread) = sync_channel(1);
        let (quick, received) = sync_channel(10);
        let _slow = hub.listen(Box::new(move |event| slow.try_send(event.clone()).is_ok()));
        let _quick = hub.listen(Box::new(move |event| quick.try_send(event.clone()).is_ok()));
        (1..=5).for_each(|id| hub.publish(&started(id)));
        assert_eq!(received.try_iter().count(), 5);
        assert_eq!(hub.count.load(Ordering::Relaxed), 1);
        hub.close();
        assert!(!hub.wants(Kind::Ended));
    }
}
