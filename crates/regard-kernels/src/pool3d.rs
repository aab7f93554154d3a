//! Pools of clips: the largest value or the mean of every window.
//!
//! The largest value is looked for down frames and rows first, where neighbours lie side by side, then along columns.

use std::ops::Range;

use crate::elementwise::{piece, rows_per_task, written, zeroed};
use crate::simd::{Vector, kernel};
use crate::size;
use crate::uninit::UninitWriter;

/// Planes `[P, T, H, W] -> [P, T', H', W']`: the largest value under every window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool3d {
    /// Frames, rows and columns of a clip.
    pub clip: [usize; 3],
    pub kernel: [usize; 3],
    pub stride: [usize; 3],
    /// What lies outside, on both sides of each axis, and takes no part; less than the kernel.
    pub padding: [usize; 3],
}

/// Planes `[P, T, H, W] -> [P, T', H', W']`: the mean of every window, all of which lie inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AveragePool3d {
    /// Frames, rows and columns of a clip.
    pub clip: [usize; 3],
    pub kernel: [usize; 3],
    pub stride: [usize; 3],
}

impl MaxPool3d {
    /// Frames, rows and columns of an output.
    #[must_use]
    pub fn output_size(&self) -> [usize; 3] {
        output_size("max pool", self.clip, (self.kernel, self.stride, self.padding))
    }

    /// The largest values; not a number where there is one.
    #[must_use]
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let [plane, map] = sizes("max pool", x, self.clip, self.output_size());
        let task = rows_per_task(plane);
        written(x.len() / plane * map, task * map, |index, out| {
            let mut row = vec![0.0; self.clip[2]];
            let planes = piece(x, index, task * plane).chunks_exact(plane);
            planes.for_each(|x| largest_of_windows(*self, x, &mut row, out));
        })
    }

    /// Every gradient goes to the first of the largest values of its window.
    #[must_use]
    pub fn backward(&self, x: &[f32], grad: &[f32]) -> Vec<f32> {
        let [plane, map] = sizes("max pool", x, self.clip, self.output_size());
        assert_eq!(grad.len(), x.len() / plane * map, "max pool: length of the gradient");
        let task = rows_per_task(plane);
        zeroed(x.len(), task * plane, |index, input_grad| {
            let (x, grad) = (piece(x, index, task * plane), piece(grad, index, task * map));
            let mut row = vec![(0.0, 0); self.clip[2]];
            let planes = input_grad.chunks_exact_mut(plane).zip(x.chunks_exact(plane));
            for ((input_grad, x), grad) in planes.zip(grad.chunks_exact(map)) {
                spread_to_largest(*self, (x, grad), &mut row, input_grad);
            }
        })
    }

    /// What the window at `place` covers of an axis.
    #[inline(always)]
    fn window(&self, axis: usize, place: usize) -> Range<usize> {
        let (start, padding) = (place * self.stride[axis], self.padding[axis]);
        start.saturating_sub(padding)..(start + self.kernel[axis] - padding).min(self.clip[axis])
    }
}

impl AveragePool3d {
    /// Frames, rows and columns of an output.
    #[must_use]
    pub fn output_size(&self) -> [usize; 3] {
        output_size("average pool", self.clip, (self.kernel, self.stride, [0; 3]))
    }

    /// The means.
    #[must_use]
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let [plane, map] = sizes("average pool", x, self.clip, self.output_size());
        let task = rows_per_task(plane);
        let scale = 1.0 / self.kernel.iter().product::<usize>() as f32;
        written(x.len() / plane * map, task * map, |index, out| {
            for x in piece(x, index, task * plane).chunks_exact(plane) {
                for place in 0..map {
                    let sum: f32 = self.runs(place).map(|run| x[run].iter().sum::<f32>()).sum();
                    out.push_slice(&[sum * scale]);
                }
            }
        })
    }

    /// Every gradient is shared out evenly over its window.
    #[must_use]
    pub fn backward(&self, x: &[f32], grad: &[f32]) -> Vec<f32> {
        let [plane, map] = sizes("average pool", x, self.clip, self.output_size());
        assert_eq!(grad.len(), x.len() / plane * map, "average pool: length of the gradient");
        let task = rows_per_task(plane);
        let scale = 1.0 / self.kernel.iter().product::<usize>() as f32;
        zeroed(x.len(), task * plane, |index, input_grad| {
            let planes = input_grad.chunks_exact_mut(plane).zip(piece(grad, index, task * map).chunks_exact(map));
            for (input_grad, grad) in planes {
                for (place, grad) in grad.iter().enumerate() {
                    let runs = self.runs(place);
                    runs.for_each(|run| input_grad[run].iter_mut().for_each(|sum| *sum += grad * scale));
                }
            }
        })
    }

    /// The window at `place` of the output, row by row.
    fn runs(&self, place: usize) -> impl Iterator<Item = Range<usize>> {
        let ([_, rows, columns], [_, height, width]) = (self.output_size(), self.clip);
        let Self { kernel, stride, .. } = *self;
        let [frame, row, column] = [place / (rows * columns), place / columns % rows, place % columns];
        let first = (frame * stride[0] * height + row * stride[1]) * width + column * stride[2];
        (0..kernel[0] * kernel[1]).map(move |line| {
            let start = first + (line / kernel[1] * height + line % kernel[1]) * width;
            start..start + kernel[2]
        })
    }
}

fn output_size(
    name: &str,
    clip: [usize; 3],
    (kernel, stride, padding): ([usize; 3], [usize; 3], [usize; 3]),
) -> [usize; 3] {
    let along = |axis: usize| {
        let padded = size::sum(name, &[clip[axis], padding[axis], padding[axis]]);
        let (kernel, stride, padding) = (kernel[axis], stride[axis], padding[axis]);
        assert!(
            stride > 0 && padding < kernel && kernel <= padded,
            "{name}: no window of {kernel} with padding {padding} and stride {stride} fits {clip:?}"
        );
        (padded - kernel) / stride + 1
    };
    [along(0), along(1), along(2)]
}

/// Elements of a clip and of its output.
fn sizes(name: &str, x: &[f32], clip: [usize; 3], out: [usize; 3]) -> [usize; 2] {
    let [plane, map] = [size::product(name, &clip), size::product(name, &out)];
    assert!(plane > 0 && x.len().is_multiple_of(plane), "{name}: planes of {plane} do not divide {}", x.len());
    size::product(name, &[x.len() / plane, map]);
    [plane, map]
}

/// Whether `x` is to be preferred; what is not a number stays so.
#[inline(always)]
#[allow(clippy::needless_bitwise_bool)] // a lazy one is a branch
fn is_larger(x: f32, best: f32) -> bool {
    (x > best) | x.is_nan()
}

kernel!(
    /// Of one plane; `row` is room for one.
    fn largest_of_windows<'a, 'b>(case: MaxPool3d, x: &'a [f32], row: &'a mut [f32], out: &'a mut UninitWriter<'b>) = largest_of_windows_body
);

#[inline(always)]
fn largest_of_windows_body<V: Vector>(case: MaxPool3d, x: &[f32], row: &mut [f32], out: &mut UninitWriter) {
    let ([_, height, width], [frames, rows, columns]) = (case.clip, case.output_size());
    for place in 0..frames * rows {
        row.fill(f32::NEG_INFINITY);
        for frame in case.window(0, place / rows) {
            for line in case.window(1, place % rows) {
                let x = &x[(frame * height + line) * width..][..width];
                for (best, x) in row.iter_mut().zip(x) {
                    *best = if is_larger(*x, *best) { *x } else { *best };
                }
            }
        }
        for column in 0..columns {
            let mut best = f32::NEG_INFINITY;
            for x in &row[case.window(2, column)] {
                best = if is_larger(*x, best) { *x } else { best };
            }
            out.push_slice(&[best]);
        }
    }
}

kernel!(
    /// The gradient of one plane; `row` is room for the largest values of a row and where they are.
    fn spread_to_largest<'a>(case: MaxPool3d, of: (&'a [f32], &'a [f32]), row: &'a mut [(f32, usize)], input_grad: &'a mut [f32]) = spread_to_largest_body
);

#[inline(always)]
fn spread_to_largest_body<V: Vector>(
    case: MaxPool3d,
    (x, grad): (&[f32], &[f32]),
    row: &mut [(f32, usize)],
    input_grad: &mut [f32],
) {
    let ([_, height, width], [_, rows, columns]) = (case.clip, case.output_size());
    for (place, grad) in grad.chunks_exact(columns).enumerate() {
        let mut fresh = true;
        for frame in case.window(0, place / rows) {
            for line in case.window(1, place % rows) {
                let first = (frame * height + line) * width;
                for (at, (best, x)) in row.iter_mut().zip(&x[first..first + width]).enumerate() {
                    *best = if fresh || is_larger(*x, best.0) { (*x, first + at) } else { *best };
                }
                fresh = false;
            }
        }
        for (column, grad) in grad.iter().enumerate() {
            let window = case.window(2, column);
            let mut best = row[window.start];
            for &x in &row[window] {
                // of equal values the first one in the clip
                let first = x.0 == best.0 && x.1 < best.1;
                best = if first || is_larger(x.0, best.0) { x } else { best };
            }
            input_grad[best.1] += grad;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    const GEOMETRIES: [[[usize; 3]; 3]; 5] = [
        [[1, 3, 3], [1, 2, 2], [0, 1, 1]],
        [[2, 1, 1], [2, 1, 1], [0, 0, 0]],
        [[1, 2, 2], [1, 2, 2], [0, 0, 0]],
        [[3, 3, 3], [2, 2, 2], [1, 1, 1]],
        [[2, 3, 2], [1, 1, 3], [1, 0, 1]],
    ];

    #[test]
    fn every_max_pool_and_path_equals_the_definition_and_its_differences() {
        for [kernel, stride, padding] in GEOMETRIES {
            for clip in [[4, 7, 9], [3, 4, 20]] {
                let case = MaxPool3d { clip, kernel, stride, padding };
                let x = noise(2 * clip.iter().product::<usize>(), 1);
                for &path in Path::available() {
                    with_path(path, || {
                        let out = case.forward(&x);
                        assert_close(&out, &naive::max_pool3d(&case, &wide(&x)), 0.0);
                        let grad = noise(out.len(), 2);
                        let input = case.backward(&x, &grad);
                        assert_differences(&[&x], &[&input], &grad, |p| naive::max_pool3d(&case, &p[0]));
                    });
                }
            }
        }
    }

    #[test]
    fn every_average_pool_and_path_equals_the_definition_and_its_differences() {
        for [kernel, stride, _] in GEOMETRIES.into_iter().chain([[[4, 7, 9], [1; 3], [0; 3]]]) {
            let clip = [4, 7, 9];
            let case = AveragePool3d { clip, kernel, stride };
            let x = noise(2 * clip.iter().product::<usize>(), 1);
            for &path in Path::available() {
                with_path(path, || {
                    let out = case.forward(&x);
                    assert_close(&out, &naive::average_pool3d(&case, &wide(&x)), 1e-6);
                    let grad = noise(out.len(), 2);
                    let input = case.backward(&x, &grad);
                    assert_differences(&[&x], &[&input], &grad, |p| naive::average_pool3d(&case, &p[0]));
                });
            }
        }
    }

    #[test]
    fn of_equal_values_the_first_one_in_the_clip_gets_the_gradient() {
        let case = MaxPool3d { clip: [2, 2, 2], kernel: [2; 3], stride: [1; 3], padding: [0; 3] };
        let x = [1.0, 5.0, 5.0, 2.0, 5.0, 0.0, 0.0, 5.0];
        assert_eq!(case.forward(&x), [5.0]);
        assert_eq!(case.backward(&x, &[3.0]), [0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn what_is_not_a_number_is_the_largest_and_infinities_are_numbers() {
        let case = MaxPool3d { clip: [1, 1, 3], kernel: [1, 1, 3], stride: [1; 3], padding: [0; 3] };
        assert!(case.forward(&[1.0, f32::NAN, 3.0])[0].is_nan());
        assert_eq!(case.backward(&[1.0, f32::NAN, 3.0], &[7.0]), [0.0, 7.0, 0.0]);
        let low = [f32::NEG_INFINITY; 3];
        assert_eq!((case.forward(&low), case.backward(&low, &[7.0])), (vec![low[0]], vec![7.0, 0.0, 0.0]));
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let (kernel, stride) = ([1, 3, 3], [1, 2, 2]);
        let largest = MaxPool3d { clip: [4, 20, 20], kernel, stride, padding: [0, 1, 1] };
        let mean = AveragePool3d { clip: [4, 20, 20], kernel, stride };
        let x = noise(50 * 1600, 1);
        assert_same_on_threads(|| {
            let (a, b) = (largest.forward(&x), mean.forward(&x));
            let grads = [largest.backward(&x, &a), mean.backward(&x, &b)];
            [vec![a, b], grads.to_vec()].concat()
        });
    }
}
