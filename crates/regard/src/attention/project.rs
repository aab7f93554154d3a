//! A 1x1 convolution as one matrix product.

use burn::tensor::Tensor;

use super::check;
use crate::convolution::convolution;
use crate::fused;

/// `[B, C, H, W], [O, C], [O] -> [B, O, H, W]`: the same linear map at every pixel.
///
/// # Panics
/// When the map does not have the weight's input channels.
#[must_use]
pub fn project(map: Tensor<4>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<4> {
    let [batch, channels, height, width] = map.dims();
    let [outputs, inputs] = weight.dims();
    check::agree("project", "channels", ("weight", inputs), ("map", channels));
    if let Some(bias) = &bias {
        check::agree("project", "channels", ("bias", bias.dims()[0]), ("weight", outputs));
    }
    if fused::runs_on(&map) {
        return convolution(map, weight.reshape([outputs, inputs, 1, 1]), bias, 1, 0);
    }
    let out = weight.reshape([1, outputs, inputs]).matmul(map.reshape([batch, channels, height * width]));
    let out = match bias {
        Some(bias) => out + bias.reshape([1, outputs, 1]),
        None => out,
    };
    out.reshape([batch, outputs, height, width])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_gradients_are_differences, noise, random, values};

    #[test]
    fn every_pixel_is_mapped_by_the_same_matrix() {
        let (map, weight, bias) = (random([2, 3, 2, 2], 1), random([4, 3], 2), random([4], 3));
        let out = values(&project(map.clone(), weight.clone(), Some(bias.clone())));
        let (map, weight, bias) = (values(&map), values(&weight), values(&bias));
        for batch in 0..2 {
            for output in 0..4 {
                for pixel in 0..4 {
                    let sum: f32 = (0..3).map(|c| weight[output * 3 + c] * map[(batch * 3 + c) * 4 + pixel]).sum();
                    let actual = out[(batch * 4 + output) * 4 + pixel];
                    assert!((actual - sum - bias[output]).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn gradients_are_differences() {
        let inputs = [("map", noise(2 * 3 * 4, 1)), ("weight", noise(12, 2)), ("bias", noise(4, 3))];
        assert_gradients_are_differences(&inputs, |inputs| {
            let [map, weight, bias] = [0, 1, 2].map(|index: usize| inputs[index].clone());
            project(map.reshape([2, 3, 2, 2]), weight.reshape([4, 3]), Some(bias))
        });
    }

    #[test]
    #[should_panic(expected = "project: weight has channels 5, map has channels 3")]
    fn a_weight_for_other_channels_is_refused() {
        let _ = project(random([1, 3, 2, 2], 1), random([4, 5], 2), None);
    }
}
