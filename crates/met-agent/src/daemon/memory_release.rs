//! Returns memory that the daemon no longer needs to the machine.

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
