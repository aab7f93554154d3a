//! Convolution of clips, and its gradients; that of images is the one of clips of one frame.
//!
//! Clips are padded once and windows are read where they lie, so nothing of the window times the clip is stored. All three
//! products are the gathered one: the output sums over windows, the input's gradient over the outputs that a pixel
//! reached, the weight's gradient over pixels. With a stride, pixels are sorted by which taps reach them.

use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

use crate::elementwise::{add_all, channel_parts, piece, share, zeroed};
use crate::gathered::{Gathered, Init, Offsets, Panels, multiply};
use crate::linear::NeedsGrad;
use crate::pointwise::{Pointwise, sums_of_planes};
use crate::product::{transpose, transpose_strided};
use crate::size;

/// Pixels whose products are made at once.
const BLOCK: usize = 48;
/// Pixels whose products are summed at once into a gradient of the weight: about so many in small clips, at most so many in
/// large ones.
const DEPTH: [usize; 2] = [256, 2048];
/// Numbers of all partial gradients of the weight together, about: 128 MB.
const PARTIAL_SUMS: usize = 1 << 25;

/// `x [B, C, T, H, W]`, `weight [O, C, kt, kh, kw]`, `bias [O]` or empty `-> [B, O, T', H', W']`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution3d {
    pub inputs: usize,
    pub outputs: usize,
    /// Frames, rows and columns of a clip.
    pub clip: [usize; 3],
    pub kernel: [usize; 3],
    pub stride: [usize; 3],
    /// Zeros on both sides of each axis.
    pub padding: [usize; 3],
}

impl Convolution3d {
    /// Frames, rows and columns of an output.
    #[must_use]
    pub fn output_size(&self) -> [usize; 3] {
        let padded = self.padded_clip();
        axes(|axis| {
            let (side, kernel, stride) = (padded[axis], self.kernel[axis], self.stride[axis]);
            assert!(stride > 0 && side >= kernel, "convolution: no window fits {self:?}");
            (side - kernel) / stride + 1
        })
    }

    /// The output `[B, O, T', H', W']`.
    #[must_use]
    pub fn forward(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        let batch = self.check(x, weight);
        assert!(bias.is_empty() || bias.len() == self.outputs, "convolution: length of the bias");
        if let Some(pointwise) = self.pointwise() {
            return pointwise.forward(x, weight, bias);
        }
        let (pixels, depth) = (self.output_pixels(), self.depth());
        let group = clips_of(BLOCK, pixels, batch);
        let channels = self.outputs / channel_parts(batch, group, self.outputs);
        let rows: Vec<usize> = (0..depth).collect();
        let packed = |weight: &[f32]| Panels::gathered(weight, &rows, depth, weight.len() / depth);
        let sweep = Sweep {
            rows: self.corners(group),
            places: places(0..group, self.outputs * pixels, 0..pixels),
            inner: self.taps(),
            weights: weight.chunks(channels * depth).map(packed).collect(),
            channels,
            plane: pixels,
        };
        let input = self.inputs * self.pixels();
        sweep.over_clips(batch, group, |index, part, out| {
            let x = piece(x, index, group * input);
            let start = if bias.is_empty() { Init::Zero } else { Init::ColumnBias(piece(bias, part, channels)) };
            sweep.run(part, &self.padded(x), x.len() / input * pixels, start, out);
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
        (self.kernel == [1; 3] && self.stride == [1; 3]).then_some(Pointwise { inputs, outputs, pixels })
    }

    fn input_grad(&self, weight: &[f32], grad: &[f32], batch: usize) -> Vec<f32> {
        if let Some(pointwise) = self.pointwise() {
            return pointwise.input_grad(weight, grad);
        }
        let output = self.outputs * self.output_pixels();
        let group = clips_of(BLOCK, self.pixels(), batch);
        let reach = Reach::new(self);
        let channels = self.inputs / channel_parts(batch, group, self.inputs);
        let [frames, rows, columns] = self.stride;
        let sweeps: Vec<Sweep> = (0..frames * rows * columns)
            .map(|class| [class / (rows * columns), class / columns % rows, class % columns])
            .map(|class| reach.sweep(self, weight, class, (group, channels)))
            .filter(|sweep| sweep.rows.len() * sweep.inner.len() > 0)
            .collect();
        let write = |index: usize, part: usize, input_grad: &mut [f32]| {
            let grad = piece(grad, index, group * output);
            let padded = reach.padded(self, grad);
            for sweep in &sweeps {
                let rows = sweep.rows.len() / group * (grad.len() / output);
                sweep.run(part, &padded, rows, Init::Zero, input_grad);
            }
        };
        // a pixel that no window reaches has no sweep, and every clip has a pixel that one reaches
        sweeps.first().map_or_else(Vec::new, |sweep| sweep.over_clips(batch, group, write))
    }

    fn parameters(&self, x: &[f32], grad: &[f32], batch: usize) -> [Vec<f32>; 2] {
        if let Some(pointwise) = self.pointwise() {
            return pointwise.parameters(x, grad);
        }
        let (pixels, outputs, depth) = (self.output_pixels(), self.outputs, self.depth());
        let group = clips_of(DEPTH[0], pixels, batch);
        let (corners, taps) = (self.corners(group), self.taps());
        let places = places(0..group, outputs * pixels, 0..pixels);
        let (input, output) = (self.inputs * self.pixels(), outputs * pixels);
        // a task has some clips, and some taps where there are few clips
        let tasks = batch.div_ceil(group).min((PARTIAL_SUMS / (depth * outputs)).max(4));
        let clips = batch.div_ceil(group).div_ceil(tasks.max(1)).max(1) * group;
        let tasks = batch.div_ceil(clips);
        let band = depth.div_ceil(4usize.div_ceil(tasks.max(1)));
        let parts: Vec<Vec<f32>> = (0..depth.div_ceil(band) * tasks)
            .into_par_iter()
            .map(|index| {
                let taps_of_band = (index / tasks * band, (index / tasks * band + band).min(depth));
                let mut sums = vec![0.0; (taps_of_band.1 - taps_of_band.0) * outputs];
                let [x, grad] = [(x, input), (grad, output)].map(|(data, one)| piece(data, index % tasks, clips * one));
                for (x, grad) in x.chunks(group * input).zip(grad.chunks(group * output)) {
                    let count = x.len() / input * pixels;
                    let x = self.padded(x);
                    for first in (0..count).step_by(DEPTH[1]) {
                        let range = first..(first + DEPTH[1]).min(count);
                        let grad = Panels::gathered(grad, &places[range.clone()], pixels, outputs);
                        let inner = corners.part(range);
                        let left = Gathered { data: &x, rows: &taps, range: taps_of_band, inner: &inner };
                        multiply(left, &grad, Init::OutPlusColumnBias(&[]), (&mut sums, outputs));
                    }
                }
                sums
            })
            .collect();
        let mut weight = vec![0.0; depth * outputs];
        let mut parts = parts.into_iter();
        for sums in weight.chunks_mut(band * outputs) {
            add_all(sums, parts.by_ref().take(tasks));
        }
        [transpose(&weight, outputs, depth), sums_of_planes(grad, outputs, pixels)]
    }

    /// Numbers under one window.
    pub(crate) fn depth(&self) -> usize {
        let [frames, rows, columns] = self.kernel;
        size::product("convolution", &[self.inputs, frames, rows, columns])
    }

    pub(crate) fn pixels(&self) -> usize {
        size::product("convolution", &self.clip)
    }

    fn output_pixels(&self) -> usize {
        size::product("convolution", &self.output_size())
    }

    fn padded_clip(&self) -> [usize; 3] {
        axes(|axis| size::sum("convolution", &[self.clip[axis], self.padding[axis], self.padding[axis]]))
    }

    /// The channels of a clip with zeros around.
    fn padded<'a>(&self, x: &'a [f32]) -> Cow<'a, [f32]> {
        pad(x, self.clip, self.padded_clip(), self.padding)
    }

    /// Where the windows of a group of padded clips begin.
    fn corners(&self, group: usize) -> Offsets {
        let ([height, width], [frames, rows, columns]) = (self.padded_plane(), self.output_size());
        let clip = self.inputs * self.padded_clip().iter().product::<usize>();
        let [down, over, along] = self.stride;
        let corner = move |place: usize| {
            let (frame, row, column) = (place / (rows * columns), place / columns % rows, place % columns);
            (frame * down * height + row * over) * width + column * along
        };
        let count = frames * rows * columns;
        (0..group).flat_map(|index| (0..count).map(move |place| index * clip + corner(place))).collect()
    }

    /// Where the elements of a window are, seen from its corner.
    fn taps(&self) -> Offsets {
        let [height, width] = self.padded_plane();
        let ([_, rows, columns], plane) = (self.kernel, self.padded_clip()[0] * height * width);
        let window = self.kernel.iter().product::<usize>();
        let tap = |at: usize| {
            let (frame, row, column) = (at % window / (rows * columns), at / columns % rows, at % columns);
            at / window * plane + (frame * height + row) * width + column
        };
        (0..self.depth()).map(tap).collect()
    }

    fn padded_plane(&self) -> [usize; 2] {
        let [_, height, width] = self.padded_clip();
        [height, width]
    }

    /// Checks the lengths, gives the number of clips.
    pub(crate) fn check(&self, x: &[f32], weight: &[f32]) -> usize {
        let Self { inputs, outputs, clip, kernel, stride, padding } = *self;
        let none = [inputs, outputs].contains(&0) || kernel.contains(&0) || stride.contains(&0);
        assert!(!none, "convolution: a size of zero");
        assert!(
            (0..3).all(|axis| padding[axis] < kernel[axis]),
            "convolution: padding of {padding:?} for a kernel of {kernel:?}"
        );
        let padded = self.padded_clip();
        let fits = (0..3).all(|axis| padded[axis] >= kernel[axis]) && !clip.contains(&0);
        assert!(fits, "convolution: {clip:?} is smaller than the kernel {kernel:?}");
        let weights = size::product("convolution", &[outputs, self.depth()]);
        assert_eq!(weight.len(), weights, "convolution: length of the weight");
        let input = size::product("convolution", &[inputs, self.pixels()]);
        assert!(x.len().is_multiple_of(input), "convolution: clips of {input} do not divide {}", x.len());
        let batch = x.len() / input;
        // clips with their borders, and what comes out
        let [frames, height, width] = padded;
        size::product("convolution", &[batch, inputs, frames, height, width]);
        size::product("convolution", &[batch, outputs, self.output_pixels()]);
        batch
    }
}

/// A number for each axis.
fn axes(of: impl Fn(usize) -> usize) -> [usize; 3] {
    [of(0), of(1), of(2)]
}

/// Clips that have so many pixels together, at least one.
fn clips_of(pixels: usize, clip: usize, batch: usize) -> usize {
    share(batch, pixels.div_ceil(clip))
}

/// The places `pixels` of every clip.
fn places(clips: Range<usize>, clip: usize, pixels: impl Iterator<Item = usize> + Clone) -> Vec<usize> {
    clips.flat_map(|index| pixels.clone().map(move |pixel| index * clip + pixel)).collect()
}

/// Puts channels into larger ones of zeros, so far from the first corner along each axis.
fn pad(x: &[f32], clip: [usize; 3], size: [usize; 3], before: [usize; 3]) -> Cow<'_, [f32]> {
    if clip == size {
        return Cow::Borrowed(x);
    }
    let ([frames, height, width], [depth, rows, columns]) = (clip, size);
    let mut padded = vec![0.0; x.len() / (frames * height * width) * depth * rows * columns];
    let channels = padded.chunks_exact_mut(depth * rows * columns).zip(x.chunks_exact(frames * height * width));
    for (padded, x) in channels {
        let planes = padded.chunks_exact_mut(rows * columns).skip(before[0]).zip(x.chunks_exact(height * width));
        for (padded, x) in planes {
            for (padded, x) in padded[before[1] * columns..].chunks_mut(columns).zip(x.chunks_exact(width)) {
                padded[before[2]..before[2] + width].copy_from_slice(x);
            }
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
    /// One for each part of the channels.
    weights: Vec<Panels>,
    /// Those of a part.
    channels: usize,
    /// Distance of channels in the output.
    plane: usize,
}

impl Sweep {
    /// An array that is written by groups of clips and parts of channels; a group of more than one has one part.
    fn over_clips(&self, batch: usize, group: usize, write: impl Fn(usize, usize, &mut [f32]) + Sync) -> Vec<f32> {
        let parts = self.weights.len();
        let len = batch * parts * self.channels * self.plane;
        zeroed(len, group * self.channels * self.plane, |index, out| write(index / parts, index % parts, out))
    }

    fn run(&self, part: usize, data: &[f32], rows: usize, start: Init, out: &mut [f32]) {
        let mut block = vec![0.0; BLOCK.min(rows) * self.channels];
        for first in (0..rows).step_by(BLOCK) {
            let range = (first, (first + BLOCK).min(rows));
            let left = Gathered { data, rows: &self.rows, range, inner: &self.inner };
            multiply(left, &self.weights[part], start, (&mut block, self.channels));
            let mut rows = block.as_slice();
            for run in self.places[range.0..range.1].chunk_by(|place, next| place + 1 == *next) {
                transpose_strided([run.len(), self.channels], (rows, self.channels), (&mut out[run[0]..], self.plane));
                rows = &rows[run.len() * self.channels..];
            }
        }
    }
}

/// Which outputs a pixel reached: with `Y` its place along an axis of the padded clip, taps `Y mod s + t s` at outputs
/// `Y / s - t`. Gradients are padded by the most steps `t`, so that all of these exist.
struct Reach {
    /// One less than the taps of a class along each axis.
    before: [usize; 3],
    /// Frames, rows and columns of padded gradients.
    size: [usize; 3],
}

impl Reach {
    fn new(case: &Convolution3d) -> Self {
        let before = axes(|axis| case.kernel[axis].div_ceil(case.stride[axis]) - 1);
        let last = |axis: usize| (case.clip[axis] - 1 + case.padding[axis]) / case.stride[axis];
        Self { before, size: axes(|axis| last(axis) + 1 + before[axis]) }
    }

    fn padded<'a>(&self, case: &Convolution3d, grad: &'a [f32]) -> Cow<'a, [f32]> {
        pad(grad, case.output_size(), self.size, self.before)
    }

    /// The gradients of the pixels that are `class` beyond a multiple of the stride.
    fn sweep(
        &self,
        case: &Convolution3d,
        weight: &[f32],
        class: [usize; 3],
        (group, channels): (usize, usize),
    ) -> Sweep {
        let Convolution3d { inputs, outputs, clip, kernel, stride, padding } = *case;
        let [frames, height, width] = self.size;
        let (plane, window) = (frames * height * width, kernel.iter().product::<usize>());
        // the pixels of the class along an axis, and where their taps begin
        let along = |axis: usize| {
            let first = (class[axis] + stride[axis] - padding[axis] % stride[axis]) % stride[axis];
            (first..clip[axis]).step_by(stride[axis]).map(move |at| (at, (at + padding[axis]) / stride[axis]))
        };
        let mut pixels = Vec::new();
        for (frame, t) in along(0) {
            for (row, y) in along(1) {
                let start = ((frame * clip[1] + row) * clip[2], (t * height + y) * width);
                pixels.extend(along(2).map(|(column, x)| (start.0 + column, start.1 + x)));
            }
        }
        let steps = |axis: usize| (class[axis]..kernel[axis]).step_by(stride[axis]).enumerate();
        let mut taps = Vec::new();
        let mut rows = Vec::new();
        for output in 0..outputs {
            for (over, frame) in steps(0) {
                for (down, row) in steps(1) {
                    for (right, column) in steps(2) {
                        let [frames, lines, columns] =
                            [self.before[0] - over, self.before[1] - down, self.before[2] - right];
                        taps.push(output * plane + (frames * height + lines) * width + columns);
                        rows.push(output * inputs * window + (frame * kernel[1] + row) * kernel[2] + column);
                    }
                }
            }
        }
        let packed = |first: usize| Panels::gathered(&weight[first * window..], &rows, window, channels);
        Sweep {
            rows: (0..group).flat_map(|index| pixels.iter().map(move |(_, at)| index * outputs * plane + at)).collect(),
            places: places(0..group, inputs * case.pixels(), pixels.iter().map(|(pixel, _)| *pixel)),
            weights: (0..inputs).step_by(channels).map(packed).collect(),
            inner: taps.into_iter().collect(),
            channels,
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

    fn case(clip: [usize; 3], kernel: [usize; 3], stride: [usize; 3], padding: [usize; 3]) -> Convolution3d {
        Convolution3d { inputs: 2, outputs: 3, clip, kernel, stride, padding }
    }

    fn inputs(case: &Convolution3d, batch: usize) -> [Vec<f32>; 3] {
        [noise(batch * case.inputs * case.pixels(), 1), noise(case.outputs * case.depth(), 2), noise(case.outputs, 3)]
    }

    fn assert_is_its_definition(case: Convolution3d, batch: usize) {
        let inputs = inputs(&case, batch);
        let slices = inputs.each_ref().map(Vec::as_slice);
        for &path in Path::available() {
            with_path(path, || {
                let out = case.forward(slices[0], slices[1], slices[2]);
                assert_close(&out, &naive::convolution3d(&case, &slices.map(wide)), 1e-5);
                let grad = noise(out.len(), 4);
                let grads = case.backward(slices[0], slices[1], &grad, ALL);
                assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &grad, |p| {
                    naive::convolution3d(&case, p)
                });
            });
        }
    }

    #[test]
    fn every_geometry_and_path_equals_the_definition_and_its_differences() {
        for (kernel, stride, padding) in [
            ([3, 1, 1], [1, 1, 1], [1, 0, 0]),
            ([1, 3, 3], [1, 2, 2], [0, 1, 1]),
            ([3, 3, 3], [1, 1, 1], [1, 1, 1]),
            ([3, 3, 3], [2, 2, 2], [1, 1, 1]),
            ([1, 1, 1], [2, 2, 2], [0, 0, 0]),
            ([3, 5, 5], [1, 2, 2], [1, 2, 2]),
            ([3, 1, 1], [2, 1, 1], [1, 0, 0]),
            ([2, 3, 1], [3, 1, 2], [1, 2, 0]),
            ([1, 1, 1], [1, 1, 1], [0, 0, 0]),
        ] {
            for clip in [[4, 5, 6], [2, 3, 4]] {
                assert_is_its_definition(case(clip, kernel, stride, padding), 2);
            }
        }
    }

    #[test]
    fn the_channels_of_few_clips_are_done_in_parts() {
        let wide = Convolution3d { inputs: 64, outputs: 64, ..case([2, 2, 3], [3, 1, 1], [1, 1, 1], [1, 0, 0]) };
        assert_eq!([1, 3, 4].map(|batch| channel_parts(batch, 1, 64)), [2, 2, 1]);
        assert_is_its_definition(wide, 1);
    }

    #[test]
    fn a_large_clip_is_summed_in_steps() {
        let large = Convolution3d { inputs: 1, outputs: 1, ..case([3, 30, 30], [1, 2, 1], [1, 1, 1], [0, 1, 0]) };
        assert!(large.output_pixels() > DEPTH[1]);
        assert_is_its_definition(large, 1);
    }

    #[test]
    fn a_batch_is_its_clips_one_by_one() {
        // small clips are taken in groups, and the last group may be smaller
        for kernel in [[3, 3, 3], [1, 1, 1]] {
            let case = case([2, 3, 2], kernel, [1, 1, 1], kernel.map(|side| side / 2));
            let [x, weight, bias] = inputs(&case, 25);
            let out = case.forward(&x, &weight, &bias);
            let single = |x: &[f32]| case.forward(x, &weight, &bias);
            assert_eq!(out, x.chunks(case.inputs * case.pixels()).flat_map(single).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        for (clip, batch) in [([3, 9, 10], 5), ([2, 2, 3], 50), ([4, 20, 20], 1)] {
            let case = case(clip, [3, 3, 3], [1, 2, 2], [1, 1, 1]);
            let [x, weight, bias] = inputs(&case, batch);
            assert_same_on_threads(|| {
                let out = case.forward(&x, &weight, &bias);
                let grads = case.backward(&x, &weight, &out, ALL);
                [vec![out], grads.to_vec()].concat()
            });
        }
    }
}
