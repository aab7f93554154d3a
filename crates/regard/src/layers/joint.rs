//! Several 1x1 convolutions of one map at once.
//!
//! The map is read once, and its gradient is one product instead of a sum of several.

use burn::module::Param;
use burn::tensor::Tensor;
use regard_kernels::channels::Channels;

use super::Pointwise;
use crate::attention::project;
use crate::fused::{self, Kernel, Saved};

/// The outputs of all convolutions: `[B, in, H, W] -> [B, out_i, H, W]`.
///
/// # Panics
/// When the map does not have the convolutions' input channels.
pub(super) fn joint<const N: usize>(map: Tensor<4>, convolutions: [&Pointwise; N]) -> [Tensor<4>; N] {
    let widths = convolutions.map(|convolution| convolution.weight.lazy_shape()[0]);
    let [batch, _, height, width] = map.dims();
    // concatenating the weights is worthwhile when they are smaller than the map
    let worthwhile = batch * height * width > widths.iter().sum();
    let biases: Option<Vec<Tensor<1>>> =
        convolutions.iter().map(|convolution| convolution.bias.as_ref().map(Param::val)).collect();
    let (true, Some(biases)) = (worthwhile && N > 1 && fused::runs_on(&map), biases) else {
        return convolutions.map(|convolution| convolution.forward(map.clone()));
    };
    let weights = convolutions.iter().map(|convolution| convolution.weight.val()).collect();
    let all = project(map, Tensor::cat(weights, 0), Some(Tensor::cat(biases, 0)));
    let mut first = 0;
    widths.map(|count| {
        let part = ChannelRange(Channels { whole: widths.iter().sum(), first, count, pixels: height * width });
        first += count;
        fused::apply(part, [all.clone().into_dispatch()], [batch, count, height, width])
    })
}

/// Selects some channels of a map.
#[derive(Clone, Debug)]
struct ChannelRange(Channels);

impl Kernel<1> for ChannelRange {
    fn forward(&self, [all]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (self.0.select(all), Vec::new())
    }

    fn backward(&self, _: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [self.0.place(grad)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{assert_close, random_on};

    /// Outputs and gradients of the map, weights and biases.
    fn results(convolutions: &[Pointwise; 3], side: usize, together: bool) -> Vec<Tensor<1>> {
        let device = device::cpu().autodiff();
        let map = random_on([2, 6, side, side], 1, &device).require_grad();
        let outputs = if together {
            joint(map.clone(), convolutions.each_ref())
        } else {
            convolutions.each_ref().map(|convolution| convolution.forward(map.clone()))
        };
        let seeds = outputs
            .iter()
            .enumerate()
            .map(|(i, out)| (out.clone() * random_on(out.dims(), 5 + i as u64, &device)).sum());
        let grads = seeds.reduce(|sum, seed| sum + seed).unwrap().backward();
        let mut all: Vec<Tensor<1>> = outputs.iter().map(|out| out.clone().inner().flatten(0, 3)).collect();
        all.push(map.grad(&grads).unwrap().flatten(0, 3));
        for convolution in convolutions {
            all.push(convolution.weight.val().grad(&grads).unwrap().flatten(0, 1));
            all.extend(convolution.bias.as_ref().map(|bias| bias.val().grad(&grads).unwrap()));
        }
        all
    }

    #[test]
    fn together_they_give_what_each_gives_with_the_same_gradients() {
        let device = device::cpu().autodiff();
        let biased = || [3, 4, 5].map(|outputs| Pointwise::new(6, outputs, &device));
        let mut unbiased = biased();
        unbiased[1] = Pointwise::unbiased(6, 4, &device);
        // sides whose pixels are fewer and more than the outputs
        for side in [1, 2, 3, 7] {
            for convolutions in [&biased(), &unbiased] {
                let [together, apart] = [true, false].map(|together| results(convolutions, side, together));
                assert_eq!(together.len(), apart.len());
                together.iter().zip(&apart).for_each(|(together, apart)| assert_close(together, apart, 1e-5));
            }
        }
    }
}
