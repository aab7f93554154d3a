//! A convolution for inference only: its weights are packed once, for maps of one size.
//!
//! Maps lie in chunks of channels, and in a chunk pixel by pixel, `[C / chunk, H, W, chunk]`: a window is then rows of
//! numbers that are read where they lie, and an output is one contiguous piece. Chunks of one channel are planes, as
//! pictures have them. A group of channels is a few chunks.

use crate::gathered::{Gathered, Init, Offsets, Panels, multiply, rows_together};
use crate::parallel::{Parallel, return_buffer, take_buffer};
use crate::product::Matrix;
use crate::simd::{Vector, kernel};
use crate::size;

/// The sizes of a convolution of one picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub inputs: usize,
    pub outputs: usize,
    pub groups: usize,
    /// Rows and columns of the input.
    pub image: [usize; 2],
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    /// Zeros on both sides of rows and columns.
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
    /// Channels of a chunk of the input and of the output; they divide the channels of a group.
    pub chunks: [usize; 2],
}

impl Geometry {
    /// Rows and columns of the output.
    ///
    /// # Panics
    /// When the kernel does not fit.
    #[must_use]
    pub fn output_size(&self) -> [usize; 2] {
        [0, 1].map(|i| {
            let reach = size::product("convolution", &[self.dilation[i], self.kernel[i] - 1]) + 1;
            let side = size::sum("convolution", &[self.image[i], self.padding[i], self.padding[i]]);
            assert!(side >= reach, "convolution: a kernel of {reach} on {side} pixels");
            (side - reach) / self.stride[i] + 1
        })
    }

    /// Multiply-adds for one picture.
    #[must_use]
    pub fn multiply_adds(&self) -> u64 {
        let [rows, columns] = self.output_size();
        (rows * columns * self.outputs * self.depth()) as u64
    }

    /// Numbers that are summed for an output.
    fn depth(&self) -> usize {
        self.inputs / self.groups * self.kernel[0] * self.kernel[1]
    }

    fn check(&self) {
        let Self { inputs, outputs, groups, image, kernel, stride, dilation, chunks, .. } = *self;
        let sizes = [vec![inputs, outputs, groups], [image, kernel, stride, dilation, chunks].concat()].concat();
        assert!(!sizes.contains(&0), "convolution: a size of zero in {self:?}");
        let grouped = inputs.is_multiple_of(groups) && outputs.is_multiple_of(groups);
        assert!(grouped, "convolution: {groups} groups do not divide {inputs} and {outputs} channels");
        let [of_inputs, of_outputs] = chunks;
        let fits = (inputs / groups).is_multiple_of(of_inputs) && (outputs / groups).is_multiple_of(of_outputs);
        assert!(fits, "convolution: chunks of {chunks:?} do not divide a group of {self:?}");
        size::product("convolution", &[inputs, image[0], image[1]]);
    }
}

/// A convolution that is ready to run.
pub struct PackedConvolution {
    geometry: Geometry,
    /// One for each chunk of outputs.
    weights: Vec<Panels>,
    bias: Vec<f32>,
    /// Where windows begin, and the offsets in them for the first group.
    rows: Offsets,
    inner: Offsets,
}

impl std::fmt::Debug for PackedConvolution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedConvolution").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

kernel!(
    fn relu<'a>(x: &'a mut [f32]) = relu_body
);

#[inline(always)]
fn relu_body<V: Vector>(x: &mut [f32]) {
    for x in x.chunks_mut(V::LANES) {
        V::zero().max(V::get(x, 0)).put(x, 0);
    }
}

impl PackedConvolution {
    /// Packs the weight `[O, C / groups, kh, kw]`; the bias `[O]` may be empty.
    ///
    /// # Panics
    /// When lengths do not fit the sizes.
    #[must_use]
    pub fn new(geometry: Geometry, weight: &[f32], bias: &[f32]) -> Self {
        geometry.check();
        let Geometry { inputs, outputs, groups, kernel: [tall, wide], chunks: [of_inputs, of_outputs], .. } = geometry;
        let (depth, taps, inputs) = (geometry.depth(), tall * wide, inputs / groups);
        assert_eq!(weight.len(), size::product("convolution", &[outputs, depth]), "convolution: length of the weight");
        assert!(bias.is_empty() || bias.len() == outputs, "convolution: length of the bias");
        // channels last, as they are gathered
        let channels_last: Vec<f32> = weight
            .chunks_exact(depth)
            .flat_map(|weight| (0..depth).map(move |i| weight[i % inputs * taps + i / inputs]))
            .collect();
        let weights = channels_last
            .chunks_exact(of_outputs * depth)
            .map(|chunk| Panels::new(Matrix::transposed(chunk, depth), depth, of_outputs))
            .collect();
        let bias = if bias.is_empty() { vec![0.0; outputs] } else { bias.to_vec() };
        let [height, width] = geometry.padded();
        let [rows, columns] = geometry.output_size();
        let [down, across] = geometry.stride;
        let at = |y: usize, x: usize| (y * width + x) * of_inputs;
        let corners = (0..rows * columns).map(|pixel| at(pixel / columns * down, pixel % columns * across));
        let inner = (0..depth).map(|i| {
            let (tap, channel) = (i / inputs, i % inputs);
            let of_channel = channel / of_inputs * height * width * of_inputs + channel % of_inputs;
            at(tap / wide * geometry.dilation[0], tap % wide * geometry.dilation[1]) + of_channel
        });
        Self { geometry, weights, bias, rows: corners.collect(), inner: inner.collect() }
    }

    /// Its sizes.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Bytes of the packed weights.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<f32>() * (self.geometry.outputs * self.geometry.depth() + self.bias.len())
    }

    /// `[C / chunk, H, W, chunk] -> [O / chunk, H', W', chunk]`; `sum`, if given, is added and overwritten. On all
    /// threads, or on this one: the bytes are the same.
    ///
    /// # Panics
    /// When a length is another.
    #[must_use]
    pub fn forward(&self, x: &[f32], sum: Option<Vec<f32>>, relu_after: bool, all_threads: bool) -> Vec<f32> {
        let Geometry { inputs, outputs, groups, image, padding, chunks: [of_inputs, of_outputs], .. } = self.geometry;
        assert_eq!(x.len(), inputs * image[0] * image[1], "convolution: length of the input");
        let len = outputs * self.rows.len();
        let adds = sum.is_some();
        let mut out = sum.unwrap_or_else(|| vec![0.0; len]);
        assert_eq!(out.len(), len, "convolution: length of what is added");
        let mut parallel = if all_threads { Parallel::Pool } else { Parallel::Serial };
        let bordered = (padding != [0, 0]).then(|| self.geometry.bordered(x, &mut parallel));
        let [height, width] = self.geometry.padded();
        let from = bordered.as_ref().map_or(x, |x| &x[..inputs * height * width]);
        let group = inputs / groups * height * width;
        let groups_outputs = outputs / groups;
        let pixels = self.rows.len();
        debug_assert_eq!(group % of_inputs, 0);
        // a task takes a chunk of outputs; when these are few, some of its pixels
        let few = self.weights.len() < 4 * rayon::current_num_threads();
        let task = if few { parallel.rows(pixels, 3) } else { pixels };
        let tasks = out.chunks_exact_mut(pixels * of_outputs).enumerate().flat_map(|(index, out)| {
            out.chunks_mut(task * of_outputs).enumerate().map(move |(piece, out)| (index, piece * task, out))
        });
        parallel.each(tasks, |(index, begin, out)| {
            let first = index * of_outputs;
            let data = &from[first / groups_outputs * group..][..group];
            let bias = &self.bias[first..first + of_outputs];
            let start = if adds { Init::OutPlusColumnBias(bias) } else { Init::ColumnBias(bias) };
            let together = rows_together(out.len() / of_outputs);
            for (block, out) in out.chunks_mut(together * of_outputs).enumerate() {
                let first = begin + block * together;
                let range = (first, first + out.len() / of_outputs);
                let left = Gathered { data, rows: &self.rows, range, inner: &self.inner };
                multiply(left, &self.weights[index], start, (out, of_outputs));
                if relu_after {
                    relu(out);
                }
            }
        });
        bordered.into_iter().for_each(return_buffer);
        out
    }
}

impl Geometry {
    /// Rows and columns with the border.
    fn padded(&self) -> [usize; 2] {
        [0, 1].map(|i| self.image[i] + 2 * self.padding[i])
    }

    /// The map with zeros around it, in a buffer that may be longer.
    fn bordered(&self, x: &[f32], parallel: &mut Parallel) -> Vec<f32> {
        let ([height, width], [top, left], chunk) = (self.image, self.padding, self.chunks[0]);
        let [tall, wide] = self.padded();
        let (row, line, edge) = (width * chunk, wide * chunk, left * chunk);
        let piece = tall * line;
        let len = size::product("convolution", &[self.inputs / chunk, piece]);
        let mut out = take_buffer(len);
        parallel.each(out[..len].chunks_exact_mut(piece).zip(x.chunks_exact(height * row)), |(out, image)| {
            out[..top * line].fill(0.0);
            for (out, row) in out[top * line..].chunks_exact_mut(line).zip(image.chunks_exact(row)) {
                out[..edge].fill(0.0);
                out[edge..edge + row.len()].copy_from_slice(row);
                out[edge + row.len()..].fill(0.0);
            }
            out[piece - top * line..].fill(0.0);
        });
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_close, assert_same_on_threads, noise};
    use crate::simd::{Path, with_path};
    use crate::strided::copy;

    /// By its definition, planes in and out.
    fn definition(geometry: &Geometry, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f64> {
        let Geometry { inputs, outputs, groups, image, kernel, stride, padding, dilation, .. } = *geometry;
        let ([rows, columns], inputs) = (geometry.output_size(), inputs / groups);
        let mut out = Vec::new();
        for output in 0..outputs {
            let group = output / (outputs / groups);
            for pixel in 0..rows * columns {
                let mut sum = f64::from(bias[output]);
                for i in 0..geometry.depth() {
                    let (channel, tap) = (i / (kernel[0] * kernel[1]), i % (kernel[0] * kernel[1]));
                    let inside = |at: usize, axis: usize, tap: usize| {
                        let at = at * stride[axis] + tap * dilation[axis];
                        at.checked_sub(padding[axis]).filter(|at| *at < image[axis])
                    };
                    let places =
                        (inside(pixel / columns, 0, tap / kernel[1]), inside(pixel % columns, 1, tap % kernel[1]));
                    if let (Some(y), Some(column)) = places {
                        let at = ((group * inputs + channel) * image[0] + y) * image[1] + column;
                        sum += f64::from(weight[output * geometry.depth() + i]) * f64::from(x[at]);
                    }
                }
                out.push(sum);
            }
        }
        out
    }

    fn cases() -> Vec<Geometry> {
        let plain = Geometry {
            inputs: 12,
            outputs: 40,
            groups: 1,
            image: [7, 9],
            kernel: [3, 3],
            stride: [1, 1],
            padding: [1, 1],
            dilation: [1, 1],
            chunks: [4, 40],
        };
        vec![
            plain,
            Geometry { chunks: [1, 20], ..plain },
            Geometry { kernel: [1, 1], padding: [0, 0], stride: [2, 2], chunks: [12, 8], ..plain },
            Geometry { groups: 4, chunks: [3, 10], ..plain },
            Geometry { groups: 2, stride: [2, 1], padding: [2, 0], dilation: [2, 1], chunks: [3, 5], ..plain },
            Geometry { groups: 12, outputs: 12, chunks: [1, 1], ..plain },
        ]
    }

    fn chunked(planes: &[f32], pixels: usize, chunk: usize) -> Vec<f32> {
        let channels = planes.len() / pixels;
        copy(planes, 0, &[channels / chunk, pixels, chunk], &[chunk * pixels, 1, pixels])
    }

    #[test]
    fn every_geometry_and_path_equals_the_definition() {
        for geometry in cases() {
            let [[height, width], [rows, columns]] = [geometry.image, geometry.output_size()];
            let x = noise(geometry.inputs * height * width, 1);
            let (weight, bias) = (noise(geometry.outputs * geometry.depth(), 2), noise(geometry.outputs, 3));
            let wanted = definition(&geometry, &x, &weight, &bias);
            let sum = noise(wanted.len(), 4);
            for &path in Path::available() {
                with_path(path, || {
                    let packed = PackedConvolution::new(geometry, &weight, &bias);
                    let x = chunked(&x, height * width, geometry.chunks[0]);
                    let sum = chunked(&sum, rows * columns, geometry.chunks[1]);
                    let ordered: Vec<f32> = wanted.iter().map(|x| *x as f32).collect();
                    let wanted: Vec<f64> =
                        chunked(&ordered, rows * columns, geometry.chunks[1]).into_iter().map(f64::from).collect();
                    assert_close(&packed.forward(&x, None, false, true), &wanted, 1e-5);
                    let added: Vec<f64> =
                        wanted.iter().zip(&sum).map(|(x, sum)| (x + f64::from(*sum)).max(0.0)).collect();
                    assert_close(&packed.forward(&x, Some(sum), true, false), &added, 1e-5);
                });
            }
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        for geometry in cases() {
            let x = noise(geometry.inputs * geometry.image[0] * geometry.image[1], 1);
            let weight = noise(geometry.outputs * geometry.depth(), 2);
            let packed = PackedConvolution::new(geometry, &weight, &[]);
            assert_same_on_threads(|| {
                let out = packed.forward(&x, None, true, true);
                assert_eq!(out, packed.forward(&x, None, true, false));
                vec![out]
            });
        }
    }
}
