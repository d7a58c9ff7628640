//! Returns memory that the daemon no longer needs to the machine.

use std::io::Read;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use met_host::clock;

/// Code and constants that ticks need, with some room. The kernel maps 16 pages around each one that is touched.
const CODE_BYTES: u64 = 9 << 20;
/// More often would cost more than it gives: every thread has to get its pages again.
const CODE_APART: Duration = Duration::from_secs(5);

/// Two pools for all threads, and a mapping of its own for each large buffer: with a pool for each thread, and buffers
/// that stay in it, a daemon holds several times what it needs. To be called before other threads are started.
pub fn share_pools() {
    #[cfg(target_env = "gnu")]
    // SAFETY: they set numbers of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// What a long answer took: the allocator would keep it for the next one.
pub fn give_back_free() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches what is free only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Code and constants that were needed to start and to answer: more than half of what a daemon at rest would hold.
pub use crate::file_pages::give_back as give_back_code;

/// Gives code back if there is more of it than ticks need: some was needed to start, to write or to answer. It is called
/// after such work, and holds what a daemon with many jobs takes below what it would be with everything it ever did.
pub fn limit_code() {
    static LAST_NS: AtomicI64 = AtomicI64::new(0);
    let (now_ns, last_ns) = (clock::boottime_ns(), LAST_NS.load(Ordering::Relaxed));
    let is_due = now_ns - last_ns >= CODE_APART.as_nanos() as i64;
    if is_due && resident_file_bytes().is_some_and(|bytes| bytes > CODE_BYTES) {
        LAST_NS.store(now_ns, Ordering::Relaxed);
        give_back_code();
    }
}

fn resident_file_bytes() -> Option<u64> {
    let mut text = [0; 128];
    let length = std::fs::File::open("/proc/self/statm").ok()?.read(&mut text).ok()?;
    file_pages(&text[..length]).map(|pages| pages * rustix::param::page_size() as u64)
}

/// The third number: pages that lie in files.
fn file_pages(statm: &[u8]) -> Option<u64> {
    std::str::from_utf8(statm).ok()?.split_ascii_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_files_are_the_third_number() {
        assert_eq!(file_pages(b"5000 700 300 2 0 400 0\n"), Some(300));
        assert_eq!(file_pages(b"5000 700"), None);
        assert_eq!(file_pages(b"5000 700 x"), None);
    }

    #[test]
    fn a_process_has_some_of_its_code_in_memory() {
        assert!(resident_file_bytes().is_some_and(|bytes| bytes > 0));
    }
}
