//! Keeps a waiting supervisor small.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};

/// Who has had nothing to do for so long will have nothing to do for a while.
const QUIET: Duration = Duration::from_secs(1);

/// Waits until one of `fds` is ready or `patience` is over. Who is `settled`, with nothing to do but to wait, waits
/// small. A signal that interrupts this is found in the next round.
pub fn wait(fds: &mut [PollFd], patience: Option<Duration>, settled: bool) {
    let mut wait = |patience: Option<Duration>| {
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        poll(fds, timeout.as_ref())
    };
    let may_be_long = settled && patience.is_none_or(|patience| patience > QUIET);
    if !may_be_long {
        let _ = wait(patience);
    } else if wait(Some(QUIET)) == Ok(0) {
        // Right before the wait: whatever is touched in between is back.
        shed_file_pages();
        let _ = wait(patience.map(|patience| patience - QUIET));
    }
}

/// Gives back the pages of code and constants that starting up has touched; what is needed again comes
/// back from the page cache. Without this every waiting supervisor counts most of the binary as its own.
pub fn shed_file_pages() {
    // SAFETY: the callback only reads the headers it is given.
    unsafe { libc::dl_iterate_phdr(Some(shed), std::ptr::null_mut()) };
}

unsafe extern "C" fn shed(object: *mut libc::dl_phdr_info, _size: usize, _data: *mut libc::c_void) -> i32 {
    const PAGE: usize = 4096;
    // SAFETY: the loader hands out valid headers of objects that stay loaded.
    let (base, headers) = unsafe {
        let object = &*object;
        (
            object.dlpi_addr as usize,
            std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)),
        )
    };
    for header in headers {
        // Relocated data lies in writable segments; dropping its pages would undo the relocations.
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
            let begin = (base + header.p_vaddr as usize) & !(PAGE - 1);
            let end = base + header.p_vaddr as usize + header.p_memsz as usize;
            // SAFETY: clean pages of a file mapping; they are read again when touched.
            unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_DONTNEED) };
        }
    }
    0
}
