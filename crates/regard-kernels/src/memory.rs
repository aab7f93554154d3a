//! What becomes of freed memory.

/// Keeps freed memory for the next step, instead of giving it back and having every page cleared again, and takes it in
/// large pages.
///
/// Training frees and makes the same arrays over and over; giving them back costs up to a third of a step. A prediction
/// touches some ten thousand small pages, which is half of its time when it is the first. For programs to call once at
/// their start; does nothing where the allocator is not glibc's.
pub fn keep() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_void;
        unsafe extern "C" {
            fn mallopt(option: i32, value: i32) -> i32;
            fn malloc(size: usize) -> *mut c_void;
            fn free(memory: *mut c_void);
            fn madvise(start: *mut c_void, len: usize, advice: i32) -> i32;
        }
        const TRIM_THRESHOLD: i32 = -1;
        const TOP_PAD: i32 = -2;
        const MMAP_MAX: i32 = -4;
        // one heap for all threads, whose end is where all large arrays come from
        const ARENA_MAX: i32 = -8;
        const LARGE_PAGE: usize = 2 << 20;
        const ADVISE_LARGE_PAGES: i32 = 14;
        for (option, value) in [(TRIM_THRESHOLD, i32::MAX), (TOP_PAD, 64 << 20), (MMAP_MAX, 0), (ARENA_MAX, 1)] {
            // SAFETY: it only sets a number that later allocations read
            unsafe { mallopt(option, value) };
        }
        // addresses alone: nothing of it is touched; less where so much is refused
        for size in [1 << 30, 256 << 20, 64 << 20] {
            // SAFETY: the advice is for whole pages within what was allocated, and changes nothing that is in them
            unsafe {
                let memory = malloc(size);
                if !memory.is_null() {
                    let before = memory.align_offset(LARGE_PAGE);
                    let len = (size - before) / LARGE_PAGE * LARGE_PAGE;
                    madvise(memory.byte_add(before), len, ADVISE_LARGE_PAGES);
                    free(memory);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_is_there_before_and_after() {
        let before = vec![1.0f32; 1 << 20];
        super::keep();
        let after = vec![2.0f32; 1 << 24];
        assert_eq!((before[(1 << 20) - 1], after[(1 << 24) - 1]), (1.0, 2.0));
    }
}
