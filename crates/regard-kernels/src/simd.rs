//! One vector type for three instruction sets, and the run-time choice between them.
//!
//! A kernel is written once, generic over [`Vector`], and compiled three times by [`kernel!`]. Written
//! by hand rather than with a SIMD crate because kernels need unaligned windows into padded planes, and
//! because a function per instruction set keeps every kernel a plain function with slices in and out.

use std::cell::Cell;
use std::sync::OnceLock;

/// An instruction set that kernels were compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Sixteen lanes.
    Avx512,
    /// Eight lanes with fused multiply-add.
    Avx2,
    /// Whatever the compiler makes of plain arrays.
    Portable,
}

impl Path {
    /// Every path that this machine can run, the best first.
    #[must_use]
    pub fn available() -> &'static [Path] {
        static AVAILABLE: OnceLock<Vec<Path>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            let mut paths = vec![Path::Portable];
            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    paths.insert(0, Path::Avx2);
                    if is_x86_feature_detected!("avx512f") {
                        paths.insert(0, Path::Avx512);
                    }
                }
            }
            paths
        })
    }
}

thread_local! {
    static FORCED: Cell<Option<Path>> = const { Cell::new(None) };
}

/// Runs `work` on one thread with every kernel forced onto a path: how tests compare the paths.
///
/// # Panics
/// When this machine cannot run that path.
pub fn with_path<T: Send>(path: Path, work: impl FnOnce() -> T + Send) -> T {
    assert!(Path::available().contains(&path), "this machine cannot run {path:?}");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread can be started");
    pool.install(|| {
        FORCED.set(Some(path));
        work()
    })
}

/// The path that kernels on this thread take.
#[inline]
#[must_use]
pub fn path() -> Path {
    FORCED.get().unwrap_or_else(|| Path::available()[0])
}

/// A register of `f32` lanes. `max` and `min` give the argument when it is NaN, so that NaN survives
/// clamping written as `limit.max(x)`.
pub(crate) trait Vector: Copy {
    const LANES: usize;
    fn splat(x: f32) -> Self;
    /// # Safety
    /// `LANES` floats must be readable at `from`.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `LANES` floats must be writable at `to`.
    unsafe fn store(self, to: *mut f32);
    /// The first `count` lanes, zeros in the rest.
    /// # Safety
    /// `count` < `LANES` floats must be readable at `from`.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    /// # Safety
    /// `count` < `LANES` floats must be writable at `to`.
    unsafe fn store_first(self, to: *mut f32, count: usize);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + term`
    fn fma(self, factor: Self, term: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    /// To the nearest integer; only for |x| < 2^22.
    fn round(self) -> Self;
    /// `self * 2^n` for an integral `n` in [-126, 127].
    fn scale_by_power(self, n: Self) -> Self;
    /// `yes` where `self > 0`, else `no`.
    fn positive(self, yes: Self, no: Self) -> Self;
    fn sum(self) -> f32;
    fn max_lane(self) -> f32;
    /// Eight rows of eight become columns; rows lie a stride apart.
    /// # Safety
    /// All of them must be readable at `from` and writable at `to`, and not be the same.
    unsafe fn turn_eight(from: (*const f32, usize), to: (*mut f32, usize));

    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }
    /// Lanes from `at` on; missing lanes are zero.
    #[inline(always)]
    fn get(slice: &[f32], at: usize) -> Self {
        let rest = &slice[at..];
        // SAFETY: the branch chooses the load by the length of the slice
        unsafe {
            if rest.len() >= Self::LANES {
                Self::load(rest.as_ptr())
            } else {
                Self::load_first(rest.as_ptr(), rest.len())
            }
        }
    }
    /// Writes the lanes that the slice has room for.
    #[inline(always)]
    fn put(self, slice: &mut [f32], at: usize) {
        let rest = &mut slice[at..];
        // SAFETY: the branch chooses the store by the length of the slice
        unsafe {
            if rest.len() >= Self::LANES {
                self.store(rest.as_mut_ptr());
            } else {
                self.store_first(rest.as_mut_ptr(), rest.len());
            }
        }
    }
}

/// Eight plain floats: the fallback, and the specification of the other two.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 8]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Vector for Portable {
    const LANES: usize = 8;
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self([x; 8])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: eight floats are readable by contract
        Self(unsafe { from.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: eight floats are writable by contract
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self.0) };
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: only the first `count` are read
        Self(std::array::from_fn(|i| if i < count { unsafe { *from.add(i) } } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        for i in 0..count {
            // SAFETY: `count` floats are writable by contract
            unsafe { *to.add(i) = self.0[i] };
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, factor: Self, term: Self) -> Self {
        // not `mul_add`: without the instruction that is a library call per lane
        Self(std::array::from_fn(|i| self.0[i] * factor.0[i] + term.0[i]))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self) -> Self {
        const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves no fraction bits
        Self(self.0.map(|x| (x + SHIFT) - SHIFT))
    }
    #[inline(always)]
    fn scale_by_power(self, n: Self) -> Self {
        self.zip(n, |x, n| x * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn positive(self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] > 0.0 { yes.0[i] } else { no.0[i] }))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        self.0.iter().fold(f32::NEG_INFINITY, |a, &b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn turn_eight(from: (*const f32, usize), to: (*mut f32, usize)) {
        // SAFETY: rows are readable and writable by contract
        unsafe {
            let rows: [Self; 8] = std::array::from_fn(|i| Self::load(from.0.add(i * from.1)));
            for j in 0..8 {
                Self(std::array::from_fn(|i| rows[i].0[j])).store(to.0.add(j * to.1));
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    // SAFETY of this module: a value of these types exists only inside functions that `kernel!` compiled for
    // the instruction set, and those are called only after it was detected.
    #![allow(clippy::undocumented_unsafe_blocks, clippy::wildcard_imports)]
    use super::Vector;
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(pub(crate) __m512);

    impl Vector for Avx512 {
        const LANES: usize = 16;
        #[inline(always)]
        fn splat(x: f32) -> Self {
            Self(unsafe { _mm512_set1_ps(x) })
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Self(unsafe { _mm512_loadu_ps(from) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self.0) };
        }
        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> Self {
            Self(unsafe { _mm512_maskz_loadu_ps((1u16 << count) - 1, from) })
        }
        #[inline(always)]
        unsafe fn store_first(self, to: *mut f32, count: usize) {
            unsafe { _mm512_mask_storeu_ps(to, (1u16 << count) - 1, self.0) };
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            Self(unsafe { _mm512_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            Self(unsafe { _mm512_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn fma(self, factor: Self, term: Self) -> Self {
            Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, term.0) })
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            Self(unsafe { _mm512_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            Self(unsafe { _mm512_min_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn round(self) -> Self {
            Self(unsafe { _mm512_roundscale_ps::<8>(self.0) })
        }
        #[inline(always)]
        fn scale_by_power(self, n: Self) -> Self {
            Self(unsafe { _mm512_scalef_ps(self.0, n.0) })
        }
        #[inline(always)]
        fn positive(self, yes: Self, no: Self) -> Self {
            unsafe {
                let mask = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, _mm512_setzero_ps());
                Self(_mm512_mask_blend_ps(mask, no.0, yes.0))
            }
        }
        #[inline(always)]
        fn sum(self) -> f32 {
            unsafe { _mm512_reduce_add_ps(self.0) }
        }
        #[inline(always)]
        fn max_lane(self) -> f32 {
            unsafe { _mm512_reduce_max_ps(self.0) }
        }
        #[inline(always)]
        unsafe fn turn_eight(from: (*const f32, usize), to: (*mut f32, usize)) {
            unsafe { Avx2::turn_eight(from, to) };
        }
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(pub(crate) __m256);

    #[inline(always)]
    fn first(count: usize) -> __m256i {
        const LANES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        unsafe { _mm256_loadu_si256(LANES.as_ptr().add(8 - count).cast()) }
    }

    impl Vector for Avx2 {
        const LANES: usize = 8;
        #[inline(always)]
        fn splat(x: f32) -> Self {
            Self(unsafe { _mm256_set1_ps(x) })
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Self(unsafe { _mm256_loadu_ps(from) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm256_storeu_ps(to, self.0) };
        }
        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> Self {
            Self(unsafe { _mm256_maskload_ps(from, first(count)) })
        }
        #[inline(always)]
        unsafe fn store_first(self, to: *mut f32, count: usize) {
            unsafe { _mm256_maskstore_ps(to, first(count), self.0) };
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            Self(unsafe { _mm256_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Self(unsafe { _mm256_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            Self(unsafe { _mm256_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn fma(self, factor: Self, term: Self) -> Self {
            Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, term.0) })
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            Self(unsafe { _mm256_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            Self(unsafe { _mm256_min_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn round(self) -> Self {
            Self(unsafe { _mm256_round_ps::<8>(self.0) })
        }
        #[inline(always)]
        fn scale_by_power(self, n: Self) -> Self {
            unsafe {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.0), _mm256_set1_epi32(127));
                Self(_mm256_mul_ps(self.0, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))))
            }
        }
        #[inline(always)]
        fn positive(self, yes: Self, no: Self) -> Self {
            unsafe {
                let mask = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, _mm256_setzero_ps());
                Self(_mm256_blendv_ps(no.0, yes.0, mask))
            }
        }
        #[inline(always)]
        fn sum(self) -> f32 {
            let mut lanes = [0.0f32; 8];
            unsafe { self.store(lanes.as_mut_ptr()) };
            let [a, b, c, d, e, f, g, h] = lanes;
            ((a + e) + (c + g)) + ((b + f) + (d + h))
        }
        #[inline(always)]
        fn max_lane(self) -> f32 {
            let mut lanes = [0.0f32; 8];
            unsafe { self.store(lanes.as_mut_ptr()) };
            lanes.iter().fold(f32::NEG_INFINITY, |a, &b| if a > b { a } else { b })
        }
        #[inline(always)]
        unsafe fn turn_eight(from: (*const f32, usize), to: (*mut f32, usize)) {
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
}

/// Defines a function that runs `body::<V>` compiled for the path of the calling thread.
///
/// `body` and everything generic below it must be `#[inline(always)]`: only inlined code is compiled with the
/// instruction set of the function around it.
macro_rules! kernel {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body::<crate::simd::Avx512>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<crate::simd::Avx2>($($arg),*)
            }
            match crate::simd::path() {
                // SAFETY: a path is chosen only after its instructions were detected
                #[cfg(target_arch = "x86_64")]
                crate::simd::Path::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above
                #[cfg(target_arch = "x86_64")]
                crate::simd::Path::Avx2 => unsafe { avx2($($arg),*) },
                _ => $body::<crate::simd::Portable>($($arg),*),
            }
        }
    };
}
pub(crate) use kernel;
