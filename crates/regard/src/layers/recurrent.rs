//! The gated recurrent unit (GRU).
//! Cho et al. 2014, arXiv:1406.1078, in the form of Bahdanau et al. 2014, arXiv:1409.0473.
//!
//! `z = s(W_z e + U_z h + C_z c)`, `r` likewise, `h~ = tanh(W e + U (r h) + C c)`, `h' = (1 - z) h + z h~`. PyTorch's GRU
//! differs: it multiplies by `r` after `U`, and its `z` is the fraction that is kept, not replaced.

use burn::module::{Initializer, Module};
use burn::tensor::{Bool, Device, Tensor, activation};

use super::Linear;

/// A GRU cell with an optional context input.
#[derive(Module, Debug)]
pub struct GatedUnit {
    /// `W_z`, `W_r` and `W` of the input, with biases: `[3H, E]`.
    pub input: Linear,
    /// `U_z` and `U_r` of the state: `[2H, H]`.
    pub gates: Linear,
    /// `U` of the gated state: `[H, H]`.
    pub state: Linear,
    /// `C_z`, `C_r` and `C` of a context: `[3H, C]`.
    pub context: Option<Linear>,
}

impl GatedUnit {
    pub fn new(inputs: usize, hidden: usize, context: Option<usize>, device: &Device) -> Self {
        let unbiased = |inputs, outputs| Linear { bias: None, ..Linear::xavier(inputs, outputs, device) };
        Self {
            input: Linear::xavier(inputs, 3 * hidden, device),
            gates: orthogonal(hidden, 2 * hidden, device),
            state: orthogonal(hidden, hidden, device),
            context: context.map(|width| unbiased(width, 3 * hidden)),
        }
    }

    /// Width of the state.
    pub fn hidden(&self) -> usize {
        self.state.weight.lazy_shape().dims::<2>()[0]
    }

    /// `[B, H] -> [B, H]`; `mapped [B, 3H]` is the projected input, plus the projected context.
    pub fn step(&self, mapped: Tensor<2>, state: Tensor<2>) -> Tensor<2> {
        let hidden = self.hidden();
        let gates = activation::sigmoid(mapped.clone().narrow(1, 0, 2 * hidden) + self.gates.forward(state.clone()));
        let [keep, read] = [0, 1].map(|part| gates.clone().narrow(1, part * hidden, hidden));
        let fresh = (mapped.narrow(1, 2 * hidden, hidden) + self.state.forward(read * state.clone())).tanh();
        state.clone() + keep * (fresh - state)
    }

    /// All states of a sequence, `[B, N, E] -> [B, N, H]`, from either end; padding does not change the state.
    pub fn forward(&self, x: Tensor<3>, padding: Option<&Tensor<2, Bool>>, backwards: bool) -> Tensor<3> {
        let [batch, length, _] = x.dims();
        let mapped = self.input.forward(x);
        let mut state = Tensor::zeros([batch, self.hidden()], &mapped.device());
        let mut states = Vec::with_capacity(length);
        for step in 0..length {
            let place = if backwards { length - 1 - step } else { step };
            let next = self.step(mapped.clone().narrow(1, place, 1).squeeze_dim(1), state.clone());
            state = match padding {
                Some(padding) => {
                    let hidden = padding.clone().narrow(1, place, 1).expand([batch, self.hidden()]);
                    next.mask_where(hidden, state)
                }
                None => next,
            };
            states.push(state.clone().unsqueeze_dim(1));
        }
        if backwards {
            states.reverse();
        }
        Tensor::cat(states, 1)
    }
}

/// A linear map of orthogonal blocks.
fn orthogonal(hidden: usize, outputs: usize, device: &Device) -> Linear {
    let start = Initializer::Orthogonal { gain: 1.0 };
    Linear { weight: start.init([outputs, hidden], device), bias: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::{assert_close, random, stirred, values};
    use burn::tensor::TensorData;

    #[test]
    fn a_step_is_its_definition() {
        let unit = stirred(GatedUnit::new(3, 2, None, &cpu()));
        let (input, state) = (random([1, 3], 1), random([1, 2], 2));
        let out = values(&unit.step(unit.input.forward(input.clone()), state.clone()));
        let (x, h) = (values(&input), values(&state));
        let (w, b) = (values(&unit.input.weight.val()), values(&unit.input.bias.as_ref().unwrap().val()));
        let (gates, u) = (values(&unit.gates.weight.val()), values(&unit.state.weight.val()));
        let dot = |row: &[f32], with: &[f32]| row.iter().zip(with).map(|(a, b)| a * b).sum::<f32>();
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let gate = |row: usize| sigmoid(dot(&w[3 * row..][..3], &x) + b[row] + dot(&gates[2 * row..][..2], &h));
        let read = [gate(2) * h[0], gate(3) * h[1]];
        for i in 0..2 {
            let fresh = (dot(&w[3 * (4 + i)..][..3], &x) + b[4 + i] + dot(&u[2 * i..][..2], &read)).tanh();
            let expected = (1.0 - gate(i)) * h[i] + gate(i) * fresh;
            assert!((out[i] - expected).abs() < 1e-6, "{} {expected}", out[i]);
        }
    }

    #[test]
    fn padding_changes_nothing_from_either_end() {
        let unit = stirred(GatedUnit::new(3, 4, None, &cpu()));
        let long = random([1, 5, 3], 1);
        let hidden = TensorData::new(vec![false, false, false, true, true], [1, 5]);
        let padding = Tensor::<2, Bool>::from_data(hidden, &cpu());
        for backwards in [false, true] {
            let alone = unit.forward(long.clone().narrow(1, 0, 3), None, backwards);
            let padded = unit.forward(long.clone(), Some(&padding), backwards);
            assert_close(&padded.narrow(1, 0, 3), &alone, 0.0);
        }
    }
}
