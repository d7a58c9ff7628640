//! Returns memory that the daemon no longer needs to the machine.

use std::io::Read;
use std::sync::Mutex;

use met_host::clock;

/// Code and constants that ticks need, with some room. The kernel maps 16 pages around each one that is touched.
const CODE_BYTES: u64 = 9 << 20;
/// What a daemon without jobs may hold of it between two looks at the machine.
const CODE_AT_REST_BYTES: u64 = 3 << 20;
/// How often that is looked at. More often would cost more than it gives: every thread has to get its pages again.
const CODE_APART_NS: i64 = 5_000_000_000;
/// Where there is much more of it, as with the library of a GPU, most is needed again at once.
const MUCH_CODE_APART_NS: i64 = 30_000_000_000;

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
    limit(CODE_BYTES);
}

/// The same without jobs: what waits holds little.
pub fn limit_code_at_rest() {
    limit(CODE_AT_REST_BYTES);
}

fn limit(most_bytes: u64) {
    static LIMIT: Mutex<CodeLimit> = Mutex::new(CodeLimit::new());
    // Another thread is at it.
    let Ok(mut limit) = LIMIT.try_lock() else { return };
    if limit.is_exceeded(most_bytes, clock::boottime_ns(), resident_file_bytes) {
        give_back_code();
    }
}

/// When code is given back.
struct CodeLimit {
    next_ns: i64,
}

impl CodeLimit {
    const fn new() -> CodeLimit {
        CodeLimit { next_ns: 0 }
    }

    fn is_exceeded(
        &mut self,
        most_bytes: u64,
        now_ns: i64,
        resident_bytes: impl FnOnce() -> Option<u64>,
    ) -> bool {
        if now_ns < self.next_ns {
            return false;
        }
        let bytes = resident_bytes().unwrap_or(0);
        let apart_ns = if bytes > 2 * CODE_BYTES { MUCH_CODE_APART_NS } else { CODE_APART_NS };
        self.next_ns = now_ns + apart_ns;
        bytes > most_bytes
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
    fn code_is_given_back_above_the_limit_and_more_rarely_if_much_is_needed_again() {
        let (mut limit, second_ns) = (CodeLimit::new(), 1_000_000_000);
        let mut exceeded =
            |at_s: i64, bytes: u64| limit.is_exceeded(CODE_BYTES, at_s * second_ns, || Some(bytes));
        assert!(!exceeded(1, CODE_BYTES));
        assert!(!exceeded(5, CODE_BYTES + 1), "too soon after the last look");
        assert!(exceeded(6, CODE_BYTES + 1) && !exceeded(11, CODE_BYTES) && exceeded(16, CODE_BYTES + 1));
        let given_back = |limit: &mut CodeLimit, bytes: u64| {
            (1..=300).filter(|&at_s| limit.is_exceeded(CODE_BYTES, at_s * second_ns, || Some(bytes))).count()
        };
        assert_eq!(given_back(&mut CodeLimit::new(), 2 * CODE_BYTES), 60);
        assert_eq!(given_back(&mut CodeLimit::new(), 3 * CODE_BYTES), 10);
        assert!(!CodeLimit::new().is_exceeded(CODE_BYTES, second_ns, || None), "not known");
        let mut at_rest = CodeLimit::new();
        assert!(at_rest.is_exceeded(CODE_AT_REST_BYTES, second_ns, || Some(CODE_AT_REST_BYTES + 1)));
    }

    #[test]
    fn a_process_has_some_of_its_code_in_memory() {
        assert!(resident_file_bytes().is_some_and(|bytes| bytes > 0));
    }
}
