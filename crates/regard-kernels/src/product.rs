//! Products of small matrices that live in the cache: the heart of fused attention.

use std::mem::MaybeUninit;

use crate::simd::{Vector, kernel};
use crate::size;
use crate::uninit::{as_uninit, new_array};

/// A matrix whose element (i, j) is at `i * row + j * column`; transposing swaps the two.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub column: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of `stride`.
    pub fn rows(data: &'a [f32], stride: usize) -> Self {
        Self { data, row: stride, column: 1 }
    }
    /// The transpose of rows of `stride`.
    pub fn transposed(data: &'a [f32], stride: usize) -> Self {
        Self { data, row: 1, column: stride }
    }
}

/// Sizes of a product: `m x inner` times `inner x n`.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub m: usize,
    pub inner: usize,
    pub n: usize,
}

kernel!(
    /// `out = a b`, or `out += a b` when `add`; `b` and `out` are rows of the given strides.
    pub(crate) fn multiply<'a>(size: Size, a: Matrix<'a>, b: (&'a [f32], usize), out: (&'a mut [f32], usize), add: bool) = multiply_body
);

#[inline(always)]
fn multiply_body<V: Vector>(size: Size, a: Matrix, b: (&[f32], usize), out: (&mut [f32], usize), add: bool) {
    let Size { m, inner, n } = size;
    if m == 0 || n == 0 {
        return;
    }
    let fits = |len: usize, needed: Option<usize>| needed.is_some_and(|needed| needed <= len);
    assert!(out.1 >= n && fits(out.0.len(), size::strided(m, out.1, n)), "the output is too small");
    if inner > 0 {
        assert!(b.1 >= n && fits(b.0.len(), size::strided(inner, b.1, n)), "the right matrix is too small");
        let last = size::strided(m, a.row, 1).and_then(|row| size::strided(inner, a.column, row));
        assert!(fits(a.data.len(), last), "the left matrix is too small");
    }
    let call = Call {
        inner,
        a: a.data.as_ptr(),
        a_row: a.row,
        a_column: a.column,
        b: b.0.as_ptr(),
        b_row: b.1,
        out: out.0.as_mut_ptr(),
        out_row: out.1,
        add,
    };
    // SAFETY: the assertions above cover every element that the tiles of an m x n output touch
    unsafe {
        // 24 accumulators fill the 32 registers of AVX-512, 8 the 16 of AVX2
        if V::LANES == 16 { columns::<V, 6, 4>(&call, m, n) } else { columns::<V, 4, 2>(&call, m, n) }
    }
}

#[derive(Clone, Copy)]
struct Call {
    inner: usize,
    a: *const f32,
    a_row: usize,
    a_column: usize,
    b: *const f32,
    b_row: usize,
    out: *mut f32,
    out_row: usize,
    add: bool,
}

#[inline(always)]
unsafe fn columns<V: Vector, const R: usize, const C: usize>(call: &Call, m: usize, n: usize) {
    let mut j = 0;
    // SAFETY: j stays inside n; the last tile is cut to what is left
    unsafe {
        while j + C * V::LANES <= n {
            rows::<V, R, C>(call, m, j, V::LANES);
            j += C * V::LANES;
        }
        while j < n {
            rows::<V, R, 1>(call, m, j, V::LANES.min(n - j));
            j += V::LANES;
        }
    }
}

#[inline(always)]
unsafe fn rows<V: Vector, const R: usize, const C: usize>(call: &Call, m: usize, j: usize, lanes: usize) {
    let mut i = 0;
    // SAFETY: i stays inside m
    unsafe {
        while i + R <= m {
            tile::<V, R, C>(call, i, j, lanes);
            i += R;
        }
        while i + 2 <= m {
            tile::<V, 2, C>(call, i, j, lanes);
            i += 2;
        }
        if i < m {
            tile::<V, 1, C>(call, i, j, lanes);
        }
    }
}

/// R rows by C vectors of the output, summed in registers.
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const C: usize>(call: &Call, i: usize, j: usize, lanes: usize) {
    // SAFETY: the caller keeps (i + R, j + C * lanes) inside the output, and `multiply` checked the inputs
    unsafe {
        let mut sums = [[V::zero(); C]; R];
        // offsets, not pointers: after the last step they lie beyond the end
        let (mut left, mut right) = (i * call.a_row, j);
        for _ in 0..call.inner {
            let (a, b) = (call.a.add(left), call.b.add(right));
            (left, right) = (left.wrapping_add(call.a_column), right.wrapping_add(call.b_row));
            // plain loops instead of closures: a closure is compiled without the instruction set of its caller
            let mut right = [V::zero(); C];
            for (c, right) in right.iter_mut().enumerate() {
                *right = if lanes == V::LANES { V::load(b.add(c * V::LANES)) } else { V::load_first(b, lanes) };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let left = V::splat(*a.add(r * call.a_row));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = left.fma(right, *sum);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (c, sum) in sums.into_iter().enumerate() {
                let out = call.out.add((i + r) * call.out_row + j + c * V::LANES);
                if lanes == V::LANES {
                    (if call.add { sum.add(V::load(out)) } else { sum }).store(out);
                } else {
                    (if call.add { sum.add(V::load_first(out, lanes)) } else { sum }).store_first(out, lanes);
                }
            }
        }
    }
}

kernel!(
    /// `out[i][j] += a_i . b_j` over rows of `width` and the given strides: a product with a transpose on the right.
    pub(crate) fn add_row_products<'a>(size: Size, a: (&'a [f32], usize), b: (&'a [f32], usize), out: &'a mut [f32]) = add_row_products_body
);

#[inline(always)]
fn add_row_products_body<V: Vector>(size: Size, a: (&[f32], usize), b: (&[f32], usize), out: &mut [f32]) {
    let Size { m, inner: width, n } = size;
    if m == 0 || n == 0 || width == 0 {
        return;
    }
    let fits = |x: (&[f32], usize), rows: usize| size::strided(rows, x.1, width).is_some_and(|len| len <= x.0.len());
    assert!(fits(a, m) && fits(b, n), "rows are too short");
    assert!(size::holds(out.len(), [m, n, 1]), "the output is too small");
    // 16 sums fill the half of AVX-512's registers, 8 that of AVX2's
    if V::LANES == 16 { row_products::<V, 4>(size, a, b, out) } else { row_products::<V, 2>(size, a, b, out) }
}

#[inline(always)]
fn row_products<V: Vector, const R: usize>(size: Size, a: (&[f32], usize), b: (&[f32], usize), out: &mut [f32]) {
    let mut i = 0;
    while i < size.m {
        let many = i + R <= size.m;
        let mut j = 0;
        while j < size.n {
            // SAFETY: the rows i + R and j + 4 are within what `add_row_products` checked
            j += unsafe {
                match (many, j + 4 <= size.n) {
                    (true, true) => row_block::<V, R, 4>(size, (i, j), a, b, out),
                    (true, false) => row_block::<V, R, 1>(size, (i, j), a, b, out),
                    (false, true) => row_block::<V, 1, 4>(size, (i, j), a, b, out),
                    (false, false) => row_block::<V, 1, 1>(size, (i, j), a, b, out),
                }
            };
        }
        i += if many { R } else { 1 };
    }
}

/// R rows against C, whose number it gives.
#[inline(always)]
unsafe fn row_block<V: Vector, const R: usize, const C: usize>(
    Size { inner: width, n, .. }: Size,
    (i, j): (usize, usize),
    a: (&[f32], usize),
    b: (&[f32], usize),
    out: &mut [f32],
) -> usize {
    let whole = width / V::LANES * V::LANES;
    let mut sums = [[V::zero(); R]; C];
    // SAFETY: the caller keeps the rows within both, and x stays within a row
    unsafe {
        let (a, a_row, b, b_row) = (a.0.as_ptr().add(i * a.1), a.1, b.0.as_ptr().add(j * b.1), b.1);
        for x in (0..whole).step_by(V::LANES) {
            let mut left = [V::zero(); R];
            for (r, left) in left.iter_mut().enumerate() {
                *left = V::load(a.add(r * a_row + x));
            }
            for (c, sums) in sums.iter_mut().enumerate() {
                let right = V::load(b.add(c * b_row + x));
                for (sum, left) in sums.iter_mut().zip(left) {
                    *sum = left.fma(right, *sum);
                }
            }
        }
        if whole < width {
            for (c, sums) in sums.iter_mut().enumerate() {
                let right = V::load_first(b.add(c * b_row + whole), width - whole);
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load_first(a.add(r * a_row + whole), width - whole).fma(right, *sum);
                }
            }
        }
    }
    for (c, sums) in sums.iter().enumerate() {
        for (r, sum) in sums.iter().enumerate() {
            out[(i + r) * n + j + c] += sum.sum();
        }
    }
    C
}

/// `[rows, columns] -> [columns, stride]`, zeros after `rows`.
pub(crate) fn transpose(x: &[f32], columns: usize, stride: usize) -> Vec<f32> {
    let rows = x.len() / columns;
    new_array(columns * stride, |out| out.push_transposed([rows, columns], (x, columns), stride))
}

/// The same into a buffer; what lies after `rows` stays as it is.
pub(crate) fn transpose_into(x: &[f32], columns: usize, stride: usize, out: &mut [f32]) {
    transpose_strided([x.len() / columns, columns], (x, columns), (out, stride));
}

/// The transpose of `[rows, columns]`, both sides in rows of the given strides.
pub(crate) fn transpose_strided(size: [usize; 2], from: (&[f32], usize), to: (&mut [f32], usize)) {
    // SAFETY: a transpose writes floats only
    transpose_uninit(size, from, (unsafe { as_uninit(to.0) }, to.1));
}

kernel!(
    /// The same into memory that may be new: it writes `rows` elements of each of the `columns` rows, and reads none.
    pub(crate) fn transpose_uninit<'a>(size: [usize; 2], from: (&'a [f32], usize), to: (&'a mut [MaybeUninit<f32>], usize)) = transpose_body
);

#[inline(always)]
fn transpose_body<V: Vector>([rows, columns]: [usize; 2], from: (&[f32], usize), to: (&mut [MaybeUninit<f32>], usize)) {
    const SIDE: usize = 8;
    let ((x, from), (out, to)) = (from, to);
    if rows == 0 || columns == 0 {
        return;
    }
    let fits = |len: usize, needed: Option<usize>| needed.is_some_and(|needed| needed <= len);
    assert!(from >= columns && fits(x.len(), size::strided(rows, from, columns)), "the matrix is too small");
    assert!(to >= rows && fits(out.len(), size::strided(columns, to, rows)), "the output is too small");
    for i0 in (0..rows).step_by(SIDE) {
        for j0 in (0..columns).step_by(SIDE) {
            if i0 + SIDE <= rows && j0 + SIDE <= columns {
                // SAFETY: the block lies within both, by the assertions above
                unsafe {
                    let block = x.as_ptr().add(i0 * from + j0);
                    V::transpose_8x8((block, from), (out.as_mut_ptr().add(j0 * to + i0).cast(), to));
                }
            } else {
                for j in j0..columns.min(j0 + SIDE) {
                    for i in i0..rows.min(i0 + SIDE) {
                        out[j * to + i].write(x[i * from + j]);
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

    #[test]
    fn transposing_swaps_rows_and_columns_on_every_path() {
        for &path in Path::available() {
            for [rows, columns] in [[1, 1], [8, 8], [16, 16], [5, 40], [33, 17], [0, 3]] {
                let x = noise(rows * (columns + 2), 1);
                let mut out = vec![0.0; columns * (rows + 3)];
                with_path(path, || transpose_strided([rows, columns], (&x, columns + 2), (&mut out, rows + 3)));
                for i in 0..rows {
                    for j in 0..columns {
                        assert_eq!(out[j * (rows + 3) + i], x[i * (columns + 2) + j], "{path:?}");
                    }
                }
            }
        }
    }

    fn expected(size: Size, a: Matrix, b: &[f32], start: &[f32]) -> Vec<f64> {
        let mut out: Vec<f64> = start.iter().map(|&x| f64::from(x)).collect();
        for i in 0..size.m {
            for j in 0..size.n {
                for k in 0..size.inner {
                    out[i * size.n + j] += f64::from(a.data[i * a.row + k * a.column]) * f64::from(b[k * size.n + j]);
                }
            }
        }
        out
    }

    #[test]
    fn every_size_and_path_equals_three_loops() {
        for &path in Path::available() {
            for (m, inner, n) in [(1, 1, 1), (7, 5, 3), (6, 64, 64), (13, 9, 100), (5, 0, 4), (23, 17, 65)] {
                let size = Size { m, inner, n };
                let (a, b, start) = (noise(m * inner, 1), noise(inner * n, 2), noise(m * n, 3));
                for a in [Matrix::rows(&a, inner), Matrix::transposed(&a, m)] {
                    let mut out = start.clone();
                    with_path(path, || multiply(size, a, (&b, n), (&mut out, n), true));
                    assert_close(&out, &expected(size, a, &b, &start), 1e-5);
                    with_path(path, || multiply(size, a, (&b, n), (&mut out, n), false));
                    assert_close(&out, &expected(size, a, &b, &vec![0.0; m * n]), 1e-5);
                }
                let mut out = start.clone();
                let b_t = transpose(&b, n.max(1), inner);
                with_path(path, || add_row_products(size, (&a, inner), (&b_t, inner), &mut out));
                assert_close(&out, &expected(size, Matrix::rows(&a, inner), &b, &start), 1e-5);
            }
        }
    }
}
