//! Products of a gathered matrix with a packed one: the GEMM of linear layers and convolutions.
//!
//! Element (i, k) of the left matrix is `data[rows[i] + inner[k]]`. With tables of offsets the same loop multiplies a
//! matrix, its transpose, the windows of an image (which are never copied out) and their adjoint.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::elementwise::{rows_per_task, written};
use crate::parallel::{Parallel, return_buffer, take_buffer};
use crate::product::Matrix;
use crate::simd::{Path, Vector, kernel, path};
use crate::size;
use crate::uninit::{UninitWriter, as_uninit};

/// Offsets into an array, and the largest of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offsets {
    values: Vec<u32>,
    largest: usize,
}

impl Offsets {
    /// `count` offsets that are `step` apart.
    pub fn strided(count: usize, step: usize) -> Self {
        (0..count).map(|index| index * step).collect()
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Some of them.
    pub fn part(&self, range: Range<usize>) -> Self {
        self.values[range].iter().map(|&offset| offset as usize).collect()
    }
}

impl FromIterator<usize> for Offsets {
    fn from_iter<I: IntoIterator<Item = usize>>(offsets: I) -> Self {
        let mut largest = 0;
        let narrow = |offset: usize| {
            largest = largest.max(offset);
            u32::try_from(offset).expect("an array of fewer than 2^32 elements")
        };
        let values = offsets.into_iter().map(narrow).collect();
        Self { values, largest }
    }
}

/// A matrix in panels of two vectors of columns. Packed: each panel row by row, zeros after the last column.
pub(crate) struct Panels {
    /// Longer than the panels, maybe.
    data: Vec<f32>,
    inner: usize,
    columns: usize,
    /// Columns of a panel.
    width: usize,
    /// From one row of a panel to the next, and from one panel to the next.
    strides: [usize; 2],
}

impl Panels {
    /// Packs `inner x columns` for the path of the calling thread.
    pub fn new(matrix: Matrix, inner: usize, columns: usize) -> Self {
        let last = size::strided(inner, matrix.row, 1).and_then(|row| size::strided(columns, matrix.column, row));
        assert!(
            inner == 0 || columns == 0 || last.is_some_and(|len| len <= matrix.data.len()),
            "the right matrix is too small"
        );
        let width = panel_width();
        if matrix.column != 1 {
            assert!(matrix.row == 1, "one side of a matrix lies in a row");
            let rows: Vec<usize> = (0..inner).collect();
            return Self::gathered(matrix.data, &rows, matrix.column, columns);
        }
        let mut data = Vec::with_capacity(columns.div_ceil(width) * inner * width);
        for first in (0..columns).step_by(width) {
            for k in 0..inner {
                let row = &matrix.data[k * matrix.row + first..k * matrix.row + columns.min(first + width)];
                // sixteen at once is a copy of known length, without a call
                let (whole, rest) = row.as_chunks::<16>();
                whole.iter().for_each(|part| data.extend_from_slice(part));
                data.extend_from_slice(rest);
                data.resize(data.len() + width - row.len(), 0.0);
            }
        }
        Self::packed(data, inner, columns)
    }

    fn packed(data: Vec<f32>, inner: usize, columns: usize) -> Self {
        let width = panel_width();
        Self { data, inner, columns, width, strides: [width, inner * width] }
    }

    /// A matrix whose rows are a stride apart as it lies, with any numbers after the last column of a row. It is read best
    /// when it fits a cache and the stride is [`in_place_stride`].
    pub fn in_place(data: Vec<f32>, inner: usize, columns: usize, stride: usize) -> Self {
        let width = panel_width();
        assert!(stride >= columns.next_multiple_of(width), "rows of panels in {stride} columns");
        Self { data, inner, columns, width, strides: [stride, width] }
    }

    /// Packs rows that begin at offsets of an array, their columns `step` apart.
    pub fn gathered(from: &[f32], rows: &[usize], step: usize, columns: usize) -> Self {
        let (inner, width) = (rows.len(), panel_width());
        let len = size::product("packed matrix", &[columns.div_ceil(width), inner, width]);
        let panel = (inner * width).max(1);
        let pack = |index: usize, data: &mut UninitWriter| {
            let (first, count) = (index * width, width.min(columns - index * width));
            for run in rows.chunk_by(|row, next| row + 1 == *next) {
                data.push_transposed([count, run.len()], (&from[first * step + run[0]..], step), width);
            }
        };
        // a task is worth more than a few numbers
        let together = if len < rows_per_task(1) { len } else { panel };
        let data = written(len, together, |task, data| {
            (0..data.room() / panel).for_each(|index| pack(task * (together / panel) + index, data));
        });
        Self::packed(data, inner, columns)
    }

    /// Packs some columns of rows a stride apart, after `max(0, scale * x + shift)` of every row if `affine` is given, into a
    /// reused buffer, which [`return_buffer`](Self::return_buffer) returns.
    pub fn packed_affine_relu(
        (from, stride): (&[f32], usize),
        inner: usize,
        columns: Range<usize>,
        affine: Option<[&[f32]; 2]>,
        parallel: &mut Parallel,
    ) -> Self {
        let (width, count) = (panel_width(), columns.len());
        let len = size::product("packed matrix", &[count.div_ceil(width), inner, width]);
        let mut data = take_buffer(len);
        parallel.each(data[..len].chunks_exact_mut(inner * width).enumerate(), |(panel, data)| {
            let first = columns.start + panel * width;
            pack_affine_relu((from, stride), first..columns.end.min(first + width), affine, data);
        });
        Self::packed(data, inner, count)
    }

    /// Returns the buffer for reuse.
    pub fn return_buffer(self) {
        return_buffer(self.data);
    }
}

kernel!(
    fn pack_affine_relu<'a>(from: (&'a [f32], usize), columns: Range<usize>, affine: Option<[&'a [f32]; 2]>, panel: &'a mut [f32]) = pack_affine_relu_body
);

#[inline(always)]
fn pack_affine_relu_body<V: Vector>(
    (from, stride): (&[f32], usize),
    columns: Range<usize>,
    affine: Option<[&[f32]; 2]>,
    panel: &mut [f32],
) {
    for (k, out) in panel.chunks_exact_mut(2 * V::LANES).enumerate() {
        let row = &from[k * stride + columns.start..k * stride + columns.end];
        for (half, out) in out.chunks_exact_mut(V::LANES).enumerate() {
            let x = if half * V::LANES < row.len() { V::get(row, half * V::LANES) } else { V::zero() };
            let x = match affine {
                Some([scale, shift]) => V::zero().max(x.fma(V::splat(scale[k]), V::splat(shift[k]))),
                None => x,
            };
            x.put(out, 0);
        }
    }
}

/// Most rows of a block: so many stay in the cache, and weights are read from memory once for all of them.
const TOGETHER: usize = 108;

/// Rows of a block: blocks of about the same size, a multiple of the rows that registers hold.
pub(crate) fn rows_together(rows: usize) -> usize {
    blocks_of(rows, rows_in_registers())
}

/// The same for another number of rows in registers.
pub(crate) fn blocks_of(rows: usize, registers: usize) -> usize {
    rows.div_ceil(rows.div_ceil(TOGETHER).max(1)).next_multiple_of(registers)
}

/// Rows whose sums are in registers together: 18 of 32 in AVX-512, beside a value of each row, which compilers read all at
/// once, and 12 of 16 in AVX2.
pub(crate) fn rows_in_registers() -> usize {
    if path() == Path::Avx512 { 9 } else { 6 }
}

/// Columns of a panel.
pub(crate) fn panel_width() -> usize {
    if path() == Path::Avx512 { 32 } else { 16 }
}

/// A stride of at least so many columns for [`Panels::in_place`]: an odd number of panels, so that the rows of a panel do not
/// lie in the same few sets of a cache.
pub(crate) fn in_place_stride(columns: usize) -> usize {
    (columns.div_ceil(panel_width()) | 1) * panel_width()
}

/// What the sums of an output start from.
#[derive(Clone, Copy)]
pub(crate) enum Init<'a> {
    Zero,
    /// A bias for each column.
    ColumnBias(&'a [f32]),
    /// A bias for each row.
    RowBias(&'a [f32]),
    /// The output's own values plus a bias for each column, which may be empty.
    OutPlusColumnBias(&'a [f32]),
    /// The output's own values plus a bias for each row.
    OutPlusRowBias(&'a [f32]),
}

/// Some rows of the left matrix.
#[derive(Clone, Copy)]
pub(crate) struct Gathered<'a> {
    pub data: &'a [f32],
    pub rows: &'a Offsets,
    /// Which of the rows.
    pub range: (usize, usize),
    pub inner: &'a Offsets,
}

impl Gathered<'_> {
    /// The rows themselves, one after the other.
    pub fn copy_rows(&self, out: &mut [f32]) {
        let rows = &self.rows.values[self.range.0..self.range.1];
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.inner.len())) {
            for (offset, out) in self.inner.values.iter().zip(out) {
                *out = self.data[*row as usize + *offset as usize];
            }
        }
    }
}

/// `out[i][j] = start + sum over k of data[rows[i] + inner[k]] * b[k][j]`, rows of `out` a stride apart.
pub(crate) fn multiply(left: Gathered, b: &Panels, start: Init, (out, stride): (&mut [f32], usize)) {
    multiply_kernel(left, b, start, Output::Floats(out), stride);
}

/// The same into memory that may be new: every element of every row is written, as far as `b` has columns.
///
/// # Panics
/// When the start is what the output holds.
pub(crate) fn multiply_uninit(
    left: Gathered,
    b: &Panels,
    start: Init,
    (out, stride): (&mut [MaybeUninit<f32>], usize),
) {
    multiply_kernel(left, b, start, Output::New(out), stride);
}

/// The same at the end of what was written, rows one after the other.
pub(crate) fn push_product(left: Gathered, b: &Panels, start: Init, out: &mut UninitWriter) {
    let len = size::product("product", &[left.range.1 - left.range.0, b.columns]);
    // SAFETY: a product writes every element of its rows, and these are as long as `b` has columns
    unsafe { out.fill(len, |out| multiply_uninit(left, b, start, (out, b.columns))) };
}

/// Where a product goes.
enum Output<'a> {
    Floats(&'a mut [f32]),
    /// Memory that may be new, to which nothing can be added.
    New(&'a mut [MaybeUninit<f32>]),
}

kernel!(
    fn multiply_kernel<'a>(left: Gathered<'a>, b: &'a Panels, start: Init<'a>, out: Output<'a>, stride: usize) = multiply_body
);

/// The same for rows of `inner` that lie one after the other, into rows of as many columns as `b` has.
pub(crate) fn multiply_rows(x: &[f32], inner: usize, b: &Panels, start: Init, out: &mut [f32]) {
    let (rows, offsets) = (Offsets::strided(x.len() / inner, inner), Offsets::strided(inner, 1));
    let left = Gathered { data: x, rows: &rows, range: (0, rows.len()), inner: &offsets };
    multiply(left, b, start, (out, b.columns));
}

/// The same at the end of what was written.
pub(crate) fn push_rows(x: &[f32], inner: usize, b: &Panels, start: Init, out: &mut UninitWriter) {
    let (rows, offsets) = (Offsets::strided(x.len() / inner, inner), Offsets::strided(inner, 1));
    push_product(Gathered { data: x, rows: &rows, range: (0, rows.len()), inner: &offsets }, b, start, out);
}

#[inline(always)]
fn multiply_body<V: Vector>(left: Gathered, b: &Panels, start: Init, out: Output, stride: usize) {
    let out = match out {
        // SAFETY: a product writes floats only
        Output::Floats(floats) => unsafe { as_uninit(floats) },
        Output::New(slots) => {
            assert!(
                !matches!(start, Init::OutPlusColumnBias(_) | Init::OutPlusRowBias(_)),
                "nothing is added to new memory"
            );
            slots
        }
    };
    // SAFETY: what is added to holds floats, by the match above
    unsafe {
        if V::LANES == 16 {
            panels::<V, 9>(left, b, start, (out, stride));
        } else {
            panels::<V, 6>(left, b, start, (out, stride));
        }
    }
}

/// # Safety
/// Where the start is what the output holds, it must hold floats.
#[inline(always)]
unsafe fn panels<V: Vector, const R: usize>(
    left: Gathered,
    b: &Panels,
    start: Init,
    (out, stride): (&mut [MaybeUninit<f32>], usize),
) {
    let rows = &left.rows.values[left.range.0..left.range.1];
    let inner = left.inner.values.as_slice();
    if rows.is_empty() || b.columns == 0 {
        return;
    }
    let width = 2 * V::LANES;
    assert_eq!(inner.len(), b.inner, "inner sizes differ");
    assert!(b.width == width, "packed for another path");
    let [step, panel_step] = b.strides;
    let panel_len = if b.inner == 0 { Some(0) } else { size::strided(b.inner, step, width) };
    let held = panel_len.and_then(|len| size::strided(b.columns.div_ceil(width), panel_step, len));
    assert!(held.is_some_and(|len| len <= b.data.len()), "the right matrix is too small");
    let fits = size::strided(rows.len(), stride, b.columns).is_some_and(|len| len <= out.len());
    assert!(stride >= b.columns && fits, "the output is too small");
    let last = rows.iter().fold(0, |last, &row| last.max(row)) as usize + left.inner.largest;
    // where nothing is summed, nothing is read, but rows still begin somewhere
    let end = left.data.len() + usize::from(inner.is_empty());
    assert!(last < end, "an offset of {last} into {} elements", left.data.len());
    // a block of rows stays in the cache while it is multiplied by every panel
    let together = rows_together(rows.len());
    for block in (0..rows.len()).step_by(together) {
        let block = block..(block + together).min(rows.len());
        for panel in 0..b.columns.div_ceil(width) {
            let first = panel * width;
            let count = width.min(b.columns - first);
            let bias: &[f32] = match start {
                Init::ColumnBias(bias) | Init::OutPlusColumnBias(bias) if !bias.is_empty() => &bias[first..b.columns],
                _ => &[],
            };
            for i in block.clone().step_by(R) {
                let valid = R.min(rows.len() - i);
                let mut starts = [left.data.as_ptr(); R];
                for (r, start) in starts.iter_mut().enumerate() {
                    // rows beyond the last one repeat it and are not written
                    let row = rows[(i + r).min(rows.len() - 1)] as usize;
                    // SAFETY: the largest offset was checked above
                    *start = unsafe { left.data.as_ptr().add(row) };
                }
                let mut down = [0.0; R];
                if let Init::RowBias(bias) | Init::OutPlusRowBias(bias) = start {
                    down[..valid].copy_from_slice(&bias[left.range.0 + i..][..valid]);
                }
                let add = matches!(start, Init::OutPlusColumnBias(_) | Init::OutPlusRowBias(_));
                let out = (&mut out[i * stride + first..][..(valid - 1) * stride + count], stride);
                // SAFETY: the largest offset was checked above; a panel has `inner` rows of `width`; what is added to
                // holds floats by contract
                unsafe {
                    let panel = (b.data.as_ptr().add(panel * panel_step), step);
                    let (left, terms, size) = ((starts, inner, panel), (bias, down), (valid, count, add));
                    // the last columns fill one vector at most
                    match (step == width, count > V::LANES) {
                        (true, true) => tile::<V, R, 2, true>(left, terms, size, out),
                        (true, false) => tile::<V, R, 1, true>(left, terms, size, out),
                        (false, true) => tile::<V, R, 2, false>(left, terms, size, out),
                        (false, false) => tile::<V, R, 1, false>(left, terms, size, out),
                    }
                }
            }
        }
    }
}

/// Some rows of the output by the columns of a panel: what it begins with, sums and where they go.
///
/// # Safety
/// That of [`summed`]; and to `add`, the output must hold floats.
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const C: usize, const PACKED: bool>(
    (starts, inner, panel): ([*const f32; R], &[u32], (*const f32, usize)),
    (bias, down): (&[f32], [f32; R]),
    (valid, count, add): (usize, usize, bool),
    (out, stride): (&mut [MaybeUninit<f32>], usize),
) {
    let mut begin = [[V::zero(); C]; R];
    if bias.is_empty() {
        for (begin, down) in begin.iter_mut().zip(down) {
            *begin = [V::splat(down); C];
        }
    } else {
        let mut columns = [V::zero(); C];
        for (c, columns) in columns.iter_mut().enumerate() {
            *columns = V::get(bias, c * V::LANES);
        }
        begin = [columns; R];
    }
    // SAFETY: by contract
    let sums = unsafe { summed::<V, R, C, PACKED>(starts, inner, panel, begin) };
    if valid == R && count == C * V::LANES {
        assert!(out.len() >= (R - 1) * stride + C * V::LANES);
        // by constants alone, so that sums go from registers to where they belong
        for (r, sums) in sums.into_iter().enumerate() {
            for (c, sum) in sums.into_iter().enumerate() {
                // SAFETY: the assertion covers the last element, and where sums are added it holds floats by contract
                unsafe {
                    let to = out.as_mut_ptr().cast::<f32>().add(r * stride + c * V::LANES);
                    (if add { sum.add(V::load(to)) } else { sum }).store(to);
                }
            }
        }
        return;
    }
    for (r, sums) in sums.iter().enumerate().take(valid) {
        let out = &mut out[r * stride..][..count];
        for (out, sum) in out.chunks_mut(V::LANES).zip(sums) {
            let (to, count) = (out.as_mut_ptr().cast::<f32>(), out.len());
            // SAFETY: there is room for `count` floats, and where sums are added it holds floats by contract
            unsafe {
                if count == V::LANES {
                    (if add { sum.add(V::load(to)) } else { *sum }).store(to);
                } else {
                    (if add { sum.add(V::load_first(to, count)) } else { *sum }).store_first(to, count);
                }
            }
        }
    }
}

/// Adds the products of some rows with a panel.
///
/// A function of its own, whose sums are named by constants alone: where a loop writes them by a number that is known at
/// run time, the compiler keeps them in memory too and stores every one of them in every step.
///
/// # Safety
/// The rows must be readable at all offsets from their starts, and the panel in as many steps.
#[inline(always)]
unsafe fn summed<V: Vector, const R: usize, const C: usize, const PACKED: bool>(
    starts: [*const f32; R],
    inner: &[u32],
    (panel, step): (*const f32, usize),
    mut sums: [[V; C]; R],
) -> [[V; C]; R] {
    // a constant leaves a register to the rows
    let step = if PACKED { 2 * V::LANES } else { step };
    // an offset, not a pointer: after the last step it may lie beyond the end
    let mut row = 0;
    for &offset in inner {
        // SAFETY: by contract
        unsafe {
            let mut right = [V::zero(); C];
            for (c, right) in right.iter_mut().enumerate() {
                *right = V::load(panel.add(row + c * V::LANES));
            }
            for r in 0..R {
                let left = V::splat(*starts[r].add(offset as usize));
                for c in 0..C {
                    sums[r][c] = left.fma(right[c], sums[r][c]);
                }
            }
            row += step;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_close, noise};
    use crate::simd::with_path;

    #[test]
    fn every_size_and_path_equals_three_loops() {
        for &path in Path::available() {
            for (m, inner, n) in [(1, 1, 1), (7, 5, 3), (12, 64, 32), (13, 9, 100), (5, 0, 4), (23, 17, 65)] {
                let (a, b, bias) = (noise(m * inner, 1), noise(inner * n, 2), noise(n, 3));
                let expected: Vec<f64> = (0..m * n)
                    .map(|at| {
                        let term = |k: usize| f64::from(a[at / n * inner + k]) * f64::from(b[k * n + at % n]);
                        f64::from(bias[at % n]) + (0..inner).map(term).sum::<f64>()
                    })
                    .collect();
                let b_t: Vec<f32> = (0..inner * n).map(|at| b[at % inner * n + at / inner]).collect();
                let down = noise(m, 4);
                let shifted = expected
                    .iter()
                    .enumerate()
                    .map(|(at, sum)| sum - f64::from(bias[at % n]) + f64::from(down[at / n]));
                let shifted: Vec<f64> = shifted.collect();
                for matrix in [Matrix::rows(&b, n), Matrix::transposed(&b_t, inner)] {
                    // an output of ones, to which `Out` adds
                    let more: Vec<f64> = expected.iter().map(|sum| sum + 1.0).collect();
                    let starts = [Init::ColumnBias(&bias), Init::RowBias(&down), Init::OutPlusColumnBias(&bias)];
                    for (start, expected) in starts.into_iter().zip([&expected, &shifted, &more]) {
                        let out = with_path(path, || {
                            let (rows, inner) = (Offsets::strided(m, inner), Offsets::strided(inner, 1));
                            let left = Gathered { data: &a, rows: &rows, range: (0, m), inner: &inner };
                            let mut out = vec![1.0; m * n];
                            multiply(left, &Panels::new(matrix, inner.len(), n), start, (&mut out, n));
                            out
                        });
                        assert_close(&out, expected, 1e-5);
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "an offset of 5 into 5 elements")]
    fn an_offset_beyond_the_data_is_refused() {
        let (rows, inner) = (Offsets::strided(2, 3), Offsets::strided(3, 1));
        let left = Gathered { data: &[0.0; 5], rows: &rows, range: (0, 2), inner: &inner };
        multiply(left, &Panels::new(Matrix::rows(&[0.0; 3], 1), 3, 1), Init::Zero, (&mut [0.0; 2], 1));
    }
}
