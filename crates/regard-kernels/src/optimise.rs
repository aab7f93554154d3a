//! One step of an optimiser over a flat array of parameters: everything is read and written once.
//!
//! The same element-wise arithmetic on every path, in the order of PyTorch's single-tensor implementations; norms are
//! summed in f64 over tasks of a fixed size. So neither threads nor instruction sets change a bit.

use rayon::prelude::*;

use crate::elementwise::rows_per_task;
use crate::simd::{Vector, kernel};

/// Stochastic gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    pub rate: f32,
    pub momentum: f32,
    pub nesterov: bool,
    pub decay: f32,
}

/// What `AdamW` and LAMB share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    pub rate: f32,
    pub betas: [f32; 2],
    pub epsilon: f32,
    pub decay: f32,
    /// This step, counted from one.
    pub step: i32,
}

impl Adam {
    /// One over the part of a moment that was seen so far.
    fn corrections(&self) -> [f32; 2] {
        self.betas.map(|beta| (1.0 / (1.0 - f64::from(beta).powi(self.step))) as f32)
    }
}

fn check(parameters: &[f32], others: &[&[f32]]) {
    for other in others {
        assert_eq!(parameters.len(), other.len(), "parameters, gradients and moments differ in length");
    }
}

/// `velocity = momentum * velocity + gradient`; the first step finds it at zero.
pub fn sgd(options: Sgd, parameters: &mut [f32], gradients: &[f32], velocities: &mut [f32]) {
    check(parameters, &[gradients, velocities]);
    let task = rows_per_task(1);
    (parameters.par_chunks_mut(task), gradients.par_chunks(task), velocities.par_chunks_mut(task))
        .into_par_iter()
        .for_each(|(parameters, gradients, velocities)| sgd_task(options, parameters, gradients, velocities));
}

kernel!(fn sgd_task<'a>(options: Sgd, parameters: &'a mut [f32], gradients: &'a [f32], velocities: &'a mut [f32]) = sgd_body);
#[inline(always)]
fn sgd_body<V: Vector>(options: Sgd, parameters: &mut [f32], gradients: &[f32], velocities: &mut [f32]) {
    let Sgd { rate, momentum, nesterov, decay } = options;
    for ((parameter, gradient), velocity) in parameters.iter_mut().zip(gradients).zip(velocities) {
        let gradient = gradient + decay * *parameter;
        *velocity = momentum * *velocity + gradient;
        let direction = if nesterov { gradient + momentum * *velocity } else { *velocity };
        *parameter -= rate * direction;
    }
}

/// Loshchilov and Hutter 2019: the decay does not pass through the moments.
pub fn adamw(options: Adam, parameters: &mut [f32], gradients: &[f32], moments: [&mut [f32]; 2]) {
    let [first, second] = moments;
    check(parameters, &[gradients, first, second]);
    let corrections = options.corrections();
    let task = rows_per_task(1);
    (
        parameters.par_chunks_mut(task),
        gradients.par_chunks(task),
        first.par_chunks_mut(task),
        second.par_chunks_mut(task),
    )
        .into_par_iter()
        .for_each(|(parameters, gradients, first, second)| {
            adamw_task(options, corrections, parameters, gradients, first, second);
        });
}

kernel!(fn adamw_task<'a>(
    options: Adam, corrections: [f32; 2], parameters: &'a mut [f32], gradients: &'a [f32], first: &'a mut [f32],
    second: &'a mut [f32],
) = adamw_body);
#[inline(always)]
fn adamw_body<V: Vector>(
    options: Adam,
    corrections: [f32; 2],
    parameters: &mut [f32],
    gradients: &[f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    let kept = 1.0 - options.rate * options.decay;
    for (((parameter, gradient), first), second) in parameters.iter_mut().zip(gradients).zip(first).zip(second) {
        let direction = direction(options, corrections, *gradient, first, second);
        *parameter = kept * *parameter - options.rate * direction;
    }
}

/// Adam's direction, and the moments moved on.
#[inline(always)]
fn direction(
    Adam { betas, epsilon, .. }: Adam,
    corrections: [f32; 2],
    gradient: f32,
    first: &mut f32,
    second: &mut f32,
) -> f32 {
    *first = betas[0] * *first + (1.0 - betas[0]) * gradient;
    *second = betas[1] * *second + (1.0 - betas[1]) * gradient * gradient;
    *first * corrections[0] / ((*second * corrections[1]).sqrt() + epsilon)
}

/// You et al. 2020: Adam's direction with the decay added, as long as the parameters of the tensor are.
///
/// The slices are one tensor, since the ratio of lengths is taken over it. Without decay the ratio is one, as in
/// timm: biases and norms move as with Adam.
pub fn lamb(options: Adam, parameters: &mut [f32], gradients: &[f32], moments: [&mut [f32]; 2]) {
    let [first, second] = moments;
    check(parameters, &[gradients, first, second]);
    let corrections = options.corrections();
    let task = rows_per_task(1);
    let mut update = vec![0.0; parameters.len()];
    (
        update.par_chunks_mut(task),
        parameters.par_chunks(task),
        gradients.par_chunks(task),
        first.par_chunks_mut(task),
        second.par_chunks_mut(task),
    )
        .into_par_iter()
        .for_each(|(update, parameters, gradients, first, second)| {
            lamb_task(options, corrections, update, parameters, gradients, first, second);
        });
    let [length, step] = [squares(parameters), squares(&update)].map(f64::sqrt);
    let trust = if options.decay != 0.0 && length > 0.0 && step > 0.0 { length / step } else { 1.0 };
    add_scaled(parameters, -(options.rate * trust as f32), &update);
}

kernel!(fn lamb_task<'a>(
    options: Adam, corrections: [f32; 2], update: &'a mut [f32], parameters: &'a [f32], gradients: &'a [f32],
    first: &'a mut [f32], second: &'a mut [f32],
) = lamb_body);
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn lamb_body<V: Vector>(
    options: Adam,
    corrections: [f32; 2],
    update: &mut [f32],
    parameters: &[f32],
    gradients: &[f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    let rows = update.iter_mut().zip(parameters).zip(gradients).zip(first).zip(second);
    for ((((update, parameter), gradient), first), second) in rows {
        *update = direction(options, corrections, *gradient, first, second) + options.decay * parameter;
    }
}

/// `values += factor * others`
pub fn add_scaled(values: &mut [f32], factor: f32, others: &[f32]) {
    check(values, &[others]);
    let task = rows_per_task(1);
    values.par_chunks_mut(task).zip(others.par_chunks(task)).for_each(|(values, others)| {
        values.iter_mut().zip(others).for_each(|(value, other)| *value += factor * other);
    });
}

/// `average = decay * average + (1 - decay) * values`
pub fn average(averages: &mut [f32], values: &[f32], decay: f32) {
    check(averages, &[values]);
    let task = rows_per_task(1);
    averages.par_chunks_mut(task).zip(values.par_chunks(task)).for_each(|(averages, values)| {
        averages.iter_mut().zip(values).for_each(|(average, value)| *average += (1.0 - decay) * (value - *average));
    });
}

/// The sum of squares, in f64.
pub fn squares(values: &[f32]) -> f64 {
    let partials: Vec<f64> = values
        .par_chunks(rows_per_task(1))
        .map(|values| values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum())
        .collect();
    partials.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_same_on_threads, noise};
    use crate::simd::{Path, with_path};

    const ADAM: Adam = Adam { rate: 0.01, betas: [0.9, 0.99], epsilon: 1e-8, decay: 0.1, step: 1 };

    /// Five steps of a rule on gradients that pull towards zero and a little aside.
    fn run(mut rule: impl FnMut(i32, &mut [f32], &[f32], [&mut [f32]; 2])) -> Vec<f32> {
        let mut parameters = noise(40_001, 1);
        let (mut first, mut second) = (vec![0.0; parameters.len()], vec![0.0; parameters.len()]);
        for step in 1..=5 {
            let aside = noise(parameters.len(), 10 + step as u64);
            let gradients: Vec<f32> = parameters.iter().zip(&aside).map(|(p, a)| p + 0.1 * a).collect();
            rule(step, &mut parameters, &gradients, [&mut first, &mut second]);
        }
        parameters
    }

    fn rules() -> Vec<fn() -> Vec<f32>> {
        vec![
            || run(|step, p, g, m| adamw(Adam { step, ..ADAM }, p, g, m)),
            || run(|step, p, g, m| lamb(Adam { step, ..ADAM }, p, g, m)),
            || {
                let options = Sgd { rate: 0.1, momentum: 0.9, nesterov: true, decay: 1e-4 };
                run(|_, p, g, [velocity, _]| sgd(options, p, g, velocity))
            },
        ]
    }

    #[test]
    fn neither_threads_nor_instruction_sets_change_a_bit() {
        for rule in rules() {
            let expected = rule();
            for &path in Path::available() {
                assert!(with_path(path, rule) == expected, "{path:?}");
            }
            assert_same_on_threads(|| vec![rule()]);
        }
    }

    #[test]
    fn every_rule_goes_downhill() {
        for rule in rules() {
            assert!(squares(&rule()) < squares(&noise(40_001, 1)));
        }
    }

    #[test]
    fn the_first_step_of_adam_is_as_long_as_its_rate() {
        let (mut parameters, mut first, mut second) = (vec![1.0, -1.0], vec![0.0; 2], vec![0.0; 2]);
        adamw(Adam { decay: 0.0, ..ADAM }, &mut parameters, &[3.0, -0.002], [&mut first, &mut second]);
        assert!((parameters[0] - 0.99).abs() < 1e-6 && (parameters[1] + 0.99).abs() < 1e-6, "{parameters:?}");
    }

    #[test]
    fn a_step_of_lamb_is_as_long_as_its_rate_times_the_parameters() {
        let before = noise(1000, 3);
        let (mut parameters, mut first, mut second) = (before.clone(), vec![0.0; 1000], vec![0.0; 1000]);
        lamb(ADAM, &mut parameters, &noise(1000, 4), [&mut first, &mut second]);
        let moved: Vec<f32> = parameters.iter().zip(&before).map(|(after, before)| after - before).collect();
        assert!((squares(&moved).sqrt() / squares(&before).sqrt() - 0.01).abs() < 1e-6);
    }

    #[test]
    fn an_average_of_the_same_value_is_that_value() {
        let (mut averages, values) = (noise(100, 5), noise(100, 6));
        average(&mut averages, &values, 0.0);
        assert_eq!(averages, values);
        average(&mut averages, &values, 0.7);
        assert_eq!(averages, values);
    }
}
