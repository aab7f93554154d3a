//! RoIAlign as a differentiable operation: the features inside a region as a grid of fixed size.
//! He et al. 2017, "Mask R-CNN", arXiv:1703.06870; levels of a pyramid by Lin et al. 2017, arXiv:1612.03144.
//!
//! Fused on the CPU. Elsewhere a grid is a product of three matrices: the weights of the map's rows, the map, and
//! the weights of its columns.

use burn::tensor::{Tensor, TensorData};
use regard_kernels::roi_align::{Regions, RoiAlign};
use serde::{Deserialize, Serialize};

use super::{Corners, rows};
use crate::fused::{self, Kernel, Saved};

/// `[B, C, H, W] -> [R, C, rows, columns]`: region i is `corners[i]`, in pixels of the picture, of image `images[i]`.
///
/// Regions have no gradient. Without regions the result has no rows.
///
/// # Panics
/// When the numbers of images and regions differ, or an image is not in the batch.
pub fn roi_align(features: Tensor<4>, images: &[usize], corners: &[Corners], align: RoiAlign) -> Tensor<4> {
    let (shape, count) = (features.dims(), corners.len());
    assert!(images.len() == count, "roi_align: {} images for {count} regions", images.len());
    let output = [count, shape[1], align.output[0], align.output[1]];
    if count == 0 {
        return Tensor::empty(output, &features.device());
    }
    if !fused::runs_on(&features) {
        return plain(&features, images, corners, align);
    }
    let kernel = Aligned { align, shape, images: images.to_vec(), corners: corners.to_vec() };
    fused::apply(kernel, [features.into_dispatch()], output)
}

#[derive(Clone, Debug)]
struct Aligned {
    align: RoiAlign,
    shape: [usize; 4],
    images: Vec<usize>,
    corners: Vec<Corners>,
}

impl Aligned {
    fn regions(&self) -> Regions<'_> {
        Regions { images: &self.images, corners: &self.corners }
    }
}

impl Kernel<1> for Aligned {
    fn forward(&self, [features]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (self.align.forward(features, self.shape, self.regions()), Vec::new())
    }
    fn backward(&self, _: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [self.align.backward(self.shape, self.regions(), grad)]
    }
}

/// Regions per product: that with the rows is `[C, regions * rows, W]`.
const TOGETHER: usize = 64;

fn plain(features: &Tensor<4>, images: &[usize], corners: &[Corners], align: RoiAlign) -> Tensor<4> {
    let ([batch, channels, height, width], device) = (features.dims(), features.device());
    let [out_rows, out_columns] = align.output;
    let mut order: Vec<usize> = (0..images.len()).collect();
    order.sort_by_key(|region| images[*region]);
    let mut grids = Vec::new();
    for image in 0..batch {
        let map = features.clone().narrow(0, image, 1).reshape([channels, height, width]);
        let own: Vec<usize> = order.iter().copied().filter(|region| images[*region] == image).collect();
        for some in own.chunks(TOGETHER) {
            let (mut row_weights, mut column_weights) = (Vec::new(), Vec::new());
            for &region in some {
                let [rows, columns] = align.weights(corners[region], [height, width]);
                row_weights.extend(rows);
                column_weights.extend(columns);
            }
            let count = some.len();
            let row_weights = TensorData::new(row_weights, [1, count * out_rows, height]);
            let column_weights = TensorData::new(column_weights, [count, out_columns, width]);
            let [row_weights, column_weights] =
                [row_weights, column_weights].map(|data| Tensor::<3>::from_data(data, &device));
            let between = row_weights.expand([channels, count * out_rows, height]).matmul(map.clone());
            let between = between.reshape([channels, count, out_rows, width]).permute([1, 0, 2, 3]);
            let grid = between.reshape([count, channels * out_rows, width]).matmul(column_weights.swap_dims(1, 2));
            grids.push(grid.reshape([count, channels, out_rows, out_columns]));
        }
    }
    rows(Tensor::cat(grids, 0), &inverse(&order))
}

/// The inverse of a permutation.
fn inverse(order: &[usize]) -> Vec<usize> {
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &number)| places[number] = place);
    places
}

/// The level of a pyramid for a region: a region of `scale` pixels is read from `level`, one twice as large from the next.
///
/// As in torchvision. detectron2 adds 1e-8 before the logarithm, which matters only for a side within 1e-6 of the
/// limit between two levels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelRule {
    /// Root of the area of the canonical region: 224.
    pub scale: f32,
    /// Its level: 4, whose stride is 16.
    pub level: usize,
}

impl LevelRule {
    /// The rule of feature pyramids.
    pub const PAPER: Self = Self { scale: 224.0, level: 4 };

    /// A level from `lowest` to `highest`.
    #[must_use]
    pub fn level(self, [x1, y1, x2, y2]: Corners, lowest: usize, highest: usize) -> usize {
        let side = ((x2 - x1) * (y2 - y1)).sqrt();
        let level = (self.level as f32 + (side / self.scale).log2() + 1e-6).floor();
        // NaN becomes the lowest level
        (level.max(lowest as f32) as usize).min(highest)
    }
}

/// A level of a pyramid.
#[derive(Clone, Debug)]
pub struct Level {
    /// `[B, C, H, W]`
    pub map: Tensor<4>,
    /// Stride in pixels of the picture: a power of two.
    pub stride: usize,
}

/// Reads each region from its level; `align`'s scale is set to the level's. A single level needs no rule.
///
/// # Panics
/// As [`roi_align`], and when there is no level.
pub fn roi_align_levels(
    levels: &[Level],
    rule: LevelRule,
    (images, corners): (&[usize], &[Corners]),
    align: RoiAlign,
) -> Tensor<4> {
    let numbers: Vec<usize> = levels.iter().map(|level| level.stride.ilog2() as usize).collect();
    let (lowest, highest) = (numbers[0], numbers[numbers.len() - 1]);
    let of: Vec<usize> = corners.iter().map(|corners| rule.level(*corners, lowest, highest)).collect();
    let mut order = Vec::with_capacity(corners.len());
    let mut grids = Vec::new();
    for (level, number) in levels.iter().zip(numbers) {
        let own: Vec<usize> = (0..corners.len()).filter(|region| of[*region] == number).collect();
        if own.is_empty() {
            continue;
        }
        let own_images: Vec<usize> = own.iter().map(|region| images[*region]).collect();
        let own_corners: Vec<Corners> = own.iter().map(|region| corners[*region]).collect();
        let align = RoiAlign { spatial_scale: 1.0 / level.stride as f32, ..align };
        grids.push(roi_align(level.map.clone(), &own_images, &own_corners, align));
        order.extend(own);
    }
    if grids.is_empty() {
        return roi_align(levels[0].map.clone(), images, corners, align);
    }
    rows(Tensor::cat(grids, 0), &inverse(&order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, random};
    use regard_kernels::roi_align::SamplingPoints;

    #[test]
    fn the_plain_path_is_the_fused_one() {
        let features = random([3, 4, 9, 13], 1);
        let images = [2, 0, 2, 0, 2];
        let corners = [
            [3.0, 5.0, 40.0, 30.0],
            [-9.0, -3.0, 12.0, 60.0],
            [7.0, 7.0, 7.0, 7.0],
            [0.0, 0.0, 52.0, 36.0],
            [60.0, 50.0, 90.0, 80.0],
        ];
        for aligned in [true, false] {
            for points in [SamplingPoints::Fixed(2), SamplingPoints::Adaptive] {
                let align = RoiAlign { output: [3, 2], spatial_scale: 0.25, points, aligned };
                let fused = roi_align(features.clone(), &images, &corners, align);
                assert_close(&plain(&features, &images, &corners, align), &fused, 1e-5);
            }
        }
    }

    #[test]
    fn a_region_twice_as_large_is_read_one_level_higher() {
        let level = |side: f32| LevelRule::PAPER.level([0.0, 0.0, side, side], 2, 5);
        assert_eq!([56.0, 111.9, 112.0, 224.0, 448.0].map(level), [2, 2, 3, 4, 5]);
        assert_eq!([1.0, 0.0, 1e6, f32::NAN].map(level), [2, 2, 5, 2]);
    }

    #[test]
    fn no_regions_give_no_rows() {
        let align = RoiAlign { output: [7, 7], spatial_scale: 1.0, points: SamplingPoints::Fixed(2), aligned: true };
        let levels = [Level { map: random([1, 2, 4, 4], 1), stride: 4 }];
        assert_eq!(roi_align_levels(&levels, LevelRule::PAPER, (&[], &[]), align).dims(), [0, 2, 7, 7]);
    }
}
