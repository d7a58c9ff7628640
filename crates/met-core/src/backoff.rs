//! Pauses before a failed attempt is repeated.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

/// From half of a pause to all of it, so that those that lost the same server do not come back at once.
pub fn jittered(pause: Duration) -> Duration {
    // The standard library's hash maps are seeded from the system's random numbers.
    let random = RandomState::new().build_hasher().finish();
    pause / 2 + pause.mul_f64((random >> 11) as f64 / (1_u64 << 53) as f64 / 2.0)
}
