//! 2D convolution: a fused kernel on the CPU, Burn's elsewhere. In inference, norm, shortcut and ReLU after it are part of the
//! kernel ([`Convolve::convolve_then`]).

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use regard_kernels::batch_norm::Activation;
use regard_kernels::convolution::Convolution;
use regard_kernels::epilogue::Epilogue;
use regard_kernels::linear::NeedsGrad;

use crate::batch_norm::ChannelNorm;
use crate::fused::{self, FloatSlice, Kernel, Saved};

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
    let ([batch, channels, ..], [outputs, inputs, ..]) = (image.dims(), weight.dims());
    assert!(channels == inputs, "convolution: weight has channels {inputs}, image has channels {channels}");
    if let Some(bias) = &bias {
        let len = bias.dims()[0];
        assert!(len == outputs, "convolution: bias has channels {len}, weight has {outputs} outputs");
    }
    let Some(case) = supported(&image, &weight, stride, padding) else {
        return conv2d(image, weight, bias, ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1));
    };
    let [rows, columns] = case.output_size();
    let shape = [batch, outputs, rows, columns];
    let (image, weight) = (image.into_dispatch(), weight.into_dispatch());
    match bias {
        Some(bias) => fused::apply(case, [image, weight, bias.into_dispatch()], shape),
        None => fused::apply(case, [image, weight], shape),
    }
}

/// The case of the kernel, if it supports these.
fn supported(image: &Tensor<4>, weight: &Tensor<4>, stride: usize, padding: usize) -> Option<Convolution> {
    let ([batch, channels, height, width], [outputs, inputs, kernel, columns]) = (image.dims(), weight.dims());
    let fits = kernel == columns && padding < kernel && height.min(width) + 2 * padding >= kernel;
    let runs = fits && channels == inputs && batch > 0 && fused::runs_on(image);
    runs.then_some(Convolution { inputs, outputs, image: [height, width], kernel, stride, padding })
}

/// What follows a convolution: a norm, another map that is added, ReLU, in this order.
#[derive(Clone, Debug, Default)]
pub struct After<'a> {
    pub norm: Option<&'a dyn ChannelNorm>,
    pub add: Option<Tensor<4>>,
    pub relu: bool,
}

impl<'a> After<'a> {
    /// ReLU.
    #[must_use]
    pub fn relu() -> Self {
        Self { relu: true, ..Self::default() }
    }

    /// A norm.
    pub fn norm(norm: &'a dyn ChannelNorm) -> Self {
        Self { norm: Some(norm), add: None, relu: false }
    }

    /// A norm, then ReLU.
    pub fn norm_relu(norm: &'a dyn ChannelNorm) -> Self {
        Self { relu: true, ..Self::norm(norm) }
    }

    /// With another map that is added.
    #[must_use]
    pub fn plus(self, map: Tensor<4>) -> Self {
        Self { add: Some(map), ..self }
    }

    /// One operation after the other.
    fn apply(self, map: Tensor<4>) -> Tensor<4> {
        let Self { norm, add, relu: rectifies } = self;
        let map = match (norm, &add) {
            (Some(norm), None) if rectifies => return norm.normalise(map, Activation::Relu),
            (Some(norm), _) => norm.normalise(map, Activation::Identity),
            (None, _) => map,
        };
        let map = match add {
            Some(other) => map + other,
            None => map,
        };
        if rectifies { relu(map) } else { map }
    }
}

/// Runs a Burn convolution with the fused kernel where that supports it.
pub trait Convolve {
    /// `[B, C, H, W] -> [B, O, H', W']`
    fn convolve(&self, image: Tensor<4>) -> Tensor<4>;

    /// The same, and what follows it. In inference on the CPU the kernel writes all of it at once: the outputs go through memory
    /// once, not once for each of the operations.
    fn convolve_then(&self, image: Tensor<4>, after: After<'_>) -> Tensor<4>;
}

impl Convolve for Conv2d {
    fn convolve(&self, image: Tensor<4>) -> Tensor<4> {
        match fused_padding(self) {
            Some(padding) => {
                let bias = self.bias.as_ref().map(Param::val);
                convolution(image, self.weight.val(), bias, self.stride[0], padding)
            }
            None => self.forward(image),
        }
    }

    fn convolve_then(&self, image: Tensor<4>, after: After<'_>) -> Tensor<4> {
        match inferred(self, &image, &after) {
            Some(map) => map,
            None => after.apply(self.convolve(image)),
        }
    }
}

/// The padding of a convolution that the kernel supports.
fn fused_padding(layer: &Conv2d) -> Option<usize> {
    let padding = match layer.padding {
        PaddingConfig2d::Valid => Some(0),
        PaddingConfig2d::Explicit(top, left, bottom, right) => {
            [left, bottom, right].iter().all(|side| *side == top).then_some(top)
        }
        PaddingConfig2d::Same => None,
    };
    let square = layer.stride[0] == layer.stride[1];
    padding.filter(|_| square && layer.groups == 1 && layer.dilation == [1, 1])
}

/// Convolution and what follows it as one kernel; none where a gradient is recorded or the kernel does not support it.
fn inferred(layer: &Conv2d, image: &Tensor<4>, after: &After<'_>) -> Option<Tensor<4>> {
    let (weight, stride, padding) = (layer.weight.val(), layer.stride[0], fused_padding(layer)?);
    // a captured pass records one node after the other: a plan joins them itself
    let records =
        |tensor: &Tensor<4>| tensor.device().is_autodiff() || !fused::runs_on(tensor) || fused::is_captured(tensor);
    if [Some(image), Some(&weight), after.add.as_ref()].into_iter().flatten().any(records) {
        return None;
    }
    let case = supported(image, &weight, stride, padding)?;
    let [rows, columns] = case.output_size();
    let shape = [image.dims()[0], case.outputs, rows, columns];
    if after.add.as_ref().is_some_and(|map| map.dims() != shape) {
        return None;
    }
    let [scale, mut shift] = match after.norm {
        Some(norm) => norm.scale_and_shift()?,
        None => [Vec::new(), Vec::new()],
    };
    if let Some(bias) = &layer.bias {
        let bias: Vec<f32> = bias.val().into_data().iter().collect();
        if shift.is_empty() {
            shift = bias;
        } else {
            shift.iter_mut().zip(&scale).zip(bias).for_each(|((shift, scale), bias)| *shift += scale * bias);
        }
    }
    let [image, weight] = [image.clone(), weight].map(FloatSlice::of);
    let shortcut = after.add.clone().map(FloatSlice::of);
    let activation = if after.relu { Activation::Relu } else { Activation::Identity };
    let after = Epilogue { scale: &scale, shift: &shift, shortcut: shortcut.as_deref().unwrap_or(&[]), activation };
    Some(fused::constant(case.infer(&image, &weight, after), shape))
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
    fn infer(&self, [x, weight]: [&[f32]; 2]) -> Vec<f32> {
        Convolution::infer(self, x, weight, Epilogue::IDENTITY)
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
    fn infer(&self, [x, weight, bias]: [&[f32]; 3]) -> Vec<f32> {
        Convolution::infer(self, x, weight, Epilogue::bias(bias))
    }
    fn backward(&self, [x, weight, _]: [&[f32]; 3], saved: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        let wanted = NeedsGrad { input: saved.needs_grad[0], parameters: saved.needs_grad[1] || saved.needs_grad[2] };
        Convolution::backward(self, x, weight, grad, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_norm::{Norm, NormKind};
    use crate::device;
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random, random_on, values};
    use burn::nn::conv::Conv2dConfig;
    use burn::tensor::Device;

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

    /// A layer with a bias or without, of 20 outputs for 18 inputs.
    fn layer([kernel, stride, dilation]: [usize; 3], bias: bool, device: &Device) -> Conv2d {
        let side = dilation * (kernel / 2);
        let config = Conv2dConfig::new([18, 20], [kernel, kernel]).with_stride([stride, stride]).with_bias(bias);
        let padding = PaddingConfig2d::Explicit(side, side, side, side);
        config.with_dilation([dilation, dilation]).with_padding(padding).init(device)
    }

    /// Norms that have seen something.
    fn norms(device: &Device) -> [Norm; 2] {
        [NormKind::Batch, NormKind::FROZEN].map(|kind| {
            let norm = kind.init(20, device);
            let [mean, variance] = norm.running();
            mean.set(random([20], 5));
            variance.set(random::<1>([20], 6).abs().add_scalar(0.5));
            match norm {
                Norm::Batch(mut norm) => {
                    norm.gamma = norm.gamma.map(|_| random_on([20], 7, device));
                    norm.beta = norm.beta.map(|_| random_on([20], 8, device));
                    Norm::Batch(norm)
                }
                Norm::Frozen(norm) => {
                    norm.weight.set(random([20], 7));
                    norm.bias.set(random([20], 8));
                    Norm::Frozen(norm)
                }
            }
        })
    }

    #[test]
    fn folded_equals_one_operation_after_the_other() {
        let device = device::cpu();
        // a pixel, Winograd's products, windows, a map that is too small for them, and what the kernel does not support
        for (geometry, side) in [([1, 1, 1], 12), ([3, 1, 1], 21), ([3, 2, 1], 23), ([3, 1, 1], 5), ([3, 1, 2], 9)] {
            for bias in [true, false] {
                let (layer, image) = (layer(geometry, bias, &device), random([2, 18, side, side + 1], 1));
                let sums = layer.forward(image.clone());
                let [batch, frozen] = norms(&device);
                for (norm, plus, relu) in [
                    (None, false, true),
                    (None, true, false),
                    (Some(&batch), false, false),
                    (Some(&batch), true, true),
                    (Some(&frozen), false, true),
                    (Some(&frozen), true, true),
                ] {
                    let norm = norm.map(|norm| -> &dyn ChannelNorm { norm });
                    let after = After { norm, add: plus.then(|| random(sums.dims(), 9)), relu };
                    let expected = after.clone().apply(sums.clone());
                    let out = layer.convolve_then(image.clone(), after);
                    let largest = values(&expected).iter().fold(0.0f32, |a, x| a.max(x.abs()));
                    assert_close(&out, &expected, 1e-5 * largest.max(1.0));
                }
            }
        }
    }

    #[test]
    fn where_gradients_are_recorded_nothing_is_folded() {
        let device = device::cpu().autodiff();
        let (layer, image) = (layer([3, 1, 1], true, &device), random_on([2, 18, 21, 22], 1, &device));
        for norm in norms(&device) {
            let add = random_on([2, 20, 21, 22], 9, &device).require_grad();
            let run = |norm: &Norm, folded: bool| {
                let after = After::norm_relu(norm).plus(add.clone());
                let out = if folded {
                    layer.convolve_then(image.clone(), after)
                } else {
                    after.apply(layer.convolve(image.clone()))
                };
                let grads = (out.clone() * random_on(out.dims(), 2, &device)).sum().backward();
                [values(&out), values(&layer.weight.grad(&grads).unwrap()), values(&add.grad(&grads).unwrap())]
            };
            assert_eq!(run(&norm, true), run(&norm, false));
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
