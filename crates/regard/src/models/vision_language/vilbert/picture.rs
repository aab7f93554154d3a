//! The regions of a picture with one for the whole of it, and their embeddings.

use burn::module::Module;
use burn::tensor::{Bool, Tensor, TensorData};

use super::super::input::Regions;
use crate::Pass;
use crate::layers::{LayerNorm, Linear};

/// Regions with region 0 before them.
pub(super) struct Picture {
    /// `[B, 1 + R, F]`
    pub features: Tensor<3>,
    /// `[B, 1 + R, 5]`
    pub locations: Tensor<3>,
    /// `[B, 1 + R]`
    pub padding: Option<Tensor<2, Bool>>,
}

impl Picture {
    /// Region 0 is the mean of what can be seen of the others, with the box of the whole picture.
    pub fn of(regions: &Regions) -> Self {
        let (features, device) = (regions.visible_features(), regions.features.device());
        let [batch, count, width] = features.dims();
        let share = |own: &usize| {
            let own = *own;
            (0..count).map(move |at| if at < own { 1.0 / own as f32 } else { 0.0 })
        };
        let shares: Vec<f32> = regions.counts.iter().flat_map(share).collect();
        let shares = Tensor::<3>::from_data(TensorData::new(shares, [batch, count, 1]), &device);
        let mean = (features.clone() * shares).sum_dim(1).reshape([batch, 1, width]);
        let whole = Tensor::<3>::from_data([[[0.0, 0.0, 1.0, 1.0, 1.0]]], &device).expand([batch, 1, 5]);
        let locations = Tensor::cat(vec![regions.boxes.clone(), regions.areas()], 2);
        let padding = regions.padding().map(|padding| {
            let there = Tensor::<2>::zeros([batch, 1], &device).bool();
            Tensor::cat(vec![there, padding], 1)
        });
        Self {
            features: Tensor::cat(vec![mean, features], 1),
            locations: Tensor::cat(vec![whole, locations], 1),
            padding,
        }
    }
}

/// `Norm(Linear(features) + Linear(location))`
#[derive(Module, Debug)]
pub struct VilbertImageEmbeddings {
    pub image_embeddings: Linear,
    pub image_location_embeddings: Linear,
    pub layer_norm: LayerNorm,
    pub(super) dropout: f64,
}

impl VilbertImageEmbeddings {
    pub(super) fn forward(&self, picture: &Picture, pass: &mut Pass) -> Tensor<3> {
        let seen = self.image_embeddings.forward(picture.features.clone());
        let places = self.image_location_embeddings.forward(picture.locations.clone());
        pass.dropout(self.layer_norm.forward(seen + places), self.dropout)
    }
}
