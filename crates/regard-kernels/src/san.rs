//! A whole self-attention network (SAN) for inference only, one picture per thread.
//!
//! The norm and ReLU before a 1x1 convolution happen while pixels are packed for it, what its output is added to is where
//! its sums begin, and a pool reads each pixel once: none of them goes through memory by itself. Fewer pictures than
//! threads are shared out; a number is the same sum in the same order in both cases.

use std::ops::Range;

use crate::gamma::Moments;
use crate::gathered::{Gathered, Init, Offsets, Panels, multiply, multiply_rows};
use crate::pairwise::Pairwise;
use crate::parallel::{Helpers, Parallel, for_each_picture, return_buffer, take_buffer, with_scratch};
use crate::patchwise::{PatchAggregate, PatchRelate};
use crate::product::Matrix;
use crate::simd::{Vector, kernel};
use crate::size;
use crate::window::Window;

/// Pixels that are packed at a time: they stay in the second cache.
const PACKED: usize = 256;

/// A norm by moments that no longer change: `scale * x + shift` of every channel.
#[derive(Clone, Debug)]
pub struct Affine {
    pub scale: Vec<f32>,
    pub shift: Vec<f32>,
}

/// A 1x1 convolution.
#[derive(Clone, Debug)]
pub struct Conv1x1 {
    /// `[out, in]`
    pub weight: Vec<f32>,
    /// `[out]`, or empty.
    pub bias: Vec<f32>,
}

/// The operator of a block; windows, batches and features are those of the map that comes.
#[derive(Clone, Debug)]
pub enum Operator {
    Pairwise {
        case: Pairwise,
        /// Weight `[2, 2]` and bias `[2]` of the coordinates, if these matter.
        position: Option<Conv1x1>,
        gamma: Vec<f32>,
        moments: [Moments; 2],
    },
    Patchwise {
        relate: PatchRelate,
        /// Parameters of the first half of gamma.
        first: Vec<f32>,
        moments: Moments,
        norm: Affine,
        /// Parameters of the second linear map.
        second: Conv1x1,
    },
}

/// Norm, ReLU, features, attention, norm, ReLU and the expanding convolution, added to the input.
#[derive(Clone, Debug)]
pub struct Block {
    pub norm1: Affine,
    /// All features at once.
    pub features: Conv1x1,
    /// Which of them are phi (none where a patch has the middle already), psi and beta.
    pub phi: Range<usize>,
    pub psi: Range<usize>,
    pub beta: Range<usize>,
    pub operator: Operator,
    pub norm2: Affine,
    pub expand: Conv1x1,
}

/// Half the picture, another width, blocks at that, norm and ReLU.
#[derive(Clone, Debug)]
pub struct Stage {
    pub transition: Conv1x1,
    pub blocks: Vec<Block>,
    pub norm: Affine,
    /// Side of the footprints.
    pub window: usize,
}

/// A self-attention network that is ready to run.
pub struct San {
    channels: usize,
    stem: Conv1x1,
    stages: Vec<Stage>,
    classifier: Panels,
    bias: Vec<f32>,
}

impl std::fmt::Debug for San {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("San").field("stages", &self.stages.len()).finish_non_exhaustive()
    }
}

impl San {
    /// `stem` has its norm folded in; `classifier` is a linear map with a bias.
    ///
    /// # Panics
    /// When lengths do not fit together, or there is no stage.
    #[must_use]
    pub fn new(channels: usize, stem: Conv1x1, stages: Vec<Stage>, classifier: Conv1x1) -> Self {
        let width = stages.last().expect("a network has at least one stage").norm.scale.len();
        let weights = size::product("san", &[classifier.bias.len(), width]);
        assert!(weights > 0 && classifier.weight.len() == weights, "san: length of the classifier's weight");
        let packed = Panels::new(Matrix::transposed(&classifier.weight, width), width, classifier.bias.len());
        Self { channels, stem, stages, classifier: packed, bias: classifier.bias }
    }

    /// Whether images of this form leave every stage enough to mirror.
    #[must_use]
    pub fn accepts(&self, channels: usize, sides: [usize; 2]) -> bool {
        let enough = |(index, stage): (usize, &Stage)| {
            sides.iter().all(|side| side.checked_shr(index as u32 + 1).unwrap_or(0) > stage.window / 2)
        };
        channels == self.channels && self.stages.iter().enumerate().all(enough)
    }

    /// Number of logits.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.bias.len()
    }

    /// `[B, C, H, W] -> [B, classes]`
    ///
    /// # Panics
    /// When images are not what [`accepts`](Self::accepts) says, or do not divide the length.
    #[must_use]
    pub fn forward(&self, images: &[f32], sides: [usize; 2]) -> Vec<f32> {
        let image = size::product("san", &[self.channels, sides[0], sides[1]]);
        assert!(
            self.accepts(self.channels, sides) && images.len().is_multiple_of(image),
            "san: images of another size"
        );
        for_each_picture(images, image, self.classes(), 1, Helpers::Pool, |image, logits, parallel| {
            self.picture(image, sides, logits, parallel);
        })
    }

    fn picture(&self, image: &[f32], mut sides: [usize; 2], logits: &mut [f32], parallel: &mut Parallel) {
        let mut pooled = self.stem.pooled(image, sides, parallel);
        for (index, stage) in self.stages.iter().enumerate() {
            sides = sides.map(|side| side / 2);
            let pixels = sides[0] * sides[1];
            let width = stage.norm.scale.len();
            let mut map = take_buffer(width * pixels);
            stage.transition.apply(&pooled, pixels, None, Accumulate::Overwrite, &mut map[..width * pixels], parallel);
            return_buffer(std::mem::take(&mut pooled));
            for block in &stage.blocks {
                block.apply(&mut map[..width * pixels], sides, parallel);
            }
            let seen = &map[..width * pixels];
            if index + 1 < self.stages.len() {
                pooled = stage.norm.pooled(seen, sides, parallel);
            } else {
                let means = stage.norm.means(seen, pixels);
                multiply_rows(&means, width, &self.classifier, Init::ColumnBias(&self.bias), logits);
            }
            return_buffer(map);
        }
    }
}

impl Block {
    fn apply(&self, map: &mut [f32], sides: [usize; 2], parallel: &mut Parallel) {
        let pixels = sides[0] * sides[1];
        let features = self.features.bias.len() * pixels;
        with_scratch(features, |features| {
            self.features.apply(map, pixels, Some(&self.norm1), Accumulate::Overwrite, features, parallel);
            let [phi, psi, beta] =
                [&self.phi, &self.psi, &self.beta].map(|range| &features[range.start * pixels..range.end * pixels]);
            let seen = self.operator.attend(phi, psi, beta, sides);
            self.expand.apply(&seen, pixels, Some(&self.norm2), Accumulate::Add, map, parallel);
        });
    }
}

impl Operator {
    fn attend(&self, phi: &[f32], psi: &[f32], beta: &[f32], [height, width]: [usize; 2]) -> Vec<f32> {
        let pixels = height * width;
        match self {
            Self::Pairwise { case, position: encoding, gamma, moments } => {
                let window = Window::new(height, width, case.window.size);
                let position =
                    encoding.as_ref().map_or_else(Vec::new, |encoding| encoding.coordinates([height, width]));
                Pairwise { batch: 1, window, ..*case }.forward([phi, psi, beta, &position, gamma], moments)
            }
            Self::Patchwise { relate, first, moments, norm, second } => {
                let window = Window::new(height, width, relate.window.size);
                let relate = PatchRelate { batch: 1, window, ..*relate };
                let mut hidden = relate.forward([phi, psi, first], moments);
                norm.relu(&mut hidden, pixels);
                let weights = second.bias.len() / window.offsets();
                let values = beta.len() / pixels;
                PatchAggregate { batch: 1, hidden: relate.hidden, values, weights, window }.forward([
                    &hidden,
                    &second.weight,
                    &second.bias,
                    beta,
                ])
            }
        }
    }
}

/// What the output is added to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accumulate {
    Overwrite,
    /// To what the output holds.
    Add,
}

impl Conv1x1 {
    /// `[in, pixels] -> [out, pixels]` after a norm and ReLU, if there is one.
    fn apply(
        &self,
        x: &[f32],
        pixels: usize,
        norm: Option<&Affine>,
        sum: Accumulate,
        out: &mut [f32],
        parallel: &mut Parallel,
    ) {
        let outputs = out.len() / pixels;
        let inputs = self.weight.len() / outputs;
        assert_eq!(self.weight.len(), outputs * inputs, "san: length of a weight");
        let (rows, inner) = (Offsets::strided(outputs, inputs), Offsets::strided(inputs, 1));
        let start = match (sum, self.bias.as_slice()) {
            (Accumulate::Overwrite, []) => Init::Zero,
            (Accumulate::Overwrite, bias) => Init::RowBias(bias),
            (Accumulate::Add, bias) => Init::OutPlusRowBias(bias),
        };
        let task = parallel.rows(outputs, 1);
        for first in (0..pixels).step_by(PACKED) {
            let columns = first..pixels.min(first + PACKED);
            let affine = norm.map(|norm| [norm.scale.as_slice(), &norm.shift]);
            let panels = Panels::packed_affine_relu((x, pixels), inputs, columns, affine, parallel);
            parallel.each(out.chunks_mut(task * pixels).enumerate(), |(index, out)| {
                let range = (index * task, index * task + out.len() / pixels);
                let left = Gathered { data: &self.weight, rows: &rows, range, inner: &inner };
                multiply(left, &panels, start, (&mut out[first..], pixels));
            });
            panels.return_buffer();
        }
    }

    /// Two rows of a picture at a time, ReLU and the largest of every four: `[C, H, W] -> [out, H/2, W/2]`.
    fn pooled(&self, image: &[f32], [height, width]: [usize; 2], parallel: &mut Parallel) -> Vec<f32> {
        let (outputs, pixels, pooled) = (self.bias.len(), height * width, (height / 2) * (width / 2));
        let inputs = self.weight.len() / outputs;
        let (rows, inner) = (Offsets::strided(outputs, inputs), Offsets::strided(inputs, 1));
        let mut out = take_buffer(outputs * pooled);
        let task = parallel.rows(outputs, 1);
        parallel.each(out[..outputs * pooled].chunks_mut(task * pooled).enumerate(), |(index, out)| {
            let channels = out.len() / pooled;
            let left = Gathered {
                data: &self.weight,
                rows: &rows,
                range: (index * task, index * task + channels),
                inner: &inner,
            };
            with_scratch(channels * 2 * width + width, |scratch| {
                let (two, row) = scratch.split_at_mut(channels * 2 * width);
                for y in 0..height / 2 {
                    let columns = 2 * y * width..2 * (y + 1) * width;
                    let panels =
                        Panels::packed_affine_relu((image, pixels), inputs, columns, None, &mut Parallel::Serial);
                    multiply(left, &panels, Init::RowBias(&self.bias), (&mut *two, 2 * width));
                    panels.return_buffer();
                    for (two, out) in two.chunks_exact(2 * width).zip(out.chunks_exact_mut(pooled)) {
                        pool_rows(two, [1.0, 0.0], row, &mut out[y * (width / 2)..][..width / 2]);
                    }
                }
            });
        });
        out
    }

    /// Every pixel's column and row, from -1 to 1, mapped: `[2, H, W]`.
    fn coordinates(&self, [height, width]: [usize; 2]) -> Vec<f32> {
        let along = |index: usize, size: usize| -1.0 + 2.0 * index as f32 / (size.max(2) - 1) as f32;
        let rows = self.weight.chunks_exact(2).zip(&self.bias);
        rows.flat_map(|(weight, bias)| {
            (0..height * width).map(move |pixel| {
                let (x, y) = (along(pixel % width, width), along(pixel / width, height));
                weight[0] * x + weight[1] * y + bias
            })
        })
        .collect()
    }
}

impl Affine {
    /// Norm and ReLU in place.
    fn relu(&self, x: &mut [f32], pixels: usize) {
        for (x, (scale, shift)) in x.chunks_exact_mut(pixels).zip(self.scale.iter().zip(&self.shift)) {
            relu_plane(x, [*scale, *shift]);
        }
    }

    /// Norm, ReLU and the largest of every four: `[C, H, W] -> [C, H/2, W/2]`.
    fn pooled(&self, x: &[f32], [height, width]: [usize; 2], parallel: &mut Parallel) -> Vec<f32> {
        let (channels, pixels, pooled) = (self.scale.len(), height * width, (height / 2) * (width / 2));
        let mut out = take_buffer(channels * pooled);
        let task = parallel.rows(channels, 1);
        let tasks = out[..channels * pooled].chunks_mut(task * pooled).zip(x.chunks(task * pixels)).enumerate();
        parallel.each(tasks, |(index, (out, x))| {
            with_scratch(width, |row| {
                for (channel, (out, x)) in out.chunks_exact_mut(pooled).zip(x.chunks_exact(pixels)).enumerate() {
                    let affine = [self.scale[index * task + channel], self.shift[index * task + channel]];
                    for (two, out) in x.chunks_exact(2 * width).zip(out.chunks_exact_mut(width / 2)) {
                        pool_rows(two, affine, row, out);
                    }
                }
            });
        });
        out
    }

    /// The mean of every channel after norm and ReLU.
    fn means(&self, x: &[f32], pixels: usize) -> Vec<f32> {
        let affine = self.scale.iter().zip(&self.shift);
        x.chunks_exact(pixels)
            .zip(affine)
            .map(|(x, (scale, shift))| relu_sum(x, [*scale, *shift]) / pixels as f32)
            .collect()
    }
}

kernel!(
    /// Norm and ReLU of a plane.
    fn relu_plane<'a>(x: &'a mut [f32], affine: [f32; 2]) = relu_plane_body
);

#[inline(always)]
fn relu_plane_body<V: Vector>(x: &mut [f32], affine: [f32; 2]) {
    let [scale, shift] = affine.map(V::splat);
    for x in x.chunks_mut(V::LANES) {
        V::zero().max(V::get(x, 0).fma(scale, shift)).put(x, 0);
    }
}

kernel!(
    /// The sum of a plane after norm and ReLU.
    fn relu_sum<'a>(x: &'a [f32], affine: [f32; 2]) -> f32 = relu_sum_body
);

#[inline(always)]
fn relu_sum_body<V: Vector>(x: &[f32], [scale, shift]: [f32; 2]) -> f32 {
    let (whole, rest) = x.split_at(x.len() / V::LANES * V::LANES);
    let mut sum = V::zero();
    for x in whole.chunks_exact(V::LANES) {
        sum = sum.add(V::zero().max(V::get(x, 0).fma(V::splat(scale), V::splat(shift))));
    }
    // one by one: the lanes that a short vector lacks are not zero after a norm
    rest.iter().fold(sum.sum(), |sum, x| sum + (x * scale + shift).max(0.0))
}

kernel!(
    /// Norm, ReLU and the largest of every four pixels of two rows; `row` has room for one.
    fn pool_rows<'a>(two: &'a [f32], affine: [f32; 2], row: &'a mut [f32], out: &'a mut [f32]) = pool_rows_body
);

#[inline(always)]
fn pool_rows_body<V: Vector>(two: &[f32], affine: [f32; 2], row: &mut [f32], out: &mut [f32]) {
    let [scale, shift] = affine.map(V::splat);
    let (upper, lower) = two.split_at(two.len() / 2);
    for at in (0..upper.len()).step_by(V::LANES) {
        let larger = V::get(upper, at).fma(scale, shift).max(V::get(lower, at).fma(scale, shift));
        V::zero().max(larger).put(row, at);
    }
    out.iter_mut().zip(row.as_chunks::<2>().0).for_each(|(out, [a, b])| *out = if a > b { *a } else { *b });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_close, assert_same_on_threads, noise, wide};
    use crate::pairwise::{Position, Relation};
    use crate::patchwise;
    use crate::simd::{Path, with_path};

    const SIDES: [usize; 2] = [22, 18];
    const WIDTHS: [usize; 2] = [10, 12];

    fn affine(width: usize, seed: u64) -> Affine {
        Affine { scale: noise(width, seed).iter().map(|x| x + 0.5).collect(), shift: noise(width, seed + 1) }
    }

    fn map(inputs: usize, outputs: usize, seed: u64) -> Conv1x1 {
        Conv1x1 { weight: noise(inputs * outputs, seed), bias: noise(outputs, seed + 1) }
    }

    fn moments(rows: usize, seed: u64) -> Moments {
        let variance = noise(rows, seed + 1).iter().map(|x| x * x + 1.0).collect();
        Moments { mean: noise(rows, seed), variance, count: 1 }
    }

    /// Three features for phi and psi, four values under two weights.
    fn pairwise() -> Operator {
        let case = Pairwise {
            batch: 1,
            features: 3,
            values: 4,
            weights: 2,
            hidden: 5,
            window: Window::new(1, 1, 3),
            relation: Relation::Subtraction,
            position: Position::Relative,
            epsilon: 1e-5,
        };
        let moments = [moments(case.delta(), 1), moments(case.hidden, 3)];
        Operator::Pairwise { case, position: Some(map(2, 2, 5)), gamma: noise(case.gamma(), 7), moments }
    }

    fn patchwise() -> Operator {
        let relate = PatchRelate {
            batch: 1,
            features: 3,
            hidden: 5,
            window: Window::new(1, 1, 3),
            relation: patchwise::Relation::Concatenation,
            epsilon: 1e-5,
        };
        let first = noise(relate.delta() * (2 + relate.hidden), 1);
        Operator::Patchwise {
            relate,
            first,
            moments: moments(relate.delta(), 2),
            norm: affine(5, 4),
            second: map(5, 18, 6),
        }
    }

    fn network(operator: &Operator) -> San {
        let block = |width: usize, seed: u64| Block {
            norm1: affine(width, seed),
            features: map(width, 10, seed + 2),
            phi: 0..3,
            psi: 3..6,
            beta: 6..10,
            operator: operator.clone(),
            norm2: affine(4, seed + 4),
            expand: map(4, width, seed + 6),
        };
        let stage = |index: usize| Stage {
            transition: Conv1x1 { bias: Vec::new(), ..map([8, WIDTHS[0]][index], WIDTHS[index], 20 + index as u64) },
            blocks: (0..2).map(|i| block(WIDTHS[index], 30 + 10 * (2 * index + i) as u64)).collect(),
            norm: affine(WIDTHS[index], 80 + index as u64),
            window: 3,
        };
        San::new(3, map(3, 8, 90), vec![stage(0), stage(1)], map(WIDTHS[1], 7, 92))
    }

    #[test]
    fn every_path_answers_alike() {
        let images = noise(3 * 3 * SIDES[0] * SIDES[1], 1);
        for operator in [pairwise(), patchwise()] {
            let answers = |path| with_path(path, || network(&operator).forward(&images, SIDES));
            let expected = wide(&answers(Path::Portable));
            for &path in Path::available() {
                assert_close(&answers(path), &expected, 1e-4);
            }
        }
    }

    #[test]
    fn a_picture_alone_and_among_others_has_the_same_bytes_on_any_threads() {
        let image = 3 * SIDES[0] * SIDES[1];
        let images = noise(5 * image, 1);
        for operator in [pairwise(), patchwise()] {
            let network = network(&operator);
            assert_same_on_threads(|| {
                let alone = images.chunks_exact(image).flat_map(|image| network.forward(image, SIDES)).collect();
                assert_eq!(network.forward(&images, SIDES), alone);
                vec![alone]
            });
        }
    }

    #[test]
    fn images_that_become_smaller_than_a_footprint_mirrors_are_not_taken() {
        let network = network(&pairwise());
        assert!(network.accepts(3, [8, 8]) && !network.accepts(3, [8, 7]) && !network.accepts(1, [8, 8]));
    }
}
