//! What the daemon does not need any more goes back to the machine.

use std::os::unix::ffi::OsStrExt;

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

/// Code that was needed to start and to answer: more than half of what a daemon at rest would hold. It is in the
/// program's file, from which the kernel reloads what is called next.
pub fn give_back_code() {
    let (Ok(maps), Ok(program)) = (std::fs::read("/proc/self/maps"), std::fs::read_link("/proc/self/exe"))
    else {
        return;
    };
    for (begin, end) in code_of(&maps, program.as_os_str().as_bytes()) {
        // SAFETY: a read-only mapping of our own: dropped pages are read from the file again.
        unsafe {
            libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_DONTNEED);
        }
    }
}

/// Where a program's code is mapped: `5584e1-5584e2 r-xp 00396000 fe:00 1183 /usr/bin/met`.
fn code_of(maps: &[u8], program: &[u8]) -> Vec<(usize, usize)> {
    let range = |line: &[u8]| {
        let line = std::str::from_utf8(line.strip_suffix(program)?).ok()?;
        let (range, rest) = line.split_once(' ')?;
        let (begin, end) = range.split_once('-')?;
        let address = |digits| usize::from_str_radix(digits, 16).ok();
        rest.starts_with("r-xp ")
            .then_some((address(begin)?, address(end)?))
            .filter(|(begin, end)| begin < end)
    };
    maps.split(|&byte| byte == b'\n').filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_code_of_the_program_itself_is_given_back() {
        let maps = b"1000-2000 r--p 00000000 fe:00 11 /usr/bin/met\n\
            2000-5000 r-xp 00001000 fe:00 11                         /usr/bin/met\n\
            5000-6000 rw-p 00004000 fe:00 11 /usr/bin/met\n\
            7000-9000 r-xp 00000000 fe:00 12 /usr/lib/libc.so.6\n\
            a000-b000 r-xp 00000000 00:00 0  [vdso]\n\
            garbage r-xp /usr/bin/met\n";
        assert_eq!(code_of(maps, b"/usr/bin/met"), [(0x2000, 0x5000)]);
    }

    /// Resident bytes of the first mapping of code.
    fn resident(begin: usize) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = smaps.split_once(&format!("{begin:x}-")).unwrap().1;
        let line = mapping.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    fn a_program_holds_less_of_its_code_afterwards_and_goes_on() {
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let (begin, end) = code_of(&maps, program.as_os_str().as_bytes())[0];
        for page in (begin..end).step_by(4096) {
            // SAFETY: our own code, which can be read.
            std::hint::black_box(unsafe { std::ptr::read_volatile(page as *const u8) });
        }
        let before = resident(begin);
        give_back_code();
        assert!(resident(begin) < before / 2, "{} of {before} bytes", resident(begin));
    }
}
