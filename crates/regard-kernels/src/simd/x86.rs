//! The vectors of AVX2 and AVX-512.
//!
//! Nothing outside `simd` can name these types: kernels get them as a `V: Vector` from [`run_avx2`] and [`run_avx512`],
//! and these want a proof that the instructions were detected. So wherever a method of theirs runs, the instructions are
//! there. That is why the safe methods below may use intrinsics.
#![allow(clippy::wildcard_imports)]

use std::arch::x86_64::*;

use super::detected;
use super::vector::{Kernel, Vector};

/// Runs a kernel in eight lanes.
#[inline(always)]
pub(super) fn run_avx2<K: Kernel>(_: detected::Avx2, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma")]
    fn compiled<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx2>()
    }
    // SAFETY: there is a proof that AVX2 and FMA were detected
    unsafe { compiled(kernel) }
}

/// Runs a kernel in sixteen lanes.
#[inline(always)]
pub(super) fn run_avx512<K: Kernel>(_: detected::Avx512, kernel: K) -> K::Output {
    #[target_feature(enable = "avx512f,avx2,fma")]
    fn compiled<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx512>()
    }
    // SAFETY: there is a proof that AVX-512, AVX2 and FMA were detected
    unsafe { compiled(kernel) }
}

/// An intrinsic that only works on registers.
macro_rules! register {
    ($operation:expr) => {{
        // SAFETY: the instructions are there, since nobody else can name the type (see above), and no memory is touched
        unsafe { $operation }
    }};
}

#[derive(Clone, Copy)]
pub(in crate::simd) struct Avx512(pub(in crate::simd) __m512);

impl Vector for Avx512 {
    const LANES: usize = 16;
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self(register!(_mm512_set1_ps(x)))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: sixteen floats are readable by contract, and the instructions are there (see above)
        Self(unsafe { _mm512_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: sixteen floats are writable by contract, and the instructions are there (see above)
        unsafe { _mm512_storeu_ps(to, self.0) };
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: the lanes of the mask are readable by contract, others are not read
        Self(unsafe { _mm512_maskz_loadu_ps((1u16 << count) - 1, from) })
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: the lanes of the mask are writable by contract, others are not written
        unsafe { _mm512_mask_storeu_ps(to, (1u16 << count) - 1, self.0) };
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(register!(_mm512_add_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(register!(_mm512_sub_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(register!(_mm512_mul_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(register!(_mm512_div_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn fma(self, factor: Self, term: Self) -> Self {
        Self(register!(_mm512_fmadd_ps(self.0, factor.0, term.0)))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(register!(_mm512_max_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(register!(_mm512_min_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        Self(register!(_mm512_roundscale_ps::<8>(self.0)))
    }
    #[inline(always)]
    fn scale_by_power(self, n: Self) -> Self {
        Self(register!(_mm512_scalef_ps(self.0, n.0)))
    }
    #[inline(always)]
    fn positive(self, yes: Self, no: Self) -> Self {
        register!({
            let mask = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, _mm512_setzero_ps());
            Self(_mm512_mask_blend_ps(mask, no.0, yes.0))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        register!(_mm512_reduce_add_ps(self.0))
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        register!(_mm512_reduce_max_ps(self.0))
    }
    #[inline(always)]
    fn interleave(self, other: Self) -> [Self; 2] {
        register!({
            let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            [
                Self(_mm512_permutex2var_ps(self.0, first, other.0)),
                Self(_mm512_permutex2var_ps(self.0, second, other.0)),
            ]
        })
    }
    #[inline(always)]
    fn deinterleave(self, other: Self) -> [Self; 2] {
        register!({
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            [Self(_mm512_permutex2var_ps(self.0, even, other.0)), Self(_mm512_permutex2var_ps(self.0, odd, other.0))]
        })
    }
    #[inline(always)]
    unsafe fn transpose_8x8(from: (*const f32, usize), to: (*mut f32, usize)) {
        // SAFETY: the same contract; whoever runs AVX-512 runs AVX2
        unsafe { Avx2::transpose_8x8(from, to) };
    }
}

#[derive(Clone, Copy)]
pub(in crate::simd) struct Avx2(pub(in crate::simd) __m256);

/// A mask of the first `count` lanes.
/// # Safety
/// There are no more than eight of them.
#[inline(always)]
unsafe fn first(count: usize) -> __m256i {
    const LANES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: by contract eight numbers from `8 - count` on are within the sixteen, and the instructions are there (see above)
    unsafe { _mm256_loadu_si256(LANES.as_ptr().add(8 - count).cast()) }
}

impl Vector for Avx2 {
    const LANES: usize = 8;
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self(register!(_mm256_set1_ps(x)))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: eight floats are readable by contract, and the instructions are there (see above)
        Self(unsafe { _mm256_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: eight floats are writable by contract, and the instructions are there (see above)
        unsafe { _mm256_storeu_ps(to, self.0) };
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: the lanes of the mask are readable by contract, others are not read
        Self(unsafe { _mm256_maskload_ps(from, first(count)) })
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: the lanes of the mask are writable by contract, others are not written
        unsafe { _mm256_maskstore_ps(to, first(count), self.0) };
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(register!(_mm256_add_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(register!(_mm256_sub_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(register!(_mm256_mul_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(register!(_mm256_div_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn fma(self, factor: Self, term: Self) -> Self {
        Self(register!(_mm256_fmadd_ps(self.0, factor.0, term.0)))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(register!(_mm256_max_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(register!(_mm256_min_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        Self(register!(_mm256_round_ps::<8>(self.0)))
    }
    #[inline(always)]
    fn scale_by_power(self, n: Self) -> Self {
        register!({
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.0), _mm256_set1_epi32(127));
            Self(_mm256_mul_ps(self.0, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))))
        })
    }
    #[inline(always)]
    fn positive(self, yes: Self, no: Self) -> Self {
        register!({
            let mask = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, _mm256_setzero_ps());
            Self(_mm256_blendv_ps(no.0, yes.0, mask))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = [0.0f32; 8];
        // SAFETY: there is room for eight
        unsafe { self.store(lanes.as_mut_ptr()) };
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        let mut lanes = [0.0f32; 8];
        // SAFETY: there is room for eight
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes.iter().fold(f32::NEG_INFINITY, |a, &b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn interleave(self, other: Self) -> [Self; 2] {
        register!({
            let (low, high) = (_mm256_unpacklo_ps(self.0, other.0), _mm256_unpackhi_ps(self.0, other.0));
            [Self(_mm256_permute2f128_ps::<0x20>(low, high)), Self(_mm256_permute2f128_ps::<0x31>(low, high))]
        })
    }
    #[inline(always)]
    fn deinterleave(self, other: Self) -> [Self; 2] {
        register!({
            // pairs of each half of both, then the middle pairs change places
            let even = _mm256_shuffle_ps::<0b10_00_10_00>(self.0, other.0);
            let odd = _mm256_shuffle_ps::<0b11_01_11_01>(self.0, other.0);
            let [even, odd] = [_mm256_castps_pd(even), _mm256_castps_pd(odd)];
            [
                Self(_mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(even))),
                Self(_mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(odd))),
            ]
        })
    }
    #[inline(always)]
    unsafe fn transpose_8x8(from: (*const f32, usize), to: (*mut f32, usize)) {
        // SAFETY: eight floats of each row are readable and writable by contract, and the instructions are there
        unsafe {
            // written out: a closure would not be compiled for this instruction set
            let mut rows = [_mm256_setzero_ps(); 8];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = _mm256_loadu_ps(from.0.add(i * from.1));
            }
            // pairs, then fours, then halves change places
            let mut pairs = rows;
            for i in [0, 2, 4, 6] {
                pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
                pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
            }
            let mut fours = [[rows[0]; 4]; 2];
            for (i, fours) in fours.iter_mut().enumerate() {
                let (a, b, c, d) = (pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]);
                fours[0] = _mm256_shuffle_ps::<0b01_00_01_00>(a, c);
                fours[1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, c);
                fours[2] = _mm256_shuffle_ps::<0b01_00_01_00>(b, d);
                fours[3] = _mm256_shuffle_ps::<0b11_10_11_10>(b, d);
            }
            for (j, (&low, &high)) in fours[0].iter().zip(&fours[1]).enumerate() {
                _mm256_storeu_ps(to.0.add(j * to.1), _mm256_permute2f128_ps::<0x20>(low, high));
                _mm256_storeu_ps(to.0.add((j + 4) * to.1), _mm256_permute2f128_ps::<0x31>(low, high));
            }
        }
    }
}
