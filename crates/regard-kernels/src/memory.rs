//! Settings of the memory allocator.

/// Keeps freed memory in the process instead of returning it to the system, which would have to clear every page again.
///
/// Training frees and allocates the same arrays over and over; returning them costs up to a third of a step. A program
/// calls this once, at its start. It does nothing where the allocator is not glibc's.
pub fn keep_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const TRIM_THRESHOLD: i32 = -1;
        const TOP_PAD: i32 = -2;
        const MMAP_MAX: i32 = -4;
        for (option, value) in [(TRIM_THRESHOLD, i32::MAX), (TOP_PAD, 64 << 20), (MMAP_MAX, 0)] {
            // SAFETY: it only sets a number that later allocations read
            unsafe { glibc::mallopt(option, value) };
        }
    }
}

/// Returns freed memory to the system once, also what [`keep_freed`] keeps.
///
/// For servers to call after a request that took much more memory than others do; takes milliseconds.
pub fn release_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it only touches memory that is not allocated
    unsafe {
        glibc::malloc_trim(0);
    }
}

/// Uses transparent huge pages of two megabytes for the first gigabyte of memory from now on.
///
/// For programs that run for long, to call after [`keep_freed`] and before they start threads: steps gain up to a tenth. One
/// that touches its memory once may lose, if the system has to search for such pages or returned them to the host.
pub fn use_huge_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // one heap for all threads, whose end is where large arrays come from
        const ARENA_MAX: i32 = -8;
        const LARGE_PAGE: usize = 2 << 20;
        const ADVISE_LARGE_PAGES: i32 = 14;
        // SAFETY: it only sets a number that later allocations read
        unsafe { glibc::mallopt(ARENA_MAX, 1) };
        // addresses alone: nothing of it is touched; less where so much is refused
        for size in [1 << 30, 256 << 20, 64 << 20] {
            // SAFETY: the advice is for whole pages within what was allocated, and changes nothing that is in them
            unsafe {
                let memory = glibc::malloc(size);
                if !memory.is_null() {
                    let before = memory.align_offset(LARGE_PAGE);
                    let len = (size - before) / LARGE_PAGE * LARGE_PAGE;
                    glibc::madvise(memory.byte_add(before), len, ADVISE_LARGE_PAGES);
                    glibc::free(memory);
                    return;
                }
            }
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::c_void;

    unsafe extern "C" {
        pub fn mallopt(option: i32, value: i32) -> i32;
        pub fn malloc(size: usize) -> *mut c_void;
        pub fn free(memory: *mut c_void);
        pub fn malloc_trim(pad: usize) -> i32;
        pub fn madvise(start: *mut c_void, len: usize, advice: i32) -> i32;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_is_there_before_and_after() {
        let before = vec![1.0f32; 1 << 20];
        super::keep_freed();
        super::use_huge_pages();
        let after = vec![2.0f32; 1 << 24];
        assert_eq!((before[(1 << 20) - 1], after[(1 << 24) - 1]), (1.0, 2.0));
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn freed_memory_goes_back_to_the_system_when_asked_to() {
        /// Bytes of this process that are in memory.
        fn resident() -> usize {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            4096 * text.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
        }
        super::keep_freed();
        let pieces: Vec<Vec<u8>> = (1..=64).map(|piece| vec![piece; 1 << 20]).collect();
        let after = vec![1u8; 1 << 20];
        let full = resident();
        drop(pieces);
        super::release_freed();
        assert!(resident() + (48 << 20) < full, "{} of {full}", resident());
        assert_eq!(after[1 << 19], 1);
    }
}
