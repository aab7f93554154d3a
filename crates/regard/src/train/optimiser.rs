//! Optimisers over the flat array of parameters.

use regard_kernels::optimise::{self, Adam, Sgd};
use serde::{Deserialize, Serialize};

use super::parameters::{Group, Slot};
use crate::Error;

/// An optimiser with its hyperparameters: `rule = "adamw"`, `rate = 5e-4`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Optimiser {
    Sgd {
        rate: f64,
        #[serde(default = "momentum")]
        momentum: f64,
        #[serde(default)]
        nesterov: bool,
        #[serde(default)]
        decay: f64,
    },
    /// Loshchilov and Hutter 2019.
    Adamw {
        rate: f64,
        #[serde(default = "betas")]
        betas: [f64; 2],
        #[serde(default = "epsilon")]
        epsilon: f64,
        #[serde(default)]
        decay: f64,
    },
    /// You et al. 2020. As in timm, tensors without weight decay have no trust ratio.
    Lamb {
        rate: f64,
        #[serde(default = "betas")]
        betas: [f64; 2],
        #[serde(default = "lamb_epsilon")]
        epsilon: f64,
        #[serde(default)]
        decay: f64,
    },
}

const fn momentum() -> f64 {
    0.9
}
const fn betas() -> [f64; 2] {
    [0.9, 0.999]
}
const fn epsilon() -> f64 {
    1e-8
}
const fn lamb_epsilon() -> f64 {
    1e-6
}

impl Default for Optimiser {
    fn default() -> Self {
        Self::Adamw { rate: 1e-3, betas: betas(), epsilon: epsilon(), decay: 0.05 }
    }
}

impl Optimiser {
    /// The peak learning rate.
    pub const fn rate(&self) -> f64 {
        match *self {
            Self::Sgd { rate, .. } | Self::Adamw { rate, .. } | Self::Lamb { rate, .. } => rate,
        }
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        let within = |field, value: f64, low: f64, high: f64| {
            let fine = value >= low && value <= high;
            if fine { Ok(()) } else { Err(Error::config(field, format!("must be from {low} to {high}, got {value}"))) }
        };
        within("optimiser.rate", self.rate(), 0.0, 1e3)?;
        match *self {
            Self::Sgd { momentum, decay, .. } => {
                within("optimiser.momentum", momentum, 0.0, 1.0)?;
                within("optimiser.decay", decay, 0.0, 1e3)
            }
            Self::Adamw { betas, epsilon, decay, .. } | Self::Lamb { betas, epsilon, decay, .. } => {
                within("optimiser.betas", betas[0], 0.0, 1.0 - 1e-9)?;
                within("optimiser.betas", betas[1], 0.0, 1.0 - 1e-9)?;
                within("optimiser.epsilon", epsilon, 1e-30, 1.0)?;
                within("optimiser.decay", decay, 0.0, 1e3)
            }
        }
    }

    /// Number of moment arrays: 1 or 2.
    pub const fn moments(&self) -> usize {
        match self {
            Self::Sgd { .. } => 1,
            Self::Adamw { .. } | Self::Lamb { .. } => 2,
        }
    }

    /// Updates the parameters; `step` counts from zero.
    ///
    /// Neighbouring tensors of the same group are updated in one call, except for LAMB, whose trust ratio is per tensor.
    pub fn step(&self, step: usize, rate: f64, slots: &GroupedSlots, state: OptimiserState) {
        let OptimiserState { parameters, gradients, moments } = state;
        for (range, group) in slots.ranges(matches!(self, Self::Lamb { .. })) {
            if group.rate == 0.0 {
                continue;
            }
            let rate = (rate * group.rate) as f32;
            let (parameters, gradients) = (&mut parameters[range.clone()], &gradients[range.clone()]);
            let mut moments = moments.iter_mut().map(|moments| &mut moments[range.clone()]);
            let mut next = || moments.next().expect("the number that `moments` returns");
            match *self {
                Self::Sgd { momentum, nesterov, decay, .. } => {
                    let decay = (decay * group.decay) as f32;
                    let options = Sgd { rate, momentum: momentum as f32, nesterov, decay };
                    optimise::sgd(options, parameters, gradients, next());
                }
                Self::Adamw { betas, epsilon, decay, .. } | Self::Lamb { betas, epsilon, decay, .. } => {
                    let (decay, step) = ((decay * group.decay) as f32, step as i32 + 1);
                    let betas = betas.map(|beta| beta as f32);
                    let options = Adam { rate, betas, epsilon: epsilon as f32, decay, step };
                    let moments = [next(), next()];
                    match self {
                        Self::Lamb { .. } => optimise::lamb(options, parameters, gradients, moments),
                        _ => optimise::adamw(options, parameters, gradients, moments),
                    }
                }
            }
        }
    }
}

/// The arrays that an optimiser reads and updates.
#[derive(Debug)]
pub struct OptimiserState<'a> {
    pub parameters: &'a mut [f32],
    pub gradients: &'a [f32],
    pub moments: &'a mut [Vec<f32>],
}

/// Tensors in the flat array, with their groups.
#[derive(Clone, Copy, Debug)]
pub struct GroupedSlots<'a> {
    pub slots: &'a [Slot],
    pub groups: &'a [Group],
}

impl GroupedSlots<'_> {
    /// Ranges of neighbouring tensors with the same group, or of single tensors.
    fn ranges(&self, single: bool) -> Vec<(std::ops::Range<usize>, Group)> {
        let mut ranges: Vec<(std::ops::Range<usize>, Group)> = Vec::new();
        for (slot, &group) in self.slots.iter().zip(self.groups) {
            match ranges.last_mut() {
                Some((range, last)) if !single && *last == group => range.end = slot.range.end,
                _ => ranges.push((slot.range.clone(), group)),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{random, values};
    use burn::optim::momentum::MomentumConfig;
    use burn::optim::{AdamWConfig, LambConfig, Optimizer, SgdConfig, decay::WeightDecayConfig};
    use burn::tensor::Tensor;

    /// Five steps of one of Burn's optimisers.
    fn theirs<O: Optimizer>(optimiser: &O) -> Vec<f32> {
        let (mut parameters, mut state) = (random([4, 5], 1), None);
        for step in 0..5 {
            let gradients: Tensor<2> = parameters.clone() + random([4, 5], 10 + step);
            (parameters, state) = optimiser.step(0.01, parameters, gradients, state);
        }
        values(&parameters)
    }

    fn ours(optimiser: Optimiser) -> Vec<f32> {
        let mut parameters = values(&random([4, 5], 1));
        let mut moments = vec![vec![0.0; 20]; optimiser.moments()];
        let slots = [Slot { name: "a".into(), shape: vec![4, 5], range: 0..20 }];
        let place = GroupedSlots { slots: &slots, groups: &[Group { rate: 1.0, decay: 1.0 }] };
        for step in 0..5 {
            let noise = values(&random([4, 5], 10 + step));
            let gradients: Vec<f32> = parameters.iter().zip(&noise).map(|(p, n)| p + n).collect();
            let state = OptimiserState { parameters: &mut parameters, gradients: &gradients, moments: &mut moments };
            optimiser.step(step as usize, 0.01, &place, state);
        }
        parameters
    }

    fn assert_same(ours: &[f32], theirs: &[f32]) {
        let distance = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(distance < 2e-6, "{distance}");
    }

    #[test]
    fn every_rule_is_that_of_burn() {
        let (rate, decay) = (0.01, 0.1);
        let adamw = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.1).build();
        assert_same(&ours(Optimiser::Adamw { rate, betas: betas(), epsilon: 1e-8, decay }), &theirs(&adamw));
        let lamb = LambConfig::new().with_epsilon(1e-6).with_weight_decay(0.1).build();
        assert_same(&ours(Optimiser::Lamb { rate, betas: betas(), epsilon: 1e-6, decay }), &theirs(&lamb));
        for nesterov in [false, true] {
            let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0).with_nesterov(nesterov);
            let decayed = Some(WeightDecayConfig::new(0.1));
            let sgd = SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(decayed).build();
            assert_same(&ours(Optimiser::Sgd { rate, momentum: 0.9, nesterov, decay }), &theirs(&sgd));
        }
    }

    #[test]
    fn a_frozen_tensor_stays_and_side_by_side_tensors_are_one_run() {
        let slot = |range: std::ops::Range<usize>| Slot { name: "a".into(), shape: vec![range.len()], range };
        let slots = [slot(0..2), slot(2..4), slot(4..6)];
        let learns = Group { rate: 1.0, decay: 0.0 };
        let groups = [learns, learns, Group { rate: 0.0, decay: 0.0 }];
        let place = GroupedSlots { slots: &slots, groups: &groups };
        assert_eq!(place.ranges(false).len(), 2);
        assert_eq!(place.ranges(true).len(), 3);
        let (mut parameters, mut moments) = (vec![1.0; 6], vec![vec![0.0; 6]]);
        let state = OptimiserState { parameters: &mut parameters, gradients: &[1.0; 6], moments: &mut moments };
        Optimiser::Sgd { rate: 0.1, momentum: 0.9, nesterov: false, decay: 0.0 }.step(0, 0.1, &place, state);
        assert_eq!(parameters, [0.9, 0.9, 0.9, 0.9, 1.0, 1.0]);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |optimiser: Optimiser| optimiser.validate().unwrap_err().to_string();
        let sgd = |rate, momentum| Optimiser::Sgd { rate, momentum, nesterov: false, decay: 0.0 };
        assert!(refused(sgd(-1.0, 0.9)).contains("optimiser.rate"));
        assert!(refused(sgd(f64::NAN, 0.9)).contains("optimiser.rate"));
        assert!(refused(sgd(0.1, 1.5)).contains("optimiser.momentum"));
        let betas = [0.9, 1.0];
        let adamw = Optimiser::Adamw { rate: 0.1, betas, epsilon: 1e-8, decay: 0.0 };
        assert!(refused(adamw).contains("optimiser.betas"));
    }
}
