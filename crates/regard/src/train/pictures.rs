//! What there is to learn from pictures and their classes, with or without a teacher.

use burn::tensor::{Device, Tensor};

use super::Recipe;
use super::distill::{self, Distillation};
use super::engine::{Engine, Rules, Task};
use crate::data::Batch;
use crate::models::{Heads, Model};
use crate::{Error, Pass, StochasticDepth};

/// Pictures and their classes.
#[derive(Debug)]
pub struct Pictures {
    recipe: Recipe,
    teacher: Option<(Distillation, Model)>,
    device: Device,
}

impl Task for Pictures {
    type Model = Model;
    type Batch = Batch;

    fn size(batch: &Batch) -> usize {
        batch.len()
    }

    fn loss(&self, model: &Model, batch: &Batch, place: usize) -> Tensor<1> {
        let Recipe { stochastic_depth: rate, uniform_depth: uniform, seed, .. } = self.recipe;
        let mut pass = Pass::training(StochasticDepth { rate, uniform, seed, step: place as u64 });
        let heads = model.forward_heads(batch.tensor(&self.device), &mut pass);
        if let Some((distillation, teacher)) = &self.teacher {
            let images = batch.tensor(&self.device.clone().without_autodiff());
            let answers = Tensor::from_inner(distill::ask(teacher, images));
            return distillation.sum(heads, answers, &batch.targets, &self.recipe.loss);
        }
        let Heads { class, distilled } = heads;
        let loss = self.recipe.loss.sum(class, &batch.targets);
        // without a teacher the second head learns the same as the first
        distilled.map_or(loss.clone(), |head| (loss + self.recipe.loss.sum(head, &batch.targets)) * 0.5)
    }
}

impl Engine {
    /// An engine that learns from pictures.
    ///
    /// # Errors
    /// When the recipe names parts that the model does not have.
    pub fn new(recipe: &Recipe, model: Model, teacher: Option<Model>, device: &Device) -> Result<Self, Error> {
        let Recipe { clip, ema, optimiser, .. } = *recipe;
        let rules = Rules { clip, ema, optimiser, groups: recipe.groups.clone() };
        let teacher = recipe.distillation.clone().zip(teacher);
        let task = Pictures { recipe: recipe.clone(), teacher, device: device.clone().autodiff() };
        Self::of(task, rules, model)
    }
}
