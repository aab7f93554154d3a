//! The loss of clips and their classes.

use burn::tensor::Device;

use super::{ClipBatch, ClipsSection};
use crate::models::VideoModel;
use crate::tasks::classify::Loss;
use crate::train::{Losses, Objective, Recipe};
use crate::{Error, Pass, StochasticDepth};

/// The loss of a model of video.
#[derive(Clone, Debug)]
pub struct ClipLoss {
    loss: Loss,
    depth: StochasticDepth,
    /// Whether blocks are computed once more in the backward pass.
    checkpoint: bool,
    device: Device,
}

impl ClipLoss {
    #[must_use]
    pub fn new(recipe: &Recipe<ClipsSection>, device: &Device) -> Self {
        let ClipsSection { loss, stochastic_depth: rate, checkpoint, .. } = recipe.own;
        let depth = StochasticDepth { rate, uniform: false, seed: recipe.common.seed, step: 0 };
        Self { loss, depth, checkpoint, device: device.clone().autodiff() }
    }
}

impl Objective for ClipLoss {
    type Model = VideoModel;
    type Batch = ClipBatch;

    fn counts(&self, batch: &ClipBatch) -> Vec<usize> {
        vec![batch.len()]
    }

    fn names(&self, batch: &ClipBatch) -> Vec<String> {
        batch.names.clone()
    }

    fn losses(&self, model: &VideoModel, batch: &ClipBatch, counts: &[f64], draw_id: u64) -> Result<Losses, Error> {
        let mut pass = Pass::with_stochastic_depth(StochasticDepth { step: draw_id, ..self.depth });
        if self.checkpoint {
            pass = pass.recomputing();
        }
        let logits = model.forward(&batch.clips(&self.device), &mut pass);
        Ok(Losses::from(self.loss.sum(logits, &batch.targets)).divided(counts[0]))
    }
}
