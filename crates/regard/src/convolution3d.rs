//! Convolution and pools of clips: fused kernels on the CPU, Burn elsewhere.

use burn::module::Param;
use burn::nn::PaddingConfig3d;
use burn::nn::conv::Conv3d;
use burn::tensor::Tensor;
use burn::tensor::module::{avg_pool2d, conv3d, max_pool2d};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions, MaxPoolOptions};
use regard_kernels::convolution3d::Convolution3d;
use regard_kernels::linear::NeedsGrad;
use regard_kernels::pool3d::{AveragePool3d, MaxPool3d};

use crate::cost::{Costed, Ledger, Work, size};
use crate::fused::{self, Kernel, Saved};

/// `[B, C, T, H, W], [O, C, kt, kh, kw], [O] -> [B, O, T', H', W']`, zero-padded on both sides of each axis.
///
/// # Panics
/// When the clip does not have the weight's input channels, or the bias not its output channels.
pub fn convolution3d(
    clip: Tensor<5>,
    weight: Tensor<5>,
    bias: Option<Tensor<1>>,
    stride: [usize; 3],
    padding: [usize; 3],
) -> Tensor<5> {
    let ([batch, channels, frames, height, width], [outputs, inputs, kt, kh, kw]) = (clip.dims(), weight.dims());
    assert!(channels == inputs, "convolution: weight has channels {inputs}, clip has channels {channels}");
    if let Some(bias) = &bias {
        let len = bias.dims()[0];
        assert!(len == outputs, "convolution: bias has channels {len}, weight has {outputs} outputs");
    }
    let (clip_size, kernel) = ([frames, height, width], [kt, kh, kw]);
    let fits = |axis: usize| padding[axis] < kernel[axis] && clip_size[axis] + 2 * padding[axis] >= kernel[axis];
    if !((0..3).all(fits) && batch > 0 && fused::runs_on(&clip)) {
        return conv3d(clip, weight, bias, ConvOptions::new(stride, padding, [1; 3], 1));
    }
    let case = Convolution3d { inputs, outputs, clip: clip_size, kernel, stride, padding };
    let [frames, rows, columns] = case.output_size();
    let shape = [batch, outputs, frames, rows, columns];
    let (clip, weight) = (clip.into_dispatch(), weight.into_dispatch());
    match bias {
        Some(bias) => fused::apply(case, [clip, weight, bias.into_dispatch()], shape),
        None => fused::apply(case, [clip, weight], shape),
    }
}

/// Runs a Burn convolution with the fused kernel where that supports it.
pub trait Convolve3d {
    /// `[B, C, T, H, W] -> [B, O, T', H', W']`
    fn convolve(&self, clip: Tensor<5>) -> Tensor<5>;
}

impl Convolve3d for Conv3d {
    fn convolve(&self, clip: Tensor<5>) -> Tensor<5> {
        match explicit(&self.padding).filter(|_| self.groups == 1 && self.dilation == [1; 3]) {
            Some(padding) => {
                let bias = self.bias.as_ref().map(Param::val);
                convolution3d(clip, self.weight.val(), bias, self.stride, padding)
            }
            None => self.forward(clip),
        }
    }
}

fn explicit(padding: &PaddingConfig3d) -> Option<[usize; 3]> {
    match *padding {
        PaddingConfig3d::Valid => Some([0; 3]),
        PaddingConfig3d::Explicit(frames, rows, columns) => Some([frames, rows, columns]),
        PaddingConfig3d::Same => None,
    }
}

impl Costed for Conv3d {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [outputs, inputs, kernel @ ..] = self.weight.lazy_shape().dims::<5>();
        assert!(self.groups == 1 && self.dilation == [1; 3], "convolution: costs are of one group without dilation");
        assert_eq!(shape[0], inputs, "convolution: input has channels {}, weight {inputs}", shape[0]);
        let padding = explicit(&self.padding).expect("costs need an explicit padding");
        let along = |axis: usize| (shape[axis + 1] + 2 * padding[axis] - kernel[axis]) / self.stride[axis] + 1;
        let out = vec![outputs, along(0), along(1), along(2)];
        let positions = out[1..].iter().product::<usize>();
        let work = Work::Linear {
            positions: positions as u64,
            macs: (inputs * outputs * kernel.iter().product::<usize>()) as u64,
            outputs: outputs as u64,
            bias: self.bias.is_some(),
        };
        let parameters = size(&self.weight) + self.bias.as_ref().map_or(0, size);
        ledger.line(parameters, work, outputs * positions);
        out
    }
}

/// Frames, rows and columns of windows, and how far they are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClipPool {
    pub kernel: [usize; 3],
    pub stride: [usize; 3],
    /// What lies outside on both sides and takes no part; means have none.
    pub padding: [usize; 3],
}

impl ClipPool {
    /// The largest value of every window: `[B, C, T, H, W] -> [B, C, T', H', W']`.
    ///
    /// # Panics
    /// When no window fits.
    pub fn max(self, clip: Tensor<5>) -> Tensor<5> {
        let Self { kernel, stride, padding } = self;
        let shape = clip.dims();
        let case = MaxPool3d { clip: [shape[2], shape[3], shape[4]], kernel, stride, padding };
        let [frames, rows, columns] = case.output_size();
        if fused::runs_on(&clip) {
            return fused::apply(case, [clip.into_dispatch()], [shape[0], shape[1], frames, rows, columns]);
        }
        self.plain_max(clip, case.output_size())
    }

    /// First in space, then in time.
    fn plain_max(self, clip: Tensor<5>, [frames, rows, columns]: [usize; 3]) -> Tensor<5> {
        let (Self { kernel, stride, padding }, shape) = (self, clip.dims());
        let pool = |x: Tensor<4>, [a, b]: [usize; 2]| {
            let options = MaxPoolOptions::new([kernel[a], kernel[b]]);
            max_pool2d(x, options.with_stride([stride[a], stride[b]]).with_padding([padding[a], padding[b]]))
        };
        let space = pool(clip.reshape([shape[0] * shape[1], shape[2], shape[3], shape[4]]), [1, 2]);
        let lines = space.reshape([shape[0] * shape[1], 1, shape[2], rows * columns]);
        let options = MaxPoolOptions::new([kernel[0], 1]).with_stride([stride[0], 1]).with_padding([padding[0], 0]);
        max_pool2d(lines, options).reshape([shape[0], shape[1], frames, rows, columns])
    }

    /// The mean of every window: `[B, C, T, H, W] -> [B, C, T', H', W']`.
    ///
    /// # Panics
    /// When no window fits, or there is padding.
    pub fn average(self, clip: Tensor<5>) -> Tensor<5> {
        let Self { kernel, stride, padding } = self;
        assert!(padding == [0; 3], "average pool: without padding, got {padding:?}");
        let shape = clip.dims();
        let case = AveragePool3d { clip: [shape[2], shape[3], shape[4]], kernel, stride };
        let [frames, rows, columns] = case.output_size();
        if fused::runs_on(&clip) {
            return fused::apply(case, [clip.into_dispatch()], [shape[0], shape[1], frames, rows, columns]);
        }
        self.plain_average(clip, case.output_size())
    }

    /// First in space, then in time.
    fn plain_average(self, clip: Tensor<5>, [frames, rows, columns]: [usize; 3]) -> Tensor<5> {
        let (Self { kernel, stride, .. }, shape) = (self, clip.dims());
        let pool = |x: Tensor<4>, kernel: [usize; 2], stride: [usize; 2]| {
            avg_pool2d(x, AvgPoolOptions::new(kernel).with_stride(stride))
        };
        let planes = clip.reshape([shape[0] * shape[1], shape[2], shape[3], shape[4]]);
        let space = pool(planes, [kernel[1], kernel[2]], [stride[1], stride[2]]);
        let lines = space.reshape([shape[0] * shape[1], 1, shape[2], rows * columns]);
        pool(lines, [kernel[0], 1], [stride[0], 1]).reshape([shape[0], shape[1], frames, rows, columns])
    }
}

impl Costed for ClipPool {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let Self { kernel, stride, padding } = *self;
        let [channels, frames, rows, columns] = shape[..] else { panic!("pool: {shape:?} is not [C, T, H, W]") };
        let [frames, rows, columns] =
            MaxPool3d { clip: [frames, rows, columns], kernel, stride, padding }.output_size();
        let outputs = channels * frames * rows * columns;
        let work = Work::Pool {
            inputs: shape.iter().product::<usize>() as u64,
            outputs: outputs as u64,
            window: kernel.iter().product::<usize>() as u64,
        };
        ledger.line(0, work, outputs);
        vec![channels, frames, rows, columns]
    }
}

impl Kernel<2> for Convolution3d {
    fn multiply_adds(&self, [x, weight, ..]: [usize; 2]) -> Option<u64> {
        let batch = x / (self.inputs * self.clip.iter().product::<usize>());
        Some((batch * self.output_size().iter().product::<usize>() * weight) as u64)
    }
    fn forward(&self, [x, weight]: [&[f32]; 2]) -> (Vec<f32>, Vec<f32>) {
        (Convolution3d::forward(self, x, weight, &[]), Vec::new())
    }
    fn backward(&self, [x, weight]: [&[f32]; 2], saved: Saved, grad: &[f32]) -> [Vec<f32>; 2] {
        let wanted = NeedsGrad { input: saved.needs_grad[0], parameters: saved.needs_grad[1] };
        let [input, weight, _] = Convolution3d::backward(self, x, weight, grad, wanted);
        [input, weight]
    }
}

impl Kernel<3> for Convolution3d {
    fn multiply_adds(&self, [x, weight, ..]: [usize; 3]) -> Option<u64> {
        let batch = x / (self.inputs * self.clip.iter().product::<usize>());
        Some((batch * self.output_size().iter().product::<usize>() * weight) as u64)
    }
    fn forward(&self, [x, weight, bias]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        (Convolution3d::forward(self, x, weight, bias), Vec::new())
    }
    fn backward(&self, [x, weight, _]: [&[f32]; 3], saved: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        let wanted = NeedsGrad { input: saved.needs_grad[0], parameters: saved.needs_grad[1] || saved.needs_grad[2] };
        Convolution3d::backward(self, x, weight, grad, wanted)
    }
}

impl Kernel<1> for MaxPool3d {
    fn forward(&self, [x]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (MaxPool3d::forward(self, x), Vec::new())
    }
    fn backward(&self, [x]: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [MaxPool3d::backward(self, x, grad)]
    }
}

impl Kernel<1> for AveragePool3d {
    fn forward(&self, [x]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (AveragePool3d::forward(self, x), Vec::new())
    }
    fn backward(&self, [x]: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [AveragePool3d::backward(self, x, grad)]
    }
}

#[cfg(test)]
mod tests;
