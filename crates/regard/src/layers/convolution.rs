//! Parts of convolutional networks beside Burn's: convolutions that keep a size, convolution with norm, global average.

use burn::module::{Initializer, Module};
use burn::nn::conv::{Conv2d, Conv2dConfig, Conv3d, Conv3dConfig};
use burn::nn::pool::MaxPool2d;
use burn::nn::{PaddingConfig2d, PaddingConfig3d};
use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Device, Tensor};
use regard_kernels::pool::BlockMax;

use crate::batch_norm::BatchNorm;
use crate::convolution::{After, Convolve};
use crate::convolution3d::ClipPool;
use crate::cost::{Costed, Ledger, Work};
use crate::fused::{self, Kernel, Saved};

/// A `kernel` x `kernel` convolution without bias, padded by `kernel / 2`: at stride 1 it keeps a map's size.
///
/// Initialised normal with deviation `sqrt(2 / fan_out)`, as in residual networks.
pub fn square(channels: [usize; 2], kernel: usize) -> Conv2dConfig {
    let side = kernel / 2;
    Conv2dConfig::new(channels, [kernel, kernel])
        .with_padding(PaddingConfig2d::Explicit(side, side, side, side))
        .with_bias(false)
        .with_initializer(Initializer::KaimingNormal { gain: 2f64.sqrt(), fan_out_only: true })
}

/// The same for clips: frames, rows and columns.
pub fn clip_convolution(channels: [usize; 2], kernel: [usize; 3], stride: [usize; 3], device: &Device) -> Conv3d {
    let [frames, rows, columns] = kernel.map(|side| side / 2);
    Conv3dConfig::new(channels, kernel)
        .with_stride(stride)
        .with_padding(PaddingConfig3d::Explicit(frames, rows, columns))
        .with_bias(false)
        .with_initializer(Initializer::KaimingNormal { gain: 2f64.sqrt(), fan_out_only: true })
        .init(device)
}

/// A square convolution with a stride and a bias, which is initially zero.
pub fn biased(channels: [usize; 2], kernel: usize, stride: usize, initializer: Initializer, device: &Device) -> Conv2d {
    let config = square(channels, kernel).with_stride([stride, stride]).with_initializer(initializer);
    Conv2d { bias: Some(Initializer::Zeros.init([channels[1]], device)), ..config.init(device) }
}

/// A convolution and the norm after it.
#[derive(Module, Debug)]
pub struct ConvNorm {
    pub conv: Conv2d,
    pub bn: BatchNorm,
}

impl ConvNorm {
    /// `[B, in, H, W] -> [B, out, H', W']`
    pub fn forward(&self, map: Tensor<4>) -> Tensor<4> {
        self.conv.convolve_then(map, After::norm(&self.bn))
    }
}

impl Costed for ConvNorm {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = ledger.part("conv", &self.conv, shape);
        ledger.part("bn", &self.bn, shape)
    }
}

/// The largest value of every `block x block` pixels: `[B, C, H, W] -> [B, C, H/block, W/block]`.
///
/// # Panics
/// When the map is smaller than a block.
pub fn block_max(map: Tensor<4>, block: usize) -> Tensor<4> {
    let [batch, channels, height, width] = map.dims();
    if !fused::runs_on(&map) {
        return max_pool2d(map, MaxPoolOptions::new([block, block]).with_stride([block, block]));
    }
    let kernel = BlockMax { height, width, block };
    let [rows, columns] = kernel.output_size();
    fused::apply(kernel, [map.into_dispatch()], [batch, channels, rows, columns])
}

/// What a pool gives: `[B, C, H, W] -> [B, C, H', W']`. In inference on the CPU it is that of a clip of one frame, which needs no
/// indices of the largest values.
///
/// # Panics
/// When no window fits.
pub fn max_pool(pool: &MaxPool2d, map: Tensor<4>) -> Tensor<4> {
    let [batch, channels, height, width] = map.dims();
    let padding = match pool.padding {
        PaddingConfig2d::Explicit(top, left, bottom, right) if (top, left) == (bottom, right) => Some([top, left]),
        PaddingConfig2d::Valid => Some([0, 0]),
        _ => None,
    };
    let plain = pool.dilation == [1, 1] && !pool.ceil_mode && !map.device().is_autodiff() && fused::runs_on(&map);
    let Some([down, right]) = padding.filter(|_| plain) else {
        return pool.forward(map);
    };
    let ([kh, kw], [sh, sw]) = (pool.kernel_size, pool.stride);
    let clips = ClipPool { kernel: [1, kh, kw], stride: [1, sh, sw], padding: [0, down, right] };
    clips.max(map.reshape([batch, channels, 1, height, width])).squeeze_dim(2)
}

impl Kernel<1> for BlockMax {
    fn forward(&self, [x]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (BlockMax::forward(self, x), Vec::new())
    }
    fn backward(&self, [x]: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [BlockMax::backward(self, x, grad)]
    }
}

/// The mean of every channel.
#[derive(Clone, Copy, Debug)]
pub struct GlobalAverage;

impl GlobalAverage {
    /// `[B, C, H, W]` or `[B, C, T, H, W]` to `[B, C]`
    pub fn forward<const D: usize>(self, map: Tensor<D>) -> Tensor<2> {
        map.flatten::<3>(2, D - 1).mean_dim(2).squeeze_dim(2)
    }
}

impl Costed for GlobalAverage {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let (channels, window) = (shape[0], shape[1..].iter().product::<usize>() as u64);
        ledger.line(0, Work::Pool { inputs: channels as u64 * window, outputs: channels as u64, window }, channels);
        vec![channels]
    }
}

impl Costed for MaxPool2d {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let padding = match self.padding {
            PaddingConfig2d::Valid => [0, 0],
            PaddingConfig2d::Explicit(top, left, bottom, right) => [top + bottom, left + right],
            PaddingConfig2d::Same => panic!("max pool: costs need an explicit padding"),
        };
        let size = |axis: usize| (shape[axis + 1] + padding[axis] - self.kernel_size[axis]) / self.stride[axis] + 1;
        let out = vec![shape[0], size(0), size(1)];
        let outputs = out.iter().product::<usize>();
        let work = Work::Pool {
            inputs: shape.iter().product::<usize>() as u64,
            outputs: outputs as u64,
            window: self.kernel_size.iter().product::<usize>() as u64,
        };
        ledger.line(0, work, outputs);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{assert_close, random, random_on};
    use burn::nn::pool::MaxPool2dConfig;

    #[test]
    fn the_largest_values_are_burns_in_inference_and_in_training() {
        for (padding, stride) in [(1, 2), (0, 1), (1, 1)] {
            let padding = PaddingConfig2d::Explicit(padding, padding, padding, padding);
            let pool = MaxPool2dConfig::new([3, 3]).with_strides([stride, stride]).with_padding(padding).init();
            for device in [device::cpu(), device::cpu().autodiff()] {
                let map = random_on([2, 3, 7, 10], 1, &device);
                assert_close(&max_pool(&pool, map.clone()), &pool.forward(map), 0.0);
            }
        }
    }

    #[test]
    fn a_square_convolution_keeps_the_size_of_a_map() {
        for kernel in [1, 3, 5, 7] {
            let convolution = square([2, 4], kernel).init(&device::cpu());
            assert_eq!(convolution.forward(random([1, 2, 6, 9], 1)).dims(), [1, 4, 6, 9], "{kernel}");
        }
    }

    #[test]
    fn the_largest_of_a_block_is_burns_max_pool_and_so_is_its_gradient() {
        let device = device::cpu().autodiff();
        for (shape, block) in [([2, 3, 6, 8], 2), ([1, 2, 7, 5], 2), ([2, 1, 9, 9], 3)] {
            let run = |pool: &dyn Fn(Tensor<4>) -> Tensor<4>| {
                let map = random_on(shape, 1, &device).require_grad();
                let out = pool(map.clone());
                let grads = (out.clone() * random_on(out.dims(), 2, &device)).sum().backward();
                (out.inner(), map.grad(&grads).unwrap())
            };
            let ours = run(&|map| block_max(map, block));
            let burns = run(&|map| max_pool2d(map, MaxPoolOptions::new([block; 2]).with_stride([block; 2])));
            assert_close(&ours.0, &burns.0, 0.0);
            assert_close(&ours.1, &burns.1, 0.0);
        }
    }

    #[test]
    fn the_global_average_is_the_mean_of_each_channel() {
        let map = random([2, 3, 4, 5], 1);
        let expected = map.clone().slice([1..2, 2..3]).mean().reshape([1, 1]);
        assert_close(&GlobalAverage.forward(map).slice([1..2, 2..3]), &expected, 1e-6);
    }

    #[test]
    fn costs_have_the_shapes_of_the_pass() {
        let pool =
            MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
        let convolution = square([2, 4], 3).with_stride([2, 2]).init(&device::cpu());
        for [rows, columns] in [[1, 1], [7, 8], [8, 7], [2, 9]] {
            let image = random([1, 2, rows, columns], 1);
            let shape = vec![2, rows, columns];
            let mut ledger = Ledger::default();
            let pooled = pool.init().forward(image.clone()).dims();
            assert_eq!(ledger.part("pool", &pool.init(), shape.clone()), pooled[1..], "{rows} x {columns}");
            let convolved = convolution.forward(image).dims();
            assert_eq!(ledger.part("conv", &convolution, shape), convolved[1..], "{rows} x {columns}");
        }
    }
}
