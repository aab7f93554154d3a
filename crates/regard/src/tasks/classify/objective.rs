//! The objective of a classifier, with or without a teacher.

use burn::tensor::{Device, Tensor};

use super::distill::{self, Distillation};
use super::{ClassifySection, Loss};
use crate::data::Batch;
use crate::models::{Heads, Model};
use crate::train::{Losses, Objective, Recipe};
use crate::{Error, Pass, StochasticDepth};

/// The objective of a classifier.
#[derive(Debug)]
pub struct ClassLoss {
    loss: Loss,
    depth: StochasticDepth,
    teacher: Option<(Distillation, Model)>,
    device: Device,
}

impl ClassLoss {
    #[must_use]
    pub fn new(recipe: &Recipe<ClassifySection>, teacher: Option<Model>, device: &Device) -> Self {
        let ClassifySection { loss, stochastic_depth: rate, uniform_depth: uniform, ref distillation, .. } = recipe.own;
        Self {
            loss,
            depth: StochasticDepth { rate, uniform, seed: recipe.common.seed, step: 0 },
            teacher: distillation.clone().zip(teacher),
            device: device.clone().autodiff(),
        }
    }
}

impl Objective for ClassLoss {
    type Model = Model;
    type Batch = Batch;

    fn counts(&self, batch: &Batch) -> Vec<usize> {
        vec![batch.len()]
    }

    fn parts(&self) -> &'static [&'static str] {
        if self.teacher.is_some() { &["class", "teacher"] } else { &[] }
    }

    fn losses(&self, model: &Model, batch: &Batch, counts: &[f64], draw_id: u64) -> Result<Losses, Error> {
        let mut pass = Pass::with_stochastic_depth(StochasticDepth { step: draw_id, ..self.depth });
        let heads = model.forward_heads(batch.tensor(&self.device), &mut pass);
        if let Some((distillation, teacher)) = &self.teacher {
            let images = batch.tensor(&self.device.clone().without_autodiff());
            let answers = Tensor::from_inner(distill::ask(teacher, images));
            return Ok(distillation.losses(heads, answers, &batch.targets, &self.loss).divided(counts[0]));
        }
        let Heads { class, distilled } = heads;
        let loss = self.loss.sum(class, &batch.targets);
        // without a teacher both heads learn the same
        let loss = distilled.map_or(loss.clone(), |head| (loss + self.loss.sum(head, &batch.targets)) * 0.5);
        Ok(Losses::from(loss).divided(counts[0]))
    }
}
