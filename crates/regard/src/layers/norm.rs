//! Layer normalisation with its parameters, fused on the CPU.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::cost::{Costed, Ledger, Work, size};
use crate::function;

/// Normalises the last axis, then scales and shifts it.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// `[D]`, initially ones.
    pub weight: Param<Tensor<1>>,
    /// `[D]`, initially zeros.
    pub bias: Param<Tensor<1>>,
    /// Added to the variance: 1e-6 in timm, 1e-12 in Hugging Face.
    pub epsilon: f64,
}

impl LayerNorm {
    /// A norm over `width` channels with weight 1 and bias 0.
    pub fn new(width: usize, epsilon: f64, device: &Device) -> Self {
        let fill = |initializer: burn::module::Initializer| initializer.init([width], device);
        Self { weight: fill(burn::module::Initializer::Ones), bias: fill(burn::module::Initializer::Zeros), epsilon }
    }

    /// `[.., D] -> [.., D]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        function::layer_norm(x, self.weight.val(), self.bias.val(), self.epsilon)
    }
}

impl Costed for LayerNorm {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let elements = shape.iter().product::<usize>();
        ledger.line(size(&self.weight) + size(&self.bias), Work::Norm { elements: elements as u64 }, elements);
        shape
    }
}
