//! The mapping gamma of SAN: from a relation between features to attention weights.
//! Zhao, Jia, Koltun 2020, "Exploring Self-attention for Image Recognition".
//!
//! `BatchNorm`, `ReLU`, linear without bias, and again with bias: two normalised layers that
//! pairwise attention applies to every pair of pixels and patchwise attention to every pixel.
//! It has parameters and is still here, because both operators are defined with it.

use burn::module::{Initializer, Module, Param};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::project;
use crate::batch_norm::BatchNorm;

/// Norm, rectifier, linear, norm, rectifier, linear over the channel axis.
#[derive(Module, Debug)]
pub struct Gamma {
    pub norm1: BatchNorm,
    /// `[hidden, inputs]`
    pub linear1: Param<Tensor<2>>,
    pub norm2: BatchNorm,
    /// `[outputs, hidden]`
    pub linear2: Param<Tensor<2>>,
    /// `[outputs]`
    pub bias2: Param<Tensor<1>>,
}

impl Gamma {
    /// A gamma with the uniform initialisation of the published code.
    ///
    /// # Panics
    /// When a width is 0.
    pub fn new(inputs: usize, hidden: usize, outputs: usize, device: &Device) -> Self {
        // uniform in ±1/sqrt(fan in)
        let uniform = Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false };
        Self {
            norm1: BatchNorm::new(inputs, device),
            linear1: uniform.init_with([hidden, inputs], Some(inputs), None, device),
            norm2: BatchNorm::new(hidden, device),
            linear2: uniform.init_with([outputs, hidden], Some(hidden), None, device),
            bias2: uniform.init_with([outputs], Some(hidden), None, device),
        }
    }

    /// Input width: that of the relation.
    pub fn inputs(&self) -> usize {
        self.linear1.lazy_shape()[1]
    }

    /// Hidden width.
    pub fn hidden(&self) -> usize {
        self.linear1.lazy_shape()[0]
    }

    /// All parameters, flattened in the order that the kernels expect.
    pub(crate) fn flat(&self) -> Tensor<1> {
        let second =
            [self.norm2.gamma.val(), self.norm2.beta.val(), self.linear2.val().flatten(0, 1), self.bias2.val()];
        Tensor::cat([vec![self.flat_first()], second.to_vec()].concat(), 0)
    }

    /// The parameters of the first norm and linear layer, likewise.
    pub(crate) fn flat_first(&self) -> Tensor<1> {
        Tensor::cat(vec![self.norm1.gamma.val(), self.norm1.beta.val(), self.linear1.val().flatten(0, 1)], 0)
    }

    /// Output width: the number of weights.
    pub fn outputs(&self) -> usize {
        self.linear2.lazy_shape()[0]
    }

    /// `[B, inputs, P, Q] -> [B, outputs, P, Q]`
    ///
    /// # Panics
    /// When the relation has another number of channels.
    pub fn forward(&self, relation: Tensor<4>) -> Tensor<4> {
        let hidden = project(relu(self.norm1.forward(relation)), self.linear1.val(), None);
        project(relu(self.norm2.forward(hidden)), self.linear2.val(), Some(self.bias2.val()))
    }
}

/// Gammas for tests, from flat lists of parameters.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::batch_norm::RunningStat;
    use crate::testing::{noise, random_on};
    use burn::module::ParamId;

    #[derive(Clone, Copy)]
    pub struct Widths {
        pub inputs: usize,
        pub hidden: usize,
        pub outputs: usize,
    }

    pub type Named = Vec<(&'static str, Vec<f32>)>;

    impl Widths {
        /// Random parameters: some `ReLU`s are active, some not, some near zero.
        pub fn parameters(self, seed: u64) -> Named {
            let Self { inputs, hidden, outputs } = self;
            let scaled = |len: usize, seed: u64, factor: f32| noise(len, seed).iter().map(|x| x * factor).collect();
            let mostly_on = |len: usize, seed: u64| noise(len, seed).iter().map(|x| x + 0.5).collect();
            vec![
                ("norm1.gamma", noise(inputs, seed + 1)),
                ("norm1.beta", mostly_on(inputs, seed + 2)),
                ("linear1", scaled(hidden * inputs, seed + 3, 1.5 / (inputs as f32).sqrt())),
                ("norm2.gamma", noise(hidden, seed + 4)),
                ("norm2.beta", mostly_on(hidden, seed + 5)),
                ("linear2", noise(outputs * hidden, seed + 6)),
                ("bias2", noise(outputs, seed + 7)),
            ]
        }

        /// The same with every `ReLU` clearly active or inactive, so that finite differences cross no kink.
        pub fn smooth_parameters(self, seed: u64) -> Named {
            let far = |len: usize| (0..len).map(|index| if index % 3 == 1 { -2.0 } else { 2.0 }).collect::<Vec<f32>>();
            let mut named = self.parameters(seed);
            for (name, values) in &mut named {
                match *name {
                    "norm1.beta" | "norm2.beta" => *values = far(values.len()),
                    "norm1.gamma" | "norm2.gamma" => values.iter_mut().for_each(|x| *x = 0.5 + 0.1 * *x),
                    _ => {}
                }
            }
            named
        }

        /// A gamma in evaluation mode on the device of these parameters, in the order of [`Self::parameters`].
        pub fn gamma(self, parameters: &[Tensor<1>]) -> Gamma {
            let Self { inputs, hidden, outputs } = self;
            let norm = |width: usize, scale: &Tensor<1>, shift: &Tensor<1>, seed: u64| BatchNorm {
                gamma: Param::initialized(ParamId::new(), scale.clone()),
                beta: Param::initialized(ParamId::new(), shift.clone()),
                training: Param::from_bool(false),
                running_mean: RunningStat::new(random_on([width], seed, &scale.device()).mul_scalar(0.3)),
                running_var: RunningStat::new(random_on([width], seed + 1, &scale.device()).add_scalar(2.0)),
                momentum: 0.1,
                epsilon: 1e-5,
            };
            let matrix = |index: usize, shape: [usize; 2]| {
                Param::initialized(ParamId::new(), parameters[index].clone().reshape(shape))
            };
            Gamma {
                norm1: norm(inputs, &parameters[0], &parameters[1], 90),
                linear1: matrix(2, [hidden, inputs]),
                norm2: norm(hidden, &parameters[3], &parameters[4], 92),
                linear2: matrix(5, [outputs, hidden]),
                bias2: Param::initialized(ParamId::new(), parameters[6].clone()),
            }
        }

        /// A gamma of random parameters on the CPU, in evaluation mode.
        pub fn random(self, seed: u64) -> Gamma {
            self.random_on(seed, &crate::device::cpu())
        }

        pub fn random_on(self, seed: u64, device: &Device) -> Gamma {
            let tensors: Vec<Tensor<1>> = self
                .parameters(seed)
                .into_iter()
                .map(|(_, values)| Tensor::from_data(values.as_slice(), device))
                .map(|tensor| if device.is_autodiff() { tensor.require_grad() } else { tensor })
                .collect();
            self.gamma(&tensors)
        }

        /// The same in training mode, on a device that tracks gradients.
        pub fn training(self, seed: u64) -> Gamma {
            let mut gamma = self.random_on(seed, &crate::device::cpu().autodiff());
            // a matrix was reshaped from the list: only a leaf of the graph has a gradient to ask for
            let leaf =
                |matrix: &Param<Tensor<2>>| Param::initialized(ParamId::new(), matrix.val().detach().require_grad());
            gamma.linear1 = leaf(&gamma.linear1);
            gamma.linear2 = leaf(&gamma.linear2);
            gamma.norm1.training = Param::from_bool(true);
            gamma.norm2.training = Param::from_bool(true);
            gamma
        }
    }

    /// The gradients of a gamma's parameters by name, and its running statistics.
    pub fn after(gamma: &Gamma, grads: &burn::tensor::Gradients) -> Named {
        use crate::testing::values;
        let of = |tensor: Tensor<1>| values(&tensor.grad(grads).expect("a gradient reaches every parameter"));
        vec![
            ("norm1.gamma", of(gamma.norm1.gamma.val())),
            ("norm1.beta", of(gamma.norm1.beta.val())),
            ("linear1", values(&gamma.linear1.val().grad(grads).expect("a gradient reaches every parameter"))),
            ("norm2.gamma", of(gamma.norm2.gamma.val())),
            ("norm2.beta", of(gamma.norm2.beta.val())),
            ("linear2", values(&gamma.linear2.val().grad(grads).expect("a gradient reaches every parameter"))),
            ("running_mean1", values(&gamma.norm1.running_mean.value())),
            ("running_var1", values(&gamma.norm1.running_var.value())),
            ("running_mean2", values(&gamma.norm2.running_mean.value())),
            ("running_var2", values(&gamma.norm2.running_var.value())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::samples::Widths;
    use super::*;
    use crate::attention::naive;
    use crate::device;
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random, random_on, values};

    const WIDTHS: Widths = Widths { inputs: 5, hidden: 4, outputs: 3 };

    #[test]
    fn it_is_its_naive_twin() {
        let gamma = WIDTHS.random(1);
        let input = random([2, 5, 3, 4], 2);
        let actual = values(&gamma.forward(input.clone()));
        let (input, twin) = (naive::Images::from(&input), naive::Gamma::from(&gamma));
        for batch in 0..2 {
            for pixel in 0..12 {
                let expected = twin.apply(&(0..5).map(|channel| input.at(batch, channel, pixel)).collect::<Vec<_>>());
                for (channel, expected) in expected.into_iter().enumerate() {
                    let actual = f64::from(actual[(batch * 3 + channel) * 12 + pixel]);
                    assert!((actual - expected).abs() < 1e-5, "{actual} {expected}");
                }
            }
        }
    }

    #[test]
    fn gradients_are_differences() {
        let mut inputs = vec![("relation", noise(2 * 5 * 6, 3))];
        inputs.extend(WIDTHS.smooth_parameters(4));
        assert_gradients_are_differences(&inputs, |inputs| {
            WIDTHS.gamma(&inputs[1..]).forward(inputs[0].clone().reshape([2, 5, 2, 3]))
        });
    }

    #[test]
    fn training_normalises_by_the_batch_and_evaluation_by_the_running_statistics() {
        let gamma = Widths { inputs: 3, hidden: 4, outputs: 2 }.training(1);
        let input = random_on([4, 3, 5, 5], 5, &device::cpu().autodiff());
        let trained = gamma.forward(input.clone());
        // batch statistics do not see a change of scale
        assert_close(&gamma.forward(input.clone().mul_scalar(50.0)), &trained, 1e-3);
        let evaluated = gamma.valid();
        let small = evaluated.forward(input.clone().inner());
        let large = evaluated.forward(input.inner().mul_scalar(50.0));
        assert!((large - small).abs().max().into_scalar::<f32>() > 0.1);
    }

    #[test]
    fn a_new_gamma_has_the_asked_widths() {
        let gamma = Gamma::new(7, 5, 3, &device::cpu());
        assert_eq!((gamma.inputs(), gamma.outputs()), (7, 3));
        let (parameters, statistics) = (2 * 7 + 5 * 7 + 2 * 5 + 3 * 5 + 3, 2 * 7 + 2 * 5);
        assert_eq!(gamma.num_params(), parameters + statistics, "Burn counts running statistics too");
        assert_eq!(gamma.forward(random([2, 7, 4, 6], 1)).dims(), [2, 3, 4, 6]);
    }
}
