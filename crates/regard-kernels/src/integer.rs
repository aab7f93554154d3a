//! Int8 linear layers: weights are quantised once with a scale per output channel, inputs dynamically with a scale per
//! row, and products are summed in 32-bit integers.
//!
//! Integer sums are exact, so instruction sets differ by the last rounding at most. VNNI adds four products of bytes at
//! once. AVX2 adds two of them in sixteen bits, where 255 * 63 * 2 just fits: weights therefore have seven bits, inputs
//! eight.

use std::cell::Cell;

use crate::gathered::{Init, blocks_of};
use crate::simd::{ByteIsa, ByteKernel, ByteSums, Vector, kernel};
use crate::size;

/// The largest quantised weight.
const WEIGHT: f32 = 63.0;

/// The largest quantised input.
const INPUT: f32 = 127.0;

/// The zero point of inputs, which the instructions take as unsigned bytes.
const ZERO: u8 = 128;

/// Bytes of a lane, which are multiplied and added at once.
const STEP: usize = 4;

/// A multiple of the rows that any instruction set keeps in registers.
const MOST_ROWS: usize = 12;

/// Added to a float below 2^22, it leaves the nearest whole number in the low bits.
const SHIFT: f32 = 12_582_912.0;

/// Weights `[out, in]` as integers with a scale for each output.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedWeights {
    pub values: Vec<i8>,
    pub scales: Vec<f32>,
}

impl QuantizedWeights {
    /// Rounds to the nearest multiple of the scale. Quantising what [`dequantize`](Self::dequantize) returns changes nothing.
    ///
    /// # Panics
    /// When `inputs` does not divide the length.
    #[must_use]
    pub fn new(weight: &[f32], inputs: usize) -> Self {
        assert!(inputs > 0 && weight.len().is_multiple_of(inputs), "integer: rows of {inputs} in {}", weight.len());
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

    /// The weights as floats.
    #[must_use]
    pub fn dequantize(&self) -> Vec<f32> {
        let inputs = self.values.len() / self.scales.len().max(1);
        let rows = self.values.chunks_exact(inputs.max(1)).zip(&self.scales);
        rows.flat_map(|(row, scale)| row.iter().map(move |x| f32::from(*x) * scale)).collect()
    }
}

/// The next number above with sixteen bits of mantissa: its product with seven bits is exact.
fn short(x: f32) -> f32 {
    if x > f32::MIN_POSITIVE { f32::from_bits((x.to_bits() + 0xff) & !0xff) } else { 0.0 }
}

/// Weights in panels of two registers of outputs; the numbers of one lane lie together.
pub(crate) struct Int8Panels {
    isa: ByteIsa,
    data: Vec<u8>,
    /// What the sums of each output start from: it takes back the zero point of the inputs.
    zero_points: Vec<i32>,
    scales: Vec<f32>,
    inner: usize,
    columns: usize,
}

impl Int8Panels {
    /// Packs for the path of the calling thread; `scale` scales the outputs.
    pub fn new(weights: &QuantizedWeights, scale: Option<&[f32]>) -> Self {
        let (isa, columns) = (ByteIsa::current(), weights.scales.len());
        let inner = weights.values.len() / columns.max(1);
        let width = isa.width();
        let (panels, steps) = (columns.div_ceil(width), inner.div_ceil(STEP));
        let mut data = vec![0; size::product("integer", &[panels, steps, width, STEP])];
        let mut zero_points = vec![0; panels * width];
        for (column, weights) in weights.values.chunks_exact(inner.max(1)).enumerate() {
            let place = (column / width * steps * width + column % width) * STEP;
            for (k, weights) in weights.chunks(STEP).enumerate() {
                let lane = &mut data[place + k * width * STEP..][..STEP];
                lane.iter_mut().zip(weights).for_each(|(lane, weight)| *lane = weight.cast_unsigned());
            }
            zero_points[column] = -i32::from(ZERO) * weights.iter().map(|weight| i32::from(*weight)).sum::<i32>();
        }
        let mut scales = weights.scales.clone();
        if let Some(factors) = scale {
            scales.iter_mut().zip(factors).for_each(|(scale, factor)| *scale *= factor);
        }
        Self { isa, data, zero_points, scales, inner, columns }
    }
}

thread_local! {
    /// Buffers of earlier calls, to be used again.
    static SCRATCH: Cell<(Vec<u8>, Vec<f32>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// `out = start + x * weights`, for rows that lie one after the other, into rows of as many columns as there are.
pub(crate) fn multiply_rows(x: &[f32], weights: &Int8Panels, start: Init, out: &mut [f32]) {
    let (inner, rows) = (weights.inner, x.len() / weights.inner);
    assert_eq!((x.len(), out.len()), (rows * inner, rows * weights.columns), "integer: lengths of rows");
    let bytes = inner.next_multiple_of(STEP);
    let (mut values, mut scales) = SCRATCH.take();
    scales.resize(rows, 0.0);
    // whole registers of rows: those beyond the last one are multiplied, and not written
    values.resize(rows.next_multiple_of(MOST_ROWS) * bytes, 0);
    round_rows(x, inner, &mut values[..rows * bytes], bytes, &mut scales);
    let left = Left { values: &values, bytes, scales: &scales };
    weights.isa.run(Product { left: &left, weights, start, out });
    SCRATCH.set((values, scales));
}

kernel!(
    /// Quantises rows to bytes, with a scale for each.
    fn round_rows<'a>(x: &'a [f32], inner: usize, values: &'a mut [u8], bytes: usize, scales: &'a mut [f32]) = round_rows_body
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
        // inf or NaN makes the scale NaN
        *scale = largest / INPUT + sane.sum();
        let inverse = if largest > f32::MIN_POSITIVE { INPUT / largest } else { 0.0 };
        for (value, x) in values.iter_mut().zip(x) {
            *value = (x.mul_add(inverse, SHIFT).to_bits() as u8).wrapping_add(ZERO);
        }
    }
}

/// Quantised rows.
struct Left<'a> {
    values: &'a [u8],
    /// Bytes of a row.
    bytes: usize,
    scales: &'a [f32],
}

/// What [`multiply_rows`] computes when its rows are bytes.
struct Product<'a> {
    left: &'a Left<'a>,
    weights: &'a Int8Panels,
    start: Init<'a>,
    out: &'a mut [f32],
}

impl ByteKernel for Product<'_> {
    #[inline(always)]
    fn run<S: ByteSums, const R: usize>(self) {
        let Self { left, weights, start, out } = self;
        panels::<S, R>(left, weights, start, out);
    }
}

#[inline(always)]
fn panels<S: ByteSums, const R: usize>(left: &Left, b: &Int8Panels, start: Init, out: &mut [f32]) {
    let lanes = S::Floats::LANES;
    let (rows, width, steps) = (left.scales.len(), 2 * lanes, left.bytes / STEP);
    assert!(
        size::holds(left.values.len(), [rows.next_multiple_of(R), left.bytes, 1]),
        "integer: length of the quantised rows"
    );
    let packed = size::product("integer", &[b.columns.div_ceil(width), steps, width, STEP]);
    assert_eq!(b.data.len(), packed, "integer: packed for another path");
    // a block of rows stays in the cache while it meets the panels
    let together = blocks_of(rows, R);
    for block in (0..rows).step_by(together) {
        for panel in 0..b.columns.div_ceil(width) {
            let first = panel * width;
            let count = width.min(b.columns - first);
            let begin = [0, 1].map(|half| S::get(&b.zero_points[first + half * lanes..]));
            let pair = |x: &[f32]| {
                let x = &x[first..b.columns];
                [S::Floats::get(x, 0), if count > lanes { S::Floats::get(x, lanes) } else { S::Floats::zero() }]
            };
            let scales = pair(&b.scales);
            let bias = match start {
                Init::ColumnBias(bias) | Init::OutPlusColumnBias(bias) if !bias.is_empty() => pair(bias),
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
                        if matches!(start, Init::OutPlusColumnBias(_)) {
                            value = value.add(S::Floats::get(out, at));
                        }
                        value.put(out, at);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_close, noise};
    use crate::simd::{Path, with_path};

    /// By the definition: the quantised row and its scale.
    fn rounded(row: &[f32]) -> (Vec<f64>, f64) {
        let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let inverse = f64::from(INPUT / largest);
        (row.iter().map(|x| (f64::from(*x) * inverse).round_ties_even()).collect(), f64::from(largest / INPUT))
    }

    fn product(x: &[f32], weights: &QuantizedWeights, start: Init, begin: f32) -> Vec<f32> {
        let panels = Int8Panels::new(weights, None);
        let mut out = vec![begin; x.len() / panels.inner * panels.columns];
        multiply_rows(x, &panels, start, &mut out);
        out
    }

    #[test]
    fn every_size_path_and_start_is_the_product_of_the_rounded_numbers() {
        for (rows, inner, columns) in [(1, 1, 1), (7, 5, 3), (12, 64, 32), (13, 9, 100), (50, 17, 65), (3, 300, 16)] {
            let (x, bias) = (noise(rows * inner, 1), noise(columns, 3));
            let weights = QuantizedWeights::new(&noise(columns * inner, 2), inner);
            let floats = weights.dequantize();
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
                for (start, expected) in [
                    (Init::Zero, &expected),
                    (Init::ColumnBias(&bias), &biased),
                    (Init::OutPlusColumnBias(&bias), &added),
                ] {
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
        let weights = QuantizedWeights::new(&vec![-63.0 / 128.0; inner], inner);
        for &path in Path::available() {
            let out = with_path(path, || product(&x, &weights, Init::Zero, 0.0));
            assert_close(&out, &[-2016.0], 1e-3);
        }
    }

    #[test]
    fn a_row_without_a_scale_is_zero_and_one_without_numbers_answers_none() {
        let weights = QuantizedWeights::new(&noise(5 * 8, 2), 8);
        for &path in Path::available() {
            let mut x = noise(4 * 8, 1);
            x[..8].fill(0.0);
            x[8 + 3] = f32::NAN;
            x[16 + 7] = f32::INFINITY;
            let out = with_path(path, || product(&x, &weights, Init::Zero, 0.0));
            assert_eq!(out[..5], [0.0; 5]);
            assert!(out[5..15].iter().all(|x| x.is_nan()), "{out:?}");
            assert!(out[15..].iter().all(|x| x.is_finite()), "{out:?}");
        }
    }

    #[test]
    fn weights_are_within_half_a_scale_and_rounded_once() {
        let weight = noise(6 * 50, 4);
        let once = QuantizedWeights::new(&weight, 50);
        let floats = once.dequantize();
        for (at, (rounded, weight)) in floats.iter().zip(&weight).enumerate() {
            assert!((rounded - weight).abs() <= once.scales[at / 50] * 0.500_1, "{at}");
        }
        let twice = QuantizedWeights::new(&floats, 50);
        assert_eq!(twice.dequantize(), floats);
    }
}
