//! Detectors: pictures in, boxes with classes and scores out.

mod backbone;
mod detector;
pub mod detr;
pub mod faster_rcnn;
mod losses;
pub mod retinanet;
mod score;

pub use backbone::{BackboneConfig, DetectorBackbone, PyramidOptions};
pub use detector::{
    AnyDetectorPreset, Detector, DetectorConfig, DetectorFamily, DetectorLosses, DetectorPreset, LossCounts, LossDraw,
    is_config, knows_classes, named, preset, presets, usual_preprocess,
};
pub use losses::{DetectionLosses, Targets};
pub use score::{BoxPlace, BoxScore, BoxSource};

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::boxes::Corners;
use crate::data::{Bounds, Detection};

/// Limits of a detector's results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetectionLimits {
    /// Detections need a higher score.
    pub score: f32,
    /// Non-maximum suppression per class: IoU above which the worse box is dropped.
    pub overlap: f64,
    /// Maximum number of detections per picture.
    pub detections: usize,
}

impl DetectionLimits {
    /// # Errors
    /// When one is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        if !(0.0..1.0).contains(&self.score) {
            return Err(Error::config("limits", format!("score must be at least 0 and below 1, got {}", self.score)));
        }
        if !(0.0..=1.0).contains(&self.overlap) {
            return Err(Error::config("limits", format!("overlap must be from 0 to 1, got {}", self.overlap)));
        }
        Ok(())
    }
}

/// `[B, A*n, H, W] -> [B, H*W*A, n]`: the anchors of a cell together.
fn per_anchor(out: Tensor<4>, anchors: usize) -> Tensor<3> {
    let [batch, channels, height, width] = out.dims();
    let out = out.reshape([batch, anchors, channels / anchors, height, width]);
    out.permute([0, 3, 4, 1, 2]).reshape([batch, height * width * anchors, channels / anchors])
}

/// The best scores with their indices, by falling score; on a tie the lower index first.
fn best_of(mut scores: Vec<(f32, usize)>, count: usize) -> Vec<(f32, usize)> {
    let order = |a: &(f32, usize), b: &(f32, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if scores.len() > count {
        scores.select_nth_unstable_by(count, order);
        scores.truncate(count);
    }
    scores.sort_unstable_by(order);
    scores
}

/// A detection from a box in pixels of a picture of `[rows, columns]`.
fn detection(class: usize, score: f32, corners: Corners, size: [usize; 2]) -> Detection {
    Detection { class, score: f64::from(score), bounds: Bounds::from_pixel_corners(corners.map(f64::from), size) }
}
