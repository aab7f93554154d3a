//! Group normalisation: every picture by itself, some channels together.
//! Wu, He 2018, "Group Normalization", arXiv:1803.08494.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};

use crate::Error;
use crate::cost::{Costed, Ledger, Work, size};

/// Normalises groups of channels over their pixels, then scales and shifts every channel.
#[derive(Module, Debug)]
pub struct GroupNorm {
    /// `[C]`, initially ones.
    pub weight: Param<Tensor<1>>,
    /// `[C]`, initially zeros.
    pub bias: Param<Tensor<1>>,
    groups: usize,
}

/// Added to the variance, as in PyTorch.
const EPSILON: f64 = 1e-5;

impl GroupNorm {
    /// # Errors
    /// When the groups do not divide the channels.
    pub fn new(groups: usize, channels: usize, device: &Device) -> Result<Self, Error> {
        if groups == 0 || channels == 0 || !channels.is_multiple_of(groups) {
            return Err(Error::config("groups", format!("{groups} do not divide {channels} channels")));
        }
        let fill = |initializer: Initializer| initializer.init([channels], device);
        Ok(Self { weight: fill(Initializer::Ones), bias: fill(Initializer::Zeros), groups })
    }

    /// `[B, C, H, W] -> [B, C, H, W]`
    ///
    /// # Panics
    /// When the map has other channels.
    pub fn forward(&self, map: Tensor<4>) -> Tensor<4> {
        let ([batch, channels, height, width], weight) = (map.dims(), self.weight.val());
        let wanted = weight.dims()[0];
        assert!(channels == wanted, "group_norm: input has channels {channels}, weight has channels {wanted}");
        let grouped = map.reshape([batch, self.groups, channels / self.groups * height * width]);
        let centred = grouped.clone() - grouped.mean_dim(2);
        let variance = (centred.clone() * centred.clone()).mean_dim(2);
        let normal = (centred / variance.add_scalar(EPSILON).sqrt()).reshape([batch, channels, height, width]);
        let each = |parameter: Tensor<1>| parameter.reshape([1, channels, 1, 1]);
        normal * each(weight) + each(self.bias.val())
    }
}

impl Costed for GroupNorm {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let elements = shape.iter().product::<usize>();
        ledger.line(size(&self.weight) + size(&self.bias), Work::Norm { elements: elements as u64 }, elements);
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{random, values};

    #[test]
    fn every_group_has_mean_zero_and_variance_one() {
        let norm = GroupNorm::new(2, 6, &device::cpu()).unwrap();
        let out = values(&norm.forward(random([2, 6, 4, 5], 1).mul_scalar(3.0).add_scalar(2.0)));
        for group in out.chunks(3 * 20) {
            let mean = group.iter().sum::<f32>() / 60.0;
            let variance = group.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 60.0;
            assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-3, "{mean} {variance}");
        }
    }

    #[test]
    fn weight_and_bias_are_those_of_a_channel() {
        let mut norm = GroupNorm::new(1, 2, &device::cpu()).unwrap();
        let input = random([1, 2, 3, 3], 1);
        let plain = values(&norm.forward(input.clone()));
        norm.weight = Param::from_tensor(Tensor::from_data([1.0, 2.0], &device::cpu()));
        norm.bias = Param::from_tensor(Tensor::from_data([0.0, -1.0], &device::cpu()));
        for (index, (out, plain)) in values(&norm.forward(input)).iter().zip(plain).enumerate() {
            let expected = if index < 9 { plain } else { 2.0 * plain - 1.0 };
            assert!((out - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn groups_that_do_not_divide_the_channels_are_refused() {
        let error = GroupNorm::new(4, 6, &device::cpu()).unwrap_err().to_string();
        assert_eq!(error, "`groups`: 4 do not divide 6 channels");
    }
}
