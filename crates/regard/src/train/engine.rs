//! One step of training, and everything that a step changes.

use burn::module::Module;
use burn::tensor::Tensor;
use regard_kernels::optimise;
use std::fmt::Debug;

use super::optimiser::{Place, State};
use super::parameters::{Group, Groups, Layout, collect, named, statistics, values, write};
use super::pictures::Pictures;
use super::{Optimiser, Ranks};
use crate::Error;
use crate::weights::Tensors;

/// The moments of an optimiser in a checkpoint.
const MOMENTS: [&str; 2] = ["first.", "second."];

/// What is learned: how a batch becomes a loss.
pub trait Task: Debug {
    type Model: Module + Debug;
    type Batch;

    /// What the loss of a batch is divided by: pictures, or tokens.
    fn size(batch: &Self::Batch) -> usize;

    /// The sum of the losses of a batch; `place` is one that no other batch of the run has.
    fn loss(&self, model: &Self::Model, batch: &Self::Batch, place: usize) -> Tensor<1>;
}

/// How parameters move, whatever is learned.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Largest length of the gradient; 0 is any.
    pub clip: f64,
    /// Part of the old value in the moving average of parameters; 0 is none.
    pub ema: f64,
    pub optimiser: Optimiser,
    pub groups: Groups,
}

/// A model in training.
#[derive(Debug)]
pub struct Engine<T: Task = Pictures> {
    task: T,
    rules: Rules,
    model: T::Model,
    layout: Layout,
    groups: Vec<Group>,
    parameters: Vec<f32>,
    moments: Vec<Vec<f32>>,
    /// Moving averages of parameters and statistics.
    averages: Option<[Vec<f32>; 2]>,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Mean over the pictures or tokens of the step.
    pub loss: f64,
    /// Length of the gradient before it was clipped.
    pub gradient_norm: f64,
    /// Whether some process wants to stop.
    pub stop: bool,
}

impl<T: Task> Engine<T> {
    /// # Errors
    /// When the rules name parts that the model does not have.
    pub fn of(task: T, rules: Rules, model: T::Model) -> Result<Self, Error> {
        let layout = Layout::of(&model);
        let groups = rules.groups.of(&layout.parameters)?;
        let [parameters, statistics] = values(&model);
        let mut engine = Self {
            moments: vec![vec![0.0; parameters.len()]; rules.optimiser.moments()],
            averages: (rules.ema > 0.0).then(|| [parameters.clone(), statistics.clone()]),
            task,
            rules,
            model,
            layout,
            groups,
            parameters,
        };
        engine.put(&statistics);
        Ok(engine)
    }

    /// Makes the model of the parameters.
    fn put(&mut self, statistics: &[f32]) {
        let frozen: Vec<&str> = std::iter::zip(&self.layout.parameters, &self.groups)
            .filter(|(_, group)| group.rate == 0.0)
            .map(|(slot, _)| slot.name.as_str())
            .collect();
        let values = [self.parameters.as_slice(), statistics];
        self.model = write(self.model.clone(), values, &|name| !frozen.contains(&name));
    }

    /// One step on the parts of a batch, which are this process's share of it; `step` counts from zero.
    ///
    /// # Errors
    /// When another process is gone, or the loss is not finite: then nothing has changed.
    pub fn step(
        &mut self,
        step: usize,
        rate: f64,
        parts: &[T::Batch],
        stop: bool,
        ranks: &dyn Ranks,
    ) -> Result<Step, Error> {
        let size = parts.iter().map(T::size).sum::<usize>() * ranks.count();
        let mut sums = vec![0.0; self.parameters.len() + 2];
        let (gradients, told) = sums.split_at_mut(self.parameters.len());
        for (part, batch) in parts.iter().enumerate() {
            let place = (step * parts.len() + part) * ranks.count() + ranks.rank();
            let loss = self.task.loss(&self.model, batch, place) / size as f32;
            told[0] += loss.clone().into_scalar::<f32>();
            self.layout.add_gradients(&self.model, &loss.backward(), gradients);
        }
        told[1] = f32::from(u8::from(stop));
        ranks.sum(&mut sums)?;
        let (gradients, told) = sums.split_at_mut(self.parameters.len());
        let gradient_norm = optimise::squares(gradients).sqrt();
        let done = Step { loss: f64::from(told[0]), gradient_norm, stop: told[1] > 0.0 };
        if !done.loss.is_finite() || !gradient_norm.is_finite() {
            let loss = done.loss;
            return Err(Error::Diverged { step, rate, loss, gradient_norm, saved: String::new() });
        }
        if self.rules.clip > 0.0 && gradient_norm > self.rules.clip {
            // as PyTorch does it
            let factor = (self.rules.clip / (gradient_norm + 1e-6)) as f32;
            gradients.iter_mut().for_each(|gradient| *gradient *= factor);
        }
        let place = Place { slots: &self.layout.parameters, groups: &self.groups };
        let state = State { parameters: &mut self.parameters, gradients, moments: &mut self.moments };
        self.rules.optimiser.step(step, rate, &place, state);
        let statistics = statistics(&self.model);
        if let Some([parameters, averaged]) = &mut self.averages {
            optimise::average(parameters, &self.parameters, self.rules.ema as f32);
            optimise::average(averaged, &statistics, self.rules.ema as f32);
        }
        self.put(&statistics);
        Ok(done)
    }

    /// The model to test and to keep: that of the averages, if there are any.
    pub fn model(&self) -> T::Model {
        let model = self.model.valid();
        match &self.averages {
            Some([parameters, statistics]) => write(model, [parameters, statistics], &|_| false),
            None => model,
        }
    }

    /// Everything that the next step depends on, by name.
    pub fn tensors(&self) -> Tensors {
        let statistics = statistics(&self.model);
        let Layout { parameters: slots, statistics: more } = &self.layout;
        let mut arrays = vec![("model.", slots, &self.parameters), ("model.", more, &statistics)];
        arrays.extend(MOMENTS.into_iter().zip(&self.moments).map(|(prefix, values)| (prefix, slots, values)));
        if let Some([parameters, statistics]) = &self.averages {
            arrays.extend([("average.", slots, parameters), ("average.", more, statistics)]);
        }
        arrays.into_iter().flat_map(|(prefix, slots, values)| named(slots, prefix, values)).collect()
    }

    /// Takes up where [`tensors`](Self::tensors) were.
    ///
    /// # Errors
    /// When they are those of another model or recipe.
    pub fn restore(&mut self, tensors: &Tensors) -> Result<(), Error> {
        let Layout { parameters: slots, statistics: more } = &self.layout;
        self.parameters = collect(slots, "model.", tensors)?;
        for (prefix, moments) in MOMENTS.into_iter().zip(&mut self.moments) {
            *moments = collect(slots, prefix, tensors)?;
        }
        if let Some([parameters, statistics]) = &mut self.averages {
            *parameters = collect(slots, "average.", tensors)?;
            *statistics = collect(more, "average.", tensors)?;
        }
        let statistics = collect(more, "model.", tensors)?;
        self.put(&statistics);
        Ok(())
    }

    /// Number of parameters that learn.
    pub fn learning(&self) -> usize {
        let slots = std::iter::zip(&self.layout.parameters, &self.groups);
        slots.filter(|(_, group)| group.rate > 0.0).map(|(slot, _)| slot.range.len()).sum()
    }
}

#[cfg(test)]
mod tests;
