//! A register of floats, and the portable one.

/// Something to compute, generic over its vectors.
pub(crate) trait Kernel {
    type Output;
    /// Must be `#[inline(always)]`: only inlined code is compiled with the instruction set of the function around it.
    fn run<V: Vector>(self) -> Self::Output;
}

/// Lanes of the widest register.
const MOST_LANES: usize = 16;

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
    /// The lanes of both in turn.
    fn interleave(self, other: Self) -> [Self; 2];
    /// The even and the odd lanes of both, one after the other.
    fn deinterleave(self, other: Self) -> [Self; 2];
    /// Eight rows of eight become columns; rows lie a stride apart.
    /// # Safety
    /// All of them must be readable at `from` and writable at `to`, and not be the same.
    unsafe fn transpose_8x8(from: (*const f32, usize), to: (*mut f32, usize));

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

/// Ones in the lanes that a row of `width` has in its last vector, if that is not a whole one; zeros in others.
#[inline(always)]
pub(crate) fn lanes_of_rest<V: Vector>(width: usize) -> V {
    V::get(&[1.0; MOST_LANES][..width % V::LANES], 0)
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
        let mut lanes = [0.0; 8];
        for (i, lane) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: `count` floats are readable by contract
            *lane = unsafe { *from.add(i) };
        }
        Self(lanes)
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        for (i, lane) in self.0.iter().enumerate().take(count) {
            // SAFETY: `count` floats are writable by contract
            unsafe { *to.add(i) = *lane };
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
    fn interleave(self, other: Self) -> [Self; 2] {
        let lane = |i: usize| if i.is_multiple_of(2) { self.0[i / 2] } else { other.0[i / 2] };
        [Self(std::array::from_fn(lane)), Self(std::array::from_fn(|i| lane(i + 8)))]
    }
    #[inline(always)]
    fn deinterleave(self, other: Self) -> [Self; 2] {
        let lane = |i: usize| if i < 8 { self.0[i] } else { other.0[i - 8] };
        [Self(std::array::from_fn(|i| lane(2 * i))), Self(std::array::from_fn(|i| lane(2 * i + 1)))]
    }
    #[inline(always)]
    unsafe fn transpose_8x8(from: (*const f32, usize), to: (*mut f32, usize)) {
        // SAFETY: rows are readable and writable by contract
        unsafe {
            let rows: [Self; 8] = std::array::from_fn(|i| Self::load(from.0.add(i * from.1)));
            for j in 0..8 {
                Self(std::array::from_fn(|i| rows[i].0[j])).store(to.0.add(j * to.1));
            }
        }
    }
}
