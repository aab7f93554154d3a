//! Anchors: reference boxes of several sizes and shapes at every cell of a feature map.
//! Ren et al. 2015, "Faster R-CNN", arXiv:1506.01497.
//!
//! torchvision and detectron2 have different rules, which agree to the pixel here, since weights were trained with them. In
//! both, the anchors of the first cell are centred on the corner of the picture, not on the centre of the cell.

use serde::{Deserialize, Serialize};

use super::Corners;
use crate::Error;

/// Sizes, shapes, and the rule that combines them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchors {
    /// For each level, finest first: square roots of areas in pixels.
    pub sizes: Vec<Vec<f32>>,
    /// Height over width.
    pub ratios: Vec<f32>,
    pub rule: AnchorRule,
}

/// How sizes and shapes become boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnchorRule {
    /// Ordered by shape, then size; half sides are rounded to whole pixels, ties to even; a stride is the side of the
    /// padded picture over that of the map, rounded down.
    Torchvision,
    /// Ordered by size, then shape; not rounded; the stride is that of the level.
    Detectron2,
}

impl Anchors {
    /// Three sizes per level, each the previous one times the cube root of two, truncated to whole pixels as in torchvision;
    /// three shapes.
    #[must_use]
    pub fn three_scales(sizes: &[u32]) -> Self {
        let level = |size: &u32| {
            let scaled = |power: f64| (f64::from(*size) * 2f64.powf(power)).trunc() as f32;
            vec![*size as f32, scaled(1.0 / 3.0), scaled(2.0 / 3.0)]
        };
        Self::torchvision(sizes.iter().map(level).collect())
    }

    /// These sizes in three shapes.
    #[must_use]
    pub fn torchvision(sizes: Vec<Vec<f32>>) -> Self {
        Self { sizes, ratios: vec![0.5, 1.0, 2.0], rule: AnchorRule::Torchvision }
    }

    /// # Errors
    /// When there are no sizes or shapes, one is not positive, or levels differ in their numbers.
    pub fn validate(&self) -> Result<(), Error> {
        let per_place = self.sizes.first().map_or(0, Vec::len);
        let numbers = self.sizes.iter().flatten().chain(&self.ratios);
        let positive = numbers.clone().all(|number| *number > 0.0 && number.is_finite());
        if per_place == 0 || self.ratios.is_empty() || !positive || numbers.count() > 1000 {
            let reason = "needs sizes for each level and shapes, at most 1000 and all over 0";
            return Err(Error::config("anchors", reason));
        }
        match self.sizes.iter().position(|level| level.len() != per_place) {
            Some(level) => {
                let reason = format!("level {level} has {} sizes, level 0 has {per_place}", self.sizes[level].len());
                Err(Error::config("anchors", reason))
            }
            None => Ok(()),
        }
    }

    /// Number of anchors per cell.
    #[must_use]
    pub fn per_place(&self) -> usize {
        self.sizes.first().map_or(0, Vec::len) * self.ratios.len()
    }

    /// The anchors of the cell at 0, 0.
    #[must_use]
    pub fn cell(&self, level: usize) -> Vec<Corners> {
        let sizes = &self.sizes[level];
        match self.rule {
            AnchorRule::Torchvision => {
                let cell = |ratio: &f32| {
                    let height = ratio.sqrt();
                    let width = 1.0 / height;
                    let half = move |size: &f32| [width * size / 2.0, height * size / 2.0].map(f32::round_ties_even);
                    sizes.iter().map(half).map(|[w, h]| [-w, -h, w, h]).collect::<Vec<_>>()
                };
                self.ratios.iter().flat_map(cell).collect()
            }
            AnchorRule::Detectron2 => {
                let cell = |size: &f32| {
                    let area = f64::from(*size).powi(2);
                    let sides = move |ratio: &f32| {
                        let width = (area / f64::from(*ratio)).sqrt();
                        [width / 2.0, f64::from(*ratio) * width / 2.0].map(|half| half as f32)
                    };
                    self.ratios.iter().map(sides).map(|[w, h]| [-w, -h, w, h]).collect::<Vec<_>>()
                };
                sizes.iter().flat_map(cell).collect()
            }
        }
    }

    /// The anchors of all cells of a level, row by row, those of a cell together.
    ///
    /// `image` are rows and columns of the padded picture, `grid` those of the level's map, `stride` is the level's own.
    #[must_use]
    pub fn level(&self, level: usize, image: [usize; 2], grid: [usize; 2], stride: usize) -> Vec<Corners> {
        let cell = self.cell(level);
        let strides = match self.rule {
            AnchorRule::Torchvision => [0, 1].map(|axis| image[axis] / grid[axis]),
            AnchorRule::Detectron2 => [stride; 2],
        };
        let mut anchors = Vec::with_capacity(grid[0] * grid[1] * cell.len());
        for row in 0..grid[0] {
            for column in 0..grid[1] {
                let [y, x] = [(row * strides[0]) as f32, (column * strides[1]) as f32];
                anchors.extend(cell.iter().map(|[x1, y1, x2, y2]| [x1 + x, y1 + y, x2 + x, y2 + y]));
            }
        }
        anchors
    }
}
