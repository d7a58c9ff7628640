//! Connections of each address: one machine alone does not take all there are.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

type Taken = Arc<Mutex<HashMap<IpAddr, usize>>>;

pub(super) struct ConnectionLimits {
    taken: Taken,
    per_address: usize,
}

/// A connection that counts until it is dropped; `None` inside where it is not counted.
pub(super) struct Slot(Option<(IpAddr, Taken)>);

impl ConnectionLimits {
    /// Three quarters are for one address: nodes may come through one gateway.
    pub(super) fn of(connections_max: usize) -> ConnectionLimits {
        ConnectionLimits {
            taken: Arc::default(),
            per_address: (connections_max - connections_max / 4).max(1),
        }
    }

    /// `None` if this address has as many as it may. This machine's own are not counted.
    pub(super) fn take(&self, address: IpAddr) -> Option<Slot> {
        let address = address.to_canonical();
        if address.is_loopback() {
            return Some(Slot(None));
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(address).or_default();
        if *count >= self.per_address {
            return None;
        }
        *count += 1;
        Some(Slot(Some((address, Arc::clone(&self.taken)))))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some((address, taken)) = self.0.take() else { return };
        if let Entry::Occupied(mut count) =
            taken.lock().unwrap_or_else(PoisonError::into_inner).entry(address)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_a_quarter_to_others() {
        let limits = ConnectionLimits::of(8);
        let [one, other, own] = ["10.0.0.1", "10.0.0.2", "::1"].map(|text| text.parse().unwrap());
        let mut taken: Vec<Slot> = (0..6).filter_map(|_| limits.take(one)).collect();
        assert!(taken.len() == 6 && limits.take(one).is_none() && limits.take(other).is_some());
        assert!((0..20).all(|_| limits.take(own).is_some()));
        taken.pop();
        assert!(limits.take(one).is_some());
        drop(taken);
        assert!(limits.taken.lock().unwrap().is_empty());
    }
}
