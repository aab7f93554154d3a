//! Augmentations of pictures.
//!
//! Changes that PIL has agree with PIL to the bit (`reference/augment.py`), except for the blur, which is an exact Gaussian.

mod blur;
mod change;
mod colour;
mod crop;
mod detection;
mod erase;
mod geometry;
mod levels;
mod rand_augment;

pub use change::{Change, Changes, Erasure, Geometric, Photometric};
pub use detection::{DetectionAugment, ShortSide, mosaic};

use rand::{Rng, RngExt as _};
use serde::{Deserialize, Serialize};

use super::{Picture, Preprocess, limits};
use crate::Error;

/// Random changes of one picture, in the order in which they are applied; all are off by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Augment {
    pub crop: Crop,
    /// Probability of a horizontal flip.
    pub flip: f64,
    /// Probability of a vertical flip.
    pub upside_down: f64,
    /// Rotation by 0, 90, 180 or 270 degrees with equal probability; by 0 or 180 if the image is not square.
    pub quarter_turns: bool,
    pub rand_augment: Option<RandAugment>,
    /// DeiT-III's 3-Augment: one of grayscale, solarize and blur, with equal probability.
    pub three_augment: bool,
    /// Probability of grayscale.
    pub grayscale: f64,
    /// Probability of solarize: levels of 128 and more are inverted.
    pub solarize: f64,
    /// Probability of a Gaussian blur of radius 0.1 to 2.
    pub blur: f64,
    /// Brightness, contrast and saturation each times 1 - x to 1 + x, in random order.
    pub colour_jitter: f64,
    /// Probability that a rectangle of the normalised picture becomes noise.
    pub erase: f64,
}

/// Which part of a picture is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Crop {
    /// The centre, as in evaluation.
    #[default]
    Middle,
    /// A part of this fraction of the area and of this aspect, resized: `{ random-resized = { area = [0.08, 1.0], aspect = [0.75, 1.3333] } }`.
    RandomResized { area: [f64; 2], aspect: [f64; 2] },
    /// DeiT-III's: resized by the short side, padded by reflection, cropped: `{ random = { padding = 4 } }`.
    Random { padding: usize },
    /// A random part of the picture with a short side of so many pixels, as even whole numbers: `PySlowFast`'s, for clips,
    /// `{ short-side = { sides = [256, 320] } }`.
    ShortSide { sides: [usize; 2] },
}

/// Two random operations of fifteen at a random strength (Cubuk et al. 2020), as timm's `rand-m9-mstd0.5-inc1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RandAugment {
    /// Magnitude from 0 to 10.
    pub magnitude: f64,
    /// Standard deviation of the magnitude.
    pub std: f64,
    /// Operations per picture.
    pub operations: usize,
    /// Probability of each of them.
    pub probability: f64,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self { magnitude: 9.0, std: 0.5, operations: 2, probability: 0.5 }
    }
}

impl Augment {
    /// # Errors
    /// When a field cannot work; the error names it and its value.
    pub fn validate(&self) -> Result<(), Error> {
        match self.crop {
            Crop::Middle => {}
            Crop::RandomResized { area, aspect } => {
                limits::range("augment.crop.random-resized.area", area)?;
                limits::between("augment.crop.random-resized.area", area[1], [0.0, 1.0])?;
                limits::range("augment.crop.random-resized.aspect", aspect)?;
            }
            Crop::Random { padding } => {
                limits::between("augment.crop.random.padding", padding as f64, [0.0, 4096.0])?;
            }
            Crop::ShortSide { sides } => {
                limits::range("augment.crop.short-side.sides", sides.map(|side| side as f64))?;
                limits::between("augment.crop.short-side.sides", sides[1] as f64, [1.0, 8192.0])?;
            }
        }
        if let Some(RandAugment { magnitude, std, operations, probability }) = self.rand_augment {
            limits::between("augment.rand-augment.magnitude", magnitude, [0.0, 10.0])?;
            limits::not_negative("augment.rand-augment.std", std)?;
            limits::between("augment.rand-augment.operations", operations as f64, [0.0, 15.0])?;
            limits::probability("augment.rand-augment.probability", probability)?;
        }
        limits::probability("augment.flip", self.flip)?;
        limits::probability("augment.upside-down", self.upside_down)?;
        limits::probability("augment.grayscale", self.grayscale)?;
        limits::probability("augment.solarize", self.solarize)?;
        limits::probability("augment.blur", self.blur)?;
        limits::not_negative("augment.colour-jitter", self.colour_jitter)?;
        limits::probability("augment.erase", self.erase)
    }

    /// `[3, H, W]` for `image = [H, W]`: the changed picture, normalised.
    ///
    /// # Panics
    /// When a side of the image is zero, or where `validate` has an error.
    pub fn apply(
        &self,
        picture: &Picture,
        preprocess: &Preprocess,
        image: [usize; 2],
        random: &mut impl Rng,
    ) -> Vec<f32> {
        self.draw(picture.size(), preprocess, image, random).image(picture, preprocess)
    }

    /// The changes of pictures of this size. All random numbers are drawn here, so that the changes can be applied to all
    /// frames of a clip, and to boxes.
    ///
    /// # Panics
    /// When a side of the image is zero, or where `validate` has an error.
    pub fn draw(&self, size: [usize; 2], preprocess: &Preprocess, image: [usize; 2], random: &mut impl Rng) -> Changes {
        assert!(image[0] > 0 && image[1] > 0, "augment: an image of {} x {} pixels", image[1], image[0]);
        let mut changes = self.crop.draw(size, preprocess, image, random);
        let mut geometric = |change| changes.push(Change::Geometric(change));
        if chance(self.flip, random) {
            geometric(Geometric::Flip);
        }
        if chance(self.upside_down, random) {
            geometric(Geometric::UpsideDown);
        }
        if self.quarter_turns {
            let half_turns = usize::from(image[0] != image[1]);
            geometric(Geometric::QuarterTurns(random.random_range(0..4 >> half_turns) << half_turns));
        }
        if let Some(rand_augment) = self.rand_augment {
            // the mean colour, which becomes zeros
            let fill = preprocess.mean.map(|mean| (255.0 * mean).round_ties_even() as u8);
            changes.extend(rand_augment.draw(image, fill, random));
        }
        let mut photometric = |change| changes.push(Change::Photometric(change));
        if self.three_augment {
            photometric(match random.random_range(0..3) {
                0 => Photometric::Grayscale,
                1 => Photometric::Solarize(128),
                _ => Photometric::Blur(radius(random)),
            });
        }
        if chance(self.grayscale, random) {
            photometric(Photometric::Grayscale);
        }
        if chance(self.solarize, random) {
            photometric(Photometric::Solarize(128));
        }
        if chance(self.blur, random) {
            photometric(Photometric::Blur(radius(random)));
        }
        if self.colour_jitter > 0.0 {
            colour::draw_jitter(self.colour_jitter, random).into_iter().for_each(&mut photometric);
        }
        let erasure = if chance(self.erase, random) { erase::draw(image, random) } else { None };
        Changes { from: size, changes, erasure }
    }
}

/// True with this probability; a probability of zero draws nothing.
fn chance(probability: f64, random: &mut impl Rng) -> bool {
    probability > 0.0 && random.random::<f64>() < probability
}

/// Deviation of a blur.
fn radius(random: &mut impl Rng) -> f64 {
    random.random_range(0.1..=2.0)
}

/// Rows and columns of a part of the area of `size`; the aspect is columns / rows, its logarithm even.
///
/// It may be too large or empty; the caller then draws again.
fn rectangle(size: [usize; 2], area: [f64; 2], aspect: [f64; 2], random: &mut impl Rng) -> [usize; 2] {
    let area = (size[0] * size[1]) as f64 * random.random_range(area[0]..=area[1]);
    let aspect = random.random_range(aspect[0].ln()..=aspect[1].ln()).exp();
    [area / aspect, area * aspect].map(|square| square.sqrt().round_ties_even() as usize)
}

#[cfg(test)]
mod tests;
