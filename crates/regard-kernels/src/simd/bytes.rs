//! Sums of products of bytes: what multiplies whole numbers in each instruction set.

use super::detected;
use super::vector::{Portable, Vector};
use super::{Isa, isa};

/// How whole numbers are multiplied: the proof that its instructions were detected.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ByteIsa {
    #[cfg(target_arch = "x86_64")]
    Vnni(detected::Vnni),
    #[cfg(target_arch = "x86_64")]
    Avx2(detected::Avx2),
    Portable,
}

/// A kernel on bytes, generic over its sums and the rows whose sums fit the registers.
pub(crate) trait ByteKernel {
    fn run<S: ByteSums, const R: usize>(self);
}

impl ByteIsa {
    /// What the path of the calling thread has.
    pub fn current() -> Self {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(avx512) => match detected::Vnni::find(avx512) {
                Some(vnni) => Self::Vnni(vnni),
                None => Self::Avx2(avx512.avx2()),
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(avx2) => Self::Avx2(avx2),
            Isa::Portable => Self::Portable,
        }
    }

    /// Lanes of two registers of sums.
    pub const fn width(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(_) => 32,
            _ => 16,
        }
    }

    /// Runs a kernel compiled for these instructions.
    pub fn run(self, kernel: impl ByteKernel) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(proof) => x86::run_vnni(proof, kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => x86::run_avx2(proof, kernel),
            Self::Portable => kernel.run::<[i32; 8], 4>(),
        }
    }
}

/// A register of sums.
pub(crate) trait ByteSums: Copy {
    type Floats: Vector;
    /// The first numbers of a slice.
    fn get(begin: &[i32]) -> Self;
    /// Adds the products of one row's four bytes with a register of weights.
    /// # Safety
    /// Four bytes must be readable at `left`, and a register of them at `right`.
    unsafe fn add_products(self, left: *const u8, right: *const u8) -> Self;
    fn floats(self) -> Self::Floats;
}

impl ByteSums for [i32; 8] {
    type Floats = Portable;
    #[inline(always)]
    fn get(begin: &[i32]) -> Self {
        std::array::from_fn(|i| begin[i])
    }
    #[inline(always)]
    unsafe fn add_products(self, left: *const u8, right: *const u8) -> Self {
        // SAFETY: four bytes and 32 of them are readable by contract
        let (left, right) =
            unsafe { (left.cast::<[u8; 4]>().read_unaligned(), right.cast::<[[i8; 4]; 8]>().read_unaligned()) };
        let term = |i: usize, part: usize| i32::from(left[part]) * i32::from(right[i][part]);
        std::array::from_fn(|i| self[i] + (0..4).map(|part| term(i, part)).sum::<i32>())
    }
    #[inline(always)]
    fn floats(self) -> Portable {
        Portable::get(&self.map(|x| x as f32), 0)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! As in [`crate::simd::x86`], nobody outside can name the types, so their instructions are there where methods run.
    #![allow(clippy::wildcard_imports)]

    use std::arch::x86_64::*;

    use super::{ByteKernel, ByteSums, detected};
    use crate::simd::x86::{Avx2, Avx512};

    pub(super) fn run_vnni(_: detected::Vnni, kernel: impl ByteKernel) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma")]
        fn compiled(kernel: impl ByteKernel) {
            kernel.run::<Bytes, 12>();
        }
        // SAFETY: there is a proof that these instructions were detected
        unsafe { compiled(kernel) }
    }

    pub(super) fn run_avx2(_: detected::Avx2, kernel: impl ByteKernel) {
        #[target_feature(enable = "avx2,fma")]
        fn compiled(kernel: impl ByteKernel) {
            kernel.run::<Pairs, 6>();
        }
        // SAFETY: there is a proof that these instructions were detected
        unsafe { compiled(kernel) }
    }

    /// Sixteen sums of products of bytes.
    #[derive(Clone, Copy)]
    struct Bytes(__m512i);

    impl ByteSums for Bytes {
        type Floats = Avx512;
        #[inline(always)]
        fn get(begin: &[i32]) -> Self {
            // SAFETY: the slice has sixteen numbers, and the instructions are there (see above)
            Self(unsafe { _mm512_loadu_si512(begin[..16].as_ptr().cast()) })
        }
        #[inline(always)]
        unsafe fn add_products(self, left: *const u8, right: *const u8) -> Self {
            // SAFETY: four bytes and 64 of them are readable by contract, and the instructions are there (see above)
            unsafe {
                let left = _mm512_set1_epi32(left.cast::<i32>().read_unaligned());
                Self(_mm512_dpbusd_epi32(self.0, left, _mm512_loadu_si512(right.cast())))
            }
        }
        #[inline(always)]
        fn floats(self) -> Avx512 {
            // SAFETY: the instructions are there (see above)
            Avx512(unsafe { _mm512_cvtepi32_ps(self.0) })
        }
    }

    /// Eight sums of products of bytes, added in pairs of sixteen bits first.
    #[derive(Clone, Copy)]
    struct Pairs(__m256i);

    impl ByteSums for Pairs {
        type Floats = Avx2;
        #[inline(always)]
        fn get(begin: &[i32]) -> Self {
            // SAFETY: the slice has eight numbers, and the instructions are there (see above)
            Self(unsafe { _mm256_loadu_si256(begin[..8].as_ptr().cast()) })
        }
        #[inline(always)]
        unsafe fn add_products(self, left: *const u8, right: *const u8) -> Self {
            // SAFETY: four bytes and 32 of them are readable by contract, and the instructions are there (see above)
            unsafe {
                let left = _mm256_set1_epi32(left.cast::<i32>().read_unaligned());
                let pairs = _mm256_maddubs_epi16(left, _mm256_loadu_si256(right.cast()));
                Self(_mm256_add_epi32(self.0, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))
            }
        }
        #[inline(always)]
        fn floats(self) -> Avx2 {
            // SAFETY: the instructions are there (see above)
            Avx2(unsafe { _mm256_cvtepi32_ps(self.0) })
        }
    }
}
