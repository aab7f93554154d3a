//! Boxes in requests and answers.

use regard::data::Bounds;
use serde::{Deserialize, Serialize};

/// Left, top, width and height in pixels of the picture that was sent.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BoxJson {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl BoxJson {
    /// In a picture of so many rows and columns.
    pub fn new(bounds: &Bounds, size: [usize; 2]) -> Self {
        // a hundredth of a pixel is precise enough
        let [x, y, width, height] = bounds.coco(size).map(|side| (side * 100.0).round() / 100.0);
        Self { x, y, width, height }
    }

    pub const fn sides(self) -> [f64; 4] {
        [self.x, self.y, self.width, self.height]
    }
}
