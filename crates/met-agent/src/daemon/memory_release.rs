//! Returns memory that the daemon no longer needs to the machine.

use std::io::Read;
use std::sync::Mutex;

use met_host::clock;

/// Code and constants that ticks need, with some room. The kernel maps 16 pages around each one that is touched.
const CODE_BYTES: u64 = 9 << 20;
/// How often that is looked at. More often would cost more than it gives: every thread has to get its pages again.
const CODE_APART_NS: i64 = 5_000_000_000;
/// Where what is given back is needed again at once, as with the library of a GPU, it is looked at ever more rarely.
const CODE_APART_MAX_NS: i64 = 60_000_000_000;

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
    static LIMIT: Mutex<CodeLimit> = Mutex::new(CodeLimit::new());
    // Another thread is at it.
    let Ok(mut limit) = LIMIT.try_lock() else { return };
    if limit.is_exceeded(clock::boottime_ns(), resident_file_bytes) {
        give_back_code();
    }
}

/// When code is given back.
struct CodeLimit {
    next_ns: i64,
    apart_ns: i64,
    /// Whether it was above the limit at the last look.
    was_above: bool,
}

impl CodeLimit {
    const fn new() -> CodeLimit {
        CodeLimit { next_ns: 0, apart_ns: CODE_APART_NS, was_above: false }
    }

    fn is_exceeded(&mut self, now_ns: i64, resident_bytes: impl FnOnce() -> Option<u64>) -> bool {
        if now_ns < self.next_ns {
            return false;
        }
        let is_above = resident_bytes().is_some_and(|bytes| bytes > CODE_BYTES);
        self.apart_ns = match is_above && self.was_above {
            true => (2 * self.apart_ns).min(CODE_APART_MAX_NS),
            false => CODE_APART_NS,
        };
        (self.was_above, self.next_ns) = (is_above, now_ns + self.apart_ns);
        is_above
    }
}

fn resident_file_bytes() -> Option<u64> {
    let mut text = [0; 128];
    let length = std::fs::File::open("/proc/self/statm").ok()?.read(&mut text).ok()?;
    file_pages(&text[..length]).map(|pages| pages * rustix::param::page_size() as u64)
}

/// The third number: file-backed and shared-memory pages.
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
    fn code_is_given_back_above_the_limit_and_ever_more_rarely_if_that_does_not_help() {
        let (mut limit, second_ns) = (CodeLimit::new(), 1_000_000_000);
        let mut looks = 0;
        let mut exceeded = |at_s: i64, bytes: u64| {
            let look = || {
                looks += 1;
                Some(bytes)
            };
            limit.is_exceeded(at_s * second_ns, look)
        };
        assert!(!exceeded(1, CODE_BYTES));
        assert!(!exceeded(5, 2 * CODE_BYTES), "too soon after the last look");
        assert!(exceeded(6, 2 * CODE_BYTES));
        assert!(!exceeded(11, CODE_BYTES) && exceeded(16, 2 * CODE_BYTES));
        let given_back = (17..1000).filter(|&at_s| exceeded(at_s, 2 * CODE_BYTES)).count();
        assert!((15..=20).contains(&given_back), "{given_back} times in 1000 s");
        assert_eq!(looks, 4 + given_back);
    }

    #[test]
    fn a_process_has_some_of_its_code_in_memory() {
        assert!(resident_file_bytes().is_some_and(|bytes| bytes > 0));
    }
}
