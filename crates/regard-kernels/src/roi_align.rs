//! RoIAlign: the features inside a region, averaged into a grid of fixed size.
//!
//! He et al. 2017, arXiv:1703.06870. Every cell of the grid averages points of the region, read between the pixels of a
//! feature map. As torchvision's `roi_align`: the same points in the same precision; points more than a pixel outside
//! the map are zero; regions have no gradient.
//!
//! A point is a product of a place among the rows and one among the columns, and so is whether it is outside. So a cell is
//! a sum over rows of sums over columns: each region keeps short lists of weighted rows and columns for its cells
//! ([`Taps`]), whatever the number of points, and every channel goes through them twice. The backward pass takes a plane of
//! features a task and adds regions in their order.

use rayon::prelude::*;

use crate::elementwise::{piece, rows_per_task, written, zeroed};
use crate::simd::{Vector, kernel};
use crate::size;
use crate::uninit::UninitWriter;

/// How many points along an axis a cell averages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingPoints {
    /// As many in every region, at least 1.
    Fixed(usize),
    /// About one for each pixel of the feature map: the side of a cell, rounded up, at most [`MOST_POINTS`].
    Adaptive,
}

/// The most points of a cell along an axis, for regions of senseless size.
pub const MOST_POINTS: usize = 4096;

/// Regions of features `[B, C, H, W]` to grids `[R, C, rows, columns]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoiAlign {
    /// Rows and columns of the grid.
    pub output: [usize; 2],
    /// Pixels of the feature map for a pixel of the picture.
    pub spatial_scale: f32,
    pub points: SamplingPoints,
    /// Pixels have their centres at halves. Otherwise at whole numbers, and sides are at least one pixel of the map.
    pub aligned: bool,
}

/// Where regions are: `images[i]` is the place in the batch, `corners[i]` are x1, y1, x2, y2 in pixels of the picture.
#[derive(Clone, Copy, Debug)]
pub struct Regions<'a> {
    pub images: &'a [usize],
    pub corners: &'a [[f32; 4]],
}

impl RoiAlign {
    /// The grids `[R, C, rows, columns]`. A region with a NaN gives zeros.
    #[must_use]
    pub fn forward(&self, features: &[f32], shape: [usize; 4], regions: Regions) -> Vec<f32> {
        let sizes = self.sizes(shape, regions);
        assert_eq!(features.len(), sizes.features, "roi_align: length of the features");
        let [_, channels, height, width] = shape;
        let image = channels * height * width;
        // regions differ in size: more and smaller tasks than elsewhere
        let task = (rows_per_task(sizes.grid * channels) / 4).max(1);
        written(sizes.output, task * channels * sizes.grid, |index, out| {
            let first = index * task;
            let last = regions.corners.len().min(first + task);
            let mut between = Vec::new();
            for region in first..last {
                let features = &features[regions.images[region] * image..][..image];
                let taps = self.taps(regions.corners[region], [height, width]);
                between.resize(self.output[0] * taps.span[1], 0.0);
                region_forward([channels, height, width], features, &taps, &mut between, out);
            }
        })
    }

    /// The gradient of the features, for a gradient of the grids.
    #[must_use]
    pub fn backward(&self, shape: [usize; 4], regions: Regions, grad: &[f32]) -> Vec<f32> {
        let sizes = self.sizes(shape, regions);
        assert_eq!(grad.len(), sizes.output, "roi_align: length of the gradient");
        let [batch, channels, height, width] = shape;
        let all: Vec<Taps> = regions.corners.par_iter().map(|corners| self.taps(*corners, [height, width])).collect();
        let mut of_image = vec![Vec::new(); batch];
        for (region, &image) in regions.images.iter().enumerate() {
            of_image[image].push(region);
        }
        let widest = all.iter().map(|taps| taps.span[1]).max().unwrap_or(0);
        // channels of one task: a plane is swept by every region, and stays in the cache meanwhile
        zeroed(sizes.features, height * width, |index, plane| {
            let (image, channel) = (index / channels, index % channels);
            let mut between = vec![0.0; self.output[0] * widest];
            for &region in &of_image[image] {
                let grad = piece(grad, region * channels + channel, sizes.grid);
                region_backward(width, grad, &all[region], &mut between, plane);
            }
        })
    }

    /// How much each row of the map counts for each row of a region's grid, `[rows, H]`, and the same of columns, `[columns,
    /// W]`: a grid is the product of the first, the map, and the second transposed.
    #[must_use]
    pub fn weights(&self, corners: [f32; 4], [height, width]: [usize; 2]) -> [Vec<f32>; 2] {
        assert!(height > 0 && width > 0, "roi_align: features of {height} x {width}");
        let taps = self.taps(corners, [height, width]);
        [(&taps.rows, height, 0), (&taps.columns, width, taps.span[0])].map(|(axis, size, first)| {
            let mut dense = vec![0.0; axis.ends.len() * size];
            for (row, cell) in dense.chunks_exact_mut(size).zip(axis.cells()) {
                cell.iter().for_each(|(pixel, weight)| row[first + *pixel as usize] += weight);
            }
            dense
        })
    }

    fn sizes(&self, [batch, channels, height, width]: [usize; 4], regions: Regions) -> Sizes {
        let [rows, columns] = self.output;
        assert!(rows > 0 && columns > 0, "roi_align: a grid of {rows} x {columns}");
        assert!(height > 0 && width > 0, "roi_align: features of {height} x {width}");
        assert!(self.points != SamplingPoints::Fixed(0), "roi_align: no sampling points");
        assert_eq!(regions.images.len(), regions.corners.len(), "roi_align: one image for each region");
        let known = regions.images.iter().all(|image| *image < batch);
        assert!(known, "roi_align: a region of an image that is not among {batch}");
        Sizes {
            features: size::product("roi_align", &[batch, channels, height, width]),
            output: size::product("roi_align", &[regions.images.len(), channels, rows, columns]),
            grid: rows * columns,
        }
    }

    fn taps(&self, [x1, y1, x2, y2]: [f32; 4], [height, width]: [usize; 2]) -> Taps {
        let (rows, row_points) = self.axis([y1, y2], self.output[0], height);
        let (mut columns, column_points) = self.axis([x1, x2], self.output[1], width);
        let share = 1.0 / (row_points * column_points).max(1) as f32;
        columns.taps.iter_mut().for_each(|(_, weight)| *weight *= share);
        let first = columns.taps.iter().map(|(column, _)| *column).min().unwrap_or(0);
        let last = columns.taps.iter().map(|(column, _)| *column).max().unwrap_or(0);
        columns.taps.iter_mut().for_each(|(column, _)| *column -= first);
        Taps { rows, columns, span: [first as usize, (last - first + 1) as usize] }
    }

    /// The pixels of the cells along one axis, and the number of points of each cell; in f32 as torchvision computes them.
    fn axis(&self, [start, end]: [f32; 2], cells: usize, size: usize) -> (Axis, usize) {
        let offset = if self.aligned { 0.5 } else { 0.0 };
        let start = start * self.spatial_scale - offset;
        let mut side = end * self.spatial_scale - offset - start;
        if !self.aligned && side < 1.0 {
            side = 1.0;
        }
        let cell = side / cells as f32;
        let points = match self.points {
            SamplingPoints::Fixed(points) => points,
            // negative sides and NaN become 0
            SamplingPoints::Adaptive => (cell.ceil() as usize).min(MOST_POINTS),
        };
        let mut axis = Axis { ends: Vec::with_capacity(cells), taps: Vec::with_capacity(cells * 3) };
        for index in 0..cells {
            let begin = axis.taps.len();
            for point in 0..points {
                let place = start + index as f32 * cell + (point as f32 + 0.5) * cell / points as f32;
                // NaN is outside
                if place >= -1.0 && place <= size as f32 {
                    axis.add(begin, place.max(0.0), size);
                }
            }
            axis.ends.push(axis.taps.len());
        }
        (axis, points)
    }
}

struct Sizes {
    features: usize,
    output: usize,
    grid: usize,
}

/// What the cells of a region read.
struct Taps {
    rows: Axis,
    /// Counted from the first column that any cell reads; the weights are divided by the number of points.
    columns: Axis,
    /// The first column of the map, and how many columns there are up to the last one.
    span: [usize; 2],
}

/// Pixels and their weights, for the cells along an axis one after the other.
struct Axis {
    /// Where the pixels of each cell end.
    ends: Vec<usize>,
    taps: Vec<(u32, f32)>,
}

impl Axis {
    /// Adds a point, whose cell began at `begin`, between two pixels.
    fn add(&mut self, begin: usize, place: f32, size: usize) {
        let low = place as usize;
        if low >= size - 1 {
            return self.push(begin, size - 1, 1.0);
        }
        let above = place - low as f32;
        self.push(begin, low, 1.0 - above);
        self.push(begin, low + 1, above);
    }

    /// Points of a cell are neighbours: what one reads, the one before often read too.
    fn push(&mut self, begin: usize, pixel: usize, weight: f32) {
        let pixel = pixel as u32;
        let recent = self.taps.len().saturating_sub(2).max(begin);
        match self.taps[recent..].iter_mut().find(|(known, _)| *known == pixel) {
            Some((_, sum)) => *sum += weight,
            None => self.taps.push((pixel, weight)),
        }
    }

    /// The pixels of every cell.
    #[inline(always)]
    fn cells(&self) -> impl Iterator<Item = &[(u32, f32)]> {
        let mut begin = 0;
        self.ends.iter().map(move |&end| {
            let cell = &self.taps[begin..end];
            begin = end;
            cell
        })
    }
}

kernel!(
    /// All channels of one region; `between` is room for rows of cells by columns of the map.
    fn region_forward<'a, 'b>(shape: [usize; 3], features: &'a [f32], taps: &'a Taps, between: &'a mut [f32], out: &'a mut UninitWriter<'b>) = region_forward_body
);
#[inline(always)]
fn region_forward_body<V: Vector>(
    [_, height, width]: [usize; 3],
    features: &[f32],
    taps: &Taps,
    between: &mut [f32],
    out: &mut UninitWriter,
) {
    let [first, span] = taps.span;
    for plane in features.chunks_exact(height * width) {
        for (between, cell) in between.chunks_exact_mut(span).zip(taps.rows.cells()) {
            for at in (0..span).step_by(V::LANES) {
                let mut sum = V::zero();
                for &(row, weight) in cell {
                    let row = &plane[row as usize * width + first..][..span];
                    sum = V::get(row, at).fma(V::splat(weight), sum);
                }
                sum.put(between, at);
            }
        }
        for between in between.chunks_exact(span) {
            out.extend(taps.columns.cells().map(|cell| {
                let mut sum = 0.0;
                for &(column, weight) in cell {
                    sum += weight * between[column as usize];
                }
                sum
            }));
        }
    }
}

kernel!(
    /// Adds the gradient of one region to one plane.
    fn region_backward<'a>(width: usize, grad: &'a [f32], taps: &'a Taps, between: &'a mut [f32], plane: &'a mut [f32]) = region_backward_body
);
#[inline(always)]
fn region_backward_body<V: Vector>(width: usize, grad: &[f32], taps: &Taps, between: &mut [f32], plane: &mut [f32]) {
    let [first, span] = taps.span;
    let between = &mut between[..span];
    let columns = taps.columns.ends.len();
    for (grad, rows) in grad.chunks_exact(columns).zip(taps.rows.cells()) {
        if rows.is_empty() {
            continue;
        }
        between.fill(0.0);
        for (grad, cell) in grad.iter().zip(taps.columns.cells()) {
            for &(column, weight) in cell {
                between[column as usize] += weight * grad;
            }
        }
        for &(row, weight) in rows {
            let row = &mut plane[row as usize * width + first..][..span];
            for at in (0..span).step_by(V::LANES) {
                V::get(between, at).fma(V::splat(weight), V::get(row, at)).put(row, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    const SHAPE: [usize; 4] = [2, 3, 9, 21];

    fn cases() -> Vec<RoiAlign> {
        let case = |output, points, aligned| RoiAlign { output, spatial_scale: 0.25, points, aligned };
        [true, false]
            .into_iter()
            .flat_map(|aligned| {
                [
                    case([7, 7], SamplingPoints::Fixed(2), aligned),
                    case([2, 3], SamplingPoints::Fixed(5), aligned),
                    case([1, 1], SamplingPoints::Fixed(1), aligned),
                    case([3, 2], SamplingPoints::Adaptive, aligned),
                ]
            })
            .collect()
    }

    /// Inside, over every border, below a pixel, without area, inside out, as large as the picture, elsewhere.
    fn regions() -> (Vec<usize>, Vec<[f32; 4]>) {
        let corners = vec![
            [3.3, 5.1, 40.2, 33.7],
            [20.5, 11.2, 22.0, 12.1],
            [-9.0, -6.0, 18.0, 20.0],
            [45.0, 21.0, 95.0, 60.0],
            [10.0, 10.0, 10.0, 10.0],
            [30.0, 20.0, 12.0, 9.0],
            [0.1, 0.2, 84.0, 36.3],
            [500.0, 500.0, 600.0, 600.0],
        ];
        (vec![0, 1, 1, 0, 1, 0, 1, 0], corners)
    }

    #[test]
    fn every_path_equals_the_definition_and_its_differences() {
        let (images, corners) = regions();
        let regions = Regions { images: &images, corners: &corners };
        let features = noise(SHAPE.iter().product(), 1);
        for case in cases() {
            let grad = noise(corners.len() * SHAPE[1] * case.output[0] * case.output[1], 2);
            let expected = naive::roi_align(&case, &wide(&features), SHAPE, regions);
            for &path in Path::available() {
                with_path(path, || {
                    assert_close(&case.forward(&features, SHAPE, regions), &expected, 5e-6);
                    let input_grad = case.backward(SHAPE, regions, &grad);
                    assert_differences(&[&features], &[&input_grad], &grad, |point| {
                        naive::roi_align(&case, &point[0], SHAPE, regions)
                    });
                });
            }
        }
    }

    #[test]
    fn the_average_of_a_constant_inside_of_the_map_is_the_constant() {
        let (images, corners) = ([0], [[4.0, 4.0, 60.0, 28.0]]);
        let regions = Regions { images: &images, corners: &corners };
        for case in cases() {
            let out = case.forward(&vec![2.5; SHAPE.iter().product()], SHAPE, regions);
            assert!(out.iter().all(|x| (x - 2.5).abs() < 1e-5), "{case:?}: {out:?}");
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let (mut images, mut corners) = regions();
        (images, corners) = (images.repeat(20), corners.repeat(20));
        let regions = Regions { images: &images, corners: &corners };
        let features = noise(SHAPE.iter().product(), 1);
        for case in cases() {
            let grad = noise(corners.len() * SHAPE[1] * case.output[0] * case.output[1], 2);
            assert_same_on_threads(|| {
                vec![case.forward(&features, SHAPE, regions), case.backward(SHAPE, regions, &grad)]
            });
        }
    }

    #[test]
    fn regions_of_nonsense_are_finite_and_soon_done() {
        let nonsense = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -1e30];
        let corners: Vec<[f32; 4]> =
            nonsense.iter().flat_map(|&x| [[x, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, x], [-x, -x, x, x], [x; 4]]).collect();
        let images = vec![0; corners.len()];
        let regions = Regions { images: &images, corners: &corners };
        let features = noise(SHAPE.iter().product(), 1);
        for case in cases() {
            let out = case.forward(&features, SHAPE, regions);
            assert!(out.iter().all(|x| x.is_finite()), "{case:?}");
            assert!(case.backward(SHAPE, regions, &vec![1.0; out.len()]).iter().all(|x| x.is_finite()), "{case:?}");
        }
    }

    #[test]
    fn no_regions_give_no_grids_and_no_gradient() {
        let none = Regions { images: &[], corners: &[] };
        let case = cases()[0];
        assert!(case.forward(&vec![1.0; SHAPE.iter().product()], SHAPE, none).is_empty());
        assert!(case.backward(SHAPE, none, &[]).iter().all(|x| *x == 0.0));
    }

    #[test]
    #[should_panic(expected = "roi_align: a region of an image that is not among 2")]
    fn a_region_of_no_image_is_refused() {
        let _ = cases()[0].backward(SHAPE, Regions { images: &[2], corners: &[[0.0; 4]] }, &[0.0; 147]);
    }
}
