//! Pages of the program's file that this process has mapped.

/// Gives back the pages of code and constants that were touched; what is needed again comes back from the page cache.
/// Without this every waiting supervisor counts most of the binary as its own.
pub fn give_back() {
    // SAFETY: the callback only reads the headers it is given.
    unsafe { libc::dl_iterate_phdr(Some(give_back_object), std::ptr::null_mut()) };
}

unsafe extern "C" fn give_back_object(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut libc::c_void,
) -> i32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident bytes of the mapping that begins at the lowest address of the program's code.
    fn resident(begin: usize) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = smaps.split_once(&format!("{begin:x}-")).unwrap().1;
        let line = mapping.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    fn mapping(kind: &str) -> (usize, usize) {
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_one = |line: &&str| line.contains(kind) && line.ends_with(program.to_str().unwrap());
        let (range, _) = maps.lines().find(is_one).unwrap().split_once(' ').unwrap();
        let (begin, end) = range.split_once('-').unwrap();
        let address = |digits| usize::from_str_radix(digits, 16).unwrap();
        (address(begin), address(end))
    }

    #[test]
    fn a_program_holds_less_of_its_code_and_constants_afterwards_and_goes_on() {
        for kind in [" r-xp ", " r--p 00000000"] {
            let (begin, end) = mapping(kind);
            for page in (begin..end).step_by(4096) {
                // SAFETY: our own mapping, which can be read.
                std::hint::black_box(unsafe { std::ptr::read_volatile(page as *const u8) });
            }
            let before = resident(begin);
            give_back();
            assert!(resident(begin) < before / 2, "{kind}: {} of {before} bytes", resident(begin));
        }
    }
}
