//! 2D convolution: a fused kernel on the CPU, Burn's elsewhere.

use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use regard_kernels::convolution::Convolution;
use regard_kernels::linear::NeedsGrad;

use crate::fused::{self, Kernel, Saved};

/// `[B, C, H, W], [O, C, k, k], [O] -> [B, O, H', W']`, zero-padded on every side.
///
/// # Panics
/// When the image does not have the weight's input channels, or the bias not its output channels.
pub fn convolution(
    image: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    stride: usize,
    padding: usize,
) -> Tensor<4> {
    let ([batch, channels, height, width], [outputs, inputs, kernel, columns]) = (image.dims(), weight.dims());
    assert!(channels == inputs, "convolution: weight has channels {inputs}, image has channels {channels}");
    if let Some(bias) = &bias {
        let len = bias.dims()[0];
        assert!(len == outputs, "convolution: bias has channels {len}, weight has {outputs} outputs");
    }
    let fits = kernel == columns && padding < kernel && height.min(width) + 2 * padding >= kernel;
    if !(fits && batch > 0 && fused::runs_on(&image)) {
        return conv2d(image, weight, bias, ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1));
    }
    let case = Convolution { inputs, outputs, image: [height, width], kernel, stride, padding };
    let [rows, columns] = case.output_size();
    let shape = [batch, outputs, rows, columns];
    let (image, weight) = (image.into_dispatch(), weight.into_dispatch());
    match bias {
        Some(bias) => fused::apply(case, [image, weight, bias.into_dispatch()], shape),
        None => fused::apply(case, [image, weight], shape),
    }
}

/// Runs a Burn convolution with the fused kernel where that supports it.
pub trait Convolve {
    /// `[B, C, H, W] -> [B, O, H', W']`
    fn convolve(&self, image: Tensor<4>) -> Tensor<4>;
}

impl Convolve for Conv2d {
    fn convolve(&self, image: Tensor<4>) -> Tensor<4> {
        let padding = match self.padding {
            PaddingConfig2d::Valid => Some(0),
            PaddingConfig2d::Explicit(top, left, bottom, right) => {
                [left, bottom, right].iter().all(|side| *side == top).then_some(top)
            }
            PaddingConfig2d::Same => None,
        };
        let square = self.stride[0] == self.stride[1];
        match padding.filter(|_| square && self.groups == 1 && self.dilation == [1, 1]) {
            Some(padding) => {
                let bias = self.bias.as_ref().map(burn::module::Param::val);
                convolution(image, self.weight.val(), bias, self.stride[0], padding)
            }
            None => self.forward(image),
        }
    }
}

impl Kernel<2> for Convolution {
    fn multiply_adds(&self, [x, weight, ..]: [usize; 2]) -> Option<u64> {
        let batch = x / (self.inputs * self.image[0] * self.image[1]);
        let [rows, columns] = self.output_size();
        Some((batch * rows * columns * weight) as u64)
    }
    fn forward(&self, [x, weight]: [&[f32]; 2]) -> (Vec<f32>, Vec<f32>) {
        (Convolution::forward(self, x, weight, &[]), Vec::new())
    }
    fn backward(&self, [x, weight]: [&[f32]; 2], saved: Saved, grad: &[f32]) -> [Vec<f32>; 2] {
        let wanted = NeedsGrad { input: saved.needs_grad[0], parameters: saved.needs_grad[1] };
        let [input, weight, _] = Convolution::backward(self, x, weight, grad, wanted);
        [input, weight]
    }
}

impl Kernel<3> for Convolution {
    fn multiply_adds(&self, [x, weight, ..]: [usize; 3]) -> Option<u64> {
        let batch = x / (self.inputs * self.image[0] * self.image[1]);
        let [rows, columns] = self.output_size();
        Some((batch * rows * columns * weight) as u64)
    }
    fn forward(&self, [x, weight, bias]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        (Convolution::forward(self, x, weight, bias), Vec::new())
    }
    fn backward(&self, [x, weight, _]: [&[f32]; 3], saved: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        let wanted = NeedsGrad { input: saved.needs_grad[0], parameters: saved.needs_grad[1] || saved.needs_grad[2] };
        Convolution::backward(self, x, weight, grad, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random};
    use burn::nn::conv::Conv2dConfig;

    #[test]
    fn it_equals_burns_own() {
        for (kernel, stride, padding) in [(1, 1, 0), (3, 1, 1), (3, 2, 1), (1, 2, 0), (4, 4, 0), (7, 2, 3)] {
            let layer = Conv2dConfig::new([3, 20], [kernel, kernel])
                .with_stride([stride, stride])
                .with_padding(PaddingConfig2d::Explicit(padding, padding, padding, padding))
                .init(&device::cpu());
            let image = random([2, 3, 8, 11], 1);
            assert_close(&layer.convolve(image.clone()), &layer.forward(image), 1e-5);
        }
    }

    #[test]
    fn what_is_not_fused_is_burns() {
        let image = random([1, 4, 6, 6], 1);
        let plain = Conv2dConfig::new([4, 4], [3, 3]);
        let configs = [
            plain.clone().with_groups(2),
            plain.clone().with_dilation([2, 2]),
            plain.clone().with_stride([1, 2]),
            plain.with_padding(PaddingConfig2d::Explicit(1, 0, 0, 1)),
        ];
        for config in configs {
            let layer = config.init(&device::cpu());
            assert_close(&layer.convolve(image.clone()), &layer.forward(image.clone()), 0.0);
        }
    }

    #[test]
    fn gradients_are_differences() {
        let inputs = [("image", noise(2 * 3 * 30, 1)), ("weight", noise(4 * 27, 2)), ("bias", noise(4, 3))];
        for count in [2, 3] {
            assert_gradients_are_differences(&inputs[..count], |p| {
                let (image, weight) = (p[0].clone().reshape([2, 3, 5, 6]), p[1].clone().reshape([4, 3, 3, 3]));
                convolution(image, weight, p.get(2).cloned(), 2, 1)
            });
        }
    }

    #[test]
    #[should_panic(expected = "convolution: weight has channels 5, image has channels 3")]
    fn a_weight_for_other_channels_is_refused() {
        convolution(random([1, 3, 4, 4], 1), random([2, 5, 3, 3], 2), None, 1, 1);
    }
}
