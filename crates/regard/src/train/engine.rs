//! One training step, and all state that a step changes.

use burn::module::Module as _;
use regard_kernels::optimise;

use super::optimiser::{GroupedSlots, OptimiserState};
use super::parameters::{Group, Groups, ParameterLayout, collect, named, statistics, values, write};
use super::recipe::Common;
use super::task::{Losses, Objective};
use super::{Optimiser, Ranks, together};
use crate::Error;
use crate::evaluate::Values;
use crate::weights::Tensors;

/// Prefixes of the optimiser's moments in a checkpoint.
const MOMENTS: [&str; 2] = ["first.", "second."];

/// Settings of the engine that do not depend on the task.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Largest norm of the gradient; 0 for no clipping.
    pub clip: f64,
    /// Decay of the exponential moving average of parameters; 0 for none.
    pub ema: f64,
    /// Batches per step (gradient accumulation).
    pub accumulate: usize,
    pub optimiser: Optimiser,
    pub groups: Groups,
}

impl From<&Common> for EngineConfig {
    fn from(common: &Common) -> Self {
        let Common { clip, ema, accumulate, optimiser, ref groups, .. } = *common;
        Self { clip, ema, accumulate, optimiser, groups: groups.clone() }
    }
}

/// A model in training.
#[derive(Debug)]
pub struct Engine<O: Objective> {
    objective: O,
    config: EngineConfig,
    model: O::Model,
    layout: ParameterLayout,
    groups: Vec<Group>,
    parameters: Vec<f32>,
    moments: Vec<Vec<f32>>,
    /// Exponential moving averages of parameters and statistics.
    averages: Option<[Vec<f32>; 2]>,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepResult {
    /// Mean loss over all processes.
    pub loss: f64,
    /// The same for each named part of the loss.
    pub parts: Values,
    /// Number of pictures or tokens in the step, over all processes.
    pub count: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Whether any process asks to stop.
    pub stop: bool,
}

impl<O: Objective> Engine<O> {
    /// # Errors
    /// When the config names parts that the model does not have.
    pub fn new(objective: O, config: EngineConfig, model: O::Model) -> Result<Self, Error> {
        let layout = ParameterLayout::of(&model);
        let groups = config.groups.of(&layout.parameters)?;
        let [parameters, statistics] = values(&model);
        let mut engine = Self {
            moments: vec![vec![0.0; parameters.len()]; config.optimiser.moments()],
            averages: (config.ema > 0.0).then(|| [parameters.clone(), statistics.clone()]),
            objective,
            config,
            model,
            layout,
            groups,
            parameters,
        };
        engine.rebuild_model(&statistics);
        Ok(engine)
    }

    /// Writes the flat parameters and statistics into the model.
    fn rebuild_model(&mut self, statistics: &[f32]) {
        let frozen: Vec<&str> = std::iter::zip(&self.layout.parameters, &self.groups)
            .filter(|(_, group)| group.rate == 0.0)
            .map(|(slot, _)| slot.name.as_str())
            .collect();
        let values = [self.parameters.as_slice(), statistics];
        self.model = write(self.model.clone(), values, &|name| !frozen.contains(&name));
    }

    /// Takes one step on this process's batches; `step` counts from zero.
    ///
    /// # Errors
    /// When another process has ended or the loss is not finite; then nothing has changed.
    pub fn step(
        &mut self,
        step: usize,
        rate: f64,
        batches: &[O::Batch],
        stop: bool,
        ranks: &dyn Ranks,
    ) -> Result<StepResult, Error> {
        let counts = self.counts(batches, ranks)?;
        let names = self.objective.parts();
        // gradient, loss, stop flag and parts of the loss in one array, for a single all-reduce
        let mut sums = vec![0.0; self.parameters.len() + 2 + names.len()];
        let (gradients, scalars) = sums.split_at_mut(self.parameters.len());
        scalars[1] = f32::from(u8::from(stop));
        let mut samples = Vec::new();
        for (index, batch) in batches.iter().enumerate() {
            let draw_id = (step * self.config.accumulate + index) * ranks.count() + ranks.rank();
            let Losses { sum: loss, parts } = self.objective.losses(&self.model, batch, &counts, draw_id as u64)?;
            assert_eq!(parts.len(), names.len(), "engine: parts of the loss");
            let value = loss.clone().into_scalar::<f32>();
            if !value.is_finite() {
                samples.extend(self.objective.names(batch));
            }
            scalars[0] += value;
            for (sum, part) in scalars[2..].iter_mut().zip(parts) {
                *sum += part.into_scalar::<f32>();
            }
            self.layout.add_gradients(&self.model, &loss.backward(), gradients);
        }
        ranks.sum(&mut sums)?;
        let (gradients, scalars) = sums.split_at_mut(self.parameters.len());
        let gradient_norm = optimise::squares(gradients).sqrt();
        let parts = names.iter().zip(&scalars[2..]).map(|(name, part)| ((*name).to_string(), f64::from(*part)));
        let (parts, loss, stop) = (parts.collect(), f64::from(scalars[0]), scalars[1] > 0.0);
        let done = StepResult { loss, parts, count: counts[0], gradient_norm, stop };
        if !done.loss.is_finite() || !gradient_norm.is_finite() {
            let loss = done.loss;
            return Err(Error::Diverged { step, rate, loss, gradient_norm, samples, saved: String::new() });
        }
        if self.config.clip > 0.0 && gradient_norm > self.config.clip {
            // as in PyTorch's clip_grad_norm_
            let factor = (self.config.clip / (gradient_norm + 1e-6)) as f32;
            gradients.iter_mut().for_each(|gradient| *gradient *= factor);
        }
        let slots = GroupedSlots { slots: &self.layout.parameters, groups: &self.groups };
        let state = OptimiserState { parameters: &mut self.parameters, gradients, moments: &mut self.moments };
        self.config.optimiser.step(step, rate, &slots, state);
        let statistics = statistics(&self.model);
        if let Some([parameters, averaged]) = &mut self.averages {
            optimise::average(parameters, &self.parameters, self.config.ema as f32);
            optimise::average(averaged, &statistics, self.config.ema as f32);
        }
        self.rebuild_model(&statistics);
        Ok(done)
    }

    /// The divisors of the loss: the counts of all batches of all processes, which may differ between processes.
    fn counts(&self, batches: &[O::Batch], ranks: &dyn Ranks) -> Result<Vec<f64>, Error> {
        let mut own = vec![0; O::COUNTS];
        for batch in batches {
            let counts = self.objective.counts(batch);
            assert_eq!(counts.len(), own.len(), "engine: counts of a batch");
            own.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        together::sum_counts(&own, ranks)
    }

    /// The model to evaluate and save: the moving average, if there is one.
    pub fn model(&self) -> O::Model {
        let model = self.model.valid();
        match &self.averages {
            Some([parameters, statistics]) => write(model, [parameters, statistics], &|_| false),
            None => model,
        }
    }

    /// All state that the next step depends on, by name.
    pub fn tensors(&self) -> Tensors {
        let statistics = statistics(&self.model);
        let ParameterLayout { parameters: slots, statistics: more } = &self.layout;
        let mut arrays = vec![("model.", slots, &self.parameters), ("model.", more, &statistics)];
        arrays.extend(MOMENTS.into_iter().zip(&self.moments).map(|(prefix, values)| (prefix, slots, values)));
        if let Some([parameters, statistics]) = &self.averages {
            arrays.extend([("average.", slots, parameters), ("average.", more, statistics)]);
        }
        arrays.into_iter().flat_map(|(prefix, slots, values)| named(slots, prefix, values)).collect()
    }

    /// Restores the state of [`tensors`](Self::tensors).
    ///
    /// # Errors
    /// When they do not fit the model and the config.
    pub fn restore(&mut self, tensors: &Tensors) -> Result<(), Error> {
        let ParameterLayout { parameters: slots, statistics: more } = &self.layout;
        self.parameters = collect(slots, "model.", tensors)?;
        for (prefix, moments) in MOMENTS.into_iter().zip(&mut self.moments) {
            *moments = collect(slots, prefix, tensors)?;
        }
        if let Some([parameters, statistics]) = &mut self.averages {
            *parameters = collect(slots, "average.", tensors)?;
            *statistics = collect(more, "average.", tensors)?;
        }
        let statistics = collect(more, "model.", tensors)?;
        self.rebuild_model(&statistics);
        Ok(())
    }

    /// Number of trainable parameters.
    pub fn trainable_parameters(&self) -> usize {
        let slots = std::iter::zip(&self.layout.parameters, &self.groups);
        slots.filter(|(_, group)| group.rate > 0.0).map(|(slot, _)| slot.range.len()).sum()
    }
}
