//! Batches of pictures with their classes.

use burn::tensor::{Device, Tensor, TensorData};

/// Pictures prepared for a model, and their targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// `[B, C, H, W]`
    pub images: Vec<f32>,
    /// `[B, C, H, W]`
    pub shape: [usize; 4],
    pub targets: Vec<Target>,
}

/// The class of a picture, or of the two that were mixed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    pub class: usize,
    /// The class of the picture that was mixed in; the same class if none was.
    pub other: usize,
    /// The weight of `class`: 1 if nothing was mixed in.
    pub share: f32,
}

impl Target {
    /// The target of a picture that is not mixed.
    #[must_use]
    pub const fn pure(class: usize) -> Self {
        Self { class, other: class, share: 1.0 }
    }
}

impl Batch {
    /// `[B, C, H, W]`
    #[must_use]
    pub fn tensor(&self, device: &Device) -> Tensor<4> {
        Tensor::from_data(TensorData::new(self.images.clone(), self.shape), device)
    }

    /// Number of pictures.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.shape[0]
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.shape[0] == 0
    }
}
