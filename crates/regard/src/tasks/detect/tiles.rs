//! Large pictures with small objects: cut into tiles that overlap, each detected by itself, boxes joined again.

use burn::tensor::Device;
use regard_kernels::nms::nms_by_class;

use crate::data::{Bounds, Detection, DetectionPreprocess, Picture};
use crate::models::detect::Detector;
use crate::{Error, Pass};

/// How a picture is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiles {
    /// Rows and columns of a tile, in pixels of the picture.
    pub side: usize,
    /// The share of a side that neighbours have in common.
    pub overlap: f64,
    /// Of two boxes of a class that overlap more than this, the better one.
    pub iou: f64,
}

impl Tiles {
    /// A quarter in common, as small objects need; boxes of neighbours that overlap by half are one.
    #[must_use]
    pub const fn of_side(side: usize) -> Self {
        Self { side, overlap: 0.25, iou: 0.5 }
    }

    /// Where tiles begin on a side of so many pixels: the last one ends with the picture.
    fn starts(&self, pixels: usize) -> Vec<usize> {
        if pixels <= self.side {
            return vec![0];
        }
        let step = ((self.side as f64 * (1.0 - self.overlap)) as usize).max(1);
        let last = pixels - self.side;
        (0..last).step_by(step).chain([last]).collect()
    }

    /// The corner and the size of every tile, row by row.
    #[must_use]
    pub fn of(&self, [rows, columns]: [usize; 2]) -> Vec<[[usize; 2]; 2]> {
        let size = [rows.min(self.side), columns.min(self.side)];
        let columns = self.starts(columns);
        self.starts(rows).into_iter().flat_map(|row| columns.iter().map(move |column| [[row, *column], size])).collect()
    }

    /// What a detector finds in the tiles of a picture, and in the whole picture for what is larger than a tile.
    ///
    /// # Errors
    /// When the tiles do not become a batch.
    pub fn detect(
        &self,
        model: &Detector,
        picture: &Picture,
        preprocess: &DetectionPreprocess,
        device: &Device,
    ) -> Result<Vec<Detection>, Error> {
        let whole = picture.size();
        let mut tiles = self.of(whole);
        if tiles.len() > 1 {
            tiles.push([[0, 0], whole]);
        }
        let mut found = Vec::new();
        for [corner, size] in tiles {
            let batch = preprocess.batch(&[preprocess.prepare(&picture.crop(corner, size))])?;
            let detections = model.detect(&batch.to_device(device), &mut Pass::silent());
            let moved = |one: &Detection| {
                let [x1, y1, x2, y2] = one.bounds.pixel_corners(size);
                let [row, column] = corner.map(|pixels| pixels as f64);
                let corners = [x1 + column, y1 + row, x2 + column, y2 + row];
                Detection { bounds: Bounds::from_pixel_corners(corners, whole), ..*one }
            };
            found.extend(detections.iter().flatten().map(moved));
        }
        Ok(self.joined(&found, whole))
    }

    /// Without boxes that two tiles have found.
    fn joined(&self, found: &[Detection], size: [usize; 2]) -> Vec<Detection> {
        let boxes: Vec<[f32; 4]> = found.iter().map(|one| one.bounds.pixel_corners(size).map(|x| x as f32)).collect();
        let scores: Vec<f32> = found.iter().map(|one| one.score as f32).collect();
        let classes: Vec<usize> = found.iter().map(|one| one.class).collect();
        nms_by_class(&boxes, &scores, &classes, self.iou).into_iter().map(|index| found[index]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_pixel_and_stay_inside() {
        for size in [[100, 250], [64, 64], [65, 10], [1, 1], [1000, 63]] {
            let tiles = Tiles::of_side(64);
            let mut covered = vec![false; size[0] * size[1]];
            for [[row, column], [rows, columns]] in tiles.of(size) {
                assert!(row + rows <= size[0] && column + columns <= size[1], "{size:?}");
                for y in row..row + rows {
                    covered[y * size[1] + column..][..columns].fill(true);
                }
            }
            assert!(covered.iter().all(|pixel| *pixel), "{size:?}");
        }
    }

    #[test]
    fn a_box_that_two_tiles_found_is_one() {
        let one = |score, x: f64, class| Detection {
            class,
            score,
            bounds: Bounds::from_pixel_corners([x, 10.0, x + 20.0, 30.0], [100, 100]),
        };
        let found = [one(0.6, 10.0, 0), one(0.9, 11.0, 0), one(0.8, 11.0, 1), one(0.5, 60.0, 0)];
        let joined = Tiles::of_side(64).joined(&found, [100, 100]);
        let scores: Vec<f64> = joined.iter().map(|one| one.score).collect();
        assert_eq!(scores, [0.9, 0.8, 0.5]);
    }
}
