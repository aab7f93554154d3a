//! A linear map of the last axis, with PyTorch's weight layout `[out, in]`.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};

use crate::cost::{Costed, Ledger, Work, size};
use crate::function;

/// `y = x W^T + b`
#[derive(Module, Debug)]
pub struct Linear {
    /// `[out, in]`
    pub weight: Param<Tensor<2>>,
    /// `[out]`
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// Initialised as in PyTorch: uniform in `±1/sqrt(in)`.
    pub fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        let bias = uniform().init_with([outputs], Some(inputs), None, device);
        Self { bias: Some(bias), ..Self::unbiased(inputs, outputs, device) }
    }

    /// [`new`](Self::new) without a bias.
    pub fn unbiased(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self { weight: uniform().init_with([outputs, inputs], Some(inputs), None, device), bias: None }
    }

    /// Initialised as in ViT: weight normal with deviation 0.02, bias zero.
    pub fn normal(inputs: usize, outputs: usize, device: &Device) -> Self {
        let normal = Initializer::Normal { mean: 0.0, std: 0.02 };
        let bias = Initializer::Zeros.init([outputs], device);
        Self { weight: normal.init([outputs, inputs], device), bias: Some(bias) }
    }

    /// Initialised with zeros: a residual branch that ends with it has no effect at first.
    pub fn zeros(inputs: usize, outputs: usize, device: &Device) -> Self {
        let bias = Initializer::Zeros.init([outputs], device);
        Self { weight: Initializer::Zeros.init([outputs, inputs], device), bias: Some(bias) }
    }

    /// Initialised as in the Transformer: weight uniform in `±sqrt(6 / (in + out))`, bias zero.
    pub fn xavier(inputs: usize, outputs: usize, device: &Device) -> Self {
        let uniform = Initializer::XavierUniform { gain: 1.0 };
        let bias = Initializer::Zeros.init([outputs], device);
        Self { weight: uniform.init_with([outputs, inputs], Some(inputs), Some(outputs), device), bias: Some(bias) }
    }

    /// `[.., in] -> [.., out]`
    ///
    /// # Panics
    /// When the last axis does not have the input width.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        function::linear(x, self.weight.val(), self.bias.as_ref().map(Param::val))
    }

    /// The product without the bias, for callers that fuse the bias with what follows.
    ///
    /// # Panics
    /// When the last axis does not have the input width.
    pub fn product<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        function::linear(x, self.weight.val(), None)
    }

    /// Adds the cost of this map as the last layer of a classifier; returns the output's shape.
    pub fn cost_as_head(&self, ledger: &mut Ledger) -> Vec<usize> {
        let [outputs, inputs] = self.weight.lazy_shape().dims();
        let work = Work::Head { macs: (inputs * outputs) as u64, outputs: outputs as u64 };
        ledger.line(size(&self.weight) + self.bias.as_ref().map_or(0, size), work, outputs);
        vec![outputs]
    }
}

fn uniform() -> Initializer {
    Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false }
}

impl Costed for Linear {
    fn cost(&self, mut shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [outputs, inputs] = self.weight.lazy_shape().dims();
        let last = shape.len() - 1;
        let positions = shape[..last].iter().product::<usize>();
        shape[last] = outputs;
        let work = Work::Linear {
            positions: positions as u64,
            macs: (inputs * outputs) as u64,
            outputs: outputs as u64,
            bias: self.bias.is_some(),
        };
        ledger.line(size(&self.weight) + self.bias.as_ref().map_or(0, size), work, positions * outputs);
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{assert_close, random, values};

    #[test]
    fn a_weight_has_a_row_for_each_output() {
        let layer = Linear::new(3, 5, &device::cpu());
        let x = random([2, 4, 3], 1);
        let out = layer.forward(x.clone());
        let one = (x.slice([1..2, 2..3]).reshape([3]) * layer.weight.val().slice_dim(0, 4..5).reshape([3])).sum()
            + layer.bias.as_ref().unwrap().val().slice_dim(0, 4..5);
        assert_close(&out.slice([1..2, 2..3, 4..5]).reshape([1]), &one, 1e-6);
    }

    #[test]
    fn a_small_start_has_little_spread_and_no_bias() {
        let layer = Linear::normal(64, 64, &device::cpu());
        let weight = values(&layer.weight.val());
        let spread = (weight.iter().map(|w| w * w).sum::<f32>() / weight.len() as f32).sqrt();
        assert!((0.018..0.022).contains(&spread), "{spread}");
        assert!(values(&layer.bias.unwrap().val()).iter().all(|b| *b == 0.0));
    }

    #[test]
    #[should_panic(expected = "linear: input has width 4, weight has width 3")]
    fn an_input_of_another_width_is_refused() {
        Linear::new(3, 5, &device::cpu()).forward(random([2, 4], 1));
    }

    #[test]
    fn costs_are_counted_from_shapes() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.part("fc", &Linear::new(3, 5, &device::cpu()), vec![7, 3]), [7, 5]);
        assert_eq!((ledger.parameters(), ledger.lines()[0].name.as_str()), (20, "fc"));
        assert_eq!(ledger.total(crate::cost::Convention::MultiplyAdds), 7 * 15);
        assert_eq!(ledger.total(crate::cost::Convention::San), 7 * 20);
    }
}
