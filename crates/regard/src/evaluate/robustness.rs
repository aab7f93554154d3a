//! Accuracy on rotated and flipped pictures, as in "Exploring Self-attention for Image Recognition" (2020).

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::Accuracy;
use crate::Error;

/// A rotation or flip, as a viewer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rotation {
    None,
    Clockwise90,
    Clockwise180,
    Clockwise270,
    /// Rows in reverse order: a vertical flip, unlike a rotation by 180 degrees.
    UpsideDown,
}

impl Rotation {
    /// In the order of the paper's columns.
    pub const ALL: [Self; 5] =
        [Self::None, Self::Clockwise90, Self::Clockwise180, Self::Clockwise270, Self::UpsideDown];

    /// The paper's column name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "no rotation",
            Self::Clockwise90 => "90",
            Self::Clockwise180 => "180",
            Self::Clockwise270 => "270",
            Self::UpsideDown => "upside-down",
        }
    }

    /// Rotates or flips images `[B, C, H, W]`.
    ///
    /// # Errors
    /// When a rotation by 90 or 270 degrees would change the shape of the images.
    pub fn apply(self, images: Tensor<4>) -> Result<Tensor<4>, Error> {
        let [_, _, rows, columns] = images.dims();
        if matches!(self, Self::Clockwise90 | Self::Clockwise270) && rows != columns {
            let reason = format!("a quarter turn needs square images, these have {rows} rows and {columns} columns");
            return Err(Error::config("image", reason));
        }
        Ok(match self {
            Self::None => images,
            Self::Clockwise90 => images.swap_dims(2, 3).flip([3]),
            Self::Clockwise180 => images.flip([2, 3]),
            Self::Clockwise270 => images.swap_dims(2, 3).flip([2]),
            Self::UpsideDown => images.flip([2]),
        })
    }
}

/// The accuracy of one model on the same pictures, rotated and flipped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Robustness {
    /// The model's name.
    pub name: String,
    /// In the order of [`Rotation::ALL`].
    pub accuracy: [Accuracy; Rotation::ALL.len()],
}

impl Robustness {
    /// Runs a model on all versions of a batch `[B, C, H, W]`.
    ///
    /// # Errors
    /// When the images are not square.
    ///
    /// # Panics
    /// When the number of labels is not the number of pictures.
    pub fn add(
        &mut self,
        images: Tensor<4>,
        labels: &[usize],
        answer: impl Fn(Tensor<4>) -> Tensor<2>,
    ) -> Result<(), Error> {
        for (rotation, accuracy) in Rotation::ALL.into_iter().zip(&mut self.accuracy) {
            accuracy.add(answer(rotation.apply(images.clone())?), labels);
        }
        Ok(())
    }

    /// Top-1 accuracy on one version.
    #[must_use]
    pub fn top1(&self, rotation: Rotation) -> f64 {
        self.accuracy[rotation as usize].top1()
    }

    /// The drop in accuracy on one version.
    #[must_use]
    pub fn drop(&self, rotation: Rotation) -> f64 {
        self.top1(Rotation::None) - self.top1(rotation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use burn::tensor::TensorData;

    fn images(numbers: &[f32], shape: [usize; 4]) -> Tensor<4> {
        Tensor::from_data(TensorData::new(numbers.to_vec(), shape), &device::cpu())
    }

    fn numbers(images: Tensor<4>) -> Vec<f32> {
        images.into_data().iter::<f32>().collect()
    }

    #[test]
    fn every_turn_is_what_a_viewer_would_draw() {
        let before = images(&[1., 2., 3., 4., 5., 6., 7., 8., 9.], [1, 1, 3, 3]);
        let turned = |rotation: Rotation| numbers(rotation.apply(before.clone()).unwrap());
        assert_eq!(turned(Rotation::None), [1., 2., 3., 4., 5., 6., 7., 8., 9.]);
        assert_eq!(turned(Rotation::Clockwise90), [7., 4., 1., 8., 5., 2., 9., 6., 3.]);
        assert_eq!(turned(Rotation::Clockwise180), [9., 8., 7., 6., 5., 4., 3., 2., 1.]);
        assert_eq!(turned(Rotation::Clockwise270), [3., 6., 9., 2., 5., 8., 1., 4., 7.]);
        assert_eq!(turned(Rotation::UpsideDown), [7., 8., 9., 4., 5., 6., 1., 2., 3.]);
    }

    #[test]
    fn four_quarter_turns_are_none_and_two_are_half_a_turn() {
        let values: Vec<f32> = (0..2 * 3 * 16).map(|i| i as f32).collect();
        let before = images(&values, [2, 3, 4, 4]);
        let quarter = |images: Tensor<4>| Rotation::Clockwise90.apply(images).unwrap();
        let half = quarter(quarter(before.clone()));
        assert_eq!(numbers(half.clone()), numbers(Rotation::Clockwise180.apply(before.clone()).unwrap()));
        assert_eq!(numbers(quarter(half.clone())), numbers(Rotation::Clockwise270.apply(before.clone()).unwrap()));
        assert_eq!(numbers(quarter(quarter(half))), values);
        assert_eq!(numbers(Rotation::UpsideDown.apply(Rotation::UpsideDown.apply(before).unwrap()).unwrap()), values);
    }

    #[test]
    fn only_quarter_turns_need_square_images() {
        let wide = images(&[1., 2., 3., 4., 5., 6.], [1, 1, 2, 3]);
        for rotation in Rotation::ALL {
            match rotation {
                Rotation::Clockwise90 | Rotation::Clockwise270 => {
                    let error = rotation.apply(wide.clone()).unwrap_err().to_string();
                    assert!(error.contains("2 rows and 3 columns"), "{error}");
                }
                _ => assert_eq!(rotation.apply(wide.clone()).unwrap().dims(), [1, 1, 2, 3]),
            }
        }
    }

    #[test]
    fn a_model_that_looks_at_one_corner_loses_what_is_turned_away() {
        // the first class when the corner at the top left is bright
        let answer = |images: Tensor<4>| {
            let corner: Tensor<2> = images.slice([0..1, 0..1, 0..1, 0..1]).reshape([1, 1]);
            Tensor::cat(vec![corner.clone(), -corner], 1)
        };
        let mut robustness = Robustness { name: "corner".into(), ..Robustness::default() };
        robustness.add(images(&[1., 1., -1., -1.], [1, 1, 2, 2]), &[0], answer).unwrap();
        let right = Rotation::ALL.map(|rotation| robustness.top1(rotation));
        assert_eq!(right, [1.0, 0.0, 0.0, 1.0, 0.0]);
        assert_eq!((robustness.drop(Rotation::Clockwise90), robustness.drop(Rotation::Clockwise270)), (1.0, 0.0));
    }
}
