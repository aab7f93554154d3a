//! Targets and losses of detectors with anchors.

use burn::tensor::Tensor;

use crate::boxes::{Corners, has_sides};
use crate::data::Object;

/// The objects of a picture in pixels, without crowds and boxes without area.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Targets {
    pub corners: Vec<Corners>,
    pub classes: Vec<usize>,
}

impl Targets {
    /// For a picture of `[rows, columns]` without its padding.
    ///
    /// # Panics
    /// When an object has a class that is not among `classes`.
    #[must_use]
    pub fn of(objects: &[Object], size: [usize; 2], classes: usize) -> Self {
        let mut targets = Self::default();
        for object in objects.iter().filter(|object| !object.crowd) {
            assert!(object.class < classes, "an object of class {}, the model has {classes}", object.class);
            let corners = object.bounds.pixel_corners(size).map(|x| x as f32);
            // NaN has no sides either
            if has_sides(corners, f32::MIN_POSITIVE) {
                targets.corners.push(corners);
                targets.classes.push(object.class);
            }
        }
        targets
    }
}

/// The parts of a detector's loss, by name.
///
/// Each is **summed over the pictures of the batch**: divided by their number it is what the reference implementations
/// print; with several processes, by the number of pictures of all of them, which follows from the batches alone.
#[derive(Clone, Debug)]
pub struct DetectionLosses {
    pub parts: Vec<(&'static str, Tensor<1>)>,
}

impl DetectionLosses {
    /// The sum of all parts.
    ///
    /// # Panics
    /// When there are no parts.
    #[must_use]
    pub fn sum(&self) -> Tensor<1> {
        let parts = self.parts.iter().map(|(_, part)| part.clone());
        parts.reduce(|a, b| a + b).expect("a loss has a part")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Bounds;

    #[test]
    fn crowds_and_boxes_without_area_are_left_out() {
        let whole = Object { class: 1, bounds: Bounds::WHOLE, crowd: false };
        let objects = [
            whole,
            Object { crowd: true, ..whole },
            Object { bounds: Bounds { w: 0.0, ..Bounds::WHOLE }, ..whole },
            Object { bounds: Bounds { h: -0.5, ..Bounds::WHOLE }, ..whole },
            Object { bounds: Bounds { cx: f64::NAN, ..Bounds::WHOLE }, ..whole },
        ];
        let targets = Targets::of(&objects, [10, 20], 2);
        assert_eq!(targets, Targets { corners: vec![[0.0, 0.0, 20.0, 10.0]], classes: vec![1] });
    }

    #[test]
    #[should_panic(expected = "an object of class 2, the model has 2")]
    fn a_class_that_the_model_does_not_have_is_refused() {
        let object = Object { class: 2, bounds: Bounds::WHOLE, crowd: false };
        let _ = Targets::of(&[object], [10, 20], 2);
    }
}
