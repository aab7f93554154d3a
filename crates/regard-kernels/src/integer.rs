//! Linear maps in eight bits: weights rounded once, with a scale for each output, inputs as they come, with a scale for
//! each row, and sums of whole numbers between them.
//!
//! Sums of whole numbers are exact, so instruction sets differ by the last rounding at most: VNNI adds four products of
//! bytes at once. AVX2 adds two of them in sixteen bits, where 255 * 63 * 2 just fits: weights therefore have seven bits,
//! inputs eight.

use std::cell::Cell;

use crate::gathered::{Start, blocks_of};
use crate::simd::{Path, Portable, Vector, kernel, path};

/// The largest whole number of a weight.
const WEIGHT: f32 = 63.0;

/// The largest whole number of an input.
const INPUT: f32 = 127.0;

/// Added to inputs, which instructions want without a sign.
const ZERO: u8 = 128;

/// Numbers of a lane, that are multiplied and added at once.
const STEP: usize = 4;

/// Rows that any form keeps in registers divide this.
const MOST_ROWS: usize = 12;

/// Added to a float below 2^22, it leaves the nearest whole number in the low bits.
const SHIFT: f32 = 12_582_912.0;

/// Weights `[out, in]` as whole numbers, and what one of them is worth for each output.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounded {
    pub values: Vec<i8>,
    pub scales: Vec<f32>,
}

impl Rounded {
    /// To the nearest multiple of a scale. What [`floats`](Self::floats) gives is rounded to itself again.
    ///
    /// # Panics
    /// When `inputs` does not divide the length.
    #[must_use]
    pub fn new(weight: &[f32], inputs: usize) -> Self {
        assert!(weight.len().is_multiple_of(inputs), "integer: rows of {inputs} in {}", weight.len());
        let mut rounded = Self { values: Vec::with_capacity(weight.len()), scales: Vec::new() };
        for row in weight.chunks_exact(inputs) {
            let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let scale = short(largest / WEIGHT);
            rounded.scales.push(scale + row.iter().map(|x| x * 0.0).sum::<f32>());
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            rounded.values.extend(row.iter().map(|x| (x * inverse + SHIFT).to_bits() as i8));
        }
        rounded
    }

    /// The weights that these numbers stand for.
    #[must_use]
    pub fn floats(&self) -> Vec<f32> {
        let inputs = self.values.len() / self.scales.len().max(1);
        let rows = self.values.chunks_exact(inputs.max(1)).zip(&self.scales);
        rows.flat_map(|(row, scale)| row.iter().map(move |x| f32::from(*x) * scale)).collect()
    }
}

/// The next number above with sixteen bits of mantissa: seven bits more and it is still exact.
fn short(x: f32) -> f32 {
    if x > f32::MIN_POSITIVE { f32::from_bits((x.to_bits() + 0xff) & !0xff) } else { 0.0 }
}

/// How whole numbers are multiplied here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    #[cfg(target_arch = "x86_64")]
    Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// The form of the calling thread's path.
fn form() -> Form {
    match path() {
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni") => Form::Vnni,
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 | Path::Avx2 => Form::Avx2,
        _ => Form::Portable,
    }
}

/// Weights in panels of two registers of outputs; the numbers of one lane lie together.
pub(crate) struct Panels {
    form: Form,
    data: Vec<u8>,
    /// What sums begin with, for each output.
    begin: Vec<i32>,
    scales: Vec<f32>,
    inner: usize,
    columns: usize,
}

impl Panels {
    /// Packs for the path of the calling thread; outputs are scaled, if they are.
    pub fn new(weights: &Rounded, scale: Option<&[f32]>) -> Self {
        let (form, columns) = (form(), weights.scales.len());
        let inner = weights.values.len() / columns.max(1);
        let width = form.width();
        let (panels, steps) = (columns.div_ceil(width), inner.div_ceil(STEP));
        let mut data = vec![0; panels * steps * width * STEP];
        let mut begin = vec![0; panels * width];
        for (column, weights) in weights.values.chunks_exact(inner.max(1)).enumerate() {
            let place = (column / width * steps * width + column % width) * STEP;
            for (k, weights) in weights.chunks(STEP).enumerate() {
                let lane = &mut data[place + k * width * STEP..][..STEP];
                lane.iter_mut().zip(weights).for_each(|(lane, weight)| *lane = weight.cast_unsigned());
            }
            begin[column] = -i32::from(ZERO) * weights.iter().map(|weight| i32::from(*weight)).sum::<i32>();
        }
        let mut scales = weights.scales.clone();
        if let Some(factors) = scale {
            scales.iter_mut().zip(factors).for_each(|(scale, factor)| *scale *= factor);
        }
        Self { form, data, begin, scales, inner, columns }
    }
}

impl Form {
    /// Columns of a panel.
    const fn width(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Vnni => 32,
            _ => 16,
        }
    }
}

thread_local! {
    /// What is left of the last rows.
    static SCRATCH: Cell<(Vec<u8>, Vec<f32>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// `out = start + x * weights`, for rows that lie one after the other, into rows of as many columns as there are.
pub(crate) fn multiply_rows(x: &[f32], weights: &Panels, start: Start, out: &mut [f32]) {
    let (inner, rows) = (weights.inner, x.len() / weights.inner);
    assert_eq!((x.len(), out.len()), (rows * inner, rows * weights.columns), "integer: lengths of rows");
    let bytes = inner.next_multiple_of(STEP);
    let (mut values, mut scales) = SCRATCH.take();
    scales.resize(rows, 0.0);
    // whole registers of rows: those beyond the last one are multiplied, and not written
    values.resize(rows.next_multiple_of(MOST_ROWS) * bytes, 0);
    round_rows(x, inner, &mut values[..rows * bytes], bytes, &mut scales);
    let left = Left { values: &values, bytes, scales: &scales };
    match weights.form {
        // SAFETY: the form is chosen only after its instructions were detected
        #[cfg(target_arch = "x86_64")]
        Form::Vnni => unsafe { x86::vnni(&left, weights, start, out) },
        // SAFETY: as above
        #[cfg(target_arch = "x86_64")]
        Form::Avx2 => unsafe { x86::avx2(&left, weights, start, out) },
        Form::Portable => panels::<[i32; 8], 4>(&left, weights, start, out),
    }
    SCRATCH.set((values, scales));
}

kernel!(
    /// Rows to bytes, and what one of them is worth.
    fn round_rows(x: &[f32], inner: usize, values: &mut [u8], bytes: usize, scales: &mut [f32]) = round_rows_body
);

#[inline(always)]
fn round_rows_body<V: Vector>(x: &[f32], inner: usize, values: &mut [u8], bytes: usize, scales: &mut [f32]) {
    for ((x, values), scale) in x.chunks_exact(inner).zip(values.chunks_exact_mut(bytes)).zip(scales) {
        let (mut largest, mut sane) = (V::zero(), V::zero());
        for at in (0..inner).step_by(V::LANES) {
            let x = V::get(x, at);
            largest = x.max(V::zero().sub(x)).max(largest);
            sane = x.fma(V::zero(), sane);
        }
        let largest = largest.max_lane();
        // a row with an infinity or none is worth no number
        *scale = largest / INPUT + sane.sum();
        let inverse = if largest > f32::MIN_POSITIVE { INPUT / largest } else { 0.0 };
        for (value, x) in values.iter_mut().zip(x) {
            *value = (x.mul_add(inverse, SHIFT).to_bits() as u8).wrapping_add(ZERO);
        }
    }
}

/// Rows of whole numbers.
struct Left<'a> {
    values: &'a [u8],
    /// Bytes of a row.
    bytes: usize,
    scales: &'a [f32],
}

/// A register of sums.
trait Sums: Copy {
    type Floats: Vector;
    fn get(begin: &[i32]) -> Self;
    /// Adds the products of one row's four bytes with a register of weights.
    /// # Safety
    /// Four bytes must be readable at `left`, and a register of them at `right`.
    unsafe fn add_products(self, left: *const u8, right: *const u8) -> Self;
    fn floats(self) -> Self::Floats;
}

impl Sums for [i32; 8] {
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
        // SAFETY: eight floats are readable
        unsafe { Portable::load(self.map(|x| x as f32).as_ptr()) }
    }
}

#[inline(always)]
fn panels<S: Sums, const R: usize>(left: &Left, b: &Panels, start: Start, out: &mut [f32]) {
    let lanes = S::Floats::LANES;
    let (rows, width, steps) = (left.scales.len(), 2 * lanes, left.bytes / STEP);
    assert!(left.values.len() >= rows.next_multiple_of(R) * left.bytes, "integer: rows of whole numbers");
    assert_eq!(b.data.len(), b.columns.div_ceil(width) * steps * width * STEP, "integer: packed for another path");
    // a block of rows stays in the cache while it meets the panels
    let together = blocks_of(rows, R);
    for block in (0..rows).step_by(together) {
        for panel in 0..b.columns.div_ceil(width) {
            let first = panel * width;
            let count = width.min(b.columns - first);
            let begin = [0, 1].map(|half| S::get(&b.begin[first + half * lanes..]));
            let pair = |x: &[f32]| {
                let x = &x[first..b.columns];
                [S::Floats::get(x, 0), if count > lanes { S::Floats::get(x, lanes) } else { S::Floats::zero() }]
            };
            let scales = pair(&b.scales);
            let bias = match start {
                Start::Columns(bias) | Start::Out(bias) if !bias.is_empty() => pair(bias),
                _ => [S::Floats::zero(); 2],
            };
            for i in (block..(block + together).min(rows)).step_by(R) {
                let mut sums = [begin; R];
                // SAFETY: rows have `bytes` bytes, and a panel has as many registers as a row has steps, twice
                unsafe {
                    let mut row = left.values.as_ptr().add(i * left.bytes);
                    let mut packed = b.data.as_ptr().add(panel * steps * width * STEP);
                    for _ in 0..steps {
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let left = row.add(r * left.bytes);
                            sums[0] = sums[0].add_products(left, packed);
                            sums[1] = sums[1].add_products(left, packed.add(STEP * lanes));
                        }
                        (row, packed) = (row.add(STEP), packed.add(STEP * width));
                    }
                }
                for (r, sums) in sums.iter().enumerate().take(rows - i) {
                    let scale = S::Floats::splat(left.scales[i + r]);
                    let out = &mut out[(i + r) * b.columns + first..][..count];
                    for half in 0..count.div_ceil(lanes) {
                        let at = half * lanes;
                        let mut value = sums[half].floats().mul(scale).fma(scales[half], bias[half]);
                        if matches!(start, Start::Out(_)) {
                            value = value.add(S::Floats::get(out, at));
                        }
                        value.put(out, at);
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    // SAFETY of this module: as in `simd`, values exist only inside functions compiled for their instructions
    #![allow(clippy::undocumented_unsafe_blocks, clippy::wildcard_imports)]
    use super::{Left, Panels, Start, Sums, panels};
    use crate::simd::{Avx2, Avx512};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma")]
    pub(super) fn vnni(left: &Left, weights: &Panels, start: Start, out: &mut [f32]) {
        panels::<Bytes, 12>(left, weights, start, out);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2(left: &Left, weights: &Panels, start: Start, out: &mut [f32]) {
        panels::<Pairs, 6>(left, weights, start, out);
    }

    /// Sixteen sums of products of bytes.
    #[derive(Clone, Copy)]
    struct Bytes(__m512i);

    impl Sums for Bytes {
        type Floats = Avx512;
        #[inline(always)]
        fn get(begin: &[i32]) -> Self {
            Self(unsafe { _mm512_loadu_si512(begin[..16].as_ptr().cast()) })
        }
        #[inline(always)]
        unsafe fn add_products(self, left: *const u8, right: *const u8) -> Self {
            unsafe {
                let left = _mm512_set1_epi32(left.cast::<i32>().read_unaligned());
                Self(_mm512_dpbusd_epi32(self.0, left, _mm512_loadu_si512(right.cast())))
            }
        }
        #[inline(always)]
        fn floats(self) -> Avx512 {
            Avx512(unsafe { _mm512_cvtepi32_ps(self.0) })
        }
    }

    /// Eight sums of products of bytes, added in pairs of sixteen bits first.
    #[derive(Clone, Copy)]
    struct Pairs(__m256i);

    impl Sums for Pairs {
        type Floats = Avx2;
        #[inline(always)]
        fn get(begin: &[i32]) -> Self {
            Self(unsafe { _mm256_loadu_si256(begin[..8].as_ptr().cast()) })
        }
        #[inline(always)]
        unsafe fn add_products(self, left: *const u8, right: *const u8) -> Self {
            unsafe {
                let left = _mm256_set1_epi32(left.cast::<i32>().read_unaligned());
                let pairs = _mm256_maddubs_epi16(left, _mm256_loadu_si256(right.cast()));
                Self(_mm256_add_epi32(self.0, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))
            }
        }
        #[inline(always)]
        fn floats(self) -> Avx2 {
            Avx2(unsafe { _mm256_cvtepi32_ps(self.0) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_close, noise};
    use crate::simd::with_path;

    /// By the definition: whole numbers of a row, and what one is worth.
    fn rounded(row: &[f32]) -> (Vec<f64>, f64) {
        let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let inverse = f64::from(INPUT / largest);
        (row.iter().map(|x| (f64::from(*x) * inverse).round_ties_even()).collect(), f64::from(largest / INPUT))
    }

    fn product(x: &[f32], weights: &Rounded, start: Start, begin: f32) -> Vec<f32> {
        let panels = Panels::new(weights, None);
        let mut out = vec![begin; x.len() / panels.inner * panels.columns];
        multiply_rows(x, &panels, start, &mut out);
        out
    }

    #[test]
    fn every_size_path_and_start_is_the_product_of_the_rounded_numbers() {
        for (rows, inner, columns) in [(1, 1, 1), (7, 5, 3), (12, 64, 32), (13, 9, 100), (50, 17, 65), (3, 300, 16)] {
            let (x, bias) = (noise(rows * inner, 1), noise(columns, 3));
            let weights = Rounded::new(&noise(columns * inner, 2), inner);
            let floats = weights.floats();
            let expected: Vec<f64> = x
                .chunks_exact(inner)
                .flat_map(|row| {
                    let (numbers, scale) = rounded(row);
                    let dot = |weights: &[f32]| {
                        let terms = numbers.iter().zip(weights);
                        scale * terms.map(|(x, weight)| x * f64::from(*weight)).sum::<f64>()
                    };
                    floats.chunks_exact(inner).map(dot).collect::<Vec<_>>()
                })
                .collect();
            let begin = |at: usize| f64::from(bias[at % columns]);
            let biased: Vec<f64> = expected.iter().enumerate().map(|(at, sum)| sum + begin(at)).collect();
            let added: Vec<f64> = biased.iter().map(|sum| sum + 2.0).collect();
            for &path in Path::available() {
                for (start, expected) in
                    [(Start::Zero, &expected), (Start::Columns(&bias), &biased), (Start::Out(&bias), &added)]
                {
                    let out = with_path(path, || product(&x, &weights, start, 2.0));
                    assert_close(&out, expected, 2e-6);
                }
            }
        }
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        // every product is the largest there is, 255 * 63 in bytes
        let (inner, x) = (4096, vec![1.0; 4096]);
        let weights = Rounded::new(&vec![-63.0 / 128.0; inner], inner);
        for &path in Path::available() {
            let out = with_path(path, || product(&x, &weights, Start::Zero, 0.0));
            assert_close(&out, &[-2016.0], 1e-3);
        }
    }

    #[test]
    fn a_row_without_a_scale_is_zero_and_one_without_numbers_answers_none() {
        let weights = Rounded::new(&noise(5 * 8, 2), 8);
        for &path in Path::available() {
            let mut x = noise(4 * 8, 1);
            x[..8].fill(0.0);
            x[8 + 3] = f32::NAN;
            x[16 + 7] = f32::INFINITY;
            let out = with_path(path, || product(&x, &weights, Start::Zero, 0.0));
            assert_eq!(out[..5], [0.0; 5]);
            assert!(out[5..15].iter().all(|x| x.is_nan()), "{out:?}");
            assert!(out[15..].iter().all(|x| x.is_finite()), "{out:?}");
        }
    }

    #[test]
    fn weights_are_within_half_a_scale_and_rounded_once() {
        let weight = noise(6 * 50, 4);
        let once = Rounded::new(&weight, 50);
        let floats = once.floats();
        for (at, (rounded, weight)) in floats.iter().zip(&weight).enumerate() {
            assert!((rounded - weight).abs() <= once.scales[at / 50] * 0.500_1, "{at}");
        }
        let twice = Rounded::new(&floats, 50);
        assert_eq!(twice.floats(), floats);
    }
}
