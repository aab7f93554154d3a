//! A whole residual network for inference only: norms are folded into the weights of the convolutions, which are packed
//! once, and one thread takes a few pictures through all layers.
//!
//! Maps lie in chunks of channels, and in a chunk pixel by pixel: a window is then rows of numbers that are read where
//! they lie, an output is one contiguous piece, and its task needs a part of the weights alone. Fewer pictures than
//! threads are shared out; a number is the same sum in the same order in both cases.

use crate::epilogue::relu;
use crate::gathered::{Gathered, Init, Offsets, Panels, multiply, multiply_rows, rows_together};
use crate::parallel::{Helpers, Parallel, for_each_picture, return_buffer, take_buffer};
use crate::product::Matrix;
use crate::simd::{Vector, kernel};
use crate::size;

/// Channels of a chunk.
const CHUNK: usize = 64;
/// Pictures that go through a layer together: the last layers' weights are larger than a cache.
const TOGETHER: usize = 4;

/// A square convolution with its norm folded in.
#[derive(Clone, Debug)]
pub struct FoldedConv {
    /// `[O, C, k, k]`
    pub weight: Vec<f32>,
    /// `[O]`
    pub bias: Vec<f32>,
    /// Side of the kernel.
    pub kernel: usize,
    pub stride: usize,
    /// Zeros on every side.
    pub padding: usize,
}

/// Convolutions one after the other, and what their sum is added to.
#[derive(Clone, Debug)]
pub struct BlockParameters {
    pub branch: Vec<FoldedConv>,
    /// None when it is the input itself.
    pub shortcut: Option<FoldedConv>,
}

/// A residual network.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Channels of a picture.
    pub channels: usize,
    pub stem: FoldedConv,
    /// Whether 3x3 maxima of stride 2 follow the stem.
    pub pool: bool,
    pub blocks: Vec<BlockParameters>,
    /// Weight `[classes, C]` and bias.
    pub classifier: [Vec<f32>; 2],
}

/// A residual network that is ready to run.
pub struct Residual {
    channels: usize,
    stem: Layer,
    pool: bool,
    /// The first convolution, those after it, and the shortcut's.
    blocks: Vec<(Layer, Vec<Layer>, Option<Layer>)>,
    classifier: Panels,
    bias: Vec<f32>,
}

impl std::fmt::Debug for Residual {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Residual").field("blocks", &self.blocks.len()).finish_non_exhaustive()
    }
}

impl Residual {
    /// Packs the parameters.
    ///
    /// # Panics
    /// When their lengths do not fit together.
    #[must_use]
    pub fn new(parameters: &Parameters) -> Self {
        let Parameters { channels, stem, pool, blocks, classifier: [weight, bias] } = parameters;
        let stem = Layer::new(stem, *channels);
        let mut inputs = stem.bias.len();
        let mut packed = Vec::new();
        for BlockParameters { branch, shortcut } in blocks {
            let shortcut = shortcut.as_ref().map(|shortcut| Layer::new(shortcut, inputs));
            let mut layers = branch.iter().map(|folded| {
                let layer = Layer::new(folded, inputs);
                inputs = layer.bias.len();
                layer
            });
            let first = layers.next().expect("a branch has a convolution");
            packed.push((first, layers.collect(), shortcut));
        }
        let weights = size::product("residual", &[bias.len(), inputs]);
        assert!(weights > 0 && weight.len() == weights, "residual: length of the classifier's weight");
        let classifier = Panels::new(Matrix::transposed(weight, inputs), inputs, bias.len());
        Self { channels: *channels, stem, pool: *pool, blocks: packed, classifier, bias: bias.clone() }
    }

    /// Channels of a picture.
    #[must_use]
    pub const fn channels(&self) -> usize {
        self.channels
    }

    /// Number of logits.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.bias.len()
    }

    /// `[B, C, H, W] -> [B, classes]`, for pictures of any size.
    ///
    /// # Panics
    /// When the pictures do not divide the length, or vanish on the way.
    #[must_use]
    pub fn forward(&self, images: &[f32], sides: [usize; 2]) -> Vec<f32> {
        let image = size::product("residual", &[self.channels, sides[0], sides[1]]);
        assert!(image > 0 && images.len().is_multiple_of(image), "residual: images of another size");
        for_each_picture(images, image, self.classes(), TOGETHER, Helpers::Team, |images, logits, parallel| {
            self.pictures(images, sides, logits, parallel);
        })
    }

    fn pictures(&self, images: &[f32], sides: [usize; 2], logits: &mut [f32], parallel: &mut Parallel) {
        let image = FeatureMap::of(images, self.channels, sides);
        let mut map = self.stem.apply(&image, Epilogue::Relu, parallel);
        image.return_buffer();
        if self.pool {
            let pooled = map.max_pool(parallel);
            std::mem::replace(&mut map, pooled).return_buffer();
        }
        for (first, rest, shortcut) in &self.blocks {
            let mut inner = first.apply(&map, Epilogue::Relu, parallel);
            let sum = match shortcut {
                Some(shortcut) => {
                    let sum = shortcut.apply(&map, Epilogue::Identity, parallel);
                    map.return_buffer();
                    sum
                }
                None => map,
            };
            let (last, middle) = rest.split_last().expect("a branch has two convolutions");
            for layer in middle {
                let next = layer.apply(&inner, Epilogue::Relu, parallel);
                std::mem::replace(&mut inner, next).return_buffer();
            }
            map = last.add(&inner, sum, parallel);
            inner.return_buffer();
        }
        multiply_rows(&map.means(), map.channels, &self.classifier, Init::ColumnBias(&self.bias), logits);
        map.return_buffer();
    }
}

/// A few pictures' maps: `[channels / chunk, pictures, rows, columns, chunk]`.
struct FeatureMap {
    /// It may be longer than the map.
    data: Vec<f32>,
    pictures: usize,
    sides: [usize; 2],
    channels: usize,
    chunk: usize,
}

impl FeatureMap {
    fn new(pictures: usize, sides: [usize; 2], channels: usize, chunk: usize) -> Self {
        let len = size::product("residual", &[channels.div_ceil(chunk), chunk, pictures, sides[0], sides[1]]);
        Self { data: take_buffer(len), pictures, sides, channels, chunk }
    }

    /// Of images `[B, C, H, W]`: every channel is a chunk.
    fn of(images: &[f32], channels: usize, sides: [usize; 2]) -> Self {
        let plane = sides[0] * sides[1];
        let mut map = Self::new(images.len() / (channels * plane), sides, channels, 1);
        for (index, from) in images.chunks_exact(plane).enumerate() {
            let (picture, channel) = (index / channels, index % channels);
            map.data[(channel * map.pictures + picture) * plane..][..plane].copy_from_slice(from);
        }
        map
    }

    fn return_buffer(self) {
        return_buffer(self.data);
    }

    const fn pixels(&self) -> usize {
        self.sides[0] * self.sides[1]
    }

    /// Numbers of a chunk of all pictures.
    const fn chunk_len(&self) -> usize {
        self.pictures * self.pixels() * self.chunk
    }

    /// The map itself, without what is behind it.
    fn numbers(&mut self) -> &mut [f32] {
        let len = self.channels.div_ceil(self.chunk) * self.chunk_len();
        &mut self.data[..len]
    }

    /// With zeros on every side.
    fn padded(&self, border: usize, parallel: &mut Parallel) -> Self {
        let sides = self.sides.map(|side| size::sum("residual", &[side, border, border]));
        let mut out = Self::new(self.pictures, sides, self.channels, self.chunk);
        let (row, wide, edge) = (self.sides[1] * self.chunk, sides[1] * self.chunk, border * self.chunk);
        let (image, piece) = (self.sides[0] * row, sides[0] * wide);
        parallel.each(out.numbers().chunks_exact_mut(piece).zip(self.data.chunks_exact(image)), |(out, image)| {
            out[..border * wide].fill(0.0);
            for (out, row) in out[border * wide..].chunks_exact_mut(wide).zip(image.chunks_exact(row)) {
                out[..edge].fill(0.0);
                out[edge..edge + row.len()].copy_from_slice(row);
                out[edge + row.len()..].fill(0.0);
            }
            out[piece - border * wide..].fill(0.0);
        });
        out
    }

    /// The largest of every 3x3 pixels, two apart; pixels beyond the border take no part.
    fn max_pool(&self, parallel: &mut Parallel) -> Self {
        let mut out = Self::new(self.pictures, self.sides.map(|side| side.div_ceil(2)), self.channels, self.chunk);
        let (sides, [image, piece]) = (self.sides, [self.pixels(), out.pixels()].map(|pixels| pixels * self.chunk));
        let pairs = out.numbers().chunks_exact_mut(piece).zip(self.data.chunks_exact(image));
        parallel.each(pairs, |(out, image)| largest(image, sides, self.chunk, out));
        out
    }

    /// The mean of every channel: `[B, C]`.
    fn means(&self) -> Vec<f32> {
        let mut means = vec![0.0; self.pictures * self.channels];
        let images =
            self.data.chunks_exact(self.pixels() * self.chunk).take(self.channels.div_ceil(self.chunk) * self.pictures);
        for (index, image) in images.enumerate() {
            let (chunk, picture) = (index / self.pictures, index % self.pictures);
            let first = chunk * self.chunk;
            let means = &mut means[picture * self.channels..][first..self.channels.min(first + self.chunk)];
            for pixel in image.chunks_exact(self.chunk) {
                means.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += value);
            }
            means.iter_mut().for_each(|sum| *sum /= self.pixels() as f32);
        }
        means
    }
}

kernel!(
    fn largest<'a>(image: &'a [f32], sides: [usize; 2], chunk: usize, out: &'a mut [f32]) = largest_body
);

#[inline(always)]
fn largest_body<V: Vector>(image: &[f32], [rows, columns]: [usize; 2], chunk: usize, out: &mut [f32]) {
    let width = columns.div_ceil(2);
    let around = |at: usize, side: usize| (2 * at).saturating_sub(1)..(2 * at + 2).min(side);
    for (place, out) in out.chunks_exact_mut(chunk).enumerate() {
        for channel in (0..chunk).step_by(V::LANES) {
            let mut most = V::splat(f32::NEG_INFINITY);
            for y in around(place / width, rows) {
                for x in around(place % width, columns) {
                    most = most.max(V::get(&image[(y * columns + x) * chunk..][..chunk], channel));
                }
            }
            most.put(out, channel);
        }
    }
}

/// What follows the sum of a convolution.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Epilogue {
    Identity,
    Relu,
    /// Added to the output, then ReLU.
    AddRelu,
}

/// A packed convolution.
struct Layer {
    /// One for each chunk of outputs.
    weights: Vec<Panels>,
    bias: Vec<f32>,
    inputs: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl Layer {
    fn new(folded: &FoldedConv, inputs: usize) -> Self {
        let FoldedConv { weight, bias, kernel, stride, padding } = folded;
        let depth = size::product("residual", &[*kernel, *kernel, inputs]);
        let taps = kernel * kernel;
        assert!(depth > 0 && *stride > 0 && !bias.is_empty(), "residual: a convolution with a size of zero");
        assert!(padding < kernel, "residual: padding of {padding} for a kernel of {kernel}");
        assert_eq!(weight.len(), size::product("residual", &[bias.len(), depth]), "residual: length of a weight");
        // channels last, as they are gathered
        let channels_last: Vec<f32> = weight
            .chunks_exact(depth)
            .flat_map(|weight| (0..depth).map(move |i| weight[i % inputs * taps + i / inputs]))
            .collect();
        let weights = channels_last
            .chunks(CHUNK * depth)
            .map(|chunk| Panels::new(Matrix::transposed(chunk, depth), depth, chunk.len() / depth))
            .collect();
        Self { weights, bias: bias.clone(), inputs, kernel: *kernel, stride: *stride, padding: *padding }
    }

    fn apply(&self, x: &FeatureMap, epilogue: Epilogue, parallel: &mut Parallel) -> FeatureMap {
        let sides = x.sides.map(|side| {
            let side = size::sum("residual", &[side, self.padding, self.padding]);
            assert!(side >= self.kernel, "residual: pictures vanish before a kernel of {}", self.kernel);
            (side - self.kernel) / self.stride + 1
        });
        let mut out = FeatureMap::new(x.pictures, sides, self.bias.len(), CHUNK.min(self.bias.len()));
        self.run(x, epilogue, &mut out, parallel);
        out
    }

    fn add(&self, x: &FeatureMap, mut out: FeatureMap, parallel: &mut Parallel) -> FeatureMap {
        assert_eq!(out.channels, self.bias.len(), "residual: channels of a shortcut");
        self.run(x, Epilogue::AddRelu, &mut out, parallel);
        out
    }

    fn run(&self, x: &FeatureMap, epilogue: Epilogue, out: &mut FeatureMap, parallel: &mut Parallel) {
        assert_eq!(x.channels, self.inputs, "residual: channels of a map");
        let padded = (self.padding > 0).then(|| x.padded(self.padding, parallel));
        let from = padded.as_ref().unwrap_or(x);
        let ([height, width], [_, columns]) = (from.sides, out.sides);
        let at = |picture: usize, y: usize, x: usize| ((picture * height + y) * width + x) * from.chunk;
        let rows: Offsets = (0..out.pictures * out.pixels())
            .map(|row| {
                let (picture, pixel) = (row / out.pixels(), row % out.pixels());
                at(picture, pixel / columns * self.stride, pixel % columns * self.stride)
            })
            .collect();
        let inner: Offsets = (0..self.kernel * self.kernel * self.inputs)
            .map(|i| {
                let (tap, channel) = (i / self.inputs, i % self.inputs);
                let of_channel = channel / from.chunk * from.chunk_len() + channel % from.chunk;
                at(0, tap / self.kernel, tap % self.kernel) + of_channel
            })
            .collect();
        let (chunk, chunk_len) = (out.chunk, out.chunk_len());
        // a task takes a chunk of outputs; when these are few, some of its pixels: a thread that is slow takes fewer tasks
        let few = self.weights.len() < 4 * rayon::current_num_threads();
        let task = if few { parallel.rows(rows.len(), 3) } else { rows.len() };
        let tasks = out.numbers().chunks_exact_mut(chunk_len).enumerate().flat_map(|(index, out)| {
            out.chunks_mut(task * chunk).enumerate().map(move |(piece, out)| (index, piece * task, out))
        });
        parallel.each(tasks, |(index, begin, out)| {
            let bias = &self.bias[index * CHUNK..self.bias.len().min((index + 1) * CHUNK)];
            let start =
                if epilogue == Epilogue::AddRelu { Init::OutPlusColumnBias(bias) } else { Init::ColumnBias(bias) };
            let together = rows_together(out.len() / chunk);
            for (block, out) in out.chunks_mut(together * chunk).enumerate() {
                let first = begin + block * together;
                let range = (first, first + out.len() / chunk);
                let left = Gathered { data: &from.data, rows: &rows, range, inner: &inner };
                multiply(left, &self.weights[index], start, (out, chunk));
                if epilogue != Epilogue::Identity {
                    relu(out);
                }
            }
        });
        padded.into_iter().for_each(FeatureMap::return_buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convolution::Convolution;
    use crate::naive::{assert_close, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    const CHANNELS: usize = 3;
    const SIDES: [usize; 2] = [13, 10];

    fn folded(inputs: usize, outputs: usize, [kernel, stride]: [usize; 2], seed: u64) -> FoldedConv {
        let depth = inputs * kernel * kernel;
        let weight = noise(outputs * depth, seed).iter().map(|x| x * (3.0 / depth as f32).sqrt()).collect();
        FoldedConv { weight, bias: noise(outputs, seed + 1), kernel, stride, padding: kernel / 2 }
    }

    /// A bottleneck that strides, with more channels than a chunk, and a basic block.
    fn parameters(pool: bool) -> Parameters {
        let bottleneck = BlockParameters {
            branch: vec![folded(8, 20, [1, 1], 3), folded(20, 20, [5, 2], 5), folded(20, 70, [1, 1], 7)],
            shortcut: Some(folded(8, 70, [1, 2], 9)),
        };
        let basic =
            BlockParameters { branch: vec![folded(70, 70, [3, 1], 11), folded(70, 70, [3, 1], 13)], shortcut: None };
        Parameters {
            channels: CHANNELS,
            stem: folded(CHANNELS, 8, if pool { [7, 2] } else { [3, 1] }, 1),
            pool,
            blocks: vec![bottleneck, basic],
            classifier: [noise(5 * 70, 15), noise(5, 16)],
        }
    }

    /// One picture, layer by layer; convolutions are held to their definition elsewhere.
    fn definition(parameters: &Parameters, image: &[f32]) -> Vec<f64> {
        let convolved = |(x, image): (&[f32], [usize; 2]), folded: &FoldedConv| {
            let FoldedConv { ref weight, ref bias, kernel, stride, padding } = *folded;
            let (inputs, outputs) = (x.len() / (image[0] * image[1]), bias.len());
            let convolution = Convolution { inputs, outputs, image, kernel, stride, padding };
            (convolution.forward(x, weight, bias), convolution.output_size())
        };
        let relu = |x: Vec<f32>| x.into_iter().map(|x| x.max(0.0)).collect::<Vec<_>>();
        let (x, mut sides) = convolved((image, SIDES), &parameters.stem);
        let mut x = relu(x);
        if parameters.pool {
            let [rows, columns] = sides;
            let [height, width] = sides.map(|side| side.div_ceil(2));
            let near = |a: usize, b: usize| (2 * a).abs_diff(b) <= 1;
            let largest = |i: usize| {
                let (plane, y, column) = (i / (height * width), i / width % height, i % width);
                let pixels = (0..rows * columns).filter(|p| near(y, p / columns) && near(column, p % columns));
                pixels.map(|p| x[plane * rows * columns + p]).fold(f32::NEG_INFINITY, f32::max)
            };
            x = (0..x.len() / (rows * columns) * height * width).map(largest).collect();
            sides = [height, width];
        }
        for BlockParameters { branch, shortcut } in &parameters.blocks {
            let skipped = shortcut.as_ref().map_or_else(|| x.clone(), |shortcut| convolved((&x, sides), shortcut).0);
            let mut inner = (x, sides);
            for (index, folded) in branch.iter().enumerate() {
                let before = if index == 0 { inner.0 } else { relu(inner.0) };
                inner = convolved((&before, inner.1), folded);
            }
            sides = inner.1;
            x = relu(inner.0.iter().zip(&skipped).map(|(a, b)| a + b).collect());
        }
        let pixels = sides[0] * sides[1];
        let means: Vec<f64> =
            x.chunks_exact(pixels).map(|plane| wide(plane).iter().sum::<f64>() / pixels as f64).collect();
        crate::naive::linear(&means, &wide(&parameters.classifier[0]), &wide(&parameters.classifier[1]))
    }

    #[test]
    fn every_network_and_path_equals_its_layers() {
        let images = noise(5 * CHANNELS * SIDES[0] * SIDES[1], 20);
        for pool in [false, true] {
            let parameters = parameters(pool);
            for &path in Path::available() {
                let logits = with_path(path, || Residual::new(&parameters).forward(&images, SIDES));
                for (image, logits) in images.chunks_exact(images.len() / 5).zip(logits.chunks_exact(5)) {
                    assert_close(logits, &definition(&parameters, image), 1e-5);
                }
            }
        }
    }

    #[test]
    fn a_picture_alone_and_among_others_has_the_same_bytes_on_any_threads() {
        let images = noise(9 * CHANNELS * SIDES[0] * SIDES[1], 20);
        let residual = Residual::new(&parameters(true));
        assert_same_on_threads(|| {
            let alone: Vec<f32> =
                images.chunks_exact(images.len() / 9).flat_map(|image| residual.forward(image, SIDES)).collect();
            assert_eq!(residual.forward(&images, SIDES), alone);
            vec![alone]
        });
    }
}
