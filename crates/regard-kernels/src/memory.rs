//! What becomes of freed memory.

/// Keeps freed memory for the next step, instead of giving it back and having every page cleared again.
///
/// Training frees and makes the same arrays over and over; giving them back costs up to a third of a step. For
/// programs to call once at their start; does nothing where the allocator is not glibc's.
pub fn keep() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn mallopt(option: i32, value: i32) -> i32;
        }
        const TRIM_THRESHOLD: i32 = -1;
        const TOP_PAD: i32 = -2;
        const MMAP_MAX: i32 = -4;
        for (option, value) in [(TRIM_THRESHOLD, i32::MAX), (TOP_PAD, 64 << 20), (MMAP_MAX, 0)] {
            // SAFETY: it only sets a number that later allocations read
            unsafe { mallopt(option, value) };
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
