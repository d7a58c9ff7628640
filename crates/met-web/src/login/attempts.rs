//! Limits failed logins: by address, by name, and by both together.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(300);
/// Failures within the window: of an address, of an address with one name, and of a name from anywhere. The last is
/// large: others could otherwise lock a person out.
const PER_ADDRESS: u32 = 30;
const PER_BOTH: u32 = 10;
const PER_NAME: u32 = 100;
const ENTRIES_MAX: usize = 8192;

#[derive(Debug, Default)]
pub struct Attempts(Mutex<HashMap<Source, Failures>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    Address(IpAddr),
    /// Names by a hash: they may be passwords in the wrong field, and of any length.
    Name(u64),
    Both(IpAddr, u64),
}

#[derive(Debug)]
struct Failures {
    count: u32,
    since: Instant,
}

impl Attempts {
    /// How long to wait before the next attempt, if too many failed.
    pub fn wait(&self, address: Option<IpAddr>, name: Option<&str>) -> Option<Duration> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = sources(address, name).into_iter().filter_map(|(source, most)| {
            let failures = known.get(&source).filter(|failures| failures.count >= most)?;
            WINDOW.checked_sub(failures.since.elapsed())
        });
        waits.max()
    }

    pub fn failed(&self, address: Option<IpAddr>, name: Option<&str>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (source, _) in sources(address, name) {
            if known.len() >= ENTRIES_MAX && !known.contains_key(&source) {
                make_room(&mut known);
            }
            let failures = known.entry(source).or_insert(Failures { count: 0, since: Instant::now() });
            if failures.since.elapsed() >= WINDOW {
                *failures = Failures { count: 0, since: Instant::now() };
            }
            failures.count = failures.count.saturating_add(1);
        }
    }

    /// Who has the right password did not guess. The address stays counted: it may have guessed for others.
    pub fn succeeded(&self, address: Option<IpAddr>, name: Option<&str>) {
        let Some((address, name)) = address.zip(name) else { return };
        let both = Source::Both(network(address), hash(name));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&both);
    }
}

fn make_room(known: &mut HashMap<Source, Failures>) {
    known.retain(|_, failures| failures.since.elapsed() < WINDOW);
    if known.len() >= ENTRIES_MAX {
        // All are recent: the half with the fewest failures goes, so that one who tries often stays known.
        let mut counts: Vec<u32> = known.values().map(|failures| failures.count).collect();
        counts.sort_unstable();
        let least = counts[counts.len() / 2];
        let mut excess = known.len() / 2;
        known.retain(|_, failures| {
            let goes = failures.count <= least && excess > 0;
            excess -= usize::from(goes);
            !goes
        });
    }
}

/// What an attempt is counted under, and how often. Those behind a proxy have no address of their own. A token comes
/// without a name: under an empty one, strangers could lock out all who have tokens.
fn sources(address: Option<IpAddr>, name: Option<&str>) -> Vec<(Source, u32)> {
    let (network, name) = (address.map(network), name.map(hash));
    let of_address = network.map(|network| (Source::Address(network), PER_ADDRESS));
    let of_name = name.map(|name| (Source::Name(name), PER_NAME));
    let of_both = network.zip(name).map(|(network, name)| (Source::Both(network, name), PER_BOTH));
    [of_address, of_name, of_both].into_iter().flatten().collect()
}

/// One client has a whole /64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

fn hash(name: &str) -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    digest.as_ref().iter().take(8).fold(0, |hash, &byte| hash << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    #[test]
    fn one_who_guesses_waits_and_others_do_not() {
        let attempts = Attempts::default();
        for _ in 0..PER_BOTH {
            assert!(attempts.wait(address(1), Some("ada")).is_none());
            attempts.failed(address(1), Some("ada"));
        }
        assert!(attempts.wait(address(1), Some("ada")).is_some());
        assert!(
            attempts.wait(address(1), Some("bob")).is_none()
                && attempts.wait(address(2), Some("ada")).is_none()
        );
        attempts.succeeded(address(1), Some("ada"));
        assert!(attempts.wait(address(1), Some("ada")).is_none());
        for guess in 0..PER_ADDRESS {
            attempts.failed(address(3), Some(&guess.to_string()));
        }
        assert!(attempts.wait(address(3), Some("new")).is_some());
    }

    #[test]
    fn a_name_is_guarded_from_many_addresses() {
        let attempts = Attempts::default();
        for last in 0..PER_NAME {
            attempts.failed(Some(IpAddr::from([10, 1, (last >> 8) as u8, last as u8])), Some("ada"));
        }
        assert!(attempts.wait(address(9), Some("ada")).is_some());
    }

    #[test]
    fn many_addresses_take_bounded_memory_and_the_worst_stay_known() {
        let attempts = Attempts::default();
        for _ in 0..PER_ADDRESS {
            attempts.failed(address(1), Some("ada"));
        }
        for number in 0..3 * ENTRIES_MAX as u32 {
            attempts.failed(Some(IpAddr::from(number.to_be_bytes())), Some(&number.to_string()));
        }
        assert!(attempts.0.lock().unwrap().len() <= ENTRIES_MAX);
        assert!(attempts.wait(address(1), Some("other")).is_some());
    }

    #[test]
    fn the_addresses_of_one_network_count_together() {
        let attempts = Attempts::default();
        for last in 0..PER_ADDRESS {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last as u16);
            attempts.failed(Some(address.into()), Some(&last.to_string()));
        }
        assert!(attempts.wait("2001:db8::ffff".parse().ok(), Some("x")).is_some());
        assert!(attempts.wait("2001:db8:1::1".parse().ok(), Some("x")).is_none());
    }

    #[test]
    fn no_user_is_locked_out_by_tokens_that_others_guess() {
        let attempts = Attempts::default();
        for number in 0..10 * PER_NAME {
            attempts.failed(Some(IpAddr::from(number.to_be_bytes())), None);
        }
        assert!(attempts.wait(address(1), None).is_none() && attempts.wait(None, None).is_none());
    }
}
