//! DETR's augmentations of pictures with boxes (Carion et al. 2020, `datasets/coco.py`).
//!
//! 1. Flipped with probability 0.5.
//! 2. With equal probability, resized so that the short side is one of 480, 512, .., 800 and the long side at most 1333;
//!    or resized so that the short side is 400, 500 or 600, cropped to sides of 384 to 600 pixels, and then resized as before.
//!
//! Boxes are moved with the pixels, clipped, and dropped when nothing of them is left: `Changes::objects(.., 0.0)`.
//! Unlike in DETR, a picture with a side below 384 pixels keeps that side instead of failing. Colour jitter and mosaics
//! ([`mosaic`]) are options that DETR does not have; both are off by default.

use rand::seq::IndexedRandom as _;
use rand::{Rng, RngExt as _};
use serde::{Deserialize, Serialize};

use super::{Change, Changes, Geometric, chance, colour};
use crate::Error;
use crate::data::{Filter, limits};

mod mosaic;

pub use mosaic::mosaic;

/// Resizes the short side to a number of pixels, the long side to at most `longest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortSide {
    pub short: usize,
    pub longest: Option<usize>,
}

impl ShortSide {
    /// Rows and columns, rounded as DETR's `get_size_with_aspect_ratio`: a short side that the longest one limits is
    /// rounded, the long side is truncated.
    #[must_use]
    pub fn detr(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        let (least, most) = (rows.min(columns), rows.max(columns));
        let mut short = self.short;
        if let Some(longest) = self.longest
            && most as f64 / least as f64 * short as f64 > longest as f64
        {
            short = ((longest as f64 * least as f64 / most as f64).round_ties_even() as usize).max(1);
        }
        if least == short {
            return [rows, columns];
        }
        let long = ((short * most) as f64 / least as f64) as usize;
        if columns < rows { [long, short] } else { [short, long] }
    }

    /// Rows and columns as torchvision's `Resize(short, max_size=longest)`: both sides are truncated.
    #[must_use]
    pub fn torchvision(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        let (least, most) = (rows.min(columns), rows.max(columns));
        let (mut short, mut long) = (self.short, ((self.short * most) as f64 / least as f64) as usize);
        if let Some(longest) = self.longest
            && long > longest
        {
            (short, long) = ((((longest * short) as f64 / long as f64) as usize).max(1), longest);
        }
        if columns <= rows { [long, short] } else { [short, long] }
    }
}

/// Random changes of pictures with boxes; the default is DETR's for COCO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DetectionAugment {
    /// Probability of a horizontal flip.
    pub flip: f64,
    /// Short sides, one of which is chosen.
    pub short_sides: Vec<usize>,
    /// Maximum of the long side in pixels.
    pub longest: usize,
    /// Probability of a crop.
    pub crop: f64,
    /// Short sides before the crop.
    pub crop_short_sides: Vec<usize>,
    /// Minimum and maximum of a side of the crop in pixels.
    pub crop_sides: [usize; 2],
    /// Brightness, contrast and saturation each times 1 - x to 1 + x, in random order.
    pub colour_jitter: f64,
    /// Probability of a mosaic of four pictures, before all other changes.
    pub mosaic: f64,
}

impl Default for DetectionAugment {
    fn default() -> Self {
        Self {
            flip: 0.5,
            short_sides: (480..=800).step_by(32).collect(),
            longest: 1333,
            crop: 0.5,
            crop_short_sides: vec![400, 500, 600],
            crop_sides: [384, 600],
            colour_jitter: 0.0,
            mosaic: 0.0,
        }
    }
}

/// The short side of DETR's largest pictures.
const DETR_SHORT: usize = 800;

/// Upper limit of all sides in pixels.
const MOST_SIDE: usize = 8192;

impl DetectionAugment {
    /// DETR's changes for smaller pictures: all sides are scaled so that the largest short side is `short`.
    ///
    /// # Panics
    /// When it is zero.
    #[must_use]
    pub fn scaled(short: usize) -> Self {
        assert!(short > 0, "augment: a short side of no pixels");
        let scaled = |side: &usize| ((side * short + DETR_SHORT / 2) / DETR_SHORT).max(1);
        let plain = Self::default();
        Self {
            short_sides: plain.short_sides.iter().map(scaled).collect(),
            longest: scaled(&plain.longest),
            crop_short_sides: plain.crop_short_sides.iter().map(scaled).collect(),
            crop_sides: plain.crop_sides.map(|side| scaled(&side)),
            ..plain
        }
    }

    /// The largest size of a picture that is not cropped.
    #[must_use]
    pub fn largest_side(&self) -> ShortSide {
        ShortSide { short: self.short_sides.iter().copied().max().unwrap_or(DETR_SHORT), longest: Some(self.longest) }
    }

    /// # Errors
    /// When a field cannot work; the error names it and its value.
    pub fn validate(&self) -> Result<(), Error> {
        limits::probability("augment.flip", self.flip)?;
        limits::probability("augment.crop", self.crop)?;
        let sides = |field, sides: &[usize]| {
            if sides.is_empty() {
                return Err(Error::config(field, "must have at least one side, got none"));
            }
            sides.iter().try_for_each(|side| limits::between(field, *side as f64, [1.0, MOST_SIDE as f64]))
        };
        sides("augment.short-sides", &self.short_sides)?;
        sides("augment.longest", &[self.longest])?;
        sides("augment.crop-short-sides", &self.crop_short_sides)?;
        sides("augment.crop-sides", &self.crop_sides)?;
        limits::range("augment.crop-sides", self.crop_sides.map(|side| side as f64))?;
        limits::not_negative("augment.colour-jitter", self.colour_jitter)?;
        limits::probability("augment.mosaic", self.mosaic)
    }

    /// Draws the changes of a picture of this size and of its boxes.
    ///
    /// # Panics
    /// Where `validate` has an error.
    pub fn draw(&self, size: [usize; 2], random: &mut impl Rng) -> Changes {
        let mut changes = Changes::new(size);
        let filter = Filter::Bilinear;
        let mut add = |change: Geometric| {
            let after = change.size(changes.size());
            changes.changes.push(Change::Geometric(change));
            after
        };
        let mut size = size;
        if chance(self.flip, random) {
            size = add(Geometric::Flip);
        }
        let side = |sides: &[usize], random: &mut _| sides.choose(random).copied().expect("validated");
        if chance(self.crop, random) {
            let short = side(&self.crop_short_sides, random);
            size = add(Geometric::Resize { size: ShortSide { short, longest: None }.detr(size), filter });
            let [least, most] = self.crop_sides;
            // width first, as in DETR
            let [columns, rows] = [size[1], size[0]].map(|side| {
                let most = most.min(side);
                random.random_range(least.min(most)..=most)
            });
            let corner = [size[0] - rows, size[1] - columns].map(|room| random.random_range(0..=room));
            size = add(Geometric::Crop { corner, size: [rows, columns] });
        }
        let short = side(&self.short_sides, random);
        add(Geometric::Resize { size: ShortSide { short, longest: Some(self.longest) }.detr(size), filter });
        if self.colour_jitter > 0.0 {
            let jitter = colour::draw_jitter(self.colour_jitter, random);
            changes.changes.extend(jitter.into_iter().map(Change::Photometric));
        }
        changes
    }
}

#[cfg(test)]
mod tests;
