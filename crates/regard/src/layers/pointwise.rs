//! A 1x1 convolution with its parameters.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};

use crate::attention::project;
use crate::cost::{Costed, Ledger, Work, size};

/// The same linear map at every pixel.
#[derive(Module, Debug)]
pub struct Pointwise {
    /// `[out, in]`
    pub weight: Param<Tensor<2>>,
    /// `[out]`
    pub bias: Option<Param<Tensor<1>>>,
}

impl Pointwise {
    /// With a bias; both are initialised uniform in `±1/sqrt(in)`.
    pub fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        let bias = uniform().init_with([outputs], Some(inputs), None, device);
        Self { bias: Some(bias), ..Self::unbiased(inputs, outputs, device) }
    }

    /// Without a bias.
    pub fn unbiased(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self { weight: uniform().init_with([outputs, inputs], Some(inputs), None, device), bias: None }
    }

    /// `[B, in, H, W] -> [B, out, H, W]`
    ///
    /// # Panics
    /// When the map does not have the input channels.
    pub fn forward(&self, map: Tensor<4>) -> Tensor<4> {
        project(map, self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}

fn uniform() -> Initializer {
    Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false }
}

impl Costed for Pointwise {
    fn cost(&self, mut shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [outputs, inputs] = self.weight.lazy_shape().dims();
        assert_eq!(shape[0], inputs, "pointwise: input has channels {}, weight {inputs}", shape[0]);
        let positions = shape[1..].iter().product::<usize>();
        let work = Work::Linear {
            positions: positions as u64,
            macs: (inputs * outputs) as u64,
            outputs: outputs as u64,
            bias: self.bias.is_some(),
        };
        ledger.line(size(&self.weight) + self.bias.as_ref().map_or(0, size), work, outputs * positions);
        shape[0] = outputs;
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{random, values};

    #[test]
    fn it_starts_within_one_over_the_root_of_its_inputs() {
        let layer = Pointwise::new(16, 300, &device::cpu());
        let largest = values(&layer.weight.val()).iter().fold(0f32, |a, w| a.max(w.abs()));
        assert!((0.24..=0.25).contains(&largest), "{largest}");
        let largest = values(&layer.bias.as_ref().unwrap().val()).iter().fold(0f32, |a, w| a.max(w.abs()));
        assert!((0.24..=0.25).contains(&largest), "{largest}");
        assert_eq!(layer.forward(random([2, 16, 3, 4], 1)).dims(), [2, 300, 3, 4]);
    }
}
