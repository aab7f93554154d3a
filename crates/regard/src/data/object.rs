//! Objects in a picture: a class and a box around it.
//!
//! Boxes are `cx, cy, w, h` as fractions of the picture's width and height, as in DETR and YOLO, so that resizing changes
//! nothing. They convert to corners and to pixels as in COCO (`x, y, w, h`) and VOC (`x1, y1, x2, y2`).

use serde::{Deserialize, Serialize};

/// An annotated object.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Object {
    pub class: usize,
    pub bounds: Bounds,
    /// A crowd: one box around many objects, not counted when missed (COCO's `iscrowd`).
    pub crowd: bool,
}

/// A box predicted by a detector.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detection {
    pub class: usize,
    /// Confidence from 0 to 1.
    pub score: f64,
    pub bounds: Bounds,
}

/// A box by its centre and its sides, as fractions of the picture: 0 is left and top, 1 is right and bottom.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    pub cx: f64,
    pub cy: f64,
    pub w: f64,
    pub h: f64,
}

impl Bounds {
    /// The whole picture.
    pub const WHOLE: Self = Self { cx: 0.5, cy: 0.5, w: 1.0, h: 1.0 };

    /// From left, top, right and bottom.
    #[must_use]
    pub fn from_corners([x1, y1, x2, y2]: [f64; 4]) -> Self {
        Self { cx: f64::midpoint(x1, x2), cy: f64::midpoint(y1, y2), w: x2 - x1, h: y2 - y1 }
    }

    /// Left, top, right and bottom.
    #[must_use]
    pub fn corners(&self) -> [f64; 4] {
        let (w, h) = (self.w / 2.0, self.h / 2.0);
        [self.cx - w, self.cy - h, self.cx + w, self.cy + h]
    }

    /// From left, top, right and bottom in pixels of a picture of `[rows, columns]`.
    #[must_use]
    pub fn from_pixel_corners([x1, y1, x2, y2]: [f64; 4], [rows, columns]: [usize; 2]) -> Self {
        let (rows, columns) = (rows as f64, columns as f64);
        Self::from_corners([x1 / columns, y1 / rows, x2 / columns, y2 / rows])
    }

    /// Left, top, right and bottom in pixels of a picture of `[rows, columns]`.
    #[must_use]
    pub fn pixel_corners(&self, [rows, columns]: [usize; 2]) -> [f64; 4] {
        let [x1, y1, x2, y2] = self.corners();
        let (rows, columns) = (rows as f64, columns as f64);
        [x1 * columns, y1 * rows, x2 * columns, y2 * rows]
    }

    /// From left, top, width and height in pixels, as COCO writes boxes.
    #[must_use]
    pub fn from_coco([x, y, w, h]: [f64; 4], size: [usize; 2]) -> Self {
        Self::from_pixel_corners([x, y, x + w, y + h], size)
    }

    /// Left, top, width and height in pixels, as COCO writes boxes.
    #[must_use]
    pub fn coco(&self, size: [usize; 2]) -> [f64; 4] {
        let [x1, y1, x2, y2] = self.pixel_corners(size);
        [x1, y1, x2 - x1, y2 - y1]
    }

    /// The fraction of the picture that it covers; 0 for a box with negative sides.
    #[must_use]
    pub fn area(&self) -> f64 {
        self.w.max(0.0) * self.h.max(0.0)
    }

    /// The part inside the picture; `None` if there is none.
    #[must_use]
    pub fn clipped(&self) -> Option<Self> {
        self.intersection(&Self::WHOLE)
    }

    /// The intersection of two boxes; `None` if it has no area.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let [[a1, b1, a2, b2], [x1, y1, x2, y2]] = [self.corners(), other.corners()];
        let common = [a1.max(x1), b1.max(y1), a2.min(x2), b2.min(y2)];
        // `max` and `min` ignore NaN: a box with a NaN has no intersection
        let is_number = [a1, b1, a2, b2, x1, y1, x2, y2].iter().all(|corner| !corner.is_nan());
        (is_number && common[2] > common[0] && common[3] > common[1]).then(|| Self::from_corners(common))
    }

    /// Intersection over union; 0 for boxes without area.
    #[must_use]
    pub fn iou(&self, other: &Self) -> f64 {
        let common = self.intersection(other).map_or(0.0, |common| common.area());
        let union = self.area() + other.area() - common;
        if union > 0.0 { common / union } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: [usize; 2] = [50, 200];

    #[test]
    fn conversions_lead_back_and_mean_pixels() {
        let bounds = Bounds { cx: 0.25, cy: 0.5, w: 0.1, h: 0.2 };
        let close = |a: [f64; 4], b: [f64; 4]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(close(bounds.pixel_corners(SIZE), [40.0, 20.0, 60.0, 30.0]));
        assert!(close(bounds.coco(SIZE), [40.0, 20.0, 20.0, 10.0]));
        let back = [
            Bounds::from_corners(bounds.corners()),
            Bounds::from_pixel_corners(bounds.pixel_corners(SIZE), SIZE),
            Bounds::from_coco(bounds.coco(SIZE), SIZE),
        ];
        for other in back {
            assert!(close([other.cx, other.cy, other.w, other.h], [0.25, 0.5, 0.1, 0.2]), "{other:?}");
        }
    }

    #[test]
    fn a_clipped_box_is_inside_and_one_outside_is_nothing() {
        let half = Bounds::from_corners([-0.5, 0.2, 0.5, 0.4]);
        assert_eq!(half.clipped().unwrap().corners().map(|x| (x * 10.0).round()), [0.0, 2.0, 5.0, 4.0]);
        assert_eq!(Bounds::WHOLE.clipped(), Some(Bounds::WHOLE));
        for outside in [[1.0, 0.0, 1.5, 1.0], [-1.0, 0.0, 0.0, 1.0], [0.2, 0.3, 0.2, 0.5], [0.5, 0.5, 0.4, 0.6]] {
            assert_eq!(Bounds::from_corners(outside).clipped(), None, "{outside:?}");
        }
        assert_eq!(Bounds { cx: f64::NAN, ..Bounds::WHOLE }.clipped(), None);
    }

    #[test]
    fn intersection_over_union_is_symmetric_one_for_itself_and_zero_apart() {
        let a = Bounds::from_corners([0.0, 0.0, 0.5, 0.5]);
        let b = Bounds::from_corners([0.25, 0.0, 0.75, 0.5]);
        assert!((a.iou(&a) - 1.0).abs() < 1e-12);
        assert!((a.iou(&b) - 1.0 / 3.0).abs() < 1e-12 && (a.iou(&b) - b.iou(&a)).abs() < 1e-15);
        assert_eq!(a.iou(&Bounds::from_corners([0.5, 0.5, 1.0, 1.0])), 0.0);
        let point = Bounds { cx: 0.1, cy: 0.1, w: 0.0, h: 0.0 };
        assert_eq!((point.iou(&point), point.area()), (0.0, 0.0));
    }
}
