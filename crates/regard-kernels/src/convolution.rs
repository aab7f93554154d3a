//! Convolution of images, and its gradients.
//!
//! Images are padded once and windows are read where they lie, so nothing of k*k times the image is stored. All three
//! products are the gathered one: the output sums over windows, the input's gradient over the outputs that a pixel
//! reached, the weight's gradient over pixels. With a stride, pixels are sorted by which taps reach them.

use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

use crate::elementwise::{add_all, piece, share, zeroed};
use crate::gathered::{Gathered, Init, Offsets, Panels, multiply};
use crate::linear::NeedsGrad;
use crate::pointwise::{Pointwise, sums_of_planes};
use crate::product::{Matrix, transpose, transpose_strided};
use crate::size;

/// Pixels whose products are made at once.
const BLOCK: usize = 48;
/// Pixels whose products are summed at once into a gradient of the weight.
const DEPTH: usize = 256;

/// `x [B, C, H, W]`, `weight [O, C, k, k]`, `bias [O]` or empty `-> [B, O, H', W']`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    pub inputs: usize,
    pub outputs: usize,
    /// Rows and columns of an image.
    pub image: [usize; 2],
    /// Side of the kernel.
    pub kernel: usize,
    pub stride: usize,
    /// Zeros on every side.
    pub padding: usize,
}

impl Convolution {
    /// Rows and columns of an output.
    #[must_use]
    pub fn output_size(&self) -> [usize; 2] {
        self.padded_image().map(|side| {
            assert!(self.stride > 0 && side >= self.kernel, "convolution: no window fits {self:?}");
            (side - self.kernel) / self.stride + 1
        })
    }

    /// The output `[B, O, H', W']`.
    #[must_use]
    pub fn forward(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        let batch = self.check(x, weight);
        assert!(bias.is_empty() || bias.len() == self.outputs, "convolution: length of the bias");
        if let Some(pointwise) = self.pointwise() {
            return pointwise.forward(x, weight, bias);
        }
        let pixels = self.output_pixels();
        let group = images_of(BLOCK, pixels, batch);
        let sweep = Sweep {
            rows: self.corners(group),
            places: places(0..group, self.outputs * pixels, 0..pixels),
            inner: self.taps(),
            weight: Panels::new(Matrix::transposed(weight, self.depth()), self.depth(), self.outputs),
            channels: self.outputs,
            plane: pixels,
        };
        let start = if bias.is_empty() { Init::Zero } else { Init::ColumnBias(bias) };
        let (input, output) = (self.inputs * self.pixels(), self.outputs * pixels);
        zeroed(batch * output, group * output, |index, out| {
            let x = piece(x, index, group * input);
            sweep.run(&self.padded(x), x.len() / input * pixels, start, out);
        })
    }

    /// Gradients of input, weight and bias; empty when not wanted.
    #[must_use]
    pub fn backward(&self, x: &[f32], weight: &[f32], grad: &[f32], wanted: NeedsGrad) -> [Vec<f32>; 3] {
        let batch = self.check(x, weight);
        assert_eq!(grad.len(), batch * self.outputs * self.output_pixels(), "convolution: length of the gradient");
        let input = if wanted.input { self.input_grad(weight, grad, batch) } else { Vec::new() };
        let [weight, bias] = if wanted.parameters { self.parameters(x, grad, batch) } else { [Vec::new(), Vec::new()] };
        [input, weight, bias]
    }

    /// A kernel of one pixel needs no windows.
    fn pointwise(&self) -> Option<Pointwise> {
        let (inputs, outputs, pixels) = (self.inputs, self.outputs, self.pixels());
        (self.kernel == 1 && self.stride == 1).then_some(Pointwise { inputs, outputs, pixels })
    }

    fn input_grad(&self, weight: &[f32], grad: &[f32], batch: usize) -> Vec<f32> {
        if let Some(pointwise) = self.pointwise() {
            return pointwise.input_grad(weight, grad);
        }
        let (input, output) = (self.inputs * self.pixels(), self.outputs * self.output_pixels());
        let group = images_of(BLOCK, self.pixels(), batch);
        let reach = Reach::new(self);
        let sweeps: Vec<Sweep> = (0..self.stride * self.stride)
            .map(|class| reach.sweep(self, weight, [class / self.stride, class % self.stride], group))
            .filter(|sweep| sweep.rows.len() * sweep.inner.len() > 0)
            .collect();
        zeroed(batch * input, group * input, |index, input_grad| {
            let grad = piece(grad, index, group * output);
            let padded = reach.padded(self, grad);
            for sweep in &sweeps {
                let rows = sweep.rows.len() / group * (grad.len() / output);
                sweep.run(&padded, rows, Init::Zero, input_grad);
            }
        })
    }

    fn parameters(&self, x: &[f32], grad: &[f32], batch: usize) -> [Vec<f32>; 2] {
        if let Some(pointwise) = self.pointwise() {
            return pointwise.parameters(x, grad);
        }
        let (pixels, outputs, depth) = (self.output_pixels(), self.outputs, self.depth());
        let group = images_of(DEPTH, pixels, batch);
        let (corners, taps) = (self.corners(group), self.taps());
        let places = places(0..group, outputs * pixels, 0..pixels);
        let (input, output) = (self.inputs * self.pixels(), outputs * pixels);
        let parts: Vec<Vec<f32>> = (x.par_chunks(group * input), grad.par_chunks(group * output))
            .into_par_iter()
            .map(|(x, grad)| {
                let count = x.len() / input * pixels;
                let last; // a group with fewer images has fewer pixels
                let inner = if count == corners.len() {
                    &corners
                } else {
                    last = self.corners(x.len() / input);
                    &last
                };
                let grad_panels = Panels::gathered(grad, &places[..count], pixels, outputs);
                let mut weight = vec![0.0; depth * outputs];
                let x = self.padded(x);
                let left = Gathered { data: &x, rows: &taps, range: (0, depth), inner };
                multiply(left, &grad_panels, Init::Zero, (&mut weight, outputs));
                weight
            })
            .collect();
        let mut weight = vec![0.0; depth * outputs];
        add_all(&mut weight, parts);
        [transpose(&weight, outputs, depth), sums_of_planes(grad, outputs, pixels)]
    }

    /// Numbers under one window.
    fn depth(&self) -> usize {
        size::product("convolution", &[self.inputs, self.kernel, self.kernel])
    }

    fn pixels(&self) -> usize {
        size::product("convolution", &self.image)
    }

    fn output_pixels(&self) -> usize {
        size::product("convolution", &self.output_size())
    }

    fn padded_image(&self) -> [usize; 2] {
        self.image.map(|side| size::sum("convolution", &[side, self.padding, self.padding]))
    }

    /// The channels of an image with zeros around.
    fn padded<'a>(&self, x: &'a [f32]) -> Cow<'a, [f32]> {
        pad(x, self.image, self.padded_image(), self.padding)
    }

    /// Where the windows of a group of padded images begin.
    fn corners(&self, group: usize) -> Offsets {
        let ([_, width], [rows, columns]) = (self.padded_image(), self.output_size());
        let image = self.inputs * self.padded_image().iter().product::<usize>();
        let corner = |place: usize| (place / columns * width + place % columns) * self.stride;
        (0..group).flat_map(|index| (0..rows * columns).map(move |place| index * image + corner(place))).collect()
    }

    /// Where the elements of a window are, seen from its corner.
    fn taps(&self) -> Offsets {
        let [height, width] = self.padded_image();
        let kernel = self.kernel;
        let tap = |at: usize| at / (kernel * kernel) * height * width + at / kernel % kernel * width + at % kernel;
        (0..self.depth()).map(tap).collect()
    }

    fn check(&self, x: &[f32], weight: &[f32]) -> usize {
        let Self { inputs, outputs, image, kernel, stride, padding } = *self;
        assert!(inputs > 0 && outputs > 0 && kernel > 0 && stride > 0, "convolution: a size of zero");
        assert!(padding < kernel, "convolution: padding of {padding} for a kernel of {kernel}");
        let fits = self.padded_image().iter().all(|side| *side >= kernel) && !image.contains(&0);
        assert!(fits, "convolution: {image:?} is smaller than the kernel {kernel}");
        let weights = size::product("convolution", &[outputs, self.depth()]);
        assert_eq!(weight.len(), weights, "convolution: length of the weight");
        let input = size::product("convolution", &[inputs, self.pixels()]);
        assert!(x.len().is_multiple_of(input), "convolution: images of {input} do not divide {}", x.len());
        let batch = x.len() / input;
        // images with their borders, and what comes out
        let [height, width] = self.padded_image();
        size::product("convolution", &[batch, inputs, height, width]);
        size::product("convolution", &[batch, outputs, self.output_pixels()]);
        batch
    }
}

/// Images that have so many pixels together, at least one.
fn images_of(pixels: usize, image: usize, batch: usize) -> usize {
    share(batch, pixels.div_ceil(image))
}

/// The places `pixels` of every image.
fn places(images: Range<usize>, image: usize, pixels: impl Iterator<Item = usize> + Clone) -> Vec<usize> {
    images.flat_map(|index| pixels.clone().map(move |pixel| index * image + pixel)).collect()
}

/// Puts planes into larger ones of zeros, `before` rows and columns from the corner.
fn pad(x: &[f32], [height, width]: [usize; 2], [rows, columns]: [usize; 2], before: usize) -> Cow<'_, [f32]> {
    if [height, width] == [rows, columns] {
        return Cow::Borrowed(x);
    }
    let mut padded = vec![0.0; x.len() / (height * width) * rows * columns];
    for (padded, x) in padded.chunks_exact_mut(rows * columns).zip(x.chunks_exact(height * width)) {
        for (padded, x) in padded[before * columns..].chunks_mut(columns).zip(x.chunks_exact(width)) {
            padded[before..before + width].copy_from_slice(x);
        }
    }
    Cow::Owned(padded)
}

/// A gathered product whose rows are pixels, written as planes of channels.
struct Sweep {
    /// Where a row begins in the data.
    rows: Offsets,
    /// Where its first channel is written.
    places: Vec<usize>,
    inner: Offsets,
    weight: Panels,
    channels: usize,
    /// Distance of channels in the output.
    plane: usize,
}

impl Sweep {
    fn run(&self, data: &[f32], rows: usize, start: Init, out: &mut [f32]) {
        let mut block = vec![0.0; BLOCK.min(rows) * self.channels];
        for first in (0..rows).step_by(BLOCK) {
            let range = (first, (first + BLOCK).min(rows));
            let left = Gathered { data, rows: &self.rows, range, inner: &self.inner };
            multiply(left, &self.weight, start, (&mut block, self.channels));
            let mut rows = block.as_slice();
            for run in self.places[range.0..range.1].chunk_by(|place, next| place + 1 == *next) {
                transpose_strided([run.len(), self.channels], (rows, self.channels), (&mut out[run[0]..], self.plane));
                rows = &rows[run.len() * self.channels..];
            }
        }
    }
}

/// Which outputs a pixel reached: with `Y` its row in the padded image, taps `Y mod s + t s` at output rows
/// `Y / s - t`. Gradients are padded by the most steps `t`, so that all of these exist.
struct Reach {
    /// One less than the taps of a class along one axis.
    before: usize,
    /// Rows and columns of padded gradients.
    size: [usize; 2],
}

impl Reach {
    fn new(case: &Convolution) -> Self {
        let before = case.kernel.div_ceil(case.stride) - 1;
        Self { before, size: case.image.map(|side| (side - 1 + case.padding) / case.stride + 1 + before) }
    }

    fn padded<'a>(&self, case: &Convolution, grad: &'a [f32]) -> Cow<'a, [f32]> {
        pad(grad, case.output_size(), self.size, self.before)
    }

    /// The gradients of the pixels that are `class` beyond a multiple of the stride.
    fn sweep(&self, case: &Convolution, weight: &[f32], class: [usize; 2], group: usize) -> Sweep {
        let Convolution { inputs, outputs, image, kernel, stride, padding } = *case;
        let plane = self.size[0] * self.size[1];
        // the pixels of the class along an axis, and where their taps begin
        let along = |axis: usize| {
            let first = (class[axis] + stride - padding % stride) % stride;
            (first..image[axis]).step_by(stride).map(move |at| (at, (at + padding) / stride))
        };
        let pixels: Vec<(usize, usize)> = along(0)
            .flat_map(|(row, y)| along(1).map(move |(column, x)| (row * image[1] + column, y * self.size[1] + x)))
            .collect();
        let steps = |axis: usize| (class[axis]..kernel).step_by(stride).enumerate();
        let mut taps = Vec::new();
        let mut rows = Vec::new();
        for output in 0..outputs {
            for (down, row) in steps(0) {
                for (right, column) in steps(1) {
                    let back = (self.before - down) * self.size[1] + self.before - right;
                    taps.push(output * plane + back);
                    rows.push(output * case.depth() + row * kernel + column);
                }
            }
        }
        Sweep {
            rows: (0..group).flat_map(|index| pixels.iter().map(move |(_, at)| index * outputs * plane + at)).collect(),
            places: places(0..group, inputs * case.pixels(), pixels.iter().map(|(pixel, _)| *pixel)),
            weight: Panels::gathered(weight, &rows, kernel * kernel, inputs),
            inner: taps.into_iter().collect(),
            channels: inputs,
            plane: case.pixels(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    const ALL: NeedsGrad = NeedsGrad { input: true, parameters: true };

    fn case(image: [usize; 2], [kernel, stride, padding]: [usize; 3]) -> Convolution {
        Convolution { inputs: 3, outputs: 5, image, kernel, stride, padding }
    }

    fn inputs(case: &Convolution, batch: usize) -> [Vec<f32>; 3] {
        [noise(batch * case.inputs * case.pixels(), 1), noise(case.outputs * case.depth(), 2), noise(case.outputs, 3)]
    }

    #[test]
    fn every_geometry_and_path_equals_the_definition_and_its_differences() {
        let geometries =
            [[1, 1, 0], [3, 1, 1], [3, 2, 1], [1, 2, 0], [2, 2, 0], [3, 1, 0], [7, 2, 3], [4, 3, 2], [2, 3, 1]];
        for geometry in geometries {
            for image in [[5, 6], [4, 4], [7, 9]] {
                if geometry[0] > image[0] + 2 * geometry[2] {
                    continue;
                }
                let case = case(image, geometry);
                let inputs = inputs(&case, 3);
                let slices = inputs.each_ref().map(Vec::as_slice);
                for &path in Path::available() {
                    with_path(path, || {
                        let out = case.forward(slices[0], slices[1], slices[2]);
                        assert_close(&out, &naive::convolution(&case, &slices.map(wide)), 1e-5);
                        let grad = noise(out.len(), 4);
                        let grads = case.backward(slices[0], slices[1], &grad, ALL);
                        assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &grad, |p| {
                            naive::convolution(&case, p)
                        });
                    });
                }
            }
        }
    }

    #[test]
    fn a_batch_is_its_images_one_by_one() {
        // small images are taken in groups, and the last group may be smaller
        for geometry in [[3, 1, 1], [1, 1, 0]] {
            let case = case([3, 4], geometry);
            let [x, weight, bias] = inputs(&case, 25);
            let out = case.forward(&x, &weight, &bias);
            let single = |x: &[f32]| case.forward(x, &weight, &bias);
            assert_eq!(out, x.chunks(case.inputs * case.pixels()).flat_map(single).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        for (image, geometry) in
            [([17, 20], [3, 2, 1]), ([4, 4], [3, 2, 1]), ([17, 20], [1, 1, 0]), ([4, 4], [1, 1, 0])]
        {
            let case = case(image, geometry);
            let [x, weight, bias] = inputs(&case, 50);
            assert_same_on_threads(|| {
                let out = case.forward(&x, &weight, &bias);
                let grads = case.backward(&x, &weight, &out, ALL);
                [vec![out], grads.to_vec()].concat()
            });
        }
    }
}
